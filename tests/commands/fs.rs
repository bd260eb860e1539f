//! `nacre fs`, on a folder and on a server.

use std::fs;
use std::io::Read;
use std::process::Stdio;
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
    run(&["mkdir", "/a"]).failed(1, &["cannot create /a: it exists already"]);
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
    run(&["find", "--name", "[a"]).failed(2, &["\"[a\" is not a pattern"]);
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
    use std::os::unix::fs::PermissionsExt;
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

    // It takes the place of that file, of which another name may be left, and has its permissions.
    let kept = folder.path().join("kept");
    fs::hard_link(&precious, &kept).unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o640)).unwrap();
    run_text(&["put", "-", "/new"]).ok();
    run_text(&["get", "/new", precious.to_str().unwrap()]).ok();
    assert_eq!(fs::read(&precious).unwrap(), b"content");
    assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read(&kept).unwrap(), b"precious");
    run_text(&["rm", "/new"]).ok();

    run_text(&["put", "-", "/folder"]).ok();
    fs::create_dir(folder.path().join("folder")).unwrap();
    run_text(&["get", "/folder", here]).failed(1, &["/folder is a folder; name the file"]);
    run_text(&["get", "/folder", &format!("{here}/none/")]).failed(1, &["there is no folder"]);
    run_text(&["get", "/folder", "/dev/full"]).failed(1, &["cannot write to /dev/full: "]);
    run_text(&["rm", "/folder"]).ok();

    // A folder is no content, and a slash asks for a directory.
    run_text(&["put", here, "/x"]).failed(1, &["cannot read", "it is a directory"]);
    run_text(&["put", "-", "/missing/"]).failed(1, &["cannot create /missing/: no such file or directory"]);
    run_text(&["put", "-", "/d/f"]).ok();
    run_text(&["rm", "/d/f/"]).failed(1, &["cannot remove /d/f/: not a directory"]);
    run_text(&["mv", "/d/f", "/g/"]).failed(1, &["cannot move to /g/: no such file or directory"]);
    run_text(&["ln", "/d", "/hard"])
        .failed(1, &["/d is a directory, to which only symbolic links can point"]);
    assert_eq!(run_text(&["find"]).text(), "/\n/d\n/d/f");

    // Names are bytes, and are found and fetched as such.
    let name = OsStr::from_bytes(b"/d/\xffname");
    run(&[OsStr::new("mv"), OsStr::new("/d/f"), name]).ok();
    assert_eq!(run_text(&["find", "--name", "?name"]).text(), "/d/\\xffname");
    run(&[OsStr::new("get"), name, OsStr::new(here)]).ok();
    assert_eq!(fs::read(folder.path().join(OsStr::from_bytes(b"\xffname"))).unwrap(), b"content");
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_is_not_read_as_a_mixture() {
    let server = Server::in_memory();
    let (old, new) = (vec![b'o'; 12 << 20], vec![b'n'; 12 << 20]);
    server.run(["fs", "mkdir", "/d"]).ok();
    server.run_with(["fs", "put", "-", "/d/f"], &old).ok();
    let mut command = server.command(["fs", "cat", "/d/f"]);
    let mut cat = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = cat.stdout.take().unwrap();
    // The command has read the first part of the file, which is far more than the pipe holds, so it waits before the next.
    let mut read = vec![0];
    pipe.read_exact(&mut read).unwrap();
    server.run_with(["fs", "put", "-", "/d/f"], &new).ok();
    pipe.read_to_end(&mut read).unwrap();
    let ended = cat.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot read /d/f: the content was replaced meanwhile"), "{stderr}");
    assert!(read.len() < old.len() && read.iter().all(|byte| *byte == b'o'), "{} bytes", read.len());
    assert!(server.run(["fs", "cat", "/d/f"]).ok() == new);
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

/// Installs the class `counter` that ships.
fn install_counter(store: &str) {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../classes/counter.lua");
    let mut command = program();
    command.args(["--store", store, "class", "put", text]);
    run_with(command, b"").ok();
}

/// What inodes of a class do, on any store.
fn use_types(store: &str) {
    let run = |words: &[&str]| {
        let mut command = program();
        command.args(["--store", store, "fs"]).args(words);
        run_with(command, b"")
    };
    run(&["mkdir", "/jobs"]).ok();
    run(&["create", "--type", "counter", "/jobs/done"]).failed(1, &["there is no inode type \"counter\""]);
    install_counter(store);
    run(&["create", "--type", "counter", "--mode", "640", "/jobs/done", "/jobs/failed"]).ok();
    run(&["create", "--type", "counter", "/jobs/done"]).failed(1, &["it exists already"]);
    run(&["create", "--type", "counter", "/none/done"])
        .failed(1, &["cannot create /none/done", "no such file"]);
    assert_eq!(run(&["call", "/jobs/done", "add", "5"]).text(), "5");
    assert_eq!(run(&["call", "/jobs/done", "add"]).text(), "6");
    assert_eq!(run(&["call", "/jobs/failed", "get"]).text(), "0");
    run(&["call", "/jobs/done", "multiply", "2"])
        .failed(1, &["counter.multiply of /jobs/done failed", "no method \"multiply\""]);
    run(&["call", "/jobs", "get"]).failed(1, &["cannot call \"get\" of /jobs", "no type with methods"]);
    run(&["call", "/jobs/none", "get"]).failed(1, &["no such file"]);

    // Names come and go as those of files do, and the state stays with the inode.
    run(&["ln", "/jobs/done", "/second"]).ok();
    run(&["mv", "/jobs/done", "/jobs/total"]).ok();
    assert_eq!(run(&["call", "/second", "add", "10"]).text(), "16");
    assert_eq!(run(&["call", "/jobs/total", "get"]).text(), "16");
    let stat = run(&["stat", "/jobs/total", "--json"]).json()[0].clone();
    assert_eq!(
        (&stat["kind"], &stat["mode"], &stat["links"], &stat["size"]),
        (&"counter".into(), &"0640".into(), &2.into(), &0.into())
    );
    let listed = run(&["ls", "-l", "/jobs"]).text();
    assert!(listed.lines().any(|line| line.starts_with("trw-r-----") && line.ends_with("total")), "{listed}");
    assert_eq!(run(&["find", "/", "--type", "typed"]).text(), "/jobs/failed\n/jobs/total\n/second");
    for refused in
        [&["cat", "/second"][..], &["get", "/second", "/nowhere"], &["put", "/dev/null", "/second"]]
    {
        run(refused).failed(1, &["/second: it has methods, and no content"]);
    }
    assert_eq!(run(&["check", "--json"]).json()["clean"], true);
    run(&["rm", "-r", "/jobs", "/second"]).ok();
    let report = run(&["check", "--json"]).json();
    assert_eq!((&report["clean"], &report["others"]), (&true.into(), &0.into()), "{report}");
    let mut command = program();
    command.args(["--store", store, "ls"]);
    let objects = run_with(command, b"").text();
    assert!(!objects.contains("nacre/fs/s/"), "a state is left: {objects}");
}

#[test]
fn inodes_have_methods_of_a_class_on_a_folder_and_on_a_server() {
    let folder = folder();
    use_types(&file(&folder.path().join("store")));
    let server = Server::in_memory();
    use_types(&server.uri);
}

#[test]
fn a_sequencer_has_a_path() {
    let server = Server::in_memory();
    let run = |words: &[&str]| server.run(words);
    run(&["sequencer", "next", "/log"]).failed(1, &["has no namespace yet"]);
    run(&["sequencer", "create", "/none/log"]).failed(1, &["cannot create /none/log: no such file"]);
    run(&["fs", "mkdir", "/jobs"]).ok();
    run(&["sequencer", "create", "/jobs/log", "--policy", "hold=10ms"]).ok();
    run(&["sequencer", "create", "/jobs/log"]).failed(1, &["it exists already"]);
    assert_eq!(run(&["sequencer", "policy", "/jobs/log"]).text(), "hold=10ms");
    assert_eq!(run(&["sequencer", "next", "/jobs/log", "-n", "2"]).text(), "0\n1");
    assert_eq!(run(&["fs", "call", "/jobs/log", "next", "3"]).text(), "2\n3\n4");
    run(&["fs", "mv", "/jobs/log", "/moved"]).ok();
    run(&["fs", "chmod", "600", "/moved"]).ok();
    assert_eq!(run(&["sequencer", "read", "/moved"]).text(), "5");
    assert_eq!(run(&["fs", "call", "/moved", "policy", "round-trip"]).text(), "");
    assert_eq!(run(&["fs", "call", "/moved", "policy"]).text(), "round-trip");
    run(&["fs", "call", "/moved", "next", "some"]).failed(2, &["a count"]);
    run(&["fs", "call", "/moved", "reset"]).failed(1, &["the methods next, read and policy"]);
    let listed = run(&["sequencer", "ls", "/moved", "--json"]).json();
    assert_eq!((&listed[0]["name"], &listed[0]["tail"]), (&"/moved".into(), &5.into()));
    // Those without a path are apart.
    run(&["sequencer", "create", "log"]).ok();
    assert_eq!(run(&["sequencer", "ls", "--json"]).json().as_array().unwrap().len(), 1);
    run(&["fs", "create", "--type", "sequencer", "--policy", "quota=7", "/typed"]).ok();
    assert_eq!(run(&["sequencer", "policy", "/typed"]).text(), "quota=7/100ms");
    run(&["fs", "create", "--type", "log", "--policy", "quota=7", "/x"]).failed(2, &["only a sequencer"]);
    run(&["fs", "put", "/dev/null", "/file"]).ok();
    run(&["sequencer", "next", "/file"]).failed(1, &["cannot use /file", "no type with methods"]);
    run(&["sequencer", "rm", "/file"]).failed(1, &["it is not a sequencer"]);
    run(&["sequencer", "rm", "/moved"]).ok();
    run(&["sequencer", "next", "/moved"]).failed(1, &["no such file"]);
    run(&["fs", "rm", "/typed"]).ok();
    assert_eq!(run(&["fs", "check", "--json"]).json()["clean"], true);
    assert!(!run(&["ls"]).text().contains("nacre/fs/s/"));
}

#[test]
fn an_inode_that_nobody_could_use_is_not_made_and_nothing_else_is() {
    let folder = folder();
    let path = folder.path().join("store");
    let uri = file(&path);
    let run = |words: &[&str]| {
        let mut command = program();
        command.env("NACRE_STORE", &uri).args(words);
        run_with(command, b"")
    };
    run(&["fs", "create", "--type", "unknown", "/x"]).failed(1, &["no such folder"]);
    run(&["fs", "create", "--type", "sequencer", "/x"]).failed(1, &["no such folder"]);
    assert!(!path.exists());
    run(&["write", "a", "x"]).ok();
    run(&["fs", "create", "--type", "unknown", "/x"]).failed(1, &["no inode type \"unknown\""]);
    run(&["fs", "create", "--type", "sequencer", "/x"])
        .failed(1, &["cannot create a sequencer", "no metadata rank"]);
    run(&["sequencer", "create", "/x"]).failed(1, &["cannot create a sequencer", "no metadata rank"]);
    assert_eq!(run(&["ls"]).text(), "a", "there is no namespace either");
    // A server without ranks.
    let server = Server::start("mem:", &["--roles", "store"]);
    server.run(["fs", "create", "--type", "sequencer", "/x"]).failed(1, &["cannot create a sequencer"]);
    assert_eq!(server.run(["ls"]).text(), "");
}
