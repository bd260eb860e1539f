//! The remote store when connections break, servers die and come back, and several servers share the objects.

mod support;

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::linear::Recorder;
use nacre_object::testkit::{MemoryStore, block_on};
use nacre_object::*;
use nacre_remote::{Membership, RemoteOptions, RemoteStore, StoreService};
use nacre_rpc::handshake::hello;
use nacre_rpc::{Address, ServeOptions, Server, ServerLimits, Services};
use support::*;

fn look() -> Transaction {
    Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, 100))
}

fn put(bytes: &'static str) -> Transaction {
    Transaction::new().write(Fork::DEFAULT, 0, bytes)
}

fn data(outcome: Outcome) -> bytes::Bytes {
    match outcome {
        Outcome::Done(Done { answers, .. }) => match answers.into_iter().next() {
            Some(Answer::Range(range)) => range.data,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Starts a server whose connections are handled by a function, which is given their running number.
fn scripted(handle: impl Fn(usize, TcpStream) + Send + 'static) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut theirs = [0; 16];
            if stream.read_exact(&mut theirs).is_ok() {
                stream.write_all(&hello(3, 0)).unwrap();
                if let_join(&mut stream).is_ok() {
                    handle(index, stream);
                }
            }
        }
    });
    address
}

/// Answers a request with an empty outcome.
fn answer(stream: &mut TcpStream) {
    let frame = receive(stream).unwrap();
    let outcome = Outcome::Done(Done { version: 5, existed: true, answers: Vec::new() });
    let reply = bytes_of(|out| assert!(nacre_remote::reply::put_outcome(out, frame.id, &outcome).is_ok()));
    stream.write_all(&reply).unwrap();
}

fn store_at(address: Address) -> RemoteStore {
    RemoteStore::new(&[address], patient()).unwrap()
}

#[test]
fn a_write_whose_reply_is_lost_is_unknown_and_not_repeated() {
    let requests = Arc::new(AtomicU64::new(0));
    let counted = requests.clone();
    let address = scripted(move |_, mut stream| {
        if receive(&mut stream).is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let store = store_at(address);
    let error = block_on(store.apply(&"o".parse().unwrap(), put("x"))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown);
    assert!(error.message.contains("may or may not have taken effect"), "{error}");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[test]
fn a_read_whose_reply_is_lost_is_repeated() {
    let address = scripted(|index, mut stream| {
        if index < 2 {
            receive(&mut stream).unwrap();
        } else {
            answer(&mut stream);
        }
    });
    let outcome =
        block_on(store_at(address).apply(&"o".parse().unwrap(), Transaction::new().read(ReadOp::Stat)));
    assert!(matches!(outcome.unwrap(), Outcome::Done(Done { version: 5, .. })));
}

#[test]
fn a_read_is_not_repeated_for_ever() {
    let address = scripted(|_, mut stream| drop(receive(&mut stream)));
    let error = block_on(store_at(address).apply(&"o".parse().unwrap(), look())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
}

#[test]
fn half_a_reply_is_no_reply() {
    let address = scripted(|_, mut stream| {
        let frame = receive(&mut stream).unwrap();
        let outcome = Outcome::Done(Done { version: 5, existed: true, answers: Vec::new() });
        let reply =
            bytes_of(|out| assert!(nacre_remote::reply::put_outcome(out, frame.id, &outcome).is_ok()));
        stream.write_all(&reply[..reply.len() - 1]).unwrap();
    });
    let error = block_on(store_at(address).apply(&"o".parse().unwrap(), put("x"))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown);
}

#[test]
fn unexpected_and_malformed_replies_do_no_harm() {
    let address = scripted(|index, mut stream| {
        let frame = receive(&mut stream).unwrap();
        let id = if index == 0 { frame.id + 1 } else { frame.id };
        // The reply to a listing is not one to a transaction.
        let reply = bytes_of(|out| nacre_remote::reply::put_listed(out, id, &[]));
        stream.write_all(&reply).unwrap();
        let _ = stream.read(&mut [0; 1]);
    });
    let store = store_at(address);
    for part in ["belongs to no request", "sent an invalid reply"] {
        let error = block_on(store.apply(&"o".parse().unwrap(), put("x"))).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unknown);
        assert!(error.message.contains(part), "{error}");
    }
}

#[test]
fn a_server_that_has_fallen_silent_is_given_up() {
    let address = scripted(|_, mut stream| {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    let options = RemoteOptions { silence_timeout: Duration::from_millis(200), ..patient() };
    let store = RemoteStore::new(&[address], options).unwrap();
    let error = block_on(store.apply(&"o".parse().unwrap(), put("x"))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown);
    assert!(error.message.contains("stopped answering"), "{error}");
}

#[test]
fn nobody_listening_is_unavailable() {
    // A port that the system gives to nobody who does not ask for it.
    let address = "127.0.0.1:1";
    let store = store_at(address.parse().unwrap());
    for _ in 0..3 {
        let error = block_on(store.apply(&"o".parse().unwrap(), put("x"))).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.message.contains(address), "{error}");
    }
    assert_eq!(block_on(store.connect()).unwrap_err().kind, ErrorKind::Unavailable);
}

fn serve_on(address: &Address, store: Arc<dyn ObjectStore>) -> Server {
    // The store keeps its identity over restarts.
    let service = StoreService::new(store, Membership::alone([1; 16]), Arc::default());
    let services = Services::new().with(service);
    Server::start(ServeOptions { listen: vec![address.clone()], services, ..Default::default() }).unwrap()
}

#[test]
fn a_server_that_comes_back_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("socket"));
    let objects: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let store = store_at(address.clone());
    let object: ObjectId = "o".parse().unwrap();
    write(&*objects, "o", "kept");
    for _ in 0..3 {
        let server = serve_on(&address, objects.clone());
        // The pause after a failed attempt may not be over.
        eventually("the client comes back", || block_on(store.apply(&object, look())).is_ok());
        write(&store, "p", "x");
        server.stop();
        // The client was told that the server is shutting down, so it knows that nothing was sent.
        let error = block_on(store.apply(&object, put("late"))).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    }
    assert_eq!(data(block_on(objects.apply(&object, look())).unwrap()), "kept");
}

/// A store that applies transactions on demand, in any order.
#[derive(Default)]
struct Manual {
    inner: MemoryStore,
    held: Arc<Mutex<HashMap<ObjectId, tokio::sync::oneshot::Sender<()>>>>,
}

impl ObjectStore for Manual {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let reply = self.inner.apply(object, transaction);
        let (send, receive) = tokio::sync::oneshot::channel();
        self.held.lock().unwrap().insert(object.clone(), send);
        Reply::pending(async move {
            let _ = receive.await;
            reply.await
        })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }
}

#[test]
fn replies_come_in_the_order_in_which_they_are_ready() {
    let manual = Arc::new(Manual::default());
    let held = manual.held.clone();
    let server = serve_store(manual, ServerLimits::default(), None);
    let store = remote(&server);
    let objects: Vec<ObjectId> = (0..100).map(|n| format!("o{n}").parse().unwrap()).collect();
    let replies: Vec<_> = objects.iter().map(|object| store.apply(object, put("x"))).collect();
    eventually("all are in flight", || held.lock().unwrap().len() == 100);
    eventually("and counted", || server.stats().in_flight.get() == 100);
    // The last ones first; each reply arrives while earlier requests still wait.
    for (object, reply) in objects.iter().zip(replies).rev() {
        held.lock().unwrap().remove(object).unwrap().send(()).unwrap();
        assert!(matches!(block_on(reply).unwrap(), Outcome::Done(_)));
    }
    eventually("none is in flight", || server.stats().in_flight.get() == 0);
}

#[test]
fn a_stopping_server_finishes_what_it_accepted() {
    let manual = Arc::new(Manual::default());
    let held = manual.held.clone();
    let server = serve_store(manual, ServerLimits::default(), None);
    let address = server.addresses()[0].clone();
    let store = remote(&server);
    let object: ObjectId = "o".parse().unwrap();
    let reply = store.apply(&object, put("accepted"));
    eventually("it was accepted", || held.lock().unwrap().len() == 1);
    let stopping = std::thread::spawn(move || server.stop());
    // No new client is accepted, and requests on old connections are refused without harm.
    eventually("it accepts nothing more", || match &address {
        Address::Tcp(address) => TcpStream::connect(address).is_err(),
        Address::Unix(_) => unreachable!("a TCP address"),
    });
    let error = block_on(store.apply(&"p".parse().unwrap(), put("late"))).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Closed | ErrorKind::Unavailable), "{error:?}");
    held.lock().unwrap().remove(&object).unwrap().send(()).unwrap();
    assert!(matches!(block_on(reply).unwrap(), Outcome::Done(_)));
    stopping.join().unwrap();
}

/// A store that its server has closed.
struct Stopped;

impl ObjectStore for Stopped {
    fn apply(&self, _object: &ObjectId, _transaction: Transaction) -> Reply<Outcome> {
        Reply::ready(Err(StoreError::new(ErrorKind::Closed, "the store is closed")))
    }

    fn list(&self, _after: Option<&ObjectId>, _limit: usize) -> Reply<Vec<ObjectId>> {
        Reply::ready(Err(StoreError::new(ErrorKind::Closed, "the store is closed")))
    }
}

#[test]
fn a_server_that_refuses_because_it_stops_may_come_back() {
    let server = serve_store(Arc::new(Stopped), ServerLimits::default(), None);
    let store = remote(&server);
    let object: ObjectId = "o".parse().unwrap();
    for transaction in [look(), put("x")] {
        let error = block_on(store.apply(&object, transaction)).unwrap_err();
        assert!(error.is_retryable() && error.message.contains("the store is closed"), "{error:?}");
    }
    assert!(block_on(store.list(None, 10)).unwrap_err().is_retryable());
}

#[test]
fn what_is_dropped_unpolled_is_still_sent_and_harms_nobody() {
    let server = serve();
    let store = remote(&server);
    for n in 0..200 {
        let object = format!("o{n}").parse().unwrap();
        drop(store.apply(&object, put("x")));
    }
    eventually("all were applied", || block_on(store.list(None, 1000)).unwrap().len() == 200);
}

#[test]
fn a_store_outlives_the_runtimes_that_use_it() {
    let server = serve();
    let store = remote(&server);
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            store.apply(&"o".parse().unwrap(), put("x")).await.unwrap();
        });
    }
    assert_eq!(data(block_on(store.apply(&"o".parse().unwrap(), look())).unwrap()), "x");
}

#[test]
fn a_dead_server_takes_only_its_own_objects_along() {
    let folder = tempfile::tempdir().unwrap();
    let servers = serve_together(folder.path(), &["a", "b", "c"], 1);
    let mut servers: Vec<Option<Server>> = servers.into_iter().map(Some).collect();
    let addresses: Vec<Address> =
        servers.iter().flatten().map(|server| server.addresses()[0].clone()).collect();
    let store = RemoteStore::new(&addresses, patient()).unwrap();
    let objects: Vec<ObjectId> = (0..60).map(|n| format!("object-{n:02}").parse().unwrap()).collect();
    for object in &objects {
        write(&store, std::str::from_utf8(object.as_bytes()).unwrap(), "x");
    }
    // Every server has its share, and lists are merged in order, page by page.
    for address in &addresses {
        let kept = objects.iter().filter(|object| block_on(store.server_of(object)).unwrap() == *address);
        assert!(kept.count() > 5);
    }
    let mut listed = Vec::new();
    loop {
        let page = block_on(store.list(listed.last(), 7)).unwrap();
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    assert_eq!(listed, objects);

    servers[1].take().unwrap().stop();
    let (mut alive, mut dead) = (0, 0);
    for object in &objects {
        match block_on(store.apply(object, look())) {
            Ok(outcome) => {
                assert_eq!(data(outcome), "x");
                assert_ne!(block_on(store.server_of(object)).unwrap(), addresses[1]);
                alive += 1;
            }
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Unavailable);
                assert_eq!(block_on(store.server_of(object)).unwrap(), addresses[1]);
                dead += 1;
            }
        }
    }
    assert!(alive > 20 && dead > 5, "{alive} {dead}");
    let error = block_on(store.list(None, 10)).unwrap_err();
    assert!(error.message.contains(&addresses[1].to_string()), "{error}");
    assert!(block_on(store.connect()).is_ok());
}

#[test]
fn histories_stay_linearizable_while_connections_are_cut() {
    let server = serve();
    let Address::Tcp(upstream) = server.addresses()[0].clone() else { panic!("a TCP address") };
    // A relay that cuts connections again and again, at random positions.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let cuts = Arc::new(AtomicU64::new(0));
    let (finished, counted) = (over.clone(), cuts.clone());
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let (client, server) = (stream.unwrap(), TcpStream::connect(&upstream).unwrap());
            let copy = |from: &TcpStream, to: &TcpStream, mut limit: usize| {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let (finished, counted) = (finished.clone(), counted.clone());
                std::thread::spawn(move || {
                    let mut buffer = [0; 1000];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        let part = if finished.load(Ordering::SeqCst) { count } else { count.min(limit) };
                        limit -= part.min(limit);
                        if to.write_all(&buffer[..part]).is_err() || part < count {
                            counted.fetch_add(1, Ordering::SeqCst);
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                    let _ = from.shutdown(std::net::Shutdown::Both);
                });
            };
            copy(&client, &server, 3000 + index * 7919 % 9000);
            copy(&server, &client, 5000 + index * 6101 % 11_000);
        }
    });
    let recorder = Recorder::new();
    let options = RemoteOptions { backoff_min: Duration::from_millis(1), ..patient() };
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            let (recorder, relay, options) = (&recorder, relay.clone(), options.clone());
            scope.spawn(move || {
                let store = RemoteStore::new(&[relay], options).unwrap();
                let mut generator = Generator::new(worker, Shape::contended());
                for _ in 0..300 {
                    let (object, transaction) = generator.transaction();
                    match block_on(recorder.apply(&store, &object, transaction)) {
                        Ok(outcome) => generator.observe(&object, &outcome),
                        Err(error) => assert!(
                            matches!(
                                error.kind,
                                ErrorKind::Unknown | ErrorKind::Unavailable | ErrorKind::Invalid
                            ),
                            "{error:?}"
                        ),
                    }
                }
            });
        }
    });
    over.store(true, Ordering::SeqCst);
    let (count, unknown) = recorder.count();
    assert!(count == 1200 && cuts.load(Ordering::SeqCst) > 5, "{count}, {unknown}, {cuts:?}");
    recorder.check().unwrap();
}
