//! Trees to walk: made from a seed and a shape, with a manifest of the expected results.

mod make;
mod manifest;
mod plan;
mod shape;

use std::path::{Path, PathBuf};

use nacre_quantity::Escaped;

pub(crate) use self::manifest::Manifest;
use self::plan::Plan;
pub(crate) use self::shape::Shape;
use crate::BenchError;

/// A tree to walk. One that was made is removed when dropped, unless it is to be kept; an existing one stays.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    /// The expected results of a walk, if the tree has a manifest.
    pub(crate) manifest: Option<Manifest>,
    /// True if the tree existed already.
    pub(crate) reused: bool,
    keep: bool,
}

impl Tree {
    /// Opens an existing tree, which is not changed. Its manifest is used if it has one.
    ///
    /// # Errors
    /// If the root is not a directory.
    pub(crate) fn existing(root: &Path) -> Result<Self, BenchError> {
        let attempted = BenchError::io(format!("find the tree {}", Escaped::of(&root)));
        let root = root.canonicalize().map_err(attempted)?;
        if !root.is_dir() {
            return Err(BenchError::Usage(format!("{} is no directory", Escaped::of(&root))));
        }
        let manifest = Manifest::of(&root).filter(|manifest| manifest.complete);
        Ok(Self { root, manifest, reused: true, keep: true })
    }

    /// Opens the tree of this seed and shape, or makes it. Nothing that was not made here is ever removed or added to, and
    /// a tree that was not made to its end is removed.
    pub(crate) fn open_or_create(
        root: &Path,
        seed: u64,
        shape: &Shape,
        threads: usize,
        keep: bool,
    ) -> Result<Self, BenchError> {
        let root = std::path::absolute(root).map_err(BenchError::io("find the working folder"))?;
        let known = Manifest::of(&root);
        if let Some(manifest) = known.clone().filter(|manifest| manifest.is_of(seed, shape) && root.is_dir())
        {
            return Ok(Self { root, manifest: Some(manifest), reused: true, keep: true });
        }
        match known {
            // Another shape, or a tree whose making was interrupted: it is ours.
            Some(_) => remove(&root)?,
            None if root.exists() => {
                return Err(BenchError::Usage(format!(
                    "{} is there and was not made by this study; name another place for the tree",
                    Escaped::of(&root)
                )));
            }
            None => {}
        }
        let plan = Plan::new(seed, shape)?;
        let mut manifest = Manifest::new(seed, shape.clone(), plan.totals());
        // Written first, so that an interrupted tree is known to be ours.
        manifest.write(&root)?;
        std::fs::create_dir(&root).map_err(BenchError::io(format!("make {}", Escaped::of(&root))))?;
        let mut tree = Self { root, manifest: None, reused: false, keep: false };
        make::make(&plan, &tree.root, threads)?;
        manifest.complete = true;
        manifest.write(&tree.root)?;
        (tree.manifest, tree.keep) = (Some(manifest), keep);
        Ok(tree)
    }

    /// Returns the default path of a tree.
    pub(crate) fn default_root(seed: u64, shape: &Shape) -> PathBuf {
        std::env::temp_dir().join(format!("nacre-walk-{}-{seed}", shape.entries()))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = remove(&self.root)
        {
            eprintln!("nacre: {error}");
        }
    }
}

/// Removes a tree and its manifest.
fn remove(root: &Path) -> Result<(), BenchError> {
    let gone = |result: std::io::Result<()>| match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    // The manifest last: while it is there, what is left of the tree is known to be ours.
    gone(std::fs::remove_dir_all(root))
        .and_then(|()| gone(std::fs::remove_file(Manifest::path(root))))
        .map_err(BenchError::io(format!("remove the tree {}", Escaped::of(&root))))
}

#[cfg(test)]
mod tests;
