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
mod reach;
mod report;
mod serve;
mod stage;
mod system;
mod validate;

pub use arguments::Args;
pub(crate) use serve::main as serve_main;
pub use stage::Device;

use self::probe::Probe;
use self::report::Report;
use crate::{BenchError, Common};

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    args.validate()?;
    let mut report = Report::new();
    let all = args.reach;
    report.background_percent.push(Probe::background_percent()?);
    if args.validate || all {
        report.loops = validate::measure(args)?;
    }
    if all || !(args.validate || args.overload || args.joins) {
        let measured = matrix::measure(args)?;
        (report.series, report.absent) = (measured.series, measured.absent);
        report.receivers_alone = measured.receivers;
        keep(args, &report)?;
    }
    if args.overload || all {
        let (overloads, absent) = overload::measure(args)?;
        report.overloads = Some(overloads);
        report.add_absent(absent);
        keep(args, &report)?;
    }
    if args.joins || all {
        let (joins, absent) = joins::measure(args)?;
        report.joins = joins;
        report.add_absent(absent);
    }
    report.background_percent.push(Probe::background_percent()?);
    if all {
        report.goals = reach::judge(&report);
    }
    if let Some(folder) = &args.out {
        let machine = report.machine.line();
        report.figures = figures::draw(&report.series, &machine, folder)?;
        report.figures.extend(capacity::write(&report.series, &machine, folder)?);
    }
    keep(args, &report)?;
    match common.json {
        true => println!("{}", report.json()?),
        false => print!("{report}"),
    }
    Ok(())
}

/// Writes the results so far, so that an early end of a long study does not lose them.
fn keep(args: &Args, report: &Report) -> Result<(), BenchError> {
    args.results.as_ref().map_or(Ok(()), |file| report.write(file))
}

#[cfg(test)]
mod tests;
