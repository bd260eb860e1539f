//! Users, and what the permission bits of an inode let them do (POSIX.1-2024, section 4.7, "File Access Permissions").

use crate::error::{Error, Result};
use crate::inode::Inode;

/// The right to read.
pub const READ: u32 = 4;
/// The right to write; in a directory, to change its entries.
pub const WRITE: u32 = 2;
/// The right to execute; in a directory, to look up its entries.
pub const EXECUTE: u32 = 1;

/// The user and the groups that a call is made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// The user; 0 is root, whom permissions do not stop.
    pub uid: u32,
    /// The group that what the user makes belongs to.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Returns the credentials of root.
    pub fn root() -> Self {
        Self::default()
    }

    /// Returns the credentials of a user with one group.
    pub fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new() }
    }

    /// Returns whether the user is root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns whether the user is in a group.
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns whether the user owns an inode, or is root.
    pub(crate) fn owns(&self, inode: &Inode) -> bool {
        self.is_root() || self.uid == inode.uid
    }

    /// Returns whether the user has all of the `wanted` rights ([`READ`], [`WRITE`], [`EXECUTE`]).
    pub(crate) fn may(&self, inode: &Inode, wanted: u32) -> bool {
        if self.is_root() {
            // Nobody executes a file that is executable for nobody.
            let is_directory = matches!(inode.kind, crate::inode::InodeKind::Directory);
            return wanted & EXECUTE == 0 || is_directory || inode.mode & 0o111 != 0;
        }
        // The first class that the user is in decides, also where a later one has more rights.
        let granted = match () {
            () if self.uid == inode.uid => inode.mode >> 6,
            () if self.is_in(inode.gid) => inode.mode >> 3,
            () => inode.mode,
        };
        granted & wanted == wanted
    }

    /// Checks that the user has all of the `wanted` rights.
    ///
    /// # Errors
    /// [`Error::Denied`].
    pub(crate) fn check(&self, inode: &Inode, wanted: u32) -> Result<()> {
        if self.may(inode, wanted) { Ok(()) } else { Err(Error::Denied) }
    }
}
