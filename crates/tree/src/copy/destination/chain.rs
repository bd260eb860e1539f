//! The directories above one, which are packed far below the root: what would be a destination for each level is a few bytes.

use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use nacre_walk::Time;
use nacre_walk::chain::{
    Above, NAME_BYTES_MAX, drop_upwards, put_bytes, put_number, take_bytes, take_number,
};
use nacre_walk::directory::Identity;
use parking_lot::Mutex;

use super::Destination;

impl Destination {
    /// Returns the nearest ancestor that is not packed.
    pub(super) fn ancestor(&self) -> Option<Arc<Destination>> {
        self.above.lock().nearest()
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
        let beyond = std::mem::replace(&mut *self.above.lock(), Above::Nothing);
        above.pack(beyond, &Level::put(self), false)
    }

    /// Returns the directory that it is in, which is unpacked if it was packed; `None` for the one that the copy is made in.
    pub fn unpack_above(&self) -> Option<Arc<Destination>> {
        self.above.lock().unpack(|record, _is_split, above| {
            let level = Level::get(record);
            Destination {
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
                group: None,
                accessed: level.accessed,
                // Everything in it has got its name.
                claims: None,
                together: self.together,
                ignores_case: OnceLock::new(),
                naming: Mutex::new(()),
                above: Mutex::new(above),
            }
        })
    }
}

/// Drops a long chain of directories without recursion.
impl Drop for Destination {
    fn drop(&mut self) {
        let take_nearest = |directory: &Destination| directory.above.lock().take_nearest();
        drop_upwards(take_nearest(self), take_nearest);
    }
}

const MOUNTED: u8 = 1;
const FOREIGN: u8 = 2;
const FRESH: u8 = 4;
const INHERITS: u8 = 8;
const ACCESSED: u8 = 16;
const SPARED: u8 = 32;

/// A packed directory.
pub(super) struct Level {
    flags: u8,
    pub name: CString,
    pub identity: Identity,
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
    pub fn get(record: &[u8]) -> Level {
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
    use std::ffi::CStr;
    use std::os::fd::AsFd;

    use rustix::io::Errno;

    use super::*;
    use crate::copy::file::stat_open;
    use crate::root::identity_of;

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
}
