//! Ordinary programs on a mounted namespace. Where there is no FUSE, or the user may not mount, the test says so.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::Arc;

use nacre_fuse::{Mount, Options};
use nacre_meta::{Rank, RankOptions};
use nacre_object::testkit::MemoryStore;

fn sh(folder: &std::path::Path, script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).current_dir(folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn programs_work_on_a_mount() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let options = RankOptions { create: true, split_entries: Some(150), ..RankOptions::default() };
    let rank = runtime.block_on(Rank::open(Arc::new(MemoryStore::new()), options)).unwrap();
    let rank = Arc::new(rank);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("mount");
    fs::create_dir(&root).unwrap();
    let options = Options { source: "test".to_owned(), ..Options::default() };
    let mount = match Mount::new(rank.clone(), &root, &options, runtime.handle().clone()) {
        Ok(mount) => mount,
        Err(error) => return eprintln!("skipped: cannot mount: {error}"),
    };

    // A tree goes in by cp and is the same there.
    let source = folder.path().join("source");
    sh(
        folder.path(),
        "mkdir -p source/a/b; seq 1 50000 >source/a/numbers; echo needle >source/a/b/hay; ln -s a/b/hay source/link; chmod 640 source/a/b/hay",
    );
    sh(&root, &format!("cp -a {} copy; diff -r {} copy", source.display(), source.display()));
    assert_eq!(sh(&root, "ls copy copy/a"), "copy:\na\nlink\n\ncopy/a:\nb\nnumbers\n");
    assert_eq!(sh(&root, "grep -r needle copy"), "copy/a/b/hay:needle\n");
    assert_eq!(
        sh(&root, "readlink copy/link; cat copy/link; tail -n 1 copy/a/numbers"),
        "a/b/hay\nneedle\n50000\n"
    );
    assert_eq!(fs::metadata(root.join("copy/a/b/hay")).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(
        fs::metadata(source.join("a/numbers")).unwrap().mtime_nsec(),
        fs::metadata(root.join("copy/a/numbers")).unwrap().mtime_nsec()
    );

    // Renames, links, appends, truncation, and files that are open while they are removed.
    sh(
        &root,
        "mv copy/a/b/hay copy/hay; ln copy/hay hard; test $(stat -c %h hard) = 2; rm copy/hay; cat hard",
    );
    assert_eq!(
        sh(&root, "echo one >log; echo two >>log; cat log; truncate -s 3 log; cat log"),
        "one\ntwo\none"
    );
    assert_eq!(sh(&root, "exec 3<>hard; rm hard; echo more >&3; test ! -e hard"), "");
    let file = fs::File::create(root.join("sparse")).unwrap();
    file.write_all_at(b"end", 5 << 20).unwrap();
    drop(file);
    let sparse = fs::read(root.join("sparse")).unwrap();
    assert!(sparse.len() == (5 << 20) + 3 && sparse[..5 << 20].iter().all(|byte| *byte == 0));
    assert_eq!(fs::create_dir(root.join("copy")).unwrap_err().raw_os_error(), Some(17));
    assert_eq!(fs::remove_dir(root.join("copy")).unwrap_err().raw_os_error(), Some(39));

    // A directory that is split while it is filled.
    let count = "mkdir large; cd large; seq 1200 | xargs touch; ls | wc -l; seq 1200 | sort >../names; ls | sort | diff - ../names; cd ..";
    assert_eq!(sh(&root, count).trim(), "1200");
    sh(&root, "mv large/1 large/first; test -e large/first; test ! -e large/1; rm -r large names");

    // Git works on it, where there is one.
    if Command::new("git").arg("--version").output().is_ok_and(|output| output.status.success()) {
        let log = sh(
            &root,
            "git init -q repo; cd repo; git config user.email a@b; git config user.name a; cp ../copy/a/numbers .; \
             git add .; git commit -qm first; echo more >>numbers; git commit -qam second; git fsck --strict; git status --short; \
             git log --format=%s",
        );
        assert_eq!(log, "second\nfirst\n");
    }
    sh(&root, "rm -rf repo copy sparse log");
    assert_eq!(sh(&root, "ls -A"), "");
    mount.unmount().unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    let report = runtime.block_on(rank.check(false)).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    assert_eq!((report.files, report.objects), (0, 0));
}
