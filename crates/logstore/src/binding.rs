//! The binding of checksums to their store and their place.
//!
//! A CRC detects damage, but does not tell one writer from another: in format 1 a payload could hold bytes that read
//! as a sound record. From format 2 on, every checksum and every magic number inside segments and snapshots is mixed
//! with the store's random identity, which only a reader of the store's files can learn, and with the position of the
//! bytes. So neither a user's bytes nor a copy of the store's own files inside one of its objects is ever taken for
//! a record: that would take a match of 64 bits that the writer does not know.

use crate::codec::crc32c;

const HEAD_MAGIC_1: u32 = u32::from_le_bytes(*b"NREC");
const TAIL_MAGIC_1: u32 = u32::from_le_bytes(*b"NEND");

/// The values that the heads and tails of one segment's records are checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    format: u32,
    head_magic: u32,
    tail_magic: u32,
    seed: u32,
    offset_factor: u32,
}

impl Binding {
    /// Creates the binding of a segment's records, by the format in the segment's header.
    pub fn new(format: u32, store: &[u8; 16], segment: u32) -> Self {
        // Any one-to-one mixing of the segment's number will do; this one spreads small numbers over all bits.
        let segment = segment.wrapping_mul(0x9e37_79b1);
        if format < 2 {
            return Self {
                format,
                head_magic: HEAD_MAGIC_1,
                tail_magic: TAIL_MAGIC_1,
                seed: segment,
                offset_factor: 0,
            };
        }
        let head_magic = word(store, 0);
        Self {
            format,
            head_magic,
            tail_magic: !head_magic,
            seed: crc32c(store) ^ segment,
            offset_factor: 0x85eb_ca6b,
        }
    }

    /// Returns the version of the format.
    pub fn format(&self) -> u32 {
        self.format
    }

    /// Returns the first word of a head.
    pub fn head_magic(&self) -> u32 {
        self.head_magic
    }

    /// Returns the first word of a tail.
    pub fn tail_magic(&self) -> u32 {
        self.tail_magic
    }

    /// Returns the mask of the CRC (exclusive-or) of a record that begins at an offset of the segment, in bytes.
    pub fn mask(&self, offset: u64) -> u32 {
        // Records begin at multiples of 8, and no segment is longer than what 32 bits hold of those.
        self.seed ^ ((offset / 8) as u32).wrapping_mul(self.offset_factor)
    }
}

/// The values that the frames of a snapshot of format 2 are checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameBinding {
    magic: u32,
    seed: u32,
}

impl FrameBinding {
    /// Creates the binding of a store's snapshots.
    pub fn new(store: &[u8; 16]) -> Self {
        Self { magic: word(store, 4), seed: crc32c(store) }
    }

    /// Returns the first word of a frame.
    pub fn magic(&self) -> u32 {
        self.magic
    }

    /// Returns the mask of the CRC (exclusive-or) of a frame that begins at an offset of the file, in bytes.
    pub fn mask(&self, offset: u64) -> u32 {
        // Both halves count: a snapshot may be longer than 4 GiB.
        self.seed ^ (offset as u32).wrapping_mul(0x85eb_ca6b) ^ (offset >> 32) as u32
    }
}

/// Returns the public part of a store's identity: it tells the store from others, and leaves 64 bits unknown of the
/// values that records and frames are checked against, their magic numbers and the CRC of the identity.
pub fn public_identity(store: &[u8; 16]) -> [u8; 16] {
    let mut public = *store;
    public.copy_within(8.., 0);
    public
}

fn word(store: &[u8; 16], at: usize) -> u32 {
    u32::from_le_bytes([store[at], store[at + 1], store[at + 2], store[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_identity_does_not_tell_what_checksums_are_mixed_with() {
        let (first, mut second) = ([7; 16], [7; 16]);
        second[..8].copy_from_slice(b"differ!!");
        assert_eq!(public_identity(&first), public_identity(&second));
        let bindings = [&first, &second].map(|store| (Binding::new(2, store, 1), FrameBinding::new(store)));
        assert_ne!(bindings[0].0.head_magic(), bindings[1].0.head_magic());
        assert_ne!(bindings[0].0.mask(0), bindings[1].0.mask(0));
        assert_ne!(bindings[0].1.magic(), bindings[1].1.magic());
        assert_ne!(bindings[0].1.mask(0), bindings[1].1.mask(0));
        second[8] += 1;
        assert_ne!(public_identity(&first), public_identity(&second));
    }
}
