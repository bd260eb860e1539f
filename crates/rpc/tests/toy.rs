//! A complete service over one connection, with a key: requests, cancelled waits, deadlines, parts and events.

mod support;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::client::{Call, Event, Host, Link, LinkOptions};
use nacre_rpc::{
    ClusterKey, Handled, Incoming, MessageKind, Outbox, Peer, ServerLimits, Service, Services, control,
};
use parking_lot::Mutex;
use support::*;
use tokio::sync::Semaphore;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_answered_now_or_later_and_the_rest_is_unsupported() {
    let (server, _, key) = serve();
    let link = link(&server, &key);
    let replies = (0..1000).map(|_| ask(&link, HOLDER, ""));
    for reply in futures::future::join_all(replies).await {
        assert_eq!(&reply.unwrap()[..], [0, 0]);
    }
    for kind in [MessageKind::new(TOY, 99), MessageKind::new(TOY + 1, 1), MessageKind::new(0, 99)] {
        assert_eq!(ask(&link, kind, "").await.unwrap_err().kind, ErrorKind::Unsupported, "{kind:?}");
    }
    assert!(ask(&link, LOCK, "").await.is_ok());
    assert_eq!(server.stats().accepted.get(), 1, "one connection was enough");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_was_dropped_is_granted_to_nobody() {
    let (server, _, key) = serve();
    let (holder, other, third) = (link(&server, &key), link(&server, &key), link(&server, &key));
    ask(&holder, LOCK, "").await.unwrap();
    let dropped = start(&other, LOCK, "");
    eventually("it waits", async || ask(&holder, HOLDER, "").await.unwrap()[..] == [1, 1]).await;
    drop(dropped);
    eventually("the server learns", async || ask(&holder, HOLDER, "").await.unwrap()[..] == [1, 0]).await;
    let mut next = start(&third, LOCK, "");
    ask(&holder, UNLOCK, "").await.unwrap();
    end(&mut next).await.unwrap();
    // The connection of the dropped request still works.
    assert_eq!(ask(&other, HOLDER, "").await.unwrap()[..], [1, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_its_caller_never_took_is_taken_back() {
    let (server, toy, key) = serve();
    let (holder, other) = (link(&server, &key), link(&server, &key));
    ask(&holder, LOCK, "").await.unwrap();
    let never_polled = start(&other, LOCK, "");
    eventually("it waits", async || ask(&holder, HOLDER, "").await.unwrap()[..] == [1, 1]).await;
    ask(&holder, UNLOCK, "").await.unwrap();
    eventually("it is granted", async || ask(&holder, HOLDER, "").await.unwrap()[..] == [1, 0]).await;
    // This reply follows the grant on the same connection, so the grant has arrived.
    ask(&other, HOLDER, "").await.unwrap();
    drop(never_polled);
    eventually("it is taken back", async || ask(&holder, HOLDER, "").await.unwrap()[..] == [0, 0]).await;
    assert_eq!(toy.cancelled.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_with_as_many_requests_as_it_may_have_can_cancel_them() {
    let (toy, key) = (Arc::new(Toy::default()), ClusterKey::generate().unwrap());
    let limits = ServerLimits { requests_max: 2, ..Default::default() };
    let server = serve_with(Services::new().with(ToyService(toy.clone())), limits, Some(key.clone()));
    let link = link(&server, &key);
    let (first, _second) = (start(&link, NEVER, ""), start(&link, NEVER, ""));
    eventually("both wait", async || server.stats().in_flight.get() == 2).await;
    drop(first);
    eventually("it is cancelled", async || toy.cancelled.load(Ordering::Relaxed) == 1).await;
    assert_eq!(ask(&link, HOLDER, "").await.unwrap()[..], [0, 0]);
    assert_eq!(server.stats().accepted.get(), 1, "one connection was enough");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_a_wait() {
    let (server, toy, key) = serve();
    let (holder, other) = (link(&server, &key), link(&server, &key));
    ask(&holder, LOCK, "").await.unwrap();
    let by = |kind, deadline| {
        let request = Ask { kind, body: Bytes::new(), deadline: Some(deadline) };
        let mut call = Call::start(other.clone(), request);
        async move { result(poll_fn(|context| call.poll_frame(context.waker())).await?) }
    };
    // Long deadlines of requests that are answered in time are dropped.
    assert!(by(HOLDER, Duration::from_secs(3600)).await.is_ok());
    let (lock, never) = (by(LOCK, Duration::from_millis(30)), by(NEVER, Duration::from_millis(10)));
    let (lock, never) = futures::future::join(lock, never).await;
    assert_eq!(lock.unwrap_err().kind, ErrorKind::Unknown);
    assert!(never.unwrap_err().message.contains("deadline"));
    assert_eq!(ask(&holder, HOLDER, "").await.unwrap()[..], [1, 0]);
    assert_eq!(toy.cancelled.load(Ordering::Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_comes_in_parts_of_any_number() {
    let (server, _, key) = serve();
    let link = link(&server, &key);
    // Far more than may wait in the server's mailbox.
    let count = 200_000u32;
    let mut call = start(&link, COUNT, count.to_le_bytes().to_vec());
    let mut expected = 0u32;
    let frame = poll_fn(|context| {
        let polled = call.poll_frame(context.waker());
        while let Some(part) = call.take_part() {
            assert_eq!(part[..], expected.to_le_bytes());
            expected += 1;
        }
        polled
    });
    let frame = frame.await.unwrap();
    assert_eq!(&result(frame).unwrap()[..], b"counted");
    assert_eq!(expected, count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_subscriber_misses_events_and_learns_it_and_costs_others_nothing() {
    let (server, _, key) = serve();
    let (teller, slow_link, fast_link) = (link(&server, &key), link(&server, &key), link(&server, &key));
    let (mut slow, mut fast) = (watch(&slow_link).await, watch(&fast_link).await);
    let sent = 3000u32;
    for number in 0..sent {
        let mut body = vec![0; 1000];
        body[..4].copy_from_slice(&number.to_le_bytes());
        assert_eq!(ask(&teller, TELL, body.clone()).await.unwrap()[..], [2]);
        assert_eq!(fast.next().await.unwrap().unwrap(), Event::Pushed(body.into()));
    }
    // The backlog of the slow subscriber is bounded: its window has been sent, its mailbox is full.
    let held = server.stats().held_bytes.get();
    assert!(held < 2 << 20, "{held} bytes are held");
    // The slow subscriber's connection is no slower for other requests.
    assert_eq!(ask(&slow_link, HOLDER, "").await.unwrap()[..], [0, 0]);
    let (mut next, mut missed) = (0, 0);
    while next < sent {
        match slow.next().await.unwrap().unwrap() {
            Event::Pushed(body) => {
                assert_eq!(body[..4], next.to_le_bytes());
                next += 1;
            }
            Event::Missed(count) => {
                missed += count;
                next += count as u32;
            }
        }
    }
    assert_eq!(next, sent);
    assert!(missed > 0 && missed < sent.into(), "{missed} missed");
    // From here on nothing is missed.
    ask(&teller, TELL, "last").await.unwrap();
    assert_eq!(slow.next().await.unwrap().unwrap(), Event::Pushed("last".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_end_from_either_side() {
    let (server, _, key) = serve();
    let (one, two) = (link(&server, &key), link(&server, &key));
    let (mut staying, leaving) = (watch(&one).await, watch(&two).await);
    assert_eq!(ask(&one, TELL, "a").await.unwrap()[..], [2]);
    drop(leaving);
    eventually("the server learns", async || ask(&one, TELL, "b").await.unwrap()[..] == [1]).await;
    ask(&one, HUSH, "").await.unwrap();
    assert_eq!(staying.next().await.unwrap().unwrap(), Event::Pushed("a".into()));
    while let Some(event) = staying.next().await {
        assert_eq!(event.unwrap(), Event::Pushed("b".into()));
    }
    assert!(staying.next().await.is_none());
    // Both connections are still the first ones.
    ask(&two, HOLDER, "").await.unwrap();
    assert_eq!(server.stats().accepted.get(), 2);
}

/// A service that begins a request only when the one before it is finished.
struct Line {
    permits: Arc<Semaphore>,
    log: Arc<Mutex<Vec<(char, u8)>>>,
}

impl Service for Line {
    type Connection = ();
    type Pending = Pin<Box<dyn Future<Output = u8> + Send>>;

    fn number(&self) -> u8 {
        201
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn open(&self, _peer: &Peer) {}

    fn handle(&self, _: &mut (), request: Incoming<'_>, outbox: &mut Outbox) -> Handled<Self::Pending> {
        let number = request.body[0];
        self.log.lock().push(('b', number));
        if number.is_multiple_of(3) {
            self.finish(&mut (), request.id, number, outbox);
            return Handled::Answered;
        }
        let permits = self.permits.clone();
        Handled::Later(Box::pin(async move {
            permits.acquire().await.unwrap().forget();
            number
        }))
    }

    fn finish(&self, _: &mut (), id: u64, number: u8, outbox: &mut Outbox) {
        self.log.lock().push(('e', number));
        control::put_bare(outbox, MessageKind::new(201, number), id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_asks_for_it_gets_requests_one_after_another() {
    let (permits, log) = (Arc::new(Semaphore::new(0)), Arc::default());
    let line = Line { permits: permits.clone(), log: Arc::clone(&log) };
    let key = nacre_rpc::ClusterKey::generate().unwrap();
    let server = serve_with(Services::new().with(line), ServerLimits::default(), Some(key.clone()));
    let link = link(&server, &key);
    let mut calls: Vec<_> =
        (0..20u8).map(|number| start(&link, MessageKind::new(201, 1), vec![number])).collect();
    eventually("the second one has begun", async || log.lock().len() == 3).await;
    // A queued request that is cancelled never begins.
    eventually("all have come", async || server.stats().in_flight.get() == 19).await;
    calls.remove(10);
    eventually("it is gone", async || server.stats().in_flight.get() == 18).await;
    permits.add_permits(100);
    for call in &mut calls {
        end(call).await.unwrap();
    }
    let wanted = (0..20).filter(|number| *number != 10);
    let wanted: Vec<(char, u8)> = wanted.flat_map(|number| [('b', number), ('e', number)]).collect();
    assert_eq!(*log.lock(), wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_subscriptions_learn_that_the_server_has_gone() {
    let (server, _, key) = serve();
    let link = link(&server, &key);
    let mut subscription = watch(&link).await;
    drop(server);
    let ended: Result<Event, StoreError> = subscription.next().await.unwrap();
    assert_eq!(ended.unwrap_err().kind, ErrorKind::Unavailable);
    let polled = futures::poll!(std::pin::pin!(subscription.next()));
    assert!(matches!(polled, Poll::Ready(None)));
}

#[test]
fn a_shared_link_whose_runtime_has_ended_has_one_connection_at_a_time_in_the_next() {
    let (server, _, key) = serve();
    let options = Arc::new(LinkOptions { key: Some(key.clone()), ..patient() });
    let (address, host) = (server.addresses()[0].clone(), Arc::new(Host::new(false)));
    let shared = Link::shared(address, (), options, host, Waker::noop().clone());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connect = async |number: u64| {
        shared.ask();
        eventually("there is a connection", async || shared.connection() == Some(number)).await;
    };
    let first = runtime();
    first.block_on(connect(1));
    drop(first);
    assert_eq!(shared.connection(), None);
    runtime().block_on(async {
        connect(2).await;
        shared.ask();
        // Meanwhile there is all the time that another connection would take.
        let other = link(&server, &key);
        for _ in 0..100 {
            ask(&other, HOLDER, "").await.unwrap();
        }
        assert_eq!(shared.connection(), Some(2));
    });
    assert_eq!(server.stats().accepted.get(), 3);
}
