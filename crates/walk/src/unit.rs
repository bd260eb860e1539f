//! A piece of work as it leaves a process: for another rank, or into a checkpoint.

/// A directory to walk, or the rest of one: small whatever the directory's size, and good in another process as long
/// as the tree has the same roots there.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Unit {
    /// Number of the root that it is below.
    pub root: u32,
    /// The path below that root; empty for the root itself.
    pub path: Vec<u8>,
    /// Where reading goes on, if somebody has begun to read the directory.
    pub position: Option<u64>,
    /// Inode numbers of the directories on the path, from the one in the root down to this one: a directory that was
    /// renamed since is found by its number, and one that took its name is not mistaken for it. 0 where it is not known.
    /// Devices are not named: their numbers differ between nodes and after a restart.
    pub inodes: Vec<u64>,
}

impl Unit {
    /// Something in it that nobody has opened yet.
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

impl crate::algorithm::Unit for Unit {
    fn size_bytes(&self) -> u64 {
        // The root's number, the path with its length, whether there is a position, and about five bytes for each inode.
        4 + self.path.len() as u64 + self.position.map_or(0, |_| 9) + 5 * self.inodes.len() as u64
    }
}
