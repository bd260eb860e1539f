//! Writes that RADOS can do by itself, as one operation of a few steps and without an interpreter.
//!
//! A write is native where this client knows all that it depends on: the header, the keys that it sets or that its guards and
//! reads name, and the extents that stand where its bytes go. The first step compares the whole header, which holds the token of
//! the change that wrote it: so the object is in the very state that the write was planned for, which settles guards and reads
//! alike. If it is not, nothing is changed.
//!
//! The first write of an object has no header to compare. It is native where nothing at all is in its place, which RADOS
//! checks, and where the index of names has a mark of it already, as the class demands of its callers.
//!
//! What a native write leaves is what `extent.lua` would leave: the same header, entries and places.

use std::collections::{BTreeMap, HashSet};
use std::ffi::CStr;

use bytes::{Bytes, BytesMut};
use nacre_object::limit::{ATTRIBUTES_MAX, OFFSET_MAX};
use nacre_object::{
    Answer, ByteRange, ExtentKind, Fork, Found, Guard, Key, ReadOp, Refusal, Transaction, Versioned, WriteOp,
};

use crate::cache::ObjectCache;
use crate::floor::Floor;
use crate::name::{extent_key, keyed};
use crate::native::HEADER;
use crate::record::{Author, ForkRecord, Header, Placed, Token, encode_attribute, encode_key};
use crate::reply;
use crate::request::ordered;
use crate::sys::{Operation, Pool, WriteStep, flag};

/// The maximum number of places of the byte stream that a native write writes at.
const RUNS_MAX: usize = 64;
/// The maximum number of keys that a native write sets or removes.
const KEYS_MAX: usize = 256;
/// The maximum number of extents of a native write that are worth keeping in the knowledge of the object.
const FORETOLD_MAX: usize = 1024;
/// The length from which on a piece begins at a multiple of itself in the byte stream, in bytes.
const ALIGNED_BYTES: u64 = 4096;
/// The end of the offsets that the class can write at, in bytes.
const PLACES_END: u64 = 1 << 31;
/// The maximum number of keys that are read for one write.
const LOOKS_MAX: usize = 8;
/// The length from which on a guarded range is likely to have many extents, in bytes.
const LONG_BYTES: u64 = 1 << 20;

/// A write that RADOS can do by itself.
pub(crate) struct NativeWrite {
    /// The header that the write relies on; `None` where it relies on there being no object.
    pub(crate) before: Option<Header>,
    /// The header that it leaves.
    pub(crate) after: Header,
    /// The author of the header that its operation leaves: its own, or that of the last write which is sent with it.
    pub(crate) left: Author,
    /// The answers to the transaction's reads, as they are before the write.
    pub(crate) answers: Vec<Answer>,
    forks: Vec<ForkWrite>,
    runs: Vec<Run>,
    /// The keys as the write leaves them: `None` for one that it removes.
    keys: BTreeMap<Key, Option<Versioned>>,
    attributes: BTreeMap<Key, Bytes>,
}

/// The part of a write that concerns one fork.
struct ForkWrite {
    fork: Fork,
    /// The fork's record as the write leaves it.
    record: ForkRecord,
    /// True if the record is not the one that stands there.
    changed: bool,
    /// The extents that the write makes, and the rests of those that it cuts, in ascending order.
    set: Vec<Placed>,
    /// The extents that it cuts or replaces, as they stood.
    gone: Vec<Placed>,
}

/// Takes a range out of extents, which keep what lies before and after it; `live` is the number of bytes that extents refer to.
fn cut(extents: &mut BTreeMap<u64, Placed>, range: ByteRange, live: &mut u32) -> Option<()> {
    let before = extents.range(..range.end()).rev().map(|(_, extent)| *extent);
    let hit: Vec<Placed> = before.take_while(|extent| extent.end > range.offset).collect();
    for extent in hit {
        let (start, end) = (extent.start.max(range.offset), extent.end.min(range.end()));
        extents.remove(&extent.start);
        if extent.start < start {
            extents.insert(extent.start, Placed { end: start, ..extent });
        }
        let mut rest = Placed { start: end, ..extent };
        if extent.kind == ExtentKind::Data {
            *live = live.checked_sub(u32::try_from(end - start).ok()?)?;
            rest.place = extent.place.checked_add(u32::try_from(end - extent.start).ok()?)?;
        }
        if end < extent.end {
            extents.insert(end, rest);
        }
    }
    Some(())
}

/// Bytes that lie side by side in the byte stream.
struct Run {
    place: u64,
    end: u64,
    parts: Vec<Bytes>,
}

impl Run {
    /// Returns the bytes, which are copied only if there are several parts.
    fn joined(&self) -> Bytes {
        if let [only] = &self.parts[..] {
            return only.clone();
        }
        let mut joined = BytesMut::with_capacity((self.end - self.place) as usize);
        self.parts.iter().for_each(|part| joined.extend_from_slice(part));
        joined.freeze()
    }
}

impl NativeWrite {
    /// Creates a write that relies on a header; or, where that stands for an object without a trace, on there being none.
    fn new(stood: Header, stamp: u64, token: Token) -> Self {
        let before = (!stood.is_absent()).then_some(stood);
        let left = Author::Token(token);
        let after = Header { exists: true, existed: before.is_some(), version: stamp, author: left, ..stood };
        let (forks, runs, answers) = (Vec::new(), Vec::new(), Vec::new());
        let (keys, attributes) = (BTreeMap::new(), BTreeMap::new());
        Self { before, after, left, answers, forks, runs, keys, attributes }
    }

    /// Adds pieces of a fork, in ascending order and apart from each other. Returns `None` if they do not fit, by what is known;
    /// where that is `None`, the fork is known to be new.
    fn add_extents(
        &mut self,
        fork: &Fork,
        record: ForkRecord,
        known: Option<&ObjectCache>,
        pieces: &[(u64, Bytes)],
    ) -> Option<()> {
        // A second write of a fork would have to know what the first one leaves; and one of nothing makes the fork.
        if self.forks.iter().any(|write| write.fork == *fork) {
            return None;
        }
        let (mut layers, mut rest) = (Vec::new(), pieces);
        while let Some((start, _)) = rest.first() {
            // Pieces that touch are one extent, as the class makes it.
            let (start, mut end, mut count) = (*start, *start, 0);
            while let Some((_, data)) = rest.get(count).filter(|piece| piece.0 == end) {
                end += data.len() as u64;
                count += 1;
            }
            let (parts, others) = rest.split_at(count);
            layers.push((ByteRange::from(start..end), parts));
            rest = others;
        }
        let size = layers.last()?.0.end();
        let mut stood: BTreeMap<u64, Placed> = BTreeMap::new();
        if let Some(known) = known {
            for (range, _) in &layers {
                stood.extend(known.covering(fork, *range)?.into_iter().map(|extent| (extent.start, extent)));
            }
        }
        let mut stands = stood.clone();
        for (range, parts) in layers {
            // Within one extent, the bytes are overwritten where they are.
            let around = stood.range(..=range.offset).next_back().map(|(_, extent)| *extent);
            let around = around.filter(|extent| extent.kind == ExtentKind::Data && range.end() <= extent.end);
            let place = match around {
                Some(extent) => u64::from(extent.place) + (range.offset - extent.start),
                None => self.place(range.len)?,
            };
            self.add_run(place, range.len, parts.iter().map(|(_, data)| data.clone()))?;
            cut(&mut stands, range, &mut self.after.live)?;
            self.after.live = self.after.live.checked_add(u32::try_from(range.len).ok()?)?;
            let (version, kind) = (self.after.version, ExtentKind::Data);
            let extent = Placed { start: range.offset, end: range.end(), version, kind, place: place as u32 };
            stands.insert(range.offset, extent);
        }
        let set =
            stands.values().filter(|extent| stood.get(&extent.start) != Some(*extent)).copied().collect();
        let gone =
            stood.values().filter(|extent| stands.get(&extent.start) != Some(*extent)).copied().collect();
        let mut write = ForkWrite { fork: fork.clone(), record, changed: false, set, gone };
        let before = write.record.size;
        if before.is_none_or(|before| before < size) {
            self.after.forks = self.after.forks.checked_add(u32::from(before.is_none()))?;
            self.after.lengthen(before.unwrap_or(0), size);
            (write.record.size, write.changed) = (Some(size), true);
        }
        self.forks.push(write);
        Some(())
    }

    /// Returns the place of new bytes at the end of the byte stream; `None` if they do not fit there.
    fn place(&mut self, len: u64) -> Option<u64> {
        let tail = u64::from(self.after.tail);
        let place = if len >= ALIGNED_BYTES { tail.next_multiple_of(ALIGNED_BYTES) } else { tail };
        let end = place.checked_add(len).filter(|end| *end < PLACES_END)?;
        self.after.tail = end as u32;
        Some(place)
    }

    fn add_run(&mut self, place: u64, len: u64, parts: impl Iterator<Item = Bytes>) -> Option<()> {
        let is_full = self.runs.len() == RUNS_MAX;
        match self.runs.last_mut() {
            Some(last) if last.end == place => {
                last.parts.extend(parts);
                last.end += len;
            }
            _ if is_full => return None,
            _ => self.runs.push(Run { place, end: place + len, parts: parts.collect() }),
        }
        Some(())
    }

    /// Sets or removes a key, which stood there before the write or did not.
    fn set_key(&mut self, key: &Key, stood: bool, value: Option<&Bytes>) -> Option<()> {
        let stands = self.keys.get(key).map_or(stood, Option::is_some);
        self.after.keys = match (stands, value.is_some()) {
            (false, true) => self.after.keys.checked_add(1)?,
            (true, false) => self.after.keys.checked_sub(1)?,
            _ => self.after.keys,
        };
        let version = self.after.version;
        self.keys.insert(key.clone(), value.map(|value| Versioned { value: value.clone(), version }));
        (self.keys.len() <= KEYS_MAX).then_some(())
    }

    /// Returns whether a header is the one that this write leaves, or the last of those that were sent with it, by its token.
    pub(crate) fn has_left(&self, header: &Header) -> bool {
        header.author == self.left
    }

    /// Returns whether the write relies on the very header that another one leaves.
    pub(crate) fn follows(&self, earlier: &NativeWrite) -> bool {
        self.before == Some(earlier.after)
    }

    /// Returns about what the write costs an OSD, beyond its being an operation, in bytes that are stored.
    pub(crate) fn cost(&self) -> usize {
        /// The cost of an entry of the omap, or of a place in the byte stream, whatever its length.
        const EACH: usize = 256;
        let extents: usize = self.forks.iter().map(|write| write.set.len() + write.gone.len() + 1).sum();
        let values = self.keys.values().flatten().map(|found| found.value.len());
        let values: usize = values.chain(self.attributes.values().map(Bytes::len)).sum();
        let bytes: u64 = self.runs.iter().map(|run| run.end - run.place).sum();
        let entries = extents + self.keys.len() + self.attributes.len() + self.runs.len();
        entries * EACH + values + bytes as usize
    }

    /// Returns the number of places of the byte stream that the write writes at.
    pub(crate) fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// Sends the write: a few steps, one operation.
    pub(crate) fn send(&self, pool: &Pool, name: &CStr) -> Operation {
        self.with_steps(|steps| pool.write(name, steps, flag::FULL_TRY))
    }

    /// Passes the steps of the operation on.
    pub(crate) fn with_steps<T>(&self, run: impl FnOnce(&[WriteStep<'_>]) -> T) -> T {
        with_steps(&[self], run)
    }

    /// Adds the entries of the omap that the write sets, with their values, and those that it removes. It names each once.
    fn add_entries(&self, entries: &mut Vec<(Vec<u8>, Option<Bytes>)>) {
        for write in &self.forks {
            // The key of an extent is its end, which another one may have by now.
            let ends: HashSet<u64> = write.set.iter().map(|extent| extent.end).collect();
            let gone = write.gone.iter().filter(|extent| !ends.contains(&extent.end));
            entries.extend(gone.map(|extent| (extent_key(&write.record.stem, extent.end), None)));
            let entry = |extent: &Placed| {
                let key = extent_key(&write.record.stem, extent.end);
                (key, Some(Bytes::copy_from_slice(&extent.encode())))
            };
            entries.extend(write.set.iter().map(entry));
            if write.changed {
                let key = keyed(Some(b'f'), write.fork.as_bytes());
                entries.push((key, Some(write.record.encode().into())));
            }
        }
        for (key, value) in &self.keys {
            let value = value.as_ref().map(|found| encode_key(&found.value, found.version));
            entries.push((keyed(Some(b'k'), key.as_bytes()), value));
        }
        for (name, value) in &self.attributes {
            entries.push((keyed(Some(b'a'), name.as_bytes()), Some(encode_attribute(value))));
        }
    }

    /// Takes the expected effect of the write into the knowledge that it was planned by.
    pub(crate) fn foretell(&self, known: &mut ObjectCache) {
        known.foretell_header(self.after);
        self.forks.iter().for_each(|write| known.foretell_bound(&write.fork));
        let count: usize = self.forks.iter().map(|write| write.set.len()).sum();
        if count > FORETOLD_MAX {
            known.forget_content();
        } else {
            for write in &self.forks {
                let mut record = write.changed.then(|| write.record.clone());
                write.gone.iter().for_each(|extent| known.foretell_gone(&write.fork, extent));
                for extent in &write.set {
                    known.foretell(&write.fork, *extent, record.take());
                }
            }
        }
        for (key, value) in &self.keys {
            known.foretell_key(key, value.as_ref());
        }
    }

    /// Takes the first write of an object, which has taken place, into the knowledge of the object.
    pub(crate) fn made(&self, known: &mut ObjectCache) {
        known.saw_header(&self.after);
        for write in &self.forks {
            known.saw(&self.after, &write.fork, &write.record, ByteRange::ALL, &write.set);
        }
        for (key, value) in &self.keys {
            known.saw_key(&self.after, key, value.as_ref());
        }
    }
}

/// Passes the steps of one operation on that makes several writes, each of which follows the one before it.
pub(crate) fn with_steps<T>(writes: &[&NativeWrite], run: impl FnOnce(&[WriteStep<'_>]) -> T) -> T {
    let (Some(first), Some(last)) = (writes.first(), writes.last()) else {
        unreachable!("an operation makes one write at least")
    };
    let is_chain = writes.windows(2).all(|pair| pair[1].follows(pair[0]));
    assert!(is_chain, "writes that are sent together rely on each other");
    let (before, after) = (first.before.map(|header| header.encode()), last.after.encode());
    let mut changes: Vec<(Vec<u8>, Option<Bytes>)> = Vec::new();
    writes.iter().for_each(|write| write.add_entries(&mut changes));
    if writes.len() > 1 {
        // Of what several of them make of an entry, the last one's counts.
        changes.reverse();
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        changes.dedup_by(|earlier, later| earlier.0 == later.0);
    }
    let mut entries: Vec<(Vec<u8>, Bytes)> = Vec::new();
    let mut removed: Vec<Vec<u8>> = Vec::new();
    for (key, value) in changes {
        match value {
            Some(value) => entries.push((key, value)),
            None => removed.push(key),
        }
    }
    let runs = writes.iter().flat_map(|write| &write.runs);
    let runs: Vec<(u64, Bytes)> = runs.map(|run| (run.place, run.joined())).collect();
    let mut steps = vec![match &before {
        Some(record) => WriteStep::IfXattr(HEADER, record),
        None => WriteStep::CreateNew,
    }];
    steps.extend(runs.iter().map(|(offset, data)| WriteStep::Bytes { offset: *offset, data }));
    if !entries.is_empty() {
        steps.push(WriteStep::SetOmaps(&entries));
    }
    if !removed.is_empty() {
        steps.push(WriteStep::RemoveOmaps(&removed));
    }
    steps.push(WriteStep::SetXattr(HEADER, &after));
    run(&steps)
}

/// Judges the guards of a transaction by what is known of its object. Returns the version of the write; `None` if a guard does
/// not hold, as far as is known: what stands there instead, others tell.
fn judge(transaction: &Transaction, known: &ObjectCache, header: &Header) -> Option<u64> {
    let mut stamp = header.version + 1;
    for guard in &transaction.guards {
        let holds = match guard {
            Guard::Exists => true,
            Guard::Version { version } => header.version == *version,
            Guard::Fence { token } => known.is_fenced(*token) == Some(false),
            Guard::Region { fork, range, version } => {
                known.bound(fork).is_some_and(|bound| bound <= *version)
                    || known.region_version(fork, *range).is_some_and(|found| found <= *version)
            }
            Guard::Proposal { fork, range, version } => {
                stamp = stamp.max(*version);
                known.bound(fork).is_some_and(|bound| bound < *version)
                    || known.region_version(fork, *range).is_some_and(|found| found < *version)
            }
            Guard::Key { key, check } => check.holds(known.key(key)?.map(|found| &found.value[..])),
            Guard::KeyVersion { key, version } => {
                known.key(key)?.map_or(0, |found| found.version) == *version
            }
            Guard::Size { fork, size } => known.fork(fork)?.size.unwrap_or(0) == *size,
            Guard::Absent | Guard::Attribute { .. } => false,
        };
        if !holds {
            return None;
        }
    }
    Some(stamp)
}

/// Returns the answer to a read, if it is known.
fn answer(read: &ReadOp, known: &ObjectCache, header: &Header) -> Option<Answer> {
    match read {
        ReadOp::Stat => Some(Answer::Stat(reply::stat(header))),
        ReadOp::Key { key } => Some(Answer::Value(known.key(key)?.map(|found| found.value.clone()))),
        ReadOp::VersionedKey { key, .. } => Some(Answer::VersionedValue(known.key(key)?.cloned())),
        _ => None,
    }
}

/// Returns the native form of a transaction that writes, if it has one as far as is known. The token must be its own, and never
/// be used again.
pub(crate) fn plan(transaction: &Transaction, known: &ObjectCache, token: Token) -> Option<NativeWrite> {
    let header = *known.header().filter(|header| header.exists && header.version < OFFSET_MAX - 1)?;
    let stamp = judge(transaction, known, &header)?;
    let mut write = NativeWrite::new(header, stamp, token);
    let answers = transaction.reads.iter().map(|read| answer(read, known, &header));
    write.answers = answers.collect::<Option<_>>()?;
    for op in &transaction.writes {
        match op {
            WriteOp::Create => {}
            WriteOp::Extents { fork, extents } => {
                write.add_extents(fork, known.fork(fork)?.clone(), Some(known), &ordered(extents))?;
            }
            WriteOp::Append { fork, data } if !data.is_empty() => {
                let record = known.fork(fork)?.clone();
                let offset = record.size.unwrap_or(0);
                if data.len() as u64 > OFFSET_MAX - offset {
                    return None;
                }
                write.add_extents(fork, record, Some(known), &[(offset, data.clone())])?;
            }
            WriteOp::SetKey { key, value } => write.set_key(key, known.key(key)?.is_some(), Some(value))?,
            WriteOp::RemoveKey { key } => write.set_key(key, known.key(key)?.is_some(), None)?,
            _ => return None,
        }
    }
    Some(write)
}

/// Returns the native form of a transaction that makes an object of which there is no trace, if it has one. The index of names
/// must have a mark of it, which stands for the floor; the token must be its own, and never be used again.
pub(crate) fn plan_first(transaction: &Transaction, token: Token, floor: Floor) -> Option<NativeWrite> {
    if !transaction.reads.is_empty() {
        return None;
    }
    let Floor { shown, start } = floor;
    let mut stamp = start + 1;
    for guard in &transaction.guards {
        let holds = match guard {
            // Nothing is fenced, and everything has the version of the floor.
            Guard::Absent | Guard::Fence { .. } => true,
            Guard::Region { version, .. } => *version >= shown,
            Guard::Proposal { version, .. } => {
                stamp = stamp.max(*version);
                *version > shown
            }
            Guard::Version { version } => *version == shown,
            Guard::KeyVersion { version, .. } => *version == 0,
            Guard::Size { size, .. } => *size == 0,
            Guard::Key { check, .. } | Guard::Attribute { check, .. } => check.holds(None),
            Guard::Exists => false,
        };
        if !holds {
            return None;
        }
    }
    let mut write = NativeWrite::new(Header::absent(shown), stamp, token);
    let none = |fork: &Fork| ForkRecord::none(&keyed(Some(b'f'), fork.as_bytes()));
    for op in &transaction.writes {
        match op {
            WriteOp::Create => {}
            WriteOp::Extents { fork, extents } => {
                write.add_extents(fork, none(fork), None, &ordered(extents))?;
            }
            WriteOp::Append { fork, data } if !data.is_empty() => {
                write.add_extents(fork, none(fork), None, &[(0, data.clone())])?;
            }
            WriteOp::SetKey { key, value } => write.set_key(key, false, Some(value))?,
            WriteOp::SetAttribute { name, value } => {
                write.attributes.insert(name.clone(), value.clone());
            }
            _ => return None,
        }
    }
    let attributes = write.attributes.len();
    write.after.attributes = attributes as u16;
    (attributes <= ATTRIBUTES_MAX).then_some(write)
}

/// Returns the only key that guards of a transaction are about, if they are about nothing else but the object's existence.
pub(crate) fn guarded_key(transaction: &Transaction) -> Option<&Key> {
    let mut only: Option<&Key> = None;
    for guard in &transaction.guards {
        let key = match guard {
            Guard::Exists => continue,
            Guard::Key { key, .. } | Guard::KeyVersion { key, .. } => key,
            _ => return None,
        };
        if only.is_some_and(|only| only != key) {
            return None;
        }
        only = Some(key);
    }
    only
}

/// Judges the guards of a transaction by the key that they are about. Returns `None` if they hold.
pub(crate) fn key_refusal(
    transaction: &Transaction,
    header: &Header,
    found: Option<&Versioned>,
) -> Option<Refusal> {
    transaction.guards.iter().enumerate().find_map(|(index, guard)| {
        let refuse = |found| Some(Refusal { guard: index, found, version: header.version });
        let (value, version) = (found.map(|found| &found.value), found.map_or(0, |found| found.version));
        match guard {
            Guard::Exists if !header.exists => refuse(Found::Object { exists: false }),
            Guard::Key { check, .. } if !check.holds(value.map(|value| &value[..])) => {
                refuse(Found::Value(value.cloned()))
            }
            Guard::KeyVersion { version: wanted, .. } if version != *wanted => {
                refuse(Found::KeyVersion(version))
            }
            _ => None,
        }
    })
}

/// Returns whether guards of a transaction, all of one key, are known not to hold.
pub(crate) fn fails_by_key(transaction: &Transaction, known: &ObjectCache) -> bool {
    let header = known.header();
    let found = guarded_key(transaction).and_then(|key| known.key(key));
    found.zip(header).is_some_and(|(found, header)| key_refusal(transaction, header, found).is_some())
}

/// Returns the keys that have to be known, beside the header, before a transaction can be a native write, if that is worth a
/// read: where the transaction reads, which takes one in any case, or where a guard covers a fork whose extents a call would have
/// to go through.
pub(crate) fn unknown_keys(transaction: &Transaction, known: &ObjectCache) -> Option<Vec<Key>> {
    let mut is_worth = !transaction.reads.is_empty();
    let mut keys: Vec<&Key> = Vec::new();
    for read in &transaction.reads {
        match read {
            ReadOp::Stat => {}
            ReadOp::Key { key } | ReadOp::VersionedKey { key, .. } => keys.push(key),
            _ => return None,
        }
    }
    for write in &transaction.writes {
        match write {
            WriteOp::Create => {}
            WriteOp::SetKey { key, .. } | WriteOp::RemoveKey { key } => keys.push(key),
            _ => return None,
        }
    }
    for guard in &transaction.guards {
        match guard {
            Guard::Exists | Guard::Version { .. } | Guard::Fence { .. } => {}
            Guard::Key { key, .. } | Guard::KeyVersion { key, .. } => keys.push(key),
            Guard::Region { fork, range, version } if known.is_bounded(fork, *version) => {
                is_worth |= range.len >= LONG_BYTES;
            }
            _ => return None,
        }
    }
    if !is_worth || !known.is_settled() || known.is_missing() || known.has_long_keys() {
        return None;
    }
    keys.retain(|key| known.key(key).is_none());
    keys.sort_unstable();
    keys.dedup();
    let is_known = keys.is_empty() && known.header().is_some();
    (!is_known && keys.len() <= LOOKS_MAX).then(|| keys.into_iter().cloned().collect())
}

/// Returns forks of which a transaction that a call has made found nothing newer than a version: those that it guards as a whole,
/// if it changes none.
pub(crate) fn bounds_found(transaction: &Transaction) -> Vec<(Fork, u64)> {
    let keeps_forks = |write: &WriteOp| {
        matches!(
            write,
            WriteOp::Create
                | WriteOp::SetKey { .. }
                | WriteOp::RemoveKey { .. }
                | WriteOp::SetAttribute { .. }
                | WriteOp::RemoveAttribute { .. }
        )
    };
    if !transaction.writes.iter().all(keeps_forks) {
        return Vec::new();
    }
    let whole = transaction.guards.iter().filter_map(|guard| match guard {
        Guard::Region { fork, range, version } if *range == ByteRange::ALL => Some((fork.clone(), *version)),
        _ => None,
    });
    whole.take(LOOKS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use nacre_object::Check;

    use super::*;

    fn key(name: &str) -> Key {
        Key::try_from(name).unwrap()
    }

    fn known(header: &Header) -> ObjectCache {
        let mut known = ObjectCache::default();
        known.saw_header(header);
        known
    }

    #[test]
    fn guards_of_one_key_are_judged_in_their_order() {
        let header = Header { exists: true, version: 9, ..Header::default() };
        let found = Versioned { value: "blue".into(), version: 4 };
        let check = |value: &'static str| Guard::Key { key: key("k"), check: Check::Equal(value.into()) };
        let version = |version| Guard::KeyVersion { key: key("k"), version };
        let guarded = |guards: &[Guard]| Transaction { guards: guards.to_vec(), ..Transaction::new() };
        let refused = |transaction: &Transaction, found: Option<&Versioned>| {
            key_refusal(transaction, &header, found).map(|refusal| (refusal.guard, refusal.found))
        };
        let both = guarded(&[Guard::Exists, check("blue"), version(4)]);
        assert_eq!(guarded_key(&both), Some(&key("k")));
        assert_eq!(refused(&both, Some(&found)), None);
        assert_eq!(refused(&both, None), Some((1, Found::Value(None))));
        let later = Versioned { version: 5, ..found.clone() };
        assert_eq!(refused(&both, Some(&later)), Some((2, Found::KeyVersion(5))));
        let red = guarded(&[check("red"), version(0)]);
        assert_eq!(refused(&red, Some(&found)), Some((0, Found::Value(Some("blue".into())))));
        // What is about more than one key, or about anything else, is left to the class.
        let other = Guard::KeyVersion { key: key("other"), version: 1 };
        assert_eq!(guarded_key(&guarded(&[version(4), other])), None);
        assert_eq!(guarded_key(&guarded(&[version(4), Guard::Version { version: 9 }])), None);
        let mut cache = known(&header);
        assert!(!fails_by_key(&red, &cache), "nothing is known of the key");
        cache.saw_key(&header, &key("k"), Some(&found));
        assert!(fails_by_key(&red, &cache) && !fails_by_key(&both, &cache));
    }

    #[test]
    fn keys_are_looked_for_only_where_a_write_can_be_native_then() {
        let header = Header { exists: true, version: 9, ..Header::default() };
        let set = |name| WriteOp::SetKey { key: key(name), value: "value".into() };
        let exchange =
            Transaction::new().read(ReadOp::Key { key: key("b") }).change(set("a")).change(set("b"));
        let mut cache = known(&header);
        assert_eq!(unknown_keys(&exchange, &cache), Some(vec![key("a"), key("b")]));
        cache.saw_key(&header, &key("a"), None);
        assert_eq!(unknown_keys(&exchange, &cache), Some(vec![key("b")]));
        cache.saw_key(&header, &key("b"), None);
        assert_eq!(unknown_keys(&exchange, &cache), None);
        assert!(plan(&exchange, &cache, [1; 16]).is_some());
        // The header alone may be wanted.
        assert_eq!(
            unknown_keys(&Transaction::new().read(ReadOp::Stat).change(WriteOp::Create), &known(&header)),
            None
        );
        let nothing = ObjectCache::default();
        let stat = Transaction::new().read(ReadOp::Stat).change(WriteOp::Create);
        assert_eq!(unknown_keys(&stat, &nothing), Some(Vec::new()));
        assert_eq!(unknown_keys(&Transaction::new().change(set("a")), &nothing), None, "a call is as good");
        assert_eq!(unknown_keys(&exchange.clone().change(WriteOp::Remove), &nothing), None);
        // A guard over all of a fork takes a call that goes through its extents, unless nothing in it can be newer.
        let guarded =
            |version| Transaction::new().if_version(Fork::DEFAULT, ByteRange::ALL, version).change(set("a"));
        let cache = known(&header);
        assert_eq!(unknown_keys(&guarded(9), &cache), Some(vec![key("a")]));
        assert_eq!(unknown_keys(&guarded(8), &cache), None);
        assert_eq!(bounds_found(&guarded(8)), [(Fork::DEFAULT, 8)]);
        assert!(bounds_found(&guarded(8).write(Fork::DEFAULT, 0, "bytes")).is_empty());
    }
}
