//! Locks by the library: several programs, as handles of their own, at one server.

mod harness;

use std::time::Duration;

use futures::executor::block_on;
use harness::Server;
use nacre::ErrorKind;
use nacre::lock::{Datatype, Method, Mode, Protocol, Region, Request};

#[test]
fn a_lock_is_had_by_one_handle_at_a_time() {
    let server = Server::in_memory();
    let open = || nacre::open(&server.uri).unwrap().blocking();
    let (one, other) = (open(), open());
    let (mine, theirs) = (one.file("f").unwrap(), other.file("f").unwrap());
    let held = mine.lock(0..100, Mode::Exclusive).unwrap();
    assert!(theirs.try_lock(99..200, Mode::Shared).unwrap().is_none());
    let short = Duration::from_millis(30);
    assert!(theirs.lock_within(50..51, Mode::Exclusive, short).unwrap().is_none());
    // Requests of other bytes and of other files pass.
    let beside = theirs.try_lock(100..200, Mode::Exclusive).unwrap().unwrap();
    drop(other.file("g").unwrap().try_lock(0..100, Mode::Exclusive).unwrap().unwrap());
    // Two locks of one program keep each other out as well.
    assert!(mine.try_lock(0..1, Mode::Shared).unwrap().is_none());
    assert_eq!(
        theirs.lock_by(&Request::new(0..1, Mode::Shared).without_wait()).unwrap_err().kind,
        ErrorKind::Busy
    );
    let waiting = std::thread::spawn(move || theirs.lock(0..1, Mode::Exclusive).unwrap().token());
    held.release().unwrap();
    assert_eq!(waiting.join().unwrap(), beside.token());
    drop(beside);
    // What was dropped is free soon after.
    drop(mine.lock(0..200, Mode::Exclusive).unwrap());
    one.end_locks();
    other.end_locks();
    assert_eq!(one.locks().unwrap()[0].report["sessions"], 0);
}

#[test]
fn a_wait_that_is_dropped_is_granted_to_nobody() {
    let server = Server::in_memory();
    let (one, other) = (nacre::open(&server.uri).unwrap(), nacre::open(&server.uri).unwrap());
    let held = block_on(one.file("f").unwrap().lock(0..10, Mode::Exclusive)).unwrap();
    let file = other.file("f").unwrap();
    let waits = || {
        let listed = block_on(one.locks()).unwrap();
        listed[0].report["waiting"] == 1
    };
    {
        let mut waiting = Box::pin(file.lock(5..15, Mode::Exclusive));
        let until = std::time::Instant::now() + harness::PATIENCE;
        while !waits() {
            assert!(std::time::Instant::now() < until);
            let waker = futures::task::noop_waker();
            let polled = waiting.as_mut().poll(&mut std::task::Context::from_waker(&waker));
            assert!(polled.is_pending());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    block_on(held.release()).unwrap();
    // It would hold bytes 5 to 15 for ever.
    drop(block_on(one.file("f").unwrap().lock(0..20, Mode::Exclusive)).unwrap());
}

#[test]
fn what_is_done_under_a_lost_lock_fails_and_says_so() {
    let server = Server::in_memory();
    let store = nacre::open(&server.uri).unwrap().blocking();
    let pattern = Datatype::Bytes(8).vector(1 << 20, 1, 2).at(16);
    let lock = store.file("f").unwrap().lock(pattern, Mode::Exclusive).unwrap();
    let object = lock.store().object("f").unwrap();
    object.write(16, "in time").unwrap();
    // A handle that knows nothing of the lock's loss, as in a program that was stopped.
    let fenced = store.for_session(lock.token()).object("f").unwrap();
    assert!(store.break_lock_session(lock.token()).unwrap());
    let next = nacre::open(&server.uri).unwrap().blocking();
    let taken = next.file("f").unwrap().lock(16..24, Mode::Exclusive).unwrap();
    assert_eq!(fenced.write(16, "too late").unwrap_err().kind, ErrorKind::Denied);
    let mut known = lock.check();
    while known.is_ok() {
        // It learns that from its next call to the server, the renewal of its lease at the latest.
        std::thread::sleep(Duration::from_millis(20));
        known = lock.check();
    }
    let error = object.write(16, "too late").unwrap_err();
    assert!(error.kind == ErrorKind::Closed && error.message.contains("is lost"), "{error}");
    assert!(lock.release().is_err());
    assert_eq!(store.object("f").unwrap().read(16..23).unwrap().data, "in time");
    drop(taken);
    // The next lock is one of a new session.
    assert!(store.file("f").unwrap().lock(0..100, Mode::Exclusive).unwrap().check().is_ok());
}

#[test]
fn counters_that_are_kept_by_locks_alone_lose_no_increment() {
    const COUNTERS: u64 = 8;
    const ROUNDS: u64 = 25;
    let folder = harness::folder();
    // Every counter is another server's than its neighbours.
    let (servers, uri) = Server::together(folder.path(), &["mem:", "mem:"], &["--lock-stripe", "8"]);
    let mut random = harness::Random::from_environment();
    let seeds: Vec<u64> = (0..4).map(|_| random.next()).collect();
    std::thread::scope(|scope| {
        for seed in seeds {
            let store = nacre::open(&uri).unwrap().blocking();
            scope.spawn(move || {
                let mut random = harness::Random(seed);
                let file = store.file("counters").unwrap();
                for round in 0..ROUNDS {
                    let mine: Vec<u64> = (0..COUNTERS).filter(|_| random.next().is_multiple_of(3)).collect();
                    let bytes: Vec<Region> = mine.iter().map(|number| Region::new(number * 8, 8)).collect();
                    let protocol = Protocol::NAMES[round as usize % 3].1;
                    let method = Method::NAMES[random.next() as usize % 3].1;
                    let request = Request::new(bytes, Mode::Exclusive).protocol(protocol).method(method);
                    let lock = file.lock_by(&request).unwrap();
                    let object = lock.store().object("counters").unwrap();
                    for number in mine {
                        let old = object.read(number * 8..number * 8 + 8).unwrap().data;
                        let old = old.as_ref().try_into().map_or(0, u64::from_le_bytes);
                        object.write(number * 8, (old + 1).to_le_bytes().to_vec()).unwrap();
                        // Counted apart, in a way that needs no lock.
                        store
                            .object("total")
                            .unwrap()
                            .update(0..8, |old| {
                                let old = old.try_into().map_or(0, u64::from_le_bytes);
                                (old + 1).to_le_bytes().to_vec()
                            })
                            .unwrap();
                    }
                    lock.release().unwrap();
                }
            });
        }
    });
    let store = nacre::open(&uri).unwrap().blocking();
    let numbers = |object: &str| -> Vec<u64> {
        let data = store.object(object).unwrap().read(0..8 * COUNTERS).unwrap().data;
        data.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    assert_eq!(numbers("counters").iter().sum::<u64>(), numbers("total")[0]);
    drop(servers);
}
