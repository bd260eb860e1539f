//! Failures of a store, as opposed to a guard that did not hold (which is an [`Outcome`](crate::Outcome), not an
//! error).

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::ObjectId;

/// The kinds of failure. The numbers are the codes that travel over the wire; they never change meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    /// An operation that this store does not have.
    Unsupported = 9,
    /// The store was closed, or is shutting down. Nothing was changed.
    Closed = 10,
    /// The store is used by another process, or too busy to accept the request. Nothing was changed.
    Busy = 11,
    /// A server that is newer than this library reported a kind of failure that the library does not know. The text is
    /// the server's. Whether something was changed is not known.
    Unrecognized = 99,
}

impl ErrorKind {
    /// Every kind, in the order of the codes.
    pub const ALL: [ErrorKind; 12] = [
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
        Self::Unrecognized,
    ];

    /// Returns the code that stands for this kind on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the kind that a code stands for: [`ErrorKind::Unrecognized`] for one that is not known here.
    pub fn from_code(code: u8) -> Self {
        Self::ALL.into_iter().find(|kind| kind.code() == code).unwrap_or(Self::Unrecognized)
    }

    /// Returns whether a change that failed so may have taken effect, or may yet.
    pub fn is_uncertain(self) -> bool {
        matches!(self, Self::Unknown | Self::Unrecognized)
    }

    /// Returns whether the same request may succeed later, and repeating it can do no harm.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Busy | Self::OutOfSpace)
    }
}

/// A failure, with one sentence on what was attempted, on what, and why it failed.
///
/// Beside the sentence, which is for people, it says as data what a program may want to know: the kind, and where they are
/// known the operation, the object, the store, the place of damaged bytes and the failure below it
/// ([`Error::source`]). Two failures are equal if their kinds and sentences are.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoreError {
    /// The kind of failure.
    pub kind: ErrorKind,
    /// The sentence.
    pub message: String,
    /// Most failures on hot paths have none of it.
    details: Option<Arc<Details>>,
}

#[derive(Clone, Default)]
struct Details {
    operation: Option<String>,
    object: Option<ObjectId>,
    store: Option<String>,
    file: Option<String>,
    offset: Option<u64>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// Creates a failure of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: None }
    }

    /// Returns the failure with what was attempted put before its sentence.
    pub fn context(mut self, attempted: impl fmt::Display) -> Self {
        self.message = format!("{attempted}: {}", self.message);
        self
    }

    /// Returns the failure as one of another kind.
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// Returns the failure with the operation that failed ("read", "update"), unless it names one already.
    pub fn with_operation(mut self, operation: impl Into<String>) -> Self {
        self.details_mut().operation.get_or_insert_with(|| operation.into());
        self
    }

    /// Returns the failure with the object that it concerns, unless it names one already.
    pub fn with_object(mut self, object: &ObjectId) -> Self {
        self.details_mut().object.get_or_insert_with(|| object.clone());
        self
    }

    /// Returns the failure with the store that it concerns, unless it names one already.
    pub fn with_store(mut self, store: impl Into<String>) -> Self {
        self.details_mut().store.get_or_insert_with(|| store.into());
        self
    }

    /// Returns the failure with the file of the store that it concerns and the offset of the bytes there, unless it
    /// names a file already.
    pub fn with_place(mut self, file: impl Into<String>, offset: u64) -> Self {
        let details = self.details_mut();
        if details.file.is_none() {
            (details.file, details.offset) = (Some(file.into()), Some(offset));
        }
        self
    }

    /// Returns the failure with the one below it that caused it.
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.details_mut().source = Some(Arc::new(source));
        self
    }

    /// Returns the operation that failed, if it is known.
    pub fn operation(&self) -> Option<&str> {
        self.details.as_ref()?.operation.as_deref()
    }

    /// Returns the object that the failure concerns, if it concerns one.
    pub fn object(&self) -> Option<&ObjectId> {
        self.details.as_ref()?.object.as_ref()
    }

    /// Returns the uri of the store that the failure concerns, if it is known.
    pub fn store(&self) -> Option<&str> {
        self.details.as_ref()?.store.as_deref()
    }

    /// Returns the file of the store that is damaged or cannot be read, if the failure is of that kind. It is a file of
    /// the machine that the store is on.
    pub fn file(&self) -> Option<&str> {
        self.details.as_ref()?.file.as_deref()
    }

    /// Returns the offset in [`StoreError::file`] of the bytes that are damaged or cannot be read, in bytes.
    pub fn offset(&self) -> Option<u64> {
        self.details.as_ref()?.offset
    }

    /// Returns whether the same request may succeed later, and repeating it can do no harm.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    fn details_mut(&mut self) -> &mut Details {
        Arc::make_mut(self.details.get_or_insert_default())
    }
}

impl PartialEq for StoreError {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.message) == (other.kind, &other.message)
    }
}

impl Eq for StoreError {}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source = self.details.as_ref()?.source.as_ref()?;
        Some(&**source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_their_own_inverse() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), kind);
        }
        for code in [0, 12, 200] {
            assert_eq!(ErrorKind::from_code(code), ErrorKind::Unrecognized);
        }
    }

    #[test]
    fn details_that_are_known_best_stay() {
        let inner = StoreError::new(ErrorKind::Corrupt, "damaged").with_place("segment-1", 4096);
        let object = ObjectId::try_from("a").unwrap();
        let outer =
            inner.with_place("other", 0).with_operation("read").with_object(&object).with_store("mem:");
        let outer = outer.with_operation("get").context("cannot read");
        assert_eq!((outer.file(), outer.offset()), (Some("segment-1"), Some(4096)));
        assert_eq!((outer.operation(), outer.store()), (Some("read"), Some("mem:")));
        assert_eq!(outer.object(), Some(&object));
        assert_eq!(outer.to_string(), "cannot read: damaged");
        assert!(outer.source().is_none());
        let caused = outer.with_source(std::io::Error::other("the device is gone"));
        assert_eq!(caused.source().unwrap().to_string(), "the device is gone");
    }
}
