//! `nacre fs`, on a folder and on a server.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Random, Server, file, folder, program, run_with};

#[test]
fn a_namespace_is_filled_shown_and_emptied() {
    let folder = folder();
    let store = file(&folder.path().join("store"));
    let run = |words: &[&str]| {
        let mut command = program();
        command.args(["--store", &store, "fs"]).args(words);
        run_with(command, b"")
    };
    let mut random = Random(11);
    let large: Vec<u8> = (0..1_250_001).flat_map(|_| random.next().to_le_bytes()).collect();
    let source = folder.path().join("large.bin");
    fs::write(&source, &large).unwrap();
    let source = source.to_str().unwrap();

    run(&["mkdir", "-p", "/a/b"]).ok();
    run(&["ls", "/nothing"]).failed(1, &["cannot list /nothing: no such file or directory"]);
    run(&["mkdir", "/a"]).failed(1, &["cannot make /a: it exists already"]);
    run(&["mkdir", "/stripes", "--stripe", "64KiB", "--width", "3", "--object-size", "256KiB"]).ok();
    assert_eq!(run(&["put", source, "/stripes"]).text(), "10,000,008 bytes stored in /stripes/large.bin");
    assert!(run(&["cat", "/stripes/large.bin"]).ok() == large);
    let back = folder.path().join("back");
    run(&["get", "stripes/large.bin", back.to_str().unwrap()]).ok();
    assert!(fs::read(&back).unwrap() == large);
    let objects = run(&["check", "--json"]).json()["objects"].as_u64().unwrap();
    assert_eq!(objects, 39, "10,000,008 bytes in objects of 256 KiB");

    run(&["mv", "/stripes/large.bin", "/a/b/moved"]).ok();
    run(&["ln", "-s", "b/moved", "/a/symbolic"]).ok();
    run(&["ln", "/a/symbolic", "/a/same"]).ok();
    run(&["ln", "/a/b/moved", "/a/hard"]).ok();
    assert_eq!(run(&["find", "/", "--type", "f"]).text(), "/a/b/moved\n/a/hard");
    assert_eq!(run(&["find", "--name", "s*"]).text(), "/a/same\n/a/symbolic\n/stripes");
    let tree = "/\n├── a/\n│   ├── b/\n│   │   └── moved\n│   ├── hard\n│   ├── same\n│   └── symbolic\n└── stripes/";
    assert_eq!(run(&["tree"]).text(), tree);
    run(&["chmod", "u=rw,go=", "/a/hard"]).ok();
    let stat = run(&["stat", "/a/b/moved", "--json"]).json()[0].clone();
    assert_eq!(
        (&stat["mode"], &stat["links"], &stat["size"]),
        (&"0600".into(), &2.into(), &10_000_008.into())
    );
    let link = run(&["stat", "/a/symbolic", "--json"]).json()[0].clone();
    assert_eq!((&link["kind"], &link["target"]), (&"symlink".into(), &"b/moved".into()));

    // What is put over a file replaces it for all its names.
    run_with(
        {
            let mut command = program();
            command.args(["--store", &store, "fs", "put", "-", "/a/b/moved"]);
            command
        },
        b"short",
    )
    .ok();
    assert_eq!(run(&["cat", "/a/hard", "/a/symbolic"]).text(), "shortshort");
    run(&["rm", "/a"]).failed(1, &["cannot remove /a: it is a directory", "-r removes"]);
    run(&["rm", "-d", "/a"]).failed(1, &["the directory is not empty"]);
    run(&["mv", "/a", "/a/b"]).failed(1, &["a directory cannot be moved into itself"]);
    run(&["rm", "-r", "/a", "/stripes"]).ok();
    run(&["rm", "/a"]).failed(1, &["no such file"]);
    run(&["rm", "-f", "/a"]).ok();
    assert_eq!(run(&["ls"]).text(), "");
    let report = run(&["check", "--json"]).json();
    assert_eq!(
        (&report["clean"], &report["objects"], &report["ranks"]),
        (&true.into(), &0.into(), &0.into())
    );
}

#[test]
fn a_transfer_that_fails_leaves_both_sides_as_they_were() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    let store = file(&folder.path().join("store"));
    let run = |words: &[&OsStr]| {
        let mut command = program();
        command.args(["--store", &store, "fs"]).args(words);
        run_with(command, b"content")
    };
    let run_text = |words: &[&str]| run(&words.iter().map(OsStr::new).collect::<Vec<_>>());
    let here = folder.path().to_str().unwrap();
    run_text(&["mkdir", "/d"]).ok();

    // What is fetched into a file of this machine does not empty it first.
    let precious = folder.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    run_text(&["get", "/d", precious.to_str().unwrap()]).failed(1, &["cannot read /d: it is a directory"]);
    assert_eq!(fs::read(&precious).unwrap(), b"precious");

    // A folder is no content, and a slash asks for a directory.
    run_text(&["put", here, "/x"]).failed(1, &["cannot read", "it is a directory"]);
    run_text(&["put", "-", "/missing/"]).failed(1, &["cannot make /missing/: no such file or directory"]);
    run_text(&["put", "-", "/d/f"]).ok();
    run_text(&["rm", "/d/f/"]).failed(1, &["cannot remove /d/f/: not a directory"]);
    run_text(&["mv", "/d/f", "/g/"]).failed(1, &["cannot move to /g/: no such file or directory"]);
    run_text(&["ln", "/d", "/hard"]).failed(1, &["/d is a directory, to which only symbolic links are made"]);
    assert_eq!(run_text(&["find"]).text(), "/\n/d\n/d/f");

    // Names are bytes, and are found and fetched as such.
    let name = OsStr::from_bytes(b"/d/\xffname");
    run(&[OsStr::new("mv"), OsStr::new("/d/f"), name]).ok();
    assert_eq!(run_text(&["find", "--name", "?name"]).text(), "/d/\\xffname");
    run(&[OsStr::new("get"), name, OsStr::new(here)]).ok();
    assert_eq!(fs::read(folder.path().join(OsStr::from_bytes(b"\xffname"))).unwrap(), b"content");
}

#[test]
fn a_store_without_a_namespace_says_so() {
    let server = Server::in_memory();
    server.run(["fs", "ls"]).failed(1, &["has no namespace yet", "nacre fs mkdir"]);
    assert_eq!(server.run(["ls"]).text(), "", "looking makes nothing");
}

#[test]
fn moves_that_are_killed_lose_and_double_nothing() {
    const FILES: u64 = 8;
    let server = Server::in_memory();
    let mut random = Random::from_environment();
    server.run(["fs", "mkdir", "/left", "/right", "/left/d", "/right/e"]).ok();
    for number in 0..FILES {
        let path = format!("/left/{number}");
        server.run_with(["fs", "put", "-", &path], number.to_string().as_bytes()).ok();
    }
    for _ in 0..40 {
        let number = random.below(FILES);
        let directories = ["/left", "/right", "/left/d", "/right/e"];
        let from = directories[random.below(4) as usize];
        let to = directories[random.below(4) as usize];
        let path = format!("{from}/{number}");
        let mut child = server.command(["fs", "mv", &path, to]);
        let mut child = child.stderr(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        let _ = child.kill();
        child.wait().unwrap();
    }
    let found = |text: String| {
        let mut names: Vec<String> =
            text.lines().filter_map(|path| path.rsplit('/').next()).map(str::to_owned).collect();
        names.sort();
        names
    };
    let expected: Vec<String> = (0..FILES).map(|number| number.to_string()).collect();
    // Whoever looks finishes what was left.
    assert_eq!(found(server.run(["fs", "find", "/", "--type", "file"]).text()), expected);
    server.run(["fs", "check", "--mend"]).ok();
    let report: Value = server.run(["fs", "check", "--json"]).json();
    assert_eq!(
        (&report["clean"], &report["ranks"], &report["files"]),
        (&true.into(), &0.into(), &FILES.into())
    );
    let paths = server.run(["fs", "find", "/", "--type", "file"]).text();
    for path in paths.lines() {
        assert_eq!(server.run(["fs", "cat", path]).text(), path.rsplit('/').next().unwrap());
    }
    assert_eq!(found(paths), expected);
}
