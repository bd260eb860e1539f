//! The results of runs of an algorithm, measured or simulated: all figures of the paper are drawn from such records.

pub(super) mod compare;
mod figures;
pub(super) mod measure;
pub(super) mod simulate;

use std::fmt;
use std::path::Path;

use nacre_quantity::Escaped;
use serde::{Deserialize, Serialize};

pub(super) use self::figures::draw;
use crate::BenchError;
use crate::kit::quantity::grouped;
use crate::kit::report::Results;
use crate::kit::table::Table;

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FigureName {
    /// Bytes between ranks with CP.
    #[value(name = "1")]
    One,
    /// Time by processes.
    #[value(name = "3a")]
    Three,
    /// The parts of the time.
    #[value(name = "3b")]
    Profile,
    /// Messages and bytes.
    #[value(name = "4")]
    Four,
    /// Bytes between ranks with all algorithms.
    #[value(name = "5")]
    Five,
    /// The distribution of work.
    #[value(name = "6")]
    Six,
    /// All figures.
    All,
}

impl FigureName {
    /// All figures except [`FigureName::All`].
    pub(super) const ALL: [Self; 6] =
        [Self::One, Self::Three, Self::Profile, Self::Four, Self::Five, Self::Six];
}

/// The name of CP in a record of a run.
const CENTRALIZED: &str = "cp";
/// The name of CP with one worker that reads all directories, as at LANL, in a record of a run.
const ONE_READER: &str = "cp, one reader";

/// The name of CP whose workers keep one of the entries that they found, the paper's enhancement, in a record of a run.
const KEEPS_ONE: &str = "cp, keeps one";

/// All runs of a study, and a comparison in the simulation, if it was requested.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Runs {
    pub(super) runs: Vec<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) comparison: Option<compare::Comparison>,
}

impl Results for Runs {
    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.comparison.is_none()
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(
            "source | algorithm | entries | processes | threads | seconds | messages | \
             bytes | busiest ÷ mean",
        );
        for run in &self.runs {
            let most = run.entries_by_rank.iter().max();
            let balance =
                most.map(|most| *most as f64 * f64::from(run.visiting_ranks()) / run.entries.max(1) as f64);
            table.row(vec![
                run.source.name().into(),
                run.algorithm.clone(),
                grouped(run.entries as f64),
                grouped(f64::from(run.ranks)),
                run.threads.to_string(),
                format!("{:.3}", run.seconds),
                grouped(run.messages as f64),
                grouped(run.bytes as f64),
                balance.map_or("–".into(), |balance| format!("{balance:.2}")),
            ]);
        }
        if !self.runs.is_empty() {
            write!(f, "{table}")?;
        }
        match &self.comparison {
            Some(comparison) => write!(f, "\n{comparison}"),
            None => Ok(()),
        }
    }
}

/// A run of one algorithm on one tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) source: Source,
    /// The MPI library or the model that ran it.
    pub(crate) by: String,
    /// The algorithm's name, as `h-drqs`.
    pub(crate) algorithm: String,
    /// The number of entries of the tree.
    pub(crate) entries: u64,
    pub(crate) ranks: u32,
    /// The number of walking threads of each rank.
    pub(crate) threads: u32,
    pub(crate) seconds: f64,
    /// The number of messages and bytes that ranks sent to each other.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// The parts of the processors' time, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<Profile>,
    /// The bytes from each rank (the rows) to each rank, if requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) bytes_between: Vec<Vec<u64>>,
    /// The number of entries that each rank visited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) entries_by_rank: Vec<u64>,
}

/// The source of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A run on this machine.
    Measured,
    /// A run with a model in place of network and file system.
    Simulated,
}

/// The time of all threads of all ranks together, in seconds.
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
    /// Returns whether rank 0 was a master, which visits nothing: CP, in any variant.
    fn is_centralized(&self) -> bool {
        [CENTRALIZED, ONE_READER, KEEPS_ONE].contains(&self.algorithm.as_str())
    }

    /// Returns the number of ranks that visit entries: all but a master.
    fn visiting_ranks(&self) -> u32 {
        self.ranks - u32::from(self.is_centralized() && self.ranks > 1)
    }

    /// Returns the number of walking threads of all ranks.
    fn walkers(&self) -> u32 {
        self.visiting_ranks() * self.threads.max(1)
    }
}

/// Reads runs from a file of results, or from JSON objects, one on each line.
///
/// # Errors
/// If the file cannot be read, or holds an invalid run.
pub(super) fn read(file: &Path) -> Result<Vec<Run>, BenchError> {
    #[derive(Deserialize)]
    struct Recorded {
        runs: Vec<Run>,
    }
    let text =
        std::fs::read_to_string(file).map_err(BenchError::io(format!("read {}", Escaped::of(&file))))?;
    let recorded = serde_json::from_str::<Recorded>(&text).ok();
    let numbered = match recorded {
        Some(recorded) => recorded.runs.into_iter().map(|run| (None, run)).collect(),
        None => {
            let mut runs = Vec::new();
            for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                let run: Run = serde_json::from_str(line).map_err(|error| {
                    BenchError::Usage(format!(
                        "line {} of {} is no run: {error}",
                        number + 1,
                        Escaped::of(&file)
                    ))
                })?;
                runs.push((Some(number + 1), run));
            }
            runs
        }
    };
    for (number, run) in &numbered {
        let square = run.bytes_between.iter().all(|row| row.len() == run.bytes_between.len());
        if !square || !run.seconds.is_finite() || run.ranks == 0 {
            let place = number.map(|number| format!("line {number} of ")).unwrap_or_default();
            return Err(BenchError::Usage(format!(
                "{place}{} has a run that cannot be: ranks, seconds, or bytes between ranks",
                Escaped::of(&file)
            )));
        }
    }
    Ok(numbered.into_iter().map(|(_, run)| run).collect())
}

#[cfg(test)]
mod tests;
