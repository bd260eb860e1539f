//! Tens of thousands of random histories of every algorithm; `NACRE_RANKS_HISTORIES` sets how many.

use super::*;
use crate::token::Rule;

/// Returns the seeds to run; `NACRE_SEED=…` replays one history.
fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    match std::env::var("NACRE_SEED").ok().and_then(|seed| seed.parse::<u64>().ok()) {
        Some(seed) => seed..seed + 1,
        None => first..first + count,
    }
}

fn check(algorithm: Algorithm, first: u64) {
    let count = std::env::var("NACRE_RANKS_HISTORIES")
        .map_or(HISTORIES, |count| count.parse().expect("NACRE_RANKS_HISTORIES is a number"));
    let limits = Limits::default();
    let (mut finished, mut stopped) = (0u64, 0u64);
    let seeds = seeds(first, count);
    let is_replay = seeds.end - seeds.start == 1;
    for seed in seeds {
        match run(algorithm, seed, &limits) {
            Ok(report) if report.ending == Shutdown::Finished => finished += 1,
            Ok(_) => stopped += 1,
            Err(failure) => panic!("{failure} (NACRE_SEED={seed} replays it)"),
        }
    }
    // The histories are worth something only if many of both kinds are among them.
    assert!(
        is_replay || finished > count / 4 && stopped > count / 20,
        "{finished} finished, {stopped} stopped"
    );
}

/// The number of histories of each algorithm that are run by default.
const HISTORIES: u64 = 12_000;

#[test]
fn cp_visits_everything_once_and_ends() {
    check(Algorithm::Cp, 0);
}

#[test]
fn drqs_visits_everything_once_and_ends() {
    check(Algorithm::Drqs, 1 << 32);
}

#[test]
fn deqs_visits_everything_once_and_ends() {
    check(Algorithm::Deqs, 2 << 32);
}

#[test]
fn pa_drqs_visits_everything_once_and_ends() {
    check(Algorithm::PaDrqs, 3 << 32);
}

#[test]
fn h_drqs_visits_everything_once_and_ends() {
    check(Algorithm::HDrqs, 4 << 32);
}

#[test]
fn a_hundred_ranks_end_too() {
    let limits = Limits { ranks_max: 100, nodes_max: 400, ..Limits::default() };
    for algorithm in Algorithm::ALL {
        for seed in 0..12 {
            if let Err(failure) = run(algorithm, seed, &limits) {
                panic!("{failure}");
            }
        }
    }
}

/// Returns the first fault among `count` histories of DRQS under a wrong rule.
fn caught(rule: Rule, count: u64) -> Option<Failure> {
    let limits = Limits { token_rule: rule, stop_one_in: 0, steps_max: 20_000, ..Limits::default() };
    (0..count).find_map(|seed| run(Algorithm::Drqs, seed, &limits).err())
}

#[test]
fn wrong_rules_are_caught() {
    let sound = Rule::SOUND;
    let wrong = [
        ("senders stay white", Rule { blackens: false, ..sound }),
        ("black ranks do not blacken the token", Rule { taints: false, ..sound }),
        ("busy ranks forward", Rule { waits_for_idle: false, ..sound }),
        ("ranks that wait for an answer forward", Rule::AS_PUBLISHED),
        ("rank 0 does not look at the token", Rule { checks_colour: false, ..sound }),
    ];
    for (what, rule) in wrong {
        match caught(rule, 20_000) {
            Some(failure) => assert!(matches!(failure.fault, Violation::Early(_)), "{what}: {failure}"),
            None => panic!("{what}: not noticed"),
        }
    }
    // This one is not early but never ends: once black, always black.
    match caught(Rule { whitens: false, ..sound }, 2_000) {
        Some(failure) => assert_eq!(failure.fault, Violation::Endless, "{failure}"),
        None => panic!("a rank that stays black was not noticed"),
    }
    assert!(caught(sound, 2_000).is_none());
}

#[test]
fn wrong_ways_of_leaving_are_caught() {
    let sound = shutdown::Rule::SOUND;
    let wrong = [
        (
            "ranks report though work is on its way to them",
            shutdown::Rule { waits_for_answer: false, ..sound },
        ),
        ("rank 0 does not count", shutdown::Rule { compares_counts: false, ..sound }),
    ];
    for (what, shutdown_rule) in wrong {
        let limits = Limits { shutdown_rule, stop_one_in: 1, ..Limits::default() };
        let failure = (0..20_000).find_map(|seed| run(Algorithm::Drqs, seed, &limits).err());
        match failure {
            Some(failure) => assert!(
                matches!(failure.fault, Violation::AfterExit { .. } | Violation::Lost(_)),
                "{what}: {failure}"
            ),
            None => panic!("{what}: not noticed"),
        }
    }
}
