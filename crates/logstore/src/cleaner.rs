//! The cleaner: makes room by moving live extents out of segments that are mostly garbage.
//!
//! The choice is cost-benefit, as in the log-structured file system of Rosenblum and Ousterhout: the emptier and the
//! older a segment is, the more it is worth. Moved extents keep their versions; a record of moves is written and synced
//! before the index refers to it, and a segment is freed only when nothing refers to it and no snapshot that is kept
//! needs its records.
//!
//! The number of bytes that a segment's cleaning writes is measured before it begins, and its room is kept in reserve
//! (module `space`), so no cleaning is begun that could not be finished.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use nacre_object::limit::OFFSET_MAX;
use nacre_object::{ErrorKind, Fork, ObjectId, StoreError};

use crate::codec::crc32c;
use crate::engine::{Engine, owned};
use crate::extent_map::{Chunk, Entry, ExtentMap, Place};
use crate::fetch::{Part, Pins, gather};
use crate::footprint::{EXTENT_BYTES_MAX, Footprint};
use crate::log::{Position, Purpose, Refused, Room};
use crate::record::{self, Body, Effect, Found, HEAD_BYTES_MIN, Moved, Record};
use crate::scan::{Item, Scan};
use crate::segment::{SEGMENT_HEAD_BYTES, Segment};
use crate::snapshot::KEPT;
use crate::space::Wanted;
use crate::sync::unlock_fair;

/// The maximum payload of one record of moves, in bytes.
const MOVE_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of bytes in a record of moves for each piece, besides its payload and its names.
const PIECE_HEAD_BYTES: u64 = 40;
/// The garbage between two live pieces of a chunk, in bytes, that is moved with them: a piece of its own would take as
/// much.
const GAP_BYTES_MAX: u64 = 128;

/// The effort that cleaning is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Keeps garbage within bounds: cleaning must give back more than a tenth.
    Bound,
    /// Makes room for a transaction that writes.
    Room,
    /// Makes room for a transaction that shrinks: any gain is enough.
    Utmost,
}

impl Effort {
    /// Returns the share of a segment that must be gained.
    pub fn gain_min(self) -> f64 {
        match self {
            Self::Bound => 0.1,
            Self::Room => 1.0 / 32.0,
            Self::Utmost => 1.0 / 1024.0,
        }
    }
}

/// The maximum number of passes over one segment in which forks are replaced meanwhile.
const PASSES_MAX: usize = 4;
/// The maximum number of entries of an object that are searched under its lock at a time.
const SEARCHED_MAX: usize = 10_000;

/// The state that maintenance keeps between its turns.
pub struct CleanerState {
    /// The numbers of the snapshots that are kept, the oldest first, each with the position at which replay begins.
    pub snapshots: Vec<(u64, Position)>,
    /// The number of snapshots that there must be before any of the log is given up.
    pub snapshots_needed: usize,
    /// The current length of snapshots' files in bytes, while they are being made longer; they must not become shorter
    /// again.
    pub snapshot_bytes_min: u64,
}

impl Default for CleanerState {
    fn default() -> Self {
        Self { snapshots: Vec::new(), snapshots_needed: KEPT, snapshot_bytes_min: 0 }
    }
}

/// The properties of a segment that decide whether it is cleaned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its number.
    pub id: u32,
    /// Its size in bytes.
    pub capacity: u64,
    /// Bytes of it that are referred to.
    pub live_bytes: u64,
    /// Bytes of log that it takes to move the live bytes.
    pub move_bytes: u64,
    /// The number of batches since it was last written to.
    pub age: u64,
}

/// Returns the candidate that is most worth cleaning, if any is: one that would give back at least the share `gain_min`
/// of itself.
pub fn choose(candidates: impl IntoIterator<Item = Candidate>, gain_min: f64) -> Option<Candidate> {
    let mut best: Option<(f64, Candidate)> = None;
    for candidate in candidates {
        let moved = candidate.move_bytes as f64 / candidate.capacity as f64;
        if moved > 1.0 - gain_min {
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

/// A piece of a chunk that is being cleaned away: from the first byte that the index refers to up to the last, or up to
/// a stretch of garbage too long to be moved with them.
#[derive(Clone)]
struct Live {
    object: ObjectId,
    fork: Fork,
    start: u64,
    len: u32,
    version: u64,
    chunk: Chunk,
    skip: u32,
}

impl Live {
    /// Returns the bytes of log that it takes to move it, without its share of the record around it.
    fn move_bytes(&self) -> u64 {
        let names = self.object.as_bytes().len() + self.fork.as_bytes().len();
        u64::from(self.len) + 2 * (names as u64 + PIECE_HEAD_BYTES)
    }

    /// Cuts it into pieces of at most `bytes_max` bytes.
    fn cut(self, bytes_max: u32) -> impl Iterator<Item = Live> {
        (0..self.len).step_by(bytes_max as usize).map(move |from| Live {
            start: self.start + u64::from(from),
            len: bytes_max.min(self.len - from),
            skip: self.skip + from,
            ..self.clone()
        })
    }
}

/// The pieces of one segment, fork by fork, each fork from its beginning on.
#[derive(Default)]
struct Pieces {
    list: Vec<Live>,
    /// The last piece of each chunk, by the chunk's offset: an index into the list.
    last: HashMap<u32, usize>,
}

impl Pieces {
    /// Adds what an entry of a fork's map refers to. It joins the preceding piece of the same chunk, if hardly any
    /// garbage is between the two.
    fn add(&mut self, object: &ObjectId, fork: &Fork, map: &ExtentMap, entry: &Entry) {
        let Place::Data { chunk, skip } = entry.place() else { return };
        if let Some(last) = self.last.get(&chunk.offset).map(|index| &mut self.list[*index])
            && last.fork == *fork
        {
            let end = last.start + u64::from(last.len);
            // One transaction may have written the same bytes twice over. What stands between the two pieces has their
            // version then, and must not be taken for a part of this chunk when the move is replayed.
            let mut between = map.overlapping(end, entry.start());
            if entry.start() - end < GAP_BYTES_MAX && between.all(|other| other.version() != entry.version())
            {
                last.len = (entry.end() - last.start) as u32;
                return;
            }
        }
        self.last.insert(chunk.offset, self.list.len());
        self.list.push(Live {
            object: object.clone(),
            fork: fork.clone(),
            start: entry.start(),
            len: entry.len() as u32,
            version: entry.version(),
            chunk,
            skip,
        });
    }
}

impl Engine {
    /// Returns whether the wanted room would take the store over its space bound: half as much again as is live, a
    /// segment and what is kept in reserve. (The promise is 1.6 times and three segments; cleaning begins before.)
    pub(crate) fn is_over_bound(&self, wanted: &Wanted) -> bool {
        let segment_bytes = u64::from(self.options.segment_bytes);
        let reserve_bytes = self.spares_wanted() * segment_bytes;
        let capacity = segment_bytes.max(SEGMENT_HEAD_BYTES + wanted.record_bytes);
        // A spare file beyond the reserve is taken before another one is made.
        let spare_bytes = self.space.spare_bytes().max(reserve_bytes + capacity);
        let taken = self.table.capacity_bytes() + spare_bytes;
        let live = self.table.live_bytes();
        taken > live + live / 2 + segment_bytes + reserve_bytes
    }

    /// Does one step towards less space: frees a segment, cleans one, or takes a snapshot so that one can be freed.
    /// Only segments below `newest` are considered. Returns false if there is nothing left to gain.
    pub(crate) fn clean_once(
        self: &Arc<Self>,
        work: &mut CleanerState,
        newest: u32,
        effort: Effort,
    ) -> Result<bool, StoreError> {
        // The segment that the log would be replayed from, were a snapshot taken now, can be freed by no snapshot.
        let (position, now) = self.log.position();
        let newest = newest.min(position.segment);
        // As long as there is space the cleaner takes what it needs; when there is none, what is kept for it.
        let _ = self.fill_reserve();
        let mut pinned_too = true;
        // Segments whose pieces change their names as fast as they are looked for.
        let mut put_off: Vec<u32> = Vec::new();
        loop {
            let room_bytes = self.room_for_moves();
            let counters = &self.maintenance.counters;
            let moved = counters.moved_bytes.load(Ordering::Relaxed).max(1) as f64;
            let move_cost = (counters.move_record_bytes.load(Ordering::Relaxed) as f64 / moved).max(1.0);
            let candidates = self.table.all().into_iter().filter(|segment| {
                segment.id < newest
                    && segment.sealed.load(Ordering::Acquire)
                    // What is damaged cannot be moved, but it can be freed when nothing refers to it any more.
                    && (!segment.damaged.load(Ordering::Relaxed) || segment.live_bytes() == 0)
                    && (pinned_too || !work.pins(segment.id))
                    && !put_off.contains(&segment.id)
            });
            let candidates = candidates.map(|segment| {
                let live_bytes = segment.live_bytes();
                let likely = (live_bytes as f64 * move_cost) as u64;
                Candidate {
                    id: segment.id,
                    capacity: segment.capacity,
                    live_bytes,
                    move_bytes: segment.move_bytes().unwrap_or(likely),
                    age: now.saturating_sub(segment.last_batch.load(Ordering::Relaxed)),
                }
            });
            let movable = candidates.filter(|candidate| candidate.move_bytes <= room_bytes);
            let Some(choice) = choose(movable, effort.gain_min()) else { return Ok(false) };
            let Some(segment) = self.table.get(choice.id) else { return Ok(false) };
            if choice.live_bytes > 0 && segment.move_bytes().is_none() {
                // What was a guess so far is measured; then it may be another one's turn.
                if let Err(error) = self.measure(&segment) {
                    segment.damaged.store(true, Ordering::Relaxed);
                    tracing::warn!("{error}; {} is left as it is", segment.name);
                }
                continue;
            }
            if work.pins(segment.id) {
                // As many snapshots as are kept unpin it.
                match self.snapshot(work) {
                    Ok(()) => return Ok(true),
                    Err(error) if error.kind == ErrorKind::OutOfSpace => {
                        tracing::warn!("{error}");
                        pinned_too = false;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            if self.clean(segment)? {
                return Ok(true);
            }
            put_off.push(choice.id);
        }
    }

    /// Returns the bytes of moves that find room without new space, whatever stays unused at the ends of segments.
    fn room_for_moves(&self) -> u64 {
        let Room { tail_bytes, next_bytes } = self.log.room();
        let waste_bytes = u64::from(self.options.segment_bytes) / 4;
        tail_bytes.saturating_sub(waste_bytes) + next_bytes / 4 * 3
    }

    /// Cleans every segment that has garbage worth the work. Other waiters find room between its steps.
    pub(crate) fn compact(self: &Arc<Self>) -> Result<(), StoreError> {
        // Each turn frees a segment or moves the snapshots on; segments made meanwhile are left for another time.
        let newest = self.space.pool.lock().next_segment;
        loop {
            let mut work = self.maintenance.work.lock();
            let cleaned = self.clean_once(&mut work, newest, Effort::Bound)?;
            if !cleaned && self.persistent && self.log.since_snapshot_bytes() > 0 {
                self.snapshot(&mut work)?;
            }
            unlock_fair(work);
            // What the thread left alone for this step it finds to do now.
            self.maintenance.nudge();
            if !cleaned {
                return Ok(());
            }
        }
    }

    /// Moves what is live out of a segment and frees it. Returns false if what is left changes its names as fast as it
    /// is looked for, and has to be cleaned another time.
    pub(crate) fn clean(self: &Arc<Self>, segment: Arc<Segment>) -> Result<bool, StoreError> {
        // A fork that takes another's place while its pieces are looked for, or are on their way, is found under its new
        // name by the next pass.
        let mut renamed = true;
        for _ in 0..PASSES_MAX {
            let replacements = self.replacements.load(Ordering::SeqCst);
            if segment.live_bytes() == 0 || !renamed {
                break;
            }
            self.evacuate(&segment)?;
            renamed = self.replacements.load(Ordering::SeqCst) != replacements;
        }
        // What took the last reference away may be on its way to the disk only; were it lost, the index would refer
        // to the segment again. So it is asked first whether there is none: a reference that goes away while this waits may
        // not be covered by the sync.
        let is_free = segment.is_free();
        self.log.wait_blocking(self.log.last_batch())?;
        self.log.sync()?;
        if !is_free {
            if renamed || segment.is_free() {
                return Ok(false);
            }
            // Damage hides some of it from the cleaner, not from readers: the segment stays.
            segment.damaged.store(true, Ordering::Relaxed);
            tracing::warn!("{} holds live data that cannot be moved; run a scrub", segment.name);
            return Ok(true);
        }
        self.maintenance.counters.cleaned.fetch_add(1, Ordering::Relaxed);
        let mut pool = self.space.pool.lock();
        drop(self.table.remove(segment.id));
        self.discard(&mut pool, segment);
        Ok(true)
    }

    /// Measures the bytes of log that it takes to move what is live in a segment.
    fn measure(&self, segment: &Arc<Segment>) -> Result<(), StoreError> {
        let live_bytes = segment.live_bytes();
        let mut bytes = 0;
        self.visit_live(segment, |pieces| {
            bytes += pieces.iter().map(Live::move_bytes).sum::<u64>();
            Ok(())
        })?;
        let records = bytes / self.move_bytes_max() + 1;
        segment.set_move_bytes(live_bytes, bytes + records * 2 * HEAD_BYTES_MIN as u64);
        Ok(())
    }

    /// Returns the size in bytes at which records of moves are closed: they must not leave much of a segment unused.
    fn move_bytes_max(&self) -> u64 {
        MOVE_BYTES_MAX.min(u64::from(self.options.segment_bytes) / 8)
    }

    fn evacuate(self: &Arc<Self>, segment: &Arc<Segment>) -> Result<(), StoreError> {
        let mut batch: Vec<Live> = Vec::new();
        let mut batch_bytes = 0;
        self.visit_live(segment, |pieces| {
            for live in pieces {
                // A record that does not fit behind the last one leaves what is there unused. Where little is gained, that
                // could be more than the gain; so one that fits is closed before it would not.
                let tail_bytes = self.log.room().tail_bytes;
                let fits = |bytes: u64| bytes + 2 * HEAD_BYTES_MIN as u64 <= tail_bytes;
                if fits(batch_bytes) && !fits(batch_bytes + live.move_bytes()) && !batch.is_empty() {
                    batch_bytes = 0;
                    self.relocate(segment, std::mem::take(&mut batch))?;
                }
                batch_bytes += live.move_bytes();
                batch.push(live);
                if batch_bytes >= self.move_bytes_max() {
                    batch_bytes = 0;
                    self.relocate(segment, std::mem::take(&mut batch))?;
                }
            }
            Ok(())
        })?;
        self.relocate(segment, batch)
    }

    /// Shows what the index refers to of a segment, each piece once as long as no fork is replaced meanwhile. Pieces
    /// that fill much of a segment are cut, so that a record of moves fits into any.
    ///
    /// The heads of the segment's records name objects and forks as they were called when they were written. A fork
    /// that replaced another may hold what was written under any name, so those are searched as a whole instead.
    fn visit_live(
        &self,
        segment: &Segment,
        mut visit: impl FnMut(Vec<Live>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        // Objects whose forks may hold pieces of this segment that were written under other forks' names.
        let mut replaced: HashSet<ObjectId> = HashSet::new();
        let piece_bytes_max = self.chunk_bytes() as u32;
        let mut visit = |pieces: Vec<Live>| {
            let more: u32 = pieces.iter().map(|live| live.len.div_ceil(piece_bytes_max) - 1).sum();
            let growth_bytes = u64::from(more) * EXTENT_BYTES_MAX as u64;
            // Only what was written when segments were larger is longer than a piece.
            match self.index_has_room(&Wanted { record_bytes: 0, growth_bytes, purpose: Purpose::Clean }) {
                true => visit(pieces.into_iter().flat_map(|live| live.cut(piece_bytes_max)).collect()),
                false => visit(pieces),
            }
        };
        self.visit_chunks(segment, |object, fork, start, len, chunk_offset| {
            visit(self.collect_live(segment.id, chunk_offset, (object, fork, start, len), &mut replaced))
        })?;
        replaced.into_iter().try_for_each(|object| self.visit_replaced(segment.id, &object, &mut visit))
    }

    /// Shows the chunks of a segment: object, fork, offset in the fork, length, and offset in the segment.
    fn visit_chunks(
        &self,
        segment: &Segment,
        mut visit: impl FnMut(&ObjectId, &Fork, u64, u32, u32) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        for item in Heads::new(segment) {
            let (at, record) = item.map_err(|error| self.unreadable(segment, &error))?;
            let mut chunk_offset = at as u32 + record.head_bytes;
            match &record.body {
                Body::Transaction { object, effects, .. } => {
                    for effect in effects {
                        if let Effect::Chunk { fork, offset, len, .. } = effect {
                            visit(object, fork, *offset, *len, chunk_offset)?;
                            chunk_offset += len;
                        }
                    }
                }
                Body::Moves(moves) => {
                    for moved in moves {
                        visit(&moved.object, &moved.fork, moved.start, moved.len, chunk_offset)?;
                        chunk_offset += moved.len;
                    }
                }
                Body::Tokens { .. } | Body::Mark => {}
            }
        }
        Ok(())
    }

    /// Shows what those forks of an object that replaced others hold of a segment. Their maps are searched a portion at
    /// a time, since each portion holds up the object.
    fn visit_replaced(
        &self,
        segment: u32,
        object: &ObjectId,
        visit: &mut impl FnMut(Vec<Live>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut from = Some((Fork::DEFAULT, 0));
        while let Some((fork, start)) = from {
            let mut pieces = Pieces::default();
            let mut piece_bytes = 0;
            from = None;
            {
                let shard = self.shard(object).lock();
                let Some(node) = shard.get(object) else { break };
                let forks = node.forks.range::<Fork, _>(&fork..).filter(|(_, node)| node.base > 0);
                let entries = forks.flat_map(|(name, node)| {
                    let start = if *name == fork { start } else { 0 };
                    node.map.overlapping(start, OFFSET_MAX).map(move |entry| (name, &node.map, entry))
                });
                for (searched, (name, map, entry)) in entries.enumerate() {
                    if searched == SEARCHED_MAX || piece_bytes >= self.move_bytes_max() {
                        from = Some((name.clone(), entry.start()));
                        break;
                    }
                    if matches!(entry.place(), Place::Data { chunk, .. } if chunk.segment == segment) {
                        piece_bytes += entry.len();
                        pieces.add(object, name, map, entry);
                    }
                }
            }
            visit(pieces.list)?;
        }
        Ok(())
    }

    fn unreadable(&self, segment: &Segment, error: &std::io::Error) -> StoreError {
        let path = self.disk.describe(&segment.name);
        StoreError::new(ErrorKind::Io, format!("cannot read {path}: {error}"))
    }

    /// Collects what the index still refers to of a chunk, under the name that its fork had when it was written.
    /// Objects whose forks were replaced since are added to `replaced`: what such a fork holds is not collected here.
    fn collect_live(
        &self,
        segment: u32,
        chunk_offset: u32,
        (object, fork, start, len): (&ObjectId, &Fork, u64, u32),
        replaced: &mut HashSet<ObjectId>,
    ) -> Vec<Live> {
        let mut pieces = Pieces::default();
        let shard = self.shard(object).lock();
        let Some(node) = shard.get(object) else { return pieces.list };
        if node.replaced && !replaced.contains(object) {
            replaced.insert(owned(object));
        }
        let Some(found) = node.forks.get(fork).filter(|fork| fork.base == 0) else { return pieces.list };
        for entry in found.map.overlapping(start, start + u64::from(len)) {
            if matches!(entry.place(), Place::Data { chunk, .. }
                if chunk.segment == segment && chunk.offset == chunk_offset)
            {
                pieces.add(object, fork, &found.map, entry);
            }
        }
        pieces.list
    }

    /// Writes live pieces to the log again, and then makes the index refer to the new place.
    fn relocate(self: &Arc<Self>, segment: &Arc<Segment>, batch: Vec<Live>) -> Result<(), StoreError> {
        let mut payload = Vec::with_capacity(batch.len());
        let mut moves = Vec::with_capacity(batch.len());
        for (Live { object, fork, start, len, version, chunk, skip: _ }, piece) in
            read_pieces(segment, batch)?
        {
            let crc = if len == chunk.len { chunk.crc } else { crc32c(&piece) };
            let source = Some((chunk.segment, chunk.offset));
            moves.push(Moved { object, fork, start, len, version, crc, source });
            payload.push(piece);
        }
        if moves.is_empty() {
            return Ok(());
        }
        let payload_bytes: usize = payload.iter().map(Bytes::len).sum();
        let mut head = record::encode_moves(&moves);
        let record_bytes = record::record_bytes(head.len(), payload_bytes) as u64;
        let appended = loop {
            match self.log.append(&mut head, &payload, Purpose::Clean) {
                Ok(appended) => break appended,
                Err(Refused::Failed(error)) => return Err(error),
                // Cleaning must not wait for cleaning: its own segment is made at once.
                Err(Refused::NeedsSegment(record_bytes)) => {
                    self.grow(&Wanted { record_bytes, growth_bytes: 0, purpose: Purpose::Clean })?;
                }
            }
        };
        if appended.rolled {
            self.settle_reserve(&mut self.space.pool.lock());
        }
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

    /// Makes the index refer to a moved piece's new chunk, wherever the fork still holds the bytes that were moved.
    ///
    /// In an object whose forks replaced each other a version is not enough: one transaction may have written the same
    /// range of two forks, one of which now has the other's name. There, and while the store runs (`exact`), the entry
    /// must refer to the very chunk that the piece was moved from. A chunk stands in one fork at a time, at one offset
    /// for ever; so a move does no harm when it comes late, nor when it is replayed on top of a snapshot that knew more
    /// than the log up to there. Elsewhere a replayed move applies by its version: also where the log is salvaged, and
    /// the move that brought the piece to its source is lost.
    pub(crate) fn repoint(&self, moved: &Moved, chunk: Chunk, exact: bool) {
        let mut shard = self.shard(&moved.object).lock();
        let Some(node) = shard.get_mut(&moved.object) else { return };
        let source = moved.source.filter(|_| exact || node.replaced);
        let Some(fork) = node.forks.get_mut(&moved.fork) else { return };
        let end = moved.start + u64::from(moved.len);
        let before = Footprint::of_fork(&moved.fork, &fork.map);
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
        self.space.index.add(Footprint::of_fork(&moved.fork, &fork.map) - before);
    }
}

/// Reads pieces of a segment, in the order of their objects, forks and offsets: what is read together later is found together
/// then. Pieces whose chunks are damaged are left out. All are slices of one buffer, so that little more memory is
/// held than they are long.
fn read_pieces(segment: &Arc<Segment>, mut batch: Vec<Live>) -> Result<Vec<(Live, Bytes)>, StoreError> {
    batch.sort_by(|one, other| {
        let place = |live: &Live| (live.start, live.skip);
        let names = one.object.cmp(&other.object).then_with(|| one.fork.cmp(&other.fork));
        names.then_with(|| place(one).cmp(&place(other)))
    });
    let mut end = 0;
    let mut parts: Vec<Part> = Vec::with_capacity(batch.len());
    for Live { chunk, skip, len, .. } in &batch {
        parts.push(Part { chunk: *chunk, skip: *skip, len: *len, buffer: 0, at: end });
        end += *len as usize;
    }
    let mut buffers = [BytesMut::zeroed(end)];
    // By their offsets in the buffer, which tell the pieces apart.
    let mut lost = HashSet::new();
    let lose = |part: &Part, _| {
        lost.insert(part.at);
        Ok(())
    };
    gather(&mut parts, &Pins::of(segment), &mut buffers, false, lose)?;
    let [buffer] = buffers;
    let bytes = buffer.freeze();
    let mut at = 0;
    let pieces = batch.into_iter().filter_map(|live| {
        let from = at;
        at += live.len as usize;
        (!lost.contains(&from)).then(|| (live, bytes.slice(from..at)))
    });
    Ok(pieces.collect())
}

/// A walk through the heads of a segment's records, which reads hardly more than those. It continues past damage as a
/// scrub does.
struct Heads<'a> {
    segment: &'a Segment,
    at: u64,
    end: u64,
    scan: Option<Scan>,
}

/// The number of bytes that are read of a head at first. Most heads are shorter.
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

    /// Returns the record at `at`, if its head is sound.
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
    /// Returns whether a snapshot that is kept needs a segment's records. While there are fewer snapshots than are
    /// kept, all of the log is needed: should the only one be damaged, it is replayed from its beginning.
    pub fn pins(&self, segment: u32) -> bool {
        self.snapshots.len() < self.snapshots_needed
            || self.snapshots.first().is_none_or(|(_, position)| segment >= position.segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u32, live_bytes: u64, age: u64) -> Candidate {
        Candidate { id, capacity: 1000, live_bytes, move_bytes: live_bytes, age }
    }

    #[test]
    fn the_emptier_and_the_older_come_first() {
        let chosen = |list: &[Candidate]| choose(list.iter().copied(), 0.1).map(|candidate| candidate.id);
        assert_eq!(chosen(&[candidate(1, 500, 10), candidate(2, 100, 10)]), Some(2));
        assert_eq!(chosen(&[candidate(1, 500, 1000), candidate(2, 400, 10)]), Some(1));
        assert_eq!(chosen(&[candidate(1, 500, 1_000_000), candidate(2, 0, 0)]), Some(2));
        assert_eq!(chosen(&[candidate(1, 950, 1_000_000)]), None);
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn what_costs_more_to_move_than_it_frees_is_left_alone() {
        let costly = Candidate { move_bytes: 1000, ..candidate(1, 500, 10) };
        assert_eq!(choose([costly], Effort::Bound.gain_min()), None);
        assert!(choose([Candidate { move_bytes: 750, ..costly }], Effort::Bound.gain_min()).is_some());
    }

    #[test]
    fn when_there_is_no_room_less_is_worth_the_work() {
        let nearly_full = candidate(1, 960, 10);
        assert_eq!(choose([nearly_full], Effort::Bound.gain_min()), None);
        assert!(choose([nearly_full], Effort::Room.gain_min()).is_some());
        assert_eq!(choose([candidate(1, 980, 10)], Effort::Room.gain_min()), None);
        assert!(choose([candidate(1, 980, 10)], Effort::Utmost.gain_min()).is_some());
    }
}
