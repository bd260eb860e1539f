//! Directories of this machine that are those of the namespace, by way of a mount: a copy of one into the other would never end.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;

use nacre::fs::{Error, Ino};
use nacre_tree::mounts::{Mount, mounted};
use nacre_walk::{FileKind, Metadata};
use rustix::fs::makedev;

use crate::command::fs::{Tree, metadata_of};

/// The number of directories above a place after which their tree must be damaged.
const LEVELS_MAX: usize = 1 << 20;

/// An entry of this machine that is one of the namespace.
#[derive(Clone, Copy)]
pub struct Seen {
    pub ino: Ino,
    /// True if the mount has the store by the name that this program has it by. Otherwise it may be one of a copy of the store.
    pub is_certain: bool,
}

impl Seen {
    /// Returns an entry of the namespace itself.
    pub fn itself(ino: Ino) -> Seen {
        Seen { ino, is_certain: true }
    }
}

fn device(mount: &Mount) -> u64 {
    makedev(mount.device.0, mount.device.1)
}

fn is_fuse(mount: &Mount) -> bool {
    matches!(&mount.kind[..], "fuse" | "fuse.nacre")
}

fn is_of(tree: &Tree, mount: &Mount) -> bool {
    is_fuse(mount) && mount.source.as_bytes() == tree.store.name().as_bytes()
}

/// Returns the devices of the mounts of a namespace, as far as they have its store by the name that this program has it by.
pub fn devices(tree: &Tree) -> Vec<u64> {
    mounted().iter().filter(|mount| is_of(tree, mount)).map(device).collect()
}

/// Returns what an entry of this machine is in a namespace, if it is in a mount of that.
pub async fn seen(tree: &Tree, metadata: &Metadata) -> Option<Seen> {
    let mounts = mounted();
    let mount = mounts.iter().find(|mount| is_fuse(mount) && device(mount) == metadata.device())?;
    let ino = Ino(metadata.inode());
    if is_of(tree, mount) {
        return Some(Seen { ino, is_certain: true });
    }
    // The store may have several names. A directory that was changed at the same nanosecond in both is the same one.
    let found = tree.rank.stat(ino).await.ok()?;
    let known = metadata_of(&found, FileKind::Unknown).ok()?;
    let times = |of: &Metadata| (of.modified(), of.changed());
    let is_directory = [&known, metadata].iter().all(|of| of.kind() == FileKind::Directory);
    (is_directory && times(&known) == times(metadata)).then_some(Seen { ino, is_certain: false })
}

/// Returns why an entry of a namespace cannot be copied to a name in a directory of it, if it cannot.
pub async fn overlap(
    tree: &Tree,
    source: Seen,
    (parent, name): (Seen, &CStr),
) -> Result<Option<&'static str>, Error> {
    // A directory and its counterpart in a copy of the store are not the same.
    if source.is_certain && parent.is_certain {
        match tree.rank.lookup(&tree.user, parent.ino, name.to_bytes()).await {
            Ok(there) if there.ino == source.ino => return Ok(Some("they are the same")),
            Ok(_) | Err(Error::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    let mut here = parent.ino;
    for _ in 0..LEVELS_MAX {
        if here == source.ino {
            return Ok(Some("a directory cannot be copied into itself"));
        }
        if here == Ino::ROOT {
            break;
        }
        here = tree.rank.resolve_from(&tree.user, here, b"..", true).await?.ino;
    }
    Ok(None)
}
