//! The read/modify/write study (*A Case for Optimistic Coordination in HPC Storage Systems*, section IV).
//!
//! Many clients update shared blocks at once. The study measures the cost of coordinating them optimistically, by
//! conditional writes, against taking locks from a lock service, against no coordination, and against other systems
//! with conditional writes.

mod arguments;
mod block;
mod check;
mod client;
mod drive;
mod figures;
mod point;
mod probe;
mod report;
mod run;
mod system;
mod targets;
mod workload;

use std::sync::Arc;

pub use arguments::Args;
pub(crate) use client::main as client_main;
use nacre_object::ObjectStore;

use self::point::Point;
use self::report::{Results, new_report};
use self::run::Bench;
use crate::kit::peer::validate_folder;
use crate::kit::report::Report;
use crate::kit::study::{self, Steps};
use crate::{BenchError, Common};

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or an update was lost.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    validate_folder(args.folder.as_deref())?;
    validate_folder(Some(&args.out))?;
    study::run(new_report(args), common, async |report| measure(args, common, None, report).await)
}

/// Measures the requested points. `store` replaces the store that `--store` names, if that is in this process.
async fn measure(
    args: &Args,
    common: &Common,
    store: Option<Arc<dyn ObjectStore>>,
    report: &mut Report<Results>,
) -> Result<(), BenchError> {
    let mut bench = Bench::new(common.clone(), args.folder.clone(), args.measure().repetitions);
    bench.store = store;
    let repetitions = u64::from(bench.repetitions);
    if args.targets {
        let steps = Steps::new(targets::points(args)? as u64 * repetitions);
        return targets::measure(args, &mut bench, &steps, report).await;
    }
    let points = match args.figure.is_empty() {
        true => args.systems().into_iter().map(|system| args.point(system)).collect::<Result<Vec<_>, _>>()?,
        false => figures::points(args)?,
    };
    let steps = Steps::new(points.len() as u64 * repetitions);
    for points in points.chunk_by(Point::is_beside) {
        bench.measure(points, &steps, report).await?;
        report.keep()?;
    }
    report.figures = figures::draw(&report.series, &args.out)?;
    Ok(())
}

#[cfg(test)]
mod tests;
