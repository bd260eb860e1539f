//! The choice of what is cleaned: garbage stays within its bound, and room that is given back is found, whatever the
//! segments hold.

use std::sync::Arc;

use bytes::Bytes;
use nacre_logstore::sim::{Faults, SimDisk};
use nacre_logstore::{Committer, Info, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::{ErrorKind, Fork, ObjectId, ObjectStore, Outcome, StoreError, Transaction, WriteOp};

const SEGMENT_BYTES: u64 = 64 << 10;

fn options() -> Options {
    Options { segment_bytes: SEGMENT_BYTES as u32, committer: Committer::Caller, ..Options::default() }
}

fn open(disk: &Arc<SimDisk>) -> LogStore {
    LogStore::open_on(Arc::clone(disk) as _, options()).unwrap()
}

fn disk_of(capacity_bytes: u64) -> Arc<SimDisk> {
    Arc::new(SimDisk::new(1, Faults { capacity_bytes: Some(capacity_bytes), ..Faults::default() }))
}

fn apply(store: &LogStore, name: &str, transaction: Transaction) -> Result<(), StoreError> {
    let reply = store.apply(&ObjectId::try_from(name).unwrap(), transaction);
    store.turn()?;
    block_on(reply).map(|outcome| assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}"))
}

fn write(store: &LogStore, name: &str, data: impl Into<Bytes>) -> Result<(), StoreError> {
    apply(store, name, Transaction::new().write(Fork::DEFAULT, 0, data))
}

fn remove(store: &LogStore, name: &str) {
    apply(store, name, Transaction::new().change(WriteOp::Remove)).unwrap();
}

/// Writes a thousand extents of one byte with holes in between.
fn write_bits(store: &LogStore, name: &str, fork: &Fork, from: u64) {
    let extents = (from..from + 1000).map(|number| (2 * number, Bytes::from_static(&[1]))).collect();
    let write = WriteOp::Extents { fork: fork.clone(), extents };
    apply(store, name, Transaction::new().change(write)).unwrap();
}

/// Writes objects of 8000 bytes until one is refused; returns the number of that one.
fn fill(store: &LogStore, from: u32) -> u32 {
    for number in from.. {
        if let Err(error) = write(store, &format!("object-{number}"), vec![number as u8; 8000]) {
            assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
            return number;
        }
    }
    unreachable!("the disk has an end");
}

/// Fills a store, removes every `share`th object, and checks that a good part of their room takes objects again.
fn check_removed_is_room_again(store: &LogStore, share: u32) {
    let count = fill(store, 0);
    for number in (1..count).step_by(share as usize) {
        remove(store, &format!("object-{number}"));
    }
    let more = fill(store, 1_000_000) - 1_000_000;
    assert!(more > count / share / 2, "{more} objects find the room of {}", count / share);
}

/// One block in eight stays, the others are overwritten.
fn write_hot_and_cold(store: &LogStore) {
    for step in 0..2400 {
        let name = if step % 8 == 0 { format!("cold-{step}") } else { format!("hot-{}", step % 16) };
        write(store, &name, vec![3; 4000]).unwrap();
    }
}

/// Overwrites an object, beside small ones that stay, so that the cleaner moves these.
fn write_counters(store: &LogStore) {
    for number in 0..400 {
        write(store, &format!("counter-{number}"), vec![1; 8]).unwrap();
        write(store, "scratch", vec![2; 4000]).unwrap();
    }
    assert!(store.info().moved_bytes > 0);
}

/// The bound of docs/operate.md on segments: 1.6 times what is live and described, and four segments.
fn check_bound(info: &Info) {
    let promised = (info.live_bytes + 80 * info.extents) / 10 * 16 + 4 * SEGMENT_BYTES;
    assert!(info.segment_bytes <= promised, "{} bytes of segments, {promised} promised", info.segment_bytes);
}

#[test]
fn a_segment_that_cannot_be_read_does_not_end_the_cleaning_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let store = LogStore::open(folder.path(), options()).unwrap();
    for step in 0..160 {
        let name = if step % 4 == 0 { format!("old-{step}") } else { "hot".to_string() };
        write(&store, &name, vec![3; 4000]).unwrap();
    }
    store.snapshot().unwrap();
    store.snapshot().unwrap();
    let victim = store.info().segment_list.into_iter().find(|segment| segment.live_bytes > 8000).unwrap();
    std::fs::OpenOptions::new().write(true).open(&victim.file).unwrap().set_len(8192).unwrap();
    // Half of what it holds becomes garbage.
    for step in (0..160).step_by(8) {
        remove(&store, &format!("old-{step}"));
    }
    write_hot_and_cold(&store);
    let info = store.info();
    let left = info.segment_list.iter().find(|segment| segment.file == victim.file);
    assert!(left.is_some_and(|left| left.live_bytes > 0), "what cannot be read is left: {left:?}");
    check_bound(&info);
}

#[test]
fn what_was_removed_is_room_again_after_small_values_were_moved() {
    let store = open(&disk_of(4 << 20));
    write_counters(&store);
    check_removed_is_room_again(&store, 2);
}

#[test]
fn what_was_removed_is_room_again_beside_many_small_extents() {
    let disk = disk_of(10 << 20);
    let store = open(&disk);
    for thousand in 0..40 {
        write_bits(&store, "bits", &Fork::DEFAULT, 1000 * thousand);
    }
    drop(store);
    check_removed_is_room_again(&open(&disk), 3);
}

#[test]
fn cleaning_does_not_make_the_store_larger_where_names_are_long_and_extents_small() {
    let store = open(&Arc::new(SimDisk::new(1, Faults::default())));
    write_bits(&store, &"n".repeat(255), &Fork::new("f".repeat(255)).unwrap(), 0);
    let mut most_bytes = 0;
    for _ in 0..400 {
        write(&store, "scratch", vec![2; 4000]).unwrap();
        most_bytes = most_bytes.max(store.info().segment_bytes);
    }
    assert!(most_bytes <= 10 * SEGMENT_BYTES, "{most_bytes} bytes of segments");
}
