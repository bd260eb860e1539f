//! The metadata of a file that is copied: owner, mode, extended attributes with ACLs, times.
//!
//! The order matters: changing the owner clears the set-id bits and capabilities, an ACL changes the mode, and everything
//! may change times.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::copy::listxattr;

/// The maximum size of an extended attribute, in bytes.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// The rules for which metadata this process may and should keep.
#[derive(Clone, Debug)]
pub struct Preserver {
    root: bool,
    user: u32,
    group: u32,
    extended: bool,
}

/// Extended attributes by name.
pub type Attributes = BTreeMap<CString, Vec<u8>>;

/// A target that is neither a file nor a directory: it cannot be opened, only named.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The directory that it is in.
    pub directory: BorrowedFd<'a>,
    /// Its name there.
    pub name: &'a CStr,
}

impl Named<'_> {
    /// Opens the entry itself, whatever it is, for nothing but to be referred to.
    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.directory, self.name, flags, Mode::empty())
    }
}

impl Preserver {
    /// Creates the rules of this process; `extended` keeps extended attributes.
    pub fn new(extended: bool) -> Preserver {
        Preserver {
            root: rustix::process::geteuid().is_root(),
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            extended,
        }
    }

    /// Returns whether this process may change the owner of files.
    pub fn is_root(&self) -> bool {
        self.root
    }

    /// Returns whether owner, group and mode of a target are as a copy would set them. Links have no mode of their own.
    pub fn is_kept(&self, source: &Statx, target: &Statx) -> bool {
        if u32::from(source.stx_mode) & libc::S_IFMT == libc::S_IFLNK {
            let owners = |stat: &Statx| (stat.stx_uid, stat.stx_gid);
            return !self.root || owners(source) == owners(target);
        }
        if self.root {
            return (source.stx_uid, source.stx_gid, source.stx_mode)
                == (target.stx_uid, target.stx_gid, target.stx_mode);
        }
        let lost = self.lost(source, target.stx_gid);
        let mode = u32::from(source.stx_mode) & !lost;
        mode == u32::from(target.stx_mode)
    }

    /// Returns the set-id bits that must not be kept, because they would apply to another owner.
    fn lost(&self, source: &Statx, group: u32) -> u32 {
        let user = if !self.root && source.stx_uid != self.user { libc::S_ISUID } else { 0 };
        let group = if !self.root && source.stx_gid != group { libc::S_ISGID } else { 0 };
        user | group
    }

    /// Returns whether an entry is known to have no extended attributes that are kept, without opening it.
    pub fn is_bare(&self, entry: &Named<'_>) -> bool {
        if !self.extended {
            return true;
        }
        let mut names = [0; 256];
        match listxattr::names_of(entry.directory, entry.name, &mut names) {
            Ok(len) => names[..len].split_inclusive(|byte| *byte == 0).all(is_label),
            Err(errno) => errno == Errno::NOTSUP,
        }
    }

    /// Gives an open target all metadata of its source. `used` is true if the target may have extended attributes
    /// already.
    pub fn apply(
        &self,
        source: BorrowedFd<'_>,
        stat: &Statx,
        target: BorrowedFd<'_>,
        used: bool,
    ) -> Result<(), Errno> {
        self.give(&self.extended(source)?, stat, target, used)
    }

    /// Gives an open target all metadata of its source, whose extended attributes are `extended`, as [`Preserver::apply`] does.
    pub fn give(
        &self,
        extended: &Attributes,
        stat: &Statx,
        target: BorrowedFd<'_>,
        used: bool,
    ) -> Result<(), Errno> {
        // A new file mostly has its owner and mode already, and a look costs less than a change. Of one that was there before, a
        // change of the owner also takes what gave its contents rights.
        let there = if used { None } else { Some(stat_access(target)?) };
        let is_owned = there.is_some_and(|there| {
            there.stx_gid == stat.stx_gid && (!self.root || there.stx_uid == stat.stx_uid)
        });
        let group = match is_owned {
            true => stat.stx_gid,
            false => self.own(stat, |user, group| rustix::fs::fchown(target, user, group))?,
        };
        self.set(&AttributeSource::Open(target), extended, used && self.extended)?;
        let mode = self.mode(stat, group);
        // An ACL that was just set has changed the mode, and so may have a new owner.
        let has_mode = is_owned
            && extended.is_empty()
            && there.is_some_and(|there| u32::from(there.stx_mode) & 0o7777 == mode);
        if !has_mode {
            rustix::fs::fchmod(target, Mode::from_raw_mode(mode))?;
        }
        rustix::fs::futimens(target, &times(stat))
    }

    /// Returns the mode of a file's copy, if it may be created with that in a directory of this group: nobody is given access who has
    /// none to the finished copy, because the file has its owner and its group from the beginning, and no ACL restricts them.
    pub fn early_mode(&self, source: &Statx, extended: &Attributes, group: Option<u32>) -> Option<Mode> {
        let mode = u32::from(source.stx_mode) & 0o7777;
        let is_safe = extended.is_empty()
            && mode & 0o7000 == 0
            && mode & 0o600 == 0o600
            && (!self.root || source.stx_uid == self.user)
            // A new file gets the group of the process, or of the directory.
            && source.stx_gid == self.group
            && group == Some(self.group);
        is_safe.then(|| Mode::from_raw_mode(mode))
    }

    /// Returns whether an open target already has all metadata of its source that [`Preserver::apply`] would give it.
    pub fn is_applied(
        &self,
        source: BorrowedFd<'_>,
        stat: &Statx,
        (target, there): (BorrowedFd<'_>, &Statx),
    ) -> Result<bool, Errno> {
        let same_times = [(stat.stx_atime, there.stx_atime), (stat.stx_mtime, there.stx_mtime)]
            .iter()
            .all(|(a, b)| (a.tv_sec, a.tv_nsec) == (b.tv_sec, b.tv_nsec));
        // Whoever is not root may be able to give it the group nevertheless.
        if !same_times || stat.stx_gid != there.stx_gid || !self.is_kept(stat, there) {
            return Ok(false);
        }
        Ok(self.extended(source)? == self.extended(target)?)
    }

    /// Gives an open file that is new all metadata of its source, whose extended attributes are `extended`.
    ///
    /// # Errors
    /// The error number of the system.
    pub fn apply_new(
        &self,
        extended: &Attributes,
        stat: &Statx,
        target: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        self.give(extended, stat, target, false)
    }

    /// Returns the permission bits of a copy that is in this group.
    pub fn mode(&self, source: &Statx, group: u32) -> u32 {
        u32::from(source.stx_mode) & 0o7777 & !self.lost(source, group)
    }

    /// Returns the extended attributes that are kept of a link, a pipe or a device.
    pub fn extended_named(&self, source: &Named<'_>) -> Result<Attributes, Errno> {
        // Most have none, which can be seen without opening them.
        if self.is_bare(source) {
            return Ok(Attributes::new());
        }
        list(&AttributeSource::Path(by_descriptor(source.open()?.as_fd())))
    }

    /// Gives a target that is a link, a pipe or a device all metadata of its source, whose extended attributes are
    /// `extended`.
    ///
    /// # Errors
    /// The error number of the system.
    pub fn apply_named(&self, extended: &Attributes, stat: &Statx, target: &Named<'_>) -> Result<(), Errno> {
        self.give_named(extended, stat, target, false)
    }

    /// Gives a target of any kind all metadata of its source, whose extended attributes are `extended`, and no others.
    ///
    /// # Errors
    /// The error number of the system.
    pub fn adjust_named(&self, extended: &Attributes, stat: &Statx, target: &Named<'_>) -> Result<(), Errno> {
        self.give_named(extended, stat, target, true)
    }

    fn give_named(
        &self,
        extended: &Attributes,
        stat: &Statx,
        target: &Named<'_>,
        used: bool,
    ) -> Result<(), Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let group = self.own(stat, |user, group| {
            rustix::fs::chownat(target.directory, target.name, user, group, flags)
        })?;
        let link = u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFLNK;
        let used = used && self.extended;
        // A link has no mode, and mostly no attributes: then nothing is set by its descriptor.
        if !link || used || !extended.is_empty() {
            let target_open = target.open()?;
            let path = by_descriptor(target_open.as_fd());
            self.set(&AttributeSource::Path(path.clone()), extended, used)?;
            if !link {
                rustix::fs::chmod(path, Mode::from_raw_mode(self.mode(stat, group)))?;
            }
        }
        rustix::fs::utimensat(target.directory, target.name, &times(stat), flags)
    }

    /// Sets the owner and group of the source as far as this process may, and returns the resulting group.
    fn own(
        &self,
        stat: &Statx,
        chown: impl FnOnce(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
    ) -> Result<u32, Errno> {
        let group = Gid::from_raw(stat.stx_gid);
        if self.root {
            chown(Some(Uid::from_raw(stat.stx_uid)), Some(group))?;
            return Ok(stat.stx_gid);
        }
        // A file may be given to another group only if its owner is a member.
        match chown(None, Some(group)) {
            Ok(()) => Ok(stat.stx_gid),
            Err(Errno::PERM) => Ok(self.group),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the extended attributes that are kept of an open file or directory.
    pub fn extended(&self, source: BorrowedFd<'_>) -> Result<Attributes, Errno> {
        match self.extended {
            true => list(&AttributeSource::Open(source)),
            false => Ok(Attributes::new()),
        }
    }

    fn set(&self, target: &AttributeSource<'_>, wanted: &Attributes, used: bool) -> Result<(), Errno> {
        let mut present = if used { list(target)? } else { Attributes::new() };
        for (name, value) in wanted {
            if present.remove(name).as_ref() != Some(value) {
                match target.set(name, value) {
                    Ok(()) => {}
                    // What belongs to the system's own bookkeeping is kept where the system lets us.
                    Err(_) if !self.is_owed(name) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        for name in present.keys().filter(|name| self.is_owed(name)) {
            target.remove(name)?;
        }
        Ok(())
    }

    /// Returns whether two open files have the same extended attributes, as far as they are kept.
    pub fn same_extended(&self, a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(self.owed(self.extended(a)?) == self.owed(self.extended(b)?))
    }

    /// Returns whether two links, pipes or devices have the same extended attributes, as far as they are kept.
    pub fn same_extended_named(&self, a: &Named<'_>, b: &Named<'_>) -> Result<bool, Errno> {
        Ok(self.owed(self.extended_named(a)?) == self.owed(self.extended_named(b)?))
    }

    /// Returns those extended attributes that a copy has to have.
    pub fn owed(&self, attributes: Attributes) -> Attributes {
        attributes.into_iter().filter(|(name, _)| self.is_owed(name)).collect()
    }

    /// Returns whether losing this attribute would be a failure.
    fn is_owed(&self, name: &CStr) -> bool {
        let name = name.to_bytes();
        name.starts_with(b"user.")
            || name.starts_with(b"system.posix_acl_")
            || self.root && (name.starts_with(b"trusted.") || name == b"security.capability")
    }
}

/// Returns whether an extended attribute of this name belongs to a system, and not to the file.
pub fn belongs_to_system(name: &CStr) -> bool {
    is_label(name.to_bytes_with_nul())
}

/// Returns whether new entries in a directory inherit an ACL from it.
pub fn inherits(directory: BorrowedFd<'_>) -> bool {
    let is_at = |place: AttributeSource<'_>| place.get(c"system.posix_acl_default", &mut []);
    match is_at(AttributeSource::Open(directory)) {
        // It is open for nothing but to be referred to.
        Err(Errno::BADF) => is_at(AttributeSource::Path(by_descriptor(directory))).is_ok(),
        found => found.is_ok(),
    }
}

/// Returns the `statx` result (owner, group and mode) for an open file. Its size or times, which nobody asks for here, a client of a
/// server would only know after sending what was written.
fn stat_access(file: BorrowedFd<'_>) -> Result<Statx, Errno> {
    let wanted = StatxFlags::MODE | StatxFlags::UID | StatxFlags::GID;
    retry_on_intr(|| rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted))
}

fn times(stat: &Statx) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: stat.stx_atime.tv_sec, tv_nsec: stat.stx_atime.tv_nsec.into() },
        last_modification: Timespec { tv_sec: stat.stx_mtime.tv_sec, tv_nsec: stat.stx_mtime.tv_nsec.into() },
    }
}

/// Returns whether an attribute is a security module's label, which belongs to the target system. `name` includes its
/// terminating zero.
fn is_label(name: &[u8]) -> bool {
    name.starts_with(b"security.") && name != b"security.capability\0"
}

/// Returns a path that refers to exactly the open file, even a link.
pub fn by_descriptor(descriptor: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// The location of extended attributes.
enum AttributeSource<'a> {
    Open(BorrowedFd<'a>),
    Path(String),
}

impl AttributeSource<'_> {
    fn names(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            AttributeSource::Open(file) => rustix::fs::flistxattr(file, buffer),
            AttributeSource::Path(path) => rustix::fs::listxattr(path, buffer),
        }
    }

    fn get(&self, name: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            AttributeSource::Open(file) => rustix::fs::fgetxattr(file, name, buffer),
            AttributeSource::Path(path) => rustix::fs::getxattr(path, name, buffer),
        }
    }

    fn set(&self, name: &CStr, value: &[u8]) -> Result<(), Errno> {
        match self {
            AttributeSource::Open(file) => rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()),
            AttributeSource::Path(path) => rustix::fs::setxattr(path, name, value, XattrFlags::empty()),
        }
    }

    fn remove(&self, name: &CStr) -> Result<(), Errno> {
        match self {
            AttributeSource::Open(file) => rustix::fs::fremovexattr(file, name),
            AttributeSource::Path(path) => rustix::fs::removexattr(path, name),
        }
    }
}

/// Returns the extended attributes that an ordinary file system call shows.
fn list(place: &AttributeSource<'_>) -> Result<Attributes, Errno> {
    let mut attributes = Attributes::new();
    // Most files have none, or few.
    let (mut small, mut large) = ([0; 512], Vec::new());
    let names = match place.names(&mut small) {
        Ok(len) => &small[..len],
        Err(Errno::RANGE) => {
            large.resize(VALUE_BYTES_MAX, 0);
            let len = place.names(&mut large)?;
            &large[..len]
        }
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(attributes),
        Err(errno) => return Err(errno),
    };
    if names.is_empty() {
        return Ok(attributes);
    }
    let mut value = vec![0; VALUE_BYTES_MAX];
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if is_label(name.to_bytes_with_nul()) {
            continue;
        }
        match place.get(name, &mut value) {
            Ok(len) => drop(attributes.insert(name.into(), value[..len].to_vec())),
            // It went away meanwhile, or is listed but not for us.
            Err(Errno::NODATA | Errno::PERM | Errno::NOTSUP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::copy::file::stat_open;

    #[test]
    fn a_file_is_created_with_its_mode_only_if_that_gives_nobody_else_access() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("file")).unwrap();
        file.set_permissions(Permissions::from_mode(0o640)).unwrap();
        let mut stat = stat_open(file.as_fd()).unwrap();
        let keeper = Preserver::new(true);
        (stat.stx_uid, stat.stx_gid) = (keeper.user, keeper.group);
        let (own, other, none) = (Some(keeper.group), Some(keeper.group + 1), Attributes::new());
        assert_eq!(keeper.early_mode(&stat, &none, own), Some(Mode::from_raw_mode(0o640)));
        for group in [other, None] {
            assert_eq!(keeper.early_mode(&stat, &none, group), None);
        }
        let acl = Attributes::from([(c"system.posix_acl_access".to_owned(), vec![1])]);
        assert_eq!(keeper.early_mode(&stat, &acl, own), None);
        let mut foreign = stat;
        foreign.stx_gid = keeper.group + 1;
        assert_eq!(keeper.early_mode(&foreign, &none, own), None);
        assert_eq!(keeper.early_mode(&foreign, &none, other), None);
        for mode in [0o4755, 0o2755, 0o1755, 0o440] {
            let mut special = stat;
            special.stx_mode = libc::S_IFREG as u16 | mode;
            assert_eq!(keeper.early_mode(&special, &none, own), None);
        }
    }

    #[test]
    fn a_new_file_gets_what_it_has_not_and_its_times_last() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Preserver::new(true);
        let open = |name: &str, mode| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_permissions(Permissions::from_mode(mode)).unwrap();
            file
        };
        for mode in [0o640, 0o755, 0o4711] {
            let source = open("source", mode);
            let mut stat = stat_open(source.as_fd()).unwrap();
            (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec) = (1_000_000_000, 7);
            for before in [mode, 0o600] {
                let target = open("target", before);
                if keeper.root && before != mode {
                    rustix::fs::fchown(&target, None, Some(Gid::from_raw(keeper.group + 1))).unwrap();
                }
                keeper.give(&Attributes::new(), &stat, target.as_fd(), false).unwrap();
                let there = stat_open(target.as_fd()).unwrap();
                assert_eq!(
                    (there.stx_mode, there.stx_uid, there.stx_gid),
                    (stat.stx_mode, stat.stx_uid, stat.stx_gid)
                );
                assert_eq!((there.stx_mtime.tv_sec, there.stx_mtime.tv_nsec), (1_000_000_000, 7));
            }
        }
    }
}
