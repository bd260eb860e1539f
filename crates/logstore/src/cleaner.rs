//! The cleaner: makes room by moving what is still referred to out of segments that are mostly garbage.
//!
//! The choice is cost-benefit, as in the log-structured file system of Rosenblum and Ousterhout: a segment is worth
//! the more the emptier and the older it is. Moved extents keep their versions; a record of moves is written and
//! synced before the index refers to it, and a segment is freed only when nothing refers to it and no snapshot
//! that is kept needs its records.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use nacre_object::limit::OFFSET_MAX;
use nacre_object::{Fork, ObjectId, StoreError};

use crate::codec::crc32c;
use crate::engine::{Engine, owned, read_chunk};
use crate::extent_map::{Chunk, Entry, Place};
use crate::log::{Position, Refused};
use crate::record::{self, Body, Effect, Found, Moved, Record};
use crate::scan::{Item, Scan};
use crate::segment::{SEGMENT_HEAD_BYTES, Segment};
use crate::snapshot::KEPT;

/// Payload that one record of moves carries.
const MOVE_BYTES_MAX: usize = 1 << 20;

/// Passes over one segment, where forks take others' places meanwhile.
const PASSES_MAX: usize = 4;
/// Entries of an object that are searched while it waits.
const SEARCHED_MAX: usize = 10_000;

/// What maintenance keeps between its turns.
pub struct CleanerState {
    /// The number of the next segment.
    pub next_segment: u32,
    /// A file that can be used again.
    pub spare: Option<Arc<Segment>>,
    /// Where replay would begin from each snapshot that is kept, the oldest first.
    pub snapshots: Vec<(u64, Position)>,
    /// Snapshots that there must be before any of the log is given up.
    pub snapshots_needed: usize,
}

impl Default for CleanerState {
    fn default() -> Self {
        Self { next_segment: 0, spare: None, snapshots: Vec::new(), snapshots_needed: KEPT }
    }
}

/// What the choice of a segment to clean is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its number.
    pub id: u32,
    /// Its size in bytes.
    pub capacity: u64,
    /// Bytes of it that are referred to.
    pub live_bytes: u64,
    /// Batches since it was last written to.
    pub age: u64,
}

/// The candidate that is most worth cleaning, if any is: one that would give back more than a tenth of itself.
/// `move_cost` is how many bytes of log it takes to move one live byte.
pub fn choose(candidates: impl IntoIterator<Item = Candidate>, move_cost: f64) -> Option<Candidate> {
    let mut best: Option<(f64, Candidate)> = None;
    for candidate in candidates {
        let moved = (candidate.live_bytes as f64 * move_cost) / candidate.capacity as f64;
        if moved > 0.9 {
            continue;
        }
        let benefit = (1.0 - moved) * (candidate.age + 1) as f64 / (1.0 + moved);
        // An empty one costs nothing: it always comes first.
        let benefit = if candidate.live_bytes == 0 { f64::INFINITY } else { benefit };
        if best.is_none_or(|(most, _)| benefit > most) {
            best = Some((benefit, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// A piece of the index that refers to a segment that is being cleaned.
struct Live {
    object: ObjectId,
    fork: Fork,
    entry: Entry,
}

impl Engine {
    /// Whether another segment of `capacity` bytes would take the store over its space bound: half as much again as
    /// is live, and a segment. (The promise is 1.6 times and two segments; cleaning begins before.)
    pub(crate) fn is_over_bound(&self, capacity: u64, work: &CleanerState) -> bool {
        let spare = work.spare.as_ref().map_or(0, |spare| spare.capacity);
        let taken = self.table.capacity_bytes() + spare.max(capacity);
        let live = self.table.live_bytes();
        taken > live + live / 2 + u64::from(self.options.segment_bytes)
    }

    /// Does one step towards less space: frees a segment, cleans one, or takes a snapshot so that one can be freed.
    /// Only segments below `newest` are considered. `false` if there is nothing left to gain.
    pub(crate) fn clean_once(
        self: &Arc<Self>,
        work: &mut CleanerState,
        newest: u32,
    ) -> Result<bool, StoreError> {
        // The segment that the log would be replayed from, were a snapshot taken now, can be freed by no snapshot.
        let (position, now) = self.log.position();
        let newest = newest.min(position.segment);
        let sealed = self.table.all().into_iter().filter(|segment| {
            segment.id < newest
                && segment.sealed.load(Ordering::Acquire)
                && !segment.damaged.load(Ordering::Relaxed)
        });
        let candidates = sealed.map(|segment| Candidate {
            id: segment.id,
            capacity: segment.capacity,
            live_bytes: segment.live_bytes(),
            age: now.saturating_sub(segment.last_batch.load(Ordering::Relaxed)),
        });
        let counters = &self.maintenance.counters;
        let moved = counters.moved_bytes.load(Ordering::Relaxed).max(1) as f64;
        let move_cost = (counters.move_record_bytes.load(Ordering::Relaxed) as f64 / moved).max(1.0);
        let Some(choice) = choose(candidates, move_cost) else { return Ok(false) };
        let Some(segment) = self.table.get(choice.id) else { return Ok(false) };
        if work.pins(segment.id) {
            // As many snapshots as are kept unpin it.
            self.snapshot(work)?;
            return Ok(true);
        }
        self.clean(work, segment)
    }

    /// Cleans every segment that has garbage worth the work.
    pub(crate) fn compact(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut work = self.maintenance.work.lock();
        // Each turn frees a segment or moves the snapshots on; segments made meanwhile are left for another time.
        let newest = work.next_segment;
        while self.clean_once(&mut work, newest)? {}
        if self.persistent && self.log.since_snapshot_bytes() > 0 {
            self.snapshot(&mut work)?;
        }
        Ok(())
    }

    /// Moves what is live out of a segment and frees it. `false` if what is left of it changes its names as fast as it
    /// is looked for: another time, then.
    pub(crate) fn clean(
        self: &Arc<Self>,
        work: &mut CleanerState,
        segment: Arc<Segment>,
    ) -> Result<bool, StoreError> {
        // A fork that takes another's place while its pieces are looked for, or are on their way, is found under its new
        // name by the next pass.
        let mut renamed = true;
        for _ in 0..PASSES_MAX {
            let replacements = self.replacements.load(Ordering::SeqCst);
            if segment.live_bytes() == 0 || !renamed {
                break;
            }
            self.evacuate(work, &segment)?;
            renamed = self.replacements.load(Ordering::SeqCst) != replacements;
        }
        // What took the last reference away may be on its way to the disk only; were it lost, the index would refer
        // to the segment again.
        self.log.wait_blocking(self.log.last_batch())?;
        self.log.sync()?;
        if segment.live_bytes() > 0 && renamed {
            return Ok(false);
        }
        if segment.live_bytes() > 0 {
            // Damage hides some of it from the cleaner, not from readers: the segment stays.
            segment.damaged.store(true, Ordering::Relaxed);
            tracing::warn!("{} holds live data that cannot be moved; run a scrub", segment.name);
            return Ok(true);
        }
        self.maintenance.counters.cleaned.fetch_add(1, Ordering::Relaxed);
        drop(self.table.remove(segment.id));
        self.discard(work, segment);
        Ok(true)
    }

    fn evacuate(self: &Arc<Self>, work: &mut CleanerState, segment: &Arc<Segment>) -> Result<(), StoreError> {
        // Records of moves must not leave much of a segment unused.
        let move_bytes_max = MOVE_BYTES_MAX.min(self.options.segment_bytes as usize / 8);
        let mut batch: Vec<Live> = Vec::new();
        let mut batch_bytes = 0;
        // Objects whose forks may hold pieces of this segment that were written under other forks' names.
        let mut replaced: HashSet<ObjectId> = HashSet::new();
        for item in Heads::new(segment) {
            let (at, record) = item.map_err(|error| self.unreadable(segment, &error))?;
            let mut chunk_offset = at as u32 + record.head_bytes;
            let mut visit = |object: &ObjectId, fork: &Fork, start: u64, len: u32| {
                let piece = (object, fork, start, len);
                batch_bytes += self.collect_live(segment.id, chunk_offset, piece, &mut batch, &mut replaced);
                chunk_offset += len;
                if batch_bytes >= move_bytes_max {
                    batch_bytes = 0;
                    return self.relocate(work, segment, std::mem::take(&mut batch));
                }
                Ok(())
            };
            match &record.body {
                Body::Transaction { object, effects, .. } => {
                    for effect in effects {
                        if let Effect::Chunk { fork, offset, len, .. } = effect {
                            visit(object, fork, *offset, *len)?;
                        }
                    }
                }
                Body::Moves(moves) => {
                    for moved in moves {
                        visit(&moved.object, &moved.fork, moved.start, moved.len)?;
                    }
                }
                Body::Mark => {}
            }
        }
        self.relocate(work, segment, batch)?;
        replaced
            .into_iter()
            .try_for_each(|object| self.evacuate_replaced(work, segment, &object, move_bytes_max))
    }

    /// Moves what forks of an object that took others' places still hold of a segment. The heads there name them as they
    /// were called when they were written, so their maps are searched instead: a portion at a time, since each holds up
    /// the object.
    fn evacuate_replaced(
        self: &Arc<Self>,
        work: &mut CleanerState,
        segment: &Arc<Segment>,
        object: &ObjectId,
        move_bytes_max: usize,
    ) -> Result<(), StoreError> {
        let mut from = Some((Fork::DEFAULT, 0));
        while let Some((fork, start)) = from {
            let mut batch = Vec::new();
            let mut batch_bytes = 0;
            from = None;
            {
                let shard = self.shard(object).lock();
                let Some(node) = shard.get(object) else { break };
                let forks = node.forks.range::<Fork, _>(&fork..).filter(|(_, node)| node.base > 0);
                let entries = forks.flat_map(|(name, node)| {
                    let start = if *name == fork { start } else { 0 };
                    node.map.overlapping(start, OFFSET_MAX).map(move |entry| (name, entry))
                });
                for (searched, (name, entry)) in entries.enumerate() {
                    if searched == SEARCHED_MAX || batch_bytes >= move_bytes_max {
                        from = Some((name.clone(), entry.start()));
                        break;
                    }
                    if matches!(entry.place(), Place::Data { chunk, .. } if chunk.segment == segment.id) {
                        batch_bytes += entry.len() as usize;
                        batch.push(Live { object: object.clone(), fork: name.clone(), entry: *entry });
                    }
                }
            }
            self.relocate(work, segment, batch)?;
        }
        Ok(())
    }

    fn unreadable(&self, segment: &Segment, error: &std::io::Error) -> StoreError {
        let path = self.disk.describe(&segment.name);
        StoreError::new(nacre_object::ErrorKind::Io, format!("cannot read {path}: {error}"))
    }

    /// Collects what the index still refers to of a chunk; gives its length.
    fn collect_live(
        &self,
        segment: u32,
        chunk_offset: u32,
        (object, fork, start, len): (&ObjectId, &Fork, u64, u32),
        batch: &mut Vec<Live>,
        replaced: &mut HashSet<ObjectId>,
    ) -> usize {
        let shard = self.shard(object).lock();
        let Some(node) = shard.get(object) else { return 0 };
        if node.replaced && !replaced.contains(object) {
            replaced.insert(owned(object));
        }
        let Some(map) = node.forks.get(fork) else { return 0 };
        let mut bytes = 0;
        for entry in map.map.overlapping(start, start + u64::from(len)) {
            if let Place::Data { chunk, .. } = entry.place()
                && chunk.segment == segment
                && chunk.offset == chunk_offset
            {
                bytes += entry.len() as usize;
                batch.push(Live { object: object.clone(), fork: fork.clone(), entry: *entry });
            }
        }
        bytes
    }

    /// Writes live pieces to the log again, and then has the index refer to the new place.
    fn relocate(
        self: &Arc<Self>,
        work: &mut CleanerState,
        segment: &Arc<Segment>,
        mut batch: Vec<Live>,
    ) -> Result<(), StoreError> {
        let mut payload = Vec::with_capacity(batch.len());
        let mut moves = Vec::with_capacity(batch.len());
        batch.retain(|live| {
            let Place::Data { chunk, skip } = live.entry.place() else { return false };
            let mut whole = BytesMut::zeroed(chunk.len as usize);
            if !matches!(read_chunk(segment, chunk.offset, chunk.crc, &mut whole, false), Ok(true)) {
                return false;
            }
            let len = live.entry.len() as u32;
            let data = whole.freeze().slice(skip as usize..(skip + len) as usize);
            moves.push(Moved {
                object: live.object.clone(),
                fork: live.fork.clone(),
                start: live.entry.start(),
                len,
                version: live.entry.version(),
                crc: if len == chunk.len { chunk.crc } else { crc32c(&data) },
                source: Some((chunk.segment, chunk.offset)),
            });
            payload.push(data);
            true
        });
        if moves.is_empty() {
            return Ok(());
        }
        let payload_bytes: usize = payload.iter().map(Bytes::len).sum();
        let mut head = record::encode_moves(&moves);
        let record_bytes = record::record_bytes(head.len(), payload_bytes) as u64;
        let appended = loop {
            match self.log.append(&mut head, &payload) {
                Ok(appended) => break appended,
                Err(Refused::Failed(error)) => return Err(error),
                // Cleaning must not wait for cleaning: its own segment is made at once.
                Err(Refused::NeedsSegment(bytes)) => {
                    let capacity = u64::from(self.options.segment_bytes).max(SEGMENT_HEAD_BYTES + bytes);
                    self.add_segment(work, capacity)?;
                }
            }
        };
        self.log.wait_blocking(appended.batch)?;
        let counters = &self.maintenance.counters;
        counters.moved_bytes.fetch_add(payload_bytes as u64, Ordering::Relaxed);
        counters.move_record_bytes.fetch_add(record_bytes, Ordering::Relaxed);
        let mut offset = appended.payload_offset;
        for moved in moves {
            let chunk = Chunk { segment: appended.segment, offset, len: moved.len, crc: moved.crc };
            offset += moved.len;
            self.repoint(&moved, chunk, true);
        }
        Ok(())
    }

    /// Has the index refer to a moved piece's new chunk, wherever the fork still holds the bytes that were moved.
    ///
    /// In an object whose forks took each other's places a version does not tell: one transaction may have written the
    /// same range of two forks, of which one is called as the other was. There, and while the store runs (`exact`), it
    /// must be the very chunk that the piece was carried from. A chunk stands in one fork at a time, at one offset for
    /// ever; so a move does no harm when it comes late, nor when it is replayed on top of a snapshot that knew more than
    /// the log up to there. Elsewhere a replayed move applies by its version: also where the log is salvaged, and the
    /// move that brought the piece to its source is lost.
    pub(crate) fn repoint(&self, moved: &Moved, chunk: Chunk, exact: bool) {
        let mut shard = self.shard(&moved.object).lock();
        let Some(node) = shard.get_mut(&moved.object) else { return };
        let source = moved.source.filter(|_| exact || node.replaced);
        let Some(fork) = node.forks.get_mut(&moved.fork) else { return };
        let end = moved.start + u64::from(moved.len);
        let still: Vec<Entry> = fork
            .map
            .overlapping(moved.start, end)
            .filter(|entry| match entry.place() {
                Place::Data { chunk, .. } => {
                    let source = source.is_none_or(|source| source == (chunk.segment, chunk.offset));
                    entry.version() == moved.version && source
                }
                Place::Hole => false,
            })
            .map(|entry| entry.clip(moved.start, end))
            .collect();
        for old in still {
            let skip = (old.start() - moved.start) as u32;
            let entry = Entry::piece(old.start(), moved.version, chunk, skip, old.len() as u32);
            // Both sides are counted at once: nobody sees the piece in two segments, or in none.
            let mut changes = vec![(chunk.segment, old.len() as i64)];
            fork.map.replace(old.start(), old.end(), &[entry], |segment, bytes| {
                changes.push((segment, -(bytes as i64)));
            });
            self.table.add_all_live(&changes);
        }
    }
}

/// Walks through the heads of a segment's records, reading hardly more than those. Over damage it reads on as a
/// scrub would.
struct Heads<'a> {
    segment: &'a Segment,
    at: u64,
    end: u64,
    scan: Option<Scan>,
}

/// Most heads are shorter.
const HEAD_GUESS_BYTES: u64 = 256;

impl<'a> Heads<'a> {
    fn new(segment: &'a Segment) -> Self {
        let end = segment.end.load(Ordering::Relaxed).min(segment.capacity);
        Self { segment, at: SEGMENT_HEAD_BYTES, end, scan: None }
    }

    fn read(&self, at: u64, len: u64) -> std::io::Result<Bytes> {
        let mut bytes = BytesMut::zeroed(len.min(self.end - at) as usize);
        self.segment.file.read_at(at, &mut bytes)?;
        Ok(bytes.freeze())
    }

    /// The record at `at`, if its head is sound.
    fn head(&self) -> std::io::Result<Option<Record>> {
        let guess = self.read(self.at, HEAD_GUESS_BYTES)?;
        let bytes = match record::head_bytes(&guess, self.segment.binding) {
            Some(len) if len as u64 > HEAD_GUESS_BYTES => self.read(self.at, len as u64)?,
            Some(_) => guess,
            None => return Ok(None),
        };
        Ok(match record::decode(&bytes, self.segment.binding, self.at) {
            Some(Found::Head(record)) if self.at + u64::from(record.record_bytes) <= self.end => Some(record),
            _ => None,
        })
    }
}

impl Iterator for Heads<'_> {
    type Item = std::io::Result<(u64, Record)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.scan.is_none() {
            if self.at >= self.end {
                return None;
            }
            match self.head() {
                Ok(Some(record)) => {
                    let at = self.at;
                    self.at += u64::from(record.record_bytes);
                    return Some(Ok((at, record)));
                }
                Ok(None) => match self.read(0, self.end) {
                    Ok(bytes) => self.scan = Some(Scan::new(bytes, self.segment.binding, self.at as usize)),
                    Err(error) => return self.stop(error),
                },
                Err(error) => return self.stop(error),
            }
        }
        self.scan.as_mut()?.find_map(|item| match item {
            Item::Record { at, record, .. } => Some(Ok((at as u64, record))),
            Item::Gap { .. } => None,
        })
    }
}

impl Heads<'_> {
    fn stop(&mut self, error: std::io::Error) -> Option<std::io::Result<(u64, Record)>> {
        self.at = self.end;
        Some(Err(error))
    }
}

impl CleanerState {
    /// Whether a snapshot that is kept needs a segment's records. While there are fewer snapshots than are kept, all of
    /// the log is needed: should the only one be damaged, it is replayed from its beginning.
    pub fn pins(&self, segment: u32) -> bool {
        self.snapshots.len() < self.snapshots_needed
            || self.snapshots.first().is_none_or(|(_, position)| segment >= position.segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u32, live_bytes: u64, age: u64) -> Candidate {
        Candidate { id, capacity: 1000, live_bytes, age }
    }

    #[test]
    fn the_emptier_and_the_older_come_first() {
        let chosen = |list: &[Candidate]| choose(list.iter().copied(), 1.0).map(|candidate| candidate.id);
        assert_eq!(chosen(&[candidate(1, 500, 10), candidate(2, 100, 10)]), Some(2));
        assert_eq!(chosen(&[candidate(1, 500, 1000), candidate(2, 400, 10)]), Some(1));
        assert_eq!(chosen(&[candidate(1, 500, 1_000_000), candidate(2, 0, 0)]), Some(2));
        assert_eq!(chosen(&[candidate(1, 950, 1_000_000)]), None);
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn what_costs_more_to_move_than_it_frees_is_left_alone() {
        assert_eq!(choose([candidate(1, 500, 10)], 2.0), None);
        assert!(choose([candidate(1, 500, 10)], 1.5).is_some());
    }
}
