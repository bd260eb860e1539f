//! Every command on objects, through the built program: its output, and its exit code.

#[path = "commands/apply.rs"]
mod apply;
#[path = "commands/fs.rs"]
mod fs_commands;
mod harness;
#[path = "commands/manual.rs"]
mod manual;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use harness::{PATIENCE, Random, Server, file, program, run_with, wait};
use serde_json::json;

#[test]
fn bytes_go_in_and_come_out() {
    let server = Server::in_memory();
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let mut random = Random(7);
    // Longer than any transaction, and not a multiple of any size.
    let large: Vec<u8> = (0..2_500_001).flat_map(|_| random.next().to_le_bytes()).collect();
    fs::write(&source, &large).unwrap();

    let (source, path) = (source.to_str().unwrap(), target.to_str().unwrap());
    assert_eq!(server.run(["put", "large", source]).text(), "20,000,008 bytes stored in \"large\"");
    assert!(server.run(["get", "large"]).ok() == large);
    server.run(["get", "large", path]).ok();
    assert!(fs::read(&target).unwrap() == large);
    assert_eq!(server.run(["get", "large", "--offset", "1MiB", "--length", "5"]).ok(), large[1 << 20..][..5]);
    assert_eq!(server.run(["get", "large", "--offset", "20000000"]).ok(), large[20_000_000..]);
    assert_eq!(server.run(["get", "large", "--offset", "1GiB"]).ok(), b"");

    // Shorter content replaces it completely; empty content is content, too.
    let put = server.run_with(["put", "large", "--json"], b"short").json();
    assert_eq!(put, json!({ "object": "large", "bytes": 5 }));
    assert_eq!(server.run(["get", "large", "-"]).ok(), b"short");
    server.run_with(["put", "large", "-", "--fork", "side"], b"").ok();
    assert_eq!(server.run(["get", "large", "--fork", "side"]).ok(), b"");

    // A replaced file keeps its permissions, and keeps its bytes if the fetch fails.
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
    server.run(["get", "large", path]).ok();
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
    server.run(["get", "missing", path]).failed(1, &["\"missing\" does not exist", "nacre ls"]);
    assert_eq!(fs::read(&target).unwrap(), b"short");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
    server.run(["get", "large", "/dev/null"]).ok();

    server.run(["put", "x", "/no/such/file"]).failed(1, &["cannot open /no/such/file"]);
    server.run(["put", "x", "/"]).failed(1, &["is a folder"]);
    server
        .run(["get", "large", "/no/such/folder/file"])
        .failed(1, &["cannot create the file /no/such/folder"]);
    server
        .run(["get", "large", "--fork", "other"])
        .failed(1, &["has no fork \"other\"", "(default), \"side\""]);
}

#[test]
fn what_is_fetched_to_a_folder_has_the_name_of_its_object() {
    let server = Server::in_memory();
    let folder = harness::folder();
    let path = folder.path().to_str().unwrap();
    for name in ["plain", "a b\\\\\\xff", "a/b", "..", "taken"] {
        server.run_with(["put", name], b"object").ok();
    }
    server.run_with(["put", "stream", "--striped"], b"stream").ok();
    fs::create_dir(folder.path().join("taken")).unwrap();
    let got = |name: &[u8]| fs::read(folder.path().join(OsStr::from_bytes(name))).unwrap();

    server.run(["get", "plain", path]).ok();
    server.run(["get", "stream", &format!("{path}/")]).ok();
    server.run(["get", "a b\\\\\\xff", path]).ok();
    assert_eq!(
        (got(b"plain"), got(b"stream"), got(b"a b\\\xff")),
        (b"object".into(), b"stream".into(), b"object".into())
    );
    // A name that no file in it can have is refused, whether there is such an object or not.
    for (name, shown) in [("a/b", "a/b"), ("..", ".."), (".", "."), ("x\\x00", "x\\x00")] {
        let parts = ["is a folder, in which no file can be called", &format!("\"{shown}\"; name the file")];
        server.run(["get", name, path]).failed(1, &parts);
    }
    server.run(["get", "taken", path]).failed(1, &["/taken is a folder; name the file"]);
    server.run(["get", "plain", &format!("{path}/none/")]).failed(1, &["there is no folder", "/none/"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "nothing is left behind");
}

#[test]
fn holes_of_an_object_are_holes_of_its_file() {
    let server = Server::in_memory();
    let folder = harness::folder();
    let path = folder.path().join("file");
    let get = |words: &[&str]| {
        server.run([&["get", "sparse"], words, &[path.to_str().unwrap()]].concat()).ok();
        fs::metadata(&path).unwrap()
    };
    // A byte at 1 TiB.
    server.run(["write", "sparse", "x", "--offset", "1TiB"]).ok();
    let file = get(&[]);
    assert_eq!(file.len(), (1 << 40) + 1);
    assert!(file.blocks() * 512 <= 64 << 10, "{} bytes", file.blocks() * 512);
    assert_eq!(server.run(["get", "sparse", "--offset", "1TiB"]).ok(), b"x");
    // A range that ends with a hole, and one in a hole.
    server.run(["write", "sparse", "begin"]).ok();
    assert_eq!(get(&["--length", "1GiB"]).len(), 1 << 30);
    let mut begin = [1; 6];
    fs::File::open(&path).unwrap().read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"begin\0");
    assert_eq!(get(&["--offset", "5GiB", "--length", "3GiB"]).len(), 3 << 30);
    assert_eq!(get(&["--offset", "2TiB"]).len(), 0);
    // What no file system of the machine may hold is refused before anything is fetched, and the old file stays.
    server.run(["write", "endless", "x", "--offset", &(i64::MAX - 1).to_string()]).ok();
    let endless = server.run(["get", "endless", path.to_str().unwrap()]);
    match endless.code {
        0 => assert_eq!(fs::metadata(&path).unwrap().len(), i64::MAX as u64),
        _ => {
            endless.failed(1, &["9,223,372,036,854,775,807 bytes", "--length"]);
            assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        }
    }

    // Holes and bytes of all lengths, some too short to be stepped over.
    let mut random = Random(11);
    let mut expected = vec![0; 3 << 20];
    let mixed = nacre::open(&server.uri).unwrap().blocking().object("mixed").unwrap();
    for _ in 0..60 {
        let at = random.below(expected.len() as u64 - 70_000) as usize;
        let most = [100, 5000, 70_000][random.below(3) as usize];
        let len = 1 + random.below(most) as usize;
        let byte = 1 + random.below(255) as u8;
        expected[at..at + len].fill(byte);
        mixed.write(at as u64, vec![byte; len]).unwrap();
    }
    let end = expected.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(server.run(["get", "mixed"]).ok() == expected[..end]);
    for (offset, length) in [(0, 3 << 20), (1, 70_000), (1 << 20, 1 << 20), (12_345, 2_000_000)] {
        let words = [
            "get",
            "mixed",
            "--offset",
            &offset.to_string(),
            "--length",
            &length.to_string(),
            path.to_str().unwrap(),
        ];
        server.run(words).ok();
        assert!(fs::read(&path).unwrap() == expected[offset..end.min(offset + length)], "{offset}+{length}");
    }
}

#[test]
fn a_get_that_is_killed_leaves_nothing_behind() {
    let server = Server::in_memory();
    let folder = harness::folder();
    let path = folder.path().join("file");
    let content = vec![7; 48 << 20];
    server.run_with(["put", "large"], &content).ok();
    for ms in [5, 10, 20, 30, 40, 60] {
        let mut getting = server.command(["get", "large", path.to_str().unwrap()]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(ms));
        getting.kill().unwrap();
        getting.wait().unwrap();
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty() || left == [path.clone()] && fs::read(&path).unwrap() == content, "{left:?}");
        left.iter().for_each(|path| fs::remove_file(path).unwrap());
    }
}

#[test]
fn a_replaced_file_keeps_its_owner_and_gives_nobody_rights() {
    let server = Server::in_memory();
    let folder = harness::folder();
    let path = folder.path().join("file");
    server.run(["write", "tool", "new"]).ok();
    fs::write(&path, "old").unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    server.run(["get", "tool", path.to_str().unwrap()]).ok();
    let found = fs::metadata(&path).unwrap();
    assert_eq!(
        (fs::read(&path).unwrap().as_slice(), found.permissions().mode() & 0o7777),
        (&b"new"[..], 0o755)
    );
    if is_root {
        assert_eq!((found.uid(), found.gid()), (1000, 1000));
    }

    // A file that others write to by a descriptor is added to.
    for target in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let out = fs::File::options().append(true).open(&path).unwrap();
        let before = fs::read(&path).unwrap();
        assert!(server.command(["get", "tool", target]).stdout(out).status().unwrap().success());
        assert_eq!(fs::read(&path).unwrap(), [&before[..], b"new"].concat(), "{target}");
    }
}

#[test]
fn nobody_reading_is_no_failure() {
    let server = Server::in_memory();
    server.run_with(["put", "zeros"], &vec![0; 8 << 20]).ok();
    let words = [&["get", "zeros"][..], &["read", "zeros"], &["read", "zeros", "--json"]];
    for words in words {
        let mut child = server.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 10]).unwrap();
        drop(stdout);
        let status = wait(&mut child, PATIENCE);
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((status.code(), stderr.as_str()), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let server = Server::in_memory();
    server.run_with(["put", "a"], b"content").ok();
    let full = |words: &[&str]| {
        let mut command = server.command(words);
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let code = wait(&mut child, PATIENCE).code();
        (code, std::io::read_to_string(child.stderr.take().unwrap()).unwrap())
    };
    for words in [&["get", "a", "-"][..], &["get", "a"], &["read", "a"]] {
        let (code, said) = full(words);
        assert!(code == Some(1) && said.starts_with("nacre: "), "{words:?}: {code:?} {said}");
    }
    for words in [&["ls"][..], &["ls", "--json"], &["stat", "a"], &["put", "a", "/dev/null"], &["man"]] {
        harness::unwritten(&mut server.command(words), 1);
    }
    // Who opens /dev/null wants none.
    assert!(server.command(["ls"]).stdout(Stdio::null()).status().unwrap().success());
}

#[test]
fn names_may_hold_any_bytes() {
    let server = Server::in_memory();
    let raw = OsStr::from_bytes(b"a/\xff b");
    let words = [OsStr::new("write"), raw, OsStr::new("data")];
    assert_eq!(server.run(words).text(), "1");
    assert_eq!(server.run(["read", "a/\\xff b"]).ok(), b"data");
    server.run(["write", "\\x00\\x0a\\\\", "other"]).ok();
    assert_eq!(server.run(["ls"]).text(), "\\x00\\x0a\\\\\na/\\xff b");
    assert_eq!(server.run(["ls", "\\x00"]).text(), "\\x00\\x0a\\\\");
    server.run(["write", "a\\q", "x"]).code_is_usage("begins neither");
    server.run(["write", "", "x"]).code_is_usage("1 to 255 bytes");
    server.run(["write", &"a".repeat(256), "x"]).code_is_usage("object id is 256 bytes long");
}

#[test]
fn appends_say_where_they_were_made() {
    let server = Server::in_memory();
    assert_eq!(server.run(["write", "a", "one", "--append"]).text(), "1 at 0");
    let done = server.run(["write", "a", "two", "--append", "--json"]).json();
    assert_eq!(done, json!({ "done": true, "version": 2, "offset": 3 }));
    assert_eq!(server.run(["read", "a"]).text(), "onetwo");
    assert_eq!(server.run(["write", "b", "x", "--append", "--create", "--fork", "side"]).text(), "1 at 0");
    server.run(["write", "b", "y", "--append", "--create"]).failed(3, &["exists already, at version 1"]);
    server.run(["write", "a", "x", "--append", "--offset", "1"]).code_is_usage("cannot be used with");
}

#[test]
fn conditional_writes_hold_or_say_what_stands_there() {
    let server = Server::in_memory();
    assert_eq!(server.run(["write", "a", "0123456789", "--create"]).text(), "1");
    let refused = server.run(["write", "a", "x", "--create"]);
    assert_eq!(refused.failed(3, &["exists already, at version 1", &server.uri, "without --create"]), "1\n");

    assert_eq!(server.run(["write", "a", "AB", "--offset", "2", "--if-version", "1"]).text(), "2");
    let refused = server.run(["write", "a", "x", "--offset", "3", "--if-version", "1"]);
    let parts = ["object \"a\"", &server.uri, "at version 2, not at 1", "--if-version 2"];
    assert_eq!(refused.failed(3, &parts), "2\n");
    // Bytes beside the range do not matter, unless the condition covers them.
    let words = ["write", "a", "x", "--offset", "8", "--if-version", "1"];
    server.run([&words[..], &["--guard-range", "0+1KiB"]].concat()).failed(3, &["at version 2"]);
    assert_eq!(server.run(words).json(), 3);
    assert_eq!(server.run(["read", "a"]).ok(), b"01AB4567x9");

    // The paper's protocol: the version that was read, plus one.
    let words = ["write", "a", "p", "--offset", "0", "--propose"];
    server.run([&words[..], &["1"]].concat()).failed(3, &["1 is not above that"]);
    assert_eq!(server.run([&words[..], &["100"]].concat()).text(), "100");

    // As JSON, the loser of a race gets all that it needs to try again.
    let refused = server.run(["write", "a", "zz", "--if-version", "1", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&refused.failed(3, &["not written"])).unwrap();
    assert_eq!((&json["done"], &json["version"], &json["data"]), (&json!(false), &json!(100), &json!("p1")));
    assert_eq!(json["extents"][0], json!({ "offset": 0, "length": 1, "version": 100, "kind": "data" }));
    let done = server.run(["write", "a", "zz", "--if-version", "100", "--json"]).json();
    assert_eq!(done, json!({ "done": true, "version": 101 }));

    // Bytes from a file or from standard input are also taken without changes.
    server.run_with(["write", "b"], b"\x00\xff\n").ok();
    server.run_with(["write", "b", "--file", "-", "--offset", "3"], b"more").ok();
    assert_eq!(server.run(["read", "b"]).ok(), b"\x00\xff\nmore");
    server.run(["write", "b", "-x", "--offset", "1"]).ok();
    assert_eq!(server.run(["read", "b", "--length", "3"]).ok(), b"\x00-x");
    server.run(["write", "b", "x", "--file", "f"]).code_is_usage("cannot be used with");
    server.run(["write", "b", "x", "--guard-range", "0+1"]).failed(2, &["--guard-range needs"]);
    server.run(["write", "b", "x", "--offset", "4 furlongs"]).code_is_usage("is not a unit");
    let huge = "9".repeat(30);
    for (number, answer) in [("x", "it is not a whole number"), (&huge, "the number is too large")] {
        server.run(["write", "b", "x", "--if-version", number]).code_is_usage(answer);
        server.run(["zlog", "read", "l", number]).code_is_usage(answer);
    }
    for words in ["write b x --if-version -1", "write b x --propose -1", "zlog read l -1"] {
        server.run(words.split(' ')).code_is_usage("it is not a whole number from 0 on");
    }
    server.run(["watch", "b", "--count", "-1"]).code_is_usage("it must be at least 1");
    for width in ["-1", "0", "4097", "5000000000"] {
        server.run(["zlog", "create", "l", "--width", width]).code_is_usage(": it must be 1 to 4096\n");
    }
    server.run(["zlog", "create", "l", "--unit", "0"]).code_is_usage("it must be 1 to 4096");
    server.run(["fs", "mkdir", "/d", "--width", "-1"]).code_is_usage("it must be 1 to 1024");
    for words in [
        "reflect token 5 --for -1s",
        "reflect serve --max-age -5",
        "ping -i -10ms",
        "lock f --wait -1s -- true",
    ] {
        server.run(words.split(' ')).code_is_usage("a time cannot be negative");
    }
    server.run(["zlog", "follow", "l", "--count", "-1s"]).code_is_usage("'--count <COUNT>'");
    server.run(["ls", "--limit", "-1s"]).code_is_usage("it is not a whole number from 0 on");
    // Such a word can be no value of an option, and goes without advice that would not help.
    let said = server.run(["ls", "--after", "-x"]).stderr;
    assert!(said.contains("unexpected argument") && !said.contains("-- -"), "{said}");
    server.run(["stat", "-1"]).code_is_usage("use '-- -1'");
    server.run(["fail", "1024"]).code_is_usage("it must be 0 to 1023");
    server.run(["fail", "-1"]).code_is_usage("it must be 0 to 1023");
    server.run(["rank", "move", "ids", "-1"]).code_is_usage("it must be 0 to 1023");
    server.run(["rank", "move", "ids", "1", "--mode", "half"]).code_is_usage("client, proxy or proxy-half");
    server.run(["fence", "b", "--below", "0"]).code_is_usage("it must be at least 1");
    server.run(["tour", "--clients", "257"]).code_is_usage("it must be 1 to 256");
    server.run(["remove", "/no/such", "--threads", "0"]).code_is_usage("it must be 1 to 1024");
    let far = server.run(["write", "b", "x", "--offset", &i64::MAX.to_string()]);
    far.failed(1, &["cannot write to object \"b\"", "past the greatest offset"]);
    let large = server.run_with(["write", "b"], &vec![0; (16 << 20) + 1]);
    large.failed(1, &["16.0 MiB", "nacre put"]);
}

trait Usage {
    /// The parser of the command line explains errors in more than one line.
    fn code_is_usage(self, part: &str);
}

impl Usage for harness::Ended {
    #[track_caller]
    fn code_is_usage(self, part: &str) {
        assert_eq!(self.code, 2, "{self:?}");
        assert!(self.stderr.contains(part), "{self:?}");
        assert!(self.stdout.is_empty());
    }
}

#[test]
fn every_command_prints_a_name_in_one_way() {
    let (server, folder) = (Server::in_memory(), harness::folder());
    let raw = OsStr::from_bytes(b"a\n\xff\\\xe2\x80\xae");
    let shown = "a\\x0a\\xff\\\\\\xe2\\x80\\xae";
    // Names within a store are typed as they are printed, and paths as they are.
    server.run(["write", shown, "x"]).ok();
    server.run(["keys", "set", "o", shown, "v"]).ok();
    server.run(["map", "set", "m", &format!("{shown}=v")]).ok();
    server.run(["zlog", "create", "l"]).ok();
    server.run(["zlog", "append", "l", "x", "--tag", shown]).ok();
    server.run([OsStr::new("fs"), OsStr::new("mkdir"), raw]).ok();
    server.run(["sequencer", "create", shown]).ok();
    server.run(["rm", "o"]).ok();
    assert_eq!(server.run(["ls", shown]).text(), shown);
    assert_eq!(server.run(["sequencer", "next", shown]).text(), "0");
    assert!(server.run(["sequencer", "ls"]).text().contains(shown));
    server.run(["zlog", "create", "back\\\\slash"]).ok();
    assert!(server.run(["zlog", "ls"]).text().contains("back\\\\slash"));
    assert_eq!(server.run(["--json", "zlog", "tail", "back\\\\slash"]).json()["log"], "back\\\\slash");
    server.run(["zlog", "tail", "\\xff"]).code_is_usage("is not UTF-8");
    assert_eq!(server.run(["fs", "ls"]).text(), shown);
    assert!(server.run(["map", "get", "m"]).text().contains(shown));
    assert_eq!(server.run(["zlog", "read", "l", "0", "--json"]).json()["tags"], json!([{ "tag": shown }]));
    server.run(["keys", "get", shown, shown]).failed(1, &[shown]);
    server.run([OsStr::new("fs"), OsStr::new("cat"), raw]).failed(1, &[&format!("cannot read {shown}")]);

    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    fs::create_dir_all(one.join(raw)).unwrap();
    fs::create_dir(&other).unwrap();
    let compared = server.run([OsStr::new("compare"), one.as_ref(), other.as_ref()]);
    let only = format!("only in the source: {shown}");
    assert!(String::from_utf8(compared.stdout).unwrap().contains(&only), "{}", compared.stderr);
    let missing = other.join(raw);
    let quoted = format!("\"{}/{shown}\"", other.display());
    for words in [&["walk"][..], &["remove", "--yes"], &["query"], &["put", "o"], &["apply"]] {
        let words = words.iter().map(OsStr::new).chain([missing.as_os_str()]);
        let said = server.run(words).stderr;
        assert!(said.contains(quoted.trim_matches('"')) && !said.contains("\\n"), "{said}");
    }
    for words in [&["walk"][..], &["remove", "--yes"], &["query"]] {
        let words = words.iter().map(OsStr::new).chain([missing.as_os_str()]);
        let said = server.run(words).stderr;
        assert!(said.contains(&quoted), "{said}");
    }
}

#[test]
fn stores_sockets_keys_and_settings_have_paths_of_any_bytes() {
    let folder = harness::folder();
    let at = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
    let shown = |name: &str| format!("{}/{name}", folder.path().display());
    let joined = |text: &str, path: &Path| {
        let mut joined = OsString::from(text);
        joined.push(path);
        joined
    };
    let store = joined("file:", &at(b"data\xff"));
    let in_folder = |words: &[&str]| {
        let mut command = program();
        command.arg("--store").arg(&store).args(words);
        run_with(command, b"")
    };
    in_folder(&["write", "a", "x"]).ok();
    assert_eq!(in_folder(&["read", "a"]).ok(), b"x");
    in_folder(&["read", "b"]).failed(1, &[&format!("does not exist in file:{}", shown("data\\xff"))]);
    assert!(at(b"data\xff").is_dir());

    let (socket, key, settings) = (at(b"s\xff\n"), at(b"key\xff"), at(b"settings\xff.toml"));
    let mut keygen = program();
    keygen.arg("keygen").arg(&key);
    assert_eq!(run_with(keygen, b"").text(), format!("a new key is in {}", shown("key\\xff")));
    fs::write(&settings, "log = \"warn\"\n").unwrap();
    let mut serve = program();
    serve.args(["--json", "serve", "--store"]).arg(&store).arg("--key").arg(&key);
    serve.arg("--listen").arg(joined("unix:", &socket)).arg("--config").arg(&settings);
    let server = Server::spawn(serve);
    // JSON is text, so there the address is as it is printed.
    let address = format!("unix:{}", shown("s\\xff\\x0a"));
    assert_eq!(server.uri, address);
    let client = |words: &[&str]| {
        let mut command = program();
        command.env("NACRE_STORE", joined("unix:", &socket)).env("NACRE_KEY", &key).args(words);
        run_with(command, b"")
    };
    assert_eq!(client(&["read", "a"]).ok(), b"x");
    client(&["read", "b"]).failed(1, &[&format!("does not exist in {address}")]);
    assert_eq!(client(&["locks"]).code, 0);
    let mut uri = joined("nacre://unix:", &socket);
    uri.push(joined("?key=", &key));
    let mut read = program();
    read.args(["read", "a", "--store"]).arg(uri);
    assert_eq!(run_with(read, b"").ok(), b"x");
    let mut copy = program();
    copy.env("NACRE_KEY", &key).arg("copy-objects");
    copy.arg(joined("unix:", &socket)).arg(joined("file:", &at(b"copy\xff")));
    assert_eq!(run_with(copy, b"").code, 0);
    assert!(at(b"copy\xff").is_dir());
    drop(server);
    client(&["read", "a"]).failed(1, &[&format!("cannot reach the server at {address}")]);
}

#[test]
fn a_terminal_is_not_commanded_by_what_others_wrote() {
    const TEXT: &[u8] = b"a\x1b[2Jb";
    let server = Server::in_memory();
    server.run_with(["keys", "set", "a", "k", "-"], TEXT).ok();
    server.run(["zlog", "create", "l"]).ok();
    server.run_with(["zlog", "append", "l", "--whole"], TEXT).ok();
    let class = b"function say() objclass.log('a\\27[2Jb') end\nobjclass.register(say)\n";
    server.run_with(["class", "put", "-", "--name", "loud"], class).ok();
    // Elsewhere it is as it was written.
    assert_eq!(server.run(["keys", "get", "a", "k"]).ok(), TEXT);
    for words in [
        "keys get a k",
        "zlog read l 0",
        "zlog read l 0 1",
        "zlog follow l --from 0 --count 1",
        "class call a loud.say",
    ] {
        let line = format!("'{}' --store '{}' {words}", env!("CARGO_BIN_EXE_nacre"), server.uri);
        // `script` gives its child a terminal.
        let mut command = std::process::Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).stdin(Stdio::null());
        let output = command.output().expect("\"script\" is of Debian's package bsdutils");
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.contains("a\\x1b[2Jb") && !shown.contains('\x1b'), "{words}: {shown:?}");
    }
    // Nor by a word of the line that is in the message about it.
    for words in [&["ls", "a", "b\x1b[2J"][..], &["b\x1b[2J"], &["ls", "--limit", "b\x1b[2J"]] {
        let refused = server.run(words);
        let said = &refused.stderr;
        assert!(refused.code == 2 && said.contains("b\\x1b[2J") && !said.contains('\x1b'), "{refused:?}");
    }
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(program().arg("--help").stdout(full).stderr(Stdio::null()).status().unwrap().code(), Some(1));
}

#[test]
fn a_session_that_is_fenced_changes_nothing_more() {
    let server = Server::in_memory();
    server.run(["fence", "a", "7"]).failed(1, &["\"a\" does not exist"]);
    server.run(["write", "a", "from 7", "--fence", "7"]).ok();
    let version: u64 = server.run(["fence", "a", "7"]).text().parse().unwrap();
    assert!(server.run(["stat", "a"]).text().contains(&format!("version {version}, ")));
    server
        .run(["write", "a", "late", "--fence", "7"])
        .failed(1, &["session 7 is fenced", "nothing was changed"]);
    server.run(["write", "a", "from 6", "--fence", "6"]).ok();
    let stat = server.run(["stat", "a", "--json"]).json();
    assert_eq!((&stat["fence"], &stat["fenced_sessions"]), (&json!(0), &json!(1)));
    let raised = server.run(["fence", "a", "--below", "9", "--json"]).json();
    assert!(raised["version"].as_u64().unwrap() > version);
    server.run(["write", "a", "late", "--fence", "8"]).failed(1, &["session 8 is fenced"]);
    server.run(["write", "a", "from 9", "--fence", "9"]).ok();
    server.run(["write", "a", "from nobody"]).ok();
    assert_eq!(server.run(["stat", "a", "--json"]).json()["fence"], 9);
    for words in [&["fence", "a"][..], &["fence", "a", "1", "--below", "2"], &["fence", "a", "--below", "0"]]
    {
        assert_eq!(server.run(words).code, 2, "{words:?}");
    }
}

#[test]
fn reads_give_versions_and_extents() {
    let server = Server::in_memory();
    server.run(["write", "a", "hello", "--fork", "f"]).ok();
    server.run(["write", "a", "LL", "--offset", "2", "--fork", "f"]).ok();
    let words = ["read", "a", "--offset", "1", "--length", "2KiB", "--fork", "f", "--json"];
    let expected = json!({
        "object": "a", "fork": "f", "offset": 1, "length": 4, "version": 2, "size": 5, "data": "eLLo",
        "extents": [
            { "offset": 1, "length": 1, "version": 1, "kind": "data" },
            { "offset": 2, "length": 2, "version": 2, "kind": "data" },
            { "offset": 4, "length": 1, "version": 1, "kind": "data" },
        ],
    });
    assert_eq!(server.run(words).json(), expected);
    let extents = server.run(["extents", "a", "--fork", "f", "--json"]).json();
    assert_eq!((&extents["version"], extents["extents"].as_array().unwrap().len()), (&json!(2), 3));
    let table = server.run(["extents", "a", "--fork", "f"]).text();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["OFFSET", "LENGTH", "VERSION", "KIND"]);
    assert_eq!(lines[2], ["2", "2", "2", "data"]);
    assert_eq!(table.lines().last().unwrap(), "version 2 in this range, 5 bytes in the fork");

    server.run_with(["write", "b"], b"\xff\x00").ok();
    assert_eq!(server.run(["read", "b", "--json"]).json()["data_base64"], "/wA=");
    server.run(["read", "nothing"]).failed(1, &["\"nothing\" does not exist", &server.uri]);
    server.run(["extents", "nothing"]).failed(1, &["\"nothing\" does not exist"]);
    server.run(["read", "a"]).failed(1, &["has no default fork", "\"f\"", "--fork"]);

    let stat = server.run(["stat", "a", "--json"]).json();
    let forks = json!([{ "fork": "f", "size": 5 }]);
    assert_eq!((&stat["version"], &stat["bytes"], &stat["forks"]), (&json!(2), &json!(5), &forks));
    let text = server.run(["stat", "a"]).text();
    assert!(text.starts_with("object \"a\", version 2, 5 bytes, 0 keys, 0 attributes\n"), "{text}");
    assert_eq!(stat["fenced_sessions"], json!(0));
    let object = nacre::open(&server.uri).unwrap().blocking().object("a").unwrap();
    object.raise_fence(3).unwrap();
    object.fence_session(5).unwrap();
    object.fence_session(9).unwrap();
    let text = server.run(["stat", "a"]).text();
    let expected = "object \"a\", version 5, 5 bytes, 0 keys, 0 attributes, fence 3, 2 fenced sessions\n";
    assert!(text.starts_with(expected), "{text}");
    let stat = server.run(["stat", "a", "--json"]).json();
    assert_eq!((&stat["fence"], &stat["fenced_sessions"]), (&json!(3), &json!(2)));
    server.run(["stat", "nothing"]).failed(1, &["does not exist"]);
}

#[test]
fn listings_have_prefixes_and_pages() {
    let server = Server::in_memory();
    let store = nacre::open(&server.uri).unwrap().blocking();
    // More than fit into one page of the protocol.
    let names: Vec<String> = (0..1100).map(|number| format!("n/{number:05}")).collect();
    for name in names.iter().map(String::as_str).chain(["m", "n", "o"]) {
        store.object(name).unwrap().write(0, "x").unwrap();
    }
    let all = server.run(["ls"]).text();
    assert_eq!(all.lines().count(), 1103);
    assert_eq!(server.run(["ls", "n/"]).text().lines().collect::<Vec<_>>(), names);
    assert_eq!(server.run(["ls", "n/0000"]).text().lines().count(), 10);
    assert_eq!(server.run(["ls", "p"]).text(), "");
    assert_eq!(server.run(["ls", "p", "--json"]).json(), json!([]));
    let page = server.run(["ls", "n/", "--after", "n/00007", "--limit", "2"]);
    assert_eq!((page.code, page.stdout.as_slice()), (0, &b"n/00008\nn/00009\n"[..]));
    assert!(page.stderr.contains("--after 'n/00009'"), "{page:?}");
    // A starting point before the prefix has no effect.
    assert_eq!(server.run(["ls", "o", "--after", "a", "--limit", "1"]).text(), "o");
    assert_eq!(server.run(["ls", "--json", "--limit", "1"]).json(), json!([{ "object": "m" }]));
    let long = server.run(["ls", "-l", "m"]).text();
    let lines: Vec<Vec<&str>> = long.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["VERSION", "BYTES", "FORKS", "KEYS", "ATTRIBUTES", "OBJECT"]);
    assert_eq!(lines[1], ["1", "1", "1", "0", "0", "m"]);
    let json = server.run(["ls", "--long", "--json", "m"]).json();
    assert_eq!(
        json[0],
        json!({ "object": "m", "version": 1, "bytes": 1, "forks": 1, "keys": 0, "attributes": 0 })
    );
}

#[test]
fn objects_and_forks_go_away() {
    let server = Server::in_memory();
    for (object, fork) in [("a", "f"), ("a", "g"), ("b", "f"), ("c", "f")] {
        server.run(["write", object, "x", "--fork", fork]).ok();
    }
    server.run(["rm", "a", "--fork", "f"]).ok();
    server.run(["read", "a", "--fork", "f"]).failed(1, &["has no fork \"f\"; it has \"g\""]);
    server.run(["rm", "a", "--fork", "f"]).failed(1, &["has no fork \"f\""]);
    server.run(["rm", "a", "--fork", "f", "--force"]).ok();
    assert_eq!(server.run(["rm", "b", "c", "--json"]).json(), json!({ "removed": 2 }));
    assert_eq!(server.run(["ls"]).text(), "a");
    server.run(["rm", "b"]).failed(1, &["object \"b\" does not exist", &server.uri]);
    server.run(["write", "d", "x"]).ok();
    let said = server.run(["rm", "d", "b"]).failed(1, &["object \"b\" does not exist"]);
    assert_eq!(said, "1 of 2 objects removed\n");
    assert_eq!(server.run(["rm", "b", "-f", "--json"]).json(), json!({ "removed": 0 }));
    // Versions continue from where they were.
    let again = server.run(["write", "b", "x", "--create"]).text();
    assert!(again.parse::<u64>().unwrap() > 2, "{again}");
}

#[test]
fn keys_and_attributes_are_two_maps_of_one_kind() {
    let server = Server::in_memory();
    for command in ["keys", "attr"] {
        server.run([command, "get", command, "k"]).failed(1, &["does not exist"]);
        server.run([command, "set", command, "k", "v1"]).ok();
        assert_eq!(server.run([command, "get", command, "k"]).ok(), b"v1");
        server.run([command, "get", command, "other"]).failed(1, &["no", "\"other\"", "ls"]);
        assert_eq!(
            server.run([command, "get", command, "k", "--json"]).json(),
            json!({ "name": "k", "value": "v1" })
        );
        server.run_with([command, "set", command, "binary\\x00", "-"], b"\xfe\n").ok();
        assert_eq!(server.run([command, "get", command, "binary\\x00"]).ok(), b"\xfe\n");

        let refused = server.run([command, "set", command, "k", "v2", "--if-value", "other"]);
        assert_eq!(refused.failed(3, &["\"k\"", "not set", &server.uri]), "2\n");
        let refused = server.run([command, "set", command, "k", "v2", "--if-absent", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&refused.failed(3, &["\"k\""])).unwrap();
        assert_eq!(json, json!({ "done": false, "version": 2, "value": "v1" }));
        let refused = server.run([command, "set", command, "new", "v", "--if-present", "--json"]);
        assert!(refused.failed(3, &["it has no value"]).contains("\"value\":null"));
        assert_eq!(server.run([command, "set", command, "k", "v2", "--if-value", "v1"]).text(), "3");
        server
            .run([command, "set", command, "k", "x", "--if-absent", "--if-present"])
            .code_is_usage("cannot be used");

        let list = server.run([command, "ls", command]).text();
        let lines: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["NAME", "BYTES", "VALUE"]);
        assert_eq!(lines[1], ["binary\\x00", "2", "\\xfe\\x0a"]);
        assert_eq!(lines[2], ["k", "2", "v2"]);
        let json = server.run([command, "ls", command, "k", "--json"]).json();
        assert_eq!(json, json!([{ "name": "k", "value": "v2" }]));
        let page =
            server.run([command, "ls", command, "--after", "binary\\x00", "--limit", "1", "--json"]).json();
        assert_eq!(page, json!([{ "name": "k", "value": "v2" }]));
        server.run([command, "rm", command, "k", "--if-value", "v1"]).failed(3, &["not removed"]);
        assert_eq!(server.run([command, "rm", command, "k", "--if-value", "v2"]).text(), "4");
        server.run([command, "rm", command, "k"]).failed(1, &["no", "\"k\""]);
        server.run([command, "ls", "nothing"]).failed(1, &["\"nothing\" does not exist"]);
    }
    let stat = server.run(["stat", "keys", "--json"]).json();
    assert_eq!((&stat["keys"], &stat["attributes"]), (&json!(1), &json!(0)));
    let large = server.run_with(["keys", "set", "keys", "k", "-"], &vec![b'x'; (1 << 20) + 1]);
    large.failed(1, &["1.0 MiB"]);
    // More keys than fit into one page of the protocol.
    let store = nacre::open(&server.uri).unwrap().blocking();
    let object = store.object("many").unwrap();
    for number in 0..1100 {
        object.set_key(format!("{number:05}"), "v").unwrap();
    }
    assert_eq!(server.run(["keys", "ls", "many", "--json"]).json().as_array().unwrap().len(), 1100);
}

#[test]
fn errors_say_what_where_why_and_what_to_do() {
    // A port on which no server listens any more.
    let server = Server::listen("127.0.0.1:0", "mem:", &[]);
    let uri = server.uri.clone();
    let mut command = server.command(["write", "a", "x"]);
    server.kill();
    let parts = ["cannot write to object \"a\" of ", &uri, "refused", "nacre serve", "--store"];
    assert_eq!(run_with(command, b"").failed(1, &parts), "");

    let folder = harness::folder();
    let missing = file(&folder.path().join("missing"));
    let on = |store: &str| {
        let mut command = program();
        command.args(["ls", "--store", store]);
        run_with(command, b"")
    };
    on(&missing).failed(1, &[&missing, "no such folder"]);
    assert!(!folder.path().join("missing").exists(), "a misspelt path makes no store");
    on("mem:").failed(2, &["mem:", "lost when this command ends"]);
    on("http://x").failed(2, &["http://x", "nacre://HOST:PORT"]);
    on("nacre://x?colour=red").failed(2, &["there is no parameter \"colour\""]);
    let empty = file(folder.path());
    on(&empty).failed(1, &[&empty, "no store"]);
    assert!(
        std::fs::read_dir(folder.path()).unwrap().next().is_none(),
        "a look at a folder leaves nothing there"
    );

    command = program();
    command.arg("frobnicate");
    run_with(command, b"").code_is_usage("unrecognized subcommand");
}

#[test]
fn a_folder_is_a_store_without_a_server() {
    let folder = harness::folder();
    let store = file(folder.path());
    let run = |words: &[&str]| {
        let mut command = program();
        command.env("NACRE_STORE", &store).args(words);
        run_with(command, b"")
    };
    assert_eq!(run(&["write", "a", "kept"]).text(), "1");
    assert_eq!(run(&["read", "a"]).ok(), b"kept");
    assert_eq!(run(&["info", "--json"]).json()[0]["report"]["objects"], 1);
    assert_eq!(run(&["compact", "--json"]).json()[0]["report"]["live_bytes"], 4);
    assert!(run(&["scrub"]).text().ends_with("no damage found"));
    // While a server has the folder open, no other process can open it.
    let server = Server::start(&store, &[]);
    run(&["read", "a"]).failed(1, &["open in another process"]);
    assert_eq!(server.run(["read", "a"]).ok(), b"kept");
}

#[test]
fn the_tour_proves_that_no_update_is_lost() {
    let server = Server::in_memory();
    let words = ["tour", "--seconds", "1", "--clients", "3", "--blocks", "4"];
    let proof = server.run([&words[..], &["--json"]].concat()).json();
    assert_eq!(proof["nothing_lost"], true);
    assert!(proof["acknowledged"].as_u64().unwrap() > 0);
    assert_eq!(proof["acknowledged"], proof["counted"]);
    assert_eq!(proof["unknown"], 0);
    // Again on the same blocks; and a foreign write is detected.
    let text = server.run(words).text();
    assert!(text.ends_with("no update was lost"), "{text}");
    server.run(["write", "tour", "x", "--offset", "8"]).ok();
    server.run(words).failed(1, &["block 0", "\"tour\"", "nacre rm tour"]);

    let mut command = program();
    command.args(["tour", "--store", "file:x"]);
    run_with(command, b"").failed(2, &["the tour needs a server"]);
}
