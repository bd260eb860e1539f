//! `nacre remove` on trees with everything in them, under concurrent changes, and at the boundaries that it must not
//! cross.

mod harness;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::{Ended, PATIENCE, program, run_with, wait};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};

fn remove(words: &[&OsStr]) -> Ended {
    let mut command = program();
    command.arg("remove").args(words);
    run_with(command, b"")
}

fn remove_all(path: &Path) -> Ended {
    remove(&[OsStr::new("--yes"), path.as_os_str()])
}

/// A folder whose contents must stay, with a check that they did.
struct Outside(tempfile::TempDir);

impl Outside {
    fn new() -> Outside {
        let folder = harness::folder();
        fs::create_dir_all(folder.path().join("deep/deeper")).unwrap();
        for number in 0..20 {
            fs::write(folder.path().join(format!("file {number}")), "precious").unwrap();
            fs::write(folder.path().join(format!("deep/deeper/{number}")), "precious").unwrap();
        }
        Outside(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    #[track_caller]
    fn check(&self) {
        for number in 0..20 {
            assert_eq!(fs::read(self.path().join(format!("file {number}"))).unwrap(), b"precious");
            assert_eq!(fs::read(self.path().join(format!("deep/deeper/{number}"))).unwrap(), b"precious");
        }
        assert_eq!(fs::read_dir(self.path()).unwrap().count(), 21);
    }
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Creates a tree with everything that file systems allow.
fn tree(root: &Path, outside: &Path) {
    let mut folder = root.to_owned();
    for depth in 0..20 {
        folder.push(format!("level {depth}"));
        fs::create_dir_all(&folder).unwrap();
        for number in 0..depth * 5 {
            fs::write(folder.join(format!("file {number}")), "content").unwrap();
        }
        fs::create_dir(folder.join("empty")).unwrap();
        symlink(outside, folder.join("link out")).unwrap();
        symlink("nowhere", folder.join("dangling")).unwrap();
    }
    for name in [&b"two\nlines"[..], b"\xff\xfe", b" ", b"-rf", b"*", &[b'n'; 255]] {
        fs::write(root.join(OsStr::from_bytes(name)), "").unwrap();
    }
    fs::create_dir(root.join(OsStr::from_bytes(b"folder\n\xff"))).unwrap();
    fs::hard_link(root.join("-rf"), root.join("second link")).unwrap();
    rustix::fs::mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap());
    // 40 times 200 bytes: no system call accepts that as one path.
    let name = "d".repeat(200);
    let mut at = rustix::fs::open(root, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..40 {
        rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    rustix::fs::openat(&at, "the last one", OFlags::CREATE, Mode::RUSR).unwrap();
}

#[test]
fn everything_goes_and_nothing_else() {
    let (folder, outside) = (harness::folder(), Outside::new());
    for threads in ["1", "2", "7"] {
        let root = folder.path().join("root");
        tree(&root, outside.path());
        fs::write(folder.path().join("beside"), "stays").unwrap();
        let count =
            |program: &mut Command| program.output().unwrap().stdout.iter().filter(|c| **c == 0).count();
        let entries = count(Command::new("find").arg(&root).arg("-print0"));
        assert!(entries > 1000, "{entries}");

        let words = ["--dry-run", "--json"].map(OsStr::new);
        let json = remove(&[&words[..], &[root.as_os_str()]].concat()).json();
        assert_eq!((json["entries"].as_u64(), json["errors"].as_u64()), (Some(entries as u64), Some(0)));
        assert_eq!(
            count(Command::new("find").arg(&root).arg("-print0")),
            entries,
            "a dry run touches nothing"
        );

        let words = ["--yes", "--json", "--threads", threads].map(OsStr::new);
        let json = remove(&[&words[..], &[root.as_os_str()]].concat()).json();
        assert_eq!(json["removed"].as_u64(), Some(entries as u64));
        assert_eq!(json["interrupted"], false);
        assert!(!is_there(&root));
        assert_eq!(fs::read(folder.path().join("beside")).unwrap(), b"stays");
        outside.check();
    }
}

#[test]
fn it_asks_or_refuses() {
    let (folder, outside) = (harness::folder(), Outside::new());
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/file"), "12345").unwrap();
    let path = root.to_str().unwrap();
    remove(&[root.as_os_str()]).failed(2, &["nothing was removed", "--yes", "--dry-run"]);
    let listing = remove(&["--dry-run", "--list", path].map(OsStr::new)).text();
    let mut lines: Vec<&str> = listing.lines().collect();
    assert_eq!(lines.pop(), Some("would remove 4 entries: 3 directories, 1 file of 5 B"));
    lines.sort_unstable();
    assert_eq!(lines, [path, &format!("{path}/a"), &format!("{path}/a/b"), &format!("{path}/a/file")]);

    for dot in [".", "..", "a/.", "a/..", "./", "a/../"] {
        let mut command = program();
        command.current_dir(&root).args(["remove", "--yes", dot]);
        run_with(command, b"").failed(2, &["not removing"]);
    }
    for system in ["/", "//", "/..", "/."] {
        remove(&["--yes", system].map(OsStr::new)).failed(2, &["root of the file system"]);
    }
    remove(&["--yes", "/proc"].map(OsStr::new)).failed(2, &["mounted there", "unmount"]);
    assert_eq!(remove(&["--yes", ""].map(OsStr::new)).code, 2);
    remove(&["--yes", path, "/no/such/thing"].map(OsStr::new)).failed(2, &["/no/such/thing", "No such file"]);
    remove(&["--yes".as_ref(), root.join("a/file/").as_os_str()]).failed(2, &["Not a directory"]);
    let link = folder.path().join("link");
    symlink(outside.path(), &link).unwrap();
    remove_all(Path::new(&format!("{}/", link.display()))).failed(2, &["symbolic link", "without the slash"]);
    assert!(root.join("a/file").exists() && root.join("a/b").exists());

    // Roots that are links or files; twice the same one; one inside another.
    assert_eq!(remove_all(&link).text(), "1 entry removed");
    assert!(!is_there(&link));
    outside.check();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(remove(&["--yes".as_ref(), file.as_os_str(), file.as_os_str()]).text(), "1 entry removed");
    let inside = root.join("a");
    remove(&["--yes".as_ref(), inside.as_os_str(), root.as_os_str()]).ok();
    assert!(!is_there(&root));
}

/// Runs the program on a terminal of its own, with an answer typed into it. Returns whether it succeeded, and its
/// output.
fn on_terminal(root: &Path, answer: &str) -> (bool, String) {
    // `script` gives its child a terminal, and passes its exit code on.
    let line = format!("'{}' remove '{}'", env!("CARGO_BIN_EXE_nacre"), root.display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).stdin(Stdio::piped());
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => panic!("cannot run \"script\", of Debian's package bsdutils: {error}"),
    };
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, answer.as_bytes()).unwrap();
    // Its standard input stays open until it is done: closing it would be a hang-up.
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn on_a_terminal_it_shows_and_asks() {
    let folder = harness::folder();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("a")).unwrap();
    fs::write(root.join("file"), [0; 2048]).unwrap();
    for no in ["n\n", "\n", "yesterday\n"] {
        let (done, shown) = on_terminal(&root, no);
        assert!(!done && root.join("file").exists(), "{shown}");
        assert!(shown.contains("3 entries: 2 directories, 1 file of 2.0 KiB)? [y/N]"), "{shown}");
        assert!(shown.contains("nothing was removed"), "{shown}");
    }
    let (done, shown) = on_terminal(&root, "y\n");
    assert!(done && !is_there(&root), "{shown}");
}

#[test]
fn a_dry_run_lists_in_json_what_it_would_remove() {
    let folder = harness::folder();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("a \"quoted\" one")).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"\xff\n")), "x").unwrap();
    let words = ["--dry-run", "--list", "--json"].map(OsStr::new);
    let printed = remove(&[&words[..], &[root.as_os_str()]].concat()).text();
    let lines: Vec<serde_json::Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (numbers, paths) = lines.split_last().unwrap();
    assert_eq!((&numbers["dry_run"], &numbers["entries"]), (&true.into(), &3.into()));
    assert_eq!(paths.len(), 3);
    assert_eq!(paths.iter().filter(|line| line["path_base64"].is_string()).count(), 1);
    assert!(is_there(&root));
}

#[test]
fn large_directories_lose_no_entry() {
    for place in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let folder = tempfile::tempdir_in(&place).unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        for number in 0..40_000 {
            match number % 100 {
                0 => fs::create_dir(root.join(format!("folder {number}"))).unwrap(),
                _ => drop(fs::File::create(root.join(format!("file {number}"))).unwrap()),
            }
        }
        assert_eq!(remove_all(&root).text(), "40,001 entries removed", "{place:?}");
        assert!(!is_there(&root));
    }
}

/// Sets a flag, which ends the threads of the test, when it is dropped.
struct Meanwhile<'a> {
    stop: &'a AtomicBool,
}

impl Drop for Meanwhile<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn directories_that_become_links_lead_nowhere() {
    let (folder, outside) = (harness::folder(), Outside::new());
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let root = folder.path().join("root");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (root, outside, stop, swaps) = (&root, outside.path(), &stop, &swaps);
            scope.spawn(move || {
                // Directories become links to the outside, and directories again; names of directories that are being
                // removed lead elsewhere for moments.
                let mut number = thread;
                while !stop.load(Ordering::Relaxed) {
                    number += 2;
                    let name = root.join(format!("{}/{}", number % 10, number / 10 % 10));
                    let aside = root.join(format!("{}/aside {thread}", number % 10));
                    if fs::rename(&name, &aside).is_ok() && symlink(outside, &name).is_ok() {
                        swaps.fetch_add(1, Ordering::Relaxed);
                        if fs::remove_file(&name).is_ok() {
                            let _ = fs::rename(&aside, &name);
                        }
                    }
                    let whole = root.join(format!("{}", number % 10));
                    if number % 3 == 0 && fs::rename(&whole, root.join("aside")).is_ok() {
                        let _ = symlink(outside, &whole);
                    }
                }
            });
        }
        let _meanwhile = Meanwhile { stop: &stop };
        let mut rounds = 0;
        while swaps.load(Ordering::Relaxed) < 2000 || rounds < 10 {
            for number in 0..100 {
                let leaf = root.join(format!("{}/{}/deep/deeper", number % 10, number / 10));
                // While the other threads move directories, some cannot be created.
                if fs::create_dir_all(&leaf).is_ok() {
                    for file in 0..5 {
                        let _ = fs::write(leaf.join(format!("inside {file}")), "");
                    }
                }
            }
            let ended = remove_all(&root);
            assert!(matches!(ended.code, 0..=2), "{ended:?}");
            assert_eq!(ended.code == 0, ended.stderr.is_empty(), "{ended:?}");
            for line in ended.stderr.lines() {
                assert!(line.starts_with("nacre: "), "{ended:?}");
            }
            rounds += 1;
        }
    });
    // The tree is created by names as well, so parts of it may end up outside; but nothing outside may be removed.
    for number in 0..20 {
        assert_eq!(fs::read(outside.path().join(format!("file {number}"))).unwrap(), b"precious");
        assert_eq!(fs::read(outside.path().join(format!("deep/deeper/{number}"))).unwrap(), b"precious");
    }
    if is_there(&root) {
        remove_all(&root).ok();
    }
}

#[test]
fn what_is_made_meanwhile_goes_too_or_is_reported() {
    let folder = harness::folder();
    let root = folder.path().join("root");
    for number in 0..200 {
        let leaf = root.join(format!("{number}/leaf"));
        fs::create_dir_all(&leaf).unwrap();
        for file in 0..50 {
            fs::write(leaf.join(format!("{file}")), "").unwrap();
        }
    }
    let (stop, created) = (AtomicBool::new(false), AtomicU64::new(0));
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The removal must give up or be faster. What a disk has to take back is bounded, and on a fast machine pauses let it
            // last as long as the removal.
            for number in 1..20_000 {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let leaf = root.join(format!("{}/leaf", number % 200));
                if fs::write(leaf.join(format!("new {number}")), "").is_ok() {
                    created.fetch_add(1, Ordering::Relaxed);
                }
                let _ = fs::create_dir_all(root.join(format!("{}/new {number}/x", number * 7 % 200)));
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        let _meanwhile = Meanwhile { stop: &stop };
        let begun = Instant::now();
        while created.load(Ordering::Relaxed) == 0 {
            assert!(begun.elapsed() < PATIENCE, "nothing can be created");
            std::thread::yield_now();
        }
        remove_all(&root)
    });
    match ended.code {
        0 => assert_eq!(ended.stderr, ""),
        _ => assert!(ended.stderr.contains("cannot remove"), "{ended:?}"),
    }
    // Undisturbed, the rest is removed at the first attempt.
    if is_there(&root) {
        remove_all(&root).ok();
    }
    assert!(!is_there(&root));
    assert!(created.into_inner() > 0);
}

#[track_caller]
fn as_root() {
    if !rustix::process::geteuid().is_root() {
        panic!("this test makes mounts, or runs the program as another user: run it as root");
    }
}

#[test]
fn what_another_user_may_not_remove_is_reported() {
    as_root();
    let folder = harness::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Others may have no access to the folder that the program was built in.
    let nacre = folder.path().join("nacre");
    fs::copy(env!("CARGO_BIN_EXE_nacre"), &nacre).unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("open/inside")).unwrap();
    fs::create_dir_all(root.join("closed/inside")).unwrap();
    fs::create_dir_all(root.join("unreadable but empty")).unwrap();
    fs::create_dir_all(root.join("foreign")).unwrap();
    for name in ["open/file", "open/inside/file", "closed/file", "foreign/file"] {
        fs::write(root.join(name), "").unwrap();
    }
    let user = 65534;
    for path in ["", "open", "open/inside", "closed", "closed/inside", "unreadable but empty"] {
        std::os::unix::fs::chown(root.join(path), Some(user), Some(user)).unwrap();
    }
    for path in ["closed", "unreadable but empty"] {
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(0o000)).unwrap();
    }
    std::os::unix::fs::chown(folder.path(), Some(user), Some(user)).unwrap();
    let mut command = Command::new(&nacre);
    command.uid(user).gid(user).args(["remove", "--yes"]).arg(&root);
    let ended = run_with(command, b"");
    assert_eq!((ended.code, ended.stdout.as_slice()), (1, &b"5 entries removed\n"[..]), "{ended:?}");
    let mut lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.pop(), Some("nacre: 2 entries were not removed"));
    lines.sort_unstable();
    let closed = format!("nacre: cannot open the directory {:?}", root.join("closed"));
    let foreign = format!("nacre: cannot remove {:?}", root.join("foreign/file"));
    assert!(lines[0].starts_with(&closed) && lines[0].contains("Permission denied"), "{ended:?}");
    assert!(lines[1].starts_with(&foreign) && lines[1].contains("Permission denied"), "{ended:?}");
    assert_eq!(fs::read_dir(&root).unwrap().count(), 2);
    assert!(root.join("closed/file").exists());
    remove_all(&root).ok();
}

#[test]
fn mounts_are_not_entered() {
    as_root();
    let (folder, outside) = (harness::folder(), Outside::new());
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("a/mounted")).unwrap();
    fs::create_dir_all(root.join("a/loop")).unwrap();
    fs::write(root.join("a/file"), "").unwrap();
    fs::write(root.join("file mount"), "").unwrap();
    // The mounts are in a namespace of their own, and end with it.
    let script = r#"set -e
        mount --bind "$2" "$1/a/mounted"
        mount --bind "$1" "$1/a/loop"
        mount --bind "$2/file 1" "$1/file mount"
        exec "$3" remove --yes "$1""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&root).arg(outside.path());
    command.arg(env!("CARGO_BIN_EXE_nacre"));
    let ended = run_with(command, b"");
    assert_eq!((ended.code, ended.stdout.as_slice()), (1, &b"1 entry removed\n"[..]), "{ended:?}");
    assert_eq!(ended.stderr.matches("another file system is mounted there").count(), 2, "{ended:?}");
    assert!(ended.stderr.contains("file mount") && ended.stderr.contains("busy"), "{ended:?}");
    assert!(ended.stderr.ends_with("nacre: 3 entries were not removed\n"), "{ended:?}");
    outside.check();
    remove_all(&root).ok();
    outside.check();
}

#[test]
fn a_signal_stops_it_in_good_order() {
    let folder = harness::folder();
    for attempt in 0.. {
        assert!(attempt < 50, "it is always done before the signal comes");
        let root = folder.path().join("root");
        for number in 0..40_000 {
            if number % 400 == 0 {
                fs::create_dir_all(root.join(format!("{}", number / 400))).unwrap();
            }
            fs::File::create(root.join(format!("{}/{number}", number / 400))).unwrap();
        }
        let mut command = program();
        command.args(["remove", "--yes", "--json", "--threads", "1"]).arg(&root);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It is interrupted once the first directory is gone.
        while fs::read_dir(&root).is_ok_and(|entries| entries.count() == 100) {
            std::thread::yield_now();
        }
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
        let mut child = child;
        let status = wait(&mut child, PATIENCE);
        let read = |stream: Option<&mut dyn std::io::Read>| {
            let mut text = String::new();
            stream.unwrap().read_to_string(&mut text).unwrap();
            text
        };
        let stdout = read(child.stdout.as_mut().map(|stream| stream as _));
        let stderr = read(child.stderr.as_mut().map(|stream| stream as _));
        if status.code() == Some(0) {
            continue;
        }
        assert_eq!(harness::shell_code(status), 143, "{stdout} {stderr}");
        let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(json["interrupted"], true);
        assert!(
            stderr.starts_with("nacre: interrupted: ") && stderr.contains("same command again to continue"),
            "{stderr}"
        );
        let (removed, left) = (json["removed"].as_u64().unwrap(), json["left"].as_u64().unwrap());
        assert!(removed > 0 && left > 0, "{json}");
        assert_eq!((removed + left, &json["left_is_all"]), (40_101, &serde_json::json!(true)));
        remove_all(&root).ok();
        assert!(!is_there(&root));
        break;
    }
}

#[test]
fn filters_restrict_a_removal_to_files_and_keep_everything_else() {
    let folder = harness::folder();
    let root = folder.path().join("tree");
    let make = || {
        fs::create_dir_all(root.join("old/inner")).unwrap();
        fs::create_dir_all(root.join("kept")).unwrap();
        for name in ["a.log", "b.txt", "old/c.log", "old/inner/d.log", "kept/e.log", "kept/f.txt"] {
            fs::write(root.join(name), "x").unwrap();
        }
        symlink("a.log", root.join("link.log")).unwrap();
    };
    let left = || {
        let mut names: Vec<String> = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(at) = folders.pop() {
            for entry in fs::read_dir(at).unwrap() {
                let path = entry.unwrap().path();
                names.push(path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                }
            }
        }
        names.sort();
        names.join(" ")
    };
    let removed = |flags: &[&str]| {
        let words: Vec<&OsStr> =
            flags.iter().map(OsStr::new).chain(["--json".as_ref(), root.as_os_str()]).collect();
        remove(&words).json()
    };
    make();
    let counted = removed(&["--dry-run", "--name", "*.log", "--prune", "kept"]);
    assert_eq!((&counted["entries"], &counted["directories"]), (&4.into(), &0.into()), "{counted}");
    let said = removed(&["--yes", "--name", "*.log", "--prune", "kept"]);
    assert_eq!((&said["removed"], &said["directories"]), (&4.into(), &0.into()), "{said}");
    assert_eq!(left(), "b.txt kept kept/e.log kept/f.txt old old/inner");

    make();
    let said = removed(&["--yes", "--type", "f", "--name", "*.log", "--empty-directories"]);
    assert_eq!((&said["removed"], &said["directories"]), (&6.into(), &2.into()), "{said}");
    assert_eq!(left(), "b.txt kept kept/f.txt link.log");
    // Everything is selected, and what was named stays nevertheless.
    let said = removed(&["--yes", "--depth", "0..", "--empty-directories"]);
    assert_eq!(said["errors"], 0, "{said}");
    assert_eq!((left(), root.is_dir()), (String::new(), true));

    make();
    let said = removed(&["--yes", "--size", "+9c"]);
    assert_eq!((&said["removed"], &said["errors"]), (&0.into(), &0.into()), "{said}");
    let said = removed(&["--yes", "--depth", "..1"]);
    assert_eq!(said["removed"], 3, "{said}");
    assert_eq!(left(), "kept kept/e.log kept/f.txt old old/c.log old/inner old/inner/d.log");
    let refused = remove(&["--yes".as_ref(), "--empty-directories".as_ref(), root.as_os_str()]);
    assert_eq!(refused.code, 2, "{refused:?}");
}

#[test]
fn exclusions_hold_below_each_path_however_the_paths_are_named() {
    let folder = harness::folder();
    for root in ["a", "b"] {
        fs::create_dir_all(folder.path().join(root).join("a")).unwrap();
        for name in ["keep", "gone", "a/keep", "a/gone"] {
            fs::write(folder.path().join(root).join(name), "x").unwrap();
        }
    }
    fs::write(folder.path().join("patterns"), "/keep\n").unwrap();
    let mut command = program();
    command.args(["remove", "--yes", "--json", "--exclude-from", "patterns", "a", "./a", "a", "b"]);
    command.current_dir(folder.path());
    let said = run_with(command, b"").json();
    assert_eq!((&said["removed"], &said["errors"]), (&6.into(), &0.into()), "{said}");
    for root in ["a", "b"] {
        assert!(is_there(&folder.path().join(root).join("keep")), "{root}/keep was excluded");
        for name in ["gone", "a/keep", "a/gone"] {
            assert!(!is_there(&folder.path().join(root).join(name)), "{root}/{name} was selected");
        }
    }
}
