//! The engine without a cluster: `extent.lua` runs in a Lua machine of this process, on an object in memory that stands for a
//! RADOS object, and native writes change the same object. Random histories are compared with the reference model.
//!
//! The machine is that of object classes, whose interface is the one of Ceph's class `lua`. It is Lua 5.4; the tests with a
//! cluster run the version that its OSDs link.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nacre_class::{Bounds, CallError, Catalogue, Class, Request, Runtime};
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::{MemoryStore, block_on, conformance};
use nacre_object::{
    Answer, ByteRange, Check, Done, ErrorKind, ExtentKind, Fork, Guard, Intent, Key, KeyRange, ObjectId,
    ObjectStore, Outcome, ReadOp, Reply, StoreError, Transaction, WriteOp,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::cache::ObjectCache;
use crate::error::errno;
use crate::floor::Floor;
use crate::name::{extent_prefix, keyed};
use crate::record::{Author, Changed, ForkRecord, Header, Placed, Token, decode_key};
use crate::request::{self, Call};
use crate::script::{self, FOREIGN_CHUNK, Routine, Section, Sections};
use crate::sys::WriteStep;
use crate::{native, reply, write};

/// The name of the class that stands for a routine, and of the script's function.
const CLASS: &str = "lua";
const FUNCTION: &str = "run";

/// An engine whose RADOS objects are in memory: their byte streams as default forks, their omaps as keys, their xattrs as
/// attributes.
struct Emulated {
    memory: MemoryStore,
    runtime: Runtime,
    routines: Mutex<HashMap<Routine, Arc<Catalogue>>>,
    /// True if writes are native where they can be.
    native: bool,
    /// The knowledge of objects that native writes were last planned by.
    known: Mutex<HashMap<ObjectId, ObjectCache>>,
    tokens: AtomicU64,
    /// The floor for objects without a trace.
    floor: Floor,
    /// The writes that were native, and those that were calls.
    natives: AtomicU64,
    calls: AtomicU64,
}

fn name(bytes: &[u8]) -> Key {
    Key::new(Bytes::copy_from_slice(bytes)).unwrap()
}

fn class(text: String) -> Arc<Catalogue> {
    let class = Class::new(CLASS.to_owned(), 1, text.into(), Vec::new(), Bounds::MAX);
    Arc::new(Catalogue::of(class))
}

impl Emulated {
    fn new(native: bool) -> Self {
        Self {
            memory: MemoryStore::new(),
            runtime: Runtime::new(1),
            routines: Mutex::default(),
            native,
            known: Mutex::default(),
            tokens: AtomicU64::new(1),
            floor: Floor::default(),
            natives: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        }
    }

    fn token(&self) -> Token {
        u128::from(self.tokens.fetch_add(1, Ordering::Relaxed)).to_le_bytes()
    }

    /// Runs a call with a chunk, as an OSD runs `eval_bufferlist`. Classes cannot load text, so that of the routine is part of
    /// the class, and `load` returns it for every text, and nothing for what another Lua compiled.
    fn run(&self, object: &ObjectId, routine: Routine, chunk: &[u8], request: &[u8]) -> (i32, Bytes) {
        let encoded = script::call(chunk, request);
        let (loader, function, input) = script::taken_apart(&encoded).unwrap();
        assert_eq!(function, FUNCTION.as_bytes());
        let mut routines = self.routines.lock();
        let catalogue = routines.entry(routine).or_insert_with(|| {
            let (source, loader) = (script::source(routine), std::str::from_utf8(loader).unwrap());
            class(format!(
                "local function chunk(...)\n{source}\nend\n\
                 function load(text) if text:byte() == 27 then return nil end return chunk end\n{loader}"
            ))
        });
        let catalogue = Arc::clone(catalogue);
        drop(routines);
        let request = Request::new(object, CLASS, FUNCTION).input(Bytes::copy_from_slice(input));
        match block_on(self.runtime.call(&self.memory, &catalogue, &request)) {
            Ok(called) => (called.result, called.output),
            Err(CallError::Failed { errno, failure, .. }) => {
                assert_eq!(errno, errno::ECANCELED, "{}", failure.message);
                (-errno, failure.output)
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn run_source(&self, object: &ObjectId, routine: Routine, request: &[u8]) -> (i32, Bytes) {
        self.run(object, routine, script::source(routine).as_bytes(), request)
    }

    /// Moves an object's live bytes together, and sweeps its index.
    fn tend(&self, object: &ObjectId) {
        for (handler, section, bound) in
            [("sweep", Section::Sweep, 100_u32), ("compact", Section::Compact, 1)]
        {
            let sections = Sections::default().with(Section::Index).with(section);
            let request = [&self.token()[..], &bound.to_le_bytes()].concat();
            let (code, output) = self.run_source(object, Routine { handler, sections }, &request);
            assert!(code == 0 && (output.is_empty() || Changed::decode(&output).is_some()));
        }
    }

    /// Asks the memory for a part of a RADOS object.
    fn raw(&self, object: &ObjectId, read: ReadOp) -> Answer {
        match block_on(self.memory.apply(object, Transaction::new().read(read))).unwrap() {
            Outcome::Done(done) => done.answers.into_iter().next().unwrap(),
            refused => panic!("{refused:?}"),
        }
    }

    fn header(&self, object: &ObjectId) -> Option<Header> {
        match self.raw(object, ReadOp::Attribute { name: name(native::HEADER.to_bytes()) }) {
            Answer::Value(record) => record.map(|record| Header::decode(&record).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    fn omap(&self, object: &ObjectId, key: &[u8]) -> Option<Bytes> {
        match self.raw(object, ReadOp::Key { key: name(key) }) {
            Answer::Value(value) => value,
            other => panic!("{other:?}"),
        }
    }

    /// Returns all entries of the omap that begin with a prefix.
    fn entries(&self, object: &ObjectId, prefix: &[u8]) -> Vec<(Key, Bytes)> {
        let mut range = KeyRange { prefix: Bytes::copy_from_slice(prefix), ..KeyRange::all() };
        let mut entries = Vec::new();
        loop {
            let limit = PAGE_ENTRIES_MAX as u32;
            match self.raw(object, ReadOp::Keys { range: range.clone(), limit, values: true }) {
                Answer::Keys(page) => {
                    range.after = page.entries.last().map(|(key, _)| key.to_bytes());
                    entries.extend(page.entries);
                    if !page.more {
                        return entries;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Adds everything that a transaction names to the knowledge of an object, as reads of it would.
    fn learn(
        &self,
        mut known: ObjectCache,
        object: &ObjectId,
        header: &Header,
        transaction: &Transaction,
    ) -> ObjectCache {
        known.saw_header(header);
        let (forks, keys) = named(transaction);
        for fork in &forks {
            let key = keyed(Some(b'f'), fork.as_bytes());
            let record = match self.omap(object, &key) {
                Some(value) => ForkRecord::decode(&key, &value).unwrap(),
                None => ForkRecord::none(&key),
            };
            let mut extents = Vec::new();
            for (key, value) in self.entries(object, &extent_prefix(&record.stem)) {
                let mut extent = Placed::decode(key.as_bytes(), &value, header).unwrap();
                extent.version = extent.version.max(record.base);
                extents.push(extent);
            }
            known.saw(header, fork, &record, ByteRange::ALL, &extents);
        }
        for key in &keys {
            let stored = self.omap(object, &keyed(Some(b'k'), key.as_bytes()));
            let found = stored.map(|stored| decode_key(&stored, header).unwrap());
            known.saw_key(header, key, found.as_ref());
        }
        known
    }

    /// Applies a transaction as a native write, if it has that form and is not refused.
    fn write_natively(&self, object: &ObjectId, transaction: &Transaction) -> Option<Outcome> {
        let before = self.header(object);
        let (mut known, write) = match &before {
            None => (ObjectCache::default(), write::plan_first(transaction, self.token(), self.floor)?),
            Some(header) => {
                let kept = self.known.lock().remove(object).unwrap_or_default();
                let known = self.learn(kept, object, header, transaction);
                let write = write::plan(transaction, &known, self.token())?;
                (known, write)
            }
        };
        write.with_steps(|steps| self.perform(object, steps));
        match &before {
            None => write.made(&mut known),
            Some(_) => write.foretell(&mut known),
        }
        // What the client takes the object to be from now on is what it is.
        assert_eq!(self.header(object), Some(write.after));
        let found = self.learn(ObjectCache::default(), object, &write.after, transaction);
        let (forks, keys) = named(transaction);
        for fork in forks.iter().filter(|fork| known.fork(fork).is_some()) {
            assert_eq!(known.fork(fork), found.fork(fork));
            if let Some(extents) = known.covering(fork, ByteRange::ALL) {
                assert_eq!(Some(extents), found.covering(fork, ByteRange::ALL));
            }
        }
        for key in keys.iter().filter(|key| known.key(key).is_some()) {
            assert_eq!(known.key(key), found.key(key));
        }
        self.known.lock().insert(object.clone(), known);
        self.natives.fetch_add(1, Ordering::Relaxed);
        let existed = write.before.is_some();
        Some(Outcome::Done(Done { version: write.after.version, existed, answers: write.answers }))
    }

    /// Performs the steps of a native write, which must all succeed.
    fn perform(&self, object: &ObjectId, steps: &[WriteStep<'_>]) {
        let mut transaction = Transaction::new();
        let copied = Bytes::copy_from_slice;
        for step in steps {
            transaction = match step {
                WriteStep::IfXattr(attribute, value) => {
                    let (name, check) = (name(attribute.to_bytes()), Check::Equal(copied(value)));
                    transaction.guard(Guard::Attribute { name, check })
                }
                WriteStep::CreateNew => transaction.guard(Guard::Absent).change(WriteOp::Create),
                WriteStep::Bytes { offset, data } => {
                    let extents = vec![(*offset, copied(data))];
                    transaction.change(WriteOp::Extents { fork: Fork::DEFAULT, extents })
                }
                WriteStep::SetOmaps(entries) => {
                    entries.iter().fold(transaction, |transaction, (key, value)| {
                        transaction.change(WriteOp::SetKey { key: name(key), value: value.clone() })
                    })
                }
                WriteStep::RemoveOmaps(keys) => keys.iter().fold(transaction, |transaction, key| {
                    transaction.change(WriteOp::RemoveKey { key: name(key) })
                }),
                WriteStep::SetXattr(attribute, value) => {
                    let (name, value) = (name(attribute.to_bytes()), copied(value));
                    transaction.change(WriteOp::SetAttribute { name, value })
                }
                _ => panic!("a native write has no such step"),
            };
        }
        let outcome = block_on(self.memory.apply(object, transaction)).unwrap();
        assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    }

    /// Makes one call of a transaction. Returns what it changed, with the answers that came along.
    fn call(
        &self,
        object: &ObjectId,
        transaction: &Transaction,
        expected: Option<u64>,
        marked: bool,
    ) -> Result<Result<(Changed, Vec<Answer>), reply::Reply>, StoreError> {
        let token = self.token();
        let floor = self.floor;
        let request = request::encode(transaction, Call { token: &token, expected, marked, floor });
        let (code, output) = self.run_source(object, request::routine(transaction, expected), &request);
        if code == 0 && !transaction.writes.is_empty() {
            let tells_size = request::size_read(transaction, expected).is_some();
            return Ok(Ok(reply::changed(&output, tells_size).expect("a change within 32 bytes")));
        }
        reply::decode(transaction, output, floor.shown).expect("a reply").map(Err)
    }

    fn transact(&self, object: &ObjectId, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let writes = !transaction.writes.is_empty();
        if self.native
            && writes
            && let Some(outcome) = self.write_natively(object, transaction)
        {
            return Ok(outcome);
        }
        if request::size_read(transaction, None).is_some() {
            match self.transact_holding(object, transaction, None) {
                Err(error) if error.kind == ErrorKind::Unsupported => {}
                transacted => return transacted,
            }
        }
        let mut held: Option<(u64, Vec<Answer>)> = None;
        if writes && !transaction.reads.is_empty() {
            let reading = Transaction { writes: Vec::new(), ..transaction.clone() };
            match self.transact(object, &reading)? {
                Outcome::Done(done) => held = Some((done.version, done.answers)),
                refused => return Ok(refused),
            }
        }
        self.transact_holding(object, transaction, held)
    }

    /// Applies a transaction by calls, with the answers to its reads and their version, unless those come along.
    fn transact_holding(
        &self,
        object: &ObjectId,
        transaction: &Transaction,
        held: Option<(u64, Vec<Answer>)>,
    ) -> Result<Outcome, StoreError> {
        let writes = !transaction.writes.is_empty();
        self.calls.fetch_add(u64::from(writes), Ordering::Relaxed);
        let mut marked = false;
        loop {
            let expected = held.as_ref().map(|(version, _)| *version);
            let answered = match self.call(object, transaction, expected, marked)? {
                Ok((Changed { version, existed, .. }, told)) => {
                    let answers = held.map_or(told, |(_, answers)| answers);
                    return Ok(Outcome::Done(Done { version, existed, answers }));
                }
                Err(answered) => answered,
            };
            let text = match answered {
                reply::Reply::Unindexed if !marked => {
                    marked = true;
                    continue;
                }
                reply::Reply::Answered(answers, header) if !writes => {
                    let Header { version, exists: existed, .. } = header;
                    return Ok(Outcome::Done(Done { version, existed, answers }));
                }
                reply::Reply::Refused(refusal) => return Ok(Outcome::Refused(refusal)),
                reply::Reply::TooFar(size, len) => return Err(nacre_object::appended_too_far(size, len)),
                reply::Reply::Exhausted => {
                    return Err(StoreError::new(ErrorKind::Unsupported, "more than a call may do"));
                }
                reply::Reply::Crowded(count) => format!("{count} attributes"),
                reply::Reply::Failed(why) => panic!("the class failed: {why}"),
                reply::Reply::Corrupt(key) => panic!("the class found {key:?} corrupt"),
                _ => panic!("an answer that fits nothing"),
            };
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
    }

    /// Checks that the numbers in an object's header are those of its entries.
    fn audit(&self, object: &ObjectId) {
        let Some(header) = self.header(object) else { return };
        let count = |prefix: &[u8]| self.entries(object, prefix).len();
        assert_eq!(header.keys as usize, count(b"k"));
        assert_eq!(usize::from(header.attributes), count(b"a"));
        let records: Vec<ForkRecord> = self
            .entries(object, b"f")
            .iter()
            .map(|(key, value)| ForkRecord::decode(key.as_bytes(), value).unwrap())
            .collect();
        let sizes: Vec<u64> = records.iter().filter_map(|record| record.size).collect();
        assert_eq!(header.forks as usize, sizes.len());
        assert_eq!(header.bytes(), sizes.iter().fold(0u64, |sum, size| sum.saturating_add(*size)));
        let extents = self.entries(object, b"x");
        let live = extents
            .iter()
            .map(|(key, value)| Placed::decode(key.as_bytes(), value, &header).unwrap())
            .filter(|extent| extent.kind == ExtentKind::Data)
            .map(|extent| extent.end - extent.start);
        assert_eq!(u64::from(header.live), live.sum::<u64>());
    }
}

/// Returns the forks and the keys that a transaction names, as far as native writes have to do with them.
fn named(transaction: &Transaction) -> (Vec<Fork>, Vec<Key>) {
    let (mut forks, mut keys) = (Vec::new(), Vec::new());
    for guard in &transaction.guards {
        match guard {
            Guard::Region { fork, .. } | Guard::Proposal { fork, .. } | Guard::Size { fork, .. } => {
                forks.push(fork.clone());
            }
            Guard::Key { key, .. } | Guard::KeyVersion { key, .. } => keys.push(key.clone()),
            _ => {}
        }
    }
    for read in &transaction.reads {
        if let ReadOp::Key { key } | ReadOp::VersionedKey { key, .. } = read {
            keys.push(key.clone());
        }
    }
    for write in &transaction.writes {
        match write {
            WriteOp::Extents { fork, .. } | WriteOp::Append { fork, .. } => forks.push(fork.clone()),
            WriteOp::SetKey { key, .. } | WriteOp::RemoveKey { key } => keys.push(key.clone()),
            _ => {}
        }
    }
    (forks, keys)
}

impl ObjectStore for Emulated {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        Reply::ready(transaction.validate().and_then(|()| self.transact(object, &transaction)))
    }

    fn list(&self, _after: Option<&ObjectId>, _limit: usize) -> Reply<Vec<ObjectId>> {
        let text = "there is no index of names in this emulation";
        Reply::ready(Err(StoreError::new(ErrorKind::Unsupported, text)))
    }
}

/// Returns the seed of the first history: that of the environment, or any.
fn first_seed() -> u64 {
    let seed = std::env::var("NACRE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::random::<u64>() >> 8);
    println!("NACRE_SEED={seed}");
    seed
}

/// Compares random histories with the model, step by step and at their ends. Returns the number of native writes and of others.
fn histories(native: bool, count: u64, steps: usize, shape: &Shape) -> (u64, u64) {
    let (mut natives, mut calls) = (0, 0);
    let first = first_seed();
    for seed in first..first + count {
        let store = Emulated::new(native);
        let mut generator = Generator::new(seed, shape.clone());
        for number in 0..steps {
            let step = generator.step();
            let found = block_on(store.apply(&step.object, step.transaction.clone()));
            let agree = match (&found, &step.expected) {
                (Err(found), Err(expected)) => found.kind == expected.kind,
                (found, expected) => found == expected,
            };
            assert!(agree, "seed {seed}, transaction {number}: {:?}: {found:?}", step.transaction);
            if number % 10 == 9 {
                store.tend(&step.object);
            }
            store.audit(&step.object);
        }
        if let Err(failure) = conformance::compare(&store, generator.model(), generator.objects()) {
            panic!("seed {seed}, at the end: {failure}");
        }
        natives += store.natives.load(Ordering::Relaxed);
        calls += store.calls.load(Ordering::Relaxed);
    }
    (natives, calls)
}

/// A shape of histories that have native forms now and then: new objects, keys and appended bytes.
fn simple() -> Shape {
    Shape {
        writes_max: 2,
        reads_max: 1,
        guards_max: 1,
        extents_max: 3,
        remove_percent: 1,
        ..Shape::default()
    }
}

#[test]
fn the_class_agrees_with_the_model_under_lua_5_4() {
    let (object, runtime) = (ObjectId::try_from("o").unwrap(), Runtime::new(1));
    let version = "function run(i, o) o:append(_VERSION) end objclass.register(run)".to_owned();
    let (memory, request) = (MemoryStore::new(), Request::new(&object, CLASS, FUNCTION));
    let called = block_on(runtime.call(&memory, &class(version), &request)).unwrap();
    assert_eq!(called.output, "Lua 5.4");
    assert_eq!(histories(false, 6, 40, &Shape::default()).0, 0);
    let busy = Shape { objects: 1, forks: 1, span_bytes: 40, remove_percent: 1, ..Shape::default() };
    histories(false, 3, 40, &busy);
    // Pieces that are placed at multiples of 4 KiB.
    let long =
        Shape { objects: 1, forks: 2, span_bytes: 40_000, extent_bytes_max: 15_000, ..Shape::default() };
    histories(false, 1, 30, &long);
}

#[test]
fn native_writes_and_calls_agree_with_the_model() {
    let (natives, calls) = histories(true, 8, 50, &simple());
    assert!(natives > 0 && calls > 0, "{natives} native writes, {calls} calls");
    histories(true, 3, 40, &Shape::default());
    let long = Shape { span_bytes: 40_000, extent_bytes_max: 15_000, ..simple() };
    histories(true, 2, 30, &long);
}

#[test]
fn writes_that_are_made_of_many_pieces_keys_and_appends_are_native() {
    let (store, object) = (Emulated::new(true), ObjectId::try_from("o").unwrap());
    let done = |transaction: Transaction| match block_on(store.apply(&object, transaction)).unwrap() {
        Outcome::Done(done) => done,
        refused => panic!("{refused:?}"),
    };
    let (key, other) = (Key::try_from("key").unwrap(), Key::try_from("other").unwrap());
    let set = |key: &Key, value: &'static str| WriteOp::SetKey { key: key.clone(), value: value.into() };
    let extents = |from: u64, count: u64| WriteOp::Extents {
        fork: Fork::DEFAULT,
        extents: (from..from + count).map(|piece| (10 * piece, Bytes::from_static(b"abc"))).collect(),
    };
    // The first write makes the object, with all that it holds; a guard that does not hold is left to the class.
    let first = Transaction::new().guard(Guard::Absent).change(extents(0, 1000)).change(set(&key, "one"));
    assert_eq!(done(first.clone()).version, 1);
    assert!(matches!(block_on(store.apply(&object, first)).unwrap(), Outcome::Refused(_)));
    // Many pieces behind the end, and some that are there already.
    done(Transaction::new().change(extents(1000, 900)));
    done(
        Transaction::new().guard(Guard::Size { fork: Fork::DEFAULT, size: 18_993 }).change(extents(990, 20)),
    );
    // What is read is as it was before.
    let exchange = Transaction::new()
        .guard(Guard::KeyVersion { key: key.clone(), version: 1 })
        .guard(Guard::Key { key: other.clone(), check: Check::Absent })
        .read(ReadOp::Key { key: key.clone() })
        .read(ReadOp::Stat)
        .change(set(&key, "two"))
        .change(set(&other, "more"))
        .change(WriteOp::RemoveKey { key: other.clone() })
        .change(WriteOp::Append { fork: Fork::DEFAULT, data: "tail".into() });
    let found = done(exchange);
    assert_eq!((found.version, &found.answers[0]), (4, &Answer::Value(Some("one".into()))));
    assert!(matches!(&found.answers[1], Answer::Stat(stat) if (stat.version, stat.keys) == (3, 1)));
    assert_eq!((store.natives.load(Ordering::Relaxed), store.calls.load(Ordering::Relaxed)), (4, 1));
    store.audit(&object);
    // The class sees all of it.
    let whole = Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(18_980, 20));
    let Answer::Range(read) = &done(whole).answers[0] else { panic!("not a range") };
    assert_eq!((&read.data[..], read.size), (&b"abc\0\0\0\0\0\0\0abctail"[..], 18_997));
}

#[test]
fn whatever_changes_a_watched_object_keeps_its_mark() {
    let (store, object) = (Emulated::new(true), ObjectId::try_from("o").unwrap());
    // It never existed: the mark is all that there is.
    let header = Header { watched: true, author: Author::Token(store.token()), ..Header::default() };
    let (attribute, value) = (name(native::HEADER.to_bytes()), Bytes::from(header.encode()));
    let mark = Transaction::new().change(WriteOp::SetAttribute { name: attribute, value });
    assert!(matches!(block_on(store.memory.apply(&object, mark)).unwrap(), Outcome::Done(_)));
    let write = |offset: u64| Transaction::new().write(Fork::DEFAULT, offset, "bytes");
    assert!(store.write_natively(&object, &write(0)).is_none());
    let unmarked = store.call(&object, &write(0), None, false).unwrap();
    assert!(matches!(unmarked, Err(reply::Reply::Unindexed)), "it was made without a mark in the index");
    let call =
        |transaction: &Transaction| store.call(&object, transaction, None, true).unwrap().ok().unwrap().0;
    let made = call(&write(0));
    assert_eq!((made.version, made.existed, made.watched), (1, false, true));
    assert!(store.write_natively(&object, &write(3)).is_some());
    let written = store.header(&object).unwrap();
    assert_eq!((written.version, written.watched), (2, true));
    store.tend(&object);
    let tended = store.header(&object).unwrap();
    assert!(tended.watched && tended.tail < written.tail, "it was compacted");
    let removed = call(&Transaction::new().change(WriteOp::Remove));
    assert_eq!((removed.version, removed.exists, removed.watched), (3, false, true));
    assert!(call(&write(0)).watched && store.header(&object).unwrap().watched);
}

#[test]
fn a_chunk_that_another_lua_compiled_is_refused_and_its_text_is_run() {
    let (store, object) = (Emulated::new(false), ObjectId::try_from("o").unwrap());
    let create = Transaction::new().change(WriteOp::Create);
    let routine = request::routine(&create, None);
    let token = store.token();
    let floor = Floor::default();
    let request = request::encode(&create, Call { token: &token, expected: None, marked: true, floor });
    let (code, output) = store.run(&object, routine, b"\x1bLua\x53\0\x19\x93\r\n\x1a\n", &request);
    assert_eq!((code, &output[..]), (-errno::ECANCELED, &[FOREIGN_CHUNK][..]));
    assert!(store.header(&object).is_none());
    let (code, output) = store.run_source(&object, routine, &request);
    assert_eq!((code, Changed::decode(&output).map(|changed| changed.version)), (0, Some(1)));
}

/// Makes a call of a transaction with a token of the caller's, and returns what it changed.
fn call_with(
    store: &Emulated,
    object: &ObjectId,
    transaction: &Transaction,
    token: &Token,
) -> Option<Changed> {
    let call = Call { token, expected: None, marked: true, floor: store.floor };
    let request = request::encode(transaction, call);
    let (code, output) = store.run_source(object, request::routine(transaction, None), &request);
    (code == 0).then(|| Changed::decode(&output).expect("a change"))
}

/// Tests that a call which an OSD gets again, and does not remember, is not made once more.
#[test]
fn a_call_that_comes_again_changes_nothing_and_says_the_same() {
    let (store, object) = (Emulated::new(false), ObjectId::try_from("o").unwrap());
    let append = |data: &'static str| {
        Transaction::new().change(WriteOp::Append { fork: Fork::DEFAULT, data: data.into() })
    };
    let size = || store.header(&object).unwrap().bytes();
    // One that makes the object, and is refused if it is made a second time.
    let (first, token) = (append("abc").guard(Guard::Absent), store.token());
    let made = call_with(&store, &object, &first, &token).unwrap();
    assert_eq!((made.version, made.existed), (1, false));
    assert_eq!(call_with(&store, &object, &first, &token), Some(made), "it is no refusal");
    assert_eq!(call_with(&store, &object, &first, &store.token()), None, "that of another is one");
    let token = store.token();
    let changed = call_with(&store, &object, &append("def"), &token).unwrap();
    assert_eq!(call_with(&store, &object, &append("def"), &token), Some(changed));
    assert_eq!((changed.version, size()), (2, 6), "it is appended once");
    // The mark that the object is watched is no part of the token.
    let watched = Header { watched: true, ..store.header(&object).unwrap() };
    let (attribute, value) = (name(native::HEADER.to_bytes()), Bytes::from(watched.encode()));
    let mark = Transaction::new().change(WriteOp::SetAttribute { name: attribute, value });
    assert!(matches!(block_on(store.memory.apply(&object, mark)).unwrap(), Outcome::Done(_)));
    let again = call_with(&store, &object, &append("def"), &token).unwrap();
    assert_eq!((again.version, again.watched, size()), (2, true, 6));
    let removal = Transaction::new().change(WriteOp::Remove);
    let token = store.token();
    let removed = call_with(&store, &object, &removal, &token).unwrap();
    assert_eq!((removed.version, removed.exists), (3, false));
    assert_eq!(call_with(&store, &object, &removal, &token), Some(removed));
}

/// Tests that appends which return the size before them are one call each, and answer as the model does.
#[test]
fn an_append_that_returns_the_size_is_one_call() {
    let (store, model) = (Emulated::new(false), MemoryStore::new());
    let object = ObjectId::try_from("o").unwrap();
    let (fork, key) = (Fork::new("taken").unwrap(), Key::try_from("installed").unwrap());
    let taking = |data: &'static str| {
        Transaction::new()
            .guard(Guard::Key { key: key.clone(), check: Check::Equal("epoch".into()) })
            .read(ReadOp::Extents { fork: fork.clone(), range: ByteRange::new(0, 0) })
            .change(WriteOp::Append { fork: fork.clone(), data: data.into() })
    };
    let install = Transaction::new().change(WriteOp::SetKey { key: key.clone(), value: "epoch".into() });
    let both = |transaction: Transaction| {
        let expected = block_on(model.apply(&object, transaction.clone())).unwrap();
        let before = store.calls.load(Ordering::Relaxed);
        assert_eq!(block_on(store.apply(&object, transaction)).unwrap(), expected);
        (expected, store.calls.load(Ordering::Relaxed) - before)
    };
    let size = |outcome: Outcome| match outcome {
        Outcome::Done(done) => match &done.answers[..] {
            [Answer::Range(found)] => Some(found.size),
            other => panic!("{other:?}"),
        },
        Outcome::Refused(_) => None,
    };
    // An append without a guard makes the object.
    let (found, _) = both(Transaction { guards: Vec::new(), ..taking("abc") });
    assert_eq!(size(found), Some(0));
    assert_eq!(size(both(taking("abc")).0), None, "the guard does not hold");
    both(install.clone());
    for (data, before) in [("de", 3), ("fgh", 5), ("i", 8)] {
        let (found, calls) = both(taking(data));
        assert_eq!((size(found), calls), (Some(before), 1));
    }
    let zero = WriteOp::Zero { fork: fork.clone(), range: ByteRange::new(0, 9) };
    assert_eq!(size(both(taking("j").change(zero)).0), Some(9));
    // After a removal, what was never written has the version of that, and the answer says so.
    both(Transaction::new().change(WriteOp::Remove));
    both(install.clone());
    assert_eq!(both(taking("abc")).1, 1);
    // One that does not fit into the answer takes a call more.
    let far = Guard::Proposal { fork: fork.clone(), range: ByteRange::ALL, version: 1 << 60 };
    both(Transaction::new().guard(far).change(WriteOp::Remove));
    both(install);
    let (found, calls) = both(taking("abc"));
    assert_eq!((size(found), calls), (Some(0), 2));
    store.audit(&object);
}

/// Tests that such an append whose call comes again returns the size that it returned before.
#[test]
fn an_append_that_comes_again_returns_the_same_size() {
    let (store, object) = (Emulated::new(false), ObjectId::try_from("o").unwrap());
    let fork = Fork::new("taken").unwrap();
    let append = |data: &'static str| {
        Transaction::new()
            .read(ReadOp::Extents { fork: fork.clone(), range: ByteRange::new(0, 0) })
            .change(WriteOp::Append { fork: fork.clone(), data: data.into() })
    };
    // Where it also appends to another fork, and twice to this one, only what goes to this one counts.
    let other = WriteOp::Append { fork: Fork::DEFAULT, data: "other".into() };
    let zero = WriteOp::Zero { fork: fork.clone(), range: ByteRange::new(0, 2) };
    let more = append("hi").change(other).change(zero);
    let more = more.change(WriteOp::Append { fork: fork.clone(), data: "jkl".into() });
    for (transaction, before) in [(append("abc"), 0), (append("defg"), 3), (more, 7)] {
        let token = store.token();
        let call = Call { token: &token, expected: None, marked: true, floor: store.floor };
        let request = request::encode(&transaction, call);
        let once = || store.run_source(&object, request::routine(&transaction, None), &request);
        let (code, output) = once();
        // No OSD is set to return less.
        assert_eq!((code, output.len()), (0, 32));
        let (changed, answers) = reply::changed(&output, true).unwrap();
        assert!(changed.exists && matches!(&answers[..], [Answer::Range(found)] if found.size == before));
        assert_eq!(once(), (code, output));
    }
    assert_eq!(store.header(&object).unwrap().bytes(), 12 + 5, "each was made once");
    store.audit(&object);
}

/// Tests that a native write is known by the header that it leaves, and by no other.
#[test]
fn a_native_write_that_was_made_is_known_by_its_header() {
    let (store, object) = (Emulated::new(true), ObjectId::try_from("o").unwrap());
    let write = Transaction::new().write(Fork::DEFAULT, 0, "abc");
    let first = write::plan_first(&write, store.token(), store.floor).unwrap();
    first.with_steps(|steps| store.perform(&object, steps));
    assert!(first.has_left(&store.header(&object).unwrap()));
    let known = store.learn(ObjectCache::default(), &object, &first.after, &write);
    let second = write::plan(&write, &known, store.token()).unwrap();
    assert!(!second.has_left(&store.header(&object).unwrap()), "it was not made yet");
    second.with_steps(|steps| store.perform(&object, steps));
    let header = store.header(&object).unwrap();
    assert!(second.has_left(&header) && !first.has_left(&header));
    assert!(second.has_left(&Header { watched: true, ..header }));
}

/// Tests that native writes that are sent together leave what they would leave one after another, and know that they were made.
#[test]
fn writes_that_are_sent_together_leave_what_they_leave_one_by_one() {
    let fork = Fork::DEFAULT;
    let change = |random: &mut StdRng| {
        let mut bytes = |most: usize| {
            let len = random.random_range(1..=most);
            Bytes::from((0..len).map(|_| random.random_range(b'a'..=b'z')).collect::<Vec<u8>>())
        };
        let (value, data) = (bytes(9), bytes(20));
        let key = name(&[random.random_range(b'a'..=b'c')]);
        let (read, set) = (ReadOp::Key { key: key.clone() }, WriteOp::SetKey { key: key.clone(), value });
        match random.random_range(0..5) {
            0 => Transaction::new().write(fork.clone(), random.random_range(0..300), data),
            1 => Transaction::new().change(WriteOp::Append { fork: fork.clone(), data }),
            2 => Transaction::new().read(read).change(set),
            3 => Transaction::new().read(read).change(WriteOp::RemoveKey { key }),
            _ => Transaction::new().write(fork.clone(), random.random_range(0..300), data).change(set),
        }
    };
    let object = ObjectId::try_from("o").unwrap();
    let first = first_seed();
    for seed in first..first + 50 {
        let mut random = StdRng::seed_from_u64(seed);
        let (together, apart) = (Emulated::new(true), Emulated::new(false));
        for store in [&together, &apart] {
            let make = Transaction::new().write(fork.clone(), 0, vec![b'-'; 200]);
            assert!(matches!(block_on(store.apply(&object, make)), Ok(Outcome::Done(_))));
        }
        for _ in 0..4 {
            let count = random.random_range(1..12);
            let transactions: Vec<Transaction> = (0..count).map(|_| change(&mut random)).collect();
            let mut all = Transaction::new();
            all.writes = transactions.iter().flat_map(|transaction| transaction.writes.clone()).collect();
            all.reads = transactions.iter().flat_map(|transaction| transaction.reads.clone()).collect();
            // Every one may append, or write, and needs to know the fork.
            let all = all.write(fork.clone(), 0, "known");
            let header = together.header(&object).unwrap();
            let mut known = together.learn(ObjectCache::default(), &object, &header, &all);
            let mut writes: Vec<write::NativeWrite> = Vec::new();
            for transaction in &transactions {
                let write = write::plan(transaction, &known, together.token());
                let write = write.unwrap_or_else(|| panic!("seed {seed}: {transaction:?}"));
                write.foretell(&mut known);
                writes.push(write);
            }
            let sent: Vec<&write::NativeWrite> = writes.iter().collect();
            write::with_steps(&sent, |steps| together.perform(&object, steps));
            assert_eq!(together.header(&object).as_ref(), writes.last().map(|last| &last.after));
            for (transaction, write) in transactions.into_iter().zip(writes) {
                match block_on(apart.apply(&object, transaction)) {
                    Ok(Outcome::Done(done)) => {
                        let expected = (write.after.version, write.answers);
                        assert_eq!((done.version, done.answers), expected, "seed {seed}");
                    }
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
            together.audit(&object);
            let mut look = Transaction::new().read_range(fork.clone(), ByteRange::new(0, 10_000));
            for key in [b"a", b"b", b"c"] {
                look = look.read(ReadOp::VersionedKey { key: name(key), intent: Intent::Look });
            }
            let [found, expected] =
                [&together, &apart].map(|store| block_on(store.apply(&object, look.clone())));
            assert_eq!(found, expected, "seed {seed}");
        }
    }
}

/// Tests that an object without a trace looks like one that was removed at the floor, and begins above it, whoever makes it.
#[test]
fn objects_without_a_trace_show_the_floor_and_begin_above_it() {
    let floor = Floor { shown: 10, start: 20 };
    let by_calls = Emulated { floor, ..Emulated::new(false) };
    let natively = Emulated { floor, ..Emulated::new(true) };
    let (object, all) = (ObjectId::try_from("o").unwrap(), ByteRange::new(0, 100));
    let (fork, key) = (Fork::DEFAULT, Key::try_from("key").unwrap());
    let done = |store: &Emulated, object: &ObjectId, transaction: &Transaction| match block_on(
        store.apply(object, transaction.clone()),
    )
    .unwrap()
    {
        Outcome::Done(done) => Some(done),
        Outcome::Refused(refusal) => {
            assert_eq!(refusal.version, 10);
            None
        }
    };
    let look = Transaction::new().read_range(fork.clone(), all).read(ReadOp::Stat);
    let found = done(&by_calls, &object, &look).unwrap();
    assert_eq!((found.version, found.existed), (10, false));
    let [Answer::Range(range), Answer::Stat(stat)] = &found.answers[..] else { panic!("{found:?}") };
    assert_eq!((range.version, range.size, stat.version, stat.exists), (10, 0, 10, false));
    // The same as of one that was removed at that version.
    let removed = Emulated::new(false);
    let proposal = Guard::Proposal { fork: fork.clone(), range: all, version: 10 };
    done(&removed, &object, &Transaction::new().guard(proposal).change(WriteOp::Remove)).unwrap();
    assert_eq!(done(&removed, &object, &look), Some(found));
    let write = || Transaction::new().write(fork.clone(), 5, "abc");
    let proposing = |version| Guard::Proposal { fork: fork.clone(), range: all, version };
    let cases: [(Transaction, Option<u64>); 12] = [
        (write(), Some(21)),
        (write().guard(Guard::Absent), Some(21)),
        (write().guard(Guard::Version { version: 10 }), Some(21)),
        (write().guard(Guard::Version { version: 0 }), None),
        (write().if_version(fork.clone(), all, 9), None),
        (write().if_version(fork.clone(), all, 10), Some(21)),
        (write().guard(proposing(10)), None),
        (write().guard(proposing(11)), Some(21)),
        (write().guard(proposing(30)), Some(30)),
        (write().guard(Guard::KeyVersion { key: key.clone(), version: 0 }), Some(21)),
        (Transaction::new().change(WriteOp::SetKey { key, value: "value".into() }), Some(21)),
        (Transaction::new().guard(Guard::Exists).change(WriteOp::Create), None),
    ];
    for (number, (transaction, version)) in cases.into_iter().enumerate() {
        let object = ObjectId::try_from(&format!("o{number}")[..]).unwrap();
        let outcomes = [&by_calls, &natively].map(|store| done(store, &object, &transaction));
        assert_eq!(outcomes[0], outcomes[1], "{transaction:?}");
        assert_eq!(
            outcomes[0].as_ref().map(|done| (done.version, done.existed)),
            version.map(|at| (at, false))
        );
        let headers = [&by_calls, &natively]
            .map(|store| store.header(&object).map(|header| Header { author: Author::default(), ..header }));
        assert_eq!(headers[0], headers[1], "{transaction:?}");
        assert_eq!(headers[0].map(|header| header.tombstone_version), version.map(|_| 10));
        by_calls.audit(&object);
    }
    assert!(natively.natives.load(Ordering::Relaxed) >= 8, "they have native forms");
    // What is not written has the version of the floor still, and the next change goes on from there.
    let object = ObjectId::try_from("o0").unwrap();
    let found =
        done(&natively, &object, &Transaction::new().read_range(fork.clone(), ByteRange::new(0, 5))).unwrap();
    assert!(matches!(&found.answers[..], [Answer::Range(range)] if range.version == 10));
    assert_eq!(done(&natively, &object, &write()).unwrap().version, 22);
}
