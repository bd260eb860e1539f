//! Reading: one position, or many at once.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use nacre_object::{ByteRange, ErrorKind, ObjectId, RangeRead};
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
/// The number of places of an object whose locations are remembered together.
const BLOCK_PLACES: u64 = 64;
/// The number of such blocks that are remembered, which take about three megabytes.
const BLOCKS_MAX: usize = 2048;

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

/// A place of an object of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    /// The generation of the view, which no other view has, and the index of the object in it.
    generation: u64,
    object: u32,
    place: u64,
}

impl Place {
    /// Returns the first place of the block that this is in, and the number of this place there.
    fn block(self) -> (Place, usize) {
        let number = self.place % BLOCK_PLACES;
        (Place { place: self.place - number, ..self }, number as usize)
    }
}

/// The locations of entries that were read one by one, and of those beside them: another read asks for the entry alone, and not for its
/// index.
///
/// Only where a second entry of a block is read is the index of the whole block asked for: of entries that are far apart it would be of
/// no use. A location is good for ever, as entries are never moved: when one is trimmed, its bytes are removed in the same transaction.
#[derive(Debug, Default)]
pub(crate) struct Located(Mutex<HashMap<Place, Block>>);

#[derive(Debug)]
struct Block {
    /// The object of the places, whose name is put together once.
    id: ObjectId,
    /// True if the index of all places was asked for.
    is_whole: bool,
    locators: [Option<Locator>; BLOCK_PLACES as usize],
}

impl Located {
    /// Returns the location of the entry at a place with its object, or the places whose index is to be asked for.
    fn get(&self, at: Place) -> Result<(ObjectId, Locator), Range<u64>> {
        let (first, number) = at.block();
        let alone = at.place..at.place + 1;
        let blocks = self.0.lock();
        let Some(block) = blocks.get(&first) else { return Err(alone) };
        match block.locators[number] {
            Some(locator) => Ok((block.id.clone(), locator)),
            None if block.is_whole => Err(alone),
            None => Err(first.place..first.place + BLOCK_PLACES),
        }
    }

    /// Learns the index of places of one block.
    fn learn(&self, id: &ObjectId, at: Place, places: &Range<u64>, entries: &[Index]) {
        let (first, _) = at.block();
        let mut blocks = self.0.lock();
        if blocks.len() >= BLOCKS_MAX && !blocks.contains_key(&first) {
            blocks.clear();
        }
        let empty = || Block { id: id.clone(), is_whole: false, locators: [None; BLOCK_PLACES as usize] };
        let block = blocks.entry(first).or_insert_with(empty);
        block.is_whole |= places.end - places.start == BLOCK_PLACES;
        for (place, index) in places.clone().zip(entries) {
            if let Index::Entry(locator) = index {
                block.locators[(place - first.place) as usize] = Some(*locator);
            }
        }
    }

    fn forget(&self, at: Place) {
        let (first, number) = at.block();
        if let Some(block) = self.0.lock().get_mut(&first) {
            block.locators[number] = None;
        }
    }
}

impl Inner {
    pub async fn read(&self, position: u64) -> Result<Slot, LogError> {
        let guess = self.read_guess.bytes();
        let mut patience = None;
        loop {
            let known = self.known();
            let Some((view, _)) = known.views.find(position) else { return Ok(Slot::Trimmed) };
            if position >= view.positions_end() {
                return Ok(Slot::Unwritten);
            }
            let (index, place) = view.locate(position);
            let at = Place { generation: view.generation, object: index, place };
            let slot = match self.located.get(at) {
                Ok((object, locator)) => {
                    let stripe = self.stripe(&object, view);
                    match read_located(stripe, place, locator).await {
                        Ok(Some(entry)) => Ok(Slot::Entry(entry)),
                        Ok(None) => {
                            // Something of it is gone, and the index says why.
                            self.located.forget(at);
                            self.read_place(stripe, at, place..place + 1, guess).await
                        }
                        Err(error) => Err(error),
                    }
                }
                Err(places) => {
                    let object = self.object(view, index)?;
                    self.read_place(self.stripe(&object, view), at, places, guess).await
                }
            };
            match slot {
                Ok(slot) => return Ok(slot),
                Err(error) => {
                    let patience = patience.get_or_insert_with(|| self.patience());
                    self.again(&known, error, patience).await?;
                }
            }
        }
    }

    /// Reads a place, and the index of those that are asked for with it.
    async fn read_place(
        &self,
        stripe: Stripe<'_>,
        at: Place,
        places: Range<u64>,
        guess: u64,
    ) -> Result<Slot, StripeError> {
        let place = at.place;
        let alone = place..place + 1;
        let (places, read) = match stripe.read_around(&places, place, guess).await {
            // What is wrong at other places, or is too much for one answer, is of no concern here.
            Err(StripeError::Store(error)) if error.kind == ErrorKind::Corrupt && places != alone => {
                (alone.clone(), stripe.read_around(&alone, place, guess).await?)
            }
            Ok(read) if place - places.start >= read.entries.len() as u64 && places != alone => {
                (alone.clone(), stripe.read_around(&alone, place, guess).await?)
            }
            read => (places, read?),
        };
        let Indices { entries, data, .. } = read;
        self.located.learn(stripe.object, at, &places, &entries);
        let locator = match entries.get((place - places.start) as usize) {
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
            Some(record) => Ok(Slot::Entry(Entry::get(&record).ok_or_else(|| stripe.damaged(place))?)),
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
    fn a_second_entry_of_a_block_brings_the_locations_of_the_whole_block() {
        let located = Located::default();
        let at = |place| Place { generation: 1, object: 2, place };
        let locator = |place: u64| Locator { distance: 0, offset: 8, length: place as u32, signature: 0 };
        let id: ObjectId = "object".parse().unwrap();
        let learn = |place: u64, asked: Range<u64>, found: Range<u64>| {
            let entries: Vec<Index> = found.map(|place| Index::Entry(locator(place))).collect();
            located.learn(&id, at(place), &asked, &entries);
        };
        let found = |place: u64| Ok((id.clone(), locator(place)));
        assert_eq!(located.get(at(70)), Err(70..71));
        learn(70, 70..71, 70..71);
        assert_eq!(located.get(at(70)), found(70));
        assert_eq!(located.get(at(71)), Err(64..128));
        // Of another object, view or block nothing is known.
        assert_eq!(located.get(at(63)), Err(63..64));
        assert_eq!(located.get(Place { object: 3, ..at(70) }), Err(70..71));
        assert_eq!(located.get(Place { generation: 2, ..at(70) }), Err(70..71));
        // The answer was cut.
        learn(71, 64..128, 64..100);
        for place in 64..100 {
            assert_eq!(located.get(at(place)), found(place));
        }
        assert_eq!(located.get(at(100)), Err(100..101), "the block is not asked for again");
        located.forget(at(99));
        assert_eq!(located.get(at(99)), Err(99..100));
        // However many are read, the memory is bounded.
        for number in 0..3 * BLOCKS_MAX as u64 {
            let place = number * BLOCK_PLACES;
            learn(place, place..place + 1, place..place);
        }
        assert!(located.0.lock().len() <= BLOCKS_MAX);
    }

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
