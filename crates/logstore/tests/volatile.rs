//! Stores in memory: what they refuse, what they free, and what readers of theirs hold.

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use nacre_logstore::{LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::watch::{Event, WatchOptions};
use nacre_object::{
    Answer, ByteRange, ErrorKind, Fork, ObjectId, ObjectStore, Outcome, StoreError, Transaction, WriteOp,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn object(index: u64) -> ObjectId {
    ObjectId::try_from(&*format!("object-{index}")).unwrap()
}

fn write(store: &LogStore, index: u64, at: u64, data: Vec<u8>) -> Result<Outcome, StoreError> {
    block_on(store.apply(&object(index), Transaction::new().write(Fork::DEFAULT, at, data)))
}

fn change(store: &LogStore, index: u64, change: WriteOp) {
    block_on(store.apply(&object(index), Transaction::new().change(change))).unwrap();
}

fn read(store: &LogStore, index: u64, range: ByteRange) -> Bytes {
    let read = Transaction::new().read_range(Fork::DEFAULT, range);
    match block_on(store.apply(&object(index), read)).unwrap() {
        Outcome::Done(mut done) => match done.answers.pop() {
            Some(Answer::Range(read)) => read.data,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_store_refuses_writes_until_something_is_removed() {
    let capacity = 1 << 20;
    let store = LogStore::memory(Options { capacity_bytes: Some(capacity), ..Options::default() });
    let mut created = 0;
    let error = loop {
        match write(&store, created, 0, vec![created as u8; 8000]) {
            Ok(_) => created += 1,
            Err(error) => break error,
        }
    };
    assert!(created > 100, "{created} objects");
    assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
    for part in ["the store is full", "its capacity is 1048576 bytes", "nothing was changed"] {
        assert!(error.message.contains(part), "{error}");
    }
    let info = store.info();
    assert!(info.taken_bytes <= capacity && info.out_of_space == 1, "{info:?}");
    assert_eq!((info.live_bytes, info.objects), (created * 8000, created));
    for index in 0..created {
        assert_eq!(read(&store, index, ByteRange::new(0, 9000)), vec![index as u8; 8000]);
    }
    // What makes the store smaller is never refused, and gives room at once.
    change(&store, 4, WriteOp::Zero { fork: Fork::DEFAULT, range: ByteRange::new(0, 1000) });
    assert!(write(&store, 0, 0, vec![1; 8000]).is_err(), "most of the block is still referred to");
    change(&store, 5, WriteOp::Remove);
    write(&store, 0, 0, vec![1; 8000]).unwrap();
    write(&store, 5, 0, vec![1; 7000]).unwrap();
    change(&store, 3, WriteOp::Truncate { fork: Fork::DEFAULT, size: 100 });
    write(&store, created, 0, vec![1; 7000]).unwrap();
    assert_eq!(read(&store, 4, ByteRange::new(999, 3)), [0, 4, 4].as_slice());
    assert_eq!(read(&store, 3, ByteRange::new(0, 8000)), vec![3; 100]);
    store.check_counts();
}

#[test]
fn what_is_left_of_a_block_takes_little_more_than_its_bytes() {
    let store = LogStore::memory(Options::default());
    for index in 0..20 {
        write(&store, index, 0, vec![7; 65_536]).unwrap();
        let zero = |from: u64, to: u64| {
            change(&store, index, WriteOp::Zero { fork: Fork::DEFAULT, range: ByteRange::from(from..to) });
        };
        zero(10, 30_000);
        zero(30_100, 65_000);
        zero(65_000, 65_530);
        zero(30_050, 30_060);
        let mut expected = vec![0; 65_536];
        for live in [0..10, 30_000..30_050, 30_060..30_100, 65_530..65_536] {
            expected[live].fill(7);
        }
        assert_eq!(read(&store, index, ByteRange::new(0, 70_000)), expected);
        store.check_counts();
    }
    let info = store.info();
    assert_eq!(info.live_bytes, 20 * 106);
    assert!(info.taken_bytes < 20 * 2000, "{} bytes", info.taken_bytes);
}

#[test]
fn what_was_read_stays_as_it_was() {
    let store = LogStore::memory(Options::default());
    write(&store, 0, 0, vec![1; 100_000]).unwrap();
    let ranges = [(0, 65_536), (10, 60_000), (65_000, 1000), (99_000, 5000), (0, 100_000), (7, 3)];
    let ranges = ranges.map(|(offset, len)| ByteRange::new(offset, len));
    let first = ranges.map(|range| read(&store, 0, range));
    write(&store, 0, 50_000, vec![2; 30_000]).unwrap();
    let second = ranges.map(|range| read(&store, 0, range));
    change(&store, 0, WriteOp::Remove);
    assert_eq!(store.info().live_bytes, 0);
    store.close().unwrap();
    drop(store);
    for ((first, second), range) in first.iter().zip(&second).zip(ranges) {
        let end = range.end().min(100_000);
        assert_eq!(*first, vec![1; (end - range.offset) as usize]);
        let expected: Vec<u8> =
            (range.offset..end).map(|at| if (50_000..80_000).contains(&at) { 2 } else { 1 }).collect();
        assert_eq!(*second, expected);
    }
}

#[test]
fn a_closed_store_refuses_writes() {
    let store = LogStore::memory(Options::default());
    write(&store, 0, 0, vec![1; 10]).unwrap();
    store.close().unwrap();
    assert_eq!(write(&store, 0, 0, vec![2; 10]).unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(read(&store, 0, ByteRange::new(0, 10)), vec![1; 10]);
}

#[test]
fn threads_that_write_and_remove_lose_no_count() {
    let store = Arc::new(LogStore::memory(Options { capacity_bytes: Some(8 << 20), ..Options::default() }));
    let refused: usize = std::thread::scope(|scope| {
        let work = |seed| {
            let store = Arc::clone(&store);
            move || {
                let mut random = SmallRng::seed_from_u64(seed);
                let mut refused = 0;
                for _ in 0..4000 {
                    let index = random.random_range(0..200);
                    match random.random_range(0..8) {
                        0 => change(&store, index, WriteOp::Remove),
                        1 => change(
                            &store,
                            index,
                            WriteOp::Truncate { fork: Fork::DEFAULT, size: random.random_range(0..90_000) },
                        ),
                        2 => drop(read(&store, index, ByteRange::new(random.random_range(0..9000), 80_000))),
                        _ => {
                            let (at, len) = (random.random_range(0..70_000), random.random_range(1..70_000));
                            refused += usize::from(write(&store, index, at, vec![seed as u8; len]).is_err());
                        }
                    }
                }
                refused
            }
        };
        let running: Vec<_> = (0..4).map(|seed| scope.spawn(work(seed))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(refused > 0, "the store is too small for all of it");
    let taken = store.info().taken_bytes;
    assert!(taken <= 8 << 20, "{taken} bytes");
    store.check_counts();
    for index in 0..200 {
        change(&store, index, WriteOp::Remove);
    }
    store.check_counts();
    assert_eq!(store.info().live_bytes, 0);
    write(&store, 0, 0, vec![1; 4 << 20]).unwrap();
}

#[test]
fn a_change_is_there_for_its_watcher_when_its_writer_goes_on() {
    let store = LogStore::memory(Options::default());
    let mut watch = block_on(store.watch(&object(1), WatchOptions::default())).unwrap();
    for version in 1..=1000 {
        write(&store, 1, 0, vec![1; 10]).unwrap();
        match watch.try_next() {
            Poll::Ready(Some(Ok(Event::Changed { version: told }))) => assert_eq!(told, version),
            other => panic!("change {version}: {other:?}"),
        }
    }
}
