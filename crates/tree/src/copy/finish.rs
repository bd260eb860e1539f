//! The visitor that ends directories, after several processes have copied what is in them.
//!
//! A directory that several processes have worked on cannot be ended by the one that leaves it last, which is not known. So
//! all of them walk the source once more, and end each directory where it is met, which happens once. Then nothing in it is
//! made any more, so that the order does not matter, and nothing has to be remembered from the first walk. The root, which is
//! met in no directory, is ended before by one of them.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_walk::WalkError;
use nacre_walk::directory::{self, Identity};
use nacre_walk::{Entry, FileKind, Metadata};
use nacre_walk::{Opened, Verdict, Visitor};
use rustix::fs::{CWD, Statx};
use rustix::io::Errno;

use crate::copy::Shared;
use crate::copy::data::open_for_reading;
use crate::copy::destination::Destination;
use crate::copy::file::stat_open;
use crate::copy::mounts::spare;
use crate::copy::visitor::{Ending, is_reported, passed};
use crate::error::EntryError;
use crate::root::{Root, identity_of};

const END: &str = "cannot end the copy of the directory";

/// The visitor of one thread.
#[derive(derive_more::Debug)]
#[debug("Finisher")]
pub struct Finisher<'a> {
    shared: &'a Shared,
    top: &'a Arc<Destination>,
    destination: &'a Root,
}

impl<'a> Finisher<'a> {
    pub(crate) fn new(shared: &'a Shared, top: &'a Arc<Destination>, destination: &'a Root) -> Finisher<'a> {
        Finisher { shared, top, destination }
    }

    /// Returns whether the source of a mirror is still the same directory, and not, for example, the empty one that its file
    /// system was mounted on: then everything that the mirror has would be removed.
    fn is_source(&self, opened: Result<Identity, Errno>, path: &CStr) -> bool {
        if !self.shared.options.mirror || opened == Ok(self.shared.source) {
            return true;
        }
        let cause = "something else took its place since the mirror was begun";
        self.shared.failures.add(EntryError::new(path.to_bytes().to_vec(), END, cause));
        false
    }

    /// Returns whether a directory of the source is the copy itself, which the copy has refused.
    fn is_copy(&self, opened: Result<Identity, Errno>) -> bool {
        let root = *self.shared.root.lock();
        root.is_some_and(|root| opened == Ok(root))
    }

    /// Ends the root of the source, by its path.
    pub(crate) fn end_root(&self, source: &CStr) {
        let path = || source.to_bytes().to_vec();
        let opened =
            open_for_reading(CWD, source).and_then(|opened| Ok((stat_open(opened.as_fd())?, opened)));
        match opened {
            Ok((stat, opened)) => {
                let is_source = self.is_source(Ok(directory::identity(&stat)), source);
                if is_source && Metadata(stat).kind() == FileKind::Directory {
                    let place = (self.top, self.destination.name());
                    self.end_opened((opened.as_fd(), &stat), place, &path, &Vec::<u8>::new);
                }
            }
            Err(errno) => self.shared.failures.add(EntryError::new(path(), END, errno)),
        }
    }

    /// Ends a directory of the source where it is met in its parent.
    fn end(&self, entry: &Entry<'_, Arc<Destination>>) {
        let Some(parent) = entry.directory else { return };
        let path = || {
            let mut path = Vec::new();
            entry.write_path(&mut path);
            path
        };
        let failed = |errno: Errno| self.shared.failures.add(EntryError::new(path(), END, errno));
        // What is mounted there is no part of the copy.
        let crosses = self.shared.options.cross_mounts;
        if !crosses
            && directory::stat(entry.parent(), entry.name).is_ok_and(|stat| Metadata(stat).is_mount_point())
        {
            return;
        }
        let source = match open_for_reading(entry.parent(), entry.name) {
            Ok(source) => source,
            Err(errno) if is_reported(errno) => return,
            Err(errno) => return failed(errno),
        };
        let stat = match stat_open(source.as_fd()) {
            Ok(stat) => stat,
            Err(errno) => return failed(errno),
        };
        if Metadata(stat).kind() != FileKind::Directory {
            return;
        }
        if !crosses {
            match directory::is_mounted(&stat, entry.parent(), source.as_fd()) {
                Ok(false) => {}
                Ok(true) => return,
                Err(errno) => return failed(errno),
            }
        }
        let below = || entry.path_below_root().into_os_string().into_encoded_bytes();
        self.end_opened((source.as_fd(), &stat), (parent.state(), entry.name), &path, &below);
    }

    /// Ends a directory of the source that is open; its copy has a name in `parent`.
    fn end_opened(
        &self,
        (source, stat): (BorrowedFd<'_>, &Statx),
        (parent, name): (&Arc<Destination>, &CStr),
        path: &dyn Fn() -> Vec<u8>,
        below: &dyn Fn() -> Vec<u8>,
    ) {
        let identity = directory::identity(stat);
        if self.is_copy(Ok(identity)) {
            return;
        }
        match parent.find_copy(name) {
            // The copy has refused it.
            Ok(destination) if destination.identity() == identity => {}
            Ok(destination) => {
                let (shared, root, destination) = (self.shared, self.destination, &*destination);
                Ending { shared, root, source, destination, path, below }.end();
            }
            Err(errno) if is_left_out(errno) => {}
            Err(errno) => self.shared.failures.add(EntryError::new(path(), END, errno)),
        }
    }
}

/// Returns whether a directory was not copied, for a reason that the copy has given.
fn is_left_out(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

impl Visitor for Finisher<'_> {
    type State = Arc<Destination>;

    fn enter(&mut self, opened: &Opened<'_, Arc<Destination>>) -> Option<Arc<Destination>> {
        if self.shared.control.is_stopped() {
            return None;
        }
        let identity = identity_of(opened.descriptor);
        let (parent, name) = match opened.directory {
            _ if self.is_copy(identity) => return None,
            Some(parent) => (parent.state(), opened.name),
            None if !self.is_source(identity, opened.name) => return None,
            None => (self.top, self.destination.name()),
        };
        match parent.find_copy(name) {
            Ok(mut found) => {
                spare(self.shared, opened.descriptor, &mut found);
                if opened.directory.is_none() {
                    *self.shared.root.lock() = Some(found.identity());
                }
                Some(found)
            }
            Err(errno) => {
                if !is_left_out(errno) {
                    let path = match opened.directory {
                        Some(parent) => [&parent.path_bytes(), &b"/"[..], opened.name.to_bytes()].concat(),
                        None => opened.name.to_bytes().to_vec(),
                    };
                    self.shared.failures.add(EntryError::new(path, END, errno));
                }
                None
            }
        }
    }

    fn visit(&mut self, entry: &Entry<'_, Arc<Destination>>) -> Verdict {
        if self.shared.control.is_stopped() || entry.kind != FileKind::Directory {
            return Verdict::Pass;
        }
        let verdict = passed(self.shared, entry).unwrap_or(Verdict::Pass);
        if verdict == Verdict::Descend {
            self.end(entry);
        }
        verdict
    }

    fn leave(&mut self, directory: &nacre_walk::Directory<Arc<Destination>>) {
        directory.state().leave();
    }

    fn failed(&mut self, error: WalkError) {
        if error.vanished() {
            self.shared.counters.vanished.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared.failures.add(error.into());
        }
    }
}
