//! The primitives by which the threads of a walk share its work: locks, and the atomics that decide its course.
//!
//! They are the usual ones, or, with the feature `shuttle`, those of the scheduler of that name, under which
//! `concurrent.rs` runs the same code with every switch between threads decided by a seed.

#[cfg(not(feature = "shuttle"))]
mod primitives {
    pub use std::sync::atomic::{AtomicBool, AtomicUsize, fence};

    pub use parking_lot::{Condvar, Mutex};
}

#[cfg(feature = "shuttle")]
mod primitives {
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;
    use std::time::Duration;

    pub use shuttle::sync::atomic::{AtomicBool, AtomicUsize, fence};

    /// A mutex without poisoning: a panic fails the run anyway.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// A held [`Mutex`]; empty only while a [`Condvar`] has it.
    pub struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("nobody uses a guard while a condition variable has it")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("nobody uses a guard while a condition variable has it")
        }
    }

    /// A condition variable. Under this scheduler no time passes: a wait with a limit ends when it is notified.
    #[derive(Debug, Default)]
    pub struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub fn new() -> Condvar {
            Condvar::default()
        }

        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("a guard is whole between two waits");
            guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _limit: Duration) {
            self.wait(guard);
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

pub(crate) use primitives::{AtomicBool, AtomicUsize, Condvar, Mutex, fence};
