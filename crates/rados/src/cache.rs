//! This client's knowledge of objects: the header as last seen, and the places of extents.
//!
//! Knowledge only decides how a transaction is run, never what it answers: a native write names the header that it
//! relies on, and the OSD compares. So knowledge may be stale, evicted or absent; it must not be a mixture.
//!
//! Invariants: the extents kept for an object are some of those that it has in the state that the kept header stands
//! for; they do not overlap within a fork, and no extent of that state shares a byte with a range that is kept as vacant. The
//! keys kept are as they are in that state. No two states of an object have the same header, since each change stamps it
//! with a token of its own. The header may be ahead of the OSD by native writes that are under way or wait for those (module
//! `lane`): RADOS applies the operations of one client on one object in the order they were sent in, so that each finds the header
//! that the one before it left, or fails as that one did, whatever another client wrote meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use nacre_object::{ByteRange, Fences, Fork, Key, ObjectId, Versioned};
use parking_lot::{Mutex, MutexGuard};

use crate::lane::Lane;
use crate::record::{Author, ForkRecord, Header, Placed, Token};

const SHARDS: usize = 16;
/// The maximum number of objects kept per shard and generation; there are two generations.
const OBJECTS_MAX: usize = 1024;
/// The maximum number of extents and vacant ranges kept per object.
const EXTENTS_MAX: usize = 4096;
/// The maximum number of keys kept per object; the constants that follow are the maximum number of bytes of one, name and value,
/// and of all.
const KEYS_MAX: usize = 128;
const KEY_BYTES_MAX: usize = 4 << 10;
const KEYS_BYTES_MAX: usize = 16 << 10;

/// The maximum number of forks whose bounds are kept per object.
const BOUNDS_MAX: usize = 64;

/// The knowledge of one object.
#[derive(Debug, Default)]
pub(crate) struct ObjectCache {
    header: Option<Header>,
    extents: HashMap<Fork, BTreeMap<u64, Placed>>,
    /// Ranges of forks that are known to hold no extent: their ends by their starts. They are apart from each other.
    vacancies: HashMap<Fork, BTreeMap<u64, u64>>,
    /// The number of extents and vacant ranges.
    extent_count: usize,
    /// True if there may be more of them than are kept of objects in general.
    roomy: bool,
    /// The records of the forks that extents are known of.
    forks: HashMap<Fork, ForkRecord>,
    /// Keys with their values and versions, or of which it is known that there is none.
    keys: HashMap<Key, Option<Versioned>>,
    /// The bytes of the names and values of these keys.
    key_bytes: usize,
    /// True if a value was too long to be kept: others of the object are then likely to be, too.
    long_keys: bool,
    /// The fences, if they were read: no native write changes them.
    fences: Option<Fences>,
    /// The version that nothing in the object was newer than when its header became known. No native write changes that of forks
    /// that it does not write, though each makes the object newer.
    newest: u64,
    /// The versions that nothing in these forks is newer than, where they differ from that.
    bounds: HashMap<Fork, u64>,
    /// The state that the last call left which changed the object, if nothing is known of the object since.
    left: Option<Left>,
    /// True if the header was last found as it was known to be: no other client seems to write the object.
    pub(crate) steady: bool,
    /// Incremented when knowledge turns out to be wrong, so that only the first of a row of failures discards it.
    pub(crate) generation: u64,
    /// The native writes under way, and those that wait for them.
    pub(crate) lane: Arc<Lane>,
    /// The number of calls under way whose effect on the header is not known before they are over.
    calls: u32,
    /// The length of the byte stream when this client last asked for a compaction, in bytes.
    compacted_at: u32,
    /// The turn of transactions that read and write the object by calls, once one has asked for it.
    turn: Option<Arc<Turn>>,
}

/// The state that a call left.
#[derive(Debug)]
struct Left {
    /// The token of its change.
    token: Token,
    /// Forks of which it found nothing newer than a version.
    bounds: Vec<(Fork, u64)>,
}

/// A turn of transactions of one client on one object. Whoever holds it must go on without anybody looking at its reply.
pub(crate) type Turn = tokio::sync::Mutex<()>;

/// A call under way. It is over when this is dropped, also where nobody waits for its end any more: what an OSD may
/// still do then is another's change, as far as the knowledge is concerned.
pub(crate) struct CallUnderWay<'a> {
    known: &'a Mutex<ObjectCache>,
    changed: Option<Left>,
}

impl<'a> CallUnderWay<'a> {
    /// Begins a call on the object that `known` is of.
    pub(crate) fn begin(known: &'a Mutex<ObjectCache>) -> Self {
        known.lock().calls += 1;
        Self { known, changed: None }
    }

    /// Ends the call, with the token of its change, if it made one, and forks of which it then found nothing newer than a version.
    pub(crate) fn end(mut self, changed: Option<Token>, bounds: Vec<(Fork, u64)>) {
        self.changed = changed.map(|token| Left { token, bounds });
    }
}

impl Drop for CallUnderWay<'_> {
    fn drop(&mut self) {
        let mut known = self.known.lock();
        known.calls -= 1;
        known.restart_after(self.changed.take());
    }
}

impl ObjectCache {
    /// The maximum number of extents that knowledge for one write has room for.
    pub(crate) const ROOM: usize = 64 << 10;

    /// Creates knowledge for one write, which is not kept.
    pub(crate) fn roomy() -> Self {
        Self { roomy: true, ..Self::default() }
    }

    fn extents_max(&self) -> usize {
        if self.roomy { 2 * Self::ROOM + 1 } else { EXTENTS_MAX }
    }

    /// Returns the header, unless it is about to change in a way that cannot be foretold.
    pub(crate) fn header(&self) -> Option<&Header> {
        self.header.as_ref().filter(|_| self.calls == 0)
    }

    /// Returns the extent that holds the byte at an offset, if it is known.
    pub(crate) fn extent(&self, fork: &Fork, offset: u64) -> Option<&Placed> {
        let (_, extent) = self.extents.get(fork)?.range(..=offset).next_back()?;
        (offset < extent.end).then_some(extent)
    }

    /// Returns the record of a fork, if it is known.
    pub(crate) fn fork(&self, fork: &Fork) -> Option<&ForkRecord> {
        self.forks.get(fork)
    }

    /// Returns a key's value and version, or that there is none, if that is known.
    pub(crate) fn key(&self, key: &Key) -> Option<Option<&Versioned>> {
        self.header()?;
        self.keys.get(key).map(Option::as_ref)
    }

    /// Returns whether values of the object's keys were too long to be kept.
    pub(crate) fn has_long_keys(&self) -> bool {
        self.long_keys
    }

    /// Returns whether it is known that there is no trace of the object.
    pub(crate) fn is_missing(&self) -> bool {
        self.header().is_some_and(Header::is_absent)
    }

    /// Returns the turn of transactions that read and write the object by calls.
    pub(crate) fn turn(&mut self) -> Arc<Turn> {
        Arc::clone(self.turn.get_or_insert_default())
    }

    /// Returns whether a session is fenced; `None` if that is not known.
    pub(crate) fn is_fenced(&self, session: u64) -> Option<bool> {
        let header = self.header.as_ref()?;
        if session < header.fence || header.sessions == 0 {
            return Some(session < header.fence);
        }
        self.fences.as_ref().map(|fences| fences.is_fenced(session))
    }

    /// Takes in the fences that an object had when nothing but native writes had followed on what was known then.
    pub(crate) fn saw_fences(&mut self, fences: Fences) {
        self.fences = Some(fences);
    }

    /// Returns all that a read of a range needs except the bytes, if one extent holds the range: the header, the
    /// extent, and the fork's size in bytes.
    pub(crate) fn whole(&self, fork: &Fork, range: ByteRange) -> Option<(Header, Placed, u64)> {
        let extent = self.extent(fork, range.offset).filter(|extent| range.end() <= extent.end)?;
        Some((*self.header.as_ref()?, *extent, self.fork(fork)?.size.unwrap_or(0)))
    }

    /// Returns the end of the vacant range that a byte is in, if it is known to be in one.
    fn vacant_until(&self, fork: &Fork, offset: u64) -> Option<u64> {
        let (_, end) = self.vacancies.get(fork)?.range(..=offset).next_back()?;
        (offset < *end).then_some(*end)
    }

    /// Returns all extents that share a byte with a range, if they are known.
    pub(crate) fn covering(&self, fork: &Fork, range: ByteRange) -> Option<Vec<Placed>> {
        let (mut extents, mut at) = (Vec::new(), range.offset);
        while at < range.end() {
            at = match self.extent(fork, at) {
                Some(extent) => {
                    extents.push(*extent);
                    extent.end
                }
                None => self.vacant_until(fork, at)?,
            };
        }
        Some(extents)
    }

    /// Returns the version of a range, if it is known.
    pub(crate) fn region_version(&self, fork: &Fork, range: ByteRange) -> Option<u64> {
        let tombstone_version = self.header()?.tombstone_version;
        if range.len == 0 {
            return Some(tombstone_version);
        }
        let base = self.fork(fork)?.base;
        let newest = self.covering(fork, range)?.iter().map(|extent| extent.version).max();
        Some(tombstone_version.max(base).max(newest.unwrap_or(0)))
    }

    /// Returns a version that nothing in a fork is newer than, if the object is known. Unlike the version of a region, it takes no
    /// knowledge of the extents, however many there are.
    pub(crate) fn bound(&self, fork: &Fork) -> Option<u64> {
        self.header()?;
        Some(self.bounds.get(fork).copied().unwrap_or(self.newest))
    }

    /// Returns whether it is known that nothing in a fork is newer than a version, or will be as soon as the object turns out to be
    /// as the last call left it.
    pub(crate) fn is_bounded(&self, fork: &Fork, version: u64) -> bool {
        match (self.bound(fork), &self.left) {
            (Some(bound), _) => bound <= version,
            (None, Some(left)) => left.bounds.iter().any(|(of, bound)| of == fork && *bound <= version),
            (None, None) => false,
        }
    }

    /// Returns whether native writes of the object are under way.
    pub(crate) fn is_written(&self) -> bool {
        self.lane.is_busy()
    }

    /// Returns whether nothing is under way that will change the object in a way that cannot be foretold.
    pub(crate) fn is_settled(&self) -> bool {
        self.calls == 0
    }

    /// Returns whether a compaction is to be asked for, now that the byte stream is `tail` bytes long and half of it is
    /// garbage; it then counts as asked for. One that took place makes the byte stream shorter. One that did not, because there
    /// are too many extents for a call, is asked for again when there is a sixteenth more: to fail takes it seconds in the OSD.
    pub(crate) fn is_compaction_due(&mut self, tail: u32) -> bool {
        let asked_at = self.compacted_at;
        let due = tail < asked_at || u64::from(tail) >= u64::from(asked_at) + u64::from(asked_at / 16);
        if due {
            self.compacted_at = tail;
        }
        due
    }

    /// Takes in a header that was read. Returns false if it is older than what is known, and what was read with it of no use.
    pub(crate) fn saw_header(&mut self, header: &Header) -> bool {
        match &self.header {
            Some(known) if known.version > header.version => return false,
            Some(known) if known == header => self.steady = true,
            _ => {
                // Where nobody else wrote since our own last call, nobody else seems to be at work.
                let own = self.left.take().filter(|left| header.author == Author::Token(left.token));
                self.restart(Some(*header));
                self.steady = own.is_some();
                self.bounds.extend(own.into_iter().flat_map(|left| left.bounds));
            }
        }
        true
    }

    /// Takes in a header that was read, with what was read of a key.
    pub(crate) fn saw_key(&mut self, header: &Header, key: &Key, found: Option<&Versioned>) {
        if self.saw_header(header) {
            self.put_key(key, found);
        }
    }

    /// Takes in a header that was read, with what was read of a fork: all extents that share a byte with a range.
    pub(crate) fn saw(
        &mut self,
        header: &Header,
        fork: &Fork,
        record: &ForkRecord,
        range: ByteRange,
        extents: &[Placed],
    ) {
        if !self.saw_header(header) {
            return;
        }
        // So many at once are not worth keeping: they would only be forgotten again and again.
        if 2 * extents.len() + 1 > self.extents_max() {
            return;
        }
        self.make_room(2 * extents.len() + 1);
        if self.forks.get(fork) != Some(record) {
            self.forks.insert(fork.clone(), record.clone());
        }
        let mut at = range.offset;
        for extent in extents {
            self.put_vacant(fork, at, extent.start);
            self.put(fork, *extent);
            at = extent.end;
        }
        self.put_vacant(fork, at, range.end());
    }

    /// Takes in the header that a native write leaves. What else it changes follows.
    pub(crate) fn foretell_header(&mut self, header: Header) {
        self.header = Some(header);
    }

    /// Takes in that a native write changes a fork, after the header that it leaves.
    pub(crate) fn foretell_bound(&mut self, fork: &Fork) {
        let version = self.header.map_or(0, |header| header.version);
        if self.bounds.len() >= BOUNDS_MAX {
            // Nothing in an object is newer than the object.
            self.newest = version;
            self.bounds.clear();
        }
        self.bounds.insert(fork.clone(), version);
    }

    /// Takes in what a native write makes of a key.
    pub(crate) fn foretell_key(&mut self, key: &Key, value: Option<&Versioned>) {
        self.put_key(key, value);
    }

    /// Takes in that a native write replaces an extent by others.
    pub(crate) fn foretell_gone(&mut self, fork: &Fork, extent: &Placed) {
        let Some(extents) = self.extents.get_mut(fork) else { return };
        self.extent_count -= usize::from(extents.remove(&extent.start).is_some());
    }

    /// Takes in an extent that a native write makes, and the record of the fork if that changes.
    pub(crate) fn foretell(&mut self, fork: &Fork, extent: Placed, record: Option<ForkRecord>) {
        self.make_room(3);
        if let Some(record) = record {
            self.forks.insert(fork.clone(), record);
        }
        self.cut_vacant(fork, extent.start, extent.end);
        self.put(fork, extent);
    }

    /// Restarts from a header, or from nothing.
    pub(crate) fn restart(&mut self, header: Option<Header>) {
        self.header = header;
        self.forget_content();
        self.forget_keys();
        self.newest = header.map_or(0, |header| header.version);
        self.bounds.clear();
        self.fences = None;
        self.generation += 1;
        self.steady = false;
        self.left = None;
    }

    /// Restarts after a call, of which nothing is known except what it left, if it changed anything.
    fn restart_after(&mut self, left: Option<Left>) {
        self.restart(None);
        self.left = left;
    }

    /// Forgets all extents, vacant ranges and forks.
    pub(crate) fn forget_content(&mut self) {
        self.extents.clear();
        self.vacancies.clear();
        self.forks.clear();
        self.extent_count = 0;
    }

    fn forget_keys(&mut self) {
        self.keys.clear();
        self.key_bytes = 0;
    }

    fn put_key(&mut self, key: &Key, found: Option<&Versioned>) {
        let bytes =
            |found: Option<&Versioned>| key.as_bytes().len() + found.map_or(0, |found| found.value.len());
        if let Some(before) = self.keys.remove(key) {
            self.key_bytes -= bytes(before.as_ref());
        }
        let added = bytes(found);
        if added > KEY_BYTES_MAX {
            self.long_keys = true;
            return;
        }
        if self.keys.len() >= KEYS_MAX || self.key_bytes + added > KEYS_BYTES_MAX {
            self.forget_keys();
        }
        // Copied, because they may be parts of much longer messages.
        let Ok(key) = Key::new(Bytes::copy_from_slice(key.as_bytes())) else { return };
        let found = found
            .map(|found| Versioned { value: Bytes::copy_from_slice(&found.value), version: found.version });
        self.keys.insert(key, found);
        self.key_bytes += added;
    }

    /// Forgets what is known of the content where there is no room for more.
    fn make_room(&mut self, count: usize) {
        if self.extent_count + count > self.extents_max() {
            self.forget_content();
        }
    }

    fn put(&mut self, fork: &Fork, extent: Placed) {
        let extents = match self.extents.get_mut(fork) {
            Some(extents) => extents,
            None => self.extents.entry(fork.clone()).or_default(),
        };
        self.extent_count += usize::from(extents.insert(extent.start, extent).is_none());
    }

    /// Takes a range out of those that are vacant.
    fn cut_vacant(&mut self, fork: &Fork, start: u64, end: u64) {
        let Some(vacancies) = self.vacancies.get_mut(fork) else { return };
        let before = vacancies.range(..end).rev().map(|(start, end)| (*start, *end));
        let hit: Vec<(u64, u64)> = before.take_while(|(_, until)| *until > start).collect();
        for (from, until) in &hit {
            vacancies.remove(from);
            for (from, until) in [(*from, start.min(*until)), (end.max(*from), *until)] {
                if from < until {
                    vacancies.insert(from, until);
                    self.extent_count += 1;
                }
            }
        }
        self.extent_count -= hit.len();
    }

    /// Takes in a vacant range, which may share bytes with others.
    fn put_vacant(&mut self, fork: &Fork, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        let vacancies = self.vacancies.entry(fork.clone()).or_default();
        while let Some((&before, &until)) =
            vacancies.range(..=end).next_back().filter(|(_, until)| **until >= start)
        {
            vacancies.remove(&before);
            self.extent_count -= 1;
            (start, end) = (start.min(before), end.max(until));
        }
        vacancies.insert(start, end);
        self.extent_count += 1;
    }
}

/// The knowledge of all objects.
pub(crate) struct Knowledge {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

/// One part of the objects in two generations: when the young one is full it becomes the old one, and objects that were
/// not asked for since are forgotten.
#[derive(Default)]
struct Shard {
    young: HashMap<ObjectId, Arc<Mutex<ObjectCache>>>,
    old: HashMap<ObjectId, Arc<Mutex<ObjectCache>>>,
}

impl Knowledge {
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), shards: Default::default() }
    }

    /// Returns the knowledge of an object; empty at first.
    pub(crate) fn of(&self, object: &ObjectId) -> Arc<Mutex<ObjectCache>> {
        let shard = self.hasher.hash_one(object) as usize % SHARDS;
        let mut shard: MutexGuard<'_, Shard> = self.shards[shard].lock();
        if let Some(known) = shard.young.get(object) {
            return Arc::clone(known);
        }
        let known = shard.old.remove(object).unwrap_or_default();
        if shard.young.len() >= OBJECTS_MAX {
            shard.old = std::mem::take(&mut shard.young);
        }
        shard.young.insert(object.clone(), Arc::clone(&known));
        known
    }
}

#[cfg(test)]
mod tests {
    use nacre_object::ExtentKind;

    use super::*;

    fn extent(start: u64, end: u64, version: u64) -> Placed {
        Placed { start, end, version, kind: ExtentKind::Data, place: 0 }
    }

    #[test]
    fn what_is_known_of_a_range_is_its_extents_and_the_rest_is_vacant() {
        // An empty answer says that there is nothing; none, that it is not known.
        let is_vacant = |known: &ObjectCache, range: std::ops::Range<u64>| {
            known.covering(&Fork::default(), ByteRange::from(range)).is_some_and(|extents| extents.is_empty())
        };
        let (mut known, fork) = (ObjectCache::default(), Fork::DEFAULT);
        let header = Header { exists: true, version: 9, ..Header::default() };
        let record = ForkRecord { size: Some(40), base: 2, stem: Default::default() };
        let all = ByteRange::from(10..50);
        known.saw(&header, &fork, &record, all, &[extent(5, 15, 3), extent(20, 30, 4)]);
        assert_eq!(known.covering(&fork, all), Some(vec![extent(5, 15, 3), extent(20, 30, 4)]));
        assert_eq!(known.covering(&fork, ByteRange::from(10..51)), None);
        assert_eq!(known.covering(&fork, ByteRange::from(4..10)), None);
        assert_eq!(known.region_version(&fork, ByteRange::from(12..22)), Some(4));
        assert_eq!(known.region_version(&fork, ByteRange::from(15..20)), Some(2));
        // Bytes that are written are vacant no more, on both sides of them the rest is.
        let header = Header { version: 10, ..header };
        known.foretell_header(header);
        known.foretell(&fork, extent(32, 36, 10), Some(ForkRecord { size: Some(41), ..record.clone() }));
        assert_eq!(known.region_version(&fork, ByteRange::from(30..50)), Some(10));
        assert!(is_vacant(&known, 30..32) && is_vacant(&known, 36..50));
        assert!(!is_vacant(&known, 31..33));
        assert_eq!(known.fork(&fork).unwrap().size, Some(41));
        // What is read of it again adds nothing that is there.
        let found = [extent(20, 30, 4), extent(32, 36, 10)];
        known.saw(
            &header,
            &fork,
            known.fork(&fork).cloned().as_ref().unwrap(),
            ByteRange::from(15..60),
            &found,
        );
        assert_eq!(known.covering(&fork, ByteRange::from(15..60)), Some(found.to_vec()));
        let count = known.extents[&fork].len() + known.vacancies[&fork].len();
        assert_eq!((known.extent_count, count), (count, 6));
    }

    #[test]
    fn knowledge_is_bounded() {
        let (mut known, fork) = (ObjectCache::default(), Fork::DEFAULT);
        let header = Header { exists: true, version: 9, ..Header::default() };
        let record = ForkRecord { size: Some(40), base: 2, stem: Default::default() };
        for start in 0..5 * EXTENTS_MAX as u64 {
            let at = 10 * start;
            known.saw(&header, &fork, &record, ByteRange::from(at..at + 9), &[extent(at, at + 5, 1)]);
            assert!(known.extent_count <= EXTENTS_MAX);
        }
        assert_eq!(known.extent_count, known.extents[&fork].len() + known.vacancies[&fork].len());
        for at in 0..2 * EXTENTS_MAX as u64 {
            known.foretell(&fork, extent(2 * at, 2 * at + 1, 1), Some(record.clone()));
            assert!(known.extent_count <= EXTENTS_MAX);
        }
        let many: Vec<Placed> =
            (0..EXTENTS_MAX as u64).map(|at| extent(1 << 40 | at, 1 << 40 | (at + 1), 1)).collect();
        known.saw(&header, &fork, &record, ByteRange::from(0..1 << 41), &many);
        assert!(known.extent_count <= EXTENTS_MAX);
    }

    #[test]
    fn a_compaction_that_changes_nothing_is_seldom_asked_for_again() {
        let mut known = ObjectCache::default();
        let tails = (1000..2000_u32).map(|tail| 1000 * tail);
        let asked = tails.filter(|tail| known.is_compaction_due(*tail)).count();
        assert!((2..=13).contains(&asked), "{asked} times while the object grew to twice its length");
        // After one that took place, the next one is asked for at once, and once.
        assert!(known.is_compaction_due(500_000));
        known.restart(None);
        assert!(!known.is_compaction_due(500_100));
        assert!(known.is_compaction_due(u32::MAX) && !known.is_compaction_due(u32::MAX));
    }

    #[test]
    fn a_call_that_nobody_waits_for_any_more_is_over() {
        let known = Mutex::new(ObjectCache::default());
        let dropped = CallUnderWay::begin(&known);
        let other = CallUnderWay::begin(&known);
        known.lock().header = Some(Header::default());
        assert!(known.lock().header().is_none(), "it is about to change");
        drop(dropped);
        known.lock().header = Some(Header::default());
        assert!(known.lock().header().is_none(), "by the other call");
        let token = [7; 16];
        other.end(Some(token), vec![(Fork::DEFAULT, 3)]);
        let mut known = known.lock();
        assert!(known.is_bounded(&Fork::DEFAULT, 3) && !known.is_bounded(&Fork::DEFAULT, 2));
        // What the call found holds if nobody has changed the object since.
        let header = Header { exists: true, version: 9, author: Author::Token(token), ..Header::default() };
        known.saw_header(&header);
        assert!(known.steady && known.header().is_some());
        assert_eq!(known.bound(&Fork::DEFAULT), Some(3));
        known.restart_after(Some(Left { token, bounds: vec![(Fork::DEFAULT, 3)] }));
        known.saw_header(&Header { version: 10, author: Author::Token([8; 16]), ..header });
        assert!(!known.steady);
        assert_eq!(known.bound(&Fork::DEFAULT), Some(10));
        // A native write changes the bound of what it writes, and of nothing else.
        let other = Fork::try_from("other").unwrap();
        known.foretell_header(Header { version: 11, ..header });
        known.foretell_bound(&other);
        assert_eq!((known.bound(&Fork::DEFAULT), known.bound(&other)), (Some(10), Some(11)));
    }
}
