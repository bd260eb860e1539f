//! A large file as work for all idle threads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::control::Control;
use crate::copy::data::{Halt, Pair, ShortCuts};
use crate::copy::record::Record;

/// The operation on the chunks.
pub enum Task {
    /// Copy them, and record those that are finished.
    Copy {
        record: Arc<Record>,
        /// Make each chunk durable before it is recorded. The first chunk is not recorded then (see `record`).
        durable: bool,
    },
    /// Compare them.
    Compare,
}

/// A file that is processed in chunks.
pub struct Job {
    pub source: Arc<OwnedFd>,
    pub target: Arc<OwnedFd>,
    pub sparse: bool,
    pub size: u64,
    pub chunk_bytes: u64,
    /// True for chunks that are finished already.
    pub finished: Vec<bool>,
    /// The bytes of the finished chunks are counted already.
    pub counted: bool,
    pub task: Task,
    next: AtomicU64,
    state: Mutex<State>,
    quiet: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of threads at work.
    working: usize,
    halted: Option<Halt>,
}

/// The state that all jobs share.
pub struct JobContext<'a> {
    pub control: &'a Control,
    pub cuts: &'a ShortCuts,
    pub bytes: &'a AtomicU64,
}

impl Job {
    /// Creates a job for a file.
    pub fn new(
        (source, target): (Arc<OwnedFd>, Arc<OwnedFd>),
        (size, sparse): (u64, bool),
        (chunk_bytes, finished): (u64, Vec<bool>),
        task: Task,
    ) -> Job {
        let (next, state, quiet) = (AtomicU64::new(0), Mutex::default(), Condvar::new());
        let counted = false;
        Job { source, target, sparse, size, chunk_bytes, finished, counted, task, next, state, quiet }
    }

    /// Works on chunks until none is left, and returns whether there was one.
    pub fn work(&self, around: &JobContext<'_>, buffer: &mut [u8]) -> bool {
        {
            let mut state = self.state.lock();
            if state.halted.is_some() || self.next.load(Ordering::Relaxed) >= self.chunks() {
                return false;
            }
            state.working += 1;
        }
        let mut worked = false;
        let mut result = Ok(());
        while result.is_ok() && self.state.lock().halted.is_none() {
            let chunk = self.next.fetch_add(1, Ordering::Relaxed);
            if chunk >= self.chunks() {
                break;
            }
            worked = true;
            result = self.chunk(chunk, around, buffer);
        }
        let mut state = self.state.lock();
        state.working -= 1;
        if let Err(halt) = result {
            state.halted.get_or_insert(halt);
        }
        if state.working == 0 {
            self.quiet.notify_all();
        }
        worked
    }

    /// Waits until no thread works on the file any more, after [`Job::work`], and returns the result.
    pub fn finish(&self) -> Result<(), Halt> {
        let mut state = self.state.lock();
        while state.working > 0 {
            self.quiet.wait(&mut state);
        }
        state.halted.map_or(Ok(()), Err)
    }

    fn chunks(&self) -> u64 {
        self.size.div_ceil(self.chunk_bytes)
    }

    fn chunk(&self, chunk: u64, around: &JobContext<'_>, buffer: &mut [u8]) -> Result<(), Halt> {
        let (from, to) = (chunk * self.chunk_bytes, self.size.min((chunk + 1) * self.chunk_bytes));
        if self.finished.get(chunk as usize) == Some(&true) {
            if !self.counted {
                around.bytes.fetch_add(to - from, Ordering::Relaxed);
            }
            return Ok(());
        }
        let pair = Pair {
            source: self.source(),
            target: self.target.as_fd(),
            sparse: self.sparse,
            control: around.control,
            cuts: around.cuts,
            bytes: around.bytes,
        };
        match &self.task {
            Task::Compare => pair.compare(from, to, buffer),
            Task::Copy { record, durable } => {
                pair.copy(from, to, buffer)?;
                if *durable {
                    rustix::fs::fdatasync(&*self.target)?;
                }
                // What is larger than 2^32 chunks is copied, but not gone on with.
                if let Ok(chunk) = u32::try_from(chunk)
                    && (chunk > 0 || !*durable)
                {
                    record.add(chunk)?;
                }
                Ok(())
            }
        }
    }

    fn source(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

/// The jobs under way.
#[derive(Default)]
pub struct Jobs(Mutex<Vec<Arc<Job>>>);

impl Jobs {
    /// Works on a file until it is done, with the help of the threads that `call` wakes.
    pub fn run(
        &self,
        job: Job,
        around: &JobContext<'_>,
        buffer: &mut [u8],
        call: impl FnOnce(),
    ) -> Result<(), Halt> {
        let job = Arc::new(job);
        self.0.lock().push(Arc::clone(&job));
        call();
        job.work(around, buffer);
        self.0.lock().retain(|other| !Arc::ptr_eq(other, &job));
        job.finish()
    }

    /// Helps with a file, and returns whether there was work.
    pub fn help(&self, around: &JobContext<'_>, buffer: &mut [u8]) -> bool {
        let jobs: Vec<Arc<Job>> = self.0.lock().clone();
        jobs.iter().any(|job| job.work(around, buffer))
    }
}
