//! Random histories of several proposers and followers of one map, on a store that loses replies, against a naive model.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nacre_logstore::{LogStore, Options};
use nacre_map::{
    ClusterMap, Committed, FollowOptions, Followed, Limits, ProposeError, ProposeOptions, Record, Refused,
    Update,
};
use nacre_object::watch::{Watch, WatchOptions};
use nacre_object::{ErrorKind, Key, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A store that loses replies to writes: some took effect, some never do, and some take effect later.
struct Lossy {
    inner: Arc<LogStore>,
    random: Mutex<StdRng>,
    /// Writes that are still on their way.
    late: Mutex<Vec<(ObjectId, Transaction)>>,
    /// One write in so many is answered as unknown; 0 for none.
    one_in: u32,
    lost: AtomicU64,
}

impl Lossy {
    fn new(inner: LogStore, seed: u64, one_in: u32) -> Lossy {
        Lossy {
            inner: Arc::new(inner),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            late: Mutex::default(),
            one_in,
            lost: AtomicU64::new(0),
        }
    }
}

impl ObjectStore for Lossy {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let (fate, arrives) = {
            let mut random = self.random.lock();
            let lost = self.one_in > 0 && random.random_ratio(1, self.one_in);
            (if lost { random.random_range(0..3) } else { 3 }, random.random_bool(0.5))
        };
        let mut late = self.late.lock();
        if arrives && let Some((object, transaction)) = late.pop() {
            drop(self.inner.apply(&object, transaction));
        }
        if transaction.writes.is_empty() || fate == 3 {
            return self.inner.apply(object, transaction);
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        match fate {
            0 => drop(self.inner.apply(object, transaction)),
            1 => late.push((object.clone(), transaction)),
            _ => {}
        }
        Reply::ready(Err(StoreError::new(ErrorKind::Unknown, "the reply is lost")))
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        self.inner.watch(object, options)
    }
}

fn memory() -> LogStore {
    LogStore::memory(Options::default())
}

fn seed() -> u64 {
    let seed =
        std::env::var("NACRE_SEED").ok().map_or_else(rand::random, |text| text.parse().expect("a number"));
    println!("NACRE_SEED={seed}");
    seed
}

fn key(name: &str) -> Key {
    name.parse().unwrap()
}

/// The reply that a proposer got to an update.
struct Proposed {
    wanted_version: Option<u64>,
    value: Bytes,
    verdict: Result<Committed, ProposeError>,
}

/// Makes `updates` random updates of a few entries.
async fn propose(
    map: ClusterMap,
    name: usize,
    updates: usize,
    mut random: StdRng,
    gather_us: u64,
) -> Vec<Proposed> {
    let gather = std::time::Duration::from_micros(gather_us);
    let proposer = map.proposer(ProposeOptions { gather });
    let mut proposed = Vec::new();
    for number in 0..updates {
        let entry = key(&format!("entry-{}", random.random_range(0..5)));
        let value = Bytes::from(format!("{name}.{number}"));
        let mut update = Update::new(format!("proposer-{name}")).set(entry.clone(), value.clone());
        if random.random_bool(0.2) {
            update = update.remove(key(&format!("entry-{}", random.random_range(5..8))));
        }
        if random.random_bool(0.3) {
            update = update.set(key(&format!("entry-{}", random.random_range(5..8))), value.clone());
        }
        let mut wanted_version = None;
        if random.random_bool(0.5) {
            let version = map.get(&entry).await.unwrap().0.map_or(0, |found| found.version);
            update = update.if_version(entry, version);
            wanted_version = Some(version);
        }
        let verdict = proposer.propose(update).await;
        proposed.push(Proposed { wanted_version, value, verdict });
    }
    proposed
}

/// Replays records on a naive model, and returns the values that they end with.
fn replay(records: &[Record]) -> BTreeMap<Key, (Bytes, u64)> {
    let mut model: BTreeMap<Key, (Bytes, u64)> = BTreeMap::new();
    let (mut epoch, mut version) = (0, 0);
    for record in records {
        epoch += 1;
        assert_eq!(record.epoch, epoch, "epochs follow each other");
        assert!(!record.updates.is_empty());
        for change in record.updates.iter().flat_map(|update| &update.changes) {
            version += 1;
            assert_eq!(change.version, version, "changes are counted one by one");
            let old = change.old.as_ref().map(|old| (old.value.clone(), old.version));
            assert_eq!(model.get(&change.name).cloned(), old, "{}", change.name);
            match &change.new {
                Some(new) => drop(model.insert(change.name.clone(), (new.clone(), version))),
                None => drop(model.remove(&change.name)),
            }
        }
    }
    model
}

async fn history(inner: LogStore, seed: u64, proposers: usize, updates: usize, one_in: u32, gather_us: u64) {
    let store = Arc::new(Lossy::new(inner, seed, one_in));
    let map = ClusterMap::new(store.clone(), "random").unwrap();
    let followers: Vec<_> = (0..3)
        .map(|number| {
            let map = map.clone();
            tokio::spawn(async move {
                let poll = std::time::Duration::from_millis(5);
                let mut follower = map.follow(FollowOptions { poll });
                let mut seen = Vec::new();
                loop {
                    match follower.next().await.unwrap() {
                        // They begin at different moments, and are never left behind since.
                        Followed::Snapshot => assert!(seen.is_empty(), "follower {number}"),
                        Followed::Epoch(record) => seen.push(record),
                    }
                    if follower.state().get(b"end").is_some() {
                        return (seen, follower.state().clone());
                    }
                }
            })
        })
        .collect();
    let tasks: Vec<_> = (0..proposers)
        .map(|name| {
            let random = StdRng::seed_from_u64(seed ^ (name as u64 + 1) << 32);
            tokio::spawn(propose(map.clone(), name, updates, random, gather_us))
        })
        .collect();
    let mut proposed = Vec::new();
    for task in tasks {
        proposed.extend(task.await.unwrap());
    }
    let end = map.proposer(Default::default()).propose(Update::new("end").set(key("end"), "")).await.unwrap();
    if one_in > 0 {
        assert!(store.lost.load(Ordering::Relaxed) > 0);
    }

    let mut records: Vec<Record> = Vec::new();
    while (records.len() as u64) < end.epoch {
        let more = map.history(records.len() as u64, 100).await.unwrap();
        assert!(!more.is_empty(), "records are missing after {}", records.len());
        records.extend(more);
    }
    let model = replay(&records);
    let state = map.state().await.unwrap();
    let entries =
        state.entries().iter().map(|(name, entry)| (name.clone(), (entry.value.clone(), entry.version)));
    assert_eq!(entries.collect::<BTreeMap<_, _>>(), model);

    // Every update that was told to have taken effect is there once, and no other one is.
    let mut committed: HashMap<Bytes, (u64, usize)> = HashMap::new();
    for record in &records[..records.len() - 1] {
        for update in &record.updates {
            let value = update.changes.iter().find_map(|change| change.new.clone()).unwrap();
            let count = committed.entry(value).or_insert((record.epoch, 0));
            count.1 += 1;
        }
    }
    for Proposed { wanted_version, value, verdict } in &proposed {
        let found = committed.get(value);
        match verdict {
            Ok(committed) => {
                assert_eq!(found, Some(&(committed.epoch, 1)), "{value:?}");
                if let Some(wanted) = wanted_version {
                    let old = committed.changes[0].old.as_ref().map_or(0, |old| old.version);
                    assert_eq!(old, *wanted, "the condition held");
                }
            }
            Err(ProposeError::Refused(Refused::Version { wanted, found: now, .. })) => {
                assert_eq!(found, None, "a refused update took effect: {value:?}");
                assert_ne!(now.as_ref().map_or(0, |now| now.version), *wanted);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(committed.len(), proposed.iter().filter(|proposed| proposed.verdict.is_ok()).count());

    for follower in followers {
        let (seen, copy) = follower.await.unwrap();
        let first = seen.first().map_or(end.epoch, |record| record.epoch - 1) as usize;
        assert_eq!(seen[..], records[first..], "every follower sees the same epochs");
        assert_eq!(copy, state);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_proposers_lose_and_double_nothing() {
    let seed = seed();
    for round in 0..6 {
        history(memory(), seed ^ round, 4, 60, 0, if round % 2 == 0 { 0 } else { 300 }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn updates_whose_replies_are_lost_take_effect_once() {
    let seed = seed();
    for round in 0..4 {
        history(memory(), seed ^ round, 3, 30, 6, 0).await;
    }
}

/// On one thread, so that all are there when the time to gather them is over, whenever that may be.
#[tokio::test]
async fn updates_that_wait_come_into_one_epoch_and_keep_their_own_verdicts() {
    let map = ClusterMap::new(Arc::new(LogStore::memory(Options::default())), "gathered").unwrap();
    let gather = std::time::Duration::from_millis(50);
    let proposer = map.proposer(ProposeOptions { gather });
    let update = |number: usize| {
        let update = Update::new("w").set(key(&format!("entry-{number}")), "x");
        // Every third one wants an entry that is not there.
        if number.is_multiple_of(3) { update.if_version(key("none"), 7) } else { update }
    };
    let verdicts = futures::future::join_all((0..30).map(|number| proposer.propose(update(number)))).await;
    for (number, verdict) in verdicts.iter().enumerate() {
        match verdict {
            Ok(committed) => assert_eq!((number % 3 != 0, committed.epoch), (true, 1)),
            Err(error) => {
                assert!(number % 3 == 0, "{error}");
                assert_eq!(error.to_string(), "entry \"none\" is absent, not 7");
            }
        }
    }
    assert_eq!(map.header().await.unwrap().unwrap().entries, 20);
}

#[tokio::test]
async fn a_follower_that_is_left_behind_takes_a_snapshot() {
    let map = ClusterMap::new(Arc::new(LogStore::memory(Options::default())), "short").unwrap();
    let proposer = map.proposer(Default::default());
    proposer.set_limits("w", &Limits { history: 5, ..Limits::default() }).await.unwrap();
    let mut follower = map.follow(Default::default());
    assert_eq!(follower.next().await.unwrap(), Followed::Snapshot);
    for number in 0..3 {
        proposer.propose(Update::new("w").set(key("a"), number.to_string())).await.unwrap();
    }
    for epoch in 2..5 {
        assert!(matches!(follower.next().await.unwrap(), Followed::Epoch(record) if record.epoch == epoch));
    }
    for number in 0..20 {
        proposer.propose(Update::new("w").set(key("a"), number.to_string())).await.unwrap();
    }
    assert_eq!(follower.next().await.unwrap(), Followed::Snapshot);
    assert_eq!(follower.state().epoch(), 24);
    let header = map.header().await.unwrap().unwrap();
    assert_eq!((header.epoch, header.oldest), (24, 20));
    assert_eq!(map.history(0, 100).await.unwrap().len(), 5);
    // A smaller bound takes hold bit by bit, a removed map is another one.
    proposer.set_limits("w", &Limits { history: 1, ..Limits::default() }).await.unwrap();
    assert_eq!(map.history(0, 100).await.unwrap().len(), 1);
    assert!(matches!(follower.next().await.unwrap(), Followed::Epoch(_) | Followed::Snapshot));
    let gone = Transaction::new().change(nacre_object::WriteOp::Remove);
    map_store(&map).apply(map.object(), gone).await.unwrap();
    assert_eq!(follower.next().await.unwrap(), Followed::Snapshot);
    assert_eq!(follower.state().epoch(), 0);
    proposer.propose(Update::new("w").set(key("b"), "anew")).await.unwrap();
    assert_eq!(follower.wait_for(1).await.unwrap(), 1);
    assert_eq!(follower.state().entries().len(), 1);
}

fn map_store(map: &ClusterMap) -> Arc<dyn ObjectStore> {
    map.store().clone()
}

#[tokio::test]
async fn limits_are_refused_with_a_sentence() {
    let map = ClusterMap::new(Arc::new(LogStore::memory(Options::default())), "small").unwrap();
    let proposer = map.proposer(Default::default());
    let set = |name: &str, len: usize| Update::new("w").set(key(name), vec![b'x'; len]);
    let said = |verdict: Result<Committed, ProposeError>| verdict.unwrap_err().to_string();
    assert!(said(proposer.propose(set("a", (64 << 10) + 1)).await).contains("the limit is 65536"));
    assert!(said(proposer.propose(set(&"n".repeat(600), 1)).await).contains("the limit is 512"));
    let wide = (0..16)
        .fold(Update::new("w"), |update, number| update.set(key(&number.to_string()), vec![0; 65_536]));
    assert!(said(proposer.propose(wide).await).contains("split the update"));
    proposer.set_limits("w", &Limits { entries: 2, bytes: 1000, ..Limits::default() }).await.unwrap();
    proposer.propose(set("a", 10)).await.unwrap();
    assert!(said(proposer.propose(set("b", 990)).await).contains("its limit is 1000"));
    proposer.propose(set("b", 10)).await.unwrap();
    assert!(said(proposer.propose(set("c", 10)).await).contains("3 entries; its limit is 2"));
    // What makes a map smaller is allowed where it is too large already.
    proposer.set_limits("w", &Limits { entries: 1, ..Limits::default() }).await.unwrap();
    proposer.propose(set("a", 11)).await.unwrap();
    proposer.propose(Update::new("w").remove(key("a"))).await.unwrap();
    assert!(proposer.set_limits("w", &Limits { entries: 0, ..Limits::default() }).await.is_err());
    for name in ["", "-a", "a/b", "a b", &"a".repeat(129)] {
        assert!(ClusterMap::new(map_store(&map), name).is_err(), "{name}");
    }
    let header = map.header().await.unwrap().unwrap();
    // Without a change there is no epoch.
    let nothing = proposer.propose(Update::new("w").remove(key("none"))).await.unwrap();
    assert_eq!((nothing.epoch, nothing.changes.len()), (header.epoch, 0));
    assert_eq!(map.header().await.unwrap().unwrap(), header);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_in_a_folder_keeps_the_same_promises() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { create: true, ..Options::default() };
    let store = LogStore::open(&folder.path().join("store"), options).unwrap();
    history(store, seed(), 3, 15, 6, 0).await;
}

/// A store whose replies take a while, so that a call can be dropped in the middle.
struct Slow(LogStore);

impl ObjectStore for Slow {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let (store, object) = (self.0.clone(), object.clone());
        Reply::pending(async move {
            tokio::time::sleep(std::time::Duration::from_micros(300)).await;
            let outcome = store.apply(&object, transaction).await;
            tokio::time::sleep(std::time::Duration::from_micros(300)).await;
            outcome
        })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.0.list(after, limit)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_that_are_dropped_in_the_middle_take_others_with_them_neither_away_nor_twice() {
    let seed = seed();
    let map = ClusterMap::new(Arc::new(Slow(memory())), "dropped").unwrap();
    let proposer = map.proposer(Default::default());
    let tasks: Vec<_> = (0..6_u64)
        .map(|name| {
            let (proposer, mut random) = (proposer.clone(), StdRng::seed_from_u64(seed ^ name));
            tokio::spawn(async move {
                let mut proposed = Vec::new();
                for number in 0..60 {
                    let value = Bytes::from(format!("{name}.{number}"));
                    let update = Update::new("w").set(key(&format!("entry-{}", number % 4)), value.clone());
                    let patience = std::time::Duration::from_micros(random.random_range(0..4000));
                    // Half of the callers lose their patience.
                    let committed = match random.random_bool(0.5) {
                        true => tokio::time::timeout(patience, proposer.propose(update)).await.ok(),
                        false => Some(proposer.propose(update).await),
                    };
                    proposed.push((value, committed.map(|committed| committed.unwrap().epoch)));
                }
                proposed
            })
        })
        .collect();
    let mut proposed = Vec::new();
    for task in tasks {
        proposed.extend(task.await.unwrap());
    }
    assert!(proposed.iter().any(|(_, committed)| committed.is_none()), "nobody lost its patience");
    let records = map.history(0, 1000).await.unwrap();
    replay(&records);
    let mut committed = HashMap::new();
    for record in &records {
        for change in record.updates.iter().flat_map(|update| &update.changes) {
            assert_eq!(
                committed.insert(change.new.clone().unwrap(), record.epoch),
                None,
                "an update is there twice"
            );
        }
    }
    for (value, epoch) in proposed {
        if let Some(epoch) = epoch {
            assert_eq!(committed.get(&value), Some(&epoch));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn limits_that_are_changed_at_the_same_time_are_all_changed() {
    for round in 0..20 {
        let map = ClusterMap::new(Arc::new(Slow(memory())), "limited").unwrap();
        let change = |which: u64| {
            let proposer = map.proposer(Default::default());
            async move {
                let changed = proposer.change_limits("w", |limits| match which {
                    0 => Limits { history: 7, ..limits },
                    1 => Limits { entries: 8, ..limits },
                    _ => Limits { bytes: 9, ..limits },
                });
                changed.await.unwrap();
            }
        };
        tokio::join!(change(0), change(1), change(2));
        let limits = map.state().await.unwrap().limits().unwrap();
        assert_eq!(limits, Limits { history: 7, entries: 8, bytes: 9 }, "{round}");
    }
}

/// A store whose reads take a while.
struct SlowReads(LogStore);

impl ObjectStore for SlowReads {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let (store, object) = (self.0.clone(), object.clone());
        Reply::pending(async move {
            if transaction.writes.is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            store.apply(&object, transaction).await
        })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.0.list(after, limit)
    }
}

#[tokio::test(start_paused = true)]
async fn a_map_that_changes_faster_than_it_can_be_read_is_busy() {
    let inner = memory();
    let writer = ClusterMap::new(Arc::new(inner.clone()), "fast").unwrap();
    let proposer = writer.proposer(Default::default());
    proposer.set_limits("w", &Limits { history: 1, ..Limits::default() }).await.unwrap();
    let writes = tokio::spawn(async move {
        for number in 0_u64.. {
            proposer.propose(Update::new("w").set(key("a"), number.to_string())).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    });
    let reader = ClusterMap::new(Arc::new(SlowReads(inner)), "fast").unwrap();
    let result = tokio::time::timeout(std::time::Duration::from_secs(3600), reader.state()).await;
    let error = result.expect("it ends").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    // Once the writer has ended, the map is read as ever.
    writes.abort();
    assert_eq!(reader.state().await.unwrap().entries().len(), 1);
}

#[tokio::test]
async fn a_history_of_more_than_a_reply_is_followed_page_by_page() {
    let map = ClusterMap::new(Arc::new(memory()), "long").unwrap();
    let (first, second) = (map.proposer(Default::default()), map.proposer(Default::default()));
    let update = |round: u8| {
        let value = vec![round; 60 << 10];
        (0..8).fold(Update::new("w"), |update, name| update.set(key(&name.to_string()), value.clone()))
    };
    second.propose(Update::new("w").set(key("begin"), "")).await.unwrap();
    let mut follower = map.follow(FollowOptions::default());
    assert_eq!(follower.next().await.unwrap(), Followed::Snapshot);
    // About 40 MiB: old values are part of a record.
    for round in 0..45 {
        first.propose(update(round)).await.unwrap();
    }
    let page = map.history(1, 1000).await.unwrap().len();
    assert!(page < 30, "{page} records fit into a reply");
    for epoch in 2..47 {
        assert!(matches!(follower.next().await.unwrap(), Followed::Epoch(record) if record.epoch == epoch));
    }
    assert_eq!(*follower.state(), map.state().await.unwrap());
    // A proposer that was away for as long comes to the same epoch before it judges.
    let committed = second.propose(Update::new("w").if_epoch(46).set(key("end"), "")).await.unwrap();
    assert_eq!(committed.epoch, 47);
    // Epochs that go while the first page is being read are gone, and what follows is a snapshot.
    let mut late = map.follow(FollowOptions::default());
    assert_eq!(late.next().await.unwrap(), Followed::Snapshot);
    for round in 45..90 {
        first.propose(update(round)).await.unwrap();
    }
    assert!(matches!(late.next().await.unwrap(), Followed::Epoch(record) if record.epoch == 48));
    first.set_limits("w", &Limits { history: 1, ..Limits::default() }).await.unwrap();
    for round in 0..5 {
        first.propose(update(round)).await.unwrap();
    }
    let mut epochs = Vec::new();
    while let Followed::Epoch(record) = late.next().await.unwrap() {
        epochs.push(record.epoch);
    }
    assert!(epochs.len() < 45 && epochs.iter().zip(49..).all(|(epoch, next)| *epoch == next), "{epochs:?}");
    assert_eq!(*late.state(), map.state().await.unwrap());
}
