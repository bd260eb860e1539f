//! The operations of a log, one at a time. The clock is the runtime's, and jumps while all wait.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nacre_map::{ClusterMap, Limits};
use nacre_object::testkit::MemoryStore;
use nacre_object::{ErrorKind, ExtentKind, ObjectStore, ReadOp};
use nacre_zlog::limit::{ENTRY_BYTES_MAX, WIDTH_MAX};
use nacre_zlog::{
    DIRECTORY, Directory, Entry, FollowOptions, Followed, Log, LogError, Options, Sequencer as _, Shape,
    Slot, StoreSequencer, layout,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::timeout;

use super::kit::{Fate, Faulty};

/// The time after which a call is taken for one that never ends.
const FOREVER: Duration = Duration::from_secs(3600);

async fn log_on(store: Arc<dyn ObjectStore>, width: u32, unit: u32) -> Log {
    let directory = Directory::new(store.clone()).unwrap();
    directory.create("log", Shape { width, unit }).await.unwrap();
    Log::open(store, "log", Options::default()).await.unwrap()
}

async fn log(width: u32, unit: u32) -> (Arc<MemoryStore>, Log) {
    let store = Arc::new(MemoryStore::new());
    (store.clone(), log_on(store, width, unit).await)
}

async fn open(store: &Arc<impl ObjectStore>) -> Log {
    Log::open(store.clone(), "log", Options::default()).await.unwrap()
}

fn entry(text: impl std::fmt::Display) -> Entry {
    Entry::new(text.to_string())
}

async fn next(follower: &mut nacre_zlog::Follower) -> Followed {
    timeout(FOREVER, follower.next()).await.expect("the follower waits for ever").unwrap()
}

async fn read_all(log: &Log) -> Vec<(u64, Slot)> {
    let (mut found, tail) = (Vec::new(), log.tail().await.unwrap());
    while (found.len() as u64) < tail {
        let read = log.read_range(found.len() as u64, tail).await.unwrap();
        assert!(!read.is_empty());
        found.extend(read);
    }
    found
}

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
    let log = log_on(store, 2, 1).await;
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
    let log = log_on(store, 3, 2).await;
    let mut follower = log.follow(0, FollowOptions::default());
    for number in 0..12 {
        let mut waits = Box::pin(follower.next());
        requests.store(0, Ordering::Relaxed);
        assert!(timeout(Duration::from_millis(100), &mut waits).await.is_err());
        assert_eq!(requests.swap(0, Ordering::Relaxed), 3, "entry {number}");
        let entry = Entry::new(vec![number; 4096]);
        log.append(entry.clone()).await.unwrap();
        let position = u64::from(number);
        assert_eq!(timeout(FOREVER, waits).await.unwrap(), Ok(Followed::Entry { position, entry }));
        // It learns from the first entry how long they are.
        assert_eq!(requests.load(Ordering::Relaxed), 1 + u64::from(number == 0), "entry {number}");
    }
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
                tokio::time::sleep(Duration::from_millis(dice.random_range(0..3) * 4)).await;
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
    tokio::time::sleep(Duration::from_secs(10)).await;
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
    tokio::time::sleep(Duration::from_secs(1)).await;
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
    let sequencer =
        nacre_zlog::StoreSequencer::new(store.clone(), nacre_zlog::layout::head(log.id()).unwrap());
    use nacre_zlog::Sequencer as _;
    assert_eq!(sequencer.next(1, 2).await, Ok(1));
    other.append(entry("after")).await.unwrap();
    let mut follower = log.follow(0, FollowOptions::default());
    assert_eq!(next(&mut follower).await.position(), 0);
    let begun = tokio::time::Instant::now();
    assert_eq!(next(&mut follower).await.position(), 3);
    let waited = begun.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&waited), "{waited:?}");
    assert_eq!(log.read(1).await, Ok(Slot::Filled));
    assert_eq!(log.fill(2).await, Ok(Slot::Filled));
    assert_eq!(log.fill(3).await, Ok(Slot::Entry(entry("after"))));
    assert!(matches!(log.fill(4).await, Err(LogError::Invalid(_))), "beyond the tail nobody is late");
}

#[tokio::test(start_paused = true)]
async fn a_handle_for_reading_changes_nothing() {
    let (store, log) = log(2, 1).await;
    use nacre_zlog::Sequencer as _;
    let head = nacre_zlog::layout::head(log.id()).unwrap();
    assert_eq!(nacre_zlog::StoreSequencer::new(store.clone(), head).next(1, 1).await, Ok(0));
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
    let died = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let store = {
        let died = died.clone();
        Faulty::new(move |object, _| {
            // The objects are sealed; then the client reaches nothing any more.
            let is_head = object.as_bytes().ends_with(b"/head");
            if is_head && died.load(std::sync::atomic::Ordering::Relaxed) { Fate::Away } else { Fate::Done }
        })
    };
    let log = log_on(store.clone(), 3, 1).await;
    log.append(entry(0)).await.unwrap();
    died.store(true, std::sync::atomic::Ordering::Relaxed);
    let recovery = tokio::spawn({
        let log = open(&store).await;
        async move { log.seal().await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    recovery.abort();
    died.store(false, std::sync::atomic::Ordering::Relaxed);
    let begun = tokio::time::Instant::now();
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
    let begun = tokio::time::Instant::now();
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
async fn a_log_grows_onto_more_objects_while_entries_are_appended() {
    let (store, log) = log(1, 4).await;
    let writers: Vec<_> = (0..4)
        .map(|client| {
            let log = log.apart();
            tokio::spawn(async move {
                for number in 0..50 {
                    log.append(entry(format!("{client} {number}"))).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    for width in [2, 3, 5] {
        tokio::time::sleep(Duration::from_millis(10)).await;
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
async fn a_follower_at_the_end_goes_on_in_a_view_that_has_no_entries_yet() {
    for width in [1, 4] {
        let store = Faulty::new(|_, _| Fate::Done);
        let log = log_on(store.clone(), width, 1).await;
        log.append(entry("before")).await.unwrap();
        let mut follower = open(&store).await.follow(0, FollowOptions::default());
        assert_eq!(next(&mut follower).await.position(), 0);
        let grows = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            log.reshape(Shape { width, unit: 1 }).await.unwrap();
            // The follower sees the new view, and nothing in it.
            tokio::time::sleep(Duration::from_secs(1)).await;
            log.append(entry("after")).await.unwrap()
        };
        let (step, position) = tokio::join!(next(&mut follower), grows);
        assert_eq!(step, Followed::Entry { position, entry: entry("after") });
    }
}

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
            let takes_room =
                transaction.writes.iter().any(|write| !matches!(write, nacre_object::WriteOp::Remove));
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
async fn appends_wait_for_a_store_that_is_away_and_fail_when_it_stays_away() {
    let away = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let store = {
        let away = away.clone();
        Faulty::new(
            move |_, _| if away.load(std::sync::atomic::Ordering::Relaxed) { Fate::Away } else { Fate::Done },
        )
    };
    let log = log_on(store, 2, 2).await;
    away.store(true, std::sync::atomic::Ordering::Relaxed);
    let append = tokio::spawn({
        let log = log.clone();
        async move { log.append(entry("x")).await }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    away.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(append.await.unwrap(), Ok(0));
    away.store(true, std::sync::atomic::Ordering::Relaxed);
    let error = timeout(FOREVER, log.append(entry("y"))).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_appended_behind_an_entry_that_failed_until_that_is_known() {
    let away = Arc::new(std::sync::atomic::AtomicBool::new(false));
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
    tokio::time::sleep(Options::default().patience * 2).await;
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
async fn opening_and_looking_for_logs_wait_for_a_store_that_is_away_and_fail_when_it_stays_away() {
    let away = Arc::new(std::sync::atomic::AtomicBool::new(false));
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
    tokio::time::sleep(Duration::from_secs(5)).await;
    away.store(false, Ordering::Relaxed);
    assert_eq!(opening.await.unwrap(), Ok(2));

    away.store(true, Ordering::Relaxed);
    let begun = tokio::time::Instant::now();
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

#[tokio::test(start_paused = true)]
async fn positions_that_no_object_has_room_for_hold_nothing() {
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

#[tokio::test(start_paused = true)]
async fn what_is_appended_after_a_recovery_is_behind_all_that_was_trimmed() {
    let trims = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let store = {
        let trims = trims.clone();
        Faulty::new(move |_, transaction| {
            let is_zero =
                transaction.writes.iter().any(|write| matches!(write, nacre_object::WriteOp::Zero { .. }));
            // The client that trims dies when it has written down what goes, and nothing is gone yet.
            if is_zero && trims.load(Ordering::Relaxed) { Fate::Away } else { Fate::Done }
        })
    };
    let log = log_on(store.clone(), 3, 2).await;
    for number in 0..10 {
        log.append(entry(number)).await.unwrap();
    }
    // A writer dies with positions that it was given.
    let head = nacre_zlog::layout::head(log.id()).unwrap();
    let sequencer = nacre_zlog::StoreSequencer::new(store.clone(), head);
    assert_eq!(nacre_zlog::Sequencer::next(&sequencer, 1, 20).await, Ok(10));
    trims.store(true, Ordering::Relaxed);
    let trim = {
        let log = open(&store).await;
        tokio::spawn(async move { log.trim_prefix(30).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
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
async fn a_change_of_view_beyond_the_limit_is_refused_and_appends_go_on() {
    let (store, log) = log(1, 1).await;
    let shape = Shape { width: 1, unit: 1 };
    for number in 1..nacre_zlog::limit::VIEWS_MAX {
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
    let begun = tokio::time::Instant::now();
    log.append(entry("next")).await.unwrap();
    assert!(begun.elapsed() < nacre_zlog::limit::RECOVER_AFTER, "{:?}", begun.elapsed());
    // The oldest views make room.
    log.trim_prefix(5).await.unwrap();
    log.reshape(shape).await.unwrap();
}

/// A store whose transactions on heads are late by a second while the flag is set.
fn with_late_heads(late: &Arc<std::sync::atomic::AtomicBool>) -> Arc<Faulty> {
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
    tokio::time::sleep(Duration::from_millis(100)).await;
    late.store(false, Ordering::Relaxed);
    Directory::new(store.clone()).unwrap().delete("log").await.unwrap();
    let result = timeout(FOREVER, recovery).await.unwrap().unwrap();
    assert!(matches!(result, Err(LogError::Missing(_))), "{result:?}");
    let left = store.inner.model().list(None, 1000).into_iter();
    let left: Vec<_> = left.filter(|object| object.to_string().contains(&log.id().to_string())).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_log_is_renamed_or_deleted_and_never_half_of_both() {
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
        tokio::time::sleep(Duration::from_millis(pause)).await;
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

#[tokio::test(start_paused = true)]
async fn an_append_that_fails_in_a_way_that_is_not_known_is_not_said_to_be_without_effect() {
    let strange = Arc::new(std::sync::atomic::AtomicBool::new(false));
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
