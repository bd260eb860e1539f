//! Copies while source and destination change, by other programs and by other copies.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{CWD, FileType, Mode};

use crate::harness::{self, program};
use crate::tree::{assert_same, copied, copy};

/// Sets a flag when it is dropped.
struct Meanwhile<'a>(&'a AtomicBool);

impl Drop for Meanwhile<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_file_that_grows_all_the_time_is_copied_and_reported() {
    use std::io::Write;
    let folder = harness::folder();
    let (log, target) = (folder.path().join("log"), folder.path().join("target"));
    fs::write(&log, vec![b'x'; 30 << 20]).unwrap();
    let stop = AtomicBool::new(false);
    let reported = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = fs::File::options().append(true).open(&log).unwrap();
            while !stop.load(Ordering::Relaxed) {
                log.write_all(b"x").unwrap();
            }
        });
        let _meanwhile = Meanwhile(&stop);
        (0..20).any(|_| {
            let _ = fs::remove_file(&target);
            let ended = copy(&["--chunk".as_ref(), "1MiB".as_ref(), log.as_os_str(), target.as_os_str()]);
            let copied = fs::read(&target).unwrap();
            assert!(copied.len() >= 30 << 20 && copied.iter().all(|byte| *byte == b'x'));
            if ended.code == 1 {
                let known = ["not sure of the copy", "it changes while it is copied"];
                assert!(known.iter().all(|known| ended.stderr.contains(known)), "{ended:?}");
            }
            ended.code == 1
        })
    });
    assert!(reported, "a file that changed while it was copied is reported");
    // Once the source is quiet again, the copy is brought up to date.
    copied(&log, &target, &["--verify"]);
    assert_same(&log, &target);
}

#[test]
fn links_that_appear_meanwhile_lead_nowhere() {
    let folder = harness::folder();
    let (source, target, outside) =
        (folder.path().join("source"), folder.path().join("target"), folder.path().join("outside"));
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    for number in 0..60 {
        let leaf = source.join(format!("{}/{}", number % 6, number / 6));
        fs::create_dir_all(&leaf).unwrap();
        for file in 0..15 {
            fs::write(leaf.join(format!("{file}")), format!("{number} {file}")).unwrap();
        }
    }
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for side in [&source, &target] {
            let (stop, swaps, outside) = (&stop, &swaps, &outside);
            scope.spawn(move || {
                // Directories and files become links to the outside for moments, on both sides.
                for number in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = match number % 3 {
                        0 => side.join(format!("{}", number / 3 % 6)),
                        1 => side.join(format!("{}/{}", number / 3 % 6, number / 18 % 10)),
                        _ => side.join(format!(
                            "{}/{}/{}",
                            number / 3 % 6,
                            number / 18 % 10,
                            number / 180 % 15
                        )),
                    };
                    let aside =
                        side.with_file_name(format!("aside of {}", side.file_name().unwrap().display()));
                    let to = if number % 3 == 2 { outside.join("secret") } else { outside.clone() };
                    if fs::rename(&name, &aside).is_ok() {
                        if symlink(to, &name).is_ok() {
                            swaps.fetch_add(1, Ordering::Relaxed);
                            let _ = fs::remove_file(&name);
                        }
                        if fs::rename(&aside, &name).is_err() {
                            // The copy has created it again meanwhile.
                            let _ = fs::remove_dir_all(&aside);
                            let _ = fs::remove_file(&aside);
                        }
                    }
                }
            });
        }
        let _meanwhile = Meanwhile(&stop);
        let mut rounds = 0;
        while swaps.load(Ordering::Relaxed) < 3000 || rounds < 20 {
            let ended = copy(&["--force".as_ref(), source.as_os_str(), target.as_os_str()]);
            assert!(matches!(ended.code, 0..=2), "{ended:?}");
            assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
            if rounds % 5 == 4 {
                let _ = fs::remove_dir_all(&target);
            }
            rounds += 1;
        }
    });
    // The outside was neither changed nor copied. (The last round may have ended by removing the copy.)
    fs::create_dir_all(&target).unwrap();
    assert_eq!(fs::metadata(outside.join("secret")).unwrap().nlink(), 1);
    let grep = Command::new("grep").args(["--recursive", "--quiet", "secret"]).arg(&target).status().unwrap();
    assert_eq!(grep.code(), Some(1));
    copy(&["--force".as_ref(), source.as_os_str(), target.as_os_str()]);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn files_that_change_meanwhile_are_copied_whole_or_reported() {
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    // Each state of each file consists of one byte value only, so that a mixture would be visible.
    let write = |name: &str, value: u8, len: usize| fs::write(source.join(name), vec![value; len]).unwrap();
    for name in ["grows", "shrinks", "goes", "stays", "becomes a pipe"] {
        write(name, 1, 300_000);
    }
    let stop = AtomicBool::new(false);
    let codes = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_usize.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                write("grows", number as u8, 300_000 + number % 100 * 1000);
                write("shrinks", number as u8, 300_000 - number % 100 * 3000);
                let _ = fs::remove_file(source.join("goes"));
                write("goes", 3, 300_000);
                let pipe = source.join("becomes a pipe");
                let _ = fs::remove_file(&pipe);
                let _ = rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0);
                let _ = fs::remove_file(&pipe);
                write("becomes a pipe", 4, 300_000);
            }
        });
        let _meanwhile = Meanwhile(&stop);
        let mut codes = [0; 3];
        for _ in 0..60 {
            let ended = copy(&["--chunk".as_ref(), "64KiB".as_ref(), source.as_os_str(), target.as_os_str()]);
            codes[usize::try_from(ended.code).unwrap()] += 1;
            if ended.code == 1 {
                let known = ["changes while it is copied", "was replaced by something else"];
                assert!(known.iter().any(|known| ended.stderr.contains(known)), "{ended:?}");
            }
            assert!(fs::read(target.join("stays")).unwrap() == [1; 300_000]);
        }
        codes
    });
    assert_eq!(codes[2], 0, "{codes:?}");
    copy(&[source.as_os_str(), target.as_os_str()]).ok();
    assert_same(&source, &target);
}

#[test]
fn two_copies_to_one_place_do_not_mix() {
    let folder = harness::folder();
    let target = folder.path().join("target");
    for (number, name) in ["one", "two"].into_iter().enumerate() {
        let source = folder.path().join(name);
        fs::create_dir(&source).unwrap();
        for file in 0..500 {
            fs::write(source.join(format!("{file}")), vec![number as u8; 20_000]).unwrap();
        }
    }
    let start = |name: &str| {
        let mut command = program();
        command.arg("copy").arg(folder.path().join(name)).arg(&target);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ends = [start("one"), start("two")].map(|child| child.wait_with_output().unwrap());
    for end in &ends {
        let stderr = String::from_utf8_lossy(&end.stderr);
        match end.status.code() {
            Some(0) => {}
            Some(2) => assert!(stderr.contains("another copy is writing there"), "{stderr}"),
            code => panic!("{code:?}: {stderr}"),
        }
    }
    assert!(ends.iter().any(|end| end.status.success()));
    for file in 0..500 {
        let bytes = fs::read(target.join(format!("{file}"))).unwrap();
        assert!(bytes == [0; 20_000] || bytes == [1; 20_000]);
    }
}
