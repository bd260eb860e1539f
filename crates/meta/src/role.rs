//! The role `meta` of a daemon: a rank with network, time, and a store.
//!
//! Calls are handled on the threads of the connections, under one lock. A thread of the role's own keeps the authority, lets
//! leases lapse, and carries out what the rank orders from the store.
//!
//! A daemon whose store lies in its own process takes the authority with the first request, and writes nothing before.
//! A daemon in front of another store takes it at its start if nobody has it, and else stands by.

pub mod authority;
mod core;
mod peers;
pub mod pin;
pub mod record;
mod run;
mod service;
pub mod subtree;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use nacre_object::{ErrorKind, ObjectId, ObjectStore, StoreError};
use nacre_rpc::Address;
use nacre_rpc::client::LinkOptions;
use parking_lot::Mutex;
pub use service::{Connection, MetaService, SEQUENCER_PREFIX};
use tokio::sync::{Notify, oneshot};

use self::authority::AuthorityStore;
pub use self::authority::RankStatus;
pub use self::core::Totals;
use self::core::{Core, Shared};
use self::peers::Peers;
use self::subtree::{FoundSubtrees, Subtrees};
use crate::capability::Programs;
use crate::clock;
use crate::inode::Ino;
pub use crate::load::{RankLoad, ResourceLoad};
use crate::place::RANK_MAX;
pub use crate::place::{Mode, RankNumber};
use crate::service::Reply;

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
    /// The number of the rank, at most [`RANK_MAX`](crate::place::RANK_MAX).
    pub rank: RankNumber,
    /// True for the daemon that keeps the store in its process: it takes the authority with the first request, and not
    /// before, and one of its name is known to be itself before it was started again.
    pub keeps_store: bool,
    /// The lease of sessions.
    pub lease: Duration,
    /// The time after which a standby takes over.
    pub takeover: Duration,
    /// The addresses of the store's servers, at which other ranks may be.
    pub servers: Vec<Address>,
    /// The settings of connections to other ranks.
    pub link: LinkOptions,
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
        if options.rank > RANK_MAX {
            let text = format!("metadata rank {}; ranks are numbered 0 to {RANK_MAX}", options.rank);
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(options.rank, options.lease)),
            work: Notify::new(),
            connections: AtomicU64::new(0),
            rank: options.rank,
            peers: Peers::new(&options),
        });
        Ok(MetaRole { shared, options, stop: None, thread: None })
    }

    /// Sets the programs that decide about sequencers whose policy is one, before the role begins. Without them, such a policy is
    /// best effort.
    pub fn set_programs(&self, programs: Arc<dyn Programs>) {
        self.shared.core.lock().programs = Some(programs);
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
        Handle { shared: self.shared.clone(), store: self.options.store.clone() }
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
        self.shared.peers.end();
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
    store: Arc<dyn ObjectStore>,
}

impl Handle {
    /// Returns what the rank does, and its totals.
    pub fn totals(&self) -> Totals {
        self.shared.totals()
    }

    /// Returns the number of the rank.
    pub fn rank(&self) -> RankNumber {
        self.shared.rank
    }

    /// Returns the load of the rank, with that of the `limit` busiest sequencers.
    pub fn load(&self, limit: usize) -> RankLoad {
        self.shared.load(limit)
    }

    /// Returns up to `limit` migrations away from this rank that are under way: the sequencer, the rank that it goes to, and
    /// since how long.
    pub fn migrating(&self, limit: usize) -> Vec<(ObjectId, RankNumber, Duration)> {
        self.shared.core.lock().migrating(clock::now(), limit)
    }

    /// Returns the load of a rank, another one or this.
    ///
    /// # Errors
    /// `Unavailable` if it does not answer in time.
    pub async fn load_of(&self, rank: RankNumber) -> Result<RankLoad, StoreError> {
        match rank == self.shared.rank {
            true => Ok(self.load(crate::wire::LOADED_MAX)),
            false => self.shared.peers.load(rank).await,
        }
    }

    /// Returns all ranks that somebody ever had the authority of.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn ranks(&self) -> Result<Vec<RankStatus>, StoreError> {
        authority::ranks(&*self.store).await
    }

    /// Moves a sequencer from this rank to another one, where its clients go on without an error. Returns when the store has
    /// it. A migration that has begun goes on if this is dropped.
    ///
    /// # Errors
    /// `Unavailable` if one of the ranks does not answer, `Invalid` if this rank has no such sequencer.
    pub async fn migrate(&self, resource: &ObjectId, to: RankNumber, mode: Mode) -> Result<(), StoreError> {
        let invalid = |text: String| Err(StoreError::new(ErrorKind::Invalid, text));
        if to > RANK_MAX {
            return invalid(format!("metadata rank {to}; ranks are numbered 0 to {RANK_MAX}"));
        }
        if !service::is_sequencer(resource) {
            return invalid(format!("object \"{resource}\" cannot hold a sequencer"));
        }
        match self.shared.migrate(resource, to, mode).await? {
            Reply::Done => Ok(()),
            Reply::Elsewhere(place) => invalid(format!("\"{resource}\" is metadata rank {}'s", place.rank)),
            _ => invalid(format!("there is no sequencer \"{resource}\"")),
        }
    }

    /// Returns the directories that are placed at ranks, as far as they are this one's or have one of these sequencers below them,
    /// the busiest of which come first. `known` is what was looked up before.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn subtrees(
        &self,
        known: &mut Subtrees,
        sequencers: &[ObjectId],
    ) -> Result<FoundSubtrees, StoreError> {
        known.look(&*self.store, self.shared.rank, sequencers).await
    }

    /// Waits until another rank answers.
    ///
    /// # Errors
    /// `Invalid` if there is no such rank, `Unavailable` if it does not answer in time.
    pub async fn reach(&self, rank: RankNumber) -> Result<(), StoreError> {
        self.shared.peers.reach(rank).await
    }

    /// Places a directory at another rank, on condition that it is placed at the rank `from`. Returns whether it was. No sequencer
    /// moves by that.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn place(&self, directory: Ino, from: RankNumber, to: RankNumber) -> Result<bool, StoreError> {
        pin::replace(&*self.store, directory, from, to).await
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
