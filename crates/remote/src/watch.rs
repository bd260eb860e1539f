//! Watch and notify at a server: a service of its own over the clients' connections. `docs/wire.md` describes the
//! messages.
//!
//! A watch is a subscription. Its events come from a bounded queue beside the object ([`nacre_object::watch`]) and are
//! handed to the connection as far as the client takes them: the events of all watches of a connection share a window of
//! bytes. So a client that reads slowly, or not at all, finds a gap where its queue was full, and
//! costs nobody else anything.

mod client;
mod relay;
mod service;
mod wire;

pub(crate) use client::{notify, watch};
pub use service::{PendingWatch, WatchConnection, WatchResult, WatchService, WatchStats};
#[doc(hidden)]
pub use wire::fuzz;
pub use wire::{ACKNOWLEDGE, NOTED, NOTIFIED, NOTIFY, TAKEN, WATCH, WATCH_SERVICE, WATCHED};
