//! Nacre's objects on Ceph.
//!
//! Each object is one RADOS object: extents, forks, keys and attributes in its omap, their bytes in its byte stream,
//! and a header in an attribute. So a transaction is one atomic operation at the object's primary OSD, which judges
//! the guards once and then sends its replicas an ordinary write (Carns et al., *A Case for Optimistic Coordination
//! in HPC Storage Systems*, section III; and Sevilla et al., *Malacology*, sections 4.2 and 4.4).
//!
//! Transactions that RADOS has operations for run natively (`native`, `write`); all others are run by `extent.lua`,
//! which stock OSDs run through their class `lua`. `docs/ceph.md` has the settings for administrators, and the layout
//! of what is stored.
//!
//! librados is found at run time: the program runs where it is not installed, and opening a `rados://` store says what
//! to install.

#![deny(unsafe_code)]

mod apply;
mod attempt;
mod cache;
mod compact;
mod discard;
mod driver;
#[cfg(test)]
mod emulation;
mod error;
mod fences;
mod floor;
mod index;
mod lane;
mod limit;
mod mark;
mod name;
mod native;
mod program;
mod purge;
pub mod raw;
mod read;
mod record;
mod reply;
mod request;
mod script;
mod scrub;
mod snapshot;
mod store;
#[allow(unsafe_code)]
mod sys;
mod uri;
mod watch;
mod write;

pub use compact::CompactionReport;
pub use program::{Program, ProgramRun};
pub use purge::{PurgeOptions, PurgeReport};
pub use scrub::ScrubReport;
pub use store::RadosStore;
pub use uri::Location;
