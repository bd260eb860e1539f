//! What a rank did, said and took, for the study.

use crate::job::Phase;
use crate::network::Network;
use nacre_walk::algorithm::{Algorithm, Counters};
use nacre_walk::{Profile, Progress, Unit};
use nix::sys::resource::{UsageWho, getrusage};
use std::path::Path;
use std::time::Duration;

/// One rank.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Measured {
    /// Entries that it visited.
    pub entries: u64,
    /// From the beginning of the program to the end of the walk.
    pub wall_ns: u64,
    /// Processor time in user mode.
    pub user_ns: u64,
    /// Processor time in the kernel.
    pub system_ns: u64,
    /// The most memory that it held.
    pub resident_bytes_max: u64,
    /// What its threads spent their time with.
    pub profile: Profile,
    /// What the thread that talks spent with messages.
    pub communication_ns: u64,
    /// What was said, by the algorithm's own count.
    pub counters: Counters,
    /// Bytes that were handed to MPI for each rank, packed.
    pub wire_bytes: Vec<u64>,
}

impl Measured {
    /// This rank, at the end of a phase.
    pub fn new(phase: &Phase, network: &Network<Unit>, progress: &Progress, wall: Duration) -> Measured {
        // It cannot fail for the calling process; were it to, the figures would be missing.
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
        let nanoseconds =
            |time: nix::sys::time::TimeVal| (time.tv_sec() * 1_000_000 + time.tv_usec()) as u64 * 1000;
        Measured {
            entries: progress.entries(),
            wall_ns: wall.as_nanos() as u64,
            user_ns: usage.map_or(0, |usage| nanoseconds(usage.user_time())),
            system_ns: usage.map_or(0, |usage| nanoseconds(usage.system_time())),
            resident_bytes_max: usage.map_or(0, |usage| usage.max_rss() as u64 * 1024),
            profile: progress.profile(),
            communication_ns: phase.communication.as_nanos() as u64,
            counters: phase.counters.clone(),
            wire_bytes: network.sent_bytes().to_vec(),
        }
    }
}

/// The whole job.
#[derive(Debug, serde::Serialize)]
pub struct Measurements<'a> {
    algorithm: Algorithm,
    threads: usize,
    ranks: Vec<&'a Measured>,
}

impl<'a> Measurements<'a> {
    /// Of ranks with so many threads each.
    pub fn new(
        algorithm: Algorithm,
        threads: usize,
        ranks: impl Iterator<Item = &'a Measured>,
    ) -> Measurements<'a> {
        Measurements { algorithm, threads, ranks: ranks.collect() }
    }

    /// Writes them as JSON.
    pub fn write(&self, file: &Path) -> std::io::Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        std::fs::write(file, json)
    }
}
