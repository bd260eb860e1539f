//! The rank as a service over `rpc`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::BoxFuture;
use nacre_object::{ErrorKind, ObjectId, StoreError};
use nacre_rpc::{Handled, Incoming, Outbox, Peer, Service, control};

use super::core::{Begun, Moved, Shared};
use crate::capability::{Session, Ticket};
use crate::inode::Ino;
use crate::place::{Caller, Place, RANK_MAX, RankNumber, Way};
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
    /// The rank that the other end means.
    meant: RankNumber,
    /// The other end, and the number that it has drawn.
    caller: Caller,
    client: u64,
}

/// A reply that is still to come. Dropping it gives the call up.
#[derive(derive_more::Debug)]
#[debug("Pending")]
pub struct Pending {
    shared: Arc<Shared>,
    state: PendingState,
}

/// The progress of a reply that is still to come.
enum PendingState {
    /// The rank will answer.
    Here(WaitingCall),
    /// Another rank will, or the reply takes more than the rank.
    Elsewhere(BoxFuture<'static, Result<Option<Reply>, StoreError>>),
}

/// A call that the rank has not answered yet.
struct WaitingCall {
    ticket: Option<Ticket>,
    reply: oneshot::Receiver<Reply>,
    caller: Caller,
    client: u64,
    id: ObjectId,
    call: Call,
}

impl Future for Pending {
    type Output = Result<Option<Reply>, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                PendingState::Here(waiting) => {
                    let reply = std::task::ready!(waiting.reply.poll_unpin(context)).ok();
                    waiting.ticket = None;
                    let Some(Reply::Elsewhere(place)) = reply else { return Poll::Ready(Ok(reply)) };
                    let (caller, client, call) = (waiting.caller, waiting.client, waiting.call);
                    match this.shared.way(place, caller, client, &call) {
                        Way::Redirect(rank) => {
                            return Poll::Ready(Ok(Some(Reply::Elsewhere(Place { rank, ..place }))));
                        }
                        Way::Again => return Poll::Ready(Ok(again(&this.shared, caller))),
                        Way::Forward(rank) => {
                            let id = waiting.id.clone();
                            let future = forward(this.shared.clone(), rank, caller, id, call);
                            this.state = PendingState::Elsewhere(future);
                        }
                    }
                }
                PendingState::Elsewhere(future) => return future.poll_unpin(context),
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let PendingState::Here(WaitingCall { ticket: Some(ticket), .. }) = &self.state {
            self.shared.cancel(*ticket);
        }
    }
}

/// Returns the reply of another rank to a call.
fn forward(
    shared: Arc<Shared>,
    rank: RankNumber,
    caller: Caller,
    id: ObjectId,
    call: Call,
) -> BoxFuture<'static, Result<Option<Reply>, StoreError>> {
    Box::pin(async move {
        let reply = shared.forward(rank, &id, call).await;
        Ok::<_, StoreError>(reply.or_else(|| again(&shared, caller)))
    })
}

/// Returns the reply by which a caller asks this rank again; `None` for one that knows no ranks, and binds its session anew
/// before.
fn again(shared: &Shared, caller: Caller) -> Option<Reply> {
    (caller != Caller::Old).then_some(Reply::Elsewhere(Place { rank: shared.rank, ..Place::default() }))
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
        let is_meant = connection.meant == self.shared.rank;
        match request.kind {
            wire::INTRODUCE => {
                let introduction = wire::get_introduction(&request.body)?;
                (connection.meant, connection.caller) = (introduction.rank, introduction.caller);
                connection.client = introduction.client;
                done(outbox);
                Ok(None)
            }
            // A session is one with a rank, and this daemon may act for another one.
            wire::ATTACH | wire::HAND_OVER | wire::LOAD if !is_meant => Err(Moved(Vec::new()).into()),
            wire::LOAD => {
                let load = self.shared.load(wire::LOADED_MAX);
                wire::put_load(outbox, request.id, &load);
                Ok(None)
            }
            wire::MOVE => {
                let (id, call) = get_call(request)?;
                let Call::Move(to, mode) = call else { return Err(request.unsupported().into()) };
                if to > RANK_MAX {
                    let text = format!("metadata rank {to}; ranks are numbered 0 to {RANK_MAX}");
                    return Err(StoreError::new(ErrorKind::Invalid, text).into());
                }
                let shared = self.shared.clone();
                let moved = async move { Ok::<_, StoreError>(Some(shared.migrate(&id, to, mode).await?)) };
                let state = PendingState::Elsewhere(Box::pin(moved));
                Ok(Some(Pending { shared: self.shared.clone(), state }))
            }
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
        let (caller, client) = (connection.caller, connection.client);
        let reply = match self.shared.call(connection.link, session, sequencer, call)? {
            Begun::Answered(reply) => reply,
            Begun::Later(ticket, reply) => {
                let (ticket, id) = (Some(ticket), sequencer.clone());
                let state = PendingState::Here(WaitingCall { ticket, reply, caller, client, id, call });
                return Ok(Some(Pending { shared: self.shared.clone(), state }));
            }
        };
        let reply = match reply {
            Reply::Elsewhere(place) => match self.shared.way(place, caller, client, &call) {
                Way::Redirect(rank) => Reply::Elsewhere(Place { rank, ..place }),
                Way::Again => again(&self.shared, caller).ok_or(Moved(Vec::new()))?,
                Way::Forward(rank) => {
                    let future = forward(self.shared.clone(), rank, caller, sequencer.clone(), call);
                    let state = PendingState::Elsewhere(future);
                    return Ok(Some(Pending { shared: self.shared.clone(), state }));
                }
            },
            reply => reply,
        };
        wire::put_reply(outbox, id, &reply);
        Ok(None)
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
    match is_sequencer(&id) {
        true => Ok((id, call)),
        false => Err(StoreError::new(ErrorKind::Invalid, format!("object \"{id}\" cannot hold a sequencer"))),
    }
}

/// Returns whether an object may hold a sequencer: one of a name, or one of the namespace.
pub(super) fn is_sequencer(id: &ObjectId) -> bool {
    let name = id.as_bytes().strip_prefix(SEQUENCER_PREFIX.as_bytes());
    name.is_some_and(|name| !name.is_empty()) || Ino::of_state_object(id).is_some()
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
        Connection { link: self.shared.next_link(), session: None, meant: 0, caller: Caller::Old, client: 0 }
    }

    fn handle(
        &self,
        connection: &mut Connection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<Self::Pending> {
        let known = (wire::RENEW.code..=wire::MOVE.code).contains(&request.kind.code)
            && request.kind != wire::LAPSED
            || matches!(request.kind, wire::ATTACH | wire::LOAD | wire::EXPECT);
        if !known {
            control::put_error(outbox, request.id, &request.unsupported());
            return Handled::Uncounted;
        }
        match self.take(connection, &request, outbox) {
            // It comes with each connection, and asks for nothing.
            Ok(None) if request.kind == wire::INTRODUCE => return Handled::Uncounted,
            Ok(None) => {}
            Ok(Some(pending)) => return Handled::Later(pending),
            Err(Refused::Moved(Moved(addresses))) => wire::put_moved(outbox, request.id, &addresses),
            Err(Refused::Error(error)) => control::put_error(outbox, request.id, &error),
        }
        Handled::Answered
    }

    fn finish(
        &self,
        _connection: &mut Connection,
        id: u64,
        reply: Result<Option<Reply>, StoreError>,
        outbox: &mut Outbox,
    ) {
        match reply {
            Ok(Some(reply)) => wire::put_reply(outbox, id, &reply),
            Ok(None) => wire::put_moved(outbox, id, &[]),
            Err(error) => control::put_error(outbox, id, &error),
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
