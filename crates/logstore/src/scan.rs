//! Reading a segment from its bytes: record after record, over damage where there is some.

use bytes::Bytes;

use crate::record::{self, ALIGNMENT, Found, Record};

/// What stands at some place of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A record.
    Record {
        /// Its offset in the segment.
        at: usize,
        /// The record.
        record: Record,
        /// Whether its head is damaged, and it was found by its tail.
        healed: bool,
    },
    /// Bytes that belong to no record.
    Gap {
        /// Their offset.
        at: usize,
        /// Their number.
        len: usize,
    },
}

/// Walks through a segment's bytes.
pub struct Scan {
    bytes: Bytes,
    segment: u32,
    at: usize,
    pending: Option<Item>,
}

impl Scan {
    /// Walks through `bytes`, which begin with the segment's header, from offset `at` on.
    pub fn new(bytes: Bytes, segment: u32, at: usize) -> Self {
        Self { bytes, segment, at, pending: None }
    }

    fn decode(&self, at: usize) -> Option<Found> {
        record::decode(&self.bytes.slice(at..), self.segment)
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
    use super::*;
    use crate::record::{Body, Effect, Stamp};
    use nacre_object::{Fork, ObjectId, Write};

    fn log_of(count: u64) -> (Vec<u8>, Vec<usize>) {
        let mut out = Vec::new();
        let mut starts = Vec::new();
        for sequence in 1..=count {
            let object = ObjectId::try_from("object").unwrap();
            let write =
                Write::Extents { fork: Fork::DEFAULT, extents: vec![(3, vec![sequence as u8; 21].into())] };
            let (effects, payload) = Effect::from_writes(vec![write]);
            let mut head = record::encode_transaction(&object, &effects);
            record::put_version(&mut head, sequence);
            record::seal_head(&mut head, 21, Stamp { segment: 5, sequence, synced: sequence - 1 });
            starts.push(out.len());
            out.extend_from_slice(&head);
            out.extend_from_slice(&payload[0]);
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            record::put_tail(&mut out, &head);
        }
        (out, starts)
    }

    fn sequences(bytes: &[u8]) -> Vec<u64> {
        let scan = Scan::new(Bytes::copy_from_slice(bytes), 5, 0);
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
            Scan::new(bytes.into(), 5, 0).filter(|item| matches!(item, Item::Gap { .. })).collect();
        assert_eq!(gaps, [Item::Gap { at: starts[1], len: starts[2] - starts[1] }]);
    }

    #[test]
    fn records_of_another_segment_are_not_seen() {
        let (bytes, _) = log_of(2);
        let items: Vec<Item> = Scan::new(bytes.clone().into(), 6, 0).collect();
        assert_eq!(items, [Item::Gap { at: 0, len: bytes.len() }]);
        let Some(Found::Head(record)) = record::decode(&bytes.into(), 5) else { panic!("the head is sound") };
        assert!(matches!(record.body, Body::Transaction { version: 1, .. }));
    }
}
