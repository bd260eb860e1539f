//! `put` is atomic: a reader gets the old content or the new one, complete, whatever happens to the process that stores
//! it.

mod harness;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::{PATIENCE, Random, Server, file};
use nacre::{ByteRange, ErrorKind};
use rustix::process::{Pid, Signal, kill_process};

/// Returns a word of a content, which identifies the content and the word's position in it.
fn word(content: u32, index: u64) -> [u8; 8] {
    (u64::from(content) << 32 | (index & 0xffff_ffff)).to_le_bytes()
}

fn content(content: u32, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    all.chunks_exact_mut(8).zip(0..).for_each(|(bytes, index)| bytes.copy_from_slice(&word(content, index)));
    all
}

/// A check, while bytes arrive, that all of them belong to one content.
#[derive(Default)]
struct Check {
    content: Option<u32>,
    bytes: u64,
    partial: Vec<u8>,
}

impl Write for Check {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.partial.extend_from_slice(data);
        let whole = self.partial.len() / 8 * 8;
        for found in self.partial[..whole].chunks_exact(8) {
            let number = u32::from_le_bytes(found[4..].try_into().unwrap());
            let content = *self.content.get_or_insert(number);
            assert_eq!(found, word(content, self.bytes / 8), "at {} of content {content}", self.bytes);
            self.bytes += 8;
        }
        self.partial.drain(..whole);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads an object. Returns the number and the length of its content; `None` if it changed meanwhile.
fn read(uri: &str, object: &str) -> Option<(u32, u64)> {
    let store = nacre::open(uri).unwrap().blocking();
    let mut check = Check::default();
    match store.object(object).unwrap().get(ByteRange::ALL, &mut check) {
        Ok(bytes) => {
            assert_eq!((bytes, check.partial.len()), (check.bytes, 0), "content {:?}", check.content);
            Some((check.content.unwrap(), bytes))
        }
        Err(error) if error.kind == ErrorKind::Busy => None,
        Err(error) => panic!("{error}"),
    }
}

/// Returns a command for a server, which it waits for as long as one takes to start on a busy machine.
fn patient<const N: usize>(server: &Server, words: [&str; N]) -> Command {
    let mut command = server.command(words);
    command.env("NACRE_STORE", format!("{}?repeat_timeout=60s", server.uri));
    command
}

/// Starts a `put` from a pipe.
fn piped(server: &Server, object: &str) -> Child {
    let mut command = patient(server, ["put", object]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until an object has a staged fork of at least so many bytes.
fn wait_for_stage(server: &Server, object: &str, bytes: u64) {
    let object = nacre::open(&server.uri).unwrap().blocking().object(object).unwrap();
    let begun = Instant::now();
    while object.staged().unwrap().iter().all(|stage| stage.bytes < bytes) {
        assert!(begun.elapsed() < PATIENCE, "nothing is staged: {}", server.log());
        std::thread::yield_now();
    }
}

fn ended(mut child: Child) -> (i32, String) {
    drop(child.stdin.take());
    let status = harness::wait(&mut child, PATIENCE);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    (harness::shell_code(status), stderr)
}

#[test]
fn a_put_that_is_killed_leaves_the_old_content_to_all_readers() {
    let kills: u32 = std::env::var("NACRE_PUT_KILLS").map_or(5, |count| count.parse().unwrap());
    const BYTES: usize = 100 << 20;
    let mut random = Random::from_environment();
    let folder = harness::folder();
    let store = folder.path().join("store");
    let server = Server::start(&file(&store), &["--durability", "none"]);
    let source = folder.path().join("source");
    std::fs::write(&source, content(1, BYTES)).unwrap();
    let source_word = source.to_str().unwrap();
    let begun = Instant::now();
    server.run(["put", "a", source_word]).ok();
    let takes = begun.elapsed();
    let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut stored = 1;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    if let Some((_, bytes)) = read(&server.uri, "a") {
                        assert_eq!(bytes, BYTES as u64);
                        reads.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        // A failed assertion of this thread must end the readers, too.
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 2..2 + kills {
                std::fs::write(&source, content(number, BYTES)).unwrap();
                let mut put =
                    server.command(["put", "a", source_word]).stdout(Stdio::null()).spawn().unwrap();
                std::thread::sleep(Duration::from_micros(random.below(takes.as_micros() as u64 * 3)));
                put.kill().unwrap();
                put.wait().unwrap();
                let found = loop {
                    if let Some((found, _)) = read(&server.uri, "a") {
                        break found;
                    }
                };
                assert!(found == stored || found == number, "{found} is neither {stored} nor {number}");
                stored = found;
            }
        }));
        over.store(true, Ordering::SeqCst);
        run.unwrap();
    });
    println!(
        "{kills} kills, content {stored} stands at the end; {} whole reads meanwhile",
        reads.into_inner()
    );
    // The remains of dead writers have no effect, are listed, and can be removed.
    let staged = server.run(["ls", "--staged", "--json"]).json();
    assert!(staged.as_array().unwrap().iter().all(|stage| stage["object"] == "a" && stage["bytes"].is_u64()));
    assert_eq!(server.run(["stat", "a", "--json"]).json()["bytes"], BYTES);
    assert_eq!(server.run(["ls", "-l", "--json"]).json()[0]["forks"], 1);
    server.run(["rm", "--staged", "a"]).ok();
    assert_eq!(server.run(["ls", "--staged", "--json"]).json(), serde_json::json!([]));
    assert_eq!(read(&server.uri, "a"), Some((stored, BYTES as u64)));
    // Replaced and staged content is garbage to the cleaner, too.
    server.run(["compact"]).ok();
    let live = server.run(["info", "--json"]).json()[0]["report"]["live_bytes"].as_u64().unwrap();
    assert_eq!(live, BYTES as u64);
    assert!(server.run(["scrub"]).text().ends_with("no damage found"));
    assert_eq!(read(&server.uri, "a"), Some((stored, BYTES as u64)));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let server = Server::start(&file(&store), &[]);
    assert_eq!(read(&server.uri, "a"), Some((stored, BYTES as u64)));
}

#[test]
fn an_interrupted_put_leaves_the_old_content_and_nothing_else() {
    let server = Server::in_memory();
    server.run_with(["put", "a"], &content(1, 4096)).ok();
    for (signal, bytes) in [(Signal::INT, 24 << 20), (Signal::TERM, 24 << 20), (Signal::INT, 4096)] {
        let mut put = piped(&server, "a");
        put.stdin.as_mut().unwrap().write_all(&content(2, bytes)).unwrap();
        if bytes > 4096 {
            wait_for_stage(&server, "a", 16 << 20);
        } else {
            wait_for_handler(&put);
        }
        kill_process(Pid::from_raw(put.id() as i32).unwrap(), signal).unwrap();
        let stdin = put.stdin.take();
        let (code, stderr) = ended(put);
        drop(stdin);
        assert_eq!(code, 128 + signal.as_raw(), "{stderr}");
        assert!(stderr.contains("the command was interrupted"), "{stderr}");
        assert_eq!(read(&server.uri, "a"), Some((1, 4096)));
        assert_eq!(server.run(["ls", "--staged", "--json"]).json(), serde_json::json!([]));
    }
}

/// Waits until a process handles SIGINT: before that, a signal would just end it.
fn wait_for_handler(child: &Child) {
    let begun = Instant::now();
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        // Signal 2 is bit 1.
        if u64::from_str_radix(caught, 16).unwrap() & 2 != 0 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "it catches no signals");
        std::thread::yield_now();
    }
}

#[test]
fn of_concurrent_puts_one_wins_whole() {
    let server = Server::in_memory();
    let folder = harness::folder();
    for round in 0..3 {
        std::thread::scope(|scope| {
            for writer in 0..4u32 {
                let (server, folder) = (&server, folder.path());
                scope.spawn(move || {
                    let number = round * 4 + writer + 1;
                    let source = folder.join(number.to_string());
                    // Of different lengths, so that a remainder would be visible.
                    std::fs::write(&source, content(number, (18 << 20) + 8 * number as usize)).unwrap();
                    server.run(["put", "a", source.to_str().unwrap()]).ok();
                });
            }
        });
        let (number, bytes) = read(&server.uri, "a").unwrap();
        assert!((round * 4 + 1..=round * 4 + 4).contains(&number), "{number} in round {round}");
        assert_eq!(bytes, (18 << 20) + 8 * u64::from(number));
        assert_eq!(server.run(["ls", "--staged", "--json"]).json(), serde_json::json!([]));
    }
}

#[test]
fn a_writer_whose_stage_was_removed_fails_and_changes_nothing() {
    let server = Server::in_memory();
    server.run_with(["put", "a"], &content(1, 4096)).ok();
    for removal in [&["rm", "--staged", "a"][..], &["rm", "a"]] {
        let mut put = piped(&server, "a");
        put.stdin.as_mut().unwrap().write_all(&content(2, 24 << 20)).unwrap();
        wait_for_stage(&server, "a", 16 << 20);
        // Recent stages are not removed with old ones.
        server.run(["rm", "--staged", "a", "--idle", "3600"]).ok();
        assert_eq!(server.run(["ls", "--staged", "--json"]).json().as_array().unwrap().len(), 1);
        server.run(removal).ok();
        let (code, stderr) = ended(put);
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("its staged fork was removed"), "{stderr}");
        let expected = if removal.len() == 3 { Some((1, 4096)) } else { None };
        match expected {
            Some(_) => assert_eq!(read(&server.uri, "a"), expected),
            None => drop(server.run(["get", "a"]).failed(1, &["does not exist"])),
        }
    }
}

#[test]
fn content_is_not_stored_in_the_head_of_a_new_stream() {
    let server = Server::in_memory();
    let mut child = piped(&server, "a");
    let mut input = child.stdin.take().unwrap();
    input.write_all(&content(1, 20 << 20)).unwrap();
    wait_for_stage(&server, "a", 1 << 20);
    server.run_with(["put", "--striped", "a", "-"], b"stream").ok();
    drop(input);
    let (code, stderr) = ended(child);
    assert!(code == 1 && stderr.contains("it is a stream, and stays as it is"), "{code}: {stderr}");
    assert_eq!(server.run(["get", "a"]).text(), "stream");
    // Nor is anything left of it: the head has no bytes.
    assert_eq!(server.run(["stat", "a", "--json"]).json()["bytes"], 0);
}

#[test]
fn a_server_that_is_started_again_meanwhile_is_waited_for() {
    let folder = harness::folder();
    let (store, address) = (file(&folder.path().join("store")), folder.path().join("socket"));
    let address = format!("unix:{}", address.display());
    let whole = content(5, 40 << 20);
    // Between two pieces of a long content, before its end, before it is staged, and before the only transaction of a short one.
    for (before, after) in [(24, 16), (24, 0), (12, 8), (4, 4)] {
        let server = Server::listen(&address, &store, &[]);
        let mut put = piped(&server, "a");
        let mut stdin = put.stdin.take().unwrap();
        let (begin, end) = (before << 20, (before + after) << 20);
        stdin.write_all(&whole[..begin]).unwrap();
        if before > 16 {
            wait_for_stage(&server, "a", 16 << 20);
        }
        server.kill();
        // A writer that waits for the server does not read on.
        let server = std::thread::scope(|scope| {
            let rest = &whole[begin..end];
            scope.spawn(move || stdin.write_all(rest).unwrap());
            Server::listen(&address, &store, &[])
        });
        let (code, stderr) = ended(put);
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(read(&server.uri, "a"), Some((5, end as u64)));
        assert_eq!(server.run(["ls", "--staged", "--json"]).json(), serde_json::json!([]));
    }
    // It is not waited for without end, and not by whoever asks for none of that.
    let server = Server::listen(&address, &store, &[]);
    let hasty = format!("{}?repeat_timeout=200ms", server.uri);
    let mut put = server.command(["put", "a", "--store", &hasty]);
    let mut put = put.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    put.stdin.as_mut().unwrap().write_all(&whole[..24 << 20]).unwrap();
    wait_for_stage(&server, "a", 16 << 20);
    server.kill();
    let (code, stderr) = ended(put);
    assert!(code == 1 && stderr.contains("object \"a\""), "{code}: {stderr}");
}

#[test]
fn a_put_that_is_interrupted_while_its_server_is_away_does_not_wait_for_it() {
    let folder = harness::folder();
    let (store, address) = (file(&folder.path().join("store")), folder.path().join("socket"));
    let address = format!("unix:{}", address.display());
    let server = Server::listen(&address, &store, &[]);
    server.run_with(["put", "a"], &content(1, 4096)).ok();
    let patient = format!("{address}?repeat_timeout=1h");
    let mut command = server.command(["put", "a", "--store", &patient]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut put = command.spawn().unwrap();
    let mut stdin = put.stdin.take().unwrap();
    stdin.write_all(&content(2, 24 << 20)).unwrap();
    wait_for_stage(&server, "a", 16 << 20);
    server.kill();
    let absent = harness::Absent::at(&address);
    // A writer that waits for the server does not read on.
    let rest = std::thread::spawn(move || drop(stdin.write_all(&content(3, 64 << 20))));
    absent.turn_away();
    kill_process(Pid::from_raw(put.id() as i32).unwrap(), Signal::INT).unwrap();
    let (code, stderr) = ended(put);
    rest.join().unwrap();
    assert!(code == 130 && stderr.contains("the command was interrupted"), "{code}: {stderr}");
    drop(absent);
    let server = Server::listen(&address, &store, &[]);
    assert_eq!(read(&server.uri, "a"), Some((1, 4096)));
}

#[test]
fn a_server_that_is_started_again_while_a_stream_is_put_is_waited_for() {
    let folder = harness::folder();
    let (store, address) = (file(&folder.path().join("store")), folder.path().join("socket"));
    let address = format!("unix:{}", address.display());
    let whole = content(6, 40 << 20);
    let server = Server::listen(&address, &store, &[]);
    let mut command = patient(&server, ["put", "a", "-", "--striped"]);
    let mut put =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = put.stdin.take().unwrap();
    stdin.write_all(&whole[..24 << 20]).unwrap();
    server.kill();
    // A writer that waits for the server does not read on.
    let server = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(&whole[24 << 20..]).unwrap());
        Server::listen(&address, &store, &[])
    });
    let (code, stderr) = ended(put);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(server.run(["get", "a"]).ok(), content(6, 40 << 20));
}

#[test]
fn a_server_that_is_started_again_while_content_is_fetched_is_waited_for() {
    let folder = harness::folder();
    let (store, address) = (file(&folder.path().join("store")), folder.path().join("socket"));
    let address = format!("unix:{}", address.display());
    let whole = content(7, 40 << 20);
    for put in [&["put", "a", "-"][..], &["put", "b", "-", "--striped"]] {
        let server = Server::listen(&address, &store, &[]);
        server.run_with(put, &whole).ok();
        let mut command = patient(&server, ["get", put[1]]);
        let mut get = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = get.stdout.take().unwrap();
        // The command has begun, and waits for its reader before it asks for the rest.
        let mut fetched = vec![0];
        stdout.read_exact(&mut fetched).unwrap();
        server.kill();
        let absent = harness::Absent::at(&address);
        let (_server, fetched) = std::thread::scope(|scope| {
            let rest = scope.spawn(move || {
                stdout.read_to_end(&mut fetched).unwrap();
                fetched
            });
            absent.turn_away();
            drop(absent);
            let server = Server::listen(&address, &store, &[]);
            (server, rest.join().unwrap())
        });
        let (code, stderr) = ended(get);
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(fetched == whole);
    }
}

#[test]
fn memory_is_bounded_however_long_the_stream_is() {
    let server = Server::in_memory();
    let mut put = piped(&server, "a");
    let mut stdin = put.stdin.take().unwrap();
    let whole = content(3, 256 << 20);
    stdin.write_all(&whole[..250 << 20]).unwrap();
    wait_for_stage(&server, "a", 200 << 20);
    let peak_kib = harness::Memory::of(put.id()).unwrap().peak_bytes >> 10;
    assert!(peak_kib < 100 << 10, "{peak_kib} KiB resident for a stream of 250 MiB");
    stdin.write_all(&whole[250 << 20..]).unwrap();
    drop(stdin);
    let (code, stderr) = ended(put);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(read(&server.uri, "a"), Some((3, 256 << 20)));
}

#[test]
fn reserved_names_are_hidden_and_not_taken_by_accident() {
    let server = Server::in_memory();
    for words in [&["put", "a", "--fork", ".nacre.staged.1"][..], &["write", "a", "x", "--fork", ".nacre.x"]]
    {
        server.run_with(words, b"x").failed(2, &["are reserved"]);
    }
    let mut put = piped(&server, "a");
    put.stdin.as_mut().unwrap().write_all(&content(2, 24 << 20)).unwrap();
    wait_for_stage(&server, "a", 16 << 20);
    // An object whose first content is still arriving has none.
    let stat = server.run(["stat", "a", "--json"]).json();
    assert_eq!((&stat["forks"], &stat["bytes"]), (&serde_json::json!([]), &serde_json::json!(0)));
    server.run(["get", "a"]).failed(1, &["object \"a\"", "still being stored", "nacre ls --staged"]);
    let staged = server.run(["ls", "--staged"]).text();
    assert!(staged.contains(".nacre.staged.") && staged.ends_with("  a"), "{staged}");
    let (code, stderr) = ended(put);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(read(&server.uri, "a"), Some((2, 24 << 20)));
}

#[test]
fn a_stream_that_has_lost_an_object_says_what_helps() {
    let server = Server::in_memory();
    server.run_with(["put", "video", "-", "--striped"], &content(1, 4096)).ok();
    let store = nacre::open(&server.uri).unwrap().blocking();
    let stripes = || -> Vec<String> {
        let objects = store.list().map(|object| object.unwrap().to_string());
        objects.filter(|object| object.starts_with(nacre::stream::PREFIX)).collect()
    };
    let lost = stripes().remove(0);
    assert!(store.object(&lost).unwrap().remove().unwrap());
    let missing = server.run(["get", "video"]);
    assert!(!missing.stderr.contains("scrub"), "{missing:?}");
    missing.failed(1, &[lost.as_str(), "is missing", "from a backup", "\"nacre rm\""]);
    // Both that it names help.
    server.run_with(["put", "video", "-", "--striped"], &content(2, 4096)).ok();
    assert_eq!(server.run(["get", "video"]).ok(), content(2, 4096));
    store.object(stripes().remove(0)).unwrap().remove().unwrap();
    server.run(["rm", "video"]).ok();
    assert_eq!(stripes(), [""; 0]);
}

#[test]
fn a_stream_whose_first_content_is_not_whole_is_no_empty_one() {
    let server = Server::in_memory();
    let mut command = server.command(["put", "video", "-", "--striped"]);
    let mut put = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // More than the pipe and the program's buffers take, so that a part is in the store.
    put.stdin.as_mut().unwrap().write_all(&content(1, 24 << 20)).unwrap();
    let refused = || server.run(["get", "video"]).failed(1, &["is no whole stream", "\"nacre rm\""]);
    refused();
    put.kill().unwrap();
    put.wait().unwrap();
    refused();
    server.run(["rm", "video"]).ok();
    server.run(["get", "video"]).failed(1, &["does not exist"]);
    let store = nacre::open(&server.uri).unwrap().blocking();
    assert_eq!(store.list().count(), 0);
}
