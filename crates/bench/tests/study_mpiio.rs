//! The studies of MPI-IO where Nacre's library is not there, which is built for one MPI library at a time: the MPI libraries alone, and what
//! is refused. `crates/mpiio/tests/job.rs` has the rest.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Returns the command of a study in a folder, of a program that is there, without a library beside it, and is not started.
fn study(words: &[&str], folder: &Path) -> Command {
    std::fs::write(folder.join("nacre"), "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nacre-bench"));
    command.args(words).args(["--nacre", "nacre"]).current_dir(folder);
    command
}

fn run(words: &[&str], folder: &Path) -> Output {
    study(words, folder).output().unwrap()
}

/// Returns the results of a study that has to succeed.
fn results(words: &str, folder: &Path) -> Value {
    let words: Vec<&str> = words.split_whitespace().chain(["--json"]).collect();
    let ended = run(&words, folder);
    assert!(ended.status.success(), "{words:?}: {ended:?}");
    serde_json::from_slice(&ended.stdout).unwrap()
}

#[test]
fn every_byte_of_a_checkpoint_is_compared_with_what_it_has_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let systems = "none,none-unsieved,own,own-unsieved,files,slabs";
    let report = results(
        &format!("s3d --mpi mpich --systems {systems} --edges 11 --ranks 1,3 --repeat 1"),
        folder.path(),
    );
    let series = report["series"].as_array().unwrap();
    assert_eq!(series.len(), 2 * 6);
    for series in series {
        let measured = &series["repetitions"][0];
        assert_eq!(measured["bytes"], 128 * 11 * 11 * 11, "{series}");
        assert_eq!(measured["wrong_bytes"], 0, "{series}");
        assert!(measured["write_s"].as_f64().unwrap() > 0.0, "{series}");
    }
    for figure in ["8a", "8b", "9"] {
        let drawn = std::fs::read_to_string(folder.path().join(format!("figure-{figure}-11.svg"))).unwrap();
        assert!(drawn.contains("own-unsieved"), "figure {figure}");
    }
}

#[test]
fn both_mpi_libraries_are_measured_where_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    // With more ranks than most machines have processors, too.
    let report = results("s3d --systems none --edges 8 --ranks 2,16 --repeat 1", folder.path());
    let versions = report["machine"]["peers"].to_string();
    assert!(versions.contains("MPICH") && versions.contains("Open MPI"), "{versions}");
    let series = report["series"].as_array().unwrap();
    assert_eq!(series.len(), 2 * 2);
    for series in series {
        let measured = &series["repetitions"][0];
        assert_eq!(measured["ranks"], series["point"]["ranks"], "{series}");
        assert_eq!((&measured["bytes"], &measured["wrong_bytes"]), (&65_536.into(), &0.into()), "{series}");
    }
}

#[test]
fn workers_write_all_results_of_all_queries() {
    let folder = tempfile::tempdir().unwrap();
    let size = "--queries 3 --fragments 5 --results-min 10 --results-max 20 --megabytes 1 --search 100ms";
    let words = format!("s3asim --mpi mpich --systems none,own --ranks 2,4 --repeat 1 {size}");
    let report = results(&words, folder.path());
    let series = report["series"].as_array().unwrap();
    assert_eq!(series.len(), 2 * 2);
    for series in series {
        let measured = &series["repetitions"][0];
        assert_eq!(measured["bytes"], report["bytes"], "{series}");
        assert_eq!(measured["wrong_bytes"], 0, "{series}");
        let (io, total) = (measured["io_s"].as_f64().unwrap(), measured["total_s"].as_f64().unwrap());
        assert!(0.0 < io && io <= total, "{series}");
    }
    for figure in ["11a", "11b", "12a", "12b"] {
        assert!(folder.path().join(format!("figure-{figure}.svg")).is_file(), "figure {figure}");
    }
}

#[test]
fn small_pieces_are_compared_with_what_they_have_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let words = "pieces --mpi mpich --systems none,own --pieces 512 --ranks 3 --calls 2 --repeat 1";
    let report = results(words, folder.path());
    let series = report["series"].as_array().unwrap();
    assert_eq!(series.len(), 2 * 2);
    for series in series {
        let measured = &series["repetitions"][0];
        assert_eq!(measured["bytes"], (3 * 2) << 20, "{series}");
        assert_eq!((&measured["wrong_bytes"], &measured["wrong_read"]), (&0.into(), &0.into()), "{series}");
        assert!(measured["write_s"].as_f64().unwrap() > 0.0, "{series}");
    }
}

#[test]
fn what_is_missing_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |code: i32, words: &[&str]| {
        let ended = run(words, folder.path());
        let complaint = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(
            (ended.status.code(), complaint.lines().count()),
            (Some(code), 1),
            "{words:?}: {complaint}"
        );
        complaint
    };
    let library = refused(2, &["s3d", "--mpi", "mpich", "--systems", "none,datatype"]);
    assert!(library.contains("libnacre_mpiio_mpich.so") && library.contains("make mpi MPICC=mpicc.mpich"));
    assert!(refused(2, &["s3asim", "--systems", "files"]).contains("does not have the system files"));
    assert!(refused(2, &["s3asim", "--systems", "none", "--ranks", "1"]).contains("at least one worker"));
    assert!(refused(2, &["s3d", "--systems", "none", "--edges", "2", "--ranks", "3"]).contains("too few"));
    // Whatever is installed, nothing of it is in an empty folder.
    let ended = study(&["s3d"], folder.path()).env("PATH", folder.path()).output().unwrap();
    let complaint = String::from_utf8(ended.stderr).unwrap();
    assert!(complaint.contains("mpicc.mpich is not installed"), "{complaint}");
    assert!(complaint.contains("apt-get install libmpich-dev"), "{complaint}");
}
