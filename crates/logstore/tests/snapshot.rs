//! Snapshots and cleaning in the middle of transactions: what is read back after a crash is what was acknowledged,
//! whichever effects came between two steps of one object.
//!
//! A failure names its seed; `NACRE_SEED=n cargo test -p nacre-logstore --test snapshot` runs that one again.
//! `NACRE_HISTORIES=n` sets how many are run.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use nacre_logstore::disk::Disk;
use nacre_logstore::sim::{Faults, Moment, Operation, SimDisk};
use nacre_logstore::{Committer, LogStore, Options};
use nacre_object::testkit::conformance::compare;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::{Model, block_on};
use nacre_object::{
    ByteRange, ErrorKind, Fork, Key, ObjectId, ObjectStore, Outcome, ReadOp, Reply, StoreError, Transaction,
    WriteOp,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The number of histories that are run by default.
const HISTORIES: u64 = 400;

/// The maximum number of images of the disk in the middle of one opening's work.
const IMAGES_MAX: usize = 3;

/// The transactions and the slices of cleaning that came while a snapshot was written.
static BETWEEN: AtomicU64 = AtomicU64::new(0);
static CLEANED: AtomicU64 = AtomicU64::new(0);

/// The source of transactions: between the steps of a history, and whenever a part of a snapshot has been written.
struct Client {
    generator: Generator,
    rng: SmallRng,
    waiting: Vec<(Result<Outcome, StoreError>, Reply<Outcome>)>,
    issued: Vec<(ObjectId, Transaction)>,
    /// The number of them that are known to be done.
    settled: usize,
    images: Vec<Image>,
}

/// The disk in the middle of something, with the numbers of transactions that it must hold, and may.
struct Image {
    disk: SimDisk,
    least: usize,
    most: usize,
}

const SEGMENT_BYTES: u32 = 64 << 10;
/// The room that there must be for what comes while a snapshot is written: nobody could make any then.
const ROOM_BYTES: u64 = 24 << 10;

fn options() -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        snapshot_bytes: 64 << 10,
        committer: Committer::Caller,
        ..Options::default()
    }
}

fn poll(reply: &mut Reply<Outcome>) -> Poll<Result<Outcome, StoreError>> {
    use std::future::Future;
    Pin::new(reply).poll(&mut Context::from_waker(Waker::noop()))
}

impl Client {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let large = Shape { span_bytes: 5000, extent_bytes_max: 800, ..Shape::default() };
        let shape = match seed % 3 {
            0 => Shape { replace_percent: 20, ..large },
            1 => Shape { keys: 30, remove_percent: 1, ..large },
            _ => Shape { span_bytes: 20_000, extents_max: 3, writes_max: 6, ..large },
        };
        let objects = ["a", "b"].map(|name| ObjectId::try_from(name).unwrap());
        let generator = Generator::with_objects(rng.random(), shape, objects.to_vec());
        Self { generator, rng, waiting: Vec::new(), issued: Vec::new(), settled: 0, images: Vec::new() }
    }

    fn issue(&mut self, store: &LogStore) {
        let step = self.generator.step();
        self.issued.push((step.object.clone(), step.transaction.clone()));
        let mut reply = store.apply(&step.object, step.transaction);
        match poll(&mut reply) {
            Poll::Ready(found) => assert_eq!(found.is_ok(), step.expected.is_ok(), "{found:?}"),
            Poll::Pending => self.waiting.push((step.expected, reply)),
        }
    }

    /// Checks that everything that was issued is done, as the model expects it.
    fn settle(&mut self, store: &LogStore) {
        while !self.waiting.is_empty() {
            store.turn().unwrap();
            self.waiting.retain_mut(|(expected, reply)| match poll(reply) {
                Poll::Ready(found) => {
                    assert_eq!(found.ok(), expected.as_ref().ok().cloned());
                    false
                }
                Poll::Pending => true,
            });
        }
        self.settled = self.issued.len();
    }

    /// Puts an image of the disk aside.
    fn cut(&mut self, disk: &SimDisk) {
        let disk = match self.rng.random_bool(0.7) {
            true => disk.after_crash(Faults::default()),
            false => disk.after_kill(Faults::default()),
        };
        self.images.push(Image { disk, least: self.settled, most: self.issued.len() });
    }

    /// Opens the images, some with damage to their newest snapshots.
    fn check_images(&mut self) {
        for Image { disk, least, most } in std::mem::take(&mut self.images) {
            let snapshots =
                disk.list().unwrap().into_iter().filter(|(name, _)| name.starts_with("snapshot-"));
            let newest = snapshots.max().filter(|_| self.rng.random_bool(0.4));
            if let Some((name, bytes)) = &newest {
                disk.flip(name, bytes / 2, 3);
            }
            let disk = Arc::new(disk);
            let store = LogStore::open_on(Arc::clone(&disk) as _, options()).unwrap();
            assert_eq!(store.opened().damaged_snapshots > 0, newest.is_some(), "{:?}", store.opened());
            let mut model = Model::new();
            for (object, transaction) in &self.issued[..least] {
                let _ = model.apply(object, transaction);
            }
            let mut differences = Vec::new();
            for end in least..=most {
                match compare(&store, &model, self.generator.objects()) {
                    Ok(()) => break,
                    Err(failure) => differences.push(format!("{end}: {failure}")),
                }
                if let Some((object, transaction)) = self.issued.get(end) {
                    let _ = model.apply(object, transaction);
                }
            }
            assert!(differences.len() <= most - least, "{least} to {most}:\n{}", differences.join("\n"));
            store.check_counts();
            // And what it is now, it is after another crash.
            let again = Arc::new(disk.after_crash(Faults::default()));
            drop(store);
            let store = LogStore::open_on(again, options()).unwrap();
            compare(&store, &model, self.generator.objects()).unwrap();
        }
    }
}

fn run(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(!seed);
    let mut disk = Arc::new(SimDisk::new(seed, Faults::default()));
    let client = Arc::new(Mutex::new(Client::new(seed)));
    for _ in 0..rng.random_range(1..4) {
        let store = LogStore::open_on(Arc::clone(&disk) as _, options()).unwrap();
        assert_eq!(store.opened().damaged_snapshots, 0);
        store.set_step_items(rng.random_range(1..12));
        {
            let mut client = client.lock().unwrap();
            for _ in 0..rng.random_range(10..200) {
                client.issue(&store);
            }
            client.settle(&store);
        }
        if rng.random_bool(0.7) {
            // Nothing but the end of the log is needed by these: the cleaner may take the rest.
            store.snapshot().unwrap();
            store.snapshot().unwrap();
        }
        let (between, issuing) = (Arc::clone(&client), store.clone());
        let chance = rng.random_range(0.05..0.6);
        let weak = Arc::downgrade(&disk);
        disk.set_hook(Arc::new(move |moment, operation, name| {
            // What a slice of cleaning writes comes here too.
            let Ok(mut client) = between.try_lock() else { return };
            let client = &mut *client;
            if moment == Moment::After && operation == Operation::Write && name == "reserve-snapshot-begun" {
                while client.rng.random_bool(chance) && issuing.has_space(ROOM_BYTES) {
                    if client.rng.random_bool(0.3) {
                        CLEANED.fetch_add(issuing.clean_slice().unwrap().into(), Ordering::Relaxed);
                    } else {
                        BETWEEN.fetch_add(1, Ordering::Relaxed);
                        client.issue(&issuing);
                    }
                }
            }
            if client.images.len() < IMAGES_MAX
                && client.rng.random_bool(0.01)
                && let Some(disk) = weak.upgrade()
            {
                client.cut(&disk);
            }
        }));
        for _ in 0..rng.random_range(1..4) {
            store.make_space(u64::from(SEGMENT_BYTES) - 4096).unwrap();
            match rng.random_bool(0.7) {
                true => store.snapshot().unwrap(),
                false => store.compact().unwrap(),
            }
            let mut client = client.lock().unwrap();
            for _ in 0..rng.random_range(0..4) {
                client.issue(&store);
            }
        }
        disk.set_hook(Arc::new(|_, _, _| {}));
        let mut client = client.lock().unwrap();
        client.settle(&store);
        compare(&store, client.generator.model(), client.generator.objects()).unwrap();
        store.check_counts();
        client.check_images();
        let image = match rng.random_bool(0.5) {
            true => disk.after_crash(Faults::default()),
            false => disk.after_kill(Faults::default()),
        };
        drop(store);
        disk = Arc::new(image);
        let store = LogStore::open_on(Arc::clone(&disk) as _, options()).unwrap();
        if let Err(failure) = compare(&store, client.generator.model(), client.generator.objects()) {
            panic!("after the crash: {failure}");
        }
        store.check_counts();
        store.close().unwrap();
    }
}

#[test]
fn a_snapshot_of_objects_that_change_meanwhile_loses_nothing() {
    if let Ok(seed) = std::env::var("NACRE_SEED") {
        return run(seed.parse().expect("NACRE_SEED is a number"));
    }
    let histories = match std::env::var("NACRE_HISTORIES") {
        Ok(count) => count.parse().expect("NACRE_HISTORIES is a number"),
        Err(_) => HISTORIES,
    };
    for seed in 0..histories {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("the history of seed {seed} failed; NACRE_SEED={seed} runs it again");
            std::panic::resume_unwind(panic);
        }
    }
    let between = BETWEEN.load(Ordering::Relaxed);
    let cleaned = CLEANED.load(Ordering::Relaxed);
    println!("{between} transactions and {cleaned} slices of cleaning came while a snapshot was written");
    assert!(
        between > histories && cleaned > histories / 20,
        "{between} transactions, {cleaned} slices of cleaning"
    );
}

fn object() -> ObjectId {
    ObjectId::try_from("object").unwrap()
}

fn apply(store: &LogStore, transaction: Transaction) {
    let reply = store.apply(&object(), transaction);
    store.turn().unwrap();
    assert!(matches!(block_on(reply), Ok(Outcome::Done(_))));
}

/// Takes a snapshot, and applies `changes` to the object when its file was written to for the `at`th time, and each `every`
/// times after. Returns the number of writes to the file and its length, at most, while it was written.
fn snapshot_with(
    disk: &Arc<SimDisk>,
    store: &LogStore,
    at: u64,
    every: u64,
    changes: &[Transaction],
) -> (u64, u64) {
    let (writes, longest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (count, most) = (Arc::clone(&writes), Arc::clone(&longest));
    let (weak, again, changes) = (Arc::downgrade(disk), store.clone(), changes.to_vec());
    disk.set_hook(Arc::new(move |moment, operation, name| {
        if moment != Moment::After || operation != Operation::Write || name != "reserve-snapshot-begun" {
            return;
        }
        let files = weak.upgrade().map(|disk| disk.list().unwrap()).unwrap_or_default();
        let bytes = files.iter().find(|(file, _)| file == name).map_or(0, |(_, bytes)| *bytes);
        most.fetch_max(bytes, Ordering::SeqCst);
        let count = count.fetch_add(1, Ordering::SeqCst) + 1;
        if count >= at && (count - at).is_multiple_of(every) {
            changes.iter().for_each(|change| drop(again.apply(&object(), change.clone())));
        }
    }));
    store.snapshot().unwrap();
    disk.set_hook(Arc::new(|_, _, _| {}));
    store.turn().unwrap();
    (writes.load(Ordering::SeqCst), longest.load(Ordering::SeqCst))
}

fn fork(name: &str) -> Fork {
    Fork::new(name.to_string()).unwrap()
}

/// Makes an object of 10,000 extents.
fn make_large(store: &LogStore) {
    for thousand in 0..10 {
        let extents =
            (0..1000).map(|number| (2 * (1000 * thousand + number), vec![1].into())).collect::<Vec<_>>();
        apply(store, Transaction::new().change(WriteOp::Extents { fork: Fork::DEFAULT, extents }));
    }
    store.set_step_items(100);
}

/// Applies changes to an object behind each step of it, and checks that a crash then does not change what it holds.
fn check_changes_between_steps(changes: &[Transaction]) {
    for at in 1..40 {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let store = LogStore::open_on(Arc::clone(&disk) as _, options()).unwrap();
        for number in 0..20u64 {
            let key = Key::try_from(format!("key-{number}").as_str()).unwrap();
            let set = WriteOp::SetKey { key, value: vec![7].into() };
            apply(&store, Transaction::new().write(Fork::DEFAULT, number * 20, vec![1; 10]).change(set));
        }
        apply(&store, Transaction::new().write(fork("y"), 0, vec![1; 100]));
        store.set_step_items(4);
        snapshot_with(&disk, &store, at, u64::MAX, changes);
        let look = |store: &LogStore| {
            let read = |name: &str| ReadOp::Extents { fork: fork(name), range: ByteRange::new(0, 5000) };
            let reads = vec![read("y"), read("z")];
            format!("{:?}", block_on(store.apply(&object(), Transaction { reads, ..Transaction::new() })))
        };
        let before = look(&store);
        let crashed = Arc::new(disk.after_crash(Faults::default()));
        let again = LogStore::open_on(crashed, options()).unwrap();
        assert_eq!(again.opened().damaged_snapshots, 0);
        assert_eq!(look(&again), before, "after write {at}");
    }
}

#[test]
fn a_fork_that_is_removed_and_made_between_steps_is_as_it_was_made() {
    check_changes_between_steps(&[
        Transaction::new().change(WriteOp::RemoveFork { fork: fork("z") }),
        Transaction::new().write(fork("z"), 1000, vec![2; 10]),
    ]);
}

#[test]
fn holes_behind_the_end_keep_their_versions_when_a_fork_grows_between_steps() {
    let range = ByteRange::new(500, 100);
    check_changes_between_steps(&[
        Transaction::new().change(WriteOp::Zero { fork: fork("y"), range }),
        Transaction::new().change(WriteOp::Truncate { fork: fork("y"), size: 1000 }),
        Transaction::new().write(fork("y"), 2000, vec![2; 10]),
    ]);
}

#[test]
fn a_fork_that_is_truncated_and_written_between_steps_is_as_it_was_written() {
    check_changes_between_steps(&[
        Transaction::new().change(WriteOp::Truncate { fork: fork("y"), size: 50 }),
        Transaction::new().write(fork("y"), 70, vec![2; 10]),
        Transaction::new().change(WriteOp::Truncate { fork: fork("y"), size: 600 }),
        Transaction::new().change(WriteOp::Truncate { fork: fork("y"), size: 75 }),
        Transaction::new().write(fork("y"), 300, vec![3; 10]),
    ]);
}

#[test]
fn an_object_that_is_forgotten_between_steps_stays_removed() {
    for at in 1..40 {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let store = LogStore::open_on(Arc::clone(&disk) as _, options()).unwrap();
        for number in 0..40 {
            apply(&store, Transaction::new().write(Fork::DEFAULT, number * 20, vec![1; 10]));
        }
        store.set_step_items(4);
        let forgetting = store.clone();
        let count = AtomicU64::new(0);
        disk.set_hook(Arc::new(move |moment, operation, name| {
            let is_step = operation == Operation::Write && name == "reserve-snapshot-begun";
            if moment == Moment::After && is_step && count.fetch_add(1, Ordering::SeqCst) + 1 == at {
                drop(forgetting.apply(&object(), Transaction::new().change(WriteOp::Remove)));
                forgetting.forget_removed();
            }
        }));
        store.snapshot().unwrap();
        disk.set_hook(Arc::new(|_, _, _| {}));
        store.turn().unwrap();
        store.check_counts();
        let look = |store: &LogStore| {
            let reads = vec![ReadOp::Stat, ReadOp::Extents { fork: Fork::DEFAULT, range: ByteRange::ALL }];
            format!("{:?}", block_on(store.apply(&object(), Transaction { reads, ..Transaction::new() })))
        };
        let before = look(&store);
        let again = LogStore::open_on(Arc::new(disk.after_crash(Faults::default())), options()).unwrap();
        assert_eq!(again.opened().damaged_snapshots, 0);
        assert_eq!(look(&again), before, "after write {at}");
        again.check_counts();
    }
}

#[test]
fn a_snapshot_is_not_longer_because_an_object_was_begun_again() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = LogStore::open_on(Arc::clone(&disk) as _, options()).unwrap();
    make_large(&store);
    apply(&store, Transaction::new().write(fork("tail"), 0, vec![1]));
    // On a full disk the file keeps its length.
    for number in 0.. {
        let name = ObjectId::try_from(format!("filler-{number}").as_str()).unwrap();
        if number == 0 {
            let used_bytes: u64 = disk.list().unwrap().iter().map(|(_, bytes)| *bytes).sum();
            let capacity_bytes = Some(used_bytes + (2 << 20));
            disk.set_faults(Faults { capacity_bytes, ..Faults::default() });
        }
        let reply = store.apply(&name, Transaction::new().write(Fork::DEFAULT, 0, vec![1; 8000]));
        store.turn().unwrap();
        if let Err(error) = block_on(reply) {
            assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
            break;
        }
    }
    let used_bytes: u64 = disk.list().unwrap().iter().map(|(_, bytes)| *bytes).sum();
    disk.set_faults(Faults { capacity_bytes: Some(used_bytes), ..Faults::default() });
    let (plain, plain_bytes) = snapshot_with(&disk, &store, u64::MAX, 1, &[]);
    let remove = Transaction::new().change(WriteOp::RemoveFork { fork: fork("tail") });
    for at in [20, 60, 95] {
        let (writes, bytes) = snapshot_with(&disk, &store, at, u64::MAX, std::slice::from_ref(&remove));
        assert!(writes > plain + 10, "{writes} writes, {plain} without restarts");
        assert!(bytes <= plain_bytes, "{bytes} bytes, {plain_bytes} without restarts");
    }
}

#[test]
fn forks_without_extents_are_written_in_steps() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = LogStore::open_on(Arc::clone(&disk) as _, options()).unwrap();
    for number in 0..2000 {
        let make = WriteOp::Extents { fork: fork(&format!("fork-{number}")), extents: Vec::new() };
        apply(&store, Transaction::new().change(make));
    }
    store.set_step_items(100);
    let (writes, _) = snapshot_with(&disk, &store, u64::MAX, 1, &[]);
    assert!(writes >= 20, "2000 items in {writes} writes, though a step has 100");
}
