use super::*;

/// The policy of the paper's figure 8, with the `end` that it lacks there.
const FIGURE_8: &str = r#"-- Server load
load = server[i]["req_rate"]
-- When policy
if server[whoami]["load"]>.01 and
    server[whoami+1]["load"]<.01 then
-- Where policy
targets[whoami+1]=load/2
end"#;

/// A policy in the manner of those for present versions of Ceph: targets by rank, and the last rank is asked for.
const CEPH: &str = r#"
local metrics = {"auth.meta_load", "all.meta_load", "req_rate", "queue_len", "cpu_load_avg"}
local function measure()
  for rank, mds in pairs(mds) do
    local text = "MDS" .. rank .. ":"
    for _, metric in ipairs(metrics) do text = text .. " " .. metric .. "=" .. mds[metric] end
    mds.load = mds["all.meta_load"]
    BAL_LOG(5, text .. " load=" .. mds.load)
  end
end
local targets = {}
for rank in pairs(mds) do targets[rank] = 0 end
measure()
if mds[whoami + 1] and mds[whoami]["load"] > 0.01 and mds[whoami + 1]["load"] < 0.01 then
  targets[whoami + 1] = mds[whoami]["load"] / 2
end
return targets
"#;

/// A policy in the manner of those for older versions: `#mds` is the last rank, the first target is that of rank 0, and the
/// rank after the last one is looked at.
const OLDER_CEPH: &str = r#"
function measure()
  for i = 0, #mds do mds[i]["load"] = mds[i]["all.meta_load"] end
end
function when()
  my_load = mds[whoami]["load"]
  his_load = mds[whoami+1]["load"]
  BAL_LOG(2, "my_load=" .. my_load .. " hisload=" .. his_load)
  return my_load > 0.01 and his_load < 0.01
end
function where()
  targets = {}
  for i = 1, #mds + 1 do targets[i] = 0 end
  targets[whoami + 2] = mds[whoami]["load"] / 2
  return targets
end
measure()
if when() then return where() end
targets = {}
for i = 1, #mds + 1 do targets[i] = 0 end
return targets
"#;

fn ranks(loads: &[f64]) -> Vec<Metrics> {
    loads
        .iter()
        .map(|load| Metrics { request_rate: *load, all_load: *load, own_load: *load, ..Metrics::default() })
        .collect()
}

fn view<'a>(whoami: usize, ranks: &'a [Metrics], state: Option<&'a Bytes>) -> View<'a> {
    View { whoami, ranks, now: Duration::from_secs(1000), tick: Duration::from_secs(10), state }
}

fn targets(text: &str, loads: &[f64]) -> Vec<Vec<f64>> {
    let policy = Policy::new("test", 1, text).unwrap();
    let ranks = ranks(loads);
    (0..loads.len()).map(|whoami| policy.run(&view(whoami, &ranks, None), None).unwrap().targets).collect()
}

fn refused(text: &str) -> String {
    let error = Policy::new("test", 7, text).unwrap_err();
    assert_eq!((error.name.as_str(), error.version), ("test", 7));
    let sentence = error.to_string();
    assert!(!sentence.contains('\n'), "{sentence}");
    sentence
}

#[test]
fn the_papers_policy_runs_as_printed() {
    assert_eq!(targets(FIGURE_8, &[10.0, 0.0, 0.0]), [[0.0, 5.0, 0.0], [0.0; 3], [0.0; 3]]);
    assert_eq!(targets(FIGURE_8, &[1.0, 1.0, 8.0]), [[0.0; 3]; 3], "the last rank has no next one");
    assert_eq!(targets(FIGURE_8, &[3.0]), [[0.0]]);
}

#[test]
fn the_papers_callbacks_run_as_functions() {
    let text = "
        function load(i) return server[i]['queue_len'] + server[i]['req_rate'] end
        function when() return server[whoami]['load'] > 1 end
        function where() targets[whoami + 1] = server[whoami]['load'] / 2 end";
    assert_eq!(targets(text, &[10.0, 4.0]), [[0.0, 5.0], [0.0, 0.0]]);
    // A table that `where` returns is as good, and without `when` it always runs.
    assert_eq!(targets("function where() return { [1] = 2 } end", &[1.0, 1.0]), [[0.0, 2.0], [0.0, 2.0]]);
}

#[test]
fn looking_at_a_load_changes_nothing_else() {
    // A load is worked out while `where` runs, which may use `i` too.
    let text = "
        function load(rank) return rank end
        function where() i = 7 targets[1] = server[2]['load'] + i end";
    assert_eq!(targets(text, &[1.0; 3])[0], [0.0, 9.0, 0.0]);
    // One that fails and is caught leaves the others as they are.
    let text = "
        function load(rank) if rank == 2 then error('two') end return 5 end
        function where()
          local ok, reason = pcall(function() return server[2]['load'] end)
          if not ok then targets[1] = server[1]['load'] end
        end";
    assert_eq!(targets(text, &[1.0; 3])[0], [0.0, 5.0, 0.0]);
}

#[test]
fn policies_for_ceph_run_unchanged() {
    for text in [CEPH, OLDER_CEPH] {
        assert_eq!(targets(text, &[10.0, 0.0, 0.0]), [[0.0, 5.0, 0.0], [0.0; 3], [0.0; 3]], "{text}");
        assert_eq!(targets(text, &[10.0, 6.0, 0.0]), [[0.0; 3], [0.0, 0.0, 3.0], [0.0; 3]], "{text}");
        assert_eq!(targets(text, &[0.0, 0.0, 7.0]), [[0.0; 3]; 3], "{text}");
        assert_eq!(targets(text, &[7.0]), [[0.0]], "{text}");
    }
}

#[test]
fn what_a_policy_logs_comes_with_its_level() {
    let policy = Policy::new("test", 1, "BAL_LOG(3, 'a', 1, nil) return {}").unwrap();
    let ranks = ranks(&[1.0, 2.0]);
    assert_eq!(policy.run(&view(0, &ranks, None), None).unwrap().log, ["3 a 1 nil"]);
    let policy = Policy::new("test", 1, "function where() BAL_LOG(0, 'once') end").unwrap();
    assert_eq!(policy.run(&view(1, &ranks, None), None).unwrap().log, ["0 once"]);
}

#[test]
fn state_is_kept_on_request_and_bounded() {
    let policy =
        Policy::new("test", 1, "local n = (RDstate() or 0) + 1 WRstate(n) return { [0] = n }").unwrap();
    let ranks = ranks(&[1.0, 2.0]);
    let first = policy.run(&view(1, &ranks, None), None).unwrap();
    let second = policy.run(&view(1, &ranks, first.state.as_ref()), None).unwrap();
    assert_eq!((first.targets[0], second.targets[0]), (1.0, 2.0));
    // A policy in the paper's form is run several times for one decision, and its state counts one of them.
    let chunk =
        Policy::new("test", 1, "load = 1 local n = (RDstate() or 0) + 1 WRstate(n) targets[0] = n").unwrap();
    let first = chunk.run(&view(1, &ranks, None), None).unwrap();
    let second = chunk.run(&view(1, &ranks, first.state.as_ref()), None).unwrap();
    assert_eq!(second.targets[0], 2.0);
    let cleared = Policy::new("test", 1, "WRstate(nil) return {}").unwrap();
    let state = cleared.run(&view(1, &ranks, first.state.as_ref()), None).unwrap().state;
    assert_eq!(policy.run(&view(1, &ranks, state.as_ref()), None).unwrap().targets[0], 1.0);
    assert!(refused("WRstate(string.rep('x', 5000)) return {}").contains("4096"));
    assert_eq!(
        Policy::new("test", 1, "return {}").unwrap().run(&view(0, &ranks, None), None).unwrap().state,
        None
    );
}

#[test]
fn each_failure_is_one_clear_line() {
    for (text, part) in [
        ("return 1 +", "near"),
        ("this is no Lua", "near"),
        ("local x <const> = 1 return {}", "line 1"),
        ("return mds[whoami]['load'].x.y", "index"),
        ("while true do end return {}", "ran for more than"),
        ("return { [0] = 0/0 }", "finite"),
        ("return { [0] = 1/0 }", "finite"),
        ("return { [0] = -1 }", "negative"),
        ("return { [0] = 'much' }", "a string, not a number"),
        ("return { x = 1 }", "not the number of a rank"),
        ("return { [1.5] = 1 }", "not the number of a rank"),
        ("return { [3] = 1 }", "rank 3, and the last rank is 2"),
        ("return { 1, 2, 3, 4 }", "the last rank is 2"),
        ("return { [-1] = 1 }", "rank -1"),
        ("return 5", "a number, not a table"),
        ("targets = 5", "targets is a number"),
        ("load = 'x' targets[1] = 1", "load of rank 0 is a string"),
        ("error('my own\\nwords') return {}", "my own; words"),
        ("objclass.read(0, 1) return {}", "object"),
        ("howmuch = 'most' return {}", "most"),
        ("x = 1", "neither"),
        ("return {} end while true do end function f()", "ran for more than"),
        ("local t = {} for i = 1, 1e9 do t[i] = {} end return {}", "failed"),
    ] {
        let sentence = refused(text);
        assert!(sentence.starts_with("policy \"test\" of version 7 failed: "), "{sentence}");
        assert!(sentence.contains(part), "{text}: {sentence}");
    }
    assert!(refused(&format!("--{}\nreturn {{}}", "x".repeat(POLICY_BYTES_MAX))).contains("limit"));
    assert!(Policy::new("no/slash", 1, "return {}").is_err());
}

#[test]
fn lines_keep_their_numbers() {
    assert!(refused("local a = 1\nlocal b = nil\nreturn b.c").contains(":3:"));
}

#[test]
fn the_paper_ignores_a_rank_beyond_the_last_one() {
    assert_eq!(targets("targets[whoami + 1] = 1", &[1.0, 1.0]), [[0.0, 1.0], [0.0, 0.0]]);
    assert_eq!(targets("targets[whoami - 1] = 1", &[1.0, 1.0]), [[0.0, 0.0], [1.0, 0.0]]);
}

#[test]
fn a_policy_sees_all_metrics_the_time_and_those_that_are_plugged_in() {
    let mut metrics = ranks(&[3.0, 0.0]);
    metrics[0].kinds = [1.0, 2.0, 0.5];
    metrics[0].further.insert("sessions".to_owned(), 4.0);
    let text = "
        local me = mds[0]
        return { [1] = me['load.subtree'] + 10 * me['load.sequencer'] + 100 * me['load.group'] + 1000 * (me.sessions or 0)
            + 10000 * (mds[1].sessions or 0) + now + tick }";
    let policy = Policy::new("test", 1, text).unwrap();
    let evaluated = policy.run(&view(0, &metrics, None), None).unwrap();
    assert_eq!(evaluated.targets[1], 1.0 + 20.0 + 50.0 + 4000.0 + 1000.0 + 10.0);
}

#[test]
fn a_policys_own_function_chooses_resources() {
    let text = "
        function howmuch(resources, amount, rank)
          local chosen = {}
          for k, resource in ipairs(resources) do
            if resource.kind == 'group' and resource.load <= amount and rank == 1 then chosen[#chosen + 1] = k end
          end
          return chosen
        end
        function where() targets[1], targets[2] = 5, 5 end";
    let policy = Policy::new("test", 1, text).unwrap();
    let ranks = ranks(&[9.0, 0.0, 0.0]);
    let resources =
        ["group:1", "sequencer:a", "group:2"].map(|id| Resource { id: id.parse().unwrap(), load: 3.0 });
    let resources: Vec<&Resource> = resources.iter().collect();
    let first = policy.run(&view(0, &ranks, None), None).unwrap();
    assert_eq!((first.choice, first.chosen.len()), (Choice::Own, 0));
    let evaluated = policy.run(&view(0, &ranks, None), Some(&resources[..])).unwrap();
    assert_eq!(evaluated.chosen, [(1, vec![0, 2])]);
    let twice =
        Policy::new("test", 1, "function howmuch() return { 1, 1 } end function where() targets[1] = 1 end")
            .unwrap();
    let error = twice.run(&view(0, &ranks, None), Some(&resources[..])).unwrap_err();
    assert!(error.reason.contains("twice"), "{error}");
    let named = Policy::new("test", 1, "howmuch = 'fewest' return {}").unwrap();
    assert_eq!(named.run(&view(0, &ranks, None), None).unwrap().choice, Choice::Named(Selector::Fewest));
}

#[test]
fn one_run_does_not_see_what_another_left() {
    let policy =
        Policy::new("test", 1, "count = (count or 0) + 1 mds[0].load = 99 return { [0] = count }").unwrap();
    let ranks = ranks(&[1.0, 1.0]);
    for _ in 0..3 {
        assert_eq!(policy.run(&view(0, &ranks, None), None).unwrap().targets[0], 1.0);
    }
}

/// Runs a policy for all ranks together, and checks that each gets what it gets alone.
fn together(text: &str, loads: &[f64], offered: Option<&[&Resource]>) -> Vec<Evaluated> {
    let (policy, ranks) = (Policy::new("test", 1, text).unwrap(), ranks(loads));
    let state = Bytes::from(packed::pack(&[json!(7)]).unwrap());
    let of_rank = |whoami: usize| (whoami % 2 == 1).then_some(&state);
    let seats: Vec<Seat<'_>> =
        (0..loads.len()).map(|whoami| Seat { whoami, state: of_rank(whoami), offered }).collect();
    let found = policy.run_all(&view(0, &ranks, None), &seats, &|| false);
    assert_eq!(found.len(), loads.len(), "{text}");
    for (whoami, found) in found.iter().enumerate() {
        let alone = policy.run(&view(whoami, &ranks, of_rank(whoami)), offered);
        let alone = alone.map(|alone| Evaluated { instructions: 0, ..alone });
        let found = found.clone().map(|found| Evaluated { instructions: 0, ..found });
        assert_eq!(found, alone, "rank {whoami}: {text}");
    }
    found.into_iter().filter_map(Result::ok).collect()
}

#[test]
fn ranks_that_are_decided_for_together_do_not_see_each_other() {
    for text in [
        FIGURE_8,
        CEPH,
        OLDER_CEPH,
        // What one leaves in variables, metrics, lists of ranks or state is not there for the next.
        "count = (count or 0) + 1 WRstate((RDstate() or 0) + count) return { [0] = count + (RDstate() or 0) }",
        "mds[0].load = mds[0].load + 9 mds[0].mine = (mds[0].mine or 0) + 1 return { [0] = mds[0].load + mds[0].mine }",
        "mds[0]['all.meta_load'] = mds[0]['all.meta_load'] + 1 return { [1] = mds[0]['all.meta_load'] }",
        "local n = #mds mds[#mds] = nil server[0] = nil return { [0] = n }",
        "local sum = 0 mds[1].extra = 5 for _, value in pairs(mds[1]) do sum = sum + value end return { [0] = sum }",
        "BAL_LOG(1, 'rank', whoami) mds = nil pairs = nil return { [0] = whoami }",
        "function load(i) return server[i].req_rate + whoami end function where() targets[0] = server[1].load end",
        // What counts as a load is asked for where it is looked at, also by what has looked at all metrics before.
        "function load(i) if i == 2 then error('two') end return i end function where() targets[1] = server[1].load end",
        "for _ in pairs(server[0]) do end function load() return 2 end function where() targets[1] = server[0].load end",
        "mds[0].load = 9 function load() return 2 end function where() targets[1] = server[0].load end",
        "mds[0].load = 9 function where() targets[1] = server[0].load end",
        "function load(i) return i end function where() for _, v in pairs(server[1]) do targets[1] = (targets[1] or 0) + v end end",
        // Those that fail say so themselves.
        "if whoami == 1 and #mds > 2 then error('one') end return { [0] = 1 }",
    ] {
        assert!(together(text, &[10.0, 0.0, 3.0, 0.5], None).len() >= 3, "{text}");
    }
}

#[test]
fn a_policy_that_exceeds_its_bounds_for_several_ranks_runs_for_each_alone() {
    let text = "local n = 0 for i = 1, 5000000 do n = n + i end return { [0] = whoami }";
    let bounds = Bounds { wall: Duration::from_secs(60), ..BOUNDS };
    let policy = Policy::with_bounds("test", 1, text, bounds).unwrap();
    let ranks = ranks(&[1.0; 4]);
    let seats: Vec<Seat<'_>> = (0..4).map(|whoami| Seat { whoami, state: None, offered: None }).collect();
    let found = policy.run_all(&view(0, &ranks, None), &seats, &|| false);
    let targets: Vec<f64> = found.into_iter().map(|found| found.unwrap().targets[0]).collect();
    assert_eq!(targets, [0.0, 1.0, 2.0, 3.0]);
    assert!(policy.run_all(&view(0, &ranks, None), &seats, &|| true).is_empty());
}

#[test]
fn a_policy_may_say_of_each_resource_where_it_belongs() {
    let text = "
        function when() return whoami ~= 3 end
        function home(resource)
          if resource.kind == 'sequencer' then return nil end
          return tonumber(resource.name)
        end";
    let resources = ["group:2", "sequencer:a", "group:0", "group:2"]
        .map(|id| Resource { id: id.parse().unwrap(), load: 3.0 });
    let resources: Vec<&Resource> = resources.iter().collect();
    let found = together(text, &[9.0, 0.0, 0.0, 1.0], Some(&resources[..]));
    let (first, third) = ((0, vec![2]), (2, vec![0, 3]));
    for (found, targets, chosen) in [
        (&found[0], [0.0, 0.0, 6.0, 0.0], vec![third.clone()]),
        (&found[1], [3.0, 0.0, 6.0, 0.0], vec![first.clone(), third]),
        (&found[2], [3.0, 0.0, 0.0, 0.0], vec![first]),
        // It wants nothing moved.
        (&found[3], [0.0; 4], Vec::new()),
    ] {
        assert_eq!((found.choice, &found.targets[..], &found.chosen), (Choice::Home, &targets[..], &chosen));
    }
    assert!(refused("function home() return 3 end").contains("home returned 3"));
    assert!(refused("function home() return 'x' end").contains("home returned x"));
}

#[test]
fn each_metric_comes_under_its_name() {
    let mut metrics = ranks(&[0.0, 0.0]);
    metrics[1] = Metrics {
        request_rate: 1.0,
        queue_length: 2.0,
        processor: 3.0,
        processor_now: 4.0,
        memory_bytes: 5.0,
        own_load: 6.0,
        all_load: 7.0,
        kinds: [8.0, 9.0, 10.0],
        resources: 11.0,
        further: BTreeMap::from([("members".to_owned(), 12.0), ("sessions".to_owned(), 13.0)]),
    };
    for (name, value) in NAMES.into_iter().chain(["members", "sessions"]).zip(1u32..) {
        let policy = Policy::new("test", 1, &format!("return {{ [0] = mds[1]['{name}'] or 0 }}")).unwrap();
        let evaluated = policy.run(&view(0, &metrics, None), None).unwrap();
        assert_eq!(evaluated.targets[0], f64::from(value), "{name}");
    }
}

#[test]
fn a_policy_that_a_slow_machine_does_not_load_in_time_is_late() {
    let bounds = Bounds { wall: Duration::from_millis(10), instructions: 1_000_000_000, ..BOUNDS };
    let text = "return {} end while true do end local function never()";
    let error = Policy::with_bounds("slow", 1, text, bounds).unwrap_err();
    assert!(error.is_late, "{error}");
    assert!(!Policy::new("wrong", 1, "return {").unwrap_err().is_late);
}
