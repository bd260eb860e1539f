//! The study of the reflector (*The Performance of Software Multicast-Reflector Implementations for Multi-Player Online
//! Games*, section 5).
//!
//! The cost of copying a datagram to the members of a group, by each of the reflector's planes. The study builds a
//! small network of namespaces, lets a sender send as fast as the reflector copies, counts the copies that arrive, and
//! measures all processor time that the reflector causes.

mod arguments;
mod capacity;
mod counting;
mod figures;
mod joins;
mod load;
mod matrix;
mod measure;
mod overload;
mod point;
mod probe;
mod report;
mod serve;
mod system;
mod targets;
mod testbed;
mod validate;

pub use arguments::Args;
pub(crate) use serve::main as serve_main;

use self::probe::Probe;
use self::report::{Results, new_report};
use crate::kit::report::Report;
use crate::kit::study::run_blocking;
use crate::{BenchError, Common};

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    args.validate()?;
    run_blocking(new_report(args), common, |report| measure(args, report))
}

/// Measures what is requested.
fn measure(args: &Args, report: &mut Report<Results>) -> Result<(), BenchError> {
    let all = args.targets;
    report.background_percent.push(Probe::background_percent()?);
    if args.validate || all {
        report.loops = validate::measure(args)?;
    }
    if all || !(args.validate || args.overload || args.joins) {
        matrix::measure(args, report)?;
        report.keep()?;
    }
    if args.overload || all {
        overload::measure(args, report)?;
        report.keep()?;
    }
    if args.joins || all {
        joins::measure(args, report)?;
    }
    report.background_percent.push(Probe::background_percent()?);
    if let Some(folder) = &args.out {
        let machine = report.machine.line();
        report.figures = figures::draw(&report.series, &machine, folder)?;
        let page = capacity::write(&report.series, &machine, folder)?;
        report.figures.extend(page);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
