//! The study of shared logs in a pool of a Ceph cluster: what it measures there, and that it leaves nothing.

#[path = "../../rados/tests/cluster/mod.rs"]
mod cluster;

use std::collections::BTreeSet;
use std::process::{Command, Output};

use cluster::Cluster;

fn append(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nacre-bench")).args(["append", "--quick"]).args(words).output().unwrap()
}

#[test]
fn logs_in_a_pool_are_measured_beside_calls_of_classes_and_nothing_is_left() {
    let cluster = Cluster::shared();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let file = folder.path().join("append.json");
    let ended = append(&[
        "--only",
        "ceph",
        "--store",
        &cluster.uri("study"),
        "--out",
        out,
        "--results",
        file.to_str().unwrap(),
    ]);
    // A position that was given twice, or an entry that is lost, would have failed it.
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let series = results["series"].as_array().unwrap();
    let points: BTreeSet<(&str, u64)> = series
        .iter()
        .map(|one| {
            let point = &one["point"];
            (point["subject"].as_str().unwrap(), point["depth"].as_u64().unwrap())
        })
        .collect();
    let subjects = ["class-call", "log-on-ceph", "lua-call", "rados-append"];
    let expected: BTreeSet<(&str, u64)> =
        subjects.into_iter().flat_map(|subject| [(subject, 1), (subject, 16)]).collect();
    assert_eq!(points, expected);
    for one in series {
        assert!(one["repetitions"][0]["server_cpu_us"].is_null(), "{one}");
    }
    assert!(results["left_out"].is_null());
    let svg = std::fs::read_to_string(folder.path().join("ceph.svg")).unwrap();
    assert!(roxmltree::Document::parse(&svg).is_ok());
    let left = cluster.rados(&["-p", "nacre", "ls", "--all"]);
    assert!(!left.contains("nacre-append-"), "{left}");
}

#[test]
fn the_part_on_ceph_says_what_it_needs() {
    for (words, why) in [
        (&["--only", "ceph"][..], "--store rados://POOL"),
        (&["--only", "ceph", "--store", "mem:"], "rados://POOL"),
    ] {
        let ended = append(words);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && stderr.contains(why), "{stderr}");
    }
}
