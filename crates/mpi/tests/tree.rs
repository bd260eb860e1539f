//! Tests of copies, comparisons and removals by whole jobs, through the built program: see `job.rs`.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Returns the command of a job of `ranks`.
fn job(ranks: usize, arguments: &[&str]) -> Command {
    let launcher = std::env::var("NACRE_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let about = Command::new(&launcher).arg("--version").output().unwrap_or_else(|error| {
        panic!("cannot run {launcher}: {error}; install it with `apt-get install mpich` or `openmpi-bin`, or see `make mpi`")
    });
    let mut command = Command::new(launcher);
    let about = String::from_utf8_lossy(&about.stdout).into_owned();
    if about.contains("Open MPI") || about.contains("OpenRTE") {
        // More ranks than processors, and by the administrator, as tests are run.
        command.args(["--oversubscribe", "--allow-run-as-root"]);
    }
    command.arg("-n").arg(ranks.to_string()).arg(env!("CARGO_BIN_EXE_nacre-mpi")).args(arguments);
    command.stdin(Stdio::null());
    command
}

fn run(ranks: usize, arguments: &[&str]) -> Output {
    job(ranks, arguments).output().unwrap()
}

#[track_caller]
fn succeed(ranks: usize, arguments: &[&str]) -> Value {
    let output = run(ranks, &[&["--json"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
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

/// Returns path, type, mode, owner, size, time, link target and number of names of every entry.
fn described(root: &Path) -> Vec<Vec<u8>> {
    let what = "%P %y %m %U %G %l %n %T@\\0";
    let output = Command::new("find")
        .arg(root)
        .args(["-type", "d", "-printf", "%P %y %m %U %G %T@\\0", "-o", "-printf"])
        .arg(what)
        .output();
    let output = output.unwrap();
    let mut entries: Vec<_> = output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    entries.sort();
    entries
}

#[track_caller]
fn assert_same(a: &Path, b: &Path) {
    let (listed, copied) = (described(a), described(b));
    assert_eq!(listed.len(), copied.len());
    for (entry, other) in listed.iter().zip(&copied) {
        assert!(entry == other, "{} is {}", String::from_utf8_lossy(entry), String::from_utf8_lossy(other));
    }
    // Not the pipe, which diff would wait for.
    let diff = Command::new("diff")
        .args(["-r", "--no-dereference", "--exclude=pipe"])
        .arg(a)
        .arg(b)
        .output()
        .unwrap();
    assert!(diff.status.success() && diff.stdout.is_empty(), "{diff:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn ranks_copy_a_tree_as_it_is_and_compare_it() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    let words = ["copy", text(&source), text(&target), "--chunk", "64KiB"];
    for (ranks, algorithm) in [(3, "h-drqs"), (4, "drqs"), (2, "pa-drqs"), (1, "deqs")] {
        let words = [&words[..], &["--algorithm", algorithm]].concat();
        let said = succeed(ranks, &words);
        assert_eq!((&said["errors"], &said["unchanged"]), (&0.into(), &0.into()), "{said}");
        // One name of each of these files is copied, and the other is made a link to it.
        assert_eq!(said["linked"], 400, "{said}");
        let directories =
            described(&source).iter().filter(|entry| entry.windows(3).any(|part| part == b" d ")).count();
        assert_eq!(said["directories"], directories, "{said}");
        assert_same(&source, &target);
        let mut comment = [0; 16];
        let len = rustix::fs::lgetxattr(target.join("1"), "user.comment", &mut comment[..]).unwrap();
        assert_eq!(&comment[..len], b"kept too");
        let blocks = std::fs::metadata(target.join("0/sparse")).unwrap().blocks();
        assert!(blocks * 512 < 1 << 20, "holes stay holes: {blocks} blocks");
        let compared = succeed(ranks, &["compare", text(&source), text(&target)]);
        assert_eq!(compared["different"], 0, "{compared}");

        // What is there is not copied again.
        let said = succeed(ranks, &words);
        assert_eq!(
            (&said["copied"], &said["linked"], &said["bytes"]),
            (&0.into(), &0.into(), &0.into()),
            "{said}"
        );
        assert_same(&source, &target);
        std::fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
fn ranks_tell_differences_and_make_a_mirror() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    succeed(2, &["copy", text(&source), text(&target)]);
    let large = std::fs::metadata(target.join("large")).unwrap().modified().unwrap();
    let changed = std::fs::File::options().write(true).open(target.join("large")).unwrap();
    changed.write_all_at(b"others", 1_500_000).unwrap();
    changed.set_modified(large).unwrap();
    std::fs::create_dir_all(target.join("crowded/more")).unwrap();
    std::fs::write(target.join("crowded/more/file"), "").unwrap();
    std::fs::write(target.join("1/2/more"), "").unwrap();
    std::fs::remove_file(target.join("crowded/file 9")).unwrap();
    let output = run(3, &["compare", "--contents-only", text(&source), text(&target)]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<&str> = printed.lines().filter(|line| !line.contains("the same")).collect();
    lines.sort_unstable();
    let expected = [
        "differ (contents): large",
        "only in the destination: 1/2/more",
        "only in the destination: crowded/more",
        "only in the source: crowded/file 9",
    ];
    assert_eq!(lines, expected);
    let output = run(2, &["copy", "--mirror", text(&source), text(&target)]);
    assert_eq!(output.status.code(), Some(2), "a job has nobody to ask: {output:?}");
    let said = succeed(3, &["copy", "--mirror", "--yes", "--checksum", text(&source), text(&target)]);
    assert_eq!((&said["removed"], &said["copied"]), (&3.into(), &2.into()), "{said}");
    assert_same(&source, &target);
    let output = run(2, &["compare", text(&source), text(&folder.path().join("nowhere"))]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn ranks_remove_a_tree_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    std::fs::write(folder.path().join("beside"), "stays").unwrap();
    for (ranks, algorithm) in [(3, "h-drqs"), (4, "drqs")] {
        tree(&root);
        std::os::unix::fs::symlink(folder.path(), root.join("crowded/outside")).unwrap();
        let entries = described(&root).len() - 1;
        let output = run(ranks, &["remove", text(&root)]);
        assert_eq!(output.status.code(), Some(2), "a job has nobody to ask: {output:?}");
        let said =
            succeed(ranks, &["remove", "--yes", "--algorithm", algorithm, "--name", "file 1*", text(&root)]);
        let left = described(&root).len() - 1;
        assert!(left < entries);
        assert_eq!(said["removed"], entries - left, "{said}");
        let said = succeed(ranks, &["remove", "--yes", "--algorithm", algorithm, text(&root)]);
        assert_eq!((&said["removed"], &said["errors"]), (&left.into(), &0.into()), "{said}");
        assert!(!root.exists());
        assert_eq!(std::fs::read(folder.path().join("beside")).unwrap(), b"stays");
    }
}

/// Returns the processes of a job's ranks: those with `argument` in their command lines.
fn ranks_with(argument: &str) -> Vec<Pid> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(line) = std::fs::read(process.path().join("cmdline")) else { continue };
        let mut arguments = line.split(|byte| *byte == 0);
        let program = arguments.next().unwrap_or_default();
        if program.ends_with(b"nacre-mpi") && arguments.any(|other| other == argument.as_bytes()) {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
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
    // The launcher of Open MPI 4.1 sometimes waits for itself when a rank was killed.
    let mut alone: Option<Instant> = None;
    let status = loop {
        if let Some(status) = running.try_wait().unwrap() {
            break status;
        }
        if !ranks_with(mark).is_empty() {
            alone = None;
        } else if alone.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(10) {
            running.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    !status.success()
}

#[test]
fn a_killed_or_stopped_copy_goes_on_and_so_does_a_removal() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    let words = ["copy", text(&source), text(&target), "--chunk", "64KiB"];
    // In the middle of the files, and of the large file.
    let many = || std::fs::read_dir(target.join("crowded")).is_ok_and(|entries| entries.count() > 700);
    let large = || {
        let entries = std::fs::read_dir(&target);
        entries.is_ok_and(|mut entries| {
            entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().as_bytes().ends_with(b".chunks")))
        })
    };
    let moments: [&dyn Fn() -> bool; 2] = [&many, &large];
    let mut ended = 0;
    for attempt in 0..20 {
        if ended == 4 {
            break;
        }
        let signal = if attempt % 2 == 0 { Signal::KILL } else { Signal::TERM };
        ended += usize::from(end_early(3, &words, text(&target), signal, || moments[attempt / 2 % 2]()));
        if attempt % 4 == 3 {
            // Another number of ranks may go on.
            let said = succeed(2, &words);
            assert_eq!(said["errors"], 0, "{said}");
            assert_same(&source, &target);
            std::fs::remove_dir_all(&target).unwrap();
        }
    }
    assert!(ended > 0, "no job was met at work");
    succeed(2, &words);
    assert_same(&source, &target);
    let removal = ["remove", "--yes", text(&target)];
    let fewer = || !std::fs::read_dir(target.join("crowded")).is_ok_and(|entries| entries.count() > 3000);
    end_early(3, &removal, text(&target), Signal::TERM, fewer);
    if target.exists() {
        succeed(2, &removal);
    }
    assert!(!target.exists());
}

#[test]
fn directories_that_are_renamed_meanwhile_are_told_and_lead_nowhere() {
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
                    let (here, there) =
                        (source.join(format!("{number}/5")), outside.join(format!("{number}")));
                    if std::fs::rename(&here, &there).is_ok() {
                        let _ = std::os::unix::fs::symlink(&outside, &here);
                        std::thread::yield_now();
                        let _ = std::fs::remove_file(&here);
                        std::fs::rename(&there, &here).unwrap();
                    }
                }
            }
        });
        for _ in 0..3 {
            let output = run(3, &["copy", text(&source), text(&target)]);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
            // What nobody moved is there.
            let crowded = std::fs::read_dir(target.join("crowded")).unwrap().count();
            assert_eq!(crowded, std::fs::read_dir(source.join("crowded")).unwrap().count());
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "nothing was written outside");
    succeed(3, &["copy", "--mirror", "--yes", text(&source), text(&target)]);
    let compared = succeed(2, &["compare", text(&source), text(&target)]);
    assert_eq!(compared["different"], 0, "{compared}");
}
