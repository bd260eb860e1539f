//! What a tree was made from and what a walk of it must find, kept in a file beside the tree.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::shape::Shape;
use crate::BenchError;

/// Grows whenever the same seed and shape give another tree.
const VERSION: u32 = 1;

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) version: u32,
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    pub(crate) totals: Totals,
    /// False until the tree is all there.
    pub(crate) complete: bool,
}

/// What a walk must find. The root is no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Names below the root.
    pub(crate) entries: u64,
    pub(crate) directories: u64,
    /// Regular files; further names of one are not counted.
    pub(crate) files: u64,
    /// Further names of files.
    pub(crate) hard_links: u64,
    /// Files that have further names.
    pub(crate) files_with_hard_links: u64,
    pub(crate) symbolic_links: u64,
    /// Sizes of all regular files.
    pub(crate) apparent_bytes: u64,
    /// The same, with a file counted once for each of its names.
    pub(crate) apparent_bytes_by_name: u64,
    /// Sizes of all symbolic links.
    pub(crate) symbolic_link_bytes: u64,
    /// Names in the longest path below the root.
    pub(crate) deepest: u64,
    /// Bytes of the longest path, from the root on.
    pub(crate) path_bytes_longest: u64,
    /// Entries of the largest directory.
    pub(crate) largest_directory: u64,
}

impl Manifest {
    /// Of a tree that is about to be made.
    pub(super) fn new(seed: u64, shape: Shape, totals: Totals) -> Self {
        Self { version: VERSION, seed, shape, totals, complete: false }
    }

    /// Where the manifest of a tree is.
    pub(crate) fn path(root: &Path) -> PathBuf {
        let mut name = root.file_name().map(OsString::from).unwrap_or_default();
        name.push(".manifest.json");
        root.with_file_name(name)
    }

    /// The manifest of a tree, if it has one that can be read.
    pub(crate) fn of(root: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(Self::path(root)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Whether the tree is what was asked for.
    pub(super) fn is_of(&self, seed: u64, shape: &Shape) -> bool {
        self.complete && (self.version, self.seed) == (VERSION, seed) && self.shape == *shape
    }

    /// Writes it, wholly or not at all.
    pub(super) fn write(&self, root: &Path) -> Result<(), BenchError> {
        let file = Self::path(root);
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| BenchError::Process(format!("cannot write a manifest as JSON: {error}")))?;
        let partial = file.with_extension("partial");
        std::fs::write(&partial, text)
            .and_then(|()| std::fs::rename(&partial, &file))
            .map_err(BenchError::io(format!("write {}", file.display())))
    }
}
