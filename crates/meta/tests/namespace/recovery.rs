//! Changes that span objects, while a check is at work on the log of their rank, after failures of the store, and while the
//! store is copied.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use nacre_meta::inode::{Ino, Inode, InodeKind, LINKS_MAX, Layout, RECORD};
use nacre_meta::{Creation, Credentials, Error, READ, Rank, RankOptions, WRITE};
use nacre_object::copy::{Copied, copy_objects};
use nacre_object::testkit::MemoryStore;
use nacre_object::{Answer, ErrorKind, Key, ObjectStore, Outcome, ReadOp, Transaction, WriteOp};

use crate::calls::{file, make, open};
use crate::scheduler::{SlowStore, at_once, poll};

pub type Call<T> = Pin<Box<dyn Future<Output = Result<T, Error>>>>;

/// A store with the file `/a/x`, and a directory `/b` for it to be moved to.
fn begin() -> (SlowStore, Arc<Rank>, Ino, Ino) {
    let store = SlowStore::default();
    let (rank, a, b) = at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let directory = || Creation::new(InodeKind::Directory, 0o755);
        let a = make(&rank, &root, "/a", directory()).await.ino;
        let b = make(&rank, &root, "/b", directory()).await.ino;
        make(&rank, &root, "/a/x", file(0o644)).await;
        (Arc::new(rank), a, b)
    });
    (store, rank, a, b)
}

fn rename(rank: &Arc<Rank>, a: Ino, b: Ino) -> Call<()> {
    let rank = rank.clone();
    Box::pin(async move { rank.rename(&Credentials::root(), (a, b"x"), (b, b"y"), false).await })
}

/// Returns whether the file is in its old place and in its new one.
fn places(store: &SlowStore, a: Ino, b: Ino) -> [bool; 2] {
    at_once(store, async {
        let (rank, root) = (open(store).await, Credentials::root());
        let is_there = async |directory, name: &[u8]| match rank.lookup(&root, directory, name).await {
            Ok(_) => true,
            Err(Error::NotFound) => false,
            Err(error) => panic!("{error}"),
        };
        [is_there(a, b"x").await, is_there(b, b"y").await]
    })
}

/// Lets the requests of a call take effect, one after the other, up to a number of them. Returns the result, if there is
/// one.
pub fn advance<T>(
    store: &SlowStore,
    caller: usize,
    call: &mut Call<T>,
    steps: usize,
) -> Option<Result<T, Error>> {
    for step in 0.. {
        if let Some(result) = poll(store, caller, call) {
            return Some(result);
        }
        if step == steps {
            return None;
        }
        for (id, from) in store.waiting() {
            if from == Some(caller) {
                store.perform(id, false);
            }
        }
    }
    None
}

#[test]
fn a_check_that_closes_the_log_of_a_rank_at_work_halves_no_rename() {
    let (mut committed, mut unknown) = (0, 0);
    for before in 0..24 {
        for checked in 0..16 {
            for after in 0..12 {
                let (store, rank, a, b) = begin();
                let doctor = Arc::new(at_once(&store, open(&store)));
                let mut call = rename(&rank, a, b);
                let mut result = advance(&store, 0, &mut call, before);
                let number = at_once(&store, doctor.ranks()).unwrap();
                let [number] = number[..] else { continue };
                let mut recovery: Call<()> = {
                    let doctor = doctor.clone();
                    Box::pin(async move { doctor.recover(number).await.map(|_| ()) })
                };
                let recovered = advance(&store, 1, &mut recovery, checked);
                result = result.or_else(|| advance(&store, 0, &mut call, after));
                if recovered.is_none() {
                    advance(&store, 1, &mut recovery, usize::MAX).unwrap().unwrap();
                }
                // The rank goes away, and its last requests with it.
                store.orphan(0);
                for (id, _) in store.waiting() {
                    store.drop_request(id);
                }
                let places = places(&store, a, b);
                let text = format!("{before}, {checked}, {after}: {result:?}, {places:?}");
                assert_ne!(places[0], places[1], "{text}");
                match result {
                    Some(Ok(())) => assert!(places[1], "{text}"),
                    Some(Err(error)) => assert!(error.is_unknown(), "{error}"),
                    None => {}
                }
                committed += usize::from(places[1]);
                unknown += usize::from(text.contains("Unknown"));
            }
        }
    }
    println!("{committed} renames took effect, {unknown} do not know");
    assert!(committed > 100 && unknown > 100);
}

#[test]
fn a_rank_that_is_closed_after_a_failure_leaves_what_others_need() {
    for at in 0..30 {
        for late in [false, true] {
            let (store, rank, a, b) = begin();
            let mut call = rename(&rank, a, b);
            let mut result = advance(&store, 0, &mut call, at);
            // From now on no change comes through, or none is answered.
            for _ in 0..1_000 {
                result = result.or_else(|| poll(&store, 0, &mut call));
                if result.is_some() {
                    break;
                }
                for (id, _) in store.waiting() {
                    store.fail(id, late);
                }
            }
            let result = result.expect("the call comes to an end");
            at_once(&store, rank.close()).unwrap();
            let places = places(&store, a, b);
            let text = format!("{at}, {late}: {result:?}, {places:?}");
            assert_ne!(places[0], places[1], "{text}");
            match result {
                Ok(()) => assert!(places[1], "{text}"),
                Err(error) if error.is_unknown() => {}
                Err(_) => assert!(places[0], "{text}"),
            }
            let report = at_once(&store, async { open(&store).await.check(true).await }).unwrap();
            assert!(report.is_clean(), "{text}: {report:?}");
        }
    }
}

#[test]
fn a_check_reports_nothing_that_changes_while_it_looks() {
    for at in 0..60 {
        let (store, rank, _, b) = begin();
        // The file's number is below that of the directory that it is in, so the check comes to it first.
        let c = at_once(&store, async {
            let c =
                make(&rank, &Credentials::root(), "/c", Creation::new(InodeKind::Directory, 0o755)).await.ino;
            let (a, _) = rank.resolve_parent(&Credentials::root(), b"/a/x").await.unwrap();
            rank.rename(&Credentials::root(), (a.ino, b"x"), (c, b"x"), false).await.unwrap();
            rank.close().await.unwrap();
            c
        });
        let doctor = Arc::new(at_once(&store, open(&store)));
        let mut check: Call<nacre_meta::Report> = Box::pin(async move { doctor.check(false).await });
        let mut report = advance(&store, 0, &mut check, at);
        at_once(&store, async {
            let root = Credentials::root();
            let found = rank.lookup(&root, c, b"x").await.unwrap();
            rank.link(&root, found.ino, c, b"y").await.unwrap();
            rank.unlink(&root, c, b"x").await.unwrap();
            rank.unlink(&root, c, b"y").await.unwrap();
            rank.lookup(&root, b, b"x").await.unwrap_err();
        });
        report = report.or_else(|| advance(&store, 0, &mut check, usize::MAX));
        let report = report.unwrap().unwrap();
        assert_eq!(report.findings, [], "{at}");
    }
}

#[test]
fn a_file_whose_last_link_goes_while_it_is_being_opened_stays_until_it_is_closed() {
    let (store, rank, a, _) = begin();
    let root = Credentials::root();
    let x = at_once(&store, async {
        let x = rank.lookup(&root, a, b"x").await.unwrap().ino;
        rank.write_file(x, 0, Bytes::from_static(b"content")).await.unwrap();
        x
    });
    let mut opening: Call<nacre_meta::Attributes> = {
        let rank = rank.clone();
        Box::pin(async move { rank.open_file(&Credentials::root(), x, READ).await })
    };
    // The inode is read, and its last link removed before the call goes on.
    assert!(poll(&store, 0, &mut opening).is_none());
    for (id, _) in store.waiting() {
        store.perform(id, false);
    }
    at_once(&store, rank.unlink(&root, a, b"x")).unwrap();
    advance(&store, 0, &mut opening, usize::MAX).unwrap().unwrap();
    assert_eq!(at_once(&store, rank.read_file(x, 0, 9)).unwrap(), "content");
    // One who may not open it does not keep it.
    let other = Credentials::new(7, 7);
    assert_eq!(at_once(&store, rank.open_file(&other, x, WRITE)).err(), Some(Error::Denied));
    at_once(&store, rank.close_file(x));
    assert_eq!(at_once(&store, rank.read_file(x, 0, 9)).err(), Some(Error::NotFound));
    let report = at_once(&store, rank.check(false)).unwrap();
    assert_eq!(report.findings, []);
}

#[test]
fn a_check_reports_no_file_that_comes_and_goes_while_it_looks() {
    let mut changed = 0;
    'all: for made_at in 0.. {
        for steps in 1.. {
            let (store, rank, a, _) = begin();
            let (doctor, root) = (at_once(&store, open(&store)), Credentials::root());
            let mut check: Call<nacre_meta::Report> = Box::pin(async move { doctor.check(false).await });
            if advance(&store, 0, &mut check, made_at).is_some() {
                break 'all;
            }
            at_once(&store, make(&rank, &root, "/a/new", file(0o644)));
            let checked = advance(&store, 0, &mut check, steps);
            let is_over = checked.is_some();
            at_once(&store, rank.unlink(&root, a, b"new")).unwrap();
            let checked = checked.or_else(|| advance(&store, 0, &mut check, usize::MAX));
            let report = checked.unwrap().unwrap();
            assert_eq!(report.findings, [], "{made_at}, {steps}");
            changed += usize::from(report.changed);
            if is_over {
                break;
            }
        }
    }
    assert!(changed > 1);
}

#[test]
fn a_check_takes_no_file_for_lost_that_is_moved_into_a_new_directory() {
    for at in 0.. {
        let (store, rank, a, _) = begin();
        let (doctor, root) = (at_once(&store, open(&store)), Credentials::root());
        let mut check: Call<nacre_meta::Report> = Box::pin(async move { doctor.check(true).await });
        let checked = advance(&store, 0, &mut check, at);
        let is_over = checked.is_some();
        let new = at_once(&store, async {
            let directory = Creation::new(InodeKind::Directory, 0o755);
            let new = make(&rank, &root, "/a/new", directory).await.ino;
            rank.rename(&root, (a, b"x"), (new, b"x"), false).await.unwrap();
            new
        });
        let checked = checked.or_else(|| advance(&store, 0, &mut check, usize::MAX));
        assert_eq!(checked.unwrap().unwrap().findings, [], "{at}");
        let found = at_once(&store, rank.lookup(&root, new, b"x"));
        assert!(found.is_ok(), "{at}: {found:?}");
        let report = at_once(&store, rank.check(false)).unwrap();
        assert_eq!((&report.findings[..], report.changed), (&[][..], false), "{at}");
        if is_over {
            break;
        }
    }
}

#[test]
fn a_check_gives_an_inode_no_more_links_than_its_record_may_have() {
    let (store, rank, a, _) = begin();
    at_once(&store, async {
        let x = rank.lookup(&Credentials::root(), a, b"x").await.unwrap().ino;
        rank.write_file(x, 0, Bytes::from_static(b"content")).await.unwrap();
        let key = Key::new(Bytes::from_static(RECORD)).unwrap();
        let record = async || {
            let read = Transaction::new().read(ReadOp::Key { key: key.clone() });
            let Outcome::Done(done) = store.apply(&x.object(), read).await.unwrap() else {
                panic!("refused")
            };
            let Some(Answer::Value(Some(value))) = done.answers.first() else { panic!("{done:?}") };
            Inode::decode(value).unwrap()
        };
        let mut damaged = record().await;
        let link = damaged.links[0];
        damaged.links = (0..LINKS_MAX as u64).map(|number| (1 << 40) + number).collect();
        let set = WriteOp::SetKey { key: key.clone(), value: damaged.encode() };
        store.apply(&x.object(), Transaction::new().change(set)).await.unwrap();

        // There is room for the entry's link as soon as one without an entry is gone.
        let report = rank.check(true).await.unwrap();
        let is_missing = |text: &str| text.contains("is not among the links");
        assert!(report.findings.iter().any(|found| is_missing(&found.text) && !found.repaired), "{report:?}");
        let report = rank.check(true).await.unwrap();
        assert!(report.findings.iter().any(|found| is_missing(&found.text) && found.repaired), "{report:?}");
        let mended = record().await;
        assert!(mended.links.contains(&link) && mended.links.len() <= LINKS_MAX);
        assert_eq!(rank.read_file(x, 0, 9).await.unwrap(), "content");
    });
}

/// Returns the value of a key of an object.
async fn value(store: &SlowStore, ino: Ino, key: &'static [u8]) -> Bytes {
    let key = Key::new(Bytes::from_static(key)).unwrap();
    let read = Transaction::new().read(ReadOp::Key { key });
    let Outcome::Done(done) = store.apply(&ino.object(), read).await.unwrap() else { panic!("refused") };
    let Some(Answer::Value(Some(value))) = done.answers.first() else { panic!("{done:?}") };
    value.clone()
}

/// Sets a key of an object.
async fn set(store: &SlowStore, ino: Ino, key: &'static [u8], value: Bytes) {
    let key = Key::new(Bytes::from_static(key)).unwrap();
    let set = Transaction::new().change(WriteOp::SetKey { key, value });
    store.apply(&ino.object(), set).await.unwrap();
}

#[test]
fn a_check_reports_an_entry_without_inode_also_under_a_name_that_none_may_have() {
    let (store, rank, a, _) = begin();
    at_once(&store, async {
        let x = rank.lookup(&Credentials::root(), a, b"x").await.unwrap().ino;
        rank.write_file(x, 0, Bytes::from_static(b"content")).await.unwrap();
        let entry = value(&store, a, b"ex").await;
        set(&store, a, b"ea/b", entry).await;
        store.apply(&x.object(), Transaction::new().change(WriteOp::Remove)).await.unwrap();
        let report = rank.check(true).await.unwrap();
        for name in ["x", "a/b"] {
            let text = format!("entry \"{name}\" of directory {a} has no inode");
            let found = report.findings.iter().find(|found| found.text == text);
            assert!(found.is_some_and(|found| found.repaired), "{name}: {report:?}");
        }
        assert_eq!(rank.check(false).await.unwrap().findings, []);
    });
}

#[test]
fn directories_that_are_in_each_other_end_a_move_and_are_reported() {
    let (store, rank, a, b) = begin();
    at_once(&store, async {
        let root = Credentials::root();
        make(&rank, &root, "/c", Creation::new(InodeKind::Directory, 0o755)).await;
        for (directory, parent) in [(a, b), (b, a)] {
            let mut inode = Inode::decode(&value(&store, directory, RECORD).await).unwrap();
            inode.parent = parent;
            set(&store, directory, RECORD, inode.encode()).await;
        }
        let moved = rank.rename(&root, (Ino::ROOT, b"c"), (a, b"c"), false).await;
        assert!(matches!(&moved, Err(Error::Store(error)) if error.kind == ErrorKind::Corrupt), "{moved:?}");
        let report = rank.check(false).await.unwrap();
        let text = format!("directory {a} is in {}, and says it is in {b}", Ino::ROOT);
        assert!(report.findings.iter().any(|found| found.text == text), "{report:?}");
    });
}

#[test]
fn a_put_that_ends_while_a_check_removes_it_is_whole_or_refused() {
    let content = [7_u8; 6 * 4096];
    let (mut kept, mut refused) = (0, 0);
    for at in 0.. {
        let (store, root) = (SlowStore::default(), Credentials::root());
        let (rank, doctor) = (at_once(&store, open(&store)), at_once(&store, open(&store)));
        let ino = at_once(&store, async {
            let layout = Layout { unit_bytes: 4096, width: 1, object_bytes: 4096 };
            let ino = make(&rank, &root, "/f", Creation { layout: Some(layout), ..file(0o644) }).await.ino;
            rank.write_file(ino, 0, Bytes::from_static(b"old")).await.unwrap();
            ino
        });
        let mut put = at_once(&store, rank.put(&root, ino)).unwrap();
        at_once(&store, put.write(&content)).unwrap();
        // The check takes the rank for one that has gone away.
        let mut check: Call<nacre_meta::Report> = Box::pin(async move { doctor.check(true).await });
        let checked = advance(&store, 1, &mut check, at);
        let committed = at_once(&store, put.commit());
        let is_over = checked.is_some();
        let checked = checked.or_else(|| advance(&store, 1, &mut check, usize::MAX));
        checked.unwrap().unwrap();
        let found = at_once(&store, rank.read_file(ino, 0, 1 << 20)).unwrap();
        match committed {
            Ok(bytes) => {
                assert_eq!(bytes, content.len() as u64);
                assert!(found == content[..], "{at}: what was acknowledged is lost");
                kept += 1;
            }
            Err(error) => {
                assert_eq!(error, Error::Stale, "{at}");
                assert_eq!(found, "old", "{at}");
                refused += 1;
            }
        }
        if is_over {
            break;
        }
    }
    println!("{kept} puts were kept, {refused} refused");
    assert!(kept > 1 && refused > 1);
}

#[test]
fn a_put_that_fails_at_any_step_leaves_no_objects() {
    const BYTES: usize = 3 * 4096 + 100;
    let mut failed = 0;
    for at in 0.. {
        let (store, root) = (SlowStore::default(), Credentials::root());
        let rank = Arc::new(at_once(&store, open(&store)));
        let ino = at_once(&store, async {
            let layout = Layout { unit_bytes: 4096, width: 1, object_bytes: 4096 };
            let ino = make(&rank, &root, "/f", Creation { layout: Some(layout), ..file(0o644) }).await.ino;
            rank.write_file(ino, 0, Bytes::from_static(b"old")).await.unwrap();
            ino
        });
        let mut putting: Call<u64> = {
            let rank = rank.clone();
            Box::pin(async move {
                let mut put = rank.put(&Credentials::root(), ino).await?;
                // The last bytes are written at the end.
                if let Err(error) = put.write(&[7; BYTES]).await {
                    put.abort().await?;
                    return Err(error);
                }
                put.commit().await
            })
        };
        let result = advance(&store, 0, &mut putting, at);
        let is_over = result.is_some();
        // The changes of one moment do not come through.
        for (id, _) in store.waiting() {
            store.fail(id, false);
        }
        let result = result.or_else(|| advance(&store, 0, &mut putting, usize::MAX));
        match result.unwrap() {
            Ok(bytes) => assert_eq!(bytes, BYTES as u64),
            Err(error) => {
                assert!(!error.is_unknown(), "{at}: {error}");
                let objects = store.objects();
                assert_eq!(
                    objects.iter().filter(|name| name.contains("/d/")).count(),
                    1,
                    "{at}: {objects:?}"
                );
                assert_eq!(at_once(&store, rank.read_file(ino, 0, 9)).unwrap(), "old", "{at}");
                failed += 1;
            }
        }
        if is_over {
            break;
        }
    }
    assert!(failed > 3, "{failed}");
}

#[test]
fn a_new_file_that_is_put_to_its_end_while_a_check_removes_it_is_whole_or_was_never_there() {
    let content = [7_u8; 6 * 4096];
    let (mut kept, mut refused) = (0, 0);
    for at in 0.. {
        let (store, root) = (SlowStore::default(), Credentials::root());
        let (rank, doctor) = (at_once(&store, open(&store)), at_once(&store, open(&store)));
        let layout = Layout { unit_bytes: 4096, width: 1, object_bytes: 4096 };
        let directory = Creation { layout: Some(layout), ..Creation::new(InodeKind::Directory, 0o755) };
        let directory = at_once(&store, make(&rank, &root, "/d", directory)).ino;
        let mut put = at_once(&store, rank.put_new(&root, directory, b"f", 0o644)).unwrap();
        at_once(&store, put.write(&content)).unwrap();
        // The check takes the rank for one that has gone away.
        let mut check: Call<nacre_meta::Report> = Box::pin(async move { doctor.check(true).await });
        let checked = advance(&store, 1, &mut check, at);
        let committed = at_once(&store, put.commit());
        let is_over = checked.is_some();
        let checked = checked.or_else(|| advance(&store, 1, &mut check, usize::MAX));
        checked.unwrap().unwrap();
        let found = at_once(&store, rank.lookup(&root, directory, b"f"));
        match committed {
            Ok(bytes) => {
                assert_eq!(bytes, content.len() as u64);
                let found = at_once(&store, rank.read_file(found.unwrap().ino, 0, 1 << 20)).unwrap();
                assert!(found == content[..], "{at}: what was acknowledged is lost");
                kept += 1;
            }
            Err(error) => {
                assert_eq!((error, found.err()), (Error::Stale, Some(Error::NotFound)), "{at}");
                let left = store.objects().into_iter().filter(|object| object.starts_with("nacre/fs/d/"));
                assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new(), "{at}");
                refused += 1;
            }
        }
        if is_over {
            break;
        }
    }
    println!("{kept} files were kept, {refused} refused");
    assert!(kept > 1 && refused > 1);
}

#[test]
fn a_copy_of_a_store_has_one_content_of_a_file_whenever_that_is_replaced() {
    let (mut old, mut new) = (0, 0);
    for at in 0.. {
        let (store, rank, a, _) = begin();
        let root = Credentials::root();
        let x = at_once(&store, rank.lookup(&root, a, b"x")).unwrap().ino;
        let put = |content: &'static [u8]| {
            at_once(&store, async {
                let mut put = rank.put(&root, x).await.unwrap();
                put.write(content).await.unwrap();
                put.commit().await.unwrap();
            });
        };
        put(b"the old content");
        let copy = Arc::new(MemoryStore::new());
        let mut copying = copying(&store, &copy);
        let copied = advance(&store, 0, &mut copying, at);
        let is_over = copied.is_some();
        put(b"another content");
        let copied = copied.or_else(|| advance(&store, 0, &mut copying, usize::MAX));
        assert_eq!(copied.unwrap().unwrap().failed, [], "{at}");
        let found = at_once(&store, async {
            let rank = Rank::open(copy.clone(), RankOptions::default()).await.unwrap();
            rank.read_file(x, 0, 1 << 20).await.unwrap()
        });
        match &found[..] {
            b"the old content" => old += 1,
            b"another content" => new += 1,
            other => panic!("{at}: the copy holds \"{}\"", other.escape_ascii()),
        }
        if is_over {
            break;
        }
    }
    println!("{old} copies have the old content, {new} the new one");
    assert!(old > 1 && new > 1);
}

/// Returns a call that copies a store.
pub fn copying(store: &SlowStore, copy: &Arc<MemoryStore>) -> Call<Copied> {
    let (source, destination) = (store.clone(), copy.clone());
    Box::pin(async move { Ok(copy_objects(&source, &*destination, |_, _| {}).await?) })
}

#[test]
fn a_copy_of_a_store_has_a_file_in_one_place_whenever_it_is_moved() {
    let (mut old, mut new) = (0, 0);
    // In the order in which the directories are copied, and against it.
    for backwards in [false, true] {
        for at in 0.. {
            let (store, rank, a, b) = begin();
            let root = Credentials::root();
            let x = at_once(&store, rank.lookup(&root, a, b"x")).unwrap().ino;
            let (from, to) = if backwards { ((b, b"y"), (a, b"x")) } else { ((a, b"x"), (b, b"y")) };
            if backwards {
                at_once(&store, rename(&rank, a, b)).unwrap();
            }
            at_once(&store, rank.write_file(x, 0, Bytes::from_static(b"content"))).unwrap();
            let copy = Arc::new(MemoryStore::new());
            let mut copying = copying(&store, &copy);
            let mut copied = advance(&store, 0, &mut copying, at);
            let is_over = copied.is_some();
            let mut moving: Call<()> = {
                let rank = rank.clone();
                Box::pin(async move {
                    rank.rename(&Credentials::root(), (from.0, from.1), (to.0, to.1), false).await
                })
            };
            let mut moved = None;
            // One step of each in turn, so that the copy meets the change half made.
            while copied.is_none() || moved.is_none() {
                if moved.is_none() {
                    moved = advance(&store, 1, &mut moving, 1);
                }
                if copied.is_none() {
                    copied = advance(&store, 0, &mut copying, 1);
                }
            }
            moved.unwrap().unwrap();
            assert_eq!(copied.unwrap().unwrap().failed, [], "{at}");
            at_once(&store, async {
                let rank = Rank::open(copy.clone(), RankOptions::default()).await.unwrap();
                // What is left of the rank that was at work belongs to nobody here.
                rank.check(true).await.unwrap();
                let report = rank.check(false).await.unwrap();
                assert!(report.findings.is_empty() && !report.changed, "{at}: {report:?}");
                let is_in = async |(directory, name): (Ino, &'static [u8; 1])| {
                    rank.lookup(&Credentials::root(), directory, name).await.is_ok()
                };
                let places = (is_in(from).await, is_in(to).await);
                assert_ne!(places.0, places.1, "{at}: the copy has the file in both places or in neither");
                assert_eq!(rank.read_file(x, 0, 9).await.unwrap(), "content");
                old += u32::from(places.0);
                new += u32::from(places.1);
            });
            if is_over {
                break;
            }
        }
    }
    println!("{old} copies have the file in the old place, {new} in the new one");
    assert!(old > 1 && new > 1);
}

#[test]
fn a_copy_of_a_namespace_that_is_changed_all_the_time_says_so_and_one_that_is_written_to_is_whole() {
    let (store, rank, a, b) = begin();
    let root = Credentials::root();
    let x = at_once(&store, rank.lookup(&root, a, b"x")).unwrap().ino;
    let copy = Arc::new(MemoryStore::new());
    let mut first = copying(&store, &copy);
    let mut is_in_a = true;
    let copied = loop {
        if let Some(copied) = advance(&store, 0, &mut first, 1) {
            break copied.unwrap();
        }
        let (from, to) = if is_in_a { ((a, b"x"), (b, b"x")) } else { ((b, b"x"), (a, b"x")) };
        at_once(&store, rank.rename(&root, (from.0, from.1), (to.0, to.1), false)).unwrap();
        is_in_a = !is_in_a;
    };
    let said = copied.failed.iter().find(|(object, _)| object.to_string() == "nacre/fs/tree");
    let (_, error) = said.expect("the namespace is among what was not copied");
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.message.contains("try again when it is quiet"), "{error}");

    // A log that is written all the time is no change of the namespace.
    let mut second = copying(&store, &copy);
    let copied = loop {
        if let Some(copied) = advance(&store, 0, &mut second, 1) {
            break copied.unwrap();
        }
        at_once(&store, rank.append_file(x, Bytes::from_static(b"line"))).unwrap();
    };
    assert_eq!(copied.failed, []);
}

#[test]
fn a_later_copy_of_a_store_removes_what_was_removed_since() {
    let (store, rank, a, _) = begin();
    let copy = Arc::new(MemoryStore::new());
    let copy_all = || advance(&store, 0, &mut copying(&store, &copy), usize::MAX).unwrap().unwrap();
    assert_eq!(copy_all().failed, []);
    at_once(&store, async {
        let root = Credentials::root();
        rank.unlink(&root, a, b"x").await.unwrap();
        rank.rmdir(&root, Ino::ROOT, b"b").await.unwrap();
    });
    assert_eq!(copy_all().failed, []);
    at_once(&store, async {
        let rank = Rank::open(copy.clone(), RankOptions::default()).await.unwrap();
        rank.check(true).await.unwrap();
        let report = rank.check(false).await.unwrap();
        assert!(report.findings.is_empty() && !report.changed, "{report:?}");
        assert_eq!((report.directories, report.files), (2, 0), "the root and a");
    });
}
