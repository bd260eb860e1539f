//! Comparisons of trees, and previews of copies.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{self, program, run_with};
use crate::tree::{as_root, assert_same, copied, copy, set_attribute, set_time, snapshot, tree};

#[test]
fn filters_restrict_a_copy_and_its_comparison() {
    let folder = harness::folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::create_dir_all(from.join("src/.git")).unwrap();
    fs::create_dir_all(from.join("target/debug")).unwrap();
    for name in ["src/a.rs", "src/b.o", "src/.git/index", "target/debug/huge", "c.rs"] {
        fs::write(from.join(name), name).unwrap();
    }
    fs::write(from.join("ignored"), "target/\n*.o\n").unwrap();
    let ignored = from.join("ignored");
    let flags = ["--verify", "--prune", ".git", "--exclude-from", ignored.to_str().unwrap()];
    let said = copied(&from, &to, &flags);
    // Two files, the list itself, and two directories.
    assert_eq!(
        (&said["copied"], &said["directories"], &said["errors"]),
        (&3.into(), &2.into(), &0.into()),
        "{said}"
    );
    let mut names: Vec<PathBuf> = snapshot(&to).into_keys().filter(|name| name != Path::new("")).collect();
    names.sort();
    assert_eq!(names, ["c.rs", "ignored", "src", "src/a.rs"].map(PathBuf::from));

    let to = folder.path().join("few");
    let said = copied(&from, &to, &["--name", "*.rs", "--depth", "..1"]);
    assert_eq!((&said["copied"], to.join("c.rs").is_file()), (&1.into(), true), "{said}");
    assert!(!to.join("ignored").exists() && !to.join("src").exists());
    // What is not selected is not missed by a comparison, and what is there stays.
    fs::write(to.join("other"), "stays").unwrap();
    let said = copied(&from, &to, &["--name", "*.rs", "--size", "-1c", "--verify"]);
    assert_eq!((&said["copied"], &said["errors"]), (&0.into(), &0.into()), "{said}");
    assert!(to.join("other").is_file());
}

#[test]
fn a_comparison_tells_every_difference_and_changes_nothing() {
    as_root();
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    tree(&source);
    copied(&source, &target, &[]);
    let compare = |words: &[&str]| {
        let mut command = program();
        command.arg("compare").arg(&source).arg(&target).args(words);
        run_with(command, b"")
    };
    assert_eq!(compare(&[]).text(), "");
    assert_eq!(compare(&["--json"]).json()["different"], 0);

    let at = |path: &str| target.join(path);
    let keep_time = |path: &str, change: &dyn Fn(&Path)| {
        let about = fs::symlink_metadata(at(path)).unwrap();
        change(&at(path));
        set_time(&at(path), about.mtime(), about.mtime_nsec());
    };
    keep_time("large", &|path| {
        fs::File::options().write(true).open(path).unwrap().write_all_at(b"others", 1_500_000).unwrap();
    });
    keep_time("level 0", &|_| {
        keep_time("level 0/link", &|path| {
            fs::remove_file(path).unwrap();
            symlink("elsewhere", path).unwrap();
        });
    });
    set_time(&at("sparse"), 5, 5);
    fs::set_permissions(at("hole"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(at("set-id"), fs::Permissions::from_mode(0o6755)).unwrap();
    set_attribute(&at("attributed/file"), "user.comment", b"another");
    keep_time("attributed", &|path| fs::remove_file(path.join("without")).unwrap());
    keep_time("links", &|path| {
        fs::create_dir(path.join("more")).unwrap();
        fs::write(path.join("more/inside"), "").unwrap();
    });
    keep_time("", &|path| {
        fs::remove_file(path.join("pipe")).unwrap();
        fs::write(path.join("pipe"), "").unwrap();
    });
    let of_contents = [
        "differ (contents): large",
        "differ (target): level 0/link",
        "differ (type): pipe",
        "only in the destination: links/more",
        "only in the source: attributed/without",
    ];
    let of_metadata =
        ["differ (attributes): attributed/file", "differ (modified): sparse", "differ (permissions): hole"];
    let before = snapshot(&target);
    let check = |words: &[&str], expected: &[&str]| {
        let ended = compare(words);
        assert_eq!((ended.code, &ended.stderr[..]), (1, ""), "{ended:?}");
        let printed = String::from_utf8(ended.stdout).unwrap();
        let mut lines: Vec<&str> = printed.lines().collect();
        assert!(lines.pop().unwrap().starts_with(&format!("{} differ, ", expected.len())), "{printed}");
        lines.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(lines, expected);
    };
    check(&["--threads", "3"], &[&of_contents[..], &of_metadata].concat());
    check(&["--contents-only"], &of_contents);
    check(&["--metadata-only"], &[&of_contents[1..], &of_metadata].concat());
    let quiet = compare(&["--quiet"]);
    assert_eq!((quiet.code, quiet.stdout.len(), &quiet.stderr[..]), (1, 0, ""));
    let json = compare(&["--json", "--contents-only"]);
    let lines: Vec<Value> = json
        .stdout
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(lines.len(), of_contents.len() + 1);
    assert!(
        lines
            .iter()
            .any(|line| line["difference"] == "only-in-source" && line["path"] == "attributed/without")
    );
    assert!(before == snapshot(&target));

    // Files, missing files, and paths that cannot be compared.
    let compare = |a: &Path, b: &Path| {
        let mut command = program();
        command.arg("compare").arg(a).arg(b);
        run_with(command, b"")
    };
    assert_eq!(compare(&source.join("large"), &target.join("large")).code, 1);
    // The exit code tells that there are differences also where nobody reads them, but not where they cannot be written.
    for json in [&[][..], &["--json"]] {
        harness::unread(program().arg("compare").arg(&source).arg(&target).args(json), 1);
        harness::unwritten(program().arg("compare").arg(&source).arg(&target).args(json), 2);
    }
    harness::unread(program().args(["compare", "--json"]).arg(&source).arg(&source), 0);
    harness::unwritten(program().args(["compare", "--json"]).arg(&source).arg(&source), 2);
    assert_eq!(compare(&source.join("-rf"), &target.join("-rf")).code, 0);
    compare(&source, &folder.path().join("nowhere"))
        .failed(2, &["cannot compare", "nowhere", "No such file"]);
    assert_eq!(compare(&source, &source.join("large")).code, 1);
}

#[test]
fn a_dry_run_sees_the_links_that_a_copy_makes_and_breaks() {
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir_all(source.join("inner")).unwrap();
    for (name, bytes) in [("pair", 1000), ("inner/pair too", 2000), ("one", 300), ("other", 300)] {
        fs::write(source.join(name), vec![1; bytes]).unwrap();
        set_time(&source.join(name), 1_000_000_000, 5);
    }
    fs::hard_link(source.join("pair"), source.join("inner/pair")).unwrap();
    fs::hard_link(source.join("inner/pair too"), source.join("pair too")).unwrap();
    let dry_run = || copied(&source, &target, &["--dry-run"]);
    let work = |said: &Value| ["copied", "linked"].map(|field| said[field].as_u64().unwrap());

    let planned = dry_run();
    // Two directories, and of each pair one.
    assert_eq!((work(&planned), &planned["bytes"]), ([6, 2], &3600.into()), "{planned}");
    let said = copied(&source, &target, &[]);
    assert_eq!((work(&said), &said["bytes"]), ([4, 2], &3600.into()), "{said}");
    assert_eq!(work(&dry_run()), [0, 0]);

    // What was one file is two with the same contents and metadata, and the other way round.
    fs::remove_file(target.join("pair")).unwrap();
    fs::copy(target.join("inner/pair"), target.join("pair")).unwrap();
    set_time(&target.join("pair"), 1_000_000_000, 5);
    fs::remove_file(target.join("other")).unwrap();
    fs::hard_link(target.join("one"), target.join("other")).unwrap();
    let planned = dry_run();
    assert_eq!((work(&planned), &planned["adjusted"]), ([0, 1], &1.into()), "the root's time: {planned}");
    let said = copied(&source, &target, &[]);
    assert_eq!(work(&said), [0, 1], "{said}");
    // Another mode would be that of both names.
    fs::set_permissions(source.join("one"), fs::Permissions::from_mode(0o604)).unwrap();
    fs::set_permissions(source.join("pair"), fs::Permissions::from_mode(0o604)).unwrap();
    let words = ["--dry-run".as_ref(), "--list".as_ref(), source.as_os_str(), target.as_os_str()];
    let listed = copy(&words).text();
    assert!(listed.contains("copy\tone\n") && listed.contains("link\t"), "{listed}");
    let planned = dry_run();
    assert_eq!((work(&planned), &planned["adjusted"]), ([2, 1], &0.into()), "{planned}");
    let said = copied(&source, &target, &[]);
    assert_eq!(work(&said), [2, 1], "{said}");
    assert_same(&source, &target);
    assert_eq!(work(&dry_run()), [0, 0]);
}
