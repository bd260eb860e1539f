//! The bytes that were read from a socket and not yet decoded.
//!
//! Reads go into large buffers that the connections of a thread share: a connection holds one only from a read until it
//! has taken out all complete frames. What is left then, the first part of a frame, is moved to a buffer of its own
//! size. So a thousand idle connections hold no buffers at all, and bodies are not copied here: they are slices of the
//! buffer that they were read into.

use std::cell::RefCell;
use std::io;

use bytes::{Buf, BytesMut};

use crate::WireError;
use crate::frame::{self, Frame, MessageKind};
use crate::limit::{HEADER_BYTES, READ_BYTES};
use crate::stream::Stream;

/// The number of buffers that a thread keeps for its next reads.
const SPARE_BUFFERS_MAX: usize = 4;
/// The largest first part of a frame, in bytes, that is moved out of a shared buffer.
const MOVE_BYTES_MAX: usize = READ_BYTES / 4;
/// The most by which the buffer of a frame longer than one read grows beyond the bytes that have arrived, in bytes.
const AHEAD_BYTES_MAX: usize = 1 << 20;

/// The longest frame, in bytes, that counts as a short message of the connection itself.
const OWN_BYTES_MAX: usize = 4 * HEADER_BYTES;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// The origin of an inbox's buffer.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Origin {
    /// No buffer, or one of exactly the size of its contents.
    #[default]
    Own,
    /// A buffer lent by the thread.
    Shared,
    /// A buffer made for a frame that is longer than one read.
    Large,
}

/// Received bytes.
#[derive(Default)]
pub(crate) struct Inbox {
    buffer: BytesMut,
    origin: Origin,
    /// The number of bytes to be discarded, in the buffer or yet to come.
    skipping: usize,
}

impl Inbox {
    /// Reads once, at most `bytes_max` bytes. Returns how many arrived; 0 means the end of the stream.
    pub(crate) fn read(&mut self, stream: &Stream, bytes_max: usize) -> io::Result<usize> {
        self.make_space();
        stream.try_read_buf(&mut self.buffer, bytes_max)
    }

    /// Appends bytes by other means than a read from the socket.
    pub(crate) fn fill(&mut self, append: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> io::Result<()> {
        self.make_space();
        append(&mut self.buffer)
    }

    /// Returns whether part of a frame was received and the rest was not.
    pub(crate) fn is_partial(&self) -> bool {
        !self.buffer.is_empty() || self.skipping > 0
    }

    /// Returns the id and the length of the partly received frame, if its header is complete.
    pub(crate) fn announced(&self) -> Option<(u64, usize)> {
        let header = self.buffer.first_chunk::<HEADER_BYTES>()?;
        let frame_bytes = frame::frame_bytes(header).ok().flatten()?;
        let id = header.last_chunk().map_or(0, |id| u64::from_le_bytes(*id));
        Some((id, frame_bytes))
    }

    /// Returns whether the next frame is a short message of the connection itself that asks for no work, or may turn out
    /// to be one when more of it has arrived.
    pub(crate) fn is_own_next(&self) -> bool {
        match self.buffer.first_chunk::<HEADER_BYTES>() {
            Some(header) => {
                let own = [MessageKind::PING, MessageKind::CANCEL, MessageKind::WINDOW]
                    .contains(&MessageKind::new(header[4], header[5]));
                own && frame::frame_bytes(header)
                    .is_ok_and(|bytes| bytes.is_some_and(|bytes| bytes <= OWN_BYTES_MAX))
            }
            None => true,
        }
    }

    /// Returns the bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Discards the next `count` bytes, including those that have not arrived yet.
    pub(crate) fn skip(&mut self, count: usize) {
        self.skipping += count;
    }

    /// Takes the next complete frame.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, WireError> {
        if self.skipping > 0 {
            let skipped = self.skipping.min(self.buffer.len());
            self.buffer.advance(skipped);
            self.skipping -= skipped;
        }
        frame::take(&mut self.buffer)
    }

    /// Returns the buffer to the thread, unless it holds a long part of a frame.
    pub(crate) fn settle(&mut self) {
        if self.origin == Origin::Own || self.buffer.len() > MOVE_BYTES_MAX {
            return;
        }
        let mut spare = std::mem::take(&mut self.buffer);
        if !spare.is_empty() {
            self.buffer = BytesMut::from(&spare[..]);
            spare.clear();
        }
        if std::mem::take(&mut self.origin) == Origin::Shared {
            SPARE.with_borrow_mut(|buffers| {
                if buffers.len() < SPARE_BUFFERS_MAX {
                    buffers.push(spare);
                }
            });
        }
    }

    fn make_space(&mut self) {
        let free = self.buffer.capacity() - self.buffer.len();
        // A header that announces too much is reported when the frame is taken.
        let wanted = frame::frame_bytes(&self.buffer).ok().flatten().unwrap_or(0);
        if wanted > READ_BYTES {
            let missing = wanted - self.buffer.len();
            if free < missing.min(READ_BYTES / 8) {
                self.buffer.reserve(missing.min(self.buffer.len().max(AHEAD_BYTES_MAX)));
                self.origin = Origin::Large;
            }
            return;
        }
        if free >= READ_BYTES / 8 {
            return;
        }
        let mut fresh =
            SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(|| BytesMut::with_capacity(READ_BYTES));
        if fresh.capacity() < READ_BYTES / 2 {
            // Reuses the whole buffer if no slices of it are left.
            fresh.reserve(READ_BYTES);
        }
        fresh.extend_from_slice(&self.buffer);
        self.buffer = fresh;
        self.origin = Origin::Shared;
    }
}
