//! The study of the walk where nothing walks fast: figures of simulated runs, what is refused, and what ends it early.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn run(words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nacre-bench"));
    command.arg("walk").args(words).current_dir(folder).output().unwrap()
}

#[test]
fn figures_are_simulated_recorded_and_drawn_again() {
    let folder = tempfile::tempdir().unwrap();
    for out in ["first", "second"] {
        std::fs::create_dir(folder.path().join(out)).unwrap();
    }
    let words =
        ["--figure", "1", "--source", "simulated", "--quick", "--out", "first", "--results", "runs.json"];
    let output = run(&words, folder.path());
    assert!(output.status.success(), "{output:?}");
    let recorded: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("runs.json")).unwrap()).unwrap();
    // The commit is that of the program, wherever it runs.
    assert_eq!(recorded["machine"]["git"].as_str(), option_env!("NACRE_COMMIT"));
    let runs = recorded["runs"].as_array().unwrap();
    assert!(runs.iter().all(|run| run["source"] == "simulated"), "{runs:?}");
    let algorithms: Vec<&str> = runs.iter().map(|run| run["algorithm"].as_str().unwrap()).collect();
    assert_eq!(algorithms, ["cp", "cp, one reader"]);
    let drawn = run(&["--runs", "runs.json", "--out", "second"], folder.path());
    assert!(drawn.status.success(), "{drawn:?}");
    let drawn = |out: &str| {
        let file = folder.path().join(out).join("figure-1-simulated-650000.svg");
        std::fs::read_to_string(file).unwrap()
    };
    assert!(drawn("first").contains("Simulated: "));
    assert_eq!(drawn("first"), drawn("second"));
}

#[test]
fn without_nacre_mpi_it_says_how_to_get_it_before_it_measures() {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(&["--nacre-mpi", "/nonexistent/nacre-mpi"], folder.path());
    let complaint = String::from_utf8(ended.stderr).unwrap();
    assert_eq!((ended.status.code(), complaint.lines().count()), (Some(2), 1), "{complaint}");
    assert!(complaint.starts_with("nacre: ") && complaint.contains("--nacre-mpi: /nonexistent/nacre-mpi"));
}

/// Runs the study with a peer that does something in its third run, the second that is measured. Returns how it ended, and
/// its results.
fn disturbed(in_third_run: &str) -> (Output, Value) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "#!/bin/sh\necho run >>{folder}/runs\necho Items: 1\nif [ $(wc -l <{folder}/runs) = 3 ]; then {in_third_run}; fi\n",
        folder = folder.path().display()
    );
    let peer = folder.path().join("peer");
    std::fs::write(&peer, script).unwrap();
    std::fs::set_permissions(&peer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut words =
        vec!["--only", "floor,dwalk", "--repeat", "5", "--at", "tree", "--results", "results.json"];
    words.extend(["--directories", "20", "--files", "100", "--large-entries", "50", "--chain-depth", "5"]);
    words.extend(["--symbolic-links", "5", "--hard-links", "5", "--dwalk", peer.to_str().unwrap()]);
    let ended = run(&words, folder.path());
    assert!(!folder.path().join("tree").exists(), "the tree is removed: {ended:?}");
    let results = std::fs::read(folder.path().join("results.json")).unwrap();
    (ended, serde_json::from_slice(&results).unwrap())
}

/// Returns how many repetitions of the floor, and of the peer, are in the results.
fn repetitions(results: &Value) -> Vec<usize> {
    let series = results["series"].as_array().unwrap();
    series.iter().map(|series| series["repetitions"].as_array().unwrap().len()).collect()
}

#[test]
fn what_was_measured_before_a_peer_fails_is_kept() {
    let (ended, results) = disturbed("echo it is broken >&2; exit 7");
    assert_eq!(ended.status.code(), Some(1));
    let complaint = String::from_utf8(ended.stderr).unwrap();
    assert!(complaint.starts_with("nacre: dwalk: ") && complaint.contains("it is broken"), "{complaint}");
    // The second round begins with the peer.
    assert_eq!(repetitions(&results), [1, 1]);
    assert!(results["ended_early"].as_str().unwrap().contains("exit code 7"), "{results}");
    let table = String::from_utf8(ended.stdout).unwrap();
    assert!(table.contains("floor") && table.contains("Not complete"), "{table}");
}

#[test]
fn what_was_measured_before_a_signal_is_kept() {
    for (signal, number, how) in [("INT", 2, "interrupted"), ("TERM", 15, "terminated")] {
        let (ended, results) = disturbed(&format!("kill -{signal} $PPID"));
        assert_eq!(ended.status.signal(), Some(number));
        assert_eq!(String::from_utf8(ended.stderr).unwrap(), format!("nacre: {how}\n"));
        assert_eq!(results["ended_early"], how);
        // What was under way is measured to its end.
        assert_eq!(repetitions(&results), [1, 2]);
    }
}

#[test]
fn a_study_that_is_interrupted_while_it_makes_its_tree_says_so_and_removes_it() {
    for command in ["walk", "walk-tree"] {
        let folder = tempfile::tempdir().unwrap();
        let mut study = Command::new(env!("CARGO_BIN_EXE_nacre-bench"));
        study.args([command, "--at", "tree", "--threads", "1"]);
        if command == "walk" {
            study.args(["--only", "floor"]);
        }
        study.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut study = study.spawn().unwrap();
        let tree = folder.path().join("tree");
        let has_files = || std::fs::read_dir(&tree).is_ok_and(|mut entries| entries.next().is_some());
        while !has_files() {
            assert!(study.try_wait().unwrap().is_none(), "it ended before it made a file");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let pid = rustix::process::Pid::from_child(&study);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let ended = study.wait_with_output().unwrap();
        assert_eq!(ended.status.signal(), Some(2), "{ended:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "nacre: interrupted\n");
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "the tree and its manifest are removed");
    }
}
