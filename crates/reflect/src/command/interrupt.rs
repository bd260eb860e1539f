//! Ctrl-C and SIGTERM: the first asks a member to leave, another one half a second later or more ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::CommandError;
use crate::client::Waker;

/// A flag that is set by the first signal.
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// True if a signal came.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// The time within which signals are one request, as a terminal or a service manager may send several at once.
const TOGETHER: Duration = Duration::from_millis(500);

/// Catches the signals from now on.
pub fn caught(waker: Waker) -> Result<Flag, CommandError> {
    let flag = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(CommandError::io("catch signals"))?;
    let set = Arc::clone(&flag);
    // It ends with the program.
    std::thread::spawn(move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            if first.get_or_insert_with(Instant::now).elapsed() >= TOGETHER {
                // It ends the program, as if it were not caught.
                let _ = emulate_default_handler(signal);
            }
            set.store(true, Ordering::SeqCst);
            waker.wake();
        }
    });
    Ok(Flag(flag))
}
