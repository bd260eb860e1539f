//! Tests of what must not happen while a sync is under way.

use std::mem::ManuallyDrop;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use nacre_logstore::sim::{Faults, Moment, Operation, SimDisk};
use nacre_logstore::{Committer, Durability, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::{Answer, ByteRange, Fork, ObjectId, ObjectStore, Outcome, Transaction};

/// Holds the next sync of a segment open, before it has any effect: reports that, and waits for leave to go
/// on.
fn hold_next_sync(disk: &SimDisk) -> (Receiver<()>, Sender<()>) {
    let (held, is_held) = channel();
    let (release, released) = channel();
    let once = Mutex::new(Some((held, released)));
    disk.set_hook(Arc::new(move |moment, operation, name| {
        if (moment, operation) == (Moment::Before, Operation::Sync) && name.starts_with("segment-") {
            let taken = once.lock().unwrap().take();
            if let Some((held, released)) = taken {
                held.send(()).unwrap();
                // An error says that the test is over.
                let _: Result<(), _> = released.recv();
            }
        }
    }));
    (is_held, release)
}

fn put(store: &LogStore, object: &ObjectId, value: u8) {
    let write = Transaction::new().write(Fork::DEFAULT, 0, vec![value; 20_000]);
    assert!(matches!(block_on(store.apply(object, write)).unwrap(), Outcome::Done(_)));
}

/// Returns what a store holds after a loss of power: the first byte of the object, if it exists.
fn after_crash(disk: &SimDisk, object: &ObjectId) -> Option<u8> {
    let options = Options {
        durability: Durability::None,
        segment_bytes: 64 << 10,
        committer: Committer::Caller,
        ..Options::default()
    };
    let store = LogStore::open_on(Arc::new(disk.after_crash(Faults::default())), options).unwrap();
    let read = Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, 20_000));
    let outcome = block_on(store.apply(object, read));
    let Ok(Outcome::Done(done)) = outcome else { panic!("the object cannot be read: {outcome:?}") };
    let Some(Answer::Range(read)) = done.answers.first() else { panic!("no answer") };
    assert!(read.data.iter().all(|byte| *byte == read.data[0]));
    read.data.first().copied()
}

#[test]
fn a_snapshot_waits_for_a_sync_that_somebody_else_began() {
    let object = ObjectId::try_from("object").unwrap();
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let options = Options {
        durability: Durability::Interval(Duration::from_millis(1)),
        segment_bytes: 64 << 10,
        ..Options::default()
    };
    let store = LogStore::open_on(Arc::clone(&disk) as _, options).unwrap();
    put(&store, &object, 1);
    store.snapshot().unwrap();

    // The commit thread syncs what it acknowledged, and the device takes its time.
    let (is_held, release) = hold_next_sync(&disk);
    put(&store, &object, 2);
    is_held.recv().unwrap();
    let (finished, is_finished) = channel();
    let snapshot = std::thread::spawn({
        let store = store.clone();
        move || finished.send(store.snapshot()).unwrap()
    });
    // A snapshot that does not wait for the sync is ready at once; this one cannot be, however long one waits for it.
    let early = is_finished.recv_timeout(Duration::from_millis(500)).ok();
    let least = if early.is_some() { 2 } else { 1 };
    for _ in 0..40 {
        let found = after_crash(&disk, &object);
        assert!(found.is_some_and(|value| value >= least), "{found:?} after a loss of power");
    }
    assert!(early.is_none(), "a snapshot is ready before the log that it refers to is on the device");

    release.send(()).unwrap();
    is_finished.recv().unwrap().unwrap();
    snapshot.join().unwrap();
    for _ in 0..40 {
        assert_eq!(after_crash(&disk, &object), Some(2));
    }
    store.close().unwrap();
}

#[test]
fn a_turn_does_not_commit_beside_the_committing_thread() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let options = Options { segment_bytes: 64 << 10, ..Options::default() };
    // Not dropped when the test fails: a store that acknowledged batches out of order waits for ever when it closes.
    let store = ManuallyDrop::new(LogStore::open_on(Arc::clone(&disk) as _, options).unwrap());
    // With a segment ready a write takes its place in the log at once.
    store.wait_for_maintenance();
    let object = ObjectId::try_from("object").unwrap();
    let apply = |value: u8| store.apply(&object, Transaction::new().write(Fork::DEFAULT, 0, vec![value]));
    let (is_held, release) = hold_next_sync(&disk);
    let first = apply(1);
    is_held.recv_timeout(Duration::from_secs(60)).unwrap();
    let mut second = apply(2);
    store.turn().unwrap();
    assert!((&mut second).now_or_never().is_none(), "told before the batch before it was synced");
    release.send(()).unwrap();
    for reply in [first, second] {
        assert!(matches!(block_on(reply).unwrap(), Outcome::Done(_)));
    }
    store.close().unwrap();
}
