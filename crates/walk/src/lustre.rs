//! The layouts of files on Lustre: how many stripes they have, of what size, in which pool, and on which object storage
//! targets (OSTs).
//!
//! A file system is asked for its type once for each device, and only one of Lustre is asked for layouts. The answer is that of
//! a server, so it is checked like any input: [`parse`] reads within its bounds, and takes no more memory than it has.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::entry::{Entry, FileKind};

/// The type of Lustre in `f_type` of `statfs`.
const LUSTRE: u64 = 0x0bd0_0bd0;

/// The attribute that holds a layout.
const ATTRIBUTE: &CStr = c"lustre.lov";

/// The maximum length of an extended attribute on Linux.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// The layout of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The number of stripes; of a composite layout, as size and pool, that of its last component with objects.
    pub stripe_count: u32,
    /// The size of a stripe in bytes.
    pub stripe_size: u64,
    /// The pool of OSTs that it was created in, if any.
    pub pool: Option<String>,
    /// The numbers of all OSTs with an object of the file, each once, in ascending order.
    pub osts: Vec<u32>,
}

/// The reason why a layout cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the layout is malformed")]
pub struct Malformed;

/// The file systems that answer about files: those of this system, or a test's.
pub trait FileSystems: Send {
    /// Returns the type of the file system that a file is on, as `f_type` of `statfs` gives it. Links are not followed.
    ///
    /// # Errors
    /// The error number of the system.
    fn kind(&self, path: &[u8]) -> Result<u64, Errno>;

    /// Reads an extended attribute of a file into `value`, and returns its length. Links are not followed.
    ///
    /// # Errors
    /// The error number of the system; `NODATA` if the file has no such attribute.
    fn attribute(&self, path: &[u8], name: &CStr, value: &mut [u8]) -> Result<usize, Errno>;
}

/// The file systems of this system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mounted;

impl FileSystems for Mounted {
    fn kind(&self, path: &[u8]) -> Result<u64, Errno> {
        // `statfs` itself would follow a link that has taken the file's place, and what it says is kept for the whole device.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty())?;
        rustix::fs::fstatfs(&opened).map(|about| about.f_type as u64)
    }

    fn attribute(&self, path: &[u8], name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        rustix::fs::lgetxattr(path, name, value)
    }
}

/// The reader of layouts of one thread.
#[derive(derive_more::Debug)]
#[debug("LayoutReader")]
pub struct LayoutReader {
    file_systems: Box<dyn FileSystems>,
    /// The devices that were met, and whether Lustre is on them.
    devices: HashMap<u64, bool>,
    path: Vec<u8>,
    value: Vec<u8>,
}

impl Default for LayoutReader {
    fn default() -> LayoutReader {
        LayoutReader::new(Box::new(Mounted))
    }
}

impl LayoutReader {
    /// Creates a reader that asks these file systems.
    pub fn new(file_systems: Box<dyn FileSystems>) -> LayoutReader {
        LayoutReader {
            file_systems,
            devices: HashMap::new(),
            path: Vec::new(),
            value: vec![0; VALUE_BYTES_MAX],
        }
    }

    /// Returns the layout of an entry; `None` if it has none: it is no regular file, not on Lustre, or has no objects yet. The
    /// entry's metadata must be known.
    ///
    /// # Errors
    /// The error number of the system, or `BADMSG` if the answer cannot be understood.
    pub fn read<S>(&mut self, entry: &Entry<'_, S>) -> Result<Option<Layout>, Errno> {
        let Some(metadata) = entry.metadata.filter(|_| entry.kind == FileKind::File) else { return Ok(None) };
        let known = self.devices.get(&metadata.device()).copied();
        if known == Some(false) {
            return Ok(None);
        }
        self.path.clear();
        if entry.directory.is_some() {
            self.path.extend_from_slice(folder(entry.parent()).as_bytes());
        }
        self.path.extend_from_slice(entry.name.to_bytes());
        if known.is_none() {
            let lustre = self.file_systems.kind(&self.path).map_err(vanished_or_not)? == LUSTRE;
            self.devices.insert(metadata.device(), lustre);
            if !lustre {
                return Ok(None);
            }
        }
        match self.file_systems.attribute(&self.path, ATTRIBUTE, &mut self.value) {
            Ok(length) => {
                let value = self.value.get(..length).ok_or(Errno::BADMSG)?;
                parse(value).map_err(|Malformed| Errno::BADMSG)
            }
            Err(Errno::NODATA) => Ok(None),
            Err(errno) => Err(vanished_or_not(errno)),
        }
    }
}

/// Returns the path of an open directory, with a slash at its end: extended attributes are read by paths only.
fn folder(directory: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}/", directory.as_raw_fd())
}

/// Returns the error of an entry that cannot be asked about. Without /proc none can, and nothing has vanished.
fn vanished_or_not(errno: Errno) -> Errno {
    match errno {
        Errno::NOENT if rustix::fs::stat("/proc/self/fd").is_err() => Errno::NOSYS,
        errno => errno,
    }
}

/// The magic numbers of layouts, which programs and servers share: plain ones, those with the name of a pool, those that
/// were created on given OSTs, composite ones, and those of files that are kept elsewhere.
const PLAIN: u32 = 0x0bd1_0bd0;
const POOLED: u32 = 0x0bd3_0bd0;
const SPECIFIC: u32 = 0x0bd5_0bd0;
const COMPOSITE: u32 = 0x0bd6_0bd0;
const FOREIGN: u32 = 0x0bd7_0bd0;

/// The bits of a pattern by which the OSTs hold nothing of a file: it is at a metadata server, or was released by a
/// hierarchical storage manager.
const WITHOUT_OBJECTS: u32 = 0x0000_0100 | 0x8000_0000;

/// The bit of a component that has been given objects.
const INSTANTIATED: u32 = 0x10;

const PLAIN_BYTES: usize = 32;
const POOL_BYTES: usize = 16;
const OBJECT_BYTES: usize = 24;
const COMPOSITE_BYTES: usize = 32;
const COMPONENT_BYTES: usize = 48;

/// Parses the value of the attribute `lustre.lov`, in the byte order of the machine. `None` for a file that is kept elsewhere, or
/// of whose components none has objects.
///
/// ```text
///  plain       magic u32 | pattern u32 | object id 16 | stripe size u32 | stripe count u16 | generation u16
///              | pool 16, not if the magic is that of a plain one
///              | for each stripe: object id 16 | generation u32 | OST u32
///  composite   magic u32 | size u32 | generation u32 | flags u16 | components u16 | 16 unused
///              | for each component: id u32 | flags u32 | extent 16 | offset u32 | size u32 | 16 unused
///              | the components, each a plain layout at its offset
/// ```
///
/// # Errors
/// [`Malformed`] if it is not such a layout.
pub fn parse(bytes: &[u8]) -> Result<Option<Layout>, Malformed> {
    let mut osts = BTreeSet::new();
    let found = match u32_at(bytes, 0)? {
        COMPOSITE => parse_composite(bytes, &mut osts)?,
        _ => parse_plain(bytes, &mut osts)?,
    };
    Ok(found.map(|layout| Layout { osts: osts.into_iter().collect(), ..layout }))
}

/// Parses a composite layout, but for the OSTs, which it adds to a set.
fn parse_composite(bytes: &[u8], osts: &mut BTreeSet<u32>) -> Result<Option<Layout>, Malformed> {
    let components = u16_at(bytes, 14)?;
    // Components do not overlap, so that all of them together are not longer than the whole.
    let mut left = bytes.len();
    let mut last: Option<Layout> = None;
    for number in 0..usize::from(components) {
        let component = COMPOSITE_BYTES + number * COMPONENT_BYTES;
        let (flags, offset, size) =
            (u32_at(bytes, component + 4)?, u32_at(bytes, component + 24)?, u32_at(bytes, component + 28)?);
        if flags & INSTANTIATED == 0 {
            continue;
        }
        let (offset, size) = (offset as usize, size as usize);
        left = left.checked_sub(size).ok_or(Malformed)?;
        let blob = bytes.get(offset..).and_then(|from| from.get(..size)).ok_or(Malformed)?;
        let layout = parse_plain(blob, osts)?;
        let has_objects = layout.as_ref().is_some_and(|layout| layout.stripe_count > 0);
        if has_objects || last.is_none() {
            last = layout.or(last);
        }
    }
    Ok(last)
}

/// Parses a layout that is not composite, but for the OSTs, which it adds to a set.
fn parse_plain(bytes: &[u8], osts: &mut BTreeSet<u32>) -> Result<Option<Layout>, Malformed> {
    let (head_bytes, pool) = match u32_at(bytes, 0)? {
        PLAIN => (PLAIN_BYTES, None),
        POOLED | SPECIFIC => {
            let pool = bytes.get(PLAIN_BYTES..PLAIN_BYTES + POOL_BYTES).ok_or(Malformed)?;
            let pool = pool.split(|byte| *byte == 0).next().filter(|pool| !pool.is_empty());
            (PLAIN_BYTES + POOL_BYTES, pool.map(|pool| String::from_utf8_lossy(pool).into_owned()))
        }
        FOREIGN => return Ok(None),
        _ => return Err(Malformed),
    };
    let (pattern, stripe_size, stripes) = (u32_at(bytes, 4)?, u32_at(bytes, 24)?, u16_at(bytes, 28)?);
    let stripes = if pattern & WITHOUT_OBJECTS == 0 { stripes } else { 0 };
    for stripe in 0..usize::from(stripes) {
        let ost = u32_at(bytes, head_bytes + stripe * OBJECT_BYTES + OBJECT_BYTES - 4)?;
        // The place of an object that was lost.
        if ost != u32::MAX {
            osts.insert(ost);
        }
    }
    Ok(Some(Layout { stripe_count: stripes.into(), stripe_size: stripe_size.into(), pool, osts: Vec::new() }))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Malformed> {
    let bytes = bytes.get(at..).and_then(|from| from.first_chunk()).ok_or(Malformed)?;
    Ok(u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    let bytes = bytes.get(at..).and_then(|from| from.first_chunk()).ok_or(Malformed)?;
    Ok(u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn the_file_system_is_that_of_a_link_and_not_of_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        let kind = |path: &std::path::Path| Mounted.kind(path.as_os_str().as_bytes()).unwrap();
        assert_eq!(kind(&link), kind(folder.path()));
        assert_ne!(kind(&link), kind(std::path::Path::new("/proc")));
    }

    /// Returns a layout that is not composite.
    fn plain(pattern: u32, stripe_size: u32, pool: Option<&str>, osts: &[u32]) -> Vec<u8> {
        let magic = if pool.is_some() { POOLED } else { PLAIN };
        let mut bytes = Vec::new();
        bytes.extend(magic.to_ne_bytes());
        bytes.extend(pattern.to_ne_bytes());
        bytes.extend([7; 16]);
        bytes.extend(stripe_size.to_ne_bytes());
        bytes.extend((osts.len() as u16).to_ne_bytes());
        bytes.extend(0_u16.to_ne_bytes());
        if let Some(pool) = pool {
            bytes.extend(pool.bytes().chain(std::iter::repeat(0)).take(POOL_BYTES));
        }
        for ost in osts {
            bytes.extend([9; 20]);
            bytes.extend(ost.to_ne_bytes());
        }
        bytes
    }

    /// Returns a composite layout of components with their flags.
    fn composite(components: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(COMPOSITE.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend((components.len() as u16).to_ne_bytes());
        bytes.resize(COMPOSITE_BYTES, 0);
        let mut offset = COMPOSITE_BYTES + components.len() * COMPONENT_BYTES;
        for (number, (flags, blob)) in components.iter().enumerate() {
            bytes.extend((number as u32 + 1).to_ne_bytes());
            bytes.extend(flags.to_ne_bytes());
            bytes.extend([0; 16]);
            bytes.extend((offset as u32).to_ne_bytes());
            bytes.extend((blob.len() as u32).to_ne_bytes());
            bytes.extend([0; 16]);
            offset += blob.len();
        }
        components.iter().for_each(|(_, blob)| bytes.extend(blob));
        bytes
    }

    fn layout(stripe_count: u32, stripe_size: u64, pool: Option<&str>, osts: &[u32]) -> Layout {
        Layout { stripe_count, stripe_size, pool: pool.map(str::to_owned), osts: osts.to_vec() }
    }

    #[test]
    fn plain_layouts_give_stripes_pool_and_osts() {
        let parsed = |bytes: &[u8]| parse(bytes).unwrap().unwrap();
        assert_eq!(parsed(&plain(1, 1 << 20, None, &[7])), layout(1, 1 << 20, None, &[7]));
        assert_eq!(parsed(&plain(1, 4096, Some("flash"), &[9, 2])), layout(2, 4096, Some("flash"), &[2, 9]));
        assert_eq!(parsed(&plain(1, 4096, Some(""), &[3])), layout(1, 4096, None, &[3]));
        // An object that was lost is on no OST.
        assert_eq!(parsed(&plain(1, 4096, None, &[3, u32::MAX])), layout(2, 4096, None, &[3]));
        // Released, and at a metadata server.
        for pattern in [0x8000_0001, 0x100] {
            assert_eq!(parsed(&plain(pattern, 4096, None, &[3])), layout(0, 4096, None, &[]));
        }
    }

    #[test]
    fn a_composite_layout_has_the_osts_of_all_components_with_objects() {
        let components = [
            (INSTANTIATED, plain(0x100, 1 << 16, None, &[])),
            (INSTANTIATED, plain(1, 1 << 20, None, &[4])),
            (INSTANTIATED, plain(1, 4 << 20, Some("disk"), &[4, 1, 8])),
            (0, plain(1, 16 << 20, None, &[5])),
        ];
        assert_eq!(
            parse(&composite(&components)).unwrap(),
            Some(layout(3, 4 << 20, Some("disk"), &[1, 4, 8]))
        );
        assert_eq!(parse(&composite(&components[..1])).unwrap(), Some(layout(0, 1 << 16, None, &[])));
        assert_eq!(parse(&composite(&components[3..])), Ok(None));
        assert_eq!(parse(&FOREIGN.to_ne_bytes()), Ok(None));
    }

    #[test]
    fn what_is_no_layout_is_malformed_and_nothing_is_read_beyond_it() {
        let sound = [
            plain(1, 4096, Some("flash"), &[1, 2]),
            composite(&[(INSTANTIATED, plain(1, 1, None, &[1])), (INSTANTIATED, plain(1, 1, None, &[2]))]),
        ];
        for bytes in &sound {
            assert!(parse(bytes).is_ok());
            for length in 0..bytes.len() {
                assert_eq!(parse(&bytes[..length]), Err(Malformed), "{length} of {}", bytes.len());
            }
            for at in 0..bytes.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut bytes = bytes.clone();
                    bytes[at] = value;
                    let osts = parse(&bytes).ok().flatten().map_or(0, |layout| layout.osts.len());
                    assert!(osts <= bytes.len() / OBJECT_BYTES);
                }
            }
        }
        assert_eq!(parse(b"any other value"), Err(Malformed));
        // Components that share their bytes would be longer than the whole.
        let mut overlapping = composite(&vec![(INSTANTIATED, plain(1, 1, None, &[1, 2, 3])); 20]);
        let first = (COMPOSITE_BYTES + 20 * COMPONENT_BYTES) as u32;
        let length = overlapping.len() as u32 - first;
        for number in 0..20 {
            let at = COMPOSITE_BYTES + number * COMPONENT_BYTES + 24;
            overlapping[at..at + 4].copy_from_slice(&first.to_ne_bytes());
            overlapping[at + 4..at + 8].copy_from_slice(&length.to_ne_bytes());
        }
        assert_eq!(parse(&overlapping), Err(Malformed));
    }
}
