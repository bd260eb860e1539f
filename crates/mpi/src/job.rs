//! One rank of the job: the engine's threads walk, and this thread talks to the other ranks and does nothing else.
//!
//! A walk goes by *phases*. Each ends for all ranks at once: because everything was visited, or because somebody asked
//! for a stop, to write a checkpoint or to end. Between two phases nothing is under way, and what is left is in the
//! ranks' queues.

use crate::engine::{OneByOne, Shared};
use crate::network::{Network, NetworkError};
use crate::output::Output;
use nacre_walk::algorithm::{self, Ending, Outbox, Rank, Transport};
use nacre_walk::{Queue, Unit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For so long after something happened this thread only lets others run before it looks again: a conversation goes on
/// without the delay of sleeping.
const EAGER: Duration = Duration::from_micros(20);

/// The same with a master: there every entry is a conversation, and a processor that went to sleep in between is late.
const EAGER_WITH_MASTER: Duration = Duration::from_millis(1);

/// A rank that waits for an answer sleeps for as long as it has waited: the answer takes twice its time at most.
const REST_PART: u32 = 1;

/// It never sleeps longer, and a rank that waits for nothing always does: often enough for a rank that asks, and next to
/// nothing for the processor.
const REST_MAX: Duration = Duration::from_millis(3);

/// Why a rank gave up.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The network failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A thread of this rank panicked; it has said why.
    #[error("a thread of rank {0} failed")]
    Thread(u32),
    /// A rank told rank 0 something that cannot be understood.
    #[error("rank {0} told nonsense: do all ranks run the same version of this program?")]
    Nonsense(u32),
    /// The master's queue could not be kept on disk, or the output not be had.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// How a phase went, for this rank.
pub struct Phase {
    /// Why it ended.
    pub ending: Ending,
    /// What was said.
    pub counters: algorithm::Counters,
    /// Of CP: entries that were not handed out.
    pub entries: Vec<Unit>,
    /// Time that this thread spent with messages.
    pub communication: Duration,
}

/// When to end a phase early.
pub struct Until<'a> {
    /// Somebody wants everything to end.
    pub interrupted: &'a AtomicBool,
    /// A checkpoint is due. Only one rank needs to know.
    pub checkpoint_at: Option<Instant>,
}

/// Walks until everything was visited by some rank, or somebody asked for a stop. `threads` runs the engine and returns when that
/// has stopped and its output is written. `entries` is what CP's master begins with; everybody else begins with what is in the
/// engine's queue.
pub fn run_phase<S: Send + Sync>(
    network: &mut Network<Unit>,
    engine: &Arc<Queue<S>>,
    threads: impl FnOnce() + Send,
    options: &algorithm::Options,
    entries: Vec<Unit>,
    output: &mut Output,
    until: &Until<'_>,
) -> Result<Phase, JobError> {
    engine.keep_open();
    std::thread::scope(|scope| {
        let threads = scope.spawn(threads);
        let alive = || !threads.is_finished();
        let phase = if options.algorithm.has_master() {
            let mut queue = OneByOne::new(engine.clone());
            algorithm::Queue::put(&mut queue, entries);
            let phase = communicate(network, &mut queue, engine, options, output, until, alive);
            let left = queue.drain();
            match queue.failed() {
                Some(error) => Err(error.into()),
                None => phase.map(|phase| Phase { entries: left, ..phase }),
            }
        } else {
            communicate(network, &mut Shared(engine.clone()), engine, options, output, until, alive)
        };
        if phase.is_err() {
            engine.stop();
        }
        let rank = network.rank();
        threads.join().map_err(|_| JobError::Thread(rank))?;
        phase
    })
}

fn communicate<S: Send + Sync>(
    network: &mut Network<Unit>,
    queue: &mut impl algorithm::Queue<Unit>,
    engine: &Queue<S>,
    options: &algorithm::Options,
    output: &mut Output,
    until: &Until<'_>,
    alive: impl Fn() -> bool,
) -> Result<Phase, JobError> {
    let mut rank = Rank::new(network.rank(), network.ranks(), options);
    let mut outbox = Outbox::new();
    let began = Instant::now();
    let now_ns = || began.elapsed().as_nanos() as u64;
    let mut communication = Duration::ZERO;
    let mut happened = began;
    let eager = if options.algorithm.has_master() { EAGER_WITH_MASTER } else { EAGER };
    let mut stopping = false;
    let mut stopped = false;
    loop {
        let turn = Instant::now();
        let mut quiet = true;
        while let Some((from, message)) = network.receive()? {
            rank.handle(now_ns(), from, message, queue, &mut outbox);
            send_all(network, &mut outbox)?;
            quiet = false;
        }
        quiet &= !output.go_on(network)?;
        if !stopping && rank.ending().is_none() && (is_due(until) || output.failure().is_some()) {
            stopping = true;
            rank.stop(now_ns(), queue, &mut outbox);
        }
        rank.poll(now_ns(), queue, &mut outbox);
        quiet &= outbox.is_empty();
        send_all(network, &mut outbox)?;
        let flushed = network.flush()?;
        if let Some(ending) = rank.ending() {
            // Once: the threads that are running stop for it, and those of the next phase must not.
            if !std::mem::replace(&mut stopped, true) {
                engine.stop();
            }
            // The threads may still write, and are waited for while their output is taken.
            if rank.is_finished() && flushed && !alive() && !output.go_on(network)? && output.is_empty() {
                let counters = rank.counters().clone();
                return Ok(Phase { ending, counters, entries: Vec::new(), communication });
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
            let waits = rank.is_asking() || options.algorithm.has_master();
            let pause = if waits { since / REST_PART } else { REST_MAX };
            let pause = pause.min(REST_MAX).min(asks.unwrap_or(REST_MAX));
            if engine.is_idle() {
                std::thread::sleep(pause);
            } else if engine.wait_idle(pause) {
                // There is something to ask for.
                happened = Instant::now();
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
