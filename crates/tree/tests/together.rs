//! Copies, comparisons and removals that several processes make together, as ranks of an MPI job do: here two in one
//! process, which are given each other's work. Whole jobs are tested in `crates/mpi/tests/tree.rs`.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nacre_tree::EntryErrors;
use nacre_tree::copy::{
    Aspects, Compared, Copy, Destination, Difference, Differing, Held, Later, LeftOver, Options, Report,
    Worker, halve,
};
use nacre_tree::remove::{Remains, Removal};
use nacre_walk::{Queue, Unit};

use crate::common::options;

/// Runs two walks of one tree, `run` each in a thread, and gives the one that has nothing to do some work of the other.
/// `run` passes the queue of its walk on before it begins.
fn together<S: Send + Sync + 'static>(run: impl Fn(usize, &dyn Fn(&Arc<Queue<S>>)) + Sync) {
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        for process in 0..2 {
            let (sender, run) = (sender.clone(), &run);
            scope.spawn(move || {
                run(process, &|queue: &Arc<Queue<S>>| {
                    queue.keep_open();
                    sender.send((process, Arc::clone(queue))).unwrap();
                });
            });
        }
        drop(sender);
        let mut queues: Vec<(usize, Arc<Queue<S>>)> = receiver.iter().take(2).collect();
        queues.sort_by_key(|(process, _)| *process);
        let (one, other) = (&queues[0].1, &queues[1].1);
        // Nothing but this thread moves work, so that nothing is under way when both are idle.
        while !(one.is_idle() && other.is_idle()) {
            for (from, to) in [(one, other), (other, one)] {
                if to.is_idle() {
                    to.put(from.take(3));
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        one.close();
        other.close();
    });
}

/// The number of directories in a tree, without its root.
const FOLDERS: usize = 200;

/// Creates folders with files, of which the first of each has another name in one folder, a large file, and one with three
/// names.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("names")).unwrap();
    for number in 1..FOLDERS {
        let folder = root.join(format!("{number}"));
        fs::create_dir(&folder).unwrap();
        for file in 0..10 {
            fs::write(folder.join(format!("{file}")), vec![b'x'; file * 10]).unwrap();
        }
        fs::hard_link(folder.join("0"), root.join(format!("names/{number}"))).unwrap();
    }
    let large: Vec<u8> = (0..41_000_u32).map(|number| (number / 7) as u8).collect();
    fs::write(root.join("large"), &large).unwrap();
    fs::write(root.join("7/large"), &large).unwrap();
    for other in ["names/large", "8/large"] {
        fs::hard_link(root.join("7/large"), root.join(other)).unwrap();
    }
    let old = std::time::UNIX_EPOCH + Duration::new(1_234_567_890, 987_654_321);
    for path in ["names", "7", "large", ""] {
        fs::File::open(root.join(path)).unwrap().set_modified(old).unwrap();
    }
}

/// Copies a tree by two processes.
fn copy(source: &Path, target: &Path, options: &Options) -> [Copy; 2] {
    let copies = [0, 1].map(|_| Copy::new(source, target, options.clone()).unwrap().together());
    let _lock = copies[0].begin_together().unwrap();
    let [sights, others] = [0, 1].map(|process| copies[process].sights().unwrap());
    assert!(sights.iter().zip(&others).all(|(sight, other)| sight.may_be(other)));
    let left = Mutex::new(Vec::new());
    together::<Arc<Destination>>(|process, begun| {
        let leave = |later: LeftOver| left.lock().unwrap().push(later);
        let done = copies[process].copy_part(process == 0, &leave, |walk, visitors| {
            begun(walk.queue());
            walk.run(visitors);
        });
        done.unwrap();
    });
    let mut workers = [Worker::default(), Worker::default()];
    let (linked, large): (Vec<LeftOver>, Vec<LeftOver>) =
        left.into_inner().unwrap().into_iter().partition(|left| matches!(left.later, Later::Linked(_)));
    // Those of a large file are left for later once more.
    let mut large: Vec<(usize, Vec<u8>)> = large.into_iter().map(|left| (0, left.path)).collect();
    let mut names: Vec<Vec<u8>> = Vec::new();
    for left in linked {
        match copies[1].copy_entry(&left.path, true, &mut workers[1]) {
            Some(Later::Large) => large.push((1, left.path)),
            Some(Later::Linked(_)) => names.push(left.path),
            None => {}
        }
    }
    for (owner, path) in large {
        let (mut ranges, held) = copies[owner].begin_ranges(&path, &mut workers[owner]);
        let mut number = 0;
        while let Some(mut range) = ranges.pop() {
            while let Some(rest) = halve(&mut range) {
                ranges.push(rest);
            }
            number += 1;
            // One is lost, as with a rank that cannot read the file.
            if number != 3 {
                let process = number % 2;
                copies[process].copy_range(&range, &mut workers[process]);
            }
        }
        assert_eq!(number, 11);
        let name = std::str::from_utf8(&path).unwrap();
        assert!(!target.join(name).exists(), "it has no name before it is complete");
        drop(held);
        copies[owner].end_ranges(&path, &mut workers[owner]);
        assert!(target.join(name).exists());
    }
    for path in names {
        assert_eq!(copies[1].copy_entry(&path, false, &mut workers[1]), None);
    }
    copies[0].finish_root().unwrap();
    together::<Arc<Destination>>(|process, begun| {
        let done = copies[process].finish_part(process == 0, |walk, visitors| {
            begun(walk.queue());
            walk.run(visitors);
        });
        done.unwrap();
    });
    copies
}

fn sum(copies: &[Copy; 2], of: impl Fn(&Copy) -> u64) -> u64 {
    copies.iter().map(of).sum()
}

/// Compares two trees by two processes.
fn differences(source: &Path, target: &Path) -> Vec<(String, Difference)> {
    let options = Options { chunk_bytes: 4096, ..options(false) };
    let copies = [0, 1].map(|_| Copy::for_comparison(source, target, options.clone()).unwrap().together());
    let (found, left) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let report = |differing: Differing| {
        let path = String::from_utf8(differing.path).unwrap();
        found.lock().unwrap().push((path, differing.difference));
    };
    let report: Report<'_> = &report;
    copies[0].compare_root((Aspects::ALL, report)).unwrap();
    together::<Option<Arc<Destination>>>(|process, begun| {
        let leave = |later: LeftOver| left.lock().unwrap().push(later.path);
        let aspects = (Aspects::ALL, report);
        let work = copies[process].compare_part(process == 0, aspects, Some(&leave), |walk, visitors| {
            begun(walk.queue());
            walk.run(visitors);
        });
        work.unwrap();
    });
    // The contents of large files.
    let mut workers = [Worker::default(), Worker::default()];
    for path in left.into_inner().unwrap() {
        let mut ranges = Vec::from_iter(copies[0].ranges_to_compare(&path, &mut workers[0]));
        let (mut differs, mut number) = (false, 0);
        while let Some(mut range) = ranges.pop() {
            while let Some(rest) = halve(&mut range) {
                ranges.push(rest);
            }
            number += 1;
            match copies[number % 2].compare_range(&range, &mut workers[number % 2]) {
                Compared::Same => {}
                Compared::Differs => differs = true,
                Compared::Unknown => panic!("{range:?} was not compared"),
            }
        }
        assert_eq!(number, 11);
        copies[0].conclude_ranges(&path, differs, report);
    }
    assert_eq!(sum(&copies, |copy| copy.failures().count()), 0);
    let mut found = found.into_inner().unwrap();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn two_processes_copy_everything_once() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    let options = Options { chunk_bytes: 4096, ..options(false) };
    let copies = copy(&source, &target, &options);
    assert_eq!(sum(&copies, |copy| copy.failures().count()), 0, "{:?}", copies[0].failures().first());
    let count = |of: fn(&Copy) -> &std::sync::atomic::AtomicU64| {
        sum(&copies, |copy| of(copy).load(Ordering::Relaxed))
    };
    assert_eq!(count(|copy| &copy.counters().directories), FOLDERS as u64 + 1);
    assert_eq!(count(|copy| &copy.counters().linked), FOLDERS as u64 - 1 + 2);
    assert_eq!(count(|copy| &copy.counters().copied), 10 * (FOLDERS as u64 - 1) + 2);
    for copy in &copies {
        assert!(copy.counters().entries.load(Ordering::Relaxed) > 1, "both have work");
    }
    assert_eq!(differences(&source, &target), []);
    let unfinished = fs::read_dir(&target).unwrap().flatten();
    let unfinished = unfinished.filter(|entry| entry.file_name().to_string_lossy().starts_with(".nacre"));
    assert_eq!(unfinished.count(), 0);

    // A mirror of it, from which something is to go, and that has a file too few.
    fs::create_dir_all(target.join("7/more/deeper")).unwrap();
    fs::write(target.join("names/more"), "").unwrap();
    fs::remove_file(target.join("9/9")).unwrap();
    let copies = copy_mirror(&source, &target);
    assert_eq!(sum(&copies, |copy| copy.counters().removed.load(Ordering::Relaxed)), 3);
    assert_eq!(sum(&copies, |copy| copy.counters().copied.load(Ordering::Relaxed)), 1);
    assert_eq!(differences(&source, &target), []);
}

fn copy_mirror(source: &Path, target: &Path) -> [Copy; 2] {
    let copies = copy(source, target, &Options { chunk_bytes: 4096, ..options(true) });
    assert_eq!(sum(&copies, |copy| copy.failures().count()), 0, "{:?}", copies[0].failures().first());
    copies
}

/// Creates a source with a large file of eleven chunks and an empty target, and returns a maker of copies.
fn large(folder: &Path) -> impl Fn() -> Copy {
    let (source, target) = (folder.join("source"), folder.join("target"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&target).unwrap();
    let bytes: Vec<u8> = (0..41_000_u32).map(|number| (number / 7) as u8).collect();
    fs::write(source.join("large"), bytes).unwrap();
    let options = Options { chunk_bytes: 4096, ..options(false) };
    move || Copy::new(&source, &target, options.clone()).unwrap().together()
}

/// Begins the large file, and returns the chunks that are to be copied, each as a range, and the record.
fn begin(copy: &Copy, worker: &mut Worker) -> (Vec<Unit>, Option<Held>) {
    let (mut ranges, held) = copy.begin_ranges(b"large", worker);
    let mut chunks = Vec::new();
    while let Some(mut range) = ranges.pop() {
        while let Some(rest) = halve(&mut range) {
            ranges.push(rest);
        }
        chunks.push(range);
    }
    chunks.sort_by_key(|chunk| chunk.position);
    (chunks, held)
}

#[test]
fn of_a_large_file_that_a_killed_job_has_begun_only_the_first_chunk_is_copied_again() {
    let folder = tempfile::tempdir().unwrap();
    let job = large(folder.path());
    let (copy, mut worker) = (job(), Worker::default());
    let (chunks, held) = begin(&copy, &mut worker);
    assert_eq!(chunks.len(), 11);
    chunks[..9].iter().for_each(|chunk| copy.copy_range(chunk, &mut worker));
    drop((held, worker));
    let (copy, mut worker) = (job(), Worker::default());
    let (chunks, held) = begin(&copy, &mut worker);
    assert_eq!(chunks.iter().filter_map(|chunk| chunk.position).collect::<Vec<_>>(), [0, 9, 10]);
    chunks.iter().for_each(|chunk| copy.copy_range(chunk, &mut worker));
    drop(held);
    let bytes = || copy.counters().bytes.load(Ordering::Relaxed);
    let before = bytes();
    copy.end_ranges(b"large", &mut worker);
    assert_eq!((copy.failures().count(), bytes() - before), (0, 4096));
    let [source, target] =
        ["source", "target"].map(|side| fs::read(folder.path().join(side).join("large")).unwrap());
    assert!(source == target);
}

#[test]
fn what_a_process_of_an_earlier_job_still_copies_is_not_taken_for_a_part_of_the_file_that_was_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let job = large(folder.path());
    let (late, mut late_worker) = (job(), Worker::default());
    let (chunks, held) = begin(&late, &mut late_worker);
    late.copy_range(&chunks[1], &mut late_worker);
    drop(held);
    let source = folder.path().join("source/large");
    fs::write(&source, vec![b'x'; 41_000]).unwrap();
    fs::File::options().write(true).open(&source).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let (copy, mut worker) = (job(), Worker::default());
    let (anew, held) = begin(&copy, &mut worker);
    assert_eq!(anew.len(), 11);
    chunks[2..].iter().for_each(|chunk| late.copy_range(chunk, &mut late_worker));
    drop(held);
    copy.end_ranges(b"large", &mut worker);
    assert_eq!(copy.failures().count(), 0, "{:?}", copy.failures().first());
    assert!(fs::read(folder.path().join("target/large")).unwrap() == vec![b'x'; 41_000]);
}

#[test]
fn files_with_names_outside_of_the_source_keep_nothing_open() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    for number in 0..FOLDERS {
        let inside = source.join(format!("{number}"));
        fs::create_dir_all(&inside).unwrap();
        fs::create_dir_all(target.join(format!("{number}"))).unwrap();
        fs::write(inside.join("file"), "").unwrap();
        fs::hard_link(inside.join("file"), folder.path().join(format!("{number}"))).unwrap();
    }
    let copy = Copy::new(&source, &target, options(false)).unwrap().together();
    let mut worker = Worker::default();
    for number in 0..FOLDERS {
        assert_eq!(copy.copy_entry(format!("{number}/file").as_bytes(), false, &mut worker), None);
    }
    assert_eq!(copy.failures().count(), 0, "{:?}", copy.failures().first());
    assert_eq!(copy.counters().copied.load(Ordering::Relaxed), FOLDERS as u64);
    let place = folder.path().canonicalize().unwrap();
    let opened = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let below = opened.filter(|entry| fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(&place)));
    let below = below.count();
    assert!(below < FOLDERS / 4, "{below} are open");
}

#[test]
fn a_mirror_of_two_processes_removes_nothing_for_a_source_that_was_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    copy_mirror(&source, &target);
    let copies = [0, 1].map(|_| Copy::new(&source, &target, options(true)).unwrap().together());
    // As if its file system had been unmounted before the second walk.
    fs::rename(&source, folder.path().join("elsewhere")).unwrap();
    fs::create_dir(&source).unwrap();
    copies[0].finish_root().unwrap();
    together::<Arc<Destination>>(|process, begun| {
        let done = copies[process].finish_part(process == 0, |walk, visitors| {
            begun(walk.queue());
            walk.run(visitors);
        });
        done.unwrap();
    });
    assert!(sum(&copies, |copy| copy.failures().count()) > 0);
    assert_eq!(fs::read_dir(&target).unwrap().count(), FOLDERS + 1);
}

#[test]
fn a_mirror_that_is_in_its_source_is_not_mirrored() {
    let folder = tempfile::tempdir().unwrap();
    let (source, outside) = (folder.path().join("source"), folder.path().join("outside"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "").unwrap();
    fs::create_dir_all(outside.join("target/outside/target")).unwrap();
    fs::write(outside.join("target/outside/target/kept"), "").unwrap();
    let copy = Copy::new(&source, &outside.join("target"), options(true)).unwrap().together();
    // As behind a mount, which hides that it is there.
    fs::rename(&outside, source.join("outside")).unwrap();
    let leave = |left: LeftOver| assert!(left.path.is_empty(), "{left:?} was left for later");
    let copied = copy.copy_part(true, &leave, |walk, visitors| {
        walk.run(visitors);
    });
    copied.unwrap();
    copy.finish_root().unwrap();
    let finished = copy.finish_part(true, |walk, visitors| {
        walk.run(visitors);
    });
    finished.unwrap();
    let failures = copy.failures().first();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].reason().contains("destination of this copy"), "{failures:?}");
    assert!(source.join("outside/target/outside/target/kept").exists());
}

#[test]
fn a_directory_that_was_renamed_when_another_process_has_begun_it_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir_all(source.join("old")).unwrap();
    fs::write(source.join("old/file"), "").unwrap();
    let inode = fs::metadata(source.join("old")).unwrap().ino();
    let copy = Copy::new(&source, &target, options(false)).unwrap().together();
    let _lock = copy.begin_together().unwrap();
    fs::rename(source.join("old"), source.join("new")).unwrap();
    let leave = |left: LeftOver| assert!(left.path.is_empty(), "{left:?} was left for later");
    let copied = copy.copy_part(false, &leave, |walk, visitors| {
        walk.queue().put(vec![Unit { path: b"old".to_vec(), inodes: vec![inode], ..Unit::default() }]);
        walk.run(visitors);
    });
    copied.unwrap();
    let failures = copy.failures().first();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].reason().contains("renamed") && failures[0].path().ends_with("new"), "{failures:?}");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}

#[test]
fn two_processes_tell_every_difference_once() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    Copy::new(&source, &target, options(false)).unwrap().run().unwrap();
    assert_eq!(differences(&source, &target), []);
    let large = fs::File::options().write(true).open(target.join("large")).unwrap();
    large.write_all_at(b"others", 5000).unwrap();
    large.set_modified(fs::metadata(source.join("large")).unwrap().modified().unwrap()).unwrap();
    fs::write(source.join("8/more"), "").unwrap();
    fs::File::open(source.join("8")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    fs::remove_dir_all(target.join("9")).unwrap();
    fs::remove_dir_all(target.join("10")).unwrap();
    fs::write(target.join("10"), "").unwrap();
    fs::File::open(&target).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let expected = [
        ("", Difference::Modified),
        ("10", Difference::Kind),
        ("8", Difference::Modified),
        ("8/more", Difference::Missing),
        ("9", Difference::Missing),
        ("large", Difference::Contents),
    ];
    let found = differences(&source, &target);
    let found: Vec<(&str, Difference)> = found.iter().map(|(path, what)| (&path[..], *what)).collect();
    assert_eq!(found, expected);
}

#[test]
fn two_processes_remove_everything() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    tree(&root);
    std::os::unix::fs::symlink(folder.path(), root.join("names/link")).unwrap();
    fs::write(folder.path().join("beside"), "stays").unwrap();
    let removals = [0, 1].map(|_| Removal::new(&[&root], options(false).threads).unwrap());
    together::<Remains>(|process, begun| {
        let failures = EntryErrors::default();
        removals[process].run_part(process == 0, &failures, |walk, visitors| {
            begun(walk.queue());
            walk.run(visitors);
        });
    });
    let last = removals[0].run();
    assert_eq!(last.failures.count(), 0, "{:?}", last.failures.first());
    assert!(!root.exists() && folder.path().join("beside").exists());
    let entries: u64 = removals.iter().map(Removal::entries).sum();
    // The root, the folders with ten files each but for that of the names, the names, the link, and those of the large files.
    assert_eq!(entries as usize, 1 + FOLDERS + 11 * (FOLDERS - 1) + 1 + 4);
}
