//! Entries that are copied or compared after the walk, where several processes work on a tree together.
//!
//! A file with several names is copied by one process, which is given all names: the first is copied, the others are linked
//! to it. If the file is large, all names are left for later once more, until the first was copied by ranges.
//!
//! A large file is begun by one process, which makes the unfinished copy and the record of its chunks. All processes copy
//! chunks, each to its place, and note them in the record. Then the process that began the file copies it as if it were
//! alone: it finds in the record what was done, copies what is missing, and gives the copy its metadata and its name. So
//! nothing depends on any other process, and a job that was killed is continued like every copy.
//!
//! Chunks of large files are compared by all processes too; one of them concludes from all chunks of a file.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_walk::directory;
use nacre_walk::{FileKind, Metadata, Unit};
use rustix::fs::{CWD, Mode, OFlags, Statx};
use rustix::io::{Errno, retry_on_intr};

use crate::copy::data::{BUFFER_BYTES, Halt, forget, open_for_reading};
use crate::copy::destination::Destination;
use crate::copy::file::{
    CHUNKS, COPY, CopyError, Done, ENDED, Item, Later, Role, failed, gone_or, is_sparse, stat_open,
    unfinished,
};
use crate::copy::record::{Record, is_own};
use crate::copy::verify::COMPARE;
use crate::copy::{Copy, Difference, Differing, Report, Shared, visitor};
use crate::error::{Cause, EntryError};

/// An entry that is left for later.
#[derive(Clone, Debug)]
pub struct LeftOver {
    /// The path below the source.
    pub path: Vec<u8>,
    /// The reason.
    pub later: Later,
}

/// A receiver of what is left for later, called by all threads.
pub type Leftovers<'a> = &'a (dyn Fn(LeftOver) + Sync);

/// The record of a large file that was begun: while it is kept, no other copy writes the file.
#[derive(derive_more::Debug)]
#[debug("Held")]
pub struct Held {
    _record: Arc<Record>,
}

/// The directories that an entry and its copy are in.
struct Place {
    /// The path below the source.
    path: Vec<u8>,
    source: OwnedFd,
    destination: Arc<Destination>,
}

/// A file of which a range was copied last.
struct OpenFile {
    path: Vec<u8>,
    source: OwnedFd,
    target: OwnedFd,
    /// The record of copied chunks; none if the file is compared.
    record: Option<Record>,
    stat: Statx,
}

/// The result of comparing a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// It is the same in both files.
    Same,
    /// It differs.
    Differs,
    /// It was not compared: the failure is noted, unless the work was stopped.
    Unknown,
}

/// The state of one thread: what it has open for the next entry, which often is in the same directory.
#[derive(Default, derive_more::Debug)]
#[debug("Worker")]
pub struct Worker {
    place: Option<Place>,
    open: Option<OpenFile>,
    buffer: Vec<u8>,
}

/// Returns the path of an entry's directory, and its name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[][..], path),
    }
}

/// Returns the second half of a range of chunks, and shortens the range to the first; `None` if it is of one chunk.
///
/// A range is a unit with the file's path, the number of the first chunk as its position, and the number of chunks in the
/// place of inode numbers.
pub fn halve(range: &mut Unit) -> Option<Unit> {
    let (first, chunks) = (range.position?, *range.inodes.first()?);
    if chunks < 2 {
        return None;
    }
    let kept = chunks.div_ceil(2);
    range.inodes = vec![kept];
    Some(Unit { position: Some(first + kept), inodes: vec![chunks - kept], ..range.clone() })
}

/// Returns the ranges of chunks that are not finished.
fn missing(path: &[u8], finished: &[bool]) -> Vec<Unit> {
    let mut ranges: Vec<Unit> = Vec::new();
    for (chunk, _) in finished.iter().enumerate().filter(|(_, finished)| !**finished) {
        let chunk = chunk as u64;
        match ranges.last_mut() {
            Some(last) if last.position.map(|first| first + last.inodes[0]) == Some(chunk) => {
                last.inodes[0] += 1;
            }
            _ => ranges.push(Unit {
                path: path.to_vec(),
                position: Some(chunk),
                inodes: vec![1],
                ..Unit::default()
            }),
        }
    }
    ranges
}

impl Copy {
    /// Opens the directories that an entry and its copy are in, one name after the other, and never through a link.
    fn find_place<'a>(&self, place: &'a mut Option<Place>, within: &[u8]) -> Result<&'a Place, Errno> {
        if place.as_ref().is_none_or(|place| place.path != within) {
            if let Some(left) = place.take() {
                // Files whose names are not all met yet refer to it.
                left.destination.close();
            }
            *place = Some(self.open_place_of(within)?);
        }
        place.as_ref().ok_or(Errno::NOENT)
    }

    /// Returns the directory that the copy is made in: one for all threads, so that what they have open is counted together.
    fn top_of_entries(&self) -> Result<&Arc<Destination>, Errno> {
        if let Some(top) = self.top_of_entries.get() {
            return Ok(top);
        }
        let top = self.top().map_err(|_| Errno::NOENT)?;
        Ok(self.top_of_entries.get_or_init(|| top))
    }

    fn open_place_of(&self, within: &[u8]) -> Result<Place, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut source = retry_on_intr(|| rustix::fs::openat(CWD, &self.source_path, flags, Mode::empty()))?;
        let mut destination = self.top_of_entries()?.find(self.destination.name())?;
        for name in within.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let name = CString::new(name).map_err(|_| Errno::INVAL)?;
            let next = retry_on_intr(|| rustix::fs::openat(&source, &*name, flags, Mode::empty()))?;
            if !self.shared.options.cross_mounts
                && directory::is_mounted(&stat_open(next.as_fd())?, source.as_fd(), next.as_fd())?
            {
                return Err(Errno::XDEV);
            }
            source = next;
            let below = destination.find(&name)?;
            // Found again by its name if it is needed; with many threads and levels, too much would stay open.
            destination.close();
            destination = below;
        }
        Ok(Place { path: within.to_vec(), source, destination })
    }

    /// Passes an entry, found by its path below the source, to `work`.
    fn with_item<T>(
        &self,
        path: &[u8],
        role: Role,
        place: &mut Option<Place>,
        work: impl FnOnce(&Item<'_>) -> Result<T, CopyError>,
    ) -> Result<T, CopyError> {
        let (within, name) = split(path);
        let name = CString::new(name).map_err(|_| failed(COPY)(Errno::INVAL))?;
        // A directory that is not there any more may have been moved with what is in it: that is an error.
        let place = self.find_place(place, within).map_err(failed(COPY))?;
        work(&Item {
            shared: &self.shared,
            role,
            source: place.source.as_fd(),
            source_name: &name,
            destination: &place.destination,
            name: &name,
        })
    }

    /// Copies an entry that is no directory, by its path below the source: one of the names of a file, all of which this
    /// process is given. With `by_ranges`, a large file and its other names are left for later, which is returned.
    pub fn copy_entry(&self, path: &[u8], by_ranges: bool, worker: &mut Worker) -> Option<Later> {
        self.copy_as(path, if by_ranges { Role::Names } else { Role::Alone }, worker)
    }

    fn copy_as(&self, path: &[u8], role: Role, worker: &mut Worker) -> Option<Later> {
        if self.shared.control.is_stopped() {
            return None;
        }
        let Worker { place, buffer, .. } = worker;
        let mut kind = FileKind::File;
        let done = self.with_item(path, role, place, |item| {
            let stat = directory::stat(item.source, item.source_name).map_err(gone_or(COPY))?;
            kind = Metadata(stat).kind();
            if kind == FileKind::Directory {
                return Err(failed(COPY)("it was replaced by something else meanwhile"));
            }
            item.copy(kind, buffer)
        });
        let later = if let Ok(Done::Later(later)) = &done { Some(*later) } else { None };
        visitor::account(&self.shared, kind, done, || self.source.join(path));
        later
    }

    /// Helps with the files that other threads of this process copy in chunks, and returns whether there was work.
    pub fn help(&self, worker: &mut Worker) -> bool {
        self.shared.help(&mut worker.buffer)
    }

    /// Begins a large file, and returns the ranges of it that are to be copied: none if it has changed or needs no copying by
    /// ranges. What it returns besides is to be kept until [`Copy::end_ranges`] is about to be called.
    pub fn begin_ranges(&self, path: &[u8], worker: &mut Worker) -> (Vec<Unit>, Option<Held>) {
        let begun = self.with_item(path, Role::Alone, &mut worker.place, |item| item.begin_ranges());
        match begun {
            Ok(Some((finished, record))) => (missing(path, &finished), Some(Held { _record: record })),
            // Whoever ends it finds out what is wrong with it.
            Ok(None) | Err(_) => (Vec::new(), None),
        }
    }

    /// Copies a chunk of a large file, which one of the processes has begun: the first one of a range. What fails is copied
    /// once more by the process that ends the file, which reports what is wrong.
    pub fn copy_range(&self, range: &Unit, worker: &mut Worker) {
        if self.shared.control.is_stopped() {
            return;
        }
        let Worker { place, open, buffer } = worker;
        let known = open.take().filter(|open| open.path == range.path);
        let Ok(file) = known.map_or_else(|| self.open_range(&range.path, place), Ok) else { return };
        let (from, to) = self.first_chunk(range, file.stat.stx_size);
        buffer.resize(BUFFER_BYTES, 0);
        let pair = self.shared.pair(file.source.as_fd(), file.target.as_fd(), is_sparse(&file.stat));
        if pair.copy(from, to, buffer).is_ok() && note(&self.shared, &file, range).is_ok() {
            *open = Some(file);
        }
    }

    /// Returns the beginning and the end of the first chunk of a range, in bytes of the file.
    fn first_chunk(&self, range: &Unit, size: u64) -> (u64, u64) {
        let chunk_bytes = self.shared.options.chunk_bytes;
        let from = range.position.unwrap_or(0).saturating_mul(chunk_bytes).min(size);
        (from, from.saturating_add(chunk_bytes).min(size))
    }

    fn open_range(&self, path: &[u8], place: &mut Option<Place>) -> Result<OpenFile, CopyError> {
        self.with_item(path, Role::Alone, place, |item| {
            let open = || -> Result<Option<OpenFile>, Errno> {
                let directory = item.destination.descriptor()?;
                let source = open_for_reading(item.source, item.source_name)?;
                let stat = stat_open(source.as_fd())?;
                let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let name = unfinished(item.name, b"");
                let target = retry_on_intr(|| rustix::fs::openat(&directory, &*name, flags, Mode::empty()))?;
                if !is_own(target.as_fd()) {
                    return Err(Errno::PERM);
                }
                let record = Record::join(directory.as_fd(), &unfinished(item.name, CHUNKS))?;
                let there = stat_open(target.as_fd())?;
                // What was begun is of this source as it is now.
                let begun = record.finished(&self.shared.subject(&stat, &there))?;
                Ok(begun.map(|_| OpenFile {
                    path: path.to_vec(),
                    source,
                    target,
                    record: Some(record),
                    stat,
                }))
            };
            open().map_err(failed(COPY))?.ok_or(CopyError::Vanished)
        })
    }

    /// Ends a large file: copies what no process has copied, and gives the copy its metadata and its name.
    pub fn end_ranges(&self, path: &[u8], worker: &mut Worker) {
        worker.open = None;
        self.copy_as(path, Role::Last, worker);
    }

    /// Returns the range of all chunks of a large file that is to be compared; `None` if it is not there any more.
    pub fn ranges_to_compare(&self, path: &[u8], worker: &mut Worker) -> Option<Unit> {
        let stat = self.with_item(path, Role::Alone, &mut worker.place, |item| {
            directory::stat(item.source, item.source_name).map_err(gone_or(COMPARE))
        });
        match stat {
            Ok(stat) => {
                let chunks = stat.stx_size.div_ceil(self.shared.options.chunk_bytes);
                Some(Unit { path: path.to_vec(), position: Some(0), inodes: vec![chunks], ..Unit::default() })
            }
            Err(error) => {
                self.cannot_compare(path, error);
                None
            }
        }
    }

    /// Compares the first chunk of a range with that of the copy.
    pub fn compare_range(&self, range: &Unit, worker: &mut Worker) -> Compared {
        if self.shared.control.is_stopped() {
            return Compared::Unknown;
        }
        let Worker { place, open, buffer } = worker;
        let known = open.take().filter(|open| open.path == range.path);
        let file = match known.map_or_else(|| self.open_compared(&range.path, place), Ok) {
            Ok(file) => file,
            Err(error) => {
                self.cannot_compare(&range.path, error);
                return Compared::Unknown;
            }
        };
        let (from, to) = self.first_chunk(range, file.stat.stx_size);
        buffer.resize(BUFFER_BYTES, 0);
        let pair = self.shared.pair(file.source.as_fd(), file.target.as_fd(), false);
        let compared = pair.compare(from, to, buffer);
        match compared {
            Ok(()) => {
                *open = Some(file);
                Compared::Same
            }
            Err(Halt::Differs | Halt::Ended) => Compared::Differs,
            Err(Halt::Stopped) => Compared::Unknown,
            Err(Halt::Failed(errno)) => {
                self.cannot_compare(&range.path, failed(COMPARE)(errno));
                Compared::Unknown
            }
        }
    }

    fn open_compared(&self, path: &[u8], place: &mut Option<Place>) -> Result<OpenFile, CopyError> {
        self.with_item(path, Role::Alone, place, |item| {
            let source = open_for_reading(item.source, item.source_name).map_err(gone_or(COMPARE))?;
            let stat = stat_open(source.as_fd()).map_err(failed(COMPARE))?;
            let directory = item.destination.descriptor().map_err(failed(COMPARE))?;
            let target = open_for_reading(&directory, item.name).map_err(failed(COMPARE))?;
            if self.shared.verifying() {
                forget(&target);
            }
            Ok(OpenFile { path: path.to_vec(), source, target, record: None, stat })
        })
    }

    /// Notes that a file could not be compared, unless it is not there any more.
    fn cannot_compare(&self, path: &[u8], error: CopyError) {
        let cause = match error {
            CopyError::Vanished => {
                self.shared.counters.vanished.fetch_add(1, Ordering::Relaxed);
                return;
            }
            CopyError::Stopped => return,
            CopyError::Ended => Cause::Other(ENDED),
            CopyError::Failed(_, cause) => cause,
        };
        self.shared.failures.add(EntryError { path: self.source.join(path), attempted: COMPARE, cause });
    }

    /// Concludes from the chunks of a large file, all of which were compared.
    pub fn conclude_ranges(&self, path: &[u8], differs: bool, report: Report<'_>) {
        if differs {
            let (path, difference) = (path.to_vec(), Difference::Contents);
            report(Differing { path, kind: FileKind::File, size: 0, difference });
        } else {
            self.shared.counters.verified.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Notes the first chunk of a range, which was copied, after it is durable.
fn note(shared: &Shared, file: &OpenFile, range: &Unit) -> Result<(), Errno> {
    if shared.keeps_chunks() {
        rustix::fs::fdatasync(&file.target)?;
    }
    let chunk = u32::try_from(range.position.unwrap_or(0)).map_err(|_| Errno::OVERFLOW)?;
    match &file.record {
        Some(record) if chunk > 0 || !shared.keeps_chunks() => record.add(chunk),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_of_missing_chunks_and_are_halved_down_to_one() {
        let finished = [true, false, false, false, true, false];
        let mut ranges = missing(b"a/b", &finished);
        let described = |ranges: &[Unit]| -> Vec<(u64, u64)> {
            ranges.iter().map(|range| (range.position.unwrap(), range.inodes[0])).collect()
        };
        assert_eq!(described(&ranges), [(1, 3), (5, 1)]);
        assert_eq!(halve(&mut ranges[1]), None);
        let mut first = ranges.remove(0);
        let rest = halve(&mut first).unwrap();
        assert_eq!(described(&[first.clone(), rest]), [(1, 2), (3, 1)]);
        let next = halve(&mut first).unwrap();
        assert_eq!(described(&[first.clone(), next]), [(1, 1), (2, 1)]);
        assert_eq!(halve(&mut first), None);
        assert_eq!(missing(b"a", &[true, true]), []);
    }

    #[test]
    fn a_path_has_a_directory_and_a_name() {
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"c"), (&b""[..], &b"c"[..]));
    }
}
