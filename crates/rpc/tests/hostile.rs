//! Peers that speak the protocol badly, in another version, or not at all.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::control::{Beginning, SessionKey};
use nacre_rpc::frame::{self, Frame, flag};
use nacre_rpc::handshake::hello;
use nacre_rpc::{Address, MessageKind, Outbox, Server, ServerLimits, Services, check, control};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use support::*;

fn open_server() -> Server {
    // Sessions that random frames begin end soon.
    let limits = ServerLimits { session_timeout: Duration::from_millis(100), ..Default::default() };
    serve_with(Services::new().with(ToyService(Arc::default())), limits, None)
}

/// Opens a raw connection in a version of the protocol.
fn introduced(server: &Server, version: u16) -> TcpStream {
    let Address::Tcp(address) = &server.addresses()[0] else { panic!("a TCP address") };
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    // Headers and bodies go out as they are written, without waiting for acknowledgements.
    stream.set_nodelay(true).unwrap();
    stream.write_all(&hello(version, 0)).unwrap();
    let mut theirs = [0; 16];
    stream.read_exact(&mut theirs).unwrap();
    assert_eq!(theirs, hello(version, 0));
    stream
}

fn send(stream: &mut TcpStream, kind: MessageKind, flags: u16, id: u64, body: &[u8]) {
    stream.write_all(&frame::header_with(kind, flags, id, body.len() as u32)).unwrap();
    stream.write_all(body).unwrap();
}

fn receive(stream: &mut TcpStream) -> Frame {
    let mut bytes = BytesMut::zeroed(16);
    stream.read_exact(&mut bytes).unwrap();
    let len = frame::frame_bytes(&bytes).unwrap().unwrap();
    bytes.resize(len, 0);
    stream.read_exact(&mut bytes[16..]).unwrap();
    frame::take(&mut bytes).unwrap().unwrap()
}

fn failure(stream: &mut TcpStream, id: u64) -> ErrorKind {
    let frame = receive(stream);
    assert_eq!(frame.id, id);
    control::get_failure(&frame).unwrap().kind
}

fn still_serves(stream: &mut TcpStream) {
    send(stream, HOLDER, 0, 4242, b"");
    let frame = receive(stream);
    assert_eq!((frame.kind, frame.id), (OK, 4242));
}

#[test]
fn clients_of_older_versions_are_served_without_what_is_newer() {
    let server = open_server();
    for version in [1, 2] {
        let mut old = introduced(&server, version);
        still_serves(&mut old);
        send(&mut old, WATCH, 0, 1, b"");
        assert_eq!(failure(&mut old, 1), ErrorKind::Unsupported);
        send(&mut old, MessageKind::CANCEL, 0, 1, &[TOY]);
        assert_eq!(failure(&mut old, 1), ErrorKind::Unsupported);
        // Parts come without the flag.
        send(&mut old, COUNT, 0, 2, &3u32.to_le_bytes());
        for part in 0..3u32 {
            let frame = receive(&mut old);
            assert_eq!((frame.kind, frame.flags, frame.id), (OK, 0, 2));
            assert_eq!(frame.body[..], part.to_le_bytes());
        }
        assert_eq!(&receive(&mut old).body[..], b"counted");
        // In version 2 the bytes of the flags had to be zero.
        send(&mut old, HOLDER, flag::DEADLINE, 3, &[0; 4]);
        assert_eq!(failure(&mut old, 0), ErrorKind::Invalid);
        assert_eq!(old.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn invalid_requests_are_answered_and_the_connection_continues() {
    let server = open_server();
    let mut stream = introduced(&server, 3);
    for kind in [MessageKind::BEGIN, MessageKind::CANCEL, MessageKind::WINDOW] {
        send(&mut stream, kind, 0, 7, b"");
        assert_eq!(failure(&mut stream, 7), ErrorKind::Invalid, "{kind:?}");
    }
    for (kind, flags) in [
        (MessageKind::EVENT, 0),
        (MessageKind::END, 0),
        (MessageKind::BEGUN, 0),
        (HOLDER, 0x8000),
        (HOLDER, flag::MORE),
    ] {
        send(&mut stream, kind, flags, 8, b"12345678");
        assert_eq!(failure(&mut stream, 8), ErrorKind::Unsupported, "{kind:?} {flags}");
    }
    send(&mut stream, HOLDER, flag::DEADLINE, 9, b"abc");
    assert_eq!(failure(&mut stream, 9), ErrorKind::Invalid);
    // These requests were never made; a window may grow by bytes that were never sent.
    send(&mut stream, MessageKind::CANCEL, 0, 10, &[TOY]);
    send(&mut stream, MessageKind::CANCEL, 0, 10, &[0]);
    send(&mut stream, MessageKind::CANCEL, 0, 10, &[77]);
    send(&mut stream, MessageKind::WINDOW, 0, 0, &u32::MAX.to_le_bytes());
    still_serves(&mut stream);
    // One id is used twice at a time: both requests are answered, and one cancellation applies to one of them.
    send(&mut stream, NEVER, 0, 11, b"");
    send(&mut stream, NEVER, 0, 11, b"");
    send(&mut stream, MessageKind::CANCEL, 0, 11, &[TOY]);
    assert_eq!(failure(&mut stream, 11), ErrorKind::Closed);
    send(&mut stream, WATCH, 0, 12, b"");
    assert_eq!(receive(&mut stream).kind, OK);
    send(&mut stream, WATCH, 0, 12, b"");
    assert_eq!(failure(&mut stream, 12), ErrorKind::Invalid);
    still_serves(&mut stream);
}

#[test]
fn random_frames_neither_stop_the_server_nor_hold_memory() {
    let server = open_server();
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut stream = introduced(&server, 3);
        let mut bytes = Vec::new();
        for _ in 0..300 {
            let service = if random.random_bool(0.5) { 0 } else { TOY };
            let kind = MessageKind::new(service, random.random_range(0..16));
            let body: Vec<u8> = (0..random.random_range(0..60)).map(|_| random.random_range(0..4)).collect();
            let flags = if random.random_bool(0.8) { 0 } else { 1 << random.random_range(0..16) };
            let id = random.random_range(0..5);
            bytes.extend_from_slice(&frame::header_with(kind, flags, id, body.len() as u32));
            bytes.extend_from_slice(&body);
        }
        // The server may have closed it already.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        drop(stream);
    }
    let begin = std::time::Instant::now();
    while server.stats().connections.get() > 0 || server.stats().held_bytes.get() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(120), "a connection is left");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.stats().in_flight.get(), 0);
    still_serves(&mut introduced(&server, 3));
}

fn bytes_of(put: impl FnOnce(&mut Outbox)) -> BytesMut {
    let mut outbox = Outbox::default();
    put(&mut outbox);
    let mut bytes = BytesMut::new();
    outbox.copy_to(&mut bytes);
    bytes
}

/// Returns the messages that version 3 of the protocol has beyond version 2.
fn samples() -> Vec<(&'static str, BytesMut)> {
    let error = StoreError::new(ErrorKind::Busy, "why");
    let session = SessionKey { id: [0x11; 16], token: [0x22; 16] };
    let beginning = Beginning { features: 0x0102, kept: true, session };
    vec![
        ("hello", BytesMut::from(&hello(3, 0)[..])),
        ("begin", bytes_of(|out| control::put_beginning(out, MessageKind::BEGIN, 1, &beginning))),
        ("begun", bytes_of(|out| control::put_beginning(out, MessageKind::BEGUN, 1, &beginning))),
        ("cancel", bytes_of(|out| control::put_cancel(out, TOY, 2))),
        ("event", bytes_of(|out| control::put_event(out, 0, 3, 4, &Bytes::from_static(b"event")))),
        ("gap", bytes_of(|out| control::put_event(out, flag::GAP, 3, 5, &Bytes::new()))),
        ("end", bytes_of(|out| control::put_end(out, 3, None))),
        ("end_error", bytes_of(|out| control::put_end(out, 3, Some(&error)))),
        ("window", bytes_of(|out| control::put_window(out, 0, 0x0102_0304))),
        (
            "request_with_deadline",
            bytes_of(|out| {
                let open = out.begin_by(LOCK, 6, Some(Duration::from_millis(1500)));
                out.slice(b"body");
                assert!(out.end(open).is_ok());
            }),
        ),
        (
            "part",
            bytes_of(|out| {
                let open = out.begin_with(OK, flag::MORE, 7);
                out.slice(b"part");
                assert!(out.end(open).is_ok());
            }),
        ),
    ]
}

/// The bytes of every message are pinned: a change to them breaks older peers, and requires a new version.
#[test]
fn the_bytes_are_those_of_the_golden_vectors() {
    let golden = include_str!("golden/version_3.txt");
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let found: String = samples().iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    assert!(found == golden, "the bytes have changed; they are now\n{found}");
    for (name, bytes) in samples().iter().skip(1) {
        assert_eq!(check::decode_all(bytes, |_| {}), 1, "{name}");
    }
}
