//! Copying a file or a tree, with all metadata.
//!
//! - Source and destination are both walked by descriptor; no link is followed on either side, so that renaming what
//!   the copy has passed cannot redirect it.
//! - A file is written under a temporary name (`file::UNFINISHED`) and renamed into its place when it is complete, with
//!   its metadata. There is never a partial file under the final name, and no existing file is written to.
//! - Entries that exist at the destination, with the same size and time, are not copied again. Of large files, the
//!   chunks that an earlier run finished are not copied again either (`record`).
//! - Large files are shared out in chunks among idle threads (`job`).
//! - A directory gets its mode and times when everything in it is done.

mod attributes;
mod data;
mod destination;
mod file;
mod job;
mod link;
mod record;
mod verify;
mod visitor;

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use attributes::Preserver;
use data::{BUFFER_BYTES, Halt, ShortCuts};
use destination::Destination;
pub use file::is_unfinished;
use job::{Job, Jobs, Surroundings};
use link::Links;
use nacre_walk::Queue;
use nacre_walk::directory::{self, Identity};
use nacre_walk::filter::Selection;
use nacre_walk::{FileKind, Metadata, Time};
use nacre_walk::{Options as WalkOptions, Walk};
use parking_lot::Mutex;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::control::Control;
use crate::error::{EntryError, EntryErrors};
use crate::remove::Counted;
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
    /// The entries to copy; directories are made where the walk enters them. The source itself is copied in any case.
    pub selection: Arc<Selection>,
}

/// The reason why a copy is refused before it begins.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The source does not exist or cannot be reached.
    #[error("cannot copy {path:?}: {error}", error = std::io::Error::from(*errno))]
    Missing {
        /// The path.
        path: PathBuf,
        /// The error number.
        errno: Errno,
    },
    /// The directory of the destination does not exist or cannot be reached.
    #[error("cannot copy to {path:?}: {error}; the directory that the copy is to be made in has to exist", error = std::io::Error::from(*errno))]
    Nowhere {
        /// The path.
        path: PathBuf,
        /// The error number.
        errno: Errno,
    },
    /// The destination is inside the source.
    #[error("not copying {0:?} into itself: {1:?} is in it")]
    Inside(PathBuf, PathBuf),
    /// Source and destination are the same.
    #[error("{0:?} and {1:?} are the same")]
    Same(PathBuf, PathBuf),
    /// The destination is a symbolic link.
    #[error(
        "not copying to {0:?}: it is a symbolic link; name what it points to, or put a slash behind it to copy into that"
    )]
    Link(PathBuf),
    /// The destination is not a directory, but the source is.
    #[error("not copying to {0:?}: it is no directory; --force replaces it")]
    NoDirectory(PathBuf),
    /// The source has no name that its copy could have.
    #[error("cannot copy {0:?} into a directory: it ends in \".\" or \"..\"; give the directory's own name")]
    Nameless(PathBuf),
    /// The destination is a device, a pipe or a socket.
    #[error(
        "not copying to {0:?}: it is a device, pipe or socket; name another place, or replace it with --force"
    )]
    Special(PathBuf),
    /// Another copy is writing to the destination.
    #[error("not copying to {0:?}: another copy is writing there at the moment")]
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
    /// The number of entries that were compared with their copies afterwards.
    pub verified: AtomicU64,
}

pub(crate) struct Shared {
    pub options: Options,
    pub control: Control,
    pub counters: Counters,
    pub faults: EntryErrors,
    pub notes: EntryErrors,
    pub keeper: Preserver,
    pub links: Links,
    pub jobs: Jobs,
    pub cuts: ShortCuts,
    /// The identity of this boot of the machine, or zeros if that does not matter.
    pub boot: [u8; 16],
    /// The time at which the copy began.
    pub began: Time,
    /// The identity of the copy's root, once known: it must not be met in the source.
    pub root: Mutex<Option<Identity>>,
    verifying: AtomicBool,
    call: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Shared {
    pub fn verifying(&self) -> bool {
        self.verifying.load(Ordering::Relaxed)
    }

    fn around(&self) -> Surroundings<'_> {
        Surroundings { control: &self.control, cuts: &self.cuts, bytes: &self.counters.bytes }
    }

    /// Works on a large file with all idle threads.
    pub fn run(&self, job: Job, buffer: &mut [u8]) -> Result<(), Halt> {
        self.jobs.run(job, &self.around(), buffer, || {
            if let Some(call) = &*self.call.lock() {
                call();
            }
        })
    }

    /// Helps other threads with a large file, and returns whether there was work.
    pub fn help(&self, buffer: &mut Vec<u8>) -> bool {
        buffer.resize(BUFFER_BYTES, 0);
        self.jobs.help(&self.around(), buffer)
    }

    fn attach<S: Send + Sync + 'static>(&self, queue: &Arc<Queue<S>>) {
        self.control.attach(queue);
        let queue = Arc::clone(queue);
        *self.call.lock() = Some(Box::new(move || queue.call()));
    }
}

/// A copy whose source and destination have been checked.
#[derive(derive_more::Debug)]
#[debug("Copy")]
pub struct Copy {
    source: Root,
    /// The path at which the walk begins.
    source_path: PathBuf,
    kind: FileKind,
    destination: Root,
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
        let missing = |errno| StartError::Missing { path: source.to_owned(), errno };
        let from = Root::find(source).map_err(missing)?;
        let mut source_path = from.path().to_owned();
        if from.slash && from.path() != Path::new("/") {
            // Through a link, if it is one: that is what the slash says.
            source_path.push(".");
        }
        let stat = directory::stat(CWD, &name_of(&source_path)).map_err(missing)?;
        let (kind, identity) = (Metadata(stat).kind(), directory::identity(&stat));

        let nowhere = |errno| StartError::Nowhere { path: destination.to_owned(), errno };
        let found = Root::find(destination).map_err(nowhere)?;
        let there = found.stat().ok().map(|stat| Metadata(stat).kind());
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
        if kind == FileKind::Directory && is_within(&to, identity).map_err(nowhere)? {
            return Err(StartError::Inside(source.to_owned(), to.path().to_owned()));
        }
        let boot = if options.fsync { [0; 16] } else { boot() };
        let shared = Shared {
            keeper: Preserver::new(options.extended),
            options,
            control: Control::default(),
            counters: Counters::default(),
            faults: EntryErrors::default(),
            notes: EntryErrors::default(),
            links: Links::default(),
            jobs: Jobs::default(),
            cuts: ShortCuts::default(),
            boot,
            began: now(),
            root: Mutex::new(None),
            verifying: AtomicBool::new(false),
            call: Mutex::new(None),
        };
        Ok(Copy { source: from, source_path, kind, destination: to, shared })
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
    pub fn faults(&self) -> &EntryErrors {
        &self.shared.faults
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

    /// Copies everything. Failures of single entries are in [`Copy::faults`].
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn run(&self) -> Result<(), StartError> {
        let top = self.top()?;
        let _lock = self.lock(&top)?;
        if self.kind == FileKind::Directory {
            self.walk(|| visitor::Copier::new(&self.shared, &top, &self.destination));
        } else {
            self.copy_one(&top);
        }
        if self.shared.options.fsync && !self.shared.control.is_stopped() {
            let synced = top
                .descriptor()
                .and_then(|top| {
                    rustix::fs::openat(&top, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                })
                .and_then(rustix::fs::syncfs);
            if let Err(errno) = synced {
                let path = self.destination.path_bytes();
                self.shared.faults.add(EntryError::new(path, "cannot make durable what is in", errno));
            }
        }
        Ok(())
    }

    /// Compares everything with its copy. Differences are in [`Copy::faults`].
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn verify(&self) -> Result<(), StartError> {
        self.shared.verifying.store(true, Ordering::Relaxed);
        self.shared.counters.bytes.store(0, Ordering::Relaxed);
        let top = self.top()?;
        // What is still to be written cannot be forgotten by memory, and so would not be read from the device.
        if let Ok(fd) = top.descriptor()
            && let Ok(fd) = rustix::fs::openat(&fd, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        {
            let _ = rustix::fs::syncfs(fd);
        }
        if self.kind == FileKind::Directory {
            self.walk(|| verify::Verifier::new(&self.shared, &top, &self.destination));
        } else {
            self.alone(|buffer| {
                let mut verifier = verify::Verifier::new(&self.shared, &top, &self.destination);
                let (parent, name) = (self.source.parent(), self.source.name());
                verifier.compare(parent, name, self.kind, &top, self.destination.name(), buffer, || {
                    self.source.path_bytes()
                });
            });
        }
        Ok(())
    }

    fn top(&self) -> Result<Arc<Destination>, StartError> {
        let nowhere = |errno| StartError::Nowhere { path: self.destination.path().to_owned(), errno };
        let duplicate = self.destination.parent().try_clone_to_owned();
        let fd = duplicate.map_err(|error| nowhere(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        Destination::top(fd).map_err(nowhere)
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

    fn walk<V: nacre_walk::Visitor<State = Arc<Destination>>>(&self, visitor: impl Fn() -> V) {
        let options = WalkOptions {
            threads: self.shared.options.threads,
            // Files are opened, and asked when they are.
            metadata: self.shared.options.selection.filter.needs_metadata(),
            cross_mounts: self.shared.options.cross_mounts,
            keep_open: true,
            keep_access_times: true,
            ..WalkOptions::default()
        };
        let mut visitors: Vec<V> = (0..options.threads.get()).map(|_| visitor()).collect();
        let mut walk = Walk::new(options);
        self.shared.attach(walk.queue());
        let started = walk
            .add_root(&self.source_path)
            .map_err(|_| EntryError::new(self.source.path_bytes(), "cannot copy", Errno::INVAL))
            .and_then(|root| walk.start(root, &mut visitors[0]).map_err(EntryError::from));
        if let Err(fault) = started {
            self.shared.faults.add(fault);
        }
        walk.run(&mut visitors);
        *self.shared.call.lock() = None;
    }

    /// Copies a source that is a single file: the other threads help with it, if it is large.
    fn copy_one(&self, top: &Arc<Destination>) {
        self.alone(|buffer| {
            let item = file::Item {
                shared: &self.shared,
                source: self.source.parent(),
                source_name: self.source.name(),
                destination: top,
                name: self.destination.name(),
            };
            visitor::account(&self.shared, self.kind, item.copy(self.kind, buffer), || {
                self.source.path_bytes()
            });
        });
    }

    fn alone(&self, work: impl FnOnce(&mut Vec<u8>)) {
        let over = AtomicBool::new(false);
        let calls = (Mutex::new(0_u64), parking_lot::Condvar::new());
        let calls = Arc::new(calls);
        let caller = Arc::clone(&calls);
        *self.shared.call.lock() = Some(Box::new(move || {
            *caller.0.lock() += 1;
            caller.1.notify_all();
        }));
        std::thread::scope(|scope| {
            for _ in 1..self.shared.options.threads.get() {
                scope.spawn(|| {
                    let (mut buffer, mut known) = (Vec::new(), 0);
                    loop {
                        let mut now = calls.0.lock();
                        while *now == known && !over.load(Ordering::SeqCst) {
                            calls.1.wait(&mut now);
                        }
                        known = *now;
                        drop(now);
                        if over.load(Ordering::SeqCst) {
                            break;
                        }
                        self.shared.help(&mut buffer);
                    }
                });
            }
            work(&mut Vec::new());
            let _lock = calls.0.lock();
            over.store(true, Ordering::SeqCst);
            calls.1.notify_all();
        });
        *self.shared.call.lock() = None;
    }
}

fn name_of(path: &Path) -> std::ffi::CString {
    // A path that was opened has no zeros.
    std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Returns whether a place is inside a directory, at any depth.
fn is_within(place: &Root, directory: Identity) -> Result<bool, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(place.parent(), ".", flags, Mode::empty())?;
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
