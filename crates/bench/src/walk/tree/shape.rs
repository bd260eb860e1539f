//! What a tree is to look like.

use serde::{Deserialize, Serialize};

use crate::BenchError;

/// The parameters of a tree. The same seed and the same shape give the same tree everywhere: names, sizes, times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// Ordinary directories, without the root.
    pub(crate) directories: u32,
    /// Most directories in one of them.
    pub(crate) fan_out: u32,
    /// Most levels of them below the root.
    pub(crate) depth: u32,
    /// Files in the root and in the ordinary directories; some hold few of them, some many.
    pub(crate) files: u32,
    /// Directories of very many files.
    pub(crate) large_directories: u32,
    /// Files in each of those.
    pub(crate) large_entries: u32,
    /// Chains: directories that each hold one file and the next directory.
    pub(crate) chains: u32,
    /// Directories in each chain.
    pub(crate) chain_depth: u32,
    /// Symbolic links: to files, to the directory above, to nowhere.
    pub(crate) symbolic_links: u32,
    /// Second, third, … names of files of the directory above.
    pub(crate) hard_links: u32,
    /// Files are sparse and smaller than this, a power of two; small ones are as frequent as large ones on a
    /// logarithmic scale.
    pub(crate) file_bytes_max: u64,
}

/// Deeper chains would take more open directories than many systems grant, in the tools that are measured.
const CHAIN_DEPTH_MAX: u32 = 900;
/// What file systems hold on to in one tree, generously.
const ENTRIES_MAX: u64 = 1 << 31;

impl Shape {
    /// Names below the root.
    pub(crate) fn entries(&self) -> u64 {
        let many = |count: u32, each: u32| u64::from(count) * u64::from(each);
        u64::from(self.directories)
            + u64::from(self.files)
            + many(self.large_directories, self.large_entries.saturating_add(1))
            + 2 * many(self.chains, self.chain_depth)
            + u64::from(self.symbolic_links)
            + u64::from(self.hard_links)
    }

    /// Refuses what cannot be made.
    pub(crate) fn validate(&self) -> Result<(), BenchError> {
        let usage = |text: &str| Err(BenchError::Usage(text.into()));
        if self.chain_depth > CHAIN_DEPTH_MAX {
            return usage(&format!("chains are at most {CHAIN_DEPTH_MAX} directories deep"));
        }
        if !self.file_bytes_max.is_power_of_two() || self.file_bytes_max > 1 << 40 {
            return usage("the bound of the file sizes is a power of two, at most 1TiB");
        }
        if self.entries() > ENTRIES_MAX {
            return usage("the tree would have more than two thousand million entries");
        }
        // As many as fit below a root with this fan-out and depth.
        let (mut level, mut room) = (1u64, 0u64);
        for _ in 0..self.depth {
            level = level.saturating_mul(u64::from(self.fan_out));
            room = room.saturating_add(level);
        }
        if room < u64::from(self.directories) {
            return usage(&format!(
                "{} directories do not fit into {} levels with {} in each",
                self.directories, self.depth, self.fan_out
            ));
        }
        Ok(())
    }
}
