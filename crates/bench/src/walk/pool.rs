//! A pool of tasks that create more tasks, shared by some threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// A stack of tasks: last in, first out, so that few directories are open at once. The work is done when all threads
/// wait for a task and there is none.
pub(super) struct Pool<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    threads: usize,
    /// The number of waiting threads, as in the state, readable without the lock.
    waiting: AtomicUsize,
}

struct State<T> {
    tasks: Vec<T>,
    waiting: usize,
    stopped: bool,
}

impl<T: Send> Pool<T> {
    /// Runs a first task and all that it leads to. Every thread has its own state; returns the states, or the first
    /// failure.
    pub(super) fn run<S: Send, E: Send>(
        threads: usize,
        first: T,
        state: impl Fn() -> S + Sync,
        work: impl Fn(&Self, &mut S, T) -> Result<(), E> + Sync,
    ) -> Result<Vec<S>, E> {
        let pool = Self {
            state: Mutex::new(State { tasks: vec![first], waiting: 0, stopped: false }),
            changed: Condvar::new(),
            threads: threads.max(1),
            waiting: AtomicUsize::new(0),
        };
        let thread = || {
            let mut own = state();
            while let Some(task) = pool.take() {
                if let Err(error) = work(&pool, &mut own, task) {
                    pool.stop();
                    return Err(error);
                }
            }
            Ok(own)
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..pool.threads).map(|_| scope.spawn(thread)).collect();
            let own = thread();
            let joined = others.into_iter().map(|other| {
                // A thread that panicked has said so; the panic goes on here.
                other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            std::iter::once(own).chain(joined.collect::<Vec<_>>()).collect()
        })
    }

    /// Adds tasks.
    pub(super) fn add(&self, tasks: impl IntoIterator<Item = T>) {
        let mut state = self.state.lock();
        let before = state.tasks.len();
        state.tasks.extend(tasks);
        let (added, waiting) = (state.tasks.len() - before, state.waiting);
        drop(state);
        (0..added.min(waiting)).for_each(|_| {
            self.changed.notify_one();
        });
    }

    /// Returns whether a thread is waiting for a task.
    pub(super) fn someone_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn take(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(task) = state.tasks.pop() {
                return Some(task);
            }
            if state.waiting + 1 == self.threads {
                drop(state);
                self.stop();
                return None;
            }
            state.waiting += 1;
            self.waiting.store(state.waiting, Ordering::Relaxed);
            self.changed.wait(&mut state);
            state.waiting -= 1;
            self.waiting.store(state.waiting, Ordering::Relaxed);
        }
    }

    fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_comes_of_a_task_is_worked_off_once() {
        for threads in [1, 2, 5] {
            // A task of depth n makes three of depth n - 1.
            let counts = Pool::run(
                threads,
                9u32,
                || 0u64,
                |pool, count, depth| {
                    *count += 1;
                    if depth > 0 {
                        pool.add([depth - 1; 3]);
                    }
                    Ok::<(), ()>(())
                },
            );
            assert_eq!(counts.unwrap().iter().sum::<u64>(), (3u64.pow(10) - 1) / 2);
        }
    }

    #[test]
    fn a_failure_ends_it() {
        let work = |pool: &Pool<u32>, _: &mut (), task: u32| {
            pool.add([task + 1, task + 2]);
            if task > 1000 { Err(task) } else { Ok(()) }
        };
        assert!(Pool::run(3, 0, || (), work).unwrap_err() > 1000);
    }
}
