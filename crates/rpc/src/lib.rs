//! Services over one connection.
//!
//! A connection carries frames between a client and a server; `docs/wire.md` describes the bytes. This crate is
//! independent of any service: a [`Service`] is registered with a [`Server`], and its clients send [`client::Request`]s
//! over a [`client::Link`].

#![forbid(unsafe_code)]

mod channel;
pub mod check;
pub mod client;
pub mod control;
mod cursor;
mod error;
pub mod frame;
pub mod handshake;
mod inbox;
mod key;
pub mod limit;
mod outbox;
pub mod poll;
mod seal;
pub mod server;
pub mod socket;
mod stream;

pub use cursor::Cursor;
pub use error::WireError;
pub use frame::{Frame, MessageKind};
pub use key::{ClusterKey, KEY_BYTES, MemoryKey};
pub use nacre_quantity::repeated;
pub use outbox::{Open, Outbox};
pub use server::{Handled, Incoming, Origin, Peer, ServeOptions, Server, ServerLimits, Service, Services};
pub use socket::SocketAccess;
pub use stream::{Address, PORT_DEFAULT};
