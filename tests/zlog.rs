//! `nacre zlog`: logs in a folder and at servers; several programs that append and one that follows while a server is killed.

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read as _, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use harness::{Ended, PATIENCE, Server, folder, program, run_with};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Runs `nacre zlog` on a store.
#[track_caller]
fn zlog(store: &str, words: &[&str], input: &str) -> Ended {
    let mut command = program();
    command.args(["--store", store, "zlog"]).args(words);
    run_with(command, input.as_bytes())
}

/// Checks logs in a store that programs use one after another.
#[track_caller]
fn one_after_another(store: &str) {
    let run = |words: &[&str]| zlog(store, words, "");
    assert_eq!(run(&["create", "l", "--width", "3", "--unit", "2"]).text(), "");
    run(&["create", "l"]).failed(1, &["there is a log \"l\" already"]);
    assert_eq!(run(&["create", "m", "--width", "0"]).code, 2);
    run(&["append", "none", "x"]).failed(1, &["no log \"none\"", "nacre zlog ls"]);
    assert_eq!(run(&["append", "l", "one", "two", "--tag", "red"]).text(), "0\n1");
    let lines: String = (0..50).map(|number| format!("line {number}\n")).collect();
    let positions = zlog(store, &["append", "l", "--tag", "blue", "--tag", "red"], &lines).text();
    assert_eq!(positions, (2..52).map(|position| position.to_string()).collect::<Vec<_>>().join("\n"));
    assert_eq!(
        zlog(store, &["append", "l", "--whole", "--json"], "a\nb\n").json(),
        json!({ "position": 52 })
    );
    assert_eq!(run(&["tail", "l"]).text(), "53");
    assert_eq!(run(&["read", "l", "1"]).text(), "two");
    assert_eq!(
        run(&["read", "l", "3", "--json"]).json(),
        json!({ "position": 3, "tags": [{ "tag": "blue" }, { "tag": "red" }], "data": "line 1" })
    );
    assert_eq!(run(&["read", "l", "0", "4"]).text(), "one\ntwo\nline 0\nline 1");
    assert_eq!(run(&["read", "l", "0", "4", "--tag", "blue"]).text(), "line 0\nline 1");
    assert_eq!(run(&["read", "l", "53"]).failed(3, &["unwritten"]).trim(), "unwritten");
    assert_eq!(
        run(&["follow", "l", "--from", "0", "--tag", "blue", "--count", "1", "-p"]).text(),
        "2\tline 0"
    );
    assert_eq!(run(&["follow", "l", "--from", "51", "--count", "2"]).text(), "line 49\na\nb");
    run(&["fill", "l", "5"]).failed(3, &["there is an entry"]);
    run(&["fill", "l", "53"]).failed(1, &["not given out"]);
    run(&["trim", "l", "3"]).ok();
    assert_eq!(run(&["read", "l", "3"]).failed(3, &["trimmed"]).trim(), "trimmed");
    run(&["trim", "l", "20", "--before"]).ok();
    let sealed = run(&["seal", "l", "--json"]).json();
    assert_eq!(sealed, json!({ "log": "l", "epoch": 2, "tail": 53, "sealed": 3 }));
    for flag in ["--width", "--unit"] {
        let ended = run(&["reshape", "l", flag, "0"]);
        assert!(ended.code == 2 && ended.stderr.contains("it must be 1 to"), "{ended:?}");
    }
    assert_eq!(run(&["reshape", "l", "--width", "5", "--json"]).json()["epoch"], 3);
    assert_eq!(run(&["append", "l", "after"]).text(), "53");
    let checked = run(&["check", "l", "--json"]).json();
    assert_eq!(
        (&checked["entries"], &checked["begin"], &checked["unwritten"]),
        (&json!(34), &json!(20), &json!(0))
    );
    let followed = run(&["follow", "l", "--from", "0", "--count", "1"]);
    assert!(followed.stderr.contains("positions 0 to 19 were trimmed"), "{followed:?}");
    assert_eq!((followed.code, &followed.stdout[..]), (0, &b"line 18\n"[..]));
    let info = run(&["info", "l", "--json"]).json();
    assert_eq!((&info["tail"], &info["views"][1]["width"]), (&json!(54), &json!(5)));
    // What no flag sets is that of the log.
    assert_eq!(info["views"][1]["unit"], 2);
    run(&["reshape", "l", "--unit", "3"]).ok();
    let info = run(&["info", "l", "--json"]).json();
    assert_eq!((&info["views"][2]["width"], &info["views"][2]["unit"]), (&json!(5), &json!(3)));
    run(&["mv", "l", "größe/2"]).ok();
    assert_eq!(run(&["ls", "--json"]).json()[0]["log"], "größe/2");
    assert_eq!(run(&["ls"]).text().lines().count(), 2);
    run(&["rm", "größe/2"]).ok();
    run(&["rm", "größe/2"]).failed(1, &["no log"]);
    assert_eq!(run(&["ls"]).text().lines().count(), 1);
    // One that cannot be deleted does not keep the others.
    run(&["create", "l"]).ok();
    let ended = run(&["rm", "first", "l", "last"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    for missing in ["\"first\"", "\"last\""] {
        assert!(ended.stderr.contains(missing) && ended.stderr.lines().count() == 2, "{ended:?}");
    }
    assert_eq!(run(&["ls"]).text().lines().count(), 1);
}

#[test]
fn a_server_that_is_gone_is_told_of_the_log_that_was_named() {
    for (words, part) in [(&["tail", "l"][..], "log \"l\": "), (&["ls"], "the list of logs: ")] {
        let ended = zlog("unix:/nowhere/at/all?repeat_timeout=100ms", words, "");
        assert!(!ended.stderr.contains("zlogs"), "{ended:?}");
        ended.failed(1, &[part, "(tried for 100ms)", "nacre serve"]);
    }
}

#[test]
fn a_server_that_is_started_again_is_waited_for() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = harness::file(&folder.path().join("store"));
    let server = Server::listen(&address, &store, &[]);
    zlog(&address, &["create", "l"], "").ok();
    zlog(&address, &["append", "l", "first"], "").ok();
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let commands: &[(&[&str], &str)] = &[
        (&["append", "l", "second"], "1"),
        (&["read", "l", "0"], "first"),
        (&["follow", "l", "--from", "0", "--count", "2"], "first\nsecond"),
        (&["create", "m"], ""),
        (&["info", "l"], "id "),
    ];
    let words: Vec<Vec<&str>> = commands.iter().map(|(words, _)| [&["zlog"], *words].concat()).collect();
    let words: Vec<&[&str]> = words.iter().map(Vec::as_slice).collect();
    let (_server, ended) = harness::run_while_away(&address, &store, &words);
    for (ended, (words, printed)) in ended.into_iter().zip(commands) {
        let text = ended.text();
        assert!(text.starts_with(*printed), "{words:?} printed {text}");
    }
    assert_eq!(zlog(&address, &["ls"], "").text().lines().count(), 3);
}

#[test]
fn who_appends_and_who_follows_go_on_when_the_server_was_restarted() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = harness::file(&folder.path().join("store"));
    let mut server = Server::listen(&address, &store, &[]);
    zlog(&address, &["create", "l"], "").ok();
    let follower = Running::start(&address, &["follow", "l", "--from", "0"]);
    let mut appender = Running::start(&address, &["append", "l"]);
    for number in 0..4 {
        writeln!(appender.input.as_mut().unwrap(), "line {number}").unwrap();
        assert_eq!(appender.next(), number.to_string());
        assert_eq!(follower.next(), format!("line {number}"));
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        server = Server::listen(&address, &store, &[]);
    }
}

#[test]
fn a_log_in_a_folder_and_at_a_server() {
    let folder = folder();
    one_after_another(&harness::file(&folder.path().join("store")));
    let server = Server::in_memory();
    one_after_another(&server.uri);
}

#[test]
fn a_log_whose_recovery_was_not_completed_is_listed_with_the_others() {
    let server = Server::in_memory();
    let run = |words: &[&str]| zlog(&server.uri, words, "");
    run(&["create", "a"]).ok();
    run(&["create", "b"]).ok();
    let info = run(&["info", "a", "--json"]).json();
    // The log's sequencer has the next epoch and position already, and the log's map has not.
    let head = format!("nacre/zlog/{}/head", info["id"].as_str().unwrap());
    let counter = [7_u64.to_be_bytes(), 5_u64.to_be_bytes()].concat();
    server.run_with(["keys", "set", &head, "installed", "-"], &counter).ok();
    let listed = run(&["ls", "--json"]).json();
    let shown = |index: usize| (&listed[index]["log"], &listed[index]["tail"], &listed[index]["recovering"]);
    assert_eq!(shown(0), (&json!("a"), &json!(5), &json!(true)));
    assert_eq!(shown(1), (&json!("b"), &json!(0), &json!(false)));
    assert!(run(&["ls"]).text().contains("1, in recovery"));
    run(&["seal", "a"]).ok();
    assert_eq!(run(&["ls", "--json"]).json()[0]["recovering"], false);
}

#[test]
fn what_comes_before_a_line_that_cannot_be_an_entry_is_appended() {
    let server = Server::in_memory();
    let run = |words: &[&str], input: &str| zlog(&server.uri, words, input);
    run(&["create", "l"], "").ok();
    let lines: String = (0..3000).map(|number| format!("line {number}\n")).collect();
    let printed = run(&["append", "l"], &format!("{lines}\nafter\n"))
        .failed(1, &["line 3001 is empty", "it and those behind it are not in the log"]);
    assert_eq!(printed, (0..3000).map(|position| format!("{position}\n")).collect::<String>());
    let long = "x".repeat((1 << 20) + 1);
    let printed = run(&["append", "l"], &format!("short\n{long}\n")).failed(1, &["line 2 is too long"]);
    assert_eq!(printed, "3000\n");
    // Entries that are all known are checked before the first one is appended.
    assert_eq!(
        run(&["append", "l", "a", ""], "").failed(1, &["entry 2 is empty", "nothing was appended"]),
        ""
    );
    assert_eq!(
        run(&["append", "l", "--whole"], "").failed(1, &["standard input is empty", "nothing was appended"]),
        ""
    );
    // No position was taken in vain.
    let checked = run(&["check", "l", "--json"], "").json();
    assert_eq!(
        (&checked["entries"], &checked["filled"], &checked["unwritten"]),
        (&json!(3001), &json!(0), &json!(0))
    );
    assert_eq!(run(&["tail", "l"], "").text(), "3001");
    assert_eq!(run(&["read", "l", "2999"], "").text(), "line 2999");
}

#[test]
fn nothing_is_appended_behind_a_line_that_failed() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = harness::file(&folder.path().join("store"));
    let server = Server::listen(&address, &store, &[]);
    zlog(&address, &["create", "l"], "").ok();
    // Longer than it may take to read the second line after the first.
    let mut appender = Running::start(&format!("{address}?repeat_timeout=12s"), &["append", "l"]);
    let mut input = appender.input.take().unwrap();
    writeln!(input, "one").unwrap();
    assert_eq!(appender.next(), "0");
    drop(server);
    write!(input, "two\nthree\n").unwrap();
    let mut said = String::new();
    appender.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(appender.child.wait().unwrap().code(), Some(1), "{said}");
    // It does not wait for more lines.
    drop(input);
    let named = ["entry 2 and those behind it are not in the log", "may or may not be in the log"];
    assert!(named.iter().any(|text| said.contains(text)) && said.contains("(tried for 12s)"), "{said}");
    let _server = Server::listen(&address, &store, &[]);
    zlog(&address, &["append", "l", "four"], "").ok();
    assert_eq!(zlog(&address, &["read", "l", "0", "1000"], "").text(), "one\nfour");
}

/// A program that appends lines, or follows.
struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    fn start(store: &str, words: &[&str]) -> Running {
        let mut command = program();
        command.args(["--store", store, "zlog"]).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { return };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Running { input: child.stdin.take(), child, lines }
    }

    fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("the program does not go on")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_shells_append_and_a_third_one_follows() {
    let server = Server::in_memory();
    let store = &server.uri;
    zlog(store, &["create", "l"], "").ok();
    let follower = Running::start(store, &["follow", "l", "--from", "0"]);
    let mut shells = [Running::start(store, &["append", "l"]), Running::start(store, &["append", "l"])];
    for number in 0..20 {
        let shell = &mut shells[number % 2];
        writeln!(shell.input.as_mut().unwrap(), "line {number}").unwrap();
        assert_eq!(shell.next(), number.to_string());
        assert_eq!(follower.next(), format!("line {number}"));
    }
}

#[test]
fn what_was_acknowledged_is_there_once_after_the_server_was_killed() {
    const WRITERS: usize = 3;
    const KILLS: usize = 3;
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = harness::file(&folder.path().join("store"));
    let mut server = Server::listen(&address, &store, &[]);
    zlog(&address, &["create", "l", "--width", "3", "--unit", "4"], "").ok();
    // A server takes its time to start on a busy machine.
    let patient = format!("{address}?repeat_timeout=60s");
    let follower = Running::start(&patient, &["follow", "l", "--from", "0", "--json"]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (_server, acknowledged) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (patient, stop) = (&patient, &stop);
                scope.spawn(move || {
                    let mut program =
                        Running::start(patient, &["append", "l", "--tag", &format!("writer {writer}")]);
                    let mut input = program.input.take().unwrap();
                    let mut positions = Vec::new();
                    let mut sent = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        // Some are on their way whenever the server dies.
                        while sent < positions.len() + 8 {
                            writeln!(input, "{writer} {sent}").unwrap();
                            sent += 1;
                        }
                        positions.push(program.next().parse().unwrap());
                    }
                    drop(input);
                    while positions.len() < sent {
                        positions.push(program.next().parse().unwrap());
                    }
                    assert_eq!(harness::wait(&mut program.child, PATIENCE).code(), Some(0));
                    positions
                })
            })
            .collect();
        for _ in 0..KILLS {
            std::thread::sleep(Duration::from_millis(400));
            server.kill();
            server = Server::listen(&address, &store, &[]);
        }
        std::thread::sleep(Duration::from_millis(400));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let positions: Vec<Vec<u64>> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        (server, positions)
    });
    let mut wanted = BTreeMap::new();
    for (writer, positions) in acknowledged.iter().enumerate() {
        assert!(positions.is_sorted(), "a writer's entries are in its order");
        for (number, position) in positions.iter().enumerate() {
            assert_eq!(
                wanted.insert(*position, format!("{writer} {number}")),
                None,
                "position {position} was given twice"
            );
        }
    }
    let begun = Instant::now();
    let mut seen = BTreeSet::new();
    for (position, data) in &wanted {
        let found: Value = serde_json::from_str(&follower.next()).unwrap();
        assert_eq!((&found["position"], &found["data"]), (&json!(position), &json!(data)));
        assert!(seen.insert(data.clone()));
    }
    assert!(begun.elapsed() < PATIENCE);
    let checked = zlog(&address, &["check", "l", "--json"], "").json();
    assert_eq!(checked["entries"], wanted.len());
    let stream = zlog(&address, &["read", "l", "0", "1000000000", "--tag", "writer 1"], "").text();
    let wanted: Vec<String> = (0..acknowledged[1].len()).map(|number| format!("1 {number}")).collect();
    assert_eq!(stream.lines().collect::<Vec<_>>(), wanted);
}
