//! The tasks beside a walk: the progress line on a terminal, the timer of checkpoints, and signals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nacre_shell::signals::{self, TOGETHER};
use nacre_walk::Queue;
use nacre_walk::report::Sums;
use parking_lot::{Condvar, Mutex};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The interval at which the watch checks the walk.
const TICK: Duration = Duration::from_millis(100);

/// The duration of a walk from which a progress line is shown.
const LONG: Duration = Duration::from_millis(700);

/// The watch over a walk.
pub struct Watch {
    queue: Arc<Queue<Sums>>,
    /// Signals that ask the program to end.
    signals: Option<Mutex<Signals>>,
    handle: Option<signal_hook::iterator::Handle>,
    signalled: Arc<AtomicBool>,
    /// The time at which to stop the walk for the next checkpoint.
    due: Mutex<Option<Instant>>,
    over: Mutex<bool>,
    wake: Condvar,
    live: bool,
}

impl Watch {
    /// Creates a watch over the walk with `queue`; `live` shows a line on standard error.
    pub fn new(queue: &Arc<Queue<Sums>>, live: bool) -> Watch {
        Watch {
            queue: Arc::clone(queue),
            signals: None,
            handle: None,
            signalled: Arc::default(),
            due: Mutex::new(None),
            over: Mutex::new(false),
            wake: Condvar::new(),
            live,
        }
    }

    /// Makes SIGTERM and SIGINT stop the walk; another one, half a second later or more, ends the program at once.
    ///
    /// # Errors
    /// If the signals cannot be caught.
    pub fn catch_signals(&mut self) -> std::io::Result<()> {
        let signals = Signals::new([SIGTERM, SIGINT])?;
        self.handle = Some(signals.handle());
        self.signals = Some(Mutex::new(signals));
        Ok(())
    }

    /// Returns whether there is anything to do.
    pub fn is_needed(&self) -> bool {
        self.live || self.signals.is_some()
    }

    /// Returns whether a signal has arrived.
    pub fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::SeqCst)
    }

    /// Sets the time after which the walk is stopped for a checkpoint.
    pub fn set_due(&self, after: Duration) {
        *self.due.lock() = Instant::now().checked_add(after);
    }

    /// Returns whether the time for a checkpoint has come.
    pub fn is_due(&self) -> bool {
        self.due.lock().is_some_and(|due| due <= Instant::now())
    }

    /// Waits for signals until [`Watch::end`], on its own thread.
    pub fn wait_for_signals(&self) {
        let Some(caught) = &self.signals else { return };
        let mut first: Option<Instant> = None;
        for signal in caught.lock().forever() {
            signals::note(signal);
            if first.get_or_insert_with(Instant::now).elapsed() >= TOGETHER {
                signals::end();
            }
            // Whoever sees the walk stopped looks for the reason afterwards.
            self.signalled.store(true, Ordering::SeqCst);
            self.queue.stop();
        }
    }

    /// Ends [`Watch::run`] and [`Watch::wait_for_signals`].
    pub fn end(&self) {
        if let Some(handle) = &self.handle {
            handle.close();
        }
        *self.over.lock() = true;
        self.wake.notify_all();
    }

    /// Watches until [`Watch::end`], on its own thread.
    pub fn run(&self) {
        let begun = Instant::now();
        let mut line = None;
        let mut over = self.over.lock();
        while !*over {
            self.wake.wait_for(&mut over, TICK);
            if self.is_due() {
                self.queue.stop();
            }
            if self.live && begun.elapsed() >= LONG {
                let message = self.queue.snapshot().line(begun.elapsed());
                line.get_or_insert_with(line_on_terminal).set_message(message);
            }
        }
        if let Some(line) = line {
            line.finish_and_clear();
        }
    }
}

fn line_on_terminal() -> ProgressBar {
    let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
        line.set_style(style);
    }
    line
}
