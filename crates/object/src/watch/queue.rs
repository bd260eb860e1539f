//! The queue between a watch and the source of its events.
//!
//! It holds at most `events_max` events and one gap, which takes up what does not fit. A gap is never in front of
//! anything that came before it, so the order of what is told is that in which it happened.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::{Cause, Event, Gap, Notification, WatchOptions};
use crate::{ErrorKind, StoreError};

/// A bound on the bytes of notifications that wait in several queues together. While none waits, one may in any case.
#[derive(Debug)]
pub struct Allowance {
    limit: usize,
    used: AtomicUsize,
    parent: Option<Arc<Allowance>>,
}

impl Allowance {
    /// Creates a bound of `limit` bytes, which is part of `parent` if there is one.
    pub fn new(limit: usize, parent: Option<Arc<Allowance>>) -> Arc<Allowance> {
        Arc::new(Allowance { limit, used: AtomicUsize::new(0), parent })
    }

    fn take(&self, bytes: usize) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let total =
            self.parent.as_ref().map(|parent| (parent, parent.used.fetch_add(bytes, Ordering::Relaxed)));
        let fits = before + bytes <= self.limit
            && total.is_none_or(|(parent, before)| before + bytes <= parent.limit);
        if before == 0 || fits {
            return true;
        }
        self.give_back(bytes);
        false
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// A value that is kept only to be dropped.
pub(super) struct Hold(#[expect(dead_code, reason = "dropped with the watch")] Box<dyn Any + Send + Sync>);

impl Hold {
    pub(super) fn new(hold: impl Send + Sync + 'static) -> Hold {
        Hold(Box::new(hold))
    }
}

pub(super) struct Shared {
    events_max: usize,
    bytes_max: usize,
    allowance: Option<Arc<Allowance>>,
    state: Mutex<State>,
}

struct State {
    events: VecDeque<Event>,
    /// The bytes of the notifications among them.
    bytes: usize,
    /// The latest version that is told, or was.
    version: u64,
    waker: Option<Waker>,
    /// Set when no more events come, with the error that is the reason, if there is one.
    ended: Option<Option<StoreError>>,
    /// True if the watcher is gone.
    closed: bool,
}

/// The bytes that a notification counts for.
fn cost(notification: &Notification) -> usize {
    notification.payload().len() + size_of::<Event>()
}

impl Shared {
    pub(super) fn new(version: u64, options: &WatchOptions) -> Arc<Shared> {
        let (events, waker) = (VecDeque::new(), None);
        let state = State { events, bytes: 0, version, waker, ended: None, closed: false };
        let (events_max, bytes_max) = (options.events_max.max(1), options.bytes_max);
        let allowance = options.allowance.clone();
        Arc::new(Shared { events_max, bytes_max, allowance, state: Mutex::new(state) })
    }

    /// The state is whole whenever the lock is released, also by a panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn poll_next(&self, waker: Option<&Waker>) -> Poll<Option<Result<Event, StoreError>>> {
        let mut state = self.lock();
        if let Some(event) = state.events.pop_front() {
            if let Event::Notified(notification) = &event {
                self.release(&mut state, cost(notification));
            }
            return Poll::Ready(Some(Ok(event)));
        }
        if let Some(error) = state.ended.as_mut() {
            // The error is returned only once.
            return Poll::Ready(error.take().map(Err));
        }
        if let Some(waker) = waker
            && !state.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            state.waker = Some(waker.clone());
        }
        Poll::Pending
    }

    fn release(&self, state: &mut State, bytes: usize) {
        state.bytes -= bytes;
        if let Some(allowance) = &self.allowance {
            allowance.give_back(bytes);
        }
    }

    /// Ends the queue on behalf of the watcher.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let bytes = state.bytes;
        self.release(&mut state, bytes);
        let events = std::mem::take(&mut state.events);
        drop(state);
        drop(events);
    }

    /// Adds what `add` does to an open queue, and wakes the watcher.
    fn add<T>(&self, add: impl FnOnce(&Shared, &mut State) -> T) -> Option<T> {
        let mut state = self.lock();
        if state.closed || state.ended.is_some() {
            return None;
        }
        let added = add(self, &mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(added)
    }
}

impl State {
    /// Adds a gap behind the last event.
    fn add_gap(&mut self, gap: Gap) {
        self.version = gap.version;
        match self.events.back_mut() {
            Some(Event::Gap(last)) => last.extend(gap),
            _ => self.events.push_back(Event::Gap(gap)),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let bytes = self.lock().bytes;
        if let Some(allowance) = &self.allowance {
            allowance.give_back(bytes);
        }
    }
}

/// The handle by which the events of one watch come in.
pub struct Feed {
    pub(super) shared: Arc<Shared>,
}

impl Feed {
    /// Adds a change; one that does not fit becomes part of a gap.
    pub fn changed(&self, version: u64) {
        self.shared.add(|shared, state| {
            if state.events.len() < shared.events_max {
                state.version = version;
                state.events.push_back(Event::Changed { version });
                return;
            }
            state.add_gap(Gap { version, changes: Some(1), notifications: Some(0), cause: Cause::Slow });
        });
    }

    /// Adds a notification. Returns false if it does not fit, and became part of a gap, or if the watch has ended.
    pub fn notified(&self, notification: Notification) -> bool {
        let added = self.shared.add(|shared, state| {
            let bytes = cost(&notification);
            let fits = state.events.len() < shared.events_max
                && (state.bytes == 0 || state.bytes + bytes <= shared.bytes_max)
                && shared.allowance.as_ref().is_none_or(|allowance| allowance.take(bytes));
            if fits {
                state.bytes += bytes;
                state.events.push_back(Event::Notified(notification));
            } else {
                let (version, cause) = (state.version, Cause::Slow);
                state.add_gap(Gap { version, changes: Some(0), notifications: Some(1), cause });
            }
            fits
        });
        added.unwrap_or(false)
    }

    /// Adds a gap.
    pub fn gap(&self, gap: Gap) {
        self.shared.add(|_, state| state.add_gap(gap));
    }

    /// Ends the watch once its events have been taken, with an error if there is one.
    pub fn end(&self, error: Option<StoreError>) {
        self.shared.add(|_, state| state.ended = Some(error));
    }

    /// Returns the latest version that the watcher is told, or was.
    pub fn version(&self) -> u64 {
        self.shared.lock().version
    }

    /// Returns whether the watcher is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }
}

/// A source that is gone without having ended the watch tells the watcher so.
impl Drop for Feed {
    fn drop(&mut self) {
        self.end(Some(StoreError::new(ErrorKind::Closed, "the watch has lost the source of its events")));
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Feed")
    }
}
