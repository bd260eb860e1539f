//! The memory of one machine: small blocks from lists of free ones by size, large ones from the process's allocator.
//!
//! A machine is used by one thread at a time, so that taking a block and giving it back cost a few instructions each. What
//! small blocks took from the process stays the machine's until it is dropped.

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::cell::{Cell, RefCell};
use std::ptr;

/// The alignment that Lua expects of its allocator, and the step between the sizes of small blocks.
const ALIGNMENT: usize = 16;
/// The largest small block, in bytes.
const SMALL_BYTES_MAX: usize = 512;
/// The bytes that are taken from the process at once for small blocks.
const CHUNK_BYTES: usize = 32 << 10;
const CHUNK: Layout = match Layout::from_size_align(CHUNK_BYTES, ALIGNMENT) {
    Ok(layout) => layout,
    Err(_) => panic!("the size of a chunk is a multiple of its alignment"),
};

/// A free block: it holds the address of the next one of its size.
struct Free {
    next: *mut Free,
}

/// The blocks of a machine.
pub(super) struct Blocks {
    /// The free blocks of each small size.
    free: [Cell<*mut Free>; SMALL_BYTES_MAX / ALIGNMENT],
    /// The part of the last chunk that was never used.
    rest: Cell<(*mut u8, usize)>,
    chunks: RefCell<Vec<*mut u8>>,
}

/// Returns the index of the size of small blocks that has room for `bytes`; `bytes` is 1 to [`SMALL_BYTES_MAX`].
fn class(bytes: usize) -> usize {
    (bytes - 1) / ALIGNMENT
}

fn large(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGNMENT).ok()
}

impl Blocks {
    pub fn new() -> Self {
        Self {
            free: [const { Cell::new(ptr::null_mut()) }; SMALL_BYTES_MAX / ALIGNMENT],
            rest: Cell::new((ptr::null_mut(), 0)),
            chunks: RefCell::new(Vec::new()),
        }
    }

    /// Returns the bytes that were taken for small blocks.
    pub fn small_bytes(&self) -> usize {
        self.chunks.borrow().len() * CHUNK_BYTES
    }

    /// Returns a block of `bytes`, at least 1, or null if there is no memory.
    pub fn take(&self, bytes: usize) -> *mut u8 {
        if bytes > SMALL_BYTES_MAX {
            // SAFETY: the size is not zero.
            return large(bytes).map_or(ptr::null_mut(), |layout| unsafe { alloc(layout) });
        }
        let class = class(bytes);
        let first = self.free[class].get();
        if first.is_null() {
            return self.carve((class + 1) * ALIGNMENT);
        }
        // SAFETY: a free block holds its successor, and belongs to nobody else.
        self.free[class].set(unsafe { (*first).next });
        first.cast()
    }

    /// Takes a small block from the last chunk, or a new one.
    fn carve(&self, bytes: usize) -> *mut u8 {
        let (mut start, mut left) = self.rest.get();
        if left < bytes {
            // What is left of the last chunk is lost, less than a block.
            // SAFETY: the size of a chunk is not zero.
            start = unsafe { alloc(CHUNK) };
            if start.is_null() {
                return start;
            }
            self.chunks.borrow_mut().push(start);
            left = CHUNK_BYTES;
        }
        // SAFETY: the chunk has `left` bytes from `start` on, and `left` is at least `bytes`.
        self.rest.set((unsafe { start.add(bytes) }, left - bytes));
        start
    }

    /// Takes a block back.
    ///
    /// # Safety
    ///
    /// The block is one of these with this size, and is not used again.
    pub unsafe fn give(&self, block: *mut u8, bytes: usize) {
        if bytes > SMALL_BYTES_MAX {
            if let Some(layout) = large(bytes) {
                // SAFETY: the block was allocated with this layout.
                unsafe { dealloc(block, layout) };
            }
            return;
        }
        let (class, block) = (class(bytes), block.cast::<Free>());
        // SAFETY: the block has room for an address, is aligned for it, and is nobody's any more.
        unsafe { block.write(Free { next: self.free[class].get() }) };
        self.free[class].set(block);
    }

    /// Resizes a block, and returns its address then; null if there is no memory, and the block stays as it was.
    ///
    /// # Safety
    ///
    /// The block is one of these with the old size; its old address is not used again unless null is returned. Neither
    /// size is 0.
    pub unsafe fn resize(&self, block: *mut u8, old: usize, new: usize) -> *mut u8 {
        let (was_small, is_small) = (old <= SMALL_BYTES_MAX, new <= SMALL_BYTES_MAX);
        if was_small && is_small && class(old) == class(new) {
            return block;
        }
        if !was_small && !is_small {
            let Some(layout) = large(old) else { return ptr::null_mut() };
            if large(new).is_none() {
                return ptr::null_mut();
            }
            // SAFETY: the block was allocated with this layout, and the new size makes one too.
            return unsafe { realloc(block, layout, new) };
        }
        let allocated = self.take(new);
        if !allocated.is_null() {
            // SAFETY: both blocks have as many bytes, and are different ones.
            unsafe {
                ptr::copy_nonoverlapping(block, allocated, old.min(new));
                self.give(block, old);
            }
        }
        allocated
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for chunk in self.chunks.get_mut().drain(..) {
            // SAFETY: chunks are allocated with this layout. Lua's state is closed, and its large blocks given back.
            unsafe { dealloc(chunk, CHUNK) };
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn fill(block: *mut u8, bytes: usize, with: u8) {
        assert!(!block.is_null() && (block as usize).is_multiple_of(ALIGNMENT));
        // SAFETY: the block has this many bytes.
        unsafe { block.write_bytes(with, bytes) };
    }

    fn holds(block: *mut u8, bytes: usize, with: u8) -> bool {
        // SAFETY: the block has this many bytes, and was filled.
        unsafe { std::slice::from_raw_parts(block, bytes) }.iter().all(|byte| *byte == with)
    }

    #[test]
    fn blocks_do_not_overlap_and_keep_their_bytes() {
        let blocks = Blocks::new();
        let mut random = StdRng::seed_from_u64(1);
        let mut held: Vec<(*mut u8, usize, u8)> = Vec::new();
        for step in 0..20_000u32 {
            let bytes = match random.random_range(0..4) {
                0 => random.random_range(1..=2000),
                _ => random.random_range(1..=128),
            };
            let with = step as u8;
            match random.random_range(0..3) {
                0 if !held.is_empty() => {
                    let (block, bytes, with) = held.swap_remove(random.random_range(0..held.len()));
                    assert!(holds(block, bytes, with));
                    // SAFETY: it is one of the blocks, and is forgotten.
                    unsafe { blocks.give(block, bytes) };
                }
                1 if !held.is_empty() => {
                    let at = random.random_range(0..held.len());
                    let (block, old, before) = held[at];
                    // SAFETY: it is one of the blocks, and its old address is forgotten.
                    let block = unsafe { blocks.resize(block, old, bytes) };
                    assert!(holds(block, old.min(bytes), before));
                    fill(block, bytes, with);
                    held[at] = (block, bytes, with);
                }
                _ => {
                    let block = blocks.take(bytes);
                    fill(block, bytes, with);
                    held.push((block, bytes, with));
                }
            }
        }
        for (block, bytes, with) in held {
            assert!(holds(block, bytes, with));
            // SAFETY: it is one of the blocks.
            unsafe { blocks.give(block, bytes) };
        }
    }
}
