//! The targets of Nacre on a machine of two processors, beside the measured values, and peers for comparison.

use std::fmt;

use serde::Serialize;

use super::arguments::Args;
use super::client::{Batch, Done, Plan, Work};
use super::micro;
use super::point::{MethodName, Point, ProtocolName, Series, Shape, Table};
use super::report::Results;
use super::round_trip::{self, LoopSeries, MANY_SESSIONS};
use super::run::{Bench, Stage, span};
use crate::BenchError;
use crate::kit::Spread;
use crate::kit::peer;
use crate::kit::quantity::grouped;
use crate::kit::report::Report;
use crate::kit::study::Steps;
use crate::kit::table::Table as Text;
use crate::kit::target::{Targets, Unit};

/// The targets, and what was measured for them.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TargetStudy {
    pub(super) targets: Targets,
    /// The measured points.
    series: Vec<Series>,
    /// A client that locks and unlocks one range after the other.
    pub(super) loops: Vec<LoopSeries>,
    /// Everything else, with its repetitions.
    values: Vec<Value>,
    /// Peers that were not measured, and why.
    pub(super) missing: Vec<String>,
}

/// A measured value with its repetitions.
#[derive(Clone, Debug, Serialize)]
struct Value {
    measure: String,
    unit: &'static str,
    spread: Spread,
}

/// The number of client processes, and of servers, whose patterns interleave.
const INTERLEAVED: u32 = 4;

/// Measures everything that the targets need.
pub(super) async fn measure(
    args: &Args,
    bench: &Bench,
    report: &mut Report<Results>,
) -> Result<(), BenchError> {
    let steps = Steps::new(10);
    let step = |what| steps.step(what, 0);
    step("128 Ki regions against one")?;
    described(args, bench, &mut report.targets).await?;
    step("interleaved patterns")?;
    interleaved(args, bench, &mut report.targets).await?;
    step("overlap")?;
    overlap(args, bench, report).await?;
    step("methods")?;
    methods(args, bench, report).await?;
    report.keep()?;
    step("patterns alone")?;
    patterns(args, &mut report.targets)?;
    step("irregular lists")?;
    irregular(args, bench, &mut report.targets).await?;
    step("round trips, and peers")?;
    round_trip::measure(args, bench, &mut report.targets).await?;
    report.keep()?;
    step("waiters")?;
    waiters(args, bench, &mut report.targets).await?;
    step("memory")?;
    memory(args, bench, &mut report.targets).await?;
    step("the kernel's locks")?;
    kernel(args, bench, &mut report.targets).await
}

impl TargetStudy {
    /// Returns whether nothing was measured for the targets.
    pub(super) fn is_empty(&self) -> bool {
        self.series.is_empty() && self.loops.is_empty() && self.values.is_empty()
    }

    fn value(&mut self, measure: impl Into<String>, unit: &'static str, spread: Spread) -> f64 {
        self.values.push(Value { measure: measure.into(), unit, spread });
        spread.median
    }
}

/// Returns patterns that a client locks and releases by turns.
fn cycles(shape: Shape, method: MethodName, protocol: ProtocolName, operations: u64) -> Batch {
    let neighbour_bytes = shape.range_bytes();
    Batch { shape, method, protocol, neighbour_bytes, step_bytes: 0, operations }
}

/// Lets clients lock and release shapes by turns, all shapes in each repetition. Returns microseconds of one operation.
async fn operation_us(
    bench: &Bench,
    stage: &mut Stage,
    shapes: &[Shape],
    operations: u64,
) -> Result<Vec<Spread>, BenchError> {
    let mut times = vec![Vec::new(); shapes.len()];
    // The first time is not counted.
    for repetition in 0..=bench.repetitions {
        for (shape, times) in shapes.iter().zip(&mut times) {
            let batch = cycles(shape.clone(), MethodName::Datatype, ProtocolName::AltTry, operations);
            let took = stage.round(Work::Cycle(batch)).await?;
            if repetition > 0 {
                times.push(took.as_secs_f64() * 1e6 / operations as f64);
            }
        }
    }
    Ok(times.into_iter().map(Spread::of).collect())
}

/// A lock of many regions beside a lock of one, and over the number of regions.
async fn described(args: &Args, bench: &Bench, study: &mut TargetStudy) -> Result<(), BenchError> {
    let operations = if args.quick { 500 } else { 4000 };
    let mut stage = bench.stage(1, Table::Described, 1, 1).await?;
    let strided = |regions| Shape::Strided { regions, separation_bytes: 64 };
    let mut shapes = vec![Shape::Contiguous { bytes: 64 }, strided(128 << 10)];
    let exponents = [10, 14, 17, 20, 24, 27];
    shapes.extend(exponents.map(|exponent| strided(1 << exponent)));
    let times = operation_us(bench, &mut stage, &shapes, operations).await?;
    stage.end().await?;
    let contiguous = study.value("contiguous lock and unlock, one server", "µs", times[0]);
    let many = study.value("lock and unlock of 128 Ki regions, one server", "µs", times[1]);
    let name = "lock and unlock of 128 Ki regions ÷ of one, one server";
    study.targets.at_most(name, many / contiguous, Unit::Times, 2.0);
    let mut medians = Vec::new();
    for (exponent, time) in exponents.iter().zip(&times[2..]) {
        medians.push(study.value(format!("lock and unlock of 2^{exponent} regions"), "µs", *time));
    }
    let most = medians.iter().copied().fold(0.0, f64::max);
    let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
    let name = "lock and unlock, 2^10 to 2^27 regions: most ÷ least";
    study.targets.at_most(name, most / least, Unit::Times, 2.0);
    Ok(())
}

/// Clients whose regions lie between each other's.
async fn interleaved(args: &Args, bench: &Bench, study: &mut TargetStudy) -> Result<(), BenchError> {
    let (regions, operations) = (1 << 20, if args.quick { 50 } else { 300 });
    let mut stage = bench.stage(INTERLEAVED, Table::Described, INTERLEAVED, 1).await?;
    let mut rates = Vec::new();
    for repetition in 0..=bench.repetitions {
        let batch = Batch {
            // The next client's regions are one byte behind.
            neighbour_bytes: 1,
            ..cycles(
                Shape::Strided { regions, separation_bytes: 64 },
                MethodName::Datatype,
                ProtocolName::AltTry,
                operations,
            )
        };
        let took = stage.round(Work::Cycle(batch)).await?;
        if repetition > 0 {
            let all = (regions * operations * u64::from(INTERLEAVED)) as f64;
            rates.push(all / took.as_secs_f64());
        }
    }
    stage.end().await?;
    let name = "regions that 4 clients lock and release, interleaved, 4 servers, alt-try";
    let rate = study.value(name, "1/s", Spread::of(rates));
    study.targets.at_least(name, rate, Unit::PerSecond, 1e9);
    Ok(())
}

/// Alt-try at every overlap beside none.
async fn overlap(args: &Args, bench: &Bench, report: &mut Report<Results>) -> Result<(), BenchError> {
    let narrowed =
        Args { methods: vec![MethodName::Datatype], protocols: vec![ProtocolName::AltTry], ..args.clone() };
    let points = narrowed.contention("overlap", 64);
    for points in points.chunk_by(Point::is_beside) {
        let measured = bench.measure(points, None, report, |results| &mut results.targets.series).await?;
        let TargetStudy { series, targets, .. } = &mut report.targets;
        let series = &series[measured];
        let Some(none) = series.iter().find(|series| series.point.overlap_percent == Some(0)) else {
            continue;
        };
        for of in series {
            let percent = of.point.overlap_percent.unwrap_or(0);
            if percent > 0 {
                let ratio = of.acquired_per_s.median / none.acquired_per_s.median;
                let name = format!("{}, {percent} % overlap ÷ none", of.point.label());
                targets.at_least(name, ratio, Unit::Times, 0.9);
            }
        }
    }
    Ok(())
}

/// One request in all beside one for each region, and for 64.
async fn methods(args: &Args, bench: &Bench, report: &mut Report<Results>) -> Result<(), BenchError> {
    let narrowed = Args {
        methods: vec![MethodName::Posix, MethodName::List, MethodName::Datatype],
        protocols: vec![ProtocolName::OneTry],
        pairs: vec![args.contended()],
        no_unrolled: true,
        ..args.clone()
    };
    let points = narrowed.scaling(Some("methods"), 64);
    let measured = bench.measure(&points, None, report, |results| &mut results.targets.series).await?;
    let TargetStudy { series, targets, .. } = &mut report.targets;
    let series = &series[measured];
    let of = |method| series.iter().find(|series| series.point.method == method);
    if let (Some(posix), Some(list), Some(datatype)) =
        (of(MethodName::Posix), of(MethodName::List), of(MethodName::Datatype))
    {
        let acquired = |series: &Series| series.acquired_per_s.median;
        let released = |series: &Series| series.released_per_s.unwrap_or_default().median;
        let pairs = args.contended();
        let name = |what: &str| format!("{what}, one-try, {pairs} pairs");
        let by_posix = acquired(datatype) / acquired(posix);
        targets.at_least(name("acquiring, datatype ÷ posix"), by_posix, Unit::Times, 51.0);
        let by_list = acquired(datatype) / acquired(list);
        targets.at_least(name("acquiring, datatype ÷ list"), by_list, Unit::Times, 1.8);
        let releasing = released(datatype) / released(list);
        targets.at_least(name("releasing, datatype ÷ list"), releasing, Unit::Times, 20.0);
    }
    Ok(())
}

/// Restrictions to a server's stripe, and comparisons of patterns.
fn patterns(args: &Args, study: &mut TargetStudy) -> Result<(), BenchError> {
    let mut medians = Vec::new();
    for servers in [2, 10, 100, 1000] {
        let spread = micro::restriction_ns(servers, args.regions)?;
        medians.push(study.value(format!("restriction to one of {servers} servers"), "ns", spread));
    }
    let most = medians.iter().copied().fold(0.0, f64::max);
    let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
    let name = "restriction to one of 2 to 1,000 servers: most ÷ least";
    study.targets.at_most(name, most / least, Unit::Times, 2.0);
    let mut slowest: f64 = 0.0;
    for (strides, offset) in
        [([64, 96], 1), ([61, 67], 1), ([64, 72], 7), ([4096, 4100], 2), ([1000, 1001], 999)]
    {
        let spread = micro::conflict_ns(1 << 20, strides, offset)?;
        let name = format!("conflict test, 2^20 regions, {} B and {} B apart", strides[0], strides[1]);
        slowest = slowest.max(study.value(name, "ns", spread));
    }
    let name = "conflict test, 2^20 regions, unequal strides, the slowest of 5";
    study.targets.at_most(name, slowest / 1e3, Unit::Microseconds, 10.0);
    let spread = micro::irregular_conflict_ns(128 << 10)?;
    let bounded = study.value("search of 4,096 steps, 128 Ki irregular regions", "ns", spread);
    study.targets.open("  where it does not: one bounded search", bounded / 1e3, Unit::Microseconds);
    Ok(())
}

/// Lists without regularity.
async fn irregular(args: &Args, bench: &Bench, study: &mut TargetStudy) -> Result<(), BenchError> {
    let regions = args.regions();
    let mut stage = bench.stage(1, Table::Described, 1, 1).await?;
    for (method, what) in [
        (MethodName::List, "irregular list locks, 64 a request"),
        (MethodName::Datatype, "  all in one request"),
    ] {
        let (mut acquired, mut released) = (Vec::new(), Vec::new());
        for repetition in 0..=bench.repetitions {
            let batch = cycles(Shape::Irregular { regions }, method, ProtocolName::OneTry, 1);
            let acquiring = stage.round(Work::Acquire(batch)).await?;
            let releasing = stage.round(Work::Release).await?;
            if repetition > 0 {
                acquired.push(regions as f64 / acquiring.as_secs_f64());
                released.push(regions as f64 / releasing.as_secs_f64());
            }
        }
        let (acquired, released) = (Spread::of(acquired), Spread::of(released));
        let acquiring = study.value(format!("{what}: acquired"), "1/s", acquired);
        let releasing = study.value(format!("{what}: released"), "1/s", released);
        let names = (format!("{what}, one server: acquired"), format!("{what}, one server: released"));
        match method {
            MethodName::List => {
                study.targets.at_least(names.0, acquiring, Unit::PerSecond, 3e6);
                study.targets.at_least(names.1, releasing, Unit::PerSecond, 10e6);
            }
            _ => {
                study.targets.open(names.0, acquiring, Unit::PerSecond);
                study.targets.open(names.1, releasing, Unit::PerSecond);
            }
        }
    }
    stage.end().await
}

/// Many waiters for one byte.
async fn waiters(args: &Args, bench: &Bench, study: &mut TargetStudy) -> Result<(), BenchError> {
    let waiters = if args.quick { 1000 } else { 10_000 };
    // The holder's session, and four of waiters.
    let mut stage = bench.stage(1, Table::Described, 1, 1 + MANY_SESSIONS).await?;
    let mut times = Vec::new();
    for _ in 0..bench.repetitions {
        let done: Vec<Done> = stage.crew.round(&Work::Queue { waiters }).await?;
        let served: u64 = done.iter().map(|done| done.operations).sum();
        if served != waiters as u64 || done.iter().any(|done| !done.in_order) {
            let text =
                format!("{served} of {waiters} waiters were served, or not in the order of their requests");
            return Err(BenchError::Lost(text));
        }
        times.push(span(&done).as_secs_f64() * 1e6 / waiters as f64);
    }
    stage.end().await?;
    let name = format!("hand-over to the next of {} waiters, in order", grouped(waiters as f64));
    let time = study.value(name.clone(), "µs", Spread::of(times));
    study.targets.at_most(name, time, Unit::Microseconds, 50.0);
    Ok(())
}

/// The memory of a server with many held locks.
async fn memory(args: &Args, bench: &Bench, study: &mut TargetStudy) -> Result<(), BenchError> {
    let locks = if args.quick { 10_000 } else { 100_000 };
    let shape = Shape::Strided { regions: 16, separation_bytes: 64 };
    let pattern_bytes = micro::pattern_bytes(&shape)?;
    let mut bytes = Vec::new();
    for _ in 0..bench.repetitions {
        let mut stage = bench.stage(1, Table::Described, 1, 1).await?;
        let batch = Batch {
            step_bytes: shape.range_bytes(),
            ..cycles(shape.clone(), MethodName::Datatype, ProtocolName::OneTry, locks)
        };
        // One lock and one session are there before.
        stage.round(Work::Cycle(Batch { operations: 1, ..batch.clone() })).await?;
        let before = stage.servers.memory_bytes();
        stage.round(Work::Acquire(batch)).await?;
        let after = stage.servers.memory_bytes();
        bytes.push(after.saturating_sub(before) as f64 / locks as f64);
        stage.round(Work::Release).await?;
        stage.end().await?;
    }
    let name = format!("resident memory of a server for each of {} held locks", grouped(locks as f64));
    let all = study.value(name.clone(), "B", Spread::of(bytes));
    study.targets.open(name, all, Unit::Bytes);
    let name = format!("  without its normalised description of {pattern_bytes} B");
    study.targets.at_most(name, all - pattern_bytes as f64, Unit::Bytes, 512.0);
    Ok(())
}

/// The kernel's locks, region by region.
async fn kernel(args: &Args, bench: &Bench, study: &mut TargetStudy) -> Result<(), BenchError> {
    let path = peer::temporary_folder(args.folder.as_deref())?;
    let mut crew = bench.crew(1, |_| Plan::Ofd { path: path.path().join("file") }).await?;
    let mut regions = 1024;
    let most = args.regions();
    loop {
        let (mut acquired, mut released) = (Vec::new(), Vec::new());
        let mut longest = 0.0_f64;
        for _ in 0..bench.repetitions {
            let shape = Shape::Strided { regions, separation_bytes: 64 };
            let batch = cycles(shape, MethodName::Posix, ProtocolName::OneTry, 1);
            let acquiring = span(&crew.round::<_, Done>(&Work::Acquire(batch)).await?).as_secs_f64();
            let releasing = span(&crew.round::<_, Done>(&Work::Release).await?).as_secs_f64();
            longest = longest.max(acquiring);
            acquired.push(regions as f64 / acquiring);
            released.push(regions as f64 / releasing);
        }
        let name =
            |what: &str| format!("kernel (OFD), {} regions by one process: {what}", grouped(regions as f64));
        let (acquired, released) = (Spread::of(acquired), Spread::of(released));
        let rate = study.value(name("acquired"), "1/s", acquired);
        study.value(name("released"), "1/s", released);
        study.targets.open(name("acquired"), rate, Unit::PerSecond);
        let next = most.min(regions * 8);
        // The kernel goes through a list for each: eight times the regions take about 64 times as long.
        if next == regions || longest * 64.0 > bench.bound.as_secs_f64() * KERNEL_PATIENCE {
            break;
        }
        regions = next;
    }
    crew.end().await
}

/// The factor by which the kernel may take longer than the time bound, so that there is something to compare with.
const KERNEL_PATIENCE: f64 = 10.0;

impl fmt::Display for TargetStudy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", round_trip::table(&self.loops))?;
        for missing in &self.missing {
            writeln!(f, "Not measured: {missing}")?;
        }
        let mut table = Text::new("value | unit | median | least | most");
        for value in &self.values {
            let Spread { median, min, max } = value.spread;
            let show = |number: f64| if number < 1000.0 { format!("{number:.1}") } else { grouped(number) };
            table.row(vec![value.measure.clone(), value.unit.into(), show(median), show(min), show(max)]);
        }
        write!(f, "\n{table}\n{}", self.targets)
    }
}
