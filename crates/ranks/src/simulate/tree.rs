//! Trees of any size that are never materialised: the contents of a directory follow from a number that its parent gave
//! it, so that 110 million files take no memory, and every rank that lists a directory finds the same contents.

use crate::{Choose, Random, Unit};

/// The number of bytes of one name in a path, with its separator.
pub const NAME_BYTES: u64 = 12;

/// The shape of a tree.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// The seed of the tree.
    pub seed: u64,
    /// The number of entries below the root: files and directories.
    pub entries: u64,
    /// The mean number of files in a directory, without the flat ones.
    pub files_mean: u64,
    /// The maximum number of subdirectories of a directory that has any (at least 2).
    pub fan_out_max: u64,
    /// The number of directories, among those with at least 1,000 entries below them, of which one is flat: it holds
    /// them all itself, as files. With 0, none is flat.
    pub flat_one_in: u64,
    /// The maximum number of files in a flat directory.
    pub flat_max: u64,
}

impl Shape {
    /// Returns the shape of a typical users' file system of `entries`: 16 files in most directories, thousands in some,
    /// up to 200,000.
    pub fn new(entries: u64, seed: u64) -> Self {
        Self { seed, entries, files_mean: 16, fan_out_max: 16, flat_one_in: 50, flat_max: 200_000 }
    }

    /// Returns the root directory.
    pub fn root(&self) -> Directory {
        Directory { number: self.seed, below: self.entries, depth: 0 }
    }

    /// Returns the contents of a directory.
    pub fn list(&self, directory: Directory) -> Listing {
        let mut random = Random::part(self.seed, directory.number);
        let below = directory.below;
        let mean = self.files_mean.max(1);
        let files = (-(1.0 - random.fraction()).ln() * mean as f64) as u64;
        // Some directories, among those with thousands of entries below them, hold all of these themselves.
        let is_flat = self.flat_one_in > 0
            && (1_000..=self.flat_max).contains(&below)
            && random.below(self.flat_one_in) == 0;
        // What is left would make no more than one more ordinary directory: a leaf.
        if is_flat || below <= files + mean {
            return Listing { files: below, directories: Vec::new() };
        }
        let wanted = 2 + random.below(self.fan_out_max.max(2) - 1);
        let children = wanted.min((below - files) / (mean / 2 + 1)).max(1);
        let mut left = below - files - children;
        // Shares as the lengths of the pieces between random cuts: some children are many times larger than others.
        let weights: Vec<f64> = (0..children).map(|_| -(1.0 - random.fraction()).ln() + 1e-9).collect();
        let mut weight_left: f64 = weights.iter().sum();
        let directories = weights
            .iter()
            .enumerate()
            .map(|(index, weight)| {
                let is_last = index + 1 == weights.len();
                let share =
                    if is_last { left } else { ((left as f64 * weight / weight_left) as u64).min(left) };
                left -= share;
                weight_left -= weight;
                Directory { number: random.bits(), below: share, depth: directory.depth + 1 }
            })
            .collect();
        Listing { files, directories }
    }
}

/// A directory of such a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// The number from which its contents follow.
    number: u64,
    /// The number of entries below it.
    below: u64,
    /// The depth.
    depth: u16,
}

impl Directory {
    /// Returns the depth; the root is at 0.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Returns the number of entries below it, at any depth.
    pub fn below(&self) -> u64 {
        self.below
    }
}

/// The contents of a directory.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The number of files.
    pub files: u64,
    /// The subdirectories.
    pub directories: Vec<Directory>,
}

impl Listing {
    /// Returns the total number of entries.
    pub fn entries(&self) -> u64 {
        self.files + self.directories.len() as u64
    }

    /// Returns the subdirectories among the entries `from..to`; they are spread evenly.
    pub fn between(&self, from: u64, to: u64) -> &[Directory] {
        let (entries, count) = (self.entries(), self.directories.len() as u64);
        // Subdirectory `k` is at entry `k * entries / count`; so many are in front of an entry:
        let before =
            |entry: u64| if count == 0 { 0 } else { (entry * count).div_ceil(entries).min(count) as usize };
        &self.directories[before(from)..before(to)]
    }
}

/// A unit of work of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A directory, from the entry `from` on.
    Directory {
        /// The directory.
        directory: Directory,
        /// The index of the first unread entry.
        from: u32,
    },
    /// CP only: some files of one directory, each of which is a unit.
    Files {
        /// The number of files.
        count: u64,
        /// The depth of the files.
        depth: u16,
    },
}

impl Unit for Piece {
    /// Returns the size of a sent unit: the root's number, the path, and the position.
    fn size_bytes(&self) -> u64 {
        match self {
            Self::Directory { directory, from } => {
                4 + NAME_BYTES * u64::from(directory.depth) + if *from > 0 { 9 } else { 0 }
            }
            Self::Files { count, depth } => count * (4 + NAME_BYTES * u64::from(*depth)),
        }
    }

    fn count(&self) -> u64 {
        match self {
            Self::Directory { .. } => 1,
            Self::Files { count, .. } => *count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_holds_exactly_what_it_was_asked_for() {
        for (entries, seed) in [(0, 1), (1, 2), (7, 3), (1_000, 4), (400_000, 5)] {
            let shape = Shape { flat_one_in: 20, ..Shape::new(entries, seed) };
            let (mut seen, mut directories, mut deepest, mut largest) = (0, 0u64, 0, 0);
            let mut open = vec![shape.root()];
            while let Some(directory) = open.pop() {
                let listing = shape.list(directory);
                seen += listing.entries();
                directories += 1;
                deepest = deepest.max(directory.depth);
                largest = largest.max(listing.entries());
                // Read in slices, it is the same.
                let mut sliced = Vec::new();
                for from in (0..listing.entries()).step_by(7) {
                    sliced.extend_from_slice(listing.between(from, (from + 7).min(listing.entries())));
                }
                assert_eq!(sliced, listing.directories);
                open.extend(sliced);
            }
            assert_eq!(seen, entries);
            if entries == 400_000 {
                assert!((10_000..60_000).contains(&directories), "{directories} directories");
                assert!((4..40).contains(&deepest), "{deepest} deep");
                assert!(largest > 5_000, "the largest directory has {largest} entries");
            }
        }
    }
}
