//! A directory that is being walked: its place in the tree, its descriptor, and its unfinished work.
//!
//! - A directory is opened relative to its parent's descriptor, never by its whole path, and a symbolic link is never
//!   followed: renaming what the walk has passed cannot lead it out of its root.
//! - The descriptor stays open as long as a piece of work needs it. If too many are open it is closed earlier, and
//!   reopened from the nearest open ancestor; then it has to be the same directory as before.
//! - At any moment at most one piece of work reads the entries (the *rest*); others open subdirectories.
//! - Far below the root, a directory that waits for one subdirectory alone is packed (`chain`): what would be a million of them
//!   is a few bytes for each. Only the directory in which a chain ends refers to it, so that whoever leaves that one unpacks.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, SeekFrom, Statx, StatxAttributes, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::chain::{Chain, Level, Stack};
use crate::entry::FileKind;
use crate::getdents::{Record, Records, length_before};
use crate::scan::READ_BYTES_MIN;
use crate::sync::{AtomicBool, AtomicUsize, Mutex};
use crate::unit::Unit;

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

    fn is_scarce(&self) -> bool {
        self.scarce.load(Ordering::Relaxed)
    }
}

/// An open directory.
#[derive(Debug)]
pub struct Descriptor {
    fd: OwnedFd,
    budget: Arc<Budget>,
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

fn read_records(descriptor: &Descriptor, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match crate::getdents::read(descriptor.as_fd(), buffer) {
            Ok(len) => return Ok(len),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}

/// Returns whether the first of these records, which were read from a position at which none need begin, begins at `until` or
/// behind it, where entries are another's. Afterwards the descriptor is anywhere, but nothing before `until` is left to read then.
fn is_first_behind(descriptor: &Descriptor, records: &[u8], until: u64) -> Result<bool, Errno> {
    // Where it ends says so, unless that is behind `until`.
    let Some(first) = Records(records).next().filter(|first| first.next > until) else { return Ok(false) };
    rustix::fs::seek(descriptor, SeekFrom::Start(until))?;
    let mut behind = vec![0; READ_BYTES_MIN];
    let len = read_records(descriptor, &mut behind)?;
    // Something that was just made may come before it.
    let is_it = |record: Record<'_>| (record.name, record.inode) == (first.name, first.inode);
    Ok(Records(&behind[..len]).any(is_it))
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

/// A directory that is being walked.
#[derive(derive_more::Debug)]
#[debug("Directory")]
pub struct Directory<S> {
    above: Mutex<Above<S>>,
    name: Box<CStr>,
    root: u32,
    depth: u32,
    /// The inode number as it was listed, or 0: finds the directory if it was renamed before it is opened again.
    inode: u64,
    state: S,
    budget: Arc<Budget>,
    stream: Mutex<Stream>,
    /// The number of pieces of work that need the descriptor.
    holders: AtomicUsize,
    /// The number of holders and of subdirectories that were not left yet.
    unfinished: AtomicUsize,
    /// Some of the work below it is done elsewhere.
    split: AtomicBool,
}

/// The directories above a directory.
enum Above<S> {
    /// Nothing: it is a root.
    Nothing,
    /// Its parent.
    Directory(Arc<Directory<S>>),
    /// Its parent and more directories, packed.
    Chain(Box<Chain<S>>),
}

/// The depth from which on directories are packed. Trees that are not deeper have nothing to gain.
const PACKED_DEPTH_MIN: u32 = 64;

#[derive(Default)]
struct Stream {
    descriptor: Option<Arc<Descriptor>>,
    /// The position at which reading continues.
    position: u64,
    /// The descriptor is not at `position`.
    displaced: bool,
    /// The position at which reading ends, if there is one, because the entries behind it are read elsewhere.
    until: Option<u64>,
    /// The position at which reading began here.
    from: u64,
    /// The number of batches that were read since.
    batches: u64,
    ended: bool,
    /// The identity; known once it was needed.
    identity: Option<Identity>,
    /// Positions are valid in another opening of the directory; known once it was needed.
    stable: Option<bool>,
    /// Positions are hashes of the names; known when `stable` is.
    hashed: bool,
}

/// The number by which ext2, ext3 and ext4 are recognised.
const EXT: u64 = 0xEF53;

/// The position behind all entries of a directory of ext4 whose positions are hashes: 31 bits, and 32 more.
const HASH_END: u64 = (1 << 63) - 1;

/// A position that no directory reaches whose positions are offsets in bytes.
const HASH_MIN: u64 = 1 << 40;

/// The number of unread batches from which it is worth while to divide a directory.
const BATCHES_MIN: u64 = 4;

impl Stream {
    /// Returns the position in the middle of the unread entries, if many are left. Names are spread evenly over their
    /// hashes, so what was read says how many.
    fn middle(&self) -> Option<u64> {
        if !self.hashed || self.ended || self.position < HASH_MIN {
            return None;
        }
        let left = self.until.unwrap_or(HASH_END).checked_sub(self.position)?;
        let batch = self.position.checked_sub(self.from)? / self.batches.max(1);
        (batch > 0 && left / BATCHES_MIN >= batch).then_some(self.position + left / 2)
    }
}

/// The place of a directory in the tree.
pub(crate) struct TreePosition<'a, S> {
    pub parent: Option<Arc<Directory<S>>>,
    pub name: &'a CStr,
    pub root: u32,
    pub inode: u64,
}

impl<S> Directory<S> {
    /// Creates a directory that was just opened, with one piece of work to do.
    pub(crate) fn new(
        place: TreePosition<'_, S>,
        descriptor: Arc<Descriptor>,
        state: S,
    ) -> Arc<Directory<S>> {
        let budget = Arc::clone(&descriptor.budget);
        Directory::begun(place, Some(descriptor), budget, state)
    }

    /// Creates a directory that a [`Source`](crate::Source) lists, with one piece of work to do. It has no descriptor.
    pub(crate) fn listed(place: TreePosition<'_, S>, budget: &Arc<Budget>, state: S) -> Arc<Directory<S>> {
        Directory::begun(place, None, Arc::clone(budget), state)
    }

    fn begun(
        place: TreePosition<'_, S>,
        descriptor: Option<Arc<Descriptor>>,
        budget: Arc<Budget>,
        state: S,
    ) -> Arc<Directory<S>> {
        let depth = place.parent.as_ref().map_or(0, |parent| parent.depth + 1);
        if let Some(parent) = &place.parent {
            parent.unfinished.fetch_add(1, Ordering::Relaxed);
        }
        Arc::new(Directory {
            name: place.name.into(),
            above: Mutex::new(place.parent.map_or(Above::Nothing, Above::Directory)),
            root: place.root,
            depth,
            inode: place.inode,
            state,
            budget,
            stream: Mutex::new(Stream { descriptor, ..Stream::default() }),
            holders: AtomicUsize::new(1),
            unfinished: AtomicUsize::new(1),
            split: AtomicBool::new(false),
        })
    }

    /// Returns the parent directory; `None` for a root, and for a directory whose parent is packed. When a directory is left, its
    /// parent is not packed.
    pub fn parent(&self) -> Option<Arc<Directory<S>>> {
        match &*self.above.lock() {
            Above::Directory(parent) => Some(Arc::clone(parent)),
            Above::Nothing | Above::Chain(_) => None,
        }
    }

    /// Returns the nearest ancestor that is not packed; `None` for a root.
    pub(crate) fn ancestor(&self) -> Option<Arc<Directory<S>>> {
        match &*self.above.lock() {
            Above::Nothing => None,
            Above::Directory(parent) => Some(Arc::clone(parent)),
            Above::Chain(chain) => Some(Arc::clone(&chain.above)),
        }
    }

    /// Passes the packed directories to `see` that are between the nearest other ancestor and this directory, if there are any.
    pub(crate) fn with_packed<T>(&self, see: impl FnOnce(&mut Stack) -> T) -> Option<T> {
        match &mut *self.above.lock() {
            Above::Chain(chain) => Some(see(&mut chain.levels)),
            Above::Nothing | Above::Directory(_) => None,
        }
    }

    /// Returns the name; for a root, the whole path as it was given.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// Returns the number of the root that it is below.
    pub fn root(&self) -> u32 {
        self.root
    }

    /// Returns the inode number as it was listed; 0 if unknown.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the number of levels below the root.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the state that the visitor attached to it.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// Returns whether a part of what is below it, or of its own entries, is done by another process or in another run:
    /// the counts here are then incomplete.
    pub fn is_split(&self) -> bool {
        self.split.load(Ordering::Relaxed)
    }

    /// Returns the path, beginning with that of the root as it was given.
    pub fn path_bytes(&self) -> Vec<u8> {
        self.path_from(0)
    }

    /// Returns the path below the root; empty for the root.
    pub fn path_below_root(&self) -> Vec<u8> {
        self.path_from(1)
    }

    /// Returns the path that begins with the name of the directory at this depth.
    fn path_from(&self, depth_min: u32) -> Vec<u8> {
        // Written from its end to its beginning, as the names are met.
        let mut path = Vec::new();
        self.ascend(|depth, level| {
            if depth < depth_min {
                return;
            }
            if !path.is_empty() && level.name.last().is_some_and(|last| *last != b'/') {
                path.push(b'/');
            }
            path.extend(level.name.iter().rev());
        });
        path.reverse();
        path
    }

    /// Passes it and all directories above it to `see`, with their depths.
    fn ascend(&self, mut see: impl FnMut(u32, &Level<'_>)) {
        let mut next = self.ascend_one(&mut see);
        while let Some(directory) = next {
            next = directory.ascend_one(&mut see);
        }
    }

    /// Passes it and the packed ones above it to `see`, and returns the directory above those.
    fn ascend_one(&self, see: &mut impl FnMut(u32, &Level<'_>)) -> Option<Arc<Directory<S>>> {
        let identity = self.stream.lock().identity;
        see(self.depth, &Level { name: self.name.to_bytes(), inode: self.inode, identity, state: &[] });
        match &*self.above.lock() {
            Above::Nothing => None,
            Above::Directory(parent) => Some(Arc::clone(parent)),
            Above::Chain(chain) => {
                let depths = (0..self.depth).rev();
                depths
                    .zip(chain.levels.iter_rev())
                    .for_each(|(depth, record)| see(depth, &Level::get(record)));
                Some(Arc::clone(&chain.above))
            }
        }
    }

    /// Returns the descriptor, opened again if it was closed in the meantime.
    pub fn descriptor(&self) -> Result<Arc<Descriptor>, Errno> {
        if let Some(descriptor) = &self.stream.lock().descriptor {
            return Ok(Arc::clone(descriptor));
        }
        let mut closed = Vec::new();
        let mut open_one = None;
        let mut above = self.ancestor();
        while let Some(directory) = above {
            if let Some(descriptor) = &directory.stream.lock().descriptor {
                open_one = Some(Arc::clone(descriptor));
                break;
            }
            above = directory.ancestor();
            closed.push(directory);
        }
        for directory in closed.iter().rev() {
            open_one = Some(directory.open_below(open_one, true)?);
        }
        let descriptor = self.open_below(open_one, true)?;
        let mut stream = self.stream.lock();
        // Another thread may have been faster; then the position belongs to its descriptor.
        if let Some(descriptor) = &stream.descriptor {
            return Ok(Arc::clone(descriptor));
        }
        stream.displaced = true;
        stream.descriptor = Some(Arc::clone(&descriptor));
        Ok(descriptor)
    }

    /// Opens it below the nearest ancestor that is not packed, which is open by `above`. With `same`, it and the packed
    /// ones on the way have to be the same directories as before.
    fn open_below(&self, above: Option<Arc<Descriptor>>, same: bool) -> Result<Arc<Descriptor>, Errno> {
        let mut open_one = above;
        let mut step = |name: &CStr, known: Option<Identity>| {
            let descriptor = open(open_one.as_deref(), name, true, &self.budget)?;
            if same
                && known.is_some_and(|known| stat_open(&descriptor).map(|stat| identity(&stat)) != Ok(known))
            {
                return Err(Errno::STALE);
            }
            open_one = Some(Arc::clone(&descriptor));
            Ok(descriptor)
        };
        if let Above::Chain(chain) = &*self.above.lock() {
            for record in chain.levels.iter() {
                let level = Level::get(record);
                let name = CString::new(level.name).map_err(|_| Errno::INVAL)?;
                step(name.as_c_str(), level.identity)?;
            }
        }
        let known = self.stream.lock().identity;
        step(self.name(), known)
    }

    /// Returns the `statx` result for an entry, which is looked up in `descriptor`, by which this directory is open.
    ///
    /// A server may call a handle stale though the file is there, such as after a failover. As clients of NFS do, the
    /// entry is then looked up once more by its path.
    pub(crate) fn stat_entry(&self, descriptor: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
        match stat(descriptor, name) {
            Err(Errno::STALE) => {
                // If the path does not lead here any more, nothing is known of the entry.
                let again = self.open_by_path(descriptor).map_err(|_| Errno::STALE)?;
                stat(again.as_fd(), name)
            }
            asked => asked,
        }
    }

    /// Opens it once more by its path, one name after the other from its root on. What has taken its place since is
    /// refused.
    fn open_by_path(&self, known: BorrowedFd<'_>) -> Result<Arc<Descriptor>, Errno> {
        let mut lineage = Vec::new();
        let mut above = self.ancestor();
        while let Some(directory) = above {
            above = directory.ancestor();
            lineage.push(directory);
        }
        let mut opened = None;
        for directory in lineage.iter().rev() {
            opened = Some(directory.open_below(opened, false)?);
        }
        let opened = self.open_below(opened, false)?;
        // The server may not know any more what the first handle stands for, but the system does.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let before =
            retry_on_intr(|| rustix::fs::statx(known, c"", flags, StatxFlags::TYPE | StatxFlags::INO))?;
        if identity(&stat_open(&opened)?) != identity(&before) {
            return Err(Errno::STALE);
        }
        Ok(opened)
    }

    /// Reads the next entries into `buffer` and returns the number of bytes read, 0 at the end. May be called only by
    /// the piece of work that is the rest of this directory.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<(Arc<Descriptor>, usize), Errno> {
        // Between having the descriptor and having the lock, another thread may close the directory and open it again,
        // as it does with a parent of what it works on. Position and descriptor belong together: what is read here has to
        // be read through the descriptor that stands under this lock.
        let (descriptor, mut stream) = loop {
            let descriptor = self.descriptor()?;
            let stream = self.stream.lock();
            if stream.descriptor.as_ref().is_some_and(|current| Arc::ptr_eq(current, &descriptor)) {
                break (descriptor, stream);
            }
        };
        if stream.ended || stream.until.is_some_and(|until| stream.position >= until) {
            return Ok((descriptor, 0));
        }
        if stream.displaced {
            rustix::fs::seek(&descriptor, SeekFrom::Start(stream.position))?;
            stream.displaced = false;
        }
        let mut len = read_records(&descriptor, buffer)?;
        if let Some(until) = stream.until {
            // The position may be from elsewhere, or the entry that began there may be gone: the next one begins there, or
            // somewhere behind it.
            len = length_before(&buffer[..len], stream.position, until);
            if is_first_behind(&descriptor, &buffer[..len], until)? {
                len = 0;
            }
        }
        stream.batches += 1;
        stream.ended = len == 0;
        Ok((descriptor, len))
    }

    /// Returns the current name of the subdirectory with that inode; `None` if it is no longer here.
    pub(crate) fn name_of(&self, inode: u64) -> Result<Option<CString>, Errno> {
        // Reading moves a position, and that of the open directory is not ours to move.
        let own = open(Some(&*self.descriptor()?), c".", true, &self.budget)?;
        let mut buffer = vec![0; 32 << 10];
        loop {
            let len = read_records(&own, &mut buffer)?;
            if len == 0 {
                return Ok(None);
            }
            let mut records = Records(&buffer[..len]);
            let is_it = |record: &Record<'_>| {
                record.inode == inode && matches!(record.kind, None | Some(FileKind::Directory))
            };
            if let Some(record) = records.find(is_it) {
                return Ok(Some(record.name.into()));
            }
        }
    }

    /// Sets the position behind the entries that were read last.
    pub(crate) fn set_position(&self, position: u64) {
        self.stream.lock().position = position;
    }

    /// Moves reading to a position that was taken from another opening of the directory, and has it end at another.
    pub(crate) fn seek(&self, position: u64, until: Option<u64>) {
        let mut stream = self.stream.lock();
        (stream.position, stream.until) = (position, until);
        stream.displaced = true;
        (stream.from, stream.batches) = (position, 0);
    }

    /// Divides the unread entries, if they are many and can be divided: the first half stays, and the second is returned as
    /// a unit of work.
    pub(crate) fn halve(&self) -> Option<Unit> {
        let (middle, until) = {
            let mut stream = self.stream.lock();
            let middle = stream.middle()?;
            (middle, stream.until.replace(middle))
        };
        Some(Unit { position: Some(middle), until, ..self.unit() })
    }

    /// Returns the position at which reading continues, if positions are stable.
    pub(crate) fn stable_position(&self) -> Option<u64> {
        let stream = self.stream.lock();
        (stream.stable == Some(true)).then_some(stream.position)
    }

    /// Returns the whole directory as a unit of work.
    pub(crate) fn unit(&self) -> Unit {
        // There may be one more: of an entry in it.
        let mut inodes = Vec::with_capacity(self.depth as usize + 1);
        self.ascend(|depth, level| inodes.extend((depth > 0).then_some(level.inode)));
        inodes.reverse();
        Unit { root: self.root, path: self.path_below_root(), inodes, ..Unit::default() }
    }

    /// Returns the rest of the directory as a unit of work.
    pub(crate) fn rest(&self) -> Unit {
        let (position, until) = {
            let stream = self.stream.lock();
            (Some(stream.position), stream.until)
        };
        Unit { position, until, ..self.unit() }
    }

    /// Determines whether a position of this directory is valid in another opening of it: true of file systems whose
    /// positions are kept for NFS servers, or are the server's cookies. Elsewhere a position may be a mere count, and
    /// the rest of a directory stays with the descriptor that began to read it.
    pub(crate) fn learn_stability(&self, descriptor: &Descriptor) {
        let mut stream = self.stream.lock();
        if stream.stable.is_none() {
            const STABLE: [u64; 9] = [
                EXT,         // hash of the name
                0x5846_5342, // XFS: place in the directory
                0x9123_683E, // btrfs: number of the entry
                TMPFS,       // number of the entry
                0x6969,      // NFS: the server's cookie
                0x0BD0_0BD0, // Lustre: hash of the name
                0x00C3_6400, // CephFS: hash of the name
                0x4750_4653, // GPFS
                0x2FC1_2FC1, // ZFS: place in the directory
            ];
            let kind = rustix::fs::fstatfs(descriptor).map(|about| about.f_type as u64);
            // Before, a position of tmpfs was a mere count.
            let numbered = || is_at_least(rustix::system::uname().release(), (6, 6));
            let stable = kind.is_ok_and(|kind| STABLE.contains(&kind) && (kind != TMPFS || numbered()));
            stream.stable = Some(stable);
            stream.hashed = stable && kind == Ok(EXT);
        }
    }

    /// Sets the identity that [`Directory::descriptor`] requires from now on.
    pub(crate) fn set_identity(&self, identity: Identity) {
        self.stream.lock().identity = Some(identity);
    }

    /// Returns whether it or one of its ancestors has that identity, so that the directory was met below itself.
    pub(crate) fn is_within(&self, identity: Identity) -> bool {
        let mut within = false;
        self.ascend(|_, level| within |= level.identity == Some(identity));
        within
    }

    /// Returns whether it or one of its ancestors has that inode number.
    pub(crate) fn is_within_inode(&self, inode: u64) -> bool {
        let mut within = false;
        self.ascend(|_, level| within |= level.inode == inode);
        within
    }

    /// Closes the descriptor temporarily, if it can be opened again without harm.
    pub(crate) fn close_for_now(&self) {
        let mut stream = self.stream.lock();
        let Some(descriptor) = stream.descriptor.clone() else { return };
        if !stream.ended {
            drop(stream);
            self.learn_stability(&descriptor);
            stream = self.stream.lock();
            if stream.stable != Some(true) {
                return;
            }
        }
        if stream.identity.is_none() {
            let Ok(stat) = stat_open(&descriptor) else { return };
            stream.identity = Some(identity(&stat));
        }
        stream.descriptor = None;
    }

    /// Opens it again through a child that is open, in one step at any depth: from above, one step is needed for each
    /// level. `..` is the child's current parent, which has to be the directory in which the child was found.
    pub(crate) fn recall(&self, child: &Directory<S>) {
        if !self.budget.is_scarce() {
            return;
        }
        let Some(below) = child.stream.lock().descriptor.clone() else { return };
        let known = {
            let stream = self.stream.lock();
            if stream.descriptor.is_some() {
                return;
            }
            stream.identity
        };
        // Without an identity nothing says that it is the same directory. What fails here is found from above, if it is
        // needed at all.
        let (Some(known), Ok(found)) = (known, open(Some(&*below), c"..", true, &self.budget)) else {
            return;
        };
        if stat_open(&found).map(|stat| identity(&stat)) != Ok(known) {
            return;
        }
        let mut stream = self.stream.lock();
        if stream.descriptor.is_none() {
            stream.displaced = true;
            stream.descriptor = Some(found);
        }
    }

    /// Registers one more piece of work that needs the descriptor.
    pub(crate) fn hold(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
        self.unfinished.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes one piece of work that needed the descriptor. [`Directory::finish`] comes after, and then, if the
    /// directory is not finished, [`Directory::settle`].
    pub(crate) fn unhold(&self) {
        self.holders.fetch_sub(1, Ordering::AcqRel);
    }

    /// Closes the descriptor if no piece of work needs it any more, though subdirectories are still walked; with
    /// `keep_open`, only if too many are open.
    pub(crate) fn settle(&self, keep_open: bool) {
        if self.holders.load(Ordering::Acquire) > 0 {
            return;
        }
        // Who it is has to be known to open it again: through a child, when that is finished.
        let exceeded = self.budget.is_exceeded();
        if exceeded || !keep_open && self.budget.is_scarce() {
            self.close_for_now();
        } else if !keep_open {
            self.stream.lock().descriptor = None;
        }
    }

    /// Removes one piece of work or subdirectory from the unfinished ones, and returns whether it was the last.
    pub(crate) fn finish(&self) -> bool {
        self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Marks it and all its ancestors as split.
    pub(crate) fn mark_split(&self) {
        let mut next = self.mark_one_split();
        while let Some(directory) = next {
            next = directory.mark_one_split();
        }
    }

    /// Marks it and the packed ones above it as split, and returns the directory above those, which may have to be marked, too.
    fn mark_one_split(&self) -> Option<Arc<Directory<S>>> {
        if self.split.swap(true, Ordering::Relaxed) {
            return None;
        }
        match &mut *self.above.lock() {
            Above::Nothing => None,
            Above::Directory(parent) => Some(Arc::clone(parent)),
            Above::Chain(chain) => {
                chain.split = chain.levels.len();
                Some(Arc::clone(&chain.above))
            }
        }
    }

    /// Notes that no entries are read from it any more.
    pub(crate) fn end(&self) {
        self.stream.lock().ended = true;
    }

    /// Packs its parent if that waits for this directory alone, and is closed. `pack` writes the state of the one, in which the
    /// other is, unless it cannot.
    pub(crate) fn pack_above(&self, pack: impl Fn(&S, &S, &mut Vec<u8>) -> bool) {
        if self.depth > PACKED_DEPTH_MIN {
            self.pack_parent(&pack, true);
        }
    }

    fn pack_parent(&self, pack: &impl Fn(&S, &S, &mut Vec<u8>) -> bool, late: bool) {
        let mut above = self.above.lock();
        let Above::Directory(parent) = &mut *above else { return };
        // Whoever has work in it refers to it, and so does each of its subdirectories: with one reference, it waits for this
        // directory, and nobody else comes to it.
        let Some(parent) = Arc::get_mut(parent) else { return };
        if parent.depth < PACKED_DEPTH_MIN || parent.name.to_bytes().len() > Level::NAME_BYTES_MAX {
            return;
        }
        let identity = {
            let stream = parent.stream.lock();
            if stream.descriptor.is_some() {
                return;
            }
            stream.identity
        };
        if late {
            // Another thread may have been about to let go of it when it was its turn.
            parent.pack_parent(pack, false);
        }
        let mut record = Vec::new();
        Level::put(parent.name.to_bytes(), parent.inode, identity, &mut record);
        if !pack(&parent.state, &self.state, &mut record) {
            return;
        }
        let mut chain = match std::mem::replace(&mut *parent.above.lock(), Above::Nothing) {
            Above::Chain(chain) => chain,
            Above::Directory(above) => Box::new(Chain::new(above)),
            Above::Nothing => unreachable!("roots are not that deep"),
        };
        chain.push(&record, parent.is_split());
        *above = Above::Chain(chain);
    }

    /// Returns its parent, which is unpacked if it was packed; `unpack` makes its state of what was written, and of this
    /// directory's. Called by whoever finishes this directory.
    pub(crate) fn unpack_above(&self, unpack: impl FnOnce(&[u8], &S) -> S) -> Option<Arc<Directory<S>>> {
        let mut above = self.above.lock();
        let mut chain = match std::mem::replace(&mut *above, Above::Nothing) {
            Above::Nothing => return None,
            Above::Directory(parent) => {
                *above = Above::Directory(Arc::clone(&parent));
                return Some(parent);
            }
            Above::Chain(chain) => chain,
        };
        let Some((record, split)) = chain.pop() else { unreachable!("no chain is without levels") };
        let level = Level::get(&record);
        let parent = Arc::new(Directory {
            // Names were packed without the zero at their end, and hold no other.
            name: CString::new(level.name).unwrap_or_default().into_boxed_c_str(),
            root: self.root,
            depth: self.depth - 1,
            inode: level.inode,
            state: unpack(level.state, &self.state),
            budget: Arc::clone(&self.budget),
            stream: Mutex::new(Stream { ended: true, identity: level.identity, ..Stream::default() }),
            holders: AtomicUsize::new(0),
            // This directory.
            unfinished: AtomicUsize::new(1),
            split: AtomicBool::new(split),
            above: Mutex::new(match chain.levels.is_empty() {
                true => Above::Directory(chain.above),
                false => Above::Chain(chain),
            }),
        });
        *above = Above::Directory(Arc::clone(&parent));
        Some(parent)
    }

    /// Takes the nearest ancestor that is not packed, and forgets the others.
    fn take_above(&self) -> Option<Arc<Directory<S>>> {
        match std::mem::replace(&mut *self.above.lock(), Above::Nothing) {
            Above::Nothing => None,
            Above::Directory(parent) => Some(parent),
            Above::Chain(chain) => Some(chain.above),
        }
    }
}

/// The number by which tmpfs is recognised.
const TMPFS: u64 = 0x0102_1994;

/// Returns whether a release of Linux, such as 6.6.1-generic, is this one or a later one.
fn is_at_least(release: &CStr, least: (u32, u32)) -> bool {
    let numbers = release.to_bytes().split(|byte| !byte.is_ascii_digit());
    let mut numbers = numbers.map(|digits| std::str::from_utf8(digits).ok()?.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= least,
        _ => false,
    }
}

/// Drops a chain of directories iteratively, since recursion over a hundred thousand levels would overflow the stack.
impl<S> Drop for Directory<S> {
    fn drop(&mut self) {
        let mut above = self.take_above();
        while let Some(directory) = above {
            above = Arc::into_inner(directory).and_then(|directory| directory.take_above());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// Returns the names of the entries between two positions, each with the position behind it.
    fn between(path: &CStr, position: u64, until: Option<u64>) -> Vec<(CString, u64)> {
        let budget = Arc::new(Budget::new(100, false));
        let descriptor = open(None, path, true, &budget).unwrap();
        let directory =
            Directory::new(TreePosition { parent: None, name: path, root: 0, inode: 0 }, descriptor, ());
        directory.seek(position, until);
        let (mut found, mut buffer) = (Vec::new(), vec![0; 600]);
        loop {
            let (_, len) = directory.read(&mut buffer).unwrap();
            if len == 0 {
                return found;
            }
            for record in Records(&buffer[..len]) {
                found.push((record.name.to_owned(), record.next));
                directory.set_position(record.next);
            }
        }
    }

    #[test]
    fn between_two_positions_are_the_entries_that_begin_there() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..300 {
            std::fs::write(folder.path().join(format!("file with number {number}")), "").unwrap();
        }
        let path = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        let all = between(&path, 0, None);
        assert_eq!(all.len(), 300);
        let kind = rustix::fs::statfs(folder.path()).unwrap().f_type as u64;
        if kind != EXT || all[0].1 < HASH_MIN {
            // Nothing is divided there.
            return;
        }
        for place in [1, 2, 100, 297] {
            // Each begins where the one before it ends.
            let [begin, end] = [all[place - 1].1, all[place].1];
            assert_eq!(between(&path, begin, Some(end)), all[place..=place]);
            assert_eq!(between(&path, begin, Some(end + 1)), all[place..place + 2]);
            assert_eq!(between(&path, begin, None), all[place..]);
            assert_eq!(between(&path, 0, Some(end)), all[..=place]);
            // At none of these an entry begins.
            assert_eq!(between(&path, begin + 1, Some(end)), []);
            assert_eq!(between(&path, begin + 1, Some(end + 1)), all[place + 1..place + 2]);
            assert_eq!(between(&path, begin + 1, None), all[place + 1..]);
            assert_eq!(between(&path, end, Some(begin)), []);
        }
    }

    #[test]
    fn an_entry_behind_the_end_is_another_s_also_after_the_last_one_before_it_was_removed() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..300 {
            std::fs::write(folder.path().join(format!("file with number {number}")), "").unwrap();
        }
        let path = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        let all = between(&path, 0, None);
        let budget = Arc::new(Budget::new(100, false));
        let descriptor = open(None, &path, true, &budget).unwrap();
        let directory =
            Directory::new(TreePosition { parent: None, name: &path, root: 0, inode: 0 }, descriptor, ());
        directory.learn_stability(&directory.descriptor().unwrap());
        if !directory.stream.lock().hashed || all[0].1 < HASH_MIN {
            return;
        }
        directory.seek(all[99].1, Some(all[101].1));
        // One record at a time.
        let mut buffer = vec![0; 64];
        let (_, len) = directory.read(&mut buffer).unwrap();
        let read: Vec<CString> = Records(&buffer[..len]).map(|record| record.name.to_owned()).collect();
        assert_eq!(read, [all[100].0.clone()]);
        directory.set_position(all[100].1);
        std::fs::remove_file(folder.path().join(all[101].0.to_str().unwrap())).unwrap();
        // The open directory would still know of it.
        directory.close_for_now();
        assert_eq!(directory.read(&mut buffer).unwrap().1, 0);
    }

    #[test]
    fn many_unread_entries_are_divided_in_the_middle() {
        let stream = |position, until, batches| Stream {
            position,
            until,
            batches,
            stable: Some(true),
            hashed: true,
            ..Stream::default()
        };
        let eighth = 1 << 60;
        assert_eq!(stream(eighth, None, 1).middle(), Some(eighth + (HASH_END - eighth) / 2));
        assert_eq!(stream(eighth, Some(5 * eighth), 1).middle(), Some(3 * eighth));
        // Few batches are left, or none, or what there is cannot be known.
        assert_eq!(stream(eighth, Some(4 * eighth), 1).middle(), None);
        assert_eq!(stream(eighth, Some(4 * eighth), 2).middle(), Some(eighth + 3 * eighth / 2));
        assert_eq!(stream(HASH_END, None, 1).middle(), None);
        assert_eq!(stream(eighth, Some(eighth - 1), 1).middle(), None);
        assert_eq!(stream(4096, None, 1).middle(), None);
        assert_eq!(Stream { hashed: false, ..stream(eighth, None, 1) }.middle(), None);
        assert_eq!(Stream { from: eighth + 1, ..stream(eighth, None, 1) }.middle(), None);
        assert_eq!(Stream { from: eighth, ..stream(eighth, None, 0) }.middle(), None);
    }

    #[test]
    fn releases_are_compared_by_their_numbers() {
        for release in [c"6.6.0", c"6.6", c"6.18.44-generic", c"7.0-rc1", c"10.1.2"] {
            assert!(is_at_least(release, (6, 6)), "{release:?}");
        }
        for release in [c"6.5.13", c"5.15.0-91-generic", c"4.18.0-553.el8_10.x86_64", c"6", c"", c"six.six"] {
            assert!(!is_at_least(release, (6, 6)), "{release:?}");
        }
    }

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
