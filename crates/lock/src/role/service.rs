//! The lock server as a service over `rpc`.
//!
//! A call is answered at once, or by an event once its reply is there. So any number of waits may be under way without
//! holding up the calls that end them.

use std::sync::Arc;

use futures::channel::oneshot;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::{Handled, Incoming, MessageKind, Outbox, Peer, Service, control};

use super::core::{NotAttached, Shared};
use crate::message::{Reply, SessionId};
use crate::wire;

/// The service of a lock server.
#[derive(derive_more::Debug)]
#[debug("LockService")]
pub struct LockService {
    pub(super) shared: Arc<Shared>,
}

/// The state that is kept for a connection.
#[derive(derive_more::Debug)]
#[debug("LockConnection")]
pub struct LockConnection {
    /// The server's own number of the connection.
    link: u64,
    /// The session that is spoken for over the connection.
    session: Option<SessionId>,
}

impl LockService {
    fn take(
        &self,
        connection: &mut LockConnection,
        request: &Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Result<(), StoreError> {
        match request.kind {
            wire::ATTACH => self.attach(connection, request, outbox),
            _ => self.call(connection, request, outbox),
        }
    }

    fn attach(
        &self,
        connection: &mut LockConnection,
        request: &Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Result<(), StoreError> {
        let attach = wire::get_attach(&request.body)?;
        let publisher = request.subscribe()?;
        if let Some(before) = connection.session.take() {
            self.shared.detach(connection.link, before);
        }
        if !self.shared.attach(connection.link, attach, publisher) {
            let text = format!("lock session {} continues on a later connection", attach.session);
            return Err(StoreError::new(ErrorKind::Closed, text));
        }
        connection.session = Some(SessionId(attach.session));
        let mut body = Vec::with_capacity(16);
        wire::put_slot(&mut body, &self.shared.slot);
        put(outbox, wire::ATTACHED, request.id, &body);
        Ok(())
    }

    fn call(
        &self,
        connection: &mut LockConnection,
        request: &Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Result<(), StoreError> {
        let not_attached = || {
            let text = "the connection speaks for no lock session";
            StoreError::new(ErrorKind::Closed, text)
        };
        let session = connection.session.ok_or_else(not_attached)?;
        let (number, call) = wire::get_call(request.kind, &request.body)?;
        let reply = match call {
            Ok(call) => {
                let keep = |bytes| request.keep(bytes);
                self.shared.call(connection.link, session, number, call, keep)
            }
            Err(refusal) => Ok(Some(Reply::Refused(refusal))),
        };
        match reply {
            Ok(Some(reply)) => {
                let (kind, body) = wire::reply(&reply);
                put(outbox, kind, request.id, &body);
            }
            Ok(None) => control::put_bare(outbox, wire::WAITING, request.id),
            Err(NotAttached) => return Err(not_attached()),
        }
        Ok(())
    }

    fn put_number(&self, outbox: &mut Outbox, id: u64, number: u64) {
        let mut body = number.to_le_bytes().to_vec();
        wire::put_slot(&mut body, &self.shared.slot);
        put(outbox, wire::NUMBERED, id, &body);
    }
}

/// Writes a message with a body of some bytes.
fn put(outbox: &mut Outbox, kind: MessageKind, id: u64, body: &[u8]) {
    let open = outbox.begin(kind, id);
    outbox.slice(body);
    // Replies are far shorter than a frame may be.
    let _: Result<usize, usize> = outbox.end(open);
}

impl Service for LockService {
    type Connection = LockConnection;
    /// The number of a session that is being put on record.
    type Pending = oneshot::Receiver<u64>;

    fn number(&self) -> u8 {
        wire::LOCK
    }

    /// A number that nobody got is nobody's.
    fn is_awaited(&self) -> bool {
        false
    }

    fn open(&self, _peer: &Peer) -> LockConnection {
        LockConnection { link: self.shared.next_link(), session: None }
    }

    fn handle(
        &self,
        connection: &mut LockConnection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<Self::Pending> {
        match request.kind {
            wire::NUMBER => {
                if self.shared.slot.server != 0 {
                    let text = "sessions are numbered by the first of the lock servers";
                    control::put_error(outbox, request.id, &StoreError::new(ErrorKind::Invalid, text));
                    return Handled::Answered;
                }
                match self.shared.number() {
                    Ok(number) => self.put_number(outbox, request.id, number),
                    Err(later) => return Handled::Later(later),
                }
            }
            kind if kind == wire::ATTACH || (wire::OPEN.code..=wire::ASSERTED.code).contains(&kind.code) => {
                if let Err(error) = self.take(connection, &request, outbox) {
                    control::put_error(outbox, request.id, &error);
                }
            }
            _ => {
                control::put_error(outbox, request.id, &request.unsupported());
                return Handled::Uncounted;
            }
        }
        Handled::Answered
    }

    fn finish(
        &self,
        _connection: &mut LockConnection,
        id: u64,
        number: Result<u64, oneshot::Canceled>,
        outbox: &mut Outbox,
    ) {
        match number {
            Ok(number) => self.put_number(outbox, id, number),
            Err(oneshot::Canceled) => {
                let error = StoreError::new(ErrorKind::Closed, "the lock server is shutting down");
                control::put_error(outbox, id, &error);
            }
        }
    }

    fn cancelled(&self, connection: &mut LockConnection, _id: u64) {
        // The only requests that are cancelled are subscriptions and numbers; a client that ends its subscription binds
        // the session anew.
        if let Some(session) = connection.session.take() {
            self.shared.detach(connection.link, session);
        }
    }

    fn broken(&self, connection: &mut LockConnection) {
        self.ended(connection);
    }

    fn ended(&self, connection: &mut LockConnection) {
        if let Some(session) = connection.session.take() {
            self.shared.detach(connection.link, session);
        }
    }
}
