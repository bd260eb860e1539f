//! The thread of the role: the authority, time, and the rank's orders at the store.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, FuturesUnordered};
use nacre_object::{ObjectId, ObjectStore, StoreError};
use tokio::sync::oneshot;

use super::authority::{Authority, AuthorityStore};
use super::core::{Shared, State};
use super::record::{self, Actor, OrderOutcome};
use crate::clock;
use crate::place::RankNumber;
use crate::service::{Record, StoreOrder};

/// The pause after the first failed attempt of an order; it doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The time that giving the authority back may take when the daemon ends.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// The time for which a hand-over waits until it is written down where sequencers ended.
const SETTLE_MAX: Duration = Duration::from_millis(100);
/// The sequencers of which that is written at a time.
const SETTLES_MAX: usize = 64;

/// The daemon's view of the authority.
struct Watcher {
    keeper: AuthorityStore,
    /// The authority of another daemon, and since when it has stood still.
    still: Option<(Authority, Duration)>,
    /// The time at which whoever has the authority was last told that this daemon stands by; none if it was not.
    registered: Option<Duration>,
    /// True if this daemon gave the authority back for another one to take it.
    handed_over: bool,
}

/// The result of a look at the authority.
enum AuthorityCheck {
    /// Authority that this daemon took, at this epoch, until this time.
    Taken(u64, Duration),
    /// Authority that this daemon has until this time; and whether somebody stands by.
    Reservation(Duration, bool),
    /// Another daemon has it, at these addresses.
    Elsewhere(Vec<String>),
    Failed(StoreError),
}

impl Watcher {
    /// Looks who has the authority, and takes it if nobody has it.
    async fn stand(&mut self) -> Result<AuthorityCheck, StoreError> {
        let looked = self.keeper.look().await?;
        // A key that was removed is registered anew, and the wait begins again: without it the rank need not count.
        let registered = looked.own && self.registered.is_some();
        let seen = looked.authority;
        let now = clock::now();
        let takeover = self.keeper.takeover();
        if seen.as_ref().is_some_and(|seen| !self.keeper.is_written(seen)) {
            // Somebody took what was given back.
            self.handed_over = false;
        }
        let may = match &seen {
            None => true,
            Some(seen) if self.keeper.is_own(seen) && !self.handed_over => true,
            Some(seen) if seen.free && !self.handed_over => true,
            Some(seen) => match &self.still {
                Some((known, since)) if known == seen && registered => {
                    let takeover = takeover.max(seen.takeover);
                    now.saturating_sub(*since) >= takeover + takeover / 8
                }
                _ => {
                    self.still = None;
                    if !registered {
                        self.keeper.stand_by().await?;
                        self.registered = Some(now);
                    }
                    self.still = Some((seen.clone(), clock::now()));
                    false
                }
            },
        };
        if may {
            let sent = clock::now();
            if let Some(epoch) = self.keeper.take(seen.as_ref()).await? {
                tracing::info!("this daemon is metadata rank {} now, at epoch {epoch}", self.keeper.rank());
                (self.still, self.registered, self.handed_over) = (None, None, false);
                return Ok(AuthorityCheck::Taken(epoch, sent + takeover));
            }
            self.still = None;
        } else if self.registered.is_some_and(|registered| now.saturating_sub(registered) >= takeover) {
            match self.keeper.stand_on().await? {
                true => self.registered = Some(now),
                false => self.still = None,
            }
        }
        Ok(AuthorityCheck::Elsewhere(seen.map_or_else(Vec::new, |seen| seen.addresses)))
    }

    /// Renews the authority that this daemon has.
    async fn keep(&mut self, standby: bool) -> Result<AuthorityCheck, StoreError> {
        let mut sent = clock::now();
        let takeover = self.keeper.takeover();
        if !standby {
            let seen = self.keeper.look().await?;
            if !seen.authority.as_ref().is_some_and(|seen| self.keeper.is_written(seen)) {
                return Ok(AuthorityCheck::Elsewhere(Vec::new()));
            }
            if !seen.standby {
                return Ok(AuthorityCheck::Reservation(sent + takeover, false));
            }
            sent = clock::now();
        }
        match self.keeper.show(sent).await? {
            Some(standby) => Ok(AuthorityCheck::Reservation(sent + takeover, standby)),
            None => Ok(AuthorityCheck::Elsewhere(Vec::new())),
        }
    }

    async fn hand_over(&mut self) -> Result<AuthorityCheck, StoreError> {
        self.handed_over = true;
        self.keeper.give_back().await?;
        Ok(AuthorityCheck::Elsewhere(Vec::new()))
    }
}

type AuthorityCheckFuture = Pin<Box<dyn Future<Output = (Watcher, AuthorityCheck)> + Send>>;

/// An order that was carried out.
enum CompletedOrder {
    Loaded(Option<Record>),
    /// A record with which more was reserved, and its tail.
    LoadedAhead(Record, u64),
    Created(Option<Record>),
    Written,
    Removed,
    /// A record that is another rank's now, or this one's again.
    Moved(RankNumber),
}

/// Runs until `stopped` is dropped.
pub(super) async fn run(
    shared: Arc<Shared>,
    keeper: AuthorityStore,
    lazy: bool,
    mut stopped: oneshot::Receiver<()>,
) {
    let store = keeper.store.clone();
    let takeover = keeper.takeover();
    let mut idle = Some(Watcher { keeper, still: None, registered: None, handed_over: false });
    let mut looking: Option<AuthorityCheckFuture> = None;
    let mut look_at = if lazy { None } else { Some(clock::now()) };
    let mut orders = FuturesUnordered::new();
    loop {
        let due = {
            let mut core = shared.core.lock();
            let now = clock::now();
            core.with_rank(|rank, out| rank.tick(now, out));
            core.notify_waiters(now);
            if let State::Active(rank, _) = &core.state {
                let by = Actor { rank: rank.number(), epoch: rank.epoch() };
                for (id, order) in std::mem::take(&mut core.orders) {
                    orders.push(carry_out(store.clone(), by, id, order));
                }
            }
            if std::mem::take(&mut core.wanted) && matches!(core.state, State::Lazy) {
                look_at = look_at.or(Some(now));
            }
            let hand_over = core.handing_over;
            if (hand_over || look_at.is_some_and(|at| at <= now))
                && let Some(mut watcher) = idle.take()
            {
                let (active, standby) = (matches!(core.state, State::Active(..)), core.standby);
                let settled = if hand_over { settled(&core.state) } else { Vec::new() };
                let store = store.clone();
                looking = Some(Box::pin(async move {
                    settle(store, settled).await;
                    let looked = match active {
                        true if hand_over => watcher.hand_over().await,
                        true => watcher.keep(standby).await,
                        false => watcher.stand().await,
                    };
                    (watcher, looked.unwrap_or_else(AuthorityCheck::Failed))
                }));
                if hand_over {
                    // Nothing is answered from here on.
                    core.step_down(Vec::new());
                }
                look_at = None;
            }
            let due = match &core.state {
                State::Active(rank, _) => rank.next_deadline(),
                _ => None,
            };
            core.sleeps_until = due;
            due.into_iter().chain(look_at).min()
        };
        let sleep = async {
            match due {
                Some(due) => tokio::time::sleep(due.saturating_sub(clock::now())).await,
                None => std::future::pending().await,
            }
        };
        let looked = async {
            match &mut looking {
                Some(looking) => looking.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = &mut stopped => break,
            () = shared.work.notified() => {}
            () = sleep => {}
            Some((epoch, id, ending)) = orders.next(), if !orders.is_empty() => {
                finish(&shared, epoch, &id, ending);
                if matches!(shared.core.lock().state, State::Standing(_)) {
                    look_at = look_at.or(Some(clock::now()));
                }
            }
            (watcher, looked) = looked => {
                looking = None;
                idle = Some(watcher);
                let pause = take_in(&shared, looked, takeover);
                look_at = Some(clock::now() + pause);
            }
        }
    }
    leave(&shared, idle, looking).await;
}

/// Takes in what came of a look. Returns the pause before the next one.
fn take_in(shared: &Shared, looked: AuthorityCheck, takeover: Duration) -> Duration {
    let mut core = shared.core.lock();
    match looked {
        AuthorityCheck::Taken(epoch, until) => {
            core.begin(epoch, until);
            takeover / 4
        }
        AuthorityCheck::Reservation(until, standby) => {
            if let State::Active(_, end) = &mut core.state {
                *end = until;
            }
            // A standby that has just been noticed counts from when it was first shown something.
            core.standby = standby;
            takeover / 4
        }
        AuthorityCheck::Elsewhere(addresses) => {
            if matches!(core.state, State::Active(..)) {
                tracing::warn!("another daemon is metadata rank {} now", shared.rank);
            }
            core.step_down(addresses);
            takeover / 8
        }
        AuthorityCheck::Failed(error) => {
            tracing::warn!("the authority of metadata rank {} cannot be seen to: {error}", shared.rank);
            takeover / 8
        }
    }
}

/// A sequencer that the rank of an epoch hands out no more: its record, and the one with which a successor goes on at its tail.
type Settled = (u64, ObjectId, Record, Record);

/// Returns where the sequencers of a rank end that steps down before its lock is free again.
fn settled(state: &State) -> Vec<Settled> {
    let State::Active(rank, _) = state else { return Vec::new() };
    let epoch = rank.epoch();
    rank.settled().into_iter().map(|(id, before, after)| (epoch, id, before, after)).collect()
}

/// Writes down where sequencers ended. Each write holds only as long as the record is the rank's own and no successor has fenced
/// it, so one that comes late, or never, costs a gap and nothing else.
async fn settle(store: Arc<dyn ObjectStore>, settled: Vec<Settled>) {
    let writes = settled.into_iter().map(|(epoch, id, before, after)| {
        let store = store.clone();
        async move { record::write(&*store, &id, epoch, &before, &after).await.is_ok() }
    });
    let written = stream::iter(writes).buffer_unordered(SETTLES_MAX).count();
    if tokio::time::timeout(SETTLE_MAX, written).await.is_err() {
        tracing::debug!("the store does not take in time where sequencers end");
    }
}

/// Carries out an order, however often it takes.
async fn carry_out(
    store: Arc<dyn ObjectStore>,
    by: Actor,
    id: ObjectId,
    order: StoreOrder,
) -> (u64, ObjectId, OrderOutcome<CompletedOrder>) {
    let Actor { rank, epoch } = by;
    let mut pause = PAUSE_MIN;
    loop {
        let done = match &order {
            StoreOrder::Load { reserves: false } => {
                record::load(&*store, &id, by).await.map(|end| end.map(CompletedOrder::Loaded))
            }
            StoreOrder::Load { reserves: true } => {
                let loaded = record::load_ahead(&*store, &id, by).await;
                loaded.map(|end| {
                    end.map(|(record, tail)| match (record, tail) {
                        (Some(record), Some(tail)) => CompletedOrder::LoadedAhead(record, tail),
                        (record, _) => CompletedOrder::Loaded(record),
                    })
                })
            }
            StoreOrder::Create(policy) => {
                let created = record::create(&*store, &id, by, rank, *policy).await;
                created.map(|end| end.map(CompletedOrder::Created))
            }
            StoreOrder::Write(before, after) => {
                let written = record::write(&*store, &id, epoch, before, after).await;
                written.map(|end| end.map(|()| CompletedOrder::Written))
            }
            StoreOrder::Remove(before) => {
                let removed = record::remove(&*store, &id, epoch, before).await;
                removed.map(|end| end.map(|()| CompletedOrder::Removed))
            }
            StoreOrder::Move(before, after) => {
                let moved = record::hand_over(&*store, &id, epoch, before, after).await;
                moved.map(|end| end.map(|()| CompletedOrder::Moved(after.place.rank)))
            }
        };
        match done {
            Ok(ending) => return (epoch, id, ending),
            Err(error) => {
                tracing::error!("the store does not take what rank {rank} says of \"{id}\": {error}")
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn finish(shared: &Arc<Shared>, epoch: u64, id: &ObjectId, ending: OrderOutcome<CompletedOrder>) {
    let mut core = shared.core.lock();
    let now = clock::now();
    let State::Active(rank, _) = &core.state else { return };
    if rank.epoch() != epoch {
        return;
    }
    let is_used = rank.is_used(now, id);
    let carried = match ending {
        OrderOutcome::Done(carried) => carried,
        OrderOutcome::Gone => return core.with_rank(|rank, out| rank.removed(id, out)),
        OrderOutcome::Superseded => {
            tracing::warn!("a later metadata rank has fenced this one at \"{id}\"");
            return core.step_down(Vec::new());
        }
    };
    // One that nobody uses waits for whoever does.
    if let CompletedOrder::Moved(to) = carried
        && to != shared.rank
        && is_used
    {
        let (shared, id) = (shared.clone(), id.clone());
        tokio::spawn(async move { shared.expect(to, &id).await });
    }
    core.with_rank(|rank, out| match carried {
        CompletedOrder::Loaded(record) => rank.loaded(now, id, record, out),
        CompletedOrder::LoadedAhead(record, tail) => rank.loaded_ahead(now, id, record, tail, out),
        CompletedOrder::Created(created) => rank.created(now, id, created, out),
        CompletedOrder::Written => rank.written(now, id, out),
        CompletedOrder::Removed => rank.removed(id, out),
        CompletedOrder::Moved(_) => rank.moved(now, id, out),
    });
}

/// Gives the authority back when the daemon ends, so that nobody waits for it.
async fn leave(shared: &Shared, idle: Option<Watcher>, looking: Option<AuthorityCheckFuture>) {
    let (active, settled) = {
        let mut core = shared.core.lock();
        let (active, settled) = (matches!(core.state, State::Active(..)), settled(&core.state));
        core.step_down(Vec::new());
        (active, settled)
    };
    let leaving = async {
        let mut watcher = match (idle, looking) {
            (Some(watcher), _) => watcher,
            (None, Some(looking)) => looking.await.0,
            (None, None) => return Ok(()),
        };
        match active {
            true => {
                settle(watcher.keeper.store.clone(), settled).await;
                watcher.keeper.give_back().await.map(drop)
            }
            false if watcher.registered.is_some() => watcher.keeper.leave().await,
            false => Ok(()),
        }
    };
    match tokio::time::timeout(LEAVE_MAX, leaving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("the authority was not given back: {error}"),
        Err(_) => tracing::warn!("the authority was not given back: the store does not answer"),
    }
}
