//! Names in a directory at the destination: which name of the source an entry is the copy of, and whether a name is free. Its
//! file system may take two names of the source for one.

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use nacre_walk::directory::{self, Identity};
use nacre_walk::{FileKind, Metadata};
use rustix::fs::{RenameFlags, Statx};
use rustix::io::{Errno, retry_on_intr};

use super::{Destination, Open, each_name};
use crate::copy::data::ShortCuts;

/// The reason why a name of the source has no copy where the destination takes it for another one.
pub const ONE: &str = "two names of the source are one at the destination, whose file system ignores case or converts \
                       Unicode; the copy of the other one stays";

impl Destination {
    /// Takes an existing entry for the copy of a name; returns false if it is the copy of another name of the source.
    pub fn claim(&self, entry: &Statx, name: &CStr) -> Result<bool, Errno> {
        if self.is_folded(name)? {
            return Ok(false);
        }
        let Some(claims) = &self.claims else { return Ok(true) };
        let (identity, is_directory) =
            (directory::identity(entry), Metadata(*entry).kind() == FileKind::Directory);
        if claims.take(identity, name, is_directory) {
            self.bound_claims(name);
            return Ok(true);
        }
        if is_directory {
            return Ok(false);
        }
        // Where both names are listed, they are names of their own: of one file, even if the other name has got a new one
        // since.
        let (mut own, mut other) = (false, false);
        each_name(self.descriptor()?.as_fd(), |listed| {
            own |= listed == name;
            other |= listed != name && claims.is_owner(identity, listed);
            Ok(!(own && other))
        })?;
        Ok(own && other)
    }

    /// Returns whether the entry that is found under a name may be the copy of another one that another process has made:
    /// the directory ignores case, and has an entry of the name, but none that is listed so. In the directory that the copy
    /// is made in there is one name only.
    pub(super) fn is_folded(&self, name: &CStr) -> Result<bool, Errno> {
        let folds = self.together && !self.top && self.ignores_case(name) == Some(true);
        Ok(folds && !self.lists(name)?)
    }

    /// Notes that an entry, which has the name `present`, is the copy of a name, or is about to be.
    pub fn note_made(&self, entry: Identity, name: &CStr, present: &CStr) {
        if let Some(claims) = &self.claims {
            claims.give(entry, name, false);
            self.bound_claims(present);
        }
    }

    /// Notes that a name is a further one of a file.
    pub fn note_linked(&self, entry: Identity, name: &CStr) {
        if let Some(claims) = &self.claims {
            claims.take(entry, name, false);
        }
    }

    /// Notes that an existing entry was removed.
    pub fn note_removed(&self, entry: Identity) {
        if let Some(claims) = &self.claims {
            claims.forget(entry);
        }
    }

    /// Returns whether it has to be told which entries were made in it.
    pub fn has_claims(&self) -> bool {
        self.claims.is_some()
    }

    /// Keeps claims on many entries only if names are folded here; `present` is the name of an entry.
    pub(super) fn bound_claims(&self, present: &CStr) {
        if let Some(claims) = &self.claims
            && claims.are_many()
            && self.ignores_case(present) == Some(false)
        {
            claims.end();
        }
    }

    /// Returns whether an entry is found under its name in the other case, too; `None` if the name has no letter to tell
    /// by. It is looked for once.
    fn ignores_case(&self, present: &CStr) -> Option<bool> {
        if let Some(known) = self.ignores_case.get() {
            return Some(*known);
        }
        let other = in_other_case(present)?;
        let ignores = match (self.stat(&other), self.stat(present)) {
            (Ok(None), _) => false,
            (Ok(Some(other)), Ok(Some(stat))) => directory::identity(&other) == directory::identity(&stat),
            // In doubt it is taken to ignore case, which costs further looks, but no entry.
            _ => true,
        };
        Some(*self.ignores_case.get_or_init(|| ignores))
    }

    /// Gives an entry of it a name that no entry has; [`Errno::EXIST`] if one has.
    pub fn rename_new(
        &self,
        directory: &Open,
        present: &CStr,
        name: &CStr,
        cuts: &ShortCuts,
    ) -> Result<(), Errno> {
        if !cuts.no_exclusive.load(Ordering::Relaxed) {
            let flags = RenameFlags::NOREPLACE;
            let renamed =
                retry_on_intr(|| rustix::fs::renameat_with(directory, present, directory, name, flags));
            match renamed {
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    cuts.no_exclusive.store(true, Ordering::Relaxed);
                }
                renamed => return renamed,
            }
        }
        let rename = || retry_on_intr(|| rustix::fs::renameat(directory, present, directory, name));
        if self.ignores_case(present) == Some(false) {
            return rename();
        }
        let _naming = self.naming.lock();
        match self.stat(name)? {
            Some(_) => Err(Errno::EXIST),
            None => rename(),
        }
    }
}

/// Returns a name with each of its ASCII letters in the other case; `None` if it has none.
fn in_other_case(name: &CStr) -> Option<CString> {
    let other = name.to_bytes().iter().map(|byte| match *byte {
        b'a'..=b'z' => byte.to_ascii_uppercase(),
        _ => byte.to_ascii_lowercase(),
    });
    let other: Vec<u8> = other.collect();
    // It has no zeros, as the name has none.
    CString::new(other).ok().filter(|other| **other != *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_the_copy_of_one_name_unless_both_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(inside.join("a"), "").unwrap();
        let top = Destination::top(std::fs::File::open(folder.path()).unwrap().into()).unwrap();
        let destination = top.find(c"inside").unwrap();
        let found = |name: &CStr| destination.stat(name).unwrap().unwrap();
        assert_eq!(destination.claim(&found(c"a"), c"a"), Ok(true));
        assert_eq!(destination.claim(&found(c"a"), c"A"), Ok(false));
        assert_eq!(destination.claim(&found(c"a"), c"a"), Ok(true));
        std::fs::hard_link(inside.join("a"), inside.join("b")).unwrap();
        assert_eq!(destination.claim(&found(c"b"), c"b"), Ok(true));
        assert_eq!(destination.claim(&found(c"b"), c"B"), Ok(false));
        // The copy of the one gets an inode of its own.
        std::fs::write(inside.join("new"), "").unwrap();
        std::fs::rename(inside.join("new"), inside.join("a")).unwrap();
        assert_eq!(destination.claim(&found(c"b"), c"b"), Ok(true));
    }

    #[test]
    fn a_name_is_given_only_if_no_entry_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let destination = Destination::top(std::fs::File::open(folder.path()).unwrap().into()).unwrap();
        for without in [false, true] {
            let cuts = ShortCuts::default();
            // As on systems that do not know the condition.
            cuts.no_exclusive.store(without, Ordering::Relaxed);
            std::fs::write(folder.path().join("unfinished"), "new").unwrap();
            let opened = destination.descriptor().unwrap();
            let name = if without { c"B" } else { c"A" };
            assert_eq!(destination.rename_new(&opened, c"unfinished", name, &cuts), Ok(()));
            assert_eq!(destination.stat(c"unfinished").unwrap().map(drop), None);
            assert!(destination.stat(name).unwrap().is_some() && destination.lists(name).unwrap());
        }
        let cuts = ShortCuts::default();
        let opened = destination.descriptor().unwrap();
        assert_eq!(destination.rename_new(&opened, c"A", c"B", &cuts), Err(Errno::EXIST));
        assert!(destination.lists(c"A").unwrap() && !destination.lists(c"a").unwrap());
    }
}
