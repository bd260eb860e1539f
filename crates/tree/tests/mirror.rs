//! Mirrors and comparisons through the library: the tests of the built program are in `tests/copy.rs`.

mod common;

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use nacre_tree::copy::{Aspects, Copy, Difference, Options, StartError};

use crate::common::options;

fn differences(source: &Path, target: &Path) -> Vec<(String, Difference)> {
    let found = Mutex::new(Vec::new());
    let comparison = Copy::for_comparison(source, target, options(false)).unwrap();
    comparison
        .compare(Aspects::ALL, &|differing: nacre_tree::copy::Differing| {
            let path = String::from_utf8(differing.path).unwrap();
            found.lock().unwrap().push((path, differing.difference));
        })
        .unwrap();
    assert_eq!(comparison.failures().count(), 0, "{:?}", comparison.failures().first());
    let mut found = found.into_inner().unwrap();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn a_mirror_ends_with_no_difference_and_touches_nothing_outside() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir_all(source.join("a/b")).unwrap();
    for path in ["a/file", "a/b/file", "file"] {
        fs::write(source.join(path), path).unwrap();
    }
    let copy = Copy::new(&source, &target, options(false)).unwrap();
    copy.run().unwrap();
    assert_eq!(copy.failures().count(), 0);
    assert_eq!(differences(&source, &target), []);

    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "stays").unwrap();
    fs::create_dir_all(target.join("a/more/deeper")).unwrap();
    fs::write(target.join("a/more/deeper/file"), "").unwrap();
    std::os::unix::fs::symlink(&outside, target.join("a/b/link")).unwrap();
    fs::remove_file(target.join("file")).unwrap();
    fs::create_dir(target.join("file")).unwrap();
    fs::write(target.join("file/inside"), "").unwrap();
    let found = differences(&source, &target);
    for expected in
        [("a/more", Difference::Extra), ("a/b/link", Difference::Extra), ("file", Difference::Kind)]
    {
        assert!(found.iter().any(|(path, difference)| (&path[..], *difference) == expected), "{found:?}");
    }
    let copy = Copy::new(&source, &target, options(true)).unwrap();
    copy.run().unwrap();
    assert_eq!(copy.failures().count(), 0, "{:?}", copy.failures().first());
    assert_eq!(copy.counters().removed.load(std::sync::atomic::Ordering::Relaxed), 3 + 1 + 2);
    assert_eq!(differences(&source, &target), []);
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"stays");
}

#[test]
fn a_mirror_to_where_its_source_is_removes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a/b/source");
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("file"), "").unwrap();
    fs::write(folder.path().join("a/other"), "").unwrap();
    std::os::unix::fs::symlink(&source, folder.path().join("link")).unwrap();
    for from in [&source, &folder.path().join("link/")] {
        for to in [folder.path().to_owned(), folder.path().join("a"), folder.path().join("a/b")] {
            let refused = Copy::new(from, &to, options(true)).err();
            assert!(matches!(refused, Some(StartError::Around(..))), "{from:?} {to:?}: {refused:?}");
        }
    }
    assert!(source.join("file").exists() && folder.path().join("a/other").exists());
}

#[test]
fn a_mirror_replaces_no_directory_by_a_source_that_became_a_link_or_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir_all(target.join("source")).unwrap();
    fs::write(target.join("source/file"), "").unwrap();
    std::os::unix::fs::symlink("elsewhere", &source).unwrap();
    for _ in 0..2 {
        let refused = Copy::new(&source, &target, options(true)).err();
        assert!(matches!(refused, Some(StartError::NotMirrored(_))), "{refused:?}");
        assert!(target.join("source/file").exists());
        fs::remove_file(&source).unwrap();
        fs::write(&source, "").unwrap();
    }
}

#[test]
fn an_empty_source_empties_its_mirror_only_if_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&target).unwrap();
    // Where nothing can be lost, nothing is refused.
    Copy::new(&source, &target, options(true)).unwrap().run().unwrap();
    Copy::new(&source, &folder.path().join("new"), options(true)).unwrap().run().unwrap();
    fs::write(target.join("file"), "").unwrap();
    let refused = Copy::new(&source, &target, options(true)).err();
    assert!(matches!(refused, Some(StartError::Empty(..))), "{refused:?}");
    assert!(refused.unwrap().to_string().contains("--mirror-empty"));
    Copy::new(&source, &target, options(false)).unwrap().run().unwrap();
    assert!(target.join("file").exists());
    Copy::new(&source, &target, Options { mirror_empty: true, ..options(true) }).unwrap().run().unwrap();
    assert!(!target.join("file").exists());
}

#[test]
fn a_source_that_was_replaced_before_the_mirror_began_removes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "").unwrap();
    Copy::new(&source, &target, options(true)).unwrap().run().unwrap();
    let copy = Copy::new(&source, &target, options(true)).unwrap();
    // As if its file system had been unmounted meanwhile.
    fs::rename(&source, folder.path().join("elsewhere")).unwrap();
    fs::create_dir(&source).unwrap();
    copy.run().unwrap();
    let failures = copy.failures().first();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].reason().contains("took its place"), "{failures:?}");
    assert!(target.join("file").exists());
}

#[test]
fn a_socket_differs_from_anything_else_under_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    for name in ["both", "file", "missing"] {
        drop(std::os::unix::net::UnixListener::bind(source.join(name)).unwrap());
    }
    Copy::new(&source, &target, options(false)).unwrap().run().unwrap();
    drop(std::os::unix::net::UnixListener::bind(target.join("both")).unwrap());
    fs::write(target.join("file"), "").unwrap();
    let time = fs::metadata(&source).unwrap().modified().unwrap();
    fs::File::open(&target).unwrap().set_modified(time).unwrap();
    assert_eq!(differences(&source, &target), [("file".to_owned(), Difference::Kind)]);
}

#[test]
fn owners_and_attributes_of_links_and_pipes_are_compared_and_kept() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root gives links to others, and attributes to links");
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    for name in ["link", "attributed"] {
        std::os::unix::fs::symlink("nowhere", source.join(name)).unwrap();
    }
    let kind = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, source.join("pipe"), kind, mode, 0).unwrap();
    let copied = || {
        let copy = Copy::new(&source, &target, options(false)).unwrap();
        copy.run().unwrap();
        assert_eq!(copy.failures().count(), 0, "{:?}", copy.failures().first());
    };
    copied();
    assert_eq!(differences(&source, &target), []);
    std::os::unix::fs::lchown(target.join("link"), Some(12), Some(34)).unwrap();
    let mut expected = vec![("link".to_owned(), Difference::Permissions)];
    let set = |name: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(source.join(name), "trusted.nacre", b"value", flags)
    };
    // Not every file system has them.
    if set("attributed").is_ok() {
        set("pipe").unwrap();
        expected.insert(0, ("attributed".to_owned(), Difference::Extended));
        expected.push(("pipe".to_owned(), Difference::Extended));
    }
    assert_eq!(differences(&source, &target), expected);
    copied();
    assert_eq!(differences(&source, &target), []);
}

#[test]
fn names_of_one_file_at_the_destination_become_files_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(target.join("a"), "old").unwrap();
    for name in ["b", "c"] {
        fs::hard_link(target.join("a"), target.join(name)).unwrap();
    }
    for name in ["a", "b", "c"] {
        fs::write(source.join(name), format!("the new {name}")).unwrap();
    }
    let copy = Copy::new(&source, &target, options(false)).unwrap();
    copy.run().unwrap();
    assert_eq!(copy.failures().count(), 0, "{:?}", copy.failures().first());
    assert_eq!(differences(&source, &target), []);
}
