//! Byte ranges, and extents: maximal byte ranges of a fork written at one version.

use crate::limit::OFFSET_MAX;
use crate::{ErrorKind, StoreError};

/// A range of bytes of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl ByteRange {
    /// The range of everything that a fork can hold.
    pub const ALL: ByteRange = ByteRange { offset: 0, len: OFFSET_MAX };

    /// Creates the range of the `len` bytes from `offset` on.
    pub const fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    /// Returns the offset one past the last byte, for a range that passed [`ByteRange::validate`].
    pub const fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Checks that the range ends within the offset space; [`ErrorKind::Invalid`] if it does not.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the range goes past the greatest offset.
    pub fn validate(&self) -> Result<(), StoreError> {
        match self.offset.checked_add(self.len) {
            Some(end) if end <= OFFSET_MAX => Ok(()),
            _ => Err(StoreError::new(
                ErrorKind::Invalid,
                format!("range {}+{} ends past the greatest offset, {OFFSET_MAX}", self.offset, self.len),
            )),
        }
    }
}

impl From<std::ops::Range<u64>> for ByteRange {
    fn from(range: std::ops::Range<u64>) -> Self {
        Self::new(range.start, range.end.saturating_sub(range.start))
    }
}

/// The kind of an extent: bytes, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentKind {
    /// Written bytes.
    Data,
    /// Bytes that were zeroed, truncated away or removed: they read as zeros, and carry the version of that.
    Hole,
}

/// A byte range of a fork written at one version. Ranges that were never written belong to no extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The range in the fork. Extents in an answer are clipped to the range that was asked for.
    pub range: ByteRange,
    /// The version of the transaction that wrote it.
    pub version: u64,
    /// The extent's kind.
    pub kind: ExtentKind,
}

/// Appends `extent` to a list in ascending order, and merges it with the last one where the two are really
/// one.
pub fn coalesce(extents: &mut Vec<Extent>, extent: Extent) {
    if extent.range.len == 0 {
        return;
    }
    if let Some(last) = extents.last_mut()
        && last.range.end() == extent.range.offset
        && last.version == extent.version
        && last.kind == extent.kind
    {
        last.range.len += extent.range.len;
        return;
    }
    extents.push(extent);
}
