//! A namespace on objects: directories, files, links and inodes with types of their own, on any store.

#![forbid(unsafe_code)]

pub mod capability;
mod clock;
pub mod codec;
mod credentials;
mod error;
#[doc(hidden)]
pub mod fuzz;
pub mod inode;
pub mod remote;
pub mod role;
pub mod sequencer;
pub mod service;
pub mod wire;

pub use credentials::{Credentials, EXECUTE, READ, WRITE};
pub use error::{Error, Result};
