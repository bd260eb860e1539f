//! An entry of a directory as a visitor sees it, with its metadata.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::directory::{self, Directory};
use crate::lustre::Layout;

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; it is never followed.
    Link,
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A type that this program does not know.
    Unknown,
}

impl FileKind {
    /// Converts the type in a directory's record; `None` where the file system does not give it.
    pub(crate) fn from_directory(kind: u8) -> Option<FileKind> {
        Some(match kind {
            libc::DT_REG => FileKind::File,
            libc::DT_DIR => FileKind::Directory,
            libc::DT_LNK => FileKind::Link,
            libc::DT_FIFO => FileKind::Pipe,
            libc::DT_SOCK => FileKind::Socket,
            libc::DT_CHR => FileKind::CharacterDevice,
            libc::DT_BLK => FileKind::BlockDevice,
            _ => return None,
        })
    }

    fn from_mode(mode: u32) -> FileKind {
        match mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::File,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Link,
            libc::S_IFIFO => FileKind::Pipe,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharacterDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            _ => FileKind::Unknown,
        }
    }

    /// Returns the bits that stand for it in a mode; none if it is unknown.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => libc::S_IFREG,
            FileKind::Directory => libc::S_IFDIR,
            FileKind::Link => libc::S_IFLNK,
            FileKind::Pipe => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
            FileKind::CharacterDevice => libc::S_IFCHR,
            FileKind::BlockDevice => libc::S_IFBLK,
            FileKind::Unknown => 0,
        }
    }

    /// Returns the letter that `find -type` and `ls -l` use for it.
    pub fn letter(self) -> char {
        match self {
            FileKind::File => 'f',
            FileKind::Directory => 'd',
            FileKind::Link => 'l',
            FileKind::Pipe => 'p',
            FileKind::Socket => 's',
            FileKind::CharacterDevice => 'c',
            FileKind::BlockDevice => 'b',
            FileKind::Unknown => '?',
        }
    }
}

/// A time in seconds and nanoseconds since the epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Time {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// The fraction in nanoseconds, below 10^9.
    pub nanoseconds: u32,
}

impl Time {
    /// Returns the time that is so many nanoseconds after the epoch, or before it.
    pub fn from_nanoseconds(nanoseconds: i64) -> Time {
        Time {
            seconds: nanoseconds.div_euclid(1_000_000_000),
            nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as u32,
        }
    }
}

/// The attributes of an inode that is in no file system of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Inode {
    /// The number.
    pub number: u64,
    /// The type.
    pub kind: FileKind,
    /// The permission bits.
    pub mode: u32,
    /// The number of hard links.
    pub links: u32,
    /// The owner's user number.
    pub user: u32,
    /// The group's number.
    pub group: u32,
    /// The size in bytes, which is also the space that it takes.
    pub size: u64,
    /// The time of the last access.
    pub accessed: Time,
    /// The time of the last change of the contents.
    pub modified: Time,
    /// The time of the last change of the contents or metadata.
    pub changed: Time,
}

/// The `statx` result for an entry.
#[derive(Clone, Copy, Debug)]
pub struct Metadata(pub Statx);

impl Metadata {
    /// Returns the metadata of an inode that is in no file system of this machine. It is on no device.
    ///
    /// # Errors
    /// The error number of the system, whose result for another file this one is made of.
    pub fn of(inode: &Inode) -> Result<Metadata, Errno> {
        static TEMPLATE: OnceLock<Statx> = OnceLock::new();
        let mut stat = match TEMPLATE.get() {
            Some(template) => *template,
            None => {
                let root =
                    rustix::fs::statx(rustix::fs::CWD, c"/", AtFlags::empty(), StatxFlags::BASIC_STATS)?;
                *TEMPLATE.get_or_init(|| root)
            }
        };
        stat.stx_attributes = StatxAttributes::empty();
        stat.stx_mode = (inode.kind.mode_bits() | inode.mode & 0o7777) as u16;
        (stat.stx_ino, stat.stx_nlink) = (inode.number, inode.links);
        (stat.stx_uid, stat.stx_gid) = (inode.user, inode.group);
        (stat.stx_size, stat.stx_blocks) = (inode.size, inode.size.div_ceil(512));
        (stat.stx_dev_major, stat.stx_dev_minor) = (0, 0);
        (stat.stx_rdev_major, stat.stx_rdev_minor) = (0, 0);
        stat.stx_mnt_id = 0;
        for (to, time) in [
            (&mut stat.stx_atime, inode.accessed),
            (&mut stat.stx_mtime, inode.modified),
            (&mut stat.stx_ctime, inode.changed),
        ] {
            (to.tv_sec, to.tv_nsec) = (time.seconds, time.nanoseconds);
        }
        Ok(Metadata(stat))
    }

    /// Returns the type.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode())
    }

    /// Returns the type and permission bits.
    pub fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode)
    }

    /// Returns the apparent size in bytes.
    pub fn size(&self) -> u64 {
        self.0.stx_size
    }

    /// Returns the space allocated on the device, in bytes.
    pub fn allocated(&self) -> u64 {
        self.0.stx_blocks.saturating_mul(512)
    }

    /// Returns the number of hard links.
    pub fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    /// Returns the owner's user number.
    pub fn user(&self) -> u32 {
        self.0.stx_uid
    }

    /// Returns the group's number.
    pub fn group(&self) -> u32 {
        self.0.stx_gid
    }

    /// Returns the inode number, unique on its device.
    pub fn inode(&self) -> u64 {
        self.0.stx_ino
    }

    /// Returns the number of the device that holds it.
    pub fn device(&self) -> u64 {
        libc::makedev(self.0.stx_dev_major, self.0.stx_dev_minor)
    }

    /// Returns the device number of a device file.
    pub fn special_device(&self) -> u64 {
        libc::makedev(self.0.stx_rdev_major, self.0.stx_rdev_minor)
    }

    /// Returns the time of the last access, as far as the file system keeps it.
    pub fn accessed(&self) -> Time {
        Time { seconds: self.0.stx_atime.tv_sec, nanoseconds: self.0.stx_atime.tv_nsec }
    }

    /// Returns the time of the last change of the contents.
    pub fn modified(&self) -> Time {
        Time { seconds: self.0.stx_mtime.tv_sec, nanoseconds: self.0.stx_mtime.tv_nsec }
    }

    /// Returns the time of the last change of the contents or metadata.
    pub fn changed(&self) -> Time {
        Time { seconds: self.0.stx_ctime.tv_sec, nanoseconds: self.0.stx_ctime.tv_nsec }
    }

    /// Returns whether another file system, or another part of this one, begins here, or would be mounted if the
    /// directory were opened.
    pub fn is_mount_point(&self) -> bool {
        self.0.stx_attributes.intersects(StatxAttributes::MOUNT_ROOT | StatxAttributes::AUTOMOUNT)
    }
}

/// An entry, as it is passed to a visitor.
#[derive(derive_more::Debug)]
#[debug("Entry")]
pub struct Entry<'a, S> {
    /// The parent directory; `None` for a root.
    pub directory: Option<&'a Directory<S>>,
    /// The parent directory's descriptor; `None` for a root.
    pub(crate) descriptor: Option<BorrowedFd<'a>>,
    /// The parent directory's path, computed on first use.
    pub(crate) prefix: &'a std::cell::OnceCell<Vec<u8>>,
    /// The name; for a root, the whole path as it was given.
    pub name: &'a CStr,
    /// The type.
    pub kind: FileKind,
    /// The inode number. Without metadata, that of a mount point is of the directory below the mount.
    pub inode: u64,
    /// The metadata; `None` if the walk runs without it.
    pub metadata: Option<&'a Metadata>,
    /// The layout on Lustre, if it was asked for and the entry has one.
    pub layout: Option<&'a Layout>,
    /// The number of the root that it was found below.
    pub root: u32,
    /// The number of levels below the root; 0 for the root itself.
    pub depth: u32,
}

impl<S> Entry<'_, S> {
    /// Appends its path, beginning with that of the root as it was given, to `path`.
    pub fn write_path(&self, path: &mut Vec<u8>) {
        if let Some(directory) = self.directory {
            path.extend_from_slice(self.prefix.get_or_init(|| {
                let mut prefix = directory.path_bytes();
                if prefix.last() != Some(&b'/') {
                    prefix.push(b'/');
                }
                prefix
            }));
        }
        path.extend_from_slice(self.name.to_bytes());
    }

    /// Returns its path, beginning with that of the root as it was given.
    pub fn path(&self) -> PathBuf {
        let mut path = Vec::new();
        self.write_path(&mut path);
        PathBuf::from(OsStr::from_bytes(&path))
    }

    /// Returns its path below the root; empty for the root.
    pub fn path_below_root(&self) -> PathBuf {
        let Some(directory) = self.directory else { return PathBuf::new() };
        let mut path = directory.path_below_root();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(self.name.to_bytes());
        PathBuf::from(OsString::from_vec(path))
    }

    /// Reads its metadata, in a walk that runs without.
    ///
    /// # Errors
    /// The error number of the system.
    pub fn stat(&self) -> Result<Metadata, Errno> {
        let stat = match self.directory {
            Some(directory) => directory.stat_entry(self.parent(), self.name),
            None => directory::stat(self.parent(), self.name),
        };
        stat.map(Metadata)
    }

    /// Returns the descriptor in which to look up [`Entry::name`]: that of the open directory, or of the working
    /// directory for a root.
    pub fn parent(&self) -> BorrowedFd<'_> {
        self.descriptor.unwrap_or(rustix::fs::CWD)
    }
}
