//! Watch and notify through servers: the suite, breaks and restarts, and peers that do not take their events.

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use nacre_logstore::LogStore;
use nacre_object::testkit::conformance::{self, Effort};
use nacre_object::testkit::{block_on, block_on_for};
use nacre_object::watch::{Cause, Event, Gap, Watch, WatchOptions};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Transaction, WriteOp as Change};
use nacre_remote::join::{self, Proof};
use nacre_remote::watch::{NOTED, TAKEN, WATCH, WATCHED};
use nacre_remote::{Membership, RemoteOptions, RemoteStore, StoreService, WatchService};
use nacre_rpc::control::{self, Beginning, SessionKey};
use nacre_rpc::{Address, MessageKind, Outbox, ServeOptions, Server, ServerLimits, Services};
use support::*;

/// The time after which an event counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

fn memory() -> LogStore {
    LogStore::memory(nacre_logstore::Options::default())
}

fn services(store: &LogStore) -> Services {
    let store = Arc::new(store.clone());
    let membership = Membership::alone([7; 16]);
    let objects = StoreService::new(store.clone(), membership.clone(), Arc::default());
    Services::new().with(objects).with(WatchService::new(store, membership))
}

fn serve_at(address: Address, store: &LogStore, limits: ServerLimits) -> Server {
    let services = services(store);
    let (listen, threads) = (vec![address], 2);
    Server::start(ServeOptions { listen, open: true, limits, threads, services, ..Default::default() })
        .unwrap()
}

fn on_tcp(store: &LogStore) -> Server {
    serve_at("127.0.0.1:0".parse().unwrap(), store, ServerLimits::default())
}

fn object(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn watch(store: &dyn ObjectStore, name: &str) -> Watch {
    block_on(store.watch(&object(name), WatchOptions::default())).unwrap()
}

/// Changes an object, and returns its new version.
fn change(store: &dyn ObjectStore, name: &str) -> u64 {
    let set = Change::SetKey { key: "key".parse().unwrap(), value: "value".into() };
    match block_on(store.apply(&object(name), Transaction::new().change(set))).unwrap() {
        Outcome::Done(done) => done.version,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn next(watch: &mut Watch) -> Event {
    let event = block_on_for(PATIENCE, |context| watch.poll_next(context));
    event.expect("an event does not come").expect("the watch has ended").unwrap()
}

/// Follows a watch until it knows of a version. Returns the gaps on the way.
#[track_caller]
fn follow(watch: &mut Watch, until: u64) -> Vec<Gap> {
    let mut gaps = Vec::new();
    loop {
        let version = match next(watch) {
            Event::Changed { version } => version,
            Event::Gap(gap) => {
                gaps.push(gap);
                gap.version
            }
            Event::Notified(_) => continue,
        };
        assert!(version <= until, "version {version} was told, and the object is at {until}");
        if version == until {
            return gaps;
        }
    }
}

#[test]
fn a_store_behind_a_server_is_watched_like_one_that_is_not() {
    let store = memory();
    let server = on_tcp(&store);
    let clients = [(); 3].map(|()| remote(&server));
    let connections: [&dyn ObjectStore; 4] = [&clients[0], &clients[1], &clients[2], &store];
    conformance::run_watching(&connections, "tcp", Effort::default());
    server.stop();
}

#[test]
fn every_member_of_a_store_announces_its_own_objects() {
    let folder = tempfile::tempdir().unwrap();
    let addresses: Vec<Address> =
        ["a", "b", "c"].iter().map(|name| Address::Unix(folder.path().join(name))).collect();
    let members = nacre_remote::Members::new(1, addresses.iter().map(Address::to_string)).unwrap();
    let serve = |address: &Address| {
        let membership = Membership::new(members.clone(), &address.to_string()).unwrap();
        let store = Arc::new(memory());
        let objects = StoreService::new(store.clone(), membership.clone(), Arc::default());
        let services = Services::new().with(objects).with(WatchService::new(store, membership));
        Server::start(ServeOptions { listen: vec![address.clone()], services, ..Default::default() }).unwrap()
    };
    let servers: Vec<Server> = addresses.iter().map(serve).collect();
    let options = RemoteOptions { connections: 2, ..patient() };
    let clients = [(); 2].map(|()| RemoteStore::new(&addresses, options.clone()).unwrap());
    let effort = Effort { increments: 20, ..Effort::default() };
    conformance::run_watching(&[&clients[0], &clients[1]], "members", effort);
    let mut watches: Vec<Watch> =
        (0..20).map(|index| watch(&clients[0], &format!("object-{index}"))).collect();
    for (index, watch) in watches.iter_mut().enumerate() {
        let version = change(&clients[1], &format!("object-{index}"));
        assert!(matches!(next(watch), Event::Changed { version: reported } if reported == version));
    }
    servers.into_iter().for_each(Server::stop);
}

#[test]
fn a_watch_outlives_its_connection_and_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("socket"));
    let store = memory();
    let mut server = serve_at(address.clone(), &store, ServerLimits::default());
    let client = remote(&server);
    let mut watches: Vec<Watch> = (0..5).map(|_| watch(&client, "object")).collect();
    for round in 1..=3 {
        let version = change(&client, "object");
        for watch in &mut watches {
            assert!(follow(watch, version).is_empty());
        }
        server.stop();
        // Nobody is told of these; each watcher finds out that it was not, and what the version is.
        let version = (0..round).fold(0, |_, _| change(&store, "object"));
        server = serve_at(address.clone(), &store, ServerLimits::default());
        for watch in &mut watches {
            let gaps = follow(watch, version);
            assert_eq!(gaps, [Gap::unknown(version, Cause::Broken)], "round {round}");
        }
    }
    // Those who have come back are notified as before.
    let notified = std::thread::scope(|scope| {
        let notified = scope.spawn(|| block_on(store.notify(&object("object"), "hello".into(), PATIENCE)));
        for watch in &mut watches {
            match next(watch) {
                Event::Notified(notification) => notification.acknowledge("hello").unwrap(),
                other => panic!("{other:?}"),
            }
        }
        notified.join().unwrap().unwrap()
    });
    assert_eq!((notified.acknowledged.len(), notified.missed.len()), (5, 0));
    server.stop();
}

#[test]
fn watches_that_come_and_go_leave_nothing_behind() {
    let store = memory();
    let server = on_tcp(&store);
    let client = remote(&server);
    for _ in 0..50 {
        let watches: Vec<Watch> =
            (0..40).map(|index| watch(&client, &format!("object-{}", index % 7))).collect();
        change(&client, "object-3");
        drop(watches);
    }
    // A notification waits for whoever still counts as a watcher.
    eventually("nobody watches any more", || {
        (0..7).all(|index| {
            let object = object(&format!("object-{index}"));
            let notified = block_on(store.notify(&object, Bytes::new(), Duration::from_millis(1))).unwrap();
            notified.missed.is_empty()
        })
    });
    let held = server.stats().held_bytes.get();
    assert!(held < 1 << 20, "{held} bytes are still held for watches");
    server.stop();
}

#[test]
fn a_watch_that_is_not_read_costs_others_of_its_connection_nothing() {
    let store = memory();
    let server = on_tcp(&store);
    let client = remote(&server);
    let (mut idle, mut eager) = (watch(&client, "object"), watch(&client, "object"));
    let payload = Bytes::from(vec![1; 60 << 10]);
    // Many times what the connection may have under way.
    let mut last = 0;
    for _ in 0..100 {
        let sent = store.notify(&object("object"), payload.clone(), PATIENCE);
        last = change(&store, "object");
        assert!(
            matches!(next(&mut eager), Event::Notified(notification) if *notification.payload() == payload)
        );
        assert!(matches!(next(&mut eager), Event::Changed { version } if version == last));
        drop(sent);
    }
    let gaps = follow(&mut idle, last);
    assert!(!gaps.is_empty(), "100 notifications of 60 KiB found room in a queue of 1 MiB");
    assert!(gaps.iter().all(|gap| gap.cause == Cause::Slow), "{gaps:?}");
    server.stop();
}

#[test]
fn events_that_the_server_has_to_drop_are_a_gap() {
    let store = memory();
    // Room for a few events.
    let limits = ServerLimits { mailbox_bytes_max: 300, ..ServerLimits::default() };
    let server = serve_at("127.0.0.1:0".parse().unwrap(), &store, limits);
    let client = remote(&server);
    let mut watches: Vec<Watch> = (0..20).map(|_| watch(&client, "object")).collect();
    let last = (0..2000).fold(0, |_, _| change(&store, "object"));
    let mut gaps = 0;
    for watch in &mut watches {
        gaps += follow(watch, last).len();
    }
    assert!(gaps > 0, "with so little room nothing was dropped, so the test says nothing");
    server.stop();
}

/// Opens a raw connection that has begun and joined.
fn joined(server: &Server) -> TcpStream {
    let mut stream = raw(server);
    stream.write_all(&nacre_rpc::handshake::hello(3, 0)).unwrap();
    let mut hello = [0; 16];
    std::io::Read::read_exact(&mut stream, &mut hello).unwrap();
    let beginning = Beginning { features: 0, kept: false, session: SessionKey::NONE };
    stream
        .write_all(&bytes_of(|out| control::put_beginning(out, MessageKind::BEGIN, 1, &beginning)))
        .unwrap();
    assert_eq!(receive(&mut stream).unwrap().kind, MessageKind::BEGUN);
    let membership = Membership::alone([7; 16]);
    let proof = Proof::of(membership.members());
    stream.write_all(&bytes_of(|out| join::put_join(out, 1, Some(&proof)))).unwrap();
    receive(&mut stream).unwrap();
    stream
}

fn watch_request(id: u64, name: &str) -> bytes::BytesMut {
    bytes_of(|out: &mut Outbox| {
        let open = out.begin(WATCH, id);
        out.u64(id);
        out.slice(name.as_bytes());
        out.end(open).unwrap();
    })
}

#[test]
fn a_client_that_never_reads_is_no_burden() {
    let store = memory();
    let server = on_tcp(&store);
    let mut deaf = joined(&server);
    for id in 1..=500 {
        deaf.write_all(&watch_request(id, "object")).unwrap();
    }
    let client = remote(&server);
    let mut eager = watch(&client, "object");
    // Once all of the deaf ones watch, so that they miss every notification.
    eventually("all of them watch", || {
        let notified =
            block_on(store.notify(&object("object"), Bytes::new(), Duration::from_millis(1))).unwrap();
        notified.missed.len() + notified.acknowledged.len() == 501
    });
    let payload = Bytes::from(vec![1; 60 << 10]);
    for _ in 0..200 {
        let sent = store.notify(&object("object"), payload.clone(), Duration::from_secs(10));
        let version = change(&store, "object");
        loop {
            match next(&mut eager) {
                Event::Notified(_) => {}
                Event::Changed { version: reported } => break assert_eq!(reported, version),
                Event::Gap(gap) => panic!("{gap:?}"),
            }
        }
        drop(sent);
    }
    let held = server.stats().held_bytes.get();
    assert!(held < 8 << 20, "{held} bytes are held for a client that does not read");
    drop(deaf);
    server.stop();
}

#[test]
fn a_connection_has_a_bounded_number_of_watches() {
    let store = memory();
    let server = on_tcp(&store);
    let mut greedy = joined(&server);
    let most = 8192;
    let requests = (1..=most + 1).flat_map(|id| watch_request(id, "object"));
    let requests: Vec<u8> = requests.collect();
    let mut writer = greedy.try_clone().unwrap();
    let writer = std::thread::spawn(move || writer.write_all(&requests).unwrap());
    for id in 1..=most {
        let frame = receive(&mut greedy).unwrap();
        assert_eq!((frame.id, frame.kind), (id, WATCHED));
    }
    let refused = receive(&mut greedy).unwrap();
    assert_eq!(control::get_failure(&refused).unwrap().kind, ErrorKind::Busy);
    writer.join().unwrap();
    // Nonsense is answered, and changes nothing.
    let taken = |line: u64, position: u64| {
        bytes_of(|out: &mut Outbox| {
            let open = out.begin(TAKEN, 99_999);
            out.u64(line);
            out.u64(position);
            out.end(open).unwrap();
        })
    };
    greedy.write_all(&taken(1, u64::MAX)).unwrap();
    loop {
        let frame = receive(&mut greedy).unwrap();
        if frame.id == 99_999 {
            assert_eq!(frame.kind, NOTED);
            break;
        }
    }
    // One that is given up makes room.
    greedy.write_all(&bytes_of(|out| control::put_cancel(out, 6, 1))).unwrap();
    greedy.write_all(&watch_request(most + 2, "object")).unwrap();
    loop {
        let frame = receive(&mut greedy).unwrap();
        if frame.id == most + 2 {
            assert_eq!(frame.kind, WATCHED);
            break;
        }
    }
    server.stop();
}

#[test]
fn a_server_without_the_service_says_so() {
    let server = serve();
    let client = remote(&server);
    let error = block_on(client.watch(&object("object"), WatchOptions::default())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains("does not allow objects to be watched"), "{error}");
    let error = block_on(client.notify(&object("object"), Bytes::new(), PATIENCE)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
}

#[test]
fn a_watch_whose_first_request_fails_is_not_begun() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = Address::Unix(Path::join(folder.path(), "socket"));
    let client = RemoteStore::new(&[nobody], patient()).unwrap();
    let error = block_on(client.watch(&object("object"), WatchOptions::default())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    // A watch that has not been taken yet has nothing to tell.
    let store = memory();
    let mut idle = watch(&store, "object");
    assert!(matches!(idle.try_next(), Poll::Pending));
}
