//! `nacre sequencer` and `nacre fail`: positions that several programs take while metadata ranks are killed and handed over.

mod harness;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::{PATIENCE, Server, file, folder, program, run_with, signal_process};
use rustix::process::Signal;
use serde_json::json;

#[test]
fn positions_policies_and_names() {
    let server = Server::in_memory();
    let run = |words: &[&str]| server.run([&["sequencer"], words].concat());
    assert_eq!(run(&["create", "log"]).text(), "");
    run(&["create", "log"]).failed(1, &["cannot create sequencer \"log\""]);
    assert_eq!(run(&["next", "log"]).text(), "0");
    assert_eq!(run(&["next", "log", "-n", "3"]).text(), "1\n2\n3");
    assert_eq!(run(&["next", "log", "-n", "2", "--json"]).json(), json!({ "first": 4, "count": 2 }));
    assert_eq!(run(&["read", "log"]).text(), "6");
    assert_eq!(run(&["policy", "log"]).text(), "best-effort");
    assert_eq!(run(&["policy", "log", "quota=1000/50ms"]).text(), "");
    assert_eq!(run(&["policy", "log"]).text(), "quota=1000/50ms");
    // The script need not be there yet. The name of one is short.
    let noted = run(&["policy", "log", "lua=mine"]);
    assert!(noted.code == 0 && noted.stderr.contains("no entry \"mine\" yet"), "{noted:?}");
    assert_eq!(run(&["policy", "log"]).text(), "lua=mine");
    let script = "mine=function on_request(state) return 5000 end";
    server.run(["map", "set", "policies", script]).ok();
    assert_eq!(run(&["policy", "log", "lua=0123456789abcdefg"]).code, 2);
    let listed = run(&["ls", "--json"]).json();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["tail"], &listed[0]["held"]),
        (&json!("log"), &json!(6), &json!(false))
    );
    let many = run(&["next", "log", "-n", &u64::MAX.to_string()]);
    assert!(many.code == 2 && many.stderr.contains("it must be 1 to 1099511627776"), "{many:?}");
    let none = run(&["next", "log", "-n", "0"]);
    assert!(none.code == 2 && none.stderr.contains("it must be 1 to"), "{none:?}");
    run(&["next", "none"]).failed(1, &["cannot take a position of sequencer \"none\"", "nacre sequencer ls"]);
    assert_eq!(run(&["policy", "log", "sometimes"]).code, 2);
    assert_eq!(run(&["policy", "log", "quota=0"]).code, 2);
    // In JSON, a name stands as it is typed, as everywhere: so does a path, which is typed as it is.
    let (name, path) = ("a\\\\b\\x0a", "/d/a\\b");
    run(&["create", name]).ok();
    server.run(["fs", "mkdir", "/d"]).ok();
    run(&["create", path]).ok();
    let named: Vec<String> = [&["ls", "--json"][..], &["ls", "--json", name], &["ls", "--json", path]]
        .iter()
        .map(|words| run(words).json()[0]["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(named, [name, name, path]);
    assert!(run(&["ls", path]).text().contains("/d/a\\\\b"));
    // With a slash at its end, a directory stands for what is below it, and for nothing else.
    run(&["create", "/beside"]).ok();
    assert_eq!(run(&["policy", "/d/", "lua=mine"]).text(), "");
    assert_eq!([path, "/beside"].map(|of| run(&["policy", of]).text()), ["lua=mine", "best-effort"]);
    run(&["policy", "/none/", "hold=7ms"]).failed(1, &["cannot change the policies below /none"]);
    run(&["rm", name]).ok();
    // Positions go on above those of the sequencer that was removed.
    assert_eq!(run(&["rm", "log"]).text(), "");
    run(&["read", "log"]).failed(1, &["nacre sequencer ls"]);
    assert_eq!(run(&["create", "log", "--policy", "round-trip"]).text(), "");
    let next: u64 = run(&["next", "log"]).text().parse().unwrap();
    assert!(next >= 6, "{next}");
}

#[test]
fn many_positions_are_taken_as_they_are_printed() {
    let server = Server::in_memory();
    server.run(["sequencer", "create", "log"]).ok();
    server.run(["fs", "mkdir", "/d"]).ok();
    server.run(["sequencer", "create", "/d/log"]).ok();
    for (words, sequencer) in [
        (&["sequencer", "next", "log", "-n", "100000000000"][..], "log"),
        (&["fs", "call", "/d/log", "next", "100000000000"], "/d/log"),
    ] {
        let mut child = server.command(words).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for position in 0..3000 {
            assert_eq!(lines.next().unwrap().unwrap(), position.to_string());
        }
        // Not an interrupt, which whoever starts the tests in the background may have had ignored.
        signal_process(&child, Signal::TERM);
        // What it had printed by then is still to be read. The last line may be a part of one.
        let printed = 3000 + lines.map_while(Result::ok).count() as u64;
        assert_eq!(harness::wait(&mut child, PATIENCE).signal(), Some(Signal::TERM.as_raw()));
        let taken: u64 = server.run(["sequencer", "read", sequencer]).text().parse().unwrap();
        assert!((printed - 1..=printed + 1000).contains(&taken), "{taken} were taken, and {printed} printed");
    }
}

#[test]
fn a_server_that_is_started_again_is_waited_for_and_not_for_ever() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = file(&folder.path().join("store"));
    let server = Server::listen(&address, &store, &[]);
    server.run(["sequencer", "create", "log"]).ok();
    server.run(["fs", "mkdir", "/jobs"]).ok();
    server.run(["sequencer", "create", "/jobs/log"]).ok();
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let commands: &[&[&str]] =
        &[&["sequencer", "next", "log"], &["sequencer", "next", "/jobs/log"], &["sequencer", "ls", "--json"]];
    let (server, ended) = harness::run_while_away(&address, &store, commands);
    let [by_name, by_path, listed]: [harness::Ended; 3] = ended.try_into().unwrap();
    // A rank that was stopped may leave a gap.
    for next in [by_name, by_path] {
        next.text().parse::<u64>().unwrap();
    }
    assert_eq!(listed.json()[0]["name"], "log");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    for name in ["log", "/jobs/log"] {
        let mut command = program();
        command.env("NACRE_STORE", format!("{address}?repeat_timeout=100ms"));
        command.args(["sequencer", "next", name]);
        run_with(command, b"").failed(1, &["cannot reach the server"]);
    }
}

/// Starts a daemon that may act for the rank of a store that another daemon keeps.
#[track_caller]
fn rank(folder: &Path, name: &str, store: &str) -> Server {
    let address = format!("unix:{}", folder.join(name).display());
    Server::listen(&address, store, &["--roles", "store,meta"])
}

#[test]
fn a_position_is_taken_once_while_ranks_are_killed_and_handed_over() {
    let folder = folder();
    let keeper = Server::start(&file(&folder.path().join("store")), &["--roles", "store"]);
    let first = rank(folder.path(), "first", &keeper.uri);
    keeper.run(["sequencer", "create", "log"]).ok();
    let second = rank(folder.path(), "second", &keeper.uri);
    let (over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    // A rank takes its time to take over on a busy machine.
    let next = || {
        let mut command = program();
        command.env("NACRE_STORE", format!("{}?repeat_timeout=60s", keeper.uri));
        command.args(["sequencer", "next", "log", "-n", "5"]);
        run_with(command, b"").text()
    };
    let taken = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut taken = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        let text = next();
                        taken.extend(text.lines().map(|line| line.parse::<u64>().unwrap()));
                        count.fetch_add(5, Ordering::Relaxed);
                    }
                    taken
                })
            })
            .collect();
        let pause = || std::thread::sleep(Duration::from_millis(700));
        pause();
        first.kill();
        pause();
        pause();
        let third = rank(folder.path(), "third", &keeper.uri);
        pause();
        // Nobody can hand over while nobody has the authority, or nobody stands by.
        let begun = Instant::now();
        let handed_over = loop {
            let ended = keeper.run(["fail", "0"]);
            if ended.code == 0 {
                break ended;
            }
            assert!(begun.elapsed() < PATIENCE, "{ended:?}");
        };
        assert_eq!(handed_over.text(), "");
        pause();
        // The third one has the authority now, so nobody misses the second one.
        second.kill();
        pause();
        let begun = Instant::now();
        while count.load(Ordering::Relaxed) <= 50 {
            assert!(begun.elapsed() < PATIENCE, "few positions are taken");
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::Relaxed);
        let taken: Vec<Vec<u64>> = takers.into_iter().map(|taker| taker.join().unwrap()).collect();
        drop(third);
        taken
    });
    for positions in &taken {
        assert!(positions.is_sorted(), "a taker's positions went back: {positions:?}");
    }
    let count: usize = taken.iter().map(Vec::len).sum();
    let all: BTreeSet<u64> = taken.into_iter().flatten().collect();
    assert_eq!(all.len(), count, "a position was taken twice");
    assert!(count > 50, "{count} positions were taken");
}
