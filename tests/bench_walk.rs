//! The study of the walk through the built program, which the tests of its parts cannot cover, because `nacre walk` is
//! not among them.

mod harness;

use std::path::Path;

use harness::{Ended, program, run_with};
use serde_json::Value;

fn run(command: std::process::Command) -> Ended {
    run_with(command, b"")
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

#[test]
fn nacre_finds_what_was_made_and_what_the_floor_finds() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results.json");
    let shape = "--seed 5 --directories 150 --files 900 --large-directories 1 --large-entries 5000 --chains 1 \
                 --chain-depth 40 --symbolic-links 20 --hard-links 30 --fan-out 6 --depth 5";
    let mut command = program();
    command.args(["bench", "walk", "--only", "floor,nacre,floor-names,nacre-names", "--repeat", "2"]);
    command.args(shape.split_whitespace()).arg("--at").arg(folder.path().join("tree"));
    command.arg("--results").arg(&results);
    let text = run(command).text();
    assert!(text.contains("nacre walk --list"), "{text}");
    let report = read(&results);
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

#[test]
fn figures_are_simulated_recorded_and_drawn_again() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let results = folder.path().join("runs.json");
    for out in [&first, &second] {
        std::fs::create_dir(out).unwrap();
    }
    let mut command = program();
    command.args(["bench", "walk", "--figure", "1", "--source", "simulated", "--quick", "--out"]).arg(&first);
    command.arg("--results").arg(&results);
    run(command).text();
    let recorded = read(&results);
    let runs = recorded["runs"].as_array().unwrap();
    assert!(runs.iter().all(|run| run["source"] == "simulated"), "{runs:?}");
    let algorithms: Vec<&str> = runs.iter().map(|run| run["algorithm"].as_str().unwrap()).collect();
    assert_eq!(algorithms, ["cp", "cp, one reader"]);
    let mut command = program();
    command.args(["bench", "walk", "--runs"]).arg(&results).arg("--out").arg(&second);
    run(command).text();
    let name = "figure-1-simulated-650000.svg";
    let drawn = std::fs::read_to_string(first.join(name)).unwrap();
    assert!(drawn.contains("Simulated: "));
    assert_eq!(drawn, std::fs::read_to_string(second.join(name)).unwrap());
}

#[test]
fn without_nacre_mpi_it_says_how_to_get_it_before_it_measures() {
    let mut command = program();
    command.args(["bench", "walk", "--nacre-mpi", "/nonexistent/nacre-mpi"]);
    run(command).failed(2, &["--nacre-mpi", "/nonexistent/nacre-mpi"]);
}
