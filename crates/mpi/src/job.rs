//! One rank of the job: the engine's threads walk, and this thread only communicates with the other ranks.
//!
//! A walk consists of *phases*. Each ends for all ranks at once: because everything was visited, or because a stop was
//! requested, to write a checkpoint or to end. Between two phases no message is in flight, and the remaining work is in
//! the ranks' queues.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nacre_ranks::hybrid::SharedQueue;
use nacre_ranks::{self as algorithm, Outbox, Pauses, Pausing, Rank, Shutdown, Transport};
use nacre_walk::{Queue, Unit};
use nix::sys::resource::UsageWho;

use crate::engine::{OneByOne, Ranges, Shared};
use crate::measure::processor_time;
use crate::network::{Network, NetworkError};
use crate::output::Output;

/// The time for which this thread only yields between polls after something happened, so that an exchange of messages
/// continues without the delay of sleeping.
const EAGER: Duration = Duration::from_micros(20);

/// The time for which this thread only yields with CP, where every entry is an exchange of messages, and a processor
/// that went to sleep in between is late.
const EAGER_WITH_MASTER: Duration = Duration::from_millis(1);

/// The error with which a rank gave up.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The network failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A thread of this rank panicked, after printing its message.
    #[error("a thread of rank {0} failed")]
    Thread(u32),
    /// A rank sent rank 0 a result that cannot be decoded.
    #[error("rank {0} sent an invalid message: do all ranks run the same version of this program?")]
    Nonsense(u32),
    /// The master's queue could not be kept on disk, or the output could not be opened.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// The result of a phase for this rank.
pub struct Phase {
    /// The reason why it ended.
    pub ending: Shutdown,
    /// The algorithm's counters.
    pub counters: algorithm::Counters,
    /// CP only: the entries that were not handed out.
    pub entries: Vec<Unit>,
    /// The time that this thread spent with messages.
    pub communication: Duration,
    /// The time from its beginning until this rank last had work.
    pub worked_until: Duration,
    /// The time and the processor time from its beginning until this rank first had work, or until its end.
    pub first_idle: (Duration, Duration),
}

/// The conditions on which a phase ends early.
pub struct Until<'a> {
    /// Set when a signal has asked the program to end.
    pub interrupted: &'a AtomicBool,
    /// The time at which a checkpoint is due. Only one rank needs to know it.
    pub checkpoint_at: Option<Instant>,
    /// Called when the phase ends early, on every rank, so that visitors in long operations end them.
    pub stopped: &'a dyn Fn(),
}

/// Walks until the ranks have visited everything or a stop was requested. `threads` runs the engine and returns when
/// that has stopped and its output is written. CP's master begins with `entries`; all other ranks begin with the
/// contents of the engine's queue.
///
/// # Errors
/// [`JobError`] if the network or a thread failed, or the master's queue could not be kept.
pub fn run_phase<S: Send + Sync>(
    network: &mut Network<Unit>,
    engine: &Arc<Queue<S>>,
    threads: impl FnOnce() + Send,
    options: &algorithm::Options,
    entries: Vec<Unit>,
    output: &mut Output<'_>,
    until: &Until<'_>,
) -> Result<Phase, JobError> {
    engine.keep_open();
    std::thread::scope(|scope| {
        let threads = scope.spawn(threads);
        let alive = || !threads.is_finished();
        let phase = catch_unwind(AssertUnwindSafe(|| {
            if !options.algorithm.has_master() {
                let mut queue = Shared(engine.clone());
                return communicate(network, &mut queue, &**engine, options, output, until, alive);
            }
            let mut queue = OneByOne::new(engine.clone());
            algorithm::Queue::put(&mut queue, entries);
            let phase = communicate(network, &mut queue, &**engine, options, output, until, alive);
            let left = queue.drain();
            match queue.failed() {
                Some(error) => Err(error.into()),
                None => phase.map(|phase| Phase { entries: left, ..phase }),
            }
        }));
        if !matches!(phase, Ok(Ok(_))) {
            // The scope waits for its threads, which may wait for work, or for space to write.
            engine.stop();
            output.close();
        }
        let phase = phase.unwrap_or_else(|panic| resume_unwind(panic));
        let rank = network.rank();
        threads.join().map_err(|_| JobError::Thread(rank))?;
        phase
    })
}

/// Works on units that are no directories, with threads that share a queue, until those of all ranks are done or a stop
/// was requested. `threads` runs them, and returns when the queue is closed.
///
/// # Errors
/// [`JobError`] if the network or a thread failed.
pub fn run_shared(
    network: &mut Network<Unit>,
    queue: &SharedQueue<Unit>,
    threads: impl FnOnce() + Send,
    options: &algorithm::Options,
    output: &mut Output<'_>,
    until: &Until<'_>,
) -> Result<Shutdown, JobError> {
    std::thread::scope(|scope| {
        let threads = scope.spawn(threads);
        let alive = || !threads.is_finished();
        let phase = catch_unwind(AssertUnwindSafe(|| {
            communicate(network, &mut Ranges(queue.clone()), queue, options, output, until, alive)
        }));
        // The scope waits for its threads, which wait for work.
        queue.close();
        let phase = phase.unwrap_or_else(|panic| resume_unwind(panic));
        let rank = network.rank();
        threads.join().map_err(|_| JobError::Thread(rank))?;
        phase.map(|phase| phase.ending)
    })
}

/// The threads behind a queue, as the thread that communicates sees them.
trait Engine {
    /// Makes the threads end.
    fn stop(&self);

    /// Returns whether nothing is queued or worked on.
    fn is_idle(&self) -> bool;

    /// Waits until that is so, or for a while, and returns whether it is.
    fn wait_idle(&self, pause: Duration) -> bool;
}

impl<S: Send + Sync> Engine for Queue<S> {
    fn stop(&self) {
        Queue::stop(self);
    }

    fn is_idle(&self) -> bool {
        Queue::is_idle(self)
    }

    fn wait_idle(&self, pause: Duration) -> bool {
        Queue::wait_idle(self, pause)
    }
}

impl Engine for SharedQueue<Unit> {
    fn stop(&self) {
        self.close();
    }

    fn is_idle(&self) -> bool {
        algorithm::Queue::is_idle(self)
    }

    fn wait_idle(&self, pause: Duration) -> bool {
        std::thread::sleep(pause);
        algorithm::Queue::is_idle(self)
    }
}

fn communicate(
    network: &mut Network<Unit>,
    queue: &mut impl algorithm::Queue<Unit>,
    engine: &impl Engine,
    options: &algorithm::Options,
    output: &mut Output<'_>,
    until: &Until<'_>,
    alive: impl Fn() -> bool,
) -> Result<Phase, JobError> {
    let mut rank = Rank::new(network.rank(), network.ranks(), options);
    let mut outbox = Outbox::new();
    let (began, processor) = (Instant::now(), processor_time(UsageWho::RUSAGE_SELF));
    let now_ns = || began.elapsed().as_nanos() as u64;
    let used = || (began.elapsed(), processor_time(UsageWho::RUSAGE_SELF).saturating_sub(processor));
    let mut first_idle = None;
    let mut communication = Duration::ZERO;
    let mut happened = began;
    let mut worked_until = Duration::ZERO;
    let eager = if options.algorithm.has_master() { EAGER_WITH_MASTER } else { EAGER };
    let pauses = Pauses::default();
    let mut stopping = false;
    let mut stopped = false;
    loop {
        let turn = Instant::now();
        if first_idle.is_none() && !engine.is_idle() {
            first_idle = Some(used());
        }
        let mut quiet = true;
        while let Some((from, message)) = network.receive()? {
            rank.handle(now_ns(), from, message, queue, &mut outbox);
            send_all(network, &mut outbox)?;
            quiet = false;
        }
        quiet &= !output.go_on(network)?;
        output.report_progress(network, || queue.len(), turn)?;
        if !stopping && rank.shutdown().is_none() && (is_due(until) || output.failure().is_some()) {
            stopping = true;
            rank.stop(now_ns(), queue, &mut outbox);
        }
        rank.poll(now_ns(), queue, &mut outbox);
        quiet &= outbox.is_empty();
        send_all(network, &mut outbox)?;
        let flushed = network.flush()?;
        if let Some(ending) = rank.shutdown() {
            // Once: the threads that are running stop for it, and those of the next phase must not.
            if !std::mem::replace(&mut stopped, true) {
                if ending == Shutdown::Stopped {
                    (until.stopped)();
                }
                engine.stop();
            }
            // The threads may still write, and are waited for while their output is taken.
            if rank.is_finished() && flushed && !alive() && !output.go_on(network)? && output.is_empty() {
                let counters = rank.counters().clone();
                let (entries, first_idle) = (Vec::new(), first_idle.unwrap_or_else(used));
                return Ok(Phase { ending, counters, entries, communication, worked_until, first_idle });
            }
        } else if !alive() {
            return Err(JobError::Thread(network.rank()));
        }
        let since = turn.duration_since(happened);
        if !quiet {
            happened = Instant::now();
            communication += happened - turn;
        } else if since < eager && (rank.is_asking() || options.algorithm.has_master()) {
            std::thread::yield_now();
        } else {
            let asks = rank.next_timeout_ns().map(|at| Duration::from_nanos(at.saturating_sub(now_ns())));
            let idle = engine.is_idle();
            let pausing = match rank.is_asking() || options.algorithm.has_master() {
                true => Pausing::Asking,
                false if idle => Pausing::Idle,
                false => Pausing::Working { gives: !queue.is_empty() },
            };
            let pause = Duration::from_nanos(pauses.next_ns(since.as_nanos() as u64, pausing));
            let pause = asks.map_or(pause, |asks| pause.min(asks));
            if idle {
                std::thread::sleep(pause);
            } else {
                if engine.wait_idle(pause) {
                    // There is something to ask for.
                    happened = Instant::now();
                }
                worked_until = began.elapsed();
            }
        }
    }
}

fn is_due(until: &Until<'_>) -> bool {
    until.interrupted.load(Ordering::Relaxed) || until.checkpoint_at.is_some_and(|at| Instant::now() >= at)
}

fn send_all(network: &mut Network<Unit>, outbox: &mut Outbox<Unit>) -> Result<(), NetworkError> {
    while let Some((to, message)) = outbox.pop() {
        network.send(to, message)?;
    }
    Ok(())
}
