//! The role `meta` of a daemon: a rank with network, time, and a store.
//!
//! Calls are handled on the threads of the connections, under one lock. A thread of the role's own keeps the authority, lets
//! leases lapse, and carries out what the rank orders from the store.
//!
//! A daemon whose store lies in its own process takes the authority with the first request, and writes nothing before.
//! A daemon in front of another store takes it at its start if nobody has it, and else stands by.

pub mod authority;
mod core;
pub mod record;
mod run;
mod service;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use nacre_object::{ErrorKind, ObjectStore, StoreError};
use parking_lot::Mutex;
pub use service::{Connection, MetaService, SEQUENCER_PREFIX};
use tokio::sync::{Notify, oneshot};

use self::authority::AuthorityStore;
pub use self::core::Totals;
use self::core::{Core, Shared};

/// The default lease of sessions, which hold capabilities.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(3);
/// The shortest lease of sessions.
pub const LEASE_MIN: Duration = Duration::from_millis(300);
/// The longest lease of sessions.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);
/// The default time after which a standby takes over from a rank that it does not hear of.
pub const TAKEOVER_DEFAULT: Duration = Duration::from_millis(600);
/// The shortest such time: a rank has to show itself in time on a busy machine.
pub const TAKEOVER_MIN: Duration = Duration::from_millis(200);
/// The longest such time.
pub const TAKEOVER_MAX: Duration = Duration::from_secs(60);

/// The settings of the role.
#[derive(Clone, derive_more::Debug)]
pub struct Options {
    /// The store with the sequencers and with the authority.
    #[debug(skip)]
    pub store: Arc<dyn ObjectStore>,
    /// The number of the rank.
    pub rank: u32,
    /// True for the daemon that keeps the store in its process: it takes the authority with the first request, and not
    /// before, and one of its name is known to be itself before it was started again.
    pub keeps_store: bool,
    /// The lease of sessions.
    pub lease: Duration,
    /// The time after which a standby takes over.
    pub takeover: Duration,
}

/// A running rank, or one that stands by. Dropping it stops it.
#[derive(derive_more::Debug)]
#[debug("MetaRole")]
pub struct MetaRole {
    shared: Arc<Shared>,
    options: Options,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MetaRole {
    /// Creates the role, whose service may be served. It answers nobody before it [begins](MetaRole::begin).
    ///
    /// # Errors
    /// `Invalid` if a time is out of range.
    pub fn new(options: Options) -> Result<MetaRole, StoreError> {
        let within = |setting: &str, time: Duration, least: Duration, most: Duration| match time {
            time if (least..=most).contains(&time) => Ok(()),
            time => {
                let text = format!("{setting} of {time:?}; it is {least:?} to {most:?}");
                Err(StoreError::new(ErrorKind::Invalid, text))
            }
        };
        within("a lease of capabilities", options.lease, LEASE_MIN, LEASE_MAX)?;
        within("a time to take over", options.takeover, TAKEOVER_MIN, TAKEOVER_MAX)?;
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(options.lease)),
            work: Notify::new(),
            connections: AtomicU64::new(0),
        });
        Ok(MetaRole { shared, options, stop: None, thread: None })
    }

    /// Begins. `name` is the name of the daemon; `addresses` are those at which clients reach it, none if they are those of
    /// the store.
    ///
    /// # Errors
    /// `Invalid` if the name or an address is too long; `Io` if no thread can be started.
    pub fn begin(&mut self, name: String, addresses: Vec<String>) -> Result<(), StoreError> {
        let failed = |error: std::io::Error| {
            StoreError::new(ErrorKind::Io, format!("cannot start the thread of the metadata rank: {error}"))
        };
        let keeper = AuthorityStore::new(&self.options, name, addresses)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let (running, lazy) = (self.shared.clone(), self.options.keeps_store);
        let thread = std::thread::Builder::new()
            .name("nacre-meta".to_owned())
            .spawn(move || runtime.block_on(run::run(running, keeper, lazy, stopped)))
            .map_err(failed)?;
        (self.stop, self.thread) = (Some(stop), Some(thread));
        Ok(())
    }

    /// Returns the service by which clients reach the rank.
    pub fn service(&self) -> MetaService {
        MetaService::new(self.shared.clone())
    }

    /// Returns a handle for reports and administration.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone() }
    }

    /// Stops the role, and lets a standby take over at once.
    pub fn stop(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the metadata rank ended in a panic");
        }
    }
}

impl Drop for MetaRole {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A handle on a rank for reports and administration. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Handle")]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    /// Returns what the rank does, and its totals.
    pub fn totals(&self) -> Totals {
        self.shared.totals()
    }

    /// Returns up to `limit` sequencers that the rank has in memory.
    pub fn list(&self, limit: usize) -> Vec<(nacre_object::ObjectId, crate::service::Shown)> {
        self.shared.core.lock().list(limit)
    }

    /// Hands the authority over to a standby, if there is one. Returns false if this daemon has none.
    pub fn hand_over(&self) -> bool {
        self.shared.hand_over()
    }
}
