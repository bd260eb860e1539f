//! The signals that ask a program to end, and the end that they lead to.
//!
//! A command whose work such a signal cuts short ends as by that signal ([`Failure::of_work`]), so that a shell, a script or a
//! service manager can tell. One that runs until it is asked to end, as a server does, ends with 0.
//!
//! [`Failure::of_work`]: crate::Failure::of_work

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nacre_object::{ErrorKind, StoreError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The time within which signals are one request. A terminal that closes, a service manager or an impatient script may
/// send several at once, and the second one must not cut short what the first asked for.
pub const TOGETHER: Duration = Duration::from_millis(500);

/// The number of the latest signal that has asked this program to end; 0 for none.
static LATEST: AtomicI32 = AtomicI32::new(0);

/// Notes that a signal has asked this program to end.
pub fn note(signal: i32) {
    LATEST.store(signal, Ordering::SeqCst);
}

/// Returns the number of the latest signal that has asked this program to end, if one has.
pub fn latest() -> Option<i32> {
    Some(LATEST.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// Ends the program at once, as the latest signal would if it were not caught. A shell shows 130 for Ctrl-C, 143 for SIGTERM, and
/// ends the script or the loop that the program runs in, which it does for no exit code.
pub fn end() -> ! {
    let signal = latest().unwrap_or(SIGINT);
    // The first process of a container does not get signals that it does not catch.
    if std::process::id() != 1 {
        let _ = emulate_default_handler(signal);
    }
    std::process::exit(128 + signal)
}

/// The signals SIGTERM, SIGINT (Ctrl-C) and SIGHUP (the terminal has closed), caught from the creation of this value on.
/// SIGHUP stays ignored where it was ignored at the program's start, as by `nohup`.
#[derive(derive_more::Debug)]
#[debug("Signals")]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    /// The time of the latest request.
    last: Option<Instant>,
}

impl Signals {
    /// Catches the signals from now on. Must be called in a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// `Io` if the system refuses.
    pub fn catch() -> Result<Signals, StoreError> {
        let caught = |kind| {
            signal(kind)
                .map_err(|error| StoreError::new(ErrorKind::Io, format!("cannot catch signals: {error}")))
        };
        // Once it is caught it is not ignored any more, so the first look counts.
        static HANGUP_IGNORED: OnceLock<bool> = OnceLock::new();
        let hangup = match HANGUP_IGNORED.get_or_init(|| ignores(SignalKind::hangup())) {
            true => None,
            false => Some(caught(SignalKind::hangup())?),
        };
        Ok(Signals {
            interrupt: caught(SignalKind::interrupt())?,
            terminate: caught(SignalKind::terminate())?,
            hangup,
            last: None,
        })
    }

    /// Waits for the next request to end: a signal that comes half a second or more after the one before.
    pub async fn next(&mut self) {
        loop {
            let hangup = async {
                match &mut self.hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            let signal = tokio::select! {
                _ = self.interrupt.recv() => SIGINT,
                _ = self.terminate.recv() => SIGTERM,
                _ = hangup => SIGHUP,
            };
            let now = Instant::now();
            if self.last.is_none_or(|last| now.duration_since(last) >= TOGETHER) {
                self.last = Some(now);
                note(signal);
                return;
            }
        }
    }
}

/// Returns whether this process ignores a signal now, as one that a caught signal does not. Where that cannot be found out, it does not.
pub fn ignores(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}
