//! File contents, copied or compared between two open files; holes are skipped.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

use crate::control::Control;

/// The number of bytes that are read and written at once.
pub const BUFFER_BYTES: usize = 256 << 10;

/// The number of bytes that the system is asked to copy at once; the stop switch is checked in between.
const PORTION_BYTES: u64 = 8 << 20;

/// The size below which a file is copied with one read and one write.
pub const SHORT_BYTES: u64 = 64 << 10;

/// The system's short cuts between the two places that were found not to work.
#[derive(Debug, Default)]
pub struct ShortCuts {
    no_range: AtomicBool,
    no_clone: AtomicBool,
    /// True if the system does not give a name on condition that no entry has it.
    pub no_exclusive: AtomicBool,
}

/// Two open files whose contents are copied or compared.
pub struct Pair<'a> {
    pub source: BorrowedFd<'a>,
    pub target: BorrowedFd<'a>,
    /// True if the source has holes.
    pub sparse: bool,
    pub control: &'a Control,
    pub cuts: &'a ShortCuts,
    /// The counter of finished bytes.
    pub bytes: &'a AtomicU64,
}

/// The reason why a range was not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// A system call failed.
    Failed(Errno),
    /// The copy was asked to stop.
    Stopped,
    /// The source ended before its stated size.
    Ended,
    /// The contents differ; only when comparing.
    Differs,
}

impl From<Errno> for Halt {
    fn from(errno: Errno) -> Halt {
        Halt::Failed(errno)
    }
}

impl Pair<'_> {
    /// Makes the empty target share all of the source's blocks; returns whether the file system could.
    pub fn share(&self) -> bool {
        if self.cuts.no_clone.load(Ordering::Relaxed) {
            return false;
        }
        let shared = rustix::fs::ioctl_ficlone(self.target, self.source);
        if shared.is_err() {
            self.cuts.no_clone.store(true, Ordering::Relaxed);
        }
        shared.is_ok()
    }

    /// Copies a range. A source that ends earlier is [`Halt::Ended`].
    pub fn copy(&self, from: u64, to: u64, buffer: &mut [u8]) -> Result<(), Halt> {
        self.data(from, to, |from, to| self.copy_data(from, to, buffer))
    }

    /// Copies a source without a stated size, as files of /proc, up to the end of reading, and returns the number of
    /// bytes.
    pub fn copy_to_end(&self, buffer: &mut [u8]) -> Result<u64, Halt> {
        let mut at = 0;
        loop {
            self.go_on()?;
            let len = retry_on_intr(|| rustix::io::pread(self.source, &mut *buffer, at))?;
            if len == 0 {
                return Ok(at);
            }
            self.write(&buffer[..len], at)?;
            at += len as u64;
        }
    }

    /// Compares two files up to the end of reading, whatever their stated sizes.
    pub fn compare_to_end(&self, buffer: &mut [u8]) -> Result<(), Halt> {
        let (a, b) = buffer.split_at_mut(buffer.len() / 2);
        let mut at = 0;
        loop {
            self.go_on()?;
            let len = retry_on_intr(|| rustix::io::pread(self.source, &mut *a, at))?;
            // One byte more is asked for, so that a copy that goes on behind its source is noticed.
            let wanted = (len + 1).min(b.len());
            let there = read_full(self.target, &mut b[..wanted], at)?;
            if a[..len] != b[..there.min(len)] || len == 0 && there > 0 {
                return Err(Halt::Differs);
            }
            if len == 0 {
                return Ok(());
            }
            at += len as u64;
        }
    }

    /// Compares a range, reading holes in both as zeros.
    pub fn compare(&self, from: u64, to: u64, buffer: &mut [u8]) -> Result<(), Halt> {
        let (a, b) = buffer.split_at_mut(buffer.len() / 2);
        let mut at = from;
        while at < to {
            self.go_on()?;
            let wanted = (to - at).min(a.len() as u64) as usize;
            let len = retry_on_intr(|| rustix::io::pread(self.source, &mut a[..wanted], at))?;
            let there = read_full(self.target, &mut b[..len], at)?;
            if len == 0 || a[..len] != b[..there] {
                return Err(Halt::Differs);
            }
            at += len as u64;
            self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn go_on(&self) -> Result<(), Halt> {
        if self.control.is_stopped() { Err(Halt::Stopped) } else { Ok(()) }
    }

    /// Calls `part` for every part of a range that is not a hole.
    fn data(
        &self,
        from: u64,
        to: u64,
        mut part: impl FnMut(u64, u64) -> Result<(), Halt>,
    ) -> Result<(), Halt> {
        if !self.sparse {
            return part(from, to);
        }
        let mut at = from;
        while at < to {
            // The position of the open file moves; nobody relies on it.
            let begin = match rustix::fs::seek(self.source, SeekFrom::Data(at)) {
                Ok(begin) => begin.max(at).min(to),
                // There is only a hole left.
                Err(Errno::NXIO) => to,
                Err(Errno::INVAL | Errno::NOTSUP) => return part(at, to),
                Err(errno) => return Err(errno.into()),
            };
            self.bytes.fetch_add(begin - at, Ordering::Relaxed);
            if begin == to {
                break;
            }
            let end = match rustix::fs::seek(self.source, SeekFrom::Hole(begin)) {
                Ok(end) => end.max(begin + 1).min(to),
                // It was cut off meanwhile.
                Err(Errno::NXIO) => return Err(Halt::Ended),
                Err(errno) => return Err(errno.into()),
            };
            part(begin, end)?;
            at = end;
        }
        Ok(())
    }

    fn copy_data(&self, mut from: u64, to: u64, buffer: &mut [u8]) -> Result<(), Halt> {
        if to - from > SHORT_BYTES && !self.cuts.no_range.load(Ordering::Relaxed) {
            while from < to {
                self.go_on()?;
                let (mut at, mut there) = (from, from);
                let len = (to - from).min(PORTION_BYTES) as usize;
                let copied = retry_on_intr(|| {
                    rustix::fs::copy_file_range(
                        self.source,
                        Some(&mut at),
                        self.target,
                        Some(&mut there),
                        len,
                    )
                });
                match copied {
                    // The end, or a file system that cannot: reading tells.
                    Ok(0) => break,
                    Ok(len) => {
                        from += len as u64;
                        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
                    }
                    Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => return Err(errno.into()),
                    Err(_) => {
                        self.cuts.no_range.store(true, Ordering::Relaxed);
                        break;
                    }
                }
            }
        }
        while from < to {
            self.go_on()?;
            let wanted = (to - from).min(buffer.len() as u64) as usize;
            let len = retry_on_intr(|| rustix::io::pread(self.source, &mut buffer[..wanted], from))?;
            if len == 0 {
                return Err(Halt::Ended);
            }
            self.write(&buffer[..len], from)?;
            from += len as u64;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<(), Halt> {
        let mut written = 0;
        while written < bytes.len() {
            written +=
                retry_on_intr(|| rustix::io::pwrite(self.target, &bytes[written..], at + written as u64))?;
        }
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Fills a buffer from a position in a file, or up to the file's end, and returns the number of bytes read.
fn read_full(file: BorrowedFd<'_>, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut have = 0;
    while have < buffer.len() {
        match retry_on_intr(|| rustix::io::pread(file, &mut buffer[have..], at + have as u64))? {
            0 => break,
            read => have += read,
        }
    }
    Ok(have)
}

/// Opens a file for reading, without changing its access time where the system allows that: for its owner and for root.
pub fn open_for_reading(directory: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    // A pipe that took the file's place must not make this wait for somebody to write into it.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |flags| retry_on_intr(|| rustix::fs::openat(&directory, name, flags, Mode::empty()));
    match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open(flags),
        opened => opened,
    }
}

/// Drops a file's pages from the page cache, so that reading it reads the device.
pub fn forget(file: impl AsFd) {
    // Only advice: if it is not taken, memory is compared.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}
