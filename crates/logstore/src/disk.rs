//! The disk abstraction: every access to files goes through these two traits.
//!
//! [`FolderDisk`] is a folder of the file system, [`NoDisk`] is for volatile stores, and the
//! simulated disk of the tests (feature `sim`) loses, tears and reorders unsynced writes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use nacre_object::Escaped;
use serde::Serialize;

use crate::page_cache::PageCache;
use crate::space::is_full;
use crate::superblock::{self, SUPERBLOCK};

/// A flat folder of files.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates a file of `bytes` bytes of zeros, with its space reserved; fails if the name exists.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name, replacing any file that has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Returns the names and sizes of all files.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;
    /// Makes creations, renamings and removals durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Returns the size of the volume and the free room on it, if they are known.
    fn volume(&self) -> io::Result<Option<Volume>> {
        Ok(None)
    }
    /// Returns the bytes of files that the disk keeps for itself, and does not list.
    fn own_bytes(&self) -> u64 {
        0
    }
    /// Returns the bytes of the volume that the folder takes with all its contents, as the file system counts them;
    /// `None` if it does not.
    fn allocated_bytes(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Returns the description of a file for messages.
    fn describe(&self, name: &str) -> String {
        name.to_string()
    }
}

/// The origin of the bytes of a read for a check, the worst last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The device, past the page cache.
    #[default]
    Device,
    /// The page cache, which was asked to forget the bytes first: the file system has no direct reads.
    EmptiedCache,
    /// Memory: there is no device.
    Memory,
}

/// The volume of a disk's files, and its free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its size in bytes.
    pub total_bytes: u64,
    /// Bytes that are free.
    pub available_bytes: u64,
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Fills the buffer from an offset on; fails if the file ends before.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Fills the buffer as [`DiskFile::read_at`] does, but returns false rather than wait for a device. The buffer's
    /// contents are then undefined.
    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        self.read_at(offset, buffer).map(|()| true)
    }
    /// Fills the buffer as [`DiskFile::read_at`] does, but with the bytes of the device, as far as possible.
    fn read_device(&self, offset: u64, buffer: &mut [u8]) -> io::Result<Source> {
        self.read_at(offset, buffer).map(|()| Source::Memory)
    }
    /// Writes the parts one after another, from an offset on.
    fn write_at(&self, offset: u64, parts: &[Bytes]) -> io::Result<()>;
    /// Makes all that was written durable.
    fn sync(&self) -> io::Result<()>;
    /// Returns the file's size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Truncates the file to `bytes`, or extends it with the space reserved, and makes that durable.
    fn set_size(&self, bytes: u64) -> io::Result<()>;
}

/// A file whose space is given to the folder's own entries where the volume has none left. Giving a file another name
/// can make a folder larger by a block; without a free one nothing on a full volume could be renamed, and so nothing be
/// freed.
const NAMES_RESERVE: &str = "reserve-names";
/// The size of that file, in bytes; the next constant is the number of bytes taken of it at a time.
const NAMES_RESERVE_BYTES: u64 = 16 << 10;
const NAMES_STEP_BYTES: u64 = 4 << 10;

/// The unit in which `stat` counts blocks.
const STAT_BLOCK_BYTES: u64 = 512;

/// A folder of the file system.
#[derive(derive_more::Debug)]
#[debug("FolderDisk")]
pub struct FolderDisk {
    folder: PathBuf,
    /// The folder, kept open for its lock and to sync its names.
    handle: File,
    /// True if files are opened for writing too.
    is_writable: bool,
}

impl FolderDisk {
    /// Opens the folder of a store, and locks it. If there is no store and `create` is set, opens an empty folder, or
    /// makes the folder.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if another process has it; `NotFound` if there is no store, and none was to be made;
    /// `AlreadyExists` if a store was to be made, but the folder holds other files.
    pub fn open(folder: &Path, create: bool) -> io::Result<Self> {
        if create {
            create_folder(folder)?;
        }
        Self::lock(folder, create, true)
    }

    /// Opens the folder of a store read-only, and locks it. Files are opened for reading only.
    ///
    /// # Errors
    ///
    /// Those of [`FolderDisk::open`] without `create`.
    pub fn open_to_read(folder: &Path) -> io::Result<Self> {
        Self::lock(folder, false, false)
    }

    fn lock(folder: &Path, create: bool, is_writable: bool) -> io::Result<Self> {
        let handle = File::open(folder).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(error.kind(), "there is no such folder"),
            _ => error,
        })?;
        rustix::fs::flock(&handle, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        check_contents(folder, create)?;
        let mode = handle.metadata()?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            tracing::warn!(
                "others have rights in {} (mode {mode:03o}); chmod 700 makes it the owner's alone",
                Escaped::of(folder)
            );
        }
        Ok(Self { folder: folder.to_path_buf(), handle, is_writable })
    }

    /// Makes the reserve for names as large as it should be, if there is room.
    fn keep_names_reserve(&self) {
        let path = self.folder.join(NAMES_RESERVE);
        if fs::metadata(&path).is_ok_and(|metadata| metadata.len() >= NAMES_RESERVE_BYTES) {
            return;
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        if let Err(error) = file.and_then(|file| reserve(&file, NAMES_RESERVE_BYTES)) {
            tracing::debug!("cannot keep {}: {error}", Escaped::of(&path));
        }
    }

    /// Gives some of the reserve for names back to the volume; returns false if nothing is left.
    fn give_names_reserve(&self) -> io::Result<bool> {
        let file = OpenOptions::new().write(true).open(self.folder.join(NAMES_RESERVE))?;
        let Some(left) = file.metadata()?.len().checked_sub(NAMES_STEP_BYTES) else { return Ok(false) };
        file.set_len(left)?;
        // File systems give space out again only when it is certain that it is free.
        file.sync_all()?;
        Ok(true)
    }
}

/// Makes a folder that is accessible to its owner only, with its missing parents, and makes all of their names durable.
fn create_folder(folder: &Path) -> io::Result<()> {
    let parent = match folder.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        // The root is there.
        None => return Ok(()),
    };
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    let mut created = builder.create(folder);
    if created.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        create_folder(parent)?;
        created = builder.create(folder);
    }
    match created {
        Ok(()) => File::open(parent)?.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks that a folder holds a store, or, if one may be made in it, no other files.
fn check_contents(folder: &Path, create: bool) -> io::Result<()> {
    let mut foreign = None;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let shown = name.to_string_lossy();
        // Without the first of these the others are a store that has lost something, which its opening says.
        if shown == SUPERBLOCK || shown.starts_with("segment-") || shown.starts_with("snapshot-") {
            return Ok(());
        }
        // File systems begin with the one; a store that was not finished, with the other.
        if shown != "lost+found" && shown != NAMES_RESERVE && !superblock::is_temporary(&shown) {
            foreign = Some(shown.into_owned());
        }
    }
    match foreign {
        _ if !create => Err(io::Error::new(io::ErrorKind::NotFound, "there is no store in it")),
        None => Ok(()),
        Some(name) => {
            let text = format!(
                "it holds no store, but other files, such as {name}; a store is created only in a new or an \
                 empty folder"
            );
            Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
    }
}

impl Disk for FolderDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(self.is_writable).open(self.folder.join(name))?;
        Ok(Arc::new(FolderFile::new(file)))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.folder.join(name);
        // What a store holds is for its owner, however the process's mask is set.
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        if let Err(error) = reserve(&file, bytes) {
            // Best effort: the error that matters is the first one.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.keep_names_reserve();
        Ok(Arc::new(FolderFile::new(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        loop {
            match fs::rename(self.folder.join(from), self.folder.join(to)) {
                Err(error) if is_full(&error) => match self.give_names_reserve() {
                    Ok(true) => {}
                    _ => return Err(error),
                },
                result => return result,
            }
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))?;
        self.keep_names_reserve();
        Ok(())
    }

    fn own_bytes(&self) -> u64 {
        NAMES_RESERVE_BYTES
    }

    fn allocated_bytes(&self) -> io::Result<Option<u64>> {
        let mut blocks = self.handle.metadata()?.blocks();
        for entry in fs::read_dir(&self.folder)? {
            match entry?.metadata() {
                Ok(metadata) => blocks += metadata.blocks(),
                // It was removed since the folder was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(blocks * STAT_BLOCK_BYTES))
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string()
                && name != NAMES_RESERVE
            {
                files.push((name, entry.metadata()?.len()));
            }
        }
        Ok(files)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn volume(&self) -> io::Result<Option<Volume>> {
        let volume = rustix::fs::fstatvfs(&self.handle)?;
        let bytes = |blocks: u64| blocks.saturating_mul(volume.f_frsize);
        Ok(Some(Volume { total_bytes: bytes(volume.f_blocks), available_bytes: bytes(volume.f_bavail) }))
    }

    fn describe(&self, name: &str) -> String {
        Escaped::of(&self.folder.join(name)).to_string()
    }
}

/// Reserves a file's space, so that a full disk is an error here rather than half-way through a batch. Zeroing it too
/// would spare the first pass over it some work at each sync, but costs writing everything twice: measured on ext4,
/// appends to fresh segments run at half the rate then. Later passes find the blocks written anyway.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => file.sync_all(),
        Err(rustix::io::Errno::OPNOTSUPP) => fill(file, file.metadata()?.len(), bytes),
        Err(error) => Err(error.into()),
    }
}

/// Writes zeros from an offset on, where the file system cannot reserve space otherwise.
fn fill(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut offset = from;
    while offset < bytes {
        let len = (bytes - offset).min(zeros.len() as u64);
        file.write_all_at(&zeros[..len as usize], offset)?;
        offset += len;
    }
    file.sync_all()
}

struct FolderFile {
    file: File,
    /// The file opened again for direct reads, when the first of those is asked for; `None` if the file system has
    /// none.
    direct: OnceLock<Option<File>>,
    cache: PageCache,
}

/// The alignment of direct reads in bytes, in the file and in memory: the largest that devices ask for.
const DIRECT_ALIGNMENT: usize = 4096;
/// The maximum number of bytes read directly at a time.
const DIRECT_BYTES: usize = 1 << 20;

impl FolderFile {
    fn new(file: File) -> Self {
        Self { cache: PageCache::new(&file), file, direct: OnceLock::new() }
    }

    /// Reads directly; returns false if the file system has no direct reads.
    fn read_direct(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        let open = || {
            // By its descriptor, because the file may have got another name since it was opened.
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
            OpenOptions::new().read(true).custom_flags(direct).open(path).ok()
        };
        let Some(direct) = self.direct.get_or_init(open) else { return Ok(false) };
        let mut memory = vec![0; DIRECT_BYTES + DIRECT_ALIGNMENT];
        let shift = memory.as_ptr().align_offset(DIRECT_ALIGNMENT);
        let Some(aligned) = memory.get_mut(shift..shift + DIRECT_BYTES) else { return Ok(false) };
        let end = offset + buffer.len() as u64;
        let mut at = offset;
        while at < end {
            let from = at - at % DIRECT_ALIGNMENT as u64;
            let wanted = ((end - from) as usize).next_multiple_of(DIRECT_ALIGNMENT).min(DIRECT_BYTES);
            let read = match direct.read_at(&mut aligned[..wanted], from) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Some file systems take the flag and refuse the read.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(false),
                Err(error) => return Err(error),
            };
            let skip = (at - from) as usize;
            let len = read.saturating_sub(skip).min((end - at) as usize);
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let target = (at - offset) as usize;
            buffer[target..target + len].copy_from_slice(&aligned[skip..skip + len]);
            at += len as u64;
        }
        Ok(true)
    }
}

impl DiskFile for FolderFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)?;
        self.cache.note(offset, buffer.len());
        Ok(())
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        self.cache.read_now(&self.file, offset, buffer)
    }

    fn read_device(&self, offset: u64, buffer: &mut [u8]) -> io::Result<Source> {
        if self.read_direct(offset, buffer)? {
            return Ok(Source::Device);
        }
        // Only pages that the device has are forgotten.
        self.file.sync_data()?;
        let len = std::num::NonZeroU64::new(buffer.len() as u64);
        rustix::fs::fadvise(&self.file, offset, len, rustix::fs::Advice::DontNeed)?;
        self.read_at(offset, buffer)?;
        Ok(Source::EmptiedCache)
    }

    fn write_at(&self, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        /// The maximum number of slices that the kernel takes at once.
        const SLICES_MAX: usize = 1024;
        let mut offset = offset;
        let mut slices = Vec::with_capacity(parts.len().min(SLICES_MAX));
        for group in parts.chunks(SLICES_MAX) {
            slices.clear();
            slices.extend(group.iter().map(|part| io::IoSlice::new(part)));
            let mut rest = &mut slices[..];
            while !rest.is_empty() {
                let written = match rustix::io::pwritev(&self.file, rest, offset) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => written,
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(error) => return Err(error.into()),
                };
                self.cache.note(offset, written);
                offset += written as u64;
                io::IoSlice::advance_slices(&mut rest, written);
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        let old_bytes = self.file.metadata()?.len();
        if bytes < old_bytes {
            self.file.set_len(bytes)?;
            return self.file.sync_all();
        }
        reserve(&self.file, bytes).inspect_err(|_| {
            // Best effort: what could be reserved in part only is given back. The error that matters is the first one.
            let _ = self.file.set_len(old_bytes);
        })
    }
}

/// No disk: a volatile store has no files.
#[derive(Debug)]
pub struct NoDisk;

impl Disk for NoDisk {
    fn open(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn create(&self, _: &str, _: u64) -> io::Result<Arc<dyn DiskFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        Ok(Vec::new())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }
}
