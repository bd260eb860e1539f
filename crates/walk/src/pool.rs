//! The queued work of a walk, shared by its threads: each has its own queue and steals from the others'.
//!
//! - A thread takes its own newest piece, which keeps the walk deep and the queues short, and steals the oldest of
//!   others, which stands for the largest part of the tree.
//! - `outstanding` counts the pieces that are queued or being worked on; a walk is over when it is 0.
//! - No thread spins: one that finds no work sleeps, and queueing a piece wakes a sleeping thread.
//! - Memory: a piece that stands for subdirectories holds their names only, as many as one reading of a directory
//!   gave. Where very many names are queued, directories are read in smaller batches.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_deque::{Injector, Steal, Stealer, Worker};
use crossbeam_utils::CachePadded;

use crate::directory::Directory;
use crate::snapshot::Snapshot;
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, fence};
use crate::unit::Unit;

/// A piece of work.
pub(crate) enum Work<S> {
    /// The unread entries of a directory.
    Rest(Arc<Directory<S>>),
    /// The entries of a directory of a source ([`crate::Source`]) that come after this name.
    Listing(Arc<Directory<S>>, Vec<u8>),
    /// Unopened subdirectories of a directory.
    Children(Arc<Directory<S>>, Names),
    /// A unit from outside, whose directory has to be located first.
    Located(Unit),
    /// An entry from outside, to be visited on its own, and listed if it is a directory.
    Entry(Unit),
    /// A mark that a piece of the directory was given away.
    Given(Arc<Directory<S>>),
}

impl<S> Work<S> {
    /// Returns the number of directories that could be given away one by one.
    fn units(&self) -> usize {
        match self {
            Work::Rest(_) | Work::Listing(..) | Work::Located(_) => 1,
            Work::Children(_, names) => names.count,
            Work::Given(_) | Work::Entry(_) => 0,
        }
    }

    /// Returns the number of levels below the root.
    fn depth(&self) -> usize {
        match self {
            Work::Rest(directory)
            | Work::Listing(directory, _)
            | Work::Children(directory, _)
            | Work::Given(directory) => directory.depth() as usize,
            Work::Located(unit) | Work::Entry(unit) => unit.inodes.len(),
        }
    }
}

/// The depth from which on a directory is far below its root.
const FAR_DEPTH_MIN: usize = 64;

/// The length of the paths of units that are given away at once, in bytes, after which no more are.
const GIVEN_BYTES: usize = 1 << 20;

/// Names of subdirectories, in the order in which they were found: eight bytes of inode number and the name, terminated
/// by a zero byte, for each.
#[derive(Default)]
pub(crate) struct Names {
    bytes: Vec<u8>,
    next: usize,
    count: usize,
}

impl Names {
    pub fn push(&mut self, name: &CStr, inode: u64) {
        self.bytes.extend_from_slice(&inode.to_ne_bytes());
        self.bytes.extend_from_slice(name.to_bytes_with_nul());
        self.count += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn at(&self, place: usize) -> Option<(&CStr, u64)> {
        let (inode, rest) = self.bytes[place..].split_first_chunk()?;
        Some((CStr::from_bytes_until_nul(rest).ok()?, u64::from_ne_bytes(*inode)))
    }

    /// Iterates over the names not yet taken, with their inode numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&CStr, u64)> {
        let mut place = self.next;
        std::iter::from_fn(move || {
            let (name, inode) = self.at(place)?;
            place += 8 + name.to_bytes_with_nul().len();
            Some((name, inode))
        })
    }

    /// Takes the first name.
    pub fn pop(&mut self) -> Option<(Box<CStr>, u64)> {
        let (name, inode) = self.at(self.next)?;
        let (name, inode): (Box<CStr>, u64) = (name.into(), inode);
        self.next += 8 + name.to_bytes_with_nul().len();
        self.count -= 1;
        Some((name, inode))
    }

    /// Shrinks the buffer to the remaining entries.
    fn shrink(&mut self) {
        self.bytes.drain(..self.next);
        self.bytes.shrink_to_fit();
        self.next = 0;
    }
}

/// The progress of a walk, readable while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    threads: Vec<CachePadded<ThreadProgress>>,
}

/// The progress of one thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadProgress {
    pub entries: AtomicU64,
    pub directories: AtomicU64,
    pub errors: AtomicU64,
    pub busy: AtomicBool,
    /// The times of [`Profile`], in nanoseconds.
    pub opening: AtomicU64,
    pub reading: AtomicU64,
    pub asking: AtomicU64,
    pub visiting: AtomicU64,
}

/// The time that the threads of a walk spent in each part of the work, added up: the parts of figure 3b of the paper.
/// Recorded if [`Options::profile`](crate::Options::profile) is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Profile {
    /// Time spent opening directories.
    pub opening_ns: u64,
    /// Time spent reading their entries.
    pub reading_ns: u64,
    /// Time spent reading entries' metadata.
    pub asking_ns: u64,
    /// Time spent in the visitors.
    pub visiting_ns: u64,
}

impl ThreadProgress {
    pub fn count(&self, counter: &AtomicU64, by: u64) {
        // Only its own thread writes to it.
        counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }
}

impl Progress {
    fn new(threads: usize) -> Progress {
        Progress { threads: (0..threads).map(|_| CachePadded::default()).collect() }
    }

    pub(crate) fn thread(&self, number: usize) -> &ThreadProgress {
        &self.threads[number]
    }

    fn sum(&self, of: impl Fn(&ThreadProgress) -> u64) -> u64 {
        self.threads.iter().map(|thread| of(thread)).sum()
    }

    /// Returns the number of entries visited.
    pub fn entries(&self) -> u64 {
        self.sum(|thread| thread.entries.load(Ordering::Relaxed))
    }

    /// Returns the number of directories opened.
    pub fn directories(&self) -> u64 {
        self.sum(|thread| thread.directories.load(Ordering::Relaxed))
    }

    /// Returns the number of errors met.
    pub fn errors(&self) -> u64 {
        self.sum(|thread| thread.errors.load(Ordering::Relaxed))
    }

    /// Returns the number of threads at work.
    pub fn busy(&self) -> usize {
        self.sum(|thread| u64::from(thread.busy.load(Ordering::Relaxed))) as usize
    }

    /// Returns the time spent in each part of the work.
    pub fn profile(&self) -> Profile {
        Profile {
            opening_ns: self.sum(|thread| thread.opening.load(Ordering::Relaxed)),
            reading_ns: self.sum(|thread| thread.reading.load(Ordering::Relaxed)),
            asking_ns: self.sum(|thread| thread.asking.load(Ordering::Relaxed)),
            visiting_ns: self.sum(|thread| thread.visiting.load(Ordering::Relaxed)),
        }
    }

    /// Returns the number of entries that each thread visited.
    pub fn entries_by_thread(&self) -> Vec<u64> {
        self.threads.iter().map(|thread| thread.entries.load(Ordering::Relaxed)).collect()
    }
}

/// The work of a walk that is left, as seen and changed by code other than its own threads.
#[derive(derive_more::Debug)]
#[debug("Queue")]
pub struct Queue<S> {
    injector: Injector<Work<S>>,
    stealers: Vec<Stealer<Work<S>>>,
    /// The number of queued directories.
    units: AtomicUsize,
    /// The number of pieces that are queued or being worked on.
    outstanding: AtomicUsize,
    /// More work may come from outside: threads wait for it when nothing is outstanding.
    open: AtomicBool,
    stop: AtomicBool,
    /// The number of calls to assist.
    calls: AtomicUsize,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    /// Notified when there is work, for waiting threads.
    work: Condvar,
    /// Notified when nothing is outstanding.
    idle: Condvar,
    /// The contents of directories that were visited as assigned entries.
    found: Mutex<Vec<Unit>>,
    /// The current names of directories that were renamed before their units were opened, by root, inode number of the
    /// parent directory, and their own. Usually empty.
    moved: Mutex<HashMap<(u32, u64, u64), CString>>,
    some_moved: AtomicBool,
    progress: Progress,
}

impl<S: Send + Sync> Queue<S> {
    pub(crate) fn new(threads: usize) -> (Queue<S>, Vec<Worker<Work<S>>>) {
        let workers: Vec<_> = (0..threads).map(|_| Worker::new_lifo()).collect();
        let queue = Queue {
            injector: Injector::new(),
            stealers: workers.iter().map(Worker::stealer).collect(),
            units: AtomicUsize::new(0),
            outstanding: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            work: Condvar::new(),
            idle: Condvar::new(),
            found: Mutex::default(),
            moved: Mutex::default(),
            some_moved: AtomicBool::new(false),
            progress: Progress::new(threads),
        };
        (queue, workers)
    }

    /// Returns the number of queued directories. All can be given away, except for the rests of directories whose file
    /// system has no stable positions.
    pub fn units(&self) -> usize {
        self.units.load(Ordering::Relaxed)
    }

    /// Returns whether nothing is queued and no thread is at work.
    pub fn is_idle(&self) -> bool {
        self.outstanding.load(Ordering::Acquire) == 0
    }

    /// Returns the number of threads at work.
    pub fn working(&self) -> usize {
        self.progress.busy()
    }

    /// Queues one entry to be visited on its own; the contents of a directory are not visited but returned by
    /// [`Queue::found`] once [`Queue::is_idle`]. So a master can hand out a tree entry by entry. The path of a root,
    /// empty, stands for the root's contents only: see [`Walk::start`](crate::Walk::start).
    pub fn assign(&self, entry: Unit) {
        self.inject(Work::Entry(entry));
    }

    /// Takes the entries found in the directories among the assigned entries.
    pub fn found(&self) -> Vec<Unit> {
        std::mem::take(&mut self.found.lock())
    }

    /// Returns the number of entries that [`Queue::found`] would take.
    pub fn found_count(&self) -> usize {
        self.found.lock().len()
    }

    pub(crate) fn add_found(&self, units: Vec<Unit>) {
        self.found.lock().extend(units);
    }

    /// Returns the current name of a renamed directory, if it was looked up before.
    pub(crate) fn moved(&self, place: (u32, u64, u64)) -> Option<CString> {
        if !self.some_moved.load(Ordering::Acquire) {
            return None;
        }
        self.moved.lock().get(&place).cloned()
    }

    pub(crate) fn add_moved(&self, place: (u32, u64, u64), name: CString) {
        self.moved.lock().insert(place, name);
        self.some_moved.store(true, Ordering::Release);
    }

    /// Returns the progress of the walk.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns the progress of the walk at this moment.
    pub fn snapshot(&self) -> Snapshot {
        let progress = &self.progress;
        Snapshot {
            entries: progress.entries(),
            directories: progress.directories(),
            pending: self.units() as u64,
            errors: progress.errors(),
            busy: progress.busy() as u64,
            threads: progress.threads.len() as u64,
        }
    }

    /// Keeps the threads waiting when nothing is outstanding, because more work may come by [`Queue::put`], until
    /// [`Queue::close`].
    pub fn keep_open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    /// Lets the walk end when nothing is outstanding, because no more work comes.
    pub fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
        self.wake_all();
    }

    /// Makes every thread stop as soon as it has visited what it has read. The rest stays queued.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    /// Makes every sleeping thread ask its visitor once more whether it can assist ([`crate::Visitor::assist`]).
    pub fn call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.wake_all();
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Returns whether the walk is to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn allow(&self) {
        self.stop.store(false, Ordering::SeqCst);
    }

    /// Queues units from outside.
    pub fn put(&self, units: Vec<Unit>) {
        for unit in units {
            self.inject(Work::Located(unit));
        }
    }

    pub(crate) fn inject(&self, work: Work<S>) {
        self.count_in(&work);
        self.injector.push(work);
        self.wake_one();
    }

    /// Takes up to `max` directories to be given away, the oldest first; they are no longer visited here. Of the rest of a large
    /// one half is taken, where it can be divided. The last one stays as a whole if it is far below its root: whoever takes it has to
    /// open every directory on its path, and of a long chain, which is never more than one piece of work, would soon have to give it
    /// away again.
    /// Of directories with very long paths, fewer are taken at once.
    pub fn take(&self, max: usize) -> Vec<Unit> {
        let mut taken: Vec<Unit> = Vec::new();
        let mut back = Vec::new();
        let mut stolen = 0;
        let (mut counted, mut bytes) = (0, 0);
        while taken.len() < max && bytes < GIVEN_BYTES {
            let Some(mut work) = self.steal(0) else { break };
            stolen += 1;
            if work.units() == 1 && self.units() == 0 && work.depth() >= FAR_DEPTH_MIN {
                // Half of a large directory is worth the way.
                if let Work::Rest(directory) = &work
                    && let Some(half) = directory.halve()
                {
                    taken.push(half);
                    directory.mark_split();
                }
                back.push(work);
                break;
            }
            match &mut work {
                Work::Located(unit) => taken.push(unit.clone()),
                Work::Entry(_) | Work::Listing(..) => back.push(work),
                Work::Rest(directory) => {
                    // Of a large directory half stays: both can then be divided again, where one rest would have to go from
                    // one to the next.
                    if let Some(half) = directory.halve() {
                        taken.push(half);
                        directory.mark_split();
                        back.push(work);
                    } else if directory.stable_position().is_some() {
                        taken.push(directory.rest());
                        directory.mark_split();
                        back.push(Work::Given(Arc::clone(directory)));
                    } else {
                        back.push(work);
                    }
                }
                Work::Children(directory, names) => {
                    let parent = directory.unit();
                    directory.mark_split();
                    // Each of them has the whole path.
                    let fitting = (GIVEN_BYTES - bytes).div_ceil(parent.path_bytes().max(1));
                    let max = max.min(taken.len() + fitting);
                    if names.count <= max - taken.len() {
                        parent.children(names.iter(), &mut taken);
                        back.push(Work::Given(Arc::clone(directory)));
                    } else {
                        while taken.len() < max
                            && let Some((name, inode)) = names.pop()
                        {
                            taken.push(parent.child(name.to_bytes(), inode));
                        }
                        names.shrink();
                        back.push(work);
                    }
                }
                Work::Given(_) => {
                    back.push(work);
                    // Nothing but what was given away is left.
                    if self.units() == 0 {
                        break;
                    }
                }
            }
            bytes += taken[counted..].iter().map(Unit::path_bytes).sum::<usize>();
            counted = taken.len();
        }
        // Whatever stays is counted again before it is no longer counted as stolen: meanwhile nothing looks idle.
        for work in back {
            self.inject(work);
        }
        (0..stolen).for_each(|_| self.count_out());
        taken
    }

    /// Waits until nothing is outstanding, or for `timeout`; returns whether nothing is outstanding.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        let mut lock = self.lock.lock();
        if !self.is_idle() {
            self.idle.wait_for(&mut lock, timeout);
        }
        self.is_idle()
    }

    /// Takes the oldest piece of the outside work or of a thread, beginning with thread `first`.
    pub(crate) fn steal(&self, first: usize) -> Option<Work<S>> {
        loop {
            let mut again = false;
            let outside = std::iter::once_with(|| self.injector.steal());
            let (after, before) = (&self.stealers[first..], &self.stealers[..first]);
            for steal in outside.chain(after.iter().chain(before).map(Stealer::steal)) {
                match steal {
                    Steal::Success(work) => {
                        self.units.fetch_sub(work.units(), Ordering::Relaxed);
                        return Some(work);
                    }
                    Steal::Retry => again = true,
                    Steal::Empty => {}
                }
            }
            if !again {
                return None;
            }
        }
    }

    /// Takes all pieces of the outside work, in their order.
    pub(crate) fn take_outside(&self) -> Vec<Work<S>> {
        let mut taken = Vec::new();
        loop {
            match self.injector.steal() {
                Steal::Success(work) => {
                    self.units.fetch_sub(work.units(), Ordering::Relaxed);
                    taken.push(work);
                }
                Steal::Retry => {}
                Steal::Empty => return taken,
            }
        }
    }

    /// Takes a thread's own newest piece.
    pub(crate) fn pop(&self, own: &Worker<Work<S>>) -> Option<Work<S>> {
        let work = own.pop()?;
        self.units.fetch_sub(work.units(), Ordering::Relaxed);
        Some(work)
    }

    /// Queues a piece in a thread's own queue.
    pub(crate) fn push(&self, own: &Worker<Work<S>>, work: Work<S>) {
        self.count_in(&work);
        own.push(work);
        self.wake_one();
    }

    fn count_in(&self, work: &Work<S>) {
        self.units.fetch_add(work.units(), Ordering::Relaxed);
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a piece as done, and wakes the waiters if it was the last.
    pub(crate) fn count_out(&self) {
        if self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wake_all();
        }
    }

    fn wake_one(&self) {
        // The piece is visible before the number of sleepers is read; a sleeper counts itself before it looks for
        // pieces a last time. So one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            let _lock = self.lock.lock();
            self.work.notify_one();
        }
    }

    fn wake_all(&self) {
        let _lock = self.lock.lock();
        self.work.notify_all();
        self.idle.notify_all();
    }

    /// Waits for work, or until the number of calls to assist differs from `calls`.
    pub(crate) fn wait(&self, thread: usize, calls: usize) -> Found<S> {
        let mut lock = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        let found = loop {
            fence(Ordering::SeqCst);
            if self.is_stopped() {
                break Found::Nothing;
            }
            if let Some(work) = self.steal(thread) {
                break Found::Work(work);
            }
            if self.is_idle() && !self.open.load(Ordering::SeqCst) {
                break Found::Nothing;
            }
            if self.calls() != calls {
                break Found::Call;
            }
            self.work.wait(&mut lock);
        };
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        found
    }
}

/// The reason why a waiting thread was woken.
pub(crate) enum Found<S> {
    /// A piece of work.
    Work(Work<S>),
    /// A call for assistance.
    Call,
    /// No work is left and none will come, or the walk is to stop.
    Nothing,
}
