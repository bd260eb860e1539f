//! A piece of work as it leaves a process: for another rank, or into a checkpoint.

/// A directory to walk, or the rest of one: small whatever the directory's size, and good in another process as long
/// as the tree has the same roots there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Unit {
    /// Number of the root that it is below.
    pub root: u32,
    /// The path below that root; empty for the root itself.
    pub path: Vec<u8>,
    /// Where reading goes on, if somebody has begun to read the directory.
    pub position: Option<u64>,
}

impl crate::algorithm::Unit for Unit {
    fn size_bytes(&self) -> u64 {
        // The root's number, the path with its length, and whether there is a position.
        4 + self.path.len() as u64 + self.position.map_or(0, |_| 9)
    }
}
