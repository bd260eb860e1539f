//! Entries, and their bytes in the objects of a log: no I/O.
//!
//! All numbers are little-endian. The *index* of an object has 16 bytes for each place:
//!
//! | bytes | |
//! |---|---|
//! | 0 | state: 0 nothing, 1 an entry, 2 filled, 3 trimmed |
//! | 1 | 0 |
//! | 2–3 | the distance in places to the first entry of the same packet |
//! | 4–7 | where the record begins in the packet |
//! | 8–11 | the length of the record |
//! | 12–15 | the signature of the entry's tags |
//!
//! A *packet* is what one writer has written in one piece: 8 bytes that were chosen at random and are the same for all packets of a
//! transaction, and a *record* for each entry. A packet lies at the place of its first entry. A record is the number of tags (one
//! byte), for each tag its length (one byte) and its bytes, and the entry's bytes to the end.

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::LogError;
use crate::limit::{ENTRY_BYTES_MAX, PACKET_BYTES_MAX, SLOT_BYTES, SMALL_BYTES_MAX, TAG_BYTES_MAX, TAGS_MAX};

/// The length of a place's index entry, in bytes.
pub(crate) const INDEX_BYTES: u64 = 16;
/// The bytes of a packet before its first record.
pub(crate) const PACKET_HEAD_BYTES: usize = 8;

/// An entry of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The tags: the names of the streams that the entry is part of.
    pub tags: Vec<Bytes>,
    /// The content.
    pub data: Bytes,
}

impl Entry {
    /// Creates an entry without tags.
    pub fn new(data: impl Into<Bytes>) -> Self {
        Self { tags: Vec::new(), data: data.into() }
    }

    /// Adds a tag.
    pub fn tag(mut self, tag: impl Into<Bytes>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Checks the limits of entries.
    ///
    /// # Errors
    /// `Invalid` with the reason.
    pub fn check(&self) -> Result<(), LogError> {
        let text = if !(1..=ENTRY_BYTES_MAX).contains(&self.data.len()) {
            format!("an entry of {} bytes; it must have 1 to {ENTRY_BYTES_MAX}", self.data.len())
        } else if self.tags.len() > TAGS_MAX {
            format!("an entry with {} tags; it may have {TAGS_MAX}", self.tags.len())
        } else if let Some(tag) = self.tags.iter().find(|tag| !(1..=TAG_BYTES_MAX).contains(&tag.len())) {
            format!("a tag of {} bytes; it must have 1 to {TAG_BYTES_MAX}", tag.len())
        } else {
            return Ok(());
        };
        Err(LogError::Invalid(text))
    }

    /// Returns the length of the entry's record.
    pub(crate) fn record_bytes(&self) -> usize {
        1 + self.tags.iter().map(|tag| 1 + tag.len()).sum::<usize>() + self.data.len()
    }

    pub(crate) fn put(&self, out: &mut BytesMut) {
        out.put_u8(self.tags.len() as u8);
        for tag in &self.tags {
            out.put_u8(tag.len() as u8);
            out.put_slice(tag);
        }
        out.put_slice(&self.data);
    }

    /// Reads a record; `None` if it is not one.
    pub(crate) fn get(record: &Bytes) -> Option<Entry> {
        let mut at = 1;
        let count = usize::from(*record.first()?);
        if count > TAGS_MAX {
            return None;
        }
        let mut tags = Vec::with_capacity(count);
        for _ in 0..count {
            let length = usize::from(*record.get(at)?);
            at += 1;
            if length == 0 || record.len() < at + length {
                return None;
            }
            tags.push(record.slice(at..at + length));
            at += length;
        }
        let data = record.slice(at..);
        (1..=ENTRY_BYTES_MAX).contains(&data.len()).then_some(Entry { tags, data })
    }
}

/// The content of a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// An entry.
    Entry(Entry),
    /// Nothing, forever: the position was filled, because its writer did not write in time.
    Filled,
    /// Nothing any more: the position was trimmed.
    Trimmed,
    /// Nothing yet.
    Unwritten,
}

/// The index entry of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    /// Nothing was written.
    Nothing,
    /// An entry is there.
    Entry(Locator),
    /// The place was filled.
    Filled,
    /// The place was trimmed.
    Trimmed,
}

/// The location of an entry's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locator {
    /// The distance in places to the first entry of the packet.
    pub distance: u16,
    /// The record's offset in the packet.
    pub offset: u32,
    /// The record's length.
    pub length: u32,
    /// The signature of its tags.
    pub signature: u32,
}

impl Locator {
    /// Returns the offset in the byte stream of entries at which the record of a place begins.
    pub fn begins(&self, place: u64) -> u64 {
        (place - u64::from(self.distance)) * SLOT_BYTES + u64::from(self.offset)
    }
}

impl Index {
    pub fn encode(self) -> [u8; INDEX_BYTES as usize] {
        let mut out = [0; INDEX_BYTES as usize];
        match self {
            Index::Nothing => {}
            Index::Entry(locator) => {
                out[0] = 1;
                out[2..4].copy_from_slice(&locator.distance.to_le_bytes());
                out[4..8].copy_from_slice(&locator.offset.to_le_bytes());
                out[8..12].copy_from_slice(&locator.length.to_le_bytes());
                out[12..].copy_from_slice(&locator.signature.to_le_bytes());
            }
            Index::Filled => out[0] = 2,
            Index::Trimmed => out[0] = 3,
        }
        out
    }

    /// Reads the index entry of a place; `None` if it is not one.
    pub fn decode(bytes: &[u8], place: u64) -> Option<Index> {
        let bytes: &[u8; INDEX_BYTES as usize] = bytes.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(match bytes[0] {
            0 => Index::Nothing,
            1 => {
                let distance = u16::from_le_bytes([bytes[2], bytes[3]]);
                let (offset, length, signature) = (u32_at(4), u32_at(8), u32_at(12));
                let end = u64::from(offset) + u64::from(length);
                let record_bytes_max = (ENTRY_BYTES_MAX + 1 + TAGS_MAX * (1 + TAG_BYTES_MAX)) as u32;
                let is_sound = u64::from(distance) <= place
                    && offset as usize >= PACKET_HEAD_BYTES
                    && (2..=record_bytes_max).contains(&length)
                    && end <= (u64::from(distance) + 1) * SLOT_BYTES;
                if !is_sound {
                    return None;
                }
                Index::Entry(Locator { distance, offset, length, signature })
            }
            2 => Index::Filled,
            3 => Index::Trimmed,
            _ => return None,
        })
    }
}

/// Returns the signature of tags: three bits of 32 for each tag. An entry whose signature lacks one of a tag's bits does not have
/// that tag.
pub(crate) fn signature(tags: &[Bytes]) -> u32 {
    tags.iter().fold(0, |signature, tag| {
        // FNV-1a, whose upper bits depend on all bytes.
        let hash = tag.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let hash = hash ^ (hash >> 29);
        signature | [0, 5, 10].iter().fold(0, |bits, shift| bits | 1 << (hash >> (32 + shift) & 31))
    })
}

/// The bytes of consecutive places of one object.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    /// Their index entries.
    pub index: Bytes,
    /// Packets, with their offsets in the byte stream of entries.
    pub packets: Vec<(u64, Bytes)>,
}

/// Packs entries for the places from `place` on. `writer` is a number that no other transaction has.
pub(crate) fn pack<'a>(place: u64, writer: u64, entries: impl Iterator<Item = &'a Entry> + Clone) -> Packed {
    let total: usize = entries.clone().map(|entry| entry.record_bytes() + PACKET_HEAD_BYTES).sum();
    let mut out = BytesMut::with_capacity(total);
    let mut index = BytesMut::with_capacity(entries.clone().count() * INDEX_BYTES as usize);
    let mut packets = Vec::new();
    // The first place of the open packet.
    let mut first = place;
    for (place, entry) in (place..).zip(entries) {
        let length = entry.record_bytes();
        let is_small = |bytes: usize| bytes <= SMALL_BYTES_MAX;
        let joins = !out.is_empty()
            && is_small(length)
            && out.len() + length <= PACKET_BYTES_MAX
            && place - first <= u64::from(u16::MAX);
        if !joins {
            if !out.is_empty() {
                packets.push((first * SLOT_BYTES, out.split().freeze()));
            }
            first = place;
            out.put_u64_le(writer);
        }
        let locator = Locator {
            distance: (place - first) as u16,
            offset: out.len() as u32,
            length: length as u32,
            signature: signature(&entry.tags),
        };
        index.put_slice(&Index::Entry(locator).encode());
        entry.put(&mut out);
        if !is_small(length) {
            packets.push((first * SLOT_BYTES, out.split().freeze()));
        }
    }
    if !out.is_empty() {
        packets.push((first * SLOT_BYTES, out.freeze()));
    }
    Packed { index: index.freeze(), packets }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_found_by_its_index() {
        let entry = |i: usize| {
            let data = vec![i as u8; [1, 100, 2000, 2047, 2048, 5000, ENTRY_BYTES_MAX][i % 7]];
            (0..i % 5).fold(Entry::new(data), |entry, tag| entry.tag(format!("tag {tag}")))
        };
        let entries: Vec<Entry> = (0..300).map(entry).collect();
        let packed = pack(1000, 7, entries.iter());
        let mut end = 0;
        for (offset, packet) in &packed.packets {
            assert!(*offset >= end, "packets do not overlap");
            end = offset + packet.len() as u64;
            assert_eq!(packet[..8], 7_u64.to_le_bytes());
        }
        for (place, wanted) in (1000..).zip(&entries) {
            let at = (place - 1000) as usize * 16;
            let Some(Index::Entry(locator)) = Index::decode(&packed.index[at..at + 16], place) else {
                panic!("no entry at {place}");
            };
            let begin = locator.begins(place);
            let (offset, packet) = packed
                .packets
                .iter()
                .rfind(|(offset, _)| *offset <= begin)
                .expect("a packet before the record");
            let from = (begin - offset) as usize;
            let record = packet.slice(from..from + locator.length as usize);
            assert_eq!(Entry::get(&record).as_ref(), Some(wanted));
            assert_eq!(locator.signature & signature(&wanted.tags), signature(&wanted.tags));
        }
        assert!(packed.packets.len() < 240, "small entries share packets: {}", packed.packets.len());
    }

    #[test]
    fn golden_bytes() {
        let entries = [Entry::new("abc"), Entry::new("d").tag("t")];
        let packed = pack(5, 0x0102_0304_0506_0708, entries.iter());
        assert_eq!(
            packed.packets,
            [(5 << 21, Bytes::from_static(b"\x08\x07\x06\x05\x04\x03\x02\x01\x00abc\x01\x01td"))]
        );
        assert_eq!(packed.index[..16], [1, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(packed.index[16..28], [1, 0, 1, 0, 12, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(packed.index[28..], signature(&["t".into()]).to_le_bytes());
        assert_eq!(signature(&["t".into()]), 0x0400_0600);
    }

    #[test]
    fn unsound_bytes_are_refused() {
        assert_eq!(Entry::get(&Bytes::new()), None);
        for wrong in [&b"\x00"[..], b"\x01", b"\x01\x00x", b"\x01\x05abc", b"\x11", b"\x01\x01t"] {
            assert_eq!(Entry::get(&Bytes::copy_from_slice(wrong)), None, "{wrong:?}");
        }
        let sound = Locator { distance: 2, offset: 8, length: 2, signature: 0 };
        assert!(Index::decode(&Index::Entry(sound).encode(), 2).is_some());
        assert!(
            Index::decode(&Index::Entry(sound).encode(), 1).is_none(),
            "the packet would begin before the object"
        );
        for wrong in [
            Locator { offset: 7, ..sound },
            Locator { length: 1, ..sound },
            Locator { length: u32::MAX, ..sound },
        ] {
            assert!(Index::decode(&Index::Entry(wrong).encode(), 2).is_none(), "{wrong:?}");
        }
        assert!(Index::decode(&[4; 16], 0).is_none());
    }
}
