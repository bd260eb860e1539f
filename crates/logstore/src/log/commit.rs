//! Batches becoming durable: the thread that writes and syncs them, syncs of weaker durability, and those who wait for a batch.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nacre_object::{ErrorKind, StoreError};

use super::{Batch, Committer, Log, Purpose, Tail};
use crate::Durability;
use crate::record;
use crate::segment::Segment;
use crate::sync::{Instant, block_on};

/// The time without a new batch after which a mark proves that the last one was synced.
const MARK_AFTER: Duration = Duration::from_millis(20);

impl Log {
    /// Writes the open batch, and syncs it if durability asks for that; returns false if it had no records. Called by
    /// the committer alone: two commits at a time would acknowledge batches out of order and forget waiters.
    pub fn commit(&self) -> bool {
        let mut tail = self.tail.lock();
        if tail.batch.records == 0 || self.failure.get().is_some() {
            return false;
        }
        let id = tail.batch.id;
        // The next batch is open before this one is written, so that transactions go on during the write and share the next
        // sync. Its waiters stay in the tail, where one that comes late or is dropped still finds them.
        let batch = std::mem::replace(&mut tail.batch, Batch::new(id + 1));
        tail.committing = Some((id, batch.wakers));
        drop(tail);

        let mut bytes = 0;
        let mut result = Ok(());
        let mut written: Vec<Arc<Segment>> = Vec::with_capacity(1);
        // In the order of the log, and nothing after the first failure: what follows a gap would not be recovered.
        for mut run in batch.runs {
            run.flush_small();
            bytes += run.bytes;
            result = result.and_then(|()| {
                let error =
                    |error| format!("cannot write {} at offset {}: {error}", run.segment.name, run.offset);
                run.segment.file.write_at(run.offset, &run.parts).map_err(error)
            });
            if written.last().is_none_or(|last| last.id != run.segment.id) {
                written.push(run.segment);
            }
        }
        self.counters.log_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        self.counters.records.fetch_add(batch.records, Ordering::Relaxed);
        // One sync for all that was written, after all of it; nothing has been told yet.
        if self.durability == Durability::Always {
            result = result.and_then(|()| self.sync_segments(&written));
        }

        let mut tail = self.tail.lock();
        match result {
            // A sync by somebody else failed meanwhile. This batch may be on its way to the device, but nothing is
            // acknowledged after a failure.
            Ok(()) if self.failure.get().is_some() => {}
            Ok(()) => {
                // From here on replies may be sent. The store pairs with the load in `is_acked`, which takes no lock.
                self.acked.store(id, Ordering::Release);
                tail.acked_sequence = batch.sequence;
                if self.durability == Durability::Always {
                    self.synced.store(batch.sequence, Ordering::Release);
                } else {
                    for segment in written {
                        if !tail.unsynced.iter().any(|known| known.id == segment.id) {
                            tail.unsynced.push(segment);
                        }
                    }
                }
            }
            Err(text) => self.fail(&mut tail, text),
        }
        let wakers = tail.committing.take().map(|(_, wakers)| wakers).unwrap_or_default();
        // A waker may run its task at once, which may ask for the lock.
        drop(tail);
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    fn sync_segments(&self, segments: &[Arc<Segment>]) -> Result<(), String> {
        for segment in segments {
            let began = Instant::now();
            let synced = segment.file.sync();
            self.counters.syncs.count(began.elapsed());
            synced.map_err(|error| format!("cannot sync {}: {error}", segment.name))?;
        }
        Ok(())
    }

    fn fail(&self, tail: &mut Tail, text: String) {
        tracing::error!("{text}; the store is read-only from now on");
        let text =
            format!("the store is read-only because it {text}; check the disk, then open the store again");
        // Only the first failure counts; a second one changes nothing.
        let _ = self
            .failure
            .set(StoreError::new(ErrorKind::ReadOnly, text.replacen("it cannot", "it could not", 1)));
        let waiting = std::mem::take(&mut tail.batch.wakers);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Makes every record durable that was acknowledged before the call. Blocks.
    ///
    /// # Errors
    ///
    /// The log's failure, of this sync or an earlier one.
    pub fn sync(&self) -> Result<(), StoreError> {
        let mut tail = self.tail.lock();
        let wanted = tail.acked_sequence;
        loop {
            if let Some(failure) = self.failure.get() {
                return Err(failure.clone());
            }
            if self.synced.load(Ordering::Acquire) >= wanted {
                return Ok(());
            }
            if tail.syncing {
                // The segments that hold the wanted records may be in the hands of the sync under way, and are not on
                // the device before it returns. It may also have begun before they were written: then the next turn
                // of this loop begins one that covers them.
                self.sync_ended.wait(&mut tail);
                continue;
            }
            // What is acknowledged now was written before this sync begins, by segments that are in the list. A batch
            // that is being written is not acknowledged, and puts its segments on the next list.
            let through = tail.acked_sequence;
            let segments = std::mem::take(&mut tail.unsynced);
            tail.syncing = true;
            drop(tail);
            let result = self.sync_segments(&segments);
            tail = self.tail.lock();
            tail.syncing = false;
            match result {
                Ok(()) => {
                    self.synced.fetch_max(through, Ordering::AcqRel);
                }
                Err(text) => self.fail(&mut tail, text),
            }
            self.sync_ended.notify_all();
        }
    }

    /// Waits until a batch's effects may be visible. Blocks; in a store without a thread it commits itself. Fails if
    /// they never will be.
    pub fn wait_blocking(self: &Arc<Self>, batch: u64) -> Result<(), StoreError> {
        match self.committer {
            Committer::Thread => block_on(self.wait(batch)),
            Committer::Caller => {
                while !self.is_acked(batch) && self.commit() {}
                match self.failure.get() {
                    Some(failure) if !self.is_acked(batch) => Err(failure.clone()),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Returns a future that waits until a batch's effects may be told; it fails if they never will be.
    pub fn wait(self: &Arc<Self>, batch: u64) -> WaitBatch {
        WaitBatch { log: Arc::clone(self), batch }
    }

    /// Does the committing thread's work, until [`Log::close`].
    pub fn run(&self) {
        let interval = match self.durability {
            Durability::Interval(interval) => Some(interval),
            _ => None,
        };
        let mut synced_at = Instant::now();
        let mut marked = true;
        loop {
            let mut tail = self.tail.lock();
            while tail.batch.records == 0 && !tail.closing {
                let timeout = match interval {
                    Some(interval) if !tail.unsynced.is_empty() => {
                        interval.saturating_sub(synced_at.elapsed())
                    }
                    _ if !marked && self.durability == Durability::Always => MARK_AFTER,
                    _ => Duration::from_secs(3600),
                };
                if self.work.wait_for(&mut tail, timeout).timed_out() {
                    break;
                }
            }
            let closing = tail.closing;
            let idle = tail.batch.records == 0;
            drop(tail);
            if closing && idle || self.failure.get().is_some() {
                return;
            }
            if idle && !marked && self.durability == Durability::Always {
                // Without room for it there is no mark; the next segment's header is as good.
                let _ = self.append(&mut record::encode_mark(), &[], Purpose::Shrink);
                marked = true;
                self.commit();
            } else if self.commit() {
                marked = false;
            }
            if interval.is_some_and(|interval| synced_at.elapsed() >= interval) {
                // A failure is kept in the log itself.
                let _ = self.sync();
                synced_at = Instant::now();
            }
        }
    }

    /// Refuses further records; the committing thread ends when it has written those it has.
    pub fn close(&self) {
        self.tail.lock().closing = true;
        self.work.notify_all();
    }
}

/// A future that waits for a batch. See [`Log::wait`].
pub struct WaitBatch {
    log: Arc<Log>,
    batch: u64,
}

impl Future for WaitBatch {
    type Output = Result<(), StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.log.is_acked(self.batch) {
            return Poll::Ready(Ok(()));
        }
        let mut tail = self.log.tail.lock();
        if self.log.is_acked(self.batch) {
            return Poll::Ready(Ok(()));
        }
        if let Some(failure) = self.log.failure.get() {
            return Poll::Ready(Err(failure.clone()));
        }
        let wakers = match &mut tail.committing {
            Some((id, wakers)) if *id >= self.batch => wakers,
            _ => &mut tail.batch.wakers,
        };
        wakers.push(context.waker().clone());
        Poll::Pending
    }
}
