//! Copies that are killed or stopped, and continued by the next run.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{self, PATIENCE, Random, program, wait};
use crate::tree::{assert_same, copied, set_time, unfinished};

#[test]
fn killed_at_any_moment_it_goes_on() {
    let folder = harness::folder();
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("many")).unwrap();
    let mut random = Random(5);
    let large: Vec<u8> = (0..6 << 20).flat_map(|_| random.next().to_le_bytes()).collect();
    fs::write(source.join("large"), &large).unwrap();
    for number in 0..3000 {
        fs::write(source.join(format!("many/{number}")), [number as u8; 3000]).unwrap();
    }
    let (mut killed, mut resumed) = (0, 0);
    for attempt in 0..40 {
        let target = folder.path().join(format!("target {attempt}"));
        loop {
            let mut command = program();
            command.args(["copy", "--json", "--chunk", "64KiB"]).arg(&source).arg(&target);
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            // It is killed once so much more of the large file or of the small ones exists, at a different place each
            // time.
            let files = || fs::read_dir(target.join("many")).map_or(0, Iterator::count) as u64;
            let chunks = || unfinished_record_bytes(&target);
            let at_chunk = random.below(2) == 0;
            let goal = match at_chunk {
                true => chunks() + 96 + random.below(300) * 4,
                false => files() + random.below(2000),
            };
            while child.try_wait().unwrap().is_none() && if at_chunk { chunks() } else { files() } <= goal {
                std::thread::yield_now();
            }
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            // A file under its final name is complete.
            if let Ok(bytes) = fs::read(target.join("large")) {
                assert!(bytes == large);
            }
            for entry in fs::read_dir(target.join("many")).into_iter().flatten() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                if let Ok(number) = name.parse::<u32>() {
                    assert_eq!(fs::read(entry.path()).unwrap(), [number as u8; 3000]);
                } else {
                    assert!(name.starts_with(".nacre-copy-"), "{name}");
                }
            }
            if output.status.success() {
                let said: Value = serde_json::from_slice(&output.stdout).unwrap();
                resumed += said["chunks_resumed"].as_u64().unwrap();
                break;
            }
            killed += 1;
        }
        assert_same(&source, &target);
        assert_eq!(unfinished(&target), [] as [PathBuf; 0]);
        fs::remove_dir_all(&target).unwrap();
        if killed >= 10 && resumed > 0 {
            break;
        }
    }
    assert!(killed >= 10 && resumed > 0, "killed {killed} times, {resumed} chunks gone on with");
}

/// Returns the bytes of the record of a large file's finished chunks.
fn unfinished_record_bytes(target: &Path) -> u64 {
    let entries = fs::read_dir(target).into_iter().flatten().flatten();
    let records = entries.filter(|entry| entry.file_name().as_bytes().ends_with(b".chunks"));
    records.filter_map(|entry| entry.metadata().ok()).map(|about| about.len()).max().unwrap_or(0)
}

/// Begins to copy a large file, and kills the copy when some of its chunks are finished, and not all.
fn kill_half_way(source: &Path, target: &Path) {
    let folder = target.parent().unwrap();
    for _ in 0..50 {
        let mut command = program();
        command.args(["copy", "--chunk", "64KiB"]).arg(source).arg(target);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && unfinished_record_bytes(folder) < 150 {
            std::thread::yield_now();
        }
        let _ = child.kill();
        if !child.wait().unwrap().success() {
            return;
        }
        fs::remove_file(target).unwrap();
    }
    panic!("it is always done before it is killed");
}

#[test]
fn a_signal_stops_it_and_a_large_file_goes_on() {
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let mut random = Random(6);
    for attempt in 0.. {
        assert!(attempt < 50, "it is always done before the signal comes");
        let large: Vec<u8> = (0..8 << 20).flat_map(|_| random.next().to_le_bytes()).collect();
        fs::write(&source, &large).unwrap();
        let mut command = program();
        command.args(["copy", "--json", "--chunk", "64KiB"]).arg(&source).arg(&target);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && unfinished_record_bytes(folder.path()) < 150 {
            std::thread::yield_now();
        }
        harness::send(&mut child, Signal::INT);
        wait(&mut child, PATIENCE);
        let output = child.wait_with_output().unwrap();
        if output.status.success() {
            fs::remove_file(&target).unwrap();
            continue;
        }
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(harness::shell_code(output.status), 130, "{stderr}");
        assert!(
            stderr.contains("interrupted") && stderr.contains("same command again to continue"),
            "{stderr}"
        );
        assert!(!target.exists());
        assert_eq!(unfinished(folder.path()).len(), 2);
        let said = copied(&source, &target, &["--chunk", "64KiB"]);
        assert!(said["chunks_resumed"].as_u64().unwrap() > 0, "{said}");
        assert!(fs::read(&target).unwrap() == large);
        assert_eq!(unfinished(folder.path()), [] as [PathBuf; 0]);
        break;
    }
}

#[test]
fn a_source_that_changed_is_not_mixed_with_what_was_copied_before() {
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::write(&source, vec![1; 64 << 20]).unwrap();
    kill_half_way(&source, &target);
    // The same size and the same time, but another file.
    let about = fs::metadata(&source).unwrap();
    fs::File::options().write(true).open(&source).unwrap().write_all_at(&vec![2; 64 << 20], 0).unwrap();
    set_time(&source, about.mtime(), about.mtime_nsec());
    let said = copied(&source, &target, &["--chunk", "64KiB"]);
    assert_eq!(said["chunks_resumed"], 0);
    assert!(fs::read(&target).unwrap() == vec![2; 64 << 20]);
}

#[test]
fn an_unfinished_file_that_was_cut_off_is_copied_anew() {
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let mut random = Random(7);
    let large: Vec<u8> = (0..8 << 20).flat_map(|_| random.next().to_le_bytes()).collect();
    fs::write(&source, &large).unwrap();
    kill_half_way(&source, &target);
    // Beside a record that says that chunks behind the new end are finished.
    let is_record = |path: &&PathBuf| path.as_os_str().as_bytes().ends_with(b".chunks");
    let left = unfinished(folder.path());
    let cut = left.iter().find(|path| !is_record(path)).unwrap();
    fs::File::options().write(true).open(cut).unwrap().set_len(100).unwrap();
    assert_eq!(left.iter().filter(is_record).count(), 1);
    let said = copied(&source, &target, &["--chunk", "64KiB"]);
    assert_eq!(said["chunks_resumed"], 0, "{said}");
    assert!(fs::read(&target).unwrap() == large);
    assert_eq!(unfinished(folder.path()), [] as [PathBuf; 0]);
}
