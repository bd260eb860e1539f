//! What a run of an algorithm gave, measured or simulated: all figures of the paper are drawn from such records.

mod figures;

use std::io::BufRead;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub(super) use self::figures::draw;
use crate::BenchError;

/// One run of one algorithm on one tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) source: Source,
    /// What ran it, in few words: the MPI library, or the model.
    pub(crate) by: String,
    /// The algorithm's name, as `h-drqs`.
    pub(crate) algorithm: String,
    /// Entries of the tree.
    pub(crate) entries: u64,
    pub(crate) ranks: u32,
    /// Threads of each rank that visit entries.
    pub(crate) threads: u32,
    pub(crate) seconds: f64,
    /// Messages and bytes that ranks sent to each other.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// What the processors' time went into, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<Profile>,
    /// Bytes from each rank (the rows) to each rank, if that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) bytes_between: Vec<Vec<u64>>,
    /// Entries that each rank visited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) entries_by_rank: Vec<u64>,
}

/// Whether a run took place on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Source {
    /// It did.
    Measured,
    /// A model took the place of network and file system.
    Simulated,
}

/// Seconds of all threads of all ranks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Profile {
    pub(crate) callback_s: f64,
    pub(crate) stat_s: f64,
    pub(crate) readdir_s: f64,
    pub(crate) communication_s: f64,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Simulated => "simulated",
        }
    }
}

impl Run {
    /// Threads that visit entries, of all ranks: what the paper counts as processes.
    fn processes(&self) -> u32 {
        self.ranks * self.threads.max(1)
    }
}

/// Reads runs, one JSON object on each line.
pub(super) fn read(file: &Path) -> Result<Vec<Run>, BenchError> {
    let attempted = || format!("read {}", file.display());
    let opened = std::fs::File::open(file).map_err(BenchError::io(attempted()))?;
    let mut runs = Vec::new();
    for (number, line) in std::io::BufReader::new(opened).lines().enumerate() {
        let line = line.map_err(BenchError::io(attempted()))?;
        if line.trim().is_empty() {
            continue;
        }
        let run: Run = serde_json::from_str(&line).map_err(|error| {
            BenchError::Usage(format!("line {} of {} is no run: {error}", number + 1, file.display()))
        })?;
        let square = run.bytes_between.iter().all(|row| row.len() == run.bytes_between.len());
        if !square || !run.seconds.is_finite() || run.ranks == 0 {
            return Err(BenchError::Usage(format!(
                "line {} of {} is a run that cannot be: ranks, seconds, or bytes between ranks",
                number + 1,
                file.display()
            )));
        }
        runs.push(run);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests;
