//! Files whose inodes have no objects yet: they are what they would be with objects, to every rank, whoever goes away.

use std::sync::Arc;

use bytes::Bytes;
use nacre_meta::inode::{Ino, InodeKind};
use nacre_meta::{Creation, Credentials, Error, Limits, READ, Rank, SetAttributes, WRITE};

use crate::calls::{file, make, open};
use crate::recovery::{Call, advance};
use crate::scheduler::{SlowStore, at_once, poll};

fn has_object(store: &SlowStore, ino: Ino) -> bool {
    store.objects().contains(&ino.object().to_string())
}

async fn set_mode(rank: &Rank, ino: Ino, mode: u32) -> Result<u32, Error> {
    let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    rank.set_attributes(&Credentials::root(), ino, &set).await.map(|found| found.mode)
}

#[test]
fn the_creation_of_a_file_is_one_change() {
    let store = SlowStore::default();
    let rank = Arc::new(at_once(&store, open(&store)));
    let root = Credentials::root();
    // A directory in which something was made, and a supply of numbers.
    at_once(&store, make(&rank, &root, "/first", file(0o644)));
    let mut call: Call<Ino> = {
        let rank = rank.clone();
        Box::pin(async move {
            Ok(rank.create(&Credentials::root(), Ino::ROOT, b"second", file(0o600)).await?.ino)
        })
    };
    assert!(poll(&store, 0, &mut call).is_none());
    let waiting = store.waiting();
    assert_eq!(waiting.len(), 1);
    store.perform(waiting[0].0, false);
    let ino = poll(&store, 0, &mut call).expect("it waits for nothing else").unwrap();
    assert!(!has_object(&store, ino));
    // It is there for everybody, and counted by the check, which changes nothing.
    at_once(&store, async {
        let other = open(&store).await;
        assert_eq!(other.lookup(&root, Ino::ROOT, b"second").await.unwrap().mode, 0o600);
        assert_eq!(other.stat(ino).await.unwrap(), rank.stat(ino).await.unwrap());
        let report = other.check(false).await.unwrap();
        assert_eq!((report.files, report.entries, report.is_clean()), (2, 2, true), "{report:?}");
        assert!(!has_object(&store, ino));
    });
}

#[test]
fn what_a_directory_has_become_is_seen_by_a_rank_that_remembers_it() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, other) = (open(&store).await, open(&store).await);
        let (root, ada) = (Credentials::root(), Credentials::new(1000, 1000));
        let d = make(&rank, &root, "/d", Creation::new(InodeKind::Directory, 0o777)).await.ino;
        rank.create(&ada, d, b"one", file(0o644)).await.unwrap();
        set_mode(&other, d, 0o755).await.unwrap();
        assert_eq!(rank.create(&ada, d, b"two", file(0o644)).await.err(), Some(Error::Denied));
        rank.create(&root, d, b"two", file(0o644)).await.unwrap();
        // By what the rank remembers now, she may not.
        set_mode(&other, d, 0o777).await.unwrap();
        rank.create(&ada, d, b"three", file(0o644)).await.unwrap();
        other.create(&root, d, b"four", file(0o644)).await.unwrap();
        assert_eq!(rank.create(&ada, d, b"four", file(0o644)).await.err(), Some(Error::Exists));
        rank.create(&ada, d, b"five", file(0o644)).await.unwrap();
        for name in ["one", "two", "three", "four", "five"] {
            other.unlink(&root, d, name.as_bytes()).await.unwrap();
        }
        other.rmdir(&root, Ino::ROOT, b"d").await.unwrap();
        assert_eq!(rank.create(&ada, d, b"six", file(0o644)).await.err(), Some(Error::NotFound));
        assert_eq!(rank.check(false).await.unwrap().findings, []);
    });
}

#[test]
fn a_directory_with_a_quota_of_its_own_is_not_held_to_the_one_that_a_rank_remembers() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, other, root) = (open(&store).await, open(&store).await, Credentials::root());
        let directory = || Creation::new(InodeKind::Directory, 0o755);
        let entries = |entries| Limits { entries: Some(entries), ..Limits::default() };
        let a = make(&rank, &root, "/a", directory()).await.ino;
        rank.set_quota(&root, a, entries(2)).await.unwrap();
        let d = make(&rank, &root, "/a/d", directory()).await.ino;
        rank.create(&root, d, b"first", file(0o644)).await.unwrap();
        other.unlink(&root, d, b"first").await.unwrap();
        make(&other, &root, "/a/full", file(0o644)).await;
        other.set_quota(&root, d, entries(9)).await.unwrap();
        rank.create(&root, d, b"second", file(0o644)).await.unwrap();
        assert_eq!(rank.create(&root, a, b"more", file(0o644)).await.err(), Some(Error::QuotaExceeded));
    });
}

#[test]
fn an_inode_is_made_by_the_first_change_of_it_whoever_makes_that() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, other, root) = (open(&store).await, open(&store).await, Credentials::root());
        let d = make(&rank, &root, "/d", Creation::new(InodeKind::Directory, 0o755)).await.ino;
        let f = make(&rank, &root, "/f", file(0o644)).await.ino;
        // Renames keep what it is to be, also to another directory.
        rank.rename(&root, (Ino::ROOT, b"f"), (Ino::ROOT, b"g"), false).await.unwrap();
        other.rename(&root, (Ino::ROOT, b"g"), (d, b"g"), false).await.unwrap();
        assert!(!has_object(&store, f));
        assert_eq!(open(&store).await.lookup(&root, d, b"g").await.unwrap().ino, f);
        other.lookup(&root, d, b"g").await.unwrap();
        set_mode(&other, f, 0o600).await.unwrap();
        assert!(has_object(&store, f));
        assert_eq!(rank.stat(f).await.unwrap().mode, 0o600);
        set_mode(&rank, f, 0o640).await.unwrap();
        rank.rename(&root, (d, b"g"), (d, b"h"), false).await.unwrap();
        assert_eq!(other.lookup(&root, d, b"h").await.unwrap().mode, 0o640);

        let g = make(&rank, &root, "/g", file(0o644)).await.ino;
        rank.link(&root, g, d, b"second").await.unwrap();
        assert_eq!(other.lookup(&root, Ino::ROOT, b"g").await.unwrap().links, 2);
        let value = Some(Bytes::from_static(b"value"));
        let h = make(&rank, &root, "/h", file(0o644)).await.ino;
        rank.set_attribute(&root, h, b"user.a", value, Some(false)).await.unwrap();
        other.lookup(&root, Ino::ROOT, b"h").await.unwrap();
        assert_eq!(other.attribute(&root, h, b"user.a").await.unwrap(), "value");
        let link = make(&rank, &root, "/link", Creation::symlink("h")).await;
        assert_eq!(other.lookup(&root, Ino::ROOT, b"link").await.unwrap(), link);
        assert_eq!(rank.check(false).await.unwrap().findings, []);
    });
}

#[test]
fn an_inode_that_went_without_an_object_is_not_made_by_those_who_know_of_it() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, other, root) = (open(&store).await, open(&store).await, Credentials::root());
        let before = store.objects();
        let f = make(&rank, &root, "/f", file(0o644)).await.ino;
        other.lookup(&root, Ino::ROOT, b"f").await.unwrap();
        rank.open_file(&root, f, READ | WRITE).await.unwrap();
        rank.unlink(&root, Ino::ROOT, b"f").await.unwrap();
        // It is open, and has its object only now.
        rank.write_file(f, 0, Bytes::from_static(b"data")).await.unwrap();
        assert_eq!(rank.read_file(f, 0, 9).await.unwrap(), "data");
        rank.close_file(f).await;
        let opened = rank.create_open(&root, Ino::ROOT, b"g", file(0o400)).await.unwrap().ino;
        other.lookup(&root, Ino::ROOT, b"g").await.unwrap();
        rank.unlink(&root, Ino::ROOT, b"g").await.unwrap();
        assert_eq!(rank.stat(opened).await.unwrap().mode, 0o400);
        rank.close_file(opened).await;
        for ino in [f, opened] {
            for rank in [&rank, &other] {
                assert_eq!(rank.stat(ino).await.err(), Some(Error::NotFound));
                assert_eq!(set_mode(rank, ino, 0o777).await, Err(Error::NotFound));
                let written = rank.write_file(ino, 0, Bytes::from_static(b"late")).await;
                assert_eq!(written, Err(Error::NotFound));
                assert_eq!(rank.link(&root, ino, Ino::ROOT, b"h").await.err(), Some(Error::NotFound));
            }
        }
        rank.close().await.unwrap();
        other.close().await.unwrap();
        assert_eq!(store.objects(), before);
    });
}

#[test]
fn a_change_that_makes_an_inode_is_there_or_not_whenever_its_rank_goes_away() {
    let (mut old, mut new) = (0, 0);
    for is_late in [false, true] {
        for at in 0.. {
            let (store, root) = (SlowStore::default(), Credentials::root());
            let (rank, f) = at_once(&store, async {
                let rank = open(&store).await;
                let f = make(&rank, &root, "/f", file(0o644)).await.ino;
                (Arc::new(rank), f)
            });
            let mut changing: Call<u32> = {
                let rank = rank.clone();
                Box::pin(async move { set_mode(&rank, f, 0o600).await })
            };
            let done = advance(&store, 0, &mut changing, at);
            store.orphan(0);
            let other = at_once(&store, open(&store));
            // What is on its way comes after the file was removed by somebody else, or never.
            if is_late && done.is_none() {
                at_once(&store, other.unlink(&root, Ino::ROOT, b"f")).unwrap();
            }
            for (id, _) in store.waiting() {
                match is_late {
                    true => store.perform(id, false),
                    false => store.drop_request(id),
                }
            }
            at_once(&store, async {
                match other.lookup(&root, Ino::ROOT, b"f").await {
                    Ok(found) if found.mode == 0o600 => new += 1,
                    Ok(found) => {
                        assert!(found.mode == 0o644 && done.is_none() && !is_late);
                        old += 1;
                    }
                    Err(error) => assert!(error == Error::NotFound && is_late, "{error}"),
                }
                assert!(other.check(true).await.unwrap().is_clean());
                let is_there = other.lookup(&root, Ino::ROOT, b"f").await.is_ok();
                assert!(is_there || !has_object(&store, f), "{at}");
            });
            if done.is_some() {
                break;
            }
        }
    }
    assert!(old > 0 && new > 0);
}
