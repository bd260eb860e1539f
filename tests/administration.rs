//! Servers as their administrators see them: settings, keys, metrics, damage.

mod harness;

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use harness::{PATIENCE, Server, file, program, run_with};
use rustix::io::Errno;
use rustix::process::Signal;

#[test]
fn settings_come_from_a_file_and_the_line_wins() {
    let folder = harness::folder();
    let socket = folder.path().join("socket");
    let settings = format!(
        "store = \"data\"\nlisten = [\"unix:{}\", \"127.0.0.1:0\"]\nopen = true\nsegment-bytes = \"1MiB\"\n\
         durability = \"none\"\nno-pacing = true\nlog = \"warn\"\n",
        socket.display()
    );
    fs::write(folder.path().join("nacre.toml"), settings).unwrap();
    let mut command = program();
    command.args(["serve", "--json"]).current_dir(folder.path());
    let server = Server::spawn(command);
    assert_eq!(server.uri, format!("unix:{}", socket.display()));
    server.run(["write", "a", "x"]).ok();
    assert_eq!(server.run(["info", "--json"]).json()[0]["report"]["durability"], "none");
    assert!(folder.path().join("data").is_dir());
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));

    let mut command = program();
    command.args(["serve", "--json", "--config", "nacre.toml", "--durability", "20ms", "--store", "other"]);
    let server = Server::spawn({
        command.current_dir(folder.path());
        command
    });
    let info = server.run(["info", "--json"]).json();
    assert_eq!(info[0]["report"]["durability"], "interval(20 ms)");
    assert!(folder.path().join("other").is_dir());
    drop(server);

    let refused = |text: &str| {
        fs::write(folder.path().join("wrong.toml"), text).unwrap();
        let mut command = program();
        command.args(["serve", "--config", "wrong.toml", "--store", "data"]).current_dir(folder.path());
        run_with(command, b"")
    };
    refused("listen = [\"127.0.0.1:0\"]\ncolour = 1\n").failed(2, &["line 2 of wrong.toml", "colour"]);
    refused("segment-bytes = \"large\"\n").failed(2, &["line 1", "large"]);
    refused("listen = \n").failed(2, &["wrong.toml"]);
    refused("listen = [\"127.0.0.1:0\"]\nopen = true\nsegment-bytes = 5\n")
        .failed(2, &["segments of 5 bytes"]);
    refused("listen = [\"nowhere\"]\ndurability = \"sometimes\"\n").failed(2, &["sometimes"]);
    let mut command = program();
    command.args(["serve", "--config", "/no/such.toml"]);
    run_with(command, b"").failed(2, &["cannot read the settings in /no/such.toml"]);
}

#[test]
fn a_start_that_would_fail_again_ends_as_with_wrong_settings() {
    let folder = harness::folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let run = |words: &[&str]| {
        let mut command = program();
        command.args(words).current_dir(folder.path());
        run_with(command, b"")
    };
    let key = at("key");
    run(&["keygen", &key]).ok();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let missing = at("missing");
    let store = ["serve", "--listen", "unix:socket", "--store"];
    let serve = |words: &[&str]| run(&[&store[..], words].concat());
    serve(&["mem:", "--key", &key]).failed(2, &["chmod 600"]);
    serve(&["mem:", "--key", &missing]).failed(2, &[&missing, "No such file"]);
    serve(&[&format!("nacre://127.0.0.1:1?key={key}")]).failed(2, &["chmod 600"]);
    run(&["reflect", "serve", "--store", "nacre://127.0.0.1:1", "--key", &key]).failed(2, &["chmod 600"]);
    let long = format!("unix:{}", at(&"x".repeat(200)));
    run(&["serve", "--store", "mem:", "--listen", &long]).failed(2, &["too long for a socket"]);
    fs::write(at("file"), "").unwrap();
    serve(&[&at("file")]).failed(2, &["cannot open the folder", "Not a directory"]);
    // A superblock of format 99, in two copies, each with its checksum at the end (docs/format.md).
    fs::create_dir(at("newer")).unwrap();
    fs::set_permissions(at("newer"), fs::Permissions::from_mode(0o700)).unwrap();
    let sum = 0xe1e1524b_u32;
    let copy = [&b"NACRESTO"[..], &99_u32.to_le_bytes(), &[7; 16], &[0; 32], &sum.to_le_bytes()].concat();
    fs::write(at("newer/nacre-store"), copy.repeat(2)).unwrap();
    serve(&[&at("newer")]).failed(2, &["is of format 99", "use a newer program"]);
    assert!(!folder.path().join("socket").exists(), "none of them was served");
    // Another process may end, and a volume may be mounted.
    let served = Server::start(&file(&folder.path().join("taken")), &[]);
    serve(&[&at("taken")]).failed(1, &["open in another process"]);
    serve(&["file:absent?create=no"]).failed(1, &["there is no such folder"]);
    drop(served);
}

#[test]
fn settings_that_would_be_ignored_or_do_nothing_are_refused() {
    let folder = harness::folder();
    let serve = |words: &[&str]| {
        let mut command = program();
        command.args(["serve", "--listen", "unix:socket", "--store", "mem:"]).args(words);
        run_with(
            {
                command.current_dir(folder.path());
                command
            },
            b"",
        )
    };
    serve(&["--durability", "none"]).failed(2, &["durability", "in a folder", "mem:"]);
    serve(&["--snapshot-bytes", "1MiB"]).failed(2, &["snapshot-bytes", "mem:"]);
    serve(&["--capacity", "0"]).failed(2, &["capacity of 0 bytes", "1048576"]);
    serve(&["--segment-bytes", "64MiB", "--capacity", "64MiB"])
        .failed(2, &["segments of 67108864 bytes", "capacity", "make segment-bytes smaller"]);
    serve(&["--members-version", "2"]).failed(2, &["--members-version", "--members"]);
    serve(&["--log", "inof"]).failed(2, &["--log inof", "not a level", "info"]);
    serve(&["--log", "narce_rpc=debug"]).failed(2, &["narce_rpc", "logs anything"]);
    serve(&["--http", "127.0.0.1:0", "--http-host", "http://status.example/"])
        .failed(2, &["--http-host http://status.example/", "without a port"]);
    serve(&["--http", "foo"]).failed(2, &["\"foo\"", "HOST:PORT"]);
    serve(&["--meta-lease", "1d"]).failed(2, &["--meta-lease is a time from 300ms to 1h"]);
    serve(&["--meta-takeover", "1ms"]).failed(2, &["--meta-takeover is a time from 200ms to 1min"]);
    for (flag, value) in [("--threads", "0"), ("--members-version", "0"), ("--connections-max", "0")] {
        let ended = serve(&[flag, value]);
        assert!(ended.code == 2 && ended.stderr.contains(flag), "{ended:?}");
    }
    // Memory for them would be taken until the machine has none.
    let many = serve(&["--threads", "99999999"]);
    assert!(many.code == 2 && many.stderr.contains("at most 1024 threads are supported"), "{many:?}");
    let file = |text: &str| {
        fs::write(folder.path().join("wrong.toml"), text).unwrap();
        serve(&["--config", "wrong.toml"])
    };
    file("threads = 99999999\n").failed(2, &["line 1", "at most 1024 threads are supported"]);
    file("open = true\nlisten = [\"127.0.0.1:0\", 5]\n").failed(2, &["line 2", "\"listen\" must be a text"]);
    file("log = 3\n").failed(2, &["line 1", "\"log\" must be a text"]);
    let far = file("colour = 1\n");
    assert!(far.code == 2 && !far.stderr.contains("nearest"), "{far:?}");
    file("capasity = 1\n").failed(2, &["the nearest is \"capacity\""]);
    assert!(!folder.path().join("socket").exists(), "none of them was served");
    // The variable is for clients: a daemon does not stand in front of itself.
    let mut command = program();
    command.args(["serve", "--json", "--listen", "unix:socket"]).current_dir(folder.path());
    command.env("NACRE_STORE", "unix:socket").env("NACRE_KEY", "");
    let server = Server::spawn(command);
    assert!(folder.path().join("nacre-data").is_dir());
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn many_rejected_connections_make_two_lines_of_the_log() {
    let mut command = program();
    command.args(["--json", "serve", "--store", "mem:", "--listen", "127.0.0.1:0", "--open"]);
    command.args(["--http", "127.0.0.1:0"]);
    let server = Server::spawn(command);
    let address = server.uri.trim_start_matches("nacre://");
    for _ in 0..30 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        // The server closes the connection while bytes are unread, which is an error for its peer.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let wait_for = |what: &str, is_there: &dyn Fn() -> bool| {
        let began = std::time::Instant::now();
        while !is_there() {
            assert!(began.elapsed() < PATIENCE, "{what} is not there: {}", server.log());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    let counted = || {
        let (status, text) =
            harness::reflect::http(server.ready["http"].as_str().unwrap(), "GET", "/metrics", "");
        status == 200 && text.contains("\nnacre_connections_rejected_total 30\n")
    };
    wait_for("the count of all", &counted);
    // The log is collected by a separate thread.
    wait_for("a line of the log", &|| server.log().contains("connection rejected: "));
    let log = server.log();
    assert_eq!(log.matches("connection rejected: the peer does not speak this protocol").count(), 1, "{log}");
    // The others are told of after a minute, or at the end.
    server.signal(Signal::TERM);
    wait_for("the rest", &|| server.log().contains("29 further connections rejected"));
    assert_eq!(server.log().matches("rejected").count(), 2, "{}", server.log());
}

#[test]
fn a_log_can_be_lines_of_json() {
    let folder = harness::folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let mut command = program();
    command.args(["--json", "serve", "--listen", &address, "--log", "debug", "--log-format", "json"]);
    command.args(["--http", "none"]).current_dir(folder.path());
    let server = Server::spawn(command);
    server.run(["write", "a", "x"]).ok();
    let began = std::time::Instant::now();
    while server.log().is_empty() {
        assert!(began.elapsed() < harness::PATIENCE, "nothing is logged");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for line in server.log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let known = ["timestamp", "level", "target", "message"].iter().all(|field| line[field].is_string());
        assert!(known, "{line}");
    }
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn a_daemon_that_cannot_start_says_so_in_the_format_of_its_log() {
    let folder = harness::folder();
    // A file is where the folder would have to be.
    std::fs::write(folder.path().join("file"), "").unwrap();
    let store = file(&folder.path().join("file/store"));
    for (words, code) in [
        (&["serve", "--store", &*store, "--listen", "unix:socket"][..], 2),
        (&["serve", "--store", "mem:", "--listen", "127.0.0.1:99999"], 2),
        (&["reflect", "serve", "--listen", "0.0.0.0:0"], 2),
    ] {
        let mut command = program();
        command.args(words).args(["--http", "none", "--log-format", "json"]).current_dir(folder.path());
        let ended = harness::run_with(command, b"");
        assert_eq!(ended.code, code, "{ended:?}");
        let lines: Vec<serde_json::Value> =
            ended.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let last = lines.last().unwrap_or_else(|| panic!("{words:?} says nothing"));
        assert_eq!(last["level"], "ERROR", "{last}");
        assert!(last["message"].as_str().is_some_and(|message| !message.is_empty()), "{last}");
    }
    // A log that leaves errors out does not hide it.
    let mut command = program();
    command
        .args(["serve", "--store", &store, "--log", "off", "--log-format", "json"])
        .current_dir(folder.path());
    harness::run_with(command, b"").failed(2, &["nacre: "]);
}

#[test]
fn a_store_that_is_full_is_well_and_says_so() {
    let folder = harness::folder();
    let store = file(&folder.path().join("store"));
    let flags = ["--capacity", "4MiB", "--durability", "none", "--http", "127.0.0.1:0"];
    let server = Server::start(&store, &flags);
    let metrics = server.metrics.clone().unwrap();
    let full = || {
        let (status, text) = http(&metrics, "/metrics");
        assert_eq!(status, 200);
        let line = text.lines().find(|line| line.starts_with("nacre_store_full ")).unwrap();
        line.ends_with(" 1.0")
    };
    assert!(!full());
    assert!(http(&metrics, "/").1.contains("<th>full</th><td>no</td>"));
    let client = nacre::open(&server.uri).unwrap().blocking();
    let refused = (0..100)
        .find_map(|number| client.object(format!("o{number}")).unwrap().write(0, vec![7; 256 << 10]).err());
    assert_eq!(refused.unwrap().kind, nacre::ErrorKind::OutOfSpace);
    assert!(full());
    assert!(http(&metrics, "/").1.contains("<th>full</th><td>yes</td>"));
    // It still serves what a load balancer would send to it.
    assert_eq!(http(&metrics, "/healthz"), (200, "ok\n".to_owned()));
    server.run(["rm", "o0"]).ok();
}

#[test]
fn one_server_at_a_time_has_a_folder_or_an_address() {
    let folder = harness::folder();
    let store = file(folder.path());
    let server = Server::start(&store, &[]);
    let second = |flags: &[&str]| {
        let mut command = program();
        command.arg("serve").args(flags);
        run_with(command, b"")
    };
    let shown = folder.path().to_str().unwrap();
    second(&["--listen", "127.0.0.1:0", "--open", "--store", &store])
        .failed(1, &[shown, "open in another process"]);
    second(&["--listen", &server.uri, "--store", "mem:"])
        .failed(1, &["cannot listen on", &server.uri, "in use"]);
    let place = harness::folder();
    second(&["--listen", &server.uri, "--store", &file(&place.path().join("new/store"))])
        .failed(1, &["cannot listen on", &server.uri, "choose another address with --listen"]);
    assert!(!place.path().join("new").exists(), "no store is created for a server that cannot start");
    second(&["--store", "floppy:x"]).failed(2, &["floppy:x", "file:PATH"]);
    assert_eq!(server.run(["ls"]).text(), "", "the first server does not mind");
}

#[test]
fn other_addresses_than_loopback_ones_need_a_key_that_fits() {
    let folder = harness::folder();
    let keygen = |name: &str| {
        let path = folder.path().join(name);
        let mut command = program();
        command.arg("keygen").arg(&path);
        (run_with(command, b""), path.to_str().unwrap().to_owned())
    };
    let (generated, key) = keygen("key");
    generated.ok();
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read(&key).unwrap();
    keygen("key").0.failed(1, &[&key, "exists"]);
    assert_eq!(fs::read(&key).unwrap(), before, "a key is never overwritten");
    let (generated, other) = keygen("other");
    generated.ok();
    assert_ne!(fs::read(&other).unwrap(), before);

    let mut command = program();
    command.args(["serve", "--store", "mem:", "--listen", "0.0.0.0:0"]);
    run_with(command, b"").failed(2, &["0.0.0.0:0", "key"]);

    let server = Server::start("mem:", &["--key", &key]);
    server.run(["write", "a", "x"]).failed(1, &["object \"a\"", &server.uri, "--key"]);
    server.run(["write", "a", "x", "--key", &other]).failed(1, &["key"]);
    server.run(["write", "a", "x", "--key", &key]).ok();
    let mut command = server.command(["read", "a"]);
    command.env("NACRE_KEY", &key);
    assert_eq!(run_with(command, b"").ok(), b"x");
    // Processes that the program starts itself receive the key, too.
    let proof = server.run(["tour", "--seconds", "1", "--json", "--key", &key]).json();
    assert_eq!(proof["nothing_lost"], true);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    server.run(["read", "a", "--key", &key]).failed(1, &["chmod 600"]);
}

/// Requests a page as a browser would.
fn http(address: &str, path: &str) -> (u16, String) {
    let host = address.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[test]
fn metrics_count_and_health_is_told() {
    let server = Server::start("mem:", &["--metrics", "127.0.0.1:0", "--region-statistics"]);
    let metrics = server.metrics.clone().unwrap();
    let objects = || {
        let (status, text) = http(&metrics, "/metrics");
        assert_eq!(status, 200);
        let line = text.lines().find(|line| line.starts_with("nacre_store_objects ")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(objects(), 0.0);
    server.run(["write", "a", "x"]).ok();
    assert_eq!(objects(), 1.0);
    assert_eq!(http(&metrics, "/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(http(&metrics, "/nothing").0, 404);
    assert!(http(&metrics, "/").1.contains("<title>nacre</title>"));

    // Lost races are counted by region.
    server.run(["write", "a", "x", "--if-version", "0"]).failed(3, &["at version 1"]);
    server.run(["write", "a", "x", "--if-version", "1"]).ok();
    let report = &server.run(["info", "--regions", "--json"]).json()[0]["report"];
    let region = &report["regions"][0];
    assert_eq!(
        (&region["object"], &region["attempts"], &region["failures"]),
        (&"a".into(), &2.into(), &1.into())
    );
    let text = server.run(["info", "--regions"]).text();
    assert!(text.contains("OBJECT") && text.contains("ATTEMPTS"), "{text}");
}

#[test]
fn info_and_compact_speak_of_every_server() {
    let folder = harness::folder();
    let one = file(&folder.path().join("one"));
    let (_servers, both) = Server::together(folder.path(), &[&one, "mem:"], &["--segment-bytes", "64KiB"]);
    let run = |words: &[&str]| {
        let mut command = program();
        command.args(["--store", &both]).args(words);
        run_with(command, b"")
    };
    for round in 10..18 {
        for object in ["a", "b", "c", "d", "e", "f"] {
            run(&["write", object, &round.to_string().repeat(20_000)]).ok();
        }
    }
    let info = run(&["info", "--json"]).json();
    assert_eq!(info.as_array().unwrap().len(), 2);
    let objects: u64 = (0..2).map(|part| info[part]["report"]["objects"].as_u64().unwrap()).sum();
    assert_eq!(objects, 6);
    let text = run(&["info"]).text();
    assert!(text.contains("write amplification") && text.contains("segments"), "{text}");
    let before = info[0]["report"]["segment_bytes"].as_u64().unwrap();
    let after = run(&["compact", "--json"]).json()[0]["report"]["segment_bytes"].as_u64().unwrap();
    assert!(after <= before, "{after} bytes after, {before} before");
    assert!(run(&["scrub"]).text().ends_with("no damage found"));
    assert_eq!(run(&["read", "a", "--length", "2"]).ok(), b"17");
}

/// Returns the files of a folder that contain a piece of text, with the offset of its first occurrence.
fn occurrences(folder: &Path, piece: &[u8]) -> Vec<(std::path::PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = fs::read(&path).unwrap();
            let at = bytes.windows(piece.len()).position(|window| window == piece);
            found.extend(at.map(|at| (path, at as u64)));
        }
    }
    found
}

#[test]
fn damage_is_found_named_and_contained() {
    let folder = harness::folder();
    let store = file(folder.path());
    // Short segments are soon read.
    let start = || Server::start(&store, &["--segment-bytes", "64KiB"]);
    let server = start();
    server.run(["write", "damaged", "the quick brown fox jumps over the lazy dog"]).ok();
    server.run(["write", "whole", "the five boxing wizards jump quickly"]).ok();
    assert_eq!(server.stop(Signal::INT).code(), Some(0));

    let places = occurrences(folder.path(), b"quick brown");
    assert_eq!(places.len(), 1, "the bytes lie in the log, once");
    let (path, offset) = &places[0];
    let mut segment = fs::File::options().read(true).write(true).open(path).unwrap();
    segment.seek(SeekFrom::Start(*offset)).unwrap();
    segment.write_all(b"Q").unwrap();
    drop(segment);

    let server = start();
    let name = path.file_name().unwrap().to_str().unwrap();
    server.run(["read", "damaged"]).failed(1, &["\"damaged\"", name, "nacre scrub"]);
    assert_eq!(server.run(["read", "whole"]).ok(), b"the five boxing wizards jump quickly");
    let scrub = server.run(["scrub"]);
    assert_eq!(scrub.code, 1);
    let text = String::from_utf8(scrub.stdout).unwrap();
    assert!(text.contains(name) && text.contains("damaged"), "{text}");
    let scrub = server.run(["scrub", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&scrub.stdout).unwrap();
    assert_eq!(json[0]["report"]["findings"][0]["objects"][0], "damaged");
    // Writing the object again repairs it.
    server.run_with(["put", "damaged"], b"again").ok();
    assert_eq!(server.run(["read", "damaged"]).ok(), b"again");
}

/// Runs a command on the store in a folder that no server has open.
fn on(folder: &Path, words: &[&str], input: &[u8]) -> harness::Ended {
    let mut command = program();
    command.args(["--store", &file(folder)]).args(words);
    run_with(command, input)
}

/// A file's path, its length, and its blocks that are not all zeros, by their offsets.
type Content = (std::path::PathBuf, u64, Vec<(u64, Vec<u8>)>);

/// Returns the contents of a folder's files. What is only reserved, which is most of them, is not read.
fn contents(folder: &Path) -> Vec<Content> {
    const BLOCK_BYTES: usize = 4096;
    let content = |path: std::path::PathBuf| {
        let file = fs::File::open(&path).unwrap();
        let (mut blocks, mut offset) = (Vec::new(), 0);
        loop {
            let found = match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(offset)) {
                Ok(found) => found,
                Err(Errno::NXIO) => break,
                Err(error) => panic!("{path:?}: {error}"),
            };
            let start = found - found % BLOCK_BYTES as u64;
            let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(found)).unwrap();
            offset = end.next_multiple_of(BLOCK_BYTES as u64);
            let mut bytes = vec![0; (offset - start) as usize];
            let read = file.read_at(&mut bytes, start).unwrap();
            bytes.truncate(read);
            let written = bytes.chunks(BLOCK_BYTES).enumerate();
            let written = written.filter(|(_, block)| block.iter().any(|byte| *byte != 0));
            blocks.extend(
                written.map(|(number, block)| (start + (number * BLOCK_BYTES) as u64, block.to_vec())),
            );
        }
        let length = file.metadata().unwrap().len();
        (path, length, blocks)
    };
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| content(entry.unwrap().path())).collect();
    files.sort();
    files
}

#[test]
fn what_is_lost_is_told_until_it_is_written_again() {
    let folder = harness::folder();
    let run = |words: &[&str]| on(folder.path(), words, b"");
    on(folder.path(), &["put", "a"], b"the quick brown fox").ok();
    run(&["keys", "set", "a", "k", "v"]).ok();
    run(&["put", "other"]).ok();
    // Other files may hold the live data that was moved from them.
    let info = run(&["info", "--json"]).json();
    let segments = info[0]["report"]["segment_list"].as_array().unwrap();
    let live = segments.iter().find(|segment| segment["live_bytes"] == 19).unwrap();
    let segment = Path::new(live["file"].as_str().unwrap());
    fs::remove_file(segment).unwrap();
    let name = segment.file_name().unwrap().to_str().unwrap();

    let before = contents(folder.path());
    let output = run(&["scrub"]).failed(1, &[name, "missing", "nacre scrub --repair"]);
    assert!(contents(folder.path()) == before, "a scrub changes nothing");
    let row = output.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{output}"));
    assert!(row.contains("missing") && row.trim_end().ends_with(" a"), "{output}");
    assert!(output.contains("lost of a: bytes 0 to 18 of the default fork"), "{output}");
    assert!(!output.contains("no damage found"), "{output}");

    for words in [&["scrub", "--repair"][..], &["scrub"], &["scrub"]] {
        let output = run(words).failed(1, &["1 damaged piece", "must be written again"]);
        assert!(output.contains("lost of a: bytes 0 to 18 of the default fork"), "{words:?}: {output}");
    }
    run(&["read", "a"]).failed(1, &["\"a\"", name, "nacre scrub"]);
    on(folder.path(), &["put", "a"], b"again").ok();
    assert!(run(&["scrub"]).text().ends_with("no damage found"));
    assert_eq!(run(&["read", "a"]).ok(), b"again");
}

#[test]
fn a_scrub_of_a_healthy_folder_changes_nothing() {
    let folder = harness::folder();
    on(folder.path(), &["put", "a"], b"the quick brown fox").ok();
    let before = contents(folder.path());
    assert!(on(folder.path(), &["scrub"], b"").text().ends_with("no damage found"));
    assert!(contents(folder.path()) == before);
    assert!(on(folder.path(), &["scrub", "--repair"], b"").text().ends_with("nothing was repaired"));
}

#[test]
fn a_daemon_whose_store_is_gone_names_no_variable() {
    let folder = harness::folder();
    let mut command = program();
    command.args(["serve", "--listen", "unix:socket", "--store", "unix:/nowhere/at/all"]);
    command.current_dir(folder.path());
    let ended = run_with(command, b"");
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(
        ended.stderr.contains("start that server first") && !ended.stderr.contains("NACRE_STORE"),
        "{ended:?}"
    );
}

#[test]
fn a_folder_that_is_not_there_is_neither_checked_nor_repaired() {
    let folder = harness::folder();
    let missing = folder.path().join("nosuch");
    for words in [&["scrub"][..], &["scrub", "--repair"]] {
        on(&missing, words, b"").failed(1, &["nosuch", "there is no such folder"]);
    }
    assert!(!missing.exists());
    let mut command = program();
    command.args(["--store", "unix:/nowhere", "scrub", "--repair"]);
    run_with(command, b"").failed(2, &["stop its server, and name the folder"]);
}

#[test]
fn where_nothing_was_written_nothing_was_amplified() {
    // A store in memory has no log.
    let folder = harness::folder();
    let server = Server::start(&file(&folder.path().join("store")), &[]);
    server.run(["keys", "set", "a", "k", "v"]).ok();
    assert_eq!(
        server.run(["info", "--json"]).json()[0]["report"]["write_amplification"],
        serde_json::Value::Null
    );
    let text = server.run(["info"]).text();
    let line = text.lines().find(|line| line.starts_with("write amplification")).unwrap();
    assert!(line.ends_with(" -"), "{line}");
    server.run(["write", "a", "x"]).ok();
    assert!(server.run(["info", "--json"]).json()[0]["report"]["write_amplification"].is_f64());
}
