//! A tree with everything that file systems allow, what is compared of it, and copies of it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use serde_json::Value;

use crate::harness::{Ended, Random, program, run_with};

pub fn copy(words: &[&OsStr]) -> Ended {
    let mut command = program();
    command.arg("copy").args(words);
    run_with(command, b"")
}

/// Copies with some flags, and returns the report as JSON.
#[track_caller]
pub fn copied(from: &Path, to: &Path, flags: &[&str]) -> Value {
    let flags: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
    copy(&[&["--json".as_ref(), from.as_os_str(), to.as_os_str()], &flags[..]].concat()).json()
}

/// The metadata and contents of an entry, without its path.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    size: u64,
    device: u64,
    attributes: BTreeMap<OsString, Vec<u8>>,
    contents: Vec<u8>,
    /// The least of its names in this tree.
    first_name: Option<PathBuf>,
}

fn attributes(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut names = [0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = [0; 4096];
            let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            (OsString::from_vec(name.to_vec()), value[..len].to_vec())
        })
        .collect()
}

/// Returns every entry of a tree, by path.
pub fn snapshot(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut entries = BTreeMap::new();
    let mut names: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    let mut found = Vec::new();
    while let Some(below) = pending.pop() {
        let path = if below.as_os_str().is_empty() { root.to_owned() } else { root.join(&below) };
        let about = path.symlink_metadata().unwrap();
        if about.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| below.join(entry.unwrap().file_name())));
        } else {
            let first = names.entry((about.dev(), about.ino())).or_insert_with(|| below.clone());
            if below < *first {
                first.clone_from(&below);
            }
        }
        found.push((below, path, about));
    }
    for (below, path, about) in found {
        let contents = match about.file_type() {
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_vec(),
            kind if kind.is_file() => fs::read(&path).unwrap(),
            _ => Vec::new(),
        };
        let entry = Entry {
            mode: about.mode(),
            owner: (about.uid(), about.gid()),
            modified: (about.mtime(), about.mtime_nsec()),
            size: if about.is_dir() { 0 } else { about.size() },
            device: about.rdev(),
            attributes: attributes(&path),
            contents,
            first_name: names.get(&(about.dev(), about.ino())).cloned(),
        };
        entries.insert(below, entry);
    }
    entries
}

#[track_caller]
pub fn assert_same(a: &Path, b: &Path) {
    let (a, b) = (snapshot(a), snapshot(b));
    let (names_a, names_b): (Vec<_>, Vec<_>) = (a.keys().collect(), b.keys().collect());
    assert_eq!(names_a, names_b);
    for (path, entry) in &a {
        let other = &b[path];
        // Only where they differ: the text of large contents takes long to make.
        if entry != other {
            let [entry, other] = [entry, other].map(|entry| {
                let mut text = format!("{entry:?}");
                text.truncate(2000);
                text
            });
            panic!("{path:?}\n{entry}\n{other}");
        }
    }
}

pub fn set_time(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Returns an ACL in the kernel's format: version 2, then tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

pub fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// Creates a tree with everything that file systems allow, which needs root.
pub fn tree(root: &Path) {
    let mut random = Random(11);
    let mut folder = root.to_owned();
    for depth in 0..12 {
        folder.push(format!("level {depth}"));
        fs::create_dir_all(&folder).unwrap();
        for number in 0..depth * 4 {
            let path = folder.join(format!("file {number}"));
            let contents: Vec<u8> = (0..random.below(20_000)).map(|_| random.next() as u8).collect();
            fs::write(&path, contents).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(random.below(0o1000) as u32)).unwrap();
            if number % 5 == 0 {
                std::os::unix::fs::chown(&path, Some(number as u32), Some(7)).unwrap();
            }
            set_time(&path, random.below(1 << 32) as i64 - (1 << 31), random.below(1_000_000_000) as i64);
        }
        let (link, empty) = (folder.join("link"), folder.join("empty"));
        symlink("../somewhere/\nelse", &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(3), Some(4)).unwrap();
        set_time(&link, 1_000_000_000, 123_456_789);
        fs::create_dir(&empty).unwrap();
        fs::set_permissions(&empty, fs::Permissions::from_mode(0o1705)).unwrap();
        set_time(&empty, -5, 999_999_999);
    }
    for name in [&b"two\nlines"[..], b"\xff\xfe", b" ", b"-rf", b"*", &[b'n'; 255]] {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    fs::create_dir(root.join("links")).unwrap();
    for number in 0..20 {
        fs::hard_link(root.join("-rf"), root.join(format!("links/{number}"))).unwrap();
        fs::hard_link(root.join("level 0/link"), root.join(format!("links/link {number}"))).unwrap();
    }
    for (name, mode) in [("set-id", 0o6755), ("nobody reads", 0o000)] {
        fs::write(root.join(name), name).unwrap();
        std::os::unix::fs::chown(root.join(name), Some(1), Some(2)).unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    rustix::fs::mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::set_permissions(root.join("pipe"), fs::Permissions::from_mode(0o617)).unwrap();
    let device = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(CWD, root.join("null"), FileType::CharacterDevice, Mode::RUSR, device).unwrap();
    rustix::fs::mknodat(CWD, root.join("block"), FileType::BlockDevice, Mode::RUSR, device).unwrap();

    // Holes in front, between and at the end of data, and a file that is one hole.
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(9 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 3 << 20).unwrap();
    sparse.write_all_at(b"and later", (5 << 20) + 77).unwrap();
    fs::File::create(root.join("hole")).unwrap().set_len(5_000_001).unwrap();
    let large: Vec<u8> = (0..400_000).flat_map(|_| random.next().to_le_bytes()).collect();
    fs::write(root.join("large"), large).unwrap();

    let attributed = root.join("attributed");
    fs::create_dir(&attributed).unwrap();
    fs::write(attributed.join("file"), "x").unwrap();
    set_attribute(&attributed.join("file"), "user.comment", b"with \0 zeros");
    set_attribute(&attributed.join("file"), "user.empty", b"");
    set_attribute(&attributed.join("file"), "trusted.secret", &[7; 1000]);
    set_attribute(&attributed, "user.directory", b"yes");
    let owner = |mine| {
        [
            (0x01, mine, u32::MAX),
            (0x02, 7, 1234),
            (0x04, 5, u32::MAX),
            (0x10, 7, u32::MAX),
            (0x20, 0, u32::MAX),
        ]
    };
    set_attribute(&attributed.join("file"), "system.posix_acl_access", &acl(&owner(6)));
    set_attribute(&attributed, "system.posix_acl_access", &acl(&owner(7)));
    // Entries created in it inherit an ACL; these lack it.
    fs::write(attributed.join("without"), "").unwrap();
    fs::create_dir(attributed.join("folder without")).unwrap();
    fs::write(attributed.join("folder without/file"), "").unwrap();
    set_attribute(&attributed, "system.posix_acl_default", &acl(&owner(7)));
    for path in ["", "links", "attributed", "level 0", "level 0/level 1"] {
        set_time(&root.join(path), 1_234_567_890, 987_654_321);
    }
}

#[track_caller]
pub fn as_root() {
    if !rustix::process::geteuid().is_root() {
        panic!(
            "this test makes owners, devices or mounts, or runs the program as another user: run it as root"
        );
    }
}

/// Finds the temporary names of unfinished copies.
pub fn unfinished(folder: &Path) -> Vec<PathBuf> {
    let find = Command::new("find").arg(folder).args(["-name", ".nacre-copy-*", "-print0"]).output().unwrap();
    let paths = find.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect()
}
