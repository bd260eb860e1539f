//! Calls: requests under way, and the futures of their replies.
//!
//! A call is submitted when it is created, not when it is first polled. If its connection breaks, it is submitted again
//! where that is harmless: if the request cannot have reached the server, or changes nothing, or if the server recognises
//! a repetition ([`Request::repeat`]). Any other request whose reply was lost ends as [`ErrorKind::Unknown`].

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};
use tokio::sync::oneshot;

use crate::client::event::Event;
use crate::client::link::{Link, Submitted};
use crate::client::part::Parts;
use crate::client::state::{Answer, CallError, CallKind, Ticket};
use crate::error::WireError;
use crate::frame::{Frame, MessageKind};
use crate::outbox::Outbox;

/// The largest number of times that a request is sent, where repeating it is safe.
const ATTEMPTS_MAX: u32 = 4;
/// The largest number of times that a request is sent whose repetitions the server recognises.
const REPEATED_ATTEMPTS_MAX: u32 = 16;

/// The progress of a call.
enum CallState {
    /// Not submitted yet, for lack of room.
    Outside,
    /// Submitted.
    Under(Ticket),
    /// Waiting for the time of the next attempt to reach the server.
    Pausing(oneshot::Receiver<()>),
    /// Failed before it was submitted.
    Failed(StoreError),
    /// Over.
    Done,
}

/// A request that can be encoded, and so submitted, more than once.
pub trait Request {
    /// Encodes the request under this id.
    ///
    /// # Errors
    ///
    /// An error for the caller; nothing was written in that case.
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError>;

    /// Returns whether the request changes nothing, so that it may be repeated.
    fn is_read_only(&self) -> bool;

    /// Prepares a request that changes something for being sent again, after the connection broke while it may have
    /// taken effect. Returns the time for which that may be tried; `None` if the server would not recognise the
    /// repetition.
    fn repeat(&mut self) -> Option<Duration> {
        None
    }

    /// Returns whether a reply to a repetition tells what became of the request. One that does not is waited out, and
    /// the request is sent again.
    fn is_settled_by(&self, _reply: &Frame) -> bool {
        true
    }

    /// Returns the number of the service to be told when the caller no longer waits for the reply or no longer wants
    /// the events; `None` if no service is to be told.
    fn cancels(&self) -> Option<u8> {
        None
    }

    /// Returns whether only the latest part of the reply matters, so that earlier ones may be dropped.
    fn wants_latest_part(&self) -> bool {
        false
    }
}

/// A request under way, polled with [`Call::poll_frame`].
#[derive(derive_more::Debug)]
#[debug("Call")]
pub struct Call<R: Request> {
    link: Arc<Link>,
    request: R,
    call_state: CallState,
    attempts: u32,
    manner: CallKind,
    /// Parts of the reply that had not been taken when its end came.
    parts: Parts,
    /// Set when the request may have taken effect and is being repeated.
    limbo: Option<Box<UncertainRequest>>,
}

/// The state of a request that may have taken effect.
struct UncertainRequest {
    /// The time at which it is given up, and what wakes the call then; `None` if nothing can, or if it has.
    until: Instant,
    alarm: Option<oneshot::Receiver<()>>,
    /// The reason why its reply was lost.
    why: String,
}

impl<R: Request> Call<R> {
    /// Submits a request now if there is room for it, otherwise when the call is polled and there is room.
    pub fn start(link: Arc<Link>, request: R) -> Self {
        Self::start_with(link, request, false)
    }

    fn start_with(link: Arc<Link>, request: R, subscribes: bool) -> Self {
        let manner = CallKind { cancels: request.cancels(), latest: request.wants_latest_part(), subscribes };
        let (call_state, parts) = (CallState::Outside, Parts::default());
        let mut call = Call { link, request, call_state, attempts: 0, manner, parts, limbo: None };
        if let Err(error) = call.submit(None) {
            call.call_state = CallState::Failed(error);
        }
        call
    }

    fn submit(&mut self, waker: Option<&Waker>) -> Result<(), StoreError> {
        let submitted = self.link.submit(waker, self.manner, |outbox, id| self.request.encode(outbox, id))?;
        if let Submitted::Yes(ticket) = submitted {
            self.attempts += 1;
            self.call_state = CallState::Under(ticket);
        }
        Ok(())
    }

    /// Takes the next part of the reply that came ahead of its end, if there is one. The task that polls the call is
    /// woken when a part arrives; parts are kept until they are taken, even after the end. While about 256 KiB of them
    /// are not taken, the server makes no more, and the reply does not end.
    pub fn take_part(&mut self) -> Option<Bytes> {
        match self.call_state {
            CallState::Under(ticket) => self.link.take_part(ticket),
            _ => self.parts.take(),
        }
    }

    /// Polls for the end of the reply.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server could not be reached, `Unknown` if the connection broke while the request may have
    /// taken effect, and the errors of encoding the request.
    ///
    /// # Panics
    ///
    /// If it is called again after it returned the reply.
    pub fn poll_frame(&mut self, waker: &Waker) -> Poll<Result<Frame, StoreError>> {
        loop {
            match std::mem::replace(&mut self.call_state, CallState::Done) {
                CallState::Outside => {
                    self.call_state = CallState::Outside;
                    match self.submit(Some(waker)) {
                        Err(error) if self.limbo.is_some() => {
                            self.call_state = self.lost(CallError::Unreachable(error));
                        }
                        Err(error) => {
                            self.call_state = CallState::Done;
                            return Poll::Ready(Err(error));
                        }
                        Ok(()) if matches!(self.call_state, CallState::Outside) => {
                            if !self.is_overdue(waker) {
                                return Poll::Pending;
                            }
                            self.call_state = self.give_up();
                        }
                        Ok(()) => {}
                    }
                }
                CallState::Under(ticket) => match self.poll_link(ticket, waker) {
                    Poll::Pending => {
                        self.call_state = CallState::Under(ticket);
                        if !self.is_overdue(waker) {
                            return Poll::Pending;
                        }
                        self.link.abandon(ticket);
                        self.call_state = self.give_up();
                    }
                    Poll::Ready(Ok((frame, _)))
                        if self.limbo.is_some() && !self.request.is_settled_by(&frame) =>
                    {
                        self.call_state = self.pause();
                    }
                    Poll::Ready(Ok((frame, parts))) => {
                        self.parts = parts;
                        if self.manner.subscribes && frame.kind != MessageKind::ERROR {
                            // The call goes on as a subscription.
                            self.call_state = CallState::Under(ticket);
                        }
                        return Poll::Ready(Ok(frame));
                    }
                    Poll::Ready(Err(loss)) => self.call_state = self.lost(loss),
                },
                CallState::Pausing(mut pause) => {
                    // Where the task that waits is gone, the time counts as over.
                    if Pin::new(&mut pause).poll(&mut Context::from_waker(waker)).is_pending() {
                        self.call_state = CallState::Pausing(pause);
                        if !self.is_overdue(waker) {
                            return Poll::Pending;
                        }
                        self.call_state = self.give_up();
                        continue;
                    }
                    self.call_state = CallState::Outside;
                }
                CallState::Failed(error) => return Poll::Ready(Err(error)),
                // Polling a future again after it completed is a bug of the caller, as for any future.
                CallState::Done => unreachable!("a call was polled after it was over"),
            }
        }
    }

    fn poll_link(&self, ticket: Ticket, waker: &Waker) -> Poll<Result<Answer, CallError>> {
        match self.manner.subscribes {
            true => self.link.poll_subscribed(ticket, waker),
            false => self.link.poll_call(ticket, waker),
        }
    }

    /// Returns the request.
    pub fn request(&self) -> &R {
        &self.request
    }

    /// Returns what a loss leads to: the error that it means for the caller, or another attempt.
    fn lost(&mut self, loss: CallError) -> CallState {
        let again = self.attempts < ATTEMPTS_MAX;
        let address = self.link.address();
        let broke = |how: std::fmt::Arguments<'_>| {
            let text = format!("the connection to the server at {address} broke {how}");
            CallState::Failed(StoreError::new(ErrorKind::Unavailable, text))
        };
        match loss {
            CallError::Unreachable(error) if self.limbo.is_some() => match error.kind {
                ErrorKind::Unavailable | ErrorKind::Closed => self.pause(),
                _ => self.give_up(),
            },
            CallError::Unreachable(error) => CallState::Failed(error),
            CallError::Unsent if again || self.may_repeat() => CallState::Outside,
            CallError::Unsent if self.limbo.is_some() => self.give_up(),
            CallError::Unsent => broke(format_args!("before the request was sent")),
            CallError::Broken(_) if again && self.request.is_read_only() => CallState::Outside,
            CallError::Broken(why) if self.request.is_read_only() => {
                broke(format_args!("again and again: {why}"))
            }
            CallError::Broken(why) => {
                let time = self.request.repeat();
                if self.limbo.is_none() {
                    let until = Instant::now() + time.unwrap_or_default();
                    let alarm = time.and_then(|_| self.link.alarm(until).ok());
                    self.limbo = Some(Box::new(UncertainRequest { until, alarm, why }));
                }
                if time.is_some() && self.may_repeat() { CallState::Outside } else { self.give_up() }
            }
        }
    }

    /// Returns whether the time has come at which a request that may have taken effect is given up, once; `waker` is woken
    /// then. An attempt may be under way that would take longer to fail.
    fn is_overdue(&mut self, waker: &Waker) -> bool {
        let Some(limbo) = &mut self.limbo else { return false };
        let Some(alarm) = &mut limbo.alarm else { return false };
        if Pin::new(alarm).poll(&mut Context::from_waker(waker)).is_pending() {
            return false;
        }
        limbo.alarm = None;
        // Where the task that waits is gone, so is the runtime; attempts fail by themselves.
        Instant::now() >= limbo.until
    }

    /// Returns whether a request that may have taken effect may be sent once more.
    fn may_repeat(&self) -> bool {
        let in_time = self.limbo.as_ref().is_some_and(|limbo| Instant::now() < limbo.until);
        in_time && self.attempts < REPEATED_ATTEMPTS_MAX
    }

    /// Waits before a request that may have taken effect is sent once more.
    fn pause(&self) -> CallState {
        match self.link.pause() {
            Ok(pause) if self.may_repeat() => CallState::Pausing(pause),
            _ => self.give_up(),
        }
    }

    /// Returns the end of a request of which it stays unknown whether it took effect.
    fn give_up(&self) -> CallState {
        let why = self.limbo.as_ref().map_or("", |limbo| limbo.why.as_str());
        CallState::Failed(StoreError::new(
            ErrorKind::Unknown,
            format!(
                "the connection to the server at {} broke before the reply came, so the request may or may not have \
                 taken effect: {why}",
                self.link.address()
            ),
        ))
    }

    /// Returns the error for a reply that cannot be understood.
    pub fn nonsense(&self, error: WireError) -> StoreError {
        let kind = if self.request.is_read_only() { ErrorKind::Unavailable } else { ErrorKind::Unknown };
        StoreError::new(kind, format!("the server at {} sent an invalid reply: {error}", self.link.address()))
    }
}

impl<R: Request> Drop for Call<R> {
    fn drop(&mut self) {
        if let CallState::Under(ticket) = self.call_state {
            self.link.abandon(ticket);
        }
    }
}

/// A subscription: the events of a service, in order.
#[derive(derive_more::Debug)]
#[debug("Subscription")]
pub struct Subscription<R: Request> {
    call: Call<R>,
}

impl<R: Request> Subscription<R> {
    /// Sends a request that subscribes. Returns the reply, and the subscription unless the reply is an error.
    ///
    /// # Errors
    ///
    /// Those of [`Call::poll_frame`].
    pub async fn start(link: Arc<Link>, request: R) -> Result<(Frame, Option<Self>), StoreError> {
        let mut call = Call::start_with(link, request, true);
        let frame = poll_fn(|context| call.poll_frame(context.waker())).await?;
        let subscribed = frame.kind != MessageKind::ERROR;
        Ok((frame, subscribed.then_some(Subscription { call })))
    }

    /// Returns the next event, or `None` once the subscription has ended.
    ///
    /// # Errors
    ///
    /// The error with which the service ended the subscription, or that of the broken connection. `None` follows it.
    pub async fn next(&mut self) -> Option<Result<Event, StoreError>> {
        let CallState::Under(ticket) = self.call.call_state else { return None };
        poll_fn(|context| self.call.link.poll_event(ticket, context.waker())).await
    }

    /// Returns the next event as [`Subscription::next`] does, if it is there; nobody is woken if it is not.
    pub fn try_next(&mut self) -> Poll<Option<Result<Event, StoreError>>> {
        match self.call.call_state {
            CallState::Under(ticket) => self.call.link.poll_event(ticket, Waker::noop()),
            _ => Poll::Ready(None),
        }
    }
}
