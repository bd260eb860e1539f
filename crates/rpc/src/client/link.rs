//! One connection to a server, as its callers see it.
//!
//! Callers encode their requests straight into the link's outbox, under its lock, and wake the driver if nobody
//! has yet; the driver takes the whole outbox at once. So the requests of many tasks become one write, and the
//! replies of one read wake many tasks, whatever the runtime.
//!
//! Invariants: positions count the bytes of all requests ever encoded on the link. A call whose `start` is at or
//! above what was written when the connection broke cannot have reached the server; any other may have.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};
use parking_lot::Mutex;
use rand::Rng;
use slab::Slab;

use crate::client::drive::{self, Host};
use crate::client::{Greeter, LinkOptions};
use crate::control;
use crate::error::WireError;
use crate::frame::{Frame, Kind, flag};
use crate::limit::{EVENT_OVERHEAD_BYTES, WINDOW_BYTES};
use crate::outbox::Outbox;
use crate::stream::Address;

/// Calls that may be under way on one link; further ones wait.
const CALLS_MAX: usize = 16_384;
/// Bytes of requests that may wait to be written; further requests wait.
const OUTBOX_BYTES_MAX: usize = 16 << 20;

/// One connection to a server, which is made when it is first needed, and again when it broke.
pub struct Link {
    pub(super) address: Address,
    pub(super) greeter: Box<dyn Greeter>,
    pub(super) options: Arc<LinkOptions>,
    host: Arc<Host>,
    pub(super) state: Mutex<State>,
}

/// What callers and the driver share.
pub(super) struct State {
    /// Set while a connection is wanted though nothing is to be sent.
    pub(super) asking: bool,
    /// Encoded requests that the driver has not taken yet.
    pub(super) outbox: Outbox,
    /// The position at which `outbox` begins.
    pub(super) base: u64,
    calls: Slab<Call>,
    generation: u32,
    /// Callers that found no room.
    waiting: VecDeque<Waker>,
    /// Whether there is a driver.
    driven: bool,
    driver: Option<Waker>,
    /// Whether the driver was told already that there is something to do.
    told: bool,
    /// Set when the last handle is gone: the driver ends when the last call has its reply.
    pub(super) closed: bool,
    /// Why the last attempt to connect failed, and until when nobody tries again.
    failure: Option<(StoreError, Instant)>,
    failures: u32,
    /// Set while the server takes no more requests on the connection, but still answers earlier ones.
    leaving: bool,
    /// Bytes of events that were consumed and of which the server has not been told.
    consumed: usize,
}

struct Call {
    generation: u32,
    start: u64,
    stage: Stage,
    /// What is to be done when nobody waits any more.
    manner: Manner,
    /// Parts of the reply, ahead of its end.
    parts: VecDeque<Bytes>,
    /// The reply that confirmed a subscription, until its caller has taken it.
    reply: Option<Frame>,
}

/// What kind of call it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Manner {
    /// The service that learns when nobody waits for the reply any more.
    pub(super) cancels: Option<u8>,
    /// Whether events follow the reply.
    pub(super) subscribes: bool,
    /// Whether only the latest part of the reply matters.
    pub(super) latest: bool,
}

impl Call {
    fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_) | Stage::Abandoned | Stage::Subscribed(_))
    }
}

enum Stage {
    /// The reply has not come.
    Waiting(Option<Waker>),
    /// Nobody waits for the reply any more.
    Abandoned,
    /// The reply has come.
    Replied(Frame),
    /// The reply will not come.
    Lost(Loss),
    /// Events come.
    Subscribed(Box<Events>),
}

/// The events of a subscription that wait for their subscriber.
#[derive(Default)]
struct Events {
    queue: VecDeque<Event>,
    /// The number of the latest one.
    sequence: u64,
    waker: Option<Waker>,
    /// Set when there will be no more, with the error that is the reason.
    ended: Option<Option<StoreError>>,
}

/// What a subscription gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An event.
    Pushed(Bytes),
    /// So many events were dropped here, because the subscriber was too slow.
    Missed(u64),
}

impl Event {
    /// What it takes of the window.
    fn cost(&self) -> usize {
        match self {
            Event::Pushed(payload) => EVENT_OVERHEAD_BYTES + payload.len(),
            Event::Missed(_) => 0,
        }
    }
}

impl Events {
    fn push(&mut self, frame: &Frame, sequence: u64, payload: Bytes) {
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

/// The end of a reply, and the parts of it that were not taken before.
pub(super) type Answer = (Frame, VecDeque<Bytes>);

/// Why there will be no reply.
pub(super) enum Loss {
    /// The server could not be reached. The request was not sent.
    Unreachable(StoreError),
    /// The connection broke before the request was sent.
    Unsent,
    /// The connection broke when the request may have been sent.
    Broken(String),
}

/// Which call of a link.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    index: u32,
    generation: u32,
}

/// What came of the attempt to submit a call.
pub(super) enum Submitted {
    Yes(Ticket),
    /// There is no room; the waker, if one was given, will be woken when there is.
    NoRoom,
}

impl Link {
    /// A link to an address. Nothing is connected yet; `greeter` is told of every connection before it is used.
    pub fn new(
        address: Address,
        greeter: impl Greeter,
        options: Arc<LinkOptions>,
        host: Arc<Host>,
    ) -> Arc<Link> {
        let state = State {
            asking: false,
            outbox: Outbox::default(),
            base: 0,
            calls: Slab::new(),
            generation: 0,
            waiting: VecDeque::new(),
            driven: false,
            driver: None,
            told: false,
            closed: false,
            failure: None,
            failures: 0,
            leaving: false,
            consumed: 0,
        };
        Arc::new(Link { address, greeter: Box::new(greeter), options, host, state: Mutex::new(state) })
    }

    /// The address of the server.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Has the server connected to, though nothing is to be sent. The greeter is told what comes of it.
    pub fn ask(self: &Arc<Link>) {
        let mut state = self.state.lock();
        if let Some((error, until)) = &state.failure
            && Instant::now() < *until
        {
            let error = error.clone();
            drop(state);
            return self.greeter.failed(&error);
        }
        if !state.driven {
            if let Err(error) = self.host.spawn(drive::drive(self.clone())) {
                drop(state);
                return self.greeter.failed(&error);
            }
            state.driven = true;
        }
        state.asking = true;
        state.told = true;
        if let Some(driver) = state.driver.take() {
            drop(state);
            driver.wake();
        }
    }

    /// Encodes a request and sees to it that it is sent.
    pub(super) fn submit(
        self: &Arc<Link>,
        waker: Option<&Waker>,
        manner: Manner,
        encode: impl FnOnce(&mut Outbox, u64) -> Result<(), StoreError>,
    ) -> Result<Submitted, StoreError> {
        let mut state = self.state.lock();
        if let Some((error, until)) = &state.failure {
            if Instant::now() < *until {
                return Err(error.clone());
            }
            state.failure = None;
        }
        if state.leaving {
            return Err(self.shutting_down());
        }
        if state.calls.len() >= CALLS_MAX || state.outbox.len() >= OUTBOX_BYTES_MAX {
            if let Some(waker) = waker {
                state.waiting.push_back(waker.clone());
            }
            return Ok(Submitted::NoRoom);
        }
        if !state.driven {
            self.host.spawn(drive::drive(self.clone()))?;
            state.driven = true;
        }
        // 0 is the id of what belongs to no request.
        let generation = state.generation.wrapping_add(1).max(1);
        state.generation = generation;
        let start = state.base + state.outbox.len() as u64;
        let index = state.calls.vacant_key();
        encode(&mut state.outbox, u64::from(generation) << 32 | index as u64)?;
        let stage = Stage::Waiting(waker.cloned());
        state.calls.insert(Call { generation, start, stage, manner, parts: VecDeque::new(), reply: None });
        let driver = state.tell();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(Submitted::Yes(Ticket { index: index as u32, generation }))
    }

    /// The reply to a call, if it has come. A call is over once it gave its reply.
    pub(super) fn poll_call(&self, ticket: Ticket, waker: &Waker) -> Poll<Result<Answer, Loss>> {
        let mut state = self.state.lock();
        // A call stays in its place until this function or `abandon` takes it out.
        let call = &mut state.calls[ticket.index as usize];
        debug_assert_eq!(call.generation, ticket.generation);
        if let Stage::Waiting(waiting) = &mut call.stage {
            match waiting {
                Some(waiting) if waiting.will_wake(waker) => {}
                waiting => *waiting = Some(waker.clone()),
            }
            return Poll::Pending;
        }
        let call = state.calls.remove(ticket.index as usize);
        match call.stage {
            Stage::Replied(frame) => Poll::Ready(Ok((frame, call.parts))),
            Stage::Lost(loss) => Poll::Ready(Err(loss)),
            // Excluded above, and by abandoned calls having no ticket any more.
            Stage::Waiting(_) | Stage::Abandoned | Stage::Subscribed(_) => {
                unreachable!("a call without a caller was polled")
            }
        }
    }

    /// The reply to a call that subscribes, if it has come; if it is one, the call goes on as a subscription.
    pub(super) fn poll_subscribed(&self, ticket: Ticket, waker: &Waker) -> Poll<Result<Answer, Loss>> {
        let mut state = self.state.lock();
        let call = &mut state.calls[ticket.index as usize];
        if let Stage::Subscribed(events) = &mut call.stage
            && let Some(reply) = call.reply.take()
        {
            events.waker = Some(waker.clone());
            return Poll::Ready(Ok((reply, std::mem::take(&mut call.parts))));
        }
        drop(state);
        self.poll_call(ticket, waker)
    }

    /// The next event of a subscription; `None` once it has ended.
    pub(super) fn poll_event(
        &self,
        ticket: Ticket,
        waker: &Waker,
    ) -> Poll<Option<Result<Event, StoreError>>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Stage::Subscribed(events) = &mut state.calls[ticket.index as usize].stage else {
            unreachable!("a subscription stays one until it is abandoned")
        };
        if let Some(event) = events.queue.pop_front() {
            if let Some(driver) = state.consume(event.cost()) {
                driver.wake();
            }
            return Poll::Ready(Some(Ok(event)));
        }
        match events.ended.as_mut() {
            None => {
                events.waker = Some(waker.clone());
                Poll::Pending
            }
            // The error is told once.
            Some(error) => Poll::Ready(error.take().map(Err)),
        }
    }

    /// The next part of the reply to a call.
    pub(super) fn take_part(&self, ticket: Ticket) -> Option<Bytes> {
        let mut state = self.state.lock();
        state.calls.get_mut(ticket.index as usize).and_then(|call| call.parts.pop_front())
    }

    /// Says that nobody waits for a call any more, or wants the events of a subscription.
    pub(super) fn abandon(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        let call = &mut state.calls[ticket.index as usize];
        let cancels = call.manner.cancels;
        let mut unread = 0;
        let (over, tell) = match &mut call.stage {
            Stage::Waiting(_) => (false, true),
            // The server believes that the caller has it.
            Stage::Replied(frame) => (true, frame.kind != Kind::ERROR),
            Stage::Subscribed(events) => {
                unread = events.queue.iter().map(Event::cost).sum();
                (events.ended.is_some(), events.ended.is_none())
            }
            Stage::Lost(_) | Stage::Abandoned => (true, false),
        };
        call.stage = Stage::Abandoned;
        call.parts.clear();
        if over {
            state.calls.remove(ticket.index as usize);
        }
        let mut driver = if unread > 0 { state.consume(unread) } else { None };
        if tell && let Some(service) = cancels {
            let id = ticket.id();
            control::put_cancel(&mut state.outbox, service, id);
            driver = driver.or(state.tell());
        }
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    fn shutting_down(&self) -> StoreError {
        unreachable_server(&self.address, "it is shutting down")
    }

    /// Notes that the server takes no more requests, and gives back those that were not written yet.
    pub(super) fn leave(&self, wakers: &mut Vec<Waker>) {
        let error = self.shutting_down();
        let mut state = self.state.lock();
        let state = &mut *state;
        state.leaving = true;
        let base = state.base;
        for (_, call) in state.calls.iter_mut().filter(|(_, call)| call.start >= base) {
            if let Stage::Waiting(waker) = &mut call.stage {
                wakers.extend(waker.take());
                call.stage = Stage::Lost(Loss::Unreachable(error.clone()));
            }
        }
        state.calls.retain(|_, call| call.start < base || !matches!(call.stage, Stage::Abandoned));
        state.outbox = Outbox::default();
        wakers.extend(state.waiting.drain(..));
    }

    /// Says that no further calls will come.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let driver = state.driver.take();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

impl Ticket {
    fn id(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

impl State {
    /// Gives the driver that is to be woken because there is something to send.
    fn tell(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.told, true) { None } else { self.driver.take() }
    }

    /// Notes that bytes of events were consumed, and tells the server from time to time. Gives the driver that is to be
    /// woken then.
    fn consume(&mut self, bytes: usize) -> Option<Waker> {
        self.consumed += bytes;
        if self.consumed < WINDOW_BYTES / 4 {
            return None;
        }
        // A window is far below 4 GiB.
        control::put_window(&mut self.outbox, std::mem::take(&mut self.consumed) as u32);
        self.tell()
    }

    /// Whether no call waits for its reply.
    pub(super) fn is_quiet(&self) -> bool {
        !self.calls.iter().any(|(_, call)| call.is_open())
    }

    /// Registers the driver for the next request.
    pub(super) fn listen(&mut self, waker: &Waker) {
        self.told = false;
        match &self.driver {
            Some(driver) if driver.will_wake(waker) => {}
            _ => self.driver = Some(waker.clone()),
        }
    }

    /// Hands the encoded requests to the driver, in exchange for an empty outbox.
    pub(super) fn take_outbox(&mut self, sending: &mut Outbox, wakers: &mut Vec<Waker>) {
        debug_assert!(sending.is_empty());
        self.base += self.outbox.len() as u64;
        std::mem::swap(&mut self.outbox, sending);
        wakers.extend(self.waiting.drain(..));
    }

    /// Gives a reply or an event to its caller. False if it is a reply that belongs to no call.
    pub(super) fn deliver(&mut self, frame: Frame, wakers: &mut Vec<Waker>) -> Result<bool, WireError> {
        let (index, generation) = (frame.id as u32 as usize, (frame.id >> 32) as u32);
        let event = matches!(frame.kind, Kind::EVENT | Kind::END);
        let call = self.calls.get_mut(index).filter(|call| call.generation == generation);
        // Who has just unsubscribed may still be sent events.
        let Some(call) = call else { return Ok(event) };
        if event {
            self.deliver_event(index, &frame, wakers)?;
            return Ok(true);
        }
        if frame.flags & flag::MORE != 0 {
            if let Stage::Waiting(waker) = &mut call.stage {
                wakers.extend(waker.take());
                if call.manner.latest {
                    call.parts.clear();
                }
                call.parts.push_back(frame.body);
            }
            return Ok(true);
        }
        let subscribed = call.manner.subscribes && frame.kind != Kind::ERROR;
        match &mut call.stage {
            Stage::Waiting(waker) => {
                wakers.extend(waker.take());
                if subscribed {
                    call.reply = Some(frame);
                    call.stage = Stage::Subscribed(Box::default());
                } else {
                    call.stage = Stage::Replied(frame);
                }
            }
            // The end of the events is still to come.
            Stage::Abandoned if subscribed => {}
            Stage::Abandoned => {
                self.calls.remove(index);
            }
            // Two replies to one request.
            Stage::Replied(_) | Stage::Lost(_) | Stage::Subscribed(_) => return Ok(false),
        }
        if !self.waiting.is_empty() {
            wakers.extend(self.waiting.drain(..));
        }
        Ok(true)
    }

    fn deliver_event(
        &mut self,
        index: usize,
        frame: &Frame,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), WireError> {
        let call = &mut self.calls[index];
        match &mut call.stage {
            Stage::Subscribed(events) if frame.kind == Kind::END => {
                events.ended = Some(control::get_end(&frame.body)?);
                wakers.extend(events.waker.take());
            }
            Stage::Subscribed(events) => {
                let (sequence, payload) = control::get_event(frame)?;
                events.push(frame, sequence, payload);
                wakers.extend(events.waker.take());
            }
            Stage::Abandoned if frame.kind == Kind::END => {
                self.calls.remove(index);
                wakers.extend(self.waiting.drain(..));
            }
            Stage::Abandoned => {
                let (_, payload) = control::get_event(frame)?;
                // The driver is at work and looks for what is to be sent when it has read.
                let _ = self.consume(Event::Pushed(payload).cost());
            }
            Stage::Waiting(_) | Stage::Replied(_) | Stage::Lost(_) => {}
        }
        Ok(())
    }

    /// Ends all calls that wait, because the connection broke when `written` was the position of the last byte
    /// that the socket had taken; or, without it, because there was no connection.
    pub(super) fn lose(&mut self, written: Option<u64>, error: &StoreError, wakers: &mut Vec<Waker>) {
        self.calls.retain(|_, call| match &mut call.stage {
            Stage::Waiting(waker) => {
                wakers.extend(waker.take());
                call.stage = Stage::Lost(match written {
                    None => Loss::Unreachable(error.clone()),
                    Some(written) if call.start >= written => Loss::Unsent,
                    Some(_) => Loss::Broken(error.message.clone()),
                });
                true
            }
            Stage::Abandoned => false,
            Stage::Subscribed(events) => {
                // What came before the connection broke is as good as any.
                events.ended.get_or_insert_with(|| Some(error.clone()));
                wakers.extend(events.waker.take());
                true
            }
            Stage::Replied(_) | Stage::Lost(_) => true,
        });
        self.leaving = false;
        self.consumed = 0;
        self.base += self.outbox.len() as u64;
        self.outbox = Outbox::default();
        wakers.extend(self.waiting.drain(..));
    }

    /// Notes that an attempt to connect failed.
    pub(super) fn failed(&mut self, error: &StoreError, options: &LinkOptions) {
        let pause = options.backoff_min.saturating_mul(1 << self.failures.min(16)).min(options.backoff_max);
        // Clients that lost the same server must not all come back at the same moment.
        let jittered = pause.mul_f64(rand::rng().random_range(0.5..1.0));
        self.failures += 1;
        self.asking = false;
        self.failure = Some((error.clone(), Instant::now() + jittered.max(Duration::from_millis(1))));
    }

    /// Notes that an attempt to connect succeeded.
    pub(super) fn connected(&mut self) {
        self.asking = false;
        self.failures = 0;
        self.failure = None;
    }

    /// Notes that the driver is gone.
    pub(super) fn undriven(&mut self) {
        self.asking = false;
        self.driven = false;
        self.driver = None;
        self.told = false;
    }
}

/// The error for a server to which the connection broke.
pub(super) fn unreachable_server(address: &Address, why: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("cannot reach the server at {address}: {why}"))
}
