//! `nacre walk` under adverse conditions: interrupted and resumed, on trees that change during the walk, with nested
//! mounts.

mod harness;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::tree::{self, find, records};
use harness::{Ended, PATIENCE, Random, program, run_with, shell_code, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn command(words: &[&str]) -> Command {
    let mut command = program();
    command.arg("walk").args(words);
    command
}

/// Creates a tree that takes a while: nested directories of many sizes, files with several names, one large directory.
fn large_tree(root: &Path) {
    let mut random = Random(11);
    let mut folders = vec![root.to_owned()];
    for number in 0..1500 {
        let parent = &folders[random.below(folders.len() as u64) as usize];
        let folder = parent.join(format!("folder {number}"));
        fs::create_dir(&folder).unwrap();
        for file in 0..random.below(30) {
            let path = folder.join(format!("file {file}"));
            fs::write(&path, vec![0; random.below(3000) as usize]).unwrap();
            if file % 7 == 0 {
                fs::hard_link(&path, folders[0].join(format!("{number} {file}"))).unwrap();
            }
        }
        folders.push(folder);
    }
    let large = root.join("large");
    fs::create_dir(&large).unwrap();
    for number in 0..20_000 {
        fs::write(large.join(format!("entry {number}")), "").unwrap();
        if number % 50 == 0 {
            fs::create_dir_all(large.join(format!("folder {number}/inside"))).unwrap();
        }
    }
}

/// Runs until it ends by itself, or for a random time after its first checkpoint.
fn run_for_a_while(words: &[&str], checkpoint: &Path, signal: Signal, random: &mut Random) -> Ended {
    let before = fs::metadata(checkpoint).ok().map(|about| std::os::unix::fs::MetadataExt::ino(&about));
    let mut child = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = drain(child.stdout.take().unwrap());
    let stderr = drain(child.stderr.take().unwrap());
    // Once it has saved a checkpoint it handles signals.
    let saved = || {
        let now = fs::metadata(checkpoint).ok().map(|about| std::os::unix::fs::MetadataExt::ino(&about));
        now.is_some() && now != before
    };
    let begun = Instant::now();
    while !saved() && !has_ended(&mut child) {
        assert!(begun.elapsed() < PATIENCE, "it neither saves nor ends");
        std::thread::yield_now();
    }
    let moment = Instant::now() + Duration::from_micros(random.below(30_000));
    while Instant::now() < moment {
        std::thread::yield_now();
    }
    if !has_ended(&mut child) {
        // It has not been reaped, so its process id cannot have been reused.
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let status = wait(&mut child, PATIENCE);
    Ended {
        code: shell_code(status),
        stdout: stdout.join().unwrap(),
        stderr: String::from_utf8(stderr.join().unwrap()).unwrap(),
    }
}

fn drain(mut stream: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// Returns whether a process has ended, without reaping it: its process id cannot be reused.
fn has_ended(child: &mut Child) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    waitid(WaitId::Pid(Pid::from_child(child)), options).unwrap().is_some()
}

/// Interrupts and resumes until it is done. Returns all its output, and the number of interruptions.
fn in_pieces(words: &[&str], checkpoint: &Path, signal: Signal, random: &mut Random) -> (Vec<u8>, u32) {
    let file = checkpoint.to_str().unwrap();
    let (mut printed, mut interrupted) = (Vec::new(), 0);
    loop {
        let mut words = words.to_vec();
        let threads = (1 + random.below(3)).to_string();
        words.extend(["--threads", &threads]);
        words.extend(if checkpoint.exists() { ["--resume", file] } else { ["--checkpoint", file] });
        let ended = match interrupted < 6 {
            true => run_for_a_while(&words, checkpoint, signal, random),
            false => run_with(command(&words), b""),
        };
        printed.extend_from_slice(&ended.stdout);
        match ended.code {
            0 => {
                assert_eq!(ended.stderr, "");
                assert!(!checkpoint.exists(), "what is done needs no checkpoint");
                return (printed, interrupted);
            }
            143 if signal == Signal::TERM => {
                assert!(ended.stderr.contains(&format!("--resume {file} to continue")), "{ended:?}");
            }
            137 if signal == Signal::KILL => {}
            _ => panic!("{ended:?}"),
        }
        interrupted += 1;
    }
}

#[test]
fn an_interrupted_walk_comes_out_as_if_it_had_not_been() {
    let folder = harness::folder();
    large_tree(folder.path());
    let root = folder.path().to_str().unwrap();
    let elsewhere = harness::folder();
    let checkpoint = elsewhere.path().join("checkpoint");
    let mut random = Random::from_environment();
    let summary = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let histograms = ["--histogram", "size,depth,owner,type", "--depth-summary"];
    let words = [&[root, "--json", "--top", "25"], &histograms[..]].concat();
    let whole = summary(&run_with(command(&words), b"").ok());
    let entries = find(&[root, "-print0"]);
    assert_eq!(whole["total"]["entries"], entries.len());
    let mut interrupted = 0;
    for round in 0..8 {
        let signal = if round % 2 == 0 { Signal::TERM } else { Signal::KILL };
        let words = [&words[..], &["--every", if round < 4 { "1ms" } else { "30s" }]].concat();
        let (printed, times) = in_pieces(&words, &checkpoint, signal, &mut random);
        assert_eq!(summary(&printed), whole, "round {round}");
        interrupted += times;
    }
    for _ in 0..3 {
        let words = [root, "--list", "--null", "--every", "5ms"];
        let (printed, times) = in_pieces(&words, &checkpoint, Signal::TERM, &mut random);
        assert_eq!(records(&printed), entries);
        interrupted += times;
    }
    assert!(interrupted > 5, "only {interrupted} walks were interrupted");
}

#[test]
fn nobody_goes_on_with_something_else() {
    let folder = harness::folder();
    large_tree(folder.path());
    let root = folder.path().to_str().unwrap();
    let elsewhere = harness::folder();
    let checkpoint = elsewhere.path().join("it's a checkpoint");
    let file = checkpoint.to_str().unwrap();
    let words = [root, "--name", "*1", "--checkpoint", file];
    let mut random = Random(0);
    // However fast the machine, some run is interrupted.
    let ended = (0..100)
        .map(|_| run_for_a_while(&words, &checkpoint, Signal::TERM, &mut random))
        .find(|ended| ended.code == 143)
        .expect("one of a hundred walks is interrupted");
    assert!(ended.stderr.ends_with("'\\''s a checkpoint' to continue\n"), "{ended:?}");
    assert_eq!(ended.stdout, b"");
    run_with(command(&words), b"").failed(2, &["already", "--resume"]);
    let resume = |words: &[&str], file: &str| run_with(command(&[words, &["--resume", file]].concat()), b"");
    resume(&[root], file).failed(2, &["of another walk", "--name was \"*1\", and is not given now"]);
    resume(&["/tmp", "--name", "*1"], file).failed(2, &["of another walk", "ROOT was"]);
    resume(&[root, "--name", "*1", "--top", "3"], file)
        .failed(2, &["of another walk", "--top was not given, and is 3 now"]);
    resume(&[root, "--name", "*1", "--size", "+1k"], file)
        .failed(2, &["of another walk: --size is not what it was"]);
    resume(&[root, "--name", "*1", "--depth-summary"], file)
        .failed(2, &["--depth-summary was not given, and is given now"]);
    let bytes = fs::read(&checkpoint).unwrap();
    let other = elsewhere.path().join("other");
    let other = other.to_str().unwrap();
    for (change, part) in [
        (bytes[..bytes.len() - 1].to_vec(), "damaged"),
        (bytes.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 40)).collect(), "damaged"),
        (b"#!/bin/sh\necho no".to_vec(), "not a checkpoint"),
        (Vec::new(), "not a checkpoint"),
    ] {
        fs::write(other, change).unwrap();
        resume(&[root, "--name", "*1"], other).failed(2, &["cannot resume from", part]);
    }
    let summary: Value = resume(&[root, "--name", "*1", "--json"], file).json();
    assert_eq!(summary["total"]["entries"], find(&[root, "-name", "*1", "-print0"]).len());
}

/// Lists, and interrupts once the reader has more than the root's own line, which is printed before anything is walked.
/// Returns the whole output, or `None` if the listing completed all the same; it exceeds a pipe and its buffers, so
/// that this is rare.
fn interrupted(words: &[&str]) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut child = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = drain(child.stderr.take().unwrap());
    let mut stdout = child.stdout.take().unwrap();
    let mut printed = vec![0; 8192];
    stdout.read_exact(&mut printed).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    stdout.read_to_end(&mut printed).unwrap();
    let status = wait(&mut child, PATIENCE);
    let stderr = String::from_utf8(stderr.join().unwrap()).unwrap();
    let code = shell_code(status);
    assert!(matches!(code, 0 | 143), "{stderr}");
    (code == 143).then_some(printed)
}

#[test]
fn a_walk_goes_on_where_directories_were_renamed_and_says_which_are_gone() {
    let folder = harness::folder();
    let root = folder.path().join("root");
    // The renamed directories have parents that are read in one go. A name that changes while a directory is read may
    // be listed or not, as with any reader.
    for part in 0..40 {
        for number in 0..150 {
            let directory = root.join(format!("part {part}/one of many {number}"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("inside"), "").unwrap();
        }
    }
    let root_text = root.to_str().unwrap();
    let checkpoint = folder.path().join("checkpoint");
    let file = checkpoint.to_str().unwrap();
    // The paths are long, so that much is left when it is interrupted.
    let words = [root_text, "--list", "--fields", "inode,path"];
    let lines = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let inode = |line: &str| line.split('\t').next().unwrap().parse().unwrap();
        let mut lines: Vec<u64> = text.lines().map(inode).collect();
        lines.sort_unstable();
        lines
    };
    let there = lines(&run_with(command(&words), b"").ok());
    let begin = || {
        for _ in 0..100 {
            let words = [&words[..], &["--checkpoint", file, "--threads", "1"]].concat();
            if let Some(printed) = interrupted(&words) {
                if lines(&printed).len() < there.len() / 2 {
                    return printed;
                }
                fs::remove_file(&checkpoint).unwrap();
            }
        }
        panic!("none of a hundred walks was interrupted early");
    };
    let folders = || -> Vec<PathBuf> {
        let entries = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    };

    let mut printed = begin();
    for (number, path) in folders().into_iter().enumerate() {
        fs::rename(path, root.join(format!("renamed {number}"))).unwrap();
    }
    printed.extend(run_with(command(&[&words[..], &["--resume", file]].concat()), b"").ok());
    assert_eq!(lines(&printed), there, "everything is listed once, whatever it is called by now");

    let printed = lines(&begin());
    fs::create_dir(folder.path().join("outside")).unwrap();
    for path in folders() {
        fs::rename(&path, folder.path().join("outside").join(path.file_name().unwrap())).unwrap();
    }
    let ended = run_with(command(&[&words[..], &["--resume", file]].concat()), b"");
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("moved or removed before it was opened"), "{ended:?}");
    assert!(ended.stderr.contains("could not be visited"), "{ended:?}");
    assert!(lines(&ended.stdout).len() + printed.len() < there.len());
}

/// Threads that repeat changes while the walks go on.
struct Churn(&'static AtomicBool, Vec<std::thread::JoinHandle<()>>);

impl Churn {
    fn begin(works: Vec<Box<dyn Fn(u64) + Send>>) -> Churn {
        let over: &'static AtomicBool = Box::leak(Box::default());
        let begin = |work: Box<dyn Fn(u64) + Send>| {
            std::thread::spawn(move || (0..).take_while(|_| !over.load(Ordering::Relaxed)).for_each(work))
        };
        Churn(over, works.into_iter().map(begin).collect())
    }

    fn end(self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Returns the listing of a tree in which directories come and go. Directories that disappeared before they were opened
/// may be reported, and nothing else.
#[track_caller]
fn changing_tree(ended: Ended) -> Vec<u8> {
    let missing = ended.stderr.lines().filter(|line| line.contains("moved or removed before")).count();
    let reported = ended.stderr.lines().filter(|line| line.contains("could not be visited")).count();
    assert_eq!(missing + reported, ended.stderr.lines().count(), "{ended:?}");
    assert_eq!(ended.code, i32::from(missing > 0), "{ended:?}");
    ended.stdout
}

#[test]
fn trees_may_change_underneath() {
    let folder = harness::folder();
    let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
    fs::create_dir_all(outside.join("secret/deeper")).unwrap();
    fs::write(outside.join("secret/deeper/file"), "").unwrap();
    for number in 0..300 {
        fs::create_dir_all(root.join(format!("stable {number}/a/b"))).unwrap();
        for file in 0..10 {
            fs::write(root.join(format!("stable {number}/a/file {file}")), "").unwrap();
        }
    }
    let stable: Vec<PathBuf> = (0..4).map(|number| root.join(format!("changing {number}"))).collect();
    for folder in &stable {
        fs::create_dir(folder).unwrap();
    }
    let lasting = find(&[root.to_str().unwrap(), "-print0"]);
    let at = |number: usize| stable[number].clone();
    let (files, folders, swapped, renamed) = (at(0), at(1), at(2), at(3));
    let target = outside.join("secret");
    let churn = Churn::begin(vec![
        // Files appear and disappear.
        Box::new(move |round| {
            let path = files.join(format!("file {}", round % 100));
            fs::write(&path, "x").unwrap();
            if round % 3 == 0 {
                fs::remove_file(path).unwrap();
            }
        }),
        // So do trees.
        Box::new(move |round| {
            let top = folders.join(format!("{}", round % 20));
            fs::create_dir_all(top.join("a/b/c")).unwrap();
            fs::write(top.join("a/b/c/file"), "").unwrap();
            fs::remove_dir_all(top).unwrap();
        }),
        // A directory is replaced by a link that leads out, and restored.
        Box::new(move |round| {
            let path = swapped.join(format!("{}", round % 30));
            fs::create_dir_all(path.join("deeper")).unwrap();
            fs::remove_dir_all(&path).unwrap();
            symlink(&target, &path).unwrap();
            fs::remove_file(&path).unwrap();
        }),
        // Directories move, with their contents.
        Box::new(move |round| {
            let (here, there) = (renamed.join(format!("here {}", round % 10)), renamed.join("there"));
            fs::create_dir_all(here.join("x/y/z")).unwrap();
            fs::rename(&here, &there).unwrap();
            fs::rename(there.join("x/y"), renamed.join("moved out")).unwrap();
            fs::remove_dir_all(renamed.join("moved out")).unwrap();
            fs::remove_dir_all(there).unwrap();
        }),
    ]);
    let root_text = root.to_str().unwrap();
    for round in 0..60 {
        let words = match round % 3 {
            0 => &[root_text, "--list", "--null"][..],
            1 => &[root_text, "--list", "--null", "--fields", "path", "--size", "+0c", "--threads", "4"],
            _ => &[root_text, "--list", "--null", "--cross-mounts", "--threads", "3"],
        };
        let printed = records(&changing_tree(run_with(command(words), b"")));
        let changing = |path: &&Vec<u8>| path.starts_with(format!("{root_text}/changing ").as_bytes());
        if round % 3 == 1 {
            // The condition on the size leaves out the empty files.
            let folders = printed.iter().filter(|path| path.ends_with(b"/a/b") && !changing(path)).count();
            assert_eq!(folders, 300);
        } else {
            let seen: Vec<_> = printed.iter().filter(|path| !changing(path)).collect();
            let expected: Vec<_> = lasting.iter().filter(|path| !changing(path)).collect();
            assert_eq!(seen, expected, "what was there throughout is listed once");
        }
        for folder in &stable {
            assert_eq!(
                printed.iter().filter(|path| **path == folder.as_os_str().as_encoded_bytes()).count(),
                1
            );
        }
        let links_followed = |path: &&Vec<u8>| path.ends_with(b"/deeper/file") || path.ends_with(b"/secret");
        assert_eq!(printed.iter().filter(links_followed).count(), 0, "nothing outside is listed");
        // A summary meets the same changes.
        let summary = changing_tree(run_with(command(&[root_text, "--json", "--top", "3"]), b""));
        let summary: Value = serde_json::from_slice(&summary).unwrap();
        assert_eq!(summary["errors"]["count"], 0, "{summary}");
    }
    churn.end();
}

#[test]
fn a_long_chain_of_directories_is_walked_copied_and_removed_with_few_descriptors() {
    const LEVELS: usize = 20_000;
    let folder = harness::folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, target, checkpoint) = (at("source"), at("target"), at("checkpoint"));
    tree::chain(Path::new(&source), LEVELS, "d");
    let run = |words: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 256 && exec \"$@\"", "sh"]).arg(program().get_program()).args(words);
        run_with(command, b"")
    };
    // Work quadratic in the number of levels would exceed any time limit of a test.
    let entries = LEVELS + 2;
    for words in [
        &["walk", "--json", &source, "--threads", "2"][..],
        &["walk", "--json", &source, "--checkpoint", &checkpoint, "--every", "1ms", "--histogram", "depth"],
        &["walk", "--json", &source, "--threads", "4", "--type", "d,f", "--cross-mounts"],
    ] {
        let summary = run(words).json();
        assert_eq!(summary["total"]["entries"], entries);
        assert_eq!(summary["deepest"]["depth"], LEVELS + 1);
    }
    for flags in [&[][..], &["--threads", "2"]] {
        let said = run(&[&["copy", "--json", "--verify", &source, &target], flags].concat()).json();
        assert_eq!((&said["verified"], &said["directories"]), (&entries.into(), &(LEVELS + 1).into()));
    }
    // The deepest level shows that the copy is complete.
    assert_eq!(run(&["walk", "--json", &target]).json()["total"]["entries"], entries);
    run(&["remove", "--yes", &source, &target]).ok();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_would_be_mounted_by_opening_it_is_not_opened() {
    tree::require_root();
    let folder = harness::folder();
    // Opening the directory would mount the tracing file system in it.
    let in_namespace = |words: &str| {
        let script = "mount -t debugfs none \"$1\" && at=\"$1/tracing\" && shift && \"$@\" && grep -c \"$at\" /proc/mounts";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.path()).arg(program().get_program());
        command.arg("walk").arg(folder.path()).args(words.split_whitespace()).env("LC_ALL", "C");
        run_with(command, b"")
    };
    for words in ["--list --depth ..2", "--list --depth ..2 --fields path,size"] {
        // The walk succeeds, and `grep` finds no mount.
        let ended = in_namespace(words);
        assert_eq!((ended.code, &ended.stderr[..]), (1, ""), "{ended:?}");
        let printed = String::from_utf8(ended.stdout).unwrap();
        let tracing = printed.lines().filter(|line| line.contains("/tracing")).count();
        assert_eq!(tracing, 1, "it is listed, and nothing in it: {printed}");
        assert!(printed.ends_with("\n0\n"), "{printed}");
    }
}

#[test]
fn mounts_are_entered_only_if_asked_and_loops_end() {
    tree::require_root();
    let folder = harness::folder();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("a/loop")).unwrap();
    fs::create_dir_all(root.join("b/other")).unwrap();
    fs::write(root.join("a/file"), "").unwrap();
    // Mounts in a namespace of their own, which ends with the walk.
    let in_namespace = |words: &str| {
        let script = "mount --bind \"$1\" \"$1/a/loop\" && mount -t tmpfs none \"$1/b/other\" && \
                      echo x > \"$1/b/other/inside\" && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&root).arg(program().get_program());
        command.arg("walk").arg(&root).args(words.split_whitespace()).env("LC_ALL", "C");
        run_with(command, b"")
    };
    let path = |name: &str| root.join(name).into_os_string().into_encoded_bytes();
    let within: Vec<_> = ["a", "a/file", "a/loop", "b", "b/other"].map(path).into();
    let within = [vec![root.as_os_str().as_encoded_bytes().to_vec()], within].concat();
    assert_eq!(records(&in_namespace("--list --null").ok()), within);
    assert_eq!(
        records(&in_namespace("--list --null --one-file-system --fields path --mtime -9").ok()),
        within
    );
    // A root on another mount is not visited as part of the one above it.
    let other = root.join("b/other");
    let both = in_namespace(&format!("--list --null {}", other.display())).ok();
    let mut expected = [within.clone(), vec![path("b/other"), path("b/other/inside")]].concat();
    expected.sort();
    assert_eq!(records(&both), expected);
    let summary = in_namespace("--json").json();
    assert_eq!(summary["mount_points"]["count"], 2);
    assert_eq!(summary["total"]["entries"], 6);

    let ended = in_namespace("--list --null --cross-mounts");
    assert_eq!(ended.code, 1, "{ended:?}");
    let parts = ["not entering", "/a/loop", "mounted below itself", "one directory or entry"];
    assert!(parts.iter().all(|part| ended.stderr.contains(part)), "{ended:?}");
    let crossed = [within, vec![path("b/other/inside")]].concat();
    assert_eq!(records(&ended.stdout), crossed);
}
