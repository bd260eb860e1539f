//! A walk: roots, options, and the threads that visit everything below.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crossbeam_deque::Worker;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

use crate::directory::{self, Budget, Directory};
use crate::entry::{Entry, FileKind, Metadata};
use crate::error::{Operation, WalkError};
use crate::pool::{Found, Queue, Work};
use crate::scan::Scanner;
use crate::source::Source;
use crate::unit::Unit;

/// The options of a walk.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of threads.
    pub threads: NonZeroUsize,
    /// Reads every entry's metadata. If false, only that of entries whose type the directory does not give.
    pub metadata: bool,
    /// Continues in other file systems that are mounted below the roots.
    pub cross_mounts: bool,
    /// The size of the buffer of directory entries that is read at once, and then visited by one thread, in bytes.
    pub read_bytes: usize,
    /// Keeps directories open until they are left, as far as the limit on open files allows: for visitors that need a
    /// directory's descriptor when they leave those in it.
    pub keep_open: bool,
    /// Visits the entries that were read together in the order of their inode numbers, which is mostly that of their inodes on the
    /// device: for visitors that change the inodes.
    pub by_inode: bool,
    /// Leaves the access times of directories unchanged, where the system allows it: for their owners and for root.
    pub keep_access_times: bool,
    /// Measures the time spent in each part of the work: see [`Progress::profile`](crate::Progress::profile). Has a
    /// small cost.
    pub profile: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            metadata: true,
            cross_mounts: false,
            read_bytes: 32 << 10,
            keep_open: false,
            by_inode: false,
            keep_access_times: false,
            profile: false,
        }
    }
}

/// A visitor's decision whether to descend into a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Visit its contents too. Ignored for anything but a directory.
    Descend,
    /// Skip its contents.
    Pass,
}

/// A directory that was just opened.
#[derive(derive_more::Debug)]
#[debug("Opened")]
pub struct Opened<'a, S> {
    /// The parent directory; `None` for a root.
    pub directory: Option<&'a Directory<S>>,
    /// The directory's own descriptor. A directory of a [`Source`] has none, and this is that of the working directory.
    pub descriptor: BorrowedFd<'a>,
    /// The name; for a root, the whole path as it was given.
    pub name: &'a CStr,
    /// The number of the root that it is below.
    pub root: u32,
    /// The number of levels below the root.
    pub depth: u32,
    /// True if another process, or an earlier run, has listed it under another name.
    pub renamed: bool,
    /// The source that lists it, and its inode number there.
    pub(crate) source: Option<(&'a dyn Source, u64)>,
}

impl<S> Opened<'_, S> {
    /// Reads its metadata.
    ///
    /// # Errors
    /// The error number of the system, or of the source.
    pub fn stat(&self) -> Result<Metadata, Errno> {
        if let Some((source, inode)) = self.source {
            return source.stat(inode);
        }
        directory::stat_opened(self.descriptor).map(Metadata)
    }
}

/// The handler of a walk's entries. Each thread of a walk has its own.
pub trait Visitor: Send {
    /// The state that it attaches to a directory while that is walked.
    type State: Send + Sync;

    /// Called when a directory was opened, before its entries are visited. `None` skips them.
    fn enter(&mut self, directory: &Opened<'_, Self::State>) -> Option<Self::State>;

    /// Called once for every entry.
    fn visit(&mut self, entry: &Entry<'_, Self::State>) -> Verdict;

    /// Called when a batch of a directory's entries was visited by this thread; [`Visitor::leave`] comes later,
    /// perhaps on another thread. Sums since the last batch can be added to the directory's state here.
    fn visited(&mut self, directory: &Directory<Self::State>) {
        let _ = directory;
    }

    /// Called when everything below a directory was visited by this walk, as far as possible.
    fn leave(&mut self, directory: &Directory<Self::State>) {
        let _ = directory;
    }

    /// Writes the state of a directory to `packed`, in few bytes, and returns whether it did. The directory is far below its root, and
    /// waits for nothing but the subdirectory whose state is `child`. The walk keeps what is written instead of the state, which it
    /// drops, until [`Visitor::unpack`]: so a chain of a million directories takes little memory.
    fn pack(state: &Self::State, child: &Self::State, packed: &mut Vec<u8>) -> bool {
        let _ = (state, child, packed);
        false
    }

    /// Returns the state that [`Visitor::pack`] has written, before the subdirectory is left.
    ///
    /// # Panics
    /// Unless it is implemented, like [`Visitor::pack`].
    fn unpack(packed: &[u8], child: &Self::State) -> Self::State {
        let _ = (packed, child);
        unreachable!("a visitor that does not pack unpacks nothing")
    }

    /// Called when a directory was visited, but not entered, because another file system is mounted there.
    fn mount_point(&mut self, path: Vec<u8>) {
        let _ = path;
    }

    /// Called when something in a directory, or its rest, was not visited. [`Visitor::failed`] or
    /// [`Visitor::mount_point`] gives the details.
    fn incomplete(&mut self, directory: &Directory<Self::State>) {
        let _ = directory;
    }

    /// Called when there is nothing to walk at the moment, before the thread sleeps. A visitor that shares out work of
    /// its own does a part of it here, and returns true if it did. See [`Queue::call`].
    fn assist(&mut self) -> bool {
        false
    }

    /// Called for an entry that could not be visited.
    fn failed(&mut self, error: WalkError);
}

/// The way in which a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything was visited.
    Done,
    /// The walk was asked to stop; the rest is still queued.
    Stopped,
}

/// A walk of some roots: it can be stopped and continued, and the work that is left can be saved.
#[derive(derive_more::Debug)]
#[debug("Walk")]
pub struct Walk<S> {
    options: Options,
    roots: Vec<CString>,
    source: Option<Arc<dyn Source>>,
    queue: Arc<Queue<S>>,
    workers: Vec<Worker<Work<S>>>,
    budget: Arc<Budget>,
}

impl<S: Send + Sync> Walk<S> {
    /// Creates a walk without roots.
    pub fn new(options: Options) -> Walk<S> {
        let (queue, workers) = Queue::new(options.threads.get());
        let budget = Arc::new(Budget::new(descriptors_max(), options.keep_access_times));
        Walk { options, roots: Vec::new(), source: None, queue: Arc::new(queue), workers, budget }
    }

    /// Sets the source whose tree is walked instead of file systems of this machine. The roots are in that tree.
    pub fn set_source(&mut self, source: Arc<dyn Source>) {
        self.source = Some(source);
    }

    /// Returns the queue of the work that is left.
    pub fn queue(&self) -> &Arc<Queue<S>> {
        &self.queue
    }

    /// Registers a root, and returns its number. This visits nothing: see [`Walk::start`] and [`Queue::put`].
    ///
    /// # Errors
    /// If the path contains a zero byte.
    pub fn add_root(&mut self, path: &Path) -> std::io::Result<u32> {
        self.roots.push(CString::new(path.as_os_str().as_bytes())?);
        Ok(self.roots.len() as u32 - 1)
    }

    /// Visits a root itself, and queues it if it is a directory.
    ///
    /// # Errors
    /// If the root's metadata cannot be read.
    pub fn start<V: Visitor<State = S>>(&self, root: u32, visitor: &mut V) -> Result<(), WalkError> {
        let name = &self.roots[root as usize];
        let asked = match &self.source {
            Some(source) => source.find(name),
            None => directory::stat(CWD, name).map(Metadata),
        };
        let metadata =
            asked.map_err(|errno| WalkError::new(name.to_bytes().to_vec(), Operation::Stat, errno))?;
        let prefix = OnceCell::new();
        let entry = Entry {
            directory: None,
            descriptor: None,
            prefix: &prefix,
            name,
            kind: metadata.kind(),
            inode: metadata.inode(),
            metadata: Some(&metadata),
            layout: None,
            root,
            depth: 0,
        };
        if visitor.visit(&entry) == Verdict::Descend && entry.kind == FileKind::Directory {
            self.queue.inject(Work::Located(Unit { root, ..Unit::default() }));
        }
        Ok(())
    }

    /// Visits everything that is queued, with one thread for each visitor.
    ///
    /// # Panics
    /// With another number of visitors than [`Options::threads`], or if a visitor panics.
    pub fn run<V: Visitor<State = S>>(&mut self, visitors: &mut [V]) -> Ended {
        assert_eq!(visitors.len(), self.workers.len(), "every thread has a visitor of its own");
        let (queue, options, budget) = (&*self.queue, &self.options, &self.budget);
        let trees = (&*self.roots, self.source.as_deref());
        let mut threads = self.workers.iter_mut().zip(visitors).enumerate();
        // The first works on the thread that is here anyway.
        let first = threads.next();
        std::thread::scope(|scope| {
            for (number, (own, visitor)) in threads {
                scope.spawn(move || run_thread(number, own, visitor, queue, options, trees, budget));
            }
            if let Some((number, (own, visitor))) = first {
                run_thread(number, own, visitor, queue, options, trees, budget);
            }
        });
        // A stop ends this run, or the next one if it came too late for this.
        queue.allow();
        if queue.is_idle() { Ended::Done } else { Ended::Stopped }
    }

    /// Returns the work that is left after a stopped run, as units. Each directory that is begun is passed to `begun`,
    /// once, with the state that the visitors attached to it, unless it is packed ([`Visitor::pack`]).
    pub fn frontier(&mut self, mut begun: impl FnMut(&Arc<Directory<S>>)) -> Vec<Unit> {
        let mut all = Vec::new();
        while let Some(work) = self.queue.steal(0) {
            self.queue.count_out();
            all.push(work);
        }
        let mut units = Vec::new();
        let mut shown = HashSet::new();
        for work in &all {
            let at = match work {
                Work::Located(unit) | Work::Entry(unit) => {
                    units.push(unit.clone());
                    None
                }
                Work::Rest(directory) => {
                    units.push(directory.rest());
                    Some(directory)
                }
                Work::Listing(directory, after) => {
                    units.push(Unit { after: Some(after.clone()), ..directory.unit() });
                    Some(directory)
                }
                Work::Children(directory, names) => {
                    directory.unit().children(names.iter(), &mut units);
                    Some(directory)
                }
                Work::Given(directory) => Some(directory),
            };
            let mut at = at.map(Arc::clone);
            while let Some(directory) = at
                && shown.insert(Arc::as_ptr(&directory))
            {
                begun(&directory);
                at = directory.ancestor();
            }
        }
        for work in all {
            self.queue.inject(work);
        }
        units
    }
}

/// Stops the walk if a thread panics: the others would wait for ever for the piece that it does not finish.
struct StopOnPanic<'a, S: Send + Sync>(&'a Queue<S>);

impl<S: Send + Sync> Drop for StopOnPanic<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

fn run_thread<V: Visitor>(
    number: usize,
    own: &Worker<Work<V::State>>,
    visitor: &mut V,
    queue: &Queue<V::State>,
    options: &Options,
    (roots, source): (&[CString], Option<&dyn Source>),
    budget: &Arc<Budget>,
) {
    let _stop = StopOnPanic(queue);
    let progress = queue.progress().thread(number);
    let buffer = vec![0; options.read_bytes.max(crate::scan::READ_BYTES_MIN)];
    let mut scanner =
        Scanner { visitor, queue, own, progress, options, roots, source, budget, buffer, located: None };
    while !queue.is_stopped() {
        let calls = queue.calls();
        let work = match queue.pop(own).or_else(|| queue.steal(number)) {
            Some(work) => work,
            None if scanner.visitor.assist() => continue,
            None => match queue.wait(number, calls) {
                Found::Work(work) => work,
                Found::Call => continue,
                Found::Nothing => break,
            },
        };
        progress.busy.store(true, std::sync::atomic::Ordering::Relaxed);
        scanner.work(work);
        queue.count_out();
        progress.busy.store(false, std::sync::atomic::Ordering::Relaxed);
    }
    if queue.is_stopped() {
        // The pieces from outside have an order, which one thread keeps.
        scanner.wind_up(number == 0);
    }
    scanner.close();
}

/// Returns the maximum number of open directories: the limit on open files is raised as far as possible, and some
/// descriptors are reserved for other uses.
fn descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(1 << 16);
    let current = limit.current.unwrap_or(u64::MAX);
    if current < wanted {
        // Without it there are fewer, which costs time and nothing else.
        let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
    let current = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (current.min(1 << 16) as usize).saturating_sub(64).max(16) / 2
}
