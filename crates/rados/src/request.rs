//! The encoding of transactions for `extent.lua`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{ByteRange, Check, Fork, Guard, KeyRange, ReadOp, Transaction, WriteOp};

use crate::floor::Floor;
use crate::name::escape_into;
use crate::record::{Token, checksum};
use crate::script::{Routine, Section, Sections};

/// The read of a transaction that reads nothing but the size of a fork, and then appends. The answer fits into the reply of a call
/// that changes the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeRead<'a> {
    fork: &'a Fork,
    /// The number of bytes that the transaction makes the fork longer by.
    appended: u64,
}

/// Returns the only read of a transaction, if one call answers it and makes the changes. `expected` is the version at which the answer
/// is held already.
pub(crate) fn size_read(transaction: &Transaction, expected: Option<u64>) -> Option<SizeRead<'_>> {
    let [ReadOp::Extents { fork, range: ByteRange { len: 0, .. } }] = &transaction.reads[..] else {
        return None;
    };
    let mut read = SizeRead { fork, appended: 0 };
    for write in &transaction.writes {
        match write {
            WriteOp::Append { fork: of, data } if of == fork => read.appended += data.len() as u64,
            WriteOp::Append { .. } | WriteOp::Zero { .. } => {}
            _ => return None,
        }
    }
    (expected.is_none() && read.appended > 0).then_some(read)
}

/// Returns the code that a call of a transaction runs. `expected` is the version at which the answers to its reads are held already.
pub(crate) fn routine(transaction: &Transaction, expected: Option<u64>) -> Routine {
    let handler = if size_read(transaction, expected).is_some() { "apply_sized" } else { "apply" };
    Routine { handler, sections: sections(transaction, expected) }
}

/// Returns the sections of the script that a transaction needs.
fn sections(transaction: &Transaction, expected: Option<u64>) -> Sections {
    let is_sized = size_read(transaction, expected).is_some();
    let mut sections = Sections::default().with(if is_sized { Section::Sized } else { Section::Apply });
    let is_range = |read: &ReadOp| matches!(read, ReadOp::Range { .. } | ReadOp::Extents { .. });
    let is_region = |guard: &Guard| matches!(guard, Guard::Region { .. } | Guard::Proposal { .. });
    let fences = transaction.guards.iter().any(|guard| matches!(guard, Guard::Fence { .. }))
        || transaction.reads.contains(&ReadOp::Fences)
        || transaction.writes.iter().any(|write| {
            matches!(write, WriteOp::RaiseFence { .. } | WriteOp::FenceSession { .. } | WriteOp::Remove)
        });
    if fences {
        sections = sections.with(Section::Fences);
    }
    if !transaction.guards.is_empty() {
        sections = sections.with(Section::Guards);
    }
    if transaction.guards.iter().any(is_region) || !is_sized && transaction.reads.iter().any(is_range) {
        sections = sections.with(Section::Index).with(Section::Range);
    }
    if !is_sized && !transaction.reads.is_empty() {
        sections = sections.with(Section::Reads);
    }
    let is_size = |guard: &Guard| matches!(guard, Guard::Size { .. });
    if transaction.reads.iter().any(|read| matches!(read, ReadOp::Forks { .. }))
        || transaction.guards.iter().any(is_size)
    {
        sections = sections.with(Section::Index);
    }
    if expected.is_some() {
        sections = sections.with(Section::Skip);
    }
    if !transaction.writes.is_empty() {
        sections = sections.with(Section::Index).with(Section::Changes).with(Section::Conclude);
    }
    sections
}

/// The parameters of a call, beside its transaction.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// The token that its changes are stamped with.
    pub(crate) token: &'a Token,
    /// The version at which the answers to its reads are held already.
    pub(crate) expected: Option<u64>,
    /// True if the index of names has a mark of it, so that it may make the object or remove it.
    pub(crate) marked: bool,
    /// The floor for an object of which there is no trace: if the call may make the object, that which came with the mark.
    pub(crate) floor: Floor,
}

/// Returns what every call of the class that may change an object begins with.
pub(crate) fn beginning(token: &Token, marked: bool, floor: Floor) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend(token);
    out.push(u8::from(marked));
    out.extend(floor.shown.to_le_bytes());
    out.extend(floor.start.to_le_bytes());
    out
}

/// Encodes a call of a transaction.
pub(crate) fn encode(transaction: &Transaction, call: Call<'_>) -> Vec<u8> {
    let mut out = Encoder(beginning(call.token, call.marked, call.floor));
    let size_read = size_read(transaction, call.expected);
    match size_read {
        Some(SizeRead { fork, appended }) => {
            out.name(None, fork.as_bytes());
            out.u64(appended);
        }
        None => out.u64(call.expected.unwrap_or(u64::MAX)),
    }
    out.u32(transaction.guards.len());
    transaction.guards.iter().for_each(|guard| out.guard(guard));
    if size_read.is_none() {
        out.u32(transaction.reads.len());
        transaction.reads.iter().for_each(|read| out.read(read));
    }
    out.u32(transaction.writes.len());
    transaction.writes.iter().for_each(|write| out.write(write));
    out.0
}

/// Returns the version that an object had before a transaction gave it another one; `None` if that cannot be told, because
/// the transaction proposed the version.
pub(crate) fn previous(transaction: &Transaction, version: u64) -> Option<u64> {
    let proposals = transaction.guards.iter().filter_map(|guard| match guard {
        Guard::Proposal { version, .. } => Some(*version),
        _ => None,
    });
    // The class takes the version that follows, unless a proposal is higher.
    (version > proposals.max().unwrap_or(0)).then(|| version - 1)
}

/// The part of a key's or attribute's entry that a page of them shows.
#[derive(Clone, Copy)]
enum Shown {
    Nothing = 0,
    All = 1,
    /// The bytes before the value, which give the version.
    Head = 2,
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Appends a count or a length; the limits of the model keep them far below 32 bits.
    fn u32(&mut self, value: usize) {
        self.0.extend((value as u32).to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Appends a version to compare with. No version passes half of the sequence, so everything above compares alike.
    fn version(&mut self, value: u64) {
        self.u64(value.min(i64::MAX as u64));
    }

    fn range(&mut self, range: ByteRange) {
        self.u64(range.offset);
        self.u64(range.len);
    }

    /// Appends an escaped name, possibly after a letter, behind its length.
    fn name(&mut self, letter: Option<u8>, name: &[u8]) {
        let at = self.0.len();
        self.0.extend([0, 0]);
        self.0.extend(letter);
        escape_into(name, &mut self.0);
        let length = (self.0.len() - at - 2) as u16;
        self.0[at..at + 2].copy_from_slice(&length.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len());
        self.0.extend(bytes);
    }

    fn guard(&mut self, guard: &Guard) {
        match guard {
            Guard::Exists => self.u8(0),
            Guard::Absent => self.u8(1),
            Guard::Region { fork, range, version } | Guard::Proposal { fork, range, version } => {
                self.u8(if matches!(guard, Guard::Region { .. }) { 2 } else { 3 });
                self.name(None, fork.as_bytes());
                self.range(*range);
                self.version(*version);
            }
            Guard::Key { key: name, check } | Guard::Attribute { name, check } => {
                self.u8(4);
                self.name(
                    Some(if matches!(guard, Guard::Key { .. }) { b'k' } else { b'a' }),
                    name.as_bytes(),
                );
                self.u8(match check {
                    Check::Present => 0,
                    Check::Absent => 1,
                    Check::Equal(_) => 2,
                    Check::NotEqual(_) => 3,
                    Check::Less(_) => 4,
                    Check::LessOrEqual(_) => 5,
                    Check::Greater(_) => 6,
                    Check::GreaterOrEqual(_) => 7,
                });
                self.bytes(check.operand());
            }
            Guard::Version { version } => {
                self.u8(6);
                self.u64(*version);
            }
            Guard::Fence { token } => {
                self.u8(5);
                self.u64(*token);
            }
            Guard::Size { fork, size } => {
                self.u8(8);
                self.name(None, fork.as_bytes());
                self.u64(*size);
            }
            Guard::KeyVersion { key, version } => {
                self.u8(7);
                self.name(Some(b'k'), key.as_bytes());
                self.u64(*version);
            }
        }
    }

    fn read(&mut self, read: &ReadOp) {
        match read {
            ReadOp::Range { fork, range, .. } | ReadOp::Extents { fork, range } => {
                self.u8(if matches!(read, ReadOp::Range { .. }) { 0 } else { 1 });
                self.name(None, fork.as_bytes());
                self.range(*range);
            }
            ReadOp::Stat => self.u8(2),
            ReadOp::Forks { after, limit } => {
                self.u8(3);
                match after {
                    // A key that is just before the first fork's: "e" and the greatest byte.
                    None => self.name(Some(b'e'), &[0xff]),
                    Some(after) => self.name(Some(b'f'), after.as_bytes()),
                }
                self.u32((*limit as usize).min(PAGE_ENTRIES_MAX));
            }
            ReadOp::Key { key } | ReadOp::VersionedKey { key, .. } => {
                self.u8(4);
                self.name(Some(b'k'), key.as_bytes());
            }
            ReadOp::Attribute { name } => {
                self.u8(4);
                self.name(Some(b'a'), name.as_bytes());
            }
            ReadOp::Keys { range, limit, values } => {
                let shown = if *values { Shown::All } else { Shown::Nothing };
                self.key_page(b'k', range, *limit, shown);
            }
            ReadOp::VersionedKeys { range, limit, values } => {
                let shown = if *values { Shown::All } else { Shown::Head };
                self.key_page(b'k', range, *limit, shown);
            }
            ReadOp::Attributes => self.key_page(b'a', &KeyRange::all(), u32::MAX, Shown::All),
            ReadOp::Fences => self.u8(6),
        }
    }

    fn key_page(&mut self, letter: u8, range: &KeyRange, limit: u32, shown: Shown) {
        self.u8(5);
        // Names of keys have at least one byte, so that nothing equals the letter alone.
        self.name(Some(letter), range.after.as_deref().map_or(&[][..], clipped));
        self.u8(u8::from(range.before.is_some()));
        self.name(Some(letter), range.before.as_deref().map_or(&[][..], clipped));
        self.name(Some(letter), clipped(&range.prefix));
        self.u32((limit as usize).min(PAGE_ENTRIES_MAX));
        self.u8(shown as u8);
    }

    fn write(&mut self, write: &WriteOp) {
        match write {
            WriteOp::Create => self.u8(0),
            WriteOp::Extents { fork, extents } => {
                self.u8(1);
                self.name(None, fork.as_bytes());
                self.pieces(&ordered(extents));
            }
            WriteOp::Append { fork, data } => {
                self.u8(11);
                self.name(None, fork.as_bytes());
                // One piece, at an offset from the fork's end.
                self.pieces(&[(0, data.clone())]);
            }
            WriteOp::Zero { fork, range } => {
                self.u8(2);
                self.name(None, fork.as_bytes());
                self.range(*range);
            }
            WriteOp::Truncate { fork, size } => {
                self.u8(3);
                self.name(None, fork.as_bytes());
                self.u64(*size);
            }
            WriteOp::RemoveFork { fork } => {
                self.u8(4);
                self.name(None, fork.as_bytes());
            }
            WriteOp::ReplaceFork { fork, from } => {
                self.u8(9);
                self.name(None, fork.as_bytes());
                self.name(None, from.as_bytes());
            }
            WriteOp::SetKey { key: name, value } | WriteOp::SetAttribute { name, value } => {
                self.u8(5);
                self.name(
                    Some(if matches!(write, WriteOp::SetKey { .. }) { b'k' } else { b'a' }),
                    name.as_bytes(),
                );
                self.0.extend(checksum(value).to_le_bytes());
                self.bytes(value);
            }
            WriteOp::RemoveKey { key: name } | WriteOp::RemoveAttribute { name } => {
                self.u8(6);
                self.name(
                    Some(if matches!(write, WriteOp::RemoveKey { .. }) { b'k' } else { b'a' }),
                    name.as_bytes(),
                );
            }
            WriteOp::RaiseFence { token } => {
                self.u8(7);
                self.u64(*token);
            }
            WriteOp::FenceSession { session } => {
                self.u8(10);
                self.u64(*session);
            }
            WriteOp::Remove => self.u8(8),
        }
    }

    /// Appends pieces, joining adjacent ones, so that they take one extent's entry.
    fn pieces(&mut self, pieces: &[(u64, Bytes)]) {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (offset, data) in pieces {
            match runs.last_mut() {
                Some((start, length)) if *start + *length == *offset => *length += data.len() as u64,
                _ => runs.push((*offset, data.len() as u64)),
            }
        }
        self.u32(runs.len());
        for (offset, length) in runs {
            self.u64(offset);
            self.u32(length as usize);
        }
        self.0.reserve(pieces.iter().map(|(_, data)| data.len()).sum());
        for (_, data) in pieces {
            self.0.extend(&data[..]);
        }
    }
}

/// Returns the first bytes of a bound that may be longer than any key: cut well past the longest key, it bounds the
/// same keys.
fn clipped(bound: &[u8]) -> &[u8] {
    &bound[..bound.len().min(2048)]
}

/// Returns extents in ascending order, none empty, none sharing a byte: where they do, the later one wins.
pub(crate) fn ordered(extents: &[(u64, Bytes)]) -> Cow<'_, [(u64, Bytes)]> {
    let mut end = 0;
    let is_ordered = extents.iter().all(|(offset, data)| {
        let follows = *offset >= end && !data.is_empty();
        end = offset + data.len() as u64;
        follows
    });
    if is_ordered {
        return Cow::Borrowed(extents);
    }
    let mut pieces: BTreeMap<u64, Bytes> = BTreeMap::new();
    for (offset, data) in extents.iter().filter(|(_, data)| !data.is_empty()) {
        let end = offset + data.len() as u64;
        if let Some((&start, before)) = pieces.range(..*offset).next_back()
            && start + before.len() as u64 > *offset
        {
            let before = before.clone();
            if start + before.len() as u64 > end {
                pieces.insert(end, before.slice((end - start) as usize..));
            }
            pieces.insert(start, before.slice(..(offset - start) as usize));
        }
        while let Some((&start, hidden)) = pieces.range(*offset..end).next() {
            let rest = (start + hidden.len() as u64 > end).then(|| hidden.slice((end - start) as usize..));
            pieces.remove(&start);
            if let Some(rest) = rest {
                pieces.insert(end, rest);
            }
        }
        pieces.insert(*offset, data.clone());
    }
    Cow::Owned(pieces.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn the_version_before_a_change_is_known_unless_it_was_proposed() {
        let proposal = |version| Guard::Proposal {
            fork: nacre_object::Fork::DEFAULT,
            range: ByteRange::new(0, 1),
            version,
        };
        let plain = Transaction::new().write(nacre_object::Fork::DEFAULT, 0, "bytes");
        assert_eq!(previous(&plain, 7), Some(6));
        let proposing = plain.guard(proposal(3)).guard(proposal(5));
        assert_eq!(previous(&proposing, 7), Some(6));
        assert_eq!(previous(&proposing, 5), None);
    }

    #[test]
    fn a_size_comes_with_the_change_where_it_is_the_only_read_and_the_writes_are_appends() {
        let (fork, other) = (Fork::new("taken").unwrap(), Fork::DEFAULT);
        let size = |fork: &Fork| ReadOp::Extents { fork: fork.clone(), range: ByteRange::new(0, 0) };
        let append = |fork: &Fork| WriteOp::Append { fork: fork.clone(), data: "abc".into() };
        let plain = Transaction::new().read(size(&fork)).change(append(&fork));
        let zero = WriteOp::Zero { fork: fork.clone(), range: ByteRange::new(0, 2) };
        let more = plain.clone().change(zero).change(append(&other)).change(append(&fork));
        for (transaction, appended) in [(&plain, 3), (&more, 6)] {
            assert_eq!(size_read(transaction, None), Some(SizeRead { fork: &fork, appended }));
            assert_eq!(routine(transaction, None).handler, "apply_sized");
            assert!(!routine(transaction, None).sections.contains(Section::Reads));
            // A call that holds the answer does not ask for it.
            assert_eq!(routine(transaction, Some(1)).handler, "apply");
        }
        let bytes = ReadOp::Extents { fork: fork.clone(), range: ByteRange::new(0, 1) };
        for transaction in [
            Transaction::new().read(size(&fork)),
            Transaction::new().change(append(&fork)),
            Transaction::new().read(size(&other)).change(append(&fork)),
            Transaction::new().read(bytes).change(append(&fork)),
            plain.clone().read(ReadOp::Stat),
            plain.clone().change(WriteOp::Remove),
            plain.change(WriteOp::Truncate { fork: fork.clone(), size: 1 }),
        ] {
            assert_eq!(size_read(&transaction, None), None, "{transaction:?}");
        }
    }

    #[test]
    fn ordered_extents_paint_the_same_picture() {
        let seed = rand::random();
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..5_000 {
            let extents: Vec<(u64, Bytes)> = (0..random.random_range(0..8))
                .map(|i| (random.random_range(0..40), Bytes::from(vec![i + 1; random.random_range(0..12)])))
                .collect();
            let paint = |extents: &[(u64, Bytes)]| {
                let mut picture = [0; 64];
                for (offset, data) in extents {
                    picture[*offset as usize..*offset as usize + data.len()].copy_from_slice(data);
                }
                picture
            };
            let ordered = ordered(&extents);
            assert_eq!(paint(&ordered), paint(&extents), "seed {seed}: {extents:?}");
            let apart = ordered.windows(2).all(|pair| pair[0].0 + pair[0].1.len() as u64 <= pair[1].0);
            assert!(apart && ordered.iter().all(|(_, data)| !data.is_empty()), "seed {seed}: {ordered:?}");
        }
    }
}
