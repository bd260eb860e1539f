//! Transactions without writes, answered by RADOS' own reads alone: for users who may read and not call the class, for
//! clusters without it, and for answers that are too long for one call.
//!
//! The object's header is read first. Every operation that follows compares it, so that all of them show the object in
//! the one state that the header stands for; if it changed meanwhile, everything starts again.

use std::ffi::{CStr, CString};

use bytes::Bytes;
use nacre_object::limit::{
    EXTENTS_PER_READ_MAX, OFFSET_MAX, PAGE_ENTRIES_MAX, REFUSAL_BYTES_MAX, REPLY_BYTES_MAX,
};
use nacre_object::{
    Answer, ByteRange, Check, Done, ErrorKind, Fences, Fork, ForkPage, Found, Guard, Key, KeyPage, KeyRange,
    ObjectId, Outcome, RangeRead, ReadOp, Refusal, StoreError, Transaction, Versioned, VersionedKeyPage,
};

use crate::error::{Attempt, errno, failed};
use crate::fences;
use crate::name::{extent_key, extent_prefix, keyed, unescaped};
use crate::native::{self, HEADER};
use crate::record::{ForkRecord, Header, Placed, decode_key, decode_value};
use crate::reply::{self, Page, corrupt, value_of, versioned_of};
use crate::store::Inner;
use crate::sys::{self, ReadStep};

/// The maximum number of times that a transaction is started because the object was written to meanwhile.
const ATTEMPTS_MAX: u32 = 50;
/// The number of entries of the omap that one operation asks for.
const PAGE: u64 = 512;

/// The reason why the reading of a state ended early.
pub(crate) enum Stop {
    /// The object is in another state by now.
    Changed,
    Failed(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl Inner {
    /// Answers a transaction without writes, from one state of the object.
    pub(crate) async fn read_piecewise(
        &self,
        object: &ObjectId,
        name: &CStr,
        transaction: &Transaction,
    ) -> Result<Outcome, StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(outcome) = self.read_one_state(object, name, transaction).await? {
                return Ok(outcome);
            }
        }
        let text =
            "it is written all the time, and reading it takes several operations; try again when it is quiet";
        Err(self.context(StoreError::new(ErrorKind::Busy, text), object))
    }
}

impl Inner {
    /// Answers a transaction without writes from the state that the object is in now. Returns `None` if it changed
    /// meanwhile.
    pub(crate) async fn read_one_state(
        &self,
        object: &ObjectId,
        name: &CStr,
        transaction: &Transaction,
    ) -> Result<Option<Outcome>, StoreError> {
        let completed = self.pool.read(name, &[ReadStep::Xattrs], 0).await;
        let (header, _) = self.header(object, completed)?;
        match (Snapshot { inner: self, object, name, header }).outcome(transaction).await {
            Ok(outcome) => Ok(Some(outcome)),
            Err(Stop::Changed) => Ok(None),
            Err(Stop::Failed(error)) => Err(error),
        }
    }
}

/// One state of an object.
pub(crate) struct Snapshot<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) object: &'a ObjectId,
    pub(crate) name: &'a CStr,
    pub(crate) header: Header,
}

impl Snapshot<'_> {
    async fn outcome(&self, transaction: &Transaction) -> Result<Outcome, Stop> {
        for (index, guard) in transaction.guards.iter().enumerate() {
            if let Some(found) = self.violation(guard).await? {
                let version = self.header.version;
                return Ok(Outcome::Refused(Refusal { guard: index, found, version }));
            }
        }
        let (mut answers, mut budget) = (Vec::with_capacity(transaction.reads.len()), REPLY_BYTES_MAX);
        for (index, read) in transaction.reads.iter().enumerate() {
            answers.push(self.answer(read, index == 0, &mut budget).await?);
        }
        let Header { version, exists, .. } = self.header;
        Ok(Outcome::Done(Done { version, existed: exists, answers }))
    }

    /// Returns what a guard found instead of what it demands; `None` if it holds.
    async fn violation(&self, guard: &Guard) -> Result<Option<Found>, Stop> {
        let exists = self.header.exists;
        Ok(match guard {
            Guard::Exists => (!exists).then_some(Found::Object { exists }),
            Guard::Absent => exists.then_some(Found::Object { exists }),
            Guard::Version { version } => {
                (self.header.version != *version).then_some(Found::Object { exists })
            }
            Guard::KeyVersion { key, version } => {
                let found = self.versioned(key).await?.map_or(0, |found| found.version);
                (found != *version).then_some(Found::KeyVersion(found))
            }
            Guard::Size { fork, size } => {
                let found = self.fork(fork).await?.size.unwrap_or(0);
                (found != *size).then_some(Found::Size(found))
            }
            Guard::Fence { token } => {
                self.fences().await?.is_fenced(*token).then_some(Found::Fence(self.header.fence))
            }
            Guard::Key { key, check } => self.unless_passed(b'k', key, check).await?,
            Guard::Attribute { name, check } => self.unless_passed(b'a', name, check).await?,
            // Nothing in the object is newer than the object.
            Guard::Region { version, .. } if self.header.version <= *version => None,
            Guard::Region { fork, range, version } | Guard::Proposal { fork, range, version } => {
                let found = self.range(fork, *range, Some(REFUSAL_BYTES_MAX)).await?;
                let over = match guard {
                    Guard::Region { .. } => found.version > *version,
                    _ => found.version >= *version,
                };
                over.then_some(Found::Region(found))
            }
        })
    }

    async fn unless_passed(&self, letter: u8, name: &Key, check: &Check) -> Result<Option<Found>, Stop> {
        let value = self.value(letter, name).await?;
        Ok((!check.holds(value.as_deref())).then_some(Found::Value(value)))
    }

    async fn answer(&self, read: &ReadOp, first: bool, budget: &mut usize) -> Result<Answer, Stop> {
        Ok(match read {
            ReadOp::Range { fork, range, .. } => {
                let found = self.range(fork, *range, Some(*budget)).await?;
                *budget -= found.data.len();
                Answer::Range(found)
            }
            ReadOp::Extents { fork, range } => Answer::Range(self.range(fork, *range, None).await?),
            ReadOp::Stat => Answer::Stat(reply::stat(&self.header)),
            ReadOp::Forks { after, limit } => Answer::Forks(self.forks(after.as_ref(), *limit).await?),
            ReadOp::Key { key: name } | ReadOp::Attribute { name } => {
                let letter = if matches!(read, ReadOp::Key { .. }) { b'k' } else { b'a' };
                let value = self.value(letter, name).await?;
                *budget = budget.saturating_sub(value.as_ref().map_or(0, Bytes::len));
                Answer::Value(value)
            }
            ReadOp::Keys { range, limit, values } => {
                let decode = |stored: &Bytes| value_of(b'k', *values, stored, &self.header);
                let (entries, more) =
                    self.keys(b'k', range, *limit, decode, Bytes::len, first, budget).await?;
                Answer::Keys(KeyPage { entries, more })
            }
            ReadOp::Attributes => {
                let (all, decode) =
                    (KeyRange::all(), |stored: &Bytes| value_of(b'a', true, stored, &self.header));
                let (entries, more) =
                    self.keys(b'a', &all, u32::MAX, decode, Bytes::len, first, budget).await?;
                Answer::Keys(KeyPage { entries, more })
            }
            ReadOp::VersionedKey { key, .. } => {
                let found = self.versioned(key).await?;
                *budget = budget.saturating_sub(found.as_ref().map_or(0, |found| found.value.len()));
                Answer::VersionedValue(found)
            }
            ReadOp::VersionedKeys { range, limit, values } => {
                let decode = |stored: &Bytes| versioned_of(*values, stored, &self.header);
                let bytes = |found: &Versioned| found.value.len();
                let (entries, more) = self.keys(b'k', range, *limit, decode, bytes, first, budget).await?;
                Answer::VersionedKeys(VersionedKeyPage { entries, more })
            }
            ReadOp::Fences => Answer::Fences(self.fences().await?),
        })
    }

    /// Runs steps of a read on the object in this state; returns their answers, without that of the comparison.
    pub(crate) async fn read(&self, steps: Vec<ReadStep<'_>>) -> Result<Vec<sys::Answer>, Stop> {
        if self.header.is_absent() {
            // There was no object: there was nothing in it.
            return Ok(Vec::new());
        }
        let record = self.header.encode();
        let all = std::iter::once(ReadStep::IfXattr(HEADER, &record)).chain(steps).collect::<Vec<_>>();
        let mut completed = self.inner.pool.read(self.name, &all, 0).await;
        match -completed.code {
            code if code <= 0 => Ok(completed.answers.split_off(1)),
            errno::ENOENT => {
                self.inner.pool_is_there(self.object)?;
                Err(Stop::Changed)
            }
            errno::ECANCELED => Err(Stop::Changed),
            code => Err(failed(-code, Attempt::Read, &self.inner.location, self.object).into()),
        }
    }

    /// Returns the entry of a key of the omap.
    async fn entry(&self, key: &[u8]) -> Result<Option<Bytes>, Stop> {
        let answers = self.read(vec![ReadStep::OmapKey(key)]).await?;
        let pairs = answers.into_iter().next().map(|answer| answer.into_pairs().0).unwrap_or_default();
        Ok(pairs.into_iter().next().map(|(_, value)| value))
    }

    /// Checks every entry of the omap, and the length of the byte stream. Returns the bytes that were checked.
    pub(crate) async fn check_all(&self) -> Result<u64, Stop> {
        let (mut after, mut bytes) = (Vec::new(), 0);
        loop {
            let (page, more) = self.page(&after, b"").await?;
            for (key, value) in &page {
                bytes += (key.len() + value.len()) as u64;
                let sound = match key.first() {
                    Some(b'x') => Placed::decode(key, value, &self.header).is_some(),
                    Some(b'f') => ForkRecord::decode(key, value).is_some(),
                    Some(letter @ (b'k' | b'a')) => {
                        key.get(1..).and_then(unescaped).is_some()
                            && decode_value(*letter, value, &self.header).is_some()
                    }
                    Some(b'g') => true,
                    Some(b's') => key == fences::KEY && fences::decode(&self.header, Some(value)).is_some(),
                    _ => false,
                };
                if !sound {
                    return Err(self.corrupt(key));
                }
            }
            match page.last() {
                Some((key, _)) if more => after = key.to_vec(),
                _ => break,
            }
        }
        // That there is an entry of sessions where the header counts some.
        self.fences().await?;
        if !self.inner.has_bytes_up_to(self, self.header.tail).await? {
            let text = format!("its byte stream is shorter than {} bytes", self.header.tail);
            let error = StoreError::new(ErrorKind::Corrupt, text);
            return Err(self.inner.context(error, self.object).into());
        }
        Ok(bytes)
    }

    /// Returns the entries of the omap after a key that begin with a prefix, and whether there are more.
    async fn page(&self, after: &[u8], prefix: &[u8]) -> Result<(Vec<(Bytes, Bytes)>, bool), Stop> {
        // Keys hold no zero byte: the conversions cannot fail.
        let after = CString::new(after).unwrap_or_default();
        let prefix = CString::new(prefix).unwrap_or_default();
        let step = ReadStep::OmapAfter { after: &after, prefix: &prefix, limit: PAGE };
        let answers = self.read(vec![step]).await?;
        Ok(answers.into_iter().next().map(|answer| answer.into_pairs()).unwrap_or_default())
    }

    /// Returns the error for an entry that is not one of Nacre's.
    fn corrupt(&self, key: &[u8]) -> Stop {
        Stop::Failed(self.inner.context(corrupt(key), self.object))
    }

    async fn value(&self, letter: u8, name: &Key) -> Result<Option<Bytes>, Stop> {
        let key = keyed(Some(letter), name.as_bytes());
        match self.entry(&key).await? {
            None => Ok(None),
            Some(stored) => {
                decode_value(letter, &stored, &self.header).map(Some).ok_or_else(|| self.corrupt(&key))
            }
        }
    }

    /// Returns the value of a key, and its version.
    async fn versioned(&self, name: &Key) -> Result<Option<Versioned>, Stop> {
        let key = keyed(Some(b'k'), name.as_bytes());
        match self.entry(&key).await? {
            None => Ok(None),
            Some(stored) => decode_key(&stored, &self.header).map(Some).ok_or_else(|| self.corrupt(&key)),
        }
    }

    async fn fences(&self) -> Result<Fences, Stop> {
        let record = if self.header.sessions > 0 { self.entry(fences::KEY).await? } else { None };
        fences::decode(&self.header, record.as_ref()).ok_or_else(|| self.corrupt(fences::KEY))
    }

    async fn fork(&self, fork: &Fork) -> Result<ForkRecord, Stop> {
        let key = keyed(Some(b'f'), fork.as_bytes());
        match self.entry(&key).await? {
            None => Ok(ForkRecord::none(&key)),
            Some(value) => ForkRecord::decode(&key, &value).ok_or_else(|| self.corrupt(&key)),
        }
    }

    /// Reads a range: its bytes up to a budget, or its extents alone.
    async fn range(&self, fork: &Fork, range: ByteRange, budget: Option<usize>) -> Result<RangeRead, Stop> {
        let record = self.fork(fork).await?;
        let size = record.size.unwrap_or(0);
        // A range of no bytes has none of the fork's.
        let tombstone_version = if range.len > 0 {
            self.header.tombstone_version.max(record.base)
        } else {
            self.header.tombstone_version
        };
        let entries = self.extents(&record, range).await?;
        self.inner.known(self.object).lock().saw(&self.header, fork, &record, range, &entries);
        let mut found = native::range_read(tombstone_version, &entries, range, size);
        let mut end = range.end();
        if let Some(first_left_out) = found.extents.get(EXTENTS_PER_READ_MAX) {
            end = first_left_out.range.offset;
        }
        if let Some(budget) = budget {
            let wanted = end.min(size).saturating_sub(range.offset);
            if wanted > budget as u64 {
                end = range.offset + budget as u64;
            }
        }
        found.next = (end < range.end()).then_some(end);
        found.extents.retain(|extent| extent.range.offset < end);
        if let Some(last) = found.extents.last_mut() {
            last.range = ByteRange::from(last.range.offset..last.range.end().min(end));
        }
        if budget.is_some() {
            let part = ByteRange::from(range.offset..end);
            let length = end.min(size).saturating_sub(range.offset) as usize;
            let segments = native::segments(&entries, part, size);
            found.data = match &segments[..] {
                [] => vec![0; length].into(),
                _ => {
                    let (inner, object, name) = (self.inner, self.object, self.name);
                    let data = inner.read_segments(object, name, &self.header, &segments, length).await?;
                    data.ok_or(Stop::Changed)?
                }
            };
            if found.data.len() != length {
                return Err(self.inner.missing_bytes(self.object, fork, part).into());
            }
        }
        Ok(found)
    }

    /// Returns the stored extents that share a byte with a range.
    async fn extents(&self, record: &ForkRecord, range: ByteRange) -> Result<Vec<Placed>, Stop> {
        let (mut entries, mut end) = (Vec::new(), 0);
        if range.len == 0 {
            return Ok(entries);
        }
        let prefix = extent_prefix(&record.stem);
        let mut after = extent_key(&record.stem, range.offset);
        loop {
            let (page, more) = self.page(&after, &prefix).await?;
            for (key, value) in &page {
                let mut entry = Placed::decode(key, value, &self.header).filter(|entry| entry.start >= end);
                let entry = entry.as_mut().ok_or_else(|| self.corrupt(key))?;
                if entry.start >= range.end() {
                    return Ok(entries);
                }
                end = entry.end.min(OFFSET_MAX);
                entry.version = entry.version.max(record.base);
                entries.push(*entry);
            }
            match page.last() {
                Some((key, _)) if more => after = key.to_vec(),
                _ => return Ok(entries),
            }
        }
    }

    async fn forks(&self, after: Option<&Fork>, limit: u32) -> Result<ForkPage, Stop> {
        let limit = (limit as usize).min(PAGE_ENTRIES_MAX);
        // A key that is just before the first fork's: "e" and the greatest byte.
        let mut after = after.map_or(vec![b'e', 0xff], |fork| keyed(Some(b'f'), fork.as_bytes()));
        let mut found = ForkPage { entries: Vec::new(), more: false };
        loop {
            let (page, more) = self.page(&after, b"f").await?;
            for (key, value) in &page {
                let record = ForkRecord::decode(key, value).ok_or_else(|| self.corrupt(key))?;
                let Some(size) = record.size else { continue };
                if found.entries.len() == limit {
                    found.more = true;
                    return Ok(found);
                }
                let name = key.get(1..).and_then(unescaped).and_then(|name| Fork::new(name).ok());
                found.entries.push((name.ok_or_else(|| self.corrupt(key))?, size));
            }
            match page.last() {
                Some((key, _)) if more => after = key.to_vec(),
                _ => return Ok(found),
            }
        }
    }

    /// Returns a page of keys or attributes, each with what `decode` makes of its entry, and whether there are more.
    /// `value_bytes` tells the length of a value that was made, in bytes.
    #[allow(clippy::too_many_arguments, reason = "they are the parts of one read")]
    async fn keys<T>(
        &self,
        letter: u8,
        range: &KeyRange,
        limit: u32,
        decode: impl Fn(&Bytes) -> Option<T>,
        value_bytes: impl Fn(&T) -> usize,
        first: bool,
        budget: &mut usize,
    ) -> Result<Page<T>, Stop> {
        let limit = (limit as usize).min(PAGE_ENTRIES_MAX);
        let prefix = keyed(Some(letter), &range.prefix);
        // Names of keys have at least one byte, so that nothing equals the letter alone.
        let mut after = keyed(Some(letter), range.after.as_deref().unwrap_or_default());
        let before = range.before.as_ref().map(|before| keyed(Some(letter), before));
        let mut entries = Vec::new();
        loop {
            let (page, more) = self.page(&after, &prefix).await?;
            for (key, stored) in &page {
                if before.as_ref().is_some_and(|before| key[..] >= before[..]) {
                    return Ok((entries, false));
                }
                let name = key.get(1..).and_then(unescaped).and_then(|name| Key::new(name).ok());
                let (name, value) = name.zip(decode(stored)).ok_or_else(|| self.corrupt(key))?;
                let bytes = name.as_bytes().len() + value_bytes(&value);
                if entries.len() == limit || bytes > *budget && !(first && entries.is_empty()) {
                    return Ok((entries, true));
                }
                *budget = budget.saturating_sub(bytes);
                entries.push((name, value));
            }
            match page.last() {
                Some((key, _)) if more => after = key.to_vec(),
                _ => return Ok((entries, false)),
            }
        }
    }
}
