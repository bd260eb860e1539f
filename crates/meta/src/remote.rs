//! The client of a rank: a session whose lease is renewed in the background, and sequencers in it that are cached while they
//! are granted.
//!
//! A cached sequencer is a tail and a bound in this process. Positions come from it by one compare-and-swap, until the bound
//! is reached or the background has closed it: because others wait, or because the lease is over.

mod cache;
mod call;
mod run;
mod sequencer;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nacre_object::{ErrorKind, ObjectId, ObjectStore, StoreError};
use nacre_rpc::Address;
use nacre_rpc::client::{Host, Link, LinkOptions};
use parking_lot::Mutex;
pub use sequencer::{Sequencer, Statistics};
use tokio::sync::{Notify, oneshot, watch};

/// The longest pause between attempts to reach a daemon.
const BACKOFF_MAX: Duration = Duration::from_millis(50);
/// The longest time for which a daemon may say nothing at all.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// The settings of a session.
#[derive(Clone, derive_more::Debug)]
pub struct SessionOptions {
    /// The store, which says who has the authority. It must not depend on the runtime of a caller.
    #[debug(skip)]
    pub store: Arc<dyn ObjectStore>,
    /// The number of the rank.
    pub rank: u32,
    /// The addresses of the store's servers.
    pub addresses: Vec<Address>,
    /// The settings of connections.
    pub link: LinkOptions,
    /// The longest time for which a call waits for a rank.
    pub patience: Duration,
}

/// A connection to the rank over which the session is spoken for.
#[derive(Clone)]
pub(crate) struct Route {
    link: Arc<Link>,
    /// A further connection for round trips, which is driven in the runtime of whoever uses it first.
    round_trips: Arc<Link>,
    /// The number of the binding, which grows.
    number: u64,
}

/// A session. Cheap to clone; it ends with the last handle on it and on its sequencers.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
    ending: Arc<Shutdown>,
}

/// The end of a session, which comes when this is dropped or told.
struct Shutdown(Mutex<Option<oneshot::Sender<oneshot::Sender<()>>>>);

pub(crate) struct Inner {
    options: SessionOptions,
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
    sequencers: Mutex<HashMap<ObjectId, Arc<sequencer::State>>>,
    /// True once the session has ended.
    over: AtomicBool,
    /// The reason why there is no binding.
    error: Mutex<Option<StoreError>>,
    /// The runtime of the background, whose clock is there for callers without one.
    runtime: tokio::runtime::Handle,
}

impl Session {
    /// Begins a session. Nothing is connected before it is used.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn begin(options: SessionOptions) -> Result<Session, StoreError> {
        let mut link = options.link.clone();
        link.keeps_session = false;
        link.features = 0;
        link.backoff_max = link.backoff_max.min(BACKOFF_MAX);
        link.silence_timeout = link.silence_timeout.min(SILENCE_MAX);
        let failed = |error: std::io::Error| {
            StoreError::new(ErrorKind::Io, format!("cannot start the thread of a session: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (ending, ended) = oneshot::channel();
        let inner = Arc::new(Inner {
            host: Arc::new(Host::new(true)),
            link_options: Arc::new(link),
            number: AtomicU64::new(new_number()),
            connections: AtomicU64::new(0),
            route: watch::Sender::new(None),
            unbound_since: Mutex::new(Instant::now()),
            moved: Notify::new(),
            useless: AtomicU64::new(0),
            sequencers: Mutex::default(),
            over: AtomicBool::new(false),
            error: Mutex::default(),
            runtime: runtime.handle().clone(),
            options,
        });
        let background = inner.clone();
        std::thread::Builder::new()
            .name("nacre-session".to_owned())
            .spawn(move || runtime.block_on(run::run(background, ended)))
            .map_err(failed)?;
        Ok(Session { inner, ending: Arc::new(Shutdown(Mutex::new(Some(ending)))) })
    }

    /// Returns a handle on a sequencer, whether it exists or not.
    pub fn sequencer(&self, id: &ObjectId) -> Sequencer {
        let mut sequencers = self.inner.sequencers.lock();
        let state =
            sequencers.entry(id.clone()).or_insert_with(|| Arc::new(sequencer::State::new(id.clone())));
        Sequencer { session: self.clone(), state: state.clone() }
    }

    /// Asks whoever has the authority to hand it over to a standby, and waits until it has accepted that.
    ///
    /// # Errors
    /// `Invalid` if there is no standby, `Unavailable` if there is no rank.
    pub async fn hand_over(&self) -> Result<(), StoreError> {
        call::hand_over(&self.inner).await
    }

    /// Ends the session: gives back what it holds, and waits until the rank knows it or cannot be reached.
    pub async fn end(&self) {
        let ending = self.ending.0.lock().take();
        if let Some(ending) = ending {
            let (done, over) = oneshot::channel();
            if ending.send(done).is_ok() {
                // It is over as well if the thread is gone.
                let _ = over.await;
            }
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.inner.number.load(Ordering::Relaxed))
    }
}

/// Returns the number of a new session, which nobody else draws.
fn new_number() -> u64 {
    rand::random::<u64>().max(1)
}

impl Inner {
    fn held(&self) -> Vec<Arc<sequencer::State>> {
        let sequencers = self.sequencers.lock();
        sequencers.values().filter(|state| state.is_held()).cloned().collect()
    }

    fn state(&self, id: &ObjectId) -> Option<Arc<sequencer::State>> {
        self.sequencers.lock().get(id).cloned()
    }

    /// Returns whether the session is still spoken for by this binding.
    fn is_bound(&self, route: &Route) -> bool {
        self.route.borrow().as_ref().is_some_and(|present| present.number == route.number)
    }

    /// Gives all sequencers up, because the lease is over or lost.
    fn drop_all(&self) {
        for state in self.held() {
            state.drop_hold();
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

    /// Returns the addresses at which the rank may be, those that are most likely first.
    async fn candidates(&self, hint: &[String]) -> Vec<Address> {
        let mut seen = HashSet::new();
        let mut found: Vec<Address> = Vec::new();
        let mut add = |address: Address| {
            if seen.insert(address.to_string()) {
                found.push(address);
            }
        };
        let read = crate::role::authority::read(&*self.options.store, self.options.rank);
        let read = tokio::time::timeout(Duration::from_secs(1), read).await;
        let known = read.ok().and_then(Result::ok).flatten().map_or_else(Vec::new, |seen| seen.addresses);
        known.iter().chain(hint).filter_map(|address| address.parse().ok()).for_each(&mut add);
        self.options.addresses.iter().cloned().for_each(&mut add);
        found
    }
}
