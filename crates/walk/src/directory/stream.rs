//! Reading the entries of a directory: the position, where reading ends, and whether what is left can be divided.

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Descriptor, Directory, Identity, open};
use crate::entry::FileKind;
use crate::getdents::{Record, Records, length_before};
use crate::scan::READ_BYTES_MIN;
use crate::unit::Unit;

#[derive(Default)]
pub(super) struct Stream {
    pub descriptor: Option<Arc<Descriptor>>,
    /// The position at which reading continues.
    pub position: u64,
    /// The descriptor is not at `position`.
    pub displaced: bool,
    /// The position at which reading ends, if there is one, because the entries behind it are read elsewhere.
    pub until: Option<u64>,
    /// The position at which reading began here.
    pub from: u64,
    /// The number of batches that were read since.
    pub batches: u64,
    pub ended: bool,
    /// The identity; known once it was needed.
    pub identity: Option<Identity>,
    /// Positions are valid in another opening of the directory; known once it was needed.
    pub stable: Option<bool>,
    /// Positions are hashes of the names; known when `stable` is.
    pub hashed: bool,
}

/// The number by which ext2, ext3 and ext4 are recognised.
const EXT: u64 = 0xEF53;

/// The number by which tmpfs is recognised.
const TMPFS: u64 = 0x0102_1994;

/// The position behind all entries of a directory of ext4 whose positions are hashes: 31 bits, and 32 more.
const HASH_END: u64 = (1 << 63) - 1;

/// A position that no directory reaches whose positions are offsets in bytes.
const HASH_MIN: u64 = 1 << 40;

/// The number of unread batches from which it is worth while to divide a directory.
const BATCHES_MIN: u64 = 4;

impl Stream {
    /// Returns the position in the middle of the unread entries, if many are left. Names are spread evenly over their
    /// hashes, so what was read says how many.
    fn middle(&self) -> Option<u64> {
        if !self.hashed || self.ended || self.position < HASH_MIN {
            return None;
        }
        let left = self.until.unwrap_or(HASH_END).checked_sub(self.position)?;
        let batch = self.position.checked_sub(self.from)? / self.batches.max(1);
        (batch > 0 && left / BATCHES_MIN >= batch).then_some(self.position + left / 2)
    }
}

impl<S> Directory<S> {
    /// Reads the next entries into `buffer` and returns the number of bytes read, 0 at the end. May be called only by
    /// the piece of work that is the rest of this directory.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<(Arc<Descriptor>, usize), Errno> {
        // Between having the descriptor and having the lock, another thread may close the directory and open it again,
        // as it does with a parent of what it works on. Position and descriptor belong together: what is read here has to
        // be read through the descriptor that stands under this lock.
        let (descriptor, mut stream) = loop {
            let descriptor = self.descriptor()?;
            let stream = self.stream.lock();
            if stream.descriptor.as_ref().is_some_and(|current| Arc::ptr_eq(current, &descriptor)) {
                break (descriptor, stream);
            }
        };
        if stream.ended || stream.until.is_some_and(|until| stream.position >= until) {
            return Ok((descriptor, 0));
        }
        if stream.displaced {
            rustix::fs::seek(&descriptor, SeekFrom::Start(stream.position))?;
            stream.displaced = false;
        }
        let mut len = read_records(&descriptor, buffer)?;
        if let Some(until) = stream.until {
            // The position may be from elsewhere, or the entry that began there may be gone: the next one begins there, or
            // somewhere behind it.
            len = length_before(&buffer[..len], stream.position, until);
            if is_first_behind(&descriptor, &buffer[..len], until)? {
                len = 0;
            }
        }
        stream.batches += 1;
        stream.ended = len == 0;
        Ok((descriptor, len))
    }

    /// Returns the current name of the subdirectory with that inode; `None` if it is no longer here.
    pub(crate) fn name_of(&self, inode: u64) -> Result<Option<CString>, Errno> {
        // Reading moves a position, and that of the open directory is not ours to move.
        let own = open(Some(&*self.descriptor()?), c".", true, &self.budget)?;
        let mut buffer = vec![0; 32 << 10];
        loop {
            let len = read_records(&own, &mut buffer)?;
            if len == 0 {
                return Ok(None);
            }
            let mut records = Records(&buffer[..len]);
            let is_it = |record: &Record<'_>| {
                record.inode == inode && matches!(record.kind, None | Some(FileKind::Directory))
            };
            if let Some(record) = records.find(is_it) {
                return Ok(Some(record.name.into()));
            }
        }
    }

    /// Sets the position behind the entries that were read last.
    pub(crate) fn set_position(&self, position: u64) {
        self.stream.lock().position = position;
    }

    /// Moves reading to a position that was taken from another opening of the directory, and has it end at another.
    pub(crate) fn seek(&self, position: u64, until: Option<u64>) {
        let mut stream = self.stream.lock();
        (stream.position, stream.until) = (position, until);
        stream.displaced = true;
        (stream.from, stream.batches) = (position, 0);
    }

    /// Divides the unread entries, if they are many and can be divided: the first half stays, and the second is returned as
    /// a unit of work.
    pub(crate) fn halve(&self) -> Option<Unit> {
        let (middle, until) = {
            let mut stream = self.stream.lock();
            let middle = stream.middle()?;
            (middle, stream.until.replace(middle))
        };
        Some(Unit { position: Some(middle), until, ..self.unit() })
    }

    /// Returns the position at which reading continues, if positions are stable.
    pub(crate) fn stable_position(&self) -> Option<u64> {
        let stream = self.stream.lock();
        (stream.stable == Some(true)).then_some(stream.position)
    }

    /// Determines whether a position of this directory is valid in another opening of it: true of file systems whose
    /// positions are kept for NFS servers, or are the server's cookies. Elsewhere a position may be a mere count, and
    /// the rest of a directory stays with the descriptor that began to read it.
    pub(crate) fn learn_stability(&self, descriptor: &Descriptor) {
        let mut stream = self.stream.lock();
        if stream.stable.is_none() {
            const STABLE: [u64; 9] = [
                EXT,         // hash of the name
                0x5846_5342, // XFS: place in the directory
                0x9123_683E, // btrfs: number of the entry
                TMPFS,       // number of the entry
                0x6969,      // NFS: the server's cookie
                0x0BD0_0BD0, // Lustre: hash of the name
                0x00C3_6400, // CephFS: hash of the name
                0x4750_4653, // GPFS
                0x2FC1_2FC1, // ZFS: place in the directory
            ];
            let kind = rustix::fs::fstatfs(descriptor).map(|about| about.f_type as u64);
            // Before, a position of tmpfs was a mere count.
            let numbered = || is_at_least(rustix::system::uname().release(), (6, 6));
            let stable = kind.is_ok_and(|kind| STABLE.contains(&kind) && (kind != TMPFS || numbered()));
            stream.stable = Some(stable);
            stream.hashed = stable && kind == Ok(EXT);
        }
    }

    /// Notes that no entries are read from it any more.
    pub(crate) fn end(&self) {
        self.stream.lock().ended = true;
    }
}

fn read_records(descriptor: &Descriptor, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match crate::getdents::read(descriptor.as_fd(), buffer) {
            Ok(len) => return Ok(len),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}

/// Returns whether the first of these records, which were read from a position at which none need begin, begins at `until` or
/// behind it, where entries are another's. Afterwards the descriptor is anywhere, but nothing before `until` is left to read then.
fn is_first_behind(descriptor: &Descriptor, records: &[u8], until: u64) -> Result<bool, Errno> {
    // Where it ends says so, unless that is behind `until`.
    let Some(first) = Records(records).next().filter(|first| first.next > until) else { return Ok(false) };
    rustix::fs::seek(descriptor, SeekFrom::Start(until))?;
    let mut behind = vec![0; READ_BYTES_MIN];
    let len = read_records(descriptor, &mut behind)?;
    // Something that was just made may come before it.
    let is_it = |record: Record<'_>| (record.name, record.inode) == (first.name, first.inode);
    Ok(Records(&behind[..len]).any(is_it))
}

/// Returns whether a release of Linux, such as 6.6.1-generic, is this one or a later one.
fn is_at_least(release: &CStr, least: (u32, u32)) -> bool {
    let numbers = release.to_bytes().split(|byte| !byte.is_ascii_digit());
    let mut numbers = numbers.map(|digits| std::str::from_utf8(digits).ok()?.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= least,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::directory::{Budget, TreePosition};

    /// Returns the names of the entries between two positions, each with the position behind it.
    fn between(path: &CStr, position: u64, until: Option<u64>) -> Vec<(CString, u64)> {
        let budget = Arc::new(Budget::new(100, false));
        let descriptor = open(None, path, true, &budget).unwrap();
        let directory =
            Directory::new(TreePosition { parent: None, name: path, root: 0, inode: 0 }, descriptor, ());
        directory.seek(position, until);
        let (mut found, mut buffer) = (Vec::new(), vec![0; 600]);
        loop {
            let (_, len) = directory.read(&mut buffer).unwrap();
            if len == 0 {
                return found;
            }
            for record in Records(&buffer[..len]) {
                found.push((record.name.to_owned(), record.next));
                directory.set_position(record.next);
            }
        }
    }

    #[test]
    fn between_two_positions_are_the_entries_that_begin_there() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..300 {
            std::fs::write(folder.path().join(format!("file with number {number}")), "").unwrap();
        }
        let path = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        let all = between(&path, 0, None);
        assert_eq!(all.len(), 300);
        let kind = rustix::fs::statfs(folder.path()).unwrap().f_type as u64;
        if kind != EXT || all[0].1 < HASH_MIN {
            // Nothing is divided there.
            return;
        }
        for place in [1, 2, 100, 297] {
            // Each begins where the one before it ends.
            let [begin, end] = [all[place - 1].1, all[place].1];
            assert_eq!(between(&path, begin, Some(end)), all[place..=place]);
            assert_eq!(between(&path, begin, Some(end + 1)), all[place..place + 2]);
            assert_eq!(between(&path, begin, None), all[place..]);
            assert_eq!(between(&path, 0, Some(end)), all[..=place]);
            // At none of these an entry begins.
            assert_eq!(between(&path, begin + 1, Some(end)), []);
            assert_eq!(between(&path, begin + 1, Some(end + 1)), all[place + 1..place + 2]);
            assert_eq!(between(&path, begin + 1, None), all[place + 1..]);
            assert_eq!(between(&path, end, Some(begin)), []);
        }
    }

    #[test]
    fn an_entry_behind_the_end_is_another_s_also_after_the_last_one_before_it_was_removed() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..300 {
            std::fs::write(folder.path().join(format!("file with number {number}")), "").unwrap();
        }
        let path = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        let all = between(&path, 0, None);
        let budget = Arc::new(Budget::new(100, false));
        let descriptor = open(None, &path, true, &budget).unwrap();
        let directory =
            Directory::new(TreePosition { parent: None, name: &path, root: 0, inode: 0 }, descriptor, ());
        directory.learn_stability(&directory.descriptor().unwrap());
        if !directory.stream.lock().hashed || all[0].1 < HASH_MIN {
            return;
        }
        directory.seek(all[99].1, Some(all[101].1));
        // One record at a time.
        let mut buffer = vec![0; 64];
        let (_, len) = directory.read(&mut buffer).unwrap();
        let read: Vec<CString> = Records(&buffer[..len]).map(|record| record.name.to_owned()).collect();
        assert_eq!(read, [all[100].0.clone()]);
        directory.set_position(all[100].1);
        std::fs::remove_file(folder.path().join(all[101].0.to_str().unwrap())).unwrap();
        // The open directory would still know of it.
        directory.close_for_now();
        assert_eq!(directory.read(&mut buffer).unwrap().1, 0);
    }

    #[test]
    fn many_unread_entries_are_divided_in_the_middle() {
        let stream = |position, until, batches| Stream {
            position,
            until,
            batches,
            stable: Some(true),
            hashed: true,
            ..Stream::default()
        };
        let eighth = 1 << 60;
        assert_eq!(stream(eighth, None, 1).middle(), Some(eighth + (HASH_END - eighth) / 2));
        assert_eq!(stream(eighth, Some(5 * eighth), 1).middle(), Some(3 * eighth));
        // Few batches are left, or none, or what there is cannot be known.
        assert_eq!(stream(eighth, Some(4 * eighth), 1).middle(), None);
        assert_eq!(stream(eighth, Some(4 * eighth), 2).middle(), Some(eighth + 3 * eighth / 2));
        assert_eq!(stream(HASH_END, None, 1).middle(), None);
        assert_eq!(stream(eighth, Some(eighth - 1), 1).middle(), None);
        assert_eq!(stream(4096, None, 1).middle(), None);
        assert_eq!(Stream { hashed: false, ..stream(eighth, None, 1) }.middle(), None);
        assert_eq!(Stream { from: eighth + 1, ..stream(eighth, None, 1) }.middle(), None);
        assert_eq!(Stream { from: eighth, ..stream(eighth, None, 0) }.middle(), None);
    }

    #[test]
    fn releases_are_compared_by_their_numbers() {
        for release in [c"6.6.0", c"6.6", c"6.18.44-generic", c"7.0-rc1", c"10.1.2"] {
            assert!(is_at_least(release, (6, 6)), "{release:?}");
        }
        for release in [c"6.5.13", c"5.15.0-91-generic", c"4.18.0-553.el8_10.x86_64", c"6", c"", c"six.six"] {
            assert!(!is_at_least(release, (6, 6)), "{release:?}");
        }
    }
}
