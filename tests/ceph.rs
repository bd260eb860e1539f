//! The commands on a pool of a Ceph cluster: storing, listing, removing, checking and copying objects, and the errors
//! where that is not possible.

#[path = "../crates/rados/tests/cluster/mod.rs"]
mod cluster;
mod harness;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use cluster::Cluster;
use harness::reflect::http;
use harness::{Ended, PATIENCE, Server, program, run_with, wait};
use rustix::process::Signal;
use serde_json::Value;

/// Runs a command on a store, with the given standard input.
#[track_caller]
fn nacre_with(uri: &str, words: &[&str], input: &[u8]) -> Ended {
    let mut command = program();
    command.args(["--store", uri]).args(words);
    run_with(command, input)
}

#[track_caller]
fn nacre(uri: &str, words: &[&str]) -> Ended {
    nacre_with(uri, words, b"")
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place * 7 + place / 251) as u8).collect()
}

/// Changes one bit of an object's header.
fn damage(cluster: &Cluster, uri: &str, object: &str) {
    let name = format!("nacre.{object}");
    let mut header = cluster.rados_in(uri, &["getxattr", &name, "nacre"], b"");
    header[9] ^= 4;
    cluster.rados_in(uri, &["setxattr", &name, "nacre"], &header);
}

#[test]
fn objects_are_stored_listed_read_and_removed() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("tour");
    assert_eq!(nacre(&uri, &["ls"]).text(), "");
    // Both in one transaction, and staged.
    for (name, bytes) in [("short", 5), ("a b%c/é", 3 << 20), ("long", 40 << 20)] {
        let content = content(bytes);
        nacre_with(&uri, &["put", name, "-"], &content).ok();
        assert_eq!(nacre(&uri, &["get", name, "-"]).ok(), content, "{name}");
    }
    assert_eq!(nacre(&uri, &["ls"]).text(), "a b%c/é\nlong\nshort");
    // Replaced as a whole by something shorter.
    nacre_with(&uri, &["put", "long", "-"], b"brief").ok();
    assert_eq!(nacre(&uri, &["get", "long", "-"]).ok(), b"brief");
    assert_eq!(nacre(&uri, &["ls", "--staged"]).text(), "");
    // Keys, with a condition that one of two commands wins.
    nacre(&uri, &["keys", "set", "job", "owner", "a", "--if-absent"]).ok();
    nacre(&uri, &["keys", "set", "job", "owner", "b", "--if-absent"]).failed(3, &["owner"]);
    assert_eq!(nacre(&uri, &["keys", "get", "job", "owner"]).text(), "a");
    nacre(&uri, &["rm", "short", "long"]).ok();
    assert_eq!(nacre(&uri, &["ls"]).text(), "a b%c/é\njob");
    nacre(&uri, &["get", "short", "-"]).failed(1, &["short"]);
    nacre(&uri, &["rm", "short"]).failed(1, &["short"]);
    assert!(nacre(&uri, &["scrub"]).text().contains("no damage"));
}

#[test]
fn content_longer_than_an_object_becomes_a_stream_if_that_is_known_and_is_else_refused() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("limit");
    let folder = harness::folder();
    let file = folder.path().join("content");
    fs::File::create(&file).unwrap().set_len((128 << 20) + 1).unwrap();
    let file = file.to_str().unwrap();
    nacre_with(&uri, &["put", "old", "-"], b"content").ok();
    // Another fork of an object is no stream.
    nacre(&uri, &["put", "old", file, "--fork", "side"])
        .failed(1, &["134217729", "134217728", "its content is as it was"]);
    // The length of standard input is known only after a while.
    let stream = content(140 << 20);
    nacre_with(&uri, &["put", "streamed", "-"], &stream)
        .failed(1, &["134217728", "its content is as it was"]);
    assert_eq!(nacre(&uri, &["ls"]).text(), "old");
    assert_eq!(nacre(&uri, &["get", "old", "-"]).ok(), b"content");
    // RADOS holds nothing of the file; of the stream it holds the version that was reached.
    let names = String::from_utf8(cluster.rados_in(&uri, &["ls"], b"")).unwrap();
    let mut names: Vec<&str> = names.lines().filter(|name| name.starts_with("nacre.")).collect();
    names.sort_unstable();
    assert_eq!(names, ["nacre.old", "nacre.streamed"]);

    // As a stream it fits, in the place of an object or not, and whatever it is replaced with stays one.
    nacre_with(&uri, &["put", "old", "-", "--striped"], &stream).ok();
    assert_eq!(nacre(&uri, &["get", "old", "-"]).ok(), stream);
    nacre(&uri, &["put", "new", file]).ok();
    let copy = folder.path().join("copy");
    nacre(&uri, &["get", "new", copy.to_str().unwrap()]).ok();
    assert_eq!(fs::metadata(&copy).unwrap().len(), (128 << 20) + 1);
    assert!(fs::read(&copy).unwrap().iter().all(|byte| *byte == 0));
    nacre_with(&uri, &["put", "old", "-"], b"brief").ok();
    assert_eq!(nacre(&uri, &["get", "old", "-"]).ok(), b"brief");
    nacre(&uri, &["rm", "old", "new"]).ok();
    assert_eq!(nacre(&uri, &["ls"]).text(), "");
}

#[test]
fn many_ranks_write_one_stream_that_is_striped_over_rados_objects() {
    let cluster = Cluster::shared();
    harness::check_stream(&cluster.uri("stream"));
}

#[test]
fn a_damaged_object_is_told_and_stops_nothing_else() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("damage");
    for name in ["first", "second", "third"] {
        nacre_with(&uri, &["put", name, "-"], name.as_bytes()).ok();
    }
    damage(&cluster, &uri, "second");
    assert_eq!(nacre(&uri, &["ls"]).text(), "first\nsecond\nthird");
    nacre(&uri, &["get", "second", "-"]).failed(1, &["second"]);
    let scrubbed = nacre(&uri, &["scrub"]);
    assert_eq!(scrubbed.code, 1, "{scrubbed:?}");
    let shown = format!("{scrubbed:?}");
    assert!(shown.contains("second") && !shown.contains("third"), "{shown}");
    // A copy takes the undamaged objects, and reports the others.
    let folder = harness::folder();
    let copy = format!("file:{}", folder.path().join("copy").display());
    let copied = nacre(&uri, &["copy-objects", &uri, &copy]);
    assert_eq!(copied.code, 1, "{copied:?}");
    assert!(format!("{copied:?}").contains("second"), "{copied:?}");
    assert_eq!(nacre(&copy, &["ls"]).text(), "first\nthird");
    assert_eq!(nacre(&copy, &["get", "third", "-"]).ok(), b"third");
    // Removing it requires a flag.
    nacre(&uri, &["rm", "second"]).failed(1, &["second", "--force"]);
    nacre(&uri, &["rm", "--force", "second"]).ok();
    assert_eq!(nacre(&uri, &["ls"]).text(), "first\nthird");
    nacre_with(&uri, &["put", "second", "-"], b"again").ok();
    assert_eq!(nacre(&uri, &["get", "second", "-"]).ok(), b"again");
}

#[test]
fn concurrent_updates_of_few_objects_are_all_counted() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("rmw");
    let words = "bench rmw --system optimistic --clients 3 --concurrency 8 --objects 8 --blocks 4 --warm-up 0s --window 3s \
                 --repeat 1";
    let result = nacre(&uri, &words.split(' ').collect::<Vec<_>>());
    assert_eq!(result.code, 0, "{result:?}");
}

#[test]
fn a_daemon_stands_in_front_of_a_pool() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("daemon");
    let folder = harness::folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let start = || Server::listen(&address, &uri, &["--http", "127.0.0.1:0"]);
    let server = start();
    // Both sides have the same objects, with the same versions.
    let content = content(3 << 20);
    server.run_with(["put", "a", "-"], &content).ok();
    assert_eq!(nacre(&uri, &["get", "a", "-"]).ok(), content);
    nacre_with(&uri, &["put", "b", "-"], b"from beside").ok();
    assert_eq!(server.run(["get", "b", "-"]).ok(), b"from beside");
    assert_eq!(server.run(["ls"]).text(), "a\nb");
    server.run(["write", "b", "x", "--if-version", "0"]).failed(3, &["at version 1"]);
    // A client that has the store open recognizes the restarted daemon as the same.
    let client = nacre::open(&server.uri).unwrap().blocking();
    let updated = |times: u64| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let object = client.object("counter").unwrap();
                    let add = |old: &[u8]| {
                        let count = u64::from_le_bytes(old.try_into().unwrap()) + 1;
                        count.to_le_bytes().to_vec()
                    };
                    for _ in 0..times {
                        object.update(0..8, add).unwrap();
                    }
                });
            }
        });
    };
    updated(25);
    server.kill();
    let server = start();
    updated(25);
    let count = nacre(&uri, &["read", "counter", "--length", "8"]).ok();
    assert_eq!(u64::from_le_bytes(count.try_into().unwrap()), 200);

    let report = &server.run(["info", "--json"]).json()[0]["report"];
    assert_eq!((&report["engine"], &report["pool"]), (&"rados".into(), &"nacre".into()));
    assert!(server.run(["scrub"]).text().contains("no damage"));
    let pages = server.ready["http"].as_str().unwrap();
    assert_eq!(http(pages, "GET", "/healthz", ""), (200, "ok\n".to_owned()));
    let (_, metrics) = http(pages, "GET", "/metrics", "");
    assert!(metrics.contains("nacre_region_attempts_total"), "{metrics}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let mut wrong = program();
    wrong.args(["serve", "--listen", &address, "--log", "error", "--store"]);
    wrong.arg(uri.replace("rados://nacre", "rados://no-such-pool"));
    run_with(wrong, b"").failed(2, &["no-such-pool"]);
}

#[test]
fn objects_are_watched_and_maps_are_shared() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("watched");
    let write = || -> u64 { nacre(&uri, &["write", "settings", "text"]).text().parse().unwrap() };
    let first = write();
    let mut command = program();
    command.args(["--store", &uri, "--json", "watch", "settings", "--reply", "seen", "--count", "2"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["version"], first);
    let second = write();
    assert_eq!(next()["version"], second);
    // The watcher ends with this, and answers all the same.
    let outcome = nacre(&uri, &["--json", "notify", "settings", "reload", "--timeout", "30s"]).json();
    assert_eq!(outcome["acknowledged"].as_array().map(Vec::len), Some(1), "{outcome}");
    assert_eq!(next()["event"], "notified");
    assert_eq!(wait(&mut child, PATIENCE).code(), Some(0));

    nacre(&uri, &["map", "set", "policies", "balancer=greedy"]).ok();
    nacre(&uri, &["map", "set", "policies", "balancer=spread", "--if-version", "1"]).ok();
    nacre(&uri, &["map", "set", "policies", "balancer=pack", "--if-version", "1"])
        .failed(3, &["has version 2"]);
    assert_eq!(nacre(&uri, &["map", "get", "policies", "balancer"]).text(), "spread");
}

#[test]
fn a_place_that_is_no_pool_is_told() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("wrong");
    let missing = uri.replace("rados://nacre", "rados://no-such-pool");
    nacre(&missing, &["ls"]).failed(1, &["no-such-pool"]);
    let no_conf = "rados://nacre?conf=/nonexistent/ceph.conf";
    nacre(no_conf, &["ls"]).failed(1, &["/nonexistent/ceph.conf"]);
}
