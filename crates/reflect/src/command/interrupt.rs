//! Ctrl-C and SIGTERM: the first asks a member to leave, the second ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

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

/// Catches the signals from now on.
pub fn caught(waker: Waker) -> Result<Flag, CommandError> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))
            .map_err(CommandError::io("catch signals"))?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(CommandError::io("catch signals"))?;
    let set = Arc::clone(&flag);
    // It ends with the program.
    std::thread::spawn(move || {
        for _ in signals.forever() {
            set.store(true, Ordering::SeqCst);
            waker.wake();
        }
    });
    Ok(Flag(flag))
}
