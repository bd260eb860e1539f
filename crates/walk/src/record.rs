//! The interface between a walk and a keeper of every entry, such as a database.

use std::any::Any;

use crate::directory::Directory;
use crate::entry::{Entry, Metadata};
use crate::report::Sums;
use crate::{Opened, WalkError};

/// The state that a recorder attaches to a directory while that is walked.
pub type Place = Box<dyn Any + Send + Sync>;

/// A recorder of everything that one thread of a walk counts.
pub trait Recorder: Send {
    /// Called when a directory was opened, before its entries are visited.
    fn enter(&mut self, directory: &Opened<'_, Sums>) -> Option<Place>;

    /// Returns an entry's metadata where the recorder has it already, in a walk that does not read it.
    ///
    /// # Errors
    /// The error number if it has to be read and cannot be.
    fn metadata(&mut self, entry: &Entry<'_, Sums>) -> Result<Option<Metadata>, rustix::io::Errno> {
        let _ = entry;
        Ok(None)
    }

    /// Called once for every entry that is counted.
    fn record(&mut self, entry: &Entry<'_, Sums>);

    /// Called when a portion of a directory was visited. Returns false if the walk should stop, because nothing can be
    /// recorded any more.
    fn pause(&mut self) -> bool;

    /// Called when something in a directory was not visited.
    fn incomplete(&mut self, directory: &Directory<Sums>);

    /// Called when everything below a directory was visited.
    fn leave(&mut self, directory: &Directory<Sums>);

    /// Called for a directory that was not entered because another file system is mounted there.
    fn mount_point(&mut self, path: &[u8]);

    /// Called for an entry that could not be visited.
    fn failed(&mut self, error: &WalkError);

    /// Passes on the records kept so far. Returns false if it cannot.
    fn flush(&mut self) -> bool;
}
