//! The C library. `include/nacre.h` is made from this crate by cbindgen, and `docs/c.md` is its manual.
//!
//! Handles are numbers in the guise of pointers ([`handle`]), so that a handle that was closed, or is another's, is an error and
//! not a crash. Every exported function runs in [`code::call`], which keeps the sentence of a failure for the thread and lets no panic pass.
//! Arguments are checked by [`argument`] before anything is done with them.

// The names are those of C.
#![allow(non_camel_case_types)]
// Programs in C have no use for it.
#![allow(missing_debug_implementations)]
// The rules are the same for all functions, and stand at the head of the header.
#![allow(clippy::missing_safety_doc)]

pub mod argument;
pub mod code;
pub mod handle;
pub mod lock;
pub mod object;
pub mod pattern;
pub mod result;
mod signal;
pub mod store;
pub mod transaction;
