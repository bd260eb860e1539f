//! The store as a user sees it: the contents after opening again, the effects of damage, the space that is
//! taken.

use std::sync::Arc;

use bytes::Bytes;
use nacre_logstore::disk::Disk;
use nacre_logstore::sim::{Faults, SimDisk};
use nacre_logstore::{Committer, Durability, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::testkit::conformance::compare;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::{
    Answer, ByteRange, Done, ErrorKind, Fences, Fork, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome,
    ReadOp, Reply, StoreError, Transaction, WriteOp,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn object(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn done(outcome: Result<Outcome, StoreError>) -> Done {
    match outcome.unwrap() {
        Outcome::Done(done) => done,
        Outcome::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

fn write(store: &LogStore, name: &str, offset: u64, data: impl Into<Bytes>) -> u64 {
    done(block_on(store.apply(&object(name), Transaction::new().write(Fork::DEFAULT, offset, data)))).version
}

fn read(store: &LogStore, name: &str, range: ByteRange) -> Result<Bytes, StoreError> {
    let outcome = block_on(store.apply(&object(name), Transaction::new().read_range(Fork::DEFAULT, range)))?;
    match done(Ok(outcome)).answers.remove(0) {
        Answer::Range(read) => Ok(read.data),
        other => panic!("{other:?}"),
    }
}

fn by_hand(durability: Durability) -> Options {
    let (segment_bytes, snapshot_bytes) = (64 << 10, 64 << 20);
    Options { durability, segment_bytes, snapshot_bytes, committer: Committer::Caller, ..Options::default() }
}

#[test]
fn everything_is_there_after_closing_and_opening() {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { objects: 8, span_bytes: 300_000, extent_bytes_max: 100_000, ..Shape::default() };
    let mut generator = Generator::new(17, shape);
    for round in 0..4 {
        let store =
            LogStore::open(folder.path(), Options { segment_bytes: 1 << 20, ..Options::default() }).unwrap();
        compare(&store, generator.model(), generator.objects()).unwrap();
        for _ in 0..60 {
            let step = generator.step();
            assert_eq!(block_on(store.apply(&step.object, step.transaction)).is_ok(), step.expected.is_ok());
        }
        if round % 2 == 0 {
            store.close().unwrap();
            let closed = block_on(store.apply(&object("x"), Transaction::new().change(WriteOp::Create)));
            assert_eq!(closed.unwrap_err().kind, ErrorKind::Closed);
        }
    }
}

#[test]
fn a_second_process_is_told_that_the_store_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let first = LogStore::open(folder.path(), Options::default()).unwrap();
    let error = LogStore::open(folder.path(), Options::default()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.message.contains("is open in another process"), "{error}");
    drop(first);
    LogStore::open(folder.path(), Options::default()).unwrap();
}

#[test]
fn a_removed_object_keeps_its_version_and_its_fence_across_openings() {
    let folder = tempfile::tempdir().unwrap();
    let id = object("phoenix");
    {
        let store = LogStore::open(folder.path(), Options::default()).unwrap();
        write(&store, "phoenix", 0, "alive");
        let raise = Transaction::new().change(WriteOp::RaiseFence { token: 9 });
        done(block_on(store.apply(&id, raise)));
        assert_eq!(done(block_on(store.apply(&id, Transaction::new().change(WriteOp::Remove)))).version, 3);
    }
    let store = LogStore::open(folder.path(), Options::default()).unwrap();
    assert_eq!(block_on(store.list(None, 10)).unwrap(), []);
    let stale =
        Transaction::new().if_version(Fork::DEFAULT, ByteRange::new(0, 5), 1).write(Fork::DEFAULT, 0, "ABA");
    assert!(matches!(block_on(store.apply(&id, stale)).unwrap(), Outcome::Refused(_)));
    let fenced = Transaction::new().guard(Guard::Fence { token: 8 });
    assert!(matches!(block_on(store.apply(&id, fenced)).unwrap(), Outcome::Refused(_)));
    assert_eq!(write(&store, "phoenix", 0, "again"), 4);
}

#[test]
fn versions_of_keys_and_fenced_sessions_stay_across_openings() {
    let folder = tempfile::tempdir().unwrap();
    let id = object("o");
    let set =
        |name: &str| WriteOp::SetKey { key: Key::try_from(name).unwrap(), value: name.to_string().into() };
    let reads = || {
        let keys = ReadOp::VersionedKeys { range: KeyRange::all(), limit: 10, values: true };
        Transaction::new().read(keys).read(ReadOp::Fences).read(ReadOp::Stat)
    };
    let sessions: Vec<u64> = (0..1100).map(|number| 5 + 3 * number).chain([u64::MAX]).collect();
    let expected = {
        let store = LogStore::open(folder.path(), Options::default()).unwrap();
        done(block_on(store.apply(&id, Transaction::new().change(set("a")).change(set("b")))));
        done(block_on(store.apply(&id, Transaction::new().change(set("b")))));
        let fences = sessions.iter().map(|session| WriteOp::FenceSession { session: *session });
        let fence = Transaction { writes: fences.collect(), ..Transaction::new() };
        done(block_on(store.apply(&id, fence)));
        let answers = done(block_on(store.apply(&id, reads()))).answers;
        let [Answer::VersionedKeys(keys), Answer::Fences(fences), _] = &answers[..] else { panic!() };
        let versions: Vec<u64> = keys.entries.iter().map(|(_, found)| found.version).collect();
        assert_eq!(versions, [1, 2]);
        // 1,101 sessions were fenced, so that the lowest 77 are below the fence by now.
        assert_eq!((fences.fence, fences.sessions.len()), (5 + 3 * 76 + 1, 1024));
        assert_eq!(fences.sessions[..], sessions[77..]);
        store.check_counts();
        answers
    };
    // From a snapshot that was taken when the store was closed, with more in the log, and from the log alone.
    for opening in 0..3 {
        let store = LogStore::open(folder.path(), Options::default()).unwrap();
        assert_eq!(done(block_on(store.apply(&id, reads()))).answers, expected, "opening {opening}");
        store.check_counts();
    }
    let store = LogStore::open(folder.path(), Options::default()).unwrap();
    done(block_on(store.apply(&id, Transaction::new().change(WriteOp::RaiseFence { token: 4000 }))));
    done(block_on(store.apply(&id, Transaction::new().change(WriteOp::Remove))));
    store.check_counts();
    drop(store);
    let store = LogStore::open(folder.path(), Options::default()).unwrap();
    let answers = done(block_on(store.apply(&id, Transaction::new().read(ReadOp::Fences)))).answers;
    assert_eq!(answers, [Answer::Fences(Fences { fence: 4000, sessions: vec![u64::MAX] })]);
    store.check_counts();
}

/// Makes a store with some history in it, on a simulated disk, with what it must hold.
fn damaged_store(seed: u64, close: bool) -> (Arc<SimDisk>, Generator, Vec<(String, u64)>) {
    let disk = Arc::new(SimDisk::new(seed, Faults::default()));
    let store = LogStore::open_on(Arc::clone(&disk) as _, by_hand(Durability::Always)).unwrap();
    let shape = Shape { objects: 6, span_bytes: 5000, extent_bytes_max: 3000, ..Shape::default() };
    let mut generator = Generator::new(seed, shape);
    for number in 0..60 {
        let step = generator.step();
        let reply = store.apply(&step.object, step.transaction);
        store.turn().unwrap();
        assert_eq!(block_on(reply).is_ok(), step.expected.is_ok());
        if number % 25 == 24 {
            store.snapshot().unwrap();
        }
    }
    // The last batch of a killed store is not proven to have been synced; this one stands in for it.
    let last = store.apply(&object("last"), Transaction::new().change(WriteOp::Create));
    store.turn().unwrap();
    block_on(last).unwrap();
    if close {
        store.close().unwrap();
    }
    // What was written in each file; behind that, a segment may hold what it held before it was used again.
    let mut written: Vec<(String, u64)> =
        store.info().segment_list.into_iter().map(|segment| (segment.file, segment.written_bytes)).collect();
    written.retain(|(_, bytes)| *bytes > 0);
    // Nobody ever reads what stands in a file that is only in reserve.
    let read = |name: &str| !name.starts_with("segment-") && !name.starts_with("reserve-");
    let others = disk.list().unwrap().into_iter().filter(|(name, _)| read(name));
    written.extend(others);
    (Arc::new(disk.after_kill(Faults::default())), generator, written)
}

#[test]
fn a_flipped_bit_is_never_read_as_data() {
    let mut rng = SmallRng::seed_from_u64(4);
    let (mut healed, mut refused) = (0, 0);
    for seed in 0..6 {
        let (disk, generator, files) = damaged_store(seed, seed % 2 == 0);
        for _ in 0..250 {
            let (name, written) = &files[rng.random_range(0..files.len())];
            let at = rng.random_range(0..*written);
            let bit = rng.random_range(0..8);
            let copy = Arc::new(disk.after_kill(Faults::default()));
            copy.flip(name, at, bit);
            let context = format!("seed {seed}, {name}, byte {at}, bit {bit}");
            let store = LogStore::open_on(Arc::clone(&copy) as _, by_hand(Durability::Always))
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let mut unreadable = 0;
            for id in generator.objects() {
                if let Err(failure) = compare(&store, generator.model(), std::slice::from_ref(id)) {
                    let text = failure.to_string();
                    assert!(text.contains("Corrupt") && text.contains(name.as_str()), "{context}: {text}");
                    assert!(text.contains("at offset"), "{context}: {text}");
                    unreadable += 1;
                }
            }
            assert!(unreadable <= 1, "{context}: {unreadable} objects are unreadable");
            let report = store.scrub(|_| {}).unwrap();
            assert!(!report.findings.is_empty(), "{context}: the scrub finds nothing");
            assert!(report.findings.iter().all(|finding| finding.file.contains(name.as_str())), "{context}");
            let blamed: Vec<&String> = report.findings.iter().flat_map(|finding| &finding.objects).collect();
            assert_eq!(blamed.len(), unreadable, "{context}: {:?}", report.findings);
            if unreadable > 0 { refused += 1 } else { healed += 1 }
        }
    }
    assert!(healed > 100 && refused > 100, "{healed} healed, {refused} refused");
}

#[test]
fn an_undamaged_store_has_no_findings() {
    let (disk, ..) = damaged_store(1, true);
    let store = LogStore::open_on(disk, by_hand(Durability::Always)).unwrap();
    let mut seen = 0;
    let report = store.scrub(|progress| seen = progress.bytes).unwrap();
    assert_eq!(report.findings, []);
    assert!(seen > 0 && report.bytes >= seen);
}

#[test]
fn a_failed_sync_makes_the_store_read_only_and_says_so() {
    let faults = |operation| Faults { error_at: Some(operation), ..Faults::default() };
    // The operations of a commit are its write and its sync; which numbers those have is found by trying.
    let mut seen = 0;
    for operation in 1..120 {
        let disk = Arc::new(SimDisk::new(1, faults(operation)));
        let Ok(store) = LogStore::open_on(Arc::clone(&disk) as _, by_hand(Durability::Always)) else {
            continue;
        };
        let put = |name: &str| {
            let reply = store.apply(&object(name), Transaction::new().write(Fork::DEFAULT, 0, "data"));
            let _ = store.turn();
            block_on(reply)
        };
        let first = put("first");
        let second = put("second");
        if first.is_ok()
            && let Err(error) = second
            && error.kind == ErrorKind::Unknown
        {
            seen += 1;
            assert!(store.info().read_only.unwrap().contains("read-only because it could not"));
            let third = put("third").unwrap_err();
            assert_eq!(third.kind, ErrorKind::ReadOnly, "{third}");
            // What was durable before can be read; what is uncertain cannot.
            assert_eq!(read(&store, "first", ByteRange::new(0, 4)).unwrap(), "data");
            assert_eq!(read(&store, "second", ByteRange::new(0, 4)).unwrap_err().kind, ErrorKind::ReadOnly);
        }
    }
    assert!(seen >= 2, "{seen} failures of the second commit");
}

#[test]
fn a_full_disk_refuses_writes_and_takes_them_again_when_there_is_room() {
    let disk = Arc::new(SimDisk::new(1, Faults { capacity_bytes: Some(400 << 10), ..Faults::default() }));
    let store = LogStore::open_on(Arc::clone(&disk) as _, by_hand(Durability::Always)).unwrap();
    let put = |number: u32| {
        let id = object(&format!("object-{number}"));
        let reply = store.apply(&id, Transaction::new().write(Fork::DEFAULT, 0, vec![number as u8; 8000]));
        store.turn().unwrap();
        block_on(reply)
    };
    let mut stored = 0;
    let error = loop {
        match put(stored) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100, "the disk never fills up");
    };
    assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
    assert!(error.message.contains("nothing was changed"), "{error}");
    for number in 0..stored {
        let data = read(&store, &format!("object-{number}"), ByteRange::new(0, 8000)).unwrap();
        assert!(data.len() == 8000 && data.iter().all(|byte| *byte == number as u8));
    }
    disk.set_faults(Faults::default());
    put(stored).unwrap();
}

/// Overwrites random blocks many times over, while 60 % of what was written is live.
fn overwrite_for_ever(store: &LogStore, segment_bytes: u64, live_bytes: u64, rounds: u64) {
    let mut rng = SmallRng::seed_from_u64(9);
    let block = 4096;
    let blocks = live_bytes / block;
    for number in 0..blocks {
        write(store, "file", number * block, vec![1; block as usize]);
    }
    let mut worst: f64 = 0.0;
    for round in 0..rounds * blocks {
        let number = rng.random_range(0..blocks);
        write(store, "file", number * block, vec![round as u8; block as usize]);
        if round % 256 == 0 {
            let info = store.info();
            assert_eq!(info.live_bytes, live_bytes);
            let over = info.segment_bytes as f64 - 2.0 * segment_bytes as f64;
            worst = worst.max(over / live_bytes as f64);
        }
    }
    assert!(worst < 1.6, "the store took {worst:.2} times its live data and two segments");
    let info = store.info();
    assert!(info.segments_cleaned > 10, "{info:?}");
    assert!(info.write_amplification.unwrap() < 4.0, "{info:?}");
}

#[test]
fn a_volatile_store_answers_writes_at_once_after_a_turn() {
    let store = LogStore::memory(Options::default());
    for number in 1..=3 {
        let reply = store.apply(&object("one"), Transaction::new().write(Fork::DEFAULT, 0, "data"));
        assert!(matches!(reply, Reply::Ready(Some(Ok(_)))), "write {number} is not answered at once");
        store.turn().unwrap();
    }
}

#[test]
fn space_is_bounded_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::None, segment_bytes: 256 << 10, ..Options::default() };
    overwrite_for_ever(&LogStore::open(folder.path(), options).unwrap(), 256 << 10, 6 << 20, 6);
}

#[test]
fn compacting_gives_back_what_was_removed() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 1 << 20, ..Options::default() };
    let store = LogStore::open(folder.path(), options).unwrap();
    for number in 0..12 {
        write(&store, &format!("object-{number}"), 0, vec![number; 1 << 20]);
    }
    for number in 0..11 {
        done(block_on(
            store.apply(&object(&format!("object-{number}")), Transaction::new().change(WriteOp::Remove)),
        ));
    }
    store.compact().unwrap();
    let info = store.info();
    assert_eq!(info.live_bytes, 1 << 20);
    assert!(info.segment_bytes <= 6 << 20, "{info:?}");
    assert!(read(&store, "object-11", ByteRange::new(0, 1 << 20)).unwrap().iter().all(|byte| *byte == 11));
}

#[test]
fn a_value_and_a_record_larger_than_a_segment_find_room() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 64 << 10, ..Options::default() };
    let store = LogStore::open(folder.path(), options.clone()).unwrap();
    write(&store, "large", 5, vec![7; 3 << 20]);
    let key = Key::try_from("k").unwrap();
    let set = WriteOp::SetKey { key: key.clone(), value: vec![8; 1 << 20].into() };
    done(block_on(store.apply(&object("large"), Transaction::new().change(set))));
    drop(store);
    let store = LogStore::open(folder.path(), options).unwrap();
    assert!(read(&store, "large", ByteRange::new(5, 3 << 20)).unwrap().iter().all(|byte| *byte == 7));
    let get = Transaction::new().read(ReadOp::Key { key });
    let answers = done(block_on(store.apply(&object("large"), get))).answers;
    assert_eq!(answers, [Answer::Value(Some(vec![8; 1 << 20].into()))]);
}
