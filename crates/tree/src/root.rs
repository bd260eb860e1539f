//! A root to remove, copy or create: its name in its open parent directory, so that it stays the same one
//! whatever happens to the names above it.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nacre_walk::directory::{self, Identity};
use rustix::fs::{CWD, Mode, OFlags, Statx};
use rustix::io::{Errno, retry_on_intr};

/// A name in an open directory.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    parent: OwnedFd,
    name: CString,
    /// True if the path was given with a slash at its end.
    pub slash: bool,
}

impl Root {
    /// Opens the directory that holds the last name of a path. Links before that name are followed, as the user
    /// intended. The path `/` has no name, and is its own parent under the name ".".
    pub fn find(path: &Path) -> Result<Root, Errno> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(Errno::NOENT);
        }
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let (trimmed, slash) = (&bytes[..end], end < bytes.len());
        let begin = trimmed.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (parent, name) = match (&trimmed[..begin], &trimmed[begin..]) {
            (_, b"") => (&b"/"[..], &b"."[..]),
            (b"", name) => (&b"."[..], name),
            (parent, name) => (parent, name),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = retry_on_intr(|| rustix::fs::openat(CWD, parent, flags, Mode::empty()))?;
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let path = if trimmed.is_empty() { b"/" } else { trimmed };
        Ok(Root { path: PathBuf::from(OsStr::from_bytes(path)), parent, name, slash })
    }

    /// Opens a directory by its path, for a name in it.
    pub fn within(directory: &Path, name: &OsStr) -> Result<Root, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = retry_on_intr(|| rustix::fs::openat(CWD, directory, flags, Mode::empty()))?;
        let path = directory.join(name);
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
        Ok(Root { path, parent, name, slash: false })
    }

    /// Returns the path as it was given, without slashes at its end.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path's bytes.
    pub fn path_bytes(&self) -> Vec<u8> {
        self.path.as_os_str().as_bytes().to_vec()
    }

    /// Returns the bytes of the path of an entry below it.
    pub fn join(&self, below: &[u8]) -> Vec<u8> {
        let below = below.strip_prefix(b"/").unwrap_or(below);
        if below.is_empty() {
            return self.path_bytes();
        }
        self.path.join(OsStr::from_bytes(below)).into_os_string().into_encoded_bytes()
    }

    /// Returns the parent directory.
    pub fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// Returns the name in the parent directory.
    pub fn name(&self) -> &std::ffi::CStr {
        &self.name
    }

    /// Returns the `statx` result; a link is not followed.
    pub fn stat(&self) -> Result<Statx, Errno> {
        directory::stat(self.parent(), &self.name)
    }

    /// Returns whether the name is `.` or `..`, which no entry can have.
    pub fn is_dot(&self) -> bool {
        matches!(self.name.to_bytes(), b"." | b"..")
    }
}

/// Returns the device and inode of an open file.
pub fn identity_of(file: BorrowedFd<'_>) -> Result<Identity, Errno> {
    use rustix::fs::{AtFlags, StatxFlags};
    retry_on_intr(|| rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::INO))
        .map(|stat| directory::identity(&stat))
}
