//! Copying a file or a tree, with all metadata.
//!
//! - Source and destination are both walked by descriptor; no link is followed on either side, so that renaming what
//!   the copy has passed cannot redirect it.
//! - A file is written under a temporary name (`file::unfinished`) and renamed into its place when it is complete, with
//!   its metadata. There is never a partial file under the final name, and no existing file is written to.
//! - Entries that exist at the destination, with the same size and time, are not copied again. Of large files, the
//!   chunks that an earlier run finished are not copied again either (`record`).
//! - Large files are shared out in chunks among idle threads (`job`).
//! - A directory gets its mode and times when everything in it is done.
//! - Several processes make a copy together by its parts: see [`Copy::together`].

pub mod attributes;
mod claim;
mod compare;
mod data;
mod destination;
mod file;
mod finish;
mod job;
mod link;
mod listxattr;
mod mounts;
mod plan;
mod range;
mod record;
mod threads;
mod together;
mod verify;
mod visitor;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use attributes::Preserver;
use data::ShortCuts;
pub use destination::Destination;
pub use file::{Later, is_unfinished};
pub use finish::Finisher;
use job::Jobs;
use link::{Links, Previewed};
use nacre_quantity::Escaped;
use nacre_walk::Options as WalkOptions;
use nacre_walk::directory::{self, Identity};
use nacre_walk::filter::{Descent, Filter, Selection};
use nacre_walk::{FileKind, Metadata, Time};
use parking_lot::Mutex;
pub use plan::Plan;
pub use range::{Compared, Held, LeftOver, Leftovers, Worker, halve};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
pub use together::Sight;
pub use verify::{Aspects, Difference, Differing, Report, Verifier};
pub use visitor::Copier;

use crate::control::Control;
use crate::error::{Cause, EntryError, EntryErrors};
use crate::remove::{Counted, Removal};
use crate::root::{Root, identity_of};

/// The options of a copy.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of threads.
    pub threads: NonZeroUsize,
    /// The size in bytes above which a file is copied in chunks, and the size of a chunk.
    pub chunk_bytes: u64,
    /// Compares contents instead of times.
    pub checksum: bool,
    /// Replaces other entries that are in the place of a directory, and devices, pipes and sockets that are in the
    /// place of another entry.
    pub force: bool,
    /// Makes each file durable before it gets its name, and everything before the copy ends.
    pub fsync: bool,
    /// Continues in other file systems that are mounted below the source.
    pub cross_mounts: bool,
    /// Keeps extended attributes, with ACLs.
    pub extended: bool,
    /// Removes what is at the destination and not in the source, and replaces directories that are in the place of
    /// other entries.
    pub mirror: bool,
    /// Lets an empty source empty its mirror.
    pub mirror_empty: bool,
    /// The entries to copy; directories are made where the walk enters them. The source itself is copied in any case.
    pub selection: Arc<Selection>,
}

/// The reason why a copy is refused before it begins.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The source does not exist or cannot be reached.
    #[error("cannot {attempted} \"{}\": {error}", Escaped::of(.path), error = std::io::Error::from(*errno))]
    Missing {
        /// The path.
        path: PathBuf,
        /// The attempted operation: "copy" or "compare".
        attempted: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// The directory of the destination does not exist or cannot be reached.
    #[error(
        "cannot copy to \"{}\": {error}; the directory that the copy is to be made in has to exist",
        Escaped::of(.path), error = std::io::Error::from(*errno)
    )]
    Nowhere {
        /// The path.
        path: PathBuf,
        /// The error number.
        errno: Errno,
    },
    /// The destination is inside the source.
    #[error("not copying \"{}\" into itself: \"{}\" is in it", Escaped::of(.0), Escaped::of(.1))]
    Inside(PathBuf, PathBuf),
    /// Source and destination are the same.
    #[error("\"{}\" and \"{}\" are the same", Escaped::of(.0), Escaped::of(.1))]
    Same(PathBuf, PathBuf),
    /// The destination is a symbolic link.
    #[error(
        "not copying to \"{}\": it is a symbolic link; name what it points to, or put a slash behind it to copy into that",
        Escaped::of(.0)
    )]
    Link(PathBuf),
    /// The destination is not a directory, but the source is.
    #[error("not copying to \"{}\": it is not a directory; --force replaces it", Escaped::of(.0))]
    NoDirectory(PathBuf),
    /// The source has no name that its copy could have.
    #[error(
        "cannot copy \"{}\" into a directory: it ends in \".\" or \"..\"; give the directory's own name",
        Escaped::of(.0)
    )]
    Nameless(PathBuf),
    /// The destination is a device, a pipe or a socket.
    #[error(
        "not copying to \"{}\": it is a device, pipe or socket; name another place, or replace it with --force",
        Escaped::of(.0)
    )]
    Special(PathBuf),
    /// Only a directory can be mirrored: anything else would replace a directory at the destination.
    #[error(
        "not mirroring \"{}\": it is not a directory; a slash behind a link means the directory that it \
         points to",
        Escaped::of(.0)
    )]
    NotMirrored(PathBuf),
    /// The source is inside the destination of a mirror.
    #[error(
        "not mirroring \"{}\" to \"{}\", which it is in: the mirror would remove it",
        Escaped::of(.0), Escaped::of(.1)
    )]
    Around(PathBuf, PathBuf),
    /// The source of a mirror is empty, and the destination is not.
    #[error(
        "not mirroring \"{}\": it is empty, as if its file system were not mounted, and everything in \"{}\" would be \
         removed; --mirror-empty does that",
        Escaped::of(.0), Escaped::of(.1)
    )]
    Empty(PathBuf, PathBuf),
    /// Another copy is writing to the destination.
    #[error("not copying to \"{}\": another copy is writing there at the moment", Escaped::of(.0))]
    Busy(PathBuf),
}

/// Counters of a copy's progress and result.
#[derive(Debug, Default)]
pub struct Counters {
    /// The number of bytes processed, including holes and unchanged files.
    pub bytes: AtomicU64,
    /// The number of bytes of copied files, including holes.
    pub bytes_copied: AtomicU64,
    /// The number of entries processed.
    pub entries: AtomicU64,
    /// The number of directories.
    pub directories: AtomicU64,
    /// The number of entries copied.
    pub copied: AtomicU64,
    /// The number of entries that were made as further names of copied ones.
    pub linked: AtomicU64,
    /// The number of entries whose copies were up to date.
    pub unchanged: AtomicU64,
    /// The number of entries that were removed before they were copied.
    pub vanished: AtomicU64,
    /// The number of chunks that an earlier run had finished.
    pub chunks_resumed: AtomicU64,
    /// The number of entries that were removed at the destination, because the source has none of their names.
    pub removed: AtomicU64,
    /// The number of entries that were compared with their copies afterwards.
    pub verified: AtomicU64,
}

pub(crate) struct Shared {
    pub options: Options,
    pub control: Control,
    pub counters: Counters,
    pub failures: EntryErrors,
    pub notes: EntryErrors,
    pub keeper: Preserver,
    pub links: Links,
    pub previewed: Previewed,
    pub jobs: Jobs,
    pub cuts: ShortCuts,
    /// The identity of this boot of the machine, or zeros if that does not matter.
    pub boot: [u8; 16],
    /// Several processes do the work, each a part of it.
    pub together: bool,
    /// The time at which the copy began.
    pub began: Time,
    /// The identity of the source, which no mirror removes, whatever its paths are.
    pub source: Identity,
    /// For a mirror, the directories whose file systems are not mounted.
    pub unmounted: HashSet<Identity>,
    /// The identity of the copy's root, once known: it must not be met in the source.
    pub root: Mutex<Option<Identity>>,
    verifying: AtomicBool,
    call: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Shared {
    fn new(options: Options, source: Identity) -> Shared {
        let boot = if options.fsync { [0; 16] } else { boot() };
        Shared {
            keeper: Preserver::new(options.extended),
            unmounted: HashSet::new(),
            options,
            control: Control::default(),
            counters: Counters::default(),
            failures: EntryErrors::default(),
            notes: EntryErrors::default(),
            links: Links::default(),
            previewed: Previewed::default(),
            jobs: Jobs::default(),
            cuts: ShortCuts::default(),
            boot,
            together: false,
            began: now(),
            source,
            root: Mutex::new(None),
            verifying: AtomicBool::new(false),
            call: Mutex::new(None),
        }
    }

    pub fn verifying(&self) -> bool {
        self.verifying.load(Ordering::Relaxed)
    }

    /// Removes an entry of the destination, with everything in it; returns whether it is gone.
    pub fn remove_extra(
        &self,
        directory: &Destination,
        name: &std::ffi::CStr,
        shown: impl Fn() -> Vec<u8>,
    ) -> bool {
        const REMOVE: &str = "cannot remove what the source has not:";
        let failure = |path, cause: Cause| self.failures.add(EntryError { path, attempted: REMOVE, cause });
        if directory.foreign && !self.options.cross_mounts {
            failure(
                shown(),
                "it is in another file system, mounted at the destination; --cross-mounts continues in it"
                    .into(),
            );
            return false;
        }
        let opened = match directory.descriptor() {
            Ok(opened) => opened,
            Err(errno) => {
                failure(shown(), errno.into());
                return false;
            }
        };
        match retry_on_intr(|| rustix::fs::unlinkat(&opened, name, rustix::fs::AtFlags::empty())) {
            Ok(()) => {
                self.counters.removed.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            Err(Errno::NOENT) => return true,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => {
                failure(shown(), errno.into());
                return false;
            }
        }
        let removed = match Removal::within(opened.as_fd(), name, &self.control) {
            Ok(removal) => removal.sparing(self.source).run(),
            Err(refusal) => {
                let cause = match refusal {
                    crate::remove::StartError::Missing { errno: Errno::NOENT, .. } => return true,
                    crate::remove::StartError::Missing { errno, .. } => errno.into(),
                    _ => "another file system is mounted there".into(),
                };
                failure(shown(), cause);
                return false;
            }
        };
        self.counters.removed.fetch_add(removed.entries, Ordering::Relaxed);
        let prefix = crate::remove::by_descriptor(opened.as_fd(), name).into_os_string().into_encoded_bytes();
        for error in removed.failures.first() {
            let below = error.path.strip_prefix(&prefix[..]).unwrap_or_default();
            self.failures.add(EntryError {
                path: [&shown()[..], below].concat(),
                attempted: REMOVE,
                ..error
            });
        }
        removed.failures.count() == 0 && !removed.stopped
    }
}

/// A copy whose source and destination have been checked.
#[derive(derive_more::Debug)]
#[debug("Copy")]
pub struct Copy {
    source: Root,
    /// The path at which the walk begins.
    source_path: PathBuf,
    /// The source of a copy, if it is a directory: while it is open, its file system stays mounted.
    opened: Option<OwnedFd>,
    kind: FileKind,
    destination: Root,
    /// The directory that the copy is made in, for entries that are copied by their paths.
    top_of_entries: OnceLock<Arc<Destination>>,
    shared: Shared,
}

impl Copy {
    /// Checks both sides, and refuses a copy that cannot be intended.
    ///
    /// The destination is the copy itself, unless it ends in a slash or is "." or "..", or the source is not a
    /// directory and the destination is one: then the copy is made in it, under the source's name.
    ///
    /// # Errors
    /// [`StartError`] if the source is missing or the destination cannot be used.
    pub fn new(source: &Path, destination: &Path, options: Options) -> Result<Copy, StartError> {
        let missing = |errno| StartError::Missing { path: source.to_owned(), attempted: "copy", errno };
        let from = Root::find(source).map_err(missing)?;
        let mut source_path = from.path().to_owned();
        if from.slash && from.path() != Path::new("/") {
            // Through a link, if it is one: that is what the slash says.
            source_path.push(".");
        }
        let stat = directory::stat(CWD, &name_of(&source_path)).map_err(missing)?;
        let kind = Metadata(stat).kind();
        let (identity, opened) = match kind {
            // What is mounted on demand is mounted by that: the source is what is in it.
            FileKind::Directory => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = rustix::fs::openat(CWD, &source_path, flags, Mode::empty()).map_err(missing)?;
                (identity_of(opened.as_fd()).map_err(missing)?, Some(opened))
            }
            _ => (directory::identity(&stat), None),
        };

        let nowhere = |errno| StartError::Nowhere { path: destination.to_owned(), errno };
        let found = Root::find(destination).map_err(nowhere)?;
        let there = found.stat().ok().map(|stat| Metadata(stat).kind());
        if options.mirror && kind != FileKind::Directory {
            return Err(StartError::NotMirrored(source.to_owned()));
        }
        let into = found.slash
            || found.is_dot()
            || kind != FileKind::Directory && there == Some(FileKind::Directory);
        if !into
            && !options.force
            && there == Some(FileKind::Link)
            && kind != FileKind::Link
            && destination.is_dir()
        {
            return Err(StartError::Link(destination.to_owned()));
        }
        let to = if into {
            if from.is_dot() {
                return Err(StartError::Nameless(source.to_owned()));
            }
            Root::within(destination, OsStr::from_bytes(from.name().to_bytes())).map_err(nowhere)?
        } else {
            found
        };
        match to.stat() {
            Ok(there) if directory::identity(&there) == identity => {
                return Err(StartError::Same(source.to_owned(), to.path().to_owned()));
            }
            Ok(there)
                if kind == FileKind::Directory
                    && Metadata(there).kind() == FileKind::Link
                    && !options.force =>
            {
                return Err(StartError::Link(to.path().to_owned()));
            }
            Ok(there)
                if kind == FileKind::Directory
                    && Metadata(there).kind() != FileKind::Directory
                    && !options.force =>
            {
                return Err(StartError::NoDirectory(to.path().to_owned()));
            }
            Ok(there) if file::is_in_the_way(&stat, &there, true) && !options.force => {
                return Err(StartError::Special(to.path().to_owned()));
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(nowhere(errno)),
        }
        if kind == FileKind::Directory && is_within(to.parent(), identity).map_err(nowhere)? {
            return Err(StartError::Inside(source.to_owned(), to.path().to_owned()));
        }
        if options.mirror
            && let (Ok(there), Some(opened)) = (to.stat(), &opened)
        {
            if is_within(opened.as_fd(), directory::identity(&there)).map_err(missing)? {
                return Err(StartError::Around(source.to_owned(), to.path().to_owned()));
            }
            // What cannot be listed is an error of the copy, which then removes nothing there.
            if !options.mirror_empty
                && is_empty(CWD, &name_of(&source_path)) == Ok(true)
                && is_empty(to.parent(), to.name()) == Ok(false)
            {
                return Err(StartError::Empty(source.to_owned(), to.path().to_owned()));
            }
        }
        let mut shared = Shared::new(options, identity);
        if let Some(opened) = opened.as_ref().filter(|_| shared.options.mirror) {
            shared.unmounted = mounts::unmounted(opened.as_fd(), shared.options.cross_mounts);
        }
        // The source itself may be in what lies below a mount point: then it is on the same device.
        let lacks = |place: &Identity| {
            let is_in = |opened: &OwnedFd| is_within(opened.as_fd(), *place) == Ok(true);
            place.0 == identity.0 && opened.as_ref().is_some_and(is_in)
        };
        if shared.unmounted.iter().any(lacks) {
            shared.unmounted.insert(identity);
        }
        let top_of_entries = OnceLock::new();
        Ok(Copy { source: from, source_path, opened, kind, destination: to, top_of_entries, shared })
    }

    /// Prepares a comparison: source and destination are what the paths name, whatever their types.
    ///
    /// # Errors
    /// [`StartError`] if one of them does not exist or cannot be reached.
    pub fn for_comparison(source: &Path, destination: &Path, options: Options) -> Result<Copy, StartError> {
        let find = |path: &Path| {
            let missing = |errno| StartError::Missing { path: path.to_owned(), attempted: "compare", errno };
            let root = Root::find(path).map_err(missing)?;
            // Through a link, if there is a slash behind it.
            let root =
                match root.slash && root.stat().is_ok_and(|stat| Metadata(stat).kind() == FileKind::Link) {
                    true => Root::find(
                        &path
                            .canonicalize()
                            .map_err(|error| missing(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?,
                    )
                    .map_err(missing)?,
                    false => root,
                };
            let stat = root.stat().map_err(missing)?;
            if root.slash && Metadata(stat).kind() != FileKind::Directory {
                return Err(missing(Errno::NOTDIR));
            }
            Ok((root, stat))
        };
        let ((source, stat), (destination, _)) = (find(source)?, find(destination)?);
        let (kind, shared) = (Metadata(stat).kind(), Shared::new(options, directory::identity(&stat)));
        let (source_path, top_of_entries) = (source.path().to_owned(), OnceLock::new());
        Ok(Copy { source, source_path, opened: None, kind, destination, top_of_entries, shared })
    }

    /// Returns whether the source is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Returns the path of the copy.
    pub fn destination(&self) -> &Path {
        self.destination.path()
    }

    /// Returns the switch that stops the copy.
    pub fn control(&self) -> &Control {
        &self.shared.control
    }

    /// Returns the progress.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Returns the failures.
    pub fn failures(&self) -> &EntryErrors {
        &self.shared.failures
    }

    /// Returns the entries that were left out on purpose.
    pub fn notes(&self) -> &EntryErrors {
        &self.shared.notes
    }

    /// Counts the entries to be copied, with one thread. `control` stops it.
    pub fn count(&self, control: &Control) -> Counted {
        crate::remove::count_below(
            [self.source_path.as_path()],
            &WalkOptions {
                threads: NonZeroUsize::MIN,
                metadata: self.shared.options.selection.filter.needs_metadata(),
                cross_mounts: self.shared.options.cross_mounts,
                keep_access_times: true,
                ..WalkOptions::default()
            },
            control,
            None,
            (&self.shared.options.selection, true),
        )
    }

    /// Copies everything. Failures of single entries are in [`Copy::failures`].
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn run(&self) -> Result<(), StartError> {
        // Those of a preview are found again, or are no more.
        self.shared.failures.clear();
        let top = self.top()?;
        let _lock = self.lock(&top)?;
        // Now, if it is there: its mode may be one that does not let it be opened later.
        let place = self.open_place();
        if self.kind == FileKind::Directory {
            self.walk(|| visitor::Copier::new(&self.shared, &top, &self.destination, None));
        } else {
            self.copy_one(&top);
        }
        self.sync(place.or_else(|_| self.open_place()));
        Ok(())
    }

    /// Returns whether entries of the destination that the source has not are removed.
    pub fn is_mirror(&self) -> bool {
        self.shared.options.mirror
    }

    /// Counts an entry of the destination with everything in it, by its path there.
    pub fn count_at_destination(&self, below: &[u8]) -> Counted {
        let path = PathBuf::from(std::ffi::OsString::from_vec(self.destination.join(below)));
        let options = WalkOptions { threads: NonZeroUsize::MIN, metadata: false, ..WalkOptions::default() };
        let all = Selection { filter: Filter::default().ready(), descent: Descent::default() };
        let control = self.shared.control.of_part();
        crate::remove::count_below([path.as_path()], &options, &control, None, (&all, true))
    }

    fn top(&self) -> Result<Arc<Destination>, StartError> {
        let nowhere = |errno| StartError::Nowhere { path: self.destination.path().to_owned(), errno };
        let duplicate = self.destination.parent().try_clone_to_owned();
        let fd = duplicate.map_err(|error| nowhere(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        Destination::new_top(fd, self.shared.together).map_err(nowhere)
    }

    /// Locks the destination against other copies, if it exists already; otherwise they meet when it is made.
    fn lock(&self, top: &Destination) -> Result<Option<OwnedFd>, StartError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(top) = top.descriptor() else { return Ok(None) };
        if self.kind == FileKind::Directory {
            // Made here, so that of two copies that begin at once only one goes on.
            let _ = rustix::fs::mkdirat(&top, self.destination.name(), Mode::RWXU);
        }
        let Ok(root) = rustix::fs::openat(&top, self.destination.name(), flags, Mode::empty()) else {
            return Ok(None);
        };
        match rustix::fs::flock(&root, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(StartError::Busy(self.destination.path().to_owned())),
            // Not every file system has locks.
            _ => Ok(Some(root)),
        }
    }

    /// Opens the directory in whose file system the copy is: the copy itself, as one may be mounted there, or the directory
    /// that something else is copied into.
    fn open_place(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = if self.kind == FileKind::Directory { self.destination.name() } else { c"." };
        retry_on_intr(|| rustix::fs::openat(self.destination.parent(), name, flags, Mode::empty()))
    }

    /// Makes the copy durable, if requested.
    fn sync(&self, place: Result<OwnedFd, Errno>) {
        if self.shared.options.fsync
            && !self.shared.control.is_stopped()
            && let Err(errno) = place.and_then(rustix::fs::syncfs)
        {
            self.shared.failures.add(EntryError::new(self.destination.path_bytes(), DURABLE, errno));
        }
    }
}

const DURABLE: &str = "cannot make durable what is in";

fn name_of(path: &Path) -> std::ffi::CString {
    // A path that was opened has no zeros.
    std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Returns whether a directory has no entries.
fn is_empty(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<bool, Errno> {
    let opened = data::open_for_reading(directory, name)?;
    let mut empty = true;
    destination::each_name(opened.as_fd(), |_| {
        empty = false;
        Ok(false)
    })?;
    Ok(empty)
}

/// Returns whether an open directory is another one, or inside of it at any depth.
fn is_within(place: BorrowedFd<'_>, directory: Identity) -> Result<bool, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(place, ".", flags, Mode::empty())?;
    let mut here = identity_of(at.as_fd())?;
    loop {
        if here == directory {
            return Ok(true);
        }
        at = rustix::fs::openat(&at, "..", flags, Mode::empty())?;
        let above = identity_of(at.as_fd())?;
        if above == here {
            return Ok(false);
        }
        here = above;
    }
}

fn now() -> Time {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

/// Returns the identity of this boot of the machine.
fn boot() -> [u8; 16] {
    match std::fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(id) => xxhash_rust::xxh3::xxh3_128(&id).to_le_bytes(),
        // Unknown: then nothing that an earlier run left is relied on.
        Err(_) => {
            let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
            (now ^ u128::from(std::process::id()) << 64).to_le_bytes()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn what_is_made_durable_is_the_file_system_that_the_copy_is_in() {
        let options = Options {
            threads: NonZeroUsize::MIN,
            chunk_bytes: 1 << 20,
            checksum: false,
            force: false,
            fsync: true,
            cross_mounts: false,
            extended: false,
            mirror: false,
            mirror_empty: false,
            selection: Arc::new(Selection { filter: Filter::default().ready(), descent: Descent::default() }),
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
        let place = |source: &Path, destination: &Path| {
            let copy = Copy::new(source, destination, options.clone()).unwrap();
            rustix::fs::fstat(copy.open_place().unwrap()).unwrap().st_dev
        };
        // Nothing is copied there.
        let mounted = Path::new("/proc");
        assert_ne!(device(mounted), device(Path::new("/")));
        assert_eq!(place(folder.path(), mounted), device(mounted));
        assert_eq!(place(&file, &folder.path().join("other")), device(folder.path()));
    }
}
