//! Commands that this program runs: the signals that they are to hear of, and their ends.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::task::{Context, Poll};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// The signals that end a wait before the command is started, and that the command gets to hear of. A signal that was ignored
/// at the program's start stays so, for the command too.
pub struct Caught {
    streams: Vec<(Signal, tokio::signal::unix::Signal)>,
}

impl Caught {
    /// Catches them from now on.
    pub fn new() -> Result<Caught, Failure> {
        let mut streams = Vec::new();
        for caught in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
            let kind = SignalKind::from_raw(caught.as_raw());
            if !nacre_shell::signals::ignores(kind) {
                streams.push((caught, signal(kind).map_err(Failure::io("catch signals"))?));
            }
        }
        Ok(Caught { streams })
    }

    /// Waits for the next of them.
    pub async fn next(&mut self) -> Signal {
        let any = |context: &mut Context<'_>| {
            let mut streams = self.streams.iter_mut();
            match streams.find_map(|(caught, stream)| stream.poll_recv(context).is_ready().then_some(*caught))
            {
                Some(caught) => Poll::Ready(caught),
                None => Poll::Pending,
            }
        };
        std::future::poll_fn(any).await
    }
}

/// Sends a signal to a command, unless it has ended.
pub fn pass_on(child: &Child, signal: Signal) {
    let Some(pid) = child.id().and_then(|id| Pid::from_raw(id as i32)) else { return };
    // It has not been waited for, so the number is still its own.
    let _ = kill_process(pid, signal);
}

/// Returns a command's end as this program's.
pub fn outcome(status: ExitStatus) -> Result<(), Failure> {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    match code {
        0 => Ok(()),
        code => Err(Failure::Command { code: code as u8, sentence: None }),
    }
}
