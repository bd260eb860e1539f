//! The rate at which updates can be committed: one by one, and gathered into epochs (the paper's proposals are made once in a second, or
//! every 222 ms).

use std::cell::RefCell;
use std::time::{Duration, Instant};

use nacre::Key;
use nacre::map::{ProposeOptions, Update};

use super::committer::failed;
use super::point::{CommitMeasurement, CommitPoint, name};
use super::{Args, CLASS, MAP, text};
use crate::kit::latency::Latencies;
use crate::kit::process::together;
use crate::kit::server::{self, Durability, ServerPlan, Servers};
use crate::{BenchError, Common};

/// The updates under way, where they are gathered.
const DEPTH: u32 = 512;
/// The length of a value.
const VALUE_BYTES: usize = 100;

/// Returns the points to measure.
pub(super) fn points(args: &Args) -> Vec<CommitPoint> {
    let gathers: &[u64] = if args.quick { &[0, 10] } else { &[0, 1, 10, 50, 222, 1000] };
    let mut points = Vec::new();
    for durability in [Durability::Volatile, Durability::Always] {
        let name = name(durability);
        let point = |label: String, class, depth, gather_ms: u64| CommitPoint {
            label: format!("{label}, {name}"),
            durability,
            class,
            depth,
            gather_ms: gather_ms as f64,
        };
        points.push(point("versions of a class, one by one".into(), true, 1, 0));
        points.push(point("epochs, one by one".into(), false, 1, 0));
        let gathered = gathers.iter().map(|ms| {
            point(format!("updates of a map, {DEPTH} under way, gathered for {ms} ms"), false, DEPTH, *ms)
        });
        points.extend(gathered);
    }
    points
}

/// The updates that were committed within the window.
struct Counted {
    end: Instant,
    updates: u64,
    latencies: Latencies,
}

impl Counted {
    fn add(&mut self, started: Instant) {
        let now = Instant::now();
        if now <= self.end {
            self.updates += 1;
            self.latencies.record(now - started);
        }
    }
}

pub(super) async fn measure(
    args: &Args,
    common: &Common,
    point: &CommitPoint,
) -> Result<CommitMeasurement, BenchError> {
    let plan = ServerPlan { durability: point.durability, ..ServerPlan::volatile(1) };
    let servers = Servers::start(&common.nacre()?, plan, args.files.folder()).await?;
    let store = server::open(&servers.uri).await?;
    let gather = Duration::from_secs_f64(point.gather_ms / 1e3);
    // What is gathered is committed a few times at least.
    let window = args.window().max(4 * gather);
    let proposer = store.map(MAP)?.proposer(ProposeOptions { gather });
    let entry = |number: u32| Ok::<Key, BenchError>(Key::new(format!("entry/{number}"))?);
    if point.class {
        store.classes().put(CLASS, text(0), Default::default()).await.map_err(failed)?;
    } else {
        let update = Update::new("study").set(entry(0)?, "begun");
        proposer.propose(update).await.map_err(failed)?;
    }
    let begin = Instant::now();
    let end = begin + window;
    let counted = RefCell::new(Counted { end, updates: 0, latencies: Latencies::new()? });
    if point.class {
        for version in 1.. {
            let started = Instant::now();
            if started >= end {
                break;
            }
            store.classes().put(CLASS, text(version), Default::default()).await.map_err(failed)?;
            counted.borrow_mut().add(started);
        }
    } else {
        let (proposer, counted) = (&proposer, &counted);
        let writers = (0..point.depth).map(|number| async move {
            let entry = entry(number)?;
            for round in 0u64.. {
                let started = Instant::now();
                if started >= end {
                    break;
                }
                let mut value = vec![0; VALUE_BYTES];
                value[..8].copy_from_slice(&round.to_le_bytes());
                let update = Update::new("study").set(entry.clone(), value);
                proposer.propose(update).await.map_err(failed)?;
                counted.borrow_mut().add(started);
            }
            Ok::<(), BenchError>(())
        });
        together(writers).await?;
    }
    let Counted { updates, latencies, .. } = counted.into_inner();
    Ok(CommitMeasurement { per_second: updates as f64 / window.as_secs_f64(), latency: latencies.summary() })
}
