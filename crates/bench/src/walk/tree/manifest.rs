//! The parameters of a tree and the expected results of a walk, stored in a file beside the tree.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nacre_quantity::Escaped;
use serde::{Deserialize, Serialize};

use super::shape::Shape;
use crate::BenchError;

/// The version, increased whenever the same seed and shape give another tree.
const VERSION: u32 = 1;

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) version: u32,
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    pub(crate) totals: Totals,
    /// False until the tree is complete.
    pub(crate) complete: bool,
}

/// The expected results of a walk. The root is not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// The number of entries below the root.
    pub(crate) entries: u64,
    pub(crate) directories: u64,
    /// The number of regular files, each counted once.
    pub(crate) files: u64,
    /// The number of additional names of files.
    pub(crate) hard_links: u64,
    /// The number of files that have additional names.
    pub(crate) files_with_hard_links: u64,
    pub(crate) symbolic_links: u64,
    /// The sum of the sizes of all regular files.
    pub(crate) apparent_bytes: u64,
    /// The sum of these sizes, with a file counted once for each of its names.
    pub(crate) apparent_bytes_by_name: u64,
    /// The sum of the sizes of all symbolic links.
    pub(crate) symbolic_link_bytes: u64,
    /// The number of names in the deepest path below the root.
    pub(crate) deepest: u64,
    /// The size of the longest path below the root, in bytes.
    pub(crate) path_bytes_longest: u64,
    /// The number of entries of the largest directory.
    pub(crate) largest_directory: u64,
}

impl Manifest {
    /// Creates the manifest of a tree that is about to be made.
    pub(super) fn new(seed: u64, shape: Shape, totals: Totals) -> Self {
        Self { version: VERSION, seed, shape, totals, complete: false }
    }

    /// Returns the path of the manifest of a tree.
    pub(crate) fn path(root: &Path) -> PathBuf {
        let mut name = root.file_name().map(OsString::from).unwrap_or_default();
        name.push(".manifest.json");
        root.with_file_name(name)
    }

    /// Returns the manifest of a tree, if it has a readable one.
    pub(crate) fn of(root: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(Self::path(root)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Returns whether the tree is complete and has this seed and shape.
    pub(super) fn is_of(&self, seed: u64, shape: &Shape) -> bool {
        self.complete && (self.version, self.seed) == (VERSION, seed) && self.shape == *shape
    }

    /// Writes the file atomically.
    pub(super) fn write(&self, root: &Path) -> Result<(), BenchError> {
        let file = Self::path(root);
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| BenchError::Process(format!("cannot write a manifest as JSON: {error}")))?;
        let partial = file.with_extension("partial");
        std::fs::write(&partial, text)
            .and_then(|()| std::fs::rename(&partial, &file))
            .map_err(BenchError::io(format!("write {}", Escaped::of(&file))))
    }
}
