//! The parts that the simulations of one rank and of several have in common: the agenda of events, the processes of ranks, and
//! the account of positions.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::time::Duration;

use nacre_meta::service::ActiveRank;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub const LEASE: Duration = Duration::from_millis(400);
/// The time for which a process has the authority after it has shown itself.
pub const TAKEOVER: Duration = Duration::from_millis(100);

/// The events to come, in the order of time, and the randomness that decides when they do.
pub struct Agenda<Event> {
    pub now: Duration,
    pub rng: StdRng,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    events: HashMap<u64, Event>,
    count: u64,
}

impl<Event> Agenda<Event> {
    pub fn new(seed: u64) -> Self {
        Self {
            now: Duration::ZERO,
            rng: StdRng::seed_from_u64(seed),
            queue: BinaryHeap::new(),
            events: HashMap::new(),
            count: 0,
        }
    }

    /// Adds an event. Of those at one time, the one that was added first comes first.
    pub fn at(&mut self, time: Duration, event: Event) {
        self.count += 1;
        self.events.insert(self.count, event);
        self.queue.push(Reverse((time, self.count)));
    }

    /// Returns a random time between two numbers of microseconds from now, and seldom a later one.
    pub fn within(&mut self, low_us: u64, high_us: u64) -> Duration {
        let high = if self.rng.random_ratio(1, 20) { high_us * 10 } else { high_us };
        self.now + Duration::from_micros(self.rng.random_range(low_us..high))
    }

    /// Returns the next event, which happens now.
    pub fn pop(&mut self) -> Option<Event> {
        let Reverse((time, key)) = self.queue.pop()?;
        self.now = time;
        self.events.remove(&key)
    }
}

/// A process that is a rank, or was one.
pub struct Process {
    pub rank: ActiveRank,
    pub alive: bool,
    pub paused_until: Duration,
    /// The end of its authority, unless it shows itself before.
    pub until: Duration,
    /// The connections of sessions: client and number.
    pub attached: HashMap<u64, (usize, u64)>,
    /// The calls under way: client, connection and number.
    pub tickets: HashMap<u64, (usize, u64, u64)>,
    pub next_ticket: u64,
}

impl Process {
    pub fn new(rank: ActiveRank, until: Duration) -> Self {
        Self {
            rank,
            alive: true,
            paused_until: Duration::ZERO,
            until,
            attached: HashMap::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
        }
    }
}

/// The positions that clients have.
#[derive(Default)]
pub struct Positions {
    handed: HashSet<u64>,
    /// The greatest position that anybody knows, and 1.
    pub known: u64,
    /// The number of positions that were handed out.
    pub taken: u64,
}

impl Positions {
    /// Notes that a client, whose last position is `last`, has got `count` positions from `first` on. Returns what is wrong with
    /// that, if anything is: a position that was handed out before; and if they are to be in order, one below `known`, which was
    /// known when the client asked, or not above its last one.
    pub fn hand_out(
        &mut self,
        last: &mut Option<u64>,
        first: u64,
        count: u64,
        known: u64,
        in_order: bool,
    ) -> Option<String> {
        self.taken += count;
        let mut failure = None;
        for position in first..first + count {
            if !self.handed.insert(position) {
                failure = Some(format!("position {position} was handed out twice"));
            }
        }
        if in_order && first < known {
            failure = Some(format!("position {first} was handed out when {known} was known before"));
        }
        if in_order && last.is_some_and(|last| last >= first) {
            failure = Some(format!("a client got position {first} after {last:?}"));
        }
        *last = Some(first + count - 1);
        self.known = self.known.max(first + count);
        failure
    }
}

/// Returns the number of schedules: `NACRE_SOAK_SEQUENCERS`, or `few`.
pub fn count(few: u64) -> u64 {
    std::env::var("NACRE_SOAK_SEQUENCERS").ok().and_then(|count| count.parse().ok()).unwrap_or(few)
}
