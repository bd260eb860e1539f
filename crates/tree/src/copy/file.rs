//! Copying one entry that is not a directory: it is examined on both sides, copied to a temporary name, and renamed
//! when it is complete.

mod large;
mod linked;
mod special;
mod unfinished;

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use large::BUSY;
use nacre_walk::directory::{self, Identity, identity};
use nacre_walk::{FileKind, Metadata, Time};
use rustix::fs::{AtFlags, Statx, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
pub use unfinished::{CHUNKS, is_unfinished, unfinished};
use unfinished::{PRIVATE, create, remove};

use crate::copy::Shared;
use crate::copy::attributes::{Attributes, Named};
use crate::copy::data::{BUFFER_BYTES, Halt, Pair, SHORT_BYTES, forget, open_for_reading};
use crate::copy::destination::{Destination, ONE, Open};
use crate::copy::job::{Job, Task};
use crate::error::Cause;
use crate::root::identity_of;

/// The part that this process has in copying an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It copies the entry alone.
    Alone,
    /// It leaves the entry for later if others have to do with it: large files, and files with several names.
    First,
    /// It is given all names of the file, and leaves it for later if it is large.
    Names,
    /// It ends a large file whose ranges were copied by several processes, which have counted their bytes.
    Last,
}

/// The reason why an entry is left for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    /// It has several names, all of which one process copies; with the number of its inode.
    Linked(u64),
    /// It is a large file, whose ranges are shared out.
    Large,
}

/// The result of copying an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Copied,
    Linked,
    Unchanged,
    /// Copied, but it changed during each attempt.
    Unsettled,
    /// Left for later.
    Later(Later),
}

/// The reason why an entry was not copied.
#[derive(Debug)]
pub enum CopyError {
    /// The entry no longer exists.
    Vanished,
    /// The copy was asked to stop.
    Stopped,
    /// The file ended before its stated size.
    Ended,
    /// The attempted operation, and the cause of its failure.
    Failed(&'static str, Cause),
}

pub const COPY: &str = "cannot copy";
const WRITE: &str = "cannot write the copy of";
const READ: &str = "cannot read";
const STAT: &str = "cannot stat the copy of";
const KEEP: &str = "cannot keep owner, mode, attributes or times of";

/// The reason why a file that ends early without having changed is not copied.
pub const ENDED: &str = "reading it ends before the size that it says";

/// The maximum number of attempts to copy a file that changes meanwhile.
const ATTEMPTS: u32 = 2;

pub fn failed<C: Into<Cause>>(attempted: &'static str) -> impl Fn(C) -> CopyError {
    move |cause| CopyError::Failed(attempted, cause.into())
}

/// Returns the error with a source that is named: that it no longer exists is no failure.
pub fn gone_or(attempted: &'static str) -> impl Fn(Errno) -> CopyError {
    move |errno| match errno {
        Errno::NOENT => CopyError::Vanished,
        errno => failed(attempted)(errno),
    }
}

/// An entry to be copied.
pub struct Item<'a> {
    pub shared: &'a Shared,
    pub role: Role,
    /// The directory that the entry is in, and its name there.
    pub source: BorrowedFd<'a>,
    pub source_name: &'a CStr,
    /// The directory that the copy is made in, and its name there.
    pub destination: &'a Arc<Destination>,
    pub name: &'a CStr,
}

impl Item<'_> {
    /// Copies the entry if its copy is missing or differs.
    pub fn copy(&self, kind: FileKind, buffer: &mut Vec<u8>) -> Result<Done, CopyError> {
        if kind == FileKind::File {
            return self.copy_file(buffer);
        }
        let stat = directory::stat(self.source, self.source_name).map_err(gone_or(READ))?;
        if Metadata(stat).kind() != kind {
            return Err(failed(COPY)("it was replaced by something else meanwhile"));
        }
        self.with_links(&stat, buffer, |_| self.copy_special(kind, &stat))
    }

    fn copy_file(&self, buffer: &mut Vec<u8>) -> Result<Done, CopyError> {
        if self.is_unchanged_at_a_glance()? {
            return Ok(Done::Unchanged);
        }
        let mut accessed = None;
        for attempt in 1..=ATTEMPTS {
            let source = Arc::new(self.open_source()?);
            let mut before = stat_open(source.as_fd()).map_err(failed(READ))?;
            // Where reading changes this time, an attempt that failed has.
            before.stx_atime = *accessed.get_or_insert(before.stx_atime);
            if Metadata(before).kind() != FileKind::File {
                return Err(failed(COPY)("it was replaced by something else meanwhile"));
            }
            let last = attempt == ATTEMPTS;
            let done =
                self.with_links(&before, buffer, |buffer| self.copy_opened(&source, &before, last, buffer))?;
            if let Some(done) = done {
                return Ok(done);
            }
        }
        Err(failed(COPY)("it changes while it is copied, twice"))
    }

    fn open_source(&self) -> Result<OwnedFd, CopyError> {
        open_for_reading(self.source, self.source_name).map_err(|errno| match errno {
            Errno::NOENT => CopyError::Vanished,
            // A server says so of a file that was removed, and also of one that it has lost sight of: only a look tells.
            Errno::STALE if self.is_gone() => CopyError::Vanished,
            Errno::LOOP => failed(COPY)("it became a symbolic link while it was looked at"),
            errno => failed("cannot open")(errno),
        })
    }

    /// Returns whether the source is known not to exist any more.
    fn is_gone(&self) -> bool {
        directory::stat(self.source, self.source_name).is_err_and(|errno| errno == Errno::NOENT)
    }

    /// Returns true if the copy exists and does not differ as far as can be told without opening either file; false if
    /// that cannot be decided so.
    fn is_unchanged_at_a_glance(&self) -> Result<bool, CopyError> {
        if self.destination.fresh || self.destination.is_top() || self.shared.options.checksum {
            return Ok(false);
        }
        let Ok(source) = directory::stat(self.source, self.source_name) else { return Ok(false) };
        let Ok(Some(there)) = self.destination.stat(self.name) else { return Ok(false) };
        let same = [&source, &there].iter().all(|stat| Metadata(**stat).kind() == FileKind::File)
            && source.stx_nlink == 1
            && source.stx_size == there.stx_size
            && modified(&source) == modified(&there)
            && identity(&source) != identity(&there)
            && self.shared.keeper.is_kept(&source, &there);
        if !same {
            return Ok(false);
        }
        let directory = self.destination.descriptor().map_err(failed(WRITE))?;
        let bare = self.shared.keeper.is_bare(&Named { directory: self.source, name: self.source_name })
            && self.shared.keeper.is_bare(&Named { directory: directory.as_fd(), name: self.name });
        if bare && !self.destination.claim(&there, self.name).map_err(failed(STAT))? {
            return Err(failed(COPY)(ONE));
        }
        if bare {
            self.shared.counters.bytes.fetch_add(source.stx_size, Ordering::Relaxed);
        }
        Ok(bare)
    }

    /// Returns the entry that exists at the destination, if there is one; an error if it must not be replaced. It may be
    /// `first`, the copy of another name of the source's inode.
    fn existing(&self, source: &Statx, first: Option<Identity>) -> Result<Option<Statx>, CopyError> {
        if self.destination.fresh {
            return Ok(None);
        }
        let existing = self.destination.stat(self.name).map_err(failed(STAT))?;
        // A directory that is listed under another name may be the copy of that, with everything in it.
        if existing.is_some_and(|stat| Metadata(stat).kind() == FileKind::Directory)
            && !self.destination.lists(self.name).map_err(failed(STAT))?
        {
            return Err(failed(COPY)(ONE));
        }
        if let Some(stat) = &existing
            && first != Some(identity(stat))
            && !self.destination.claim(stat, self.name).map_err(failed(STAT))?
        {
            return Err(failed(COPY)(ONE));
        }
        match existing {
            Some(stat) if Metadata(stat).kind() == FileKind::Directory && self.shared.options.mirror => {
                match self.shared.remove_extra(self.destination, self.name, || self.name.to_bytes().to_vec())
                {
                    true => {
                        self.destination.note_removed(identity(&stat));
                        Ok(None)
                    }
                    false => Err(failed(COPY)("the directory in its place cannot be removed")),
                }
            }
            Some(stat) if Metadata(stat).kind() == FileKind::Directory => {
                Err(failed(COPY)("a directory is in its place at the destination"))
            }
            Some(stat)
                if is_in_the_way(source, &stat, self.destination.is_top()) && !self.shared.options.force =>
            {
                Err(failed(COPY)("a device is in its place at the destination; --force replaces it"))
            }
            existing => Ok(existing),
        }
    }

    /// Makes an entry in its place, or under a temporary name that is then renamed if the place is occupied.
    fn place(
        &self,
        occupied: bool,
        directory: &Open,
        make: impl Fn(&CStr) -> Result<(), Errno>,
    ) -> Result<(), CopyError> {
        if !occupied {
            match make(self.name) {
                Err(Errno::EXIST) => self.check_own()?,
                created => return created.map_err(failed(WRITE)),
            }
        }
        let name = unfinished(self.name, b"");
        let mut created = make(&name);
        if created == Err(Errno::EXIST) {
            remove(directory, &name);
            created = make(&name);
        }
        created.map_err(failed(WRITE))?;
        let moved = rustix::fs::renameat(directory, &name, directory, self.name);
        // Moving one name of a file over another one of the same leaves both.
        remove(directory, &name);
        moved.map_err(failed(WRITE))
    }

    /// Fails if the entry that appeared under the name is listed under another one, and so is the copy of that. Otherwise
    /// it is this entry, met again, or made by somebody else.
    fn check_own(&self) -> Result<(), CopyError> {
        match self.destination.is_top() || self.destination.lists(self.name).map_err(failed(STAT))? {
            true => Ok(()),
            false => Err(failed(COPY)(ONE)),
        }
    }

    /// Copies an open file; `None` if it changed meanwhile, unless this is the last attempt.
    fn copy_opened(
        &self,
        source: &Arc<OwnedFd>,
        before: &Statx,
        last: bool,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Done>, CopyError> {
        let shared = self.shared;
        buffer.resize(BUFFER_BYTES, 0);
        let existing = self.existing(before, None)?;
        if let Some(existing) = &existing
            && self.is_unchanged(source, before, existing, buffer)?
        {
            // Comparing the contents has counted them.
            if !shared.options.checksum {
                shared.counters.bytes.fetch_add(before.stx_size, Ordering::Relaxed);
            }
            if self.destination.is_top() {
                self.clean();
            }
            return Ok(Some(Done::Unchanged));
        }
        if matches!(self.role, Role::First | Role::Names) && before.stx_size > shared.options.chunk_bytes {
            return Ok(Some(Done::Later(Later::Large)));
        }
        let directory = self.destination.descriptor().map_err(failed(WRITE))?;
        // A file that is copied alone is recorded whatever its size: nothing else keeps two copies of it apart.
        let large = before.stx_size > shared.options.chunk_bytes || self.destination.is_top();
        let (name, chunks) = (unfinished(self.name, b""), unfinished(self.name, CHUNKS));
        let created = if large {
            let filled = self.fill_large(source, before, &directory, &name, &chunks, buffer);
            filled.map(|(target, record)| (target, record, None))
        } else {
            let filled = self.fill_small(source, before, &directory, &name, buffer);
            filled.map(|(target, extended)| (target, None, Some(extended)))
        };
        // The record, and with it its lock, is kept until the copy has its name.
        let (finished, _record) = match created {
            Ok((target, record, extended)) => {
                let names = (&*name, existing.is_some());
                (self.finish(source, before, last, (&*target, extended), &directory, names), record)
            }
            Err(CopyError::Ended) => (self.ended(source, before, last), None),
            Err(error) => (Err(error), None),
        };
        match &finished {
            // An unfinished large file stays for the next run; of a small one there is nothing to save.
            Err(CopyError::Stopped) if large => return finished,
            // Another copy is at it: its files are its own.
            Err(CopyError::Failed(_, Cause::Other(BUSY))) => return finished,
            Ok(Some(_)) => {}
            _ => remove(&directory, &name),
        }
        if large {
            remove(&directory, &chunks);
        }
        finished
    }

    /// Returns true if the existing copy is good; missing metadata is added.
    fn is_unchanged(
        &self,
        source: &Arc<OwnedFd>,
        stat: &Statx,
        existing: &Statx,
        buffer: &mut [u8],
    ) -> Result<bool, CopyError> {
        let (shared, keeper) = (self.shared, &self.shared.keeper);
        if identity(existing) == identity(stat) {
            return Ok(true);
        }
        let same_time = modified(existing) == modified(stat);
        if Metadata(*existing).kind() != FileKind::File
            || existing.stx_size != stat.stx_size
            || !same_time && !shared.options.checksum
        {
            return Ok(false);
        }
        let directory = self.destination.descriptor().map_err(failed(WRITE))?;
        // What cannot be opened is replaced.
        let Ok(copy) = open_for_reading(&directory, self.name) else { return Ok(false) };
        let copy = Arc::new(copy);
        if stat_open(copy.as_fd()).map_or(true, |stat| identity(&stat) != identity(existing)) {
            return Ok(false);
        }
        if shared.options.checksum {
            match shared.compare((source, &copy), stat, buffer) {
                Ok(()) => {}
                Err(Halt::Differs | Halt::Ended) => return Ok(false),
                Err(Halt::Stopped) => return Err(CopyError::Stopped),
                Err(Halt::Failed(errno)) => return Err(failed(READ)(errno)),
            }
        }
        let kept = same_time
            && keeper.is_kept(stat, existing)
            && keeper.same_extended(source.as_fd(), copy.as_fd()).map_err(failed(KEEP))?;
        if kept {
            return Ok(true);
        }
        // Another name of the same file, perhaps outside, must not be changed with it.
        if existing.stx_nlink > 1 {
            return Ok(false);
        }
        keeper.apply(source.as_fd(), stat, copy.as_fd(), true).map_err(failed(KEEP))?;
        Ok(true)
    }

    /// Returns the copy, which has no metadata and its temporary name yet, and the extended attributes that the source had before.
    fn fill_small(
        &self,
        source: &Arc<OwnedFd>,
        before: &Statx,
        directory: &Open,
        name: &CStr,
        buffer: &mut [u8],
    ) -> Result<(Arc<OwnedFd>, Attributes), CopyError> {
        let keeper = &self.shared.keeper;
        let extended = keeper.extended(source.as_fd()).map_err(failed(KEEP))?;
        let mode = keeper.early_mode(before, &extended, self.destination.group);
        let mode = mode.filter(|_| !self.destination.inherits).unwrap_or(PRIVATE);
        let target = create(directory, name, mode).map_err(failed(WRITE))?;
        let pair = self.shared.pair(source.as_fd(), target.as_fd(), is_sparse(before));
        if before.stx_size > SHORT_BYTES && pair.share() {
            self.shared.counters.bytes.fetch_add(before.stx_size, Ordering::Relaxed);
            return Ok((Arc::new(target), extended));
        }
        match before.stx_size {
            0 => drop(pair.copy_to_end(buffer).map_err(halted)?),
            size => pair.copy(0, size, buffer).map_err(halted)?,
        }
        self.end_in_hole(before, &target)?;
        Ok((Arc::new(target), extended))
    }

    fn end_in_hole(&self, before: &Statx, target: &OwnedFd) -> Result<(), CopyError> {
        if is_sparse(before) {
            rustix::fs::ftruncate(target, before.stx_size).map_err(failed(WRITE))?;
        }
        Ok(())
    }

    /// Decides about a source that ended early, either because it was truncated meanwhile, or because its stated size
    /// is wrong.
    fn ended(&self, source: &OwnedFd, before: &Statx, last: bool) -> Result<Option<Done>, CopyError> {
        let after = stat_open(source.as_fd()).map_err(failed(READ))?;
        match (has_changed(before, &after), last) {
            (false, _) => Err(CopyError::Ended),
            (true, false) => Ok(None),
            (true, true) => Err(failed(COPY)("it changes while it is copied")),
        }
    }

    /// Gives a complete copy its metadata and its name; `None` if the source changed since, unless this is the last
    /// attempt. Otherwise a file that is written to continuously, such as a log, would never be copied. The copy replaces
    /// an entry only if its place is occupied. Extended attributes that were read after `before` are read again if the inode of the
    /// source was changed since.
    fn finish(
        &self,
        source: &Arc<OwnedFd>,
        before: &Statx,
        last: bool,
        (target, extended): (&OwnedFd, Option<Attributes>),
        directory: &Open,
        (name, occupied): (&CStr, bool),
    ) -> Result<Option<Done>, CopyError> {
        let mut stat = stat_open(source.as_fd()).map_err(failed(READ))?;
        let changed = has_changed(before, &stat);
        if changed && !last {
            return Ok(None);
        }
        // Times from before it was read: reading may have changed one, and by the other the next copy is to see that the
        // source has changed since.
        (stat.stx_atime, stat.stx_mtime) = (before.stx_atime, before.stx_mtime);
        let (keeper, inherits) = (&self.shared.keeper, self.destination.inherits);
        let extended = match extended {
            Some(extended) if Metadata(stat).changed() == Metadata(*before).changed() => extended,
            _ => keeper.extended(source.as_fd()).map_err(failed(KEEP))?,
        };
        keeper.give(&extended, &stat, target.as_fd(), inherits).map_err(failed(KEEP))?;
        if self.shared.options.fsync {
            rustix::fs::fsync(target).map_err(failed(WRITE))?;
        }
        if self.destination.has_claims() {
            // Before it has its name: from then on, another name may find it.
            let made = identity_of(target.as_fd()).map_err(failed(WRITE))?;
            self.destination.note_made(made, self.name, name);
        }
        let mut occupied = occupied || self.destination.is_top();
        if !occupied {
            match self.destination.rename_new(directory, name, self.name, &self.shared.cuts) {
                Err(Errno::EXIST) => {
                    self.check_own()?;
                    occupied = true;
                }
                renamed => renamed.map_err(failed(WRITE))?,
            }
        }
        if occupied {
            retry_on_intr(|| rustix::fs::renameat(directory, name, directory, self.name))
                .map_err(failed(WRITE))?;
        }
        self.shared.counters.bytes_copied.fetch_add(before.stx_size, Ordering::Relaxed);
        Ok(Some(if changed { Done::Unsettled } else { Done::Copied }))
    }
}

fn halted(halt: Halt) -> CopyError {
    match halt {
        Halt::Stopped => CopyError::Stopped,
        Halt::Failed(errno) => failed(COPY)(errno),
        Halt::Ended => CopyError::Ended,
        Halt::Differs => failed(COPY)("it changes while it is copied"),
    }
}

fn has_changed(before: &Statx, after: &Statx) -> bool {
    (after.stx_size, modified(after)) != (before.stx_size, modified(before))
}

/// Returns whether the existing entry is a device that is not the source's: it is replaced only on request. The same
/// holds for a pipe or socket that is the place of the copy itself (`named`); in a tree these come and go with the
/// source's.
pub fn is_in_the_way(source: &Statx, there: &Statx, named: bool) -> bool {
    let about = |stat: &Statx| (Metadata(*stat).kind(), Metadata(*stat).special_device());
    let special = match about(there).0 {
        FileKind::CharacterDevice | FileKind::BlockDevice => true,
        FileKind::Pipe | FileKind::Socket => named,
        _ => false,
    };
    special && about(there) != about(source)
}

fn modified(stat: &Statx) -> Time {
    Metadata(*stat).modified()
}

pub fn is_sparse(stat: &Statx) -> bool {
    stat.stx_blocks.saturating_mul(512) < stat.stx_size
}

pub fn stat_open(file: BorrowedFd<'_>) -> Result<Statx, Errno> {
    retry_on_intr(|| rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS))
}

impl Shared {
    /// Pairs two open files to copy or compare their contents.
    pub fn pair<'a>(&'a self, source: BorrowedFd<'a>, target: BorrowedFd<'a>, sparse: bool) -> Pair<'a> {
        let (control, cuts, bytes) = (&self.control, &self.cuts, &self.counters.bytes);
        Pair { source, target, sparse, control, cuts, bytes }
    }

    /// Compares two files of the same size.
    pub fn compare(
        &self,
        (source, copy): (&Arc<OwnedFd>, &Arc<OwnedFd>),
        stat: &Statx,
        buffer: &mut [u8],
    ) -> Result<(), Halt> {
        if self.verifying() {
            forget(copy);
        }
        if stat.stx_size == 0 {
            return self.pair(source.as_fd(), copy.as_fd(), false).compare_to_end(buffer);
        }
        if stat.stx_size <= self.options.chunk_bytes {
            return self.pair(source.as_fd(), copy.as_fd(), false).compare(0, stat.stx_size, buffer);
        }
        let job = Job::new(
            (Arc::clone(source), Arc::clone(copy)),
            (stat.stx_size, false),
            (self.options.chunk_bytes, Vec::new()),
            Task::Compare,
        );
        self.run(job, buffer)
    }
}
