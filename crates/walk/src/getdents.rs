//! Reading directories: one system call fills a large buffer, and its records are taken apart here.
//!
//! The standard library's iterator hides the position behind each record and the end of the buffer; both are needed to
//! share out the rest of a directory.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::entry::FileKind;

/// Reads the next records of a directory into `buffer`, and returns the number of bytes read, 0 at the end.
///
/// # Errors
/// The system call's.
pub fn read(directory: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`, which nobody else can touch meanwhile.
    let read = unsafe {
        libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
    };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// A directory record: an entry's name, inode and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The entry's name.
    pub name: &'a CStr,
    /// The inode number; for a mount point, that of the directory below the mount.
    pub inode: u64,
    /// The type, where the file system gives it.
    pub kind: Option<FileKind>,
    /// The position behind this record.
    pub next: u64,
}

/// An iterator over the records in a buffer that [`read`] has filled, without "." and "..". A truncated record ends the
/// iteration.
#[derive(Clone, Debug)]
pub struct Records<'a>(pub &'a [u8]);

/// The number of bytes of a record before its name.
const HEAD_BYTES: usize = 19;

/// Returns a record with this name and no type, as if read from a directory.
pub fn record(name: &[u8]) -> Vec<u8> {
    // A name that no directory can hold becomes no record at all.
    let len = u16::try_from(HEAD_BYTES + name.len() + 1).unwrap_or(0);
    let mut record = vec![0; 16];
    record.extend_from_slice(&len.to_ne_bytes());
    record.push(libc::DT_UNKNOWN);
    record.extend_from_slice(name);
    record.push(0);
    record
}

/// Returns the number of bytes of the records in `buffer` that begin before the position `until`. The first of them begins
/// at `first`, and each of the others behind the one before it.
pub fn length_before(buffer: &[u8], first: u64, until: u64) -> usize {
    let (mut at, mut len) = (first, 0);
    while at < until
        && let Some((next, record_len)) = extent(&buffer[len..])
    {
        at = next;
        len += record_len;
    }
    len
}

/// Returns the position behind the first record, and its length.
fn extent(records: &[u8]) -> Option<(u64, usize)> {
    let (_, rest) = records.split_first_chunk::<8>()?;
    let (next, rest) = rest.split_first_chunk()?;
    let (len, _) = rest.split_first_chunk()?;
    let len = usize::from(u16::from_ne_bytes(*len));
    (HEAD_BYTES..=records.len()).contains(&len).then_some((u64::from_ne_bytes(*next), len))
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        loop {
            let (head, _) = self.0.split_at_checked(HEAD_BYTES)?;
            let (inode, rest) = head.split_first_chunk()?;
            let (next, rest) = rest.split_first_chunk()?;
            let (len, rest) = rest.split_first_chunk()?;
            let (record, others) = self.0.split_at_checked(usize::from(u16::from_ne_bytes(*len)))?;
            let name = record.get(HEAD_BYTES..)?;
            let name = name.get(..=memchr::memchr(0, name)?)?;
            // SAFETY: the first zero is the last byte. (The standard library's search takes a byte at a time.)
            let name = unsafe { CStr::from_bytes_with_nul_unchecked(name) };
            self.0 = others;
            if !matches!(name.to_bytes(), b"." | b"..") {
                let (inode, next) = (u64::from_ne_bytes(*inode), u64::from_ne_bytes(*next));
                return Some(Record { name, inode, kind: FileKind::from_directory(rest[0]), next });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn records_are_cut_in_front_of_the_first_that_begins_at_the_end_or_behind_it() {
        let mut buffer = Vec::new();
        for (name, next) in [(&b"a"[..], 10_u64), (b"b", 20), (b"c", 30)] {
            let mut one = record(name);
            one[8..16].copy_from_slice(&next.to_ne_bytes());
            assert_eq!(one.len(), 21);
            buffer.extend(one);
        }
        let lengths = [0, 1, 10, 11, 20, 21, 99].map(|until| length_before(&buffer, 0, until));
        assert_eq!(lengths, [0, 21, 21, 42, 42, 63, 63]);
        // What is not whole is no record.
        assert_eq!(length_before(&buffer[..50], 0, 99), 42);
        assert_eq!(length_before(&[0; 30], 0, 99), 0);
    }

    #[test]
    fn every_name_is_read_whatever_the_size_of_the_buffer() {
        let folder = tempfile::tempdir().unwrap();
        let mut expected: Vec<String> = (0..300).map(|number| format!("file with number {number}")).collect();
        for name in &expected {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        expected.sort();
        for size in [600, 4096, 1 << 16] {
            let directory = std::fs::File::open(folder.path()).unwrap();
            let mut buffer = vec![0; size];
            let mut names = Vec::new();
            loop {
                let len = read(directory.as_fd(), &mut buffer).unwrap();
                if len == 0 {
                    break;
                }
                for record in Records(&buffer[..len]) {
                    assert_eq!(record.kind, Some(FileKind::File));
                    names.push(record.name.to_str().unwrap().to_owned());
                }
            }
            names.sort();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn a_record_is_made_and_taken_apart() {
        let encoded = record(b"name");
        let taken = Records(&encoded).next().unwrap();
        assert_eq!(taken, Record { name: c"name", inode: 0, kind: None, next: 0 });
        assert_eq!(Records(&record(&[b'x'; 1 << 17])).count(), 0);
    }

    #[test]
    fn what_is_cut_or_nonsense_ends_the_records() {
        let mut record = vec![0; 24];
        record[16] = 24;
        record[18] = libc::DT_REG;
        record[19..22].copy_from_slice(b"abc");
        assert_eq!(Records(&record).count(), 1);
        for len in 0..24 {
            assert_eq!(Records(&record[..len]).count(), 0, "{len}");
        }
        for len in 0..24 {
            let mut short = record.clone();
            short[16] = len;
            assert!(Records(&short).count() <= 1);
        }
        assert_eq!(Records(&[0xff; 64]).count(), 0);
    }
}
