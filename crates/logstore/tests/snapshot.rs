//! Snapshots and cleaning in the middle of transactions: what is read back after a crash is what was acknowledged,
//! whichever effects came between two portions of one object.
//!
//! A failure names its seed; `NACRE_SEED=n cargo test -p nacre-logstore --test snapshot` runs that one again.
//! `NACRE_HISTORIES=n` sets how many are run.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use nacre_logstore::sim::{Faults, Moment, Operation, SimDisk};
use nacre_logstore::{Committer, LogStore, Options};
use nacre_object::testkit::conformance::compare;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::{ObjectId, ObjectStore, Outcome, Reply, StoreError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The number of histories that are run by default.
const HISTORIES: u64 = 400;

/// The transactions and the slices of cleaning that came while a snapshot was written.
static BETWEEN: AtomicU64 = AtomicU64::new(0);
static CLEANED: AtomicU64 = AtomicU64::new(0);

/// What issues transactions: between the steps of a history, and whenever a part of a snapshot has been written.
struct Client {
    generator: Generator,
    rng: SmallRng,
    waiting: Vec<(Result<Outcome, StoreError>, Reply<Outcome>)>,
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
        Self { generator, rng, waiting: Vec::new() }
    }

    fn issue(&mut self, store: &LogStore) {
        let step = self.generator.step();
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
    }
}

fn run(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(!seed);
    let mut disk = Arc::new(SimDisk::new(seed, Faults::default()));
    let client = Arc::new(Mutex::new(Client::new(seed)));
    for _ in 0..rng.random_range(1..4) {
        let store = LogStore::open_on(Arc::clone(&disk) as _, options()).unwrap();
        store.set_portion_items(rng.random_range(1..12));
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
        disk.set_hook(Arc::new(move |moment, operation, name| {
            if moment == Moment::After && operation == Operation::Write && name == "reserve-snapshot-begun" {
                let client = &mut *between.lock().unwrap();
                while client.rng.random_bool(chance) && issuing.has_room(ROOM_BYTES) {
                    if client.rng.random_bool(0.3) {
                        CLEANED.fetch_add(issuing.clean_slice().unwrap().into(), Ordering::Relaxed);
                    } else {
                        BETWEEN.fetch_add(1, Ordering::Relaxed);
                        client.issue(&issuing);
                    }
                }
            }
        }));
        for _ in 0..rng.random_range(1..4) {
            store.make_room(u64::from(SEGMENT_BYTES) - 4096).unwrap();
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
