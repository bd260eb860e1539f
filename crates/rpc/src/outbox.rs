//! The bytes to be written to a socket.
//!
//! Small pieces are collected in one buffer; large payloads stay in their own memory and are recorded with their
//! position in that buffer. Messages are encoded straight into it, so that a batch of any size is one vectored write,
//! and costs no allocation once the buffer has grown.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use bytes::Bytes;

use crate::frame::{MessageKind, flag, header_with};
use crate::limit::{BODY_BYTES_MAX, BY_REFERENCE_BYTES_MIN, HEADER_BYTES};

/// The bytes that wait to be written, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    small: Vec<u8>,
    /// Payloads by reference, each with its position in `small`.
    large: VecDeque<(usize, Bytes)>,
    /// The total bytes of `large`.
    large_bytes: usize,
    /// The bytes of `small` that were written already.
    written: usize,
    /// True if the peer understands errors that say where in the store they happened.
    pub(crate) places: bool,
}

/// The frame that is being written.
#[derive(Debug)]
#[must_use]
pub struct Open {
    start: usize,
    large: usize,
    large_bytes: usize,
}

impl Outbox {
    /// Returns the number of bytes that wait.
    pub fn len(&self) -> usize {
        self.small.len() - self.written + self.large_bytes
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory held, including payloads by reference.
    pub fn held_bytes(&self) -> usize {
        self.small.capacity() + self.large_bytes
    }

    /// Begins a frame without flags.
    #[inline]
    pub fn begin(&mut self, kind: MessageKind, id: u64) -> Open {
        self.begin_with(kind, 0, id)
    }

    /// Begins a request with an optional deadline, after which its reply is not needed any more. Deadlines above 49
    /// days are shortened to that.
    pub fn begin_by(&mut self, kind: MessageKind, id: u64, deadline: Option<Duration>) -> Open {
        let Some(deadline) = deadline else { return self.begin(kind, id) };
        let open = self.begin_with(kind, flag::DEADLINE, id);
        self.u32(deadline.as_millis().min(u32::MAX.into()) as u32);
        open
    }

    /// Begins a frame.
    pub fn begin_with(&mut self, kind: MessageKind, flags: u16, id: u64) -> Open {
        let open = Open { start: self.small.len(), large: self.large.len(), large_bytes: self.large_bytes };
        self.small.extend_from_slice(&header_with(kind, flags, id, 0));
        open
    }

    /// Ends a frame, and writes its length into its header. Returns the length of its body.
    ///
    /// # Errors
    ///
    /// The length of the body if it is too long; the whole frame is removed in that case.
    pub fn end(&mut self, open: Open) -> Result<usize, usize> {
        let body = self.small.len() - open.start - HEADER_BYTES + self.large_bytes - open.large_bytes;
        if body > BODY_BYTES_MAX {
            self.small.truncate(open.start);
            self.large.truncate(open.large);
            self.large_bytes = open.large_bytes;
            return Err(body);
        }
        // The check above ensures that the length fits.
        self.small[open.start..open.start + 4].copy_from_slice(&(body as u32).to_le_bytes());
        Ok(body)
    }

    /// Writes a byte.
    #[inline]
    pub fn u8(&mut self, value: u8) {
        self.small.push(value);
    }

    /// Writes a two-byte number.
    #[inline]
    pub fn u16(&mut self, value: u16) {
        self.small.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a four-byte number.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.small.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes an eight-byte number.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.small.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes bytes that are always few, such as a name.
    pub fn slice(&mut self, bytes: &[u8]) {
        self.small.extend_from_slice(bytes);
    }

    /// Writes a payload.
    pub fn payload(&mut self, bytes: &Bytes) {
        if bytes.len() < BY_REFERENCE_BYTES_MIN {
            self.small.extend_from_slice(bytes);
        } else {
            self.large_bytes += bytes.len();
            self.large.push_back((self.small.len(), bytes.clone()));
        }
    }

    /// Fills `slices` with the bytes to be written next, and returns the number of slices filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        let mut at = self.written;
        for (position, bytes) in &self.large {
            if *position > at {
                if filled == slices.len() {
                    return filled;
                }
                slices[filled] = IoSlice::new(&self.small[at..*position]);
                filled += 1;
                at = *position;
            }
            if filled == slices.len() {
                return filled;
            }
            slices[filled] = IoSlice::new(bytes);
            filled += 1;
        }
        if at < self.small.len() && filled < slices.len() {
            slices[filled] = IoSlice::new(&self.small[at..]);
            filled += 1;
        }
        filled
    }

    /// Removes `count` bytes, which were written.
    pub fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some((position, bytes)) = self.large.front_mut() else { break };
            let before = *position - self.written;
            if count < before {
                break;
            }
            self.written += before;
            count -= before;
            let part = count.min(bytes.len());
            bytes::Buf::advance(bytes, part);
            count -= part;
            self.large_bytes -= part;
            if bytes.is_empty() {
                self.large.pop_front();
            } else {
                return;
            }
        }
        self.written += count;
        debug_assert!(self.written <= self.small.len());
        if self.written == self.small.len() && self.large.is_empty() {
            self.small.clear();
            self.written = 0;
        } else if self.written > (1 << 20) && self.written > self.small.len() / 2 {
            // The buffer must not grow without limit for a peer that always leaves something unread.
            self.small.drain(..self.written);
            for (position, _) in &mut self.large {
                *position -= self.written;
            }
            self.written = 0;
        }
    }

    /// Releases the memory if nothing waits and the buffer is larger than `keep_bytes`.
    pub fn release(&mut self, keep_bytes: usize) {
        if self.is_empty() && self.small.capacity() > keep_bytes {
            self.small = Vec::new();
            self.large = VecDeque::new();
        }
    }

    /// Appends a copy of the waiting bytes to `target`.
    pub fn copy_to(&self, target: &mut bytes::BytesMut) {
        let mut at = self.written;
        for (position, bytes) in &self.large {
            target.extend_from_slice(&self.small[at..*position]);
            target.extend_from_slice(bytes);
            at = *position;
        }
        target.extend_from_slice(&self.small[at..]);
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn what_comes_out_is_what_went_in() {
        for seed in 0..300 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut outbox = Outbox::default();
            let (mut wanted, mut written) = (Vec::new(), Vec::new());
            for _ in 0..200 {
                if random.random_bool(0.5) {
                    let len = match random.random_range(0..4) {
                        0 => BY_REFERENCE_BYTES_MIN + random.random_range(0..3000),
                        _ => random.random_range(0..600),
                    };
                    let bytes = Bytes::from((0..len).map(|_| random.random()).collect::<Vec<u8>>());
                    wanted.extend_from_slice(&bytes);
                    outbox.payload(&bytes);
                } else {
                    let mut slices = [IoSlice::new(&[]); 3];
                    let filled = outbox.slices(&mut slices);
                    let all: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
                    let mut left = random.random_range(0..=all);
                    let count = left;
                    for slice in &slices[..filled] {
                        let part = left.min(slice.len());
                        written.extend_from_slice(&slice[..part]);
                        left -= part;
                    }
                    outbox.advance(count);
                }
                assert_eq!(outbox.len(), wanted.len() - written.len(), "seed {seed}");
            }
            let mut rest = bytes::BytesMut::new();
            outbox.copy_to(&mut rest);
            outbox.advance(rest.len());
            written.extend_from_slice(&rest);
            assert!(written == wanted, "seed {seed}");
            assert_eq!(outbox.small.len(), 0);
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_taken_back() {
        let mut outbox = Outbox::default();
        outbox.u32(1);
        let open = outbox.begin(MessageKind::new(1, 1), 1);
        let large = Bytes::from(vec![0; BODY_BYTES_MAX]);
        outbox.payload(&large);
        outbox.u8(0);
        assert_eq!(outbox.end(open), Err(BODY_BYTES_MAX + 1));
        assert_eq!(outbox.len(), 4);
    }
}
