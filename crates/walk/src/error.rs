//! Errors of a walk, with their paths.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nacre_quantity::Escaped;
use rustix::io::Errno;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Opening a directory.
    Open,
    /// Reading a directory's entries.
    List,
    /// Reading an entry's metadata.
    Stat,
    /// Entering a directory that is mounted below itself.
    Loop,
    /// Reading a file's layout on Lustre.
    Layout,
}

/// An entry that could not be visited, or a directory that could not be read. The walk continues without it. Errors are
/// ordered by their paths first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct WalkError {
    /// The path; bytes, because not all names are UTF-8.
    pub path: Vec<u8>,
    /// The operation that failed.
    pub operation: Operation,
    /// The error number, as in `errno`.
    pub errno: i32,
}

impl WalkError {
    pub(crate) fn new(path: Vec<u8>, operation: Operation, errno: Errno) -> WalkError {
        WalkError { path, operation, errno: errno.raw_os_error() }
    }

    /// Returns the error of a missing directory.
    pub fn missing(path: Vec<u8>) -> WalkError {
        WalkError::new(path, Operation::Open, Errno::NOENT)
    }

    /// Returns whether the entry was removed between being listed and being examined, so that there is nothing to
    /// visit. A directory that is removed while it is read was empty. A stale handle is no proof of a removal: a server
    /// may have lost sight of what is still there.
    pub fn vanished(&self) -> bool {
        let examined = matches!(self.operation, Operation::List | Operation::Stat | Operation::Layout);
        examined && self.errno == libc::ENOENT
    }

    /// Returns whether a listed directory was no longer in its place when it was to be opened. It may have been
    /// removed, or moved with all its contents to a place that the walk does not visit.
    pub fn is_missing(&self) -> bool {
        self.operation == Operation::Open
            && matches!(self.errno, libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ESTALE)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }
}

/// The reason why a missing directory cannot be opened.
pub const MISSING: &str = "it was moved or removed before it was opened";

impl std::fmt::Display for WalkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let doing = match self.operation {
            Operation::Open => "cannot open the directory",
            Operation::List => "cannot read the directory",
            Operation::Stat => "cannot stat",
            Operation::Layout => "cannot read the layout of",
            Operation::Loop => {
                return write!(f, "not entering \"{}\": it is mounted below itself", Escaped(&self.path));
            }
        };
        if self.is_missing() {
            return write!(f, "{doing} \"{}\": {MISSING}", Escaped(&self.path));
        }
        let error = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "{doing} \"{}\": {error}", Escaped(&self.path))
    }
}

impl std::error::Error for WalkError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_is_an_error_and_no_removed_entry() {
        let error = |errno| WalkError::new(b"directory/entry".to_vec(), Operation::Stat, errno);
        assert!(error(Errno::NOENT).vanished());
        assert!(!error(Errno::STALE).vanished() && !error(Errno::STALE).is_missing());
    }
}
