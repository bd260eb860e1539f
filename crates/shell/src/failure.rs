//! The failures of commands, and the sentence that each prints.

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use nacre_object::{ErrorKind, StoreError};
use nacre_zlog::LogError;
use serde_json::Value;

/// The reason why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The command failed. Exit code 1.
    Failed(String),
    /// The command was used wrongly. Exit code 2.
    Usage(String),
    /// A guard did not hold. Exit code 3.
    Refused(Refused),
    /// A signal asked the command to end before its work was done. It ends as by that signal.
    Interrupted(String),
    /// A command that was run ended with this code, or could not be run for this reason.
    Command {
        /// The exit code.
        code: u8,
        /// The message, if there is something to say.
        sentence: Option<String>,
    },
    /// The reader of the output is gone, which is not an error. Exit code 0, without a message.
    Unread,
}

/// A guard that did not hold.
#[derive(Debug)]
pub struct Refused {
    /// The message, as one sentence.
    pub sentence: String,
    /// The current state: the version, or the value of a key.
    pub current: String,
    /// The current state in more detail, as JSON.
    pub json: Value,
}

impl Failure {
    /// Reports the failure, and returns the exit code.
    pub fn report(self, json: bool) -> ExitCode {
        let (sentence, code) = match self {
            Failure::Unread => return ExitCode::SUCCESS,
            Failure::Command { code, sentence: None } => return ExitCode::from(code),
            Failure::Command { code, sentence: Some(sentence) } => (sentence, code),
            Failure::Failed(sentence) => (sentence, 1),
            Failure::Usage(sentence) => (sentence, 2),
            Failure::Interrupted(sentence) => {
                crate::output::complain(&format!("nacre: {sentence}"));
                // What it has printed so far may still be in memory.
                let _ = crate::output::flush();
                crate::signals::end()
            }
            Failure::Refused(refused) => {
                let current = if json { refused.json.to_string() } else { refused.current };
                // If the output cannot be written, the exit code still reports the refusal.
                let _ = crate::output::line(&current).and_then(|()| crate::output::flush());
                (refused.sentence, 3)
            }
        };
        crate::output::complain(&format!("nacre: {sentence}"));
        ExitCode::from(code)
    }

    /// Returns the failure of a command that has work to do, and does not run until it is asked to end: if a signal has asked it
    /// to, that is why it failed.
    pub fn of_work(self) -> Failure {
        match self {
            Failure::Failed(sentence) if crate::signals::latest().is_some() => Failure::Interrupted(sentence),
            failure => failure,
        }
    }

    /// Returns a constructor of the failure to do something with a file, or with standard input or output.
    pub fn io(attempted: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure::Failed(format!("cannot {attempted}: {error}"))
    }

    /// Converts the result of writing to standard output in a command that tells by its exit code whether things differ,
    /// as cmp and diff do: 2 if the output cannot be written. If only its reader is gone, the code tells nevertheless.
    pub fn output_of_comparison(written: io::Result<()>) -> Result<(), Failure> {
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                let sentence = Some(format!("cannot write to standard output: {error}"));
                Err(Failure::Command { code: 2, sentence })
            }
            _ => Ok(()),
        }
    }

    /// Returns a constructor of a store's failure to do something that its own message does not name.
    pub fn store(attempted: impl std::fmt::Display) -> impl FnOnce(StoreError) -> Failure {
        move |error| error.context(format_args!("cannot {attempted}")).into()
    }
}

/// True if this command's store is a pool of a Ceph cluster, which has servers, keys and scrubs of its own.
static ON_CEPH: AtomicBool = AtomicBool::new(false);

/// True if this command does not read the variable that names a store.
static ONLY_BY_FLAG: AtomicBool = AtomicBool::new(false);

/// Adapts the advice in messages to a command whose store is named by a flag only.
pub fn advise_without_variable() {
    ONLY_BY_FLAG.store(true, Ordering::Relaxed);
}

/// Adapts the advice in messages to a store on Ceph.
pub fn advise_for_ceph() {
    ON_CEPH.store(true, Ordering::Relaxed);
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let on_ceph = ON_CEPH.load(Ordering::Relaxed);
        let advice = match error.kind {
            // The cluster has told where the daemon should be.
            ErrorKind::Unavailable
                if on_ceph
                    && ["metadata rank", "cannot reach the server"]
                        .iter()
                        .any(|part| error.message.contains(part)) =>
            {
                "start the daemon that is this metadata rank, or another one: \"nacre serve --roles store,meta\""
            }
            ErrorKind::Unavailable if on_ceph => "\"ceph status\" shows the state of the cluster",
            // An object that is gone is no damage that a scrub finds.
            ErrorKind::Corrupt if error.message.contains("which holds some of its bytes, is missing") => {
                "put the stream there again from a backup, or remove it with \"nacre rm\""
            }
            ErrorKind::Corrupt if on_ceph => {
                "\"nacre scrub\" lists all damage, \"nacre rm --force\" removes damaged objects"
            }
            // A metadata rank of a pool may say so, too.
            ErrorKind::Denied if error.message.contains("asks for the cluster's key") => {
                "give the key file with --key or NACRE_KEY"
            }
            ErrorKind::Denied | ErrorKind::Closed | ErrorKind::ReadOnly if on_ceph => "",
            // The server is up, and its message explains the refusal.
            ErrorKind::Unavailable if error.message.contains("as many connections as it may") => {
                "try again later, or restart it with a greater --connections-max"
            }
            // The host is there, or a firewall before it.
            ErrorKind::Unavailable if error.message.contains("did not answer in time") => {
                "it may be stopped or busy, or a firewall may be in between: try again later"
            }
            ErrorKind::Unavailable if error.message.contains("not a nacre server") => {
                "name the address of a server with --store"
            }
            ErrorKind::Unavailable if error.message.contains("failed to lookup address") => {
                "check the name of the host in --store"
            }
            ErrorKind::Unavailable
                if error.message.contains("metadata rank ") && error.message.contains(" does not answer") =>
            {
                "start its daemon again, or another one with the same --meta-rank"
            }
            ErrorKind::Unavailable if ONLY_BY_FLAG.load(Ordering::Relaxed) => {
                "start that server first, or name another store with --store"
            }
            ErrorKind::Unavailable => {
                "start the server with \"nacre serve\", or name another store with --store or NACRE_STORE"
            }
            ErrorKind::Unknown => {
                "it may or may not have taken effect, and may still do so shortly: read the object to find out"
            }
            ErrorKind::OutOfSpace => "free some space, then try again",
            ErrorKind::ReadOnly => "see the server's log, repair the disk, and restart the server",
            ErrorKind::Corrupt => "\"nacre scrub\" lists all that is damaged",
            ErrorKind::Closed => "try again when it is up again",
            ErrorKind::Invalid
            | ErrorKind::Io
            | ErrorKind::Unsupported
            | ErrorKind::Busy
            | ErrorKind::Denied => "",
            ErrorKind::Unrecognized => "use a program as new as the server",
            _ => "",
        };
        // Some of the store's messages include the advice already.
        let said = advice.is_empty() || error.message.contains(advice);
        Failure::Failed(if said { error.message } else { format!("{}; {advice}", error.message) })
    }
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Store(error) => error.into(),
            error @ LogError::Missing(_) => {
                Failure::Failed(format!("{error}; \"nacre zlog ls\" lists the existing ones"))
            }
            error => Failure::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    /// Converts a failure to write to standard output.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Unread,
            _ => Failure::Failed(format!("cannot write to standard output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_the_reason_why_a_server_is_not_reached() {
        for (why, advice) in [
            ("Connection refused", "start the server with"),
            ("it did not answer in time", "try again later"),
            ("what answers there is not a nacre server", "name the address of a server"),
            ("failed to lookup address information: Name or service not known", "the name of the host"),
        ] {
            let message = format!("cannot reach the server at nacre://a:1: {why}");
            let failure = Failure::from(StoreError::new(ErrorKind::Unavailable, message.clone()));
            let Failure::Failed(sentence) = failure else { panic!("{failure:?}") };
            let rest = sentence.strip_prefix(&message).unwrap_or_else(|| panic!("{sentence}"));
            assert!(rest.contains(advice), "{sentence}");
            assert_eq!(rest.contains("nacre serve"), why == "Connection refused", "{sentence}");
        }
    }
}
