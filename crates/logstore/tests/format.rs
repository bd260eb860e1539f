//! The on-disk format: pinned by files of its first version, and safe to decode whatever stands there.
//!
//! `NACRE_GOLDEN=write cargo test -p nacre-logstore --test format` writes the files anew, which only a new version of
//! the format may do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use nacre_logstore::disk::Disk;
use nacre_logstore::record::{self, Body, Effect, Found, Moved, Stamp};
use nacre_logstore::sim::{Faults, SimDisk};
use nacre_logstore::snapshot::decode_snapshot;
use nacre_logstore::{Committer, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::testkit::conformance::compare;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::{ByteRange, ErrorKind, Fork, Key, ObjectId, ObjectStore, Write};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-1")
}

fn options() -> Options {
    Options { segment_bytes: 64 << 10, committer: Committer::Caller, ..Options::default() }
}

/// The history that the golden store holds: half of it in a snapshot, half in the log only.
fn history(mut each: impl FnMut(usize, nacre_object::testkit::history::Step)) -> Generator {
    // The first format knows no replacements of forks.
    let mut generator = Generator::new(1, Shape { replace_percent: 0, ..Shape::default() });
    for number in 0..80 {
        let step = generator.step();
        each(number, step);
    }
    generator
}

fn write_golden() {
    let _ = std::fs::remove_dir_all(golden());
    let store = LogStore::open(&golden(), options()).unwrap();
    history(|number, step| {
        let reply = store.apply(&step.object, step.transaction);
        store.turn().unwrap();
        assert_eq!(block_on(reply).is_ok(), step.expected.is_ok());
        if number == 40 {
            store.snapshot().unwrap();
        }
    });
    // Without closing it, which would write the index down: the log is to be replayed.
    std::mem::forget(store);
}

#[test]
fn a_store_of_the_first_format_opens_and_holds_what_it_held() {
    if std::env::var("NACRE_GOLDEN").is_ok_and(|value| value == "write") {
        write_golden();
    }
    // A store that is opened is changed: this is done on a copy.
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let store = LogStore::open(copy.path(), options()).unwrap();
    let opened = store.opened();
    assert!(
        opened.replayed_records > 10 && opened.healed_records == 0 && opened.torn_records == 0,
        "{opened:?}"
    );
    let generator = history(|_, _| {});
    compare(&store, generator.model(), generator.objects()).unwrap();
}

#[test]
fn a_store_of_a_newer_format_is_refused_with_a_sentence() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    drop(LogStore::open_on(Arc::clone(&disk) as _, options()).unwrap());
    let mut superblock = disk.bytes("nacre-store").unwrap();
    for copy in superblock.chunks_exact_mut(64) {
        copy[8] = 2;
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &copy[..60]) as u32;
        copy[60..].copy_from_slice(&crc.to_le_bytes());
    }
    disk.open("nacre-store").unwrap().write_at(0, &[superblock.into()]).unwrap();
    let error = LogStore::open_on(disk, options()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert_eq!(
        error.message,
        "nacre-store is of format 2, and this program knows formats up to 1; use a newer program"
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sealed(mut head: Vec<u8>, payload_bytes: usize) -> Bytes {
    record::seal_head(&mut head, payload_bytes, Stamp { segment: 7, sequence: 9, synced: 8 });
    head.into()
}

#[test]
fn heads_of_records_are_pinned() {
    let object = ObjectId::try_from("o").unwrap();
    let fork = Fork::try_from("f").unwrap();
    let key = Key::try_from("k").unwrap();
    let (effects, payload) = Effect::from_writes(vec![
        Write::Create,
        Write::Extents { fork: fork.clone(), extents: vec![(300, "abc".into()), (0, "d".into())] },
        Write::Zero { fork: fork.clone(), range: ByteRange::new(1, 2) },
        Write::Truncate { fork: fork.clone(), size: 5 },
        Write::RemoveFork { fork },
        Write::SetKey { key: key.clone(), value: "v".into() },
        Write::RemoveKey { key: key.clone() },
        Write::SetAttribute { name: key.clone(), value: "w".into() },
        Write::RemoveAttribute { name: key },
        Write::RaiseFence { token: 4 },
        Write::Remove,
    ]);
    assert_eq!(payload, ["abc", "d"]);
    let mut head = record::encode_transaction(&object, &effects);
    record::put_version(&mut head, 6);
    let head = sealed(head, 4);
    assert_eq!(
        hex(&head),
        include_str!("golden/transaction.hex").trim(),
        "the encoding of a transaction changed"
    );
    let Some(Found::Head(decoded)) = record::decode(&head, 7) else { panic!("the head is sound") };
    assert_eq!(decoded.body, Body::Transaction { object: object.clone(), version: 6, effects });
    assert_eq!(record::decode(&head, 8), None);

    let replace = Write::ReplaceFork { fork: Fork::DEFAULT, from: Fork::try_from("f").unwrap() };
    let (effects, _) = Effect::from_writes(vec![replace]);
    let mut head = record::encode_transaction(&object, &effects);
    record::put_version(&mut head, 6);
    let head = sealed(head, 0);
    assert_eq!(
        hex(&head),
        include_str!("golden/replacement.hex").trim(),
        "the encoding of a replacement changed"
    );
    let Some(Found::Head(decoded)) = record::decode(&head, 7) else { panic!("the head is sound") };
    assert_eq!(decoded.body, Body::Transaction { object: object.clone(), version: 6, effects });

    let golden = [include_str!("golden/moves.hex"), include_str!("golden/moves-from.hex")];
    for (source, golden) in [None, Some((5, 4096))].into_iter().zip(golden) {
        let (object, fork) = (object.clone(), Fork::DEFAULT);
        let moved = Moved { object, fork, start: 1 << 40, len: 2, version: 3, crc: 0xdead_beef, source };
        let head = sealed(record::encode_moves(std::slice::from_ref(&moved)), 2);
        assert_eq!(hex(&head), golden.trim(), "the encoding of moves changed");
        let Some(Found::Head(decoded)) = record::decode(&head, 7) else { panic!("the head is sound") };
        assert_eq!(decoded.body, Body::Moves(vec![moved]));
    }
}

/// What the fuzzers run, on mutations of sound input.
#[test]
fn decoders_survive_anything() {
    let mut rng = SmallRng::seed_from_u64(3);
    let files: Vec<(PathBuf, Bytes)> = std::fs::read_dir(golden())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(path).unwrap().into()))
        .collect();
    let snapshot = &files.iter().find(|(path, _)| path.ends_with("snapshot-0000000001")).unwrap().1;
    let segment = &files.iter().find(|(path, _)| path.ends_with("segment-0000000001")).unwrap().1;
    assert!(decode_snapshot(snapshot.clone()).is_ok());
    for _ in 0..20_000 {
        let mut bytes = snapshot.to_vec();
        mutate(&mut rng, &mut bytes);
        // A snapshot that is not quite the same is never taken for sound, because every frame has a checksum.
        if bytes != snapshot[..] {
            assert!(decode_snapshot(bytes.into()).is_err());
        }
        nacre_logstore::fuzz::snapshot_items(&mutated(&mut rng, snapshot));
        let at = rng.random_range(128..4096usize) & !7;
        let mut bytes = segment[at..at + 512].to_vec();
        mutate(&mut rng, &mut bytes);
        nacre_logstore::fuzz::record(&bytes);
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
