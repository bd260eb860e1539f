//! Runs on this machine: MPI jobs that walk an existing tree.

use std::path::Path;

use nacre_quantity::Escaped;
use nacre_ranks::Algorithm;

use super::{FigureName, Profile, Run, Source};
use crate::BenchError;
use crate::kit::machine::Machine;
use crate::kit::study::{Order, Steps, turns};
use crate::walk::mpi::{Job, Measurements, Mpi};

/// The numbers of ranks of the jobs.
const RANKS: [u32; 4] = [2, 4, 6, 8];
/// The number of threads of a rank of H-DRQS; with one it would be DRQS.
pub(in crate::walk) const THREADS: u32 = 2;

/// The number of ranks from which CP is measured, and only once: it takes a hundred times as long as the others. With
/// two ranks, master and worker would only wait for each other in turn.
const CENTRALIZED_RANKS_MIN: u32 = 4;

/// Returns whether a job is run in this repetition.
fn is_run(algorithm: Algorithm, ranks: u32, repetition: u32) -> bool {
    !algorithm.has_master() || (ranks >= CENTRALIZED_RANKS_MIN && repetition == 0)
}

/// Returns the numbers of ranks that some figures need.
fn ranks(figures: &[FigureName]) -> Vec<u32> {
    let by_ranks = figures.contains(&FigureName::Three) || figures.contains(&FigureName::Profile);
    if by_ranks { RANKS.to_vec() } else { RANKS[RANKS.len() - 1..].to_vec() }
}

/// Walks the tree with every algorithm, `repetitions` times.
pub(in crate::walk) fn measure(
    mpi: &Mpi,
    figures: &[FigureName],
    root: &Path,
    repetitions: u32,
    runs: &mut Vec<Run>,
) -> Result<(), BenchError> {
    let machine = Machine::describe();
    let by = format!("{} on {} processors of one machine", mpi.library, machine.cpus);
    let jobs = ranks(figures);
    let jobs = jobs.iter().flat_map(|ranks| Algorithm::ALL.map(|algorithm| (*ranks, algorithm)));
    let jobs: Vec<(u32, Algorithm)> = jobs.collect();
    let mut turns = turns(repetitions, jobs.len(), Order::Same);
    turns.retain(|(repetition, place)| is_run(jobs[*place].1, jobs[*place].0, *repetition));
    let steps = Steps::new(turns.len() as u64);
    let first = runs.len();
    for (repetition, place) in turns {
        let (ranks, algorithm) = jobs[place];
        steps.step(&format!("{algorithm} on {ranks} ranks"), repetition)?;
        let threads = Some(if algorithm.has_threads() { THREADS } else { 1 });
        let seed = 1 + u64::from(repetition);
        runs.push(record(&mpi.walk(&Job { ranks, algorithm, threads, seed, root })?, &by));
    }
    // The tree did not change meanwhile, or the runs are none of one tree.
    let entries = runs.get(first).map_or(0, |run| run.entries);
    match runs[first..].iter().find(|run| run.entries != entries) {
        Some(run) => Err(BenchError::Lost(format!(
            "{} visited {} entries of {}, where {entries} were visited before",
            run.algorithm,
            run.entries,
            Escaped::of(&root)
        ))),
        None => Ok(()),
    }
}

fn record(measured: &Measurements, by: &str) -> Run {
    let total = |value: fn(&nacre_walk::Profile) -> u64| {
        measured.ranks.iter().map(|rank| value(&rank.profile)).sum::<u64>() as f64 / 1e9
    };
    Run {
        source: Source::Measured,
        by: by.into(),
        algorithm: measured.algorithm.name().into(),
        entries: measured.ranks.iter().map(|rank| rank.entries).sum(),
        ranks: measured.ranks.len() as u32,
        threads: measured.threads,
        seconds: measured.seconds(),
        messages: measured.sent().messages,
        bytes: measured.wire_bytes(),
        profile: Some(Profile {
            callback_s: total(|profile| profile.visiting_ns),
            stat_s: total(|profile| profile.asking_ns),
            readdir_s: total(|profile| profile.opening_ns + profile.reading_ns),
            communication_s: measured.ranks.iter().map(|rank| rank.communication_ns).sum::<u64>() as f64
                / 1e9,
        }),
        bytes_between: measured.ranks.iter().map(|rank| rank.wire_bytes.clone()).collect(),
        entries_by_rank: measured.ranks.iter().map(|rank| rank.entries).collect(),
    }
}
