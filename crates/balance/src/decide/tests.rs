use std::collections::BTreeMap;

use super::*;

const EVEN: &str = "
    local sum = 0
    for rank = 0, #mds do sum = sum + mds[rank]['all.meta_load'] end
    local targets = {}
    for rank = 0, #mds do targets[rank] = 0 end
    if whoami == 0 then targets[1] = mds[0]['all.meta_load'] - sum / (#mds + 1) end
    return targets";

fn policy(version: u64, text: &str) -> Arc<Policy> {
    Arc::new(Policy::new("test", version, text).unwrap())
}

fn resources(list: &[(&str, f64)]) -> Vec<Resource> {
    list.iter().map(|(id, load)| Resource { id: id.parse().unwrap(), load: *load }).collect()
}

fn metrics(loads: &[f64]) -> Vec<Metrics> {
    loads.iter().map(|load| Metrics { all_load: *load, own_load: *load, ..Metrics::default() }).collect()
}

struct Bench {
    balancer: Balancer,
    ledger: Ledger,
    settings: Settings,
    now: Duration,
}

impl Bench {
    fn new(text: &str) -> Self {
        let mut balancer = Balancer::new(0);
        balancer.install(policy(1, text));
        let now = Duration::from_secs(1000);
        Self { balancer, ledger: Ledger::default(), settings: Settings::default(), now }
    }

    fn tick(&mut self, loads: &[f64], list: &[(&str, f64)]) -> Decision {
        self.now += self.settings.tick();
        let (ranks, resources) = (metrics(loads), resources(list));
        let tick = Tick { now: self.now, ranks: &ranks, numbers: &[], resources: &resources };
        self.balancer.tick(&tick, &self.settings, &mut self.ledger)
    }
}

fn shown(decision: &Decision) -> Vec<String> {
    decision.moves.iter().map(|made| format!("{}>{}", made.id, made.to)).collect()
}

const LIST: [(&str, f64); 4] =
    [("sequencer:a", 4.0), ("sequencer:b", 3.0), ("subtree:/c", 2.0), ("group:7400", 1.0)];

#[test]
fn targets_become_moves_of_resources() {
    let mut bench = Bench::new(EVEN);
    bench.settings.mode = Mode::Proxy;
    let decision = bench.tick(&[10.0, 0.0], &LIST);
    assert_eq!(decision.targets, [0.0, 5.0]);
    assert_eq!(shown(&decision), ["sequencer:a>1", "group:7400>1"]);
    assert_eq!(decision.moves[0].mode, Mode::Proxy);
    assert!(decision.notes.is_empty(), "{:?}", decision.notes);
    // With half each there is nothing to do.
    assert!(bench.tick(&[5.0, 5.0], &LIST).moves.is_empty());
}

#[test]
fn a_tick_makes_no_more_moves_than_allowed() {
    let mut bench = Bench::new("return { [1] = 5, [2] = 5 }");
    bench.settings.moves_per_tick = 1;
    let decision = bench.tick(&[10.0, 0.0, 0.0], &LIST);
    assert_eq!(shown(&decision), ["sequencer:a>1"]);
    assert_eq!(decision.notes, [Note::Limit(1)]);
}

#[test]
fn what_belongs_to_another_rank_goes_there_whatever_is_pinned_masked_or_wanted() {
    let mut bench = Bench::new("return { [1] = 100, [2] = 0 }");
    bench.settings.masks = BTreeMap::from([("subtree:*".parse().unwrap(), vec![0])]);
    bench.settings.pins = BTreeMap::from([("subtree:/c".parse().unwrap(), 0)]);
    let strays = BTreeMap::from([("subtree:/c".parse().unwrap(), 2)]);
    bench.settings = bench.settings.with_strays(&strays);
    let decision = bench.tick(&[10.0, 0.0, 0.0], &LIST);
    assert_eq!(shown(&decision), ["subtree:/c>2", "sequencer:a>1", "sequencer:b>1", "group:7400>1"]);
    assert!(decision.moves[0].is_pin, "what it gains is not the question");
}

#[test]
fn masks_and_pins_go_before_the_policy() {
    let mut bench = Bench::new("return { [1] = 100, [2] = 100 }");
    bench.settings.masks =
        BTreeMap::from([("sequencer:*".parse().unwrap(), vec![2]), ("group:7400".parse().unwrap(), vec![0])]);
    bench.settings.pins =
        BTreeMap::from([("subtree:/c".parse().unwrap(), 2), ("sequencer:b".parse().unwrap(), 0)]);
    let decision = bench.tick(&[10.0, 0.0, 0.0], &LIST);
    assert_eq!(shown(&decision), ["subtree:/c>2", "sequencer:a>2"]);
    assert!(decision.moves[0].is_pin && !decision.moves[1].is_pin);
    assert!(decision.notes.contains(&Note::NothingFits { to: 1, amount: 100.0 }));
    // A pin to a rank that there is not is no reason to move.
    bench.settings.pins = BTreeMap::from([("subtree:/c".parse().unwrap(), 9)]);
    assert!(!shown(&bench.tick(&[10.0, 0.0, 0.0], &LIST)).iter().any(|text| text.starts_with("subtree")));
}

#[test]
fn pins_hold_without_any_policy() {
    let mut bench = Bench::new(EVEN);
    bench.balancer.remove();
    bench.settings.pins = BTreeMap::from([("subtree:/c".parse().unwrap(), 1)]);
    assert_eq!(shown(&bench.tick(&[10.0, 0.0], &LIST)), ["subtree:/c>1"]);
}

#[test]
fn a_new_policy_that_fails_gives_its_place_back() {
    let mut bench = Bench::new(EVEN);
    assert_eq!(bench.tick(&[10.0, 0.0], &LIST).moves.len(), 2);
    // It passes its trial, and fails with four ranks.
    bench.balancer.install(policy(2, "if #mds == 3 then error('four') end return {}"));
    let loads = [10.0, 0.0, 0.0, 0.0];
    let decision = bench.tick(&loads, &[("sequencer:x", 5.0)]);
    assert_eq!(shown(&decision), ["sequencer:x>1"]);
    let lines: Vec<String> =
        decision.notes.iter().filter(|note| note.is_warning()).map(Note::to_string).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("four") && lines[0].ends_with("\"test\" of version 1 stays in force"),
        "{}",
        lines[0]
    );
    assert_eq!(bench.balancer.in_force(), Some(("test".to_owned(), 1)));
    // A policy that has succeeded stays, and a tick at which it fails moves nothing.
    bench.balancer.install(policy(3, "if mds[0].queue_len == 1 then error('queue') end return {}"));
    bench.tick(&loads, &LIST);
    let mut ranks = metrics(&loads);
    ranks[0].queue_length = 1.0;
    let tick = Tick { now: bench.now, ranks: &ranks, numbers: &[], resources: &resources(&LIST) };
    let decision = bench.balancer.tick(&tick, &bench.settings, &mut bench.ledger);
    assert!(decision.moves.is_empty() && decision.notes.iter().any(Note::is_warning));
    assert_eq!(bench.balancer.in_force(), Some(("test".to_owned(), 3)));
}

#[test]
fn without_a_policy_before_it_nothing_is_balanced() {
    let mut bench = Bench::new("if #mds == 3 then error('four') end return {}");
    let decision = bench.tick(&[1.0, 0.0, 0.0, 0.0], &LIST);
    assert!(decision.notes[0].to_string().ends_with("nothing is balanced"), "{}", decision.notes[0]);
    assert!(bench.tick(&[1.0, 0.0, 0.0, 0.0], &LIST).notes.is_empty(), "one line, not one at every tick");
}

#[test]
fn a_resource_whose_moves_gain_nothing_rests() {
    let mut bench = Bench::new("return { [1] = 4 }");
    let list = [("sequencer:a", 4.0)];
    assert_eq!(shown(&bench.tick(&[4.0, 0.0], &list)), ["sequencer:a>1"]);
    // It is back, though nobody knows why, and all the load is at one rank as before.
    bench.tick(&[4.0, 0.0], &[]);
    let decision = bench.tick(&[0.0, 4.0], &list);
    assert!(decision.notes.iter().any(|note| matches!(note, Note::NoGain { .. })), "{:?}", decision.notes);
    assert!(decision.notes.iter().any(|note| matches!(note, Note::Rests { .. })), "{:?}", decision.notes);
    assert!(decision.moves.is_empty());
    bench.now += Duration::from_secs(3600);
    assert_eq!(bench.tick(&[4.0, 0.0], &list).moves.len(), 1);
}

#[test]
fn what_a_policys_own_function_is_offered_is_bounded_and_takes_turns() {
    let text = "
        function howmuch(resources)
          local chosen = {}
          for k, resource in ipairs(resources) do if resource.name == '/wanted' then chosen[1] = k end end
          return chosen
        end
        function where() targets[1] = 1 end";
    let mut bench = Bench::new(text);
    let names: Vec<String> = (0..2 * OFFERED_MAX).map(|number| format!("subtree:/{number}")).collect();
    let mut list: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 2.0)).collect();
    list.push(("subtree:/wanted", 1.0));
    let found = (0..8).any(|_| shown(&bench.tick(&[10.0, 0.0], &list)) == ["subtree:/wanted>1"]);
    assert!(found, "it is the smallest, and gets its turn");
}

#[test]
fn ranks_that_are_gone_leave_gaps_in_the_numbers_and_none_for_policies() {
    let mut balancer = Balancer::new(4);
    balancer.install(policy(
        1,
        "if #mds == 1 and whoami ~= 1 then error('whoami') end
         local targets = { [0] = 0 }
         if whoami == 1 then targets[0] = 5 end
         return targets",
    ));
    let (ranks, resources) = (metrics(&[0.0, 10.0]), resources(&LIST));
    let tick =
        Tick { now: Duration::from_secs(1000), ranks: &ranks, numbers: &[2, 4], resources: &resources };
    let mut settings = Settings {
        pins: BTreeMap::from([("subtree:/c".parse().unwrap(), 3), ("group:7400".parse().unwrap(), 2)]),
        ..Settings::default()
    };
    let decision = balancer.tick(&tick, &settings, &mut Ledger::default());
    assert_eq!(decision.targets, [0.0, 0.0, 5.0, 0.0, 0.0]);
    assert_eq!(shown(&decision), ["group:7400>2", "sequencer:a>2"], "{:?}", decision.notes);
    // Masks have the numbers as well.
    settings.masks = BTreeMap::from([("sequencer:*".parse().unwrap(), vec![0])]);
    let decision = balancer.tick(&tick, &settings, &mut Ledger::default());
    assert_eq!(shown(&decision), ["group:7400>2"]);
}

#[test]
fn a_pinned_resource_whose_move_failed_is_not_tried_at_every_tick() {
    let mut bench = Bench::new(EVEN);
    bench.balancer.remove();
    bench.settings.pins = BTreeMap::from([("group:7400".parse().unwrap(), 1)]);
    assert_eq!(shown(&bench.tick(&[10.0, 0.0], &LIST)), ["group:7400>1"]);
    bench.ledger.failed(&"group:7400".parse().unwrap(), bench.now, bench.settings.tick());
    assert!(bench.tick(&[10.0, 0.0], &LIST).moves.is_empty());
    bench.now += Duration::from_secs(3600);
    assert_eq!(bench.tick(&[10.0, 0.0], &LIST).moves.len(), 1);
}
