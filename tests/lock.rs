//! Locks by the command line: processes that lock interleaved bytes of one file, by one server or several.

mod harness;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{PATIENCE, Server, folder, program, run_with, side_by_side, wait};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

/// A pattern of every 64th byte.
const EVERY_64TH: &str = "vector(count=1024, block=1, stride=64)";

/// A command that holds a lock until the file `until` exists, and then ends with code 0. It makes the file `held` when it
/// has the lock.
struct Holder {
    child: Child,
}

impl Holder {
    #[track_caller]
    fn start(mut command: Command, flags: &[&str], held: &Path, until: &Path) -> Holder {
        // It ends with the test in any case, also if whoever was to wait for it was killed.
        let script = format!(
            "touch '{0}'; while test -e '{0}' && ! test -e '{1}'; do sleep 0.02; done",
            held.display(),
            until.display()
        );
        command.args(flags).args(["--", "sh", "-c", &script]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Holder { child }
    }

    #[track_caller]
    fn ends_well(mut self) {
        let status = wait(&mut self.child, PATIENCE);
        assert!(status.success(), "{status}");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).unwrap()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have been reaped already, in which case this does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a condition.
#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a command, again where a server did not answer in time, as one on a busy machine may not.
#[track_caller]
fn answered(run: impl Fn() -> harness::Ended) -> harness::Ended {
    for _ in 0..20 {
        let ended = run();
        if !ended.stderr.contains("did not answer in time") {
            return ended;
        }
    }
    run()
}

/// The lock requests that a server lists.
#[track_caller]
fn locks(server: &Server) -> Vec<Value> {
    let parts = server.run(["--json", "locks"]).json();
    let parts = parts.as_array().unwrap().iter();
    parts.flat_map(|part| part["report"]["locks"].as_array().unwrap().clone()).collect()
}

fn interleaved(command: impl Fn(&[&str]) -> Command, listed: impl Fn() -> Vec<Value>) {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let shifted = "view(displacement=1, of=vector(count=1024, block=1, stride=64))";
    let lock = command(&["lock", "results"]);
    let one = Holder::start(lock, &["--pattern", EVERY_64TH], &path("one"), &path("end"));
    // Another one takes the bytes between them at the same time.
    let two =
        Holder::start(command(&["lock", "results", "--pattern", shifted]), &[], &path("two"), &path("end"));
    eventually("both hold their bytes", || path("one").exists() && path("two").exists());
    let held = listed();
    assert_eq!(held.len(), 2, "{held:?}");
    assert!(held.iter().all(|lock| lock["state"] == "held" && lock["mode"] == "exclusive"), "{held:?}");
    // A third one wants a byte of the first.
    let third = ["lock", "results", "--pattern", "range(offset=6400, length=1)"];
    let third_with =
        |flags: &[&str]| answered(|| run_with(command(&[&third[..], flags, &["--", "true"]].concat()), b""));
    let refused = third_with(&["--try", "-E", "7"]);
    refused.failed(7, &["others hold some of the bytes"]);
    let late = third_with(&["--wait", "50ms"]);
    late.failed(1, &["others held some of the bytes"]);
    let waiting = Holder::start(command(&third), &[], &path("three"), &path("end"));
    eventually("it waits", || listed().iter().any(|lock| lock["state"] == "waits"));
    assert!(!path("three").exists());
    std::fs::write(path("end"), "").unwrap();
    for holder in [one, two, waiting] {
        holder.ends_well();
    }
    assert!(path("three").exists());
    // One that is busy may be told of the end of a session after the command has gone.
    eventually("nothing is locked", || listed().is_empty());
}

#[test]
fn interleaved_vectors_are_locked_at_once_over_a_unix_socket() {
    let server = Server::in_memory();
    interleaved(|words| server.command(words), || locks(&server));
}

#[test]
fn interleaved_vectors_are_locked_at_once_over_tcp_with_a_key() {
    let folder = folder();
    let key = folder.path().join("key");
    let mut keygen = program();
    keygen.arg("keygen").arg(&key);
    run_with(keygen, b"").ok();
    let key = key.to_str().unwrap();
    let server = Server::listen("127.0.0.1:0", "mem:", &["--key", key]);
    let command = |words: &[&str]| {
        let mut command = server.command(words);
        command.env("NACRE_KEY", key);
        command
    };
    let listed = || {
        let parts = run_with(command(&["--json", "locks"]), b"").json();
        parts[0]["report"]["locks"].as_array().unwrap().clone()
    };
    interleaved(command, listed);
}

/// A pattern and a command that ends at once.
fn with_lock(server: &Server, flags: &[&str], words: &[&str]) -> harness::Ended {
    answered(|| server.run([&["lock", "f"][..], flags, &["--"], words].concat()))
}

#[test]
fn an_unrolled_table_grants_the_same_but_no_pattern_of_millions_of_regions() {
    let unrolled = Server::start("mem:", &["--lock-table", "unrolled"]);
    interleaved(|words| unrolled.command(words), || locks(&unrolled));
    let millions = ["--pattern", "vector(count=2097152, block=1, stride=64)"];
    with_lock(&unrolled, &millions, &["true"]).failed(1, &["regions"]);
    with_lock(&Server::in_memory(), &millions, &["true"]).ok();
}

#[test]
fn exit_codes_are_those_of_the_command() {
    let server = Server::start("mem:", &["--lock-lease", "1h"]);
    let session = with_lock(&server, &[], &["sh", "-c", "echo $NACRE_FENCE"]).text();
    assert!(session.parse::<u64>().is_ok_and(|session| session > 0), "{session}");
    assert_eq!(with_lock(&server, &["--shared"], &["sh", "-c", "exit 17"]).code, 17);
    assert_eq!(with_lock(&server, &[], &["sh", "-c", "kill -9 $$"]).code, 128 + 9);
    with_lock(&server, &[], &["/nowhere/at/all"]).failed(127, &["cannot run /nowhere/at/all"]);
    with_lock(&server, &[], &["/etc"]).failed(126, &["cannot run /etc"]);
    for (pattern, part) in [
        ("vector(count=3, stride)", "at character"),
        ("range(offset=0)", "length"),
        ("vector(count=4611686018427387904, stride=1024)", "2^63"),
    ] {
        let ended = with_lock(&server, &["--pattern", pattern], &["true"]);
        assert!(ended.code == 2 && ended.stderr.contains(part), "{ended:?}");
    }
    let ended = with_lock(&server, &["--method", "posix", "--protocol", "two-phase"], &["true"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    eventually("every session has ended", || locks(&server).is_empty());
}

#[test]
fn a_folder_is_no_place_for_locks_of_commands() {
    let folder = folder();
    let uri = format!("file:{}", folder.path().join("store").display());
    let mut command = program();
    command.args(["lock", "f", "--store", &uri, "--", "true"]);
    run_with(command, &[]).failed(1, &["one process at a time", "nacre serve"]);
    assert!(!folder.path().join("store").exists());
}

#[test]
fn readers_share_bytes_that_a_writer_waits_for() {
    let (server, folder) = (Server::in_memory(), folder());
    let path = |name: &str| folder.path().join(name);
    let lock = || server.command(["lock", "f"]);
    let one = Holder::start(lock(), &["--shared"], &path("one"), &path("end"));
    let two = Holder::start(lock(), &["--shared"], &path("two"), &path("end"));
    eventually("both read", || path("one").exists() && path("two").exists());
    let writer = Holder::start(lock(), &[], &path("three"), &path("end"));
    eventually("the writer waits", || locks(&server).iter().any(|lock| lock["state"] == "waits"));
    // A reader that comes later does not pass it.
    with_lock(&server, &["--shared", "--try"], &["true"]).failed(1, &["others hold"]);
    std::fs::write(path("end"), "").unwrap();
    [one, two, writer].into_iter().for_each(Holder::ends_well);
}

/// The session that holds a lock on a server.
fn holder(server: &Server) -> u64 {
    locks(server).iter().find(|lock| lock["state"] == "held").unwrap()["session"].as_u64().unwrap()
}

/// Longer than a machine may let a process stand still, which would otherwise lose what it holds.
const LEASE: Duration = Duration::from_secs(12);
const LEASE_TEXT: &str = "12s";

#[test]
fn leases_end() {
    side_by_side(&[
        what_a_killed_client_held_goes_to_the_next_and_its_session_is_fenced,
        a_client_that_was_stopped_for_longer_than_its_lease_writes_nothing_more,
        a_restarted_server_learns_who_holds_what_and_serves_those_who_wait,
        a_client_away_for_longer_than_its_lease_has_lost_its_lock_though_a_restarted_server_would_still_take_it,
        who_does_not_come_back_to_a_restarted_server_is_fenced,
        several_servers_share_the_bytes_of_a_file,
    ]);
}

fn what_a_killed_client_held_goes_to_the_next_and_its_session_is_fenced() {
    let (server, folder) = (Server::start("mem:", &["--lock-lease", LEASE_TEXT]), folder());
    let path = |name: &str| folder.path().join(name);
    let mut killed = Holder::start(server.command(["lock", "f"]), &[], &path("held"), &path("end"));
    eventually("it holds", || path("held").exists());
    let session = holder(&server).to_string();
    server.run(["write", "f", "before", "--fence", &session]).ok();
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let next = with_lock(&server, &[], &["sh", "-c", "echo $NACRE_FENCE"]).text();
    assert!(next.parse::<u64>().unwrap() > session.parse().unwrap());
    server.run(["write", "f", "after", "--fence", &session]).failed(1, &["is fenced"]);
    server.run(["write", "f", "after", "--fence", &next]).ok();
    assert_eq!(server.run(["--json", "stat", "f"]).json()["fenced_sessions"], 1);
    std::fs::write(path("end"), "").unwrap();
}

fn a_client_that_was_stopped_for_longer_than_its_lease_writes_nothing_more() {
    let (server, folder) = (Server::start("mem:", &["--lock-lease", LEASE_TEXT]), folder());
    let path = |name: &str| folder.path().join(name);
    let nacre = env!("CARGO_BIN_EXE_nacre");
    // The command itself is not stopped, and knows nothing of its lock's loss.
    let script = format!(
        "trap '' TERM; touch '{0}/held'; while ! test -e '{0}/go'; do sleep 0.02; done; \
         '{nacre}' write f stale 2>'{0}/said'; echo $? >'{0}/code.new'; mv '{0}/code.new' '{0}/code'",
        folder.path().display()
    );
    let mut command = server.command(["lock", "f", "--", "sh", "-c", &script]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stopped = Holder { child };
    eventually("it holds", || path("held").exists());
    kill_process(stopped.pid(), Signal::STOP).unwrap();
    with_lock(&server, &[], &[nacre, "write", "f", "fresh"]).ok();
    std::fs::write(path("go"), "").unwrap();
    eventually("it has written", || path("code").exists());
    assert_eq!(std::fs::read_to_string(path("code")).unwrap(), "1\n");
    assert!(std::fs::read_to_string(path("said")).unwrap().contains("is fenced"));
    kill_process(stopped.pid(), Signal::CONT).unwrap();
    assert_eq!(wait(&mut stopped.child, PATIENCE).code(), Some(1), "it says that its lock is lost");
    assert_eq!(server.run(["read", "f"]).text(), "fresh");
}

fn a_restarted_server_learns_who_holds_what_and_serves_those_who_wait() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let address = format!("unix:{}", path("socket").display());
    let store = harness::file(&path("store"));
    // Who cannot renew its lease while the server starts gives up by its own clock.
    let start = || Server::listen(&address, &store, &["--lock-lease", LEASE_TEXT]);
    let server = start();
    let holder = Holder::start(server.command(["lock", "f"]), &[], &path("one"), &path("end"));
    eventually("it holds", || path("one").exists());
    let waiting = Holder::start(server.command(["lock", "f"]), &[], &path("two"), &path("end"));
    eventually("the other waits", || locks(&server).iter().any(|lock| lock["state"] == "waits"));
    server.kill();
    let server = start();
    // Nothing is granted before those who held something could say so.
    with_lock(&server, &["--wait", "17s"], &["true"]).failed(1, &["others held"]);
    let listed = locks(&server);
    assert!(listed.iter().any(|lock| lock["state"] == "held"), "{listed:?}");
    assert!(listed.iter().any(|lock| lock["state"] == "waits"), "{listed:?}");
    assert!(!path("two").exists());
    std::fs::write(path("end"), "").unwrap();
    holder.ends_well();
    waiting.ends_well();
    assert!(path("two").exists());
    // One that ends without sessions needs no grace period.
    server.stop(Signal::TERM);
    let server = start();
    with_lock(&server, &["--try"], &["true"]).ok();
}

fn a_client_away_for_longer_than_its_lease_has_lost_its_lock_though_a_restarted_server_would_still_take_it() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let address = format!("unix:{}", path("socket").display());
    let store = harness::file(&path("store"));
    let start = || Server::listen(&address, &store, &["--lock-lease", LEASE_TEXT]);
    let server = start();
    let mut away = Holder::start(server.command(["lock", "f"]), &[], &path("one"), &path("end"));
    eventually("it holds", || path("one").exists());
    let session = holder(&server).to_string();
    kill_process(away.pid(), Signal::STOP).unwrap();
    let begin = Instant::now();
    server.kill();
    let server = start();
    // The server takes what is asserted until a fifth more than the lease is over.
    eventually("its lease is over", || begin.elapsed() > LEASE);
    kill_process(away.pid(), Signal::CONT).unwrap();
    assert_eq!(wait(&mut away.child, PATIENCE).code(), Some(1), "it says that its lock is lost");
    with_lock(&server, &["--wait", "60s"], &["true"]).ok();
    server.run(["write", "f", "late", "--fence", &session]).failed(1, &["is fenced"]);
    std::fs::write(path("end"), "").unwrap();
}

fn who_does_not_come_back_to_a_restarted_server_is_fenced() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let address = format!("unix:{}", path("socket").display());
    let store = harness::file(&path("store"));
    let start = || Server::listen(&address, &store, &["--lock-lease", LEASE_TEXT]);
    let server = start();
    let mut gone = Holder::start(server.command(["lock", "f"]), &[], &path("one"), &path("end"));
    eventually("it holds", || path("one").exists());
    let session = holder(&server).to_string();
    gone.child.kill().unwrap();
    gone.child.wait().unwrap();
    server.kill();
    let server = start();
    with_lock(&server, &[], &["true"]).ok();
    server.run(["write", "f", "late", "--fence", &session]).failed(1, &["is fenced"]);
    std::fs::write(path("end"), "").unwrap();
}

#[test]
fn an_administrator_breaks_a_session() {
    let (server, folder) = (Server::in_memory(), folder());
    let path = |name: &str| folder.path().join(name);
    let mut broken = Holder::start(server.command(["lock", "f"]), &[], &path("one"), &path("end"));
    eventually("it holds", || path("one").exists());
    let session = holder(&server).to_string();
    server.run(["locks", "break", "4711"]).failed(1, &["no lock session 4711"]);
    server.run(["locks", "break", &session]).ok();
    with_lock(&server, &["--wait", "60s"], &["true"]).ok();
    server.run(["write", "f", "late", "--fence", &session]).failed(1, &["is fenced"]);
    // Its command is told to end when it learns that, and it says why.
    assert_eq!(wait(&mut broken.child, PATIENCE).code(), Some(1));
    let mut said = String::new();
    broken.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("is lost") && said.contains("it was broken there"), "{said}");
}

fn several_servers_share_the_bytes_of_a_file() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let (servers, uri) =
        Server::together(folder.path(), &["mem:", "mem:", "mem:"], &["--lock-lease", LEASE_TEXT]);
    let command = |words: &[&str]| {
        let mut command = program();
        command.env("NACRE_STORE", &uri).args(words);
        command
    };
    // A byte of every stripe of every server.
    let pattern = ["--pattern", "vector(count=300, block=1, stride=65536)"];
    for protocol in ["two-phase", "one-try", "alt-try"] {
        let words = [&["lock", "f", "--protocol", protocol][..], &pattern, &["--", "true"]].concat();
        run_with(command(&words), b"").ok();
    }
    let mut holder = Holder::start(command(&["lock", "f"]), &pattern, &path("one"), &path("end"));
    eventually("it holds", || path("one").exists());
    let parts = run_with(command(&["--json", "locks"]), b"").json();
    let held: Vec<usize> = parts
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["report"]["locks"].as_array().unwrap().len())
        .collect();
    assert_eq!(held, [1, 1, 1]);
    let session = parts[0]["report"]["locks"][0]["session"].to_string();
    let others = ["lock", "f", "--pattern", "range(offset=65537, length=65535)", "--try", "--", "true"];
    answered(|| run_with(command(&others), b"")).ok();
    let its = ["lock", "f", "--pattern", "range(offset=65536, length=1)", "--try", "--", "true"];
    answered(|| run_with(command(&its), b"")).failed(1, &["others hold"]);
    // The fence goes to the one server that keeps the object, whichever server granted the bytes.
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    run_with(command(&["lock", "f", "--", "true"]), b"").ok();
    run_with(command(&["write", "f", "late", "--fence", &session]), b"").failed(1, &["is fenced"]);
    std::fs::write(path("end"), "").unwrap();
    drop(servers);
}

#[test]
fn locks_are_listed_and_broken_where_the_servers_answer_and_the_others_are_named() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let (mut servers, uri) = Server::together(folder.path(), &["mem:", "mem:", "mem:"], &[]);
    let command = |words: &[&str]| {
        let mut command = program();
        command.env("NACRE_STORE", &uri).args(words);
        command
    };
    let slow = run_with(command(&["lock", "f", "--protocol", "two-phase", "--", "true"]), b"");
    slow.failed(1, &["two-phase", "rounds", "alt-try"]);
    // A byte of the first server, which numbers sessions, and nothing of the others.
    let pattern = ["--pattern", "range(offset=0, length=1)"];
    let holder = Holder::start(command(&["lock", "f"]), &pattern, &path("one"), &path("end"));
    eventually("it holds", || path("one").exists());
    servers.pop().unwrap().kill();
    let away = format!("unix:{}", path("socket-2").display());
    let listed = run_with(command(&["locks"]), b"");
    assert!(String::from_utf8_lossy(&listed.stdout).contains("held"), "{listed:?}");
    listed.failed(1, &["not all lock servers answered", &away]);
    let listed = run_with(command(&["--json", "locks"]), b"");
    let parts: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed.code, 1);
    assert!(parts[2]["place"] == *away && parts[2]["error"].is_string(), "{parts}");
    let session = parts[0]["report"]["locks"][0]["session"].to_string();
    let unknown = run_with(command(&["locks", "break", "4711"]), b"");
    unknown.failed(1, &["4711 is unknown at", "not all lock servers answered", &away]);
    let broken = run_with(command(&["locks", "break", &session]), b"");
    broken.failed(1, &["is broken at", "socket-0", "and unknown at", "socket-1", &away]);
    drop((holder, servers));
}

#[test]
fn a_store_without_lock_servers_says_so() {
    let server = Server::start("mem:", &["--roles", "store"]);
    with_lock(&server, &[], &["true"]).failed(1, &["without the role lock"]);
    server.run(["locks"]).failed(1, &["without the role lock"]);
    server.run(["locks", "break", "1"]).failed(1, &["without the role lock"]);
    let folder = folder();
    let mut command = program();
    command.args(["lock", "f", "--store", &harness::file(&folder.path().join("s")), "--", "true"]);
    let ended = run_with(command, b"");
    assert_eq!(ended.code, 1, "{ended:?}");
}

#[test]
fn the_pages_show_locks() {
    let server = Server::start("mem:", &["--http", "127.0.0.1:0"]);
    let pages = server.ready["http"].as_str().unwrap().to_owned();
    // It ends when its input does.
    let mut command = server.command(["lock", "f", "--", "sh", "-c", "cat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    eventually("it holds", || locks(&server).iter().any(|lock| lock["state"] == "held"));
    let (_, metrics) = harness::reflect::http(&pages, "GET", "/metrics", "");
    for line in ["nacre_lock_sessions 1.0", "nacre_lock_requests 1.0", "nacre_lock_waiting 0.0"] {
        assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
    }
    let (_, page) = harness::reflect::http(&pages, "GET", "/", "");
    assert!(page.contains("<h2>lock</h2>") && page.contains("exclusive"), "{page}");
    drop(child.stdin.take());
    assert!(wait(&mut child, PATIENCE).success());
}

#[test]
fn names_of_files_are_typed_and_shown_as_those_of_objects() {
    let (server, folder) = (Server::in_memory(), folder());
    let path = |name: &str| folder.path().join(name);
    let holder_of_it = server.command(["lock", "caf\\xc3\\xa9"]);
    let mut holding = Holder::start(holder_of_it, &[], &path("one"), &path("end"));
    eventually("it holds", || path("one").exists());
    let refused = answered(|| server.run(["lock", "café", "--try", "--", "true"]));
    refused.failed(1, &["others hold", "\"café\""]);
    assert_eq!(locks(&server)[0]["file"], "café");
    let session = holder(&server).to_string();
    server.run(["locks", "break", &session]).ok();
    server.run(["lock", "café", "--wait", "60s", "--", "true"]).ok();
    server.run(["write", "caf\\xc3\\xa9", "late", "--fence", &session]).failed(1, &["is fenced"]);
    assert_eq!(wait(&mut holding.child, PATIENCE).code(), Some(1));
    // No name brings its own lines and colours to a terminal.
    let typed = "a\\\\b\\x0ac\\x1b[31m";
    let holding = Holder::start(server.command(["lock", typed]), &[], &path("two"), &path("end"));
    eventually("it holds", || path("two").exists());
    assert_eq!(locks(&server)[0]["file"], typed);
    for words in [&["locks"][..], &["locks", typed]] {
        let listed = server.run(words).text();
        assert!(listed.contains(typed) && !listed.contains('\u{1b}'), "{listed:?}");
    }
    assert!(!server.run(["locks", "café"]).text().contains("a\\\\b"));
    let refused = answered(|| server.run(["lock", typed, "--try", "--", "true"]));
    refused.failed(1, &[typed]);
    std::fs::write(path("end"), "").unwrap();
    holding.ends_well();
    for (wrong, parts) in [("\\xff", ["UTF-8", "\\xff"]), ("", ["0 bytes", "1 to 255"])] {
        let ended = server.run(["lock", wrong, "--", "true"]);
        assert!(ended.code == 2 && parts.iter().all(|part| ended.stderr.contains(part)), "{ended:?}");
    }
}

#[test]
fn whoever_does_not_wait_is_told_of_the_grace_period() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let address = format!("unix:{}", path("socket").display());
    let store = harness::file(&path("store"));
    // Longer than a start and a few commands take on a busy machine.
    let start = || Server::listen(&address, &store, &["--lock-lease", "60s"]);
    let server = start();
    let holder = Holder::start(server.command(["lock", "held"]), &[], &path("one"), &path("end"));
    eventually("it holds", || path("one").exists());
    server.kill();
    let server = start();
    for words in [&["--try"][..], &["--try", "--protocol", "two-phase"], &["--wait", "50ms"]] {
        let said = with_lock(&server, &[words, &["-E", "7"]].concat(), &["true"]);
        said.failed(7, &["was started again", "former clients"]);
    }
    let report = server.run(["--json", "locks"]).json()[0]["report"].clone();
    assert!(report["in_grace"] == true && report["grace_left_ms"].as_u64().unwrap() > 0, "{report}");
    std::fs::write(path("end"), "").unwrap();
    holder.ends_well();
}

#[test]
fn a_command_waits_for_a_server_that_is_being_restarted_and_not_for_ever() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = harness::file(&folder.path().join("store"));
    let server = Server::listen(&address, &store, &[]);
    with_lock(&server, &[], &["true"]).ok();
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let commands: &[&[&str]] =
        &[&["lock", "file", "--", "true"], &["lock", "file", "--wait", "60s", "--", "true"]];
    let (server, ended) = harness::run_while_away(&address, &store, commands);
    ended.into_iter().for_each(|ended| drop(ended.ok()));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    for flags in [&["--try"][..], &["--wait", "60s"], &[]] {
        let mut command = harness::program();
        command.env("NACRE_STORE", format!("{address}?repeat_timeout=100ms"));
        command.args(["lock", "file"]).args(flags).args(["--", "true"]);
        harness::run_with(command, b"").failed(1, &["cannot reach the server"]);
    }
}

#[test]
fn a_time_limit_holds_while_the_server_does_not_answer() {
    let server = Server::in_memory();
    server.signal(Signal::STOP);
    for flags in [&["--try"][..], &["--wait", "200ms"]] {
        let ended = server.run([&["lock", "f"][..], flags, &["--", "true"]].concat());
        assert!(
            ended.code != 0 && ended.stderr.contains("a lock server did not answer in time"),
            "{ended:?}"
        );
    }
    server.signal(Signal::CONT);
    with_lock(&server, &["--wait", "60s"], &["true"]).ok();
}

#[test]
fn the_records_of_a_lock_server_are_removed_only_by_force_and_where_none_runs() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = harness::file(&folder.path().join("store"));
    let server = Server::listen(&address, &store, &[]);
    with_lock(&server, &[], &["true"]).ok();
    assert!(server.run(["ls"]).text().contains("nacre/locks"));
    server.run(["rm", "nacre/locks"]).failed(1, &["\"nacre/locks\"", "lock server's records", "--force"]);
    server.run(["rm", "nacre/locks-1"]).failed(1, &["lock server's records"]);
    server.run(["rm", "nacre/locks-of-mine"]).failed(1, &["does not exist"]);
    assert!(server.run(["ls"]).text().contains("nacre/locks"));
    server.run(["rm", "nacre/locks", "--force"]).failed(1, &["\"nacre/locks\"", "without the role lock"]);
    server.stop(Signal::TERM);
    let server = Server::listen(&address, &store, &["--roles", "store"]);
    server.run(["rm", "nacre/locks", "--force"]).ok();
    assert!(!server.run(["ls"]).text().contains("nacre/locks"));
}

#[test]
fn signals_are_handed_on_to_the_command() {
    let (server, folder) = (Server::in_memory(), folder());
    let path = |name: &str| folder.path().join(name);
    // Whatever the signals do where the test runs.
    let lock = |signals: &str| {
        let nacre = server.command(["lock", "f"]);
        let mut command = Command::new("env");
        command.arg(signals).arg(nacre.get_program()).args(nacre.get_args());
        for (name, value) in nacre.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    };
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let held = path(name);
        let script = format!(
            "trap 'exit 9' {name}; touch '{0}'; while test -e '{0}'; do sleep 0.02; done",
            held.display()
        );
        let mut command = lock("--default-signal");
        command.args(["--", "sh", "-c", &script]);
        let mut holding = Holder { child: command.stdin(Stdio::null()).spawn().unwrap() };
        eventually("it holds", || held.exists());
        // One that waits ends by the signal, and waits no longer.
        let mut waiting = Holder::start(lock("--default-signal"), &[], &path("never"), &path("end"));
        eventually("it waits", || locks(&server).iter().any(|lock| lock["state"] == "waits"));
        kill_process(waiting.pid(), signal).unwrap();
        assert_eq!(harness::shell_code(wait(&mut waiting.child, PATIENCE)), 128 + signal.as_raw(), "{name}");
        eventually(name, || locks(&server).iter().all(|lock| lock["state"] == "held"));
        kill_process(holding.pid(), signal).unwrap();
        assert_eq!(wait(&mut holding.child, PATIENCE).code(), Some(9), "{name}");
    }
    // nohup(1) goes for the command too.
    let ignoring = Holder::start(lock("--ignore-signal=HUP"), &[], &path("two"), &path("end"));
    eventually("it holds", || path("two").exists());
    kill_process(ignoring.pid(), Signal::HUP).unwrap();
    with_lock(&server, &["--try"], &["true"]).failed(1, &["others hold"]);
    std::fs::write(path("end"), "").unwrap();
    ignoring.ends_well();
}

#[test]
fn a_lock_within_a_lock_has_a_session_of_its_own() {
    let server = Server::in_memory();
    let nacre = env!("CARGO_BIN_EXE_nacre");
    let inner = format!("echo $NACRE_FENCE; exec '{nacre}' lock g -- sh -c 'echo $NACRE_FENCE'");
    let sessions = with_lock(&server, &[], &["sh", "-c", &inner]).text();
    let sessions: Vec<u64> = sessions.lines().map(|line| line.parse().unwrap()).collect();
    assert!(sessions.len() == 2 && sessions[1] == sessions[0] + 1, "{sessions:?}");
    server.run(["lock", "f", "--fence", "3", "--", "true"]).failed(2, &["--fence is not for \"nacre lock\""]);
    server.run(["--fence", "3", "lock", "f", "--", "true"]).failed(2, &["--fence is not for \"nacre lock\""]);
    let mut command = server.command(["read", "f"]);
    command.env("NACRE_FENCE", "abc");
    run_with(command, b"").failed(2, &["NACRE_FENCE is \"abc\"", "not the number of a lock session"]);
    for words in [&["read", "f", "--fence", "abc"][..], &["locks", "break", "abc"]] {
        let ended = server.run(words);
        assert!(ended.code == 2 && ended.stderr.contains("not the number of a lock session"), "{ended:?}");
    }
}

#[test]
fn settings_of_a_lock_server_that_make_no_sense_are_refused_by_their_names() {
    for (flags, parts) in [
        (&["--lock-stripe", "0"][..], ["--lock-stripe", "1PiB"]),
        (&["--lock-lease", "2h"], ["--lock-lease", "500ms to 1h"]),
        (&["--lock-lease", "1ms"], ["--lock-lease", "500ms to 1h"]),
        (&["--roles", "store", "--lock-lease", "5s"], ["--lock-lease", "--roles store,lock"]),
        (&["--roles", "reflect", "--lock-stripe", "1MiB"], ["--lock-stripe", "--roles store,lock"]),
        (&["--roles", "lock"], ["the role lock", "with the role store"]),
    ] {
        let folder = folder();
        let mut command = program();
        command.current_dir(folder.path()).arg("serve").args(flags);
        let ended = run_with(command, b"");
        assert!(ended.code != 0 && parts.iter().all(|part| ended.stderr.contains(part)), "{ended:?}");
    }
}

#[test]
fn the_watchdog_of_a_rank_kills_it_when_that_is_due_and_not_before() {
    let now = || {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let due = now() + Duration::from_millis(300);
    let page = File::from(memfd_create("page", MemfdFlags::CLOEXEC).unwrap());
    page.write_all_at(&(due.as_nanos() as u64).to_le_bytes(), 0).unwrap();
    let mut rank = Command::new("sh").args(["-c", "exec sleep 600"]).spawn().unwrap();
    let handle = pidfd_open(Pid::from_child(&rank), PidfdFlags::empty()).unwrap();
    kill_process(Pid::from_child(&rank), Signal::STOP).unwrap();
    let mut watchdog = program();
    watchdog.args(["mpirun-watchdog", &rank.id().to_string(), "10"]).stdin(page).stdout(handle);
    assert!(watchdog.status().unwrap().success());
    assert_eq!(rank.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    assert!(now() >= due, "it was killed too early");
}
