//! The rank as a service over `rpc`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::channel::oneshot;
use nacre_object::{ErrorKind, ObjectId, StoreError};
use nacre_rpc::{Handled, Incoming, Outbox, Peer, Service, control};

use super::core::{Begun, Moved, Shared};
use crate::capability::{Session, Ticket};
use crate::inode::Ino;
use crate::service::{Call, Reply};
use crate::wire;

/// The requests of one connection that may wait: each is a place in a line.
const REQUESTS_MAX: usize = 1 << 16;

/// The beginning of the ids of objects that hold sequencers. Calls about others are refused: they would make and remove what
/// is somebody else's.
pub const SEQUENCER_PREFIX: &str = "nacre/sequencers/";

/// The service of a rank.
#[derive(derive_more::Debug)]
#[debug("MetaService")]
pub struct MetaService {
    shared: Arc<Shared>,
}

/// The state that is kept for a connection.
#[derive(derive_more::Debug)]
#[debug("Connection")]
pub struct Connection {
    /// The server's own number of the connection.
    link: u64,
    /// The session that is spoken for over the connection, and the request that bound it.
    session: Option<(Session, u64)>,
}

/// A reply that is still to come. Dropping it gives the call up.
#[derive(derive_more::Debug)]
#[debug("Pending")]
pub struct Pending {
    shared: Arc<Shared>,
    ticket: Option<Ticket>,
    reply: oneshot::Receiver<Reply>,
}

impl Future for Pending {
    type Output = Option<Reply>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Reply>> {
        let polled = self.reply.poll_unpin(context).map(Result::ok);
        if polled.is_ready() {
            self.ticket = None;
        }
        polled
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.cancel(ticket);
        }
    }
}

impl MetaService {
    pub(super) fn new(shared: Arc<Shared>) -> MetaService {
        MetaService { shared }
    }

    fn take(
        &self,
        connection: &mut Connection,
        request: &Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Result<Option<Pending>, Refused> {
        let none = || StoreError::new(ErrorKind::Closed, "the connection speaks for no session");
        let done = |outbox: &mut Outbox| control::put_bare(outbox, wire::DONE, request.id);
        match request.kind {
            wire::NEXT => {
                let (id, call) = get_call(request)?;
                if let Call::Next(count) = call
                    && let Some(reply) = self.shared.next_at_once(&id, count)
                {
                    wire::put_reply(outbox, request.id, &reply);
                    return Ok(None);
                }
                self.call(connection, request.id, &id, call, outbox)
            }
            wire::ATTACH => {
                let attach = wire::get_attach(&request.body)?;
                let publisher = request.subscribe()?;
                if let Some((before, _)) = connection.session.take() {
                    self.shared.detach(connection.link, before);
                }
                match self.shared.attach(connection.link, attach, publisher)? {
                    Some(attached) => {
                        connection.session = Some((attach.session, request.id));
                        wire::put_attached(outbox, request.id, &attached);
                    }
                    None => control::put_bare(outbox, wire::LAPSED, request.id),
                }
                Ok(None)
            }
            wire::RENEW => {
                let (session, _) = connection.session.ok_or_else(none)?;
                match self.shared.renew(connection.link, session)? {
                    true => done(outbox),
                    false => control::put_bare(outbox, wire::LAPSED, request.id),
                }
                Ok(None)
            }
            wire::END => {
                let (session, _) = connection.session.take().ok_or_else(none)?;
                self.shared.end(connection.link, session);
                done(outbox);
                Ok(None)
            }
            wire::HAND_OVER => match self.shared.hand_over() {
                true => {
                    done(outbox);
                    Ok(None)
                }
                false => {
                    let text = "there is no standby that could take over, or this daemon has no authority";
                    Err(StoreError::new(ErrorKind::Invalid, text).into())
                }
            },
            _ => {
                let (id, call) = get_call(request)?;
                self.call(connection, request.id, &id, call, outbox)
            }
        }
    }

    fn call(
        &self,
        connection: &Connection,
        id: u64,
        sequencer: &ObjectId,
        call: Call,
        outbox: &mut Outbox,
    ) -> Result<Option<Pending>, Refused> {
        let session = connection.session.map(|(session, _)| session);
        match self.shared.call(connection.link, session, sequencer, call)? {
            Begun::Answered(reply) => {
                wire::put_reply(outbox, id, &reply);
                Ok(None)
            }
            Begun::Later(ticket, reply) => {
                Ok(Some(Pending { shared: self.shared.clone(), ticket: Some(ticket), reply }))
            }
        }
    }
}

fn get_call(request: &Incoming<'_>) -> Result<(ObjectId, Call), StoreError> {
    let (id, call) = wire::get_call(request.kind, &request.body)?;
    if Ino::of_state_object(&id).is_some() {
        return match call {
            Call::Create(_) | Call::Remove => {
                let text = "a sequencer of the namespace is created and removed with its inode";
                Err(StoreError::new(ErrorKind::Invalid, text))
            }
            _ => Ok((id, call)),
        };
    }
    match id.as_bytes().strip_prefix(SEQUENCER_PREFIX.as_bytes()) {
        Some(name) if !name.is_empty() => Ok((id, call)),
        _ => Err(StoreError::new(ErrorKind::Invalid, format!("object \"{id}\" cannot hold a sequencer"))),
    }
}

/// The reason why a request is not handled.
enum Refused {
    Moved(Moved),
    Error(StoreError),
}

impl From<Moved> for Refused {
    fn from(moved: Moved) -> Refused {
        Refused::Moved(moved)
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Refused {
        Refused::Error(error)
    }
}

impl From<nacre_rpc::WireError> for Refused {
    fn from(error: nacre_rpc::WireError) -> Refused {
        Refused::Error(error.into())
    }
}

impl Service for MetaService {
    type Connection = Connection;
    type Pending = Pending;

    fn number(&self) -> u8 {
        wire::META
    }

    fn requests_max(&self) -> usize {
        REQUESTS_MAX
    }

    /// A place in a line may last for as long as its holder likes.
    fn is_awaited(&self) -> bool {
        false
    }

    fn open(&self, _peer: &Peer) -> Connection {
        Connection { link: self.shared.next_link(), session: None }
    }

    fn handle(
        &self,
        connection: &mut Connection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<Self::Pending> {
        let known = (wire::RENEW.code..=wire::ASSERT.code).contains(&request.kind.code)
            && request.kind != wire::LAPSED
            || request.kind == wire::ATTACH;
        if !known {
            control::put_error(outbox, request.id, &request.unsupported());
            return Handled::Uncounted;
        }
        match self.take(connection, &request, outbox) {
            Ok(None) => {}
            Ok(Some(pending)) => return Handled::Later(pending),
            Err(Refused::Moved(Moved(addresses))) => wire::put_moved(outbox, request.id, &addresses),
            Err(Refused::Error(error)) => control::put_error(outbox, request.id, &error),
        }
        Handled::Answered
    }

    fn finish(&self, _connection: &mut Connection, id: u64, reply: Option<Reply>, outbox: &mut Outbox) {
        match reply {
            Some(reply) => wire::put_reply(outbox, id, &reply),
            None => wire::put_moved(outbox, id, &[]),
        }
    }

    fn cancelled(&self, connection: &mut Connection, id: u64) {
        // Calls are given up when their futures are dropped; what else is cancelled is a subscription.
        if let Some((session, _)) = connection.session.take_if(|(_, bound)| *bound == id) {
            self.shared.detach(connection.link, session);
        }
    }

    fn broken(&self, connection: &mut Connection) {
        self.ended(connection);
    }

    fn ended(&self, connection: &mut Connection) {
        if let Some((session, _)) = connection.session.take() {
            self.shared.detach(connection.link, session);
        }
    }
}
