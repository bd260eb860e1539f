//! Rankings of the largest entries, with their paths.
//!
//! Ties are broken by depth and then by path, so that the result does not depend on the order in which entries come. A
//! path is built only for entries that may be among the largest, and depth comes first so that this is rare: files are
//! met from above, and the one nearer to its root wins; directories are left from below, and the deeper one wins. For a
//! chain of directories of equal size one path is built, not all. Paths that are the beginnings of one another share their bytes.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest buffer for paths that is kept, in bytes.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// A path whose bytes may belong to a longer one, too.
#[derive(Clone, Debug, Default)]
struct SharedPath {
    bytes: Arc<Vec<u8>>,
    len: usize,
}

impl SharedPath {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl PartialEq for SharedPath {
    fn eq(&self, other: &SharedPath) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for SharedPath {}

impl PartialOrd for SharedPath {
    fn partial_cmp(&self, other: &SharedPath) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SharedPath {
    fn cmp(&self, other: &SharedPath) -> Ordering {
        self.bytes().cmp(other.bytes())
    }
}

/// Serializes the bytes of the path alone.
impl Serialize for SharedPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SharedPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SharedPath, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        Ok(SharedPath { len: bytes.len(), bytes: Arc::new(bytes) })
    }
}

/// A ranked entry, ordered by descending size, then by ascending rank and path, so that the least are the largest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ranked {
    size: Reverse<u64>,
    rank: u32,
    path: SharedPath,
}

impl Ranked {
    /// Returns its size.
    pub fn size(&self) -> u64 {
        self.size.0
    }

    /// Returns its path.
    pub fn path(&self) -> &[u8] {
        self.path.bytes()
    }
}

/// The largest of the entries offered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ranking {
    max: usize,
    /// The heap, with the smallest entry on top.
    heap: BinaryHeap<Ranked>,
    /// The last path that was kept, whose bytes the next one shares if it can.
    #[serde(skip)]
    last: Arc<Vec<u8>>,
    /// A buffer for paths.
    #[serde(skip)]
    path: Vec<u8>,
}

impl PartialEq for Ranking {
    fn eq(&self, other: &Ranking) -> bool {
        self.max == other.max && self.sorted() == other.sorted()
    }
}

impl Eq for Ranking {}

impl Ranking {
    /// Creates a ranking of the `max` largest entries.
    pub fn new(max: usize) -> Ranking {
        Ranking { max, ..Ranking::default() }
    }

    /// Returns the maximum number of entries that it keeps.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Adds a file if it is among the largest. `path` appends its path.
    pub fn offer_file(&mut self, size: u64, depth: u32, path: impl FnOnce(&mut Vec<u8>)) {
        self.offer(size, depth, path);
    }

    /// Adds a directory if it is among the largest. `path` appends its path.
    pub fn offer_directory(&mut self, size: u64, depth: u32, path: impl FnOnce(&mut Vec<u8>)) {
        self.offer(size, u32::MAX - depth, path);
    }

    /// Returns whether a directory may be among the largest, whatever its path is.
    pub fn may_take_directory(&self, size: u64, depth: u32) -> bool {
        self.may_take(size, u32::MAX - depth)
    }

    fn may_take(&self, size: u64, rank: u32) -> bool {
        let key = (Reverse(size), rank);
        self.heap.len() < self.max
            || self.heap.peek().is_some_and(|smallest| key <= (smallest.size, smallest.rank))
    }

    fn offer(&mut self, size: u64, rank: u32, path: impl FnOnce(&mut Vec<u8>)) {
        if !self.may_take(size, rank) {
            return;
        }
        let full = self.heap.len() >= self.max;
        let key = (Reverse(size), rank);
        let mut buffer = std::mem::take(&mut self.path);
        buffer.clear();
        path(&mut buffer);
        let beaten = match self.heap.peek() {
            Some(smallest) if full => (key, &buffer[..]) < ((smallest.size, smallest.rank), smallest.path()),
            _ => true,
        };
        if beaten {
            if full {
                self.heap.pop();
            }
            let path = self.share(&buffer);
            self.heap.push(Ranked { size: Reverse(size), rank, path });
        }
        if buffer.capacity() <= BUFFER_BYTES_MAX {
            self.path = buffer;
        }
    }

    /// Keeps a path, in memory that it shares with the path kept before if it is the beginning of that: directories in each other are
    /// left from the innermost to the outermost.
    fn share(&mut self, path: &[u8]) -> SharedPath {
        // A short path does not keep a long one in memory.
        if path.len() < self.last.len() / 2 || !self.last.starts_with(path) {
            self.last = Arc::new(path.to_vec());
        }
        SharedPath { bytes: Arc::clone(&self.last), len: path.len() }
    }

    /// Adds the entries of another ranking.
    pub fn merge(&mut self, other: Ranking) {
        for ranked in other.heap {
            let full = self.heap.len() >= self.max;
            if full && self.heap.peek().is_none_or(|smallest| ranked >= *smallest) {
                continue;
            }
            if full {
                self.heap.pop();
            }
            self.heap.push(ranked);
        }
    }

    /// Returns the entries, the largest first.
    pub fn sorted(&self) -> Vec<&Ranked> {
        let mut all: Vec<_> = self.heap.iter().collect();
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_kept_whatever_the_order() {
        let mut all: Vec<(u64, u32, Vec<u8>)> = (0..500_u64)
            .map(|n| (n * 7919 % 40, n as u32 % 3, format!("{}", n * 31 % 500).into_bytes()))
            .collect();
        let mut rankings = [Ranking::new(60), Ranking::new(60)];
        for (number, (size, depth, path)) in all.iter().enumerate() {
            rankings[number % 2].offer_file(*size, *depth, |buffer| buffer.extend_from_slice(path));
        }
        let [mut first, second] = rankings;
        first.merge(second);
        all.sort_by(|a, b| (Reverse(a.0), a.1, &a.2).cmp(&(Reverse(b.0), b.1, &b.2)));
        let expected: Vec<_> = all[..60].iter().map(|(size, _, path)| (*size, &path[..])).collect();
        let kept: Vec<_> = first.sorted().iter().map(|ranked| (ranked.size(), ranked.path())).collect();
        assert_eq!(kept, expected);
        let mut none = Ranking::new(0);
        none.offer_file(1, 0, |_| unreachable!());
    }

    #[test]
    fn of_directories_that_are_alike_few_paths_are_built() {
        let mut ranking = Ranking::new(3);
        let mut built = 0;
        for depth in (0..1000).rev() {
            ranking.offer_directory(7, depth, |path| {
                built += 1;
                path.push(b'x');
            });
        }
        assert_eq!(built, 3);
    }

    #[test]
    fn the_paths_of_a_chain_take_the_memory_of_one() {
        let path: Vec<u8> = b"directory/".repeat(1000);
        let mut ranking = Ranking::new(5);
        for depth in (900..1000).rev() {
            let write = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&path[..depth * 10]);
            ranking.offer_directory(7, depth as u32, write);
        }
        let kept = ranking.sorted();
        assert_eq!(kept.len(), 5);
        for (number, ranked) in kept.iter().enumerate() {
            assert_eq!(ranked.path(), &path[..(999 - number) * 10]);
            assert!(Arc::ptr_eq(&ranked.path.bytes, &kept[0].path.bytes));
        }
        // They are written as what they are.
        let bytes = postcard::to_stdvec(&kept[1].path).unwrap();
        assert_eq!(bytes, postcard::to_stdvec(&path[..9980].to_vec()).unwrap());
        assert_eq!(postcard::from_bytes::<SharedPath>(&bytes).unwrap(), kept[1].path);
    }
}
