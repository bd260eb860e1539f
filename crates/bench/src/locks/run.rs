//! The measurement of points: servers and client processes, the number of regions and operations, and the proof that what
//! was measured happened.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::arguments::Args;
use super::client::{Batch, Done, Orders, Plan, Work};
use super::point::{Measurement, Point, ProtocolName, STRIPE_BYTES, Series, Shape, Size, Table};
use super::report::Results;
use super::total::{Totals, totals};
use crate::kit::process::Crew;
use crate::kit::report::Report;
use crate::kit::server::{self, ServerPlan, Servers};
use crate::kit::study::{Steps, by_turns};
use crate::{BenchError, Common};

/// The conditions of all measurements.
pub(super) struct Bench {
    pub common: Common,
    pub folder: Option<PathBuf>,
    pub repetitions: u32,
    pub bound: Duration,
}

/// Running servers with their clients.
pub(super) struct Stage {
    pub servers: Servers,
    pub store: nacre::Store,
    pub crew: Crew,
    clients: u32,
    server_count: u32,
}

/// The command that makes this program a client.
const CLIENT: &str = "locks-client";

/// The number of regions with which it is tried how long acquiring takes.
const TRIAL_REGIONS: u64 = 2048;

/// The factor by which the number of regions grows from trial to trial.
const TRIAL_FACTOR: u64 = 8;

/// The time that a phase is to take at least, so that its beginning and its end do not count; made up of several
/// patterns where one takes less.
const PHASE: Duration = Duration::from_millis(100);

/// The maximum number of patterns of a client in one phase.
const OPERATIONS_MAX: u64 = 512;

/// The time from the first client's beginning to the last one's end.
pub(super) fn span(done: &[Done]) -> Duration {
    let begun = done.iter().map(|done| done.begun_ns).min().unwrap_or_default();
    let ended = done.iter().map(|done| done.ended_ns).max().unwrap_or_default();
    Duration::from_nanos(ended.saturating_sub(begun).max(1))
}

impl Bench {
    /// Creates the conditions that the arguments describe.
    pub(super) fn new(args: &Args, common: &Common) -> Self {
        Self {
            common: common.clone(),
            folder: args.folder.clone(),
            repetitions: args.repetitions(),
            bound: args.bound(),
        }
    }

    /// Starts servers, and clients with a number of sessions each.
    pub(super) async fn stage(
        &self,
        server_count: u32,
        table: Table,
        clients: u32,
        sessions: u32,
    ) -> Result<Stage, BenchError> {
        let plan =
            ServerPlan { unrolled_locks: table == Table::Unrolled, ..ServerPlan::volatile(server_count) };
        let servers = Servers::start(&self.common.nacre()?, plan, self.folder.as_deref()).await?;
        let store = server::open(&servers.uri).await?;
        let crew = self.crew(clients, |_| Plan::Nacre { store: servers.uri.clone(), sessions }).await?;
        Ok(Stage { servers, store, crew, clients, server_count })
    }

    /// Starts clients.
    pub(super) async fn crew(&self, clients: u32, plan: impl Fn(u32) -> Plan) -> Result<Crew, BenchError> {
        let orders: Vec<Orders> = (0..clients).map(|client| Orders { client, plan: plan(client) }).collect();
        Crew::start(CLIENT, &orders).await
    }

    /// Measures points that can be measured beside each other by turns, and returns the places of their series.
    pub(super) async fn measure(
        &self,
        points: &[Point],
        steps: Option<&Steps>,
        report: &mut Report<Results>,
        series: impl Fn(&mut Results) -> &mut Vec<Series>,
    ) -> Result<Range<usize>, BenchError> {
        let Some(first) = points.first() else { return Ok(0..0) };
        let mut stage = self.stage(first.pairs, first.table, first.pairs, 1).await?;
        stage.warm_up(first).await?;
        let mut subjects = Vec::with_capacity(points.len());
        for point in points {
            subjects.push((point.clone(), self.calibrate(&mut stage, point, point.regions).await?));
        }
        // Overlaps are compared with each other, so they have the same number of regions: what a server that unrolls them does
        // for each of them grows with their number.
        for index in 0..subjects.len() {
            let (point, size) = &subjects[index];
            let alike = subjects.iter().filter(|(other, _)| other.is_compared_with(point));
            let least = alike.map(|(_, size)| size.regions).min().unwrap_or(size.regions);
            if size.regions > least {
                subjects[index].1 = self.calibrate(&mut stage, &point.clone(), least).await?;
            }
        }
        let once = async |(point, size): &(Point, Size), repetition| {
            steps.map_or(Ok(()), |steps| steps.step(&point.title(), repetition))?;
            stage.measure_once(point, *size).await
        };
        let measured = by_turns(report, series, &subjects, self.repetitions, once).await?;
        stage.end().await?;
        Ok(measured)
    }

    /// Finds out how many regions can be acquired within the bound, up to a limit, and how many such patterns make a
    /// phase.
    async fn calibrate(&self, stage: &mut Stage, point: &Point, most: u64) -> Result<Size, BenchError> {
        let mut regions = most.min(TRIAL_REGIONS);
        loop {
            let size = Size { regions, operations: 1 };
            let next = most.min(regions * TRIAL_FACTOR);
            let is_too_long =
                |took: Duration| took.as_secs_f64() * next as f64 / regions as f64 > self.bound.as_secs_f64();
            let mut took = stage.phases(point, size).await?.acquiring;
            if is_too_long(took) {
                // Something else on the machine may have held it up.
                took = took.min(stage.phases(point, size).await?.acquiring);
            }
            if next == regions || is_too_long(took) {
                let operations = PHASE.as_secs_f64() / took.as_secs_f64();
                return Ok(Size { regions, operations: (operations as u64).clamp(1, OPERATIONS_MAX) });
            }
            regions = next;
        }
    }
}

/// The times of a measurement.
struct Phases {
    acquiring: Duration,
    /// `None` where both are one.
    releasing: Option<Duration>,
    /// The requests held in between, where they are known.
    held: Option<u64>,
}

impl Stage {
    /// Lets the clients lock something at all servers, so that sessions are open and on record.
    pub(super) async fn warm_up(&mut self, point: &Point) -> Result<(), BenchError> {
        let shape = Shape::Contiguous { bytes: STRIPE_BYTES * u64::from(self.server_count) };
        let batch = Batch {
            neighbour_bytes: shape.range_bytes(),
            shape,
            method: point.method,
            protocol: ProtocolName::OneTry,
            step_bytes: 0,
            operations: 8,
        };
        let _: Vec<Done> = self.crew.round(&Work::Cycle(batch)).await?;
        Ok(())
    }

    /// Lets the clients do one round, and returns the time from the first one's beginning to the last one's end.
    pub(super) async fn round(&mut self, work: Work) -> Result<Duration, BenchError> {
        Ok(span(&self.crew.round(&work).await?))
    }

    fn batch(point: &Point, size: Size, clients: u32) -> Batch {
        let neighbour_bytes = point.neighbour_bytes(size.regions);
        Batch {
            shape: point.shape(size.regions),
            method: point.method,
            protocol: point.protocol,
            neighbour_bytes,
            // With contention all patterns of a client are the same.
            step_bytes: match point.overlap_percent {
                None => neighbour_bytes * u64::from(clients),
                Some(_) => 0,
            },
            operations: size.operations,
        }
    }

    async fn phases(&mut self, point: &Point, size: Size) -> Result<Phases, BenchError> {
        let batch = Self::batch(point, size, self.clients);
        if point.overlap_percent.is_some() {
            let acquiring = self.round(Work::Cycle(batch)).await?;
            return Ok(Phases { acquiring, releasing: None, held: None });
        }
        let acquiring = self.round(Work::Acquire(batch)).await?;
        let held = Some(totals(&self.store).await?.requests);
        let releasing = Some(self.round(Work::Release).await?);
        Ok(Phases { acquiring, releasing, held })
    }

    async fn measure_once(&mut self, point: &Point, size: Size) -> Result<Measurement, BenchError> {
        let before = totals(&self.store).await?;
        let cpu_before = (self.crew.cpu_time(), self.servers.cpu_time());
        let phases = self.phases(point, size).await?;
        let cpu = (self.crew.cpu_time() - cpu_before.0, self.servers.cpu_time() - cpu_before.1);
        let after = totals(&self.store).await?;
        let regions = (size.regions * size.operations * u64::from(self.clients)) as f64;
        let measurement = Measurement {
            operations: size.operations,
            acquired_per_s: regions / phases.acquiring.as_secs_f64(),
            released_per_s: phases.releasing.map(|releasing| regions / releasing.as_secs_f64()),
            requests_held: phases.held,
            calls: after.calls - before.calls,
            grants: after.grants - before.grants,
            client_cpu_us: cpu.0.as_micros() as u64,
            server_cpu_us: cpu.1.as_micros() as u64,
        };
        self.prove(point, size, &measurement, after)?;
        Ok(measurement)
    }

    /// Compares what the servers counted with what was asked for.
    fn prove(&self, point: &Point, size: Size, seen: &Measurement, after: Totals) -> Result<(), BenchError> {
        let batch = Self::batch(point, size, self.clients);
        let mut created = 0;
        // How a pattern is cut depends on its place in a round of stripes.
        let mut known = std::collections::HashMap::new();
        for client in 0..self.clients {
            for operation in 0..size.operations {
                let place = batch.offset(client, operation) % (STRIPE_BYTES * u64::from(self.server_count));
                created += match known.get(&place) {
                    Some(requests) => *requests,
                    None => {
                        let requests = batch.shape.requests(place, point.method, self.server_count);
                        let requests = requests.map_err(|error| BenchError::Usage(error.to_string()))?;
                        known.insert(place, requests);
                        requests
                    }
                };
            }
        }
        let title = point.title();
        let lost = |text: String| Err(BenchError::Lost(format!("{title}: {text}")));
        if let Some(held) = seen.requests_held.filter(|held| *held != created) {
            return lost(format!("{created} requests were acquired, and the servers held {held}"));
        }
        // In file order a request is granted bit by bit, and with contention too.
        let bit_by_bit = point.protocol == ProtocolName::TwoPhase || point.overlap_percent.is_some();
        if seen.grants < created || seen.grants > created && !bit_by_bit {
            return lost(format!(
                "{created} requests were acquired, and the servers granted {}",
                seen.grants
            ));
        }
        if (after.requests, after.waiting) != (0, 0) {
            return lost(format!("{} requests were left when all were released", after.requests));
        }
        Ok(())
    }

    /// Ends the clients' sessions, the clients and the servers.
    pub(super) async fn end(self) -> Result<(), BenchError> {
        self.crew.end().await
    }
}
