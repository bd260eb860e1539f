//! The share of one process in work that several processes do together, as the ranks of an MPI job.
//!
//! Each walks a part of the same tree. What cannot be done before all of them are done, or not by whoever meets it, is
//! collected here, and done afterwards:
//!
//! - directories that several processes work on, or that have such files in them: one process ends them ([`Stage::Last`]);
//! - names of files with several names: all names of a file are given to one process, since the first is copied and the
//!   others are linked to it;
//! - large files: their ranges are shared out among all processes.

use std::sync::atomic::AtomicU32;

use nacre_walk::report::Tally;
use nacre_walk::report::partial::Partial;
use nacre_walk::{Directory, Unit};
use parking_lot::Mutex;

/// What one process has left for later.
#[derive(Debug, Default)]
pub struct Share {
    /// The directories that other processes work on too.
    pub directories: Mutex<Partial>,
    /// The names of files with several names, with the inode numbers of the files.
    pub linked: Mutex<Vec<(u64, Unit)>>,
    /// The large files.
    pub large: Mutex<Vec<Unit>>,
}

/// The stage of work that several processes do together.
#[derive(Clone, Copy, Debug)]
pub enum Stage<'a> {
    /// One process does everything.
    Alone,
    /// Each process does a part.
    Parts(&'a Share),
    /// The names of files with several names are done, each by the process that all names of its file were given to.
    Linked(&'a Share),
    /// One process ends the directories that several have worked on.
    Last(&'a Partial),
}

impl<'a> Stage<'a> {
    /// Returns the collection for directories that others work on too.
    fn share(self) -> Option<&'a Share> {
        match self {
            Stage::Parts(share) | Stage::Linked(share) => Some(share),
            Stage::Alone | Stage::Last(_) => None,
        }
    }

    /// Returns whether a directory is ended later, because others work on it or something in it is done later
    /// (`unfinished`); it is then noted.
    pub fn defers<S>(
        self,
        directory: &Directory<S>,
        unfinished: bool,
        place: impl Fn(&S) -> &AtomicU32,
    ) -> bool {
        match self.share() {
            Some(share) if unfinished || directory.is_split() => {
                let mut directories = share.directories.lock();
                let node = nacre_walk::report::numbered(directory, &mut directories, place);
                directories.add(node, &Tally { entries: 1, ..Tally::default() });
                true
            }
            _ => false,
        }
    }

    /// Returns whether a directory, with its node, is not ended at an earlier stage too: those that lead to others are.
    pub fn counts(self, node: Option<u32>) -> bool {
        match self {
            Stage::Last(directories) => node.is_some_and(|node| directories.tally(node).entries > 0),
            _ => true,
        }
    }

    /// Returns whether entries other than directories are done at this stage.
    pub fn does_entries(self) -> bool {
        !matches!(self, Stage::Last(_))
    }

    /// Returns whether a directory is entered that is in another one, whose node is `within`, or is a root; and its own
    /// node.
    pub fn enters(self, within: Option<u32>, root: u32, name: &[u8]) -> Option<Option<u32>> {
        let Stage::Last(directories) = self else { return Some(None) };
        let node = match within {
            Some(within) => directories.find(Some(within), name),
            None => directories.find_root(root),
        };
        node.map(Some)
    }
}
