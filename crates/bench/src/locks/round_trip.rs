//! Services that lock and unlock one contiguous range after the other: Nacre beside its peers.

use serde::Serialize;

use super::arguments::Args;
use super::client::{Done, Loop, Plan, Work};
use super::point::Table;
use super::run::Bench;
use super::targets::TargetStudy;
use crate::BenchError;
use crate::kit::Spread;
use crate::kit::latency::{Latencies, LatencySummary};
use crate::kit::peer::{self, Peer};
use crate::kit::process::Crew;
use crate::kit::quantity::{grouped, latency};
use crate::kit::table::Table as Text;
use crate::kit::target::Unit;

/// A service that locks and unlocks one contiguous range after the other, without contention.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LoopSeries {
    service: String,
    /// The number of client processes, and of ranges that each locks at once.
    processes: u32,
    concurrency: u32,
    /// The number of sessions or connections of each process.
    sessions: u32,
    /// Pairs of a lock and an unlock.
    per_s: Spread,
    latency: LatencySummary,
}

/// The window of a loop, and the time before it.
const LOOP: Loop = Loop { concurrency: 1, awaits: true, warm_up_ms: 300, window_ms: 1000 };
const LOOP_QUICK: Loop = Loop { concurrency: 1, awaits: true, warm_up_ms: 100, window_ms: 200 };

/// The clients of the contended targets and of peers that are many.
const MANY_PROCESSES: u32 = 2;
const MANY_CONCURRENCY: u32 = 128;
/// The sessions of such a process.
pub(super) const MANY_SESSIONS: u32 = 4;

/// Nacre, where the unlocking goes with the next lock.
const NOT_AWAITED: &str = "nacre, unlocks not awaited";

/// Contiguous locks of ranges that nobody else wants, beside those of the peers.
pub(super) async fn measure(args: &Args, bench: &Bench, study: &mut TargetStudy) -> Result<(), BenchError> {
    let folder = args.folder.as_deref();
    let stage = bench.stage(1, Table::Described, 0, 1).await?;
    let mut services: Vec<(&str, Option<Peer>)> = vec![("nacre", None), (NOT_AWAITED, None)];
    for (name, peer) in
        [("zookeeper", peer::zookeeper::start(folder).await), ("etcd", peer::etcd::start(folder).await)]
    {
        match peer {
            Ok(peer) => services.push((name, Some(peer))),
            Err(error @ BenchError::MissingProgram { .. }) => study.missing.push(format!("{name}: {error}")),
            Err(error) => return Err(error),
        }
    }
    let path = peer::temporary_folder(folder)?;
    services.push(("kernel (OFD)", None));
    for (processes, concurrency, sessions) in [(1, 1, 1), (MANY_PROCESSES, MANY_CONCURRENCY, MANY_SESSIONS)] {
        let mut crews = Vec::new();
        for (service, peer) in &services {
            let address = peer.as_ref().map(|peer| peer.address.clone()).unwrap_or_default();
            let plan = || match *service {
                "nacre" | NOT_AWAITED => Plan::Nacre { store: stage.servers.uri.clone(), sessions },
                "zookeeper" => Plan::Zookeeper { address: address.clone(), sessions },
                "etcd" => Plan::Etcd { address: address.clone(), connections: sessions },
                _ => Plan::Ofd { path: path.path().join("file") },
            };
            // The kernel's calls do not wait: several at once are one after the other.
            let concurrency = if *service == "kernel (OFD)" { 1 } else { concurrency };
            crews.push((*service, concurrency, bench.crew(processes, |_| plan()).await?, Vec::new()));
        }
        let window = Loop { concurrency, ..if args.quick { LOOP_QUICK } else { LOOP } };
        // Java is slow at first.
        for (_, _, crew, _) in &mut crews {
            round_of_loops(crew, &window).await?;
        }
        let mut latencies: Vec<Latencies> = Vec::new();
        for _ in &crews {
            latencies.push(Latencies::new()?);
        }
        for _ in 0..bench.repetitions {
            for ((service, concurrency, crew, rates), latencies) in crews.iter_mut().zip(&mut latencies) {
                let awaits = *service != NOT_AWAITED;
                let window = Loop { concurrency: *concurrency, awaits, ..window.clone() };
                let done = round_of_loops(crew, &window).await?;
                let operations: u64 = done.iter().map(|done| done.operations).sum();
                rates.push(operations as f64 * 1e3 / window.window_ms as f64);
                done.iter().for_each(|done| latencies.add(&done.latencies));
            }
        }
        for ((service, concurrency, crew, rates), latencies) in crews.into_iter().zip(latencies) {
            crew.end().await?;
            let (service, per_s) = (service.to_owned(), Spread::of(rates));
            let latency = latencies.summary();
            study.loops.push(LoopSeries { service, processes, concurrency, sessions, per_s, latency });
        }
    }
    drop(services);
    stage.end().await?;
    let loops = &study.loops;
    let rate = |service: &str, processes| {
        let found = loops.iter().find(|of| of.service == service && of.processes == processes);
        found.map_or(f64::NAN, |found| found.per_s.median)
    };
    let (one, many) = (rate("nacre", 1), rate("nacre", MANY_PROCESSES));
    let (targets, name) = (&mut study.targets, "  where the unlocking is not waited for");
    targets.at_least("contiguous lock and unlock, TCP, one client", one, Unit::PerSecond, 20_000.0);
    targets.open(name, rate(NOT_AWAITED, 1), Unit::PerSecond);
    targets.at_least("contiguous lock and unlock, TCP, 256 at once", many, Unit::PerSecond, 150_000.0);
    targets.open(name, rate(NOT_AWAITED, MANY_PROCESSES), Unit::PerSecond);
    for peer in ["zookeeper", "etcd"] {
        let times = many / rate(peer, MANY_PROCESSES);
        if times.is_finite() {
            targets.open(format!("  ÷ {peer}"), times, Unit::Times);
        }
    }
    Ok(())
}

async fn round_of_loops(crew: &mut Crew, parameters: &Loop) -> Result<Vec<Done>, BenchError> {
    crew.round(&Work::Loop(parameters.clone())).await
}

/// Returns the results as a table.
pub(super) fn table(loops: &[LoopSeries]) -> Text {
    let mut table =
        Text::new("lock + unlock of one range | clients | sessions | per second | least | most | p50 | p99");
    for of in loops {
        table.row(vec![
            of.service.clone(),
            format!("{} × {}", of.processes, of.concurrency),
            (of.processes * of.sessions).to_string(),
            grouped(of.per_s.median),
            grouped(of.per_s.min),
            grouped(of.per_s.max),
            latency(of.latency.p50_us),
            latency(of.latency.p99_us),
        ]);
    }
    table
}
