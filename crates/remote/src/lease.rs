//! Leases on objects: what clients read of an object under one, they may keep until it is asked back. `docs/wire.md` describes the
//! messages, `docs/fs.md` what holds for users.
//!
//! A client opens a session with a server, and leases the objects that it reads there ([`LeasedStore`]). The server holds each
//! write of a leased object until all holders have given their leases back, as they are asked to, or until their sessions have
//! lapsed ([`Leases`]). So nobody who was answered before a change was acknowledged is answered from memory after it: what is cached
//! is never older than what the store says. A client that does not give leases back in time gets none for a while.
//!
//! Only the metadata of the namespace is leased, directories and inodes: what many look at, and few change. So after a restart of the
//! server, which forgets all leases, only changes of these have to wait ([`Leases::recover`]).

mod cache;
mod client;
mod hold;
mod known;
mod service;
mod suspension;
mod table;
#[cfg(test)]
mod tests;
mod wire;

use std::time::Duration;

use nacre_object::ObjectId;

pub use cache::CacheCounts;
pub use client::LeasedStore;
pub use hold::Leases;
pub use service::{LeaseConnection, LeaseReply, LeaseService, PendingLease};
pub use table::LeaseCounts;
#[doc(hidden)]
pub use wire::fuzz;
pub use wire::{
    ANSWERED, END, GIVE_BACK, Granted, LEASE, LEASE_SERVICE, LEASED, NOTED, OPEN, OPENED, READ, RENEW,
    RENEWED,
};

/// The length of the leases of a server, unless it is told otherwise: the time for which a holder that cannot be reached keeps others
/// from a change. Holders renew them several times meanwhile.
pub const LEASE_LENGTH: Duration = Duration::from_secs(2);

/// The beginnings of the names of the objects that are leased: inodes, and further parts of directories.
const LEASABLE: [&[u8]; 2] = [b"nacre/fs/i/", b"nacre/fs/e/"];

/// Returns whether an object is one of those that are leased.
pub fn is_leasable(object: &ObjectId) -> bool {
    LEASABLE.iter().any(|prefix| object.as_bytes().starts_with(prefix))
}
