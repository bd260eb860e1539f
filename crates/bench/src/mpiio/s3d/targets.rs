//! The targets of Nacre in the study of S3D's checkpoint, at the largest grid that was measured.

use super::super::COMPARED_RANKS;
use super::super::job::Mpi;
use super::super::system::System;
use super::{Measurement, Series};
use crate::kit::figure::distinct;
use crate::kit::target::{Targets, Unit};

/// Returns the targets with the measured values.
pub(super) fn evaluate(series: &[Series]) -> Targets {
    let mut targets = Targets::default();
    let Some(edge) = series.iter().map(|series| series.point.edge).max() else { return targets };
    let of_edge = || series.iter().filter(move |series| series.point.edge == edge);
    let all_ranks = distinct(of_edge().map(|series| series.point.ranks));
    for mpi in distinct(of_edge().map(|series| series.point.subject.mpi)) {
        let fastest = |ranks: u32, systems: &[System]| {
            let is_one = |series: &&Series| {
                let subject = &series.point.subject;
                (series.point.ranks, subject.mpi) == (ranks, mpi) && systems.contains(&subject.system)
            };
            of_edge().filter(is_one).map(|series| series.median(Measurement::rate)).reduce(f64::max)
        };
        let title = mpi.title();
        for ranks in all_ranks.iter().copied() {
            let ours = fastest(ranks, &[System::Datatype]);
            let none = fastest(ranks, &[System::None, System::NoneUnsieved]);
            if let Some((ours, none)) = ours.zip(none) {
                let name = format!("{title}, {ranks} ranks: datatype locks ÷ no locks");
                targets.at_least(name, ours / none, Unit::Times, 0.9);
            }
            let own = fastest(ranks, &[System::Own, System::OwnUnsieved]);
            if let (COMPARED_RANKS, Some((ours, own))) = (ranks, ours.zip(own)) {
                let name = format!("{title}, {ranks} ranks: datatype locks ÷ its own atomic mode");
                // That of Open MPI locks nothing.
                match mpi {
                    Mpi::Mpich => targets.at_least(name, ours / own, Unit::Times, 1.5),
                    Mpi::Openmpi => targets.open(name, ours / own, Unit::Times),
                }
            }
        }
        // Over all numbers of ranks, as what is looked for is less than what differs from run to run.
        let seconds = |system: System| {
            let rates = all_ranks.iter().map(|ranks| fastest(*ranks, &[system]));
            rates.map(|rate| rate.map(|rate| 1.0 / rate)).sum::<Option<f64>>()
        };
        if let Some((with, without)) = seconds(System::Preloaded).zip(seconds(System::None)) {
            let name = format!("{title}, all ranks: cost of the preloaded library without atomic mode");
            targets.at_most(name, 100.0 * (with / without - 1.0), Unit::Percent, 1.0);
        }
        for ranks in all_ranks.iter().copied().filter(|ranks| *ranks > 1) {
            if let Some((many, one)) = fastest(ranks, &[System::Slabs]).zip(fastest(1, &[System::Slabs])) {
                let name =
                    format!("{title}: {ranks} ranks that write disjoint ranges of one file ÷ one rank");
                targets.open(name, many / one, Unit::Times);
            }
        }
    }
    targets
}
