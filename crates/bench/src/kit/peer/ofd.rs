//! The kernel's byte-range locks: those of open file descriptions (`F_OFD_SETLKW`), one range by one call.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;

use nacre_quantity::Escaped;

use crate::BenchError;

/// A file as one client has it open, with the locks that it holds through it.
pub(crate) struct Locks(File);

impl Locks {
    /// Opens a file, and makes it if there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, BenchError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        file.map(Self).map_err(BenchError::io(format!("open {}", Escaped::of(&path))))
    }

    /// Locks bytes exclusively. Blocks while others hold some of them.
    pub(crate) fn lock(&self, offset: u64, length: u64) -> Result<(), BenchError> {
        self.set(libc::F_WRLCK, offset, length)
    }

    /// Releases bytes.
    pub(crate) fn unlock(&self, offset: u64, length: u64) -> Result<(), BenchError> {
        self.set(libc::F_UNLCK, offset, length)
    }

    fn set(&self, kind: libc::c_int, offset: u64, length: u64) -> Result<(), BenchError> {
        let range = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: offset as libc::off_t,
            l_len: length as libc::off_t,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open as long as the file is, and the range outlives the call, which only reads it.
        match unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_SETLKW, &raw const range) } {
            -1 => Err(BenchError::io("lock bytes of a file")(std::io::Error::last_os_error())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_locked_against_other_descriptions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let (one, other) = (Locks::open(&path).unwrap(), Locks::open(&path).unwrap());
        one.lock(0, 2).unwrap();
        other.lock(2, 1).unwrap();
        let waiting = std::thread::spawn(move || other.lock(1, 1));
        one.unlock(0, 1).unwrap();
        assert!(!waiting.is_finished());
        one.unlock(1, 1).unwrap();
        waiting.join().unwrap().unwrap();
    }
}
