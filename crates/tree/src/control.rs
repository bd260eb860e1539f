//! A switch that stops a removal or a copy, whichever of its walks is running.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nacre_walk::Queue;
use parking_lot::Mutex;

/// A stop switch for a removal or a copy. It may be used from any thread and more than once.
#[derive(Default, derive_more::Debug)]
#[debug("Control")]
pub struct Control {
    stopped: Arc<AtomicBool>,
    walk: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Control {
    /// Returns a switch for a part of the work: it is stopped with this one.
    pub(crate) fn of_part(&self) -> Control {
        Control { stopped: Arc::clone(&self.stopped), walk: Mutex::default() }
    }

    /// Stops the work as soon as the operations under way are done.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(stop) = &*self.walk.lock() {
            stop();
        }
    }

    /// Returns whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Attaches the walk that [`Control::stop`] is to stop. A walk that begins after the switch was thrown is stopped
    /// by its visitors, which have to ask.
    pub(crate) fn attach<S: Send + Sync + 'static>(&self, queue: &Arc<Queue<S>>) {
        let queue = Arc::clone(queue);
        *self.walk.lock() = Some(Box::new(move || queue.stop()));
    }
}
