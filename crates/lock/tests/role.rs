//! The lock server behind real sockets: sessions and their connections, late calls, cut networks, restarts.

#[path = "role/kit.rs"]
mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kit::{
    Daemon, LEASE, PATIENCE, SHORT_LEASE, acquire, acquire_at, attach, attempt, call, event, is_held, link,
    patient, whole,
};
use nacre_lock::message::{Call, Refusal, Reply};
use nacre_lock::remote::{LockError, Request, Session};
use nacre_lock::role::{LockRole, Options};
use nacre_lock::table::Mode;
use nacre_lock::{Datatype, Stripe};
use nacre_object::testkit::MemoryStore;
use nacre_object::{
    Answer, ErrorKind, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
};
use nacre_rpc::client::LinkOptions;
use nacre_rpc::{Address, ServeOptions, Server, ServerLimits, Services};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_call_over_an_earlier_connection_is_refused() {
    let host = Daemon::alone();
    let (first, second) = (link(&host), link(&host));
    assert_eq!(call(&first, 1, Call::Open).await.unwrap_err().kind, ErrorKind::Closed, "no session");
    let mut early = attach(&first, 7, 1).await.unwrap();
    // The first session of an epoch is told when the epoch is on record.
    let open = match call(&first, 1, Call::Open).await.unwrap() {
        Some(reply) => reply,
        None => event(&mut early).await.1,
    };
    assert!(matches!(open, Reply::Open { epoch: 1, lease: LEASE }));
    let mut late = attach(&second, 7, 2).await.unwrap();
    let first_grant = match call(&second, 2, acquire(1)).await.unwrap() {
        Some(reply) => reply,
        None => event(&mut late).await.1,
    };
    assert!(is_held(&first_grant), "{first_grant:?}");
    // What was on its way over the earlier connection does not release what was acquired since.
    let refused = call(&first, 3, Call::Release { request: 1 }).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Closed, "{refused}");
    assert_eq!(attach(&first, 7, 2).await.err().unwrap().kind, ErrorKind::Closed);
    assert_eq!(host.role.as_ref().unwrap().handle().totals().requests, 1);
    assert!(early.next().await.is_none(), "its subscription has ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_is_answered_by_an_event_and_holds_up_no_other_call() {
    // Nobody renews the lease of the raw session.
    let host = Daemon::start(Arc::default(), Duration::from_secs(600), 0, 1);
    let holder = host.session().await;
    let held = holder.lock(b"f", &whole(Mode::Exclusive)).await.unwrap();
    let link = link(&host);
    let mut events = attach(&link, 1000, 1).await.unwrap();
    call(&link, 1, Call::Open).await.unwrap();
    // Far more waits than a connection may have requests under way.
    for request in 1..=6000 {
        assert_eq!(call(&link, request + 1, acquire(request)).await.unwrap(), None);
    }
    assert_eq!(host.role.as_ref().unwrap().handle().totals().waiting, 6000);
    let released = call(&link, 7000, Call::Release { request: 6000 }).await.unwrap();
    assert_eq!(released, Some(Reply::Done));
    assert_eq!(event(&mut events).await, (6001, Reply::Refused(Refusal::Released)));
    held.release().await.unwrap();
    let (number, reply) = event(&mut events).await;
    assert!(number == 2 && is_held(&reply), "first come, first served: {number} {reply:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_of_sessions_are_never_given_twice() {
    let mut host = Daemon::alone();
    let mut last = 0;
    for _ in 0..2 {
        for _ in 0..3 {
            let number = host.session().await.number();
            assert!(number > last, "{number} after {last}");
            last = number;
        }
        host.stop();
        host = Daemon::start(host.store.clone(), LEASE, 0, 1);
    }
    host.stop();
    // Nor by a server without the records, whose objects may have fences against them.
    let without = Daemon::on(Arc::<MemoryStore>::default(), host.store.clone(), LEASE, 0, 1);
    let number = without.session().await.number();
    assert!(number > last, "{number} after {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grace_period_that_is_over_is_not_repeated_by_the_next_server() {
    let lease = Duration::from_millis(500);
    let store = Arc::<MemoryStore>::default();
    // The records of a server that was killed while session 7 might write a file.
    let number = |number: u64| Bytes::copy_from_slice(&number.to_le_bytes());
    let uses = [&b"use/"[..], &7_u64.to_be_bytes(), b"f"].concat();
    let records = [
        (b"epoch".to_vec(), number(1)),
        (b"lease".to_vec(), number(500)),
        (b"used".to_vec(), Bytes::from_static(&[1])),
        (b"numbers".to_vec(), number(8)),
        (uses, Bytes::new()),
    ];
    let writes = records.into_iter().map(|(key, value)| {
        let key = nacre_object::Key::new(key).unwrap();
        nacre_object::WriteOp::SetKey { key, value }
    });
    let left = Transaction { writes: writes.collect(), ..Transaction::new() };
    store.apply(&"ledger-0".parse().unwrap(), left).await.unwrap();
    let mut host = Daemon::start(store.clone(), lease, 0, 1);
    // Nobody comes back, and nobody else comes.
    while host.role.as_ref().unwrap().handle().totals().fences == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    host.stop();
    let host = Daemon::start(store, lease, 0, 1);
    assert!(!host.role.as_ref().unwrap().handle().totals().in_grace);
}

#[test]
fn a_server_of_a_volatile_store_reuses_no_numbers_after_a_restart() {
    let start = || {
        let store = Arc::<MemoryStore>::default();
        LockRole::start(Options {
            stripe: Stripe { bytes: 4096, servers: 1, server: 0 },
            lease: LEASE,
            indexing: Default::default(),
            records: store.clone(),
            ledger: "ledger".parse().unwrap(),
            volatile: true,
            objects: store,
        })
    };
    let serve = |role: &LockRole| {
        Server::start(ServeOptions {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            open: true,
            services: Services::new().with(role.service()),
            ..Default::default()
        })
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut last = (0, 0);
    for _ in 0..2 {
        let role = start().unwrap();
        let server = serve(&role).unwrap();
        let epoch = role.handle().totals().epoch;
        for _ in 0..3 {
            let begun = Session::begin(vec![server.addresses()[0].clone()], patient());
            let number = runtime.block_on(begun).unwrap().number();
            assert!((epoch, number) > last && number > last.1, "{number} after {last:?}");
            // Numbers of JSON are exact up to there.
            assert!(number.max(epoch) < 1 << 53);
            last = (epoch, number);
        }
        server.stop();
        role.stop();
    }
}

/// A store whose changes fail for a while.
#[derive(Default)]
struct Flaky {
    store: MemoryStore,
    fails: AtomicBool,
    failed: AtomicUsize,
}

impl ObjectStore for Flaky {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> nacre_object::Reply<Outcome> {
        if !transaction.writes.is_empty() && self.fails.load(Ordering::SeqCst) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            let error = StoreError::new(ErrorKind::Io, "it fails for a while");
            return nacre_object::Reply::ready(Err(error));
        }
        self.store.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> nacre_object::Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_cannot_be_written_at_once_are_written_whole_later() {
    let store = Arc::<Flaky>::default();
    let mut host = Daemon::on(store.clone(), Arc::default(), LEASE, 0, 1);
    let session = host.session().await;
    session.lock(b"f", &whole(Mode::Exclusive)).await.unwrap().release().await.unwrap();
    let uses = || {
        let read = ReadOp::Keys { range: KeyRange::all(), limit: 100, values: false };
        let read = Transaction::new().read(read);
        match nacre_object::testkit::block_on(store.store.apply(&"ledger-0".parse().unwrap(), read)).unwrap()
        {
            Outcome::Done(done) => match &done.answers[0] {
                Answer::Keys(page) => {
                    page.entries.iter().filter(|entry| entry.0.as_bytes().starts_with(b"use/")).count()
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(uses(), 1);
    store.fails.store(true, Ordering::SeqCst);
    let ended = tokio::spawn(async move { session.end().await });
    while store.failed.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store.fails.store(false, Ordering::SeqCst);
    ended.await.unwrap();
    let until = tokio::time::Instant::now() + PATIENCE;
    while uses() > 0 {
        assert!(tokio::time::Instant::now() < until, "the end of the session is not on record");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    host.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_takes_no_session_and_holds_up_only_what_needs_a_record() {
    let store = Arc::<Flaky>::default();
    let mut host = Daemon::on(store.clone(), Arc::default(), SHORT_LEASE, 0, 1);
    let (reader, writer, asker) = (host.session().await, host.session().await, host.session().await);
    let reads = reader.lock(b"r", &whole(Mode::Shared)).await.unwrap();
    let writes = writer.lock(b"w", &Request::new(0..10, Mode::Exclusive)).await.unwrap();
    let known = asker.lock(b"r", &whole(Mode::Shared)).await.unwrap();
    store.fails.store(true, Ordering::SeqCst);
    let asks = tokio::spawn({
        let asker = asker.clone();
        async move { asker.lock(b"new", &whole(Mode::Exclusive)).await }
    });
    // More than a lease, by the number of renewals at the server too, and several attempts to write.
    let calls = || host.role.as_ref().unwrap().handle().totals().calls;
    let (begun, before) = (Instant::now(), calls());
    let is_early = || begun.elapsed() < SHORT_LEASE * 5 / 4 || calls() < before + 9;
    while store.failed.load(Ordering::SeqCst) < 3 || is_early() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(begun.elapsed() < 30 * SHORT_LEASE, "nobody renews");
        for lock in [&reads, &writes, &known] {
            lock.check().unwrap();
        }
    }
    assert!(!asks.is_finished(), "its use of the file is on no record");
    // What needs no record goes on: shared locks, files on record, refusals, releases.
    let more = writer.lock(b"w", &Request::new(10..20, Mode::Exclusive)).await.unwrap();
    let again = asker.lock(b"r", &whole(Mode::Shared)).await.unwrap();
    let refused = attempt(&reader, b"new", whole(Mode::Exclusive)).await;
    assert_eq!(refused.err(), Some(LockError::WouldWait), "the lock is the asker's, who is not told yet");
    for lock in [more, again, reads] {
        lock.release().await.unwrap();
    }
    store.fails.store(false, Ordering::SeqCst);
    asks.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(host.role.as_ref().unwrap().handle().totals().fences, 0);
    host.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_wait_for_a_record_take_a_bounded_share_of_the_servers_memory() {
    const HELD_BYTES_MAX: usize = 1 << 20;
    let store = Arc::<Flaky>::default();
    let limits = ServerLimits { held_bytes_max: HELD_BYTES_MAX, ..ServerLimits::default() };
    // Nobody renews the leases of the raw sessions.
    let lease = Duration::from_secs(600);
    let mut host = Daemon::with_limits(store.clone(), Arc::default(), lease, 0, 1, limits);
    let links = [link(&host), link(&host)];
    let mut subscriptions = Vec::new();
    for (link, session) in links.iter().zip(1..) {
        subscriptions.push(attach(link, session, 1).await.unwrap());
        let opened = call(link, 1, Call::Open).await.unwrap();
        let opened = match opened {
            Some(opened) => opened,
            None => event(subscriptions.last_mut().unwrap()).await.1,
        };
        assert!(matches!(opened, Reply::Open { .. }), "{opened:?}");
    }
    store.fails.store(true, Ordering::SeqCst);
    // Each session has one lock, of bytes of its own, and asks for it until there is no room for one more answer.
    let mut waiting = 0;
    for (link, session) in links.iter().zip(1..) {
        let mut number = 1;
        let refused = loop {
            number += 1;
            match call(link, number, acquire_at(session, session * 10)).await.unwrap() {
                None => waiting += 1,
                Some(refused) => break refused,
            }
            assert!(waiting < HELD_BYTES_MAX, "nothing bounds them");
        };
        assert!(matches!(refused, Reply::Refused(Refusal::Full(_))), "{refused:?}");
    }
    assert!(waiting > 100, "{waiting}");
    store.fails.store(false, Ordering::SeqCst);
    for subscription in &mut subscriptions {
        let (_, reply) = event(subscription).await;
        assert!(is_held(&reply), "{reply:?}");
    }
    // Their room is free again.
    let until = tokio::time::Instant::now() + PATIENCE;
    while host.server.as_ref().unwrap().stats().held_bytes.get() as usize > HELD_BYTES_MAX / 2 {
        assert!(tokio::time::Instant::now() < until, "the memory is not given back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let again = call(&links[0], 1 << 40, acquire_at(1, 10)).await.unwrap();
    assert!(again.is_some_and(|reply| is_held(&reply)));
    host.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_session_at_a_file_with_too_many_fenced_ones_is_told_that_it_is_lost() {
    let mut host = Daemon::alone();
    let (old, other) = (host.session().await, host.session().await);
    let held = old.lock(b"f", &Request::new(0..10, Mode::Exclusive)).await.unwrap();
    other.lock(b"g", &Request::new(0..10, Mode::Exclusive)).await.unwrap().release().await.unwrap();
    // As many younger ones as the object keeps singly, fenced by others; then one more by the server.
    let fence = |session| {
        let write = nacre_object::WriteOp::FenceSession { session };
        let fenced = host.store.apply(&"f".parse().unwrap(), Transaction::new().change(write));
        nacre_object::testkit::block_on(fenced).unwrap();
    };
    (0..1024).for_each(|index| fence(old.number() + 1000 + index));
    let younger = host.session().await;
    let lost = younger.lock(b"f", &Request::new(20..30, Mode::Exclusive)).await.unwrap();
    let handle = host.role.as_ref().unwrap().handle();
    assert!(handle.break_session(nacre_lock::message::SessionId(younger.number())));
    lost.checker().lost().await;
    // Nobody has fenced it, but the store refuses it.
    let error = held.checker().lost().await;
    assert!(matches!(error, LockError::Lost { session, .. } if session == old.number()), "{error}");
    let refused = other.lock(b"f", &Request::new(40..50, Mode::Exclusive)).await.err().unwrap();
    assert!(matches!(refused, LockError::Lost { .. }), "{refused}");
    // A successor knows that too.
    host.stop();
    let host = Daemon::start(host.store.clone(), LEASE, 0, 1);
    let link = link(&host);
    let mut events = attach(&link, old.number(), 1).await.unwrap();
    assert_eq!(call(&link, 1, Call::Open).await.unwrap(), None, "told when the epoch is on record");
    assert!(matches!(event(&mut events).await.1, Reply::Open { epoch: 2, .. }));
    let refused = call(&link, 2, acquire(1)).await.unwrap();
    assert_eq!(refused, Some(Reply::Refused(Refusal::Lapsed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_at_a_server_that_is_away_are_forgotten() {
    let (mut near, mut far) = {
        let store = Arc::<MemoryStore>::default();
        (Daemon::start(store.clone(), LEASE, 0, 2), Daemon::start(store, LEASE, 1, 2))
    };
    let session = Session::begin(vec![near.address(), far.address()], patient()).await.unwrap();
    far.stop();
    for _ in 0..3 {
        let error = session.lock(b"f", &whole(Mode::Exclusive)).await.err().unwrap();
        assert!(matches!(&error, LockError::Store(error) if error.kind == ErrorKind::Unavailable), "{error}");
    }
    // What they had at the other server is free again, and the session goes on there.
    let there = attempt(&session, b"f", Request::new(0..4096, Mode::Exclusive)).await;
    there.unwrap().release().await.unwrap();
    let until = tokio::time::Instant::now() + PATIENCE;
    while near.role.as_ref().unwrap().handle().totals().requests > 0 {
        assert!(tokio::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    near.stop();
}

/// A network that can be cut: connections through it end, and no new ones are made.
struct Network {
    address: Address,
    cut: Arc<AtomicBool>,
    abort: Arc<tokio::sync::Notify>,
}

impl Network {
    async fn to(address: Address) -> Network {
        let Address::Tcp(target) = address else { panic!("{address}") };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (cut, abort) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Notify::new()));
        let network = Network { address, cut: cut.clone(), abort: abort.clone() };
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let (mut near, _) = accepted.unwrap();
                        if cut.load(Ordering::SeqCst) {
                            continue;
                        }
                        let target = target.clone();
                        connections.spawn(async move {
                            let Ok(mut far) = TcpStream::connect(target).await else { return };
                            let _ = copy_bidirectional(&mut near, &mut far).await;
                        });
                    }
                    () = abort.notified() => connections.abort_all(),
                }
            }
        });
        network
    }

    fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
        self.abort.notify_one();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_network_delays_locks_and_loses_none() {
    let store = Arc::<MemoryStore>::default();
    let hosts = [0, 1].map(|server| Daemon::start(store.clone(), LEASE, server, 2));
    let network = Network::to(hosts[1].address()).await;
    let near = Session::begin(vec![hosts[0].address(), hosts[1].address()], patient());
    let far = Session::begin(vec![hosts[0].address(), network.address.clone()], patient());
    let (near, far) = (near.await.unwrap(), far.await.unwrap());
    // Every other 64 bytes, at both servers.
    let pattern = Request::new(Datatype::Bytes(64).vector(1024, 1, 2).at(0), Mode::Exclusive);
    for _ in 0..3 {
        let held = near.lock(b"f", &pattern).await.unwrap();
        let waits = tokio::spawn({
            let (far, pattern) = (far.clone(), pattern.clone());
            async move { far.lock(b"f", &pattern).await }
        });
        let waiting = || hosts.iter().any(|host| host.role.as_ref().unwrap().handle().totals().waiting > 0);
        while !waiting() {
            tokio::task::yield_now().await;
        }
        network.cut(true);
        held.release().await.unwrap();
        // Bytes at the server that can be reached are granted to it meanwhile, and to nobody else.
        network.cut(false);
        let held = waits.await.unwrap().unwrap();
        assert_eq!(attempt(&near, b"f", pattern.clone()).await.err(), Some(LockError::WouldWait));
        network.cut(true);
        network.cut(false);
        held.release().await.unwrap();
    }
    let totals = hosts.each_ref().map(|host| host.role.as_ref().unwrap().handle().totals());
    assert!(totals.iter().all(|totals| totals.fences == 0 && totals.requests == 0), "{totals:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_lease_fences_the_session_in_the_files_that_it_held() {
    let host = Daemon::start(Arc::default(), SHORT_LEASE, 0, 1);
    let network = Network::to(host.address()).await;
    let lost = Session::begin(vec![network.address.clone()], patient()).await.unwrap();
    let held = lost.lock(b"written", &whole(Mode::Exclusive)).await.unwrap();
    let read = lost.lock(b"read", &whole(Mode::Shared)).await.unwrap();
    network.cut(true);
    let error = held.checker().lost().await;
    assert!(matches!(error, LockError::Lost { session, .. } if session == lost.number()), "{error}");
    assert!(read.check().is_err() && lost.lock(b"other", &whole(Mode::Shared)).await.is_err());
    let next = host.session().await;
    let taken = next.lock(b"written", &whole(Mode::Exclusive)).await.unwrap();
    drop(next.lock(b"read", &whole(Mode::Exclusive)).await.unwrap());
    let fenced = |file: &str| {
        let read = Transaction::new().read(ReadOp::Fences);
        match nacre_object::testkit::block_on(host.store.apply(&file.parse().unwrap(), read)).unwrap() {
            Outcome::Done(done) => match &done.answers[0] {
                Answer::Fences(fences) => fences.sessions.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(fenced("written"), [lost.number()]);
    assert_eq!(fenced("read"), [0; 0], "a reader is stopped by its own clock");
    taken.release().await.unwrap();
}

/// Grants that arrive around the end of a wait: whoever is told of one keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_granted_as_its_wait_ends_is_held_or_left_to_others() {
    const WAIT: Duration = Duration::from_millis(10);
    let host = Daemon::alone();
    let (holder, waiter) = (host.session().await, host.session().await);
    let (mut had, mut timed_out) = (0, 0);
    for round in 0.. {
        if round >= 100 && had > 0 && timed_out > 0 {
            break;
        }
        assert!(round < 1000, "{had} had the lock, {timed_out} did not");
        let held = holder.lock(b"f", &whole(Mode::Exclusive)).await.unwrap();
        let begun = Instant::now();
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            async move { waiter.lock(b"f", &whole(Mode::Exclusive).wait(WAIT)).await }
        });
        // Between two milliseconds before the end of the wait and one after it; further from it where that does not do.
        let span = 3000 * (1 + round / 100);
        let release =
            begun + WAIT + Duration::from_micros(round * 397 % span) - Duration::from_micros(span * 2 / 3);
        while Instant::now() < release {
            tokio::task::yield_now().await;
        }
        held.release().await.unwrap();
        match waiting.await.unwrap() {
            Ok(lock) => {
                had += 1;
                let second = holder.lock(b"f", &whole(Mode::Exclusive).wait(Duration::from_millis(20))).await;
                assert!(second.is_err(), "both sessions have the lock, in round {round}");
                lock.release().await.unwrap();
            }
            Err(LockError::TimedOut) => timed_out += 1,
            // The server stood still, as on a busy machine it may.
            Err(LockError::Unanswered) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn leases_are_renewed_and_releases_sent_while_the_program_polls_nothing() {
    let host = Daemon::start(Arc::default(), SHORT_LEASE, 0, 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let session = runtime.block_on(host.session());
    let lock = || runtime.block_on(session.lock(b"f", &whole(Mode::Exclusive))).unwrap();
    // With the second one this runtime has its part in the session.
    runtime.block_on(lock().release()).unwrap();
    let held = lock();
    let until = Instant::now() + SHORT_LEASE * 5 / 4;
    while Instant::now() < until {
        held.check().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    let entered = runtime.enter();
    drop(held);
    while host.role.as_ref().unwrap().handle().totals().requests > 0 {
        std::thread::yield_now();
    }
    drop(entered);
    // It goes on where it was, and elsewhere once that runtime is gone.
    runtime.block_on(lock().release()).unwrap();
    runtime.shutdown_background();
    futures::executor::block_on(async {
        session.lock(b"f", &whole(Mode::Exclusive)).await.unwrap().release().await.unwrap();
        session.end().await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_number_of_servers_is_refused() {
    let host = Daemon::start(Arc::default(), LEASE, 0, 2);
    let error = Session::begin(vec![host.address()], patient()).await.err().unwrap();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("of 2"), "{error}");
    let second = Daemon::start(Arc::default(), LEASE, 1, 2);
    let both = vec![second.address(), host.address()];
    let error = Session::begin(both, patient()).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Invalid, "the first server numbers sessions: {error}");
    // A server that takes the place of another one is found out when it is needed.
    let other = Daemon::start(Arc::default(), LEASE, 0, 2);
    let misplaced = vec![host.address(), other.address()];
    let session = Session::begin(misplaced, patient()).await.unwrap();
    let error = session.lock(b"f", &whole(Mode::Exclusive)).await.err().unwrap();
    assert!(matches!(&error, LockError::Store(error) if error.kind == ErrorKind::Invalid), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_one_server_ends_is_fenced_before_others_give_its_bytes_away() {
    let lease = Duration::from_secs(600);
    let near = Daemon::start(Arc::default(), lease, 0, 2);
    // In the place of the second.
    let misplaced = Daemon::start(Arc::default(), lease, 0, 2);
    let servers = vec![near.address(), misplaced.address()];
    let session = Session::begin(servers.clone(), patient()).await.unwrap();
    let near_bytes = Request::new(0..10, Mode::Exclusive);
    let held = session.lock(b"f", &near_bytes).await.unwrap();
    assert!(session.lock(b"f", &Request::new(4096..4106, Mode::Exclusive)).await.is_err());
    assert!(held.check().is_err());
    // What was written under the lock may still be on its way, also when the program has let go of it.
    let lost = session.number();
    drop((held, session));
    let other = Session::begin(servers, patient()).await.unwrap();
    let refused = other.lock(b"f", &near_bytes.clone().wait(Duration::from_millis(500))).await.err();
    assert!(matches!(refused, Some(LockError::TimedOut | LockError::Unanswered)), "{refused:?}");
    let handle = near.role.as_ref().unwrap().handle();
    assert!(handle.break_session(nacre_lock::message::SessionId(lost)));
    other.lock(b"f", &near_bytes).await.unwrap().release().await.unwrap();
    let read = Transaction::new().read(ReadOp::Fences);
    let Outcome::Done(done) = near.store.apply(&"f".parse().unwrap(), read).await.unwrap() else { panic!() };
    let Some(Answer::Fences(fences)) = done.answers.first() else { panic!("{:?}", done.answers) };
    assert_eq!(fences.sessions, [lost]);
}

/// Returns the number of threads of sessions in this process.
fn session_threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
    names
        .filter(|name| std::fs::read_to_string(name).is_ok_and(|name| name.starts_with("nacre-locks")))
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_beginning_is_given_up_leaves_no_thread() {
    // No number is on record, so that the beginning waits.
    let store = Arc::<Flaky>::default();
    store.fails.store(true, Ordering::SeqCst);
    let host = Daemon::on(store.clone(), Arc::default(), LEASE, 0, 1);
    let mut set = JoinSet::new();
    for _ in 0..30 {
        let address = host.address();
        set.spawn(async move {
            let begun = Session::begin(vec![address], patient());
            assert!(tokio::time::timeout(Duration::from_millis(100), begun).await.is_err());
        });
    }
    set.join_all().await;
    // Sessions of other tests of this process come and go.
    let until = Instant::now() + PATIENCE;
    while session_threads() >= 30 {
        assert!(Instant::now() < until, "{} threads", session_threads());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_beginning_of_a_session_gives_up_a_server_that_falls_silent() {
    let store = Arc::<Flaky>::default();
    store.fails.store(true, Ordering::SeqCst);
    let host = Daemon::on(store.clone(), Arc::default(), LEASE, 0, 1);
    let Address::Tcp(target) = host.address() else { panic!("an address of TCP") };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    // Connections are carried until the server has been asked for a number, and then stay open, silently.
    let relay = tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(&target).await.unwrap();
            tokio::spawn(async move {
                let carried = copy_bidirectional(&mut near, &mut far);
                let _ = tokio::time::timeout(Duration::from_millis(100), carried).await;
                std::future::pending::<()>().await;
            });
        }
    });
    let options = LinkOptions { silence_timeout: Duration::from_millis(400), ..Default::default() };
    let begun = tokio::time::timeout(PATIENCE, Session::begin(vec![address], options)).await;
    assert_eq!(begun.expect("an end").err().unwrap().kind, ErrorKind::Unavailable);
    relay.abort();
}

#[test]
fn a_runtime_that_watches_no_sockets_is_served_by_the_sessions_thread() {
    let other = tokio::runtime::Runtime::new().unwrap();
    let host = other.block_on(async { Daemon::alone() });
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    bare.block_on(async {
        let session = host.session().await;
        for _ in 0..5 {
            session.lock(b"f", &whole(Mode::Exclusive)).await.unwrap().release().await.unwrap();
        }
        session.end().await;
    });
}
