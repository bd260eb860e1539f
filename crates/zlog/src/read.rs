//! Reading: one position, or many at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use nacre_object::{ByteRange, ObjectId, RangeRead};
use parking_lot::Mutex;

use crate::entry::{Entry, Index, Locator, Slot, signature};
use crate::error::LogError;
use crate::layout::{self, View};
use crate::limit::{BATCH_ENTRIES_MAX, SLOT_BYTES};
use crate::log::Inner;
use crate::stripe::{Indices, Stripe, StripeError, is_whole};

/// The bytes of entries that one read returns at most, unless a single entry has more.
const READ_BYTES_MAX: u64 = 4 << 20;
/// The number of ranges that one request asks for at most.
const RANGES_MAX: usize = 1024;
/// The maximum number of bytes of entries that are asked for before it is known how many there are.
const GUESS_BYTES_MAX: u64 = 64 << 10;
/// The part of what was asked for in vain by which the next guess is smaller.
const GUESS_STEPS: u64 = 256;
/// The number of entries whose locations are remembered, which take about three megabytes.
const LOCATED_MAX: usize = 1 << 16;

/// Positions as they were read.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Positions with what is there, in ascending order without gaps; `None` for an entry that was not selected.
    pub slots: Vec<(u64, Option<Slot>)>,
    /// The first position of the view that nothing was written to, nor to any after it, if all its objects were asked.
    pub written_end: Option<u64>,
}

/// The number of bytes at a place that are asked for together with the index, which says how many there are.
///
/// Entries of one length get exactly what they have: a store may then share what it holds, where it would have to copy what has
/// something behind it. Of other lengths the guess covers nearly all.
#[derive(Debug)]
pub(crate) struct Guess(AtomicU64);

impl Default for Guess {
    fn default() -> Self {
        Self(AtomicU64::new(4096))
    }
}

impl Guess {
    /// Returns the number of bytes to ask for.
    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Learns how many of the bytes that were asked for, from a place on, were wanted.
    fn learn(&self, asked: u64, wanted: u64) {
        // What is longer takes a second request in any case.
        let wanted = if wanted > GUESS_BYTES_MAX { 0 } else { wanted };
        let next = match asked.checked_sub(wanted) {
            Some(vain) => asked - vain.div_ceil(GUESS_STEPS),
            None => wanted,
        };
        if next != asked {
            self.0.store(next, Ordering::Relaxed);
        }
    }
}

/// The locations of entries that were read one by one: another read asks for the entry alone, and not for its index.
///
/// A location is good for ever, as entries are never moved: when one is trimmed, its bytes are removed in the same transaction.
#[derive(Debug, Default)]
pub(crate) struct Located(Mutex<HashMap<u64, Locator>>);

impl Located {
    fn get(&self, position: u64) -> Option<Locator> {
        self.0.lock().get(&position).copied()
    }

    fn learn(&self, position: u64, locator: Locator) {
        let mut located = self.0.lock();
        if located.len() >= LOCATED_MAX {
            located.clear();
        }
        located.insert(position, locator);
    }

    fn forget(&self, position: u64) {
        self.0.lock().remove(&position);
    }
}

impl Inner {
    pub async fn read(&self, position: u64) -> Result<Slot, LogError> {
        let guess = self.read_guess.bytes();
        let mut patience = self.patience();
        loop {
            let known = self.known();
            let Some((view, _)) = known.views.find(position) else { return Ok(Slot::Trimmed) };
            if position >= view.positions_end() {
                return Ok(Slot::Unwritten);
            }
            let (index, place) = view.locate(position);
            let object = self.object(view, index)?;
            let stripe = self.stripe(&object, view);
            let slot = match self.located.get(position) {
                Some(locator) => {
                    let found = read_located(stripe, place, locator).await;
                    if matches!(found, Ok(None)) {
                        self.located.forget(position);
                    }
                    found
                }
                None => Ok(None),
            };
            let slot = match slot {
                Ok(Some(entry)) => Ok(Slot::Entry(entry)),
                // Something of it is gone, and the index says why.
                Ok(None) => self.read_place(stripe, position, place, guess).await,
                Err(error) => Err(error),
            };
            match slot {
                Ok(slot) => return Ok(slot),
                Err(error) => self.again(&known, error, &mut patience).await?,
            }
        }
    }

    async fn read_place(
        &self,
        stripe: Stripe<'_>,
        position: u64,
        place: u64,
        guess: u64,
    ) -> Result<Slot, StripeError> {
        let Indices { entries, data, .. } = stripe.read(place, 1, guess).await?;
        let locator = match entries.first() {
            Some(Index::Entry(locator)) => locator,
            Some(Index::Filled) => return Ok(Slot::Filled),
            Some(Index::Trimmed) => return Ok(Slot::Trimmed),
            Some(Index::Nothing) | None => return Ok(Slot::Unwritten),
        };
        let range = ByteRange::new(locator.begins(place), u64::from(locator.length));
        // The guess may have been right: an entry that is the first of its packet is where its place says.
        self.read_guess.learn(guess, wanted_at(place, range));
        let mut record = data.and_then(|data| covered(&data, place, range));
        if record.is_none() {
            record = stripe.read_data(&[range]).await?.pop().flatten();
        }
        match record {
            Some(record) => {
                let entry = Entry::get(&record).ok_or_else(|| stripe.damaged(place))?;
                self.located.learn(position, *locator);
                Ok(Slot::Entry(entry))
            }
            // Entries are never changed but by trimming.
            None => Ok(Slot::Trimmed),
        }
    }

    /// Reads positions from `from` on, before `to`: at least one, which is not to be an empty range.
    ///
    /// With a tag, entries whose signature says that they do not have it are left out, and are not read. With `ends`, the objects that
    /// have none of the positions are asked where they end, at the same time.
    pub async fn scan(&self, from: u64, to: u64, tag: Option<&Bytes>, ends: bool) -> Result<Scan, LogError> {
        let mut patience = self.patience();
        loop {
            let known = self.known();
            let Some((view, end)) = known.views.find(from) else {
                // All before the first view was trimmed.
                let end = known.views.start().min(to).min(from + BATCH_ENTRIES_MAX as u64);
                let slots = (from..end).map(|position| (position, Some(Slot::Trimmed))).collect();
                return Ok(Scan { slots, ..Scan::default() });
            };
            let to = to.min(end).min(from.saturating_add(BATCH_ENTRIES_MAX as u64));
            // Nothing is ever written where its objects have no room: before that, another view begins.
            if from >= view.positions_end() {
                let slots = (from..to).map(|position| (position, Some(Slot::Unwritten))).collect();
                return Ok(Scan { slots, ..Scan::default() });
            }
            let to = to.min(view.positions_end());
            match self.scan_view(view, from, to, tag, ends && end == u64::MAX).await {
                // Nothing is written to a view that another one follows.
                Ok(scan) if end < u64::MAX => return Ok(Scan { written_end: Some(end), ..scan }),
                Ok(scan) => return Ok(scan),
                Err(error) => self.again(&known, error, &mut patience).await?,
            }
        }
    }

    async fn scan_view(
        &self,
        view: &View,
        from: u64,
        to: u64,
        tag: Option<&Bytes>,
        ends: bool,
    ) -> Result<Scan, StripeError> {
        let parts: Vec<_> = view.parts(from, to).collect();
        let objects: Vec<ObjectId> =
            parts.iter().map(|part| layout::object(self.id, view, part.object)).collect::<Result<_, _>>()?;
        // Whether an entry has a tag is known from the index, and its content is not to be read before.
        let guess = if tag.is_none() { self.scan_guess.bytes() } else { 0 };
        let reads = parts.iter().zip(&objects).enumerate().map(|(number, (part, object))| {
            // The first entry is often all that there is to read: that of a follower at the end of the log.
            let data_bytes = if number == 0 { guess } else { 0 };
            self.stripe(object, view).read(part.place, part.count, data_bytes)
        });
        let mut others = Vec::new();
        if ends {
            let mut is_other = vec![true; view.width as usize];
            parts.iter().for_each(|part| is_other[part.object as usize] = false);
            others.extend((0..view.width).filter(|index| is_other[*index as usize]));
        }
        let asks_all = parts.len() + others.len() == view.width as usize;
        let others = others.into_iter().map(|index| self.end_of(view, index));
        let (indices, others) = try_join(try_join_all(reads), try_join_all(others)).await?;
        let read = parts.iter().zip(&indices);
        let read = read.map(|(part, indices)| view.position_after(part.object, indices.end));
        let written_end = if asks_all { read.chain(others).max() } else { None };
        // The index of each position, with the part that it is of and its place there; as far as all answers go.
        let mut found = vec![None; (to - from) as usize];
        for (number, (part, indices)) in parts.iter().zip(&indices).enumerate() {
            for (place, index) in (part.place..).zip(&indices.entries) {
                let position =
                    view.position(part.object, place).filter(|position| (from..to).contains(position));
                if let Some(position) = position {
                    found[(position - from) as usize] = Some((number, place, *index));
                }
            }
        }
        let wanted = tag.map(|tag| signature(std::slice::from_ref(tag)));
        let is_wanted = |found: u32| wanted.is_none_or(|wanted| found & wanted == wanted);
        let mut ranges: Vec<Vec<ByteRange>> = vec![Vec::new(); parts.len()];
        let mut slots = Vec::new();
        // The entries that are read: the index in `slots`, and where in which answer the record is.
        let mut records: Vec<(usize, usize, usize, ByteRange)> = Vec::new();
        let mut bytes = 0;
        for (position, found) in (from..to).zip(found) {
            let Some((number, place, index)) = found else { break };
            let slot = match index {
                Index::Nothing => Some(Slot::Unwritten),
                Index::Filled => Some(Slot::Filled),
                Index::Trimmed => Some(Slot::Trimmed),
                Index::Entry(locator) if is_wanted(locator.signature) => {
                    let range = ByteRange::new(locator.begins(place), u64::from(locator.length));
                    bytes += range.len;
                    let full = ranges[number].len() >= RANGES_MAX || bytes > READ_BYTES_MAX;
                    if full && !records.is_empty() {
                        break;
                    }
                    // Records that follow each other are read in one piece.
                    match ranges[number].last_mut() {
                        Some(last) if last.end() == range.offset => last.len += range.len,
                        _ => ranges[number].push(range),
                    }
                    records.push((slots.len(), number, ranges[number].len() - 1, range));
                    None
                }
                Index::Entry(_) => None,
            };
            slots.push((position, slot));
        }
        let mut guessed = None;
        if let (Some(part), Some(range)) = (parts.first(), ranges.first().and_then(|ranges| ranges.first())) {
            guessed = indices[0].data.as_ref().and_then(|data| covered(data, part.place, *range));
            if tag.is_none() {
                self.scan_guess.learn(guess, wanted_at(part.place, *range));
            }
        }
        let known = usize::from(guessed.is_some());
        let reads = ranges.iter().zip(&objects).enumerate().map(|(number, (ranges, object))| async move {
            let ranges = if number == 0 { &ranges[known..] } else { &ranges[..] };
            match ranges.is_empty() {
                true => Ok(Vec::new()),
                false => self.stripe(object, view).read_data(ranges).await,
            }
        });
        let mut data = try_join_all(reads).await?;
        if let Some(piece) = guessed {
            data[0].insert(0, Some(piece));
        }
        for (slot, number, at, range) in records {
            let slot = &mut slots[slot];
            let piece = data[number].get(at);
            let record = match piece {
                Some(Some(piece)) => {
                    let begin = (range.offset - ranges[number][at].offset) as usize;
                    Some(piece.slice(begin..begin + range.len as usize))
                }
                // Something of the piece was trimmed, or the answer was cut: the record is read by itself.
                Some(None) | None => {
                    let object = &objects[number];
                    self.stripe(object, view).read_data(&[range]).await?.pop().flatten()
                }
            };
            slot.1 = match record.map(|record| Entry::get(&record)) {
                None => Some(Slot::Trimmed),
                Some(Some(entry)) if tag.is_some_and(|tag| !entry.tags.contains(tag)) => None,
                Some(Some(entry)) => Some(Slot::Entry(entry)),
                Some(None) => {
                    let (object, place) = (&objects[number], view.locate(slot.0).1);
                    return Err(self.stripe(object, view).damaged(place));
                }
            };
        }
        Ok(Scan { slots, written_end })
    }

    /// Returns the position after the last one of an object of a view that anything was written to.
    async fn end_of(&self, view: &View, index: u32) -> Result<u64, StripeError> {
        let object = layout::object(self.id, view, index)?;
        let end = self.stripe(&object, view).end().await?;
        Ok(view.position_after(index, end))
    }

    /// Returns the first position of the view of a position that nothing was written to, nor to any after it.
    pub async fn written_end(&self, position: u64) -> Result<u64, LogError> {
        let mut patience = self.patience();
        loop {
            let known = self.known();
            let Some((view, end)) = known.views.find(position) else { return Ok(known.views.start()) };
            if end < u64::MAX {
                return Ok(end);
            }
            let ends = (0..view.width).map(|index| self.end_of(view, index));
            match try_join_all(ends).await {
                Ok(ends) => return Ok(ends.into_iter().max().unwrap_or(view.start)),
                Err(error) => self.again(&known, error, &mut patience).await?,
            }
        }
    }
}

/// Reads the entry at a place whose location is known; `None` if something of it is gone.
async fn read_located(
    stripe: Stripe<'_>,
    place: u64,
    locator: Locator,
) -> Result<Option<Entry>, StripeError> {
    let range = ByteRange::new(locator.begins(place), u64::from(locator.length));
    let record = stripe.read_data(&[range]).await?.pop().flatten();
    Ok(record.and_then(|record| Entry::get(&record)))
}

/// Returns how many bytes from a place on a range takes; 0 if it does not begin there.
fn wanted_at(place: u64, range: ByteRange) -> u64 {
    let base = place * SLOT_BYTES;
    if (base..base + SLOT_BYTES).contains(&range.offset) { range.end() - base } else { 0 }
}

/// Returns the bytes of a range, if what was read from a place on has all of them.
fn covered(data: &RangeRead, place: u64, range: ByteRange) -> Option<Bytes> {
    let from = usize::try_from(range.offset.checked_sub(place * SLOT_BYTES)?).ok()?;
    let within = from..from.checked_add(usize::try_from(range.len).ok()?)?;
    (within.end <= data.data.len() && is_whole(&data.extents, range)).then(|| data.data.slice(within))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_becomes_what_entries_of_one_length_have_and_covers_most_of_several() {
        let guess = Guess::default();
        let misses = |lengths: &[u64], reads: usize| {
            let missed = lengths.iter().cycle().take(reads).filter(|wanted| {
                let asked = guess.bytes();
                guess.learn(asked, **wanted);
                asked < **wanted
            });
            missed.count()
        };
        assert_eq!(misses(&[4105], 1000), 1);
        assert_eq!(guess.bytes(), 4105);
        misses(&[109], 4000);
        assert_eq!(guess.bytes(), 109);
        // Those that are in the packets of others, or are too long, get nothing in advance.
        misses(&[0], 4000);
        assert_eq!(guess.bytes(), 0);
        misses(&[GUESS_BYTES_MAX + 1], 10);
        assert_eq!(guess.bytes(), 0);
        let lengths: Vec<u64> = (1..=100).map(|number| number * 37 % 100 * 40).collect();
        misses(&lengths, 1000);
        let missed = misses(&lengths, 10_000);
        assert!(missed < 2500, "{missed} of 10,000");
    }
}
