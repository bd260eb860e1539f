//! The namespace of a store as a tree: `nacre walk nacre:/…`, and `nacre copy` to it, from it and within it, through the built program.

mod harness;

use std::ffi::{OsStr, OsString};
use std::fs::{self, FileTimes};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use harness::tree::records;
use harness::{Ended, PATIENCE, Random, Server, program, run_with};
use nacre::fs::{Creation, Credentials, Ino, InodeKind, RankOptions};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat};
use rustix::io::Errno;
use serde_json::Value;

/// Creates a tree with everything that a namespace can hold.
fn make(root: &Path) {
    let mut random = Random(3);
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("empty directory")).unwrap();
    // Several stripes, and the ends of some.
    for size in [0, 1, 4095, 65_536, (1 << 20) - 1, 1 << 20, (9 << 20) + 77] {
        let bytes: Vec<u8> =
            std::iter::repeat_with(|| random.next().to_le_bytes()).flatten().take(size).collect();
        fs::write(root.join(format!("a/{size} bytes")), bytes).unwrap();
    }
    let names = root.join("names");
    fs::create_dir(&names).unwrap();
    for name in [
        &b"two\nlines"[..],
        b"not \xff UTF-8 \x01",
        b"tab\tin it",
        b"back\\slash",
        b"-rf",
        b" ",
        &[b'n'; 255],
    ] {
        fs::write(names.join(OsStr::from_bytes(name)), name).unwrap();
    }
    symlink("b/../../names", root.join("a/link")).unwrap();
    symlink(OsStr::from_bytes(b"nowhere \xff"), root.join("dangling")).unwrap();
    for name in ["a/b/second", "names/third", "zeroth"] {
        fs::hard_link(root.join("a/4095 bytes"), root.join(name)).unwrap();
    }
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // Several pages.
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..1500 {
        fs::write(many.join(format!("{number}")), format!("{}", number % 7)).unwrap();
    }
    for path in ["a/65536 bytes", "a/b"] {
        match rustix::fs::setxattr(root.join(path), "user.colour", b"red\0green", XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
    let ancient = SystemTime::UNIX_EPOCH - Duration::from_nanos(1_500_000_001);
    let set = |path: &str, time, mode| {
        let path = root.join(path);
        let times = FileTimes::new().set_modified(time).set_accessed(time);
        fs::File::open(&path).unwrap().set_times(times).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set("a/1 bytes", ancient, 0o640);
    set("many/77", time, 0o600);
    set("empty directory", time, 0o1777);
    // One that may not be written is filled too.
    set("a/b", time, 0o555);
}

/// Returns the paths below a root, without it, of entries that end with a zero byte.
fn below(root: &str, listed: &[u8]) -> Vec<Vec<u8>> {
    let strip = |path: &Vec<u8>| path.strip_prefix(root.as_bytes()).unwrap().to_vec();
    records(listed).iter().map(strip).collect()
}

/// Checks that two trees are the same, hard links included.
#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    let mut command = program();
    command.arg("compare").args([one, other]);
    let ended = run_with(command, b"");
    assert_eq!((ended.code, ended.stdout.len()), (0, 0), "{ended:?}");
    let inode = |path: &str| fs::metadata(other.join(path)).unwrap().ino();
    let first = inode("a/4095 bytes");
    assert!(["a/b/second", "names/third", "zeroth"].iter().all(|path| inode(path) == first));
    assert_eq!(fs::metadata(other.join("zeroth")).unwrap().nlink(), 4);
}

/// Makes everything of a tree writable again, so that it can be removed by any user.
fn unlock(root: &Path) {
    let _ = fs::set_permissions(root.join("a/b"), fs::Permissions::from_mode(0o755));
}

/// Runs a command on a server, in a folder.
#[track_caller]
fn run_in<S: AsRef<OsStr>>(server: &Server, folder: &Path, words: impl IntoIterator<Item = S>) -> Ended {
    let mut command = server.command(words);
    command.current_dir(folder);
    run_with(command, b"")
}

#[test]
fn a_tree_comes_back_as_it_went_in_and_is_walked_as_it_is_here() {
    let (server, folder) = (Server::in_memory(), harness::folder());
    let source = folder.path().join("source");
    make(&source);
    let run = |words: &[&str]| run_in(&server, folder.path(), words);

    let entries = run(&["walk", "source", "--json"]).json()["total"]["entries"].as_u64().unwrap();
    let copied = run(&["copy", "source", "nacre:/there", "--verify", "--json"]).json();
    assert_eq!((&copied["errors"], &copied["left_out"]), (&0.into(), &0.into()), "{copied}");
    assert_eq!(copied["linked"], 3, "{copied}");
    assert_eq!(copied["verified"], entries, "{copied}");
    let number = |name: &str| copied[name].as_u64().unwrap();
    assert_eq!(number("directories") + number("copied") + number("linked"), entries, "{copied}");

    // The same totals, apart from the sizes of directories, which file systems choose.
    let walked = |root: &str| run(&["walk", root, "--json", "--depth-summary", "--histogram", "size"]).json();
    let (ours, theirs) = (walked("source"), walked("nacre:/there"));
    for kind in ["files", "links", "others"] {
        assert_eq!(ours[kind]["entries"], theirs[kind]["entries"], "{kind}: {theirs}");
        assert_eq!(ours[kind]["apparent"], theirs[kind]["apparent"], "{kind}: {theirs}");
    }
    assert_eq!(ours["directories"]["entries"], theirs["directories"]["entries"]);
    for same in ["hard_links", "errors", "vanished", "mount_points"] {
        assert_eq!(ours[same], theirs[same], "{same}");
    }
    assert_eq!(theirs["largest_directory"]["path"], "nacre:/there/many");
    assert_eq!(theirs["largest_directory"]["entries"], 1500);
    let listed = |root: &str, flags: &[&str]| {
        below(root, &run(&[&["walk", root, "--list", "--null"], flags].concat()).ok())
    };
    for flags in [
        &["--one-file-system"][..],
        &["--fields", "path"],
        &["--name", "*1*"],
        &["--type", "f,l", "--size", "+1k"],
        &["--depth", "1..2", "--prune", "names"],
        &["--newer", "2009-01-01", "--type", "f", "--threads", "3"],
    ] {
        assert_eq!(listed("source", flags), listed("nacre:/there", flags), "{flags:?}");
    }
    let fields = ["--type", "f", "--fields", "type,size,mode,uid,gid,mtime,links,depth,path"];
    let details = |root: &str| {
        let listed = records(&run(&[&["walk", root, "--list", "--null"], &fields[..]].concat()).ok());
        let strip = |record: &Vec<u8>| String::from_utf8_lossy(record).replace(root, "");
        listed.iter().map(strip).collect::<Vec<_>>()
    };
    assert_eq!(details("source"), details("nacre:/there"));
    // One below another is visited once, whatever links lead to it.
    let ended = run(&["walk", "nacre:/there", "nacre:/there/a/link/../many", "--json"]);
    let total: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((ended.code, &total["total"]["entries"]), (0, &theirs["total"]["entries"]), "{ended:?}");
    assert!(ended.stderr.contains("is visited as part of"), "{ended:?}");
    // An index of it can be asked.
    run(&["walk", "nacre:/there", "--index", "sweep.sqlite"]).ok();
    let text = run(&["query", "sweep.sqlite", "--name", "zeroth", "--list"]);
    assert!(
        text.code == 0 && String::from_utf8_lossy(&text.stdout).contains("nacre:/there/zeroth"),
        "{text:?}"
    );

    // Out again, into a directory under its own name, and within.
    fs::create_dir(folder.path().join("into")).unwrap();
    for words in [&["nacre:/there", "back"][..], &["nacre:/there", "into/"]] {
        run(&[&["copy", "--verify"], words].concat()).ok();
    }
    run(&["copy", "nacre:/there", "nacre:/again"]).ok();
    run(&["copy", "nacre:/again", "third"]).ok();
    for copy in ["back", "into/there", "third"] {
        assert_same(&source, &folder.path().join(copy));
    }
    // A second time nothing is to be done; afterwards only what has changed.
    for words in [["source", "nacre:/there"], ["nacre:/there", "back"], ["nacre:/there", "nacre:/again"]] {
        let copied = run(&["copy", words[0], words[1], "--json"]).json();
        assert_eq!((&copied["copied"], &copied["linked"]), (&0.into(), &0.into()), "{words:?}: {copied}");
        assert_eq!(
            run(&["copy", words[0], words[1], "--dry-run", "--list"]).text(),
            "would copy 0 entries (0 B)"
        );
    }
    fs::write(source.join("many/5"), "changed").unwrap();
    fs::set_permissions(source.join("many/6"), fs::Permissions::from_mode(0o604)).unwrap();
    fs::write(source.join("new"), "new").unwrap();
    let planned = run(&["copy", "source", "nacre:/there", "--dry-run", "--list"]).text();
    for line in ["copy\tmany/5", "adjust\tmany/6", "copy\tnew"] {
        assert!(planned.lines().any(|planned| planned == line), "{planned}");
    }
    let copied = run(&["copy", "source", "nacre:/there", "--verify", "--json"]).json();
    assert_eq!(copied["copied"], 2, "{copied}");
    run(&["copy", "nacre:/there", "back"]).ok();
    assert_same(&source, &folder.path().join("back"));
    let (unlinked, path) = (fs::read(source.join("zeroth")).unwrap(), source.join("zeroth"));
    fs::remove_file(&path).unwrap();
    fs::write(&path, &unlinked[1..]).unwrap();
    run(&["copy", "source", "nacre:/there"]).ok();
    // Its other names have kept their content.
    assert_eq!(run(&["fs", "cat", "/there/names/third"]).ok(), unlinked);
    assert_eq!(run(&["fs", "cat", "/there/zeroth"]).ok(), &unlinked[1..]);
    assert_eq!(run(&["fs", "check", "--json"]).json()["clean"], true);
    for root in ["source", "back", "into/there", "third"] {
        unlock(&folder.path().join(root));
    }
}

#[test]
fn a_directory_of_twenty_thousand_entries_is_listed_once() {
    let server = Server::in_memory();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = nacre::open(&server.uri).unwrap();
        let rank = store.rank(RankOptions { create: true, ..RankOptions::default() }).await.unwrap();
        let user = Credentials::root();
        let creation = Creation::new(InodeKind::Directory, 0o755);
        let many = rank.create(&user, Ino::ROOT, b"many", creation).await.unwrap().ino;
        let creation = Creation::new(InodeKind::File, 0o644);
        let first = rank.create(&user, many, b"0", creation).await.unwrap().ino;
        let (links, others): (Vec<u32>, Vec<u32>) = (1..20_000).partition(|number| number % 50 == 1);
        let create = async |number: u32| {
            let creation = match number % 5 {
                0 => Creation::new(InodeKind::Directory, 0o755),
                _ => Creation::symlink(number.to_string()),
            };
            rank.create(&user, many, number.to_string().as_bytes(), creation).await.unwrap();
        };
        futures::stream::iter(others).for_each_concurrent(64, create).await;
        for number in links {
            rank.link(&user, first, many, number.to_string().as_bytes()).await.unwrap();
        }
        rank.close().await.unwrap();
    });
    let walked = server.run(["walk", "nacre:/many", "--json", "--threads", "4"]).json();
    assert_eq!(walked["total"]["entries"], 20_001, "{walked}");
    assert_eq!(walked["directories"]["entries"], 4_000, "{walked}");
    assert_eq!(walked["hard_links"], serde_json::json!({ "names": 401, "files": 1 }));
    assert_eq!(walked["largest_directory"]["entries"], 20_000);
    let folder = harness::folder();
    let words = ["walk", "nacre:/many", "--json", "--checkpoint", "walk.state", "--every", "10ms"];
    assert_eq!(run_in(&server, folder.path(), words).json(), walked);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let listed = records(&server.run(["walk", "nacre:/many", "--list", "--null"]).ok());
    assert!(listed.len() == 20_001 && listed.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn a_walk_that_loses_its_store_keeps_its_checkpoint() {
    let folder = harness::folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let mut server = Server::listen(&address, "mem:", &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = nacre::open(&server.uri).unwrap();
        let rank = store.rank(RankOptions { create: true, ..RankOptions::default() }).await.unwrap();
        let user = Credentials::root();
        let make = async |directory: Ino, name: String| {
            let creation = Creation::new(InodeKind::Directory, 0o755);
            rank.create(&user, directory, name.as_bytes(), creation).await.unwrap().ino
        };
        let mut deep = Ino::ROOT;
        for _ in 0..4 {
            deep = make(deep, "d".repeat(250)).await;
        }
        // Their paths are much more than a pipe holds.
        for number in 0..30 {
            let directory = make(deep, number.to_string()).await;
            for number in 0..12 {
                make(directory, number.to_string()).await;
            }
        }
        rank.close().await.unwrap();
    });
    // So long is it waited for.
    server.uri.push_str("?repeat_timeout=1s");
    let words = ["walk", "nacre:/", "--list", "--threads", "1", "--checkpoint", "walk.state"];
    let mut command = server.command(words);
    command.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut listed = child.stdout.take().unwrap();
    listed.read_exact(&mut [0]).unwrap();
    // It waits for its reader.
    server.kill();
    std::io::copy(&mut listed, &mut std::io::sink()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("the store was lost") && said.contains("walk.state"), "{said}");
    assert!(folder.path().join("walk.state").exists());
}

#[test]
fn what_a_killed_copy_has_named_is_whole_and_the_next_one_continues() {
    let (server, folder) = (Server::in_memory(), harness::folder());
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let content = |number: usize| vec![number as u8 + 1; 2 << 20];
    for number in 0..40 {
        fs::write(source.join(number.to_string()), content(number)).unwrap();
    }
    for (from, to) in [("source", "nacre:/there"), ("nacre:/there", "back")] {
        let mut command = server.command(["copy", from, to, "--threads", "3"]);
        command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        let named = || -> Vec<(String, Vec<u8>)> {
            if to == "back" {
                let Ok(entries) = fs::read_dir(folder.path().join("back")) else { return Vec::new() };
                let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
                let paths = entries.map(|entry| entry.unwrap().path());
                // Some file systems have no files without names.
                let named = paths.map(|path| (name(&path), fs::read(&path).unwrap_or_default()));
                return named.filter(|(name, _)| !name.starts_with('.')).collect();
            }
            let listed = server.run(["fs", "ls", "/there"]);
            let names = String::from_utf8(listed.stdout).unwrap();
            let read = |name: &str| server.run(["fs", "cat", &format!("/there/{name}")]).ok();
            names.lines().filter(|_| listed.code == 0).map(|name| (name.to_owned(), read(name))).collect()
        };
        while named().len() < 3 && child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < PATIENCE);
        }
        let _ = child.kill();
        child.wait().unwrap();
        for (name, bytes) in named() {
            let number: usize = name.parse().unwrap_or_else(|_| panic!("{name:?} is nobody's"));
            assert!(bytes == content(number), "{name} has {} bytes", bytes.len());
        }
        run_in(&server, folder.path(), ["copy", from, to, "--verify"]).ok();
    }
    for number in 0..40 {
        assert!(fs::read(folder.path().join(format!("back/{number}"))).unwrap() == content(number));
    }
    server.run(["fs", "check", "--mend"]);
    assert_eq!(server.run(["fs", "check", "--json"]).json()["clean"], true);
}

#[test]
fn a_copy_that_is_asked_to_stop_says_how_to_continue_and_leaves_nothing_half_done() {
    let (server, folder) = (Server::in_memory(), harness::folder());
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..60 {
        fs::write(source.join(number.to_string()), vec![1; 2 << 20]).unwrap();
    }
    let mut command = server.command(["copy", "source", "nacre:/there", "--threads", "2"]);
    command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    while server.run(["fs", "ls", "/there"]).stdout.is_empty() && child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE);
    }
    if child.try_wait().unwrap().is_none() {
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    }
    let status = harness::wait(&mut child, PATIENCE);
    // On a fast machine it may have been done.
    assert!([0, 143].contains(&harness::shell_code(status)), "{status:?}");
    assert_eq!(server.run(["fs", "check", "--json"]).json()["clean"], true);
    run_in(&server, folder.path(), ["copy", "source", "nacre:/there", "--verify"]).ok();
}

#[test]
fn wrong_usage_is_said() {
    let (server, folder) = (Server::in_memory(), harness::folder());
    let run = |words: &[&str]| run_in(&server, folder.path(), words);
    run(&["walk", "nacre:/"]).failed(1, &["has no namespace yet", "nacre fs mkdir"]);
    fs::create_dir(folder.path().join("local")).unwrap();
    fs::write(folder.path().join("local/file"), "local").unwrap();
    symlink("local", folder.path().join("link")).unwrap();
    run(&["copy", "local", "nacre:/there"]).ok();
    run(&["copy", "local", "nacre:/there/inner/"]).failed(2, &["no such file"]);
    run(&["fs", "ln", "-s", "/there", "/link"]).ok();

    run(&["walk", "nacre:/nothing"]).failed(2, &["nacre:/nothing", "No such file"]);
    run(&["walk", "nacre:/there", "nacre:/nothing"]).failed(2, &["/nothing", "no such file"]);
    run(&["walk", "nacre:/there", "local"]).failed(2, &["nacre:/there", "local", "one by one"]);
    run(&["walk", "nacre://localhost/there"]).failed(2, &["URI of a store", "--store"]);
    for (flags, parts) in [
        (&["--cross-mounts"][..], &["--cross-mounts", "nothing is mounted"][..]),
        (&["--resume", "file"], &["cannot resume from", "file"]),
        (&["--ost", "1"], &["--ost", "Lustre"]),
        (&["--list", "--fields", "path,pool"], &["--fields", "Lustre"]),
        (&["--index", "x.sqlite", "--since", "y.sqlite"], &["--since", "file systems"]),
        (&["--index", "x.sqlite", "--layouts"], &["--layouts", "Lustre"]),
    ] {
        run(&[&["walk", "nacre:/there"], flags].concat()).failed(2, parts);
    }
    for (words, parts) in [
        (&["nacre:/nothing", "here"][..], &["nacre:/nothing", "no such file"][..]),
        (&["nothing", "nacre:/here"], &["nothing", "no such file"]),
        (&["local", "nacre:/no/such/place"], &["has to exist"]),
        (&["nacre:/there", "no/such/place"], &["no/such", "has to exist"]),
        (&["nacre:/there", "nacre:/there"], &["they are the same"]),
        (&["nacre:/there", "nacre:/there/copy"], &["into itself"]),
        (&["nacre:/", "nacre:/copy"], &["into itself"]),
        (&["nacre:/", "local/"], &["no name of its own"]),
        (&["nacre:/there", "local/file"], &["not a directory"]),
        (&["local", "nacre:/there/file"], &["not a directory"]),
        (&["nacre:/there", "link"], &["symbolic link"]),
        (&["local", "nacre:/link"], &["symbolic link"]),
        (&["local", "nacre:/there", "--mirror", "--yes"], &["--mirror", "nacre mount DIR"]),
        (&["local", "nacre:/there", "--fsync"], &["--fsync", "nacre mount DIR"]),
        (&["local", "nacre:/there", "--name", "x"], &["filters", "nacre mount DIR"]),
    ] {
        run(&[&["copy"], words].concat()).failed(2, parts);
    }
    // A local directory of that name may be meant.
    fs::create_dir_all(folder.path().join("nacre:/there")).unwrap();
    assert_eq!(run(&["walk", "nacre:/there", "--json"]).json()["total"]["entries"], 1);
}

#[test]
fn what_cannot_be_copied_is_reported_and_the_rest_is_copied() {
    let (server, folder) = (Server::in_memory(), harness::folder());
    let run = |words: &[&str]| run_in(&server, folder.path(), words);
    let local = folder.path().join("local");
    fs::create_dir_all(local.join("directory")).unwrap();
    for name in ["file", "other"] {
        fs::write(local.join(name), name).unwrap();
    }
    drop(std::os::unix::net::UnixListener::bind(local.join("socket")).unwrap());
    run(&["fs", "mkdir", "-p", "/there/file", "/there/other"]).ok();
    run(&["fs", "rm", "-r", "/there/other"]).ok();
    let ended = run(&["copy", "local", "nacre:/there"]);
    let said = [
        "not copying \"local/socket\"",
        "\"local/file\": there is a directory",
        "1 error; the copy is not complete",
    ];
    assert!(ended.code == 1 && said.iter().all(|part| ended.stderr.contains(part)), "{ended:?}");
    assert_eq!(run(&["fs", "cat", "/there/other"]).text(), "other");

    // A link gives way to a file, and what it leads to stays.
    run(&["fs", "put", "local/other", "/kept"]).ok();
    run(&["fs", "rm", "/there/other"]).ok();
    run(&["fs", "ln", "-s", "/kept", "/there/other"]).ok();
    run(&["fs", "rm", "-r", "/there/file"]).ok();
    fs::write(local.join("other"), "newer").unwrap();
    let paths: [OsString; 3] = ["copy".into(), "local".into(), "nacre:/there".into()];
    let ended = run_in(&server, folder.path(), &paths);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(run(&["fs", "cat", "/kept"]).text(), "other");
    assert_eq!(run(&["fs", "cat", "/there/other"]).text(), "newer");
    run(&["copy", "nacre:/there/other", "nacre:/there/directory"]).ok();
    assert_eq!(run(&["fs", "cat", "/there/directory/other"]).text(), "newer");
    run(&["copy", "nacre:/there/other", "single"]).ok();
    assert_eq!(fs::read(folder.path().join("single")).unwrap(), b"newer");
}

#[test]
fn names_of_one_file_become_files_of_their_own_again() {
    const COUNT: usize = 12;
    let (server, folder) = (Server::in_memory(), harness::folder());
    let run = |words: &[&str]| run_in(&server, folder.path(), words);
    let local = folder.path().join("local");
    fs::create_dir(&local).unwrap();
    fs::write(local.join("0"), "one for all").unwrap();
    for number in 1..COUNT {
        fs::hard_link(local.join("0"), local.join(number.to_string())).unwrap();
    }
    assert_eq!(run(&["copy", "local", "nacre:/there", "--json"]).json()["linked"], COUNT - 1);
    // They are as long as before, and are copied side by side.
    let content = |number: usize| format!("{number:011}");
    for number in 0..COUNT {
        let path = local.join(number.to_string());
        fs::remove_file(&path).unwrap();
        fs::write(path, content(number)).unwrap();
    }
    run(&["copy", "local", "nacre:/there", "--verify"]).ok();
    for number in 0..COUNT {
        assert_eq!(run(&["fs", "cat", &format!("/there/{number}")]).text(), content(number));
    }
    let walked = run(&["walk", "nacre:/there", "--json"]).json();
    assert_eq!(walked["total"]["entries"], COUNT + 1, "{walked}");
}
