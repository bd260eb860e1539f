//! Events, as a subscriber receives them.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use nacre_object::StoreError;

use crate::frame::{Frame, flag};
use crate::limit::EVENT_OVERHEAD_BYTES;

/// The events of a subscription that its subscriber has not taken yet.
#[derive(Default)]
pub(super) struct Events {
    pub(super) queue: VecDeque<Event>,
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
            Event::Pushed(payload) => EVENT_OVERHEAD_BYTES + payload.len(),
            Event::Missed(_) => 0,
        }
    }
}

impl Events {
    pub(super) fn push(&mut self, frame: &Frame, sequence: u64, payload: Bytes) {
        let last = if frame.flags & flag::GAP != 0 { sequence } else { sequence.saturating_sub(1) };
        if last > self.sequence {
            self.queue.push_back(Event::Missed(last - self.sequence));
        }
        self.sequence = sequence;
        if frame.flags & flag::GAP == 0 {
            self.queue.push_back(Event::Pushed(payload));
        }
    }
}
