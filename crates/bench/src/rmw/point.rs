//! A measured point: its parameters, and the results of its repetitions.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::check::Verdict;
use super::workload::Workload;
use crate::kit::latency::{LatencyCounts, LatencySummary};
use crate::kit::peer::Peer;
use crate::kit::server::Durability;
use crate::kit::statistic::Spread;

/// A system under test: a way to coordinate updates of blocks in Nacre, or another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Read with version, modify, write on condition that nothing changed, retry.
    Optimistic,
    /// Take the object's lock in ZooKeeper, read, modify, write, release.
    Zookeeper,
    /// Read, modify, write without coordination: updates are lost, but nothing can be faster.
    None,
    /// Redis in memory: WATCH, GET, MULTI, SET, EXEC.
    Redis,
    /// Redis with every write synced to disk (`appendfsync always`).
    RedisAof,
    /// etcd: a transaction that compares the revision of the last change.
    Etcd,
    /// ZooKeeper as the store: `setData` with the version.
    ZookeeperCas,
    /// Ceph without Nacre: whole RADOS objects, each written if its version is still the one that was read.
    Librados,
    /// No read: a write of a fresh block, on condition that it is fresh.
    #[value(skip)]
    WriteIf,
    /// No read and no condition: a write of a fresh block.
    #[value(skip)]
    Write,
}

impl System {
    /// Returns the name in tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimistic => "optimistic",
            Self::Zookeeper => "zookeeper locks",
            Self::None => "none (unsafe)",
            Self::Redis => "redis WATCH",
            Self::RedisAof => "redis WATCH, fsync",
            Self::Etcd => "etcd txn",
            Self::ZookeeperCas => "zookeeper CAS",
            Self::Librados => "raw librados",
            Self::WriteIf => "conditional write",
            Self::Write => "plain write",
        }
    }

    /// Returns whether the blocks are stored in Nacre.
    pub(crate) fn is_on_nacre(self) -> bool {
        !matches!(self, Self::Redis | Self::RedisAof | Self::Etcd | Self::ZookeeperCas | Self::Librados)
    }
}

/// The place of the blocks, for the systems that store them in Nacre.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Deployment {
    /// In servers that the study starts.
    Servers {
        /// The number of servers.
        servers: u32,
        /// The durability of their stores.
        durability: Durability,
        /// Enables pacing of regions under contention.
        pacing: bool,
    },
    /// In an existing store.
    Existing(String),
    /// In a store in this process; clients are threads.
    InProcess(String),
}

/// The parameters of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) system: System,
    /// The label in tables and legends.
    pub(crate) label: String,
    /// The figure that it belongs to, if any.
    pub(crate) figure: Option<String>,
    pub(crate) place: Deployment,
    /// The number of client processes, or threads.
    pub(crate) clients: u32,
    /// The number of concurrent operations of each client.
    pub(crate) concurrency: u32,
    pub(crate) objects: u32,
    pub(crate) forks: u32,
    /// The number of blocks per fork; `None` for unlimited.
    pub(crate) blocks: Option<u64>,
    pub(crate) block_bytes: u32,
    pub(crate) warm_up_ms: u64,
    pub(crate) window_ms: u64,
    pub(crate) seed: u64,
    /// Proposes the version read plus one, as the paper does.
    pub(crate) propose: bool,
    /// Retries from the read, as the paper does.
    pub(crate) reread: bool,
    /// Makes the servers count attempts and failures of every block.
    pub(crate) counts_regions: bool,
    /// The number of sessions or connections that a client shares among its operations, for ZooKeeper and etcd.
    pub(crate) connections: u32,
}

/// The results of one repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// The rate of updates that ended in the window, per second.
    pub(crate) updates_per_s: f64,
    /// The number of updates that ended in the window.
    pub(crate) updates: u64,
    /// The number of writes that these updates tried.
    pub(crate) attempts: u64,
    /// The share of these writes that succeeded, from 0 to 1.
    pub(crate) success_rate: f64,
    /// The greatest number of consecutive failures of one update.
    pub(crate) failures_in_a_row_max: u32,
    /// The processor time of the clients for each update, in microseconds; 0 where they are threads.
    pub(crate) client_cpu_us: f64,
    /// The processor time of the servers and of the peer for each update, in microseconds; 0 where none was started.
    pub(crate) server_cpu_us: f64,
    pub(crate) latency: LatencySummary,
    pub(crate) latency_ns_counts: LatencyCounts,
    pub(crate) checked: Verdict,
    /// The servers' counts for each block, where a figure needs them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) regions: Vec<RegionStatistic>,
}

/// A server's counts for one region.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RegionStatistic {
    /// The number of the server.
    pub(crate) server: u32,
    /// The object, fork and offset.
    pub(crate) place: String,
    /// The number of conditional writes that were tried.
    pub(crate) attempts: u64,
    /// The number of these writes that failed.
    pub(crate) failures: u64,
    /// The greatest number of consecutive failures.
    pub(crate) failures_in_a_row_max: u64,
}

/// A point with its repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) point: Point,
    pub(crate) updates_per_s: Spread,
    pub(crate) success_rate: Spread,
    pub(crate) p50_us: Spread,
    pub(crate) p99_us: Spread,
    pub(crate) max_us: Spread,
    pub(crate) client_cpu_us: Spread,
    pub(crate) server_cpu_us: Spread,
    pub(crate) repetitions: Vec<Measurement>,
}

impl crate::kit::study::Series for Series {
    type Subject = Measured;
    type Measurement = Measurement;

    fn of((point, _): &Measured, repetitions: Vec<Measurement>) -> Self {
        let spread = |value: fn(&Measurement) -> f64| Spread::of(repetitions.iter().map(value));
        Self {
            point: point.clone(),
            updates_per_s: spread(|m| m.updates_per_s),
            success_rate: spread(|m| m.success_rate),
            p50_us: spread(|m| m.latency.p50_us),
            p99_us: spread(|m| m.latency.p99_us),
            max_us: spread(|m| m.latency.max_us),
            client_cpu_us: spread(|m| m.client_cpu_us),
            server_cpu_us: spread(|m| m.server_cpu_us),
            repetitions,
        }
    }

    fn into_repetitions(self) -> Vec<Measurement> {
        self.repetitions
    }
}

/// A point, and the peer that it needs, unless that is kept for the whole study.
pub(super) type Measured = (Point, Option<Peer>);

impl Series {
    /// Returns the number of updates that the checker missed, over all repetitions.
    pub(crate) fn lost(&self) -> u64 {
        self.repetitions.iter().map(|m| m.checked.lost).sum()
    }
}

impl Point {
    /// Returns whether two points differ only in the system, so that they are comparable.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        let place = |point: &Self| (point.figure.clone(), point.clients, point.concurrency, point.blocks);
        place(self) == place(other)
    }

    /// Returns a one-line description.
    pub(crate) fn title(&self) -> String {
        let figure = self.figure.as_ref().map(|figure| format!("figure {figure}, ")).unwrap_or_default();
        let blocks = self.blocks.map_or("unlimited".into(), |blocks| blocks.to_string());
        format!("{figure}{}, {} × {}, {blocks} blocks", self.label, self.clients, self.concurrency)
    }

    /// Returns the blocks of one repetition; their names are unique to the run.
    pub(super) fn workload(&self, repetition: u32) -> Workload {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Workload {
            prefix: format!("rmw-{now:x}-{}-{repetition}", std::process::id()),
            seed: self.seed.wrapping_add(u64::from(repetition) << 32),
            objects: self.objects,
            forks: self.forks,
            blocks: self.blocks,
            block_bytes: self.block_bytes,
        }
    }
}
