//! Exhaustive searches of small worlds.

use super::*;
use crate::proximity::Nodes;
use crate::{Algorithm, BackOff, shutdown, token};

fn case(algorithm: Algorithm, ranks: u32, parents: &[u32]) -> Search {
    Search {
        tree: Tree::new(parents),
        ranks,
        threads: if algorithm.has_threads() { 2 } else { 1 },
        options: Options {
            back_off: BackOff { patience: 0, first_ns: 1, bound_ns: 1 },
            nodes: Arc::new(Nodes::blocks(ranks, 2)),
            ..Options::new(algorithm, ranks, 0)
        },
        stops: Vec::new(),
        until_announced: false,
        states_max: 3_000_000,
    }
}

fn assert_sound(what: &str, case: &Search) {
    let found = search(case);
    if let Some((fault, steps)) = &found.fault {
        panic!("{what}: {fault}\n{steps:#?}");
    }
    assert!(found.complete, "{what}: more than {} states", found.states);
    assert!(found.ends > 0);
    assert_eq!(found.hopeless, 0, "{what}: from these no end can be reached");
}

#[test]
fn one_and_two_ranks_from_beginning_to_end_with_stops() {
    for algorithm in Algorithm::ALL {
        for parents in [&[][..], &[0], &[0, 0, 0], &[0, 1, 2], &[0, 0, 0, 1, 1, 2, 3]] {
            assert_sound(&format!("{algorithm} alone"), &case(algorithm, 1, parents));
            let two = Search { stops: vec![0, 1], ..case(algorithm, 2, parents) };
            assert_sound(&format!("{algorithm} on 2 ranks, {parents:?}"), &two);
        }
    }
}

#[test]
fn three_ranks_until_the_end_is_announced() {
    for algorithm in Algorithm::ALL {
        for parents in [&[0, 0, 0][..], &[0, 0, 0, 1], &[0, 0, 1, 1]] {
            let three = Search { until_announced: true, ..case(algorithm, 3, parents) };
            assert_sound(&format!("{algorithm} on 3 ranks, {parents:?}"), &three);
        }
    }
    let larger = Search { until_announced: true, ..case(Algorithm::Drqs, 3, &[0, 0, 0, 1, 1, 2]) };
    assert_sound("seven nodes", &larger);
}

#[test]
fn the_options_of_cp_are_sound() {
    for (keeps_one, single_reader) in [(true, false), (false, true), (true, true)] {
        let mut cp = Search { stops: vec![0, 2], ..case(Algorithm::Cp, 3, &[0, 0, 0, 1, 1, 2]) };
        cp.options = Options { keeps_one, single_reader, ..cp.options };
        assert_sound("CP", &cp);
    }
}

#[test]
fn three_ranks_leave_and_stop_without_losing_anything() {
    assert_sound("leaving", &case(Algorithm::Drqs, 3, &[0, 0, 0]));
    assert_sound("stopped by rank 2", &Search { stops: vec![2], ..case(Algorithm::Drqs, 3, &[0, 0]) });
    assert_sound("stopped by rank 0", &Search { stops: vec![0], ..case(Algorithm::Drqs, 3, &[0, 0]) });
    let cp = Search { stops: vec![0, 1, 2], ..case(Algorithm::Cp, 3, &[0, 0, 0, 1, 1, 2]) };
    assert_sound("CP, stopped by anybody", &cp);
}

#[test]
fn four_ranks_until_the_end_is_announced() {
    assert_sound(
        "PA-DRQS on 4 ranks",
        &Search { until_announced: true, ..case(Algorithm::PaDrqs, 4, &[0, 0]) },
    );
    assert_sound("DRQS on 4 ranks", &Search { until_announced: true, ..case(Algorithm::Drqs, 4, &[0]) });
    assert_sound("CP on 4 ranks", &Search { stops: vec![3], ..case(Algorithm::Cp, 4, &[0, 0, 1]) });
}

#[test]
fn the_published_rule_alone_ends_too_early_and_the_search_finds_the_shortest_way() {
    let mut published = case(Algorithm::Drqs, 3, &[0, 0]);
    published.options.token_rule = token::Rule::AS_PUBLISHED;
    let found = search(&published);
    let (fault, steps) = found.fault.expect("a counterexample");
    // The run that the documentation of `algorithm::token` tells: work from rank 0 to rank 2 is slower than the token.
    assert_eq!(fault, Violation::Early("a work message is under way from rank 0 to rank 2".to_owned()));
    let token_round = [Step::Deliver(0, 1), Step::Deliver(1, 2), Step::Deliver(2, 0)];
    assert!(steps.ends_with(&token_round), "{steps:#?}");
    // In order per pair, two ranks cannot overtake each other.
    let mut two = case(Algorithm::Drqs, 2, &[0, 0, 0, 1, 1]);
    two.options.token_rule = token::Rule::AS_PUBLISHED;
    assert_sound("the published rule on 2 ranks", &two);
}

#[test]
fn wrong_rules_are_caught() {
    let sound = token::Rule::SOUND;
    let wrong = [
        ("senders stay white", token::Rule { blackens: false, ..sound }),
        ("black ranks do not blacken the token", token::Rule { taints: false, ..sound }),
        ("busy ranks forward", token::Rule { waits_for_idle: false, ..sound }),
        ("rank 0 does not look at the token", token::Rule { checks_colour: false, ..sound }),
    ];
    for (what, rule) in wrong {
        let mut search_case = Search { until_announced: true, ..case(Algorithm::Drqs, 3, &[0, 0, 0, 1, 1]) };
        search_case.options.token_rule = rule;
        let fault = search(&search_case).fault;
        assert!(matches!(fault, Some((Violation::Early(_), _))), "{what}: {fault:?}");
    }
    // Black once, black for ever: not early, but from there no end can be reached.
    let mut stays_black = Search { until_announced: true, ..case(Algorithm::Drqs, 3, &[0, 0, 0, 1, 1]) };
    stays_black.options.token_rule = token::Rule { whitens: false, ..sound };
    let found = search(&stays_black);
    assert!(found.complete && found.fault.is_none() && found.hopeless > 0, "{found:?}");
}

#[test]
fn wrong_ways_of_leaving_are_caught() {
    let sound = shutdown::Rule::SOUND;
    for rule in [
        shutdown::Rule { waits_for_answer: false, ..sound },
        shutdown::Rule { compares_counts: false, ..sound },
    ] {
        let mut wrong = Search { stops: vec![1], ..case(Algorithm::Drqs, 3, &[0, 0]) };
        wrong.options.shutdown_rule = rule;
        let fault = search(&wrong).fault;
        assert!(
            matches!(fault, Some((Violation::AfterExit { .. } | Violation::Lost(_), _))),
            "{rule:?}: {fault:?}"
        );
    }
}
