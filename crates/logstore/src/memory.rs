//! The blocks of a volatile store, in memory of their own: it has no log, no snapshots, and no threads.
//!
//! A block is a chunk of payload in an allocation of its own, which readers share. Each shard keeps the blocks of its objects
//! under its own lock, and the index refers to a block by its number there, which stands in the chunk in the place of the
//! segment's. Blocks are filled before that lock is taken and freed after it is given back, so it is held for bookkeeping
//! only. Each thread keeps a few blocks that were freed, for the next ones of the same lengths: where blocks are overwritten,
//! most are made of those before them, whose memory is in the processor's cache, and no allocation is needed.
//!
//! Invariants:
//! - a block is kept for as long as the index refers to any of its bytes, and not longer;
//! - it refers to at least half of the bytes of each, but of the smallest;
//! - the index never refers to a number that has no block;
//! - what blocks and the index take together is at most the capacity, and a little more for transactions that shrink.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use nacre_object::{ErrorKind, StoreError};
use smallvec::SmallVec;

use crate::extent_map::{Chunk, Entry, ExtentMap, Place};
use crate::footprint::{Footprint, IndexCounters};
use crate::log::Purpose;
use crate::node::{Persistence, RangePlan};
use crate::sync::{AtomicBool, AtomicI64, AtomicU64};

/// A chunk of payload.
pub type Block = Arc<[u8]>;
/// Blocks, of which there is mostly one: then the list takes no allocation.
pub type FewBlocks = SmallVec<[Block; 1]>;

/// The least number of bytes that a reader gets as a share of a block: copying fewer costs less.
const SHARED_BYTES_MIN: usize = 512;
/// Bytes that the allocator and the count of its holders take besides a block's own, and the unit in which it allocates.
const BLOCK_HEAD_BYTES: usize = 24;
const ALLOCATION_BYTES: usize = 16;
/// Bytes beyond the capacity for transactions that shrink, which may make the index grow.
const SHRINK_BYTES: u64 = 64 << 10;
/// The length in bytes up to which blocks stay as they are, however little of them is referred to.
const SPARSE_BYTES_MIN: usize = 256;
/// The length in bytes from which on blocks are kept for the next ones: the allocator is fast enough at shorter ones.
const RECYCLED_BYTES_MIN: usize = 1024;
/// The blocks, and their bytes, that a thread keeps for its next ones.
const IDLE_BLOCKS_MAX: usize = 16;
const IDLE_BYTES_MAX: usize = 256 << 10;
/// The number of places that a shard keeps when it has no blocks.
const IDLE_PLACES_MAX: usize = 64;

/// Returns the memory that a block of `len` bytes takes, with its place in the shard.
fn memory_bytes(len: usize) -> i64 {
    let allocated = (BLOCK_HEAD_BYTES + len).next_multiple_of(ALLOCATION_BYTES);
    (allocated + size_of::<Held>()) as i64
}

/// Cuts payload into blocks of at most `chunk_bytes` bytes.
pub fn blocks_of(payload: &[Bytes], chunk_bytes: usize) -> FewBlocks {
    let pieces = payload.iter().flat_map(|part| part.chunks(chunk_bytes));
    IDLE.with_borrow_mut(|idle| pieces.map(|piece| idle.block_of(piece)).collect())
}

/// Frees blocks: those that nobody else holds are kept for the thread's next ones, a few of them.
pub fn recycle(freed: FewBlocks) {
    if freed.is_empty() {
        return;
    }
    // Those that do not stay are freed without the thread's own being borrowed.
    let left: FewBlocks =
        IDLE.with_borrow_mut(|idle| freed.into_iter().filter_map(|block| idle.keep(block)).collect());
    drop(left);
}

thread_local! {
    static IDLE: RefCell<Idle> = const { RefCell::new(Idle { blocks: Vec::new(), bytes: 0 }) };
}

/// Blocks that nobody else holds.
struct Idle {
    blocks: Vec<Block>,
    bytes: usize,
}

impl Idle {
    /// Returns a block of these bytes: one of the idle ones, if one has the length.
    fn block_of(&mut self, bytes: &[u8]) -> Block {
        if bytes.len() >= RECYCLED_BYTES_MIN
            && let Some(at) = self.blocks.iter().rposition(|block| block.len() == bytes.len())
        {
            let mut block = self.blocks.swap_remove(at);
            self.bytes -= block.len();
            if let Some(target) = Arc::get_mut(&mut block) {
                target.copy_from_slice(bytes);
                return block;
            }
        }
        Block::from(bytes)
    }

    /// Keeps a block, unless it is held elsewhere, or there are enough: then it is returned.
    fn keep(&mut self, mut block: Block) -> Option<Block> {
        let len = block.len();
        let fits = len >= RECYCLED_BYTES_MIN
            && self.blocks.len() < IDLE_BLOCKS_MAX
            && self.bytes + len <= IDLE_BYTES_MAX;
        if !fits || Arc::get_mut(&mut block).is_none() {
            return Some(block);
        }
        self.bytes += len;
        self.blocks.push(block);
        None
    }
}

/// The blocks of the objects of one shard, by their numbers.
#[derive(Default)]
pub struct Blocks {
    places: Vec<Held>,
    /// The first vacant place; the number of places if there is none.
    vacant: u32,
    count: u32,
}

/// A place for a block.
struct Held {
    block: Option<Block>,
    /// The number of bytes that the index refers to; of a vacant place, the next vacant one.
    live_or_next: u32,
}

impl Blocks {
    /// Adds a block, to all of which the index refers; returns its number.
    fn insert(&mut self, block: Block) -> u32 {
        let (number, live) = (self.vacant, block.len() as u32);
        match self.places.get_mut(number as usize) {
            Some(place) => {
                self.vacant = place.live_or_next;
                *place = Held { block: Some(block), live_or_next: live };
            }
            None => {
                self.places.push(Held { block: Some(block), live_or_next: live });
                // Four thousand million blocks of one shard do not fit into any memory.
                self.vacant = number + 1;
            }
        }
        self.count += 1;
        number
    }

    /// Notes that the index no longer refers to `bytes` bytes of a block; returns the number of those that are left.
    fn release(&mut self, number: u32, bytes: u32) -> u32 {
        let place = &mut self.places[number as usize];
        place.live_or_next -= bytes;
        place.live_or_next
    }

    /// Returns whether the index refers to less of a block than it should.
    fn is_sparse(&self, number: u32) -> bool {
        self.places.get(number as usize).is_some_and(|place| {
            let len = place.block.as_ref().map_or(0, |block| block.len());
            len > SPARSE_BYTES_MIN && place.live_or_next as usize * 2 < len
        })
    }

    /// Takes a block away, to which the index does not refer any more.
    fn remove(&mut self, number: u32) -> Option<Block> {
        let place = &mut self.places[number as usize];
        let block = place.block.take();
        place.live_or_next = self.vacant;
        self.vacant = number;
        self.count -= 1;
        if self.count == 0 && self.places.len() > IDLE_PLACES_MAX {
            *self = Self::default();
        }
        block
    }

    /// Returns a block.
    ///
    /// # Panics
    ///
    /// If there is none of this number, which the index never refers to.
    pub fn get(&self, number: u32) -> &Block {
        self.places[number as usize].block.as_ref().expect("the index refers to blocks that are kept")
    }

    /// Returns the number of bytes of each block that the index refers to, for checks.
    #[cfg(feature = "sim")]
    pub fn live(&self) -> impl Iterator<Item = (u32, u64)> {
        let held = self.places.iter().enumerate().filter(|(_, held)| held.block.is_some());
        held.map(|(number, held)| (number as u32, u64::from(held.live_or_next)))
    }

    /// Returns the memory that the blocks take, for checks.
    #[cfg(feature = "sim")]
    pub fn memory_bytes(&self) -> i64 {
        self.places.iter().filter_map(|held| held.block.as_ref()).map(|block| memory_bytes(block.len())).sum()
    }
}

/// A transaction's blocks, while they take the places of others.
pub struct Exchange<'a> {
    blocks: &'a mut Blocks,
    arriving: smallvec::IntoIter<[Block; 1]>,
    /// The blocks to which nothing refers any more. They are dropped when the lock of the shard is given back.
    freed: FewBlocks,
    /// Blocks of which little may be left: the offset in the fork at which they would begin, and their chunks.
    sparse: Vec<(u64, Chunk)>,
    live_bytes: i64,
    memory_bytes: i64,
}

impl<'a> Exchange<'a> {
    /// Begins an exchange.
    pub fn new(blocks: &'a mut Blocks, arriving: FewBlocks) -> Self {
        let arriving = arriving.into_iter();
        Self { blocks, arriving, freed: FewBlocks::new(), sparse: Vec::new(), live_bytes: 0, memory_bytes: 0 }
    }

    /// Adds a block, to all of which the index refers; returns its chunk.
    fn insert(&mut self, block: Block) -> Chunk {
        let len = block.len();
        self.memory_bytes += memory_bytes(len);
        Chunk { segment: self.blocks.insert(block), offset: 0, len: len as u32, crc: 0 }
    }

    fn remove(&mut self, number: u32) {
        if let Some(block) = self.blocks.remove(number) {
            self.memory_bytes -= memory_bytes(block.len());
            self.freed.push(block);
        }
    }
}

impl Persistence for Exchange<'_> {
    fn place(&mut self, len: u32, _: u32) -> Chunk {
        let block = self.arriving.next().expect("a block was made of every chunk");
        debug_assert_eq!(block.len(), len as usize);
        self.live_bytes += i64::from(len);
        self.insert(block)
    }

    fn release(&mut self, piece: &Entry, chunk: &Chunk) {
        let Place::Data { skip, .. } = piece.place() else { return };
        self.live_bytes -= piece.len() as i64;
        // A piece is no longer than its block.
        if self.blocks.release(chunk.segment, piece.len() as u32) == 0 {
            self.remove(chunk.segment);
        } else if self.blocks.is_sparse(chunk.segment) {
            self.sparse.push((piece.start() - u64::from(skip), *chunk));
        }
    }

    /// Makes blocks of their own of the pieces that are left of a block, if they are less than half of it.
    fn tidy(&mut self, map: &mut ExtentMap) {
        for (start, chunk) in std::mem::take(&mut self.sparse) {
            // It may be gone since, and another one have its place: then this one is not sparse, or stands in the list too.
            if !self.blocks.is_sparse(chunk.segment) {
                continue;
            }
            let of_block = |entry: &Entry| match entry.place() {
                Place::Data { chunk: found, skip } => (found == chunk).then_some((*entry, skip as usize)),
                Place::Hole => None,
            };
            let end = start + u64::from(chunk.len);
            let pieces: Vec<(Entry, usize)> = map.overlapping(start, end).filter_map(of_block).collect();
            let block = Block::clone(self.blocks.get(chunk.segment));
            for (old, skip) in &pieces {
                let chunk = self.insert(Block::from(&block[*skip..*skip + old.len() as usize]));
                let entry = Entry::data(old.start(), old.version(), chunk);
                map.replace(old.start(), old.end(), &[entry], |_, _| {});
            }
            self.remove(chunk.segment);
        }
    }
}

/// The counts of all blocks of a store.
#[derive(Default)]
pub struct Memory {
    live_bytes: AtomicI64,
    memory_bytes: AtomicI64,
    /// Memory that transactions under way may take.
    reserved_bytes: AtomicU64,
    closed: AtomicBool,
}

/// Memory that a transaction may take, until it has taken it.
pub struct Reserved<'a> {
    all_bytes: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.all_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Memory {
    /// Refuses transactions that write from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Checks that the store is open.
    ///
    /// # Errors
    ///
    /// `Closed` if it is not.
    pub fn check_open(&self) -> Result<(), StoreError> {
        match self.closed.load(Ordering::Relaxed) {
            true => Err(StoreError::new(ErrorKind::Closed, "the store is closed")),
            false => Ok(()),
        }
    }

    /// Reserves memory for a transaction's blocks and `growth_bytes` of index. Returns the bytes that are wanted if the
    /// capacity has less left.
    pub fn reserve(
        &self,
        arriving: &[Block],
        growth_bytes: u64,
        purpose: Purpose,
        index: &IndexCounters,
        capacity_bytes: Option<u64>,
    ) -> Result<Reserved<'_>, u64> {
        let all_bytes = &self.reserved_bytes;
        let Some(capacity_bytes) = capacity_bytes else { return Ok(Reserved { all_bytes, bytes: 0 }) };
        let bytes = arriving.iter().map(|block| memory_bytes(block.len())).sum::<i64>() as u64 + growth_bytes;
        let before = all_bytes.fetch_add(bytes, Ordering::Relaxed);
        let reserved = Reserved { all_bytes, bytes };
        let most = capacity_bytes + if purpose.is_write() { 0 } else { SHRINK_BYTES };
        if bytes > 0 && self.taken_bytes(index) + before + bytes > most { Err(bytes) } else { Ok(reserved) }
    }

    /// Counts an exchange; returns the blocks that are left over.
    pub fn count(&self, exchange: Exchange<'_>) -> FewBlocks {
        let Exchange { freed, live_bytes, memory_bytes, .. } = exchange;
        // A block written again, whole, changes nothing.
        if live_bytes != 0 {
            self.live_bytes.fetch_add(live_bytes, Ordering::Relaxed);
        }
        if memory_bytes != 0 {
            self.memory_bytes.fetch_add(memory_bytes, Ordering::Relaxed);
        }
        freed
    }

    /// Returns the bytes that the index refers to.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Returns the memory that blocks take.
    pub fn block_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Returns the memory that blocks and the index take.
    pub fn taken_bytes(&self, index: &IndexCounters) -> u64 {
        let Footprint { extent_memory_bytes, snapshot_bytes, .. } = index.footprint();
        self.block_bytes() + (extent_memory_bytes + snapshot_bytes).max(0) as u64
    }
}

/// Returns the data of a plan, whose pieces lie in blocks of the same order. A single piece is shared with the block, if it is
/// most of it.
pub fn read(plan: &RangePlan, blocks: &mut impl Iterator<Item = Block>) -> Bytes {
    if let [piece] = &plan.pieces[..]
        && piece.start() == plan.start
        && piece.len() == plan.data_bytes as u64
        && let Place::Data { chunk, skip } = piece.place()
        && let Some(block) = blocks.next()
    {
        let (from, len) = (skip as usize, plan.data_bytes);
        return match len >= SHARED_BYTES_MIN && 2 * len >= chunk.len as usize {
            true if len == block.len() => Bytes::from_owner(block),
            true => Bytes::from_owner(block).slice(from..from + len),
            false => Bytes::copy_from_slice(&block[from..from + len]),
        };
    }
    let mut data = BytesMut::zeroed(plan.data_bytes);
    for (piece, block) in plan.pieces.iter().zip(blocks) {
        let Place::Data { skip, .. } = piece.place() else { continue };
        let at = (piece.start() - plan.start) as usize;
        // What is cut off the answer may be in the plan.
        let Some(target) = data.get_mut(at..at + piece.len() as usize) else { continue };
        target.copy_from_slice(&block[skip as usize..skip as usize + target.len()]);
    }
    data.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(len: usize) -> Block {
        vec![len as u8; len].into()
    }

    #[test]
    fn freed_blocks_are_made_again_unless_a_reader_holds_them() {
        let piece = |byte: u8, len: usize| Bytes::from(vec![byte; len]);
        let mut blocks = blocks_of(&[piece(1, 4096), piece(2, 4096), piece(3, 512)], 65_536);
        let held = blocks[1].clone();
        let first = blocks[0].as_ptr();
        recycle(std::mem::take(&mut blocks));
        let again = blocks_of(&[piece(4, 4096), piece(5, 4096), piece(6, 2048)], 65_536);
        assert_eq!(again[0].as_ptr(), first, "a block is made of one that was freed");
        assert!(again[0].iter().all(|byte| *byte == 4) && again[1].iter().all(|byte| *byte == 5));
        assert!(held.iter().all(|byte| *byte == 2), "what a reader holds stays as it is");
        recycle((0..100).map(|_| block(65_535)).collect());
        IDLE.with_borrow(|idle| {
            let bytes: usize = idle.blocks.iter().map(|block| block.len()).sum();
            assert!(idle.bytes == bytes && bytes <= IDLE_BYTES_MAX, "a thread keeps few");
        });
    }

    #[test]
    fn places_are_taken_again() {
        let mut blocks = Blocks::default();
        let numbers: Vec<u32> = (1..=100).map(|len| blocks.insert(block(len))).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
        assert_eq!((blocks.release(6, 3), blocks.release(6, 4)), (4, 0));
        assert_eq!(blocks.remove(6).map(|block| block.len()), Some(7));
        assert_eq!(blocks.remove(9).map(|block| block.len()), Some(10));
        assert_eq!((blocks.insert(block(5)), blocks.insert(block(6)), blocks.insert(block(7))), (9, 6, 100));
        assert_eq!((blocks.get(9).len(), blocks.get(6).len(), blocks.get(99).len()), (5, 6, 100));
        for (number, _) in blocks.live().collect::<Vec<_>>() {
            assert!(blocks.remove(number).is_some());
        }
        assert!(blocks.places.is_empty(), "a shard without blocks keeps no places");
        assert_eq!(blocks.insert(block(1)), 0);
    }
}
