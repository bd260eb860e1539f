//! Files with several names: one of them is copied, and the others are made links to that copy.

use std::ffi::CStr;
use std::sync::Arc;

use nacre_walk::directory::identity;
use rustix::fs::{AtFlags, Statx};

use super::{CopyError, Done, Item, Later, Role, WRITE, failed, modified};
use crate::copy::link::{First, Turn};
use crate::error::Cause;

impl Item<'_> {
    /// Copies an inode with several names once, and makes its other names links.
    pub(super) fn with_links<T: FromDone>(
        &self,
        stat: &Statx,
        buffer: &mut Vec<u8>,
        copy: impl FnOnce(&mut Vec<u8>) -> Result<T, CopyError>,
    ) -> Result<T, CopyError> {
        if stat.stx_nlink < 2 {
            return copy(buffer);
        }
        if self.role == Role::First {
            return Ok(T::from_done(Done::Later(Later::Linked(stat.stx_ino))));
        }
        let (inode, links) = (identity(stat), &self.shared.links);
        let version = (stat.stx_size, modified(stat));
        let resumed = self.role != Role::Names;
        match links.met(inode, (version, stat.stx_nlink), resumed, || self.shared.help(buffer)) {
            Turn::Wait => Ok(T::from_done(Done::Later(Later::Linked(stat.stx_ino)))),
            Turn::Link(first) => match self.link(stat, &first) {
                Ok(done) => Ok(T::from_done(done)),
                // That file system takes no more links, or has none: then it is a file of its own.
                Err(CopyError::Failed(_, Cause::System(libc::EMLINK | libc::EXDEV | libc::EPERM))) => {
                    copy(buffer)
                }
                Err(error) => Err(error),
            },
            Turn::Copy => {
                let result = copy(buffer);
                if result.as_ref().is_ok_and(T::is_later) {
                    links.deferred(inode);
                    return result;
                }
                let copied = result.as_ref().is_ok_and(T::is_done);
                match self.destination.stat(self.name) {
                    Ok(Some(stat)) if copied => links.ready(
                        inode,
                        First {
                            version,
                            directory: Arc::clone(self.destination),
                            name: self.name.into(),
                            identity: identity(&stat),
                        },
                    ),
                    _ => links.failed(inode),
                }
                result
            }
        }
    }

    fn link(&self, source: &Statx, first: &First) -> Result<Done, CopyError> {
        let existing = self.existing(source, Some(first.identity))?;
        if existing.is_some_and(|stat| identity(&stat) == first.identity) {
            self.destination.note_linked(first.identity, self.name);
            return Ok(Done::Unchanged);
        }
        let (from, to) = (
            first.directory.descriptor().map_err(failed(WRITE))?,
            self.destination.descriptor().map_err(failed(WRITE))?,
        );
        let make = |name: &CStr| rustix::fs::linkat(&from, &*first.name, &to, name, AtFlags::empty());
        self.place(existing.is_some(), &to, make)?;
        self.destination.note_linked(first.identity, self.name);
        Ok(Done::Linked)
    }
}

/// The result of copying, with or without the possibility that the source changed.
pub(super) trait FromDone {
    fn from_done(done: Done) -> Self;
    fn is_done(&self) -> bool;
    fn is_later(&self) -> bool;
}

impl FromDone for Done {
    fn from_done(done: Done) -> Done {
        done
    }

    fn is_done(&self) -> bool {
        true
    }

    fn is_later(&self) -> bool {
        matches!(self, Done::Later(_))
    }
}

impl FromDone for Option<Done> {
    fn from_done(done: Done) -> Option<Done> {
        Some(done)
    }

    fn is_done(&self) -> bool {
        self.is_some()
    }

    fn is_later(&self) -> bool {
        matches!(self, Some(Done::Later(_)))
    }
}
