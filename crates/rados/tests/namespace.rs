//! The namespace on a cluster: its calls, fences of exclusive ranks, directories that are split, several clients that work on it at
//! once, and clients that end in the middle of a change.

mod cluster;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use cluster::{Cluster, open};
use nacre_meta::inode::{Ino, InodeKind};
use nacre_meta::{Creation, Credentials, Error, Rank, RankOptions};
use nacre_object::{ObjectId, ObjectStore, Outcome, Reply, Transaction};
use nacre_rados::RadosStore;
use tokio::sync::Notify;

/// The changes by which every client of the crowd takes part.
const ROUNDS: usize = 12;
/// The clients of the crowd, each with a connection of its own.
const CLIENTS: usize = 2;

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

async fn rank_with(store: Arc<dyn ObjectStore>, options: RankOptions) -> Rank {
    Rank::open(store, RankOptions { create: true, ..options }).await.unwrap()
}

async fn rank(store: &RadosStore) -> Rank {
    rank_with(Arc::new(store.clone()), RankOptions::default()).await
}

fn root() -> Credentials {
    Credentials::root()
}

fn file() -> Creation {
    Creation::new(InodeKind::File, 0o644)
}

async fn directory(rank: &Rank, above: Ino, name: &str) -> Ino {
    let creation = Creation::new(InodeKind::Directory, 0o755);
    rank.create(&root(), above, name.as_bytes(), creation).await.unwrap().ino
}

/// Returns the inode of a path, if it leads to one.
async fn find(rank: &Rank, path: &str) -> Option<Ino> {
    match rank.resolve(&root(), path.as_bytes(), true).await {
        Ok(found) => Some(found.ino),
        Err(Error::NotFound) => None,
        Err(error) => panic!("{path}: {error}"),
    }
}

async fn content(rank: &Rank, path: &str) -> Bytes {
    let ino = find(rank, path).await.unwrap_or_else(|| panic!("{path} is not there"));
    rank.read_file(ino, 0, 8 << 20).await.unwrap()
}

/// Mends what clients that ended have left, and checks that nothing is wrong then.
async fn check_is_clean(rank: &Rank) {
    let mended = rank.check(true).await.unwrap();
    assert!(mended.is_clean(), "{mended:?}");
    let report = rank.check(false).await.unwrap();
    assert!(report.is_clean() && report.findings.is_empty() && report.unfinished.is_empty(), "{report:?}");
}

#[test]
fn calls_do_what_they_do_elsewhere_and_leave_a_clean_namespace() {
    let cluster = Cluster::shared();
    let store = cluster.open("calls");
    run(async {
        let rank = rank(&store).await;
        let (a, b) = (directory(&rank, Ino::ROOT, "a").await, directory(&rank, Ino::ROOT, "b").await);
        let x = rank.create(&root(), a, b"x", file()).await.unwrap().ino;
        assert_eq!(rank.create(&root(), a, b"x", file()).await.err(), Some(Error::Exists));
        // Over several objects, with a hole, made longer and shorter.
        let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| (at >> 3) as u8).collect();
        rank.write_file(x, 1000, bytes.clone().into()).await.unwrap();
        assert_eq!(rank.append_file(x, "end".into()).await, Ok(1000 + bytes.len() as u64));
        let whole = [&[0u8; 1000][..], &bytes[..], &b"end"[..]].concat();
        assert!(content(&rank, "/a/x").await == whole);
        rank.truncate(&root(), x, 5000).await.unwrap();
        rank.truncate(&root(), x, 9000).await.unwrap();
        assert!(content(&rank, "/a/x").await == [&whole[..5000], &[0; 4000][..]].concat());

        rank.link(&root(), x, b, b"hard").await.unwrap();
        rank.rename(&root(), (a, b"x"), (b, b"moved"), false).await.unwrap();
        assert_eq!((find(&rank, "/a/x").await, find(&rank, "/b/moved").await), (None, Some(x)));
        assert_eq!(rank.stat(x).await.unwrap().links, 2);
        rank.create(&root(), b, b"symbolic", Creation::symlink("moved")).await.unwrap();
        assert_eq!(find(&rank, "/b/symbolic").await, Some(x));
        // What is in the way is replaced; a directory does not go into itself.
        let victim = rank.create(&root(), a, b"victim", file()).await.unwrap().ino;
        rank.rename(&root(), (b, b"hard"), (a, b"victim"), false).await.unwrap();
        assert_eq!(rank.stat(victim).await.err(), Some(Error::NotFound));
        let below = directory(&rank, a, "below").await;
        let into_itself = rank.rename(&root(), (Ino::ROOT, b"a"), (below, b"a"), false).await;
        assert!(matches!(into_itself, Err(Error::Invalid(_))), "{into_itself:?}");
        rank.rename(&root(), (a, b"below"), (b, b"below"), false).await.unwrap();
        assert_eq!(rank.rmdir(&root(), Ino::ROOT, b"b").await.err(), Some(Error::NotEmpty));
        rank.set_attribute(&root(), x, b"user.note", Some("a\0b".into()), None).await.unwrap();
        assert_eq!(rank.attribute(&root(), x, b"user.note").await, Ok(Bytes::from("a\0b")));

        for (above, name) in [(a, "victim"), (b, "moved"), (b, "symbolic")] {
            rank.unlink(&root(), above, name.as_bytes()).await.unwrap();
        }
        assert_eq!(rank.stat(x).await.err(), Some(Error::NotFound));
        rank.rmdir(&root(), b, b"below").await.unwrap();
        rank.rmdir(&root(), Ino::ROOT, b"b").await.unwrap();
        rank.close().await.unwrap();
        let report = rank.check(false).await.unwrap();
        assert!(report.is_clean() && report.findings.is_empty(), "{report:?}");
        assert_eq!((report.directories, report.files, report.objects, report.ranks), (2, 0, 0, 0));
    });
}

#[test]
fn a_rank_is_refused_where_a_later_exclusive_one_has_been() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("fences");
    let stores = [open(&uri), open(&uri)];
    run(async {
        let exclusive = async |store: &RadosStore| {
            let options = RankOptions { exclusive: true, ..RankOptions::default() };
            rank_with(Arc::new(store.clone()), options).await
        };
        let shared = rank(&stores[0]).await;
        let first = exclusive(&stores[0]).await;
        let d = directory(&first, Ino::ROOT, "d").await;
        assert_eq!(shared.create(&root(), d, b"x", file()).await.err(), Some(Error::Fenced));
        // Over another connection, which does not know what the first one knows.
        let second = exclusive(&stores[1]).await;
        first.create(&root(), d, b"one", file()).await.unwrap();
        second.create(&root(), d, b"two", file()).await.unwrap();
        assert_eq!(first.create(&root(), d, b"three", file()).await.err(), Some(Error::Fenced));
        assert_eq!(first.unlink(&root(), d, b"one").await.err(), Some(Error::Fenced));
        assert_eq!(first.readdir(&root(), d, b"", 9, true).await.unwrap().entries.len(), 2);
        second.unlink(&root(), d, b"one").await.unwrap();
        second.close().await.unwrap();
        check_is_clean(&second).await;
    });
}

#[test]
fn a_directory_that_is_split_keeps_its_entries() {
    let cluster = Cluster::shared();
    let store = cluster.open("split");
    run(async {
        let options = RankOptions { split_entries: Some(4), ..RankOptions::default() };
        let rank = rank_with(Arc::new(store.clone()), options).await;
        let names: Vec<String> = (0..24).map(|number| format!("name-{number:02}")).collect();
        for name in &names {
            rank.create(&root(), Ino::ROOT, name.as_bytes(), file()).await.unwrap();
        }
        for name in &names[..8] {
            rank.unlink(&root(), Ino::ROOT, name.as_bytes()).await.unwrap();
        }
        let page = rank.readdir(&root(), Ino::ROOT, b"", 100, false).await.unwrap();
        let found: Vec<Bytes> = page.entries.into_iter().map(|listed| listed.name).collect();
        assert_eq!(found, names[8..]);
        rank.close().await.unwrap();
        check_is_clean(&rank).await;
    });
}

/// One client of the crowd: makes, fills, moves, links and removes files of its own in directories of all. Returns what it was told is
/// there at the end: the paths, with the content, or nothing.
async fn crowd(rank: &Rank, client: usize, [a, b]: [Ino; 2]) -> BTreeMap<String, Option<String>> {
    let mut told = BTreeMap::new();
    for round in 0..ROUNDS {
        let (made, moved, linked) =
            (format!("m-{client}-{round}"), format!("r-{client}-{round}"), format!("l-{client}-{round}"));
        let text = format!("round {round} of client {client}");
        let ino = rank.create(&root(), a, made.as_bytes(), file()).await.unwrap().ino;
        rank.write_file(ino, 0, text.clone().into()).await.unwrap();
        rank.link(&root(), ino, a, linked.as_bytes()).await.unwrap();
        rank.rename(&root(), (a, made.as_bytes()), (b, moved.as_bytes()), false).await.unwrap();
        told.insert(format!("/a/{made}"), None);
        told.insert(format!("/a/{linked}"), Some(text.clone()));
        told.insert(format!("/b/{moved}"), Some(text));
        if round % 3 == 0 {
            rank.unlink(&root(), b, moved.as_bytes()).await.unwrap();
            told.insert(format!("/b/{moved}"), None);
        }
    }
    told
}

/// Calls that all clients make at once, of which one may succeed: returns how often one did.
async fn contend(rank: &Rank, client: usize, [a, b]: [Ino; 2]) -> [Vec<bool>; 2] {
    let mut won = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        let (name, moved) = (format!("c-{round}"), format!("w-{round}-{client}"));
        won[0].push(match rank.create(&root(), a, name.as_bytes(), file()).await {
            Ok(_) => true,
            Err(Error::Exists) => false,
            Err(error) => panic!("{error}"),
        });
        won[1].push(match rank.rename(&root(), (a, name.as_bytes()), (b, moved.as_bytes()), false).await {
            Ok(()) => true,
            Err(Error::NotFound) => false,
            Err(error) => panic!("{error}"),
        });
    }
    won
}

#[test]
fn clients_at_work_at_once_find_every_change_that_was_acknowledged() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("crowd");
    let stores: Vec<RadosStore> = (0..CLIENTS).map(|_| open(&uri)).collect();
    let reader = open(&uri);
    run(async {
        let first = rank(&stores[0]).await;
        let directories = [directory(&first, Ino::ROOT, "a").await, directory(&first, Ino::ROOT, "b").await];
        let mut clients = Vec::new();
        for (client, store) in stores.iter().enumerate() {
            let (working, contending) = (rank(store).await, rank(store).await);
            clients.push(tokio::spawn(async move {
                let told = crowd(&working, client, directories);
                let (told, won) = tokio::join!(told, contend(&contending, client, directories));
                working.close().await.unwrap();
                contending.close().await.unwrap();
                (told, won)
            }));
        }
        let mut all_told = BTreeMap::new();
        let mut moved = 0;
        for client in clients {
            let (told, [made, renamed]) = client.await.unwrap();
            all_told.extend(told);
            // A file that was moved may be made again by another one; each file that was made is moved once.
            moved += made.iter().filter(|won| **won).count() as i64;
            moved -= renamed.iter().filter(|won| **won).count() as i64;
        }
        assert_eq!(moved, 0, "a file was made or moved twice, or lost");
        let reader = rank(&reader).await;
        for (path, text) in &all_told {
            match text {
                Some(text) => assert_eq!(content(&reader, path).await, *text, "{path}"),
                None => assert_eq!(find(&reader, path).await, None, "{path}"),
            }
        }
        first.close().await.unwrap();
        let report = reader.check(false).await.unwrap();
        assert!(report.is_clean() && report.findings.is_empty(), "{report:?}");
        assert_eq!(report.ranks, 0);
    });
}

#[test]
fn directories_that_are_moved_into_each_other_at_once_stay_below_the_root() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("circle");
    let stores = [open(&uri), open(&uri)];
    run(async {
        let ranks = [rank(&stores[0]).await, rank(&stores[1]).await];
        for round in 0..4 {
            let names = [format!("p-{round}"), format!("q-{round}")];
            let p = directory(&ranks[0], Ino::ROOT, &names[0]).await;
            let q = directory(&ranks[0], Ino::ROOT, &names[1]).await;
            let [one, other] = [names[0].as_bytes(), names[1].as_bytes()];
            let user = root();
            let (one, other) = tokio::join!(
                ranks[0].rename(&user, (Ino::ROOT, one), (q, one), false),
                ranks[1].rename(&user, (Ino::ROOT, other), (p, other), false),
            );
            assert!(one.is_ok() != other.is_ok(), "{one:?}, {other:?}");
        }
        for rank in &ranks {
            rank.close().await.unwrap();
        }
        check_is_clean(&ranks[0]).await;
    });
}

/// A store whose client ends with its change of a number: that one is sent, or is not, and nobody hears of it or of anything after.
struct Mortal {
    inner: RadosStore,
    /// The changes that are still made.
    left: AtomicUsize,
    /// True if the last one is sent.
    sends_last: bool,
    is_dead: AtomicBool,
    died: Notify,
}

impl Mortal {
    fn new(inner: &RadosStore, left: usize, sends_last: bool) -> Arc<Mortal> {
        let (left, is_dead, died) = (AtomicUsize::new(left), AtomicBool::new(false), Notify::new());
        Arc::new(Mortal { inner: inner.clone(), left, sends_last, is_dead, died })
    }
}

impl ObjectStore for Mortal {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let is_change = !transaction.writes.is_empty();
        if !is_change && !self.is_dead.load(Ordering::SeqCst) {
            return self.inner.apply(object, transaction);
        }
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() {
            return self.inner.apply(object, transaction);
        }
        let is_last = !self.is_dead.swap(true, Ordering::SeqCst);
        let sent = (is_last && self.sends_last).then(|| self.inner.apply(object, transaction));
        if is_last {
            self.died.notify_one();
        }
        Reply::pending(async move {
            if let Some(sent) = sent {
                drop(sent.await);
            }
            std::future::pending().await
        })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }
}

#[test]
fn a_client_that_ends_in_the_middle_of_a_move_leaves_the_file_in_one_place() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("ends");
    let (mortal, other) = (open(&uri), open(&uri));
    run(async {
        let doctor = rank(&other).await;
        let (a, b) = (directory(&doctor, Ino::ROOT, "a").await, directory(&doctor, Ino::ROOT, "b").await);
        let (mut stayed, mut moved) = (0_usize, 0_usize);
        for step in 0..64 {
            let name = format!("x-{step}");
            let ino = doctor.create(&root(), a, name.as_bytes(), file()).await.unwrap().ino;
            let store = Mortal::new(&mortal, step / 2, step % 2 == 1);
            let client = rank_with(store.clone(), RankOptions::default()).await;
            let user = root();
            let call = client.rename(&user, (a, name.as_bytes()), (b, name.as_bytes()), false);
            // What was sent may take effect at any time, as for a process that was killed.
            let done = tokio::select! {
                done = call => Some(done),
                () = store.died.notified() => None,
            };
            drop(client);
            let places = [format!("/a/{name}"), format!("/b/{name}")];
            let mut found = [find(&doctor, &places[0]).await, find(&doctor, &places[1]).await];
            if found[0].is_some() == found[1].is_some() {
                // It took effect between the two looks.
                found = [find(&doctor, &places[0]).await, find(&doctor, &places[1]).await];
            }
            match found {
                [Some(there), None] => {
                    assert!(there == ino && !matches!(done, Some(Ok(()))), "step {step}: {done:?}");
                    stayed += 1;
                }
                [None, Some(there)] => {
                    assert_eq!(there, ino, "step {step}");
                    moved += 1;
                }
                found => panic!("step {step}: {done:?}, {found:?}"),
            }
            if let Some(done) = done {
                done.unwrap();
                break;
            }
        }
        assert!(stayed >= 2 && moved >= 2, "{stayed} files stayed, {moved} were moved");
        check_is_clean(&doctor).await;
        let mut entries = 0;
        for directory in [a, b] {
            entries += doctor.readdir(&root(), directory, b"", 100, true).await.unwrap().entries.len();
        }
        assert_eq!(entries, stayed + moved);
        doctor.close().await.unwrap();
    });
}
