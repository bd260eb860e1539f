//! The steps of a copy that several processes make together, perhaps on several machines: see [`Copy::together`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nacre_walk::Walk;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::copy::destination::Destination;
use crate::copy::finish::{self, Finisher};
use crate::copy::visitor::{self, Copier};
use crate::copy::{Copy, Leftovers, StartError, name_of};

impl Copy {
    /// Makes this the share of one process in a copy that several make together, perhaps on several machines.
    ///
    /// All of them are given the same source, destination and options. One calls [`Copy::begin_together`]; then, each step
    /// after all processes have done the one before: [`Copy::copy_part`], [`Copy::copy_entry`] for the names of files with
    /// several names (one process for all names of a file), the ranges of large files ([`Copy::begin_ranges`],
    /// [`Copy::copy_range`], [`Copy::end_ranges`]), the names that were left for later, [`Copy::finish_root`] by one of them
    /// and [`Copy::finish_part`], and [`Copy::sync_part`].
    pub fn together(mut self) -> Copy {
        self.shared.together = true;
        // Chunks are made durable one by one, so that no machine's restart matters.
        self.shared.boot = [0; 16];
        self
    }

    /// Begins a copy by several processes, in one of them: makes the copy's directory, and returns its lock, which is held
    /// as long as it is kept.
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn begin_together(&self) -> Result<Option<OwnedFd>, StartError> {
        self.shared.failures.clear();
        let top = self.top()?;
        self.lock(&top)
    }

    /// Returns what processes compare to find out whether they see the same source and the same copy. The directory of a copy
    /// is made if it is missing.
    ///
    /// # Errors
    /// [`StartError`] if one of them cannot be reached, or the destination cannot be used.
    pub fn sights(&self) -> Result<[Sight; 2], StartError> {
        let nowhere = |errno| StartError::Nowhere { path: self.destination.path().to_owned(), errno };
        let path = self.source.path();
        let attempted = if self.opened.is_some() { "copy" } else { "compare" };
        let missing = |errno| StartError::Missing { path: path.to_owned(), attempted, errno };
        let source = if let Some(opened) = &self.opened {
            // A server is asked: this machine may remember that there was none.
            match rustix::fs::mkdirat(self.destination.parent(), self.destination.name(), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(nowhere(errno)),
            }
            Sight::of(opened.as_fd()).map_err(missing)?
        } else {
            Sight::of_entry(self.source.parent(), self.source.name()).map_err(missing)?
        };
        let copy = Sight::of_entry(self.destination.parent(), self.destination.name()).map_err(nowhere)?;
        Ok([source, copy])
    }

    /// Copies a part: `work` is given the walk, whose units other processes may be given, and runs it with the visitors. The
    /// walk begins at the source if `begin` is set, which is for one of the processes. What has to be left for later is
    /// passed to `leftovers`. No directory gets its metadata yet.
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn copy_part<T>(
        &self,
        begin: bool,
        leftovers: Leftovers<'_>,
        work: impl FnOnce(&mut Walk<Arc<Destination>>, &mut [Copier<'_>]) -> T,
    ) -> Result<T, StartError> {
        let top = self.top()?;
        let copier = || visitor::Copier::new(&self.shared, &top, &self.destination, Some(leftovers));
        Ok(self.walk_with(begin, copier, work))
    }

    /// Gives the copy's own directory its metadata, after everything was copied, and removes in a mirror what only that
    /// directory has; called by one process.
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn finish_root(&self) -> Result<(), StartError> {
        let top = self.top()?;
        finish::Finisher::new(&self.shared, &top, &self.destination).end_root(&name_of(&self.source_path));
        Ok(())
    }

    /// Gives the other directories their metadata, as [`Copy::copy_part`] copies, after everything in them was copied.
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn finish_part<T>(
        &self,
        begin: bool,
        work: impl FnOnce(&mut Walk<Arc<Destination>>, &mut [Finisher<'_>]) -> T,
    ) -> Result<T, StartError> {
        let top = self.top()?;
        Ok(self.walk_with(begin, || finish::Finisher::new(&self.shared, &top, &self.destination), work))
    }

    /// Makes durable what this machine has written of the copy, if requested.
    pub fn sync_part(&self) {
        self.sync(self.open_place());
    }
}

/// The identity of an entry as a process sees it, whose device has another number on another machine.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// The inode number. Those of the roots of file systems are often the same.
    pub inode: u64,
    /// The time at which it was made, in seconds and nanoseconds, where that is known.
    pub born: Option<(i64, u32)>,
}

impl Sight {
    fn of(opened: BorrowedFd<'_>) -> Result<Sight, Errno> {
        let flags = StatxFlags::INO | StatxFlags::BTIME;
        let stat = retry_on_intr(|| rustix::fs::statx(opened, c"", AtFlags::EMPTY_PATH, flags))?;
        let knows = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        let born = knows.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
        Ok(Sight { inode: stat.stx_ino, born })
    }

    /// Looks at an entry. What is mounted on it on demand is mounted by that.
    fn of_entry(within: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<Sight, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |flags| retry_on_intr(|| rustix::fs::openat(within, name, flags, Mode::empty()));
        let opened = match open(flags | OFlags::DIRECTORY) {
            Err(Errno::NOTDIR | Errno::LOOP) => open(flags),
            opened => opened,
        };
        Sight::of(opened?.as_fd())
    }

    /// Returns whether another process may see the same entry.
    pub fn may_be(&self, other: &Sight) -> bool {
        let ages_differ = self.born.is_some() && other.born.is_some() && self.born != other.born;
        self.inode == other.inode && !ages_differ
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_at_another_time_is_another_entry_whatever_its_number() {
        let sight = |inode, born| Sight { inode, born };
        let root = sight(128, Some((1_700_000_000, 5)));
        assert!(root.may_be(&root) && root.may_be(&sight(128, None)));
        assert!(!root.may_be(&sight(128, Some((1_700_000_000, 6)))) && !root.may_be(&sight(129, None)));
    }
}
