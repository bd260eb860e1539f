//! The memory that all connections of a server may hold together.
//!
//! A session that holds something stops reading while the budget is exceeded; one that holds nothing may always
//! read once more, so that work goes on however many peers hold on to what they have. The bound is therefore soft
//! by one read for each connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use crate::server::stats::Stats;

#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    /// Whether there may be anybody in `waiting`.
    any_waiting: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, any_waiting: AtomicBool::new(false), waiting: Mutex::new(Vec::new()) }
    }

    /// Whether a session may hold more; if not, `waker` is woken when it may.
    pub(crate) fn may_grow(&self, stats: &Stats, waker: &Waker) -> bool {
        if (stats.held_bytes.get() as usize) < self.limit {
            return true;
        }
        self.waiting.lock().push(waker.clone());
        self.any_waiting.store(true, Ordering::SeqCst);
        // What was given back before the line above has woken nobody.
        (stats.held_bytes.get() as usize) < self.limit
    }

    /// Notes that a session holds `now` bytes and no longer `was`.
    pub(crate) fn hold(&self, stats: &Stats, was: usize, now: usize) {
        stats.held_bytes.change(was, now);
        if now < was
            && self.any_waiting.load(Ordering::SeqCst)
            && (stats.held_bytes.get() as usize) < self.limit
        {
            self.any_waiting.store(false, Ordering::SeqCst);
            let waiting = std::mem::take(&mut *self.waiting.lock());
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}
