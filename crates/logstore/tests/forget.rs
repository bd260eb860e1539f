//! Removed objects are forgotten, and nobody can tell but by versions that rise.

use std::sync::Arc;

use nacre_logstore::sim::{Faults, SimDisk};
use nacre_logstore::{Committer, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::{
    ByteRange, Done, Fork, Guard, ObjectId, ObjectStore, Outcome, ReadOp, Reply, Transaction, WriteOp,
    limit::FLOOR_MAX,
};

fn options() -> Options {
    Options { segment_bytes: 64 << 10, committer: Committer::Caller, ..Options::default() }
}

fn open(disk: &Arc<SimDisk>) -> LogStore {
    LogStore::open_on(Arc::clone(disk) as _, options()).unwrap()
}

fn id(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn outcome(store: &LogStore, object: &str, transaction: Transaction) -> Outcome {
    let reply = store.apply(&id(object), transaction);
    store.turn().unwrap();
    block_on(reply).unwrap()
}

fn done(store: &LogStore, object: &str, transaction: Transaction) -> Done {
    match outcome(store, object, transaction) {
        Outcome::Done(done) => done,
        refused => panic!("{refused:?}"),
    }
}

fn version(store: &LogStore, object: &str) -> u64 {
    done(store, object, Transaction::new().read(ReadOp::Stat)).version
}

fn write() -> Transaction {
    Transaction::new().write(Fork::DEFAULT, 10, "data")
}

fn remove() -> Transaction {
    Transaction::new().change(WriteOp::Remove)
}

/// A store in which "a" was removed at version 8, and "b" at version 3, and both were forgotten.
fn store_that_forgot(disk: &Arc<SimDisk>) -> LogStore {
    let store = open(disk);
    for object in ["a", "a", "a", "a", "a", "a", "a", "b", "b", "kept"] {
        done(&store, object, write());
    }
    done(&store, "a", remove());
    done(&store, "b", remove());
    assert_eq!(store.forget_removed(), 8);
    store.check_counts();
    store
}

#[test]
fn an_object_goes_on_above_every_version_that_it_ever_had() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = store_that_forgot(&disk);
    for object in ["a", "b", "never"] {
        assert_eq!(version(&store, object), 8, "{object}");
    }
    assert_eq!(version(&store, "kept"), 1, "an object that exists keeps its version");
    // What was read before is not taken for what there is now.
    let region = Guard::Region { fork: Fork::DEFAULT, range: ByteRange::new(0, 4), version: 3 };
    assert!(matches!(outcome(&store, "b", write().guard(region)), Outcome::Refused(_)));
    let absent = Guard::Version { version: 0 };
    assert!(matches!(outcome(&store, "b", write().guard(absent)), Outcome::Refused(_)));
    assert_eq!(done(&store, "b", write()).version, 9);
    assert_eq!(done(&store, "b", remove()).version, 10);
    assert_eq!(version(&store, "b"), 10);
}

#[test]
fn the_floor_outlives_the_process_with_and_without_a_snapshot() {
    for (snapshot, created) in [(false, false), (true, false), (false, true), (true, true)] {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let store = store_that_forgot(&disk);
        store.turn().unwrap();
        if created {
            assert_eq!(done(&store, "a", write()).version, 9);
        }
        if snapshot {
            store.snapshot().unwrap();
        }
        let read = Transaction::new().read(ReadOp::Extents { fork: Fork::DEFAULT, range: ByteRange::ALL });
        let before = done(&store, "a", read.clone());
        let disk = Arc::new(disk.after_crash(Faults::default()));
        let store = open(&disk);
        assert_eq!(done(&store, "a", read), before, "every byte is as old as it was");
        assert_eq!(version(&store, "b"), 8);
        assert_eq!(store.removed_objects(), 0, "what was forgotten before does not come back");
        store.check_counts();
    }
}

#[test]
fn fences_services_and_great_versions_are_remembered() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = store_that_forgot(&disk);
    let region = |version| Guard::Proposal { fork: Fork::DEFAULT, range: ByteRange::ALL, version };
    done(&store, "fenced", write().change(WriteOp::RaiseFence { token: 5 }));
    done(&store, "session", write().change(WriteOp::FenceSession { session: 5 }));
    done(&store, "great", write().guard(region(FLOOR_MAX + 1)));
    for object in ["fenced", "session", "great", "nacre/service", "nacre/never"] {
        if object != "nacre/never" {
            done(&store, object, remove());
        }
    }
    assert_eq!(store.forget_removed(), 8, "none of them raises the floor");
    let check = |store: &LogStore| {
        let as_session = |token| Transaction::new().guard(Guard::Fence { token });
        assert!(matches!(outcome(store, "fenced", as_session(4)), Outcome::Refused(_)));
        assert!(matches!(outcome(store, "session", as_session(5)), Outcome::Refused(_)));
        // A floor of fences would shut out sessions that nobody fenced.
        assert!(matches!(outcome(store, "session", as_session(4)), Outcome::Done(_)));
        assert!(matches!(outcome(store, "never", as_session(0)), Outcome::Done(_)));
        assert_eq!(version(store, "great"), FLOOR_MAX + 2);
        assert_eq!((version(store, "nacre/service"), version(store, "nacre/never")), (1, 0));
    };
    check(&store);
    store.turn().unwrap();
    check(&open(&Arc::new(disk.after_crash(Faults::default()))));
}

#[test]
fn a_store_forgets_by_itself_and_its_index_stays_short() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = open(&disk);
    for index in 0..3_000 {
        let object = id(&format!("object-{index}"));
        drop(store.apply(&object, Transaction::new().change(WriteOp::Create).change(WriteOp::Remove)));
        if index % 100 == 0 {
            store.turn().unwrap();
        }
    }
    assert!(store.removed_objects() <= 1_100, "{} are remembered", store.removed_objects());
    store.check_counts();
    let floor = version(&store, "another");
    assert!((1..=20).contains(&floor), "the floor is {floor}: it rises for all that there are at a time");
    // Those that are left are forgotten as others come.
    store.snapshot().unwrap();
    store.turn().unwrap();
    let left = store.removed_objects();
    let again = open(&Arc::new(disk.after_crash(Faults::default())));
    assert!(again.removed_objects() <= left);
    again.check_counts();
}

#[test]
fn watching_what_was_forgotten_begins_at_the_floor() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = store_that_forgot(&disk);
    store.turn().unwrap();
    let watch = block_on(store.watch(&id("a"), Default::default())).unwrap();
    assert_eq!(watch.version(), 8);
}

#[test]
fn a_removal_is_told_of_when_it_is_durable_though_the_object_is_forgotten() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = store_that_forgot(&disk);
    // The floor covers it: it is forgotten before the batch of its removal is on the disk.
    let removal = store.apply(&id("kept"), remove());
    assert_eq!(store.forget_removed(), 8);
    assert_eq!(store.removed_objects(), 0);
    let stat = store.apply(&id("kept"), Transaction::new().read(ReadOp::Stat));
    assert!(matches!(stat, Reply::Pending(_)), "a crash may still take the removal back");
    let watch = store.watch(&id("kept"), Default::default());
    assert!(matches!(watch, Reply::Pending(_)));
    store.turn().unwrap();
    assert!(matches!(block_on(removal).unwrap(), Outcome::Done(_)));
    assert!(matches!(block_on(stat).unwrap(), Outcome::Done(done) if !done.existed && done.version == 8));
}

#[test]
fn a_great_proposal_does_not_end_forgetting() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = store_that_forgot(&disk);
    let great = Guard::Proposal { fork: Fork::DEFAULT, range: ByteRange::ALL, version: FLOOR_MAX - 1 };
    done(&store, "great", write().guard(great));
    done(&store, "great", remove());
    assert_eq!(store.forget_removed(), 8, "the floor does not follow it");
    assert_eq!(version(&store, "great"), FLOOR_MAX);
    for object in ["x", "y"] {
        done(&store, object, write());
        done(&store, object, remove());
    }
    assert_eq!(store.forget_removed(), 10);
    assert_eq!(store.removed_objects(), 0);
    assert_eq!(version(&store, "great"), FLOOR_MAX, "it is remembered");
}
