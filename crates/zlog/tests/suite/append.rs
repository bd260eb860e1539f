//! Appending: order, entries of all lengths, failures of the store, and readers of what was appended. The clock is the runtime's, and jumps
//! while all wait.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nacre_object::{ErrorKind, WriteOp};
use nacre_zlog::limit::ENTRY_BYTES_MAX;
use nacre_zlog::{
    Entry, FollowOptions, Log, LogError, Options, Sequencer as _, Slot, StoreSequencer, layout,
};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::{sleep, timeout};

use super::kit::{FOREVER, Fate, Faulty, entry, log, log_on, next, open, read_all};

#[tokio::test(start_paused = true)]
async fn what_is_appended_is_read_in_order() {
    for (width, unit) in [(1, 1), (1, 64), (3, 1), (4, 64)] {
        let (_, log) = log(width, unit).await;
        let mut appending = Vec::new();
        for number in 0..1000 {
            appending.push(log.appender().submit(entry(number)).await.unwrap());
        }
        for (number, appending) in (0..).zip(appending) {
            assert_eq!(appending.await, Ok(number), "positions are in the order of the appends");
        }
        let all = read_all(&log).await;
        assert_eq!(all.len(), 1000);
        for (number, (position, slot)) in (0..).zip(all) {
            assert_eq!((position, slot), (number, Slot::Entry(entry(number))));
            assert_eq!(log.read(number).await, Ok(Slot::Entry(entry(number))));
        }
        assert_eq!(log.read(1000).await, Ok(Slot::Unwritten));
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_task_appends_for_many_writers_is_written_together() {
    let writes = Arc::new(AtomicU64::new(0));
    let counted = writes.clone();
    let store = Faulty::new(move |_, transaction| {
        let is_of_entries =
            |write: &WriteOp| matches!(write, WriteOp::Extents { fork, .. } if fork.as_bytes() == b"data");
        counted.fetch_add(u64::from(transaction.writes.iter().any(is_of_entries)), Ordering::Relaxed);
        Fate::Done
    });
    let log = log_on(store, 1, 1).await;
    let writers = (0..1000).map(|writer| {
        let log = &log;
        async move {
            let first = log.append(entry(writer)).await?;
            let second = log.append(entry(writer)).await?;
            Ok::<_, LogError>((first, second))
        }
    });
    let appended = futures::future::try_join_all(writers).await.unwrap();
    let firsts: Vec<u64> = appended.iter().map(|(first, _)| *first).collect();
    assert_eq!(firsts, (0..1000).collect::<Vec<u64>>());
    assert_eq!(read_all(&log).await.len(), 2000);
    // However many of them there are: the runtime's limit of what a task does at a time divides neither entries nor replies.
    assert_eq!(writes.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn entries_of_all_lengths_come_back_as_they_were() {
    let (_, log) = log(3, 4).await;
    let lengths = [1, 2, 100, 2047, 2048, 2049, 4096, 65_536, 65_537, ENTRY_BYTES_MAX];
    let entry = |length: usize| {
        let data: Vec<u8> = (0..length).map(|at| (at * 31 + length) as u8).collect();
        (0..length % 17).fold(Entry::new(data), |entry, tag| entry.tag(vec![tag as u8; 1 + (tag * 20) % 255]))
    };
    for length in lengths {
        let position = log.append(entry(length)).await.unwrap();
        assert_eq!(log.read(position).await, Ok(Slot::Entry(entry(length))), "{length} bytes");
    }
    let read: Vec<Slot> = read_all(&log).await.into_iter().map(|(_, slot)| slot).collect();
    assert_eq!(read, lengths.map(|length| Slot::Entry(entry(length))));
    for wrong in [
        Entry::new(""),
        Entry::new(vec![0; ENTRY_BYTES_MAX + 1]),
        Entry::new("x").tag(""),
        Entry::new("x").tag(vec![0; 256]),
    ] {
        assert!(matches!(log.append(wrong).await, Err(LogError::Invalid(_))));
    }
    assert_eq!(log.tail().await, Ok(lengths.len() as u64), "what is refused takes no position");
}

#[tokio::test(start_paused = true)]
async fn writers_of_several_clients_share_one_order() {
    let (store, log) = log(4, 8).await;
    let mut tasks = Vec::new();
    for client in 0..8 {
        let log = open(&store).await;
        tasks.push(tokio::spawn(async move {
            let mut positions = Vec::new();
            for number in 0..100 {
                positions.push(log.append(entry(format!("{client} {number}"))).await.unwrap());
            }
            positions
        }));
    }
    let mut all = BTreeSet::new();
    for (client, task) in tasks.into_iter().enumerate() {
        let positions = task.await.unwrap();
        assert!(positions.is_sorted(), "a client's entries are in its order");
        for (number, position) in positions.into_iter().enumerate() {
            assert!(all.insert(position), "position {position} was given twice");
            assert_eq!(log.read(position).await, Ok(Slot::Entry(entry(format!("{client} {number}")))));
        }
    }
    assert_eq!(all.len(), 800);
}

#[tokio::test(start_paused = true)]
async fn positions_are_in_the_order_of_time_and_the_tail_never_goes_back() {
    let mut dice = StdRng::seed_from_u64(7);
    let store = Faulty::new(move |_, _| {
        let mut time = || Duration::from_millis(dice.random_range(0..4));
        Fate::Slow(time(), time())
    });
    let log = log_on(store.clone(), 3, 2).await;
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for client in 0..4 {
        let (log, acknowledged) = (open(&store).await, acknowledged.clone());
        writers.push(tokio::spawn(async move {
            let mut dice = StdRng::seed_from_u64(client);
            for number in 0..200 {
                let before = acknowledged.load(Ordering::Relaxed);
                let position = log.append(entry(number)).await.unwrap();
                assert!(position >= before, "{position} was given after {before} were acknowledged");
                acknowledged.fetch_max(position + 1, Ordering::Relaxed);
                sleep(Duration::from_millis(dice.random_range(0..3) * 4)).await;
            }
        }));
    }
    let mut last = 0;
    while !writers.iter().all(|writer| writer.is_finished()) {
        let tail = log.tail().await.unwrap();
        assert!(tail >= last, "the tail was {last}, and is {tail}");
        last = tail;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(log.tail().await, Ok(800), "no position is taken for an entry that never comes");
}

#[tokio::test(start_paused = true)]
async fn a_handle_for_reading_changes_nothing() {
    let (store, log) = log(2, 1).await;
    let head = layout::head(log.id()).unwrap();
    assert_eq!(StoreSequencer::new(store.clone(), head).next(1, 1).await, Ok(0));
    log.append(entry("after a hole")).await.unwrap();
    let reader =
        Log::open(store.clone(), "log", Options { read_only: true, ..Options::default() }).await.unwrap();
    let before = store.model().clone();
    assert_eq!(reader.append(entry("x")).await, Err(LogError::ReadOnly));
    assert_eq!(reader.fill(0).await, Err(LogError::ReadOnly));
    assert_eq!(reader.trim(0).await, Err(LogError::ReadOnly));
    assert_eq!(reader.trim_prefix(1).await, Err(LogError::ReadOnly));
    assert!(matches!(reader.seal().await, Err(LogError::ReadOnly)));
    let mut follower = reader.follow(0, FollowOptions::default());
    assert!(
        timeout(Duration::from_secs(100), follower.next()).await.is_err(),
        "it waits for somebody who may fill"
    );
    assert!(*store.model() == before);
    assert_eq!(log.fill(0).await, Ok(Slot::Filled));
    assert_eq!(next(&mut follower).await.position(), 1);
}

#[tokio::test(start_paused = true)]
async fn positions_beyond_the_end_of_every_object_are_unwritten() {
    for (width, unit) in [(1, 1), (3, 2)] {
        let (_, log) = log(width, unit).await;
        log.append(entry("first").tag("t")).await.unwrap();
        for shift in 39..64 {
            for position in [1 << shift, (1 << shift) - 1, u64::MAX - (1 << (63 - shift))] {
                assert_eq!(log.read(position).await, Ok(Slot::Unwritten), "{position}");
                let range = log.read_range(position, u64::MAX).await.unwrap();
                assert_eq!(range.first(), Some(&(position, Slot::Unwritten)));
                let mut follower = log.follow(position, FollowOptions::default());
                let waits = timeout(Duration::from_secs(1), follower.next()).await;
                assert!(waits.is_err(), "a follower from {position} on waits: {waits:?}");
            }
        }
        let tagged = log.read_tagged("t", 1 << 60, u64::MAX).await.unwrap();
        assert!(tagged.next > 1 << 60);
        assert!(matches!(log.fill(1 << 60).await, Err(LogError::Invalid(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn appends_wait_for_a_store_that_is_away_and_fail_when_it_stays_away() {
    let away = Arc::new(AtomicBool::new(false));
    let store = {
        let away = away.clone();
        Faulty::new(move |_, _| if away.load(Ordering::Relaxed) { Fate::Away } else { Fate::Done })
    };
    let log = log_on(store, 2, 2).await;
    away.store(true, Ordering::Relaxed);
    let append = tokio::spawn({
        let log = log.clone();
        async move { log.append(entry("x")).await }
    });
    sleep(Duration::from_secs(5)).await;
    away.store(false, Ordering::Relaxed);
    assert_eq!(append.await.unwrap(), Ok(0));
    away.store(true, Ordering::Relaxed);
    let error = timeout(FOREVER, log.append(entry("y"))).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_appended_behind_an_entry_that_failed_until_that_is_known() {
    let away = Arc::new(AtomicBool::new(false));
    let store = {
        let away = away.clone();
        // The sequencer goes on to give out positions.
        Faulty::new(move |object, _| {
            match away.load(Ordering::Relaxed) && !object.as_bytes().ends_with(b"/head") {
                true => Fate::Away,
                false => Fate::Done,
            }
        })
    };
    // Each entry is a write of its own.
    let log = log_on(store, 2, 1).await;
    assert_eq!(log.append(entry("before")).await, Ok(0));
    away.store(true, Ordering::Relaxed);
    let mut appending = Vec::new();
    for text in ["fails", "behind", "dropped"] {
        appending.push(log.appender().submit(entry(text)).await.unwrap());
    }
    sleep(Options::default().patience * 2).await;
    away.store(false, Ordering::Relaxed);
    // Nobody has been told yet.
    let is_refused = |result: Result<u64, LogError>| {
        let error = result.unwrap_err();
        assert!(matches!(error, LogError::Behind { position: Some(1), .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("before it (for position 1) failed"), "{error}");
    };
    is_refused(log.append(entry("too early")).await);
    assert_eq!(log.apart().append(entry("another handle")).await, Ok(4));
    drop(appending.pop());
    is_refused(appending.pop().unwrap().await);
    is_refused(log.append(entry("too early")).await);
    let error = appending.pop().unwrap().await.unwrap_err();
    assert!(matches!(error, LogError::Store(_)), "{error}");
    assert_eq!(log.append(entry("after")).await, Ok(5));
    let slots = read_all(&log).await.into_iter().map(|(_, slot)| slot);
    let entries: Vec<_> = slots.filter(|slot| matches!(slot, Slot::Entry(_))).collect();
    assert_eq!(entries, ["before", "another handle", "after"].map(|text| Slot::Entry(entry(text))));
}

#[tokio::test(start_paused = true)]
async fn an_append_that_fails_in_an_unrecognized_way_may_have_taken_effect() {
    let strange = Arc::new(AtomicBool::new(false));
    let store = {
        let strange = strange.clone();
        Faulty::new(move |object, _| {
            let is_head = object.as_bytes().ends_with(b"/head");
            if !is_head && strange.load(Ordering::Relaxed) { Fate::Unrecognized } else { Fate::Done }
        })
    };
    let log = log_on(store, 1, 1).await;
    strange.store(true, Ordering::Relaxed);
    let error = log.append(entry("x")).await.unwrap_err();
    strange.store(false, Ordering::Relaxed);
    assert_eq!(log.read(0).await, Ok(Slot::Entry(entry("x"))));
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
}

#[test]
fn a_handle_goes_on_in_another_runtime_when_that_of_its_first_append_has_ended() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let (_, log) = first.block_on(log(1, 1));
    assert_eq!(first.block_on(log.append(entry(0))), Ok(0));
    // Some are still in the queue when it ends.
    let left: Vec<_> =
        (1..3).map(|number| first.block_on(log.appender().submit(entry(number))).unwrap()).collect();
    drop(first);
    second.block_on(async {
        for appending in left {
            let ended =
                timeout(Duration::from_secs(60), appending).await.expect("it is waited for, for ever");
            assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::Unknown));
        }
        let next = timeout(Duration::from_secs(60), log.append(entry("next"))).await;
        let position = next.expect("nobody appends any more").unwrap();
        assert_eq!(log.read(position).await, Ok(Slot::Entry(entry("next"))));
    });
}
