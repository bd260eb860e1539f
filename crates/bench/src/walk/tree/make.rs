//! The making of a planned tree: in parallel, every entry relative to its open directory.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nacre_quantity::Escaped;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::plan::{Plan, Time};
use crate::BenchError;
use crate::kit::study::check_signals;
use crate::walk::pool::Pool;

/// The number of files that one thread makes at a time, so that a large directory is shared out.
const PART: u32 = 4096;

/// A piece of the work.
enum Task {
    /// The empty root.
    Root(Arc<Opened>),
    /// An empty directory, in one that is open.
    Directory { number: u32, above: Arc<Opened> },
    /// A part of the files of a directory, from `first` on.
    Files { directory: Arc<Opened>, first: u32 },
}

/// A directory in the making.
struct Opened {
    fd: OwnedFd,
    number: u32,
    /// The number of parts of its files that are still to be made.
    parts: AtomicU32,
}

/// A failed operation, the name of its object, and the error.
struct Failure(&'static str, String, Errno);

/// Makes the tree below an existing, empty root. Fails if a signal arrives meanwhile.
pub(super) fn make(plan: &Plan, root: &Path, threads: usize) -> Result<(), BenchError> {
    let fd = rustix::fs::openat(CWD, root, DIRECTORY, Mode::empty())
        .map_err(|errno| BenchError::io(format!("open {}", Escaped::of(&root)))(errno.into()))?;
    let first = Task::Root(Opened::new(plan, 0, fd));
    let work = |pool: &Pool<Task>, (): &mut (), task| {
        if check_signals().is_err() {
            return Err(Failure("make", "the rest".into(), Errno::INTR));
        }
        match task {
            Task::Root(opened) => enter(plan, pool, &opened),
            Task::Directory { number, above } => begin(plan, pool, number, &above),
            Task::Files { directory, first } => fill(plan, pool, &directory, first),
        }
    };
    match Pool::run(threads, first, || (), work) {
        Ok(_) => Ok(()),
        Err(Failure(attempted, name, errno)) => {
            // That it was interrupted is the reason, and not what came of it.
            check_signals()?;
            Err(BenchError::io(format!("{attempted} {name} in the tree"))(errno.into()))
        }
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC);

impl Opened {
    fn new(plan: &Plan, number: u32, fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { fd, number, parts: AtomicU32::new(parts(plan, number)) })
    }
}

/// Returns the number of parts in which the files of a directory are made: at least one, which also finishes the
/// directory.
fn parts(plan: &Plan, number: u32) -> u32 {
    plan.directories[number as usize].files.div_ceil(PART).max(1)
}

/// Opens a directory, and makes its hard links, which need the parent.
fn begin(plan: &Plan, pool: &Pool<Task>, number: u32, above: &Opened) -> Result<(), Failure> {
    let directory = &plan.directories[number as usize];
    let fd = rustix::fs::openat(&above.fd, directory.name.as_str(), DIRECTORY, Mode::empty())
        .map_err(|errno| Failure("open", directory.name.clone(), errno))?;
    let opened = Opened::new(plan, number, fd);
    for (name, target) in (0..directory.hard_links).map(|link| plan.hard_link(number, link)) {
        let target = plan.file(above.number, target).name;
        rustix::fs::linkat(&above.fd, target.as_str(), &opened.fd, name.as_str(), AtFlags::empty())
            .map_err(|errno| Failure("link", name, errno))?;
    }
    enter(plan, pool, &opened)
}

/// Makes the contents of a directory, and leaves all parts of its files but the first to other threads.
fn enter(plan: &Plan, pool: &Pool<Task>, opened: &Arc<Opened>) -> Result<(), Failure> {
    for child in &plan.directories[opened.number as usize].children {
        let name = &plan.directories[*child as usize].name;
        rustix::fs::mkdirat(&opened.fd, name.as_str(), Mode::from_raw_mode(0o755))
            .map_err(|errno| Failure("make the directory", name.clone(), errno))?;
    }
    let firsts = (1..parts(plan, opened.number)).map(|part| part * PART);
    pool.add(firsts.map(|first| Task::Files { directory: opened.clone(), first }));
    fill(plan, pool, opened, 0)
}

/// Makes one part of a directory's files. The thread that makes the last part finishes the directory.
fn fill(plan: &Plan, pool: &Pool<Task>, opened: &Arc<Opened>, first: u32) -> Result<(), Failure> {
    let directory = &plan.directories[opened.number as usize];
    for number in first..directory.files.min(first + PART) {
        let file = plan.file(opened.number, number);
        make_file(opened, &file.name, file.bytes, file.modified)
            .map_err(|errno| Failure("make the file", file.name, errno))?;
    }
    if opened.parts.fetch_sub(1, Ordering::AcqRel) > 1 {
        return Ok(());
    }
    for (name, target) in (0..directory.symbolic_links).map(|link| plan.symbolic_link(opened.number, link)) {
        let times = times(plan.modified(opened.number));
        rustix::fs::symlinkat(target.as_str(), &opened.fd, name.as_str())
            .and_then(|()| {
                rustix::fs::utimensat(&opened.fd, name.as_str(), &times, AtFlags::SYMLINK_NOFOLLOW)
            })
            .map_err(|errno| Failure("make the symbolic link", name, errno))?;
    }
    // Nothing is made in it any more: making something in the directories below does not change its time.
    rustix::fs::futimens(&opened.fd, &times(plan.modified(opened.number)))
        .map_err(|errno| Failure("date", directory.name.clone(), errno))?;
    // Only now, because these may have hard links to the files of this one.
    pool.add(
        directory.children.iter().map(|child| Task::Directory { number: *child, above: opened.clone() }),
    );
    Ok(())
}

fn make_file(directory: &Opened, name: &str, bytes: u64, modified: Time) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(0o644);
    if bytes == 0 {
        // An empty file need not be opened.
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        rustix::fs::mknodat(&directory.fd, &name, FileType::RegularFile, mode, 0)?;
        return rustix::fs::utimensat(&directory.fd, &name, &times(modified), AtFlags::empty());
    }
    let file = rustix::fs::openat(&directory.fd, name, NEW, mode)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::futimens(&file, &times(modified))
}

fn times((tv_sec, tv_nsec): Time) -> Timestamps {
    let time = Timespec { tv_sec, tv_nsec };
    Timestamps { last_access: time, last_modification: time }
}
