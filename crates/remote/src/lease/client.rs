//! The client side of the service: a store behind servers whose answers about leased objects are cached.
//!
//! For each server there is a session, opened when something is read there that can be leased, and a task that renews it and forgets
//! what the server asks back. What is known is trusted by the client's own clock, and for less time than the server grants: a program
//! that was stopped, or whose server is out of reach, asks again when it goes on.

use std::collections::{HashMap, HashSet};
use std::future::{pending, poll_fn};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::{BoxFuture, join_all};
use nacre_object::watch::{Notified, Watch, WatchOptions};
use nacre_object::{
    ErrorKind, Limits, ObjectId, ObjectStore, Once, Outcome, ReadOp, Reply, StoreError, Transaction,
    WindowPosition,
};
use nacre_rpc::client::{Call, Event, Link, Subscription};
use nacre_rpc::{MessageKind, Outbox, control};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep_until};

use super::cache::{Cache, CacheCounts, Course, Surplus};
use super::is_leasable;
use super::table::Renewal;
use super::wire::{
    self, GIVEN_BACK_MAX, GivingBack, Granted, LEASE_SERVICE, Leasing, READ_OBJECTS_MAX, READS_MAX, Reading,
    is_short,
};
use crate::store::RemoteStore;

/// The pause before a session is opened again after one has ended.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause before a server is asked again that grants no leases.
const UNSUPPORTED_PAUSE: Duration = Duration::from_secs(60);

/// Returns the time since the machine was started, the time that it slept included.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is negative: the clock counts up from 0.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the time for which a client trusts leases of a length, from the request on: less than the server does, because clocks
/// differ in speed, and because a moment passes between a look at the clock and an answer.
pub(super) fn trusted(length: Duration) -> Duration {
    length - length / 8
}

/// A store behind servers that answers reads of directories and inodes of the namespace from memory, as long as it has leases on them.
/// Cheap to clone; clones share what they know.
///
/// It answers as the store does: a change that was acknowledged, whoever made it, is seen by every later read. Servers that grant no
/// leases are asked each time.
#[derive(Clone, derive_more::Debug)]
#[debug("LeasedStore")]
pub struct LeasedStore {
    inner: Arc<Inner>,
}

struct Inner {
    /// The store that is asked.
    store: Arc<dyn ObjectStore>,
    /// The servers behind it.
    remote: RemoteStore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cache: Cache,
    /// The links of the sessions, by their servers.
    links: HashMap<usize, Arc<Link>>,
    /// The servers with which a session is being opened, or not before a time.
    closed: HashMap<usize, Closed>,
    /// The servers with sessions that lease objects one by one only: those of earlier versions.
    one_by_one: HashSet<usize>,
    /// True if no session is opened any more.
    has_ended: bool,
}

enum Closed {
    Opening,
    Until(Duration),
}

impl LeasedStore {
    /// Creates a store that caches what `remote` answers.
    pub fn new(remote: RemoteStore) -> LeasedStore {
        LeasedStore::over(Arc::new(remote.clone()), remote)
    }

    /// Creates a store that caches what `store` answers, which passes everything on to the servers of `remote`.
    pub fn over(store: Arc<dyn ObjectStore>, remote: RemoteStore) -> LeasedStore {
        LeasedStore { inner: Arc::new(Inner { store, remote, state: Mutex::default() }) }
    }

    /// Returns the counts of what is known, and of what was answered.
    pub fn counts(&self) -> CacheCounts {
        self.inner.state.lock().cache.counts()
    }

    /// Ends the sessions, so that nobody waits for this client's leases any more. Every read is passed on from now on. Returns when the
    /// servers have been told, or cannot be.
    pub async fn end(&self) {
        let sessions = self.inner.state.lock().end();
        let ends = sessions.into_iter().map(|(link, session)| async move {
            let mut call = Call::start(link, Finishing { session });
            // A server that is not told waits for the session to lapse.
            let _ = poll_fn(|context| call.poll_frame(context.waker())).await;
        });
        join_all(ends).await;
    }

    fn read(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let inner = &self.inner;
        let Some((server, link)) = inner.remote.keeper(object) else {
            return inner.store.apply(object, transaction);
        };
        let mut state = inner.state.lock();
        let course = state.cache.look(server, object, &transaction.reads, now());
        let token = match course {
            Course::Known(done) => return Reply::ready(Ok(Outcome::Done(done))),
            Course::Pass => {
                let opens = state.begins_session(server);
                drop(state);
                if opens {
                    inner.begin_session(server, link);
                }
                return inner.store.apply(object, transaction);
            }
            Course::Learn(token) => {
                drop(state);
                token
            }
            Course::Ask { token, session } => {
                let surplus = state.cache.evict();
                drop(state);
                inner.give_back(surplus);
                // It may have been evicted itself: then the lease is given back.
                inner.ask(link, Leasing { session, number: token, object: object.clone() });
                token
            }
        };
        let reads = transaction.reads.clone();
        let reply = inner.store.apply(object, transaction);
        let (inner, object) = (inner.clone(), object.clone());
        Reply::pending(async move {
            let outcome = reply.await;
            if let Ok(Outcome::Done(done)) = &outcome {
                let mut state = inner.state.lock();
                state.cache.learn(&object, token, &reads, done);
                let surplus = state.cache.evict();
                drop(state);
                inner.give_back(surplus);
            }
            outcome
        })
    }

    /// Leases objects that have no leases and reads them under these, many by one message. The answer is there when all that can be known
    /// of them is, and is the number of those that are leased.
    fn lease_ahead(&self, objects: &[ObjectId], reads: &[ReadOp]) -> Reply<usize> {
        let inner = &self.inner;
        let mut servers: HashMap<usize, (Arc<Link>, Vec<ObjectId>)> = HashMap::new();
        if reads.len() <= READS_MAX && reads.iter().all(is_short) {
            for object in objects.iter().filter(|object| is_leasable(object)) {
                let Some((server, link)) = inner.remote.keeper(object) else { continue };
                let (_, objects) = servers.entry(server).or_insert_with(|| (link, Vec::new()));
                objects.push(object.clone());
            }
        }
        let mut ends = Vec::new();
        for (server, (link, objects)) in servers {
            let mut state = inner.state.lock();
            if state.one_by_one.contains(&server) {
                continue;
            }
            let Some(ahead) = state.cache.look_ahead(server, objects, now()) else { continue };
            let surplus = state.cache.evict();
            drop(state);
            inner.give_back(surplus);
            let mut number = ahead.first;
            for objects in ahead.objects.chunks(READ_OBJECTS_MAX) {
                let (session, objects) = (ahead.session, objects.to_vec());
                let reading = Reading { session, number, reads: reads.to_vec(), objects };
                number += reading.objects.len() as u64;
                ends.push(inner.ask_many(server, &link, reading));
            }
        }
        let (inner, objects) = (inner.clone(), objects.to_vec());
        let leased = move || {
            let state = inner.state.lock();
            objects.iter().filter(|object| state.cache.remembers(object)).count()
        };
        if ends.is_empty() {
            return Reply::ready(Ok(leased()));
        }
        Reply::pending(async move {
            // Those that cannot be known are told of too: by the end of the task that asks.
            join_all(ends).await;
            Ok(leased())
        })
    }

    /// Forgets an object that is about to be changed. Its lease is given back ahead of the change, which would wait for it.
    fn forget(&self, object: &ObjectId) {
        let surplus = self.inner.state.lock().cache.forget(object);
        if let Some(surplus) = surplus {
            self.inner.give_back(vec![surplus]);
        }
    }
}

impl State {
    /// Forgets everything, for good. Returns the sessions that are to be ended.
    fn end(&mut self) -> Vec<(Arc<Link>, u64)> {
        self.has_ended = true;
        let mut sessions = Vec::new();
        for (server, link) in self.links.drain() {
            sessions.extend(self.cache.session(server).map(|session| (link, session)));
            self.cache.lose(server);
        }
        sessions
    }

    /// Notes that a server leases objects one by one only, as long as a session with it lasts. Another one may be with another version.
    fn lease_one_by_one(&mut self, server: usize, session: u64) {
        if self.cache.session(server) == Some(session) {
            self.one_by_one.insert(server);
        }
    }

    /// Returns whether a session with a server is to be opened now, and notes that it is.
    fn begins_session(&mut self, server: usize) -> bool {
        let may = match self.closed.get(&server) {
            None => true,
            Some(Closed::Opening) => false,
            Some(Closed::Until(time)) => *time <= now(),
        };
        if !may || self.has_ended || self.cache.session(server).is_some() {
            return false;
        }
        self.closed.insert(server, Closed::Opening);
        true
    }
}

impl Inner {
    /// Opens a session with a server, in a task that lasts as long as the session.
    fn begin_session(self: &Arc<Self>, server: usize, link: Arc<Link>) {
        let ending = Ending { inner: Arc::downgrade(self), server, pause: PAUSE };
        let host = link.clone();
        // Without a thread for it, the task is dropped, and with it the note that the session is being opened.
        let _ = host.host().spawn(run(link, ending));
    }

    /// Asks for a lease.
    fn ask(self: &Arc<Self>, link: Arc<Link>, leasing: Leasing) {
        let inner = Arc::downgrade(self);
        let Leasing { session, number, object } = leasing.clone();
        // Submitted here, so that it is on its way before the read whose answer it covers.
        let mut call = Call::start(link.clone(), leasing);
        let back = link.clone();
        let asked = async move {
            let granted = match poll_fn(|context| call.poll_frame(context.waker())).await {
                Ok(frame) if frame.kind == wire::LEASED => wire::get_leased(&frame.body).unwrap_or_default(),
                _ => Granted::default(),
            };
            let Some(inner) = inner.upgrade() else { return };
            let is_held = inner.state.lock().cache.granted(&object, number, session, granted);
            if !is_held {
                let leases = vec![(object, number)];
                post(&back, GivingBack { session, leases });
            }
        };
        // If there is no thread for it, nothing is known of the object until the session ends.
        let _ = link.host().spawn(asked);
    }

    /// Asks for leases on several objects and for what is in them. The receiver hears of the end of that.
    fn ask_many(
        self: &Arc<Self>,
        server: usize,
        link: &Arc<Link>,
        reading: Reading,
    ) -> oneshot::Receiver<()> {
        let inner = Arc::downgrade(self);
        let (sender, end) = oneshot::channel();
        let mut call = Call::start(link.clone(), reading.clone());
        let back = link.clone();
        let asked = async move {
            let frame = poll_fn(|context| call.poll_frame(context.waker())).await;
            let Some(inner) = inner.upgrade() else { return };
            let answered = match &frame {
                Ok(frame) if frame.kind == wire::ANSWERED => {
                    wire::get_answered(&frame.body).unwrap_or_default()
                }
                Ok(frame) => {
                    if is_unsupported(frame) {
                        inner.state.lock().lease_one_by_one(server, reading.session);
                    }
                    Vec::new()
                }
                Err(_) => Vec::new(),
            };
            let Reading { session, number, reads, objects } = reading;
            let mut unused = Vec::new();
            // What is not answered is not leased.
            let answers = answered.into_iter().chain(std::iter::repeat(None));
            for ((number, object), done) in (number..).zip(objects).zip(answers) {
                let granted = done.as_ref().map(|done| Granted { number, version: done.version });
                // Each by itself: meanwhile others are answered.
                let mut state = inner.state.lock();
                let is_held = state.cache.granted(&object, number, session, granted.unwrap_or_default());
                if let (true, Some(done)) = (is_held, &done) {
                    state.cache.learn(&object, number, &reads, done);
                }
                drop(state);
                if !is_held {
                    unused.push((object, number));
                }
            }
            let surplus = inner.state.lock().cache.evict();
            inner.give_back(surplus);
            if !unused.is_empty() {
                post(&back, GivingBack { session, leases: unused });
            }
            // Whoever waits is told by the end of it.
            drop(sender);
        };
        // As for a single lease.
        let _ = link.host().spawn(asked);
        end
    }

    /// Gives leases back, if the sessions last in which they were granted.
    fn give_back(&self, surplus: Vec<Surplus>) {
        let mut sessions: HashMap<(usize, u64), Vec<(ObjectId, u64)>> = HashMap::new();
        let mut links = HashMap::new();
        for Surplus { server, session, object, number } in surplus {
            if let Some((server, link)) = self.remote.keeper(&object).filter(|(keeper, _)| *keeper == server)
            {
                links.insert(server, link);
                sessions.entry((server, session)).or_default().push((object, number));
            }
        }
        for ((server, session), leases) in sessions {
            let Some(link) = links.get(&server) else { continue };
            for leases in leases.chunks(GIVEN_BACK_MAX) {
                post(link, GivingBack { session, leases: leases.to_vec() });
            }
        }
    }
}

/// Sends leases back to a server; the reply interests nobody.
fn post(link: &Arc<Link>, giving: GivingBack) {
    let mut call = Call::start(link.clone(), giving);
    // Without a thread to send it, the server asks for them when it needs them.
    let _ = link.host().spawn(async move {
        let _ = poll_fn(|context| call.poll_frame(context.waker())).await;
    });
}

/// Forgets a session when its task ends, however it does.
struct Ending {
    inner: Weak<Inner>,
    server: usize,
    /// The time for which no other one is opened.
    pause: Duration,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(inner) = self.inner.upgrade() else { return };
        let mut state = inner.state.lock();
        state.cache.lose(self.server);
        state.links.remove(&self.server);
        state.one_by_one.remove(&self.server);
        state.closed.insert(self.server, Closed::Until(now() + self.pause));
    }
}

/// Opens a session, and serves it to its end.
async fn run(link: Arc<Link>, mut ending: Ending) {
    let sent = now();
    let (frame, events) = match Subscription::start(link.clone(), Opening).await {
        Ok((frame, Some(events))) if frame.kind == wire::OPENED => (frame, events),
        Ok((frame, _)) => {
            if is_unsupported(&frame) {
                ending.pause = UNSUPPORTED_PAUSE;
            }
            return;
        }
        Err(_) => return,
    };
    let mut events = events;
    // Dropped before the subscription, whose end the server takes to mean that nothing is trusted any more.
    let ending = ending;
    let Ok(opened) = wire::get_opened(&frame.body) else { return };
    let (server, session) = (ending.server, opened.session);
    match ending.inner.upgrade() {
        None => return,
        Some(inner) => {
            let mut state = inner.state.lock();
            if state.has_ended {
                return;
            }
            state.links.insert(server, link.clone());
            state.cache.open(server, session, sent + trusted(opened.length));
            state.closed.remove(&server);
        }
    }
    let period = (opened.length / 4).max(Duration::from_millis(1));
    let mut renewing: Option<BoxFuture<'static, (Duration, Option<Renewal>)>> = None;
    let mut renew_at = Instant::now() + period;
    loop {
        let renewed = async {
            match &mut renewing {
                Some(renewing) => renewing.await,
                None => pending().await,
            }
        };
        tokio::select! {
            event = events.next() => {
                // A gap may have been anything, and a broken connection leaves no way to be asked.
                let Some(Ok(Event::Pushed(body))) = event else { return };
                let Ok((object, number)) = wire::get_revocation(&body) else { return };
                let Some(inner) = ending.inner.upgrade() else { return };
                inner.state.lock().cache.revoke(&object, session, number);
                post(&link, GivingBack { session, leases: vec![(object, number)] });
            }
            (sent, renewal) = renewed => {
                renewing = None;
                let Some(inner) = ending.inner.upgrade() else { return };
                match renewal {
                    Some(Renewal::Renewed) => {
                        inner.state.lock().cache.extend(server, session, sent + trusted(opened.length));
                        renew_at = Instant::now() + period;
                    }
                    // Something is asked back, which does not take long.
                    Some(Renewal::Unchanged) => renew_at = Instant::now() + period / 4,
                    Some(Renewal::Lapsed) | None => return,
                }
            }
            () = sleep_until(renew_at) => {
                // While a renewal is under way there is nothing to do at this time.
                renew_at = Instant::now() + period;
                if ending.inner.strong_count() == 0 {
                    return;
                }
                if renewing.is_none() {
                    renewing = Some(Box::pin(renew(link.clone(), session)));
                }
            }
        }
    }
}

/// Renews a session. Returns the time from which on it lasts, and the outcome; none if the server could not be asked.
async fn renew(link: Arc<Link>, session: u64) -> (Duration, Option<Renewal>) {
    let sent = now();
    let mut call = Call::start(link, Renewing { session });
    let renewal = match poll_fn(|context| call.poll_frame(context.waker())).await {
        Ok(frame) if frame.kind == wire::RENEWED => wire::get_renewed(&frame.body).ok(),
        _ => None,
    };
    (sent, renewal)
}

/// Returns whether a reply says that the server knows no leases.
fn is_unsupported(frame: &nacre_rpc::Frame) -> bool {
    let failure = if frame.kind == MessageKind::ERROR { control::get_failure(frame).ok() } else { None };
    failure.is_some_and(|error| error.kind == ErrorKind::Unsupported)
}

/// A request for a session.
struct Opening;

impl nacre_rpc::client::Request for Opening {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_open(outbox, id)
    }

    /// A session ends with the connection on which it was opened.
    fn is_read_only(&self) -> bool {
        true
    }

    fn cancels(&self) -> Option<u8> {
        Some(LEASE_SERVICE)
    }
}

impl nacre_rpc::client::Request for Leasing {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_lease(outbox, id, self)
    }

    /// Over another connection the session is none.
    fn is_read_only(&self) -> bool {
        false
    }
}

impl nacre_rpc::client::Request for Reading {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_reading(outbox, id, self)
    }

    /// Over another connection the session is none.
    fn is_read_only(&self) -> bool {
        false
    }
}

impl nacre_rpc::client::Request for GivingBack {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_give_back(outbox, id, self)
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

/// A request to renew a session.
struct Renewing {
    session: u64,
}

impl nacre_rpc::client::Request for Renewing {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_renew(outbox, id, self.session)
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

/// A request to end a session.
struct Finishing {
    session: u64,
}

impl nacre_rpc::client::Request for Finishing {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_end(outbox, id, self.session)
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

impl ObjectStore for LeasedStore {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if is_leasable(object) {
            if !transaction.writes.is_empty() {
                self.forget(object);
            } else if transaction.guards.is_empty() {
                return self.read(object, transaction);
            }
        }
        self.inner.store.apply(object, transaction)
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        if is_leasable(object) && !transaction.writes.is_empty() {
            self.forget(object);
        }
        self.inner.store.apply_once(object, transaction, once)
    }

    fn window(&self) -> Option<WindowPosition> {
        self.inner.store.window()
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.store.list(after, limit)
    }

    fn read_ahead(&self, objects: &[ObjectId], reads: &[ReadOp]) -> Option<Reply<usize>> {
        // Without a session with any server nothing is remembered.
        let remembers = self.inner.state.lock().cache.has_session();
        remembers.then(|| self.lease_ahead(objects, reads))
    }

    fn limits(&self) -> Reply<Limits> {
        self.inner.store.limits()
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        self.inner.store.watch(object, options)
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.inner.store.notify(object, payload, timeout)
    }
}
