//! The log, where transactions become durable together.
//!
//! A caller that appends only takes a place in the open batch. One writer takes the current batch, writes it with
//! one vectored append, syncs once, and wakes all that wait for it; meanwhile the next batch gathers.
//!
//! Invariants:
//! - batches become durable in the order of their numbers, records in the order in which they were appended;
//! - `acked` is the greatest batch whose effects may be visible; `synced` is the last record known to be on the device:
//!   under `Durability::Always` that of the same batch;
//! - `synced` only moves when a sync that began after those records were written has returned, and syncs run one at a
//!   time: a caller that finds one under way waits for it, and begins another if that one began too early;
//! - records are numbered without gaps, across segments and openings, so that a missing one is noticed;
//! - after a failed write or sync nothing is ever acknowledged again, because the state of the device is unknown.

mod commit;

use std::sync::atomic::{self, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use bytes::Bytes;
use nacre_object::latency::Latencies;
use nacre_object::{ErrorKind, StoreError};

use crate::Durability;
use crate::extent_map::{Chunk, Entry};
use crate::node::Persistence;
use crate::record::{self, Stamp};
use crate::segment::{SEGMENT_HEAD_BYTES, Segment, SegmentHeader};
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard};

/// The writer of the batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committer {
    /// A thread, which calls `Log::run`.
    Thread,
    /// The caller of `Log::commit`: for tests that decide when.
    Caller,
}

/// The purpose of a record, which decides the room that it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Keeping more data. Takes none of the space kept for the others, and waits for its turn where the cleaner sets the
    /// pace.
    Write,
    /// Keeping more data, in a turn that was given.
    Paced,
    /// Keeping less data. Takes none of the space kept for the cleaner.
    Shrink,
    /// Moving live data out of a segment, so that the segment can be freed.
    Clean,
}

impl Purpose {
    /// Returns whether it is to keep more data.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Paced)
    }
}

/// Space in bytes that is reserved for some purposes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Space in files that can be made ready without new space.
    pub spare_bytes: u64,
    /// Space for the cleaner alone.
    pub clean_bytes: u64,
    /// Further space for transactions that shrink, and the cleaner.
    pub shrink_bytes: u64,
}

/// Space in bytes that the log has without new space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// Space behind the last record of the segment that is written to.
    pub tail_bytes: u64,
    /// Space in the segment that is ready, and in files that can be made ready.
    pub next_bytes: u64,
}

/// The log of one store.
pub struct Log {
    store: [u8; 16],
    committer: Committer,
    durability: Durability,
    tail: Mutex<Tail>,
    work: Condvar,
    /// Notified when a sync ends, successfully or not.
    sync_ended: Condvar,
    acked: AtomicU64,
    synced: AtomicU64,
    /// The number of records with tokens ever appended. Changed with the tail locked.
    tokens: AtomicU64,
    /// The version up to which removed objects may be forgotten. Changed with the tail locked, and all shards.
    floor: AtomicU64,
    /// The batch that has the floor.
    floor_batch: AtomicU64,
    failure: OnceLock<StoreError>,
    /// Counters, for reports.
    pub counters: Counters,
}

/// Counters of the log's work since the store was opened.
#[derive(Default)]
pub struct Counters {
    /// Bytes written to segments, heads and padding included.
    pub log_bytes: atomic::AtomicU64,
    /// Batches written.
    pub batches: atomic::AtomicU64,
    /// Records written.
    pub records: atomic::AtomicU64,
    /// Syncs of segment files that succeeded or failed, by their latencies.
    pub syncs: Latencies,
}

struct Tail {
    /// `None` before the first segment.
    segment: Option<Arc<Segment>>,
    /// The segment that the log continues in.
    ready: Option<Arc<Segment>>,
    offset: u64,
    reserve: Reserve,
    /// The bytes that may be appended to keep more data, while the cleaner sets the pace; `None` while it does not.
    credit_bytes: Option<u64>,
    /// The number of the next record.
    sequence: u64,
    /// The last record that is acknowledged.
    acked_sequence: u64,
    batch: Batch,
    /// The number of the batch that is being written, and its waiters.
    committing: Option<(u64, Vec<Waker>)>,
    /// Segments written since the last sync began, under durability other than `Always`.
    unsynced: Vec<Arc<Segment>>,
    /// True if a sync of such segments is under way.
    syncing: bool,
    /// Bytes appended since the last snapshot began.
    since_snapshot_bytes: u64,
    closing: bool,
}

struct Batch {
    id: u64,
    runs: Vec<Run>,
    wakers: Vec<Waker>,
    records: u64,
    /// The last record appended to it.
    sequence: u64,
}

/// Consecutive bytes of one segment.
struct Run {
    segment: Arc<Segment>,
    offset: u64,
    parts: Vec<Bytes>,
    /// Heads and tails gathered since the last payload; they become a part of their own.
    small: Vec<u8>,
    bytes: u64,
}

/// A position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The segment.
    pub segment: u32,
    /// The offset in it.
    pub offset: u64,
}

/// The place in the log at which a snapshot begins.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotBegun {
    /// The position of the next record.
    pub position: Position,
    /// The number of the next record.
    pub sequence: u64,
    /// The number of records with tokens before it.
    pub tokens: u64,
    /// The version up to which removed objects may have been forgotten before it.
    pub floor: u64,
}

/// The place of an appended record.
pub struct Appended {
    /// The segment.
    pub segment: u32,
    /// The offset of its payload in the segment, in bytes.
    pub payload_offset: u32,
    /// The batch to wait for.
    pub batch: u64,
    /// The number of records with tokens before it.
    pub tokens: u64,
    /// True if the log continued in a new segment, so that another one has to be made ready.
    pub rolled: bool,
}

/// The payload of a record, as the index gets to know its places.
pub struct Logged {
    /// The segment that holds the record.
    pub segment: u32,
    /// The offset of the next chunk in it, in bytes.
    pub offset: u32,
    /// The changes in the bytes that the index refers to, by segment, if they are to be counted.
    pub changes: Option<Vec<(u32, i64)>>,
}

impl Persistence for Logged {
    fn place(&mut self, len: u32, crc: u32) -> Chunk {
        let Self { segment, offset, .. } = *self;
        self.offset += len;
        if let Some(changes) = &mut self.changes {
            changes.push((segment, i64::from(len)));
        }
        Chunk { segment, offset, len, crc }
    }

    fn release(&mut self, piece: &Entry, chunk: &Chunk) {
        if let Some(changes) = &mut self.changes {
            changes.push((chunk.segment, -(piece.len() as i64)));
        }
    }
}

/// The reason why a record could not be appended.
#[derive(Debug)]
pub enum Refused {
    /// No segment has this many bytes of room, or the room is reserved for others; make a segment ready and try again.
    NeedsSegment(u64),
    /// The log takes no more records.
    Failed(StoreError),
}

impl Log {
    /// Creates a log that continues behind `predecessor`, with records from number `sequence` on.
    pub fn new(
        store: [u8; 16],
        committer: Committer,
        durability: Durability,
        predecessor: Option<(Arc<Segment>, u64)>,
        sequence: u64,
    ) -> Self {
        let (segment, offset) = match predecessor {
            Some((segment, end)) => (Some(segment), end),
            None => (None, 0),
        };
        Self {
            store,
            committer,
            durability,
            tail: Mutex::new(Tail {
                segment,
                ready: None,
                offset,
                reserve: Reserve::default(),
                credit_bytes: None,
                sequence,
                acked_sequence: sequence - 1,
                batch: Batch::new(1),
                committing: None,
                unsynced: Vec::new(),
                syncing: false,
                since_snapshot_bytes: 0,
                closing: false,
            }),
            work: Condvar::new(),
            sync_ended: Condvar::new(),
            acked: AtomicU64::new(0),
            synced: AtomicU64::new(sequence - 1),
            tokens: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            floor_batch: AtomicU64::new(0),
            failure: OnceLock::new(),
            counters: Counters::default(),
        }
    }

    /// Returns whether a batch's effects may be told.
    pub fn is_acked(&self, batch: u64) -> bool {
        batch <= self.acked.load(Ordering::Acquire)
    }

    /// Returns the reason why the log takes no more records, if it takes none.
    pub fn failure(&self) -> Option<&StoreError> {
        self.failure.get()
    }

    /// Returns whether a segment to continue in is ready.
    pub fn has_ready(&self) -> bool {
        self.tail.lock().ready.is_some()
    }

    /// Gives the log a segment to continue in. Returns the one that it had, if that was too small for a record.
    pub fn set_ready(&self, segment: Arc<Segment>) -> Option<Arc<Segment>> {
        self.tail.lock().ready.replace(segment)
    }

    /// Takes back the segment to continue in, if its capacity is greater than `capacity` bytes.
    pub fn take_ready_larger_than(&self, capacity: u64) -> Option<Arc<Segment>> {
        self.tail.lock().ready.take_if(|ready| ready.capacity > capacity)
    }

    /// Returns whether a record of `record_bytes` would find room that it may take.
    pub fn has_space(&self, record_bytes: u64, purpose: Purpose) -> bool {
        self.tail.lock().has_space(record_bytes, purpose)
    }

    /// Returns whether a segment has room for a record of `record_bytes`, whether or not the record may take it.
    pub fn has_segment(&self, record_bytes: u64) -> bool {
        self.tail.lock().space_after(record_bytes).is_some()
    }

    /// Returns the room that the log has without new space.
    pub fn free_space(&self) -> FreeSpace {
        let tail = self.tail.lock();
        let tail_bytes = tail.segment.as_ref().map_or(0, |segment| {
            let sealed = segment.sealed.load(Ordering::Relaxed);
            if sealed { 0 } else { segment.capacity.saturating_sub(tail.offset) }
        });
        FreeSpace { tail_bytes, next_bytes: tail.ready_bytes() + tail.reserve.spare_bytes }
    }

    /// Sets the reserved room.
    pub fn set_reserve(&self, reserve: Reserve) {
        self.tail.lock().reserve = reserve;
    }

    /// Sets the bytes that may be appended to keep more data without waiting; `None` for as many as there is room for.
    pub fn set_credit(&self, bytes: Option<u64>) {
        self.tail.lock().credit_bytes = bytes;
    }

    /// Adds to these bytes, if they are bounded.
    pub fn add_credit(&self, bytes: u64) {
        if let Some(credit_bytes) = &mut self.tail.lock().credit_bytes {
            *credit_bytes += bytes;
        }
    }

    /// Reserves all of these bytes, if they are bounded, for a waiter.
    pub fn take_credit(&self) -> Option<u64> {
        self.tail.lock().credit_bytes.as_mut().map(std::mem::take)
    }

    /// Continues in the segment that is ready, so that the one before it can be cleaned; returns false if none is
    /// ready.
    pub fn leave_segment(&self) -> bool {
        let mut head = record::encode_mark();
        let record_bytes = record::record_bytes(head.len(), 0) as u64;
        let mut tail = self.tail.lock();
        if tail.closing || self.failure.get().is_some() {
            return false;
        }
        let Some(segment) = tail.ready.take() else { return false };
        self.roll(&mut tail, segment);
        // The segment's header is written with its first record. Without one here, a snapshot could name a position in
        // the segment, and be valid, before the header is on the device.
        self.place(tail, &mut head, &[], record_bytes, true).is_ok()
    }

    /// Returns the position of the next record, and the last batch that has records: everything before is in the index
    /// once the locks of the objects concerned were taken.
    pub fn position(&self) -> (Position, u64) {
        let tail = self.tail.lock();
        (tail.position(), tail.last_batch())
    }

    /// Returns the last batch that has records.
    pub fn last_batch(&self) -> u64 {
        self.tail.lock().last_batch()
    }

    /// Returns the bytes appended since the last snapshot began.
    pub fn since_snapshot_bytes(&self) -> u64 {
        self.tail.lock().since_snapshot_bytes
    }

    /// Restarts the count of bytes since the last snapshot; returns the place of the next record.
    pub fn begin_snapshot(&self) -> SnapshotBegun {
        let mut tail = self.tail.lock();
        tail.since_snapshot_bytes = 0;
        SnapshotBegun {
            position: tail.position(),
            sequence: tail.sequence,
            tokens: self.tokens(),
            floor: self.floor(),
        }
    }

    /// Returns the version up to which removed objects may be forgotten. What is asked with a shard locked is the same for
    /// as long as it is.
    pub fn floor(&self) -> u64 {
        self.floor.load(Ordering::Acquire)
    }

    /// Returns the batch that has the floor: a reply about an object that looks removed at the floor waits for it.
    pub fn floor_batch(&self) -> u64 {
        self.floor_batch.load(Ordering::Acquire)
    }

    /// Sets the floor. Called with the tail locked and all shards, or before anybody looks.
    pub fn set_floor(&self, floor: u64) {
        self.floor.store(floor, Ordering::Release);
    }

    /// Returns the number of records with tokens ever appended.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Acquire)
    }

    /// Counts a transaction with a token that has no record, because the store is volatile; returns the number of those
    /// before it.
    pub fn count_token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::AcqRel)
    }

    /// Sets the number of records with tokens. Called with the tail locked, or before anything is appended.
    pub fn set_tokens(&self, tokens: u64) {
        self.tokens.store(tokens, Ordering::Release);
    }

    /// Counts what recovery replayed as appended since the last snapshot.
    pub fn count_replayed(&self, bytes: u64) {
        self.tail.lock().since_snapshot_bytes += bytes;
    }

    /// Appends a record: a head that an `encode` function of module `record` began, and its payload. The head is
    /// changed only if the record is appended.
    pub fn append(
        &self,
        head: &mut Vec<u8>,
        payload: &[Bytes],
        purpose: Purpose,
    ) -> Result<Appended, Refused> {
        let payload_bytes: usize = payload.iter().map(Bytes::len).sum();
        let record_bytes = record::record_bytes(head.len(), payload_bytes) as u64;
        let mut tail = self.tail.lock();
        // Under the lock: a record that is accepted here is in the open batch before the committing thread looks for one, or
        // before it sees `closing`, so none is left behind.
        if let Some(failure) = self.failure.get() {
            return Err(Refused::Failed(failure.clone()));
        }
        if tail.closing {
            return Err(Refused::Failed(StoreError::new(ErrorKind::Closed, "the store is closed")));
        }
        if !tail.has_space(record_bytes, purpose) {
            return Err(Refused::NeedsSegment(record_bytes));
        }
        let mut rolled = false;
        if !tail.fits(record_bytes) {
            let Some(segment) =
                tail.ready.take_if(|ready| SEGMENT_HEAD_BYTES + record_bytes <= ready.capacity)
            else {
                return Err(Refused::NeedsSegment(record_bytes));
            };
            self.roll(&mut tail, segment);
            rolled = true;
        }
        if purpose == Purpose::Write
            && let Some(credit_bytes) = &mut tail.credit_bytes
        {
            // Where there was room there was credit.
            *credit_bytes -= record_bytes;
        }
        self.place(tail, head, payload, record_bytes, rolled)
    }

    /// Places a record that fits in the segment that is written to, and in the open batch.
    fn place(
        &self,
        mut tail: MutexGuard<'_, Tail>,
        head: &mut Vec<u8>,
        payload: &[Bytes],
        record_bytes: u64,
        rolled: bool,
    ) -> Result<Appended, Refused> {
        let payload_bytes: usize = payload.iter().map(Bytes::len).sum();
        let Some(segment) = tail.segment.clone() else {
            return Err(Refused::NeedsSegment(record_bytes));
        };
        let offset = tail.offset;
        let batch = tail.batch.id;
        // The head is sealed only here, because the checksum covers the record's place and number, which are known under the
        // lock. A record therefore cannot be taken for one of another segment that had the same file. Its payload was
        // checksummed before, outside of the lock.
        let stamp = Stamp {
            binding: segment.binding,
            offset,
            sequence: tail.sequence,
            synced: self.synced.load(Ordering::Relaxed),
        };
        record::seal_head(head, payload_bytes, stamp);
        let payload_offset = offset + head.len() as u64;
        tail.offset += record_bytes;
        tail.since_snapshot_bytes += record_bytes;
        // The offset and the number advance together: recovery takes a number that is missing for the end of the log.
        let first = tail.batch.records == 0;
        tail.batch.records += 1;
        tail.batch.sequence = tail.sequence;
        tail.sequence += 1;
        // Still under the lock, so that the order of tokens is that of records, as recovery finds it.
        let tokens = self.tokens();
        if record::is_repeatable(head) {
            self.set_tokens(tokens + 1);
        }
        if let Some(floor) = record::raised_floor(head) {
            // Under the lock of the tail, so that a snapshot knows the floor that holds at its position.
            self.floor_batch.store(batch, Ordering::Release);
            self.set_floor(floor);
        }
        segment.end.store(tail.offset, Ordering::Relaxed);
        segment.last_batch.store(batch, Ordering::Relaxed);
        let padding = record::aligned(payload_bytes) - payload_bytes;
        let appended =
            Appended { segment: segment.id, payload_offset: payload_offset as u32, batch, tokens, rolled };
        let run = tail.run(&segment, offset);
        run.small.extend_from_slice(head);
        if payload_bytes > 0 {
            run.flush_small();
            run.parts.extend(payload.iter().filter(|part| !part.is_empty()).cloned());
            run.small.resize(padding, 0);
        }
        record::put_tail(&mut run.small, head, segment.binding);
        run.bytes += record_bytes;
        drop(tail);
        // Only the first record of a batch wakes the committer: the others are in the batch that it takes.
        if first && self.committer == Committer::Thread {
            self.work.notify_one();
        }
        Ok(appended)
    }

    /// Seals the current segment and continues in the next one.
    fn roll(&self, tail: &mut Tail, segment: Arc<Segment>) {
        let predecessor = tail.segment.take();
        let header = SegmentHeader {
            store: self.store,
            id: segment.id,
            format: segment.binding.format(),
            predecessor: predecessor.as_ref().map_or(0, |segment| segment.id),
            predecessor_end: tail.offset,
        };
        // Its last record stands in a run of this batch or an earlier one, before the run that holds the header: runs are
        // written in order, so no header tells of an end that is not written.
        if let Some(predecessor) = predecessor {
            predecessor.sealed.store(true, Ordering::Release);
        }
        tail.offset = SEGMENT_HEAD_BYTES;
        let run = tail.run(&segment, 0);
        run.parts.push(header.encode());
        run.bytes += SEGMENT_HEAD_BYTES;
        tail.segment = Some(segment);
    }
}

impl Tail {
    fn fits(&self, record_bytes: u64) -> bool {
        self.segment.as_ref().is_some_and(|segment| {
            !segment.sealed.load(Ordering::Relaxed) && self.offset + record_bytes <= segment.capacity
        })
    }

    /// Returns the room that is left, without new space, after a record of `record_bytes` is appended; `None` if there
    /// is no segment for it. Bytes that stay unused at a segment's end do not count.
    fn space_after(&self, record_bytes: u64) -> Option<u64> {
        if self.fits(record_bytes) {
            let segment = self.segment.as_ref()?;
            return Some(segment.capacity - self.offset - record_bytes + self.ready_bytes());
        }
        self.ready_bytes().checked_sub(record_bytes).filter(|_| self.ready.is_some())
    }

    fn ready_bytes(&self) -> u64 {
        self.ready.as_ref().map_or(0, |ready| ready.capacity - SEGMENT_HEAD_BYTES)
    }

    fn has_space(&self, record_bytes: u64, purpose: Purpose) -> bool {
        let Reserve { spare_bytes, clean_bytes, shrink_bytes } = self.reserve;
        if purpose == Purpose::Write && self.credit_bytes.is_some_and(|credit| credit < record_bytes) {
            return false;
        }
        let kept_bytes = match purpose {
            Purpose::Write | Purpose::Paced => clean_bytes + shrink_bytes,
            Purpose::Shrink => clean_bytes,
            Purpose::Clean => 0,
        };
        self.space_after(record_bytes).is_some_and(|left| left + spare_bytes >= kept_bytes)
    }

    fn position(&self) -> Position {
        Position { segment: self.segment.as_ref().map_or(0, |segment| segment.id), offset: self.offset }
    }

    fn last_batch(&self) -> u64 {
        if self.batch.records > 0 { self.batch.id } else { self.batch.id - 1 }
    }

    /// Returns the open batch's run that a record at `offset` of `segment` belongs to.
    fn run(&mut self, segment: &Arc<Segment>, offset: u64) -> &mut Run {
        let runs = &mut self.batch.runs;
        if runs.last().is_none_or(|run| run.segment.id != segment.id) {
            let run =
                Run { segment: Arc::clone(segment), offset, parts: Vec::new(), small: Vec::new(), bytes: 0 };
            runs.push(run);
        }
        let last = runs.len() - 1;
        &mut runs[last]
    }
}

impl Batch {
    fn new(id: u64) -> Self {
        Self { id, runs: Vec::new(), wakers: Vec::new(), records: 0, sequence: 0 }
    }
}

impl Run {
    fn flush_small(&mut self) {
        if !self.small.is_empty() {
            self.parts.push(std::mem::take(&mut self.small).into());
        }
    }
}
