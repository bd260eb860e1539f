//! Services, and their registration with a server.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nacre_object::{ErrorKind, StoreError};

use crate::control;
use crate::frame::{CONTROL, MessageKind};
use crate::limit::READ_BYTES;
use crate::outbox::Outbox;
use crate::server::budget::{Budget, Reservation};
use crate::server::mailbox::{Mailbox, Parts, Publisher};

/// The server side of a service.
///
/// Requests of one connection are handed over in the order in which they arrived; replies may be given in any order. A
/// handler encodes its replies straight into the connection's outbox, so one that answers at once costs no allocation.
pub trait Service: Send + Sync + 'static {
    /// The state that the service keeps for each connection, or for each session that outlives connections.
    type Connection: Send + 'static;
    /// A reply that is still being made. Dropped when its caller no longer waits for it.
    type Pending: Future<Output: Send> + Send + Unpin + 'static;

    /// Returns the service's number in the protocol, at least 1.
    fn number(&self) -> u8;

    /// Returns the codes of the connection's own messages (service 0) that this service answers.
    fn control_codes(&self) -> &'static [u8] {
        &[]
    }

    /// Returns whether clients of a version of the protocol can be served.
    fn serves_version(&self, _version: u16) -> bool {
        true
    }

    /// Returns the number of requests of one connection that may wait for their replies.
    fn requests_max(&self) -> usize {
        usize::MAX
    }

    /// Returns whether a stopping server waits for requests under way instead of refusing them.
    fn is_awaited(&self) -> bool {
        true
    }

    /// Returns whether requests of a connection are handled one at a time, each after the reply to the one before.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Returns the features that the service has, one bit each, which must be no other service's.
    fn features(&self) -> u64 {
        0
    }

    /// Begins to serve a connection, or a session that outlives it.
    fn open(&self, peer: &Peer) -> Self::Connection;

    /// Handles a request: writes the reply to `outbox`, or returns the future that makes it.
    fn handle(
        &self,
        connection: &mut Self::Connection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<Self::Pending>;

    /// Writes the reply to request `id` from the output of its future.
    fn finish(
        &self,
        connection: &mut Self::Connection,
        id: u64,
        output: <Self::Pending as Future>::Output,
        outbox: &mut Outbox,
    );

    /// Handles the loss of interest in request `id`, or in the events of the subscription that it made: its caller has
    /// cancelled it, or its deadline has passed. The future that was making the reply has been dropped. If the reply
    /// was made before, the caller has not taken it, so what it granted must be revoked.
    fn cancelled(&self, _connection: &mut Self::Connection, _id: u64) {}

    /// Handles the loss of a session's connection. The requests have been cancelled; the subscriptions go on, and the
    /// session waits for its client. It is not called without a session that outlives connections: then the
    /// connection's state is dropped at once.
    fn broken(&self, _connection: &mut Self::Connection) {}

    /// Handles the return of a session's client, over another connection.
    fn resumed(&self, _connection: &mut Self::Connection) {}

    /// Handles the end of a connection or session, whose state is about to be dropped.
    fn ended(&self, _connection: &mut Self::Connection) {}

    /// Takes the latency of the requests that were answered since the last call: the time from when they were read until their
    /// replies were ready.
    fn timed(&self, _connection: &mut Self::Connection, _latency: Duration) {}

    /// Adds up the counts of a connection. Called once for each batch, before its replies are sent.
    fn settle(&self, _connection: &mut Self::Connection) {}
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The version of the protocol that the peer speaks.
    pub version: u16,
    /// The place that it comes from; `None` if the system does not tell.
    pub origin: Option<Origin>,
}

/// The place that connections come from. Several programs share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// An IPv4 address, or the first 64 bits of an IPv6 address: a machine has all of those that differ only behind them.
    Address(IpAddr),
    /// The number of a user of the server's machine.
    User(u32),
}

impl Origin {
    /// Returns the origin of connections from an address.
    pub fn of_address(address: IpAddr) -> Origin {
        Origin::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address => address,
        })
    }
}

/// A request as received.
#[derive(derive_more::Debug)]
#[debug("Incoming")]
pub struct Incoming<'a> {
    /// The kind of the message.
    pub kind: MessageKind,
    /// The id of the request, which its reply carries.
    pub id: u64,
    /// The body: a slice of the receive buffer if it is longer than 16 KiB, else a copy.
    pub body: Bytes,
    /// The bytes that the request counts for while it waits.
    pub(crate) request_bytes: usize,
    /// The time from which on the reply is not needed any more.
    pub deadline: Option<Instant>,
    pub(crate) mailbox: &'a Arc<Mailbox>,
    pub(crate) room: Option<&'a RequestBudget<'a>>,
}

/// The part of the server's account that a connection draws on for one request.
pub(crate) struct RequestBudget<'a> {
    pub(crate) budget: &'a Budget,
    /// The bytes that the connection holds, the request among them, and has reserved for others.
    pub(crate) base: usize,
    /// The bytes that the connection has drawn.
    pub(crate) drawn: Cell<usize>,
    /// The bytes reserved for the request.
    pub(crate) reserved: Cell<usize>,
    /// True if nothing else is under way on the connection.
    pub(crate) alone: bool,
    /// True if the request may go beyond the account.
    pub(crate) privileged: bool,
}

impl Incoming<'_> {
    /// Returns the error for a message that the service does not know.
    pub fn unsupported(&self) -> StoreError {
        unsupported(self.kind)
    }

    /// Returns a handle that sends parts of the reply, messages of kind `kind`, ahead of its end.
    pub fn parts(&self, kind: MessageKind) -> Parts {
        self.mailbox.open(self.id, kind)
    }

    /// Reserves memory for the reply before work on it starts; it is released when the reply has been made. Returns
    /// false if there is not enough at present: the service then returns [`Handled::NoCapacity`], and is handed the request
    /// again when there may be.
    ///
    /// # Errors
    ///
    /// `Invalid` if `bytes` is more than all connections together may hold.
    pub fn reserve(&self, bytes: usize) -> Result<bool, StoreError> {
        let Some(room) = self.room else { return Ok(true) };
        let limit = room.budget.limit();
        if bytes > limit {
            let text = format!(
                "the reply may take {bytes} bytes, and all connections to this server together may hold {limit}; ask for less at \
                 once"
            );
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        let wanted = room.base + room.reserved.get() + bytes;
        let drawn = room.budget.draw(room.drawn.get(), wanted, bytes, room.alone, room.privileged);
        let Some(drawn) = drawn else { return Ok(false) };
        room.drawn.set(drawn);
        room.reserved.set(room.reserved.get() + bytes);
        Ok(true)
    }

    /// Returns the number of bytes that all connections together may hold.
    pub fn account_bytes(&self) -> usize {
        self.room.map_or(usize::MAX, |room| room.budget.limit())
    }

    /// Draws on the server's account for something small that the service keeps beyond the reply, such as an answer that
    /// follows as an event. Returns `None` if there is no room: what may last takes half of the account at most.
    pub fn keep(&self, bytes: usize) -> Option<Reservation> {
        Reservation::draw(self.mailbox.budget(), bytes)
    }

    /// Makes the request a subscription: events pushed from now on are sent after its reply, until the subscriber
    /// cancels or the publisher is dropped.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the peer speaks a version of the protocol without events, `Busy` if the connection has as many
    /// subscriptions as it may or the server has no memory for more, `Invalid` if it already has one with the request's id.
    pub fn subscribe(&self) -> Result<Publisher, StoreError> {
        self.mailbox.subscribe(self.id)
    }
}

/// The outcome of handing a request to its service.
#[derive(Debug)]
pub enum Handled<P> {
    /// The reply was written.
    Answered,
    /// The reply was written; it does not count as a request.
    Uncounted,
    /// The reply is being made.
    Later(P),
    /// A lack of memory for the reply. Holds the body of the request, which is handed over again when there may be enough.
    NoCapacity(Bytes),
}

/// The services of a server.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("Services")]
pub struct Services {
    services: Vec<Arc<dyn Registered>>,
}

impl Services {
    /// Creates an empty set of services.
    pub fn new() -> Services {
        Services::default()
    }

    /// Adds a service.
    ///
    /// # Panics
    ///
    /// If a service with that number is present already, or the number is that of the connection itself.
    pub fn with<S: Service>(mut self, service: S) -> Services {
        let number = service.number();
        assert!(number != CONTROL, "service 0 is the connection itself");
        assert!(
            self.services.iter().all(|known| known.number() != number),
            "service {number} is there twice"
        );
        self.services.push(Arc::new(Shelf(Arc::new(service))));
        self
    }

    /// Returns whether all services serve clients of a version.
    pub(crate) fn serve_version(&self, version: u16) -> bool {
        self.services.iter().all(|service| service.serves_version(version))
    }

    /// Returns the index of the service with a number.
    pub(crate) fn find_number(&self, number: u8) -> Option<usize> {
        self.services.iter().position(|service| service.number() == number)
    }

    /// Returns the index of the service that a message is for.
    pub(crate) fn find(&self, kind: MessageKind) -> Option<usize> {
        self.services.iter().position(|service| match kind.service {
            CONTROL => service.control_codes().contains(&kind.code),
            number => service.number() == number,
        })
    }

    /// Returns the features of all services.
    pub(crate) fn features(&self) -> u64 {
        self.services.iter().fold(0, |features, service| features | service.features())
    }

    pub(crate) fn open(&self, peer: &Peer) -> Vec<Box<dyn Handler>> {
        self.services.iter().map(|service| service.open(peer)).collect()
    }
}

/// A service with its types erased.
trait Registered: Send + Sync {
    fn number(&self) -> u8;
    fn control_codes(&self) -> &'static [u8];
    fn serves_version(&self, version: u16) -> bool;
    fn features(&self) -> u64;
    fn open(&self, peer: &Peer) -> Box<dyn Handler>;
}

struct Shelf<S>(Arc<S>);

impl<S: Service> Registered for Shelf<S> {
    fn number(&self) -> u8 {
        self.0.number()
    }

    fn control_codes(&self) -> &'static [u8] {
        self.0.control_codes()
    }

    fn serves_version(&self, version: u16) -> bool {
        self.0.serves_version(version)
    }

    fn features(&self) -> u64 {
        self.0.features()
    }

    fn open(&self, peer: &Peer) -> Box<dyn Handler> {
        let service = self.0.clone();
        let connection = service.open(peer);
        let (pending, queue) = (FuturesUnordered::new(), VecDeque::new());
        Box::new(Serving { ordered: service.is_ordered(), service, connection, pending, queue })
    }
}

/// The outcome of a request, as the connection needs it.
#[derive(PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    Uncounted,
    Later,
    NoCapacity(Bytes),
}

/// A request whose reply has been made, or that was cancelled.
pub(crate) struct Finished {
    pub(crate) id: u64,
    pub(crate) request_bytes: usize,
    /// The bytes reserved for its reply.
    pub(crate) reserved: usize,
    pub(crate) began: Instant,
    pub(crate) deadline: Option<Instant>,
}

/// The handler of one service for one connection.
pub(crate) trait Handler: Send {
    fn handle(&mut self, request: Incoming<'_>, began: Instant, outbox: &mut Outbox) -> Fate;
    /// Writes the reply of a request that has been finished in the meantime.
    fn poll_finished(
        &mut self,
        context: &mut Context<'_>,
        mailbox: &Arc<Mailbox>,
        outbox: &mut Outbox,
    ) -> Option<Finished>;
    /// Drops a request whose reply has not been made, and tells the service; with a deadline, only if the request has
    /// that one. Writes no reply.
    fn cancel(&mut self, id: u64, deadline: Option<Instant>, mailbox: &Mailbox) -> Option<Finished>;
    /// Returns the number of requests whose replies are being made.
    fn pending(&self) -> usize;
    /// Returns whether one more request may be handed over.
    fn may_accept(&self) -> bool;
    fn is_awaited(&self) -> bool;
    /// Refuses all requests whose replies are being made.
    fn refuse(&mut self, error: &StoreError, mailbox: &Mailbox, outbox: &mut Outbox);
    /// Tells the service the latency of the requests that were answered since the last call.
    fn timed(&mut self, latency: Duration);
    fn settle(&mut self);
    /// Cancels all requests whose replies have not been made.
    fn cancel_all(&mut self, mailbox: &Mailbox);
    fn broken(&mut self);
    fn resumed(&mut self);
}

struct Serving<S: Service> {
    service: Arc<S>,
    ordered: bool,
    connection: S::Connection,
    pending: FuturesUnordered<InFlight<S::Pending>>,
    /// Requests that wait for the one before them to finish.
    queue: VecDeque<Queued>,
}

/// A request whose reply is still being made.
struct InFlight<P> {
    id: u64,
    /// The bytes that it counts for.
    request_bytes: usize,
    reserved: usize,
    began: Instant,
    deadline: Option<Instant>,
    /// The future of the reply; `None` once it was cancelled.
    reply: Option<P>,
    /// Wakes the set that contains it.
    waker: Option<Waker>,
}

/// A request that waits for the one before it to finish.
struct Queued {
    kind: MessageKind,
    id: u64,
    body: Bytes,
    request_bytes: usize,
    deadline: Option<Instant>,
    began: Instant,
}

impl<P: Future + Unpin> Future for InFlight<P> {
    type Output = Option<(Finished, P::Output)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(reply) = &mut this.reply else { return Poll::Ready(None) };
        match Pin::new(reply).poll(context) {
            Poll::Ready(output) => {
                let (id, request_bytes, reserved) = (this.id, this.request_bytes, this.reserved);
                let (began, deadline) = (this.began, this.deadline);
                let finished = Finished { id, request_bytes, reserved, began, deadline };
                Poll::Ready(Some((finished, output)))
            }
            Poll::Pending => {
                if !this.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    this.waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl<S: Service> Handler for Serving<S> {
    fn handle(&mut self, request: Incoming<'_>, began: Instant, outbox: &mut Outbox) -> Fate {
        if self.ordered && !(self.pending.is_empty() && self.queue.is_empty()) {
            let Incoming { kind, id, body, request_bytes, deadline, .. } = request;
            let body = control::detached(body);
            self.queue.push_back(Queued { kind, id, body, request_bytes, deadline, began });
            return Fate::Later;
        }
        let (id, request_bytes, deadline) = (request.id, request.request_bytes, request.deadline);
        let room = request.room;
        match self.service.handle(&mut self.connection, request, outbox) {
            Handled::NoCapacity(body) => Fate::NoCapacity(body),
            Handled::Answered => Fate::Answered,
            Handled::Uncounted => Fate::Uncounted,
            Handled::Later(reply) => {
                let reserved = room.map_or(0, |room| room.reserved.get());
                let (reply, waker) = (Some(reply), None);
                self.pending.push(InFlight { id, request_bytes, reserved, began, deadline, reply, waker });
                Fate::Later
            }
        }
    }

    fn poll_finished(
        &mut self,
        context: &mut Context<'_>,
        mailbox: &Arc<Mailbox>,
        outbox: &mut Outbox,
    ) -> Option<Finished> {
        loop {
            if self.pending.is_empty() {
                let Queued { kind, id, body, request_bytes, deadline, began } = self.queue.pop_front()?;
                // A queued request has no reservation of its own: the queue is short.
                let request = Incoming { kind, id, body, request_bytes, deadline, mailbox, room: None };
                let mut rest = std::mem::take(&mut self.queue);
                let fate = self.handle(request, began, outbox);
                self.queue.append(&mut rest);
                if fate != Fate::Later {
                    mailbox.replied(id, outbox);
                    return Some(Finished { id, request_bytes, reserved: 0, began, deadline });
                }
            }
            match self.pending.poll_next_unpin(context) {
                Poll::Ready(Some(Some((finished, output)))) => {
                    mailbox.replied(finished.id, outbox);
                    self.service.finish(&mut self.connection, finished.id, output, outbox);
                    return Some(finished);
                }
                // The request was cancelled and is no longer in flight; there may be another one.
                Poll::Ready(Some(None)) => {}
                Poll::Ready(None) if !self.queue.is_empty() => {}
                _ => return None,
            }
        }
    }

    fn cancel(&mut self, id: u64, deadline: Option<Instant>, mailbox: &Mailbox) -> Option<Finished> {
        let is_it = |other: u64, its: Option<Instant>| other == id && (deadline.is_none() || deadline == its);
        let queued = self.queue.iter().position(|queued| is_it(queued.id, queued.deadline));
        if let Some(queued) = queued.and_then(|at| self.queue.remove(at)) {
            let Queued { id, request_bytes, deadline, began, .. } = queued;
            return Some(Finished { id, request_bytes, reserved: 0, began, deadline });
        }
        let found = self
            .pending
            .iter_mut()
            .find(|request| request.reply.is_some() && is_it(request.id, request.deadline));
        let finished = found.map(|request| {
            request.reply = None;
            if let Some(waker) = request.waker.take() {
                waker.wake();
            }
            let InFlight { id, request_bytes, reserved, began, deadline, .. } = *request;
            Finished { id, request_bytes, reserved, began, deadline }
        });
        if finished.is_some() || deadline.is_none() {
            mailbox.abandon(id);
            self.service.cancelled(&mut self.connection, id);
        }
        finished
    }

    fn pending(&self) -> usize {
        self.pending.iter().filter(|request| request.reply.is_some()).count() + self.queue.len()
    }

    fn may_accept(&self) -> bool {
        self.pending.len() + self.queue.len() < self.service.requests_max()
    }

    fn is_awaited(&self) -> bool {
        self.service.is_awaited()
    }

    fn refuse(&mut self, error: &StoreError, mailbox: &Mailbox, outbox: &mut Outbox) {
        for request in std::mem::take(&mut self.pending) {
            if request.reply.is_some() {
                mailbox.replied(request.id, outbox);
                control::put_error(outbox, request.id, error);
            }
        }
        for queued in self.queue.drain(..) {
            control::put_error(outbox, queued.id, error);
        }
    }

    fn timed(&mut self, latency: Duration) {
        self.service.timed(&mut self.connection, latency);
    }

    fn settle(&mut self) {
        self.service.settle(&mut self.connection);
    }

    fn cancel_all(&mut self, mailbox: &Mailbox) {
        let queued = std::mem::take(&mut self.queue);
        let pending = std::mem::take(&mut self.pending);
        let under_way =
            pending.into_iter().filter(|request| request.reply.is_some()).map(|request| request.id);
        let ids: Vec<u64> = under_way.collect();
        queued.iter().for_each(|queued| mailbox.abandon(queued.id));
        for id in ids {
            mailbox.abandon(id);
            self.service.cancelled(&mut self.connection, id);
        }
    }

    fn broken(&mut self) {
        self.service.broken(&mut self.connection);
    }

    fn resumed(&mut self) {
        self.service.resumed(&mut self.connection);
    }
}

impl<S: Service> Drop for Serving<S> {
    fn drop(&mut self) {
        self.service.ended(&mut self.connection);
    }
}

/// The largest body of a request, in bytes, that is copied out of the buffer in which it was received.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// The bytes that a larger one counts for at least while it waits, for what it keeps of the buffer.
const UNCOPIED_BYTES_MIN: usize = READ_BYTES / 4;

/// Returns the body of a request that may wait for long: a small one in memory of its own, because it would keep the
/// whole buffer in which it was received.
pub(crate) fn lasting(body: Bytes) -> Bytes {
    if body.len() <= COPIED_BYTES_MAX { Bytes::copy_from_slice(&body) } else { body }
}

/// Returns the bytes that a request with this body counts for while it waits.
pub(crate) fn lasting_bytes(body: &Bytes) -> usize {
    let len = body.len();
    if len <= COPIED_BYTES_MAX { len } else { len.max(UNCOPIED_BYTES_MIN) }
}

/// Returns the error for a message that no service knows.
pub(crate) fn unsupported(kind: MessageKind) -> StoreError {
    let text = format!("message {} of service {} is unknown to this server", kind.code, kind.service);
    StoreError::new(ErrorKind::Unsupported, text)
}
