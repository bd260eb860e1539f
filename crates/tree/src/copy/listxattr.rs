//! The names of the extended attributes of an entry that is not opened.
//!
//! Linux 6.13 and later list them for a name in an open directory. Before that, the way to the name leads through `/proc`, which
//! costs several times as much.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use crate::copy::attributes::by_descriptor;

/// The number of the system call `listxattrat` on architectures that number new calls alike.
#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "powerpc64"
))]
const LISTXATTRAT: Option<libc::c_long> = Some(465);
#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "powerpc64"
)))]
const LISTXATTRAT: Option<libc::c_long> = None;

/// True once the system was found to have no such call.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Writes the names of the extended attributes of an entry to `names`, each with a zero behind it, and returns their length. A link
/// is not followed.
pub fn names_of(directory: BorrowedFd<'_>, name: &CStr, names: &mut [u8]) -> Result<usize, Errno> {
    if !MISSING.load(Ordering::Relaxed) {
        match at(directory, name, names) {
            Err(Errno::NOSYS) => MISSING.store(true, Ordering::Relaxed),
            // A sandbox that does not know the call may refuse it so.
            Err(Errno::PERM) => {}
            listed => return listed,
        }
    }
    by_path(directory, name, names)
}

fn at(directory: BorrowedFd<'_>, name: &CStr, names: &mut [u8]) -> Result<usize, Errno> {
    let Some(number) = LISTXATTRAT else { return Err(Errno::NOSYS) };
    // SAFETY: the name ends in a zero, and the kernel writes at most `names.len()` bytes into `names`, which nobody else can touch
    // meanwhile.
    let len = unsafe {
        libc::syscall(
            number,
            directory.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            names.as_mut_ptr(),
            names.len(),
        )
    };
    usize::try_from(len)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

fn by_path(directory: BorrowedFd<'_>, name: &CStr, names: &mut [u8]) -> Result<usize, Errno> {
    let directory = by_descriptor(directory);
    let path = [directory.as_bytes(), b"/", name.to_bytes()].concat();
    rustix::fs::llistxattr(&path[..], names)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::XattrFlags;

    use super::*;

    #[test]
    fn both_ways_lead_to_the_same_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bare", "one"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("one", folder.path().join("link")).unwrap();
        rustix::fs::setxattr(folder.path().join("one").as_path(), c"user.note", b"1", XattrFlags::empty())
            .unwrap();
        let opened = std::fs::File::open(folder.path()).unwrap();
        let listed = |list: fn(BorrowedFd<'_>, &CStr, &mut [u8]) -> Result<usize, Errno>, name: &CStr| {
            let mut names = [0; 256];
            list(opened.as_fd(), name, &mut names).map(|len| names[..len].to_vec())
        };
        for name in [c"bare", c"one", c"link", c"missing"] {
            let known = listed(by_path, name);
            assert_eq!(listed(names_of, name), known, "{name:?}");
            let direct = listed(at, name);
            assert!(
                direct == known || direct == Err(Errno::NOSYS) || direct == Err(Errno::PERM),
                "{direct:?}"
            );
        }
        let has_note = |name| listed(names_of, name).unwrap().starts_with(b"user.note\0");
        assert!(has_note(c"one") && !has_note(c"bare") && !has_note(c"link"));
        assert_eq!(listed(names_of, c"missing"), Err(Errno::NOENT));
    }
}
