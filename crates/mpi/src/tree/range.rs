//! Large files whose ranges the ranks share out, some files of each rank at a time.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nacre_ranks::hybrid::SharedQueue;
use nacre_ranks::{self as algorithm, Shutdown};
use nacre_tree::Control;
use nacre_tree::copy::{Compared, Copy, Later, LeftOver, Report, Worker, halve};
use nacre_walk::Unit;

use crate::job::{self, JobError, Until};
use crate::output::Output;
use crate::spill::Spill;
use crate::tree::{Lines, Rank};

/// The maximum number of large files that a rank begins at once; each takes an open record where it is copied.
const FILES_MAX: usize = 64;

/// The entries that the walk of a rank leaves for later.
pub struct LeftLater(Mutex<State>);

struct State {
    linked: Spill,
    large: Spill,
    failed: Option<io::Error>,
}

impl LeftLater {
    /// Creates it empty.
    pub fn new() -> LeftLater {
        LeftLater(Mutex::new(State { linked: Spill::new(), large: Spill::new(), failed: None }))
    }

    /// Adds an entry.
    pub fn add(&self, left: LeftOver) {
        let mut state = lock(&self.0);
        let LeftOver { path, later } = left;
        let added = match later {
            Later::Linked(inode) => state.linked.push(Unit { path, inodes: vec![inode], ..Unit::default() }),
            Later::Large => state.large.push(Unit { path, ..Unit::default() }),
        };
        if let Err(error) = added {
            state.failed = Some(error);
        }
    }

    /// Returns the names of files with several names, and the large files.
    ///
    /// # Errors
    /// If they could not be kept.
    pub fn into_inner(self) -> Result<(Spill, Spill), JobError> {
        let state = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.failed {
            Some(error) => Err(error.into()),
            None => Ok((state.linked, state.large)),
        }
    }
}

/// Locks a mutex, also after a thread that had it has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads and the algorithm that share out ranges, and the switch that stops the work.
#[derive(Clone, Copy)]
pub struct Sharing<'a> {
    /// The options of the algorithm.
    pub options: &'a algorithm::Options,
    /// The number of this rank's threads.
    pub threads: NonZeroUsize,
    /// The switch.
    pub control: &'a Control,
}

/// Returns the paths of the next large files of this rank, or nothing if no rank has any more. All ranks wait for each other.
///
/// # Errors
/// If the network failed, or the files that were kept cannot be read.
pub fn next_files(
    rank: &Rank<'_>,
    large: &mut Spill,
    output: &mut Output<'_>,
) -> Result<Option<Vec<Vec<u8>>>, JobError> {
    let mut files = Vec::new();
    while files.len() < FILES_MAX
        && let Some(file) = large.pop()?
    {
        files.push(file.path);
    }
    Ok(rank.any(output, !files.is_empty())?.then_some(files))
}

/// Shares out ranges among all ranks, and passes each chunk to `work`, as a range that begins with it.
///
/// # Errors
/// If the network or a thread failed.
pub fn share_out(
    rank: &mut Rank<'_>,
    ranges: Vec<Unit>,
    sharing: Sharing<'_>,
    output: &mut Output<'_>,
    work: impl Fn(&Unit, &mut Worker) + Sync,
) -> Result<Shutdown, JobError> {
    let queue = SharedQueue::new(ranges);
    let serve = || {
        let _close = CloseOnPanic(&queue);
        let mut worker = Worker::default();
        while let Some(mut range) = queue.begin(false) {
            // The farther halves are there for everybody.
            while let Some(rest) = halve(&mut range) {
                algorithm::Queue::put(&mut queue.clone(), vec![rest]);
            }
            work(&range, &mut worker);
            queue.finish([]);
        }
    };
    let threads = || {
        std::thread::scope(|scope| {
            for _ in 0..sharing.threads.get() {
                scope.spawn(serve);
            }
        });
    };
    let until =
        Until { interrupted: rank.interrupted, checkpoint_at: None, stopped: &|| sharing.control.stop() };
    job::run_shared(&mut rank.network, &queue, threads, sharing.options, output, &until)
}

/// Compares large files, of which `report` is given those that differ, each by the rank that met it.
///
/// # Errors
/// If the network or a thread failed, or files cannot be kept on disk.
pub fn compare(
    rank: &mut Rank<'_>,
    copy: &Copy,
    large: &mut Spill,
    sharing: Sharing<'_>,
    (report, lines): (Report<'_>, Option<&Lines>),
    output: &mut Output<'_>,
) -> Result<Shutdown, JobError> {
    let own = rank.network.number();
    let mut worker = Worker::default();
    while let Some(files) = next_files(rank, large, output)? {
        let begin = || {
            let begun = files.iter().filter_map(|path| copy.ranges_to_compare(path, &mut worker));
            begun.map(|range| Unit { root: own, ..range }).collect::<Vec<Unit>>()
        };
        let ranges = rank.alongside(output, sharing.control, begin)?;
        let mut known: HashMap<Vec<u8>, bool> = HashMap::new();
        known.extend(ranges.iter().map(|range| (range.path.clone(), false)));
        // What is not the same, for the ranks that met the files; in the place of a position, whether it is known to differ.
        let found = Mutex::new((Spill::new(), None));
        let ended = share_out(rank, ranges, sharing, output, |range, worker| {
            let compared = copy.compare_range(range, worker);
            if compared != Compared::Same {
                let position = Some(u64::from(compared == Compared::Differs));
                let mut found = lock(&found);
                if let Err(error) = found.0.push(Unit { position, inodes: Vec::new(), ..range.clone() }) {
                    found.1 = Some(error);
                }
            }
        })?;
        // A signal may have come while the files were begun: then nothing was compared here, even if the end of that came first.
        if ended == Shutdown::Stopped || rank.any(output, sharing.control.is_stopped())? {
            return Ok(Shutdown::Stopped);
        }
        let (mut found, failed) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = failed {
            return Err(error.into());
        }
        let mut of_own = Spill::new();
        rank.distribute(&mut found, &mut of_own, |unit| unit.root)?;
        while let Some(unit) = of_own.pop()? {
            match unit.position {
                Some(1) => {
                    known.entry(unit.path).and_modify(|differs| *differs = true);
                }
                // The rank that could not compare it has noted that.
                _ => {
                    known.remove(&unit.path);
                }
            }
        }
        let conclude = || {
            known.iter().for_each(|(path, differs)| copy.conclude_ranges(path, *differs, report));
            if let Some(lines) = lines {
                lines.flush();
            }
        };
        rank.alongside(output, sharing.control, conclude)?;
    }
    Ok(Shutdown::Finished)
}

/// Ends the threads of a queue if one of them panics: the others would wait for ever.
struct CloseOnPanic<'a>(&'a SharedQueue<Unit>);

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close();
        }
    }
}
