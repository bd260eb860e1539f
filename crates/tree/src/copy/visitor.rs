//! The visitor that copies the source.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_walk::Directory;
use nacre_walk::WalkError;
use nacre_walk::directory;
use nacre_walk::filter::Choice;
use nacre_walk::{Entry, FileKind, Metadata};
use nacre_walk::{Opened, Verdict, Visitor};
use rustix::fs::Statx;
use rustix::io::Errno;

use crate::copy::destination::{Destination, Obstacle};
use crate::copy::file::{CopyError, Done, Item, Role, is_unfinished};
use crate::copy::mounts::{UNMOUNTED, is_unmounted, spare};
use crate::copy::range::{LeftOver, Leftovers};
use crate::copy::{DURABLE, Shared, file};
use crate::error::{Cause, EntryError};
use crate::remove::ROUNDS_MAX;
use crate::root::Root;

const MAKE: &str = "cannot create the copy of the directory";
const MIRROR: &str = "cannot find out what the mirror has and the source has not, in";
/// The reason why nothing is removed from a directory in which a name of the source may stand for another one.
pub const FOLDS: &str = "the destination's file system takes two names for one in this directory (it ignores case, or \
                         converts Unicode), so that this may be the copy of another name";
pub const SPARE: &str = "not removed:";
const KEEP: &str = "cannot keep owner, mode, attributes or times of";

/// The visitor of one thread.
#[derive(derive_more::Debug)]
#[debug("Copier")]
pub struct Copier<'a> {
    shared: &'a Shared,
    top: &'a Arc<Destination>,
    destination: &'a Root,
    /// The receiver of what is left for later, if other processes copy other parts.
    leftovers: Option<Leftovers<'a>>,
    buffer: Vec<u8>,
    /// The number of entries that were up to date and are not counted yet: threads that all count each entry at one place
    /// hold each other up.
    unchanged: u64,
}

/// The maximum number of entries that a thread has not counted yet.
const UNCOUNTED_MAX: u64 = 64;

impl<'a> Copier<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        top: &'a Arc<Destination>,
        destination: &'a Root,
        leftovers: Option<Leftovers<'a>>,
    ) -> Copier<'a> {
        Copier { shared, top, destination, leftovers, buffer: Vec::new(), unchanged: 0 }
    }

    /// Adds the entries that were up to date to the counts of all threads.
    fn count_unchanged(&mut self) {
        let unchanged = std::mem::take(&mut self.unchanged);
        if unchanged > 0 {
            self.shared.counters.unchanged.fetch_add(unchanged, Ordering::Relaxed);
            self.shared.counters.entries.fetch_add(unchanged, Ordering::Relaxed);
        }
    }
}

/// A directory of the source that is done, and its copy.
pub struct Ending<'a> {
    pub shared: &'a Shared,
    /// The root of the copy.
    pub root: &'a Root,
    pub source: BorrowedFd<'a>,
    pub destination: &'a Destination,
    /// The path of the source.
    pub path: &'a dyn Fn() -> Vec<u8>,
    /// The path below the root.
    pub below: &'a dyn Fn() -> Vec<u8>,
}

impl Ending<'_> {
    /// Removes what does not belong in the copy of a directory, and then gives it the directory's metadata.
    pub fn end(&self) {
        let counters = &self.shared.counters;
        counters.directories.fetch_add(1, Ordering::Relaxed);
        counters.entries.fetch_add(1, Ordering::Relaxed);
        if let Err(errno) = self.try_end() {
            let error = CopyError::Failed(KEEP, Errno::into(errno));
            account(self.shared, FileKind::Directory, Err(error), self.path);
        }
    }

    fn try_end(&self) -> Result<(), Errno> {
        let Ending { shared, destination, source, path, .. } = self;
        let mut stat = file::stat_open(*source)?;
        let target = destination.descriptor()?;
        let mut there = match destination.fresh {
            true => None,
            false => Some(file::stat_open(target.as_fd())?),
        };
        // Others may have made something in it that this machine does not see at once.
        let is_quiet = !shared.together && there.is_some_and(|there| is_quiet_since(&stat, &there));
        if !destination.fresh && !is_quiet {
            destination.remove_chosen(is_unfinished)?;
        }
        if shared.options.mirror && !destination.fresh {
            if let Err(errno) = self.remove_extras() {
                shared.failures.add(EntryError::new(path(), MIRROR, errno));
            }
            stat = file::stat_open(*source)?;
            there = Some(file::stat_open(target.as_fd())?);
        }
        if let Some(accessed) = destination.accessed {
            (stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec) = (accessed.seconds, accessed.nanoseconds);
        }
        let is_applied = match &there {
            Some(there) if is_quiet => shared.keeper.is_applied(*source, &stat, (target.as_fd(), there))?,
            _ => false,
        };
        if !is_applied {
            let used = destination.inherits || !destination.fresh;
            shared.keeper.apply(*source, &stat, target.as_fd(), used)?;
        }
        // The file system that the whole copy is in is made durable at its end.
        if shared.options.fsync
            && destination.mounted
            && let Err(errno) = rustix::fs::syncfs(&*target)
        {
            shared.failures.add(EntryError::new(path(), DURABLE, errno));
        }
        Ok(())
    }

    /// Removes entries that are in the copy of a directory and not in the directory.
    fn remove_extras(&self) -> Result<(), Errno> {
        let Ending { shared, destination, source, .. } = self;
        let mut folds = None;
        let unmounted = is_unmounted(shared, *source, destination)?;
        // Some file systems leave out entries of a directory while others are removed from it.
        for _ in 0..ROUNDS_MAX {
            let mut removed = false;
            destination.each_beyond(source, |name| {
                // Asked before the first one is removed, and only if there is one.
                let folds = *folds.get_or_insert_with(|| destination.answers_to_unlisted(source));
                let shown = || {
                    let below = [&(self.below)(), &b"/"[..], name.to_bytes()].concat();
                    self.root.join(&below)
                };
                match folds {
                    _ if shared.control.is_stopped() => {}
                    _ if unmounted => shared.failures.add(EntryError::new(shown(), SPARE, UNMOUNTED)),
                    Ok(false) => removed |= shared.remove_extra(destination, name, shown),
                    Ok(true) => shared.failures.add(EntryError::new(shown(), SPARE, FOLDS)),
                    Err(_) => {}
                }
            })?;
            if let Some(Err(errno)) = folds {
                return Err(errno);
            }
            if !removed {
                break;
            }
        }
        Ok(())
    }
}

/// Returns whether nothing was made in a directory of the destination, or got another name there, since an earlier copy ended it:
/// that gave it the time of its source, and so was a change of another time.
fn is_quiet_since(source: &Statx, there: &Statx) -> bool {
    let (modified, changed) = (Metadata(*there).modified(), Metadata(*there).changed());
    // Where times are coarse, all may have happened in the time of one.
    modified == Metadata(*source).modified() && modified < changed
}

/// Returns whether a directory that cannot be opened for this reason is reported by the walk, which opens it afterwards. Other
/// reasons, such as too many open files, may be over by then.
pub fn is_reported(errno: Errno) -> bool {
    matches!(errno, Errno::ACCESS | Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// Counts the result of an entry.
pub fn account(
    shared: &Shared,
    kind: FileKind,
    result: Result<Done, CopyError>,
    path: impl FnOnce() -> Vec<u8>,
) {
    let counters = &shared.counters;
    let counter = match result {
        Ok(Done::Copied) => &counters.copied,
        Ok(Done::Linked) => &counters.linked,
        Ok(Done::Unchanged) => &counters.unchanged,
        Ok(Done::Later(_)) => return,
        Ok(Done::Unsettled) => {
            let cause = "it changes while it is copied; the copy is what could be read of it last";
            shared.failures.add(EntryError::new(path(), "not sure of the copy of", cause));
            &counters.copied
        }
        Err(CopyError::Vanished) => &counters.vanished,
        Err(CopyError::Stopped) => return,
        Err(CopyError::Ended) => {
            return shared.failures.add(EntryError::new(path(), "cannot copy", file::ENDED));
        }
        Err(CopyError::Failed(attempted, cause)) => {
            let cause = match cause {
                Cause::System(libc::EPERM)
                    if matches!(kind, FileKind::BlockDevice | FileKind::CharacterDevice)
                        && !shared.keeper.is_root() =>
                {
                    Cause::Other("only root may make devices")
                }
                Cause::System(libc::EOPNOTSUPP) if attempted == KEEP => Cause::Other(
                    "the destination's file system has no extended attributes or ACLs; --no-xattrs does without",
                ),
                cause => cause,
            };
            return shared.failures.add(EntryError { path: path(), attempted, cause });
        }
    };
    counter.fetch_add(1, Ordering::Relaxed);
    counters.entries.fetch_add(1, Ordering::Relaxed);
}

/// Returns the verdict on an entry that is not to be copied, or is a directory to be entered; `None` for another one.
pub fn passed<S>(shared: &Shared, entry: &Entry<'_, S>) -> Option<Verdict> {
    let selection = &shared.options.selection;
    if entry.directory.is_none() {
        // It is a directory, or became something else since it was looked at; then it has no parent here.
        return Some(Verdict::Descend);
    }
    let Choice { selected, verdict } = selection.choose(entry);
    match entry.kind {
        FileKind::Directory => Some(verdict),
        _ => (!selected).then_some(Verdict::Pass),
    }
}

/// Returns the reason why an entry is never copied, if there is one.
pub fn left_out<S>(entry: &Entry<'_, S>) -> Option<&'static str> {
    if entry.kind == FileKind::Socket {
        return Some("it is a socket: its server creates it again");
    }
    if is_unfinished(entry.name) {
        return Some("it is the unfinished file of another copy");
    }
    None
}

impl Visitor for Copier<'_> {
    type State = Arc<Destination>;

    fn enter(&mut self, opened: &Opened<'_, Arc<Destination>>) -> Option<Arc<Destination>> {
        if self.shared.control.is_stopped() {
            return None;
        }
        let (parent, name) = match opened.directory {
            Some(parent) => (parent.state(), opened.name),
            None => (self.top, self.destination.name()),
        };
        let path = || match opened.directory {
            Some(parent) => [&parent.path_bytes(), &b"/"[..], opened.name.to_bytes()].concat(),
            None => opened.name.to_bytes().to_vec(),
        };
        if opened.renamed {
            let cause = "it was renamed while it was copied, a part of it perhaps under its old name";
            self.shared.failures.add(EntryError::new(path(), MAKE, cause));
            return None;
        }
        // Before anything in it is read: that may change when it was accessed.
        let stat = match file::stat_open(opened.descriptor) {
            Ok(stat) => stat,
            Err(errno) => {
                self.shared.failures.add(EntryError::new(path(), MAKE, errno));
                return None;
            }
        };
        let identity = directory::identity(&stat);
        if opened.directory.is_none() && self.shared.options.mirror && identity != self.shared.source {
            // Such as the empty directory that its file system was mounted on while the user was asked.
            let cause = "something else took its place since the mirror was asked for";
            self.shared.failures.add(EntryError::new(path(), MAKE, cause));
            return None;
        }
        if *self.shared.root.lock() == Some(identity) {
            self.shared.failures.add(EntryError::new(path(), MAKE, "it is the destination of this copy"));
            return None;
        }
        let options = &self.shared.options;
        let force = |kind| options.force || options.mirror && matches!(kind, FileKind::File | FileKind::Link);
        let root = self.shared.keeper.is_root();
        match parent.make(name, force, root, stat.stx_atime) {
            Ok(child) if identity == child.identity() => {
                self.shared.failures.add(EntryError::new(path(), MAKE, "its copy would be itself"));
                None
            }
            Ok(mut child) => {
                spare(self.shared, opened.descriptor, &mut child);
                if opened.directory.is_none() {
                    *self.shared.root.lock() = Some(child.identity());
                }
                Some(child)
            }
            Err(obstacle) => {
                let cause = match obstacle {
                    Obstacle::System(errno) => errno.into(),
                    Obstacle::Other(text) => Cause::Other(text),
                };
                self.shared.failures.add(EntryError { path: path(), attempted: MAKE, cause });
                None
            }
        }
    }

    fn visit(&mut self, entry: &Entry<'_, Arc<Destination>>) -> Verdict {
        if self.shared.control.is_stopped() {
            return Verdict::Pass;
        }
        let path = || {
            let mut path = Vec::new();
            entry.write_path(&mut path);
            path
        };
        if let Some(verdict) = passed(self.shared, entry) {
            return verdict;
        }
        if let Some(cause) = left_out(entry) {
            self.shared.notes.add(EntryError::new(path(), "not copied:", cause));
            return Verdict::Pass;
        }
        let Some(directory) = entry.directory else { return Verdict::Descend };
        let item = Item {
            shared: self.shared,
            role: if self.leftovers.is_some() { Role::First } else { Role::Alone },
            source: entry.parent(),
            source_name: entry.name,
            destination: directory.state(),
            name: entry.name,
        };
        let done = item.copy(entry.kind, &mut self.buffer);
        if let (Some(leftovers), Ok(Done::Later(later))) = (self.leftovers, &done) {
            let mut below = directory.path_below_root();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(entry.name.to_bytes());
            leftovers(LeftOver { path: below, later: *later });
        }
        if let Ok(Done::Unchanged) = done {
            self.unchanged += 1;
            if self.unchanged >= UNCOUNTED_MAX {
                self.count_unchanged();
            }
        } else {
            account(self.shared, entry.kind, done, path);
        }
        Verdict::Pass
    }

    fn visited(&mut self, _directory: &Directory<Arc<Destination>>) {
        self.count_unchanged();
    }

    fn leave(&mut self, directory: &Directory<Arc<Destination>>) {
        if self.shared.control.is_stopped() {
            return;
        }
        let destination = directory.state();
        // Other processes may still be at it: see `Finisher`.
        if self.leftovers.is_none() {
            match directory.descriptor() {
                Ok(source) => Ending {
                    shared: self.shared,
                    root: self.destination,
                    source: source.as_fd(),
                    destination,
                    path: &|| directory.path_bytes(),
                    below: &|| directory.path_below_root(),
                }
                .end(),
                Err(errno) => {
                    let error = CopyError::Failed(KEEP, Errno::into(errno));
                    account(self.shared, FileKind::Directory, Err(error), || directory.path_bytes());
                }
            }
        }
        destination.leave();
    }

    fn pack(state: &Arc<Destination>, child: &Arc<Destination>, _packed: &mut Vec<u8>) -> bool {
        state.pack(child)
    }

    fn unpack(_packed: &[u8], child: &Arc<Destination>) -> Arc<Destination> {
        child.unpack_above().expect("what was packed is above the child, by which it is kept")
    }

    fn assist(&mut self) -> bool {
        self.shared.help(&mut self.buffer)
    }

    fn mount_point(&mut self, path: Vec<u8>) {
        let cause = "another file system is mounted there; --cross-mounts continues in it";
        self.shared.notes.add(EntryError::new(path, "not copied:", cause));
    }

    fn failed(&mut self, error: WalkError) {
        if error.vanished() {
            self.shared.counters.vanished.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared.failures.add(error.into());
        }
    }
}
