//! Messages between a client and a lock server, as values. Their encoding is the service's matter.
//!
//! The transport delivers the calls of one session at one server in order and each at most once; after a break it may have
//! lost some, and the client sends again what is unanswered. Every call can be repeated without harm.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Pattern;
use crate::table::{Acquired, Mode, TableError};

/// The number of a session, the same at all lock servers and in the fences of the store. It is never used again, and a younger
/// session has a greater one; the client gets it from whoever counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a file.
pub type FileName = Arc<str>;

/// The number of a lock request, which the client counts up in its session.
pub type RequestNumber = u64;

/// The number of a grant. It grows with every grant of a server, also across the server's restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// The epoch of the server, which grows with each of its starts.
    pub epoch: u64,
    /// The number of the grant in this epoch.
    pub number: u64,
}

/// The contents of a new lock request.
#[derive(Clone, Debug)]
pub struct LockSpec {
    /// The file.
    pub file: FileName,
    /// The operation that the request belongs to, unique in the session.
    pub operation: u64,
    /// The mode.
    pub mode: Mode,
    /// The bytes of the file, of which the server takes those of its stripe.
    pub pattern: Pattern,
}

/// A call to a lock server.
#[derive(Clone, Debug)]
pub enum Call {
    /// Opens a session, or finds it open. Answered by [`Reply::Open`].
    Open,
    /// Renews the session's lease. Answered by [`Reply::Open`].
    Renew,
    /// Releases all that the session has and ends it. Answered by [`Reply::Done`].
    Close,
    /// Asks for more of a request's pattern, in file order. Answered by [`Reply::Acquired`].
    Acquire {
        /// The request.
        request: RequestNumber,
        /// Its contents, where the server may not know them yet. The pattern goes once.
        spec: Option<LockSpec>,
        /// The offset below which everything is to be held before the server answers; none asks for what can be
        /// had at once.
        until: Option<u64>,
    },
    /// Releases what a request holds from an offset on. Answered by [`Reply::Acquired`].
    ReleaseFrom {
        /// The request.
        request: RequestNumber,
        /// The offset.
        offset: u64,
    },
    /// Releases all that a request holds, ends its wait and forgets it. Answered by [`Reply::Done`].
    Release {
        /// The request.
        request: RequestNumber,
    },
    /// Asserts a lock that the session held before the server restarted. Answered by [`Reply::Acquired`].
    Assert {
        /// The request.
        request: RequestNumber,
        /// Its contents.
        spec: LockSpec,
        /// The offset below which it holds everything.
        below: u64,
    },
    /// Ends the assertions of a session. Answered by [`Reply::Done`].
    Asserted,
}

impl Call {
    /// The request that the call is about, if it is about one.
    pub fn request(&self) -> Option<RequestNumber> {
        match self {
            Call::Acquire { request, .. }
            | Call::ReleaseFrom { request, .. }
            | Call::Release { request }
            | Call::Assert { request, .. } => Some(*request),
            Call::Open | Call::Renew | Call::Close | Call::Asserted => None,
        }
    }
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The session is open.
    Open {
        /// The server's epoch.
        epoch: u64,
        /// The lease, by the server's clock, counted from a moment after the call was sent.
        lease: Duration,
    },
    /// The progress of a request.
    Acquired {
        /// The last byte held and the next one wanted.
        progress: Acquired,
        /// The number of the newest grant to this request.
        token: Token,
    },
    /// Success.
    Done,
    /// A refusal; nothing has changed unless it says so.
    Refused(Refusal),
}

/// The limits of a server that [`Refusal::Full`] may name, by their codes on the wire.
pub const FULL: [&str; 7] = [
    "sessions",
    "bytes in a file's name",
    "lock requests",
    "lock requests of one session",
    "memory for patterns",
    "memory for patterns of one session",
    "files with locks",
];

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The server knows no such session: it never was, it lapsed, or the server restarted.
    #[error("the lock server, in its epoch {epoch}, knows no such session")]
    UnknownSession {
        /// The server's epoch: if it is not that of the session, the server has restarted.
        epoch: u64,
    },
    /// The session's lease lapsed or an administrator broke it, and its locks are being taken away.
    #[error("the session's lease has lapsed, and its locks are lost")]
    Lapsed,
    /// The server knows no such request, and was not told what it asks for.
    #[error("the session has no lock request with this number")]
    UnknownRequest,
    /// The table refused the request.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The pattern cannot be restricted to the server's stripe.
    #[error(transparent)]
    Pattern(#[from] crate::PatternError),
    /// A limit of the server is reached.
    #[error("the lock server is full: no more {0}")]
    Full(&'static str),
    /// Locks are asserted too late, after the grace period.
    #[error("the grace period in which locks can be asserted is over")]
    GraceOver,
    /// The request was released while it waited.
    #[error("the lock request was released while it waited")]
    Released,
}
