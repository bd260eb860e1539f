//! Files with several names, each counted once, in bounded memory.
//!
//! Every name of such a file gives a record with its device and inode. Records are kept in memory up to a limit; then
//! they are sorted, records of the same file are merged, and the rest goes to a temporary file as a run. At the
//! end the runs are merged. All sets of a process share one temporary file, which has no name.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::entry::{FileKind, Metadata};

/// A file with several names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    device: u64,
    inode: u64,
    size: u64,
    /// The number of blocks of 512 bytes, and the kind in the uppermost byte.
    blocks: u64,
}

/// The size of a record in bytes.
pub const LINK_BYTES: usize = 32;

/// The maximum number of records that the sets of one process keep in memory together.
const MEMORY_RECORDS: usize = 1 << 17;

/// The minimum number of records that one set keeps in memory: fewer are not worth a run.
const MEMORY_RECORDS_MIN: usize = 1 << 10;

/// The number of records of a run that are read at once.
const READ_RECORDS: usize = 256;

/// The number of runs above which some are merged into one.
const RUNS_MAX: usize = 256;

const KIND_SHIFT: u32 = 56;

impl Link {
    /// Creates the record of an entry.
    pub fn new(kind: FileKind, metadata: &Metadata) -> Link {
        let blocks = (metadata.allocated() / 512).min((1 << KIND_SHIFT) - 1);
        Link {
            device: metadata.device(),
            inode: metadata.inode(),
            size: metadata.size(),
            blocks: blocks | (kind as u64) << KIND_SHIFT,
        }
    }

    /// Returns the apparent size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the space on the device in bytes.
    pub fn allocated(&self) -> u64 {
        (self.blocks & ((1 << KIND_SHIFT) - 1)) * 512
    }

    /// Returns the index of its kind among the kinds.
    pub fn kind(&self) -> usize {
        (self.blocks >> KIND_SHIFT) as usize
    }

    fn is_same_file(&self, other: &Link) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        for number in [self.device, self.inode, self.size, self.blocks] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn get(bytes: &[u8; LINK_BYTES]) -> Link {
        let (numbers, _) = bytes.as_chunks();
        let [device, inode, size, blocks] = [0, 1, 2, 3].map(|number| u64::from_le_bytes(numbers[number]));
        Link { device, inode, size, blocks }
    }
}

/// The temporary file that the sets of a process share.
#[derive(Debug, Default)]
pub struct Spill {
    file: Mutex<Option<(Arc<File>, u64)>>,
}

impl Spill {
    fn append(&self, bytes: &[u8]) -> io::Result<(Arc<File>, u64)> {
        let (file, at) = {
            let mut state = self.file.lock();
            if state.is_none() {
                *state = Some((Arc::new(tempfile::tempfile()?), 0));
            }
            let Some((file, end)) = &mut *state else { return Err(io::ErrorKind::NotFound.into()) };
            let at = *end;
            *end += bytes.len() as u64;
            (Arc::clone(file), at)
        };
        file.write_all_at(bytes, at)?;
        Ok((file, at))
    }
}

/// A part of the temporary file with records in order, each file once.
#[derive(Clone, Debug)]
struct Run {
    pieces: Vec<(Arc<File>, u64, u64)>,
}

/// The files with several names that were met so far.
#[derive(Debug)]
pub struct HardLinks {
    records: Vec<Link>,
    runs: Vec<Run>,
    limit: usize,
    spill: Arc<Spill>,
    failed: Option<io::Error>,
}

impl HardLinks {
    /// Creates an empty set, one of `sets` in this process, which share a temporary file.
    pub fn new(spill: &Arc<Spill>, sets: usize) -> HardLinks {
        let limit = (MEMORY_RECORDS / sets.max(1)).max(MEMORY_RECORDS_MIN);
        HardLinks { records: Vec::new(), runs: Vec::new(), limit, spill: Arc::clone(spill), failed: None }
    }

    /// Returns its contents, and leaves it empty.
    pub fn take(&mut self) -> HardLinks {
        HardLinks {
            records: std::mem::take(&mut self.records),
            runs: std::mem::take(&mut self.runs),
            limit: self.limit,
            spill: Arc::clone(&self.spill),
            failed: self.failed.take(),
        }
    }

    /// Adds a name of a file.
    pub fn add(&mut self, link: Link) {
        if self.records.len() >= self.limit {
            self.make_space();
        }
        self.records.push(link);
    }

    /// Adds all records of another set of this process.
    pub fn merge(&mut self, other: HardLinks) {
        for link in other.records {
            self.add(link);
        }
        self.runs.extend(other.runs);
        if let Some(error) = other.failed {
            self.failed = Some(error);
        }
        self.limit_runs();
    }

    /// Passes every file to `show` once, in order.
    ///
    /// # Errors
    /// If the temporary file cannot be written or read, now or earlier.
    pub fn for_each(&self, mut show: impl FnMut(&Link)) -> io::Result<()> {
        if let Some(error) = &self.failed {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        let mut records = self.records.clone();
        sort(&mut records);
        let mut sources = vec![Source { read: records, next: 0, run: None }];
        sources.extend(self.runs.iter().map(|run| Source::new(run.clone())));
        merge(sources, |link| {
            show(&link);
            Ok(())
        })
    }

    /// Passes every file to `send` once as bytes, in pieces of whole records that [`HardLinks::receive`] accepts.
    ///
    /// # Errors
    /// As for [`HardLinks::for_each`], and those of `send`.
    pub fn send(&self, mut send: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut sent = Ok(());
        self.for_each(|link| {
            link.put(&mut bytes);
            if bytes.len() >= 1 << 16 && sent.is_ok() {
                sent = send(&bytes);
                bytes.clear();
            }
        })?;
        sent?;
        if bytes.is_empty() { Ok(()) } else { send(&bytes) }
    }

    /// Adds the records that another set has sent; returns false if the bytes are not valid records.
    pub fn receive(&mut self, bytes: &[u8]) -> bool {
        let (records, rest) = bytes.as_chunks();
        for record in records {
            let link = Link::get(record);
            if link.kind() > FileKind::Unknown as usize {
                return false;
            }
            self.add(link);
        }
        rest.is_empty()
    }

    fn make_space(&mut self) {
        sort(&mut self.records);
        if self.records.len() * 2 > self.limit {
            let mut bytes = Vec::with_capacity(self.records.len() * LINK_BYTES);
            self.records.iter().for_each(|link| link.put(&mut bytes));
            self.records.clear();
            match self.spill.append(&bytes) {
                Ok((file, at)) => self.runs.push(Run { pieces: vec![(file, at, bytes.len() as u64)] }),
                Err(error) => self.failed = Some(error),
            }
            self.limit_runs();
        }
    }

    /// Merges runs while there are too many to read side by side.
    fn limit_runs(&mut self) {
        if self.runs.len() <= RUNS_MAX {
            return;
        }
        let sources = self.runs.drain(..).map(Source::new).collect();
        let mut merged = Run { pieces: Vec::new() };
        let mut bytes = Vec::new();
        let spill = &self.spill;
        let mut append = |bytes: &mut Vec<u8>| -> io::Result<()> {
            let (file, at) = spill.append(bytes)?;
            merged.pieces.push((file, at, bytes.len() as u64));
            bytes.clear();
            Ok(())
        };
        let done = merge(sources, |link| {
            link.put(&mut bytes);
            if bytes.len() < 1 << 18 { Ok(()) } else { append(&mut bytes) }
        });
        match done.and_then(|()| if bytes.is_empty() { Ok(()) } else { append(&mut bytes) }) {
            Ok(()) => self.runs.push(merged),
            Err(error) => self.failed = Some(error),
        }
    }
}

/// Sorts the records, and keeps only the greatest record of each file, so that the result does not depend on the order.
fn sort(records: &mut Vec<Link>) {
    records.sort_unstable_by(|a, b| b.cmp(a));
    records.dedup_by(|later, earlier| later.is_same_file(earlier));
    records.reverse();
}

/// A source of records in order.
struct Source {
    read: Vec<Link>,
    next: usize,
    run: Option<Run>,
}

impl Source {
    fn new(run: Run) -> Source {
        Source { read: Vec::new(), next: 0, run: Some(run) }
    }

    fn next(&mut self) -> io::Result<Option<Link>> {
        if self.next == self.read.len() {
            self.read.clear();
            self.next = 0;
            let Some(run) = &mut self.run else { return Ok(None) };
            let Some((file, at, len)) = run.pieces.first_mut() else { return Ok(None) };
            let mut bytes = [0; READ_RECORDS * LINK_BYTES];
            let part = (*len).min(bytes.len() as u64);
            let bytes = &mut bytes[..part as usize];
            file.read_exact_at(bytes, *at)?;
            *at += part;
            *len -= part;
            if *len == 0 {
                run.pieces.remove(0);
            }
            self.read.extend(bytes.as_chunks().0.iter().map(Link::get));
        }
        let link = self.read.get(self.next).copied();
        self.next += 1;
        Ok(link)
    }
}

fn merge(mut sources: Vec<Source>, mut show: impl FnMut(Link) -> io::Result<()>) -> io::Result<()> {
    let mut heads = BinaryHeap::new();
    for (number, source) in sources.iter_mut().enumerate() {
        heads.extend(source.next()?.map(|link| Reverse((link, number))));
    }
    let mut last: Option<Link> = None;
    while let Some(Reverse((link, number))) = heads.pop() {
        heads.extend(sources[number].next()?.map(|link| Reverse((link, number))));
        // Of several records of a file the last, the greatest, is shown.
        if let Some(shown) = last.replace(link)
            && !shown.is_same_file(&link)
        {
            show(shown)?;
        }
    }
    last.map_or(Ok(()), show)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn link(inode: u64, size: u64) -> Link {
        Link { device: inode % 3, inode, size, blocks: 8 }
    }

    #[test]
    fn every_file_is_counted_once_however_many_there_are() {
        let spill = Arc::default();
        let mut sets: Vec<_> = (0..3).map(|_| HardLinks::new(&spill, 1 << 20)).collect();
        let mut expected = BTreeMap::new();
        let mut state = 1_u64;
        // More runs than are read side by side.
        for _ in 0..MEMORY_RECORDS_MIN * RUNS_MAX * 2 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let link = link((state >> 40) % 100_000, state >> 62);
            sets[(state >> 33) as usize % 3].add(link);
            let greatest = expected.entry((link.device, link.inode)).or_insert(link);
            *greatest = link.max(*greatest);
        }
        let mut all = HardLinks::new(&spill, 1);
        sets.into_iter().for_each(|set| all.merge(set));
        assert!(!all.runs.is_empty() && all.records.len() <= all.limit);
        let mut seen = Vec::new();
        all.for_each(|link| seen.push(*link)).unwrap();
        assert_eq!(seen, expected.into_values().collect::<Vec<_>>());

        let mut other = HardLinks::new(&Arc::default(), 1 << 20);
        all.send(|bytes| {
            assert!(other.receive(bytes));
            Ok(())
        })
        .unwrap();
        let mut again = Vec::new();
        other.for_each(|link| again.push(*link)).unwrap();
        assert_eq!(again, seen);
        assert!(!other.receive(&[0; 33]));
        assert!(!other.receive(&[0xff; 32]));
    }
}
