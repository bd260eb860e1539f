//! The directories that file systems belong in, by `/etc/fstab`, and that have none at the moment: what a mirror has of such a
//! file system must not be removed because the directory below it has nothing.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_walk::directory::{self, Identity};
use nacre_walk::{FileKind, Metadata};
use rustix::io::Errno;

use crate::copy::Shared;
use crate::copy::destination::{Destination, each_name};
use crate::copy::file::stat_open;
use crate::remove::is_mounted;
use crate::root::{Root, identity_of};

/// The reason why nothing is removed that belongs in such a directory.
pub const UNMOUNTED: &str = "the file system that belongs in this directory of the source is not mounted; mount it, or have \
                             everything removed that the mirror has of it with --mirror-empty";

/// Returns the directories in which nothing is mounted though something belongs there.
pub fn unmounted() -> HashSet<Identity> {
    let read = |path: &str| std::fs::read(path).unwrap_or_default();
    // What is mounted is not looked at: its server may not answer.
    let mounted: HashSet<PathBuf> = paths(&read("/proc/self/mountinfo"), 4).collect();
    let belonging = read("/etc/fstab");
    let absent = paths(&belonging, 1).filter(|path| !mounted.contains(path));
    // What is mounted through a link is listed under the path behind it.
    let absent = absent.filter_map(|path| path.canonicalize().ok()).filter(|path| !mounted.contains(path));
    absent.filter_map(|path| bare(&path)).collect()
}

/// Returns the paths in this column of a table of mounts.
fn paths(table: &[u8], column: usize) -> impl Iterator<Item = PathBuf> {
    let lines = table.split(|byte| *byte == b'\n');
    let fields = lines.filter_map(move |line| {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).peekable();
        let is_comment = fields.peek().is_some_and(|first| first.starts_with(b"#"));
        fields.nth(column).filter(|_| !is_comment)
    });
    // Swap has no path.
    fields
        .filter(|field| field.starts_with(b"/"))
        .map(|field| PathBuf::from(OsString::from_vec(unescaped(field))))
}

/// Returns a field in which a space is written as `\040`, and others likewise.
fn unescaped(mut field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while let Some((byte, rest)) = field.split_first() {
        field = rest;
        match (byte, rest) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..]) => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                field = rest;
            }
            _ => plain.push(*byte),
        }
    }
    plain
}

/// Returns the identity of a directory on which nothing is mounted, nor would be on demand.
fn bare(path: &Path) -> Option<Identity> {
    let root = Root::find(path).ok()?;
    let metadata = Metadata(root.stat().ok()?);
    let is_bare = metadata.kind() == FileKind::Directory
        && !metadata.is_mount_point()
        && is_mounted(&root, &metadata) == Ok(false);
    is_bare.then(|| directory::identity(&metadata.0))
}

/// Marks the counterpart of an open directory of the source as one below which nothing is removed, if something belongs there that is
/// not mounted.
pub fn spare(shared: &Shared, source: BorrowedFd<'_>, counterpart: &mut Arc<Destination>) {
    if !shared.unmounted.is_empty()
        && identity_of(source).is_ok_and(|identity| shared.unmounted.contains(&identity))
        // It was made just now, and nobody else refers to it yet.
        && let Some(counterpart) = Arc::get_mut(counterpart)
    {
        counterpart.spared = true;
    }
}

/// Returns whether an open directory of the source seems to lack its file system: one belongs there or above, or it is empty where
/// its mirror has a file system of its own.
pub fn is_unmounted(
    shared: &Shared,
    source: BorrowedFd<'_>,
    destination: &Destination,
) -> Result<bool, Errno> {
    // What is in another file system is not removed anyway.
    let apart = destination.mounted && (shared.options.cross_mounts || !destination.foreign);
    if shared.options.mirror_empty || shared.unmounted.is_empty() && !apart {
        return Ok(false);
    }
    let stat = stat_open(source)?;
    if destination.spared || shared.unmounted.contains(&directory::identity(&stat)) {
        return Ok(true);
    }
    if !apart || Metadata(stat).is_mount_point() {
        return Ok(false);
    }
    let mut empty = true;
    each_name(source, |_| {
        empty = false;
        Ok(false)
    })?;
    Ok(empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_mounts_are_read() {
        let table = b"# /dev/sda1 /comment ext4\n\
                      UUID=1-2\t/data\\040and\\134more ext4 defaults 0 2\n\
                      \n\
                      /dev/sdb1 none swap sw 0 0\n\
                      server:/x   /odd\\9\\04 nfs noauto 0 0\n\
                      short\n";
        let found: Vec<PathBuf> = paths(table, 1).collect();
        assert_eq!(found, [Path::new("/data and\\more"), Path::new("/odd\\9\\04")]);
        let mounts = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n";
        assert_eq!(paths(mounts, 4).collect::<Vec<_>>(), [Path::new("/mnt 2")]);
    }

    #[test]
    fn only_a_directory_with_nothing_on_it_is_bare() {
        let folder = tempfile::tempdir().unwrap();
        assert!(bare(folder.path()).is_some());
        assert_eq!(bare(Path::new("/proc")), None);
        assert_eq!(bare(&folder.path().join("missing")), None);
    }
}
