//! The studies of the atomic mode of MPI-IO (Ching et al., *Noncontiguous Locking Techniques for Parallel File Systems*, sections 6.1 to
//! 6.3): small pieces, S3D's checkpoint, and S3aSim's search of sequences.
//!
//! They run programs in C as MPI jobs that write one file, by each way to lock it and without locks. What a file has to hold follows from a
//! seed, and is compared byte by byte after each run: what Nacre's locks have lost ends the study, what others have lost is counted.

mod arguments;
mod chart;
mod check;
mod job;
pub(crate) mod pieces;
pub(crate) mod s3asim;
pub(crate) mod s3d;
mod system;

use crate::BenchError;
use crate::kit::report::{Report, Results};
use crate::kit::study::{Order, Repetitions, Steps, add, turns};

/// The number of ranks with which atomic writes are to be faster than MPICH's own by half.
const COMPARED_RANKS: u32 = 4;

/// Measures groups of points, those of a group by turns that begin with another one each time, and keeps what was measured after each
/// group.
///
/// # Errors
/// Those of `measure`.
fn measure_groups<R: Results, P: Clone, M>(
    report: &mut Report<R>,
    series: impl Fn(&mut R) -> &mut Vec<Repetitions<P, M>>,
    groups: &[Vec<P>],
    repetitions: u32,
    title: impl Fn(&P) -> String,
    measure: impl Fn(&P) -> Result<M, BenchError>,
) -> Result<(), BenchError> {
    let points = groups.iter().map(|points| points.len() as u64).sum::<u64>();
    let steps = Steps::new(points * u64::from(repetitions));
    for points in groups {
        let first = series(report).len();
        for (repetition, place) in turns(repetitions, points.len(), Order::Rotated) {
            let point = &points[place];
            steps.step(&title(point), repetition)?;
            let measured = measure(point)?;
            add(series(report), first + place, point, measured);
        }
        report.keep()?;
    }
    Ok(())
}
