//! Events that a cluster survives while clients work on it: OSDs and the monitor killed and brought back, clients
//! killed, a full pool, compaction. Nothing that was acknowledged may be lost, and there must be an order of
//! transactions that explains what concurrent clients saw.

mod cluster;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cluster::{Cluster, namespace, open, wait_until};
use nacre_object::testkit::block_on;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::linear::Recorder;
use nacre_object::{
    Answer, ByteRange, ErrorKind, Fork, ObjectId, ObjectStore, Outcome, Transaction, WriteOp,
};
use nacre_rados::RadosStore;

/// The number of transactions that a client has under way.
const WINDOW: usize = 3;

/// Applies random transactions to one object until told to stop, several at a time, and counts those that were answered.
fn work(
    store: &RadosStore,
    recorder: &Recorder,
    object: &ObjectId,
    shape: Shape,
    seed: u64,
    stop: &AtomicBool,
    completed: &AtomicU64,
) {
    let mut generator = Generator::with_objects(seed, shape, vec![object.clone()]);
    let mut under_way = VecDeque::new();
    loop {
        while under_way.len() < WINDOW && !stop.load(Ordering::Relaxed) {
            let (object, transaction) = generator.transaction();
            let record = recorder.begin(&object, &transaction);
            under_way.push_back((store.apply(&object, transaction), object, record));
        }
        let Some((reply, object, record)) = under_way.pop_front() else { return };
        match recorder.end(&object, record, block_on(reply)) {
            Ok(outcome) => {
                generator.observe(&object, &outcome);
                completed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => assert!(
                matches!(error.kind, ErrorKind::Unknown | ErrorKind::Unavailable | ErrorKind::Invalid),
                "seed {seed}: {error}"
            ),
        }
    }
}

/// Runs clients on one object, each with a connection of its own, while `meanwhile` acts on the cluster; then checks
/// what they saw.
fn under_load(uri: &str, object: &ObjectId, shape: &Shape, meanwhile: impl FnOnce(&AtomicU64)) -> u64 {
    const CLIENTS: u64 = 4;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let (recorder, stop, completed) = (Recorder::new(), AtomicBool::new(false), AtomicU64::new(0));
    // An operation that never ends is given up before the test is, and the others go on.
    let timed = format!("{uri}&timeout_ms=60000");
    let stores: Vec<RadosStore> = (0..CLIENTS).map(|_| open(&timed)).collect();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (store, shape, recorder) = (&stores[client as usize], shape.clone(), &recorder);
                let (stop, completed) = (&stop, &completed);
                scope.spawn(move || work(store, recorder, object, shape, seed ^ client, stop, completed))
            })
            .collect();
        // The clients stop also where this panics, or else the scope would wait for them for ever.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| meanwhile(&completed)));
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    // A reader without any history sees the same.
    let whole = Transaction::new().read_range(Fork::DEFAULT, ByteRange::ALL);
    block_on(recorder.apply(&open(uri), object, whole)).unwrap();
    recorder.check().unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    completed.load(Ordering::Relaxed)
}

#[test]
fn killed_osds_and_monitor_lose_nothing() {
    let cluster = Cluster::start("osds", &["--bluestore"]);
    let uri = cluster.uri("survival");
    let object = ObjectId::try_from("busy").unwrap();
    under_load(&uri, &object, &Shape::contended(), |completed| {
        let go_on = |what: &str| {
            let before = completed.load(Ordering::Relaxed);
            wait_until(what, || completed.load(Ordering::Relaxed) >= before + 30);
        };
        go_on("the clients are at work");
        // The primary, and then the one that took its place.
        for _ in 0..2 {
            let victim = cluster.primary(&uri, "busy");
            cluster.stop_osd(&victim);
            wait_until("another OSD is the primary", || cluster.primary(&uri, "busy") != victim);
            go_on("the clients go on with another primary");
            cluster.start_osd(&victim);
            go_on("the clients go on with the OSD back");
        }
        wait_until("the placement group has settled", || cluster.is_settled(&uri, "busy"));
        cluster.script("mon-stop", &[]);
        go_on("the clients go on without the monitor");
        cluster.script("mon-start", &[]);
        go_on("the clients go on with the monitor back");
    });
}

#[test]
fn compaction_goes_on_under_clients_that_write() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("compaction");
    let object = ObjectId::try_from("churn").unwrap();
    // Extents that overlap without matching leave garbage behind with nearly every write.
    let shape = Shape {
        span_bytes: 60_000,
        extent_bytes_max: 15_000,
        forks: 2,
        remove_percent: 0,
        ..Shape::contended()
    };
    let header = || {
        let namespace = namespace(&uri);
        let path = cluster.dir().join("header");
        let rados = ["-p", "nacre", "-N", namespace, "getxattr", "nacre.churn", "nacre"];
        std::fs::write(&path, cluster.rados_bytes(&rados)).unwrap();
        std::fs::read(path).unwrap()
    };
    let tail = |header: &[u8]| u32::from_le_bytes(header[32..36].try_into().unwrap());
    let mut compactions = 0;
    under_load(&uri, &object, &shape, |completed| {
        wait_until("the object exists", || completed.load(Ordering::Relaxed) > 20);
        let mut last = tail(&header());
        wait_until("the payload was compacted twice", || {
            // Nothing else lets the byte stream shrink to something, for nothing removes the object.
            let now = tail(&header());
            compactions += u32::from(now < last);
            last = now;
            compactions >= 2
        });
    });
    // What is stored stays within twice of what is live, plus what writes that are under way and their alignment add.
    let header = header();
    let at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let (tail, live) = (at(32), at(36));
    assert!(tail <= 2 * live + (64 << 10) + 14 * 20_000, "tail {tail}, live {live}");
}

/// Increments a counter in four bytes by a conditional write, again and again while it loses the race.
fn increment(store: &RadosStore, object: &ObjectId) -> u32 {
    let range = ByteRange::new(0, 4);
    loop {
        let outcome =
            block_on(store.apply(object, Transaction::new().read_range(Fork::DEFAULT, range))).unwrap();
        let Outcome::Done(done) = outcome else { unreachable!("there is no guard") };
        let Answer::Range(read) = &done.answers[0] else { unreachable!("a range was asked for") };
        let count = read.data[..].try_into().map_or(0, u32::from_le_bytes) + 1;
        let write = Transaction::new().if_version(Fork::DEFAULT, range, read.version).write(
            Fork::DEFAULT,
            0,
            count.to_le_bytes().to_vec(),
        );
        if let Outcome::Done(_) = block_on(store.apply(object, write)).unwrap() {
            return count;
        }
    }
}

/// Increments a counter, as the client that `killed_clients_leave_nothing_half_done` kills. Not a test by itself.
#[test]
fn client_to_be_killed() {
    let Ok(uri) = std::env::var("NACRE_TEST_CLIENT") else { return };
    let (store, object) = (open(&uri), ObjectId::try_from("counter").unwrap());
    loop {
        println!("counted {}", increment(&store, &object));
    }
}

/// Runs as the program of `programs_end_cleanly`. Not a test by itself.
#[test]
fn program_that_ends_at_once() {
    let Ok(uri) = std::env::var("NACRE_TEST_PROGRAM") else { return };
    let store = open(&uri);
    assert_eq!(block_on(store.list(None, 10)).unwrap().len(), 1);
    // A reply that nobody waits for, and a connection that is closed by the end of the process.
    drop(
        store.apply(
            &ObjectId::try_from("counter").unwrap(),
            Transaction::new().write(Fork::DEFAULT, 0, "more"),
        ),
    );
    std::process::exit(0);
}

#[test]
fn programs_end_cleanly() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("programs");
    increment(&open(&uri), &ObjectId::try_from("counter").unwrap());
    for _ in 0..6 {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "program_that_ends_at_once"])
            .env("NACRE_TEST_PROGRAM", &uri)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn killed_clients_leave_nothing_half_done() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("clients");
    let (store, object) = (open(&uri), ObjectId::try_from("counter").unwrap());
    let mut acknowledged = 0;
    for round in 1..=4_u32 {
        let mut client = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client_to_be_killed", "--nocapture"])
            .env("NACRE_TEST_CLIENT", &uri)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        let mut last = 0;
        // Between one acknowledgement and the next it is somewhere between its read and its write.
        for _ in 0..10 * round {
            let counted = lines.find_map(|line| {
                line.unwrap().split_once("counted ").map(|(_, count)| count.parse().unwrap())
            });
            last = counted.expect("the client counts until it is killed");
        }
        client.kill().unwrap();
        client.wait().unwrap();
        // What it had printed before it died was acknowledged too.
        for line in lines.map_while(Result::ok) {
            if let Some(count) = line.split_once("counted ").and_then(|(_, count)| count.parse().ok()) {
                last = count;
            }
        }
        assert!(last > acknowledged, "round {round}: {last} is not above {acknowledged}");
        // Nobody holds anything: the next client goes on at once, from the last count or the one that was under way.
        let next = increment(&store, &object);
        assert!(next == last + 1 || next == last + 2, "round {round}: {next} follows {last}");
        acknowledged = next;
    }
}

#[test]
fn full_cluster_refuses_and_recovers() {
    let cluster = Cluster::start("full", &["--device-mib", "96"]);
    let uri = cluster.uri("full");
    let store = open(&uri);
    let id = |index: usize| ObjectId::try_from(format!("filler-{index}").as_str()).unwrap();
    let data = |index: usize| vec![index as u8; 1 << 20];
    let mut written = 0;
    // Extents that overlap leave garbage behind, here too little to be compacted without need.
    let holey = ObjectId::try_from("holey").unwrap();
    for offset in 0..4 {
        let write = Transaction::new().write(Fork::DEFAULT, offset * 5000, vec![1; 10_000]);
        block_on(store.apply(&holey, write)).unwrap();
    }
    let error = loop {
        assert!(written < 400, "400 MiB went into 96 MiB");
        match block_on(store.apply(&id(written), Transaction::new().write(Fork::DEFAULT, 0, data(written)))) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        // A full OSD says so with its next heartbeat. Until then it takes what it is given.
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
    assert!(error.message.contains("filler-") && error.message.contains("full"), "{error}");
    // A refused write moves nothing, though an object has garbage: that takes as much room again, and mends nothing.
    let header = || {
        let rados = ["-p", "nacre", "-N", namespace(&uri), "getxattr", "nacre.holey", "nacre"];
        cluster.rados_bytes(&rados)
    };
    let before = header();
    for _ in 0..5 {
        let write = Transaction::new().write(Fork::DEFAULT, 1 << 20, data(1));
        let error = block_on(store.apply(&holey, write)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
    }
    assert_eq!(header(), before, "a refused write rewrote the object");
    // Everything acknowledged is there, and the refused write is not.
    for index in [0, written / 2, written - 1] {
        let read = Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, 2 << 20));
        let Outcome::Done(done) = block_on(store.apply(&id(index), read)).unwrap() else {
            unreachable!("no guard")
        };
        let Answer::Range(range) = &done.answers[0] else { unreachable!("a range was asked for") };
        assert!(range.data == data(index), "object {index} of {written} reads otherwise");
    }
    let listed = block_on(store.list(None, 1000)).unwrap();
    assert_eq!(listed.len(), written + 1);
    // Removing makes room, and then writes go on.
    for index in 0..written / 2 {
        block_on(store.apply(&id(index), Transaction::new().change(WriteOp::Remove))).unwrap();
    }
    wait_until("there is room again", || {
        block_on(store.apply(&id(1000), Transaction::new().write(Fork::DEFAULT, 0, data(7)))).is_ok()
    });
}
