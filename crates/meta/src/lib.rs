//! A namespace on objects: directories, files, links and inodes with types of their own, on any store; and metadata ranks with
//! capabilities and sequencers.

#![forbid(unsafe_code)]

mod ahead;
mod attribute;
pub mod capability;
mod check;
mod clock;
pub mod codec;
mod create;
mod credentials;
mod directory;
mod error;
mod file;
mod fragment;
#[doc(hidden)]
pub mod fuzz;
pub mod inode;
mod intent;
pub mod load;
mod namespace;
pub mod place;
mod put;
mod quota;
mod rank;
pub mod remote;
mod remove;
pub mod role;
pub mod sequencer;
pub mod service;
mod unmade;
pub mod wire;

pub use attribute::{Attributes, SetAttributes, SetTime};
pub use check::{Finding, Report, Unfinished};
pub use credentials::{Credentials, EXECUTE, READ, WRITE};
pub use directory::{NAME_BYTES_MAX, check_name};
pub use error::{Error, Result};
pub use file::{Piece, SIZE_MAX};
pub use namespace::{Creation, Listed, PAGE_ENTRIES_MAX, PATH_BYTES_MAX, Page};
pub use put::Put;
pub use quota::{Limits, Quota, Usage};
pub use rank::{Clock, Rank, RankOptions, Typed};
