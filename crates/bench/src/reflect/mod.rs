//! The study of the reflector (*The Performance of Software Multicast-Reflector Implementations for Multi-Player Online
//! Games*, section 5).
//!
//! What does it cost to copy a datagram to the members of a group, by each of the reflector's planes? The study builds a
//! small network of namespaces, has a sender send as fast as the reflector copies, counts what arrives, and measures all
//! processor time that the reflector causes.

mod arguments;
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
mod stage;
mod system;
mod validate;

use std::path::PathBuf;

pub use arguments::Args;
pub(crate) use serve::main as serve_main;
pub use stage::Device;

use self::report::Report;
use crate::BenchError;

/// The receivers' program.
static PROGRAM: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/count.o"));

/// Runs the study as asked, prints the table, writes what was asked for.
pub fn run(args: &Args) -> Result<(), BenchError> {
    args.validate()?;
    let mut report = Report::new();
    if args.validate {
        report.loops = validate::measure(args)?;
    } else if args.joins {
        (report.joins, report.absent) = joins::measure(args)?;
    } else if args.overload {
        let (overloads, absent) = overload::measure(args)?;
        (report.overloads, report.absent) = (Some(overloads), absent);
    } else {
        let measured = matrix::measure(args)?;
        (report.series, report.absent) = (measured.series, measured.absent);
    }
    if let Some(folder) = &args.out {
        report.figures = figures::draw(&report.series, &report.machine.line(), folder)?;
    }
    if let Some(file) = &args.results {
        report.write(file)?;
    }
    match args.print_json {
        true => println!("{}", report.json()?),
        false => print!("{report}"),
    }
    Ok(())
}

/// The program that runs.
fn this_program() -> Result<PathBuf, BenchError> {
    std::env::current_exe().map_err(BenchError::io("find the program that runs"))
}
