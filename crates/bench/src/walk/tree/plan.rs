//! A tree before it is made: every name, size and time follows from the seed and the shape.
//!
//! Random numbers come from a mixing function implemented here (SplitMix64), not from a crate that may change its
//! generators: a seed must give the same tree in every version. The properties of an entry follow from the seed, its
//! directory and its number, so that threads make entries in any order and get the same tree.

use super::manifest::Totals;
use super::shape::Shape;
use crate::BenchError;

/// A planned tree.
pub(crate) struct Plan {
    seed: u64,
    file_bytes_max: u64,
    /// The directories, the root first, and each after its parent.
    pub(super) directories: Vec<Directory>,
}

/// A planned directory.
#[derive(Default)]
pub(super) struct Directory {
    pub(super) name: String,
    parent: u32,
    pub(super) depth: u32,
    pub(super) children: Vec<u32>,
    pub(super) files: u32,
    pub(super) symbolic_links: u32,
    pub(super) hard_links: u32,
}

/// A time in seconds since 1970 and nanoseconds.
pub(super) type Time = (i64, i64);

/// A planned file.
pub(super) struct File {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) modified: Time,
}

/// A SplitMix64 generator: a counter and a mixing function.
struct Random(u64);

impl Random {
    /// Creates the generator of one object, identified by its key.
    fn of(seed: u64, key: [u64; 3]) -> Self {
        key.into_iter().fold(Self(seed), |random, part| Self(Self(random.0 ^ part).next()))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which is not zero and far below 2^64.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a time of modification within some twelve years.
    fn time(&mut self) -> Time {
        (1_300_000_000 + self.below(400_000_000) as i64, self.below(1_000_000_000) as i64)
    }
}

/// The purposes of random numbers, the first parts of their keys.
const STRUCTURE: u64 = 1;
const FILE: u64 = 2;
const SYMBOLIC_LINK: u64 = 3;
const HARD_LINK: u64 = 4;
const DIRECTORY: u64 = 5;

const ENDINGS: [&str; 8] = ["", ".dat", ".h5", ".nc", ".txt", ".log", ".tar.gz", ".checkpoint"];

impl Plan {
    /// Plans a tree.
    ///
    /// # Errors
    /// [`BenchError::Usage`] if the shape is invalid.
    pub(crate) fn new(seed: u64, shape: &Shape) -> Result<Self, BenchError> {
        shape.validate()?;
        let mut random = Random::of(seed, [STRUCTURE, 0, 0]);
        let mut plan = Self { seed, file_bytes_max: shape.file_bytes_max, directories: Vec::new() };
        plan.directories.push(Directory::default());
        plan.add_directories(shape, &mut random);
        let ordinary = plan.directories.len() as u64;
        plan.share_files(shape.files, &mut random);
        for number in 0..shape.large_directories {
            let parent = random.below(ordinary) as u32;
            let large = plan.add_directory(parent, format!("large-{number}"));
            plan.directories[large as usize].files = shape.large_entries;
        }
        for number in 0..shape.chains {
            let mut link = random.below(ordinary) as u32;
            for depth in 0..shape.chain_depth {
                let name = if depth == 0 { format!("chain-{number}") } else { format!("d{depth}") };
                link = plan.add_directory(link, name);
                plan.directories[link as usize].files = 1;
            }
        }
        for _ in 0..shape.symbolic_links {
            plan.directories[random.below(ordinary) as usize].symbolic_links += 1;
        }
        let parent_of = |directory: u32| plan.directories[directory as usize].parent as usize;
        let eligible: Vec<u32> =
            (1..ordinary as u32).filter(|child| plan.directories[parent_of(*child)].files > 0).collect();
        if eligible.is_empty() && shape.hard_links > 0 {
            return Err(BenchError::Usage(
                "hard links name files of the directory above theirs, and none has both a file and a directory"
                    .into(),
            ));
        }
        for _ in 0..shape.hard_links {
            let child = eligible[random.below(eligible.len() as u64) as usize];
            plan.directories[child as usize].hard_links += 1;
        }
        Ok(plan)
    }

    /// Adds the ordinary directories: each below a random one that has room.
    fn add_directories(&mut self, shape: &Shape, random: &mut Random) {
        let mut with_space = vec![0u32];
        for number in 0..shape.directories {
            let place = random.below(with_space.len() as u64) as usize;
            let parent = with_space[place];
            let added = self.add_directory(parent, format!("dir-{number}"));
            if self.directories[parent as usize].children.len() >= shape.fan_out as usize {
                with_space.swap_remove(place);
            }
            if self.directories[added as usize].depth < shape.depth {
                with_space.push(added);
            }
        }
    }

    fn add_directory(&mut self, parent: u32, name: String) -> u32 {
        let number = self.directories.len() as u32;
        let above = &mut self.directories[parent as usize];
        above.children.push(number);
        let depth = above.depth + 1;
        self.directories.push(Directory { name, parent, depth, ..Directory::default() });
        number
    }

    /// Distributes files among all directories so far, by weights of which few are large. Uses integers only, so that
    /// results do not depend on a machine's rounding.
    fn share_files(&mut self, files: u32, random: &mut Random) {
        let weights: Vec<u64> =
            self.directories.iter().map(|_| 1_000_000 / (random.below(1000) + 10)).collect();
        let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        let (mut weight_so_far, mut files_so_far) = (0u128, 0u32);
        for (directory, weight) in self.directories.iter_mut().zip(weights) {
            weight_so_far += u128::from(weight);
            let upto = (u128::from(files) * weight_so_far / total) as u32;
            directory.files = upto - files_so_far;
            files_so_far = upto;
        }
    }

    /// Returns a file of a directory.
    pub(super) fn file(&self, directory: u32, number: u32) -> File {
        let mut random = Random::of(self.seed, [FILE, directory.into(), number.into()]);
        let ending = ENDINGS[random.below(ENDINGS.len() as u64) as usize];
        let salt = format!("{:012x}", random.below(1 << 48));
        let salt = &salt[..random.below(12) as usize];
        let bits = random.below(u64::from(self.file_bytes_max.ilog2()) + 1);
        let bytes = random.below(1 << bits);
        File { name: format!("{number}-{salt}{ending}"), bytes, modified: random.time() }
    }

    /// Returns the name and target of a symbolic link of a directory.
    pub(super) fn symbolic_link(&self, directory: u32, number: u32) -> (String, String) {
        let mut random = Random::of(self.seed, [SYMBOLIC_LINK, directory.into(), number.into()]);
        let files = self.directories[directory as usize].files;
        let target = match random.below(3) {
            0 if files > 0 => self.file(directory, random.below(files.into()) as u32).name,
            1 => "..".into(),
            _ => format!("gone/{:x}", random.below(1 << 32)),
        };
        (format!("link-{number}"), target)
    }

    /// Returns the name of a hard link of a directory, and the number of the parent directory's file that it names.
    pub(super) fn hard_link(&self, directory: u32, number: u32) -> (String, u32) {
        let parent = &self.directories[self.directories[directory as usize].parent as usize];
        let mut random = Random::of(self.seed, [HARD_LINK, directory.into(), number.into()]);
        // Only directories below one that has a file have hard links.
        (format!("hard-{number}"), random.below(u64::from(parent.files).max(1)) as u32)
    }

    /// Returns the modification time of a directory.
    pub(super) fn modified(&self, directory: u32) -> Time {
        Random::of(self.seed, [DIRECTORY, directory.into(), 0]).time()
    }

    /// Returns the expected results of a walk.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let mut path_bytes = Vec::with_capacity(self.directories.len());
        let mut linked = Vec::new();
        for (number, directory) in self.directories.iter().enumerate() {
            let number = number as u32;
            // Of the path below the root, with the slash that follows it.
            let above = if number == 0 { 0 } else { path_bytes[directory.parent as usize] };
            let base = if number == 0 { 0 } else { above + directory.name.len() as u64 + 1 };
            path_bytes.push(base);
            totals.directories += u64::from(number > 0);
            let mut name = |name: &str| {
                totals.path_bytes_longest = totals.path_bytes_longest.max(base + name.len() as u64);
            };
            for file in (0..directory.files).map(|file| self.file(number, file)) {
                name(&file.name);
                totals.apparent_bytes += file.bytes;
                totals.apparent_bytes_by_name += file.bytes;
            }
            for (link, target) in (0..directory.symbolic_links).map(|link| self.symbolic_link(number, link)) {
                name(&link);
                totals.symbolic_link_bytes += target.len() as u64;
            }
            for (link, target) in (0..directory.hard_links).map(|link| self.hard_link(number, link)) {
                name(&link);
                totals.apparent_bytes_by_name += self.file(directory.parent, target).bytes;
                linked.push((directory.parent, target));
            }
            directory.children.iter().for_each(|child| name(&self.directories[*child as usize].name));
            totals.files += u64::from(directory.files);
            totals.symbolic_links += u64::from(directory.symbolic_links);
            totals.hard_links += u64::from(directory.hard_links);
            let entries = directory.children.len() as u64
                + u64::from(directory.files + directory.symbolic_links + directory.hard_links);
            totals.entries += entries;
            totals.largest_directory = totals.largest_directory.max(entries);
            let depth = u64::from(directory.depth) + u64::from(entries > 0);
            totals.deepest = totals.deepest.max(depth);
        }
        linked.sort_unstable();
        linked.dedup();
        totals.files_with_hard_links = linked.len() as u64;
        totals
    }
}
