//! The names that a directory lists, also compared with those of another one.

use std::collections::hash_map::RandomState;
use std::ffi::CStr;
use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd};

use nacre_walk::directory;
use nacre_walk::getdents::Records;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::Destination;
use crate::copy::data::open_for_reading;
use crate::copy::file::{is_unfinished, stat_open};

/// The number of hashes of names that are in memory at once, which is 8 MiB.
const HASHES_MAX: usize = 1 << 20;

impl Destination {
    /// Returns whether exactly this name is listed, and not only another one that the file system takes for it.
    pub fn lists(&self, name: &CStr) -> Result<bool, Errno> {
        let mut listed = false;
        each_name(self.descriptor()?.as_fd(), |other| {
            listed = other == name;
            Ok(!listed)
        })?;
        Ok(listed)
    }

    /// Removes every entry whose name is `chosen`.
    pub fn remove_chosen(&self, chosen: impl Fn(&CStr) -> bool) -> Result<(), Errno> {
        let descriptor = self.descriptor()?;
        let mut failed = None;
        self.each(
            |name| Ok(chosen(name)),
            |name| match rustix::fs::unlinkat(descriptor.as_fd(), name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
                Err(errno) => failed = Some(errno),
            },
        )?;
        failed.map_or(Ok(()), Err)
    }

    /// Passes the names of those entries to `act` that another directory has not, which this one is compared with.
    pub fn each_beyond(&self, other: impl AsFd, act: impl FnMut(&CStr)) -> Result<(), Errno> {
        // Asked name by name: no set of names has to be kept, and what cannot be asked for is not taken for missing.
        let is_beyond = |name: &CStr| match directory::stat(other.as_fd(), name) {
            Ok(_) => Ok(false),
            // A directory that was itself removed meanwhile has no names, which says nothing about those it had.
            Err(Errno::NOENT) if stat_open(other.as_fd())?.stx_nlink == 0 => Err(Errno::STALE),
            Err(Errno::NOENT) => Ok(!is_unfinished(name)),
            Err(errno) => Err(errno),
        };
        self.each(is_beyond, act)
    }

    /// Returns whether a name of another directory leads to an entry of this one, although this one does not list it:
    /// then the file system takes several names for one, by their case or by how they are written in Unicode.
    ///
    /// Memory is bounded: the names of a large directory are looked at in portions, by their hashes, and both directories
    /// are listed once for each portion. No entry is asked for unless its name is missing in the list.
    pub fn answers_to_unlisted(&self, other: impl AsFd) -> Result<bool, Errno> {
        self.answers_to_unlisted_by(other.as_fd(), HASHES_MAX)
    }

    fn answers_to_unlisted_by(&self, other: BorrowedFd<'_>, hashes_max: usize) -> Result<bool, Errno> {
        let descriptor = self.descriptor()?;
        let hasher = RandomState::new();
        let hash = |name: &CStr| hasher.hash_one(name.to_bytes());
        let (mut portion, mut portions) = (0, 1);
        let mut listed = Vec::new();
        while portion < portions {
            listed.clear();
            let mut complete = true;
            each_name(descriptor.as_fd(), |name| {
                let hash = hash(name);
                if hash % portions == portion {
                    complete = listed.len() < hashes_max;
                    if complete {
                        listed.push(hash);
                    }
                }
                Ok(complete)
            })?;
            if !complete {
                (portion, portions) = (0, portions * 2);
                continue;
            }
            listed.sort_unstable();
            let mut found = false;
            each_name(other, |name| {
                let hash = hash(name);
                if hash % portions == portion && listed.binary_search(&hash).is_err() {
                    found = self.stat(name)?.is_some();
                }
                Ok(!found)
            })?;
            if found {
                return Ok(true);
            }
            portion += 1;
        }
        Ok(false)
    }

    /// Passes the names of those entries to `act` that are `chosen`. `act` may remove them.
    fn each(
        &self,
        mut chosen: impl FnMut(&CStr) -> Result<bool, Errno>,
        mut act: impl FnMut(&CStr),
    ) -> Result<(), Errno> {
        each_name(self.descriptor()?.as_fd(), |name| {
            if chosen(name)? {
                act(name);
            }
            Ok(true)
        })
    }
}

/// Passes every name in a directory to `each`, until that returns false.
pub fn each_name(
    directory: BorrowedFd<'_>,
    mut each: impl FnMut(&CStr) -> Result<bool, Errno>,
) -> Result<(), Errno> {
    // Reading moves a position, and that of the other descriptor is not ours to move.
    let own = open_for_reading(directory, c".")?;
    let mut buffer = vec![0; 32 << 10];
    loop {
        let len = nacre_walk::getdents::read(own.as_fd(), &mut buffer)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        if len == 0 {
            return Ok(());
        }
        for record in Records(&buffer[..len]) {
            if !each(record.name)? {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_directory_does_not_say_what_another_has_beyond_it() {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        std::fs::create_dir(&source).unwrap();
        std::fs::create_dir(&target).unwrap();
        std::fs::write(target.join("file"), "").unwrap();
        let opened = std::fs::File::open(&source).unwrap();
        let destination = Destination::top(std::fs::File::open(&target).unwrap().into()).unwrap();
        let beyond = || {
            let mut names = Vec::new();
            destination.each_beyond(&opened, |name| names.push(name.to_owned())).map(|()| names)
        };
        assert_eq!(beyond(), Ok(vec![c"file".to_owned()]));
        std::fs::remove_dir(&source).unwrap();
        assert_eq!(beyond(), Err(Errno::STALE));
    }

    #[test]
    fn a_name_that_is_found_but_not_listed_is_noticed() {
        // The directory of all processes answers to the number of any thread, but lists those of processes only.
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let itself = std::fs::read_link("/proc/thread-self").unwrap();
            sender.send(itself.file_name().unwrap().to_str().unwrap().to_owned()).unwrap();
            let _ = ended.recv();
        });
        let (thread_number, process) = (receiver.recv().unwrap(), std::process::id());
        let folder = tempfile::tempdir().unwrap();
        let names = |names: &[String]| {
            let source = tempfile::tempdir_in(folder.path()).unwrap();
            for name in names {
                std::fs::write(source.path().join(name), "").unwrap();
            }
            source
        };
        let processes = Destination::top(std::fs::File::open("/proc").unwrap().into()).unwrap();
        for hashes_max in [40, HASHES_MAX] {
            let answers = |source: &tempfile::TempDir| {
                let opened = std::fs::File::open(source.path()).unwrap();
                processes.answers_to_unlisted_by(opened.as_fd(), hashes_max)
            };
            let listed = names(&[process.to_string(), "self".into(), "missing".into()]);
            assert_eq!(answers(&listed), Ok(false));
            let unlisted = names(&[process.to_string(), thread_number.clone()]);
            assert_eq!(answers(&unlisted), Ok(true));
        }
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn further_names_of_a_file_are_names_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        std::fs::create_dir(&source).unwrap();
        std::fs::create_dir(&target).unwrap();
        for path in [source.join("a"), source.join("c"), target.join("a")] {
            std::fs::write(path, "").unwrap();
        }
        std::fs::hard_link(target.join("a"), target.join("b")).unwrap();
        let opened = std::fs::File::open(&source).unwrap();
        let destination = Destination::top(std::fs::File::open(&target).unwrap().into()).unwrap();
        assert_eq!(destination.answers_to_unlisted(&opened), Ok(false));
    }
}
