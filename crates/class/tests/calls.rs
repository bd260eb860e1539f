//! Calls as transactions: their reads, their conditions, other classes, versions of classes, and Nacre's own module.

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::executor::block_on;
use kit::{Bench, unhurried};
use nacre_class::errno::*;
use nacre_class::{Bound, Bounds, CLASSES_OBJECT, CallError, ClassError, Classes, Request, packed};
use nacre_object::limit::EXTENTS_PER_READ_MAX;
use nacre_object::testkit::MemoryStore;
use nacre_object::{
    Answer, Fork, Key, ObjectId, ObjectStore, Outcome, ReadOp, Reply, StoreError, Transaction, WriteOp,
};

type Before = dyn Fn(u64, &MemoryStore) + Send + Sync;

/// A store that lets something happen to it before the n-th transaction, and counts them.
struct Meddler {
    store: MemoryStore,
    count: AtomicU64,
    before: Box<Before>,
}

impl Meddler {
    fn new(before: impl Fn(u64, &MemoryStore) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { store: MemoryStore::new(), count: AtomicU64::new(0), before: Box::new(before) })
    }
}

impl ObjectStore for Meddler {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        (self.before)(self.count.fetch_add(1, Ordering::Relaxed), &self.store);
        self.store.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }
}

fn set(store: &dyn ObjectStore, object: &ObjectId, key: &str, value: &'static str) {
    let write = WriteOp::SetKey { key: Key::try_from(key).unwrap(), value: value.into() };
    // It may be called from within another future, and a store in memory answers at once.
    store.apply(object, Transaction::new().change(write)).now_or_never().expect("an answer").unwrap();
}

const SUM: &str = "function sum(input, output)
    local a, b = objclass.map_get_val('a'):str(), objclass.map_get_val('b'):str()
    nacre.set('sum', a .. b) output:append(a .. b) end objclass.register(sum)";

#[test]
fn a_call_starts_again_when_the_object_changes_under_it() {
    let object = ObjectId::try_from("o").unwrap();
    for at in 2..8 {
        let bench = Bench::new(SUM);
        let id = object.clone();
        let store = Meddler::new(move |count, store| {
            if count == at {
                // Both values change together, so a mixture of old and new shows.
                let key = |name| Key::try_from(name).unwrap();
                let both = Transaction::new()
                    .change(WriteOp::SetKey { key: key("a"), value: "x".into() })
                    .change(WriteOp::SetKey { key: key("b"), value: "y".into() });
                store.apply(&id, both).now_or_never().expect("an answer").unwrap();
            }
        });
        set(&*store, &object, "a", "1");
        set(&*store, &object, "b", "2");
        let request = Request::new(&object, "c", "sum");
        let called = block_on(bench.runtime.call(&*store, &bench.catalogue, &request)).unwrap();
        let Outcome::Done(done) = block_on(
            store
                .store
                .apply(&object, Transaction::new().read(ReadOp::Key { key: Key::try_from("sum").unwrap() })),
        )
        .unwrap() else {
            panic!("read")
        };
        assert_eq!(done.answers, [Answer::Value(Some(called.output.clone()))], "at {at}");
        // Two reads and a write, before which the object changed, or did not.
        let expected = if (2..5).contains(&at) { ("xy", at > 2) } else { ("12", false) };
        assert_eq!((&called.output[..], called.attempts > 1), (expected.0.as_bytes(), expected.1), "at {at}");
    }
}

#[test]
fn reads_that_repeat_are_made_together_and_before_they_are_asked_for() {
    let bench = Bench::new(SUM);
    let store = Meddler::new(|_, _| {});
    let object = ObjectId::try_from("o").unwrap();
    set(&*store, &object, "a", "1");
    set(&*store, &object, "b", "2");
    let call = || {
        let before = store.count.load(Ordering::Relaxed);
        let request = Request::new(&object, "c", "sum");
        block_on(bench.runtime.call(&*store, &bench.catalogue, &request)).unwrap();
        store.count.load(Ordering::Relaxed) - before
    };
    assert_eq!((call(), call(), call(), call()), (3, 3, 2, 2));
}

#[test]
fn a_call_that_is_always_too_late_is_given_up() {
    let bench = Bench::new(SUM);
    let object = ObjectId::try_from("o").unwrap();
    let id = object.clone();
    let store = Meddler::new(move |_, store| set(store, &id, "other", "x"));
    set(&*store, &object, "a", "1");
    set(&*store, &object, "b", "2");
    let request = Request::new(&object, "c", "sum");
    let error = block_on(bench.runtime.call(&*store, &bench.catalogue, &request)).unwrap_err();
    assert!(matches!(error, CallError::Contended { .. }), "{error}");
    assert_eq!(error.errno(), EAGAIN);
}

#[test]
fn a_fenced_session_changes_nothing() {
    let bench = Bench::new(
        "function m() objclass.create() end objclass.register(m) function r() end objclass.register(r)",
    );
    bench.apply(Transaction::new().change(WriteOp::RaiseFence { token: 10 }));
    let call = |method, fence| {
        let request = Request { fence: Some(fence), ..Request::new(&bench.object, "c", method) };
        block_on(bench.runtime.call(&*bench.store, &bench.catalogue, &request))
    };
    let error = call("m", 9).unwrap_err();
    assert!(matches!(error, CallError::Fenced { fence: 10, .. }), "{error}");
    assert!(call("m", 10).unwrap().wrote);
    // Reading is nobody's harm.
    call("r", 9).unwrap();
}

#[test]
fn forks_extents_and_ranges_are_there_for_scripts() {
    let bench = Bench::new(
        "function write(input, output)
           nacre.write(0, 'default') nacre.write(1 << 40, 'far', 'other') nacre.write(3, input, 'third') end
         objclass.register(write)
         function look(input, output)
           assert(nacre.exists() and nacre.version() == objclass.current_version())
           local names = {}
           for name, size in pairs(nacre.forks()) do names[#names + 1] = name .. '=' .. size end
           output:append(table.concat(names, ' ') .. ';')
           output:append(nacre.read(0, 100) .. ';' .. nacre.read(1 << 40, 10, 'other') .. ';' .. nacre.size('third'))
           assert(nacre.read(0, 3, 'third') == '\\0\\0\\0' and nacre.read(0, 10, 'none') == '')
           local extents, version, rest = nacre.extents(0, 100, 'third')
           assert(#extents == 1 and extents[1].offset == 3 and extents[1].length == 2 and extents[1].version == 1)
           assert(extents[1].hole == false and version == 1 and rest == nil) end
         objclass.register(look)
         function cut() nacre.truncate(3) nacre.zero(0, 1) nacre.remove_fork('other') end objclass.register(cut)
         function holes(input, output) local extents = nacre.extents(0, 3) assert(extents[1].hole and extents[1].version == 2)
           output:append(nacre.read(0, 10) .. nacre.read(1 << 40, 1, 'other')) end
         objclass.register(holes)
         function reserved() nacre.write(0, 'x', '\\0nacre') end objclass.register(reserved)",
    );
    bench.call("write", "ab").unwrap();
    assert_eq!(bench.output("look", ""), "=7 other=1099511627779 third=5;default;far;5");
    bench.call("cut", "").unwrap();
    assert_eq!(bench.output("holes", ""), "\0ef");
}

#[test]
fn bytes_in_more_extents_than_an_answer_lists_are_read_whole() {
    let text = "function all(input, output) output:append(objclass.read(0, 0):str()) end objclass.register(all)
        function size(input, output) output:append(tostring(#nacre.read(0, 1 << 20))) end objclass.register(size)";
    // Each piece is an extent of its own, since nothing is between it and the next.
    let fill = |bench: &Bench, piece: &'static [u8], count: u64| {
        let step = piece.len() as u64 + 1;
        let extents = (0..count).map(|number| (number * step, Bytes::from_static(piece))).collect();
        bench.apply(Transaction::new().change(WriteOp::Extents { fork: Fork::DEFAULT, extents }));
    };
    let bench = Bench::new(text);
    let count = 2 * EXTENTS_PER_READ_MAX + 10;
    fill(&bench, b"x", count as u64);
    let expected = &"x\0".repeat(count)[..2 * count - 1];
    // The reads of the last one are made before they are asked for.
    for round in 1..=3 {
        assert!(bench.output("all", "") == expected, "round {round}");
    }

    // The first part fits into the memory of a call, and the whole does not fit in beside it.
    for (memory_bytes, fits) in [(1 << 20, false), (4 << 20, true)] {
        let bench = Bench::bounded(text, Bounds { memory_bytes, ..unhurried() });
        fill(&bench, &[b'x'; 159], 5000);
        match bench.call("size", "") {
            Ok(called) => assert!(fits && called.output == "799999", "{called:?}"),
            Err(error) => {
                let memory = matches!(error, CallError::Exceeded { bound: Bound::Memory, .. });
                assert!(!fits && memory, "{memory_bytes} bytes: {error}");
            }
        }
    }
    let bench = Bench::bounded(text, Bounds { reads: 3, ..unhurried() });
    fill(&bench, b"x", 4 * EXTENTS_PER_READ_MAX as u64);
    let error = bench.call("all", "").unwrap_err();
    assert!(matches!(error, CallError::Exceeded { bound: Bound::Reads, .. }), "{error}");
}

#[test]
fn keys_are_read_by_ranges_and_with_versions() {
    let bench = Bench::new(
        "function set() for i = 1, 5 do nacre.set('k' .. i, 'v' .. i) end nacre.set_attribute('a', 'A') end
         objclass.register(set)
         function look(input, output)
           local names, values, more = nacre.keys({after = 'k1', before = 'k5', limit = 2})
           assert(more and #names == 2) output:append(table.concat(names, ',') .. ':' .. table.concat(values, ',') .. ';')
           names, values, more = nacre.keys({prefix = 'k', after = 'k3'})
           assert(not more) output:append(table.concat(names, ',') .. ';')
           local value, version = nacre.get('k1') output:append(value .. '@' .. version .. ';')
           value, version = nacre.get('none') assert(value == nil and version == 0)
           assert(nacre.attribute('a') == 'A' and nacre.attribute('b') == nil) end
         objclass.register(look)
         function unset() nacre.unset('k1') nacre.unset('never') nacre.remove_attribute('a') end objclass.register(unset)
         function gone(input, output) assert(nacre.get('k1') == nil and nacre.attribute('a') == nil) end objclass.register(gone)",
    );
    bench.call("set", "").unwrap();
    assert_eq!(bench.output("look", ""), "k2,k3:v2,v3;k4,k5;v1@1;");
    bench.call("unset", "").unwrap();
    assert_eq!(bench.output("gone", ""), "");
}

#[test]
fn a_method_that_is_declared_not_to_write_cannot() {
    let bench = Bench::new(
        "function reads() objclass.create() end objclass.register(reads, {writes = false})
         function tries(input, output) local ok, number = pcall(objclass.create) assert(not ok) return number end
         objclass.register(tries, {writes = false})
         function through() nacre.call('c.writes') end objclass.register(through, {writes = false})
         function after() pcall(nacre.call, 'c.reads') nacre.call('c.tries2') objclass.create() end objclass.register(after)
         function tries2() pcall(objclass.create) end objclass.register(tries2, {writes = false})
         function writes() objclass.create() end objclass.register(writes)",
    );
    for method in ["reads", "tries", "through"] {
        assert_eq!(bench.result(method), -EROFS, "{method}");
    }
    assert_eq!(bench.ask(ReadOp::Stat), Answer::Stat(Default::default()));
    assert_eq!(bench.result("after"), 0);
}

#[test]
fn classes_call_each_other_on_the_same_object() {
    let classes = Classes::new(Arc::new(MemoryStore::new()));
    let put = |name: &str, text: &'static str| block_on(classes.put(name, text.into(), unhurried())).unwrap();
    put("inner", "calls = (calls or 0) + 1 function f(input, output) nacre.set('inner', input) output:append('in:' .. input:str())
        return 7 end objclass.register(f)
        function bad() return -objclass.EBUSY end objclass.register(bad)
        function dies() error('dead') end objclass.register(dies)
        function deep() nacre.call('inner.deep') end objclass.register(deep)");
    put("outer", "calls = (calls or 0) + 1 function f(input, output) local text, result = nacre.call('inner.f', input)
        assert(calls == 1) nacre.set('outer', text) output:append(text .. ':' .. result .. ':' .. nacre.epoch()) end objclass.register(f)
        function bad() nacre.call('inner.bad') end objclass.register(bad)
        function caught(input, output) nacre.set('kept', 'x') local ok, number, text = pcall(nacre.call, 'inner.bad')
          assert(not ok and number == -objclass.EBUSY) output:append(text) end objclass.register(caught)
        function dies() nacre.call('inner.dies') end objclass.register(dies)
        function none() nacre.call('nobody.f') end objclass.register(none)
        function absent(input, output) for i = 1, 20 do assert(not pcall(nacre.call, 'nobody.f')) end
          output:append((nacre.call('inner.f', input))) end objclass.register(absent)
        function no_method() nacre.call('inner.none') end objclass.register(no_method)");
    let object = ObjectId::try_from("o").unwrap();
    let call = |name: &str| {
        let (class, method) = name.split_once('.').unwrap();
        block_on(classes.call(&Request::new(&object, class, method).input("x")))
    };
    assert_eq!(call("outer.f").unwrap().output, "in:x:7:2");
    assert_eq!(call("outer.caught").unwrap().output, "method \"inner.bad\" failed");
    // Classes that are not there count for nothing in the depth of calls.
    assert_eq!(call("outer.absent").unwrap().output, "in:x");
    for (name, errno) in [
        ("outer.bad", EBUSY),
        ("outer.dies", EIO),
        ("outer.none", EOPNOTSUPP),
        ("outer.no_method", EOPNOTSUPP),
        ("inner.deep", EIO),
        ("inner.none", EOPNOTSUPP),
        ("nobody.f", EOPNOTSUPP),
    ] {
        assert_eq!(call(name).unwrap_err().errno(), errno, "{name}");
    }
}

#[test]
fn versions_of_a_class_are_kept_and_brought_back() {
    let store = Arc::new(MemoryStore::new());
    let classes = Classes::new(store.clone());
    let text = |number: u32| {
        format!("function v(i, o) o:append('{number}') end objclass.register(v, {{writes = false}})")
    };
    let put = |number| block_on(classes.put("c", text(number).into(), unhurried()));
    let object = ObjectId::try_from("o").unwrap();
    // A second handle on the same store sees each change with its next call.
    let other = Classes::new(store);
    let seen = || {
        let called = block_on(other.call(&Request::new(&object, "c", "v")));
        called.map(|called| (String::from_utf8_lossy(&called.output).into_owned(), called.class_version))
    };
    assert_eq!(seen().unwrap_err().errno(), EOPNOTSUPP);
    assert_eq!(put(1).unwrap(), 1);
    assert_eq!(seen().unwrap(), ("1".to_owned(), 1));
    assert_eq!(put(2).unwrap(), 2);
    // The same again is no new version.
    assert_eq!(put(2).unwrap(), 2);
    assert_eq!(seen().unwrap(), ("2".to_owned(), 2));
    assert_eq!(block_on(classes.rollback("c", None)).unwrap(), 3);
    assert_eq!(seen().unwrap(), ("1".to_owned(), 3));
    assert_eq!(block_on(classes.rollback("c", Some(2))).unwrap(), 4);
    assert_eq!(seen().unwrap(), ("2".to_owned(), 4));
    assert_eq!(block_on(classes.remove("c")).unwrap(), 5);
    assert_eq!(seen().unwrap_err().errno(), EOPNOTSUPP);
    assert!(matches!(block_on(classes.remove("c")), Err(ClassError::Missing { .. })));
    assert_eq!(block_on(classes.rollback("c", Some(1))).unwrap(), 6);
    assert_eq!(seen().unwrap(), ("1".to_owned(), 6));
    let history = block_on(classes.history("c")).unwrap();
    let shown: Vec<_> =
        history.iter().map(|record| (record.version, record.removed, record.restored)).collect();
    let restored = |version, from| (version, false, Some(from));
    assert_eq!(
        shown,
        [restored(6, 1), (5, true, None), restored(4, 2), restored(3, 1), (2, false, None), (1, false, None)]
    );
    assert!(matches!(block_on(classes.rollback("c", Some(99))), Err(ClassError::Missing { .. })));
    assert!(matches!(block_on(classes.history("none")), Err(ClassError::Missing { .. })));
}

/// A store that counts the transactions that list keys.
struct Listed {
    store: MemoryStore,
    listings: AtomicU64,
}

impl ObjectStore for Listed {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if transaction.reads.iter().any(|read| matches!(read, ReadOp::Keys { .. })) {
            self.listings.fetch_add(1, Ordering::Relaxed);
        }
        self.store.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }
}

#[test]
fn a_class_is_replaced_without_reading_all_of_its_versions() {
    let store = Arc::new(Listed { store: MemoryStore::new(), listings: AtomicU64::new(0) });
    let classes = Classes::new(store.clone());
    let put = |number: u64| {
        let text = format!("function v(i, o) o:append('{number}') end objclass.register(v)");
        block_on(classes.put("c", text.into(), unhurried())).unwrap()
    };
    assert_eq!(put(1), 1);
    let listings = store.listings.load(Ordering::Relaxed);
    for version in 2..6 {
        assert_eq!(put(version), version);
    }
    assert_eq!(store.listings.load(Ordering::Relaxed), listings);
    // Without a class that is current, the versions tell which one is next.
    assert_eq!(block_on(classes.remove("c")).unwrap(), 6);
    assert_eq!(put(5), 7);
}

#[test]
fn a_record_that_cannot_be_read_stops_its_own_class_only() {
    let store = Arc::new(MemoryStore::new());
    let classes = Classes::new(store.clone());
    let text = "function v(i, o) o:append('here') end objclass.register(v, {writes = false})";
    block_on(classes.put("sound", text.into(), unhurried())).unwrap();
    // A record as a newer program might write it.
    set(&*store, &ObjectId::try_from(CLASSES_OBJECT).unwrap(), "class/newer", "\u{9}whatever");
    let object = ObjectId::try_from("o").unwrap();
    let call = |class| block_on(classes.call(&Request::new(&object, class, "v")));
    assert_eq!(&call("sound").unwrap().output[..], b"here");
    let error = call("newer").unwrap_err();
    assert_eq!(error.errno(), EOPNOTSUPP);
    let sentence =
        "class \"newer\" in \"nacre/classes\" cannot be read: it is of version 9, made by a newer program";
    assert!(error.to_string().contains(sentence), "{error}");
}

#[test]
fn a_class_that_is_not_sound_is_not_installed() {
    let classes = Classes::new(Arc::new(MemoryStore::new()));
    let refused =
        |name: &str, text: &str| match block_on(classes.put(name, text.to_owned().into(), unhurried())) {
            Err(ClassError::Refused { reason, .. }) => reason,
            other => panic!("{text}: {other:?}"),
        };
    let good = "function f() end objclass.register(f)";
    for (name, text, part) in [
        ("", good, "not a valid name"),
        ("a b", good, "not a valid name"),
        ("1a", good, "not a valid name"),
        ("c", "function f(", "c:1:"),
        ("c", "x = 1", "no method"),
        ("c", "local function f() end objclass.register(f)", "no method"),
        ("c", "error('at load')", "at load"),
        ("c", "while true do end", "does not end"),
        ("c", "objclass.stat()", "reads the object"),
        ("c", "objclass.create()", "declared not to write"),
        ("c", "local x <const> = 1", "line 1"),
        ("c", "\x1bLua", "bytecode"),
        ("c", "objclass.register(undefined)", "function expected"),
    ] {
        let reason = refused(name, text);
        assert!(reason.contains(part), "{text}: {reason}");
    }
    assert!(refused("c", &format!("{good} --{}", "x".repeat(300_000))).contains("limit"));
    assert!(block_on(classes.catalogue()).unwrap().classes.is_empty());
}

#[test]
fn a_class_that_is_replaced_under_calls_runs_each_of_them_whole() {
    let store = Arc::new(MemoryStore::new());
    let classes = Arc::new(Classes::new(store));
    let text = |number: u64| {
        format!("local n = {number} function f(i, o) nacre.set('a', '' .. n) nacre.set('b', '' .. n)
            local a, b = nacre.get('a'), nacre.get('b') o:append(a == b and '' .. n or 'torn') end objclass.register(f)")
    };
    let put = |number| block_on(classes.put("c", text(number).into(), unhurried())).unwrap();
    put(1);
    let object = ObjectId::try_from("o").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (classes, object) = (classes.clone(), &object);
            scope.spawn(move || {
                let mut last = 0;
                for _ in 0..300 {
                    let called = block_on(classes.call(&Request::new(object, "c", "f"))).unwrap();
                    let number: u64 = String::from_utf8_lossy(&called.output).parse().expect("not torn");
                    assert_eq!(number, called.class_version);
                    assert!(number >= last, "an older version after a newer one");
                    last = number;
                }
            });
        }
        for number in 2..60 {
            put(number);
        }
    });
}

#[test]
fn the_stores_failures_are_passed_on() {
    struct Broken;
    impl ObjectStore for Broken {
        fn apply(&self, _: &ObjectId, _: Transaction) -> Reply<Outcome> {
            Reply::ready(Err(StoreError::new(nacre_object::ErrorKind::Unavailable, "gone")))
        }
        fn list(&self, _: Option<&ObjectId>, _: usize) -> Reply<Vec<ObjectId>> {
            Reply::ready(Ok(Vec::new()))
        }
    }
    let bench = Bench::new(
        "function r() nacre.get('x') end objclass.register(r) function n() end objclass.register(n)",
    );
    let call = |method| {
        block_on(bench.runtime.call(&Broken, &bench.catalogue, &Request::new(&bench.object, "c", method)))
    };
    assert!(matches!(call("r"), Err(CallError::Store(error)) if error.message == "gone"));
    // What needs nothing of the object does not ask for it.
    call("n").unwrap();
}

#[test]
fn a_call_that_reads_without_end_is_stopped() {
    // Each read is a run of its own.
    let bounds = unhurried();
    let text = "function m() for i = 1, 5000 do nacre.get('k' .. i) end end objclass.register(m)";
    let error = Bench::bounded(text, bounds).call("m", "").unwrap_err();
    assert!(error.to_string().contains("read the object more than 1024 times"), "{error}");
}

#[test]
fn a_method_reads_what_its_input_needs_whatever_others_made_it_read() {
    // Each read is a run of its own.
    let bounds = unhurried();
    let bench = Bench::bounded(
        "function read(input, output)
           local first, count = nacre.unpack(input)
           for i = first, first + count - 1 do nacre.get('key' .. i) end
         end
         objclass.register(read, { writes = false })",
        bounds,
    );
    let input = |first: u64, count: u64| packed::pack(&[first.into(), count.into()]).unwrap();
    for _ in 0..3 {
        bench.call("read", input(0, 1000)).unwrap();
    }
    for first in (2000..20_000).step_by(1000) {
        bench.call("read", input(first, 500)).unwrap();
    }
}

#[test]
fn the_time_of_a_call_is_that_of_all_its_runs() {
    // Each question ends a run, and each run spins for a while.
    let text = "function m()
           for i = 1, 1000 do
             nacre.get('key' .. i)
             for _ = 1, 20000 do end
           end
         end
         objclass.register(m)";
    let wall = Duration::from_millis(50);
    let bench = Bench::bounded(text, Bounds { wall, instructions: u64::MAX, ..unhurried() });
    match bench.call("m", "") {
        Err(CallError::Exceeded { bound: Bound::Wall, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_class_that_is_made_anew_is_not_taken_for_the_one_before() {
    let store = Arc::new(MemoryStore::new());
    let classes = Classes::new(store.clone());
    let text = |word: &str| format!("function m(i, o) o:append('{word}') end objclass.register(m)");
    let object = ObjectId::try_from("object").unwrap();
    let request = Request::new(&object, "c", "m");
    block_on(async {
        for word in ["one", "two"] {
            assert_eq!(classes.put("c", text(word).into(), unhurried()).await.unwrap(), 1);
            assert_eq!(classes.call(&request).await.unwrap().output, word);
            let registry = ObjectId::try_from(CLASSES_OBJECT).unwrap();
            store.apply(&registry, Transaction::new().change(WriteOp::Remove)).await.unwrap();
        }
    });
}
