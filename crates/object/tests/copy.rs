//! Copying between stores: after any history, again after more of it, and after interruptions at any point.

use std::sync::atomic::{AtomicUsize, Ordering};

use nacre_object::copy::{Copied, copy_object, copy_objects, is_lock_ledger};
use nacre_object::testkit::conformance::compare;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::{MemoryStore, Model, ObjectState, block_on};
use nacre_object::*;

fn copy(source: &dyn ObjectStore, destination: &dyn ObjectStore) -> Result<Copied, StoreError> {
    block_on(copy_objects(source, destination, |_, _| {}))
}

/// Checks that every existing object looks the same; forks and objects that are gone cannot be seen, and may
/// differ.
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
            let mut transaction =
                Transaction::new().read(ReadOp::Stat).read(ReadOp::Attributes).read(ReadOp::Fences);
            transaction = transaction.read(ReadOp::Forks { after: None, limit: 1000 });
            transaction =
                transaction.read(ReadOp::Keys { range: KeyRange::all(), limit: 1000, values: true });
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
            assert_eq!(
                (again.objects, again.failed.len()),
                (again.unchanged, 0),
                "seed {seed}, round {round}"
            );
            assert_same(generator.model(), &destination, round == 0, &format!("seed {seed}, round {round}"));
        }
    }
}

/// A store that fails after a number of transactions that write.
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

/// A store of an earlier version of Nacre, which takes reads of fences for nonsense.
struct Earlier(MemoryStore);

impl ObjectStore for Earlier {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if transaction.reads.contains(&ReadOp::Fences) {
            return Reply::ready(Err(StoreError::new(ErrorKind::Invalid, "malformed message: unknown read")));
        }
        let fences = |write: &WriteOp| matches!(write, WriteOp::FenceSession { .. });
        if transaction.writes.iter().any(fences) {
            return Reply::ready(Err(StoreError::new(
                ErrorKind::Invalid,
                "malformed message: unknown write",
            )));
        }
        self.0.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.0.list(after, limit)
    }
}

#[test]
fn fences_are_copied_however_many_there_are() {
    let (source, destination) = (MemoryStore::new(), MemoryStore::new());
    let fences = |store: &MemoryStore, name: &str| store.model().object(&id(name)).unwrap().fences();
    let fence = |numbers: std::ops::Range<u64>| {
        let writes = numbers.map(|session| WriteOp::FenceSession { session });
        Transaction { writes: writes.collect(), ..Transaction::new() }
    };
    // As many as an object keeps, and as many keys in the same transaction as it has room for.
    let full =
        (0..limit::OPERATIONS_MAX - limit::FENCED_SESSIONS_MAX).fold(fence(10..1034), |full, number| {
            let key = Key::try_from(format!("k{number}").as_str()).unwrap();
            full.change(WriteOp::SetKey { key, value: "v".into() })
        });
    done(&source, &id("full"), full);
    // An object that was removed keeps them.
    done(&source, &id("gone"), fence(7..9).write(Fork::DEFAULT, 0, "x"));
    done(&source, &id("gone"), Transaction::new().change(WriteOp::Remove));
    assert_eq!(copy(&source, &destination).unwrap().failed, []);
    block_on(copy_object(&source, &destination, &id("gone"))).unwrap();
    for name in ["full", "gone"] {
        assert_eq!(fences(&destination, name), fences(&source, name), "{name}");
        assert_alike(&source, &destination, &id(name));
    }
    assert_eq!(fences(&destination, "full").sessions.len(), 1024);
    // Later ones follow, also those that raise the fence.
    done(&source, &id("full"), fence(2000..2010));
    done(&source, &id("gone"), fence(5..6).change(WriteOp::RaiseFence { token: 8 }).change(WriteOp::Remove));
    block_on(copy_object(&source, &destination, &id("full"))).unwrap();
    block_on(copy_object(&source, &destination, &id("gone"))).unwrap();
    assert_eq!(fences(&destination, "full"), fences(&source, "full"));
    assert_eq!(fences(&destination, "full").fence, 20);
    assert_eq!(fences(&destination, "gone"), Fences { fence: 8, sessions: vec![8] });
    assert!(!destination.model().object(&id("gone")).unwrap().exists());
    assert_eq!(copy(&source, &destination).unwrap().unchanged, 1);
}

#[test]
fn stores_that_know_no_fences_of_sessions_are_copied_unless_some_are_fenced() {
    let (earlier, later) = (Earlier(MemoryStore::new()), MemoryStore::new());
    done(
        &earlier,
        &id("a"),
        Transaction::new().write(Fork::DEFAULT, 0, "data").change(WriteOp::RaiseFence { token: 3 }),
    );
    let copied = copy(&earlier, &later).unwrap();
    assert_eq!((copied.objects, copied.failed), (1, vec![]));
    assert_alike(&earlier.0, &later, &id("a"));
    done(&later, &id("b"), Transaction::new().write(Fork::DEFAULT, 0, "more"));
    done(&later, &id("c"), Transaction::new().change(WriteOp::FenceSession { session: 5 }));
    let copied = copy(&later, &earlier).unwrap();
    assert_eq!((copied.objects, copied.failed.len()), (2, 1));
    assert_eq!(copied.failed[0].0, id("c"));
}

#[test]
fn the_records_of_lock_servers_are_left_out() {
    let (source, destination) = (MemoryStore::new(), MemoryStore::new());
    let records = ["nacre/locks", "nacre/locks-1", "nacre/locks-12"];
    let others = ["my/nacre/locks", "nacre/lock", "nacre/locks-", "nacre/locks-a"];
    for name in records.iter().chain(&others) {
        done(&source, &id(name), Transaction::new().write(Fork::DEFAULT, 0, "x"));
        assert_eq!(is_lock_ledger(&id(name)), records.contains(name), "{name}");
    }
    // Those of the destination are not touched, whichever version they have.
    done(&destination, &id("nacre/locks"), Transaction::new().write(Fork::DEFAULT, 0, "its own"));
    let mut told = Vec::new();
    let copied =
        block_on(copy_objects(&source, &destination, |object, _| told.push(object.clone()))).unwrap();
    assert_eq!((copied.objects, copied.failed), (4, vec![]));
    assert!(records.iter().all(|name| told.contains(&id(name))), "{told:?}");
    let there = block_on(destination.list(None, 100)).unwrap();
    assert_eq!(there, [others[0], others[1], "nacre/locks", others[2], others[3]].map(id));
    let text = Transaction::new().read_range(Fork::DEFAULT, ByteRange { offset: 0, len: 7 });
    let own = done(&destination, &id("nacre/locks"), text);
    assert!(matches!(&own.answers[..], [Answer::Range(range)] if range.data == "its own"), "{own:?}");
}

fn id(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn done(store: &dyn ObjectStore, object: &ObjectId, transaction: Transaction) -> Done {
    match block_on(store.apply(object, transaction)).unwrap() {
        Outcome::Done(done) => done,
        Outcome::Refused(refusal) => panic!("{refusal:?}"),
    }
}

/// Checks that two stores have the same content of an object that has no forks.
fn assert_alike(source: &MemoryStore, destination: &MemoryStore, object: &ObjectId) {
    let (source, destination) = (source.model(), destination.model());
    let (source, destination) = (source.object(object).unwrap(), destination.object(object).unwrap());
    assert!(
        source.keys() == destination.keys() && source.attributes() == destination.attributes(),
        "{object}"
    );
    assert_eq!(
        (source.version(), source.exists()),
        (destination.version(), destination.exists()),
        "{object}"
    );
}

fn set(index: usize) -> WriteOp {
    let key = Key::new(format!("{index:08}")).unwrap();
    WriteOp::SetKey { key, value: format!("value {index}").into() }
}

#[test]
fn any_number_of_keys_is_copied() {
    let (source, destination) = (MemoryStore::new(), MemoryStore::new());
    for batch in 0..100 {
        let writes = (batch * 1000..(batch + 1) * 1000).map(set).collect();
        done(&source, &id("many"), Transaction { writes, ..Transaction::new() });
    }
    // As many as one transaction holds, in the first one.
    let writes = (0..limit::OPERATIONS_MAX).map(set).collect();
    done(&source, &id("at once"), Transaction { writes, ..Transaction::new() });
    // Too many bytes for a reply.
    for index in 0..30 {
        let write =
            WriteOp::SetKey { key: Key::new(format!("{index}")).unwrap(), value: vec![7; 1 << 20].into() };
        done(&source, &id("large"), Transaction::new().change(write));
    }
    let copied = copy(&source, &destination).unwrap();
    assert_eq!((copied.objects, &copied.failed[..]), (3, &[][..]));
    for name in ["many", "at once", "large"] {
        assert_alike(&source, &destination, &id(name));
    }
    done(&source, &id("many"), Transaction::new().change(set(7_000_000)));
    done(
        &source,
        &id("many"),
        Transaction::new().change(WriteOp::RemoveKey { key: Key::new("00000005").unwrap() }),
    );
    assert_eq!(copy(&source, &destination).unwrap().unchanged, 2);
    assert_alike(&source, &destination, &id("many"));
}

/// Stages content of `mib` MiB in a fork, and replaces another fork with it.
fn put(store: &MemoryStore, object: &ObjectId, fork: &Fork, mib: usize, byte: u8) {
    let stage = Fork::try_from(".nacre.staged.1").unwrap();
    for piece in 0..mib.div_ceil(4) {
        let bytes: Vec<u8> = (0..4 << 20).map(|at: usize| byte ^ (at >> 12) as u8 ^ piece as u8).collect();
        done(store, object, Transaction::new().write(stage.clone(), (piece << 22) as u64, bytes));
    }
    done(store, object, Transaction::new().change(WriteOp::ReplaceFork { fork: fork.clone(), from: stage }));
}

/// Copies with an interruption after each transaction, and returns the number of interruptions.
fn copy_in_steps(
    source: &MemoryStore,
    destination: &Failing,
    mut between: impl FnMut(&MemoryStore),
) -> usize {
    for interruptions in 0..1000 {
        destination.left.store(1, Ordering::Relaxed);
        match copy(source, destination) {
            Ok(copied) => {
                assert_eq!(copied.failed, []);
                return interruptions;
            }
            Err(error) => assert_eq!(error.kind, ErrorKind::Unavailable, "{error}"),
        }
        between(&destination.store);
    }
    panic!("no progress");
}

#[test]
fn content_that_took_a_forks_place_is_copied_as_that() {
    let source = MemoryStore::new();
    let (a, f) = (id("a"), Fork::try_from("f").unwrap());
    done(&source, &a, Transaction::new().write(f.clone(), 3, "old"));
    put(&source, &a, &Fork::DEFAULT, 40, 1);
    put(&source, &a, &f, 20, 2);
    // Written to since, at the beginning, in the middle and behind the end.
    let extents = vec![(5, "new".into()), (9 << 20, "new".into()), (50 << 20, "new".into())];
    done(&source, &a, Transaction::new().change(WriteOp::Extents { fork: Fork::DEFAULT, extents }));
    done(
        &source,
        &a,
        Transaction::new().change(WriteOp::Zero { fork: f.clone(), range: ByteRange::new(100, 900) }),
    );
    // A stage that is under way is not copied.
    let stage = Fork::try_from(".nacre.staged.2").unwrap();
    done(&source, &a, Transaction::new().write(stage.clone(), 0, "under way"));
    done(&source, &a, Transaction::new().change(set(1)));
    let destination = Failing { store: MemoryStore::new(), left: AtomicUsize::new(0) };
    let mark = Fork::try_from(nacre_object::copy::MARK).unwrap();
    let interruptions = copy_in_steps(&source, &destination, |store| {
        let state = store.model().object(&a).cloned().unwrap();
        assert!(state.fork_size(&mark).is_some(), "an object that is not complete says so");
        // Until it is whole, the content is the old one.
        let size = state.fork_size(&Fork::DEFAULT).unwrap_or(0);
        assert!([0, 40 << 20, (50 << 20) + 3].contains(&size), "{size}");
    });
    assert!(interruptions > 4, "{interruptions}");
    let copied = destination.store.model().object(&a).cloned().unwrap();
    let original = source.model().object(&a).cloned().unwrap();
    for fork in [&Fork::DEFAULT, &f] {
        assert_eq!(copied.all_extents(fork), original.all_extents(fork));
        let mut at = 0;
        while at < original.fork_size(fork).unwrap() {
            let read = Transaction::new().read_range(fork.clone(), ByteRange::new(at, 8 << 20));
            assert!(
                done(&destination.store, &a, read.clone()).answers == done(&source, &a, read).answers,
                "{at}"
            );
            at += 8 << 20;
        }
    }
    assert_eq!((copied.fork_size(&mark), copied.fork_size(&stage)), (None, None));
    assert_eq!((copied.version(), copied.keys()), (original.version(), original.keys()));
    assert_eq!(copy(&source, &destination.store).unwrap().unchanged, 1);
    // Again, with more since.
    put(&source, &a, &Fork::DEFAULT, 24, 3);
    copy_in_steps(&source, &destination, |_| {});
    let (copied, original) =
        (destination.store.model().object(&a).cloned().unwrap(), source.model().object(&a).cloned().unwrap());
    assert_eq!(copied.all_extents(&Fork::DEFAULT), original.all_extents(&Fork::DEFAULT));
}

/// A source with a writer that gets a turn before each transaction of other clients.
struct Written<W> {
    store: MemoryStore,
    write: W,
}

impl<W: Fn(&MemoryStore, &ObjectId) -> Result<(), StoreError> + Send + Sync + 'static> ObjectStore
    for Written<W>
{
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if let Err(error) = (self.write)(&self.store, object) {
            return Reply::ready(Err(error));
        }
        self.store.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }
}

#[test]
fn objects_are_copied_as_of_one_version_under_a_writer_that_never_stops() {
    let store = MemoryStore::new();
    put(&store, &id("large"), &Fork::DEFAULT, 24, 9);
    done(&store, &id("steady"), Transaction::new().write(Fork::DEFAULT, 0, "steady"));
    done(&store, &id("small"), Transaction::new().change(WriteOp::Create));
    for batch in 0..20 {
        let writes = (batch * 1000..(batch + 1) * 1000).map(set).collect();
        done(&store, &id("keys"), Transaction { writes, ..Transaction::new() });
    }
    let count = AtomicUsize::new(0);
    let f = Fork::try_from("f").unwrap();
    let number = Key::new("number").unwrap();
    // Every transaction writes its number to four places. Those of one copy must tell the same.
    let write = {
        let (f, number) = (f.clone(), number.clone());
        move |store: &MemoryStore, object: &ObjectId| {
            if object.as_bytes() != b"steady" {
                let text = format!("{:08}", count.fetch_add(1, Ordering::Relaxed));
                let change = Transaction::new()
                    .write(Fork::DEFAULT, 1 << 20, text.clone())
                    .write(f.clone(), 0, text.clone())
                    .change(WriteOp::SetKey { key: number.clone(), value: text.clone().into() })
                    .change(WriteOp::SetAttribute { name: number.clone(), value: text.into() });
                done(store, object, change);
            }
            Ok(())
        }
    };
    let (source, destination) = (Written { store, write }, MemoryStore::new());
    for _ in 0..3 {
        let copied = copy(&source, &destination).unwrap();
        assert_eq!((copied.objects, &copied.failed[..]), (4, &[][..]));
        for object in ["large", "small", "keys"].map(id) {
            let state = destination.model().object(&object).cloned().unwrap();
            let text = &state.keys()[&number];
            assert_eq!(state.attributes()[&number], text);
            let read = Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(1 << 20, 8));
            let read = read.read_range(f.clone(), ByteRange::ALL);
            for answer in done(&destination, &object, read).answers {
                assert!(matches!(answer, Answer::Range(found) if found.data == text), "{object}");
            }
        }
    }
}

#[test]
fn what_cannot_be_copied_is_reported_and_the_rest_is_copied() {
    let store = MemoryStore::new();
    for name in ["a", "damaged", "mad", "z"] {
        put(&store, &id(name), &Fork::DEFAULT, 8, 1);
    }
    // One object has unsound bytes, and another changes everywhere before anybody has read it.
    let write = |store: &MemoryStore, object: &ObjectId| match object.as_bytes() {
        b"damaged" => Err(StoreError::new(ErrorKind::Corrupt, "bytes fail their checksum")),
        b"mad" => {
            put(store, object, &Fork::DEFAULT, 8, 2);
            Ok(())
        }
        _ => Ok(()),
    };
    let (source, destination) = (Written { store, write }, MemoryStore::new());
    let copied = copy(&source, &destination).unwrap();
    let failed: Vec<_> = copied.failed.iter().map(|(id, error)| (id.to_string(), error.kind)).collect();
    assert_eq!(failed, [("damaged".to_owned(), ErrorKind::Corrupt), ("mad".to_owned(), ErrorKind::Busy)]);
    assert!(copied.failed[1].1.message.contains("it is written all the time"), "{:?}", copied.failed);
    assert_eq!(copied.objects, 2);
    for name in ["a", "z"] {
        let extents =
            |store: &MemoryStore| store.model().object(&id(name)).unwrap().all_extents(&Fork::DEFAULT);
        assert_eq!(extents(&destination), extents(&source.store));
    }
    // Nobody takes it for whole.
    let mad = destination.model().object(&id("mad")).cloned();
    assert!(
        mad.is_none_or(|state| state.fork_size(&Fork::try_from(nacre_object::copy::MARK).unwrap()).is_some())
    );
}
