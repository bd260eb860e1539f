//! The removal of entries from a list that was made earlier, such as a query's answer.
//!
//! Time has passed since, so each entry is examined again: it is removed only if it has the same type and
//! inode, and the times and other properties that the list gives, and if a filter still selects it. No link is followed on the way
//! to it, and directories are never removed.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

use nacre_walk::Time;
use nacre_walk::directory::{self, Identity};
use nacre_walk::filter::Filter;
use nacre_walk::{FileKind, Metadata};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::control::Control;
use crate::error::{EntryError, EntryErrors};

const ATTEMPTED: &str = "cannot remove";

/// The number of entries that a thread is given at once.
const PORTION: usize = 256;

/// An entry as a list describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listed {
    /// The path, absolute or from the working directory.
    pub path: Vec<u8>,
    /// The inode, which identifies the entry.
    pub inode: u64,
    /// The device, if the list has it.
    pub device: Option<u64>,
    /// The type, if the list has it.
    pub kind: Option<FileKind>,
    /// The apparent size, if the list has it.
    pub size: Option<u64>,
    /// The time of the last modification in nanoseconds since the epoch, and how exact that is.
    pub modified_ns: Option<(i128, i128)>,
    /// The time of the last change of the inode, in the same way. No program can set it.
    pub changed_ns: Option<(i128, i128)>,
}

/// The maximum number of files with several names that are remembered.
const LINKED_MAX: usize = 1 << 20;

/// The files of which a name was removed and others are left, by device and inode, with the times of the last change of
/// their inodes: before the first removal, and after the last one. A removal changes that time for all other names.
type Linked = HashMap<Identity, (Time, Time)>;

/// The result of a removal from a list.
#[derive(Debug, Default)]
pub struct ListedRemoval {
    /// The number of entries that were removed, or would be.
    pub removed: AtomicU64,
    /// Their apparent size in bytes. Files with further names free nothing.
    pub bytes: AtomicU64,
    /// The number of entries that were not there any more.
    pub vanished: AtomicU64,
    /// The number of entries that a filter does not select any more, or never did.
    pub passed: AtomicU64,
    /// The entries that were not removed, with the reasons.
    pub failures: EntryErrors,
    /// The switch that stops it.
    pub control: Control,
    linked: Mutex<Linked>,
}

impl ListedRemoval {
    /// Removes what `next` gives until it is at its end, with several threads; with `dry` it only looks.
    ///
    /// # Errors
    /// The first error of `next`; its earlier entries are removed nevertheless.
    pub fn run<E>(
        &self,
        threads: NonZeroUsize,
        filter: Option<&Filter>,
        dry: bool,
        mut next: impl FnMut() -> Option<Result<Listed, E>>,
    ) -> Result<(), E> {
        let (sender, receiver) = sync_channel::<Vec<Listed>>(threads.get());
        let receiver = Mutex::new(receiver);
        std::thread::scope(|scope| {
            for _ in 0..threads.get() {
                scope.spawn(|| {
                    // The directory of the last entry, in which the next one often is.
                    let mut last = None;
                    loop {
                        let Ok(portion) = receiver.lock().recv() else { break };
                        for listed in portion {
                            if self.control.is_stopped() {
                                continue;
                            }
                            self.take(&listed, filter, dry, &mut last);
                        }
                    }
                });
            }
            let mut portion = Vec::with_capacity(PORTION);
            let mut result = Ok(());
            while !self.control.is_stopped() {
                match next() {
                    None => break,
                    Some(Ok(listed)) => portion.push(listed),
                    Some(Err(error)) => {
                        result = Err(error);
                        break;
                    }
                }
                if portion.len() == PORTION && sender.send(std::mem::take(&mut portion)).is_err() {
                    break;
                }
            }
            // The threads are there until the sender is gone.
            let _ = sender.send(portion);
            drop(sender);
            result
        })
    }

    fn take(
        &self,
        listed: &Listed,
        filter: Option<&Filter>,
        dry: bool,
        last: &mut Option<(Vec<u8>, OwnedFd)>,
    ) {
        match self.remove(listed, filter, dry, last) {
            Ok(Outcome::Removed(bytes)) => {
                self.removed.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Ok(Outcome::Vanished) => drop(self.vanished.fetch_add(1, Ordering::Relaxed)),
            Ok(Outcome::Passed) => drop(self.passed.fetch_add(1, Ordering::Relaxed)),
            Ok(Outcome::Kept(reason)) => {
                self.failures.add(EntryError::new(listed.path.clone(), ATTEMPTED, reason))
            }
            Err(errno) => self.failures.add(EntryError::new(listed.path.clone(), ATTEMPTED, errno)),
        }
    }
}

enum Outcome {
    Removed(u64),
    Vanished,
    Passed,
    Kept(&'static str),
}

impl ListedRemoval {
    fn remove(
        &self,
        listed: &Listed,
        filter: Option<&Filter>,
        dry: bool,
        last: &mut Option<(Vec<u8>, OwnedFd)>,
    ) -> Result<Outcome, Errno> {
        let slash = listed.path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = match slash {
            Some(0) => (&b"/"[..], &listed.path[1..]),
            Some(slash) => (&listed.path[..slash], &listed.path[slash + 1..]),
            None => (&b"."[..], &listed.path[..]),
        };
        if matches!(name, b"" | b"." | b"..") {
            return Ok(Outcome::Kept("the path has no name at its end"));
        }
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        if last.as_ref().is_none_or(|(known, _)| known != parent) {
            *last = match open(parent) {
                Ok(directory) => Some((parent.to_vec(), directory)),
                Err(Errno::NOENT) => return Ok(Outcome::Vanished),
                Err(Errno::LOOP) => {
                    return Ok(Outcome::Kept("a directory on its path is a symbolic link now"));
                }
                Err(errno) => return Err(errno),
            };
        }
        let Some((_, directory)) = last else { return Err(Errno::BADF) };
        let stat = || match directory::stat(directory.as_fd(), &name) {
            Ok(stat) => Ok(Some(Metadata(stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        };
        let Some(mut metadata) = stat()? else { return Ok(Outcome::Vanished) };
        if metadata.kind() == FileKind::Directory {
            return Ok(Outcome::Kept("it is a directory; those are removed by their own names"));
        }
        // Names of one file are removed one after the other: each removal changes the time that the next is checked by.
        let mut linked = None;
        if listed.changed_ns.is_some() {
            let known = self.linked.lock();
            if metadata.links() > 1 || known.contains_key(&directory::identity(&metadata.0)) {
                let Some(now) = stat()? else { return Ok(Outcome::Vanished) };
                metadata = now;
                linked = Some(known);
            }
        }
        let identity = directory::identity(&metadata.0);
        let changed = match linked.as_ref().and_then(|linked| linked.get(&identity)) {
            Some((before, after)) if *after == metadata.changed() => *before,
            _ => metadata.changed(),
        };
        if let Some(reason) = difference(listed, &metadata, changed) {
            return Ok(Outcome::Kept(reason));
        }
        if filter
            .is_some_and(|filter| !filter.matches_metadata(OsStr::from_bytes(name.to_bytes()), &metadata))
        {
            return Ok(Outcome::Passed);
        }
        if !dry {
            let opened = linked.as_ref().map(|_| open_entry(directory.as_fd(), &name)).transpose()?;
            match retry_on_intr(|| rustix::fs::unlinkat(&*directory, &*name, AtFlags::empty())) {
                Err(Errno::NOENT) => return Ok(Outcome::Vanished),
                other => other?,
            }
            if let (Some(linked), Some(opened)) = (&mut linked, opened) {
                remember(linked, identity, changed, opened.as_fd());
            }
        }
        Ok(Outcome::Removed(if metadata.links() > 1 { 0 } else { metadata.size() }))
    }
}

/// Returns the difference between an entry, whose inode was changed last at `changed`, and the listed one.
fn difference(listed: &Listed, now: &Metadata, changed: Time) -> Option<&'static str> {
    let differs = |then: Option<(i128, i128)>, now: Time| {
        let now = i128::from(now.seconds) * 1_000_000_000 + i128::from(now.nanoseconds);
        then.is_some_and(|(then, exact)| (then - now).abs() > exact)
    };
    if listed.inode != now.inode()
        || listed.device.is_some_and(|device| device != now.device())
        || listed.kind.is_some_and(|kind| kind != now.kind())
    {
        Some("it is another entry than the listed one")
    } else if listed.size.is_some_and(|size| size != now.size())
        || differs(listed.modified_ns, now.modified())
        || differs(listed.changed_ns, changed)
    {
        Some("it was changed since it was listed")
    } else {
        None
    }
}

/// Opens a directory, through no link at all.
fn open(path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = Path::new(OsStr::from_bytes(path));
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    retry_on_intr(|| rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve))
}

/// Opens an entry, whatever it is, to look at it after its name is gone.
fn open_entry(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(directory, name, flags, Mode::empty()))
}

/// Remembers the times of a file that has just lost a name, as long as it has others.
fn remember(linked: &mut Linked, identity: Identity, before: Time, opened: BorrowedFd<'_>) {
    let stat = rustix::fs::statx(opened, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    match stat.map(Metadata) {
        Ok(now) if directory::identity(&now.0) == identity && now.links() > 0 => {
            // What is not remembered is taken for changed, and stays.
            if linked.len() < LINKED_MAX || linked.contains_key(&identity) {
                linked.insert(identity, (before, now.changed()));
            }
        }
        _ => drop(linked.remove(&identity)),
    }
}
