//! The primitives by which the threads of a store synchronise: locks, decisive atomics, threads, time.
//!
//! They are the usual ones or, with the feature `shuttle`, those of that scheduler, under which the tests
//! run the same code with every switch between threads decided by a seed. A store that is built with that feature works
//! only inside such a run. Atomics that decide nothing (counters for reports), and locks under which no thread waits or
//! switches, need not come from here.

#[cfg(not(feature = "shuttle"))]
mod primitives {
    pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
    pub use std::thread::JoinHandle;
    pub use std::thread::sleep as pause;
    pub use std::time::Instant;

    pub use futures::executor::block_on;
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

    /// Releases a lock to the thread that has waited for it the longest, rather than to the next one that takes it.
    pub fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
        MutexGuard::unlock_fair(guard);
    }

    /// Starts a thread.
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name.to_string()).spawn(work)
    }
}

#[cfg(feature = "shuttle")]
#[path = "sync_shuttle.rs"]
mod primitives;

pub use primitives::{
    AtomicBool, AtomicI64, AtomicU64, Condvar, Instant, JoinHandle, Mutex, MutexGuard, RwLock, block_on,
    pause, spawn, unlock_fair,
};
