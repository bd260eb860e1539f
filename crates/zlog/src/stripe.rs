//! The storage interface: what is asked of one object of a log (Sevilla et al., *Malacology*, section 5.2.2).
//!
//! Every request is one transaction, guarded by the epoch that the object was sealed with last: one that is tagged with another
//! epoch is refused. Entries are written once: the guard of a write is that nothing was ever written at its places, which holds no
//! more once they were filled or trimmed. `classes/zlog.lua` keeps to the same format and the same rules.
//!
//! Writes at different places never refuse each other, in whatever order they come. Their guards are about their own places and the
//! epoch, which none of them changes, and they change nothing else: no counter, and no record of the greatest place, which is the
//! size of the index. A seal replaces the epoch and reads that size in one transaction. Whatever was acknowledged before is within
//! the size; whatever comes later is refused by its epoch. So nothing that was acknowledged is missing in the tail that a recovery
//! finds, and nothing of an earlier epoch is written behind it.

use std::ops::Range;

use bytes::Bytes;
use nacre_object::{
    Answer, ByteRange, Check, ErrorKind, Extent, ExtentKind, Fork, Found, Guard, Key, ObjectId, ObjectStore,
    Outcome, RangeRead, ReadOp, Refusal, StoreError, Transaction, WriteOp,
};

use crate::entry::{INDEX_BYTES, Index, Packed};
use crate::limit::{BATCH_ENTRIES_MAX, SLOT_BYTES};

/// A request that was not carried out, or of which it is not known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StripeError {
    /// The object has another epoch; `None`: it does not exist.
    Epoch(Option<u64>),
    /// The store failed.
    Store(StoreError),
}

impl From<StoreError> for StripeError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// An object of a log, at the epoch at which the caller believes it to be.
#[derive(Clone, Copy)]
pub(crate) struct Stripe<'a> {
    pub store: &'a dyn ObjectStore,
    pub object: &'a ObjectId,
    pub epoch: u64,
    /// True if a later epoch of the object is as good. An object of a view that is closed gets no new positions, whatever its epoch,
    /// and a recovery that came too late may have sealed it once more.
    pub closed: bool,
}

/// The index entries of a range of places.
#[derive(Debug)]
pub(crate) struct Indices {
    /// The entry of each place, as far as the answer goes.
    pub entries: Vec<Index>,
    /// The bytes of the range of entries that was asked for too.
    pub data: Option<RangeRead>,
    /// One more than the greatest place of the object that was ever written, filled or trimmed.
    pub end: u64,
}

/// The attribute with the epoch, a number of 64 bits with the greatest byte first, so that epochs are compared as bytes.
fn epoch_attribute() -> Key {
    Key::new("epoch").expect("the name is short and not empty")
}

/// The fork with the index.
pub(crate) fn index_fork() -> Fork {
    Fork::new("index").expect("the name is short")
}

/// The fork with the entries.
pub(crate) fn data_fork() -> Fork {
    Fork::new("data").expect("the name is short")
}

fn encode_epoch(epoch: u64) -> Bytes {
    Bytes::copy_from_slice(&epoch.to_be_bytes())
}

fn decode_epoch(value: Option<&Bytes>) -> Option<u64> {
    value.and_then(|value| <[u8; 8]>::try_from(&value[..]).ok()).map(u64::from_be_bytes)
}

/// Returns the range of the index of these places.
fn index_range(place: u64, count: u64) -> ByteRange {
    ByteRange::new(place * INDEX_BYTES, count * INDEX_BYTES)
}

fn nonsense(object: &ObjectId) -> StripeError {
    let text = format!("the answer of the store about object \"{object}\" does not fit the question");
    StripeError::Store(StoreError::new(ErrorKind::Corrupt, text))
}

impl Stripe<'_> {
    /// Makes the object, at its epoch. It must not be there.
    pub async fn create(self) -> Result<(), StripeError> {
        let (name, value) = (epoch_attribute(), encode_epoch(self.epoch));
        let transaction =
            Transaction::new().guard(Guard::Absent).change(WriteOp::SetAttribute { name, value });
        match self.store.apply(self.object, transaction).await? {
            Outcome::Done(_) => Ok(()),
            // The names of new objects are chosen at random: this one is ours, and the reply to an earlier attempt was lost.
            Outcome::Refused(_) => Ok(()),
        }
    }

    /// Writes entries at consecutive places, all or none. Returns false, and the index as it is, if not all of them are free.
    pub async fn write(self, place: u64, count: u64, packed: &Packed) -> Result<Written, StripeError> {
        let range = index_range(place, count);
        let index =
            WriteOp::Extents { fork: index_fork(), extents: vec![(range.offset, packed.index.clone())] };
        let data = WriteOp::Extents { fork: data_fork(), extents: packed.packets.clone() };
        let transaction = self.transaction().if_version(index_fork(), range, 0).change(index).change(data);
        match self.apply(transaction).await? {
            Ok(_) => Ok(Written::Done),
            Err(_) => Ok(Written::Occupied),
        }
    }

    /// Reads the index of consecutive places, and as much of the bytes at the first of them as is asked for.
    pub async fn read(self, place: u64, count: u64, data_bytes: u64) -> Result<Indices, StripeError> {
        self.read_around(&(place..place + count), place, data_bytes).await
    }

    /// Reads the index of places, and as much of the bytes at one of them as is asked for.
    pub async fn read_around(
        self,
        places: &Range<u64>,
        place: u64,
        data_bytes: u64,
    ) -> Result<Indices, StripeError> {
        let (first, count) = (places.start, places.end - places.start);
        let range = index_range(first, count);
        let mut transaction = self.transaction().read_range(index_fork(), range);
        if data_bytes > 0 {
            transaction = transaction.read_range(data_fork(), ByteRange::new(place * SLOT_BYTES, data_bytes));
        }
        let answers = self.done(transaction).await?;
        let mut answers = answers.into_iter();
        let Some(Answer::Range(index)) = answers.next() else { return Err(nonsense(self.object)) };
        let data = match answers.next() {
            Some(Answer::Range(data)) => Some(data),
            None => None,
            Some(_) => return Err(nonsense(self.object)),
        };
        let mut entries = self.indices(first, count, &index)?;
        if let Some(next) = index.next {
            // Without one entry at least the caller would not get on.
            let whole = next.checked_sub(range.offset).map(|bytes| bytes / INDEX_BYTES);
            let whole = whole.filter(|whole| *whole > 0).ok_or_else(|| nonsense(self.object))?;
            entries.truncate(whole as usize);
        }
        Ok(Indices { entries, data, end: index.size / INDEX_BYTES })
    }

    /// Returns the index entries of an answer. Places that read as zeros were never written, unless there is a hole: these were
    /// trimmed with all before them.
    fn indices(self, place: u64, count: u64, index: &RangeRead) -> Result<Vec<Index>, StripeError> {
        let mut entries = Vec::with_capacity(count as usize);
        let mut holes = index.extents.iter().filter(|extent| extent.kind == ExtentKind::Hole).peekable();
        for at in 0..count {
            let bytes = at * INDEX_BYTES;
            let offset = place * INDEX_BYTES + bytes;
            while holes.next_if(|hole| hole.range.end() <= offset).is_some() {}
            let is_hole = holes.peek().is_some_and(|hole| hole.range.offset <= offset);
            let entry = match index.data.get(bytes as usize..(bytes + INDEX_BYTES) as usize) {
                _ if is_hole => Index::Trimmed,
                None => Index::Nothing,
                Some(bytes) => Index::decode(bytes, place + at).ok_or_else(|| self.damaged(place + at))?,
            };
            entries.push(entry);
        }
        Ok(entries)
    }

    pub(crate) fn damaged(self, place: u64) -> StripeError {
        let text = format!("object \"{}\" does not hold an entry at place {place}", self.object);
        StripeError::Store(StoreError::new(ErrorKind::Corrupt, text))
    }

    /// Reads ranges of the byte stream of entries; `None` for each of which something was trimmed. The reply holds as many of
    /// them as fit.
    pub async fn read_data(self, ranges: &[ByteRange]) -> Result<Vec<Option<Bytes>>, StripeError> {
        let transaction = ranges
            .iter()
            .fold(self.transaction(), |transaction, range| transaction.read_range(data_fork(), *range));
        let answers = self.done(transaction).await?;
        let mut found = Vec::with_capacity(ranges.len());
        for (answer, range) in answers.into_iter().zip(ranges) {
            let Answer::Range(read) = answer else { return Err(nonsense(self.object)) };
            if read.next.is_some() {
                break;
            }
            let is_whole = is_whole(&read.extents, *range);
            if is_whole && read.data.len() as u64 != range.len {
                return Err(nonsense(self.object));
            }
            found.push(is_whole.then_some(read.data));
        }
        Ok(found)
    }

    /// Fills places that nothing was written at. Returns false if there is something at one of them: then none was filled.
    pub async fn fill(self, place: u64, count: u64) -> Result<Written, StripeError> {
        let range = index_range(place, count);
        let index = Bytes::from(Index::Filled.encode().repeat(count as usize));
        let write = WriteOp::Extents { fork: index_fork(), extents: vec![(range.offset, index)] };
        let transaction = self.transaction().if_version(index_fork(), range, 0).change(write);
        match self.apply(transaction).await? {
            Ok(_) => Ok(Written::Done),
            Err(_) => Ok(Written::Occupied),
        }
    }

    /// Trims one place, whatever is there. The space of its entry is given back.
    pub async fn trim(self, place: u64) -> Result<(), StripeError> {
        loop {
            let range = index_range(place, 1);
            let answers = self.done(self.transaction().read_range(index_fork(), range)).await?;
            let [Answer::Range(index)] = &answers[..] else { return Err(nonsense(self.object)) };
            let mut transaction = self.transaction().if_version(index_fork(), range, index.version);
            match self.indices(place, 1, index)?[..] {
                [Index::Trimmed] => return Ok(()),
                [Index::Entry(locator)] => {
                    let range = ByteRange::new(locator.begins(place), u64::from(locator.length));
                    transaction = transaction.change(WriteOp::Zero { fork: data_fork(), range });
                }
                _ => {}
            }
            if self.apply(transaction.change(trimmed(place))).await?.is_ok() {
                return Ok(());
            }
        }
    }

    /// Trims all places before one. The space of their entries is given back. Where they are more than the store takes out of an object
    /// at once, they go in several steps.
    pub async fn trim_prefix(self, before: u64) -> Result<(), StripeError> {
        let (mut done, mut step) = (0, before);
        while done < before {
            let next = before.min(done.saturating_add(step));
            match self.trim_at_once(next).await {
                Ok(()) => (done, step) = (next, step.saturating_mul(2)),
                Err(StripeError::Store(error)) if error.kind == ErrorKind::Unsupported && step > 1 => {
                    step = (next - done).div_ceil(2).min(step - 1);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Trims all places before one, which is not the first, by one transaction.
    async fn trim_at_once(self, before: u64) -> Result<(), StripeError> {
        loop {
            // A packet that begins before the place may hold entries that stay. It was written at once, so it is of both places.
            let border = index_range(before - 1, 2);
            let behind = index_range(before, BATCH_ENTRIES_MAX as u64);
            let reads = self.transaction().read_range(index_fork(), border).read_range(index_fork(), behind);
            let answers = self.done(reads).await?;
            let [Answer::Range(border_found), Answer::Range(behind_found)] = &answers[..] else {
                return Err(nonsense(self.object));
            };
            let indices = self.indices(before, BATCH_ENTRIES_MAX as u64, behind_found)?;
            let first = (before..).zip(indices).find_map(|(place, index)| match index {
                Index::Entry(locator) => Some(locator.begins(place)),
                _ => None,
            });
            let data_end = first.unwrap_or(u64::MAX).min(before * SLOT_BYTES);
            let zero = |fork, end| WriteOp::Zero { fork, range: ByteRange::new(0, end) };
            let transaction = self
                .transaction()
                .if_version(index_fork(), border, border_found.version)
                .change(zero(data_fork(), data_end))
                .change(zero(index_fork(), before * INDEX_BYTES))
                // The last one is marked, so that the greatest place is found by whoever seals the object.
                .change(trimmed(before - 1));
            if self.apply(transaction).await?.is_ok() {
                return Ok(());
            }
        }
    }

    /// Installs the epoch, if it is greater than the object's, and returns one more than the greatest place that was ever written,
    /// filled or trimmed: all in one transaction, so that no write of an earlier epoch can follow.
    ///
    /// # Errors
    /// [`StripeError::Epoch`] if the object's epoch is as great already.
    pub async fn seal(self) -> Result<u64, StripeError> {
        let check = Check::Less(encode_epoch(self.epoch));
        let transaction = Transaction::new()
            .guard(Guard::Attribute { name: epoch_attribute(), check })
            .read(ReadOp::Extents { fork: index_fork(), range: ByteRange::new(0, 0) })
            .change(WriteOp::SetAttribute { name: epoch_attribute(), value: encode_epoch(self.epoch) });
        match &self.done(transaction).await?[..] {
            [Answer::Range(index)] => Ok(index.size / INDEX_BYTES),
            _ => Err(nonsense(self.object)),
        }
    }

    /// Returns one more than the greatest place that was ever written, filled or trimmed.
    pub async fn end(self) -> Result<u64, StripeError> {
        let read = ReadOp::Extents { fork: index_fork(), range: ByteRange::new(0, 0) };
        match &self.done(self.transaction().read(read)).await?[..] {
            [Answer::Range(index)] => Ok(index.size / INDEX_BYTES),
            _ => Err(nonsense(self.object)),
        }
    }

    /// Begins a request of the epoch.
    fn transaction(self) -> Transaction {
        let epoch = encode_epoch(self.epoch);
        let check = if self.closed { Check::GreaterOrEqual(epoch) } else { Check::Equal(epoch) };
        Transaction::new().guard(Guard::Attribute { name: epoch_attribute(), check })
    }

    async fn apply(self, transaction: Transaction) -> Result<Result<Vec<Answer>, Refusal>, StripeError> {
        match self.store.apply(self.object, transaction).await? {
            Outcome::Done(done) => Ok(Ok(done.answers)),
            Outcome::Refused(Refusal { guard: 0, found: Found::Value(value), .. }) => {
                Err(StripeError::Epoch(decode_epoch(value.as_ref())))
            }
            Outcome::Refused(refusal) => Ok(Err(refusal)),
        }
    }

    async fn done(self, transaction: Transaction) -> Result<Vec<Answer>, StripeError> {
        self.apply(transaction).await?.map_err(|_| nonsense(self.object))
    }
}

fn trimmed(place: u64) -> WriteOp {
    let bytes = Bytes::copy_from_slice(&Index::Trimmed.encode());
    WriteOp::Extents { fork: index_fork(), extents: vec![(place * INDEX_BYTES, bytes)] }
}

/// Returns whether all of a range is data.
pub(crate) fn is_whole(extents: &[Extent], range: ByteRange) -> bool {
    let data = extents.iter().filter(|extent| extent.kind == ExtentKind::Data);
    let within = data.map(|extent| {
        extent.range.end().min(range.end()).saturating_sub(extent.range.offset.max(range.offset))
    });
    within.sum::<u64>() == range.len
}

/// The result of a write or a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// A request that took effect.
    Done,
    /// Something was written at one of the places before.
    Occupied,
}

#[cfg(test)]
mod tests {
    use nacre_object::testkit::block_on;
    use nacre_object::{Done, Reply};

    use super::*;

    /// A store with one answer to everything.
    struct Answering(RangeRead);

    impl ObjectStore for Answering {
        fn apply(&self, _: &ObjectId, _: Transaction) -> Reply<Outcome> {
            let answers = vec![Answer::Range(self.0.clone())];
            Reply::ready(Ok(Outcome::Done(Done { version: 1, existed: true, answers })))
        }

        fn list(&self, _: Option<&ObjectId>, _: usize) -> Reply<Vec<ObjectId>> {
            Reply::ready(Ok(Vec::new()))
        }
    }

    fn stripe<'a>(store: &'a Answering, object: &'a ObjectId) -> Stripe<'a> {
        Stripe { store, object, epoch: 1, closed: false }
    }

    fn is_damage<T>(result: Result<T, StripeError>) -> bool {
        matches!(result, Err(StripeError::Store(error)) if error.kind == ErrorKind::Corrupt)
    }

    #[test]
    fn an_answer_that_does_not_fit_the_question_is_damage() {
        let object: ObjectId = "log".parse().unwrap();
        let begin = 4 * INDEX_BYTES;
        // It was cut before the range, at its beginning, and within its first entry.
        for next in [0, begin - 1, begin, begin + INDEX_BYTES - 1] {
            let store = Answering(RangeRead { next: Some(next), ..RangeRead::default() });
            assert!(is_damage(block_on(stripe(&store, &object).read(4, 2, 0))), "{next}");
        }
        let range = ByteRange::new(64, 32);
        let extents = vec![Extent { range, version: 1, kind: ExtentKind::Data }];
        for data in ["", "short", "more than the thirty-two bytes that were asked for"] {
            let store = Answering(RangeRead {
                data: Bytes::from_static(data.as_bytes()),
                extents: extents.clone(),
                ..RangeRead::default()
            });
            assert!(is_damage(block_on(stripe(&store, &object).read_data(&[range]))), "{data}");
        }
    }
}
