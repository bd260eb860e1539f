//! `nacre fs`, on a folder and on a server.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{self, PATIENCE, Random, Server, file, folder, program, run_with};

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
    // Of a server, since a folder takes long to open and close for each command.
    let server = Server::in_memory();
    let store = &server.uri;
    let run = |words: &[&OsStr]| {
        let mut command = program();
        command.args(["--store", store, "fs"]).args(words);
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
    // Nor is one that is removed taken for whole.
    let mut command = server.command(["fs", "cat", "/d/f"]);
    let mut cat = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = cat.stdout.take().unwrap();
    pipe.read_exact(&mut [0]).unwrap();
    server.run(["fs", "rm", "/d/f"]).ok();
    pipe.read_to_end(&mut read).unwrap();
    let ended = cat.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot read /d/f: it was removed meanwhile"), "{stderr}");
}

#[test]
fn what_is_fetched_replaces_a_file_only_when_all_of_it_is_there() {
    use std::os::unix::fs::PermissionsExt;
    let (server, folder) = (Server::in_memory(), folder());
    server.run_with(["fs", "put", "-", "/f"], b"fetched").ok();
    let target = folder.path().join("target");
    fs::write(&target, "before").unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
    // Who has the old file open goes on to read it.
    let mut open = fs::File::open(&target).unwrap();
    server.run(["fs", "get", "/f", target.to_str().unwrap()]).ok();
    let mut before = String::new();
    open.read_to_string(&mut before).unwrap();
    assert_eq!((before.as_str(), fs::read(&target).unwrap()), ("before", b"fetched".to_vec()));
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    // A device is written to.
    server.run(["fs", "get", "/f", "/dev/null"]).ok();
    assert_eq!(server.run(["fs", "get", "/f", "/dev/stdout"]).text(), "fetched");
}

#[test]
fn symbolic_links_are_fetched_to_as_what_they_lead_to() {
    use std::os::unix::fs::symlink;
    let (server, folder) = (Server::in_memory(), folder());
    server.run_with(["put", "f"], b"fetched").ok();
    server.run_with(["fs", "put", "-", "/f"], b"fetched").ok();
    let at = |name: &str| folder.path().join(name);
    for get in [&["get", "f"][..], &["fs", "get", "/f"]] {
        fs::write(at("file"), "before").unwrap();
        fs::create_dir(at("directory")).unwrap();
        for (target, link) in [("file", "to-file"), ("directory", "to-directory"), ("missing", "to-nothing")]
        {
            symlink(target, at(link)).unwrap();
            let (path, mut words) = (at(link), get.to_vec());
            words.push(path.to_str().unwrap());
            let ended = server.run(&words[..]);
            match target {
                "missing" => {
                    drop(ended.failed(1, &["to-nothing is a symbolic link that cannot be followed"]))
                }
                _ => drop(ended.ok()),
            }
            assert_eq!(fs::read_link(&path).unwrap().to_str(), Some(target), "the link stays");
            fs::remove_file(&path).unwrap();
        }
        for fetched in ["file", "directory/f"] {
            assert_eq!(fs::read(at(fetched)).unwrap(), b"fetched");
        }
        assert!(!at("missing").exists());
        fs::remove_dir_all(at("directory")).unwrap();
    }
}

#[test]
fn a_quota_limits_what_is_below_a_directory() {
    // Of a server, since a folder takes long to open and close for each command.
    let server = Server::in_memory();
    let store = &server.uri;
    let run_input = |words: &[&str], input: &[u8]| {
        let mut command = program();
        command.args(["--store", store, "fs"]).args(words);
        run_with(command, input)
    };
    let run = |words: &[&str]| run_input(words, b"");
    run(&["mkdir", "-p", "/home/ada", "/other"]).ok();
    run(&["quota", "set", "/home/ada"]).failed(2, &["give --bytes, --entries, or both"]);
    run(&["quota", "set", "/home", "--bytes", "1GiB"]).failed(1, &["the directory is not empty"]);
    assert_eq!(run(&["quota", "show", "/home/ada"]).text(), "no quota applies to /home/ada");
    run(&["quota", "set", "/home/ada", "--bytes", "1MiB"]).ok();
    run(&["quota", "set", "/home/ada", "--entries", "2"]).ok();
    let half = vec![7; 600_000];
    run_input(&["put", "-", "/home/ada/a"], &half).ok();
    let used_up = "the quota of a directory above it is used up";
    run_input(&["put", "-", "/home/ada/b"], &half).failed(1, &["/home/ada/b", used_up]);
    assert_eq!(run(&["quota", "show", "/home/ada"]).text(), "600,000 of 1,048,576 bytes\n1 of 2 entries");
    run(&["mkdir", "/home/ada/d"]).ok();
    run(&["mkdir", "/home/ada/d/e"]).failed(1, &["cannot create /home/ada/d/e", used_up]);
    run(&["quota", "set", "/home/ada", "--entries", "none"]).ok();
    run(&["mkdir", "/home/ada/d/e"]).ok();
    let shown = run(&["quota", "show", "/home/ada/d/e", "--json"]).json();
    assert_eq!((&shown["own"], &shown["entries"]["used"]), (&false.into(), &3.into()));
    assert_eq!((&shown["entries"]["limit"], &shown["bytes"]["limit"]), (&Value::Null, &1_048_576.into()));
    let text = run(&["quota", "show", "/home/ada/a"]).text();
    assert!(text.starts_with("the quota of a directory above /home/ada/a, inode "), "{text}");
    assert!(text.ends_with(":\n600,000 of 1,048,576 bytes\n3 entries, no limit"), "{text}");
    run(&["mv", "/home/ada/a", "/other"])
        .failed(1, &["cannot move /home/ada/a", "another quota: copy it there"]);
    run(&["mv", "/home/ada", "/other"]).ok();
    run(&["quota", "rm", "/other/ada"]).failed(1, &["the directory is not empty"]);
    run(&["rm", "-r", "/other/ada/a", "/other/ada/d"]).ok();
    let text = run(&["quota", "show", "/other/ada"]).text();
    assert_eq!(text, "0 of 1,048,576 bytes\n0 entries, no limit");
    run(&["quota", "rm", "/other/ada"]).ok();
    run(&["quota", "rm", "/other/ada"]).failed(1, &["it has no quota of its own"]);
    assert_eq!(run(&["check", "--json"]).json()["clean"], true);
}

#[test]
fn trees_are_put_and_fetched_as_they_are() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let folder = folder();
    // Of a server, since a folder takes long to open and close for each command.
    let server = Server::in_memory();
    let store = &server.uri;
    let run = |words: &[&str]| {
        let mut command = program();
        command.current_dir(folder.path()).args(["--store", store, "fs"]).args(words);
        run_with(command, b"")
    };
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("a/b/c")).unwrap();
    fs::write(source.join("a/numbers"), (0..300_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>())
        .unwrap();
    fs::write(source.join("a/b/empty"), b"").unwrap();
    fs::write(source.join("a/b/private"), b"private").unwrap();
    symlink("b/private", source.join("a/link")).unwrap();
    symlink("nowhere", source.join("dangling")).unwrap();
    let set_mode = |path: &str, mode| {
        fs::set_permissions(source.join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode("a/b/private", 0o600);
    // A folder that may not be written is filled all the same.
    set_mode("a/b", 0o555);
    run(&["mkdir", "/there"]).ok();
    let text = run(&["put", "-r", "source", "/there"]).text();
    assert_eq!(text, "1,200,007 bytes in 3 files and 4 directories stored in /there/source");
    assert_eq!(run(&["stat", "/there/source/a/b", "--json"]).json()[0]["mode"], "0555");
    let text = run(&["get", "-r", "/there/source", "back"]).text();
    assert_eq!(text, "1,200,007 bytes in 3 files and 4 directories fetched to back");
    let diff = std::process::Command::new("diff")
        .args(["-r", "--no-dereference", "source", "back"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(diff.status.success() && diff.stdout.is_empty(), "{diff:?}");
    for path in ["a", "a/b", "a/b/c", "a/numbers", "a/b/private"] {
        let [ours, theirs] =
            ["source", "back"].map(|side| fs::metadata(folder.path().join(side).join(path)).unwrap());
        let shown = |found: &fs::Metadata| (found.mode(), found.mtime(), found.mtime_nsec());
        assert_eq!(shown(&ours), shown(&theirs), "{path}");
    }
    // Again, over what is there; and into a folder, under its own name.
    run(&["put", "-r", "source", "/there"]).ok();
    fs::create_dir(folder.path().join("into")).unwrap();
    run(&["get", "-r", "/there/source", "into"]).ok();
    let fetched = folder.path().join("into/source/a/b");
    fs::set_permissions(&fetched, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(fetched.join("private"), b"older").unwrap();
    run(&["get", "-r", "/there/source", "into"]).ok();
    assert_eq!(fs::read(fetched.join("private")).unwrap(), b"private");
    // What cannot be fetched is reported, and the rest is fetched, with its hard links.
    rustix::fs::mknodat(CWD, source.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    fs::hard_link(source.join("a/numbers"), source.join("a/b/c/more numbers")).unwrap();
    run(&["put", "-r", "source", "/there"]).ok();
    fs::create_dir(folder.path().join("into/source/pipe")).unwrap();
    let ended = run(&["get", "-r", "/there/source", "into"]);
    let said = ["\"/there/source/pipe\": there is a directory in its place", "1 entry could not be copied"];
    assert!(ended.code == 1 && said.iter().all(|part| ended.stderr.contains(part)), "{ended:?}");
    let [first, second] = ["a/numbers", "a/b/c/more numbers"].map(|path| {
        let found = fs::metadata(folder.path().join("into/source").join(path)).unwrap();
        (found.ino(), found.nlink())
    });
    assert_eq!((first, first.1), (second, 2));
    run(&["get", "-r", "/there/source"]).failed(2, &["name the folder"]);
    run(&["get", "-r", "/there/source/a/numbers", "x"]).failed(1, &["not a directory"]);
    assert_eq!(run(&["check", "--json"]).json()["clean"], true);
    set_mode("a/b", 0o755);
    for side in ["back", "into/source"] {
        let path = folder.path().join(side).join("a/b");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn names_that_lead_out_of_the_folder_are_not_fetched() {
    let folder = folder();
    let store = file(&folder.path().join("store"));
    let run = |words: &[&str], input: &[u8]| {
        let mut command = program();
        command.current_dir(folder.path()).args(["--store", &store]).args(words);
        run_with(command, input)
    };
    run(&["fs", "mkdir", "/d"], b"").ok();
    run(&["fs", "put", "-", "/d/x"], b"content").ok();
    let inode = run(&["fs", "stat", "/d", "--json"], b"").json()[0]["inode"].as_u64().unwrap();
    let object = format!("nacre/fs/i/{inode:016x}");
    let entry = run(&["keys", "get", &object, "ex"], b"").ok();
    let outside = folder.path().join("outside");
    for name in ["../escaped", outside.to_str().unwrap()] {
        run(&["keys", "set", &object, &format!("e{name}"), "-"], &entry).ok();
    }
    let ended = run(&["fs", "get", "-r", "/d", "back"], b"");
    let said = ["cannot copy \"/d/../escaped\": the name has a slash", "2 entries could not be copied"];
    assert!(ended.code == 1 && said.iter().all(|part| ended.stderr.contains(part)), "{ended:?}");
    assert_eq!(fs::read(folder.path().join("back/x")).unwrap(), b"content");
    assert!(!folder.path().join("escaped").exists() && !outside.exists());
}

/// Starts a `put` of what it reads from a pipe.
fn piped(store: &str, path: &str) -> Child {
    let mut command = program();
    command.args(["--store", store, "fs", "put", "-", path]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of a `put`, and returns its exit code and what it said.
fn ended(mut child: Child) -> (i32, String) {
    drop(child.stdin.take());
    let status = harness::wait(&mut child, PATIENCE);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    (harness::shell_code(status), stderr)
}

/// Returns the number of objects with content of files.
fn parts(server: &Server) -> usize {
    let store = nacre::open(&server.uri).unwrap().blocking();
    store.list().filter(|object| object.as_ref().unwrap().to_string().starts_with("nacre/fs/d/")).count()
}

/// Waits until there are more than so many objects with content of files.
fn wait_for_parts(server: &Server, before: usize) {
    let begun = Instant::now();
    while parts(server) <= before {
        assert!(begun.elapsed() < PATIENCE, "nothing is stored: {}", server.log());
        std::thread::yield_now();
    }
}

#[test]
fn commands_wait_for_a_server_that_is_being_restarted() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = file(&folder.path().join("store"));
    let server = Server::listen(&address, &store, &[]);
    server.run(["fs", "mkdir", "/d"]).ok();
    for name in ["kept", "moved", "removed"] {
        server.run_with(["fs", "put", "-", &format!("/d/{name}")], name.as_bytes()).ok();
    }
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let target = folder.path().join("target");
    let commands: &[&[&str]] = &[
        &["fs", "put", "-", "/d/new"],
        &["fs", "put", "-", "/d/kept"],
        &["fs", "get", "/d/moved", target.to_str().unwrap()],
        &["fs", "ls", "/d"],
        &["fs", "mkdir", "/e"],
    ];
    let (server, ended) = harness::run_while_away(&address, &store, commands);
    for (ended, words) in ended.into_iter().zip(commands) {
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{words:?}: {ended:?}");
    }
    assert_eq!(fs::read(&target).unwrap(), b"moved");
    for path in ["/d/new", "/d/kept"] {
        assert_eq!(server.run(["fs", "cat", path]).text(), "from standard input");
    }
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let commands: &[&[&str]] =
        &[&["fs", "mv", "/d/moved", "/e"], &["fs", "rm", "/d/removed"], &["fs", "cat", "/d/kept"]];
    let (server, ended) = harness::run_while_away(&address, &store, commands);
    for (ended, words) in ended.into_iter().zip(commands) {
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{words:?}: {ended:?}");
    }
    assert_eq!(server.run(["fs", "find", "--type", "file"]).text(), "/d/kept\n/d/new\n/e/moved");
    assert_eq!(server.run(["fs", "check", "--json"]).json()["clean"], true);
}

#[test]
fn a_server_that_is_not_there_is_not_waited_for_without_end() {
    for words in [&["ls"][..], &["cat", "/f"], &["mkdir", "/d"], &["rm", "/f"], &["put", "/dev/null", "/f"]] {
        let mut command = program();
        command.args(["--store", "unix:/nowhere/at/all?repeat_timeout=100ms", "fs"]).args(words);
        run_with(command, b"").failed(1, &["cannot reach the server", "(tried for 100ms)", "nacre serve"]);
    }
}

#[test]
fn a_put_that_a_server_is_killed_in_leaves_the_whole_file_or_none() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = file(&folder.path().join("store"));
    let content: Vec<u8> = (0..6_u64 << 20).flat_map(|word| (word * 0x9e37_79b9).to_le_bytes()).collect();
    let (begin, rest) = content.split_at(20 << 20);
    // Started again in time, the server gets all of it.
    let server = Server::listen(&address, &store, &[]);
    let mut put = piped(&format!("{address}?repeat_timeout=60s"), "/f");
    let mut stdin = put.stdin.take().unwrap();
    stdin.write_all(begin).unwrap();
    wait_for_parts(&server, 0);
    assert_eq!(server.run(["fs", "find", "--type", "file"]).text(), "", "it has no name yet");
    server.kill();
    // A put that waits for the server does not read on.
    let server = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(rest).unwrap());
        Server::listen(&address, &store, &[])
    });
    let (code, stderr) = ended(put);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(server.run(["fs", "cat", "/f"]).ok() == content);

    // Started again too late, it keeps nothing that anybody sees.
    let before = parts(&server);
    let mut put = piped(&format!("{address}?repeat_timeout=200ms"), "/g");
    put.stdin.as_mut().unwrap().write_all(begin).unwrap();
    wait_for_parts(&server, before);
    server.kill();
    let (code, stderr) = ended(put);
    assert_eq!((code, stderr.lines().count()), (1, 1), "{stderr}");
    assert!(stderr.contains("cannot write /g: ") && stderr.contains("nacre fs check --mend"), "{stderr}");
    let server = Server::listen(&address, &store, &[]);
    assert_eq!(server.run(["fs", "find", "--type", "file"]).text(), "/f");
    let report = server.run(["fs", "check", "--json"]).json();
    let [left] = &report["unfinished"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((&report["findings"], &report["files"]), (&serde_json::json!([]), &1.into()));
    assert_eq!(left["objects"].as_u64().unwrap() as usize, parts(&server) - before);
    assert!(left["bytes"].as_u64().unwrap() >= 1 << 20, "{report}");
    assert!(server.run(["fs", "check"]).text().contains("left by a command that was killed"));
    server.run(["fs", "check", "--mend"]).ok();
    assert_eq!(parts(&server), before);
    let report = server.run(["fs", "check", "--json"]).json();
    assert_eq!((&report["unfinished"], &report["ranks"]), (&serde_json::json!([]), &0.into()));
}

#[test]
fn a_put_that_is_interrupted_leaves_the_old_file_or_none() {
    let server = Server::in_memory();
    server.run_with(["fs", "put", "-", "/old"], b"old").ok();
    for (path, signal) in [("/new", Signal::INT), ("/old", Signal::INT), ("/new", Signal::TERM)] {
        let before = parts(&server);
        let mut put = piped(&server.uri, path);
        put.stdin.as_mut().unwrap().write_all(&vec![7; 20 << 20]).unwrap();
        wait_for_parts(&server, before);
        // It waits for more.
        let stdin = put.stdin.take();
        kill_process(Pid::from_raw(put.id() as i32).unwrap(), signal).unwrap();
        let (code, stderr) = ended(put);
        drop(stdin);
        assert_eq!(code, 128 + signal.as_raw(), "{stderr}");
        assert_eq!(stderr, format!("nacre: cannot write {path}: the command was interrupted\n"));
        assert_eq!(parts(&server), before);
        assert_eq!(server.run(["fs", "find", "--type", "file"]).text(), "/old");
        assert_eq!(server.run(["fs", "cat", "/old"]).text(), "old");
        let report = server.run(["fs", "check", "--json"]).json();
        assert_eq!((&report["clean"], &report["ranks"]), (&true.into(), &0.into()), "{report}");
    }
}

#[test]
fn a_put_that_is_interrupted_while_its_server_is_away_does_not_wait_for_it() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = file(&folder.path().join("store"));
    let mut server = Server::listen(&address, &store, &[]);
    for waits_for_server in [false, true] {
        let before = parts(&server);
        let mut put = piped(&format!("{address}?repeat_timeout=1h"), "/f");
        put.stdin.as_mut().unwrap().write_all(&vec![7; 20 << 20]).unwrap();
        wait_for_parts(&server, before);
        server.kill();
        let mut stdin = put.stdin.take();
        if waits_for_server {
            let absent = harness::Absent::at(&address);
            drop(stdin.take());
            absent.turn_away();
        }
        kill_process(Pid::from_raw(put.id() as i32).unwrap(), Signal::INT).unwrap();
        let (code, stderr) = ended(put);
        drop(stdin);
        assert_eq!(code, 130, "{stderr}");
        assert!(stderr.contains("was interrupted") && stderr.contains("nacre fs check --mend"), "{stderr}");
        server = Server::listen(&address, &store, &[]);
        assert_eq!(server.run(["fs", "find", "--type", "file"]).text(), "");
        assert_eq!(server.run(["fs", "check", "--json"]).json()["ranks"], 1);
        server.run(["fs", "check", "--mend"]).ok();
        assert_eq!(parts(&server), 0);
    }
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
    run(&["call", "/jobs", "get"])
        .failed(1, &["cannot call \"get\" of /jobs", "it is a directory, which has no methods"]);
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
    run(&["sequencer", "next", "/file"])
        .failed(1, &["cannot use /file", "it is a file, which has no methods"]);
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
