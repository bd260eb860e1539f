//! Reads that RADOS has operations for, run without an interpreter: of ranges, or of one key or attribute; and what has to be
//! found out before a write can be native ([`write`](crate::write)), or after one has failed.

use std::ffi::CStr;

use bytes::Bytes;
use nacre_object::limit::{EXTENTS_PER_READ_MAX, REFUSAL_BYTES_MAX, REPLY_BYTES_MAX};
use nacre_object::{
    Answer, ByteRange, Extent, ExtentKind, Fork, Found, Guard, RangeRead, ReadOp, Refusal, StoreError,
    Transaction, WriteOp, coalesce,
};

use crate::cache::ObjectCache;
use crate::record::{Header, Placed};

/// The attribute that holds an object's header.
pub(crate) const HEADER: &CStr = c"nacre";

/// The maximum number of bytes of a range that is read natively: the index is read before the bytes, or together with a
/// guess at them.
pub(crate) const READ_BYTES_MAX: u64 = 4 << 20;
/// The number of entries of the index that a native read asks for.
pub(crate) const ENTRIES_MAX: u64 = 8;

/// Returns the fork, offset and data of a transaction that does nothing but write one extent.
fn only_extent(transaction: &Transaction) -> Option<(&Fork, u64, &Bytes)> {
    let ([], [WriteOp::Extents { fork, extents }]) = (&transaction.reads[..], &transaction.writes[..]) else {
        return None;
    };
    let [(offset, data)] = &extents[..] else { return None };
    (!data.is_empty()).then_some((fork, *offset, data))
}

/// Returns the fork of a transaction that does nothing but write extents of it, with the range that they lie in, the number of
/// their bytes, and theirs.
fn only_extents(transaction: &Transaction) -> Option<(&Fork, ByteRange, usize, usize)> {
    let ([], [WriteOp::Extents { fork, extents }]) = (&transaction.reads[..], &transaction.writes[..]) else {
        return None;
    };
    let start = extents.iter().map(|(offset, _)| *offset).min()?;
    let end = extents.iter().map(|(offset, data)| offset + data.len() as u64).max()?;
    let bytes = extents.iter().map(|(_, data)| data.len()).sum();
    (start < end).then_some((fork, ByteRange::from(start..end), bytes, extents.len()))
}

/// Returns the fork of a transaction that does nothing but write so many extents of it that the index in their range is worth
/// being read for it, with that range, and the maximum number of entries for which it is.
pub(crate) fn large_write(transaction: &Transaction) -> Option<(&Fork, ByteRange, usize)> {
    let (fork, range, _, pieces) = only_extents(transaction)?;
    (pieces >= LARGE_PIECES_MIN).then_some((fork, range, ENTRIES_PER_PIECE_MAX * pieces))
}

/// The number of bytes from which on it is worth a read to find out whether a write can be native; the next constant is the
/// number of pieces.
const LOOK_BYTES_MIN: usize = 64 << 10;
const LOOK_PIECES_MIN: usize = 64;
/// The number of pieces from which on all of the index in their range is read; the next constant is the maximum number of entries
/// that are read for each.
const LARGE_PIECES_MIN: usize = 512;
const ENTRIES_PER_PIECE_MAX: usize = 8;

/// The fork of a write that would be native if only it were known that nothing stands where it goes, and the offsets of the
/// regions that have to be known for that.
pub(crate) struct Unknown<'a> {
    pub(crate) fork: &'a Fork,
    pub(crate) ranges: Vec<ByteRange>,
}

/// Returns what is to be found out before a transaction can be a native write, if that is worth a read.
pub(crate) fn unknown<'a>(transaction: &'a Transaction, known: &ObjectCache) -> Option<Unknown<'a>> {
    let (fork, range, bytes, pieces) = only_extents(transaction)?;
    let is_large = bytes >= LOOK_BYTES_MIN || pieces >= LOOK_PIECES_MIN;
    if !is_large || !known.is_settled() || known.is_missing() {
        return None;
    }
    let mut ranges = vec![range];
    for guard in &transaction.guards {
        match guard {
            Guard::Exists | Guard::Version { .. } | Guard::Fence { .. } => {}
            Guard::Region { fork: of, range, .. } | Guard::Proposal { fork: of, range, .. } if of == fork => {
                ranges.push(*range);
            }
            _ => return None,
        }
    }
    ranges.retain(|range| known.region_version(fork, *range).is_none());
    (1..=REGIONS_MAX).contains(&ranges.len()).then_some(Unknown { fork, ranges })
}

/// The maximum number of regions that are looked at for one write.
const REGIONS_MAX: usize = 4;

/// An answer still without data; where it has data, also its length in bytes and the parts of the byte stream.
pub(crate) type KnownRead = (RangeRead, Option<(usize, Vec<Segment>)>);

/// A transaction without writes of which everything but the bytes is known.
pub(crate) struct KnownReads {
    pub(crate) header: Header,
    pub(crate) answers: Vec<KnownRead>,
}

/// Returns the answers to reads of ranges under guards of regions, as far as they are known: all but the bytes.
pub(crate) fn known_reads(transaction: &Transaction, known: &ObjectCache) -> Option<KnownReads> {
    let header = *known.header().filter(|header| header.exists)?;
    for guard in &transaction.guards {
        let holds = match guard {
            Guard::Exists => true,
            Guard::Version { version } => header.version == *version,
            Guard::Region { fork, range, version } => known.region_version(fork, *range)? <= *version,
            _ => false,
        };
        // What stands there instead, others tell.
        if !holds {
            return None;
        }
    }
    let (mut answers, mut budget) = (Vec::with_capacity(transaction.reads.len()), REPLY_BYTES_MAX as u64);
    for read in &transaction.reads {
        let (fork, range, bytes) = match read {
            ReadOp::Range { fork, range, .. } => (fork, *range, true),
            ReadOp::Extents { fork, range } => (fork, *range, false),
            _ => return None,
        };
        let (entries, record) = (known.covering(fork, range)?, known.fork(fork)?);
        let base = if range.len > 0 { record.base } else { 0 };
        let size = record.size.unwrap_or(0);
        let found = range_read(header.tombstone_version.max(base), &entries, range, size);
        if found.extents.len() > EXTENTS_PER_READ_MAX {
            return None;
        }
        let data = match bytes {
            false => None,
            true => {
                let length = range.end().min(size).saturating_sub(range.offset);
                budget = budget.checked_sub(length)?;
                Some((length as usize, segments(&entries, range, size)))
            }
        };
        answers.push((found, data));
    }
    Some(KnownReads { header, answers })
}

/// Returns whether a transaction reads so much that reading the index for it pays off.
pub(crate) fn is_large_read(transaction: &Transaction) -> bool {
    const BYTES_MIN: u64 = 1 << 20;
    let large = |read: &ReadOp| matches!(read, ReadOp::Range { range, .. } if range.len >= BYTES_MIN);
    let simple =
        |guard: &Guard| matches!(guard, Guard::Exists | Guard::Version { .. } | Guard::Region { .. });
    let ranges = |read: &ReadOp| matches!(read, ReadOp::Range { .. } | ReadOp::Extents { .. });
    transaction.writes.is_empty()
        && transaction.guards.iter().all(simple)
        && transaction.reads.iter().all(ranges)
        && transaction.reads.iter().any(large)
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
        Guard::Region { fork, range, .. } | Guard::Proposal { fork, range, .. }
            if (1..=REFUSAL_BYTES_MAX as u64).contains(&range.len) =>
        {
            Some((fork, *range))
        }
        _ => None,
    })
}

/// Returns whether a guard of that region is known not to hold.
pub(crate) fn fails_by_region(transaction: &Transaction, known: &ObjectCache) -> bool {
    let Some((fork, range)) = guarded_region(transaction) else { return false };
    let Some(found) = known.region_version(fork, range) else { return false };
    transaction.guards.iter().any(|guard| match guard {
        Guard::Region { version, .. } => found > *version,
        Guard::Proposal { version, .. } => found >= *version,
        _ => false,
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
pub(crate) fn only_read(transaction: &Transaction) -> Option<&ReadOp> {
    let ([], [], [read]) = (&transaction.guards[..], &transaction.writes[..], &transaction.reads[..]) else {
        return None;
    };
    let native = match read {
        ReadOp::Range { range, .. } => (1..=READ_BYTES_MAX).contains(&range.len),
        ReadOp::Extents { range, .. } => range.len > 0,
        ReadOp::Stat
        | ReadOp::Key { .. }
        | ReadOp::VersionedKey { .. }
        | ReadOp::Attribute { .. }
        | ReadOp::Fences => true,
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
