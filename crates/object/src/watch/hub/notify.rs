//! Notifications that wait for their acknowledgements, and those who wait for them.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;

use super::{Content, HubShared, State};
use crate::limit::ACKNOWLEDGEMENTS_BYTES_MAX;
use crate::watch::{Acknowledge, Acknowledged, Notified};
use crate::{ObjectId, StoreError};

/// A notification that has not ended.
pub(super) struct Notify {
    pub(super) object: ObjectId,
    pub(super) deadline: Instant,
    /// The number of watchers that it had when it was sent.
    pub(super) awaited: usize,
    /// The watchers that have not acknowledged it, with their ids.
    pub(super) waiting: HashMap<u64, u64>,
    /// True once it was handed to the watchers.
    pub(super) delivered: bool,
    pub(super) outcome: Notified,
    pub(super) reply_bytes: usize,
    pub(super) slot: Arc<Slot>,
}

/// The place where the outcome of a notification is left for its sender.
#[derive(Default)]
pub(super) struct Slot {
    state: Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    result: Option<Result<Notified, StoreError>>,
    waker: Option<Waker>,
}

impl Slot {
    pub(super) fn fill(&self, result: Result<Notified, StoreError>) -> Option<Waker> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.result = Some(result);
        state.waker.take()
    }
}

impl State {
    /// Ends the notifications whose time is over.
    pub(super) fn expire(&mut self, wakers: &mut Vec<Waker>) {
        if self.deadlines.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.end(id, wakers);
        }
    }

    /// Notes that a watcher will not acknowledge a notification.
    pub(super) fn miss(&mut self, id: u64, key: u64) {
        if let Some(notify) = self.notifies.get_mut(&id)
            && let Some(watcher) = notify.waiting.remove(&key)
        {
            notify.outcome.missed.push(watcher);
        }
    }

    pub(super) fn end_if_done(&mut self, id: u64, wakers: &mut Vec<Waker>) {
        if self.notifies.get(&id).is_some_and(|notify| notify.waiting.is_empty()) {
            self.end(id, wakers);
        }
    }

    /// Ends a notification: whoever has not acknowledged it has missed it.
    pub(super) fn end(&mut self, id: u64, wakers: &mut Vec<Waker>) {
        let Some(notify) = self.notifies.remove(&id) else { return };
        self.deadlines.remove(&(notify.deadline, id));
        self.awaited -= notify.awaited;
        if let Some(watched) = self.objects.get_mut(&notify.object) {
            watched.notifies.retain(|other| *other != id);
            if !notify.delivered {
                // Nobody waits for it any more: it takes no room, and is delivered to nobody.
                let (bytes, notifications) = (&mut self.bytes, &mut watched.notifications);
                watched.items.retain(|item| match &item.content {
                    Content::Notified { id: other, payload } if *other == id => {
                        *bytes -= payload.len();
                        *notifications -= 1;
                        false
                    }
                    _ => true,
                });
            }
        }
        let mut outcome = notify.outcome;
        outcome.missed.extend(notify.waiting.into_values());
        wakers.extend(notify.slot.fill(Ok(outcome)));
    }
}

impl Acknowledge for HubShared {
    fn acknowledge(&self, notification: u64, watcher: u64, reply: Bytes) {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        if let Some(notify) = state.notifies.get_mut(&notification)
            && let Some(id) = notify.waiting.remove(&watcher)
        {
            let fits = notify.reply_bytes + reply.len() <= ACKNOWLEDGEMENTS_BYTES_MAX;
            let reply = if fits { reply } else { Bytes::new() };
            notify.reply_bytes += reply.len();
            notify.outcome.replies_omitted += u64::from(!fits);
            notify.outcome.acknowledged.push(Acknowledged { watcher: id, reply });
            state.end_if_done(notification, &mut wakers);
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The outcome of a notification, later.
pub(super) struct Waiting {
    pub(super) hub: Weak<HubShared>,
    pub(super) id: u64,
    pub(super) slot: Arc<Slot>,
}

impl Future for Waiting {
    type Output = Result<Notified, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            // If it has not ended, its sender is gone. Whoever has it may still acknowledge it, in vain.
            let mut state = hub.lock();
            if state.notifies.get(&self.id).is_some_and(|notify| notify.delivered) {
                state.end(self.id, &mut Vec::new());
            }
        }
    }
}
