//! The positions that a granted sequencer may hand out in this process.
//!
//! Invariants, on which it rests that no position is taken twice although tail and bound are two words:
//! - The tail changes by compare-and-swap from a value that was read before the bound. So whoever takes positions took them
//!   from the grant that is open.
//! - Bounds of one sequencer never fall while its tail stays: but by a quota, whose positions are lent all the same, and by a
//!   grant of another rank, or of a later daemon of the same one, which opens the cache at another tail. A bound that was
//!   read late is not above what is lent.

use std::sync::atomic::{AtomicU64, Ordering};

/// A tail from which nothing can be taken.
const CLOSED: u64 = u64::MAX;

/// The tail and the bound. Alone on its cache lines, since many threads change it.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct Cache {
    tail: AtomicU64,
    bound: AtomicU64,
}

impl Cache {
    pub fn new() -> Cache {
        Cache { tail: AtomicU64::new(CLOSED), bound: AtomicU64::new(0) }
    }

    /// Takes positions. Returns the first; `None` if there are not so many.
    #[inline]
    pub fn take(&self, count: u64) -> Option<u64> {
        let mut tail = self.tail.load(Ordering::Acquire);
        loop {
            let bound = self.bound.load(Ordering::Acquire);
            if tail >= bound || bound - tail < count {
                return None;
            }
            match self.tail.compare_exchange_weak(tail, tail + count, Ordering::AcqRel, Ordering::Acquire) {
                Ok(first) => return Some(first),
                Err(now) => tail = now,
            }
        }
    }

    /// Returns the tail, if the cache is open.
    #[inline]
    pub fn tail(&self) -> Option<u64> {
        Some(self.tail.load(Ordering::Acquire)).filter(|tail| *tail != CLOSED)
    }

    pub fn open(&self, tail: u64, bound: u64) {
        self.bound.store(bound, Ordering::Release);
        self.tail.store(tail, Ordering::Release);
    }

    /// Moves the bound.
    pub fn bind(&self, bound: u64) {
        self.bound.store(bound, Ordering::Release);
    }

    /// Closes it. Returns the tail at which it stood, if it was open.
    pub fn close(&self) -> Option<u64> {
        Some(self.tail.swap(CLOSED, Ordering::AcqRel)).filter(|tail| *tail != CLOSED)
    }
}
