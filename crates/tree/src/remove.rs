//! The removal of some roots and everything below them.
//!
//! - Every name is removed from an open directory, by descriptor; no link is followed and no mount entered. Renaming
//!   what the removal has passed cannot lead it out of its roots.
//! - A directory is removed once everything in it was visited. It may not be empty then, because entries were created or
//!   moved there meanwhile, or because the file system skipped some while others were removed. The rest is then walked
//!   again: up to [`ROUNDS_MAX`] times, and no longer once these rounds have removed more than the first one did: the one
//!   that does so ends at once. So however fast entries are created, the removal ends, once its first round has listed each
//!   directory that it found.
//! - A root is identified by device and inode when it is first examined: another one that took its name is not
//!   touched.

use std::ffi::{CStr, OsStr};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nacre_quantity::Escaped;
use nacre_walk::Directory;
use nacre_walk::WalkError;
use nacre_walk::directory::{self, Identity};
use nacre_walk::filter::{Choice, Descent, Filter, Selection};
use nacre_walk::{Entry, FileKind, Metadata};
use nacre_walk::{Opened, Options, Verdict, Visitor, Walk};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::control::Control;
use crate::error::{EntryError, EntryErrors};
use crate::root::{Root, identity_of};

/// The maximum number of rounds in which the remaining entries are walked.
pub const ROUNDS_MAX: u32 = 10;

/// The number of threads that a removal has at least, unless it is told how many.
const THREADS_MIN: usize = 8;

/// The number of entries that the rounds after the first may always remove, however few the first one found.
const LATER_MIN: u64 = 10_000;

/// The maximum number of removed entries that a thread has not counted yet.
const UNCOUNTED_MAX: u64 = 64;

const ATTEMPTED: &str = "cannot remove";

/// Returns the number of threads of a removal that is not told how many: one for each processor, and some at least, since most of its
/// time it waits for the journal of a file system, or for a server.
pub fn default_threads() -> NonZeroUsize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::MIN.saturating_add(processors.max(THREADS_MIN) - 1)
}

/// The reason why a path is refused before anything is removed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The path does not exist or cannot be reached.
    #[error("cannot remove \"{}\": {error}", Escaped::of(.path), error = std::io::Error::from(*errno))]
    Missing {
        /// The path.
        path: PathBuf,
        /// The error number.
        errno: Errno,
    },
    /// The path is the root of the file system.
    #[error("not removing \"{}\": it is the root of the file system", Escaped::of(.0))]
    System(PathBuf),
    /// The path ends in `.` or `..`, and so has no name of its own.
    #[error(
        "not removing \"{}\": it ends in \".\" or \"..\"; give the directory's own name",
        Escaped::of(.0)
    )]
    Dot(PathBuf),
    /// A file system is mounted at the path.
    #[error(
        "not removing \"{}\": a file system is mounted there; unmount it first, or name what is in it",
        Escaped::of(.0)
    )]
    MountPoint(PathBuf),
    /// The path is a symbolic link with a slash at its end.
    #[error(
        "not removing \"{}\": it is a symbolic link; without the slash the link itself is removed",
        Escaped::of(.0)
    )]
    Link(PathBuf),
}

/// A removal whose roots have been checked.
#[derive(derive_more::Debug)]
#[debug("Removal")]
pub struct Removal {
    roots: Vec<(Root, Identity)>,
    threads: NonZeroUsize,
    selection: Option<Restriction>,
    /// A directory that stays, with everything in it, wherever it is met.
    spared: Option<Identity>,
    control: Control,
    entries: AtomicU64,
    directories: AtomicU64,
    /// The number of entries after whose removal it gives up: unlimited until the first round has told how many there were.
    entries_max: AtomicU64,
}

/// The entries that a removal is restricted to.
#[derive(Debug)]
pub struct Restriction {
    /// The entries to remove, of those that are no directories.
    pub selection: Selection,
    /// Removes directories below the roots that are empty then, too.
    pub empty_directories: bool,
}

/// The result of a removal.
#[derive(Debug)]
pub struct Removed {
    /// The number of entries removed, including directories.
    pub entries: u64,
    /// The number of directories removed.
    pub directories: u64,
    /// The entries that were not removed, with the reasons.
    pub failures: EntryErrors,
    /// The removal was stopped before its end.
    pub stopped: bool,
}

/// Counts of the entries below the roots, including the roots themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The number of entries of every kind.
    pub entries: u64,
    /// The number of directories.
    pub directories: u64,
    /// The number of regular files.
    pub files: u64,
    /// The apparent size of the regular files in bytes, if metadata was requested.
    pub bytes: u64,
    /// The number of entries that could not be read.
    pub errors: u64,
}

impl Counted {
    /// Returns the sum of two counts.
    pub fn and(&self, other: &Counted) -> Counted {
        Counted {
            entries: self.entries + other.entries,
            directories: self.directories + other.directories,
            files: self.files + other.files,
            bytes: self.bytes + other.bytes,
            errors: self.errors + other.errors,
        }
    }
}

/// A callback that is given every path, from all threads.
pub type List<'a> = &'a (dyn Fn(&[u8]) + Sync);

impl Removal {
    /// Checks the roots, and refuses those that must not be removed.
    ///
    /// # Errors
    /// [`StartError`] for the first path that is missing or refused.
    pub fn new<P: AsRef<Path>>(paths: &[P], threads: NonZeroUsize) -> Result<Removal, StartError> {
        let system = directory::stat(rustix::fs::CWD, c"/").map(|stat| directory::identity(&stat)).ok();
        let mut roots: Vec<(Root, Identity)> = Vec::new();
        for path in paths.iter().map(AsRef::as_ref) {
            let missing = |errno| StartError::Missing { path: path.to_owned(), errno };
            let root = Root::find(path).map_err(missing)?;
            let stat = root.stat().map_err(missing)?;
            let (identity, metadata) = (directory::identity(&stat), Metadata(stat));
            if Some(identity) == system {
                return Err(StartError::System(path.to_owned()));
            }
            if root.is_dot() {
                return Err(StartError::Dot(path.to_owned()));
            }
            if metadata.is_mount_point() || is_mounted(&root, &metadata).map_err(missing)? {
                return Err(StartError::MountPoint(path.to_owned()));
            }
            if root.slash && metadata.kind() == FileKind::Link {
                return Err(StartError::Link(path.to_owned()));
            }
            if root.slash && metadata.kind() != FileKind::Directory {
                return Err(missing(Errno::NOTDIR));
            }
            let known = roots.iter().any(|(other, known)| {
                *known == identity
                    && other.name() == root.name()
                    && identity_of(other.parent()) == identity_of(root.parent())
            });
            if !known {
                roots.push((root, identity));
            }
        }
        Ok(Removal {
            roots,
            threads,
            selection: None,
            spared: None,
            control: Control::default(),
            entries: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            entries_max: AtomicU64::new(u64::MAX),
        })
    }

    /// Prepares the removal of an entry of an open directory, as a part of other work, by one thread.
    pub(crate) fn within(
        directory: BorrowedFd<'_>,
        name: &CStr,
        control: &Control,
    ) -> Result<Removal, StartError> {
        let path = by_descriptor(directory, name);
        let removal = Removal::new(&[path], NonZeroUsize::MIN)?;
        Ok(Removal { control: control.of_part(), ..removal })
    }

    /// Leaves a directory where it is, with everything in it: wherever it is met, that is a failure.
    pub(crate) fn sparing(mut self, directory: Identity) -> Removal {
        self.spared = Some(directory);
        self
    }

    /// Restricts the removal to some entries. The roots stay then, if they are directories.
    pub fn restricted(mut self, restriction: Restriction) -> Removal {
        self.selection = Some(restriction);
        self
    }

    /// Returns the inode numbers of the roots, by which processes find out whether they see the same ones.
    pub fn inodes(&self) -> Vec<u64> {
        self.roots.iter().map(|(_, (_, inode))| *inode).collect()
    }

    /// Returns the switch that stops the removal.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Returns the number of entries removed so far.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Returns the number of directories removed so far.
    pub fn removed_directories(&self) -> u64 {
        self.directories.load(Ordering::Relaxed)
    }

    /// Counts the entries, with sizes if `metadata` is set, and passes every path to `list`. Removes nothing. `control`
    /// stops it.
    pub fn count(&self, metadata: bool, control: &Control, list: Option<List<'_>>) -> Counted {
        self.count_part(true, metadata, control, list, |walk, visitors| walk.run(visitors)).1
    }

    /// Counts a part, as one of several processes: see [`Removal::run_part`]. Returns what `work` does, and the counts of
    /// this part.
    pub fn count_part<T>(
        &self,
        begin: bool,
        metadata: bool,
        control: &Control,
        list: Option<List<'_>>,
        work: impl FnOnce(&mut Walk<()>, &mut [Counter<'_>]) -> T,
    ) -> (T, Counted) {
        let plain = Selection { filter: Filter::default().ready(), descent: Descent::default() };
        let (selection, directories) = match &self.selection {
            Some(restriction) => (&restriction.selection, false),
            None => (&plain, true),
        };
        let metadata = metadata || selection.filter.needs_metadata();
        let options = Options { threads: self.threads, metadata, ..Options::default() };
        let roots = self.roots.iter().map(|(root, _)| root.path());
        count_with((roots, begin), &options, control, list, (selection, directories), work)
    }

    /// Removes everything.
    pub fn run(&self) -> Removed {
        let failures = EntryErrors::default();
        for round in 0..ROUNDS_MAX {
            // What changed in an earlier round may have settled.
            failures.clear();
            let changed = self.round(&failures);
            if !changed || self.is_outrun() || self.control.is_stopped() {
                break;
            }
            if round == 0 {
                let first = self.entries();
                self.entries_max.store(first + first.max(LATER_MIN), Ordering::Relaxed);
            }
        }
        let stopped = self.control.is_stopped();
        // Roots of a restricted removal stay in any case, so only the limit tells that something was left.
        let is_left = self.selection.is_none() || self.is_outrun();
        if !stopped && failures.count() == 0 && is_left {
            for (root, _) in self.roots.iter().filter(|(root, known)| is_there(root, *known)) {
                let cause = "entries keep appearing in it while it is removed";
                failures.add(EntryError::new(root.path_bytes(), ATTEMPTED, cause));
            }
        }
        Removed { entries: self.entries(), directories: self.removed_directories(), failures, stopped }
    }

    /// Returns whether the rounds after the first one have removed as much as they may.
    fn is_outrun(&self) -> bool {
        self.entries() >= self.entries_max.load(Ordering::Relaxed)
    }

    /// Walks and removes the entries; returns whether something changed meanwhile, so that another round is
    /// worthwhile.
    fn round(&self, failures: &EntryErrors) -> bool {
        self.run_part(true, failures, |walk, visitors| walk.run(visitors)).1
    }

    /// Removes a part, as one of several processes that remove the same paths together: `work` is given the walk, whose
    /// units other processes may be given, and runs it with the visitors. The walk begins at the roots if `begin` is set,
    /// which is for one of the processes. Returns what `work` does, and whether something changed meanwhile.
    ///
    /// A directory that several processes work on is removed by the last of them that leaves it, or stays. So without a
    /// restriction, one process calls [`Removal::run`] when all have ended: it removes what is left, and its failures are
    /// those that count.
    pub fn run_part<T>(
        &self,
        begin: bool,
        failures: &EntryErrors,
        work: impl FnOnce(&mut Walk<Remains>, &mut [Remover<'_>]) -> T,
    ) -> (T, bool) {
        let changed = AtomicBool::new(false);
        let metadata = self.selection.as_ref().is_some_and(|by| by.selection.filter.needs_metadata());
        let options = Options {
            threads: self.threads,
            metadata,
            keep_open: true,
            by_inode: true,
            ..Options::default()
        };
        let mut walk = Walk::new(options);
        self.control.attach(walk.queue());
        let remover = || Remover {
            removal: self,
            failures,
            changed: &changed,
            // Who cannot read a directory can still remove it if it is empty.
            unreadable: !rustix::process::geteuid().is_root()
                && self.selection.is_none()
                && self.spared.is_none(),
            uncounted: 0,
        };
        let mut visitors: Vec<_> = (0..self.threads.get()).map(|_| remover()).collect();
        for (root, known) in &self.roots {
            let Ok(number) = walk.add_root(root.path()) else { continue };
            if begin
                && is_there(root, *known)
                && let Err(error) = walk.start(number, &mut visitors[0])
            {
                visitors[0].failed(error);
            }
        }
        let done = work(&mut walk, &mut visitors);
        (done, changed.into_inner())
    }
}

/// Returns a path of an entry of an open directory, which stays valid whatever happens to the names above it.
pub(crate) fn by_descriptor(directory: BorrowedFd<'_>, name: &CStr) -> PathBuf {
    let folder = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    folder.join(OsStr::from_bytes(name.to_bytes()))
}

/// Counts the entries below some roots, including the roots: those of a selection, with or without directories.
pub(crate) fn count_below<'a>(
    roots: impl IntoIterator<Item = &'a Path>,
    options: &Options,
    control: &Control,
    list: Option<List<'_>>,
    selected: (&Selection, bool),
) -> Counted {
    count_with((roots, true), options, control, list, selected, |walk, visitors| walk.run(visitors)).1
}

fn count_with<'a, T>(
    (roots, begin): (impl IntoIterator<Item = &'a Path>, bool),
    options: &Options,
    control: &Control,
    list: Option<List<'_>>,
    (selection, directories): (&Selection, bool),
    work: impl FnOnce(&mut Walk<()>, &mut [Counter<'_>]) -> T,
) -> (T, Counted) {
    let counter =
        || Counter { counted: Counted::default(), control, list, selection, directories, path: Vec::new() };
    let mut visitors: Vec<_> = (0..options.threads.get()).map(|_| counter()).collect();
    let mut walk = Walk::new(options.clone());
    control.attach(walk.queue());
    for root in roots {
        // What is gone by now counts nothing.
        if let Ok(number) = walk.add_root(root)
            && begin
        {
            let _ = walk.start(number, &mut visitors[0]);
        }
    }
    let done = work(&mut walk, &mut visitors);
    let counted = visitors.iter().fold(Counted::default(), |sum, visitor| sum.and(&visitor.counted));
    (done, counted)
}

/// Returns whether something is mounted on a root, also on systems that do not say so when they are asked for its metadata.
pub(crate) fn is_mounted(root: &Root, metadata: &Metadata) -> Result<bool, Errno> {
    if metadata.kind() != FileKind::Directory {
        return Ok(false);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = retry_on_intr(|| rustix::fs::openat(root.parent(), root.name(), flags, Mode::empty()))?;
    directory::is_mounted(&metadata.0, root.parent(), opened.as_fd())
}

/// Returns whether the root still exists and has the known identity.
fn is_there(root: &Root, known: Identity) -> bool {
    root.stat().is_ok_and(|stat| directory::identity(&stat) == known)
}

fn unlink(directory: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::unlinkat(directory, name, flags))
}

/// The visitor of one thread that counts.
#[derive(derive_more::Debug)]
#[debug("Counter")]
pub struct Counter<'a> {
    counted: Counted,
    control: &'a Control,
    list: Option<List<'a>>,
    selection: &'a Selection,
    /// True if directories that are entered are counted.
    directories: bool,
    path: Vec<u8>,
}

impl Visitor for Counter<'_> {
    type State = ();

    fn enter(&mut self, _directory: &Opened<'_, ()>) -> Option<()> {
        (!self.control.is_stopped()).then_some(())
    }

    fn visit(&mut self, entry: &Entry<'_, ()>) -> Verdict {
        if self.control.is_stopped() {
            return Verdict::Pass;
        }
        let Choice { selected, verdict } = self.selection.choose(entry);
        let counts = match entry.kind {
            FileKind::Directory => self.directories && verdict == Verdict::Descend,
            _ => selected,
        };
        if !counts {
            return verdict;
        }
        self.counted.entries += 1;
        match entry.kind {
            FileKind::Directory => self.counted.directories += 1,
            FileKind::File => {
                self.counted.files += 1;
                self.counted.bytes += entry.metadata.map_or(0, Metadata::size);
            }
            _ => {}
        }
        if let Some(list) = self.list {
            self.path.clear();
            entry.write_path(&mut self.path);
            list(&self.path);
        }
        verdict
    }

    fn pack(_state: &(), _child: &(), _packed: &mut Vec<u8>) -> bool {
        true
    }

    fn unpack(_packed: &[u8], _child: &()) {}

    fn failed(&mut self, error: WalkError) {
        self.counted.errors += u64::from(!error.vanished());
    }
}

/// The state of a directory that is being removed: true if something in it stays, so that the directory has to.
#[derive(Debug, Default)]
pub struct Remains(AtomicBool);

/// The visitor of one thread that removes.
#[derive(derive_more::Debug)]
#[debug("Remover")]
pub struct Remover<'a> {
    removal: &'a Removal,
    failures: &'a EntryErrors,
    changed: &'a AtomicBool,
    unreadable: bool,
    /// The number of removed entries that are no directories and are not counted yet: threads that all count each entry at
    /// one place hold each other up.
    uncounted: u64,
}

impl Remover<'_> {
    fn is_stopped(&self) -> bool {
        self.removal.control.is_stopped() || self.removal.is_outrun()
    }

    fn count_directory(&self) {
        self.removal.entries.fetch_add(1, Ordering::Relaxed);
        self.removal.directories.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what this thread has removed to the count of all.
    fn count(&mut self) {
        if self.uncounted > 0 {
            self.removal.entries.fetch_add(std::mem::take(&mut self.uncounted), Ordering::Relaxed);
        }
    }

    fn root(&self, number: u32) -> &(Root, Identity) {
        &self.removal.roots[number as usize]
    }

    /// Records that something changed meanwhile. The next round looks again, and forgets this failure; after the last one
    /// it stands.
    fn has_changed(&self, path: Vec<u8>, errno: Errno) {
        self.changed.store(true, Ordering::Relaxed);
        self.failures.add(EntryError::new(path, ATTEMPTED, errno));
    }

    /// Removes an empty directory; returns whether it is gone.
    fn remove_directory(&self, directory: &Directory<Remains>) -> bool {
        let removed = match directory.parent() {
            Some(parent) => parent
                .descriptor()
                .and_then(|parent| unlink(parent.as_fd(), directory.name(), AtFlags::REMOVEDIR)),
            None => {
                let (root, known) = self.root(directory.root());
                match is_there(root, *known) {
                    true => unlink(root.parent(), root.name(), AtFlags::REMOVEDIR),
                    false => Err(Errno::NOENT),
                }
            }
        };
        match removed {
            Ok(()) => self.count_directory(),
            Err(Errno::NOENT) => {}
            // Something new is in it, or it is no directory any more, or the way to it is another one.
            Err(errno @ (Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::LOOP | Errno::STALE)) => {
                self.has_changed(directory.path_bytes(), errno);
                return false;
            }
            Err(errno) => {
                self.failures.add(EntryError::new(directory.path_bytes(), ATTEMPTED, errno));
                return false;
            }
        }
        true
    }
}

impl Visitor for Remover<'_> {
    type State = Remains;

    fn enter(&mut self, opened: &Opened<'_, Remains>) -> Option<Remains> {
        if self.is_stopped() {
            return None;
        }
        if opened.directory.is_none() && identity_of(opened.descriptor) != Ok(self.root(opened.root).1) {
            let cause = "something else replaced it meanwhile";
            self.failures.add(EntryError::new(opened.name.to_bytes().to_vec(), ATTEMPTED, cause));
            return None;
        }
        if let Some(spared) = self.removal.spared
            && identity_of(opened.descriptor).map_or(true, |identity| identity == spared)
        {
            let (cause, name) = ("it is the source of the mirror", opened.name.to_bytes());
            let path = match opened.directory {
                Some(parent) => [&parent.path_bytes(), &b"/"[..], name].concat(),
                None => self.root(opened.root).0.path_bytes(),
            };
            self.failures.add(EntryError::new(path, ATTEMPTED, cause));
            if let Some(parent) = opened.directory {
                self.incomplete(parent);
            }
            return None;
        }
        Some(Remains::default())
    }

    fn visit(&mut self, entry: &Entry<'_, Remains>) -> Verdict {
        if self.is_stopped() {
            return Verdict::Pass;
        }
        let (parent, name) = match entry.directory {
            Some(_) => (entry.parent(), entry.name),
            None => {
                let (root, _) = self.root(entry.root);
                (root.parent(), root.name())
            }
        };
        if let Some(restriction) = &self.removal.selection {
            let Choice { selected, verdict } = restriction.selection.choose(entry);
            let stays = match entry.kind {
                FileKind::Directory => verdict == Verdict::Pass,
                _ => !selected,
            };
            if stays {
                if let Some(directory) = entry.directory {
                    self.incomplete(directory);
                }
                return Verdict::Pass;
            }
        }
        if entry.kind == FileKind::Directory {
            if self.unreadable && unlink(parent, name, AtFlags::REMOVEDIR) == Ok(()) {
                self.count_directory();
                return Verdict::Pass;
            }
            return Verdict::Descend;
        }
        match unlink(parent, name, AtFlags::empty()) {
            Ok(()) => {
                self.uncounted += 1;
                // The progress is shown while a large directory is emptied, and a root is in no directory.
                if self.uncounted >= UNCOUNTED_MAX || entry.directory.is_none() {
                    self.count();
                }
                return Verdict::Pass;
            }
            Err(Errno::NOENT) => return Verdict::Pass,
            // It became a directory.
            Err(errno @ (Errno::ISDIR | Errno::STALE)) => {
                self.has_changed(entry.path().into_os_string().into_encoded_bytes(), errno);
            }
            Err(errno) => {
                let mut path = Vec::new();
                entry.write_path(&mut path);
                self.failures.add(EntryError::new(path, ATTEMPTED, errno));
            }
        }
        if let Some(directory) = entry.directory {
            self.incomplete(directory);
        }
        Verdict::Pass
    }

    fn visited(&mut self, _directory: &Directory<Remains>) {
        self.count();
    }

    fn leave(&mut self, directory: &Directory<Remains>) {
        if self.is_stopped() {
            return;
        }
        let stays = match &self.removal.selection {
            Some(restriction) => !restriction.empty_directories || directory.parent().is_none(),
            None => false,
        };
        let kept = directory.state().0.load(Ordering::Relaxed) || stays || !self.remove_directory(directory);
        if kept && let Some(parent) = directory.parent() {
            self.incomplete(&parent);
        }
    }

    fn pack(state: &Remains, _child: &Remains, packed: &mut Vec<u8>) -> bool {
        packed.push(u8::from(state.0.load(Ordering::Relaxed)));
        true
    }

    fn unpack(packed: &[u8], _child: &Remains) -> Remains {
        Remains(AtomicBool::new(packed != [0]))
    }

    fn mount_point(&mut self, path: Vec<u8>) {
        self.failures.add(EntryError::new(path, ATTEMPTED, "another file system is mounted there"));
    }

    fn incomplete(&mut self, directory: &Directory<Remains>) {
        directory.state().0.store(true, Ordering::Relaxed);
    }

    fn failed(&mut self, error: WalkError) {
        // What was moved is still below the root, or none of the removal's business: the next round tells, and forgets this
        // failure. What is missing in the last round, too, such as behind a stale handle, was not removed.
        if error.vanished() || error.is_missing() {
            self.changed.store(true, Ordering::Relaxed);
        }
        if !error.vanished() {
            self.failures.add(error.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_removal_has_threads_that_wait_while_others_compute() {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        assert_eq!(default_threads().get(), processors.max(8));
    }

    #[test]
    fn a_round_ends_once_as_much_was_removed_as_may_be_and_the_rest_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        for number in 0..50 {
            fs::create_dir_all(root.join(format!("{number}"))).unwrap();
        }
        for restricted in [true, false] {
            let mut removal = Removal::new(&[&root], NonZeroUsize::MIN).unwrap();
            if restricted {
                let selection = Selection { filter: Filter::default().ready(), descent: Descent::default() };
                removal = removal.restricted(Restriction { selection, empty_directories: true });
            }
            removal.entries_max.store(10, Ordering::Relaxed);
            let removed = removal.run();
            assert_eq!((removed.entries, removed.stopped, removed.failures.count()), (10, false, 1));
            assert!(removed.failures.first()[0].to_string().contains("entries keep appearing in it"));
        }
        assert_eq!(fs::read_dir(&root).unwrap().count(), 30);
        let removed = Removal::new(&[&root], NonZeroUsize::MIN).unwrap().run();
        assert_eq!((removed.entries, removed.failures.count()), (31, 0));
        assert!(!root.exists());
    }
}
