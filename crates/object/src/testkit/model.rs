//! The reference model: the definition of a store's behaviour, written to be read and to be right, not to be fast.
//!
//! Invariants: the pieces of a fork do not overlap and none is empty; no piece is newer than its object's version
//! or older than its tombstone version; an object that does not exist has no forks, keys or attributes; no fenced session is below
//! the fence.
//!
//! A store may forget removed objects, at any moment and without telling: it raises its *floor* to a version that none of those
//! which it forgets ever passed, and an object of which it knows nothing shows a removal at the floor from then on. So does one
//! that it has not forgotten yet, so nobody can tell the two apart ([`Model::raise_floor`], [`Model::forget`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;

use crate::limit::*;
use crate::*;

/// All objects of one store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    objects: BTreeMap<ObjectId, ObjectState>,
    /// The version that no forgotten object ever passed; 0 if none was forgotten.
    floor: u64,
}

impl Model {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies a transaction to an object. Its answer and effect are those required of an engine.
    pub fn apply(&mut self, object: &ObjectId, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let floor = if object.is_remembered() { 0 } else { self.floor };
        if let Some(state) = self.objects.get_mut(object) {
            state.rise(floor);
            return state.apply(transaction);
        }
        let mut state = ObjectState::default();
        state.rise(floor);
        let result = state.apply(transaction);
        if state.version > floor {
            self.objects.insert(object.clone(), state);
        }
        result
    }

    /// Returns the state that an object shows, whether anything is known of it or not.
    pub fn state(&self, object: &ObjectId) -> ObjectState {
        let mut state = self.objects.get(object).cloned().unwrap_or_default();
        if !object.is_remembered() {
            state.rise(self.floor);
        }
        state
    }

    /// Returns the floor.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Raises the floor, if `floor` is above it, up to [`FLOOR_MAX`]: what may be forgotten now are the removed objects that
    /// are not above it.
    pub fn raise_floor(&mut self, floor: u64) {
        self.floor = self.floor.max(floor.min(FLOOR_MAX));
    }

    /// Forgets an object, if that may be done; returns whether it was.
    pub fn forget(&mut self, object: &ObjectId) -> bool {
        let may_go = |state: &ObjectState| state.leaves_a_version_only() && state.version <= self.floor;
        let goes = !object.is_remembered() && self.objects.get(object).is_some_and(may_go);
        goes && self.objects.remove(object).is_some()
    }

    /// Returns the objects that exist, in ascending order, after `after`: at most `limit`, and at most a page of them.
    pub fn list(&self, after: Option<&ObjectId>, limit: usize) -> Vec<ObjectId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let existing = self.objects.range::<ObjectId, _>((from, Bound::Unbounded));
        let existing = existing.filter(|(_, state)| state.exists).map(|(id, _)| id.clone());
        existing.take(limit.min(PAGE_ENTRIES_MAX)).collect()
    }

    /// Returns what is known of an object, also of one that was removed; `None` if it was never written to, or was forgotten.
    pub fn object(&self, object: &ObjectId) -> Option<&ObjectState> {
        self.objects.get(object)
    }

    /// Returns every object of which something is known, whether it exists or was removed, in ascending order.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectId, &ObjectState)> {
        self.objects.iter()
    }

    /// Puts an object into a state, as if that had been its history.
    pub fn put(&mut self, object: ObjectId, state: ObjectState) {
        self.objects.insert(object, state);
    }
}

/// The state of one object. Two objects in equal states answer every transaction alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectState {
    version: u64,
    exists: bool,
    /// The version of the last removal; no byte of the object is older.
    tombstone_version: u64,
    fence: u64,
    /// The fenced sessions that are not below the fence.
    fenced: BTreeSet<u64>,
    forks: BTreeMap<Fork, ForkState>,
    keys: BTreeMap<Key, Bytes>,
    /// The version of each key.
    key_versions: BTreeMap<Key, u64>,
    attributes: BTreeMap<Key, Bytes>,
}

/// The state of one fork. A fork that does not exist may still have holes, from when it was removed or zeroed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct ForkState {
    exists: bool,
    size: u64,
    /// The pieces, by the offset of the first byte.
    pieces: BTreeMap<u64, Piece>,
}

/// Part of an extent, or all of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Piece {
    /// One past the last byte.
    end: u64,
    version: u64,
    /// The bytes, or `None` for a hole.
    data: Option<Bytes>,
}

impl ObjectState {
    /// Returns whether the object exists.
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// Returns whether the object does not exist, and nothing is left of it but its version: no fence.
    pub fn leaves_a_version_only(&self) -> bool {
        !self.exists && self.fence == 0 && self.fenced.is_empty()
    }

    /// Makes a removal at the floor of what leaves no more than a version, if that is below.
    fn rise(&mut self, floor: u64) {
        if self.leaves_a_version_only() && self.version < floor {
            (self.version, self.tombstone_version) = (floor, floor);
        }
    }

    /// Returns the object's version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the least number of a session that passes, unless it is fenced by itself.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Returns the object's fence and its fenced sessions.
    pub fn fences(&self) -> Fences {
        Fences { fence: self.fence, sessions: self.fenced.iter().copied().collect() }
    }

    /// Returns the version of a key; 0 if there is no such key.
    pub fn key_version(&self, key: &Key) -> u64 {
        self.key_versions.get(key).copied().unwrap_or(0)
    }

    /// Returns the region version of a range.
    pub fn region_version(&self, fork: &Fork, range: ByteRange) -> u64 {
        self.extents(fork, range)
            .iter()
            .map(|extent| extent.version)
            .max()
            .unwrap_or(0)
            .max(self.tombstone_version)
    }

    /// Returns the size of a fork in bytes, or `None` if there is no such fork.
    pub fn fork_size(&self, fork: &Fork) -> Option<u64> {
        self.forks.get(fork).filter(|state| state.exists).map(|state| state.size)
    }

    /// Returns every fork that has a size or holes, also if it does not exist any more.
    pub fn known_forks(&self) -> impl Iterator<Item = &Fork> {
        self.forks.keys()
    }

    /// Returns all extents of a fork, in ascending order.
    pub fn all_extents(&self, fork: &Fork) -> Vec<Extent> {
        self.extents(fork, ByteRange::ALL)
    }

    /// Returns the object's keys and their values, in ascending order.
    pub fn keys(&self) -> &BTreeMap<Key, Bytes> {
        &self.keys
    }

    /// Returns the object's attributes and their values, in ascending order.
    pub fn attributes(&self) -> &BTreeMap<Key, Bytes> {
        &self.attributes
    }

    /// Applies a transaction.
    pub fn apply(&mut self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        transaction.validate()?;
        for (index, guard) in transaction.guards.iter().enumerate() {
            if let Some(found) = self.refuse(guard) {
                return Ok(Outcome::Refused(Refusal { guard: index, found, version: self.version }));
            }
        }
        let existed = self.exists;
        let answers = self.answer(&transaction.reads);
        self.check_attributes(&transaction.writes)?;
        self.check_appends(&transaction.writes)?;
        if !transaction.writes.is_empty() {
            self.version = transaction.guards.iter().fold(self.version + 1, |stamp, guard| match guard {
                Guard::Proposal { version, .. } => stamp.max(*version),
                _ => stamp,
            });
            for write in &transaction.writes {
                self.change(write);
            }
        }
        Ok(Outcome::Done(Done { version: self.version, existed, answers }))
    }

    /// Returns what the guard found instead of what it demands; `None` if the guard holds.
    fn refuse(&self, guard: &Guard) -> Option<Found> {
        let (holds, found) = match guard {
            Guard::Exists => (self.exists, Found::Object { exists: self.exists }),
            Guard::Absent => (!self.exists, Found::Object { exists: self.exists }),
            Guard::Version { version } => (self.version == *version, Found::Object { exists: self.exists }),
            Guard::Region { fork, range, version } => {
                if self.region_version(fork, *range) <= *version {
                    return None;
                }
                (false, Found::Region(self.range(fork, *range, Some(&mut { REFUSAL_BYTES_MAX }))))
            }
            Guard::Proposal { fork, range, version } => {
                if *version > self.region_version(fork, *range) {
                    return None;
                }
                (false, Found::Region(self.range(fork, *range, Some(&mut { REFUSAL_BYTES_MAX }))))
            }
            Guard::Key { key, check } => {
                let value = self.keys.get(key).cloned();
                (check.holds(value.as_deref()), Found::Value(value))
            }
            Guard::Attribute { name, check } => {
                let value = self.attributes.get(name).cloned();
                (check.holds(value.as_deref()), Found::Value(value))
            }
            Guard::KeyVersion { key, version } => {
                let found = self.key_version(key);
                (found == *version, Found::KeyVersion(found))
            }
            Guard::Size { fork, size } => {
                let found = self.fork_size(fork).unwrap_or(0);
                (found == *size, Found::Size(found))
            }
            Guard::Fence { token } => {
                (self.fence <= *token && !self.fenced.contains(token), Found::Fence(self.fence))
            }
        };
        (!holds).then_some(found)
    }

    /// Answers reads in order, out of one budget of bytes.
    fn answer(&self, reads: &[ReadOp]) -> Vec<Answer> {
        let mut budget = REPLY_BYTES_MAX;
        let mut answers = Vec::new();
        for read in reads {
            let first = answers.is_empty();
            answers.push(match read {
                ReadOp::Range { fork, range, .. } => {
                    Answer::Range(self.range(fork, *range, Some(&mut budget)))
                }
                ReadOp::Extents { fork, range } => Answer::Range(self.range(fork, *range, None)),
                ReadOp::Stat => Answer::Stat(self.stat()),
                ReadOp::Forks { after, limit } => Answer::Forks(self.fork_page(after.as_ref(), *limit)),
                ReadOp::Key { key } => Answer::Value(charge(self.keys.get(key), &mut budget)),
                ReadOp::Keys { range, limit, values } => {
                    let keys = self.keys.iter().filter(|(key, _)| range.contains(key.as_bytes()));
                    Answer::Keys(key_page(keys, *limit, *values, first, &mut budget))
                }
                ReadOp::Attribute { name } => Answer::Value(charge(self.attributes.get(name), &mut budget)),
                ReadOp::Attributes => {
                    Answer::Keys(key_page(self.attributes.iter(), u32::MAX, true, first, &mut budget))
                }
                ReadOp::VersionedKey { key, .. } => {
                    let value = charge(self.keys.get(key), &mut budget);
                    let versioned = |value| Versioned { value, version: self.key_version(key) };
                    Answer::VersionedValue(value.map(versioned))
                }
                ReadOp::VersionedKeys { range, limit, values } => {
                    let keys = self.keys.iter().filter(|(key, _)| range.contains(key.as_bytes()));
                    let page = key_page(keys, *limit, *values, first, &mut budget);
                    let versioned = |(key, value)| {
                        let version = self.key_version(&key);
                        (key, Versioned { value, version })
                    };
                    let entries = page.entries.into_iter().map(versioned).collect();
                    Answer::VersionedKeys(VersionedKeyPage { entries, more: page.more })
                }
                ReadOp::Fences => Answer::Fences(self.fences()),
            });
        }
        answers
    }

    fn stat(&self) -> Stat {
        let forks = || self.forks.values().filter(|fork| fork.exists);
        Stat {
            exists: self.exists,
            version: self.version,
            fence: self.fence,
            forks: forks().count() as u64,
            // Three forks of the greatest size would overflow the sum.
            bytes: forks().fold(0, |sum, fork| sum.saturating_add(fork.size)),
            keys: self.keys.len() as u64,
            attributes: self.attributes.len() as u64,
        }
    }

    fn fork_page(&self, after: Option<&Fork>, limit: u32) -> ForkPage {
        let forks =
            self.forks.iter().filter(|(name, fork)| fork.exists && after.is_none_or(|after| *name > after));
        let forks: Vec<_> = forks.map(|(name, fork)| (name.clone(), fork.size)).collect();
        let limit = (limit as usize).min(PAGE_ENTRIES_MAX);
        ForkPage { more: forks.len() > limit, entries: forks.into_iter().take(limit).collect() }
    }

    /// Returns all the extents of a range, clipped to it. Where nothing was written since the object was last removed,
    /// there is a hole of that removal; where nothing was ever written, there is none.
    pub(super) fn extents(&self, fork: &Fork, range: ByteRange) -> Vec<Extent> {
        let mut extents = Vec::new();
        let mut push = |start: u64, end: u64, version, kind| {
            if version > 0 && start < end {
                coalesce(&mut extents, Extent { range: ByteRange::from(start..end), version, kind });
            }
        };
        let mut at = range.offset;
        if let Some(fork) = self.forks.get(fork) {
            for (start, piece) in fork.overlapping(range.offset, range.end()) {
                let (start, end) = (start.max(range.offset), piece.end.min(range.end()));
                let kind = if piece.data.is_some() { ExtentKind::Data } else { ExtentKind::Hole };
                push(at, start, self.tombstone_version, ExtentKind::Hole);
                push(start, end, piece.version, kind);
                at = end;
            }
        }
        push(at, range.end(), self.tombstone_version, ExtentKind::Hole);
        extents
    }

    /// Reads a range, with its bytes as far as the budget goes if there is a budget.
    fn range(&self, fork: &Fork, range: ByteRange, budget: Option<&mut usize>) -> RangeRead {
        let all = self.extents(fork, range);
        let size = self.fork_size(fork).unwrap_or(0);
        let version = self.region_version(fork, range);
        // Where the answer ends: at the end of the range, unless it is cut.
        let mut end = all.get(EXTENTS_PER_READ_MAX).map_or(range.end(), |extent| extent.range.offset);
        let mut data = Bytes::new();
        if let Some(budget) = budget {
            let wanted = end.min(size).saturating_sub(range.offset);
            if wanted > *budget as u64 {
                end = range.offset + *budget as u64;
            }
            data = self.bytes(fork, range.offset, end.min(size));
            *budget -= data.len();
        }
        let mut extents = Vec::new();
        for extent in all {
            let clipped = ByteRange::from(extent.range.offset..extent.range.end().min(end));
            coalesce(&mut extents, Extent { range: clipped, ..extent });
        }
        RangeRead { data, extents, version, size, next: (end < range.end()).then_some(end) }
    }

    /// Returns the bytes from `start` to `end`, which lie within a reply's budget of each other.
    pub(super) fn bytes(&self, fork: &Fork, start: u64, end: u64) -> Bytes {
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        if let Some(fork) = self.forks.get(fork).filter(|_| start < end) {
            for (at, piece) in fork.overlapping(start, end) {
                let Some(data) = &piece.data else { continue };
                let (from, to) = (at.max(start), piece.end.min(end));
                bytes[(from - start) as usize..(to - start) as usize]
                    .copy_from_slice(&data[(from - at) as usize..(to - at) as usize]);
            }
        }
        bytes.into()
    }

    /// Refuses writes that would leave the object with too many attributes.
    fn check_attributes(&self, writes: &[WriteOp]) -> Result<(), StoreError> {
        let mut names: std::collections::BTreeSet<&Key> = self.attributes.keys().collect();
        for write in writes {
            match write {
                WriteOp::SetAttribute { name, .. } => {
                    names.insert(name);
                }
                WriteOp::RemoveAttribute { name } => {
                    names.remove(name);
                }
                WriteOp::Remove => names.clear(),
                _ => {}
            }
        }
        if names.len() <= ATTRIBUTES_MAX {
            return Ok(());
        }
        let text = format!("the object would have {} attributes; the limit is {ATTRIBUTES_MAX}", names.len());
        Err(StoreError::new(ErrorKind::Invalid, text))
    }

    /// Refuses appends that would end past the last offset.
    fn check_appends(&self, writes: &[WriteOp]) -> Result<(), StoreError> {
        if !writes.iter().any(|write| matches!(write, WriteOp::Append { .. })) {
            return Ok(());
        }
        let mut after = self.clone();
        for write in writes {
            if let WriteOp::Append { fork, data } = write {
                let size = after.fork_size(fork).unwrap_or(0);
                if OFFSET_MAX - size < data.len() as u64 {
                    return Err(appended_too_far(size, data.len()));
                }
            }
            after.change(write);
        }
        Ok(())
    }

    /// Makes one change, at the object's version.
    fn change(&mut self, write: &WriteOp) {
        let stamp = self.version;
        self.exists = true;
        match write {
            WriteOp::Create => {}
            WriteOp::Extents { fork, extents } => {
                let fork = self.forks.entry(fork.clone()).or_default();
                fork.exists = true;
                for (offset, data) in extents {
                    if !data.is_empty() {
                        let end = offset + data.len() as u64;
                        fork.paint(*offset, end, stamp, Some(data));
                        fork.size = fork.size.max(end);
                    }
                }
            }
            WriteOp::Append { fork, data } => {
                let offset = self.fork_size(fork).unwrap_or(0);
                self.change(&WriteOp::Extents { fork: fork.clone(), extents: vec![(offset, data.clone())] });
            }
            WriteOp::Zero { fork, range } => {
                if range.len > 0 {
                    self.forks.entry(fork.clone()).or_default().paint(range.offset, range.end(), stamp, None);
                }
            }
            WriteOp::Truncate { fork, size } => {
                let fork = self.forks.entry(fork.clone()).or_default();
                fork.paint(fork.size.min(*size), OFFSET_MAX, stamp, None);
                fork.exists = true;
                fork.size = *size;
            }
            WriteOp::RemoveFork { fork } => {
                if let Some(fork) = self.forks.get_mut(fork) {
                    fork.paint(0, OFFSET_MAX, stamp, None);
                    fork.exists = false;
                    fork.size = 0;
                }
            }
            WriteOp::ReplaceFork { fork, from } => {
                if let Some(taken) = self.forks.get_mut(from).filter(|taken| taken.exists) {
                    let hole = ForkState::default().repainted(stamp);
                    let taken = std::mem::replace(taken, hole);
                    self.forks.insert(fork.clone(), taken.repainted(stamp));
                }
            }
            WriteOp::SetKey { key, value } => {
                self.keys.insert(key.clone(), value.clone());
                self.key_versions.insert(key.clone(), stamp);
            }
            WriteOp::RemoveKey { key } => {
                self.keys.remove(key);
                self.key_versions.remove(key);
            }
            WriteOp::SetAttribute { name, value } => {
                self.attributes.insert(name.clone(), value.clone());
            }
            WriteOp::RemoveAttribute { name } => {
                self.attributes.remove(name);
            }
            WriteOp::RaiseFence { token } => self.raise_fence(*token),
            WriteOp::FenceSession { session } => {
                if *session >= self.fence {
                    self.fenced.insert(*session);
                }
                if self.fenced.len() > FENCED_SESSIONS_MAX
                    && let Some(lowest) = self.fenced.first()
                {
                    // It is below others, so that there is a number above it.
                    self.raise_fence(lowest + 1);
                }
            }
            WriteOp::Remove => {
                let fenced = std::mem::take(&mut self.fenced);
                *self = Self {
                    version: stamp,
                    tombstone_version: stamp,
                    fence: self.fence,
                    fenced,
                    ..Self::default()
                };
            }
        }
    }
}

impl ObjectState {
    fn raise_fence(&mut self, least: u64) {
        self.fence = self.fence.max(least);
        self.fenced.retain(|session| *session >= self.fence);
    }
}

impl ForkState {
    /// Returns the pieces that share a byte with a range.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Piece)> {
        let before = self.pieces.range(..start).next_back().filter(|(_, piece)| piece.end > start);
        let within = if start < end { Some(self.pieces.range(start..end)) } else { None };
        before.into_iter().chain(within.into_iter().flatten()).map(|(at, piece)| (*at, piece))
    }

    /// Returns the fork with every byte of the offset space at one version.
    fn repainted(self, version: u64) -> ForkState {
        let mut whole = ForkState { exists: self.exists, size: self.size, ..ForkState::default() };
        whole.paint(0, OFFSET_MAX, version, None);
        for (start, piece) in &self.pieces {
            if let Some(data) = &piece.data {
                whole.paint(*start, piece.end, version, Some(data));
            }
        }
        whole
    }

    /// Puts one piece over everything in its range.
    fn paint(&mut self, start: u64, end: u64, version: u64, data: Option<&Bytes>) {
        if start >= end {
            return;
        }
        let hidden: Vec<(u64, Piece)> = self.overlapping(start, end).map(|(at, p)| (at, p.clone())).collect();
        for (at, piece) in hidden {
            self.pieces.remove(&at);
            if at < start {
                self.pieces.insert(at, piece.part(at, at, start));
            }
            if piece.end > end {
                self.pieces.insert(end, piece.part(at, end, piece.end));
            }
        }
        self.pieces.insert(start, Piece { end, version, data: data.cloned() });
    }
}

impl Piece {
    /// Returns the part of the piece at `at` that reaches from `start` to `end`.
    fn part(&self, at: u64, start: u64, end: u64) -> Piece {
        let data = self.data.as_ref().map(|data| data.slice((start - at) as usize..(end - at) as usize));
        Piece { end, version: self.version, data }
    }
}

/// Returns a value and takes its length from the budget. A value goes into the reply whole; what follows it gets the
/// rest.
fn charge(value: Option<&Bytes>, budget: &mut usize) -> Option<Bytes> {
    *budget = budget.saturating_sub(value.map_or(0, Bytes::len));
    value.cloned()
}

fn key_page<'a>(
    entries: impl Iterator<Item = (&'a Key, &'a Bytes)>,
    limit: u32,
    values: bool,
    first: bool,
    budget: &mut usize,
) -> KeyPage {
    let limit = (limit as usize).min(PAGE_ENTRIES_MAX);
    let mut page = KeyPage::default();
    for (key, value) in entries {
        let value = if values { value.clone() } else { Bytes::new() };
        let bytes = key.as_bytes().len() + value.len();
        let fits = bytes <= *budget || (first && page.entries.is_empty());
        if page.entries.len() == limit || !fits {
            page.more = true;
            break;
        }
        *budget = budget.saturating_sub(bytes);
        page.entries.push((key.clone(), value));
    }
    page
}
