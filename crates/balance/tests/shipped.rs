//! The policies that ship, each in simulation.

use std::sync::Arc;

use nacre_balance::{
    Change, Kind, Mode, Note, Policy, ResourceId, Settings, Simulated, Trace, shipped, simulate,
};

fn policy(name: &str) -> Arc<Policy> {
    let shipped = shipped(name).unwrap();
    Arc::new(Policy::new(shipped.name, 1, shipped.text).unwrap())
}

fn trace(capacity: f64, seconds: f64, changes: Vec<Change>) -> Trace {
    Trace { ranks: None, capacity, seconds, changes }
}

/// Subtrees of the same load, all at rank 0.
fn subtrees(count: usize) -> Vec<Change> {
    let id = |number| ResourceId::new(Kind::Subtree, &format!("/home/{number}")).unwrap();
    (0..count).map(|number| Change { at_s: 0.0, id: id(number), load: 1.0, rank: 0 }).collect()
}

/// The workload of the paper's section 6.2.1: two logs, one with 7 clients and one with 8, at one of three ranks.
fn two_sequencers() -> Trace {
    let sequencer =
        |name, load| Change { at_s: 0.0, id: ResourceId::new(Kind::Sequencer, name).unwrap(), load, rank: 0 };
    trace(10.0, 300.0, vec![sequencer("seven", 7.0), sequencer("eight", 8.0)])
}

fn run(name: &str, trace: &Trace, settings: &Settings, ranks: usize) -> Simulated {
    let simulated = simulate(trace, &policy(name), settings, ranks).unwrap();
    assert_eq!(simulated.failures, 0, "{:?}", simulated.steps.iter().find(|step| !step.notes.is_empty()));
    let offered: f64 = simulated.steps[0].loads.iter().sum();
    if settings.mode == Mode::Client {
        for step in &simulated.steps {
            let sum: f64 = step.loads.iter().sum();
            assert!((sum - offered).abs() < 1e-6, "at {} s, {sum} of {offered} are left", step.at_s);
        }
    }
    simulated
}

fn many_moves() -> Settings {
    Settings { moves_per_tick: 1000, ..Settings::default() }
}

fn last(simulated: &Simulated) -> &[f64] {
    &simulated.steps.last().unwrap().loads
}

#[test]
fn greedy_spill_halves_from_rank_to_rank() {
    let simulated = run("greedy-spill", &trace(f64::INFINITY, 300.0, subtrees(64)), &many_moves(), 4);
    assert_eq!(last(&simulated), [32.0, 16.0, 8.0, 8.0]);
    assert_eq!(simulated.back_and_forth, 0);
}

#[test]
fn greedy_spill_even_spreads_evenly_in_few_steps() {
    let simulated = run("greedy-spill-even", &trace(f64::INFINITY, 300.0, subtrees(64)), &many_moves(), 8);
    assert_eq!(last(&simulated), [8.0; 8]);
    assert_eq!(simulated.settled_s, Some(30.0), "three ticks double the ranks with load three times");
}

#[test]
fn fill_and_spill_uses_no_more_ranks_than_needed() {
    let simulated = run("fill-and-spill", &trace(40.0, 900.0, subtrees(60)), &many_moves(), 4);
    let loads = last(&simulated);
    assert!(loads[0] < 0.8 * 40.0 && loads[0] > 20.0, "{loads:?}");
    assert_eq!(loads[3], 0.0, "{loads:?}");
    assert!(
        simulated.steps.iter().position(|step| !step.moves.is_empty()) >= Some(2),
        "it waits for three busy ticks"
    );
}

#[test]
fn adaptable_brings_all_ranks_to_the_mean_at_once() {
    let simulated = run("adaptable", &trace(f64::INFINITY, 300.0, subtrees(100)), &many_moves(), 5);
    assert_eq!(last(&simulated), [20.0; 5]);
    assert_eq!((simulated.moves, simulated.settled_s), (80, Some(10.0)));
    // A limit of moves makes it slower, and nothing else.
    let simulated = run("adaptable", &trace(f64::INFINITY, 600.0, subtrees(100)), &Settings::default(), 5);
    assert!(simulated.steps.iter().all(|step| step.moves.len() <= 8));
    assert!(simulated.steps.last().unwrap().imbalance() < 1.2, "{:?}", last(&simulated));
}

#[test]
fn adaptable_follows_load_that_moves() {
    let mut changes = subtrees(100);
    changes.extend(subtrees(50).into_iter().map(|change| Change { at_s: 150.0, load: 5.0, ..change }));
    let simulated =
        simulate(&trace(f64::INFINITY, 600.0, changes), &policy("adaptable"), &many_moves(), 5).unwrap();
    let at = |second: f64| simulated.steps.iter().find(|step| step.at_s >= second).unwrap().imbalance();
    assert!(
        at(100.0) < 1.15 && at(150.0) > 1.15 && at(500.0) < 1.15,
        "{} {} {}",
        at(100.0),
        at(150.0),
        at(500.0)
    );
}

#[test]
fn hash_puts_every_resource_where_its_name_belongs() {
    let simulated = run("hash", &trace(f64::INFINITY, 300.0, subtrees(400)), &many_moves(), 4);
    let loads = last(&simulated);
    assert!(loads.iter().all(|load| (60.0..140.0).contains(load)), "{loads:?}");
    assert!(simulated.settled_s.is_some_and(|settled| settled <= 20.0), "{:?}", simulated.settled_s);
    assert_eq!(simulated.back_and_forth, 0);
}

#[test]
fn sequencers_are_parted_at_once() {
    let simulated = run("sequencer", &two_sequencers(), &Settings::default(), 3);
    assert_eq!(last(&simulated), [8.0, 7.0, 0.0]);
    assert_eq!((simulated.moves, simulated.settled_s), (1, Some(10.0)));
    assert!(simulated.steps[0].served < 0.7);
    assert_eq!(simulated.steps.last().unwrap().served, 1.0);
}

#[test]
fn conservative_waits_for_two_minutes() {
    let simulated = run("conservative", &two_sequencers(), &Settings::default(), 3);
    assert_eq!(last(&simulated), [8.0, 7.0, 0.0]);
    let moved = simulated.steps.iter().find(|step| !step.moves.is_empty()).unwrap();
    assert_eq!(moved.at_s, 120.0);
    // A burst that ends before moves nothing.
    let mut burst = two_sequencers();
    let calm = burst.changes.clone().into_iter().map(|change| Change { at_s: 60.0, load: 0.0, ..change });
    burst.changes.extend(calm.collect::<Vec<_>>());
    let simulated = simulate(&burst, &policy("conservative"), &Settings::default(), 3).unwrap();
    assert_eq!(simulated.moves, 0);
}

#[test]
fn sequencers_are_parted_also_if_they_are_in_subtrees() {
    for kinds in [[Kind::Sequencer, Kind::Subtree], [Kind::Subtree, Kind::Sequencer], [Kind::Subtree; 2]] {
        let mut trace = two_sequencers();
        for (change, kind) in trace.changes.iter_mut().zip(kinds) {
            change.id.kind = kind;
        }
        for (name, settled_s) in [("sequencer", 10.0), ("conservative", 130.0)] {
            let simulated = run(name, &trace, &Settings::default(), 3);
            assert_eq!(last(&simulated), [8.0, 7.0, 0.0], "{name}, {kinds:?}");
            assert_eq!((simulated.moves, simulated.settled_s), (1, Some(settled_s)), "{name}, {kinds:?}");
        }
    }
}

#[test]
fn a_proxy_keeps_some_of_the_work() {
    let settings = Settings { mode: Mode::Proxy, ..Settings::default() };
    let proxy = run("sequencer", &two_sequencers(), &settings, 3);
    let half = run("sequencer", &two_sequencers(), &Settings { mode: Mode::ProxyHalf, ..settings }, 3);
    let (proxy, half) = (last(&proxy)[0], last(&half)[0]);
    assert!(proxy > half && half > 8.0, "{proxy} {half}");
}

#[test]
fn a_policy_that_thrashes_is_found_out_and_slowed_down() {
    // Whoever has the sequencer gives it to the other one.
    let text = "return { [1 - whoami] = mds[whoami]['all.meta_load'] }";
    let text = format!("if whoami > 1 then return {{}} end {text}");
    let policy = Arc::new(Policy::new("thrash", 1, &text).unwrap());
    let id = ResourceId::new(Kind::Sequencer, "ball").unwrap();
    let trace = trace(f64::INFINITY, 1990.0, vec![Change { at_s: 0.0, id, load: 1.0, rank: 0 }]);
    let simulated = simulate(&trace, &policy, &Settings::default(), 2).unwrap();
    assert!(simulated.back_and_forth >= 2, "{}", simulated.back_and_forth);
    assert!(simulated.moves < 20, "{} moves in 200 ticks", simulated.moves);
    let notes = || simulated.steps.iter().flat_map(|step| &step.notes);
    assert!(notes().any(|(_, note)| matches!(note, Note::BackAndForth { .. }) && note.is_warning()));
}

#[test]
fn many_ranks_and_many_subtrees_come_to_the_mean() {
    let simulated = run("adaptable", &trace(f64::INFINITY, 60.0, subtrees(20_000)), &many_moves(), 50);
    // A rank sends at most a thousand at a tick.
    assert!(simulated.steps.iter().all(|step| step.moves.len() <= 1000 * 50));
    let (first, last) = (simulated.steps[0].imbalance(), simulated.steps.last().unwrap().imbalance());
    assert!(last < first / 1.2, "{first} to {last}");
}

#[test]
fn simulations_are_bounded() {
    let policy = policy("adaptable");
    let long = trace(f64::INFINITY, 1e12, subtrees(1));
    assert!(simulate(&long, &policy, &Settings::default(), 10).unwrap_err().contains("limit"));
    assert!(simulate(&trace(1.0, 1.0, subtrees(1)), &policy, &Settings::default(), 0).is_err());
    assert!(simulate(&trace(1.0, 1.0, subtrees(1)), &policy, &Settings::default(), 100_000).is_err());
}
