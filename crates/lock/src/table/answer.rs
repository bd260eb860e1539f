//! Answers of a table.

use super::{Mode, Owner, RequestKey};

/// The progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Acquired {
    /// The last byte that is held (`last_abs_offset`), none if nothing is.
    pub last: Option<u64>,
    /// The first byte of the pattern that is not held (`next_abs_offset`), none if all are.
    pub next: Option<u64>,
}

/// The answer to a blocking acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// Everything below the offset asked for is held.
    Done(Acquired),
    /// The request stands in line for `Acquired::next`, or goes on by `Table::resume`. A [`ResumedRequest`] follows, unless the request
    /// is released.
    Waits(Acquired),
}

/// A request that waited and does so no longer: it now holds everything below the offset that it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumedRequest {
    /// The request.
    pub request: RequestKey,
    /// Its progress.
    pub progress: Acquired,
    /// True if it gave up on the way, as with [`TableError::TooIrregular`].
    pub exhausted: bool,
}

/// A refusal, which changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// An unknown request.
    #[error("there is no lock request with this number")]
    Unknown,
    /// The number is taken.
    #[error("there is a lock request with this number already")]
    Exists,
    /// The request stands in line, and can only be released.
    #[error("the lock request waits already")]
    Waits,
    /// A request of the same operation has another mode.
    #[error("all lock requests of an operation have the same mode")]
    MixedModes,
    /// The pattern has more regions than an unrolled table takes.
    #[error("the pattern has more than {0} regions, too many to unroll")]
    TooManyRegions(u64),
    /// Comparing the pattern with one that is held takes too long.
    #[error("the pattern is too irregular to be compared with one that is held")]
    TooIrregular,
    /// Another operation holds a byte that is asserted to be held.
    #[error("byte {0} is held by another operation")]
    Held(u64),
}

/// A request as the listing shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestView {
    /// The request.
    pub request: RequestKey,
    /// Its operation.
    pub owner: Owner,
    /// Its mode.
    pub mode: Mode,
    /// The first byte of its pattern, and the end, exclusive, of the last.
    pub bounds: (u64, u64),
    /// Its progress.
    pub progress: Acquired,
    /// True if it stands in line for `progress.next`, or goes on there by `Table::resume`.
    pub waits: bool,
}
