//! The result of a simulated run.

use crate::{Algorithm, Traffic};

/// The maximum number of ranks for which an outcome holds the bytes between all pairs.
pub const PAIRS_RANKS_MAX: u32 = 1_024;

/// The result of a simulated run. Times are simulated, in seconds.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Outcome {
    /// The algorithm that ran.
    pub algorithm: Algorithm,
    /// The number of nodes that took part.
    pub nodes: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The number of walking threads of each rank.
    pub threads: u32,
    /// The number of entries below the root: files and directories.
    pub entries: u64,
    /// The number of directories, the root included.
    pub directories: u64,
    /// The time from the beginning until the last rank left.
    pub seconds: f64,
    /// The time until the end was announced.
    pub announced_seconds: f64,
    /// The time until the last entry was visited; the time after it was spent in termination detection.
    pub last_visit_seconds: f64,
    /// The share of the total time that the metadata service was busy, from 0 to 1.
    pub metadata_busy: f64,
    /// The total number and size of messages.
    pub sent: Traffic,
    /// The time spent in each part of the work, summed over all threads and ports: figure 3b.
    pub profile: Profile,
    /// The results of each rank: figure 6.
    pub by_rank: Vec<RankOutcome>,
    /// The bytes from each rank (row) to each rank (column), for at most [`PAIRS_RANKS_MAX`] ranks: figures 1 and 5.
    pub bytes_by_pair: Option<Vec<Vec<u64>>>,
    /// The number of simulated events.
    pub events: u64,
}

/// The time that all threads spent in each part of the work, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Profile {
    /// Time in the user's callback.
    pub callback_seconds: f64,
    /// Time waiting for `lstat`.
    pub stat_seconds: f64,
    /// Time waiting for pages of directories.
    pub readdir_seconds: f64,
    /// Time of ports busy with messages.
    pub communication_seconds: f64,
    /// Time of walking threads without work.
    pub idle_seconds: f64,
}

/// The results of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RankOutcome {
    /// The number of entries that it visited.
    pub visited: u64,
    /// The time that its threads were busy, added up, in seconds.
    pub busy_seconds: f64,
    /// The time from the beginning until it last had work, in seconds.
    #[serde(default)]
    pub last_work_seconds: f64,
    /// The time that its port was busy, in seconds.
    pub port_seconds: f64,
    /// The messages that it sent.
    pub sent: Traffic,
    /// The messages that it received.
    pub received: Traffic,
    /// The number of requests for work that it sent.
    pub requests: u64,
    /// The number of its requests that were refused.
    pub refusals: u64,
    /// The number of units of work that it gave away.
    pub units_given: u64,
}

impl Outcome {
    /// Returns the largest number of entries that a rank visited, over the mean of the ranks that walk.
    pub fn imbalance(&self) -> f64 {
        self.most_to_mean(|rank| rank.visited as f64)
    }

    /// Returns the longest time that a rank was busy, over the mean of the ranks that walk. Where entries do not all take
    /// the same time, it says more about balance than [`Outcome::imbalance`].
    pub fn busy_imbalance(&self) -> f64 {
        self.most_to_mean(|rank| rank.busy_seconds)
    }

    /// Returns the time at which the first of the ranks that walk had work for the last time, as a share of the time until
    /// the last entry was visited.
    pub fn first_without_work(&self) -> f64 {
        let master = usize::from(self.algorithm.has_master() && self.ranks > 1);
        let walking = self.by_rank.iter().skip(master);
        let first = walking.map(|rank| rank.last_work_seconds).fold(f64::INFINITY, f64::min);
        if self.last_visit_seconds > 0.0 { (first / self.last_visit_seconds).min(1.0) } else { 1.0 }
    }

    fn most_to_mean(&self, value: impl Fn(&RankOutcome) -> f64) -> f64 {
        let walking = self.ranks - u32::from(self.algorithm.has_master() && self.ranks > 1);
        let most = self.by_rank.iter().map(&value).fold(0.0, f64::max);
        let mean = self.by_rank.iter().map(&value).sum::<f64>() / f64::from(walking.max(1));
        if mean > 0.0 { most / mean } else { 1.0 }
    }
}
