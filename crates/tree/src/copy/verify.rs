//! The visitor that compares the source with its copy.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_walk::Directory;
use nacre_walk::WalkError;
use nacre_walk::directory;
use nacre_walk::{Entry, FileKind, Metadata};
use nacre_walk::{Opened, Verdict, Visitor};
use rustix::fs::Statx;
use rustix::io::Errno;

use crate::copy::Shared;
use crate::copy::data::{BUFFER_BYTES, Halt, open_for_reading};
use crate::copy::destination::Destination;
use crate::copy::file::stat_open;
use crate::copy::visitor::{left_out, passed};
use crate::error::{Cause, EntryError};
use crate::root::Root;

const COMPARE: &str = "cannot compare";
const DIFFERS: &str = "the copy differs:";

/// The visitor of one thread.
pub struct Verifier<'a> {
    shared: &'a Shared,
    top: &'a Arc<Destination>,
    destination: &'a Root,
    buffer: Vec<u8>,
}

impl<'a> Verifier<'a> {
    pub fn new(shared: &'a Shared, top: &'a Arc<Destination>, destination: &'a Root) -> Verifier<'a> {
        Verifier { shared, top, destination, buffer: Vec::new() }
    }

    /// Compares one entry, which is not a directory, with its copy.
    #[expect(clippy::too_many_arguments, reason = "two places and what is between them")]
    pub fn compare(
        &mut self,
        source: BorrowedFd<'_>,
        source_name: &CStr,
        kind: FileKind,
        destination: &Destination,
        name: &CStr,
        buffer: &mut Vec<u8>,
        path: impl Fn() -> Vec<u8>,
    ) {
        buffer.resize(BUFFER_BYTES, 0);
        match self.difference(source, source_name, kind, destination, name, buffer) {
            Ok(()) => {
                self.shared.counters.verified.fetch_add(1, Ordering::Relaxed);
            }
            Err(Difference::Is(what)) => self.shared.failures.add(EntryError::new(path(), DIFFERS, what)),
            Err(Difference::Unknown(Errno::NOENT)) => {
                self.shared.counters.vanished.fetch_add(1, Ordering::Relaxed);
            }
            Err(Difference::Unknown(errno)) => {
                self.shared.failures.add(EntryError::new(path(), COMPARE, errno))
            }
            Err(Difference::Stopped) => {}
        }
    }

    fn difference(
        &self,
        source: BorrowedFd<'_>,
        source_name: &CStr,
        kind: FileKind,
        destination: &Destination,
        name: &CStr,
        buffer: &mut [u8],
    ) -> Result<(), Difference> {
        let stat = directory::stat(source, source_name)?;
        let Some(copy) = destination.stat(name).map_err(|_| Difference::Is("it cannot be looked at"))? else {
            return Err(Difference::Is("it is missing"));
        };
        self.differ(&stat, &copy)?;
        let directory = destination.descriptor()?;
        match kind {
            FileKind::Link => {
                let target = rustix::fs::readlinkat(source, source_name, Vec::new())?;
                if rustix::fs::readlinkat(&directory, name, Vec::new()).as_ref() != Ok(&target) {
                    return Err(Difference::Is("it points elsewhere"));
                }
            }
            FileKind::File => {
                let source = Arc::new(open_for_reading(source, source_name)?);
                let copy = open_for_reading(&directory, name);
                let copy = Arc::new(copy.map_err(|_| Difference::Is("it cannot be read"))?);
                if !self.shared.keeper.same_extended(source.as_fd(), copy.as_fd())? {
                    return Err(Difference::Is("its extended attributes or ACLs are others"));
                }
                match self.shared.compare((&source, &copy), &stat, buffer) {
                    Ok(()) => {}
                    Err(Halt::Differs | Halt::Ended) => {
                        return Err(Difference::Is("its contents are others"));
                    }
                    Err(Halt::Stopped) => return Err(Difference::Stopped),
                    Err(Halt::Failed(errno)) => return Err(errno.into()),
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Compares type, size and other metadata, without opening either entry.
    fn differ(&self, stat: &Statx, copy: &Statx) -> Result<(), Difference> {
        let (a, b) = (Metadata(*stat), Metadata(*copy));
        let differs = [
            (a.kind() != b.kind(), "it is of another type"),
            // A file that says no size is read to its end.
            (a.kind() == FileKind::File && a.size() > 0 && a.size() != b.size(), "its size is another one"),
            (a.modified() != b.modified(), "its time is another one"),
            // Others may read either at any time. A copy that was read when it was made has the wrong time. A link cannot be
            // looked at without that.
            (
                a.kind() != FileKind::Link
                    && b.accessed() >= self.shared.began
                    && a.accessed() < self.shared.began,
                "its time of access is that of the copy",
            ),
            (a.special_device() != b.special_device(), "it is another device"),
            (
                a.kind() != FileKind::Link && !self.shared.keeper.is_kept(stat, copy),
                "its owner, group or mode is another one",
            ),
        ];
        match differs.into_iter().find(|(differs, _)| *differs) {
            Some((_, what)) => Err(Difference::Is(what)),
            None => Ok(()),
        }
    }
}

enum Difference {
    Is(&'static str),
    Unknown(Errno),
    Stopped,
}

impl From<Errno> for Difference {
    fn from(errno: Errno) -> Difference {
        Difference::Unknown(errno)
    }
}

impl Visitor for Verifier<'_> {
    type State = Arc<Destination>;

    fn enter(&mut self, opened: &Opened<'_, Arc<Destination>>) -> Option<Arc<Destination>> {
        if self.shared.control.is_stopped() {
            return None;
        }
        let (parent, name) = match opened.directory {
            Some(parent) => (parent.state(), opened.name),
            None => (self.top, self.destination.name()),
        };
        let path = || match opened.directory {
            Some(parent) => [&parent.path_bytes(), &b"/"[..], opened.name.to_bytes()].concat(),
            None => opened.name.to_bytes().to_vec(),
        };
        let found = parent.find(name).map_err(|errno| match errno {
            Errno::NOENT => Cause::Other("it is missing"),
            Errno::NOTDIR | Errno::LOOP => Cause::Other("it is of another type"),
            errno => errno.into(),
        });
        found
            .map_err(|cause| self.shared.failures.add(EntryError { path: path(), attempted: DIFFERS, cause }))
            .ok()
    }

    fn visit(&mut self, entry: &Entry<'_, Arc<Destination>>) -> Verdict {
        if self.shared.control.is_stopped() {
            return Verdict::Pass;
        }
        if let Some(verdict) = passed(self.shared, entry) {
            return verdict;
        }
        if left_out(entry).is_some() {
            return Verdict::Pass;
        }
        let Some(directory) = entry.directory else { return Verdict::Descend };
        let mut buffer = std::mem::take(&mut self.buffer);
        self.compare(
            entry.parent(),
            entry.name,
            entry.kind,
            directory.state(),
            entry.name,
            &mut buffer,
            || {
                let mut path = Vec::new();
                entry.write_path(&mut path);
                path
            },
        );
        self.buffer = buffer;
        Verdict::Pass
    }

    fn leave(&mut self, directory: &Directory<Arc<Destination>>) {
        if self.shared.control.is_stopped() {
            return;
        }
        let compared = (|| {
            let (source, copy) = (directory.descriptor()?, directory.state().descriptor()?);
            let (stat, there) = (stat_open(source.as_fd())?, stat_open(copy.as_fd())?);
            self.differ(&stat, &there)?;
            match self.shared.keeper.same_extended(source.as_fd(), copy.as_fd())? {
                true => Ok(()),
                false => Err(Difference::Is("its extended attributes or ACLs are others")),
            }
        })();
        let failure = |attempted, cause| {
            self.shared.failures.add(EntryError { path: directory.path_bytes(), attempted, cause })
        };
        match compared {
            Ok(()) => {
                self.shared.counters.verified.fetch_add(1, Ordering::Relaxed);
            }
            Err(Difference::Is(what)) => failure(DIFFERS, Cause::Other(what)),
            Err(Difference::Unknown(errno)) => failure(COMPARE, errno.into()),
            Err(Difference::Stopped) => {}
        }
        directory.state().leave();
    }

    fn assist(&mut self) -> bool {
        self.shared.help(&mut self.buffer)
    }

    fn failed(&mut self, error: WalkError) {
        if error.vanished() {
            self.shared.counters.vanished.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared.failures.add(error.into());
        }
    }
}
