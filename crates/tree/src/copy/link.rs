//! Entries with several names: the first name met is copied, the others become links to that copy.
//!
//! Memory: one entry for each such inode whose names were not all met yet, about 150 bytes and the name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;

use nacre_walk::Time;
use nacre_walk::directory::Identity;
use parking_lot::{Condvar, Mutex};

use crate::copy::destination::Destination;

/// The size of a source, and the time of its last modification.
pub type Version = (u64, Time);

/// The location of the first name's copy.
#[derive(Clone)]
pub struct First {
    /// The version of the source that was copied.
    pub version: Version,
    pub directory: Arc<Destination>,
    pub name: CString,
    /// Device and inode of the copy.
    pub identity: Identity,
}

enum State {
    /// A thread is copying it.
    Pending,
    /// It is a large file, whose ranges several processes copy later.
    Deferred,
    /// The copy exists; the number counts the names met so far.
    Ready(First, u32),
}

/// The action to take for a name.
pub enum Turn {
    /// Copy it, then call [`Links::ready`], [`Links::failed`] or [`Links::deferred`].
    Copy,
    /// Leave it for later: the first name is.
    Wait,
    /// Link it to the copy of the first name.
    Link(First),
}

/// The inodes with several names.
#[derive(Default)]
pub struct Links {
    states: Mutex<HashMap<Identity, State>>,
    changed: Condvar,
}

/// The time to wait before checking again whether there is work to help with.
const WAIT: Duration = Duration::from_millis(20);

impl Links {
    /// Registers a name of an inode, and returns the action for it. If a thread is copying the first name, this waits
    /// for it; `help` does useful work meanwhile, and returns whether there was any. If the first name was left for later,
    /// this one is too, unless it is later by now (`resumed`).
    pub fn met(
        &self,
        inode: Identity,
        (version, links): (Version, u32),
        resumed: bool,
        mut help: impl FnMut() -> bool,
    ) -> Turn {
        let mut states = self.states.lock();
        loop {
            // Another file may have got the number of one that was removed meanwhile.
            if matches!(states.get(&inode), Some(State::Ready(first, _)) if first.version != version) {
                states.remove(&inode);
            }
            match states.get_mut(&inode) {
                Some(State::Deferred) if !resumed => return Turn::Wait,
                None | Some(State::Deferred) => {
                    states.insert(inode, State::Pending);
                    return Turn::Copy;
                }
                Some(State::Ready(first, met)) => {
                    *met += 1;
                    let (first, all) = (first.clone(), *met >= links);
                    if all {
                        states.remove(&inode);
                    }
                    return Turn::Link(first);
                }
                Some(State::Pending) => {
                    drop(states);
                    let helped = help();
                    states = self.states.lock();
                    if !helped && matches!(states.get(&inode), Some(State::Pending)) {
                        self.changed.wait_for(&mut states, WAIT);
                    }
                }
            }
        }
    }

    /// Marks the first name as copied.
    pub fn ready(&self, inode: Identity, first: First) {
        self.states.lock().insert(inode, State::Ready(first, 1));
        self.changed.notify_all();
    }

    /// Marks the first name as left for later.
    pub fn deferred(&self, inode: Identity) {
        self.states.lock().insert(inode, State::Deferred);
        self.changed.notify_all();
    }

    /// Marks the first name as failed: the next one becomes the first.
    pub fn failed(&self, inode: Identity) {
        self.states.lock().remove(&inode);
        self.changed.notify_all();
    }
}

/// The inodes with several names that a preview has met, without copying them.
///
/// Memory: one entry for each whose names were not all met yet.
#[derive(Default)]
pub struct Previewed(Mutex<HashMap<Identity, (Option<Identity>, u32)>>);

/// The part that a name has in the copy of its inode.
pub enum Met {
    /// It is the first one, which is copied if it differs.
    First,
    /// The first one was met: the entry that stays in its place, or none if its copy is a new one.
    Again(Option<Identity>),
}

impl Previewed {
    /// Registers a name of an inode that has `links` of them; `stays` is the entry that would stay in its place at the
    /// destination, were it the first.
    pub fn met(&self, inode: Identity, links: u32, stays: Option<Identity>) -> Met {
        match self.0.lock().entry(inode) {
            Entry::Vacant(unmet) => {
                unmet.insert((stays, 1));
                Met::First
            }
            Entry::Occupied(mut known) => {
                let (first, met) = known.get_mut();
                *met += 1;
                let (first, all) = (*first, *met >= links);
                if all {
                    known.remove();
                }
                Met::Again(first)
            }
        }
    }

    /// Forgets all of them, for another preview.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_got_the_number_of_a_removed_one_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Destination::top(std::fs::File::open(folder.path()).unwrap().into()).unwrap();
        let links = Links::default();
        let met = |version| matches!(links.met((1, 2), (version, 3), true, || false), Turn::Copy);
        let [old, new] = [5, 6].map(|seconds| (100, Time { seconds, nanoseconds: 0 }));
        for (version, name) in [(old, c"a"), (new, c"b")] {
            assert!(met(version));
            let directory = Arc::clone(&directory);
            links.ready((1, 2), First { version, directory, name: name.into(), identity: (3, 4) });
            assert!(!met(version));
        }
    }

    #[test]
    fn names_of_a_file_wait_while_the_first_one_is_left_for_later() {
        let links = Links::default();
        let version = (100, Time { seconds: 5, nanoseconds: 0 });
        let met = |resumed| links.met((1, 2), (version, 3), resumed, || false);
        assert!(matches!(met(false), Turn::Copy));
        links.deferred((1, 2));
        assert!(matches!(met(false), Turn::Wait) && matches!(met(false), Turn::Wait));
        assert!(matches!(met(true), Turn::Copy));
        links.failed((1, 2));
        assert!(matches!(met(false), Turn::Copy));
    }
}
