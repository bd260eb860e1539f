//! The signals that ask a program to end.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nacre_object::{ErrorKind, StoreError};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The time within which signals are one request. A terminal that closes, a service manager or an impatient script may
/// send several at once, and the second one must not cut short what the first asked for.
pub(crate) const TOGETHER: Duration = Duration::from_millis(500);

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
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
                _ = hangup => {}
            }
            let now = Instant::now();
            if self.last.is_none_or(|last| now.duration_since(last) >= TOGETHER) {
                self.last = Some(now);
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
