//! Faults of stores and other clients that maps, the servers that watch over each other, and the log survive: replies that
//! are lost, writes that hang, and bytes that nobody here wrote. The clock is the runtime's, and jumps while all wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nacre_map::cluster::{self, Load, Phase, SERVERS_MAP, ServerEntry};
use nacre_map::log::{Entry, Level, Log, LogBounds, Writer};
use nacre_map::{ClusterMap, Followed, ProposeError, ProposeOptions, Refused, Update, Validator, limit};
use nacre_object::testkit::MemoryStore;
use nacre_object::watch::{Watch, WatchOptions};
use nacre_object::{ErrorKind, Key, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction, WriteOp};
use parking_lot::Mutex;
use tokio::time::timeout;

/// The time after which a call is taken for one that never ends. No time passes but that for which all wait.
const FOREVER: Duration = Duration::from_secs(3600);

/// The fate of a transaction.
#[derive(Clone, Copy)]
enum Fate {
    Done,
    /// It takes effect, and the reply is lost.
    Lost,
    /// It takes effect, and the reply is a failure of a kind that only a later program knows.
    Unrecognized,
    /// The reply is lost, and it takes effect when the test says so, if its guards hold then.
    Late,
    /// It takes no effect, and fails with this.
    Fails(ErrorKind),
    /// It takes no effect, and there is no reply.
    Hangs,
}

/// Decides the fate of a transaction.
type Decide = Box<dyn FnMut(&Transaction) -> Fate + Send>;

/// A store whose transactions have the fate that a test gives them.
struct Faulty {
    inner: MemoryStore,
    decide: Mutex<Decide>,
    late: Mutex<Vec<(ObjectId, Transaction)>>,
    applied: AtomicU64,
    /// True if every watch ends at once.
    breaks_watches: bool,
}

impl Faulty {
    fn new(decide: impl FnMut(&Transaction) -> Fate + Send + 'static) -> Arc<Faulty> {
        let decide = Mutex::new(Box::new(decide) as Decide);
        Arc::new(Faulty {
            inner: MemoryStore::new(),
            decide,
            late: Mutex::default(),
            applied: AtomicU64::new(0),
            breaks_watches: false,
        })
    }

    fn sound() -> Arc<Faulty> {
        Self::new(|_| Fate::Done)
    }

    /// Lets what was late arrive.
    async fn arrive(&self) {
        let late = std::mem::take(&mut *self.late.lock());
        assert!(!late.is_empty(), "nothing is late");
        for (object, transaction) in late {
            self.inner.apply(&object, transaction).await.unwrap();
        }
    }
}

impl ObjectStore for Faulty {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.applied.fetch_add(1, Ordering::Relaxed);
        let fate = (self.decide.lock())(&transaction);
        let failed = |kind| Reply::ready(Err(StoreError::new(kind, "the store fails on purpose")));
        match fate {
            Fate::Done => self.inner.apply(object, transaction),
            Fate::Lost => {
                drop(self.inner.apply(object, transaction));
                failed(ErrorKind::Unknown)
            }
            Fate::Unrecognized => {
                drop(self.inner.apply(object, transaction));
                failed(ErrorKind::Unrecognized)
            }
            Fate::Late => {
                self.late.lock().push((object.clone(), transaction));
                failed(ErrorKind::Unknown)
            }
            Fate::Fails(kind) => failed(kind),
            Fate::Hangs => Reply::pending(std::future::pending()),
        }
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        if self.breaks_watches {
            let (feed, watch) = Watch::new(1, 0, &options, ());
            feed.end(Some(StoreError::new(ErrorKind::Unavailable, "the watch broke")));
            return Reply::ready(Ok(watch));
        }
        self.inner.watch(object, options)
    }
}

fn key(name: &str) -> Key {
    name.parse().unwrap()
}

/// Puts a key into an object, as any client may.
async fn put(store: &dyn ObjectStore, object: &ObjectId, name: &str, value: impl Into<Bytes>) {
    let write = WriteOp::SetKey { key: key(name), value: value.into() };
    store.apply(object, Transaction::new().change(write)).await.unwrap();
}

/// Lines of a log with their keys.
type Lines = Vec<(&'static str, Vec<u8>)>;

/// Encodes the header of a log.
fn log_header(next: u64, oldest: u64, total: u64, removed: u64) -> Vec<u8> {
    let numbers = [next, oldest, total, removed].into_iter().flat_map(u64::to_le_bytes);
    std::iter::once(1).chain(numbers).collect()
}

/// Encodes a line of a log.
fn log_line(total: u64, text: &str) -> Vec<u8> {
    let mut out = vec![1];
    out.extend([7; 16]);
    out.extend(total.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    out.push(0);
    for part in ["other", text] {
        out.extend((part.len() as u32).to_le_bytes());
        out.extend(part.as_bytes());
    }
    out
}

fn line(text: &str) -> Entry {
    Entry::new("test", Level::Info, text)
}

fn log_object() -> ObjectId {
    nacre_map::log::LOG_OBJECT.parse().unwrap()
}

/// Starts a server that takes part in the cluster.
fn server(store: &Arc<Faulty>, name: &str, rank: u64) -> tokio::task::JoinHandle<()> {
    let log = Log::new(store.clone(), LogBounds::default()).unwrap();
    let (writer, appended) = Writer::new(log, name);
    tokio::spawn(appended);
    let options = cluster::Options {
        name: name.to_owned(),
        rank,
        address: name.to_owned(),
        roles: vec!["store".to_owned()],
        interval: Duration::from_secs(1),
        health: Default::default(),
    };
    let store = store.clone();
    tokio::spawn(async move {
        let load = || -> futures::future::BoxFuture<'static, Load> { Box::pin(async { Load::default() }) };
        cluster::run(store, options, Box::new(load), writer, std::future::pending()).await.unwrap();
    })
}

/// Waits until the servers of the map are in these states.
async fn until(store: &Arc<Faulty>, wanted: &[(&str, Phase)]) {
    let mut follower = ClusterMap::new(store.clone(), SERVERS_MAP).unwrap().follow(Default::default());
    let reached = async {
        loop {
            follower.next().await.unwrap();
            let is = |(name, phase): &(&str, Phase)| {
                let entry = follower.state().get(name.as_bytes());
                entry
                    .and_then(|entry| ServerEntry::decode(&entry.value))
                    .is_some_and(|entry| entry.state == *phase)
            };
            if wanted.iter().all(is) {
                return;
            }
        }
    };
    timeout(FOREVER, reached).await.unwrap_or_else(|_| panic!("they never come to {wanted:?}"));
}

#[tokio::test(start_paused = true)]
async fn servers_are_marked_down_when_all_monitors_die_at_once() {
    let store = Faulty::sound();
    let names = ["a", "b", "c", "d", "e"];
    let tasks: Vec<_> = names.iter().zip(1..).map(|(name, rank)| server(&store, name, rank)).collect();
    until(&store, &names.map(|name| (name, Phase::Up))).await;
    tasks[..3].iter().for_each(|task| task.abort());
    let down = |name| (name, Phase::Down);
    until(&store, &[down("a"), down("b"), down("c"), ("d", Phase::Up), ("e", Phase::Up)]).await;
}

#[tokio::test(start_paused = true)]
async fn beacons_go_on_while_the_map_does_not_answer() {
    let hangs = Arc::new(AtomicBool::new(false));
    let store = {
        let hangs = hangs.clone();
        Faulty::new(move |transaction| {
            // A beacon reads nothing and has no condition.
            let is_beacon = transaction.reads.is_empty() && transaction.guards.is_empty();
            if hangs.load(Ordering::Relaxed) && !is_beacon { Fate::Hangs } else { Fate::Done }
        })
    };
    server(&store, "a", 1);
    until(&store, &[("a", Phase::Up)]).await;
    hangs.store(true, Ordering::Relaxed);
    let before = cluster::beacons(&store.inner).await.unwrap()["a"].sequence;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let sent = cluster::beacons(&store.inner).await.unwrap()["a"].sequence - before;
    assert!((59..=61).contains(&sent), "{sent} beacons in a minute");
}

#[tokio::test(start_paused = true)]
async fn two_servers_of_one_name_do_not_take_it_from_each_other_again_and_again() {
    let store = Faulty::sound();
    let map = ClusterMap::new(store.clone(), SERVERS_MAP).unwrap();
    let incarnation = async || {
        let (entry, _) = map.get(&key("a")).await.unwrap();
        ServerEntry::decode(&entry.unwrap().value).unwrap().incarnation
    };
    let elder = server(&store, "a", 1);
    until(&store, &[("a", Phase::Up)]).await;
    let first = incarnation().await;
    let younger = server(&store, "a", 1);
    tokio::time::sleep(Duration::from_secs(300)).await;
    let second = incarnation().await;
    assert_ne!(first, second, "the younger one has the name");
    assert_eq!(map.header().await.unwrap().unwrap().epoch, 2, "one epoch for each start");
    assert_eq!(cluster::beacons(&*store).await.unwrap()["a"].incarnation, second, "the elder one is silent");
    let log = Log::new(store.clone(), LogBounds::default()).unwrap();
    let warned = async || {
        let lines = log.last(100).await.unwrap();
        lines.iter().filter(|line| line.entry.text.contains("another server has taken the name a")).count()
    };
    assert_eq!(warned().await, 1);
    // Once the younger one is gone, the name is free.
    younger.abort();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(incarnation().await, first);
    assert_eq!(cluster::beacons(&*store).await.unwrap()["a"].incarnation, first);
    assert_eq!((warned().await, elder.is_finished()), (1, false));
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_entry_is_gone_enters_itself_again() {
    let store = Faulty::sound();
    let map = ClusterMap::new(store.clone(), SERVERS_MAP).unwrap();
    let task = server(&store, "a", 1);
    until(&store, &[("a", Phase::Up)]).await;
    store.apply(map.object(), Transaction::new().change(WriteOp::Remove)).await.unwrap();
    assert_eq!(map.header().await.unwrap(), None);
    until(&store, &[("a", Phase::Up)]).await;
    assert!(!task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_get_round_the_time_for_which_a_server_is_held_down() {
    let store = Faulty::sound();
    let map = ClusterMap::new(store.clone(), SERVERS_MAP).unwrap();
    let _monitor = server(&store, "a", 1);
    let first = server(&store, "b", 2);
    until(&store, &[("a", Phase::Up), ("b", Phase::Up)]).await;
    first.abort();
    until(&store, &[("b", Phase::Down)]).await;
    let (down, since) = map.get(&key("b")).await.unwrap();
    let down = ServerEntry::decode(&down.unwrap().value).unwrap();
    let _second = server(&store, "b", 2);
    until(&store, &[("b", Phase::Up)]).await;
    // It enters itself as it was, and the monitor marks it up later, in an epoch of its own.
    let entries: Vec<ServerEntry> = map
        .history(since, 100)
        .await
        .unwrap()
        .iter()
        .flat_map(|record| &record.updates)
        .flat_map(|update| &update.changes)
        .filter(|change| change.name == key("b"))
        .map(|change| ServerEntry::decode(change.new.as_ref().unwrap()).unwrap())
        .collect();
    let states: Vec<(Phase, u32)> = entries.iter().map(|entry| (entry.state, entry.downs)).collect();
    assert_eq!(states, [(Phase::Down, 1), (Phase::Up, 1)]);
    assert!(entries.iter().all(|entry| entry.incarnation != down.incarnation));
}

#[tokio::test(start_paused = true)]
async fn an_update_whose_reply_is_not_understood_is_looked_for() {
    let mut writes = 0;
    let store = Faulty::new(move |transaction| {
        writes += u32::from(!transaction.writes.is_empty());
        let is_first = writes == 1 && !transaction.writes.is_empty();
        if is_first { Fate::Unrecognized } else { Fate::Done }
    });
    let map = ClusterMap::new(store, "map").unwrap();
    let proposer = map.proposer(Default::default());
    let update = Update::new("test").set(key("a"), Bytes::from_static(b"1"));
    let committed = timeout(FOREVER, proposer.propose(update)).await.unwrap().unwrap();
    assert_eq!((committed.epoch, map.state().await.unwrap().epoch()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_line_whose_reply_is_lost_is_there_once_though_the_store_then_fails() {
    let mut calls = 0;
    // The first write takes effect and its reply is lost; the store is away for a moment since.
    let store = Faulty::new(move |transaction| {
        calls += u32::from(calls > 0 || !transaction.writes.is_empty());
        match calls {
            1 => Fate::Lost,
            2..=30 => Fate::Fails(ErrorKind::Unavailable),
            _ => Fate::Done,
        }
    });
    let log = Log::new(store, LogBounds::default()).unwrap();
    let (writer, appended) = Writer::new(log.clone(), "daemon");
    writer.write(Level::Info, "once");
    drop(writer);
    timeout(FOREVER, appended).await.unwrap();
    let texts: Vec<_> = log.last(10).await.unwrap().into_iter().map(|line| line.entry.text).collect();
    assert_eq!(texts, ["once"]);
}

#[tokio::test(start_paused = true)]
async fn lines_outlast_replies_that_are_lost_again_and_again() {
    let mut writes = 0;
    let store = Faulty::new(move |transaction| {
        writes += u32::from(!transaction.writes.is_empty());
        match (transaction.writes.is_empty(), writes) {
            (false, ..40) => Fate::Fails(ErrorKind::Unknown),
            (false, 40) => Fate::Lost,
            _ => Fate::Done,
        }
    });
    let log = Log::new(store, LogBounds::default()).unwrap();
    let (writer, appended) = Writer::new(log.clone(), "daemon");
    writer.write(Level::Info, "once");
    drop(writer);
    timeout(FOREVER, appended).await.unwrap();
    assert_eq!(log.last(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_line_that_no_reader_would_take_is_not_appended() {
    let log = Log::new(Faulty::sound(), LogBounds::default()).unwrap();
    let long = Entry { text: "x".repeat(2000), ..line("") };
    let error = log.append(&[long]).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
    log.append(&[line("short")]).await.unwrap();
    assert_eq!(log.last(10).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn lines_that_others_put_into_the_log_stop_neither_writers_nor_readers() {
    // The header with another client's numbers, and lines with their keys.
    let hostile: [(Vec<u8>, Lines); 5] = [
        (log_header(1 << 62, 1, 100, 0), vec![("line/2000000000000000", log_line(50, "far away"))]),
        (log_header(2, 1, 100, 0), vec![("line/ffffffffffffffff", log_line(50, "the last number"))]),
        (log_header(2, 1, 100, 0), vec![("line/0000000000000001", log_line(u64::MAX, "the most bytes"))]),
        (log_header(2, 1, 100, 0), vec![("line/0000000000000001", b"no line".to_vec())]),
        (log_header(2, 1, 100, 0), vec![("line/no number", log_line(50, "no number"))]),
    ];
    for (number, (header, lines)) in hostile.into_iter().enumerate() {
        let store = Faulty::sound();
        put(&*store, &log_object(), "header", header).await;
        for (name, value) in lines {
            put(&*store, &log_object(), name, value.clone()).await;
        }
        let log = Log::new(store.clone(), LogBounds { lines: 8, bytes: 1 << 20 }).unwrap();
        let mut follower = log.follow(0, Duration::from_secs(1));
        let followed = tokio::spawn(async move {
            loop {
                let lines = follower.next().await.unwrap();
                if lines.iter().any(|line| line.entry.text == "line 29") {
                    return;
                }
            }
        });
        for number in 0..30 {
            log.append(&[line(&format!("line {number}"))])
                .await
                .unwrap_or_else(|error| panic!("{number}: {error}"));
        }
        let lines = log.last(4).await.unwrap();
        assert_eq!(lines.last().map(|line| &*line.entry.text), Some("line 29"), "{number}");
        timeout(FOREVER, followed).await.unwrap_or_else(|_| panic!("{number}: its follower hangs")).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_proposer_refuses_a_map_whose_header_does_not_fit() {
    for known in [false, true] {
        let store = Faulty::sound();
        let map = ClusterMap::new(store.clone(), "m").unwrap();
        let (first, second) = (map.proposer(Default::default()), map.proposer(Default::default()));
        first.propose(Update::new("w").set(key("a"), "1")).await.unwrap();
        let header = match known {
            // Another entry than those that the header counts.
            false => {
                put(&*store, map.object(), "state/entry/b", [&[1; 17][..], b"x"].concat()).await;
                None
            }
            // The header counts other bytes than those that there are.
            true => Some([&[1][..], &map.state().await.unwrap().incarnation().0].concat()),
        };
        if let Some(mut header) = header {
            header.extend([1_u64, 1, 1, 1, 999].into_iter().flat_map(u64::to_le_bytes));
            put(&*store, map.object(), "header", header).await;
        }
        let proposer = if known { first } else { second };
        let result = timeout(FOREVER, proposer.propose(Update::new("w").set(key("c"), "2"))).await;
        let error = result.expect("it ends").unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }
}

#[tokio::test]
async fn numbers_that_no_map_reaches_are_refused() {
    for (epoch, version, oldest) in [(u64::MAX, 1, 1), (1, u64::MAX, 1), (u64::MAX, 1, u64::MAX)] {
        let store = Faulty::sound();
        let map = ClusterMap::new(store.clone(), "m").unwrap();
        let mut header = vec![1; 17];
        header.extend([epoch, version, oldest, 0, 0].into_iter().flat_map(u64::to_le_bytes));
        put(&*store, map.object(), "header", header).await;
        let result = map.proposer(Default::default()).propose(Update::new("w").set(key("c"), "2")).await;
        assert!(result.unwrap_err().to_string().contains("cannot be read"));
    }
}

#[tokio::test]
async fn the_validator_of_a_map_that_was_made_again_is_the_new_one() {
    let store = Faulty::sound();
    let map = ClusterMap::new(store.clone(), "m").unwrap();
    let validator = |text: &str| Validator { prefix: Bytes::new(), text: text.to_owned() };
    let (old, new) = (map.proposer(Default::default()), map.proposer(Default::default()));
    old.set_validator("w", "v", &validator("function validate(c) c.new = 'old' end")).await.unwrap();
    old.propose(Update::new("w").set(key("a"), "raw")).await.unwrap();
    store.apply(map.object(), Transaction::new().change(WriteOp::Remove)).await.unwrap();
    new.set_validator("w", "v", &validator("function validate(c) c.new = 'new' end")).await.unwrap();
    old.propose(Update::new("w").set(key("a"), "raw")).await.unwrap();
    assert_eq!(&map.get(&key("a")).await.unwrap().0.unwrap().value[..], b"new");
}

#[tokio::test(start_paused = true)]
async fn updates_that_were_given_up_do_not_pile_up() {
    let hangs = Arc::new(AtomicBool::new(true));
    let store = {
        let hangs = hangs.clone();
        Faulty::new(move |transaction| {
            match hangs.load(Ordering::Relaxed) && !transaction.writes.is_empty() {
                true => Fate::Hangs,
                false => Fate::Done,
            }
        })
    };
    let map = ClusterMap::new(store, "m").unwrap();
    let proposer = map.proposer(Default::default());
    for number in 0..3000 {
        let update = Update::new("w").set(key(&format!("given-up-{number}")), "x");
        assert!(timeout(Duration::from_secs(1), proposer.propose(update)).await.is_err());
    }
    hangs.store(false, Ordering::Relaxed);
    let committed =
        timeout(FOREVER, proposer.propose(Update::new("w").set(key("last"), "x"))).await.unwrap().unwrap();
    // The first may have been on its way, and none of those that came later.
    assert_eq!(committed.epoch, 1);
    assert!(map.state().await.unwrap().entries().len() <= 2);
}

#[tokio::test(start_paused = true)]
async fn a_follower_whose_watches_break_pauses_between_them() {
    let mut store = Faulty::sound();
    Arc::get_mut(&mut store).unwrap().breaks_watches = true;
    let map = ClusterMap::new(store.clone(), "m").unwrap();
    let mut follower = map.follow(Default::default());
    assert_eq!(follower.next().await.unwrap(), Followed::Snapshot);
    assert!(timeout(Duration::from_secs(60), follower.next()).await.is_err(), "there is no news");
    let reads = store.applied.load(Ordering::Relaxed);
    assert!(reads < 200, "{reads} reads in a minute");
    map.proposer(Default::default()).propose(Update::new("w").set(key("a"), "1")).await.unwrap();
    assert_eq!(timeout(FOREVER, follower.wait_for(1)).await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn binary_values_at_the_limit_pass_a_validator() {
    let map = ClusterMap::new(Faulty::sound(), "m").unwrap();
    let proposer = map.proposer(Default::default());
    let validator = Validator { prefix: Bytes::new(), text: "function validate(c) end".to_owned() };
    proposer.set_validator("w", "v", &validator).await.unwrap();
    let name = Key::new(vec![0xff; limit::ENTRY_NAME_BYTES_MAX]).unwrap();
    for byte in [0xff, 0xfe] {
        let value = vec![byte; limit::VALUE_BYTES_MAX];
        proposer.propose(Update::new("w").set(name.clone(), value.clone())).await.unwrap();
        assert_eq!(map.get(&name).await.unwrap().0.unwrap().value, value);
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_that_is_told_to_be_refused_takes_no_effect_later() {
    let is_late = Arc::new(AtomicBool::new(false));
    let store = {
        let is_late = is_late.clone();
        Faulty::new(move |transaction| {
            match is_late.load(Ordering::Relaxed) && !transaction.writes.is_empty() {
                true => Fate::Late,
                false => Fate::Done,
            }
        })
    };
    let map = ClusterMap::new(store.clone(), "m").unwrap();
    let proposer = map.proposer(ProposeOptions { gather: Duration::from_millis(1) });
    proposer.propose(Update::new("w").set(key("base"), "1")).await.unwrap();
    is_late.store(true, Ordering::Relaxed);
    // The second update needs the change of the first one, whose caller goes away as soon as the reply is lost.
    let mut first = Box::pin(proposer.propose(Update::new("w").set(key("a"), "1")));
    let second = Update::new("w").if_version(key("a"), 2).set(key("b"), "1");
    let mut second = Box::pin(proposer.propose(second));
    loop {
        tokio::select! {
            biased;
            _ = &mut first => panic!("its reply is lost"),
            _ = &mut second => panic!("it cannot be known yet"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
        if !store.late.lock().is_empty() {
            break;
        }
    }
    drop(first);
    is_late.store(false, Ordering::Relaxed);
    let verdict = timeout(FOREVER, second).await.expect("it ends");
    store.arrive().await;
    let found = map.get(&key("b")).await.unwrap().0;
    let Err(ProposeError::Refused(Refused::Version { .. })) = verdict else { panic!("{verdict:?}") };
    assert_eq!(found, None, "it was told to be refused");
    // What settles that is an epoch like any other.
    let record = map.history(1, 10).await.unwrap().pop().unwrap();
    assert_eq!((record.epoch, record.updates[0].changes.len()), (2, 0));
    let committed = proposer.propose(Update::new("w").set(key("c"), "1")).await.unwrap();
    assert_eq!((committed.epoch, committed.changes[0].version), (3, 2));
    assert_eq!(map.state().await.unwrap().epoch(), 3);
}

#[tokio::test]
async fn a_refusal_is_about_the_map_as_it_is() {
    let map = ClusterMap::new(Faulty::sound(), "m").unwrap();
    let (first, second) = (map.proposer(Default::default()), map.proposer(Default::default()));
    let set = |value: &'static str| Update::new("w").set(key("a"), value);
    first.propose(set("1")).await.unwrap();
    // This one knows the map since, and does not hear of the next epoch.
    second.propose(set("2")).await.unwrap();
    first.propose(set("3")).await.unwrap();
    assert_eq!(second.propose(set("4").if_version(key("a"), 3)).await.unwrap().epoch, 4);
    first.propose(set("5")).await.unwrap();
    let result = second.propose(set("6").if_version(key("a"), 4)).await.unwrap_err();
    let ProposeError::Refused(Refused::Version { found, .. }) = result else { panic!("{result}") };
    assert_eq!(&found.unwrap().value[..], b"5", "the refusal says what stands there now");
}

#[tokio::test(start_paused = true)]
async fn a_log_that_fails_for_a_while_says_how_many_lines_it_has_lost() {
    for kind in [ErrorKind::Io, ErrorKind::Corrupt, ErrorKind::ReadOnly] {
        let fails = Arc::new(AtomicBool::new(true));
        let store = {
            let fails = fails.clone();
            Faulty::new(move |_| if fails.load(Ordering::Relaxed) { Fate::Fails(kind) } else { Fate::Done })
        };
        let log = Log::new(store, LogBounds::default()).unwrap();
        let (writer, appended) = Writer::new(log.clone(), "daemon");
        let appended = tokio::spawn(appended);
        for number in 0..3 {
            writer.write(Level::Info, &format!("lost {number}"));
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        fails.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(5)).await;
        writer.write(Level::Info, "kept");
        drop(writer);
        timeout(FOREVER, appended).await.unwrap().unwrap();
        let texts: Vec<_> = log.last(10).await.unwrap().into_iter().map(|line| line.entry.text).collect();
        assert_eq!(texts, ["3 lines of this source were dropped before this one", "kept"], "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_ends_though_its_log_fails_for_good() {
    let log = Log::new(Faulty::new(|_| Fate::Fails(ErrorKind::Corrupt)), LogBounds::default()).unwrap();
    let (writer, appended) = Writer::new(log, "daemon");
    for number in 0..1200 {
        writer.write(Level::Info, &format!("{number}"));
    }
    drop(writer);
    timeout(FOREVER, appended).await.unwrap();
}
