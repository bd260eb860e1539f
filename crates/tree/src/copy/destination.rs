//! A directory at the destination: open as long as descriptors suffice, and reopened by names, without following links. Where the walk
//! of the source packs a directory far below the root, this one is packed, too.

use std::collections::hash_map::RandomState;
use std::ffi::{CStr, CString};
use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use nacre_walk::chain::{Stack, put_bytes, put_number, take_bytes, take_number};
use nacre_walk::directory::{self, Identity};
use nacre_walk::getdents::Records;
use nacre_walk::{FileKind, Metadata, Time};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Statx, StatxTimestamp};
use rustix::io::{Errno, retry_on_intr};

use crate::copy::attributes;
use crate::copy::claim::Claims;
use crate::copy::data::{ShortCuts, open_for_reading};
use crate::copy::file::{is_unfinished, stat_open};
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
    above: Mutex<Above>,
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

/// The directories above a directory.
enum Above {
    /// Nothing: the copy is made in it.
    Nothing,
    /// Its parent.
    Directory(Arc<Destination>),
    /// Its parent and more directories, packed.
    Chain(Box<Chain>),
}

/// The directories above one that are packed, each in the one before, and the first one in `above`.
struct Chain {
    above: Arc<Destination>,
    levels: Stack,
}

/// The reason why a name of the source has no copy where the destination takes it for another one.
pub const ONE: &str = "two names of the source are one at the destination, whose file system ignores case or converts \
                       Unicode; the copy of the other one stays";

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

/// The number of hashes of names that are in memory at once, which is 8 MiB.
const HASHES_MAX: usize = 1 << 20;

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
        let (identity, inherits) = (identity_of(directory.as_fd())?, attributes::inherits(directory.as_fd()));
        Ok(Arc::new(Destination {
            above: Mutex::new(Above::Nothing),
            top: true,
            name: CString::default(),
            identity,
            descriptor: Mutex::new(Some(Open::new(directory, &count))),
            count,
            // The walk of the source takes half of them.
            count_max: (limit.min(1 << 16) / 4) as usize,
            mounted: false,
            foreign: false,
            spared: false,
            fresh: false,
            inherits,
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
        // In a directory that was there before, it mostly is, too.
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
        if let Above::Chain(chain) = &*self.above.lock() {
            for record in chain.levels.iter() {
                let level = Level::get(record);
                step(level.name.as_c_str(), level.identity)?;
            }
        }
        step(self.name.as_c_str(), self.identity)?;
        Ok(open_one)
    }

    /// Returns the nearest ancestor that is not packed.
    fn ancestor(&self) -> Option<Arc<Destination>> {
        match &*self.above.lock() {
            Above::Nothing => None,
            Above::Directory(parent) => Some(Arc::clone(parent)),
            Above::Chain(chain) => Some(Arc::clone(&chain.above)),
        }
    }

    /// Takes the nearest ancestor that is not packed, and forgets the others.
    fn take_above(&self) -> Option<Arc<Destination>> {
        match std::mem::replace(&mut *self.above.lock(), Above::Nothing) {
            Above::Nothing => None,
            Above::Directory(parent) => Some(parent),
            Above::Chain(chain) => Some(chain.above),
        }
    }

    /// Packs it, for a walk that packs the directory which it is the copy of: from now on it is a few bytes of `child`, the only one
    /// in it that is not left yet. Returns false if something else refers to it.
    pub fn pack(self: &Arc<Destination>, child: &Destination) -> bool {
        let mut above = child.above.lock();
        let is_parent = matches!(&*above, Above::Directory(parent) if Arc::ptr_eq(parent, self));
        // One reference is the walk's, and the other the child's; without a third one nobody can make more.
        if !is_parent || Arc::strong_count(self) != 2 || self.name.as_bytes().len() > NAME_BYTES_MAX {
            return false;
        }
        let mut chain = match std::mem::replace(&mut *self.above.lock(), Above::Nothing) {
            Above::Nothing => return false,
            Above::Directory(above) => Box::new(Chain { above, levels: Stack::default() }),
            Above::Chain(chain) => chain,
        };
        chain.levels.push(&Level::put(self));
        *above = Above::Chain(chain);
        true
    }

    /// Returns the directory that it is in, which is unpacked if it was packed; `None` for the one that the copy is made in.
    pub fn unpack_above(&self) -> Option<Arc<Destination>> {
        let mut above = self.above.lock();
        let mut chain = match std::mem::replace(&mut *above, Above::Nothing) {
            Above::Nothing => return None,
            Above::Directory(parent) => {
                *above = Above::Directory(Arc::clone(&parent));
                return Some(parent);
            }
            Above::Chain(chain) => chain,
        };
        let Some(record) = chain.levels.pop() else { unreachable!("no chain is without levels") };
        let level = Level::get(&record);
        let parent = Arc::new(Destination {
            top: false,
            name: level.name,
            identity: level.identity,
            descriptor: Mutex::new(None),
            count: Arc::clone(&self.count),
            count_max: self.count_max,
            mounted: level.flags & MOUNTED != 0,
            foreign: level.flags & FOREIGN != 0,
            spared: level.flags & SPARED != 0,
            fresh: level.flags & FRESH != 0,
            inherits: level.flags & INHERITS != 0,
            accessed: level.accessed,
            // Everything in it has got its name.
            claims: None,
            together: self.together,
            ignores_case: OnceLock::new(),
            naming: Mutex::new(()),
            above: Mutex::new(match chain.levels.is_empty() {
                true => Above::Directory(chain.above),
                false => Above::Chain(chain),
            }),
        });
        *above = Above::Directory(Arc::clone(&parent));
        Some(parent)
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

    /// Takes an existing entry for the copy of a name; returns false if it is the copy of another name of the source.
    pub fn claim(&self, entry: &Statx, name: &CStr) -> Result<bool, Errno> {
        if self.is_folded(name)? {
            return Ok(false);
        }
        let Some(claims) = &self.claims else { return Ok(true) };
        let (identity, is_directory) =
            (directory::identity(entry), Metadata(*entry).kind() == FileKind::Directory);
        if claims.take(identity, name, is_directory) {
            self.bound_claims(name);
            return Ok(true);
        }
        if is_directory {
            return Ok(false);
        }
        // Where both names are listed, they are names of their own: of one file, even if the other name has got a new one
        // since.
        let (mut own, mut other) = (false, false);
        each_name(self.descriptor()?.as_fd(), |listed| {
            own |= listed == name;
            other |= listed != name && claims.is_owner(identity, listed);
            Ok(!(own && other))
        })?;
        Ok(own && other)
    }

    /// Returns whether the entry that is found under a name may be the copy of another one that another process has made:
    /// the directory ignores case, and has an entry of the name, but none that is listed so. In the directory that the copy
    /// is made in there is one name only.
    fn is_folded(&self, name: &CStr) -> Result<bool, Errno> {
        let folds = self.together && !self.top && self.ignores_case(name) == Some(true);
        Ok(folds && !self.lists(name)?)
    }

    /// Notes that an entry, which has the name `present`, is the copy of a name, or is about to be.
    pub fn note_made(&self, entry: Identity, name: &CStr, present: &CStr) {
        if let Some(claims) = &self.claims {
            claims.give(entry, name, false);
            self.bound_claims(present);
        }
    }

    /// Notes that a name is a further one of a file.
    pub fn note_linked(&self, entry: Identity, name: &CStr) {
        if let Some(claims) = &self.claims {
            claims.take(entry, name, false);
        }
    }

    /// Notes that an existing entry was removed.
    pub fn note_removed(&self, entry: Identity) {
        if let Some(claims) = &self.claims {
            claims.forget(entry);
        }
    }

    /// Returns whether it has to be told which entries were made in it.
    pub fn has_claims(&self) -> bool {
        self.claims.is_some()
    }

    /// Keeps claims on many entries only if names are folded here; `present` is the name of an entry.
    fn bound_claims(&self, present: &CStr) {
        if let Some(claims) = &self.claims
            && claims.are_many()
            && self.ignores_case(present) == Some(false)
        {
            claims.end();
        }
    }

    /// Returns whether an entry is found under its name in the other case, too; `None` if the name has no letter to tell
    /// by. It is looked for once.
    fn ignores_case(&self, present: &CStr) -> Option<bool> {
        if let Some(known) = self.ignores_case.get() {
            return Some(*known);
        }
        let other = in_other_case(present)?;
        let ignores = match (self.stat(&other), self.stat(present)) {
            (Ok(None), _) => false,
            (Ok(Some(other)), Ok(Some(stat))) => directory::identity(&other) == directory::identity(&stat),
            // Rather one look too many later.
            _ => true,
        };
        Some(*self.ignores_case.get_or_init(|| ignores))
    }

    /// Gives an entry of it a name that no entry has; [`Errno::EXIST`] if one has.
    pub fn rename_new(
        &self,
        directory: &Open,
        present: &CStr,
        name: &CStr,
        cuts: &ShortCuts,
    ) -> Result<(), Errno> {
        if !cuts.no_exclusive.load(Ordering::Relaxed) {
            let flags = RenameFlags::NOREPLACE;
            let renamed =
                retry_on_intr(|| rustix::fs::renameat_with(directory, present, directory, name, flags));
            match renamed {
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    cuts.no_exclusive.store(true, Ordering::Relaxed);
                }
                renamed => return renamed,
            }
        }
        let rename = || retry_on_intr(|| rustix::fs::renameat(directory, present, directory, name));
        if self.ignores_case(present) == Some(false) {
            return rename();
        }
        let _naming = self.naming.lock();
        match self.stat(name)? {
            Some(_) => Err(Errno::EXIST),
            None => rename(),
        }
    }

    /// Returns whether exactly this name is listed, and not only another one that the file system takes for it.
    pub fn lists(&self, name: &CStr) -> Result<bool, Errno> {
        let mut listed = false;
        each_name(self.descriptor()?.as_fd(), |other| {
            listed = other == name;
            Ok(!listed)
        })?;
        Ok(listed)
    }

    /// Removes every entry whose name is `chosen`.
    pub fn remove_chosen(&self, chosen: impl Fn(&CStr) -> bool) -> Result<(), Errno> {
        let descriptor = self.descriptor()?;
        let mut failed = None;
        self.each(
            |name| Ok(chosen(name)),
            |name| match rustix::fs::unlinkat(descriptor.as_fd(), name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
                Err(errno) => failed = Some(errno),
            },
        )?;
        failed.map_or(Ok(()), Err)
    }

    /// Passes the names of those entries to `act` that another directory has not, which this one is compared with.
    pub fn each_beyond(&self, other: impl AsFd, act: impl FnMut(&CStr)) -> Result<(), Errno> {
        // Asked name by name: no set of names has to be kept, and what cannot be asked for is not taken for missing.
        let is_beyond = |name: &CStr| match directory::stat(other.as_fd(), name) {
            Ok(_) => Ok(false),
            // A directory that was itself removed meanwhile has no names, which says nothing about those it had.
            Err(Errno::NOENT) if stat_open(other.as_fd())?.stx_nlink == 0 => Err(Errno::STALE),
            Err(Errno::NOENT) => Ok(!is_unfinished(name)),
            Err(errno) => Err(errno),
        };
        self.each(is_beyond, act)
    }

    /// Returns whether a name of another directory leads to an entry of this one, although this one does not list it:
    /// then the file system takes several names for one, by their case or by how they are written in Unicode.
    ///
    /// Memory is bounded: the names of a large directory are looked at in portions, by their hashes, and both directories
    /// are listed once for each portion. No entry is asked for unless its name is missing in the list.
    pub fn answers_to_unlisted(&self, other: impl AsFd) -> Result<bool, Errno> {
        self.answers_to_unlisted_by(other.as_fd(), HASHES_MAX)
    }

    fn answers_to_unlisted_by(&self, other: BorrowedFd<'_>, hashes_max: usize) -> Result<bool, Errno> {
        let descriptor = self.descriptor()?;
        let hasher = RandomState::new();
        let hash = |name: &CStr| hasher.hash_one(name.to_bytes());
        let (mut portion, mut portions) = (0, 1);
        let mut listed = Vec::new();
        while portion < portions {
            listed.clear();
            let mut complete = true;
            each_name(descriptor.as_fd(), |name| {
                let hash = hash(name);
                if hash % portions == portion {
                    complete = listed.len() < hashes_max;
                    if complete {
                        listed.push(hash);
                    }
                }
                Ok(complete)
            })?;
            if !complete {
                (portion, portions) = (0, portions * 2);
                continue;
            }
            listed.sort_unstable();
            let mut found = false;
            each_name(other, |name| {
                let hash = hash(name);
                if hash % portions == portion && listed.binary_search(&hash).is_err() {
                    found = self.stat(name)?.is_some();
                }
                Ok(!found)
            })?;
            if found {
                return Ok(true);
            }
            portion += 1;
        }
        Ok(false)
    }

    /// Passes the names of those entries to `act` that are `chosen`. `act` may remove them.
    fn each(
        &self,
        mut chosen: impl FnMut(&CStr) -> Result<bool, Errno>,
        mut act: impl FnMut(&CStr),
    ) -> Result<(), Errno> {
        each_name(self.descriptor()?.as_fd(), |name| {
            if chosen(name)? {
                act(name);
            }
            Ok(true)
        })
    }
}

/// Returns a name with each of its ASCII letters in the other case; `None` if it has none.
fn in_other_case(name: &CStr) -> Option<CString> {
    let other = name.to_bytes().iter().map(|byte| match *byte {
        b'a'..=b'z' => byte.to_ascii_uppercase(),
        _ => byte.to_ascii_lowercase(),
    });
    let other: Vec<u8> = other.collect();
    // It has no zeros, as the name has none.
    CString::new(other).ok().filter(|other| **other != *name)
}

/// Passes every name in a directory to `each`, until that returns false.
pub fn each_name(
    directory: BorrowedFd<'_>,
    mut each: impl FnMut(&CStr) -> Result<bool, Errno>,
) -> Result<(), Errno> {
    // Reading moves a position, and that of the other descriptor is not ours to move.
    let own = open_for_reading(directory, c".")?;
    let mut buffer = vec![0; 32 << 10];
    loop {
        let len = nacre_walk::getdents::read(own.as_fd(), &mut buffer)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        if len == 0 {
            return Ok(());
        }
        for record in Records(&buffer[..len]) {
            if !each(record.name)? {
                return Ok(());
            }
        }
    }
}

/// Drops a long chain iteratively, since recursion would overflow the stack.
impl Drop for Destination {
    fn drop(&mut self) {
        let mut above = self.take_above();
        while let Some(directory) = above {
            above = Arc::into_inner(directory).and_then(|directory| directory.take_above());
        }
    }
}

/// The maximum length of a name that is packed: that of all file systems, twice over.
const NAME_BYTES_MAX: usize = 512;

const MOUNTED: u8 = 1;
const FOREIGN: u8 = 2;
const FRESH: u8 = 4;
const INHERITS: u8 = 8;
const ACCESSED: u8 = 16;
const SPARED: u8 = 32;

/// A packed directory.
struct Level {
    flags: u8,
    name: CString,
    identity: Identity,
    accessed: Option<Time>,
}

impl Level {
    /// Returns what is kept of a directory.
    fn put(directory: &Destination) -> Vec<u8> {
        let flags = [
            (directory.mounted, MOUNTED),
            (directory.foreign, FOREIGN),
            (directory.spared, SPARED),
            (directory.fresh, FRESH),
            (directory.inherits, INHERITS),
            (directory.accessed.is_some(), ACCESSED),
        ];
        let mut record = vec![flags.iter().fold(0, |all, (set, flag)| all | (flag * u8::from(*set)))];
        put_bytes(&mut record, directory.name.as_bytes());
        put_number(&mut record, directory.identity.0);
        put_number(&mut record, directory.identity.1);
        if let Some(Time { seconds, nanoseconds }) = directory.accessed {
            put_number(&mut record, seconds as u64);
            put_number(&mut record, nanoseconds.into());
        }
        record
    }

    /// Returns what [`Level::put`] has written.
    fn get(record: &[u8]) -> Level {
        let (flags, mut rest) = record.split_first().unwrap_or((&0, &[]));
        // A name holds no zeros.
        let name = CString::new(take_bytes(&mut rest)).unwrap_or_default();
        let identity = (take_number(&mut rest), take_number(&mut rest));
        let accessed = (flags & ACCESSED != 0).then(|| Time {
            seconds: take_number(&mut rest) as i64,
            nanoseconds: take_number(&mut rest) as u32,
        });
        Level { flags: *flags, name, identity, accessed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_directory_does_not_say_what_another_has_beyond_it() {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        std::fs::create_dir(&source).unwrap();
        std::fs::create_dir(&target).unwrap();
        std::fs::write(target.join("file"), "").unwrap();
        let opened = std::fs::File::open(&source).unwrap();
        let destination = Destination::top(std::fs::File::open(&target).unwrap().into()).unwrap();
        let beyond = || {
            let mut names = Vec::new();
            destination.each_beyond(&opened, |name| names.push(name.to_owned())).map(|()| names)
        };
        assert_eq!(beyond(), Ok(vec![c"file".to_owned()]));
        std::fs::remove_dir(&source).unwrap();
        assert_eq!(beyond(), Err(Errno::STALE));
    }

    #[test]
    fn a_packed_directory_comes_back_and_is_passed_through_without_unpacking_it() {
        let folder = tempfile::tempdir().unwrap();
        let top = Destination::top(std::fs::File::open(folder.path()).unwrap().into()).unwrap();
        let stat = stat_open(top.descriptor().unwrap().as_fd()).unwrap();
        let make = |parent: &Arc<Destination>, name: &CStr| {
            parent.make(name, |_| false, true, stat.stx_atime).unwrap_or_else(|_| panic!("{name:?} is made"))
        };
        let (mut at, mut made) = (make(&top, c"0"), Vec::new());
        for name in [c"1", c"2", c"3", c"4"] {
            let child = make(&at, name);
            made.push((at.name.clone(), at.identity, at.fresh, at.accessed));
            let other = Arc::clone(&at);
            assert!(!at.pack(&child), "something else refers to it");
            drop(other);
            assert!(at.pack(&child));
            at = child;
        }
        assert!(at.ancestor().is_some_and(|above| above.is_top()));
        // It is opened from above, by the names of those that are packed.
        at.close();
        assert_eq!(identity_of(at.descriptor().unwrap().as_fd()), Ok(at.identity));
        while let Some((name, identity, fresh, accessed)) = made.pop() {
            let parent = at.unpack_above().unwrap();
            assert_eq!((&parent.name, parent.identity), (&name, identity));
            assert_eq!((parent.fresh, parent.accessed), (fresh, accessed));
            at.leave();
            assert_eq!(identity_of(parent.descriptor().unwrap().as_fd()), Ok(identity));
            at = parent;
        }
        // Another directory in the place of a packed one is not taken for it.
        let child = make(&at, c"child");
        let inner = make(&child, c"inner");
        assert!(child.pack(&inner));
        inner.close();
        std::fs::rename(folder.path().join("0/child"), folder.path().join("0/moved")).unwrap();
        std::fs::create_dir_all(folder.path().join("0/child/inner")).unwrap();
        assert_eq!(inner.descriptor().map(drop), Err(Errno::STALE));
    }

    #[test]
    fn a_name_that_is_found_but_not_listed_is_noticed() {
        // The directory of all processes answers to the number of any thread, but lists those of processes only.
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let itself = std::fs::read_link("/proc/thread-self").unwrap();
            sender.send(itself.file_name().unwrap().to_str().unwrap().to_owned()).unwrap();
            let _ = ended.recv();
        });
        let (thread_number, process) = (receiver.recv().unwrap(), std::process::id());
        let folder = tempfile::tempdir().unwrap();
        let names = |names: &[String]| {
            let source = tempfile::tempdir_in(folder.path()).unwrap();
            for name in names {
                std::fs::write(source.path().join(name), "").unwrap();
            }
            source
        };
        let processes = Destination::top(std::fs::File::open("/proc").unwrap().into()).unwrap();
        for hashes_max in [40, HASHES_MAX] {
            let answers = |source: &tempfile::TempDir| {
                let opened = std::fs::File::open(source.path()).unwrap();
                processes.answers_to_unlisted_by(opened.as_fd(), hashes_max)
            };
            let listed = names(&[process.to_string(), "self".into(), "missing".into()]);
            assert_eq!(answers(&listed), Ok(false));
            let unlisted = names(&[process.to_string(), thread_number.clone()]);
            assert_eq!(answers(&unlisted), Ok(true));
        }
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn an_entry_is_the_copy_of_one_name_unless_both_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(inside.join("a"), "").unwrap();
        let top = Destination::top(std::fs::File::open(folder.path()).unwrap().into()).unwrap();
        let destination = top.find(c"inside").unwrap();
        let found = |name: &CStr| destination.stat(name).unwrap().unwrap();
        assert_eq!(destination.claim(&found(c"a"), c"a"), Ok(true));
        assert_eq!(destination.claim(&found(c"a"), c"A"), Ok(false));
        assert_eq!(destination.claim(&found(c"a"), c"a"), Ok(true));
        std::fs::hard_link(inside.join("a"), inside.join("b")).unwrap();
        assert_eq!(destination.claim(&found(c"b"), c"b"), Ok(true));
        assert_eq!(destination.claim(&found(c"b"), c"B"), Ok(false));
        // The copy of the one gets an inode of its own.
        std::fs::write(inside.join("new"), "").unwrap();
        std::fs::rename(inside.join("new"), inside.join("a")).unwrap();
        assert_eq!(destination.claim(&found(c"b"), c"b"), Ok(true));
    }

    #[test]
    fn a_name_is_given_only_if_no_entry_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let destination = Destination::top(std::fs::File::open(folder.path()).unwrap().into()).unwrap();
        for without in [false, true] {
            let cuts = ShortCuts::default();
            // As on systems that do not know the condition.
            cuts.no_exclusive.store(without, Ordering::Relaxed);
            std::fs::write(folder.path().join("unfinished"), "new").unwrap();
            let opened = destination.descriptor().unwrap();
            let name = if without { c"B" } else { c"A" };
            assert_eq!(destination.rename_new(&opened, c"unfinished", name, &cuts), Ok(()));
            assert_eq!(destination.stat(c"unfinished").unwrap().map(drop), None);
            assert!(destination.stat(name).unwrap().is_some() && destination.lists(name).unwrap());
        }
        let cuts = ShortCuts::default();
        let opened = destination.descriptor().unwrap();
        assert_eq!(destination.rename_new(&opened, c"A", c"B", &cuts), Err(Errno::EXIST));
        assert!(destination.lists(c"A").unwrap() && !destination.lists(c"a").unwrap());
    }

    #[test]
    fn further_names_of_a_file_are_names_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        std::fs::create_dir(&source).unwrap();
        std::fs::create_dir(&target).unwrap();
        for path in [source.join("a"), source.join("c"), target.join("a")] {
            std::fs::write(path, "").unwrap();
        }
        std::fs::hard_link(target.join("a"), target.join("b")).unwrap();
        let opened = std::fs::File::open(&source).unwrap();
        let destination = Destination::top(std::fs::File::open(&target).unwrap().into()).unwrap();
        assert_eq!(destination.answers_to_unlisted(&opened), Ok(false));
    }
}
