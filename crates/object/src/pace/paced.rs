//! A store whose contended regions are updated in turns.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::pace::{Admission, Pacer, PacerLimits, RegionHash, RegionStatistics, Statistics, Waiter};
use crate::watch::{Notified, Watch, WatchOptions};
use crate::{
    Answer, ByteRange, Fork, Found, Guard, Intent, Key, Limits, ObjectId, ObjectStore, Once, Outcome, ReadOp,
    Reply, StoreError, Transaction, WindowPosition,
};

/// Options of a [`Paced`] store.
#[derive(Clone, Debug)]
pub struct PaceOptions {
    /// True if updates of contended regions take turns.
    pub pacing: bool,
    /// True if attempts and failures are counted for every region, contended or not.
    pub statistics: bool,
    /// The maximum number of regions that are counted.
    pub statistics_regions_max: usize,
    /// Limits of the pacer.
    pub limits: PacerLimits,
}

impl Default for PaceOptions {
    fn default() -> Self {
        Self {
            pacing: true,
            statistics: false,
            statistics_regions_max: 65_536,
            limits: PacerLimits::default(),
        }
    }
}

/// Counts over all regions, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaceTotals {
    /// Conditional writes of regions.
    pub attempts: u64,
    /// Those that were refused because of the region's version.
    pub failures: u64,
    /// Requests that had to wait for their turn.
    pub waited: u64,
    /// Turns that lapsed.
    pub lapsed: u64,
    /// Regions tracked now.
    pub tracked: u64,
    /// Requests waiting now.
    pub waiting: u64,
}

/// The interval at which lapsed turns are looked for, while there are any turns.
const TICK: Duration = Duration::from_millis(1);

/// A store in front of another one, which lets updates of contended regions take turns ([`pace`](crate::pace)), and
/// counts attempts and failures of conditional writes. Cheap to clone.
#[derive(derive_more::Debug)]
#[debug("Paced")]
pub struct Paced<S> {
    shared: Arc<Shared<S>>,
}

impl<S> Clone for Paced<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct Shared<S> {
    store: S,
    options: PaceOptions,
    hasher: RandomState,
    attempts: AtomicU64,
    failures: AtomicU64,
    waited: AtomicU64,
    statistics: Mutex<Statistics>,
    turns: Arc<Turns>,
}

/// The pacer and its waiters.
struct Turns {
    began: Instant,
    /// True if the pacer needs to hear of reads and successes, so that the lock is not taken while it does not.
    attentive: AtomicBool,
    state: Mutex<State>,
    /// The condition on which the clock sleeps while there is nothing to do.
    wake: Condvar,
}

struct State {
    pacer: Pacer,
    /// The waiters, and those that were granted the turn and have not noticed.
    waiting: HashMap<Waiter, Waiting>,
    clock: Clock,
    /// True if some region is tracked.
    tracks: bool,
    /// Reused for the waiters that an event grants the turn.
    granted: Vec<Waiter>,
}

/// The state of the thread that ends turns that have lapsed. It is started when the first region is tracked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clock {
    NotStarted,
    Running,
    /// A thread that is to end, or could not be started.
    Ended,
}

#[derive(Default)]
struct Waiting {
    granted: bool,
    waker: Option<Waker>,
}

/// The part of an object that a conditional write changes.
#[derive(Hash)]
enum Part<'a> {
    Region(&'a Fork, ByteRange),
    Key(&'a Key),
}

/// The condition of a conditional write.
struct Conditional {
    object: ObjectId,
    /// The index of the guard in the transaction.
    index: usize,
    /// A guard of a region, a proposal, or a key's version.
    guard: Guard,
}

impl Conditional {
    fn hash(&self, hasher: &RandomState) -> RegionHash {
        hasher.hash_one((&self.object, part_of(&self.guard)))
    }

    /// Returns the version that the writer had read. A proposal is that version plus one.
    fn version_read(&self) -> u64 {
        match &self.guard {
            Guard::Proposal { version, .. } => version.saturating_sub(1),
            Guard::Region { version, .. } | Guard::KeyVersion { version, .. } => *version,
            _ => 0,
        }
    }
}

impl<S: ObjectStore> Paced<S> {
    /// Creates a store that paces another one.
    pub fn new(store: S, options: PaceOptions) -> Self {
        let state = State {
            pacer: Pacer::new(options.limits.clone()),
            waiting: HashMap::new(),
            clock: Clock::NotStarted,
            tracks: false,
            granted: Vec::new(),
        };
        let turns = Turns {
            began: Instant::now(),
            attentive: AtomicBool::new(false),
            state: Mutex::new(state),
            wake: Condvar::new(),
        };
        let shared = Shared {
            store,
            hasher: RandomState::new(),
            attempts: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            statistics: Mutex::new(Statistics::new(options.statistics_regions_max)),
            turns: Arc::new(turns),
            options,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the store behind it.
    pub fn inner(&self) -> &S {
        &self.shared.store
    }

    /// Returns the counts over all regions.
    pub fn totals(&self) -> PaceTotals {
        let shared = &self.shared;
        let state = shared.turns.lock();
        PaceTotals {
            attempts: shared.attempts.load(Ordering::Relaxed),
            failures: shared.failures.load(Ordering::Relaxed),
            waited: shared.waited.load(Ordering::Relaxed),
            lapsed: state.pacer.lapsed(),
            tracked: state.pacer.regions() as u64,
            waiting: state.pacer.waiters() as u64,
        }
    }

    /// Returns the counts of the regions with the longest runs of failures, at most `limit`, and the number of attempts
    /// on regions for which there was no room; empty unless statistics were asked for.
    pub fn regions(&self, limit: usize) -> (Vec<RegionStatistics>, u64) {
        let statistics = self.shared.statistics();
        (statistics.top(limit), statistics.uncounted())
    }

    /// Forgets the counts of all regions.
    pub fn clear_regions(&self) {
        self.shared.statistics().clear();
    }
}

impl<S: ObjectStore> ObjectStore for Paced<S> {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.shared.apply(object, transaction, None)
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        self.shared.apply(object, transaction, Some(once))
    }

    fn window(&self) -> Option<WindowPosition> {
        self.shared.store.window()
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.shared.store.list(after, limit)
    }

    fn limits(&self) -> Reply<Limits> {
        self.shared.store.limits()
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        self.shared.store.watch(object, options)
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.shared.store.notify(object, payload, timeout)
    }
}

/// Returns the first range or key that a transaction reads in order to update it.
fn announced(transaction: &Transaction) -> Option<Part<'_>> {
    transaction.reads.iter().find_map(|read| match read {
        ReadOp::Range { fork, range, intent: Intent::Update } => Some(Part::Region(fork, *range)),
        ReadOp::VersionedKey { key, intent: Intent::Update } => Some(Part::Key(key)),
        _ => None,
    })
}

/// Returns the part that a guard is about, if it is one of a conditional write.
fn part_of(guard: &Guard) -> Option<Part<'_>> {
    match guard {
        Guard::Region { fork, range, .. } | Guard::Proposal { fork, range, .. } => {
            Some(Part::Region(fork, *range))
        }
        Guard::KeyVersion { key, .. } => Some(Part::Key(key)),
        _ => None,
    }
}

/// Returns the first region or key that a transaction's writes are conditional on.
fn conditional(object: &ObjectId, transaction: &Transaction) -> Option<Conditional> {
    let index = transaction.guards.iter().position(|guard| part_of(guard).is_some())?;
    Some(Conditional { object: object.clone(), index, guard: transaction.guards[index].clone() })
}

/// Returns the version that the holder of a turn is given.
fn version_of(result: &Result<Outcome, StoreError>) -> Option<u64> {
    match result {
        Ok(Outcome::Done(done)) => done.answers.iter().find_map(|answer| match answer {
            Answer::Range(range) => Some(range.version),
            Answer::VersionedValue(found) => Some(found.as_ref().map_or(0, |found| found.version)),
            _ => None,
        }),
        Ok(Outcome::Refused(refusal)) => match &refusal.found {
            Found::Region(range) => Some(range.version),
            Found::KeyVersion(version) => Some(*version),
            _ => None,
        },
        Err(_) => None,
    }
}

impl<S: ObjectStore> Shared<S> {
    fn statistics(&self) -> MutexGuard<'_, Statistics> {
        self.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a transaction, at most once if a token is given.
    fn apply(
        self: &Arc<Self>,
        object: &ObjectId,
        transaction: Transaction,
        once: Option<Once>,
    ) -> Reply<Outcome> {
        if transaction.writes.is_empty() {
            let attentive = self.options.pacing && self.turns.attentive.load(Ordering::Acquire);
            if attentive && let Some(part) = announced(&transaction) {
                let hash = self.hasher.hash_one((object, Some(part)));
                return self.read(hash, object, transaction);
            }
            return self.store.apply(object, transaction);
        }
        if !self.options.pacing && !self.options.statistics {
            return self.write(object, transaction, once);
        }
        let Some(condition) = conditional(object, &transaction) else {
            return self.write(object, transaction, once);
        };
        match self.write(object, transaction, once) {
            Reply::Ready(Some(result)) => self.evaluate(condition, result),
            reply => {
                let shared = self.clone();
                Reply::pending(async move {
                    let result = reply.await;
                    shared.evaluate(condition, result).await
                })
            }
        }
    }

    fn write(&self, object: &ObjectId, transaction: Transaction, once: Option<Once>) -> Reply<Outcome> {
        match once {
            None => self.store.apply(object, transaction),
            Some(once) => self.store.apply_once(object, transaction, once),
        }
    }

    /// Handles a read that announces an update.
    fn read(
        self: &Arc<Self>,
        hash: RegionHash,
        object: &ObjectId,
        transaction: Transaction,
    ) -> Reply<Outcome> {
        match self.turns.event(|pacer, now, _| pacer.read(hash, now)) {
            Admission::Free => self.store.apply(object, transaction),
            Admission::Turn(holder) => match self.store.apply(object, transaction) {
                Reply::Ready(Some(result)) => {
                    self.turns.give(hash, holder, &result);
                    Reply::ready(result)
                }
                reply => {
                    let shared = self.clone();
                    Reply::pending(async move {
                        let result = reply.await;
                        shared.turns.give(hash, holder, &result);
                        result
                    })
                }
            },
            Admission::Wait(waiter) => {
                self.waited.fetch_add(1, Ordering::Relaxed);
                let wait = Wait { turns: self.turns.clone(), hash, waiter, over: false };
                let (shared, object) = (self.clone(), object.clone());
                Reply::pending(async move {
                    wait.await;
                    let result = shared.store.apply(&object, transaction).await;
                    shared.turns.give(hash, waiter, &result);
                    result
                })
            }
        }
    }

    /// Handles the outcome of a conditional write.
    fn evaluate(self: &Arc<Self>, write: Conditional, result: Result<Outcome, StoreError>) -> Reply<Outcome> {
        let succeeded = match &result {
            Ok(Outcome::Done(_)) => true,
            Ok(Outcome::Refused(refusal)) if refusal.guard == write.index => false,
            // Something else stood in the way, which says nothing about the region.
            _ => return Reply::ready(result),
        };
        if let Some(Part::Region(fork, range)) = part_of(&write.guard) {
            self.attempts.fetch_add(1, Ordering::Relaxed);
            if !succeeded {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
            if self.options.statistics {
                let hash = write.hash(&self.hasher);
                self.statistics().attempt(hash, &write.object, fork, range, succeeded);
            }
        }
        if !self.options.pacing {
            return Reply::ready(result);
        }
        if succeeded {
            if self.turns.attentive.load(Ordering::Acquire) {
                let hash = write.hash(&self.hasher);
                self.turns.event(|pacer, now, granted| pacer.succeeded(hash, now, granted));
            }
            return Reply::ready(result);
        }
        let hash = write.hash(&self.hasher);
        let version = write.version_read();
        if matches!(write.guard, Guard::KeyVersion { .. }) {
            self.turns.event(|pacer, now, granted| pacer.failed(hash, version, now, granted));
            return Reply::ready(result);
        }
        match self.turns.event(|pacer, now, granted| pacer.refused(hash, version, now, granted)) {
            Admission::Free => Reply::ready(result),
            Admission::Turn(holder) => {
                self.turns.give(hash, holder, &result);
                Reply::ready(result)
            }
            Admission::Wait(waiter) => {
                self.waited.fetch_add(1, Ordering::Relaxed);
                let wait = Wait { turns: self.turns.clone(), hash, waiter, over: false };
                let shared = self.clone();
                Reply::pending(async move {
                    wait.await;
                    // The same guard fails again, for versions only grow; but it shows what stands there now.
                    let again = Transaction::new().guard(write.guard);
                    let mut again = shared.store.apply(&write.object, again).await;
                    shared.turns.give(hash, waiter, &again);
                    match &mut again {
                        Ok(Outcome::Refused(refusal)) => {
                            refusal.guard = write.index;
                            again
                        }
                        _ => result,
                    }
                })
            }
        }
    }
}

impl<S> Drop for Shared<S> {
    fn drop(&mut self) {
        self.turns.lock().clock = Clock::Ended;
        self.turns.wake.notify_all();
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two calls of the pacer's methods, which do not panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the pacer of an event, and wakes the waiters that were granted the turn by it.
    fn event<T>(self: &Arc<Self>, event: impl FnOnce(&mut Pacer, Duration, &mut Vec<Waiter>) -> T) -> T {
        let now = self.began.elapsed();
        let mut wakers: Vec<Waker> = Vec::new();
        let result = {
            let mut state = self.lock();
            let state = &mut *state;
            let result = event(&mut state.pacer, now, &mut state.granted);
            self.attentive.store(state.pacer.is_attentive(), Ordering::Release);
            let tracks = state.pacer.regions() > 0;
            if tracks && !std::mem::replace(&mut state.tracks, true) {
                self.start_clock(state);
            }
            state.tracks = tracks;
            for waiter in state.granted.drain(..) {
                let waiting = state.waiting.entry(waiter).or_default();
                waiting.granted = true;
                wakers.extend(waiting.waker.take());
            }
            result
        };
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Tells the pacer which version the holder of a turn was given.
    fn give(self: &Arc<Self>, hash: RegionHash, holder: Waiter, result: &Result<Outcome, StoreError>) {
        match version_of(result) {
            Some(version) => self.event(|pacer, _, _| pacer.given(hash, holder, version)),
            // Whoever was given no version will not write on the condition of one.
            None => self.event(|pacer, now, granted| pacer.cancel(hash, holder, now, granted)),
        }
    }

    fn start_clock(self: &Arc<Self>, state: &mut State) {
        if state.clock == Clock::NotStarted {
            let turns = self.clone();
            let thread = std::thread::Builder::new().name("nacre-pace".to_owned());
            // Without a clock, turns would never lapse: then nobody takes turns, and nothing else is lost.
            state.clock = match thread.spawn(move || turns.run_clock()) {
                Ok(_) => Clock::Running,
                Err(_) => Clock::Ended,
            };
        }
        self.wake.notify_all();
    }

    fn run_clock(self: &Arc<Self>) {
        let mut state = self.lock();
        while state.clock == Clock::Running || state.clock == Clock::NotStarted {
            if state.pacer.regions() == 0 {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (woken, _) = self.wake.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner);
            drop(woken);
            self.event(Pacer::expire);
            state = self.lock();
        }
    }
}

/// A future that waits for the turn.
struct Wait {
    turns: Arc<Turns>,
    hash: RegionHash,
    waiter: Waiter,
    over: bool,
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let turns = self.turns.clone();
        let mut state = turns.lock();
        let waiting = state.waiting.entry(self.waiter).or_default();
        if waiting.granted {
            state.waiting.remove(&self.waiter);
            self.over = true;
            return Poll::Ready(());
        }
        let before = waiting.waker.replace(context.waker().clone());
        // A waker may be the last owner of a task that holds replies of this store, so it goes without the lock.
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if !self.over {
            // Until it is cancelled it may be granted the turn, which would make its entry again.
            self.turns.event(|pacer, now, granted| pacer.cancel(self.hash, self.waiter, now, granted));
            let waiting = self.turns.lock().waiting.remove(&self.waiter);
            // Its waker goes without the lock, as above.
            drop(waiting);
        }
    }
}

#[cfg(test)]
#[path = "paced_tests.rs"]
mod tests;
