//! What goes on behind the transactions: a next segment made ready, snapshots taken, segments cleaned.
//!
//! A store with threads has one for this. Transactions that find no room wait for it: so the cleaner's pace is the
//! writers' pace, and the space bound holds without a throttle of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::channel::oneshot;
use nacre_object::{ErrorKind, StoreError};

use crate::binding::Binding;
use crate::cleaner::CleanerState;
use crate::engine::Engine;
use crate::segment::{FORMAT_VERSION, SEGMENT_HEAD_BYTES, Segment, segment_name};
use crate::sync::{AtomicBool, Condvar, Mutex};

/// What the maintenance of one store has to do, and what it knows.
#[derive(Default)]
pub struct Maintenance {
    threaded: AtomicBool,
    requests: Mutex<Requests>,
    wake: Condvar,
    /// Held while any of the work is done, which may take seconds.
    pub(crate) work: Mutex<CleanerState>,
    /// What reports say of the work, without waiting for it.
    pub(crate) counters: MaintenanceCounters,
}

/// What maintenance has done since the store was opened.
#[derive(Default)]
pub(crate) struct MaintenanceCounters {
    /// Live bytes moved.
    pub(crate) moved_bytes: AtomicU64,
    /// Log bytes that took.
    pub(crate) move_record_bytes: AtomicU64,
    /// Segments cleaned.
    pub(crate) cleaned: AtomicU64,
    /// Size of the file that is kept to be used again.
    pub(crate) spare_bytes: AtomicU64,
    /// Snapshots that are kept.
    pub(crate) snapshots: AtomicU64,
}

#[derive(Default)]
struct Requests {
    waiting: Vec<(u64, oneshot::Sender<Result<(), StoreError>>)>,
    nudged: bool,
    closing: bool,
}

impl Maintenance {
    /// Whether there is a thread that does the work.
    pub fn is_threaded(&self) -> bool {
        self.threaded.load(Ordering::Relaxed)
    }

    /// Says whether there is a thread.
    pub fn set_threaded(&self, threaded: bool) {
        self.threaded.store(threaded, Ordering::Relaxed);
    }

    /// Has the thread look at what there is to do.
    pub fn nudge(&self) {
        self.requests.lock().nudged = true;
        self.wake.notify_one();
    }

    /// Waits until there is a segment with room for so many bytes.
    pub async fn wait_for_segment(&self, bytes: u64) -> Result<(), StoreError> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut requests = self.requests.lock();
            if requests.closing {
                return Err(closed());
            }
            requests.waiting.push((bytes, sender));
        }
        self.wake.notify_one();
        receiver.await.unwrap_or_else(|_| Err(closed()))
    }

    fn count_spare(&self, work: &CleanerState) {
        let bytes = work.spare.as_ref().map_or(0, |spare| spare.capacity);
        self.counters.spare_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Ends the thread.
    pub fn close(&self) {
        let mut requests = self.requests.lock();
        requests.closing = true;
        requests.waiting.clear();
        self.wake.notify_all();
    }
}

fn closed() -> StoreError {
    StoreError::new(ErrorKind::Closed, "the store is closed")
}

impl Engine {
    /// The maintenance thread's work, until [`Maintenance::close`].
    pub(crate) fn maintain(self: &Arc<Self>) {
        loop {
            let mut requests = self.maintenance.requests.lock();
            while !requests.nudged && requests.waiting.is_empty() && !requests.closing {
                self.maintenance.wake.wait_for(&mut requests, Duration::from_secs(3600));
            }
            if requests.closing {
                return;
            }
            requests.nudged = false;
            let waiting = std::mem::take(&mut requests.waiting);
            drop(requests);
            let bytes = waiting.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
            let result = self.prepare_segment(bytes);
            if let Err(error) = &result {
                tracing::warn!("{error}");
            }
            for (_, sender) in waiting {
                // Whoever waited may have lost interest.
                let _ = sender.send(result.clone());
            }
            if self.snapshot_is_due()
                && let Err(error) = self.snapshot(&mut self.maintenance.work.lock())
            {
                tracing::warn!("{error}");
            }
        }
    }

    /// Makes a segment ready for the log to go on to, with room for a record of so many bytes, cleaning first where
    /// the store takes more space than it should.
    pub(crate) fn prepare_segment(self: &Arc<Self>, record_bytes: u64) -> Result<(), StoreError> {
        let mut work = self.maintenance.work.lock();
        if record_bytes > 0 && self.log.has_room(record_bytes) || record_bytes == 0 && self.log.has_ready() {
            return Ok(());
        }
        if let Some(failure) = self.log.failure() {
            return Err(failure.clone());
        }
        let capacity = u64::from(self.options.segment_bytes).max(SEGMENT_HEAD_BYTES + record_bytes);
        // What cleaning writes is not cleaned again in the same turn: so it ends.
        let newest = work.next_segment;
        while self.is_over_bound(capacity, &work) {
            match self.clean_once(&mut work, newest) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!("{error}");
                    break;
                }
            }
        }
        self.add_segment(&mut work, capacity)
    }

    /// Makes a segment of a size and hands it to the log.
    pub(crate) fn add_segment(&self, work: &mut CleanerState, capacity: u64) -> Result<(), StoreError> {
        let id = work.next_segment;
        let name = segment_name(id);
        let result = match work.spare.take_if(|spare| spare.capacity == capacity) {
            Some(spare) => self.disk.rename(&spare.name, &name).map(|()| Arc::clone(&spare.file)),
            None => self.disk.create(&name, capacity),
        };
        let named = result.and_then(|file| self.disk.sync_names().map(|()| file));
        let file = named.map_err(|error| {
            // The name may never become durable, whatever a later sync says: the file is made anew.
            if error.kind() != std::io::ErrorKind::AlreadyExists {
                let _ = self.disk.remove(&name);
            }
            let kind = match error.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::OutOfSpace,
                _ => ErrorKind::Io,
            };
            let path = self.disk.describe(&name);
            StoreError::new(
                kind,
                format!("cannot make room for {capacity} bytes in {path}: {error}; nothing was changed"),
            )
        })?;
        self.maintenance.count_spare(work);
        work.next_segment += 1;
        let binding = Binding::new(FORMAT_VERSION, &self.identity, id);
        let segment = Arc::new(Segment::new(id, binding, capacity, file));
        self.table.insert(Arc::clone(&segment));
        if let Some(too_small) = self.log.set_ready(segment) {
            self.table.remove(too_small.id);
            self.discard(work, too_small);
        }
        Ok(())
    }

    /// Keeps the file of a segment that nobody refers to any more for the next one, or removes it.
    pub(crate) fn discard(&self, work: &mut CleanerState, segment: Arc<Segment>) {
        // A reader that still holds the segment must find its bytes: then the file goes, and its descriptor keeps them.
        let unused = Arc::strong_count(&segment) == 1;
        if unused && work.spare.is_none() && segment.capacity == u64::from(self.options.segment_bytes) {
            work.spare = Some(segment);
            self.maintenance.count_spare(work);
        } else if let Err(error) = self.disk.remove(&segment.name) {
            tracing::warn!("cannot remove {}: {error}", self.disk.describe(&segment.name));
        }
    }
}
