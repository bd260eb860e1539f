//! A flag for programs without a runtime, which Ctrl-C, SIGTERM and SIGHUP set: the first asks the program to end, another one
//! half a second later or more ends it. SIGHUP stays ignored where it was ignored at the program's start, as by `nohup`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::signal::unix::SignalKind;

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
    let hangup = (!signals::ignores(SignalKind::hangup())).then_some(SIGHUP);
    let mut caught =
        Signals::new([SIGTERM, SIGINT].into_iter().chain(hangup)).map_err(Failure::io("catch signals"))?;
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
