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
pub mod join;
mod key;
pub mod limit;
mod members;
mod outbox;
pub mod remote;
pub mod reply;
pub mod request;
mod seal;
pub mod server;
pub mod socket;
mod stream;

pub use error::WireError;
pub use key::{ClusterKey, KEY_BYTES};
pub use members::{DIGEST_BYTES, MEMBER_NAME_BYTES_MAX, MEMBERS_MAX, Members, Membership};
pub use outbox::Outbox;
pub use remote::{RemoteOptions, RemoteStore};
pub use server::{ServeOptions, Server, ServerLimits};
pub use socket::SocketAccess;
pub use stream::{Address, PORT_DEFAULT};
