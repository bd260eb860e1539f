//! One measured point: servers, clients, a window, the checker; and again, as often as asked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use nacre_object::{ObjectStore, Transaction, Write};
use serde::{Deserialize, Serialize};

use super::check::{Verdict, check};
use super::client::{Orders, run_threads};
use super::drive::Tally;
use super::way::{self, Plan};
use super::workload::Workload;
use crate::BenchError;
use crate::latency::{Latencies, LatencyCounts, LatencySummary};
use crate::peer::{self, Peer};
use crate::process::Crew;
use crate::server::{self, Keep, ServerPlan, Servers};
use crate::statistic::Spread;

/// A way to coordinate, or a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Coordination {
    /// Read with version, modify, write on condition that nothing changed, retry.
    Optimistic,
    /// Take the object's lock in ZooKeeper, read, modify, write, release.
    Zookeeper,
    /// Read, modify, write as if alone: updates are lost, but nothing can be faster.
    None,
    /// Redis in memory: WATCH, GET, MULTI, SET, EXEC.
    Redis,
    /// The same with every write synced to disk (`appendfsync always`).
    RedisAof,
    /// etcd: a transaction that compares the revision of the last change.
    Etcd,
    /// ZooKeeper as the store: `setData` with the version.
    ZookeeperCas,
    /// No read: a write of a fresh block, on condition that it is fresh.
    #[value(skip)]
    WriteIf,
    /// No read and no condition: a write of a fresh block.
    #[value(skip)]
    Write,
}

impl Coordination {
    /// The name in tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimistic => "optimistic",
            Self::Zookeeper => "zookeeper locks",
            Self::None => "none (unsafe)",
            Self::Redis => "redis WATCH",
            Self::RedisAof => "redis WATCH, fsync",
            Self::Etcd => "etcd txn",
            Self::ZookeeperCas => "zookeeper CAS",
            Self::WriteIf => "conditional write",
            Self::Write => "plain write",
        }
    }

    /// Whether the blocks are kept by Nacre.
    pub(crate) fn is_on_nacre(self) -> bool {
        !matches!(self, Self::Redis | Self::RedisAof | Self::Etcd | Self::ZookeeperCas)
    }
}

/// Where the blocks are kept, for the ways that keep them in Nacre.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    /// In servers that the study starts.
    Servers {
        /// How many.
        servers: u32,
        /// How they keep what they are given.
        keep: Keep,
        /// Whether they pace regions under contention.
        pacing: bool,
    },
    /// In a store that is there already.
    Existing(String),
    /// In this process; clients are threads.
    InProcess(String),
}

/// The parameters of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) coordination: Coordination,
    /// What it is called in tables and legends.
    pub(crate) label: String,
    /// The figure that it belongs to, if any.
    pub(crate) figure: Option<String>,
    pub(crate) place: Place,
    /// Client processes, or threads.
    pub(crate) clients: u32,
    /// Concurrent operations of each client.
    pub(crate) concurrency: u32,
    pub(crate) objects: u32,
    pub(crate) forks: u32,
    /// Blocks per fork; none for unlimited.
    pub(crate) blocks: Option<u64>,
    pub(crate) block_bytes: u32,
    pub(crate) warm_up_ms: u64,
    pub(crate) window_ms: u64,
    pub(crate) seed: u64,
    /// Propose the version read plus one, as the paper does.
    pub(crate) propose: bool,
    /// Retry from the read, as the paper does.
    pub(crate) reread: bool,
    /// Whether the servers count attempts and failures of every block.
    pub(crate) counts_regions: bool,
    /// Sessions or connections that a client shares among its operations, for ZooKeeper and etcd.
    pub(crate) connections: u32,
}

/// What one repetition gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// Updates that ended in the window, per second.
    pub(crate) updates_per_s: f64,
    /// Updates that ended in the window.
    pub(crate) updates: u64,
    /// Writes that these updates tried.
    pub(crate) attempts: u64,
    /// Of these, the share that succeeded.
    pub(crate) success_rate: f64,
    /// Most failures of one update in a row.
    pub(crate) failures_in_a_row_max: u32,
    /// Processor time of the clients for each update, in microseconds; 0 where they are threads.
    pub(crate) client_cpu_us: f64,
    /// Processor time of the servers and of the peer for each update, in microseconds; 0 where none was started.
    pub(crate) server_cpu_us: f64,
    pub(crate) latency: LatencySummary,
    pub(crate) latency_ns_counts: LatencyCounts,
    pub(crate) checked: Verdict,
    /// What the servers counted for each block, where a figure needs it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) regions: Vec<RegionStatistic>,
}

/// What a server counted for one region.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RegionStatistic {
    /// The number of the server.
    pub(crate) server: u32,
    /// Object, fork and offset.
    pub(crate) place: String,
    /// Conditional writes that were tried.
    pub(crate) attempts: u64,
    /// Those of them that failed.
    pub(crate) failures: u64,
    /// Most of them that failed in a row.
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

impl Series {
    fn of(point: Point, repetitions: Vec<Measurement>) -> Self {
        let spread = |value: fn(&Measurement) -> f64| Spread::of(repetitions.iter().map(value));
        Self {
            point,
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

    /// Updates that the checker missed, over all repetitions.
    pub(crate) fn lost(&self) -> u64 {
        self.repetitions.iter().map(|m| m.checked.lost).sum()
    }
}

/// What points are measured with.
pub(crate) struct Bench {
    /// The program that is a server and a client when told so.
    pub(crate) program: PathBuf,
    /// Where servers and peers put their files.
    pub(crate) folder: Option<PathBuf>,
    /// A store that lives in this process, in place of the one that the place names.
    pub(crate) store: Option<Arc<dyn ObjectStore>>,
    /// How often each point is measured.
    pub(crate) repetitions: u32,
    /// The lock service, from the first point that needs it to the end of the study.
    lock_service: Option<Peer>,
}

/// The servers that a repetition needs, and how its clients reach them and the peer. The servers end when this is
/// dropped.
struct Stage {
    plan: Plan,
    local: Option<Arc<dyn ObjectStore>>,
    servers: Option<Servers>,
}

impl Bench {
    /// Nothing is started yet.
    pub(crate) fn new(program: PathBuf, folder: Option<PathBuf>, repetitions: u32) -> Self {
        Self { program, folder, store: None, repetitions, lock_service: None }
    }

    /// Measures points that are to be compared, as often as asked, taking turns, so that whatever else the machine
    /// does meets all of them alike. `progress` hears what is measured next.
    pub(crate) async fn measure(
        &mut self,
        points: &[Point],
        mut progress: impl FnMut(&Point, u32),
    ) -> Result<Vec<Series>, BenchError> {
        let mut peers = Vec::with_capacity(points.len());
        for point in points {
            point.workload(0).validate()?;
            let (peer, cold) = self.peer(point.coordination).await?;
            if cold {
                // A virtual machine for Java is slow until it has compiled what is used most.
                let heating =
                    Point { warm_up_ms: 0, window_ms: HEATING * point.warm_up_ms.max(1), ..point.clone() };
                self.measure_once(&heating, peer.as_ref(), 0).await?;
            }
            peers.push(peer);
        }
        let mut measured = vec![Vec::new(); points.len()];
        for repetition in 0..self.repetitions {
            for ((point, peer), measured) in points.iter().zip(&peers).zip(&mut measured) {
                progress(point, repetition);
                measured.push(self.measure_once(point, peer.as_ref(), repetition).await?);
            }
        }
        Ok(points
            .iter()
            .cloned()
            .zip(measured)
            .map(|(point, measured)| Series::of(point, measured))
            .collect())
    }

    /// Starts the peer that a way needs, and says whether it has to become warm first. The lock service is kept for
    /// the whole study; the others, which are given data to keep, are fresh for every point.
    async fn peer(&mut self, way: Coordination) -> Result<(Option<Peer>, bool), BenchError> {
        let folder = self.folder.as_deref();
        let peer = match way {
            Coordination::Optimistic | Coordination::None | Coordination::WriteIf | Coordination::Write => {
                return Ok((None, false));
            }
            Coordination::Zookeeper if self.lock_service.is_some() => return Ok((None, false)),
            Coordination::Zookeeper => {
                self.lock_service = Some(peer::zookeeper::start(folder).await?);
                return Ok((None, true));
            }
            Coordination::ZookeeperCas => peer::zookeeper::start(folder).await?,
            Coordination::Redis => peer::redis::start(false, folder).await?,
            Coordination::RedisAof => peer::redis::start(true, folder).await?,
            Coordination::Etcd => peer::etcd::start(folder).await?,
        };
        Ok((Some(peer), way == Coordination::ZookeeperCas))
    }

    async fn measure_once(
        &self,
        point: &Point,
        peer: Option<&Peer>,
        repetition: u32,
    ) -> Result<Measurement, BenchError> {
        let workload = point.workload(repetition);
        let peer = match point.coordination {
            Coordination::Zookeeper => self.lock_service.as_ref(),
            _ => peer,
        };
        let address = peer.map(|peer| peer.address.clone()).unwrap_or_default();
        let stage = self.set_up(point, address).await?;
        let orders: Vec<Orders> =
            (0..point.clients).map(|client| point.orders(&stage, &workload, client)).collect();
        let cpu_time = || {
            let servers = stage.servers.as_ref().map(Servers::cpu_time).unwrap_or_default();
            servers + peer.map(Peer::cpu_time).unwrap_or_default()
        };
        let cpu_before = cpu_time();
        let tallies: Vec<Tally> = match &point.place {
            Place::InProcess(_) => run_threads(orders, stage.local.clone())?,
            _ => Crew::start(&self.program, &CLIENT_ARGUMENTS, &orders).await?.run().await?,
        };
        let server_cpu = cpu_time() - cpu_before;
        let regions = match &stage.servers {
            Some(servers) if point.counts_regions => regions(&servers.uri).await?,
            _ => Vec::new(),
        };
        let mut measurement = self.judge(point, &stage, &workload, &tallies).await?;
        measurement.regions = regions;
        measurement.server_cpu_us = server_cpu.as_micros() as f64 / measurement.checked.updates.max(1) as f64;
        if let Place::Existing(_) | Place::InProcess(_) = point.place
            && point.coordination.is_on_nacre()
        {
            clean_up(&stage, &workload).await?;
        }
        Ok(measurement)
    }

    async fn set_up(&self, point: &Point, address: String) -> Result<Stage, BenchError> {
        let folder = self.folder.as_deref();
        let mut local = None;
        let mut servers = None;
        let store = match &point.place {
            _ if !point.coordination.is_on_nacre() => String::new(),
            Place::Existing(uri) => uri.clone(),
            Place::InProcess(uri) => {
                local = Some(match &self.store {
                    Some(store) => store.clone(),
                    None => Arc::new(server::open(uri).await?),
                });
                uri.clone()
            }
            Place::Servers { servers: count, keep, pacing } => {
                let plan = ServerPlan {
                    servers: *count,
                    keep: *keep,
                    pacing: *pacing,
                    region_statistics: point.counts_regions,
                    snapshot_bytes: None,
                };
                let started = Servers::start(&self.program, plan, folder).await?;
                let uri = started.uri.clone();
                servers = Some(started);
                uri
            }
        };
        let connections = point.connections;
        let plan = match point.coordination {
            Coordination::Optimistic => {
                Plan::Optimistic { store, propose: point.propose, reread: point.reread }
            }
            Coordination::None => Plan::Unsafe { store },
            Coordination::WriteIf => Plan::Write { store, conditional: true },
            Coordination::Write => Plan::Write { store, conditional: false },
            Coordination::Zookeeper => Plan::Locks { store, address, connections },
            Coordination::Redis | Coordination::RedisAof => Plan::Redis { address },
            Coordination::Etcd => Plan::Etcd { address, connections },
            Coordination::ZookeeperCas => Plan::ZookeeperCas { address, connections },
        };
        Ok(Stage { plan, local, servers })
    }

    /// Sums up the clients, and has their blocks checked.
    async fn judge(
        &self,
        point: &Point,
        stage: &Stage,
        workload: &Workload,
        tallies: &[Tally],
    ) -> Result<Measurement, BenchError> {
        let store = stage.open_store().await?;
        let ways = way::open(&stage.plan, workload, CHECK_CONCURRENCY, store).await?;
        let updates_by_writer: Vec<u64> =
            tallies.iter().flat_map(|tally| tally.updates_by_writer.iter().copied()).collect();
        let checked = check(ways, workload, &updates_by_writer).await?;
        if !checked.is_clean() && point.coordination != Coordination::None {
            let way = point.coordination.name();
            return Err(BenchError::Lost(format!("{way}: the store lost what it acknowledged: {checked}")));
        }
        let mut latencies = Latencies::new()?;
        tallies.iter().for_each(|tally| latencies.add(&tally.latencies));
        let updates: u64 = tallies.iter().map(|tally| tally.updates).sum();
        let attempts: u64 = tallies.iter().map(|tally| tally.attempts).sum();
        Ok(Measurement {
            updates_per_s: updates as f64 * 1e3 / point.window_ms as f64,
            updates,
            attempts,
            success_rate: if attempts == 0 { 0.0 } else { updates as f64 / attempts as f64 },
            failures_in_a_row_max: tallies.iter().map(|tally| tally.failures_in_a_row_max).max().unwrap_or(0),
            client_cpu_us: tallies.iter().map(|tally| tally.cpu_us).sum::<u64>() as f64
                / checked.updates.max(1) as f64,
            server_cpu_us: 0.0,
            latency: latencies.summary(),
            latency_ns_counts: latencies.counts(),
            checked,
            regions: Vec::new(),
        })
    }
}

/// How the program is told to be a client.
const CLIENT_ARGUMENTS: [&str; 2] = ["bench", "rmw-client"];

/// How much longer than its usual warm-up a cold Java server is warmed up.
const HEATING: u64 = 10;

/// Reads of the checker that are on their way at once.
const CHECK_CONCURRENCY: u32 = 128;

impl Stage {
    async fn open_store(&self) -> Result<Option<Arc<dyn ObjectStore>>, BenchError> {
        match (&self.local, self.plan.store()) {
            (Some(store), _) => Ok(Some(store.clone())),
            (None, Some(uri)) => Ok(Some(Arc::new(server::open(uri).await?))),
            (None, None) => Ok(None),
        }
    }
}

impl Point {
    /// Whether two points differ in the way to coordinate alone, and are to be compared.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        let place = |point: &Self| (point.figure.clone(), point.clients, point.concurrency, point.blocks);
        place(self) == place(other)
    }

    /// One line that says which point it is.
    pub(crate) fn title(&self) -> String {
        let figure = self.figure.as_ref().map(|figure| format!("figure {figure}, ")).unwrap_or_default();
        let blocks = self.blocks.map_or("unlimited".into(), |blocks| blocks.to_string());
        format!("{figure}{}, {} × {}, {blocks} blocks", self.label, self.clients, self.concurrency)
    }

    /// The blocks of one repetition; their names meet those of no other run.
    fn workload(&self, repetition: u32) -> Workload {
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

    fn orders(&self, stage: &Stage, workload: &Workload, client: u32) -> Orders {
        Orders {
            plan: stage.plan.clone(),
            workload: workload.clone(),
            first_writer: client * self.concurrency,
            concurrency: self.concurrency,
            warm_up_ms: self.warm_up_ms,
            window_ms: self.window_ms,
        }
    }
}

/// What the servers counted for each region, server by server.
async fn regions(uri: &str) -> Result<Vec<RegionStatistic>, BenchError> {
    let reports = server::open(uri).await?.regions(REGIONS_MAX).await?;
    let mut counted = Vec::new();
    for (server, report) in reports.into_iter().enumerate() {
        let regions: Vec<ServerRegion> =
            serde_json::from_value(report.report["regions"].clone()).map_err(|error| {
                BenchError::Process(format!("{} counts regions oddly: {error}", report.place))
            })?;
        counted.extend(regions.into_iter().map(|region| RegionStatistic {
            server: server as u32,
            place: format!("{}:{}:{}", region.object, region.fork, region.offset),
            attempts: region.attempts,
            failures: region.failures,
            failures_in_a_row_max: region.longest_run,
        }));
    }
    Ok(counted)
}

/// Regions of one server that are asked for, at most.
const REGIONS_MAX: usize = 8192;

/// A region in a server's own words.
#[derive(Deserialize)]
struct ServerRegion {
    object: String,
    fork: String,
    offset: u64,
    attempts: u64,
    failures: u64,
    longest_run: u64,
}

/// Removes the objects of a run from a store that outlives it.
async fn clean_up(stage: &Stage, workload: &Workload) -> Result<(), BenchError> {
    let Some(store) = stage.open_store().await? else { return Ok(()) };
    for object in workload.object_ids()? {
        store.apply(&object, Transaction::new().change(Write::Remove)).await?;
    }
    Ok(())
}

/// The program that runs.
pub(crate) fn this_program() -> Result<PathBuf, BenchError> {
    std::env::current_exe().map_err(BenchError::io("find the program that runs"))
}

/// A folder given by the user must be there before anything is started in it.
pub(crate) fn validate_folder(folder: Option<&Path>) -> Result<(), BenchError> {
    match folder {
        Some(folder) if !folder.is_dir() => {
            Err(BenchError::Usage(format!("{} is not a folder", folder.display())))
        }
        _ => Ok(()),
    }
}
