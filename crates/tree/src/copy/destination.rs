//! A directory at the destination: open as long as descriptors suffice, and reopened by names, without following links. Where the walk
//! of the source packs a directory far below the root, this one is packed, too (`chain`).

mod chain;
mod list;
mod name;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use chain::Level;
pub use list::each_name;
use nacre_walk::chain::Above;
use nacre_walk::directory::{self, Identity};
use nacre_walk::{FileKind, Metadata, Time};
pub use name::ONE;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxTimestamp};
use rustix::io::{Errno, retry_on_intr};

use crate::copy::attributes;
use crate::copy::claim::Claims;
use crate::copy::file::stat_open;
use crate::root::identity_of;

/// An open descriptor, counted against the limit.
#[derive(derive_more::Debug)]
#[debug("Open")]
pub struct Open {
    fd: OwnedFd,
    count: Arc<AtomicUsize>,
}

impl Open {
    fn new(fd: OwnedFd, count: &Arc<AtomicUsize>) -> Arc<Open> {
        count.fetch_add(1, Ordering::Relaxed);
        Arc::new(Open { fd, count: Arc::clone(count) })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsFd for Open {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A directory that is being filled.
#[derive(derive_more::Debug)]
#[debug("Destination")]
pub struct Destination {
    above: Mutex<Above<Destination>>,
    /// True if it is the directory that the copy is made in.
    top: bool,
    name: CString,
    identity: Identity,
    descriptor: Mutex<Option<Arc<Open>>>,
    count: Arc<AtomicUsize>,
    count_max: usize,
    /// True if another file system is mounted on it.
    pub mounted: bool,
    /// True if it is in a file system that is mounted below the copy's directory.
    pub foreign: bool,
    /// True if nothing is removed from it, because the source may lack the file system that it is the copy of.
    pub spared: bool,
    /// True if this copy created it, so that it was empty.
    pub fresh: bool,
    /// True if new entries in it inherit an ACL.
    pub inherits: bool,
    /// The number of its group when it was opened; `None` of one that was packed since, in which nothing is made any more.
    pub group: Option<u32>,
    /// The time of the source's last access before this copy read it.
    pub accessed: Option<Time>,
    /// The names that its entries belong to. What this copy created needs none: in it are copies of other names only.
    claims: Option<Claims>,
    /// True if other processes fill it too, whose claims are not known here.
    together: bool,
    /// Whether it finds entries under their names in the other case, once that is known.
    ignores_case: OnceLock<bool>,
    /// Makes looking for a name and giving it one step, where the system does not.
    naming: Mutex<()>,
}

/// The reason why a directory cannot be made or opened.
#[derive(Debug)]
pub enum Obstacle {
    System(Errno),
    /// Another entry has its name.
    Other(&'static str),
}

impl From<Errno> for Obstacle {
    fn from(errno: Errno) -> Obstacle {
        Obstacle::System(errno)
    }
}

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| rustix::fs::openat(directory, name, FLAGS, Mode::empty()))
}

impl Destination {
    /// Creates the directory that the copy is made in.
    #[cfg(test)]
    pub fn top(directory: OwnedFd) -> Result<Arc<Destination>, Errno> {
        Destination::new_top(directory, false)
    }

    /// Creates the directory that the copy is made in, by this process or by several `together`.
    pub fn new_top(directory: OwnedFd, together: bool) -> Result<Arc<Destination>, Errno> {
        let count = Arc::new(AtomicUsize::new(0));
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 16);
        let stat = stat_open(directory.as_fd())?;
        let inherits = attributes::inherits(directory.as_fd());
        Ok(Arc::new(Destination {
            above: Mutex::new(Above::Nothing),
            top: true,
            name: CString::default(),
            identity: directory::identity(&stat),
            descriptor: Mutex::new(Some(Open::new(directory, &count))),
            count,
            // The walk of the source takes half of them.
            count_max: (limit.min(1 << 16) / 4) as usize,
            mounted: false,
            foreign: false,
            spared: false,
            fresh: false,
            inherits,
            group: Some(stat.stx_gid),
            accessed: None,
            claims: None,
            together,
            ignores_case: OnceLock::new(),
            naming: Mutex::new(()),
        }))
    }

    /// Makes a directory in it, or opens the existing one. An entry of a type that `force` is true for is removed for it.
    pub fn make(
        self: &Arc<Destination>,
        name: &CStr,
        force: impl Fn(FileKind) -> bool,
        root: bool,
        accessed: StatxTimestamp,
    ) -> Result<Arc<Destination>, Obstacle> {
        let parent = self.descriptor()?;
        // A directory that existed before the copy mostly has it already.
        if !self.fresh
            && let Ok(fd) = open(parent.as_fd(), name)
        {
            if self.is_folded(name)? {
                return Err(Obstacle::Other(ONE));
            }
            let child = self.take_up(&parent, (name, fd), false, Some(accessed))?;
            return self.claim_directory(child, name, root);
        }
        let make = || retry_on_intr(|| rustix::fs::mkdirat(&parent, name, Mode::RWXU));
        let mut created = make();
        if created == Err(Errno::EXIST) {
            if self.fresh && !self.lists(name)? || self.is_folded(name)? {
                return Err(Obstacle::Other(ONE));
            }
            let stat = directory::stat(parent.as_fd(), name)?;
            let kind = Metadata(stat).kind();
            if kind != FileKind::Directory {
                if !force(kind) {
                    return Err(Obstacle::Other(match kind {
                        FileKind::Link => {
                            "a symbolic link is where a directory has to be; --force replaces it"
                        }
                        _ => "something else exists where a directory is needed; --force replaces it",
                    }));
                }
                if !self.claim(&stat, name)? || self.together && !self.lists(name)? {
                    return Err(Obstacle::Other(ONE));
                }
                retry_on_intr(|| rustix::fs::unlinkat(&parent, name, AtFlags::empty()))?;
                created = make();
            }
        }
        let fresh = match created {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno.into()),
        };
        let child = self.open_existing(&parent, name, fresh, Some(accessed))?;
        self.claim_directory(child, name, root)
    }

    /// Returns a directory in it that was made or found under a name, unless it is the copy of another name.
    fn claim_directory(
        &self,
        child: Arc<Destination>,
        name: &CStr,
        root: bool,
    ) -> Result<Arc<Destination>, Obstacle> {
        if let Some(claims) = &self.claims {
            let granted = match child.fresh {
                true => claims.give(child.identity, name, true),
                false => claims.take(child.identity, name, true),
            };
            if !granted {
                return Err(Obstacle::Other(ONE));
            }
            self.bound_claims(name);
        }
        if !child.fresh && !root {
            child.make_writable();
        }
        Ok(child)
    }

    /// Opens an existing directory in it.
    pub fn find(self: &Arc<Destination>, name: &CStr) -> Result<Arc<Destination>, Errno> {
        let parent = self.descriptor()?;
        self.open_existing(&parent, name, false, None)
    }

    /// Opens an existing directory in it; [`Errno::NOENT`] also if it is listed under another name alone, so that it may be
    /// the copy of that.
    pub fn find_copy(self: &Arc<Destination>, name: &CStr) -> Result<Arc<Destination>, Errno> {
        let found = self.find(name)?;
        if self.is_folded(name)? { Err(Errno::NOENT) } else { Ok(found) }
    }

    fn open_existing(
        self: &Arc<Destination>,
        parent: &Open,
        name: &CStr,
        fresh: bool,
        accessed: Option<StatxTimestamp>,
    ) -> Result<Arc<Destination>, Errno> {
        let fd = open(parent.as_fd(), name)?;
        self.take_up(parent, (name, fd), fresh, accessed)
    }

    /// Returns a directory in it that was opened.
    fn take_up(
        self: &Arc<Destination>,
        parent: &Open,
        (name, fd): (&CStr, OwnedFd),
        fresh: bool,
        accessed: Option<StatxTimestamp>,
    ) -> Result<Arc<Destination>, Errno> {
        let stat = stat_open(fd.as_fd())?;
        if self.count.load(Ordering::Relaxed) > self.count_max {
            // It is opened again when something is put into it again.
            self.close();
        }
        let mounted =
            Metadata(stat).is_mount_point() || directory::is_mounted(&stat, parent.as_fd(), fd.as_fd())?;
        Ok(Arc::new(Destination {
            above: Mutex::new(Above::Directory(Arc::clone(self))),
            top: false,
            name: name.into(),
            identity: directory::identity(&stat),
            mounted,
            foreign: self.foreign || !self.is_top() && mounted,
            spared: self.spared,
            // What was made here has a default ACL only if its parent has one.
            inherits: (!fresh || self.inherits) && attributes::inherits(fd.as_fd()),
            group: Some(stat.stx_gid),
            descriptor: Mutex::new(Some(Open::new(fd, &self.count))),
            count: Arc::clone(&self.count),
            count_max: self.count_max,
            fresh,
            accessed: accessed.map(|time| Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec }),
            claims: (!fresh).then(Claims::default),
            together: self.together,
            ignores_case: OnceLock::new(),
            naming: Mutex::new(()),
        }))
    }

    /// Makes a directory of this user's writable until its mode is set.
    fn make_writable(&self) {
        let Ok(directory) = self.descriptor() else { return };
        if let Ok(stat) = rustix::fs::fstat(directory.as_fd())
            && stat.st_mode & 0o700 != 0o700
        {
            // If it cannot be, the entries' own errors say so.
            let _ = rustix::fs::fchmod(directory.as_fd(), Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700));
        }
    }

    /// Returns whether it is the directory that the copy is made in, which is no part of the copy.
    pub fn is_top(&self) -> bool {
        self.top
    }

    /// Returns the device and inode.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the descriptor, reopened if it was closed; it has to be the same directory as before.
    pub fn descriptor(&self) -> Result<Arc<Open>, Errno> {
        if let Some(descriptor) = &*self.descriptor.lock() {
            return Ok(Arc::clone(descriptor));
        }
        let mut closed = Vec::new();
        let mut above = self.ancestor();
        let mut open_one = loop {
            let directory = above.ok_or(Errno::BADF)?;
            if let Some(descriptor) = &*directory.descriptor.lock() {
                break Arc::clone(descriptor);
            }
            above = directory.ancestor();
            closed.push(directory);
        };
        for directory in closed.iter().rev() {
            open_one = directory.open_below(open_one)?;
        }
        open_one = self.open_below(open_one)?;
        // Where too many are open, it is opened each time.
        if self.count.load(Ordering::Relaxed) <= self.count_max {
            *self.descriptor.lock() = Some(Arc::clone(&open_one));
        }
        Ok(open_one)
    }

    /// Opens it below the nearest ancestor that is not packed, which is open by `above`.
    fn open_below(&self, above: Arc<Open>) -> Result<Arc<Open>, Errno> {
        let mut open_one = above;
        let mut step = |name: &CStr, known: Identity| {
            let fd = open(open_one.as_fd(), name)?;
            if identity_of(fd.as_fd())? != known {
                return Err(Errno::STALE);
            }
            open_one = Open::new(fd, &self.count);
            Ok(())
        };
        if let Some(levels) = self.above.lock().packed() {
            for record in levels.iter() {
                let level = Level::get(record);
                step(level.name.as_c_str(), level.identity)?;
            }
        }
        step(self.name.as_c_str(), self.identity)?;
        Ok(open_one)
    }

    /// Closes it for good. A closed parent is reopened before: through `..` that takes one step, and from above one for
    /// each level.
    pub fn leave(&self) {
        let parent = self.unpack_above();
        if let (Some(parent), Some(open_one)) = (&parent, &*self.descriptor.lock()) {
            let mut above = parent.descriptor.lock();
            if above.is_none()
                && let Ok(fd) = open(open_one.as_fd(), c"..")
                && identity_of(fd.as_fd()) == Ok(parent.identity)
            {
                *above = Some(Open::new(fd, &self.count));
            }
        }
        self.close();
        if let Some(claims) = &self.claims {
            claims.end();
        }
    }

    /// Closes it temporarily.
    pub fn close(&self) {
        if !self.top {
            *self.descriptor.lock() = None;
        }
    }

    /// Returns the `statx` result for an entry of it; `None` if there is none.
    pub fn stat(&self, name: &CStr) -> Result<Option<Statx>, Errno> {
        match directory::stat(self.descriptor()?.as_fd(), name) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}
