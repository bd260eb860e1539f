//! A rank with those who wait for its replies, behind one lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::channel::oneshot;
use nacre_object::{ErrorKind, ObjectId, StoreError};
use nacre_rpc::server::Publisher;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::peers::Peers;
use crate::capability::{Counts, Programs, Session, Ticket};
use crate::clock;
use crate::load::{RankLoad, Rate};
use crate::place::{Caller, Mode, Place, RankNumber, Way};
use crate::service::{ActiveRank, Call, Migrations, Output, Reply, Shown, StoreOrder};
use crate::wire::{self, Attach, Attached, Moving, Revoked};

/// The most sessions that are told of a migration before it, and the most migrations that are told of in a time: other clients are
/// redirected.
const TOLD_SESSIONS_MAX: usize = 1024;
const TOLD_MAX: u32 = 16;
const TOLD_TIME: Duration = Duration::from_secs(1);

/// The parts of the role that its connections and its thread share.
pub(super) struct Shared {
    pub core: Mutex<Core>,
    /// Wakes the role's thread.
    pub work: Notify,
    pub connections: AtomicU64,
    /// The number of the rank.
    pub rank: RankNumber,
    pub peers: Peers,
}

/// The position of a daemon.
pub(super) enum State {
    /// A standby, which takes the authority when it is asked for anything.
    Lazy,
    /// Somebody else has the authority, at these addresses.
    Standing(Vec<String>),
    /// The holder of the authority until this time, unless it is renewed.
    Active(Box<ActiveRank>, Duration),
}

/// A daemon that has no authority, and the addresses of the one that has it, if they are known.
#[derive(Debug)]
pub(super) struct Moved(pub Vec<String>);

/// The rank, its unanswered calls, and its orders that are not carried out yet.
pub(super) struct Core {
    pub state: State,
    rank: RankNumber,
    lease: Duration,
    waiters: HashMap<Ticket, oneshot::Sender<Reply>>,
    attached: HashMap<Session, Bound>,
    tickets: Ticket,
    /// Orders for the store.
    pub orders: Vec<(ObjectId, StoreOrder)>,
    /// True if the authority is wanted by somebody.
    pub wanted: bool,
    /// True if the authority is to be handed over.
    pub handing_over: bool,
    /// True if somebody stands by.
    pub standby: bool,
    /// The time until which the role's thread sleeps; none if it sleeps until it is woken.
    pub sleeps_until: Option<Duration>,
    pub takeovers: u64,
    /// The requests that were forwarded to other ranks.
    forwarded: u64,
    forwarded_rate: Rate,
    /// The migrations that sessions were told of since a time.
    told: (Duration, u32),
    /// The programs that decide about sequencers whose policy is one.
    pub programs: Option<Arc<dyn Programs>>,
    out: Vec<Output>,
}

/// The connection over which a session is spoken for.
struct Bound {
    /// The number that the client gave the connection.
    connection: u64,
    /// The server's own number of the connection.
    link: u64,
    publisher: Publisher,
}

/// The work of a rank, and its totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of the rank.
    pub rank: RankNumber,
    /// `idle`, `standby` or `active`.
    pub state: &'static str,
    /// The epoch; 0 without authority.
    pub epoch: u64,
    /// The addresses of the daemon that has the authority, if this one has not and knows it.
    pub elsewhere: Vec<String>,
    /// The lease of sessions.
    pub lease: Duration,
    /// The number of sessions.
    pub sessions: usize,
    /// The number of sequencers in memory.
    pub sequencers: usize,
    /// The positions that the rank itself handed out.
    pub positions: u64,
    /// The times that the daemon took the authority.
    pub takeovers: u64,
    /// The counts of capabilities.
    pub counts: Counts,
    /// The counts of migrations to other ranks.
    pub migrations: Migrations,
    /// The requests that wait.
    pub queue: u64,
    /// The requests that the daemon forwarded to other ranks.
    pub forwarded: u64,
}

/// The beginning of a call: answered, or under way.
pub(super) enum Begun {
    Answered(Reply),
    Later(Ticket, oneshot::Receiver<Reply>),
}

impl Core {
    pub fn new(rank: RankNumber, lease: Duration) -> Core {
        Core {
            state: State::Lazy,
            rank,
            lease,
            waiters: HashMap::new(),
            attached: HashMap::new(),
            tickets: 0,
            orders: Vec::new(),
            wanted: false,
            handing_over: false,
            standby: false,
            sleeps_until: None,
            takeovers: 0,
            forwarded: 0,
            forwarded_rate: Rate::default(),
            told: (Duration::ZERO, 0),
            programs: None,
            out: Vec::new(),
        }
    }

    /// Returns the rank if it may act now.
    pub fn rank(&mut self, now: Duration) -> Result<&mut ActiveRank, Moved> {
        match &mut self.state {
            State::Active(rank, until) if now < *until && !self.handing_over => Ok(rank),
            State::Standing(addresses) => Err(Moved(addresses.clone())),
            _ => {
                self.wanted = true;
                Err(Moved(Vec::new()))
            }
        }
    }

    /// Begins to act as a rank.
    pub fn begin(&mut self, epoch: u64, until: Duration) {
        let mut rank = ActiveRank::numbered(self.rank, epoch, self.lease);
        rank.set_programs(self.programs.clone());
        self.state = State::Active(Box::new(rank), until);
        self.takeovers += 1;
        self.handing_over = false;
    }

    /// Tells those who wait that the rank has moved once its authority is over: the store, for which they may wait, may be out
    /// of its reach for long.
    pub fn notify_waiters(&mut self, now: Duration) {
        if matches!(&self.state, State::Active(_, until) if now >= *until) {
            self.waiters.clear();
        }
    }

    /// Stops to act as a rank: whoever waits is told that it has moved.
    pub fn step_down(&mut self, addresses: Vec<String>) {
        self.state = State::Standing(addresses);
        self.waiters.clear();
        self.attached.clear();
        self.orders.clear();
        self.handing_over = false;
    }

    /// Carries out the orders of the rank. Returns the reply to the call `own`, if it is there.
    fn carry(&mut self, own: Option<Ticket>) -> Option<Reply> {
        let mut answer = None;
        // Without authority nothing is told that another rank may have contradicted.
        let acts = matches!(&self.state, State::Active(_, until) if clock::now() < *until);
        for output in std::mem::take(&mut self.out) {
            match output {
                Output::Reply(ticket, reply) if Some(ticket) == own => answer = Some(reply),
                Output::Reply(ticket, reply) => {
                    if let Some(waiter) = self.waiters.remove(&ticket).filter(|_| acts) {
                        // Whoever waited may be gone. What it was granted goes with its session, or when it asks anew.
                        let _ = waiter.send(reply);
                    }
                }
                Output::Revoke { session, id, grant, quota } => {
                    if let Some(bound) = self.attached.get(&session) {
                        // Without a connection it is told when it comes back.
                        bound.publisher.push(wire::revoked(&Revoked { grant, quota, id }));
                    }
                }
                Output::Lapsed(session) => _ = self.attached.remove(&session),
                Output::Store(id, order) => self.orders.push((id, order)),
            }
        }
        answer
    }

    /// Acts on the rank if this daemon is one, whether it may answer anybody now or not, and carries out its orders.
    pub fn with_rank(&mut self, act: impl FnOnce(&mut ActiveRank, &mut Vec<Output>)) {
        let mut out = std::mem::take(&mut self.out);
        if let State::Active(rank, _) = &mut self.state {
            act(rank, &mut out);
        }
        self.out = out;
        self.carry(None);
    }

    /// Returns the load, with all sequencers in no order; that of a daemon without authority is none.
    fn loads(&self, now: Duration) -> RankLoad {
        match &self.state {
            State::Active(rank, until) if now < *until => {
                let forwarded_per_second = self.forwarded_rate.per_second(now);
                RankLoad { forwarded_per_second, ..rank.loads(now) }
            }
            _ => RankLoad { rank: self.rank, ..RankLoad::default() },
        }
    }

    /// Returns up to `limit` migrations away from the rank that are under way.
    pub fn migrating(&self, now: Duration, limit: usize) -> Vec<(ObjectId, RankNumber, Duration)> {
        match &self.state {
            State::Active(rank, _) => rank.migrating(now, limit),
            _ => Vec::new(),
        }
    }

    pub fn list(&self, limit: usize) -> Vec<(ObjectId, Shown)> {
        match &self.state {
            State::Active(rank, _) => rank.list(limit),
            _ => Vec::new(),
        }
    }
}

impl Shared {
    /// Wakes the role's thread if there is something for it to do earlier than it knows.
    fn wake(&self, core: &Core) {
        let due = match &core.state {
            State::Active(rank, _) => rank.next_deadline(),
            _ => None,
        };
        let earlier = due.is_some_and(|due| core.sleeps_until.is_none_or(|until| due < until));
        if earlier || core.wanted || core.handing_over || !core.orders.is_empty() {
            self.work.notify_one();
        }
    }

    /// Returns the load, with that of the `limit` busiest sequencers; that of a daemon without authority is none.
    pub fn load(&self, limit: usize) -> RankLoad {
        let loads = self.core.lock().loads(clock::now());
        // Requests do not wait for the order of what may be many.
        loads.busiest(limit)
    }

    /// Handles a request for positions that can be answered at once.
    #[inline]
    pub fn next_at_once(&self, id: &ObjectId, count: u64) -> Option<Reply> {
        let now = clock::now();
        let mut core = self.core.lock();
        let core = &mut *core;
        let State::Active(rank, until) = &mut core.state else { return None };
        if now >= *until || core.handing_over {
            return None;
        }
        let reply = rank.next_at_once(now, id, count, &mut core.out)?;
        if !core.out.is_empty() {
            core.carry(None);
            self.work.notify_one();
        }
        Some(reply)
    }

    /// Handles a call.
    pub fn call(
        &self,
        link: u64,
        session: Option<Session>,
        id: &ObjectId,
        call: Call,
    ) -> Result<Begun, Moved> {
        let now = clock::now();
        let mut core = self.core.lock();
        let core = &mut *core;
        // A session whose client goes on over another connection is not spoken for over this one.
        let session =
            session.filter(|session| core.attached.get(session).is_some_and(|bound| bound.link == link));
        core.tickets += 1;
        let ticket = core.tickets;
        let mut out = std::mem::take(&mut core.out);
        let called = core.rank(now).map(|rank| {
            // A lease is over when it is, not when somebody looks.
            rank.tick(now, &mut out);
            rank.call(now, ticket, session, id, call, &mut out);
        });
        core.out = out;
        if let Err(moved) = called {
            self.wake(core);
            return Err(moved);
        }
        let answer = core.carry(Some(ticket));
        let begun = match answer {
            Some(reply) => Begun::Answered(reply),
            None => {
                let (sender, receiver) = oneshot::channel();
                core.waiters.insert(ticket, sender);
                Begun::Later(ticket, receiver)
            }
        };
        self.wake(core);
        Ok(begun)
    }

    /// Gives up a call that was not answered.
    pub fn cancel(&self, ticket: Ticket) {
        let now = clock::now();
        let mut core = self.core.lock();
        core.waiters.remove(&ticket);
        core.with_rank(|rank, out| rank.cancel(now, ticket, out));
        self.wake(&core);
    }

    /// Binds a session to a connection. `None` if it goes on over a later connection already.
    pub fn attach(&self, link: u64, attach: Attach, publisher: Publisher) -> Result<Option<Attached>, Moved> {
        let now = clock::now();
        let mut core = self.core.lock();
        let known = core.attached.get(&attach.session);
        if known.is_some_and(|known| known.connection > attach.connection) {
            return Ok(None);
        }
        let mut renewed = false;
        let attached = core.rank(now).map(|rank| {
            renewed = rank.renew(now, attach.session);
            Attached { epoch: rank.epoch(), lease: rank.lease() }
        });
        if attached.is_ok() && renewed {
            core.attached.insert(attach.session, Bound { connection: attach.connection, link, publisher });
        }
        self.wake(&core);
        attached.map(|attached| renewed.then_some(attached))
    }

    /// Renews a session's lease; false if it is not renewed any more, or not spoken for over this connection.
    pub fn renew(&self, link: u64, session: Session) -> Result<bool, Moved> {
        let now = clock::now();
        let mut core = self.core.lock();
        let bound = core.attached.get(&session).is_some_and(|bound| bound.link == link);
        let rank = core.rank(now)?;
        Ok(bound && rank.has_session(session) && rank.renew(now, session))
    }

    /// Ends a session.
    pub fn end(&self, link: u64, session: Session) {
        let now = clock::now();
        let mut core = self.core.lock();
        if core.attached.get(&session).is_some_and(|bound| bound.link == link) {
            core.attached.remove(&session);
            core.with_rank(|rank, out| rank.end(now, session, out));
        }
        self.wake(&core);
    }

    /// Frees a session of its connection.
    pub fn detach(&self, link: u64, session: Session) {
        let mut core = self.core.lock();
        if core.attached.get(&session).is_some_and(|bound| bound.link == link) {
            core.attached.remove(&session);
        }
    }

    /// Begins to hand the authority over, if this daemon has it and somebody stands by.
    pub fn hand_over(&self) -> bool {
        let mut core = self.core.lock();
        let may = matches!(core.state, State::Active(..)) && core.standby;
        core.handing_over |= may;
        self.wake(&core);
        may
    }

    /// Returns what becomes of a call that this rank has no authority for.
    pub fn way(&self, place: Place, caller: Caller, client: u64, call: &Call) -> Way {
        // A migration is for whoever has the authority, and its client follows.
        let caller = if let Call::Move(..) = call { Caller::Rank } else { caller };
        place.way(self.rank, caller, client)
    }

    /// Makes a call at another rank for a client. Returns its reply; `None` if the client is to ask again.
    pub async fn forward(&self, rank: RankNumber, id: &ObjectId, call: Call) -> Option<Reply> {
        match call {
            // Nothing is cached by way of another rank: the grant would be that rank's, and not known to the client's session.
            Call::Acquire => return Some(Reply::NotCached),
            Call::Extend(_) | Call::Release(..) | Call::Assert(_) => return Some(Reply::NotHeld),
            _ => {}
        }
        let sent_at = clock::now();
        {
            let mut core = self.core.lock();
            core.forwarded += 1;
            core.forwarded_rate.count(sent_at);
        }
        let reply = self.peers.call(rank, id, call).await;
        if let State::Active(active, _) = &mut self.core.lock().state {
            match &reply {
                Ok(Reply::Elsewhere(_)) => active.forget(id),
                Ok(_) => active.confirm(id, rank, sent_at),
                Err(_) => {}
            }
        }
        match reply {
            Ok(Reply::Elsewhere(_)) => None,
            Ok(Reply::Positions { first, .. }) => Some(Reply::Positions { first, caches: false }),
            Ok(reply) => Some(reply),
            Err(error) => {
                tracing::warn!("a request for \"{id}\" was not forwarded to metadata rank {rank}: {error}");
                None
            }
        }
    }

    /// Tells sessions that a sequencer is about to move, so that those who use it begin one with the other rank before they need it.
    fn tell(&self, id: &ObjectId, to: RankNumber, mode: Mode) {
        let (now, mut core) = (clock::now(), self.core.lock());
        if now >= core.told.0 + TOLD_TIME {
            core.told = (now, 0);
        }
        if mode == Mode::Proxy || core.told.1 >= TOLD_MAX || core.attached.len() > TOLD_SESSIONS_MAX {
            return;
        }
        core.told.1 += 1;
        let moving = wire::moving(&Moving { to, mode, id: id.clone() });
        for bound in core.attached.values() {
            bound.publisher.push(moving.clone());
        }
    }

    /// Tells another rank that a sequencer is its own now. If that does not reach it, it learns of it by the first request.
    pub async fn expect(&self, rank: RankNumber, id: &ObjectId) {
        if let Err(error) = self.peers.call(rank, id, Call::Expect).await {
            tracing::debug!("metadata rank {rank} was not told that it has \"{id}\": {error}");
        }
    }

    /// Moves a sequencer to another rank. Returns the reply when the store has it.
    ///
    /// # Errors
    /// `Unavailable` if one of the ranks does not answer, `Invalid` if there is none. A migration that has begun goes on all the
    /// same.
    pub async fn migrate(&self, id: &ObjectId, to: RankNumber, mode: Mode) -> Result<Reply, StoreError> {
        let gone = || {
            let text = format!("this daemon is not metadata rank {} at present", self.rank);
            StoreError::new(ErrorKind::Unavailable, text)
        };
        if to != self.rank {
            // Looked for before anything waits for it.
            self.peers.reach(to).await?;
            // Clients connect to it while it is asked once more, and while the record is written.
            self.tell(id, to, mode);
            self.peers.answers(to).await?;
        }
        match self.call(0, None, id, Call::Move(to, mode)) {
            Ok(Begun::Answered(reply)) => Ok(reply),
            Ok(Begun::Later(_, reply)) => reply.await.map_err(|_| gone()),
            Err(Moved(_)) => Err(gone()),
        }
    }

    pub fn next_link(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub fn totals(&self) -> Totals {
        let core = self.core.lock();
        let (lease, takeovers, forwarded) = (core.lease, core.takeovers, core.forwarded);
        let totals = Totals { rank: core.rank, lease, takeovers, forwarded, ..Totals::default() };
        match &core.state {
            State::Lazy => Totals { state: "idle", ..totals },
            State::Standing(addresses) => Totals { state: "standby", elsewhere: addresses.clone(), ..totals },
            State::Active(rank, _) => Totals {
                state: "active",
                epoch: rank.epoch(),
                sessions: rank.sessions(),
                sequencers: rank.sequencers(),
                positions: rank.positions(),
                counts: rank.counts(),
                migrations: rank.migrations(),
                queue: rank.queue(),
                ..totals
            },
        }
    }
}
