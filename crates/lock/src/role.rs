//! The role `lock` of a daemon: a lock server with network, time, and a store for its records and fences.
//!
//! Calls are handled on the threads of the connections, under one lock. A thread of the role's own lets leases lapse,
//! makes records durable, and raises fences. A reply that relies on a record is told when the record is durable; all
//! records that have gathered meanwhile are written together, and nothing else waits for them.

mod core;
mod ledger;
mod run;
mod service;
mod shown;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use ledger::Ledger;
use nacre_object::{ErrorKind, ObjectId, ObjectStore, StoreError};
use parking_lot::Mutex;
pub use service::{LockConnection, LockService};
pub use shown::{HeldLock, Totals};
use tokio::sync::{Notify, oneshot};

use self::core::{Core, Shared};
use crate::server::{Limits, Server, Settings};
use crate::table::Indexing;
use crate::wire::ServerSlot;
use crate::{Stripe, clock};

/// The shortest lease: renewals have to pass through a busy machine in time.
pub const LEASE_MIN: Duration = Duration::from_millis(500);
/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);

/// The settings of the role.
#[derive(Clone, derive_more::Debug)]
pub struct Options {
    /// The server's share of every file.
    pub stripe: Stripe,
    /// The time after its last renewal at which a session lapses.
    pub lease: Duration,
    /// The way in which what is held is indexed.
    pub indexing: Indexing,
    /// The store in which the server keeps its records.
    #[debug(skip)]
    pub records: Arc<dyn ObjectStore>,
    /// The object in which they are.
    pub ledger: ObjectId,
    /// True if that store is gone with its process. Epochs are then numbered from the time of day on, as sessions always are,
    /// in microseconds, so that no number is given again by a later server.
    pub volatile: bool,
    /// The store whose objects are fenced: the file of a lock is the object of the same name.
    #[debug(skip)]
    pub objects: Arc<dyn ObjectStore>,
}

/// A running lock server. Dropping it stops it.
#[derive(derive_more::Debug)]
#[debug("LockRole")]
pub struct LockRole {
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LockRole {
    /// Starts a lock server. Blocks until its records are read.
    ///
    /// A server whose predecessor may have had sessions takes asserted locks for a grace period before it grants new ones:
    /// a fifth longer than the lease, or than the predecessor's if that was longer.
    ///
    /// # Errors
    /// `Invalid` if the lease is out of range or the stripe is none; those of the store with the records; `Io` if no
    /// thread can be started.
    pub fn start(options: Options) -> Result<LockRole, StoreError> {
        let invalid = |text: String| StoreError::new(ErrorKind::Invalid, text);
        if !(LEASE_MIN..=LEASE_MAX).contains(&options.lease) {
            return Err(invalid(format!(
                "a lock lease of {} ms; it is {} ms to {} s",
                options.lease.as_millis(),
                LEASE_MIN.as_millis(),
                LEASE_MAX.as_secs()
            )));
        }
        let Stripe { bytes, servers, server } = options.stripe;
        crate::Pattern::empty().restrict(options.stripe).map_err(|error| invalid(error.to_string()))?;
        let opened = Ledger::open(options.records.clone(), options.ledger.clone());
        let (ledger, found) = futures::executor::block_on(opened)
            .map_err(|error| error.context("cannot start the lock server"))?;
        let restarted = found.used || !found.records.is_empty();
        // Until a server has ended without sessions, some of them may still rely on the longest lease since then.
        let longest_lease = if restarted { options.lease.max(found.lease) } else { options.lease };
        let now = microseconds_since_1970();
        let least = if options.volatile { now } else { 0 };
        // Objects may have fences against sessions on no record here: they were copied from another store, or records were
        // removed.
        let numbers = found.numbers.max(now);
        let settings = Settings {
            epoch: least.max(found.epoch + 1),
            stripe: options.stripe,
            indexing: options.indexing,
            lease: options.lease,
            grace: longest_lease * 6 / 5,
            limits: Limits { name_bytes_max: nacre_object::limit::OBJECT_ID_BYTES_MAX, ..Limits::default() },
        };
        let mut state = if restarted {
            tracing::info!(
                "the lock server was restarted: for {:?} it only takes asserted locks",
                settings.grace
            );
            Server::restarted(clock::now(), settings, found.records)
        } else {
            Server::new(settings)
        };
        state.remember_floors(found.floors);
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(state, numbers, longest_lease)),
            work: Notify::new(),
            slot: ServerSlot { server, servers, stripe_bytes: bytes },
            connections: AtomicU64::new(0),
        });
        let failed = |error: std::io::Error| {
            StoreError::new(ErrorKind::Io, format!("cannot start the lock server's thread: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let (running, objects) = (shared.clone(), options.objects);
        let thread = std::thread::Builder::new()
            .name("nacre-lock".to_owned())
            .spawn(move || runtime.block_on(run::run(running, ledger, objects, stopped)))
            .map_err(failed)?;
        Ok(LockRole { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the service by which clients reach the server.
    pub fn service(&self) -> LockService {
        LockService { shared: self.shared.clone() }
    }

    /// Returns a handle for reports and administration.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone() }
    }

    /// Stops the server. To be called when its connections are gone. Sessions come back to its successor.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the lock server's thread ended in a panic");
        }
    }
}

/// The microseconds since 1970, which 53 bits hold until the year 2255.
fn microseconds_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

impl Drop for LockRole {
    fn drop(&mut self) {
        self.end();
    }
}

/// A handle on a lock server for reports and administration. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Handle")]
pub struct Handle {
    shared: Arc<Shared>,
}
