//! Whole jobs, through the built program, as a user starts them: the launcher is that of the MPI that the program was
//! built with, named by `NACRE_MPIRUN` (`mpirun` if it is not set).

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A job of so many ranks.
fn job(ranks: usize, arguments: &[&str]) -> Command {
    let launcher = std::env::var("NACRE_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let about = Command::new(&launcher).arg("--version").output().unwrap_or_else(|error| {
        panic!("cannot run {launcher}: {error}; install it with `apt-get install mpich` or `openmpi-bin`, or see `make mpi`")
    });
    let mut command = Command::new(launcher);
    if String::from_utf8_lossy(&about.stdout).contains("Open MPI") || String::from_utf8_lossy(&about.stdout).contains("OpenRTE") {
        // More ranks than processors, and by the administrator, as tests are run.
        command.args(["--oversubscribe", "--allow-run-as-root"]);
    }
    command.arg("-n").arg(ranks.to_string()).arg(env!("CARGO_BIN_EXE_nacre-mpi")).args(arguments);
    command.stdin(Stdio::null());
    command
}

fn run(ranks: usize, arguments: &[&str]) -> Output {
    job(ranks, arguments).output().unwrap()
}

fn succeed(ranks: usize, arguments: &[&str]) -> String {
    let output = run(ranks, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Folders in folders, one with very many files, and names of every kind.
fn tree(root: &Path) {
    let large = root.join("large");
    std::fs::create_dir(&large).unwrap();
    for number in 0..6000 {
        std::fs::write(large.join(format!("file {number}")), "").unwrap();
    }
    for number in 0..400 {
        let folder = root.join(format!("{}/{}/{}", number % 3, number % 20, number));
        std::fs::create_dir_all(&folder).unwrap();
        for file in 0..number % 17 {
            std::fs::write(folder.join(format!("file {file}")), vec![b'x'; file]).unwrap();
        }
    }
    for name in [&b"line\nfeed"[..], b"not \xff UTF-8"] {
        std::fs::write(root.join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
    }
    std::os::unix::fs::symlink("..", root.join("link")).unwrap();
    std::fs::hard_link(root.join("1/1/1/file 0"), root.join("one more name")).unwrap();
}

fn find(root: &Path) -> Vec<Vec<u8>> {
    let output = Command::new("find").arg(root).arg("-print0").output().unwrap();
    let mut paths: Vec<_> = output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    paths.sort();
    paths
}

#[test]
fn the_network_keeps_its_contract() {
    for (ranks, seed) in [(1, "1"), (2, "2"), (5, "3")] {
        assert_eq!(succeed(ranks, &["contract", seed]), format!("{ranks} ranks kept the contract\n"));
    }
}

#[test]
fn every_algorithm_lists_everything_once() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let root = folder.path().to_str().unwrap();
    let expected = find(folder.path());
    assert!(expected.len() > 9000);
    for algorithm in ["cp", "drqs", "deqs", "pa-drqs", "h-drqs"] {
        for ranks in [1, 3] {
            let arguments = ["walk", "--algorithm", algorithm, "--list", "--null", root];
            let output = run(ranks, &arguments);
            assert!(output.status.success(), "{output:?}");
            let mut listed: Vec<_> = output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
            listed.sort();
            assert!(listed == expected, "{algorithm}, {ranks} ranks: {} of {}", listed.len(), expected.len());
        }
    }
}

#[test]
fn totals_are_those_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let root = folder.path().to_str().unwrap();
    let arguments = ["--json", "walk", "--top", "30", "--histogram", "size,depth", root];
    let alone = succeed(1, &arguments);
    assert!(alone.contains("\"entries\""), "{alone}");
    for algorithm in ["drqs", "pa-drqs", "h-drqs"] {
        let arguments = [&arguments[..], &["--algorithm", algorithm]].concat();
        assert_eq!(succeed(4, &arguments), alone, "{algorithm}");
    }
}

#[test]
fn work_is_shared_out_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let file = folder.path().join("measurements");
    let root = folder.path().to_str().unwrap();
    succeed(3, &["walk", "--algorithm", "drqs", "--measurements", file.to_str().unwrap(), root]);
    let measured: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let ranks = measured["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 3);
    // The file itself was made after the walk.
    let entries: u64 = ranks.iter().map(|rank| rank["entries"].as_u64().unwrap()).sum();
    assert_eq!(entries + 1, find(folder.path()).len() as u64 - 1 - 1);
    let said: BTreeSet<bool> =
        ranks.iter().map(|rank| rank["counters"]["sent"]["messages"].as_u64().unwrap() > 0).collect();
    assert_eq!(said, BTreeSet::from([true]));
}

#[test]
fn what_is_wrong_is_said_once() {
    let output = run(3, &["walk", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(complaint.matches("nowhere/at/all").count(), 1, "{complaint}");
    let output = run(2, &["walk", "--algorithm", "best", "/"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("h-drqs"), "{complaint}");
}
