//! File trees with everything that file systems allow, and the output of `find` on a tree.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat};

/// Creates such a tree below a folder. Needs root, for devices and owners.
#[track_caller]
pub fn make(root: &Path) {
    require_root();
    let folder = root.join("sizes");
    fs::create_dir(&folder).unwrap();
    for size in [0, 1, 2, 511, 512, 513, 1023, 1024, 1025, 4096, 10_000, 1 << 20, (1 << 20) + 1] {
        fs::write(folder.join(format!("{size}.dat")), vec![1; size]).unwrap();
    }
    File::create(folder.join("sparse")).unwrap().set_len(5 << 30).unwrap();

    let folder = root.join("Ages");
    fs::create_dir(&folder).unwrap();
    for hours in [-36_i64, 1, 12, 23, 25, 47, 49, 71, 73, 24 * 30 + 1, 24 * 365 * 40] {
        let path = folder.join(format!("{hours}h.TXT"));
        let distance = Duration::from_nanos(hours.unsigned_abs() * 3_600_000_000_000 + 123_456_789);
        let now = SystemTime::now();
        let time = if hours < 0 { now + distance } else { now - distance };
        File::create(&path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    }
    let ancient = SystemTime::UNIX_EPOCH - Duration::from_millis(1_500);
    File::create(folder.join("before the epoch"))
        .unwrap()
        .set_times(FileTimes::new().set_modified(ancient))
        .unwrap();

    let folder = root.join("links");
    fs::create_dir(&folder).unwrap();
    for number in 0..50 {
        let path = folder.join(format!("file {number}"));
        fs::write(&path, vec![2; 100 * number]).unwrap();
        for name in 0..number % 4 {
            fs::hard_link(&path, root.join(format!("sizes/name {name} of {number}"))).unwrap();
        }
    }
    symlink("..", folder.join("up")).unwrap();
    symlink("nowhere", folder.join("broken")).unwrap();
    fs::hard_link(folder.join("broken"), folder.join("broken too")).unwrap();

    let folder = root.join("special");
    fs::create_dir(&folder).unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap());
    mknodat(CWD, folder.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    mknodat(CWD, folder.join("zero"), FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 5))
        .unwrap();
    mknodat(CWD, folder.join("loop"), FileType::BlockDevice, Mode::RUSR, rustix::fs::makedev(7, 0)).unwrap();
    chown(folder.join("pipe"), Some(65534), Some(65534)).unwrap();
    chown(folder.join("zero"), Some(4_000_000), Some(4_000_001)).unwrap();
    chown(&folder, Some(65534), None).unwrap();

    let folder = root.join("names");
    fs::create_dir(&folder).unwrap();
    for name in [
        &b"two\nlines"[..],
        b"not \xff UTF-8 \x01",
        b"tab\tin it",
        b"quote\"back\\slash",
        b"[a]b*c?",
        b"{a,b}",
        b".hidden",
        b"-rf",
        b" ",
        "ünïcödé".as_bytes(),
        &[b'n'; 255],
    ] {
        let path = folder.join(OsStr::from_bytes(name));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside.c"), "x").unwrap();
        fs::create_dir(path.join("empty")).unwrap();
    }
    let folder = root.join("many");
    fs::create_dir(&folder).unwrap();
    for number in 0..3000 {
        fs::write(folder.join(format!("entry {number}")), "").unwrap();
    }
    chain(&root.join("deep"), 300, "d");
    // Much longer than any path that a system call accepts.
    chain(&root.join("long"), 40, &"long".repeat(50));
}

/// Creates nested directories, with a file in the innermost one.
pub fn chain(top: &Path, levels: usize, name: &str) {
    fs::create_dir(top).unwrap();
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(top, flags, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&at, name, Mode::from_raw_mode(0o755)).unwrap();
        at = openat(&at, name, flags, Mode::empty()).unwrap();
    }
    openat(&at, "bottom", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR).unwrap();
}

#[track_caller]
pub fn require_root() {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "this test makes devices, owners or mounts: run it as root, in a container for example");
}

/// Returns the output of a program, which must succeed.
#[track_caller]
pub fn output(command: &mut Command, package: &str) -> Vec<u8> {
    let output = command.env("LC_ALL", "C").output();
    let program = command.get_program();
    let output = output.unwrap_or_else(|error| panic!("{program:?}: {error}; apt install {package}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output.stdout
}

/// Returns the output of `find` on a tree, split at zero bytes and sorted.
#[track_caller]
pub fn find(words: &[&str]) -> Vec<Vec<u8>> {
    records(&output(Command::new("find").args(words), "findutils"))
}

/// Returns the pieces between zero bytes, sorted.
#[track_caller]
pub fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records: Vec<Vec<u8>> = bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    assert_eq!(records.pop().as_deref(), Some(&[][..]), "the last record ends too");
    records.sort();
    records
}
