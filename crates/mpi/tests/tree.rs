//! Tests of copies, comparisons and removals by whole jobs, through the built program.

mod common;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{arguments_bytes_max, job, launcher, ranks_with, run, wait};

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
    std::fs::write(root.join("crowded/pair"), &large).unwrap();
    std::fs::hard_link(root.join("crowded/pair"), root.join("0/pair")).unwrap();
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

#[track_caller]
fn assert_same(a: &Path, b: &Path) {
    let (listed, copied) = (described(a), described(b));
    for (entry, other) in listed.iter().zip(&copied) {
        assert!(entry == other, "{} is {}", String::from_utf8_lossy(entry), String::from_utf8_lossy(other));
    }
    assert_eq!(listed.len(), copied.len());
    // Not the pipe, which diff would wait for.
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference", "--exclude=pipe"]).arg(a).arg(b);
    let diff = diff.output().unwrap();
    assert!(diff.status.success() && diff.stdout.is_empty(), "{diff:?}");
}

/// Returns the names of unfinished files of copies in a directory.
fn unfinished(directory: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().as_bytes().to_vec());
    names.filter(|name| name.starts_with(b".nacre-copy-")).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Starts a job and ends it by a signal to one of its ranks when `begun` says so; returns whether it was ended so.
fn end_early(ranks: usize, arguments: &[&str], mark: &str, signal: Signal, begun: impl Fn() -> bool) -> bool {
    let mut running = job(ranks, arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !begun() && running.try_wait().unwrap().is_none() {
        // The ranks are to have the processors.
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Some(rank) = ranks_with(mark).last() {
        let _ = rustix::process::kill_process(*rank, signal);
    }
    let output = wait(running, mark);
    // Ranks may outlive their launcher for a moment, with the lock on what they write.
    let begun = Instant::now();
    while !ranks_with(mark).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(240), "the ranks do not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    !output.status.success()
}

#[test]
fn ranks_copy_a_tree_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    let words = ["copy", text(&source), text(&target), "--chunk", "64KiB"];
    for (ranks, algorithm) in [(3, "h-drqs"), (4, "drqs"), (2, "pa-drqs"), (1, "deqs")] {
        let words = [&words[..], &["--algorithm", algorithm]].concat();
        let said = succeed(ranks, &words);
        assert_eq!((&said["errors"], &said["unchanged"]), (&0.into(), &0.into()), "{said}");
        // One name of each of these files is copied, and the other is made a link to it, whichever ranks met them.
        assert_eq!(said["linked"], 401, "{said}");
        let directories =
            described(&source).iter().filter(|entry| entry.windows(3).any(|part| part == b" d ")).count();
        assert_eq!(said["directories"], directories, "{said}");
        assert_same(&source, &target);
        let mut comment = [0; 16];
        let len = rustix::fs::lgetxattr(target.join("1"), "user.comment", &mut comment[..]).unwrap();
        assert_eq!(&comment[..len], b"kept too");
        let blocks = std::fs::metadata(target.join("0/sparse")).unwrap().blocks();
        assert!(blocks * 512 < 1 << 20, "holes stay holes: {blocks} blocks");

        // What is there is not copied again.
        let said = succeed(ranks, &words);
        let copied = (&said["copied"], &said["linked"], &said["bytes"]);
        assert_eq!(copied, (&0.into(), &0.into(), &0.into()), "{said}");
        assert_same(&source, &target);
        std::fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
fn the_progress_of_a_copy_is_shown_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    let output = run(3, &["copy", "--progress", "--chunk", "64KiB", text(&source), text(&target)]);
    assert!(output.status.success(), "{output:?}");
    let complaint = String::from_utf8_lossy(&output.stderr).replace(',', "");
    let last = complaint.lines().rfind(|line| line.contains(" pending")).unwrap();
    assert!(last.contains(&format!("nacre-mpi: {} entries ", described(&source).len())), "{complaint}");
}

#[test]
fn ranks_tell_every_difference_once() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    succeed(2, &["copy", text(&source), text(&target)]);
    for ranks in [1, 3] {
        let said = succeed(ranks, &["compare", "--chunk", "64KiB", text(&source), text(&target)]);
        let same = described(&source).len();
        assert_eq!((&said["same"], &said["different"]), (&same.into(), &0.into()), "{said}");
    }
    let times = std::fs::metadata(target.join("large")).unwrap().modified().unwrap();
    let changed = std::fs::File::options().write(true).open(target.join("large")).unwrap();
    changed.write_all_at(b"others", 1_500_000).unwrap();
    changed.set_modified(times).unwrap();
    std::fs::create_dir_all(target.join("crowded/more")).unwrap();
    std::fs::write(target.join("crowded/more/file"), "").unwrap();
    std::fs::write(target.join("1/2/more"), "").unwrap();
    std::fs::remove_file(target.join("crowded/file 9")).unwrap();
    std::fs::remove_dir_all(target.join("2/2")).unwrap();
    std::fs::write(target.join("2/2"), "").unwrap();
    let words = ["compare", "--contents-only", "--chunk", "64KiB", text(&source), text(&target)];
    for (ranks, algorithm) in [(3, "h-drqs"), (4, "drqs")] {
        let output = run(ranks, &[&words[..], &["--algorithm", algorithm]].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<&str> = printed.lines().collect();
        lines.sort_unstable();
        let expected = [
            "differ (contents): large",
            "differ (type): 2/2",
            "only in the destination: 1/2/more",
            "only in the destination: crowded/more",
            "only in the source: crowded/file 9",
        ];
        let differing: Vec<&str> = lines.iter().copied().filter(|line| !line.ends_with("same")).collect();
        assert_eq!(differing, expected);
        assert!(lines.iter().any(|line| line.starts_with("5 differ, ")), "{lines:?}");
    }
    let output = run(2, &["compare", text(&source), text(&folder.path().join("nowhere"))]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // Differences that cannot be printed.
    let mut command = launcher(2);
    command.args(["sh", "-c", "exec \"$0\" \"$@\" >/dev/full", env!("CARGO_BIN_EXE_nacre-mpi")]);
    let output = command.args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn ranks_tell_of_many_entries_beside_the_directories_of_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    std::fs::create_dir(&source).unwrap();
    std::fs::create_dir(&target).unwrap();
    std::fs::write(source.join("file"), "").unwrap();
    for number in 0..10_000 {
        std::fs::write(target.join(format!("a file that only the destination has, {number}")), "").unwrap();
    }
    for words in [&["compare"][..], &["copy", "--mirror", "--dry-run", "--list"]] {
        // Not by a pipe, which nobody reads before the job has ended.
        let printed = folder.path().join("printed");
        let mut command = job(2, &[words, &[text(&source), text(&target)]].concat());
        command.stdout(std::fs::File::create(&printed).unwrap()).stderr(Stdio::null());
        wait(command.spawn().unwrap(), text(&target));
        let printed = std::fs::read_to_string(printed).unwrap();
        assert_eq!(printed.matches("a file that only the destination has").count(), 10_000);
    }
}

#[test]
fn ranks_make_a_mirror_after_a_look_at_what_that_means() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    let said = succeed(2, &["copy", "--verify", "--chunk", "64KiB", text(&source), text(&target)]);
    assert_eq!(said["verified"], described(&source).len(), "{said}");
    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "stays").unwrap();
    // Four entries that the source has not, and two directories, with three entries, in the place of files.
    std::fs::create_dir_all(target.join("crowded/more/deeper")).unwrap();
    std::fs::write(target.join("1/2/more"), "").unwrap();
    std::os::unix::fs::symlink(&outside, target.join("crowded/out")).unwrap();
    for (file, inside) in [("crowded/file 9", "in it"), ("large", "in it as well")] {
        std::fs::remove_file(target.join(file)).unwrap();
        std::fs::create_dir(target.join(file)).unwrap();
        std::fs::write(target.join(file).join(inside), "").unwrap();
    }
    std::fs::remove_file(target.join("crowded/file 10")).unwrap();
    let mirror = ["copy", "--mirror", text(&source), text(&target), "--chunk", "64KiB"];
    let before = described(&target);
    let output = run(2, &mirror);
    assert_eq!(output.status.code(), Some(2), "a job has nobody to ask: {output:?}");
    let output = run(3, &[&["--json"], &mirror[..], &["--dry-run", "--list"]].concat());
    assert!(output.status.success(), "{output:?}");
    let said = totals(&output.stdout);
    assert_eq!((&said["removed"], &said["copied"]), (&8.into(), &3.into()), "{said}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.matches("{\"action\":\"remove\"").count(), 3, "{printed}");
    assert_eq!(described(&target), before);
    let said = succeed(3, &[&mirror[..], &["--yes"]].concat());
    assert_eq!((&said["removed"], &said["copied"]), (&8.into(), &3.into()), "{said}");
    assert_same(&source, &target);
    assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"stays");

    // An empty source is as that of a file system that is not mounted.
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let output = run(2, &["copy", "--mirror", "--yes", text(&empty), text(&target)]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_same(&source, &target);
}

#[test]
fn ranks_report_what_cannot_be_copied_and_copy_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    // Directories that are in the place of files: a small one, a large one, and one with another name.
    let names = ["crowded/file 77", "large", "crowded/name 7"];
    for name in names {
        std::fs::create_dir_all(target.join(name)).unwrap();
    }
    let errors = folder.path().join("errors");
    let words = ["copy", text(&source), text(&target), "--chunk", "64KiB", "--errors", text(&errors)];
    let output = run(3, &[&["--json"], &words[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = totals(&output.stdout);
    assert_eq!(said["errors"], names.len(), "{said}");
    let written: String = (0..3)
        .map(|rank| std::fs::read_to_string(errors.with_extension(rank.to_string())).unwrap())
        .collect();
    assert_eq!(written.lines().count(), names.len(), "{written}");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    for name in names {
        assert!(complaint.contains(name), "{name}: {complaint}");
        std::fs::remove_dir(target.join(name)).unwrap();
    }
    let said = succeed(2, &["copy", text(&source), text(&target)]);
    assert_eq!(said["errors"], 0, "{said}");
    assert_same(&source, &target);
}

#[test]
fn ranks_refuse_what_they_do_not_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), "").unwrap();
    for (from, to, reason) in [
        (source.join("file"), target.clone(), "not a directory"),
        (source.clone(), source.join("inside"), "itself"),
        (folder.path().join("nowhere"), target.clone(), "nowhere"),
    ] {
        let output = run(3, &["copy", text(&from), text(&to)]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(complaint.matches(reason).count(), 1, "{complaint}");
    }
    let output = run(2, &["copy", "--algorithm", "cp", text(&source), text(&target)]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(!target.exists());
}

#[test]
fn ranks_that_see_different_trees_under_their_paths_do_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [source, target, other] = ["source", "target", "other"].map(|name| {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), name).unwrap();
        path
    });
    let jobs: [(&[&str], &[&Path], &[&Path]); 3] = [
        (&["compare"], &[&source, &target], &[&source, &other]),
        (&["copy"], &[&source, &target], &[&other, &target]),
        (&["remove", "--yes"], &[&target], &[&other]),
    ];
    for (command, paths, others) in jobs {
        // As on two nodes: each rank is given paths of its own.
        let [paths, others] =
            [paths, others].map(|paths| paths.iter().map(|path| text(path)).collect::<Vec<_>>());
        let next = [":", "-n", "1", env!("CARGO_BIN_EXE_nacre-mpi")];
        let output = run(1, &[command, &paths[..], &next[..], command, &others[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(complaint.contains("rank 1 sees"), "{output:?}");
        for path in [&source, &target, &other] {
            assert_eq!(std::fs::read(path.join("file")).unwrap(), path.file_name().unwrap().as_bytes());
        }
    }
}

#[test]
fn a_killed_or_stopped_copy_goes_on_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    // Large enough to be met at work, as are the folders.
    let bytes: Vec<u8> = (0..2_000_000_u64).flat_map(|number| (number * number).to_le_bytes()).collect();
    std::fs::write(source.join("larger"), &bytes).unwrap();
    let words = ["copy", text(&source), text(&target), "--chunk", "256KiB"];
    let many = || std::fs::read_dir(target.join("crowded")).is_ok_and(|entries| entries.count() > 700);
    let large = || {
        // Whatever the moment, the final name is that of a complete file.
        if let Ok(metadata) = std::fs::metadata(target.join("larger")) {
            assert_eq!(metadata.len(), bytes.len() as u64);
        }
        unfinished(&target).iter().any(|name| name.ends_with(b".chunks"))
    };
    let moments: [&dyn Fn() -> bool; 2] = [&many, &large];
    // Of a machine with much else to do no job may be met at work at once.
    let was_met = (0..4).any(|_| {
        let mut ended = 0;
        for moment in moments {
            for signal in [Signal::KILL, Signal::TERM] {
                ended += usize::from(end_early(3, &words, text(&target), signal, moment));
            }
        }
        // Another number of ranks may go on.
        let said = succeed(2, &words);
        assert_eq!(said["errors"], 0, "{said}");
        assert_same(&source, &target);
        assert_eq!(unfinished(&target), Vec::<Vec<u8>>::new());
        std::fs::remove_dir_all(&target).unwrap();
        ended > 0
    });
    assert!(was_met, "no job was met at work");
}

#[test]
fn a_mirror_is_stopped_while_it_removes_what_is_beside_its_directories() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), "").unwrap();
    let mirror = ["copy", "--mirror", "--yes", text(&source), text(&target)];
    let extra = target.join("extra");
    let entries = || std::fs::read_dir(&extra).map_or(0, Iterator::count);
    let modified = || std::fs::metadata(&extra).and_then(|metadata| metadata.modified()).ok();
    let mut met = false;
    for _ in 0..5 {
        std::fs::create_dir_all(&extra).unwrap();
        for number in 0..40_000 {
            std::fs::write(extra.join(format!("{number}")), "").unwrap();
        }
        let whole = modified();
        let mut running = job(2, &mirror).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while modified() == whole && running.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        for rank in ranks_with(text(&target)) {
            let _ = rustix::process::kill_process(rank, Signal::TERM);
        }
        met = !wait(running, text(&target)).status.success() && entries() > 0;
        if met {
            break;
        }
    }
    assert!(met, "no job was stopped while it removed");
    succeed(2, &mirror);
    assert_same(&source, &target);
}

#[test]
fn directories_that_are_renamed_meanwhile_lead_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for number in 0..3 {
                    let here = source.join(format!("{number}/{}", number + 3));
                    let there = outside.join(format!("{number}"));
                    if std::fs::rename(&here, &there).is_ok() {
                        let _ = std::os::unix::fs::symlink(&outside, &here);
                        std::thread::yield_now();
                        let _ = std::fs::remove_file(&here);
                        std::fs::rename(&there, &here).unwrap();
                    }
                }
                // The ranks are to have the processors, too.
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let outputs = [(); 3].map(|()| run(3, &["copy", text(&source), text(&target)]));
        over.store(true, Ordering::Relaxed);
        for output in outputs {
            assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        }
    });
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "nothing was written outside");
    // What nobody moved is there.
    let entries = |root: &Path| std::fs::read_dir(root.join("crowded")).unwrap().count();
    assert_eq!(entries(&target), entries(&source));
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
    // Errors are only counted.
    let errors = folder.path().join("errors");
    let output = run(2, &["remove", "--dry-run", "--errors", text(&errors), text(&root)]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn ranks_list_many_paths_that_they_would_remove() {
    let folder = tempfile::tempdir().unwrap();
    // Together they are more than is kept of what nobody takes; launchers pass on only so many arguments.
    let inside = folder.path().join("long ".repeat(50));
    std::fs::create_dir(&inside).unwrap();
    let count = arguments_bytes_max() / 540;
    let paths: Vec<_> =
        (0..count).map(|number| inside.join(format!("{}{number}", "long ".repeat(50)))).collect();
    paths.iter().for_each(|path| std::fs::write(path, "").unwrap());
    let words: Vec<&str> = paths.iter().map(|path| text(path)).collect();
    let printed = folder.path().join("printed");
    let mut command = job(2, &[&["remove", "--dry-run", "--list"], &words[..]].concat());
    command.stdout(std::fs::File::create(&printed).unwrap()).stderr(Stdio::null());
    wait(command.spawn().unwrap(), words[0]);
    let printed = std::fs::read_to_string(printed).unwrap();
    assert_eq!(printed.lines().filter(|line| words.contains(line)).count(), words.len());
}

#[test]
fn a_removal_that_was_stopped_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let removal = ["remove", "--yes", text(&root)];
    // Each of them has to meet a job at work, which on a busy machine may take several.
    let mut signals = vec![Signal::KILL, Signal::TERM];
    for _ in 0..8 {
        let Some(signal) = signals.last().copied() else { break };
        tree(&root);
        // Enough to be met at work.
        for number in 0..10 {
            let more = root.join(format!("more {number}"));
            std::fs::create_dir(&more).unwrap();
            for file in 0..2000 {
                std::fs::write(more.join(format!("{file}")), "").unwrap();
            }
        }
        let fewer = || !std::fs::read_dir(root.join("crowded")).is_ok_and(|entries| entries.count() >= 3400);
        if end_early(3, &removal, text(&root), signal, fewer) {
            signals.pop();
        }
        if root.exists() {
            succeed(2, &removal);
        }
        assert!(!root.exists());
    }
    assert!(signals.is_empty(), "no job was met at work: {signals:?}");
}
