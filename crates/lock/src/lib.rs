//! Byte-range locks for noncontiguous access to shared files (Ching et al., *Noncontiguous Locking Techniques for
//! Parallel File Systems*).
//!
//! Many processes write interleaved pieces of one file. A lock on the whole range makes them take turns, and a lock
//! for each piece drowns the lock server. Here a lock covers exactly the bytes of an *access pattern*, and is kept
//! as the description of that pattern.
//!
//! - [`Description`] is what a user gives: one range, a list of ranges, or a tree of MPI's datatype constructors.
//! - [`Pattern`] is its normal form: a set of bytes, of which everything can be asked without unrolling it.
//!
//! Locks are a service over `rpc`: [`role`] is its server, [`remote`] its client, [`wire`] its messages. What they do is
//! decided by state machines without I/O: [`server`], [`table`] and [`client`].
//!
//! ```
//! use nacre_lock::{Datatype, Description, Pattern, Stripe};
//!
//! // Two ranks that write every other element of 8 bytes.
//! let even = Pattern::new(&Datatype::Bytes(8).vector(1 << 27, 1, 2).at(0))?;
//! let odd = Pattern::new(&"view(displacement=8, of=vector(count=134217728, stride=2, of=bytes(8)))".parse()?)?;
//! assert_eq!(even.region_count(), 1 << 27);
//! assert_eq!(even.first_common(&odd, 0), None);
//!
//! // What of it the third of four servers has, from the middle of the file on.
//! let stripe = Stripe { bytes: 64 << 10, servers: 4, server: 2 };
//! let mine = even.restrict(stripe)?.from(1 << 30);
//! assert_eq!(mine.next_region(0).map(|region| region.offset), Some((1 << 30) + (128 << 10)));
//! # Ok::<(), nacre_lock::PatternError>(())
//! ```

#![forbid(unsafe_code)]

pub mod client;
mod clock;
pub mod cycle;
mod datatype;
mod encoding;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod limit;
pub mod message;
pub mod pattern;
pub mod remote;
pub mod role;
pub mod server;
pub mod table;
#[cfg(feature = "testkit")]
pub mod testkit;
mod text;
pub mod wire;

pub use datatype::{Block, Datatype, Description, Distribution, FileView, Member, Order};
pub use error::PatternError;
pub use limit::{DEPTH_MAX, DESCRIPTION_BYTES_MAX, ITEMS_MAX, OFFSET_MAX};
pub use pattern::{Count, Pattern, Region, Search, Stripe};
