//! Peers that keep the server's memory occupied: they must not lock out others, and whoever waits is not at fault.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use nacre_rpc::client::{Host, Link, LinkOptions};
use nacre_rpc::frame::{self, Frame};
use nacre_rpc::handshake::hello;
use nacre_rpc::{Address, ClusterKey, MessageKind, Server, ServerLimits, Services};
use support::*;

const MIB: usize = 1 << 20;

fn open_server(limits: ServerLimits) -> Server {
    serve_with(Services::new().with(ToyService(Arc::default())), limits, None)
}

fn raw(server: &Server) -> TcpStream {
    let Address::Tcp(address) = &server.addresses()[0] else { panic!("a TCP address") };
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    // Headers and bodies go out as they are written, without waiting for acknowledgements.
    stream.set_nodelay(true).unwrap();
    stream
}

fn introduced(server: &Server) -> TcpStream {
    let mut stream = raw(server);
    stream.write_all(&hello(3, 0)).unwrap();
    stream.read_exact(&mut [0; 16]).unwrap();
    stream
}

fn try_receive(stream: &mut TcpStream) -> std::io::Result<Frame> {
    let mut bytes = BytesMut::zeroed(16);
    stream.read_exact(&mut bytes)?;
    bytes.resize(frame::frame_bytes(&bytes).unwrap().unwrap(), 0);
    stream.read_exact(&mut bytes[16..])?;
    Ok(frame::take(&mut bytes).unwrap().unwrap())
}

fn receive(stream: &mut TcpStream) -> Frame {
    try_receive(stream).unwrap()
}

fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Has peers fill the account with halves of large requests.
fn fill(server: &Server, account: usize) -> Vec<TcpStream> {
    let begun = || {
        let mut half = introduced(server);
        half.write_all(&frame::header(TELL, 1, 4 << 20)).unwrap();
        half.set_nonblocking(true).unwrap();
        (half, 0)
    };
    let mut halves: Vec<(TcpStream, usize)> = (0..account / MIB).map(|_| begun()).collect();
    let begin = Instant::now();
    while server.stats().held_bytes.get() < account as u64 {
        assert!(begin.elapsed() < Duration::from_secs(120), "the account is exhausted");
        for half in &mut halves {
            if half.1 >= 2 * MIB {
                continue;
            }
            match half.0.write(&[0; 64 << 10]) {
                Ok(count) => half.1 += count,
                // What the server does not read fills the socket at some point.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                // If this thread stood still meanwhile, its peers were disconnected.
                Err(_) => *half = begun(),
            }
        }
    }
    halves.into_iter().map(|(half, _)| half).collect()
}

/// Sends a request of 4 MiB and awaits its reply.
fn ask_much(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(&frame::header(TELL, 7, 4 << 20))?;
    stream.write_all(&vec![0; 4 * MIB])?;
    let reply = try_receive(stream)?;
    assert_eq!((reply.kind, reply.id), (OK, 7));
    Ok(())
}

/// Sends such a request until it is answered, over another connection each time: a peer that stands still for long in the
/// middle is disconnected with good reason.
fn ask_much_again_and_again(server: &Server) {
    let begin = Instant::now();
    while let Err(error) = ask_much(&mut introduced(server)) {
        assert!(begin.elapsed() < Duration::from_secs(240), "locked out: {error}");
    }
}

#[test]
fn peers_that_stop_in_the_middle_lock_nobody_out() {
    let account = 16 * MIB;
    // A peer without any progress would be borne for ten minutes.
    let limits = ServerLimits {
        held_bytes_max: account,
        stall_timeout: Duration::from_secs(600),
        pace_timeout: Duration::from_millis(400),
        ..Default::default()
    };
    let server = open_server(limits);
    let _halves = fill(&server, account);
    for _ in 0..3 {
        ask_much_again_and_again(&server);
    }
}

#[test]
fn requests_that_wait_for_their_service_do_not_add_up_beyond_the_account() {
    let account = 8 * MIB;
    // None of these peers is to be disconnected, however long a busy machine holds it up.
    let patient = Duration::from_secs(600);
    let limits = ServerLimits {
        held_bytes_max: account,
        stall_timeout: patient,
        pace_timeout: patient,
        ..Default::default()
    };
    let server = open_server(limits);
    let mut peers: Vec<TcpStream> = (0..24).map(|_| introduced(&server)).collect();
    let (body, done): (&[u8], _) = (&vec![0; 3 * MIB], &AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for peer in &mut peers {
            scope.spawn(move || {
                peer.write_all(&frame::header(NEVER, 1, body.len() as u32)).unwrap();
                // It is sent only once the server has memory for it.
                peer.write_all(body).unwrap();
                // The service is slow: others could be received meanwhile.
                std::thread::sleep(Duration::from_millis(200));
                peer.write_all(&[&frame::header(MessageKind::CANCEL, 1, 1)[..], &[TOY]].concat()).unwrap();
                assert_eq!((receive(peer).kind, 1), (MessageKind::ERROR, 1));
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let begin = Instant::now();
        let mut most = 0;
        while done.load(Ordering::Relaxed) < 24 {
            assert!(begin.elapsed() < Duration::from_secs(240), "all have their turn");
            most = most.max(server.stats().held_bytes.get());
            std::thread::yield_now();
        }
        // Together they send nine times the account.
        assert!(most <= 3 * account as u64, "{most} bytes were held");
    });
}

#[test]
fn peers_that_send_byte_by_byte_lock_nobody_out() {
    let account = 16 * MIB;
    let limits = ServerLimits {
        held_bytes_max: account,
        stall_timeout: Duration::from_secs(600),
        pace_timeout: Duration::from_millis(400),
        ..Default::default()
    };
    let server = open_server(limits);
    let mut halves = fill(&server, account);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let dripping = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            // Those that were disconnected cannot send any more.
            halves.retain_mut(|half| match half.write(&[0]) {
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                Ok(_) => true,
            });
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    ask_much_again_and_again(&server);
    stop.store(true, Ordering::Relaxed);
    dripping.join().unwrap();
}

#[test]
fn whoever_waits_for_memory_is_not_disconnected() {
    let account = 16 * MIB;
    let limits = ServerLimits {
        held_bytes_max: account,
        stall_timeout: Duration::from_millis(300),
        pace_timeout: Duration::from_millis(100),
        ..Default::default()
    };
    let server = open_server(limits);
    // Each of them is fast when it may send, and waits for far longer than a peer may stall. A busy machine may hold up one of
    // them, which is then disconnected with good reason: once, nobody is.
    let ended = (0..20).any(|_| {
        let peers: Vec<_> = (0..24)
            .map(|_| {
                let mut stream = introduced(&server);
                std::thread::spawn(move || (0..4).try_for_each(|_| ask_much(&mut stream)))
            })
            .collect();
        let ends: Vec<_> = peers.into_iter().map(|peer| peer.join().unwrap()).collect();
        ends.iter().all(Result::is_ok)
    });
    assert!(ended, "each time somebody is disconnected who waits");
}

#[test]
fn connections_that_hold_nothing_receive_little_while_memory_is_exhausted() {
    let account = 8 * MIB;
    let server = open_server(ServerLimits { held_bytes_max: account, ..Default::default() });
    let _halves = fill(&server, account);
    let before = server.stats().held_bytes.get() as usize;
    let more: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut half = introduced(&server);
            half.write_all(&frame::header(TELL, 1, 1 << 20)).unwrap();
            half.set_nonblocking(true).unwrap();
            let _ = half.write_all(&vec![0; 200 << 10]);
            half
        })
        .collect();
    // Small requests are served meanwhile.
    let mut small = introduced(&server);
    for _ in 0..200 {
        small.write_all(&frame::header(HOLDER, 5, 0)).unwrap();
        assert_eq!(receive(&mut small).kind, OK);
    }
    let now = server.stats().held_bytes.get() as usize;
    // One of the others may go on with its request of 4 MiB. Without the limit on reads these would take 40 MiB.
    assert!(now <= before + 200 * (20 << 10) + 8 * MIB, "{now} bytes are held, {before} before");
    drop(more);
}

#[test]
fn requests_that_the_server_does_not_take_yet_are_no_stall() {
    let limits =
        ServerLimits { requests_max: 1, stall_timeout: Duration::from_millis(200), ..Default::default() };
    let server = open_server(limits);
    let (mut holder, mut waiting, mut half) = (introduced(&server), introduced(&server), introduced(&server));
    holder.write_all(&frame::header(LOCK, 1, 0)).unwrap();
    assert_eq!(receive(&mut holder).id, 1);
    // The second request is behind the first, which waits for the lock.
    waiting.write_all(&[frame::header(LOCK, 2, 0), frame::header(HOLDER, 3, 0)].concat()).unwrap();
    wait_until("it waits", || server.stats().in_flight.get() == 1);
    half.write_all(&frame::header(TELL, 4, 100)).unwrap();
    assert!(is_closed(&mut half), "a peer that stalls is disconnected");
    holder.write_all(&frame::header(UNLOCK, 5, 0)).unwrap();
    assert_eq!([receive(&mut waiting).id, receive(&mut waiting).id], [2, 3]);
}

#[test]
fn messages_of_the_connection_are_not_held_up_by_requests_that_wait() {
    let server = open_server(ServerLimits { requests_max: 2, ..Default::default() });
    let mut stream = introduced(&server);
    let requests = [1, 2].map(|id| frame::header(NEVER, id, 0));
    stream.write_all(&requests.concat()).unwrap();
    wait_until("both wait", || server.stats().in_flight.get() == 2);
    stream.write_all(&frame::header(MessageKind::PING, 7, 0)).unwrap();
    let pong = receive(&mut stream);
    assert_eq!((pong.kind, pong.id), (MessageKind::PONG, 7));
    stream.write_all(&[&frame::header(MessageKind::CANCEL, 1, 1)[..], &[TOY]].concat()).unwrap();
    stream.write_all(&frame::header(HOLDER, 3, 0)).unwrap();
    let cancelled = receive(&mut stream);
    assert_eq!((cancelled.kind, cancelled.id), (MessageKind::ERROR, 1));
    assert_eq!(receive(&mut stream).id, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_sealed_record_is_not_waited_for_for_ever() {
    let key = ClusterKey::generate().unwrap();
    let limits = ServerLimits {
        stall_timeout: Duration::from_millis(200),
        handshake_timeout: Duration::from_secs(60),
        ..Default::default()
    };
    let server = serve_with(Services::new().with(ToyService(Arc::default())), limits, Some(key.clone()));
    // The handshake gets through, and 20 bytes of the first record.
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = relay.local_addr().unwrap().to_string().parse().unwrap();
    let mut target = raw(&server);
    let relaying = std::thread::spawn(move || {
        let (mut client, _) = relay.accept().unwrap();
        let mut bytes = [0; 128];
        client.read_exact(&mut bytes[..64]).unwrap();
        target.write_all(&bytes[..64]).unwrap();
        target.read_exact(&mut bytes[..80]).unwrap();
        client.write_all(&bytes[..80]).unwrap();
        client.read_exact(&mut bytes[..38]).unwrap();
        target.write_all(&bytes[..38]).unwrap();
        assert!(is_closed(&mut target));
        let _ = client.shutdown(Shutdown::Both);
    });
    let options =
        LinkOptions { key: Some(key), connect_timeout: Duration::from_secs(60), ..Default::default() };
    let link = Link::new(address, (), Arc::new(options), Arc::new(Host::new(false)));
    assert!(ask(&link, HOLDER, "").await.is_err());
    relaying.join().unwrap();
    eventually("nothing is held", async || server.stats().held_bytes.get() == 0).await;
}

#[test]
fn silent_connections_do_not_use_up_the_open_files() {
    let limits =
        ServerLimits { unproven_max: 4, handshake_timeout: Duration::from_secs(600), ..Default::default() };
    let server = open_server(limits);
    let silent: Vec<TcpStream> = (0..500).map(|_| raw(&server)).collect();
    wait_until("all were accepted", || server.stats().accepted.get() == 500);
    let open = server.stats().unproven.get();
    assert!((4..=100).contains(&open), "{open} connections are open");
    drop(silent);
    wait_until("they are gone", || server.stats().unproven.get() == 0);
    ask_much(&mut introduced(&server)).unwrap();
}

/// Sends requests whose replies are as large, until the server takes no more of them.
fn flood(stream: &mut TcpStream) {
    let request = [&frame::header(ECHO, 9, 64 << 10)[..], &[0; 64 << 10]].concat();
    stream.set_nonblocking(true).unwrap();
    let (mut at, mut blocked) = (0, 0);
    while blocked < 100 {
        match stream.write(&request[at..]) {
            Ok(count) => (at, blocked) = ((at + count) % request.len(), 0),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                // The server may only be busy; if it takes nothing for a while it has stopped reading.
                blocked += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_peer_that_reads_nothing_does_not_hold_up_the_end_of_the_server() {
    let limits = ServerLimits {
        reply_bytes_max: 64 << 10,
        stall_timeout: Duration::from_secs(600),
        ..Default::default()
    };
    let server = open_server(limits);
    let (mut holder, mut deaf) = (introduced(&server), introduced(&server));
    holder.write_all(&frame::header(LOCK, 1, 0)).unwrap();
    assert_eq!(receive(&mut holder).id, 1);
    deaf.write_all(&frame::header(LOCK, 2, 0)).unwrap();
    wait_until("it waits", || server.stats().in_flight.get() == 1);
    flood(&mut deaf);
    holder.write_all(&frame::header(UNLOCK, 3, 0)).unwrap();
    assert_eq!(receive(&mut holder).id, 3);
    let stats = server.stats().clone();
    let stopping = std::thread::spawn(move || server.stop());
    // The reply to its first request is behind others, which it does not read.
    wait_until("the request is done with", || stats.in_flight.get() == 0);
    drop((holder, deaf));
    stopping.join().unwrap();
}

#[test]
fn what_a_peer_sends_is_no_reason_to_keep_what_it_does_not_read() {
    let limits = ServerLimits {
        reply_bytes_max: 256 * MIB,
        stall_timeout: Duration::from_millis(500),
        ..Default::default()
    };
    let server = open_server(limits);
    let mut deaf = introduced(&server);
    let request = [&frame::header(ECHO, 1, 64 << 10)[..], &[0; 64 << 10]].concat();
    // More than the sockets take, and less than the server keeps before it stops reading.
    for _ in 0..512 {
        // The server may be busy for so long that it takes the peer for one that has stopped reading already.
        if deaf.write_all(&request).is_err() {
            break;
        }
    }
    let window = [&frame::header(MessageKind::WINDOW, 0, 4)[..], &1u32.to_le_bytes()].concat();
    let more = [&frame::header(MessageKind::PING, 2, 0)[..], &window].concat();
    deaf.set_nonblocking(true).unwrap();
    wait_until("it is disconnected", || {
        // It fails once the connection is closed.
        let _ = (&deaf).write_all(&more);
        server.stats().held_bytes.get() == 0
    });
}
