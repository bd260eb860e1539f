//! Contents: copied or compared between two open files, holes left out.

use crate::control::Control;
use rustix::fs::SeekFrom;
use rustix::io::{Errno, retry_on_intr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that are read and written at once.
pub const BUFFER_BYTES: usize = 256 << 10;

/// Bytes that the system is asked to copy at once; between them is looked whether to stop.
const PORTION_BYTES: u64 = 8 << 20;

/// What is shorter than this is not worth more than one read and one write.
pub const SHORT_BYTES: u64 = 64 << 10;

/// Which of the system's short cuts work between the two places; found out by trying.
#[derive(Debug, Default)]
pub struct ShortCuts {
    no_range: AtomicBool,
    no_clone: AtomicBool,
}

/// Two open files.
pub struct Pair<'a> {
    pub source: BorrowedFd<'a>,
    pub target: BorrowedFd<'a>,
    /// The source has holes.
    pub sparse: bool,
    pub control: &'a Control,
    pub cuts: &'a ShortCuts,
    /// Counts bytes as they are done.
    pub bytes: &'a AtomicU64,
}

/// Why a range was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// The system's reason.
    Failed(Errno),
    /// It was told to stop.
    Stopped,
    /// The two differ: only when they are compared.
    Differs,
}

impl From<Errno> for Halt {
    fn from(errno: Errno) -> Halt {
        Halt::Failed(errno)
    }
}

impl Pair<'_> {
    /// Has the file system share all of the source's blocks with the empty target: whether it could.
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

    /// Copies a range. A source that ends earlier ends the copy; that it changed is found out by its times.
    pub fn copy(&self, from: u64, to: u64, buffer: &mut [u8]) -> Result<(), Halt> {
        self.data(from, to, |from, to| self.copy_data(from, to, buffer))
    }

    /// Compares a range, and takes holes in both for what they read as.
    pub fn compare(&self, from: u64, to: u64, buffer: &mut [u8]) -> Result<(), Halt> {
        let (a, b) = buffer.split_at_mut(buffer.len() / 2);
        let mut at = from;
        while at < to {
            self.go_on()?;
            let wanted = (to - at).min(a.len() as u64) as usize;
            let len = retry_on_intr(|| rustix::io::pread(self.source, &mut a[..wanted], at))?;
            let mut have = 0;
            while have < len {
                let read =
                    retry_on_intr(|| rustix::io::pread(self.target, &mut b[have..len], at + have as u64))?;
                if read == 0 {
                    return Err(Halt::Differs);
                }
                have += read;
            }
            if a[..len] != b[..len] {
                return Err(Halt::Differs);
            }
            if len == 0 {
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
                Err(Errno::NXIO) => break,
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
                break;
            }
            let mut written = 0;
            while written < len {
                written += retry_on_intr(|| {
                    rustix::io::pwrite(self.target, &buffer[written..len], from + written as u64)
                })?;
            }
            from += len as u64;
            self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Has the system forget what it keeps of a file in memory, so that reading it asks the device.
pub fn forget(file: impl AsFd) {
    // Only advice: if it is not taken, memory is compared.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}
