//! Events, as a subscriber receives them.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use nacre_object::StoreError;

use crate::control::{cost, detached};
use crate::frame::{Frame, flag};
use crate::limit::WINDOW_BYTES;

/// The bytes of events that may wait for a subscriber; further ones are dropped.
const UNREAD_BYTES_MAX: usize = 2 * WINDOW_BYTES;

/// The events of a subscription that its subscriber has not taken yet.
#[derive(Default)]
pub(super) struct Events {
    queue: VecDeque<Event>,
    /// The bytes of the queue, as the window counts them.
    unread: usize,
    /// The number of the latest event.
    sequence: u64,
    pub(super) waker: Option<Waker>,
    /// Set when there will be no more events, with the error that is the reason, if there is one.
    pub(super) ended: Option<Option<StoreError>>,
}

/// An item of a subscription: an event, or a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An event.
    Pushed(Bytes),
    /// The number of events that were dropped here because the subscriber was too slow.
    Missed(u64),
}

impl Event {
    /// Returns the share of the window that it occupies, in bytes.
    pub(super) fn cost(&self) -> usize {
        match self {
            Event::Pushed(payload) => cost(payload),
            Event::Missed(_) => 0,
        }
    }
}

impl Events {
    /// Adds an event or a gap. Returns the bytes of the window that need no consuming: those of a gap, and of an event
    /// that is dropped because too much is unread already. The latter happens only after the session was resumed, when
    /// the server does not know what is unread, or if the server ignores the window.
    pub(super) fn push(&mut self, frame: &Frame, sequence: u64, payload: Bytes) -> usize {
        let bytes = cost(&payload);
        let dropped = frame.flags & flag::GAP != 0 || self.unread + bytes > UNREAD_BYTES_MAX;
        let last = if dropped { sequence } else { sequence.saturating_sub(1) };
        if last > self.sequence {
            let missed = last - self.sequence;
            match self.queue.back_mut() {
                Some(Event::Missed(before)) => *before += missed,
                _ => self.queue.push_back(Event::Missed(missed)),
            }
        }
        self.sequence = sequence;
        if dropped {
            return bytes;
        }
        self.unread += bytes;
        self.queue.push_back(Event::Pushed(detached(payload)));
        0
    }

    /// Returns the bytes that are unread, as the window counts them.
    pub(super) fn unread(&self) -> usize {
        self.unread
    }

    /// Takes the next event or gap.
    pub(super) fn take(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        self.unread -= event.cost();
        Some(event)
    }
}
