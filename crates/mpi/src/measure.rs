//! Measurements of a rank for the study: its work, its messages, and its use of resources.

use std::path::Path;
use std::time::Duration;

use nacre_ranks::{Algorithm, Counters};
use nacre_walk::{Profile, Progress, Unit};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::job::Phase;
use crate::network::Network;

/// The measurements of one rank.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Measured {
    /// The number of entries that it visited.
    pub entries: u64,
    /// The time from the start of the program to the end of the walk, in nanoseconds.
    pub wall_ns: u64,
    /// Processor time in user mode, in nanoseconds.
    pub user_ns: u64,
    /// Processor time in the kernel, in nanoseconds.
    pub system_ns: u64,
    /// Processor time of all threads but the communicating one, which also started the MPI library, in nanoseconds.
    pub walking_ns: u64,
    /// The time from the beginning of the last phase until the rank first had work, or until its end, in nanoseconds.
    pub first_idle_ns: u64,
    /// Processor time of the rank in this time, in nanoseconds.
    pub first_idle_processor_ns: u64,
    /// The time from the beginning of the last phase until the rank last had work, in nanoseconds.
    pub worked_until_ns: u64,
    /// The maximum resident size, in bytes.
    pub resident_bytes_max: u64,
    /// The time that its threads spent in each part of the work.
    pub profile: Profile,
    /// The time that the communicating thread spent with messages, in nanoseconds.
    pub communication_ns: u64,
    /// The algorithm's own counters.
    pub counters: Counters,
    /// The number of bytes that were handed to MPI for each rank, compressed.
    pub wire_bytes: Vec<u64>,
}

/// Returns the processor time that this process or thread has used.
pub fn processor_time(who: UsageWho) -> Duration {
    getrusage(who).map_or(Duration::ZERO, |usage| duration(usage.user_time()) + duration(usage.system_time()))
}

fn duration(time: TimeVal) -> Duration {
    Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()) as u64)
}

impl Measured {
    /// Collects the measurements of this rank at the end of a phase, on its communicating thread.
    pub fn new(phase: &Phase, network: &Network<Unit>, progress: &Progress, wall: Duration) -> Measured {
        // It cannot fail for the calling process; were it to, the figures would be missing.
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
        let nanoseconds = |time: TimeVal| duration(time).as_nanos() as u64;
        let communicating = processor_time(UsageWho::RUSAGE_THREAD);
        let walking = processor_time(UsageWho::RUSAGE_SELF).saturating_sub(communicating);
        Measured {
            entries: progress.entries(),
            wall_ns: wall.as_nanos() as u64,
            user_ns: usage.map_or(0, |usage| nanoseconds(usage.user_time())),
            system_ns: usage.map_or(0, |usage| nanoseconds(usage.system_time())),
            walking_ns: walking.as_nanos() as u64,
            first_idle_ns: phase.first_idle.0.as_nanos() as u64,
            first_idle_processor_ns: phase.first_idle.1.as_nanos() as u64,
            worked_until_ns: phase.worked_until.as_nanos() as u64,
            resident_bytes_max: usage.map_or(0, |usage| usage.max_rss() as u64 * 1024),
            profile: progress.profile(),
            communication_ns: phase.communication.as_nanos() as u64,
            counters: phase.counters.clone(),
            wire_bytes: network.sent_bytes().to_vec(),
        }
    }
}

/// The measurements of the whole job.
#[derive(Debug, serde::Serialize)]
pub struct Measurements<'a> {
    algorithm: Algorithm,
    threads: usize,
    ranks: Vec<&'a Measured>,
}

impl<'a> Measurements<'a> {
    /// Combines the measurements of ranks with `threads` threads each.
    pub fn new(
        algorithm: Algorithm,
        threads: usize,
        ranks: impl Iterator<Item = &'a Measured>,
    ) -> Measurements<'a> {
        Measurements { algorithm, threads, ranks: ranks.collect() }
    }

    /// Writes them as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, file: &Path) -> std::io::Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        std::fs::write(file, json)
    }
}
