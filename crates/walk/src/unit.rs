//! A unit of work that leaves a process: for another rank, or into a checkpoint.

use std::ffi::CStr;

/// A directory to walk, or the rest of one: small whatever the directory's size, and valid in another process that has
/// the same roots.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Unit {
    /// The number of the root that it is below.
    pub root: u32,
    /// The path below that root; empty for the root itself.
    pub path: Vec<u8>,
    /// The position at which reading continues, if the directory was begun.
    pub position: Option<u64>,
    /// The inode numbers of the directories on the path, from the one in the root down to this one: a directory that
    /// was renamed since is found by its number, and one that took its name is not mistaken for it. 0 where unknown.
    /// Devices are not included: their numbers differ between nodes and after a restart.
    pub inodes: Vec<u64>,
}

impl Unit {
    /// Adds the units of unopened entries in this directory to `units`. The last one takes over its path, which may be long: most
    /// directories far below their root have one subdirectory alone.
    pub(crate) fn children<'n>(
        mut self,
        names: impl Iterator<Item = (&'n CStr, u64)>,
        units: &mut Vec<Unit>,
    ) {
        let mut names = names.peekable();
        while let Some((name, inode)) = names.next() {
            if names.peek().is_some() {
                units.push(self.child(name.to_bytes(), inode));
                continue;
            }
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.to_bytes());
            self.inodes.push(inode);
            return units.push(Unit { position: None, ..self });
        }
    }

    /// Returns the unit of an unopened entry in this directory.
    pub(crate) fn child(&self, name: &[u8], inode: u64) -> Unit {
        let mut path = Vec::with_capacity(self.path.len() + 1 + name.len());
        path.extend_from_slice(&self.path);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let mut inodes = Vec::with_capacity(self.inodes.len() + 1);
        inodes.extend_from_slice(&self.inodes);
        inodes.push(inode);
        Unit { root: self.root, path, position: None, inodes }
    }
}
