//! The store: the connection, which is made when it is first needed, and what all work on it needs.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::pace::{PaceOptions, PaceTotals, Paced, PacerLimits};
use nacre_object::watch::{Notified, Watch, WatchOptions};
use nacre_object::{ErrorKind, Limits, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::cache::Knowledge;
use crate::compact::CompactionReport;
use crate::driver::Driver;
use crate::error::{Attempt, index_failed, no_library, not_opened, of_object, pool_gone};
use crate::index::IndexState;
use crate::limit::{HARD_MAX, object_bytes_max};
use crate::mark::Marker;
use crate::name::object_id;
use crate::program::{Program, ProgramRun};
use crate::purge::{PurgeOptions, PurgeReport};
use crate::record::{Changed, Token};
use crate::script::{self, Routine, Section, Sections};
use crate::scrub::ScrubReport;
use crate::sys::{Connection, Library, Operation, Pool, ReadStep, flag};
use crate::uri::Location;
use crate::watch::Watching;

/// The number of bytes by which a compaction in the background must make an object shorter; the next constant is that
/// for a compaction for a write that did not fit into the object.
pub(crate) const COMPACTION_BYTES_MIN: u32 = 64 << 10;
pub(crate) const NEEDED_COMPACTION_BYTES_MIN: u32 = 4 << 10;
/// The maximum number of extents that one sweep takes out of an index.
const SWEPT_EXTENTS_MAX: u32 = 16 << 10;
/// The shortest time that a client has to update a contended region before the turn passes on; the next constant is the
/// longest. Round trips to an OSD take longer than those within a server, above all while the cluster mends itself.
const TURN_MIN: Duration = Duration::from_millis(5);
const TURN_MAX: Duration = Duration::from_millis(200);

/// A store of objects in a pool of a Ceph cluster. Cheap to clone; the connection is closed with the last clone.
///
/// Updates of a region for which many clients of one process race take turns ([`nacre_object::pace`]): an OSD cannot
/// make them wait, so the client does.
#[derive(Clone, derive_more::Debug)]
#[debug("RadosStore")]
pub struct RadosStore(Paced<Engine>);

/// The store without pacing.
#[derive(Clone)]
struct Engine(Arc<Lazy>);

struct Lazy {
    location: Location,
    connected: OnceLock<Inner>,
    /// The replies that wait for the thread that connects, while there is one.
    waiting: Mutex<Option<Vec<Waiting>>>,
    /// The thread that runs replies which take turns, once there was one.
    driver: OnceLock<Driver>,
}

/// A reply that waits for the connection.
type Waiting = oneshot::Sender<Result<(), StoreError>>;

pub(crate) struct Inner {
    pub(crate) pool: Pool,
    pub(crate) location: Location,
    pub(crate) knowledge: Knowledge,
    pub(crate) tokens: Tokens,
    pub(crate) marker: Arc<Marker>,
    pub(crate) index: IndexState,
    /// True if this user's calls are refused, or the OSDs run none: reads are then assembled from RADOS' own.
    pub(crate) calls_denied: AtomicBool,
    /// Routines of the class as an OSD compiled them.
    pub(crate) chunks: RwLock<HashMap<Routine, Bytes>>,
    /// True if the OSDs differ too much for compiled routines.
    pub(crate) by_text: AtomicBool,
    /// The maximum number of bytes that the OSDs let one object have, once they have told it.
    object_bytes_max: OnceLock<u64>,
    pub(crate) watching: Watching,
}

/// A generator of the tokens of changes: 64 random bits of this connection, and a count, which never has 64 bits.
pub(crate) struct Tokens {
    nonce: u64,
    count: AtomicU64,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        Self { nonce: RandomState::new().hash_one(std::process::id()), count: AtomicU64::new(1) }
    }

    pub(crate) fn next(&self) -> Token {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        ((u128::from(count) << 64) | u128::from(self.nonce)).to_le_bytes()
    }
}

impl RadosStore {
    /// Creates a store that connects when it is first used.
    pub fn new(location: Location) -> Self {
        let limits = PacerLimits { turn_min: TURN_MIN, turn_max: TURN_MAX, ..PacerLimits::default() };
        let options = PaceOptions { pacing: location.pacing, limits, ..PaceOptions::default() };
        let (connected, waiting, driver) = (OnceLock::new(), Mutex::new(None), OnceLock::new());
        let lazy = Lazy { location, connected, waiting, driver };
        Self(Paced::new(Engine(Arc::new(lazy)), options))
    }

    /// Opens the pool that a uri names (see [`Location::parse`]), and connects.
    pub async fn open(uri: &str) -> Result<Self, StoreError> {
        let store = Self::new(Location::parse(uri)?);
        store.connect().await?;
        Ok(store)
    }

    /// Connects now, if that has not been done yet.
    pub async fn connect(&self) -> Result<(), StoreError> {
        self.0.inner().connected().await.map(drop)
    }

    /// Returns the identity of the cluster (its fsid).
    pub async fn cluster_id(&self) -> Result<String, StoreError> {
        Ok(self.0.inner().connected().await?.pool.fsid())
    }

    /// Returns the address by which the cluster knows this client, as `ceph osd blocklist ls` shows it.
    pub async fn client_address(&self) -> Result<String, StoreError> {
        Ok(self.0.inner().connected().await?.pool.address())
    }

    /// Discards an object whose header is damaged, with all that it holds. The remainder is an object that was removed,
    /// at a version above every one that its remains show. Returns false if there is no such object, or none with that
    /// name was ever made.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the header is not damaged: then the object can be removed like any other.
    /// [`ErrorKind::Unsupported`] if a newer version of Nacre wrote it.
    pub async fn discard_damaged(&self, object: &ObjectId) -> Result<bool, StoreError> {
        let inner = self.0.inner().connected().await?;
        inner.discard_damaged(object, inner.tokens.next()).await
    }

    /// Checks whether the header and the index of every object are sound. `progress` gets the number of objects that
    /// are done, and of all objects.
    pub async fn scrub(&self, progress: impl FnMut(u64, u64)) -> Result<ScrubReport, StoreError> {
        self.0.inner().connected().await?.scrub(progress).await
    }

    /// Has the OSDs move the live bytes of every object together where that makes it shorter by 4 KiB, and take out of the
    /// indexes what belongs to no content any more. `progress` gets the number of objects that are done, and of all objects.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if this user may not call the class.
    pub async fn compact(&self, progress: impl FnMut(u64, u64)) -> Result<CompactionReport, StoreError> {
        self.0.inner().connected().await?.compact_all(progress).await
    }

    /// Takes away what removed objects leave behind: their headers, and their entries in the index of names. Objects of which there
    /// is no trace look from then on as if they had been removed at the floor, and begin above it when they are made. Clients
    /// may go on meanwhile, but for those of versions that know no floors. `progress` gets the number of objects that are done,
    /// and of all objects.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the index of names cannot be completed: a newer version made it, say.
    pub async fn purge(
        &self,
        options: PurgeOptions,
        progress: impl FnMut(u64, u64),
    ) -> Result<PurgeReport, StoreError> {
        self.0.inner().connected().await?.purge(options, progress).await
    }

    /// Runs a program on an object, in its OSD: as one operation, with all that it changes.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if this user may not call the class, or the OSDs run none; and those of a write.
    pub async fn run(
        &self,
        object: &ObjectId,
        program: &Program,
        request: &[u8],
    ) -> Result<ProgramRun, StoreError> {
        self.0.inner().connected().await?.run(object, program, request).await
    }

    /// Returns the location of the store.
    pub fn location(&self) -> &Location {
        &self.0.inner().0.location
    }

    /// Returns the totals of conditional writes so far.
    pub fn pace(&self) -> PaceTotals {
        self.0.totals()
    }
}

impl ObjectStore for RadosStore {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.0.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.0.list(after, limit)
    }

    fn limits(&self) -> Reply<Limits> {
        self.0.limits()
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        self.0.watch(object, options)
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.0.notify(object, payload, timeout)
    }
}

impl Engine {
    /// Returns the connection, which is made when it is first needed.
    async fn connected(&self) -> Result<&Inner, StoreError> {
        if let Some(inner) = self.0.connected.get() {
            return Ok(inner);
        }
        Lazy::connect(&self.0, Lazy::make).await.unwrap_or_else(|_| Err(no_connection()))?;
        self.0.connected.get().ok_or_else(no_connection)
    }
}

impl Lazy {
    /// Connects by `make` on a thread, unless one is at it, and returns what will tell the result. The thread does all of it, so
    /// that no reply waits for another one to be looked at.
    fn connect(
        lazy: &Arc<Self>,
        make: impl FnOnce(&Self) -> Result<(), StoreError> + Send + 'static,
    ) -> oneshot::Receiver<Result<(), StoreError>> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = lazy.waiting.lock();
        if lazy.connected.get().is_some() {
            // The thread was done just now.
            sender.send(Ok(())).ok();
            return receiver;
        }
        if let Some(waiting) = &mut *waiting {
            waiting.push(sender);
            return receiver;
        }
        *waiting = Some(vec![sender]);
        drop(waiting);
        let connecting = Arc::clone(lazy);
        let started = spawn(move || {
            // After a panic, too, those that wait need an answer, and the next reply has to try again.
            let made = catch_unwind(AssertUnwindSafe(|| make(&connecting)));
            connecting.answer(made.unwrap_or_else(|_| Err(no_connection())));
        });
        if started.is_err() {
            Arc::clone(lazy).answer(started);
        }
        receiver
    }

    /// Makes the connection. Blocks.
    fn make(&self) -> Result<(), StoreError> {
        Library::get().map_err(|why| no_library(&why))?;
        let pool = connect_blocking(&self.location)?;
        drop(self.connected.set(Inner::new(pool, self.location.clone())));
        Ok(())
    }

    /// Returns the thread that runs replies which take turns; starts it when it is first needed.
    fn driver(&self) -> Result<&Driver, StoreError> {
        if let Some(driver) = self.driver.get() {
            return Ok(driver);
        }
        // Where two start one at once, the one that is not kept ends at once.
        let driver = Driver::start()?;
        Ok(self.driver.get_or_init(|| driver))
    }

    /// Tells all that wait for the connection what came of it.
    fn answer(self: Arc<Self>, made: Result<(), StoreError>) {
        let waiting = self.waiting.lock().take().unwrap_or_default();
        // Let go before the answers are sent: whoever gets one may end the process.
        drop(self);
        for waiting in waiting {
            waiting.send(made.clone()).ok();
        }
    }
}

/// Starts a thread for what blocks in librados.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), StoreError> {
    let started = std::thread::Builder::new().spawn(work).map(drop);
    started.map_err(|error| {
        StoreError::new(ErrorKind::Io, format!("cannot start a thread for librados: {error}"))
    })
}

fn no_connection() -> StoreError {
    StoreError::new(ErrorKind::Io, "the thread that connects to Ceph died")
}

impl ObjectStore for Engine {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if let Err(error) = transaction.validate() {
            return Reply::ready(Err(error));
        }
        let takes_turns = !transaction.reads.is_empty() && !transaction.writes.is_empty();
        let driver = if takes_turns { Some(self.0.driver()) } else { None };
        let (engine, object) = (self.clone(), object.clone());
        let reply = async move { engine.connected().await?.apply(&object, &transaction).await };
        match driver {
            None => started(reply),
            Some(Err(error)) => Reply::ready(Err(error)),
            Some(Ok(driver)) => match started(reply) {
                Reply::Pending(reply) => driver.drive(reply),
                ready => ready,
            },
        }
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        let (engine, after) = (self.clone(), after.cloned());
        started(async move { engine.connected().await?.list(after, limit.min(PAGE_ENTRIES_MAX)).await })
    }

    fn limits(&self) -> Reply<Limits> {
        let engine = self.clone();
        started(async move {
            let inner = engine.connected().await?;
            if let Some(&fork_bytes_max) = inner.object_bytes_max.get() {
                return Ok(Limits { fork_bytes_max });
            }
            // Several replies at once may ask the OSDs, and none of them waits for another. Where no OSD tells, the limit of the
            // class remains, and the next one asks again.
            let fork_bytes_max = match object_bytes_max(&inner.pool).await {
                Some(found) => *inner.object_bytes_max.get_or_init(|| found),
                None => HARD_MAX,
            };
            Ok(Limits { fork_bytes_max })
        })
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        let (engine, object) = (self.clone(), object.clone());
        started(async move { engine.connected().await?.watching.watch(&object, options).await })
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        let (engine, object) = (self.clone(), object.clone());
        started(async move { engine.connected().await?.watching.notify(&object, payload, timeout).await })
    }
}

/// Starts a reply, so that its first operation is sent now, and not when the reply is first polled.
fn started<T: Send + 'static>(
    future: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Reply<T> {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Reply::ready(result),
        Poll::Pending => Reply::Pending(future),
    }
}

/// Connects on a thread of its own, because librados' way of connecting blocks.
pub(crate) async fn connect(location: Location) -> Result<Pool, StoreError> {
    Library::get().map_err(|why| no_library(&why))?;
    let (sender, receiver) = oneshot::channel();
    spawn(move || drop(sender.send(connect_blocking(&location))))?;
    receiver.await.unwrap_or_else(|_| Err(no_connection()))
}

fn connect_blocking(location: &Location) -> Result<Pool, StoreError> {
    // A parsed location holds no zero byte; in one made by hand it ends the string.
    let text = |text: &str| CString::new(text.split('\0').next().unwrap_or("")).unwrap_or_default();
    // librados counts time-outs in whole seconds.
    let seconds = text(&location.timeout.as_millis().div_ceil(1000).max(1).to_string());
    let mut settings: Vec<(CString, CString)> = vec![
        (c"rados_osd_op_timeout".into(), seconds.clone()),
        (c"rados_mon_op_timeout".into(), seconds.clone()),
        (c"client_mount_timeout".into(), seconds),
        // Submitting must never block: how much is under way is bounded on our side.
        (c"objecter_inflight_ops".into(), c"1000000".into()),
        (c"objecter_inflight_op_bytes".into(), c"1099511627776".into()),
        // What goes wrong is said in errors, not on the terminal.
        (c"log_to_stderr".into(), c"false".into()),
        (c"err_to_stderr".into(), c"false".into()),
        (c"log_file".into(), c"".into()),
        (c"admin_socket".into(), c"".into()),
    ];
    if let Some(keyring) = &location.keyring {
        settings.push((c"keyring".into(), text(keyring)));
    }
    let (id, pool, namespace) = (text(&location.id), text(&location.pool), text(&location.namespace));
    let conf = location.conf.as_deref().map(text);
    let connection = Connection {
        id: &id,
        conf: conf.as_deref(),
        settings: &settings,
        pool: &pool,
        namespace: &namespace,
    };
    Pool::connect(&connection).map_err(|(step, code)| not_opened(step, code, location))
}

impl Inner {
    fn new(pool: Pool, location: Location) -> Self {
        tracing::debug!(pool = location.pool, fsid = pool.fsid(), "connected to Ceph");
        let (knowledge, tokens) = (Knowledge::new(), Tokens::new());
        let marker = Arc::new(Marker::new(pool.clone(), location.clone()));
        let watching = Watching::new(pool.clone(), &location, Arc::clone(&marker));
        Self {
            pool,
            location,
            knowledge,
            tokens,
            marker,
            index: IndexState::default(),
            calls_denied: AtomicBool::new(false),
            chunks: RwLock::default(),
            by_text: AtomicBool::new(false),
            object_bytes_max: OnceLock::new(),
            watching,
        }
    }

    /// Makes the OSD move an object's live bytes together, if that makes it shorter by `bytes_min` bytes.
    pub(crate) fn compact(&self, name: &CStr, bytes_min: u32) -> Operation {
        let sections = Sections::default().with(Section::Index).with(Section::Compact);
        self.tend(name, Routine { handler: "compact", sections }, bytes_min)
    }

    /// Makes the OSD take extents out of the index that belong to no fork any more.
    pub(crate) fn sweep(&self, name: &CStr) -> Operation {
        let sections = Sections::default().with(Section::Index).with(Section::Sweep);
        self.tend(name, Routine { handler: "sweep", sections }, SWEPT_EXTENTS_MAX)
    }

    /// Makes the OSD take all such extents out of the index, in calls of bounded length. A failure leaves the rest.
    pub(crate) async fn sweep_all(&self, name: &CStr) {
        loop {
            let completed = self.sweep(name).await;
            let output = completed.answers.into_iter().next().map(|answer| answer.into_bytes());
            let changed = output.and_then(|output| Changed::decode(&output));
            if completed.code < 0 || !changed.is_some_and(|changed| changed.unswept) {
                return;
            }
        }
    }

    /// Starts a call that changes the way in which an object is stored, and nothing of its content.
    fn tend(&self, name: &CStr, routine: Routine, bound: u32) -> Operation {
        let request = [&self.tokens.next()[..], &bound.to_le_bytes()].concat();
        let input = script::call(script::source(routine).as_bytes(), &request);
        self.start_call(name, &input, Attempt::Write)
    }

    pub(crate) fn start_call(&self, name: &CStr, input: &[u8], attempt: Attempt) -> Operation {
        let step = ReadStep::Call { class: c"lua", method: c"eval_bufferlist", input };
        match attempt {
            Attempt::Read => self.pool.read(name, &[step], flag::FULL_TRY),
            Attempt::Write => self.pool.call(name, &step, flag::FULL_TRY | flag::RETURNVEC),
        }
    }

    /// Returns the chunk of a routine: compiled, as soon as an OSD has done that once.
    pub(crate) async fn chunk(&self, name: &CStr, routine: Routine) -> Bytes {
        if let Some(chunk) = self.chunks.read().get(&routine) {
            return chunk.clone();
        }
        let source = script::source(routine);
        if self.by_text.load(Ordering::Relaxed) {
            return Bytes::from_static(source.as_bytes());
        }
        let completed = self.start_call(name, &script::compilation(source.as_bytes()), Attempt::Read).await;
        let chunk =
            completed.answers.into_iter().next().map(|answer| answer.into_bytes()).unwrap_or_default();
        if completed.code < 0 || chunk.is_empty() {
            // Whatever is wrong, the call itself will say it better.
            return Bytes::from_static(source.as_bytes());
        }
        self.chunks.write().insert(routine, chunk.clone());
        chunk
    }

    /// Returns the ids of all objects of Nacre's, removed or not, in no order. librados lists by blocking, so this runs
    /// on a thread.
    pub(crate) async fn names(&self) -> Result<Vec<ObjectId>, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let pool = self.pool.clone();
        spawn(move || {
            let mut ids = Vec::new();
            let result = pool.each_name(|name| ids.extend(object_id(name)));
            // A pool that was removed lists like one that is empty.
            let exists = pool.exists();
            // Let go before the answer is sent: whoever gets it may end the process.
            drop(pool);
            sender.send(result.map(|()| exists.then_some(ids))).ok();
        })?;
        match receiver.await {
            Ok(Ok(Some(ids))) => Ok(ids),
            Ok(Ok(None)) => Err(self.pool_is_gone()),
            Ok(Err(code)) => Err(self.index_failed(code)),
            Err(_) => Err(StoreError::new(ErrorKind::Io, "the thread that lists the pool died")),
        }
    }

    fn pool_is_gone(&self) -> StoreError {
        pool_gone().context(format_args!("listing pool \"{}\"", self.location.pool))
    }

    /// Checks that the pool still exists, after nothing was found in it.
    pub(crate) fn pool_is_listed(&self) -> Result<(), StoreError> {
        if self.pool.exists() { Ok(()) } else { Err(self.pool_is_gone()) }
    }

    /// Returns the error for an operation on all of the pool, or on the index of names, that ended with a negative code.
    pub(crate) fn index_failed(&self, code: i32) -> StoreError {
        index_failed(code, self.pool.exists(), &self.location)
    }

    /// Returns a token that no change of any client has.
    pub(crate) fn token(&self) -> Token {
        self.tokens.next()
    }

    /// Adds to an error the object and the pool.
    pub(crate) fn context(&self, error: StoreError, object: &ObjectId) -> StoreError {
        of_object(error, &self.location, object)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use nacre_object::ReadOp;
    use nacre_object::testkit::{block_on, block_on_for};

    use super::*;

    #[test]
    fn no_reply_waits_for_another_one_to_be_looked_at() {
        // There is nothing to connect to, which takes the same way.
        let location = Location { conf: Some("/nowhere/ceph.conf".into()), ..Location::new("pool") };
        let (store, object) = (RadosStore::new(location), ObjectId::try_from("a").unwrap());
        let mut replies = [(); 3].map(|()| store.apply(&object, Transaction::new().read(ReadOp::Stat)));
        // The last one first. The limit only ends a test that would hang.
        let [.., last] = &mut replies;
        let limit = Duration::from_secs(120);
        let result = block_on_for(limit, |context| Pin::new(&mut *last).poll(context));
        assert!(result.expect("waited in vain").is_err());
        let [first, second, _] = replies;
        assert!(block_on(first).is_err() && block_on(second).is_err());
    }

    #[test]
    fn a_panic_while_connecting_is_an_error_for_all_that_wait_and_the_next_one_tries_again() {
        let location = Location::new("pool");
        let (connected, waiting, driver) = (OnceLock::new(), Mutex::new(None), OnceLock::new());
        let lazy = Arc::new(Lazy { location, connected, waiting, driver });
        let (go, start) = std::sync::mpsc::channel::<()>();
        let first = Lazy::connect(&lazy, move |_| {
            start.recv().ok();
            panic!("as the test wants it");
        });
        let second = Lazy::connect(&lazy, |_| unreachable!("the first one is at it"));
        drop(go);
        let limit = Duration::from_secs(120);
        for mut waiting in [first, second] {
            let result = block_on_for(limit, |context| Pin::new(&mut waiting).poll(context));
            assert!(result.expect("waited in vain").expect("no answer").is_err());
        }
        let failure = StoreError::new(ErrorKind::Unavailable, "there is no cluster");
        let third = Lazy::connect(&lazy, move |_| Err(failure));
        assert_eq!(block_on(third).unwrap().unwrap_err().kind, ErrorKind::Unavailable);
    }
}
