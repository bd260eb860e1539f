//! A toy service, and clients of it.
//!
//! The toy has a lock that connections wait for, watchers to which every client can send messages, replies in parts,
//! and replies that never come.

#![allow(dead_code, reason = "every test file uses its own part of it")]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::channel::oneshot;
use nacre_object::StoreError;
use nacre_rpc::client::{Call, Host, Link, LinkOptions, Request, Subscription};
use nacre_rpc::server::Publisher;
use nacre_rpc::{
    ClusterKey, Frame, Handled, Incoming, MessageKind, Outbox, Peer, ServeOptions, Server, ServerLimits,
    Service, Services, control,
};
use parking_lot::Mutex;

pub const TOY: u8 = 200;
pub const OK: MessageKind = MessageKind::new(TOY, 1);
/// Waits for the lock.
pub const LOCK: MessageKind = MessageKind::new(TOY, 2);
pub const UNLOCK: MessageKind = MessageKind::new(TOY, 3);
/// Returns the state of the lock: whether it is held, and how many requests wait for it.
pub const HOLDER: MessageKind = MessageKind::new(TOY, 4);
/// Subscribes to the messages of `TELL`.
pub const WATCH: MessageKind = MessageKind::new(TOY, 5);
/// Sends a message to all watchers; returns how many there are.
pub const TELL: MessageKind = MessageKind::new(TOY, 6);
/// Returns the numbers below the one in the body, one in each part.
pub const COUNT: MessageKind = MessageKind::new(TOY, 7);
/// Never replies.
pub const NEVER: MessageKind = MessageKind::new(TOY, 8);
/// Ends all watches.
pub const HUSH: MessageKind = MessageKind::new(TOY, 9);
/// Returns the body.
pub const ECHO: MessageKind = MessageKind::new(TOY, 10);

#[derive(Default)]
pub struct Toy {
    connections: AtomicU64,
    lock: Mutex<Lock>,
    watchers: Mutex<Vec<Publisher>>,
    /// The number of requests that were cancelled.
    pub cancelled: AtomicU64,
    /// The numbers of sessions, or connections without one, that began, broke, were resumed and ended.
    pub began: AtomicU64,
    pub broke: AtomicU64,
    pub resumed: AtomicU64,
    pub ended: AtomicU64,
}

#[derive(Default)]
struct Lock {
    /// The connection and the request that hold the lock.
    holder: Option<(u64, u64)>,
    waiting: VecDeque<(u64, u64, oneshot::Sender<()>)>,
}

impl Lock {
    /// Passes the lock to the next request that still waits.
    fn pass(&mut self) {
        self.holder = None;
        while let Some((connection, id, granted)) = self.waiting.pop_front() {
            if granted.send(()).is_ok() {
                self.holder = Some((connection, id));
                return;
            }
        }
    }

    fn release(&mut self, connection: u64, id: Option<u64>) {
        let is_it = |its: u64, other: u64| its == connection && id.is_none_or(|id| id == other);
        self.waiting.retain(|(its, other, _)| !is_it(*its, *other));
        if self.holder.is_some_and(|(its, other)| is_it(its, other)) {
            self.pass();
        }
    }
}

pub struct ToyConnection {
    toy: Arc<Toy>,
    number: u64,
}

/// A connection that is gone holds nothing.
impl Drop for ToyConnection {
    fn drop(&mut self) {
        self.toy.lock.lock().release(self.number, None);
    }
}

pub struct ToyService(pub Arc<Toy>);

type Pending = Pin<Box<dyn Future<Output = Result<Bytes, StoreError>> + Send>>;

impl Service for ToyService {
    type Connection = ToyConnection;
    type Pending = Pending;

    fn number(&self) -> u8 {
        TOY
    }

    fn open(&self, _peer: &Peer) -> ToyConnection {
        self.0.began.fetch_add(1, Ordering::Relaxed);
        ToyConnection { toy: self.0.clone(), number: self.0.connections.fetch_add(1, Ordering::Relaxed) }
    }

    fn handle(
        &self,
        connection: &mut ToyConnection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<Pending> {
        let toy = &self.0;
        let answer: Result<Bytes, StoreError> = match request.kind {
            LOCK => {
                let mut lock = toy.lock.lock();
                let (granted, wait) = oneshot::channel();
                lock.waiting.push_back((connection.number, request.id, granted));
                if lock.holder.is_none() {
                    lock.pass();
                }
                return Handled::Later(Box::pin(async move {
                    let gone = |_| StoreError::new(nacre_object::ErrorKind::Closed, "released");
                    wait.await.map(|()| Bytes::new()).map_err(gone)
                }));
            }
            UNLOCK => {
                let mut lock = toy.lock.lock();
                if lock.holder.is_some_and(|(holder, _)| holder == connection.number) {
                    lock.pass();
                }
                Ok(Bytes::new())
            }
            HOLDER => {
                let lock = toy.lock.lock();
                let waiting = lock.waiting.iter().filter(|(_, _, granted)| !granted.is_canceled()).count();
                Ok(Bytes::from(vec![lock.holder.is_some() as u8, waiting as u8]))
            }
            WATCH => request.subscribe().map(|publisher| {
                toy.watchers.lock().push(publisher);
                Bytes::from_static(b"watching")
            }),
            TELL => {
                let mut watchers = toy.watchers.lock();
                let payload = Bytes::copy_from_slice(&request.body);
                watchers.retain(|watcher| watcher.push(payload.clone()));
                Ok(Bytes::from(vec![watchers.len() as u8]))
            }
            HUSH => {
                toy.watchers.lock().clear();
                Ok(Bytes::new())
            }
            ECHO => Ok(request.body),
            COUNT => {
                let parts = request.parts(OK);
                let count = request.body.first_chunk().map_or(0, |count| u32::from_le_bytes(*count));
                return Handled::Later(Box::pin(async move {
                    for number in 0..count {
                        parts.send(Bytes::copy_from_slice(&number.to_le_bytes())).await?;
                    }
                    Ok(Bytes::from_static(b"counted"))
                }));
            }
            NEVER => {
                let body = request.body;
                return Handled::Later(Box::pin(async move {
                    std::future::pending::<()>().await;
                    Ok(body)
                }));
            }
            _ => Err(request.unsupported()),
        };
        self.finish(connection, request.id, answer, outbox);
        Handled::Answered
    }

    fn finish(
        &self,
        _connection: &mut ToyConnection,
        id: u64,
        output: Result<Bytes, StoreError>,
        outbox: &mut Outbox,
    ) {
        match output {
            Ok(body) => assert!(control::put_body(outbox, OK, id, &body).is_ok()),
            Err(error) => control::put_error(outbox, id, &error),
        }
    }

    fn broken(&self, _connection: &mut ToyConnection) {
        self.0.broke.fetch_add(1, Ordering::Relaxed);
    }

    fn resumed(&self, _connection: &mut ToyConnection) {
        self.0.resumed.fetch_add(1, Ordering::Relaxed);
    }

    fn ended(&self, _connection: &mut ToyConnection) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn cancelled(&self, connection: &mut ToyConnection, id: u64) {
        self.0.cancelled.fetch_add(1, Ordering::Relaxed);
        self.0.lock.lock().release(connection.number, Some(id));
    }
}

/// Returns options with times of a machine that has much else to do.
pub fn patient() -> LinkOptions {
    let patience = Duration::from_secs(120);
    LinkOptions { connect_timeout: patience, silence_timeout: patience, ..Default::default() }
}

/// Starts a server. Handshakes have the time of a machine that has much else to do, unless the limits say otherwise.
pub fn serve_with(services: Services, mut limits: ServerLimits, key: Option<ClusterKey>) -> Server {
    if limits.handshake_timeout == ServerLimits::default().handshake_timeout {
        limits.handshake_timeout = Duration::from_secs(120);
    }
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let open = key.is_none();
    Server::start(ServeOptions { listen, threads: 2, open, key, limits, services, ..Default::default() })
        .unwrap()
}

/// Starts a server of the toy behind TCP and a key.
pub fn serve() -> (Server, Arc<Toy>, ClusterKey) {
    let (toy, key) = (Arc::new(Toy::default()), ClusterKey::generate().unwrap());
    let services = Services::new().with(ToyService(toy.clone()));
    (serve_with(services, ServerLimits::default(), Some(key.clone())), toy, key)
}

pub fn link(server: &Server, key: &ClusterKey) -> Arc<Link> {
    let options = Arc::new(LinkOptions { key: Some(key.clone()), ..patient() });
    Link::new(server.addresses()[0].clone(), (), options, Arc::new(Host::new(false)))
}

pub struct Ask {
    pub kind: MessageKind,
    pub body: Bytes,
    pub deadline: Option<Duration>,
}

impl Request for Ask {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        let open = outbox.begin_by(self.kind, id, self.deadline);
        outbox.payload(&self.body);
        assert!(outbox.end(open).is_ok());
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn cancels(&self) -> Option<u8> {
        Some(self.kind.service)
    }
}

pub fn start(link: &Arc<Link>, kind: MessageKind, body: impl Into<Bytes>) -> Call<Ask> {
    Call::start(link.clone(), Ask { kind, body: body.into(), deadline: None })
}

pub async fn end(call: &mut Call<Ask>) -> Result<Bytes, StoreError> {
    result(poll_fn(|context| call.poll_frame(context.waker())).await?)
}

pub fn result(frame: Frame) -> Result<Bytes, StoreError> {
    if frame.kind == MessageKind::ERROR { Err(control::get_failure(&frame).unwrap()) } else { Ok(frame.body) }
}

pub async fn ask(link: &Arc<Link>, kind: MessageKind, body: impl Into<Bytes>) -> Result<Bytes, StoreError> {
    end(&mut start(link, kind, body)).await
}

pub async fn watch(link: &Arc<Link>) -> Subscription<Ask> {
    let request = Ask { kind: WATCH, body: Bytes::new(), deadline: None };
    let (frame, subscription) = Subscription::start(link.clone(), request).await.unwrap();
    assert_eq!(&result(frame).unwrap()[..], b"watching");
    subscription.unwrap()
}

/// Waits for a condition that must become true; panics if it does not within a generous time limit.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
