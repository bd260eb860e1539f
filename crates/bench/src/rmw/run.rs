//! The measurement of points: servers, clients, a window, and the checker, for each repetition.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use nacre_object::{ObjectStore, Transaction, WriteOp};
use serde::Deserialize;

use super::check::check;
use super::client::{Orders, run_threads};
use super::drive::ClientRecord;
use super::point::{Deployment, Measured, Measurement, Point, RegionStatistic, System};
use super::report::Results;
use super::system::{self, Plan};
use super::workload::Workload;
use crate::kit::latency::Latencies;
use crate::kit::peer::{self, Peer};
use crate::kit::process::Crew;
use crate::kit::report::Report;
use crate::kit::server::{self, ServerPlan, Servers};
use crate::kit::study::{Steps, by_turns};
use crate::{BenchError, Common};

/// The environment in which points are measured.
pub(crate) struct Bench {
    /// The options of every study, such as the program that is started as a server.
    pub(crate) common: Common,
    /// The folder for the files of servers and peers.
    pub(crate) folder: Option<PathBuf>,
    /// The store in this process that replaces the one of the place.
    pub(crate) store: Option<Arc<dyn ObjectStore>>,
    /// The number of repetitions of each point.
    pub(crate) repetitions: u32,
    /// The lock service, kept from the first point that needs it to the end of the study.
    lock_service: Option<Peer>,
}

/// The servers that a repetition needs, and the way in which its clients reach them and the peer. The servers are
/// killed when this is dropped.
struct Deployed {
    plan: Plan,
    local: Option<Arc<dyn ObjectStore>>,
    servers: Option<Servers>,
}

impl Bench {
    /// Creates an environment in which nothing is started yet.
    pub(crate) fn new(common: Common, folder: Option<PathBuf>, repetitions: u32) -> Self {
        Self { common, folder, store: None, repetitions, lock_service: None }
    }

    /// Measures points that are to be compared by turns, and returns the places of their series in the report.
    pub(super) async fn measure(
        &mut self,
        points: &[Point],
        steps: &Steps,
        report: &mut Report<Results>,
    ) -> Result<Range<usize>, BenchError> {
        let mut subjects: Vec<Measured> = Vec::with_capacity(points.len());
        for point in points {
            point.workload(0).validate()?;
            let (peer, cold) = self.peer(point.system).await?;
            if cold {
                // A virtual machine for Java is slow until it has compiled what is used most.
                let heating =
                    Point { warm_up_ms: 0, window_ms: HEATING * point.warm_up_ms.max(1), ..point.clone() };
                self.measure_once(&heating, peer.as_ref(), 0).await?;
            }
            subjects.push((point.clone(), peer));
        }
        let once = async |(point, peer): &Measured, repetition| {
            steps.step(&point.title(), repetition)?;
            self.measure_once(point, peer.as_ref(), repetition).await
        };
        by_turns(report, |results| &mut results.series, &subjects, self.repetitions, once).await
    }

    /// Starts the peer that a system needs, and returns it with whether it needs a longer warm-up. The lock service is
    /// kept for the whole study; the others, which store data, are fresh for every point.
    async fn peer(&mut self, system: System) -> Result<(Option<Peer>, bool), BenchError> {
        let folder = self.folder.as_deref();
        let peer = match system {
            System::Optimistic | System::None | System::WriteIf | System::Write | System::Librados => {
                return Ok((None, false));
            }
            System::Zookeeper if self.lock_service.is_some() => return Ok((None, false)),
            System::Zookeeper => {
                self.lock_service = Some(peer::zookeeper::start(folder).await?);
                return Ok((None, true));
            }
            System::ZookeeperCas => peer::zookeeper::start(folder).await?,
            System::Redis => peer::redis::start(false, folder).await?,
            System::RedisAof => peer::redis::start(true, folder).await?,
            System::Etcd => peer::etcd::start(folder).await?,
        };
        Ok((Some(peer), system == System::ZookeeperCas))
    }

    async fn measure_once(
        &self,
        point: &Point,
        peer: Option<&Peer>,
        repetition: u32,
    ) -> Result<Measurement, BenchError> {
        let workload = point.workload(repetition);
        let peer = match point.system {
            System::Zookeeper => self.lock_service.as_ref(),
            _ => peer,
        };
        let address = peer.map(|peer| peer.address.clone()).unwrap_or_default();
        let deployed = self.set_up(point, address).await?;
        let orders: Vec<Orders> =
            (0..point.clients).map(|client| orders(point, &deployed, &workload, client)).collect();
        let cpu_time = || {
            let servers = deployed.servers.as_ref().map(Servers::cpu_time).unwrap_or_default();
            servers + peer.map(Peer::cpu_time).unwrap_or_default()
        };
        let cpu_before = cpu_time();
        let tallies: Vec<ClientRecord> = match &point.place {
            Deployment::InProcess(_) => run_threads(orders, deployed.local.clone())?,
            _ => Crew::start(CLIENT, &orders).await?.run().await?,
        };
        let server_cpu = cpu_time() - cpu_before;
        let regions = match &deployed.servers {
            Some(servers) if point.counts_regions => regions(&servers.uri).await?,
            _ => Vec::new(),
        };
        let mut measurement = self.evaluate(point, &deployed, &workload, &tallies).await?;
        measurement.regions = regions;
        measurement.server_cpu_us = server_cpu.as_micros() as f64 / measurement.checked.updates.max(1) as f64;
        if let Deployment::Existing(_) | Deployment::InProcess(_) = point.place
            && point.system.is_on_nacre()
        {
            clean_up(&deployed, &workload).await?;
        }
        Ok(measurement)
    }

    async fn set_up(&self, point: &Point, address: String) -> Result<Deployed, BenchError> {
        let folder = self.folder.as_deref();
        let mut local = None;
        let mut servers = None;
        let store = match &point.place {
            Deployment::Existing(uri) if point.system == System::Librados => uri.clone(),
            _ if point.system == System::Librados => {
                let text =
                    "raw librados is measured beside a store on Ceph: name one with --store rados://POOL";
                return Err(BenchError::Process(text.into()));
            }
            _ if !point.system.is_on_nacre() => String::new(),
            Deployment::Existing(uri) => uri.clone(),
            Deployment::InProcess(uri) => {
                local = Some(match &self.store {
                    Some(store) => store.clone(),
                    None => Arc::new(server::open(uri).await?),
                });
                uri.clone()
            }
            Deployment::Servers { servers: count, durability, pacing } => {
                let plan = ServerPlan {
                    durability: *durability,
                    pacing: *pacing,
                    region_statistics: point.counts_regions,
                    ..ServerPlan::volatile(*count)
                };
                let started = Servers::start(&self.common.nacre()?, plan, folder).await?;
                let uri = started.uri.clone();
                servers = Some(started);
                uri
            }
        };
        let Point { system, connections, propose, reread, .. } = *point;
        let plan = Plan { system, store, address, connections, propose, reread };
        Ok(Deployed { plan, local, servers })
    }

    /// Adds up the clients' results, and checks their blocks.
    async fn evaluate(
        &self,
        point: &Point,
        deployed: &Deployed,
        workload: &Workload,
        tallies: &[ClientRecord],
    ) -> Result<Measurement, BenchError> {
        let store = deployed.open_store().await?;
        let systems = system::open(&deployed.plan, workload, CHECK_CONCURRENCY, store).await?;
        let updates_by_writer: Vec<u64> =
            tallies.iter().flat_map(|tally| tally.updates_by_writer.iter().copied()).collect();
        let checked = check(systems, workload, &updates_by_writer).await?;
        if !checked.is_clean() && point.system != System::None {
            let system = point.system.name();
            return Err(BenchError::Lost(format!(
                "{system}: the store lost what it acknowledged: {checked}"
            )));
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
            latency_ns_counts: latencies.coarse_counts(),
            checked,
            regions: Vec::new(),
        })
    }
}

/// The command that makes this program a client.
const CLIENT: &str = "rmw-client";

/// The factor by which the warm-up of a cold Java server is longer than usual.
const HEATING: u64 = 10;

/// The number of concurrent reads of the checker.
const CHECK_CONCURRENCY: u32 = 128;

impl Deployed {
    async fn open_store(&self) -> Result<Option<Arc<dyn ObjectStore>>, BenchError> {
        match &self.local {
            Some(store) => Ok(Some(store.clone())),
            None => self.plan.open_store().await,
        }
    }
}

/// Returns the orders of one client of a point.
fn orders(point: &Point, deployed: &Deployed, workload: &Workload, client: u32) -> Orders {
    Orders {
        plan: deployed.plan.clone(),
        workload: workload.clone(),
        first_writer: client * point.concurrency,
        concurrency: point.concurrency,
        warm_up_ms: point.warm_up_ms,
        window_ms: point.window_ms,
    }
}

/// Returns the servers' counts for each region, server by server.
async fn regions(uri: &str) -> Result<Vec<RegionStatistic>, BenchError> {
    let reports = server::open(uri).await?.regions(REGIONS_MAX).await?;
    let mut counted = Vec::new();
    for (server, report) in reports.into_iter().enumerate() {
        let regions: Vec<ServerRegion> =
            serde_json::from_value(report.report["regions"].clone()).map_err(|error| {
                BenchError::Process(format!("{} counts regions oddly: {error}", report.server))
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

/// The maximum number of regions that are requested of one server.
const REGIONS_MAX: usize = 8192;

/// A region as a server reports it.
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
async fn clean_up(deployed: &Deployed, workload: &Workload) -> Result<(), BenchError> {
    let Some(store) = deployed.open_store().await? else { return Ok(()) };
    for object in workload.object_ids()? {
        store.apply(&object, Transaction::new().change(WriteOp::Remove)).await?;
    }
    Ok(())
}
