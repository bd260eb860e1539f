//! The choice of the segment to clean, and the measurements that it rests on.
//!
//! Invariants:
//! - a segment is cleaned only after it was measured, and only if that takes less of the log than it frees and finds
//!   room;
//! - estimates order the segments, and never exclude one: before the cleaner gives up, every segment that may
//!   be worth it has been measured;
//! - a measurement is kept with its segment, and repeated only when much of what it counted is gone.
//!
//! A measurement is a walk through the heads of a segment's records. It is made in slices, like the cleaning itself.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_object::{ObjectId, StoreError};

use crate::cleaner::{Candidate, Cleaning, Effort, Live, PIECE_HEAD_BYTES, SLICE_BYTES, choose};
use crate::engine::Engine;
use crate::heads::Heads;
use crate::log::FreeSpace;
use crate::record::HEAD_BYTES_MIN;
use crate::segment::{SEGMENT_HEAD_BYTES, Segment};

/// The share of a measurement's count that must be left for it to hold.
const LEFT_MIN: f64 = 15.0 / 16.0;
/// The remaining share at which a measurement is repeated in any case.
const LEFT_TO_REPEAT: f64 = 0.5;
/// The bounds on the correction of estimates by measurements.
const CORRECTION_MAX: f64 = 16.0;

/// The choice of what to clean.
pub(crate) enum Choice {
    Clean(Arc<Segment>),
    /// The best choice is a segment that has to be measured first.
    Measure(Arc<Segment>),
    /// The best choice is a segment that a snapshot has to unpin.
    Pinned,
    Nothing,
}

/// The measured cost of moving the live bytes of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The bytes of log that it takes. Where that is more than the segment has, the rest was not counted.
    pub move_bytes: u64,
    /// The bytes that were live.
    pub live_bytes: u64,
    /// The number of pieces that were counted.
    pub pieces: u64,
    /// The number of pieces that the index had released before. See [`Segment::releases`].
    pub releases: u64,
}

impl Measured {
    /// Returns the least remaining share of the counted bytes; `None` if bytes were added since, because they were on their
    /// way to the index.
    fn left(&self, segment: &Segment) -> Option<f64> {
        let live_bytes = segment.live_bytes();
        let gone = (segment.releases() - self.releases) as f64 / self.pieces.max(1) as f64;
        let left = live_bytes as f64 / self.live_bytes.max(1) as f64;
        (live_bytes <= self.live_bytes).then(|| left.min(1.0 - gone).max(0.0))
    }
}

/// A segment that is being measured.
pub(crate) struct Measuring {
    segment: Arc<Segment>,
    /// The offset of the next record to look at.
    at: u64,
    found: FoundLive,
    replaced: HashSet<ObjectId>,
    /// The bytes that were live when this began, and the number of pieces released before.
    live_bytes: u64,
    releases: u64,
    /// The bytes of log that were guessed.
    guessed_bytes: u64,
}

/// The live pieces that were found in a segment.
#[derive(Default)]
struct FoundLive {
    /// The bytes of log that moving them takes.
    move_bytes: u64,
    pieces: u64,
}

impl FoundLive {
    fn add(&mut self, pieces: &[Live]) -> Result<(), StoreError> {
        self.pieces += pieces.len() as u64;
        self.move_bytes += pieces.iter().map(Live::move_bytes).sum::<u64>();
        Ok(())
    }
}

/// The guesses of what has not been measured, and the measurements of the current round of the cleaner's work.
pub(crate) struct Guesses {
    /// The factor by which the last measurement exceeded the estimate.
    correction: f64,
    /// The segments that were measured since there was nothing left to clean. None of them is measured again and again.
    measured: HashSet<u32>,
}

impl Default for Guesses {
    fn default() -> Self {
        Self { correction: 1.0, measured: HashSet::new() }
    }
}

impl Guesses {
    /// Ends a round, because there is nothing left to clean.
    pub(crate) fn round_ends(&mut self) {
        self.measured.clear();
    }

    fn learn(&mut self, guessed_bytes: u64, measured_bytes: u64) {
        let factor = measured_bytes as f64 / guessed_bytes.max(1) as f64;
        let corrected = self.correction * factor.clamp(1.0 / CORRECTION_MAX, CORRECTION_MAX);
        self.correction =
            ((3.0 * self.correction + corrected) / 4.0).clamp(1.0 / CORRECTION_MAX, CORRECTION_MAX);
    }
}

impl Engine {
    /// Chooses the segment that is most worth cleaning.
    pub(crate) fn choose_segment(
        &self,
        cleaning: &Cleaning,
        newest: u32,
        effort: Effort,
        pinned_too: bool,
    ) -> Choice {
        let chosen = self.best(cleaning, newest, effort, pinned_too, false);
        // Before less is done than is asked for, whatever has changed at all is measured again.
        let chosen = match chosen {
            None if effort != Effort::Bound => self.best(cleaning, newest, effort, pinned_too, true),
            chosen => chosen,
        };
        let Some(chosen) = chosen else { return Choice::Nothing };
        let Some(segment) = self.table.get(chosen.id) else { return Choice::Nothing };
        if !chosen.is_measured && chosen.live_bytes > 0 {
            return Choice::Measure(segment);
        }
        // As many snapshots as are kept unpin it.
        if self.maintenance.pins(segment.id) { Choice::Pinned } else { Choice::Clean(segment) }
    }

    /// Returns the best candidate. If `again` is set, a measurement counts only if nothing has changed since.
    fn best(
        &self,
        cleaning: &Cleaning,
        newest: u32,
        effort: Effort,
        pinned_too: bool,
        again: bool,
    ) -> Option<Candidate> {
        // The segment that the log would be replayed from, were a snapshot taken now, can be freed by no snapshot.
        let (position, now) = self.log.position();
        let newest = newest.min(position.segment);
        let pinned_too = pinned_too
            && (effort != Effort::Bound || self.log.since_snapshot_bytes() >= self.snapshot_spacing_bytes());
        let room_bytes = self.room_for_moves();
        let move_cost = self.likely_move_cost() * cleaning.guesses.correction;
        let candidates = self.table.all().into_iter().filter(|segment| {
            segment.id < newest
                && segment.sealed.load(Ordering::Acquire)
                // What is damaged cannot be moved, but it can be freed when nothing refers to it any more.
                && (!segment.damaged.load(Ordering::Relaxed) || segment.live_bytes() == 0)
                && (pinned_too || !self.maintenance.pins(segment.id))
                && !cleaning.put_off.contains(&segment.id)
        });
        let candidates = candidates.map(|segment| {
            let live_bytes = segment.live_bytes();
            let likely_bytes = (live_bytes as f64 * move_cost) as u64;
            let (move_bytes, is_measured) = match segment.measured() {
                Some(measured) => self.assess(&segment, &measured, &cleaning.guesses, effort, again),
                None => (likely_bytes, false),
            };
            Candidate {
                id: segment.id,
                capacity: segment.capacity,
                live_bytes,
                move_bytes: move_bytes.max(live_bytes),
                is_measured,
                age: now.saturating_sub(segment.last_batch.load(Ordering::Relaxed)),
            }
        });
        let movable = candidates.filter(|candidate| candidate.move_bytes_min() <= room_bytes);
        choose(movable, effort.gain_min())
    }

    /// Returns the bytes of log that cleaning a segment takes according to an earlier measurement, and whether that holds.
    fn assess(
        &self,
        segment: &Segment,
        measured: &Measured,
        guesses: &Guesses,
        effort: Effort,
        again: bool,
    ) -> (u64, bool) {
        let is_recent = guesses.measured.contains(&segment.id);
        let Some(left) = measured.left(segment) else { return (measured.move_bytes, false) };
        let likely_bytes = (measured.move_bytes as f64 * left) as u64;
        let holds = if again {
            is_recent || segment.releases() == measured.releases
        } else if left >= LEFT_MIN {
            true
        } else if left <= LEFT_TO_REPEAT {
            false
        } else {
            // Where nobody lacks room, a segment that was not worth it is measured again when it may have become so.
            let limit_bytes = segment.capacity as f64 * (1.0 - effort.gain_min());
            is_recent || effort == Effort::Bound && likely_bytes as f64 > limit_bytes
        };
        if holds { (measured.move_bytes, true) } else { (likely_bytes, false) }
    }

    /// Returns an estimate of the bytes of log that moving takes for each live byte: the average of the pieces of the index,
    /// without their names.
    fn likely_move_cost(&self) -> f64 {
        let live_bytes = self.table.live_bytes().max(1) as f64;
        let described_bytes =
            self.space.index.footprint().extents.max(0) as f64 * 2.0 * PIECE_HEAD_BYTES as f64;
        (live_bytes + described_bytes) / live_bytes
    }

    /// Returns the bytes of moves that find room without new space, whatever stays unused at the ends of segments.
    fn room_for_moves(&self) -> u64 {
        let FreeSpace { tail_bytes, next_bytes } = self.log.free_space();
        let waste_bytes = u64::from(self.options.segment_bytes) / 4;
        tail_bytes.saturating_sub(waste_bytes) + next_bytes / 4 * 3
    }

    /// Begins the measurement of a segment.
    pub(crate) fn begin_measuring(&self, segment: Arc<Segment>, guesses: &Guesses) -> Measuring {
        let live_bytes = segment.live_bytes();
        let move_cost = self.likely_move_cost() * guesses.correction;
        Measuring {
            at: SEGMENT_HEAD_BYTES,
            found: FoundLive::default(),
            replaced: HashSet::new(),
            live_bytes,
            releases: segment.releases(),
            guessed_bytes: (live_bytes as f64 * move_cost) as u64,
            segment,
        }
    }

    /// Measures a slice of a segment; returns the remaining work, and the bytes that cleaning this slice would gain.
    pub(crate) fn measure_slice(
        &self,
        mut measuring: Measuring,
        guesses: &mut Guesses,
    ) -> Result<(Option<Measuring>, u64), StoreError> {
        let segment = Arc::clone(&measuring.segment);
        if segment.live_bytes() == 0 {
            return Ok((None, 0));
        }
        let Measuring { at: next_at, found, replaced, .. } = &mut measuring;
        let (begun_at, begun_bytes) = (*next_at, found.move_bytes);
        let mut heads = Heads::from(&segment, begun_at);
        // What costs more than it frees need not be known exactly.
        while found.move_bytes < segment.capacity
            && let Some(item) = heads.next()
        {
            let (at, record) = match item {
                Ok(record) => record,
                Err(error) => {
                    self.leave_unreadable(&segment, &error);
                    return Ok((None, 0));
                }
            };
            self.visit_live(&segment, at, &record, replaced, &mut |pieces| found.add(&pieces))?;
            // Behind damage there is no place to go on from.
            if let Some(next) = heads.position()
                && next >= begun_at + SLICE_BYTES
            {
                *next_at = next;
                let cost_bytes = found.move_bytes - begun_bytes;
                return Ok((Some(measuring), (next - begun_at).saturating_sub(cost_bytes)));
            }
        }
        for object in &*replaced {
            if found.move_bytes < segment.capacity {
                self.visit_replaced(segment.id, object, &mut |pieces| found.add(&pieces))?;
            }
        }
        let records = found.move_bytes / self.move_bytes_max() + 1;
        let move_bytes = found.move_bytes + records * 2 * HEAD_BYTES_MIN as u64;
        let pieces = found.pieces;
        let Measuring { live_bytes, releases, guessed_bytes, .. } = measuring;
        guesses.learn(guessed_bytes, move_bytes);
        guesses.measured.insert(segment.id);
        segment.set_measured(Measured { move_bytes, live_bytes, pieces, releases });
        Ok((None, 0))
    }

    /// Leaves a segment as it is that cannot be read, until the store is opened again.
    pub(crate) fn leave_unreadable(&self, segment: &Segment, error: &io::Error) {
        segment.damaged.store(true, Ordering::Relaxed);
        tracing::warn!("cannot read {}: {error}; it is left as it is", self.disk.describe(&segment.name));
    }
}
