//! The client's side: how the locks of a pattern are acquired from many servers, and sessions that survive failures.
//!
//! - [`Acquisition`] is one lock operation with one of the paper's protocols (sections 4 and 5.1).
//! - [`Client`] has many of them under way, a session at each server, and survives broken connections and servers that restart.
//! - [`Lease`] is the client's view of a lease.
//!
//! State machines without clock or I/O, as the server is.

mod acquisition;
mod lease;
mod part;
mod rounds;
mod session;

pub use acquisition::{Acquisition, Order, Outcome, Rounds, Wanted};
pub use lease::{DRIFT_PER_MILLE, Lease};
pub use part::{LIST_REGIONS_MAX, Part, REQUESTS_MAX};
pub use rounds::ROUNDS_MAX;
pub use session::{Action, Client, Ended, OperationId};

/// The way in which an operation describes its bytes to the servers (section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// A request for each region, cut at the borders of the servers' stripes (section 3.1).
    Posix,
    /// A request for every [`LIST_REGIONS_MAX`] regions of a server (section 3.2).
    List,
    /// One request for each server (section 3.3).
    #[default]
    Datatype,
}

impl Method {
    /// All methods, by the names that commands know.
    pub const NAMES: [(&'static str, Method); 3] =
        [("posix", Method::Posix), ("list", Method::List), ("datatype", Method::Datatype)];
}

/// The protocol by which locks are acquired (section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// In file order, one server at a time.
    TwoPhase,
    /// From all servers at once, then in file order what is missing (section 4.1).
    OneTry,
    /// From all servers at once and in file order, by turns (section 4.2).
    #[default]
    AltTry,
}

impl Protocol {
    /// All protocols, by the names that commands know.
    pub const NAMES: [(&'static str, Protocol); 3] =
        [("two-phase", Protocol::TwoPhase), ("one-try", Protocol::OneTry), ("alt-try", Protocol::AltTry)];
}
