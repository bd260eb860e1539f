//! The client of the ranks: sessions whose leases are renewed in the background, one with each rank that is used, and sequencers
//! in them that are cached while they are granted.
//!
//! A cached sequencer is a tail and a bound in this process. Positions come from it by one compare-and-swap, until the bound
//! is reached or the background has closed it: because others wait, or because the lease is over.
//!
//! A sequencer is asked for at the rank where it was last, at first at the one that the settings name. A rank that has no
//! authority over it says which one has, or which forwards requests to that. A grant belongs to the session with the rank
//! that gave it, and is given back to that one, whichever is asked now.

mod cache;
mod call;
mod run;
mod sequencer;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nacre_object::{ErrorKind, ObjectId, ObjectStore, StoreError};
use nacre_rpc::Address;
use nacre_rpc::client::{Host, Link, LinkOptions};
use parking_lot::Mutex;
pub use sequencer::{Sequencer, Statistics};
use tokio::sync::{Notify, oneshot, watch};

use crate::load::RankLoad;
use crate::place::{Caller, Mode, RankNumber};
use crate::service::{Call, Reply};
use crate::wire::Moving;

/// The longest pause between attempts to reach a daemon.
const BACKOFF_MAX: Duration = Duration::from_millis(50);
/// The longest time for which a daemon may say nothing at all: less than the default time after which a standby takes over, so that
/// clients look for it by then.
const SILENCE_MAX: Duration = Duration::from_millis(500);
/// The time between two looks whether a standby has taken over, while a daemon does not answer a request to be bound.
const LOOK: Duration = Duration::from_millis(50);

/// The settings of a session.
#[derive(Clone, derive_more::Debug)]
pub struct SessionOptions {
    /// The store, which says who has the authority. It must not depend on the runtime of a caller.
    #[debug(skip)]
    pub store: Arc<dyn ObjectStore>,
    /// The number of the rank that is asked first.
    pub rank: RankNumber,
    /// The addresses of the store's servers.
    pub addresses: Vec<Address>,
    /// The settings of connections.
    pub link: LinkOptions,
    /// The longest time for which a call waits for a rank.
    pub patience: Duration,
}

/// A connection to a rank over which the session is spoken for.
#[derive(Clone)]
pub(crate) struct Route {
    rank: RankNumber,
    link: Arc<Link>,
    /// A further connection for round trips, which is driven in the runtime of whoever uses it first.
    round_trips: Arc<Link>,
    /// The number of the binding, which grows.
    number: u64,
}

/// A session with each rank that is used. Cheap to clone; they end with the last handle on them and on their sequencers.
#[derive(Clone)]
pub struct Session {
    ranks: Arc<Ranks>,
}

type Sequencers = Arc<Mutex<HashMap<ObjectId, Arc<sequencer::State>>>>;

/// The sessions with all ranks.
pub(crate) struct Ranks {
    options: Arc<SessionOptions>,
    link_options: Arc<LinkOptions>,
    /// This process, as the ranks know it.
    caller: Caller,
    /// A number that says to which half of the clients it belongs.
    client: u64,
    sequencers: Sequencers,
    begun: Mutex<BTreeMap<RankNumber, Begun>>,
    /// True once the sessions have ended: no further one begins.
    ended: AtomicBool,
    /// These sessions, for the background of each.
    itself: Weak<Ranks>,
}

/// A session with a rank that has begun. It ends when the sender is used or dropped.
struct Begun {
    inner: Arc<Inner>,
    ending: Option<oneshot::Sender<oneshot::Sender<()>>>,
}

/// A session with one rank.
pub(crate) struct Inner {
    options: Arc<SessionOptions>,
    rank: RankNumber,
    caller: Caller,
    client: u64,
    host: Arc<Host>,
    link_options: Arc<LinkOptions>,
    /// The number of the session, drawn anew when a lease was lost.
    number: AtomicU64,
    connections: AtomicU64,
    route: watch::Sender<Option<Route>>,
    /// The time at which the last binding ended, or the session began.
    unbound_since: Mutex<Instant>,
    /// Wakes the background to look for the rank again; the number of the binding that is of no use any more.
    moved: Notify,
    useless: AtomicU64,
    sequencers: Sequencers,
    /// The sessions with all ranks.
    ranks: Weak<Ranks>,
    /// True once the session has ended.
    over: AtomicBool,
    /// The reason why there is no binding.
    error: Mutex<Option<StoreError>>,
    /// The runtime of the background, whose clock is there for callers without one.
    runtime: tokio::runtime::Handle,
}

impl Session {
    /// Begins a session with the rank that the settings name. Nothing is connected before it is used.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn begin(options: SessionOptions) -> Result<Session, StoreError> {
        Session::begin_as(options, Caller::Client)
    }

    /// Begins the session of a client, or of a rank whose requests no other one forwards.
    pub(crate) fn begin_as(options: SessionOptions, caller: Caller) -> Result<Session, StoreError> {
        let mut link = options.link.clone();
        link.keeps_session = false;
        link.features = 0;
        link.backoff_max = link.backoff_max.min(BACKOFF_MAX);
        link.silence_timeout = link.silence_timeout.min(SILENCE_MAX);
        let ranks = Arc::new_cyclic(|itself| Ranks {
            options: Arc::new(options),
            link_options: Arc::new(link),
            caller,
            client: rand::random(),
            sequencers: Arc::default(),
            begun: Mutex::default(),
            ended: AtomicBool::new(false),
            itself: itself.clone(),
        });
        ranks.rank(ranks.options.rank)?;
        Ok(Session { ranks })
    }

    /// Returns a handle on a sequencer, whether it exists or not.
    pub fn sequencer(&self, id: &ObjectId) -> Sequencer {
        let mut sequencers = self.ranks.sequencers.lock();
        let state = sequencers
            .entry(id.clone())
            .or_insert_with(|| Arc::new(sequencer::State::new(id.clone(), self.ranks.options.rank)));
        Sequencer { session: self.clone(), state: state.clone() }
    }

    /// Asks whoever has the authority of a rank to hand it over to a standby, and waits until it has accepted that.
    ///
    /// # Errors
    /// `Invalid` if there is no standby, `Unavailable` if there is no such rank.
    pub async fn hand_over(&self, rank: RankNumber) -> Result<(), StoreError> {
        call::hand_over(&self.ranks, rank).await
    }

    /// Returns the load of a rank.
    ///
    /// # Errors
    /// `Unavailable` if there is no such rank, `Unsupported` if its daemon is of a version that knows no loads.
    pub async fn load(&self, rank: RankNumber) -> Result<RankLoad, StoreError> {
        call::load(&self.ranks, rank).await
    }

    /// Waits until a rank answers.
    ///
    /// # Errors
    /// `Unavailable` if it does not in time.
    pub(crate) async fn reach(&self, rank: RankNumber) -> Result<(), StoreError> {
        call::reach(&self.ranks, rank).await
    }

    /// Waits until a rank answers a request that is sent now.
    ///
    /// # Errors
    /// `Unavailable` if it does not in time.
    pub(crate) async fn answers(&self, rank: RankNumber) -> Result<(), StoreError> {
        call::answers(&self.ranks, rank).await
    }

    /// Makes a call at a rank, and nowhere else.
    ///
    /// # Errors
    /// `Unavailable` if it does not answer in time.
    pub(crate) async fn call_at(
        &self,
        rank: RankNumber,
        id: &ObjectId,
        call: Call,
    ) -> Result<Reply, StoreError> {
        call::call_at(&self.ranks, rank, id, call).await
    }

    /// Ends the session: gives back what it holds, and waits until the ranks know it or cannot be reached.
    pub async fn end(&self) {
        self.ranks.ended.store(true, Ordering::SeqCst);
        let endings: Vec<_> = {
            let mut begun = self.ranks.begun.lock();
            begun.values_mut().filter_map(|begun| begun.ending.take()).collect()
        };
        let ended = endings.into_iter().filter_map(|ending| {
            let (done, over) = oneshot::channel();
            ending.send(done).is_ok().then_some(over)
        });
        // All are told before one is waited for. It is over as well if the thread is gone.
        for over in ended.collect::<Vec<_>>() {
            let _ = over.await;
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.ranks.begun.lock().keys())
    }
}

/// Returns the number of a new session, which nobody else draws.
fn new_number() -> u64 {
    rand::random::<u64>().max(1)
}

impl Ranks {
    /// Returns the session with a rank, which begins if there is none.
    fn rank(&self, rank: RankNumber) -> Result<Arc<Inner>, StoreError> {
        let mut begun = self.begun.lock();
        if let Some(begun) = begun.get(&rank) {
            return Ok(begun.inner.clone());
        }
        if self.ended.load(Ordering::SeqCst) {
            return Err(StoreError::new(ErrorKind::Closed, "the session with the metadata ranks has ended"));
        }
        let failed = |error: std::io::Error| {
            StoreError::new(ErrorKind::Io, format!("cannot start the thread of a session: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (ending, ended) = oneshot::channel();
        let inner = Arc::new(Inner {
            options: self.options.clone(),
            rank,
            caller: self.caller,
            client: self.client,
            host: Arc::new(Host::new(true)),
            link_options: self.link_options.clone(),
            number: AtomicU64::new(new_number()),
            connections: AtomicU64::new(0),
            route: watch::Sender::new(None),
            unbound_since: Mutex::new(Instant::now()),
            moved: Notify::new(),
            useless: AtomicU64::new(0),
            sequencers: self.sequencers.clone(),
            ranks: self.itself.clone(),
            over: AtomicBool::new(false),
            error: Mutex::default(),
            runtime: runtime.handle().clone(),
        });
        let background = inner.clone();
        std::thread::Builder::new()
            .name("nacre-session".to_owned())
            .spawn(move || runtime.block_on(run::run(background, ended)))
            .map_err(failed)?;
        begun.insert(rank, Begun { inner: inner.clone(), ending: Some(ending) });
        Ok(inner)
    }
}

impl Inner {
    /// Returns the sequencers that were granted by this rank.
    fn held(&self) -> Vec<Arc<sequencer::State>> {
        let sequencers = self.sequencers.lock();
        sequencers.values().filter(|state| state.grant(self.rank).is_some()).cloned().collect()
    }

    fn state(&self, id: &ObjectId) -> Option<Arc<sequencer::State>> {
        self.sequencers.lock().get(id).cloned()
    }

    /// Begins a session with the rank that a sequencer is about to move to, if requests from here will go there: the first one is to
    /// find a connection.
    fn expect(&self, moving: &Moving) {
        let goes_along = match moving.mode {
            Mode::Client => true,
            Mode::Proxy => false,
            Mode::ProxyHalf => !self.client.is_multiple_of(2),
        };
        let is_used = self.state(&moving.id).is_some_and(|state| state.rank() == self.rank);
        if goes_along
            && is_used
            && let Some(ranks) = self.ranks.upgrade()
        {
            // Where it cannot begin now, the redirection begins it.
            let _ = ranks.rank(moving.to);
        }
    }

    /// Returns whether the session is still spoken for by this binding.
    fn is_bound(&self, route: &Route) -> bool {
        self.route.borrow().as_ref().is_some_and(|present| present.number == route.number)
    }

    /// Gives all sequencers up, because the lease is over or lost.
    fn drop_all(&self) {
        for state in self.held() {
            state.drop_hold(self.rank);
        }
    }

    /// Waits for a future until a time.
    async fn timeout<T>(&self, until: Instant, future: impl Future<Output = T>) -> Option<T> {
        let alarm = self.runtime.spawn(async move { tokio::time::sleep_until(until.into()).await });
        let stop = alarm.abort_handle();
        let done = match futures::future::select(std::pin::pin!(future), alarm).await {
            futures::future::Either::Left((done, _)) => Some(done),
            futures::future::Either::Right(_) => None,
        };
        stop.abort();
        done
    }

    /// Ends the present binding.
    fn unbind(&self) {
        *self.unbound_since.lock() = Instant::now();
        self.route.send_replace(None);
    }

    /// Tells the background that a binding is of no use any more.
    fn leave(&self, number: u64) {
        self.useless.fetch_max(number, Ordering::Relaxed);
        self.moved.notify_one();
    }

    /// Returns whether nobody has found a binding to be of no use any more.
    fn is_usable(&self, route: &Route) -> bool {
        route.number > self.useless.load(Ordering::Relaxed)
    }

    /// Waits until a binding is of no use any more.
    async fn until_left(&self, number: u64) {
        while self.useless.load(Ordering::Relaxed) < number {
            self.moved.notified().await;
        }
    }

    /// Waits until the store names a daemon of another epoch than this one, or than the first one that it names if this one is not known:
    /// a standby has taken over.
    async fn until_taken_over(&self, mut epoch: Option<u64>) {
        loop {
            tokio::time::sleep(LOOK).await;
            // A store that does not answer names nobody.
            let read = crate::role::authority::read(&*self.options.store, self.rank).await;
            let Ok(Some(seen)) = read else { continue };
            if *epoch.get_or_insert(seen.epoch) != seen.epoch {
                return;
            }
        }
    }

    /// Returns the addresses at which the rank may be, those that are most likely first, and the epoch of the daemon that the
    /// store names: 0 if it names none, `None` if it does not answer.
    async fn candidates(&self, hint: &[String]) -> (Vec<Address>, Option<u64>) {
        let mut seen = HashSet::new();
        let mut found: Vec<Address> = Vec::new();
        let mut add = |address: Address| {
            if seen.insert(address.to_string()) {
                found.push(address);
            }
        };
        let read = crate::role::authority::read(&*self.options.store, self.rank);
        let read = tokio::time::timeout(Duration::from_secs(1), read).await;
        let named = read.ok().and_then(Result::ok);
        let epoch = named.as_ref().map(|named| named.as_ref().map_or(0, |named| named.epoch));
        let known = named.flatten().map_or_else(Vec::new, |named| named.addresses);
        known.iter().chain(hint).filter_map(|address| address.parse().ok()).for_each(&mut add);
        self.options.addresses.iter().cloned().for_each(&mut add);
        (found, epoch)
    }
}
