//! Copies and mirrors on a file system that ignores the case of names.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use nacre_tree::EntryError;
use nacre_tree::copy::{Aspects, Copy, Differing, LeftOver, Options};
use nacre_tree::remove::{Removal, Restriction};
use nacre_walk::filter::{Descent, Filter, Selection};
use nacre_walk::{Ended, Entry, Opened, Verdict, Visitor, Walk, WalkError};
use parking_lot::Mutex;

use crate::common::options;

/// A file or a directory: its name, as it was made, in the directory with the number `parent`.
#[derive(Clone)]
struct Node {
    parent: u64,
    name: String,
    attributes: FileAttr,
    content: Vec<u8>,
}

impl Node {
    fn is(&self, parent: u64, name: &OsStr) -> bool {
        self.parent == parent && name.eq_ignore_ascii_case(&self.name)
    }
}

/// Files and directories whose names are kept as they were made, and found whatever their case is.
struct Folding {
    nodes: Arc<Mutex<Vec<Node>>>,
    time: SystemTime,
    owner: (u32, u32),
    /// The number of the entry that was made last.
    last: AtomicU64,
    /// True if names can be given on condition that no entry has them.
    exclusive: bool,
    /// True if files cannot be opened, as those of a server that has lost sight of them.
    stale: bool,
    /// The number of a directory that cannot be opened for the same reason; 0 if there is none.
    lost: u64,
    /// True if opening a directory other than the mounted one fails the next time.
    failing: Arc<AtomicBool>,
    /// The number of times that directories were opened, and the number from which on names are found in them: before,
    /// all of them are stale.
    opened: AtomicU64,
    found_from: u64,
}

/// The number of the directory that is mounted.
const ROOT: u64 = 1;

impl Folding {
    /// Returns the attributes of a new entry.
    fn attributes(&self, ino: u64, kind: FileType) -> FileAttr {
        let directory = kind == FileType::Directory;
        FileAttr {
            ino: INodeNo(ino),
            size: 0,
            blocks: 0,
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            crtime: self.time,
            kind,
            perm: if directory { 0o755 } else { 0o644 },
            nlink: if directory { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }

    /// Adds an entry, with a number that no other one has had.
    fn add(&self, parent: u64, name: &OsStr, kind: FileType) -> FileAttr {
        let ino = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let attributes = self.attributes(ino, kind);
        let name = name.to_str().unwrap().to_owned();
        self.nodes.lock().push(Node { parent, name, attributes, content: Vec::new() });
        attributes
    }
}

impl Filesystem for Folding {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if self.opened.load(Ordering::Relaxed) < self.found_from {
            return reply.error(Errno::ESTALE);
        }
        match self.nodes.lock().iter().find(|node| node.is(parent.0, name)) {
            Some(node) => reply.entry(&Duration::ZERO, &node.attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if ino.0 == ROOT {
            return reply.attr(&Duration::ZERO, &self.attributes(ROOT, FileType::Directory));
        }
        match self.nodes.lock().iter().find(|node| node.attributes.ino == ino) {
            Some(node) => reply.attr(&Duration::ZERO, &node.attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if ino.0 == ROOT {
            return reply.attr(&Duration::ZERO, &self.attributes(ROOT, FileType::Directory));
        }
        let mut nodes = self.nodes.lock();
        let Some(node) = nodes.iter_mut().find(|node| node.attributes.ino == ino) else {
            return reply.error(Errno::ENOENT);
        };
        let attributes = &mut node.attributes;
        attributes.perm = mode.map_or(attributes.perm, |mode| (mode & 0o7777) as u16);
        attributes.uid = uid.unwrap_or(attributes.uid);
        attributes.gid = gid.unwrap_or(attributes.gid);
        if let Some(TimeOrNow::SpecificTime(time)) = mtime {
            attributes.mtime = time;
        }
        if let Some(size) = size {
            node.content.resize(size as usize, 0);
            attributes.size = size;
        }
        reply.attr(&Duration::ZERO, attributes);
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if ino.0 == self.lost {
            return reply.error(Errno::ESTALE);
        }
        if ino.0 != ROOT && self.failing.swap(false, Ordering::Relaxed) {
            return reply.error(Errno::EIO);
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let nodes = self.nodes.lock();
        let inside = nodes.iter().filter(|node| node.parent == ino.0);
        for (index, node) in inside.enumerate().skip(offset as usize) {
            let FileAttr { ino, kind, .. } = node.attributes;
            if reply.add(ino, index as u64 + 1, kind, &node.name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.stale {
            true => reply.error(Errno::ESTALE),
            false => reply.opened(FileHandle(0), FopenFlags::empty()),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let attributes = self.add(parent.0, name, FileType::Directory);
        reply.entry(&Duration::ZERO, &attributes, Generation(0));
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let attributes = self.add(parent.0, name, FileType::RegularFile);
        let flags = FopenFlags::empty();
        reply.created(&Duration::ZERO, &attributes, Generation(0), FileHandle(0), flags);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut nodes = self.nodes.lock();
        let Some(node) = nodes.iter_mut().find(|node| node.attributes.ino == ino) else {
            return reply.error(Errno::ENOENT);
        };
        let end = offset as usize + data.len();
        node.content.resize(node.content.len().max(end), 0);
        node.content[offset as usize..end].copy_from_slice(data);
        node.attributes.size = node.content.len() as u64;
        reply.written(data.len() as u32);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        // That no entry has the name, the kernel has found out by asking for it.
        if !self.exclusive && !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let mut nodes = self.nodes.lock();
        let Some(moved) = nodes.iter().find(|node| node.is(parent.0, name)).cloned() else {
            return reply.error(Errno::ENOENT);
        };
        let ino = moved.attributes.ino;
        nodes.retain(|node| node.attributes.ino != ino && !node.is(new_parent.0, new_name));
        nodes.push(Node { parent: new_parent.0, name: new_name.to_str().unwrap().to_owned(), ..moved });
        reply.ok();
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.nodes.lock().retain(|node| !node.is(parent.0, name));
        reply.ok();
    }
}

/// Mounts a file system; `None` where there is no FUSE.
fn mounted(folding: Folding, at: &Path) -> Option<BackgroundSession> {
    fuser::spawn_mount(folding, at, &Config::default())
        .inspect_err(|error| eprintln!("skipped: FUSE cannot be mounted here: {error}"))
        .ok()
}

/// A folder with the directories `source` and `target`, where `target` is mounted and takes names that differ in case for
/// one.
struct Setting {
    source: PathBuf,
    target: PathBuf,
    nodes: Arc<Mutex<Vec<Node>>>,
    mounted: BackgroundSession,
}

impl Setting {
    /// Mounts a target with empty files, which are like the file `model`; `None` where there is no FUSE.
    fn mount(folder: &Path, model: &Path, names: &[&str], exclusive: bool) -> Option<Setting> {
        let (source, target) = (folder.join("source"), folder.join("target"));
        fs::create_dir(&target).unwrap();
        let about = fs::metadata(model).unwrap();
        let nodes = Arc::new(Mutex::new(Vec::new()));
        let (time, owner) = (about.modified().unwrap(), (about.uid(), about.gid()));
        let (last, nodes_there) = (AtomicU64::new(ROOT), Arc::clone(&nodes));
        let opened = AtomicU64::new(0);
        let folding = Folding {
            nodes: nodes_there,
            time,
            owner,
            last,
            exclusive,
            stale: false,
            lost: 0,
            failing: Arc::default(),
            opened,
            found_from: 0,
        };
        for name in names {
            folding.add(ROOT, OsStr::new(name), FileType::RegularFile);
        }
        Some(Setting { mounted: mounted(folding, &target)?, source, target, nodes })
    }

    /// Copies or mirrors the source to the target, and returns the failures.
    fn copy(&self, mirror: bool) -> Vec<EntryError> {
        let options = Options { threads: NonZeroUsize::MIN, ..options(mirror) };
        let copy = Copy::new(&self.source, &self.target, options).unwrap();
        copy.run().unwrap();
        copy.failures().first()
    }

    /// Mirrors the source to the target as one of several processes does, and returns the failures.
    fn mirror_together(&self) -> Vec<EntryError> {
        let options = Options { threads: NonZeroUsize::MIN, ..options(true) };
        let copy = Copy::new(&self.source, &self.target, options).unwrap().together();
        let _lock = copy.begin_together().unwrap();
        let leave = |left: LeftOver| assert!(left.path.is_empty(), "{left:?} was left for later");
        let copied = copy.copy_part(true, &leave, |walk, visitors| {
            walk.run(visitors);
        });
        copied.unwrap();
        copy.finish_root().unwrap();
        let finished = copy.finish_part(true, |walk, visitors| {
            walk.run(visitors);
        });
        finished.unwrap();
        copy.failures().first()
    }

    /// Ends the mount, and returns what is there.
    fn end(self) -> Vec<Node> {
        self.mounted.umount_and_join().unwrap();
        self.nodes.lock().clone()
    }
}

/// Mirrors a directory with the file `Foo` to one with other names. Returns the names that are there afterwards, and the
/// failures; `None` where there is no FUSE.
fn mirrored(folder: &Path, names: &[&str]) -> Option<(Vec<String>, Vec<String>)> {
    let model = folder.join("source/Foo");
    fs::create_dir(folder.join("source")).unwrap();
    fs::write(&model, "").unwrap();
    let setting = Setting::mount(folder, &model, names, true)?;
    let failures = setting.copy(true).iter().map(ToString::to_string).collect();
    Some((setting.end().into_iter().map(|node| node.name).collect(), failures))
}

#[test]
fn a_mirror_does_not_remove_what_another_name_of_the_source_stands_for() {
    let folder = tempfile::tempdir().unwrap();
    let Some((names, failures)) = mirrored(folder.path(), &["FOO", "other"]) else { return };
    assert_eq!(names, ["FOO", "other"]);
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert!(failures.iter().all(|failure| failure.contains("takes two names for one")), "{failures:?}");
}

#[test]
fn a_mirror_removes_extras_where_names_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let Some((names, failures)) = mirrored(folder.path(), &["Foo", "other"]) else { return };
    assert_eq!((names, failures), (vec!["Foo".to_owned()], vec![]));
}

#[test]
fn of_two_names_that_are_one_at_the_destination_one_is_copied_and_the_other_an_error() {
    // Two files beside what may be there already, two files in a directory that the copy makes, and two directories.
    let pairs = [("Foo", "FOO"), ("in/Bar", "in/BAR"), ("Dir/file", "DIR/file")];
    for exclusive in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        for directory in ["in", "Dir", "DIR"] {
            fs::create_dir_all(source.join(directory)).unwrap();
        }
        for path in pairs.iter().flat_map(|(one, other)| [one, other]) {
            fs::write(source.join(path), format!("the content of {path}")).unwrap();
        }
        let Some(setting) = Setting::mount(folder.path(), &source.join("Foo"), &[], exclusive) else {
            return;
        };
        // The second time, all names are found at the destination.
        for _ in 0..2 {
            let failures = setting.copy(false);
            assert_eq!(failures.len(), pairs.len(), "{failures:?}");
            for (one, other) in pairs {
                let failed = |path: &str| {
                    let path = setting.source.join(path);
                    failures.iter().any(|failure| path.starts_with(failure.path()))
                };
                let copied = if failed(one) { other } else { one };
                assert!(!failed(copied), "{failures:?}");
                assert!(failures.iter().all(|failure| failure.reason().contains("two names of the source")));
                // The file system answers no requests for contents.
                let content = format!("the content of {copied}").into_bytes();
                let nodes = setting.nodes.lock().clone();
                assert!(nodes.iter().any(|node| node.content == content), "{copied} is lost");
            }
        }
        let names: Vec<String> = setting.end().into_iter().map(|node| node.name).collect();
        // One of each pair, the directory `in`, and what is in the directory of the third pair.
        assert_eq!(names.len(), pairs.len() + 2, "{names:?}");
    }
}

#[test]
fn a_mirror_keeps_a_directory_that_a_file_of_the_source_is_one_with() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("Foo")).unwrap();
    fs::write(source.join("Foo/file"), "the content").unwrap();
    let Some(setting) = Setting::mount(folder.path(), &source.join("Foo/file"), &[], true) else { return };
    let failures = setting.copy(true);
    assert!(failures.is_empty(), "{failures:?}");
    fs::write(source.join("foo"), "another one").unwrap();
    for mirror in [true, false] {
        let failures = setting.copy(mirror);
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].path().ends_with("foo"), "{failures:?}");
        assert!(failures[0].reason().contains("two names of the source"), "{failures:?}");
    }
    let nodes = setting.end();
    let names: Vec<&str> = nodes.iter().map(|node| &node.name[..]).collect();
    assert_eq!(names, ["Foo", "file"]);
    assert_eq!(nodes[1].content, b"the content");
}

#[test]
fn a_mirror_of_several_processes_keeps_a_directory_that_another_one_of_the_source_is_one_with() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let paths = ["Dir/file", "DIR/other"];
    for path in paths {
        fs::create_dir_all(source.join(path).parent().unwrap()).unwrap();
        fs::write(source.join(path), path).unwrap();
    }
    let Some(setting) = Setting::mount(folder.path(), &source.join("Dir/file"), &[], true) else { return };
    let failures = setting.mirror_together();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].reason().contains("two names of the source"), "{failures:?}");
    let nodes = setting.end();
    let copied =
        paths.iter().find(|path| !failures[0].path().ends_with(path.split_once('/').unwrap().0)).unwrap();
    assert_eq!(nodes.len(), 2);
    assert!(nodes.iter().any(|node| node.content == copied.as_bytes()), "{copied} is lost");
}

#[test]
fn a_name_that_has_only_changed_its_case_is_copied_over_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("Foo"), "new").unwrap();
    let Some(setting) = Setting::mount(folder.path(), &source.join("Foo"), &["FOO"], true) else { return };
    let failures = setting.copy(false);
    assert!(failures.is_empty(), "{failures:?}");
    let nodes = setting.end();
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes[0].content, b"new");
}

/// Creates a directory to mount a file system on, and returns that one, empty.
fn to_be_mounted(at: &Path) -> Folding {
    fs::create_dir(at).unwrap();
    let about = fs::metadata(at).unwrap();
    Folding {
        nodes: Arc::default(),
        time: about.modified().unwrap(),
        owner: (about.uid(), about.gid()),
        last: AtomicU64::new(ROOT),
        exclusive: true,
        stale: false,
        lost: 0,
        failing: Arc::default(),
        opened: AtomicU64::new(0),
        found_from: 0,
    }
}

/// Creates a directory, and mounts a file system with one file on it, which cannot be opened if it is `stale`, and is found
/// once directories were opened `found_from` times. `None` where there is no FUSE.
fn mount_lost_file(at: &Path, stale: bool, found_from: u64) -> Option<BackgroundSession> {
    let folding = Folding { stale, found_from, ..to_be_mounted(at) };
    folding.add(ROOT, OsStr::new("file"), FileType::RegularFile);
    mounted(folding, at)
}

/// A visitor that keeps what it is shown.
#[derive(Default)]
struct Seen {
    paths: Vec<PathBuf>,
    errors: Vec<WalkError>,
}

impl Visitor for Seen {
    type State = ();

    fn enter(&mut self, _: &Opened<'_, ()>) -> Option<()> {
        Some(())
    }

    fn visit(&mut self, entry: &Entry<'_, ()>) -> Verdict {
        self.paths.push(entry.path());
        Verdict::Descend
    }

    fn failed(&mut self, error: WalkError) {
        self.errors.push(error);
    }
}

#[test]
fn an_entry_with_a_stale_handle_is_looked_up_once_more_and_not_taken_for_removed() {
    for found_from in [2, u64::MAX] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let Some(_mounted) = mount_lost_file(&root, false, found_from) else { return };
        let options = nacre_walk::Options { threads: NonZeroUsize::MIN, ..nacre_walk::Options::default() };
        let (mut walk, mut visitors) = (Walk::new(options), [Seen::default()]);
        let number = walk.add_root(&root).unwrap();
        walk.start(number, &mut visitors[0]).unwrap();
        assert_eq!(walk.run(&mut visitors), Ended::Done);
        let [Seen { paths, errors }] = visitors;
        if found_from == 2 {
            assert_eq!((paths, errors), (vec![root.clone(), root.join("file")], vec![]));
        } else {
            assert_eq!(paths, [root.as_path()]);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].errno == libc::ESTALE && errors[0].path().ends_with("file"), "{errors:?}");
            assert!(!errors[0].vanished());
        }
    }
}

#[test]
fn a_file_that_a_server_has_lost_sight_of_is_an_error_and_not_taken_for_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let Some(_mounted) = mount_lost_file(&source, true, 0) else { return };
    let copy = Copy::new(&source, &target, options(false)).unwrap();
    copy.run().unwrap();
    let failures = copy.failures().first();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].to_string().contains("cannot open") && failures[0].path().ends_with("file"));
    assert_eq!(copy.counters().vanished.load(Ordering::Relaxed), 0);
}

#[test]
fn a_directory_that_a_server_has_lost_sight_of_is_an_error_of_a_removal_by_filters() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("mounted");
    let mut folding = to_be_mounted(&at);
    let root = folding.add(ROOT, OsStr::new("root"), FileType::Directory).ino.0;
    folding.lost = folding.add(root, OsStr::new("lost"), FileType::Directory).ino.0;
    folding.add(folding.lost, OsStr::new("file"), FileType::RegularFile);
    let Some(_mounted) = mounted(folding, &at) else { return };
    let selection = Selection { filter: Filter::default().ready(), descent: Descent::default() };
    let restriction = Restriction { selection, empty_directories: false };
    let removed = Removal::new(&[at.join("root")], NonZeroUsize::MIN).unwrap().restricted(restriction).run();
    let failures = removed.failures.first();
    assert_eq!((removed.entries, failures.len()), (0, 1), "{failures:?}");
    assert!(failures[0].path().ends_with("root/lost"), "{failures:?}");
}

#[test]
fn a_directory_that_could_not_be_opened_for_a_moment_is_an_error_of_several_processes() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let folding = to_be_mounted(&source);
    folding.add(ROOT, OsStr::new("directory"), FileType::Directory);
    let failing = Arc::clone(&folding.failing);
    let Some(_mounted) = mounted(folding, &source) else { return };
    let options = Options { threads: NonZeroUsize::MIN, ..options(false) };
    let copy = Copy::new(&source, &target, options.clone()).unwrap().together();
    let leave = |left: LeftOver| assert!(left.path.is_empty(), "{left:?} was left for later");
    let copied = copy.copy_part(true, &leave, |walk, visitors| {
        walk.run(visitors);
    });
    copied.unwrap();
    assert_eq!(copy.failures().count(), 0, "{:?}", copy.failures().first());
    failing.store(true, Ordering::Relaxed);
    copy.finish_root().unwrap();
    let finished = copy.finish_part(true, |walk, visitors| {
        walk.run(visitors);
    });
    finished.unwrap();
    assert_eq!(copy.failures().count(), 1);
    let comparison = Copy::for_comparison(&source, &target, options).unwrap().together();
    failing.store(true, Ordering::Relaxed);
    let compared =
        comparison.compare_part(true, (Aspects::ALL, &|_: Differing| {}), None, |walk, visitors| {
            walk.run(visitors);
        });
    compared.unwrap();
    assert_eq!(comparison.failures().count(), 1);
    for failures in [copy.failures().first(), comparison.failures().first()] {
        assert!(failures[0].path().ends_with("source/directory"), "{failures:?}");
    }
}
