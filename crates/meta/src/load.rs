//! The load of a rank and of its sequencers: rates that decay.

use std::time::Duration;

use nacre_object::ObjectId;

use crate::place::RankNumber;

/// The time in which what a rate remembers falls to 1/e.
const DECAY: Duration = Duration::from_secs(5);
/// The time for which events are counted before the rate is worked out anew.
const FOLD: Duration = Duration::from_millis(100);

/// A rate of events that decays exponentially.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// The events up to `at`, each with the weight that is left of it.
    decayed: f64,
    at: Duration,
    /// The events since.
    fresh: u64,
}

impl Rate {
    /// Counts an event.
    #[inline]
    pub fn count(&mut self, now: Duration) {
        if now.saturating_sub(self.at) >= FOLD {
            self.decayed = self.weight(now);
            (self.at, self.fresh) = (now, 0);
        }
        self.fresh += 1;
    }

    fn weight(&self, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.at);
        let left = |time: Duration| (-time.as_secs_f64() / DECAY.as_secs_f64()).exp();
        // Those that were counted since came within that time, and not later.
        self.decayed * left(passed) + self.fresh as f64 * left(passed.saturating_sub(FOLD))
    }

    /// Returns the events per second.
    pub fn per_second(&self, now: Duration) -> f64 {
        self.weight(now) / DECAY.as_secs_f64()
    }
}

/// The load of a rank. Rates are those of about the last 5 seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankLoad {
    /// The rank.
    pub rank: RankNumber,
    /// Its epoch; 0 if the daemon that was asked has no authority, and then all else is 0 too.
    pub epoch: u64,
    /// The requests of clients, also those that it forwards.
    pub requests_per_second: f64,
    /// The requests that it forwards to other ranks.
    pub forwarded_per_second: f64,
    /// The requests that wait: for others, for the store, or for the end of a migration.
    pub queue: u64,
    /// The sessions.
    pub sessions: u64,
    /// The sequencers in memory that it has authority over, the busiest first.
    pub resources: Vec<ResourceLoad>,
}

impl RankLoad {
    /// Returns it with the `limit` busiest sequencers only, the busiest first.
    pub(crate) fn busiest(mut self, limit: usize) -> RankLoad {
        let by_rate = |one: &ResourceLoad, other: &ResourceLoad| {
            other.requests_per_second.total_cmp(&one.requests_per_second).then_with(|| one.id.cmp(&other.id))
        };
        if limit < self.resources.len() {
            self.resources.select_nth_unstable_by(limit, by_rate);
            self.resources.truncate(limit);
        }
        self.resources.sort_unstable_by(by_rate);
        self
    }
}

/// The load of a sequencer.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceLoad {
    /// Its object.
    pub id: ObjectId,
    /// The requests to the rank. Positions that a holder hands out are none.
    pub requests_per_second: f64,
    /// The requests that wait.
    pub waiting: u64,
    /// True if a holder caches it.
    pub held: bool,
    /// True if it is being moved to another rank.
    pub moving: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_comes_near_what_is_counted_and_fades() {
        let (mut rate, mut now) = (Rate::default(), Duration::from_secs(1000));
        for _ in 0..40_000 {
            now += Duration::from_millis(1);
            rate.count(now);
        }
        let busy = rate.per_second(now);
        assert!((950.0..1050.0).contains(&busy), "{busy}");
        let idle = rate.per_second(now + Duration::from_secs(60));
        assert!(idle < 0.1, "{idle}");
        assert_eq!(Rate::default().per_second(now), 0.0);
    }

    #[test]
    fn the_busiest_come_first_and_of_equal_ones_those_with_the_lesser_id() {
        let resource = |id: &str, requests_per_second: f64| ResourceLoad {
            id: id.parse().unwrap(),
            requests_per_second,
            waiting: 0,
            held: false,
            moving: false,
        };
        let all = vec![resource("c", 1.0), resource("a", 1.0), resource("b", 9.0), resource("d", 0.0)];
        let load = RankLoad { queue: 5, resources: all, ..RankLoad::default() };
        for (limit, busiest) in [(9, "bacd"), (4, "bacd"), (3, "bac"), (2, "ba"), (1, "b"), (0, "")] {
            let load = load.clone().busiest(limit);
            let ids: String = load.resources.iter().map(|resource| resource.id.to_string()).collect();
            assert_eq!((ids.as_str(), load.queue), (busiest, 5));
        }
    }
}
