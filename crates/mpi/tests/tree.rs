//! Tests of removals by whole jobs, through the built program.

mod common;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{job, ranks_with, run, wait};

/// Returns the totals that a job prints, which has to succeed.
#[track_caller]
fn succeed(ranks: usize, arguments: &[&str]) -> Value {
    let output = run(ranks, &[&["--json"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    totals(&output.stdout)
}

fn totals(printed: &[u8]) -> Value {
    let text = String::from_utf8(printed.to_vec()).unwrap();
    serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap()
}

/// Creates folders in folders, one with very many files, files with several names in several folders, holes, a large
/// file, a pipe, links, attributes, and names of every kind.
fn tree(root: &Path) {
    let crowded = root.join("crowded");
    std::fs::create_dir_all(&crowded).unwrap();
    for number in 0..3000 {
        std::fs::write(crowded.join(format!("file {number}")), format!("{number}")).unwrap();
    }
    for number in 0..400 {
        let folder = root.join(format!("{}/{}/{}", number % 3, number % 20, number));
        std::fs::create_dir_all(&folder).unwrap();
        for file in 0..1 + number % 17 {
            std::fs::write(folder.join(format!("file {file}")), vec![b'x'; file * 100]).unwrap();
        }
        std::fs::hard_link(folder.join("file 0"), crowded.join(format!("name {number}"))).unwrap();
        if number % 10 == 0 {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o2750)).unwrap();
        }
    }
    for name in [&b"line\nfeed"[..], b"not \xff UTF-8"] {
        std::fs::write(root.join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
    }
    std::os::unix::fs::symlink("../..", root.join("1/link")).unwrap();
    rustix::fs::mknodat(CWD, root.join("2/pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let large: Vec<u8> = (0..300_000_u64).flat_map(|number| (number * number).to_le_bytes()).collect();
    std::fs::write(root.join("large"), &large).unwrap();
    let sparse = std::fs::File::create(root.join("0/sparse")).unwrap();
    sparse.set_len(9 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 3 << 20).unwrap();
    rustix::fs::lsetxattr(root.join("large"), "user.comment", b"kept", XattrFlags::empty()).unwrap();
    rustix::fs::lsetxattr(root.join("1"), "user.comment", b"kept too", XattrFlags::empty()).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 987_654_321);
    for path in ["large", "crowded/file 7", "0", "1", "2", "crowded", "1/2", ""] {
        std::fs::File::open(root.join(path)).unwrap().set_modified(old).unwrap();
    }
}

/// Returns path, type, mode, owner, size, time, link target and number of names of every entry; of directories no size.
fn described(root: &Path) -> Vec<Vec<u8>> {
    let output = Command::new("find")
        .arg(root)
        .args(["-type", "d", "-printf", "%P %y %m %U %G %T@\\0"])
        .args(["-o", "-printf", "%P %y %m %U %G %s %l %n %T@\\0"])
        .output()
        .unwrap();
    let mut entries: Vec<_> = output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    // Behind the last one.
    entries.retain(|entry| !entry.is_empty());
    entries.sort();
    entries
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Starts a job and ends it by a signal to one of its ranks when `begun` says so; returns whether it was ended so.
fn end_early(ranks: usize, arguments: &[&str], mark: &str, signal: Signal, begun: impl Fn() -> bool) -> bool {
    let mut running = job(ranks, arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !begun() && running.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    if let Some(rank) = ranks_with(mark).last() {
        let _ = rustix::process::kill_process(*rank, signal);
    }
    !wait(running, mark).status.success()
}

#[test]
fn ranks_remove_a_tree_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    std::fs::write(folder.path().join("beside"), "stays").unwrap();
    for (ranks, algorithm) in [(3, "h-drqs"), (4, "drqs"), (1, "deqs")] {
        tree(&root);
        std::os::unix::fs::symlink(folder.path(), root.join("crowded/outside")).unwrap();
        let entries = described(&root).len();
        let output = run(ranks, &["remove", text(&root)]);
        assert_eq!(output.status.code(), Some(2), "a job has nobody to ask: {output:?}");
        let said =
            succeed(ranks, &["remove", "--yes", "--algorithm", algorithm, "--name", "file 1*", text(&root)]);
        let left = described(&root).len();
        assert!(left < entries && root.join("0/0").exists());
        assert_eq!(said["removed"], entries - left, "{said}");
        let said = succeed(ranks, &["remove", "--yes", "--algorithm", algorithm, text(&root)]);
        assert_eq!((&said["removed"], &said["errors"]), (&left.into(), &0.into()), "{said}");
        assert!(!root.exists());
        assert_eq!(std::fs::read(folder.path().join("beside")).unwrap(), b"stays");
    }
    let output = run(2, &["remove", "--yes", text(&root)]);
    assert_eq!(output.status.code(), Some(2), "it is gone: {output:?}");
}

#[test]
fn ranks_count_and_list_what_they_would_remove() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    tree(&root);
    let before = described(&root);
    let output = run(3, &["--json", "remove", "--dry-run", "--list", text(&root)]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    let lines: BTreeSet<&str> = printed.lines().filter(|line| line.contains("\"path")).collect();
    assert_eq!(lines.len(), before.len());
    let said = totals(&output.stdout);
    assert_eq!((&said["entries"], &said["errors"]), (&before.len().into(), &0.into()), "{said}");
    assert_eq!(described(&root), before);
}

#[test]
fn a_removal_that_was_stopped_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let removal = ["remove", "--yes", text(&root)];
    let mut ended = 0;
    for signal in [Signal::TERM, Signal::KILL, Signal::TERM, Signal::KILL] {
        tree(&root);
        // Enough to be met at work.
        for number in 0..20 {
            let more = root.join(format!("more {number}"));
            std::fs::create_dir(&more).unwrap();
            for file in 0..2000 {
                std::fs::write(more.join(format!("{file}")), "").unwrap();
            }
        }
        let fewer = || !std::fs::read_dir(root.join("crowded")).is_ok_and(|entries| entries.count() >= 3400);
        ended += usize::from(end_early(3, &removal, text(&root), signal, fewer));
        if root.exists() {
            succeed(2, &removal);
        }
        assert!(!root.exists());
    }
    assert!(ended > 0, "no job was met at work");
}
