//! The counter in the store: clients of different processes take positions and append at the same time, and none refuses another one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_object::testkit::MemoryStore;
use nacre_object::{
    Answer, ByteRange, Fork, Key, ObjectId, ObjectStore, Outcome, ReadOp, Transaction, WriteOp,
};
use nacre_zlog::{Log, Options, Sequencer as _, SequencerError, Slot, StoreSequencer, layout};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::JoinSet;

use super::kit::{Fate, Faulty, entry, log, log_on, read_all};

fn key(name: &str) -> Key {
    Key::new(Bytes::copy_from_slice(name.as_bytes())).unwrap()
}

fn encode(epoch: u64, position: u64) -> Bytes {
    [epoch.to_be_bytes(), position.to_be_bytes()].concat().into()
}

async fn read(store: &MemoryStore, head: &ObjectId, read: ReadOp) -> Answer {
    match store.apply(head, Transaction::new().read(read)).await.unwrap() {
        Outcome::Done(mut done) => done.answers.pop().unwrap(),
        Outcome::Refused(refusal) => panic!("{refusal:?}"),
    }
}

async fn value(store: &MemoryStore, head: &ObjectId, name: &str) -> Option<Bytes> {
    match read(store, head, ReadOp::Key { key: key(name) }).await {
        Answer::Value(value) => value,
        answer => panic!("{answer:?}"),
    }
}

/// Returns the size of the fork of taken positions, and the number of its extents.
async fn taken(store: &MemoryStore, head: &ObjectId) -> (u64, usize) {
    let (fork, range) = (Fork::new("taken").unwrap(), ByteRange::ALL);
    match read(store, head, ReadOp::Extents { fork, range }).await {
        Answer::Range(taken) => (taken.size, taken.extents.len()),
        answer => panic!("{answer:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_take_positions_at_the_same_time_are_never_refused() {
    let store = Faulty::new(|_, _| Fate::Slow(Duration::from_millis(1), Duration::from_millis(1)));
    let log = log_on(store.clone(), 2, 4).await;
    let before = store.refusals();
    let mut clients = JoinSet::new();
    for client in 0..5 {
        let sequencer = StoreSequencer::new(store.clone(), layout::head(log.id()).unwrap());
        clients.spawn(async move {
            let mut positions = Vec::new();
            for round in 0..40 {
                let count = 1 + (client + round) % 7;
                let first = sequencer.next(1, count).await.unwrap();
                assert!(positions.last().is_none_or(|last| *last < first), "they ascend");
                positions.extend(first..first + count);
            }
            positions
        });
    }
    let mut all: Vec<u64> = clients.join_all().await.into_iter().flatten().collect();
    all.sort_unstable();
    assert_eq!(
        all,
        (0..all.len() as u64).collect::<Vec<_>>(),
        "each position is given out once, and none is left out"
    );
    assert_eq!(store.refusals(), before);
}

/// Handles that do not write before they have taken positions, as if each were in a process of its own that is never alone.
async fn handles(store: &Arc<Faulty>, log: &Log, count: usize) -> Vec<Log> {
    let mut handles = Vec::new();
    for _ in 0..count {
        let sequencer = StoreSequencer::new(store.clone(), layout::head(log.id()).unwrap());
        let options = Options { sequencer: Some(Arc::new(sequencer)), ..Options::default() };
        handles.push(Log::open(store.clone(), "log", options).await.unwrap());
    }
    handles
}

#[tokio::test(start_paused = true)]
async fn batches_of_several_handles_on_the_same_objects_are_never_refused() {
    for seed in 0..20 {
        let mut dice = StdRng::seed_from_u64(seed);
        let store = {
            let mut dice = StdRng::seed_from_u64(dice.random());
            Faulty::new(move |_, _| {
                let mut time = || Duration::from_micros(dice.random_range(0..3000));
                Fate::Slow(time(), time())
            })
        };
        let (width, unit) = (1 + seed as u32 % 3, 1 + seed as u32 % 5 * 4);
        let log = log_on(store.clone(), width, unit).await;
        let handles = handles(&store, &log, 2).await;
        let before = store.refusals();
        let mut writers = JoinSet::new();
        for (number, handle) in handles.into_iter().enumerate() {
            // Sixteen entries of each handle are under way at any time.
            for writer in 0..16 {
                let handle = handle.clone();
                writers.spawn(async move {
                    let mut appended = Vec::new();
                    for round in 0..10 {
                        let text = format!("{number} {writer} {round}");
                        let position = handle.append(entry(&text)).await.unwrap();
                        assert!(appended.last().is_none_or(|(last, _)| *last < position), "they ascend");
                        appended.push((position, entry(&text)));
                    }
                    appended
                });
            }
        }
        let appended: BTreeSet<(u64, Bytes)> = (writers.join_all().await.into_iter().flatten())
            .map(|(position, entry)| (position, entry.data))
            .collect();
        assert_eq!(store.refusals(), before, "seed {seed}");
        let found = read_all(&log).await.into_iter().map(|(position, slot)| match slot {
            Slot::Entry(entry) => (position, entry.data),
            slot => panic!("{slot:?} at {position}, seed {seed}"),
        });
        assert_eq!(found.collect::<BTreeSet<_>>(), appended, "seed {seed}");
        assert_eq!(appended.len(), 320, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_format_of_the_counter() {
    let (store, log) = log(1, 1).await;
    let head = layout::head(log.id()).unwrap();
    let sequencer = StoreSequencer::new(store.clone(), head.clone());
    assert_eq!(value(&store, &head, "installed").await, Some(encode(1, 0)));
    assert_eq!(sequencer.next(1, 3).await, Ok(0));
    assert_eq!(sequencer.next(1, 100_000).await, Ok(3), "more than one transaction has room for");
    assert_eq!(taken(&store, &head).await.0, 100_003);
    sequencer.install(2, 50).await.unwrap();
    assert_eq!(value(&store, &head, "installed").await, Some(encode(2, 50)));
    assert_eq!(taken(&store, &head).await.0, 0, "positions are counted anew in each epoch");
    assert_eq!(sequencer.next(1, 1).await, Err(SequencerError::Epoch(Some(2))));
    assert_eq!(sequencer.next(2, 1).await, Ok(50));
    assert_eq!(sequencer.install(2, 9).await, Err(SequencerError::Epoch(Some(2))));
    // A handle that knows an earlier epoch only is refused, whatever others have taken.
    let other = StoreSequencer::new(store.clone(), head.clone());
    assert_eq!(other.next(2, 1).await, Ok(51));
    sequencer.install(3, 60).await.unwrap();
    assert_eq!(other.next(2, 1).await, Err(SequencerError::Epoch(Some(3))));
    assert_eq!(other.read(3).await, Ok(60));
}

#[tokio::test(start_paused = true)]
async fn the_counter_of_an_earlier_version_is_read_and_replaced_by_the_first_who_takes_positions() {
    for installs in [false, true] {
        let store = Arc::new(MemoryStore::new());
        let head: ObjectId = "head".parse().unwrap();
        let old = WriteOp::SetKey { key: key("sequencer"), value: encode(4, 70) };
        store.apply(&head, Transaction::new().change(old)).await.unwrap();
        let clients = [0, 1].map(|_| StoreSequencer::new(store.clone(), head.clone()));
        assert_eq!(clients[0].read(4).await, Ok(70));
        assert_eq!(clients[1].read(5).await, Err(SequencerError::Epoch(Some(4))));
        assert_eq!(value(&store, &head, "installed").await, None, "who reads changes nothing");
        let epoch = if installs {
            clients[0].install(5, 70).await.unwrap();
            5
        } else {
            4
        };
        assert_eq!(clients[0].next(epoch, 2).await, Ok(70));
        assert_eq!(clients[1].next(epoch, 1).await, Ok(72));
        assert_eq!(value(&store, &head, "sequencer").await, None, "earlier versions find no counter");
        assert_eq!(value(&store, &head, "installed").await, Some(encode(epoch, 70)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_positions_that_were_taken_long_ago_are_given_back() {
    // Where one and seven are taken by turns, neither client expects to reach a multiple of eight.
    for counts in [[1, 1], [1, 7]] {
        let store = Arc::new(MemoryStore::new());
        let head: ObjectId = "head".parse().unwrap();
        let clients = [0, 1].map(|_| StoreSequencer::new(store.clone(), head.clone()));
        clients[0].install(1, 0).await.unwrap();
        let mut next = 0;
        for turn in 0..4000 {
            let count = counts[turn % 2];
            assert_eq!(clients[turn % 2].next(1, count).await, Ok(next));
            next += count;
        }
        let (size, extents) = taken(&store, &head).await;
        assert_eq!(size, next);
        assert!(extents < 2000, "{extents} extents for {next} positions, {counts:?}");
    }
}
