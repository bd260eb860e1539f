//! Writes that are repeated: recognised while the store runs and after it was opened again, as far back as its window
//! goes, and never applied twice.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nacre_logstore::{Committer, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::window::Recall;
use nacre_object::{
    Answer, ByteRange, ErrorKind, Fork, Lease, ObjectId, ObjectStore, Once, Outcome, ReadOp, StoreError,
    Transaction, WindowPosition, WriteToken,
};

fn options() -> Options {
    Options { segment_bytes: 64 << 10, committer: Committer::Caller, ..Options::default() }
}

fn token(sequence: u64) -> WriteToken {
    WriteToken { writer: *b"one of the tests", sequence }
}

fn object(number: u64) -> ObjectId {
    ObjectId::try_from(format!("object-{}", number % 7).as_str()).unwrap()
}

/// A write whose number stands in its bytes.
fn write(number: u64) -> Transaction {
    Transaction::new().write(Fork::DEFAULT, 0, number.to_le_bytes().to_vec())
}

/// Returns an attempt at the write of this number, a repetition if a position of the store's window is given.
fn once(store: &LogStore, number: u64, since: Option<u64>) -> Once {
    let since = since.map(|position| WindowPosition { position, ..store.window().unwrap() });
    Once { token: token(number), since, lease: Lease::unlimited() }
}

fn apply(store: &LogStore, number: u64, since: Option<u64>) -> Result<(u64, bool), StoreError> {
    let once = once(store, number, since);
    let reply = store.apply_once(&object(number), write(number), once);
    store.turn().unwrap();
    match block_on(reply)? {
        Outcome::Done(done) => Ok((done.version, done.existed)),
        Outcome::Refused(refusal) => panic!("{refusal:?}"),
    }
}

fn position(store: &LogStore) -> u64 {
    store.window().unwrap().position
}

#[test]
fn a_repeated_write_is_answered_as_the_first_time() {
    let store = LogStore::memory(Options::default());
    let since = position(&store);
    let first: Vec<_> = (0..20).map(|number| apply(&store, number, None).unwrap()).collect();
    assert_eq!((first[0], first[7]), ((1, false), (2, true)));
    let again: Vec<_> = (0..20).map(|number| apply(&store, number, Some(since)).unwrap()).collect();
    assert_eq!(first, again);
    assert_eq!(position(&store), 20, "nothing was applied again");
    // One that never arrived is applied now, and recognised from then on.
    let late = apply(&store, 20, Some(since)).unwrap();
    assert_eq!(apply(&store, 20, Some(since)).unwrap(), late);
    assert_eq!(position(&store), 21);
}

#[test]
fn a_guard_that_failed_is_judged_anew() {
    let store = LogStore::memory(Options::default());
    let since = Some(position(&store));
    let at = |version| write(9).if_version(Fork::DEFAULT, ByteRange::new(0, 8), version);
    let attempt = |transaction, since| {
        let once = once(&store, 1, since);
        block_on(store.apply_once(&object(0), transaction, once)).unwrap()
    };
    apply(&store, 0, None).unwrap();
    assert!(matches!(attempt(at(0), None), Outcome::Refused(_)));
    assert!(matches!(attempt(at(0), since), Outcome::Refused(_)));
    assert!(matches!(attempt(at(1), since), Outcome::Done(done) if done.version == 2));
    // By its own effect the guard would fail.
    assert!(matches!(attempt(at(1), since), Outcome::Done(done) if done.version == 2));
}

#[test]
fn what_a_repeated_transaction_read_is_lost() {
    let store = LogStore::memory(Options::default());
    let attempt = |since| {
        let once = once(&store, 1, since);
        let transaction = write(1).read_range(Fork::DEFAULT, ByteRange::new(0, 8));
        block_on(store.apply_once(&object(0), transaction, once))
    };
    // Repeated before it took effect it has its answers.
    assert!(matches!(attempt(Some(0)).unwrap(), Outcome::Done(done) if done.answers.len() == 1));
    let error = attempt(Some(0)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown);
    assert!(error.message.contains("took effect, as version 1"), "{error}");
}

#[test]
fn a_repeated_append_is_made_once_and_says_where() {
    let store = LogStore::memory(Options::default());
    let size = || ReadOp::Extents { fork: Fork::DEFAULT, range: ByteRange::new(0, 0) };
    let attempt = |number, data: &'static str, since| {
        let once = once(&store, number, since);
        let transaction = Transaction::new().read(size()).append(Fork::DEFAULT, data);
        block_on(store.apply_once(&object(0), transaction, once))
    };
    let first = attempt(1, "one", None).unwrap();
    let second = attempt(2, "second", None).unwrap();
    attempt(3, "3", None).unwrap();
    assert_eq!(attempt(1, "one", Some(0)).unwrap(), first);
    assert_eq!(attempt(2, "second", Some(0)).unwrap(), second);
    let Outcome::Done(done) = second else { panic!("it has no guards") };
    assert!(matches!(&done.answers[..], [Answer::Range(before)] if before.size == 3), "{done:?}");
    // Once some of its bytes are gone, nobody knows where it began.
    block_on(store.apply(&object(0), Transaction::new().write(Fork::DEFAULT, 3, "S"))).unwrap();
    let error = attempt(2, "second", Some(0)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown);
    assert!(error.message.contains("took effect, as version 2"), "{error}");
    let Outcome::Done(done) = block_on(store.apply(&object(0), Transaction::new().read(size()))).unwrap()
    else {
        panic!("it has no guards")
    };
    assert!(matches!(&done.answers[..], [Answer::Range(now)] if now.size == 10), "{done:?}");
}

#[test]
fn an_attempt_of_an_earlier_connection_is_refused() {
    let store = LogStore::memory(Options::default());
    let newest = Arc::new(AtomicU64::new(0));
    let lease = Lease::open(&newest, 1).unwrap();
    let late = Once { token: token(1), since: None, lease };
    Lease::open(&newest, 2).unwrap();
    let error = block_on(store.apply_once(&object(0), write(1), late)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Closed);
    assert_eq!(store.info().objects, 0);
}

/// Repeats all writes so far: they must be recognised, and none may be applied again.
fn check_recognised(store: &LogStore, first: &[(u64, bool)]) {
    let reported = position(store);
    for (number, expected) in first.iter().enumerate() {
        match apply(store, number as u64, Some(number as u64)) {
            Ok(found) => assert_eq!(found, *expected),
            Err(error) => panic!("write {number} of {}: {error}", first.len()),
        }
    }
    assert_eq!(position(store), reported, "nothing was applied again");
}

/// Returns a copy of a store's folder, as if the process had been killed.
fn killed(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// Returns the names of the files in a store's folder that begin with `prefix`, in order.
fn files(folder: &Path, prefix: &str) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort_unstable();
    names
}

#[test]
fn writes_are_recognised_although_the_log_of_them_was_given_up() {
    let mut folder = tempfile::tempdir().unwrap();
    let (mut first, mut earlier) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let store = LogStore::open(folder.path(), options()).unwrap();
        let reported = position(&store);
        first.extend((reported..reported + 200).map(|number| apply(&store, number, None).unwrap()));
        // One snapshot right behind the other, so that all before both can go.
        store.snapshot().unwrap();
        store.snapshot().unwrap();
        store.compact().unwrap();
        first.push(apply(&store, reported + 200, None).unwrap());
        let segments = files(folder.path(), "segment-");
        assert!(reported == 0 || segments.iter().all(|name| !earlier.contains(name)), "nothing was given up");
        earlier.extend(segments);
        let next = killed(folder.path());
        let look = killed(folder.path());
        drop(store);
        folder = next;
        let store = LogStore::open(look.path(), options()).unwrap();
        check_recognised(&store, &first);
        assert_eq!(store.recall(&token(5000), 0), Recall::New, "one that never arrived");
    }
}

#[test]
fn writes_are_recognised_after_the_store_was_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Vec::new();
    for round in 0..6 {
        let store = LogStore::open(folder.path(), options()).unwrap();
        let reported = position(&store);
        assert_eq!(reported, first.len() as u64, "the count of writes goes on");
        check_recognised(&store, &first);
        for number in reported..reported + 50 {
            first.push(apply(&store, number, None).unwrap());
            if number % 20 == 0 && round % 2 == 0 {
                store.snapshot().unwrap();
            }
        }
        if round % 3 == 0 {
            let copy = killed(folder.path());
            check_recognised(&LogStore::open(copy.path(), options()).unwrap(), &first);
        }
        store.close().unwrap();
    }
}

#[test]
fn what_has_left_the_window_is_unknown_and_not_applied_again() {
    let folder = tempfile::tempdir().unwrap();
    // A small store keeps the latest 1,024 writes.
    let options = Options { capacity_bytes: Some(8 << 20), ..options() };
    let store = LogStore::open(folder.path(), options.clone()).unwrap();
    for number in 0..1030 {
        apply(&store, number, None).unwrap();
    }
    let check = |store: &LogStore, oldest: u64| {
        for number in 0..6 {
            assert_eq!(apply(store, number, Some(number)).unwrap_err().kind, ErrorKind::Unknown);
        }
        // Of a write that never arrived the same holds, for nobody can tell the difference.
        assert_eq!(apply(store, 5000, Some(5)).unwrap_err().kind, ErrorKind::Unknown);
        for number in oldest..1030 {
            assert!(apply(store, number, Some(number)).is_ok(), "{number}");
        }
        assert_eq!(position(store), 1030);
    };
    check(&store, 6);
    store.close().unwrap();
    drop(store);
    let store = LogStore::open(folder.path(), options).unwrap();
    check(&store, 6);
    assert!(apply(&store, 5000, Some(1029)).is_ok());
    assert_eq!(position(&store), 1031);
}

#[test]
fn a_store_whose_snapshots_are_lost_recognises_nothing_from_before() {
    for repaired_first in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let store = LogStore::open(folder.path(), options()).unwrap();
        for number in 0..100 {
            apply(&store, number, None).unwrap();
        }
        let reported = position(&store);
        store.close().unwrap();
        drop(store);
        for name in files(folder.path(), "snapshot-") {
            let path = folder.path().join(name);
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[20..60].fill(0xa5);
            std::fs::write(&path, bytes).unwrap();
        }
        // Its log is whole, so it opens; but a snapshot that is lost may have counted otherwise.
        if !repaired_first {
            let store = LogStore::open(folder.path(), options()).unwrap();
            assert!(store.opened().damaged_snapshots > 0);
            assert_eq!(store.recall(&token(5000), reported), Recall::Unknown);
            assert!(position(&store) > reported);
            store.close().unwrap();
        }
        LogStore::repair(folder.path(), options(), |_| {}).unwrap();
        let store = LogStore::open(folder.path(), options()).unwrap();
        assert!(position(&store) > reported);
        assert_eq!(store.recall(&token(5000), reported), Recall::Unknown);
        assert_eq!(store.recall(&token(7), reported), Recall::Unknown, "of before the repair");
        assert_eq!(apply(&store, 5000, None).unwrap().0, 15);
    }
}
