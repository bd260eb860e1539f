//! Reading and following: what comes, when, and by how many requests. The clock is the runtime's, and jumps while all wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nacre_object::ReadOp;
use nacre_zlog::{
    Directory, Entry, FollowOptions, Followed, Log, LogError, Options, Sequencer as _, Shape, Slot,
    StoreSequencer, layout,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::kit::{FOREVER, Fate, Faulty, entry, log, log_on, next, open};

/// The reads of a store's logs: whether each asks for an index, and the lengths of the ranges of entries that it asks for.
type Reads = Arc<Mutex<Vec<(bool, Vec<u64>)>>>;

fn with_noted_reads() -> (Arc<Faulty>, Reads) {
    let reads = Reads::default();
    let noted = reads.clone();
    let store = Faulty::new(move |_, transaction| {
        let lengths = |name: &str| -> Vec<u64> {
            let ranges = transaction.reads.iter().filter_map(|read| match read {
                ReadOp::Range { fork, range, .. } if fork.as_bytes() == name.as_bytes() => Some(range.len),
                _ => None,
            });
            ranges.collect()
        };
        let (index, data) = (lengths("index"), lengths("data"));
        if !index.is_empty() || !data.is_empty() {
            noted.lock().push((!index.is_empty(), data));
        }
        Fate::Done
    });
    (store, reads)
}

#[tokio::test(start_paused = true)]
async fn a_read_asks_once_and_for_as_many_bytes_as_entries_of_one_length_have() {
    let (store, reads) = with_noted_reads();
    let log = log_on(store, 10, 1).await;
    for number in 0..10 {
        log.append(Entry::new(vec![number; 4096])).await.unwrap();
    }
    for number in 0..10 {
        reads.lock().clear();
        let entry = Entry::new(vec![number; 4096]);
        assert_eq!(log.read(u64::from(number)).await, Ok(Slot::Entry(entry)));
    }
    // The head of a packet, the number of tags, and the entry: what is asked for beyond them would have to be copied.
    assert_eq!(*reads.lock(), [(true, vec![8 + 1 + 4096])]);
}

#[tokio::test(start_paused = true)]
async fn of_entries_beside_those_that_were_read_no_index_is_read() {
    let (store, reads) = with_noted_reads();
    let log = log_on(store.clone(), 2, 64).await;
    for number in 0..100 {
        log.append(Entry::new(vec![number; 4096])).await.unwrap();
    }
    let log = open(&store).await;
    reads.lock().clear();
    for number in (0..100).rev() {
        let entry = Entry::new(vec![number; 4096]);
        assert_eq!(log.read(u64::from(number)).await, Ok(Slot::Entry(entry)));
    }
    // Two of each object: the first entry, and the second with the others beside it.
    assert_eq!(reads.lock().iter().filter(|(index, _)| *index).count(), 4);
    // What is trimmed since is not taken for what was there.
    log.trim(7).await.unwrap();
    assert_eq!(log.read(7).await, Ok(Slot::Trimmed));
    assert_eq!(log.read(8).await, Ok(Slot::Entry(Entry::new(vec![8; 4096]))));
}

#[tokio::test(start_paused = true)]
async fn a_follower_at_the_end_reads_a_new_entry_together_with_the_index() {
    let (store, reads) = with_noted_reads();
    let log = log_on(store, 3, 1).await;
    let mut follower = log.follow(0, FollowOptions::default());
    for number in 0..10 {
        let entry = Entry::new(vec![number; 4096]);
        let position = log.append(entry.clone()).await.unwrap();
        reads.lock().clear();
        assert_eq!(next(&mut follower).await, Followed::Entry { position, entry });
        // It learns from the first entry how long they are.
        let without_index = reads.lock().iter().filter(|(index, _)| !index).count();
        assert_eq!(without_index, usize::from(number == 0), "entry {number}");
    }
    // The content of entries is not read before it is known that they have the tag.
    let mut stream = log.follow(0, FollowOptions { tag: Some("tag".into()), ..FollowOptions::default() });
    let tagged = Entry::new("tagged").tag("tag");
    let position = log.append(tagged.clone()).await.unwrap();
    reads.lock().clear();
    assert_eq!(next(&mut stream).await, Followed::Entry { position, entry: tagged });
    let lengths: Vec<u64> = reads.lock().iter().flat_map(|(_, data)| data.clone()).collect();
    assert_eq!(lengths, [1 + 1 + 3 + 6]);
}

#[tokio::test(start_paused = true)]
async fn a_follower_asks_all_objects_once_before_it_waits_and_one_when_an_entry_has_come() {
    let requests = Arc::new(AtomicU64::new(0));
    let counted = requests.clone();
    let store = Faulty::new(move |object, transaction| {
        let name = object.as_bytes();
        let is_of_log = name.starts_with(layout::PREFIX.as_bytes()) && !name.ends_with(b"/head");
        if is_of_log && !transaction.reads.is_empty() && transaction.writes.is_empty() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Fate::Done
    });
    let directory = Directory::new(store.clone()).unwrap();
    directory.create("log", Shape { width: 3, unit: 2 }).await.unwrap();
    let log = Log::open(store.clone(), "log", Options::default()).await.unwrap();
    let mut follower = log.follow(0, FollowOptions::default());
    // A follower does not know yet that it is at the end.
    assert!(timeout(Duration::from_millis(100), follower.next()).await.is_err());
    for number in 0..12 {
        let mut waits = Box::pin(follower.next());
        requests.store(0, Ordering::Relaxed);
        assert!(timeout(Duration::from_millis(100), &mut waits).await.is_err());
        let asked = requests.swap(0, Ordering::Relaxed);
        let entry = Entry::new(vec![number; 4096]);
        log.append(entry.clone()).await.unwrap();
        let position = u64::from(number);
        assert_eq!(timeout(FOREVER, waits).await.unwrap(), Ok(Followed::Entry { position, entry }));
        // At first it goes on with what the call before was dropped in, and does not know how long entries are.
        if number > 0 {
            assert_eq!((asked, requests.load(Ordering::Relaxed)), (3, 1), "entry {number}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_sees_every_entry_once_and_waits_for_more() {
    let (store, log) = log(3, 2).await;
    let mut follower = open(&store).await.follow(0, FollowOptions::default());
    for number in 0..500 {
        log.append(entry(number)).await.unwrap();
        if number % 7 == 0 {
            while follower.position() <= number {
                let position = follower.position();
                assert_eq!(next(&mut follower).await, Followed::Entry { position, entry: entry(position) });
            }
        }
    }
    for position in follower.position()..500 {
        assert_eq!(next(&mut follower).await, Followed::Entry { position, entry: entry(position) });
    }
    // What comes later wakes it.
    let waits = tokio::spawn(async move { follower.next().await });
    sleep(Duration::from_secs(10)).await;
    assert!(!waits.is_finished());
    log.append(entry("late")).await.unwrap();
    assert_eq!(waits.await.unwrap(), Ok(Followed::Entry { position: 500, entry: entry("late") }));
}

#[tokio::test(start_paused = true)]
async fn a_follower_of_a_store_that_cannot_be_watched_looks_from_time_to_time() {
    let store = Faulty::without_watches();
    let log = log_on(store.clone(), 2, 2).await;
    let mut follower = log.follow(0, FollowOptions::default());
    let waits = tokio::spawn(async move { follower.next().await });
    sleep(Duration::from_secs(1)).await;
    log.append(entry("x")).await.unwrap();
    assert_eq!(timeout(FOREVER, waits).await.unwrap().unwrap().unwrap().position(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_the_entries_of_its_tag() {
    let (_, log) = log(2, 16).await;
    for number in 0..600 {
        let entry = entry(number).tag(format!("stream {}", number % 50));
        let entry = if number % 3 == 0 { entry.tag("thirds") } else { entry };
        drop(log.appender().submit(entry).await.unwrap());
    }
    log.append(entry("end").tag("thirds").tag("stream 7")).await.unwrap();
    for (tag, wanted) in [
        ("thirds", (0..600).filter(|number| number % 3 == 0).collect::<Vec<u64>>()),
        ("stream 7", (0..600).filter(|number| number % 50 == 7).collect()),
        ("none", vec![]),
    ] {
        let mut follower = log.follow(0, FollowOptions { tag: Some(tag.into()), ..FollowOptions::default() });
        let mut found = Vec::new();
        while let Some(step) = follower.next_before(600).await.unwrap() {
            found.push(step.position());
        }
        assert_eq!(found, wanted, "{tag}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hole_of_a_dead_writer_is_filled_after_a_time() {
    let (store, log) = log(3, 1).await;
    let other = open(&store).await;
    log.append(entry("before")).await.unwrap();
    // A writer takes two positions and dies.
    let sequencer = StoreSequencer::new(store.clone(), layout::head(log.id()).unwrap());
    assert_eq!(sequencer.next(1, 2).await, Ok(1));
    other.append(entry("after")).await.unwrap();
    let mut follower = log.follow(0, FollowOptions::default());
    assert_eq!(next(&mut follower).await.position(), 0);
    let begun = Instant::now();
    assert_eq!(next(&mut follower).await.position(), 3);
    let waited = begun.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&waited), "{waited:?}");
    assert_eq!(log.read(1).await, Ok(Slot::Filled));
    assert_eq!(log.fill(2).await, Ok(Slot::Filled));
    assert_eq!(log.fill(3).await, Ok(Slot::Entry(entry("after"))));
    assert!(matches!(log.fill(4).await, Err(LogError::Invalid(_))), "beyond the tail nobody is late");
}

#[tokio::test(start_paused = true)]
async fn a_follower_at_the_end_goes_on_in_a_view_that_has_no_entries_yet() {
    for width in [1, 4] {
        let store = Faulty::new(|_, _| Fate::Done);
        let log = log_on(store.clone(), width, 1).await;
        log.append(entry("before")).await.unwrap();
        let mut follower = open(&store).await.follow(0, FollowOptions::default());
        assert_eq!(next(&mut follower).await.position(), 0);
        let grows = async {
            sleep(Duration::from_secs(1)).await;
            log.reshape(Shape { width, unit: 1 }).await.unwrap();
            // The follower sees the new view, and nothing in it.
            sleep(Duration::from_secs(1)).await;
            log.append(entry("after")).await.unwrap()
        };
        let (step, position) = tokio::join!(next(&mut follower), grows);
        assert_eq!(step, Followed::Entry { position, entry: entry("after") });
    }
}
