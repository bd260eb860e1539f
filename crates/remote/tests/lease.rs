//! Leases through servers: no read is stale however clients take turns, holders that answer late, never, or not any more, restarts,
//! and servers that know no leases.

mod support;

use std::collections::HashMap;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_logstore::LogStore;
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ErrorKind, Key, ObjectId, ObjectStore, Once, Outcome, ReadOp, Reply, StoreError, Transaction,
    WriteOp,
};
use nacre_remote::{
    LeaseService, LeasedStore, Leases, Membership, RemoteOptions, RemoteStore, StoreService, lease,
};
use nacre_rpc::client::{Call, Host, Link, LinkOptions, Request, Subscription};
use nacre_rpc::{
    Address, Frame, Handled, Incoming, MessageKind, Outbox, Peer, ServeOptions, Server, Service, Services,
    control,
};
use support::*;

/// The time after which something counts as never happening.
const PATIENCE: Duration = Duration::from_secs(60);
/// The length of leases of tests that do not wait for their end: longer than any pause of the machine.
const LONG: Duration = Duration::from_secs(60);

/// A store of a server, whose writes pass through leases.
#[derive(Clone)]
struct Leasing {
    store: LogStore,
    leases: Arc<Leases>,
}

impl ObjectStore for Leasing {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.leases.apply(&self.store, object, transaction, None)
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        self.leases.apply(&self.store, object, transaction, Some(once))
    }

    fn window(&self) -> Option<nacre_object::WindowPosition> {
        self.store.window()
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }
}

fn store(length: Duration) -> Leasing {
    let store = LogStore::memory(nacre_logstore::Options::default());
    Leasing { store, leases: Leases::new(length) }
}

fn serve_at(address: &Address, store: &Leasing) -> Server {
    let membership = Membership::alone([7; 16]);
    let objects: Arc<dyn ObjectStore> = Arc::new(store.clone());
    let services = Services::new()
        .with(StoreService::new(objects.clone(), membership.clone(), Arc::default()))
        .with(LeaseService::new(objects, membership, store.leases.clone()));
    let listen = vec![address.clone()];
    Server::start(ServeOptions { listen, open: true, threads: 2, services, ..Default::default() }).unwrap()
}

fn on_tcp(store: &Leasing) -> Server {
    serve_at(&"127.0.0.1:0".parse().unwrap(), store)
}

/// Returns a client, whose connection has a thread of its own.
fn client(address: &Address) -> LeasedStore {
    let options = RemoteOptions { own_thread: true, ..RemoteOptions::default() };
    LeasedStore::new(RemoteStore::new(std::slice::from_ref(address), options).unwrap())
}

/// The object of an inode.
fn object(number: u64) -> ObjectId {
    format!("nacre/fs/i/{number:016x}").parse().unwrap()
}

fn key() -> Key {
    "k".parse().unwrap()
}

fn set(store: &dyn ObjectStore, object: &ObjectId, value: u64) {
    let value = Bytes::copy_from_slice(&value.to_le_bytes());
    let transaction = Transaction::new().change(WriteOp::SetKey { key: key(), value });
    assert!(matches!(block_on(store.apply(object, transaction)).unwrap(), Outcome::Done(_)));
}

fn value(outcome: Outcome) -> u64 {
    let done = match outcome {
        Outcome::Done(done) => done,
        other => panic!("{other:?}"),
    };
    match &done.answers[..] {
        [Answer::Value(None)] => 0,
        [Answer::Value(Some(value))] => u64::from_le_bytes(value[..].try_into().unwrap()),
        other => panic!("{other:?}"),
    }
}

fn get(store: &dyn ObjectStore, object: &ObjectId) -> u64 {
    value(block_on(store.apply(object, Transaction::new().read(ReadOp::Key { key: key() }))).unwrap())
}

/// Reads an object until it is answered from memory.
#[track_caller]
fn warm(store: &LeasedStore, object: &ObjectId) -> u64 {
    let begun = Instant::now();
    loop {
        let hits = store.counts().hits;
        let found = get(store, object);
        if store.counts().hits > hits {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "it is never answered from memory: {:?}", store.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_leased_is_read_without_the_server_and_a_change_is_seen_at_once() {
    let kept = store(LONG);
    let server = on_tcp(&kept);
    let (one, two) = (client(&server.addresses()[0]), client(&server.addresses()[0]));
    let o = object(1);
    assert_eq!(warm(&one, &o), 0, "what is not there is known too");
    for round in 1..=20 {
        set(&two, &o, round);
        assert_eq!(get(&one, &o), round);
        assert_eq!(warm(&one, &o), round);
        let before = one.counts();
        for _ in 0..100 {
            assert_eq!(get(&one, &o), round);
        }
        assert_eq!((one.counts().hits, one.counts().misses), (before.hits + 100, before.misses));
    }
    // The client's own changes too.
    set(&one, &o, 100);
    assert_eq!((get(&one, &o), get(&two, &o)), (100, 100));
    // Another question about the same object is asked once.
    let stat = || block_on(one.apply(&o, Transaction::new().read(ReadOp::Stat))).unwrap();
    warm(&one, &o);
    let (before, first) = (one.counts().misses, stat());
    assert_eq!((stat(), one.counts().misses), (first, before + 1));
    let counts = kept.leases.counts();
    assert!(counts.granted >= 20 && counts.revoked >= 20, "{counts:?}");
    assert_eq!(kept.leases.waiting(), 0);
}

/// Reads objects ahead, and waits until all is known that can be.
fn read_ahead(store: &LeasedStore, objects: &[ObjectId]) {
    block_on(store.read_ahead(objects, &[ReadOp::Key { key: key() }]).unwrap()).unwrap();
}

#[test]
fn what_is_read_ahead_is_answered_from_memory_until_somebody_changes_it() {
    let kept = store(LONG);
    let server = on_tcp(&kept);
    let (one, two) = (client(&server.addresses()[0]), client(&server.addresses()[0]));
    let objects: Vec<ObjectId> = (1..=300).map(object).collect();
    // Some of them are not there.
    for (number, o) in (1..=300_u64).zip(&objects).step_by(2) {
        set(&two, o, number);
    }
    warm(&one, &object(0));
    let before = one.counts();
    read_ahead(&one, &objects);
    for (number, o) in (1..=300).zip(&objects) {
        assert_eq!(get(&one, o), if number % 2 == 1 { number } else { 0 });
    }
    let counts = one.counts();
    assert_eq!((counts.hits, counts.misses), (before.hits + 300, before.misses));
    // What is known is not asked for again.
    read_ahead(&one, &objects);
    assert_eq!(one.counts().granted, before.granted + 300);
    for (number, o) in (1..=300).zip(&objects) {
        set(&two, o, 1000 + number);
        assert_eq!(get(&one, o), 1000 + number);
    }
    assert!(kept.leases.counts().revoked >= 300);
    // What cannot be leased is left.
    let other: ObjectId = "other".parse().unwrap();
    set(&two, &other, 7);
    read_ahead(&one, std::slice::from_ref(&other));
    assert_eq!(get(&one, &other), 7);
}

#[test]
fn an_object_whose_answer_is_too_long_is_left_out_of_what_is_read_ahead_and_no_other_one() {
    let kept = store(LONG);
    let server = on_tcp(&kept);
    let one = client(&server.addresses()[0]);
    let objects: Vec<ObjectId> = (1..=10).map(object).collect();
    let long = WriteOp::SetKey { key: key(), value: Bytes::from(vec![0_u8; 300 << 10]) };
    let written = block_on(kept.apply(&objects[0], Transaction::new().change(long))).unwrap();
    assert!(matches!(written, Outcome::Done(_)));
    warm(&one, &object(0));
    let before = one.counts();
    read_ahead(&one, &objects);
    assert_eq!(one.counts().granted, before.granted + 9);
    assert!(objects[1..].iter().all(|o| get(&one, o) == 0));
    assert_eq!(one.counts().misses, before.misses);
}

#[test]
fn nothing_that_is_read_ahead_while_others_change_it_is_stale() {
    let kept = store(LONG);
    let server = on_tcp(&kept);
    let (reader, writer) = (client(&server.addresses()[0]), client(&server.addresses()[0]));
    let objects: Vec<ObjectId> = (0..20).map(object).collect();
    warm(&reader, &object(1000));
    let ended = AtomicBool::new(false);
    let stale = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                read_ahead(&reader, &objects);
                std::thread::yield_now();
            }
        });
        let stale = (1..=2000_u64).find(|turn| {
            let o = &objects[*turn as usize % 20];
            set(&writer, o, *turn);
            // Often enough for leases to be worth it.
            (0..12).any(|_| get(&reader, o) != *turn)
        });
        ended.store(true, Ordering::SeqCst);
        stale
    });
    assert_eq!(stale, None);
    assert!(reader.counts().hits > 500 && kept.leases.counts().revoked > 500);
}

/// The service of an earlier version, which leases objects one by one only.
struct Earlier(LeaseService);

impl Service for Earlier {
    type Connection = lease::LeaseConnection;
    type Pending = lease::PendingLease;

    fn number(&self) -> u8 {
        self.0.number()
    }

    fn is_awaited(&self) -> bool {
        self.0.is_awaited()
    }

    fn open(&self, peer: &Peer) -> lease::LeaseConnection {
        self.0.open(peer)
    }

    fn handle(
        &self,
        connection: &mut lease::LeaseConnection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<lease::PendingLease> {
        if request.kind == lease::READ {
            control::put_error(outbox, request.id, &request.unsupported());
            return Handled::Uncounted;
        }
        self.0.handle(connection, request, outbox)
    }

    fn finish(
        &self,
        connection: &mut lease::LeaseConnection,
        id: u64,
        output: Result<lease::LeaseReply, StoreError>,
        outbox: &mut Outbox,
    ) {
        self.0.finish(connection, id, output, outbox);
    }

    fn cancelled(&self, connection: &mut lease::LeaseConnection, id: u64) {
        self.0.cancelled(connection, id);
    }

    fn ended(&self, connection: &mut lease::LeaseConnection) {
        self.0.ended(connection);
    }
}

#[test]
fn a_server_that_leases_objects_one_by_one_only_does_so() {
    let kept = store(LONG);
    let membership = Membership::alone([7; 16]);
    let objects: Arc<dyn ObjectStore> = Arc::new(kept.clone());
    let service = LeaseService::new(objects.clone(), membership.clone(), kept.leases.clone());
    let services =
        Services::new().with(StoreService::new(objects, membership, Arc::default())).with(Earlier(service));
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let options = ServeOptions { listen, open: true, threads: 2, services, ..Default::default() };
    let server = Server::start(options).unwrap();
    let (one, two) = (client(&server.addresses()[0]), client(&server.addresses()[0]));
    let o = object(1);
    set(&two, &o, 1);
    warm(&one, &object(0));
    for _ in 0..10 {
        read_ahead(&one, std::slice::from_ref(&o));
    }
    assert_eq!(kept.leases.counts().refused, 0);
    assert_eq!(warm(&one, &o), 1);
    set(&two, &o, 2);
    assert_eq!(get(&one, &o), 2);
}

#[test]
fn nobody_reads_anything_stale_in_thousands_of_turns() {
    let kept = store(LONG);
    let server = on_tcp(&kept);
    let clients: Vec<LeasedStore> = (0..2).map(|_| client(&server.addresses()[0])).collect();
    let objects: Vec<ObjectId> = (0..3).map(object).collect();
    for turn in 1..=2000_u64 {
        let (writer, reader) = (&clients[turn as usize % 2], &clients[(turn as usize + 1) % 2]);
        let o = &objects[(turn / 7) as usize % 3];
        set(writer, o, turn);
        // Often enough for leases to be worth it.
        for _ in 0..12 {
            assert_eq!((get(reader, o), get(writer, o)), (turn, turn));
        }
    }
    let counts = kept.leases.counts();
    assert!(counts.granted > 500 && counts.revoked > 500, "{counts:?}");
    assert!(clients.iter().all(|client| client.counts().hits > 500));
}

#[test]
fn concurrent_readers_never_go_back_behind_an_acknowledged_change() {
    let kept = store(LONG);
    let server = on_tcp(&kept);
    let address = server.addresses()[0].clone();
    let acknowledged: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
    let ended = AtomicBool::new(false);
    let hits = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let client = client(&address);
                let mut seen = [0; 2];
                while !ended.load(Ordering::SeqCst) {
                    for (index, seen) in seen.iter_mut().enumerate() {
                        let least = acknowledged[index].load(Ordering::SeqCst);
                        let found = get(&client, &object(index as u64));
                        assert!(found >= least.max(*seen), "{found} after {least} and {seen}");
                        *seen = found;
                    }
                }
                hits.fetch_add(client.counts().hits, Ordering::SeqCst);
            });
        }
        let writers: Vec<_> = (0..2)
            .map(|index| {
                let (address, acknowledged) = (&address, &acknowledged);
                scope.spawn(move || {
                    let client = client(address);
                    for number in 1..=300 {
                        set(&client, &object(index as u64), number);
                        acknowledged[index].store(number, Ordering::SeqCst);
                        // Long enough to be leased in between, most of the time.
                        std::thread::sleep(Duration::from_millis(number % 4));
                    }
                })
            })
            .collect();
        let done: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        ended.store(true, Ordering::SeqCst);
        assert!(done.iter().all(Result::is_ok));
    });
    assert!(hits.load(Ordering::SeqCst) > 100 && kept.leases.counts().revoked > 0);
}

/// A way to a server that can be stopped: what has been sent stays on the way, and nothing tells either end.
struct Way {
    address: Address,
    state: Arc<WayState>,
}

#[derive(Default)]
struct WayState {
    stopped: AtomicBool,
    ended: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Way {
    fn to(server: &Server) -> Way {
        let Address::Tcp(target) = server.addresses()[0].clone() else { panic!("no TCP address") };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let state = Arc::new(WayState::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if shared.ended.load(Ordering::SeqCst) {
                    return;
                }
                let (client, server) = (client.unwrap(), TcpStream::connect(&target).unwrap());
                let ends = [(&client, &server), (&server, &client)];
                for (from, to) in ends.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    let shared = shared.clone();
                    std::thread::spawn(move || pass(from, to, &shared));
                }
                shared.streams.lock().unwrap().extend([client, server]);
            }
        });
        Way { address, state }
    }

    fn stop(&self, stopped: bool) {
        self.state.stopped.store(stopped, Ordering::SeqCst);
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        let Address::Tcp(address) = &self.address else { return };
        drop(TcpStream::connect(address));
        for stream in self.state.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, state: &WayState) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        while state.stopped.load(Ordering::SeqCst) && !state.ended.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_holder_out_of_reach_delays_a_change_by_a_lease_and_reads_nothing_stale_afterwards() {
    let length = Duration::from_secs(2);
    let kept = store(length);
    let server = on_tcp(&kept);
    let way = Way::to(&server);
    let (cut, other) = (client(&way.address), client(&server.addresses()[0]));
    let o = object(1);
    set(&other, &o, 1);
    // The lease may be over by itself, if the machine pauses.
    let begun = Instant::now();
    let changed_at = loop {
        assert!(begun.elapsed() < PATIENCE, "the holder never held it");
        way.stop(false);
        assert_eq!(warm(&cut, &o), 1);
        way.stop(true);
        let hits = cut.counts().hits;
        let read = cut.apply(&o, Transaction::new().read(ReadOp::Key { key: key() }));
        if cut.counts().hits == hits {
            way.stop(false);
            block_on(read).unwrap();
            continue;
        }
        assert_eq!(value(block_on(read).unwrap()), 1, "it goes on with what it holds");
        let changing = Instant::now();
        set(&other, &o, 2);
        // It waited for the holder, and not much longer than for the rest of the lease.
        assert!(changing.elapsed() < PATIENCE);
        break Instant::now();
    };
    assert_eq!(get(&other, &o), 2);
    // From here on the holder has nothing to answer from: it asks, and hears nothing.
    let hits = cut.counts().hits;
    let read = cut.apply(&o, Transaction::new().read(ReadOp::Key { key: key() }));
    assert_eq!(cut.counts().hits, hits, "{:?} after the change", changed_at.elapsed());
    assert!(kept.leases.counts().lapsed >= 1);
    way.stop(false);
    assert_eq!(value(block_on(read).unwrap()), 2);
    // It can lease again.
    assert_eq!(warm(&cut, &o), 2);
    set(&other, &o, 3);
    assert_eq!(get(&cut, &o), 3);
}

/// A message of a client that plays by rules of its own.
struct Raw {
    kind: MessageKind,
    body: Vec<u8>,
}

impl Request for Raw {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        let body = Bytes::copy_from_slice(&self.body);
        assert!(control::put_body(outbox, self.kind, id, &body).is_ok());
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

fn ask(link: &Arc<Link>, kind: MessageKind, body: Vec<u8>) -> Frame {
    let mut call = Call::start(link.clone(), Raw { kind, body });
    block_on(poll_fn(|context| call.poll_frame(context.waker()))).unwrap()
}

#[test]
fn a_holder_that_renews_and_never_gives_back_delays_a_change_by_a_lease() {
    let kept = store(Duration::from_secs(2));
    let server = on_tcp(&kept);
    let address = server.addresses()[0].clone();
    let (other, o) = (client(&address), object(1));
    let link = Link::new(address, (), Arc::new(LinkOptions::default()), Arc::new(Host::new(true)));
    // A session may be over before anything is leased in it, if the machine pauses.
    let begun = Instant::now();
    let (session, events) = loop {
        let open = Raw { kind: lease::OPEN, body: Vec::new() };
        let (opened, events) = block_on(Subscription::start(link.clone(), open)).unwrap();
        assert_eq!(opened.kind, lease::OPENED);
        let session = opened.body[..8].to_vec();
        let leasing = [&session[..], &1_u64.to_le_bytes(), o.as_bytes()].concat();
        let leased = ask(&link, lease::LEASE, leasing);
        assert_eq!(leased.kind, lease::LEASED);
        if leased.body[..8] == 1_u64.to_le_bytes() {
            break (session, events);
        }
        assert!(begun.elapsed() < PATIENCE, "it never got a lease");
    };
    let renew = || {
        let renewed = ask(&link, lease::RENEW, session.clone());
        assert_eq!(renewed.kind, lease::RENEWED);
        renewed.body[0]
    };
    // Once it was asked, renewing does not help it.
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                renew();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        set(&other, &o, 1);
        ended.store(true, Ordering::SeqCst);
    });
    assert_eq!((renew(), kept.leases.counts().lapsed), (2, 1));
    drop(events);
}

/// Opens a session that answers nothing, and leases an object. Returns what keeps the session open; `None` if there is none.
fn lease_for_good(address: &Address, object: &ObjectId) -> Option<impl Sized + use<>> {
    let link = Link::new(address.clone(), (), Arc::new(LinkOptions::default()), Arc::new(Host::new(true)));
    let open = Raw { kind: lease::OPEN, body: Vec::new() };
    let (opened, events) = block_on(Subscription::start(link.clone(), open)).unwrap();
    if opened.kind != lease::OPENED {
        assert_eq!(control::get_failure(&opened).unwrap().kind, ErrorKind::Busy);
        return None;
    }
    let leasing = [&opened.body[..8], &1_u64.to_le_bytes(), object.as_bytes()].concat();
    assert_eq!(ask(&link, lease::LEASE, leasing).kind, lease::LEASED);
    Some((events, link))
}

#[test]
fn the_greatest_numbers_of_leases_are_numbers_like_others() {
    let kept = store(LONG);
    let server = on_tcp(&kept);
    let address = server.addresses()[0].clone();
    let link = Link::new(address, (), Arc::new(LinkOptions::default()), Arc::new(Host::new(true)));
    let open = Raw { kind: lease::OPEN, body: Vec::new() };
    let (opened, events) = block_on(Subscription::start(link.clone(), open)).unwrap();
    assert_eq!(opened.kind, lease::OPENED);
    let o = object(1);
    let read = |number: u64| {
        let (reads, objects) = (0_u16.to_le_bytes(), 1_u16.to_le_bytes());
        let name = [&[o.as_bytes().len() as u8][..], o.as_bytes()].concat();
        let body = [&opened.body[..8], &number.to_le_bytes(), &reads, &objects, &name].concat();
        ask(&link, lease::READ, body).kind
    };
    assert_eq!(read(u64::MAX - 1), lease::ANSWERED);
    // One more would be behind it.
    assert_eq!(read(u64::MAX), MessageKind::ERROR);
    drop(events);
}

#[test]
fn a_client_that_never_gives_back_costs_two_waits_however_often_it_comes_back() {
    // A session that lapses because the machine stands still, or a suspension that ends meanwhile, allows it a further one.
    for _ in 0..5 {
        let length = Duration::from_secs(4);
        let kept = store(length);
        let server = on_tcp(&kept);
        let address = server.addresses()[0].clone();
        let (honest, other, o) = (client(&address), remote(&server), object(1));
        let (begun, mut leased) = (Instant::now(), 0);
        for value in 1..=20 {
            let greedy = lease_for_good(&address, &o);
            leased += u64::from(greedy.is_some());
            set(&other, &o, value);
            // Whoever comes from the same machine loses no more than what it remembers.
            assert_eq!((get(&honest, &o), get(&honest, &o)), (value, value));
        }
        if begun.elapsed() < 3 * length {
            let counts = kept.leases.counts();
            assert!(leased <= 2 && counts.late >= 1 && counts.suspended >= 2, "{leased}, {counts:?}");
            return;
        }
    }
    panic!("the machine stood still each time");
}

#[test]
fn changes_by_clients_that_know_nothing_of_leases_wait_for_them_too() {
    let kept = store(LONG);
    let server = on_tcp(&kept);
    let (one, remote) = (client(&server.addresses()[0]), remote(&server));
    for number in 0..10 {
        warm(&one, &object(number));
    }
    assert!(kept.leases.counts().leases >= 10);
    for number in 0..10 {
        set(&remote, &object(number), 9);
        assert_eq!(get(&one, &object(number)), 9);
    }
    let counts = kept.leases.counts();
    assert!(counts.revoked >= 10 && counts.lapsed == 0, "{counts:?}");
}

#[test]
fn a_client_that_ends_its_sessions_delays_nobody() {
    let kept = store(LONG);
    let server = on_tcp(&kept);
    let (one, remote) = (client(&server.addresses()[0]), remote(&server));
    for number in 0..10 {
        warm(&one, &object(number));
    }
    let asked = kept.leases.counts().revoked;
    block_on(async {
        one.end().await;
        // It goes on without.
        assert_eq!((get_later(&one, 3).await, get_later(&one, 3).await), (0, 0));
        assert_eq!(one.counts().sessions, 1);
    });
    let counts = kept.leases.counts();
    assert_eq!((counts.sessions, counts.leases, counts.lapsed), (0, 0, 0));
    for number in 0..10 {
        set(&remote, &object(number), 9);
    }
    assert_eq!(kept.leases.counts().revoked, asked);
}

async fn get_later(store: &LeasedStore, number: u64) -> u64 {
    let read = Transaction::new().read(ReadOp::Key { key: key() });
    value(store.apply(&object(number), read).await.unwrap())
}

#[test]
fn a_server_that_was_started_again_holds_changes_until_leases_from_before_are_over() {
    let folder = tempfile::tempdir().unwrap();
    let options = || nacre_logstore::Options { create: true, ..nacre_logstore::Options::default() };
    let open = || LogStore::open(&folder.path().join("store"), options()).unwrap();
    let mark: ObjectId = "nacre/leases".parse().unwrap();
    let is_marked = |store: &LogStore| {
        let Outcome::Done(done) =
            block_on(store.apply(&mark, Transaction::new().read(ReadOp::Stat))).unwrap()
        else {
            panic!("a read was refused")
        };
        done.existed
    };
    let length = Duration::from_secs(1);
    let socket = Address::Unix(folder.path().join("socket"));
    let o = object(1);
    {
        let kept = Leasing { store: open(), leases: Leases::new(length) };
        kept.leases.recover(mark.clone(), is_marked(&kept.store));
        let server = serve_at(&socket, &kept);
        let begun = Instant::now();
        set(&client(&socket), &o, 1);
        assert!(begun.elapsed() < PATIENCE);
        assert!(!is_marked(&kept.store), "nobody has a lease yet");
        let holder = client(&socket);
        warm(&holder, &o);
        assert!(is_marked(&kept.store));
        drop(holder);
        server.stop();
        kept.store.close().unwrap();
    }
    let kept = Leasing { store: open(), leases: Leases::new(length) };
    let begun = Instant::now();
    kept.leases.recover(mark.clone(), is_marked(&kept.store));
    let server = serve_at(&socket, &kept);
    let client = client(&socket);
    // What cannot be leased does not wait, and neither do reads.
    set(&client, &"other".parse().unwrap(), 5);
    assert_eq!(get(&client, &o), 1);
    set(&client, &o, 2);
    assert!(begun.elapsed() >= length, "changed after {:?}", begun.elapsed());
    assert_eq!(get(&client, &o), 2);
    server.stop();
}

#[test]
fn a_client_comes_back_to_a_server_that_was_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = Address::Unix(folder.path().join("socket"));
    let kept = store(LONG);
    let server = serve_at(&socket, &kept);
    let (one, o) = (client(&socket), object(1));
    set(&one, &o, 1);
    assert_eq!(warm(&one, &o), 1);
    server.stop();
    // The same objects, and nothing known of leases: nobody else can have changed them meanwhile but this.
    let again = Leasing { store: kept.store.clone(), leases: Leases::new(LONG) };
    set(&again.store, &o, 2);
    let server = serve_at(&socket, &again);
    let begun = Instant::now();
    // The client learns of the break on its own.
    while get_if_reached(&one, &o) != Some(2) {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(warm(&one, &o), 2);
    assert!(one.counts().sessions >= 2);
    server.stop();
}

fn get_if_reached(store: &dyn ObjectStore, object: &ObjectId) -> Option<u64> {
    block_on(store.apply(object, Transaction::new().read(ReadOp::Key { key: key() }))).ok().map(value)
}

#[test]
fn a_server_that_knows_no_leases_is_asked_each_time() {
    let server =
        serve_store(Arc::new(LogStore::memory(nacre_logstore::Options::default())), Default::default(), None);
    let (one, two) = (client(&server.addresses()[0]), remote(&server));
    let o = object(1);
    for round in 1..50 {
        set(&two, &o, round);
        assert_eq!((get(&one, &o), get(&one, &o)), (round, round));
    }
    assert_eq!((one.counts().hits, one.counts().sessions), (0, 0));
}

#[test]
fn handles_on_one_connection_have_sessions_of_their_own() {
    let kept = store(LONG);
    let server = on_tcp(&kept);
    let options = RemoteOptions { own_thread: true, ..RemoteOptions::default() };
    let remote = RemoteStore::new(server.addresses(), options).unwrap();
    let stores: Vec<LeasedStore> = (0..3).map(|_| LeasedStore::new(remote.clone())).collect();
    let o = object(1);
    for round in 1..20 {
        set(&stores[round as usize % 3], &o, round);
        let found: HashMap<usize, u64> =
            stores.iter().enumerate().map(|(index, store)| (index, warm(store, &o))).collect();
        assert!(found.values().all(|found| *found == round), "{found:?}");
    }
    assert_eq!(kept.leases.counts().sessions, 3);
}
