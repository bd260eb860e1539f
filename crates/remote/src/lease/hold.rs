//! The leases of a server: the table with time, revocations that are sent to their holders, and writes that wait for them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_object::{
    ErrorKind, ObjectId, ObjectStore, Once, Outcome, Reply, StoreError, Transaction, WriteOp,
};
use nacre_rpc::Origin;
use nacre_rpc::server::Publisher;
use parking_lot::{Condvar, Mutex};

use super::suspension::Client;
use super::table::{LeaseCounts, LeaseTable, Renewal, Revocation, Unopened};
use super::{is_leasable, wire};

/// The leases on the objects of a store, all of whose writes pass through [`Leases::apply`]. The store must apply a transaction
/// while its reply is made, and never later: one that is in front of another server does not.
#[derive(derive_more::Debug)]
#[debug("Leases")]
pub struct Leases {
    began: Instant,
    state: Mutex<State>,
    /// Wakes the thread that ends waits.
    wake: Condvar,
    /// True if a later start of the server will know that there were leases, or need not.
    marked: AtomicBool,
    /// The number of the next connection.
    next_connection: AtomicU64,
}

struct State {
    table: LeaseTable,
    /// The ways to the holders of sessions whose connections stand.
    publishers: HashMap<u64, Arc<Publisher>>,
    /// The writes that wait, by their objects.
    waiting: HashMap<ObjectId, HashMap<u64, Waker>>,
    next_write: u64,
    /// The time at which the waiting writes are to look again.
    alarm: Option<Duration>,
    /// True while the thread runs that wakes them.
    running: bool,
    /// The object whose existence tells that there were leases; `None` if the store is gone with the server.
    mark: Option<ObjectId>,
}

impl Leases {
    /// Creates the leases of a store that is gone with its server, each of the length `length`.
    pub fn new(length: Duration) -> Arc<Leases> {
        // Numbers of an earlier start mean nothing to this one.
        let first = u64::from(rand::random::<u32>()) << 20;
        let state = State {
            table: LeaseTable::new(length, first),
            publishers: HashMap::new(),
            waiting: HashMap::new(),
            next_write: 0,
            alarm: None,
            running: false,
            mark: None,
        };
        Arc::new(Leases {
            began: Instant::now(),
            state: Mutex::new(state),
            wake: Condvar::new(),
            marked: AtomicBool::new(true),
            next_connection: AtomicU64::new(0),
        })
    }

    /// Prepares the leases of a store that outlives its server, before the first write. The object `mark` is created with the first
    /// lease; with `is_marked` it exists, so there may be holders from before, and all writes that may concern them wait for the
    /// length of a lease.
    pub fn recover(&self, mark: ObjectId, is_marked: bool) {
        let now = self.now();
        let mut state = self.state.lock();
        state.mark = Some(mark);
        if is_marked {
            state.table.hold(now);
        }
        self.marked.store(is_marked, Ordering::Release);
    }

    /// Returns the counts.
    pub fn counts(&self) -> LeaseCounts {
        let now = self.now();
        self.state.lock().table.counts(now)
    }

    /// Returns the number of writes that wait for leases to be given back.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.values().map(HashMap::len).sum()
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Applies a transaction at `store`: at once, or when the leases on the object are given back or over, if there are any and the
    /// transaction changes something.
    pub fn apply<S: ObjectStore + Clone>(
        self: &Arc<Self>,
        store: &S,
        object: &ObjectId,
        transaction: Transaction,
        once: Option<Once>,
    ) -> Reply<Outcome> {
        if transaction.writes.is_empty() || !is_leasable(object) {
            return submit(store, object, transaction, once);
        }
        let (mut admission, waits) = Admission::new(self.clone(), object.clone());
        if !waits {
            return match submit(store, object, transaction, once) {
                // No lease is granted before the write has been made for certain.
                Reply::Pending(reply) => Reply::pending(async move {
                    let result = reply.await;
                    drop(admission);
                    result
                }),
                ready => ready,
            };
        }
        let store = store.clone();
        Reply::pending(async move {
            poll_fn(|context| admission.poll(context)).await?;
            let result = submit(&store, &admission.object, transaction, once).await;
            drop(admission);
            result
        })
    }

    /// Sees that a later start of the server will know of leases.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn mark(&self, store: &dyn ObjectStore) -> Result<(), StoreError> {
        if self.marked.load(Ordering::Acquire) {
            return Ok(());
        }
        let mark = self.state.lock().mark.clone();
        if let Some(mark) = mark {
            store.apply(&mark, Transaction::new().change(WriteOp::Create)).await?;
        }
        self.marked.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the client of a new connection from a place.
    pub(super) fn client(&self, origin: Option<Origin>) -> Client {
        Client { connection: self.next_connection.fetch_add(1, Ordering::Relaxed), origin }
    }

    /// Opens a session of a client, who hears of revocations by `publisher`. Returns its number and the length of leases.
    ///
    /// # Errors
    /// `Busy` if there are too many, or if changes had to wait for the client.
    pub(super) fn open(&self, client: Client, publisher: Publisher) -> Result<wire::Opened, StoreError> {
        let now = self.now();
        let mut state = self.state.lock();
        let session = state.table.open(client, now).map_err(|reason| {
            let text = match reason {
                Unopened::Full => "there are as many sessions with leases as there may be",
                Unopened::Suspended => {
                    "the client gets no leases for a while, because a change had to wait for one that it did not give \
                     back in time"
                }
            };
            StoreError::new(ErrorKind::Busy, text)
        })?;
        state.publishers.insert(session, Arc::new(publisher));
        Ok(wire::Opened { session, length: state.table.length() })
    }

    /// Notes that a session's connection is gone. Its leases last until it lapses: its holder may not know yet.
    pub(super) fn part(&self, session: u64) {
        let publisher = self.state.lock().publishers.remove(&session);
        drop(publisher);
    }

    /// Ends a session, whose holder relies on nothing any more.
    pub(super) fn end(self: &Arc<Self>, session: u64) {
        let now = self.now();
        let mut state = self.state.lock();
        let publisher = state.publishers.remove(&session);
        let mut wakers = Vec::new();
        for object in state.table.end(session, now) {
            wakers.extend(self.release(&mut state, &object, now));
        }
        drop(state);
        drop(publisher);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn renew(&self, session: u64) -> Renewal {
        let now = self.now();
        self.state.lock().table.renew(session, now)
    }

    pub(super) fn grant(&self, session: u64, object: &ObjectId, number: u64) -> bool {
        let now = self.now();
        self.state.lock().table.grant(session, object, number, now)
    }

    pub(super) fn give_back(self: &Arc<Self>, session: u64, leases: &[(ObjectId, u64)]) {
        let now = self.now();
        let mut state = self.state.lock();
        let mut wakers = Vec::new();
        for (object, number) in leases {
            state.table.give_back(session, object, *number, now);
            wakers.extend(self.release(&mut state, object, now));
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Takes the wakers of the writes that wait for an object if none of its leases is left. Otherwise they look again when those that
    /// are left lapse: where many wait for the leases of many, each lease that is given back is not to wake all of them.
    fn release(self: &Arc<Self>, state: &mut State, object: &ObjectId, now: Duration) -> Vec<Waker> {
        if !state.waiting.contains_key(object) {
            return Vec::new();
        }
        match state.table.blocked_until(object, now) {
            Some(until) if self.set_alarm(state, until).is_ok() => Vec::new(),
            _ => state.take_wakers(object).collect(),
        }
    }

    /// Has the waiting writes look again at a time.
    fn set_alarm(self: &Arc<Self>, state: &mut State, at: Duration) -> Result<(), StoreError> {
        if state.alarm.is_none_or(|alarm| at < alarm) {
            state.alarm = Some(at);
            self.wake.notify_one();
        }
        if state.running {
            return Ok(());
        }
        let leases = self.clone();
        let started =
            std::thread::Builder::new().name("nacre-leases".to_owned()).spawn(move || leases.ring());
        started.map_err(|error| {
            let text = format!("cannot start the thread that waits for leases to end: {error}");
            StoreError::new(ErrorKind::Io, text)
        })?;
        state.running = true;
        Ok(())
    }

    /// Wakes the waiting writes when it is time, until there is nothing to wait for.
    fn ring(&self) {
        let mut state = self.state.lock();
        while let Some(alarm) = state.alarm {
            let now = self.now();
            if now < alarm {
                self.wake.wait_for(&mut state, alarm - now);
                continue;
            }
            state.alarm = None;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.into_values().flat_map(HashMap::into_values).for_each(Waker::wake);
            state = self.state.lock();
        }
        state.running = false;
    }
}

impl State {
    /// Takes the wakers of the writes that wait for an object.
    fn take_wakers(&mut self, object: &ObjectId) -> impl Iterator<Item = Waker> + use<> {
        self.waiting.remove(object).into_iter().flat_map(HashMap::into_values)
    }
}

fn submit(
    store: &impl ObjectStore,
    object: &ObjectId,
    transaction: Transaction,
    once: Option<Once>,
) -> Reply<Outcome> {
    match once {
        None => store.apply(object, transaction),
        Some(once) => store.apply_once(object, transaction, once),
    }
}

/// A write of an object, from its arrival to its end.
struct Admission {
    leases: Arc<Leases>,
    object: ObjectId,
    number: u64,
}

impl Admission {
    /// Notes a write, and asks for the leases on its object. Returns whether it has to wait.
    fn new(leases: Arc<Leases>, object: ObjectId) -> (Admission, bool) {
        let now = leases.now();
        let mut state = leases.state.lock();
        let number = state.next_write;
        state.next_write += 1;
        let revocations = state.table.begin_write(&object, now);
        let waits = state.table.blocked_until(&object, now).is_some();
        let asked: Vec<(Arc<Publisher>, Bytes)> = revocations
            .into_iter()
            .filter_map(|Revocation { session, number }| {
                Some((state.publishers.get(&session)?.clone(), wire::revocation(&object, number)))
            })
            .collect();
        drop(state);
        // One that is not delivered, because its holder is too slow or gone, leaves the lease to lapse.
        for (publisher, event) in asked {
            publisher.push(event);
        }
        (Admission { leases, object, number }, waits)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StoreError>> {
        let now = self.leases.now();
        let mut state = self.leases.state.lock();
        let Some(until) = state.table.blocked_until(&self.object, now) else { return Poll::Ready(Ok(())) };
        let waiting = state.waiting.entry(self.object.clone()).or_default();
        waiting.insert(self.number, context.waker().clone());
        match self.leases.set_alarm(&mut state, until) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut state = self.leases.state.lock();
        state.table.end_write(&self.object);
        if let Some(waiting) = state.waiting.get_mut(&self.object) {
            waiting.remove(&self.number);
            if waiting.is_empty() {
                state.waiting.remove(&self.object);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_write_is_woken_by_the_last_lease_that_is_given_back() {
        let leases = Leases::new(Duration::from_secs(3600));
        let object: ObjectId = "nacre/fs/i/1".parse().unwrap();
        let sessions = [1, 2, 3].map(|number| {
            let mut state = leases.state.lock();
            let session = state.table.open(leases.client(None), Duration::ZERO).unwrap();
            assert!(state.table.grant(session, &object, number, Duration::ZERO));
            (session, [(object.clone(), number)])
        });
        let (mut admission, waits) = Admission::new(leases.clone(), object.clone());
        assert!(waits);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        assert!(admission.poll(&mut context).is_pending());
        let count = || wakes.0.load(Ordering::SeqCst);
        leases.give_back(sessions[0].0, &sessions[0].1);
        leases.end(sessions[1].0);
        assert_eq!((count(), leases.waiting()), (0, 1));
        leases.give_back(sessions[2].0, &sessions[2].1);
        assert_eq!(count(), 1);
        assert!(matches!(admission.poll(&mut context), Poll::Ready(Ok(()))));
        drop(admission);
        assert_eq!(leases.waiting(), 0);
    }
}
