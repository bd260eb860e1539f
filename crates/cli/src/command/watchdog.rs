//! `nacre mpirun-watchdog`: a process beside a rank, which ends the rank before its lease on locked bytes is over.
//!
//! The library in the rank starts it (`crates/mpiio/src/watchdog.rs`), and gives it as standard input a file in memory with the time at
//! which the rank is to be ended, and as standard output the rank's process.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal, setpriority_process, setsid};
use rustix::time::{ClockId, clock_gettime};

use crate::failure::Failure;
use crate::output;

/// The nice values of the highest and the lowest priority.
const NICE_MIN: i32 = -20;
const NICE_MAX: i32 = 19;

/// End a rank of "nacre mpirun --lease-lost kill" before its lease is over
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The number of the rank's process, for messages
    process: u32,
    /// The time between two looks, in milliseconds
    period_ms: u64,
    /// Watch in this process, not in one that is started for it
    #[arg(long)]
    stay: bool,
}

/// Runs `nacre mpirun-watchdog`.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.stay { watch(args) } else { start(args) }
}

/// Starts the process that watches, which the rank is not to have as a child: programs may wait for their children.
// It outlives this process, which therefore does not wait for it.
#[allow(clippy::zombie_processes)]
fn start(args: &Args) -> Result<(), Failure> {
    // What stops the rank, or all of its job, does not stop a process of another session.
    setsid().map_err(io::Error::from).map_err(Failure::io("leave the session of the rank"))?;
    let this = std::env::current_exe().map_err(Failure::io("find the program that runs"))?;
    let mut command = Command::new(this);
    command.args(["mpirun-watchdog", "--stay", &args.process.to_string(), &args.period_ms.to_string()]);
    command.spawn().map_err(Failure::io("start the watchdog of a rank"))?;
    Ok(())
}

fn watch(args: &Args) -> Result<(), Failure> {
    hurry();
    let page = io::stdin().as_fd().try_clone_to_owned().map_err(Failure::io("use standard input"))?;
    let (page, rank) = (File::from(page), io::stdout());
    let period = Duration::from_millis(args.period_ms.max(1));
    while !has_ended(&rank, period)? {
        // If the time is not known, nothing can be relied on.
        if due(&page).is_ok_and(|due| now() < due) {
            continue;
        }
        // Whoever reads the message may be stopped too, so it comes second.
        let killed = pidfd_send_signal(rank.as_fd(), Signal::KILL);
        let process = args.process;
        output::complain(&match killed {
            Ok(()) => format!(
                "nacre: process {process} was killed, because it holds bytes whose lease is about to end: it was stopped, or cannot \
                 reach the lock servers"
            ),
            Err(error) => {
                format!("nacre: process {process}, whose lease is about to end, cannot be killed: {error}")
            }
        });
        break;
    }
    Ok(())
}

/// Takes the highest priority that this process may have: it has the job's, which may be the lowest of a busy machine, and would come too
/// late.
fn hurry() {
    // The one that it has is always allowed.
    let _ = (NICE_MIN..=NICE_MAX).find(|nice| setpriority_process(None, *nice).is_ok());
}

/// Waits until the rank has ended, or until it is time to look again.
fn has_ended(rank: &io::Stdout, period: Duration) -> Result<bool, Failure> {
    let mut ends = [PollFd::new(rank, PollFlags::IN)];
    let timeout = Timespec::try_from(period).ok();
    match poll(&mut ends, timeout.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(Failure::io("wait for the end of a rank")(error.into())),
    }
}

/// Reads the time at which the rank is to be ended, by the clock of [`now`].
fn due(page: &File) -> io::Result<Duration> {
    let read = || -> io::Result<u64> {
        let mut bytes = [0; 8];
        page.read_exact_at(&mut bytes, 0)?;
        Ok(u64::from_le_bytes(bytes))
    };
    // A read may see the half of a write.
    loop {
        let (one, other) = (read()?, read()?);
        if one == other {
            return Ok(Duration::from_nanos(one));
        }
    }
}

/// Returns the time by the clock of leases, which goes on while the machine sleeps.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is negative: the clock counts up from 0.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn the_watchdog_has_the_highest_priority_that_it_may_have() {
        // Of a thread of its own, which ends with it.
        let priority = std::thread::spawn(|| {
            hurry();
            getpriority_process(None).unwrap()
        });
        let others = Command::new("sh").args(["-c", "nice -n -40 nice"]).output().unwrap();
        let allowed: i32 = String::from_utf8(others.stdout).unwrap().trim().parse().unwrap();
        let priority = priority.join().unwrap();
        assert!(priority <= allowed, "{priority}, and {allowed} is allowed");
    }
}
