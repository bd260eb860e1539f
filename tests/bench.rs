//! `nacre bench`: the command line is handed over to `nacre-bench`, which measures this very program.

mod harness;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Ended, Server, program, run_with, tree};
use serde_json::Value;

fn run(command: Command) -> Ended {
    run_with(command, b"")
}

/// Returns a copy of the program in a folder, where nothing is beside it.
fn alone(folder: &Path) -> PathBuf {
    let copy = folder.join("nacre");
    // A name more, where that is possible: the program is large.
    let linked = fs::hard_link(env!("CARGO_BIN_EXE_nacre"), &copy);
    linked.or_else(|_| fs::copy(env!("CARGO_BIN_EXE_nacre"), &copy).map(drop)).unwrap();
    copy
}

/// Puts a program in place of `nacre-bench` that tells what it was given.
fn tell_tale(folder: &Path) {
    let script = "#!/bin/sh\necho \"$NACRE_PROGRAM|$0|$*\"\ncat\nexit 7\n";
    let file = folder.join("nacre-bench");
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Measures again, a few times, where a busy machine stood still for all of a short window.
fn until_measured<T>(measure: impl Fn() -> T, is_measured: impl Fn(&T) -> bool) -> T {
    (0..4).map(|_| measure()).find(|measured| is_measured(measured)).unwrap_or_else(&measure)
}

/// Returns whether a number of a report is more than zero.
fn is_positive(number: &Value) -> bool {
    number.as_f64().is_some_and(|number| number > 0.0)
}

/// Returns whether positions of every sequencer were counted in the window of every series.
fn all_counted(report: &Value) -> bool {
    let measured = report["series"].as_array().unwrap().iter().map(|series| &series["repetitions"][0]);
    let mut sequencers = measured.flat_map(|measured| measured["sequencers"].as_array().unwrap());
    sequencers.all(|sequencer| sequencer["bins"].as_array().unwrap().iter().any(is_positive))
}

/// Returns the command `nacre bench …` of these tests' program and the `nacre-bench` beside it.
fn study(words: &[&str]) -> Command {
    let mut command = program();
    let beside = Path::new(command.get_program()).with_file_name("nacre-bench");
    let advice = "build it with: cargo build --package nacre-bench";
    assert!(beside.is_file(), "{} is missing; {advice}", beside.display());
    command.arg("bench").args(words);
    command
}

#[test]
fn the_line_is_handed_over_to_the_program_beside_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let nacre = alone(folder.path());
    tell_tale(folder.path());
    let mut command = Command::new(&nacre);
    command.args(["--store", "mem:", "bench", "--json", "rmw", "--clients", "2", "--help", "--", "x y"]);
    let ended = run_with(command, b"from standard input");
    let bench = folder.path().join("nacre-bench");
    let words = "--store mem: --json rmw --clients 2 --help -- x y";
    let expected = format!("{}|{}|{words}\nfrom standard input", nacre.display(), bench.display());
    assert_eq!((ended.code, ended.stderr.as_str()), (7, ""), "the exit code is that of the study");
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), expected);
}

#[test]
fn otherwise_it_is_found_in_path_and_missed_in_one_sentence() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let nacre = alone(folder.path());
    tell_tale(elsewhere.path());
    let path = format!("{}:/usr/bin:/bin", elsewhere.path().display());
    let found = |path: &str| {
        let mut command = Command::new(&nacre);
        command.args(["bench", "walk"]).env("PATH", path);
        run(command)
    };
    let ended = found(&path);
    assert!(String::from_utf8_lossy(&ended.stdout).ends_with("/nacre-bench|walk\n"), "{ended:?}");
    assert_eq!(ended.code, 7);
    found("/nonexistent").failed(127, &["nacre-bench", &nacre.display().to_string(), "make install"]);
}

#[test]
fn a_study_runs_on_the_program_that_started_it() {
    let study = |words: &[&str]| {
        let mut command = study(&[&["rmw"], words].concat());
        // The environment does not choose the store of a study.
        command.env("NACRE_STORE", "nacre://127.0.0.1:1");
        run(command)
    };
    let brief = ["--system", "optimistic,none", "--warm-up", "50ms", "--window", "200ms", "--repeat", "1"];
    let blocks = ["--servers", "2", "--clients", "2", "--concurrency", "4", "--blocks", "8", "--no-pacing"];
    let report = until_measured(
        || study(&[&brief[..], &blocks, &["--json"]].concat()).json(),
        |report| is_positive(&report["series"][0]["repetitions"][0]["updates"]),
    );
    let optimistic = &report["series"][0];
    assert_eq!(optimistic["point"]["system"], "optimistic");
    assert!(optimistic["repetitions"][0]["updates"].as_u64().unwrap() > 0);
    // On a server of its own, as a table.
    let server = Server::in_memory();
    let words = ["--system", "optimistic", "--store", &server.uri];
    let table = study(&[&words[..], &brief[2..]].concat()).text();
    assert!(table.contains("none lost"), "{table}");
    study(&["--clients", "0"]).failed(2, &["at least 1"]);
    let help = String::from_utf8(run(self::study(&["--help"])).stdout).unwrap();
    assert!(
        ["Usage: nacre bench", "rmw", "locks", "failover", "namespace", "walk", "trees", "balance"]
            .iter()
            .all(|word| help.contains(word))
    );
}

#[test]
fn copies_and_removals_are_measured_beside_other_programs() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    let words = ["trees", "--json", "--files", "200", "--chain-depth", "300", "--repeat", "2", "--at", at];
    let report = run(study(&words)).json();
    assert_eq!((&report["files"], &report["directories"]), (&Value::from(200), &Value::from(14)));
    let mut measured = Vec::new();
    for series in report["series"].as_array().unwrap() {
        assert_eq!(series["repetitions"].as_array().unwrap().len(), 2, "{series}");
        assert!(series["wall_ms"]["min"].as_f64().unwrap() > 0.0, "{series}");
        let words = ["task", "program"].map(|word| series[word].as_str().unwrap());
        measured.push(words.join(": "));
    }
    for expected in [
        "copy: nacre",
        "copy: cp -a",
        "copy: rsync -a",
        "copy-again: nacre",
        "copy-again: rsync -a",
        "copy-again: rsync -aX",
        "compare: nacre",
        "compare: diff -r",
        "remove: nacre",
        "remove: rm -rf",
        "sweep: nacre",
        "sweep-to-database: nacre",
        "copy-chain: nacre",
    ] {
        assert!(measured.iter().any(|found| found == expected), "{expected}: {measured:?}");
    }
    assert_eq!(report["targets"].as_array().unwrap().len(), 6);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the trees are removed");
}

#[test]
fn positions_are_measured_beside_peers_and_over_a_killed_rank() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let report = until_measured(
        || run(study(&["sequencer", "--quick", "--json", "--out", out])).json(),
        |report| {
            let mut series = report["series"].as_array().unwrap().iter();
            series.all(|series| is_positive(&series["repetitions"][0]["per_second"]))
                && is_positive(&report["fail_overs"][0]["after_per_second"])
        },
    );
    let series = report["series"].as_array().unwrap();
    let labels: Vec<&str> = series.iter().map(|series| series["point"]["label"].as_str().unwrap()).collect();
    for label in
        ["1C, cached", "2C, hold 10 ms", "2C, quota 1000", "2C, round trip", "Redis INCR, 64", "etcd put, 64"]
    {
        assert!(labels.iter().any(|found| found.starts_with(label)), "{label}: {labels:?}");
    }
    for series in series {
        assert!(series["repetitions"][0]["per_second"].as_f64().unwrap() > 0.0, "{series}");
    }
    let failed_over = &report["fail_overs"][0];
    assert!(failed_over["all_ms"].as_f64() >= failed_over["first_ms"].as_f64(), "{failed_over}");
    // A standby waits for the time to take over before it does.
    assert!(failed_over["first_ms"].as_f64().unwrap() > 300.0, "{failed_over}");
    assert!(failed_over["after_per_second"].as_f64().unwrap() > 0.0, "{failed_over}");
    let throughput = fs::read_to_string(folder.path().join("throughput.svg")).unwrap();
    assert!(throughput.contains("2C, best effort"), "{throughput}");
}

/// Runs a study, and returns what it prints and its results. Servers may complain of what is done to them.
fn measured(words: &[&str], folder: &Path) -> (String, Value) {
    let results = folder.join("results.json");
    let mut command = study(words);
    command.arg("--out").arg(folder).arg("--results").arg(&results);
    let ended = run(command);
    assert_eq!(ended.code, 0, "{ended:?}");
    let report = serde_json::from_slice(&fs::read(&results).unwrap()).unwrap();
    (String::from_utf8(ended.stdout).unwrap(), report)
}

#[test]
fn a_rank_that_is_gone_costs_a_pause_and_every_position_is_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let words =
        ["failover", "--quick", "--event", "kill,hand-over,partition", "--before", "700ms", "--after", "2s"];
    let (text, report) = until_measured(
        || measured(&words, folder.path()),
        |(_, report)| {
            let mut series = report["series"].as_array().unwrap().iter();
            all_counted(report)
                && series.all(|series| is_positive(&series["repetitions"][0]["before_per_second"]))
        },
    );
    let series = report["series"].as_array().unwrap();
    let labels: Vec<&str> = series.iter().map(|series| series["point"]["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["kill", "hand-over", "partition", "etcd, kill of the leader"], "{text}");
    for series in series {
        let measured = &series["repetitions"][0];
        let sequencers = measured["sequencers"].as_array().unwrap();
        assert_eq!(sequencers.len() as u64, series["point"]["sequencers"].as_u64().unwrap());
        assert!(measured["before_per_second"].as_f64().unwrap() > 0.0, "{measured}");
        for sequencer in sequencers {
            let of = |name: &str| sequencer[name].as_u64().unwrap();
            let bins = sequencer["bins"].as_array().unwrap();
            let counted: u64 = bins.iter().map(|count| count.as_u64().unwrap()).sum();
            // The last position of a client may come after the window.
            assert!(of("positions") >= counted && counted > 0, "{sequencer}");
            assert!(of("gaps") <= of("lost"), "{sequencer}");
            let pauses = sequencer["pauses"].as_array().unwrap();
            assert_eq!(pauses.len() as u64, series["point"]["clients"].as_u64().unwrap());
            for pause in pauses {
                assert!(
                    pause["ms"].as_f64().unwrap() <= measured["pause_ms"].as_f64().unwrap(),
                    "{measured}"
                );
            }
        }
    }
    // A standby waits for the time to take over before it does.
    assert!(series[0]["repetitions"][0]["pause_ms"].as_f64().unwrap() > 300.0, "{text}");
    for name in ["throughput-kill", "close-up-hand-over", "throughput-etcd-kill-of-the-leader", "pauses"] {
        let svg = fs::read_to_string(folder.path().join(format!("{name}.svg"))).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("</svg>"), "{name}");
    }
    run(study(&["failover", "--before", "2h"])).failed(2, &["at most an hour"]);
}

#[test]
fn a_sequencer_is_moved_off_an_overloaded_rank_and_every_position_is_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["balance", "--quick", "--clients", "2,3", "--before", "500ms"];
    let by_hand = [&words[..], &["--after", "1500ms", "--system", "alone,none,client,proxy-half"]].concat();
    // A move that takes longer than the window, on a busy machine, is not measured.
    let has_moves = |series: &Value, count: usize| {
        series["repetitions"][0]["moves"].as_array().is_some_and(|moves| moves.len() == count)
    };
    let (text, report) = (0..5)
        .map(|_| measured(&by_hand, folder.path()))
        .find(|(_, report)| {
            all_counted(report) && [2usize, 3].iter().all(|place| has_moves(&report["series"][*place], 1))
        })
        .expect("sequencers are moved within the window");
    let series = report["series"].as_array().unwrap();
    let systems: Vec<&str> = series.iter().map(|one| one["point"]["system"].as_str().unwrap()).collect();
    assert_eq!(systems, ["alone", "none", "client", "proxy-half"], "{text}");
    for series in series {
        let (point, measured) = (&series["point"], &series["repetitions"][0]);
        let sequencers = measured["sequencers"].as_array().unwrap();
        assert_eq!(sequencers.len(), point["clients"].as_array().unwrap().len());
        for sequencer in sequencers {
            let bins = sequencer["bins"].as_array().unwrap();
            let counted: u64 = bins.iter().map(|count| count.as_u64().unwrap()).sum();
            assert!(counted > 0 && sequencer["positions"].as_u64().unwrap() >= counted, "{sequencer}");
        }
        let loads = measured["loads"].as_array().unwrap();
        assert!(loads.iter().any(|load| load["percent"][0].as_f64().unwrap() > 0.0), "{measured}");
        let moves = measured["moves"].as_array().unwrap();
        let is_moved = point["system"] != "alone" && point["system"] != "none";
        assert_eq!(moves.len(), usize::from(is_moved), "{measured}");
        for moved in moves {
            // The one with fewer clients.
            let places = ["sequencer", "from", "to"].map(|name| moved[name].as_u64().unwrap());
            assert_eq!(places, [0, 0, 1]);
            assert!(moved["pause_ms"].as_f64().unwrap() > 0.0, "{moved}");
            assert!(measured["longest_ms"].as_f64() >= moved["pause_ms"].as_f64(), "{measured}");
        }
    }
    assert_eq!(report["simulated"].as_array().unwrap().len(), 7 * 2);
    assert_eq!(report["decided"].as_array().unwrap().len(), 7);
    for name in
        ["figure-7", "figure-7-modes", "figure-9-client", "throughput-proxy-half", "imbalance-simulated"]
    {
        let svg = fs::read_to_string(folder.path().join(format!("{name}.svg"))).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("</svg>"), "{name}");
    }
    assert!(text.contains("was handed out twice") && text.contains("a tick with the metrics of"), "{text}");

    // Where a machine is busy, ranks may be silent for so long that a policy decides nothing in time.
    let by_policy = [&words[..], &["--after", "3s", "--only", "live", "--system", "sequencer"]].concat();
    let moves = || measured(&by_policy, folder.path()).1["series"][0]["repetitions"][0]["moves"].clone();
    let moves = (0..10).map(|_| moves()).find(|moves| !moves.as_array().unwrap().is_empty());
    let moved = &moves.expect("the policy moves a sequencer")[0];
    assert_eq!((&moved["from"], &moved["to"]), (&Value::from(0), &Value::from(1)), "{moved}");
    run(study(&["balance", "--before", "2h"])).failed(2, &["at most an hour"]);
}

#[test]
fn files_are_made_and_removed_in_the_namespace_and_beside_it() {
    tree::require_root();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("at");
    fs::create_dir(&at).unwrap();
    let words = ["namespace", "--quick", "--clients", "6", "--files", "60", "--folder", at.to_str().unwrap()];
    let (text, report) = measured(&words, folder.path());
    let series = report["series"].as_array().unwrap();
    assert_eq!(series.len(), 4 * (4 + 1), "{text}");
    for series in series {
        let (point, measured) = (&series["point"], &series["repetitions"][0]);
        assert_eq!(measured["files"], 60, "{series}");
        let phases = measured["phases"].as_array().unwrap();
        let names: Vec<&str> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
        assert_eq!(names, ["create", "stat", "rename", "list", "unlink"]);
        for phase in phases {
            // Each client lists its directory ten times.
            assert_eq!(phase["operations"], 60, "{point}: {phase}");
            assert!(phase["per_second"].as_f64().unwrap() > 0.0, "{point}: {phase}");
        }
        // Every listing had all entries: those of all clients, or of one.
        let entries =
            phases[3]["entries_per_second"].as_f64().unwrap() / phases[3]["per_second"].as_f64().unwrap();
        let expected = if point["layout"] == "own" { 10.0 } else { 60.0 };
        assert!((entries - expected).abs() < 1e-6, "{point}: {entries}");
    }
    assert!(report["targets"].to_string().contains("stat by the mount"), "{text}");
    let svg = fs::read_to_string(folder.path().join("create-durable.svg")).unwrap();
    assert!(svg.contains("FUSE"), "{svg}");
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0, "folders and mounts are removed");
}

#[test]
fn nacre_finds_what_was_made_and_what_the_floor_finds() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results.json");
    let shape = "--seed 5 --directories 150 --files 900 --large-directories 1 --large-entries 5000 --chains 1 \
                 --chain-depth 40 --symbolic-links 20 --hard-links 30 --fan-out 6 --depth 5";
    let mut command = study(&["walk", "--only", "floor,nacre,floor-names,nacre-names", "--repeat", "2"]);
    command.args(shape.split_whitespace()).arg("--at").arg(folder.path().join("tree"));
    command.arg("--results").arg(&results);
    let text = run(command).text();
    assert!(text.contains("nacre walk --list"), "{text}");
    let report: Value = serde_json::from_slice(&fs::read(&results).unwrap()).unwrap();
    let entries = &report["manifest"]["totals"]["entries"];
    assert!(entries.as_u64().unwrap() > 6000, "{entries}");
    let series = report["series"].as_array().unwrap();
    assert_eq!(series.len(), 4);
    for series in series {
        assert_eq!(&series["counted"]["entries"], entries, "{series}");
        assert_eq!(series["exit_code"], 0);
        assert_eq!(series["repetitions"].as_array().unwrap().len(), 2);
    }
}
