//! The purge of what removed objects leave: versions never go back, whoever is at work meanwhile, and wherever it ends.

mod cluster;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster::{Cluster, open, wait_until};
use nacre_object::testkit::block_on;
use nacre_object::watch::WatchOptions;
use nacre_object::{
    Answer, ByteRange, Done, ErrorKind, Fork, Guard, ObjectId, ObjectStore, Outcome, ReadOp, Transaction,
    WriteOp,
};
use nacre_rados::{Program, PurgeOptions, PurgeReport, RadosStore};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn id(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn apply(store: &RadosStore, name: &str, transaction: Transaction) -> Outcome {
    block_on(store.apply(&id(name), transaction)).unwrap()
}

fn done(store: &RadosStore, name: &str, transaction: Transaction) -> Done {
    match apply(store, name, transaction) {
        Outcome::Done(done) => done,
        refused => panic!("{refused:?}"),
    }
}

fn write() -> Transaction {
    Transaction::new().write(Fork::DEFAULT, 0, "text")
}

fn remove() -> Transaction {
    Transaction::new().change(WriteOp::Remove)
}

fn look() -> Transaction {
    Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, 9)).read(ReadOp::Stat)
}

/// Makes an object, writes it until it has a version, and removes it at the next one.
fn make_and_remove(store: &RadosStore, name: &str, version: u64) {
    while done(store, name, write()).version < version {}
    assert_eq!(done(store, name, remove()).version, version + 1);
}

fn purge(store: &RadosStore) -> PurgeReport {
    block_on(store.purge(PurgeOptions::default(), |_, _| {})).unwrap()
}

/// Purges until so many objects are gone: the marks of changes that are over may take a moment to go.
fn purge_until(store: &RadosStore, count: u64) -> PurgeReport {
    let mut total = purge(store);
    wait_until("the removed objects are gone", || {
        if total.purged < count {
            let PurgeReport { purged, entries, .. } = total;
            let next = purge(store);
            total = PurgeReport { purged: purged + next.purged, entries: entries + next.entries, ..next };
        }
        total.purged >= count
    });
    total
}

fn listed(store: &RadosStore) -> Vec<String> {
    block_on(store.list(None, 1000)).unwrap().iter().map(ToString::to_string).collect()
}

/// The RADOS objects of a namespace, seen with Ceph's own tool.
struct Raw<'a> {
    cluster: &'a Cluster,
    uri: &'a str,
}

impl Raw<'_> {
    fn rados(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        self.cluster.rados_in(self.uri, arguments, input)
    }

    fn names(&self, prefix: &str) -> Vec<String> {
        let names = String::from_utf8(self.rados(&["ls"], b"")).unwrap();
        names.lines().filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
    }

    fn keys(&self, shard: &str) -> Vec<String> {
        let keys = self.rados(&["listomapkeys", shard], b"");
        String::from_utf8(keys).unwrap().lines().map(str::to_owned).collect()
    }

    /// Returns the shard that has an object's entry, once it has no mark of it any more; `None` if none has one.
    fn shard(&self, name: &str) -> Option<String> {
        let of = |key: &str| key.strip_prefix('n').is_some_and(|key| key.split('\u{1}').next() == Some(name));
        loop {
            let shards = self.names("nacre-index.").into_iter();
            let mut found = shards.map(|shard| (self.keys(&shard), shard));
            let (keys, shard) = found.find(|(keys, _)| keys.iter().any(|key| of(key)))?;
            if keys.iter().filter(|key| of(key)).count() == 1 {
                return Some(shard);
            }
        }
    }
}

#[test]
fn what_removed_objects_leave_is_taken_away_and_versions_go_on_above_it() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("purge");
    let raw = Raw { cluster: &cluster, uri: &uri };
    // These know their shards before the purge, and have seen the objects.
    let (store, native, calls) = (open(&uri), open(&uri), open(&format!("{uri}&native=off")));
    let names = ["a", "b", "c"];
    for (version, name) in (5..).zip(names) {
        make_and_remove(&store, name, version);
    }
    done(&store, "kept", write());
    done(&store, "fenced", Transaction::new().change(WriteOp::RaiseFence { token: 7 }));
    done(&store, "fenced", remove());
    for other in [&native, &calls] {
        for name in names {
            assert!(!done(other, name, look()).existed);
        }
    }
    let dry = PurgeOptions { dry_run: true, ..PurgeOptions::default() };
    let mut last = (0, 0);
    let report = block_on(store.purge(dry, |done, all| last = (done, all))).unwrap();
    assert_eq!((report.objects, report.purged, report.remembered), (5, 3, 1));
    assert_eq!((last, report.floor), ((5, 5), 0));
    assert_eq!(raw.names("nacre.").len(), 5, "nothing was changed");
    let recent = PurgeOptions { older_than: Duration::from_secs(3600), ..PurgeOptions::default() };
    let report = block_on(store.purge(recent, |_, _| {})).unwrap();
    assert_eq!((report.purged, report.recent), (0, 3));
    let report = purge_until(&store, 3);
    assert_eq!((report.purged, report.entries, report.remembered, report.busy), (3, 3, 1, 0));
    assert!(report.floor >= 6, "{report:?}");
    let mut left = raw.names("nacre.");
    left.sort();
    assert_eq!(left, ["nacre.fenced", "nacre.kept"]);
    assert!(raw.shard("a").is_none(), "its entry is gone");
    assert_eq!(listed(&store), ["kept"]);
    // All clients see the floor, and what was read before holds no more.
    for (version, name) in (5..).zip(names) {
        for client in [&native, &calls, &open(&uri)] {
            let found = done(client, name, look());
            assert!(!found.existed && found.version > version, "{name}: {found:?}");
            let [Answer::Range(range), Answer::Stat(stat)] = &found.answers[..] else { panic!("{found:?}") };
            assert_eq!((range.version, stat.version), (found.version, found.version));
            let late = write().if_version(Fork::DEFAULT, ByteRange::new(0, 9), version);
            assert!(
                matches!(apply(client, name, late), Outcome::Refused(refusal) if refusal.version > version)
            );
        }
    }
    let makers = [&native, &calls, &open(&uri)];
    for ((version, name), client) in (5..).zip(names).zip(makers) {
        let shown = done(client, name, look()).version;
        let guarded = write().guard(Guard::Absent).guard(Guard::Version { version: shown });
        let made = done(client, name, guarded);
        assert!(made.version > shown && shown > version && !made.existed, "{name}: {made:?}");
    }
    assert_eq!(listed(&calls), ["a", "b", "c", "kept"]);
    assert_eq!(done(&native, "fenced", look()).version, 2);
    // Again, with other versions, and nothing to do at the end.
    for name in names {
        done(&calls, name, remove());
    }
    assert_eq!(purge_until(&native, 3).purged, 3);
    let report = purge(&store);
    assert_eq!((report.objects, report.purged, report.entries), (2, 0, 0));
    assert!(block_on(store.scrub(|_, _| {})).unwrap().findings.is_empty());
}

#[test]
fn a_client_that_is_about_to_make_an_object_keeps_it_from_being_purged() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("about");
    let (store, raw) = (open(&uri), Raw { cluster: &cluster, uri: &uri });
    make_and_remove(&store, "a", 3);
    assert_eq!(listed(&store), [""; 0]);
    let shard = raw.shard("a").unwrap();
    let mark = format!("na\u{1}\u{1}{:032x}", rand::random::<u128>());
    let value: Vec<u8> = std::iter::once(1).chain(u64::MAX.to_le_bytes()).collect();
    raw.rados(&["setomapval", &shard, &mark], &value);
    // Another one is about to make one that never was, in the same shard: it gets a header, so that the floor is no matter of its. By
    // then, another purge may have let objects show the version that they begin above.
    let other = format!("nw40\u{1}\u{1}{:032x}", rand::random::<u128>());
    raw.rados(&["setomapval", &shard, &other], &value);
    let report = purge(&store);
    assert_eq!((report.purged, report.busy, report.floor), (0, 1, 4));
    assert_eq!(done(&open(&uri), "a", look()).version, 4);
    let mut left = raw.names("nacre.");
    left.sort();
    assert_eq!(left, ["nacre.a", "nacre.w40"]);
    let found = done(&store, "w40", look());
    assert_eq!((found.version, found.existed), (4, false));
    // The marks go, and so does what the first purge has left.
    for mark in [mark, other] {
        raw.rados(&["rmomapkey", &shard, &mark], b"");
    }
    let report = purge_until(&store, 2);
    assert_eq!((report.purged, report.busy, report.entries), (2, 0, 1));
    assert!(report.floor >= 4 && done(&store, "a", write()).version > 4);
    assert!(done(&store, "w40", write()).version > 4);
}

#[test]
fn programs_see_the_floor_of_now_of_an_object_that_was_purged() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("programs-after-purge");
    let (one, other) = (open(&uri), open(&uri));
    // This client knows the floor from before the purge, and would show it.
    assert_eq!(done(&one, "a", look()).version, 0);
    make_and_remove(&other, "a", 5);
    purge_until(&other, 1);
    let shown = done(&other, "a", look()).version;
    assert!(shown >= 6, "{shown}");
    let version = "local function method() begin() return pack('<Bi8', 32, header.version) .. 'more' end";
    let program = Program::new(b"", version);
    let run = |store: &RadosStore| {
        let ran = block_on(store.run(&id("a"), &program, b"")).unwrap();
        let output = ran.output.unwrap();
        assert_eq!((ran.version, output[0], &output[9..]), (None, 32, &b"more"[..]));
        u64::from_le_bytes(output[1..9].try_into().unwrap())
    };
    assert_eq!((run(&one), run(&other)), (shown, shown));
    // An object that there is shows its own versions, and begins above what was shown.
    let made = done(&one, "a", write()).version;
    assert!(made > shown);
    assert_eq!((run(&one), run(&other)), (made, made));
}

#[test]
fn a_purge_that_ends_at_any_step_leaves_a_sound_pool() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("ends");
    let (store, raw) = (open(&uri), Raw { cluster: &cluster, uri: &uri });
    for name in ["a", "b"] {
        make_and_remove(&store, name, 3);
    }
    assert_eq!(listed(&store), [""; 0]);
    // It took one object away, and not yet its entry. Before that it had raised the floor.
    let floor = purge(&store).floor;
    for name in ["a", "b"] {
        make_and_remove(&store, name, floor + 3);
    }
    assert!(raw.shard("a").is_some());
    raw.rados(&["rm", "nacre.a"], b"");
    let report = purge_until(&store, 1);
    assert_eq!((report.objects, report.purged, report.entries), (1, 1, 2));
    assert!(report.floor >= floor + 4 && raw.shard("a").is_none());
    // Somebody removes the index, floors and all: what was purged still goes on above.
    for name in raw.names("nacre-index") {
        raw.rados(&["rm", &name], b"");
    }
    for client in [&store, &open(&uri)] {
        let never = done(client, "never", look());
        assert!(!never.existed && never.version <= report.floor, "{never:?}");
        let made = done(client, "a", write()).version;
        assert!(made > floor + 4, "versions went back to {made}");
        done(client, "a", remove());
        assert_eq!(listed(client), [""; 0]);
    }
    assert_eq!(purge_until(&open(&uri), 1).purged, 1);
}

#[test]
fn objects_that_are_watched_are_left_and_those_that_were_are_not() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("watched");
    let (store, watcher) = (open(&uri), open(&uri));
    make_and_remove(&store, "a", 3);
    // One that never existed has a header too, once it is watched.
    let watches =
        ["a", "never"].map(|name| block_on(watcher.watch(&id(name), WatchOptions::default())).unwrap());
    // The mark in the index that the first watch of an object sets may take a moment to go.
    wait_until("both are known to be watched", || {
        let report = purge(&store);
        assert_eq!(report.purged, 0);
        report.watched == 2
    });
    drop(watches);
    drop(watcher);
    wait_until("nobody watches them any more", || purge(&store).objects == 0);
    // Whoever watches it again keeps to the floor, and so does what is made of it.
    let watcher = open(&uri);
    let watch = block_on(watcher.watch(&id("a"), WatchOptions::default())).unwrap();
    assert!(done(&store, "a", look()).version >= 4);
    assert!(done(&store, "a", write()).version > 4);
    drop(watch);
}

#[test]
fn what_is_first_watched_during_a_purge_shows_no_less_than_before() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("first");
    let (store, watcher) = (open(&uri), open(&uri));
    let raw = Raw { cluster: &cluster, uri: &uri };
    make_and_remove(&store, "a", 3);
    purge_until(&store, 1);
    make_and_remove(&store, "a", 20);
    let shard = raw.shard("a").unwrap();
    let number = shard.strip_prefix("nacre-index.").unwrap();
    // A purge that comes as far as the master, which is damaged: objects begin above the new floor, and do not show it yet.
    raw.rados(&["setomapval", "nacre-floor", number], b"damaged");
    let error = block_on(store.purge(PurgeOptions::default(), |_, _| {})).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    raw.rados(&["rmomapkey", "nacre-floor", number], b"");
    // One of the same shard. It may have shown the new floor when the purge went on, before its header was there.
    assert_eq!(done(&store, "w40", look()).version, 4);
    let watch = block_on(watcher.watch(&id("w40"), WatchOptions::default())).unwrap();
    let found = done(&store, "w40", look());
    assert_eq!((found.version, found.existed), (21, false));
    assert_eq!(purge_until(&store, 1).floor, 21);
    assert!(done(&store, "w40", write()).version > 21);
    drop(watch);
}

/// Tests that no version goes back, and no change is lost, while clients make, write and remove objects and others purge.
#[test]
fn versions_never_go_back_while_objects_are_purged() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("storm");
    let names = ["a", "b", "c"];
    // The greatest version that anybody has seen of each; and the number of the last change that took effect, by version.
    let seen: [AtomicU64; 3] = Default::default();
    let changes: Mutex<Vec<(usize, u64)>> = Mutex::default();
    let (over, purged) = (AtomicBool::new(false), AtomicU64::new(0));
    let seed: u64 = rand::random();
    println!("seed {seed}");
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for client in 0..4 {
            let store = open(&format!("{uri}&native={}", if client % 2 == 0 { "on" } else { "off" }));
            let (seen, changes) = (&seen, &changes);
            clients.push(scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed + client);
                let until = Instant::now() + Duration::from_secs(4);
                while Instant::now() < until {
                    let at = random.random_range(0..3);
                    let before = seen[at].load(Ordering::SeqCst);
                    let found = done(&store, names[at], look());
                    assert!(found.version >= before, "{} was seen at {before}: {found:?}", names[at]);
                    seen[at].fetch_max(found.version, Ordering::SeqCst);
                    let change = match random.random_range(0..3) {
                        0 => write(),
                        1 => write().if_version(Fork::DEFAULT, ByteRange::new(0, 9), found.version),
                        _ => remove().guard(Guard::Version { version: found.version }),
                    };
                    let before = seen[at].load(Ordering::SeqCst);
                    if let Outcome::Done(done) = apply(&store, names[at], change) {
                        assert!(done.version > before, "{} was seen at {before}: {done:?}", names[at]);
                        seen[at].fetch_max(done.version, Ordering::SeqCst);
                        changes.lock().unwrap().push((at, done.version));
                    }
                }
            }));
        }
        let store = open(&uri);
        let (over, purged) = (&over, &purged);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                purged.fetch_add(purge(&store).purged, Ordering::Relaxed);
            }
        });
        let results: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        over.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
    let mut changes = changes.into_inner().unwrap();
    let count = changes.len();
    changes.sort_unstable();
    changes.dedup();
    assert_eq!(changes.len(), count, "two changes of an object have the same version");
    println!("{count} changes, {} objects purged", purged.load(Ordering::Relaxed));
    let store = open(&uri);
    let exist: Vec<&str> = names.into_iter().filter(|name| done(&store, name, look()).existed).collect();
    assert_eq!(listed(&store), exist);
}
