//! One thread's work on a piece: it opens directories, reads and visits their entries, and queues new work.

use std::cell::OnceCell;
use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use crossbeam_deque::Worker;
use rustix::fs::StatxAttributes;
use rustix::io::Errno;

use crate::directory::{self, Budget, Descriptor, Directory, TreePosition};
use crate::entry::{Entry, FileKind, Metadata};
use crate::error::{Operation, WalkError};
use crate::getdents::{Record, Records};
use crate::pool::{Names, Queue, ThreadProgress, Work};
use crate::source::{Source, is_listed};
use crate::unit::Unit;
use crate::walk::{Opened, Options, Verdict, Visitor};

/// The size of the batches in which directories are read while very many names are queued, in bytes.
const SMALL_READ_BYTES: usize = 4096;

/// The smallest size of a read buffer, in bytes: the longest record of a directory fits.
pub(crate) const READ_BYTES_MIN: usize = SMALL_READ_BYTES;

/// The number of inode numbers of a path from which on their memory matters.
const INODES_MANY: usize = 4096;

/// The number of queued names from which small batches are read.
const NAMES_MANY: usize = 200_000;

/// One thread of a walk.
pub(crate) struct Scanner<'a, V: Visitor> {
    pub visitor: &'a mut V,
    pub queue: &'a Queue<V::State>,
    pub own: &'a Worker<Work<V::State>>,
    pub progress: &'a ThreadProgress,
    pub options: &'a Options,
    pub roots: &'a [CString],
    /// The tree, if it is in no file system.
    pub source: Option<&'a dyn Source>,
    pub budget: &'a Arc<Budget>,
    pub buffer: Vec<u8>,
    /// The directory that the last located entry is in, held open because the next one is often there too.
    pub located: Option<(Unit, Node<V>)>,
}

pub(crate) type Node<V> = Arc<Directory<<V as Visitor>::State>>;

impl<V: Visitor> Scanner<'_, V> {
    /// Does one piece of work.
    pub fn work(&mut self, work: Work<V::State>) {
        match work {
            Work::Rest(directory) => self.read(directory),
            Work::Listing(directory, after) => self.read_after(directory, &after),
            Work::Children(directory, mut names) => {
                let Some((name, inode)) = names.pop() else { return self.release(directory) };
                let last = names.is_empty();
                if !last {
                    // The others are there for everybody while this one is walked.
                    directory.hold();
                    self.queue.push(self.own, Work::Children(Arc::clone(&directory), names));
                }
                if let Some(child) = self.open(Some(&directory), &name, directory.root(), inode) {
                    if self.budget.is_exceeded() {
                        // Whoever finishes what is below opens it again.
                        directory.close_for_now();
                    }
                    self.release(directory);
                    child.pack_above(V::pack);
                    self.read(child);
                } else {
                    self.release(directory);
                }
            }
            Work::Located(unit) => {
                let after = unit.after.clone();
                if let Some(directory) = self.locate(unit) {
                    match after {
                        Some(after) => self.read_after(directory, &after),
                        None => self.read(directory),
                    }
                }
            }
            Work::Entry(unit) => self.visit_alone(unit),
            Work::Given(directory) => self.release(directory),
        }
    }

    /// Visits one entry that is known by its path, and lists it if it is a directory.
    fn visit_alone(&mut self, unit: Unit) {
        let slash = unit.path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = match slash {
            Some(slash) => (&unit.path[..slash], &unit.path[slash + 1..]),
            None => (&[][..], &unit.path[..]),
        };
        if name.is_empty() {
            if let Some(directory) = self.locate(unit.clone()) {
                self.list(directory);
            }
            return;
        }
        let above = unit.inodes.len().saturating_sub(1);
        let inodes = unit.inodes[..above].to_vec();
        let within = Unit { root: unit.root, path: parent.to_vec(), inodes, ..Unit::default() };
        let directory = match self.located.take() {
            Some((known, directory)) if known == within => directory,
            other => {
                if let Some((_, directory)) = other {
                    self.release(directory);
                }
                let Some(directory) = self.locate(within.clone()) else { return };
                directory.mark_split();
                directory
            }
        };
        match directory.descriptor() {
            Ok(descriptor) => {
                // What is in it is visited as if the directory had been read and had held this entry alone.
                let record = crate::getdents::record(name);
                let children = self.visit_records(&directory, &descriptor, Records(&record));
                if let Some((name, inode)) = children.and_then(|mut names| names.pop())
                    && let Some(child) = self.open(Some(&directory), &name, unit.root, inode)
                {
                    self.list(child);
                }
            }
            Err(errno) => self.fail(directory.path_bytes(), Operation::Open, errno),
        }
        self.located = Some((within, directory));
    }

    /// Reads a directory and reports its entries, without visiting them.
    fn list(&mut self, directory: Node<V>) {
        let within = directory.unit();
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            match directory.read(&mut buffer) {
                Ok((_, 0)) => break,
                Ok((_, len)) => self.queue.add_found(
                    Records(&buffer[..len])
                        .map(|record| within.child(record.name.to_bytes(), record.inode))
                        .collect(),
                ),
                Err(errno) => {
                    self.fail(directory.path_bytes(), Operation::List, errno);
                    break;
                }
            }
        }
        self.buffer = buffer;
        directory.mark_split();
        self.release(directory);
    }

    /// Runs `work`, and adds its time to `part` if profiling is on.
    pub fn timed<T>(&self, part: &AtomicU64, work: impl FnOnce() -> T) -> T {
        if !self.options.profile {
            return work();
        }
        let begun = Instant::now();
        let result = work();
        self.progress.count(part, begun.elapsed().as_nanos() as u64);
        result
    }

    /// Releases the directory that is kept between pieces of work.
    pub fn close(&mut self) {
        if let Some((_, directory)) = self.located.take() {
            self.release(directory);
        }
    }

    /// Reads those directories to their ends whose positions would be invalid later; called when the walk is to stop.
    /// With `outside`, those too that [`Queue::take`] could not give away and put back.
    pub fn wind_up(&mut self, outside: bool) {
        let outside = if outside { self.queue.take_outside() } else { Vec::new() };
        for work in outside {
            match work {
                Work::Rest(directory) if directory.stable_position().is_none() => self.read(directory),
                // Counted again before it is no longer counted as taken: meanwhile nothing looks idle.
                work => self.queue.inject(work),
            }
            self.queue.count_out();
        }
        let mut kept = Vec::new();
        while let Some(work) = self.queue.pop(self.own) {
            match work {
                Work::Rest(directory) if directory.stable_position().is_none() => self.read(directory),
                work => {
                    kept.push(work);
                    continue;
                }
            }
            self.queue.count_out();
        }
        for work in kept.into_iter().rev() {
            self.queue.push(self.own, work);
            self.queue.count_out();
        }
    }

    /// Opens a directory; `None` if it cannot or must not be opened, or its visitor declines it.
    fn open(&mut self, parent: Option<&Node<V>>, name: &CStr, root: u32, inode: u64) -> Option<Node<V>> {
        if let Some(source) = self.source {
            return self.open_listed(source, parent, name, (root, inode));
        }
        let crossing = self.options.cross_mounts;
        let opened = match parent {
            None => directory::open(None, name, crossing, self.budget),
            Some(parent) => {
                let within = parent.descriptor();
                let opened = match &within {
                    Ok(within) if self.is_mount_point(within, name) => Err(Errno::XDEV),
                    Ok(within) => self.timed(&self.progress.opening, || {
                        directory::open(Some(within), name, crossing, self.budget)
                    }),
                    Err(errno) => Err(*errno),
                };
                if opened.as_ref().is_err_and(|errno| *errno == Errno::XDEV) && !crossing {
                    self.visitor.incomplete(parent);
                    self.visitor.mount_point(child_path(Some(parent), name));
                    return None;
                }
                opened
            }
        };
        self.enter_opened(parent, name, (root, inode, false), opened)
    }

    /// Returns whether a directory must not be opened, because another file system is or would be mounted there: opening
    /// it would make the system mount what is mounted on demand. With metadata it was checked when the directory was visited.
    fn is_mount_point(&self, within: &Descriptor, name: &CStr) -> bool {
        !self.options.cross_mounts
            && !self.options.metadata
            && directory::stat(within.as_fd(), name).is_ok_and(|stat| Metadata(stat).is_mount_point())
    }

    /// Opens a directory that was listed in another process, or by an earlier run: the one that has this inode,
    /// whatever its current name. Another directory that took its name is not visited.
    fn open_again(&mut self, parent: &Node<V>, name: &CStr, inode: u64) -> Option<Node<V>> {
        let root = parent.root();
        if let Some(source) = self.source
            && let Err(errno) = is_listed(source, parent.inode(), name, inode)
        {
            self.fail_in(Some(parent), name, Operation::Open, errno);
            return None;
        }
        if inode == 0 || self.source.is_some() {
            return self.open(Some(parent), name, root, inode);
        }
        let open = |name: &CStr| {
            let within = parent.descriptor()?;
            if self.is_mount_point(&within, name) {
                return Err(Errno::XDEV);
            }
            let descriptor = directory::open(Some(&within), name, self.options.cross_mounts, self.budget)?;
            let there = directory::stat_open(&descriptor)?.stx_ino;
            Ok((descriptor, there == inode))
        };
        let place = (root, parent.inode(), inode);
        let known = self.queue.moved(place);
        let name = known.as_deref().unwrap_or(name);
        let found = (root, inode, known.is_some());
        let (opened, here) = match open(name) {
            Ok((descriptor, true)) => {
                return self.enter_opened(Some(parent), name, found, Ok(descriptor));
            }
            Ok((descriptor, false)) => (Ok(descriptor), name),
            Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE)) => (Err(errno), name),
            Err(errno) => return self.enter_opened(Some(parent), name, found, Err(errno)),
        };
        match parent.name_of(inode) {
            // On some file systems the number in the listing is not the one that the directory itself gives.
            Ok(Some(name)) if *name == *here => self.enter_opened(Some(parent), &name, found, opened),
            Ok(Some(name)) => {
                let opened = match open(&name) {
                    Ok((descriptor, true)) => Ok(descriptor),
                    Ok((_, false)) => Err(Errno::STALE),
                    Err(errno) => Err(errno),
                };
                if opened.is_ok() {
                    // Whoever reads the rest of the parent meets it under its new name, and must not visit it again.
                    self.queue.add_moved(place, name.clone());
                }
                self.enter_opened(Some(parent), &name, (root, inode, true), opened)
            }
            Ok(None) => {
                let errno = opened.err().unwrap_or(Errno::STALE);
                self.enter_opened(Some(parent), here, found, Err(errno))
            }
            Err(errno) => self.enter_opened(Some(parent), here, found, Err(errno)),
        }
    }

    fn enter_opened(
        &mut self,
        parent: Option<&Node<V>>,
        name: &CStr,
        place: (u32, u64, bool),
        opened: Result<Arc<Descriptor>, Errno>,
    ) -> Option<Node<V>> {
        let entered = opened.and_then(|descriptor| self.enter(parent, name, place, descriptor));
        match entered {
            Ok(directory) => directory,
            Err(errno) => {
                self.fail_in(parent, name, Operation::Open, errno);
                None
            }
        }
    }

    fn enter(
        &mut self,
        parent: Option<&Node<V>>,
        name: &CStr,
        (root, inode, renamed): (u32, u64, bool),
        descriptor: Arc<Descriptor>,
    ) -> Result<Option<Node<V>>, Errno> {
        let mut known = None;
        if self.options.cross_mounts {
            let stat = directory::stat_open(&descriptor)?;
            let identity = directory::identity(&stat);
            if let Some(parent) = parent
                && stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
                && parent.is_within(identity)
            {
                self.fail_in(Some(parent), name, Operation::Loop, Errno::LOOP);
                return Ok(None);
            }
            known = Some(identity);
        }
        let opened = Opened {
            directory: parent.map(|parent| &**parent),
            descriptor: descriptor.as_fd(),
            name,
            root,
            depth: parent.map_or(0, |parent| parent.depth() + 1),
            renamed,
            source: None,
        };
        let Some(state) = self.visitor.enter(&opened) else { return Ok(None) };
        let directory =
            Directory::new(TreePosition { parent: parent.cloned(), name, root, inode }, descriptor, state);
        if let Some(identity) = known {
            directory.set_identity(identity);
        }
        self.progress.count(&self.progress.directories, 1);
        Ok(Some(directory))
    }

    /// Opens a directory that is known only by its path, one name after the other, and never through a link.
    fn locate(&mut self, unit: Unit) -> Option<Node<V>> {
        let Unit { root: number, path, position, until, after, mut inodes } = unit;
        let Some(root) = self.roots.get(number as usize) else {
            self.fail(path, Operation::Open, Errno::NOENT);
            return None;
        };
        let mut directory = self.open(None, root, number, 0)?;
        inodes.reverse();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let inode = inodes.pop().unwrap_or(0);
            // Of a long path, what was taken makes room for the directories.
            if inodes.capacity() > INODES_MANY && inodes.len() < inodes.capacity() / 2 {
                inodes.shrink_to_fit();
            }
            // Names come from paths that were made of names, which hold no zeros; one that does is nobody's.
            let child = CString::new(name).ok().and_then(|name| self.open_again(&directory, &name, inode));
            directory.mark_split();
            // What is in it was visited before, or is elsewhere.
            directory.end();
            self.release(directory);
            directory = child?;
            directory.pack_above(V::pack);
        }
        if let Some(position) = position {
            directory.seek(position, until);
            directory.mark_split();
        }
        if after.is_some() {
            directory.mark_split();
        }
        Some(directory)
    }

    /// Reads the entries of a directory, or the rest of them, and visits each.
    fn read(&mut self, directory: Node<V>) {
        if self.source.is_some() {
            return self.read_after(directory, b"");
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let batch = if self.queue.units() > NAMES_MANY { SMALL_READ_BYTES } else { buffer.len() };
        loop {
            let (descriptor, len) =
                match self.timed(&self.progress.reading, || directory.read(&mut buffer[..batch])) {
                    Ok(read) => read,
                    Err(errno) => {
                        self.visitor.incomplete(&directory);
                        self.fail(directory.path_bytes(), Operation::List, errno);
                        break;
                    }
                };
            if len == 0 {
                break;
            }
            let records = Records(&buffer[..len]);
            if let Some(last) = records.clone().last() {
                directory.set_position(last.next);
            }
            // A directory that filled the buffer probably has more entries: whoever has nothing to do reads them
            // while these are visited.
            let mut shared = len > batch / 2 || self.queue.is_stopped();
            if shared {
                directory.learn_stability(&descriptor);
                // What must not be stopped half-way is not.
                shared = !self.queue.is_stopped() || directory.stable_position().is_some();
            }
            if shared {
                directory.hold();
                self.queue.push(self.own, Work::Rest(Arc::clone(&directory)));
            }
            self.visit(&directory, &descriptor, records);
            if shared {
                break;
            }
        }
        self.buffer = buffer;
        self.release(directory);
    }

    fn visit(&mut self, directory: &Node<V>, descriptor: &Descriptor, records: Records<'_>) {
        if let Some(children) = self.visit_records(directory, descriptor, records) {
            directory.hold();
            self.queue.push(self.own, Work::Children(Arc::clone(directory), children));
        }
    }

    /// Visits some entries of a directory, and returns the names of those to descend into, if there are any.
    fn visit_records(
        &mut self,
        directory: &Node<V>,
        descriptor: &Descriptor,
        records: Records<'_>,
    ) -> Option<Names> {
        if !self.options.by_inode {
            return self.visit_each(directory, descriptor, records);
        }
        let mut sorted: Vec<Record<'_>> = records.collect();
        sorted.sort_unstable_by_key(|record| record.inode);
        self.visit_each(directory, descriptor, sorted)
    }

    fn visit_each<'r>(
        &mut self,
        directory: &Node<V>,
        descriptor: &Descriptor,
        records: impl IntoIterator<Item = Record<'r>>,
    ) -> Option<Names> {
        let prefix = OnceCell::new();
        let mut children = Names::default();
        let mut visited = 0;
        for record in records {
            // In place: a reference is handed on, and 256 bytes are not.
            let known;
            let metadata = if self.options.metadata || record.kind.is_none() {
                let asked = || directory.stat_entry(descriptor.as_fd(), record.name);
                match self.timed(&self.progress.asking, asked) {
                    Ok(stat) => {
                        known = Metadata(stat);
                        Some(&known)
                    }
                    Err(errno) => {
                        self.fail_in(Some(directory), record.name, Operation::Stat, errno);
                        continue;
                    }
                }
            } else {
                None
            };
            let kind = metadata.map(Metadata::kind).or(record.kind).unwrap_or(FileKind::Unknown);
            let inode = metadata.map_or(record.inode, Metadata::inode);
            if kind == FileKind::Directory
                && self
                    .queue
                    .moved((directory.root(), directory.inode(), inode))
                    .is_some_and(|name| *name == *record.name)
            {
                // It was visited under the name that it had before.
                continue;
            }
            let entry = Entry {
                directory: Some(directory),
                descriptor: Some(descriptor.as_fd()),
                prefix: &prefix,
                name: record.name,
                kind,
                inode: record.inode,
                metadata,
                layout: None,
                root: directory.root(),
                depth: directory.depth() + 1,
            };
            visited += 1;
            let begun = self.options.profile.then(Instant::now);
            let verdict = self.visitor.visit(&entry);
            if let Some(begun) = begun {
                self.progress.count(&self.progress.visiting, begun.elapsed().as_nanos() as u64);
            }
            if kind != FileKind::Directory || verdict == Verdict::Pass {
                continue;
            }
            if !self.options.cross_mounts && metadata.is_some_and(Metadata::is_mount_point) {
                self.visitor.incomplete(directory);
                self.visitor.mount_point(child_path(Some(directory), record.name));
                continue;
            }
            children.push(record.name, inode);
        }
        self.progress.count(&self.progress.entries, visited);
        self.visitor.visited(directory);
        (!children.is_empty()).then_some(children)
    }

    /// Marks a piece of a directory's work as done, and leaves the directories that are finished by it.
    pub fn release(&mut self, directory: Node<V>) {
        directory.unhold();
        let mut finished = directory;
        while finished.finish() {
            let parent = finished.unpack_above(V::unpack);
            if let Some(parent) = &parent {
                // While its child is open: from above it would take as many steps as there are levels.
                parent.recall(&finished);
            }
            self.visitor.leave(&finished);
            let Some(parent) = parent else { return };
            finished = parent;
        }
        finished.settle(self.options.keep_open);
    }

    pub fn fail_in(&mut self, parent: Option<&Node<V>>, name: &CStr, operation: Operation, errno: Errno) {
        if let Some(parent) = parent {
            self.visitor.incomplete(parent);
        }
        self.fail(child_path(parent.map(|parent| &**parent), name), operation, errno);
    }

    pub fn fail(&mut self, path: Vec<u8>, operation: Operation, errno: Errno) {
        self.progress.count(&self.progress.errors, 1);
        self.visitor.failed(WalkError::new(path, operation, errno));
    }
}

pub(crate) fn child_path<S>(parent: Option<&Directory<S>>, name: &CStr) -> Vec<u8> {
    let mut path = parent.map(Directory::path_bytes).unwrap_or_default();
    if !path.is_empty() && path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name.to_bytes());
    path
}
