//! A lock server behind a real socket, and calls to it as they are on the wire.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nacre_lock::message::{Call, LockSpec, Reply};
use nacre_lock::remote::{Lock, LockError, Request, Session};
use nacre_lock::role::{LockRole, Options};
use nacre_lock::table::Mode;
use nacre_lock::wire::{self, Attach};
use nacre_lock::{Pattern, Stripe};
use nacre_object::testkit::MemoryStore;
use nacre_object::{ObjectStore, StoreError};
use nacre_rpc::client::{self, Event, Host, Link, LinkOptions, Subscription};
use nacre_rpc::{Address, MessageKind, Outbox, ServeOptions, Server, ServerLimits, Services, control};

pub const LEASE: Duration = Duration::from_secs(20);
/// The time that something may take on a machine that has much else to do.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// A lease whose end, or whose renewals, a test waits for. No thread stands still for so long.
pub const SHORT_LEASE: Duration = Duration::from_secs(15);

/// A lock server on a port of its own, with a store that outlives it.
pub struct Daemon {
    pub role: Option<LockRole>,
    pub server: Option<Server>,
    pub store: Arc<MemoryStore>,
}

impl Daemon {
    pub fn start(store: Arc<MemoryStore>, lease: Duration, server: u32, servers: u32) -> Daemon {
        Daemon::on(store.clone(), store, lease, server, servers)
    }

    /// Starts one with its records in a store of their own.
    pub fn on(
        records: Arc<dyn ObjectStore>,
        store: Arc<MemoryStore>,
        lease: Duration,
        server: u32,
        servers: u32,
    ) -> Daemon {
        Daemon::with_limits(records, store, lease, server, servers, ServerLimits::default())
    }

    /// Starts one whose connections have other limits.
    pub fn with_limits(
        records: Arc<dyn ObjectStore>,
        store: Arc<MemoryStore>,
        lease: Duration,
        server: u32,
        servers: u32,
        limits: ServerLimits,
    ) -> Daemon {
        let options = Options {
            stripe: Stripe { bytes: 4096, servers, server },
            lease,
            indexing: Default::default(),
            records,
            ledger: format!("ledger-{server}").parse().unwrap(),
            volatile: false,
            objects: store.clone(),
        };
        let role = LockRole::start(options).unwrap();
        let serve = ServeOptions {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            open: true,
            limits,
            services: Services::new().with(role.service()),
            ..Default::default()
        };
        Daemon { role: Some(role), server: Some(Server::start(serve).unwrap()), store }
    }

    pub fn alone() -> Daemon {
        Daemon::start(Arc::default(), LEASE, 0, 1)
    }

    pub fn address(&self) -> Address {
        self.server.as_ref().unwrap().addresses()[0].clone()
    }

    pub async fn session(&self) -> Session {
        Session::begin(vec![self.address()], patient()).await.unwrap()
    }

    pub fn stop(&mut self) {
        self.server.take().unwrap().stop();
        self.role.take().unwrap().stop();
    }
}

pub fn patient() -> LinkOptions {
    LinkOptions { connect_timeout: PATIENCE, ..Default::default() }
}

pub fn whole(mode: Mode) -> Request {
    Request::new(0..1 << 20, mode)
}

/// Tries to lock without a wait, again where the server did not answer in time, as one on a busy machine may not.
pub async fn attempt(session: &Session, file: &[u8], request: Request) -> Result<Lock, LockError> {
    let request = request.without_wait();
    for _ in 0..20 {
        match session.lock(file, &request).await {
            Err(LockError::Unanswered) => {}
            ended => return ended,
        }
    }
    session.lock(file, &request).await
}

/// A request as it is: a kind and a body.
pub struct Raw(MessageKind, Bytes);

impl client::Request for Raw {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        assert!(control::put_body(outbox, self.0, id, &self.1).is_ok());
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

pub fn link(host: &Daemon) -> Arc<Link> {
    Link::new(host.address(), (), Arc::new(patient()), Arc::new(Host::new(false)))
}

pub fn body(put: impl FnOnce(&mut Outbox)) -> Bytes {
    let (mut outbox, mut bytes) = (Outbox::default(), BytesMut::new());
    put(&mut outbox);
    outbox.copy_to(&mut bytes);
    nacre_rpc::frame::take(&mut bytes).unwrap().unwrap().body
}

pub async fn attach(
    link: &Arc<Link>,
    session: u64,
    connection: u64,
) -> Result<Subscription<Raw>, StoreError> {
    let attach = Attach { session, connection };
    let request = Raw(wire::ATTACH, body(|outbox| wire::put_attach(outbox, 1, &attach)));
    let (frame, subscription) = Subscription::start(link.clone(), request).await?;
    subscription.ok_or_else(|| control::get_failure(&frame).unwrap())
}

/// Sends a call, numbered. Returns its reply, or nothing if it is to come as an event.
pub async fn call(link: &Arc<Link>, number: u64, call: Call) -> Result<Option<Reply>, StoreError> {
    let description = match &call {
        Call::Acquire { spec: Some(spec), .. } => wire::described(&spec.pattern, None).unwrap(),
        _ => Bytes::new(),
    };
    let kind = match &call {
        Call::Open => wire::OPEN,
        Call::Acquire { .. } => wire::ACQUIRE,
        Call::Release { .. } => wire::RELEASE,
        other => panic!("{other:?}"),
    };
    let body = body(|outbox| wire::put_call(outbox, 1, number, &call, &description).unwrap());
    let mut call = client::Call::start(link.clone(), Raw(kind, body));
    let frame = poll_fn(|context| call.poll_frame(context.waker())).await?;
    match frame.kind {
        MessageKind::ERROR => Err(control::get_failure(&frame).unwrap()),
        wire::WAITING => Ok(None),
        kind => Ok(Some(wire::get_reply(kind, &frame.body).unwrap())),
    }
}

pub async fn event(subscription: &mut Subscription<Raw>) -> (u64, Reply) {
    match subscription.next().await {
        Some(Ok(Event::Pushed(payload))) => wire::get_event(&payload).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Asks for the first 10 bytes.
pub fn acquire(request: u64) -> Call {
    acquire_at(request, 0)
}

/// Asks for 10 bytes.
pub fn acquire_at(request: u64, offset: u64) -> Call {
    let pattern = Pattern::contiguous(offset, 10).unwrap();
    let spec = LockSpec { file: "f".into(), operation: request, mode: Mode::Exclusive, pattern };
    Call::Acquire { request, spec: Some(spec), until: Some(1 << 40) }
}

pub fn is_held(reply: &Reply) -> bool {
    matches!(reply, Reply::Acquired { progress, .. } if progress.next.is_none())
}
