//! The primitives of shuttle, with the interface of the usual ones.
//!
//! Shuttle has no time: there, a wait with a time limit never ends by itself. Here the run's seed decides whether it
//! does; and between two moments either nothing has passed or a day.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
pub use shuttle::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
pub use shuttle::thread::JoinHandle;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The shortest time limit that stands for a wait without one.
const FOREVER: Duration = Duration::from_secs(3600);

/// Starts a thread.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    shuttle::thread::Builder::new().name(name.to_string()).spawn(work)
}

/// Lets other threads run.
pub fn pause(_: Duration) {
    shuttle::thread::yield_now();
}

/// Releases a lock, and lets other threads take it.
pub fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
    drop(guard);
    shuttle::thread::yield_now();
}

/// A moment.
pub struct Instant;

impl Instant {
    /// Returns this moment.
    pub fn now() -> Self {
        Self
    }

    /// Returns the time since then: nothing or a day.
    pub fn elapsed(&self) -> Duration {
        if thread_rng().r#gen() { DAY } else { Duration::ZERO }
    }
}

/// A lock without poison: a panic fails the run anyway.
#[derive(Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

/// A held [`Mutex`].
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only while a [`Condvar`] has it.
    guard: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// Creates a lock that is free.
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// Takes the lock, waiting for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { mutex: self, guard: Some(guard) }
    }

    /// Takes the lock, unless it is held.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.0.try_lock() {
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Ok(guard) => guard,
        };
        Some(MutexGuard { mutex: self, guard: Some(guard) })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("nobody uses a guard while a condition variable has it")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("nobody uses a guard while a condition variable has it")
    }
}

/// A condition variable.
#[derive(Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// The result of a wait with a time limit.
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns whether the wait ended by its limit.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Creates a condition variable without waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits to be notified.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.guard.take().expect("a guard is whole between two waits");
        guard.guard = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits to be notified, or for the time limit; the seed decides.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> WaitTimeoutResult {
        if timeout < FOREVER && thread_rng().r#gen() {
            drop(guard.guard.take());
            shuttle::thread::yield_now();
            guard.guard = guard.mutex.lock().guard.take();
            return WaitTimeoutResult(true);
        }
        self.wait(guard);
        WaitTimeoutResult(false)
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock for one writer or many readers.
#[derive(Default)]
pub struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Takes the lock to read, waiting for it.
    pub fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock to write, waiting for it.
    pub fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
