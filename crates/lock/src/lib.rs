//! Byte-range locks for noncontiguous access to shared files (Ching et al., *Noncontiguous Locking Techniques for
//! Parallel File Systems*).
//!
//! Many processes write interleaved pieces of one file. A lock on the whole range makes them take turns, and a lock
//! for each piece drowns the lock server. Here a lock covers exactly the bytes of an *access pattern*, and is kept
//! as the description of that pattern.
//!
//! - [`Description`] is what a user gives: one range, a list of ranges, or a tree of MPI's datatype constructors.
//! - [`Pattern`] is its normal form: a set of bytes, of which everything can be asked without unrolling it.

#![forbid(unsafe_code)]

mod datatype;
mod encoding;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod limit;
pub mod pattern;
mod text;

pub use datatype::{Block, Datatype, Description, Distribution, FileView, Member, Order};
pub use error::PatternError;
pub use limit::{DEPTH_MAX, DESCRIPTION_BYTES_MAX, ITEMS_MAX, OFFSET_MAX};
pub use pattern::{Count, Pattern, Region, Search, Stripe};
