//! A namespace on objects: directories, files, links and inodes with types of their own, on any store.

#![forbid(unsafe_code)]

pub mod codec;
mod credentials;
mod error;
pub mod inode;

pub use credentials::{Credentials, EXECUTE, READ, WRITE};
pub use error::{Error, Result};
