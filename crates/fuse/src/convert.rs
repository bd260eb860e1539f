//! What the namespace says of inodes, as the kernel wants to hear it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use nacre_meta::Attributes;
use nacre_meta::inode::InodeKind;

fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

pub(crate) fn nanoseconds(time: SystemTime) -> i64 {
    let bounded = |distance: Duration| i64::try_from(distance.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => bounded(since),
        Err(before) => -bounded(before.duration()),
    }
}

pub(crate) fn file_type(kind: &InodeKind) -> FileType {
    match kind {
        InodeKind::Directory => FileType::Directory,
        InodeKind::Symlink => FileType::Symlink,
        InodeKind::Fifo => FileType::NamedPipe,
        InodeKind::Socket => FileType::Socket,
        InodeKind::File | InodeKind::Typed(_) => FileType::RegularFile,
    }
}

pub(crate) fn attributes(found: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(found.ino.0),
        size: found.size,
        blocks: found.size.div_ceil(512),
        atime: time(found.atime),
        mtime: time(found.mtime),
        ctime: time(found.ctime),
        crtime: time(found.btime),
        kind: file_type(&found.kind),
        perm: found.mode as u16,
        nlink: found.links,
        uid: found.uid,
        gid: found.gid,
        rdev: 0,
        blksize: 128 << 10,
        flags: 0,
    }
}
