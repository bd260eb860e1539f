//! The daemon's part in the cluster: its beacons, its entry in the map of servers, its watch over the others, and what it
//! writes into the cluster log.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use nacre_class::{CLASSES_OBJECT, Registry, StoreRegistry};
use nacre_map::cluster::{self, Load};
use nacre_map::health::Settings;
use nacre_map::log::{Level, Log, Writer};
use nacre_object::watch::WatchOptions;
use nacre_object::{ErrorKind, ObjectId, ObjectStore, StoreError};
use nacre_remote::{Membership, Operation, RequestOutcome, Requests};
use nacre_rpc::server::Stats;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::lock;
use crate::options::{Beacons, ServerOptions};
use crate::served_store::ServedStore;

/// The time between two beacons unless the settings say otherwise.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// The pause before the changes of classes are looked at again after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The time that the last lines may take to be appended.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// The daemon at a glance, for its beacons and for whoever asks.
pub(crate) struct Summary {
    pub(crate) kept: ServedStore,
    pub(crate) requests: Arc<Requests>,
    pub(crate) roles: Vec<&'static str>,
    pub(crate) name: String,
    pub(crate) started: Instant,
    /// The server's counters, once it serves.
    pub(crate) stats: OnceLock<Arc<Stats>>,
}

impl Summary {
    async fn load(&self) -> Load {
        let counts = Operation::ALL.iter().flat_map(|(operation, _)| {
            RequestOutcome::ALL.iter().map(|(ending, _)| self.requests.get(*operation, *ending))
        });
        let stats = self.stats.get();
        Load {
            up_s: self.started.elapsed().as_secs(),
            connections: stats.map_or(0, |stats| stats.connections.get()),
            in_flight: stats.map_or(0, |stats| stats.in_flight.get()),
            requests: counts.sum(),
            error: self.kept.health().await.err(),
        }
    }

    /// Returns the answer to the call `status`.
    pub(crate) async fn report(&self) -> Value {
        let load = self.load().await;
        json!({ "server": self.name, "roles": self.roles, "store": self.kept.name(), "load": load })
    }
}

/// The thread of a daemon's part in the cluster. Dropping this ends it.
pub(crate) struct Cluster {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the daemon's part in the cluster; `None` if it has none.
///
/// # Errors
/// `Io` if no thread can be started.
pub(crate) fn start(
    options: &ServerOptions,
    membership: &Membership,
    kept: &ServedStore,
    summary: Arc<Summary>,
) -> Result<Option<Cluster>, StoreError> {
    let interval = match options.beacons {
        Beacons::Every(interval) => Some(interval),
        // There is nobody to watch over a server that keeps its store alone, and nobody whom it could tell.
        Beacons::Default => Some(INTERVAL_DEFAULT).filter(|_| !membership.is_alone()),
        Beacons::None => None,
    };
    // The one member that keeps the classes tells of their changes; a store elsewhere has others for that.
    let classes = ObjectId::new(CLASSES_OBJECT)?;
    let reports_classes = matches!(kept, ServedStore::Log { .. }) && membership.keeps(&classes);
    if interval.is_none() && !reports_classes {
        return Ok(None);
    }
    let failed = |error: std::io::Error| {
        StoreError::new(ErrorKind::Io, format!("cannot start the thread that sends beacons: {error}"))
    };
    let store = lock::objects(options, membership, kept)?;
    let (writer, appended) = Writer::new(Log::new(store.clone(), Default::default())?, &summary.name);
    let beacons = interval.map(|interval| cluster::Options {
        name: summary.name.clone(),
        rank: membership.own() as u64,
        address: summary.name.clone(),
        roles: summary.roles.iter().map(|role| (*role).to_owned()).collect(),
        interval,
        health: Settings { silence: options.down_after, ..Settings::default() },
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = stopped.map(drop).shared();
    let own = kept.clone();
    let work = async move {
        let appended = tokio::spawn(appended);
        let announced = {
            let (writer, stopped) = (writer.clone(), stopped.clone());
            async move {
                if reports_classes {
                    tokio::select! {
                        announced = report_classes(own, classes, writer) => warn(announced),
                        () = stopped => {}
                    }
                }
            }
        };
        let sent = async move {
            if let Some(options) = beacons {
                let load = move || -> BoxFuture<'static, Load> {
                    let summary = summary.clone();
                    async move { summary.load().await }.boxed()
                };
                warn(cluster::run(store, options, Box::new(load), writer, stopped).await);
            }
        };
        futures::join!(announced, sent);
        // All writers are gone, so it ends when the last line is appended.
        let _ = tokio::time::timeout(FLUSH_MAX, appended).await;
    };
    let thread = std::thread::Builder::new()
        .name("nacre-cluster".to_owned())
        .spawn(move || runtime.block_on(work))
        .map_err(failed)?;
    Ok(Some(Cluster { stop: Some(stop), thread: Some(thread) }))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that sends beacons ended in a panic");
        }
    }
}

fn warn(ended: Result<(), StoreError>) {
    if let Err(error) = ended
        && error.kind != ErrorKind::Closed
    {
        tracing::warn!("the daemon's part in the cluster ends: {error}");
    }
}

/// Writes a line for every version of a class that is put, and for every class that is removed, until the store is closed.
/// After another failure it goes on; what changed meanwhile is told then.
async fn report_classes(kept: ServedStore, object: ObjectId, writer: Writer) -> Result<(), StoreError> {
    let registry = StoreRegistry::new(Arc::new(kept.clone()));
    let mut known: Option<BTreeMap<String, Option<u64>>> = None;
    loop {
        match report_changes(&kept, &object, &registry, &mut known, &writer).await {
            Err(error) if error.kind == ErrorKind::Closed => return Err(error),
            Err(error) => tracing::debug!("the changes of classes: {error}; trying again"),
            Ok(()) => {}
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Tells of the changes of classes since those that are known, until the watch over them ends.
async fn report_changes(
    kept: &ServedStore,
    object: &ObjectId,
    registry: &StoreRegistry,
    known: &mut Option<BTreeMap<String, Option<u64>>>,
    writer: &Writer,
) -> Result<(), StoreError> {
    let mut watch = kept.watch(object, WatchOptions::default()).await?;
    loop {
        let catalogue = registry.catalogue().await?;
        let readable = catalogue.classes.iter().map(|(name, class)| (name.clone(), Some(class.version)));
        let unreadable = catalogue.unreadable.keys().map(|name| (name.clone(), None));
        let now: BTreeMap<String, Option<u64>> = readable.chain(unreadable).collect();
        if let Some(known) = known.as_ref() {
            for (name, version) in now.iter().filter(|(name, version)| known.get(*name) != Some(version)) {
                match version {
                    Some(version) => {
                        writer.write(Level::Info, &format!("class {name} is at version {version}"))
                    }
                    None => writer.write(Level::Warning, &catalogue.unreadable[name]),
                }
            }
            for name in known.keys().filter(|name| !now.contains_key(*name)) {
                writer.write(Level::Info, &format!("class {name} was removed"));
            }
        }
        *known = Some(now);
        match watch.next().await {
            Some(event) => drop(event?),
            None => return Ok(()),
        }
    }
}
