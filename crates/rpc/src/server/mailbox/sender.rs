//! The senders of parts of replies and of events.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};

use super::{Event, Mailbox};
use crate::control::cost;
use crate::frame::MessageKind;
use crate::limit::{EVENT_BYTES_MAX, WINDOW_BYTES};

/// A sender for parts of a reply, ahead of its end.
#[derive(Clone, Debug)]
pub struct Parts {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) id: u64,
    pub(super) kind: MessageKind,
}

impl Parts {
    /// Sends a part in place of those that are still unsent. Does nothing once the reply has ended, if the part is
    /// longer than [`EVENT_BYTES_MAX`], or if the server has no memory for it.
    pub fn replace(&self, body: Bytes) {
        let (mailbox, bytes) = (&self.mailbox, cost(&body));
        let mut state = mailbox.state.lock();
        let Some(waiting) = state.parts.get_mut(&self.id) else { return };
        waiting.parts.clear();
        let before = std::mem::take(&mut waiting.bytes);
        mailbox.budget.give_back(before);
        let fits = body.len() <= EVENT_BYTES_MAX && mailbox.budget.keep(bytes);
        if fits {
            waiting.bytes = bytes;
            waiting.parts.push_back((self.kind, body));
        }
        state.part_bytes = state.part_bytes - before + if fits { bytes } else { 0 };
        drop(state);
        mailbox.waker.wake();
    }

    /// Sends a part after the earlier ones, as soon as there is room for it: the client has to consume the earlier ones
    /// at some time.
    ///
    /// # Errors
    ///
    /// `Closed` if the reply has ended, or its caller no longer waits for it; `Invalid` if the part is longer than
    /// [`EVENT_BYTES_MAX`].
    pub async fn send(&self, body: Bytes) -> Result<(), StoreError> {
        if body.len() > EVENT_BYTES_MAX {
            let text = format!("a part of a reply has {} bytes, and may have {EVENT_BYTES_MAX}", body.len());
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        std::future::poll_fn(|context| self.poll_send(context, &body)).await?;
        self.mailbox.waker.wake();
        Ok(())
    }

    fn poll_send(&self, context: &mut Context<'_>, body: &Bytes) -> Poll<Result<(), StoreError>> {
        let (mailbox, bytes) = (&self.mailbox, cost(body));
        let mut state = mailbox.state.lock();
        let total = state.part_bytes;
        let Some(waiting) = state.parts.get_mut(&self.id) else {
            return Poll::Ready(Err(StoreError::new(ErrorKind::Closed, "the reply has ended")));
        };
        // A reply that has nothing waiting is not held up by the other replies of the connection, and the only part of
        // a connection by none: so every reply goes on whose client reads it.
        let fits = total + bytes <= mailbox.limit && waiting.bytes + bytes <= WINDOW_BYTES;
        if !fits && waiting.bytes > 0 {
            waiting.sender = Some(context.waker().clone());
            return Poll::Pending;
        }
        if total == 0 {
            mailbox.budget.keep_anyhow(bytes);
        } else if !mailbox.budget.keep(bytes) {
            mailbox.budget.wait(context.waker());
            if !mailbox.budget.keep(bytes) {
                waiting.sender = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        waiting.bytes += bytes;
        waiting.parts.push_back((self.kind, body.clone()));
        state.part_bytes += bytes;
        Poll::Ready(Ok(()))
    }
}

/// The sender for the events of a subscription, which ends when this value is dropped.
#[derive(Debug)]
pub struct Publisher {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) id: u64,
}

impl Publisher {
    /// Returns the subscription's id, which is that of the request that made it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Pushes an event without ever waiting. If the subscriber is too slow, the event is dropped, and the subscriber is
    /// told that it missed events. The payload may wait for long: it should not be part of a larger piece of memory,
    /// such as the body of a request. Returns false if the subscription has ended.
    pub fn push(&self, payload: Bytes) -> bool {
        let mut state = self.mailbox.state.lock();
        let bytes = cost(&payload);
        let fits = payload.len() <= EVENT_BYTES_MAX && state.event_bytes + bytes <= self.mailbox.limit;
        let Some(subscribed) = state.subscriptions.get_mut(&self.id) else { return false };
        let fits = fits && self.mailbox.budget.keep(bytes);
        subscribed.sequence += 1;
        let sequence = subscribed.sequence;
        let had_gap = std::mem::replace(&mut subscribed.gap, !fits);
        if fits {
            state.event_bytes += bytes;
            state.events.push_back(Event { id: self.id, sequence, payload });
        } else if !had_gap && !std::mem::replace(&mut subscribed.listed, true) {
            state.gaps.push_back(self.id);
        }
        drop(state);
        self.mailbox.waker.wake();
        true
    }

    /// Returns whether the subscriber still wants events.
    pub fn is_open(&self) -> bool {
        self.mailbox.state.lock().subscriptions.contains_key(&self.id)
    }

    /// Ends the subscription with an error.
    pub fn fail(self, error: StoreError) {
        self.end(Some(error));
    }

    fn end(&self, error: Option<StoreError>) {
        let mut state = self.mailbox.state.lock();
        let Some(subscribed) = state.subscriptions.get_mut(&self.id) else { return };
        if std::mem::replace(&mut subscribed.ended, true) {
            return;
        }
        // Events that were pushed before are still delivered: ends are written last.
        state.ended.push_back((self.id, error));
        drop(state);
        self.mailbox.waker.wake();
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.end(None);
    }
}
