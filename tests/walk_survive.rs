//! `nacre walk` where it is made difficult: interrupted and resumed, trees that change underneath, mounts in each other.

mod harness;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::tree::{self, find, records};
use harness::{Ended, PATIENCE, Random, program, run_with, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn command(words: &[&str]) -> Command {
    let mut command = program();
    command.arg("walk").args(words);
    command
}

/// Something that takes a while: directories of many sizes in each other, files with several names, one large directory.
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

/// Runs until it ends by itself, or for a random while after its first checkpoint.
fn run_for_a_while(words: &[&str], checkpoint: &Path, signal: Signal, random: &mut Random) -> Ended {
    let before = fs::metadata(checkpoint).ok().map(|about| std::os::unix::fs::MetadataExt::ino(&about));
    let mut child = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = drain(child.stdout.take().unwrap());
    let stderr = drain(child.stderr.take().unwrap());
    // Once it has saved anything it listens to signals.
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
        // It was not waited for, so that the process id is its own.
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let status = wait(&mut child, PATIENCE);
    Ended {
        code: status.code().unwrap_or(-1),
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

/// Without waiting for it: its process id stays its own.
fn has_ended(child: &mut Child) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    waitid(WaitId::Pid(Pid::from_child(child)), options).unwrap().is_some()
}

/// Interrupts and resumes until it is done: everything that was printed, and how often it was interrupted.
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
            1 if signal == Signal::TERM => {
                assert!(ended.stderr.contains(&format!("--resume {file} goes on")), "{ended:?}");
            }
            -1 if signal == Signal::KILL => {}
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
    let summary = |bytes: &[u8]| {
        let mut summary: Value = serde_json::from_slice(bytes).unwrap();
        // Of several directories with the deepest entries any one is shown.
        summary["deepest"].as_object_mut().unwrap().remove("path");
        summary
    };
    let histograms = ["--histogram", "size,depth,owner,type"];
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
    // However fast the machine: some run is interrupted.
    let ended = (0..100)
        .map(|_| run_for_a_while(&words, &checkpoint, Signal::TERM, &mut random))
        .find(|ended| ended.code == 1)
        .expect("one of a hundred walks is interrupted");
    assert!(ended.stderr.ends_with("'\\''s a checkpoint' goes on from here\n"), "{ended:?}");
    assert_eq!(ended.stdout, b"");
    run_with(command(&words), b"").failed(2, &["already", "--resume"]);
    let resume = |words: &[&str], file: &str| run_with(command(&[words, &["--resume", file]].concat()), b"");
    resume(&[root], file).failed(2, &["of another walk", "--name was [\"*1\"]", "is [] now"]);
    resume(&["/tmp", "--name", "*1"], file).failed(2, &["of another walk", "ROOT was"]);
    resume(&[root, "--name", "*1", "--top", "3"], file).failed(2, &["of another walk", "--top was"]);
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
        resume(&[root, "--name", "*1"], other).failed(2, &["cannot go on from", part]);
    }
    let summary: Value = resume(&[root, "--name", "*1", "--json"], file).json();
    assert_eq!(summary["total"]["entries"], find(&[root, "-name", "*1", "-print0"]).len());
}

/// Does something again and again while the walks go on, and ends with them.
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
        // Files come and go.
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
        // A directory is replaced by a link that leads out, and back.
        Box::new(move |round| {
            let path = swapped.join(format!("{}", round % 30));
            fs::create_dir_all(path.join("deeper")).unwrap();
            fs::remove_dir_all(&path).unwrap();
            symlink(&target, &path).unwrap();
            fs::remove_file(&path).unwrap();
        }),
        // Directories move, with what is in them.
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
        let printed = records(&run_with(command(words), b"").ok());
        let changing = |path: &&Vec<u8>| path.starts_with(format!("{root_text}/changing ").as_bytes());
        if round % 3 == 1 {
            // Empty files are none of its business.
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
        // Counting meets the same.
        run_with(command(&[root_text, "--json", "--top", "3"]), b"").json();
    }
    churn.end();
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
