//! The walk of file trees: every entry below some roots is visited exactly once, by the threads of one process or by
//! the ranks of many.
//!
//! A [`Walk`] takes roots and one [`Visitor`] for each thread. Threads share the work by stealing it; a unit of work is
//! an unopened directory, or the rest of one that a thread has begun to read, so that one huge directory is
//! shared out too. Descent is by file descriptor: an entry is looked up in its open directory, whatever happens to the
//! names above it, and however long its path is. Symbolic links are reported and never followed.
//!
//! After "On Distributed File Tree Walk of Parallel File Systems" (LaFon, Misra, Bringhurst).
#![deny(unsafe_code)]

pub mod algorithm;
#[cfg(feature = "command")]
pub mod checkpoint;
#[cfg(feature = "command")]
mod collect;
#[cfg(feature = "command")]
pub mod command;
#[cfg(all(test, feature = "shuttle"))]
mod concurrent;
mod control;
pub mod copy;
mod directory;
mod entry;
mod error;
mod fault;
#[cfg(feature = "command")]
pub mod filter;
mod getdents;
#[cfg(feature = "command")]
pub mod list;
mod pool;
#[cfg(feature = "command")]
pub mod quantity;
pub mod remove;
#[cfg(feature = "command")]
pub mod report;
mod root;
mod scan;
pub mod simulate;
mod sync;
mod unit;
mod walk;

pub use control::Control;
pub use directory::{Descriptor, Directory};
pub use entry::{Entry, Kind, Metadata, Time};
pub use error::{Operation, WalkError};
pub use fault::{Cause, Fault, Faults};
pub use pool::{Profile, Progress, Queue};
pub use unit::Unit;
pub use walk::{Ended, Opened, Options, Verdict, Visitor, Walk};
