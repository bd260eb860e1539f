//! The unit of a walk of file trees, as the ranks send it.

impl crate::Unit for nacre_walk::Unit {
    fn size_bytes(&self) -> u64 {
        // The root's number, the path with its length, whether there are positions, and about five bytes for each inode.
        let positions = [self.position, self.until].into_iter().flatten().count() as u64;
        4 + self.path.len() as u64 + 9 * positions + 5 * self.inodes.len() as u64
    }
}
