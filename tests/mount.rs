//! `nacre mount`: ordinary programs on a mounted namespace, several mounts, servers and mounts that are killed, and random
//! calls beside the machine's own file system.

mod harness;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::{PATIENCE, Random, Server, file, folder, program, run_with, tree, wait};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// A mount, which is ended and taken off its directory when the test is over.
struct Mounted {
    child: Child,
    root: PathBuf,
}

impl Mounted {
    #[track_caller]
    fn new(store: &str, root: &Path, flags: &[&str]) -> Mounted {
        tree::require_root();
        fs::create_dir_all(root).unwrap();
        let mut command = program();
        command.args(["--store", store, "mount"]).arg(root).args(flags);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        if !lines.any(|line| line.unwrap() == "ready") {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("it was not mounted: {said}");
        }
        Mounted { child, root: root.to_owned() }
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends a signal, and returns how it ended.
    fn stop(mut self, signal: Signal) -> ExitStatus {
        self.send(signal);
        wait(&mut self.child, PATIENCE)
    }

    /// Runs a script in the mount, and returns its output.
    #[track_caller]
    fn sh(&self, script: &str) -> String {
        sh(&self.root, script)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.root).stderr(Stdio::null()).status();
    }
}

#[track_caller]
fn sh(folder: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).current_dir(folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[track_caller]
fn check_is_clean(store: &str) {
    let mut command = program();
    command.args(["--store", store, "fs", "check", "--json"]);
    let report = run_with(command, b"").json();
    assert_eq!(report["clean"], true, "{report}");
}

#[test]
fn ordinary_programs_work_and_leave_a_clean_namespace() {
    for (name, package) in [("git", "git"), ("sqlite3", "sqlite3"), ("tar", "tar")] {
        tree::output(Command::new(name).arg("--version"), package);
    }
    let folder = folder();
    let server = Server::start(&file(&folder.path().join("store")), &[]);
    let mounted = Mounted::new(&server.uri, &folder.path().join("mount"), &[]);
    let source = folder.path().join("source");
    sh(
        folder.path(),
        "mkdir -p source/a/b; seq 1 50000 >source/a/numbers; echo needle >source/a/b/hay; ln -s a/b/hay source/link",
    );
    mounted.sh(&format!("cp -a {0} copy; diff -r {0} copy", source.display()));
    assert_eq!(mounted.sh("grep -r needle copy; ls -l copy | wc -l"), "copy/a/b/hay:needle\n3\n");
    mounted.sh("tar cf copy.tar copy; mkdir out; tar xf copy.tar -C out; diff -r copy out/copy");
    // A file that another one takes the place of, or that is removed, is still there for whoever has it open.
    assert_eq!(mounted.sh("echo old >f; exec 3<f; echo new >g; mv g f; cat <&3; cat f"), "old\nnew\n");
    assert_eq!(mounted.sh("exec 3<>f; rm f; echo NEW >&3; test ! -e f; cat </proc/self/fd/3"), "NEW\n");
    // Appends of several programs at once do not overwrite each other.
    let appends = "for w in 1 2 3; do (for i in $(seq 100); do echo $w-$i >>log; done) & done; wait; sort -u log | wc -l";
    assert_eq!(mounted.sh(appends), "300\n");
    // Locks of files hold between processes; those of byte ranges are what SQLite relies on, below.
    let locked =
        "exec 9>lock; flock 9; flock -n lock true || echo refused; exec 9>&-; flock -n lock echo granted";
    assert_eq!(mounted.sh(locked), "refused\ngranted\n");
    let git = "git init -q repo; cd repo; git config user.email a@b; git config user.name a; cp ../copy/a/numbers .; \
        git add .; git commit -qm first; echo more >>numbers; git commit -qam second; git gc -q; git fsck --strict; \
        cd ..; git clone -q repo clone; cd clone; git log --format=%s";
    assert_eq!(mounted.sh(git), "second\nfirst\n");
    for journal in ["delete", "wal"] {
        let script = format!(
            "sqlite3 {journal}.db 'pragma journal_mode={journal}; create table t(n integer primary key, s text);' >/dev/null; \
             for w in 1 2; do (for i in $(seq 10); do sqlite3 -cmd '.timeout 60000' {journal}.db \
             \"insert into t(s) values('$w-$i')\"; done) & done; wait; sqlite3 {journal}.db 'select count(distinct s) from t; pragma integrity_check'"
        );
        assert_eq!(mounted.sh(&script), "20\nok\n", "{journal}");
    }
    // The namespace's own commands see the same.
    let listed = server.run(["fs", "ls", "/copy"]).text();
    assert_eq!(listed, "a\nlink");
    assert_eq!(server.run(["fs", "cat", "/copy/a/b/hay"]).text(), "needle");
    mounted.sh("rm -rf copy out");
    let root = mounted.root.clone();
    assert_eq!(mounted.stop(Signal::TERM).code(), Some(0));
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    check_is_clean(&server.uri);
}

#[test]
fn two_mounts_see_what_each_other_has_closed() {
    let folder = folder();
    let server = Server::in_memory();
    let one = Mounted::new(&server.uri, &folder.path().join("one"), &[]);
    let two = Mounted::new(&server.uri, &folder.path().join("two"), &[]);
    for round in 0..50 {
        let text = "x".repeat(round * 1000) + &round.to_string();
        let (writer, reader) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        fs::write(writer.root.join("file"), &text).unwrap();
        assert!(fs::read_to_string(reader.root.join("file")).unwrap() == text, "round {round}");
        fs::rename(writer.root.join("file"), writer.root.join("other")).unwrap();
        assert_eq!(fs::metadata(reader.root.join("file")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(fs::metadata(reader.root.join("other")).unwrap().len(), text.len() as u64);
        fs::remove_file(reader.root.join("other")).unwrap();
        assert!(!writer.root.join("other").exists());
    }
    let append = |mounted: &Mounted, word: &str| {
        let script = format!("for i in $(seq 100); do echo {word}-$i >>{}/log; done", mounted.root.display());
        Command::new("sh").args(["-c", &script]).spawn().unwrap()
    };
    for mut child in [append(&one, "one"), append(&two, "two")] {
        assert!(wait(&mut child, PATIENCE).success());
    }
    assert_eq!(one.sh("sort -u log | wc -l"), "200\n");
    assert_eq!(two.sh("sort -u log | wc -l"), "200\n");
}

/// Returns one of the numbers that a server counts.
#[track_caller]
fn counted(server: &Server, metric: &str) -> u64 {
    let address = server.ready["http"].as_str().unwrap();
    let (status, text) = harness::reflect::http(address, "GET", "/metrics", "");
    assert_eq!(status, 200, "{text}");
    let line = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("there is no {metric}")).parse::<f64>().unwrap() as u64
}

/// Looks at a name as often as the mount needs to remember what it is told of it.
#[track_caller]
fn look(root: &Path, name: &str) -> Option<fs::Metadata> {
    let mut last = None;
    for _ in 0..10 {
        last = match fs::symlink_metadata(root.join(name)) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => panic!("{name}: {error}"),
        };
    }
    last
}

#[test]
fn mounts_that_remember_what_they_see_never_see_what_was() {
    let folder = folder();
    let server = Server::start("mem:", &["--http", "127.0.0.1:0"]);
    let mounts = ["one", "two"].map(|name| Mounted::new(&server.uri, &folder.path().join(name), &[]));
    let roots = [&mounts[0].root, &mounts[1].root];
    for turn in 0..400_u32 {
        let writer = roots[turn as usize % 2];
        let (name, next) = ((turn / 4).to_string(), (turn / 4 + 1).to_string());
        match turn % 4 {
            0 => {
                // What is not there is remembered too.
                for root in roots {
                    assert!(look(root, &name).is_none() && look(root, &next).is_none(), "turn {turn}");
                }
                fs::write(writer.join(&name), &name).unwrap();
                for root in roots {
                    assert_eq!(look(root, &name).unwrap().len(), name.len() as u64, "turn {turn}");
                }
            }
            1 => {
                let mode = 0o400 | (turn & 0o77);
                fs::set_permissions(writer.join(&name), fs::Permissions::from_mode(mode)).unwrap();
                for root in roots {
                    let found = look(root, &name).unwrap();
                    assert_eq!(found.permissions().mode() & 0o777, mode, "turn {turn}");
                }
            }
            2 => {
                fs::rename(writer.join(&name), writer.join("moved")).unwrap();
                for root in roots {
                    assert!(look(root, &name).is_none() && look(root, "moved").is_some(), "turn {turn}");
                }
            }
            _ => {
                fs::remove_file(writer.join("moved")).unwrap();
                for root in roots {
                    assert!(look(root, "moved").is_none(), "turn {turn}");
                }
            }
        }
        // Nor do the namespace's own commands change anything behind the mounts' backs.
        if turn % 100 == 0 {
            let made = format!("by-command-{turn}");
            assert!(roots.iter().all(|root| look(root, &made).is_none()));
            server.run(["fs", "mkdir", &format!("/{made}")]).ok();
            assert!(roots.iter().all(|root| look(root, &made).is_some_and(|found| found.is_dir())));
        }
    }
    let (granted, revoked) = ("nacre_lease_granted_total", "nacre_lease_revoked_total");
    assert!(counted(&server, granted) > 100 && counted(&server, revoked) > 100);
    // One that does not remember sees the same.
    let asking = Mounted::new(&server.uri, &folder.path().join("asking"), &["--uncached"]);
    fs::write(roots[0].join("last"), "last").unwrap();
    assert_eq!(look(&asking.root, "last").unwrap().len(), 4);
    fs::remove_file(asking.root.join("last")).unwrap();
    assert!(roots.iter().all(|root| look(root, "last").is_none()));
}

#[test]
fn a_walk_of_a_directory_asks_the_server_for_many_files_at_a_time_and_shows_every_change() {
    const FILES: u64 = 2000;
    let folder = folder();
    let server = Server::start("mem:", &["--http", "127.0.0.1:0"]);
    let writer = Mounted::new(&server.uri, &folder.path().join("writer"), &[]);
    let path = |mounted: &Mounted, number: u64| mounted.root.join(format!("{number:04}"));
    (0..FILES).for_each(|number| fs::write(path(&writer, number), "").unwrap());
    // It has looked at nothing yet.
    let reader = Mounted::new(&server.uri, &folder.path().join("reader"), &[]);
    let reads = "nacre_requests_total{kind=\"read\",outcome=\"done\"}";
    let before = counted(&server, reads);
    for number in 0..FILES {
        assert_eq!(fs::symlink_metadata(path(&reader, number)).unwrap().len(), 0);
    }
    let asked = counted(&server, reads) - before;
    assert!(asked < FILES, "{asked} reads for {FILES} files");
    for number in (0..FILES).step_by(100) {
        let (file, next, moved) =
            (path(&writer, number), path(&writer, number + 1), path(&writer, number + 5000));
        let look = |of: u64| fs::symlink_metadata(path(&reader, of));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(look(number).unwrap().permissions().mode() & 0o777, 0o400);
        fs::write(&next, "longer").unwrap();
        assert_eq!(look(number + 1).unwrap().len(), 6);
        fs::rename(&file, &moved).unwrap();
        assert!(look(number).is_err() && look(number + 5000).is_ok());
        fs::remove_file(&next).unwrap();
        assert!(look(number + 1).is_err());
    }
}

#[test]
fn a_mount_that_is_stopped_delays_a_change_and_sees_it_when_it_goes_on() {
    let folder = folder();
    let server = Server::start("mem:", &["--http", "127.0.0.1:0"]);
    let stopped = Mounted::new(&server.uri, &folder.path().join("stopped"), &[]);
    let other = Mounted::new(&server.uri, &folder.path().join("other"), &[]);
    let file = |mounted: &Mounted| mounted.root.join("file");
    fs::write(file(&other), "file").unwrap();
    // What it holds may be over by itself, if the machine pauses.
    for attempt in 1.. {
        assert!(attempt < 20, "it never held anything when it was stopped");
        let mode = 0o600 | (attempt & 0o77);
        eventually("the mount remembers", || {
            look(&stopped.root, "file").unwrap();
            counted(&server, "nacre_lease_leases") > 0
        });
        let lapsed = counted(&server, "nacre_lease_lapsed_total");
        stopped.send(Signal::STOP);
        // Its answer must not be waited for longer than its lease lasts.
        fs::set_permissions(file(&other), fs::Permissions::from_mode(mode)).unwrap();
        let has_lapsed = counted(&server, "nacre_lease_lapsed_total") > lapsed;
        stopped.send(Signal::CONT);
        for mounted in [&stopped, &other] {
            let found = fs::symlink_metadata(file(mounted)).unwrap();
            assert_eq!(found.permissions().mode() & 0o777, mode);
        }
        if has_lapsed {
            break;
        }
    }
    // It remembers again, and is asked again.
    look(&stopped.root, "file").unwrap();
    fs::remove_file(file(&other)).unwrap();
    assert!(look(&stopped.root, "file").is_none());
}

#[test]
fn a_copy_between_a_namespace_and_its_own_mount_is_never_one_into_itself() {
    let folder = folder();
    let at = |path: &str| folder.path().join(path).into_os_string().into_string().unwrap();
    let server = Server::start("mem:", &[]);
    fs::create_dir(at("around")).unwrap();
    fs::create_dir(at("bound")).unwrap();
    let mounted = Mounted::new(&server.uri, Path::new(&at("around/mount")), &[]);
    mounted.sh("mkdir -p a/b other; echo one >a/file");
    let (a, b) = (at("around/mount/a"), at("around/mount/a/b"));
    for (from, to, why) in [
        ("nacre:/a", &*at("around/mount/a/b/copy"), "into itself"),
        ("nacre:/a", &b, "into itself"),
        ("nacre:/", &b, "into itself"),
        ("nacre:/a", &a, "the same"),
        ("nacre:/a/file", &at("around/mount/a/file"), "the same"),
        (&a, "nacre:/a/b/copy", "into itself"),
        (&a, "nacre:/a", "the same"),
        (&at("around/mount"), "nacre:/a/copy", "into itself"),
        (&a, &b, "into itself"),
    ] {
        for flags in [&["--dry-run"][..], &[]] {
            server.run([&["copy"][..], flags, &[from, to]].concat()).failed(2, &[why]);
        }
    }
    server.run(["fs", "get", "--recursive", "/a", &b]).failed(1, &["into itself"]);
    server.run(["fs", "put", "--recursive", &a, "/a/b"]).failed(1, &["into itself"]);
    // A directory of the mount that is mounted elsewhere is the same one.
    let script = r#"mount --bind "$1/around/mount/a/b" "$1/bound" || exit 90
        exec "$2" --store "$3" copy nacre:/a "$1/bound/copy""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.path()).arg(env!("CARGO_BIN_EXE_nacre"));
    command.arg(&server.uri);
    run_with(command, b"").failed(2, &["into itself"]);
    assert_eq!(mounted.sh("find . | sort"), ".\n./a\n./a/b\n./a/file\n./other\n", "nothing was written");
    // Beside it there is nothing to refuse.
    server.run(["copy", "nacre:/a", &at("around/mount/other/copy")]).ok();
    assert_eq!(mounted.sh("cat other/copy/file"), "one\n");
    // Below a source on this machine, everything but the copy is copied.
    let ended = server.run(["copy", "--cross-mounts", &at("around"), "nacre:/other/around"]);
    let said = ["mount/other/around", "copy itself"].iter().all(|part| ended.stderr.contains(part));
    assert!(ended.code == 1 && said, "{ended:?}");
    assert_eq!(mounted.sh("cat other/around/mount/a/file; ls other/around/mount/other"), "one\ncopy\n");
}

#[test]
fn a_mirror_does_not_wait_for_a_mount_that_has_nothing_to_do_with_it() {
    let folder = folder();
    let at = |path: &str| folder.path().join(path);
    let server = Server::start("mem:", &[]);
    let dead = Mounted::new(&server.uri, &at("dead"), &[]);
    for directory in ["etc", "source", "target"] {
        fs::create_dir(at(directory)).unwrap();
    }
    for file in ["source/kept", "target/kept", "target/gone"] {
        fs::write(at(file), "contents").unwrap();
    }
    fs::write(at("etc/fstab"), format!("server:/x {}/inner/deep nfs noauto 0 0\n", dead.root.display()))
        .unwrap();
    // It is a process that answers nothing, as a server that is gone.
    dead.send(Signal::STOP);
    let script = r#"cd "$1" || exit 90
        cp -a /etc/ld.so.cache etc; mount --bind etc /etc || exit 91
        exec timeout -s KILL 40 "$2" copy --mirror --yes source target"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.path()).arg(env!("CARGO_BIN_EXE_nacre"));
    let ended = run_with(command, b"");
    dead.send(Signal::CONT);
    ended.ok();
    assert!(at("target/kept").exists() && !at("target/gone").exists());
}

const SHARED: &[&str] = &["--locks", "shared"];

/// Starts a server by whose lease no lock ends while a busy machine stands still.
fn patient_server() -> Server {
    Server::start("mem:", &["--lock-lease", "60s"])
}

const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;
const SHARE: FlockOperation = FlockOperation::NonBlockingLockShared;
const UNLOCK: FlockOperation = FlockOperation::Unlock;

fn opened(mounted: &Mounted, name: &str) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(mounted.root.join(name))
        .unwrap()
}

/// Waits for something that another process does.
#[track_caller]
fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happens() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn locks_exclude_the_processes_of_other_mounts() {
    let folder = folder();
    let server = patient_server();
    let one = Mounted::new(&server.uri, &folder.path().join("one"), SHARED);
    let two = Mounted::new(&server.uri, &folder.path().join("two"), SHARED);
    // Both kinds, by this process on each of the two; a mount does not know that it is the same one.
    for posix in [true, false] {
        let lock = |file: &File, operation| match posix {
            true => fcntl_lock(file, operation),
            false => flock(file, operation),
        };
        let (here, there) = (opened(&one, "file"), opened(&two, "file"));
        lock(&here, EXCLUSIVE).unwrap();
        assert_eq!(lock(&there, EXCLUSIVE), Err(Errno::AGAIN));
        assert_eq!(lock(&there, SHARE), Err(Errno::AGAIN));
        lock(&here, SHARE).unwrap();
        lock(&there, SHARE).unwrap();
        assert_eq!(lock(&here, EXCLUSIVE), Err(Errno::AGAIN));
        lock(&there, UNLOCK).unwrap();
        lock(&here, EXCLUSIVE).unwrap();
        assert_eq!(lock(&there, SHARE), Err(Errno::AGAIN));
        // The end of the file unlocks it.
        drop(here);
        eventually("what was closed is unlocked", || lock(&there, EXCLUSIVE).is_ok());
    }
    // What was written before an unlock is read after a lock, also where the file was open and read before.
    let (here, there) = (opened(&one, "count"), opened(&two, "count"));
    here.write_all_at(&[0], 0).unwrap();
    for round in 0..40_u8 {
        let file = if round % 2 == 0 { &here } else { &there };
        flock(file, FlockOperation::LockExclusive).unwrap();
        let mut found = [0];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found[0], round);
        file.write_all_at(&[round + 1], 0).unwrap();
        flock(file, UNLOCK).unwrap();
    }
    // A wait is granted when the lock is free, and a process that waits can be ended.
    flock(&here, EXCLUSIVE).unwrap();
    let waits = || Command::new("flock").arg(two.root.join("count")).arg("true").spawn().unwrap();
    let (mut ended, mut granted) = (waits(), waits());
    std::thread::sleep(Duration::from_millis(300));
    assert!(ended.try_wait().unwrap().is_none() && granted.try_wait().unwrap().is_none());
    ended.kill().unwrap();
    assert!(!wait(&mut ended, PATIENCE).success());
    assert!(granted.try_wait().unwrap().is_none());
    flock(&here, UNLOCK).unwrap();
    assert!(wait(&mut granted, PATIENCE).success());
}

#[test]
fn sqlite_works_from_two_mounts_at_once() {
    tree::output(Command::new("sqlite3").arg("--version"), "sqlite3");
    let folder = folder();
    let server = patient_server();
    let one = Mounted::new(&server.uri, &folder.path().join("one"), SHARED);
    let two = Mounted::new(&server.uri, &folder.path().join("two"), SHARED);
    one.sh("sqlite3 d.db 'create table t(n integer primary key, s text); create table c(n); insert into c values(0);'");
    // Each program keeps the database open for all of its transactions, which read what those of the other have written.
    let work = |mounted: &Mounted, name: &str| {
        let script = format!(
            "for i in $(seq 10); do echo \"begin immediate; insert into t(s) values('{name}-$i'); update c set n=n+1; commit;\"; \
             done | sqlite3 -bail -cmd '.timeout 60000' {}/d.db",
            mounted.root.display()
        );
        Command::new("sh").args(["-c", &script]).spawn().unwrap()
    };
    for mut child in [work(&one, "a"), work(&two, "b"), work(&one, "c")] {
        assert!(wait(&mut child, PATIENCE).success());
    }
    let found = "sqlite3 d.db 'select count(distinct s) from t; select n from c; pragma integrity_check'";
    assert_eq!(one.sh(found), "30\n30\nok\n");
    assert_eq!(two.sh(found), "30\n30\nok\n");
}

#[test]
fn the_locks_of_a_killed_mount_are_free_when_its_lease_is_over() {
    let folder = folder();
    let server = Server::start("mem:", &["--lock-lease", "12s"]);
    let one = Mounted::new(&server.uri, &folder.path().join("one"), SHARED);
    let two = Mounted::new(&server.uri, &folder.path().join("two"), SHARED);
    let held = opened(&one, "file");
    flock(&held, EXCLUSIVE).unwrap();
    let there = opened(&two, "file");
    assert_eq!(flock(&there, EXCLUSIVE), Err(Errno::AGAIN));
    one.send(Signal::KILL);
    eventually("the lock is free", || flock(&there, EXCLUSIVE).is_ok());
    drop(held);
}

#[test]
fn files_that_were_locked_fail_when_the_session_is_broken_until_they_are_closed() {
    let folder = folder();
    let server = Server::in_memory();
    let mounted = Mounted::new(&server.uri, &folder.path().join("mount"), SHARED);
    let (locked, other) = (opened(&mounted, "file"), opened(&mounted, "file"));
    fcntl_lock(&locked, EXCLUSIVE).unwrap();
    locked.write_all_at(b"locked", 0).unwrap();
    // All of its locks are in one session.
    let report = server.run(["--json", "locks"]).json();
    let session = report[0]["report"]["locks"][0]["session"].as_u64().unwrap().to_string();
    server.run(["locks", "break", &session]).ok();
    eventually("the mount learns that its session was broken", || locked.write_all_at(b"late", 0).is_err());
    assert_eq!(locked.write_all_at(b"late", 0).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(locked.set_len(0).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(fcntl_lock(&locked, EXCLUSIVE), Err(Errno::IO));
    other.write_all_at(b"other", 0).unwrap();
    drop(locked);
    let again = opened(&mounted, "file");
    eventually("the file can be locked again", || fcntl_lock(&again, EXCLUSIVE).is_ok());
    again.write_all_at(b"again", 0).unwrap();
}

#[test]
fn a_mount_goes_on_when_its_server_was_killed_and_a_killed_mount_leaves_a_sound_namespace() {
    let folder = folder();
    let store = file(&folder.path().join("store"));
    let address = format!("unix:{}", folder.path().join("socket").display());
    // Its programs learn soon that the server is away.
    let hasty = format!("{address}?repeat_timeout=2s");
    let mut server = Server::listen(&address, &store, &[]);
    let mut mounted = Mounted::new(&hasty, &folder.path().join("mount"), &[]);
    let mut written = BTreeMap::new();
    for round in 0..3 {
        let root = mounted.root.clone();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let busy = std::thread::spawn(move || {
            let mut written = Vec::new();
            for number in 0..10_000 {
                let (name, last) = (format!("{round}-{number}"), format!("{round}-{number}.done"));
                let text = format!("{number}").repeat(1000);
                let done = fs::write(root.join(&name), &text)
                    .and_then(|()| fs::rename(root.join(&name), root.join(&last)));
                match done {
                    Ok(()) => written.push((last, text)),
                    Err(_) => break,
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
            written
        });
        let begun = Instant::now();
        while count.load(Ordering::Relaxed) == 0 {
            assert!(begun.elapsed() < PATIENCE, "nothing is written");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(500));
        // The server in the first two rounds, and the mount itself in the last one.
        if round < 2 {
            server.kill();
            let some = busy.join().unwrap();
            assert!(!some.is_empty(), "nothing was written before the kill");
            written.extend(some);
            server = Server::listen(&address, &store, &[]);
            let begun = Instant::now();
            while fs::write(mounted.root.join("again"), "again").is_err() {
                assert!(begun.elapsed() < PATIENCE, "the mount does not find the server again");
                std::thread::sleep(Duration::from_millis(10));
            }
        } else {
            mounted.send(Signal::KILL);
            written.extend(busy.join().unwrap());
            drop(mounted);
            mounted = Mounted::new(&hasty, &folder.path().join("mount"), &[]);
        }
        for (name, text) in &written {
            assert!(fs::read_to_string(mounted.root.join(name)).unwrap() == *text, "{name}");
        }
    }
    assert_eq!(mounted.stop(Signal::INT).code(), Some(0));
    server.run(["fs", "check", "--mend"]).ok();
    check_is_clean(&server.uri);
}

#[test]
fn a_signal_takes_the_directory_away_and_waits_for_open_files() {
    let folder = folder();
    let server = Server::in_memory();
    let mut mounted = Mounted::new(&server.uri, &folder.path().join("mount"), &[]);
    let path = mounted.root.join("file");
    let mut open = File::create(&path).unwrap();
    mounted.send(Signal::TERM);
    let begun = Instant::now();
    while path.exists() {
        assert!(begun.elapsed() < PATIENCE, "the directory is still mounted");
        std::thread::sleep(Duration::from_millis(5));
    }
    open.write_all(b"written after the signal").unwrap();
    assert!(mounted.child.try_wait().unwrap().is_none());
    drop(open);
    assert_eq!(wait(&mut mounted.child, PATIENCE).code(), Some(0));
    assert_eq!(server.run(["fs", "cat", "/file"]).text(), "written after the signal");
    // Somebody else may unmount it, too.
    let mut mounted = Mounted::new(&server.uri, &folder.path().join("mount"), &[]);
    sh(folder.path(), "umount mount");
    assert_eq!(wait(&mut mounted.child, PATIENCE).code(), Some(0));
    check_is_clean(&server.uri);
}

#[test]
fn what_cannot_be_mounted_is_refused_with_the_reason() {
    let folder = folder();
    let server = Server::in_memory();
    let refused = |words: &[&str], parts: &[&str]| {
        let mut command = server.command(["mount"]);
        command.current_dir(folder.path()).args(words);
        run_with(command, b"").failed(1, parts);
    };
    sh(folder.path(), "mkdir -p full empty; touch file full/x");
    refused(&["none"], &["cannot mount on none", "No such file"]);
    refused(&["file"], &["it is not a directory"]);
    refused(&["full"], &["it is not empty"]);
    refused(&["empty", "--read-only"], &["has no namespace yet"]);
    let store = file(&folder.path().join("store"));
    refused(&["empty", "--store", &store, "--locks", "shared"], &["only one process", "nacre serve"]);
    let mounted = Mounted::new(&server.uri, &folder.path().join("empty"), &[]);
    mounted.sh("echo here >file");
    refused(&["empty"], &["something is mounted there already"]);
    assert_eq!(mounted.stop(Signal::HUP).code(), Some(0));
    let mounted = Mounted::new(&server.uri, &folder.path().join("empty"), &["--read-only"]);
    assert_eq!(mounted.sh("cat file"), "here\n");
    let error = fs::write(mounted.root.join("file"), "").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
}

/// The number of random calls; NACRE_CALLS sets another one.
fn calls() -> u64 {
    std::env::var("NACRE_CALLS").map_or(4000, |text| text.parse().expect("NACRE_CALLS is a number"))
}

/// Makes one random call in a tree, and returns what it answered: the same on every file system.
fn call(root: &Path, kind: u64, one: &Path, other: &Path, number: u64) -> Result<String, Option<i32>> {
    let (one, other) = (root.join(one), root.join(other));
    let offset = number % 300_000;
    let data = number.to_string().repeat((number % 5000) as usize);
    let done = match kind {
        0 => fs::write(&one, data).map(|()| String::new()),
        1 => fs::read(&one).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        2 => fs::create_dir(&one).map(|()| String::new()),
        3 => fs::remove_dir(&one).map(|()| String::new()),
        4 => fs::remove_file(&one).map(|()| String::new()),
        5 => fs::rename(&one, &other).map(|()| String::new()),
        6 => fs::hard_link(&one, &other).map(|()| String::new()),
        7 => symlink(other.file_name().unwrap(), &one).map(|()| String::new()),
        8 => fs::read_link(&one).map(|target| target.display().to_string()),
        9 => OpenOptions::new().write(true).open(&one).and_then(|file| {
            file.write_all_at(data.as_bytes(), offset)?;
            Ok(file.metadata()?.len().to_string())
        }),
        10 => OpenOptions::new().write(true).open(&one).and_then(|file| {
            file.set_len(offset)?;
            Ok(file.metadata()?.len().to_string())
        }),
        11 => OpenOptions::new().append(true).create(true).open(&one).and_then(|mut file| {
            file.write_all(data.as_bytes())?;
            Ok(file.metadata()?.len().to_string())
        }),
        12 => fs::symlink_metadata(&one).map(|found| {
            let size = if found.is_dir() { 0 } else { found.len() };
            format!("{:o} {} {size}", found.mode(), if found.is_dir() { 0 } else { found.nlink() })
        }),
        13 => fs::set_permissions(&one, fs::Permissions::from_mode(0o600 | (number as u32 % 0o200)))
            .map(|()| String::new()),
        14 => OpenOptions::new().write(true).create_new(true).open(&one).map(|_| String::new()),
        _ => fs::read_dir(&one).and_then(|entries| {
            let mut names = entries
                .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
                .collect::<io::Result<Vec<_>>>()?;
            names.sort();
            Ok(names.join(" "))
        }),
    };
    done.map_err(|error| error.raw_os_error())
}

#[test]
fn random_calls_answer_as_those_of_the_machines_own_file_system() {
    let folder = folder();
    let server = Server::in_memory();
    let mounted = Mounted::new(&server.uri, &folder.path().join("mount"), &[]);
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    let mut random = Random::from_environment();
    let path = |random: &mut Random| {
        let mut path = PathBuf::new();
        for _ in 0..=random.below(3) {
            path.push(["a", "b", "c", "d"][random.below(4) as usize]);
        }
        path
    };
    for count in 0..calls() {
        let (kind, number) = (random.below(16), random.next() >> 20);
        let (one, other) = (path(&mut random), path(&mut random));
        let answers = [&mounted.root, &model].map(|root| call(root, kind, &one, &other, number));
        assert!(
            answers[0] == answers[1],
            "call {count} of kind {kind}, {one:?} and {other:?}, {number}: {:?} and on the machine's own file system {:?}",
            answers[0].as_ref().map(|text| &text[..text.len().min(200)]),
            answers[1].as_ref().map(|text| &text[..text.len().min(200)]),
        );
    }
    sh(folder.path(), "diff -r --no-dereference mount model");
    check_is_clean(&server.uri);
}

#[test]
fn a_mount_with_a_cache_shows_its_own_changes_at_once_and_those_of_others_later() {
    let folder = folder();
    let server = Server::start("mem:", &[]);
    let cached = Mounted::new(&server.uri, &folder.path().join("cached"), &["--cache", "1h"]);
    let other = Mounted::new(&server.uri, &folder.path().join("other"), &[]);
    cached.sh("mkdir d; echo one >d/f; chmod 640 d/f; test $(stat -c %a d/f) = 640");
    cached.sh("echo two >>d/f; test $(stat -c %s d/f) = 8; ln d/f d/g; test $(stat -c %h d/f) = 2; mv d/g d/h; test ! -e d/g; stat d/f >seen");
    // The entry and its attributes are not asked for again.
    other.sh("chmod 600 d/f; mv d d2");
    assert_eq!(cached.sh("stat -c %a d/f"), "640\n");
    assert_eq!(other.sh("stat -c %a d2/f; cat d2/f"), "600\none\ntwo\n");
    // What is not in the cache is looked for.
    cached.sh("test -e d2/h");
    // A file whose place another one has taken is looked for again when it is opened: there is one of the name all the time.
    cached.sh("echo old >r; cat r");
    other.sh("echo new >s; mv s r");
    assert_eq!(cached.sh("cat r"), "new\n");
    assert!(cached.stop(Signal::TERM).success());
    assert!(other.stop(Signal::TERM).success());
    check_is_clean(&server.uri);
}

#[test]
fn programs_meet_quotas_as_those_of_other_file_systems() {
    let folder = folder();
    let server = Server::start("mem:", &[]);
    server.run(["fs", "mkdir", "-p", "/limited"]).ok();
    server.run(["fs", "quota", "set", "/limited", "--bytes", "1000", "--entries", "3"]).ok();
    let mounted = Mounted::new(&server.uri, &folder.path().join("mount"), &[]);
    mounted.sh("head -c 900 /dev/zero >limited/a; echo outside >b");
    let error = fs::write(mounted.root.join("limited/c"), [7; 101]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::DQUOT.raw_os_error()));
    mounted.sh("rm limited/c");
    assert_eq!(mounted.sh("stat -f -c '%b %a %c %d' limited"), "1 0 3 2\n");
    let across = fs::rename(mounted.root.join("b"), mounted.root.join("limited/b")).unwrap_err();
    assert_eq!(across.raw_os_error(), Some(rustix::io::Errno::XDEV.raw_os_error()));
    // What copies where it cannot move does so.
    assert_eq!(mounted.sh("mv b limited/b; cat limited/b; test ! -e b; mkdir limited/d"), "outside\n");
    let error = fs::create_dir(mounted.root.join("limited/d/e")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::DQUOT.raw_os_error()));
    mounted.sh("mv limited/a a; rm -r limited/d");
    assert!(mounted.stop(Signal::TERM).success());
    let shown = server.run(["fs", "quota", "show", "/limited", "--json"]).json();
    assert_eq!((&shown["bytes"]["used"], &shown["entries"]["used"]), (&8.into(), &1.into()));
    check_is_clean(&server.uri);
}

#[test]
fn inodes_with_methods_look_like_empty_files() {
    let folder = folder();
    let server = Server::start("mem:", &[]);
    server.run(["fs", "mkdir", "-p", "/jobs"]).ok();
    server.run(["sequencer", "create", "/jobs/log"]).ok();
    let mounted = Mounted::new(&server.uri, &folder.path().join("mount"), &[]);
    mounted.sh("test -f jobs/log && test ! -s jobs/log && test -z \"$(cat jobs/log)\"");
    mounted.sh("! echo x >> jobs/log && ! echo x > jobs/log");
    mounted.sh("cp -r jobs copy; test -f copy/log; ! grep -r nothing .");
    // Other programs go on with it while it is moved by the mount.
    assert_eq!(server.run(["sequencer", "next", "/jobs/log"]).text(), "0");
    mounted.sh("mv jobs/log moved && chmod 600 moved && ln moved jobs/again");
    assert_eq!(server.run(["sequencer", "next", "/moved"]).text(), "1");
    mounted.sh("rm moved");
    assert_eq!(server.run(["sequencer", "next", "/jobs/again"]).text(), "2");
    mounted.sh("rm -r jobs copy");
    assert!(mounted.stop(Signal::TERM).success());
    check_is_clean(&server.uri);
    assert!(!server.run(["ls"]).text().contains("nacre/fs/s/"));
}
