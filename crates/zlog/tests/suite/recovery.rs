//! Recovery, views and trimming. The clock is the runtime's, and jumps while all wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nacre_object::{ErrorKind, ExtentKind, ObjectId, Transaction, WriteOp};
use nacre_zlog::limit::WIDTH_MAX;
use nacre_zlog::{
    Directory, Entry, FollowOptions, Followed, Log, LogError, Options, Sequencer as _, Shape, Slot,
    StoreSequencer, layout, limit,
};
use tokio::time::{Instant, sleep, timeout};

use super::kit::{FOREVER, Fate, Faulty, entry, log, log_on, next, open};

#[tokio::test(start_paused = true)]
async fn what_is_trimmed_is_gone_for_ever() {
    let (store, log) = log(3, 2).await;
    for number in 0..30 {
        log.append(entry(number)).await.unwrap();
    }
    let bytes = || {
        let model = store.model();
        let extents = model.objects().flat_map(|(_, state)| {
            state.known_forks().flat_map(|fork| state.all_extents(fork)).collect::<Vec<_>>()
        });
        extents.filter(|extent| extent.kind == ExtentKind::Data).map(|extent| extent.range.len).sum::<u64>()
    };
    let full = bytes();
    log.trim(5).await.unwrap();
    log.trim(5).await.unwrap();
    assert_eq!(log.read(5).await, Ok(Slot::Trimmed));
    assert!(bytes() < full);
    // Entries that were written in one piece with those that go stay.
    log.trim_prefix(20).await.unwrap();
    assert!(bytes() < full / 2, "space comes back");
    assert_eq!(log.begin().await, Ok(20));
    for position in 0..20 {
        assert_eq!(log.read(position).await, Ok(Slot::Trimmed));
    }
    assert_eq!(log.read(20).await, Ok(Slot::Entry(entry(20))));
    let mut follower = log.follow(3, FollowOptions::default());
    assert_eq!(next(&mut follower).await, Followed::Trimmed { from: 3, to: 20 });
    assert_eq!(next(&mut follower).await.position(), 20);
    // Trimming goes only forwards, and not beyond the tail.
    log.trim_prefix(10).await.unwrap();
    assert_eq!(log.begin().await, Ok(20));
    assert!(matches!(log.trim_prefix(31).await, Err(LogError::Invalid(_))));
    log.trim_prefix(30).await.unwrap();
    let sealed = log.seal().await.unwrap();
    assert_eq!(sealed.tail, 30, "a log that is empty goes on where it was");
    assert_eq!(log.append(entry("x")).await, Ok(30));
}

#[tokio::test(start_paused = true)]
async fn entries_that_were_written_together_are_trimmed_one_by_one() {
    let (_, log) = log(2, 8).await;
    for number in 0..63 {
        drop(log.appender().submit(entry(number)).await.unwrap());
    }
    assert_eq!(log.append(entry(63)).await, Ok(63));
    for before in [0, 3, 9, 10, 17, 30, 63, 64] {
        log.trim(before.min(63)).await.unwrap();
        log.trim_prefix(before).await.unwrap();
        for position in 0..64 {
            let wanted =
                if position <= before.min(63) { Slot::Trimmed } else { Slot::Entry(entry(position)) };
            assert_eq!(log.read(position).await, Ok(wanted), "{position} before {before}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_recovery_goes_on_after_the_last_entry_and_clients_go_on_with_it() {
    let (store, log) = log(4, 2).await;
    let other = open(&store).await;
    for number in 0..21 {
        log.append(entry(number)).await.unwrap();
    }
    let mut follower = other.follow(0, FollowOptions::default());
    assert_eq!(next(&mut follower).await.position(), 0);
    let sealed = log.seal().await.unwrap();
    assert_eq!((sealed.epoch, sealed.tail, sealed.sealed), (2, 21, 4));
    assert_eq!(other.append(entry("of a client that does not know")).await, Ok(21));
    for position in 1..22 {
        assert_eq!(next(&mut follower).await.position(), position);
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_may_have_several_objects_for_each_of_a_thousand_servers() {
    let (store, log) = log(WIDTH_MAX, 1).await;
    let mut follower = open(&store).await.follow(0, FollowOptions::default());
    for number in 0..3 {
        assert_eq!(log.append(entry(number)).await, Ok(number));
        assert_eq!(next(&mut follower).await.position(), number);
    }
    let sealed = log.seal().await.unwrap();
    assert_eq!((sealed.tail, sealed.sealed), (3, WIDTH_MAX));
    let wider = Shape { width: WIDTH_MAX + 1, unit: 1 };
    let refused = Directory::new(store).unwrap().create("wider", wider).await;
    assert!(matches!(refused, Err(LogError::Invalid(_))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_recovery_asks_as_little_of_a_long_log_as_of_a_short_one() {
    let mut counts = Vec::new();
    for length in [10, 10_000_000] {
        let requests = Arc::new(AtomicU64::new(0));
        let counted = requests.clone();
        let store = Faulty::new(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            Fate::Done
        });
        let log = log_on(store.clone(), 4, 64).await;
        // Only the last entry is there: that is enough for objects as long as those of a log that has all.
        let sequencer = StoreSequencer::new(store, layout::head(log.id()).unwrap());
        assert_eq!(sequencer.next(1, length - 1).await, Ok(0));
        assert_eq!(log.append(entry("last")).await, Ok(length - 1));
        requests.store(0, Ordering::Relaxed);
        assert_eq!(log.seal().await.unwrap().tail, length);
        counts.push(requests.load(Ordering::Relaxed));
    }
    assert_eq!(counts[0], counts[1]);
}

#[tokio::test(start_paused = true)]
async fn a_recovery_whose_client_died_is_completed_by_others() {
    let died = Arc::new(AtomicBool::new(false));
    let store = {
        let died = died.clone();
        Faulty::new(move |object, _| {
            // The objects are sealed; then the client reaches nothing any more.
            let is_head = object.as_bytes().ends_with(b"/head");
            if is_head && died.load(Ordering::Relaxed) { Fate::Away } else { Fate::Done }
        })
    };
    let log = log_on(store.clone(), 3, 1).await;
    log.append(entry(0)).await.unwrap();
    died.store(true, Ordering::Relaxed);
    let recovery = tokio::spawn({
        let log = open(&store).await;
        async move { log.seal().await }
    });
    sleep(Duration::from_millis(100)).await;
    recovery.abort();
    died.store(false, Ordering::Relaxed);
    let begun = Instant::now();
    assert_eq!(timeout(FOREVER, log.append(entry(1))).await.unwrap(), Ok(1));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(log.read(0).await, Ok(Slot::Entry(entry(0))));
}

#[tokio::test(start_paused = true)]
async fn a_log_whose_recovery_was_not_completed_is_looked_at_without_waiting() {
    let (store, log) = log(2, 1).await;
    log.append(entry(0)).await.unwrap();
    let options = Options { read_only: true, ..Options::default() };
    let reader = Log::open(store.clone(), "log", options).await.unwrap();
    assert!(!reader.info().await.unwrap().recovering);
    // A client that recovers the log dies right before the end.
    let sequencer = StoreSequencer::new(store.clone(), layout::head(log.id()).unwrap());
    sequencer.install(7, 5).await.unwrap();
    let begun = Instant::now();
    let info = reader.info().await.unwrap();
    assert_eq!((info.epoch, info.tail, info.recovering), (1, 5, true));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    // Others complete it, and the reader sees that.
    let recovered = log.seal().await.unwrap();
    let info = reader.info().await.unwrap();
    assert_eq!((info.epoch, info.tail, info.recovering), (recovered.epoch, recovered.tail, false));
    Directory::new(store).unwrap().delete("log").await.unwrap();
    assert!(matches!(timeout(FOREVER, reader.info()).await.unwrap(), Err(LogError::Missing(_))));
}

#[tokio::test(start_paused = true)]
async fn what_is_appended_after_a_recovery_is_behind_all_that_was_trimmed() {
    let trims = Arc::new(AtomicBool::new(false));
    let store = {
        let trims = trims.clone();
        Faulty::new(move |_, transaction| {
            let is_zero = transaction.writes.iter().any(|write| matches!(write, WriteOp::Zero { .. }));
            // The client that trims dies when it has written down what goes, and nothing is gone yet.
            if is_zero && trims.load(Ordering::Relaxed) { Fate::Away } else { Fate::Done }
        })
    };
    let log = log_on(store.clone(), 3, 2).await;
    for number in 0..10 {
        log.append(entry(number)).await.unwrap();
    }
    // A writer dies with positions that it was given.
    let head = layout::head(log.id()).unwrap();
    let sequencer = StoreSequencer::new(store.clone(), head);
    assert_eq!(sequencer.next(1, 20).await, Ok(10));
    trims.store(true, Ordering::Relaxed);
    let trim = {
        let log = open(&store).await;
        tokio::spawn(async move { log.trim_prefix(30).await })
    };
    sleep(Duration::from_secs(1)).await;
    trim.abort();
    trims.store(false, Ordering::Relaxed);
    let sealed = log.seal().await.unwrap();
    let begin = log.begin().await.unwrap();
    assert!(sealed.tail >= begin, "the log ends at {}, and begins at {begin}", sealed.tail);
    let position = log.append(entry("kept")).await.unwrap();
    let mut follower = log.follow(0, FollowOptions::default());
    loop {
        match next(&mut follower).await {
            Followed::Entry { position: at, entry: found } if found == entry("kept") => {
                break assert_eq!(at, position);
            }
            step => assert!(step.position() < position, "the entry at {position} was passed over: {step:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_grows_onto_more_objects_while_entries_are_appended() {
    let (store, log) = log(1, 4).await;
    let writers: Vec<_> = (0..4)
        .map(|client| {
            let log = log.apart();
            tokio::spawn(async move {
                for number in 0..50 {
                    log.append(entry(format!("{client} {number}"))).await.unwrap();
                    sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    for width in [2, 3, 5] {
        sleep(Duration::from_millis(10)).await;
        open(&store).await.reshape(Shape { width, unit: 2 }).await.unwrap();
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let info = log.info().await.unwrap();
    assert_eq!(info.views.iter().map(|view| view.width).collect::<Vec<_>>(), [1, 2, 3, 5]);
    let mut follower = open(&store).await.follow(0, FollowOptions::default());
    let mut seen = BTreeSet::new();
    while let Some(step) = follower.next_before(info.tail).await.unwrap() {
        let Followed::Entry { entry, .. } = step else { panic!("{step:?}") };
        assert!(seen.insert(entry.data));
    }
    assert_eq!(seen.len(), 200);
    // Views whose entries are all trimmed go with their objects.
    log.trim_prefix(info.views[2].start).await.unwrap();
    assert_eq!(log.info().await.unwrap().views.len(), 2);
    let objects = store
        .model()
        .list(None, 1000)
        .into_iter()
        .filter(|object| object.as_bytes().starts_with(b"nacre/zlog/"));
    assert_eq!(objects.count(), 3 + 5 + 1);
    assert_eq!(log.read(0).await, Ok(Slot::Trimmed));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_view_beyond_the_limit_is_refused_and_appends_go_on() {
    let (store, log) = log(1, 1).await;
    let shape = Shape { width: 1, unit: 1 };
    for number in 1..limit::VIEWS_MAX {
        log.append(entry(number)).await.unwrap();
        log.reshape(shape).await.unwrap();
    }
    log.append(entry("last")).await.unwrap();
    let objects = || store.model().list(None, 10_000).len();
    let before = (objects(), log.info().await.unwrap().views.len());
    let error = log.reshape(shape).await.unwrap_err();
    assert!(error.to_string().contains("trim"), "{error}");
    assert_eq!((objects(), log.info().await.unwrap().views.len()), before, "nothing is left over");
    // Nobody has to wait for the end of a recovery.
    let begun = Instant::now();
    log.append(entry("next")).await.unwrap();
    assert!(begun.elapsed() < limit::RECOVER_AFTER, "{:?}", begun.elapsed());
    // The oldest views make room.
    log.trim_prefix(5).await.unwrap();
    log.reshape(shape).await.unwrap();
}

/// Returns the number of bytes that a transaction writes.
fn written_bytes(transaction: &Transaction) -> u64 {
    let extents = transaction.writes.iter().filter_map(|write| match write {
        WriteOp::Extents { extents, .. } => Some(extents),
        _ => None,
    });
    extents.flatten().map(|(_, data)| data.len() as u64).sum()
}

#[tokio::test(start_paused = true)]
async fn a_view_begins_where_objects_hold_as_much_as_the_store_lets_them() {
    const OBJECT_BYTES_MAX: u64 = 4 << 20;
    let mut held: BTreeMap<ObjectId, u64> = BTreeMap::new();
    let store = Faulty::new(move |object, transaction| {
        let held = held.entry(object.clone()).or_default();
        let after = *held + written_bytes(transaction);
        if after > OBJECT_BYTES_MAX {
            return Fate::Full;
        }
        *held = after;
        Fate::Done
    });
    store.limits.lock().fork_bytes_max = OBJECT_BYTES_MAX;
    let log = log_on(store.clone(), 2, 2).await;
    let long = |number: u8| Entry::new(vec![number; 300 << 10]);
    let begun = Instant::now();
    let mut positions = Vec::new();
    for number in 0..60 {
        positions.push(log.append(long(number)).await.unwrap());
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "it waits for room: {:?}", begun.elapsed());
    assert!(positions.is_sorted_by(|one, next| one < next), "{positions:?}");
    let views = log.info().await.unwrap().views;
    assert!((2..=8).contains(&views.len()), "{views:?}");
    assert!(views.iter().all(|view| (view.width, view.unit) == (2, 2)), "{views:?}");
    let reader = open(&store).await;
    for (number, position) in (0..).zip(positions) {
        assert_eq!(reader.read(position).await, Ok(Slot::Entry(long(number))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_full_gets_no_view() {
    let full = Arc::new(AtomicBool::new(false));
    let store = {
        let (full, mut sealed) = (full.clone(), 0);
        Faulty::new(move |_, transaction| {
            // An appender that begins one view after another does not come to an end.
            sealed +=
                u64::from(transaction.writes.iter().any(|op| matches!(op, WriteOp::SetAttribute { .. })));
            assert!(sealed < 50, "it begins views again and again");
            let takes_room = written_bytes(transaction) > 0;
            if takes_room && full.load(Ordering::Relaxed) { Fate::Full } else { Fate::Done }
        })
    };
    // Two entries are far from what one object may hold.
    store.limits.lock().fork_bytes_max = 16 << 20;
    let log = log_on(store.clone(), 1, 1).await;
    log.append(entry(0)).await.unwrap();
    full.store(true, Ordering::Relaxed);
    assert_eq!(log.append(entry(1)).await.unwrap_err().kind(), ErrorKind::OutOfSpace);
    assert_eq!(log.info().await.unwrap().views.len(), 1);
    // So many that the longest entries would not fit into one object.
    let mut appending = Vec::new();
    for number in 0..30 {
        appending.push(log.appender().submit(entry(number)).await.unwrap());
    }
    for appended in appending {
        assert_eq!(appended.await.unwrap_err().kind(), ErrorKind::OutOfSpace);
    }
    assert_eq!(log.info().await.unwrap().views.len(), 1);
    full.store(false, Ordering::Relaxed);
    log.append(entry(2)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_too_much_to_be_trimmed_at_once_is_trimmed_in_steps() {
    const AT_ONCE_MAX: u64 = 7 * 16;
    let mut trimmed: BTreeMap<ObjectId, u64> = BTreeMap::new();
    let store = Faulty::new(move |object, transaction| {
        let trimmed = trimmed.entry(object.clone()).or_default();
        for write in &transaction.writes {
            if let WriteOp::Zero { fork, range } = write
                && fork.as_bytes() == b"index"
            {
                if range.end().saturating_sub(*trimmed) > AT_ONCE_MAX {
                    return Fate::TooMuch;
                }
                *trimmed = range.end().max(*trimmed);
            }
        }
        Fate::Done
    });
    let log = log_on(store, 2, 2).await;
    for number in 0..100 {
        log.append(entry(number)).await.unwrap();
    }
    for before in [37, 38, 99] {
        log.trim_prefix(before).await.unwrap();
        for position in 0..100 {
            let wanted = if position < before { Slot::Trimmed } else { Slot::Entry(entry(position)) };
            assert_eq!(log.read(position).await, Ok(wanted), "{position} before {before}");
        }
    }
}
