//! Writes whose replies are lost: repeated over the next connection, recognised there, and applied exactly once.

mod support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nacre_logstore::LogStore;
use nacre_object::testkit::{MemoryStore, block_on};
use nacre_object::*;
use nacre_remote::{RemoteOptions, RemoteStore, kind, once, request};
use nacre_rpc::{Address, MessageKind, ServerLimits, control};
use support::*;

/// A relay in front of a server, which cuts connections at random places.
struct Relay {
    address: Address,
    over: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
}

fn relay(upstream: String) -> Relay {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let (over, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let relay = Relay { address, over: over.clone(), cuts: cuts.clone() };
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let (client, server) = (stream.unwrap(), TcpStream::connect(&upstream).unwrap());
            let copy = |from: &TcpStream, to: &TcpStream, mut limit: usize| {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let (over, cuts) = (over.clone(), cuts.clone());
                std::thread::spawn(move || {
                    let mut buffer = [0; 1000];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        let part = if over.load(Ordering::SeqCst) { count } else { count.min(limit) };
                        limit -= part.min(limit);
                        if to.write_all(&buffer[..part]).is_err() || part < count {
                            cuts.fetch_add(1, Ordering::SeqCst);
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                    let _ = from.shutdown(Shutdown::Both);
                });
            };
            copy(&client, &server, 2000 + index * 7919 % 9000);
            copy(&server, &client, 1500 + index * 6101 % 6000);
        }
    });
    relay
}

fn options() -> RemoteOptions {
    // The times are those of a machine that has much else to do.
    let (connect_timeout, repeat_timeout) = (Duration::from_secs(60), Duration::from_secs(120));
    RemoteOptions {
        backoff_min: Duration::from_millis(1),
        connect_timeout,
        repeat_timeout,
        ..Default::default()
    }
}

const WORKERS: u64 = 4;
const WRITES: u64 = 300;

/// A write that is not idempotent without its guards: it takes the object's next version.
fn append(worker: u64, number: u64) -> Transaction {
    let entry = (worker << 32 | number).to_le_bytes().to_vec();
    Transaction::new().write(Fork::DEFAULT, number * 8, entry)
}

/// Writes from several clients through a relay that cuts their connections; returns how many replies were `Unknown`.
/// Each object's version tells how often it was written.
fn write_through_cuts(store: Arc<dyn ObjectStore>, options: &RemoteOptions) -> u64 {
    let server = serve_store(store.clone(), ServerLimits::default(), None);
    let Address::Tcp(upstream) = server.addresses()[0].clone() else { panic!("a TCP address") };
    let relay = relay(upstream);
    let unknown = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (relay, unknown, store) = (&relay, &unknown, &store);
            scope.spawn(move || {
                let remote = RemoteStore::new(std::slice::from_ref(&relay.address), options.clone()).unwrap();
                let id: ObjectId = format!("worker-{worker}").parse().unwrap();
                let (mut acknowledged, mut open) = (0, 0);
                let mut number = 0;
                while number < WRITES {
                    // Several at once, so that a break meets writes in every state.
                    let batch: Vec<_> = (number..number + 10)
                        .map(|number| remote.apply(&id, append(worker, number)))
                        .collect();
                    for reply in batch {
                        match block_on(reply) {
                            Ok(Outcome::Done(_)) => acknowledged += 1,
                            Ok(refused) => panic!("{refused:?}"),
                            Err(error) if error.kind == ErrorKind::Unavailable => {}
                            Err(error) if error.kind == ErrorKind::Unknown => open += 1,
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    number += 10;
                }
                // Guarded by the object's version, a repetition of what took effect would be refused.
                for _ in 0..WRITES / 3 {
                    let look = || block_on(store.apply(&id, Transaction::new().read(ReadOp::Stat))).unwrap();
                    let Outcome::Done(Done { version, .. }) = look() else { panic!("a read is refused") };
                    let guarded = append(worker, 0).guard(Guard::Version { version });
                    match block_on(remote.apply(&id, guarded)) {
                        Ok(Outcome::Done(done)) => {
                            assert_eq!(done.version, version + 1);
                            acknowledged += 1;
                        }
                        Ok(refused) => {
                            assert!(open > 0, "nobody else writes: {refused:?}");
                        }
                        Err(error) if error.kind == ErrorKind::Unavailable => {}
                        Err(error) if error.kind == ErrorKind::Unknown => open += 1,
                        Err(error) => panic!("{error:?}"),
                    }
                }
                let stat = block_on(store.apply(&id, Transaction::new().read(ReadOp::Stat))).unwrap();
                let Outcome::Done(Done { version, .. }) = stat else { panic!("a read is refused") };
                assert!(
                    (acknowledged..=acknowledged + open).contains(&version),
                    "{version} writes took effect, {acknowledged} were acknowledged, {open} are open"
                );
                unknown.fetch_add(open, Ordering::SeqCst);
            });
        }
    });
    relay.over.store(true, Ordering::SeqCst);
    assert!(relay.cuts.load(Ordering::SeqCst) > 5, "{:?} cuts", relay.cuts);
    unknown.into_inner()
}

#[test]
fn every_write_through_broken_connections_takes_effect_once_and_is_answered() {
    assert_eq!(write_through_cuts(Arc::new(LogStore::memory(Default::default())), &options()), 0);
}

#[test]
fn without_repetitions_some_writes_stay_unknown() {
    let options = RemoteOptions { repeat_timeout: Duration::ZERO, ..options() };
    assert!(write_through_cuts(Arc::new(MemoryStore::new()), &options) > 0);
}

/// A relay that cuts its first connection when the reply to a write comes, which is lost; returns whether it did so.
fn relay_that_loses_a_reply(upstream: String) -> (Address, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let lost = Arc::new(AtomicBool::new(false));
    let observed = lost.clone();
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let lost = lost.clone();
            let (client, server) = (stream.unwrap(), TcpStream::connect(&upstream).unwrap());
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            let (mut from, mut to) = (server, client);
            std::thread::spawn(move || {
                let mut buffer = [0; 1000];
                while let Ok(count @ 1..) = from.read(&mut buffer) {
                    // The server sends it by itself, because nothing else is under way.
                    let MessageKind { service, code } = kind::DONE_ONCE;
                    if index == 0 && buffer[4..6] == [service, code] {
                        lost.store(true, Ordering::SeqCst);
                        break;
                    }
                    if to.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
            });
        }
    });
    (address, observed)
}

#[test]
fn the_first_write_of_a_client_is_repeated_too() {
    let store = Arc::new(LogStore::memory(Default::default()));
    let server = serve_store(store, ServerLimits::default(), None);
    let Address::Tcp(upstream) = server.addresses()[0].clone() else { panic!("a TCP address") };
    let (relay, lost) = relay_that_loses_a_reply(upstream);
    let remote = RemoteStore::new(&[relay], options()).unwrap();
    let outcome = block_on(remote.apply(&"o".parse().unwrap(), append(0, 0))).unwrap();
    assert!(matches!(outcome, Outcome::Done(done) if done.version == 1));
    assert!(lost.load(Ordering::SeqCst), "the reply to the first attempt was not lost");
}

#[test]
fn an_append_whose_reply_is_lost_is_made_once_and_says_where() {
    let store = Arc::new(LogStore::memory(Default::default()));
    let id: ObjectId = "o".parse().unwrap();
    block_on(store.apply(&id, Transaction::new().append(Fork::DEFAULT, "before"))).unwrap();
    let server = serve_store(store.clone(), ServerLimits::default(), None);
    let Address::Tcp(upstream) = server.addresses()[0].clone() else { panic!("a TCP address") };
    let (relay, lost) = relay_that_loses_a_reply(upstream);
    let remote = RemoteStore::new(&[relay], options()).unwrap();
    let size = || ReadOp::Extents { fork: Fork::DEFAULT, range: ByteRange::new(0, 0) };
    let append = Transaction::new().read(size()).append(Fork::DEFAULT, "entry");
    let sizes = |outcome: Outcome| match outcome {
        Outcome::Done(Done { version, answers, .. }) => match &answers[..] {
            [Answer::Range(read)] => (version, read.size),
            answers => panic!("{answers:?}"),
        },
        refused => panic!("{refused:?}"),
    };
    assert_eq!(sizes(block_on(remote.apply(&id, append)).unwrap()), (2, 6));
    assert!(lost.load(Ordering::SeqCst), "the reply to the first attempt was not lost");
    assert_eq!(sizes(block_on(store.apply(&id, Transaction::new().read(size()))).unwrap()), (2, 11));
}

/// A relay to a server that seems to have no appends until it is said to be updated, which breaks its connections; it keeps
/// what clients send.
fn relay_without_appends(upstream: String, updated: Arc<AtomicBool>) -> (Address, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let kept = sent.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (kept, updated) = (kept.clone(), updated.clone());
            let (client, server) = (stream.unwrap(), TcpStream::connect(&upstream).unwrap());
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let mut buffer = [0; 1000];
                while let Ok(count @ 1..) = from.read(&mut buffer) {
                    kept.lock().unwrap().extend_from_slice(&buffer[..count]);
                    if to.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
            let (mut from, mut to) = (server, client);
            let is_old = !updated.load(Ordering::SeqCst);
            from.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 1000];
                while !is_old || !updated.load(Ordering::SeqCst) {
                    let count = match from.read(&mut buffer) {
                        Ok(count @ 1..) => count,
                        // Nothing came for a while.
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                        _ => break,
                    };
                    // The server sends it by itself, because the client waits for it.
                    let MessageKind { service, code } = MessageKind::BEGUN;
                    if is_old && count > 16 && buffer[4..6] == [service, code] {
                        buffer[16] &= !(request::APPEND as u8);
                    }
                    if to.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
            });
        }
    });
    (address, sent)
}

#[test]
fn a_client_that_only_appends_notices_that_its_server_was_updated() {
    let store = Arc::new(LogStore::memory(Default::default()));
    let server = serve_store(store, ServerLimits::default(), None);
    let Address::Tcp(upstream) = server.addresses()[0].clone() else { panic!("a TCP address") };
    let updated = Arc::new(AtomicBool::new(false));
    let (relay, _) = relay_without_appends(upstream, updated.clone());
    let remote = RemoteStore::new(&[relay], options()).unwrap();
    let id: ObjectId = "o".parse().unwrap();
    let append = || block_on(remote.apply(&id, Transaction::new().append(Fork::DEFAULT, "x")));
    assert_eq!(append().unwrap_err().kind, ErrorKind::Unsupported);
    updated.store(true, Ordering::SeqCst);
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = append() {
        assert!(Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_without_appends_is_sent_nothing_that_it_cannot_read() {
    for repeat_timeout in [Duration::ZERO, Duration::from_secs(10)] {
        let store = Arc::new(LogStore::memory(Default::default()));
        let server = serve_store(store.clone(), ServerLimits::default(), None);
        let Address::Tcp(upstream) = server.addresses()[0].clone() else { panic!("a TCP address") };
        let (relay, sent) = relay_without_appends(upstream, Arc::default());
        let remote = RemoteStore::new(&[relay], RemoteOptions { repeat_timeout, ..options() }).unwrap();
        let id: ObjectId = "o".parse().unwrap();
        for transaction in [
            Transaction::new().append(Fork::DEFAULT, "x"),
            Transaction::new().if_size(Fork::DEFAULT, 0).write(Fork::DEFAULT, 0, "x"),
            Transaction::new().if_size(Fork::DEFAULT, 0),
        ] {
            let error = block_on(remote.apply(&id, transaction)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
            assert!(error.message.contains("update it"), "{error}");
        }
        assert!(block_on(store.list(None, 1)).unwrap().is_empty());
        // That a key is read in order to be updated is a hint, which is left out.
        let read = ReadOp::VersionedKey { key: Key::new("hint").unwrap(), intent: Intent::Update };
        assert!(block_on(remote.apply(&id, Transaction::new().read(read))).is_ok());
        let sent = sent.lock().unwrap();
        let has = |bytes: &[u8]| sent.windows(bytes.len()).any(|window| window == bytes);
        assert!(has(b"\x09\0\x04\0hint") && !has(b"\x09\x01\x04\0hint"));
    }
}

/// A relay that loses the reply after the flag is set, with the connection, and is silent on all connections after it.
fn relay_that_falls_silent(upstream: String) -> (Address, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let loses = Arc::new(AtomicBool::new(false));
    let flag = loses.clone();
    std::thread::spawn(move || {
        let client = listener.accept().unwrap().0;
        let server = TcpStream::connect(upstream).unwrap();
        let (mut up, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut up, &mut to_server));
        let (mut from, mut to) = (server, client);
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if flag.load(Ordering::SeqCst) {
                break;
            }
            to.write_all(&buffer[..count]).unwrap();
        }
        let _ = to.shutdown(Shutdown::Both);
        let _silent: Vec<_> = listener.incoming().collect();
    });
    (address, loses)
}

#[test]
fn a_repetition_that_meets_silence_ends_when_its_time_is_over() {
    let server = serve_store(Arc::new(LogStore::memory(Default::default())), ServerLimits::default(), None);
    let Address::Tcp(upstream) = server.addresses()[0].clone() else { panic!("a TCP address") };
    let (address, loses) = relay_that_falls_silent(upstream);
    let (patient, short) = (Duration::from_secs(600), Duration::from_millis(300));
    let options = RemoteOptions {
        connect_timeout: patient,
        silence_timeout: patient,
        repeat_timeout: short,
        ..options()
    };
    let remote = RemoteStore::new(&[address], options).unwrap();
    let id: ObjectId = "a".parse().unwrap();
    block_on(remote.apply(&id, append(0, 0))).unwrap();
    loses.store(true, Ordering::SeqCst);
    // Without an end of its own it would wait for ten minutes.
    let error = block_on(remote.apply(&id, append(0, 1))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown);
}

/// A relay that holds up the opening of a writer until it is told to let it through.
fn relay_that_holds_the_writer(upstream: String) -> (Address, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let released = Arc::new(AtomicBool::new(false));
    let observed = released.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let released = released.clone();
            let (client, server) = (stream.unwrap(), TcpStream::connect(&upstream).unwrap());
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let (mut from, mut to) = (client, server);
            std::thread::spawn(move || {
                let mut buffer = [0; 1000];
                while let Ok(count @ 1..) = from.read(&mut buffer) {
                    // The client sends it by itself, because it waits for the answer.
                    let MessageKind { service, code } = kind::OPEN_WRITER;
                    if buffer[4..6] == [service, code] {
                        eventually("it is released", || released.load(Ordering::SeqCst));
                    }
                    if to.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, observed)
}

#[test]
fn a_first_write_that_nobody_waits_for_is_sent_all_the_same() {
    let store = Arc::new(LogStore::memory(Default::default()));
    let server = serve_store(store.clone(), ServerLimits::default(), None);
    let Address::Tcp(upstream) = server.addresses()[0].clone() else { panic!("a TCP address") };
    let (relay, released) = relay_that_holds_the_writer(upstream);
    let remote = RemoteStore::new(&[relay], options()).unwrap();
    // The members are known then, and the writer is not open.
    block_on(remote.addresses()).unwrap();
    let object: ObjectId = "o".parse().unwrap();
    drop(remote.apply(&object, append(0, 0)));
    released.store(true, Ordering::SeqCst);
    eventually("it is applied", || block_on(store.list(None, 10)).unwrap() == [object.clone()]);
}

#[test]
fn a_client_that_is_closed_settles_its_first_write() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string().parse().unwrap();
    let remote = RemoteStore::new(&[silent], options()).unwrap();
    let reply = remote.apply(&"o".parse().unwrap(), append(0, 0));
    drop((remote, listener));
    assert!(block_on(reply).is_err());
}

#[test]
fn a_window_that_is_too_small_leaves_writes_unknown_and_applies_none_twice() {
    // The other writers push each write out of the window; how many stay unknown depends on who comes first.
    write_through_cuts(Arc::new(MemoryStore::with_window(2)), &options());
}

/// Opens a raw connection as a member, and a writer on it.
fn open_writer(server: &nacre_rpc::Server, writer: [u8; 16], epoch: u64) -> (TcpStream, WindowPosition) {
    let mut stream = introduced(server);
    stream.write_all(&bytes_of(|out| once::put_open(out, 1, &writer, epoch))).unwrap();
    let frame = receive(&mut stream).unwrap();
    assert_eq!(frame.kind, kind::WRITER_OPENED, "{:?}", control::get_failure(&frame));
    (stream, once::get_opened(&frame.body).unwrap())
}

fn send(stream: &mut TcpStream, sequence: u64, since: Option<WindowPosition>) -> nacre_rpc::Frame {
    let attempt = once::Attempt { sequence, since };
    let object: ObjectId = "o".parse().unwrap();
    let write = Transaction::new().write(Fork::DEFAULT, 0, "x");
    let request = bytes_of(|out| {
        assert!(once::put_apply_once(out, 9, &attempt, &object, &write).is_ok());
    });
    stream.write_all(&request).unwrap();
    receive(stream).unwrap()
}

#[test]
fn an_earlier_connection_of_a_writer_applies_nothing_more() {
    let server = serve();
    let (mut first, reported) = open_writer(&server, [5; 16], 1);
    assert_eq!(reported.position, 0);
    assert_eq!(send(&mut first, 0, None).kind, kind::DONE_ONCE);
    let (mut second, reported) = open_writer(&server, [5; 16], 2);
    assert_eq!(reported.position, 1);
    // A first attempt that arrives late, on the connection that the client has given up.
    let late = send(&mut first, 1, None);
    assert_eq!(control::get_failure(&late).unwrap().kind, ErrorKind::Closed);
    let (done, position) = once::get_outcome(&send(&mut second, 1, Some(reported))).unwrap();
    assert!(matches!(done.unwrap(), Outcome::Done(done) if done.version == 2));
    assert_eq!(position, Some(2));
    // Whatever position it names, what is in the window is certain.
    for position in [0, 2] {
        let since = Some(WindowPosition { position, ..reported });
        let (again, _) = once::get_outcome(&send(&mut second, 0, since)).unwrap();
        assert!(matches!(again.unwrap(), Outcome::Done(done) if done.version == 1));
    }
    let elsewhere = Some(WindowPosition { window: [9; 16], position: 0 });
    let unknown = control::get_failure(&send(&mut second, 6, elsewhere)).unwrap();
    assert_eq!(unknown.kind, ErrorKind::Unknown, "a position of another store's window says nothing");
    // A connection that was opened too late ends nothing.
    let mut third = introduced(&server);
    third.write_all(&bytes_of(|out| once::put_open(out, 1, &[5; 16], 2))).unwrap();
    assert_eq!(receive(&mut third).unwrap().kind, MessageKind::ERROR);
    assert_eq!(send(&mut second, 7, None).kind, kind::DONE_ONCE);
}

#[test]
fn a_numbered_write_needs_a_writer() {
    let server = serve();
    let mut stream = introduced(&server);
    let refused = control::get_failure(&send(&mut stream, 0, None)).unwrap();
    assert_eq!(refused.kind, ErrorKind::Invalid);
    assert!(refused.message.contains("writer"), "{refused}");
}
