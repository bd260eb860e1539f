//! The processor time of ranks without work.
//!
//! The job has work for one rank only: a chain of directories, each of which holds only the next one, so that there is
//! never more than one directory to read. It is so deep that the walk lasts longer than a second. A rank that visited
//! nothing was idle all the time. Its processor time is counted from the beginning of the walk to its end: the start of
//! an MPI process takes many times as much, and varies by more than idling costs.

use std::os::fd::OwnedFd;
use std::path::Path;

use nacre_quantity::Escaped;
use nacre_ranks::Algorithm;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use serde::Serialize;

use super::mpi::{Job, Mpi};
use crate::BenchError;

/// The results of idle ranks.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Idle {
    pub(super) ranks: u32,
    /// The number of ranks that visited nothing.
    pub(super) idle_ranks: u32,
    /// The time that they were idle, in seconds.
    pub(super) seconds: f64,
    /// The processor time of each in this time.
    pub(super) cpu_seconds: Vec<f64>,
    /// The mean share of a processor that an idle rank used while idle, in percent.
    pub(super) percent: f64,
    /// The mean number of messages that an idle rank sent per second.
    pub(super) messages_per_second: f64,
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A chain of directories, removed when dropped.
struct Chain {
    folder: tempfile::TempDir,
}

impl Chain {
    fn make(depth: u32) -> Result<Self, BenchError> {
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

    fn path(&self) -> &Path {
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
    // Now and then the one directory goes to another rank. That all of them had it is next to impossible.
    for seed in 1..=5 {
        let (algorithm, threads, root) = (Algorithm::HDrqs, Some(1), chain.path());
        let measured = mpi.walk(&Job { ranks: RANKS, algorithm, threads, seed, root })?;
        let idle: Vec<_> = measured.ranks.iter().filter(|rank| rank.entries == 0).collect();
        if idle.is_empty() {
            continue;
        }
        let seconds = idle.iter().map(|rank| rank.phase_ns).max().unwrap_or(0).max(1) as f64 / 1e9;
        let cpu_seconds: Vec<f64> = idle.iter().map(|rank| rank.phase_processor_ns as f64 / 1e9).collect();
        let mean = cpu_seconds.iter().sum::<f64>() / idle.len() as f64;
        let messages: u64 = idle.iter().map(|rank| rank.counters.sent.messages).sum();
        return Ok(Idle {
            ranks: RANKS,
            idle_ranks: idle.len() as u32,
            seconds,
            percent: 100.0 * mean / seconds,
            messages_per_second: messages as f64 / idle.len() as f64 / seconds,
            cpu_seconds,
        });
    }
    Err(BenchError::Process("no rank of the job was idle all the time; try again".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
