//! Nacre's protocol.
//!
//! `docs/wire.md` describes the bytes. The codec ([`frame`], [`request`], [`reply`]) has no I/O; [`server`] serves
//! any [`ObjectStore`](nacre_object::ObjectStore), and [`RemoteStore`] is one that lives behind such servers.

#![forbid(unsafe_code)]

pub mod call;
mod channel;
pub mod check;
mod cursor;
mod error;
pub mod frame;
pub mod handshake;
mod inbox;
mod key;
pub mod limit;
mod outbox;
pub mod remote;
pub mod reply;
pub mod request;
mod seal;
pub mod server;
mod stream;

pub use error::WireError;
pub use key::{ClusterKey, KEY_BYTES};
pub use outbox::Outbox;
pub use remote::{RemoteOptions, RemoteStore};
pub use server::{ServeOptions, Server, ServerLimits};
pub use stream::{Address, PORT_DEFAULT};
