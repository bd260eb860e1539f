//! The record of a large file's finished chunks, written beside its unfinished copy, so that a later run resumes there.
//!
//! `.nacre-copy-HASH.chunks` is a head of [`HEAD_BYTES`] and then the numbers of finished chunks, u32 little-endian
//! each. The head identifies the source and its state, the size of the chunks, the file that is written, and the boot
//! of the machine (unless chunks were made durable one by one): data that was only in memory when a machine went down
//! may be missing from the copy although its number was written. The heads of records that several processes write
//! together have zeros for devices, which each machine numbers on its own. Where the boot is zeros, a part of the record
//! that was lost with a machine reads as the number of the first chunk: that chunk is copied by every run, and not recorded.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nacre_walk::directory::Identity;
use rustix::fs::{FlockOperation, Mode, OFlags, Statx};
use rustix::io::{Errno, retry_on_intr};

/// The size of the head in bytes: the magic, nine words, and the boot identity of two words.
const HEAD_BYTES: usize = 8 + 8 * 11;

const MAGIC: &[u8; 8] = b"nacrecp1";

/// The identity of a copy that a record belongs to.
pub struct Subject<'a> {
    pub source: &'a Statx,
    pub chunk_bytes: u64,
    /// The unfinished copy, and its size in bytes: it has that of the source from the beginning on.
    pub target: Identity,
    pub target_bytes: u64,
    /// The identity of this boot of the machine; zeros if that does not matter.
    pub boot: [u8; 16],
    /// Several processes write the copy, perhaps on several machines, on which devices have other numbers.
    pub together: bool,
}

impl Subject<'_> {
    fn head(&self) -> [u8; HEAD_BYTES] {
        let source = self.source;
        let (device, inode) = nacre_walk::directory::identity(source);
        let known = |device| if self.together { 0 } else { device };
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(MAGIC);
        let words = [
            known(device),
            inode,
            source.stx_size,
            source.stx_mtime.tv_sec as u64,
            // Both are below 2^30.
            u64::from(source.stx_mtime.tv_nsec) << 32 | u64::from(source.stx_ctime.tv_nsec),
            source.stx_ctime.tv_sec as u64,
            self.chunk_bytes,
            known(self.target.0),
            self.target.1,
        ];
        for (place, word) in head[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        head[HEAD_BYTES - 16..].copy_from_slice(&self.boot);
        head
    }
}

/// An open record, locked against other writers.
pub struct Record {
    file: OwnedFd,
}

impl Record {
    /// Opens or creates a record; `Err(WOULDBLOCK)` if another process has locked it, or replaces it all the time.
    pub fn open(directory: BorrowedFd<'_>, name: &CStr) -> Result<Record, Errno> {
        let flags = OFlags::RDWR
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let mut cause = Errno::AGAIN;
        for _ in 0..3 {
            let opened =
                retry_on_intr(|| rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR));
            cause = opened.as_ref().err().copied().unwrap_or(Errno::AGAIN);
            if let Ok(file) = opened
                && is_own(file.as_fd())
            {
                if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
                    == Err(Errno::WOULDBLOCK)
                {
                    return Err(Errno::WOULDBLOCK);
                }
                // Where there are no locks, the lock of the whole destination has to do. Whoever had this one may have
                // removed the record before he let go of it.
                if is_own(file.as_fd()) {
                    return Ok(Record { file });
                }
                continue;
            }
            // Something else has its name, and nothing else has a right to.
            match rustix::fs::unlinkat(directory, name, rustix::fs::AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        // A record that may not be created must not look like one that another copy holds.
        Err(cause)
    }

    /// Opens an existing record to add to it, while the process that this one works with has its lock.
    pub fn join(directory: BorrowedFd<'_>, name: &CStr) -> Result<Record, Errno> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = retry_on_intr(|| rustix::fs::openat(directory, name, flags, Mode::empty()))?;
        if is_own(file.as_fd()) { Ok(Record { file }) } else { Err(Errno::PERM) }
    }

    /// Returns whether nothing was written to it yet.
    pub fn is_empty(&self) -> Result<bool, Errno> {
        Ok(rustix::fs::fstat(&self.file)?.st_size == 0)
    }

    /// Returns the finished chunks, if the record is of this subject.
    pub fn finished(&self, subject: &Subject<'_>) -> Result<Option<Vec<u32>>, Errno> {
        let len = rustix::fs::fstat(&self.file)?.st_size as usize;
        let chunks_max = subject.source.stx_size.div_ceil(subject.chunk_bytes) as usize;
        // Each chunk is recorded at most once. A copy that was cut off since lacks chunks that are recorded.
        if len < HEAD_BYTES
            || len > HEAD_BYTES + 4 * chunks_max
            || subject.target_bytes != subject.source.stx_size
        {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        let mut have = 0;
        while have < len {
            match retry_on_intr(|| rustix::io::pread(&self.file, &mut bytes[have..], have as u64))? {
                0 => return Ok(None),
                read => have += read,
            }
        }
        let (head, numbers) = bytes.split_at(HEAD_BYTES);
        if *head != subject.head() {
            return Ok(None);
        }
        let numbers = numbers.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number));
        // Of a record that was not lost with the machine that wrote it, a part may be: what is missing reads as zeros.
        let whole = subject.boot != [0; 16];
        Ok(Some(numbers.filter(|number| whole || *number != 0).collect()))
    }

    /// Truncates the record and writes its head.
    pub fn begin(&self, subject: &Subject<'_>) -> Result<(), Errno> {
        rustix::fs::ftruncate(&self.file, 0)?;
        self.append(&subject.head())
    }

    /// Records a finished chunk.
    pub fn add(&self, chunk: u32) -> Result<(), Errno> {
        self.append(&chunk.to_le_bytes())
    }

    fn append(&self, bytes: &[u8]) -> Result<(), Errno> {
        // As it is opened for appending, threads do not overwrite each other's.
        match retry_on_intr(|| rustix::io::write(&self.file, bytes))? {
            written if written == bytes.len() => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }
}

/// Returns whether an open file is a regular file of this user's, with no other name through which others could reach
/// it.
pub fn is_own(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        stat.st_mode & libc::S_IFMT == libc::S_IFREG
            && stat.st_nlink == 1
            && stat.st_uid == rustix::process::geteuid().as_raw()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::file::stat_open;

    #[test]
    fn a_record_is_of_one_copy_and_what_is_missing_in_it_is_no_chunk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source");
        std::fs::write(&path, vec![1; 5000]).unwrap();
        let source = stat_open(std::fs::File::open(&path).unwrap().as_fd()).unwrap();
        let directory = std::fs::File::open(folder.path()).unwrap();
        let subject = |boot, together, device| Subject {
            source: &source,
            chunk_bytes: 1000,
            target: (device, 4),
            target_bytes: 5000,
            boot,
            together,
        };
        let record = Record::open(directory.as_fd(), c"record").unwrap();
        for (boot, together, found) in
            [([7; 16], false, vec![0, 2]), ([0; 16], false, vec![2]), ([0; 16], true, vec![2])]
        {
            record.begin(&subject(boot, together, 3)).unwrap();
            record.add(0).unwrap();
            Record::join(directory.as_fd(), c"record").unwrap().add(2).unwrap();
            assert_eq!(record.finished(&subject(boot, together, 3)), Ok(Some(found.clone())));
            // Only what several machines write has a device of no number.
            let elsewhere = together.then_some(found);
            assert_eq!(record.finished(&subject(boot, together, 9)), Ok(elsewhere));
            // What was recorded may be behind the end by now.
            for target_bytes in [4999, 5001] {
                let cut = Subject { target_bytes, ..subject(boot, together, 3) };
                assert_eq!(record.finished(&cut), Ok(None));
            }
        }
    }
}
