//! Locks by the library: several programs, as handles of their own, at one server.

mod harness;

use std::time::Duration;

use futures::executor::block_on;
use harness::Server;
use nacre::ErrorKind;
use nacre::lock::{Datatype, Method, Mode, Protocol, Region, Request};
use rustix::process::Signal;

/// Attempts again what a server did not answer in time, as one on a busy machine may not.
fn answered<T>(attempt: impl Fn() -> Result<T, nacre::Error>) -> Result<T, nacre::Error> {
    for _ in 0..20 {
        match attempt() {
            Err(error) if error.message.contains("did not answer in time") => {}
            ended => return ended,
        }
    }
    attempt()
}

/// Starts a server by whose lease no lock ends while a busy machine stands still.
fn server() -> Server {
    Server::start("mem:", &PATIENT)
}

const PATIENT: [&str; 2] = ["--lock-lease", "60s"];

#[test]
fn a_lock_is_had_by_one_handle_at_a_time() {
    let server = server();
    let open = || nacre::open(&server.uri).unwrap().blocking();
    let (one, other) = (open(), open());
    let (mine, theirs) = (one.file("f").unwrap(), other.file("f").unwrap());
    let held = mine.lock(0..100, Mode::Exclusive).unwrap();
    assert!(answered(|| theirs.try_lock(99..200, Mode::Shared)).unwrap().is_none());
    let short = Duration::from_millis(30);
    assert!(answered(|| theirs.lock_within(50..51, Mode::Exclusive, short)).unwrap().is_none());
    // Requests of other bytes and of other files pass.
    let beside = answered(|| theirs.try_lock(100..200, Mode::Exclusive)).unwrap().unwrap();
    let elsewhere = other.file("g").unwrap();
    drop(answered(|| elsewhere.try_lock(0..100, Mode::Exclusive)).unwrap().unwrap());
    // Two locks of one program keep each other out as well.
    assert!(answered(|| mine.try_lock(0..1, Mode::Shared)).unwrap().is_none());
    let at_once = Request::new(0..1, Mode::Shared).without_wait();
    assert_eq!(answered(|| theirs.lock_by(&at_once)).unwrap_err().kind, ErrorKind::Busy);
    let waiting = std::thread::spawn(move || theirs.lock(0..1, Mode::Exclusive).unwrap().token());
    held.release().unwrap();
    assert_eq!(waiting.join().unwrap(), beside.token());
    drop(beside);
    // What was dropped is free soon after.
    drop(mine.lock(0..200, Mode::Exclusive).unwrap());
    one.end_locks();
    other.end_locks();
    // One that is busy may be told of the end of a session after the call has returned.
    let until = std::time::Instant::now() + harness::PATIENCE;
    while one.locks().unwrap()[0].report["sessions"] != 0 {
        assert!(std::time::Instant::now() < until, "a session has not ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_lock_says_how_long_it_is_held_without_a_renewal() {
    let server = server();
    let store = nacre::open(&server.uri).unwrap().blocking();
    let lock = store.file("f").unwrap().lock(0..1, Mode::Exclusive).unwrap();
    let lease_ms = store.lock_totals().unwrap()[0].report["lease_ms"].as_u64().unwrap();
    let left = lock.lease_left();
    assert!(left > Duration::ZERO && left <= Duration::from_millis(lease_ms), "{left:?}");
    store.end_locks();
    assert_eq!(lock.lease_left(), Duration::ZERO);
}

#[test]
fn a_time_limit_holds_though_the_server_stops_answering() {
    let server = Server::in_memory();
    let store = nacre::open(&server.uri).unwrap().blocking();
    let file = store.file("f").unwrap();
    drop(file.lock(0..10, Mode::Exclusive).unwrap());
    server.signal(Signal::STOP);
    let unanswered = |error: nacre::Error| {
        error.kind == ErrorKind::Unavailable && error.message.contains("did not answer in time")
    };
    assert!(unanswered(file.try_lock(10..20, Mode::Exclusive).err().unwrap()));
    let short = Duration::from_millis(100);
    assert!(unanswered(file.lock_within(10..20, Mode::Exclusive, short).err().unwrap()));
    server.signal(Signal::CONT);
    // What it may have been granted meanwhile is given back.
    drop(file.lock(0..100, Mode::Exclusive).unwrap());
    store.end_locks();
}

#[test]
fn a_wait_that_is_dropped_is_granted_to_nobody() {
    let server = server();
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
fn what_acts_under_a_lock_fails_once_it_is_released() {
    let server = server();
    let store = nacre::open(&server.uri).unwrap().blocking();
    let file = store.file("f").unwrap();
    let lock = file.lock(0..10, Mode::Exclusive).unwrap();
    let under = lock.store().object("f").unwrap();
    under.write(0, "locked").unwrap();
    lock.release().unwrap();
    // Another lock of the same session does not stand in for it.
    let next = file.lock(0..10, Mode::Exclusive).unwrap();
    let error = under.write(0, "released").unwrap_err();
    assert!(error.kind == ErrorKind::Closed && error.message.contains("was released"), "{error}");
    // Nor does a lock outlive its session, which somebody else may end.
    let under = next.store().object("f").unwrap();
    store.end_locks();
    assert!(next.check().is_err());
    assert_eq!(under.write(0, "ended").unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(store.object("f").unwrap().read(0..10).unwrap().data, "locked");
    assert!(next.release().is_err());
}

#[test]
fn a_lock_that_would_take_requests_without_end_is_refused() {
    let folder = harness::folder();
    let (_servers, uri) = Server::together(folder.path(), &["mem:", "mem:"], &[]);
    let store = nacre::open(&uri).unwrap().blocking();
    let file = store.file("f").unwrap();
    // All bytes are 2^47 stripes.
    for method in [Method::Posix, Method::List] {
        let all = Request::new(0..nacre::limit::OFFSET_MAX, Mode::Exclusive).method(method);
        let error = file.lock_by(&all).unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains("datatype"), "{error}");
    }
    // For ever is longer than any clock can show.
    let lock = file.lock_within(0..nacre::limit::OFFSET_MAX, Mode::Exclusive, Duration::MAX).unwrap();
    lock.unwrap().release().unwrap();
}

/// The circles of sessions that a server reports.
fn cycles(store: &nacre::BlockingStore, server: usize) -> Vec<Vec<u64>> {
    let report = &store.locks().unwrap()[server].report["cycles"];
    let cycles = report.as_array().unwrap().iter().map(|cycle| cycle.as_array().unwrap());
    cycles.map(|cycle| cycle.iter().map(|session| session.as_u64().unwrap()).collect()).collect()
}

#[test]
fn circles_of_waits_over_several_servers_are_reported_and_chains_are_not() {
    let folder = harness::folder();
    let (servers, uri) =
        Server::together(folder.path(), &["mem:", "mem:"], &[&PATIENT[..], &["--lock-stripe", "8"]].concat());
    // Programs with two guards each. The bytes 0 and 16 are the first server's, byte 8 the second's.
    let programs: Vec<_> = (0..5).map(|_| nacre::open(&uri).unwrap().blocking()).collect();
    let lock = |program: usize, file: &str, byte: u64| {
        let file = programs[program].file(file).unwrap();
        move || file.lock(byte..byte + 1, Mode::Exclusive)
    };
    let hold = |program, file, byte| lock(program, file, byte)().unwrap();
    let waits = |count: u64| {
        let until = std::time::Instant::now() + harness::PATIENCE;
        let waiting = || {
            programs[0]
                .locks()
                .unwrap()
                .iter()
                .map(|part| part.report["waiting"].as_u64().unwrap())
                .sum::<u64>()
        };
        while waiting() < count {
            assert!(std::time::Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // Each waits for the next, at both servers.
    let (third, fourth, fifth) = (hold(2, "chain", 0), hold(3, "chain", 8), hold(4, "chain", 16));
    let chain = [std::thread::spawn(lock(2, "chain", 8)), std::thread::spawn(lock(3, "chain", 16))];
    waits(2);
    let (first, second) = (hold(0, "f", 0), hold(1, "f", 8));
    let (one, other) = (std::thread::spawn(lock(0, "f", 8)), std::thread::spawn(lock(1, "f", 0)));
    waits(4);
    let until = std::time::Instant::now() + harness::PATIENCE;
    let mut found = cycles(&programs[0], 0);
    while found.is_empty() {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(Duration::from_millis(20));
        found = cycles(&programs[0], 0);
    }
    let mut both = vec![first.token(), second.token()];
    both.sort_unstable();
    assert_eq!(found, [both]);
    assert_eq!(cycles(&programs[0], 1), Vec::<Vec<u64>>::new(), "it sees no circle");
    // By the command line, too.
    let mut shown = harness::program();
    shown.args(["--store", &uri, "locks"]);
    let shown = harness::run_with(shown, b"");
    assert!(shown.code == 0 && shown.stderr.contains("wait for each other in a circle"), "{shown:?}");
    // The log is collected by a separate thread.
    while !servers[0].log().contains("wait for each other in a circle") {
        assert!(std::time::Instant::now() < until, "it is not logged");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        servers[0].log().matches("wait for each other in a circle").count(),
        1,
        "{}",
        servers[0].log()
    );
    assert_eq!(servers[1].log(), "");
    // An end to it goes on as it should.
    drop(first);
    assert!(other.join().unwrap().unwrap().check().is_ok());
    drop(second);
    one.join().unwrap().unwrap().release().unwrap();
    drop((third, fourth, fifth));
    chain.into_iter().for_each(|waiting| drop(waiting.join().unwrap().unwrap()));
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
    let (servers, uri) =
        Server::together(folder.path(), &["mem:", "mem:"], &[&PATIENT[..], &["--lock-stripe", "8"]].concat());
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

#[test]
fn a_store_in_this_process_grants_locks_without_a_daemon() {
    let store = nacre::open("mem:").unwrap().blocking();
    let file = store.file("f").unwrap();
    let even = || Datatype::Bytes(64).vector(100, 1, 2).at(0);
    let held = file.lock(even(), Mode::Exclusive).unwrap();
    assert!(answered(|| file.try_lock(0..1, Mode::Shared)).unwrap().is_none());
    let odd = || Datatype::Bytes(64).vector(100, 1, 2).at(64);
    let odd = answered(|| file.try_lock(odd(), Mode::Exclusive)).unwrap().unwrap();
    odd.store().object("f").unwrap().write(64, "odd").unwrap();
    let waiting = {
        let file = file.clone();
        std::thread::spawn(move || file.lock(0..1, Mode::Shared).unwrap().release().unwrap())
    };
    let under = held.store();
    held.release().unwrap();
    waiting.join().unwrap();
    assert_eq!(under.object("f").unwrap().write(0, "late").unwrap_err().kind, ErrorKind::Closed);
    // A clone of the store has the same session.
    let again = store.clone().file("f").unwrap();
    assert!(answered(|| again.try_lock(64..65, Mode::Exclusive)).unwrap().is_none());
    store.end_locks();
    assert!(odd.check().is_err());
    assert!(answered(|| again.try_lock(64..65, Mode::Exclusive)).unwrap().is_some());
}

#[test]
fn a_folder_that_was_closed_after_locks_grants_them_at_once_when_it_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("file:{}?create=yes", folder.path().join("store").display());
    let mut tokens = Vec::new();
    for _ in 0..3 {
        // Dropped within an executor, and with a lock that nobody released.
        block_on(async {
            let store = nacre::open(&uri).unwrap();
            let file = store.file("f").unwrap();
            let mut tried = file.try_lock(0..10, Mode::Exclusive).await;
            // It may not answer in time on a busy machine, and then does long before a lease is over.
            for _ in 0..3 {
                if tried.as_ref().is_err_and(|error| error.message.contains("did not answer in time")) {
                    tried = file.try_lock(0..10, Mode::Exclusive).await;
                }
            }
            let lock = tried.unwrap().unwrap();
            lock.store().object("f").unwrap().write(0, "x").await.unwrap();
            tokens.push(lock.token());
        });
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    // A daemon on it goes on with the same numbers.
    let server = Server::start(&format!("file:{}", folder.path().join("store").display()), &[]);
    let store = nacre::open(&server.uri).unwrap().blocking();
    let file = store.file("f").unwrap();
    let lock = answered(|| file.try_lock(0..10, Mode::Exclusive)).unwrap().unwrap();
    assert!(lock.token() > tokens[2]);
}
