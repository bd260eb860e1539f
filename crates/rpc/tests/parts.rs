//! Replies in parts whose callers are slow, or take nothing at all; and what waits for memory.

mod support;

use std::future::{pending, poll_fn};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::client::{Call, Event, Request};
use nacre_rpc::handshake::hello;
use nacre_rpc::limit::WINDOW_BYTES;
use nacre_rpc::{
    Address, ClusterKey, Frame, Handled, Incoming, MessageKind, Outbox, Peer, ServerLimits, Service,
    Services, control, frame,
};
use support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_whose_parts_nobody_takes_waits_and_holds_up_nothing_else() {
    let (server, _, key) = serve();
    let link = link(&server, &key);
    let count = 200_000u32;
    let mut call = start(&link, COUNT, count.to_le_bytes().to_vec());
    // The window has been sent, and the server's mailbox is full.
    eventually("the mailbox is full", async || server.stats().held_bytes.get() > 200 << 10).await;
    for _ in 0..200 {
        ask(&link, HOLDER, "").await.unwrap();
    }
    let mut subscription = watch(&link).await;
    ask(&link, TELL, "told").await.unwrap();
    assert_eq!(subscription.next().await.unwrap().unwrap(), Event::Pushed("told".into()));
    let sent = server.stats().sent_bytes.get();
    assert!(sent < 2 * WINDOW_BYTES as u64, "{sent} bytes were sent");
    let mut expected = 0u32;
    let mut take = |call: &mut Call<Ask>| {
        while let Some(part) = call.take_part() {
            assert_eq!(part[..], expected.to_le_bytes());
            expected += 1;
        }
        expected
    };
    // More may come while they are taken.
    assert!(take(&mut call) > 0, "no parts were kept");
    let frame = poll_fn(|context| {
        let polled = call.poll_frame(context.waker());
        take(&mut call);
        polled
    });
    assert_eq!(&result(frame.await.unwrap()).unwrap()[..], b"counted");
    assert_eq!(take(&mut call), count);
}

/// A count whose service is not told when the caller is gone.
struct Untold(u32);

impl Request for Untold {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        let open = outbox.begin(COUNT, id);
        outbox.u32(self.0);
        assert!(outbox.end(open).is_ok());
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_in_parts_ends_also_if_its_caller_is_gone() {
    let (server, _, key) = serve();
    let link = link(&server, &key);
    let calls: Vec<_> = (0..4).map(|_| Call::start(link.clone(), Untold(50_000))).collect();
    eventually("parts wait", async || server.stats().held_bytes.get() > 200 << 10).await;
    drop(calls);
    eventually("all have ended", async || server.stats().in_flight.get() == 0).await;
    ask(&link, HOLDER, "").await.unwrap();
    assert_eq!(server.stats().accepted.get(), 1);
}

fn introduced(server: &nacre_rpc::Server) -> TcpStream {
    let Address::Tcp(address) = &server.addresses()[0] else { panic!("a TCP address") };
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    // Headers and bodies go out as they are written, without waiting for acknowledgements.
    stream.set_nodelay(true).unwrap();
    stream.write_all(&hello(3, 0)).unwrap();
    stream.read_exact(&mut [0; 16]).unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_replies_in_parts_share_the_mailbox_of_their_connection() {
    let services = Services::new().with(ToyService(Arc::default()));
    let server = serve_with(services, ServerLimits::default(), None);
    let mut deaf = introduced(&server);
    for id in 1..=1000u64 {
        deaf.write_all(&frame::header(COUNT, id, 4)).unwrap();
        deaf.write_all(&100_000u32.to_le_bytes()).unwrap();
    }
    // The windows of all of them are larger than what the socket takes.
    eventually("replies wait", async || server.stats().in_flight.get() == 1000).await;
    eventually("the mailbox is full", async || server.stats().held_bytes.get() > 400 << 10).await;
    let mut most = 0;
    for _ in 0..200 {
        introduced(&server);
        most = most.max(server.stats().held_bytes.get());
    }
    assert!(most < 2 << 20, "{most} bytes are held");
}

fn receive(stream: &mut TcpStream) -> Frame {
    let mut bytes = BytesMut::zeroed(16);
    stream.read_exact(&mut bytes).unwrap();
    bytes.resize(frame::frame_bytes(&bytes).unwrap().unwrap(), 0);
    stream.read_exact(&mut bytes[16..]).unwrap();
    frame::take(&mut bytes).unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_whose_parts_nobody_takes_does_not_hold_up_the_end_of_the_server() {
    let limits = ServerLimits { stall_timeout: Duration::from_secs(600), ..Default::default() };
    let server = serve_with(Services::new().with(ToyService(Arc::default())), limits, None);
    let mut deaf = introduced(&server);
    deaf.write_all(&frame::header(COUNT, 1, 4)).unwrap();
    deaf.write_all(&u32::MAX.to_le_bytes()).unwrap();
    eventually("the mailbox is full", async || server.stats().held_bytes.get() > 200 << 10).await;
    let stats = server.stats().clone();
    let stopping = std::thread::spawn(move || server.stop());
    eventually("the request is done with", async || stats.in_flight.get() == 0).await;
    // It has an end, and nothing is missing before that.
    let (mut expected, mut failure) = (0u32, None);
    while failure.is_none() {
        let frame = receive(&mut deaf);
        match frame.kind {
            OK => {
                assert_eq!(frame.body[..], expected.to_le_bytes());
                expected += 1;
            }
            MessageKind::GOODBYE => {}
            _ => failure = Some(control::get_failure(&frame).unwrap()),
        }
    }
    assert_eq!(failure.unwrap().kind, ErrorKind::Closed);
    drop(deaf);
    stopping.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_go_on_after_any_number_of_gaps() {
    let key = ClusterKey::generate().unwrap();
    // No event fits into the mailbox.
    let limits = ServerLimits { mailbox_bytes_max: 100, ..Default::default() };
    let server = serve_with(Services::new().with(ToyService(Arc::default())), limits, Some(key.clone()));
    let (mine, other) = (link(&server, &key), link(&server, &key));
    let mut subscription = watch(&mine).await;
    let mut missed = 0;
    // More gaps than fit into a window.
    for sent in 1..=WINDOW_BYTES as u64 / 64 + 1000 {
        ask(&other, TELL, vec![0; 1000]).await.unwrap();
        while missed < sent {
            let Event::Missed(count) = subscription.next().await.unwrap().unwrap() else { panic!() };
            missed += count;
        }
    }
    ask(&other, TELL, "small").await.unwrap();
    assert_eq!(subscription.next().await.unwrap().unwrap(), Event::Pushed("small".into()));
}

/// A service that reserves as many bytes for its reply as a request asks for, and never makes it.
struct Hungry;

const HUNGER: MessageKind = MessageKind::new(202, 1);

impl Service for Hungry {
    type Connection = ();
    type Pending = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn number(&self) -> u8 {
        HUNGER.service
    }

    fn is_awaited(&self) -> bool {
        false
    }

    fn open(&self, _peer: &Peer) {}

    fn handle(&self, _: &mut (), request: Incoming<'_>, outbox: &mut Outbox) -> Handled<Self::Pending> {
        let bytes = u32::from_le_bytes(request.body[..4].try_into().unwrap());
        match request.reserve(bytes as usize) {
            Ok(true) => Handled::Later(Box::pin(pending())),
            Ok(false) => Handled::NoCapacity(request.body),
            Err(error) => {
                control::put_error(outbox, request.id, &error);
                Handled::Answered
            }
        }
    }

    fn finish(&self, _: &mut (), id: u64, (): (), outbox: &mut Outbox) {
        control::put_bare(outbox, HUNGER, id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_for_memory_does_not_hold_up_the_end_of_the_server() {
    let limits = ServerLimits { held_bytes_max: 4 << 20, ..Default::default() };
    let server = serve_with(Services::new().with(Hungry), limits, None);
    let mut stream = introduced(&server);
    for id in [1, 2] {
        stream.write_all(&frame::header(HUNGER, id, 4)).unwrap();
        stream.write_all(&(3u32 << 20).to_le_bytes()).unwrap();
    }
    let stats = server.stats().clone();
    eventually("the first one has its memory, and the second one waits for it", async || {
        stats.in_flight.get() == 1 && stats.received_bytes.get() == 40
    })
    .await;
    let stopping = std::thread::spawn(move || server.stop());
    let frames: Vec<Frame> = (0..3).map(|_| receive(&mut stream)).collect();
    let told: Vec<(MessageKind, u64)> = frames.iter().map(|frame| (frame.kind, frame.id)).collect();
    assert_eq!(told, [(MessageKind::GOODBYE, 0), (MessageKind::ERROR, 1), (MessageKind::ERROR, 2)]);
    assert_eq!(control::get_failure(&frames[2]).unwrap().kind, ErrorKind::Closed);
    drop(stream);
    stopping.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_the_wait_for_memory_too() {
    let key = ClusterKey::generate().unwrap();
    let limits = ServerLimits { held_bytes_max: 4 << 20, ..Default::default() };
    let server = serve_with(Services::new().with(Hungry), limits, Some(key.clone()));
    let (one, two) = (link(&server, &key), link(&server, &key));
    let hunger = (3u32 << 20).to_le_bytes().to_vec();
    let mut first = start(&one, HUNGER, hunger.clone());
    eventually("it has its memory", async || server.stats().in_flight.get() == 1).await;
    for _ in 0..2 {
        let deadline = Some(Duration::from_millis(50));
        let request = Ask { kind: HUNGER, body: Bytes::from(hunger.clone()), deadline };
        let mut second = Call::start(two.clone(), request);
        let error = end(&mut second).await.unwrap_err();
        assert!(error.kind == ErrorKind::Unknown && error.message.contains("deadline"), "{error}");
    }
    let polled = poll_fn(|context| Poll::Ready(first.poll_frame(context.waker()).is_pending())).await;
    assert!(polled, "the first one goes on");
    assert_eq!(server.stats().in_flight.get(), 1);
}
