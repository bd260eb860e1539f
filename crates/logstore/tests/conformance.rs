//! The conformance suite, on every way to keep a log.

use std::time::Duration;

use nacre_logstore::{Durability, LogStore, Options};
use nacre_object::testkit::conformance::{self, Effort};

fn small(durability: Durability) -> Options {
    Options { durability, segment_bytes: 1 << 20, ..Options::default() }
}

#[test]
fn in_memory() {
    conformance::run(&LogStore::memory(small(Durability::None)), "memory");
}

#[test]
fn by_several_handles() {
    let store = LogStore::memory(small(Durability::None));
    let handles = [store.clone(), store.clone(), store];
    conformance::run_connections(&[&handles[0], &handles[1], &handles[2]], "handles", Effort::default());
}

#[test]
fn in_a_folder_always_durable() {
    let folder = tempfile::tempdir().unwrap();
    let store = LogStore::open(folder.path(), small(Durability::Always)).unwrap();
    conformance::run(&store, "always");
    store.close().unwrap();
}

#[test]
fn in_a_folder_durable_at_intervals() {
    let folder = tempfile::tempdir().unwrap();
    let options = small(Durability::Interval(Duration::from_millis(5)));
    let store = LogStore::open(folder.path(), options).unwrap();
    conformance::run(&store, "interval");
}

#[test]
fn in_a_folder_durable_by_chance() {
    let folder = tempfile::tempdir().unwrap();
    let store = LogStore::open(folder.path(), Options { durability: Durability::None, ..Options::default() })
        .unwrap();
    conformance::run(&store, "none");
}

#[test]
fn watching_in_memory() {
    conformance::run_watching(&[&LogStore::memory(small(Durability::None))], "memory", Effort::default());
}

#[test]
fn watching_in_a_folder() {
    for (name, durability) in [("always", Durability::Always), ("none", Durability::None)] {
        let folder = tempfile::tempdir().unwrap();
        let store = LogStore::open(folder.path(), small(durability)).unwrap();
        let handles = [store.clone(), store.clone()];
        conformance::run_watching(&[&handles[0], &handles[1]], name, Effort::default());
        store.close().unwrap();
    }
}
