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
use crate::frame::{Frame, Kind};
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
}

struct Call {
    generation: u32,
    start: u64,
    stage: Stage,
    /// The kind of messages that may precede the end of the reply, and the latest one.
    part_kind: Option<Kind>,
    part: Option<Bytes>,
}

impl Call {
    fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_) | Stage::Abandoned)
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
}

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
        part_kind: Option<Kind>,
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
        state.calls.insert(Call { generation, start, stage, part_kind, part: None });
        if !state.told {
            state.told = true;
            if let Some(driver) = state.driver.take() {
                drop(state);
                driver.wake();
            }
        }
        Ok(Submitted::Yes(Ticket { index: index as u32, generation }))
    }

    /// The reply to a call, if it has come. A call is over once it gave its reply.
    pub(super) fn poll_call(&self, ticket: Ticket, waker: &Waker) -> Poll<Result<Frame, Loss>> {
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
        match state.calls.remove(ticket.index as usize).stage {
            Stage::Replied(frame) => Poll::Ready(Ok(frame)),
            Stage::Lost(loss) => Poll::Ready(Err(loss)),
            // Excluded above, and by abandoned calls having no ticket any more.
            Stage::Waiting(_) | Stage::Abandoned => unreachable!("a call without a caller was polled"),
        }
    }

    /// The latest part of the reply to a call.
    pub(super) fn take_part(&self, ticket: Ticket) -> Option<Bytes> {
        let mut state = self.state.lock();
        state.calls.get_mut(ticket.index as usize).and_then(|call| call.part.take())
    }

    /// Says that nobody waits for a call any more.
    pub(super) fn abandon(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        let call = &mut state.calls[ticket.index as usize];
        if matches!(call.stage, Stage::Waiting(_)) {
            call.stage = Stage::Abandoned;
        } else {
            state.calls.remove(ticket.index as usize);
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

impl State {
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

    /// Gives a reply to its caller. False if the reply belongs to no call.
    pub(super) fn deliver(&mut self, frame: Frame, wakers: &mut Vec<Waker>) -> bool {
        let (index, generation) = (frame.id as u32 as usize, (frame.id >> 32) as u32);
        let Some(call) = self.calls.get_mut(index) else { return false };
        if call.generation != generation {
            return false;
        }
        if Some(frame.kind) == call.part_kind {
            if let Stage::Waiting(waker) = &mut call.stage {
                wakers.extend(waker.take());
            }
            call.part = Some(frame.body);
            return true;
        }
        match &mut call.stage {
            Stage::Waiting(waker) => {
                wakers.extend(waker.take());
                call.stage = Stage::Replied(frame);
            }
            Stage::Abandoned => {
                self.calls.remove(index);
            }
            // Two replies to one request.
            Stage::Replied(_) | Stage::Lost(_) => return false,
        }
        if !self.waiting.is_empty() {
            wakers.extend(self.waiting.drain(..));
        }
        true
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
            Stage::Replied(_) | Stage::Lost(_) => true,
        });
        self.leaving = false;
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
