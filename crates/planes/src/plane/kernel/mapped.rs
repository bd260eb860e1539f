//! Arrays that user space shares with programs in the kernel. All unsafe code of the kernel planes is here.
//!
//! An array is seen as words of 64 bits, each read and written atomically, whatever programs do meanwhile. The meaning
//! of the words is defined in `bpf/reflect.h`.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::{io, slice};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// An array map, mapped into this process.
#[derive(derive_more::Debug)]
#[debug("Mapped")]
pub struct Mapped {
    words: NonNull<AtomicU64>,
    bytes: usize,
    words_each: usize,
    entries: u32,
}

// SAFETY: the memory belongs to this value alone as far as this process is concerned, and is only reached by atomics.
unsafe impl Send for Mapped {}
// SAFETY: as above; shared references give out nothing but atomics.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps an array that was made with `BPF_F_MMAPABLE` and holds `entries` of `words_each` words.
    ///
    /// # Errors
    /// That of `mmap`.
    pub fn new(map: impl AsFd, entries: u32, words_each: usize) -> io::Result<Self> {
        let bytes = (entries as usize * words_each * 8).next_multiple_of(rustix::param::page_size());
        // SAFETY: the kernel chooses an address where nothing is mapped, and refuses a length beyond the array's pages.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.as_fd(),
                0,
            )
        }?;
        let words = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapped { words, bytes, words_each, entries })
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the length of the mapping in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the words of one entry, if there is one.
    pub fn get(&self, index: u32) -> Option<&[AtomicU64]> {
        (index < self.entries).then(|| self.entry(index))
    }

    /// Returns the words of one entry.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn entry(&self, index: u32) -> &[AtomicU64] {
        assert!(index < self.entries, "an index is of an entry");
        // SAFETY: the mapping lives as long as `self`, is aligned to pages and at least `entries * words_each` words long,
        // and any bits are a valid atomic. Others change it only by whole words or by atomic operations.
        unsafe {
            slice::from_raw_parts(self.words.as_ptr().add(index as usize * self.words_each), self.words_each)
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and no reference outlives `self`. It cannot fail but for arguments
        // that no mapping has.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), self.bytes) };
    }
}
