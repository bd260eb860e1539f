//! Pacing of regions that many clients update at once.
//!
//! Where conditional writes to a region fail again and again, most of the work is wasted: in every round all but one of
//! the writers lose. The paper leaves the remedy as future work and suggests that the server delay its replies (Carns
//! et al., section IV, end). Here the master lets the updaters of a contended region take turns:
//!
//! - A region becomes *tracked* when several conditional writes of it failed and none succeeded in between. Where two
//!   writers meet now and then, trying again is cheaper than taking turns.
//! - While it is tracked, reads that announce an update ([`Intent::Update`](crate::Intent)) and refusals of conditional
//!   writes wait in one queue, first come, first served. The waiter at the head gets *the turn*: its read is made, or
//!   its refusal is made again, from the state of that moment. Its next conditional write ends the turn, and the next
//!   in the queue gets it. So nearly every write succeeds, at one round trip each.
//! - A turn lapses after a time derived from how long turns of this region took before, so that a client that died or
//!   changed its mind does not hold up others for long.
//! - Readers of a key with that intent take turns too. A refusal of a write that is conditional on a key's version never
//!   waits: it does not show the value, and a client that loses a race for a key often does not try again.
//! - Plain reads, unconditional writes, and conditional writes on their way to success never wait.
//! - A region is forgotten when it has no waiters any more.
//!
//! It is advice, not locking: a write that comes out of turn is judged by its version like any other, and where the
//! table or a queue is full, requests are simply not delayed. Regions that overlap without being the same take
//! turns separately.
//!
//! [`Pacer`] is the bare state machine; [`Paced`] wraps a store with it.

mod paced;
mod statistics;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

pub use paced::{PaceOptions, PaceTotals, Paced};
pub use statistics::{RegionStatistics, Statistics};

/// A region, by a hash of its object, fork and range. Two regions with the same hash take turns together, which
/// does no harm.
pub type RegionHash = u64;

/// The number of a request that waits for a turn, or has it.
pub type Waiter = u64;

/// Limits of the pacer.
#[derive(Clone, Debug)]
pub struct PacerLimits {
    /// The maximum number of regions tracked at once.
    pub regions_max: usize,
    /// The number of failures in a row, without a success, that make a region tracked.
    pub failures_min: u32,
    /// The maximum number of waiters of one region.
    pub waiters_per_region_max: usize,
    /// The maximum number of waiters of all regions.
    pub waiters_max: usize,
    /// The shortest time after which a turn lapses.
    pub turn_min: Duration,
    /// The longest time after which a turn lapses.
    pub turn_max: Duration,
}

impl Default for PacerLimits {
    fn default() -> Self {
        Self {
            regions_max: 4096,
            failures_min: 3,
            waiters_per_region_max: 1024,
            waiters_max: 2048,
            turn_min: Duration::from_millis(1),
            turn_max: Duration::from_millis(50),
        }
    }
}

/// The admission of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Proceeding at once, without an account of it.
    Free,
    /// Proceeding at once, with the turn.
    Turn(Waiter),
    /// Proceeding when its waiter is granted the turn.
    Wait(Waiter),
}

/// The multiple of the average turn time after which a turn lapses.
const LAPSE_FACTOR: u32 = 8;
/// The number of turns in a row that ended without another waiter after which a region is forgotten.
const QUIET_TURNS_MAX: u32 = 16;
/// The number of turns in a row that lapsed after which a region is forgotten: taking turns does not help there.
const LAPSES_MAX: u32 = 8;
/// The number of successes elsewhere after which failures are forgotten.
const CALM_MAX: u32 = 1024;
/// The time without events after which a region is forgotten.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// The state machine. Time is given by the caller, and must not go backwards.
///
/// Invariants: a region with waiters has a turn, so no waiter is left behind; a waiter is granted exactly once, in
/// the order of arrival, unless it is cancelled before.
#[derive(Debug)]
pub struct Pacer {
    limits: PacerLimits,
    regions: HashMap<RegionHash, Tracked>,
    /// The failures in a row of each region that is not tracked. Cleared when there are too many: it is a hint.
    suspects: HashMap<RegionHash, u32>,
    /// Successes since the last failure of one of those.
    calm: u32,
    waiters: usize,
    last: Waiter,
    lapsed: u64,
}

#[derive(Debug)]
struct Tracked {
    turn: Option<Turn>,
    queue: VecDeque<Waiter>,
    /// The time that turns took, as a moving average; zero before the first.
    turn_time: Duration,
    quiet_turns: u32,
    lapses: u32,
    touched: Duration,
}

#[derive(Debug)]
struct Turn {
    holder: Waiter,
    since: Duration,
    lapses_at: Duration,
    /// The region version that the holder was given, once it is known.
    version: Option<u64>,
}

impl Pacer {
    /// Creates a pacer that tracks nothing yet.
    pub fn new(limits: PacerLimits) -> Self {
        Self {
            limits,
            regions: HashMap::new(),
            suspects: HashMap::new(),
            calm: 0,
            waiters: 0,
            last: 0,
            lapsed: 0,
        }
    }

    /// Returns the number of regions that are tracked.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Returns whether successes and reads matter: whether a region is tracked, or may soon be.
    pub fn is_attentive(&self) -> bool {
        !self.regions.is_empty() || !self.suspects.is_empty()
    }

    /// Returns the number of waiters of all regions.
    pub fn waiters(&self) -> usize {
        self.waiters
    }

    /// Returns the number of turns that lapsed since the start.
    pub fn lapsed(&self) -> u64 {
        self.lapsed
    }

    /// Handles the arrival of a read that announces an update.
    pub fn read(&mut self, region: RegionHash, now: Duration) -> Admission {
        if !self.regions.contains_key(&region) {
            return Admission::Free;
        }
        self.admit(region, now)
    }

    /// Handles the refusal of a conditional write that had been given `version` of the region. The writer waits for its
    /// turn.
    pub fn refused(
        &mut self,
        region: RegionHash,
        version: u64,
        now: Duration,
        granted: &mut Vec<Waiter>,
    ) -> Admission {
        self.failed(region, version, now, granted);
        self.admit(region, now)
    }

    /// Handles the refusal of a conditional write as [`Pacer::refused`] does, except that the writer waits for nothing.
    pub fn failed(&mut self, region: RegionHash, version: u64, now: Duration, granted: &mut Vec<Waiter>) {
        if let Some(tracked) = self.regions.get(&region) {
            // Somebody who does not take turns was faster than the holder, who goes to the end of the queue.
            if tracked.turn.as_ref().is_some_and(|turn| turn.version == Some(version)) {
                self.end_turn(region, now, granted);
            }
        }
        if !self.regions.contains_key(&region) {
            if !self.is_contended(region) {
                return;
            }
            if self.regions.len() >= self.limits.regions_max {
                self.forget_idle(now);
            }
            if self.regions.len() >= self.limits.regions_max {
                return;
            }
            let tracked = Tracked {
                turn: None,
                queue: VecDeque::new(),
                turn_time: Duration::ZERO,
                quiet_turns: 0,
                lapses: 0,
                touched: now,
            };
            self.regions.insert(region, tracked);
        }
    }

    /// Handles the success of a conditional write, which ends the turn of any holder.
    pub fn succeeded(&mut self, region: RegionHash, now: Duration, granted: &mut Vec<Waiter>) {
        let Some(tracked) = self.regions.get_mut(&region) else {
            self.suspects.remove(&region);
            self.calm += 1;
            if self.calm >= CALM_MAX {
                self.suspects.clear();
            }
            return;
        };
        if let Some(turn) = &tracked.turn {
            let took = now.saturating_sub(turn.since);
            tracked.turn_time = match tracked.turn_time {
                Duration::ZERO => took,
                before => (before * 7 + took) / 8,
            };
            tracked.lapses = 0;
            self.end_turn(region, now, granted);
        }
    }

    /// Notes the version of the region that the holder of a turn was given.
    pub fn given(&mut self, region: RegionHash, holder: Waiter, version: u64) {
        if let Some(tracked) = self.regions.get_mut(&region)
            && let Some(turn) = &mut tracked.turn
            && turn.holder == holder
        {
            turn.version = Some(version);
        }
    }

    /// Handles the departure of a waiter, or of the holder of the turn.
    pub fn cancel(&mut self, region: RegionHash, waiter: Waiter, now: Duration, granted: &mut Vec<Waiter>) {
        let Some(tracked) = self.regions.get_mut(&region) else { return };
        if tracked.turn.as_ref().is_some_and(|turn| turn.holder == waiter) {
            self.end_turn(region, now, granted);
        } else if let Some(at) = tracked.queue.iter().position(|queued| *queued == waiter) {
            tracked.queue.remove(at);
            self.waiters -= 1;
        }
    }

    /// Ends turns that have lapsed, and forgets regions where nothing happens any more.
    pub fn expire(&mut self, now: Duration, granted: &mut Vec<Waiter>) {
        let lapsed = |tracked: &Tracked| tracked.turn.as_ref().is_some_and(|turn| turn.lapses_at <= now);
        let regions: Vec<RegionHash> =
            self.regions.iter().filter(|(_, tracked)| lapsed(tracked)).map(|(region, _)| *region).collect();
        for region in regions {
            if let Some(tracked) = self.regions.get_mut(&region) {
                tracked.lapses += 1;
                // A turn that was cut short says that turns take longer than was thought.
                tracked.turn_time = (tracked.turn_time * 2).min(self.limits.turn_max);
                self.lapsed += 1;
                self.end_turn(region, now, granted);
            }
        }
        self.forget_idle(now);
    }

    /// Counts a failure; returns whether turns are to be taken from now on.
    fn is_contended(&mut self, region: RegionHash) -> bool {
        let failures = self.suspects.get(&region).map_or(1, |failures| failures + 1);
        if failures >= self.limits.failures_min {
            self.suspects.remove(&region);
            return true;
        }
        if self.suspects.len() >= self.limits.regions_max {
            self.suspects.clear();
        }
        self.suspects.insert(region, failures);
        self.calm = 0;
        false
    }

    fn admit(&mut self, region: RegionHash, now: Duration) -> Admission {
        let waiters = self.waiters;
        let Some(tracked) = self.regions.get_mut(&region) else { return Admission::Free };
        tracked.touched = now;
        self.last += 1;
        let waiter = self.last;
        if tracked.turn.is_none() {
            Self::grant(tracked, waiter, now, &self.limits);
            return Admission::Turn(waiter);
        }
        if tracked.queue.len() >= self.limits.waiters_per_region_max || waiters >= self.limits.waiters_max {
            return Admission::Free;
        }
        tracked.queue.push_back(waiter);
        self.waiters += 1;
        Admission::Wait(waiter)
    }

    fn grant(tracked: &mut Tracked, holder: Waiter, now: Duration, limits: &PacerLimits) {
        let time = match tracked.turn_time {
            Duration::ZERO => limits.turn_max / 2,
            time => time.saturating_mul(LAPSE_FACTOR),
        };
        let lapses_at = now + time.clamp(limits.turn_min, limits.turn_max);
        tracked.turn = Some(Turn { holder, since: now, lapses_at, version: None });
        tracked.touched = now;
    }

    /// Ends the turn of a region, and grants it to the next in the queue, if there is one.
    fn end_turn(&mut self, region: RegionHash, now: Duration, granted: &mut Vec<Waiter>) {
        let Some(tracked) = self.regions.get_mut(&region) else { return };
        tracked.turn = None;
        if tracked.lapses >= LAPSES_MAX {
            // Everybody may go, and nobody is left behind.
            self.waiters -= tracked.queue.len();
            granted.extend(tracked.queue.drain(..));
            self.regions.remove(&region);
            return;
        }
        match tracked.queue.pop_front() {
            Some(next) => {
                self.waiters -= 1;
                tracked.quiet_turns = 0;
                Self::grant(tracked, next, now, &self.limits);
                granted.push(next);
            }
            None => {
                tracked.quiet_turns += 1;
                if tracked.quiet_turns >= QUIET_TURNS_MAX {
                    self.regions.remove(&region);
                }
            }
        }
    }

    fn forget_idle(&mut self, now: Duration) {
        self.regions
            .retain(|_, tracked| tracked.turn.is_some() || now.saturating_sub(tracked.touched) < IDLE_MAX);
    }

    #[cfg(test)]
    fn check(&self) {
        let mut waiters = 0;
        for tracked in self.regions.values() {
            assert!(tracked.turn.is_some() || tracked.queue.is_empty(), "a waiter is left behind");
            assert!(tracked.queue.len() <= self.limits.waiters_per_region_max);
            assert!(tracked.queue.iter().is_sorted());
            waiters += tracked.queue.len();
        }
        assert_eq!(waiters, self.waiters);
        assert!(self.waiters <= self.limits.waiters_max && self.regions.len() <= self.limits.regions_max);
    }
}

#[cfg(test)]
#[path = "pace/tests.rs"]
mod tests;
