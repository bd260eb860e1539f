//! The directories above one, up to its root: they make up its path, and are packed where they are far below the root.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Directory, Identity, Stream};
use crate::chain::{Above, Level, NAME_BYTES_MAX, Stack, drop_upwards};
use crate::sync::{AtomicBool, AtomicUsize, Mutex};

/// The depth from which on directories are packed. Trees that are not deeper have nothing to gain.
const PACKED_DEPTH_MIN: u32 = 64;

impl<S> Directory<S> {
    /// Returns the parent directory; `None` for a root, and for a directory whose parent is packed. When a directory is left, its
    /// parent is not packed.
    pub fn parent(&self) -> Option<Arc<Directory<S>>> {
        self.above.lock().parent()
    }

    /// Returns the nearest ancestor that is not packed; `None` for a root.
    pub(crate) fn ancestor(&self) -> Option<Arc<Directory<S>>> {
        self.above.lock().nearest()
    }

    /// Passes the packed directories to `see` that are between the nearest other ancestor and this directory, if there are any.
    pub(crate) fn with_packed<T>(&self, see: impl FnOnce(&mut Stack) -> T) -> Option<T> {
        self.above.lock().packed_mut().map(see)
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
        let above = self.above.lock();
        if let Some(levels) = above.packed() {
            let depths = (0..self.depth).rev();
            depths.zip(levels.iter_rev()).for_each(|(depth, record)| see(depth, &Level::get(record)));
        }
        above.nearest()
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
        let mut above = self.above.lock();
        above.mark_split();
        above.nearest()
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
        if parent.depth < PACKED_DEPTH_MIN || parent.name.to_bytes().len() > NAME_BYTES_MAX {
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
        let beyond = std::mem::replace(&mut *parent.above.lock(), Above::Nothing);
        let is_split = parent.is_split();
        let packed = above.pack(beyond, &record, is_split);
        assert!(packed, "roots are not that deep");
    }

    /// Returns its parent, which is unpacked if it was packed; `unpack` makes its state of what was written, and of this
    /// directory's. Called by whoever finishes this directory.
    pub(crate) fn unpack_above(&self, unpack: impl FnOnce(&[u8], &S) -> S) -> Option<Arc<Directory<S>>> {
        self.above.lock().unpack(|record, is_split, above| {
            let level = Level::get(record);
            Directory {
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
                split: AtomicBool::new(is_split),
                above: Mutex::new(above),
            }
        })
    }
}

/// Drops a long chain of directories without recursion.
impl<S> Drop for Directory<S> {
    fn drop(&mut self) {
        let take_nearest = |directory: &Directory<S>| directory.above.lock().take_nearest();
        drop_upwards(take_nearest(self), take_nearest);
    }
}
