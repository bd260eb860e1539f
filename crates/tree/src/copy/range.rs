//! Large files whose ranges several processes copy together.
//!
//! One process begins the file: it makes the unfinished copy and the record of its chunks. All copy chunks, each in its
//! place, and note it in the record. Then one process copies the file as if it were alone: it finds what was done in the
//! record, adds what is missing, and gives the copy its metadata and its name. So nothing depends on every range having
//! been copied, and a job that was killed is gone on with like any other copy.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nacre_walk::{FileKind, Unit};
use rustix::fs::{CWD, Mode, OFlags, Statx};
use rustix::io::{Errno, retry_on_intr};

use crate::copy::data::{BUFFER_BYTES, Halt, open_for_reading};
use crate::copy::destination::Destination;
use crate::copy::file::{CHUNKS, CopyError, Item, failed, is_sparse, stat_open, unfinished};
use crate::copy::record::{Record, is_own};
use crate::copy::{Copy, visitor};
use crate::error::EntryError;

const COPY: &str = "cannot copy";

/// The places of a file, found by its path.
struct Place {
    source: OwnedFd,
    name: CString,
    destination: Arc<Destination>,
}

/// A file of which this thread has copied a range, kept open for the next one.
pub struct OpenFile {
    path: Vec<u8>,
    source: OwnedFd,
    target: OwnedFd,
    record: Record,
    stat: Statx,
}

/// The state of a thread that copies ranges.
#[derive(Default)]
pub struct RangeCopier {
    open: Option<OpenFile>,
    buffer: Vec<u8>,
}

impl Copy {
    /// Opens the directories that a file and its copy are in, one name after the other, and never through a link.
    fn place(&self, path: &[u8]) -> Result<Place, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |directory: &OwnedFd, name: &CStr| {
            retry_on_intr(|| rustix::fs::openat(directory, name, flags, Mode::empty()))
        };
        let mut source = rustix::fs::openat(CWD, &self.source_path, flags, Mode::empty())?;
        let top = self.top().map_err(|_| Errno::NOENT)?;
        let mut destination = top.find(self.destination.name())?;
        let mut names = path.split(|byte| *byte == b'/').map(CString::new).peekable();
        while let Some(name) = names.next() {
            let name = name.map_err(|_| Errno::INVAL)?;
            if names.peek().is_none() {
                return Ok(Place { source, name, destination });
            }
            source = open(&source, &name)?;
            destination = destination.find(&name)?;
        }
        Err(Errno::NOENT)
    }

    fn failure(&self, unit: &Unit, errno: Errno) {
        self.shared.failures.add(EntryError::new(self.source.join(&unit.path), COPY, errno));
    }

    /// Begins a large file, and returns the numbers of the chunks that are to be copied: none if the file changed, or
    /// needs no copying by ranges. The second part is to be kept until the file is ended: it keeps other copies away.
    pub fn begin_ranges(&self, unit: &Unit) -> (Vec<u64>, Option<impl Send + use<>>) {
        let begun = self.place(&unit.path).map_err(not_found).and_then(|place| {
            let item = Item {
                shared: &self.shared,
                in_parts: false,
                source: place.source.as_fd(),
                source_name: &place.name,
                destination: &place.destination,
                name: &place.name,
            };
            item.begin_alone()
        });
        match begun {
            Ok(Some((finished, record))) => {
                let missing = finished.iter().enumerate().filter(|(_, finished)| !**finished);
                (missing.map(|(number, _)| number as u64).collect(), Some(record))
            }
            // Whoever ends it says what is wrong with it.
            Ok(None) | Err(_) => (Vec::new(), None),
        }
    }

    /// Copies a chunk of a large file, the one whose number is the unit's position.
    pub fn copy_range(&self, unit: &Unit, state: &mut RangeCopier) {
        if self.shared.control.is_stopped() {
            return;
        }
        let known = state.open.take().filter(|open| open.path == unit.path);
        let open = match known.map_or_else(|| self.open_range(&unit.path), Ok) {
            Ok(open) => open,
            // Whoever ends the file says what is wrong with it.
            Err(_) => return,
        };
        let chunk = unit.position.unwrap_or(0);
        let chunk_bytes = self.shared.options.chunk_bytes;
        let size = open.stat.stx_size;
        let from = chunk.saturating_mul(chunk_bytes).min(size);
        let to = from.saturating_add(chunk_bytes).min(size);
        state.buffer.resize(BUFFER_BYTES, 0);
        let pair = self.shared.pair(open.source.as_fd(), open.target.as_fd(), is_sparse(&open.stat));
        let copied = pair.copy(from, to, &mut state.buffer).and_then(|()| {
            if self.shared.options.fsync {
                rustix::fs::fdatasync(&open.target)?;
            }
            let chunk = u32::try_from(chunk).map_err(|_| Halt::Failed(Errno::OVERFLOW))?;
            Ok(open.record.add(chunk)?)
        });
        match copied {
            Ok(()) => state.open = Some(open),
            // What is missing is copied by whoever ends the file, who says what is wrong with it.
            Err(Halt::Stopped | Halt::Ended | Halt::Differs) => {}
            Err(Halt::Failed(Errno::NOSPC)) => self.failure(unit, Errno::NOSPC),
            Err(Halt::Failed(_)) => {}
        }
    }

    fn open_range(&self, path: &[u8]) -> Result<OpenFile, Errno> {
        let place = self.place(path)?;
        let directory = place.destination.descriptor()?;
        let source = open_for_reading(&place.source, &place.name)?;
        let stat = stat_open(source.as_fd())?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let target = unfinished(&place.name, b"");
        let target = retry_on_intr(|| rustix::fs::openat(&directory, &target, flags, Mode::empty()))?;
        if !is_own(target.as_fd()) {
            return Err(Errno::PERM);
        }
        let record = Record::join(directory.as_fd(), &unfinished(&place.name, CHUNKS))?;
        Ok(OpenFile { path: path.to_vec(), source, target, record, stat })
    }

    /// Ends a large file: copies what no process has copied, and gives the copy its metadata and its name.
    pub fn end_ranges(&self, unit: &Unit) {
        if self.shared.control.is_stopped() {
            return;
        }
        let mut buffer = Vec::new();
        let done = self.place(&unit.path).map_err(not_found).and_then(|place| {
            let item = Item {
                shared: &self.shared,
                in_parts: false,
                source: place.source.as_fd(),
                source_name: &place.name,
                destination: &place.destination,
                name: &place.name,
            };
            item.copy(FileKind::File, &mut buffer)
        });
        visitor::account(&self.shared, FileKind::File, done, || self.source.join(&unit.path));
    }
}

fn not_found(errno: Errno) -> CopyError {
    match errno {
        Errno::NOENT => CopyError::Vanished,
        errno => failed(COPY)(errno),
    }
}
