//! The object service of Nacre's protocol, and the administration of its servers.
//!
//! `docs/wire.md` describes the bytes. The codec ([`join`], [`request`], [`reply`], [`once`], [`call`]) has no I/O;
//! [`StoreService`], [`WatchService`] and [`LeaseService`] serve any [`ObjectStore`](nacre_object::ObjectStore), and [`RemoteStore`] is an
//! object store behind such servers, which [`LeasedStore`] caches.

#![forbid(unsafe_code)]

mod admin;
mod administer;
mod apply;
pub mod call;
pub mod check;
pub mod join;
pub mod kind;
pub mod lease;
mod members;
pub mod once;
mod rendezvous;
pub mod reply;
mod reply_bytes;
pub mod request;
mod requests;
mod roster;
mod service;
mod store;
pub mod watch;
mod writer;
mod writers;

pub use admin::{Admin, AdminService, METHOD_BYTES_MAX, ReportSender};
pub use lease::{CacheCounts, LEASE_LENGTH, LeaseCounts, LeaseService, LeasedStore, Leases};
pub use members::{DIGEST_BYTES, MEMBER_NAME_BYTES_MAX, MEMBERS_MAX, Members, Membership};
pub use rendezvous::Rendezvous;
pub use requests::{Operation, RequestOutcome, Requests};
pub use service::StoreService;
pub use store::{RemoteOptions, RemoteStore};
pub use watch::{WatchService, WatchStats};
