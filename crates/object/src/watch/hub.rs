//! The watchers of the objects that one process keeps, and the delivery of events to them.
//!
//! An engine reports each change of a watched object under the object's lock ([`Hub::changed`]), so that changes are
//! queued in the order in which they took effect; with each comes a future, *durable*, which is ready when the change may be told. A
//! thread of the hub takes each object's items in that order, waits until they are durable, and hands them to all watchers: no
//! writer waits for a watcher. The queues of objects are bounded: changes beyond are told as gaps, notifications
//! refused.
//!
//! A change that may be told at once to a few watchers is handed to them by its writer, after it has released the object's lock
//! ([`Hub::changed_now`]): waking the thread would take the writer as long, and the watchers would wait for it.
//!
//! For an object that nobody watches, an engine pays one relaxed load ([`Hub::is_watched`]).
//!
//! The lock of the hub's state is taken inside of an object's lock. While it is held no other lock is taken but that of
//! a watcher's queue; the futures are polled, events delivered and callers woken without it.

mod notify;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::notify::{Notify, Slot, Waiting};
use super::{Acknowledge, Cause, Feed, Gap, Notification, Notified, Watch, WatchOptions, check_notification};
use crate::limit::WATCHERS_MAX;
use crate::{ErrorKind, ObjectId, Reply, StoreError};

/// The number of classes of hashes in which watched objects are counted.
const CLASSES: usize = 4096;
/// The number of changes of one object that may wait for delivery one by one.
const CHANGES_MAX: usize = 1024;
/// The number of notifications of one object that may wait for delivery.
const NOTIFICATIONS_MAX: usize = 64;
/// The bytes of notifications that may wait for delivery.
const NOTIFICATION_BYTES_MAX: usize = 32 << 20;
/// The acknowledgements that all notifications together may wait for, unless there is only one notification.
const AWAITED_MAX: usize = 1 << 20;
/// The number of watchers that are looked up at a time when an event is delivered.
const BATCH: usize = 256;
/// The number of watchers of an object, and of its items at a time, that a writer delivers to itself.
const FEW: usize = 4;

/// The watchers of the objects that a process keeps.
pub struct Hub {
    shared: Arc<HubShared>,
}

struct HubShared {
    /// The number of watched objects whose hashes are in each class. Raised under the object's lock.
    watched: Box<[AtomicU32]>,
    /// True if an item may have become durable since the thread looked.
    opened: AtomicBool,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    objects: HashMap<ObjectId, Watched>,
    /// Objects with items the first of which may be durable.
    ready: VecDeque<ObjectId>,
    /// Objects whose first items are not durable yet.
    waiting_objects: Vec<ObjectId>,
    notifies: HashMap<u64, Notify>,
    /// The notifications that wait for acknowledgements, by the times at which they are over.
    deadlines: BTreeSet<(Instant, u64)>,
    /// The number of the next item.
    sequence: u64,
    next_notification: u64,
    next_watcher: u64,
    watchers: usize,
    /// The bytes of notifications that wait for delivery.
    bytes: usize,
    /// The watchers that the notifications had when they were sent, over all notifications that have not ended.
    awaited: usize,
    running: bool,
    closed: Option<StoreError>,
}

/// A watched object.
struct Watched {
    class: usize,
    /// The watchers in the order in which they came, so that those of one connection are mostly beside each other.
    watchers: BTreeMap<u64, Watcher>,
    items: VecDeque<Item>,
    /// The number of notifications among them.
    notifications: usize,
    /// True while the object is in a list of the thread, in its hands, or in those of a writer that delivers.
    queued: bool,
    /// The notifications that wait for acknowledgements.
    notifies: Vec<u64>,
}

#[derive(Clone)]
struct Watcher {
    id: u64,
    /// The number of the first item that is for it.
    since: u64,
    feed: Arc<Feed>,
}

struct Item {
    sequence: u64,
    durable: Reply<()>,
    content: Content,
}

enum Content {
    Changed {
        version: u64,
        /// The number of earlier changes that are told with this one.
        skipped: u64,
    },
    Gap(Gap),
    Notified {
        id: u64,
        payload: Bytes,
    },
}

impl Default for Hub {
    fn default() -> Self {
        let state = State {
            objects: HashMap::new(),
            ready: VecDeque::new(),
            waiting_objects: Vec::new(),
            notifies: HashMap::new(),
            deadlines: BTreeSet::new(),
            sequence: 1,
            // A store that is opened again does not give the same ids.
            next_notification: RandomState::new().hash_one(0) >> 1 | 1,
            next_watcher: 1,
            watchers: 0,
            bytes: 0,
            awaited: 0,
            running: false,
            closed: None,
        };
        let shared = HubShared {
            watched: (0..CLASSES).map(|_| AtomicU32::new(0)).collect(),
            opened: AtomicBool::new(false),
            state: Mutex::new(state),
            wake: Condvar::new(),
        };
        Hub { shared: Arc::new(shared) }
    }
}

/// Returns the gap that stands for changes that came too fast.
fn slow(version: u64, changes: u64) -> Gap {
    Gap { version, changes: Some(changes), notifications: Some(0), cause: Cause::Slow }
}

fn class(hash: u64) -> usize {
    (hash >> 20) as usize % CLASSES
}

impl Hub {
    /// Returns whether an object whose name has this hash may be watched. Called under the object's lock.
    pub fn is_watched(&self, hash: u64) -> bool {
        // Watches begin under the object's lock too.
        self.shared.watched[class(hash)].load(Ordering::Relaxed) > 0
    }

    /// Returns the number of watches.
    pub fn watchers(&self) -> usize {
        self.shared.lock().watchers
    }

    /// Begins a watch of an object at its present version. Called under the object's lock; `hash` is that of its name.
    ///
    /// # Errors
    ///
    /// `Busy` if the object has [`WATCHERS_MAX`] watchers, `Io` if the thread of the hub cannot be started, and the
    /// error with which the hub was closed.
    pub fn watch(
        &self,
        object: &ObjectId,
        hash: u64,
        version: u64,
        options: &WatchOptions,
    ) -> Result<Watch, StoreError> {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        self.shared.start(state)?;
        let key = state.next_watcher;
        state.next_watcher += 1;
        let id = options.id.unwrap_or_else(|| RandomState::new().hash_one(key));
        let watched = state.objects.entry(object.clone()).or_insert_with(|| {
            self.shared.watched[class(hash)].fetch_add(1, Ordering::Relaxed);
            Watched {
                class: class(hash),
                watchers: BTreeMap::new(),
                items: VecDeque::new(),
                notifications: 0,
                queued: false,
                notifies: Vec::new(),
            }
        });
        if watched.watchers.len() >= WATCHERS_MAX {
            let text = format!("object \"{object}\" has {WATCHERS_MAX} watchers, as many as it may have");
            return Err(StoreError::new(ErrorKind::Busy, text));
        }
        let registration = Registration { hub: Arc::downgrade(&self.shared), object: object.clone(), key };
        let (feed, watch) = Watch::new(id, version, options, registration);
        let watcher = Watcher { id, since: state.sequence, feed: Arc::new(feed) };
        watched.watchers.insert(key, watcher);
        state.watchers += 1;
        Ok(watch)
    }

    /// Reports a change of an object, which may be told as soon as `durable` is ready. Called under the object's lock, in
    /// the order of the changes. If that fails, the object's watches end with its error.
    pub fn changed(&self, object: &ObjectId, version: u64, durable: Reply<()>) {
        let mut state = self.shared.lock();
        if state.add_change(object, version, durable) {
            self.shared.queue(state, object);
        }
    }

    /// Reports a change as [`Hub::changed`] does, which may be told at once. Returns true if the caller is to call [`Hub::deliver`] as
    /// soon as it has released the object's lock: until then nothing of the object is told.
    #[must_use]
    pub fn changed_now(&self, object: &ObjectId, version: u64) -> bool {
        let mut state = self.shared.lock();
        if !state.add_change(object, version, Reply::ready(Ok(()))) {
            return false;
        }
        let delivers = state.objects.get_mut(object).is_some_and(|watched| {
            let delivers = !watched.queued && watched.watchers.len() <= FEW;
            // From here on it is in the caller's hands.
            watched.queued |= delivers;
            delivers
        });
        if !delivers {
            self.shared.queue(state, object);
        }
        delivers
    }

    /// Hands the items of an object to its watchers, as [`Hub::changed_now`] has asked for. What is more than a few, or may not be told
    /// yet, is left to the thread.
    pub fn deliver(&self, object: &ObjectId) {
        let mut wakers = Vec::new();
        for _ in 0..FEW {
            let mut state = self.shared.lock();
            let item = state.objects.get_mut(object).and_then(|watched| watched.items.pop_front());
            let Some(mut item) = item else { return self.shared.settle(&mut state, object) };
            drop(state);
            let durable = Pin::new(&mut item.durable).poll(&mut Context::from_waker(Waker::noop()));
            match durable {
                Poll::Ready(Ok(())) => self.shared.deliver(object, item, &mut wakers),
                Poll::Ready(Err(error)) => {
                    self.shared.fail(object, &error, &mut wakers);
                    // It is forgotten: a watch that has begun since is in other hands.
                    return wakers.into_iter().for_each(Waker::wake);
                }
                Poll::Pending => {
                    if let Some(watched) = self.shared.lock().objects.get_mut(object) {
                        watched.items.push_front(item);
                    }
                    break;
                }
            }
            wakers.drain(..).for_each(Waker::wake);
        }
        let mut state = self.shared.lock();
        // What is left goes into the thread's list, and the object stays queued; it does not if nothing is left.
        self.shared.settle(&mut state, object);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Reports that changes or notifications of an object are missing here, behind all that was reported before. For engines
    /// that learn of changes from others.
    pub fn gap(&self, object: &ObjectId, gap: Gap) {
        let mut state = self.shared.lock();
        let sequence = state.sequence;
        let Some(watched) = state.objects.get_mut(object) else { return };
        let full = watched.items.len() >= CHANGES_MAX;
        match watched.items.back_mut() {
            Some(Item { sequence: last, content, .. })
                if full && !matches!(content, Content::Notified { .. }) =>
            {
                let mut whole = match content {
                    Content::Gap(before) => *before,
                    Content::Changed { version, skipped } => slow(*version, *skipped + 1),
                    // Not so, as was just seen.
                    Content::Notified { .. } => gap,
                };
                whole.extend(gap);
                (*last, *content) = (sequence, Content::Gap(whole));
            }
            _ => {
                let content = Content::Gap(gap);
                watched.items.push_back(Item { sequence, durable: Reply::ready(Ok(())), content });
            }
        }
        state.sequence += 1;
        self.shared.queue(state, object);
    }

    /// Returns whether an object has watchers.
    pub fn has_watchers(&self, object: &ObjectId) -> bool {
        self.shared.lock().objects.get(object).is_some_and(|watched| !watched.watchers.is_empty())
    }

    /// Ends the watches that an object has, behind all that was reported before, with an error.
    pub fn end(&self, object: &ObjectId, error: &StoreError) {
        // Only whoever has an object in its hands takes it out, because an item of it may be on its way.
        self.changed(object, 0, Reply::ready(Err(error.clone())));
    }

    /// Sends a notification to the watchers of an object, behind all of its changes so far.
    pub fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.send(object, None, payload, timeout)
    }

    /// Passes a notification on, as [`Hub::notify`] does, under the id that its sender gave it. No two may have the same id.
    pub fn notify_as(
        &self,
        object: &ObjectId,
        id: u64,
        payload: Bytes,
        timeout: Duration,
    ) -> Reply<Notified> {
        self.send(object, Some(id), payload, timeout)
    }

    fn send(&self, object: &ObjectId, id: Option<u64>, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        if let Err(error) = check_notification(&payload, timeout) {
            return Reply::ready(Err(error));
        }
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        if let Some(error) = &state.closed {
            return Reply::ready(Err(error.clone()));
        }
        let id = id.unwrap_or_else(|| {
            state.next_notification += 1;
            state.next_notification - 1
        });
        if state.notifies.contains_key(&id) {
            let text = format!("a notification with the id {id} is under way already");
            return Reply::ready(Err(StoreError::new(ErrorKind::Busy, text)));
        }
        let Some(watched) = state.objects.get_mut(object) else {
            return Reply::ready(Ok(Notified { id, ..Notified::default() }));
        };
        if watched.notifications >= NOTIFICATIONS_MAX || state.bytes + payload.len() > NOTIFICATION_BYTES_MAX
        {
            let text = format!("too many notifications of object \"{object}\" wait to be delivered");
            return Reply::ready(Err(StoreError::new(ErrorKind::Busy, text)));
        }
        let awaited = watched.watchers.len();
        if state.awaited > 0 && state.awaited + awaited > AWAITED_MAX {
            let text = format!(
                "the notifications under way wait for {} acknowledgements; with this one of object \"{object}\" they would be \
                 more than {AWAITED_MAX}",
                state.awaited
            );
            return Reply::ready(Err(StoreError::new(ErrorKind::Busy, text)));
        }
        let (sequence, deadline, slot) = (state.sequence, Instant::now() + timeout, Arc::<Slot>::default());
        state.sequence += 1;
        state.bytes += payload.len();
        state.awaited += awaited;
        watched.notifications += 1;
        watched.notifies.push(id);
        let content = Content::Notified { id, payload };
        watched.items.push_back(Item { sequence, durable: Reply::ready(Ok(())), content });
        let waiting = watched.watchers.iter().map(|(key, watcher)| (*key, watcher.id)).collect();
        let notify = Notify {
            object: object.clone(),
            deadline,
            awaited,
            waiting,
            delivered: false,
            outcome: Notified { id, ..Notified::default() },
            reply_bytes: 0,
            slot: slot.clone(),
        };
        state.notifies.insert(id, notify);
        state.deadlines.insert((deadline, id));
        self.shared.queue(guard, object);
        Reply::pending(Waiting { hub: Arc::downgrade(&self.shared), id, slot })
    }

    /// Ends all watches and notifications with an error, which later ones fail with.
    pub fn close(&self, error: &StoreError) {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        state.closed.get_or_insert_with(|| error.clone());
        let objects = std::mem::take(&mut state.objects);
        let notifies = std::mem::take(&mut state.notifies);
        state.deadlines.clear();
        (state.watchers, state.bytes, state.awaited) = (0, 0, 0);
        state.ready.clear();
        state.waiting_objects.clear();
        self.shared.wake.notify_all();
        drop(guard);
        for watched in objects.values() {
            self.shared.watched[watched.class].fetch_sub(1, Ordering::Relaxed);
            watched.watchers.values().for_each(|watcher| watcher.feed.end(Some(error.clone())));
        }
        for notify in notifies.into_values() {
            if let Some(waker) = notify.slot.fill(Err(error.clone())) {
                waker.wake();
            }
        }
    }
}

impl State {
    /// Adds a change to the items of an object. Returns false if nobody watches it.
    fn add_change(&mut self, object: &ObjectId, version: u64, durable: Reply<()>) -> bool {
        let sequence = self.sequence;
        let Some(watched) = self.objects.get_mut(object) else { return false };
        let full = watched.items.len() >= CHANGES_MAX;
        match watched.items.back_mut() {
            Some(Item {
                sequence: last,
                durable: last_durable,
                content: Content::Changed { version: latest, skipped },
            }) if full => {
                (*last, *last_durable, *latest) = (sequence, durable, version);
                *skipped += 1;
            }
            Some(Item { sequence: last, durable: last_durable, content: Content::Gap(gap) }) if full => {
                (*last, *last_durable) = (sequence, durable);
                gap.extend(slow(version, 1));
            }
            _ => {
                let content = Content::Changed { version, skipped: 0 };
                watched.items.push_back(Item { sequence, durable, content });
            }
        }
        self.sequence += 1;
        true
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.close(&StoreError::new(ErrorKind::Closed, "the store was closed"));
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("watchers", &self.watchers()).finish_non_exhaustive()
    }
}

impl HubShared {
    /// The state is whole whenever the lock is released: nothing that may panic is called with it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, unless it runs.
    fn start(self: &Arc<Self>, state: &mut State) -> Result<(), StoreError> {
        if state.running {
            return Ok(());
        }
        let shared = self.clone();
        let started = std::thread::Builder::new().name("nacre-watch".to_owned()).spawn(move || shared.run());
        started.map_err(|error| {
            let text = format!("cannot start the thread that notifies watchers of changes: {error}");
            StoreError::new(ErrorKind::Io, text)
        })?;
        state.running = true;
        Ok(())
    }

    /// Lets the thread look at an object's items.
    fn queue(&self, mut state: MutexGuard<'_, State>, object: &ObjectId) {
        let Some(watched) = state.objects.get_mut(object) else { return };
        if std::mem::replace(&mut watched.queued, true) {
            return;
        }
        state.ready.push_back(object.clone());
        drop(state);
        self.wake.notify_one();
    }

    /// Delivers until the hub is closed.
    fn run(self: Arc<Self>) {
        let waker = Waker::from(Arc::new(Signal(Arc::downgrade(&self))));
        let mut wakers = Vec::new();
        let mut state = self.lock();
        while state.closed.is_none() {
            state.expire(&mut wakers);
            if !wakers.is_empty() {
                drop(state);
                wakers.drain(..).for_each(Waker::wake);
                state = self.lock();
                continue;
            }
            if self.opened.swap(false, Ordering::AcqRel) {
                let waiting_objects = std::mem::take(&mut state.waiting_objects);
                state.ready.extend(waiting_objects);
            }
            let Some(object) = state.ready.pop_front() else {
                let deadline = state.deadlines.first().map(|(deadline, _)| *deadline);
                state = self.wait(state, deadline);
                continue;
            };
            let item = state.objects.get_mut(&object).and_then(|watched| watched.items.pop_front());
            let Some(mut item) = item else {
                self.settle(&mut state, &object);
                continue;
            };
            drop(state);
            let durable = Pin::new(&mut item.durable).poll(&mut Context::from_waker(&waker));
            match durable {
                Poll::Pending => {
                    state = self.lock();
                    if let Some(watched) = state.objects.get_mut(&object) {
                        watched.items.push_front(item);
                        state.waiting_objects.push(object);
                    }
                    continue;
                }
                Poll::Ready(Ok(())) => self.deliver(&object, item, &mut wakers),
                Poll::Ready(Err(error)) => {
                    self.fail(&object, &error, &mut wakers);
                    wakers.drain(..).for_each(Waker::wake);
                    state = self.lock();
                    // It is forgotten: a watch that has begun since may be in other hands.
                    continue;
                }
            }
            wakers.drain(..).for_each(Waker::wake);
            state = self.lock();
            self.settle(&mut state, &object);
        }
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, deadline: Option<Instant>) -> MutexGuard<'a, State> {
        match deadline {
            None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Puts an object back on the list if it has more items, and forgets one that nobody watches any more.
    fn settle(&self, state: &mut State, object: &ObjectId) {
        let Some(watched) = state.objects.get_mut(object) else { return };
        if !watched.items.is_empty() {
            state.ready.push_back(object.clone());
            return;
        }
        watched.queued = false;
        if watched.watchers.is_empty() {
            self.forget(state, object);
        }
    }

    fn forget(&self, state: &mut State, object: &ObjectId) {
        if let Some(watched) = state.objects.remove(object) {
            self.watched[watched.class].fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Hands an item to all watchers that it is for, a batch of them at a time: whoever begins or ends a watch
    /// meanwhile, under the object's lock, waits for no more than the look-up of a batch.
    fn deliver(self: &Arc<Self>, object: &ObjectId, item: Item, wakers: &mut Vec<Waker>) {
        if let Content::Notified { id, payload } = &item.content {
            let mut guard = self.lock();
            let state = &mut *guard;
            let Some(watched) = state.objects.get_mut(object) else { return };
            watched.notifications -= 1;
            state.bytes -= payload.len();
            if let Some(notify) = state.notifies.get_mut(id) {
                notify.delivered = true;
            }
        }
        let receiver: Arc<dyn Acknowledge> = self.clone();
        let (mut batch, mut missed) = (Vec::with_capacity(BATCH), Vec::new());
        let mut from = Bound::Unbounded;
        loop {
            {
                let mut state = self.lock();
                if let Content::Notified { id, .. } = item.content {
                    missed.drain(..).for_each(|key| state.miss(id, key));
                }
                // The caller has the object in its hands, so it is gone only if the hub was closed.
                let Some(watched) = state.objects.get(object) else { return };
                let watchers = watched.watchers.range((from, Bound::Unbounded)).take(BATCH);
                batch.extend(watchers.map(|(key, watcher)| (*key, watcher.clone())));
            }
            let Some((last, _)) = batch.last() else { break };
            from = Bound::Excluded(*last);
            for (key, watcher) in batch.drain(..).filter(|(_, watcher)| watcher.since <= item.sequence) {
                match &item.content {
                    Content::Changed { version, skipped: 0 } => watcher.feed.changed(*version),
                    Content::Changed { version, skipped } => watcher.feed.gap(slow(*version, skipped + 1)),
                    Content::Gap(gap) => watcher.feed.gap(*gap),
                    Content::Notified { id, payload } => {
                        let notification = Notification::new(*id, payload.clone(), key, receiver.clone());
                        if !watcher.feed.notified(notification) {
                            missed.push(key);
                        }
                    }
                }
            }
        }
        if let Content::Notified { id, .. } = item.content {
            self.lock().end_if_done(id, wakers);
        }
    }

    /// Ends the watches of an object whose latest change will never be told.
    fn fail(&self, object: &ObjectId, error: &StoreError, wakers: &mut Vec<Waker>) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(watched) = state.objects.get_mut(object) else { return };
        let (watchers, notifies) =
            (std::mem::take(&mut watched.watchers), std::mem::take(&mut watched.notifies));
        for item in std::mem::take(&mut watched.items) {
            if let Content::Notified { payload, .. } = item.content {
                state.bytes -= payload.len();
            }
        }
        state.watchers -= watchers.len();
        self.forget(state, object);
        for id in notifies {
            if let Some(notify) = state.notifies.remove(&id) {
                state.deadlines.remove(&(notify.deadline, id));
                state.awaited -= notify.awaited;
                wakers.extend(notify.slot.fill(Err(error.clone())));
            }
        }
        drop(guard);
        watchers.values().for_each(|watcher| watcher.feed.end(Some(error.clone())));
    }
}

/// The place of a watcher among those of its object, which it leaves when this is dropped.
struct Registration {
    hub: Weak<HubShared>,
    object: ObjectId,
    key: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(hub) = self.hub.upgrade() else { return };
        let mut wakers = Vec::new();
        let mut guard = hub.lock();
        let state = &mut *guard;
        let Some(watched) = state.objects.get_mut(&self.object) else { return };
        let Some(watcher) = watched.watchers.remove(&self.key) else { return };
        state.watchers -= 1;
        let forget = watched.watchers.is_empty() && !watched.queued;
        for id in watched.notifies.clone() {
            state.miss(id, self.key);
            state.end_if_done(id, &mut wakers);
        }
        if forget {
            hub.forget(state, &self.object);
        }
        drop(guard);
        drop(watcher);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Tells the thread that an item has become durable.
struct Signal(Weak<HubShared>);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        let Some(hub) = self.0.upgrade() else { return };
        hub.opened.store(true, Ordering::Release);
        // The thread looks with the lock held before it waits.
        drop(hub.lock());
        hub.wake.notify_one();
    }
}
