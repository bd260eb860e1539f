//! A namespace on objects: directories, files, links and inodes with types of their own, on any store.

#![forbid(unsafe_code)]

mod attribute;
mod check;
pub mod codec;
mod credentials;
mod directory;
mod error;
mod file;
pub mod inode;
mod intent;
pub mod message;
mod namespace;
mod rank;

pub use attribute::{Attributes, SetAttributes, SetTime};
pub use check::{Finding, Report};
pub use credentials::{Credentials, EXECUTE, READ, WRITE};
pub use directory::{NAME_BYTES_MAX, check_name};
pub use error::{Error, Result};
pub use file::{Piece, Put, SIZE_MAX};
pub use namespace::{Creation, Listed, PAGE_ENTRIES_MAX, PATH_BYTES_MAX, Page};
pub use rank::{Clock, Rank, RankOptions};
