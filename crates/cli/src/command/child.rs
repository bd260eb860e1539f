//! Commands that this program runs: the signals that they are to hear of, and their ends.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::task::{Context, Poll};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
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

/// Processes that a command has started, itself or through others. Later ones that get their numbers are not among them.
pub struct Descendants(Vec<OwnedFd>);

impl Descendants {
    /// Finds those whose parents have not ended.
    pub fn of(child: &Child) -> Descendants {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let number = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            if let Some(number) = number
                && let Some(of) = parent(number)
            {
                children.entry(of).or_default().push(number);
            }
        }
        let (mut found, mut parents) = (Vec::new(), Vec::from_iter(child.id()));
        while let Some(of) = parents.pop() {
            for number in children.remove(&of).unwrap_or_default() {
                let opened = Pid::from_raw(number as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
                // It may have ended, and another one may have its number.
                if let Some(Ok(process)) = opened
                    && parent(number) == Some(of)
                {
                    found.push(process);
                    parents.push(number);
                }
            }
        }
        Descendants(found)
    }

    /// Kills those that have not ended.
    pub fn kill(&self) {
        for process in &self.0 {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

/// Returns the parent of a process, by their numbers.
fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    // Its name stands before, in brackets, and may have brackets and spaces of its own.
    String::from_utf8_lossy(&stat).rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Kills a command and all that it has started.
pub fn kill_with_descendants(child: &Child) {
    let descendants = Descendants::of(child);
    pass_on(child, Signal::KILL);
    descendants.kill();
}

/// Returns a command's end as this program's.
pub fn outcome(status: ExitStatus) -> Result<(), Failure> {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    match code {
        0 => Ok(()),
        code => Err(Failure::Command { code: code as u8, sentence: None }),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt, BufReader};

    use super::*;

    #[tokio::test]
    async fn all_that_a_command_has_started_is_killed_with_it() {
        let mut command = tokio::process::Command::new("sh");
        // The last one is in another session, as what launchers start is.
        command.args(["-c", "sh -c 'setsid sleep 600 & echo started; wait' & wait"]);
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).await.unwrap();
        assert_eq!(line, "started\n");
        assert_eq!(Descendants::of(&child).0.len(), 2);
        kill_with_descendants(&child);
        assert!(!child.wait().await.unwrap().success());
        // Ends when none of them has it open.
        let rest = output.read_line(&mut line);
        let rest = tokio::time::timeout(Duration::from_secs(60), rest).await;
        assert_eq!(rest.expect("one of them still runs").unwrap(), 0);
    }
}
