//! What a visitor is shown: an entry of a directory, with its metadata.

use crate::directory::Directory;
use rustix::fs::{Statx, StatxAttributes};
use std::ffi::{CStr, OsStr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; what it points to is none of the walk's business.
    Link,
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// Something that this program does not know.
    Unknown,
}

impl Kind {
    /// By the type in a directory's record; `None` where the file system does not say.
    pub(crate) fn from_directory(kind: u8) -> Option<Kind> {
        Some(match kind {
            libc::DT_REG => Kind::File,
            libc::DT_DIR => Kind::Directory,
            libc::DT_LNK => Kind::Link,
            libc::DT_FIFO => Kind::Pipe,
            libc::DT_SOCK => Kind::Socket,
            libc::DT_CHR => Kind::CharacterDevice,
            libc::DT_BLK => Kind::BlockDevice,
            _ => return None,
        })
    }

    fn from_mode(mode: u32) -> Kind {
        match mode & libc::S_IFMT {
            libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFLNK => Kind::Link,
            libc::S_IFIFO => Kind::Pipe,
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFCHR => Kind::CharacterDevice,
            libc::S_IFBLK => Kind::BlockDevice,
            _ => Kind::Unknown,
        }
    }

    /// The letter that `find -type` and `ls -l` know it by.
    pub fn letter(self) -> char {
        match self {
            Kind::File => 'f',
            Kind::Directory => 'd',
            Kind::Link => 'l',
            Kind::Pipe => 'p',
            Kind::Socket => 's',
            Kind::CharacterDevice => 'c',
            Kind::BlockDevice => 'b',
            Kind::Unknown => '?',
        }
    }
}

/// Seconds and nanoseconds since the epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Time {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// The rest, below 10^9.
    pub nanoseconds: u32,
}

/// What `statx` says of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Metadata(pub(crate) Statx);

impl Metadata {
    /// What it is.
    pub fn kind(&self) -> Kind {
        Kind::from_mode(self.mode())
    }

    /// Type and permission bits.
    pub fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode)
    }

    /// Apparent size in bytes.
    pub fn size(&self) -> u64 {
        self.0.stx_size
    }

    /// Bytes that it takes on its device.
    pub fn allocated(&self) -> u64 {
        self.0.stx_blocks.saturating_mul(512)
    }

    /// Number of hard links.
    pub fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    /// Number of the owner.
    pub fn user(&self) -> u32 {
        self.0.stx_uid
    }

    /// Number of the group.
    pub fn group(&self) -> u32 {
        self.0.stx_gid
    }

    /// Number of the inode, unique on its device.
    pub fn inode(&self) -> u64 {
        self.0.stx_ino
    }

    /// Number of the device that it lies on.
    pub fn device(&self) -> u64 {
        libc::makedev(self.0.stx_dev_major, self.0.stx_dev_minor)
    }

    /// For a device: its number.
    pub fn special_device(&self) -> u64 {
        libc::makedev(self.0.stx_rdev_major, self.0.stx_rdev_minor)
    }

    /// When it was read last, as far as the file system keeps it.
    pub fn accessed(&self) -> Time {
        Time { seconds: self.0.stx_atime.tv_sec, nanoseconds: self.0.stx_atime.tv_nsec }
    }

    /// When its contents changed last.
    pub fn modified(&self) -> Time {
        Time { seconds: self.0.stx_mtime.tv_sec, nanoseconds: self.0.stx_mtime.tv_nsec }
    }

    /// When it or its metadata changed last.
    pub fn changed(&self) -> Time {
        Time { seconds: self.0.stx_ctime.tv_sec, nanoseconds: self.0.stx_ctime.tv_nsec }
    }

    /// Another file system, or another part of this one, begins here, or would be mounted if the directory were opened.
    pub fn is_mount_point(&self) -> bool {
        self.0.stx_attributes.intersects(StatxAttributes::MOUNT_ROOT | StatxAttributes::AUTOMOUNT)
    }
}

/// An entry, as a visitor is shown it.
pub struct Entry<'a, S> {
    /// The directory that it is in; `None` for a root.
    pub directory: Option<&'a Directory<S>>,
    /// That directory, open.
    pub(crate) descriptor: Option<BorrowedFd<'a>>,
    /// That directory's path, once somebody asked.
    pub(crate) prefix: &'a std::cell::OnceCell<Vec<u8>>,
    /// Its name; of a root the whole path as it was given.
    pub name: &'a CStr,
    /// What it is.
    pub kind: Kind,
    /// Number of its inode. Without metadata, that of a mount point is of the directory below the mount.
    pub inode: u64,
    /// The rest; `None` if the walk was told to do without.
    pub metadata: Option<&'a Metadata>,
    /// Which root it was found below.
    pub root: u32,
    /// Levels below the root; 0 for the root itself.
    pub depth: u32,
}

impl<S> Entry<'_, S> {
    /// Its path, beginning with that of the root as it was given, after what `path` holds already.
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

    /// The same in a new buffer.
    pub fn path(&self) -> PathBuf {
        let mut path = Vec::new();
        self.write_path(&mut path);
        PathBuf::from(OsStr::from_bytes(&path))
    }

    /// The descriptor that [`Entry::name`] is to be looked up in: of the open directory, or of the working directory
    /// for a root.
    pub fn parent(&self) -> BorrowedFd<'_> {
        self.descriptor.unwrap_or(rustix::fs::CWD)
    }
}
