//! Entries with several names: the first name that is met is copied, the others become links to that copy.
//!
//! Memory: one entry for each such inode of which not all names were met yet, about 150 bytes and the name.

use crate::copy::destination::Destination;
use crate::directory::Identity;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;

/// Where the first name's copy is.
#[derive(Clone)]
pub struct First {
    pub directory: Arc<Destination>,
    pub name: CString,
    /// Device and inode of the copy.
    pub identity: Identity,
}

enum State {
    /// Somebody copies it.
    Pending,
    /// It is there; so many of its names were met.
    Ready(First, u32),
}

/// What to do with a name.
pub enum Turn {
    /// Copy it, then say so with [`Links::ready`] or [`Links::failed`].
    Copy,
    /// Link it to that.
    Link(First),
}

/// The inodes with several names.
#[derive(Default)]
pub struct Links {
    states: Mutex<HashMap<Identity, State>>,
    changed: Condvar,
}

/// How long is waited before looking again whether there is something to help with.
const WAIT: Duration = Duration::from_millis(20);

impl Links {
    /// Another name of an inode was met. If somebody copies the first one, that is waited for; `help` does something useful
    /// meanwhile, and says whether it did.
    pub fn met(&self, inode: Identity, links: u32, mut help: impl FnMut() -> bool) -> Turn {
        let mut states = self.states.lock();
        loop {
            match states.get_mut(&inode) {
                None => {
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

    /// The first name is copied.
    pub fn ready(&self, inode: Identity, first: First) {
        self.states.lock().insert(inode, State::Ready(first, 1));
        self.changed.notify_all();
    }

    /// The first name could not be copied: the next one becomes the first.
    pub fn failed(&self, inode: Identity) {
        self.states.lock().remove(&inode);
        self.changed.notify_all();
    }
}
