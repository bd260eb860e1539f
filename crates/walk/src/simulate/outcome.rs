//! What a simulated run came to.

use crate::algorithm::{Algorithm, Tally};

/// The ranks up to which an outcome holds the bytes between all pairs.
pub const PAIRS_RANKS_MAX: u32 = 1_024;

/// What a simulated run came to. Times are simulated ones, in seconds.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Outcome {
    /// Which algorithm ran.
    pub algorithm: Algorithm,
    /// Nodes of the machine that took part.
    pub nodes: u32,
    /// Ranks.
    pub ranks: u32,
    /// Threads of each rank that walk.
    pub threads: u32,
    /// Entries below the root: files and directories.
    pub entries: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// From the beginning until the last rank left.
    pub seconds: f64,
    /// Until the end was announced.
    pub announced_seconds: f64,
    /// Until the last entry was visited; what follows is the detection of that.
    pub last_visit_seconds: f64,
    /// Which part of the whole time the metadata service was busy.
    pub metadata_busy: f64,
    /// Messages and bytes in all.
    pub sent: Tally,
    /// The sum over all threads and ports of where time went: figure 3b.
    pub profile: Profile,
    /// What each rank did: figure 6.
    pub by_rank: Vec<RankOutcome>,
    /// Bytes from each rank (row) to each rank (column), for at most [`PAIRS_RANKS_MAX`] ranks: figures 1 and 5.
    pub bytes_by_pair: Option<Vec<Vec<u64>>>,
    /// Events that were simulated.
    pub events: u64,
}

/// Where the time of all threads went, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Profile {
    /// The user's callback.
    pub callback_seconds: f64,
    /// Waiting for `lstat`.
    pub stat_seconds: f64,
    /// Waiting for pages of directories.
    pub readdir_seconds: f64,
    /// Ports busy with messages.
    pub communication_seconds: f64,
    /// Walking threads without work.
    pub idle_seconds: f64,
}

/// What one rank did.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RankOutcome {
    /// Entries that it visited.
    pub visited: u64,
    /// For how long its threads were busy, added up, in seconds.
    pub busy_seconds: f64,
    /// For how long its port was busy, in seconds.
    pub port_seconds: f64,
    /// What it sent.
    pub sent: Tally,
    /// What it received.
    pub received: Tally,
    /// Requests for work that it sent.
    pub requests: u64,
    /// Those of them that were refused.
    pub refusals: u64,
    /// Units of work that it gave away.
    pub units_given: u64,
}

impl Outcome {
    /// The largest number of entries that a rank visited, over the mean of the ranks that walk.
    pub fn imbalance(&self) -> f64 {
        let walking = self.ranks - u32::from(self.algorithm.has_master() && self.ranks > 1);
        let most = self.by_rank.iter().map(|rank| rank.visited).max().unwrap_or(0);
        let mean =
            self.by_rank.iter().map(|rank| rank.visited).sum::<u64>() as f64 / f64::from(walking.max(1));
        if mean > 0.0 { most as f64 / mean } else { 1.0 }
    }
}
