//! Single calls: what they do, whom they refuse, and what they leave in the store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_meta::capability::Policy;
use nacre_meta::inode::{Ino, InodeKind, Layout};
use nacre_meta::{
    Attributes, Creation, Credentials, EXECUTE, Error, READ, Rank, RankOptions, SetAttributes, SetTime, WRITE,
};
use nacre_object::testkit::MemoryStore;
use nacre_object::{Limits, ObjectId, ObjectStore, Outcome, Reply, Transaction, WriteOp};

use crate::scheduler::{SlowStore, at_once};

pub async fn open(store: &SlowStore) -> Rank {
    let options = RankOptions { create: true, ..RankOptions::default() };
    Rank::open(Arc::new(store.clone()), options).await.unwrap()
}

pub async fn make(rank: &Rank, user: &Credentials, path: &str, creation: Creation) -> Attributes {
    let (directory, name) = rank.resolve_parent(user, path.as_bytes()).await.unwrap();
    rank.create(user, directory.ino, &name, creation).await.unwrap()
}

pub fn file(mode: u32) -> Creation {
    Creation::new(InodeKind::File, mode)
}

fn directory(mode: u32) -> Creation {
    Creation::new(InodeKind::Directory, mode)
}

async fn find(rank: &Rank, path: &str) -> Result<Attributes, Error> {
    rank.resolve(&Credentials::root(), path.as_bytes(), true).await
}

#[test]
fn a_store_without_a_namespace_is_told_from_an_empty_one() {
    let store = SlowStore::default();
    at_once(&store, async {
        let open = Rank::open(Arc::new(store.clone()), RankOptions::default());
        assert_eq!(open.await.err(), Some(Error::NotFound));
        assert!(store.objects().is_empty());
        let owner = Credentials::new(7, 8);
        let options = RankOptions { create: true, owner, ..RankOptions::default() };
        let rank = Rank::open(Arc::new(store.clone()), options).await.unwrap();
        let root = rank.stat(Ino::ROOT).await.unwrap();
        assert_eq!((root.uid, root.gid, root.mode, &root.kind), (7, 8, 0o755, &InodeKind::Directory));
        // Another one finds the same.
        let again = Rank::open(Arc::new(store.clone()), RankOptions::default()).await.unwrap();
        assert_eq!(again.stat(Ino::ROOT).await.unwrap(), root);
    });
}

#[test]
fn paths_lead_through_links_and_up() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        make(&rank, &root, "/a", directory(0o755)).await;
        let b = make(&rank, &root, "/a/b", directory(0o755)).await;
        let f = make(&rank, &root, "a/b/f", file(0o644)).await;
        make(&rank, &root, "/a/up", Creation::symlink("../a/./b")).await;
        make(&rank, &root, "/absolute", Creation::symlink("/a/up/")).await;
        make(&rank, &root, "/loop", Creation::symlink("loop")).await;
        make(&rank, &root, "/dangling", Creation::symlink("nothing")).await;
        for path in ["/a/b/f", "a//b/./f", "/a/up/f", "/absolute/f", "/a/b/../b/f", "/../a/b/f"] {
            assert_eq!(find(&rank, path).await.unwrap().ino, f.ino, "{path}");
        }
        assert_eq!(find(&rank, "/absolute").await.unwrap().ino, b.ino);
        let link = rank.resolve(&root, b"/absolute", false).await.unwrap();
        assert_eq!((link.kind, &link.target[..], link.size), (InodeKind::Symlink, &b"/a/up/"[..], 6));
        // A slash at the end asks for a directory, and so follows the link.
        assert_eq!(rank.resolve(&root, b"/a/up/", false).await.unwrap().ino, b.ino);
        assert_eq!(find(&rank, "/a/b/f/").await.err(), Some(Error::NotDirectory));
        assert_eq!(find(&rank, "/a/b/f/g").await.err(), Some(Error::NotDirectory));
        assert_eq!(find(&rank, "/loop").await.err(), Some(Error::Loop));
        assert_eq!(find(&rank, "/dangling").await.err(), Some(Error::NotFound));
        assert_eq!(find(&rank, &"x".repeat(256)).await.err(), Some(Error::NameTooLong));
        // A path of any length.
        let mut deep = String::new();
        let mut at = Ino::ROOT;
        for _ in 0..300 {
            deep += "/some-name-of-a-directory";
            let creation = directory(0o755);
            at = rank.create(&root, at, b"some-name-of-a-directory", creation).await.unwrap().ino;
        }
        assert!(deep.len() > 4096);
        assert_eq!(find(&rank, &deep).await.unwrap().ino, at);
    });
}

#[test]
fn names_are_checked() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            let created = rank.create(&root, Ino::ROOT, name, file(0o644)).await;
            assert!(matches!(created, Err(Error::Invalid(_))), "{name:?}");
        }
        let long = [b'n'; 256];
        assert_eq!(rank.create(&root, Ino::ROOT, &long, file(0o644)).await.err(), Some(Error::NameTooLong));
        rank.create(&root, Ino::ROOT, &long[1..], file(0o644)).await.unwrap();
        rank.create(&root, Ino::ROOT, b"\xff\n", file(0o644)).await.unwrap();
        assert_eq!(rank.create(&root, Ino::ROOT, b"\xff\n", file(0o644)).await.err(), Some(Error::Exists));
    });
}

#[test]
fn a_sequencer_is_not_made_with_a_quota_of_no_positions() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        for (operations, is_allowed) in [(0, false), (1, true)] {
            let policy = Policy::Quota { operations, within: Duration::from_millis(100) };
            let made = rank.create(&root, Ino::ROOT, b"log", Creation::sequencer(policy, 0o644)).await;
            assert_eq!(made.is_ok(), is_allowed, "{made:?}");
        }
    });
}

#[test]
fn directories_are_listed_in_pages() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let names: Vec<String> = (0..25).map(|number| format!("n{number:02}")).collect();
        for name in names.iter().rev() {
            rank.create(&root, Ino::ROOT, name.as_bytes(), file(0o640)).await.unwrap();
        }
        for attributes in [false, true] {
            let (mut found, mut after, mut pages) = (Vec::new(), Bytes::new(), 0);
            loop {
                let page = rank.readdir(&root, Ino::ROOT, &after, 10, attributes).await.unwrap();
                pages += 1;
                after = page.entries.last().unwrap().name.clone();
                for listed in page.entries {
                    assert_eq!(listed.attributes.map(|found| found.mode), attributes.then_some(0o640));
                    found.push(String::from_utf8(listed.name.to_vec()).unwrap());
                }
                if !page.more {
                    break;
                }
            }
            assert_eq!((found, pages), (names.clone(), 3));
        }
        // Also behind what is longer than any name.
        for (after, count) in [(b'a', 25), (b'z', 0)] {
            let page = rank.readdir(&root, Ino::ROOT, &[after; 2000], 100, false).await.unwrap();
            assert_eq!(page.entries.len(), count);
        }
    });
}

#[test]
fn permissions_are_those_of_posix() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let (ada, bob) = (Credentials::new(100, 100), Credentials::new(200, 200));
        let carl = Credentials { uid: 300, gid: 300, groups: vec![100] };
        let home = make(&rank, &root, "/home", directory(0o777)).await;
        let ada_home = make(&rank, &ada, "/home/ada", directory(0o750)).await;
        assert_eq!((ada_home.uid, ada_home.gid), (100, 100));
        let f = make(&rank, &ada, "/home/ada/f", file(0o640)).await;
        // Who is in the group reads and does not write; others do not even look.
        assert_eq!(rank.lookup(&carl, ada_home.ino, b"f").await.unwrap().ino, f.ino);
        assert!(rank.open_file(&carl, f.ino, READ).await.is_ok());
        rank.close_file(f.ino).await;
        assert_eq!(rank.open_file(&carl, f.ino, WRITE).await.err(), Some(Error::Denied));
        assert_eq!(rank.lookup(&bob, ada_home.ino, b"f").await.err(), Some(Error::Denied));
        assert_eq!(rank.readdir(&bob, ada_home.ino, b"", 9, false).await.err(), Some(Error::Denied));
        for user in [&carl, &bob] {
            let created = rank.create(user, ada_home.ino, b"mine", file(0o644)).await;
            assert_eq!(created.err(), Some(Error::Denied));
            assert_eq!(rank.unlink(user, ada_home.ino, b"f").await.err(), Some(Error::Denied));
            let moved = rank.rename(user, (ada_home.ino, b"f"), (home.ino, b"f"), false).await;
            assert_eq!(moved.err(), Some(Error::Denied));
        }
        // The first class that fits decides.
        let set = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        rank.set_attributes(&ada, f.ino, &set(0o077)).await.unwrap();
        assert_eq!(rank.open_file(&ada, f.ino, READ).await.err(), Some(Error::Denied));
        // Nobody executes what nobody may, root neither; root does everything else.
        rank.set_attributes(&ada, f.ino, &set(0o000)).await.unwrap();
        assert!(rank.open_file(&root, f.ino, READ | WRITE).await.is_ok());
        rank.close_file(f.ino).await;
        assert_eq!(rank.open_file(&root, f.ino, EXECUTE).await.err(), Some(Error::Denied));
        // Modes and owners are the owner's, and of those only the group.
        assert_eq!(rank.set_attributes(&bob, f.ino, &set(0o777)).await.err(), Some(Error::NotPermitted));
        let owner = |uid, gid| SetAttributes { uid, gid, ..SetAttributes::default() };
        let given = rank.set_attributes(&ada, f.ino, &owner(Some(200), None)).await;
        assert_eq!(given.err(), Some(Error::NotPermitted));
        let given = rank.set_attributes(&ada, f.ino, &owner(None, Some(300))).await;
        assert_eq!(given.err(), Some(Error::NotPermitted));
        rank.set_attributes(&root, f.ino, &owner(Some(300), Some(200))).await.unwrap();
        let given = rank.set_attributes(&carl, f.ino, &owner(None, Some(100))).await.unwrap();
        assert_eq!((given.uid, given.gid), (300, 100));
        // Setting a time to now is for who may write, setting it otherwise for the owner.
        rank.set_attributes(&carl, f.ino, &set(0o666)).await.unwrap();
        let time = |time| SetAttributes { mtime: Some(time), ..SetAttributes::default() };
        rank.set_attributes(&bob, f.ino, &time(SetTime::Now)).await.unwrap();
        let set_time = rank.set_attributes(&bob, f.ino, &time(SetTime::To(5))).await;
        assert_eq!(set_time.err(), Some(Error::NotPermitted));
        let set_time = rank.set_attributes(&carl, f.ino, &time(SetTime::To(-5))).await.unwrap();
        assert_eq!(set_time.mtime, -5);
    });
}

#[test]
fn the_sticky_bit_and_the_group_bit_of_directories_count() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let (ada, bob) = (Credentials::new(100, 100), Credentials::new(200, 200));
        let temporary = make(&rank, &root, "/tmp", directory(0o1777)).await;
        make(&rank, &ada, "/tmp/a", file(0o666)).await;
        make(&rank, &bob, "/tmp/b", file(0o666)).await;
        assert_eq!(rank.unlink(&bob, temporary.ino, b"a").await.err(), Some(Error::NotPermitted));
        let over = rank.rename(&bob, (temporary.ino, b"b"), (temporary.ino, b"a"), false).await;
        assert_eq!(over.err(), Some(Error::NotPermitted));
        rank.unlink(&ada, temporary.ino, b"a").await.unwrap();
        let set = SetAttributes { gid: Some(500), mode: Some(0o2777), ..SetAttributes::default() };
        let team = make(&rank, &root, "/team", directory(0o777)).await;
        rank.set_attributes(&root, team.ino, &set).await.unwrap();
        let f = make(&rank, &ada, "/team/f", file(0o644)).await;
        let d = make(&rank, &ada, "/team/d", directory(0o755)).await;
        assert_eq!((f.gid, d.gid, d.mode), (500, 500, 0o2755));
    });
}

#[test]
fn renames_replace_what_they_may() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let a = make(&rank, &root, "/a", directory(0o755)).await.ino;
        make(&rank, &root, "/a/b", directory(0o755)).await;
        let c = make(&rank, &root, "/a/b/c", directory(0o755)).await.ino;
        let f = make(&rank, &root, "/f", file(0o644)).await.ino;
        let g = make(&rank, &root, "/a/g", file(0o644)).await.ino;
        let rename = async |from: Ino, name: &str, to: Ino, new: &str| {
            rank.rename(&root, (from, name.as_bytes()), (to, new.as_bytes()), false).await
        };
        let invalid = |result: Result<(), Error>| matches!(result, Err(Error::Invalid(_)));
        assert!(invalid(rename(Ino::ROOT, "a", c, "x").await));
        assert!(invalid(rename(Ino::ROOT, "a", a, "x").await));
        assert_eq!(rename(Ino::ROOT, "f", Ino::ROOT, "a").await, Err(Error::IsDirectory));
        assert_eq!(rename(Ino::ROOT, "a", Ino::ROOT, "f").await, Err(Error::NotDirectory));
        assert_eq!(rename(a, "b", Ino::ROOT, "a").await, Err(Error::NotEmpty));
        assert_eq!(rename(Ino::ROOT, "none", a, "x").await, Err(Error::NotFound));
        let kept = rank.rename(&root, (Ino::ROOT, b"f"), (a, b"g"), true).await;
        assert_eq!(kept, Err(Error::Exists));
        rename(Ino::ROOT, "f", a, "g").await.unwrap();
        assert_eq!(rank.stat(g).await.err(), Some(Error::NotFound));
        assert_eq!(find(&rank, "/a/g").await.unwrap().ino, f);
        // An empty directory makes room for another one, and what is moved knows where it is.
        let d = make(&rank, &root, "/d", directory(0o755)).await.ino;
        rename(a, "b", Ino::ROOT, "d").await.unwrap();
        assert_eq!(rank.stat(d).await.err(), Some(Error::NotFound));
        assert_eq!(find(&rank, "/d/c/../..").await.unwrap().ino, Ino::ROOT);
        // Two links to one file: nothing happens.
        rank.link(&root, f, a, b"h").await.unwrap();
        rename(a, "g", a, "h").await.unwrap();
        assert_eq!(find(&rank, "/a/g").await.unwrap().links, 2);
        rename(a, "g", a, "g2").await.unwrap();
        rank.unlink(&root, a, b"h").await.unwrap();
        assert_eq!(find(&rank, "/a/g2").await.unwrap().links, 1);
        let report = rank.check(false).await.unwrap();
        assert!(report.findings.is_empty(), "{report:?}");
        assert_eq!((report.directories, report.files), (4, 1));
    });
}

#[test]
fn attributes_of_ones_own_are_kept() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root, ada) = (open(&store).await, Credentials::root(), Credentials::new(100, 100));
        let f = make(&rank, &root, "/f", file(0o644)).await.ino;
        let value = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
        rank.set_attribute(&root, f, b"user.b", value("2"), None).await.unwrap();
        rank.set_attribute(&root, f, b"user.a", value("1"), Some(false)).await.unwrap();
        rank.set_attribute(&root, f, b"trusted.t", value("3"), None).await.unwrap();
        let again = rank.set_attribute(&root, f, b"user.a", value("1"), Some(false)).await;
        assert_eq!(again, Err(Error::Exists));
        let none = rank.set_attribute(&root, f, b"user.c", value("1"), Some(true)).await;
        assert_eq!(none, Err(Error::NoAttribute));
        assert_eq!(rank.attributes(&ada, f).await.unwrap(), ["user.a", "user.b"]);
        assert_eq!(rank.attributes(&root, f).await.unwrap().len(), 3);
        assert_eq!(rank.attribute(&ada, f, b"user.b").await.unwrap(), "2");
        assert_eq!(rank.attribute(&ada, f, b"trusted.t").await.err(), Some(Error::NotPermitted));
        let denied = rank.set_attribute(&ada, f, b"user.a", None, None).await;
        assert_eq!(denied, Err(Error::Denied));
        rank.set_attribute(&root, f, b"user.a", None, None).await.unwrap();
        assert_eq!(rank.attribute(&root, f, b"user.a").await.err(), Some(Error::NoAttribute));
        assert!(matches!(rank.attribute(&root, f, b"other.a").await, Err(Error::Unsupported(_))));
    });
}

#[test]
fn an_inode_of_a_type_of_its_own_has_a_state_that_goes_with_it() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root, ada) = (open(&store).await, Credentials::root(), Credentials::new(1000, 1000));
        let objects = store.objects();
        let kind = InodeKind::Typed("counter".to_owned());
        let found = make(&rank, &root, "/count", Creation::new(kind.clone(), 0o644)).await;
        assert_eq!((&found.kind, found.size), (&kind, 0));
        let ino = found.ino;
        // Permissions are those of the inode; the state is an object of its own.
        let typed = rank.typed(&ada, ino, READ).await.unwrap();
        assert_eq!((&typed.name[..], &typed.object, typed.fence), ("counter", &ino.state_object(), None));
        assert_eq!(rank.typed(&ada, ino, WRITE).await.err(), Some(Error::Denied));
        let plain = make(&rank, &root, "/plain", file(0o666)).await.ino;
        assert!(matches!(rank.typed(&ada, plain, READ).await, Err(Error::Unsupported(_))));
        assert!(matches!(rank.read_file(ino, 0, 9).await, Err(Error::Unsupported(_))));
        assert!(matches!(rank.write_file(ino, 0, "data".into()).await, Err(Error::Unsupported(_))));
        assert!(matches!(rank.truncate(&root, ino, 0).await, Err(Error::Unsupported(_))));
        // As a method changes it, under a fence of its own.
        let change = || {
            let value = Bytes::from_static(b"7");
            Transaction::new()
                .change(WriteOp::SetKey { key: "counter".parse().unwrap(), value })
                .change(WriteOp::RaiseFence { token: 9 })
        };
        store.apply(&ino.state_object(), change()).await.unwrap();
        rank.rename(&root, (Ino::ROOT, b"count"), (Ino::ROOT, b"renamed"), false).await.unwrap();
        rank.link(&root, ino, Ino::ROOT, b"second").await.unwrap();
        rank.unlink(&root, Ino::ROOT, b"renamed").await.unwrap();
        assert!(rank.check(false).await.unwrap().findings.is_empty());
        assert_eq!(store.objects().len(), objects.len() + 3, "an inode, a state and a log");
        rank.unlink(&root, Ino::ROOT, b"second").await.unwrap();
        rank.unlink(&root, Ino::ROOT, b"plain").await.unwrap();
        assert_eq!(rank.typed(&root, ino, READ).await.err(), Some(Error::NotFound));
        rank.close().await.unwrap();
        assert_eq!(store.objects(), objects);

        // A method that comes too late leaves a state behind, which the check removes.
        store.apply(&ino.state_object(), change()).await.unwrap();
        let report = rank.check(false).await.unwrap();
        assert_eq!((report.findings.len(), report.is_clean()), (1, false), "{report:?}");
        assert!(rank.check(true).await.unwrap().is_clean());
        assert_eq!(store.objects(), objects);
        // Names of kinds, and policies that there are not, are refused.
        for kind in ["file", ""] {
            let creation = Creation::new(InodeKind::Typed(kind.to_owned()), 0o644);
            assert!(matches!(rank.create(&root, Ino::ROOT, b"x", creation).await, Err(Error::Invalid(_))));
        }
        let creation = Creation {
            target: "sometimes".into(),
            ..Creation::new(InodeKind::Typed("sequencer".to_owned()), 0o644)
        };
        assert!(matches!(rank.create(&root, Ino::ROOT, b"x", creation).await, Err(Error::Invalid(_))));
    });
}

#[test]
fn a_rank_is_refused_wherever_a_later_exclusive_one_has_been() {
    let store = SlowStore::default();
    at_once(&store, async {
        let root = Credentials::root();
        let shared = open(&store).await;
        let options = RankOptions { exclusive: true, ..RankOptions::default() };
        let first = Rank::open(Arc::new(store.clone()), options.clone()).await.unwrap();
        let d = make(&first, &root, "/d", directory(0o755)).await.ino;
        assert_eq!(shared.create(&root, d, b"x", file(0o644)).await.err(), Some(Error::Fenced));
        let second = Rank::open(Arc::new(store.clone()), options).await.unwrap();
        assert!(second.token() > first.token() && first.token() > 0);
        // Until the second one comes to an object, the first one may change it.
        first.create(&root, d, b"one", file(0o644)).await.unwrap();
        second.create(&root, d, b"two", file(0o644)).await.unwrap();
        assert_eq!(first.create(&root, d, b"three", file(0o644)).await.err(), Some(Error::Fenced));
        assert_eq!(first.unlink(&root, d, b"one").await.err(), Some(Error::Fenced));
        // Reading is free, and a shared rank that is opened now stands beside the second one.
        assert_eq!(first.readdir(&root, d, b"", 9, true).await.unwrap().entries.len(), 2);
        open(&store).await.unlink(&root, d, b"one").await.unwrap();
    });
}

#[test]
fn what_is_removed_leaves_nothing_in_the_store() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let before = store.objects();
        let d = make(&rank, &root, "/d", directory(0o755)).await.ino;
        let f = make(&rank, &root, "/d/f", file(0o644)).await.ino;
        rank.write_file(f, 3 << 20, Bytes::from_static(b"data")).await.unwrap();
        rank.link(&root, f, Ino::ROOT, b"second").await.unwrap();
        rank.unlink(&root, d, b"f").await.unwrap();
        assert_eq!(rank.read_file(f, 3 << 20, 9).await.unwrap(), "data");
        rank.unlink(&root, Ino::ROOT, b"second").await.unwrap();
        assert_eq!(rank.rmdir(&root, d, b"none").await.err(), Some(Error::NotFound));
        rank.rmdir(&root, Ino::ROOT, b"d").await.unwrap();
        rank.close().await.unwrap();
        assert_eq!(store.objects(), before);
    });
}

#[test]
fn a_file_that_is_open_stays_while_its_links_go() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        let f = make(&rank, &root, "/f", file(0o644)).await.ino;
        rank.write_file(f, 0, Bytes::from_static(b"data")).await.unwrap();
        rank.open_file(&root, f, READ | WRITE).await.unwrap();
        rank.open_file(&root, f, READ).await.unwrap();
        rank.unlink(&root, Ino::ROOT, b"f").await.unwrap();
        assert_eq!(find(&rank, "/f").await.err(), Some(Error::NotFound));
        rank.write_file(f, 4, Bytes::from_static(b" and more")).await.unwrap();
        rank.close_file(f).await;
        assert_eq!(rank.read_file(f, 0, 99).await.unwrap(), "data and more");
        rank.close_file(f).await;
        assert_eq!(rank.read_file(f, 0, 99).await.err(), Some(Error::NotFound));
        assert!(rank.check(false).await.unwrap().findings.is_empty());
        // A rank that goes away while the file is open leaves it to the check.
        let g = make(&rank, &root, "/g", file(0o644)).await.ino;
        rank.write_file(g, 0, Bytes::from_static(b"data")).await.unwrap();
        rank.open_file(&root, g, READ).await.unwrap();
        rank.unlink(&root, Ino::ROOT, b"g").await.unwrap();
        rank.close().await.unwrap();
        drop(rank);
        let other = open(&store).await;
        assert!(other.stat(g).await.is_ok());
        assert!(other.check(true).await.unwrap().is_clean());
        assert_eq!(other.stat(g).await.err(), Some(Error::NotFound));
        assert_eq!(other.ranks().await.unwrap(), []);
    });
}

#[tokio::test]
async fn a_namespace_is_kept_by_any_store() {
    let rank =
        Rank::open(Arc::new(MemoryStore::new()), RankOptions { create: true, ..RankOptions::default() });
    let rank = Arc::new(rank.await.unwrap());
    let root = Credentials::root();
    let created = (0..64).map(|number| {
        let (rank, root) = (rank.clone(), root.clone());
        tokio::spawn(async move {
            let name = format!("{number}");
            rank.create(&root, Ino::ROOT, name.as_bytes(), file(0o644)).await.unwrap().ino
        })
    });
    let mut inodes = std::collections::HashSet::new();
    for task in created.collect::<Vec<_>>() {
        inodes.insert(task.await.unwrap());
    }
    assert_eq!(inodes.len(), 64);
    assert_eq!(rank.readdir(&root, Ino::ROOT, b"", 100, false).await.unwrap().entries.len(), 64);
}

/// A store that lets an object have so many bytes.
struct Small(MemoryStore, u64);

impl ObjectStore for Small {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.0.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.0.list(after, limit)
    }

    fn limits(&self) -> Reply<Limits> {
        Reply::ready(Ok(Limits { fork_bytes_max: self.1 }))
    }
}

#[tokio::test]
async fn files_have_objects_that_the_store_can_hold() {
    const MIB: u64 = 1 << 20;
    let root = Credentials::root();
    for (most, object_bytes) in [(128 * MIB, 64 * MIB), (90 * MIB, 45 * MIB), (u64::MAX, 64 * MIB)] {
        let options = RankOptions { create: true, ..RankOptions::default() };
        let rank = Rank::open(Arc::new(Small(MemoryStore::new(), most)), options).await.unwrap();
        let layout = rank.stat(Ino::ROOT).await.unwrap().layout;
        assert_eq!(layout, Layout { object_bytes, ..Layout::default() });
        let as_large =
            |object_bytes| Creation { layout: Some(Layout { object_bytes, ..layout }), ..directory(0o755) };
        rank.create(&root, Ino::ROOT, b"small", as_large(MIB)).await.unwrap();
        let large = rank.create(&root, Ino::ROOT, b"large", as_large(128 * MIB)).await;
        let set = SetAttributes { layout: as_large(128 * MIB).layout, ..SetAttributes::default() };
        let changed = rank.set_attributes(&root, Ino::ROOT, &set).await;
        match most {
            u64::MAX => assert!(large.is_ok() && changed.is_ok()),
            _ => {
                let error = large.unwrap_err();
                assert!(error.to_string().contains(&format!("holds {most} bytes in one at most")), "{error}");
                assert!(matches!(changed, Err(Error::Invalid(_))), "{changed:?}");
            }
        }
    }
}

#[test]
fn a_page_whose_inodes_are_all_gone_is_not_taken_for_the_last_one() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        for name in ["/a", "/b", "/c", "/d"] {
            make(&rank, &root, name, file(0o644)).await;
        }
        // The first two lose their inodes, as if they were removed after the entries had been read.
        for path in ["/a", "/b"] {
            let ino = find(&rank, path).await.unwrap().ino;
            rank.write_file(ino, 0, Bytes::from_static(b"data")).await.unwrap();
            store.apply(&ino.object(), Transaction::new().change(WriteOp::Remove)).await.unwrap();
        }
        let page = rank.readdir(&root, Ino::ROOT, b"", 2, true).await.unwrap();
        let names: Vec<&[u8]> = page.entries.iter().map(|listed| &listed.name[..]).collect();
        assert_eq!((&names[..], page.more), (&[&b"c"[..], b"d"][..], false));
    });
}

#[test]
fn a_directory_goes_while_a_file_that_was_in_it_is_open() {
    let store = SlowStore::default();
    at_once(&store, async {
        let (rank, root) = (open(&store).await, Credentials::root());
        for is_closed in [true, false] {
            let d = make(&rank, &root, "/d", directory(0o755)).await.ino;
            let f = make(&rank, &root, "/d/f", file(0o644)).await.ino;
            rank.write_file(f, 0, Bytes::from_static(b"content")).await.unwrap();
            rank.open_file(&root, f, READ).await.unwrap();
            rank.unlink(&root, d, b"f").await.unwrap();
            rank.rmdir(&root, Ino::ROOT, b"d").await.unwrap();
            assert_eq!(&rank.read_file(f, 0, 100).await.unwrap()[..], b"content");
            // The check of another rank sees nothing wrong.
            let other = open(&store).await;
            let report = other.check(false).await.unwrap();
            assert_eq!((&report.findings[..], report.ranks), (&[][..], 1));
            if is_closed {
                rank.close_file(f).await;
                rank.close().await.unwrap();
                assert_eq!(other.ranks().await.unwrap(), [0; 0]);
            } else {
                // The rank goes away.
                assert!(other.check(true).await.unwrap().is_clean());
            }
            assert_eq!(other.stat(f).await.err(), Some(Error::NotFound));
            let left: Vec<String> = store.objects().into_iter().filter(|id| id.contains("/d/")).collect();
            assert!(left.is_empty(), "{left:?}");
        }
    });
}
