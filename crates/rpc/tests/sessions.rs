//! Sessions that outlive their connections: what continues, what is revoked, and what ends.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nacre_object::ErrorKind;
use nacre_rpc::client::{Event, Host, Link, LinkOptions};
use nacre_rpc::control::{Beginning, SessionKey};
use nacre_rpc::frame::{self, Frame};
use nacre_rpc::handshake::hello;
use nacre_rpc::{Address, ClusterKey, MessageKind, Outbox, Server, ServerLimits, Services, control};
use parking_lot::Mutex;
use support::*;

/// A relay in front of a server that can be cut.
#[derive(Clone)]
struct Relay {
    address: Address,
    state: Arc<Mutex<Proxied>>,
}

struct Proxied {
    target: Address,
    /// True if connections get through.
    open: bool,
    /// True if the server's bytes get through.
    heard: bool,
    /// The number of bytes that did not get through.
    swallowed: usize,
    streams: Vec<TcpStream>,
}

fn connect(address: &Address) -> std::io::Result<TcpStream> {
    let Address::Tcp(address) = address else { panic!("a TCP address") };
    TcpStream::connect(address)
}

impl Relay {
    fn to(server: &Server) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let way = Proxied {
            target: server.addresses()[0].clone(),
            open: true,
            heard: true,
            swallowed: 0,
            streams: Vec::new(),
        };
        let state = Arc::new(Mutex::new(way));
        let relay = Relay { address, state: state.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let mut way = state.lock();
                if !way.open {
                    continue;
                }
                let Ok(server) = connect(&way.target) else { continue };
                way.streams.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut up, &mut down);
                    let _ = down.shutdown(Shutdown::Both);
                });
                let (state, mut server, mut client) = (state.clone(), server, client);
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = server.read(&mut buffer) {
                        let mut way = state.lock();
                        if !way.heard {
                            way.swallowed += count;
                            continue;
                        }
                        drop(way);
                        if client.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        relay
    }

    /// Cuts all connections; `open` sets whether new ones get through.
    fn cut(&self, open: bool) {
        let mut way = self.state.lock();
        way.open = open;
        for stream in way.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn link(&self, key: &ClusterKey) -> Arc<Link> {
        let options = Arc::new(LinkOptions {
            key: Some(key.clone()),
            keeps_session: true,
            backoff_max: Duration::from_millis(50),
            ..patient()
        });
        Link::new(self.address.clone(), (), options, Arc::new(Host::new(false)))
    }
}

fn serve_for(session_timeout: Duration) -> (Server, Arc<Toy>, ClusterKey) {
    let (toy, key) = (Arc::new(Toy::default()), ClusterKey::generate().unwrap());
    let services = Services::new().with(ToyService(toy.clone()));
    let limits = ServerLimits { session_timeout, ..Default::default() };
    (serve_with(services, limits, Some(key.clone())), toy, key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_goes_on_over_the_next_connection() {
    let (server, toy, key) = serve();
    let relay = Relay::to(&server);
    let (mine, other) = (relay.link(&key), link(&server, &key));
    let mut subscription = watch(&mine).await;
    ask(&mine, LOCK, "").await.unwrap();
    let mut wait = start(&mine, LOCK, "");
    eventually("it waits", async || ask(&other, HOLDER, "").await.unwrap()[..] == [1, 1]).await;
    ask(&other, TELL, "before").await.unwrap();
    assert_eq!(subscription.next().await.unwrap().unwrap(), Event::Pushed("before".into()));

    relay.cut(false);
    // Waiting requests are over on both sides; granted ones stay.
    assert_eq!(end(&mut wait).await.unwrap_err().kind, ErrorKind::Unknown);
    eventually("nobody waits", async || ask(&other, HOLDER, "").await.unwrap()[..] == [1, 0]).await;
    // The service is told once its requests are over.
    eventually("it is told", async || toy.broke.load(Ordering::Relaxed) == 1).await;
    for text in ["a", "b", "c"] {
        assert_eq!(ask(&other, TELL, text).await.unwrap()[..], [1], "the subscription is still there");
    }
    relay.cut(true);
    for text in ["a", "b", "c"] {
        assert_eq!(subscription.next().await.unwrap().unwrap(), Event::Pushed(text.into()));
    }
    assert_eq!(toy.resumed.load(Ordering::Relaxed), 1);
    // The lock is the session's, so it can give it back.
    ask(&mine, UNLOCK, "").await.unwrap();
    assert_eq!(ask(&other, HOLDER, "").await.unwrap()[..], [0, 0]);

    // Repeated while events arrive.
    for round in 0..20u8 {
        relay.cut(true);
        ask(&other, TELL, vec![round]).await.unwrap();
        match subscription.next().await.unwrap().unwrap() {
            Event::Pushed(body) => assert_eq!(body[..], [round]),
            // The event was in transit when the connection broke.
            Event::Missed(count) => assert_eq!(count, 1),
        }
    }
    assert_eq!(server.sessions(), 1);
    assert_eq!(toy.ended.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_lost_on_the_way_are_reported_as_missed() {
    let (server, _, key) = serve();
    let relay = Relay::to(&server);
    let (mine, other) = (relay.link(&key), link(&server, &key));
    let mut subscription = watch(&mine).await;
    relay.state.lock().heard = false;
    for text in ["a", "b", "c"] {
        ask(&other, TELL, text).await.unwrap();
    }
    eventually("some were sent", async || relay.state.lock().swallowed > 0).await;
    relay.state.lock().heard = true;
    relay.cut(true);
    ask(&other, TELL, "d").await.unwrap();
    let (mut missed, mut pushed) = (0, 0);
    // Events that were not sent yet when the connection was cut are not lost, and the last one may be.
    while missed + pushed < 4 {
        match subscription.next().await.unwrap().unwrap() {
            Event::Missed(count) => missed += count,
            Event::Pushed(_) => pushed += 1,
        }
    }
    assert_eq!(missed + pushed, 4);
    assert!(missed > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_was_lost_with_the_connection_is_taken_back() {
    let (server, toy, key) = serve();
    let relay = Relay::to(&server);
    let (mine, other) = (relay.link(&key), link(&server, &key));
    // The subscription has the session resumed without any request.
    let _subscription = watch(&mine).await;
    ask(&other, LOCK, "").await.unwrap();
    let mut wait = start(&mine, LOCK, "");
    eventually("it waits", async || ask(&other, HOLDER, "").await.unwrap()[..] == [1, 1]).await;
    relay.state.lock().heard = false;
    ask(&other, UNLOCK, "").await.unwrap();
    eventually("it is granted", async || ask(&other, HOLDER, "").await.unwrap()[..] == [1, 0]).await;
    relay.cut(true);
    assert_eq!(end(&mut wait).await.unwrap_err().kind, ErrorKind::Unknown);
    relay.state.lock().heard = true;
    relay.cut(true);
    eventually("it is taken back", async || ask(&other, HOLDER, "").await.unwrap()[..] == [0, 0]).await;
    assert_eq!(toy.ended.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_client_stays_away_ends() {
    let (server, toy, key) = serve_for(Duration::from_millis(100));
    let relay = Relay::to(&server);
    let (mine, other) = (relay.link(&key), link(&server, &key));
    let mut subscription = watch(&mine).await;
    ask(&mine, LOCK, "").await.unwrap();
    relay.cut(false);
    eventually("its lock is free", async || ask(&other, HOLDER, "").await.unwrap()[..] == [0, 0]).await;
    assert_eq!((server.sessions(), toy.ended.load(Ordering::Relaxed)), (0, 1));
    assert_eq!(ask(&other, TELL, "nobody").await.unwrap()[..], [0]);
    relay.cut(true);
    let error = subscription.next().await.unwrap().unwrap_err();
    assert!(error.kind == ErrorKind::Unavailable && error.message.contains("session"), "{error}");
    assert!(subscription.next().await.is_none());
    // The next one is a new session.
    let mut again = watch(&mine).await;
    ask(&other, TELL, "again").await.unwrap();
    assert_eq!(again.next().await.unwrap().unwrap(), Event::Pushed("again".into()));
    assert_eq!(server.sessions(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_started_again_knows_no_session() {
    let (first, _, key) = serve();
    let relay = Relay::to(&first);
    let mine = relay.link(&key);
    let mut subscription = watch(&mine).await;
    let services = Services::new().with(ToyService(Arc::default()));
    let second = serve_with(services, ServerLimits::default(), Some(key));
    relay.state.lock().target = second.addresses()[0].clone();
    tokio::task::spawn_blocking(move || first.stop()).await.unwrap();
    assert_eq!(subscription.next().await.unwrap().unwrap_err().kind, ErrorKind::Unavailable);
    ask(&mine, HOLDER, "").await.unwrap();
}

/// Opens a raw connection that has begun a session, or resumed one.
fn begun(server: &Server, session: SessionKey) -> (TcpStream, Beginning) {
    let mut stream = connect(&server.addresses()[0]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream.write_all(&hello(3, 0)).unwrap();
    stream.read_exact(&mut [0; 16]).unwrap();
    let beginning = Beginning { features: 0, kept: true, session };
    let mut outbox = Outbox::default();
    control::put_beginning(&mut outbox, MessageKind::BEGIN, 1, &beginning);
    let mut bytes = BytesMut::new();
    outbox.copy_to(&mut bytes);
    stream.write_all(&bytes).unwrap();
    let frame = receive(&mut stream);
    assert_eq!((frame.kind, frame.id), (MessageKind::BEGUN, 1));
    let beginning = control::get_beginning(&frame.body).unwrap();
    (stream, beginning)
}

fn receive(stream: &mut TcpStream) -> Frame {
    let mut bytes = BytesMut::zeroed(16);
    stream.read_exact(&mut bytes).unwrap();
    bytes.resize(frame::frame_bytes(&bytes).unwrap().unwrap(), 0);
    stream.read_exact(&mut bytes[16..]).unwrap();
    frame::take(&mut bytes).unwrap().unwrap()
}

fn open_server() -> (Server, Arc<Toy>) {
    let toy = Arc::new(Toy::default());
    let services = Services::new().with(ToyService(toy.clone()));
    // So many sessions wait at once that none may expire for being slow.
    let limits = ServerLimits { session_timeout: Duration::from_secs(600), ..Default::default() };
    (serve_with(services, limits, None), toy)
}

#[test]
fn a_session_is_resumed_by_its_token_alone_also_from_a_connection_that_seems_alive() {
    let (server, toy) = open_server();
    let (mut first, beginning) = begun(&server, SessionKey::NONE);
    assert!(!beginning.kept && !beginning.session.is_none());
    first.write_all(&frame::header(WATCH, 5, 0)).unwrap();
    assert_eq!(receive(&mut first).kind, OK);
    let mut forged = beginning.session;
    forged.token[15] ^= 1;
    let (_stranger, other) = begun(&server, forged);
    assert!(!other.kept && other.session.id != beginning.session.id);
    assert_eq!(toy.resumed.load(Ordering::Relaxed), 0);

    let (mut second, again) = begun(&server, beginning.session);
    assert!(again.kept && again.session == beginning.session);
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "the first one is closed");
    second.write_all(&frame::header(HOLDER, 6, 0)).unwrap();
    assert_eq!(receive(&mut second).kind, OK);
    // A session begins only once, and before anything else.
    let mut begin = frame::header(MessageKind::BEGIN, 7, 41).to_vec();
    begin.extend_from_slice(&[0; 41]);
    second.write_all(&begin).unwrap();
    let error = control::get_failure(&receive(&mut second)).unwrap();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert_eq!(server.sessions(), 2);
}

#[test]
fn ten_thousand_sessions_wait_for_their_clients_and_find_what_they_missed() {
    let (server, toy) = open_server();
    let mut sessions = Vec::new();
    for _ in 0..10_000 {
        let (mut stream, beginning) = begun(&server, SessionKey::NONE);
        stream.write_all(&frame::header(WATCH, 5, 0)).unwrap();
        assert_eq!(receive(&mut stream).kind, OK);
        sessions.push(beginning.session);
    }
    let begin = std::time::Instant::now();
    while toy.broke.load(Ordering::Relaxed) < 10_000 || server.stats().connections.get() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(120), "a connection is left");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.sessions(), 10_000);
    let (mut teller, _) = begun(&server, SessionKey::NONE);
    let payload = Bytes::from_static(b"told");
    teller.write_all(&frame::header(TELL, 9, payload.len() as u32)).unwrap();
    teller.write_all(&payload).unwrap();
    assert_eq!(receive(&mut teller).body[..], [(10_000 % 256) as u8]);
    for session in sessions.iter().step_by(100) {
        let (mut stream, beginning) = begun(&server, *session);
        assert!(beginning.kept);
        let event = receive(&mut stream);
        assert_eq!((event.kind, event.id), (MessageKind::EVENT, 5));
        assert_eq!(control::get_event(&event).unwrap(), (1, payload.clone()));
    }
}

/// A confirmation may come between two looks of one poll: whoever polls without a pause meets that moment soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_may_be_confirmed_while_it_is_polled() {
    let (server, _, key) = serve();
    let link = link(&server, &key);
    for _ in 0..2_000 {
        let mut watching = pin!(watch(&link));
        let mut context = Context::from_waker(Waker::noop());
        while watching.as_mut().poll(&mut context).is_pending() {
            std::hint::spin_loop();
        }
    }
    // All of them have ended, and are forgotten when they are to be told something.
    eventually("nobody watches", async || ask(&link, TELL, "").await.unwrap()[..] == [0]).await;
}
