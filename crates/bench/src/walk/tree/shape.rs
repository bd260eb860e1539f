//! The shape of a tree.

use serde::{Deserialize, Serialize};

use crate::BenchError;

/// The parameters of a tree. The same seed and the same shape give the same tree everywhere: names, sizes, times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// The number of ordinary directories, without the root.
    pub(crate) directories: u32,
    /// The maximum number of directories in one of them.
    pub(crate) fan_out: u32,
    /// The maximum number of their levels below the root.
    pub(crate) depth: u32,
    /// The number of files in the root and in the ordinary directories, distributed unevenly.
    pub(crate) files: u32,
    /// The number of directories with very many files.
    pub(crate) large_directories: u32,
    /// The number of files in each of these.
    pub(crate) large_entries: u32,
    /// The number of chains of directories that each hold one file and the next directory.
    pub(crate) chains: u32,
    /// The number of directories in each chain.
    pub(crate) chain_depth: u32,
    /// The number of symbolic links: to files, to the parent directory, and to missing entries.
    pub(crate) symbolic_links: u32,
    /// The number of additional names of files of the parent directory.
    pub(crate) hard_links: u32,
    /// The bound on the size of files in bytes, a power of two. Files are sparse; sizes are uniformly distributed on a
    /// logarithmic scale.
    pub(crate) file_bytes_max: u64,
}

/// The maximum depth of a chain: deeper ones would need more open directories in the measured tools than many systems
/// allow.
const CHAIN_DEPTH_MAX: u32 = 900;
/// The maximum number of entries, far within the limits of file systems.
const ENTRIES_MAX: u64 = 1 << 31;

impl Shape {
    /// Returns the number of entries below the root.
    pub(crate) fn entries(&self) -> u64 {
        let many = |count: u32, each: u32| u64::from(count) * u64::from(each);
        u64::from(self.directories)
            + u64::from(self.files)
            + many(self.large_directories, self.large_entries.saturating_add(1))
            + 2 * many(self.chains, self.chain_depth)
            + u64::from(self.symbolic_links)
            + u64::from(self.hard_links)
    }

    /// Checks that the tree can be made.
    ///
    /// # Errors
    /// [`BenchError::Usage`] if not.
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
