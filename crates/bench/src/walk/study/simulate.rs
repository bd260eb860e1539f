//! Runs in the simulation: the paper's machine, file systems and numbers of processes.

use std::sync::atomic::{AtomicUsize, Ordering};

use nacre_ranks::Algorithm;
use nacre_ranks::simulate::outcome::Outcome;
use nacre_ranks::simulate::timed::Study;
use nacre_ranks::simulate::tree::Shape;
use parking_lot::Mutex;

use super::{FigureName, Profile, Run, Source};
use crate::BenchError;
use crate::kit::study::Steps;

/// The numbers of files of the paper's file systems.
pub(super) const FILES: [u64; 3] = [6_500_000, 12_000_000, 110_000_000];
/// The number of processes of most of the paper's runs, two on each node, and that of its figure 6.
pub(super) const PROCESSES: u32 = 40;
const PROCESSES_OF_FIGURE_6: u32 = 20;
/// The number of processes on a node.
const PER_NODE: u32 = 2;
/// The number of walking threads of a process of H-DRQS: a node's sixteen cores, shared by its processes.
pub(super) const THREADS: u32 = 8;

/// A variant of an algorithm to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// The algorithm as published, with threads if it has any.
    Plain(Algorithm),
    /// CP with one worker that reads all directories, as at LANL.
    OneReader,
    /// CP whose workers keep one of the entries that they found: the paper's enhancement.
    KeepsOne,
}

impl Variant {
    pub(super) const ALL: [Self; 7] = [
        Self::Plain(Algorithm::Cp),
        Self::OneReader,
        Self::KeepsOne,
        Self::Plain(Algorithm::Drqs),
        Self::Plain(Algorithm::Deqs),
        Self::Plain(Algorithm::PaDrqs),
        Self::Plain(Algorithm::HDrqs),
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain(algorithm) => algorithm.name(),
            Self::OneReader => super::ONE_READER,
            Self::KeepsOne => super::KEEPS_ONE,
        }
    }

    fn is_centralized(self) -> bool {
        matches!(self, Self::OneReader | Self::KeepsOne | Self::Plain(Algorithm::Cp))
    }

    /// Returns a run of `processes` processes, two on each node.
    pub(super) fn study(self, processes: u32, entries: u64) -> Study {
        let per_node = PER_NODE.min(processes);
        self.study_on(processes / per_node, per_node, entries)
    }

    /// Returns a run on `nodes` nodes.
    pub(super) fn study_on(self, nodes: u32, per_node: u32, entries: u64) -> Study {
        let (algorithm, single_reader, keeps_one) = match self {
            Self::Plain(algorithm) => (algorithm, false, false),
            Self::OneReader => (Algorithm::Cp, true, false),
            Self::KeepsOne => (Algorithm::Cp, false, true),
        };
        let threads = if algorithm.has_threads() { THREADS } else { 1 };
        let study = Study::new(algorithm, nodes, per_node, threads, Shape::new(entries, 1));
        Study { single_reader, keeps_one, ..study }
    }
}

/// A planned simulation, with the results to keep.
#[derive(Clone, Debug)]
struct Planned {
    variant: Variant,
    study: Study,
    pairs: bool,
    work: bool,
}

/// Returns all runs that some figures need; with `quick`, a tenth of the files and fewer processes.
fn plan(figures: &[FigureName], quick: bool) -> Vec<Planned> {
    let wants = |figure| figures.contains(&figure);
    let scale = if quick { 10 } else { 1 };
    let [small, medium, large] = FILES.map(|files| files / scale);
    let mut planned: Vec<Planned> = Vec::new();
    let mut add = |variant: Variant, processes: u32, entries: u64, seed: u64, pairs: bool, work: bool| {
        let study = Study { seed, ..variant.study(processes, entries) };
        let same = planned.iter_mut().find(|planned| {
            let other = &planned.study;
            planned.variant == variant
                && (other.ranks(), other.shape.entries, other.seed) == (processes, entries, seed)
        });
        match same {
            Some(same) => (same.pairs, same.work) = (same.pairs || pairs, same.work || work),
            None => planned.push(Planned { variant, study, pairs, work }),
        }
    };
    for variant in Variant::ALL {
        if wants(FigureName::Three) || wants(FigureName::Profile) {
            let most = if quick { 128 } else { 512 };
            let doubled = (1..10).map(|octave| 1 << octave).filter(|processes| *processes <= most);
            doubled.chain([PROCESSES]).for_each(|processes| add(variant, processes, small, 1, false, false));
        }
        // The paper shows its time alone, and its messages take as long as those of CP to simulate.
        if variant == Variant::KeepsOne {
            continue;
        }
        if wants(FigureName::One) && variant.is_centralized() || wants(FigureName::Five) {
            add(variant, PROCESSES, small, 1, true, false);
        }
        if wants(FigureName::Four) {
            [small / 10, small, medium, large]
                .into_iter()
                .for_each(|entries| add(variant, PROCESSES, entries, 1, false, false));
        }
        if wants(FigureName::Six) && !variant.is_centralized() {
            (1..=3).for_each(|seed| add(variant, PROCESSES_OF_FIGURE_6, large, seed, false, true));
        }
    }
    planned
}

/// Simulates the runs that some figures need.
pub(in crate::walk) fn simulate(
    figures: &[FigureName],
    quick: bool,
    runs: &mut Vec<Run>,
) -> Result<(), BenchError> {
    let planned = plan(figures, quick);
    let studies: Vec<Study> = planned.iter().map(|planned| planned.study.clone()).collect();
    let (outcomes, ended) = run_all(&studies);
    let recorded =
        planned.iter().zip(outcomes).filter_map(|(planned, outcome)| Some(record(planned, outcome?)));
    runs.extend(recorded);
    ended
}

/// Runs simulations on all processors. Returns the outcomes in order, with gaps if it ended early, and how it ended.
pub(super) fn run_all(studies: &[Study]) -> (Vec<Option<Outcome>>, Result<(), BenchError>) {
    let steps = Steps::new(studies.len() as u64);
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(studies.iter().map(|_| None).collect());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let run = || -> Result<(), BenchError> {
        while let Some((place, study)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|place| Some((place, studies.get(place)?)))
        {
            let (algorithm, ranks) = (study.algorithm, study.ranks());
            steps.step(&format!("{algorithm} on {ranks} ranks"), 0)?;
            let visited = |outcome: &Outcome| outcome.by_rank.iter().map(|rank| rank.visited).sum::<u64>();
            let outcome = study.run().filter(|outcome| visited(outcome) == study.shape.entries);
            outcomes.lock()[place] = Some(outcome.ok_or_else(|| {
                let text = format!("{algorithm} on {ranks} simulated ranks did not visit every entry once");
                BenchError::Lost(text)
            })?);
        }
        Ok(())
    };
    let ended = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let ends = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ends.fold(Ok(()), Result::and)
    });
    (outcomes.into_inner(), ended)
}

fn record(planned: &Planned, outcome: Outcome) -> Run {
    let profile = outcome.profile;
    Run {
        source: Source::Simulated,
        by: "discrete events, α-β network and metadata service as of Cielo and Panasas".into(),
        algorithm: planned.variant.name().into(),
        entries: outcome.entries,
        ranks: outcome.ranks,
        threads: outcome.threads,
        seconds: outcome.seconds,
        messages: outcome.sent.messages,
        bytes: outcome.sent.bytes,
        profile: Some(Profile {
            callback_s: profile.callback_seconds,
            stat_s: profile.stat_seconds,
            readdir_s: profile.readdir_seconds,
            communication_s: profile.communication_seconds,
        }),
        bytes_between: if planned.pairs { outcome.bytes_by_pair.unwrap_or_default() } else { Vec::new() },
        entries_by_rank: match planned.work {
            true => outcome.by_rank.iter().map(|rank| rank.visited).collect(),
            false => Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_is_simulated_once_and_has_what_every_figure_needs() {
        let all = plan(&FigureName::ALL, true);
        let figures = [FigureName::Five, FigureName::One, FigureName::Four];
        let some = plan(&figures, true);
        for planned in &some {
            let same: Vec<_> = all
                .iter()
                .filter(|other| {
                    let key = |planned: &Planned| {
                        (planned.study.ranks(), planned.study.shape.entries, planned.study.seed)
                    };
                    other.variant == planned.variant && key(other) == key(planned)
                })
                .collect();
            assert_eq!(same.len(), 1, "{planned:?}");
            assert!(same[0].pairs >= planned.pairs && same[0].work >= planned.work);
        }
        let one = plan(&[FigureName::One], true);
        assert!(
            one.iter().all(|planned| planned.pairs && planned.variant.is_centralized()) && one.len() == 2
        );
    }

    #[test]
    fn a_simulated_run_has_everything() {
        let planned = Planned {
            variant: Variant::OneReader,
            study: Variant::OneReader.study(4, 3000),
            pairs: true,
            work: true,
        };
        let outcome = run_all(std::slice::from_ref(&planned.study)).0.remove(0).unwrap();
        let run = record(&planned, outcome);
        assert_eq!(
            (run.algorithm.as_str(), run.ranks, run.threads, run.entries),
            (super::super::ONE_READER, 4, 1, 3000)
        );
        assert_eq!(run.bytes_between.iter().flatten().sum::<u64>(), run.bytes);
        assert_eq!(run.entries_by_rank.iter().sum::<u64>(), 3000);
    }
}
