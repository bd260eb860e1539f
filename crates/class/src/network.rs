//! Calls of methods at a server, beside the object that they are about.
//!
//! A server of objects runs the methods of its objects' classes as a service of its own over the clients' connections.
//! `docs/wire.md` describes the messages.

mod client;
mod service;
mod wire;

pub use client::call;
pub use service::{ClassConnection, ClassService, Counts, Options, Runner};
#[doc(hidden)]
pub use wire::fuzz;
pub use wire::{CALL, CALLED, CLASS, FAILED};
