//! The question whether something is mounted on an open directory.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use super::identity;

/// Returns whether something is mounted on an open directory, whose `statx` result is `stat`. `parent` is the directory that
/// it was opened in.
///
/// # Errors
/// The error number of the system, if it does not say.
pub fn is_mounted(stat: &Statx, parent: BorrowedFd<'_>, opened: BorrowedFd<'_>) -> Result<bool, Errno> {
    // Linux before 5.8 says it of no directory.
    match stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        true => Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        false => are_mounts_apart(parent, opened),
    }
}

/// Returns whether two open directories are on different mounts; where the system does not number these, whether they are in
/// different file systems.
fn are_mounts_apart(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result<bool, Errno> {
    if let (Some(one), Some(other)) = (mount_number(one), mount_number(other)) {
        return Ok(one != other);
    }
    let stat = |fd: BorrowedFd<'_>| {
        retry_on_intr(|| rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE))
    };
    Ok(identity(&stat(one)?).0 != identity(&stat(other)?).0)
}

fn mount_number(opened: BorrowedFd<'_>) -> Option<u64> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn a_mount_is_found_where_the_system_does_not_say_where_one_is() {
        let open =
            |path: &str| rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mounted = |parent: &OwnedFd, opened: &OwnedFd| {
            let mut stat = rustix::fs::statx(opened, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE).unwrap();
            let says = is_mounted(&stat, parent.as_fd(), opened.as_fd());
            // As on Linux before 5.8.
            stat.stx_attributes_mask.remove(StatxAttributes::MOUNT_ROOT);
            stat.stx_attributes.remove(StatxAttributes::MOUNT_ROOT);
            assert_eq!(is_mounted(&stat, parent.as_fd(), opened.as_fd()), says);
            says
        };
        let (root, processes) = (open("/"), open("/proc"));
        assert_eq!(mounted(&root, &processes), Ok(true));
        assert_eq!(mounted(&processes, &open("/proc/self")), Ok(false));
        assert_eq!(mount_number(root.as_fd()), mount_number(open("/").as_fd()));
        assert!(mount_number(root.as_fd()).is_some());
    }
}
