//! One object in memory: the places of its bytes, and its keys and attributes themselves.
//!
//! The functions here are pure bookkeeping: the live path and recovery apply the same [`Effect`]s with the same code,
//! and the results must be the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut, Range};

use bytes::Bytes;
use nacre_object::limit::{
    ATTRIBUTES_MAX, EXTENTS_PER_READ_MAX, OFFSET_MAX, PAGE_ENTRIES_MAX, REFUSAL_BYTES_MAX,
};
use nacre_object::{
    Answer, ByteRange, ErrorKind, Extent, ExtentKind, Fork, ForkPage, Found, Guard, Key, KeyPage, KeyRange,
    RangeRead, ReadOp, Stat, StoreError, Versioned, VersionedKeyPage, appended_too_far, coalesce,
};
use smallvec::SmallVec;

use crate::extent_map::{Chunk, Entry, ExtentMap, Place};
use crate::fences::FencedSessions;
use crate::footprint::Footprint;
use crate::forks::{ForkNode, Forks};
use crate::record::Effect;

/// An object, or the remains of one that was removed.
#[derive(Debug, Default)]
pub struct Node {
    /// True if the object exists.
    pub exists: bool,
    /// The version of the last transaction that wrote it.
    pub version: u64,
    /// The version of the last removal of the whole object: every byte that has no entry is a hole of this version.
    pub tombstone_version: u64,
    /// The batch that has its newest change, for which every reply about the object must wait.
    pub durable_batch: u64,
    /// True if forks of it replaced each other, so that records in the log may refer to them by earlier names.
    pub replaced: bool,
    /// True if its name is in its shard's queue of removed objects.
    pub is_queued: bool,
    /// Its forks, including those that were removed and have holes left.
    pub forks: Forks,
    /// The parts that most objects lack; [`Node::deref`] gives them.
    pub rare: Option<Box<RareParts>>,
}

/// The parts of an object that most lack.
#[derive(Debug, Default)]
pub struct RareParts {
    /// The sessions that are fenced.
    pub fences: FencedSessions,
    /// Its keys.
    pub keys: BTreeMap<Key, Versioned>,
    /// Its attributes.
    pub attributes: BTreeMap<Key, Bytes>,
}

static NOTHING_RARE: RareParts =
    RareParts { fences: FencedSessions::none(), keys: BTreeMap::new(), attributes: BTreeMap::new() };

/// An object has its rare parts as it has the others; they take memory once they are changed.
impl Deref for Node {
    type Target = RareParts;

    fn deref(&self) -> &RareParts {
        self.rare.as_deref().unwrap_or(&NOTHING_RARE)
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut RareParts {
        self.rare.get_or_insert_default()
    }
}

/// The keeper of the bytes that an index refers to.
pub trait Persistence {
    /// Returns the place of the next chunk of the transaction's payload, to which the index refers from now on.
    fn place(&mut self, len: u32, crc: u32) -> Chunk;

    /// Notes that the index no longer refers to a piece of a chunk.
    fn release(&mut self, piece: &Entry, chunk: &Chunk);

    /// Moves the pieces of a map to other places if that is worthwhile, after some were released. Their ranges and versions stay.
    fn tidy(&mut self, _: &mut ExtentMap) {}
}

/// A range that is to be read: the answer without its bytes, and their places.
#[derive(Debug, Default)]
pub struct RangePlan {
    /// The answer, without data.
    pub read: RangeRead,
    /// The offset of the first byte.
    pub start: u64,
    /// The number of bytes of data to give.
    pub data_bytes: usize,
    /// The pieces of data in the range, in order.
    pub pieces: SmallVec<[Entry; 1]>,
}

impl Node {
    /// Returns whether the object does not exist, and nothing is left of it but its version.
    pub fn leaves_a_version_only(&self) -> bool {
        !self.exists && self.fences == FencedSessions::none()
    }

    /// Makes an object that does not exist, and may be forgotten or was, look as if it had been removed at the floor, which
    /// batch `batch` has.
    pub fn rise(&mut self, floor: u64, batch: u64) {
        if self.version < floor && self.leaves_a_version_only() {
            (self.version, self.tombstone_version) = (floor, floor);
            self.durable_batch = self.durable_batch.max(batch);
        }
    }

    /// Returns the greatest version in a range.
    pub fn region_version(&self, fork: &Fork, range: ByteRange) -> u64 {
        let Some(fork) = self.forks.get(fork) else { return self.tombstone_version };
        // A range without bytes holds none of the fork's.
        let base = if range.len > 0 { fork.base } else { 0 };
        fork.map.newest(range.offset, range.end()).max(base).max(self.tombstone_version)
    }

    /// Plans the reading of a range, with at most `data_bytes_max` bytes of data.
    pub fn plan(&self, name: &Fork, range: ByteRange, data_bytes_max: usize) -> RangePlan {
        self.plan_range(name, range, Some(data_bytes_max))
    }

    fn plan_range(&self, name: &Fork, range: ByteRange, data_bytes_max: Option<usize>) -> RangePlan {
        let empty = ForkNode::default();
        let fork = self.forks.get(name).unwrap_or(&empty);
        let end = range.end();
        let data_end = end.min(fork.size).max(range.offset);
        let wanted = data_end - range.offset;
        // Where the answer is cut, if it is: by its data here, by its extents below.
        let mut cut = match data_bytes_max {
            Some(max) if wanted > max as u64 => Some(range.offset + max as u64),
            _ => None,
        };
        let mut plan = RangePlan { start: range.offset, ..RangePlan::default() };
        // What no byte is older than. Entries of a fork that took another's place may say less.
        let least = self.tombstone_version.max(fork.base);
        let mut version = if range.len > 0 { least } else { self.tombstone_version };
        let mut at = range.offset;
        let extents = &mut plan.read.extents;
        for entry in fork.map.overlapping(range.offset, end) {
            if cut.is_some_and(|cut| entry.start().max(range.offset) >= cut) {
                break;
            }
            version = version.max(entry.version());
            let piece = entry.clip(range.offset, cut.unwrap_or(end));
            if least > 0 && piece.start() > at {
                coalesce(extents, hole(at, piece.start(), least));
                at = piece.start();
            }
            let kind = match piece.place() {
                Place::Hole => ExtentKind::Hole,
                Place::Data { .. } => ExtentKind::Data,
            };
            let range = ByteRange::new(piece.start(), piece.len());
            coalesce(extents, Extent { range, version: piece.version().max(least), kind });
            if extents.len() > EXTENTS_PER_READ_MAX {
                cut = Some(extents[EXTENTS_PER_READ_MAX].range.offset);
                extents.truncate(EXTENTS_PER_READ_MAX);
                break;
            }
            at = piece.end();
            if kind == ExtentKind::Data && data_bytes_max.is_some() {
                plan.pieces.push(piece);
            }
        }
        let covered = cut.unwrap_or(end);
        if least > 0 && covered > at {
            coalesce(extents, hole(at, covered, least));
            if extents.len() > EXTENTS_PER_READ_MAX {
                cut = Some(extents[EXTENTS_PER_READ_MAX].range.offset);
                extents.truncate(EXTENTS_PER_READ_MAX);
            }
        }
        // What the answer does not cover counts too.
        let rest = cut.map_or(0, |cut| fork.map.newest(cut, end));
        plan.read.version = version.max(rest);
        plan.read.size = fork.size;
        plan.read.next = cut;
        if data_bytes_max.is_some() {
            plan.data_bytes = (cut.unwrap_or(end).min(data_end).max(range.offset) - range.offset) as usize;
        }
        plan
    }

    /// Returns the first guard that does not hold, with the state that it found.
    pub fn refusal(&self, guards: &[Guard]) -> Option<(usize, Found, Option<RangePlan>)> {
        guards.iter().enumerate().find_map(|(index, guard)| {
            let (found, plan) = self.check(guard)?;
            Some((index, found, plan))
        })
    }

    fn check(&self, guard: &Guard) -> Option<(Found, Option<RangePlan>)> {
        let region = |fork, range| {
            let plan = self.plan(fork, range, REFUSAL_BYTES_MAX);
            Some((Found::Region(RangeRead::default()), Some(plan)))
        };
        match guard {
            Guard::Exists if self.exists => None,
            Guard::Absent if !self.exists => None,
            Guard::Version { version } if self.version == *version => None,
            Guard::Exists | Guard::Absent | Guard::Version { .. } => {
                Some((Found::Object { exists: self.exists }, None))
            }
            Guard::Region { fork, range, version } => {
                if self.region_version(fork, *range) <= *version {
                    None
                } else {
                    region(fork, *range)
                }
            }
            Guard::Proposal { fork, range, version } => {
                if self.region_version(fork, *range) < *version {
                    None
                } else {
                    region(fork, *range)
                }
            }
            Guard::Key { key, check } => {
                let value = self.keys.get(key).map(|found| &found.value);
                let holds = check.holds(value.map(Bytes::as_ref));
                (!holds).then(|| (Found::Value(value.cloned()), None))
            }
            Guard::Attribute { name, check } => {
                let value = self.attributes.get(name);
                let holds = check.holds(value.map(Bytes::as_ref));
                (!holds).then(|| (Found::Value(value.cloned()), None))
            }
            Guard::KeyVersion { key, version } => {
                let found = self.keys.get(key).map_or(0, |found| found.version);
                (found != *version).then_some((Found::KeyVersion(found), None))
            }
            Guard::Size { fork, size } => {
                let found = self.forks.get(fork).filter(|fork| fork.exists).map_or(0, |fork| fork.size);
                (found != *size).then_some((Found::Size(found), None))
            }
            Guard::Fence { token } => {
                self.fences.is_fenced(*token).then(|| (Found::Fence(self.fences.least()), None))
            }
        }
    }

    /// Answers a read, except for the bytes of ranges, within what is left of the reply's budget.
    pub fn answer(&self, read: &ReadOp, budget: &mut usize) -> (Answer, Option<RangePlan>) {
        match read {
            ReadOp::Range { fork, range, .. } => {
                let plan = self.plan(fork, *range, *budget);
                *budget -= plan.data_bytes;
                (Answer::Range(RangeRead::default()), Some(plan))
            }
            ReadOp::Extents { fork, range } => {
                (Answer::Range(RangeRead::default()), Some(self.plan_range(fork, *range, None)))
            }
            ReadOp::Stat => (Answer::Stat(self.stat()), None),
            ReadOp::Forks { after, limit } => (Answer::Forks(self.forks_page(after.as_ref(), *limit)), None),
            ReadOp::Key { key } => {
                let value = self.keys.get(key).map(|found| found.value.clone());
                *budget = budget.saturating_sub(value.as_ref().map_or(0, Bytes::len));
                (Answer::Value(value), None)
            }
            ReadOp::Keys { range, limit, values } => {
                let limit = (*limit as usize).min(PAGE_ENTRIES_MAX);
                let entry = |key: &Key, found: &Versioned| (key.clone(), given(&found.value, *values));
                let (entries, more) =
                    key_page(&self.keys, range, limit, budget, entry, |entry| entry.1.len());
                (Answer::Keys(KeyPage { entries, more }), None)
            }
            ReadOp::Attribute { name } => {
                let value = self.attributes.get(name).cloned();
                *budget = budget.saturating_sub(value.as_ref().map_or(0, Bytes::len));
                (Answer::Value(value), None)
            }
            ReadOp::Attributes => {
                let (all, entry) =
                    (KeyRange::all(), |name: &Key, value: &Bytes| (name.clone(), value.clone()));
                let page =
                    key_page(&self.attributes, &all, ATTRIBUTES_MAX, budget, entry, |entry| entry.1.len());
                let (entries, more) = page;
                (Answer::Keys(KeyPage { entries, more }), None)
            }
            ReadOp::VersionedKey { key, .. } => {
                let found = self.keys.get(key).cloned();
                *budget = budget.saturating_sub(found.as_ref().map_or(0, |found| found.value.len()));
                (Answer::VersionedValue(found), None)
            }
            ReadOp::VersionedKeys { range, limit, values } => {
                let limit = (*limit as usize).min(PAGE_ENTRIES_MAX);
                let entry = |key: &Key, found: &Versioned| {
                    let value = given(&found.value, *values);
                    (key.clone(), Versioned { value, version: found.version })
                };
                let value_bytes = |entry: &(Key, Versioned)| entry.1.value.len();
                let (entries, more) = key_page(&self.keys, range, limit, budget, entry, value_bytes);
                (Answer::VersionedKeys(VersionedKeyPage { entries, more }), None)
            }
            ReadOp::Fences => (Answer::Fences(self.fences.read()), None),
        }
    }

    fn stat(&self) -> Stat {
        let forks = self.forks.values().filter(|fork| fork.exists);
        Stat {
            exists: self.exists,
            version: self.version,
            fence: self.fences.least(),
            forks: forks.clone().count() as u64,
            bytes: forks.fold(0, |sum, fork| sum.saturating_add(fork.size)),
            keys: self.keys.len() as u64,
            attributes: self.attributes.len() as u64,
        }
    }

    fn forks_page(&self, after: Option<&Fork>, limit: u32) -> ForkPage {
        use std::ops::Bound::{Excluded, Unbounded};
        let limit = (limit as usize).min(PAGE_ENTRIES_MAX);
        let from = after.map_or(Unbounded, Excluded);
        let mut forks =
            self.forks.range::<Fork, _>((from, Unbounded)).filter(|(_, fork)| fork.exists).peekable();
        let mut page = ForkPage::default();
        while page.entries.len() < limit
            && let Some((name, fork)) = forks.next()
        {
            page.entries.push((name.clone(), fork.size));
        }
        page.more = forks.peek().is_some();
        page
    }

    /// Returns the offset of the `bytes` bytes that the transaction of `version` wrote into a fork, without gaps; `None` if some
    /// of them are not there any more.
    pub fn offset_of(&self, fork: &Fork, version: u64, bytes: u64) -> Option<u64> {
        let fork = self.forks.get(fork).filter(|fork| fork.base <= version)?;
        let mut written = fork.map.iter().filter(|entry| entry.version() == version);
        let first = written.next()?;
        let rest: u64 = written.map(Entry::len).sum();
        (first.len() + rest == bytes).then(|| first.start())
    }

    /// Gives the chunks of appends their offsets: from the size that the fork has after the effects before them. `appends`
    /// are ranges of the effects, in ascending order.
    ///
    /// # Errors
    ///
    /// `Invalid` if one would end past the last offset.
    pub fn place_appends(&self, effects: &mut [Effect], appends: &[Range<usize>]) -> Result<(), StoreError> {
        // The sizes of forks that effects have changed; `None` if there is no such fork any more. Once the object was removed,
        // there are no others.
        let mut sizes: BTreeMap<Fork, Option<u64>> = BTreeMap::new();
        let mut removed = false;
        let mut appends = appends.iter().peekable();
        for index in 0..effects.len() {
            let now = |sizes: &BTreeMap<Fork, Option<u64>>, fork: &Fork| match sizes.get(fork) {
                Some(size) => *size,
                None if removed => None,
                None => self.forks.get(fork).filter(|fork| fork.exists).map(|fork| fork.size),
            };
            if let Some(append) = appends.next_if(|append| append.start == index)
                && let Effect::Chunk { fork, .. } = &effects[index]
            {
                let mut offset = now(&sizes, fork).unwrap_or(0);
                let len: usize = effects[append.clone()].iter().map(Effect::payload_bytes).sum();
                if OFFSET_MAX - offset < len as u64 {
                    return Err(appended_too_far(offset, len));
                }
                for effect in &mut effects[append.clone()] {
                    let len = effect.payload_bytes() as u64;
                    if let Effect::Chunk { offset: place, .. } = effect {
                        (*place, offset) = (offset, offset + len);
                    }
                }
            }
            match &effects[index] {
                Effect::Chunk { fork, len: 0, .. } => {
                    let size = now(&sizes, fork).unwrap_or(0);
                    sizes.insert(fork.clone(), Some(size));
                }
                Effect::Chunk { fork, offset, len, .. } => {
                    let size = now(&sizes, fork).unwrap_or(0).max(offset + u64::from(*len));
                    sizes.insert(fork.clone(), Some(size));
                }
                Effect::Truncate { fork, size } => {
                    sizes.insert(fork.clone(), Some(*size));
                }
                Effect::RemoveFork { fork } => {
                    sizes.insert(fork.clone(), None);
                }
                Effect::ReplaceFork { fork, from } => {
                    if let Some(size) = now(&sizes, from) {
                        sizes.insert(fork.clone(), Some(size));
                        sizes.insert(from.clone(), None);
                    }
                }
                Effect::Remove => {
                    sizes.clear();
                    removed = true;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks the limits of a transaction's effects that depend on the object's state: [`ErrorKind::Invalid`] if the
    /// object would have too many attributes.
    pub fn admit(&self, effects: &[Effect]) -> Result<(), StoreError> {
        if !effects.iter().any(|effect| matches!(effect, Effect::SetAttribute { .. })) {
            return Ok(());
        }
        let mut names: BTreeSet<&Key> = self.attributes.keys().collect();
        for effect in effects {
            match effect {
                Effect::SetAttribute { name, .. } => {
                    names.insert(name);
                }
                Effect::RemoveAttribute { name } => {
                    names.remove(name);
                }
                Effect::Remove => names.clear(),
                _ => {}
            }
        }
        if names.len() <= ATTRIBUTES_MAX {
            return Ok(());
        }
        let text = format!("{} attributes on one object; the limit is {ATTRIBUTES_MAX}", names.len());
        Err(StoreError::new(ErrorKind::Invalid, text))
    }

    /// Applies a transaction's effects, whose payload has its places from `keep`. Returns the change in the object's
    /// footprint.
    pub fn apply(&mut self, effects: &[Effect], version: u64, keep: &mut impl Persistence) -> Footprint {
        self.version = version;
        let mut change = Footprint::default();
        for effect in effects {
            let before = self.footprint_of(effect);
            self.exists = true;
            match effect {
                Effect::Create => {}
                Effect::Chunk { fork, len: 0, .. } => self.forks.get_or_default(fork).exists = true,
                Effect::Chunk { fork, offset: start, len, crc } => {
                    let fork = self.forks.get_or_default(fork);
                    fork.exists = true;
                    let end = start + u64::from(*len);
                    let entry = Entry::data(*start, version, keep.place(*len, *crc));
                    fork.map.replace(*start, end, &[entry], |piece, chunk| keep.release(piece, chunk));
                    keep.tidy(&mut fork.map);
                    fork.size = fork.size.max(end);
                }
                Effect::Zero { fork, range } => {
                    if range.len > 0 {
                        let fork = self.forks.get_or_default(fork);
                        fork.make_hole(range.offset, range.end(), version, keep);
                    }
                }
                Effect::Truncate { fork, size } => {
                    let fork = self.forks.get_or_default(fork);
                    fork.exists = true;
                    let from = fork.size.min(*size);
                    fork.size = *size;
                    if from < OFFSET_MAX {
                        fork.make_hole(from, OFFSET_MAX, version, keep);
                    }
                }
                Effect::RemoveFork { fork } => {
                    if let Some(fork) = self.forks.get_mut(fork) {
                        fork.exists = false;
                        fork.size = 0;
                        fork.make_hole(0, OFFSET_MAX, version, keep);
                    }
                }
                Effect::ReplaceFork { fork, from } => self.replace_fork(fork, from, version, keep),
                Effect::SetKey { key, value } => {
                    let value = Bytes::copy_from_slice(value);
                    set(&mut self.keys, key, Versioned { value, version });
                }
                Effect::RemoveKey { key } => {
                    if let Some(rare) = &mut self.rare {
                        rare.keys.remove(key);
                    }
                }
                Effect::SetAttribute { name, value } => {
                    set(&mut self.attributes, name, Bytes::copy_from_slice(value));
                }
                Effect::RemoveAttribute { name } => {
                    if let Some(rare) = &mut self.rare {
                        rare.attributes.remove(name);
                    }
                }
                Effect::RaiseFence { token } => self.fences.raise(*token),
                Effect::FenceSession { session } => self.fences.fence(*session),
                Effect::Remove => {
                    self.release_all(keep);
                    self.exists = false;
                    self.tombstone_version = version;
                    self.replaced = false;
                    self.forks.clear();
                    if let Some(rare) = &mut self.rare {
                        rare.keys.clear();
                        rare.attributes.clear();
                        // Fences outlive the object.
                        if rare.fences == FencedSessions::none() {
                            self.rare = None;
                        }
                    }
                }
            }
            change += self.footprint_of(effect) - before;
        }
        change
    }

    /// Returns the footprint of the parts of the object that an effect can change.
    fn footprint_of(&self, effect: &Effect) -> Footprint {
        let fork = |name: &Fork| self.forks.get(name).map(|fork| Footprint::of_fork(name, &fork.map));
        let found = match effect {
            Effect::Create => None,
            Effect::RaiseFence { .. } | Effect::FenceSession { .. } => {
                Some(Footprint::of_fences(&self.fences))
            }
            Effect::Chunk { fork: name, .. }
            | Effect::Zero { fork: name, .. }
            | Effect::Truncate { fork: name, .. }
            | Effect::RemoveFork { fork: name } => fork(name),
            Effect::ReplaceFork { fork: name, from } => {
                Some(fork(name).unwrap_or_default() + fork(from).unwrap_or_default())
            }
            Effect::SetKey { key, .. } | Effect::RemoveKey { key } => {
                self.keys.get(key).map(|found| Footprint::of_key(key, &found.value))
            }
            Effect::SetAttribute { name, .. } | Effect::RemoveAttribute { name } => {
                self.attributes.get(name).map(|value| Footprint::of_attribute(name, value))
            }
            Effect::Remove => Some(self.contents_footprint()),
        };
        found.unwrap_or_default()
    }

    /// Returns the footprint of the contents that a removal of the object takes.
    fn contents_footprint(&self) -> Footprint {
        let mut sum = Footprint::default();
        for (name, fork) in &self.forks {
            sum += Footprint::of_fork(name, &fork.map);
        }
        for (key, found) in &self.keys {
            sum += Footprint::of_key(key, &found.value);
        }
        for (name, value) in &self.attributes {
            sum += Footprint::of_attribute(name, value);
        }
        sum
    }

    /// Returns the object's footprint.
    pub fn footprint(&self, name: &[u8]) -> Footprint {
        Footprint::of_object(name) + Footprint::of_fences(&self.fences) + self.contents_footprint()
    }

    /// Moves the map of one fork to another as it is: its entries keep the versions that they were written at, by which
    /// moves in the log refer to them, and the fork's base says that all of them are newer now.
    fn replace_fork(&mut self, fork: &Fork, from: &Fork, version: u64, keep: &mut impl Persistence) {
        let Some(taken) = self.forks.get_mut(from).filter(|taken| taken.exists) else { return };
        let hole = ForkNode { base: version, ..ForkNode::default() };
        let taken = std::mem::replace(taken, hole);
        let node = self.forks.get_or_default(fork);
        let old = std::mem::replace(node, ForkNode { base: version, ..taken });
        release(&old.map, keep);
        self.replaced = true;
    }

    fn release_all(&self, keep: &mut impl Persistence) {
        self.forks.values().for_each(|fork| release(&fork.map, keep));
    }
}

impl ForkNode {
    fn make_hole(&mut self, start: u64, end: u64, version: u64, keep: &mut impl Persistence) {
        let entry = Entry::hole(ByteRange::new(start, end - start), version);
        self.map.replace(start, end, &[entry], |piece, chunk| keep.release(piece, chunk));
        keep.tidy(&mut self.map);
    }
}

/// Releases all the data of a map.
fn release(map: &ExtentMap, keep: &mut impl Persistence) {
    for entry in map.iter() {
        if let Place::Data { chunk, .. } = entry.place() {
            keep.release(entry, &chunk);
        }
    }
}

fn hole(start: u64, end: u64, version: u64) -> Extent {
    Extent { range: ByteRange::new(start, end - start), version, kind: ExtentKind::Hole }
}

/// Sets a value. The name is copied, as the caller has copied the value: both may have been slices of a large buffer.
fn set<V>(map: &mut BTreeMap<Key, V>, key: &Key, value: V) {
    match map.get_mut(key) {
        Some(old) => *old = value,
        None => {
            if let Ok(key) = Key::new(Bytes::copy_from_slice(key.as_bytes())) {
                map.insert(key, value);
            }
        }
    }
}

/// Returns a value if values are to be given, else nothing.
fn given(value: &Bytes, values: bool) -> Bytes {
    if values { value.clone() } else { Bytes::new() }
}

/// Returns a page of entries, which `entry` makes of a key and its value, and whether there are more.
fn key_page<V, E>(
    map: &BTreeMap<Key, V>,
    range: &KeyRange,
    limit: usize,
    budget: &mut usize,
    entry: impl Fn(&Key, &V) -> E,
    value_bytes: impl Fn(&E) -> usize,
) -> (Vec<E>, bool) {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let from = match &range.after {
        Some(after) if after >= &range.prefix => Excluded(after.as_ref()),
        _ => Included(range.prefix.as_ref()),
    };
    let mut entries = Vec::new();
    for (key, found) in map.range::<[u8], _>((from, Unbounded)) {
        if !range.contains(key.as_bytes()) {
            // The keys that begin with the prefix stand together, and `before` only ends them sooner.
            break;
        }
        let entry = entry(key, found);
        let bytes = key.as_bytes().len() + value_bytes(&entry);
        if entries.len() == limit || bytes > *budget {
            return (entries, true);
        }
        *budget -= bytes;
        entries.push(entry);
    }
    (entries, false)
}
