//! `nacre lock`: runs a command while bytes of a file are locked, in the manner of flock(1).

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nacre::ErrorKind;
use nacre::lock::{Description, File, Lock, Method, Mode, Protocol, Request};
use nacre_reflect::command::Time;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::name;
use crate::session::{FENCE_VARIABLE, Session};

const AFTER_HELP: &str = "\
Patterns:
  range(offset=0, length=64KiB)                        bytes in a row
  list(0:10, 64:10)                                    offset:length, as many as you like
  vector(count=1024, block=1, stride=64)               a datatype from offset 0 on; also hvector, indexed, hindexed,
                                                       indexed_block, struct, subarray, darray, resized, contiguous
  view(displacement=4096, count=2, of=vector(...))     copies of a datatype from an offset on

The command finds the number of the lock's session in NACRE_FENCE. Commands of nacre in it act for that session, so that the
store refuses their changes once the lock is lost; if that happens, the command gets SIGTERM.

Exit codes: that of the command; 128 and its signal if one ended it; 126 if it cannot be run, 127 if it does not exist; 1 if
the lock was not had in time (see -E), and for all other failures; 2 for wrong usage.";

/// Run a command while bytes of a file are locked
///
/// The file is the object of that name, which need not exist. Exactly the bytes of the pattern are locked, however many
/// pieces they are; only others that lock them are kept out. Bytes that others hold are waited for.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The file
    #[arg(value_parser = name::file())]
    file: String,
    /// The bytes to lock [default: all]
    #[arg(long, short, value_name = "PATTERN", value_parser = pattern)]
    pattern: Option<Description>,
    /// Lock for reading: others may hold the bytes shared too
    #[arg(long, short)]
    shared: bool,
    /// Wait at most so long, such as 5s
    #[arg(long, short, value_name = "TIME", conflicts_with = "try_only")]
    wait: Option<Time>,
    /// Do not wait
    #[arg(long = "try", short = 'n')]
    try_only: bool,
    /// The exit code if the lock is not had in time
    #[arg(long, short = 'E', value_name = "CODE", default_value = "1")]
    conflict_exit_code: u8,
    /// Describe the bytes to the servers region by region, in lists of 64 regions, or as they are
    #[arg(long, value_name = "METHOD", value_parser = ["posix", "list", "datatype"], default_value = "datatype")]
    method: String,
    /// Ask server by server in file order, all at once and then so, or both by turns
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
pub async fn run(session: &Session, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let file = store.file(&args.file)?;
    let done = locked(&file, &args).await;
    // Otherwise the session would be left to lapse.
    store.end_locks().await;
    done
}

async fn locked(file: &File, args: &Args) -> Result<(), Failure> {
    let caught = |kind| signal(kind).map_err(Failure::io("catch signals"));
    let mut interrupts = caught(SignalKind::interrupt())?;
    let mut terminations = caught(SignalKind::terminate())?;
    let request = args.request();
    let lock = tokio::select! {
        lock = file.lock_by(&request) => lock,
        _ = interrupts.recv() => return Err(ended_by(Signal::INT)),
        _ = terminations.recv() => return Err(ended_by(Signal::TERM)),
    };
    let lock = match lock {
        Ok(lock) => lock,
        Err(error) if error.kind == ErrorKind::Busy => {
            return Err(Failure::Command { code: args.conflict_exit_code, sentence: Some(error.message) });
        }
        Err(error) => return Err(error.into()),
    };
    let mut child = spawn(args, &lock)?;
    let mut lost = None;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.map_err(Failure::io("wait for the command"))?,
            error = lock.lost(), if lost.is_none() => {
                lost = Some(error);
                pass_on(&child, Signal::TERM);
            }
            // From a terminal the command gets it too, and decides what becomes of it.
            _ = interrupts.recv() => {}
            _ = terminations.recv() => pass_on(&child, Signal::TERM),
        }
    };
    match lost {
        // There is nothing to wait for: what was locked is lost.
        Some(error) => Err(Failure::Failed(error.message)),
        None => {
            lock.release().await.map_err(|error| Failure::Failed(error.message))?;
            outcome(status)
        }
    }
}

fn spawn(args: &Args, lock: &Lock) -> Result<Child, Failure> {
    let (program, words) =
        args.command.split_first().ok_or_else(|| Failure::Usage("no command".to_owned()))?;
    let spawned = Command::new(program).args(words).env(FENCE_VARIABLE, lock.token().to_string()).spawn();
    spawned.map_err(|error| {
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        let sentence = format!("cannot run {}: {error}", program.to_string_lossy());
        Failure::Command { code, sentence: Some(sentence) }
    })
}

/// Sends a signal to the command, unless it has ended.
fn pass_on(child: &Child, signal: Signal) {
    let Some(pid) = child.id().and_then(|id| Pid::from_raw(id as i32)) else { return };
    // It has not been waited for, so the number is still its own.
    let _ = kill_process(pid, signal);
}

fn ended_by(signal: Signal) -> Failure {
    Failure::Command { code: 128 + signal.as_raw() as u8, sentence: None }
}

/// Returns the command's end as this program's.
fn outcome(status: ExitStatus) -> Result<(), Failure> {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    match code {
        0 => Ok(()),
        code => Err(Failure::Command { code: code as u8, sentence: None }),
    }
}
