//! The server side of the service.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::future::{BoxFuture, FutureExt, join_all};
use nacre_object::{
    Answer, Done, ErrorKind, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
};
use nacre_rpc::{Cursor, Handled, Incoming, Outbox, Peer, Service, control};

use super::hold::Leases;
use super::is_leasable;
use super::suspension::Client;
use super::wire::{self, Granted, Leasing, Reading};
use crate::members::Membership;

/// The maximum number of sessions of a connection.
const CONNECTION_SESSIONS_MAX: usize = 16;
/// The maximum number of bytes of the answers to one request, about.
const ANSWERED_BYTES_MAX: usize = 256 << 10;
/// The bytes that an answer takes besides its value, at most.
const ANSWER_BYTES: usize = 64;

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
    fn lease(&self, connection: &LeaseConnection, request: &Incoming<'_>) -> Result<Granting, StoreError> {
        let leasing = wire::get_lease(&request.body)?;
        connection.check(leasing.session)?;
        self.check_object(&leasing.object)?;
        let (store, leases) = (self.store.clone(), self.leases.clone());
        Ok(async move { grant(&*store, &leases, leasing).await.map(LeaseReply::Granted) }.boxed())
    }

    /// Begins to lease several objects and to read them.
    fn read(&self, connection: &LeaseConnection, request: &Incoming<'_>) -> Result<Granting, StoreError> {
        let reading = wire::get_reading(&request.body)?;
        connection.check(reading.session)?;
        reading.objects.iter().try_for_each(|object| self.check_object(object))?;
        let (store, leases) = (self.store.clone(), self.leases.clone());
        Ok(async move { read_leased(&*store, &leases, reading).await.map(LeaseReply::Read) }.boxed())
    }

    /// Checks that an object is one of those that this server leases.
    fn check_object(&self, object: &ObjectId) -> Result<(), StoreError> {
        if !is_leasable(object) {
            let text = format!("object \"{object}\" is none of those that are leased");
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        if !self.membership.keeps(object) {
            let text = format!("object \"{object}\" is kept by another member of the store");
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        Ok(())
    }

    /// Answers a request, or leaves that to a future.
    fn begin(
        &self,
        id: u64,
        granting: Result<Granting, StoreError>,
        outbox: &mut Outbox,
    ) -> Handled<PendingLease> {
        let result = match granting {
            Err(error) => Err(error),
            Ok(mut granting) => match granting.poll_unpin(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => return Handled::Later(PendingLease(granting)),
                Poll::Ready(result) => result,
            },
        };
        self.settle_request(id, result, outbox);
        Handled::Uncounted
    }

    fn settle_request(&self, id: u64, result: Result<LeaseReply, StoreError>, outbox: &mut Outbox) {
        let written = result.and_then(|reply| match reply {
            LeaseReply::Granted(granted) => wire::put_leased(outbox, id, &granted),
            LeaseReply::Read(answered) => wire::put_answered(outbox, id, &answered),
        });
        if let Err(error) = written {
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

/// Leases several objects and reads each of them as it is as long as the lease is in force. `None` where no lease is granted, or where
/// the answers would be too long together.
async fn read_leased(
    store: &dyn ObjectStore,
    leases: &Arc<Leases>,
    reading: Reading,
) -> Result<Vec<Option<Done>>, StoreError> {
    let Reading { session, number, reads, objects } = reading;
    leases.mark(store).await?;
    let reads = &reads;
    // The objects first: behind the last of them there need be no further number.
    let read = objects.iter().cloned().zip(number..).map(|(object, number)| async move {
        if !leases.grant(session, &object, number) {
            return None;
        }
        // From here on every write waits, as for a single lease.
        let transaction = Transaction { reads: reads.clone(), ..Transaction::default() };
        match store.apply(&object, transaction).await {
            Ok(Outcome::Done(done)) => Some(done),
            Ok(Outcome::Refused(_)) | Err(_) => None,
        }
    });
    let mut answered = join_all(read).await;
    let (mut bytes, mut unread) = (0, Vec::new());
    for ((object, number), done) in objects.into_iter().zip(number..).zip(&mut answered) {
        // One that is too long leaves room for those behind it.
        let further = done.as_ref().map_or(0, answer_bytes);
        match bytes + further <= ANSWERED_BYTES_MAX {
            true => bytes += further,
            false => *done = None,
        }
        if done.is_none() {
            unread.push((object, number));
        }
    }
    // Those that were not granted among them, which changes nothing.
    leases.give_back(session, &unread);
    Ok(answered)
}

/// Returns the bytes that answers about single keys take in a reply, about.
fn answer_bytes(done: &Done) -> usize {
    let value_bytes = |answer: &Answer| match answer {
        Answer::Value(Some(value)) => value.len(),
        Answer::VersionedValue(Some(value)) => value.value.len(),
        _ => 0,
    };
    done.answers.iter().map(|answer| ANSWER_BYTES + value_bytes(answer)).sum()
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

/// The future of a reply.
type Granting = BoxFuture<'static, Result<LeaseReply, StoreError>>;

/// A reply to a request for leases.
#[derive(Debug)]
pub enum LeaseReply {
    /// A lease, or none.
    Granted(Granted),
    /// The answers of several objects, of those that are leased.
    Read(Vec<Option<Done>>),
}

/// A reply that the store has not made yet.
#[derive(derive_more::Debug)]
#[debug("PendingLease")]
pub struct PendingLease(Granting);

impl Future for PendingLease {
    type Output = Result<LeaseReply, StoreError>;

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
            wire::LEASE => return self.begin(id, self.lease(connection, &request), outbox),
            wire::READ => match request.reserve(ANSWERED_BYTES_MAX) {
                Ok(true) => return self.begin(id, self.read(connection, &request), outbox),
                Ok(false) => return Handled::NoCapacity(request.body),
                Err(error) => Err(error),
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
        result: Result<LeaseReply, StoreError>,
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
