//! The server side: short methods run where calls come in, long ones on threads of their own, beside the objects.
//!
//! Handing a call to another thread and back costs more than most methods take, so a call runs on the connection's thread at first,
//! for a few instructions only. If they do not suffice, nothing has happened yet: the call runs again on a thread for long methods, and
//! the next calls of the method begin there. So a method that runs for as long as its bounds allow holds up neither transactions
//! nor, as long as a thread is left, other calls; and one connection has at most half of the threads.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::executor::{ThreadPool, ThreadPoolBuilder};
use futures::future::RemoteHandle;
use futures::task::SpawnExt;
use nacre_object::{ErrorKind, ObjectId, ObjectStore, StoreError};
use nacre_rpc::{Handled, Incoming, Outbox, Peer, Service, control};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::wire::{self, Received};
use crate::bounds::{Bound, Bounds};
use crate::error::CallError;
use crate::registry::{Registry, StoreRegistry};
use crate::runtime::{Called, Place, Runtime};

/// The smallest number of threads: while some run to their bounds, others are left.
const THREADS_MIN: usize = 8;
/// The memory that is reserved for the reply to a call, beside its output: mostly its log.
const REPLY_BYTES: usize = 96 << 10;
/// The output for which memory is reserved, unless the method is known to have more.
const OUTPUT_BYTES: u64 = 32 << 10;
/// The number of methods that are known to be long or to have more output.
const UNUSUAL_MAX: usize = 4096;
/// The instructions that a method may take on the thread of its connection: a tenth of a millisecond or two.
const SHORT_INSTRUCTIONS: u64 = 10_000;
/// The bytes that it may allocate there. Longer strings take time that is no instructions.
const SHORT_BYTES: u64 = 512 << 10;
/// The time that it may run there: a few instructions can take long, too.
const SHORT_WALL: Duration = Duration::from_millis(5);
/// The reads that it may make there, after each of which it runs anew.
const SHORT_READS: u32 = 64;
/// The length of its class's text, which may have to be compiled first, in bytes.
const SHORT_TEXT_BYTES: usize = 32 << 10;
/// The number of calls of a connection that may be under way there: each has memory while it waits for the store.
const SHORT_CALLS: usize = 64;
/// The number of calls after which a method that was long is tried there again.
const LONG_CALLS: u32 = 100;
/// The time that the calls of a connection run at a stretch while other connections of the thread wait.
const SLICE: Duration = Duration::from_micros(500);

/// The parts that a server's classes need.
#[derive(derive_more::Debug)]
pub struct Options {
    /// The objects that the server keeps.
    #[debug(skip)]
    pub objects: Arc<dyn ObjectStore>,
    /// All objects of the store, those with the classes among them.
    #[debug(skip)]
    pub store: Arc<dyn ObjectStore>,
    /// Returns whether the server keeps an object.
    #[debug(skip)]
    pub keeps: Box<dyn Fn(&ObjectId) -> bool + Send + Sync>,
    /// The number of threads that run methods; 0 for four to each processor, and eight at least.
    pub threads: usize,
}

/// The methods of a server's classes, and the threads that run them.
#[derive(derive_more::Debug)]
#[debug("Runner")]
pub struct Runner {
    shared: Arc<Shared>,
    pool: ThreadPool,
    threads: usize,
}

struct Shared {
    objects: Arc<dyn ObjectStore>,
    keeps: Box<dyn Fn(&ObjectId) -> bool + Send + Sync>,
    registry: StoreRegistry,
    runtime: Runtime,
    /// The methods that are not as most are, by the hash of class and method.
    unusual: Mutex<HashMap<u64, Unusual>>,
    hasher: RandomState,
    /// True once the server stops: what has not begun by then never does.
    stopping: AtomicBool,
    tally: CallCounts,
}

/// The knowledge of a method that is not as most are.
#[derive(Clone, Copy)]
struct Unusual {
    /// The bytes to reserve for its output.
    output_bytes: u64,
    /// The number of its next calls that begin on the threads, since one took more than it may on the thread of its connection. Another
    /// input, or a pause of the machine, may have been the reason.
    long_calls: u32,
}

impl Default for Unusual {
    /// Returns what is taken for granted of a method that is not known.
    fn default() -> Self {
        Self { output_bytes: OUTPUT_BYTES, long_calls: 0 }
    }
}

/// Counts for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that took effect, or read what they wanted.
    pub done: u64,
    /// Calls whose method failed.
    pub failed: u64,
    /// Calls that exceeded a bound.
    pub stopped: u64,
    /// Calls that were refused for a fence, or given up, or failed with the store.
    pub refused: u64,
    /// Attempts that were made again because others changed the object meanwhile.
    pub conflicts: u64,
    /// Instructions of all calls that took effect.
    pub instructions: u64,
}

#[derive(Default)]
struct CallCounts {
    done: AtomicU64,
    failed: AtomicU64,
    stopped: AtomicU64,
    refused: AtomicU64,
    conflicts: AtomicU64,
    instructions: AtomicU64,
}

impl CallCounts {
    fn count(&self, result: &Result<Called, CallError>) {
        let counter = match result {
            Ok(called) => {
                self.conflicts.fetch_add(called.attempts.saturating_sub(1).into(), Ordering::Relaxed);
                self.instructions.fetch_add(called.instructions, Ordering::Relaxed);
                &self.done
            }
            Err(CallError::Failed { .. }) => &self.failed,
            Err(CallError::Exceeded { .. }) => &self.stopped,
            Err(CallError::Fenced { .. } | CallError::Contended { .. } | CallError::Store(_)) => {
                &self.refused
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Runner {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// `Io` if a thread cannot be started.
    pub fn start(options: Options) -> Result<Runner, StoreError> {
        let threads = match options.threads {
            0 => {
                std::thread::available_parallelism().map_or(1, usize::from).saturating_mul(4).max(THREADS_MIN)
            }
            threads => threads,
        };
        let pool = ThreadPoolBuilder::new().pool_size(threads).name_prefix("nacre-class-").create();
        let pool = pool.map_err(|error| {
            let text = format!("cannot start the threads that run methods: {error}");
            StoreError::new(ErrorKind::Io, text)
        })?;
        let shared = Shared {
            objects: options.objects,
            keeps: options.keeps,
            registry: StoreRegistry::new(options.store),
            // One machine for each thread, so that none waits for another's.
            runtime: Runtime::new(threads),
            unusual: Mutex::default(),
            hasher: RandomState::new(),
            stopping: AtomicBool::new(false),
            tally: CallCounts::default(),
        };
        Ok(Runner { shared: Arc::new(shared), pool, threads })
    }

    /// Returns the service by which clients call methods.
    pub fn service(&self) -> ClassService {
        let (shared, pool) = (self.shared.clone(), self.pool.clone());
        ClassService { shared, pool, calls_max: (self.threads / 2).max(1) }
    }

    /// Lets no further call begin. Those that wait are refused; those that run end by themselves, within their bounds.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns what came of the calls so far.
    pub fn counts(&self) -> Counts {
        let CallCounts { done, failed, stopped, refused, conflicts, instructions } = &self.shared.tally;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            done: get(done),
            failed: get(failed),
            stopped: get(stopped),
            refused: get(refused),
            conflicts: get(conflicts),
            instructions: get(instructions),
        }
    }

    /// Returns the number of current classes.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn classes(&self) -> Result<usize, StoreError> {
        Ok(self.shared.registry.catalogue().await?.classes.len())
    }
}

/// The service by which clients call methods.
#[derive(derive_more::Debug)]
#[debug("ClassService")]
pub struct ClassService {
    shared: Arc<Shared>,
    pool: ThreadPool,
    calls_max: usize,
}

/// The state that is kept for a connection.
#[derive(derive_more::Debug)]
#[debug("ClassConnection")]
pub struct ClassConnection {
    /// The permits to run a method on the threads.
    calls: Arc<Semaphore>,
    /// The permits to run one on the thread of the connection.
    short: Arc<Semaphore>,
    slice: Arc<Slice>,
}

/// The time that calls of a connection have run since others of its thread had their turn, and how many of them were put off since it
/// was used up.
#[derive(Debug, Default)]
pub struct Slice(Mutex<(Duration, u32)>);

impl Slice {
    /// Returns whether a call is to be put off, so that others get their turn.
    fn is_over(&self) -> bool {
        let mut slice = self.0.lock();
        if slice.0 < SLICE {
            return false;
        }
        slice.1 += 1;
        // A set of futures gives way once two of them have.
        if slice.1 >= 2 {
            *slice = Default::default();
        }
        true
    }

    fn add(&self, time: Duration) {
        self.0.lock().0 += time;
    }
}

/// The end of a call.
#[derive(derive_more::Debug)]
pub enum Finished {
    /// A call that took effect, or failed.
    #[debug("Ended")]
    Ended(Result<Called, CallError>),
    /// A call that did nothing, because its output is longer than what was reserved. The next one of the method will have more.
    #[debug("Again")]
    Again,
}

/// A call that waits for a thread, until one has taken it or its caller is gone.
type Slot = Arc<Mutex<Option<Received>>>;

/// The reply to a call. Dropped when its caller is gone.
#[derive(derive_more::Debug)]
pub enum Pending {
    /// A call that runs where this is polled, and goes to the threads only if it is long.
    #[debug("Here")]
    Here(Arc<Slice>, Pin<Box<dyn Future<Output = Finished> + Send>>),
    /// A call that runs on the threads, or waits for one.
    #[debug("Elsewhere")]
    Elsewhere(Slot, RemoteHandle<Finished>),
}

impl Future for Pending {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished> {
        match &mut *self {
            Pending::Here(slice, call) => {
                if slice.is_over() {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let begun = Instant::now();
                let polled = call.poll_unpin(context);
                slice.add(begun.elapsed());
                polled
            }
            Pending::Elsewhere(_, finished) => finished.poll_unpin(context),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Pending::Elsewhere(slot, _) = self {
            // The threads may be busy for long, and come by the call only then.
            drop(slot.lock().take());
        }
    }
}

impl Shared {
    /// Returns what is known of a method that is called.
    fn unusual(&self, received: &Received) -> Unusual {
        let mut unusual = self.unusual.lock();
        if unusual.is_empty() {
            return Unusual::default();
        }
        let Some(known) = unusual.get_mut(&self.key(received)) else { return Unusual::default() };
        let found = *known;
        known.long_calls = found.long_calls.saturating_sub(1);
        found
    }

    /// Notes how a method is not as most are.
    fn note(&self, received: &Received, change: impl FnOnce(&mut Unusual)) {
        let key = self.key(received);
        let mut unusual = self.unusual.lock();
        if unusual.len() >= UNUSUAL_MAX && !unusual.contains_key(&key) {
            unusual.clear();
        }
        change(unusual.entry(key).or_default());
    }

    fn key(&self, received: &Received) -> u64 {
        self.hasher.hash_one((&received.class, &received.method))
    }

    /// Makes a call; returns nothing, and has changed nothing, if it is to be made on the threads because it is long.
    async fn call(&self, received: &Received, reserved: u64, place: Place) -> Option<Finished> {
        if self.stopping.load(Ordering::Acquire) {
            return Some(unbegun());
        }
        let called = AssertUnwindSafe(self.attempt(received, reserved, place)).catch_unwind().await;
        let finished = called.unwrap_or_else(|_| {
            let text = "the call ended in a panic: a bug";
            Some(Finished::Ended(Err(StoreError::new(ErrorKind::Unknown, text).into())))
        });
        if let Some(Finished::Ended(result)) = &finished {
            self.tally.count(result);
        }
        finished
    }

    async fn attempt(&self, received: &Received, reserved: u64, place: Place) -> Option<Finished> {
        let is_here = place == Place::Connection;
        let catalogue = match is_here {
            true => self.registry.current().await,
            false => self.registry.catalogue().await.map(Some),
        };
        let catalogue = match catalogue {
            Ok(Some(catalogue)) => catalogue,
            // The threads load what has changed, which may be much.
            Ok(None) => return None,
            Err(error) => return Some(Finished::Ended(Err(error.into()))),
        };
        let class = catalogue.classes.get(&received.class);
        if is_here && class.is_some_and(|class| class.text.len() > SHORT_TEXT_BYTES) {
            return None;
        }
        // Callers may tighten a class's bounds, not widen them: the server is not theirs alone.
        let own = class.map_or_else(Bounds::default, |class| class.bounds);
        let bounds = received.bounds.map_or(own, |wanted| wanted.within(own));
        let mut limits = Bounds { output_bytes: bounds.output_bytes.min(reserved), ..bounds };
        if is_here {
            limits = limits.within(Bounds {
                instructions: SHORT_INSTRUCTIONS,
                memory_bytes: SHORT_BYTES,
                wall: SHORT_WALL,
                reads: SHORT_READS,
                ..limits
            });
        }
        let mut request = received.request();
        request.bounds = Some(limits);
        match self.runtime.call_at(place, &*self.objects, &catalogue, &request).await {
            Err(CallError::Exceeded { bound: Bound::Output, .. }) if reserved < bounds.output_bytes => {
                self.note(received, |unusual| unusual.output_bytes = own.output_bytes);
                Some(Finished::Again)
            }
            // It takes its turn on the threads.
            Err(CallError::Contended { .. }) if is_here => None,
            // What it did is undone, and its bounds are the class's on the threads.
            Err(CallError::Exceeded { bound, .. }) if is_here && is_tighter(bound, &limits, &bounds) => {
                self.note(received, |unusual| unusual.long_calls = LONG_CALLS);
                None
            }
            Err(CallError::Exceeded { object, class, method, bound, .. }) => {
                let bounds = Box::new(bounds);
                Some(Finished::Ended(Err(CallError::Exceeded { object, class, method, bound, bounds })))
            }
            result => Some(Finished::Ended(result)),
        }
    }
}

/// Returns whether one of the bounds is tighter than another one.
fn is_tighter(bound: Bound, bounds: &Bounds, than: &Bounds) -> bool {
    match bound {
        Bound::Instructions => bounds.instructions < than.instructions,
        Bound::Memory => bounds.memory_bytes < than.memory_bytes,
        Bound::Output => bounds.output_bytes < than.output_bytes,
        Bound::Wall => bounds.wall < than.wall,
        Bound::Reads => bounds.reads < than.reads,
    }
}

/// Returns the end of a call that the server, which stops, has not begun.
fn unbegun() -> Finished {
    let text = "the server is shutting down; the call has not begun";
    Finished::Ended(Err(StoreError::new(ErrorKind::Closed, text).into()))
}

/// The threads that run long methods, for the calls of a connection.
#[derive(Clone)]
struct Threads {
    shared: Arc<Shared>,
    pool: ThreadPool,
    calls: Arc<Semaphore>,
}

impl Threads {
    /// Lets a call run on a thread once there is one for it.
    fn take(&self, received: Received, reserved: u64) -> Result<Pending, StoreError> {
        let slot = Arc::new(Mutex::new(Some(received)));
        let work = self.clone().run(slot.clone(), reserved);
        let spawned = self.pool.spawn_with_handle(work);
        spawned
            .map(|finished| Pending::Elsewhere(slot, finished))
            .map_err(|_| StoreError::new(ErrorKind::Closed, "the server is shutting down"))
    }

    async fn run(self, slot: Slot, reserved: u64) -> Finished {
        // The semaphore is never closed.
        let _turn = self.calls.acquire_owned().await;
        let Some(received) = slot.lock().take() else { return unbegun() };
        // On a thread nothing is too long.
        self.shared.call(&received, reserved, Place::Thread).await.unwrap_or_else(unbegun)
    }

    /// Makes a call where this is polled, or on a thread if it is long.
    async fn begin(self, short: Arc<Semaphore>, received: Received, reserved: u64) -> Finished {
        // The semaphore is never closed.
        let permit = short.acquire_owned().await;
        if let Some(finished) = self.shared.call(&received, reserved, Place::Connection).await {
            return finished;
        }
        drop(permit);
        match self.take(received, reserved) {
            Ok(pending) => pending.await,
            Err(error) => Finished::Ended(Err(error.into())),
        }
    }
}

impl Service for ClassService {
    type Connection = ClassConnection;
    type Pending = Pending;

    fn number(&self) -> u8 {
        wire::CLASS
    }

    fn open(&self, _peer: &Peer) -> ClassConnection {
        ClassConnection {
            calls: Arc::new(Semaphore::new(self.calls_max)),
            short: Arc::new(Semaphore::new(SHORT_CALLS)),
            slice: Arc::default(),
        }
    }

    fn handle(
        &self,
        connection: &mut ClassConnection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<Self::Pending> {
        if request.kind != wire::CALL {
            control::put_error(outbox, request.id, &request.unsupported());
            return Handled::Uncounted;
        }
        let taken = wire::get_call(&request.body).and_then(|received| {
            if !(self.shared.keeps)(&received.object) {
                let text = format!("object \"{}\" is kept by another member of the store", received.object);
                return Err(StoreError::new(ErrorKind::Invalid, text));
            }
            let Unusual { output_bytes: reserved, long_calls } = self.shared.unusual(&received);
            if !request.reserve(REPLY_BYTES + reserved as usize)? {
                return Ok(None);
            }
            let threads = Threads {
                shared: self.shared.clone(),
                pool: self.pool.clone(),
                calls: connection.calls.clone(),
            };
            match long_calls > 0 {
                true => threads.take(received, reserved).map(Some),
                false => {
                    let call = threads.begin(connection.short.clone(), received, reserved);
                    Ok(Some(Pending::Here(connection.slice.clone(), Box::pin(call))))
                }
            }
        });
        match taken {
            Ok(Some(pending)) => Handled::Later(pending),
            Ok(None) => Handled::NoCapacity(request.body),
            Err(error) => {
                control::put_error(outbox, request.id, &error);
                Handled::Answered
            }
        }
    }

    fn finish(&self, _connection: &mut ClassConnection, id: u64, finished: Finished, outbox: &mut Outbox) {
        let put = match finished {
            Finished::Ended(result) => wire::put_reply(outbox, id, result),
            Finished::Again => wire::put_again(outbox, id),
        };
        if let Err(error) = put {
            control::put_error(outbox, id, &error);
        }
    }
}
