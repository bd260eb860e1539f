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
pub use nacre_object::copy::Copied;
pub use nacre_object::stage::{self, Staged};
pub use nacre_object::{
    Answer, ByteRange, Check, Done, ErrorKind, Extent, ExtentKind, Fences, Fork, ForkPage, Found, Guard,
    Intent, Key, KeyPage, KeyRange, Lease, Limits, ObjectId, ObjectStore, Once, Outcome, RangeRead, Read,
    Refusal, Reply, Stat, StoreError as Error, Transaction, Versioned, VersionedKeyPage, WindowPosition,
    Write, WriteToken, limit,
};
#[cfg(feature = "rados")]
pub use nacre_rados::Location;
pub use nacre_rpc::Address;
pub use object::{Appended, Extents, Object, Written};
pub use pager::{KeyNames, Keys, Objects};
pub use store::Store;
pub use stream::{Stream, StreamStat};
pub use update::{Change, Settled, UpdateOptions, Updated};
pub use uri::{Durability, Engine, Options, Uri};
pub use versioned::{KeyWritten, VersionedKeys};
// Payload goes in and comes out as `bytes::Bytes`; reports are of `serde_json::Value`.
pub use {bytes, serde_json};

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
/// needed to recover it, and blocks for as long as that takes ([`open_async`] does not); it makes a store only with `create=yes`, and only in a
/// folder that is new or empty. Servers are connected when they are first
/// needed; [`Store::connect`] does it at once.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the uri or an option of it makes no sense, [`ErrorKind::Unsupported`] if its engine is
/// not built in. Of a folder: [`ErrorKind::Busy`] if a process has it open, [`ErrorKind::Corrupt`] if it is damaged
/// beyond what recovery mends, [`ErrorKind::Io`] and [`ErrorKind::OutOfSpace`] of the system. Servers are not asked
/// yet.
pub fn open(uri: &str) -> Result<Store, Error> {
    Store::open(&uri.parse()?)
}

/// Opens a store, as [`open`] does, without blocking the thread that awaits it: the recovery of a folder is on a thread
/// of its own. If the future is dropped, the store is opened all the same, and closed at once.
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
