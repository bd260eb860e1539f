//! Encrypted and authenticated connections: the stream is cut into records of up to 64 KiB, each sealed by itself.
//!
//! ```text
//!  0        2
//!  +--------+----------------------------------+
//!  | length | sealed bytes, 16 more than inside |
//!  | u16    | length bytes                      |
//!  +--------+----------------------------------+
//! ```
//!
//! Records are numbered on both sides, so one that was changed, dropped, repeated or moved does not open, and the
//! connection ends.

use std::io::{self, IoSlice};

use bytes::{Buf, BytesMut};
use snow::TransportState;

use crate::limit::{READ_BYTES, RECORD_BYTES_MAX, SEAL_BYTES};
use crate::outbox::Outbox;

/// The bytes of records that are sealed before they are written.
const BATCH_BYTES: usize = 256 << 10;

/// The seal of one connection.
pub(crate) struct Seal {
    noise: TransportState,
    /// Sealed bytes that were received and do not form a complete record yet.
    received: BytesMut,
    /// Sealed records that wait to be written; `written` counts the bytes of them that have been.
    sealed: Vec<u8>,
    written: usize,
    /// The plaintext of the record that is being sealed.
    inside: Vec<u8>,
}

impl Seal {
    pub(crate) fn new(noise: TransportState) -> Self {
        Self { noise, received: BytesMut::new(), sealed: Vec::new(), written: 0, inside: Vec::new() }
    }

    /// Returns the buffer into which sealed bytes are received.
    pub(crate) fn receive(&mut self) -> &mut BytesMut {
        if self.received.capacity() - self.received.len() < READ_BYTES / 8 {
            self.received.reserve(READ_BYTES);
        }
        &mut self.received
    }

    /// Opens all complete records that were received, and appends their contents to `buffer`.
    pub(crate) fn open(&mut self, buffer: &mut BytesMut) -> io::Result<()> {
        while let Some(length) = self.received.first_chunk::<2>() {
            let length = u16::from_le_bytes(*length) as usize;
            if length < SEAL_BYTES {
                return Err(io::Error::other("a record is too short to be sealed"));
            }
            if self.received.len() < 2 + length {
                break;
            }
            let at = buffer.len();
            buffer.resize(at + length - SEAL_BYTES, 0);
            let opened = self.noise.read_message(&self.received[2..2 + length], &mut buffer[at..]);
            opened.map_err(|_| io::Error::other("a record does not open: it was not sealed by the peer"))?;
            self.received.advance(2 + length);
        }
        if self.received.is_empty() && self.received.capacity() > 0 {
            self.received = BytesMut::new();
        }
        Ok(())
    }

    /// Returns whether part of a record was received and the rest was not.
    pub(crate) fn is_partial(&self) -> bool {
        !self.received.is_empty()
    }

    /// Moves part of a record into a buffer of its own size.
    pub(crate) fn release(&mut self) {
        if self.received.capacity() > 2 * self.received.len() {
            self.received = BytesMut::from(&self.received[..]);
        }
    }

    /// Returns the sealed bytes to be written next; empty if there are none.
    pub(crate) fn unwritten(&self) -> &[u8] {
        &self.sealed[self.written..]
    }

    /// Removes bytes that were written.
    pub(crate) fn advance(&mut self, count: usize) {
        self.written += count;
        if self.written == self.sealed.len() {
            self.sealed.clear();
            self.written = 0;
            self.sealed.shrink_to(4 << 10);
        }
    }

    /// Seals the next bytes of `outbox`. Returns the number of bytes taken from it.
    pub(crate) fn seal(&mut self, outbox: &mut Outbox) -> io::Result<usize> {
        let mut taken = 0;
        while !outbox.is_empty() && self.sealed.len() < BATCH_BYTES {
            self.inside.clear();
            let mut slices = [IoSlice::new(&[]); 16];
            let filled = outbox.slices(&mut slices);
            for slice in &slices[..filled] {
                let room = RECORD_BYTES_MAX - self.inside.len();
                self.inside.extend_from_slice(&slice[..slice.len().min(room)]);
            }
            let at = self.sealed.len();
            let length = self.inside.len() + SEAL_BYTES;
            self.sealed.resize(at + 2 + length, 0);
            self.sealed[at..at + 2].copy_from_slice(&(length as u16).to_le_bytes());
            self.noise.write_message(&self.inside, &mut self.sealed[at + 2..]).map_err(io::Error::other)?;
            outbox.advance(self.inside.len());
            taken += self.inside.len();
        }
        self.inside.clear();
        self.inside.shrink_to(4 << 10);
        Ok(taken)
    }

    /// Returns the bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.received.capacity() + self.sealed.capacity() + self.inside.capacity()
    }
}
