//! Reports: the counts of a walk, by one thread, by one process, or by all of them once merged.
//!
//! A report can be serialised, so that ranks send theirs to one that merges them and checkpoints keep them; only the
//! files with several names, of which there may be very many, are sent separately ([`HardLinks::send`]), and so are the
//! counts of levels, so that reports without them keep their form ([`Report::levels`]). Merging gives
//! the same result in any order and however the work was divided: whatever names one entry of many, such as the deepest
//! or the first error, chooses it by an order in which no two entries are equal.
//!
//! The counts of a directory are complete when it is left, unless it is *split*: a part of its tree was visited by
//! another process, or in an earlier run. For such directories partial sums are kept separately ([`partial`]), and
//! added up in [`Report::finish`]. Their number is that of the units of work that changed hands, and of their
//! ancestors.

pub mod histogram;
pub mod level;
pub mod link;
pub mod partial;
pub mod picture;
pub mod print;
pub mod rank;

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use histogram::{Histogram, Measure};
use level::Levels;
use link::{HardLinks, Link, Spill};
use parking_lot::Mutex;
use partial::Partial;
use rank::Ranking;
use serde::{Deserialize, Serialize};

use crate::WalkError;
use crate::chain::{Level, Stack, put_number, take_number};
use crate::directory::Directory;
use crate::entry::{Entry, FileKind};
use crate::record::Place;

/// The number of kinds of entries.
pub const KINDS: usize = FileKind::Unknown as usize + 1;

/// The maximum number of errors, and of paths of mount points, that are kept.
pub const KEPT: usize = 20;

/// The parameters of a report.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// The number of the largest files and directories to keep; 0 if they are not wanted.
    pub top: usize,
    /// The quantities to make histograms of.
    pub histograms: Vec<Measure>,
    /// Counts the entries of each level below the roots.
    pub levels: bool,
    /// The time at which the walk began, in seconds since the epoch; ages are relative to it.
    pub now: i64,
}

/// A number of entries and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// The number of entries.
    pub entries: u64,
    /// Their apparent size in bytes.
    pub apparent: u64,
    /// Their space on the device in bytes.
    pub allocated: u64,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: &Tally) {
        self.entries = self.entries.saturating_add(other.entries);
        self.apparent = self.apparent.saturating_add(other.apparent);
        self.allocated = self.allocated.saturating_add(other.allocated);
    }
}

/// The number of bytes of a node's number in packed sums.
const NODE_BYTES: usize = 4;

/// The state of a directory while it is walked: the number of its own entries, and the bytes of everything below it.
#[derive(Default, derive_more::Debug)]
#[debug("Sums")]
pub struct Sums {
    entries: AtomicU64,
    apparent: AtomicU64,
    allocated: AtomicU64,
    /// The number of its node in the partial sums plus one; 0 if it has none.
    node: AtomicU32,
    /// The state that a recorder attached to it.
    place: Option<Place>,
}

impl Sums {
    /// Returns empty sums with the state that a recorder attaches to the directory.
    pub fn at(place: Option<Place>) -> Sums {
        Sums { place, ..Sums::default() }
    }

    /// Returns the state that a recorder attached to the directory.
    pub fn place<T: 'static>(&self) -> Option<&T> {
        self.place.as_ref()?.downcast_ref()
    }

    /// Adds counts from elsewhere.
    pub fn add(&self, tally: &Tally) {
        self.entries.fetch_add(tally.entries, Ordering::Relaxed);
        self.add_bytes(tally);
    }

    fn add_bytes(&self, tally: &Tally) {
        // A few sparse files can claim more bytes together than a number holds.
        for (sum, bytes) in [(&self.apparent, tally.apparent), (&self.allocated, tally.allocated)] {
            let add = |sum: u64| Some(sum.saturating_add(bytes));
            // It always succeeds, since `add` always gives a sum.
            let _ = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }

    /// Writes them to `packed`, unless a recorder's state is attached to them.
    pub(crate) fn pack(&self, packed: &mut Vec<u8>) -> bool {
        if self.place.is_some() {
            return false;
        }
        let Tally { entries, apparent, allocated } = self.tally();
        // The node is changed in place when it is known.
        packed.extend_from_slice(&self.node.load(Ordering::Relaxed).to_le_bytes());
        [entries, apparent, allocated].iter().for_each(|number| put_number(packed, *number));
        true
    }

    /// Returns the sums that were written.
    pub(crate) fn unpack(packed: &[u8]) -> Sums {
        let (node, mut numbers) = packed.split_first_chunk().unwrap_or((&[0; NODE_BYTES], &[]));
        Sums {
            node: AtomicU32::new(u32::from_le_bytes(*node)),
            entries: take_number(&mut numbers).into(),
            apparent: take_number(&mut numbers).into(),
            allocated: take_number(&mut numbers).into(),
            place: None,
        }
    }

    /// Returns the number of its node in the partial sums, if it has one.
    fn known_node(&self) -> Option<u32> {
        self.node.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Returns the current sums.
    pub fn tally(&self) -> Tally {
        Tally {
            entries: self.entries.load(Ordering::Relaxed),
            apparent: self.apparent.load(Ordering::Relaxed),
            allocated: self.allocated.load(Ordering::Relaxed),
        }
    }
}

/// The directory with the deepest entries; of several, the one whose path sorts first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deepest {
    /// The depth of the entries below their root.
    pub depth: u32,
    /// The path of the directory that holds them; of the root itself if nothing is below it.
    pub path: Vec<u8>,
}

impl Deepest {
    fn offer(&mut self, depth: u32, path: impl FnOnce(&mut Vec<u8>)) {
        if depth < self.depth {
            return;
        }
        let mut offered = Vec::new();
        path(&mut offered);
        // Without a path nothing was offered before.
        if self.path.is_empty() || (Reverse(depth), &offered) < (Reverse(self.depth), &self.path) {
            *self = Deepest { depth, path: offered };
        }
    }
}

/// Counts of entries that could not be visited, or must not be, and those of them whose paths sort first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problems {
    /// The number of errors.
    pub errors: u64,
    /// The first errors by their paths.
    pub first: Vec<WalkError>,
    /// The number of entries that were removed between being listed and being examined.
    pub vanished: u64,
    /// The number of directories that were moved or removed before they were opened: their contents may be elsewhere,
    /// unvisited.
    pub missing: u64,
    /// The first paths of missing directories.
    pub missing_first: Vec<Vec<u8>>,
    /// The number of directories that were not entered because another file system is mounted there.
    pub mount_points: u64,
    /// The first paths of mount points.
    pub mounts: Vec<Vec<u8>>,
}

/// The counts of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The counts by kind, without the bytes of files with several names until [`Report::count_links`].
    pub kinds: [Tally; KINDS],
    /// The number of names of files that have several.
    pub linked_names: u64,
    /// The number of files that have several names; known after [`Report::count_links`].
    pub linked_files: u64,
    /// The directory with the deepest entries.
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
    /// The entries that were not visited.
    pub problems: Problems,
    /// The counts of each level below the roots, if they are wanted. They are no part of the serialised report: whoever
    /// sends or saves it sends or saves them beside it.
    #[serde(skip)]
    pub levels: Option<Levels>,
}

/// Adds an item to a sorted list of the first [`KEPT`].
fn keep<T: Ord>(kept: &mut Vec<T>, item: T) {
    let at = kept.partition_point(|other| *other <= item);
    if at < KEPT {
        kept.insert(at, item);
        kept.truncate(KEPT);
    }
}

/// Adds the items of another list to the first [`KEPT`].
fn keep_all<T: Ord>(kept: &mut Vec<T>, others: Vec<T>) {
    kept.extend(others);
    kept.sort();
    kept.truncate(KEPT);
}

/// The state that the threads of a process share while they count.
#[derive(Debug, Default)]
pub struct Shared {
    /// The temporary file for files with several names beyond the limit of memory.
    pub spill: Arc<Spill>,
    /// The sums of directories of which a part is counted elsewhere.
    pub partial: Mutex<Partial>,
}

/// Returns the node of a directory among the partial sums.
pub fn node_of(directory: &Directory<Sums>, partial: &mut Partial) -> u32 {
    // Each directory is asked once for its number and remembers it, so that a chain costs a step for each of its levels.
    if let Some(node) = directory.state().known_node() {
        return node;
    }
    let (mut unknown, mut above) = (Vec::new(), directory.ancestor());
    let mut node = None;
    while let Some(at) = above {
        node = at.state().known_node();
        if node.is_some() {
            break;
        }
        above = at.ancestor();
        unknown.push(at);
    }
    for at in unknown.iter().rev() {
        node = Some(make_node(at, node, partial));
    }
    make_node(directory, node, partial)
}

/// Makes the node of a directory, and of the packed ones above it; `above` is that of the directory above those.
fn make_node(directory: &Directory<Sums>, above: Option<u32>, partial: &mut Partial) -> u32 {
    let node = match above {
        None => partial.root(directory.root()),
        Some(above) => {
            let parent = directory.with_packed(|levels| number_packed(levels, above, partial));
            partial.child(parent.unwrap_or(above), directory.name().to_bytes())
        }
    };
    directory.state().node.store(node + 1, Ordering::Relaxed);
    node
}

/// Makes the nodes of packed directories that have none, and returns that of the last one; `above` is that of the directory above
/// the first one.
fn number_packed(levels: &mut Stack, above: u32, partial: &mut Partial) -> u32 {
    let known = |record: &[u8]| Sums::unpack(Level::get(record).state).known_node();
    // Those above one that is known are known, too.
    let unknown = levels.iter_rev().map(known).take_while(Option::is_none).count();
    let mut node = levels.iter_rev().find_map(known).unwrap_or(above);
    levels.change_last(unknown, |record| {
        let Level { name, state, .. } = Level::get(record);
        let at = record.len() - state.len();
        node = partial.child(node, name);
        record[at..at + NODE_BYTES].copy_from_slice(&(node + 1).to_le_bytes());
    });
    node
}

/// Passes the node and the counts of a directory that is begun to `show`, and those of the packed directories above it.
pub fn show_begun(directory: &Directory<Sums>, partial: &mut Partial, mut show: impl FnMut(u32, Tally)) {
    show(node_of(directory, partial), directory.state().tally());
    directory.with_packed(|levels| {
        for record in levels.iter_rev() {
            let sums = Sums::unpack(Level::get(record).state);
            if let Some(node) = sums.known_node() {
                show(node, sums.tally());
            }
        }
    });
}

/// The depth from which on it is cheaper to look at the directories above one than to build its path.
const LOOK_DEPTH_MIN: u32 = 64;

/// Returns whether so many directories above one that is left have bytes beside those below this one.
fn has_larger_above(directory: &Directory<Sums>, count: usize) -> bool {
    let mut left = count;
    let mut is_enough = |sums: &Sums| {
        left -= usize::from(sums.tally().allocated > 0);
        left == 0
    };
    let mut at: Option<Arc<Directory<Sums>>> = None;
    loop {
        let here = at.as_deref().unwrap_or(directory);
        let packed = here.with_packed(|levels| {
            levels.iter_rev().any(|record| is_enough(&Sums::unpack(Level::get(record).state)))
        });
        if packed == Some(true) {
            return true;
        }
        let Some(above) = here.ancestor() else { return false };
        if is_enough(above.state()) {
            return true;
        }
        at = Some(above);
    }
}

impl Report {
    /// Creates an empty report.
    pub fn new(shape: &Shape) -> Report {
        let ranking = || Ranking::new(shape.top);
        Report {
            crowded: Ranking::new(1),
            files: ranking(),
            by_entries: ranking(),
            by_bytes: ranking(),
            histograms: shape.histograms.iter().map(|measure| Histogram::new(*measure, shape.now)).collect(),
            levels: shape.levels.then(Levels::default),
            ..Report::default()
        }
    }

    /// Returns whether it was created with this shape.
    pub fn has_shape(&self, shape: &Shape) -> bool {
        let rankings = [&self.files, &self.by_entries, &self.by_bytes];
        rankings.iter().all(|ranking| ranking.max() == shape.top)
            && self.crowded.max() == 1
            && self.histograms.iter().map(Histogram::measure).eq(shape.histograms.iter().copied())
            && self.levels.is_some() == shape.levels
    }

    /// Counts an entry. Its bytes are added to `current`, even if it has several names.
    pub(crate) fn count(&mut self, entry: &Entry<'_, Sums>, current: &mut Tally, links: &mut HardLinks) {
        let tally = &mut self.kinds[entry.kind as usize];
        tally.entries += 1;
        current.entries += 1;
        if let Some(metadata) = entry.metadata {
            let (apparent, allocated) = (metadata.size(), metadata.allocated());
            let bytes = Tally { entries: 0, apparent, allocated };
            current.add(&bytes);
            if metadata.links() > 1 && entry.kind != FileKind::Directory {
                self.linked_names += 1;
                links.add(Link::new(entry.kind, metadata));
            } else {
                tally.add(&bytes);
            }
            if self.files.max() > 0 && entry.kind == FileKind::File {
                self.files.offer_file(apparent, entry.depth, |path| entry.write_path(path));
            }
        }
        if entry.directory.is_none() {
            self.deepest.offer(0, |path| entry.write_path(path));
        }
        for histogram in &mut self.histograms {
            histogram.count(entry);
        }
        if let Some(levels) = &mut self.levels {
            levels.count(entry);
        }
    }

    /// Adds the sums of a directory that is left.
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
        let larger = |count| has_larger_above(directory, count);
        self.rank(&tally, directory.depth(), larger, |path| path.extend_from_slice(&directory.path_bytes()));
        if let Some(parent) = directory.parent() {
            parent.state().add_bytes(&tally);
        }
    }

    /// Ranks a directory. `larger` says whether so many directories above it have more bytes below them, for certain.
    fn rank(
        &mut self,
        tally: &Tally,
        depth: u32,
        larger: impl FnOnce(usize) -> bool,
        path: impl Fn(&mut Vec<u8>),
    ) {
        self.crowded.offer_directory(tally.entries, depth, &path);
        let max = self.by_bytes.max();
        if max == 0 {
            return;
        }
        self.by_entries.offer_directory(tally.entries, depth, &path);
        // Each directory of a chain has more bytes below it than those in it, which come before: without a look at those above,
        // the path of each would be built, whose lengths add up to the square of the depth.
        if self.by_bytes.may_take_directory(tally.allocated, depth)
            && !(depth >= LOOK_DEPTH_MIN && larger(max))
        {
            self.by_bytes.offer_directory(tally.allocated, depth, &path);
        }
    }

    /// Records an error.
    pub(crate) fn fail(&mut self, error: WalkError) {
        if error.vanished() {
            self.problems.vanished += 1;
            return;
        }
        if error.is_missing() {
            self.problems.missing += 1;
            keep(&mut self.problems.missing_first, error.path);
            return;
        }
        self.problems.errors += 1;
        keep(&mut self.problems.first, error);
    }

    /// Records a directory that is not entered.
    pub(crate) fn mount_point(&mut self, path: Vec<u8>) {
        self.problems.mount_points += 1;
        keep(&mut self.problems.mounts, path);
    }

    /// Adds another report of the same shape.
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
        if let (Some(mine), Some(theirs)) = (&mut self.levels, &other.levels) {
            mine.merge(theirs);
        }
        self.problems.errors += other.problems.errors;
        self.problems.vanished += other.problems.vanished;
        self.problems.missing += other.problems.missing;
        keep_all(&mut self.problems.missing_first, other.problems.missing_first);
        self.problems.mount_points += other.problems.mount_points;
        keep_all(&mut self.problems.first, other.problems.first);
        keep_all(&mut self.problems.mounts, other.problems.mounts);
    }

    /// Adds up the directories that were split, once all is merged. `roots` are the roots' paths as they were given.
    pub fn finish(&mut self, roots: &[Vec<u8>], partial: Partial) {
        partial.finish(|root, depth, tally, place| {
            let whole = |whole: &mut Vec<u8>| {
                whole.extend_from_slice(roots.get(root as usize).map_or(&[], Vec::as_slice));
                if depth > 0 && whole.last() != Some(&b'/') {
                    whole.push(b'/');
                }
                place.write_path(whole);
            };
            if tally.entries > 0 {
                self.deepest.offer(depth + 1, whole);
            }
            self.rank(tally, depth, |count| place.has_larger_above(count), whole);
        });
    }

    /// Counts the files with several names, each once; called once all is merged.
    ///
    /// # Errors
    /// If the temporary file cannot be written or read.
    pub fn count_links(&mut self, links: &HardLinks) -> std::io::Result<()> {
        links.for_each(|link| {
            self.linked_files += 1;
            if let Some(tally) = self.kinds.get_mut(link.kind()) {
                tally.add(&Tally { entries: 0, apparent: link.size(), allocated: link.allocated() });
            }
        })
    }

    /// Returns the sum over all kinds.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.kinds.iter().for_each(|tally| total.add(tally));
        total
    }
}

#[cfg(test)]
mod tests {
    use std::cell::OnceCell;

    use rustix::fs::CWD;
    use rustix::io::Errno;

    use super::*;
    use crate::directory;
    use crate::entry::Metadata;
    use crate::error::Operation;

    #[test]
    fn sums_that_no_number_holds_are_the_largest_one() {
        let mut stat = directory::stat(CWD, c"/").unwrap();
        (stat.stx_size, stat.stx_blocks, stat.stx_nlink) = (u64::MAX / 2, u64::MAX / 1024, 1);
        let (metadata, prefix) = (Metadata(stat), OnceCell::new());
        let entry = Entry {
            directory: None,
            descriptor: None,
            prefix: &prefix,
            name: c"sparse",
            kind: FileKind::File,
            inode: 1,
            metadata: Some(&metadata),
            layout: None,
            root: 0,
            depth: 0,
        };
        let mut report = Report::new(&Shape::default());
        let (mut current, mut links) = (Tally::default(), HardLinks::new(&Arc::default(), 1));
        let sums = Sums::default();
        for _ in 0..3 {
            report.count(&entry, &mut current, &mut links);
            sums.add(&Tally { entries: 1, ..current });
        }
        let largest = Tally { entries: 3, apparent: u64::MAX, allocated: u64::MAX };
        assert_eq!((current, report.total(), sums.tally()), (largest, largest, largest));
    }

    /// Returns all orders of some numbers.
    fn orders(numbers: &[usize]) -> Vec<Vec<usize>> {
        let mut all = Vec::new();
        for first in numbers {
            let others: Vec<usize> = numbers.iter().copied().filter(|other| other != first).collect();
            all.extend(orders(&others).into_iter().map(|rest| [&[*first][..], &rest[..]].concat()));
        }
        if all.is_empty() { vec![Vec::new()] } else { all }
    }

    /// Returns the report of one of the processes that share out a tree of directories and files that are all alike.
    fn part(number: usize) -> Report {
        let mut report = Report::new(&Shape { top: 3, ..Shape::default() });
        for other in 0..12 {
            let path = format!("{}/{number}", other * 7 % 12).into_bytes();
            let write = |to: &mut Vec<u8>| to.extend_from_slice(&path);
            report.deepest.offer(4, write);
            report.rank(&Tally { entries: 9, apparent: 9, allocated: 9 }, 3, |_| false, write);
            report.files.offer_file(5, 4, write);
            report.mount_point(path.clone());
            report.fail(WalkError::missing(path.clone()));
            report.fail(WalkError::new(path, Operation::List, Errno::IO));
        }
        report
    }

    #[test]
    fn entries_that_are_alike_are_chosen_by_their_paths_in_whatever_order_reports_are_merged() {
        let parts: Vec<Report> = (0..5).map(part).collect();
        let orders = orders(&[0, 1, 2, 3, 4]);
        assert_eq!(orders.len(), 120);
        let merged = |order: &[usize]| {
            let mut whole = parts[order[0]].clone();
            order[1..].iter().for_each(|number| whole.merge(parts[*number].clone()));
            whole
        };
        let expected = merged(&orders[0]);
        assert_eq!(expected.deepest, Deepest { depth: 4, path: b"0/0".to_vec() });
        assert_eq!(expected.crowded.sorted()[0].path(), b"0/0");
        assert_eq!((expected.problems.errors, expected.problems.first.len()), (60, KEPT));
        assert_eq!(expected.problems.first[0].path, b"0/0");
        for order in &orders {
            assert_eq!(merged(order), expected, "{order:?}");
        }
    }
}
