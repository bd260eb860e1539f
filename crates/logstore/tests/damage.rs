//! Damage: the cost of a flipped bit, a lost sector or a lost file, and the effect of a repair.

#[path = "damage/device.rs"]
mod device;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use nacre_logstore::disk::Disk;
use nacre_logstore::record::{self, Binding, Effect, Stamp};
use nacre_logstore::sim::{Faults, SimDisk};
use nacre_logstore::{Committer, FORMAT_VERSION, LogStore, Options, ScrubReport};
use nacre_object::testkit::block_on;
use nacre_object::testkit::conformance::{compare, compare_copies};
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::{
    Answer, ByteRange, ErrorKind, Fork, ObjectId, ObjectStore, Outcome, StoreError, Transaction, WriteOp,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn options() -> Options {
    Options { segment_bytes: 64 << 10, committer: Committer::Caller, ..Options::default() }
}

fn open(disk: &Arc<SimDisk>) -> Result<LogStore, StoreError> {
    LogStore::open_on(Arc::clone(disk) as _, options())
}

fn repair(disk: &Arc<SimDisk>) -> ScrubReport {
    LogStore::repair_on(Arc::clone(disk) as _, options(), |_| {}).unwrap()
}

fn copy(disk: &SimDisk) -> Arc<SimDisk> {
    Arc::new(disk.after_kill(Faults::default()))
}

/// Returns whether a file's contents are ever read: not those of one that is only in reserve.
fn is_read(name: &str) -> bool {
    !name.starts_with("reserve-")
}

/// Returns the names of the snapshots, the oldest first.
fn snapshots(disk: &SimDisk) -> Vec<String> {
    let mut names: Vec<String> = disk.list().unwrap().into_iter().map(|(name, _)| name).collect();
    names.retain(|name| name.starts_with("snapshot-"));
    names.sort();
    names
}

/// Returns the name of the first segment, and its number.
fn first_segment(store: &LogStore) -> (String, u32) {
    let name = store.info().segment_list[0].file.clone();
    let number = name.strip_prefix("segment-").unwrap().parse().unwrap();
    (name, number)
}

/// Copies a folder's files to a simulated disk.
fn disk_of(folder: &Path) -> SimDisk {
    let disk = SimDisk::new(1, Faults::default());
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        let name = entry.file_name().into_string().unwrap();
        disk.create(&name, bytes.len() as u64).unwrap().write_at(0, &[bytes.into()]).unwrap();
    }
    disk
}

/// The past of the store that is damaged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Past {
    /// The log alone.
    NoSnapshot,
    /// One snapshot, and log behind it.
    OneSnapshot,
    /// Two snapshots, and log behind both.
    TwoSnapshots,
    /// A closed store, whose newest snapshot holds everything, after segments were freed.
    Compacted,
}

const PASTS: [Past; 4] = [Past::NoSnapshot, Past::OneSnapshot, Past::TwoSnapshots, Past::Compacted];

struct Victim {
    disk: SimDisk,
    generator: Generator,
    /// The format of the files.
    format: u32,
    /// The files, and the bytes of each that are in use.
    files: Vec<(String, u64)>,
}

fn victim(past: Past, seed: u64) -> Victim {
    let disk = Arc::new(SimDisk::new(seed, Faults::default()));
    let store = open(&disk).unwrap();
    let shape = Shape {
        objects: 6,
        span_bytes: 9000,
        extent_bytes_max: 6000,
        version_guards: false,
        appends: false,
        ..Shape::default()
    };
    let mut generator = Generator::new(seed, shape);
    let steps = if past == Past::Compacted { 160 } else { 60 };
    // Where snapshots are taken away below, none of the log may have been freed: with so much that is live beside it, what
    // is garbage is not worth cleaning. Its record is the only one of its segment.
    let ballast = matches!(past, Past::NoSnapshot | Past::OneSnapshot).then(|| {
        put(&store, "ballast", 0, vec![1; 800_000]);
        store.info().segment_list[0].file.clone()
    });
    for number in 0..steps {
        let step = generator.step();
        let reply = store.apply(&step.object, step.transaction);
        store.turn().unwrap();
        assert_eq!(block_on(reply).is_ok(), step.expected.is_ok());
        let due = match past {
            Past::NoSnapshot => false,
            Past::OneSnapshot => number == 30,
            Past::TwoSnapshots => number == 20 || number == 40,
            Past::Compacted => number % 40 == 39,
        };
        if due {
            store.snapshot().unwrap();
        }
    }
    if past == Past::Compacted {
        store.compact().unwrap();
        store.close().unwrap();
    } else {
        // The last batch of a killed store is not proven to have been synced; this one stands in for it.
        let last = ObjectId::try_from("last").unwrap();
        let reply = store.apply(&last, Transaction::new().change(WriteOp::Create));
        store.turn().unwrap();
        block_on(reply).unwrap();
    }
    let mut files: Vec<(String, u64)> =
        store.info().segment_list.into_iter().map(|segment| (segment.file, segment.written_bytes)).collect();
    files.retain(|(name, bytes)| *bytes > 0 && ballast.as_ref() != Some(name));
    // What is not yet another process's must not change any more.
    let disk = disk.after_kill(Faults::default());
    // Every store has two snapshots as soon as it has anything. Earlier ones had not, nor has one that lost some: the log
    // is there from its beginning all the same.
    let kept = match past {
        Past::NoSnapshot => 0,
        Past::OneSnapshot => 1,
        Past::TwoSnapshots | Past::Compacted => 2,
    };
    let mut snapshots = snapshots(&disk);
    snapshots.truncate(snapshots.len() - kept);
    snapshots.iter().for_each(|name| disk.remove(name).unwrap());
    files.extend(
        disk.list().unwrap().into_iter().filter(|(name, _)| is_read(name) && !name.starts_with("segment-")),
    );
    Victim { disk, generator, format: FORMAT_VERSION, files }
}

/// Returns the objects that a store cannot read; checks that the others are as they must be.
fn unreadable(store: &LogStore, victim: &Victim, context: &str) -> Vec<String> {
    // Older formats do not tell the versions of keys.
    let compare = if victim.format < 3 { compare_copies } else { compare };
    let mut unreadable = Vec::new();
    for id in victim.generator.objects() {
        if let Err(failure) = compare(store, victim.generator.model(), std::slice::from_ref(id)) {
            let text = failure.to_string();
            assert!(text.contains("Corrupt") && text.contains("at offset"), "{context}: {text}");
            unreadable.push(id.to_string());
        }
    }
    unreadable
}

fn flips() -> usize {
    std::env::var("NACRE_FLIPS").map_or(150, |number| number.parse().expect("NACRE_FLIPS is a number"))
}

#[test]
fn a_flipped_bit_costs_at_most_what_it_belonged_to() {
    let mut rng = SmallRng::seed_from_u64(11);
    let mut victims: Vec<(String, Victim)> =
        PASTS.into_iter().map(|past| (format!("{past:?}"), victim(past, 5))).collect();
    for format in 1..=2 {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/format-{format}"));
        let disk = disk_of(&folder);
        let shape = Shape {
            replace_percent: 0,
            version_guards: false,
            key_versions_and_sessions: false,
            appends: false,
            ..Shape::default()
        };
        let mut generator = Generator::new(1, shape);
        (0..80).for_each(|_| drop(generator.step()));
        let mut files = disk.list().unwrap();
        // Behind the last records nothing is written, and the last record itself is not proven to have been synced.
        let store = open(&copy(&disk)).unwrap();
        let written = store.info().segment_list[0].written_bytes;
        drop(store);
        files
            .iter_mut()
            .filter(|(name, _)| name.starts_with("segment"))
            .for_each(|(_, len)| *len = written - 1200);
        victims.push((format!("format {format}"), Victim { disk, generator, format, files }));
    }
    for (name, victim) in &victims {
        for (file, written) in &victim.files {
            for _ in 0..flips() {
                let (at, bit) = (rng.random_range(0..*written), rng.random_range(0..8));
                let context = format!("{name}, {file}, byte {at}, bit {bit}");
                let disk = copy(&victim.disk);
                disk.flip(file, at, bit);
                let store = open(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
                let lost = unreadable(&store, victim, &context);
                assert!(lost.len() <= 1, "{context}: {lost:?} are unreadable");
                assert!(lost.is_empty() || file.starts_with("segment-"), "{context}");
                let report = store.scrub(|_| {}).unwrap();
                // A superblock of an older format was written anew when the store was opened.
                let is_healed = victim.format < FORMAT_VERSION && file == "nacre-store";
                assert_eq!(report.findings.is_empty(), is_healed, "{context}: {:?}", report.findings);
                let elsewhere = report.findings.iter().find(|finding| finding.file != *file);
                assert_eq!(elsewhere, None, "{context}");
                drop(store);

                // The same by a repair of files that nobody has opened since.
                let disk = copy(&victim.disk);
                disk.flip(file, at, bit);
                let closed = LogStore::scrub_closed_on(Arc::clone(&disk) as _, |_| {}).unwrap();
                assert!(closed.findings.iter().any(|finding| finding.file == *file), "{context}");
                let report = repair(&disk);
                let mut blamed: Vec<&String> = report.lost.iter().map(|loss| &loss.object).collect();
                blamed.dedup();
                assert!(blamed.iter().all(|object| lost.contains(object)), "{context}: {:?}", report.lost);
                assert_eq!(blamed.len(), lost.len(), "{context}: {:?}", report.lost);
                let store = open(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(unreadable(&store, victim, &context), lost, "{context}");
                // Only payload cannot be brought back.
                let left = store.scrub(|_| {}).unwrap().findings;
                assert!(
                    left.iter().all(|finding| finding.what == "a chunk of payload"),
                    "{context}: {left:?}"
                );
                assert!(report.repaired.is_empty() != left.is_empty(), "{context}: {report:?}");
            }
        }
    }
}

#[test]
fn a_flipped_bit_in_both_snapshots_costs_nothing() {
    let mut rng = SmallRng::seed_from_u64(3);
    let victim = victim(Past::Compacted, 8);
    let snapshots: Vec<&(String, u64)> =
        victim.files.iter().filter(|(name, _)| name.starts_with("snapshot-")).collect();
    assert_eq!(snapshots.len(), 2);
    for _ in 0..flips() {
        let disk = copy(&victim.disk);
        for (name, len) in &snapshots {
            disk.flip(name, rng.random_range(0..*len), rng.random_range(0..8));
        }
        let error = open(&disk).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.message.contains("every snapshot of the index is damaged (snapshot-"), "{error}");
        assert!(error.message.contains("cannot be replayed from its beginning"), "{error}");
        let report = LogStore::scrub_closed_on(Arc::clone(&disk) as _, |_| {}).unwrap();
        for (name, _) in &snapshots {
            assert!(report.findings.iter().any(|finding| finding.file == *name), "{report:?}");
        }
        let report = repair(&disk);
        assert_eq!(report.lost, []);
        let store = open(&disk).unwrap();
        compare(&store, victim.generator.model(), victim.generator.objects()).unwrap();
        // What was damaged is still there for whoever wants to look.
        let kept = disk.list().unwrap().into_iter().filter(|(name, _)| name.starts_with("damaged-snapshot-"));
        assert_eq!(kept.count(), 2);
        assert_eq!(store.scrub(|_| {}).unwrap().findings, []);
    }
}

#[test]
fn a_piece_lost_from_both_snapshots_costs_the_objects_that_it_named() {
    let original = {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let store = open(&disk).unwrap();
        for round in 0..2u8 {
            for number in 0..600u32 {
                put(&store, &format!("object-{number}"), 0, vec![round; 100 + number as usize]);
            }
            store.snapshot().unwrap();
        }
        store.compact().unwrap();
        store.close().unwrap();
        disk.after_kill(Faults::default())
    };
    let disk = copy(&original);
    let files = disk.list().unwrap();
    let snapshots: Vec<_> = files.iter().filter(|(name, _)| name.starts_with("snapshot-")).collect();
    assert_eq!(snapshots.len(), 2);
    for (name, len) in snapshots {
        // Most of the file is padding.
        zero(&disk, name, len / 8, 64);
    }
    assert_eq!(open(&disk).err().unwrap().kind, ErrorKind::Corrupt);
    let report = repair(&disk);
    assert!(!report.lost.is_empty());
    let store = open(&disk).unwrap();
    let mut gone = 0;
    for number in 0..600u32 {
        let name = format!("object-{number}");
        let data = get(&store, &name, 1000).unwrap();
        match data.is_empty() {
            true => gone += 1,
            false => assert_eq!(data, vec![1; 100 + number as usize], "{name}"),
        }
    }
    assert!((1..300).contains(&gone), "{gone} objects are gone");
    let names = block_on(store.list(None, 1000)).unwrap();
    assert_eq!(names.len(), 600 - gone, "what is gone does not seem to be there, empty");
}

fn put(store: &LogStore, name: &str, offset: u64, data: impl Into<Bytes>) {
    let id = ObjectId::try_from(name).unwrap();
    let reply = store.apply(&id, Transaction::new().write(Fork::DEFAULT, offset, data));
    store.turn().unwrap();
    block_on(reply).unwrap();
}

fn get(store: &LogStore, name: &str, len: u64) -> Result<Bytes, StoreError> {
    let id = ObjectId::try_from(name).unwrap();
    let read = Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, len));
    match block_on(store.apply(&id, read))? {
        Outcome::Done(done) => match &done.answers[0] {
            Answer::Range(read) => Ok(read.data.clone()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn while_there_is_one_snapshot_the_log_is_kept_from_its_beginning() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = open(&disk).unwrap();
    // One of the segments holds nothing but garbage in the end, too little of it for the cleaner to begin.
    for number in 0..20u8 {
        put(&store, &format!("other-{number}"), 0, vec![number; 30_000]);
    }
    for round in 0..20u8 {
        put(&store, "object", 0, vec![round; 8000]);
    }
    put(&store, "object", 0, vec![39; 8000]);
    store.snapshot().unwrap();
    put(&store, "last", 0, "last");
    let disk = copy(&disk);
    drop(store);
    disk.remove(&snapshots(&disk)[0]).unwrap();
    // An opening frees what is not needed any more; the process is killed before it writes the index down again.
    let store = open(&disk).unwrap();
    let disk = copy(&disk);
    drop(store);
    let snapshots: Vec<(String, u64)> =
        disk.list().unwrap().into_iter().filter(|(name, _)| name.starts_with("snapshot-")).collect();
    assert_eq!(snapshots.len(), 1);
    disk.flip(&snapshots[0].0, snapshots[0].1 / 2, 3);
    let store = open(&disk).unwrap();
    assert_eq!(store.opened().damaged_snapshots, 1);
    assert_eq!(get(&store, "object", 8000).unwrap(), vec![39; 8000]);
    assert_eq!(get(&store, "last", 4).unwrap(), "last");
}

/// Makes objects "0" to "39" of 5,000 bytes each, over several segments, with two snapshots and the log's beginning
/// freed.
fn many_objects() -> SimDisk {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = open(&disk).unwrap();
    for round in 0..2u8 {
        for number in 0..40u8 {
            put(&store, &number.to_string(), 0, vec![number ^ round; 5000]);
        }
        store.snapshot().unwrap();
    }
    store.compact().unwrap();
    for number in 0..40u8 {
        put(&store, &number.to_string(), 5000, vec![number; 100]);
    }
    put(&store, "last", 0, "last");
    disk.after_kill(Faults::default())
}

fn content(number: u8) -> Vec<u8> {
    [vec![number ^ 1; 5000], vec![number; 100]].concat()
}

/// Returns the numbers of the objects of [`many_objects`] that are as they were.
fn intact(store: &LogStore) -> Vec<u8> {
    (0..40u8)
        .filter(|number| get(store, &number.to_string(), 5100).is_ok_and(|data| data == content(*number)))
        .collect()
}

fn zero(disk: &SimDisk, name: &str, offset: u64, len: usize) {
    disk.open(name).unwrap().write_at(offset, &[vec![0; len].into()]).unwrap();
}

#[test]
fn a_lost_sector_at_the_beginning_of_any_file_is_repaired() {
    let original = many_objects();
    for (name, _) in original.list().unwrap().into_iter().filter(|(name, _)| is_read(name)) {
        let disk = copy(&original);
        zero(&disk, &name, 0, 128);
        let report = repair(&disk);
        assert!(!report.repaired.is_empty(), "{name}");
        let store = open(&disk).unwrap();
        assert_eq!(intact(&store).len(), 40, "{name}: {report:?}");
        assert_eq!(get(&store, "last", 4).unwrap(), "last", "{name}");
        assert_eq!(store.scrub(|_| {}).unwrap().findings, [], "{name}");
    }
}

#[test]
fn a_missing_segment_costs_what_it_held() {
    let original = many_objects();
    let segments = original.list().unwrap().into_iter().filter(|(name, _)| name.starts_with("segment-"));
    let mut failures = 0;
    for (name, _) in segments {
        let disk = copy(&original);
        disk.remove(&name).unwrap();
        if open(&copy(&disk)).is_ok() {
            // It held nothing that is needed.
            continue;
        }
        failures += 1;
        let report = repair(&disk);
        let store = open(&disk).unwrap();
        let intact = intact(&store);
        for number in (0..40u8).filter(|number| !intact.contains(number)) {
            // What is lost is said, and is either an error or, where the log itself is lost, what was there before.
            let named = report.lost.iter().any(|loss| loss.object == number.to_string());
            let log_lost = report.lost.iter().any(|loss| loss.what.contains("of the log"));
            assert!(named || log_lost, "{name}: object {number} was lost without a word: {report:?}");
            if let Ok(data) = get(&store, &number.to_string(), 5100) {
                assert!(
                    log_lost && content(number).starts_with(&data),
                    "{name}: object {number} has wrong bytes"
                );
            }
        }
    }
    assert!(failures > 0, "no segment was needed");
}

#[test]
fn a_record_that_is_lost_with_its_copy_is_named_and_costs_no_other() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = open(&disk).unwrap();
    for name in ["before", "victim", "after"] {
        put(&store, name, 0, vec![7; 3000]);
    }
    let (segment, _) = first_segment(&store);
    let bytes = disk.bytes(&segment).unwrap();
    let at = bytes.windows(6).position(|window| window == b"victim").unwrap() as u64;
    let disk = copy(&disk);
    // The sequence number, in the head and in the tail.
    let head = at - 34;
    disk.flip(&segment, head + 16, 0);
    let record_bytes = u32::from_le_bytes(*bytes[head as usize + 8..].first_chunk().unwrap());
    let head_bytes = 32 + u32::from_le_bytes(*bytes[head as usize + 12..].first_chunk().unwrap());
    let tail = head + u64::from(record_bytes - head_bytes.next_multiple_of(8));
    disk.flip(&segment, tail + 16, 1);
    let error = open(&disk).err().unwrap();
    assert!(error.message.contains("record 2 of the log is missing there, and its copy too"), "{error}");
    let report = LogStore::scrub_closed_on(Arc::clone(&disk) as _, |_| {}).unwrap();
    assert!(
        report.findings.iter().any(|finding| finding.offset == head && finding.objects == ["victim"]),
        "{report:?}"
    );
    let report = repair(&disk);
    assert_eq!(report.lost.len(), 1, "{report:?}");
    assert_eq!(report.lost[0].object, "victim");
    let store = open(&disk).unwrap();
    for name in ["before", "after"] {
        assert_eq!(get(&store, name, 3000).unwrap(), vec![7; 3000]);
    }
}

#[test]
fn files_of_no_store_are_not_repaired() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    disk.create("letter.txt", 10).unwrap();
    let error = LogStore::repair_on(Arc::clone(&disk) as _, options(), |_| {}).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert_eq!(disk.list().unwrap(), [("letter.txt".to_string(), 10)]);
}

/// Makes a payload with a record in it that says that object "throne" was written, sealed as the next one after the
/// record of the payload itself would be, in every format, by an attacker who knows everything but the store's
/// identity.
fn forgery(segment: u32, payload_at: u64, sequence: u64) -> Vec<u8> {
    let throne = ObjectId::try_from("throne").unwrap();
    let write = WriteOp::Extents { fork: Fork::DEFAULT, extents: vec![(0, Bytes::from("usurper!"))] };
    let (effects, data) = Effect::from_writes(vec![write], record::CHUNK_BYTES_MAX);
    let mut out = Vec::new();
    for format in [1, 2] {
        for sequence in sequence..sequence + 3 {
            let binding = Binding::new(format, &[0; 16], segment);
            let mut head = record::encode_transaction(&throne, &effects);
            record::put_version(&mut head, 77);
            let offset = payload_at + out.len() as u64;
            record::seal_head(&mut head, 8, Stamp { binding, offset, sequence, synced: sequence });
            out.extend_from_slice(&head);
            out.extend_from_slice(&data[0]);
            record::put_tail(&mut out, &head, binding);
        }
    }
    out
}

#[test]
fn a_record_in_a_payload_is_never_taken_for_one() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = open(&disk).unwrap();
    put(&store, "throne", 0, "king");
    let before = store.info().segment_list[0].written_bytes;
    let (segment, number) = first_segment(&store);
    // The head of "attack" is 64 bytes long: what an attacker finds out by trying.
    put(&store, "attack", 0, forgery(number, before + 64, 2));
    put(&store, "last", 0, "last");
    let bytes = disk.bytes(&segment).unwrap();
    let attack = bytes.windows(6).position(|window| window == b"attack").unwrap() as u64;
    assert_eq!(attack - 34, before);
    assert_eq!(&bytes[before as usize + 64..before as usize + 68], b"NREC");
    for at in before..before + 64 {
        for bit in 0..8 {
            let disk = copy(&disk);
            disk.flip(&segment, at, bit);
            let store = open(&disk).unwrap();
            assert_eq!(get(&store, "throne", 8).unwrap(), "king", "byte {at}, bit {bit}");
            assert_eq!(get(&store, "last", 4).unwrap(), "last", "byte {at}, bit {bit}");
        }
    }
    // The head and the tail both: the store says that a record is lost, and still takes nothing from a payload.
    let tail = before + 64 + forgery(number, 0, 0).len() as u64;
    let disk = copy(&disk);
    zero(&disk, &segment, before, 64);
    zero(&disk, &segment, tail, 64);
    assert_eq!(open(&disk).err().unwrap().kind, ErrorKind::Corrupt);
    repair(&disk);
    assert_eq!(get(&open(&disk).unwrap(), "throne", 8).unwrap(), "king");
}

#[test]
fn a_store_kept_in_itself_is_not_taken_for_its_log() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = open(&disk).unwrap();
    put(&store, "throne", 0, "king");
    put(&store, "throne", 0, "heir");
    let (segment, _) = first_segment(&store);
    let bytes = disk.bytes(&segment).unwrap();
    let used = store.info().segment_list[0].written_bytes as usize;
    put(&store, "backup", 0, bytes[128..used].to_vec());
    put(&store, "last", 0, "last");
    let disk = copy(&disk);
    zero(&disk, &segment, used as u64, 64);
    let store = open(&disk).unwrap();
    assert_eq!(get(&store, "throne", 4).unwrap(), "heir");
    assert_eq!(get(&store, "backup", 8).unwrap(), bytes[128..136]);
}

#[test]
fn an_opening_takes_no_segment_with_a_lost_header_for_an_unused_one() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = open(&disk).unwrap();
    for number in 0..6 {
        put(&store, &format!("object-{number}"), 0, vec![number; 25_000]);
    }
    let original = copy(&disk);
    drop(store);
    let segments = |disk: &SimDisk| -> Vec<(String, u64)> {
        disk.list().unwrap().into_iter().filter(|(name, _)| name.starts_with("segment-")).collect()
    };
    let used = |name: &str| original.bytes(name).unwrap()[..128].iter().any(|byte| *byte != 0);
    let names: Vec<String> = segments(&original).into_iter().map(|(name, _)| name).collect();
    let mut refused = 0;
    for name in names.iter().filter(|name| used(name)) {
        let disk = copy(&original);
        zero(&disk, name, 0, 128);
        match open(&disk) {
            // The next segment's header names it, so that it is replayed all the same.
            Ok(store) => {
                for number in 0..6 {
                    let found = get(&store, &format!("object-{number}"), 25_000);
                    assert_eq!(found.unwrap(), vec![number; 25_000], "{name} was given up");
                }
            }
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
                assert_eq!(segments(&disk), segments(&original), "an opening that fails removes nothing");
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 1, "nothing but its records tells that the newest of {names:?} was used");
}

#[test]
fn a_superblock_of_another_store_gives_up_no_segment() {
    let foreign = Arc::new(SimDisk::new(3, Faults::default()));
    drop(open(&foreign).unwrap());
    let disk = copy(&many_objects());
    let superblock = foreign.bytes("nacre-store").unwrap();
    disk.open("nacre-store").unwrap().write_at(0, &[superblock.into()]).unwrap();
    for (name, _) in disk.list().unwrap().iter().filter(|(name, _)| name.starts_with("snapshot-")) {
        disk.remove(name).unwrap();
    }
    let before = disk.list().unwrap();
    assert!(open(&disk).is_err());
    assert_eq!(disk.list().unwrap(), before);
}
