//! Forks that replace each other while the cleaner moves their data: nothing is lost, mixed up or left behind, neither
//! at once nor after an opening.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use nacre_logstore::sim::{Faults, Moment, Operation, SimDisk};
use nacre_logstore::{Committer, Durability, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::testkit::conformance::compare;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::*;

fn options(committer: Committer) -> Options {
    let (segment_bytes, snapshot_bytes) = (64 << 10, 1 << 20);
    Options { segment_bytes, snapshot_bytes, committer, durability: Durability::Always, ..Options::default() }
}

fn fork(name: &str) -> Fork {
    Fork::try_from(name).unwrap()
}

fn replace(fork: Fork, from: Fork) -> WriteOp {
    WriteOp::ReplaceFork { fork, from }
}

fn apply(store: &LogStore, object: &ObjectId, transaction: Transaction) -> Done {
    let reply = store.apply(object, transaction);
    store.turn().unwrap();
    match block_on(reply).unwrap() {
        Outcome::Done(done) => done,
        Outcome::Refused(refusal) => panic!("{refusal:?}"),
    }
}

fn read(store: &LogStore, object: &ObjectId, name: &Fork) -> Vec<u8> {
    let done = apply(store, object, Transaction::new().read_range(name.clone(), ByteRange::ALL));
    match &done.answers[..] {
        [Answer::Range(found)] => found.data.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Runs `changes` when the first record of moves was written to the disk and the index does not refer to it yet; then
/// checks the contents of two forks of one version, that the cleaner finishes with them, and the contents after
/// openings.
fn between_move_and_index(changes: Vec<WriteOp>, expected: &[(&str, u8)]) {
    const BYTES: usize = 6000;
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = LogStore::open_on(Arc::clone(&disk) as _, options(Committer::Caller)).unwrap();
    let object = ObjectId::try_from("a").unwrap();
    // Of one transaction, so that nothing but their names tells them apart: version, offsets and lengths are the same.
    let twins = Transaction::new().write(fork("s"), 0, vec![1; BYTES]).write(fork("u"), 0, vec![2; BYTES]);
    apply(&store, &object, twins);
    for round in 0..20 {
        let garbage = ObjectId::try_from("garbage").unwrap();
        apply(&store, &garbage, Transaction::new().write(Fork::DEFAULT, 0, vec![round; 20_000]));
    }
    let segments = store.info().segments;
    let pending: Arc<Mutex<Vec<Reply<Outcome>>>> = Arc::default();
    let waits = Arc::new(AtomicBool::new(true));
    {
        let (store, object, pending, waits) = (store.clone(), object.clone(), pending.clone(), waits.clone());
        disk.set_hook(Arc::new(move |moment, operation, name: &str| {
            let moves =
                (moment, operation) == (Moment::After, Operation::Write) && name.starts_with("segment-");
            if moves && waits.swap(false, Ordering::SeqCst) {
                let transaction = Transaction { writes: changes.clone(), ..Transaction::new() };
                pending.lock().unwrap().push(store.apply(&object, transaction));
            }
        }));
    }
    store.compact().unwrap();
    disk.set_hook(Arc::new(|_, _, _| {}));
    assert!(!waits.load(Ordering::SeqCst), "nothing was moved");
    store.turn().unwrap();
    for reply in pending.lock().unwrap().drain(..) {
        assert!(matches!(block_on(reply), Ok(Outcome::Done(_))));
    }
    let check = |store: &LogStore, context: &str| {
        for (name, byte) in expected {
            assert!(read(store, &object, &fork(name)) == [*byte; BYTES], "fork \"{name}\", {context}");
        }
    };
    check(&store, "at once");
    // The cleaner is not stopped by what it could not follow.
    store.compact().unwrap();
    check(&store, "cleaned again");
    assert!(store.info().segments < segments, "{} of {segments} segments are left", store.info().segments);
    let live = store.info().live_bytes;
    assert_eq!(live, (expected.len() * BYTES + 20_000) as u64);
    // Killed, so that the log is replayed: from the newest snapshot, and from the oldest that is kept.
    for damage in [false, true] {
        let disk = Arc::new(disk.after_kill(Faults::default()));
        if damage {
            let newest = disk.list_snapshots().pop().unwrap();
            disk.flip(&newest, 100, 3);
        }
        let store = LogStore::open_on(disk as _, options(Committer::Caller)).unwrap();
        assert_eq!(store.opened().damaged_snapshots, u64::from(damage));
        check(&store, "opened again");
        store.compact().unwrap();
        check(&store, "opened and cleaned");
        assert_eq!(store.info().live_bytes, live);
    }
}

trait Snapshots {
    fn list_snapshots(&self) -> Vec<String>;
}

impl Snapshots for SimDisk {
    fn list_snapshots(&self) -> Vec<String> {
        use nacre_logstore::disk::Disk;
        let mut names: Vec<String> = self.list().unwrap().into_iter().map(|(name, _)| name).collect();
        names.retain(|name| name.starts_with("snapshot-"));
        names.sort();
        names
    }
}

#[test]
fn a_fork_that_takes_anothers_place_while_it_is_moved_keeps_its_bytes() {
    between_move_and_index(vec![replace(Fork::DEFAULT, fork("s"))], &[("", 1), ("u", 2)]);
}

#[test]
fn twins_that_exchange_their_places_while_they_are_moved_keep_their_bytes() {
    let exchange =
        vec![replace(fork("t"), fork("s")), replace(fork("s"), fork("u")), replace(fork("u"), fork("t"))];
    between_move_and_index(exchange, &[("s", 2), ("u", 1)]);
    // One of them goes, and the other is called like it.
    between_move_and_index(vec![replace(fork("s"), fork("u"))], &[("s", 2)]);
}

#[test]
fn what_took_anothers_place_long_ago_is_moved_and_its_segments_are_freed() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = LogStore::open_on(Arc::clone(&disk) as _, options(Committer::Caller)).unwrap();
    let object = ObjectId::try_from("a").unwrap();
    let mut expected = Vec::new();
    for round in 0..60u8 {
        // A few bytes that stay in each segment, under a name that they soon lose.
        let stage = fork("stage");
        apply(&store, &object, Transaction::new().write(stage.clone(), 0, vec![round; 500]));
        apply(&store, &object, Transaction::new().write(fork("garbage"), 0, vec![round; 20_000]));
        let name = format!("kept {}", round % 50);
        apply(&store, &object, Transaction::new().change(replace(fork(&name), stage)));
        expected.retain(|(other, _)| *other != name);
        expected.push((name, round));
    }
    let live = 50 * 500 + 20_000;
    for opening in 0..3 {
        let disk = Arc::new(disk.after_kill(Faults::default()));
        let store = LogStore::open_on(Arc::clone(&disk) as _, options(Committer::Caller)).unwrap();
        store.compact().unwrap();
        let info = store.info();
        assert_eq!(info.live_bytes, live);
        assert!(info.segment_bytes <= 5 * (64 << 10) + live * 3 / 2, "{info:?} after opening {opening}");
        for (name, round) in &expected {
            assert!(read(&store, &object, &fork(name)) == [*round; 500], "{name}");
        }
    }
}

/// Tests random histories by one thread while another cleans and takes snapshots all the time; `NACRE_HISTORIES` sets how many.
#[test]
fn histories_under_a_cleaner_that_never_rests() {
    let seeds: u64 = std::env::var("NACRE_HISTORIES").map_or(4, |count| count.parse().unwrap());
    let first: u64 = std::env::var("NACRE_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + seeds {
        let shape = Shape {
            objects: 2,
            span_bytes: 60_000,
            extent_bytes_max: 30_000,
            extents_max: 2,
            far_percent: 0,
            replace_percent: 20,
            remove_percent: 1,
            ..Shape::default()
        };
        let mut generator = Generator::new(seed, shape);
        let mut disk = Arc::new(SimDisk::new(seed, Faults::default()));
        for opening in 0..3 {
            let context = format!("seed {seed}, opening {opening}");
            let store = LogStore::open_on(Arc::clone(&disk) as _, options(Committer::Thread)).unwrap();
            compare(&store, generator.model(), generator.objects())
                .unwrap_or_else(|failure| panic!("{context}: {failure}"));
            // What the disk does takes others' time, so that they come in between.
            disk.set_hook(Arc::new(|_, _, _| std::thread::yield_now()));
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        store.compact().unwrap();
                        store.snapshot().unwrap();
                    }
                });
                for number in 0..150 {
                    let step = generator.step();
                    let found = block_on(store.apply(&step.object, step.transaction));
                    if found != step.expected {
                        over.store(true, Ordering::SeqCst);
                        panic!("{context}: transaction {number} gave {found:?}");
                    }
                }
                over.store(true, Ordering::SeqCst);
            });
            compare(&store, generator.model(), generator.objects())
                .unwrap_or_else(|failure| panic!("{context}, at its end: {failure}"));
            assert_eq!(store.scrub(|_| {}).unwrap().findings, [], "{context}");
            store.compact().unwrap();
            let info = store.info();
            assert!(info.segment_bytes <= 6 * (64 << 10) + info.live_bytes * 2, "{context}: {info:?}");
            // The process is killed, with the store as it is.
            disk = Arc::new(disk.after_kill(Faults::default()));
        }
    }
}
