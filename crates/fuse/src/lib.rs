//! The namespace of a store as a mounted file system, by FUSE.
//!
//! The kernel caches nothing but what it has read of a file between its opening and its closing, unless [`Options::cache`] is set:
//! it asks for entries and attributes each time they are needed, so changes by others show at once. The rank's store may know the
//! answer, and then it is given by the thread that reads the kernel's requests. Where one name after the other is looked up in a
//! directory, that is read ahead. Permissions are judged by the rank, for the user and the groups of the process that calls; with a cache
//! by the kernel too, which then finds entries without asking.

#![forbid(unsafe_code)]

mod ahead;
mod convert;
mod listing;
mod lock;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, Config, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, SessionACL, TimeOrNow, WriteFlags,
};
use nacre::lock::Mode;
use nacre_meta::inode::{Ino, InodeKind};
use nacre_meta::{
    Attributes, Creation, Credentials, Error, Limits, READ, Rank, SetAttributes, SetTime, Usage, WRITE,
};
use nix::mount::{MntFlags, umount2};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::ahead::Walks;
use crate::convert::{attributes, file_type, nanoseconds};
use crate::listing::Listing;
pub use crate::lock::SharedLocks;
use crate::lock::{Piece, between};

/// The unit in which room is counted.
const BLOCK_BYTES: u64 = 512;
/// The number of blocks, and of files, that there seems to be room for where nobody knows.
const ROOM: u64 = 1 << 43;
const O_ACCMODE: i32 = 3;
const O_WRONLY: i32 = 1;
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;
const O_APPEND: i32 = 0o2000;
const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
const F_UNLCK: i32 = 2;
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

/// The choices of who mounts.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The name that the list of mounts shows.
    pub source: String,
    /// True if all users may come in, not only the one who mounted it.
    pub others: bool,
    /// True if nothing may be changed by way of this mount.
    pub read_only: bool,
    /// The time for which the kernel may believe what it was told of entries and attributes. What others change shows when it is over.
    pub cache: Duration,
    /// The locks that hold between mounts; without them, locks hold between the processes of this mount. Of one mount each.
    pub locks: Option<Arc<SharedLocks>>,
}

/// A mounted namespace. It is unmounted when this is dropped.
#[derive(derive_more::Debug)]
#[debug("Mount")]
pub struct Mount(fuser::BackgroundSession);

impl Mount {
    /// Mounts a namespace on a folder. Calls are made in the runtime of `handle`, which must have threads of its own.
    ///
    /// # Errors
    /// Those of the operating system: there is no FUSE, or the user may not mount.
    pub fn new(rank: Arc<Rank>, folder: &Path, options: &Options, handle: Handle) -> io::Result<Mount> {
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::FSName(options.source.clone()), MountOption::Subtype("nacre".to_owned())];
        if options.read_only {
            config.mount_options.push(MountOption::RO);
        }
        if !options.cache.is_zero() {
            // Who finds an entry in the kernel's cache has not been asked for the right to look it up.
            config.mount_options.push(MountOption::DefaultPermissions);
        }
        config.acl = if options.others { SessionACL::All } else { SessionACL::Owner };
        let calls = Arc::new(Calls { locks: options.locks.clone(), ..Calls::new(rank, options.cache) });
        let mount = fuser::spawn_mount(Bridge { calls, handle }, folder, &config)?;
        if let Some(locks) = &options.locks {
            locks.attach(mount.notifier());
        }
        Ok(Mount(mount))
    }

    /// Waits until it is unmounted and nobody uses it any more.
    ///
    /// # Errors
    /// Those of the connection to the kernel.
    pub fn wait(self) -> io::Result<()> {
        self.0.join()
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// Those of the operating system, such as that a process is in it.
    pub fn unmount(self) -> io::Result<()> {
        self.0.umount_and_join()
    }
}

/// Takes a mount off its folder at once. Processes that are in it, or have files open, may go on with them; the mount ends
/// with the last of them.
///
/// # Errors
/// Those of the operating system, or of `fusermount3`, by which users other than root unmount.
pub fn detach(folder: &Path) -> io::Result<()> {
    match umount2(folder, MntFlags::MNT_DETACH) {
        Err(nix::errno::Errno::EPERM) => {
            let done = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(folder).output()?;
            match done.status.success() {
                true => Ok(()),
                false => Err(io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned())),
            }
        }
        done => Ok(done?),
    }
}

/// The state that calls share.
struct Calls {
    rank: Arc<Rank>,
    /// The time for which the kernel may believe what it was told.
    ttl: Duration,
    /// The listings of open directories.
    listings: Mutex<HashMap<u64, Listing>>,
    /// The directories in which names are looked up.
    walks: Walks,
    /// The handle of the next file or directory that is opened.
    next: AtomicU64,
    locks: Option<Arc<SharedLocks>>,
}

/// Takes the kernel's requests, and answers each from a task of its own, unless the answer is there at once.
struct Bridge {
    calls: Arc<Calls>,
    handle: Handle,
}

impl Bridge {
    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, call: impl FnOnce(Arc<Calls>) -> F) {
        self.handle.spawn(call(self.calls.clone()));
    }

    /// Answers a request that changes nothing. If the answer is known, it costs no way to another thread and back. Returns whether the
    /// answer has to be waited for.
    fn answer<F: Future<Output = ()> + Send + 'static>(&self, call: impl FnOnce(Arc<Calls>) -> F) -> bool {
        let mut call = Box::pin(call(self.calls.clone()));
        let _in_runtime = self.handle.enter();
        // A task looks again at what is not there yet before it waits for it.
        let waits = call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        if waits {
            self.handle.spawn(call);
        }
        waits
    }

    /// Notes a look-up, and reads ahead if it is one of many.
    fn looked_up(&self, directory: Ino, name: &Bytes, waited: bool) {
        let Some(ahead) = self.calls.walks.looked_up(directory, name, waited) else { return };
        self.spawn(|calls| async move {
            // A look-up that fails for the same reason says so.
            let read = calls.rank.read_ahead(directory, &ahead.after, ahead.limit).await;
            let (names, end) = read.unwrap_or_default();
            calls.walks.read(directory, names, end);
        });
    }

    /// Notes that entries of a directory are about to be changed.
    fn changes(&self, directory: INodeNo) {
        self.calls.walks.changed(Ino(directory.0));
    }
}

/// Returns the user of a request, with all groups of the process that makes it. Those of root decide nothing, so no file is read
/// for them.
fn user(request: &Request) -> Credentials {
    if request.uid() == Credentials::root().uid {
        return Credentials::new(request.uid(), request.gid());
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", request.pid())).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    let groups = groups.split_whitespace().filter_map(|group| group.parse().ok()).collect();
    Credentials { uid: request.uid(), gid: request.gid(), groups }
}

fn errno(error: Error) -> Errno {
    Errno::from_i32(error.errno())
}

fn answer_empty(result: Result<(), Error>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_xattr(result: Result<Bytes, Error>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno(error)),
    }
}

fn bytes(name: &OsStr) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn rights(flags: i32) -> u32 {
    match flags & O_ACCMODE {
        0 => READ,
        O_WRONLY => WRITE,
        _ => READ | WRITE,
    }
}

/// Returns the mode of a lock that is asked for; none if it is to be given up.
fn lock_mode(kind: i32) -> Option<Mode> {
    match kind {
        F_RDLCK => Some(Mode::Shared),
        F_WRLCK => Some(Mode::Exclusive),
        _ => None,
    }
}

impl Filesystem for Bridge {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if self.calls.locks.is_none() {
            return Ok(());
        }
        let locks = InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
        config.add_capabilities(locks).map_err(|_| io::Error::other("the kernel hands no locks over to FUSE"))
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (user, name) = (user(request), bytes(name));
        let (directory, looked_up) = (Ino(parent.0), name.clone());
        let waited = self.answer(|calls| async move {
            let found = match &name[..] {
                b"." => calls.rank.stat(directory).await,
                _ => calls.rank.lookup(&user, directory, &name).await,
            };
            calls.answer_entry(found, reply);
        });
        self.looked_up(directory, &looked_up, waited);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(|calls| async move {
            calls.answer_attributes(calls.rank.stat(Ino(ino.0)).await, reply);
        });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if size.is_some() && file.is_some_and(|file| !self.calls.may_use(file)) {
            return reply.error(Errno::EIO);
        }
        let user = user(request);
        let set_time = |time| match time {
            TimeOrNow::Now => SetTime::Now,
            TimeOrNow::SpecificTime(time) => SetTime::To(nanoseconds(time)),
        };
        let set = SetAttributes {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            layout: None,
        };
        self.spawn(|calls| async move {
            let ino = Ino(ino.0);
            let done = async {
                if let Some(size) = size {
                    // Who has opened the file for writing may go on with it whatever its permissions are now.
                    let credentials = if file.is_some() { Credentials::root() } else { user.clone() };
                    calls.rank.truncate(&credentials, ino, size).await?;
                }
                match set == SetAttributes::default() {
                    true => calls.rank.stat(ino).await,
                    false => calls.rank.set_attributes(&user, ino, &set).await,
                }
            };
            calls.answer_attributes(done.await, reply);
        });
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.answer(|calls| async move {
            match calls.rank.stat(Ino(ino.0)).await {
                Ok(found) => reply.data(&found.target),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        self.changes(parent);
        let (user, name) = (user(request), bytes(name));
        let kind = match mode & 0o170_000 {
            0 | 0o100_000 => InodeKind::File,
            0o010_000 => InodeKind::Fifo,
            0o140_000 => InodeKind::Socket,
            _ => return reply.error(Errno::EPERM),
        };
        let creation = Creation::new(kind, mode & 0o7777 & !umask);
        self.spawn(|calls| async move {
            calls.answer_entry(calls.rank.create(&user, Ino(parent.0), &name, creation).await, reply);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.changes(parent);
        let (user, name) = (user(request), bytes(name));
        let creation = Creation::new(InodeKind::Directory, mode & 0o7777 & !umask);
        self.spawn(|calls| async move {
            calls.answer_entry(calls.rank.create(&user, Ino(parent.0), &name, creation).await, reply);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.changes(parent);
        let (user, name) = (user(request), bytes(name));
        self.spawn(|calls| async move {
            answer_empty(calls.rank.unlink(&user, Ino(parent.0), &name).await, reply);
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.changes(parent);
        let (user, name) = (user(request), bytes(name));
        self.spawn(|calls| async move {
            answer_empty(calls.rank.rmdir(&user, Ino(parent.0), &name).await, reply);
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.changes(parent);
        let (user, name) = (user(request), bytes(name));
        let creation = Creation::symlink(bytes(target.as_os_str()));
        self.spawn(|calls| async move {
            calls.answer_entry(calls.rank.create(&user, Ino(parent.0), &name, creation).await, reply);
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.changes(parent);
        self.changes(to);
        let (user, name, new) = (user(request), bytes(name), bytes(new));
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let keep = flags.contains(RenameFlags::RENAME_NOREPLACE);
        self.spawn(|calls| async move {
            let done = calls.rank.rename(&user, (Ino(parent.0), &name), (Ino(to.0), &new), keep).await;
            answer_empty(done, reply);
        });
    }

    fn link(&self, request: &Request, ino: INodeNo, to: INodeNo, new: &OsStr, reply: ReplyEntry) {
        self.changes(to);
        let (user, new) = (user(request), bytes(new));
        self.spawn(|calls| async move {
            calls.answer_entry(calls.rank.link(&user, Ino(ino.0), Ino(to.0), &new).await, reply);
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let user = user(request);
        self.spawn(|calls| async move {
            match calls.rank.open_file(&user, Ino(ino.0), rights(flags.0)).await {
                Ok(_) => reply.opened(calls.handle(), FopenFlags::empty()),
                // After this error the kernel looks again: the entry may lead to another inode by now.
                Err(Error::NotFound) => reply.error(errno(Error::Stale)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.changes(parent);
        let (user, name, parent) = (user(request), bytes(name), Ino(parent.0));
        let creation = Creation::new(InodeKind::File, mode & 0o7777 & !umask);
        self.spawn(|calls| async move {
            match calls.create(&user, parent, &name, creation, flags).await {
                Ok(found) => {
                    let attributes = attributes(&found);
                    reply.created(
                        &calls.ttl,
                        &attributes,
                        Generation(0),
                        calls.handle(),
                        FopenFlags::empty(),
                    );
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if !self.calls.may_use(file) {
            return reply.error(Errno::EIO);
        }
        self.spawn(|calls| async move {
            match calls.rank.read_file(Ino(ino.0), offset, size as usize).await {
                Ok(bytes) => reply.data(&bytes),
                // An inode of a program's own type looks like an empty file, so that what reads whole trees gets through.
                Err(Error::Unsupported(_)) => reply.data(&[]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if !self.calls.may_use(file) {
            return reply.error(Errno::EIO);
        }
        let data = Bytes::copy_from_slice(data);
        self.spawn(|calls| async move {
            let len = data.len() as u32;
            let done = match flags.0 & O_APPEND != 0 {
                true => calls.rank.append_file(Ino(ino.0), data).await.map(|_| ()),
                false => calls.rank.write_file(Ino(ino.0), offset, data).await,
            };
            match done {
                Ok(()) => reply.written(len),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn flush(&self, _: &Request, ino: INodeNo, _: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        let Some(locks) = self.calls.locks.clone() else { return reply.ok() };
        self.handle.spawn(async move {
            locks.flush(ino.0, owner.0).await;
            reply.ok();
        });
    }

    fn getlk(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        reply: ReplyLock,
    ) {
        let Some(locks) = self.calls.locks.clone() else { return reply.error(Errno::ENOSYS) };
        let Some(mode) = lock_mode(kind) else { return reply.error(Errno::EINVAL) };
        let bytes = between(start, end);
        let wanted = Piece { bytes, mode, owner: owner.0, handle: file.0, process };
        let thread = request.pid();
        self.handle.spawn(async move {
            match locks.test(ino.0, wanted, thread).await {
                Ok(None) => reply.locked(start, end, F_UNLCK, 0),
                Ok(Some(found)) => {
                    let kind = if found.mode == Mode::Exclusive { F_WRLCK } else { F_RDLCK };
                    reply.locked(found.bytes.start, found.bytes.end - 1, kind, found.process);
                }
                Err(error) => reply.error(error),
            }
        });
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let Some(locks) = self.calls.locks.clone() else { return reply.error(Errno::ENOSYS) };
        let mode = lock_mode(kind);
        if mode.is_none() && kind != F_UNLCK {
            return reply.error(Errno::EINVAL);
        }
        let bytes = between(start, end);
        let thread = request.pid();
        self.handle.spawn(async move {
            let done = match mode {
                Some(mode) => {
                    let wanted = Piece { bytes, mode, owner: owner.0, handle: file.0, process };
                    locks.lock(ino.0, wanted, sleep, thread).await
                }
                None => locks.unlock(ino.0, file.0, owner.0, bytes).await,
            };
            match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // Every change is as durable as the store makes it before its call returns.
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.spawn(|calls| async move {
            if let Some(locks) = &calls.locks {
                locks.close(ino.0, file.0).await;
            }
            calls.rank.close_file(Ino(ino.0)).await;
            reply.ok();
        });
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(self.calls.handle(), FopenFlags::empty());
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let user = user(request);
        self.spawn(|calls| async move {
            let known = calls.listings.lock().remove(&file.0);
            let listing = match Listing::at(&calls.rank, &user, Ino(ino.0), known, offset).await {
                Ok(listing) => listing,
                Err(error) => return reply.error(errno(error)),
            };
            let skipped = offset.saturating_sub(listing.first) as usize;
            for (index, listed) in listing.entries.iter().enumerate().skip(skipped) {
                let position = listing.first + index as u64 + 1;
                let name = OsStr::from_bytes(&listed.name);
                if reply.add(INodeNo(listed.ino.0), position, file_type(&listed.kind), name) {
                    break;
                }
            }
            calls.listings.lock().insert(file.0, listing);
            reply.ok();
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, file: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.calls.listings.lock().remove(&file.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.spawn(|calls| async move {
            // Stores do not say how much room there is: some, rather than none. A quota does.
            let (limits, used) = match calls.rank.quota(Ino(ino.0)).await {
                Ok(Some(quota)) => (quota.limits, quota.used),
                Ok(None) | Err(_) => (Limits::default(), Usage::default()),
            };
            let total = limits.bytes.map_or(ROOM, |limit| limit / BLOCK_BYTES);
            let free = limits.bytes.map_or(ROOM, |limit| limit.saturating_sub(used.bytes) / BLOCK_BYTES);
            let files = limits.entries.unwrap_or(ROOM);
            let files_free = limits.entries.map_or(ROOM, |limit| limit.saturating_sub(used.entries));
            let block = BLOCK_BYTES as u32;
            reply.statfs(total, free, free, files, files_free, block, 255, block);
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (user, name, value) = (user(request), bytes(name), Bytes::copy_from_slice(value));
        let exists = match flags & (XATTR_CREATE | XATTR_REPLACE) {
            XATTR_CREATE => Some(false),
            XATTR_REPLACE => Some(true),
            _ => None,
        };
        self.spawn(|calls| async move {
            let done = calls.rank.set_attribute(&user, Ino(ino.0), &name, Some(value), exists).await;
            answer_empty(done, reply);
        });
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (user, name) = (user(request), bytes(name));
        self.spawn(|calls| async move {
            answer_xattr(calls.rank.attribute(&user, Ino(ino.0), &name).await, size, reply);
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let user = user(request);
        self.spawn(|calls| async move {
            let names = calls.rank.attributes(&user, Ino(ino.0)).await;
            let list = names.map(|names| names.iter().flat_map(|name| [&name[..], b"\0"].concat()).collect());
            answer_xattr(list, size, reply);
        });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (user, name) = (user(request), bytes(name));
        self.spawn(|calls| async move {
            answer_empty(calls.rank.set_attribute(&user, Ino(ino.0), &name, None, None).await, reply);
        });
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let user = user(request);
        self.answer(|calls| async move {
            answer_empty(calls.rank.access(&user, Ino(ino.0), mask.bits() as u32 & 7).await, reply);
        });
    }
}

impl Calls {
    fn new(rank: Arc<Rank>, ttl: Duration) -> Calls {
        let (listings, walks) = (Mutex::default(), Walks::default());
        Calls { rank, ttl, listings, walks, next: AtomicU64::new(1), locks: None }
    }

    /// Returns a handle for what is opened.
    fn handle(&self) -> FileHandle {
        FileHandle(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns whether an open file may be used: it may not once locks are lost that were had by way of it.
    fn may_use(&self, file: FileHandle) -> bool {
        self.locks.as_ref().is_none_or(|locks| locks.holds(file.0))
    }

    fn answer_entry(&self, result: Result<Attributes, Error>, reply: ReplyEntry) {
        match result {
            Ok(found) => reply.entry(&self.ttl, &attributes(&found), Generation(0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn answer_attributes(&self, result: Result<Attributes, Error>, reply: ReplyAttr) {
        match result {
            Ok(found) => reply.attr(&self.ttl, &attributes(&found)),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Makes a file and opens it, or opens the one that somebody else has made since the kernel looked.
    async fn create(
        &self,
        user: &Credentials,
        parent: Ino,
        name: &[u8],
        creation: Creation,
        flags: i32,
    ) -> Result<Attributes, Error> {
        match self.rank.create_open(user, parent, name, creation).await {
            Ok(made) => return Ok(made),
            Err(Error::Exists) if flags & O_EXCL == 0 => {}
            Err(error) => return Err(error),
        }
        let found = self.rank.lookup(user, parent, name).await?;
        if file_type(&found.kind) != FileType::RegularFile {
            // The kernel refuses such an answer, and never closes what was opened. After this error it looks again.
            return Err(Error::Stale);
        }
        let opened = self.rank.open_file(user, found.ino, rights(flags)).await?;
        if flags & O_TRUNC == 0 {
            return Ok(opened);
        }
        // The kernel takes the file for a new one, which it does not truncate.
        let truncated = match self.rank.truncate(user, found.ino, 0).await {
            Ok(()) => self.rank.stat(found.ino).await,
            Err(error) => Err(error),
        };
        if truncated.is_err() {
            self.rank.close_file(found.ino).await;
        }
        truncated
    }
}

#[cfg(test)]
mod tests;
