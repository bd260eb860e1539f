//! Links, pipes, sockets and devices, which are made anew with the metadata of the source's.

use std::ffi::CStr;
use std::os::fd::AsFd;

use nacre_walk::FileKind;
use nacre_walk::directory::{self, identity};
use rustix::fs::{FileType, Mode, Statx};
use rustix::io::retry_on_intr;

use super::{CopyError, Done, Item, KEEP, READ, WRITE, failed, gone_or, modified, remove};
use crate::copy::attributes::Named;

impl Item<'_> {
    pub(super) fn copy_special(&self, kind: FileKind, stat: &Statx) -> Result<Done, CopyError> {
        let target = match kind {
            FileKind::Link => Some(
                retry_on_intr(|| rustix::fs::readlinkat(self.source, self.source_name, Vec::new()))
                    .map_err(gone_or(READ))?,
            ),
            _ => None,
        };
        let existing = self.existing(stat, None)?;
        let directory = self.destination.descriptor().map_err(failed(WRITE))?;
        if let Some(existing) = existing
            && existing.stx_mode & libc::S_IFMT as u16 == stat.stx_mode & libc::S_IFMT as u16
            && modified(&existing) == modified(stat)
            && (existing.stx_rdev_major, existing.stx_rdev_minor)
                == (stat.stx_rdev_major, stat.stx_rdev_minor)
            && self.shared.keeper.is_kept(stat, &existing)
            && target.as_ref().is_none_or(|target| {
                rustix::fs::readlinkat(&directory, self.name, Vec::new()).as_ref() == Ok(target)
            })
            && self
                .shared
                .keeper
                .same_extended_named(
                    &Named { directory: self.source, name: self.source_name },
                    &Named { directory: directory.as_fd(), name: self.name },
                )
                .map_err(gone_or(KEEP))?
        {
            return Ok(Done::Unchanged);
        }
        let source = Named { directory: self.source, name: self.source_name };
        let extended = self.shared.keeper.extended_named(&source).map_err(gone_or(KEEP))?;
        let make = |name: &CStr| {
            match &target {
                Some(target) => rustix::fs::symlinkat(target.as_c_str(), &directory, name)?,
                None => {
                    let mode = u32::from(stat.stx_mode);
                    let device = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
                    let (kind, mode) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode & 0o700));
                    rustix::fs::mknodat(&directory, name, kind, mode, device)?;
                }
            }
            let copy = Named { directory: directory.as_fd(), name };
            let noted = if self.destination.has_claims() {
                directory::stat(directory.as_fd(), name)
                    .map(|stat| self.destination.note_made(identity(&stat), self.name, name))
            } else {
                Ok(())
            };
            noted
                .and_then(|()| self.shared.keeper.apply_named(&extended, stat, &copy))
                .inspect_err(|_| remove(&directory, name))
        };
        self.place(existing.is_some(), &directory, make)?;
        Ok(Done::Copied)
    }
}
