//! The server side of the object service.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nacre_object::once::WRITER_BYTES;
use nacre_object::{
    ErrorKind, Lease, ObjectId, ObjectStore, Once, Outcome, Reply, StoreError, Transaction, WriteToken,
};
use nacre_rpc::{Handled, Incoming, Outbox, Peer, Service, WireError, control};
use rand::TryRngCore;

use crate::join::{self, Proof};
use crate::members::Membership;
use crate::once::{self, Attempt};
use crate::requests::{Operation, RequestCounts, RequestOutcome, Requests};
use crate::writers::Writers;
use crate::{kind, reply, reply_bytes, request};

/// The version of the protocol whose clients know nothing of members: they are served if there is only one member.
const VERSION_WITHOUT_MEMBERS: u16 = 1;

/// An object store as a service.
#[derive(derive_more::Debug)]
#[debug("StoreService")]
pub struct StoreService {
    store: Arc<dyn ObjectStore>,
    membership: Membership,
    requests: Arc<Requests>,
    writers: Writers,
}

impl StoreService {
    /// Creates the service of a store for one member. Requests are counted in `requests`.
    pub fn new(store: Arc<dyn ObjectStore>, membership: Membership, requests: Arc<Requests>) -> StoreService {
        StoreService { store, membership, requests, writers: Writers::default() }
    }

    /// Creates the service of a store that a server keeps alone, under an identity that changes with every start.
    ///
    /// # Errors
    ///
    /// `Io` if the system provides no random numbers.
    pub fn alone(store: Arc<dyn ObjectStore>) -> Result<StoreService, StoreError> {
        let mut identity = [0; 16];
        rand::rngs::OsRng.try_fill_bytes(&mut identity).map_err(|error| {
            StoreError::new(ErrorKind::Io, format!("the system gives no random numbers: {error}"))
        })?;
        Ok(StoreService::new(store, Membership::alone(identity), Arc::default()))
    }

    /// Returns the outcomes of this service's requests, counted.
    pub fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    /// Compares the peer's list of members with the server's.
    fn join(&self, connection: &mut StoreConnection, request: &Incoming<'_>, outbox: &mut Outbox) {
        let proof = match join::get_join(&request.body) {
            Ok(proof) => proof,
            Err(error) => return control::put_error(outbox, request.id, &error.into()),
        };
        connection.joined = proof == Some(Proof::of(self.membership.members()));
        let answer = match connection.joined {
            true => join::Answer::Joined(self.membership.own()),
            false => join::Answer::Members(self.membership.clone()),
        };
        join::put_answer(outbox, request.id, &answer);
    }

    /// Checks that this member keeps an object. A client that has joined asks the right member anyway; but an object
    /// kept by two members would be two objects, so a client's mistake must not cause that.
    fn check_place(&self, object: &ObjectId) -> Result<(), StoreError> {
        if self.membership.keeps(object) {
            return Ok(());
        }
        let text = format!(
            "wrong server: object \"{object}\" is kept by {}, and this is {}",
            self.membership.keeper(object),
            self.membership.name()
        );
        Err(StoreError::new(ErrorKind::Invalid, text))
    }

    /// Opens the peer's writer on this connection, after which its earlier connections apply nothing more.
    fn open_writer(&self, connection: &mut StoreConnection, request: &Incoming<'_>, outbox: &mut Outbox) {
        let opened = once::get_open(&request.body).map_err(StoreError::from).and_then(|(writer, epoch)| {
            let Some(window) = self.store.window() else { return Err(request.unsupported()) };
            connection.writer = Some((writer, self.writers.open(writer, epoch)?));
            Ok(window)
        });
        match opened {
            Ok(window) => once::put_opened(outbox, request.id, &window),
            Err(error) => control::put_error(outbox, request.id, &error),
        }
    }

    /// Decodes a request to apply a transaction, with the attempt if it is to be applied at most once.
    fn decode(
        connection: &StoreConnection,
        request: &Incoming<'_>,
    ) -> Result<(ObjectId, Transaction, Option<Once>), StoreError> {
        if request.kind == kind::APPLY {
            let (object, transaction) = request::get_apply(&request.body)?;
            return Ok((object, transaction, None));
        }
        let (Attempt { sequence, since }, rest) = once::get_attempt(&request.body)?;
        let (object, transaction) = request::get_apply(&rest)?;
        let Some((writer, lease)) = &connection.writer else {
            let text = "the client has not opened a writer on this connection";
            return Err(StoreError::new(ErrorKind::Invalid, text));
        };
        let token = WriteToken { writer: *writer, sequence };
        Ok((object, transaction, Some(Once { token, since, lease: lease.clone() })))
    }

    fn apply(
        &self,
        connection: &mut StoreConnection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<StoreReply> {
        let id = request.id;
        let (object, transaction, once) = match Self::decode(connection, &request) {
            Err(error) => {
                control::put_error(outbox, id, &error);
                return Handled::Answered;
            }
            Ok(decoded) => decoded,
        };
        let is_once = once.is_some();
        let operation = Operation::of(&transaction);
        let valid = transaction.validate().and_then(|()| reply::check_space(&transaction));
        if let Err(error) = valid.and_then(|()| self.check_place(&object)) {
            self.put_applied(connection, id, operation, is_once, Err(error), outbox);
            return Handled::Answered;
        }
        match request.reserve(reply_bytes::reply_bytes(&transaction, request.account_bytes())) {
            Ok(true) => {}
            Ok(false) => return Handled::NoCapacity(request.body),
            Err(error) => {
                self.put_applied(connection, id, operation, is_once, Err(error), outbox);
                return Handled::Answered;
            }
        }
        let reply = match once {
            None => self.store.apply(&object, transaction),
            Some(once) => self.store.apply_once(&object, transaction, once),
        };
        match reply {
            Reply::Ready(Some(result)) => {
                self.put_applied(connection, id, operation, is_once, result, outbox);
                Handled::Answered
            }
            reply => Handled::Later(StoreReply::Apply(operation, is_once, reply)),
        }
    }

    fn list(
        &self,
        connection: &mut StoreConnection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<StoreReply> {
        let (after, limit) = match request::get_list(&request.body) {
            Err(error) => {
                control::put_error(outbox, request.id, &error.into());
                return Handled::Answered;
            }
            Ok(decoded) => decoded,
        };
        match self.store.list(after.as_ref(), limit) {
            Reply::Ready(Some(result)) => {
                connection.put_listed(request.id, result, outbox);
                Handled::Answered
            }
            reply => Handled::Later(StoreReply::List(reply)),
        }
    }
}

/// The state that is kept for a connection.
#[derive(derive_more::Debug)]
#[debug("StoreConnection")]
pub struct StoreConnection {
    /// True if the peer has the same list of members, so that it asks the right server.
    joined: bool,
    tally: RequestCounts,
    /// The peer's writer, and its right to apply transactions.
    writer: Option<([u8; WRITER_BYTES], Lease)>,
}

impl StoreService {
    fn put_applied(
        &self,
        connection: &mut StoreConnection,
        id: u64,
        operation: Operation,
        is_once: bool,
        result: Result<Outcome, StoreError>,
        outbox: &mut Outbox,
    ) {
        connection.tally.count(operation, RequestOutcome::of(&result));
        let outcome = match result {
            Err(error) => return control::put_error(outbox, id, &error),
            Ok(outcome) => outcome,
        };
        let written = match is_once {
            false => reply::put_outcome(outbox, id, &outcome),
            true => {
                let position = self.store.window().map_or(0, |window| window.position);
                once::put_outcome_once(outbox, id, &outcome, position)
            }
        };
        if let Err(body_bytes) = written {
            control::put_error(outbox, id, &WireError::TooLong { body_bytes }.into());
        }
    }
}

impl StoreConnection {
    fn put_listed(&mut self, id: u64, result: Result<Vec<ObjectId>, StoreError>, outbox: &mut Outbox) {
        match result {
            Ok(objects) => {
                self.tally.count(Operation::List, RequestOutcome::Done);
                reply::put_listed(outbox, id, &objects);
            }
            Err(error) => {
                self.tally.count(Operation::List, RequestOutcome::Failed);
                control::put_error(outbox, id, &error);
            }
        }
    }
}

/// A reply that the store has not made yet.
#[derive(derive_more::Debug)]
pub enum StoreReply {
    /// The reply to a transaction; true if it is to be applied at most once.
    #[debug("Apply")]
    Apply(Operation, bool, Reply<Outcome>),
    /// A page of objects.
    #[debug("List")]
    List(Reply<Vec<ObjectId>>),
}

/// A reply that the store has made.
#[derive(derive_more::Debug)]
pub enum StoreResult {
    /// The reply to a transaction; true if it is applied at most once.
    #[debug("Apply")]
    Apply(Operation, bool, Result<Outcome, StoreError>),
    /// A page of objects.
    #[debug("List")]
    List(Result<Vec<ObjectId>, StoreError>),
}

impl Future for StoreReply {
    type Output = StoreResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<StoreResult> {
        match self.get_mut() {
            StoreReply::Apply(operation, is_once, reply) => {
                let (operation, is_once) = (*operation, *is_once);
                Pin::new(reply).poll(context).map(|result| StoreResult::Apply(operation, is_once, result))
            }
            StoreReply::List(reply) => Pin::new(reply).poll(context).map(StoreResult::List),
        }
    }
}

impl Service for StoreService {
    type Connection = StoreConnection;
    type Pending = StoreReply;

    fn number(&self) -> u8 {
        kind::OBJECT
    }

    fn control_codes(&self) -> &'static [u8] {
        const { &[kind::JOIN.code] }
    }

    /// Clients that know nothing of members are served only by a server that is the only one.
    fn serves_version(&self, version: u16) -> bool {
        version != VERSION_WITHOUT_MEMBERS || self.membership.is_alone()
    }

    fn features(&self) -> u64 {
        let repetition = if self.store.window().is_some() { once::REPETITION } else { 0 };
        repetition | request::APPEND
    }

    fn open(&self, peer: &Peer) -> StoreConnection {
        let joined = peer.version == VERSION_WITHOUT_MEMBERS;
        StoreConnection { joined, tally: RequestCounts::default(), writer: None }
    }

    fn handle(
        &self,
        connection: &mut StoreConnection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<StoreReply> {
        match request.kind {
            kind::JOIN => {
                self.join(connection, &request, outbox);
                Handled::Uncounted
            }
            kind::APPLY | kind::APPLY_ONCE | kind::LIST | kind::OPEN_WRITER if !connection.joined => {
                let text = "the client has not shown that it knows the members of this store";
                control::put_error(outbox, request.id, &StoreError::new(ErrorKind::Invalid, text));
                Handled::Answered
            }
            kind::OPEN_WRITER => {
                self.open_writer(connection, &request, outbox);
                Handled::Uncounted
            }
            kind::APPLY | kind::APPLY_ONCE => self.apply(connection, request, outbox),
            kind::LIST => self.list(connection, request, outbox),
            _ => {
                control::put_error(outbox, request.id, &request.unsupported());
                Handled::Uncounted
            }
        }
    }

    fn finish(&self, connection: &mut StoreConnection, id: u64, result: StoreResult, outbox: &mut Outbox) {
        match result {
            StoreResult::Apply(operation, is_once, result) => {
                self.put_applied(connection, id, operation, is_once, result, outbox);
            }
            StoreResult::List(result) => connection.put_listed(id, result, outbox),
        }
    }

    fn timed(&self, connection: &mut StoreConnection, latency: Duration) {
        connection.tally.timed(latency, &self.requests);
    }

    fn settle(&self, connection: &mut StoreConnection) {
        connection.tally.settle(&self.requests);
    }
}
