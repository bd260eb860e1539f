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
mod report;
mod round_trip;
mod run;
mod simulate;
mod targets;
mod total;
mod worker;

pub use arguments::{Args, FigureName};
pub(crate) use client::main as client_main;
pub use point::ProtocolName;

use self::report::{Results, new_report};
use self::run::Bench;
use crate::kit::peer::validate_folder;
use crate::kit::report::Report;
use crate::kit::study::{self, Steps};
use crate::{BenchError, Common};

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or the servers granted something else than what was asked for.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    args.check()?;
    validate_folder(args.folder.as_deref())?;
    validate_folder(Some(&args.out))?;
    study::run(new_report(args), common, async |report| measure(args, common, report).await)
}

/// Measures and simulates what is requested.
async fn measure(args: &Args, common: &Common, report: &mut Report<Results>) -> Result<(), BenchError> {
    let bench = Bench::new(args, common);
    if args.targets {
        return targets::measure(args, &bench, report).await;
    }
    let points = args.points();
    let simulations = if args.wants(FigureName::Simulated) { simulate::runs(args) } else { Vec::new() };
    let steps = Steps::new(points.len() as u64 * u64::from(bench.repetitions) + simulations.len() as u64);
    for points in points.chunk_by(|one, other| one.is_beside(other) && one.figure == other.figure) {
        bench.measure(points, Some(&steps), report, |results| &mut results.series).await?;
        report.keep()?;
    }
    for parameters in simulations {
        steps.step(&format!("simulation of {} clients", parameters.clients), 0)?;
        report.simulated.push(simulate::simulate(parameters, Default::default())?);
    }
    report.figures = figures::draw(&report.series, &report.simulated, &args.out)?;
    Ok(())
}
