//! Objects of versioned extents with conditional writes.
//!
//! [`open`] returns a [`Store`]: a handle on a folder of this machine, on one server or several, or on memory. An
//! [`Object`] of it is read, written and updated by byte ranges; every range has a version, and a write can be
//! made on the condition that its range is still at the version that was read.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), nacre::Error> {
//! let store = nacre::open("mem:")?;
//! let object = store.object("greeting")?;
//! object.write(0, "hello").await?;
//!
//! let read = object.read(0..5).await?;
//! assert_eq!(read.data, "hello");
//!
//! // Replaces the bytes, unless another client was faster.
//! match object.write_if(0, "HELLO", read.version).await? {
//!     nacre::Written::Done { version } => assert!(version > read.version),
//!     nacre::Written::Refused(now) => println!("it says {:?} now", now.data),
//! }
//!
//! // Computes the new bytes from the old ones, and leaves the races to the library.
//! object.update(0..5, |old| old.to_ascii_lowercase()).await?;
//! assert_eq!(object.read(0..5).await?.data, "hello");
//! # Ok(())
//! # }
//! ```
//!
//! Without an async runtime, [`Store::blocking`] offers the same calls without `await`:
//!
//! ```
//! let store = nacre::open("mem:")?.blocking();
//! let object = store.object("counter")?;
//! for _ in 0..3 {
//!     object.update(0..8, |old| {
//!         let count = u64::from_le_bytes(old.try_into().unwrap_or_default());
//!         (count + 1).to_le_bytes().to_vec()
//!     })?;
//! }
//! assert_eq!(object.read(0..8)?.data[..], 3u64.to_le_bytes());
//! # Ok::<(), nacre::Error>(())
//! ```
//!
//! [`Store::apply`] covers what the object-level calls do not: any [`Transaction`] of guards, reads and writes on one
//! object, applied wholly or not at all.
//!
//! A [`Stream`] is a byte stream larger than one object: striped over many, written by many at once in parts that share no
//! stripe. An object stays the unit of atomicity; [`Stream::put`] replaces a stream as a whole.
//!
//! # Errors
//!
//! An [`Error`] is a kind, a sentence for people, and as data the operation, the object and the store, where damage is concerned
//! the file and the offset, and the error below it. [`Error::is_retryable`] says whether the same call may succeed later
//! and repeating it does no harm.
//!
//! | calls | kinds that they fail with |
//! |---|---|
//! | all | [`Unavailable`](ErrorKind::Unavailable): a server cannot be reached; [`Denied`](ErrorKind::Denied): it does not let this client in; [`Closed`](ErrorKind::Closed), [`Busy`](ErrorKind::Busy), [`Unsupported`](ErrorKind::Unsupported), [`Unrecognized`](ErrorKind::Unrecognized) |
//! | reads | also [`Corrupt`](ErrorKind::Corrupt) and [`Io`](ErrorKind::Io): stored bytes are damaged, or cannot be read |
//! | writes | also [`OutOfSpace`](ErrorKind::OutOfSpace) and [`ReadOnly`](ErrorKind::ReadOnly): nothing was changed; and [`Unknown`](ErrorKind::Unknown): it was sent, and no answer came |
//! | administrator's calls | those of all; what concerns one server of several fails with its name in the sentence |
//!
//! A write that ends as [`Unknown`](ErrorKind::Unknown) took effect wholly or not at all, and may still do so for as long as the
//! kind says. Each call says what to make of it.
//!
//! # Features
//!
//! All are on by default. A program that needs few of them builds faster without the others.
//!
//! | feature | what it brings |
//! |---|---|
//! | `file` | stores in this process: `file:` and `mem:`, and their locks |
//! | `servers` | stores on servers: `nacre://` and `unix:` |
//! | `rados` | stores in a Ceph cluster: `rados://` |
//! | `class` | object classes, methods in Lua |
//! | `map` | maps, with `class` for their validators |
//! | `meta` | the namespace, and sequencers with `servers` |
//! | `zlog` | shared logs, with `map` for their views |
//!
//! A uri of an engine that is not built in is refused as [`ErrorKind::Unsupported`], with the feature's name.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]
// With all features, lints see everything; where some are off, what only those use stays.
#![cfg_attr(
    not(all(feature = "file", feature = "servers", feature = "rados")),
    allow(dead_code, unreachable_code, unused_imports, unused_mut, unused_variables)
)]

/// Exports types of the crates below with an example that shows them together. What stands at a re-export comes before the type's own
/// documentation, so each begins with the type's summary, which is what lists of types show.
macro_rules! export {
    (@ [$($example:tt)*]) => {};
    (@ [$($example:tt)*] $summary:literal $($path:ident)::+ $(as $name:ident)?; $($rest:tt)*) => {
        #[doc = $summary]
        #[doc = ""]
        $($example)*
        pub use $($path)::+ $(as $name)?;
        export! { @ [$($example)*] $($rest)* }
    };
    ($(#[doc = $line:literal])+ $($summary:literal $($path:ident)::+ $(as $name:ident)?;)+) => {
        export! { @ [$(#[doc = $line])+] $($summary $($path)::+ $(as $name)?;)+ }
    };
}

mod administration;
mod blocking;
#[cfg(feature = "class")]
pub mod class;
mod engine;
#[cfg(feature = "meta")]
pub mod fs;
pub mod lock;
#[cfg(feature = "file")]
mod lock_local;
mod lock_members;
#[cfg(feature = "map")]
pub mod map;
mod object;
mod pager;
mod patient;
#[cfg(feature = "meta")]
pub mod rank;
#[cfg(feature = "meta")]
pub mod sequencer;
mod session;
mod store;
pub mod stream;
mod transfer;
mod update;
mod uri;
mod versioned;
pub mod watch;
#[cfg(feature = "zlog")]
pub mod zlog;

pub use administration::{Counters, Ping, Report};
#[cfg(feature = "file")]
pub use administration::{repair_folder, scrub_folder};
pub use blocking::{
    BlockingKeyNames, BlockingKeys, BlockingObject, BlockingObjects, BlockingStore, BlockingVersionedKeys,
};
pub use lock_members::MemberReport;
/// The sessions that an object shuts out by [`Guard::Fence`].
///
/// ```
/// let object = nacre::open("mem:")?.blocking().object("results")?;
/// object.fence_session(7)?;
/// let fences: nacre::Fences = object.fences()?;
/// assert!(fences.is_fenced(7) && !fences.is_fenced(6) && !fences.is_fenced(8));
/// // All below a number.
/// object.raise_fence(5)?;
/// assert!(object.fences()?.is_fenced(4));
/// # Ok::<(), nacre::Error>(())
/// ```
pub use nacre_object::Fences;
/// A range of keys: those that meet all three conditions.
///
/// ```
/// use nacre::KeyRange;
///
/// let object = nacre::open("mem:")?.blocking().object("queue")?;
/// for job in ["job/1", "job/2", "note/1"] {
///     object.set_key(job, "")?;
/// }
/// let jobs = KeyRange { prefix: "job/".into(), after: Some("job/1".into()), ..KeyRange::all() };
/// assert!(jobs.contains(b"job/2") && !jobs.contains(b"note/1"));
/// let found = object.keys(jobs).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(found.len(), 1);
/// # Ok::<(), nacre::Error>(())
/// ```
pub use nacre_object::KeyRange;
/// Guards, reads and writes on one object, applied wholly or not at all.
///
/// ```
/// use nacre::{Key, ObjectId, Outcome, Transaction};
///
/// let store = nacre::open("mem:")?.blocking();
/// // A new object with content and a key, in one step.
/// let transaction = Transaction::new()
///     .guard(nacre::Guard::Absent)
///     .change(nacre::WriteOp::Extents { fork: Default::default(), extents: vec![(0, "hello".into())] })
///     .change(nacre::WriteOp::SetKey { key: Key::new("language")?, value: "en".into() });
/// assert!(matches!(store.apply(&ObjectId::new("greeting")?, transaction.clone())?, Outcome::Done(_)));
///
/// // The second one finds that it is there already, and changes nothing.
/// assert!(matches!(store.apply(&ObjectId::new("greeting")?, transaction)?, Outcome::Refused(_)));
/// # Ok::<(), nacre::Error>(())
/// ```
pub use nacre_object::Transaction;
/// The result of a copy.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # futures::executor::block_on(async {
/// let (source, copy) = (nacre::open("mem:")?, nacre::open("mem:")?);
/// source.object("a")?.write(0, "hello").await?;
///
/// let copied: nacre::Copied = source.copy_objects(&copy, |object, so_far| println!("{object}: {}", so_far.bytes)).await?;
/// assert_eq!((copied.objects, copied.unchanged), (1, 0));
/// assert!(copied.failed.is_empty());
/// // What is there already is not copied again.
/// assert_eq!(source.copy_objects(&copy, |_, _| ()).await?.unchanged, 1);
/// # Ok(()) })
/// # }
/// ```
pub use nacre_object::copy::Copied;
/// A staged fork that was found.
///
/// ```
/// # use std::time::Duration;
/// let object = nacre::open("mem:")?.blocking().object("upload")?;
/// object.put(&b"hello"[..])?;
/// // A transfer keeps what it has written in a fork of its own; one that was killed has left it there.
/// let left: Vec<nacre::Staged> = object.staged()?;
/// assert!(left.is_empty());
/// for gone in object.remove_staged(Duration::from_secs(3600))? {
///     println!("removed {} bytes of {}", gone.bytes, gone.fork);
/// }
/// # Ok::<(), nacre::Error>(())
/// ```
pub use nacre_object::stage::Staged;
export! {
    /// Several things of an object as it stood at one moment:
    ///
    /// ```
    /// use nacre::{Answer, ByteRange, Fork, Intent, KeyRange, ObjectId, Outcome, ReadOp, Transaction};
    ///
    /// let store = nacre::open("mem:")?.blocking();
    /// let object = store.object("results")?;
    /// object.write(0, "hello")?;
    /// object.set_key("author", "ada")?;
    ///
    /// let reads = Transaction::new()
    ///     .read(ReadOp::Range { fork: Fork::default(), range: ByteRange::from(0..5), intent: Intent::Look })
    ///     .read(ReadOp::Keys { range: KeyRange::all(), limit: 10, values: true })
    ///     .read(ReadOp::Stat)
    ///     .read(ReadOp::Forks { after: None, limit: 10 });
    /// let Outcome::Done(done) = store.apply(&ObjectId::new("results")?, reads)? else { unreachable!("it has no guards") };
    /// let [Answer::Range(bytes), Answer::Keys(keys), Answer::Stat(stat), Answer::Forks(forks)] = &done.answers[..] else {
    ///     unreachable!("there is an answer to each read, in their order")
    /// };
    /// assert_eq!((&bytes.data[..], bytes.size), (&b"hello"[..], 5));
    /// assert_eq!(keys.entries[0].1, "ada");
    /// assert!(!keys.more);
    /// assert_eq!((stat.keys, stat.version), (1, done.version));
    /// assert_eq!(forks.entries.len(), 1);
    /// # Ok::<(), nacre::Error>(())
    /// ```
    "The answer to one read." nacre_object::Answer;
    "A transaction whose guards all held." nacre_object::Done;
    "A page of an object's forks, in ascending order of their names." nacre_object::ForkPage;
    "The use that the caller intends for what it reads: a hint to the master, never a promise." nacre_object::Intent;
    "A page of an object's keys or attributes, in ascending order." nacre_object::KeyPage;
    "A range of a fork, as it stood." nacre_object::RangeRead;
    "A question about the object as it stood before the transaction." nacre_object::ReadOp;
    "An object at a glance." nacre_object::Stat;
}
export! {
    /// ```
    /// use nacre::{ByteRange, Extent, ExtentKind};
    ///
    /// let object = nacre::open("mem:")?.blocking().object("sparse")?;
    /// object.write(0, "head")?;
    /// object.write(100, "tail")?;
    /// let extents: Vec<Extent> = object.extents(0..104)?.extents;
    /// assert_eq!(extents[0].range, ByteRange { offset: 0, len: 4 });
    /// assert_eq!(extents[0].kind, ExtentKind::Data);
    /// // Each byte has the version of what wrote it.
    /// assert!(extents[0].version < extents.last().unwrap().version);
    /// # Ok::<(), nacre::Error>(())
    /// ```
    "A range of bytes of a fork." nacre_object::ByteRange;
    "A byte range of a fork written at one version. Ranges that were never written belong to no extent." nacre_object::Extent;
    "The kind of an extent: bytes, or none." nacre_object::ExtentKind;
}
export! {
    /// A transaction that tells what it found where its guard did not hold:
    ///
    /// ```
    /// use nacre::{Check, Found, Guard, Key, ObjectId, Outcome, Refusal, Transaction, WriteOp};
    ///
    /// let store = nacre::open("mem:")?.blocking();
    /// let object = ObjectId::new("job")?;
    /// let state = Key::new("state")?;
    /// store.object("job")?.set_key("state", "running")?;
    ///
    /// let begin = Transaction::new()
    ///     .guard(Guard::Key { key: state.clone(), check: Check::Equal("waiting".into()) })
    ///     .change(WriteOp::SetKey { key: state, value: "running".into() });
    /// match store.apply(&object, begin)? {
    ///     Outcome::Done(done) => println!("begun, at version {}", done.version),
    ///     Outcome::Refused(Refusal { guard, found, .. }) => {
    ///         assert_eq!(guard, 0);
    ///         assert_eq!(found, Found::Value(Some("running".into())));
    ///     }
    /// }
    /// assert!(Check::Less("b".into()).holds(Some(b"a")));
    /// # Ok::<(), nacre::Error>(())
    /// ```
    "A check of a value. Comparisons are bytewise and fail where there is no value, except `NotEqual`, which holds." nacre_object::Check;
    "The state that made a guard fail." nacre_object::Found;
    "A condition on the object as it stood before the transaction." nacre_object::Guard;
    "The outcome of a transaction, when the store did not fail." nacre_object::Outcome;
    "A transaction of which a guard did not hold." nacre_object::Refusal;
    "A change of the object. Every one but `Remove` makes the object exist if it does not." nacre_object::WriteOp;
}
export! {
    /// A failure is told by its kind, and by a sentence for people:
    ///
    /// ```
    /// use nacre::ErrorKind;
    ///
    /// let error: nacre::Error = nacre::open("file:/no/such/folder").unwrap_err();
    /// // Trying again is of use for some kinds only.
    /// assert!(!error.is_retryable());
    /// match error.kind {
    ///     ErrorKind::Unavailable | ErrorKind::Busy => println!("later: {error}"),
    ///     ErrorKind::OutOfSpace => println!("make room: {error}"),
    ///     _ => println!("{error}"),
    /// }
    /// assert_eq!(ErrorKind::from_code(ErrorKind::Busy.code()), ErrorKind::Busy);
    /// // It may have happened, or not.
    /// assert!(ErrorKind::Unknown.is_uncertain());
    /// ```
    "The kinds of failure. The numbers are the codes that travel over the wire; they never change meaning." nacre_object::ErrorKind;
    "A failure, with one sentence on what was attempted, on what, and why it failed." nacre_object::StoreError as Error;
}
export! {
    /// ```
    /// use nacre::{Fork, Key, ObjectId};
    ///
    /// let id: ObjectId = "results/run 1".parse()?;
    /// assert_eq!(id.as_bytes(), b"results/run 1");
    /// // The fork of an object that is meant where none is named.
    /// assert_eq!(Fork::default().as_bytes(), b"");
    /// // Names are bytes, and bounded.
    /// assert!(Key::new(vec![b'k'; nacre::limit::KEY_BYTES_MAX]).is_ok());
    /// assert!(Key::new(vec![b'k'; nacre::limit::KEY_BYTES_MAX + 1]).is_err());
    /// # Ok::<(), nacre::Error>(())
    /// ```
    "The name of a fork of an object: 0 to 255 bytes. The empty name is the default fork." nacre_object::Fork;
    "The name of a key or an attribute of an object: 1 to 1024 bytes, ordered bytewise." nacre_object::Key;
    "The name of an object: 1 to 255 bytes." nacre_object::ObjectId;
    "Every limit of the model, in one place." nacre_object::limit;
}
export! {
    /// A write that is applied at most once, however often it is sent:
    ///
    /// ```
    /// use nacre::{Fork, Lease, ObjectId, ObjectStore, Once, Transaction, WindowPosition, WriteOp, WriteToken};
    ///
    /// # futures::executor::block_on(async {
    /// let store = nacre::open("mem:")?;
    /// let object = ObjectId::new("log")?;
    /// let write = WriteOp::Extents { fork: Fork::default(), extents: vec![(0, "once".into())] };
    /// // From before the first attempt. A store that remembers no writes has none.
    /// let since: Option<WindowPosition> = store.window();
    /// let token = WriteToken { writer: [7; 16], sequence: 1 };
    /// let first = Once { token, since: None, lease: Lease::unlimited() };
    /// let done = store.apply_once(&object, Transaction::new().change(write.clone()), first).await?;
    ///
    /// if since.is_some() {
    ///     // The reply was lost, say.
    ///     let again = Once { token, since, lease: Lease::unlimited() };
    ///     assert_eq!(store.apply_once(&object, Transaction::new().change(write), again).await?, done);
    /// }
    /// # Ok::<(), nacre::Error>(()) }).unwrap();
    /// ```
    "The right of one connection to apply a writer's transactions." nacre_object::Lease;
    "An attempt at a write that is to be applied at most once." nacre_object::Once;
    "A position of a store's window. Every write that is applied later has this position or a greater one." nacre_object::WindowPosition;
    "The name of one write: no two writes have the same one, and every attempt at a write has that of the first." nacre_object::WriteToken;
}
export! {
    /// An engine of one's own, which counts what passes through it:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// use nacre::{Limits, ObjectId, ObjectStore, Outcome, Reply, Store, Transaction};
    ///
    /// struct Counting(Store, AtomicUsize);
    ///
    /// impl ObjectStore for Counting {
    ///     fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
    ///         self.1.fetch_add(1, Ordering::Relaxed);
    ///         self.0.apply(object, transaction)
    ///     }
    ///
    ///     fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
    ///         ObjectStore::list(&self.0, after, limit)
    ///     }
    ///
    ///     fn limits(&self) -> Reply<Limits> {
    ///         // A reply that is there already needs no waiting.
    ///         Reply::ready(Ok(Limits { fork_bytes_max: 1 << 30, ..Limits::default() }))
    ///     }
    /// }
    ///
    /// let counting = Arc::new(Counting(nacre::open("mem:")?, AtomicUsize::new(0)));
    /// let store = Store::from_engine(counting.clone(), "counting").blocking();
    /// store.object("a")?.write(0, "hello")?;
    /// assert_eq!(counting.1.load(Ordering::Relaxed), 1);
    /// # Ok::<(), nacre::Error>(())
    /// ```
    "Limits of one store, which may be below the model's." nacre_object::Limits;
    "A store of objects. The embedded engine, a remote server and a Ceph pool all implement it, and all pass the same conformance suite (`testkit::conformance`)." nacre_object::ObjectStore;
    "An answer that may be there already: a future that costs no allocation if it is." nacre_object::Reply;
}
export! {
    /// ```
    /// use nacre::{Answer, Key, KeyRange, ObjectId, Outcome, ReadOp, Transaction, Versioned, VersionedKeyPage};
    ///
    /// let store = nacre::open("mem:")?.blocking();
    /// let object = store.object("settings")?;
    /// let version = object.set_key("colour", "green")?;
    /// assert_eq!(object.versioned_key("colour")?, Some(Versioned { value: "green".into(), version }));
    ///
    /// let read = ReadOp::VersionedKeys { range: KeyRange::all(), limit: 100, values: false };
    /// let Outcome::Done(done) = store.apply(&ObjectId::new("settings")?, Transaction::new().read(read))? else { panic!() };
    /// let Some(Answer::VersionedKeys(VersionedKeyPage { entries, more: false })) = done.answers.first() else { panic!() };
    /// assert_eq!((&entries[0].0, entries[0].1.version), (&Key::new("colour")?, version));
    /// # Ok::<(), nacre::Error>(())
    /// ```
    "The value of a key, and its version." nacre_object::Versioned;
    "A page of an object's keys with their versions, in ascending order." nacre_object::VersionedKeyPage;
}
/// The crate of the buffers in which payload goes in and comes out.
///
/// ```
/// use nacre::bytes::Bytes;
///
/// let object = nacre::open("mem:")?.blocking().object("greeting")?;
/// object.write(0, Bytes::from_static(b"hello"))?;
/// let data: Bytes = object.read(0..5)?.data;
/// assert_eq!(data, "hello");
/// # Ok::<(), nacre::Error>(())
/// ```
pub use bytes;
/// A pool of a Ceph cluster, and how it is reached.
///
/// ```
/// # fn main() -> Result<(), nacre::Error> {
/// let uri: nacre::Uri = "rados://scratch?ns=job-7".parse()?;
/// let nacre::Engine::Rados(location) = uri.engine else { panic!("it is another engine") };
/// assert_eq!(location.pool, "scratch");
/// assert_eq!(nacre::Location::new("scratch").pool, location.pool);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "rados")]
pub use nacre_rados::Location;
/// The address of a server.
///
/// ```
/// use nacre::{Address, Engine, Uri};
///
/// let uri: Uri = "nacre://one:6470,[::1]:6471".parse()?;
/// let Engine::Servers(servers) = uri.engine else { panic!("it is another engine") };
/// assert_eq!(servers[0], "one:6470".parse::<Address>()?);
/// assert!(!servers[0].is_local());
/// # Ok::<(), nacre::Error>(())
/// ```
pub use nacre_rpc::Address;
pub use object::{Appended, Extents, Object, Written};
pub use pager::{KeyNames, Keys, Objects};
pub use store::Store;
pub use stream::{Stream, StreamStat};
pub use update::{Change, Settled, UpdateOptions, Updated};
pub use uri::{Durability, Engine, Options, Uri};
pub use versioned::{KeyWritten, VersionedKeys};

/// Forks whose names Nacre keeps for itself, such as those of transfers that have not ended.
///
/// ```
/// use nacre::{Fork, stage};
///
/// assert!(stage::is_reserved(&Fork::new(format!("{}7", stage::STAGED))?));
/// assert!(!stage::is_reserved(&Fork::new("mine")?));
/// # Ok::<(), nacre::Error>(())
/// ```
pub mod stage {
    pub use nacre_object::stage::{RESERVED, STAGED, is_reserved};
}

/// Opens a store.
///
/// | uri | store |
/// |---|---|
/// | `mem:` | in memory, gone with the handle |
/// | `file:PATH` | in a folder of this machine, used by this process alone |
/// | `nacre://HOST:PORT,HOST:PORT,…` | on one server, or spread over several; they know which ones, so it does not matter how they are spelt |
/// | `unix:PATH` | on a server of this machine, through its Unix socket |
/// | `unix:` | on the user's own server: `nacre serve` without an address |
/// | `rados://POOL` | in a pool of a Ceph cluster (`docs/ceph.md`) |
///
/// Options follow as a query, such as `file:data?create=yes`; [`Options`] lists them. Opening a folder reads what is
/// needed to recover it, and blocks for as long as that takes, unlike [`open_async`]. It makes a store only with
/// `create=yes`, and only in a folder that is new or empty. Servers are connected when they are first needed;
/// [`Store::connect`] does it at once.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the uri or an option of it makes no sense, [`ErrorKind::Unsupported`] if its engine is
/// not built in. Of a folder: [`ErrorKind::Busy`] if a process has it open, [`ErrorKind::Corrupt`] if it is damaged
/// beyond what recovery mends, [`ErrorKind::Io`] and [`ErrorKind::OutOfSpace`] of the system. Servers are not asked
/// yet.
pub fn open(uri: &str) -> Result<Store, Error> {
    Store::open(&uri.parse()?)
}

/// Opens a store as [`open`] does, without blocking the thread that awaits it: a folder is recovered on a thread of its own.
/// If the future is dropped meanwhile, the store is closed once it is open.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// let store = nacre::open_async("mem:").await?;
/// # assert_eq!(store.name(), "mem:");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`open`].
pub async fn open_async(uri: &str) -> Result<Store, Error> {
    Store::open_async(&uri.parse()?).await
}
