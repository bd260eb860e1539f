//! The wrapper around a real store, with real threads.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::task::Wake;

use super::*;
use crate::testkit::{MemoryStore, block_on, conformance};
use crate::{Done, Refusal, WriteOp};

const RANGE: ByteRange = ByteRange::new(0, 8);

fn object() -> ObjectId {
    "counter".parse().unwrap()
}

/// Reads, adds one, and writes on condition, until it succeeds. Returns the number of failures.
fn increment(store: &dyn ObjectStore, intent: Intent) -> usize {
    let read = Transaction::new().read(ReadOp::Range { fork: Fork::DEFAULT, range: RANGE, intent });
    let Outcome::Done(Done { answers, .. }) = block_on(store.apply(&object(), read)).unwrap() else {
        panic!("a read without guards was refused");
    };
    let Some(Answer::Range(mut seen)) = answers.into_iter().next() else { panic!("no answer to a read") };
    let mut failures = 0;
    loop {
        let mut count = [0; 8];
        count[..seen.data.len()].copy_from_slice(&seen.data);
        let next = (u64::from_le_bytes(count) + 1).to_le_bytes().to_vec();
        let write =
            Transaction::new().if_version(Fork::DEFAULT, RANGE, seen.version).write(Fork::DEFAULT, 0, next);
        match block_on(store.apply(&object(), write)).unwrap() {
            Outcome::Done(_) => return failures,
            Outcome::Refused(Refusal { found: Found::Region(now), guard: 0, .. }) => seen = now,
            Outcome::Refused(refusal) => panic!("{refusal:?}"),
        }
        failures += 1;
    }
}

fn value(store: &dyn ObjectStore) -> u64 {
    let read = Transaction::new().read_range(Fork::DEFAULT, RANGE);
    match block_on(store.apply(&object(), read)).unwrap() {
        Outcome::Done(done) => match &done.answers[0] {
            Answer::Range(range) => u64::from_le_bytes(range.data[..].try_into().unwrap()),
            answer => panic!("{answer:?}"),
        },
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn a_paced_store_conforms() {
    for pacing in [true, false] {
        let options = PaceOptions { pacing, statistics: true, ..Default::default() };
        conformance::run(&Paced::new(MemoryStore::new(), options), "paced");
    }
}

#[test]
fn updates_that_take_turns_lose_nothing_and_are_counted() {
    let options = PaceOptions { statistics: true, ..Default::default() };
    let store = Paced::new(MemoryStore::new(), options);
    let failures = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    failures.fetch_add(increment(&store, Intent::Update), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(value(&store), 800);
    let totals = store.totals();
    let failures = failures.load(Ordering::Relaxed) as u64;
    assert_eq!((totals.attempts, totals.failures, totals.waiting), (800 + failures, failures, 0));
    let (regions, uncounted) = store.regions(10);
    assert_eq!((regions.len(), uncounted), (1, 0));
    assert_eq!((regions[0].attempts, regions[0].failures), (800 + failures, failures));
    assert_eq!((regions[0].object.clone(), regions[0].range), (object(), RANGE));
}

/// Makes the region contended: writes fail, and the last writer has the turn.
fn contend(store: &Paced<MemoryStore>) {
    increment(store, Intent::Look);
    for _ in 0..PacerLimits::default().failures_min {
        assert_eq!(store.totals().tracked, 0);
        let late = Transaction::new().if_version(Fork::DEFAULT, RANGE, 0).write(Fork::DEFAULT, 0, "late");
        let outcome = block_on(store.apply(&object(), late)).unwrap();
        assert!(matches!(outcome, Outcome::Refused(_)));
    }
    assert_eq!(store.totals().tracked, 1);
}

/// Options under which turns do not lapse while a test runs.
fn patient() -> PaceOptions {
    let hour = Duration::from_secs(3600);
    PaceOptions {
        limits: PacerLimits { turn_min: hour, turn_max: hour, ..Default::default() },
        ..Default::default()
    }
}

#[test]
fn updates_of_a_key_take_turns() {
    let store = Paced::new(MemoryStore::new(), patient());
    let key: Key = "count".try_into().unwrap();
    let set = |version: u64| {
        let guard = Guard::KeyVersion { key: key.clone(), version };
        let write = WriteOp::SetKey { key: key.clone(), value: version.to_le_bytes().to_vec().into() };
        store.apply(&object(), Transaction::new().guard(guard).change(write))
    };
    let read = || {
        let read = ReadOp::VersionedKey { key: key.clone(), intent: Intent::Update };
        store.apply(&object(), Transaction::new().read(read))
    };
    let version = |outcome: Outcome| match outcome {
        Outcome::Done(done) => match &done.answers[..] {
            [Answer::VersionedValue(Some(found))] => found.version,
            answers => panic!("{answers:?}"),
        },
        outcome => panic!("{outcome:?}"),
    };
    assert!(matches!(block_on(set(0)).unwrap(), Outcome::Done(_)));
    for _ in 0..PacerLimits::default().failures_min {
        assert_eq!(store.totals().tracked, 0);
        // A refusal never waits.
        assert!(matches!(set(0), Reply::Ready(Some(Ok(Outcome::Refused(_))))));
    }
    assert_eq!(store.totals().tracked, 1);
    let first = read();
    assert!(matches!(first, Reply::Ready(_)), "the first one has the turn");
    let (second, third) = (read(), read());
    assert_eq!(store.totals().waiting, 2);
    assert!(matches!(block_on(set(version(block_on(first).unwrap()))).unwrap(), Outcome::Done(_)));
    // Each finds what the one before it has written, so no attempt is in vain.
    let second = version(block_on(second).unwrap());
    assert_eq!((second, store.totals().waiting), (2, 1));
    assert!(matches!(block_on(set(second)).unwrap(), Outcome::Done(_)));
    assert_eq!(version(block_on(third).unwrap()), 3);
    assert!(matches!(set(0), Reply::Ready(Some(Ok(Outcome::Refused(_))))), "also while it is another's turn");
    let look = Transaction::new().read(ReadOp::versioned_key(key.clone()));
    assert!(matches!(store.apply(&object(), look), Reply::Ready(_)), "and looking waits for nobody");
}

#[test]
fn a_turn_that_nobody_uses_holds_up_nobody_for_long() {
    let store = Paced::new(MemoryStore::new(), PaceOptions::default());
    contend(&store);
    // The writer that has the turn never comes back; this waits for its turn to lapse.
    increment(&store, Intent::Update);
    assert_eq!(store.totals().lapsed, 1);
    assert_eq!(value(&store), 2);
}

#[test]
fn looking_and_writing_without_a_condition_never_wait() {
    let store = Paced::new(MemoryStore::new(), patient());
    contend(&store);
    assert_eq!(value(&store), 1);
    let write = Transaction::new().write(Fork::DEFAULT, 0, "whatever");
    assert!(matches!(store.apply(&object(), write), Reply::Ready(Some(Ok(_)))));
    assert_eq!(store.totals().waited, 0);
}

#[test]
fn who_goes_away_while_waiting_is_not_waited_for() {
    let store = Paced::new(MemoryStore::new(), patient());
    contend(&store);
    let read = ReadOp::Range { fork: Fork::DEFAULT, range: RANGE, intent: Intent::Update };
    let mut waiting: Vec<Reply<Outcome>> =
        (0..5).map(|_| store.apply(&object(), Transaction::new().read(read.clone()))).collect();
    assert_eq!(store.totals().waiting, 5);
    let last = waiting.pop().unwrap();
    drop(waiting);
    assert_eq!(store.totals().waiting, 1);
    // Whoever has the turn ends it by its write, and the one who is left gets it.
    increment(&store, Intent::Look);
    assert!(matches!(block_on(last).unwrap(), Outcome::Done(_)));
    assert_eq!(store.totals().waiting, 0);
}

/// A waker that looks at the store when it goes, as one may whose task holds replies of the store.
struct Looking {
    store: Paced<MemoryStore>,
    waiting: Arc<AtomicU64>,
}

impl Wake for Looking {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.waiting.store(self.store.totals().waiting, Ordering::Relaxed);
    }
}

#[test]
fn a_waker_goes_without_the_lock_and_after_its_waiter() {
    let (done, over) = mpsc::channel();
    std::thread::spawn(move || {
        let store = Paced::new(MemoryStore::new(), patient());
        contend(&store);
        let read = ReadOp::Range { fork: Fork::DEFAULT, range: RANGE, intent: Intent::Update };
        let mut reply = store.apply(&object(), Transaction::new().read(read));
        let waiting = Arc::new(AtomicU64::new(u64::MAX));
        for _ in 0..2 {
            let looking = Looking { store: store.clone(), waiting: waiting.clone() };
            let waker = Waker::from(Arc::new(looking));
            assert!(Pin::new(&mut reply).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        // The second one has replaced the first.
        assert_eq!(waiting.load(Ordering::Relaxed), 1);
        drop(reply);
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
        assert!(store.shared.turns.lock().waiting.is_empty());
        done.send(()).unwrap();
    });
    // The limit only ends a test that would hang.
    over.recv_timeout(Duration::from_secs(120)).expect("a deadlock, or a failure as shown above");
}

#[test]
fn without_pacing_nobody_waits_and_failures_are_still_counted() {
    let options = PaceOptions { pacing: false, statistics: true, ..Default::default() };
    let store = Paced::new(MemoryStore::new(), options);
    increment(&store, Intent::Update);
    for _ in 0..3 {
        let late = Transaction::new().if_version(Fork::DEFAULT, RANGE, 0).write(Fork::DEFAULT, 0, "late");
        assert!(matches!(store.apply(&object(), late), Reply::Ready(Some(Ok(Outcome::Refused(_))))));
    }
    let (regions, _) = store.regions(10);
    assert_eq!((regions[0].attempts, regions[0].failures, regions[0].longest_run), (4, 3, 3));
    assert_eq!(store.totals().tracked, 0);
    store.clear_regions();
    assert!(store.regions(10).0.is_empty());
}
