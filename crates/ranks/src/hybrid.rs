//! The parts specific to H-DRQS (section IV-D, algorithm 4): a process is one rank, its threads share one queue, and
//! only one thread communicates. Work moves between threads without a message, so a process asks others only when
//! *none* of its threads has work: when the shared queue is empty and no thread is busy. The communicating rank itself
//! runs the same loop as DRQS.
//!
//! The paper's threads work in rounds, behind two counting semaphores, so that no thread touches the queue while it is
//! split. Here a thread takes its next unit whenever it is done with the last one, and a split holds the queue's lock
//! for as long as it takes to move the units: no thread waits for the slowest one of a round.
//!
//! [`SharedQueue`] is that queue in its simplest form. Programs with their own engine implement [`Queue`] on it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::queue::Queue;

/// A queue that the threads of a process share with its communicating rank. Clones are handles on the same queue.
#[derive(Debug)]
pub struct SharedQueue<W> {
    shared: Arc<Shared<W>>,
}

#[derive(Debug)]
struct Shared<W> {
    state: Mutex<State<W>>,
    work_came: Condvar,
}

#[derive(Debug)]
struct State<W> {
    queued: VecDeque<W>,
    assigned: Option<W>,
    /// True while an assigned unit is in work.
    in_hand: bool,
    working: usize,
    closed: bool,
}

impl<W> Clone for SharedQueue<W> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<W> Default for SharedQueue<W> {
    fn default() -> Self {
        Self::new([])
    }
}

impl<W> SharedQueue<W> {
    /// Creates a queue that holds `units`.
    pub fn new(units: impl IntoIterator<Item = W>) -> Self {
        let state = State {
            queued: units.into_iter().collect(),
            assigned: None,
            in_hand: false,
            working: 0,
            closed: false,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), work_came: Condvar::new() }) }
    }

    /// Locks the state. A poisoned lock is taken anyway: every change below leaves the counts correct.
    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a worker's next unit and returns it; `None` when the queue was closed. With `assigned_only`, only
    /// assigned units are begun, as by the workers of CP.
    pub fn begin(&self, assigned_only: bool) -> Option<W> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if let Some(unit) = state.assigned.take() {
                state.in_hand = true;
                state.working += 1;
                return Some(unit);
            }
            if !assigned_only && let Some(unit) = state.queued.pop_back() {
                state.working += 1;
                return Some(unit);
            }
            state = self.shared.work_came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Marks a begun unit as done, and queues the `children` that it uncovered. The caller should notify the
    /// communicating thread.
    pub fn finish(&self, children: impl IntoIterator<Item = W>) {
        let mut state = self.state();
        state.queued.extend(children);
        state.working -= 1;
        state.in_hand = false;
        self.shared.work_came.notify_all();
    }

    /// Closes the queue: no unit is begun any more.
    pub fn close(&self) {
        self.state().closed = true;
        self.shared.work_came.notify_all();
    }

    /// Removes and returns all units that were not begun.
    pub fn drain(&self) -> Vec<W> {
        let mut state = self.state();
        let assigned = state.assigned.take();
        state.queued.drain(..).chain(assigned).collect()
    }
}

impl<W> Queue<W> for SharedQueue<W> {
    fn len(&self) -> usize {
        self.state().queued.len()
    }

    fn working(&self) -> usize {
        self.state().working
    }

    fn is_idle(&self) -> bool {
        let state = self.state();
        state.queued.is_empty() && state.working == 0 && state.assigned.is_none()
    }

    fn take(&mut self, units: usize) -> Vec<W> {
        let mut state = self.state();
        let units = units.min(state.queued.len());
        state.queued.drain(..units).collect()
    }

    fn put(&mut self, units: Vec<W>) {
        self.state().queued.extend(units);
        self.shared.work_came.notify_all();
    }

    fn assign(&mut self, unit: W) {
        self.state().assigned = Some(unit);
        self.shared.work_came.notify_all();
    }

    fn is_assigned(&self) -> bool {
        let state = self.state();
        state.assigned.is_some() || state.in_hand
    }
}
