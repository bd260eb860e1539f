//! A sequencer as a client uses it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use nacre_object::{ErrorKind, ObjectId, StoreError};
use parking_lot::Mutex;

use super::cache::Cache;
use super::call::{self, CallRequest, Lost, RankRoute, RetryBudget};
use super::{Inner, Ranks, Route, Session};
use crate::capability::{Grant, Policy};
use crate::place::{Mode, RankNumber};
use crate::service::{Call, Reply, Shown};

/// A sequencer: a tail from which all its clients take positions, each of them once.
///
/// Positions of one handle ascend. Those of different clients ascend in the order in which they were asked for one after the
/// other, as long as leases hold. After a crash positions may be missing, and none is there twice.
#[derive(Clone, derive_more::Debug)]
#[debug("Sequencer")]
pub struct Sequencer {
    pub(super) session: Session,
    pub(super) state: std::sync::Arc<State>,
}

/// Counts of a sequencer in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The grants that this process had.
    pub grants: u64,
    /// The times that it was asked for the sequencer.
    pub revocations: u64,
    /// The round trips for positions.
    pub round_trips: u64,
}

/// The state of a sequencer that the handles of a session share.
pub(super) struct State {
    pub id: ObjectId,
    /// The rank that is asked.
    rank: AtomicU32,
    cache: Cache,
    hold: Mutex<Hold>,
    /// Taken by whoever asks the rank for a grant or for more positions.
    turn: tokio::sync::Mutex<()>,
    /// True once the rank has said that it is not to be cached.
    round_trip: AtomicBool,
    grants: AtomicU64,
    revocations: AtomicU64,
    round_trips: AtomicU64,
}

#[derive(Default)]
struct Hold {
    held: Option<Held>,
    /// The rank that is asked for a grant, while one is.
    asking: Option<RankNumber>,
    /// The grant that that rank asked back before it was known, and its quota.
    early: Option<(Grant, Option<u64>)>,
    /// The greatest bound of what was ever lent.
    bound_max: u64,
}

#[derive(Clone, Copy)]
struct Held {
    /// The rank that granted it.
    rank: RankNumber,
    grant: Grant,
    /// The tail at the time of the grant.
    first: u64,
    /// The bound of what is lent.
    bound: u64,
    /// True if it is to be given back when the bound of the quota is reached.
    ending: bool,
}

impl State {
    pub fn new(id: ObjectId, rank: RankNumber) -> State {
        State {
            id,
            rank: AtomicU32::new(rank),
            cache: Cache::new(),
            hold: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
            round_trip: AtomicBool::new(false),
            grants: AtomicU64::new(0),
            revocations: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
        }
    }

    /// Returns the rank that is to be asked.
    pub fn rank(&self) -> RankNumber {
        self.rank.load(Ordering::Relaxed)
    }

    /// Asks another rank from now on.
    pub fn turn_to(&self, rank: RankNumber) {
        if self.rank.swap(rank, Ordering::Relaxed) != rank {
            // That one may grant it.
            self.round_trip.store(false, Ordering::Relaxed);
        }
    }

    /// Returns the grant by a rank, if it is held by one.
    pub fn grant(&self, rank: RankNumber) -> Option<Grant> {
        self.hold.lock().held.filter(|held| held.rank == rank).map(|held| held.grant)
    }

    /// Takes in that the session with a rank holds it no longer.
    pub fn drop_hold(&self, rank: RankNumber) {
        let mut hold = self.hold.lock();
        if hold.held.is_some_and(|held| held.rank == rank) {
            self.cache.close();
            hold.held = None;
        }
    }

    /// Takes in that a grant was asserted, and its present number, or that it is not held any more. Its positions stay those
    /// that it had.
    pub fn asserted(&self, route: &Route, before: Grant, granted: Option<Grant>) {
        let mut hold = self.hold.lock();
        let held = hold.held.filter(|held| held.rank == route.rank && held.grant == before);
        match (held, granted) {
            (Some(held), Some(grant)) => hold.held = Some(Held { grant, ..held }),
            (Some(_), None) => {
                self.cache.close();
                hold.held = None;
            }
            (None, _) => {}
        }
    }

    /// Takes in that the rank asks for it. Gives it back over the link if that is to be done now.
    pub fn revoked(&self, route: &Route, grant: Grant, quota: Option<u64>) {
        self.revocations.fetch_add(1, Ordering::Relaxed);
        let mut hold = self.hold.lock();
        match hold.held.filter(|held| held.rank == route.rank) {
            Some(held) if held.grant == grant => self.end(&mut hold, held, quota, route),
            // It was given back before: what the rank had asked for crossed it.
            Some(held) if grant < held.grant => {}
            _ if hold.asking == Some(route.rank) => hold.early = Some((grant, quota)),
            // A grant that was never heard of is not used.
            held => {
                if held.is_some() {
                    self.cache.close();
                    hold.held = None;
                }
                submit(route, &self.id, Call::Release(grant, u64::MAX));
            }
        }
    }

    /// Gives it back, at once or when the quota is used.
    fn end(&self, hold: &mut Hold, held: Held, quota: Option<u64>, route: &Route) {
        let bound = quota.map(|quota| held.first.saturating_add(quota).min(held.bound));
        match (bound, self.cache.tail()) {
            (Some(bound), Some(tail)) if tail < bound => {
                self.cache.bind(bound);
                hold.held = Some(Held { ending: true, ..held });
            }
            _ => self.give_back(hold, held, route),
        }
    }

    fn give_back(&self, hold: &mut Hold, held: Held, route: &Route) {
        let tail = self.cache.close().map_or(held.bound, |tail| tail.min(held.bound));
        // On its way before anything else is asked for: else the rank would take the sequencer for lost.
        submit(route, &self.id, Call::Release(held.grant, tail));
        hold.held = None;
    }

    /// Gives it back because the session ends.
    pub fn finish(&self, route: &Route) {
        let mut hold = self.hold.lock();
        if let Some(held) = hold.held.filter(|held| held.rank == route.rank) {
            self.give_back(&mut hold, held, route);
        }
    }

    /// Takes positions, of a new grant for whoever asked for it. Returns the first, or none if there are not so many, or if
    /// the binding over which it was asked for is over: the lease may be too, since a caller takes its reply when it likes.
    fn granted(
        &self,
        inner: &Inner,
        route: &Route,
        (grant, first, bound): (Grant, u64, u64),
        count: u64,
    ) -> Option<u64> {
        let mut hold = self.hold.lock();
        // The background ends a binding before it drops or asserts what is held, which takes the lock.
        if !inner.is_bound(route) {
            return None;
        }
        self.grants.fetch_add(1, Ordering::Relaxed);
        let held = Held { rank: route.rank, grant, first, bound, ending: false };
        let own = (bound - first >= count).then_some(first);
        // A rank that has got it since may lend less, from the tail on at which the cache was closed. That tail is skipped:
        // whoever has read it with the bound of before takes nothing by it.
        let skipped = u64::from(bound < hold.bound_max && first < bound);
        hold.bound_max = hold.bound_max.max(bound);
        self.cache.open(first + own.map_or(skipped, |_| count), bound);
        hold.held = Some(held);
        hold.asking = None;
        if let Some((early, quota)) = hold.early.take()
            && early == grant
        {
            self.end(&mut hold, held, quota, route);
        }
        own
    }

    fn extended(&self, route: &Route, grant: Grant, bound: u64) {
        let mut hold = self.hold.lock();
        if let Some(held) = &mut hold.held
            && held.rank == route.rank
            && held.grant == grant
        {
            held.bound = held.bound.max(bound);
            if !held.ending {
                self.cache.bind(held.bound);
            }
            hold.bound_max = hold.bound_max.max(bound);
        }
    }
}

/// Sends a call whose reply nobody needs.
fn submit(route: &Route, id: &ObjectId, call: Call) {
    let request = CallRequest { id: id.clone(), call };
    let call = nacre_rpc::client::Call::start(route.link.clone(), request);
    // It is under way, and has no one to be cancelled for.
    drop(call);
}

/// Marks that a grant is asked for, until it is dropped.
struct Asking<'a> {
    state: &'a State,
    route: &'a Route,
}

impl<'a> Asking<'a> {
    fn begin(state: &'a State, route: &'a Route) -> Asking<'a> {
        let mut hold = state.hold.lock();
        (hold.asking, hold.early) = (Some(route.rank), None);
        Asking { state, route }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut hold = self.state.hold.lock();
        hold.asking = None;
        // It was granted and asked back, and the caller did not stay to see either.
        if let Some((grant, _)) = hold.early.take() {
            submit(self.route, &self.state.id, Call::Release(grant, u64::MAX));
        }
    }
}

impl Sequencer {
    /// Returns the next position.
    ///
    /// # Errors
    /// As [`Sequencer::next_many`].
    #[inline]
    pub async fn next(&self) -> Result<u64, StoreError> {
        self.next_many(1).await
    }

    /// Returns the first of the next `count` positions, at least one, which are in a row.
    ///
    /// # Errors
    /// `Invalid` if there is no such sequencer or the count is none, `OutOfSpace` if it has not so many positions left,
    /// `Unavailable` if no rank answers.
    #[inline]
    pub async fn next_many(&self, count: u64) -> Result<u64, StoreError> {
        match self.try_next_many(count) {
            Some(first) => Ok(first),
            None => self.ask(count).await,
        }
    }

    /// Returns the next position if that needs nobody else: the sequencer is granted to this process.
    #[inline]
    pub fn try_next(&self) -> Option<u64> {
        self.state.cache.take(1)
    }

    /// Returns the first of the next positions, at least one, if that needs nobody else.
    #[inline]
    pub fn try_next_many(&self, count: u64) -> Option<u64> {
        if count == 0 { None } else { self.state.cache.take(count) }
    }

    /// Returns the tail: the position that is handed out next.
    ///
    /// # Errors
    /// `Invalid` if there is no such sequencer, `Unavailable` if no rank answers.
    pub async fn read(&self) -> Result<u64, StoreError> {
        if let Some(tail) = self.state.cache.tail() {
            return Ok(tail);
        }
        match call::call(self.ranks(), &self.state, Call::Read).await? {
            Reply::Positions { first, .. } => Ok(first),
            reply => Err(self.refused(reply)),
        }
    }

    /// Makes the sequencer.
    ///
    /// # Errors
    /// `Busy` if there is one, `Unavailable` if no rank answers.
    pub async fn create(&self, policy: Policy) -> Result<(), StoreError> {
        self.done(Call::Create(policy)).await
    }

    /// Removes the sequencer, once nobody holds it. One that is made later under its name begins above
    /// all positions that this one gave.
    ///
    /// # Errors
    /// `Invalid` if there is no such sequencer, `Unavailable` if no rank answers.
    pub async fn remove(&self) -> Result<(), StoreError> {
        self.done(Call::Remove).await
    }

    /// Changes the sequencer's policy, for its present holder too.
    ///
    /// # Errors
    /// `Invalid` if there is no such sequencer, `Unavailable` if no rank answers.
    pub async fn set_policy(&self, policy: Policy) -> Result<(), StoreError> {
        self.done(Call::SetPolicy(policy)).await
    }

    /// Returns the sequencer as the rank sees it, without asking its holder for it.
    ///
    /// # Errors
    /// `Invalid` if there is no such sequencer, `Unavailable` if no rank answers.
    pub async fn look(&self) -> Result<Shown, StoreError> {
        match call::call(self.ranks(), &self.state, Call::Look).await? {
            Reply::Shown(shown) => Ok(shown),
            reply => Err(self.refused(reply)),
        }
    }

    /// Returns the next positions from the rank itself, whether the sequencer may be cached or not: for who needs few.
    ///
    /// # Errors
    /// As [`Sequencer::next_many`].
    pub async fn next_many_by_rank(&self, count: u64) -> Result<u64, StoreError> {
        match call::call(self.ranks(), &self.state, Call::Next(count)).await? {
            Reply::Positions { first, .. } => Ok(first),
            reply => Err(self.refused(reply)),
        }
    }

    /// Returns what this process did with the sequencer.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            grants: self.state.grants.load(Ordering::Relaxed),
            revocations: self.state.revocations.load(Ordering::Relaxed),
            round_trips: self.state.round_trips.load(Ordering::Relaxed),
        }
    }

    /// Moves the sequencer to another rank, where its clients go on without an error. Returns when the store has it.
    ///
    /// # Errors
    /// `Invalid` if there is no such sequencer, `Unavailable` if one of the ranks does not answer.
    pub async fn migrate(&self, to: RankNumber, mode: Mode) -> Result<(), StoreError> {
        self.done(Call::Move(to, mode)).await
    }

    /// Returns the rank that answered for the sequencer last, or that is asked first.
    pub fn rank(&self) -> RankNumber {
        self.state.rank()
    }

    fn ranks(&self) -> &Ranks {
        &self.session.ranks
    }

    async fn done(&self, call: Call) -> Result<(), StoreError> {
        match call::call(self.ranks(), &self.state, call).await? {
            Reply::Done => Ok(()),
            reply => Err(self.refused(reply)),
        }
    }

    /// Returns positions that this process cannot hand out by itself.
    #[cold]
    async fn ask(&self, count: u64) -> Result<u64, StoreError> {
        if count == 0 || count > crate::service::COUNT_MAX {
            let text =
                format!("{count} positions at once; at least 1 and at most {}", crate::service::COUNT_MAX);
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        let state = &*self.state;
        let mut patience = RetryBudget::new(self.ranks());
        loop {
            if state.round_trip.load(Ordering::Relaxed) {
                let at = patience.route(state).await?;
                state.round_trips.fetch_add(1, Ordering::Relaxed);
                match call::ask(&at.route, &state.id, Call::Next(count)).await {
                    Ok(Reply::Positions { first, caches }) => {
                        if caches {
                            state.round_trip.store(false, Ordering::Relaxed);
                        }
                        return Ok(first);
                    }
                    Ok(Reply::Elsewhere(place)) => patience.follow(&at, state, place.rank).await?,
                    Ok(reply) => return Err(self.refused(reply)),
                    Err(lost) => patience.again(&at, lost).await?,
                }
                continue;
            }
            let _turn = state.turn.lock().await;
            // Whoever had the turn before may have brought enough, or learnt that there is nothing to be had here.
            if let Some(first) = state.cache.take(count) {
                return Ok(first);
            }
            if state.round_trip.load(Ordering::Relaxed) {
                continue;
            }
            let at = patience.route(state).await?;
            let held = {
                let mut hold = state.hold.lock();
                match hold.held {
                    // Another rank has been turned to: what this one granted is of no use any more.
                    Some(held) if held.rank != at.route.rank => {
                        state.cache.close();
                        hold.held = None;
                        None
                    }
                    Some(held) if held.ending => {
                        state.give_back(&mut hold, held, &at.route);
                        None
                    }
                    held => held,
                }
            };
            let taken = match held {
                Some(held) => {
                    let more = call::ask(&at.route, &state.id, Call::Extend(held.grant)).await;
                    self.take_more(&at.route, held, more)
                }
                None => {
                    let asking = Asking::begin(state, &at.route);
                    let granted = call::ask(&at.route, &state.id, Call::Acquire).await;
                    let first = self.take_grant(&at, count, granted);
                    drop(asking);
                    first
                }
            };
            match taken {
                Ok(Some(first)) => return Ok(first),
                Ok(None) => {}
                Err(TakeError::Lost(lost)) => patience.again(&at, lost).await?,
                Err(TakeError::Refused(Reply::Elsewhere(place))) => {
                    patience.follow(&at, state, place.rank).await?;
                }
                Err(TakeError::Refused(reply)) => return Err(self.refused(reply)),
            }
        }
    }

    fn take_more(
        &self,
        route: &Route,
        held: Held,
        more: Result<Reply, Lost>,
    ) -> Result<Option<u64>, TakeError> {
        match more.map_err(TakeError::Lost)? {
            Reply::Granted { grant, bound, .. } => {
                self.state.extended(route, grant, bound);
                Ok(None)
            }
            reply @ (Reply::NotHeld | Reply::Elsewhere(_)) => {
                self.state.asserted(route, held.grant, None);
                if let Reply::NotHeld = reply { Ok(None) } else { Err(TakeError::Refused(reply)) }
            }
            reply => Err(TakeError::Refused(reply)),
        }
    }

    fn take_grant(
        &self,
        at: &RankRoute,
        count: u64,
        granted: Result<Reply, Lost>,
    ) -> Result<Option<u64>, TakeError> {
        match granted.map_err(TakeError::Lost)? {
            Reply::Granted { grant, first, bound } if first <= bound => {
                Ok(self.state.granted(&at.inner, &at.route, (grant, first, bound), count))
            }
            Reply::NotCached => {
                self.state.round_trip.store(true, Ordering::Relaxed);
                Ok(None)
            }
            // The session has to be bound anew.
            Reply::NotHeld => {
                let error = StoreError::new(ErrorKind::Closed, "the session was not known to the rank");
                Err(TakeError::Lost(Lost::Moved(Vec::new(), error)))
            }
            reply => Err(TakeError::Refused(reply)),
        }
    }

    fn refused(&self, reply: Reply) -> StoreError {
        let (kind, text) = match reply {
            Reply::Unknown => (ErrorKind::Invalid, "there is no such sequencer"),
            Reply::Exists => (ErrorKind::Busy, "there is such a sequencer already"),
            Reply::Exhausted => (ErrorKind::OutOfSpace, "it has not so many positions left"),
            _ => (ErrorKind::Unavailable, "the rank sent an invalid reply"),
        };
        StoreError::new(kind, text)
    }
}

/// The reason why there are no positions yet.
enum TakeError {
    Lost(Lost),
    Refused(Reply),
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use nacre_object::testkit::MemoryStore;
    use nacre_rpc::client::{Host, Link};

    use super::*;
    use crate::remote::SessionOptions;

    /// Begins a session that finds no rank.
    fn session(patience: Duration) -> Session {
        let options = SessionOptions {
            store: Arc::new(MemoryStore::new()),
            rank: 0,
            addresses: Vec::new(),
            link: Default::default(),
            patience,
        };
        Session::begin(options).unwrap()
    }

    #[tokio::test]
    async fn without_a_rank_callers_do_not_wait_one_after_the_other() {
        let sequencer = session(Duration::from_secs(1)).sequencer(&"log".parse().unwrap());
        let asked = futures::future::join_all((0..500).map(|_| sequencer.next()));
        // The limit only ends a test in which they do.
        let answers =
            tokio::time::timeout(Duration::from_secs(240), asked).await.expect("one after the other");
        assert!(answers.iter().all(|answer| answer.as_ref().unwrap_err().kind == ErrorKind::Unavailable));
    }

    fn link() -> Arc<Link> {
        let options = Default::default();
        Link::new("unix:/nowhere".parse().unwrap(), (), Arc::new(options), Arc::new(Host::new(false)))
    }

    #[tokio::test]
    async fn a_line_in_which_a_call_waits_until_the_sequencer_moves_costs_no_patience() {
        let patience = Duration::from_millis(100);
        let session = session(patience);
        let sequencer = session.sequencer(&"log".parse().unwrap());
        let inner = session.ranks.rank(0).unwrap();
        let at = |rank, since| {
            let route = Route { rank, link: link(), round_trips: link(), number: 1 };
            RankRoute { inner: inner.clone(), route, since }
        };
        let mut budget = RetryBudget::new(&session.ranks);
        let mut rank = 0;
        for _ in 0..6 {
            // When it is told, it has waited for some time, and the time of its patience has passed since the last time.
            let since = Instant::now() - Duration::from_secs(5);
            tokio::time::sleep(patience).await;
            budget.follow(&at(rank, since), &sequencer.state, 1 - rank).await.unwrap();
            rank = 1 - rank;
        }
        // Ranks that name each other at once do not lead it about for ever.
        let mut followed = 0;
        while budget.follow(&at(rank, Instant::now()), &sequencer.state, 1 - rank).await.is_ok() {
            (rank, followed) = (1 - rank, followed + 1);
            assert!(followed < 10_000);
        }
    }

    #[tokio::test]
    async fn a_binding_that_was_left_is_not_used_again() {
        let session = session(Duration::from_secs(3600));
        let sequencer = session.sequencer(&"log".parse().unwrap());
        let inner = session.ranks.rank(0).unwrap();
        let route = |number| Some(Route { rank: 0, link: link(), round_trips: link(), number });
        inner.route.send_replace(route(1));
        let mut budget = RetryBudget::new(&session.ranks);
        assert_eq!(budget.route(&sequencer.state).await.unwrap().route.number, 1);
        // The background takes that in only later.
        inner.leave(1);
        let mut next = std::pin::pin!(budget.route(&sequencer.state));
        assert!(futures::poll!(next.as_mut()).is_pending());
        inner.route.send_replace(route(2));
        assert_eq!(next.await.unwrap().route.number, 2);
    }

    #[tokio::test]
    async fn what_was_asked_back_before_does_not_end_a_later_grant() {
        let session = session(Duration::ZERO);
        let sequencer = session.sequencer(&"log".parse().unwrap());
        let route = Route { rank: 0, link: link(), round_trips: link(), number: 1 };
        let inner = session.ranks.rank(0).unwrap();
        inner.route.send_replace(Some(route.clone()));
        let state = &sequencer.state;
        assert_eq!(state.granted(&inner, &route, (5, 100, 200), 1), Some(100));
        state.revoked(&route, 4, None);
        assert_eq!(sequencer.try_next(), Some(101));
        // Nor what another rank asks for, which numbers its grants by itself.
        state.revoked(&Route { rank: 3, ..route.clone() }, 9, None);
        assert_eq!(sequencer.try_next(), Some(102));
        state.revoked(&route, 5, None);
        assert_eq!(sequencer.try_next(), None);
        // Of a binding that is over nothing is taken in.
        inner.route.send_replace(Some(Route { number: 2, ..route.clone() }));
        assert_eq!(state.granted(&inner, &route, (6, 300, 400), 1), None);
        assert_eq!(sequencer.try_next(), None);
    }
}
