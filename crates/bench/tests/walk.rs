//! The study of the walk where it walks nothing: figures of simulated runs, and what is refused.

use std::path::Path;
use std::process::{Command, Output};

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
    let made = run(&words, folder.path());
    assert!(made.status.success(), "{made:?}");
    let recorded: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("runs.json")).unwrap()).unwrap();
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
