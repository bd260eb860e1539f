//! The walk of file trees: every entry below some roots is visited exactly once, by the threads of one process or by
//! the ranks of many.
//!
//! A [`Walk`] takes roots and one [`Visitor`] for each thread. Threads share the work by stealing it; a unit of work is
//! an unopened directory, or the rest of one that a thread has begun to read, so that one huge directory is
//! shared out too. Descent is by file descriptor: an entry is looked up in its open directory, whatever happens to the
//! names above it, and however long its path is. Symbolic links are reported and never followed. A tree that is in no file
//! system of this machine is walked through a [`Source`], which lists its directories by inode numbers.
//!
//! After "On Distributed File Tree Walk of Parallel File Systems" (LaFon, Misra, Bringhurst).
#![deny(unsafe_code)]

pub mod chain;
pub mod checkpoint;
pub mod collect;
#[cfg(all(test, feature = "shuttle"))]
mod concurrent;
pub mod directory;
mod entry;
mod error;
pub mod filter;
pub mod getdents;
pub mod list;
pub mod lustre;
mod pool;
pub mod record;
pub mod report;
mod scan;
mod snapshot;
mod source;
mod sync;
mod unit;
mod walk;

pub use directory::{Descriptor, Directory};
pub use entry::{Entry, FileKind, Inode, Metadata, Time};
pub use error::{MISSING, Operation, WalkError};
pub use pool::{Profile, Progress, Queue};
pub use snapshot::Snapshot;
pub use source::{Item, Listing, Source};
pub use unit::Unit;
pub use walk::{Ended, Opened, Options, Verdict, Visitor, Walk};
