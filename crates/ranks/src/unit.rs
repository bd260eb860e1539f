//! The unit of a walk of file trees, as the ranks send it.

impl crate::Unit for nacre_walk::Unit {
    fn size_bytes(&self) -> u64 {
        // The root's number, the path with its length, whether there is a position, and about five bytes for each inode.
        4 + self.path.len() as u64 + self.position.map_or(0, |_| 9) + 5 * self.inodes.len() as u64
    }
}
