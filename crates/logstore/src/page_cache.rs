//! Reads that must not wait for a device.
//!
//! Most file systems report whether the page cache has the bytes (`preadv2` with `RWF_NOWAIT`). Some do not, and then:
//!
//! - tmpfs has no device, so every read is done at once;
//! - elsewhere (overlayfs, FUSE, network file systems) a read is done at once where this process has written or read before,
//!   because the page cache most likely still has it. (It cannot be asked: the pages belong to an underlying file, which
//!   overlayfs does not show.) A read that turns out to have waited shows that memory has become scarce; then nothing of the
//!   file counts as cached until a thread that may wait has read it again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// The length in bytes of the blocks whose use is noted.
const BLOCK_BYTES: u64 = 64 << 10;
/// The maximum time of a read from memory, unless it is interrupted: this much, and a nanosecond for each byte.
const PATIENCE: Duration = Duration::from_micros(50);

/// The magic numbers of file systems without a device, by `linux/magic.h`.
const TMPFS_MAGIC: i128 = 0x0102_1994;
const RAMFS_MAGIC: i128 = 0x8584_58f6;

/// The way to read without waiting in a file system that does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadPolicy {
    /// Reads never wait.
    Always,
    /// Reads of parts that this process used before are unlikely to wait.
    Used,
}

/// The state of one file's reads that must not wait.
pub struct PageCache {
    /// Found when the file system has refused to tell.
    way: OnceLock<ReadPolicy>,
    /// A bit for each block of the file that was written or read.
    used: Box<[AtomicU64]>,
}

impl PageCache {
    /// Creates the state of a file, of which nothing is known. Parts of it that come to lie behind its present end count as
    /// not cached.
    pub fn new(file: &File) -> Self {
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let words = bytes.div_ceil(BLOCK_BYTES * u64::from(u64::BITS));
        Self { way: OnceLock::new(), used: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Fills the buffer from an offset on; returns false, with the buffer's contents undefined, rather than wait for a device.
    pub fn read_now(&self, file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        if self.way.get().is_none() {
            let wanted = buffer.len();
            match preadv2(file, &mut [io::IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
                Ok(read) => return Ok(read == wanted),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.way.get_or_init(|| way(file)) {
            ReadPolicy::Always => file.read_exact_at(buffer, offset).map(|()| true),
            ReadPolicy::Used if !self.is_used(offset, buffer.len()) => Ok(false),
            ReadPolicy::Used => {
                let begun = Instant::now();
                file.read_exact_at(buffer, offset)?;
                if begun.elapsed() > PATIENCE + Duration::from_nanos(buffer.len() as u64) {
                    self.forget();
                }
                Ok(true)
            }
        }
    }

    /// Notes that bytes were written or read.
    pub fn note(&self, offset: u64, len: usize) {
        for (word, bit) in blocks(offset, len) {
            if let Some(word) = self.used.get(word)
                && word.load(Ordering::Relaxed) & bit == 0
            {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    fn is_used(&self, offset: u64, len: usize) -> bool {
        blocks(offset, len).all(|(word, bit)| {
            self.used.get(word).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
        })
    }

    fn forget(&self) {
        self.used.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// Returns the word and the bit of each block that has a part of a range.
fn blocks(offset: u64, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let bits = u64::from(u64::BITS);
    let range = offset / BLOCK_BYTES..(offset + len as u64).div_ceil(BLOCK_BYTES);
    range.map(move |block| ((block / bits) as usize, 1 << (block % bits)))
}

fn way(file: &File) -> ReadPolicy {
    match rustix::fs::fstatfs(file).map(|system| i128::from(system.f_type)) {
        Ok(TMPFS_MAGIC | RAMFS_MAGIC) => ReadPolicy::Always,
        _ => ReadPolicy::Used,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_is_known_until_it_is_forgotten() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10 << 20).unwrap();
        let cache = PageCache::new(&file);
        assert!(!cache.is_used(0, 1));
        cache.note(BLOCK_BYTES - 1, 2);
        cache.note(63 * BLOCK_BYTES, 3 * BLOCK_BYTES as usize);
        assert!(cache.is_used(0, 2 * BLOCK_BYTES as usize));
        assert!(!cache.is_used(0, 2 * BLOCK_BYTES as usize + 1));
        assert!(cache.is_used(63 * BLOCK_BYTES, 3 * BLOCK_BYTES as usize));
        assert!(!cache.is_used(62 * BLOCK_BYTES, 3 * BLOCK_BYTES as usize));
        // Bytes behind the end that the file had at first.
        cache.note(1 << 30, 10);
        assert!(!cache.is_used(1 << 30, 10));
        cache.forget();
        assert!(!cache.is_used(0, 1) && !cache.is_used(64 * BLOCK_BYTES, 1));
    }

    #[test]
    fn what_was_not_used_is_not_read_at_once_where_nobody_tells() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        let cache = PageCache::new(&file);
        cache.way.set(ReadPolicy::Used).unwrap();
        let mut buffer = [0; 4096];
        assert!(!cache.read_now(&file, 4096, &mut buffer).unwrap());
        assert_eq!(buffer, [0; 4096]);
        cache.note(4096, 4096);
        assert!(cache.read_now(&file, 4096, &mut buffer).unwrap());
        assert_eq!(buffer, [7; 4096]);
        cache.note(4096, 4096);
        assert_eq!(
            cache.read_now(&file, 8000, &mut buffer).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
