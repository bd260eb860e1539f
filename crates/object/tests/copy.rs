//! Copying between stores: after any history, again after more of it, and after being interrupted anywhere.

use std::sync::atomic::{AtomicUsize, Ordering};

use nacre_object::copy::{Copied, copy_object, copy_objects};
use nacre_object::testkit::conformance::compare;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::{MemoryStore, Model, ObjectState, block_on};
use nacre_object::*;

fn copy(source: &dyn ObjectStore, destination: &dyn ObjectStore) -> Result<Copied, StoreError> {
    block_on(copy_objects(source, destination, |_, _| {}))
}

/// Every existing object must look the same; forks and objects that are gone cannot be seen, and may differ.
fn assert_same(source: &Model, destination: &MemoryStore, exact: bool, context: &str) {
    for (id, state) in source.objects().filter(|(_, state)| state.exists()) {
        let visible: Vec<&Fork> =
            state.known_forks().filter(|fork| state.fork_size(fork).is_some()).collect();
        let copy = destination.model().object(id).cloned().unwrap_or_default();
        for fork in visible {
            let (found, expected) = (copy.all_extents(fork), state.all_extents(fork));
            // Holes of a fork that was not there when it was copied first may be newer in the copy.
            let data = |extents: &[Extent]| -> Vec<Extent> {
                extents.iter().filter(|extent| extent.kind == ExtentKind::Data).copied().collect()
            };
            assert_eq!(data(&found), data(&expected), "{context}: extents of {fork:?} of {id}");
            for extent in expected {
                let copied = copy.region_version(fork, extent.range);
                assert!(copied >= extent.version, "{context}: {extent:?} of {fork:?} of {id} is at {copied}");
            }
            if exact {
                assert_eq!(found, state.all_extents(fork), "{context}: extents of {fork:?} of {id}");
            }
        }
        let look = |state: &ObjectState| {
            let mut state = state.clone();
            let mut transaction = Transaction::new().read(Read::Stat).read(Read::Attributes);
            transaction = transaction.read(Read::Forks { after: None, limit: 1000 });
            transaction = transaction.read(Read::Keys { range: KeyRange::all(), limit: 1000, values: true });
            let mut outcomes = vec![state.apply(&transaction).unwrap()];
            for fork in ["", "f1", "f2"].map(|name| Fork::try_from(name).unwrap()) {
                let all = state.all_extents(&fork);
                for extent in all.iter().filter(|extent| extent.kind == ExtentKind::Data) {
                    let read = Transaction::new().read_range(fork.clone(), extent.range);
                    outcomes.push(state.apply(&read).unwrap());
                }
            }
            outcomes
        };
        assert_eq!(look(&copy), look(state), "{context}: object {id}");
    }
}

#[test]
fn a_copy_is_the_same_and_follows_later_changes() {
    for seed in 0..1500 {
        let shape =
            Shape { remove_percent: 8, far_percent: if seed % 2 == 0 { 5 } else { 0 }, ..Shape::default() };
        let mut generator = Generator::new(seed, shape);
        let (source, destination) = (MemoryStore::new(), MemoryStore::new());
        for round in 0..4 {
            for _ in 0..12 {
                let step = generator.step();
                assert_eq!(block_on(source.apply(&step.object, step.transaction)), step.expected);
            }
            // What was removed for good is not listed: by name it is copied all the same.
            for object in generator.objects() {
                block_on(copy_object(&source, &destination, object))
                    .unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            }
            let again = copy(&source, &destination).unwrap();
            assert_eq!((again.objects, again.failed.len()), (again.unchanged, 0), "seed {seed}, round {round}");
            assert_same(generator.model(), &destination, round == 0, &format!("seed {seed}, round {round}"));
        }
    }
}

/// A store that fails after so many transactions that write.
struct Failing {
    store: MemoryStore,
    left: AtomicUsize,
}

impl ObjectStore for Failing {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if !transaction.writes.is_empty() {
            let spent =
                self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if spent.is_err() {
                return Reply::ready(Err(StoreError::new(ErrorKind::Unavailable, "interrupted")));
            }
        }
        self.store.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }
}

#[test]
fn an_interrupted_copy_goes_on_where_it_stopped() {
    for seed in 0..300 {
        let shape = Shape { remove_percent: 3, far_percent: 3, keys: 30, ..Shape::default() };
        let mut generator = Generator::new(seed, shape);
        let source = MemoryStore::new();
        for _ in 0..40 {
            let step = generator.step();
            assert_eq!(block_on(source.apply(&step.object, step.transaction)), step.expected);
        }
        let destination = Failing { store: MemoryStore::new(), left: AtomicUsize::new(0) };
        let mut interruptions = 0;
        loop {
            // One transaction each time: it stops between any two of them.
            destination.left.store(1, Ordering::Relaxed);
            match copy(&source, &destination) {
                Ok(_) => break,
                Err(error) => assert_eq!(error.kind, ErrorKind::Unavailable, "seed {seed}: {error}"),
            }
            interruptions += 1;
            assert!(interruptions < 1000, "seed {seed}: no progress");
        }
        assert_same(generator.model(), &destination.store, true, &format!("seed {seed}"));
    }
}

#[test]
fn what_does_not_fit_is_left_alone() {
    let (source, destination) = (MemoryStore::new(), MemoryStore::new());
    let id = ObjectId::try_from("a").unwrap();
    let write = |store: &MemoryStore, offset, text: &'static str| {
        block_on(store.apply(&id, Transaction::new().write(Fork::DEFAULT, offset, text))).unwrap()
    };
    write(&source, 0, "one");
    write(&source, 10, "two");
    write(&destination, 5, "another");
    let before = destination.model().clone();
    // It is reported, and the others are copied.
    let other = ObjectId::try_from("b").unwrap();
    block_on(source.apply(&other, Transaction::new().write(Fork::DEFAULT, 0, "other"))).unwrap();
    let copied = copy(&source, &destination).unwrap();
    assert_eq!((copied.objects, copied.failed.len()), (1, 1));
    let (failed, error) = &copied.failed[0];
    assert!(*failed == id && error.kind == ErrorKind::Invalid, "{error}");
    assert!(error.message.contains("remove it there first"), "{error}");
    write(&destination, 5, "ahead");
    write(&destination, 5, "ahead");
    assert_eq!(copy(&source, &destination).unwrap().failed[0].1.kind, ErrorKind::Invalid);
    assert_ne!(*destination.model(), before);
    let model = destination.model().clone();
    compare(&destination, &model, &[id]).unwrap();
}
