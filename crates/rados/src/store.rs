//! The store: chooses for each transaction between RADOS' own operations and a call of `classes/extent.lua`.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use nacre_object::limit::{ATTRIBUTES_MAX, PAGE_ENTRIES_MAX, REFUSAL_BYTES_MAX};
use nacre_object::pace::{PaceOptions, PaceTotals, Paced, PacerLimits};
use nacre_object::{
    Answer, Done, ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction, Write,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{OnceCell, Semaphore, oneshot};

use crate::error::{Attempt, call_failed, errno, failed, no_library, not_opened};
use crate::known::{Knowledge, Known};
use crate::name::{object_id, object_name};
use crate::native;
use crate::record::Header;
use crate::reply::{self, corrupt};
use crate::request;
use crate::script::{self, Routine, Section, Sections};
use crate::sys::{Connection, Library, Operation, Pool, ReadStep, flag};
use crate::uri::Location;

/// Operations under way at once; more wait for their turn here, where waiting blocks nobody.
const OPERATIONS_MAX: usize = 1024;
/// How long a client that has the turn to update a contended region may take before the next one gets it: round trips
/// to an OSD take longer than those within a server, above all while the cluster mends itself.
const TURN_MIN: Duration = Duration::from_millis(5);
const TURN_MAX: Duration = Duration::from_millis(200);

/// Objects in a pool of a Ceph cluster. Cheap to clone; the connection is closed with the last clone.
///
/// Updates of a region for which many clients of one process race take turns ([`nacre_object::pace`]): an OSD cannot
/// let them wait, so it is done on this side.
#[derive(Clone)]
pub struct RadosStore(Paced<Engine>);

/// The store without pacing.
#[derive(Clone)]
struct Engine(Arc<Lazy>);

struct Lazy {
    location: Location,
    connected: OnceCell<Inner>,
}

pub(crate) struct Inner {
    pub(crate) pool: Pool,
    pub(crate) location: Location,
    knowledge: Knowledge,
    turns: Semaphore,
    /// Routines of the class as an OSD compiled them.
    chunks: RwLock<HashMap<Routine, Bytes>>,
    /// Whether the OSDs are too different for that.
    by_text: AtomicBool,
}

impl RadosStore {
    /// A store that connects when it is first used.
    pub fn new(location: Location) -> Self {
        let limits = PacerLimits { turn_min: TURN_MIN, turn_max: TURN_MAX, ..PacerLimits::default() };
        let options = PaceOptions { pacing: location.pacing, limits, ..PaceOptions::default() };
        Self(Paced::new(Engine(Arc::new(Lazy { location, connected: OnceCell::new() })), options))
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

    /// The identity of the cluster (its fsid).
    pub async fn cluster_id(&self) -> Result<String, StoreError> {
        Ok(self.0.inner().connected().await?.pool.fsid())
    }

    /// The address by which the cluster knows this client: what `ceph osd blocklist ls` shows.
    pub async fn client_address(&self) -> Result<String, StoreError> {
        Ok(self.0.inner().connected().await?.pool.address())
    }

    /// Where the store is.
    pub fn location(&self) -> &Location {
        &self.0.inner().0.location
    }

    /// What came of conditional writes so far.
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
}

impl Engine {
    async fn connected(&self) -> Result<&Inner, StoreError> {
        self.0.connected.get_or_try_init(|| Inner::connect(self.0.location.clone())).await
    }
}

impl ObjectStore for Engine {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if let Err(error) = transaction.validate() {
            return Reply::ready(Err(error));
        }
        if transaction.writes.iter().any(|write| matches!(write, Write::ReplaceFork { .. })) {
            let text = "forks of objects on Ceph cannot be replaced by others";
            return Reply::ready(Err(StoreError::new(ErrorKind::Unsupported, text)));
        }
        let (engine, object) = (self.clone(), object.clone());
        started(async move { engine.connected().await?.apply(&object, &transaction).await })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        let (engine, after) = (self.clone(), after.cloned());
        started(async move { engine.connected().await?.list(after, limit.min(PAGE_ENTRIES_MAX)).await })
    }
}

/// A reply whose first operation is sent now, and not when somebody first asks for the reply.
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
    std::thread::spawn(move || sender.send(connect_blocking(&location)).ok());
    receiver
        .await
        .unwrap_or_else(|_| Err(StoreError::new(ErrorKind::Io, "the thread that connects to Ceph died")))
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

/// How a call ended, when the OSD did not fail.
enum Called {
    /// It changed the object, which has this header now.
    Changed(Header),
    /// It changed nothing.
    Unchanged(reply::Reply),
    /// It changed nothing, and its output got lost: librados sent it again, and the OSD remembered that it failed.
    Lost,
}

impl Inner {
    async fn connect(location: Location) -> Result<Self, StoreError> {
        let pool = connect(location.clone()).await?;
        tracing::debug!(pool = location.pool, fsid = pool.fsid(), "connected to Ceph");
        let (knowledge, turns) = (Knowledge::new(), Semaphore::new(OPERATIONS_MAX));
        let (chunks, by_text) = (RwLock::default(), AtomicBool::new(false));
        Ok(Self { pool, location, knowledge, turns, chunks, by_text })
    }

    async fn apply(&self, object: &ObjectId, transaction: &Transaction) -> Result<Outcome, StoreError> {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let name = object_name(object);
        let known = self.knowledge.of(object);
        if self.location.native {
            if let Some(read) = native::only_read(transaction)
                && let Some(outcome) = self.read_natively(object, &name, &known, read).await?
            {
                return Ok(outcome);
            }
            if let Some(outcome) = self.write_natively(object, &name, &known, transaction).await? {
                return Ok(outcome);
            }
        }
        self.call(object, &name, &known, transaction).await
    }

    /// Applies a transaction as one native write, if it is one as far as is known, and the object is what it was
    /// known to be. `None` if it takes a call.
    async fn write_natively(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<Known>,
        transaction: &Transaction,
    ) -> Result<Option<Outcome>, StoreError> {
        let (write, operation, generation) = {
            // The lock is held until the operation is sent, so that what is foretold and what is sent keep the same
            // order.
            let mut known = known.lock();
            let Some(write) = native::plan(transaction, &known) else { return Ok(None) };
            let operation = write.send(&self.pool, name);
            known.foretell(write.after, &write.fork, write.extent);
            (write, operation, known.generation)
        };
        let code = operation.await.code;
        if code >= 0 {
            let done =
                Done { version: write.after.version, existed: write.before.exists, answers: Vec::new() };
            return Ok(Some(Outcome::Done(done)));
        }
        {
            let mut known = known.lock();
            if known.generation == generation {
                known.restart(None);
            }
        }
        if !matches!(-code, errno::ECANCELED | errno::ENOENT) {
            return Err(failed(code, Attempt::Write, &self.location, object));
        }
        // Somebody else wrote the object. If it was this region, what stands there now is wanted.
        if let Some((fork, range)) = native::guarded_region(transaction)
            && (1..=REFUSAL_BYTES_MAX as u64).contains(&range.len)
            && let Some((found, header)) = self.read_range(object, name, known, fork, range, true).await?
            && let Some(refusal) = native::refusal(transaction, (fork, range), &found, &header)
        {
            return Ok(Some(Outcome::Refused(refusal)));
        }
        Ok(None)
    }

    /// Applies a transaction by calls.
    async fn call(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<Known>,
        transaction: &Transaction,
    ) -> Result<Outcome, StoreError> {
        if transaction.writes.is_empty() {
            loop {
                match self.evaluate(object, name, transaction, None, Attempt::Read).await? {
                    Called::Unchanged(reply) => return self.conclude(object, reply),
                    Called::Changed(_) | Called::Lost => {}
                }
            }
        }
        // Answers do not fit into the reply of a call that writes. They are fetched first, and the write then counts
        // on the object's version being still the same; if it is not, it brings the fresh answers back.
        let mut held: Option<(u64, Vec<Answer>)> = None;
        if !transaction.reads.is_empty() {
            let (guards, reads) = (transaction.guards.clone(), transaction.reads.clone());
            let reading = Transaction { guards, reads, writes: Vec::new() };
            match self.evaluate(object, name, &reading, None, Attempt::Read).await? {
                Called::Unchanged(reply::Reply::Answered(answers, header)) => {
                    held = Some((header.version, answers))
                }
                Called::Unchanged(other) => return self.conclude(object, other),
                Called::Changed(_) | Called::Lost => {}
            }
        }
        let mut compacted = false;
        loop {
            let expected = held.as_ref().map(|(version, _)| *version);
            known.lock().calls += 1;
            let called = self.evaluate(object, name, transaction, expected, Attempt::Write).await;
            {
                let mut known = known.lock();
                known.calls -= 1;
                known.restart(if let Ok(Called::Changed(header)) = &called { Some(*header) } else { None });
            }
            match called {
                Ok(Called::Changed(header)) => {
                    if header.wants_compaction() {
                        // Nobody waits for it, and where it fails the next write asks again.
                        drop(self.compact(name, false));
                    }
                    let answers = held.map(|(_, answers)| answers).unwrap_or_default();
                    return Ok(Outcome::Done(Done {
                        version: header.version,
                        existed: header.existed,
                        answers,
                    }));
                }
                Ok(Called::Unchanged(reply::Reply::Answered(answers, header))) => {
                    held = Some((header.version, answers))
                }
                Ok(Called::Unchanged(other)) => return self.conclude(object, other),
                Ok(Called::Lost) => {}
                Err(error) if error.kind == ErrorKind::OutOfSpace && !compacted => {
                    compacted = true;
                    if self.compact(name, true).await.code < 0 {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The outcome of a call that changed nothing.
    fn conclude(&self, object: &ObjectId, reply: reply::Reply) -> Result<Outcome, StoreError> {
        let error = match reply {
            reply::Reply::Refused(refusal) => return Ok(Outcome::Refused(refusal)),
            reply::Reply::Answered(answers, header) => {
                return Ok(Outcome::Done(Done { version: header.version, existed: header.exists, answers }));
            }
            reply::Reply::Crowded(count) => {
                let text = format!("the object would have {count} attributes; the limit is {ATTRIBUTES_MAX}");
                StoreError::new(ErrorKind::Invalid, text)
            }
            reply::Reply::Corrupt(key) => corrupt(&key),
            reply::Reply::Failed(why) => {
                StoreError::new(ErrorKind::Io, format!("the class failed in the OSD: {why}"))
            }
        };
        Err(self.context(error, object))
    }

    /// One call of a transaction.
    async fn evaluate(
        &self,
        object: &ObjectId,
        name: &CStr,
        transaction: &Transaction,
        expected: Option<u64>,
        attempt: Attempt,
    ) -> Result<Called, StoreError> {
        let routine =
            Routine { handler: "apply", sections: request::sections(transaction, expected.is_some()) };
        let request = request::encode(transaction, expected);
        let chunk = self.chunk(name, routine).await;
        let completed = self.start_call(name, &script::call(&chunk, &request)).await;
        let output =
            completed.answers.into_iter().next().map(|answer| answer.into_bytes()).unwrap_or_default();
        if completed.code < 0 && completed.code != -errno::ECANCELED {
            return Err(call_failed(completed.code, attempt, &self.location, object));
        }
        if completed.code >= 0 && attempt == Attempt::Write {
            // A change that was made answers with the header alone.
            return Header::decode(&output).map(Called::Changed).ok_or_else(|| {
                let why = "the OSD made the change and left its answer out: osd_max_write_op_reply_len must be at least 64";
                self.context(StoreError::new(ErrorKind::Unknown, why), object)
            });
        }
        if output.is_empty() {
            return Ok(Called::Lost);
        }
        if output[..] == [script::FOREIGN_CHUNK] {
            // The OSDs do not all run the same Lua: each compiles for itself from now on.
            self.chunks.write().clear();
            self.by_text.store(true, Ordering::Relaxed);
            return Ok(Called::Lost);
        }
        match reply::decode(transaction, output) {
            Some(reply) => reply.map(Called::Unchanged).map_err(|error| self.context(error, object)),
            None => {
                Err(self.context(StoreError::new(ErrorKind::Io, "the OSD's answer makes no sense"), object))
            }
        }
    }

    /// Has the OSD move an object's live bytes together.
    fn compact(&self, name: &CStr, even_if_little: bool) -> Operation {
        let sections = Sections::default().with(Section::Index).with(Section::Compact);
        let source = script::source(Routine { handler: "compact", sections });
        self.start_call(name, &script::call(source.as_bytes(), &[u8::from(even_if_little)]))
    }

    fn start_call(&self, name: &CStr, input: &[u8]) -> Operation {
        let steps = [ReadStep::Call { class: c"lua", method: c"eval_bufferlist", input }];
        self.pool.read(name, &steps, flag::FULL_TRY | flag::RETURNVEC)
    }

    /// The chunk of a routine: compiled, as soon as an OSD has done that once.
    async fn chunk(&self, name: &CStr, routine: Routine) -> Bytes {
        if let Some(chunk) = self.chunks.read().get(&routine) {
            return chunk.clone();
        }
        let source = script::source(routine);
        if self.by_text.load(Ordering::Relaxed) {
            return Bytes::from_static(source.as_bytes());
        }
        let completed = self.start_call(name, &script::compilation(source)).await;
        let chunk =
            completed.answers.into_iter().next().map(|answer| answer.into_bytes()).unwrap_or_default();
        if completed.code < 0 || chunk.is_empty() {
            // Whatever is wrong, the call itself will say it better.
            return Bytes::from_static(source.as_bytes());
        }
        self.chunks.write().insert(routine, chunk.clone());
        chunk
    }

    /// Lists objects. RADOS lists a pool in no order, so every page walks over all names of the namespace and sorts
    /// them; a removed object keeps its version under its name, so each candidate's header is looked at.
    async fn list(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<ObjectId>, StoreError> {
        /// Headers looked at at once.
        const LOOKS: usize = 128;
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut ids = self.names().await?;
        ids.retain(|id| after.as_ref().is_none_or(|after| id > after));
        ids.sort_unstable();
        let mut found = Vec::new();
        for chunk in ids.chunks(LOOKS) {
            let looks: Vec<_> =
                chunk.iter().map(|id| self.pool.read(&object_name(id), &[ReadStep::Xattrs], 0)).collect();
            for (id, look) in chunk.iter().zip(looks) {
                if self.header(id, look.await)?.0.exists {
                    found.push(id.clone());
                }
            }
            if found.len() >= limit {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// The ids of all objects of ours, removed or not, in no order. librados lists by blocking, so this has a thread.
    async fn names(&self) -> Result<Vec<ObjectId>, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let pool = self.pool.clone();
        std::thread::spawn(move || {
            let mut ids = Vec::new();
            let result = pool.each_name(|name| ids.extend(object_id(name)));
            // Let go before the answer is sent: whoever gets it may end the process.
            drop(pool);
            sender.send(result.map(|()| ids)).ok();
        });
        match receiver.await {
            Ok(Ok(ids)) => Ok(ids),
            Ok(Err(code)) => {
                let why = std::io::Error::from_raw_os_error(-code);
                let text = format!("listing pool \"{}\": {why}", self.location.pool);
                Err(StoreError::new(ErrorKind::Unavailable, text))
            }
            Err(_) => Err(StoreError::new(ErrorKind::Io, "the thread that lists the pool died")),
        }
    }

    /// Says on which object, and where, an error came up.
    pub(crate) fn context(&self, error: StoreError, object: &ObjectId) -> StoreError {
        error.context(format_args!("object \"{object}\" in pool \"{}\"", self.location.pool))
    }
}
