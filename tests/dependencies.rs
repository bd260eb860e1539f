//! `scripts/install-deps` lists every program that tests and studies start.
//!
//! A machine that happens to have a program installed hides that the list lacks it; a fresh machine then fails. So the
//! sources are searched for programs that they start. Where the name stands in the call, it has to be in the list or be
//! part of every Debian system; where it does not, [`INDIRECT`] has to say which programs the file starts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Programs of Debian's essential packages, and those that building with Cargo requires anyway.
const GIVEN: &[&str] = &["bash", "cargo", "cp", "diff", "du", "env", "grep", "rm", "sh", "tar"];

/// Calls whose first argument is the name of a program.
const CALLS: &[&str] = &["Command::new(", "self.batch("];

/// Files that start programs by a name that does not stand in the call: the programs that they start, without those that
/// are built from this project and those that only a user names.
const INDIRECT: &[(&str, &[&str])] = &[
    ("crates/bench/src/kit/peer.rs", &[]),
    ("crates/bench/src/kit/peer/etcd.rs", &["etcd"]),
    ("crates/bench/src/kit/peer/nats.rs", &["nats-server"]),
    ("crates/bench/src/kit/peer/redis.rs", &["redis-server"]),
    ("crates/bench/src/kit/peer/zookeeper.rs", &["java"]),
    ("crates/bench/src/kit/process.rs", &[]),
    ("crates/bench/src/kit/server.rs", &[]),
    ("crates/bench/src/mpiio/job.rs", &["mpicc.mpich", "mpicc.openmpi", "mpirun.mpich", "mpirun.openmpi"]),
    ("crates/bench/src/namespace/mount.rs", &[]),
    ("crates/bench/src/reflect/measure.rs", &[]),
    ("crates/bench/src/reflect/serve.rs", &[]),
    ("crates/bench/src/reflect/testbed.rs", &["tc"]),
    ("crates/bench/src/rmw/probe.rs", &["fio"]),
    ("crates/bench/src/trees.rs", &["cp", "diff", "rm", "rsync"]),
    ("crates/bench/src/walk/mpi.rs", &["mpirun.mpich", "mpirun.openmpi"]),
    ("crates/bench/src/walk/system.rs", &["find", "du", "bfs", "fdfind"]),
    ("crates/bench/tests/processes.rs", &[]),
    ("crates/bench/tests/study_ceph.rs", &[]),
    ("crates/bench/tests/study_mpiio.rs", &[]),
    ("crates/bench/tests/study_reflect.rs", &[]),
    ("crates/bench/tests/study_walk.rs", &[]),
    ("crates/c/tests/main/programs.rs", &["cc", "c++"]),
    ("crates/cli/src/command/bench.rs", &[]),
    ("crates/cli/src/command/lock.rs", &[]),
    ("crates/cli/src/command/mpirun.rs", &["mpirun.mpich", "mpirun.openmpi"]),
    ("crates/cli/src/command/mpirun/attached.rs", &["mpirun.mpich", "mpirun.openmpi"]),
    ("crates/cli/src/command/tour.rs", &[]),
    ("crates/cli/src/command/watchdog.rs", &[]),
    ("crates/logstore/examples/scale.rs", &[]),
    ("crates/logstore/tests/damage/device.rs", &["mount", "umount"]),
    ("crates/logstore/tests/dead_end.rs", &[]),
    ("crates/logstore/tests/memory.rs", &[]),
    ("crates/mpi/tests/common/mod.rs", &["mpirun.mpich", "mpirun.openmpi"]),
    ("crates/mpiio/tests/job.rs", &[]),
    (
        "crates/mpiio/tests/kit/mod.rs",
        &["mpicc.mpich", "mpicc.openmpi", "mpirun.mpich", "mpirun.openmpi", "gfortran"],
    ),
    ("crates/mpiio/tests/nodes.rs", &["ip", "unshare"]),
    ("crates/mpiio/tests/wrong.rs", &["mpicc.mpich", "mpicc.openmpi"]),
    ("crates/mpiio/src/watchdog.rs", &[]),
    ("crates/planes/examples/idle.rs", &[]),
    ("crates/planes/src/testbed.rs", &["ip", "tc", "ethtool"]),
    ("crates/planes/tests/memory.rs", &[]),
    ("crates/rados/tests/cluster/mod.rs", &[]),
    ("crates/rados/tests/survival.rs", &[]),
    ("crates/rados/tests/watch.rs", &[]),
    ("crates/reflect-bpf/build.rs", &["clang"]),
    ("crates/remote/examples/watchers.rs", &[]),
    ("crates/remote/tests/memory.rs", &[]),
    ("crates/rpc/tests/memory.rs", &[]),
    ("tests/access.rs", &[]),
    ("tests/bench.rs", &[]),
    ("tests/copy.rs", &[]),
    ("tests/harness/mod.rs", &[]),
    ("tests/lock_history.rs", &[]),
    ("tests/mount.rs", &["git", "sqlite3", "tar"]),
    ("tests/package.rs", &["dpkg-shlibdeps", "rpmbuild"]),
    ("tests/ranks.rs", &[]),
    ("tests/reflect_game.rs", &[]),
    ("tests/remove.rs", &[]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Collects every Rust source below a folder, except for build output.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Iterates over the programs that a source starts; `None` stands for one whose name is not a literal.
fn programs(text: &str) -> impl Iterator<Item = Option<&str>> {
    CALLS.iter().flat_map(|call| text.split(call).skip(1)).filter_map(|rest| {
        let Some(literal) = rest.trim_start().strip_prefix('"') else { return Some(None) };
        let (name, _) = literal.split_once('"')?;
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        (!name.is_empty() && name.bytes().all(is_name)).then_some(Some(name))
    })
}

/// Returns the programs that `scripts/install-deps` makes sure of.
fn listed() -> Vec<String> {
    let script = std::fs::read_to_string(root().join("scripts/install-deps")).unwrap();
    let programs = script.lines().filter_map(|line| line.strip_prefix("program:")?.split_whitespace().next());
    programs.chain(GIVEN.iter().copied()).map(str::to_owned).collect()
}

#[test]
fn every_program_that_is_started_is_installed_by_the_script() {
    let root = root();
    let mut files = Vec::new();
    for folder in ["crates", "tests", "examples"] {
        sources(&root.join(folder), &mut files);
    }
    let mut started: BTreeMap<String, String> = BTreeMap::new();
    let mut indirect: BTreeMap<&str, &[&str]> = INDIRECT.iter().copied().collect();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let file = file.strip_prefix(&root).unwrap().to_str().unwrap();
        // This search, which names the calls that it looks for.
        if file == "tests/dependencies.rs" {
            continue;
        }
        let names: Vec<Option<&str>> = programs(&text).collect();
        let known = indirect.remove(file);
        assert!(
            known.is_some() || !names.contains(&None),
            "{file} starts a program whose name does not stand in the call: say in INDIRECT which ones it starts"
        );
        for name in names.into_iter().flatten().chain(known.unwrap_or_default().iter().copied()) {
            started.entry(name.to_owned()).or_insert_with(|| file.to_owned());
        }
    }
    assert!(indirect.is_empty(), "INDIRECT names files that are not there: {:?}", indirect.keys());
    // These are commands of clap, not programs.
    for command in ["ls", "nacre", "reflect", "study", "walk-tree"] {
        started.remove(command);
    }
    let listed = listed();
    let missing: Vec<_> = started
        .iter()
        .filter(|(name, _)| !listed.contains(name))
        .map(|(name, file)| format!("{name}, started by {file}"))
        .collect();
    assert!(missing.is_empty(), "not in scripts/install-deps:\n{}", missing.join("\n"));
}

#[test]
fn every_program_that_the_script_for_ceph_needs_is_installed() {
    let script = std::fs::read_to_string(root().join("scripts/ceph")).unwrap();
    let needed = script.split("for program in ").nth(1).unwrap().split(';').next().unwrap();
    let listed = listed();
    let missing: Vec<&str> =
        needed.split_whitespace().filter(|name| !listed.iter().any(|l| l == name)).collect();
    assert!(missing.is_empty(), "not in scripts/install-deps: {missing:?}");
}

#[test]
fn a_new_program_is_noticed() {
    let text = r#"Command::new("frobnicate").arg("x"); Command::new(program); Command::new( "with space")"#;
    assert_eq!(programs(text).collect::<Vec<_>>(), [Some("frobnicate"), None]);
}
