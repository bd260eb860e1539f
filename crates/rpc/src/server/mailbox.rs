//! The messages that a server sends besides the ends of replies: parts of replies, and events.
//!
//! Both may be produced on any thread, and wait here until the connection takes them. A mailbox is bounded, and draws on
//! the server's account: events that do not fit are dropped, and their subscriber is told how many it has missed, so
//! that a slow client costs others nothing; whoever makes parts of a reply waits. Events of a subscription begin when
//! the reply that confirms it has been written. Of the events of a connection, and of the parts of each reply, a window
//! of bytes may be under way that the client has not consumed yet.

mod sender;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use bytes::Bytes;
use futures::task::AtomicWaker;
use nacre_object::{ErrorKind, StoreError};
use parking_lot::Mutex;
pub use sender::{Parts, Publisher};

use crate::control::{self, cost};
use crate::frame::{MessageKind, flag};
use crate::limit::{EVENT_OVERHEAD_BYTES, WINDOW_BYTES};
use crate::outbox::Outbox;
use crate::server::budget::Budget;

/// The bytes of an outbox above which no events and no parts of replies are added to it.
const OUTBOX_BYTES_MAX: usize = 256 << 10;
/// The number of subscriptions that one connection may have.
const SUBSCRIPTIONS_MAX: usize = 65_536;
/// The memory of a subscription, here and at its service, in bytes.
const SUBSCRIPTION_BYTES: usize = 256;

/// The events and parts of replies that wait to be sent over one connection.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// The limit for the bytes of waiting events, and for those of waiting parts.
    limit: usize,
    /// True if the peer speaks a version that has flags, events and their window.
    modern: bool,
    /// The server's account, on which subscriptions draw, and events and parts while they wait.
    budget: Arc<Budget>,
    state: Mutex<State>,
    /// True if any request ever had parts or made a subscription, which is not so for most connections.
    used: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    /// The waiting parts of replies that have not ended, by the id of the request.
    parts: HashMap<u64, Waiting>,
    part_bytes: usize,
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
    parts: VecDeque<(MessageKind, Bytes)>,
    bytes: usize,
    /// The bytes of parts that were sent and not acknowledged by the peer as consumed.
    unconsumed: usize,
    /// The waker of the sender that waits for room.
    sender: Option<Waker>,
}

#[derive(Debug, Default)]
struct Subscribed {
    /// The number of the latest event.
    sequence: u64,
    /// True if the latest event was dropped.
    gap: bool,
    /// True if the subscription is in the list of gaps.
    listed: bool,
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
    pub(crate) fn new(limit: usize, budget: Arc<Budget>, modern: bool) -> Arc<Mailbox> {
        Arc::new(Mailbox {
            limit,
            modern,
            budget,
            state: Mutex::default(),
            used: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        })
    }

    pub(crate) fn is_modern(&self) -> bool {
        self.modern
    }

    /// Returns the server's account.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Returns a handle that sends parts of the reply to a request.
    pub(crate) fn open(self: &Arc<Self>, id: u64, kind: MessageKind) -> Parts {
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
        if !self.budget.keep(SUBSCRIPTION_BYTES) {
            let text = "the server has no memory for more subscriptions at present";
            return Err(StoreError::new(ErrorKind::Busy, text));
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
            // They are few: what is more waits outside.
            let drained = self.put_parts(id, &mut waiting, outbox, usize::MAX);
            let senders = state.drained(drained, &self.budget);
            senders.chain(waiting.sender).for_each(Waker::wake);
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
        let there = self.state.lock().forget(id, &self.budget);
        if there {
            control::put_bare(outbox, MessageKind::END, id);
        }
        there
    }

    /// Removes an abandoned request: its parts, and the subscription that it may have made.
    pub(crate) fn abandon(&self, id: u64) {
        if !self.is_used() {
            return;
        }
        let mut state = self.state.lock();
        state.forget(id, &self.budget);
        if let Some(waiting) = state.parts.remove(&id) {
            let senders = state.drained(waiting.bytes, &self.budget);
            senders.chain(waiting.sender).for_each(Waker::wake);
        }
    }

    /// Notes that the peer has consumed bytes of the parts of the reply to request `id`, or of events if it is 0.
    pub(crate) fn consumed(&self, id: u64, bytes: usize) {
        let mut state = self.state.lock();
        let unconsumed = match id {
            0 => Some(&mut state.unconsumed),
            id => state.parts.get_mut(&id).map(|waiting| &mut waiting.unconsumed),
        };
        if let Some(unconsumed) = unconsumed {
            *unconsumed = unconsumed.saturating_sub(bytes);
        }
        drop(state);
        self.waker.wake();
    }

    /// Ends the replies whose senders wait for the reader of their parts: what waits already is written, and the senders
    /// fail.
    pub(crate) fn give_up_parts(&self, outbox: &mut Outbox) {
        if !self.is_used() {
            return;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        let (mut drained, mut senders) = (0, Vec::new());
        state.parts.retain(|id, waiting| {
            let Some(sender) = waiting.sender.take() else { return true };
            drained += self.put_parts(*id, waiting, outbox, usize::MAX);
            senders.push(sender);
            false
        });
        senders.extend(state.drained(drained, &self.budget));
        senders.into_iter().for_each(Waker::wake);
    }

    /// Prepares for the session's next connection: parts of replies are dropped, events keep waiting.
    pub(crate) fn detached(&self) {
        if !self.is_used() {
            return;
        }
        let mut state = self.state.lock();
        let parts = std::mem::take(&mut state.parts);
        self.budget.give_back(std::mem::take(&mut state.part_bytes));
        drop(state);
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
            subscribed.listed = false;
            if subscribed.confirmed && subscribed.sequence > 0 {
                (subscribed.gap, subscribed.listed) = (true, true);
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
        self.budget.give_back(state.held_bytes());
        *state = State { closed: true, ..State::default() };
        drop(state);
        senders.into_iter().for_each(Waker::wake);
    }

    /// Returns whether parts of replies wait for their reader.
    pub(crate) fn holds_parts(&self) -> bool {
        self.is_used() && self.state.lock().part_bytes > 0
    }

    /// Writes what waits, as far as outbox and window have room, and has `waker` woken when there is more. Returns true
    /// if anything was written.
    pub(crate) fn collect(&self, waker: &Waker, outbox: &mut Outbox) -> bool {
        if !self.is_used() {
            return false;
        }
        self.waker.register(waker);
        let before = outbox.len();
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.part_bytes > 0 {
            let window = if self.modern { WINDOW_BYTES } else { usize::MAX };
            let mut drained = 0;
            for (id, waiting) in &mut state.parts {
                if outbox.len() >= OUTBOX_BYTES_MAX {
                    break;
                }
                drained += self.put_parts(*id, waiting, outbox, window);
            }
            state.drained(drained, &self.budget).for_each(Waker::wake);
        }
        state.put_events(outbox, &self.budget);
        outbox.len() > before
    }

    /// Writes the waiting parts of a reply as far as the window has room. Returns the bytes that wait no longer.
    fn put_parts(&self, id: u64, waiting: &mut Waiting, outbox: &mut Outbox, window: usize) -> usize {
        let flags = if self.modern { flag::MORE } else { 0 };
        let before = waiting.bytes;
        while let Some((_, body)) = waiting.parts.front() {
            let bytes = cost(body);
            if waiting.unconsumed.saturating_add(bytes) > window {
                break;
            }
            let Some((kind, body)) = waiting.parts.pop_front() else { break };
            waiting.bytes -= bytes;
            waiting.unconsumed += bytes;
            let open = outbox.begin_with(kind, flags, id);
            outbox.payload(&body);
            // Parts are limited to far less than a frame can hold.
            let _ = outbox.end(open);
        }
        before - waiting.bytes
    }
}

impl State {
    /// Returns the bytes that are drawn from the account.
    fn held_bytes(&self) -> usize {
        self.part_bytes + self.event_bytes + self.subscriptions.len() * SUBSCRIPTION_BYTES
    }

    /// Notes that bytes of parts wait no longer. Returns the senders that may go on.
    fn drained(&mut self, bytes: usize, budget: &Budget) -> impl Iterator<Item = Waker> + use<> {
        self.part_bytes -= bytes;
        budget.give_back(bytes);
        let waiting = self.parts.values_mut().filter(|_| bytes > 0);
        waiting.filter_map(|waiting| waiting.sender.take()).collect::<Vec<_>>().into_iter()
    }

    /// Removes a subscription and its events. Returns false if there is none.
    fn forget(&mut self, id: u64, budget: &Budget) -> bool {
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
        budget.give_back(before - self.event_bytes + SUBSCRIPTION_BYTES);
        self.gaps.retain(|gap| *gap != id);
        self.ended.retain(|(ended, _)| *ended != id);
        true
    }

    fn put_events(&mut self, outbox: &mut Outbox, budget: &Budget) {
        // Events of subscriptions that are not confirmed yet return to their positions.
        let mut early = Vec::new();
        let (mut stopped, before) = (false, self.event_bytes);
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
            self.unconsumed += bytes;
            control::put_event(outbox, 0, event.id, event.sequence, &event.payload);
        }
        if before > self.event_bytes {
            budget.give_back(before - self.event_bytes);
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
            subscribed.listed = false;
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
                if self.subscriptions.remove(&id).is_some() {
                    budget.give_back(SUBSCRIPTION_BYTES);
                }
                control::put_end(outbox, id, error.as_ref());
            }
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let held = self.state.get_mut().held_bytes();
        self.budget.give_back(held);
    }
}
