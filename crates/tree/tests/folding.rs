//! Mirrors on a file system that ignores the case of names.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    ReplyAttr, ReplyDirectory, ReplyEmpty, ReplyEntry, Request,
};
use nacre_tree::copy::{Copy, Options};
use parking_lot::Mutex;

use crate::common::options;

/// One directory of empty files, whose names are kept as they were made and found whatever their case is.
struct Folding {
    names: Arc<Mutex<Vec<(u64, String)>>>,
    time: SystemTime,
    owner: (u32, u32),
}

impl Folding {
    fn attributes(&self, ino: u64) -> FileAttr {
        let directory = ino == 1;
        FileAttr {
            ino: INodeNo(ino),
            size: 0,
            blocks: 0,
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            crtime: self.time,
            kind: if directory { FileType::Directory } else { FileType::RegularFile },
            perm: if directory { 0o755 } else { 0o644 },
            nlink: if directory { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Folding {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let names = self.names.lock();
        match names.iter().find(|(_, known)| name.eq_ignore_ascii_case(known)) {
            Some((ino, _)) => reply.entry(&Duration::ZERO, &self.attributes(*ino), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &self.attributes(ino.0));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<fuser::TimeOrNow>,
        _: Option<fuser::TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&Duration::ZERO, &self.attributes(ino.0));
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        for (index, (ino, name)) in self.names.lock().iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*ino), index as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.names.lock().retain(|(_, known)| !name.eq_ignore_ascii_case(known));
        reply.ok();
    }
}

/// Mirrors a directory with the file `Foo` to one with other names. Returns the names that are there afterwards, and the
/// failures; `None` where there is no FUSE.
fn mirrored(folder: &Path, names: &[&str]) -> Option<(Vec<String>, Vec<String>)> {
    let (source, target) = (folder.join("source"), folder.join("target"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(source.join("Foo"), "").unwrap();
    let about = fs::metadata(source.join("Foo")).unwrap();
    let names = names.iter().zip(2..).map(|(name, ino)| (ino, (*name).to_owned())).collect();
    let names = Arc::new(Mutex::new(names));
    let time = about.modified().unwrap();
    let folding = Folding { names: Arc::clone(&names), time, owner: (about.uid(), about.gid()) };
    let mounted: BackgroundSession = match fuser::spawn_mount(folding, &target, &Config::default()) {
        Ok(mounted) => mounted,
        Err(error) => {
            eprintln!("skipped: FUSE cannot be mounted here: {error}");
            return None;
        }
    };
    let copy = Copy::new(&source, &target, Options { threads: NonZeroUsize::MIN, ..options(true) }).unwrap();
    copy.run().unwrap();
    let failures = copy.failures().first().iter().map(ToString::to_string).collect();
    drop(copy);
    mounted.umount_and_join().unwrap();
    let names = names.lock().iter().map(|(_, name)| name.clone()).collect();
    Some((names, failures))
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
