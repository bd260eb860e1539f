//! The server side of the service.
//!
//! An event goes from the queue of its watch to the connection on the thread that has put it into the queue (`relay.rs`): that of the
//! store's hub, or the writer's where the store is in memory. It waits for nothing on the way: an event that has no room stays in the queue.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use futures::future::{AbortHandle, Abortable, FutureExt, poll_fn};
use nacre_object::watch::{
    Allowance, Event, Notification, Notified, Watch, WatchOptions, check_notification,
};
use nacre_object::{ErrorKind, ObjectStore, Reply, StoreError};
use nacre_rpc::limit::EVENT_OVERHEAD_BYTES;
use nacre_rpc::server::Publisher;
use nacre_rpc::{Handled, Incoming, Outbox, Peer, Service, control};
use parking_lot::Mutex;

use super::relay::Relay;
use super::wire::{self, Began, Report};
use crate::members::Membership;

/// The number of watches of all connections together.
const WATCHES_MAX: usize = 65_536;
/// The number of watches of one connection.
const CONNECTION_WATCHES_MAX: usize = 8192;
/// The number of events that may wait for a client that does not take them, for each watch.
const EVENTS_MAX: usize = 32;
/// The bytes of notifications that may wait for each watch, for all watches of a connection, and for all connections.
const WATCH_BYTES_MAX: usize = 128 << 10;
const CONNECTION_BYTES_MAX: usize = 1 << 20;
const SERVER_BYTES_MAX: usize = 64 << 20;
/// The bytes of events of one connection that may be under way. It is less than what a connection holds for a client
/// before it drops events.
const WINDOW_BYTES: u64 = 128 << 10;
/// The notifications of one watch that may wait for their acknowledgements; the oldest ones are given up.
const UNACKNOWLEDGED_MAX: usize = 256;
/// The notifications of one connection, and of all, that may wait for acknowledgements.
const CONNECTION_NOTIFIES_MAX: usize = 16;
const NOTIFIES_MAX: usize = 1024;

/// The service by which clients watch objects and notify watchers.
#[derive(derive_more::Debug)]
#[debug("WatchService")]
pub struct WatchService {
    store: Arc<dyn ObjectStore>,
    membership: Membership,
    allowance: Arc<Allowance>,
    watches: Arc<Count>,
    notifies: Arc<Count>,
    totals: Arc<Totals>,
}

/// A reader of a service's counters, for reports.
#[derive(Clone, derive_more::Debug)]
#[debug("WatchStats")]
pub struct WatchStats {
    watches: Arc<Count>,
    notifies: Arc<Count>,
    totals: Arc<Totals>,
}

/// The events that were sent to clients since the start.
#[derive(Default)]
struct Totals {
    events: AtomicU64,
    gaps: AtomicU64,
}

impl WatchStats {
    /// Returns the number of watches of all clients.
    pub fn watches(&self) -> usize {
        self.watches.number.load(Ordering::Relaxed)
    }

    /// Returns the number of notifications that wait for acknowledgements.
    pub fn notifications(&self) -> usize {
        self.notifies.number.load(Ordering::Relaxed)
    }

    /// Returns the number of changes and notifications that were sent to clients since the start.
    pub fn events(&self) -> u64 {
        self.totals.events.load(Ordering::Relaxed)
    }

    /// Returns the number of gaps among what was sent: each stands for events that a client did not take in time, or that were
    /// lost with a connection.
    pub fn gaps(&self) -> u64 {
        self.totals.gaps.load(Ordering::Relaxed)
    }
}

/// A bounded count.
pub struct Count {
    limit: usize,
    number: AtomicUsize,
}

/// One of the counters.
#[derive(derive_more::Debug)]
#[debug("Counted")]
pub struct Counted(Arc<Count>);

impl Count {
    fn new(limit: usize) -> Arc<Count> {
        Arc::new(Count { limit, number: AtomicUsize::new(0) })
    }

    fn take(self: &Arc<Self>, what: &str) -> Result<Counted, StoreError> {
        let counted = Counted(self.clone());
        if self.number.fetch_add(1, Ordering::Relaxed) < self.limit {
            return Ok(counted);
        }
        let text = format!("there are {} {what} at present, which is the limit", self.limit);
        Err(StoreError::new(ErrorKind::Busy, text))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.number.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state that is kept for a connection.
#[derive(derive_more::Debug)]
#[debug("WatchConnection")]
pub struct WatchConnection {
    line: Arc<Line>,
    allowance: Arc<Allowance>,
    watches: Arc<Count>,
    notifies: Arc<Count>,
    /// The watches, by the ids of the requests that made them.
    watching: HashMap<u64, Watching>,
    /// The ids of those requests, by the watchers' ids.
    watchers: HashMap<u64, u64>,
}

/// A watch of a connection.
struct Watching {
    watcher: u64,
    abort: AbortHandle,
    tray: Arc<Tray>,
}

/// The state that a watch and its connection share.
#[derive(Default)]
struct Tray {
    state: Mutex<TrayState>,
}

#[derive(Default)]
struct TrayState {
    /// The notifications that wait for acknowledgements, without their payloads.
    unacknowledged: VecDeque<Notification>,
    /// The position of the latest event, 0 if there was none.
    position: u64,
    /// Its part of the watches that there may be, until it ends.
    counted: Option<(Counted, Counted)>,
}

/// The events of a connection that are under way.
struct Line {
    number: u64,
    state: Mutex<Flow>,
}

#[derive(Default)]
struct Flow {
    /// The bytes of the events that were sent, and of those that the client has taken.
    sent: u64,
    taken: u64,
    waiting: Vec<Waker>,
}

impl Line {
    /// Notes that the client has taken the events up to a position.
    fn take(&self, position: u64) {
        let mut flow = self.state.lock();
        flow.taken = flow.taken.max(position.min(flow.sent));
        // All that wait are woken, so they wait until there is room for many events: thousands of watches would else be
        // polled for each event that the client takes.
        if flow.sent - flow.taken > WINDOW_BYTES / 2 {
            return;
        }
        let waiting = std::mem::take(&mut flow.waiting);
        drop(flow);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn poll_space(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut flow = self.state.lock();
        if flow.sent - flow.taken < WINDOW_BYTES {
            return Poll::Ready(());
        }
        flow.waiting.push(context.waker().clone());
        Poll::Pending
    }

    /// Sends an event. Returns false if nobody wants it any more.
    fn send(&self, publisher: &Publisher, report: &Report, tray: &Tray) -> bool {
        let mut flow = self.state.lock();
        let payload_bytes = if let Report::Notified { payload, .. } = report { payload.len() } else { 0 };
        flow.sent += (payload_bytes + 34 + EVENT_OVERHEAD_BYTES) as u64;
        tray.state.lock().position = flow.sent;
        // With the lock held, so that positions have the order of the events.
        publisher.push(wire::event(report, flow.sent))
    }
}

impl WatchService {
    /// Creates the service for those objects of `store` that the server keeps according to `membership`.
    pub fn new(store: Arc<dyn ObjectStore>, membership: Membership) -> WatchService {
        WatchService {
            store,
            membership,
            allowance: Allowance::new(SERVER_BYTES_MAX, None),
            watches: Count::new(WATCHES_MAX),
            notifies: Count::new(NOTIFIES_MAX),
            totals: Arc::default(),
        }
    }

    /// Returns a reader of the service's counters.
    pub fn stats(&self) -> WatchStats {
        WatchStats {
            watches: self.watches.clone(),
            notifies: self.notifies.clone(),
            totals: self.totals.clone(),
        }
    }

    fn check_place(&self, object: &nacre_object::ObjectId) -> Result<(), StoreError> {
        if self.membership.keeps(object) {
            return Ok(());
        }
        let text = format!("object \"{object}\" is kept by another member of the store");
        Err(StoreError::new(ErrorKind::Invalid, text))
    }

    fn watch(
        &self,
        connection: &mut WatchConnection,
        request: &Incoming<'_>,
    ) -> Result<PendingWatch, StoreError> {
        let wire::Watching { watcher, object } = wire::get_watch(&request.body)?;
        self.check_place(&object)?;
        let counted = (connection.watches.take("watches on the connection")?, self.watches.take("watches")?);
        let publisher = request.subscribe()?;
        let options = WatchOptions {
            id: Some(watcher),
            events_max: EVENTS_MAX,
            bytes_max: WATCH_BYTES_MAX,
            allowance: Some(connection.allowance.clone()),
        };
        let reply = self.store.watch(&object, options);
        let beginning = Some(Box::new(Beginning { watcher, counted, publisher }));
        Ok(PendingWatch::Watch { beginning, reply })
    }

    fn notify(
        &self,
        connection: &mut WatchConnection,
        request: &Incoming<'_>,
    ) -> Result<PendingWatch, StoreError> {
        let wire::Notifying { object, timeout, payload } = wire::get_notify(&request.body)?;
        self.check_place(&object)?;
        check_notification(&payload, timeout)?;
        let counted = (
            connection.notifies.take("notifications under way on the connection")?,
            self.notifies.take("notifications under way")?,
        );
        let reply = self.store.notify(&object, payload, timeout);
        Ok(PendingWatch::Notify { _counted: counted, reply })
    }

    /// Begins to hand a watch's events to its connection.
    fn begin(
        &self,
        connection: &mut WatchConnection,
        id: u64,
        beginning: Beginning,
        watch: Watch,
        outbox: &mut Outbox,
    ) -> Result<(), StoreError> {
        let Beginning { watcher, counted, publisher } = beginning;
        let line = connection.line.clone();
        let tray = Arc::new(Tray::default());
        tray.state.lock().counted = Some(counted);
        let version = watch.version();
        let (abort, registration) = AbortHandle::new_pair();
        let work = forward(watch, publisher, line.clone(), tray.clone(), self.totals.clone());
        Relay::start(Abortable::new(work, registration).map(drop).boxed());
        if connection.watching.len() >= CONNECTION_WATCHES_MAX {
            connection.watching.retain(|_, watching| watching.tray.state.lock().counted.is_some());
            let watching = &connection.watching;
            connection.watchers.retain(|_, id| watching.contains_key(id));
        }
        connection.watching.insert(id, Watching { watcher, abort, tray });
        connection.watchers.insert(watcher, id);
        wire::put_began(outbox, id, &Began { version, line: line.number })
    }

    fn settle_request(
        &self,
        connection: &mut WatchConnection,
        id: u64,
        result: WatchResult,
        outbox: &mut Outbox,
    ) {
        let put = match result {
            WatchResult::Watch(beginning, watch) => {
                watch.and_then(|watch| self.begin(connection, id, *beginning, watch, outbox))
            }
            WatchResult::Notify(notified) => {
                notified.and_then(|notified| wire::put_notified(outbox, id, &notified))
            }
        };
        if let Err(error) = put {
            control::put_error(outbox, id, &error);
        }
    }
}

/// Hands the events of a watch to its connection, as far as the client takes them.
async fn forward(
    mut watch: Watch,
    publisher: Publisher,
    line: Arc<Line>,
    tray: Arc<Tray>,
    totals: Arc<Totals>,
) {
    let end = loop {
        // While there is no room, events wait in their queue, where they become a gap if they are too many. Room and event
        // are taken in one step, so that of many watches only one takes the last room.
        let event = poll_fn(|context| {
            ready!(line.poll_space(context));
            watch.poll_next(context)
        });
        let report = match event.await {
            None => break None,
            Some(Err(error)) => break Some(error),
            Some(Ok(Event::Changed { version })) => Report::Changed { version },
            Some(Ok(Event::Gap(gap))) => Report::Gap(gap),
            Some(Ok(Event::Notified(mut notification))) => {
                let report = Report::Notified { id: notification.id(), payload: notification.take_payload() };
                let unacknowledged = &mut tray.state.lock().unacknowledged;
                if unacknowledged.len() >= UNACKNOWLEDGED_MAX {
                    unacknowledged.pop_front();
                }
                unacknowledged.push_back(notification);
                report
            }
        };
        if !line.send(&publisher, &report, &tray) {
            break None;
        }
        let total = if matches!(report, Report::Gap(_)) { &totals.gaps } else { &totals.events };
        total.fetch_add(1, Ordering::Relaxed);
    };
    tray.state.lock().counted = None;
    if let Some(error) = end {
        publisher.fail(error);
    }
}

impl WatchConnection {
    fn acknowledge(&self, request: &Incoming<'_>) -> Result<(), StoreError> {
        let acknowledging = wire::get_acknowledge(&request.body)?;
        let watching = self.watchers.get(&acknowledging.watcher).and_then(|id| self.watching.get(id));
        let Some(watching) = watching else { return Ok(()) };
        let mut state = watching.tray.state.lock();
        let index = state.unacknowledged.iter().position(|known| known.id() == acknowledging.notification);
        let notification = index.and_then(|index| state.unacknowledged.remove(index));
        drop(state);
        // One that is over, or was never sent, interests nobody.
        notification.map_or(Ok(()), |notification| notification.acknowledge(acknowledging.reply))
    }

    fn taken(&self, request: &Incoming<'_>) -> Result<(), StoreError> {
        let taken = wire::get_taken(&request.body)?;
        if taken.line == self.line.number {
            self.line.take(taken.position);
        }
        Ok(())
    }

    fn forget(&mut self, id: u64) {
        let Some(watching) = self.watching.remove(&id) else { return };
        watching.abort.abort();
        if self.watchers.get(&watching.watcher) == Some(&id) {
            self.watchers.remove(&watching.watcher);
        }
        let mut state = watching.tray.state.lock();
        state.counted = None;
        // The client takes none of its events any more, so they must not hold up those of others.
        let position = state.position;
        drop(state);
        self.line.take(position);
    }
}

impl Drop for WatchConnection {
    fn drop(&mut self) {
        self.watching.values().for_each(|watching| watching.abort.abort());
    }
}

/// A watch that is about to begin.
#[derive(derive_more::Debug)]
#[debug("Beginning")]
pub struct Beginning {
    watcher: u64,
    counted: (Counted, Counted),
    publisher: Publisher,
}

/// A reply that the store has not made yet.
#[derive(derive_more::Debug)]
pub enum PendingWatch {
    /// The beginning of a watch.
    #[debug("Watch")]
    Watch {
        /// The watch; `None` once the reply has been made.
        beginning: Option<Box<Beginning>>,
        /// The store's reply.
        reply: Reply<Watch>,
    },
    /// The outcome of a notification.
    #[debug("Notify")]
    Notify {
        /// Its share of the bytes that may be under way.
        _counted: (Counted, Counted),
        /// The store's reply.
        reply: Reply<Notified>,
    },
}

/// A reply that the store has made.
#[derive(derive_more::Debug)]
pub enum WatchResult {
    /// The beginning of a watch.
    #[debug("Watch")]
    Watch(Box<Beginning>, Result<Watch, StoreError>),
    /// The outcome of a notification.
    #[debug("Notify")]
    Notify(Result<Notified, StoreError>),
}

impl Future for PendingWatch {
    type Output = WatchResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<WatchResult> {
        match self.get_mut() {
            PendingWatch::Watch { beginning, reply } => Pin::new(reply).poll(context).map(|watch| {
                // Polling a future again after it gave its answer is a bug of the caller, as for any future.
                WatchResult::Watch(beginning.take().expect("polled after it was ready"), watch)
            }),
            PendingWatch::Notify { reply, .. } => Pin::new(reply).poll(context).map(WatchResult::Notify),
        }
    }
}

impl Service for WatchService {
    type Connection = WatchConnection;
    type Pending = PendingWatch;

    fn number(&self) -> u8 {
        wire::WATCH_SERVICE
    }

    /// A notification that waits for acknowledgements must not hold up the end of the server.
    fn is_awaited(&self) -> bool {
        false
    }

    fn open(&self, _peer: &Peer) -> WatchConnection {
        let number = rand::random();
        WatchConnection {
            line: Arc::new(Line { number, state: Mutex::default() }),
            allowance: Allowance::new(CONNECTION_BYTES_MAX, Some(self.allowance.clone())),
            watches: Count::new(CONNECTION_WATCHES_MAX),
            notifies: Count::new(CONNECTION_NOTIFIES_MAX),
            watching: HashMap::new(),
            watchers: HashMap::new(),
        }
    }

    fn handle(
        &self,
        connection: &mut WatchConnection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<PendingWatch> {
        let id = request.id;
        let taken = match request.kind {
            wire::WATCH => self.watch(connection, &request).map(Some),
            wire::NOTIFY => self.notify(connection, &request).map(Some),
            wire::ACKNOWLEDGE => connection.acknowledge(&request).map(|()| None),
            wire::TAKEN => connection.taken(&request).map(|()| None),
            _ => {
                control::put_error(outbox, id, &request.unsupported());
                return Handled::Uncounted;
            }
        };
        match taken {
            Err(error) => control::put_error(outbox, id, &error),
            Ok(None) => {
                control::put_bare(outbox, wire::NOTED, id);
                return Handled::Uncounted;
            }
            Ok(Some(mut pending)) => {
                match Pin::new(&mut pending).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Pending => return Handled::Later(pending),
                    Poll::Ready(result) => self.settle_request(connection, id, result, outbox),
                }
            }
        }
        Handled::Answered
    }

    fn finish(&self, connection: &mut WatchConnection, id: u64, result: WatchResult, outbox: &mut Outbox) {
        self.settle_request(connection, id, result, outbox);
    }

    fn cancelled(&self, connection: &mut WatchConnection, id: u64) {
        connection.forget(id);
    }

    fn broken(&self, connection: &mut WatchConnection) {
        self.ended(connection);
    }

    fn ended(&self, connection: &mut WatchConnection) {
        connection.watching.drain().for_each(|(_, watching)| watching.abort.abort());
        connection.watchers.clear();
    }
}
