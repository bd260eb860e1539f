//! Shared logs: many clients append entries, and all read them in the same order.
//!
//! ```
//! use nacre::zlog::{Entry, Followed, Shape};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = nacre::open("mem:")?;
//! store.logs()?.create("orders", Shape::default()).await?;
//! let log = store.log("orders").await?;
//!
//! let position = log.append(Entry::new("tea").tag("kitchen")).await?;
//! let mut follower = log.follow(0, Default::default());
//! match follower.next().await? {
//!     Followed::Entry { position: found, entry } => assert_eq!((found, &entry.data[..]), (position, &b"tea"[..])),
//!     Followed::Trimmed { .. } => unreachable!("nothing was trimmed"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Without an async runtime, [`Store::blocking`] offers the same calls without `await`:
//!
//! ```
//! use nacre::zlog::{Entry, Followed, Shape};
//!
//! let store = nacre::open("mem:")?.blocking();
//! store.logs()?.create("orders", Shape::default())?;
//! let log = store.log("orders")?;
//! // Both are under way together, and in this order in the log.
//! let (tea, soup) = (log.submit(Entry::new("tea"))?, log.submit(Entry::new("soup"))?);
//! let (tea, soup) = (tea.wait()?, soup.wait()?);
//! assert!(tea < soup);
//!
//! let mut follower = log.follow(tea, Default::default());
//! let Some(Followed::Entry { entry, .. }) = follower.next().transpose()? else { unreachable!("nothing was trimmed") };
//! assert_eq!(entry.data, "tea");
//! # Ok::<(), nacre::zlog::LogError>(())
//! ```

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
#[cfg(feature = "meta")]
use futures::future::BoxFuture;
/// A source of random numbers. Clones share it.
///
/// ```
/// use nacre::zlog::Random;
///
/// assert_eq!(Random::seeded(7).number::<u64>(), Random::seeded(7).number::<u64>());
/// ```
pub use nacre_map::Random;
use nacre_object::{ErrorKind, StoreError};
pub use nacre_zlog::DIRECTORY;
/// The part of a range of positions that is in one object of a view.
///
/// ```
/// use nacre::zlog::View;
///
/// let view = View { epoch: 1, start: 0, generation: 1, width: 2, unit: 1, closed: false };
/// for nacre::zlog::Part { object, place, count } in view.parts(0, 3) {
///     println!("{count} positions from place {place} of object {object}");
/// }
/// ```
pub use nacre_zlog::layout::Part;
/// The limits of logs.
///
/// ```
/// // The longest entry is of one mebibyte.
/// let entry = nacre::zlog::Entry::new(vec![0; nacre::zlog::limit::ENTRY_BYTES_MAX + 1]);
/// assert!(entry.check().is_err());
/// ```
pub use nacre_zlog::limit;
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::zlog::LogError> {
    /// use nacre::zlog::{Appender, Appending, Entry, Info, Log, Shape, Slot, Tagged};
    ///
    /// let store = nacre::open("mem:")?;
    /// store.logs()?.create("orders", Shape::default()).await?;
    /// let log: Log = store.log("orders").await?;
    /// let tea = log.append(Entry::new("tea").tag("drinks")).await?;
    ///
    /// // Several under way at once, in this order.
    /// let appender: &Appender = log.appender();
    /// let soup: Appending = appender.submit(Entry::new("soup")).await?;
    /// assert!(tea < soup.await?);
    ///
    /// assert_eq!(log.read(tea).await?, Slot::Entry(Entry::new("tea").tag("drinks")));
    /// let Tagged { slots, .. } = log.read_tagged("drinks", 0, log.tail().await?).await?;
    /// assert_eq!(slots.len(), 1);
    /// let Info { tail, views, .. } = log.info().await?;
    /// assert_eq!((tail, views.len()), (2, 1));
    /// # Ok(())
    /// # }
    /// ```
    "Appends entries to a log, in the order in which they come. Cheap to clone; all clones append in one order." nacre_zlog::Appender;
    "An entry that is being appended: a future of its position." nacre_zlog::Appending;
    "An entry of a log." nacre_zlog::Entry;
    "A log at a glance." nacre_zlog::Info;
    "A handle on a log. Cheap to clone; all clones append in one order." nacre_zlog::Log;
    "The shape of a view: how its positions are spread over objects." nacre_zlog::Shape;
    "The content of a position." nacre_zlog::Slot;
    "Positions of a range, without the entries of other tags." nacre_zlog::Tagged;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::zlog::LogError> {
    /// use nacre::zlog::{Directory, Listed, LogError, LogId, Shape};
    ///
    /// let store = nacre::open("mem:")?;
    /// let logs: Directory = store.logs()?;
    /// let id: LogId = logs.create("orders", Shape { width: 2, ..Shape::default() }).await?;
    /// logs.rename("orders", "old orders").await?;
    /// let found: Listed = logs.find("old orders").await?;
    /// assert_eq!(found.id, id);
    /// assert!(matches!(logs.find("orders").await, Err(LogError::Missing(_))));
    /// logs.delete("old orders").await?;
    /// assert!(logs.list().await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    "The logs of a store by their names. It needs a tokio runtime with a clock around its calls." nacre_zlog::Directory;
    "A log of a store." nacre_zlog::Listed;
    "The reason why something could not be done with a log." nacre_zlog::LogError;
    "The identity of a log, which no other log has, also not a later one of the same name." nacre_zlog::LogId;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::zlog::LogError> {
    /// use nacre::zlog::{Entry, FollowOptions, Followed, Follower, Shape};
    ///
    /// let store = nacre::open("mem:")?;
    /// store.logs()?.create("orders", Shape::default()).await?;
    /// let log = store.log("orders").await?;
    /// log.append(Entry::new("tea")).await?;
    /// let mut follower: Follower = log.follow(0, FollowOptions::default());
    /// match follower.next().await? {
    ///     Followed::Entry { position, entry } => assert_eq!((position, &entry.data[..]), (0, &b"tea"[..])),
    ///     Followed::Trimmed { from, to } => println!("{from} to {to} are gone"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    "The settings of a follower." nacre_zlog::FollowOptions;
    "A step of a follower." nacre_zlog::Followed;
    "Reads a log in order, and waits at its end. It needs a tokio runtime with a clock around its calls." nacre_zlog::Follower;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::zlog::LogError> {
    /// use std::time::Duration;
    ///
    /// use nacre::zlog::{Entry, Options, Random, Recovered, Shape};
    ///
    /// let store = nacre::open("mem:")?;
    /// store.logs()?.create("orders", Shape::default()).await?;
    /// let log = store.log("orders").await?;
    /// log.append(Entry::new("tea")).await?;
    /// // Nobody appends by the old epoch any more.
    /// let Recovered { epoch, tail, .. } = log.seal().await?;
    /// assert_eq!(tail, 1);
    ///
    /// // A reader that can be relied on to change nothing, with waiting times that can be had again.
    /// let options =
    ///     Options { read_only: true, patience: Duration::from_secs(5), random: Random::seeded(7), ..Options::default() };
    /// let reader = store.log_with("orders", options).await?;
    /// assert_eq!(reader.info().await?.epoch, epoch);
    /// # Ok(())
    /// # }
    /// ```
    "The settings of a handle." nacre_zlog::Options;
    "The result of a recovery, or of a change of view." nacre_zlog::Recovered;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::zlog::LogError> {
    /// use std::sync::Arc;
    ///
    /// use nacre::zlog::{Options, Sequencer, SequencerError, StoreSequencer};
    ///
    /// let store = nacre::open("mem:")?;
    /// // What gives out positions, if it is not to be found by itself: a counter in an object of the store.
    /// let sequencer: Arc<dyn Sequencer> = Arc::new(StoreSequencer::new(Arc::new(store.clone()), "tail".parse()?));
    /// // It works for no epoch yet.
    /// let SequencerError::Epoch(None) = sequencer.read(1).await.unwrap_err() else { panic!("it was never installed") };
    /// let options = Options { sequencer: Some(sequencer), ..Options::default() };
    /// assert!(options.sequencer.is_some());
    /// # Ok(())
    /// # }
    /// ```
    "The source of a log's positions." nacre_zlog::Sequencer;
    "A failure to get positions." nacre_zlog::SequencerError;
    "A sequencer that needs nothing but the store: an object with a fork that has a byte for each position that was given out." nacre_zlog::StoreSequencer;
}
export! {
    /// ```
    /// use nacre::zlog::{LogId, Part, View, Views};
    ///
    /// // Positions in units of two over three objects.
    /// let view = View { epoch: 1, start: 0, generation: 1, width: 3, unit: 2, closed: false };
    /// assert_eq!(view.locate(2), (1, 0));
    /// let parts: Vec<Part> = view.parts(0, 5).collect();
    /// assert_eq!(parts.iter().map(|part| part.count).sum::<u64>(), 5);
    /// // The objects of a log may be laid out anew: it then has several views.
    /// let views = Views::of(view);
    /// assert_eq!(views.find(100).unwrap().0.epoch, views.epoch());
    /// println!("{}", LogId(7));
    /// ```
    "A range of positions whose entries are spread over the same objects." nacre_zlog::View;
    "The views of a log at an epoch." nacre_zlog::Views;
}
use tokio::runtime::{Builder, Handle, Runtime};

use crate::blocking::BlockingStore;
use crate::store::Store;

impl Store {
    /// Returns the logs of the store by their names: to create, list, rename and delete them.
    ///
    /// # Errors
    ///
    /// None that a caller could cause.
    pub fn logs(&self) -> Result<Directory, LogError> {
        Directory::new(Arc::new(self.clone()))
    }

    /// Opens a log of the store.
    ///
    /// # Errors
    ///
    /// [`LogError::Missing`] if there is none of that name, and those of the store.
    pub async fn log(&self, name: &str) -> Result<Log, LogError> {
        self.log_with(name, Options::default()).await
    }

    /// Opens a log of the store with settings.
    ///
    /// # Errors
    ///
    /// Those of [`Store::log`].
    pub async fn log_with(&self, name: &str, options: Options) -> Result<Log, LogError> {
        Log::open(Arc::new(self.clone()), name, options).await
    }
}

/// A log's sequencer that is one of the store's: kept by the metadata rank, which lends it to programs by its policy.
#[cfg(feature = "meta")]
struct RankSequencer(crate::sequencer::Sequencer);

#[cfg(feature = "meta")]
impl Store {
    /// Returns one of the store's sequencers for [`Options::sequencer`]. By its policy a program that appends alone takes positions
    /// without asking anybody, and several pass the sequencer on, or ask the metadata rank for each batch.
    ///
    /// The sequencer is to exist, and to be for one log alone, and all handles on that log are to have it from the first append on.
    /// A handle without it breaks nothing but the order: entries that it appends may come before those that were acknowledged earlier.
    ///
    /// # Errors
    ///
    /// Those of [`Store::sequencer`].
    pub async fn log_sequencer(&self, name: impl AsRef<[u8]>) -> Result<Arc<dyn Sequencer>, StoreError> {
        Ok(Arc::new(RankSequencer(self.sequencer(name).await?)))
    }
}

#[cfg(feature = "meta")]
impl Sequencer for RankSequencer {
    /// The objects refuse an epoch that is over, whatever position comes with it; and the rank gives out each position once, so a
    /// position of an earlier epoch is nobody else's.
    fn next(&self, _epoch: u64, count: u64) -> BoxFuture<'_, Result<u64, SequencerError>> {
        if let Some(first) = self.0.try_next_many(count) {
            return Box::pin(std::future::ready(Ok(first)));
        }
        Box::pin(async move { Ok(self.0.next_many(count).await?) })
    }

    fn read(&self, _epoch: u64) -> BoxFuture<'_, Result<u64, SequencerError>> {
        Box::pin(async move { Ok(self.0.read().await?) })
    }

    /// A rank that has lost nothing is beyond every entry already. Otherwise it is made to pass over those that are there.
    fn install(&self, _epoch: u64, tail: u64) -> BoxFuture<'_, Result<(), SequencerError>> {
        Box::pin(async move {
            loop {
                match tail.saturating_sub(self.0.read().await?) {
                    0 => return Ok(()),
                    missing => drop(self.0.next_many_by_rank(missing).await?),
                }
            }
        })
    }
}

/// Returns the runtime of all logs whose calls block: what they append goes on in its thread between calls.
fn runtime() -> Result<&'static Handle, LogError> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let build =
        || Builder::new_multi_thread().worker_threads(1).thread_name("nacre-zlog").enable_all().build();
    match RUNTIME.get_or_init(build) {
        Ok(runtime) => Ok(runtime.handle()),
        Err(error) => {
            let text = format!("cannot start the thread that logs need: {error}");
            Err(StoreError::new(ErrorKind::Io, text).into())
        }
    }
}

/// A future's runtime while a thread waits for it.
#[derive(Clone, Copy)]
struct EnteredRuntime(&'static Handle);

impl EnteredRuntime {
    fn new() -> Result<EnteredRuntime, LogError> {
        Ok(EnteredRuntime(runtime()?))
    }

    /// Waits for a future. Its tasks and its timers are the runtime's, whatever runtime the thread is of.
    fn wait<T>(self, future: impl Future<Output = T>) -> T {
        let _entered = self.0.enter();
        futures::executor::block_on(future)
    }
}

/// A [`Directory`] whose calls block the calling thread.
///
/// ```
/// use nacre::zlog::{BlockingLogs, Shape};
///
/// let store = nacre::open("mem:")?.blocking();
/// let logs: BlockingLogs = store.logs()?;
/// logs.create("orders", Shape::default())?;
/// assert_eq!(logs.list()?[0].name, "orders");
/// # Ok::<(), nacre::zlog::LogError>(())
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("BlockingLogs")]
pub struct BlockingLogs {
    directory: Directory,
    within: EnteredRuntime,
}

/// A [`Log`] whose calls block the calling thread. Cheap to clone; all clones append in one order.
///
/// ```
/// use nacre::zlog::{BlockingLog, Entry, Shape, Slot};
///
/// let store = nacre::open("mem:")?.blocking();
/// store.logs()?.create("orders", Shape::default())?;
/// let log: BlockingLog = store.log("orders")?;
/// let position = log.append(Entry::new("tea"))?;
/// assert_eq!(log.read(position)?, Slot::Entry(Entry::new("tea")));
/// log.trim(position)?;
/// assert_eq!(log.read(position)?, Slot::Trimmed);
/// # Ok::<(), nacre::zlog::LogError>(())
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("BlockingLog")]
pub struct BlockingLog {
    log: Log,
    within: EnteredRuntime,
}

/// An entry that is being appended. If this is dropped, the entry is appended nevertheless. See [`Appending`].
///
/// ```
/// use nacre::zlog::{BlockingAppending, Entry, Shape};
///
/// let store = nacre::open("mem:")?.blocking();
/// store.logs()?.create("orders", Shape::default())?;
/// let log = store.log("orders")?;
/// let appending: BlockingAppending = log.submit(Entry::new("tea"))?;
/// // Something else meanwhile.
/// assert_eq!(appending.wait()?, 0);
/// # Ok::<(), nacre::zlog::LogError>(())
/// ```
#[must_use]
#[derive(derive_more::Debug)]
#[debug("BlockingAppending")]
pub struct BlockingAppending {
    appending: Appending,
    within: EnteredRuntime,
}

/// A [`Follower`] whose calls block the calling thread: an iterator over the steps, which waits at the end of the log for more. It
/// ends after [`LogError::Missing`] alone; after other errors the next call tries again.
///
/// ```
/// use nacre::zlog::{BlockingFollower, Entry, Followed, Shape};
///
/// let store = nacre::open("mem:")?.blocking();
/// store.logs()?.create("orders", Shape::default())?;
/// let log = store.log("orders")?;
/// log.append(Entry::new("tea"))?;
/// let mut follower: BlockingFollower = log.follow(0, Default::default());
/// assert!(matches!(follower.next_before(1)?, Some(Followed::Entry { position: 0, .. })));
/// assert!(follower.next_before(1)?.is_none());
/// # Ok::<(), nacre::zlog::LogError>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("BlockingFollower")]
pub struct BlockingFollower {
    follower: Follower,
    within: EnteredRuntime,
    deleted: bool,
}

impl BlockingStore {
    /// Returns the logs of the store by their names. See [`Store::logs`].
    ///
    /// # Errors
    ///
    /// Those of [`Store::logs`], and of starting a thread.
    pub fn logs(&self) -> Result<BlockingLogs, LogError> {
        Ok(BlockingLogs { directory: self.nonblocking().logs()?, within: EnteredRuntime::new()? })
    }

    /// Opens a log of the store. See [`Store::log`].
    ///
    /// # Errors
    ///
    /// Those of [`Store::log`], and of starting a thread.
    pub fn log(&self, name: &str) -> Result<BlockingLog, LogError> {
        self.log_with(name, Options::default())
    }

    /// Opens a log of the store with settings. See [`Store::log_with`].
    ///
    /// # Errors
    ///
    /// Those of [`Store::log_with`], and of starting a thread.
    pub fn log_with(&self, name: &str, options: Options) -> Result<BlockingLog, LogError> {
        let within = EnteredRuntime::new()?;
        Ok(BlockingLog { log: within.wait(self.nonblocking().log_with(name, options))?, within })
    }
}

macro_rules! mirror {
    ($field:ident: $type:ident, $($name:ident($($argument:ident: $argument_type:ty),*) -> $result:ty;)*) => {
        $(
            #[doc = concat!("See [`", stringify!($type), "::", stringify!($name), "`].")]
            ///
            /// # Errors
            ///
            #[doc = concat!("Those of [`", stringify!($type), "::", stringify!($name), "`].")]
            pub fn $name(&self, $($argument: $argument_type),*) -> Result<$result, LogError> {
                self.within.wait(self.$field.$name($($argument),*))
            }
        )*
    };
}

impl BlockingLogs {
    mirror! {
        directory: Directory,
        create(name: &str, shape: Shape) -> LogId;
        find(name: &str) -> Listed;
        list() -> Vec<Listed>;
        rename(from: &str, to: &str) -> ();
        delete(name: &str) -> ();
    }

    /// Returns the logs with calls that are awaited.
    pub fn nonblocking(&self) -> &Directory {
        &self.directory
    }
}

impl BlockingLog {
    mirror! {
        log: Log,
        append(entry: Entry) -> u64;
        read(position: u64) -> Slot;
        read_range(from: u64, to: u64) -> Vec<(u64, Slot)>;
        read_tagged(tag: impl Into<Bytes>, from: u64, to: u64) -> Tagged;
        tail() -> u64;
        begin() -> u64;
        fill(position: u64) -> Slot;
        trim(position: u64) -> ();
        trim_prefix(before: u64) -> ();
        info() -> Info;
        seal() -> Recovered;
        reshape(shape: Shape) -> Recovered;
    }

    /// Returns the log with calls that are awaited. Its appends need a runtime that lives on.
    pub fn nonblocking(&self) -> &Log {
        &self.log
    }

    /// Returns the name that the log had when it was opened.
    pub fn name(&self) -> &str {
        self.log.name()
    }

    /// Returns the log's identity.
    pub fn id(&self) -> LogId {
        self.log.id()
    }

    /// Returns the shape of the view that entries are appended to. See [`Log::shape`].
    pub fn shape(&self) -> Shape {
        self.log.shape()
    }

    /// Returns a handle that appends in an order of its own. See [`Log::apart`].
    pub fn apart(&self) -> BlockingLog {
        BlockingLog { log: self.log.apart(), ..*self }
    }

    /// Begins to append an entry, so that further ones can follow before it is in the log. Blocks while too much is under way. See
    /// [`Appender::submit`].
    ///
    /// # Errors
    ///
    /// Those of [`Appender::submit`].
    pub fn submit(&self, entry: Entry) -> Result<BlockingAppending, LogError> {
        let appending = self.within.wait(self.log.appender().submit(entry))?;
        Ok(BlockingAppending { appending, within: self.within })
    }

    /// Follows the log from a position on. See [`Log::follow`].
    pub fn follow(&self, from: u64, options: FollowOptions) -> BlockingFollower {
        BlockingFollower { follower: self.log.follow(from, options), within: self.within, deleted: false }
    }
}

impl BlockingAppending {
    /// Waits until the entry is as durable as the store makes it, and returns its position.
    ///
    /// # Errors
    ///
    /// Those of [`Appender::append`].
    pub fn wait(self) -> Result<u64, LogError> {
        self.within.wait(self.appending)
    }
}

impl BlockingFollower {
    /// Returns the position after that of the last step. See [`Follower::position`].
    pub fn position(&self) -> u64 {
        self.follower.position()
    }

    /// Returns whether the next step is there already.
    pub fn is_ready(&self) -> bool {
        self.follower.is_ready()
    }

    /// Returns the next step; `None` if there is none within the time.
    ///
    /// # Errors
    ///
    /// Those of [`Follower::next`].
    pub fn next_within(&mut self, time: Duration) -> Result<Option<Followed>, LogError> {
        let Self { follower, within, .. } = self;
        within.wait(async { tokio::time::timeout(time, follower.next()).await }).ok().transpose()
    }

    /// Returns the next step before a position; `None` if there is none. See [`Follower::next_before`].
    ///
    /// # Errors
    ///
    /// Those of [`Follower::next_before`].
    pub fn next_before(&mut self, end: u64) -> Result<Option<Followed>, LogError> {
        self.within.wait(self.follower.next_before(end))
    }
}

impl Iterator for BlockingFollower {
    type Item = Result<Followed, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.deleted {
            return None;
        }
        let step = self.within.wait(self.follower.next());
        self.deleted = matches!(step, Err(LogError::Missing(_)));
        Some(step)
    }
}
