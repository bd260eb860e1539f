//! Logs by their names: creation, renaming and deletion. The clock is the runtime's, and jumps while all wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nacre_map::{ClusterMap, Limits};
use nacre_object::testkit::MemoryStore;
use nacre_object::{ErrorKind, WriteOp};
use nacre_zlog::{DIRECTORY, Directory, Log, LogError, Options, Shape, Slot};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::{Instant, sleep, timeout};

use super::kit::{FOREVER, Fate, Faulty, entry, log_on};

#[tokio::test(start_paused = true)]
async fn logs_are_listed_renamed_and_deleted() {
    let store = Arc::new(MemoryStore::new());
    let directory = Directory::new(store.clone()).unwrap();
    for name in ["b", "a", "größe/x"] {
        directory.create(name, Shape::default()).await.unwrap();
    }
    assert_eq!(directory.create("a", Shape::default()).await, Err(LogError::Exists("a".to_owned())));
    let names = async || -> Vec<String> {
        directory.list().await.unwrap().into_iter().map(|listed| listed.name).collect()
    };
    assert_eq!(names().await, ["a", "b", "größe/x"]);
    let log = Log::open(store.clone(), "a", Options::default()).await.unwrap();
    log.append(entry("x")).await.unwrap();
    directory.rename("a", "c").await.unwrap();
    assert_eq!(log.append(entry("y")).await, Ok(1), "handles go on");
    assert_eq!(directory.rename("b", "c").await, Err(LogError::Exists("c".to_owned())));
    assert_eq!(directory.rename("a", "d").await, Err(LogError::Missing("a".to_owned())));
    let reopened = Log::open(store.clone(), "c", Options::default()).await.unwrap();
    assert_eq!(reopened.read(0).await, Ok(Slot::Entry(entry("x"))));
    directory.delete("c").await.unwrap();
    assert_eq!(names().await, ["b", "größe/x"]);
    assert!(matches!(timeout(FOREVER, log.append(entry("z"))).await.unwrap(), Err(LogError::Missing(_))));
    assert!(matches!(timeout(FOREVER, reopened.read(0)).await.unwrap(), Err(LogError::Missing(_))));
    let left = store
        .model()
        .list(None, 1000)
        .into_iter()
        .filter(|object| object.to_string().contains(&log.id().to_string()));
    assert_eq!(left.count(), 0);
    for wrong in ["", "a\nb", &"x".repeat(256)] {
        assert!(matches!(directory.create(wrong, Shape::default()).await, Err(LogError::Invalid(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_for_which_the_directory_has_no_room_leaves_nothing() {
    let store = Arc::new(MemoryStore::new());
    let directory = Directory::new(store.clone()).unwrap();
    directory.create("a", Shape::default()).await.unwrap();
    let names = ClusterMap::new(store.clone(), DIRECTORY).unwrap().proposer(Default::default());
    names.set_limits("test", &Limits { entries: 1, ..Limits::default() }).await.unwrap();
    let before = store.model().list(None, 1000);
    let refused = directory.create("b", Shape::default()).await;
    assert!(matches!(&refused, Err(LogError::Invalid(text)) if text.contains("limit")), "{refused:?}");
    assert_eq!(store.model().list(None, 1000), before);
    directory.delete("a").await.unwrap();
    directory.create("b", Shape::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_log_for_which_the_store_has_no_room_leaves_nothing() {
    // The number of changes that the store has room for.
    let room = Arc::new(AtomicU64::new(u64::MAX));
    let store = {
        let room = room.clone();
        Faulty::new(move |_, transaction| {
            let takes_room = transaction.writes.iter().any(|write| !matches!(write, WriteOp::Remove));
            let take = || room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if takes_room && take().is_err() { Fate::Full } else { Fate::Done }
        })
    };
    let directory = Directory::new(store.clone()).unwrap();
    directory.create("a", Shape::default()).await.unwrap();
    let before = store.inner.model().list(None, 1000);
    let mut changes = 0;
    loop {
        room.store(changes, Ordering::Relaxed);
        match timeout(FOREVER, directory.create("b", Shape::default())).await.unwrap() {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}"),
        }
        assert_eq!(store.inner.model().list(None, 1000), before, "with room for {changes} changes");
        changes += 1;
    }
    assert!(changes > u64::from(Shape::default().width));
    room.store(u64::MAX, Ordering::Relaxed);
    Log::open(store, "b", Options::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn opening_and_looking_for_logs_wait_for_a_store_that_is_away_and_fail_when_it_stays_away() {
    let away = Arc::new(AtomicBool::new(false));
    let store = {
        let away = away.clone();
        Faulty::new(move |_, _| if away.load(Ordering::Relaxed) { Fate::Away } else { Fate::Done })
    };
    let directory = Directory::new(store.clone()).unwrap();
    log_on(store.clone(), 2, 2).await;
    away.store(true, Ordering::Relaxed);
    let opening = {
        let (store, directory) = (store.clone(), directory.clone());
        tokio::spawn(async move {
            directory.create("other", Shape::default()).await?;
            let logs = directory.list().await?;
            Log::open(store, "log", Options::default()).await?;
            Ok::<_, LogError>(logs.len())
        })
    };
    sleep(Duration::from_secs(5)).await;
    away.store(false, Ordering::Relaxed);
    assert_eq!(opening.await.unwrap(), Ok(2));

    away.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    let options = Options { patience: Duration::from_secs(7), ..Options::default() };
    let error = timeout(FOREVER, Log::open(store.clone(), "log", options)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().ends_with("(tried for 7s)"), "{error}");
    let waited = begun.elapsed();
    assert!((7..8).contains(&waited.as_secs()), "{waited:?}");
    let hasty = directory.with_patience(Duration::ZERO);
    assert_eq!(hasty.find("log").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() - waited < Duration::from_secs(1));
}

/// A store whose transactions on heads are late by a second while the flag is set.
fn with_late_heads(late: &Arc<AtomicBool>) -> Arc<Faulty> {
    let late = late.clone();
    Faulty::new(move |object, _| {
        match late.load(Ordering::Relaxed) && object.as_bytes().ends_with(b"/head") {
            true => Fate::Slow(Duration::from_secs(1), Duration::ZERO),
            false => Fate::Done,
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_recovery_that_a_deletion_overtakes_leaves_nothing() {
    let late = Arc::default();
    let store = with_late_heads(&late);
    let log = log_on(store.clone(), 2, 1).await;
    log.append(entry("x")).await.unwrap();
    late.store(true, Ordering::Relaxed);
    let recovery = tokio::spawn({
        let log = log.clone();
        async move { log.reshape(Shape { width: 3, unit: 1 }).await }
    });
    sleep(Duration::from_millis(100)).await;
    late.store(false, Ordering::Relaxed);
    Directory::new(store.clone()).unwrap().delete("log").await.unwrap();
    let result = timeout(FOREVER, recovery).await.unwrap().unwrap();
    assert!(matches!(result, Err(LogError::Missing(_))), "{result:?}");
    let left = store.inner.model().list(None, 1000).into_iter();
    let left: Vec<_> = left.filter(|object| object.to_string().contains(&log.id().to_string())).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_log_is_renamed_or_deleted_and_never_both_in_part() {
    for pause in 0..40 {
        let mut dice = StdRng::seed_from_u64(pause);
        let store = Faulty::new(move |_, _| {
            let mut time = || Duration::from_millis(dice.random_range(1..4));
            Fate::Slow(time(), time())
        });
        let log = log_on(store.clone(), 2, 1).await;
        log.append(entry("x")).await.unwrap();
        let directory = Directory::new(store.clone()).unwrap();
        let deletion = tokio::spawn({
            let directory = directory.clone();
            async move { directory.delete("log").await }
        });
        sleep(Duration::from_millis(pause)).await;
        let renamed = directory.rename("log", "kept").await;
        let deleted = deletion.await.unwrap();
        match (renamed, deleted) {
            (Ok(()), Err(LogError::Missing(_))) => {
                let kept = Log::open(store.clone(), "kept", Options::default()).await.unwrap();
                assert_eq!(kept.read(0).await, Ok(Slot::Entry(entry("x"))));
            }
            (Err(LogError::Missing(_)), Ok(())) => assert_eq!(directory.list().await, Ok(Vec::new())),
            other => panic!("after {pause} ms: {other:?}"),
        }
    }
}
