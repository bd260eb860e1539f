//! Nacre's object model.
//!
//! An object is named by an [`ObjectId`] and holds *forks* (sparse byte streams), *keys* (an ordered map) and
//! *attributes* (a small map). Every byte of a fork carries the version of the transaction that wrote it, so that
//! a client can read a region, change it, and write it back on the condition that no other client did so meanwhile:
//! optimistic coordination instead of locks (Carns et al., *A Case for Optimistic Coordination in HPC Storage
//! Systems*, section III).
//!
//! The unit of atomicity is the [`Transaction`]: guards, reads and writes on one object, applied wholly or not at
//! all. All guards and reads see the object as it stood before the transaction; its writes take effect together,
//! in order, if every guard holds. Whatever keeps objects implements [`ObjectStore`], the one seam of the system.
//!
//! # Versions
//!
//! Versions come from one sequence per object, starting at 1. Every successful transaction that writes takes the
//! next one and stamps it on all that it writes. A *region version* is the greatest version in a byte range, and 0
//! where nothing was ever written; because the sequence is the object's, guarding a region of many versions by its
//! greatest is safe. Nothing resets a version:
//!
//! - zeroing a range leaves a hole that carries the version that made it;
//! - truncating leaves a hole from the smaller of the old and the new size to the end of the offset space;
//! - removing a fork leaves a hole over the whole of it;
//! - removing the object leaves a hole over every byte of every fork (its *tombstone version*), and an object made again goes
//!   on above every version it ever had.
//!
//! Stores do not remember every removed object for ever. A store that has many forgets them, and keeps their greatest version as its
//! *floor*. From then on every object of which it knows nothing looks like one that was removed at the floor: its version, and that of
//! every byte, is the floor, and an object that is made goes on above it. So versions rise by themselves while there is no
//! object, and a guard on what was read before is refused; and version 0 says that an object never was only as long as nothing was
//! forgotten. Remembered for ever are objects with a fence, those above [`limit::FLOOR_MAX`], and those of Nacre's own services
//! ([`ObjectId::is_remembered`]).
//!
//! A key carries the version of the transaction that last set it, which is gone with the key.
//!
//! # Fences
//!
//! A client that acts for a session (of a lock service, say) guards its transactions by the session's number, so that
//! whoever takes over from it can shut it out although its requests may still be under way: [`Guard::Fence`],
//! [`WriteOp::FenceSession`] for one session, [`WriteOp::RaiseFence`] for all that are older than one. Fences outlive the
//! removal of the object.

#![forbid(unsafe_code)]

pub mod copy;
mod error;
mod extent;
mod id;
pub mod latency;
pub mod limit;
pub mod once;
mod outcome;
pub mod pace;
pub mod stage;
mod store;
pub mod stripe;
#[cfg(feature = "testkit")]
pub mod testkit;
mod transaction;
pub mod watch;
pub mod window;

pub use error::{ErrorKind, StoreError};
pub use extent::{ByteRange, Extent, ExtentKind, coalesce};
pub use id::{Fork, Key, ObjectId};
pub use nacre_quantity::Escaped;
pub use once::{Lease, Once, WindowPosition, WriteToken};
pub use outcome::{
    Answer, Done, Fences, ForkPage, Found, KeyPage, Outcome, RangeRead, Refusal, Stat, Versioned,
    VersionedKeyPage,
};
pub use store::{Limits, ObjectStore, Reply};
pub use transaction::{Check, Guard, Intent, KeyRange, ReadOp, Transaction, WriteOp, appended_too_far};
