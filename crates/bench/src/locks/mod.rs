//! The study of locks (Ching et al., *Noncontiguous Locking Techniques for Parallel File Systems*, section 6.1).
//!
//! Clients lock patterns of many small regions. The study varies how the bytes are described to the servers (a request for
//! each region, for 64 of them, or for all), the protocol, whether servers keep descriptions or regions, the number of
//! clients and servers, the distance of the regions, and the overlap of neighbours. It measures aggregate rates: the regions
//! of all clients over the time in which the last of them had acquired, or released, all of its own. Clients wait for each
//! other between acquiring and releasing, except where they meet: there a client releases as soon as it has everything, and
//! the time is that for both.
//!
//! After every repetition the servers' own counts must agree with what was asked for, and nothing may be left held.

mod arguments;
mod client;
mod figures;
mod micro;
mod point;
mod reach;
mod report;
mod run;
mod simulate;

pub use arguments::{Args, FigureName};
pub(crate) use client::main as client_main;
pub use point::{MethodName, ProtocolName};

use self::point::{Point, Series};
use self::report::Report;
use self::run::Bench;
use crate::kit::peer::validate_folder;
use crate::kit::progress::Progress;
use crate::{BenchError, Common};

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or the servers granted something else than what was asked for.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    args.check()?;
    validate_folder(args.folder.as_deref())?;
    validate_folder(Some(&args.out))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(BenchError::io("start a runtime"))?;
    let report = runtime.block_on(crate::until_interrupted(measure(args, common)))?;
    match common.json {
        true => println!("{}", report.json()?),
        false => print!("{report}"),
    }
    Ok(())
}

/// Measures and simulates what is requested.
async fn measure(args: &Args, common: &Common) -> Result<Report, BenchError> {
    let bench = Bench::new(args, common)?;
    let mut report = Report::new();
    // Whatever ends a long study early does not take what was measured before.
    let keep = |report: &Report| args.results.as_ref().map_or(Ok(()), |file| report.write(file));
    if args.reach {
        let progress = Progress::new(reach::STEPS);
        report.reach = Some(reach::measure(args, &bench, |what| progress.step(what, 0)).await?);
        progress.finish();
        keep(&report)?;
        return Ok(report);
    }
    let points = args.points();
    let simulations = if args.wants(FigureName::Simulated) { simulate::runs(args) } else { Vec::new() };
    let steps = points.len() as u64 * u64::from(bench.repetitions) + simulations.len() as u64;
    let progress = Progress::new(steps);
    for points in points.chunk_by(|one, other| one.is_beside(other) && one.figure == other.figure) {
        let step = |point: &Point, repetition| progress.step(&point.title(), repetition);
        let series: Vec<Series> = bench.measure(points, step).await?;
        report.series.extend(series);
        keep(&report)?;
    }
    for parameters in simulations {
        progress.step(&format!("simulation of {} clients", parameters.clients), 0);
        report.simulated.push(simulate::simulate(parameters, Default::default())?);
    }
    progress.finish();
    report.figures = figures::draw(&report.series, &report.simulated, &args.out)?;
    keep(&report)?;
    Ok(report)
}
