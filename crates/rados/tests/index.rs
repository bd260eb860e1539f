//! The index of names: what is listed is what there is, whatever clients did at once, wherever they died, and also in a
//! pool that was filled before there was an index.

mod cluster;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};

use cluster::{Cluster, open};
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ByteRange, Fork, Guard, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction, WriteOp,
};
use nacre_rados::RadosStore;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn id(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn apply(store: &RadosStore, name: &str, transaction: Transaction) -> Result<Outcome, StoreError> {
    block_on(store.apply(&id(name), transaction))
}

fn make(store: &RadosStore, name: &str) {
    apply(store, name, Transaction::new().write(Fork::DEFAULT, 0, "text")).unwrap();
}

fn remove(store: &RadosStore, name: &str) {
    apply(store, name, Transaction::new().change(WriteOp::Remove)).unwrap();
}

/// Removes an object, with a version that is greater than its next one.
fn remove_at(store: &RadosStore, name: &str, version: u64) {
    let guard = Guard::Proposal { fork: Fork::DEFAULT, range: ByteRange::new(0, 1), version };
    let outcome = apply(store, name, Transaction::new().guard(guard).change(WriteOp::Remove)).unwrap();
    assert!(matches!(outcome, Outcome::Done(done) if done.version == version));
}

fn exists(store: &RadosStore, name: &str) -> bool {
    let Ok(Outcome::Done(done)) = apply(store, name, Transaction::new().read(ReadOp::Stat)) else {
        panic!("no answer");
    };
    matches!(&done.answers[..], [Answer::Stat(stat)] if stat.exists)
}

/// Lists all objects, in pages of a length.
fn listed(store: &RadosStore, page: usize) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let found = block_on(store.list(after.as_ref(), page)).unwrap();
        assert!(found.len() <= page);
        let Some(last) = found.last().cloned() else { return all };
        all.extend(found.iter().map(ToString::to_string));
        after = Some(last);
    }
}

/// Returns the shard of an object, by the checksum of its id that docs/ceph.md has.
fn shard_of(name: &str) -> String {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sum = 0x6e_6163_7265 ^ name.len() as u64;
    for part in name.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(FACTOR);
        sum ^= sum >> 32;
    }
    format!("nacre-index.{:02}", (sum.wrapping_mul(FACTOR) >> 32) % 32)
}

/// The index of a namespace, seen with Ceph's own tool.
struct Index<'a> {
    cluster: &'a Cluster,
    uri: &'a str,
}

impl Index<'_> {
    fn rados(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        self.cluster.rados_in(self.uri, arguments, input)
    }

    /// Returns the RADOS objects that it consists of.
    fn objects(&self) -> Vec<String> {
        let names = String::from_utf8(self.rados(&["ls"], b"")).unwrap();
        names.lines().filter(|name| name.starts_with("nacre-index")).map(str::to_owned).collect()
    }

    /// Returns the shard that an object's entry is in, and the keys about the object, if there are any.
    fn keys(&self, name: &str) -> Option<(String, Vec<String>)> {
        let shard = shard_of(name);
        if !self.objects().contains(&shard) {
            return None;
        }
        let keys = String::from_utf8(self.rados(&["listomapkeys", &shard], b"")).unwrap();
        let of =
            |key: &&str| key.strip_prefix('n').is_some_and(|key| key.split('\u{1}').next() == Some(name));
        let keys: Vec<String> = keys.lines().filter(of).map(str::to_owned).collect();
        (!keys.is_empty()).then_some((shard, keys))
    }

    /// Waits until an object's entry has no marks; returns its shard, its key and its value.
    fn settled(&self, name: &str) -> (String, String, Vec<u8>) {
        loop {
            let (shard, keys) = self.keys(name).unwrap();
            if let [key] = &keys[..] {
                let value = self.value(&shard, key);
                return (shard, key.clone(), value);
            }
        }
    }

    /// Returns the value of a key.
    fn value(&self, shard: &str, key: &str) -> Vec<u8> {
        let file = self.cluster.dir().join(format!("entry-{}", cluster::namespace(self.uri)));
        self.rados(&["getomapval", shard, key, file.to_str().unwrap()], b"");
        std::fs::read(file).unwrap()
    }

    /// Sets a mark as a client does before it makes or removes an object; returns its shard and key. It was set at the first of
    /// the times, and noticed by a listing at the second, if there is one.
    fn mark(&self, name: &str, times: &[u64]) -> (String, String) {
        let (shard, keys) = self.keys(name).unwrap();
        let key = format!("{}\u{1}\u{1}{:032x}", keys[0], rand::random::<u128>());
        self.rados(&["setomapval", &shard, &key], &mark(times));
        (shard, key)
    }

    /// Makes all marks of an object as old as can be.
    fn age_marks(&self, name: &str) {
        let (shard, keys) = self.keys(name).unwrap();
        for key in keys.iter().filter(|key| key.contains('\u{1}')) {
            self.rados(&["setomapval", &shard, key], &mark(&[0, 0]));
        }
    }
}

/// Returns the value of a mark.
fn mark(times: &[u64]) -> Vec<u8> {
    std::iter::once(1).chain(times.iter().flat_map(|time| time.to_le_bytes())).collect()
}

fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// A little more than a day, in seconds.
const DAY: u64 = 24 * 3600 + 60;

#[test]
fn names_are_listed_in_order_page_by_page() {
    let cluster = Cluster::shared();
    let store = cluster.open("order");
    assert_eq!(listed(&store, 10), [""; 0]);
    let names: BTreeSet<String> = (0..150).map(|number| format!("{:x}", number * 7919 % 1000)).collect();
    let makes: Vec<_> = names
        .iter()
        .map(|name| store.apply(&id(name), Transaction::new().guard(Guard::Absent).change(WriteOp::Create)))
        .collect();
    for make in makes {
        assert!(matches!(block_on(make), Ok(Outcome::Done(_))));
    }
    let all: Vec<String> = names.into_iter().collect();
    for page in [1, 7, 64, 150, 1000] {
        assert_eq!(listed(&store, page), all, "pages of {page}");
    }
    for name in all.iter().step_by(3) {
        remove(&store, name);
    }
    let mut left = all.clone();
    let mut number = 0;
    left.retain(|_| {
        number += 1;
        number % 3 != 1
    });
    assert_eq!(listed(&store, 20), left);
    // What is made again is there again, and what was removed in vain is not.
    make(&store, &all[0]);
    remove(&store, "never");
    left.insert(0, all[0].clone());
    assert_eq!(listed(&store, 20), left);
}

#[test]
fn every_page_shows_what_there_is_while_it_is_made() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("pages");
    let (store, other) = (open(&uri), open(&uri));
    let mut there: BTreeSet<String> = (0..200).map(|number| format!("n{number:03}")).collect();
    let makes: Vec<_> = there
        .iter()
        .map(|name| store.apply(&id(name), Transaction::new().guard(Guard::Absent).change(WriteOp::Create)))
        .collect();
    for make in makes {
        assert!(matches!(block_on(make), Ok(Outcome::Done(_))));
    }
    // The first round leaves the index alone between its pages, and in the others somebody changes it: this client, or another.
    for changer in [None, Some(&store), Some(&other)] {
        let mut after: Option<ObjectId> = None;
        loop {
            let page = block_on(store.list(after.as_ref(), 20)).unwrap();
            let from = after.as_ref().map(ToString::to_string).unwrap_or_default();
            let expected: Vec<&String> = there.iter().filter(|name| **name > from).take(20).collect();
            let found: Vec<String> = page.iter().map(ToString::to_string).collect();
            assert_eq!(found.iter().collect::<Vec<_>>(), expected, "behind {from:?}");
            let Some(last) = page.last().cloned() else { break };
            // What the next page begins with was read ahead. Behind the last page nothing is made, or there would always be another one.
            let next = there.iter().find(|name| **name > found[found.len() - 1]).cloned();
            if let (Some(changer), Some(next)) = (changer, next) {
                let made = format!("{last}+{}", there.len());
                remove(changer, &next);
                there.remove(&next);
                make(changer, &made);
                there.insert(made);
            }
            after = Some(last);
        }
    }
}

#[test]
fn a_client_that_dies_at_any_step_leaves_a_right_listing() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("death");
    let (store, index) = (open(&uri), Index { cluster: &cluster, uri: &uri });
    assert_eq!(listed(&store, 10), [""; 0]);

    // It was about to make an object that was removed before.
    make(&store, "a");
    remove(&store, "a");
    index.mark("a", &[now()]);
    assert_eq!(listed(&store, 10), [""; 0]);
    // Another client makes it after all, and its own mark goes.
    make(&store, "a");
    assert_eq!(listed(&store, 10), ["a"]);

    // It had made one, and did not write that down.
    make(&store, "b");
    let (shard, key) = index.mark("b", &[now()]);
    let entry = index.keys("b").unwrap().1[0].clone();
    index.rados(&["rmomapkey", &shard, &entry], b"");
    assert_eq!(listed(&store, 10), ["a", "b"]);
    remove(&open(&uri), "b");
    assert_eq!(listed(&store, 10), ["a"]);
    assert!(index.keys("b").unwrap().1.contains(&key), "nobody else takes a mark away that is not old");

    // It was about to remove one.
    make(&store, "c");
    index.mark("c", &[now()]);
    assert_eq!(listed(&store, 10), ["a", "c"]);

    // It had removed one, and did not write that down.
    make(&store, "d");
    let (shard, keys) = index.keys("d").unwrap();
    let fact = index.rados(&["getomapval", &shard, &keys[0], "/dev/stdout"], b"");
    let fact = &fact[fact.len() - 14..];
    remove(&store, "d");
    index.mark("d", &[now()]);
    index.rados(&["setomapval", &shard, &keys[0]], fact);
    assert_eq!(listed(&store, 10), ["a", "c"]);

    // A mark that was noticed a day ago is settled by who finds it: the entry says again what is, and is believed.
    index.mark("d", &[now() - 2 * DAY, now() - DAY]);
    for _ in 0..2 {
        assert_eq!(listed(&store, 10), ["a", "c"]);
    }
    let keys = index.keys("d").unwrap().1;
    assert_eq!(keys.len(), 2, "the entry and the newer mark: {keys:?}");
    let settled = index.rados(&["getomapval", &shard, &keys[0], "/dev/stdout"], b"");
    assert!(&settled[settled.len() - 14..] > fact);
}

#[test]
fn the_clock_of_a_client_ends_no_mark() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("clock");
    let (store, index) = (open(&uri), Index { cluster: &cluster, uri: &uri });
    make(&store, "a");
    index.settled("a");
    remove(&store, "a");
    let (shard, entry, removed) = index.settled("a");
    // A client is about to make it again. Its clock is two days behind, or a year ahead.
    for set_at in [now() - 2 * DAY, now() + 365 * DAY] {
        let (_, key) = index.mark("a", &[set_at]);
        let before = now() - 1;
        assert_eq!(listed(&store, 10), [""; 0]);
        // That the mark was noticed is written down once, by the OSD's clock, which here is this one.
        let noticed = index.value(&shard, &key);
        assert_eq!(noticed[..9], mark(&[set_at]));
        let noticed_at = u64::from_le_bytes(noticed[9..].try_into().unwrap());
        assert!((before..=now()).contains(&noticed_at), "{noticed_at}");
        assert_eq!(listed(&open(&uri), 10), [""; 0]);
        assert_eq!(index.value(&shard, &key), noticed);
        // The client makes it now, and dies before it writes that down.
        make(&store, "a");
        while index.keys("a").unwrap().1.len() > 2 {}
        index.rados(&["setomapval", &shard, &entry], &removed);
        for store in [&store, &open(&uri)] {
            assert_eq!(listed(store, 10), ["a"]);
        }
        // A day later, somebody settles it.
        index.rados(&["setomapval", &shard, &key], &mark(&[set_at, now() - DAY]));
        for store in [&open(&uri), &store] {
            assert_eq!(listed(store, 10), ["a"]);
        }
        assert_ne!(index.settled("a").2, removed);
        remove(&store, "a");
        index.settled("a");
    }
}

#[test]
fn a_pool_without_an_index_is_filled_in() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("fill");
    let (store, index) = (open(&uri), Index { cluster: &cluster, uri: &uri });
    let names: Vec<String> = (0..60).map(|number| format!("name-{number:02}")).collect();
    for name in &names {
        make(&store, name);
    }
    remove(&store, "name-07");
    let mut left = names.clone();
    left.remove(7);
    // No client has listed yet: that an index is there says nothing of older objects. They are those whose entries are
    // taken away here.
    for shard in index.objects().iter().step_by(2) {
        index.rados(&["rm", shard], b"");
    }
    let reader = cluster.ceph(&[
        "auth",
        "get-or-create",
        "client.fill",
        "mon",
        "allow r",
        "osd",
        "allow r pool=nacre",
    ]);
    std::fs::write(cluster.dir().join("client.fill.keyring"), reader).unwrap();
    // Who may not write lists all the same.
    let reader = open(&uri.replace("id=nacre", "id=fill"));
    assert_eq!(listed(&reader, 16), left);
    assert!(!index.objects().contains(&"nacre-index".to_owned()));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut found = listed(&open(&uri), 16);
                // One that is made meanwhile may be listed or not.
                found.retain(|name| name != "zulu");
                assert_eq!(found, left);
            });
        }
        scope.spawn(|| make(&open(&uri), "zulu"));
    });
    left.push("zulu".to_owned());
    assert_eq!(listed(&store, 16), left);
    // From now on it is the index that answers.
    let (shard, keys) = index.keys("name-03").unwrap();
    index.rados(&["rmomapkey", &shard, &keys[0]], b"");
    assert_eq!(listed(&open(&uri), 100).len(), left.len() - 1);
    // A filling that was interrupted is taken up: the root says that it began.
    let complete = index.rados(&["getxattr", "nacre-index", "nacre-index"], b"");
    index.rados(&["rm", "nacre-index"], b"");
    assert_eq!(listed(&open(&uri), 100), left);
    assert_eq!(index.rados(&["getxattr", "nacre-index", "nacre-index"], b""), complete);
}

#[test]
fn clients_notice_that_the_index_was_removed_while_they_run() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("removed");
    let (store, index) = (open(&uri), Index { cluster: &cluster, uri: &uri });
    let capabilities = ["mon", "allow r", "osd", "allow r pool=nacre"];
    let reader = cluster.ceph(&[&["auth", "get-or-create", "client.removed"], &capabilities[..]].concat());
    std::fs::write(cluster.dir().join("client.removed.keyring"), reader).unwrap();
    let reader = open(&uri.replace("id=nacre", "id=removed"));
    let names = ["a", "b", "c"];
    for name in names {
        make(&store, name);
        index.settled(name);
    }
    for store in [&store, &reader] {
        assert_eq!(listed(store, 10), names);
    }
    let complete = index.objects();
    assert_eq!(complete.len(), 33);
    // All of it, the root last.
    let mut objects = complete.clone();
    objects.sort_unstable_by(|a, b| b.cmp(a));
    let arguments: Vec<&str> = std::iter::once("rm").chain(objects.iter().map(String::as_str)).collect();
    index.rados(&arguments, b"");
    for store in [&reader, &store] {
        assert_eq!(listed(store, 10), names);
    }
    assert_eq!(index.objects().len(), complete.len());
    // One shard. Whoever may not write does without the index until it is complete again.
    let (shard, _) = index.keys("b").unwrap();
    index.rados(&["rm", &shard], b"");
    assert_eq!(listed(&reader, 10), names);
    assert!(index.keys("b").is_none());
    assert_eq!(listed(&store, 10), names);
    assert!(index.keys("b").is_some());
    // One shard, which a change of another of its objects makes anew before anybody lists.
    make(&store, "z");
    assert_eq!(index.settled("z").0, shard);
    index.rados(&["rm", &shard], b"");
    remove(&store, "z");
    for store in [&reader, &store] {
        assert_eq!(listed(store, 10), names);
    }
    assert!(index.keys("b").is_some());
    // The root, after a client without the index made an object.
    let (shard, keys) = index.keys("b").unwrap();
    index.rados(&["rmomapkey", &shard, &keys[0]], b"");
    for store in [&store, &reader] {
        assert_eq!(listed(store, 10), ["a", "c"]);
    }
    index.rados(&["rm", "nacre-index"], b"");
    for store in [&store, &reader] {
        assert_eq!(listed(store, 10), names);
    }
}

#[test]
fn an_index_that_is_filled_in_again_knows_what_clients_without_one_did() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("again");
    let (store, index) = (open(&uri), Index { cluster: &cluster, uri: &uri });
    for name in ["gone", "made", "kept"] {
        make(&store, name);
    }
    let gone = index.settled("gone");
    remove(&store, "made");
    let created = index.settled("made");
    assert_eq!(listed(&store, 10), ["gone", "kept"]);
    // These changes leave no trace in the index.
    make(&store, "made");
    remove(&store, "gone");
    for (name, (shard, key, value)) in [("gone", gone), ("made", created)] {
        assert_ne!(index.settled(name).2, value);
        index.rados(&["setomapval", &shard, &key], &value);
    }
    assert_eq!(listed(&open(&uri), 10), ["gone", "kept"]);
    index.rados(&["rm", "nacre-index"], b"");
    assert_eq!(listed(&open(&uri), 10), ["kept", "made"]);
}

#[test]
fn a_damaged_object_stays_listed_whatever_its_entry_says() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("damaged");
    let (store, index) = (open(&uri), Index { cluster: &cluster, uri: &uri });
    assert_eq!(listed(&store, 10), [""; 0]);
    make(&store, "a");
    index.settled("a");
    remove(&store, "a");
    let (shard, key, removed) = index.settled("a");
    make(&store, "a");
    index.settled("a");
    // As if the client that made it again had died before it wrote that down.
    index.rados(&["setomapval", &shard, &key], &removed);
    index.mark("a", &[now() - 2 * DAY, now() - DAY]);
    let mut header = index.rados(&["getxattr", "nacre.a", "nacre"], b"");
    header[9] ^= 4;
    index.rados(&["setxattr", "nacre.a", "nacre"], &header);
    for _ in 0..2 {
        assert_eq!(listed(&store, 10), ["a"]);
    }
    // It can be done away with by its name, and only then is it gone.
    assert!(block_on(store.discard_damaged(&id("a"))).unwrap());
    for _ in 0..2 {
        assert_eq!(listed(&store, 10), [""; 0]);
    }
}

/// Tests that the index goes by the numbers of versions: OSDs compare them byte by byte, and on most machines take 128 for less
/// than 127.
#[test]
fn a_later_change_is_listed_whatever_the_bytes_of_its_version() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("bytes");
    let (store, index) = (open(&uri), Index { cluster: &cluster, uri: &uri });
    assert_eq!(listed(&store, 10), [""; 0]);
    make(&store, "gone");
    let (shard, key, before) = index.settled("gone");
    remove_at(&store, "gone", 200);
    make(&store, "made");
    index.settled("made");
    remove_at(&store, "made", 127);
    index.settled("made");
    make(&store, "made");
    // Once no mark is left, it is the entries that are believed.
    for name in ["gone", "made"] {
        index.age_marks(name);
    }
    for _ in 0..2 {
        assert_eq!(listed(&store, 10), ["made"]);
    }
    // The same where the client died before it wrote down what it had done.
    index.rados(&["setomapval", &shard, &key], &before);
    index.mark("gone", &[now() - 2 * DAY, now() - DAY]);
    for _ in 0..2 {
        assert_eq!(listed(&store, 10), ["made"]);
    }
    // And where it was one without the index.
    index.rados(&["setomapval", &shard, &key], &before);
    assert_eq!(listed(&store, 10), ["gone", "made"]);
    index.rados(&["rm", "nacre-index"], b"");
    assert_eq!(listed(&open(&uri), 10), ["made"]);
}

/// A waker that tells a test that there is something to do.
struct Signal(mpsc::Sender<()>);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.0.send(()).ok();
    }
}

#[test]
fn a_fact_that_is_written_late_does_not_replace_a_later_one() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("late");
    let (store, other) = (open(&uri), open(&uri));
    assert_eq!(listed(&store, 10), [""; 0]);
    // A client makes an object. It has the answer, and has not looked at it yet: it only goes on where it is polled.
    let mut slow = store.apply(&id("a"), Transaction::new().guard(Guard::Absent).change(WriteOp::Create));
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Signal(sender)));
    while !exists(&other, "a") {
        assert!(Pin::new(&mut slow).poll(&mut Context::from_waker(&waker)).is_pending());
        woken.recv().unwrap();
    }
    // Another one removes it, and writes that down.
    remove_at(&other, "a", 200);
    assert!(matches!(block_on(slow), Ok(Outcome::Done(_))));
    assert_eq!(listed(&store, 10), [""; 0]);
    // Believed of the entry alone, too.
    Index { cluster: &cluster, uri: &uri }.age_marks("a");
    for _ in 0..2 {
        assert_eq!(listed(&store, 10), [""; 0]);
    }
}

#[test]
fn clients_that_make_and_remove_the_same_objects_leave_a_right_listing() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("race");
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let names: Vec<String> = (0..6).map(|number| format!("n{number}")).collect();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (names, uri) = (&names, &uri);
            scope.spawn(move || {
                let (store, mut random) = (open(uri), StdRng::seed_from_u64(seed + client));
                for _ in 0..25 {
                    let changes: Vec<_> = (0..6)
                        .map(|_| {
                            let name = &names[random.random_range(0..names.len())];
                            let change = match random.random_range(0..4) {
                                0 => Transaction::new().guard(Guard::Absent).change(WriteOp::Create),
                                1 => Transaction::new().write(Fork::DEFAULT, 0, "text"),
                                2 => Transaction::new().guard(Guard::Exists).change(WriteOp::Remove),
                                _ => Transaction::new().change(WriteOp::Remove).change(WriteOp::Create),
                            };
                            store.apply(&id(name), change)
                        })
                        .collect();
                    for change in changes {
                        block_on(change).unwrap();
                    }
                    block_on(store.list(None, 4)).unwrap();
                }
            });
        }
    });
    let store = open(&uri);
    let existing: Vec<&String> = names.iter().filter(|name| exists(&store, name)).collect();
    assert_eq!(listed(&store, 100).iter().collect::<Vec<_>>(), existing);
    // Believed of the entries alone, too, once nobody's marks are left.
    let index = Index { cluster: &cluster, uri: &uri };
    for name in names.iter().filter(|name| index.keys(name).is_some()) {
        index.age_marks(name);
    }
    for _ in 0..2 {
        assert_eq!(listed(&store, 100).iter().collect::<Vec<_>>(), existing);
    }
    assert!(names.iter().all(|name| index.keys(name).is_none_or(|(_, keys)| keys.len() == 1)));
}
