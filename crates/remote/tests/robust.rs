//! Misbehaving peers and their cost: memory stays bounded, and other peers are not affected.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nacre_object::testkit::block_on;
use nacre_object::{ByteRange, Check, ErrorKind, Fork, Guard, Key, ObjectId, ObjectStore, Transaction};
use nacre_remote::{RemoteOptions, kind, reply};
use nacre_rpc::frame;
use nacre_rpc::{MessageKind, Server, ServerLimits, control};
use support::*;

/// The bytes that one read takes, and the slack of growing buffers.
const READ_BYTES: u64 = 256 << 10;

fn held(server: &Server) -> u64 {
    server.stats().held_bytes.get()
}

/// Sends requests for an object of 1 MiB, without ever reading a reply, until the server stops reading. Returns the
/// number of requests that were sent completely.
fn flood(stream: &mut TcpStream, object: &str) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let mut blocked = 0;
    'requests: while sent < 1_000_000 {
        // Large requests, so that not many of them fit into the buffers of the system.
        let key = Key::try_from("no such key").unwrap();
        let check = Check::NotEqual(vec![0; 256 << 10].into());
        let transaction = Transaction::new().guard(Guard::Key { key, check });
        let transaction = transaction.read_range(Fork::DEFAULT, ByteRange::new(0, 1 << 20));
        let request = request(sent as u64 + 1, object, &transaction);
        let mut at = 0;
        while at < request.len() {
            match stream.write(&request[at..]) {
                Ok(count) => {
                    at += count;
                    blocked = 0;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    // The server may only be busy; if it takes nothing for a while it has stopped reading.
                    blocked += 1;
                    if blocked > 100 {
                        break 'requests;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => panic!("{error}"),
            }
        }
        sent += 1;
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

#[test]
fn a_client_that_never_reads_is_not_read_from_either() {
    let limits = ServerLimits { reply_bytes_max: 4 << 20, ..Default::default() };
    let server = serve_with(limits, None);
    let store = remote(&server);
    write(&store, "big", vec![5; 1 << 20]);
    let mut deaf = introduced(&server);
    let sent = flood(&mut deaf, "big");
    assert!(sent < 1_000_000, "the server reads on and on");
    // The replies that wait, one more that was encoded when the limit was not quite reached, and one read.
    assert!(held(&server) <= (4 << 20) + (2 << 20) + 4 * READ_BYTES, "{} bytes", held(&server));
    // Other clients are not affected.
    write(&store, "small", "x");
    // When it reads at last, it gets every reply, in the order in which the store answers.
    for id in 1..=sent as u64 {
        let frame = receive(&mut deaf).unwrap();
        assert_eq!((frame.id, frame.kind), (id, kind::DONE));
        assert!(frame.body.len() > 1 << 20);
    }
    drop(deaf);
    eventually("everything is given back", || server.stats().connections.get() == 1 && held(&server) <= 4096);
}

#[test]
fn a_client_that_stops_reading_for_good_is_disconnected() {
    let limits = ServerLimits { stall_timeout: Duration::from_millis(200), ..Default::default() };
    let server = serve_with(limits, None);
    write(&remote(&server), "big", vec![5; 1 << 20]);
    let mut deaf = introduced(&server);
    // In one piece: it may be disconnected before the last one.
    let requests: Vec<u8> = (0..64).flat_map(|id| read_request(id, "big", 1 << 20)).collect();
    deaf.write_all(&requests).unwrap();
    eventually("it is disconnected", || server.stats().connections.get() == 0 && held(&server) == 0);
}

#[test]
fn half_a_frame_is_not_waited_for_for_ever() {
    let limits = ServerLimits { stall_timeout: Duration::from_millis(200), ..Default::default() };
    let server = serve_with(limits, None);
    let mut halves: Vec<TcpStream> = (0..50).map(|_| introduced(&server)).collect();
    for (index, half) in halves.iter_mut().enumerate() {
        let request = read_request(1, "o", 10);
        half.write_all(&request[..1 + index % (request.len() - 1)]).unwrap();
    }
    for half in &mut halves {
        assert!(is_closed(half));
    }
    // A peer that owes nothing may be silent for any length of time.
    let mut idle = introduced(&server);
    std::thread::sleep(Duration::from_millis(500));
    idle.write_all(&read_request(1, "o", 10)).unwrap();
    assert_eq!(receive(&mut idle).unwrap().kind, kind::DONE);
}

#[test]
fn an_announced_length_costs_nothing_until_the_bytes_come() {
    let server = serve();
    let mut liars: Vec<TcpStream> = (0..50).map(|_| introduced(&server)).collect();
    for liar in &mut liars {
        liar.write_all(&frame::header(kind::APPLY, 1, 32 << 20)).unwrap();
        liar.write_all(&[0; 1000]).unwrap();
    }
    eventually("they were read", || server.stats().received_bytes.get() == 50 * 1016);
    eventually("each holds what it sent", || held(&server) >= 50 * 1016);
    assert!(held(&server) <= 50 * 4096, "{} bytes", held(&server));
}

#[test]
fn a_frame_that_is_too_long_ends_the_connection_with_a_reason() {
    let server = serve();
    let mut stream = introduced(&server);
    stream.write_all(&frame::header(kind::APPLY, 9, (32 << 20) + 1)).unwrap();
    let frame = receive(&mut stream).unwrap();
    assert_eq!(frame.id, 0);
    let error = control::get_failure(&frame).unwrap();
    assert!(error.message.contains("the limit is"), "{error}");
    assert!(is_closed(&mut stream));
}

#[test]
fn unknown_services_and_messages_are_unsupported_and_the_connection_goes_on() {
    let server = serve();
    let mut stream = introduced(&server);
    let unknown = [
        MessageKind::new(77, 1),
        MessageKind::new(1, 99),
        MessageKind::new(2, 1),
        MessageKind::new(0, 99),
        kind::DONE,
    ];
    for (id, unknown) in (1..).zip(unknown) {
        stream.write_all(&frame::header(unknown, id, 0)).unwrap();
        let frame = receive(&mut stream).unwrap();
        assert_eq!(frame.id, id);
        assert_eq!(control::get_failure(&frame).unwrap().kind, ErrorKind::Unsupported, "{unknown:?}");
    }
    stream.write_all(&read_request(9, "o", 10)).unwrap();
    assert_eq!(receive(&mut stream).unwrap().kind, kind::DONE);
}

#[test]
fn a_malformed_request_is_answered_and_the_next_one_too() {
    let server = serve();
    let mut stream = introduced(&server);
    let mut bad = frame::header(kind::APPLY, 1, 3).to_vec();
    bad.extend_from_slice(b"\xffab");
    stream.write_all(&bad).unwrap();
    stream.write_all(&read_request(3, "o", 10)).unwrap();
    for (id, kind) in [(1, MessageKind::ERROR), (3, kind::DONE)] {
        let frame = receive(&mut stream).unwrap();
        assert_eq!((frame.id, frame.kind), (id, kind));
        if kind == MessageKind::ERROR {
            assert_eq!(control::get_failure(&frame).unwrap().kind, ErrorKind::Invalid);
        }
    }
}

#[test]
fn a_thousand_idle_connections_hold_nothing() {
    let server = serve();
    let mut idle: Vec<TcpStream> = Vec::new();
    for id in 0..1000 {
        let mut stream = introduced(&server);
        // The connection has completed a request.
        stream
            .write_all(&request(id, "o", &Transaction::new().write(Fork::DEFAULT, 0, vec![1; 100])))
            .unwrap();
        assert_eq!(receive(&mut stream).unwrap().kind, kind::DONE);
        idle.push(stream);
    }
    eventually("each has given back all but a little", || held(&server) <= 1000 * 4096);
    assert_eq!(server.stats().connections.get(), 1000);
    write(&remote(&server), "o", "still served");
    let mut last = idle.pop().unwrap();
    last.write_all(&read_request(7, "o", 100)).unwrap();
    assert_eq!(receive(&mut last).unwrap().id, 7);
}

#[test]
fn all_connections_together_stay_within_the_budget() {
    let budget: u64 = 16 << 20;
    let limits = ServerLimits {
        held_bytes_max: budget as usize,
        stall_timeout: Duration::from_millis(200),
        ..Default::default()
    };
    let server = serve_with(limits, None);
    let store = remote(&server);
    let stats = server.stats().clone();
    let most = std::thread::spawn(move || {
        let mut most = 0;
        while stats.accepted.get() < 21 || stats.connections.get() > 1 {
            most = most.max(stats.held_bytes.get());
            std::thread::sleep(Duration::from_millis(1));
        }
        most
    });
    // Twenty peers send 6 MiB each of a frame of 10 MiB, and then no more.
    let peers: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = introduced(&server);
            std::thread::spawn(move || {
                stream.write_all(&frame::header(kind::APPLY, 1, 10 << 20)).unwrap();
                // It is cut off at some point.
                let _ = stream.write_all(&vec![0; 6 << 20]);
                is_closed(&mut stream)
            })
        })
        .collect();
    // Small requests are served meanwhile.
    for _ in 0..100 {
        write(&store, "o", "x");
    }
    for peer in peers {
        assert!(peer.join().unwrap());
    }
    let most = most.join().unwrap();
    // Each connection may go beyond by one step of growing its buffer, which doubles from 1 MiB on, and one at a time by all
    // of its request.
    assert!(most <= budget + (10 << 20) + 20 * (1 << 20) + 20 * READ_BYTES, "{most} bytes");
    drop(store);
    eventually("everything is given back", || held(&server) == 0);
}

#[test]
fn a_slow_reader_gets_every_byte() {
    let server = serve_with(ServerLimits { reply_bytes_max: 1 << 20, ..Default::default() }, None);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    write(&remote(&server), "big", bytes.clone());
    let mut slow = introduced(&server);
    for id in 0..5 {
        slow.write_all(&read_request(id, "big", 3_000_000)).unwrap();
    }
    let mut received = bytes::BytesMut::new();
    let mut frames = 0;
    let mut buffer = [0; 10_007];
    while frames < 5 {
        let count = slow.read(&mut buffer).unwrap();
        received.extend_from_slice(&buffer[..count]);
        while let Some(frame) = frame::take(&mut received).unwrap() {
            let Ok(Ok(nacre_object::Outcome::Done(done))) = reply::get_outcome(&frame) else {
                panic!("not done")
            };
            let nacre_object::Answer::Range(range) = &done.answers[0] else { panic!("not a range") };
            assert!(range.data == bytes && frame.id == frames);
            frames += 1;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_reply_keeps_no_other_one_alive_on_the_server() {
    // Values that the store keeps have memory of their own: the receive buffers are released although the values stay.
    let server = serve();
    let store = remote(&server);
    let objects: Vec<ObjectId> = (0..50).map(|n| format!("o{n}").parse().unwrap()).collect();
    for object in &objects {
        let write = Transaction::new().write(Fork::DEFAULT, 0, vec![1; 100]);
        block_on(store.apply(object, write)).unwrap();
    }
    eventually("nothing is held", || held(&server) == 0 || held(&server) <= 4096);
}

#[test]
fn large_writes_that_do_not_fit_together_wait_for_each_other() {
    // Each takes two thirds of the account, and waits for far longer than a peer may stall.
    let limits = ServerLimits {
        held_bytes_max: 24 << 20,
        stall_timeout: Duration::from_millis(400),
        ..Default::default()
    };
    let server = serve_with(limits, None);
    let write_all = || {
        let before = server.stats().accepted.get();
        let options = RemoteOptions { repeat_timeout: Duration::from_secs(300), ..patient() };
        let clients: Vec<_> = (0..12).map(|_| remote_with(&server, options.clone())).collect();
        std::thread::scope(|scope| {
            for (n, client) in clients.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..3u8 {
                        write(client, &format!("o{n}"), vec![round; 15 << 20]);
                    }
                });
            }
        });
        // Nobody was disconnected.
        server.stats().accepted.get() == before + 12
    };
    // A busy machine may hold up a client in the middle of a request, which is then disconnected with good reason.
    assert!((0..10).any(|_| write_all()), "each time a client that waits is disconnected");
    eventually("everything is given back", || held(&server) <= 12 * 4096);
}

#[test]
fn what_is_larger_than_the_account_is_refused_at_once() {
    let limits = ServerLimits { held_bytes_max: 4 << 20, ..Default::default() };
    let server = serve_with(limits, None);
    let store = remote(&server);
    let object: ObjectId = "o".parse().unwrap();
    let large = Transaction::new().write(Fork::DEFAULT, 0, vec![1; 8 << 20]);
    let error = block_on(store.apply(&object, large)).unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("together may hold"), "{error}");
    for part in 0..4 {
        let small = Transaction::new().write(Fork::DEFAULT, part << 21, vec![1; 2 << 20]);
        block_on(store.apply(&object, small)).unwrap();
    }
    let read = |len| Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, len));
    let error = block_on(store.apply(&object, read(8 << 20))).unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("together may hold"), "{error}");
    block_on(store.apply(&object, read(1 << 20))).unwrap();
    assert_eq!(server.stats().accepted.get(), 1, "all of it over one connection");
}

#[test]
fn unproven_peers_take_no_connection_from_proven_ones() {
    let key = nacre_rpc::ClusterKey::generate().unwrap();
    let limits = ServerLimits {
        connections_max: 4,
        unproven_max: 8,
        handshake_timeout: Duration::from_secs(60),
        ..Default::default()
    };
    let server = serve_with(limits, Some(key.clone()));
    let known = |key: &nacre_rpc::ClusterKey| {
        let options = RemoteOptions { key: Some(key.clone()), ..patient() };
        remote_with(&server, options)
    };
    // At least as many silent connections as the limit allows.
    let silent: Vec<TcpStream> = (0..6).map(|_| raw(&server)).collect();
    eventually("all are there", || server.stats().unproven.get() == 6);
    let stores: Vec<_> = (0..4).map(|_| known(&key)).collect();
    stores.iter().for_each(|store| write(store, "o", "x"));
    assert_eq!(server.stats().connections.get(), 4);
    drop(silent);
    eventually("they are gone", || server.stats().unproven.get() == 0);
}
