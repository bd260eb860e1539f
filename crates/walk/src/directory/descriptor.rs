//! Open directories, of which a walk has a limited number at once, and what the system says of them and of their entries.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use super::is_mounted;
use crate::sync::{AtomicBool, AtomicUsize};

/// The number of descriptors that the directories of a walk hold, and its limit.
#[derive(Debug, Default)]
pub struct Budget {
    open: AtomicUsize,
    max: usize,
    /// Reading directories must leave their access times unchanged.
    keep_access_times: bool,
    /// The limit was exceeded at some time, so that directories are closed while they are still needed.
    scarce: AtomicBool,
}

impl Budget {
    /// Creates the budget of a walk that may have `max` descriptors open.
    pub fn new(max: usize, keep_access_times: bool) -> Budget {
        Budget { open: AtomicUsize::new(0), max, keep_access_times, scarce: AtomicBool::new(false) }
    }

    /// Returns whether more descriptors are open than the limit allows.
    pub fn is_exceeded(&self) -> bool {
        let exceeded = self.open.load(Ordering::Relaxed) > self.max;
        if exceeded {
            self.scarce.store(true, Ordering::Relaxed);
        }
        exceeded
    }

    pub(super) fn is_scarce(&self) -> bool {
        self.scarce.load(Ordering::Relaxed)
    }
}

/// An open directory.
#[derive(Debug)]
pub struct Descriptor {
    fd: OwnedFd,
    pub(super) budget: Arc<Budget>,
}

impl Descriptor {
    fn new(fd: OwnedFd, budget: &Arc<Budget>) -> Arc<Descriptor> {
        budget.open.fetch_add(1, Ordering::Relaxed);
        Arc::new(Descriptor { fd, budget: Arc::clone(budget) })
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.budget.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a directory by its name in `parent`, or by the whole path of a root.
///
/// Unless `crossing`, what is mounted on it is refused with `XDEV` by the call that opens it: between a look at the name and
/// the opening a file system may be mounted there.
pub fn open(
    parent: Option<&Descriptor>,
    name: &CStr,
    crossing: bool,
    budget: &Arc<Budget>,
) -> Result<Arc<Descriptor>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |flags| match parent {
        Some(parent) if !crossing => open_here(parent, name, flags),
        parent => {
            let parent = parent.map_or(CWD, AsFd::as_fd);
            retry_on_intr(|| rustix::fs::openat(parent, name, flags, Mode::empty()))
        }
    };
    let fd = match budget.keep_access_times.then(|| open(flags | OFlags::NOATIME)) {
        // Only the owner and root may.
        None | Some(Err(Errno::PERM)) => open(flags)?,
        Some(opened) => opened?,
    };
    Ok(Descriptor::new(fd, budget))
}

/// Opens a directory unless something is mounted on it.
fn open_here(parent: &Descriptor, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_XDEV;
    match retry_on_intr(|| rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)) {
        // Linux before 5.6, and sandboxes that do not know the call.
        Err(Errno::NOSYS) => {}
        opened => return opened,
    }
    let fd = retry_on_intr(|| rustix::fs::openat(parent, name, flags, Mode::empty()))?;
    let stat = retry_on_intr(|| rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE))?;
    match is_mounted(&stat, parent.as_fd(), fd.as_fd())? {
        true => Err(Errno::XDEV),
        false => Ok(fd),
    }
}

/// Returns the `statx` result for an entry of an open directory.
pub fn stat(parent: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    retry_on_intr(|| rustix::fs::statx(parent, name, flags, StatxFlags::BASIC_STATS))
}

/// Returns the `statx` result for something that is open.
///
/// # Errors
/// The error number of the system.
pub fn stat_opened(opened: BorrowedFd<'_>) -> Result<Statx, Errno> {
    retry_on_intr(|| rustix::fs::statx(opened, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS))
}

/// Returns the `statx` result (type and inode) for an open directory itself.
pub fn stat_open(descriptor: &Descriptor) -> Result<Statx, Errno> {
    retry_on_intr(|| {
        rustix::fs::statx(descriptor, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::INO)
    })
}

/// A device and an inode number, which together identify a directory.
pub type Identity = (u64, u64);

/// Returns the device and inode number of a `statx` result.
pub fn identity(stat: &Statx) -> Identity {
    (libc::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino)
}
