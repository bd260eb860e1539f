//! The services on a pool of a Ceph cluster: files and a mount, sequencers whose daemons are killed, and shared logs, also by their class
//! in the OSDs.

#[path = "../crates/rados/tests/cluster/mod.rs"]
mod cluster;
mod harness;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cluster::Cluster;
use harness::{Ended, PATIENCE, Server, folder, program, run_with, tree, wait};
use nacre_class::{Bounds, Request, errno, packed};
use nacre_object::ObjectId;
use nacre_object::testkit::block_on;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

#[track_caller]
fn nacre(uri: &str, words: &[&str]) -> Ended {
    let mut command = program();
    command.args(["--store", uri]).args(words);
    run_with(command, b"")
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place * 7 + place / 251) as u8).collect()
}

#[track_caller]
fn check_is_clean(uri: &str) {
    let report = nacre(uri, &["fs", "check", "--json"]).json();
    assert_eq!((&report["clean"], &report["ranks"]), (&true.into(), &0.into()), "{report}");
}

/// A mount, which is ended and taken off its directory when the test is over.
struct Mounted {
    child: Child,
    root: PathBuf,
}

impl Mounted {
    #[track_caller]
    fn new(uri: &str, root: &Path) -> Mounted {
        tree::require_root();
        fs::create_dir_all(root).unwrap();
        let mut command = program();
        command.args(["--store", uri, "mount"]).arg(root);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        if !lines.any(|line| line.unwrap() == "ready") {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("it was not mounted: {said}");
        }
        Mounted { child, root: root.to_owned() }
    }

    /// Asks it to end, and waits until it has.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert_eq!(wait(&mut self.child, PATIENCE).code(), Some(0));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.root).stderr(Stdio::null()).status();
    }
}

#[track_caller]
fn sh(folder: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).current_dir(folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn files_are_put_moved_and_fetched_by_commands_and_through_a_mount() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("files");
    let folder = folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    nacre(&uri, &["fs", "ls"]).failed(1, &["no namespace yet", "nacre fs mkdir"]);
    nacre(&uri, &["fs", "mkdir", "-p", "/a/b"]).ok();
    nacre(&uri, &["fs", "mkdir", "/wide", "--object-size", "128MiB"])
        .failed(1, &["cannot create /wide", "134217728 bytes in one at most"]);

    // Longer than one object of its layout: it is spread over four, and over the next four.
    nacre(&uri, &["fs", "mkdir", "/narrow", "--object-size", "16MiB"]).ok();
    let large = content((70 << 20) + 12_345);
    fs::write(path("large"), &large).unwrap();
    fs::write(path("small"), "a few bytes").unwrap();
    nacre(&uri, &["fs", "put", &path("large"), "/narrow/"]).ok();
    nacre(&uri, &["fs", "put", &path("small"), "/a/"]).ok();
    nacre(&uri, &["fs", "mv", "/narrow/large", "/a/b/moved"]).ok();
    nacre(&uri, &["fs", "ln", "/a/small", "/a/b/hard"]).ok();
    assert_eq!(nacre(&uri, &["fs", "ls", "/a/b"]).text(), "hard\nmoved");
    assert_eq!(nacre(&uri, &["fs", "ls", "/narrow"]).text(), "");
    nacre(&uri, &["fs", "get", "/a/b/moved", &path("back")]).ok();
    assert!(fs::read(path("back")).unwrap() == large);
    assert_eq!(nacre(&uri, &["fs", "cat", "/a/b/hard"]).ok(), b"a few bytes");
    let report = nacre(&uri, &["fs", "check", "--json"]).json();
    assert_eq!((&report["clean"], &report["objects"]), (&true.into(), &9.into()), "{report}");
    // Replaced by less, its objects are gone.
    nacre(&uri, &["fs", "put", &path("small"), "/a/b/moved"]).ok();
    let report = nacre(&uri, &["fs", "check", "--json"]).json();
    assert_eq!((&report["clean"], &report["objects"]), (&true.into(), &2.into()), "{report}");

    // Nobody grants locks in front of a pool that has no servers.
    fs::create_dir(path("none")).unwrap();
    nacre(&uri, &["mount", &path("none"), "--locks", "shared"]).failed(1, &["no lock server", "store,lock"]);
    let mount = folder.path().join("mount");
    let mounted = Mounted::new(&uri, &mount);
    sh(folder.path(), "mkdir -p source/d; seq 1 20000 >source/d/numbers; ln -s d/numbers source/link");
    sh(folder.path(), "cp -r source mount/copy; diff -r source mount/copy; cat mount/a/small");
    sh(&mount, "mv copy/d a/d; ln a/d/numbers again; echo more >>again; tail -n 1 a/d/numbers | grep more");
    // What others change shows at once.
    nacre(&uri, &["fs", "mv", "/again", "/a/b/again"]).ok();
    sh(&mount, "test ! -e again; test -s a/b/again; rm -r copy");
    assert_eq!(nacre(&uri, &["fs", "ls", "/"]).text(), "a\nnarrow");
    mounted.stop();
    check_is_clean(&uri);
}

/// Ends what runs beside a test, also if the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts a daemon that may be a metadata rank of a pool.
#[track_caller]
fn rank(folder: &Path, name: &str, uri: &str) -> Server {
    let address = format!("unix:{}", folder.join(name).display());
    Server::listen(&address, uri, &["--roles", "store,meta", "--meta-takeover", "2s"])
}

#[test]
fn a_position_is_taken_once_while_the_daemons_of_a_rank_are_killed() {
    let cluster = Cluster::shared();
    // A rank takes its time to take over on a busy machine.
    let pool = cluster.uri("ranks");
    let (uri, impatient) = (format!("{pool}&repeat_timeout=120s"), format!("{pool}&repeat_timeout=100ms"));
    let folder = folder();
    let none = ["no metadata rank", "nacre serve --roles store,meta"];
    nacre(&impatient, &["sequencer", "next", "log"]).failed(1, &none);
    nacre(&uri, &["fs", "mkdir", "/jobs"]).ok();
    nacre(&impatient, &["fs", "create", "--type", "sequencer", "/jobs/log"]).failed(1, &none);

    let first = rank(folder.path(), "first", &uri);
    nacre(&uri, &["sequencer", "create", "log", "--policy", "hold=10ms"]).ok();
    nacre(&uri, &["sequencer", "create", "/jobs/log"]).ok();
    assert_eq!(nacre(&uri, &["fs", "call", "/jobs/log", "next"]).text(), "0");
    let second = rank(folder.path(), "second", &uri);
    let (over, taken) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let ending = Ending(&over);
        // A program that caches the sequencer, and commands that ask the rank.
        let caching = scope.spawn(|| {
            let store = nacre::open(&uri).unwrap().blocking();
            let log = store.sequencer("log").unwrap();
            let mut last = None;
            while !over.load(Ordering::Relaxed) {
                let position = log.next().unwrap();
                assert!(last < Some(position), "{position} comes after {last:?}");
                last = Some(position);
                taken.lock().unwrap().push(position);
                // Others are to get their turn, and the list is to stay short.
                std::thread::sleep(Duration::from_millis(1));
            }
            block_on(store.nonblocking().end_sequencers());
        });
        let next = || {
            let text = nacre(&uri, &["sequencer", "next", "log", "-n", "3"]).text();
            taken.lock().unwrap().extend(text.lines().map(|line| line.parse::<u64>().unwrap()));
        };
        next();
        first.kill();
        let killed = Instant::now();
        (0..3).for_each(|_| next());
        println!("positions are taken again after {:?}", killed.elapsed());
        let third = rank(folder.path(), "third", &uri);
        // Nobody can hand over while nobody stands by.
        let begun = Instant::now();
        while nacre(&uri, &["fail", "0"]).code != 0 {
            assert!(begun.elapsed() < PATIENCE, "nobody stands by");
        }
        (0..3).for_each(|_| next());
        let ranks = nacre(&uri, &["rank", "ls", "--json"]).json();
        assert!(ranks[0]["epoch"].as_u64().unwrap() >= 3, "{ranks}");
        second.kill();
        (0..3).for_each(|_| next());
        // A client of a daemon takes part, whose store is the same.
        let of_daemon = format!("{}?repeat_timeout=120s", third.uri);
        let text = nacre(&of_daemon, &["sequencer", "next", "log"]).text();
        taken.lock().unwrap().push(text.parse().unwrap());
        assert!(nacre(&uri, &["sequencer", "next", "/jobs/log"]).text().parse::<u64>().unwrap() >= 1);
        // The last daemon outlives the program, which may be about to ask it.
        drop(ending);
        caching.join().unwrap();
    });
    let taken = taken.into_inner().unwrap();
    let all: BTreeSet<u64> = taken.iter().copied().collect();
    assert_eq!(all.len(), taken.len(), "a position was taken twice");
    assert!(taken.len() > 30, "{} positions were taken", taken.len());
    check_is_clean(&uri);
}

#[test]
fn a_metadata_rank_with_a_key_is_reached_from_the_pool() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("key");
    let folder = folder();
    let key = folder.path().join("key").to_str().unwrap().to_owned();
    let mut keygen = program();
    keygen.args(["keygen", &key]);
    run_with(keygen, b"").ok();
    let _server = Server::listen("127.0.0.1:0", &uri, &["--roles", "store,meta", "--key", &key]);
    let patient = format!("{uri}&repeat_timeout=120s");
    nacre(&patient, &["sequencer", "create", "log", "--key", &key]).ok();
    assert_eq!(nacre(&format!("{patient}&key={key}"), &["sequencer", "next", "log"]).text(), "0");
    nacre(&format!("{uri}&repeat_timeout=100ms"), &["sequencer", "next", "log"]).failed(1, &["\"log\""]);
}

#[test]
fn a_log_is_used_by_commands_and_by_its_class_in_the_osds() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("zlog");
    let zlog = |words: &[&str]| nacre(&uri, &[&["zlog"], words].concat());
    zlog(&["create", "l", "--width", "1"]).ok();
    let names = nacre(&uri, &["ls"]).text();
    let name = names.lines().find(|name| name.starts_with("nacre/zlog/") && name.ends_with(".0")).unwrap();
    assert_eq!(zlog(&["append", "l", "one", "two", "--tag", "red"]).text(), "0\n1");
    assert_eq!(zlog(&["append", "l", "three"]).text(), "2");
    assert_eq!(zlog(&["follow", "l", "--from", "0", "--count", "3"]).text(), "one\ntwo\nthree");

    let store = nacre::open(&uri).unwrap();
    let class = include_str!("../classes/zlog.lua").to_owned().into();
    block_on(store.classes().put("zlog", class, Bounds::default())).unwrap();
    let object: ObjectId = name.parse().unwrap();
    let call = |method: &str, arguments: Value| {
        let input = packed::pack(arguments.as_array().unwrap()).unwrap();
        block_on(store.classes().call(&Request::new(&object, "zlog", method).input(input)))
    };
    let read = |epoch: u64, place: u64| packed::unpack(&call("read", json!([epoch, place])).unwrap().output);
    assert_eq!(read(1, 1).unwrap(), [json!("entry"), json!("two"), json!(["red"])]);
    // Each place is written once, whoever writes it.
    assert_eq!(call("write", json!([1, 2, "again"])).unwrap_err().errno(), errno::EEXIST);
    call("write", json!([1, 3, "four", ["blue"], 7])).unwrap();
    assert_eq!(zlog(&["read", "l", "3"]).text(), "four");
    assert_eq!(zlog(&["append", "l", "five"]).text(), "4");
    zlog(&["trim", "l", "2", "--before"]).ok();
    assert_eq!(read(1, 1).unwrap(), [json!("trimmed")]);
    let sealed = zlog(&["seal", "l", "--json"]).json();
    assert_eq!((&sealed["epoch"], &sealed["tail"]), (&json!(2), &json!(5)));
    assert_eq!(call("read", json!([1, 2])).unwrap_err().errno(), errno::ESTALE);
    assert_eq!(read(2, 2).unwrap()[1], json!("three"));
    zlog(&["reshape", "l", "--width", "2"]).ok();
    assert_eq!(zlog(&["append", "l", "six"]).text(), "5");
    assert_eq!(zlog(&["follow", "l", "--from", "4", "--count", "2", "-p"]).text(), "4\tfive\n5\tsix");
    let checked = zlog(&["check", "l", "--json"]).json();
    assert_eq!((&checked["entries"], &checked["unwritten"]), (&json!(4), &json!(0)));
    zlog(&["rm", "l"]).ok();
    assert_eq!(zlog(&["ls", "--json"]).json(), json!([]));
}
