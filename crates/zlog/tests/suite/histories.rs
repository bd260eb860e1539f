//! Many clients use a log at once, on a store that is slow, away and forgetful, whose events come late and twice, and die in the middle
//! of what they do, which arrives all the same; and others
//! recover the log and change its views meanwhile, also two at a time. Then all that they were told has to fit together.
//!
//! A failure names its seed, and `NACRE_SEED=n` runs that history again, the same to the last transaction: the clock is the runtime's,
//! and all that is left to chance follows from the seed. `NACRE_ZLOG_HISTORIES` is the number of histories, from that seed or 0 on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nacre_object::ErrorKind;
use nacre_zlog::{Directory, Entry, FollowOptions, Followed, Log, LogError, Options, Random, Shape, Slot};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::{Instant, sleep, timeout};

use super::kit::{Delivery, Fate, Faulty};

const TAGS: [&str; 3] = ["red", "green", "blue"];

/// The replies that clients got.
#[derive(Default)]
struct Observed {
    /// Positions and contents of entries whose appends were acknowledged.
    appended: BTreeMap<u64, Bytes>,
    /// Contents of entries whose appends failed, and took no effect.
    failed: BTreeSet<Bytes>,
    /// The result of a read at a position: an entry, or that it was filled.
    read: BTreeMap<u64, Option<Bytes>>,
    /// All positions before this may have been trimmed.
    trimmed: u64,
    trimmed_singly: BTreeSet<u64>,
}

impl Observed {
    fn saw(&mut self, position: u64, content: Option<Bytes>) {
        let before = self.read.entry(position).or_insert_with(|| content.clone());
        assert_eq!(*before, content, "two readers disagree about position {position}");
    }
}

type Shared = Arc<Mutex<Observed>>;

/// Runs one history. Returns a fingerprint of its transactions, and of the times at which they were made.
async fn history(seed: u64) -> u64 {
    let mut dice = StdRng::seed_from_u64(seed);
    let begun = Instant::now();
    let trace = Arc::new(Mutex::new(DefaultHasher::new()));
    let random = Random::seeded(dice.random());
    let calm = Arc::new(AtomicBool::new(true));
    let store = {
        let (calm, trace, mut dice) = (calm.clone(), trace.clone(), StdRng::seed_from_u64(dice.random()));
        // Of a hundred transactions so many are late, lost, or come to nothing.
        let (late, lost, away) = (dice.random_range(0..60), dice.random_range(0..8), dice.random_range(0..8));
        Faulty::new(move |object, _| {
            (object, begun.elapsed()).hash(&mut *trace.lock());
            if calm.load(Ordering::Relaxed) {
                return Fate::Done;
            }
            let mut time = || Duration::from_micros([0, 100, 2_000, 30_000][dice.random_range(0..4)]);
            let (one, other) = (time(), time());
            match dice.random_range(0..100) {
                n if n < lost => Fate::Lost(one * 10),
                n if n < lost + away => Fate::Away,
                n if n < lost + away + late => Fate::Slow(one, other),
                _ => Fate::Slow(Duration::from_micros(50), Duration::from_micros(50)),
            }
        })
    };
    let (width, unit) = ([1, 2, 3][dice.random_range(0..3)], [1, 2, 5][dice.random_range(0..3)]);
    let directory = Directory::new(store.clone()).unwrap().with_random(random.clone());
    directory.create("log", Shape { width, unit }).await.unwrap();
    {
        let (calm, mut dice) = (calm.clone(), StdRng::seed_from_u64(dice.random()));
        // Of a hundred events so many are late, or come twice.
        let (late, twice) = (dice.random_range(0..40), dice.random_range(0..20));
        store.deliver(move || {
            let after = Duration::from_micros([100, 5_000, 200_000][dice.random_range(0..3)]);
            match dice.random_range(0..100) {
                _ if calm.load(Ordering::Relaxed) => Delivery::AtOnce,
                n if n < late => Delivery::Late(after),
                n if n < late + twice => Delivery::Twice(after),
                _ => Delivery::AtOnce,
            }
        });
    }
    calm.store(false, Ordering::Relaxed);
    let observed = Shared::default();
    let options = Options {
        fill_after: Duration::from_millis(dice.random_range(1..400)),
        patience: Duration::from_secs(dice.random_range(0..20)),
        random,
        ..Options::default()
    };
    let open = async || loop {
        match Log::open(store.clone(), "log", options.clone()).await {
            Ok(log) => return log,
            Err(LogError::Store(_)) => sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    };
    let mut tasks = Vec::new();
    // One that appends alone, and is joined by nobody or by others, does not take positions before it writes.
    for client in 0..dice.random_range(1..5) {
        tasks.push(tokio::spawn(append(open().await, observed.clone(), client, dice.random())));
    }
    for _ in 0..dice.random_range(0..3) {
        tasks.push(tokio::spawn(recover(open().await, dice.random())));
    }
    for _ in 0..dice.random_range(1..3) {
        let from = dice.random_range(0..10);
        tasks.push(tokio::spawn(follow(open().await, observed.clone(), from, dice.random())));
    }
    tasks.push(tokio::spawn(look(open().await, observed.clone(), dice.random())));
    // Some die in the middle.
    for task in &tasks {
        if dice.random_bool(0.2) {
            sleep(Duration::from_millis(dice.random_range(0..200))).await;
            task.abort();
        }
    }
    for task in tasks {
        match timeout(Duration::from_secs(7200), task).await.expect("a client waits for ever") {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => {}
        }
    }
    // What is still on its way arrives.
    sleep(Duration::from_secs(60)).await;
    calm.store(true, Ordering::Relaxed);
    examine(open().await, &observed).await;
    trace.lock().finish()
}

/// Appends entries: some one by one, some many at a time, and some with so many under way at any time that their batches and those of
/// other clients are written to the same objects at once.
async fn append(log: Log, observed: Shared, client: u64, seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut number = 0;
    let mut last = None;
    // Some come when others have appended alone for a while.
    sleep(Duration::from_millis([0, 0, 100, 500][dice.random_range(0..4)])).await;
    let most_under_way = [0, 0, 4, 16][dice.random_range(0..4)];
    let rounds = dice.random_range(3..20);
    let mut appending = VecDeque::new();
    for round in 1..=rounds {
        for _ in 0..dice.random_range(1..8) {
            let data = Bytes::from(format!("{client} {number} {}", "x".repeat(dice.random_range(0..3000))));
            number += 1;
            let tags = TAGS.iter().filter(|_| dice.random_bool(0.3));
            let entry = tags.fold(Entry::new(data.clone()), |entry, tag| entry.tag(*tag));
            // What is acknowledged before an append begins has a lower position.
            let before = observed.lock().appended.last_key_value().map(|(position, _)| *position);
            match log.appender().submit(entry).await {
                Ok(position) => appending.push_back((data, position, before)),
                Err(LogError::Behind { .. }) => drop(observed.lock().failed.insert(data)),
                Err(error) => panic!("{error}"),
            }
        }
        let mut is_behind = false;
        // Once one has failed, all that are under way do; and nothing more is appended before that is known of each.
        while !appending.is_empty() && (is_behind || round == rounds || appending.len() > most_under_way) {
            let Some((data, position, before)) = appending.pop_front() else { break };
            let result = position.await;
            assert!(result.is_err() || !is_behind, "nothing is in the log behind an entry that failed");
            is_behind |= result.is_err();
            let mut observed = observed.lock();
            match result {
                Ok(position) => {
                    assert!(last < Some(position), "the entries of one client are in its order");
                    last = Some(position);
                    assert!(
                        before < Some(position),
                        "{position} was given after {before:?} was acknowledged"
                    );
                    let other = observed.appended.insert(position, data);
                    assert_eq!(other, None, "position {position} was given twice");
                }
                Err(error) if error.kind() == ErrorKind::Unknown => {}
                Err(LogError::Store(_) | LogError::Behind { .. }) => drop(observed.failed.insert(data)),
                Err(error) => panic!("{error}"),
            }
        }
        sleep(Duration::from_millis([0, 1, 50][dice.random_range(0..3)])).await;
    }
}

/// Recovers the log, or changes its view.
async fn recover(log: Log, seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    for _ in 0..dice.random_range(1..4) {
        sleep(Duration::from_millis(dice.random_range(0..100))).await;
        let shape = Shape { width: dice.random_range(1..4), unit: dice.random_range(1..4) };
        let result = if dice.random_bool(0.5) { log.seal().await } else { log.reshape(shape).await };
        match result {
            Ok(_) | Err(LogError::Store(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Follows the log, all of it or a stream, until its writers seem to be done.
async fn follow(log: Log, observed: Shared, from: u64, seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    let tag = dice.random_bool(0.5).then(|| Bytes::from(TAGS[dice.random_range(0..3)]));
    let mut follower = log.follow(from, FollowOptions { tag: tag.clone(), ..FollowOptions::default() });
    let mut before = None;
    while let Ok(step) = timeout(Duration::from_secs(30), follower.next()).await {
        match step {
            Ok(Followed::Entry { position, entry }) => {
                assert!(before < Some(position), "a follower goes forwards");
                before = Some(position);
                assert!(tag.as_ref().is_none_or(|tag| entry.tags.contains(tag)));
                observed.lock().saw(position, Some(entry.data));
            }
            Ok(Followed::Trimmed { to, .. }) => before = before.max(to.checked_sub(1)),
            Err(LogError::Store(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads, fills and trims here and there.
async fn look(log: Log, observed: Shared, seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    for _ in 0..dice.random_range(0..40) {
        sleep(Duration::from_millis(dice.random_range(0..20))).await;
        // What anybody was told of before is before the tail, whether it was acknowledged or not.
        let greatest = {
            let observed = observed.lock();
            let appended = observed.appended.last_key_value().map(|(position, _)| *position);
            appended.max(observed.read.last_key_value().map(|(position, _)| *position))
        };
        let Ok(tail) = log.tail().await else { continue };
        assert!(
            greatest < Some(tail),
            "the log was told to end at {tail}, and something was at {greatest:?}"
        );
        if tail == 0 {
            continue;
        }
        let position = dice.random_range(0..tail);
        match dice.random_range(0..10) {
            0 => {
                observed.lock().trimmed_singly.insert(position);
                let _ = log.trim(position).await;
            }
            1 => {
                let before = position / 4;
                {
                    let mut observed = observed.lock();
                    observed.trimmed = observed.trimmed.max(before);
                }
                let _ = log.trim_prefix(before).await;
            }
            2 => match log.fill(position).await {
                Ok(Slot::Filled) => observed.lock().saw(position, None),
                Ok(Slot::Entry(entry)) => observed.lock().saw(position, Some(entry.data)),
                Ok(Slot::Unwritten) => panic!("position {position} was filled, and is not"),
                // The tail may be lower after a recovery.
                Ok(Slot::Trimmed) | Err(LogError::Store(_) | LogError::Invalid(_)) => {}
                Err(error) => panic!("{error}"),
            },
            _ => match log.read(position).await {
                Ok(Slot::Filled) => observed.lock().saw(position, None),
                Ok(Slot::Entry(entry)) => observed.lock().saw(position, Some(entry.data)),
                Ok(_) | Err(LogError::Store(_)) => {}
                Err(error) => panic!("{error}"),
            },
        }
    }
}

/// Compares what the log holds in the end with what clients were told.
async fn examine(log: Log, observed: &Shared) {
    let tail = log.tail().await.unwrap();
    let mut follower = log.follow(0, FollowOptions::default());
    let mut entries = BTreeMap::new();
    let mut streams: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    while let Some(step) =
        timeout(Duration::from_secs(7200), follower.next_before(tail)).await.unwrap().unwrap()
    {
        if let Followed::Entry { position, entry } = step {
            for tag in TAGS.iter().filter(|tag| entry.tags.contains(&Bytes::from(**tag))) {
                streams.entry(tag).or_default().insert(position);
            }
            entries.insert(position, entry.data);
        }
    }
    {
        let observed = observed.lock();
        let may_be_trimmed =
            |position: &u64| *position < observed.trimmed || observed.trimmed_singly.contains(position);
        for (position, data) in &observed.appended {
            match entries.get(position) {
                None => {
                    assert!(may_be_trimmed(position), "the entry at {position} was acknowledged, and is lost")
                }
                found => assert_eq!(
                    found,
                    Some(data),
                    "position {position} holds something else than its writer was told"
                ),
            }
            assert!(
                observed.read.get(position).is_none_or(|read| read.as_ref() == Some(data)),
                "position {position} was read as something else"
            );
        }
        for (position, read) in &observed.read {
            match (entries.get(position), read) {
                (None, None) => {}
                (None, Some(_)) => assert!(may_be_trimmed(position), "what was read at {position} is gone"),
                (found, read) => {
                    assert_eq!(found, read.as_ref(), "position {position} was read as something else before")
                }
            }
        }
        let mut contents = BTreeSet::new();
        for (position, data) in &entries {
            assert!(contents.insert(data), "an entry is there twice, at {position} for the second time");
            assert!(
                !observed.failed.contains(data),
                "the append of what is at {position} was said to have failed"
            );
        }
    }
    for tag in TAGS {
        let mut stream = log.follow(0, FollowOptions { tag: Some(tag.into()), ..FollowOptions::default() });
        let mut found = BTreeSet::new();
        while let Some(step) = stream.next_before(tail).await.unwrap() {
            if let Followed::Entry { position, .. } = step {
                found.insert(position);
            }
        }
        assert_eq!(
            found,
            streams.remove(tag).unwrap_or_default(),
            "stream {tag} is the entries with its tag"
        );
    }
}

#[test]
fn what_clients_are_told_fits_together() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (first, count) = (number("NACRE_SEED"), number("NACRE_ZLOG_HISTORIES"));
    let count = count.unwrap_or(if first.is_some() { 1 } else { 150 });
    for seed in first.unwrap_or(0)..first.unwrap_or(0) + count {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("NACRE_SEED={seed} runs this history again");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn a_history_can_be_repeated() {
    let traces: BTreeSet<u64> = (0..10).map(run).collect();
    assert_eq!(traces.len(), 10, "histories differ");
    assert_eq!(traces, (0..10).map(run).collect());
}

fn run(seed: u64) -> u64 {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(history(seed))
}
