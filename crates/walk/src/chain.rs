//! Long chains of directories, packed: of a directory that waits for nothing but one subdirectory, only a few bytes are kept until that
//! is left. So a tree of a million levels is walked in the memory that they take, and not in that of a million open directories.

use std::ops::Range;
use std::sync::Arc;

use crate::directory::Identity;

/// The size of a block of records in bytes.
const BLOCK_BYTES: usize = 16 << 10;

/// The number of bytes behind a record that give its length.
const LEN_BYTES: usize = 2;

/// The maximum length of the name of a directory that is packed: that of all file systems, twice over.
pub const NAME_BYTES_MAX: usize = 512;

/// A stack of records of a few bytes each, in blocks that are freed as it shrinks.
#[derive(Debug, Default)]
pub struct Stack {
    /// Blocks that are not empty. In each, every record is followed by its length, so that the last one is found.
    blocks: Vec<Vec<u8>>,
    records: usize,
}

impl Stack {
    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records
    }

    /// Returns whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Adds a record.
    ///
    /// # Panics
    /// If the record has 64 KiB or more.
    pub fn push(&mut self, record: &[u8]) {
        let len = u16::try_from(record.len()).expect("a record has less than 64 KiB, as its callers ensure");
        let bytes = record.len() + LEN_BYTES;
        match self.blocks.last() {
            Some(block) if block.len() + bytes <= BLOCK_BYTES => {}
            // The first one grows as it is needed: most chains are short.
            None => self.blocks.push(Vec::with_capacity(bytes)),
            Some(_) => self.blocks.push(Vec::with_capacity(BLOCK_BYTES.max(bytes))),
        }
        if let Some(block) = self.blocks.last_mut() {
            block.extend_from_slice(record);
            block.extend_from_slice(&len.to_le_bytes());
        }
        self.records += 1;
    }

    /// Takes the last record.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let block = self.blocks.last_mut()?;
        let range = last_record(block)?;
        let record = block[range.clone()].to_vec();
        block.truncate(range.start);
        if block.is_empty() {
            self.blocks.pop();
        }
        self.records -= 1;
        Some(record)
    }

    /// Iterates over the records, the last one first.
    pub fn iter_rev(&self) -> impl Iterator<Item = &[u8]> {
        self.blocks.iter().rev().flat_map(|block| ranges(block).map(move |range| &block[range]))
    }

    /// Iterates over the records, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.blocks.iter().flat_map(|block| {
            let mut records: Vec<&[u8]> = ranges(block).map(|range| &block[range]).collect();
            records.reverse();
            records
        })
    }

    /// Passes the last `count` records to `change`, the first of them first. Their lengths stay.
    pub fn change_last(&mut self, count: usize, mut change: impl FnMut(&mut [u8])) {
        let (mut left, mut parts) = (count, Vec::new());
        for (number, block) in self.blocks.iter().enumerate().rev() {
            if left == 0 {
                break;
            }
            let here = ranges(block).take(left).count();
            left -= here;
            parts.push((number, here));
        }
        for (number, here) in parts.into_iter().rev() {
            let block = &mut self.blocks[number];
            let mut records: Vec<Range<usize>> = ranges(block).take(here).collect();
            records.reverse();
            for range in records {
                change(&mut block[range]);
            }
        }
    }
}

/// Returns the place of the last record of a block.
fn last_record(block: &[u8]) -> Option<Range<usize>> {
    let (records, len) = block.split_last_chunk::<LEN_BYTES>()?;
    let begin = records.len().checked_sub(usize::from(u16::from_le_bytes(*len)))?;
    Some(begin..records.len())
}

/// Iterates over the places of a block's records, the last one first.
fn ranges(block: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut end = block.len();
    std::iter::from_fn(move || {
        let range = last_record(&block[..end])?;
        end = range.start;
        Some(range)
    })
}

/// The directories above a directory, which are `D`s, or packed.
#[derive(derive_more::Debug)]
pub enum Above<D> {
    /// Nothing: it is a root.
    Nothing,
    /// Its parent.
    #[debug("Directory")]
    Directory(Arc<D>),
    /// Its parent and more directories, packed.
    #[debug("Chain")]
    Chain(Box<Chain<D>>),
}

/// The directories above one that are packed.
#[derive(derive_more::Debug)]
#[debug("Chain")]
pub struct Chain<D> {
    /// The directory that the first one is in.
    above: Arc<D>,
    /// The packed directories, each in the one before.
    levels: Stack,
    /// The number of those, from the first one on, that are split: all above one that is split are split, too.
    split: usize,
}

impl<D> Above<D> {
    /// Returns the parent, unless it is packed.
    pub fn parent(&self) -> Option<Arc<D>> {
        match self {
            Above::Directory(parent) => Some(Arc::clone(parent)),
            Above::Nothing | Above::Chain(_) => None,
        }
    }

    /// Returns the nearest directory that is not packed.
    pub fn nearest(&self) -> Option<Arc<D>> {
        match self {
            Above::Nothing => None,
            Above::Directory(parent) => Some(Arc::clone(parent)),
            Above::Chain(chain) => Some(Arc::clone(&chain.above)),
        }
    }

    /// Takes the nearest directory that is not packed, and forgets the others.
    pub fn take_nearest(&mut self) -> Option<Arc<D>> {
        match std::mem::replace(self, Above::Nothing) {
            Above::Nothing => None,
            Above::Directory(parent) => Some(parent),
            Above::Chain(chain) => Some(chain.above),
        }
    }

    /// Returns the packed directories between the nearest other one and this directory, if there are any.
    pub fn packed(&self) -> Option<&Stack> {
        match self {
            Above::Chain(chain) => Some(&chain.levels),
            Above::Nothing | Above::Directory(_) => None,
        }
    }

    /// Returns the packed directories between the nearest other one and this directory, if there are any, to change them.
    pub fn packed_mut(&mut self) -> Option<&mut Stack> {
        match self {
            Above::Chain(chain) => Some(&mut chain.levels),
            Above::Nothing | Above::Directory(_) => None,
        }
    }

    /// Marks the packed directories as split.
    pub fn mark_split(&mut self) {
        if let Above::Chain(chain) = self {
            chain.split = chain.levels.len();
        }
    }

    /// Puts a record in the place of the parent, above which is `beyond`. A root has nothing above it, and stays: then this returns
    /// false.
    pub fn pack(&mut self, beyond: Above<D>, record: &[u8], is_split: bool) -> bool {
        let mut chain = match beyond {
            Above::Nothing => return false,
            Above::Directory(above) => Box::new(Chain { above, levels: Stack::default(), split: 0 }),
            Above::Chain(chain) => chain,
        };
        chain.levels.push(record);
        if is_split {
            chain.split = chain.levels.len();
        }
        *self = Above::Chain(chain);
        true
    }

    /// Returns the parent. If it is packed, `make` makes it of its record, of whether it is split, and of what is above it.
    pub fn unpack(&mut self, make: impl FnOnce(&[u8], bool, Above<D>) -> D) -> Option<Arc<D>> {
        let Above::Chain(chain) = self else { return self.parent() };
        let is_split = chain.split == chain.levels.len();
        let Some(record) = chain.levels.pop() else { unreachable!("no chain is without levels") };
        chain.split = chain.split.min(chain.levels.len());
        let beyond = match std::mem::replace(self, Above::Nothing) {
            Above::Chain(chain) if chain.levels.is_empty() => Above::Directory(chain.above),
            chain => chain,
        };
        let parent = Arc::new(make(&record[..], is_split, beyond));
        *self = Above::Directory(Arc::clone(&parent));
        Some(parent)
    }
}

/// Drops a directory, and those above it that nothing else refers to, one after the other: recursion over a hundred thousand levels
/// would overflow the stack. `above` takes what is above one.
pub fn drop_upwards<D>(first: Option<Arc<D>>, above: impl Fn(&D) -> Option<Arc<D>>) {
    let mut next = first;
    while let Some(directory) = next {
        next = Arc::into_inner(directory).and_then(|directory| above(&directory));
    }
}

/// A packed directory.
pub(crate) struct Level<'a> {
    pub name: &'a [u8],
    pub inode: u64,
    pub identity: Option<Identity>,
    /// The visitor's state, as the visitor has packed it.
    pub state: &'a [u8],
}

impl<'a> Level<'a> {
    /// Appends everything but the state to `record`.
    pub fn put(name: &[u8], inode: u64, identity: Option<Identity>, record: &mut Vec<u8>) {
        put_bytes(record, name);
        put_number(record, inode);
        // A device is mostly a small number, and the inode mostly the listed one.
        put_number(record, identity.map_or(0, |(device, _)| device.wrapping_add(1)));
        if let Some((_, known)) = identity {
            put_number(record, known ^ inode);
        }
    }

    /// Returns what [`Level::put`] has written, and what was written behind it.
    pub fn get(mut record: &'a [u8]) -> Level<'a> {
        let name = take_bytes(&mut record);
        let inode = take_number(&mut record);
        let identity = match take_number(&mut record) {
            0 => None,
            device => Some((device - 1, take_number(&mut record) ^ inode)),
        };
        Level { name, inode, identity, state: record }
    }
}

/// Appends a number in as many bytes as it needs, seven bits in each.
pub fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number that [`put_number`] has written.
pub fn take_number(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let Some((byte, rest)) = (*bytes).split_first() else { break };
        *bytes = rest;
        number |= u64::from(*byte & 0x7f) << shift;
        if *byte <= 0x7f {
            break;
        }
    }
    number
}

/// Appends some bytes, with their number before them.
pub fn put_bytes(bytes: &mut Vec<u8>, part: &[u8]) {
    put_number(bytes, part.len() as u64);
    bytes.extend_from_slice(part);
}

/// Takes the bytes that [`put_bytes`] has written.
pub fn take_bytes<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let len = take_number(bytes) as usize;
    let (part, rest) = (*bytes).split_at(len.min(bytes.len()));
    *bytes = rest;
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_in_their_order() {
        let record = |number: usize| vec![number as u8; number * 31 % 700];
        let mut stack = Stack::default();
        let mut naive: Vec<Vec<u8>> = Vec::new();
        for round in 0..6 {
            for number in 0..500 {
                stack.push(&record(number + round));
                naive.push(record(number + round));
            }
            for _ in 0..round * 130 {
                assert_eq!(stack.pop(), naive.pop());
            }
            assert_eq!(stack.len(), naive.len());
            assert!(stack.iter().eq(naive.iter().map(Vec::as_slice)));
            assert!(stack.iter_rev().eq(naive.iter().rev().map(Vec::as_slice)));
            for count in [0, 1, 17, naive.len() - 1, naive.len()] {
                let begin = naive.len() - count;
                let mut at = begin;
                stack.change_last(count, |record| {
                    assert_eq!(record, naive[at]);
                    record.iter_mut().for_each(|byte| *byte ^= 1);
                    at += 1;
                });
                assert_eq!(at, naive.len());
                naive[begin..].iter_mut().flatten().for_each(|byte| *byte ^= 1);
            }
        }
        while let Some(record) = naive.pop() {
            assert_eq!(stack.pop(), Some(record));
        }
        assert!(stack.is_empty() && stack.pop().is_none() && stack.iter_rev().next().is_none());
    }

    #[test]
    fn a_level_takes_few_bytes_and_comes_back() {
        for (name, inode, identity) in [
            (&b"d"[..], 5_000_000, None),
            (b"d", 5_000_000, Some((0x803, 5_000_000))),
            (b"another name", u64::MAX, Some((0, 0))),
            (&[0xff; 255], 0, Some((u64::MAX - 1, u64::MAX))),
        ] {
            let mut record = Vec::new();
            Level::put(name, inode, identity, &mut record);
            assert!(name.len() > 1 || record.len() <= 10, "{}", record.len());
            record.extend_from_slice(b"state");
            let level = Level::get(&record);
            assert_eq!((level.name, level.inode, level.identity), (name, inode, identity));
            assert_eq!(level.state, b"state");
        }
    }
}
