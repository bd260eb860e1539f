//! Failures of a store, as opposed to a guard that did not hold (which is an [`Outcome`](crate::Outcome), not an
//! error).

use std::fmt;

/// The kinds of failure. The numbers are the codes that travel over the wire; they never change meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorKind {
    /// The request itself is wrong: a limit exceeded, an offset past the end of the offset space.
    Invalid = 1,
    /// The medium or the quota is full. Nothing was changed.
    OutOfSpace = 2,
    /// The store takes no more writes, usually because a sync failed. Nothing was changed.
    ReadOnly = 3,
    /// Stored bytes failed their checksum. The text names the file and the offset.
    Corrupt = 4,
    /// The operating system reported an error on a read, or on a write of which nothing took effect.
    Io = 5,
    /// The server that is this object's master cannot be reached. Nothing was changed.
    Unavailable = 6,
    /// The request was sent, or was being made durable, when the connection or the store failed: it may or may
    /// not have taken effect, and while it is on its way it still may. A later read can show that it did. It never will
    /// once its guards no longer hold, its session is fenced, or the same client has written over a later connection to
    /// the server, which ends the earlier ones.
    Unknown = 7,
    /// The peer did not prove that it is allowed to do this.
    Denied = 8,
    /// This store cannot do what was asked.
    Unsupported = 9,
    /// The store was closed, or is shutting down. Nothing was changed.
    Closed = 10,
    /// The store is used by another process, or too busy to accept the request. Nothing was changed.
    Busy = 11,
}

impl ErrorKind {
    /// Every kind, in the order of the codes.
    pub const ALL: [ErrorKind; 11] = [
        Self::Invalid,
        Self::OutOfSpace,
        Self::ReadOnly,
        Self::Corrupt,
        Self::Io,
        Self::Unavailable,
        Self::Unknown,
        Self::Denied,
        Self::Unsupported,
        Self::Closed,
        Self::Busy,
    ];

    /// Returns the code that stands for this kind on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the kind that a code stands for.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns whether the same request may succeed later, and repeating it can do no harm.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Busy | Self::OutOfSpace)
    }
}

/// A failure, with one sentence on what was attempted, on what, and why it failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    /// The kind of failure.
    pub kind: ErrorKind,
    /// The sentence.
    pub message: String,
}

impl StoreError {
    /// Creates a failure of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Returns the failure with what was attempted put before its sentence.
    pub fn context(mut self, attempted: impl fmt::Display) -> Self {
        self.message = format!("{attempted}: {}", self.message);
        self
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_their_own_inverse() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(ErrorKind::from_code(0), None);
        assert_eq!(ErrorKind::from_code(12), None);
    }
}
