//! A scan of a segment's bytes: record after record, past damage where there is some.

use bytes::Bytes;

use crate::codec::{RangeChecksums, crc32c};
use crate::record::{self, ALIGNMENT, Binding, Found, Outline, Record};

/// The maximum length in bytes of a head that is read each time to check it. Longer ones take their CRC from that of
/// the whole segment, so that bytes which look like the beginnings of many long heads cost no more than one pass.
const DIRECT_BYTES_MAX: usize = 1 << 10;

/// The contents of a place in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A record.
    Record {
        /// Its offset in the segment.
        at: usize,
        /// The record.
        record: Record,
        /// True if its head is damaged, and it was found by its tail.
        healed: bool,
    },
    /// Bytes that belong to no record.
    Gap {
        /// Their offset in the segment.
        at: usize,
        /// Their number.
        len: usize,
    },
}

/// A walk through a segment's bytes.
pub struct Scan {
    bytes: Bytes,
    binding: Binding,
    at: usize,
    pending: Option<Item>,
    checksums: Option<RangeChecksums>,
    /// Bytes that were read to check heads and tails.
    #[cfg(test)]
    checked_bytes: usize,
}

impl Scan {
    /// Creates a walk through `bytes`, which begin with the segment's header, from offset `at` on.
    pub fn new(bytes: Bytes, binding: Binding, at: usize) -> Self {
        Self {
            bytes,
            binding,
            at,
            pending: None,
            checksums: None,
            #[cfg(test)]
            checked_bytes: 0,
        }
    }

    /// Decodes the head or tail at an offset.
    fn decode(&mut self, at: usize) -> Option<Found> {
        let outline = Outline::read(&self.bytes[at..], self.binding, at as u64)?;
        let end = at + outline.head_bytes;
        #[cfg(test)]
        {
            self.checked_bytes += outline.head_bytes.min(DIRECT_BYTES_MAX);
        }
        let crc = if outline.head_bytes <= DIRECT_BYTES_MAX {
            crc32c(&self.bytes[at + 8..end])
        } else {
            let checksums = self.checksums.get_or_insert_with(|| RangeChecksums::new(self.bytes.clone()));
            checksums.of(at + 8..end)
        };
        outline.decode(&self.bytes.slice(at..end), crc)
    }

    /// Returns the record whose head at an offset is damaged, found by its tail, if the head gives the tail's place,
    /// except for one flipped bit.
    fn twin(&mut self, start: usize) -> Option<Record> {
        let bytes = self.bytes.slice(start..);
        record::damaged_lengths(&bytes).find_map(|(record_bytes, body_bytes)| {
            let head_bytes = record::aligned(record::HEAD_BYTES_MIN + body_bytes);
            let back = record_bytes.checked_sub(head_bytes)?;
            if back < head_bytes || record_bytes > bytes.len() || back % ALIGNMENT != 0 {
                return None;
            }
            match self.decode(start + back)? {
                Found::Tail(record, found) if found == back => Some(record),
                _ => None,
            }
        })
    }

    fn record(&mut self, at: usize, record: Record, healed: bool) -> Item {
        self.at = at + record.record_bytes as usize;
        Item::Record { at, record, healed }
    }
}

impl Iterator for Scan {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        if let Some(item) = self.pending.take() {
            return Some(item);
        }
        let start = self.at;
        if start >= self.bytes.len() {
            return None;
        }
        if let Some(Found::Head(record)) = self.decode(start)
            && start + record.record_bytes as usize <= self.bytes.len()
        {
            return Some(self.record(start, record, false));
        }
        // Damage to the head: its twin stands in. Only then is anything else that stands before the twin looked at, which
        // in format 1 may be a payload that poses as a record.
        if let Some(record) = self.twin(start) {
            return Some(self.record(start, record, true));
        }
        // Damage: the next sound head, or the tail of a record that began here or later, is where it ends.
        for at in (start + ALIGNMENT..self.bytes.len()).step_by(ALIGNMENT) {
            let (from, record, healed) = match self.decode(at) {
                Some(Found::Head(record)) if at + record.record_bytes as usize <= self.bytes.len() => {
                    (at, record, false)
                }
                Some(Found::Tail(record, back)) if at >= start + back => (at - back, record, true),
                _ => continue,
            };
            let item = self.record(from, record, healed);
            if from == start {
                return Some(item);
            }
            self.pending = Some(item);
            return Some(Item::Gap { at: start, len: from - start });
        }
        self.at = self.bytes.len();
        Some(Item::Gap { at: start, len: self.bytes.len() - start })
    }
}

#[cfg(test)]
mod tests {
    use nacre_object::{Fork, ObjectId, WriteOp};

    use super::*;
    use crate::record::{Body, Effect, Stamp};

    fn binding(segment: u32) -> Binding {
        Binding::new(2, &[9; 16], segment)
    }

    fn log_of(count: u64) -> (Vec<u8>, Vec<usize>) {
        let mut out = Vec::new();
        let mut starts = Vec::new();
        for sequence in 1..=count {
            let object = ObjectId::try_from("object").unwrap();
            let write =
                WriteOp::Extents { fork: Fork::DEFAULT, extents: vec![(3, vec![sequence as u8; 21].into())] };
            let (effects, payload) = Effect::from_writes(vec![write], record::CHUNK_BYTES_MAX);
            let mut head = record::encode_transaction(&object, &effects);
            record::put_version(&mut head, sequence);
            let stamp =
                Stamp { binding: binding(5), offset: out.len() as u64, sequence, synced: sequence - 1 };
            record::seal_head(&mut head, 21, stamp);
            starts.push(out.len());
            out.extend_from_slice(&head);
            out.extend_from_slice(&payload[0]);
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            record::put_tail(&mut out, &head, binding(5));
        }
        (out, starts)
    }

    fn sequences(bytes: &[u8]) -> Vec<u64> {
        let scan = Scan::new(Bytes::copy_from_slice(bytes), binding(5), 0);
        scan.filter_map(|item| match item {
            Item::Record { record, .. } => Some(record.sequence),
            Item::Gap { .. } => None,
        })
        .collect()
    }

    #[test]
    fn any_flipped_bit_loses_no_record() {
        let (bytes, _) = log_of(4);
        assert_eq!(sequences(&bytes), [1, 2, 3, 4]);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(sequences(&damaged), [1, 2, 3, 4], "bit {bit}");
        }
    }

    #[test]
    fn a_lost_record_does_not_hide_the_next() {
        let (mut bytes, starts) = log_of(4);
        bytes[starts[1]..starts[2]].fill(0);
        assert_eq!(sequences(&bytes), [1, 3, 4]);
        let gaps: Vec<Item> =
            Scan::new(bytes.into(), binding(5), 0).filter(|item| matches!(item, Item::Gap { .. })).collect();
        assert_eq!(gaps, [Item::Gap { at: starts[1], len: starts[2] - starts[1] }]);
    }

    /// Makes bytes that look like the beginnings of heads, as many as there is room for, each as long as possible.
    fn hostile(binding: Binding, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let rest = (len - out.len()) as u32;
            out.extend_from_slice(&binding.head_magic().to_le_bytes());
            out.extend_from_slice(&[7; 4]);
            out.extend_from_slice(&rest.to_le_bytes());
            out.extend_from_slice(&(rest / 2).saturating_sub(64).to_le_bytes());
        }
        out
    }

    #[test]
    fn hostile_bytes_are_read_a_bounded_number_of_times() {
        for format in [1, 2] {
            // Even somebody who knows the identity gains nothing.
            let binding = Binding::new(format, &[9; 16], 5);
            let bytes = hostile(binding, 4 << 20);
            let mut scan = Scan::new(bytes.clone().into(), binding, 0);
            assert_eq!(scan.next(), Some(Item::Gap { at: 0, len: bytes.len() }));
            assert_eq!(scan.next(), None);
            // Each of its 16 bytes may be the beginning of a head that is worth a look.
            assert!(scan.checked_bytes <= bytes.len() / 16 * DIRECT_BYTES_MAX, "{}", scan.checked_bytes);
            assert!(scan.checksums.is_some(), "the claimed heads are longer than what is read directly");
        }
    }

    #[test]
    fn records_of_another_segment_are_not_seen() {
        let (bytes, _) = log_of(2);
        let items: Vec<Item> = Scan::new(bytes.clone().into(), binding(6), 0).collect();
        assert_eq!(items, [Item::Gap { at: 0, len: bytes.len() }]);
        let found = record::decode(&bytes.into(), binding(5), 0);
        let Some(Found::Head(record)) = found else { panic!("the head is sound") };
        assert!(matches!(record.body, Body::Transaction { version: 1, .. }));
    }
}
