//! Handles that append alone, write while the counter is raised, and are joined by others; and handles of one process, which take
//! positions together. The clock is the runtime's, and jumps while all wait.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nacre_object::{ErrorKind, ObjectId, Transaction};
use nacre_zlog::{
    Entry, FollowOptions, Followed, Log, Options, Sequencer as _, Shape, Slot, StoreSequencer, layout,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::{Instant, sleep, timeout};

use super::kit::{FOREVER, Fate, Faulty, entry, log_on, next, open, read_all};

/// More changes of the counter than a handle makes before it takes itself to append alone.
const WARM: u64 = 10;

fn is_head(object: &ObjectId) -> bool {
    object.as_bytes().ends_with(b"/head")
}

fn is_write(transaction: &Transaction) -> bool {
    !transaction.writes.is_empty()
}

#[tokio::test(start_paused = true)]
async fn an_append_of_a_handle_alone_waits_for_one_sync() {
    let sync = Duration::from_millis(10);
    let store = Faulty::new(move |_, transaction| match is_write(transaction) {
        true => Fate::Slow(Duration::ZERO, sync),
        false => Fate::Done,
    });
    let log = log_on(store.clone(), 3, 2).await;
    for number in 0..WARM {
        assert_eq!(log.append(entry(number)).await, Ok(number));
    }
    for number in WARM..WARM * 2 {
        let begun = Instant::now();
        assert_eq!(log.append(entry(number)).await, Ok(number));
        assert!(begun.elapsed() < sync * 2, "it took {:?}", begun.elapsed());
    }
    assert_eq!(log.tail().await, Ok(WARM * 2), "no position is taken for an entry that never comes");
    // Somebody else takes positions: the handle no longer assumes that it is alone.
    assert_eq!(open(&store).await.append(entry("other")).await, Ok(WARM * 2));
    assert_eq!(log.append(entry("own")).await, Ok(WARM * 2 + 1));
    assert_eq!(read_all(&log).await.len() as u64, WARM * 2 + 2);
}

#[tokio::test(start_paused = true)]
async fn an_append_is_acknowledged_when_the_counter_is_behind_it() {
    let away = Arc::new(AtomicBool::new(false));
    let store = {
        let away = away.clone();
        Faulty::new(move |object, transaction| {
            match away.load(Ordering::Relaxed) && is_head(object) && is_write(transaction) {
                true => Fate::Away,
                false => Fate::Done,
            }
        })
    };
    let log = log_on(store.clone(), 2, 4).await;
    for number in 0..WARM {
        assert_eq!(log.append(entry(number)).await, Ok(number));
    }
    away.store(true, Ordering::Relaxed);
    let append = tokio::spawn({
        let log = log.clone();
        async move { log.append(entry("x")).await }
    });
    sleep(Duration::from_secs(5)).await;
    assert_eq!(log.read(WARM).await, Ok(Slot::Entry(entry("x"))), "it is there");
    assert!(!append.is_finished(), "the next one could come before it");
    away.store(false, Ordering::Relaxed);
    assert_eq!(append.await.unwrap(), Ok(WARM));
    let counter = StoreSequencer::new(store, layout::head(log.id()).unwrap());
    assert_eq!(counter.read(1).await, Ok(WARM + 1));
}

#[tokio::test(start_paused = true)]
async fn what_a_writer_that_died_left_uncounted_is_counted() {
    for (read_only, appends_first) in [(false, false), (false, true), (true, false)] {
        let dead = Arc::new(AtomicBool::new(false));
        let store = {
            let dead = dead.clone();
            Faulty::new(move |object, transaction| {
                match dead.load(Ordering::Relaxed) && is_head(object) && is_write(transaction) {
                    true => Fate::Away,
                    false => Fate::Done,
                }
            })
        };
        let log = log_on(store.clone(), 2, 8).await;
        for number in 0..WARM {
            assert_eq!(log.append(entry(number)).await, Ok(number));
        }
        dead.store(true, Ordering::Relaxed);
        let error = log.append(entry("left")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        let counter = StoreSequencer::new(store.clone(), layout::head(log.id()).unwrap());
        assert_eq!(counter.read(1).await, Ok(WARM));
        dead.store(false, Ordering::Relaxed);
        let options = Options { read_only, ..Options::default() };
        let other = Log::open(store, "log", options).await.unwrap();
        let mut follower = other.follow(WARM, FollowOptions::default());
        let left = Followed::Entry { position: WARM, entry: entry("left") };
        assert_eq!(next(&mut follower).await, left);
        if appends_first {
            assert_eq!(other.append(entry("next")).await, Ok(WARM + 1));
        }
        let end = WARM + 1 + u64::from(appends_first);
        assert_eq!(other.tail().await, Ok(end), "what was seen is before the tail");
        assert_eq!(read_all(&other).await.len() as u64, end);
        let counted = if read_only { WARM } else { end };
        assert_eq!(counter.read(1).await, Ok(counted));
    }
}

#[tokio::test(start_paused = true)]
async fn handles_that_append_alone_and_together_by_turns_keep_one_order() {
    for seed in 0..30 {
        let mut dice = StdRng::seed_from_u64(seed);
        let calm = Arc::new(AtomicBool::new(true));
        let store = {
            let (calm, mut dice) = (calm.clone(), StdRng::seed_from_u64(dice.random()));
            Faulty::new(move |_, _| {
                if calm.load(Ordering::Relaxed) {
                    return Fate::Done;
                }
                let mut time = || Duration::from_micros(dice.random_range(0..2000));
                let (before, after) = (time(), time());
                match dice.random_range(0..50) {
                    0 => Fate::Lost(before),
                    _ => Fate::Slow(before, after),
                }
            })
        };
        let log = log_on(store.clone(), 1 + seed as u32 % 3, 1 + seed as u32 % 4).await;
        calm.store(false, Ordering::Relaxed);
        let acknowledged = Arc::new(AtomicU64::new(0));
        let all = Arc::new(Mutex::new(BTreeSet::new()));
        let mut writers = Vec::new();
        for client in 0..3 {
            let (log, acknowledged, all) = (open(&store).await, acknowledged.clone(), all.clone());
            let mut dice = StdRng::seed_from_u64(dice.random());
            writers.push(tokio::spawn(async move {
                for round in 0..4 {
                    // Long enough for another one to be alone, and short enough to come while it is.
                    sleep(Duration::from_millis(dice.random_range(0..300))).await;
                    for number in 0..dice.random_range(1..30) {
                        let before = acknowledged.load(Ordering::Relaxed);
                        let text = format!("{client} {round} {number}");
                        let position = log.append(entry(&text)).await.unwrap();
                        assert!(position >= before, "{position} was given after {before} were acknowledged");
                        acknowledged.fetch_max(position + 1, Ordering::Relaxed);
                        assert!(all.lock().insert((position, text)));
                    }
                }
            }));
        }
        for writer in writers {
            timeout(FOREVER, writer).await.expect("it waits for ever").unwrap();
        }
        let found = read_all(&log).await.into_iter().filter_map(|(position, slot)| match slot {
            Slot::Entry(Entry { data, .. }) => Some((position, String::from_utf8(data.to_vec()).unwrap())),
            _ => None,
        });
        assert_eq!(found.collect::<BTreeSet<_>>(), *all.lock(), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn handles_of_one_process_take_positions_together() {
    let changes = Arc::new(AtomicU64::new(0));
    let store = {
        let changes = changes.clone();
        Faulty::new(move |object, transaction| {
            if is_head(object) && is_write(transaction) {
                changes.fetch_add(1, Ordering::Relaxed);
            }
            Fate::Slow(Duration::from_millis(1), Duration::from_millis(1))
        })
    };
    let log = log_on(store, 4, 1).await;
    changes.store(0, Ordering::Relaxed);
    let begun = Instant::now();
    let writers = (0..16).map(|writer| {
        let log = log.apart();
        tokio::spawn(async move {
            for number in 0..20 {
                log.append(entry(format!("{writer} {number}"))).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    // Each for itself, they would need a change for every append, one after the other.
    let count = changes.load(Ordering::Relaxed);
    assert!(count < 160, "{count} changes of the counter for 320 appends");
    assert!(begun.elapsed() < Duration::from_secs(1), "it took {:?}", begun.elapsed());
    assert_eq!(log.tail().await, Ok(320), "no position is taken for an entry that never comes");
}

#[tokio::test(start_paused = true)]
async fn a_request_for_positions_that_is_given_up_takes_none_and_holds_nobody_up() {
    let store = Faulty::new(|_, _| Fate::Slow(Duration::from_millis(5), Duration::from_millis(5)));
    let log = log_on(store.clone(), 1, 1).await;
    let sequencer = Arc::new(StoreSequencer::new(store, layout::head(log.id()).unwrap()));
    assert_eq!(sequencer.next(1, 1).await, Ok(0));
    let ask = |count: u64| {
        let sequencer = sequencer.clone();
        tokio::spawn(async move { sequencer.next(1, count).await })
    };
    let first = ask(1);
    sleep(Duration::from_millis(1)).await;
    let (given_up, last) = (ask(1000), ask(1));
    sleep(Duration::from_millis(1)).await;
    given_up.abort();
    assert_eq!(first.await.unwrap(), Ok(1));
    assert_eq!(last.await.unwrap(), Ok(2), "positions are taken for those who wait");
    // One that is given up while its transaction is on its way leaves a gap, and the others are served.
    let first = ask(7);
    sleep(Duration::from_millis(1)).await;
    let last = ask(1);
    sleep(Duration::from_millis(1)).await;
    first.abort();
    let position = timeout(FOREVER, last).await.expect("it waits for ever").unwrap();
    assert!(matches!(position, Ok(3 | 10)), "{position:?}");
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_was_read_before_is_read_without_its_index_until_it_is_trimmed() {
    let reads = Arc::new(AtomicU64::new(0));
    let store = {
        let reads = reads.clone();
        Faulty::new(move |object, transaction| {
            if !is_head(object) {
                reads.fetch_add(transaction.reads.len() as u64, Ordering::Relaxed);
            }
            Fate::Done
        })
    };
    let log = log_on(store.clone(), 2, 4).await;
    for number in 0..8 {
        log.append(entry(number)).await.unwrap();
    }
    assert_eq!(log.read(5).await, Ok(Slot::Entry(entry(5))));
    reads.store(0, Ordering::Relaxed);
    assert_eq!(log.read(5).await, Ok(Slot::Entry(entry(5))));
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    let other = open(&store).await;
    other.trim(5).await.unwrap();
    assert_eq!(log.read(5).await, Ok(Slot::Trimmed));
    assert_eq!(log.read(2).await, Ok(Slot::Entry(entry(2))));
    other.reshape(Shape { width: 3, unit: 1 }).await.unwrap();
    assert_eq!(log.read(2).await, Ok(Slot::Entry(entry(2))), "it stays where it is");
    other.append(entry("in another view")).await.unwrap();
    other.trim_prefix(8).await.unwrap();
    assert_eq!(log.read(2).await, Ok(Slot::Trimmed));
    assert_eq!(log.append(entry("goes on")).await, Ok(9));
}
