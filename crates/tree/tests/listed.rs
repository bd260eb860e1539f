//! Removals from a list: what was changed since it was made stays.

use std::convert::Infallible;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use nacre_tree::listed::{Listed, ListedRemoval};

fn listed(path: &Path) -> Listed {
    let about = fs::symlink_metadata(path).unwrap();
    let time = |seconds: i64, nanoseconds: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    Listed {
        path: path.as_os_str().as_bytes().to_vec(),
        inode: about.ino(),
        device: None,
        kind: None,
        size: Some(about.size()),
        modified_ns: Some((time(about.mtime(), about.mtime_nsec()), 0)),
        changed_ns: Some((time(about.ctime(), about.ctime_nsec()), 0)),
    }
}

fn removed(list: Vec<Listed>) -> (u64, Vec<String>) {
    let removal = ListedRemoval::default();
    let mut list = list.into_iter().map(Ok::<_, Infallible>);
    let Ok(()) = removal.run(NonZeroUsize::new(3).unwrap(), None, false, || list.next());
    let failures = removal.failures.first().iter().map(ToString::to_string).collect();
    (removal.removed.load(Ordering::Relaxed), failures)
}

/// Writes to a file until the time of its inode is another one, which the clock of the file system may take a while for.
fn rewrite(path: &Path) {
    let before = fs::metadata(path).unwrap();
    let times = fs::FileTimes::new().set_modified(before.modified().unwrap());
    loop {
        fs::write(path, "other").unwrap();
        fs::File::options().write(true).open(path).unwrap().set_times(times).unwrap();
        let now = fs::metadata(path).unwrap();
        assert_eq!(
            (now.ino(), now.size(), now.mtime_nsec()),
            (before.ino(), before.size(), before.mtime_nsec())
        );
        if (now.ctime(), now.ctime_nsec()) != (before.ctime(), before.ctime_nsec()) {
            return;
        }
    }
}

#[test]
fn a_file_rewritten_with_its_old_size_and_time_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (same, written) = (folder.path().join("same"), folder.path().join("written"));
    fs::write(&same, "first").unwrap();
    fs::write(&written, "first").unwrap();
    let list = vec![listed(&same), listed(&written)];
    rewrite(&written);
    let (number, failures) = removed(list);
    assert_eq!((number, failures.len()), (1, 1), "{failures:?}");
    assert!(failures[0].contains("written") && failures[0].contains("was changed"), "{failures:?}");
    assert!(!same.exists() && written.exists());
}

#[test]
fn all_listed_names_of_a_file_are_removed_although_each_removal_changes_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<_> = (0..2000).map(|number| folder.path().join(format!("{number}"))).collect();
    fs::write(&names[0], "").unwrap();
    for name in &names[1..] {
        fs::hard_link(&names[0], name).unwrap();
    }
    let kept = folder.path().join("kept");
    fs::hard_link(&names[0], &kept).unwrap();
    let list: Vec<Listed> = names.iter().map(|name| listed(name)).collect();
    assert_eq!(removed(list), (2000, vec![]));
    assert_eq!(fs::metadata(&kept).unwrap().nlink(), 1);
}
