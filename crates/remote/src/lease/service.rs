//! The server side of the service.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::future::{BoxFuture, FutureExt};
use nacre_object::{ErrorKind, ObjectStore, Outcome, ReadOp, StoreError, Transaction};
use nacre_rpc::{Cursor, Handled, Incoming, Outbox, Peer, Service, control};

use super::hold::Leases;
use super::is_leasable;
use super::suspension::Client;
use super::wire::{self, Granted, Leasing};
use crate::members::Membership;

/// The maximum number of sessions of a connection.
const CONNECTION_SESSIONS_MAX: usize = 16;

/// The service by which clients lease objects.
#[derive(derive_more::Debug)]
#[debug("LeaseService")]
pub struct LeaseService {
    store: Arc<dyn ObjectStore>,
    membership: Membership,
    leases: Arc<Leases>,
}

/// The state that is kept for a connection.
#[derive(Debug)]
pub struct LeaseConnection {
    client: Client,
    sessions: Vec<OpenSession>,
}

#[derive(Debug)]
struct OpenSession {
    number: u64,
    /// The id of the request that opened it, which is that of its subscription.
    request: u64,
}

impl LeaseService {
    /// Creates the service for those objects of `store` that the server keeps according to `membership`. All writes of them have to
    /// pass through `leases`.
    pub fn new(store: Arc<dyn ObjectStore>, membership: Membership, leases: Arc<Leases>) -> LeaseService {
        LeaseService { store, membership, leases }
    }

    fn open_session(
        &self,
        connection: &mut LeaseConnection,
        request: &Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Result<(), StoreError> {
        Cursor::new(&request.body).end()?;
        if connection.sessions.len() >= CONNECTION_SESSIONS_MAX {
            let text = "the connection has as many sessions with leases as it may have";
            return Err(StoreError::new(ErrorKind::Busy, text));
        }
        let opened = self.leases.open(connection.client, request.subscribe()?)?;
        connection.sessions.push(OpenSession { number: opened.session, request: request.id });
        wire::put_opened(outbox, request.id, &opened)
    }

    /// Begins to grant a lease.
    fn lease(
        &self,
        connection: &LeaseConnection,
        request: &Incoming<'_>,
    ) -> Result<BoxFuture<'static, Result<Granted, StoreError>>, StoreError> {
        let leasing = wire::get_lease(&request.body)?;
        connection.check(leasing.session)?;
        let object = &leasing.object;
        if !is_leasable(object) {
            let text = format!("object \"{object}\" is none of those that are leased");
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        if !self.membership.keeps(object) {
            let text = format!("object \"{object}\" is kept by another member of the store");
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        let (store, leases) = (self.store.clone(), self.leases.clone());
        Ok(async move { grant(&*store, &leases, leasing).await }.boxed())
    }

    fn settle_request(&self, id: u64, result: Result<Granted, StoreError>, outbox: &mut Outbox) {
        if let Err(error) = result.and_then(|granted| wire::put_leased(outbox, id, &granted)) {
            control::put_error(outbox, id, &error);
        }
    }
}

/// Grants a lease on an object, and reads the version that it has as long as that is in force.
async fn grant(
    store: &dyn ObjectStore,
    leases: &Arc<Leases>,
    leasing: Leasing,
) -> Result<Granted, StoreError> {
    let Leasing { session, number, object } = leasing;
    leases.mark(store).await?;
    if !leases.grant(session, &object, number) {
        return Ok(Granted::default());
    }
    // From here on every write waits, so this is the version until one does not have to any more.
    let read = store.apply(&object, Transaction::new().read(ReadOp::Stat)).await;
    match read {
        Ok(Outcome::Done(done)) => Ok(Granted { number, version: done.version }),
        Ok(Outcome::Refused(_)) => {
            leases.give_back(session, &[(object, number)]);
            Ok(Granted::default())
        }
        Err(error) => {
            leases.give_back(session, &[(object, number)]);
            Err(error)
        }
    }
}

impl LeaseConnection {
    /// Checks that a session is one of the connection: a request may have been meant for an earlier connection.
    fn check(&self, session: u64) -> Result<(), StoreError> {
        if self.sessions.iter().any(|open| open.number == session) {
            return Ok(());
        }
        Err(StoreError::new(ErrorKind::Invalid, "the connection has no such session with leases"))
    }
}

/// A reply that the store has not made yet.
#[derive(derive_more::Debug)]
#[debug("PendingLease")]
pub struct PendingLease(BoxFuture<'static, Result<Granted, StoreError>>);

impl Future for PendingLease {
    type Output = Result<Granted, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().0.as_mut().poll(context)
    }
}

impl Service for LeaseService {
    type Connection = LeaseConnection;
    type Pending = PendingLease;

    fn number(&self) -> u8 {
        wire::LEASE_SERVICE
    }

    fn is_awaited(&self) -> bool {
        false
    }

    fn open(&self, peer: &Peer) -> LeaseConnection {
        LeaseConnection { client: self.leases.client(peer.origin), sessions: Vec::new() }
    }

    fn handle(
        &self,
        connection: &mut LeaseConnection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<PendingLease> {
        let id = request.id;
        let done = match request.kind {
            wire::OPEN => self.open_session(connection, &request, outbox),
            wire::LEASE => match self.lease(connection, &request) {
                Err(error) => Err(error),
                Ok(mut granting) => {
                    match granting.poll_unpin(&mut Context::from_waker(Waker::noop())) {
                        Poll::Pending => return Handled::Later(PendingLease(granting)),
                        Poll::Ready(result) => self.settle_request(id, result, outbox),
                    }
                    return Handled::Uncounted;
                }
            },
            wire::GIVE_BACK => wire::get_give_back(&request.body).and_then(|giving| {
                connection.check(giving.session)?;
                self.leases.give_back(giving.session, &giving.leases);
                control::put_bare(outbox, wire::NOTED, id);
                Ok(())
            }),
            wire::RENEW => wire::get_session(&request.body).map_err(StoreError::from).and_then(|session| {
                connection.check(session)?;
                wire::put_renewed(outbox, id, self.leases.renew(session))
            }),
            wire::END => wire::get_session(&request.body).map_err(StoreError::from).and_then(|session| {
                connection.check(session)?;
                connection.sessions.retain(|open| open.number != session);
                self.leases.end(session);
                control::put_bare(outbox, wire::NOTED, id);
                Ok(())
            }),
            _ => Err(request.unsupported()),
        };
        if let Err(error) = done {
            control::put_error(outbox, id, &error);
        }
        Handled::Uncounted
    }

    fn finish(
        &self,
        _connection: &mut LeaseConnection,
        id: u64,
        result: Result<Granted, StoreError>,
        outbox: &mut Outbox,
    ) {
        self.settle_request(id, result, outbox);
    }

    fn cancelled(&self, connection: &mut LeaseConnection, id: u64) {
        // The holder has forgotten what it knew before it let go of its subscription.
        if let Some(index) = connection.sessions.iter().position(|open| open.request == id) {
            self.leases.end(connection.sessions.swap_remove(index).number);
        }
    }

    fn broken(&self, connection: &mut LeaseConnection) {
        self.ended(connection);
    }

    fn ended(&self, connection: &mut LeaseConnection) {
        connection.sessions.drain(..).for_each(|open| self.leases.part(open.number));
    }
}
