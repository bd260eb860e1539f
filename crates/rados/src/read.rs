//! Native reads: the header and one key, or the header, a fork's size, a page of its index and its bytes, all in one
//! RADOS operation and so from one moment.

use std::ffi::{CStr, CString};

use bytes::Bytes;
use nacre_object::limit::OFFSET_MAX;
use nacre_object::{
    Answer, ByteRange, Done, ErrorKind, Fork, Key, ObjectId, Outcome, RangeRead, ReadOp, StoreError,
    Transaction, Versioned,
};
use parking_lot::Mutex;

use crate::cache::ObjectCache;
use crate::error::{Attempt, errno, failed, newer, of_object, pool_gone};
use crate::fences;
use crate::name::{behind, extent_key, extent_prefix, keyed};
use crate::native::{self, HEADER, Segment};
use crate::record::{ForkRecord, Header, NoHeader, Placed, decode_key, decode_value};
use crate::reply::{self, corrupt};
use crate::store::Inner;
use crate::sys::{self, Completed, Operation, Pool, ReadStep};
use crate::uri::Location;

/// All that is known of a range that one extent holds.
struct KnownRange {
    header: Header,
    extent: Placed,
    /// The size of the fork in bytes.
    size: u64,
    /// The part of the byte stream to be read, if any.
    segment: Option<Segment>,
}

impl Inner {
    /// Answers one read natively; returns `None` if that takes a call.
    pub(crate) async fn read_natively(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        read: &ReadOp,
    ) -> Result<Option<Outcome>, StoreError> {
        let key = match read {
            ReadOp::Range { fork, range, .. } | ReadOp::Extents { fork, range } => {
                let bytes = matches!(read, ReadOp::Range { .. });
                let found = self.read_range(object, name, known, fork, *range, bytes).await?;
                return Ok(found.map(|(found, header)| native::done(&header, Answer::Range(found))));
            }
            ReadOp::Key { key } | ReadOp::VersionedKey { key, .. } => Some(keyed(Some(b'k'), key.as_bytes())),
            ReadOp::Attribute { name } => Some(keyed(Some(b'a'), name.as_bytes())),
            ReadOp::Fences => Some(fences::KEY.to_vec()),
            ReadOp::Stat => None,
            _ => return Ok(None),
        };
        let mut steps = vec![ReadStep::Xattrs];
        steps.extend(key.as_deref().map(ReadStep::OmapKey));
        let completed = self.pool.read(name, &steps, 0).await;
        let (header, mut answers) = self.header(object, completed)?;
        let Some(key) = key else {
            return Ok(Some(native::done(&header, Answer::Stat(reply::stat(&header)))));
        };
        let pairs = answers.pop().map(|answer| answer.into_pairs().0).unwrap_or_default();
        let stored = pairs.first().map(|(_, stored)| stored);
        let unsound = || self.context(corrupt(&key), object);
        let answer = match read {
            ReadOp::Fences => Answer::Fences(fences::decode(&header, stored).ok_or_else(unsound)?),
            ReadOp::Key { key: asked } | ReadOp::VersionedKey { key: asked, .. } => {
                let found = stored.map(|stored| decode_key(stored, &header).ok_or_else(unsound));
                let found = found.transpose()?;
                known.lock().saw_key(&header, asked, found.as_ref());
                match read {
                    ReadOp::Key { .. } => Answer::Value(found.map(|found| found.value)),
                    _ => Answer::VersionedValue(found),
                }
            }
            _ => {
                let found = stored.map(|stored| decode_value(key[0], stored, &header).ok_or_else(unsound));
                Answer::Value(found.transpose()?)
            }
        };
        Ok(Some(native::done(&header, answer)))
    }

    /// Reads keys, and takes them in. Returns the header that they were found with, and the keys' values and versions.
    pub(crate) async fn learn_keys(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        keys: &[Key],
    ) -> Result<(Header, Vec<Option<Versioned>>), StoreError> {
        let names: Vec<Vec<u8>> = keys.iter().map(|key| keyed(Some(b'k'), key.as_bytes())).collect();
        let mut steps = vec![ReadStep::Xattrs];
        steps.extend(names.iter().map(|name| ReadStep::OmapKey(name)));
        self.hurry(name, known);
        let completed = self.pool.read(name, &steps, 0).await;
        let (header, answers) = self.header(object, completed)?;
        let mut found: Vec<Option<Versioned>> = Vec::with_capacity(keys.len());
        let pairs = answers.into_iter().skip(1).map(|answer| answer.into_pairs().0);
        for (name, pairs) in names.iter().zip(pairs.chain(std::iter::repeat_with(Vec::new))) {
            let stored = pairs.first().map(|(_, stored)| {
                decode_key(stored, &header).ok_or_else(|| self.context(corrupt(name), object))
            });
            found.push(stored.transpose()?);
        }
        let mut known = known.lock();
        known.saw_header(&header);
        for (key, found) in keys.iter().zip(&found) {
            known.saw_key(&header, key, found.as_ref());
        }
        drop(known);
        Ok((header, found))
    }

    /// Reads the sessions that an object has fenced, and takes them in if the object is as it was known to be.
    pub(crate) async fn learn_fences(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
    ) -> Result<(), StoreError> {
        let (before, generation) = {
            let known = known.lock();
            (known.header().copied(), known.generation)
        };
        self.hurry(name, known);
        let completed = self.pool.read(name, &[ReadStep::Xattrs, ReadStep::OmapKey(fences::KEY)], 0).await;
        let (header, mut answers) = self.header(object, completed)?;
        if before != Some(header) {
            return Ok(());
        }
        let pairs = answers.pop().map(|answer| answer.into_pairs().0).unwrap_or_default();
        let found = fences::decode(&header, pairs.first().map(|(_, stored)| stored));
        let found = found.ok_or_else(|| self.context(corrupt(fences::KEY), object))?;
        let mut known = known.lock();
        // What this client has written since, it wrote natively and on what it had known.
        if known.generation == generation {
            known.saw_fences(found);
        }
        Ok(())
    }

    /// Reads a range. The bytes are fetched with the index from the place where they were last, and once more if they
    /// turn out to be elsewhere. Returns `None` if it takes a call: the index is long, or bytes moved meanwhile.
    pub(crate) async fn read_range(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        fork: &Fork,
        range: ByteRange,
        bytes: bool,
    ) -> Result<Option<(RangeRead, Header)>, StoreError> {
        let (known_before, sent, stem) = {
            let known = known.lock();
            let stem = known.fork(fork).map(|record| record.stem.clone());
            let whole = known.whole(fork, range);
            // The lock is held until it is sent: so it comes behind the native writes that the known header is foretold by, and in
            // front of all others of this client.
            let sent = whole.filter(|_| known.steady).map(|(header, extent, size)| {
                let flights = known.lane.hurry(&self.pool, name);
                let segment = native::segments(&[extent], range, size).first().copied().filter(|_| bytes);
                let record = header.encode();
                let mut steps = vec![ReadStep::IfXattr(HEADER, &record)];
                steps.extend(segment.map(|of| ReadStep::Bytes { offset: of.place, len: of.len }));
                (flights, self.pool.read(name, &steps, 0), KnownRange { header, extent, size, segment })
            });
            (whole, sent, stem)
        };
        if let Some((flights, operation, of)) = sent {
            flights.look();
            let found = self.read_known(object, fork, range, bytes, of, operation).await?;
            if found.is_some() {
                return Ok(found);
            }
            known.lock().steady = false;
        }
        let guess = known_before.filter(|_| bytes);
        let guess =
            guess.and_then(|(_, extent, _)| native::segments(&[extent], range, u64::MAX).first().copied());
        let fork_key = keyed(Some(b'f'), fork.as_bytes());
        let mut stem = stem.unwrap_or_else(|| ForkRecord::none(&fork_key).stem);
        // The index is read where the fork's extents are known to have been last, or are at first; once more where
        // the fork's record, which comes along, says otherwise.
        let mut attempts = 3;
        let (header, record, page, more, mut answers) = loop {
            // Keys hold no zero byte: the conversions cannot fail.
            let prefix = CString::new(extent_prefix(&stem)).unwrap_or_default();
            let after = CString::new(extent_key(&stem, range.offset)).unwrap_or_default();
            let mut steps = vec![
                ReadStep::Xattrs,
                ReadStep::OmapKey(&fork_key),
                ReadStep::OmapAfter { after: &after, prefix: &prefix, limit: native::ENTRIES_MAX },
            ];
            steps.extend(guess.map(|guess| ReadStep::Bytes { offset: guess.place, len: guess.len }));
            let (flights, operation, expected, generation) = {
                let known = known.lock();
                let flights = known.lane.hurry(&self.pool, name);
                (flights, self.pool.read(name, &steps, 0), known.header().copied(), known.generation)
            };
            flights.look();
            let (header, answers) = self.header(object, operation.await)?;
            if expected == Some(header) {
                // By now, writes of this client may have made another one of it.
                let mut known = known.lock();
                known.steady |= known.generation == generation;
            }
            let mut answers = answers.into_iter().skip(1);
            let (records, _) = answers.next().map(|answer| answer.into_pairs()).unwrap_or_default();
            let record = match records.first() {
                None => ForkRecord::none(&fork_key),
                Some((key, value)) => {
                    ForkRecord::decode(key, value).ok_or_else(|| self.context(corrupt(key), object))?
                }
            };
            let (page, more) = answers.next().map(|answer| answer.into_pairs()).unwrap_or_default();
            if record.stem == stem {
                break (header, record, page, more, answers);
            }
            attempts -= 1;
            if attempts == 0 {
                return Ok(None);
            }
            stem = record.stem;
        };
        let size = record.size.unwrap_or(0);
        let entries = native::covering(&page, more, range, &header, record.base)
            .map_err(|error| self.context(error, object))?;
        let Some(entries) = entries else { return Ok(None) };
        // Where the index ends with the page, nothing stands behind its last extent.
        let end = if more || entries.len() < page.len() { range.end() } else { OFFSET_MAX };
        let seen = ByteRange::from(range.offset..end);
        known.lock().saw(&header, fork, &record, seen, &entries);
        let tombstone_version = header.tombstone_version.max(record.base);
        let mut found = native::range_read(tombstone_version, &entries, range, size);
        if !bytes {
            return Ok(Some((found, header)));
        }
        let length = range.end().min(size).saturating_sub(range.offset) as usize;
        let segments = native::segments(&entries, range, size);
        found.data = match (&segments[..], guess) {
            ([], _) => vec![0; length].into(),
            ([only], Some(guess)) if *only == guess && only.len == length => {
                answers.next().map(|answer| answer.into_bytes()).unwrap_or_default()
            }
            _ => match self.read_segments(object, name, &header, &segments, length).await? {
                Some(data) => data,
                None => return Ok(None),
            },
        };
        if found.data.len() != length {
            return Err(self.missing_bytes(object, fork, range));
        }
        Ok(Some((found, header)))
    }

    /// Answers a transaction that reads ranges of which everything but the bytes is known. Returns `None` if that is not
    /// so, or if the object is not as it was known to be.
    pub(crate) async fn read_known_ranges(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
    ) -> Result<Option<Outcome>, StoreError> {
        let (reads, flights, operation) = {
            // Held until the read is sent, as for one range.
            let known = known.lock();
            let Some(reads) = native::known_reads(transaction, &known) else { return Ok(None) };
            let flights = known.lane.hurry(&self.pool, name);
            let record = reads.header.encode();
            let mut steps = vec![ReadStep::IfXattr(HEADER, &record)];
            let segments =
                reads.answers.iter().filter_map(|(_, data)| data.as_ref()).flat_map(|(_, segments)| segments);
            steps.extend(segments.map(|of| ReadStep::Bytes { offset: of.place, len: of.len }));
            let operation = self.pool.read(name, &steps, 0);
            (reads, flights, operation)
        };
        flights.look();
        let completed = operation.await;
        if matches!(-completed.code, errno::ECANCELED | errno::ENOENT) {
            known.lock().steady = false;
            return Ok(None);
        }
        if completed.code < 0 {
            return Err(failed(completed.code, Attempt::Read, &self.location, object));
        }
        let mut parts = completed.answers.into_iter().skip(1).map(|answer| answer.into_bytes());
        let mut answers = Vec::with_capacity(reads.answers.len());
        for (mut found, data) in reads.answers {
            if let Some((length, segments)) = data {
                // Too short a part is told by those who read the index anew.
                let Some(data) = joined(&segments, &mut parts, length) else { return Ok(None) };
                found.data = data;
            }
            answers.push(Answer::Range(found));
        }
        let Header { version, exists, .. } = reads.header;
        Ok(Some(Outcome::Done(Done { version, existed: exists, answers })))
    }

    /// Finds out what a native write needs to know, and takes it in.
    pub(crate) async fn learn_extents(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        fork: &Fork,
        ranges: &[ByteRange],
    ) -> Result<(), StoreError> {
        let fork_key = keyed(Some(b'f'), fork.as_bytes());
        let stem = known.lock().fork(fork).map(|record| record.stem.clone());
        let stem = stem.unwrap_or_else(|| ForkRecord::none(&fork_key).stem);
        // Keys hold no zero byte: the conversions cannot fail.
        let prefix = CString::new(extent_prefix(&stem)).unwrap_or_default();
        let after: Vec<_> = ranges
            .iter()
            .map(|range| CString::new(extent_key(&stem, range.offset)).unwrap_or_default())
            .collect();
        let mut steps = vec![ReadStep::Xattrs, ReadStep::OmapKey(&fork_key)];
        let limit = native::ENTRIES_MAX;
        steps.extend(after.iter().map(|after| ReadStep::OmapAfter { after, prefix: &prefix, limit }));
        self.hurry(name, known);
        let completed = self.pool.read(name, &steps, 0).await;
        let (header, answers) = self.header(object, completed)?;
        let mut answers = answers.into_iter().skip(1).map(|answer| answer.into_pairs());
        let record = match answers.next().unwrap_or_default().0.first() {
            None => ForkRecord::none(&fork_key),
            Some((key, value)) => {
                ForkRecord::decode(key, value).ok_or_else(|| self.context(corrupt(key), object))?
            }
        };
        if !header.exists {
            known.lock().saw_header(&header);
            return Ok(());
        }
        if record.stem != stem {
            return Ok(());
        }
        for (range, (page, more)) in ranges.iter().zip(answers) {
            let entries = native::covering(&page, more, *range, &header, record.base)
                .map_err(|error| self.context(error, object))?;
            let Some(entries) = entries else { continue };
            let end = if more || entries.len() < page.len() { range.end() } else { OFFSET_MAX };
            let seen = ByteRange::from(range.offset..end);
            known.lock().saw(&header, fork, &record, seen, &entries);
        }
        Ok(())
    }

    /// Reads all extents that share a byte with a range, page by page, as they are in one state of the object. Returns knowledge
    /// of its own, which has room for them; `None` if the object is not there or was changed meanwhile, or if there are more than
    /// `most`.
    pub(crate) async fn learn_whole(
        &self,
        object: &ObjectId,
        name: &CStr,
        fork: &Fork,
        range: ByteRange,
        most: usize,
    ) -> Result<Option<ObjectCache>, StoreError> {
        const PAGE: u64 = 1024;
        let most = most.min(ObjectCache::ROOM);
        let fork_key = keyed(Some(b'f'), fork.as_bytes());
        let completed = self.pool.read(name, &[ReadStep::Xattrs, ReadStep::OmapKey(&fork_key)], 0).await;
        let (header, mut answers) = self.header(object, completed)?;
        if !header.exists {
            return Ok(None);
        }
        let pairs = answers.pop().map(|answer| answer.into_pairs().0).unwrap_or_default();
        let record = match pairs.first() {
            None => ForkRecord::none(&fork_key),
            Some((key, value)) => {
                ForkRecord::decode(key, value).ok_or_else(|| self.context(corrupt(key), object))?
            }
        };
        let compared = header.encode();
        // Keys hold no zero byte: the conversions cannot fail.
        let prefix = CString::new(extent_prefix(&record.stem)).unwrap_or_default();
        let mut after = CString::new(extent_key(&record.stem, range.offset)).unwrap_or_default();
        let mut extents: Vec<Placed> = Vec::new();
        loop {
            let page = ReadStep::OmapAfter { after: &after, prefix: &prefix, limit: PAGE };
            let completed = self.pool.read(name, &[ReadStep::IfXattr(HEADER, &compared), page], 0).await;
            if matches!(-completed.code, errno::ECANCELED | errno::ENOENT) {
                return Ok(None);
            }
            if completed.code < 0 {
                return Err(failed(completed.code, Attempt::Read, &self.location, object));
            }
            let page = completed.answers.into_iter().nth(1).map(|answer| answer.into_pairs());
            let (pairs, more) = page.unwrap_or_default();
            for (key, value) in &pairs {
                let mut extent = Placed::decode(key, value, &header)
                    .filter(|extent| extent.start >= extents.last().map_or(0, |last| last.end))
                    .ok_or_else(|| self.context(corrupt(key), object))?;
                extent.version = extent.version.max(record.base);
                extents.push(extent);
            }
            let is_over = !more || extents.last().is_none_or(|last| last.end >= range.end());
            if is_over || pairs.is_empty() {
                break;
            }
            if extents.len() > most {
                return Ok(None);
            }
            after = pairs.last().map(|(key, _)| behind(key)).unwrap_or_default();
        }
        extents.retain(|extent| extent.start < range.end());
        if extents.len() > ObjectCache::ROOM {
            return Ok(None);
        }
        let mut whole = ObjectCache::roomy();
        whole.saw(&header, fork, &record, range, &extents);
        Ok(Some(whole))
    }

    /// Answers a read of a range of which everything but the bytes is known, by the operation that compares the header and reads
    /// them. Returns `None` if the object is not as it was known to be.
    async fn read_known(
        &self,
        object: &ObjectId,
        fork: &Fork,
        range: ByteRange,
        bytes: bool,
        of: KnownRange,
        operation: Operation,
    ) -> Result<Option<(RangeRead, Header)>, StoreError> {
        let KnownRange { header, extent, size, segment } = of;
        let mut completed = operation.await;
        if matches!(-completed.code, errno::ECANCELED | errno::ENOENT) {
            return Ok(None);
        }
        if completed.code < 0 {
            return Err(failed(completed.code, Attempt::Read, &self.location, object));
        }
        // One extent holds the whole range, so nothing of it is as old as the tombstone.
        let mut found = native::range_read(header.tombstone_version, &[extent], range, size);
        if bytes {
            let length = range.end().min(size).saturating_sub(range.offset) as usize;
            found.data = match segment {
                Some(_) => completed.answers.pop().map(|answer| answer.into_bytes()).unwrap_or_default(),
                None => vec![0; length].into(),
            };
            if found.data.len() != length {
                return Err(self.missing_bytes(object, fork, range));
            }
        }
        Ok(Some((found, header)))
    }

    pub(crate) fn missing_bytes(&self, object: &ObjectId, fork: &Fork, range: ByteRange) -> StoreError {
        let (at, len) = (range.offset, range.len);
        let text = format!("bytes of fork \"{fork}\" at {at}+{len} are missing from the byte stream");
        self.context(StoreError::new(ErrorKind::Corrupt, text), object)
    }

    /// Reads parts of the byte stream; returns `None` if the object changed since its header was read.
    pub(crate) async fn read_segments(
        &self,
        object: &ObjectId,
        name: &CStr,
        header: &Header,
        segments: &[Segment],
        length: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        let record = header.encode();
        let mut steps = vec![ReadStep::IfXattr(HEADER, &record)];
        steps.extend(
            segments.iter().map(|segment| ReadStep::Bytes { offset: segment.place, len: segment.len }),
        );
        let completed = self.pool.read(name, &steps, 0).await;
        if matches!(-completed.code, errno::ECANCELED | errno::ENOENT) {
            return Ok(None);
        }
        if completed.code < 0 {
            return Err(failed(completed.code, Attempt::Read, &self.location, object));
        }
        let mut parts = completed.answers.into_iter().skip(1).map(|answer| answer.into_bytes());
        // Too short an answer tells the caller.
        Ok(Some(joined(segments, &mut parts, length).unwrap_or_default()))
    }

    /// Returns the header from an operation whose first step was to read the attributes, with the answers of the other
    /// steps. An object of which there is no trace shows the floor as far as this client knows it; [`Inner::apply`] sees to it
    /// that this was the floor all the time.
    pub(crate) fn header(
        &self,
        object: &ObjectId,
        completed: Completed,
    ) -> Result<(Header, Vec<sys::Answer>), StoreError> {
        header_of(&self.pool, &self.location, object, completed, self.marker.floor(object).shown)
    }

    /// Checks that the pool still exists, after RADOS said that an object does not. Fails if the pool is gone.
    pub(crate) fn pool_is_there(&self, object: &ObjectId) -> Result<(), StoreError> {
        pool_is_there(&self.pool, &self.location, object)
    }
}

/// Returns the header of an object as [`Inner::header`] does; one of which there is no trace shows `floor`.
pub(crate) fn header_of(
    pool: &Pool,
    location: &Location,
    object: &ObjectId,
    completed: Completed,
    floor: u64,
) -> Result<(Header, Vec<sys::Answer>), StoreError> {
    if completed.code == -errno::ENOENT {
        pool_is_there(pool, location, object)?;
        return Ok((Header::absent(floor), Vec::new()));
    }
    if completed.code < 0 {
        return Err(failed(completed.code, Attempt::Read, location, object));
    }
    let mut answers = completed.answers;
    let attributes = match answers.first_mut() {
        Some(first) => std::mem::replace(first, sys::Answer::Nothing).into_pairs().0,
        None => Vec::new(),
    };
    let Some((_, record)) = attributes.iter().find(|(name, _)| name == HEADER.to_bytes()) else {
        // An object that somebody else made under a name of ours, without a header: there is nothing of ours.
        return Ok((Header::absent(floor), Vec::new()));
    };
    let error = match Header::decode(record) {
        Ok(header) => return Ok((header, answers)),
        Err(NoHeader::Newer(format)) => newer(format),
        Err(NoHeader::Damaged) => {
            StoreError::new(ErrorKind::Corrupt, "its attribute \"nacre\" holds no header of Nacre")
        }
    };
    Err(of_object(error, location, object))
}

/// Checks that a pool still exists as [`Inner::pool_is_there`] does.
pub(crate) fn pool_is_there(pool: &Pool, location: &Location, object: &ObjectId) -> Result<(), StoreError> {
    if pool.exists() { Ok(()) } else { Err(of_object(pool_gone(), location, object)) }
}

/// Joins parts of the byte stream to the bytes of a range. Returns `None` if one is shorter than it should be.
fn joined(segments: &[Segment], parts: &mut impl Iterator<Item = Bytes>, length: usize) -> Option<Bytes> {
    if let [only] = segments
        && only.len == length
    {
        return parts.next().filter(|part| part.len() == length);
    }
    let mut data = vec![0; length];
    for segment in segments {
        let part = parts.next().filter(|part| part.len() == segment.len)?;
        data[segment.at..segment.at + segment.len].copy_from_slice(&part);
    }
    Some(data.into())
}
