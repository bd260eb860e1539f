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
fn assert_same(source: &Model, destination: &MemoryStore, context: &str) {
    for (id, state) in source.objects().filter(|(_, state)| state.exists()) {
        let visible: Vec<&Fork> =
            state.known_forks().filter(|fork| state.fork_size(fork).is_some()).collect();
        let copy = destination.model().object(id).cloned().unwrap_or_default();
        for fork in visible {
            assert_eq!(
                copy.all_extents(fork),
                state.all_extents(fork),
                "{context}: extents of {fork:?} of {id}"
            );
        }
        let look = |state: &ObjectState| {
            let mut state = state.clone();
            let mut transaction = Transaction::new().read(Read::Stat).read(Read::Attributes);
            transaction = transaction.read(Read::Forks { after: None, limit: 1000 });
            transaction = transaction.read(Read::Keys { range: KeyRange::all(), limit: 1000, values: true });
            for extent in state.all_extents(&Fork::DEFAULT) {
                let range = ByteRange::new(extent.range.offset, extent.range.len.min(1 << 20));
                transaction = transaction.read_range(Fork::DEFAULT, range);
            }
            state.apply(&transaction).unwrap()
        };
        assert_eq!(look(&copy), look(state), "{context}: object {id}");
    }
}

#[test]
fn a_copy_is_the_same_and_follows_later_changes() {
    let mut anew = 0;
    for seed in 0..1500 {
        let shape =
            Shape { remove_percent: 8, far_percent: if seed % 2 == 0 { 5 } else { 0 }, ..Shape::default() };
        let mut generator = Generator::new(seed, shape);
        let (source, mut destination) = (MemoryStore::new(), MemoryStore::new());
        for round in 0..4 {
            for _ in 0..12 {
                let step = generator.step();
                assert_eq!(block_on(source.apply(&step.object, step.transaction)), step.expected);
            }
            // What was removed for good is not listed: by name it is copied all the same.
            for object in generator.objects() {
                if let Err(error) = block_on(copy_object(&source, &destination, object)) {
                    // A fork that nobody saw had holes already when it came to be.
                    assert!(
                        round > 0 && error.kind == ErrorKind::Invalid,
                        "seed {seed}, round {round}: {error}"
                    );
                    anew += 1;
                    destination = MemoryStore::new();
                    break;
                }
            }
            copy(&source, &destination).unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            assert_same(generator.model(), &destination, &format!("seed {seed}, round {round}"));
        }
        let again = copy(&source, &destination).unwrap();
        assert_eq!(again.objects, again.unchanged, "seed {seed}");
    }
    assert!(anew < 600, "{anew} of 4500 later copies had to be made anew");
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
        assert_same(generator.model(), &destination.store, &format!("seed {seed}"));
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
    let error = copy(&source, &destination).unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("remove it there first"), "{error}");
    write(&destination, 5, "ahead");
    write(&destination, 5, "ahead");
    let error = copy(&source, &destination).unwrap_err();
    assert!(error.kind == ErrorKind::Invalid, "{error}");
    assert_ne!(*destination.model(), before);
    let model = destination.model().clone();
    compare(&destination, &model, &[id]).unwrap();
}
