//! How a command ends when it does not end well, and what it says then: one sentence.

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use nacre::{Error, ErrorKind};
use serde_json::Value;

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub enum Failure {
    /// It could not. Exit code 1.
    Failed(String),
    /// It was asked wrongly. Exit code 2.
    Usage(String),
    /// A guard did not hold. Exit code 3.
    Refused(Refused),
    /// Nobody reads the output any more, which is their good right. Exit code 0, and not a word.
    Unread,
}

/// A guard that did not hold.
#[derive(Debug)]
pub struct Refused {
    /// The sentence.
    pub sentence: String,
    /// What stands there now: the version, or the value of a key.
    pub current: String,
    /// The same and more, as JSON.
    pub json: Value,
}

impl Failure {
    /// Reports the failure, and gives the exit code.
    pub fn report(self, json: bool) -> ExitCode {
        let (sentence, code) = match self {
            Failure::Unread => return ExitCode::SUCCESS,
            Failure::Failed(sentence) => (sentence, 1),
            Failure::Usage(sentence) => (sentence, 2),
            Failure::Refused(refused) => {
                let current = if json { refused.json.to_string() } else { refused.current };
                // If nobody reads it, the exit code still says it.
                let _ = crate::output::line(&current).and_then(|()| crate::output::flush());
                (refused.sentence, 3)
            }
        };
        crate::output::complain(&format!("nacre: {sentence}"));
        ExitCode::from(code)
    }

    /// A failure to do something with a file, or with standard input or output.
    pub fn io(attempted: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure::Failed(format!("cannot {attempted}: {error}"))
    }

    /// A failure of the store to do something that its own sentence does not name.
    pub fn store(attempted: impl std::fmt::Display) -> impl FnOnce(Error) -> Failure {
        move |error| error.context(format_args!("cannot {attempted}")).into()
    }
}

/// Whether this command's store is a pool of a Ceph cluster, which has servers, keys and scrubs of its own.
static ON_CEPH: AtomicBool = AtomicBool::new(false);

/// Has the advice be for the store that a command opened.
pub fn advise_for_ceph() {
    ON_CEPH.store(true, Ordering::Relaxed);
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let on_ceph = ON_CEPH.load(Ordering::Relaxed);
        let advice = match error.kind {
            ErrorKind::Unavailable if on_ceph => "\"ceph status\" says how the cluster is",
            ErrorKind::Corrupt if on_ceph => {
                "\"nacre scrub\" lists all that is damaged, \"nacre rm --force\" does away with it"
            }
            ErrorKind::Denied | ErrorKind::Closed | ErrorKind::ReadOnly if on_ceph => "",
            // It is there, and says itself what is the matter.
            ErrorKind::Unavailable if error.message.contains("as many connections as it may") => {
                "try again later, or start it with a greater --connections-max"
            }
            ErrorKind::Unavailable => {
                "start the server with \"nacre serve\", or name another store with --store or NACRE_STORE"
            }
            ErrorKind::Unknown => "it may or may not have taken effect: read the object to find out",
            ErrorKind::Denied if error.message.contains("asks for the cluster's key") => {
                "give the key file with --key or NACRE_KEY"
            }
            ErrorKind::OutOfSpace => "make room, then try again",
            ErrorKind::ReadOnly => "see the server's log, put the disk right, and start the server again",
            ErrorKind::Corrupt => "\"nacre scrub\" lists all that is damaged",
            ErrorKind::Closed => "try again when it is up again",
            ErrorKind::Invalid
            | ErrorKind::Io
            | ErrorKind::Unsupported
            | ErrorKind::Busy
            | ErrorKind::Denied => "",
        };
        // Some of the store's sentences say it themselves.
        let said = advice.is_empty() || error.message.contains(advice);
        Failure::Failed(if said { error.message } else { format!("{}; {advice}", error.message) })
    }
}

impl From<io::Error> for Failure {
    /// A failure to write to standard output.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Unread,
            _ => Failure::Failed(format!("cannot write to standard output: {error}")),
        }
    }
}
