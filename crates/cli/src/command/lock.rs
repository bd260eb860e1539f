//! `nacre lock`: runs a command while bytes of a file are locked, in the manner of flock(1).

use std::ffi::OsString;
use std::io;

use nacre::ErrorKind;
use nacre::lock::{Description, Lock, LockableFile, Method, Mode, Protocol, Request};
use nacre_quantity::Escaped;
use rustix::process::Signal;
use tokio::process::{Child, Command};

use super::child::{Caught, outcome, pass_on};
use crate::failure::Failure;
use crate::quantity::Time;
use crate::session::{Context, FENCE_VARIABLE};
use crate::{name, output};

const AFTER_HELP: &str = "\
Patterns:
  range(offset=0, length=64KiB)                        contiguous bytes
  list(0:10, 64:10)                                    any number of offset:length
  vector(count=1024, block=1, stride=64)               or another datatype, from offset 0 on
  view(displacement=4096, count=2, of=vector(...))     copies of a datatype from an offset on

Datatypes, with MPI's meaning:
  byte, bytes(8)
  contiguous(count=3, of=TYPE)
  vector(count=3, block=2, stride=4, of=TYPE)                  hvector: stride in bytes
  indexed(blocks=[2@0, 1@5], of=TYPE)                          count@displacement; hindexed: displacement in bytes
  indexed_block(block=2, displacements=[0, 5], of=TYPE)        hindexed_block: in bytes
  struct(2@0 TYPE, 1@64 TYPE)                                  count@displacement in bytes
  subarray(sizes=[8, 8], subsizes=[2, 2], starts=[0, 4], order=c, of=TYPE)
  darray(rank=1, sizes=[8, 8], distributions=[block, cyclic(2)], processes=[2, 2], order=fortran, of=TYPE)
  resized(lower_bound=0, extent=16, of=TYPE)

Arguments with names may stand in any order. Left out, \"of\" is byte, \"block\" 1, \"order\" c, \"displacement\" of a view 0 and its
\"count\" 1. Distributions are none, block, block(N), cyclic and cyclic(N). Numbers may have units from KiB to EiB.

The command finds the number of the lock's session in NACRE_FENCE. Commands of nacre in it act for that session, so that the
store refuses their changes once the lock is lost; if that happens, the command gets SIGTERM. Within \"nacre lock\" inside
another one that is the session of the inner lock alone: changes are not refused when only the outer lock is lost.

The lock is released when the command itself ends, even if processes that it started go on. SIGTERM, SIGHUP, SIGQUIT, SIGUSR1
and SIGUSR2 are handed on to the command; Ctrl-C reaches it from the terminal. If nacre lock is killed by SIGKILL, the command
goes on without being told, and others get the lock when the lease is over.

Exit codes: that of the command; 128 and its signal if one ended it; 126 if it cannot be run, 127 if it does not exist; 1 if
the lock was not had in time (see -E), if it was lost, and for all other failures; 2 for wrong usage.";

/// Run a command while holding a lock on bytes of a file
///
/// The file is the object of that name, which need not exist. Exactly the bytes of the pattern are locked, however many
/// pieces they form. A lock keeps out only others that lock the same bytes. Waits for bytes that others hold.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The file
    #[arg(value_parser = name::file())]
    file: String,
    /// The bytes to lock, as described below [default: all bytes]
    #[arg(long, short, value_name = "PATTERN", value_parser = pattern)]
    pattern: Option<Description>,
    /// Lock for reading: others may hold shared locks on the same bytes
    #[arg(long, short)]
    shared: bool,
    /// Wait at most this long, such as 5s
    #[arg(long, short, value_name = "TIME", conflicts_with = "try_only")]
    wait: Option<Time>,
    /// Do not wait, neither for other holders nor for the grace period of a server that was restarted
    #[arg(long = "try", short = 'n')]
    try_only: bool,
    /// Exit code if the lock is not acquired in time
    #[arg(long, short = 'E', value_name = "CODE", default_value = "1")]
    conflict_exit_code: u8,
    /// Describe the bytes to the servers region by region (posix), in lists of 64 regions (list), or as the pattern
    /// itself (datatype)
    #[arg(long, value_name = "METHOD", value_parser = ["posix", "list", "datatype"], default_value = "datatype")]
    method: String,
    /// Ask the servers one by one in file order (two-phase), all at once and then in file order (one-try), or by both
    /// in turn (alt-try)
    #[arg(long, value_name = "PROTOCOL", value_parser = ["two-phase", "one-try", "alt-try"], default_value = "alt-try")]
    protocol: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Parses a pattern, and checks that it has a normal form.
fn pattern(text: &str) -> Result<Description, String> {
    let description: Description =
        text.parse().map_err(|error: nacre::lock::PatternError| error.to_string())?;
    nacre::lock::check(&description).map_err(|error| error.to_string())?;
    Ok(description)
}

impl Args {
    fn request(&self) -> Request {
        let mode = if self.shared { Mode::Shared } else { Mode::Exclusive };
        let whole = || Description::contiguous(0, nacre::limit::OFFSET_MAX);
        let method = Method::NAMES.iter().find(|(name, _)| *name == self.method);
        let protocol = Protocol::NAMES.iter().find(|(name, _)| *name == self.protocol);
        let request = Request::new(self.pattern.clone().unwrap_or_else(whole), mode)
            .method(method.map_or(Method::default(), |(_, method)| *method))
            .protocol(protocol.map_or(Protocol::default(), |(_, protocol)| *protocol));
        match &self.wait {
            Some(wait) => request.wait(wait.0),
            None if self.try_only => request.without_wait(),
            None => request,
        }
    }
}

/// Runs `nacre lock`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    if session.folder()?.is_some() {
        let uri = session.shown_uri();
        let sentence = format!(
            "only one process at a time can open a folder, so a lock of {uri} would exclude nobody; start \"nacre serve\" on it, \
             and lock there"
        );
        return Err(Failure::Failed(sentence));
    }
    let store = session.open()?;
    let file = store.file(&args.file)?;
    let done = locked(&file, &args).await;
    // Otherwise the session would be left to lapse.
    store.end_locks().await;
    done
}

async fn locked(file: &LockableFile, args: &Args) -> Result<(), Failure> {
    let mut signals = Caught::new()?;
    let request = args.request();
    let lock = tokio::select! {
        lock = file.lock_by(&request) => lock,
        signal = signals.next() => return Err(ended_by(signal)),
    };
    let lock = match lock {
        Ok(lock) => lock,
        Err(error) if error.kind == ErrorKind::Busy => {
            return Err(Failure::Command { code: args.conflict_exit_code, sentence: Some(error.message) });
        }
        // The session was lost while it waited; nothing is said of the server, which may be up.
        Err(error) if error.kind == ErrorKind::Closed => return Err(Failure::Failed(error.message)),
        Err(error) => return Err(error.into()),
    };
    let mut child = spawn(args, &lock)?;
    let mut lost = false;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.map_err(Failure::io("wait for the command"))?,
            error = lock.lost(), if !lost => {
                lost = true;
                // The command may take its time to end, so this is said at once.
                output::complain(&format!("nacre: {}", error.message));
                pass_on(&child, Signal::TERM);
            }
            signal = signals.next() => match signal {
                // From a terminal the command gets it too, and decides what becomes of it.
                Signal::INT => {}
                signal => pass_on(&child, signal),
            },
        }
    };
    if lost {
        // There is nothing to wait for: what was locked is lost.
        return Err(Failure::Command { code: 1, sentence: None });
    }
    lock.release().await.map_err(|error| Failure::Failed(error.message))?;
    outcome(status)
}

fn spawn(args: &Args, lock: &Lock) -> Result<Child, Failure> {
    let (program, words) =
        args.command.split_first().ok_or_else(|| Failure::Usage("no command".to_owned()))?;
    let spawned = Command::new(program).args(words).env(FENCE_VARIABLE, lock.token().to_string()).spawn();
    spawned.map_err(|error| {
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        let sentence = format!("cannot run {}: {error}", Escaped::of(program));
        Failure::Command { code, sentence: Some(sentence) }
    })
}

/// Returns the failure of a wait that a signal has ended.
fn ended_by(signal: Signal) -> Failure {
    nacre_shell::signals::note(signal.as_raw());
    Failure::Interrupted("interrupted: the lock was not acquired, and the command was not run".to_owned())
}
