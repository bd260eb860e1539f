//! The contents of a block: the count of its successful updates, and a count for each writer.
//!
//! ```text
//! 0        8                                          len-8      len
//! | count  | update counts of writers (u32 each) ...  |  seal    |
//! ```
//!
//! All numbers are little-endian. The seal repeats the count, so that a partially written block is detected. A block
//! that was never written is all zeros, and so are the bytes past the end of a fork. Writer `w` owns the count `w
//! modulo slots`; a block too small for any has none, and only the total is counted.

use bytes::{Bytes, BytesMut};

/// The size of the smallest block in bytes: the count and the seal.
pub(crate) const BLOCK_BYTES_MIN: u32 = 16;

/// Returns the number of writers' counts that fit into a block.
pub(crate) fn slots(block_bytes: u32) -> u32 {
    (block_bytes - BLOCK_BYTES_MIN) / 4
}

/// Returns the count of successful updates, or `None` if the block's two ends disagree, as after a torn write.
pub(crate) fn count(block: &[u8], block_bytes: u32) -> Option<u64> {
    if block.is_empty() {
        return Some(0);
    }
    if block.len() != block_bytes as usize {
        return None;
    }
    let count = number(block, 0);
    (count == number(block, block.len() - 8)).then_some(count)
}

/// Returns the count of one writer slot.
pub(crate) fn slot_count(block: &[u8], slot: u32) -> u32 {
    let at = 8 + 4 * slot as usize;
    block
        .get(at..at + 4)
        .map_or(0, |bytes| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
}

/// Returns the block after one more update by `writer`, or `None` if the block is torn. Changes the bytes in place if
/// they are not shared.
pub(crate) fn update(block: Bytes, block_bytes: u32, writer: u32) -> Option<Bytes> {
    let count = count(&block, block_bytes)? + 1;
    let mut block = match block.try_into_mut() {
        Ok(block) if !block.is_empty() => block,
        Ok(_) => BytesMut::zeroed(block_bytes as usize),
        Err(shared) if shared.is_empty() => BytesMut::zeroed(block_bytes as usize),
        Err(shared) => BytesMut::from(&shared[..]),
    };
    let seal = block.len() - 8;
    block[..8].copy_from_slice(&count.to_le_bytes());
    block[seal..].copy_from_slice(&count.to_le_bytes());
    if let Some(slot) = writer.checked_rem(slots(block_bytes)) {
        let next = slot_count(&block, slot) + 1;
        let at = 8 + 4 * slot as usize;
        block[at..at + 4].copy_from_slice(&next.to_le_bytes());
    }
    Some(block.freeze())
}

fn number(block: &[u8], at: usize) -> u64 {
    block[at..at + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_are_counted_as_a_whole_and_per_writer() {
        let mut block = Bytes::new();
        for writer in [0, 3, 3, 1023] {
            block = update(block, 4096, writer).unwrap();
        }
        assert_eq!(block.len(), 4096);
        assert_eq!(count(&block, 4096), Some(4));
        assert_eq!(slots(4096), 1020);
        assert_eq!(slot_count(&block, 0), 1);
        // Writer 1023 shares the slot of writer 3.
        assert_eq!(slot_count(&block, 3), 3);
    }

    #[test]
    fn a_shared_block_is_copied_not_changed() {
        let before = update(Bytes::new(), 64, 1).unwrap();
        let after = update(before.clone(), 64, 1).unwrap();
        assert_eq!((count(&before, 64), count(&after, 64)), (Some(1), Some(2)));
    }

    #[test]
    fn the_smallest_block_counts_the_whole_alone() {
        let block = update(update(Bytes::new(), 16, 5).unwrap(), 16, 6).unwrap();
        assert_eq!(count(&block, 16), Some(2));
    }

    #[test]
    fn a_torn_block_shows() {
        let block = update(Bytes::new(), 64, 0).unwrap();
        let mut torn = block.to_vec();
        torn[0] = 9;
        assert_eq!(count(&torn, 64), None);
        assert_eq!(count(&block[..32], 64), None);
        assert!(update(torn.into(), 64, 0).is_none());
    }
}
