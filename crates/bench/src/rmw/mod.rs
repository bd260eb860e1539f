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
mod reach;
mod report;
mod run;
mod way;
mod workload;

use std::sync::Arc;

use nacre_object::ObjectStore;

pub use arguments::{Args, FigureName, Peers};
pub use check::Verdict;
pub(crate) use client::main as client_main;
pub use point::Coordination;

use self::point::{Point, Series};
use self::report::Report;
use self::run::Bench;
use crate::kit::peer::validate_folder;
use crate::kit::progress::Progress;
use crate::{BenchError, Common};

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or an update was lost.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    let report = run_on(args, common, None)?;
    match common.json {
        true => println!("{}", report.json()?),
        false => print!("{report}"),
    }
    Ok(())
}

/// Runs the study. `store` replaces the store that `--store` names, if that is in this process.
pub(crate) fn run_on(
    args: &Args,
    common: &Common,
    store: Option<Arc<dyn ObjectStore>>,
) -> Result<Report, BenchError> {
    validate_folder(args.folder.as_deref())?;
    validate_folder(Some(&args.out))?;
    let mut bench = Bench::new(common.clone(), args.folder.clone(), args.measure().repetitions);
    bench.store = store;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(BenchError::io("start a runtime"))?;
    runtime.block_on(crate::until_interrupted(measure(args, &mut bench)))
}

/// Measures the requested points.
async fn measure(args: &Args, bench: &mut Bench) -> Result<Report, BenchError> {
    let mut report = Report::new();
    // Whatever ends a long study early does not take what was measured before.
    let keep = |report: &mut Report, series: &[Series]| {
        report.series.extend_from_slice(series);
        args.results.as_ref().map_or(Ok(()), |file| report.write(file))
    };
    let repetitions = u64::from(bench.repetitions);
    if args.reach {
        let progress = Progress::new(reach::points(args)? as u64 * repetitions);
        let step = |point: &Point, repetition| progress.step(&point.title(), repetition);
        let goals = reach::measure(args, bench, step, |series| keep(&mut report, series)).await?;
        progress.finish();
        report.goals = Some(goals);
    } else {
        let points = match args.figure.is_empty() {
            true => {
                args.coordinations().into_iter().map(|way| args.point(way)).collect::<Result<Vec<_>, _>>()?
            }
            false => figures::points(args)?,
        };
        let progress = Progress::new(points.len() as u64 * repetitions);
        let step = |point: &Point, repetition| progress.step(&point.title(), repetition);
        for points in points.chunk_by(Point::is_beside) {
            let series = bench.measure(points, step).await?;
            keep(&mut report, &series)?;
        }
        progress.finish();
        report.figures = figures::draw(&report.series, &args.out)?;
    }
    keep(&mut report, &[])?;
    Ok(report)
}

#[cfg(test)]
mod tests;
