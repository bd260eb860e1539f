//! Directories that are split: what is in them stays in them, whoever goes away in the middle of a split.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use nacre_meta::inode::{Ino, InodeKind, RECORD};
use nacre_meta::{Attributes, Creation, Credentials, Error, READ, Rank, RankOptions};
use nacre_object::testkit::MemoryStore;
use nacre_object::{Answer, Key, ObjectStore, Outcome, ReadOp, Transaction};

use crate::calls::{file, make};
use crate::recovery::{Call, advance, copying};
use crate::scheduler::{SlowStore, at_once};

/// Opens a rank that splits directories above a number of entries.
async fn open(store: &SlowStore, split_entries: u64) -> Rank {
    let options = RankOptions { create: true, split_entries: Some(split_entries), ..RankOptions::default() };
    Rank::open(Arc::new(store.clone()), options).await.unwrap()
}

async fn make_directory(rank: &Rank, path: &str) -> Ino {
    make(rank, &Credentials::root(), path, Creation::new(InodeKind::Directory, 0o755)).await.ino
}

async fn create(rank: &Rank, directory: Ino, name: &str) -> Result<Attributes, Error> {
    rank.create(&Credentials::root(), directory, name.as_bytes(), file(0o644)).await
}

/// Lists a directory in pages of a length, each behind the last name of the one before.
async fn list(rank: &Rank, directory: Ino, limit: usize, attributes: bool) -> Result<Vec<String>, Error> {
    let (mut names, mut after) = (Vec::new(), Bytes::new());
    loop {
        let page = rank.readdir(&Credentials::root(), directory, &after, limit, attributes).await?;
        assert!(page.entries.len() <= limit);
        names.extend(page.entries.iter().map(|listed| String::from_utf8(listed.name.to_vec()).unwrap()));
        if !page.more {
            return Ok(names);
        }
        after = page.entries.last().unwrap().name.clone();
    }
}

/// Returns the number of the further fragments of all directories.
fn fragments(store: &SlowStore) -> usize {
    store.objects().iter().filter(|object| object.starts_with("nacre/fs/e/")).count()
}

async fn record(store: &SlowStore, ino: Ino) -> Bytes {
    let read = Transaction::new().read(ReadOp::Key { key: Key::new(Bytes::from_static(RECORD)).unwrap() });
    let Outcome::Done(done) = store.apply(&ino.object(), read).await.unwrap() else { panic!("refused") };
    let Some(Answer::Value(Some(value))) = done.answers.first() else { panic!("{done:?}") };
    value.clone()
}

#[test]
fn a_directory_that_grows_is_split_and_keeps_everything() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store, 8).await, Credentials::root());
        let before = store.objects();
        let d = make_directory(&rank, "/d").await;
        assert_eq!(record(&store, d).await[0], 1, "every program can read a directory that was not split");
        let names: BTreeSet<String> = (0..300).map(|number| format!("file {number}")).collect();
        for name in &names {
            create(&rank, d, name).await.unwrap();
            assert_eq!(create(&rank, d, name).await.err(), Some(Error::Exists), "{name}");
        }
        assert!(fragments(&store) > 16, "{}", fragments(&store));
        assert_eq!(record(&store, d).await[0], 2, "a program that knows nothing of fragments refuses it");
        for (limit, attributes) in [(1, false), (7, true), (1000, false)] {
            let listed = list(&rank, d, limit, attributes).await.unwrap();
            assert!(listed.iter().eq(&names), "pages of {limit}: {listed:?}");
        }
        for name in &names {
            assert!(rank.lookup(&root, d, name.as_bytes()).await.is_ok(), "{name}");
        }
        assert_eq!(rank.lookup(&root, d, b"file 300").await.err(), Some(Error::NotFound));
        assert_eq!(rank.rmdir(&root, Ino::ROOT, b"d").await.err(), Some(Error::NotEmpty));

        // Renames within the directory, out of it, and over others.
        let other = make_directory(&rank, "/other").await;
        for number in 0..100 {
            let from = format!("file {number}");
            let (directory, to) = match number % 3 {
                0 => (d, format!("moved {number}")),
                1 => (other, from.clone()),
                _ => (d, format!("file {}", number + 100)),
            };
            rank.rename(&root, (d, from.as_bytes()), (directory, to.as_bytes()), false).await.unwrap();
        }
        let there = list(&rank, d, 50, true).await.unwrap();
        assert_eq!(there.len(), 300 - 33 - 33);
        assert_eq!(list(&rank, other, 50, true).await.unwrap().len(), 33);
        let linked = rank.lookup(&root, d, b"moved 0").await.unwrap().ino;
        rank.link(&root, linked, d, b"second link").await.unwrap();
        assert_eq!(rank.stat(linked).await.unwrap().links, 2);
        rank.close().await.unwrap();
        assert_eq!(rank.check(false).await.unwrap().findings, []);

        // One that splits nothing by itself empties it.
        let rank = open(&store, 1 << 40).await;
        for name in list(&rank, d, 50, false).await.unwrap() {
            rank.unlink(&root, d, name.as_bytes()).await.unwrap();
        }
        for name in list(&rank, other, 50, false).await.unwrap() {
            rank.unlink(&root, other, name.as_bytes()).await.unwrap();
        }
        rank.rmdir(&root, Ino::ROOT, b"d").await.unwrap();
        rank.rmdir(&root, Ino::ROOT, b"other").await.unwrap();
        rank.close().await.unwrap();
        assert_eq!(store.objects(), before);
    });
}

#[test]
fn an_empty_directory_that_was_split_is_replaced_by_another_one_and_keeps_its_open_files() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store, 2).await, Credentials::root());
        let (d, new) = (make_directory(&rank, "/d").await, make_directory(&rank, "/new").await);
        for number in 0..20 {
            create(&rank, d, &format!("{number}")).await.unwrap();
        }
        let open_file = rank.lookup(&root, d, b"7").await.unwrap().ino;
        rank.write_file(open_file, 0, Bytes::from_static(b"content")).await.unwrap();
        rank.open_file(&root, open_file, READ).await.unwrap();
        let over = (Ino::ROOT, &b"d"[..]);
        assert_eq!(rank.rename(&root, (Ino::ROOT, b"new"), over, false).await.err(), Some(Error::NotEmpty));
        for number in 0..20 {
            rank.unlink(&root, d, format!("{number}").as_bytes()).await.unwrap();
        }
        rank.rename(&root, (Ino::ROOT, b"new"), over, false).await.unwrap();
        assert_eq!(rank.lookup(&root, Ino::ROOT, b"d").await.unwrap().ino, new);
        assert_eq!(fragments(&store), 0);
        assert_eq!(rank.read_file(open_file, 0, 9).await.unwrap(), "content");
        rank.close_file(open_file).await;
        assert_eq!(rank.read_file(open_file, 0, 9).await.err(), Some(Error::NotFound));
        rank.close().await.unwrap();
        assert_eq!(rank.check(false).await.unwrap().findings, []);
    });
}

#[test]
fn a_list_has_what_is_there_all_the_time_once_while_the_directory_is_split() {
    let mut grown = 0;
    for steps in 1..12 {
        for limit in [1, 4, 1000] {
            let store = SlowStore::default();
            let (rank, d, names) = at_once(&store, async {
                let rank = Arc::new(open(&store, 4).await);
                let d = make_directory(&rank, "/d").await;
                let names: BTreeSet<String> = (0..30).map(|number| format!("name {number}")).collect();
                for name in &names {
                    create(&rank, d, name).await.unwrap();
                }
                (rank, d, names)
            });
            let before = fragments(&store);
            let mut listing: Call<Vec<String>> = {
                let rank = rank.clone();
                Box::pin(async move { list(&rank, d, limit, false).await })
            };
            let mut growing: Call<()> = {
                let rank = rank.clone();
                Box::pin(async move {
                    for number in 0..60 {
                        create(&rank, d, &format!("name {number} new")).await?;
                    }
                    Ok(())
                })
            };
            // Several steps of the one for each of the other.
            let (mut listed, mut is_grown) = (None, false);
            while listed.is_none() {
                if !is_grown {
                    is_grown = advance(&store, 1, &mut growing, steps).is_some();
                }
                listed = advance(&store, 0, &mut listing, 1);
            }
            let listed = listed.unwrap().unwrap();
            assert!(listed.is_sorted(), "{steps}, {limit}: {listed:?}");
            let all_the_time = listed.iter().filter(|name| names.contains(*name));
            assert!(all_the_time.eq(&names), "{steps}, {limit}: {listed:?}");
            grown += fragments(&store) - before;
        }
    }
    assert!(grown > 30, "{grown}");
}

#[test]
fn a_split_that_stops_anywhere_is_continued_by_others_and_loses_nothing() {
    let mut left = 0;
    // The third entry begins the split, and the next ones move entries.
    for earlier in 2..6 {
        for at in 0.. {
            let mut is_over = false;
            for is_late in [false, true] {
                let store = SlowStore::default();
                let (rank, d) = at_once(&store, async {
                    let rank = Arc::new(open(&store, 2).await);
                    let d = make_directory(&rank, "/d").await;
                    for number in 0..earlier {
                        create(&rank, d, &format!("{number}")).await.unwrap();
                    }
                    (rank, d)
                });
                let mut creating: Call<Attributes> = {
                    let rank = rank.clone();
                    Box::pin(async move { create(&rank, d, "last").await })
                };
                let created = advance(&store, 0, &mut creating, at);
                is_over = created.is_some();
                // The rank goes away; its last requests are lost, or come much later.
                store.orphan(0);
                if !is_late {
                    store.waiting().into_iter().for_each(|(id, _)| store.drop_request(id));
                }
                let names = at_once(&store, async {
                    let other = open(&store, 2).await;
                    let mut names: BTreeSet<String> =
                        (0..earlier).map(|number| format!("{number}")).collect();
                    for number in 10..16 {
                        create(&other, d, &format!("{number}")).await.unwrap();
                        names.insert(format!("{number}"));
                        for name in &names {
                            let found = other.lookup(&Credentials::root(), d, name.as_bytes()).await;
                            assert!(found.is_ok(), "{earlier}, {at}: {name}: {found:?}");
                        }
                    }
                    names
                });
                store.waiting().into_iter().for_each(|(id, _)| store.perform(id, false));
                let text = format!("{earlier}, {at}, {is_late}");
                at_once(&store, async {
                    let doctor = open(&store, 2).await;
                    let report = doctor.check(true).await.unwrap();
                    assert!(report.is_clean(), "{text}: {report:?}");
                    left += usize::from(!report.findings.is_empty());
                    let report = doctor.check(false).await.unwrap();
                    assert!(report.findings.is_empty() && !report.changed, "{text}: {report:?}");
                    let mut listed = list(&doctor, d, 3, true).await.unwrap();
                    if created.is_some() {
                        assert!(listed.contains(&"last".to_owned()), "{text}");
                    }
                    listed.retain(|name| name != "last");
                    assert!(listed.iter().eq(&names), "{text}: {listed:?}");
                });
            }
            // A call that has come to its end has no more steps to stop at.
            if is_over {
                break;
            }
        }
    }
    println!("{left} checks found something to be mended");
}

#[test]
fn a_call_that_a_step_of_a_split_comes_in_between_of_finds_its_entry() {
    let name = |number: usize| format!("{number}");
    let mut refused = 0;
    for number in [0, 1, 2, 4, 5, 6, 7, 12, 13, 14] {
        for at in 0.. {
            let store = SlowStore::default();
            let (rank, other, d) = at_once(&store, async {
                let (rank, other) = (open(&store, 1 << 40).await, open(&store, 2).await);
                let d = make_directory(&rank, "/d").await;
                for number in 0..12 {
                    create(&rank, d, &name(number)).await.unwrap();
                }
                (Arc::new(rank), other, d)
            });
            // The entry is removed, renamed within the directory, or made.
            let mut call: Call<()> = {
                let (rank, root) = (rank.clone(), Credentials::root());
                let (from, to) = (name(number), format!("{number} renamed"));
                Box::pin(async move {
                    match number {
                        0..4 => rank.unlink(&root, d, from.as_bytes()).await,
                        4..12 => rank.rename(&root, (d, from.as_bytes()), (d, to.as_bytes()), false).await,
                        _ => create(&rank, d, &from).await.map(|_| ()),
                    }
                })
            };
            let mut done = advance(&store, 0, &mut call, at);
            let is_over = done.is_some();
            let before = fragments(&store);
            at_once(&store, async {
                for number in 100..110 {
                    create(&other, d, &name(number)).await.unwrap();
                }
            });
            refused += usize::from(!is_over && fragments(&store) > before);
            done = done.or_else(|| advance(&store, 0, &mut call, usize::MAX));
            done.unwrap().unwrap();
            let mut names: BTreeSet<String> = (0..12).chain(100..110).map(name).collect();
            match number {
                0..4 => assert!(names.remove(&name(number))),
                4..12 => {
                    assert!(names.remove(&name(number)) && names.insert(format!("{number} renamed")));
                }
                _ => assert!(names.insert(name(number))),
            }
            at_once(&store, async {
                for name in &names {
                    let found = other.lookup(&Credentials::root(), d, name.as_bytes()).await;
                    assert!(found.is_ok(), "{number}, {at}: {name}: {found:?}");
                }
                let listed = list(&other, d, 3, true).await.unwrap();
                assert!(listed.iter().eq(&names), "{number}, {at}: {listed:?}");
                let report = other.check(false).await.unwrap();
                assert_eq!(report.findings, [], "{number}, {at}");
            });
            if is_over {
                break;
            }
        }
    }
    assert!(refused > 16, "{refused}");
}

#[test]
fn a_copy_of_a_store_has_the_whole_of_a_directory_that_is_split_meanwhile() {
    for steps in [1, 3, 8] {
        let store = SlowStore::default();
        let (rank, d) = at_once(&store, async {
            let rank = Arc::new(open(&store, 4).await);
            let d = make_directory(&rank, "/d").await;
            for number in 0..12 {
                create(&rank, d, &format!("name {number}")).await.unwrap();
            }
            (rank, d)
        });
        let copy = Arc::new(MemoryStore::new());
        let mut copying = copying(&store, &copy);
        let mut growing: Call<()> = Box::pin(async move {
            for number in 12..30 {
                create(&rank, d, &format!("name {number}")).await?;
            }
            Ok(())
        });
        let (mut copied, mut is_grown) = (None, false);
        while copied.is_none() {
            if !is_grown {
                is_grown = advance(&store, 1, &mut growing, steps).is_some();
            }
            copied = advance(&store, 0, &mut copying, 1);
        }
        assert_eq!(copied.unwrap().unwrap().failed, [], "{steps}");
        at_once(&store, async {
            let rank = Rank::open(copy.clone(), RankOptions::default()).await.unwrap();
            rank.check(true).await.unwrap();
            let report = rank.check(false).await.unwrap();
            assert!(report.findings.is_empty() && !report.changed, "{steps}: {report:?}");
            let listed = list(&rank, d, 5, true).await.unwrap();
            for number in 0..12 {
                assert!(listed.contains(&format!("name {number}")), "{steps}: {listed:?}");
            }
        });
    }
}
