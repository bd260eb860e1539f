//! The store that a daemon serves: an engine of its own, in a folder or in memory, or any other store, for which it
//! then acts as a front end.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre::{Durability, Engine, Store, Uri};
use nacre_logstore::LogStore;
use nacre_object::latency::Latencies;
use nacre_object::watch::{Notified, Watch, WatchOptions};
use nacre_object::{
    ErrorKind, Escaped, Limits, ObjectId, ObjectStore, Once, Outcome, ReadOp, Reply, StoreError, Transaction,
    WindowPosition,
};
use nacre_remote::{LEASE_LENGTH, Leases};
use nacre_rpc::ClusterKey;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};
use xxhash_rust::xxh3::xxh3_128;

use crate::options::ServerOptions;
use crate::wrong_setting;

/// The longest time that a remote store may take to answer and still be considered healthy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of scrubs and compactions that may be under way at once.
const LONG_WORK_MAX: usize = 4;
/// The sizes that a segment of the log may have, in bytes.
const SEGMENT_BYTES: RangeInclusive<u32> = 64 << 10..=1 << 30;
/// The smallest capacity of a store, in bytes.
const CAPACITY_BYTES_MIN: u64 = 1 << 20;
/// The number of segments that a store with a capacity must have room for: the one that is written to, the next one, and
/// those in reserve for cleaning, with the snapshots beside them.
const SEGMENTS_MIN: u64 = 8;
/// The object that is read to check whether such a store answers. It need not exist.
const PROBE: &str = "nacre/health";

/// A store that was opened to be served. Cheap to clone.
#[derive(Clone)]
pub(crate) enum ServedStore {
    /// A store in this process.
    Log {
        store: LogStore,
        /// The folder; `None` for a store in memory.
        folder: Option<PathBuf>,
        /// The places for scrubs and compactions. Each has a thread and a segment in memory. A scrub whose caller is gone
        /// ends with the segment that it is at, a compaction goes on.
        places: Arc<Semaphore>,
        /// The leases on objects, which writes of whoever it may be pass through.
        leases: Arc<Leases>,
    },
    /// A store elsewhere.
    Other(Store),
}

impl ServedStore {
    /// Opens the store of a daemon; one elsewhere must answer. Blocks.
    pub(crate) fn open(uri: &Uri, options: &ServerOptions) -> Result<ServedStore, StoreError> {
        let folder = match &uri.engine {
            Engine::Folder(folder) => Some(folder.clone()),
            Engine::Memory => None,
            _ => {
                options.refuse_log_settings(uri)?;
                if let Some(key) = &uri.options.key {
                    ClusterKey::load(key).map_err(wrong_setting)?;
                }
                let store = Store::open_apart(uri)?;
                futures::executor::block_on(store.connect())?;
                return Ok(ServedStore::Other(store));
            }
        };
        options.check_log_settings(uri, folder.is_some())?;
        let log = options.log_options(&uri.options);
        let store = match &folder {
            None => LogStore::memory(log),
            Some(folder) => LogStore::open(folder, log).map_err(wrong_setting)?,
        };
        let (places, leases) = (Arc::new(Semaphore::new(LONG_WORK_MAX)), Leases::new(LEASE_LENGTH));
        Ok(ServedStore::Log { store, folder, places, leases })
    }

    /// Returns the name of the store, for messages.
    pub(crate) fn name(&self) -> String {
        match self {
            ServedStore::Log { folder: None, .. } => "memory".to_owned(),
            ServedStore::Log { folder: Some(folder), .. } => Escaped::of(folder).to_string(),
            ServedStore::Other(store) => store.name().to_owned(),
        }
    }

    /// Returns whether the store is gone with this process.
    pub(crate) fn is_volatile(&self) -> bool {
        matches!(self, ServedStore::Log { folder: None, .. })
    }

    /// Returns the store's folder, if it has one.
    pub(crate) fn folder(&self) -> Option<&PathBuf> {
        match self {
            ServedStore::Log { folder, .. } => folder.as_ref(),
            ServedStore::Other(_) => None,
        }
    }

    /// Returns the leases on the store's objects. There are none in front of a store elsewhere, which others may change.
    pub(crate) fn leases(&self) -> Option<&Arc<Leases>> {
        match self {
            ServedStore::Log { leases, .. } => Some(leases),
            ServedStore::Other(_) => None,
        }
    }

    /// Returns the store's identity, which is the same whichever process serves the store. Blocks.
    pub(crate) fn identity(&self) -> Result<[u8; 16], StoreError> {
        let store = match self {
            ServedStore::Log { store, .. } => return Ok(store.identity()),
            ServedStore::Other(store) => store,
        };
        let parts = futures::executor::block_on(store.info())?;
        let known = match &parts[..] {
            // The user, and the place from which it is accessed, do not make it another store.
            [only] if only.report["engine"] == "rados" => {
                json!([only.report["cluster"], only.report["pool"], only.report["namespace"]]).to_string()
            }
            _ => store.name().to_owned(),
        };
        Ok(xxh3_128(known.as_bytes()).to_le_bytes())
    }

    /// Returns the engine's own numbers, if it is in this process.
    pub(crate) fn numbers(&self) -> Option<Value> {
        match self {
            ServedStore::Log { store, .. } => serde_json::to_value(store.info()).ok(),
            ServedStore::Other(_) => None,
        }
    }

    /// Returns the times of the engine's syncs, if it is in this process and has a log.
    pub(crate) fn sync_latencies(&self) -> Option<&Latencies> {
        match self {
            ServedStore::Log { store, .. } => Some(store.sync_latencies()),
            ServedStore::Other(_) => None,
        }
    }

    /// Checks whether the store is expected to take writes.
    ///
    /// # Errors
    /// The reason why it is not.
    pub(crate) async fn health(&self) -> Result<(), String> {
        match self {
            ServedStore::Log { store, .. } => {
                store.failure().map_or(Ok(()), |failure| Err(format!("read-only: {}", failure.message)))
            }
            ServedStore::Other(store) => {
                let probe = ObjectId::new(Bytes::from_static(PROBE.as_bytes()));
                let look = async { store.apply(&probe?, Transaction::new().read(ReadOp::Stat)).await };
                match tokio::time::timeout(ANSWER_TIMEOUT, look).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(error.message),
                    Err(_) => Err(format!("{} does not answer", store.name())),
                }
            }
        }
    }

    /// Answers `info`, `scrub` and `compact`; progress is reported as JSON.
    pub(crate) fn administer(
        &self,
        method: &'static str,
        mut progress: impl FnMut(Value) + Send + 'static,
    ) -> Reply<Value> {
        match self {
            ServedStore::Log { store, .. } if method == "info" => Reply::ready(value(store.info())),
            ServedStore::Log { store, places, .. } => {
                let Ok(permit) = places.clone().try_acquire_owned() else {
                    let text = format!(
                        "{LONG_WORK_MAX} scrubs and compactions are under way, some perhaps for clients that are gone; \
                         try again when one has ended"
                    );
                    return Reply::ready(Err(StoreError::new(ErrorKind::Busy, text)));
                };
                let store = store.clone();
                aside(method, move |caller| {
                    let _place = permit;
                    match method {
                        "scrub" => {
                            let report = store.scrub(|at| {
                                caller.check();
                                progress(value(at).unwrap_or(Value::Null));
                            })?;
                            value(report)
                        }
                        _ => store.compact().and_then(|()| value(store.info())),
                    }
                })
            }
            ServedStore::Other(store) => {
                let store = store.clone();
                Reply::pending(async move {
                    let mut parts = match method {
                        "info" => store.info().await?,
                        "scrub" => store.scrub(move |part| progress(part.report)).await?,
                        _ => store.compact().await?,
                    };
                    Ok(match parts.len() {
                        1 => parts.remove(0).report,
                        // A store of several parts reports on each of them.
                        _ => {
                            let part =
                                |part: &nacre::Report| json!({ "place": part.server, "report": part.report });
                            json!({ "parts": parts.iter().map(part).collect::<Vec<_>>() })
                        }
                    })
                })
            }
        }
    }

    /// Finishes pending work, and closes a store of this process. Blocks.
    pub(crate) fn close(&self) -> Result<(), StoreError> {
        match self {
            ServedStore::Log { store, .. } => store.close(),
            ServedStore::Other(store) => store.close(),
        }
    }

    /// Returns a handle for the daemon's own use.
    pub(crate) fn handle(&self) -> Store {
        match self {
            ServedStore::Log { .. } => Store::from_engine(Arc::new(self.clone()), &self.name()),
            ServedStore::Other(store) => store.clone(),
        }
    }
}

impl ObjectStore for ServedStore {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        match self {
            ServedStore::Log { store, leases, .. } => leases.apply(store, object, transaction, None),
            ServedStore::Other(store) => store.apply(object, transaction),
        }
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        match self {
            ServedStore::Log { store, leases, .. } => leases.apply(store, object, transaction, Some(once)),
            ServedStore::Other(store) => store.apply_once(object, transaction, once),
        }
    }

    fn window(&self) -> Option<WindowPosition> {
        match self {
            ServedStore::Log { store, .. } => store.window(),
            ServedStore::Other(store) => store.window(),
        }
    }

    fn version_now(&self, object: &ObjectId) -> Option<u64> {
        match self {
            ServedStore::Log { store, .. } => store.version_now(object),
            ServedStore::Other(store) => store.version_now(object),
        }
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        match self {
            ServedStore::Log { store, .. } => store.list(after, limit),
            // The handle's own method of this name returns pages.
            ServedStore::Other(store) => ObjectStore::list(store, after, limit),
        }
    }

    fn limits(&self) -> Reply<Limits> {
        match self {
            ServedStore::Log { store, .. } => store.limits(),
            ServedStore::Other(store) => store.limits(),
        }
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        match self {
            ServedStore::Log { store, .. } => store.watch(object, options),
            ServedStore::Other(store) => store.watch(object, options),
        }
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        match self {
            ServedStore::Log { store, .. } => store.notify(object, payload, timeout),
            ServedStore::Other(store) => store.notify(object, payload, timeout),
        }
    }
}

/// The store of a daemon without the role `store`: it refuses everything, so that clients can only use the
/// administration.
pub(crate) struct NoObjects;

impl NoObjects {
    fn refusal<T>() -> Reply<T> {
        let text = "this daemon keeps no objects: it runs without the role store";
        Reply::ready(Err(StoreError::new(ErrorKind::Unsupported, text)))
    }
}

impl ObjectStore for NoObjects {
    fn apply(&self, _object: &ObjectId, _transaction: Transaction) -> Reply<Outcome> {
        Self::refusal()
    }

    fn list(&self, _after: Option<&ObjectId>, _limit: usize) -> Reply<Vec<ObjectId>> {
        Self::refusal()
    }
}

impl ServerOptions {
    /// Returns the options of an engine in this process: the daemon's settings, with those of the uri as defaults.
    fn log_options(&self, uri: &nacre::Options) -> nacre_logstore::Options {
        let default = nacre_logstore::Options::default();
        nacre_logstore::Options {
            durability: match self.durability.or(uri.durability) {
                None => default.durability,
                Some(Durability::Always) => nacre_logstore::Durability::Always,
                Some(Durability::Interval(time)) => nacre_logstore::Durability::Interval(time),
                Some(Durability::None) => nacre_logstore::Durability::None,
            },
            create: uri.create.unwrap_or(true),
            segment_bytes: self.segment_bytes.unwrap_or(default.segment_bytes),
            capacity_bytes: self.capacity.or(uri.capacity),
            snapshot_bytes: self.snapshot_bytes.unwrap_or(default.snapshot_bytes),
            ..default
        }
    }

    /// Refuses settings of the built-in engine that contradict each other, or that a store in memory does not have.
    fn check_log_settings(&self, uri: &Uri, in_folder: bool) -> Result<(), StoreError> {
        let invalid = |text: String| Err(StoreError::new(ErrorKind::Invalid, text));
        let of_folders =
            [("durability", self.durability.is_some()), ("snapshot-bytes", self.snapshot_bytes.is_some())];
        if let Some((name, _)) = of_folders.iter().find(|(_, given)| *given && !in_folder) {
            return invalid(format!("{name} is a setting of a store in a folder, and {uri} is none"));
        }
        if self.snapshot_bytes == Some(0) {
            return invalid("snapshot-bytes is at least 1".to_owned());
        }
        let capacity = self.capacity.or(uri.options.capacity);
        if let Some(capacity) = capacity.filter(|capacity| *capacity < CAPACITY_BYTES_MIN) {
            return invalid(format!(
                "a capacity of {capacity} bytes is too small for a store: it must be at least {CAPACITY_BYTES_MIN}"
            ));
        }
        let Some(segment) = self.segment_bytes else { return Ok(()) };
        if !SEGMENT_BYTES.contains(&segment) {
            let (least, most) = (SEGMENT_BYTES.start(), SEGMENT_BYTES.end());
            return invalid(format!("segments of {segment} bytes; they must be {least} to {most} bytes"));
        }
        let needed = SEGMENTS_MIN * u64::from(segment);
        match capacity.filter(|capacity| *capacity < needed) {
            None => Ok(()),
            Some(capacity) => invalid(format!(
                "segments of {segment} bytes are too large for a capacity of {capacity} bytes: a store \
                 takes {SEGMENTS_MIN} of them before it can be written to; make segment-bytes smaller, or \
                 omit it"
            )),
        }
    }

    /// Refuses settings of the built-in engine for any other store.
    fn refuse_log_settings(&self, uri: &Uri) -> Result<(), StoreError> {
        let given = [
            ("durability", self.durability.is_some()),
            ("capacity", self.capacity.is_some()),
            ("segment-bytes", self.segment_bytes.is_some()),
            ("snapshot-bytes", self.snapshot_bytes.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => {
                let text =
                    format!("{name} is a setting of a store in a folder or in memory, and {uri} is neither");
                Err(StoreError::new(ErrorKind::Invalid, text))
            }
        }
    }
}

fn value(value: impl serde::Serialize) -> Result<Value, StoreError> {
    serde_json::to_value(value).map_err(|error| StoreError::new(ErrorKind::Unsupported, error.to_string()))
}

/// The caller of work on a separate thread.
struct Caller<'a>(&'a oneshot::Sender<Result<Value, StoreError>>);

/// The payload of the unwinding that ends work whose caller is gone.
struct CallerGone;

impl Caller<'_> {
    /// Ends the work by unwinding if the caller has dropped the reply. To be called between two steps, where nothing is
    /// locked and nothing is left half done: the engine's callback has no other way to stop it.
    fn check(&self) {
        if self.0.is_closed() {
            resume_unwind(Box::new(CallerGone));
        }
    }
}

/// Runs work that may take long on a separate thread.
fn aside(
    method: &'static str,
    work: impl FnOnce(Caller<'_>) -> Result<Value, StoreError> + Send + 'static,
) -> Reply<Value> {
    let (send, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name(format!("nacre-{method}")).spawn(move || {
        // The work shares nothing with others but the engine, which it leaves as any reader does.
        match catch_unwind(AssertUnwindSafe(|| work(Caller(&send)))) {
            // The caller may be gone.
            Ok(done) => drop(send.send(done)),
            Err(end) if end.is::<CallerGone>() => {
                tracing::info!("a {method} ended early: its client is gone")
            }
            Err(panic) => resume_unwind(panic),
        }
    });
    if let Err(error) = thread {
        let text = format!("cannot start a thread for {method}: {error}");
        return Reply::ready(Err(StoreError::new(ErrorKind::Io, text)));
    }
    Reply::pending(async move {
        let lost = || StoreError::new(ErrorKind::Unknown, "the thread that did it ended in a panic");
        result.await.unwrap_or_else(|_| Err(lost()))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, mpsc};

    use futures::executor::block_on;
    use nacre_object::Fork;

    use super::*;

    #[test]
    fn scrubs_whose_clients_are_gone_are_bounded() {
        let kept = ServedStore::open(&"mem:".parse().unwrap(), &ServerOptions::default()).unwrap();
        let ServedStore::Log { places, .. } = &kept else { panic!("a store in memory") };
        let taken = block_on(places.clone().acquire_many_owned(LONG_WORK_MAX as u32)).unwrap();
        let refused = block_on(kept.administer("scrub", |_| {})).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Busy);
        assert!(block_on(kept.administer("info", |_| {})).is_ok(), "reports are not held up");
        drop(taken);
        assert!(block_on(kept.administer("scrub", |_| {})).is_ok());
        assert_eq!(places.available_permits(), LONG_WORK_MAX);
    }

    #[test]
    fn a_scrub_whose_client_is_gone_ends_between_two_segments() {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("file:{}", folder.path().join("store").display());
        let options = ServerOptions { segment_bytes: Some(64 << 10), ..ServerOptions::default() };
        let kept = ServedStore::open(&store.parse().unwrap(), &options).unwrap();
        let ServedStore::Log { places, .. } = &kept else { panic!("a store in a folder") };
        let object = ObjectId::try_from("o").unwrap();
        for block in 0..16u64 {
            let write = Transaction::new().write(Fork::DEFAULT, block << 15, vec![7; 1 << 15]);
            block_on(kept.apply(&object, write)).unwrap();
        }
        let segments = AtomicU64::new(0);
        let looks = Arc::new((segments, Mutex::new(None)));
        let (started, began) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        *looks.1.lock().unwrap() = Some(wait);
        let counted = looks.clone();
        let scrub = kept.administer("scrub", move |_| {
            counted.0.fetch_add(1, Ordering::SeqCst);
            started.send(()).unwrap();
            let waiting = counted.1.lock().unwrap().take();
            waiting.map(|waiting| waiting.recv());
        });
        began.recv().unwrap();
        drop(scrub);
        go.send(()).unwrap();
        // The thread gives its place back when it ends.
        drop(block_on(places.clone().acquire_many_owned(LONG_WORK_MAX as u32)).unwrap());
        assert_eq!(looks.0.load(Ordering::SeqCst), 1, "there are some ten segments");
        assert!(
            block_on(kept.administer("scrub", |_| {})).unwrap()["findings"].as_array().unwrap().is_empty()
        );
    }

    #[test]
    fn settings_that_a_store_cannot_have_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("file:{}", folder.path().join("store").display());
        let default = ServerOptions::default;
        let always = Some(Durability::Always);
        for (store, options, parts) in [
            ("mem:", ServerOptions { durability: always, ..default() }, &["durability", "in a folder"][..]),
            ("mem:", ServerOptions { snapshot_bytes: Some(1), ..default() }, &["snapshot-bytes"]),
            (&file, ServerOptions { snapshot_bytes: Some(0), ..default() }, &["snapshot-bytes"]),
            ("mem:", ServerOptions { capacity: Some(0), ..default() }, &["capacity of 0 bytes", "1048576"]),
            ("mem:?capacity=5", default(), &["capacity of 5 bytes"]),
            ("mem:", ServerOptions { segment_bytes: Some(0), ..default() }, &["segments of 0 bytes"]),
            (
                &file,
                ServerOptions { segment_bytes: Some(1 << 20), capacity: Some(1 << 20), ..default() },
                &["segments of 1048576 bytes", "capacity of 1048576 bytes", "segment-bytes"],
            ),
        ] {
            let error = ServedStore::open(&store.parse().unwrap(), &options).err().unwrap();
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(parts.iter().all(|part| error.message.contains(part)), "{error}");
        }
        assert!(!folder.path().join("store").exists(), "nothing was made");
    }

    #[test]
    fn a_store_with_the_fewest_segments_takes_writes() {
        let folder = tempfile::tempdir().unwrap();
        let segment = 128 << 10;
        for store in ["mem:".to_owned(), format!("file:{}", folder.path().join("store").display())] {
            let capacity = Some(SEGMENTS_MIN * u64::from(segment));
            let options =
                ServerOptions { segment_bytes: Some(segment), capacity, ..ServerOptions::default() };
            let kept = ServedStore::open(&store.parse().unwrap(), &options).unwrap();
            let object = ObjectId::try_from("o").unwrap();
            for _ in 0..100 {
                let write = Transaction::new().write(Fork::DEFAULT, 0, vec![7; 1 << 16]);
                block_on(kept.apply(&object, write)).unwrap();
            }
            kept.close().unwrap();
        }
    }
}
