//! The server side: methods run on threads of their own, beside the objects.
//!
//! A connection's thread only takes calls in and writes replies. So a method that runs for as long as its bounds allow
//! holds up neither transactions nor, as long as a thread is left, other calls; and one connection has at most half of the
//! threads.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

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
use crate::runtime::{Called, Runtime};

/// The smallest number of threads: while some run to their bounds, others are left.
const THREADS_MIN: usize = 8;
/// The memory that is reserved for the reply to a call, beside its output: mostly its log.
const REPLY_BYTES: usize = 96 << 10;
/// The output for which memory is reserved, unless the method is known to have more.
const OUTPUT_BYTES: u64 = 32 << 10;
/// The number of methods that are known to have more.
const LARGE_MAX: usize = 4096;

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
    /// The bytes to reserve for the outputs of methods that have long ones, by class and method.
    large: Mutex<HashMap<(String, String), u64>>,
    /// True once the server stops: what has not begun by then never does.
    stopping: AtomicBool,
    tally: CallCounts,
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
            large: Mutex::default(),
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
    /// The permits to run a method.
    calls: Arc<Semaphore>,
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
#[debug("Pending")]
pub struct Pending {
    slot: Slot,
    finished: RemoteHandle<Finished>,
}

impl Future for Pending {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished> {
        self.finished.poll_unpin(context)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The threads may be busy for long, and come by the call only then.
        drop(self.slot.lock().take());
    }
}

impl Shared {
    /// Returns the output for which memory is to be reserved.
    fn output_bytes(&self, received: &Received) -> u64 {
        let large = self.large.lock();
        let known = (!large.is_empty()).then(|| (received.class.clone(), received.method.clone()));
        known.and_then(|known| large.get(&known).copied()).unwrap_or(OUTPUT_BYTES)
    }

    async fn call(&self, received: &Received, reserved: u64) -> Finished {
        let catalogue = match self.registry.catalogue().await {
            Ok(catalogue) => catalogue,
            Err(error) => return Finished::Ended(Err(error.into())),
        };
        // Callers may tighten a class's bounds, not widen them: the server is not theirs alone.
        let own = catalogue.classes.get(&received.class).map_or_else(Bounds::default, |class| class.bounds);
        let bounds = received.bounds.map_or(own, |wanted| wanted.within(own));
        let mut request = received.request();
        request.bounds = Some(Bounds { output_bytes: bounds.output_bytes.min(reserved), ..bounds });
        match self.runtime.call(&*self.objects, &catalogue, &request).await {
            Err(CallError::Exceeded { bound: Bound::Output, .. }) if reserved < bounds.output_bytes => {
                let mut large = self.large.lock();
                if large.len() >= LARGE_MAX {
                    large.clear();
                }
                large.insert((received.class.clone(), received.method.clone()), own.output_bytes);
                Finished::Again
            }
            result => Finished::Ended(result),
        }
    }
}

async fn run(shared: Arc<Shared>, calls: Arc<Semaphore>, slot: Slot, reserved: u64) -> Finished {
    // The semaphore is never closed.
    let _turn = calls.acquire_owned().await;
    let received = slot.lock().take();
    let Some(received) = received.filter(|_| !shared.stopping.load(Ordering::Acquire)) else {
        let text = "the server is shutting down; the call has not begun";
        return Finished::Ended(Err(StoreError::new(ErrorKind::Closed, text).into()));
    };
    let called = AssertUnwindSafe(shared.call(&received, reserved)).catch_unwind().await;
    let finished = called.unwrap_or_else(|_| {
        let text = "the call ended in a panic: a bug";
        Finished::Ended(Err(StoreError::new(ErrorKind::Unknown, text).into()))
    });
    if let Finished::Ended(result) = &finished {
        shared.tally.count(result);
    }
    finished
}

impl Service for ClassService {
    type Connection = ClassConnection;
    type Pending = Pending;

    fn number(&self) -> u8 {
        wire::CLASS
    }

    fn open(&self, _peer: &Peer) -> ClassConnection {
        ClassConnection { calls: Arc::new(Semaphore::new(self.calls_max)) }
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
            let reserved = self.shared.output_bytes(&received);
            if !request.reserve(REPLY_BYTES + reserved as usize)? {
                return Ok(None);
            }
            let slot = Arc::new(Mutex::new(Some(received)));
            let work = run(self.shared.clone(), connection.calls.clone(), slot.clone(), reserved);
            let spawned = self.pool.spawn_with_handle(work);
            spawned
                .map(|finished| Some(Pending { slot, finished }))
                .map_err(|_| StoreError::new(ErrorKind::Closed, "the server is shutting down"))
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
