//! `nacre watch` and `nacre notify`: events as lines, servers that are killed and come back, watchers that stand still.

mod harness;

use std::io::{BufRead, BufReader};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use harness::{Ended, PATIENCE, Server, folder, program, run_with, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A running `nacre watch --json`, killed when the test is over.
struct Watcher {
    child: Child,
    lines: Receiver<String>,
    /// The version that the object had, and the watcher's id.
    began: Value,
}

impl Watcher {
    #[track_caller]
    fn start(uri: &str, words: &[&str]) -> Watcher {
        let mut command = program();
        command.args(["--store", uri, "--json", "watch"]).args(words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut watcher = Watcher { child, lines, began: Value::Null };
        watcher.began = watcher.next();
        assert_eq!(watcher.began["event"], "watching");
        watcher
    }

    #[track_caller]
    fn next(&self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("an event does not come");
        serde_json::from_str(&line).unwrap()
    }

    /// Waits until it knows of a version. Returns the gaps on the way.
    #[track_caller]
    fn follow(&self, until: u64) -> Vec<Value> {
        let mut gaps = Vec::new();
        loop {
            let event = self.next();
            let version = event["version"].as_u64();
            if event["event"] == "gap" {
                gaps.push(event);
            }
            if version == Some(until) {
                return gaps;
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    #[track_caller]
    fn end(mut self) -> ExitStatus {
        wait(&mut self.child, PATIENCE)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // It may have been reaped already, in which case this does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes to an object, and returns its new version.
#[track_caller]
fn write(server: &Server, object: &str) -> u64 {
    server.run(["write", object, "text"]).text().parse().unwrap()
}

#[test]
fn changes_and_notifications_are_lines() {
    let server = Server::in_memory();
    let first = write(&server, "settings");
    let watcher = Watcher::start(&server.uri, &["settings", "--reply", "seen", "--count", "3"]);
    assert_eq!(watcher.began["version"], first);
    let version = write(&server, "settings");
    let changed = watcher.next();
    assert_eq!((&changed["event"], &changed["version"]), (&"changed".into(), &version.into()));
    let outcome = server.run(["--json", "notify", "settings", "reload, please", "--timeout", "60s"]).json();
    assert_eq!(outcome["acknowledged"][0]["watcher"], watcher.began["watcher"]);
    assert_eq!(outcome["acknowledged"][0]["reply"], "seen");
    assert_eq!(outcome["missed"].as_array().unwrap().len(), 0);
    let notified = watcher.next();
    assert_eq!((&notified["event"], &notified["payload"]), (&"notified".into(), &"reload, please".into()));
    assert_eq!(notified["notification"], outcome["notification"]);
    // The last of three events: it is acknowledged although the watcher ends.
    let outcome =
        server.run_with(["--json", "notify", "settings", "-", "--timeout", "60s"], b"\xff\x00").json();
    assert_eq!(outcome["acknowledged"].as_array().unwrap().len(), 1);
    assert_eq!(watcher.next()["payload_base64"], "/wA=");
    assert_eq!(watcher.end().code(), Some(0));
    // Nobody is there any more, which is no failure. The server may learn a little later that the watcher has gone.
    let begun = Instant::now();
    let nobody = loop {
        let ended = server.run(["notify", "settings", "hello"]);
        if ended.code == 0 {
            break ended;
        }
        assert!(begun.elapsed() < PATIENCE, "{ended:?}");
    };
    assert_eq!(nobody.text(), "");

    let mut command = program();
    command.args(["--store", &server.uri, "watch", "settings", "--count", "1"]);
    let watching = std::thread::spawn(move || run_with(command, b""));
    let notice = loop {
        // Until it watches, nobody acknowledges.
        let notice = server.run(["notify", "settings", "a\nb"]);
        if !notice.stdout.is_empty() {
            break notice.text();
        }
    };
    assert!(notice.starts_with("acknowledged  ") && notice.lines().count() == 1, "{notice}");
    let text = watching.join().unwrap().text();
    assert_eq!(text, format!("watching  version {version}\nnotified  a\\x0ab"));
}

#[test]
fn who_does_not_answer_is_named_and_bad_use_is_refused() {
    let server = Server::in_memory();
    let (asleep, awake) =
        (Watcher::start(&server.uri, &["object"]), Watcher::start(&server.uri, &["object"]));
    asleep.signal(Signal::STOP);
    let id = asleep.began["watcher"].as_str().unwrap().to_owned();
    // One that is awake may take longer on a busy machine.
    let notify = |timeout: &str| server.run(["notify", "object", "hello", "--timeout", timeout]);
    let one_missed = |ended: &Ended| ended.stderr.contains("1 of 2 watchers");
    let tried = ["1s", "5s", "20s"].into_iter().map(notify).find(one_missed);
    let ended = tried.unwrap_or_else(|| notify("60s"));
    let notice = ended.failed(1, &["1 of 2 watchers of object \"object\" have not acknowledged"]);
    assert!(notice.contains(&format!("missed        {id}")), "{notice}");
    assert_eq!(awake.next()["payload"], "hello");
    asleep.signal(Signal::CONT);
    assert_eq!(asleep.next()["payload"], "hello");
    server.run(["notify", "object", "hello", "--timeout", "2m"]).failed(2, &["at most 60s"]);
    let long = vec![b'x'; (60 << 10) + 1];
    server.run_with(["notify", "object", "-"], &long).failed(1, &["it may have 61440"]);
    let folder = folder();
    let store = format!("file:{}", folder.path().join("store").display());
    for word in ["watch", "notify"] {
        let mut command = program();
        command.args(["--store", &store, word, "object"]);
        run_with(command, b"").failed(2, &["open in one program only", "nacre serve"]);
    }
}

#[test]
fn a_signal_ends_a_watch_in_good_order() {
    let server = Server::in_memory();
    for signal in [Signal::INT, Signal::TERM] {
        let watcher = Watcher::start(&server.uri, &["object"]);
        watcher.signal(signal);
        assert_eq!(watcher.end().code(), Some(0), "{signal:?}");
    }
    // Also where the server is away.
    let watcher = Watcher::start(&server.uri, &["object"]);
    server.kill();
    watcher.signal(Signal::TERM);
    assert_eq!(watcher.end().code(), Some(0));
}

#[test]
fn a_server_that_is_killed_and_started_again_is_a_gap() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = format!("file:{}", folder.path().join("store").display());
    let mut server = Server::listen(&address, &store, &[]);
    write(&server, "object");
    let watchers: Vec<Watcher> = (0..4).map(|_| Watcher::start(&address, &["object"])).collect();
    for _ in 0..3 {
        let version = write(&server, "object");
        for watcher in &watchers {
            assert!(watcher.follow(version).is_empty());
        }
        // Watchers stand still while the server ends, comes back, and has another version.
        watchers[..2].iter().for_each(|watcher| watcher.signal(Signal::STOP));
        server.kill();
        server = Server::listen(&address, &store, &[]);
        write(&server, "object");
        let version = write(&server, "object");
        watchers[..2].iter().for_each(|watcher| watcher.signal(Signal::CONT));
        for watcher in &watchers {
            let gaps = watcher.follow(version);
            assert!(gaps.iter().any(|gap| gap["cause"] == "broken"), "{gaps:?}");
        }
    }
    // All of them watch again.
    let outcome = server.run(["--json", "notify", "object", "hello", "--timeout", "60s"]).json();
    assert_eq!(outcome["acknowledged"].as_array().unwrap().len(), watchers.len(), "{outcome}");
}

#[test]
fn a_watcher_that_stands_still_holds_up_nobody_and_takes_no_memory() {
    let server = Server::in_memory();
    let still: Vec<Watcher> = (0..3).map(|_| Watcher::start(&server.uri, &["object"])).collect();
    let awake = Watcher::start(&server.uri, &["object"]);
    still.iter().for_each(|watcher| watcher.signal(Signal::STOP));
    let store = nacre::open(&server.uri).unwrap().blocking();
    let object = store.object("object").unwrap();
    let before = server.memory().now_bytes;
    let began = Instant::now();
    let mut version = 0;
    let payload = vec![b'x'; 50 << 10];
    for round in 0..600 {
        // Those that stand still acknowledge nothing, however long one waits.
        let notified = object.notify(payload.clone(), Duration::from_millis(5)).unwrap();
        assert!(notified.missed.len() >= still.len());
        version = object.set_key("key", "value").unwrap();
        while awake.next()["version"] != version {}
        assert!(began.elapsed() < PATIENCE, "round {round}");
    }
    // 600 notifications of 50 KiB are 30 MiB, also where watchers share them.
    let grown = server.memory().now_bytes.saturating_sub(before);
    assert!(grown < 16 << 20, "the server has grown by {grown} bytes");
    still.iter().for_each(|watcher| watcher.signal(Signal::CONT));
    for watcher in &still {
        let gaps = watcher.follow(version);
        assert!(!gaps.is_empty(), "what a watcher cannot have received is no gap");
    }
}
