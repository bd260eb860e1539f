//! The extent map: the place in the log of each byte of a fork.
//!
//! Entries stand in ascending order in leaves of at most [`LEAF_ENTRIES_MAX`], so that an insertion moves little
//! memory and an entry costs little more than its own 40 bytes.
//!
//! Invariants:
//! - entries never overlap and are never empty;
//! - a leaf is never empty, its key is at most the start of its first entry, and all its entries end at or before
//!   the key of the next leaf;
//! - a data entry lies within one chunk of one segment.

use std::collections::{BTreeMap, btree_map};
use std::slice;

use nacre_object::ByteRange;

const LEAF_ENTRIES_MAX: usize = 128;
/// The number of entries that a full leaf grows by: a compromise between copying and slack.
const LEAF_GROWTH: usize = 16;

/// A chunk of payload in the log: the unit that has a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The segment that holds it.
    pub segment: u32,
    /// The offset of its first byte in the segment.
    pub offset: u32,
    /// Its length in bytes, 1 to 65,536.
    pub len: u32,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

/// The place of an entry's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Zeros.
    Hole,
    /// Bytes of a chunk, from the offset `skip` on.
    Data {
        /// The chunk.
        chunk: Chunk,
        /// The offset of the entry's first byte in the chunk.
        skip: u32,
    },
}

/// One extent, or a piece of one: a byte range of a fork with its version and its place.
///
/// Lengths and skips are at most 65,536 and are kept in 16 bits, less one where they cannot be zero. A hole may be
/// longer: its 64-bit length stands in `offset` and `crc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    start: u64,
    version: u64,
    segment: u32,
    offset: u32,
    crc: u32,
    chunk_len_less_one: u16,
    skip: u16,
    len_less_one: u16,
}

/// The segment number that marks a hole. No segment has this number.
const HOLE: u32 = u32::MAX;

impl Entry {
    /// Creates a hole over a range that is not empty.
    pub fn hole(range: ByteRange, version: u64) -> Self {
        debug_assert!(range.len > 0);
        Self {
            start: range.offset,
            version,
            segment: HOLE,
            offset: (range.len >> 32) as u32,
            crc: range.len as u32,
            chunk_len_less_one: 0,
            skip: 0,
            len_less_one: 0,
        }
    }

    /// Creates an entry of a whole chunk, as the bytes from `start` on.
    pub fn data(start: u64, version: u64, chunk: Chunk) -> Self {
        Self::piece(start, version, chunk, 0, chunk.len)
    }

    /// Creates an entry of `len` bytes of a chunk, from the offset `skip` on.
    pub fn piece(start: u64, version: u64, chunk: Chunk, skip: u32, len: u32) -> Self {
        debug_assert!(len > 0 && skip + len <= chunk.len && chunk.segment != HOLE);
        Self {
            start,
            version,
            segment: chunk.segment,
            offset: chunk.offset,
            crc: chunk.crc,
            chunk_len_less_one: (chunk.len - 1) as u16,
            skip: skip as u16,
            len_less_one: (len - 1) as u16,
        }
    }

    /// Returns the offset of the first byte.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the version that wrote it.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        match self.segment {
            HOLE => u64::from(self.offset) << 32 | u64::from(self.crc),
            _ => u64::from(self.len_less_one) + 1,
        }
    }

    /// Returns the offset one past the last byte.
    pub fn end(&self) -> u64 {
        self.start + self.len()
    }

    /// Returns the place of the bytes.
    pub fn place(&self) -> Place {
        if self.segment == HOLE {
            return Place::Hole;
        }
        let chunk = Chunk {
            segment: self.segment,
            offset: self.offset,
            len: u32::from(self.chunk_len_less_one) + 1,
            crc: self.crc,
        };
        Place::Data { chunk, skip: u32::from(self.skip) }
    }

    /// Returns the part of the entry that lies in `start..end`, which must overlap it.
    pub fn clip(&self, start: u64, end: u64) -> Entry {
        let from = start.max(self.start);
        let to = end.min(self.end());
        match self.place() {
            Place::Hole => Entry::hole(ByteRange::new(from, to - from), self.version),
            Place::Data { chunk, skip } => {
                let skip = skip + (from - self.start) as u32;
                Entry::piece(from, self.version, chunk, skip, (to - from) as u32)
            }
        }
    }
}

/// The entries of one fork.
#[derive(Debug, Default)]
pub struct ExtentMap {
    leaves: BTreeMap<u64, Vec<Entry>>,
    /// The number of entries in all leaves, and the room that the leaves have for entries, so that reports need not
    /// walk through them.
    entries: usize,
    slots: usize,
}

impl ExtentMap {
    /// Returns the entries that overlap `start..end`, in ascending order, not clipped.
    pub fn overlapping(&self, start: u64, end: u64) -> Overlapping<'_> {
        let none = Overlapping { entries: [].iter(), later: None, start, end };
        // An empty range overlaps nothing, also within an entry.
        if start >= end {
            return none;
        }
        match self.leaves.range(..end).next_back() {
            // Nearly always: the last leaf that begins before the end holds `start` too, so it is the only one.
            Some((key, leaf)) if *key <= start => {
                Overlapping { entries: leaf[first_behind(leaf, start)..].iter(), ..none }
            }
            Some(_) => {
                // The leaf that holds `start` may begin before it; every later one begins within the range.
                let first = self.leaves.range(..=start).next_back().map_or(start, |(key, _)| *key);
                Overlapping { later: Some(self.leaves.range(first..end)), ..none }
            }
            None => none,
        }
    }

    /// Returns all entries, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.leaves.values().flatten()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Returns the memory that the map holds, in bytes: leaves with their slack, and an estimate for the tree above
    /// them.
    pub fn memory_bytes(&self) -> usize {
        self.slots * size_of::<Entry>() + self.leaves.len() * 2 * (size_of::<u64>() + size_of::<Vec<Entry>>())
    }

    /// Replaces everything in `start..end` with `new` (in ascending order, within that range), and calls `released` for
    /// each piece of data that is no longer referred to, with its segment and its length in bytes.
    pub fn replace(&mut self, start: u64, end: u64, new: &[Entry], mut released: impl FnMut(u32, u64)) {
        debug_assert!(start < end);
        let mut release = |entry: &Entry| {
            if let Place::Data { chunk, .. } = entry.place() {
                released(chunk.segment, entry.len());
            }
        };
        let last = self.leaves.range(..end).next_back().map(|(key, _)| *key);
        let home = match last {
            // Nearly always: no other leaf has a part in the range.
            Some(key) if key <= start => key,
            _ => self.gather(start, end, &mut release),
        };
        let Some(leaf) = self.leaves.get_mut(&home) else { return };
        let from = first_behind(leaf, start);
        let to = from + leaf[from..].partition_point(|entry| entry.start < end);
        // The most common change by far: a block written again, whole.
        if let ([old], [entry]) = (&mut leaf[from..to], new)
            && old.start == entry.start
            && old.end() == entry.end()
        {
            release(old);
            *old = *entry;
            return;
        }
        // What the leaf becomes is counted when it is settled.
        self.entries -= leaf.len();
        self.slots -= leaf.capacity();
        let mut head = None;
        let mut tail = None;
        for entry in &leaf[from..to] {
            if entry.start < start {
                head = Some(entry.clip(0, start));
            }
            if entry.end() > end {
                tail = Some(entry.clip(end, u64::MAX));
            }
            release(&entry.clip(start, end));
        }
        let room = leaf.capacity() - leaf.len();
        let growth = new.len() + 2;
        if room < growth {
            leaf.reserve_exact(growth.max(LEAF_GROWTH));
        }
        let appended = to == leaf.len();
        leaf.splice(from..to, head.into_iter().chain(new.iter().copied()).chain(tail));
        self.settle(home, appended);
    }

    /// Makes one leaf the home of `start..end`: removes from every later leaf what lies in the range, releasing it. Returns the home's key,
    /// which is at most `start`; the leaf may be empty.
    fn gather(&mut self, start: u64, end: u64, release: &mut impl FnMut(&Entry)) -> u64 {
        let home = match self.leaves.range(..=start).next_back() {
            Some((key, _)) => *key,
            // The range begins before every leaf: the first one becomes its home.
            None => {
                let leaf = self.leaves.pop_first().map_or_else(Vec::new, |(_, leaf)| leaf);
                self.leaves.insert(start, leaf);
                start
            }
        };
        // What stands behind the range in a later leaf stays there; whatever else of that leaf is in the range goes.
        let later: Vec<u64> = self.leaves.range(home + 1..end.max(home + 1)).map(|(key, _)| *key).collect();
        for key in later {
            let Some(mut leaf) = self.leaves.remove(&key) else { continue };
            self.entries -= leaf.len();
            self.slots -= leaf.capacity();
            let gone = leaf.partition_point(|entry| entry.start < end);
            let tail =
                leaf[..gone].last().filter(|last| last.end() > end).map(|last| last.clip(end, u64::MAX));
            for entry in leaf.drain(..gone) {
                release(&entry.clip(start, end));
            }
            if let Some(tail) = tail {
                leaf.insert(0, tail);
            }
            if let Some(first) = leaf.first() {
                self.entries += leaf.len();
                self.slots += leaf.capacity();
                self.leaves.insert(first.start, leaf);
            }
        }
        home
    }

    /// Restores the invariants of a leaf that was changed, so that it is neither empty nor too long, and counts it
    /// again.
    fn settle(&mut self, key: u64, appended: bool) {
        let Some(leaf) = self.leaves.get_mut(&key) else { return };
        if leaf.is_empty() {
            self.leaves.remove(&key);
            return;
        }
        self.entries += leaf.len();
        if leaf.len() <= LEAF_ENTRIES_MAX {
            self.slots += leaf.capacity();
            return;
        }
        // A stream of appends leaves full leaves behind; insertions in the middle leave halves with room to grow.
        let piece = if appended { LEAF_ENTRIES_MAX } else { LEAF_ENTRIES_MAX / 2 };
        let rest = leaf.split_off(piece);
        leaf.shrink_to_fit();
        self.slots += leaf.capacity();
        for piece in rest.chunks(piece) {
            let leaf = piece.to_vec();
            self.slots += leaf.capacity();
            self.leaves.insert(piece[0].start, leaf);
        }
    }

    /// Adds an entry behind all others, as the loading of a stored index does. Returns false if the entry overlaps the
    /// last one.
    pub fn push(&mut self, entry: Entry) -> bool {
        if let Some(mut last) = self.leaves.last_entry() {
            let leaf = last.get_mut();
            if leaf.last().is_some_and(|before| before.end() > entry.start) {
                return false;
            }
            if leaf.len() < LEAF_ENTRIES_MAX {
                self.slots -= leaf.capacity();
                if leaf.len() == leaf.capacity() {
                    leaf.reserve_exact(LEAF_GROWTH);
                }
                leaf.push(entry);
                self.slots += leaf.capacity();
                self.entries += 1;
                return true;
            }
        }
        let leaf = vec![entry];
        self.slots += leaf.capacity();
        self.entries += 1;
        self.leaves.insert(entry.start, leaf);
        true
    }
}

/// Returns the index of the first entry of a leaf that ends behind `start`.
///
/// Pieces of a fork are spread evenly more often than not. A search from the place where an entry stands then reads three cache lines, one by
/// halves reads six, and nearly all of the time is spent waiting for them.
fn first_behind(leaf: &[Entry], start: u64) -> usize {
    let (Some(first), Some(last)) = (leaf.first(), leaf.last()) else { return 0 };
    if last.end() <= start {
        return leaf.len();
    }
    if first.end() > start {
        return 0;
    }
    // Both loops end: the first entry ends before `start`, the last one behind it.
    let place = (start - first.start) as f64 / (last.start - first.start) as f64;
    let mut at = ((place * (leaf.len() - 1) as f64) as usize).min(leaf.len() - 1);
    while leaf[at].end() > start {
        at -= 1;
    }
    while leaf[at].end() <= start {
        at += 1;
    }
    at
}

/// The entries that overlap a range, in ascending order; see [`ExtentMap::overlapping`].
pub struct Overlapping<'a> {
    /// The rest of the present leaf.
    entries: slice::Iter<'a, Entry>,
    /// The leaves after it.
    later: Option<btree_map::Range<'a, u64, Vec<Entry>>>,
    start: u64,
    end: u64,
}

impl<'a> Iterator for Overlapping<'a> {
    type Item = &'a Entry;

    #[inline]
    fn next(&mut self) -> Option<&'a Entry> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(entry).filter(|entry| entry.start < self.end);
            }
            let (_, leaf) = self.later.as_mut()?.next()?;
            self.entries = leaf[first_behind(leaf, self.start)..].iter();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn chunk(segment: u32, len: u32) -> Chunk {
        Chunk { segment, offset: 128, len, crc: 7 }
    }

    /// The naive model: for each byte its version, its segment and its offset within the chunk.
    type Bytes = BTreeMap<u64, (u64, Option<(u32, u32)>)>;

    fn bytes_of(map: &ExtentMap) -> Bytes {
        let mut bytes = Bytes::new();
        let mut end = 0;
        for entry in map.iter() {
            assert!(entry.start() >= end, "entries overlap or are out of order");
            end = entry.end();
            for i in 0..entry.len() {
                let place = match entry.place() {
                    Place::Hole => None,
                    Place::Data { chunk, skip } => Some((chunk.segment, skip + i as u32)),
                };
                bytes.insert(entry.start() + i, (entry.version(), place));
            }
        }
        let mut previous_end = 0;
        for (key, leaf) in &map.leaves {
            assert!(!leaf.is_empty() && leaf.len() <= LEAF_ENTRIES_MAX);
            assert!(previous_end <= *key && *key <= leaf[0].start());
            previous_end = leaf.last().unwrap().end();
        }
        assert_eq!(map.len(), map.iter().count(), "the entries are counted wrongly");
        assert_eq!(map.slots, map.leaves.values().map(Vec::capacity).sum::<usize>());
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn behaves_as_a_map_of_bytes(
            span in prop_oneof![Just(64u64), Just(3000)],
            writes in prop::collection::vec((0u64..3000, 1u64..40, 0u8..8), 1..700),
        ) {
            let mut map = ExtentMap::default();
            let mut model = Bytes::new();
            let mut live: HashMap<u32, i64> = HashMap::new();
            for (i, (start, len, kind)) in writes.into_iter().enumerate() {
                let version = i as u64 + 1;
                let start = start % span;
                // Now and then a wide hole or a plain removal of a wide range.
                let len = if kind == 0 { len * 20 } else { len };
                let end = start + len;
                let new = match kind {
                    0 | 1 => vec![Entry::hole(ByteRange::new(start, len), version)],
                    2 => vec![],
                    _ => vec![Entry::data(start, version, chunk(version as u32, len as u32))],
                };
                map.replace(start, end, &new, |segment, bytes| {
                    *live.entry(segment).or_default() -= bytes as i64;
                });
                for at in start..end {
                    match new.first().map(Entry::place) {
                        None => { model.remove(&at); }
                        Some(Place::Hole) => { model.insert(at, (version, None)); }
                        Some(Place::Data { .. }) => {
                            model.insert(at, (version, Some((version as u32, (at - start) as u32))));
                            *live.entry(version as u32).or_default() += 1;
                        }
                    }
                }
            }
            prop_assert_eq!(&bytes_of(&map), &model);
            let mut counted: HashMap<u32, i64> = HashMap::new();
            for (segment, _) in model.values().filter_map(|(_, place)| *place) {
                *counted.entry(segment).or_default() += 1;
            }
            live.retain(|_, bytes| *bytes != 0);
            prop_assert_eq!(live, counted);
            for at in 0..span {
                let found = map.overlapping(at, at + 1).next().map(|entry| entry.version());
                prop_assert_eq!(found, model.get(&at).map(|(version, _)| *version));
            }
            let seen: Vec<u64> = map.overlapping(10, 50).map(Entry::start).collect();
            let wanted: Vec<u64> = map.iter().filter(|e| e.end() > 10 && e.start() < 50).map(Entry::start).collect();
            prop_assert_eq!(seen, wanted);
        }
    }

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Entry>(), 40);
        let mut map = ExtentMap::default();
        for block in 0..100_000u64 {
            let at = (block * 48_271 % 100_003) * 4096;
            map.replace(at, at + 4096, &[Entry::data(at, block + 1, chunk(1, 4096))], |_, _| {});
        }
        assert_eq!(map.len(), 100_000);
        let each = map.memory_bytes() / map.len();
        assert!(each <= 64, "{each} bytes per entry");
    }
}
