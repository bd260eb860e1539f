//! The cleaner: makes room by moving live extents out of segments that are mostly garbage.
//!
//! The choice is cost-benefit, as in the log-structured file system of Rosenblum and Ousterhout: the emptier and the
//! older a segment is, the more it is worth. Moved extents keep their versions; a record of moves is written and synced
//! before the index refers to it, and a segment is freed only when nothing refers to it and no snapshot that is kept
//! needs its records.
//!
//! The number of bytes that a segment's cleaning writes is measured before it begins, and its room is kept in reserve
//! (module `space`), so no cleaning is begun that could not be finished.
//!
//! A segment is freed because a count of live bytes is zero, and the count is kept beside the index, by atomics. So a segment
//! is cleaned only if both conditions hold:
//! - it is sealed, and all kept snapshots have positions behind it. A transaction holds the lock of its object's
//!   shard from before its record is in the log until its bytes are in the index and counted, and a snapshot takes the lock
//!   of every shard after its position is fixed. So every transaction with a record in the segment has been counted, and
//!   nobody makes new references to a sealed segment;
//! - the count is read first, and then everything in the log is synced: the change that removed the last reference may not
//!   be on the device yet, and if it were lost, the index would refer to the segment again.
//!
//! Three assertions hold in the shipped program, since a breach would lose data: the count of such a segment is not
//! negative and stays at zero ([`Segment::is_free`]), no change of the index names a segment that is gone
//! (`SegmentTable::add_all_live`), and every extent that is read is in a segment of the table (`fetch`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_object::limit::OFFSET_MAX;
use nacre_object::{Fork, ObjectId, StoreError};

use crate::choice::{Choice, Guesses, Measuring};
use crate::engine::{Engine, owned};
use crate::extent_map::{Chunk, Entry, ExtentMap, Place};
use crate::footprint::EXTENT_BYTES_MAX;
use crate::heads::Heads;
use crate::log::Purpose;
use crate::record::{Body, Effect, HEAD_BYTES_MIN, Record};
use crate::segment::{SEGMENT_HEAD_BYTES, Segment};
use crate::snapshot::KEPT;
use crate::space::SpaceRequest;
use crate::sync::unlock_fair;

/// The maximum payload of one record of moves, in bytes.
const MOVE_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of bytes in a record of moves for each piece, besides its payload and its names.
pub(crate) const PIECE_HEAD_BYTES: u64 = 40;
/// The garbage between two live pieces of a chunk, in bytes, that is moved with them: a piece of its own would take as
/// much.
const GAP_BYTES_MAX: u64 = 128;

/// The effort that cleaning is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Keeps garbage within bounds: cleaning must free more than a tenth. Segments pinned by snapshots are left until the
    /// next snapshot is worth taking.
    Bound,
    /// Gives back what can be given back at the same price, now.
    Compact,
    /// Makes room for a transaction that writes.
    FreeSpace,
    /// Makes room for a transaction that shrinks: any gain is enough.
    Utmost,
}

impl Effort {
    /// Returns the share of a segment that must be gained.
    pub fn gain_min(self) -> f64 {
        match self {
            Self::Bound | Self::Compact => 0.1,
            Self::FreeSpace => 1.0 / 32.0,
            Self::Utmost => 1.0 / 1024.0,
        }
    }
}

/// The bytes of a segment that are cleaned at a time: nobody waits for much more.
pub(crate) const SLICE_BYTES: u64 = 512 << 10;

/// The maximum number of passes over one segment in which forks are replaced meanwhile.
const PASSES_MAX: usize = 4;
/// The maximum number of entries of an object that are searched under its lock at a time.
const SEARCHED_MAX: usize = 10_000;

/// The state of the cleaner between two slices of its work.
#[derive(Default, derive_more::Debug)]
#[debug("Cleaning")]
pub struct Cleaning {
    /// The segment that is being cleaned.
    under_way: Option<UnderWay>,
    /// The segment that is being measured.
    measuring: Option<Measuring>,
    /// Segments whose pieces change their names as fast as they are looked for.
    pub(crate) put_off: Vec<u32>,
    /// The knowledge of segments that were not measured.
    pub(crate) guesses: Guesses,
    /// Bytes that count as gained although they are only measured so far.
    advanced_bytes: u64,
}

impl Cleaning {
    /// Returns the gain of some cleaning. The part announced in advance is subtracted gradually, so that some is left to
    /// announce each time.
    fn gained(&mut self, bytes: u64) -> Cleaned {
        let announced_bytes = self.advanced_bytes.min(bytes / 2);
        self.advanced_bytes -= announced_bytes;
        Cleaned::Gained(bytes - announced_bytes)
    }
}

/// A segment that is being cleaned.
struct UnderWay {
    segment: Arc<Segment>,
    /// The offset of the next record to look at.
    at: u64,
    /// Objects whose forks may hold pieces of this segment that were written under other forks' names.
    replaced: HashSet<ObjectId>,
    /// The number of replacements of forks when the walk through the segment began.
    replacements: u64,
    passes: usize,
}

/// The result of a slice of cleaning.
pub(crate) enum Cleaned {
    /// The bytes that are regained, or will be when the segment is free. There may be more to do.
    Gained(u64),
    /// The segment most worth cleaning is needed until a snapshot is taken.
    NeedsSnapshot,
    /// Nothing left to gain.
    Nothing,
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
    /// Bytes of log that it takes to move the live bytes, as it was measured or guessed.
    pub move_bytes: u64,
    /// True if that was measured.
    pub is_measured: bool,
    /// The number of batches since it was last written to.
    pub age: u64,
}

impl Candidate {
    /// Returns the least bytes of log that moving may take: the estimate may be too high.
    pub(crate) fn move_bytes_min(&self) -> u64 {
        if self.is_measured { self.move_bytes } else { self.live_bytes }
    }
}

/// The factor by which a segment that was not measured must be more worth cleaning than one that was.
const UNMEASURED_WORTH: f64 = 0.75;

/// Returns the candidate that is most worth cleaning, if any would free at least the share `gain_min`
/// of itself. An estimated share only decides which one is first.
pub fn choose(candidates: impl IntoIterator<Item = Candidate>, gain_min: f64) -> Option<Candidate> {
    let mut best: Option<(f64, Candidate)> = None;
    for candidate in candidates {
        let share = |bytes: u64| bytes as f64 / candidate.capacity as f64;
        if share(candidate.move_bytes_min()) > 1.0 - gain_min {
            continue;
        }
        let moved = share(candidate.move_bytes);
        let gained = (1.0 - moved).max(f64::EPSILON);
        let worth = if candidate.is_measured { 1.0 } else { UNMEASURED_WORTH };
        let benefit = worth * gained * (candidate.age + 1) as f64 / (1.0 + moved);
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
pub(crate) struct Live {
    pub(crate) object: ObjectId,
    pub(crate) fork: Fork,
    pub(crate) start: u64,
    pub(crate) len: u32,
    pub(crate) version: u64,
    pub(crate) chunk: Chunk,
    pub(crate) skip: u32,
}

impl Live {
    /// Returns the bytes of log that it takes to move it, without its share of the record around it.
    pub(crate) fn move_bytes(&self) -> u64 {
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

/// The end of a slice of cleaning.
enum Slice {
    MoreToCome,
    Last,
    /// The segment cannot be read, and is left as it is.
    Unreadable,
}

/// Pieces that are moved by one record.
#[derive(Default)]
struct Batch {
    pieces: Vec<Live>,
    /// The bytes of log that moving them takes, without the record around them.
    bytes: u64,
}

impl Engine {
    /// Returns whether the wanted room would take the store over its space bound: half as much again as is live, a
    /// segment and what is kept in reserve. (The promise is 1.6 times and three segments; cleaning begins before.)
    pub(crate) fn is_over_bound(&self, wanted: &SpaceRequest) -> bool {
        let segment_bytes = u64::from(self.options.segment_bytes);
        let reserve_bytes = self.spares_wanted() * segment_bytes;
        let capacity = segment_bytes.max(SEGMENT_HEAD_BYTES + wanted.record_bytes);
        // A spare file beyond the reserve is taken before another one is made.
        let spare_bytes = self.space.spare_bytes().max(reserve_bytes + capacity);
        let taken = self.table.capacity_bytes() + spare_bytes;
        // What is live takes more room in the log than its bytes: each piece has a description, twice. Where pieces are
        // small, that is most of it, and no cleaning makes it less.
        let described_bytes = self.space.index.footprint().extents.max(0) as u64 * 2 * PIECE_HEAD_BYTES;
        let live = self.table.live_bytes() + described_bytes;
        taken > live + live / 2 + segment_bytes + reserve_bytes + self.pinned_bytes_allowed()
    }

    /// Returns the bytes of log that may wait for snapshots to move on, beside the live bytes: if the index is large,
    /// snapshots are far apart (see [`Engine::snapshot_spacing_bytes`]).
    fn pinned_bytes_allowed(&self) -> u64 {
        let segment_bytes = u64::from(self.options.segment_bytes);
        // An index that is small is written down as soon as that frees anything.
        let spacing_bytes = self.snapshot_spacing_bytes();
        if spacing_bytes < segment_bytes { 0 } else { KEPT as u64 * spacing_bytes }
    }

    /// Does a slice of the work of freeing space: frees a segment, or moves some live bytes of one. Only segments
    /// below `newest` are begun, and those that a snapshot has to unpin only if `pinned_too` is set.
    pub(crate) fn clean_once(
        self: &Arc<Self>,
        cleaning: &mut Cleaning,
        newest: u32,
        effort: Effort,
        pinned_too: bool,
    ) -> Result<Cleaned, StoreError> {
        // As long as there is space the cleaner takes what it needs; when there is none, what is kept for it.
        let _ = self.fill_reserve();
        if let Some(measuring) = cleaning.measuring.take() {
            return self.measure_on(cleaning, measuring);
        }
        if cleaning.under_way.is_none() {
            let segment = match self.choose_segment(cleaning, newest, effort, pinned_too) {
                Choice::Clean(segment) => segment,
                Choice::Measure(segment) => {
                    let measuring = self.begin_measuring(segment, &cleaning.guesses);
                    return self.measure_on(cleaning, measuring);
                }
                Choice::Pinned => return Ok(Cleaned::NeedsSnapshot),
                Choice::Nothing => {
                    cleaning.put_off.clear();
                    cleaning.guesses.round_ends();
                    cleaning.advanced_bytes = 0;
                    return Ok(Cleaned::Nothing);
                }
            };
            let replacements = self.replacements.load(Ordering::SeqCst);
            let (at, replaced) = (SEGMENT_HEAD_BYTES, HashSet::new());
            cleaning.under_way = Some(UnderWay { segment, at, replaced, replacements, passes: 1 });
        }
        // Where this fails another segment may be cleaned all the same.
        let Some(mut under_way) = cleaning.under_way.take() else { return Ok(Cleaned::Nothing) };
        let moved_before = self.maintenance.counters.move_record_bytes.load(Ordering::Relaxed);
        let begun_at = under_way.at;
        let slice =
            if under_way.segment.live_bytes() == 0 { Slice::Last } else { self.clean_slice(&mut under_way)? };
        match slice {
            Slice::Last => {}
            Slice::Unreadable => return Ok(Cleaned::Gained(0)),
            Slice::MoreToCome => {
                let moved =
                    self.maintenance.counters.move_record_bytes.load(Ordering::Relaxed) - moved_before;
                let gained = (under_way.at - begun_at).saturating_sub(moved);
                cleaning.under_way = Some(under_way);
                return Ok(cleaning.gained(gained));
            }
        }
        // A fork that took another's place while its pieces were looked for, or were on their way, is found under its new
        // name by the next pass.
        let replacements = self.replacements.load(Ordering::SeqCst);
        let renamed = replacements != under_way.replacements;
        if under_way.segment.live_bytes() > 0 && renamed && under_way.passes < PASSES_MAX {
            under_way = UnderWay {
                at: SEGMENT_HEAD_BYTES,
                replaced: HashSet::new(),
                replacements,
                passes: under_way.passes + 1,
                ..under_way
            };
            cleaning.under_way = Some(under_way);
            return Ok(Cleaned::Gained(0));
        }
        let (id, rest) =
            (under_way.segment.id, under_way.segment.capacity - begun_at.min(under_way.segment.capacity));
        drop(under_way.replaced);
        if !self.free(under_way.segment, renamed)? {
            cleaning.put_off.push(id);
            return Ok(Cleaned::Gained(0));
        }
        let moved = self.maintenance.counters.move_record_bytes.load(Ordering::Relaxed) - moved_before;
        Ok(cleaning.gained(rest.saturating_sub(moved)))
    }

    /// Measures a slice of a segment. Waiters for the cleaner's progress get a part of the gain in advance, so that
    /// nobody waits for the whole measurement.
    fn measure_on(&self, cleaning: &mut Cleaning, measuring: Measuring) -> Result<Cleaned, StoreError> {
        let (rest, gained_bytes) = self.measure_slice(measuring, &mut cleaning.guesses)?;
        cleaning.measuring = rest;
        let most_bytes = u64::from(self.options.segment_bytes) / 2;
        let bytes = (gained_bytes / 2).min(most_bytes.saturating_sub(cleaning.advanced_bytes));
        cleaning.advanced_bytes += bytes;
        Ok(Cleaned::Gained(bytes))
    }

    /// Cleans every segment that has garbage worth the work. Other waiters find room between its slices.
    pub(crate) fn compact(self: &Arc<Self>) -> Result<(), StoreError> {
        if self.memory.is_some() {
            // There is no garbage.
            return Ok(());
        }
        // Each turn moves something, or the snapshots on; segments made meanwhile are left for another time.
        let newest = self.space.pool.lock().next_segment;
        loop {
            let mut cleaning = self.maintenance.cleaning.lock();
            let cleaned = self.clean_once(&mut cleaning, newest, Effort::Compact, true)?;
            unlock_fair(cleaning);
            let needs_snapshot = match cleaned {
                Cleaned::Gained(_) => false,
                Cleaned::NeedsSnapshot => true,
                Cleaned::Nothing => self.log.since_snapshot_bytes() > 0,
            };
            let mut taken = Ok(());
            if needs_snapshot {
                let mut work = self.maintenance.work.lock();
                taken = self.snapshot(&mut work);
                unlock_fair(work);
            }
            // What the threads left alone for this slice they find to do now.
            self.maintenance.nudge();
            taken?;
            if matches!(cleaned, Cleaned::Nothing) {
                return Ok(());
            }
        }
    }

    /// Frees a segment that was cleaned. Returns false if the rest changes its names as fast as it is searched
    /// (`renamed`), and has to be cleaned another time.
    fn free(self: &Arc<Self>, segment: Arc<Segment>, renamed: bool) -> Result<bool, StoreError> {
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
        assert!(segment.is_free(), "{} has live data again", segment.name);
        self.maintenance.counters.cleaned.fetch_add(1, Ordering::Relaxed);
        let mut pool = self.space.pool.lock();
        drop(self.table.remove(segment.id));
        self.discard(&mut pool, segment);
        Ok(true)
    }

    /// Returns the size in bytes at which records of moves are closed: they must not leave much of a segment unused.
    pub(crate) fn move_bytes_max(&self) -> u64 {
        MOVE_BYTES_MAX.min(u64::from(self.options.segment_bytes) / 8)
    }

    /// Moves the live bytes in the next records of a segment.
    fn clean_slice(self: &Arc<Self>, under_way: &mut UnderWay) -> Result<Slice, StoreError> {
        let segment = Arc::clone(&under_way.segment);
        let mut batch = Batch::default();
        let mut heads = Heads::from(&segment, under_way.at);
        let end = under_way.at + SLICE_BYTES;
        while let Some(item) = heads.next() {
            let (at, record) = match item {
                Ok(record) => record,
                // The failure is this segment's alone: others can be cleaned all the same.
                Err(error) => {
                    self.leave_unreadable(&segment, &error);
                    self.relocate(&segment, batch.pieces)?;
                    return Ok(Slice::Unreadable);
                }
            };
            let mut take = |pieces| self.take_to_move(&segment, &mut batch, pieces);
            self.visit_live(&segment, at, &record, &mut under_way.replaced, &mut take)?;
            // Behind damage there is no place to go on from but the beginning.
            if let Some(next) = heads.position()
                && next >= end
            {
                under_way.at = next;
                self.relocate(&segment, batch.pieces)?;
                return Ok(Slice::MoreToCome);
            }
        }
        for object in std::mem::take(&mut under_way.replaced) {
            let mut take = |pieces| self.take_to_move(&segment, &mut batch, pieces);
            self.visit_replaced(segment.id, &object, &mut take)?;
        }
        self.relocate(&segment, batch.pieces)?;
        Ok(Slice::Last)
    }

    /// Gathers live pieces, and moves them where that makes a whole record. Pieces that fill much of a segment are cut,
    /// so that a record of moves fits into any.
    fn take_to_move(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        batch: &mut Batch,
        pieces: Vec<Live>,
    ) -> Result<(), StoreError> {
        for live in self.cut_live(pieces) {
            // A record that does not fit behind the last one leaves what is there unused. Where little is gained, that
            // could be more than the gain; so one that fits is closed before it would not.
            let tail_bytes = self.log.free_space().tail_bytes;
            let fits = |bytes: u64| bytes + 2 * HEAD_BYTES_MIN as u64 <= tail_bytes;
            if fits(batch.bytes) && !fits(batch.bytes + live.move_bytes()) && !batch.pieces.is_empty() {
                self.relocate(segment, std::mem::take(batch).pieces)?;
            }
            batch.bytes += live.move_bytes();
            batch.pieces.push(live);
            if batch.bytes >= self.move_bytes_max() {
                self.relocate(segment, std::mem::take(batch).pieces)?;
            }
        }
        Ok(())
    }

    /// Cuts pieces that are longer than chunks are now, which were written when segments were larger.
    fn cut_live(&self, pieces: Vec<Live>) -> Vec<Live> {
        let piece_bytes_max = self.chunk_bytes() as u32;
        let more: u32 = pieces.iter().map(|live| live.len.div_ceil(piece_bytes_max) - 1).sum();
        let growth_bytes = u64::from(more) * EXTENT_BYTES_MAX as u64;
        if more == 0
            || !self.index_has_space(&SpaceRequest { record_bytes: 0, growth_bytes, purpose: Purpose::Clean })
        {
            return pieces;
        }
        pieces.into_iter().flat_map(|live| live.cut(piece_bytes_max)).collect()
    }

    /// Visits the pieces of a segment's record that the index refers to, each once as long as no fork is replaced meanwhile.
    ///
    /// The heads of the segment's records have the names of objects and forks from the time of writing. A fork
    /// that replaced another may hold bytes written under any name, so those are searched as a whole instead: their
    /// objects are added to `replaced`.
    pub(crate) fn visit_live(
        &self,
        segment: &Segment,
        at: u64,
        record: &Record,
        replaced: &mut HashSet<ObjectId>,
        visit: &mut impl FnMut(Vec<Live>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut chunk_offset = at as u32 + record.head_bytes;
        match &record.body {
            Body::Transaction { object, effects, .. } => {
                for effect in effects {
                    if let Effect::Chunk { fork, offset, len, .. } = effect {
                        let chunk = (object, fork, *offset, *len);
                        visit(self.collect_live(segment.id, chunk_offset, chunk, replaced))?;
                        chunk_offset += len;
                    }
                }
            }
            Body::Moves(moves) => {
                for moved in moves {
                    let chunk = (&moved.object, &moved.fork, moved.start, moved.len);
                    visit(self.collect_live(segment.id, chunk_offset, chunk, replaced))?;
                    chunk_offset += moved.len;
                }
            }
            Body::Tokens { .. } | Body::Floor(_) | Body::Mark => {}
        }
        Ok(())
    }

    /// Shows what those forks of an object that replaced others hold of a segment. Their maps are searched a step at
    /// a time, since each step holds up the object.
    pub(crate) fn visit_replaced(
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

    /// Collects the parts of a chunk that the index still refers to, under the name that its fork had when it was written.
    /// Objects whose forks were replaced since are added to `replaced`: the bytes of such a fork are not collected here.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u32, live_bytes: u64, age: u64) -> Candidate {
        Candidate { id, capacity: 1000, live_bytes, move_bytes: live_bytes, is_measured: true, age }
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
    fn a_guess_decides_only_which_is_the_first() {
        let guessed = Candidate { move_bytes: 5000, is_measured: false, ..candidate(1, 500, 10) };
        assert_eq!(choose([guessed], Effort::Bound.gain_min()), Some(guessed));
        let better = Candidate { move_bytes: 600, ..guessed };
        assert_eq!(choose([guessed, Candidate { id: 2, ..better }], 0.1).map(|found| found.id), Some(2));
        assert_eq!(choose([Candidate { is_measured: true, ..guessed }], 0.1), None);
    }

    #[test]
    fn when_there_is_no_room_less_is_worth_the_work() {
        let nearly_full = candidate(1, 960, 10);
        assert_eq!(choose([nearly_full], Effort::Bound.gain_min()), None);
        assert!(choose([nearly_full], Effort::FreeSpace.gain_min()).is_some());
        assert_eq!(choose([candidate(1, 980, 10)], Effort::FreeSpace.gain_min()), None);
        assert!(choose([candidate(1, 980, 10)], Effort::Utmost.gain_min()).is_some());
    }
}
