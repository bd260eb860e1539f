//! The floor: the kernel's own cost of a walk.
//!
//! Threads only call openat, getdents64 and statx, and count. No walk that makes these calls for every entry can be
//! faster; any additional time is its own. It runs as a separate process, so that it is measured like every other
//! program.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_quantity::Escaped;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::pool::Pool;
use crate::BenchError;

/// The arguments with which the study starts it.
#[derive(Clone, Debug, clap::Args)]
pub struct FloorArgs {
    /// Threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Read names only
    #[arg(long)]
    names_only: bool,
    /// Directory to begin at
    root: PathBuf,
}

/// The counts of a walk. The root is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) entries: u64,
    pub(crate) directories: u64,
    /// The number of names of regular files.
    pub(crate) files: u64,
    pub(crate) symbolic_links: u64,
    /// The sum of the sizes of regular files, counted for each of their names.
    pub(crate) bytes: u64,
    /// The sum of the sizes of all entries and of the root, of any kind.
    pub(crate) bytes_of_all: u64,
    /// The number of entries and directories that could not be read.
    pub(crate) errors: u64,
}

/// A directory, or some of the names of one.
enum Task {
    Directory { above: Arc<OwnedFd>, name: CString },
    Names { directory: Arc<OwnedFd>, names: Vec<CString> },
}

/// The state of a thread.
struct Thread {
    count: Count,
    buffer: Vec<MaybeUninit<u8>>,
    /// Directories that were found and not queued yet.
    found: Vec<Task>,
}

/// The size of the buffer for a directory, in bytes: about two thousand names, so that few calls return only the end of
/// a directory.
const BUFFER_BYTES: usize = 64 << 10;
/// The number of names that are queued together.
const HANDFUL: usize = 256;
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Walks, and prints the counts as JSON.
pub(crate) fn main(args: &FloorArgs) -> Result<(), BenchError> {
    let count = walk(&args.root, args.threads, !args.names_only)?;
    let text = serde_json::to_string(&count)
        .map_err(|error| BenchError::Process(format!("cannot write a count as JSON: {error}")))?;
    println!("{text}");
    Ok(())
}

/// Walks a tree, with metadata if `stat` is set, and returns the counts.
pub(super) fn walk(root: &Path, threads: usize, stat: bool) -> Result<Count, BenchError> {
    let failed = |errno: Errno| BenchError::io(format!("open {}", Escaped::of(&root)))(errno.into());
    // The root may be a symbolic link.
    let fd = rustix::fs::openat(CWD, root, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty());
    let above = Arc::new(fd.map_err(failed)?);
    let state = || Thread {
        count: Count::default(),
        buffer: vec![MaybeUninit::uninit(); BUFFER_BYTES],
        found: Vec::new(),
    };
    let work = |pool: &Pool<Task>, thread: &mut Thread, task| {
        thread.work(pool, task, stat);
        Ok::<(), BenchError>(())
    };
    let mut root = Count::default();
    if stat {
        root.look(&above, c".");
    }
    let first = Task::Directory { above, name: c".".into() };
    let threads = Pool::run(threads, first, state, work)?;
    Ok(threads.iter().fold(root, |sum, thread| sum.and(&thread.count)))
}

impl Thread {
    fn work(&mut self, pool: &Pool<Task>, task: Task, stat: bool) {
        match task {
            Task::Directory { above, name } => {
                let Ok(fd) = rustix::fs::openat(&*above, &name, DIRECTORY, Mode::empty()) else {
                    self.count.errors += 1;
                    return;
                };
                drop(above);
                let fd = Arc::new(fd);
                self.read(pool, &fd, stat);
                if !self.found.is_empty() {
                    pool.add(self.found.drain(..));
                }
            }
            Task::Names { directory, names } => {
                names.iter().for_each(|name| self.count.look(&directory, name));
            }
        }
    }

    fn read(&mut self, pool: &Pool<Task>, fd: &Arc<OwnedFd>, stat: bool) {
        let Self { count, buffer, found } = self;
        let mut entries = RawDir::new(&**fd, buffer);
        let mut shared = Vec::new();
        let mut sharing = false;
        let mut first = true;
        loop {
            if entries.is_buffer_empty() {
                // A directory that goes on is shared out while somebody has nothing to do.
                sharing = stat && !first && pool.someone_waits();
                first = false;
            }
            let entry = match entries.next() {
                None => break,
                Some(Ok(entry)) => entry,
                Some(Err(_)) => {
                    count.errors += 1;
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let mut file_type = entry.file_type();
            if file_type == FileType::Unknown
                && let Ok(stat) = rustix::fs::statat(&**fd, name, AtFlags::SYMLINK_NOFOLLOW)
            {
                file_type = FileType::from_raw_mode(stat.st_mode);
            }
            count.entries += 1;
            match file_type {
                FileType::Directory => {
                    count.directories += 1;
                    found.push(Task::Directory { above: fd.clone(), name: name.into() });
                }
                FileType::RegularFile => count.files += 1,
                FileType::Symlink => count.symbolic_links += 1,
                _ => {}
            }
            if sharing {
                shared.push(name.into());
                if shared.len() == HANDFUL {
                    pool.add([Task::Names { directory: fd.clone(), names: std::mem::take(&mut shared) }]);
                }
            } else if stat {
                count.look(fd, name);
            }
        }
        shared.iter().for_each(|name: &CString| count.look(fd, name));
    }
}

impl Count {
    /// Reads an entry's metadata, as a walk with metadata does.
    fn look(&mut self, directory: &OwnedFd, name: &std::ffi::CStr) {
        match rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS) {
            Ok(stat) => {
                self.bytes_of_all += stat.stx_size;
                let file_type = FileType::from_raw_mode(stat.stx_mode.into());
                self.bytes += if file_type == FileType::RegularFile { stat.stx_size } else { 0 };
            }
            Err(_) => self.errors += 1,
        }
    }

    fn and(&self, other: &Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            directories: self.directories + other.directories,
            files: self.files + other.files,
            symbolic_links: self.symbolic_links + other.symbolic_links,
            bytes: self.bytes + other.bytes,
            bytes_of_all: self.bytes_of_all + other.bytes_of_all,
            errors: self.errors + other.errors,
        }
    }
}
