//! Random histories on the simulated disk: crashes at every kind of operation, torn and lost writes, I/O errors, failed
//! write-back that counts as done, a full disk. After each of them the store opens, and holds a prefix of the history with
//! everything that was acknowledged; and what it holds then, it holds after a power cut too.
//!
//! A failure names its seed; `NACRE_SEED=n cargo test -p nacre-logstore --test crash` runs that one again, and prints it.
//! `NACRE_HISTORIES=n` sets how many are run.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nacre_logstore::disk::Disk;
use nacre_logstore::sim::{Faults, Moment, SimDisk};
use nacre_logstore::{Committer, Durability, LogStore, Options};
use nacre_object::testkit::Model;
use nacre_object::testkit::conformance::compare;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::window::Recall;
use nacre_object::{
    ErrorKind, Fork, Lease, ObjectId, ObjectStore, Once, Outcome, Reply, StoreError, Transaction,
    WindowPosition, WriteOp, WriteToken,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The kind of failure that a history meets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    /// The power goes off.
    Crash,
    /// The process is killed.
    Kill,
    /// An operation fails; then the process is started again, or the power goes off.
    IoError,
    /// The system fails to write something back, and reports it at the next sync, if at all.
    WritebackError,
    FullDisk,
}

struct Issued {
    /// The floor to which the store rose by itself, rather than that anybody issued a transaction.
    floor: Option<u64>,
    object: ObjectId,
    transaction: Transaction,
    /// True if it changes the object, provided that all before it did what they should.
    writes: bool,
    acknowledged: bool,
    /// The token, and the position of the store's window before the first attempt.
    token: Option<(WriteToken, u64)>,
    /// The version that it was given, if it changed the object.
    version: u64,
    /// True if its answer shows a removal at the floor.
    shows_floor: bool,
}

/// One history: the store's side, and what is known of it.
struct History {
    seed: u64,
    rng: SmallRng,
    generator: Generator,
    /// Every transaction that may have taken effect, in order.
    issued: Vec<Issued>,
    waiting: Vec<(usize, Result<Outcome, StoreError>, Reply<Outcome>)>,
    /// The number of issued transactions that are known to be on the device, whatever the durability: those
    /// acknowledged before a snapshot was taken.
    durable: usize,
    durability: Durability,
    /// The number of tokens that were given out.
    tokens: u64,
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

/// Returns a position of a store's window.
fn position(store: &LogStore, position: u64) -> WindowPosition {
    WindowPosition { position, ..store.window().expect("the store recognises repetitions") }
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
            durable: 0,
            durability,
            tokens: 0,
        }
    }

    /// Returns the objects by which a store is compared with a model: those of the transactions, and one that nobody ever
    /// writes to, which shows the floor. While each of the others exists, is remembered or is not below the floor, none of them
    /// shows it; but it is there, and those that are removed later do.
    fn compared(&self) -> Vec<ObjectId> {
        let never = ObjectId::try_from("never").unwrap();
        self.generator.objects().iter().cloned().chain([never]).collect()
    }

    /// Returns the number of issued transactions up to the last acknowledged one.
    fn acknowledged(&self) -> usize {
        self.issued.iter().rposition(|issued| issued.acknowledged).map_or(0, |last| last + 1)
    }

    /// Returns the number of issued transactions that a loss of power must leave.
    fn promised(&self) -> usize {
        if self.durability == Durability::Always { self.acknowledged() } else { self.durable }
    }

    fn fail(&self, text: impl std::fmt::Display) -> ! {
        panic!("seed {}: {text}", self.seed)
    }

    /// Issues a transaction; returns the kind of the store's refusal, if it refused.
    fn issue(&mut self, store: &LogStore) -> Option<ErrorKind> {
        let (object, transaction) = self.generator.transaction();
        self.tokens += 1;
        let token = WriteToken { writer: *b"crashing writer.", sequence: self.tokens };
        let since = store.window().map_or(0, |window| window.position);
        let token = self.rng.random_bool(0.7).then_some((token, since));
        self.issue_this(store, object, transaction, token, false)
    }

    fn issue_this(
        &mut self,
        store: &LogStore,
        object: ObjectId,
        transaction: Transaction,
        token: Option<(WriteToken, u64)>,
        again: bool,
    ) -> Option<ErrorKind> {
        let mut reply = match token {
            Some((token, since)) => {
                let since = again.then(|| position(store, since));
                let once = Once { token, since, lease: Lease::unlimited() };
                store.apply_once(&object, transaction.clone(), once)
            }
            None => store.apply(&object, transaction.clone()),
        };
        let first = poll(&mut reply);
        if let Poll::Ready(Err(error)) = &first
            && error.kind != ErrorKind::Unknown
            && error.kind != ErrorKind::Invalid
        {
            return Some(error.kind);
        }
        let state = self.generator.model().state(&object);
        let shows_floor = state.leaves_a_version_only()
            && state.version() == self.generator.model().floor()
            && !object.is_remembered();
        let expected = self.generator.apply(&object, &transaction);
        let number = self.issued.len();
        trace(|| format!("-- transaction {number}, of {object}: {}", text(&transaction, &expected)));
        let writes = !transaction.writes.is_empty() && matches!(expected, Ok(Outcome::Done(_)));
        let version = match &expected {
            Ok(Outcome::Done(done)) => done.version,
            _ => 0,
        };
        self.issued.push(Issued {
            floor: None,
            object,
            transaction,
            writes,
            acknowledged: false,
            token,
            version,
            shows_floor,
        });
        match first {
            Poll::Ready(found) => self.check_reply(number, &expected, found),
            Poll::Pending => self.waiting.push((number, expected, reply)),
        }
        None
    }

    /// Has the store forget all removed objects.
    fn forget(&mut self, store: &LogStore) {
        let before = self.generator.model().floor();
        let floor = store.forget_removed();
        if floor > before {
            trace(|| format!("-- in place of transaction {}, the floor rises to {floor}", self.issued.len()));
            self.generator.model_mut().raise_floor(floor);
            let object = self.generator.objects()[0].clone();
            self.issued.push(Issued {
                floor: Some(floor),
                object,
                transaction: Transaction::new(),
                writes: false,
                acknowledged: false,
                token: None,
                version: 0,
                shows_floor: false,
            });
            FORGOTTEN_OBJECTS.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes everything from a disk that was found full, as a person would: there is always room for that, and for
    /// some of what was refused afterwards.
    fn make_space(&mut self, store: &LogStore) {
        MADE_ROOM.fetch_add(1, Ordering::Relaxed);
        for object in self.generator.objects().to_vec() {
            let remove = Transaction::new().change(WriteOp::Remove);
            if self.issue_this(store, object, remove, None, false) == Some(ErrorKind::OutOfSpace) {
                self.fail(format!("a full disk has no room for a removal: {:?}", store.info()));
            }
        }
        while store.turn().is_ok() && !self.waiting.is_empty() {
            self.collect();
        }
        let object = self.generator.objects()[0].clone();
        let write = Transaction::new().write(Fork::DEFAULT, 0, vec![1; 4000]);
        if self.issue_this(store, object, write, None, false) == Some(ErrorKind::OutOfSpace) {
            self.fail(format!("an empty store has no room for a write: {:?}", store.info()));
        }
    }

    fn check_reply(
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
                let shows_floor = rest[0].shows_floor;
                for issued in before.iter_mut().filter(|issued| issued.floor.is_some()) {
                    issued.acknowledged |= shows_floor;
                }
                let of_object =
                    |issued: &&mut Issued| issued.floor.is_none() && issued.object == rest[0].object;
                for issued in before.iter_mut().filter(of_object) {
                    issued.acknowledged = issued.writes;
                }
            }
        }
    }

    fn collect(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for (number, expected, mut reply) in waiting {
            match poll(&mut reply) {
                Poll::Ready(found) => self.check_reply(number, &expected, found),
                Poll::Pending => self.waiting.push((number, expected, reply)),
            }
        }
    }

    /// Runs until the disk fails, or for `steps` steps.
    fn run(&mut self, store: &LogStore, disk: &SimDisk, steps: usize) {
        for _ in 0..steps {
            match self.rng.random_range(0..100) {
                0..70 => {
                    let refused = self.issue(store) == Some(ErrorKind::OutOfSpace);
                    // Below that the disk has no room for what is kept in reserve.
                    let capacity_bytes = disk.volume().ok().flatten().map_or(0, |volume| volume.total_bytes);
                    if refused && capacity_bytes >= RESERVE_FITS_BYTES && self.rng.random_bool(0.5) {
                        self.make_space(store);
                    }
                }
                70..94 => {
                    // An error here is the disk's, and shows in the transactions.
                    let _ = store.turn();
                    self.collect();
                }
                94..96 => {
                    let acknowledged = self.acknowledged();
                    if store.snapshot().is_ok() {
                        self.durable = acknowledged;
                    }
                    self.collect();
                }
                96 => {
                    let _ = store.compact();
                    self.collect();
                }
                97 => self.forget(store),
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

    /// Checks that the store recalls of a history exactly the writes that it holds: the first `end` transactions.
    fn check_tokens(&self, store: &LogStore, end: usize) {
        for (number, issued) in self.issued.iter().enumerate() {
            let Some((token, since)) = issued.token else { continue };
            let holds = number < end && issued.writes;
            match store.recall(&token, since) {
                Recall::Applied { version, .. } if holds && version == issued.version => {
                    RECALLED.fetch_add(1, Ordering::Relaxed);
                }
                Recall::New if !holds => {}
                // The log that told of it may have been cleaned away.
                Recall::Unknown => {
                    FORGOTTEN.fetch_add(1, Ordering::Relaxed);
                }
                found => self.fail(format!(
                    "{found:?} of transaction {number}, which was given version {}; {end} are there",
                    issued.version
                )),
            }
        }
    }

    /// Repeats transactions after a store was opened: some that it holds, and of those that were lost the first.
    fn repeat(&mut self, store: &LogStore, lost: Vec<Issued>) {
        let reported = store.window().map_or(0, |window| window.position);
        for _ in 0..3.min(self.issued.len()) {
            let issued = &self.issued[self.rng.random_range(0..self.issued.len())];
            let Some((token, since)) = issued.token.filter(|_| issued.writes) else { continue };
            let since = Some(position(store, since.min(reported)));
            let once = Once { token, since, lease: Lease::unlimited() };
            match poll(&mut store.apply_once(&issued.object, issued.transaction.clone(), once)) {
                Poll::Ready(Ok(Outcome::Done(done))) if done.version == issued.version => {}
                Poll::Ready(Err(error)) if error.kind == ErrorKind::Unknown => {}
                found => self.fail(format!("{found:?} for a repetition of version {}", issued.version)),
            }
        }
        let first = lost.into_iter().find(|issued| issued.floor.is_none());
        if let Some(Issued { object, transaction, token: Some((token, since)), .. }) = first {
            self.issue_this(store, object, transaction, Some((token, since.min(reported))), true);
            while store.turn().is_ok() && !self.waiting.is_empty() {
                self.collect();
            }
        }
    }

    /// Opens the store again and finds the prefix of the history that it holds: one of at least `least` transactions.
    /// The disk has no more faults, but a sync may report an earlier one; then the store is opened once more.
    fn recover(&mut self, disk: &mut Arc<SimDisk>, least: usize) -> LogStore {
        let store = loop {
            match LogStore::open_on(Arc::clone(disk) as _, options_after(self)) {
                Ok(store) => break store,
                Err(error) if error.message.contains("of an earlier write-back") => {
                    *disk = share(disk.after_kill(Faults::default()));
                }
                Err(error) => self.fail(format!("the store does not open: {error}")),
            }
        };
        let mut model = Model::new();
        let apply = |model: &mut Model, issued: &Issued| match issued.floor {
            Some(floor) => model.raise_floor(floor),
            None => drop(model.apply(&issued.object, &issued.transaction)),
        };
        self.issued[..least].iter().for_each(|issued| apply(&mut model, issued));
        let mut differences = Vec::new();
        for end in least..=self.issued.len() {
            match compare(&store, &model, &self.compared()) {
                Ok(()) => {
                    let count = self.issued.len();
                    trace(|| {
                        format!("-- the store opens with {end} of {count} transactions, {least} promised")
                    });
                    self.check_tokens(&store, end);
                    let lost = self.issued.split_off(end);
                    let mut generator = generator(self.rng.random(), &mut self.rng);
                    for issued in &mut self.issued {
                        apply(generator.model_mut(), issued);
                        issued.acknowledged = issued.writes || issued.floor.is_some();
                    }
                    self.generator = generator;
                    // Whoever reads a store that was opened reads what is on the device.
                    self.durable = end;
                    self.repeat(&store, lost);
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
            "the store holds no prefix of {count} transactions, {least} of them promised:\n{}",
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
    compare(store, history.generator.model(), &history.compared())
        .map_err(|failure| format!("while it runs: {failure}"))
}

fn generator(seed: u64, rng: &mut SmallRng) -> Generator {
    let shape = match rng.random_range(0..3) {
        0 => Shape::default(),
        1 => Shape::contended(),
        _ => Shape { span_bytes: 200_000, extent_bytes_max: 90_000, extents_max: 2, ..Shape::default() },
    };
    let shape = if rng.random_bool(0.3) { Shape { remove_percent: 20, ..shape } } else { shape };
    // All generators of one history know the same objects.
    let objects = ["a", "b", "c", "nacre/d"].map(|name| ObjectId::try_from(name).unwrap());
    Generator::with_objects(seed, shape, objects.to_vec())
}

fn poll(reply: &mut Reply<Outcome>) -> Poll<Result<Outcome, StoreError>> {
    Pin::new(reply).poll(&mut Context::from_waker(Waker::noop()))
}

/// The bytes of a disk on which there is room for all of the reserve, and for something besides: five small segments,
/// and as much for the largest record of a history.
const RESERVE_FITS_BYTES: u64 = 700 << 10;

/// The writes that were recalled after a crash, and those of which the store could not tell.
static RECALLED: AtomicU64 = AtomicU64::new(0);
static FORGOTTEN: AtomicU64 = AtomicU64::new(0);

/// The number of times that removed objects were forgotten.
static FORGOTTEN_OBJECTS: AtomicU64 = AtomicU64::new(0);

/// The number of times that removals were tried on a disk that was found full.
static MADE_ROOM: AtomicU64 = AtomicU64::new(0);

fn run(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(!seed);
    let failure = match rng.random_range(0..12) {
        0..5 => Failure::Crash,
        5..6 => Failure::Kill,
        6..9 => Failure::IoError,
        9..11 => Failure::WritebackError,
        _ => Failure::FullDisk,
    };
    let durability = match rng.random_range(0..10) {
        0..7 => Durability::Always,
        7 => Durability::Interval(Duration::from_millis(1)),
        _ => Durability::None,
    };
    let steps = rng.random_range(1..80);
    let faults = |rng: &mut SmallRng| {
        let at = Some(rng.random_range(1..90));
        match failure {
            Failure::Crash => Faults { crash_at: at, ..Faults::default() },
            Failure::Kill => Faults::default(),
            Failure::IoError => Faults { error_at: at, ..Faults::default() },
            Failure::WritebackError => Faults { writeback_error_at: at, ..Faults::default() },
            Failure::FullDisk => {
                Faults { capacity_bytes: Some(rng.random_range(70..1200) << 10), ..Faults::default() }
            }
        }
    };
    trace(|| format!("-- {failure:?}, {durability:?}"));
    let mut history = History::new(seed, durability);
    let mut disk = share(SimDisk::new(seed, faults(&mut rng)));
    for _ in 0..rng.random_range(1..4) {
        let options = options(&mut history.rng, durability);
        // The disk may fail while the store is being opened: then it is opened after the crash.
        if let Ok(store) = LogStore::open_on(Arc::clone(&disk) as _, options) {
            if seed.is_multiple_of(4) {
                // Snapshots are written a few items at a time.
                store.set_step_items(2 + seed / 4 % 16);
            }
            history.run(&store, &disk, steps);
            store.check_counts();
            if matches!(failure, Failure::Kill | Failure::FullDisk) {
                store.check_files();
            }
            if rng.random_bool(0.3) {
                let acknowledged = history.acknowledged();
                if store.close().is_ok() {
                    history.durable = acknowledged;
                }
                history.collect();
            }
            history.waiting.clear();
        }
        let killed = match failure {
            Failure::Kill => true,
            Failure::IoError | Failure::WritebackError => rng.random_bool(0.7),
            Failure::Crash | Failure::FullDisk => false,
        };
        let mut least = history.promised();
        let mut recovered = disk.after_crash(Faults::default());
        if killed {
            // What the system has, a process that is killed does not lose.
            least = history.acknowledged();
            recovered = disk.after_kill(Faults::default());
            // The disk may fail again, and again, while the store is being opened.
            while failure != Failure::Kill && rng.random_bool(0.4) {
                let again = Faults { error_at: Some(rng.random_range(1..12)), ..Faults::default() };
                recovered.set_faults(again);
                let failing = share(recovered);
                let opened = LogStore::open_on(Arc::clone(&failing) as _, options_after(&mut history));
                recovered = failing.after_kill(Faults::default());
                drop(opened);
            }
        }
        let mut recovered = share(recovered);
        let mut store = history.recover(&mut recovered, least);
        if rng.random_bool(0.5) {
            // What was read from the opened store stays, before it has synced anything of its own.
            let cut = share(recovered.after_crash(Faults::default()));
            drop(store);
            recovered = cut;
            let everything = history.promised();
            store = history.recover(&mut recovered, everything);
        }
        let has_lost_writes = failure == Failure::WritebackError;
        if store.opened().damaged_snapshots > 0 && !has_lost_writes {
            history.fail(format!("a snapshot is damaged: {:?}", store.opened()));
        }
        store.check_counts();
        let closed = rng.random_bool(0.5);
        if closed {
            let _ = store.close();
        }
        disk = share(recovered.after_kill(faults(&mut rng)));
    }
}

/// Shares a disk. When a single history is run, the operations on the disk are printed.
fn share(disk: SimDisk) -> Arc<SimDisk> {
    if is_single() {
        eprintln!("-- a disk");
        disk.set_hook(Arc::new(|moment, operation, name| {
            if moment == Moment::Before {
                eprintln!("{operation:?} {name}");
            }
        }));
    }
    Arc::new(disk)
}

/// Returns whether a single history is run.
fn is_single() -> bool {
    std::env::var("NACRE_SEED").is_ok()
}

/// Prints a step of a single history.
fn trace(text: impl FnOnce() -> String) {
    if is_single() {
        eprintln!("{}", text());
    }
}

/// Returns the parts of a transaction and its outcome, a line each, without most of their bytes.
fn text(transaction: &Transaction, expected: &Result<Outcome, StoreError>) -> String {
    let Transaction { guards, reads, writes } = transaction;
    let guards = guards.iter().map(|guard| format!("if {guard:?}"));
    let reads = reads.iter().map(|read| format!("read {read:?}"));
    let writes = writes.iter().map(|write| format!("write {write:?}"));
    let parts = guards.chain(reads).chain(writes).chain([format!("expected {expected:?}")]);
    parts.map(|part| format!("\n    {}", part.chars().take(300).collect::<String>())).collect()
}

fn options_after(history: &mut History) -> Options {
    options(&mut history.rng, history.durability)
}

/// Runs the share `part` of `parts` of the histories.
fn run_all(part: u64, parts: u64) {
    if let Ok(seed) = std::env::var("NACRE_SEED") {
        return run(seed.parse().expect("NACRE_SEED is a number"));
    }
    let histories = match std::env::var("NACRE_HISTORIES") {
        Ok(count) => count.parse().expect("NACRE_HISTORIES is a number"),
        Err(_) => HISTORIES,
    };
    (0..histories).filter(|seed| seed % parts == part).for_each(run);
    if histories >= HISTORIES {
        assert!(MADE_ROOM.load(Ordering::Relaxed) > histories / 2_000, "hardly any disk was found full");
        let (recalled, forgotten) = (RECALLED.load(Ordering::Relaxed), FORGOTTEN.load(Ordering::Relaxed));
        println!("{recalled} writes recalled, {forgotten} forgotten");
        let floors = FORGOTTEN_OBJECTS.load(Ordering::Relaxed);
        assert!(floors > histories / 20, "removed objects were forgotten {floors} times");
        assert!(recalled > histories, "{recalled} writes recalled, {forgotten} forgotten");
    }
}

/// The number of histories that are run by default.
const HISTORIES: u64 = 6_000;

#[test]
fn a_floor_that_no_object_shows_is_found_when_a_store_is_opened() {
    let mut disk = share(SimDisk::new(1, Faults::default()));
    let mut history = History::new(0, Durability::Always);
    let store = LogStore::open_on(Arc::clone(&disk) as _, options_after(&mut history)).unwrap();
    let [removed, other, another, _] = history.generator.objects() else { panic!("four objects") };
    let (removed, other, another) = (removed.clone(), other.clone(), another.clone());
    let change = |history: &mut History, store: &LogStore, object: &ObjectId, write: WriteOp| {
        history.issue_this(store, object.clone(), Transaction::new().change(write), None, false);
        store.turn().unwrap();
        history.collect();
    };
    change(&mut history, &store, &other, WriteOp::Create);
    change(&mut history, &store, &another, WriteOp::Create);
    for _ in 0..4 {
        change(&mut history, &store, &removed, WriteOp::Remove);
    }
    history.forget(&store);
    store.turn().unwrap();
    // Nobody was told of the floor.
    let least = history.acknowledged();
    assert!(least < history.issued.len());
    disk = share(disk.after_kill(Faults::default()));
    let store = history.recover(&mut disk, least);
    assert_eq!(history.generator.model().floor(), 4);
    // An object that is removed below the floor goes on above it.
    change(&mut history, &store, &other, WriteOp::Remove);
    change(&mut history, &store, &other, WriteOp::Create);
    assert_eq!(history.generator.model().state(&other).version(), 5);
}

#[test]
fn what_was_acknowledged_survives() {
    run_all(0, 2);
}

#[test]
fn what_was_acknowledged_survives_again() {
    run_all(1, 2);
}
