//! Large files, which are copied in chunks: what an earlier run has begun is continued, and several processes share the chunks.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_walk::directory::identity;
use nacre_walk::{FileKind, Metadata};
use rustix::fs::{Mode, OFlags, Statx};
use rustix::io::Errno;

use super::{
    CHUNKS, COPY, CopyError, Item, PRIVATE, READ, Role, WRITE, create, failed, halted, is_sparse, remove,
    stat_open, unfinished,
};
use crate::copy::Shared;
use crate::copy::destination::Open;
use crate::copy::job::{Job, Task};
use crate::copy::record::{Record, Subject, is_own};
use crate::error::Cause;

/// The chunks of a file that are finished, and their record.
pub type Chunks = (Vec<bool>, Arc<Record>);

/// A large file that was begun.
struct Begun {
    target: Arc<OwnedFd>,
    /// The record of finished chunks, and with it its lock.
    record: Arc<Record>,
    /// The chunks that are finished; `None` if the target shares all blocks of the source.
    finished: Option<Vec<bool>>,
}

/// The reason when another copy holds the unfinished file.
pub(super) const BUSY: &str = "another copy is writing it at the moment";

impl Item<'_> {
    pub(super) fn fill_large(
        &self,
        source: &Arc<OwnedFd>,
        before: &Statx,
        directory: &Open,
        name: &CStr,
        chunks: &CStr,
        buffer: &mut [u8],
    ) -> Result<(Arc<OwnedFd>, Option<Arc<Record>>), CopyError> {
        let shared = self.shared;
        let Begun { target, record, finished } =
            self.begin_large(source, before, directory, (name, chunks))?;
        let Some(finished) = finished else {
            shared.counters.bytes.fetch_add(before.stx_size, Ordering::Relaxed);
            return Ok((target, Some(record)));
        };
        let counted = self.role == Role::Last;
        if !counted {
            let resumed = finished.iter().filter(|finished| **finished).count() as u64;
            shared.counters.chunks_resumed.fetch_add(resumed, Ordering::Relaxed);
        }
        if before.stx_size == 0 {
            let pair = shared.pair(source.as_fd(), target.as_fd(), false);
            pair.copy_to_end(buffer).map_err(halted)?;
            return Ok((target, Some(record)));
        }
        let mut job = Job::new(
            (Arc::clone(source), Arc::clone(&target)),
            (before.stx_size, is_sparse(before)),
            (shared.options.chunk_bytes, finished),
            Task::Copy { record: Arc::clone(&record), durable: shared.keeps_chunks() },
        );
        job.counted = counted;
        shared.run(job, buffer).map_err(halted)?;
        Ok((target, Some(record)))
    }

    /// Begins a large file, or finds what an earlier run has begun of it.
    fn begin_large(
        &self,
        source: &OwnedFd,
        before: &Statx,
        directory: &Open,
        (name, chunks): (&CStr, &CStr),
    ) -> Result<Begun, CopyError> {
        let shared = self.shared;
        let open = || {
            let record = Record::open(directory.as_fd(), chunks).map_err(|errno| match errno {
                Errno::WOULDBLOCK => CopyError::Failed(COPY, Cause::Other(BUSY)),
                errno => failed(WRITE)(errno),
            });
            record.map(Arc::new)
        };
        let mut record = open()?;
        let subject = |target: &OwnedFd| {
            let target = stat_open(target.as_fd()).map_err(failed(WRITE))?;
            Ok(shared.subject(before, &target))
        };
        let count = before.stx_size.div_ceil(shared.options.chunk_bytes) as usize;
        let mut finished = vec![false; count];
        // The beginning that an earlier run made, if it is of the same file.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let begun = rustix::fs::openat(directory, name, flags, Mode::empty())
            .ok()
            .filter(|target| is_own(target.as_fd()));
        if let Some(target) = begun
            && let Some(numbers) = record.finished(&subject(&target)?).map_err(failed(WRITE))?
        {
            for number in numbers {
                if let Some(chunk) = finished.get_mut(number as usize) {
                    *chunk = true;
                }
            }
            return Ok(Begun { target: Arc::new(target), record, finished: Some(finished) });
        }
        // A process of a run before, of which its launcher has lost sight, may still add what it has copied to the old file.
        // Before the new file has its name: whoever finds that one finds the new record, too.
        if !record.is_empty().map_err(failed(WRITE))? {
            remove(directory, chunks);
            record = open()?;
        }
        let target = create(directory, name, PRIVATE).map_err(failed(WRITE))?;
        if shared.pair(source.as_fd(), target.as_fd(), false).share() {
            return Ok(Begun { target: Arc::new(target), record, finished: None });
        }
        rustix::fs::ftruncate(&target, before.stx_size).map_err(failed(WRITE))?;
        record.begin(&subject(&target)?).map_err(failed(WRITE))?;
        Ok(Begun { target: Arc::new(target), record, finished: Some(finished) })
    }

    /// Begins a large file whose ranges several processes copy: returns which of its chunks are finished, and its record,
    /// which is locked while it is kept; `None` if there is nothing to share out.
    pub fn begin_ranges(&self) -> Result<Option<Chunks>, CopyError> {
        let source = self.open_source()?;
        let before = stat_open(source.as_fd()).map_err(failed(READ))?;
        let chunk_bytes = self.shared.options.chunk_bytes;
        if Metadata(before).kind() != FileKind::File || before.stx_size <= chunk_bytes {
            return Ok(None);
        }
        let directory = self.destination.descriptor().map_err(failed(WRITE))?;
        let (name, chunks) = (unfinished(self.name, b""), unfinished(self.name, CHUNKS));
        let Begun { record, finished, .. } =
            self.begin_large(&source, &before, &directory, (&name, &chunks))?;
        let Some(finished) = finished else { return Ok(None) };
        let counters = &self.shared.counters;
        for (number, _) in finished.iter().enumerate().filter(|(_, finished)| **finished) {
            let bytes = chunk_bytes.min(before.stx_size - number as u64 * chunk_bytes);
            counters.bytes.fetch_add(bytes, Ordering::Relaxed);
            counters.chunks_resumed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some((finished, record)))
    }

    /// Removes the remains of a run that was killed just after it gave the copy its name.
    pub(super) fn clean(&self) {
        let chunks = unfinished(self.name, CHUNKS);
        if let Ok(Some(_)) = self.destination.stat(&chunks)
            && let Ok(directory) = self.destination.descriptor()
            && let Ok(_record) = Record::open(directory.as_fd(), &chunks)
        {
            remove(&directory, &unfinished(self.name, b""));
            remove(&directory, &chunks);
        }
    }
}

impl Shared {
    /// Returns what the record of a large file's chunks belongs to.
    pub fn subject<'a>(&self, source: &'a Statx, target: &Statx) -> Subject<'a> {
        let (chunk_bytes, boot, together) = (self.options.chunk_bytes, self.boot, self.together);
        let (target, target_bytes) = (identity(target), target.stx_size);
        Subject { source, chunk_bytes, target, target_bytes, boot, together }
    }

    /// Returns whether chunks are made durable before they are recorded: on request, and where other machines write
    /// other chunks, any of which may go down.
    pub fn keeps_chunks(&self) -> bool {
        self.options.fsync || self.together
    }
}
