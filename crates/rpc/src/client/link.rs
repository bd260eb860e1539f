//! One connection to a server, as its callers see it.
//!
//! Callers encode their requests straight into the link's outbox, under its lock, and wake the driver unless it was
//! woken already; the driver takes the whole outbox at once. So the requests of many tasks become one write, and the
//! replies of one read wake many tasks, whatever the runtime.
//!
//! Invariants: positions count the bytes of all requests ever encoded on the link. A call whose `start` is at or
//! above what was written when the connection broke cannot have reached the server; any other may have.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};
use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::oneshot;

use crate::client::drive::{self, Host};
use crate::client::event::Event;
use crate::client::seat::Seat;
use crate::client::state::{Answer, CallError, CallKind, Stage, State, Ticket};
use crate::client::{Greeter, LinkOptions};
use crate::control;
use crate::frame::MessageKind;
use crate::outbox::Outbox;
use crate::stream::Address;

/// One connection to a server, established when it is first needed and again after it broke.
#[derive(derive_more::Debug)]
#[debug("Link")]
pub struct Link {
    pub(super) address: Address,
    pub(super) greeter: Box<dyn Greeter>,
    pub(super) options: Arc<LinkOptions>,
    host: Arc<Host>,
    pub(super) state: Mutex<State>,
    /// The connection, if those who use the link drive it themselves.
    pub(super) seat: Option<Seat>,
}

/// The outcome of an attempt to submit a call.
pub(super) enum Submitted {
    Yes(Ticket),
    /// A full link; the waker, if one was given, will be woken when there is space.
    Full,
}

impl Link {
    /// Creates a link to an address, without connecting yet; `greeter` is given every connection before it is used.
    pub fn new(
        address: Address,
        greeter: impl Greeter,
        options: Arc<LinkOptions>,
        host: Arc<Host>,
    ) -> Arc<Link> {
        Self::with_seat(address, greeter, options, host, None)
    }

    pub(super) fn with_seat(
        address: Address,
        greeter: impl Greeter,
        options: Arc<LinkOptions>,
        host: Arc<Host>,
        seat: Option<Seat>,
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
            seated: false,
            keeper: None,
            arrivals: Vec::new(),
            notified: false,
            closed: false,
            failure: None,
            failures: 0,
            leaving: false,
            consumed: 0,
            session: None,
            broken: None,
            cancels: VecDeque::new(),
        };
        Arc::new(Link { address, greeter: Box::new(greeter), options, host, state: Mutex::new(state), seat })
    }

    /// Returns the place where the link's connections are driven.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the address of the server.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Requests a connection even though nothing is to be sent. The greeter is told the outcome.
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
        state.notified = true;
        if let Some(driver) = state.driver.take() {
            drop(state);
            driver.wake();
        }
    }

    /// Encodes a request and makes sure that it is sent.
    pub(super) fn submit(
        self: &Arc<Link>,
        waker: Option<&Waker>,
        manner: CallKind,
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
        if state.is_full() {
            if let Some(waker) = waker {
                state.waiting.push_back(waker.clone());
            }
            return Ok(Submitted::Full);
        }
        if !state.driven {
            self.host.spawn(drive::drive(self.clone()))?;
            state.driven = true;
        }
        let ticket = state.enter(Stage::Waiting(waker.cloned()), manner, encode)?;
        let driver = state.notify();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(Submitted::Yes(ticket))
    }

    /// Polls for the reply to a call. A call is over once it has returned its reply.
    pub(super) fn poll_call(&self, ticket: Ticket, waker: &Waker) -> Poll<Result<Answer, CallError>> {
        self.state.lock().poll_call(ticket, waker)
    }

    /// Polls for the reply to a call that subscribes; if it is not an error, the call goes on as a subscription.
    pub(super) fn poll_subscribed(&self, ticket: Ticket, waker: &Waker) -> Poll<Result<Answer, CallError>> {
        // One look under one lock: the reply may come at any moment, and makes a call that waits a subscription.
        let mut state = self.state.lock();
        let call = &mut state.calls[ticket.index as usize];
        if let Stage::Subscribed(events) = &mut call.stage
            && let Some(reply) = call.reply.take()
        {
            events.waker = Some(waker.clone());
            return Poll::Ready(Ok((reply, std::mem::take(&mut call.parts))));
        }
        state.poll_call(ticket, waker)
    }

    /// Polls for the next event of a subscription; `None` once it has ended.
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
        if let Some(event) = events.take() {
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
            // The error is returned only once.
            Some(error) => Poll::Ready(error.take().map(Err)),
        }
    }

    /// Takes the next part of the reply to a call.
    pub(super) fn take_part(&self, ticket: Ticket) -> Option<Bytes> {
        let mut state = self.state.lock();
        let part = state.calls.get_mut(ticket.index as usize)?.parts.take();
        let driver = state.report_parts(ticket);
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        part
    }

    /// Abandons a call whose caller no longer waits for the reply or no longer wants the events, and tells the service
    /// if it is to be told.
    pub(super) fn abandon(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        let call = &mut state.calls[ticket.index as usize];
        let cancels = call.manner.cancels;
        let mut unread = 0;
        let (over, notifies) = match &mut call.stage {
            Stage::Waiting(_) => (false, true),
            // The server assumes that the caller has received it.
            Stage::Replied(frame) => (true, frame.kind != MessageKind::ERROR),
            Stage::Subscribed(events) => {
                unread = events.unread();
                (events.ended.is_some(), events.ended.is_none())
            }
            Stage::Lost(_) | Stage::Posted(_) | Stage::Abandoned => (true, false),
        };
        call.stage = Stage::Abandoned;
        call.parts.clear();
        if over {
            state.calls.remove(ticket.index as usize);
        }
        let mut driver = if unread > 0 { state.consume(unread) } else { None };
        if notifies && let Some(service) = cancels {
            let id = ticket.id();
            control::put_cancel(&mut state.outbox, service, id);
            if over && state.session.is_some() {
                state.note_cancel(service, id);
            }
            driver = driver.or(state.notify());
        }
        driver = driver.or(state.report_parts(ticket));
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Returns a pause before the next attempt to reach the server.
    ///
    /// # Errors
    ///
    /// `Unavailable` if no thread can be started to wait.
    pub(super) fn pause(&self) -> Result<oneshot::Receiver<()>, StoreError> {
        let least = Instant::now() + self.options.backoff_min;
        let until = self.state.lock().failure.as_ref().map_or(least, |(_, until)| least.max(*until));
        self.alarm(until)
    }

    /// Returns a future that is ready at a time.
    ///
    /// # Errors
    ///
    /// `Unavailable` if no thread can be started to wait.
    pub(super) fn alarm(&self, time: Instant) -> Result<oneshot::Receiver<()>, StoreError> {
        let (mut over, alarm) = oneshot::channel();
        self.host.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep_until(time.into()) => {
                    // The waiter may be gone by now.
                    let _ = over.send(());
                }
                () = over.closed() => {}
            }
        })?;
        Ok(alarm)
    }

    fn shutting_down(&self) -> StoreError {
        unreachable_server(&self.address, "it is shutting down")
    }

    /// Notes that the server takes no more requests, and fails those that were not written yet. What is encoded from now
    /// on belongs to earlier requests.
    pub(super) fn leave(&self, wakers: &mut Vec<Waker>) {
        let error = self.shutting_down();
        let mut state = self.state.lock();
        let state = &mut *state;
        state.leaving = true;
        let base = state.base;
        for (_, call) in state.calls.iter_mut().filter(|(_, call)| call.start >= base) {
            if let Stage::Waiting(waker) = &mut call.stage {
                wakers.extend(waker.take());
                call.stage = Stage::Lost(CallError::Unreachable(error.clone()));
            }
        }
        state.calls.retain(|_, call| {
            call.start < base || !matches!(call.stage, Stage::Abandoned | Stage::Posted(_))
        });
        state.outbox = Outbox::default();
        wakers.extend(state.waiting.drain(..));
    }

    /// Closes the link to further calls; the driver ends when the last call has its reply.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let driver = state.driver.take();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        // A connection that is driven by those who use it ends now if nothing is under way over it.
        self.flush();
    }
}

/// Returns the error for a server whose connection broke.
pub(super) fn unreachable_server(address: &Address, why: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("cannot reach the server at {address}: {why}"))
}
