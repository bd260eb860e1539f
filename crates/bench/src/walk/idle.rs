//! The processor time of ranks without work.
//!
//! The job has work for one rank only: a chain of directories, each of which holds only the next one, so that there is
//! never more than one directory to read. It is so deep that the walk lasts longer than a second. Now and then the one
//! directory goes to another rank. So a rank counts its processor time from the beginning of the walk until it first has
//! work: the start of an MPI process, which is not in it, takes many times as much, and varies by more than idling costs.

use std::os::fd::OwnedFd;
use std::path::Path;

use nacre_quantity::Escaped;
use nacre_ranks::Algorithm;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use serde::Serialize;

use super::mpi::{Job, Measurements, Mpi};
use crate::BenchError;

/// The results of idle ranks.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Idle {
    pub(super) ranks: u32,
    /// The time until each rank had work, for those that waited long enough, in seconds.
    pub(super) seconds: Vec<f64>,
    /// The processor time of each in this time.
    pub(super) cpu_seconds: Vec<f64>,
    /// The share of a processor that they used, all together, in percent.
    pub(super) percent: f64,
    /// The mean number of messages that a rank of the job sent per second.
    pub(super) messages_per_second: f64,
}

/// The shortest time that says what idling costs, in nanoseconds: a rank that has just begun asks many others in a row.
const LONG_ENOUGH_NS: u64 = 100_000_000;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A chain of directories, removed when dropped.
pub(crate) struct Chain {
    folder: tempfile::TempDir,
}

impl Chain {
    pub(crate) fn make(depth: u32) -> Result<Self, BenchError> {
        let folder = tempfile::tempdir().map_err(BenchError::io("make a temporary folder"))?;
        let chain = Self { folder };
        let attempted =
            || BenchError::io(format!("make a chain of directories in {}", Escaped::of(&chain.path())));
        let mut above = open(chain.path()).map_err(|errno| attempted()(errno.into()))?;
        for _ in 0..depth {
            above = mkdirat(&above, c"d", Mode::RWXU)
                .and_then(|()| openat(&above, c"d", DIRECTORY, Mode::empty()))
                .map_err(|errno| attempted()(errno.into()))?;
        }
        Ok(chain)
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Chain {
    /// Removes the chain from the top: the contents of the first directory take its place. Descending would need a path
    /// or a descriptor for every level.
    fn drop(&mut self) {
        let Ok(root) = open(self.folder.path()) else { return };
        while renameat(&root, c"d/d", &root, c"e").is_ok() {
            if unlinkat(&root, c"d", AtFlags::REMOVEDIR)
                .and_then(|()| renameat(&root, c"e", &root, c"d"))
                .is_err()
            {
                break;
            }
        }
        // The folder itself goes with what is left.
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    openat(CWD, path, DIRECTORY, Mode::empty())
}

/// Measures idle ranks on a chain of `depth` directories.
pub(super) fn measure(mpi: &Mpi, depth: u32) -> Result<Idle, BenchError> {
    const RANKS: u32 = 6;
    let chain = Chain::make(depth)?;
    // That all ranks have had the directory soon is next to impossible.
    for seed in 1..=5 {
        let (algorithm, threads, root) = (Algorithm::HDrqs, Some(1), chain.path());
        let measured = mpi.walk(&Job { ranks: RANKS, algorithm, threads, seed, root })?;
        if let Some(idle) = sum_up(&measured) {
            return Ok(idle);
        }
    }
    Err(BenchError::Process("no rank of the job was idle for long enough; try again".into()))
}

/// Returns the results of a job, if ranks were idle for long enough.
fn sum_up(measured: &Measurements) -> Option<Idle> {
    let idle: Vec<_> = measured.ranks.iter().filter(|rank| rank.first_idle_ns >= LONG_ENOUGH_NS).collect();
    let seconds: Vec<f64> = idle.iter().map(|rank| rank.first_idle_ns as f64 / 1e9).collect();
    let cpu_seconds: Vec<f64> = idle.iter().map(|rank| rank.first_idle_processor_ns as f64 / 1e9).collect();
    let all_seconds = seconds.iter().sum::<f64>();
    let ranks = measured.ranks.len() as u32;
    (!idle.is_empty()).then(|| Idle {
        ranks,
        percent: 100.0 * cpu_seconds.iter().sum::<f64>() / all_seconds,
        messages_per_second: measured.sent().messages as f64 / f64::from(ranks) / measured.seconds(),
        seconds,
        cpu_seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::mpi::tests::rank;

    #[test]
    fn ranks_that_were_idle_for_long_enough_count_by_their_time() {
        // Idle for 0 s, 0.05 s, 0.2 s and 0.6 s. Each used a hundredth of that, and the last one three times as much.
        let ranks = [0, 5, 20, 60].map(|entries| rank(entries, 1_000_000_000, Vec::new())).to_vec();
        let mut job = Measurements { algorithm: Algorithm::HDrqs, threads: 1, ranks };
        job.ranks[3].first_idle_processor_ns *= 3;
        let idle = sum_up(&job).unwrap();
        assert_eq!((idle.ranks, idle.seconds), (4, vec![0.2, 0.6]));
        assert!((idle.percent - 2.5).abs() < 1e-6 && idle.messages_per_second == 2.0, "{}", idle.percent);
        job.ranks.truncate(2);
        assert!(sum_up(&job).is_none());
    }

    #[test]
    fn a_chain_is_as_deep_as_asked_and_goes_away() {
        let chain = Chain::make(3000).unwrap();
        let path = chain.path().to_owned();
        let mut fd = open(&path).unwrap();
        for _ in 0..3000 {
            fd = openat(&fd, c"d", DIRECTORY, Mode::empty()).unwrap();
        }
        assert!(openat(&fd, c"d", DIRECTORY, Mode::empty()).is_err());
        drop(chain);
        assert!(!path.exists());
    }
}
