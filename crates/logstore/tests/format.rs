//! The on-disk format: pinned by files of each of its versions, and safe to decode from any bytes.
//!
//! `NACRE_GOLDEN=write cargo test -p nacre-logstore --test format` writes the files of the newest version again, which
//! only a new version of the format may do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use nacre_logstore::disk::Disk;
use nacre_logstore::record::{self, Binding, Body, Effect, Found, Moved, Repeatable, Stamp};
use nacre_logstore::sim::{Faults, SimDisk};
use nacre_logstore::snapshot::decode_snapshot;
use nacre_logstore::{Committer, FORMAT_VERSION, LogStore, Options};
use nacre_object::testkit::conformance::{compare, compare_copies};
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::{ObjectState, block_on};
use nacre_object::window::{Recall, Written};
use nacre_object::{
    Answer, ByteRange, ErrorKind, Fork, Key, KeyRange, Lease, ObjectId, ObjectStore, Once, Outcome, ReadOp,
    Transaction, WriteOp, WriteToken,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn golden(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/format-{format}"))
}

/// Returns the folder of a store of format 2 in which forks replaced each other, which no store of the first format
/// has.
fn golden_with_replacements() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-2-replacements")
}

/// Copies a store: opening one changes it, and locks it until it is closed.
fn copy_of(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// Returns the shape of the history that a golden store holds: what there was when its format was the newest.
fn shape(format: u32, replace_percent: u32) -> Shape {
    let is_recent = format >= 3;
    let older = Shape::default();
    let (objects, remove_percent) = if format >= 4 { (6, 15) } else { (older.objects, older.remove_percent) };
    Shape {
        objects,
        remove_percent,
        replace_percent,
        version_guards: is_recent,
        key_versions_and_sessions: is_recent,
        appends: false,
        ..Shape::default()
    }
}

/// The percentage of replacements of forks in the histories of the golden stores that have them.
const REPLACE_PERCENT: u32 = 15;

/// Returns the golden stores: their folders, and the shapes of their histories.
fn golden_stores() -> Vec<(PathBuf, Shape)> {
    vec![
        (golden(1), shape(1, 0)),
        (golden(2), shape(2, 0)),
        (golden_with_replacements(), shape(2, REPLACE_PERCENT)),
        (golden(3), shape(3, REPLACE_PERCENT)),
        (golden(4), shape(4, REPLACE_PERCENT)),
    ]
}

fn options() -> Options {
    Options { segment_bytes: 64 << 10, committer: Committer::Caller, ..Options::default() }
}

/// Returns whether removed objects are forgotten behind a step of the history of a shape: before format 4 none were.
fn forgets_behind(shape: &Shape, number: usize) -> bool {
    shape.remove_percent > Shape::default().remove_percent && number % 25 == 24
}

/// Runs the history that a golden store holds: half of it in a snapshot, half in the log only.
fn history(shape: Shape, mut each: impl FnMut(usize, nacre_object::testkit::history::Step)) -> Generator {
    let mut generator = Generator::new(1, shape.clone());
    let mut floor = 0;
    for number in 0..80 {
        let step = generator.step();
        let object = step.object.clone();
        each(number, step);
        let state = generator.model().state(&object);
        if state.leaves_a_version_only() {
            floor = floor.max(state.version());
        }
        if forgets_behind(&shape, number) {
            generator.model_mut().raise_floor(floor);
        }
    }
    generator
}

/// Returns the first attempt at the write with a number of the history.
fn first(number: usize) -> Once {
    let token = WriteToken { writer: *b"the golden store", sequence: number as u64 };
    Once { token, since: None, lease: Lease::unlimited() }
}

fn write_golden(folder: &Path, shape: Shape) {
    let _ = std::fs::remove_dir_all(folder);
    let store = LogStore::open(folder, options()).unwrap();
    history(shape.clone(), |number, step| {
        let reply = store.apply_once(&step.object, step.transaction, first(number));
        store.turn().unwrap();
        assert_eq!(block_on(reply).is_ok(), step.expected.is_ok());
        if forgets_behind(&shape, number) {
            store.forget_removed();
            store.turn().unwrap();
        }
        if number == 40 {
            store.snapshot().unwrap();
        }
    });
    // Without closing it, which would write the index down: the log is to be replayed.
    std::mem::forget(store);
    // What is in reserve has no meaning.
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("reserve-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

#[test]
fn stores_of_all_formats_open_and_hold_what_they_held() {
    if std::env::var("NACRE_GOLDEN").is_ok_and(|value| value == "write") {
        write_golden(&golden(FORMAT_VERSION), shape(FORMAT_VERSION, REPLACE_PERCENT));
    }
    for (folder, shape) in golden_stores() {
        let copy = copy_of(&folder);
        let store = LogStore::open(copy.path(), options()).unwrap();
        let opened = store.opened();
        assert!(
            opened.replayed_records > 10 && opened.healed_records == 0 && opened.torn_records == 0,
            "{opened:?}"
        );
        let is_recent = shape.key_versions_and_sessions;
        let generator = history(shape, |_, _| {});
        compare_copies(&store, generator.model(), generator.objects()).unwrap();
        if is_recent {
            compare(&store, generator.model(), generator.objects()).unwrap();
            let objects: Vec<&ObjectState> = generator.model().objects().map(|(_, state)| state).collect();
            assert!(objects.iter().any(|state| !state.fences().sessions.is_empty()), "sessions are fenced");
            let differ =
                |state: &ObjectState| state.keys().keys().any(|key| state.key_version(key) < state.version());
            assert!(objects.iter().copied().any(differ), "keys are older than their objects");
        }
        assert_eq!(store.scrub(|_| {}).unwrap().findings, []);
        let floor = generator.model().floor();
        assert_eq!(floor > 0, folder == golden(4), "only the newest forgets");
        let never = ObjectId::try_from("never made").unwrap();
        let looked = block_on(store.apply(&never, Transaction::new().read(ReadOp::Stat))).unwrap();
        assert!(matches!(looked, Outcome::Done(done) if done.version == floor && !done.existed));
    }
}

/// Returns the versions of an object's keys, by their names.
fn key_versions(store: &LogStore, object: &ObjectId) -> BTreeMap<Key, u64> {
    let read = ReadOp::VersionedKeys { range: KeyRange::all(), limit: u32::MAX, values: false };
    let outcome = block_on(store.apply(object, Transaction::new().read(read))).unwrap();
    let Outcome::Done(done) = outcome else { panic!("nothing was guarded") };
    let [Answer::VersionedKeys(page)] = &done.answers[..] else { panic!("{:?}", done.answers) };
    page.entries.iter().map(|(key, found)| (key.clone(), found.version)).collect()
}

#[test]
fn keys_of_older_formats_are_as_old_as_their_object_was_and_keep_that_version() {
    let mut later = 0;
    for (folder, shape) in golden_stores().into_iter().take(3) {
        let copy = copy_of(&folder);
        let generator = history(shape, |_, _| {});
        let mut found = BTreeMap::new();
        for opening in 0..3 {
            let store = LogStore::open(copy.path(), options()).unwrap();
            for (object, state) in generator.model().objects() {
                let versions = key_versions(&store, object);
                assert!(versions.keys().eq(state.keys().keys()), "no key is lost or made up");
                for (key, version) in &versions {
                    // A key from the snapshot is not older than it was, and not newer than its object.
                    let true_version = state.key_version(key);
                    assert!((true_version..=state.version()).contains(version), "{object} {key:?}");
                    later += u32::from(*version > true_version);
                }
                let before = found.entry(object.clone()).or_insert_with(|| versions.clone());
                assert_eq!(*before, versions, "opening {opening} changes no version");
            }
            store.close().unwrap();
        }
    }
    assert!(later > 0, "the snapshots of older formats do not tell the versions of keys");
}

#[test]
fn stores_of_older_formats_go_on_in_the_newest() {
    for (format, segment) in [(1, "segment-0000000001"), (2, "segment-0000000001"), (3, "segment-0000000003")]
    {
        goes_on_in_the_newest(format, segment);
    }
}

fn goes_on_in_the_newest(older: u32, older_segment: &str) {
    let first = copy_of(&golden(older));
    let replace_percent = if older < 3 { 0 } else { REPLACE_PERCENT };
    let mut generator = history(shape(older, replace_percent), |_, _| {});
    let store = LogStore::open(first.path(), options()).unwrap();
    assert!(store.opened().replayed_records > 0, "{:?}", store.opened());
    for _ in 0..30 {
        let step = generator.step();
        let reply = store.apply(&step.object, step.transaction);
        store.turn().unwrap();
        assert_eq!(block_on(reply).is_ok(), step.expected.is_ok());
    }
    // The process is killed. What it left is a segment of the older format, one of the newest, and snapshots of that.
    let second = copy_of(first.path());
    std::mem::forget(store);
    let store = LogStore::open(second.path(), options()).unwrap();
    assert!(store.opened().replayed_records > 0, "{:?}", store.opened());
    compare_copies(&store, generator.model(), generator.objects()).unwrap();
    assert_eq!(store.scrub(|_| {}).unwrap().findings, []);
    let format = |name: &str| {
        let bytes = std::fs::read(second.path().join(name)).unwrap();
        u32::from_le_bytes(*bytes[8..].first_chunk().unwrap())
    };
    assert_eq!(format("nacre-store"), FORMAT_VERSION);
    assert_eq!(format(older_segment), older);
    let names =
        std::fs::read_dir(second.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string());
    let mut segments: Vec<String> = names.map(Result::unwrap).collect();
    segments.retain(|name| name.starts_with("segment-") && name != older_segment);
    assert!(segments.iter().any(|name| format(name) == FORMAT_VERSION), "{segments:?}");
    // What the cleaner moves out of the older segments is as it was.
    store.compact().unwrap();
    drop(store);
    let store = LogStore::open(second.path(), options()).unwrap();
    compare_copies(&store, generator.model(), generator.objects()).unwrap();
}

#[test]
fn a_store_of_a_newer_format_is_refused_with_a_sentence() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    drop(LogStore::open_on(Arc::clone(&disk) as _, options()).unwrap());
    let mut superblock = disk.bytes("nacre-store").unwrap();
    for copy in superblock.chunks_exact_mut(64) {
        copy[8] = FORMAT_VERSION as u8 + 1;
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &copy[..60]) as u32;
        copy[60..].copy_from_slice(&crc.to_le_bytes());
    }
    disk.open("nacre-store").unwrap().write_at(0, &[superblock.into()]).unwrap();
    let error = LogStore::open_on(disk, options()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert_eq!(
        error.message,
        "nacre-store is of format 5, and this program knows formats up to 4; use a newer program"
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const STORE: &[u8; 16] = b"sixteen bytes id";

fn sealed(mut head: Vec<u8>, format: u32, payload_bytes: usize) -> Bytes {
    let binding = Binding::new(format, STORE, 7);
    record::seal_head(&mut head, payload_bytes, Stamp { binding, offset: 4096, sequence: 9, synced: 8 });
    head.into()
}

#[test]
fn heads_of_records_are_pinned() {
    let object = ObjectId::try_from("o").unwrap();
    let fork = Fork::try_from("f").unwrap();
    let key = Key::try_from("k").unwrap();
    let (effects, payload) = Effect::from_writes(
        vec![
            WriteOp::Create,
            WriteOp::Extents { fork: fork.clone(), extents: vec![(300, "abc".into()), (0, "d".into())] },
            WriteOp::Zero { fork: fork.clone(), range: ByteRange::new(1, 2) },
            WriteOp::Truncate { fork: fork.clone(), size: 5 },
            WriteOp::RemoveFork { fork },
            WriteOp::SetKey { key: key.clone(), value: "v".into() },
            WriteOp::RemoveKey { key: key.clone() },
            WriteOp::SetAttribute { name: key.clone(), value: "w".into() },
            WriteOp::RemoveAttribute { name: key },
            WriteOp::RaiseFence { token: 4 },
            WriteOp::Remove,
        ],
        record::CHUNK_BYTES_MAX,
    );
    assert_eq!(payload, ["abc", "d"]);
    let moved = Moved {
        object: object.clone(),
        fork: Fork::DEFAULT,
        start: 1 << 40,
        len: 2,
        version: 3,
        crc: 0xdead_beef,
        source: None,
    };
    let golden = [
        (1, include_str!("golden/transaction.hex"), include_str!("golden/moves.hex")),
        (2, include_str!("golden/transaction-2.hex"), include_str!("golden/moves-2.hex")),
    ];
    for (format, transaction, moves) in golden {
        let mut head = record::encode_transaction(&object, &effects);
        record::put_version(&mut head, 6);
        let head = sealed(head, format, 4);
        assert_eq!(hex(&head), transaction.trim(), "the encoding of a transaction changed");
        let binding = Binding::new(format, STORE, 7);
        let Some(Found::Head(decoded)) = record::decode(&head, binding, 4096) else {
            panic!("the head is sound")
        };
        let body = Body::Transaction {
            object: object.clone(),
            version: 6,
            effects: effects.clone(),
            repeatable: None,
        };
        assert_eq!(decoded.body, body);
        assert_eq!(record::decode(&head, Binding::new(format, STORE, 8), 4096), None);
        let head = sealed(record::encode_moves(std::slice::from_ref(&moved)), format, 2);
        assert_eq!(hex(&head), moves.trim(), "the encoding of moves changed");
        let Some(Found::Head(decoded)) = record::decode(&head, binding, 4096) else {
            panic!("the head is sound")
        };
        assert_eq!(decoded.body, Body::Moves(vec![moved.clone()]));
    }
}

/// Pins the heads that only format 2 has.
#[test]
fn heads_of_replacements_and_of_moves_with_sources_are_pinned() {
    let object = ObjectId::try_from("o").unwrap();
    let replace = WriteOp::ReplaceFork { fork: Fork::DEFAULT, from: Fork::try_from("f").unwrap() };
    let (effects, _) = Effect::from_writes(vec![replace], record::CHUNK_BYTES_MAX);
    let mut head = record::encode_transaction(&object, &effects);
    record::put_version(&mut head, 6);
    let moved = Moved {
        object: object.clone(),
        fork: Fork::DEFAULT,
        start: 1 << 40,
        len: 2,
        version: 3,
        crc: 0xdead_beef,
        source: Some((5, 4096)),
    };
    let bodies = [
        (
            head,
            0,
            Body::Transaction { object, version: 6, effects, repeatable: None },
            include_str!("golden/replacement-2.hex"),
        ),
        (
            record::encode_moves(std::slice::from_ref(&moved)),
            2,
            Body::Moves(vec![moved]),
            include_str!("golden/moves-from-2.hex"),
        ),
    ];
    for (head, payload_bytes, body, golden) in bodies {
        let head = sealed(head, 2, payload_bytes);
        assert_eq!(hex(&head), golden.trim(), "the encoding changed");
        let Some(Found::Head(decoded)) = record::decode(&head, Binding::new(2, STORE, 7), 4096) else {
            panic!("the head is sound")
        };
        assert_eq!(decoded.body, body);
    }
}

/// Pins the head that only format 3 has.
#[test]
fn heads_of_fences_of_sessions_are_pinned() {
    let object = ObjectId::try_from("o").unwrap();
    let fence = WriteOp::FenceSession { session: 300 };
    let (effects, _) = Effect::from_writes(vec![fence], record::CHUNK_BYTES_MAX);
    let mut head = record::encode_transaction(&object, &effects);
    record::put_version(&mut head, 6);
    let head = sealed(head, 3, 0);
    assert_eq!(hex(&head), include_str!("golden/fence-session-3.hex").trim(), "the encoding changed");
    let Some(Found::Head(decoded)) = record::decode(&head, Binding::new(3, STORE, 7), 4096) else {
        panic!("the head is sound")
    };
    assert_eq!(decoded.body, Body::Transaction { object, version: 6, effects, repeatable: None });
}

/// Pins the head that only format 3 has, for writes that may be repeated.
#[test]
fn the_head_of_a_transaction_with_a_token_is_pinned() {
    let object = ObjectId::try_from("o").unwrap();
    let effects = vec![Effect::Create];
    let plain = {
        let mut head = record::encode_transaction(&object, &effects);
        record::put_version(&mut head, 6);
        head
    };
    let token = WriteToken { writer: *b"sixteen bytes...", sequence: 300 };
    let repeatable = Repeatable { token, existed: true };
    let mut head = plain.clone();
    record::put_repeatable(&mut head, &repeatable);
    assert_eq!(head.len(), plain.len() + 16 + 2, "the token, and nothing else");
    assert!(record::is_repeatable(&head) && !record::is_repeatable(&plain));
    let head = sealed(head, 3, 0);
    let golden = include_str!("golden/transaction-once-3.hex");
    assert_eq!(hex(&head), golden.trim(), "the encoding changed");
    let Some(Found::Head(decoded)) = record::decode(&head, Binding::new(3, STORE, 7), 4096) else {
        panic!("the head is sound")
    };
    let body = Body::Transaction { object, version: 6, effects, repeatable: Some(repeatable) };
    assert_eq!(decoded.body, body);
}

/// Pins the record that only format 4 has.
#[test]
fn the_record_of_a_floor_is_pinned() {
    let head = sealed(record::encode_floor(300), 4, 0);
    assert_eq!(hex(&head), include_str!("golden/floor-4.hex").trim(), "the encoding changed");
    let Some(Found::Head(decoded)) = record::decode(&head, Binding::new(4, STORE, 7), 4096) else {
        panic!("the head is sound")
    };
    assert_eq!(decoded.body, Body::Floor(300));
}

#[test]
fn a_store_of_format_3_recalls_its_writes() {
    let copy = copy_of(&golden(3));
    let store = LogStore::open(copy.path(), options()).unwrap();
    let mut applied = 0;
    history(shape(3, REPLACE_PERCENT), |number, step| {
        let found = store.recall(&first(number).token, 0);
        match step.expected {
            Ok(Outcome::Done(done)) if !step.transaction.writes.is_empty() => {
                applied += 1;
                assert_eq!(found, Recall::Applied { version: done.version, existed: done.existed });
            }
            _ => assert_eq!(found, Recall::New),
        }
    });
    assert_eq!(store.window().unwrap().position, applied);
}

/// The first programs of format 3 wrote the latest tokens when a store was closed.
#[test]
fn a_record_of_tokens_is_still_read() {
    let mut head = record::encode_mark();
    head.pop();
    // Two of them, from position 5 on: the numbers are twice those of the writes, plus one if the object existed.
    head.extend_from_slice(&[6, 5, 2]);
    for (number, version) in [(14, 9), (17, 10)] {
        head.extend_from_slice(b"the golden store");
        head.extend_from_slice(&[number, version]);
    }
    let head = sealed(head, 3, 0);
    let Some(Found::Head(found)) = record::decode(&head, Binding::new(3, STORE, 7), 4096) else {
        panic!("a sound head")
    };
    let written = |number, version, existed| Written { token: first(number).token, version, existed };
    let writes = vec![written(7, 9, false), written(8, 10, true)];
    assert_eq!(found.body, Body::Tokens { first: 5, writes });
}

#[test]
fn a_head_is_sound_in_its_own_store_and_place_only() {
    let object = ObjectId::try_from("o").unwrap();
    let mut head = record::encode_transaction(&object, &[Effect::Create]);
    record::put_version(&mut head, 6);
    let head = sealed(head, 2, 0);
    let own = Binding::new(2, STORE, 7);
    assert!(record::decode(&head, own, 4096).is_some());
    assert_eq!(record::decode(&head, own, 4104), None, "a copy within the segment");
    assert_eq!(record::decode(&head, Binding::new(2, STORE, 8), 4096), None, "a copy in another segment");
    assert_eq!(record::decode(&head, Binding::new(2, b"another store id", 7), 4096), None);
    assert_eq!(record::decode(&head, Binding::new(1, STORE, 7), 4096), None);
}

/// Runs the fuzzers' entry points on mutations of sound input.
#[test]
fn decoders_survive_anything() {
    let mut rng = SmallRng::seed_from_u64(3);
    for format in 1..=FORMAT_VERSION {
        let file = |kind: &str| {
            let mut files: Vec<PathBuf> =
                std::fs::read_dir(golden(format)).unwrap().map(|entry| entry.unwrap().path()).collect();
            files.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with(kind));
            Bytes::from(std::fs::read(files.iter().max().unwrap()).unwrap())
        };
        let store: [u8; 16] = *file("nacre-store")[12..].first_chunk().unwrap();
        let (snapshot, segment) = (file("snapshot-"), file("segment-"));
        assert!(decode_snapshot(snapshot.clone(), &store).is_ok());
        for _ in 0..20_000 {
            let mut bytes = snapshot.to_vec();
            mutate(&mut rng, &mut bytes);
            // A snapshot that is not quite the same is never taken for sound, because every frame has a checksum.
            if bytes != snapshot[..] {
                assert!(decode_snapshot(bytes.into(), &store).is_err());
            }
            nacre_logstore::fuzz::snapshot_items(&mutated(&mut rng, &snapshot));
            let at = rng.random_range(128..4096usize) & !7;
            let mut bytes = segment[at..at + 512].to_vec();
            mutate(&mut rng, &mut bytes);
            nacre_logstore::fuzz::record(&bytes);
        }
    }
}

fn mutated(rng: &mut SmallRng, bytes: &[u8]) -> Vec<u8> {
    let from = rng.random_range(0..bytes.len());
    let mut bytes = bytes[from..].to_vec();
    mutate(rng, &mut bytes);
    bytes
}

fn mutate(rng: &mut SmallRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(1..4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..4) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = [0, 0x7f, 0x80, 0xff][rng.random_range(0..4)],
            2 => bytes.truncate(at),
            _ => bytes.insert(at, rng.random()),
        }
    }
}
