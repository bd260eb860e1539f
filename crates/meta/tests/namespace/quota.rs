//! Quotas: what they refuse, what is counted, and what is left of the counts when ranks go away.

use std::sync::Arc;

use bytes::Bytes;
use nacre_meta::inode::{Ino, InodeKind};
use nacre_meta::{Creation, Credentials, Error, Limits, READ, Rank, RankOptions, Usage};
use nacre_object::{ObjectStore, Transaction, WriteOp};

use crate::calls::{file, make, open};
use crate::recovery::{Call, advance};
use crate::scheduler::{SlowStore, at_once};

fn bytes(len: usize) -> Bytes {
    vec![7; len].into()
}

fn limits(bytes: Option<u64>, entries: Option<u64>) -> Limits {
    Limits { bytes, entries }
}

async fn make_directory(rank: &Rank, path: &str) -> Ino {
    make(rank, &Credentials::root(), path, Creation::new(InodeKind::Directory, 0o755)).await.ino
}

/// Makes a directory with a quota.
async fn make_limited(rank: &Rank, path: &str, limits: Limits) -> Ino {
    let directory = make_directory(rank, path).await;
    rank.set_quota(&Credentials::root(), directory, limits).await.unwrap();
    directory
}

async fn used(rank: &Rank, directory: Ino) -> (u64, u64) {
    let Usage { bytes, entries } = rank.quota(directory).await.unwrap().unwrap().used;
    (bytes, entries)
}

/// Checks that a store has nothing that is to be mended.
async fn check(store: &SlowStore) {
    let report = open(store).await.check(false).await.unwrap();
    assert!(report.findings.is_empty() && !report.changed, "{report:?}");
}

#[test]
fn a_quota_limits_entries_and_counts_what_is_removed_off() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let d = make_limited(&rank, "/d", limits(None, Some(3))).await;
        let below = make_directory(&rank, "/d/below").await;
        let create = async |name: &[u8]| rank.create(&root, below, name, file(0o644)).await;
        let a = create(b"a").await.unwrap().ino;
        create(b"b").await.unwrap();
        assert_eq!(create(b"c").await.err(), Some(Error::QuotaExceeded));
        assert_eq!(rank.put_new(&root, d, b"c", 0o644).await.err(), Some(Error::QuotaExceeded));
        assert_eq!((Error::QuotaExceeded.errno(), Error::OtherQuota.errno()), (122, 18));
        assert_eq!(rank.lookup(&root, below, b"c").await.err(), Some(Error::NotFound));
        // A second link is no second inode, and neither is a new name.
        rank.link(&root, a, below, b"again").await.unwrap();
        rank.rename(&root, (below, b"again"), (d, b"again"), false).await.unwrap();
        rank.unlink(&root, below, b"a").await.unwrap();
        assert_eq!(create(b"c").await.err(), Some(Error::QuotaExceeded));
        // A file that is open is counted until it is closed.
        rank.open_file(&root, a, READ).await.unwrap();
        rank.unlink(&root, d, b"again").await.unwrap();
        assert_eq!(create(b"c").await.err(), Some(Error::QuotaExceeded));
        rank.close_file(a).await;
        create(b"c").await.unwrap();
        // What replaces another one takes its place.
        rank.rename(&root, (below, b"b"), (below, b"c"), false).await.unwrap();
        let empty = make_directory(&rank, "/d/empty").await;
        assert_eq!(used(&rank, empty).await, (0, 3));
        rank.rmdir(&root, d, b"empty").await.unwrap();
        assert_eq!(used(&rank, d).await, (0, 2));
        rank.unlink(&root, below, b"c").await.unwrap();
        rank.rmdir(&root, d, b"below").await.unwrap();
        assert_eq!(used(&rank, d).await, (0, 0));
        // Elsewhere nothing is limited.
        for number in 0..9_u32 {
            make(&rank, &root, &format!("/{number}"), file(0o644)).await;
        }
        // The quota goes with its directory.
        rank.rmdir(&root, Ino::ROOT, b"d").await.unwrap();
        assert!(!store.objects().iter().any(|object| object.starts_with("nacre/fs/q/")));
        rank.close().await.unwrap();
        check(&store).await;
    });
}

#[test]
fn a_quota_limits_bytes_however_they_are_written() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let d = make_limited(&rank, "/d", limits(Some(200), Some(200))).await;
        let f = make(&rank, &root, "/d/f", file(0o644)).await.ino;
        rank.write_file(f, 0, bytes(150)).await.unwrap();
        assert_eq!(rank.write_file(f, 149, bytes(52)).await.err(), Some(Error::QuotaExceeded));
        assert_eq!(rank.append_file(f, bytes(51)).await.err(), Some(Error::QuotaExceeded));
        assert_eq!(rank.truncate(&root, f, 201).await.err(), Some(Error::QuotaExceeded));
        assert_eq!((rank.stat(f).await.unwrap().size, used(&rank, d).await), (150, (150, 1)));
        // What is written over takes no more.
        rank.write_file(f, 0, bytes(150)).await.unwrap();
        rank.append_file(f, bytes(50)).await.unwrap();
        rank.truncate(&root, f, 100).await.unwrap();
        assert_eq!(used(&rank, d).await, (100, 1));
        // Both contents count until the new one has replaced the old one.
        let put = async |len: usize| {
            let mut put = rank.put(&root, f).await?;
            put.write(&bytes(len)).await?;
            put.commit().await
        };
        assert_eq!(put(101).await.err(), Some(Error::QuotaExceeded));
        assert_eq!((rank.stat(f).await.unwrap().size, used(&rank, d).await), (100, (100, 1)));
        assert_eq!(put(90).await, Ok(90));
        assert_eq!(used(&rank, d).await, (90, 1));
        let mut new = rank.put_new(&root, d, b"new", 0o644).await.unwrap();
        new.write(&bytes(111)).await.unwrap();
        assert_eq!(new.commit().await.err(), Some(Error::QuotaExceeded));
        let mut new = rank.put_new(&root, d, b"new", 0o644).await.unwrap();
        new.write(&bytes(110)).await.unwrap();
        assert_eq!(new.commit().await, Ok(110));
        assert_eq!(used(&rank, d).await, (200, 2));
        rank.unlink(&root, d, b"f").await.unwrap();
        assert_eq!(used(&rank, d).await, (110, 1));
        // Limits below the usage let nothing grow.
        rank.set_quota(&root, d, limits(Some(100), Some(200))).await.unwrap();
        let new = rank.lookup(&root, d, b"new").await.unwrap().ino;
        assert_eq!(rank.append_file(new, bytes(1)).await.err(), Some(Error::QuotaExceeded));
        make(&rank, &root, "/d/empty", file(0o644)).await;
        rank.set_quota(&root, d, Limits::default()).await.unwrap();
        rank.append_file(new, bytes(5000)).await.unwrap();
        rank.close().await.unwrap();
        let quota = open(&store).await.quota(new).await.unwrap().unwrap();
        assert_eq!((quota.root, quota.used), (d, Usage { bytes: 5110, entries: 2 }));
        check(&store).await;
    });
}

#[test]
fn nothing_is_moved_or_linked_to_a_directory_of_another_quota() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let d = make_limited(&rank, "/d", limits(None, Some(100))).await;
        let e = make_limited(&rank, "/e", Limits::default()).await;
        let inner = make_limited(&rank, "/d/inner", limits(None, Some(1))).await;
        let free = make_directory(&rank, "/free").await;
        let f = make(&rank, &root, "/d/f", file(0o644)).await.ino;
        make(&rank, &root, "/free/f", file(0o644)).await;
        make_directory(&rank, "/d/sub").await;
        for to in [e, inner, free] {
            let moved = rank.rename(&root, (d, b"f"), (to, b"new"), false).await;
            assert_eq!(moved.err(), Some(Error::OtherQuota));
            let moved = rank.rename(&root, (d, b"sub"), (to, b"new"), false).await;
            assert_eq!(moved.err(), Some(Error::OtherQuota));
            assert_eq!(rank.link(&root, f, to, b"new").await.err(), Some(Error::OtherQuota));
        }
        let moved = rank.rename(&root, (free, b"f"), (d, b"new"), false).await;
        assert_eq!(moved.err(), Some(Error::OtherQuota));
        // The inner quota counts what is in it, and the outer one does not.
        make(&rank, &root, "/d/inner/x", file(0o644)).await;
        assert_eq!(rank.create(&root, inner, b"y", file(0o644)).await.err(), Some(Error::QuotaExceeded));
        assert_eq!(used(&rank, d).await, (0, 3));
        // A directory with a quota is counted where it is, and can be moved there.
        let sub = rank.lookup(&root, d, b"sub").await.unwrap().ino;
        rank.rename(&root, (d, b"inner"), (sub, b"inner"), false).await.unwrap();
        let moved = rank.rename(&root, (sub, b"inner"), (free, b"inner"), false).await;
        assert_eq!(moved.err(), Some(Error::OtherQuota));
        rank.rename(&root, (Ino::ROOT, b"d"), (free, b"d"), false).await.unwrap();
        assert_eq!(rank.quota(f).await.unwrap().unwrap().root, d);
        assert_eq!(rank.quota(free).await.unwrap(), None);
        rank.close().await.unwrap();
        check(&store).await;
    });
}

#[test]
fn a_quota_is_set_on_an_empty_directory_by_an_administrator() {
    let store = SlowStore::default();
    at_once(&store, async {
        let owner = Credentials::new(7, 7);
        let options = RankOptions { create: true, owner: owner.clone(), ..RankOptions::default() };
        let rank = Rank::open(Arc::new(store.clone()), options).await.unwrap();
        let root = Credentials::root();
        let d = make_directory(&rank, "/d").await;
        let f = make(&rank, &root, "/f", file(0o644)).await.ino;
        let some = limits(None, Some(5));
        assert_eq!(rank.set_quota(&Credentials::new(8, 7), d, some).await, Err(Error::NotPermitted));
        assert_eq!(rank.set_quota(&owner, f, some).await, Err(Error::NotDirectory));
        assert!(matches!(rank.set_quota(&owner, Ino::ROOT, some).await, Err(Error::Invalid(_))));
        assert!(matches!(rank.remove_quota(&owner, d).await, Err(Error::Invalid(_))));
        rank.set_quota(&owner, d, some).await.unwrap();
        make(&rank, &root, "/d/x", file(0o644)).await;
        // It has one, so its limits can be changed, and others cannot remove it.
        rank.set_quota(&root, d, limits(None, Some(1))).await.unwrap();
        assert_eq!(rank.remove_quota(&Credentials::new(8, 7), d).await, Err(Error::NotPermitted));
        assert!(matches!(rank.remove_quota(&root, d).await, Err(Error::Invalid(_))));
        rank.unlink(&root, d, b"x").await.unwrap();
        rank.remove_quota(&owner, d).await.unwrap();
        assert_eq!(rank.quota(d).await.unwrap(), None);
        for name in [b"x", b"y"] {
            rank.create(&root, d, name, file(0o644)).await.unwrap();
        }
        rank.close().await.unwrap();
        check(&store).await;
    });
}

#[test]
fn ranks_with_reserves_use_nearly_all_of_a_quota_and_never_more() {
    const LIMIT: u64 = 200_000;
    let store = SlowStore::default();
    at_once(&store, async {
        let root = Credentials::root();
        let ranks = [open(&store).await, open(&store).await, open(&store).await];
        let d = make_limited(&ranks[0], "/d", limits(Some(LIMIT), None)).await;
        let mut files = Vec::new();
        for (index, rank) in ranks.iter().enumerate() {
            let name = format!("{index}");
            files.push(rank.create(&root, d, name.as_bytes(), file(0o644)).await.unwrap().ino);
        }
        let mut full = [false; 3];
        for round in 0.. {
            let index = round % 3;
            match ranks[index].append_file(files[index], bytes(97)).await {
                Ok(_) => {}
                Err(Error::QuotaExceeded) => full[index] = true,
                Err(error) => panic!("{error}"),
            }
            if full == [true; 3] {
                break;
            }
        }
        let mut sum = 0;
        for file in &files {
            sum += ranks[0].stat(*file).await.unwrap().size;
        }
        // Each of the others may hold twice the 256th part, and each has failed to add one more piece.
        assert!((LIMIT - 3 * 2 * LIMIT / 256 - 97..=LIMIT).contains(&sum), "{sum}");
        for rank in &ranks {
            rank.close().await.unwrap();
        }
        assert_eq!(used(&ranks[0], d).await, (sum, 3));
        check(&store).await;
    });
}

#[test]
fn the_check_counts_what_a_rank_that_was_killed_had_reserved() {
    let store = SlowStore::default();
    at_once(&store, async {
        let root = Credentials::root();
        let rank = open(&store).await;
        let d = make_limited(&rank, "/d", limits(Some(1 << 20), Some(1 << 20))).await;
        let f = make(&rank, &root, "/d/f", file(0o644)).await.ino;
        rank.write_file(f, 0, bytes(1000)).await.unwrap();
        // It goes away with its reserve, in the middle of a put.
        let mut put = rank.put_new(&root, d, b"new", 0o644).await.unwrap();
        put.write(&bytes(8 << 20)).await.unwrap_err();
        drop(put);
        drop(rank);
        let other = open(&store).await;
        let (bytes_used, entries) = used(&other, d).await;
        assert!(bytes_used > 1000 && entries > 1, "{bytes_used}, {entries}");
        // As long as it may be at work, nothing is wrong with that.
        assert_eq!(other.check(false).await.unwrap().findings, []);
        let report = other.check(true).await.unwrap();
        let is_count = |text: &str| text.starts_with("the quota of directory ");
        assert!(report.is_clean() && report.findings.iter().any(|found| is_count(&found.text)), "{report:?}");
        assert_eq!(used(&other, d).await, (1000, 1));
        check(&store).await;
    });
}

#[test]
fn a_reserve_from_before_a_correction_is_not_given_back() {
    let store = SlowStore::default();
    at_once(&store, async {
        let root = Credentials::root();
        let rank = open(&store).await;
        let d = make_limited(&rank, "/d", limits(None, None)).await;
        let f = make(&rank, &root, "/d/f", file(0o644)).await.ino;
        rank.write_file(f, 0, bytes(1000)).await.unwrap();
        // The check takes the rank for one that was killed.
        assert!(open(&store).await.check(true).await.unwrap().is_clean());
        let other = open(&store).await;
        assert_eq!(used(&other, d).await, (1000, 1));
        rank.close().await.unwrap();
        assert_eq!(used(&other, d).await, (1000, 1));
        check(&store).await;
    });
}

#[test]
fn a_quota_that_was_lost_begins_anew_without_limits() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let d = make_limited(&rank, "/d", limits(None, Some(1))).await;
        make(&rank, &root, "/d/f", file(0o644)).await;
        rank.close().await.unwrap();
        let quota = store.objects().into_iter().find(|object| object.starts_with("nacre/fs/q/")).unwrap();
        let remove = Transaction::new().change(WriteOp::Remove);
        store.apply(&quota.parse().unwrap(), remove).await.unwrap();
        let other = open(&store).await;
        let missing = format!("the quota of directory {d} is missing");
        let report = other.check(false).await.unwrap();
        assert!(report.findings.iter().any(|found| found.text == missing && !found.repaired), "{report:?}");
        let report = other.check(true).await.unwrap();
        assert!(report.findings.iter().any(|found| found.text == missing && found.repaired), "{report:?}");
        other.check(true).await.unwrap();
        assert_eq!(used(&other, d).await, (0, 1));
        assert_eq!(other.quota(d).await.unwrap().unwrap().limits, Limits::default());
        check(&store).await;
    });
}

#[test]
fn what_is_removed_after_a_correction_is_counted_off() {
    let store = SlowStore::default();
    at_once(&store, async {
        let root = Credentials::root();
        let rank = open(&store).await;
        let d = make_limited(&rank, "/d", limits(Some(1 << 20), Some(100))).await;
        let f = make(&rank, &root, "/d/f", file(0o644)).await.ino;
        rank.write_file(f, 0, bytes(500_000)).await.unwrap();
        let other = open(&store).await;
        assert!(other.check(true).await.unwrap().is_clean());
        assert_eq!(used(&other, d).await, (500_000, 1));
        rank.truncate(&root, f, 0).await.unwrap();
        assert_eq!(used(&other, d).await, (0, 1));
        rank.unlink(&root, d, b"f").await.unwrap();
        rank.close().await.unwrap();
        other.check(true).await.unwrap();
        assert_eq!(used(&other, d).await, (0, 0));
        check(&store).await;
    });
}

#[test]
fn a_quota_that_is_set_or_removed_in_part_is_finished_or_undone_by_others() {
    for is_set in [true, false] {
        let (mut with, mut without) = (0, 0);
        for at in 0.. {
            let store = SlowStore::default();
            let (rank, d) = at_once(&store, async {
                // A directory that was split, and is empty again.
                let options = RankOptions { create: true, split_entries: Some(1), ..RankOptions::default() };
                let rank = Arc::new(Rank::open(Arc::new(store.clone()), options).await.unwrap());
                let d = make_directory(&rank, "/d").await;
                for name in ["a", "b", "c", "d", "e"] {
                    rank.create(&Credentials::root(), d, name.as_bytes(), file(0o644)).await.unwrap();
                }
                for name in ["a", "b", "c", "d", "e"] {
                    rank.unlink(&Credentials::root(), d, name.as_bytes()).await.unwrap();
                }
                if !is_set {
                    rank.set_quota(&Credentials::root(), d, limits(None, Some(1))).await.unwrap();
                }
                (rank, d)
            });
            assert!(store.objects().iter().any(|object| object.starts_with("nacre/fs/e/")));
            let mut call: Call<()> = {
                let rank = rank.clone();
                Box::pin(async move {
                    match is_set {
                        true => rank.set_quota(&Credentials::root(), d, limits(None, Some(1))).await,
                        false => rank.remove_quota(&Credentials::root(), d).await,
                    }
                })
            };
            let done = advance(&store, 0, &mut call, at);
            store.orphan(0);
            store.waiting().into_iter().for_each(|(id, _)| store.drop_request(id));
            at_once(&store, async {
                let other = open(&store).await;
                assert!(other.check(true).await.unwrap().is_clean(), "{at}");
                check(&store).await;
                let has_quota = other.quota(d).await.unwrap().is_some();
                assert!(done.is_none() || has_quota == is_set, "{at}");
                let create =
                    async |name: &[u8]| other.create(&Credentials::root(), d, name, file(0o644)).await;
                create(b"one").await.unwrap();
                assert_eq!(create(b"two").await.err(), has_quota.then_some(Error::QuotaExceeded), "{at}");
                let objects = store.objects();
                let quotas = objects.iter().filter(|object| object.starts_with("nacre/fs/q/")).count();
                assert_eq!(quotas, usize::from(has_quota), "{at}");
                *(if has_quota { &mut with } else { &mut without }) += 1;
            });
            if let Some(done) = done {
                done.unwrap();
                break;
            }
        }
        assert!(with > 1 && without > 1, "{with}, {without}");
    }
}
