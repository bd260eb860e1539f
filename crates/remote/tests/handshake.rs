//! The handshake: the peers that are accepted, those that are refused, and the reasons given.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use nacre_object::testkit::{block_on, conformance};
use nacre_object::{ErrorKind, StoreError};
use nacre_remote::{Operation, RemoteOptions, RemoteStore, RequestOutcome};
use nacre_rpc::handshake::{Status, hello};
use nacre_rpc::{Address, ClusterKey, ServeOptions, Server, ServerLimits};
use support::*;

fn with_key(key: &ClusterKey) -> RemoteOptions {
    RemoteOptions { key: Some(key.clone()), ..patient() }
}

fn refusal(store: &RemoteStore) -> StoreError {
    block_on(store.connect()).unwrap_err()
}

fn status(stream: &mut TcpStream) -> u8 {
    let mut theirs = [0; 16];
    stream.read_exact(&mut theirs).unwrap();
    assert_eq!(theirs, hello(theirs[8].into(), theirs[10]));
    theirs[10]
}

#[test]
fn a_keyed_connection_conforms() {
    let key = ClusterKey::generate().unwrap();
    let server = serve_with(ServerLimits::default(), Some(key.clone()));
    conformance::run(&remote_with(&server, with_key(&key)), "keyed");
    server.stop();
}

#[test]
fn the_wrong_key_opens_nothing_on_either_side() {
    let (right, wrong) = (ClusterKey::generate().unwrap(), ClusterKey::generate().unwrap());
    let server = serve_with(ServerLimits::default(), Some(right.clone()));
    let error = refusal(&remote_with(&server, with_key(&wrong)));
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains("not this server's"), "{error}");
    let error = refusal(&remote(&server));
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains("asks for the cluster's key"), "{error}");
    assert!(block_on(remote_with(&server, with_key(&right)).connect()).is_ok());
    eventually("both are counted as rejected", || server.stats().rejected.get() == 2);

    // A server without a key cannot pass for one that has it.
    let plain = serve();
    let error = refusal(&remote_with(&plain, with_key(&right)));
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains("this server has none"), "{error}");
}

/// Answers one connection with a function, on an address of its own.
fn impostor(answer: impl FnOnce(TcpStream) + Send + 'static) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    std::thread::spawn(move || answer(listener.accept().unwrap().0));
    address
}

#[test]
fn a_server_that_only_pretends_to_have_the_key_is_found_out() {
    let key = ClusterKey::generate().unwrap();
    // It sends back what it received, which has the right length except for the hello in it.
    let reflecting = impostor(|mut stream| {
        let mut opening = [0; 64];
        stream.read_exact(&mut opening).unwrap();
        let mut answer = hello(3, 0).to_vec();
        answer.extend_from_slice(&opening[16..]);
        answer.extend_from_slice(&[0; 16]);
        stream.write_all(&answer).unwrap();
        let _ = stream.read(&mut opening);
    });
    let store = RemoteStore::new(&[reflecting], with_key(&key)).unwrap();
    let error = refusal(&store);
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains("did not prove"), "{error}");
}

#[test]
fn one_side_of_a_recorded_connection_cannot_be_replayed() {
    let key = ClusterKey::generate().unwrap();
    let (server, requests) = serve_counted(Some(key.clone()));
    let Address::Tcp(address) = server.addresses()[0].clone() else { panic!("a TCP address") };
    // A relay in the middle records what the client sends.
    let (record, recorded) = mpsc::channel();
    let relay = impostor(move |mut client| {
        let mut upstream = TcpStream::connect(address).unwrap();
        let (mut back, mut forth) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut back, &mut forth));
        let mut sent = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            sent.extend_from_slice(&buffer[..count]);
            upstream.write_all(&buffer[..count]).unwrap();
        }
        record.send(sent).unwrap();
    });
    let store = RemoteStore::new(&[relay], with_key(&key)).unwrap();
    write(&store, "o", "secret");
    drop(store);
    let sent = recorded.recv().unwrap();
    assert!(!sent.windows(6).any(|window| window == b"secret"), "the bytes travel in the open");

    let mut replay = raw(&server);
    replay.write_all(&sent).unwrap();
    assert_eq!(status(&mut replay), Status::Welcome as u8);
    assert!(is_closed(&mut replay));
    eventually("the replay is rejected", || server.stats().rejected.get() == 1);
    assert_eq!(requests.get(Operation::Write, RequestOutcome::Done), 1);
}

#[test]
fn a_changed_byte_ends_a_keyed_connection() {
    let key = ClusterKey::generate().unwrap();
    let (server, requests) = serve_counted(Some(key.clone()));
    let Address::Tcp(address) = server.addresses()[0].clone() else { panic!("a TCP address") };
    // A relay that lets the handshake pass (64 and 18 bytes), the record by which the session begins (75), the two by
    // which the client joins (34 and 58), and the one by which it opens its window of writes (58), and changes one byte
    // of what follows.
    let relay = impostor(move |mut client| {
        let mut upstream = TcpStream::connect(address).unwrap();
        let (mut back, mut forth) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back, &mut forth);
            let _ = forth.shutdown(std::net::Shutdown::Both);
        });
        for part in [64, 18, 75, 34, 58, 58] {
            let mut opening = vec![0; part];
            client.read_exact(&mut opening).unwrap();
            upstream.write_all(&opening).unwrap();
        }
        let mut first = [0; 40];
        client.read_exact(&mut first).unwrap();
        first[30] ^= 1;
        upstream.write_all(&first).unwrap();
        let _ = std::io::copy(&mut client, &mut upstream);
    });
    let options = RemoteOptions { repeat_timeout: Duration::from_millis(100), ..with_key(&key) };
    let store = RemoteStore::new(&[relay], options).unwrap();
    let object = "o".parse().unwrap();
    let write = nacre_object::Transaction::new().write(nacre_object::Fork::DEFAULT, 0, "x");
    let error = block_on(nacre_object::ObjectStore::apply(&store, &object, write)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
    assert_eq!(requests.get(Operation::Write, RequestOutcome::Done), 0);
}

#[test]
fn peers_of_other_versions_are_told_the_servers_version() {
    let server = serve();
    for version in [0, 4, 99] {
        let mut stream = raw(&server);
        stream.write_all(&hello(version, 0)).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(status(&mut stream), Status::Version as u8);
        assert!(is_closed(&mut stream));
    }
    let newer = impostor(|mut stream| {
        let mut theirs = [0; 16];
        stream.read_exact(&mut theirs).unwrap();
        stream.write_all(&hello(7, Status::Version as u8)).unwrap();
    });
    let error = refusal(&RemoteStore::new(&[newer], patient()).unwrap());
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains("version 7"), "{error}");
}

#[test]
fn garbage_gets_no_answer() {
    let server = serve();
    for garbage in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &[0; 100], &[0xff; 16]] {
        let mut stream = raw(&server);
        stream.write_all(garbage).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    // A client that reaches another kind of server reports that.
    let web = impostor(|mut stream| {
        let mut theirs = [0; 16];
        stream.read_exact(&mut theirs).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = refusal(&RemoteStore::new(&[web], patient()).unwrap());
    assert!(error.message.contains("not a nacre server"), "{error}");
    assert_eq!(error.kind, ErrorKind::Unavailable);
}

#[test]
fn silent_peers_and_half_hellos_are_disconnected_in_time() {
    let limits = ServerLimits { handshake_timeout: Duration::from_millis(100), ..Default::default() };
    let server = serve_with(limits.clone(), None);
    let mut silent = raw(&server);
    let mut half = raw(&server);
    half.write_all(&hello(1, 0)[..7]).unwrap();
    assert!(is_closed(&mut silent) && is_closed(&mut half));
    let keyed = serve_with(limits, Some(ClusterKey::generate().unwrap()));
    let mut half = raw(&keyed);
    // In one piece: the server may have hung up before a second one, which could then not be written.
    half.write_all(&[&hello(1, 1)[..], &[1; 20]].concat()).unwrap();
    assert!(is_closed(&mut half));
    eventually("all are counted", || server.stats().rejected.get() + keyed.stats().rejected.get() == 3);
    assert_eq!(server.stats().held_bytes.get(), 0);
}

#[test]
fn unproven_connections_cost_no_buffers() {
    let limits = ServerLimits { handshake_timeout: Duration::from_secs(30), ..Default::default() };
    let server = serve_with(limits, Some(ClusterKey::generate().unwrap()));
    let mut streams: Vec<TcpStream> = (0..100).map(|_| raw(&server)).collect();
    for stream in &mut streams {
        // A hello that asks for a key, the noise message of a peer without it, and a great deal more.
        stream.write_all(&hello(1, 1)).unwrap();
        let _ = stream.write_all(&[7; 60_000]);
    }
    eventually("all are rejected", || server.stats().rejected.get() == 100);
    assert_eq!(server.stats().held_bytes.get(), 0);
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let server = serve_with(ServerLimits { connections_max: 2, ..Default::default() }, None);
    let first = introduced(&server);
    let _second = introduced(&server);
    eventually("both are counted", || server.stats().connections.get() == 2);
    let mut third = raw(&server);
    third.write_all(&hello(1, 0)).unwrap();
    assert_eq!(status(&mut third), Status::Full as u8);
    drop((first, third));
    eventually("there is room again", || server.stats().connections.get() == 1);
    introduced(&server);
}

#[test]
fn addresses_that_others_can_reach_need_a_key_or_open() {
    let start = |address: &str, open| {
        let options = ServeOptions { listen: vec![address.parse().unwrap()], open, ..Default::default() };
        Server::start(options)
    };
    // Every user of this machine can reach its loopback addresses.
    for (address, audience) in
        [("0.0.0.0:0", "everybody"), ("[::]:0", "everybody"), ("127.0.0.1:0", "every user")]
    {
        let error = start(address, false).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Invalid);
        for part in [audience, "nacre keygen", "--open"] {
            assert!(error.message.contains(part), "{error}");
        }
    }
    assert!(start("127.0.0.1:0", true).is_ok());
}

#[test]
fn keys_travel_through_files() {
    let folder = tempfile::tempdir().unwrap();
    let key = key_in(folder.path(), "key");
    let server = serve_with(ServerLimits::default(), Some(key));
    let again = ClusterKey::load(&folder.path().join("key")).unwrap();
    write(&remote_with(&server, with_key(&again)), "o", vec![1; 3 << 20]);
}
