//! Sequencers: counters from which many programs take positions, each of them once.
//!
//! While nobody else wants it, a sequencer is cached in the program that uses it, and a position costs a few nanoseconds; its
//! [`Policy`] says how it goes from one program to the next, or that each position is a round trip.
//!
//! ```no_run
//! # async fn example() -> Result<(), nacre::Error> {
//! use nacre::sequencer::Policy;
//!
//! let store = nacre::open("nacre://localhost:6470")?;
//! let log = store.sequencer("log").await?;
//! log.create(Policy::BestEffort).await?;
//! let first = log.next().await?;
//! let second = log.next().await?;
//! assert!(second > first);
//! // Three in a row.
//! let third = log.next_many(3).await?;
//! assert!(log.read().await? >= third + 3);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use futures::executor::block_on;
pub use nacre_meta::capability::POLICIES;
/// A policy: how long a holder may keep a resource that others wait for.
///
/// ```
/// use std::time::Duration;
///
/// use nacre::sequencer::Policy;
///
/// assert_eq!("hold=10ms".parse::<Policy>()?, Policy::Hold(Duration::from_millis(10)));
/// assert_eq!(Policy::default(), Policy::BestEffort);
/// // Each position is a round trip.
/// assert!(!Policy::RoundTrip.caches());
/// # Ok::<(), String>(())
/// ```
pub use nacre_meta::capability::Policy;
/// The name of a script that decides who caches a sequencer: an entry of the map `policies`.
///
/// ```
/// use nacre::sequencer::{Policy, ProgramName};
///
/// let name: ProgramName = "priority".parse()?;
/// assert_eq!("lua=priority".parse::<Policy>()?, Policy::Lua(name));
/// assert_eq!(name.as_str(), "priority");
/// # Ok::<(), String>(())
/// ```
pub use nacre_meta::capability::ProgramName;
export! {
    /// ```no_run
    /// # async fn example() -> Result<(), nacre::Error> {
    /// use nacre::sequencer::{Policy, Sequencer, Shown, Statistics};
    ///
    /// let store = nacre::open("nacre://localhost:6470")?;
    /// let log: Sequencer = store.sequencer("log").await?;
    /// log.create(Policy::BestEffort).await?;
    /// for _ in 0..1000 {
    ///     log.next().await?;
    /// }
    /// // Most positions came out of this program's cache.
    /// let Statistics { grants, round_trips, .. } = log.statistics();
    /// println!("{grants} grants, {round_trips} round trips");
    /// let Shown { tail, held, .. } = log.look().await?;
    /// println!("{tail} given out; cached by somebody: {held}");
    /// # Ok(())
    /// # }
    /// ```
    "A sequencer: a tail from which all its clients take positions, each of them once." nacre_meta::remote::Sequencer;
    "Counts of a sequencer in this process." nacre_meta::remote::Statistics;
}
use nacre_meta::remote::{Session, SessionOptions};
pub use nacre_meta::role::SEQUENCER_PREFIX;
#[cfg(feature = "rados")]
use nacre_meta::role::authority;
/// A sequencer as it is shown.
///
/// ```no_run
/// # async fn example() -> Result<(), nacre::Error> {
/// use nacre::sequencer::{Policy, Sequencer, Shown, Statistics};
///
/// let store = nacre::open("nacre://localhost:6470")?;
/// let log: Sequencer = store.sequencer("log").await?;
/// log.create(Policy::BestEffort).await?;
/// for _ in 0..1000 {
///     log.next().await?;
/// }
/// // Most positions came out of this program's cache.
/// let Statistics { grants, round_trips, .. } = log.statistics();
/// println!("{grants} grants, {round_trips} round trips");
/// let Shown { tail, held, .. } = log.look().await?;
/// println!("{tail} given out; cached by somebody: {held}");
/// # Ok(())
/// # }
/// ```
pub use nacre_meta::service::Shown;
use nacre_object::{ErrorKind, ObjectId, StoreError};
#[cfg(feature = "rados")]
use nacre_rados::RadosStore;
use nacre_remote::{RemoteOptions, RemoteStore};
#[cfg(feature = "rados")]
use nacre_rpc::ClusterKey;
#[cfg(feature = "rados")]
use nacre_rpc::client::LinkOptions;

use crate::blocking::BlockingStore;
use crate::engine::Opened;
use crate::store::Store;
use crate::transfer::RetryBudget;
use crate::uri::Options;

/// The longest name of a sequencer, in bytes.
pub const SEQUENCER_NAME_BYTES_MAX: usize = 200;

/// The session of a store's handles with its metadata ranks: begun when it is first needed.
#[derive(Default)]
pub(crate) struct Sessions {
    current: tokio::sync::Mutex<Option<Session>>,
    /// The options of the store's uri.
    #[cfg_attr(
        not(feature = "rados"),
        expect(dead_code, reason = "the ranks of servers are reached as these are")
    )]
    options: Options,
}

impl Sessions {
    pub(crate) fn new(options: &Options) -> Self {
        Self { current: Default::default(), options: options.clone() }
    }
}

/// Returns the object of a sequencer.
fn object(name: &[u8]) -> Result<ObjectId, StoreError> {
    if name.is_empty() || name.len() > SEQUENCER_NAME_BYTES_MAX {
        let text = format!("the name of a sequencer has 1 to {SEQUENCER_NAME_BYTES_MAX} bytes");
        return Err(StoreError::new(ErrorKind::Invalid, text));
    }
    ObjectId::new([SEQUENCER_PREFIX.as_bytes(), name].concat())
}

impl Store {
    /// Returns a handle on a sequencer, whether it exists or not.
    ///
    /// # Errors
    ///
    /// `Invalid` if the name is not 1 to 200 bytes long, `Unsupported` if the store has no metadata rank.
    pub async fn sequencer(&self, name: impl AsRef<[u8]>) -> Result<Sequencer, StoreError> {
        let object = object(name.as_ref())?;
        Ok(self.meta_session().await?.sequencer(&object))
    }

    /// Returns a handle on the sequencer in an object.
    pub(crate) async fn sequencer_of(&self, object: &ObjectId) -> Result<Sequencer, StoreError> {
        Ok(self.meta_session().await?.sequencer(object))
    }

    /// Returns the names of up to `limit` sequencers in ascending order, those behind `after`.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn sequencers(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let prefix = SEQUENCER_PREFIX.as_bytes();
        let from = match after {
            Some(after) => ObjectId::new([prefix, after].concat())?,
            // Its last byte is a slash; no id lies between the two.
            None => ObjectId::new(prefix.to_vec())?,
        };
        let mut objects = self.list_after(from);
        let mut names = Vec::new();
        while names.len() < limit
            && let Some(id) = objects.next().await?
            && let Some(name) = id.as_bytes().strip_prefix(prefix)
        {
            names.push(name.to_vec());
        }
        Ok(names)
    }

    /// Asks a metadata rank to hand its authority over to a daemon that stands by. Clients go on without an error.
    ///
    /// # Errors
    ///
    /// `Invalid` if no daemon stands by, `Unavailable` if the rank cannot be reached, `Unsupported` if the store has no metadata rank.
    pub async fn fail_rank(&self, rank: u32) -> Result<(), StoreError> {
        self.meta_session().await?.hand_over(rank).await
    }

    /// Ends the session of this store's handles with the metadata rank: what they hold is given back. Waits until the rank
    /// knows it. Without this, the end of a program leaves its session to lapse.
    pub async fn end_sequencers(&self) {
        let session = self.meta.current.lock().await.take();
        if let Some(session) = session {
            session.end().await;
        }
    }

    pub(crate) async fn meta_session(&self) -> Result<Session, StoreError> {
        let mut current = self.meta.current.lock().await;
        if let Some(session) = &*current {
            return Ok(session.clone());
        }
        let options = match &self.opened {
            Opened::Remote(remote) => self.ranks_at(remote).await?,
            #[cfg(feature = "rados")]
            Opened::Rados(pool) => self.ranks_of(pool).await?,
            _ => {
                let advice = "start \"nacre serve\" on it, and use them there";
                return Err(self.no_rank(advice));
            }
        };
        let session = Session::begin(options)?;
        *current = Some(session.clone());
        Ok(session)
    }

    fn no_rank(&self, advice: &str) -> StoreError {
        let text = format!("{} has no metadata rank, which keeps sequencers; {advice}", self.name());
        StoreError::new(ErrorKind::Unsupported, text)
    }

    /// Returns the settings of a session with the ranks of servers.
    async fn ranks_at(&self, remote: &RemoteStore) -> Result<SessionOptions, StoreError> {
        let mut patience = RetryBudget::of(self.patience);
        let addresses = loop {
            match remote.addresses().await {
                Err(error) if patience.allows(&error).await => {}
                addresses => break addresses?,
            }
        };
        let link = remote.link_options();
        // The background looks for the rank while the program's own runtime may be busy, or gone.
        let apart = RemoteOptions {
            key: link.key.clone(),
            owner: link.owner,
            connect_timeout: link.connect_timeout,
            silence_timeout: link.silence_timeout,
            own_thread: true,
            ..RemoteOptions::default()
        };
        let store = Arc::new(RemoteStore::new(&addresses, apart)?);
        Ok(SessionOptions { store, rank: 0, addresses, link, patience: self.patience })
    }

    /// Returns the settings of a session with the ranks of a pool of Ceph: daemons in front of it, whose addresses are in the pool. So
    /// they are found as long as the pool is there, whichever of them are.
    #[cfg(feature = "rados")]
    async fn ranks_of(&self, pool: &RadosStore) -> Result<SessionOptions, StoreError> {
        let Options { key, owner, repeat_timeout, .. } = &self.meta.options;
        let key = key.as_deref().map(ClusterKey::load).transpose()?;
        let link = LinkOptions { key, owner: *owner, ..LinkOptions::default() };
        let patience = repeat_timeout.unwrap_or(RemoteOptions::default().repeat_timeout);
        // A daemon that is being started is waited for like one that is away.
        let none = self.no_rank("start \"nacre serve --roles store,meta\" in front of it");
        let away = none.clone().with_kind(ErrorKind::Unavailable);
        let mut budget = RetryBudget::of(patience);
        while authority::read(pool, 0).await?.is_none() {
            if !budget.allows(&away).await {
                return Err(none);
            }
        }
        let store = Arc::new(pool.clone());
        Ok(SessionOptions { store, rank: 0, addresses: Vec::new(), link, patience })
    }
}

/// A [`Sequencer`] whose calls block the calling thread.
///
/// ```no_run
/// # fn example() -> Result<(), nacre::Error> {
/// let store = nacre::open("nacre://localhost:6470")?.blocking();
/// let log: nacre::sequencer::BlockingSequencer = store.sequencer("log")?;
/// assert!(log.next()? < log.next()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("BlockingSequencer")]
pub struct BlockingSequencer {
    sequencer: Sequencer,
}

impl BlockingStore {
    /// Returns a handle on a sequencer. See [`Store::sequencer`].
    ///
    /// # Errors
    ///
    /// Those of [`Store::sequencer`].
    pub fn sequencer(&self, name: impl AsRef<[u8]>) -> Result<BlockingSequencer, StoreError> {
        Ok(BlockingSequencer { sequencer: block_on(self.nonblocking().sequencer(name))? })
    }
}

impl BlockingSequencer {
    /// Returns the sequencer with calls that are awaited.
    pub fn nonblocking(&self) -> &Sequencer {
        &self.sequencer
    }

    /// Returns the next position. See [`Sequencer::next`].
    ///
    /// # Errors
    ///
    /// Those of [`Sequencer::next`].
    #[inline]
    pub fn next(&self) -> Result<u64, StoreError> {
        match self.sequencer.try_next() {
            Some(position) => Ok(position),
            None => block_on(self.sequencer.next()),
        }
    }

    /// Returns the first of the next positions. See [`Sequencer::next_many`].
    ///
    /// # Errors
    ///
    /// Those of [`Sequencer::next_many`].
    #[inline]
    pub fn next_many(&self, count: u64) -> Result<u64, StoreError> {
        match self.sequencer.try_next_many(count) {
            Some(position) => Ok(position),
            None => block_on(self.sequencer.next_many(count)),
        }
    }

    /// Returns the tail. See [`Sequencer::read`].
    ///
    /// # Errors
    ///
    /// Those of [`Sequencer::read`].
    pub fn read(&self) -> Result<u64, StoreError> {
        block_on(self.sequencer.read())
    }
}
