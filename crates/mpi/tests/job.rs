//! Tests of walks by whole jobs, through the built program.

mod common;

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{job, ranks_with, run, wait};

fn succeed(ranks: usize, arguments: &[&str]) -> String {
    let output = run(ranks, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Creates folders in folders, one with very many files, and names of every kind.
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
    // Several are the deepest.
    for number in 0..3 {
        std::fs::create_dir_all(root.join(format!("{number}/2/3/4/5/6/7"))).unwrap();
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
    let offered = ["drqs", "deqs", "pa-drqs", "h-drqs"].map(|name| vec!["--algorithm", name]);
    for algorithm in [vec!["--cp"]].into_iter().chain(offered) {
        for ranks in [1, 3] {
            let arguments = [&["walk"][..], &algorithm, &["--list", "--null", root]].concat();
            let output = run(ranks, &arguments);
            assert!(output.status.success(), "{output:?}");
            let mut listed: Vec<_> = output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
            listed.sort();
            assert!(
                listed == expected,
                "{algorithm:?}, {ranks} ranks: {} of {}",
                listed.len(),
                expected.len()
            );
        }
    }
}

#[test]
fn totals_are_those_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let root = folder.path().to_str().unwrap();
    let arguments = ["--json", "walk", "--top", "30", "--histogram", "size,depth", "--depth-summary", root];
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
    for rank in ranks {
        let ns = |name: &str| rank[name].as_u64().unwrap();
        assert!(ns("worked_until_ns") <= ns("wall_ns") && ns("first_idle_ns") <= ns("wall_ns"), "{rank}");
        assert!(ns("walking_ns") <= ns("user_ns") + ns("system_ns"), "{rank}");
    }
    assert!(ranks.iter().any(|rank| rank["worked_until_ns"].as_u64().unwrap() > 0));
    let said: BTreeSet<bool> =
        ranks.iter().map(|rank| rank["counters"]["sent"]["messages"].as_u64().unwrap() > 0).collect();
    assert_eq!(said, BTreeSet::from([true]));
}

#[test]
fn the_progress_of_all_ranks_is_shown_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let root = folder.path().to_str().unwrap();
    // All but the root itself.
    let entries = find(folder.path()).len() - 1 - 1;
    for algorithm in ["--cp", "--algorithm=drqs", "--algorithm=h-drqs"] {
        let output = run(3, &["walk", algorithm, "--progress", root]);
        assert!(output.status.success(), "{output:?}");
        let complaint = String::from_utf8_lossy(&output.stderr).replace(',', "");
        let last = complaint.lines().rfind(|line| line.contains(" threads busy")).unwrap();
        assert!(last.contains(&format!("nacre-mpi: {entries} entries in ")), "{algorithm}: {complaint}");
    }
    let output = run(3, &["walk", root]);
    assert!(output.status.success(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("threads busy"), "{output:?}");
}

#[test]
fn what_is_wrong_is_said_once() {
    let output = run(3, &["walk", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(complaint.matches("nowhere/at/all").count(), 1, "{complaint}");
    // What the study compares with is not offered.
    for algorithm in ["best", "cp"] {
        let output = run(2, &["walk", "--algorithm", algorithm, "/"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(complaint.contains("choose one of drqs, deqs, pa-drqs, h-drqs"), "{complaint}");
    }
}

/// Ends a job by a signal to one of its ranks, after its first checkpoint and `delay`, and returns its standard error,
/// or nothing if it ended before.
fn end_early(
    ranks: usize,
    checkpoint: &Path,
    arguments: &[&str],
    delay: Duration,
    signal: Signal,
) -> Option<String> {
    let mark = arguments.last().unwrap();
    let mut running = job(ranks, arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !checkpoint.exists() && running.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(240), "the job does not begin");
        // The ranks are to have the processors.
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(delay);
    if let Some(rank) = ranks_with(mark).get(ranks / 2) {
        let _ = rustix::process::kill_process(*rank, signal);
    }
    let output = wait(running, mark);
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_a_killed_or_stopped_job_left_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    // Large enough to be met at work.
    for number in 0..10 {
        let more = folder.path().join(format!("more {number}"));
        std::fs::create_dir(&more).unwrap();
        for file in 0..4000 {
            std::fs::write(more.join(format!("{file}")), "").unwrap();
        }
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let checkpoint = elsewhere.path().join("checkpoint");
    let checkpoint = checkpoint.to_str().unwrap();
    let words =
        ["--json", "walk", "--algorithm", "drqs", "--top", "20", "--histogram", "size", "--depth-summary"];
    let whole = succeed(1, &[&words[..], &[root]].concat());
    let mut ended = 0;
    for attempt in 0..40 {
        if ended == 2 {
            break;
        }
        // Each of them has to meet the job at work.
        let signal = if ended == 0 { Signal::KILL } else { Signal::TERM };
        let begin = [&words[..], &["--checkpoint", checkpoint, "--every", "1ms", root]].concat();
        let delay = Duration::from_millis(attempt * 37 % 150);
        let Some(complaint) = end_early(3, Path::new(checkpoint), &begin, delay, signal) else { continue };
        if !Path::new(checkpoint).exists() {
            // It had finished, and was killed on its way out.
            continue;
        }
        ended += 1;
        if signal == Signal::TERM {
            assert!(complaint.contains("--resume"), "{complaint}");
        }
        // Another number of ranks may go on.
        let resumed = [&words[..], &["--resume", checkpoint, root]].concat();
        assert_eq!(succeed(2, &resumed), whole, "after {signal:?} at {delay:?}");
        assert!(!Path::new(checkpoint).exists());
    }
    assert_eq!(ended, 2);
    // Something else does not go on from it.
    let output = run(2, &["walk", "--resume", "/dev/null", root]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_reader_that_goes_away_ends_the_job() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let root = folder.path().to_str().unwrap();
    let mut running = job(3, &["walk", "--list", root]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 100];
    running.stdout.take().unwrap().read_exact(&mut first).unwrap();
    wait(running, root);
}

#[test]
fn many_roots_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("long ".repeat(50));
    std::fs::create_dir(&inside).unwrap();
    let count = common::arguments_bytes_max() / 540;
    let paths: Vec<_> =
        (0..count).map(|number| inside.join(format!("{}{number}", "long ".repeat(50)))).collect();
    paths.iter().for_each(|path| std::fs::write(path, "").unwrap());
    let words: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    // Together the lines are more than is kept of what nobody takes; launchers pass on only so many arguments.
    let fields = ["path"; 8].join(",");
    let printed = folder.path().join("printed");
    let mut command = job(2, &[&["walk", "--list", "--fields", &fields], &words[..]].concat());
    command.stdout(std::fs::File::create(&printed).unwrap()).stderr(Stdio::null());
    wait(command.spawn().unwrap(), words[0]);
    let printed = std::fs::read_to_string(printed).unwrap();
    let listed: BTreeSet<&str> = printed.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(listed, words.iter().copied().collect::<BTreeSet<&str>>());
}
