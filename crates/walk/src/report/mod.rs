//! What was counted during a walk: by one thread, by one process, or by all of them once merged.
//!
//! A report can be serialised, so that ranks send theirs to one that merges them and checkpoints keep them; only the
//! files with several names, of which there may be very many, travel apart ([`HardLinks::send`]). Merging gives the same
//! whatever the order and wherever the work was cut.
//!
//! What was counted of a directory is complete when it is left, unless it is *split*: a part of what is below it was done
//! by another process, or in an earlier run. Of such directories partial sums are kept apart ([`partial`]), and added up in
//! [`Report::finish`]. There are as many as there were units of work that changed hands, and their ancestors.

pub mod histogram;
pub mod link;
pub mod partial;
pub mod picture;
pub mod print;
pub mod rank;

use crate::WalkError;
use crate::directory::Directory;
use crate::entry::{Entry, Kind};
use histogram::{Histogram, Measure};
use link::{HardLinks, Link, Spill};
use parking_lot::Mutex;
use partial::Partial;
use rank::Ranking;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Kinds of entries.
pub const KINDS: usize = Kind::Unknown as usize + 1;

/// Errors, and paths of mount points, that are kept.
pub const KEPT: usize = 20;

/// What is to be counted.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// How many of the largest files and directories to keep; 0 if they are not asked for.
    pub top: usize,
    /// Histograms.
    pub histograms: Vec<Measure>,
    /// When the walk began, in seconds since the epoch: ages are counted from then.
    pub now: i64,
}

/// A number of entries and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Entries.
    pub entries: u64,
    /// Apparent bytes.
    pub apparent: u64,
    /// Bytes on the device.
    pub allocated: u64,
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: &Tally) {
        self.entries = self.entries.saturating_add(other.entries);
        self.apparent = self.apparent.saturating_add(other.apparent);
        self.allocated = self.allocated.saturating_add(other.allocated);
    }
}

/// What is attached to a directory while it is walked: its own entries, and the bytes of everything below it.
#[derive(Debug, Default)]
pub struct Sums {
    entries: AtomicU64,
    apparent: AtomicU64,
    allocated: AtomicU64,
    /// Its number among the partial sums and one; 0 if it has none.
    node: AtomicU32,
}

impl Sums {
    /// Adds what was counted elsewhere.
    pub fn add(&self, tally: &Tally) {
        self.entries.fetch_add(tally.entries, Ordering::Relaxed);
        self.add_bytes(tally);
    }

    fn add_bytes(&self, tally: &Tally) {
        self.apparent.fetch_add(tally.apparent, Ordering::Relaxed);
        self.allocated.fetch_add(tally.allocated, Ordering::Relaxed);
    }

    /// What it is now.
    pub fn tally(&self) -> Tally {
        Tally {
            entries: self.entries.load(Ordering::Relaxed),
            apparent: self.apparent.load(Ordering::Relaxed),
            allocated: self.allocated.load(Ordering::Relaxed),
        }
    }
}

/// One of the directories with the deepest entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deepest {
    /// Levels of the entries below their root.
    pub depth: u32,
    /// The path of the directory that they are in; of the root itself if there is nothing below.
    pub path: Vec<u8>,
}

impl Deepest {
    fn offer(&mut self, depth: u32, path: impl FnOnce(&mut Vec<u8>)) {
        if depth > self.depth || self.path.is_empty() {
            self.depth = depth;
            self.path.clear();
            path(&mut self.path);
        }
    }
}

/// What could not be visited, or was not to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problems {
    /// Errors.
    pub errors: u64,
    /// Some of them.
    pub first: Vec<WalkError>,
    /// Entries that went away between being listed and being looked at.
    pub vanished: u64,
    /// Directories that were moved or removed before they were opened: what was in them may be elsewhere, unvisited.
    pub missing: u64,
    /// Paths of some of them.
    pub missing_first: Vec<Vec<u8>>,
    /// Directories that were not entered because another file system is mounted there.
    pub mount_points: u64,
    /// Paths of some of them.
    pub mounts: Vec<Vec<u8>>,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// By kind. Bytes of files with several names are not in here before [`Report::count_links`].
    pub kinds: [Tally; KINDS],
    /// Names of files that have several.
    pub linked_names: u64,
    /// Files that have several names; known after [`Report::count_links`].
    pub linked_files: u64,
    /// One of the directories with the deepest entries.
    pub deepest: Deepest,
    /// The directory with the most entries.
    pub crowded: Ranking,
    /// The largest files.
    pub files: Ranking,
    /// The directories with the most entries.
    pub by_entries: Ranking,
    /// The directories with the most bytes below them.
    pub by_bytes: Ranking,
    /// The histograms.
    pub histograms: Vec<Histogram>,
    /// What was not visited.
    pub problems: Problems,
}

/// What the threads of a process share while they count.
#[derive(Debug, Default)]
pub struct Shared {
    /// Where files with several names are kept beyond some number.
    pub spill: Arc<Spill>,
    /// Sums of directories of which a part is counted elsewhere.
    pub partial: Mutex<Partial>,
}

/// The node of a directory among the partial sums.
pub(crate) fn node_of(directory: &Directory<Sums>, partial: &mut Partial) -> u32 {
    // Each directory is asked once for its number and remembers it, so that a chain costs a step for each of its levels.
    let (mut unknown, mut at) = (Vec::new(), directory);
    let mut node = loop {
        if let Some(node) = at.state().node.load(Ordering::Relaxed).checked_sub(1) {
            break node;
        }
        let Some(parent) = at.parent() else {
            let node = partial.root(at.root());
            at.state().node.store(node + 1, Ordering::Relaxed);
            break node;
        };
        unknown.push(at);
        at = parent;
    };
    for directory in unknown.into_iter().rev() {
        node = partial.child(node, directory.name().to_bytes());
        directory.state().node.store(node + 1, Ordering::Relaxed);
    }
    node
}

impl Report {
    /// A report in which nothing is counted yet.
    pub fn new(shape: &Shape) -> Report {
        let ranking = || Ranking::new(shape.top);
        Report {
            crowded: Ranking::new(1),
            files: ranking(),
            by_entries: ranking(),
            by_bytes: ranking(),
            histograms: shape.histograms.iter().map(|measure| Histogram::new(*measure, shape.now)).collect(),
            ..Report::default()
        }
    }

    /// Whether it counts just that.
    pub fn has_shape(&self, shape: &Shape) -> bool {
        let rankings = [&self.files, &self.by_entries, &self.by_bytes];
        rankings.iter().all(|ranking| ranking.max() == shape.top)
            && self.crowded.max() == 1
            && self.histograms.iter().map(Histogram::measure).eq(shape.histograms.iter().copied())
    }

    /// Counts an entry. Its bytes are added to `current` too, whatever names it has.
    pub(crate) fn count(&mut self, entry: &Entry<'_, Sums>, current: &mut Tally, links: &mut HardLinks) {
        let tally = &mut self.kinds[entry.kind as usize];
        tally.entries += 1;
        current.entries += 1;
        if let Some(metadata) = entry.metadata {
            let (apparent, allocated) = (metadata.size(), metadata.allocated());
            current.apparent += apparent;
            current.allocated += allocated;
            if metadata.links() > 1 && entry.kind != Kind::Directory {
                self.linked_names += 1;
                links.add(Link::new(entry.kind, metadata));
            } else {
                tally.apparent += apparent;
                tally.allocated += allocated;
            }
            if self.files.max() > 0 && entry.kind == Kind::File {
                self.files.offer_file(apparent, entry.depth, |path| entry.write_path(path));
            }
        }
        if entry.directory.is_none() {
            self.deepest.offer(0, |path| entry.write_path(path));
        }
        for histogram in &mut self.histograms {
            histogram.count(entry);
        }
    }

    /// Takes what is attached to a directory that is left.
    pub(crate) fn leave(&mut self, directory: &Directory<Sums>, partial: &Mutex<Partial>) {
        let tally = directory.state().tally();
        // The deepest are left first: of a long chain of directories one path is built, not all.
        if tally.entries > 0 {
            let depth = directory.depth() + 1;
            self.deepest.offer(depth, |path| path.extend_from_slice(&directory.path_bytes()));
        }
        if directory.is_split() {
            let mut partial = partial.lock();
            let node = node_of(directory, &mut partial);
            partial.add(node, &tally);
            return;
        }
        self.rank(&tally, directory.depth(), |path| path.extend_from_slice(&directory.path_bytes()));
        if let Some(parent) = directory.parent() {
            parent.state().add_bytes(&tally);
        }
    }

    fn rank(&mut self, tally: &Tally, depth: u32, path: impl Fn(&mut Vec<u8>)) {
        self.crowded.offer_directory(tally.entries, depth, &path);
        if self.by_bytes.max() > 0 {
            self.by_entries.offer_directory(tally.entries, depth, &path);
            self.by_bytes.offer_directory(tally.allocated, depth, &path);
        }
    }

    /// Notes an error.
    pub(crate) fn fail(&mut self, error: WalkError) {
        if error.vanished() {
            self.problems.vanished += 1;
            return;
        }
        if error.is_missing() {
            self.problems.missing += 1;
            if self.problems.missing_first.len() < KEPT {
                self.problems.missing_first.push(error.path);
            }
            return;
        }
        self.problems.errors += 1;
        if self.problems.first.len() < KEPT {
            self.problems.first.push(error);
        }
    }

    /// Notes a directory that is not entered.
    pub(crate) fn mount_point(&mut self, path: Vec<u8>) {
        self.problems.mount_points += 1;
        if self.problems.mounts.len() < KEPT {
            self.problems.mounts.push(path);
        }
    }

    /// Takes in another report of the same shape.
    pub fn merge(&mut self, other: Report) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.add(theirs);
        }
        self.linked_names += other.linked_names;
        self.linked_files += other.linked_files;
        if !other.deepest.path.is_empty() {
            self.deepest.offer(other.deepest.depth, |path| *path = other.deepest.path);
        }
        self.crowded.merge(other.crowded);
        self.files.merge(other.files);
        self.by_entries.merge(other.by_entries);
        self.by_bytes.merge(other.by_bytes);
        for (mine, theirs) in self.histograms.iter_mut().zip(other.histograms) {
            mine.merge(theirs);
        }
        self.problems.errors += other.problems.errors;
        self.problems.vanished += other.problems.vanished;
        self.problems.missing += other.problems.missing;
        self.problems.missing_first.extend(other.problems.missing_first);
        self.problems.missing_first.truncate(KEPT);
        self.problems.mount_points += other.problems.mount_points;
        self.problems.first.extend(other.problems.first);
        self.problems.first.truncate(KEPT);
        self.problems.mounts.extend(other.problems.mounts);
        self.problems.mounts.truncate(KEPT);
    }

    /// Once all is merged: adds up the directories that were split. `roots` are the roots' paths as they were given.
    pub fn finish(&mut self, roots: &[Vec<u8>], partial: Partial) {
        partial.finish(|root, depth, tally, path| {
            let whole = |whole: &mut Vec<u8>| {
                whole.extend_from_slice(roots.get(root as usize).map_or(&[], Vec::as_slice));
                if depth > 0 && whole.last() != Some(&b'/') {
                    whole.push(b'/');
                }
                path(whole);
            };
            if tally.entries > 0 {
                self.deepest.offer(depth + 1, whole);
            }
            self.rank(tally, depth, whole);
        });
    }

    /// Once all is merged: counts the files with several names, each once.
    pub fn count_links(&mut self, links: &HardLinks) -> std::io::Result<()> {
        links.for_each(|link| {
            self.linked_files += 1;
            if let Some(tally) = self.kinds.get_mut(link.kind()) {
                tally.add(&Tally { entries: 0, apparent: link.size(), allocated: link.allocated() });
            }
        })
    }

    /// Everything together.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.kinds.iter().for_each(|tally| total.add(tally));
        total
    }
}
