//! A flag for programs without a runtime, which Ctrl-C and SIGTERM set: the first asks the program to end, another one half
//! a second later or more ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;
use crate::signals::{self, TOGETHER};

/// A flag that is set by the first signal.
#[derive(Debug)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Returns whether a signal came.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Catches the signals from now on. `wake` is called after each, on a thread of its own.
///
/// # Errors
/// If the system refuses.
pub fn caught(wake: impl Fn() + Send + 'static) -> Result<Flag, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let mut caught = Signals::new([SIGTERM, SIGINT]).map_err(Failure::io("catch signals"))?;
    let set = Arc::clone(&flag);
    // It ends with the program.
    std::thread::spawn(move || {
        let mut first: Option<Instant> = None;
        for signal in caught.forever() {
            signals::note(signal);
            if first.get_or_insert_with(Instant::now).elapsed() >= TOGETHER {
                signals::end();
            }
            set.store(true, Ordering::SeqCst);
            wake();
        }
    });
    Ok(Flag(flag))
}
