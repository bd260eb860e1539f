//! The extent map: the place in the log of each byte of a fork.
//!
//! A single entry takes no memory of its own, a few are in one array, and many in a tree (module `extent_tree`), so
//! an insertion moves little memory and an entry costs little more than its own 40 bytes.
//!
//! Invariants:
//! - entries never overlap and are never empty;
//! - a data entry lies within one chunk of one segment.

use std::slice;

use nacre_object::ByteRange;

use crate::extent_tree::{Tree, first_behind, replace_in, replace_same};

/// The maximum number of entries in a leaf.
const LEAF_ENTRIES_MAX: usize = 128;
/// The maximum number of children of an inner node.
const CHILDREN_MAX: usize = 64;

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
/// longer: its 64-bit length is in `offset` and `crc`.
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
    kind: EntryKind,
}

/// The kind of an entry. (It is an enum so that an enum around an entry needs no room of its own.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    Data,
    Hole,
}

impl Entry {
    /// Creates a hole over a range that is not empty.
    pub fn hole(range: ByteRange, version: u64) -> Self {
        debug_assert!(range.len > 0);
        Self {
            start: range.offset,
            version,
            segment: 0,
            offset: (range.len >> 32) as u32,
            crc: range.len as u32,
            chunk_len_less_one: 0,
            skip: 0,
            len_less_one: 0,
            kind: EntryKind::Hole,
        }
    }

    /// Creates an entry of a whole chunk, as the bytes from `start` on.
    pub fn data(start: u64, version: u64, chunk: Chunk) -> Self {
        Self::piece(start, version, chunk, 0, chunk.len)
    }

    /// Creates an entry of `len` bytes of a chunk, from the offset `skip` on.
    pub fn piece(start: u64, version: u64, chunk: Chunk, skip: u32, len: u32) -> Self {
        debug_assert!(len > 0 && skip + len <= chunk.len);
        Self {
            start,
            version,
            segment: chunk.segment,
            offset: chunk.offset,
            crc: chunk.crc,
            chunk_len_less_one: (chunk.len - 1) as u16,
            skip: skip as u16,
            len_less_one: (len - 1) as u16,
            kind: EntryKind::Data,
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
        match self.kind {
            EntryKind::Hole => u64::from(self.offset) << 32 | u64::from(self.crc),
            EntryKind::Data => u64::from(self.len_less_one) + 1,
        }
    }

    /// Returns the offset one past the last byte.
    pub fn end(&self) -> u64 {
        self.start + self.len()
    }

    /// Returns the place of the bytes.
    pub fn place(&self) -> Place {
        if self.kind == EntryKind::Hole {
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

/// The entries of one fork. Tests have smaller nodes, and so deeper trees.
#[derive(Debug, Default)]
pub struct ExtentMap<const LEAF: usize = LEAF_ENTRIES_MAX, const CHILDREN: usize = CHILDREN_MAX> {
    root: Root<LEAF, CHILDREN>,
}

#[derive(Debug, Default)]
enum Root<const LEAF: usize, const CHILDREN: usize> {
    #[default]
    Empty,
    One(Entry),
    /// At least two entries.
    Leaf(Vec<Entry>),
    /// More than a leaf holds.
    Tree(Box<Tree<LEAF, CHILDREN>>),
}

impl<const LEAF: usize, const CHILDREN: usize> ExtentMap<LEAF, CHILDREN> {
    /// Returns the entries that overlap `start..end`, in ascending order, not clipped.
    pub fn overlapping(&self, start: u64, end: u64) -> Overlapping<'_, LEAF, CHILDREN> {
        // An empty range overlaps nothing, also within an entry.
        if start >= end {
            return Overlapping { entries: [].iter(), later: None, end };
        }
        let (leaf, later) = match &self.root {
            Root::Tree(tree) => {
                let (leaf, next) = tree.leaf_at(start);
                (leaf, next.map(|next| (&**tree, next)))
            }
            root => (root.leaf(), None),
        };
        Overlapping { entries: leaf[first_behind(leaf, start)..].iter(), later, end }
    }

    /// Returns all entries, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.overlapping(0, u64::MAX)
    }

    /// Returns the greatest version of the entries that overlap `start..end`; 0 if there are none. Takes a time that grows
    /// with the logarithm of the number of entries.
    pub fn newest(&self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        match &self.root {
            Root::Tree(tree) => tree.newest(start, end),
            root => {
                let leaf = root.leaf();
                let found = leaf[first_behind(leaf, start)..].iter().take_while(|entry| entry.start < end);
                found.map(Entry::version).max().unwrap_or(0)
            }
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        match &self.root {
            Root::Tree(tree) => tree.len(),
            root => root.leaf().len(),
        }
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        matches!(self.root, Root::Empty)
    }

    /// Returns the memory that the entries take, in bytes, with the slack of leaves, and an estimate for the inner
    /// nodes.
    pub fn memory_bytes(&self) -> usize {
        match &self.root {
            Root::Empty => 0,
            Root::One(_) => size_of::<Entry>(),
            Root::Leaf(leaf) => leaf.capacity() * size_of::<Entry>(),
            Root::Tree(tree) => tree.memory_bytes(),
        }
    }

    /// Replaces everything in `start..end` with `new` (in ascending order, within that range), and calls `released` for
    /// each piece of data that goes, with its chunk.
    pub fn replace(&mut self, start: u64, end: u64, new: &[Entry], mut released: impl FnMut(&Entry, &Chunk)) {
        debug_assert!(start < end);
        let release = &mut |entry: &Entry| {
            if let Place::Data { chunk, .. } = entry.place() {
                released(entry, &chunk);
            }
        };
        match &mut self.root {
            Root::Empty => match new {
                [entry] => self.root = Root::One(*entry),
                _ => self.replace_in_leaf(Vec::new(), start, end, new, release),
            },
            Root::One(entry) => {
                let leaf = slice::from_mut(entry);
                if replace_same(leaf, start, end, new, release).is_none() {
                    let leaf = vec![*entry];
                    self.replace_in_leaf(leaf, start, end, new, release);
                }
            }
            Root::Leaf(leaf) => {
                if replace_same(leaf, start, end, new, release).is_none() {
                    let leaf = std::mem::take(leaf);
                    self.replace_in_leaf(leaf, start, end, new, release);
                }
            }
            Root::Tree(tree) => {
                tree.replace(start, end, new, release);
                if let Some(leaf) = tree.only_leaf() {
                    self.root = Root::of(leaf, false);
                }
            }
        }
    }

    /// Makes a change of a leaf, which becomes the root.
    fn replace_in_leaf(
        &mut self,
        mut leaf: Vec<Entry>,
        start: u64,
        end: u64,
        new: &[Entry],
        release: &mut impl FnMut(&Entry),
    ) {
        let replaced = replace_in(&mut leaf, start, end, new, LEAF, release);
        self.root = Root::of(leaf, replaced.is_appended);
    }

    /// Adds an entry behind all others, as the loading of a stored index does. Returns false if the entry overlaps the
    /// last one.
    pub fn push(&mut self, entry: Entry) -> bool {
        let last = match &self.root {
            Root::Tree(tree) => tree.leaf_at(u64::MAX).0.last(),
            root => root.leaf().last(),
        };
        if last.is_some_and(|last| last.end() > entry.start) {
            return false;
        }
        self.replace(entry.start, entry.end(), &[entry], |_, _| {});
        true
    }
}

impl<const LEAF: usize, const CHILDREN: usize> Root<LEAF, CHILDREN> {
    /// Creates the root of a leaf that may be too long or too short to be one.
    fn of(leaf: Vec<Entry>, is_appended: bool) -> Self {
        match &leaf[..] {
            [] => Self::Empty,
            [entry] => Self::One(*entry),
            entries if entries.len() <= LEAF => Self::Leaf(leaf),
            _ => Self::Tree(Box::new(Tree::of(leaf, is_appended))),
        }
    }

    /// Returns the entries, if they are not in a tree.
    fn leaf(&self) -> &[Entry] {
        match self {
            Self::Empty | Self::Tree(_) => &[],
            Self::One(entry) => slice::from_ref(entry),
            Self::Leaf(leaf) => leaf,
        }
    }
}

/// The entries that overlap a range, in ascending order; see [`ExtentMap::overlapping`].
#[derive(derive_more::Debug)]
#[debug("Overlapping")]
pub struct Overlapping<'a, const LEAF: usize = LEAF_ENTRIES_MAX, const CHILDREN: usize = CHILDREN_MAX> {
    /// The rest of the present leaf.
    entries: slice::Iter<'a, Entry>,
    /// The tree, and the offset from which on its next leaf has entries.
    later: Option<(&'a Tree<LEAF, CHILDREN>, u64)>,
    end: u64,
}

impl<'a, const LEAF: usize, const CHILDREN: usize> Iterator for Overlapping<'a, LEAF, CHILDREN> {
    type Item = &'a Entry;

    fn next(&mut self) -> Option<&'a Entry> {
        loop {
            if let Some(entry) = self.entries.next() {
                if entry.start < self.end {
                    return Some(entry);
                }
                self.later = None;
                self.entries = [].iter();
                return None;
            }
            let (tree, key) = self.later.take().filter(|(_, key)| *key < self.end)?;
            let (leaf, next) = tree.leaf_at(key);
            self.entries = leaf.iter();
            self.later = next.map(|next| (tree, next));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use proptest::prelude::*;

    use super::*;

    fn chunk(segment: u32, len: u32) -> Chunk {
        Chunk { segment, offset: 128, len, crc: 7 }
    }

    /// The naive model: for each byte its version, its segment and its offset within the chunk.
    type Bytes = BTreeMap<u64, (u64, Option<(u32, u32)>)>;

    /// A map with small nodes.
    type Small = ExtentMap<6, 4>;

    fn bytes_of<const L: usize, const C: usize>(map: &ExtentMap<L, C>) -> Bytes {
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
        match &map.root {
            Root::Empty | Root::One(_) => {}
            Root::Leaf(leaf) => assert!((2..=L).contains(&leaf.len())),
            Root::Tree(tree) => tree.check(),
        }
        assert_eq!(map.len(), map.iter().count(), "the entries are counted wrongly");
        bytes
    }

    /// Makes changes (start, length, kind, version) in a map and in the model, and compares them.
    fn compare<const L: usize, const C: usize>(
        span: u64,
        changes: &[(u64, u64, u8, u64)],
    ) -> Result<(), TestCaseError> {
        let mut map = ExtentMap::<L, C>::default();
        let mut model = Bytes::new();
        let mut live: HashMap<u32, i64> = HashMap::new();
        for (i, (start, len, kind, version)) in changes.iter().copied().enumerate() {
            let segment = i as u32 + 1;
            let start = start % span;
            // Now and then a wide hole or a plain removal of a wide range.
            let len = if kind == 0 { len * 20 } else { len };
            let end = start + len;
            let new = match kind {
                0 | 1 => vec![Entry::hole(ByteRange::new(start, len), version)],
                2 => vec![],
                _ => vec![Entry::data(start, version, chunk(segment, len as u32))],
            };
            map.replace(start, end, &new, |piece, chunk| {
                *live.entry(chunk.segment).or_default() -= piece.len() as i64;
            });
            for at in start..end {
                match new.first().map(Entry::place) {
                    None => {
                        model.remove(&at);
                    }
                    Some(Place::Hole) => {
                        model.insert(at, (version, None));
                    }
                    Some(Place::Data { .. }) => {
                        model.insert(at, (version, Some((segment, (at - start) as u32))));
                        *live.entry(segment).or_default() += 1;
                    }
                }
            }
            if i % 16 == 0 {
                prop_assert_eq!(&bytes_of(&map), &model);
            }
            let (from, to) = (version * 7 % span, version * 7 % span + len * 9);
            let newest =
                |from, to| model.range(from..to).map(|(_, (version, _))| *version).max().unwrap_or(0);
            prop_assert_eq!(map.newest(from, to), newest(from, to));
            prop_assert_eq!(map.newest(0, u64::MAX), newest(0, u64::MAX));
            prop_assert_eq!(map.newest(from, from), 0);
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
        for (from, to) in [(10, 50), (0, span), (span / 3, span)] {
            let seen: Vec<u64> = map.overlapping(from, to).map(Entry::start).collect();
            let wanted: Vec<u64> =
                map.iter().filter(|e| e.end() > from && e.start() < to).map(Entry::start).collect();
            prop_assert_eq!(seen, wanted);
        }
        let mut loaded = ExtentMap::<L, C>::default();
        for entry in map.iter() {
            prop_assert!(loaded.push(*entry));
            prop_assert!(!loaded.push(*entry));
        }
        prop_assert_eq!(&bytes_of(&loaded), &model);
        map.replace(0, u64::MAX, &[], |_, _| {});
        prop_assert!(map.is_empty() && map.memory_bytes() == 0);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn behaves_as_a_map_of_bytes(
            span in prop_oneof![Just(64u64), Just(3000)],
            changes in prop::collection::vec((0u64..3000, 1u64..40, 0u8..12, 1u64..500), 1..500),
            is_later in any::<bool>(),
        ) {
            let mut changes = changes;
            // Versions mostly grow in use, but a log that is loaded knows no such order.
            if is_later {
                changes.iter_mut().zip(1..).for_each(|(change, version)| change.3 = version);
            }
            compare::<6, 4>(span, &changes)?;
            compare::<LEAF_ENTRIES_MAX, CHILDREN_MAX>(span, &changes)?;
        }
    }

    #[test]
    fn a_tree_grows_and_shrinks_in_any_order() {
        let mut map = Small::default();
        let count = 5_000u64;
        for block in 0..count {
            let at = block * 3_571 % 5_003 * 10;
            map.replace(at, at + 10, &[Entry::data(at, block + 1, chunk(1, 10))], |_, _| {});
        }
        assert_eq!(bytes_of(&map).len() as u64, count * 10);
        assert_eq!(map.newest(0, u64::MAX), count);
        for block in 0..count {
            let at = block * 4_001 % 5_003 * 10;
            map.replace(at, at + 10, &[], |_, _| {});
            if block % 500 == 0 {
                bytes_of(&map);
            }
        }
        // The two sequences leave out three places each.
        assert!(map.len() <= 3);
        bytes_of(&map);
    }

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Entry>(), 40);
        assert_eq!(size_of::<ExtentMap>(), 40);
        let mut map: ExtentMap = ExtentMap::default();
        for block in 0..100_000u64 {
            let at = (block * 48_271 % 100_003) * 4096;
            map.replace(at, at + 4096, &[Entry::data(at, block + 1, chunk(1, 4096))], |_, _| {});
        }
        assert_eq!(map.len(), 100_000);
        let each = map.memory_bytes() / map.len();
        assert!(each <= 52, "{each} bytes per entry");
    }
}
