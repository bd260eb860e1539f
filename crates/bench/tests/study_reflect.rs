//! The study of the reflector: the reflector's process, the namespaces, the counting receivers.
//!
//! The results are checked, never the time that it takes: other tests run beside it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn run(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nacre-bench"));
    command.arg("reflect").args(words.split_whitespace()).output().unwrap()
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Runs the study with these words, and returns its output and its results.
fn study(words: &str, folder: &Path) -> (String, Value) {
    let results = folder.join("results.json");
    let ended = run(&format!("--no-peer {words} --results {}", results.display()));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    (String::from_utf8(ended.stdout).unwrap(), read(&results))
}

/// Checks for root: the study creates network namespaces, and loads a program into the kernel.
fn is_root() {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "this test makes network namespaces: run it as root, for example with sudo -E cargo test");
}

#[test]
fn every_copy_that_is_due_arrives_by_planes_in_user_space_and_in_the_kernel() {
    is_root();
    let folder = tempfile::tempdir().unwrap();
    let words = "--plane sendto,batch,kernel --bytes 50,1000 --receivers 3,20 --repeat 2 --window 40ms";
    let (text, report) = study(&format!("{words} --out {}", folder.path().display()), folder.path());
    assert!(text.contains("ns/copy") && !text.contains("LOSS"), "{text}");
    let series = report["series"].as_array().unwrap();
    assert_eq!(series.len(), 3 * 2 * 2, "{text}");
    for series in series {
        let receivers = series["cell"]["receivers"].as_u64().unwrap();
        assert_eq!((&series["lost"], &series["disorder"]), (&0.into(), &0.into()), "{series}");
        for run in series["repetitions"].as_array().unwrap() {
            let number = |name: &str| run[name].as_u64().unwrap();
            assert!(number("datagrams") > 0, "{run}");
            assert_eq!(number("copies"), number("datagrams") * receivers, "{run}");
            assert_eq!(run["counted"]["admitted"].as_u64().unwrap(), number("datagrams"), "{run}");
            assert_eq!(run["counted"]["copies"].as_u64().unwrap(), number("copies"), "{run}");
        }
    }
    // A program in the kernel keeps datagrams away from user space.
    let kernel: Vec<&Value> = series.iter().filter(|series| series["cell"]["who"] == "kernel").collect();
    let received = |series: &&Value| series["repetitions"][0]["counted"]["received"].as_u64().unwrap();
    assert!(kernel.iter().all(|series| received(series) == 0), "{kernel:?}");
    for figure in ["cpu-veth-50.svg", "throughput-veth-1000.svg"] {
        let svg = std::fs::read_to_string(folder.path().join(figure)).unwrap();
        assert!(svg.contains("receivers") && svg.contains("kernel"), "{figure}");
    }
}

#[test]
fn nothing_that_was_admitted_is_lost_under_overload() {
    is_root();
    let folder = tempfile::tempdir().unwrap();
    let (text, report) = study("--overload --copies 60000 --plane batch,kernel", folder.path());
    for overload in report["overload"].as_array().unwrap() {
        assert!(overload["copies"].as_u64().unwrap() >= 60_000, "{overload}");
        for none in ["lost", "disorder", "uneven"] {
            assert_eq!(overload[none], 0, "{none}: {text}");
        }
    }
    let bursts = report["bursts"].as_array().unwrap();
    assert_eq!(bursts.len(), 2, "{text}");
    for burst in bursts {
        assert_eq!((&burst["lost"], &burst["disorder"]), (&0.into(), &0.into()), "{text}");
        // It is not for want of datagrams that none is lost: some were admitted, and copies came by each device.
        let admitted = burst["counted"]["admitted"].as_u64().unwrap();
        assert!(0 < admitted && admitted <= burst["datagrams"].as_u64().unwrap(), "{text}");
        let arrived = burst["arrived_s"].as_array().unwrap();
        assert_eq!(arrived.len(), 3, "{text}");
        assert!(arrived.iter().all(|seconds| seconds.as_f64().unwrap() > 0.0), "{text}");
    }
}

#[test]
fn members_join_by_the_thousand() {
    is_root();
    let folder = tempfile::tempdir().unwrap();
    let (text, report) = study("--joins --quick --plane batch", folder.path());
    let joins = &report["joins"][0];
    assert_eq!((&joins["groups"], &joins["members"]), (&1000.into(), &10_000.into()), "{text}");
    assert!(joins["bytes_per_member"].as_f64().unwrap() > 0.0, "{text}");
}

#[test]
fn wrong_words_are_explained_before_anything_is_built() {
    for (words, complaint) in [
        ("--bytes 8", "16 to 1400 bytes"),
        ("--receivers 0", "1 to 4096 receivers"),
        ("--plane pigeon", "'pigeon' is not a plane"),
        ("--device slow", "no number of megabits"),
        ("--out /nonexistent", "is not a folder"),
    ] {
        let ended = run(words);
        assert_eq!(ended.status.code(), Some(2), "{words}: {ended:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains(complaint), "{words}: {ended:?}");
    }
}
