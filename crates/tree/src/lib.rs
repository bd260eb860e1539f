//! Copies and removals of file trees, on all processors: visitors of the walk of [`nacre_walk`], which name everything in
//! its open directory and never follow a link.

#![deny(unsafe_code)]

mod control;
pub mod copy;
mod error;
pub mod listed;
pub mod mounts;
pub mod remove;
mod root;

pub use control::Control;
pub use error::{Cause, EntryError, EntryErrors};
