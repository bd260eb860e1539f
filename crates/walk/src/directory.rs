//! A directory that is being walked: its place in the tree, its descriptor, and its unfinished work.
//!
//! - A directory is opened relative to its parent's descriptor, never by its whole path, and a symbolic link is never
//!   followed: renaming what the walk has passed cannot lead it out of its root.
//! - The descriptor stays open as long as a piece of work needs it. If too many are open it is closed earlier, and
//!   reopened from the nearest open ancestor; then it has to be the same directory as before.
//! - At any moment at most one piece of work reads the entries (the *rest*); others open subdirectories.
//! - Far below the root, a directory that waits for one subdirectory alone is packed (`chain`): what would be a million of them
//!   is a few bytes for each. Only the directory in which a chain ends refers to it, so that whoever leaves that one unpacks.

mod above;
mod descriptor;
mod mount;
mod stream;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use descriptor::{Budget, Descriptor, Identity, identity, open, stat, stat_open, stat_opened};
pub use mount::is_mounted;
use rustix::fs::{AtFlags, Statx, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
use stream::Stream;

use crate::chain::{Above, Level};
use crate::sync::{AtomicBool, AtomicUsize, Mutex};
use crate::unit::Unit;

/// A directory that is being walked.
#[derive(derive_more::Debug)]
#[debug("Directory")]
pub struct Directory<S> {
    above: Mutex<Above<Directory<S>>>,
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
        if let Some(levels) = self.above.lock().packed() {
            for record in levels.iter() {
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

    /// Sets the identity that [`Directory::descriptor`] requires from now on.
    pub(crate) fn set_identity(&self, identity: Identity) {
        self.stream.lock().identity = Some(identity);
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
}
