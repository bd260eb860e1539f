//! A file system of this machine as a side of a copy.
//!
//! Everything is named in its open directory, so that nothing that others rename, or put in the way, leads elsewhere. Calls that do not
//! move contents are made at once, on the thread that is here.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use nacre_tree::Cause;
use nacre_tree::copy::attributes::{Attributes, Named, Preserver};
use nacre_walk::directory::{self, Identity};
use nacre_walk::{FileKind, Metadata};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Take};

use super::side::{Item, PAGE_ENTRIES, Page, Reader, Side, Writer};
use crate::partial::Partial;

/// The number of bytes that are read together.
const READ_BYTES: usize = 1 << 20;

/// A file system of this machine.
pub struct Local {
    keeper: Preserver,
}

impl Local {
    /// Creates a side; `extended` keeps extended attributes.
    pub fn new(extended: bool) -> Local {
        Local { keeper: Preserver::new(extended) }
    }

    /// Returns the directory that a path is in, and the name there. A link at the end of the path is followed if a slash is behind it.
    pub fn locate(path: &Path) -> io::Result<(Rc<OwnedFd>, CString)> {
        let real = match path.file_name() {
            Some(_) if !is_directory_by_name(path) => path.to_owned(),
            _ => path.canonicalize()?,
        };
        let parent = match real.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let (parent, name) = match real.file_name() {
            Some(name) => (parent, name),
            None => (real.as_path(), OsStr::new(".")),
        };
        Ok((open(parent)?, CString::new(name.as_bytes())?))
    }
}

/// Returns whether a path can only be that of a directory.
pub fn is_directory_by_name(path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    matches!(last, b"" | b"." | b"..")
}

/// Opens a directory by its path.
pub fn open(path: &Path) -> io::Result<Rc<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Rc::new(rustix::fs::open(path, flags, Mode::empty())?))
}

fn named<'a>(directory: &'a OwnedFd, name: &'a CStr) -> Named<'a> {
    Named { directory: directory.as_fd(), name }
}

fn cause(error: io::Error) -> Cause {
    error.raw_os_error().map_or_else(|| Cause::Said(error.to_string()), Cause::System)
}

/// Checks the owner of an inode of a store, which anybody may have written.
fn check_owner(metadata: &Metadata) -> Result<(), Cause> {
    match metadata.user() == u32::MAX || metadata.group() == u32::MAX {
        true => Err(Cause::Other("its owner is no number that a user can have")),
        false => Ok(()),
    }
}

impl Side for Local {
    type Directory = Rc<OwnedFd>;
    type Cursor = Dir;
    type Kept = (Vec<u8>, Identity);
    type Reader<'a> = LocalReader;
    type Writer<'a> = LocalWriter<'a>;

    async fn look(&self, directory: &Rc<OwnedFd>, name: &CStr) -> Result<Option<Metadata>, Cause> {
        match directory::stat(directory.as_fd(), name) {
            Ok(stat) => Ok(Some(Metadata(stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    async fn list(&self, directory: &Rc<OwnedFd>, cursor: Option<Dir>) -> Result<Page<Dir>, Cause> {
        let mut listing = match cursor {
            Some(listing) => listing,
            None => Dir::read_from(&**directory)?,
        };
        let mut items = Vec::new();
        while items.len() < PAGE_ENTRIES {
            let Some(entry) = listing.read() else {
                return Ok(Page { items, refused: Vec::new(), next: None });
            };
            let entry = entry?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                items.push(Item { name: name.to_owned(), metadata: None });
            }
        }
        Ok(Page { items, refused: Vec::new(), next: Some(listing) })
    }

    async fn enter(&self, directory: &Rc<OwnedFd>, name: &CStr) -> Result<Rc<OwnedFd>, Cause> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Rc::new(rustix::fs::openat(&**directory, name, flags, Mode::empty())?))
    }

    async fn target(&self, directory: &Rc<OwnedFd>, name: &CStr) -> Result<Vec<u8>, Cause> {
        Ok(rustix::fs::readlinkat(&**directory, name, Vec::new())?.into_bytes())
    }

    async fn extended(&self, directory: &Rc<OwnedFd>, name: &CStr) -> Result<Attributes, Cause> {
        Ok(self.keeper.extended_named(&named(directory, name))?)
    }

    async fn read(&self, directory: &Rc<OwnedFd>, name: &CStr) -> Result<(LocalReader, Metadata), Cause> {
        // A link or a pipe that others have put in its place since it was looked at is neither followed nor waited for. The access time
        // stays as it is where the system lets it.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(&**directory, name, flags, Mode::empty());
        let file = match open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => open(flags)?,
            opened => opened?,
        };
        let metadata = Metadata(directory::stat_opened(file.as_fd())?);
        if metadata.kind() != FileKind::File {
            return Err(Cause::Other("it was replaced meanwhile"));
        }
        // A file of the store itself, where that is in the tree, grows with all that is put. (Those of length 0 may be of the kernel,
        // which does not say how long they are.)
        let length = if metadata.size() == 0 { u64::MAX } else { metadata.size() };
        let file = tokio::fs::File::from_std(File::from(file));
        Ok((LocalReader(file.take(length)), metadata))
    }

    async fn make_directory(&self, directory: &Rc<OwnedFd>, name: &CStr) -> Result<Rc<OwnedFd>, Cause> {
        rustix::fs::mkdirat(&**directory, name, Mode::RWXU)?;
        self.enter(directory, name).await
    }

    async fn make(
        &self,
        directory: &Rc<OwnedFd>,
        name: &CStr,
        kind: FileKind,
        target: &[u8],
    ) -> Result<(), Cause> {
        let made = match kind {
            FileKind::Link => rustix::fs::symlinkat(target, &**directory, name),
            FileKind::Pipe => {
                rustix::fs::mknodat(&**directory, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            }
            _ => Err(Errno::OPNOTSUPP),
        };
        Ok(made?)
    }

    async fn write(
        &self,
        directory: &Rc<OwnedFd>,
        name: &CStr,
        _: Option<&Metadata>,
    ) -> Result<LocalWriter<'_>, Cause> {
        // By way of the descriptor, the path is in the directory that is open, and is short.
        let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
        path.extend_from_slice(name.to_bytes());
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        let partial = Partial::beside(&path).map_err(cause)?;
        rustix::fs::fchmod(partial.file(), Mode::RUSR | Mode::WUSR)?;
        let file = tokio::fs::File::from_std(partial.file().try_clone().map_err(cause)?);
        Ok(LocalWriter { keeper: &self.keeper, partial, file, _directory: Rc::clone(directory) })
    }

    async fn keep(
        &self,
        directory: &Rc<OwnedFd>,
        name: &CStr,
        metadata: &Metadata,
        extended: &Attributes,
    ) -> Result<(), Cause> {
        check_owner(metadata)?;
        Ok(self.keeper.adjust_named(extended, &metadata.0, &named(directory, name))?)
    }

    async fn remove(&self, directory: &Rc<OwnedFd>, name: &CStr) -> Result<(), Cause> {
        Ok(rustix::fs::unlinkat(&**directory, name, AtFlags::empty())?)
    }

    async fn kept(&self, directory: &Rc<OwnedFd>, name: &CStr, path: Vec<u8>) -> Result<Self::Kept, Cause> {
        Ok((path, directory::identity(&directory::stat(directory.as_fd(), name)?)))
    }

    fn is_kept(&self, (_, identity): &Self::Kept, there: &Metadata) -> bool {
        directory::identity(&there.0) == *identity
    }

    async fn link(
        &self,
        top: &Rc<OwnedFd>,
        (path, identity): &Self::Kept,
        directory: &Rc<OwnedFd>,
        name: &CStr,
    ) -> Result<(), Cause> {
        // Descriptors are too few to keep one for each file that has more names.
        let mut within = Rc::clone(top);
        let mut names = path.split(|byte| *byte == b'/');
        let last = names.next_back().unwrap_or_default();
        for component in names {
            let component = CString::new(component).map_err(|_| Errno::INVAL)?;
            within = self.enter(&within, &component).await?;
        }
        let last = CString::new(last).map_err(|_| Errno::INVAL)?;
        if directory::identity(&directory::stat(within.as_fd(), &last)?) != *identity {
            return Err(Cause::Other("the copy under its first name was replaced meanwhile"));
        }
        Ok(rustix::fs::linkat(&*within, &last, &**directory, name, AtFlags::empty())?)
    }
}

/// A file of this machine that is read.
pub struct LocalReader(Take<tokio::fs::File>);

impl Reader for LocalReader {
    async fn next(&mut self) -> Result<Bytes, Cause> {
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        self.0.read_buf(&mut buffer).await.map_err(cause)?;
        Ok(buffer.freeze())
    }

    async fn end(self) {}
}

/// A file of this machine that is written.
pub struct LocalWriter<'a> {
    keeper: &'a Preserver,
    partial: Partial,
    file: tokio::fs::File,
    /// Its path leads through the descriptor.
    _directory: Rc<OwnedFd>,
}

impl Writer for LocalWriter<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        self.file.write_all(bytes).await.map_err(cause)
    }

    async fn commit(mut self, metadata: &Metadata, extended: &Attributes) -> Result<(), Cause> {
        // What is still on its way would change the time after it was set.
        self.file.flush().await.map_err(cause)?;
        check_owner(metadata)?;
        self.keeper.apply_new(extended, &metadata.0, self.partial.file().as_fd())?;
        self.partial.complete().map_err(cause)
    }

    async fn abort(self) -> Option<&'static str> {
        None
    }
}
