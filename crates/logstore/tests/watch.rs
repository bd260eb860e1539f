//! The events that watchers of a store on a disk are told, and when: never what a crash can take back.

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use nacre_logstore::sim::{Faults, SimDisk};
use nacre_logstore::{Committer, Durability, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::watch::{Event, Watch, WatchOptions};
use nacre_object::{
    Answer, ErrorKind, Fork, ObjectId, ObjectStore, Outcome, ReadOp, Reply, Stat, Transaction,
};

fn object(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn open(disk: &Arc<SimDisk>) -> LogStore {
    let options = Options {
        durability: Durability::Always,
        segment_bytes: 64 << 10,
        committer: Committer::Caller,
        ..Options::default()
    };
    LogStore::open_on(Arc::clone(disk) as _, options).unwrap()
}

fn watch(store: &LogStore, name: &str) -> Reply<Watch> {
    store.watch(&object(name), WatchOptions::default())
}

fn write(store: &LogStore, name: &str) -> Reply<Outcome> {
    store.apply(&object(name), Transaction::new().write(Fork::DEFAULT, 0, Bytes::from_static(b"text")))
}

fn version(store: &LogStore, name: &str) -> u64 {
    match block_on(store.apply(&object(name), Transaction::new().read(ReadOp::Stat))).unwrap() {
        Outcome::Done(done) => match &done.answers[..] {
            [Answer::Stat(Stat { version, .. })] => *version,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn next_version(watch: &mut Watch) -> u64 {
    match block_on(watch.next()) {
        Some(Ok(Event::Changed { version })) => version,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_change_is_told_once_it_is_durable() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = open(&disk);
    let mut events = block_on(watch(&store, "object")).unwrap();
    // A change of another object that is durable shows that events have had their time.
    let mut clock = block_on(watch(&store, "clock")).unwrap();
    for round in 1..=20 {
        drop(write(&store, "clock"));
        store.turn().unwrap();
        assert_eq!(next_version(&mut clock), round);
        drop(write(&store, "object"));
        assert!(matches!(events.try_next(), Poll::Pending), "told before the batch was synced");
        let lost = open(&Arc::new(disk.after_crash(Faults::default())));
        assert_eq!(version(&lost, "object"), round - 1, "the change was durable before it was synced");
        store.turn().unwrap();
        assert_eq!(next_version(&mut events), round);
        let kept = open(&Arc::new(disk.after_crash(Faults::default())));
        assert_eq!(version(&kept, "object"), round, "a change was told that a crash has taken back");
    }
    store.close().unwrap();
    assert!(matches!(block_on(events.next()), Some(Err(error)) if error.kind == ErrorKind::Closed));
}

#[test]
fn a_watch_begins_at_a_version_that_is_durable() {
    let disk = Arc::new(SimDisk::new(2, Faults::default()));
    let store = open(&disk);
    drop(write(&store, "object"));
    // The version that the object has in memory may not be told yet, and neither may the watch begin.
    let mut begun = watch(&store, "object");
    assert!(matches!(begun, Reply::Pending(_)));
    drop(write(&store, "object"));
    store.turn().unwrap();
    let mut events = block_on(&mut begun).unwrap();
    assert_eq!(events.version(), 1);
    assert_eq!(next_version(&mut events), 2);
}

#[test]
fn a_store_that_cannot_sync_tells_its_watchers_so() {
    let disk = Arc::new(SimDisk::new(3, Faults::default()));
    let store = open(&disk);
    let mut events = block_on(watch(&store, "object")).unwrap();
    drop(write(&store, "object"));
    store.turn().unwrap();
    assert_eq!(next_version(&mut events), 1);
    disk.set_faults(Faults { error_at: Some(disk.operations() + 1), ..Faults::default() });
    let written = write(&store, "object");
    // The failure is told to those who wait for the batch.
    let _: Result<(), _> = store.turn();
    assert_eq!(block_on(written).unwrap_err().kind, ErrorKind::Unknown);
    assert!(matches!(block_on(events.next()), Some(Err(error)) if error.kind == ErrorKind::ReadOnly));
}
