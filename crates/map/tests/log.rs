//! The cluster log: several sources at once, replies that are lost, bounds, and a queue that is full.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nacre_logstore::{LogStore, Options};
use nacre_map::log::{Entry, Level, Log, LogBounds, Writer};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};

/// A store that answers every third write with a failure that says nothing of its effect: every other one of these took effect.
struct Lossy(LogStore, AtomicU32, ErrorKind);

impl ObjectStore for Lossy {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if transaction.writes.is_empty() {
            return self.0.apply(object, transaction);
        }
        match self.1.fetch_add(1, Ordering::Relaxed) % 6 {
            2 => drop(self.0.apply(object, transaction)),
            5 => {}
            _ => return self.0.apply(object, transaction),
        }
        Reply::ready(Err(StoreError::new(self.2, "the reply is lost, or not understood")))
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.0.list(after, limit)
    }
}

fn memory() -> LogStore {
    LogStore::memory(Options::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_line_of_every_source_is_there_once_and_in_its_order() {
    for kind in [ErrorKind::Unknown, ErrorKind::Unrecognized] {
        append_from_all_sources(kind).await;
    }
}

async fn append_from_all_sources(kind: ErrorKind) {
    let store = Arc::new(Lossy(memory(), AtomicU32::new(0), kind));
    let log = Log::new(store, LogBounds::default()).unwrap();
    let tasks: Vec<_> = (0..4)
        .map(|source| {
            let log = log.clone();
            tokio::spawn(async move {
                for number in 0..30 {
                    let lines = [0, 1].map(|part| {
                        Entry::new(
                            &format!("source-{source}"),
                            Level::Info,
                            &format!("{:03}", number * 2 + part),
                        )
                    });
                    log.append(&lines).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let lines = log.last(1000).await.unwrap();
    assert!(lines.iter().map(|line| line.number).eq(1..=240));
    for source in 0..4 {
        let source = format!("source-{source}");
        let texts =
            lines.iter().filter(|line| line.entry.source == source).map(|line| line.entry.text.clone());
        assert!(texts.eq((0..60).map(|number| format!("{number:03}"))), "{source}");
    }
    assert_eq!(log.last(7).await.unwrap()[..], lines[233..]);
}

#[tokio::test]
async fn the_log_stays_within_its_bounds_and_keeps_the_newest() {
    let store = Arc::new(memory());
    // A line of these takes about 51 bytes.
    for (bounds, kept) in [
        (LogBounds { lines: 40, bytes: 1 << 20 }, 35..=40),
        (LogBounds { lines: 4000, bytes: 4000 }, 65..=80),
    ] {
        let log = Log::new(store.clone(), bounds).unwrap();
        for number in 0..300 {
            log.append(&[Entry::new("s", Level::Warning, &format!("line {number}"))]).await.unwrap();
        }
        let lines = log.last(1000).await.unwrap();
        assert_eq!(lines.last().unwrap().entry.text, "line 299");
        assert!(lines.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
        let stat = nacre_object::ReadOp::Stat;
        let answer = store.apply(&"nacre/log".parse().unwrap(), Transaction::new().read(stat)).await.unwrap();
        let Outcome::Done(done) = answer else { panic!() };
        let [nacre_object::Answer::Stat(stat)] = &done.answers[..] else { panic!() };
        assert_eq!(stat.keys, lines.len() as u64 + 1, "what was removed is gone");
        assert!(kept.contains(&lines.len()), "{}", lines.len());
    }
}

#[tokio::test]
async fn what_is_followed_comes_once_and_in_order() {
    let log = Log::new(Arc::new(memory()), LogBounds::default()).unwrap();
    log.append(&[Entry::new("s", Level::Info, "before")]).await.unwrap();
    let mut follower = log.follow(1, Duration::from_millis(10));
    let mut seen = Vec::new();
    for number in 0..20 {
        log.append(&[Entry::new("s", Level::Info, &number.to_string())]).await.unwrap();
        if number % 3 == 0 {
            seen.extend(follower.next().await.unwrap());
        }
    }
    while seen.len() < 20 {
        seen.extend(follower.next().await.unwrap());
    }
    assert!(seen.iter().map(|line| line.entry.text.clone()).eq((0..20).map(|number| number.to_string())));
}

#[tokio::test]
async fn a_writer_never_waits_and_says_what_it_dropped() {
    let log = Log::new(Arc::new(memory()), LogBounds::default()).unwrap();
    let (writer, appended) = Writer::new(log.clone(), "daemon");
    // Nothing is appended yet, so the queue fills.
    for number in 0..1500 {
        writer.write(Level::Info, &number.to_string());
    }
    drop(writer);
    appended.await;
    let lines = log.last(5000).await.unwrap();
    let dropped: Vec<_> = lines.iter().filter(|line| line.entry.text.contains("dropped")).collect();
    assert_eq!((lines.len(), dropped.len()), (1001, 1));
    assert!(dropped[0].entry.text.starts_with("500 lines of this source were dropped"));
    let numbers: HashSet<_> = lines.iter().map(|line| line.number).collect();
    assert_eq!(numbers.len(), 1001);
}

#[test]
fn a_line_is_one_line_and_not_too_long() {
    let entry = Entry::new(&"ä".repeat(300), Level::Error, &format!("a\nb\x1b[31m{}", "é".repeat(2000)));
    assert!(entry.source.len() <= 255 && entry.text.len() <= 1024);
    assert!(entry.text.starts_with("a b [31mé") && !entry.text.contains(char::is_control));
}
