//! Watch and notify on Ceph: the suite, with announcements as the hints that they are; writers that do not announce; the mark in the
//! header; watchers that come and go, and many of them; and an OSD that dies.

mod cluster;

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cluster::{Cluster, open, wait_until};
use nacre_object::limit::NOTIFY_TIMEOUT_MAX;
use nacre_object::testkit::conformance::{self, Effort};
use nacre_object::testkit::{block_on, block_on_for};
use nacre_object::watch::{Cause, Event, Gap, Watch, WatchOptions};
use nacre_object::{
    Answer, ErrorKind, Fork, ObjectId, ObjectStore, Outcome, ReadOp, Stat, Transaction, WriteOp,
};
use nacre_rados::RadosStore;

/// The time after which an event counts as lost.
const PATIENCE: Duration = Duration::from_secs(120);

fn effort() -> Effort {
    Effort { increments: 20, patience: Duration::from_secs(60), hints: true, ..Effort::default() }
}

fn object(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn apply(store: &RadosStore, object: &ObjectId, transaction: Transaction) -> (u64, Vec<Answer>) {
    match block_on(store.apply(object, transaction)).unwrap() {
        Outcome::Done(done) => (done.version, done.answers),
        refused => panic!("{refused:?}"),
    }
}

/// Writes an object, and returns the version that it has since.
fn write(store: &RadosStore, object: &ObjectId) -> u64 {
    apply(store, object, Transaction::new().write(Fork::DEFAULT, 0, "bytes")).0
}

fn stat(store: &RadosStore, object: &ObjectId) -> Stat {
    match &apply(store, object, Transaction::new().read(ReadOp::Stat)).1[..] {
        [Answer::Stat(stat)] => stat.clone(),
        other => panic!("{other:?}"),
    }
}

fn watch(store: &RadosStore, object: &ObjectId) -> Watch {
    block_on(store.watch(object, WatchOptions::default())).unwrap()
}

fn next(watch: &mut Watch) -> Event {
    let event = block_on_for(PATIENCE, |context| watch.poll_next(context)).expect("an event does not come");
    event.expect("the watch has ended").unwrap()
}

/// Takes events until the watcher knows a version. Returns the gaps among them.
fn until(watch: &mut Watch, known: &mut u64, version: u64) -> Vec<Gap> {
    let mut gaps = Vec::new();
    while *known < version {
        match next(watch) {
            Event::Changed { version } => {
                assert!(version > *known, "version {version} was told after {known}");
                *known = version;
            }
            Event::Gap(gap) => {
                assert!(gap.version >= *known, "{gap:?} was told after {known}");
                *known = gap.version;
                gaps.push(gap);
            }
            Event::Notified(notification) => notification.acknowledge("").unwrap(),
        }
    }
    gaps
}

#[test]
fn one_client_passes_the_suite() {
    let cluster = Cluster::shared();
    conformance::run_watching(&[&cluster.open("watch")], "suite", effort());
}

#[test]
fn several_clients_pass_the_suite() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("watch-clients");
    let clients = [open(&uri), open(&format!("{uri}&native=off")), open(&uri)];
    conformance::run_watching(&[&clients[0], &clients[1], &clients[2]], "suite", effort());
}

#[test]
fn clients_that_announce_nothing_pass_the_suite() {
    let cluster = Cluster::shared();
    let uri = format!("{}&announce=off&watch_poll_ms=20", cluster.uri("watch-silent"));
    let clients = [open(&uri), open(&uri)];
    conformance::run_watching(&[&clients[0], &clients[1]], "suite", effort());
}

#[test]
fn changes_that_are_announced_do_not_wait_for_a_look() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("watch-announced");
    // It would take an hour to look.
    let watcher = open(&format!("{uri}&watch_poll_ms=3600000"));
    let writers = [open(&uri), open(&format!("{uri}&native=off"))];
    let object = object("settings");
    let mut watch = watch(&watcher, &object);
    let mut known = watch.version();
    for round in 0..20 {
        let version = write(&writers[round % 2], &object);
        until(&mut watch, &mut known, version);
    }
    // A removal and what follows it are changes like others.
    let (removed, _) = apply(&writers[0], &object, Transaction::new().change(WriteOp::Remove));
    until(&mut watch, &mut known, removed);
    let version = write(&writers[1], &object);
    until(&mut watch, &mut known, version);
}

#[test]
fn a_writer_that_is_killed_before_it_announces_its_changes_leaves_a_gap() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("watch-killed");
    let (watcher, object) = (open(&uri), object("settings"));
    let mut watch = watch(&watcher, &object);
    let mut known = watch.version();
    for _ in 0..2 {
        let before = known;
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer_that_dies"])
            .env("NACRE_TEST_WRITER", &uri)
            .status()
            .unwrap();
        assert!(!status.success(), "the writer did not die");
        let gaps = until(&mut watch, &mut known, before + WRITES);
        assert!(gaps.iter().any(|gap| gap.cause == Cause::Unannounced && gap.changes.is_none()), "{gaps:?}");
        assert_eq!(known, before + WRITES);
    }
}

/// The number of times that a writer that dies has written before.
const WRITES: u64 = 10;

/// The writer of the test above, which runs it as a process of its own.
#[test]
fn writer_that_dies() {
    let Ok(uri) = std::env::var("NACRE_TEST_WRITER") else { return };
    // An announcement may get out before the process is dead. Those of this one do not.
    let store = open(&format!("{uri}&announce=off"));
    for _ in 0..WRITES {
        write(&store, &object("settings"));
    }
    std::process::abort();
}

#[test]
fn an_object_that_never_existed_is_watched_without_a_trace() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("watch-absent");
    let (watcher, writer, object) = (open(&uri), open(&uri), object("absent"));
    let mut watch = watch(&watcher, &object);
    assert_eq!(watch.version(), 0);
    let found = stat(&writer, &object);
    assert_eq!((found.exists, found.version), (false, 0));
    assert!(block_on(writer.list(None, 10)).unwrap().is_empty());
    let report = block_on(writer.scrub(|_, _| {})).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    let created = apply(&writer, &object, Transaction::new().change(WriteOp::Create)).0;
    assert_eq!(created, 1);
    let mut known = 0;
    until(&mut watch, &mut known, created);
    assert_eq!(block_on(writer.list(None, 10)).unwrap(), [object]);
}

/// Returns an object's header as it is stored.
fn header(cluster: &Cluster, uri: &str, object: &str) -> Vec<u8> {
    cluster.rados_in(uri, &["getxattr", &format!("nacre.{object}"), "nacre"], b"")
}

fn is_marked(cluster: &Cluster, uri: &str, object: &str) -> bool {
    header(cluster, uri, object)[75] & 0x80 != 0
}

/// The checksum of a header, as `docs/ceph.md` has it.
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = 0x6e_6163_7265 ^ bytes.len() as u64;
    for word in bytes.chunks(8) {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        sum = (sum ^ u64::from_le_bytes(padded)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^= sum >> 32;
    }
    (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[test]
fn the_mark_is_there_while_somebody_watches() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("watch-mark");
    let (watcher, writer, settings) = (open(&uri), open(&uri), object("settings"));
    write(&writer, &settings);
    assert!(!is_marked(&cluster, &uri, "settings"));
    let mut watch = watch(&watcher, &settings);
    assert!(is_marked(&cluster, &uri, "settings"));
    // Writers keep it.
    let mut known = watch.version();
    until(&mut watch, &mut known, write(&writer, &settings));
    assert!(is_marked(&cluster, &uri, "settings"));

    // A client that does not know of it writes without it, and a look sets it again.
    let mut old = header(&cluster, &uri, "settings");
    old[75] &= 0x7f;
    let sum = checksum(&old[..88]);
    old[88..].copy_from_slice(&sum.to_le_bytes());
    cluster.rados_in(&uri, &["setxattr", "nacre.settings", "nacre"], &old);
    wait_until("the mark is set again", || is_marked(&cluster, &uri, "settings"));
    until(&mut watch, &mut known, write(&writer, &settings));

    // Once nobody watches, a writer clears it.
    drop(watch);
    wait_until("the mark is cleared", || {
        write(&writer, &settings);
        !is_marked(&cluster, &uri, "settings")
    });
}

#[test]
fn watches_and_stores_end_while_events_arrive() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("watch-ends");
    let (stop, object) = (AtomicBool::new(false), object("busy"));
    std::thread::scope(|scope| {
        let (stop, object) = (&stop, &object);
        let writer = open(&uri);
        let notifier = writer.clone();
        let writing = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                write(&writer, object);
            }
        });
        let notifying = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                block_on(notifier.notify(object, "news".into(), Duration::from_millis(100))).unwrap();
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..6 {
                let store = open(&uri);
                let mut watches: Vec<_> = (0..20).map(|_| watch(&store, object)).collect();
                for watch in &mut watches[..5 + round] {
                    next(watch);
                }
                watches.truncate(10);
                for watch in &mut watches {
                    next(watch);
                }
                drop(store);
                // They end with the store, and say so.
                loop {
                    match block_on(watches[0].next()) {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => {
                            assert_eq!(error.kind, ErrorKind::Closed);
                            break;
                        }
                        None => panic!("the watch ended without a reason"),
                    }
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        writing.join().unwrap();
        notifying.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn many_watchers_learn_everything_and_a_slow_one_costs_them_nothing() {
    const WATCHERS: usize = 1000;
    let cluster = Cluster::shared();
    let uri = cluster.uri("watch-many");
    let (stores, writer, object) = ([open(&uri), open(&uri)], open(&uri), object("popular"));
    let options = WatchOptions { events_max: 1, ..WatchOptions::default() };
    let mut slow = block_on(stores[0].watch(&object, options)).unwrap();
    let mut watches: Vec<_> = (0..WATCHERS)
        .map(|number| {
            let watch = watch(&stores[number % 2], &object);
            let known = watch.version();
            (watch, known)
        })
        .collect();
    let mut version = 0;
    for _ in 0..10 {
        version = write(&writer, &object);
        for (watch, known) in &mut watches {
            until(watch, known, version);
        }
    }
    let notified = std::thread::scope(|scope| {
        let sender = scope.spawn(|| block_on(writer.notify(&object, "all".into(), NOTIFY_TIMEOUT_MAX)));
        for (watch, _) in &mut watches {
            loop {
                if let Event::Notified(notification) = next(watch) {
                    assert_eq!(notification.payload(), "all");
                    notification.acknowledge("").unwrap();
                    break;
                }
            }
        }
        sender.join().unwrap().unwrap()
    });
    assert_eq!(notified.acknowledged.len(), WATCHERS);
    assert_eq!(notified.missed, [slow.id()]);
    // It has one change, or a gap that stands for all, and then the latest version.
    let mut known = 0;
    let gaps = until(&mut slow, &mut known, version);
    assert!(!gaps.is_empty(), "ten changes fitted where there was room for one");
}

#[test]
fn a_watch_goes_on_at_another_osd_when_one_dies() {
    let cluster = Cluster::start("watch", &["--bluestore"]);
    let uri = cluster.uri("watch-osd");
    let (watcher, writer, object) = (open(&uri), open(&uri), object("settings"));
    let mut watch = watch(&watcher, &object);
    let known = AtomicU64::new(watch.version());
    std::thread::scope(|scope| {
        let known = &known;
        let watching = scope.spawn(move || {
            // Until the store is closed.
            while let Some(Ok(event)) = block_on(watch.next()) {
                match event {
                    Event::Changed { version } => known.store(version, Ordering::Relaxed),
                    Event::Gap(gap) => known.store(gap.version, Ordering::Relaxed),
                    Event::Notified(notification) => notification.acknowledge("here").unwrap(),
                }
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let learns = |what: &str| {
                let version = write(&writer, &object);
                wait_until(what, || known.load(Ordering::Relaxed) >= version);
                wait_until("a notification is acknowledged", || {
                    let notified = block_on(writer.notify(&object, "news".into(), Duration::from_secs(5)));
                    notified.is_ok_and(|notified| !notified.acknowledged.is_empty())
                });
            };
            learns("the watcher learns of a change");
            let primary = cluster.primary(&uri, "settings");
            cluster.stop_osd(&primary);
            learns("the watcher learns of a change at another OSD");
            cluster.start_osd(&primary);
            learns("the watcher learns of a change with the OSD back");
        }));
        drop(watcher);
        watching.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
