//! A file system that passes every call on to a folder of the machine's own: the least that a mount by FUSE costs.
//!
//! It is built on the library that `nacre mount` is built on, and like that tells the kernel to believe nothing for any time. It
//! answers each request in the thread that reads it, without any hand-over. It has the calls of the study and no others: files of one
//! level of directories that are there before.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use nacre_quantity::Escaped;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat, fstat, fsync, openat, renameat, statat, unlinkat};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::BenchError;

/// The time for which the kernel may believe what it was told: none, as with `nacre mount`.
const TTL: Duration = Duration::ZERO;
/// The number of the root, by the kernel's convention.
const ROOT: u64 = 1;

/// The arguments of the hidden command.
#[derive(clap::Args, Clone, Debug)]
pub struct FloorArgs {
    /// Folder that the calls are passed on to
    source: PathBuf,
    /// Folder to mount on
    folder: PathBuf,
}

/// Mounts the file system, says `ready`, and unmounts it at the end of the standard input.
///
/// # Errors
/// Those of the system: there is no FUSE, or the user may not mount.
pub fn main(args: &FloorArgs) -> Result<(), BenchError> {
    // A terminal interrupts all processes of the study. This one ends with its input all the same, or nothing would take the mount away.
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    flag::register(SIGINT, &INTERRUPTED).map_err(BenchError::io("catch signals"))?;
    let floor = Passthrough::new(&args.source)?;
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::FSName("nacre-bench".to_owned()), MountOption::Subtype("passthrough".to_owned())];
    let failed = || BenchError::io(format!("mount on {}", Escaped::of(&args.folder)));
    let session = fuser::spawn_mount(floor, &args.folder, &config).map_err(failed())?;
    println!("ready");
    io::copy(&mut io::stdin(), &mut io::sink()).map_err(BenchError::io("read the standard input"))?;
    session.umount_and_join().map_err(failed())
}

/// An inode that the kernel knows.
struct Node {
    /// The directory and the name by which the kernel found it last.
    parent: u64,
    name: OsString,
    /// The directory itself, if it is one.
    directory: Option<Arc<OwnedFd>>,
    /// The times that the kernel found it, less those that it forgot.
    lookups: u64,
}

/// An entry of a directory.
struct Listed {
    ino: u64,
    kind: FileType,
    name: OsString,
}

struct Passthrough {
    nodes: Mutex<HashMap<u64, Node>>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    /// The listings of open directories, each as it was when it was begun.
    listings: Mutex<HashMap<u64, Arc<Vec<Listed>>>>,
    next: AtomicU64,
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds)
}

fn kind(kind: rustix::fs::FileType) -> FileType {
    match kind {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::Symlink => FileType::Symlink,
        _ => FileType::RegularFile,
    }
}

fn attributes(ino: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec as u32),
        crtime: UNIX_EPOCH,
        kind: kind(rustix::fs::FileType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: 0,
        blksize: 128 << 10,
        flags: 0,
    }
}

impl Passthrough {
    fn new(source: &Path) -> Result<Self, BenchError> {
        let root = File::open(source).map_err(BenchError::io(format!("open {}", Escaped::of(&source))))?;
        let directory = Some(Arc::new(OwnedFd::from(root)));
        let root = Node { parent: ROOT, name: OsString::new(), directory, lookups: 1 };
        Ok(Self {
            nodes: Mutex::new(HashMap::from([(ROOT, root)])),
            files: Mutex::default(),
            listings: Mutex::default(),
            next: AtomicU64::new(1),
        })
    }

    fn directory(&self, ino: INodeNo) -> Result<Arc<OwnedFd>, Errno> {
        let nodes = self.nodes.lock();
        nodes.get(&ino.0).and_then(|node| node.directory.clone()).ok_or(Errno::ENOTDIR)
    }

    /// Notes that the kernel has found an inode, and returns its attributes.
    fn found(&self, parent: INodeNo, name: &OsStr, stat: &Stat) -> Result<FileAttr, Errno> {
        let found = attributes(stat.st_ino, stat);
        let is_directory = found.kind == FileType::Directory;
        let mut nodes = self.nodes.lock();
        match nodes.get_mut(&found.ino.0) {
            Some(node) => {
                node.lookups += 1;
                if node.parent != parent.0 || node.name != name {
                    (node.parent, node.name) = (parent.0, name.to_owned());
                }
            }
            None => {
                let directory = match is_directory {
                    true => {
                        let parent = nodes.get(&parent.0).and_then(|node| node.directory.clone());
                        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                        let parent = parent.ok_or(Errno::ENOTDIR)?;
                        Some(Arc::new(openat(&*parent, name, flags, Mode::empty()).map_err(errno)?))
                    }
                    false => None,
                };
                let node = Node { parent: parent.0, name: name.to_owned(), directory, lookups: 1 };
                nodes.insert(found.ino.0, node);
            }
        }
        Ok(found)
    }

    /// Returns a directory, and a name in it, by which an inode is reached; no name if it is the directory.
    fn place(&self, ino: INodeNo) -> Result<(Arc<OwnedFd>, Option<OsString>), Errno> {
        let nodes = self.nodes.lock();
        let node = nodes.get(&ino.0).ok_or(Errno::ENOENT)?;
        if let Some(directory) = &node.directory {
            return Ok((directory.clone(), None));
        }
        let parent = nodes.get(&node.parent).and_then(|parent| parent.directory.clone());
        Ok((parent.ok_or(Errno::ENOENT)?, Some(node.name.clone())))
    }

    fn stat(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        let stat = match self.place(ino)? {
            (directory, None) => fstat(&*directory),
            (directory, Some(name)) => statat(&*directory, &name, AtFlags::SYMLINK_NOFOLLOW),
        };
        Ok(attributes(ino.0, &stat.map_err(errno)?))
    }

    fn look_up(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let directory = self.directory(parent)?;
        let stat = statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)?;
        self.found(parent, name, &stat)
    }

    /// Opens a file, and returns its handle.
    fn open_at(
        &self,
        directory: impl AsFd,
        name: &OsStr,
        flags: OFlags,
        mode: u32,
    ) -> Result<(FileHandle, Arc<File>), Errno> {
        let opened = openat(directory, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode));
        let file = Arc::new(File::from(opened.map_err(errno)?));
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.files.lock().insert(handle, file.clone());
        Ok((FileHandle(handle), file))
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<File>, Errno> {
        self.files.lock().get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    fn list(&self, ino: INodeNo) -> Result<Vec<Listed>, Errno> {
        let directory = self.directory(ino)?;
        let mut listing = Vec::new();
        for entry in Dir::read_from(&*directory).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            listing.push(Listed { ino: entry.ino(), kind: kind(entry.file_type()), name });
        }
        Ok(listing)
    }
}

fn answer(done: rustix::io::Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

impl Filesystem for Passthrough {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(parent, name) {
            Ok(found) => reply.entry(&TTL, &found, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get_mut(&ino.0) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 && ino.0 != ROOT {
                nodes.remove(&ino.0);
            }
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.stat(ino) {
            Ok(found) => reply.attr(&TTL, &found),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let create = || {
            let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CREATE;
            let directory = self.directory(parent)?;
            let (handle, file) = self.open_at(&*directory, name, flags, mode & 0o7777 & !umask)?;
            let stat = fstat(&*file).map_err(errno)?;
            Ok::<_, Errno>((handle, self.found(parent, name, &stat)?))
        };
        match create() {
            Ok((handle, found)) => reply.created(&TTL, &found, Generation(0), handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let open = || {
            let (directory, name) = self.place(ino)?;
            let name = name.ok_or(Errno::EISDIR)?;
            self.open_at(&*directory, &name, OFlags::from_bits_retain(flags.0 as u32), 0)
        };
        match open() {
            Ok((handle, _)) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = || {
            let (file, mut buffer) = (self.file(handle)?, vec![0; size as usize]);
            let mut filled = 0;
            while filled < buffer.len() {
                match file.read_at(&mut buffer[filled..], offset + filled as u64)? {
                    0 => break,
                    read => filled += read,
                }
            }
            buffer.truncate(filled);
            Ok::<_, Errno>(buffer)
        };
        match read() {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let file = self.file(handle);
        match file.and_then(|file| file.write_all_at(data, offset).map_err(Errno::from)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.file(handle) {
            Ok(file) => answer(fsync(&*file), reply),
            Err(error) => reply.error(error),
        }
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.directory(ino) {
            Ok(directory) => answer(fsync(&*directory), reply),
            Err(error) => reply.error(error),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.files.lock().remove(&handle.0);
        reply.ok();
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.directory(parent) {
            Ok(directory) => answer(unlinkat(&*directory, name, AtFlags::empty()), reply),
            Err(error) => reply.error(error),
        }
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        // The kernel looks the new name up before it asks for the inode again.
        match (self.directory(parent), self.directory(to)) {
            (Ok(from), Ok(to)) => answer(renameat(&*from, name, &*to, new), reply),
            (Err(error), _) | (_, Err(error)) => reply.error(error),
        }
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.next.fetch_add(1, Ordering::Relaxed)), FopenFlags::empty());
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let known = self.listings.lock().get(&handle.0).cloned();
        let listing = match known {
            Some(listing) if offset > 0 => listing,
            _ => match self.list(ino) {
                Ok(listing) => {
                    let listing = Arc::new(listing);
                    self.listings.lock().insert(handle.0, listing.clone());
                    listing
                }
                Err(error) => return reply.error(error),
            },
        };
        for (index, listed) in listing.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(listed.ino), index as u64 + 1, listed.kind, &listed.name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.listings.lock().remove(&handle.0);
        reply.ok();
    }
}
