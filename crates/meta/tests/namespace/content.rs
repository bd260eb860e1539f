//! Content of files, against a vector of bytes.

use bytes::Bytes;
use nacre_meta::inode::{Ino, InodeKind, Layout};
use nacre_meta::{Creation, Credentials, Error};
use nacre_object::{Answer, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, Transaction};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::calls::open;
use crate::scheduler::{SlowStore, at_once};

const LAYOUTS: [Layout; 3] = [
    Layout { unit_bytes: 4096, width: 1, object_bytes: 4096 },
    Layout { unit_bytes: 4096, width: 3, object_bytes: 8192 },
    Layout { unit_bytes: 8192, width: 2, object_bytes: 1 << 20 },
];

#[test]
fn every_byte_has_one_place() {
    for layout in LAYOUTS {
        let mut places = std::collections::HashSet::new();
        let mut at = 0;
        for piece in layout.pieces(0, 100_000) {
            assert_eq!(piece.at, at);
            at += piece.len;
            assert!(piece.offset + piece.len <= layout.object_bytes);
            assert!(piece.object < layout.objects(at), "{layout:?} {piece:?}");
            assert!(layout.objects(at) <= layout.objects(100_000));
            for byte in (piece.offset..piece.offset + piece.len).step_by(512) {
                assert!(places.insert((piece.object, byte)), "{layout:?} {piece:?}");
            }
        }
        assert_eq!(at, 100_000);
        assert_eq!((layout.objects(0), layout.objects(1)), (0, 1));
    }
}

#[test]
fn files_hold_what_was_written() {
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let store = SlowStore::default();
        at_once(&store, async {
            let (rank, root) = (open(&store).await, Credentials::root());
            let layout = LAYOUTS[random.random_range(0..LAYOUTS.len())];
            let creation = Creation { layout: Some(layout), ..Creation::new(InodeKind::Directory, 0o755) };
            let directory = rank.create(&root, Ino::ROOT, b"d", creation).await.unwrap().ino;
            let file =
                rank.create(&root, directory, b"f", Creation::new(InodeKind::File, 0o644)).await.unwrap();
            assert_eq!(file.layout, layout);
            let file = file.ino;
            let mut model: Vec<u8> = Vec::new();
            for step in 0..30_u8 {
                let offset = random.random_range(0..60_000_usize);
                let data = vec![step + 1; random.random_range(1..20_000)];
                match random.random_range(0..7) {
                    0 | 1 => {
                        model.resize(model.len().max(offset + data.len()), 0);
                        model[offset..offset + data.len()].copy_from_slice(&data);
                        rank.write_file(file, offset as u64, data.into()).await.unwrap();
                    }
                    2 => {
                        let at = rank.append_file(file, Bytes::from(data.clone())).await.unwrap();
                        assert_eq!(at as usize, model.len());
                        model.extend(data);
                    }
                    3 => {
                        let size = if random.random_bool(0.2) { 0 } else { offset };
                        model.resize(size, 0);
                        rank.truncate(&root, file, size as u64).await.unwrap();
                    }
                    4 => {
                        let mut put = rank.put(&root, file).await.unwrap();
                        for part in data.chunks(5000) {
                            put.write(part).await.unwrap();
                        }
                        let before = rank.read_file(file, 0, 1 << 20).await.unwrap();
                        assert_eq!(before, model, "until the end there is the old content");
                        if random.random_bool(0.3) {
                            put.abort().await.unwrap();
                        } else {
                            assert_eq!(put.commit().await.unwrap() as usize, data.len());
                            model = data;
                        }
                    }
                    _ => {
                        let found = rank.read_file(file, offset as u64, data.len()).await.unwrap();
                        let end = model.len().min(offset + data.len());
                        assert_eq!(found, model[offset.min(end)..end], "seed {seed}, step {step}");
                    }
                }
                assert_eq!(rank.stat(file).await.unwrap().size as usize, model.len());
            }
            assert_eq!(rank.read_file(file, 0, 1 << 20).await.unwrap(), model, "seed {seed}");
            let report = rank.check(false).await.unwrap();
            assert!(report.findings.is_empty(), "seed {seed}: {report:?}");
            rank.unlink(&root, directory, b"f").await.unwrap();
            let data = store.objects().into_iter().filter(|object| object.starts_with("nacre/fs/d/"));
            assert_eq!(data.collect::<Vec<_>>(), Vec::<String>::new(), "seed {seed}");
        });
    }
}

#[test]
fn a_put_that_is_left_alone_is_tidied_up_and_a_late_one_fails() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let file =
            rank.create(&root, Ino::ROOT, b"f", Creation::new(InodeKind::File, 0o644)).await.unwrap().ino;
        rank.write_file(file, 0, Bytes::from_static(b"old")).await.unwrap();
        let other = open(&store).await;
        let mut left = rank.put(&root, file).await.unwrap();
        left.write(&vec![7; 9 << 20]).await.unwrap();
        let objects = store.objects().len();
        // Somebody thinks that the rank has gone away.
        assert!(other.check(true).await.unwrap().is_clean());
        assert!(store.objects().len() < objects);
        assert_eq!(left.commit().await.err(), Some(Error::Stale));
        assert_eq!(other.read_file(file, 0, 9).await.unwrap(), "old");
        assert!(other.check(true).await.unwrap().is_clean());
        let report = other.check(false).await.unwrap();
        assert!(report.findings.is_empty(), "{report:?}");
    });
}

#[test]
fn puts_that_are_dropped_are_found_by_whoever_checks_after_their_rank_was_closed() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let file =
            rank.create(&root, Ino::ROOT, b"f", Creation::new(InodeKind::File, 0o644)).await.unwrap().ino;
        rank.write_file(file, 0, Bytes::from_static(b"old")).await.unwrap();
        let before = store.objects().len();
        for mut put in
            [rank.put(&root, file).await.unwrap(), rank.put_new(&root, Ino::ROOT, b"g", 0o644).await.unwrap()]
        {
            put.write(&vec![7; 9 << 20]).await.unwrap();
        }
        rank.close().await.unwrap();
        let other = open(&store).await;
        assert_eq!(other.ranks().await.unwrap().len(), 1);
        let report = other.check(false).await.unwrap();
        assert!(report.findings.is_empty(), "{report:?}");
        // Each has passed on two rounds of stripes over four objects.
        let left: Vec<_> = report.unfinished.iter().map(|left| (left.objects, left.bytes)).collect();
        assert_eq!((left, report.files, report.objects), (vec![(4, 8 << 20); 2], 1, 1));
        assert!(other.check(true).await.unwrap().is_clean());
        assert!(other.check(false).await.unwrap().unfinished.is_empty());
        other.close().await.unwrap();
        assert_eq!(other.ranks().await.unwrap(), [0_u64; 0]);
        assert_eq!(store.objects().len(), before, "{:?}", store.objects());
        assert_eq!(other.read_file(file, 0, 9).await.unwrap(), "old");
    });
}

#[test]
fn a_new_file_is_seen_when_it_is_whole_or_never() {
    const BYTES: usize = 9 << 20;
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, other, root) = (open(&store).await, open(&store).await, Credentials::root());
        let mut put = rank.put_new(&root, Ino::ROOT, b"f", 0o640).await.unwrap();
        put.write(&vec![7; BYTES]).await.unwrap();
        assert_eq!(other.lookup(&root, Ino::ROOT, b"f").await.err(), Some(Error::NotFound));
        // A look at the namespace meanwhile finds nothing wrong with it.
        let report = other.check(false).await.unwrap();
        assert!(report.is_clean() && report.findings.is_empty(), "{report:?}");
        assert_eq!(put.commit().await.unwrap(), BYTES as u64);
        let found = other.lookup(&root, Ino::ROOT, b"f").await.unwrap();
        assert_eq!((found.mode & 0o777, found.size), (0o640, BYTES as u64));
        assert_eq!(other.read_file(found.ino, 0, BYTES).await.unwrap(), vec![7; BYTES]);
        assert_eq!(rank.put_new(&root, Ino::ROOT, b"f", 0o640).await.err(), Some(Error::Exists));

        let objects = store.objects().len();
        let mut put = rank.put_new(&root, Ino::ROOT, b"g", 0o644).await.unwrap();
        put.write(&vec![7; BYTES]).await.unwrap();
        put.abort().await.unwrap();
        assert_eq!(store.objects().len(), objects, "{:?}", store.objects());

        // Of two that come together, the one that ends last replaces the other's content.
        let mut first = rank.put_new(&root, Ino::ROOT, b"h", 0o644).await.unwrap();
        let mut second = other.put_new(&root, Ino::ROOT, b"h", 0o644).await.unwrap();
        first.write(b"first").await.unwrap();
        second.write(b"second").await.unwrap();
        first.commit().await.unwrap();
        let file = rank.lookup(&root, Ino::ROOT, b"h").await.unwrap().ino;
        assert_eq!(second.commit().await.unwrap(), 6);
        assert_eq!(rank.lookup(&root, Ino::ROOT, b"h").await.unwrap().ino, file);
        assert_eq!(rank.read_file(file, 0, 9).await.unwrap(), "second");

        // What is no file takes no content.
        let put = rank.put_new(&root, Ino::ROOT, b"i", 0o644).await.unwrap();
        other.create(&root, Ino::ROOT, b"i", Creation::new(InodeKind::Directory, 0o755)).await.unwrap();
        assert_eq!(put.commit().await.err(), Some(Error::Exists));

        rank.close().await.unwrap();
        other.close().await.unwrap();
        let report = open(&store).await.check(false).await.unwrap();
        assert!(report.is_clean() && report.findings.is_empty(), "{report:?}");
        assert_eq!((report.files, report.directories, report.ranks), (2, 2, 0));
    });
}

#[test]
fn one_content_is_read_while_the_file_grows_and_not_after_it_was_replaced() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let file =
            rank.create(&root, Ino::ROOT, b"f", Creation::new(InodeKind::File, 0o644)).await.unwrap().ino;
        rank.write_file(file, 0, Bytes::from_static(b"old")).await.unwrap();
        let (content, bytes) = rank.read_file_content(file, None, 0, 2).await.unwrap();
        assert_eq!(bytes, "ol");
        rank.append_file(file, Bytes::from_static(b"er")).await.unwrap();
        let (same, bytes) = rank.read_file_content(file, Some(content), 2, 9).await.unwrap();
        assert_eq!((same, &bytes[..]), (content, &b"der"[..]));
        let mut put = rank.put(&root, file).await.unwrap();
        put.write(b"younger").await.unwrap();
        let (same, bytes) = rank.read_file_content(file, Some(content), 0, 9).await.unwrap();
        assert_eq!((same, &bytes[..]), (content, &b"older"[..]), "until the end there is the old content");
        put.commit().await.unwrap();
        for offset in [0, 2, 99] {
            let read = rank.read_file_content(file, Some(content), offset, 9).await;
            assert_eq!(read.err(), Some(Error::Stale), "{offset}");
        }
        let (content, bytes) = rank.read_file_content(file, None, 0, 9).await.unwrap();
        assert_eq!(bytes, "younger");
        rank.truncate(&root, file, 0).await.unwrap();
        assert_eq!(rank.read_file_content(file, Some(content), 0, 9).await.err(), Some(Error::Stale));
        assert_eq!(rank.read_file(file, 0, 9).await.unwrap(), "");
    });
}

#[test]
fn a_byte_far_behind_the_end_costs_no_more_than_a_byte() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let created =
            rank.create(&root, Ino::ROOT, b"f", Creation::new(InodeKind::File, 0o644)).await.unwrap();
        let far = (1 << 62) + 12_345;
        rank.write_file(created.ino, 10, Bytes::from_static(b"near")).await.unwrap();
        rank.write_file(created.ino, far, Bytes::from_static(b"far")).await.unwrap();
        assert_eq!(&rank.read_file(created.ino, far - 1, 10).await.unwrap()[..], b"\0far");
        // What stands behind an end is not seen when the file grows over it.
        rank.truncate(&root, created.ino, 12).await.unwrap();
        rank.truncate(&root, created.ino, u64::MAX >> 1).await.unwrap();
        assert_eq!(&rank.read_file(created.ino, 10, 4).await.unwrap()[..], b"ne\0\0");
        assert_eq!(&rank.read_file(created.ino, far, 3).await.unwrap()[..], b"\0\0\0");
        rank.unlink(&root, Ino::ROOT, b"f").await.unwrap();
        assert!(store.objects().iter().all(|object| !object.contains("/d/")), "{:?}", store.objects());
    });
}

#[test]
fn a_file_that_many_puts_were_left_in_says_what_to_do() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let created =
            rank.create(&root, Ino::ROOT, b"f", Creation::new(InodeKind::File, 0o644)).await.unwrap();
        rank.write_file(created.ino, 0, Bytes::from_static(b"old")).await.unwrap();
        let left = open(&store).await;
        for _ in 0..15 {
            left.put(&root, created.ino).await.unwrap();
        }
        let error = rank.put(&root, created.ino).await.err().unwrap().to_string();
        assert!(error.contains("nacre fs check --mend"), "{error}");
        rank.check(true).await.unwrap();
        let mut put = rank.put(&root, created.ino).await.unwrap();
        put.write(b"new").await.unwrap();
        put.commit().await.unwrap();
        assert_eq!(&rank.read_file(created.ino, 0, 10).await.unwrap()[..], b"new");
    });
}

#[test]
fn puts_that_may_not_begin_pile_up_nothing() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let created =
            rank.create(&root, Ino::ROOT, b"f", Creation::new(InodeKind::File, 0o600)).await.unwrap();
        for _ in 0..20 {
            let put = rank.put(&Credentials::new(7, 7), created.ino).await;
            assert_eq!(put.err(), Some(Error::Denied));
        }
        let ranks = rank.ranks().await.unwrap();
        let [number] = ranks[..] else { panic!("{ranks:?}") };
        let log: ObjectId = format!("nacre/fs/r/{number:016x}").parse().unwrap();
        let notes = ReadOp::Keys { range: KeyRange::prefix(&b"p"[..]), limit: 100, values: false };
        let Outcome::Done(done) = store.apply(&log, Transaction::new().read(notes)).await.unwrap() else {
            panic!("refused")
        };
        let Some(Answer::Keys(page)) = done.answers.first() else { panic!("{done:?}") };
        // Each note takes the one before it away.
        assert_eq!(page.entries.len(), 1);
    });
}
