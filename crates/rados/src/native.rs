//! Transactions that RADOS has operations for, run without an interpreter: reads of one range, key or attribute, and
//! writes of a region that is exactly one extent, with the guards that such a write usually has.
//!
//! Such a write is four steps of one RADOS operation: compare the header, write the bytes where they are, set the
//! extent's entry, set the header. The header holds the token of the change that wrote it, so comparing it proves that
//! the object is in the very state that the write was planned for, and thereby settles all guards; if it changed
//! meanwhile, the transaction runs as a call instead, which judges by the region. Versions alone would prove nothing:
//! another client's write takes the same version as the one that failed for it.

use std::ffi::CStr;

use bytes::Bytes;
use nacre_object::limit::OFFSET_MAX;
use nacre_object::{
    Answer, ByteRange, Extent, ExtentKind, Fork, Found, Guard, RangeRead, Read, Refusal, StoreError,
    Transaction, Write, coalesce,
};

use crate::cache::ObjectCache;
use crate::name::extent_key;
use crate::record::{Author, Header, Placed, Token};
use crate::sys::{Operation, Pool, WriteStep, flag};

/// The attribute that holds an object's header.
pub(crate) const HEADER: &CStr = c"nacre";

/// The maximum number of bytes of a range that is read natively: the index is read before the bytes, or together with a
/// guess at them.
pub(crate) const READ_BYTES_MAX: u64 = 4 << 20;
/// The number of entries of the index that a native read asks for.
pub(crate) const ENTRIES_MAX: u64 = 8;

/// A write that RADOS can do by itself.
pub(crate) struct NativeWrite {
    pub(crate) fork: Fork,
    /// The prefix of the keys of the fork's extents.
    pub(crate) stem: Bytes,
    pub(crate) data: Bytes,
    /// The header that the write relies on; the one that it leaves follows.
    pub(crate) before: Header,
    pub(crate) after: Header,
    /// The extent that the write leaves.
    pub(crate) extent: Placed,
}

impl NativeWrite {
    /// Sends the write: four steps, one operation.
    pub(crate) fn send(&self, pool: &Pool, name: &CStr) -> Operation {
        let (before, after) = (self.before.encode(), self.after.encode());
        let (key, value) = (extent_key(&self.stem, self.extent.end), self.extent.encode());
        let steps = [
            WriteStep::IfXattr(HEADER, &before),
            WriteStep::Bytes { offset: self.extent.place.into(), data: &self.data },
            WriteStep::SetOmap(&key, &value),
            WriteStep::SetXattr(HEADER, &after),
        ];
        pool.write(name, &steps, flag::FULL_TRY)
    }
}

/// Returns the fork, offset and data of a transaction that does nothing but write one extent.
fn only_extent(transaction: &Transaction) -> Option<(&Fork, u64, &Bytes)> {
    let ([], [Write::Extents { fork, extents }]) = (&transaction.reads[..], &transaction.writes[..]) else {
        return None;
    };
    let [(offset, data)] = &extents[..] else { return None };
    (!data.is_empty()).then_some((fork, *offset, data))
}

/// Returns the native form of a transaction, if it has one as far as is known. The token must be its own, and never be
/// used again.
pub(crate) fn plan(transaction: &Transaction, known: &ObjectCache, token: Token) -> Option<NativeWrite> {
    let (fork, offset, data) = only_extent(transaction)?;
    let before = *known.header().filter(|header| header.exists && header.version < OFFSET_MAX - 1)?;
    let (extent, stem) = (known.extent(fork, offset)?, known.fork(fork)?.stem.clone());
    let range = ByteRange::new(offset, data.len() as u64);
    if extent.kind != ExtentKind::Data || extent.range() != range {
        return None;
    }
    let mut stamp = before.version + 1;
    for guard in &transaction.guards {
        let within = |of: &Fork, region: &ByteRange| {
            of == fork && region.len > 0 && region.offset >= range.offset && region.end() <= range.end()
        };
        let holds = match guard {
            Guard::Exists => true,
            Guard::Version { version } => before.version == *version,
            Guard::Fence { token } => known.is_fenced(*token) == Some(false),
            Guard::Region { fork, range, version } => within(fork, range) && extent.version <= *version,
            Guard::Proposal { fork, range, version } => {
                stamp = stamp.max(*version);
                within(fork, range) && *version > extent.version
            }
            _ => false,
        };
        if !holds {
            return None;
        }
    }
    let after = Header { version: stamp, existed: true, author: Author::Token(token), ..before };
    let extent = Placed { version: stamp, ..*extent };
    Some(NativeWrite { fork: fork.clone(), stem, data: data.clone(), before, after, extent })
}

/// Returns whether a transaction would be a native write if only the sessions were known that the object has fenced.
/// They are worth a read where nobody else seems to write the object.
pub(crate) fn wants_fences(transaction: &Transaction, known: &ObjectCache) -> bool {
    let unknown =
        |guard: &Guard| matches!(guard, Guard::Fence { token } if known.is_fenced(*token).is_none());
    known.steady
        && known.header().is_some()
        && only_extent(transaction).is_some_and(|(fork, offset, _)| known.extent(fork, offset).is_some())
        && transaction.guards.iter().any(unknown)
}

/// Returns the region whose content the refusal of a lost native write should show: that of its first guard of a
/// region.
pub(crate) fn guarded_region(transaction: &Transaction) -> Option<(&Fork, ByteRange)> {
    only_extent(transaction)?;
    let simple =
        |guard: &Guard| matches!(guard, Guard::Exists | Guard::Region { .. } | Guard::Proposal { .. });
    if !transaction.guards.iter().all(simple) {
        return None;
    }
    transaction.guards.iter().find_map(|guard| match guard {
        Guard::Region { fork, range, .. } | Guard::Proposal { fork, range, .. } => Some((fork, *range)),
        _ => None,
    })
}

/// Judges the guards of a transaction by one region as it was read. Returns `None` if they hold, or if the region does
/// not tell.
pub(crate) fn refusal(
    transaction: &Transaction,
    region: (&Fork, ByteRange),
    read: &RangeRead,
    header: &Header,
) -> Option<Refusal> {
    for (index, guard) in transaction.guards.iter().enumerate() {
        let refuse = |found| Some(Refusal { guard: index, found, version: header.version });
        match guard {
            Guard::Exists if !header.exists => return refuse(Found::Object { exists: false }),
            Guard::Exists => {}
            Guard::Region { fork, range, .. } | Guard::Proposal { fork, range, .. }
                if (fork, *range) != region =>
            {
                return None;
            }
            Guard::Region { version, .. } if read.version > *version => {
                return refuse(Found::Region(read.clone()));
            }
            Guard::Proposal { version, .. } if read.version >= *version => {
                return refuse(Found::Region(read.clone()));
            }
            Guard::Region { .. } | Guard::Proposal { .. } => {}
            _ => return None,
        }
    }
    None
}

/// Returns the one read of a transaction that can be answered natively.
pub(crate) fn only_read(transaction: &Transaction) -> Option<&Read> {
    let ([], [], [read]) = (&transaction.guards[..], &transaction.writes[..], &transaction.reads[..]) else {
        return None;
    };
    let native = match read {
        Read::Range { range, .. } => (1..=READ_BYTES_MAX).contains(&range.len),
        Read::Extents { range, .. } => range.len > 0,
        Read::Stat | Read::Key { .. } | Read::VersionedKey { .. } | Read::Attribute { .. } | Read::Fences => {
            true
        }
        _ => false,
    };
    native.then_some(read)
}

/// A part of the byte stream that a range needs, with its place there, its length and its offset in the range, in
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) place: u64,
    pub(crate) len: usize,
    pub(crate) at: usize,
}

/// Returns the parts of the byte stream that hold the bytes of a range.
pub(crate) fn segments(entries: &[Placed], range: ByteRange, size: u64) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let end = range.end().min(size);
    for entry in entries.iter().filter(|entry| entry.kind == ExtentKind::Data) {
        let (start, stop) = (entry.start.max(range.offset), entry.end.min(end));
        if start >= stop {
            continue;
        }
        let place = u64::from(entry.place) + (start - entry.start);
        let (len, at) = ((stop - start) as usize, (start - range.offset) as usize);
        match segments.last_mut() {
            Some(last) if last.place + last.len as u64 == place && last.at + last.len == at => {
                last.len += len
            }
            _ => segments.push(Segment { place, len, at }),
        }
    }
    segments
}

/// Returns the answer to a read of a range, from all the entries that share a byte with it. Bytes without an entry have
/// the version `tombstone_version`. The data is added by the caller.
pub(crate) fn range_read(
    tombstone_version: u64,
    entries: &[Placed],
    range: ByteRange,
    size: u64,
) -> RangeRead {
    let mut extents = Vec::new();
    let mut push = |start: u64, end: u64, version: u64, kind| {
        if version > 0 && start < end {
            coalesce(&mut extents, Extent { range: ByteRange::from(start..end), version, kind });
        }
    };
    let (mut at, mut version) = (range.offset, tombstone_version);
    for entry in entries {
        let (start, end) = (entry.start.max(range.offset), entry.end.min(range.end()));
        push(at, start, tombstone_version, ExtentKind::Hole);
        push(start, end, entry.version, entry.kind);
        (at, version) = (end, version.max(entry.version));
    }
    push(at, range.end(), tombstone_version, ExtentKind::Hole);
    RangeRead { data: Bytes::new(), extents, version, size, next: None }
}

/// Returns the entries of a page of the index that share a byte with a range; `None` if the page ends before the range
/// does.
pub(crate) fn covering(
    pairs: &[(Bytes, Bytes)],
    more: bool,
    range: ByteRange,
    header: &Header,
    base: u64,
) -> Result<Option<Vec<Placed>>, StoreError> {
    let mut entries: Vec<Placed> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let mut entry = Placed::decode(key, value, header).ok_or_else(|| crate::reply::corrupt(key))?;
        entry.version = entry.version.max(base);
        if entry.start < entries.last().map_or(0, |last| last.end) {
            return Err(crate::reply::corrupt(key));
        }
        if entry.start >= range.end() {
            return Ok(Some(entries));
        }
        entries.push(entry);
    }
    let complete = !more || entries.last().is_some_and(|last| last.end >= range.end());
    Ok(complete.then_some(entries))
}

/// Returns the outcome of a transaction of one read.
pub(crate) fn done(header: &Header, answer: Answer) -> nacre_object::Outcome {
    nacre_object::Outcome::Done(nacre_object::Done {
        version: header.version,
        existed: header.exists,
        answers: vec![answer],
    })
}
