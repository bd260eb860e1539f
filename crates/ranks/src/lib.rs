//! The algorithms that share a walk out among ranks (sections II-B and IV of "On Distributed File Tree Walk of Parallel File
//! Systems"), as state machines without I/O and without a clock.
//!
//! A program that runs one has a [`Transport`], a [`Queue`] of work with an engine behind it that visits entries, and a [`Rank`]:
//!
//! - every message that comes is given to [`Rank::handle`];
//! - [`Rank::poll`] is called when the queue becomes empty, when a unit is done, and at [`Rank::next_timeout_ns`];
//! - after each of these calls, the messages in the [`Outbox`] are sent;
//! - rank 0's queue holds the roots before the first call, every other queue is empty (or holds what a checkpoint left
//!   in it);
//! - [`Rank::stop`], on any rank, makes all of them stop with their queues as they stand;
//! - the walk is over when [`Rank::is_finished`] is true: no message is in flight to any rank, and the transport can be
//!   closed.
//!
//! ```
//! use nacre_ranks::{Algorithm, Options, Outbox, PlainQueue, Rank, Transport, Unit, transport};
//!
//! /// A directory of a tree in which each has two below it, down to some depth.
//! struct Work(u32);
//!
//! impl Unit for Work {
//!     fn size_bytes(&self) -> u64 {
//!         4
//!     }
//! }
//!
//! fn walk(mut network: impl Transport<Work>) -> u64 {
//!     let options = Options::new(Algorithm::Drqs, network.ranks(), 1);
//!     let mut rank = Rank::new(network.rank(), network.ranks(), &options);
//!     let mut queue = PlainQueue::new((network.rank() == 0).then_some(Work(6)));
//!     let mut outbox = Outbox::new();
//!     let mut visited = 0;
//!     let start = std::time::Instant::now();
//!     while !rank.is_finished() {
//!         let now_ns = start.elapsed().as_nanos() as u64;
//!         if let Some((from, message)) = network.receive().unwrap() {
//!             rank.handle(now_ns, from, message, &mut queue, &mut outbox);
//!         } else if let Some(Work(depth)) = queue.begin(false) {
//!             visited += 1;
//!             queue.finish((0..2).filter(|_| depth > 0).map(|_| Work(depth - 1)));
//!             rank.poll(now_ns, &mut queue, &mut outbox);
//!         } else {
//!             // A program sleeps here until a message comes or `rank.next_timeout_ns()`.
//!             rank.poll(now_ns, &mut queue, &mut outbox);
//!         }
//!         while let Some((to, message)) = outbox.pop() {
//!             network.send(to, message).unwrap();
//!         }
//!     }
//!     visited
//! }
//!
//! let visited: u64 = std::thread::scope(|scope| {
//!     let ranks: Vec<_> = transport::local(3).into_iter().map(|end| scope.spawn(|| walk(end))).collect();
//!     ranks.into_iter().map(|rank| rank.join().unwrap()).sum()
//! });
//! assert_eq!(visited, 127);
//! ```
//!
//! Messages between one pair of ranks must arrive in the order in which they were sent, as MPI guarantees; those of
//! different pairs may overtake each other by any amount of time. Time is in nanoseconds from an arbitrary origin, and
//! must not go backwards on a rank. The death of a rank is for the transport to handle: the algorithms assume that
//! every message sent arrives.

#![forbid(unsafe_code)]

mod back_off;
mod centralized;
mod counter;
pub mod hybrid;
mod message;
mod pause;
mod peer;
pub mod proximity;
mod queue;
mod random;
mod rank;
pub mod shutdown;
#[cfg(any(test, feature = "testkit"))]
pub mod simulate;
pub mod split_queue;
pub mod token;
pub mod transport;
mod unit;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use back_off::BackOff;
pub use counter::{Counters, Traffic};
pub use message::{Colour, HEADER_BYTES, Message, Outbox, Shutdown, Unit};
pub use pause::{Pauses, Pausing};
pub use queue::{PlainQueue, Queue};
pub use random::{Choose, Random};
pub use rank::Rank;
pub use transport::Transport;

/// One of the paper's algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Centralised parallel (algorithm 1).
    Cp,
    /// Distributed random queue splitting (algorithm 2).
    Drqs,
    /// Distributed equal queue splitting (section IV-A).
    Deqs,
    /// Proximity-aware DRQS (algorithm 3).
    PaDrqs,
    /// Hybrid DRQS (algorithm 4).
    HDrqs,
}

impl Algorithm {
    /// All algorithms, in the paper's order.
    pub const ALL: [Self; 5] = [Self::Cp, Self::Drqs, Self::Deqs, Self::PaDrqs, Self::HDrqs];

    /// Returns the algorithm's name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cp => "cp",
            Self::Drqs => "drqs",
            Self::Deqs => "deqs",
            Self::PaDrqs => "pa-drqs",
            Self::HDrqs => "h-drqs",
        }
    }

    /// Returns a one-line description for a help text.
    pub fn description(self) -> &'static str {
        match self {
            Self::Cp => "a master hands out entries one at a time, all others are workers; for comparison",
            Self::Drqs => "idle ranks ask random ranks, who give a random part of their queue",
            Self::Deqs => "as drqs, but half of the queue is given",
            Self::PaDrqs => {
                "as drqs, but ranks on the same node are asked first, and one rank of each node asks the others"
            }
            Self::HDrqs => {
                "as drqs among processes; the threads of each share its queue, and one of them communicates"
            }
        }
    }

    /// Returns whether several threads may serve one rank's queue.
    pub fn has_threads(self) -> bool {
        self == Self::HDrqs
    }

    /// Returns whether rank 0 only hands out work (when there is more than one rank).
    pub fn has_master(self) -> bool {
        self == Self::Cp
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a name that is not in [`Algorithm::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no algorithm {0:?}: choose one of cp, drqs, deqs, pa-drqs, h-drqs")]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// The behaviour of the ranks of a job. All ranks must be given the same options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The algorithm that shares out the work.
    pub algorithm: Algorithm,
    /// The seed of all random choices; each rank derives its own from it.
    pub seed: u64,
    /// The waiting times of idle ranks between requests.
    pub back_off: BackOff,
    /// Maximum number of units in one message, so that a queue of millions is not given away in one piece.
    pub units_per_message_max: usize,
    /// CP only: a worker keeps one of the entries that it found (section V).
    pub keeps_one: bool,
    /// CP only: one worker, rank 1, is given all directories, and the others all files, as in LANL's implementation
    /// (section II-B). Requires a queue that can tell them apart ([`Queue::take_one`]), and at least two workers.
    pub single_reader: bool,
    /// PA-DRQS only: the node of each rank.
    pub nodes: Arc<proximity::Nodes>,
    /// PA-DRQS only: applies the two refinements of section IV-C.
    pub refined: bool,
    /// Counts messages per peer on each rank; takes memory proportional to the square of the number of ranks.
    pub count_peers: bool,
    /// The rule by which the token detects termination.
    pub(crate) token_rule: token::Rule,
    /// The rule by which the ranks leave together.
    pub(crate) shutdown_rule: shutdown::Rule,
}

impl Options {
    /// Returns the default options for a job of `ranks`, with all ranks assumed to be on one node.
    pub fn new(algorithm: Algorithm, ranks: u32, seed: u64) -> Self {
        Self {
            algorithm,
            seed,
            back_off: BackOff::for_ranks(ranks),
            units_per_message_max: 4_096,
            keeps_one: false,
            single_reader: false,
            nodes: Arc::new(proximity::Nodes::blocks(ranks, ranks)),
            refined: true,
            count_peers: false,
            token_rule: token::Rule::SOUND,
            shutdown_rule: shutdown::Rule::SOUND,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
            assert_eq!(algorithm.name().to_uppercase().parse(), Ok(algorithm));
        }
        let error = "dfs".parse::<Algorithm>().unwrap_err().to_string();
        assert!(Algorithm::ALL.iter().all(|algorithm| error.contains(algorithm.name())), "{error}");
    }
}
