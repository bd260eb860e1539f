//! Random histories on the simulated disk: crashes at every kind of operation, torn and lost writes, I/O errors, a full
//! disk. After each of them the store opens, and holds a prefix of the history with everything that was acknowledged.
//!
//! A failure names its seed; `NACRE_SEED=n cargo test -p nacre-logstore --test crash` runs that one again.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nacre_logstore::disk::Disk;
use nacre_logstore::sim::{Faults, SimDisk};
use nacre_logstore::{Committer, Durability, LogStore, Options};
use nacre_object::testkit::Model;
use nacre_object::testkit::conformance::compare;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::{ErrorKind, Fork, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction, Write};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// What kind of trouble a history meets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    Crash,
    Kill,
    IoError,
    FullDisk,
}

struct Issued {
    object: ObjectId,
    transaction: Transaction,
    /// Whether it changes the object, if all before it did what they should.
    writes: bool,
    acknowledged: bool,
}

/// One history: the store's side, and what is known of it.
struct History {
    seed: u64,
    rng: SmallRng,
    generator: Generator,
    /// Every transaction that may have taken effect, in order.
    issued: Vec<Issued>,
    waiting: Vec<(usize, Result<Outcome, StoreError>, Reply<Outcome>)>,
    durability: Durability,
}

fn options(rng: &mut SmallRng, durability: Durability) -> Options {
    Options {
        durability,
        segment_bytes: 64 << 10,
        snapshot_bytes: if rng.random_bool(0.5) { 4 << 10 } else { 64 << 10 },
        committer: Committer::Caller,
        ..Options::default()
    }
}

impl History {
    fn new(seed: u64, durability: Durability) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        Self {
            seed,
            generator: generator(rng.random(), &mut rng),
            rng,
            issued: Vec::new(),
            waiting: Vec::new(),
            durability,
        }
    }

    fn fail(&self, text: impl std::fmt::Display) -> ! {
        panic!("seed {}: {text}", self.seed)
    }

    /// Issues a transaction; why the store refused to take it, if it did.
    fn issue(&mut self, store: &LogStore) -> Option<ErrorKind> {
        let (object, transaction) = self.generator.transaction();
        self.issue_this(store, object, transaction)
    }

    fn issue_this(
        &mut self,
        store: &LogStore,
        object: ObjectId,
        transaction: Transaction,
    ) -> Option<ErrorKind> {
        let mut reply = store.apply(&object, transaction.clone());
        let first = poll(&mut reply);
        if let Poll::Ready(Err(error)) = &first
            && error.kind != ErrorKind::Unknown
            && error.kind != ErrorKind::Invalid
        {
            return Some(error.kind);
        }
        let expected = self.generator.apply(&object, &transaction);
        let number = self.issued.len();
        let writes = !transaction.writes.is_empty() && matches!(expected, Ok(Outcome::Done(_)));
        self.issued.push(Issued { object, transaction, writes, acknowledged: false });
        match first {
            Poll::Ready(found) => self.answered(number, &expected, found),
            Poll::Pending => self.waiting.push((number, expected, reply)),
        }
        None
    }

    /// On a disk that was found full, removes what there is, as a person would: there is always room for that, and for
    /// some of what was refused afterwards.
    fn make_room(&mut self, store: &LogStore) {
        MADE_ROOM.fetch_add(1, Ordering::Relaxed);
        for object in self.generator.objects().to_vec() {
            let remove = Transaction::new().change(Write::Remove);
            if self.issue_this(store, object, remove) == Some(ErrorKind::OutOfSpace) {
                self.fail(format!("a full disk has no room for a removal: {:?}", store.info()));
            }
        }
        while store.turn().is_ok() && !self.waiting.is_empty() {
            self.collect();
        }
        let object = self.generator.objects()[0].clone();
        let write = Transaction::new().write(Fork::DEFAULT, 0, vec![1; 4000]);
        if self.issue_this(store, object, write) == Some(ErrorKind::OutOfSpace) {
            self.fail(format!("an empty store has no room for a write: {:?}", store.info()));
        }
    }

    fn answered(
        &mut self,
        number: usize,
        expected: &Result<Outcome, StoreError>,
        found: Result<Outcome, StoreError>,
    ) {
        match found {
            // Not acknowledged, whatever became of it.
            Err(error) if error.kind != ErrorKind::Invalid => {}
            found => {
                let alike = match (&found, expected) {
                    (Err(found), Err(expected)) => found.kind == expected.kind,
                    _ => found == *expected,
                };
                if !alike {
                    self.fail(format!("transaction {number} gave {found:?}, expected {expected:?}"));
                }
                // Whoever is told of an object is told of all its writes so far, those that are still waiting included.
                let (before, rest) = self.issued.split_at_mut(number);
                rest[0].acknowledged = rest[0].writes;
                for issued in before.iter_mut().filter(|issued| issued.object == rest[0].object) {
                    issued.acknowledged = issued.writes;
                }
            }
        }
    }

    fn collect(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for (number, expected, mut reply) in waiting {
            match poll(&mut reply) {
                Poll::Ready(found) => self.answered(number, &expected, found),
                Poll::Pending => self.waiting.push((number, expected, reply)),
            }
        }
    }

    /// Runs until the disk has had enough, or for `steps` steps.
    fn run(&mut self, store: &LogStore, disk: &SimDisk, steps: usize) {
        for _ in 0..steps {
            match self.rng.random_range(0..100) {
                0..70 => {
                    let refused = self.issue(store) == Some(ErrorKind::OutOfSpace);
                    // Below that the disk has no room for what is kept in reserve.
                    let capacity_bytes = disk.volume().ok().flatten().map_or(0, |volume| volume.total_bytes);
                    if refused && capacity_bytes >= RESERVE_FITS_BYTES && self.rng.random_bool(0.5) {
                        self.make_room(store);
                    }
                }
                70..94 => {
                    // An error here is the disk's, and shows in the transactions.
                    let _ = store.turn();
                    self.collect();
                }
                94..96 => {
                    let _ = store.snapshot();
                    self.collect();
                }
                96..98 => {
                    let _ = store.compact();
                    self.collect();
                }
                _ => {
                    if let Err(error) = compare_if_alive(store, disk, self) {
                        self.fail(error);
                    }
                }
            }
            if disk.has_crashed() {
                break;
            }
        }
        self.collect();
    }

    /// Opens the store again and finds out which prefix of the history it holds.
    fn recover(&mut self, disk: Arc<SimDisk>) -> LogStore {
        let options = options(&mut self.rng, self.durability);
        let store = match LogStore::open_on(disk, options) {
            Ok(store) => store,
            Err(error) => self.fail(format!("the store does not open: {error}")),
        };
        let acknowledged =
            self.issued.iter().rposition(|issued| issued.acknowledged).map_or(0, |last| last + 1);
        // Only durability `always` promises that what was acknowledged survives a crash.
        let least = if self.durability == Durability::Always { acknowledged } else { 0 };
        let mut model = Model::new();
        let apply = |model: &mut Model, issued: &Issued| {
            let _ = model.apply(&issued.object, &issued.transaction);
        };
        self.issued[..least].iter().for_each(|issued| apply(&mut model, issued));
        let mut differences = Vec::new();
        for end in least..=self.issued.len() {
            match compare(&store, &model, self.generator.objects()) {
                Ok(()) => {
                    self.issued.truncate(end);
                    let mut generator = generator(self.rng.random(), &mut self.rng);
                    for issued in &mut self.issued {
                        let _ = generator.apply(&issued.object, &issued.transaction);
                        issued.acknowledged = issued.writes;
                    }
                    self.generator = generator;
                    return store;
                }
                Err(failure) => differences.push(format!("with {end} transactions: {failure}")),
            }
            if let Some(issued) = self.issued.get(end) {
                apply(&mut model, issued);
            }
        }
        let count = self.issued.len();
        self.fail(format!(
            "the store holds no prefix of {count} transactions, {acknowledged} of them acknowledged:\n{}",
            differences.join("\n")
        ))
    }
}

fn compare_if_alive(store: &LogStore, disk: &SimDisk, history: &mut History) -> Result<(), String> {
    while store.turn().is_ok() && !history.waiting.is_empty() && !disk.has_crashed() {
        let before = history.waiting.len();
        history.collect();
        if history.waiting.len() == before {
            break;
        }
    }
    if disk.has_crashed() || store.info().read_only.is_some() {
        return Ok(());
    }
    compare(store, history.generator.model(), history.generator.objects())
        .map_err(|failure| format!("while it runs: {failure}"))
}

fn generator(seed: u64, rng: &mut SmallRng) -> Generator {
    let shape = match rng.random_range(0..3) {
        0 => Shape::default(),
        1 => Shape::contended(),
        _ => Shape { span_bytes: 200_000, extent_bytes_max: 90_000, extents_max: 2, ..Shape::default() },
    };
    // All generators of one history know the same objects.
    let objects = ["a", "b", "c"].map(|name| ObjectId::try_from(name).unwrap());
    Generator::with_objects(seed, shape, objects.to_vec())
}

fn poll(reply: &mut Reply<Outcome>) -> Poll<Result<Outcome, StoreError>> {
    Pin::new(reply).poll(&mut Context::from_waker(Waker::noop()))
}

/// A disk on which there is room for all of the reserve, and for something besides: five small segments, and as much for
/// the largest record of a history.
const RESERVE_FITS_BYTES: u64 = 700 << 10;

/// How often removals were tried on a disk that was found full.
static MADE_ROOM: AtomicU64 = AtomicU64::new(0);

fn run(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(!seed);
    let trouble = match rng.random_range(0..10) {
        0..6 => Trouble::Crash,
        6..7 => Trouble::Kill,
        7..9 => Trouble::IoError,
        _ => Trouble::FullDisk,
    };
    let durability = match rng.random_range(0..10) {
        0..8 => Durability::Always,
        8 => Durability::Interval(Duration::from_millis(1)),
        _ => Durability::None,
    };
    let steps = rng.random_range(1..80);
    let faults = |rng: &mut SmallRng| match trouble {
        Trouble::Crash => Faults { crash_at: Some(rng.random_range(1..90)), ..Faults::default() },
        Trouble::Kill => Faults::default(),
        Trouble::IoError => Faults { error_at: Some(rng.random_range(1..90)), ..Faults::default() },
        Trouble::FullDisk => {
            Faults { capacity_bytes: Some(rng.random_range(70..1200) << 10), ..Faults::default() }
        }
    };
    let mut history = History::new(seed, durability);
    let mut disk = Arc::new(SimDisk::new(seed, faults(&mut rng)));
    for _ in 0..rng.random_range(1..4) {
        let options = options(&mut history.rng, durability);
        // The disk may fail while the store is being opened: then it is opened after the crash.
        if let Ok(store) = LogStore::open_on(Arc::clone(&disk) as _, options) {
            history.run(&store, &disk, steps);
            store.check_counts();
            if rng.random_bool(0.3) {
                let _ = store.close();
                history.collect();
            }
            history.waiting.clear();
        }
        let next = faults(&mut rng);
        let trouble_free = match trouble {
            Trouble::Kill => disk.after_kill(Faults::default()),
            _ => disk.after_crash(Faults::default()),
        };
        let recovered = Arc::new(trouble_free);
        let store = history.recover(Arc::clone(&recovered));
        store.check_counts();
        drop(store);
        disk = Arc::new(recovered.after_kill(next));
    }
}

fn run_all(seeds: std::ops::Range<u64>) {
    if let Ok(seed) = std::env::var("NACRE_SEED") {
        return run(seed.parse().expect("NACRE_SEED is a number"));
    }
    seeds.for_each(run);
    assert!(MADE_ROOM.load(Ordering::Relaxed) > 20, "hardly any disk was found full");
}

/// How many histories each test runs.
const HISTORIES: u64 = 10_000;

#[test]
fn what_was_acknowledged_survives() {
    run_all(0..HISTORIES);
}

#[test]
fn what_was_acknowledged_survives_again() {
    run_all(HISTORIES..2 * HISTORIES);
}
