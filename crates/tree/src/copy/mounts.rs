//! The directories that file systems belong in, by `/etc/fstab`, and that have none at the moment: what a mirror has of such a
//! file system must not be removed because the directory below it has nothing.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nacre_walk::directory::{self, Identity};
use nacre_walk::{FileKind, Metadata};
use rustix::io::Errno;

use crate::copy::Shared;
use crate::copy::destination::{Destination, each_name};
use crate::copy::file::stat_open;
use crate::mounts::{Mount, belonging, mounted};
use crate::remove::is_mounted;
use crate::root::{Root, identity_of};

/// The reason why nothing is removed that belongs in such a directory.
pub const UNMOUNTED: &str = "the file system that belongs in this directory of the source is not mounted; mount it, or have \
                             everything removed that the mirror has of it with --mirror-empty";

/// The maximum number of links in a path.
const LINKS_MAX: usize = 40;

/// Returns the directories that a mirror of this open directory has to do with in which nothing is mounted though something belongs
/// there. With `crossing`, the file systems that are mounted below the directory are mirrored too.
///
/// Nothing else is looked at: a file system whose server does not answer must not hold up the mirror of another one.
pub fn unmounted(source: BorrowedFd<'_>, crossing: bool) -> HashSet<Identity> {
    let Ok(source) = std::fs::read_link(format!("/proc/self/fd/{}", source.as_raw_fd())) else {
        return HashSet::new();
    };
    let mounts = Mounts::new(mounted(), &source, crossing);
    let absent = belonging(&std::fs::read("/etc/fstab").unwrap_or_default()).into_iter();
    let absent = absent.filter_map(|path| mounts.absent(&path, |path| std::fs::read_link(path).ok()));
    absent.filter_map(|path| bare(&path)).collect()
}

/// The mount points, and those of them that may be looked at.
struct Mounts {
    /// Where something is mounted.
    points: HashMap<PathBuf, Point>,
    /// The devices of the file systems that are mirrored.
    mirrored: HashSet<(u32, u32)>,
}

struct Point {
    device: (u32, u32),
    /// True if looking at a name in it may mount something there.
    on_demand: bool,
}

impl Mounts {
    /// Creates the mounts for a mirror of the directory `source`.
    fn new(mounted: Vec<Mount>, source: &Path, crossing: bool) -> Mounts {
        // Where the root of the process is no mount point, the table has no line for it.
        let root = Point { device: (0, 0), on_demand: false };
        let mut points = HashMap::from([(PathBuf::from("/"), root)]);
        // Of several mounts on one directory the last one is on top.
        points.extend(
            mounted.into_iter().map(|mount| {
                (mount.point, Point { device: mount.device, on_demand: mount.kind == "autofs" })
            }),
        );
        let mut mounts = Mounts { points, mirrored: HashSet::new() };
        let below = mounts.points.iter().filter(|(point, _)| crossing && point.starts_with(source));
        let devices = below.chain(mounts.around(source)).map(|(_, point)| point.device);
        mounts.mirrored = devices.collect();
        mounts
    }

    /// Returns the mount that a path is in.
    fn around(&self, path: &Path) -> Option<(&PathBuf, &Point)> {
        path.ancestors().find_map(|above| self.points.get_key_value(above))
    }

    /// Returns whether names in a directory of the mount that a path is in may be looked at: what the machine runs from answers, and
    /// so does what is mirrored, or the mirror waits for it anyway.
    fn answers(&self, path: &Path) -> bool {
        let around = self.around(path).filter(|(_, point)| !point.on_demand);
        around.is_some_and(|(at, point)| at == Path::new("/") || self.mirrored.contains(&point.device))
    }

    /// Returns the path behind all links of one on which nothing is mounted, if it is in a file system that is mirrored. `link` returns
    /// what a link points to, and none for another entry.
    fn absent(&self, path: &Path, link: impl Fn(&Path) -> Option<PathBuf>) -> Option<PathBuf> {
        let mut found = PathBuf::from("/");
        let mut left = names(path);
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == ".." {
                found.pop();
                continue;
            }
            found.push(name);
            // What something is mounted on or below is a directory.
            if self.points.keys().any(|point| point.starts_with(&found)) {
                continue;
            }
            if !self.answers(&found) {
                return None;
            }
            let Some(target) = link(&found) else { continue };
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            if target.is_absolute() {
                found = PathBuf::from("/");
            } else {
                found.pop();
            }
            left.extend(names(&target));
        }
        let (_, around) = self.around(&found)?;
        let is_absent = !self.points.contains_key(&found) && self.mirrored.contains(&around.device);
        is_absent.then_some(found)
    }
}

/// Returns the names in a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
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
    use crate::mounts::parse;

    const TABLE: &[u8] = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
                           2 1 8:2 / /data rw shared:1 - xfs /dev/sdb1 rw\n\
                           3 1 0:50 / /dead rw - nfs4 server:/x rw\n\
                           4 1 0:51 / /net rw - autofs auto.net rw\n\
                           5 2 0:52 / /data/tree/nfs rw - nfs4 server:/y rw\n\
                           6 1 8:2 /tree /again rw - xfs /dev/sdb1 rw\n";

    /// Returns what is found for a path, and what was looked at.
    fn look(path: &str, crossing: bool) -> (Option<PathBuf>, Vec<PathBuf>) {
        let looked = std::cell::RefCell::new(Vec::new());
        let mounts = Mounts::new(parse(TABLE), Path::new("/data/tree"), crossing);
        let found = mounts.absent(Path::new(path), |path| {
            looked.borrow_mut().push(path.to_owned());
            match path.to_str().unwrap() {
                "/short" => Some("data/./tree/".into()),
                "/short-of-dead" => Some("/dead/in".into()),
                "/data/tree/up" => Some("../other".into()),
                "/loop" => Some("/loop".into()),
                _ => None,
            }
        });
        (found, looked.into_inner())
    }

    #[test]
    fn nothing_is_looked_at_in_file_systems_that_are_not_mirrored() {
        for path in [
            "/dead",
            "/dead/in/it",
            "/short-of-dead/it",
            "/net/host/it",
            "/data/tree/nfs",
            "/data/tree/nfs/in",
        ] {
            let (found, looked) = look(path, false);
            assert_eq!(found, None, "{path}");
            let foreign = ["/dead", "/net", "/data/tree/nfs"];
            assert!(
                !looked.iter().any(|path| foreign.iter().any(|above| path.starts_with(above))),
                "{looked:?}"
            );
        }
        // One that is mounted on another file system can hold nothing of the source's device.
        assert_eq!(look("/elsewhere/it", false).0, None);
        assert_eq!(look("/loop", false).0, None);
    }

    #[test]
    fn directories_without_their_file_systems_are_found_through_links_and_other_mounts() {
        let found = |path, crossing| look(path, crossing).0;
        assert_eq!(found("/data/tree/inner", false), Some("/data/tree/inner".into()));
        assert_eq!(found("/short/inner", false), Some("/data/tree/inner".into()));
        assert_eq!(found("/data/tree/up/inner", false), Some("/data/other/inner".into()));
        assert_eq!(found("/again/inner", false), Some("/again/inner".into()));
        assert_eq!(found("/data/tree/nfs/inner", true), Some("/data/tree/nfs/inner".into()));
        assert_eq!(found("/data", false), None, "it is mounted");
    }

    #[test]
    fn only_a_directory_with_nothing_on_it_is_bare() {
        let folder = tempfile::tempdir().unwrap();
        assert!(bare(folder.path()).is_some());
        assert_eq!(bare(Path::new("/proc")), None);
        assert_eq!(bare(&folder.path().join("missing")), None);
    }
}
