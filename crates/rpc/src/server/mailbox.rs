//! The messages that a server sends besides the ends of replies: parts of replies, and events.
//!
//! Both may be produced on any thread, and wait here until the connection takes them. A mailbox is bounded: events that
//! do not fit are dropped, and their subscriber is told how many it has missed, so that a slow client costs others
//! nothing. Events of a subscription begin when the reply that confirms it has been written.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures::task::AtomicWaker;
use nacre_object::{ErrorKind, StoreError};
use parking_lot::Mutex;

use crate::control;
use crate::frame::{Kind, flag};
use crate::limit::{EVENT_BYTES_MAX, EVENT_OVERHEAD_BYTES, WINDOW_BYTES};
use crate::outbox::Outbox;
use crate::server::ServerLimits;
use crate::server::stats::Stats;

/// The bytes of an outbox above which no events and no parts of replies are added to it.
const OUTBOX_BYTES_MAX: usize = 256 << 10;
/// The number of subscriptions that one connection may have.
const SUBSCRIPTIONS_MAX: usize = 65_536;

/// The events and parts of replies that wait to be sent over one connection.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// The limit for the bytes of waiting events, and for those of the parts of one reply.
    limit: usize,
    /// True if the peer speaks a version that has flags, events and their window.
    modern: bool,
    /// The server's account, on which events draw while they wait; its limit is `account_bytes`.
    stats: Arc<Stats>,
    account_bytes: usize,
    state: Mutex<State>,
    /// True if any request ever had parts or made a subscription, which is not so for most connections.
    used: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    /// The waiting parts of replies that have not ended, by the id of the request.
    parts: HashMap<u64, Waiting>,
    subscriptions: HashMap<u64, Subscribed>,
    events: VecDeque<Event>,
    event_bytes: usize,
    /// The ids of subscriptions whose latest events were dropped.
    gaps: VecDeque<u64>,
    /// The ids of subscriptions that the service has ended.
    ended: VecDeque<(u64, Option<StoreError>)>,
    /// The bytes of events that were sent and not acknowledged by the peer as consumed.
    unconsumed: usize,
    closed: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    parts: VecDeque<(Kind, Bytes)>,
    bytes: usize,
    /// The waker of the sender that waits for room.
    sender: Option<Waker>,
}

#[derive(Debug, Default)]
struct Subscribed {
    /// The number of the latest event.
    sequence: u64,
    /// True if the latest event was dropped.
    gap: bool,
    /// True if the reply that confirms the subscription was written.
    confirmed: bool,
    /// True if the service has ended the subscription.
    ended: bool,
}

#[derive(Debug)]
struct Event {
    id: u64,
    sequence: u64,
    payload: Bytes,
}

impl Mailbox {
    pub(crate) fn new(limits: &ServerLimits, stats: Arc<Stats>, modern: bool) -> Arc<Mailbox> {
        Arc::new(Mailbox {
            limit: limits.mailbox_bytes_max,
            modern,
            stats,
            account_bytes: limits.held_bytes_max,
            state: Mutex::default(),
            used: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        })
    }

    pub(crate) fn is_modern(&self) -> bool {
        self.modern
    }

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Returns a handle that sends parts of the reply to a request.
    pub(crate) fn open(self: &Arc<Self>, id: u64, kind: Kind) -> Parts {
        self.state.lock().parts.entry(id).or_default();
        self.used.store(true, Ordering::Release);
        Parts { mailbox: self.clone(), id, kind }
    }

    /// Makes a request a subscription.
    pub(crate) fn subscribe(self: &Arc<Self>, id: u64) -> Result<Publisher, StoreError> {
        if !self.modern {
            let text = "version 3 of the protocol is needed for events";
            return Err(StoreError::new(ErrorKind::Unsupported, text));
        }
        let mut state = self.state.lock();
        if state.closed || state.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            let text = format!("a connection may have {SUBSCRIPTIONS_MAX} subscriptions");
            return Err(StoreError::new(ErrorKind::Busy, text));
        }
        if state.subscriptions.contains_key(&id) {
            let text = format!("subscription {id} is there already");
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        state.subscriptions.insert(id, Subscribed::default());
        self.used.store(true, Ordering::Release);
        Ok(Publisher { mailbox: self.clone(), id })
    }

    /// Notes that the reply to a request was written, or is about to be: writes the parts that still wait before it,
    /// and allows its events from now on.
    pub(crate) fn replied(&self, id: u64, outbox: &mut Outbox) {
        if !self.is_used() {
            return;
        }
        let mut state = self.state.lock();
        if let Some(mut waiting) = state.parts.remove(&id) {
            self.put_parts(id, &mut waiting.parts, outbox);
            if let Some(sender) = waiting.sender {
                drop(state);
                sender.wake();
                state = self.state.lock();
            }
        }
        if let Some(subscribed) = state.subscriptions.get_mut(&id) {
            subscribed.confirmed = true;
            drop(state);
            self.waker.wake();
        }
    }

    /// Ends a subscription on behalf of its subscriber. Returns false if there is none.
    pub(crate) fn unsubscribe(&self, id: u64, outbox: &mut Outbox) -> bool {
        if !self.is_used() {
            return false;
        }
        let there = self.state.lock().forget(id, &self.stats);
        if there {
            control::put_bare(outbox, Kind::END, id);
        }
        there
    }

    /// Removes an abandoned request: its parts, and the subscription that it may have made.
    pub(crate) fn abandon(&self, id: u64) {
        if !self.is_used() {
            return;
        }
        let mut state = self.state.lock();
        state.forget(id, &self.stats);
        let sender = state.parts.remove(&id).and_then(|waiting| waiting.sender);
        drop(state);
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    /// Notes that the peer has consumed bytes of events.
    pub(crate) fn consumed(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.unconsumed = state.unconsumed.saturating_sub(bytes);
        drop(state);
        self.waker.wake();
    }

    /// Prepares for the session's next connection: parts of replies are dropped, events keep waiting.
    pub(crate) fn detached(&self) {
        if !self.is_used() {
            return;
        }
        let parts = std::mem::take(&mut self.state.lock().parts);
        parts.into_values().filter_map(|waiting| waiting.sender).for_each(Waker::wake);
    }

    /// Starts over on a new connection. Events in transit over the old one may be lost, so every subscription is sent
    /// the number of its latest event.
    pub(crate) fn resumed(&self) {
        if !self.is_used() {
            return;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        state.unconsumed = 0;
        state.gaps.clear();
        for (id, subscribed) in &mut state.subscriptions {
            if subscribed.confirmed && subscribed.sequence > 0 {
                subscribed.gap = true;
                state.gaps.push_back(*id);
            }
        }
    }

    /// Ends everything: nothing is accepted from now on.
    pub(crate) fn close(&self) {
        if !self.is_used() {
            return;
        }
        let mut state = self.state.lock();
        let senders: Vec<Waker> =
            state.parts.values_mut().filter_map(|waiting| waiting.sender.take()).collect();
        self.stats.held_bytes.change(state.event_bytes, 0);
        *state = State { closed: true, ..State::default() };
        drop(state);
        senders.into_iter().for_each(Waker::wake);
    }

    /// Returns the bytes of waiting parts. Events are in the account already.
    pub(crate) fn held_bytes(&self) -> usize {
        if !self.is_used() {
            return 0;
        }
        let state = self.state.lock();
        state.parts.values().map(|waiting| waiting.bytes).sum::<usize>()
    }

    /// Writes what waits, as far as outbox and window have room, and has `waker` woken when there is more. Returns true
    /// if anything was written.
    pub(crate) fn collect(&self, waker: &Waker, outbox: &mut Outbox) -> bool {
        if !self.is_used() {
            return false;
        }
        self.waker.register(waker);
        let before = outbox.len();
        let mut senders = Vec::new();
        let mut state = self.state.lock();
        let state = &mut *state;
        for (id, waiting) in &mut state.parts {
            if outbox.len() >= OUTBOX_BYTES_MAX {
                break;
            }
            if !waiting.parts.is_empty() {
                self.put_parts(*id, &mut waiting.parts, outbox);
                waiting.bytes = 0;
            }
            senders.extend(waiting.sender.take());
        }
        state.put_events(outbox, &self.stats);
        senders.into_iter().for_each(Waker::wake);
        outbox.len() > before
    }

    fn put_parts(&self, id: u64, parts: &mut VecDeque<(Kind, Bytes)>, outbox: &mut Outbox) {
        let flags = if self.modern { flag::MORE } else { 0 };
        for (kind, body) in parts.drain(..) {
            let open = outbox.begin_with(kind, flags, id);
            outbox.payload(&body);
            // A part that is too long is dropped.
            let _ = outbox.end(open);
        }
    }
}

impl State {
    /// Removes a subscription and its events. Returns false if there is none.
    fn forget(&mut self, id: u64, stats: &Stats) -> bool {
        if self.subscriptions.remove(&id).is_none() {
            return false;
        }
        let before = self.event_bytes;
        let bytes = &mut self.event_bytes;
        self.events.retain(|event| {
            let keep = event.id != id;
            if !keep {
                *bytes -= cost(&event.payload);
            }
            keep
        });
        stats.held_bytes.change(before, self.event_bytes);
        self.gaps.retain(|gap| *gap != id);
        self.ended.retain(|(ended, _)| *ended != id);
        true
    }

    fn put_events(&mut self, outbox: &mut Outbox, stats: &Stats) {
        // Events of subscriptions that are not confirmed yet return to their positions.
        let mut early = Vec::new();
        let mut stopped = false;
        while let Some(event) = self.events.front() {
            let confirmed = self.subscriptions.get(&event.id).is_some_and(|subscribed| subscribed.confirmed);
            let bytes = cost(&event.payload);
            let room = outbox.len() < OUTBOX_BYTES_MAX && self.unconsumed + bytes <= WINDOW_BYTES;
            if confirmed && !room {
                stopped = true;
                break;
            }
            let Some(event) = self.events.pop_front() else { break };
            if !confirmed {
                early.push(event);
                continue;
            }
            self.event_bytes -= bytes;
            stats.held_bytes.change(bytes, 0);
            self.unconsumed += bytes;
            control::put_event(outbox, 0, event.id, event.sequence, &event.payload);
        }
        early.into_iter().rev().for_each(|event| self.events.push_front(event));
        if stopped {
            return;
        }
        // A gap that no later event reveals is sent on its own.
        while self.unconsumed + EVENT_OVERHEAD_BYTES <= WINDOW_BYTES
            && let Some(id) = self.gaps.pop_front()
        {
            let Some(subscribed) = self.subscriptions.get_mut(&id) else { continue };
            if std::mem::take(&mut subscribed.gap) {
                self.unconsumed += EVENT_OVERHEAD_BYTES;
                control::put_event(outbox, flag::GAP, id, subscribed.sequence, &Bytes::new());
            }
        }
        for _ in 0..self.ended.len() {
            let Some((id, error)) = self.ended.pop_front() else { break };
            if self.subscriptions.get(&id).is_some_and(|subscribed| !subscribed.confirmed) {
                self.ended.push_back((id, error));
            } else {
                self.subscriptions.remove(&id);
                control::put_end(outbox, id, error.as_ref());
            }
        }
    }
}

/// Returns the share of a mailbox and of the window that an event occupies, in bytes.
fn cost(payload: &Bytes) -> usize {
    payload.len() + EVENT_OVERHEAD_BYTES
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.stats.held_bytes.change(self.state.get_mut().event_bytes, 0);
    }
}

/// A sender for parts of a reply, ahead of its end.
#[derive(Clone, Debug)]
pub struct Parts {
    mailbox: Arc<Mailbox>,
    id: u64,
    kind: Kind,
}

impl Parts {
    /// Sends a part in place of those that are still unsent. Does nothing once the reply has ended.
    pub fn replace(&self, body: Bytes) {
        if let Some(waiting) = self.mailbox.state.lock().parts.get_mut(&self.id) {
            waiting.parts.clear();
            waiting.bytes = body.len();
            waiting.parts.push_back((self.kind, body));
        }
        self.mailbox.waker.wake();
    }

    /// Sends a part after the earlier ones, as soon as there is room for it.
    ///
    /// # Errors
    ///
    /// `Closed` if the reply has ended, or its caller no longer waits for it.
    pub async fn send(&self, body: Bytes) -> Result<(), StoreError> {
        std::future::poll_fn(|context| self.poll_room(context)).await?;
        if let Some(waiting) = self.mailbox.state.lock().parts.get_mut(&self.id) {
            waiting.bytes += body.len();
            waiting.parts.push_back((self.kind, body));
        }
        self.mailbox.waker.wake();
        Ok(())
    }

    fn poll_room(&self, context: &mut Context<'_>) -> Poll<Result<(), StoreError>> {
        let mut state = self.mailbox.state.lock();
        let Some(waiting) = state.parts.get_mut(&self.id) else {
            return Poll::Ready(Err(StoreError::new(ErrorKind::Closed, "the reply has ended")));
        };
        if waiting.bytes < self.mailbox.limit {
            return Poll::Ready(Ok(()));
        }
        waiting.sender = Some(context.waker().clone());
        Poll::Pending
    }
}

/// The sender for the events of a subscription, which ends when this value is dropped.
#[derive(Debug)]
pub struct Publisher {
    mailbox: Arc<Mailbox>,
    id: u64,
}

impl Publisher {
    /// Returns the subscription's id, which is that of the request that made it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Pushes an event without ever waiting. If the subscriber is too slow, the event is dropped, and the subscriber is
    /// told that it missed events. Returns false if the subscription has ended.
    pub fn push(&self, payload: Bytes) -> bool {
        let mut state = self.mailbox.state.lock();
        let bytes = cost(&payload);
        let fits = payload.len() <= EVENT_BYTES_MAX && state.event_bytes + bytes <= self.mailbox.limit;
        let Some(subscribed) = state.subscriptions.get_mut(&self.id) else { return false };
        let account = (bytes as u64, self.mailbox.account_bytes as u64);
        let fits = fits && self.mailbox.stats.held_bytes.try_add(account.0, account.1);
        subscribed.sequence += 1;
        let sequence = subscribed.sequence;
        let had_gap = std::mem::replace(&mut subscribed.gap, !fits);
        if fits {
            state.event_bytes += bytes;
            state.events.push_back(Event { id: self.id, sequence, payload });
        } else if !had_gap && !state.gaps.contains(&self.id) {
            state.gaps.push_back(self.id);
        }
        drop(state);
        self.mailbox.waker.wake();
        true
    }

    /// True if the subscriber still wants events.
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
