//! Watching RADOS objects, and notifying those who watch one.
//!
//! librados calls back for a notification in a thread of its own, which all watches of the connection share. The callback copies
//! the payload into a bounded queue, and never waits: what does not fit is lost, and the queue says so.
//!
//! The argument that librados hands to the callbacks of a watch is not an address but a number, under which the queue stands in
//! [`QUEUES`] as long as somebody takes from it. So a callback that comes late finds nothing, and there is no memory that
//! it could use after it was freed.
//!
//! The id of a watch, however, is an address in librados: it may be used only after the watch was registered and until it
//! is ended, which [`WatchHandle`] does when it is dropped.
//!
//! Neither a registration nor a notification has a time-out in librados: they wait until the OSD can be reached. So closing the pool
//! does not wait for them ([`Kind::Endless`]): shutting the connection down ends them without a callback, once the threads that
//! call back have ended, and leaves the memory of their [`InFlight`](super::InFlight) allocated, and the pool's handle.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{Answer, IN_CALLBACK, Kind, Operation, Pool, Raw, Slot, copied};

/// The code of an operation that was given wrong arguments.
const INVALID: c_int = -22;

/// The maximum number of bytes of payloads that may wait to be taken, over all watches of the process.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The bytes of the payloads that wait to be taken.
static WAITING_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The room for a payload that waits to be taken, which is given back when this is dropped.
pub(crate) struct Room(usize);

impl Room {
    /// Takes room, if there is some.
    fn take(bytes: usize) -> Option<Room> {
        let room = Room(bytes);
        let before = WAITING_BYTES.fetch_add(bytes, Ordering::AcqRel);
        (before + bytes <= WAITING_BYTES_MAX).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        WAITING_BYTES.fetch_sub(self.0, Ordering::AcqRel);
    }
}

/// An event of a watch.
pub(crate) enum Signal {
    /// A notification, by the id under which it is acknowledged.
    Notified { id: u64, payload: Bytes, room: Room },
    /// A notification whose payload is too long to be taken.
    TooLong { id: u64 },
    /// The OSD does not know the watch any more: it has to be registered anew, and notifications may be missing.
    Broken,
}

/// The events of a watch, as they are taken.
pub(crate) struct Signals {
    receiver: mpsc::Receiver<Signal>,
    lost: Arc<AtomicBool>,
}

impl Signals {
    /// Returns the next event; `None` if no more can come. Loses nothing if it is dropped.
    pub(crate) async fn next(&mut self) -> Option<Signal> {
        self.receiver.recv().await
    }

    /// Returns whether events did not fit since this was last asked.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost.swap(false, Ordering::AcqRel)
    }
}

/// The queue of the events of a watch, as they come in.
struct Queue {
    sender: mpsc::Sender<Signal>,
    lost: Arc<AtomicBool>,
    payload_bytes_max: usize,
}

impl Queue {
    fn put(&self, signal: Signal) {
        if self.sender.try_send(signal).is_err() {
            self.lost.store(true, Ordering::Release);
        }
    }
}

/// The queues of all watches of the process, and the number of the next one.
static QUEUES: Mutex<(usize, BTreeMap<usize, Arc<Queue>>)> = Mutex::new((1, BTreeMap::new()));

fn queue(argument: Raw) -> Option<Arc<Queue>> {
    QUEUES.lock().1.get(&argument.addr()).cloned()
}

/// The place of a queue among them, which it leaves when this is dropped.
struct Place(usize);

impl Place {
    fn new(queue: Queue) -> Place {
        let mut queues = QUEUES.lock();
        let number = queues.0;
        queues.0 += 1;
        queues.1.insert(number, Arc::new(queue));
        Place(number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let queue = QUEUES.lock().1.remove(&self.0);
        // What it holds is dropped without the lock.
        drop(queue);
    }
}

extern "C" fn notified(argument: Raw, id: u64, _watch: u64, _notifier: u64, payload: Raw, len: usize) {
    let Some(queue) = queue(argument) else { return };
    IN_CALLBACK.set(true);
    if len > queue.payload_bytes_max {
        queue.put(Signal::TooLong { id });
    } else if let Some(room) = Room::take(len) {
        // SAFETY: librados has `len` bytes there, or nothing, until this returns.
        let payload = unsafe { copied(payload.cast_const().cast(), len) };
        queue.put(Signal::Notified { id, payload, room });
    } else {
        queue.lost.store(true, Ordering::Release);
    }
    drop(queue);
    IN_CALLBACK.set(false);
}

extern "C" fn broken(argument: Raw, _watch: u64, _code: c_int) {
    let Some(queue) = queue(argument) else { return };
    IN_CALLBACK.set(true);
    queue.put(Signal::Broken);
    drop(queue);
    IN_CALLBACK.set(false);
}

/// A watch that is being registered.
pub(crate) struct Registering {
    operation: Operation,
    pool: Pool,
    object: CString,
    place: Place,
}

impl Registering {
    /// Returns the watch, once it is registered, or the negative code of the failure. If this is dropped before, the OSD may keep
    /// the watch until the connection is closed.
    pub(crate) async fn finish(self) -> Result<WatchHandle, c_int> {
        let Registering { operation, pool, object, place } = self;
        let completed = operation.await;
        match completed.answers.first() {
            Some(Answer::Watch(id)) if completed.code >= 0 => {
                let acknowledger = Acknowledger { pool, object, watch: *id };
                Ok(WatchHandle { acknowledger, _place: place })
            }
            _ => Err(completed.code.min(-1)),
        }
    }
}

/// A watch of an object. It ends when this is dropped.
pub(crate) struct WatchHandle {
    acknowledger: Acknowledger,
    _place: Place,
}

impl WatchHandle {
    /// Returns the time since the OSD last confirmed the watch; `None` if it is broken.
    pub(crate) fn confirmed(&self) -> Option<Duration> {
        let Acknowledger { pool, watch, .. } = &self.acknowledger;
        // SAFETY: the watch was registered, and has not ended.
        let code = unsafe { (pool.0.library.rados_watch_check)(pool.0.io, *watch) };
        u64::try_from(code).ok().map(Duration::from_millis)
    }

    /// Returns the sender of acknowledgements.
    pub(crate) fn acknowledger(&self) -> Acknowledger {
        self.acknowledger.clone()
    }
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        let Acknowledger { pool, watch, .. } = &self.acknowledger;
        // Nobody waits for it but the pool, when it is closed: it has the time-out of other operations.
        drop(pool.start(Vec::new(), |_, completion| {
            // SAFETY: the watch was registered, and nobody else ends it, or uses its id afterwards.
            unsafe { (pool.0.library.rados_aio_unwatch)(pool.0.io, *watch, completion) }
        }));
    }
}

/// The sender of the acknowledgements of a watch, which may outlive it: OSDs ignore those of a watch that has ended.
#[derive(Clone)]
pub(crate) struct Acknowledger {
    pool: Pool,
    object: CString,
    watch: u64,
}

impl Acknowledger {
    /// Acknowledges a notification. Does not wait.
    pub(crate) fn acknowledge(&self, id: u64, reply: &[u8]) {
        let Ok(len) = c_int::try_from(reply.len()) else { return };
        let Pool(connected) = &self.pool;
        let (bytes, object) = (reply.as_ptr().cast(), self.object.as_ptr());
        // SAFETY: librados copies the reply, and only sends the id of the watch. It returns 0 once that is under way.
        unsafe { (connected.library.rados_notify_ack)(connected.io, object, id, self.watch, bytes, len) };
    }
}

impl Pool {
    /// Begins to watch an object, which must exist. Of its events, `events_max` may wait to be taken; payloads may have
    /// `payload_bytes_max`.
    pub(crate) fn watch(
        &self,
        object: &CStr,
        events_max: usize,
        payload_bytes_max: usize,
    ) -> (Registering, Signals) {
        let (sender, receiver) = mpsc::channel(events_max.max(1));
        let lost = Arc::new(AtomicBool::new(false));
        let place = Place::new(Queue { sender, lost: Arc::clone(&lost), payload_bytes_max });
        let argument: Raw = ptr::without_provenance_mut(place.0);
        let library = self.0.library;
        let operation = self.submit(Kind::Endless, vec![Slot::Watch(0)], |slots, completion| {
            let [Slot::Watch(id)] = slots else { return INVALID };
            let (io, object, timeout_of_osd) = (self.0.io, object.as_ptr(), 0);
            // SAFETY: the id stays where it is until the callback of the completion ran, because that owns the slots. The
            // argument is never used as an address.
            unsafe {
                let watch = library.rados_aio_watch2;
                watch(io, object, completion, id, notified, broken, timeout_of_osd, argument)
            }
        });
        let registering = Registering { operation, pool: self.clone(), object: object.to_owned(), place };
        (registering, Signals { receiver, lost })
    }

    /// Notifies all watchers of an object. The answer, also with a negative code, is Ceph's encoding of who acknowledged the
    /// notification within the time, which OSDs count in whole seconds, and who did not. It may never come: no time-out ends the
    /// wait for the OSD.
    pub(crate) fn notify(&self, object: &CStr, payload: &[u8], seconds: u64) -> Operation {
        let slot = Slot::Call { output: ptr::null_mut(), len: 0, code: 0 };
        let library = self.0.library;
        self.submit(Kind::Endless, vec![slot], |slots, completion| {
            let [Slot::Call { output, len, .. }] = slots else { return INVALID };
            let Ok(payload_len) = c_int::try_from(payload.len()) else { return INVALID };
            let (io, object, bytes) = (self.0.io, object.as_ptr(), payload.as_ptr().cast());
            // SAFETY: librados copies the payload before it returns, and writes the answer before it calls back.
            unsafe {
                let notify = library.rados_aio_notify;
                notify(io, object, completion, bytes, payload_len, seconds.max(1) * 1000, output, len)
            }
        })
    }
}
