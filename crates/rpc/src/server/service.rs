//! Services: what a server does for its clients, and how it is registered.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nacre_object::{ErrorKind, StoreError};

use crate::control;
use crate::frame::{CONTROL, Kind};
use crate::outbox::Outbox;
use crate::server::parts::{Mailbox, Parts};

/// The server's side of a service.
///
/// Requests of one connection are handed over in the order in which they came; replies may be given in any order. A
/// handler encodes its replies straight into the connection's outbox, so one that answers at once costs no allocation.
pub trait Service: Send + Sync + 'static {
    /// What the service keeps for each connection.
    type Connection: Send + 'static;
    /// A reply that is still being made. Dropped if nobody waits for it any more.
    type Pending: Future<Output: Send> + Send + Unpin + 'static;

    /// The service's number on the wire, from 1 on.
    fn number(&self) -> u8;

    /// The messages of the connection itself (service 0) that this service answers.
    fn control_codes(&self) -> &'static [u8] {
        &[]
    }

    /// Whether clients of a version of the protocol can be served.
    fn serves_version(&self, _version: u16) -> bool {
        true
    }

    /// Requests of one connection that may wait for their replies.
    fn requests_max(&self) -> usize {
        usize::MAX
    }

    /// Whether a server that stops waits for requests under way, instead of refusing them.
    fn is_awaited(&self) -> bool {
        true
    }

    /// Begins to serve a connection.
    fn open(&self, peer: &Peer) -> Self::Connection;

    /// Handles a request: writes the reply to `outbox`, or gives the future that will make it.
    fn handle(
        &self,
        connection: &mut Self::Connection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<Self::Pending>;

    /// Writes the reply to request `id`, which a future has made.
    fn finish(
        &self,
        connection: &mut Self::Connection,
        id: u64,
        output: <Self::Pending as Future>::Output,
        outbox: &mut Outbox,
    );

    /// Adds up what was counted for a connection. Called once for each batch, before its replies are sent.
    fn settle(&self, _connection: &mut Self::Connection) {}
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The version of the protocol that it speaks.
    pub version: u16,
}

/// A request as it came in.
pub struct Incoming<'a> {
    /// The message.
    pub kind: Kind,
    /// The id of the request, by which the reply is known.
    pub id: u64,
    /// The body, a slice of the receive buffer.
    pub body: Bytes,
    pub(crate) mailbox: &'a Arc<Mailbox>,
}

impl Incoming<'_> {
    /// The error for a message that the service does not know.
    pub fn unsupported(&self) -> StoreError {
        unsupported(self.kind)
    }

    /// A handle by which parts of the reply, messages of kind `kind`, are sent ahead of its end.
    pub fn parts(&self, kind: Kind) -> Parts {
        self.mailbox.open(self.id, kind)
    }
}

/// What became of a request that was handed to its service.
#[derive(Debug)]
pub enum Handled<P> {
    /// The reply was written.
    Answered,
    /// The reply was written; it does not count as a request.
    Uncounted,
    /// The reply is being made.
    Later(P),
}

/// The services of a server.
#[derive(Clone, Default)]
pub struct Services {
    services: Vec<Arc<dyn Registered>>,
}

impl Services {
    /// No services.
    pub fn new() -> Services {
        Services::default()
    }

    /// These and one more.
    ///
    /// # Panics
    ///
    /// If there is one of that number already, or the number is that of the connection itself.
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

    /// Whether all services serve clients of a version.
    pub(crate) fn serve_version(&self, version: u16) -> bool {
        self.services.iter().all(|service| service.serves_version(version))
    }

    /// The index of the service that a message is for.
    pub(crate) fn find(&self, kind: Kind) -> Option<usize> {
        self.services.iter().position(|service| match kind.service {
            CONTROL => service.control_codes().contains(&kind.code),
            number => service.number() == number,
        })
    }

    pub(crate) fn open(&self, peer: &Peer) -> Vec<Box<dyn Handler>> {
        self.services.iter().map(|service| service.open(peer)).collect()
    }
}

/// A service, whatever its types are.
trait Registered: Send + Sync {
    fn number(&self) -> u8;
    fn control_codes(&self) -> &'static [u8];
    fn serves_version(&self, version: u16) -> bool;
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

    fn open(&self, peer: &Peer) -> Box<dyn Handler> {
        let service = self.0.clone();
        Box::new(Serving { connection: service.open(peer), service, pending: FuturesUnordered::new() })
    }
}

/// What became of a request, as the connection needs to know it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    Uncounted,
    Later,
}

/// A request that was finished.
pub(crate) struct Finished {
    pub(crate) request_bytes: usize,
    pub(crate) began: Instant,
}

/// A service at work for one connection.
pub(crate) trait Handler: Send {
    fn handle(&mut self, request: Incoming<'_>, began: Instant, outbox: &mut Outbox) -> Fate;
    /// Writes the reply of a request that has been finished meanwhile.
    fn poll_finished(
        &mut self,
        context: &mut Context<'_>,
        mailbox: &Mailbox,
        outbox: &mut Outbox,
    ) -> Option<Finished>;
    /// Requests whose replies are being made.
    fn pending(&self) -> usize;
    /// Whether one more request may be handed over.
    fn may_accept(&self) -> bool;
    fn is_awaited(&self) -> bool;
    /// Refuses all requests whose replies are being made.
    fn refuse(&mut self, error: &StoreError, mailbox: &Mailbox, outbox: &mut Outbox);
    fn settle(&mut self);
}

struct Serving<S: Service> {
    service: Arc<S>,
    connection: S::Connection,
    pending: FuturesUnordered<InFlight<S::Pending>>,
}

/// A request whose reply is still being made.
struct InFlight<P> {
    id: u64,
    request_bytes: usize,
    began: Instant,
    reply: P,
}

impl<P: Future + Unpin> Future for InFlight<P> {
    type Output = (u64, Finished, P::Output);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let finished = Finished { request_bytes: self.request_bytes, began: self.began };
        let id = self.id;
        Pin::new(&mut self.reply).poll(context).map(|output| (id, finished, output))
    }
}

impl<S: Service> Handler for Serving<S> {
    fn handle(&mut self, request: Incoming<'_>, began: Instant, outbox: &mut Outbox) -> Fate {
        let (id, request_bytes) = (request.id, request.body.len());
        match self.service.handle(&mut self.connection, request, outbox) {
            Handled::Answered => Fate::Answered,
            Handled::Uncounted => Fate::Uncounted,
            Handled::Later(reply) => {
                self.pending.push(InFlight { id, request_bytes, began, reply });
                Fate::Later
            }
        }
    }

    fn poll_finished(
        &mut self,
        context: &mut Context<'_>,
        mailbox: &Mailbox,
        outbox: &mut Outbox,
    ) -> Option<Finished> {
        if self.pending.is_empty() {
            return None;
        }
        let Poll::Ready(Some((id, finished, output))) = self.pending.poll_next_unpin(context) else {
            return None;
        };
        mailbox.close(id, outbox);
        self.service.finish(&mut self.connection, id, output, outbox);
        Some(finished)
    }

    fn pending(&self) -> usize {
        self.pending.len()
    }

    fn may_accept(&self) -> bool {
        self.pending.len() < self.service.requests_max()
    }

    fn is_awaited(&self) -> bool {
        self.service.is_awaited()
    }

    fn refuse(&mut self, error: &StoreError, mailbox: &Mailbox, outbox: &mut Outbox) {
        for request in std::mem::take(&mut self.pending) {
            mailbox.close(request.id, outbox);
            control::put_error(outbox, request.id, error);
        }
    }

    fn settle(&mut self) {
        self.service.settle(&mut self.connection);
    }
}

/// The error for a message that no service knows.
pub(crate) fn unsupported(kind: Kind) -> StoreError {
    let text = format!("message {} of service {} is unknown to this server", kind.code, kind.service);
    StoreError::new(ErrorKind::Unsupported, text)
}
