//! Calls: the futures behind the replies of a remote store.
//!
//! A call is submitted when it is made, not when it is first polled. Where its connection breaks it is submitted
//! once more if that can do no harm: if the request cannot have reached the server, or changes nothing. Any other
//! request whose reply was lost ends as [`ErrorKind::Unknown`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nacre_object::{ErrorKind, ObjectId, Outcome, StoreError, Transaction};

use crate::frame::{Frame, Kind};
use crate::remote::link::{Link, Loss, Submitted, Ticket};
use crate::{WireError, call, reply, request};

/// How often a request is sent at most, where repeating it is safe.
const ATTEMPTS_MAX: u32 = 4;

/// Where a call is.
enum Place {
    /// Not submitted, for want of room.
    Outside,
    /// Submitted.
    Under(Ticket),
    /// Over, with this error before it began.
    Failed(StoreError),
    /// Over.
    Done,
}

/// A request that may be submitted several times.
trait Request {
    /// Encodes it.
    fn encode(&self, outbox: &mut crate::Outbox, id: u64) -> Result<(), StoreError>;
    /// Whether it changes nothing.
    fn is_read_only(&self) -> bool;
}

struct Call<R> {
    link: Arc<Link>,
    request: R,
    place: Place,
    attempts: u32,
}

impl<R: Request> Call<R> {
    fn start(link: Arc<Link>, request: R) -> Self {
        let mut call = Call { link, request, place: Place::Outside, attempts: 0 };
        if let Err(error) = call.submit(None) {
            call.place = Place::Failed(error);
        }
        call
    }

    fn submit(&mut self, waker: Option<&Waker>) -> Result<(), StoreError> {
        let submitted = self.link.submit(waker, |outbox, id| self.request.encode(outbox, id))?;
        if let Submitted::Yes(ticket) = submitted {
            self.attempts += 1;
            self.place = Place::Under(ticket);
        }
        Ok(())
    }

    fn poll_frame(&mut self, waker: &Waker) -> Poll<Result<Frame, StoreError>> {
        loop {
            match std::mem::replace(&mut self.place, Place::Done) {
                Place::Outside => {
                    self.place = Place::Outside;
                    match self.submit(Some(waker)) {
                        Err(error) => {
                            self.place = Place::Done;
                            return Poll::Ready(Err(error));
                        }
                        Ok(()) if matches!(self.place, Place::Outside) => return Poll::Pending,
                        Ok(()) => {}
                    }
                }
                Place::Under(ticket) => match self.link.poll_call(ticket, waker) {
                    Poll::Pending => {
                        self.place = Place::Under(ticket);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(frame)) => return Poll::Ready(Ok(frame)),
                    Poll::Ready(Err(loss)) => match self.lost(loss) {
                        None => self.place = Place::Outside,
                        Some(error) => return Poll::Ready(Err(error)),
                    },
                },
                Place::Failed(error) => return Poll::Ready(Err(error)),
                // Polling a future again after it gave its answer is a bug of the caller, as for any future.
                Place::Done => unreachable!("a call was polled after it was over"),
            }
        }
    }

    /// The error that a loss means for the caller, or `None` if the request is to be submitted again.
    fn lost(&self, loss: Loss) -> Option<StoreError> {
        let again = self.attempts < ATTEMPTS_MAX;
        let address = &self.link.address;
        match loss {
            Loss::Unreachable(error) => Some(error),
            Loss::Unsent if again => None,
            Loss::Broken(_) if again && self.request.is_read_only() => None,
            Loss::Unsent => Some(StoreError::new(
                ErrorKind::Unavailable,
                format!("the connection to the server at {address} broke before the request was sent"),
            )),
            Loss::Broken(why) if self.request.is_read_only() => Some(StoreError::new(
                ErrorKind::Unavailable,
                format!("the connection to the server at {address} broke again and again: {why}"),
            )),
            Loss::Broken(why) => Some(StoreError::new(
                ErrorKind::Unknown,
                format!(
                    "the connection to the server at {address} broke before the reply came, so the request may \
                     or may not have taken effect: {why}"
                ),
            )),
        }
    }

    /// The error for a reply that makes no sense.
    fn nonsense(&self, error: WireError) -> StoreError {
        let kind = if self.request.is_read_only() { ErrorKind::Unavailable } else { ErrorKind::Unknown };
        StoreError::new(
            kind,
            format!("the server at {} sent a reply that makes no sense: {error}", self.link.address),
        )
    }
}

impl<R> Drop for Call<R> {
    fn drop(&mut self) {
        if let Place::Under(ticket) = self.place {
            self.link.abandon(ticket);
        }
    }
}

struct Apply {
    object: ObjectId,
    transaction: Transaction,
}

impl Request for Apply {
    fn encode(&self, outbox: &mut crate::Outbox, id: u64) -> Result<(), StoreError> {
        request::put_apply(outbox, id, &self.object, &self.transaction).map(|_| ())
    }

    fn is_read_only(&self) -> bool {
        self.transaction.writes.is_empty()
    }
}

/// A transaction under way.
pub(super) struct ApplyCall(Call<Apply>);

impl ApplyCall {
    pub(super) fn start(link: Arc<Link>, object: ObjectId, transaction: Transaction) -> Self {
        Self(Call::start(link, Apply { object, transaction }))
    }
}

impl Future for ApplyCall {
    type Output = Result<Outcome, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_frame(context.waker()).map(|frame| {
            let frame = frame?;
            reply::get_outcome(&frame).unwrap_or_else(|error| Err(self.0.nonsense(error)))
        })
    }
}

struct List {
    after: Option<ObjectId>,
    limit: usize,
}

impl Request for List {
    fn encode(&self, outbox: &mut crate::Outbox, id: u64) -> Result<(), StoreError> {
        request::put_list(outbox, id, self.after.as_ref(), self.limit);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

/// A listing under way.
pub(super) struct ListCall(Call<List>);

impl ListCall {
    pub(super) fn start(link: Arc<Link>, after: Option<ObjectId>, limit: usize) -> Self {
        Self(Call::start(link, List { after, limit }))
    }
}

impl Future for ListCall {
    type Output = Result<Vec<ObjectId>, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_frame(context.waker()).map(|frame| {
            let frame = frame?;
            reply::get_listed(&frame).unwrap_or_else(|error| Err(self.0.nonsense(error)))
        })
    }
}

struct Administer {
    method: String,
    argument: Bytes,
}

impl Request for Administer {
    fn encode(&self, outbox: &mut crate::Outbox, id: u64) -> Result<(), StoreError> {
        let put = call::put_call(outbox, id, &self.method, &self.argument);
        put.map(|_| ()).map_err(|body_bytes| WireError::TooLong { body_bytes }.into())
    }

    /// Questions and orders may be repeated alike: compacting twice does no harm.
    fn is_read_only(&self) -> bool {
        true
    }
}

type Report = Box<dyn FnMut(Bytes) + Send>;

/// A call of the administration under way.
pub(super) struct AdminCall {
    call: Call<Administer>,
    report: Report,
}

impl AdminCall {
    pub(super) fn start(link: Arc<Link>, method: String, argument: Bytes, report: Report) -> Self {
        Self { call: Call::start(link, Administer { method, argument }), report }
    }
}

impl Future for AdminCall {
    type Output = Result<Bytes, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Place::Under(ticket) = this.call.place
            && let Some(report) = this.call.link.take_report(ticket)
        {
            (this.report)(report);
        }
        this.call.poll_frame(context.waker()).map(|frame| {
            let frame = frame?;
            match frame.kind {
                Kind::Result => Ok(frame.body),
                _ => Err(reply::get_failure(&frame).unwrap_or_else(|error| this.call.nonsense(error))),
            }
        })
    }
}
