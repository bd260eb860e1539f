//! `nacre copy` compared with `cp -a`, killed and started again, on full disks, and while its source and destination
//! change.

#[path = "copy/compare.rs"]
mod compare;
mod harness;
#[path = "copy/interrupted.rs"]
mod interrupted;
#[path = "copy/meanwhile.rs"]
mod meanwhile;
#[path = "copy/tree.rs"]
mod tree;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{program, run_with};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps};
use serde_json::Value;
use tree::{as_root, assert_same, copied, copy, set_attribute, set_time, snapshot, tree, unfinished};

#[test]
fn everything_is_kept_as_cp_keeps_it() {
    as_root();
    let folder = harness::folder();
    let source = folder.path().join("source");
    tree(&source);
    let reference = folder.path().join("reference");
    assert!(Command::new("cp").arg("-a").arg(&source).arg(&reference).status().unwrap().success());
    for (threads, chunk) in [("1", "64MiB"), ("2", "64KiB"), ("8", "1MiB")] {
        let target = folder.path().join(format!("copy {threads}"));
        let flags = ["--threads", threads, "--chunk", chunk, "--verify"];
        let said = copied(&source, &target, &flags);
        assert_eq!(
            (&said["errors"], &said["left_out"], &said["unchanged"]),
            (&0.into(), &0.into(), &0.into())
        );
        assert_eq!(said["linked"], 40);
        assert_same(&source, &target);
        assert_same(&reference, &target);
        // Holes stay holes.
        for name in ["sparse", "hole"] {
            let blocks = fs::metadata(target.join(name)).unwrap().blocks();
            assert!(blocks * 512 < 1 << 20, "{name}: {blocks} blocks");
        }
        assert_eq!(unfinished(&target), [] as [PathBuf; 0]);

        // A repeated run copies nothing, whatever it compares by.
        for flags in [&flags[..4], &["--checksum"], &["--checksum", "--chunk", "64KiB"]] {
            let said = copied(&source, &target, flags);
            assert_eq!(
                (&said["copied"], &said["linked"], &said["bytes"]),
                (&0.into(), &0.into(), &0.into()),
                "{said}"
            );
            assert_same(&source, &target);
        }
    }
}

#[test]
fn only_what_differs_is_copied_again() {
    as_root();
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    copied(&source, &target, &[]);
    let inode = |path: &str| fs::symlink_metadata(target.join(path)).unwrap().ino();
    let (kept, mode_only) = (inode("level 0/level 1/file 1"), inode("level 0/level 1/level 2/file 3"));

    let changed = source.join("level 0/level 1/file 0");
    fs::write(&changed, "something else").unwrap();
    fs::set_permissions(source.join("level 0/level 1/level 2/file 3"), fs::Permissions::from_mode(0o123))
        .unwrap();
    set_attribute(&source.join("level 0/level 1/level 2/file 4"), "user.new", b"1");
    fs::remove_file(source.join("level 0/link")).unwrap();
    symlink("a new target", source.join("level 0/link")).unwrap();
    fs::write(target.join("only there"), "stays").unwrap();
    // Other contents of the same size with the same time: only --checksum detects that.
    let time = fs::metadata(source.join("large")).unwrap();
    let file = fs::File::options().write(true).open(source.join("large")).unwrap();
    file.write_all_at(b"others", 1_500_000).unwrap();
    set_time(&source.join("large"), time.mtime(), time.mtime_nsec());
    // The remains of a killed run, and a file whose name only resembles one.
    fs::write(target.join("level 0/.nacre-copy-0123456789abcdef0123456789abcdef"), "half").unwrap();
    fs::write(target.join("level 0/.nacre-copy-mine"), "whole").unwrap();

    let said = copied(&source, &target, &[]);
    assert_eq!(said["copied"], 2, "{said}");
    assert_eq!((inode("level 0/level 1/file 1"), inode("level 0/level 1/level 2/file 3")), (kept, mode_only));
    assert_eq!(fs::read(target.join("level 0/.nacre-copy-mine")).unwrap(), b"whole");
    assert!(!target.join("level 0/.nacre-copy-0123456789abcdef0123456789abcdef").exists());
    assert!(fs::read(target.join("large")).unwrap() != fs::read(source.join("large")).unwrap());
    let mut words = vec![OsStr::new("--verify"), source.as_os_str(), target.as_os_str()];
    let ended = copy(&words);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("large\": its contents are others"), "{ended:?}");
    words.push(OsStr::new("--checksum"));
    copy(&words).ok();
    assert_eq!(fs::read(target.join("only there")).unwrap(), b"stays");
    fs::remove_file(target.join("only there")).unwrap();
    fs::remove_file(target.join("level 0/.nacre-copy-mine")).unwrap();
    set_time(&target, 1_234_567_890, 987_654_321);
    set_time(
        &target.join("level 0"),
        fs::metadata(source.join("level 0")).unwrap().mtime(),
        fs::metadata(source.join("level 0")).unwrap().mtime_nsec(),
    );
    assert_same(&source, &target);
}

#[test]
fn where_the_copy_is_made() {
    let folder = harness::folder();
    let at = |path: &str| folder.path().join(path);
    fs::create_dir_all(at("source/inner")).unwrap();
    fs::write(at("source/inner/file"), "text").unwrap();
    fs::write(at("single"), "one").unwrap();
    fs::create_dir(at("into")).unwrap();
    symlink("source", at("link")).unwrap();
    let words = |from: &str, to: &str| [at(from).into_os_string(), folder.path().join(to).into_os_string()];
    let run = |from: &str, to: &str| {
        let words = words(from, to);
        copy(&[&words[0], &words[1]])
    };
    // The same command gives the same result every time.
    for _ in 0..2 {
        run("source", "copy").ok();
        assert_same(&at("source"), &at("copy"));
        run("source", "into/").ok();
        assert_same(&at("source"), &at("into/source"));
        run("single", "into").ok();
        assert_same(&at("single"), &at("into/single"));
        run("single", "single copy").ok();
        assert_same(&at("single"), &at("single copy"));
        run("link", "link copy").ok();
        assert_same(&at("link"), &at("link copy"));
        run("link/", "through link").ok();
        assert_same(&at("source"), &at("through link"));
    }
    let mut command = program();
    command.current_dir(at("into")).args(["copy", "../copy", "."]);
    run_with(command, b"").ok();
    assert_same(&at("source"), &at("into/copy"));
    assert_eq!(fs::read_dir(at("into")).unwrap().count(), 3);

    run("source", "source").failed(2, &["are the same"]);
    run("source", "source/inner/copy").failed(2, &["into itself"]);
    run("source", "link/copy").failed(2, &["into itself"]);
    run("source", "link").failed(2, &["symbolic link"]);
    run("single", "link").failed(2, &["symbolic link"]);
    run("source", "single").failed(2, &["not a directory", "--force"]);
    run("nothing", "copy").failed(2, &["nothing", "No such file"]);
    run("source", "no/such/place").failed(2, &["no/such/place", "has to exist"]);
    run("source/.", "into/").failed(2, &["own name"]);
    fs::create_dir(at("into/full")).unwrap();
    fs::write(at("full"), "").unwrap();
    let ended = run("full", "into");
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("a directory is in its place"), "{ended:?}");
    // A link at the destination is replaced, and not written through.
    fs::write(at("victim"), "victim").unwrap();
    fs::remove_file(at("single copy")).unwrap();
    symlink(at("victim"), at("single copy")).unwrap();
    run("single", "single copy").ok();
    assert_same(&at("single"), &at("single copy"));
    assert_eq!(fs::read(at("victim")).unwrap(), b"victim");
}

#[test]
fn what_is_in_the_way_is_said() {
    let folder = harness::folder();
    let (source, target, outside) =
        (folder.path().join("source"), folder.path().join("target"), folder.path().join("outside"));
    for name in ["a", "b", "c"] {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::write(source.join(name).join("file"), name).unwrap();
    }
    fs::write(source.join("d"), "file").unwrap();
    fs::create_dir(&outside).unwrap();
    fs::create_dir_all(target.join("d/inside")).unwrap();
    symlink(&outside, target.join("a")).unwrap();
    fs::write(target.join("b"), "a file").unwrap();
    let ended = copy(&[source.as_os_str(), target.as_os_str()]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("a symbolic link is where a directory has to be"), "{ended:?}");
    assert!(ended.stderr.contains("something else exists where a directory is needed"), "{ended:?}");
    assert!(ended.stderr.contains("a directory is in its place"), "{ended:?}");
    assert!(ended.stderr.ends_with("nacre: 3 errors; the copy is not complete\n"), "{ended:?}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(fs::read(target.join("c/file")).unwrap(), b"c");
    // With --force links and files are replaced; directories never are.
    let ended = copy(&["--force".as_ref(), source.as_os_str(), target.as_os_str()]);
    assert_eq!((ended.code, ended.stderr.matches("in its place").count()), (1, 1), "{ended:?}");
    assert!(target.join("d/inside").is_dir());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    fs::remove_dir_all(target.join("d")).unwrap();
    copy(&[source.as_os_str(), target.as_os_str()]).ok();
    assert_same(&source, &target);
}

#[test]
fn devices_and_pipes_are_not_replaced_by_a_copy() {
    as_root();
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir_all(&source).unwrap();
    fs::create_dir_all(&target).unwrap();
    fs::write(source.join("null"), "contents").unwrap();
    fs::write(source.join("pipe"), "contents").unwrap();
    let device = rustix::fs::makedev(1, 3);
    let null = target.join("null");
    rustix::fs::mknodat(CWD, &null, FileType::CharacterDevice, Mode::RUSR, device).unwrap();
    rustix::fs::mknodat(CWD, target.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    for name in ["null", "pipe"] {
        let (from, to) = (source.join(name), target.join(name));
        let known = ["not copying to", "it is a device, pipe or socket"];
        copy(&[from.as_os_str(), to.as_os_str()]).failed(2, &known);
    }
    // Below the named paths, a pipe may be the copy of an earlier pipe.
    let ended = copy(&[source.as_os_str(), target.as_os_str()]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert_eq!(ended.stderr.matches("a device is in its place").count(), 1, "{ended:?}");
    assert_eq!(fs::read(target.join("pipe")).unwrap(), b"contents");
    assert_eq!(fs::symlink_metadata(&null).unwrap().rdev(), device);
    // An identical device is accepted there.
    copy(&[null.as_os_str(), folder.path().join("other").as_os_str()]).ok();
    copy(&[null.as_os_str(), folder.path().join("other").as_os_str()]).ok();
    copy(&["--force".as_ref(), source.as_os_str(), target.as_os_str()]).ok();
    assert_same(&source, &target);
}

#[test]
fn files_that_say_no_size_are_read_to_their_ends_and_early_ends_are_errors() {
    let folder = harness::folder();
    let at = |name: &str| folder.path().join(name);
    copy(&["/proc/version".as_ref(), at("version").as_os_str()]).ok();
    let version = fs::read("/proc/version").unwrap();
    assert!(!version.is_empty() && fs::read(at("version")).unwrap() == version);
    let settings = Path::new("/proc/sys/fs/inotify");
    copied(settings, &at("settings"), &[]);
    let entries: Vec<_> = fs::read_dir(settings).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!entries.is_empty());
    for name in entries {
        let (here, there) = (settings.join(&name), at("settings").join(&name));
        assert_eq!(fs::read(here).unwrap(), fs::read(there).unwrap(), "{name:?}");
    }
    // It reports 4096 bytes and has a few.
    let short = "/sys/kernel/uevent_seqnum";
    let ended = copy(&[short.as_ref(), at("short").as_os_str()]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("reading it ends before the size that it says"), "{ended:?}");
    assert!(!at("short").exists() && unfinished(folder.path()).is_empty());
}

#[test]
fn access_times_are_kept_on_both_sides() {
    as_root();
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    let mut paths = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        if source.join(&below).symlink_metadata().unwrap().is_dir() {
            let entries = fs::read_dir(source.join(&below)).unwrap();
            pending.extend(entries.map(|entry| below.join(entry.unwrap().file_name())));
        }
        paths.push(below);
    }
    // Older than the modification: a careless read would change it, with relatime too.
    for (number, path) in paths.iter().enumerate() {
        let time = |tv_sec| Timespec { tv_sec, tv_nsec: 12_345 };
        let times = Timestamps {
            last_access: time(1_000_000_000 + number as i64),
            last_modification: time(1_100_000_000),
        };
        rustix::fs::utimensat(CWD, source.join(path), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    let accessed = |root: &Path, path: &Path| {
        let about = root.join(path).symlink_metadata().unwrap();
        (about.atime(), about.atime_nsec(), about.is_symlink())
    };
    let before: Vec<_> = paths.iter().map(|path| accessed(&source, path)).collect();
    for flags in [&["--chunk", "64KiB", "--verify"][..], &[], &["--checksum"]] {
        copied(&source, &target, flags);
        for (path, before) in paths.iter().zip(&before) {
            let (here, there) = (accessed(&source, path), accessed(&target, path));
            // Reading a link changes its time; the copies have the earlier time.
            if !before.2 {
                assert_eq!(here, *before, "the source {path:?} after {flags:?}");
            }
            if !before.2 {
                assert_eq!(there, *before, "the copy of {path:?} after {flags:?}");
            }
        }
    }
}

#[test]
fn what_is_there_already_is_not_even_opened() {
    as_root();
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    for number in 0..50 {
        fs::write(source.join(format!("{number}")), "contents").unwrap();
    }
    copied(&source, &target, &[]);
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    let watch = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    for folder in [&source, &target] {
        add_watch(&watch, folder, WatchFlags::OPEN).unwrap();
    }
    assert_eq!(copied(&source, &target, &[])["unchanged"], 50);
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(&watch, &mut buffer);
    while let Ok(event) = events.next() {
        assert!(event.events().contains(ReadFlags::ISDIR), "{event:?}");
    }
    // A change that is visible only through an open file is detected as well.
    set_attribute(&source.join("7"), "user.new", b"1");
    copied(&source, &target, &["--verify"]);
    assert_same(&source, &target);
}

#[test]
fn a_full_disk_is_said_and_leaves_no_half_file() {
    as_root();
    let folder = harness::folder();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..10 {
        fs::write(source.join(format!("{number}")), vec![number; 300_000]).unwrap();
    }
    fs::write(source.join("large"), vec![77; 8 << 20]).unwrap();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    // The disk is in a namespace of its own, and ends with it; its contents are checked there.
    let script = r#"mount -t tmpfs -o size=2m tmpfs "$2"
        "$3" copy --chunk 1MiB "$1" "$2/copy"; echo "code $?"
        cd "$2/copy" && for file in $(ls -A); do cmp "$file" "$1/$file" && echo "whole $file"; done"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&source).arg(&disk);
    command.arg(env!("CARGO_BIN_EXE_nacre"));
    let ended = run_with(command, b"");
    let stdout = String::from_utf8(ended.stdout.clone()).unwrap();
    assert!(stdout.contains("code 1\n"), "{ended:?}");
    assert!(ended.stderr.contains("No space left on device"), "{ended:?}");
    assert!(ended.stderr.contains("the copy is not complete"), "{ended:?}");
    // Every file under its final name is complete, and nothing is left of the others.
    let whole = stdout.lines().filter(|line| line.starts_with("whole ")).count();
    assert!((1..=10).contains(&whole), "{ended:?}");
    assert!(!stdout.contains("whole large") && !ended.stderr.contains("cmp:"), "{ended:?}");
    assert_eq!(stdout.lines().filter(|line| line.contains(".nacre-copy")).count(), 0, "{ended:?}");
}

#[test]
fn what_another_user_may_not_read_is_reported() {
    as_root();
    let folder = harness::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let nacre = folder.path().join("nacre");
    fs::copy(env!("CARGO_BIN_EXE_nacre"), &nacre).unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    for name in ["open", "closed", "read only"] {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::write(source.join(name).join("file"), name).unwrap();
    }
    fs::write(source.join("open/secret"), "").unwrap();
    fs::write(source.join("open/set-id"), "").unwrap();
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(CWD, source.join("device"), FileType::CharacterDevice, Mode::RUSR, null).unwrap();
    for (name, mode) in
        [("closed", 0o700), ("open/secret", 0o600), ("open/set-id", 0o6755), ("read only", 0o555)]
    {
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let run = || {
        let mut command = Command::new(&nacre);
        command.uid(65534).gid(65534).arg("copy").arg(&source).arg(&target);
        run_with(command, b"")
    };
    for _ in 0..2 {
        let ended = run();
        assert_eq!(ended.code, 1, "{ended:?}");
        let mut lines: Vec<&str> = ended.stderr.lines().collect();
        assert_eq!(lines.pop(), Some("nacre: 3 errors; the copy is not complete"), "{ended:?}");
        for (path, reason) in
            [("closed", "Permission denied"), ("open/secret", "Permission denied"), ("device", "only root")]
        {
            let path = format!("{:?}: ", source.join(path));
            assert!(lines.iter().any(|line| line.contains(&path) && line.contains(reason)), "{ended:?}");
        }
        let about = fs::metadata(target.join("open/set-id")).unwrap();
        assert_eq!(
            (about.mode() & 0o7777, about.uid()),
            (0o755, 65534),
            "set-id bits speak of another owner"
        );
        assert_eq!(fs::metadata(target.join("read only")).unwrap().mode() & 0o7777, 0o555);
        // Files in a directory that is not writable are updated, too.
        fs::write(source.join("read only/file"), "newer").unwrap();
    }
    assert_eq!(fs::read(target.join("read only/file")).unwrap(), b"newer");
}

#[test]
fn mounts_sockets_and_long_paths() {
    as_root();
    let folder = harness::folder();
    let (source, outside) = (folder.path().join("source"), folder.path().join("outside"));
    fs::create_dir_all(source.join("loop")).unwrap();
    fs::create_dir_all(source.join("mounted")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "outside").unwrap();
    drop(std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap());
    // 40 times 200 bytes: no system call takes that as one path.
    let name = "d".repeat(200);
    let mut at = rustix::fs::open(&source, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..40 {
        rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    rustix::fs::openat(&at, "the last one", OFlags::CREATE, Mode::RUSR).unwrap();
    let script = r#"set -e
        mount --bind "$1" "$1/loop"
        mount --bind "$2" "$1/mounted"
        "$4" copy --json "$1" "$3"
        "$4" copy --json --cross-mounts "$1" "$3.crossed" || true"#;
    let target = folder.path().join("target");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).args([&source, &outside, &target]);
    command.arg(env!("CARGO_BIN_EXE_nacre"));
    let ended = run_with(command, b"");
    let said: Vec<Value> = String::from_utf8(ended.stdout.clone())
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((&said[0]["errors"], &said[0]["left_out"]), (&0.into(), &3.into()), "{ended:?}");
    assert_eq!((&said[0]["directories"], &said[0]["copied"]), (&41.into(), &1.into()), "{ended:?}");
    assert!(!target.join("mounted/file").exists());
    // With mounts crossed, the loop is detected, and is an error.
    assert_eq!(said[1]["errors"], 1, "{ended:?}");
    assert_eq!(said[1]["first_errors"][0]["reason"], "it is mounted below itself", "{ended:?}");
    assert_eq!(fs::read(folder.path().join("target.crossed/mounted/file")).unwrap(), b"outside");
    let count = |root: &Path| {
        let output = Command::new("find").arg(root).args(["-type", "f", "-printf", "x"]).output().unwrap();
        output.stdout.len()
    };
    assert_eq!((count(&source), count(&target)), (1, 1));
    for tree in [&source, &target, &folder.path().join("target.crossed")] {
        assert!(Command::new("rm").arg("-rf").arg(tree).status().unwrap().success());
    }
}

#[test]
fn a_large_directory_is_copied_whole() {
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    for number in 0..40_000 {
        let file = fs::File::create(source.join(format!("file {number}"))).unwrap();
        if number % 1000 == 0 {
            file.write_all_at(b"content", 0).unwrap();
        }
    }
    let said = copied(&source, &target, &[]);
    assert_eq!((&said["copied"], &said["errors"]), (&40_000.into(), &0.into()));
    assert_same(&source, &target);
    let said = copied(&source, &target, &[]);
    assert_eq!((&said["copied"], &said["unchanged"]), (&0.into(), &40_000.into()));
}

#[test]
fn few_descriptors_suffice_for_deep_trees() {
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let mut leaf = source.clone();
    for depth in 0..300 {
        fs::create_dir(&leaf).unwrap();
        fs::write(leaf.join("file"), format!("{depth}")).unwrap();
        leaf.push("d");
    }
    let limited = |words: &[&OsStr]| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 120; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_nacre")]).args(words);
        run_with(command, b"")
    };
    limited(&["copy".as_ref(), "--verify".as_ref(), source.as_os_str(), target.as_os_str()]).ok();
    assert_same(&source, &target);
    let ended = limited(&["remove".as_ref(), "--yes".as_ref(), target.as_os_str()]);
    assert_eq!(ended.text(), "600 entries removed");
    assert!(!target.exists());
}

/// Puts into a copy what its source has not: entries of every kind, and some in the places of others. Returns the number
/// of entries that a mirror removes.
fn spoil(target: &Path, outside: &Path) -> u64 {
    let at = |path: &str| target.join(path);
    fs::create_dir_all(at("level 0/only there/deeper")).unwrap();
    fs::write(at("level 0/only there/deeper/file"), "x").unwrap();
    symlink(outside, at("level 0/only there/link")).unwrap();
    fs::write(at("level 0/only there too"), "x").unwrap();
    symlink(outside, at("links/outside")).unwrap();
    // A directory where the source has a file, and a link to a directory where it has a directory.
    fs::remove_file(at("large")).unwrap();
    fs::create_dir(at("large")).unwrap();
    fs::write(at("large/inside"), "x").unwrap();
    fs::remove_dir(at("level 0/empty")).unwrap();
    symlink(outside, at("level 0/empty")).unwrap();
    4 + 1 + 1 + 2
}

#[test]
fn a_mirror_removes_what_the_source_has_not() {
    as_root();
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "stays").unwrap();
    tree(&source);
    for threads in ["1", "4"] {
        copied(&source, &target, &["--mirror", "--yes", "--threads", threads]);
        assert_same(&source, &target);
        let removed = spoil(&target, &outside);
        let before = snapshot(&target);

        // Nobody is asked here, and a copy that is no mirror removes nothing.
        let words = ["--mirror".as_ref(), source.as_os_str(), target.as_os_str()];
        copy(&words).failed(2, &["nothing was copied or removed", "--yes", "--dry-run"]);
        let planned = copied(&source, &target, &["--dry-run"]);
        assert_eq!((&planned["removed"], &planned["errors"]), (&0.into(), &0.into()), "{planned}");
        let words = [&words[..], &["--dry-run".as_ref(), "--list".as_ref()]].concat();
        let listed = copy(&words).text();
        for line in
            ["remove\tlevel 0/only there", "remove\tlinks/outside", "copy\tlarge", "copy\tlevel 0/empty"]
        {
            assert!(listed.lines().any(|other| other == line), "{line}: {listed}");
        }
        assert!(listed.ends_with(&format!("remove {removed} entries")), "{listed}");
        harness::unread(program().arg("copy").args(&words), 0);
        harness::unwritten(program().arg("copy").args(&words), 1);
        assert!(before == snapshot(&target), "a dry run changes nothing");

        let said = copied(&source, &target, &["--mirror", "--yes", "--threads", threads]);
        assert_eq!(said["removed"], removed, "{said}");
        assert_same(&source, &target);
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"stays");
        let said = copied(&source, &target, &["--mirror", "--yes"]);
        assert_eq!((&said["copied"], &said["removed"]), (&0.into(), &0.into()), "{said}");
        fs::remove_dir_all(&target).unwrap();
    }
    // What a filter leaves out is not missing in the source.
    assert_eq!(copy(&["--mirror", "--yes", "--name", "x", "a", "b"].map(OsStr::new)).code, 2);
}

#[test]
fn a_mirror_keeps_what_it_cannot_look_for_in_the_source() {
    as_root();
    let folder = harness::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let nacre = folder.path().join("nacre");
    fs::copy(env!("CARGO_BIN_EXE_nacre"), &nacre).unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir_all(source.join("closed")).unwrap();
    fs::write(source.join("closed/file"), "x").unwrap();
    fs::create_dir_all(target.join("closed")).unwrap();
    for path in ["closed/file", "closed/other", "extra"] {
        fs::write(target.join(path), "copied before").unwrap();
    }
    for path in ["", "closed", "closed/file", "closed/other", "extra"] {
        std::os::unix::fs::chown(target.join(path), Some(65534), Some(65534)).unwrap();
    }
    fs::set_permissions(source.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = Command::new(&nacre);
    command.uid(65534).gid(65534).args(["copy", "--mirror", "--yes"]).arg(&source).arg(&target);
    let ended = run_with(command, b"");
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(!target.join("extra").exists());
    assert!(target.join("closed/file").exists() && target.join("closed/other").exists(), "{ended:?}");
}

#[test]
fn a_file_that_may_not_be_written_is_not_taken_for_one_that_another_copy_writes() {
    as_root();
    let folder = harness::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let nacre = folder.path().join("nacre");
    fs::copy(env!("CARGO_BIN_EXE_nacre"), &nacre).unwrap();
    let (source, target) = (folder.path().join("file"), folder.path().join("target"));
    fs::write(&source, "x").unwrap();
    fs::create_dir(&target).unwrap();
    for (path, mode) in [(&source, 0o644), (&target, 0o755), (&nacre, 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut command = Command::new(&nacre);
    command.uid(65534).gid(65534).arg("copy").arg(&source).arg(&target);
    let ended = run_with(command, b"");
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("Permission denied"), "{ended:?}");
    assert!(!ended.stderr.contains("another copy"), "{ended:?}");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}

#[test]
fn a_mirror_removes_nothing_in_mounted_file_systems_and_never_its_source() {
    as_root();
    let folder = harness::folder();
    let at = |path: &str| folder.path().join(path);
    fs::create_dir_all(at("source/mounted")).unwrap();
    fs::create_dir_all(at("target/mounted")).unwrap();
    fs::create_dir_all(at("target/extra/mounted")).unwrap();
    fs::create_dir_all(at("outside/deeper")).unwrap();
    fs::write(at("outside/deeper/file"), "stays").unwrap();
    fs::write(at("target/gone"), "").unwrap();
    // Through the mount the source has another path, which is not in the destination.
    fs::create_dir_all(at("around/inner")).unwrap();
    fs::write(at("around/inner/file"), "stays").unwrap();
    fs::create_dir(at("seen")).unwrap();
    let script = r#"cd "$1" || exit
        mount --bind outside target/mounted && mount --bind outside target/extra/mounted || exit
        "$2" copy --mirror --yes source target
        code=$?
        mount --bind around/inner seen || exit
        "$2" copy --mirror --yes seen around
        exit $((code * 10 + $?))"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.path()).arg(env!("CARGO_BIN_EXE_nacre"));
    let ended = run_with(command, b"");
    assert!(ended.stderr.contains("mounted"), "{ended:?}");
    assert!(ended.stderr.contains("the source of the mirror"), "{ended:?}");
    assert_eq!(fs::read(at("outside/deeper/file")).unwrap(), b"stays");
    assert_eq!(fs::read(at("around/inner/file")).unwrap(), b"stays");
    assert!(!at("target/gone").exists());
    assert_eq!(ended.code, 11, "{ended:?}");
}

/// A file system that is mounted below the source is no part of a copy, and nothing is known about it by a comparison.
#[test]
fn a_comparison_reports_mounts_that_it_does_not_enter() {
    as_root();
    let folder = harness::folder();
    let at = |path: &str| folder.path().join(path);
    for directory in ["a/sub", "b", "outside"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    fs::write(at("outside/file"), "").unwrap();
    fs::write(at("a/file"), "").unwrap();
    copied(&at("a"), &at("b"), &[]);
    fs::remove_dir(at("b/sub")).unwrap();
    let time = fs::metadata(at("a")).unwrap();
    set_time(&at("b"), time.mtime(), time.mtime_nsec());
    let script = r#"cd "$1" || exit
        mount --bind outside a/sub || exit
        "$2" compare --json a b; echo "$?"
        mkdir b/sub; touch -r a b
        "$2" compare --json a b; echo "$?"
        "$2" compare --json --cross-mounts a b >/dev/null; echo "$?"
        "$2" copy --json --verify a b; echo "$?"
        "$2" copy --json --dry-run a b; echo "$?""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.path()).arg(env!("CARGO_BIN_EXE_nacre"));
    let ended = run_with(command, b"");
    let printed = String::from_utf8(ended.stdout.clone()).unwrap();
    let lines: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 9, "{ended:?}");
    for compared in [&lines[0], &lines[2]] {
        assert_eq!((&compared["errors"], &compared["different"]), (&1.into(), &0.into()), "{ended:?}");
        assert_eq!(compared["first_errors"][0]["path"], "a/sub", "{ended:?}");
    }
    assert_eq!([&lines[1], &lines[3], &lines[4]], [2, 2, 1], "{ended:?}");
    // A copy notes that it leaves them out, and is complete without.
    assert_eq!((&lines[5]["errors"], &lines[5]["left_out"]), (&0.into(), &1.into()), "{ended:?}");
    assert_eq!(lines[7]["errors"], 0, "{ended:?}");
    assert_eq!([&lines[6], &lines[8]], [0, 0], "{ended:?}");
}

#[test]
fn an_empty_source_is_mirrored_only_if_told_to() {
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(target.join("file"), "").unwrap();
    for words in [&["--yes"][..], &["--dry-run"]] {
        let words: Vec<&OsStr> = [&["--mirror"], words].concat().into_iter().map(OsStr::new).collect();
        copy(&[&words[..], &[source.as_os_str(), target.as_os_str()]].concat())
            .failed(2, &["it is empty", "--mirror-empty"]);
    }
    assert!(target.join("file").exists());
    assert_eq!(copied(&source, &target, &["--mirror", "--mirror-empty", "--yes"])["removed"], 1);
}

#[test]
fn directories_that_are_up_to_date_are_not_touched() {
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir_all(source.join("a/b")).unwrap();
    fs::create_dir(source.join("closed")).unwrap();
    fs::write(source.join("a/b/file"), "contents").unwrap();
    // Times that nothing has that is made now, also where these are coarse.
    for (number, path) in ["a/b", "a", "closed", ""].iter().enumerate() {
        set_attribute(&source.join(path), "user.note", path.as_bytes());
        set_time(&source.join(path), 1_000_000_000 + number as i64, 5);
    }
    fs::set_permissions(source.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    copied(&source, &target, &[]);
    // They are not read here, which would change when they were accessed.
    let changed = || {
        ["a/b", "a", "closed", ""].map(|path| {
            let about = fs::metadata(target.join(path)).unwrap();
            (about.ctime(), about.ctime_nsec())
        })
    };
    let before = changed();
    copied(&source, &target, &[]);
    // A mirror looks for what only the destination has, and finds nothing.
    copied(&source, &target, &["--mirror", "--yes"]);
    assert_eq!(changed(), before);
    assert_same(&source, &target);

    // What differs is set, whatever it is.
    let unfinished_name = "a/.nacre-copy-0123456789abcdef0123456789abcdef";
    let changes: [&dyn Fn(); 5] = [
        &|| fs::set_permissions(target.join("closed"), fs::Permissions::from_mode(0o755)).unwrap(),
        &|| set_attribute(&target.join("a/b"), "user.more", b"1"),
        &|| set_attribute(&source.join("a/b"), "user.note", b"other"),
        &|| set_time(&target.join("a"), 1_000_000_000, 0),
        &|| fs::write(target.join(unfinished_name), "half").unwrap(),
    ];
    for change in changes {
        change();
        copied(&source, &target, &["--verify"]);
        assert_same(&source, &target);
        assert!(!target.join(unfinished_name).exists());
    }
}

#[test]
fn a_mirror_keeps_what_it_has_of_a_file_system_that_is_not_mounted() {
    as_root();
    let folder = harness::folder();
    let at = |path: &str| folder.path().join(path);
    // Somebody has made a directory below the mount point.
    fs::create_dir_all(at("source/data/inner")).unwrap();
    fs::create_dir_all(at("outside/inner")).unwrap();
    fs::create_dir(at("etc")).unwrap();
    for file in ["outside/file", "outside/inner/file", "source/file"] {
        fs::write(at(file), "contents").unwrap();
    }
    fs::write(at("etc/fstab"), format!("outside {} none bind,noauto 0 0\n", at("source/data").display()))
        .unwrap();
    // Of the mount at the destination nothing is known but that it is one.
    for directory in ["source/apart", "target/apart", "other"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    fs::write(at("source/apart/file"), "contents").unwrap();
    let script = r#"cd "$1" || exit 90
        cp -a /etc/ld.so.cache etc; mount --bind etc /etc && mount --bind other target/apart || exit 91
        mirror="$2 copy --json --mirror --cross-mounts source target"
        mount --bind outside source/data || exit 92
        $mirror --yes; echo "$?"
        umount source/data && rm source/file source/apart/file || exit 93
        $mirror --dry-run; echo "$?"
        $mirror --yes; echo "$?"
        ls target/data target/data/inner target/apart >kept
        $mirror --yes --mirror-empty; echo "$?"
        ls target/data target/data/inner target/apart >left"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.path()).arg(env!("CARGO_BIN_EXE_nacre"));
    let ended = run_with(command, b"");
    let printed = String::from_utf8(ended.stdout.clone()).unwrap();
    let lines: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let codes: Vec<&Value> = lines.iter().filter(|line| line.is_number()).collect();
    assert_eq!(codes, [0, 1, 1, 0], "{ended:?}");
    // Three entries stay, and the file that the source has not any more goes.
    let [_, _, planned, _, kept, _, emptied, _] = &lines[..] else { panic!("{ended:?}") };
    assert_eq!((&planned["errors"], &planned["removed"]), (&3.into(), &1.into()), "{ended:?}");
    assert_eq!((&kept["errors"], &kept["removed"]), (&3.into(), &1.into()), "{ended:?}");
    assert!(ended.stderr.contains("is not mounted") && ended.stderr.contains("--mirror-empty"), "{ended:?}");
    let listed = fs::read_to_string(at("kept")).unwrap();
    assert_eq!(listed.lines().filter(|line| *line == "file").count(), 3, "{listed}");
    assert_eq!((&emptied["errors"], &emptied["removed"]), (&0.into(), &3.into()), "{ended:?}");
    let listed = fs::read_to_string(at("left")).unwrap();
    assert_eq!(listed.lines().filter(|line| *line == "file").count(), 0, "{listed}");
    assert!(at("outside/inner/file").exists() && !at("other/file").exists());
}
