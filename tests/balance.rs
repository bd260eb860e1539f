//! `nacre balance`: policies are put into force, gone back from, simulated and explained.

mod harness;

use std::time::{SystemTime, UNIX_EPOCH};

use harness::{Ended, Server, folder, program, run_with};
use serde_json::{Value, json};

/// Runs `nacre balance` on a store, again where the run of a policy was stopped for its time, as on a busy machine any may be.
#[track_caller]
fn balance(store: &str, words: &[&str], input: &str) -> Ended {
    let run = || {
        let mut command = program();
        command.args(["--store", store, "balance"]).args(words);
        run_with(command, input.as_bytes())
    };
    (0..20).map(|_| run()).find(|ended| !ended.stderr.contains("ran for more than 5s")).unwrap_or_else(run)
}

/// Starts a server without a metadata rank, which would publish its load.
fn server() -> Server {
    Server::start("mem:", &["--roles", "store"])
}

/// The paper's figure 8, with the `end` that it lacks there.
const FIGURE_8: &str = "-- Server load
load = server[i][\"req_rate\"]
-- When policy
if server[whoami][\"load\"]>.01 and
    server[whoami+1][\"load\"]<.01 then
-- Where policy
targets[whoami+1]=load/2
end
";

#[test]
fn policies_come_into_force_and_go() {
    let server = server();
    let run = |words: &[&str]| balance(&server.uri, words, "");
    assert!(run(&["ls"]).text().contains("greedy-spill-even"));
    assert!(run(&["show"]).text().contains("nothing is balanced"));
    run(&["show", "--text"]).failed(1, &["no policy is in force", "nacre balance set"]);
    run(&["rollback"]).failed(1, &["no earlier policy"]);
    run(&["set"]).failed(2, &["nacre balance ls"]);
    run(&["set", "gready"]).failed(2, &["no policy \"gready\" ships", "adaptable"]);
    run(&["set", "./nosuch.lua"]).failed(1, &["cannot read ./nosuch.lua"]);

    assert_eq!(run(&["set", "hash", "--tick", "5s", "--mode", "proxy"]).text(), "1");
    assert_eq!(balance(&server.uri, &["set", "-", "--name", "figure8"], FIGURE_8).text(), "2");
    assert_eq!(run(&["show", "--text"]).text(), FIGURE_8.trim_end());
    balance(&server.uri, &["set", "-", "--tick", "7s"], "return {")
        .failed(1, &["near", "nothing was changed"]);
    balance(&server.uri, &["set", "-"], "return { [9] = 1 }").failed(1, &["rank 9", "nothing was changed"]);
    let shown = run(&["show", "--json"]).json();
    assert_eq!((&shown["policy"], &shown["version"]), (&json!("figure8"), &json!(2)));
    assert_eq!((&shown["settings"]["tick_ms"], &shown["settings"]["mode"]), (&json!(5000), &json!("proxy")));
    assert_eq!(run(&["rollback"]).text(), "3");
    assert_eq!(run(&["show", "--json"]).json()["policy"], "hash");
    assert_eq!(run(&["off"]).text(), "4");
    assert_eq!(run(&["rollback", "2"]).text(), "5");
    run(&["rollback", "77"]).failed(1, &["no version 77", "nacre balance history"]);
    let history = run(&["history", "--json"]).json();
    let versions: Vec<&Value> =
        history.as_array().unwrap().iter().map(|past| &past["in_force"]["version"]).collect();
    // The settings of the first command are a change of their own.
    assert_eq!(versions, [0, 1, 2, 3, 4, 5].map(|version| json!(version)).iter().collect::<Vec<_>>());
    assert_eq!(run(&["history", "-n", "2"]).text().lines().count(), 3);
    // Everybody can see it.
    let log = server.run(["log"]).text();
    assert!(
        log.contains("policy \"figure8\" is in force as version 5") && log.contains("since version 4"),
        "{log}"
    );
}

#[test]
fn pins_and_masks_are_kept() {
    let folder = folder();
    let store = harness::file(&folder.path().join("store"));
    let run = |words: &[&str]| balance(&store, words, "");
    // What is pinned may come later.
    let pin = |resource: &str, rank: &str, shown: &str, noted: &str| {
        let ended = run(&["pin", resource, rank]);
        let text = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.code == 0 && text.contains(shown) && ended.stderr.contains(noted), "{ended:?}");
    };
    pin("sequencer:orders", "2", "sequencer:orders at rank 2", "pinned, but there is no such sequencer yet");
    run(&["mask", "sequencer:*", "1", "2"]).ok();
    run(&["mask", "subtree:/tmp", "0"]).ok();
    run(&["mask", "subtree:/tmp"]).ok();
    assert_eq!(
        run(&["set", "--moves", "2", "--selector", "locality", "--json"]).json()["settings"]["moves_per_tick"],
        2
    );
    let settings = run(&["show", "--json"]).json()["settings"].clone();
    assert_eq!(settings["pins"], json!([{ "resource": "sequencer:orders", "rank": 2 }]));
    assert_eq!(settings["masks"], json!([{ "resource": "sequencer:*", "ranks": [1, 2] }]));
    run(&["unpin", "sequencer:orders"]).ok();
    assert_eq!(run(&["show", "--json"]).json()["settings"]["pins"], json!([]));
    for (resource, part) in [("orders", "KIND:NAME"), ("lock:a", "kind of resource")] {
        let ended = run(&["pin", resource, "2"]);
        assert!(ended.code == 2 && ended.stderr.contains(part), "{ended:?}");
    }
    // A path is typed as it is, and printed with escapes, once.
    pin(
        "subtree:/a\nb\\",
        "1",
        "subtree:/a\\x0ab\\\\ at rank 1",
        "pinned, but there is no such directory yet",
    );
    let settings = run(&["show", "--json"]).json()["settings"].clone();
    assert_eq!(settings["pins"], json!([{ "resource": "subtree:/a\\x0ab\\\\", "rank": 1 }]));
    run(&["unpin", "subtree:/a\nb\\"]).ok();
    for (words, part) in [
        (&["pin", "subtree:home", "1"][..], "path from the root"),
        (&["mask", "subtree:home", "1"], "path from the root"),
        (&["pin", "group:1", "5000"], "it must be 0 to 1023"),
        (&["mask", "group:1", "0", "5000"], "it must be 0 to 1023"),
        (&["set", "--tick", "1ms"], "it must be 100ms to 600s"),
        (&["set", "--moves", "0"], "it must be 1 to 1000"),
    ] {
        let ended = run(words);
        assert!(ended.code == 2 && ended.stderr.contains(part), "{ended:?}");
    }
    assert_eq!(run(&["show", "--json"]).json()["settings"]["pins"], json!([]));
}

#[test]
fn a_pin_says_what_is_missing_of_its_resource() {
    let server = Server::in_memory();
    let noted = |resource: &str| {
        let ended = balance(&server.uri, &["pin", resource, "0"], "");
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.stderr
    };
    for (resource, part) in [
        ("sequencer:log", "no such sequencer yet"),
        ("sequencer:/jobs/log", "no such sequencer yet"),
        ("subtree:/jobs", "no such directory yet"),
        ("group:harbour", "no such location yet"),
    ] {
        let said = noted(resource);
        assert!(
            said.starts_with(&format!("nacre: {resource} is pinned, but")) && said.contains(part),
            "{said}"
        );
    }
    server.run(["sequencer", "create", "log"]).ok();
    server.run(["fs", "mkdir", "/jobs"]).ok();
    server.run(["sequencer", "create", "/jobs/log"]).ok();
    let mut command = program();
    command.args(["reflect", "move", "harbour", "--to", "5@192.0.2.1:7400", "--store", &server.uri]);
    run_with(command, b"").text();
    // A path is that of a subtree, and no name of a sequencer.
    let inode = server.run(["fs", "stat", "/jobs/log", "--json"]).json()[0]["inode"].as_u64().unwrap();
    let (said, object) = (noted("sequencer:/jobs/log"), format!("sequencer:nacre/fs/s/{inode:016x}"));
    assert!(said.contains(&object), "{said}");
    let said = noted("subtree:/jobs");
    assert!(said.contains("no subtree yet; \"nacre rank pin /jobs RANK\""), "{said}");
    server.run(["rank", "pin", "/jobs", "0"]).ok();
    for resource in ["sequencer:log", &object, "subtree:/jobs", "group:harbour"] {
        assert_eq!(noted(resource), "");
    }
}

#[test]
fn traces_are_simulated_without_a_store() {
    let trace = r#"{"trace": 1, "ranks": 3, "capacity": 10, "seconds": 200}
{"kind": "sequencer", "name": "seven", "load": 7}
{"kind": "sequencer", "name": "eight", "load": 8}
"#;
    let run = |words: &[&str], input: &str| balance("file:/nonexistent", words, input);
    let simulated = run(&["simulate", "-", "--policy", "conservative", "--json"], trace).json();
    let steps = simulated["steps"].as_array().unwrap();
    assert_eq!((&simulated["moves"], &simulated["settled_seconds"]), (&json!(1), &json!(130.0)));
    assert_eq!(steps.last().unwrap()["loads"], json!([8.0, 7.0, 0.0]));
    let moved = steps.iter().find(|step| !step["moves"].as_array().unwrap().is_empty()).unwrap();
    assert_eq!(
        (&moved["seconds"], &moved["moves"][0]["resource"]),
        (&json!(120.0), &json!("sequencer:seven"))
    );
    let folder = folder();
    let figure = folder.path().join("loads.svg");
    let words = ["simulate", "-", "--policy", "sequencer", "--figure", figure.to_str().unwrap()];
    let text = run(&words, trace).text();
    assert!(std::fs::read_to_string(&figure).unwrap().contains("rank 2"));
    assert!(text.contains("at 0 s: sequencer:seven (load 7.0) from rank 0 to rank 1"), "{text}");
    assert!(
        text.ends_with(
            "settled after 10 s; 1 move, 0 of them back and forth, 0 without gain; 0 failures of the policy"
        ),
        "{text}"
    );
    let many = r#"{"kind": "subtree", "name": "/%", "count": 1000, "load": 1}"#;
    let text = run(&["simulate", "-", "--ranks", "20", "--moves", "1000", "--tick", "30s"], many).text();
    assert!(text.contains("MEAN") && text.contains("further moves"), "{text}");
    run(&["simulate", "-"], "{\"king\": 1}").failed(1, &["line 1", "king"]);
    run(&["simulate", "./nosuch"], "").failed(1, &["cannot open ./nosuch"]);
    run(&["simulate", "-", "--ranks", "5000"], trace).failed(1, &["5000 ranks"]);
}

#[test]
fn the_next_tick_is_explained_by_what_ranks_have_published() {
    let server = server();
    let run = |words: &[&str]| balance(&server.uri, words, "");
    run(&["explain"]).failed(1, &["no policy is in force"]);
    // By a long tick, what is published is still fresh when a slow machine comes to it.
    run(&["set", "adaptable", "--tick", "600s"]).ok();
    run(&["explain"]).failed(1, &["no rank has published"]);
    // What ranks of daemons publish, from a program in their place: here none has a policy in force yet.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    for (rank, load) in [(0, 10.0), (1, 0.0)] {
        let resources = match rank {
            0 => json!([{ "id": "sequencer:a", "load": 6.0 }, { "id": "sequencer:b", "load": 4.0 }]),
            _ => json!([]),
        };
        let published = json!({
            "format": 1, "rank": rank, "at_ms": now, "policy": null,
            "metrics": { "all_load": load, "request_rate": load }, "resources": resources, "moves": [],
        });
        let key = format!("{rank:08}");
        server.run(["keys", "set", "nacre/balance/load", &key, &published.to_string()]).ok();
    }
    let text = run(&["explain"]).text();
    assert!(text.contains("rank 0: the policy sends a load of 5.0 to rank 1"), "{text}");
    assert!(text.contains("rank 0: it would move sequencer:b (load 4.0) from rank 0 to rank 1"), "{text}");
    assert!(text.contains("rank 1: it would move nothing"), "{text}");
    let explained = run(&["explain", "--policy", "fill-and-spill", "--json"]).json();
    assert_eq!(explained["ranks"][0]["moves"], json!([]));
    assert_eq!(
        (&explained["policy"], &explained["ranks"][0]["load"]),
        (&json!("fill-and-spill"), &json!(10.0))
    );
}
