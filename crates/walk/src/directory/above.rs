//! The directories above one, up to its root: they make up its path, and are packed where they are far below the root.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Directory, Identity, Stream};
use crate::chain::{Chain, Level, Stack};
use crate::sync::{AtomicBool, AtomicUsize, Mutex};

/// The directories above a directory.
pub(super) enum Above<S> {
    /// Nothing: it is a root.
    Nothing,
    /// Its parent.
    Directory(Arc<Directory<S>>),
    /// Its parent and more directories, packed.
    Chain(Box<Chain<S>>),
}

/// The depth from which on directories are packed. Trees that are not deeper have nothing to gain.
const PACKED_DEPTH_MIN: u32 = 64;

impl<S> Directory<S> {
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
    pub(super) fn ascend(&self, mut see: impl FnMut(u32, &Level<'_>)) {
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

/// Drops a chain of directories iteratively, since recursion over a hundred thousand levels would overflow the stack.
impl<S> Drop for Directory<S> {
    fn drop(&mut self) {
        let mut above = self.take_above();
        while let Some(directory) = above {
            above = Arc::into_inner(directory).and_then(|directory| directory.take_above());
        }
    }
}
