//! Failures of calls on the namespace.

use std::borrow::Cow;

use nacre_object::{ErrorKind, StoreError};

/// The result of a call on the namespace.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of a call on the namespace. [`Error::errno`] is the number that POSIX has for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A missing entry, or one whose inode was removed meanwhile.
    #[error("no such file or directory")]
    NotFound,
    /// An entry of that name that exists already.
    #[error("it exists already")]
    Exists,
    /// Something that must be a directory is none.
    #[error("not a directory")]
    NotDirectory,
    /// Something that must not be a directory is one.
    #[error("it is a directory")]
    IsDirectory,
    /// A directory that must be empty has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The permissions do not let this user do it.
    #[error("permission denied")]
    Denied,
    /// An operation that only the owner, or root, may do.
    #[error("operation not permitted")]
    NotPermitted,
    /// More symbolic links were followed than are allowed, or they form a circle.
    #[error("too many symbolic links")]
    Loop,
    /// A name is longer than 255 bytes.
    #[error("the name is too long")]
    NameTooLong,
    /// A file has as many hard links as it may have.
    #[error("too many links")]
    TooManyLinks,
    /// A missing extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The quota of a directory would be exceeded.
    #[error("the quota of a directory above it is used up")]
    QuotaExceeded,
    /// Something is to be moved or linked to a directory of another quota.
    #[error("the directory belongs to another quota: copy it there")]
    OtherQuota,
    /// The file would be longer than files may be.
    #[error("the file would be too large")]
    TooLarge,
    /// The content that was being read or written was replaced meanwhile.
    #[error("the content was replaced meanwhile")]
    Stale,
    /// The call makes no sense, for this reason.
    #[error("{0}")]
    Invalid(Cow<'static, str>),
    /// An operation that this kind of inode does not have.
    #[error("{0}")]
    Unsupported(Cow<'static, str>),
    /// Another rank has taken over what this one wanted to change, and this rank's changes are refused from now on.
    #[error("another rank has taken over")]
    Fenced,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// Returns the number that POSIX has for the failure on Linux.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound => 2,
            Error::Exists => 17,
            Error::NotDirectory => 20,
            Error::IsDirectory => 21,
            Error::NotEmpty => 39,
            Error::Denied => 13,
            Error::NotPermitted => 1,
            Error::Loop => 40,
            Error::NameTooLong => 36,
            Error::TooManyLinks => 31,
            Error::NoAttribute => 61,
            Error::QuotaExceeded => 122,
            Error::OtherQuota => 18,
            Error::TooLarge => 27,
            Error::Stale => 116,
            Error::Invalid(_) => 22,
            Error::Unsupported(_) => 95,
            Error::Fenced => 108,
            Error::Store(error) => match error.kind {
                ErrorKind::OutOfSpace => 28,
                ErrorKind::ReadOnly => 30,
                ErrorKind::Busy => 11,
                _ => 5,
            },
        }
    }

    /// Returns whether the call may have taken effect, or may still do so.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Error::Store(error) if error.kind.is_uncertain())
    }
}
