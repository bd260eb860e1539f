//! Unfinished copies: their names, and their files.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::copy::destination::Open;

/// The prefix of unfinished copies' names; 32 hexadecimal digits that stand for the name follow.
const UNFINISHED: &[u8] = b".nacre-copy-";

/// The suffix of the name under which the finished chunks of an unfinished copy are recorded.
pub const CHUNKS: &[u8] = b".chunks";

/// Returns whether a name has the form of an unfinished copy or its record.
pub fn is_unfinished(name: &CStr) -> bool {
    let name = name.to_bytes();
    name.strip_suffix(CHUNKS)
        .unwrap_or(name)
        .strip_prefix(UNFINISHED)
        .is_some_and(|hash| hash.len() == 32 && hash.iter().all(u8::is_ascii_hexdigit))
}

/// Returns what an unfinished copy, or its record, is called meanwhile.
pub fn unfinished(name: &CStr, suffix: &[u8]) -> CString {
    let hash = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(name.to_bytes()));
    let bytes = [UNFINISHED, hash.as_bytes(), suffix].concat();
    // The name has no zeros, and what it is called meanwhile has none either.
    CString::new(bytes).unwrap_or_default()
}

/// The mode of an unfinished copy that nobody else may read yet.
pub const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Creates a file in a mode, after removing one that an earlier run left under its name.
pub fn create(directory: &Open, name: &CStr, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = || retry_on_intr(|| rustix::fs::openat(directory, name, flags, mode));
    match create() {
        Err(Errno::EXIST) => {
            remove(directory, name);
            create()
        }
        created => created,
    }
}

/// Removes an unfinished file. If that fails, the next run finds it.
pub fn remove(directory: &Open, name: &CStr) {
    let _ = retry_on_intr(|| rustix::fs::unlinkat(directory, name, AtFlags::empty()));
}
