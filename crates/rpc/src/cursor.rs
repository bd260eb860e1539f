//! Reading a message's body without trusting anything in it.
//!
//! Every length is compared with the bytes left of the body before it is used, and every count with the smallest size
//! of its entries, so that a decoder never allocates more than a small multiple of the bytes that it was given.

use bytes::Bytes;

use crate::error::WireError;

/// A position in a body.
#[derive(Debug)]
pub struct Cursor<'a> {
    body: &'a Bytes,
    at: usize,
}

macro_rules! number {
    ($name:ident, $type:ty, $doc:literal) => {
        #[doc = $doc]
        ///
        /// # Errors
        ///
        /// [`WireError::Truncated`] if fewer bytes are left.
        #[inline]
        pub fn $name(&mut self) -> Result<$type, WireError> {
            let Some(bytes) = self.body[self.at..].first_chunk() else { return Err(WireError::Truncated) };
            self.at += size_of::<$type>();
            Ok(<$type>::from_le_bytes(*bytes))
        }
    };
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the beginning of a body.
    pub fn new(body: &'a Bytes) -> Self {
        Self { body, at: 0 }
    }

    number!(u8, u8, "The next byte.");
    number!(u16, u16, "The next two bytes as a number.");
    number!(u32, u32, "The next four bytes as a number.");
    number!(u64, u64, "The next eight bytes as a number.");

    /// Returns the next `len` bytes, shared with the body.
    ///
    /// # Errors
    ///
    /// [`WireError::Truncated`] if fewer bytes are left.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<Bytes, WireError> {
        if len > self.left() {
            return Err(WireError::Truncated);
        }
        // An empty slice would keep the receive buffer alive for no reason.
        let bytes = if len == 0 { Bytes::new() } else { self.body.slice(self.at..self.at + len) };
        self.at += len;
        Ok(bytes)
    }

    /// Returns the number of bytes left.
    pub fn left(&self) -> usize {
        self.body.len() - self.at
    }

    /// Checks a count of entries that take at least `entry_bytes` each.
    ///
    /// # Errors
    ///
    /// [`WireError::Malformed`] if the count is above `limit`, [`WireError::Truncated`] if too few bytes are left for
    /// that many entries.
    pub fn count(&self, count: usize, limit: usize, entry_bytes: usize) -> Result<usize, WireError> {
        if count > limit {
            return Err(WireError::Malformed("a count is above its limit"));
        }
        if count * entry_bytes > self.left() {
            return Err(WireError::Truncated);
        }
        Ok(count)
    }

    /// Checks that everything was read.
    ///
    /// # Errors
    ///
    /// [`WireError::Malformed`] if bytes are left.
    pub fn end(&self) -> Result<(), WireError> {
        if self.left() == 0 { Ok(()) } else { Err(WireError::Malformed("bytes after the end of a message")) }
    }
}
