//! `nacre map`: maps in a folder and at a server, their conditions, validators and history; a server that is killed while
//! several programs change a map and others watch it.

mod harness;

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::mpsc;

use harness::{Ended, PATIENCE, Server, folder, program, run_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Runs `nacre map` on a store, again where the run of a validator was stopped for its time, as on a busy machine any may be.
#[track_caller]
fn map(store: &str, words: &[&str], input: &str) -> Ended {
    let run = || {
        let mut command = program();
        command.args(["--store", store, "map"]).args(words);
        run_with(command, input.as_bytes())
    };
    (0..20).map(|_| run()).find(|ended| !ended.stderr.contains("ran for more than 200ms")).unwrap_or_else(run)
}

/// Checks a map in a store that programs use one after another.
#[track_caller]
fn one_after_another(store: &str) {
    let run = |words: &[&str]| map(store, words, "");
    assert_eq!(run(&["set", "m", "a=1", "b=x y", "--as", "ada"]).text(), "1");
    assert_eq!(run(&["get", "m", "b"]).text(), "x y");
    let committed = run(&["set", "m", "a=2", "--if-version", "1", "--json"]).json();
    assert_eq!((&committed["epoch"], &committed["changes"][0]["version"]), (&json!(2), &json!(3)));
    // A condition that does not hold says what stands there.
    assert_eq!(run(&["set", "m", "a=3", "--if-version", "1"]).failed(3, &["version 3, not 1"]).trim(), "3");
    let found = run(&["--json", "set", "m", "a=3", "--if-version", "1"]).failed(3, &[]);
    assert_eq!(serde_json::from_str::<Value>(&found).unwrap()["value"], "2");
    assert_eq!(run(&["rm", "m", "a", "--if-epoch", "1"]).failed(3, &["at epoch 2, not at 1"]).trim(), "2");
    run(&["set", "m", "a=3", "c=3", "--absent"]).failed(3, &["\"a\" has version 3, not absent"]);
    run(&["set", "m", "a=3", "c=3", "--if-version", "1"]).failed(2, &["one entry"]);
    assert_eq!(run(&["set", "m", "c=3", "--absent", "--if-epoch", "2"]).text(), "3");
    assert_eq!(map(store, &["set", "m", "-"], "d=4\n\\xff\\x3d==5\n\ne=\n").text(), "4");
    assert_eq!(run(&["rm", "m", "d", "none"]).text(), "5");
    // Nothing changes: there is no epoch.
    assert_eq!(run(&["rm", "m", "d"]).text(), "5");
    let got = run(&["get", "m", "--json"]).json();
    assert_eq!(got["epoch"], 5);
    let values: Vec<(&str, &str)> = (got["entries"].as_array().unwrap().iter())
        .map(|entry| (entry["entry"].as_str().unwrap(), entry["value"].as_str().unwrap()))
        .collect();
    assert_eq!(values, [("a", "2"), ("b", "x y"), ("c", "3"), ("e", ""), ("\\xff=", "=5")]);
    assert_eq!(
        run(&["history", "m", "-n", "5"]).text().lines().take(3).collect::<Vec<_>>(),
        ["epoch 1  ada  a = 1", "epoch 1  ada  b = x y", &*format!("epoch 2  {}  a = 2, was 1", who(store))]
    );
    let history = run(&["history", "m", "--since", "4", "--json"]).json();
    let change = &history["updates"][0]["changes"][0];
    assert_eq!(
        (&change["entry"], &change["removed"], &change["old_value"]),
        (&json!("d"), &json!(true), &json!("4"))
    );
    run(&["get", "m", "none"]).failed(1, &["no entry \"none\""]);
    run(&["set", "m", "a"]).failed(2, &["not ENTRY=VALUE"]);
    run(&["set", "m", "=x"]).failed(2, &["1 to 512 bytes"]);
    run(&["set", "m", &format!("{}=x", "n".repeat(600))]).failed(2, &["1 to 512 bytes, and this one 600"]);
    for words in
        [&["get", "nosuch"][..], &["get", "nosuch", "a"], &["history", "nosuch"], &["limits", "nosuch"]]
    {
        run(words).failed(1, &["there is no map \"nosuch\"", "nacre map ls"]);
    }
    run(&["set", "a b", "a=1"]).failed(1, &["is not a valid name for a map"]);

    let text = "function validate(change)\n  if change.new == 'bad' then return false, 'no ' .. change.new end\nend\n";
    assert_eq!(map(store, &["validator", "put", "m", "good", "-", "--prefix", "p/"], text).text(), "6");
    assert_eq!(run(&["validator", "show", "m", "good"]).text(), text.trim_end());
    assert_eq!(run(&["validator", "ls", "m", "--json"]).json()[0]["prefix"], "p/");
    run(&["set", "m", "p/x=bad", "q=bad"]).failed(1, &["validator \"good\" refuses entry \"p/x\": no bad"]);
    run(&["set", "m", "q=bad"]).ok();
    run(&["validator", "rm", "m", "good"]).ok();
    run(&["validator", "rm", "m", "good"]).failed(1, &["no validator \"good\""]);
    map(store, &["validator", "put", "m", "worse", "-"], "while true do end").failed(1, &["does not end"]);
    assert_eq!(run(&["limits", "m", "--history", "2", "--json"]).json()["history"], 2);
    assert_eq!(run(&["history", "m"]).text().lines().count(), 2);
    let maps = run(&["ls", "--json"]).json();
    assert_eq!(
        (&maps[0]["map"], &maps[0]["epoch"], &maps[0]["oldest_kept"]),
        (&json!("m"), &json!(9), &json!(8))
    );
}

/// Returns the name that programs give themselves.
fn who(store: &str) -> String {
    let record = map(store, &["history", "m", "--since", "1", "-n", "4", "--json"], "").text();
    let record: Value = serde_json::from_str(record.lines().next().unwrap()).unwrap();
    record["updates"][0]["who"].as_str().unwrap().to_owned()
}

#[test]
fn a_map_in_a_folder_and_at_a_server_is_the_same() {
    let folder = folder();
    let store = harness::file(&folder.path().join("store"));
    one_after_another(&store);
    map(&store, &["watch", "m"], "").failed(2, &["open in one program only", "nacre map history"]);
    let server = Server::in_memory();
    one_after_another(&server.uri);
    assert_eq!(map(&server.uri, &["ls"], "").text().lines().count(), 2);
}

/// A running `nacre map watch --json`, its lines, and what it says on standard error.
struct Watcher {
    child: std::process::Child,
    lines: mpsc::Receiver<String>,
    said: mpsc::Receiver<String>,
}

/// Returns the lines of an output as they come.
fn lines(output: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

impl Watcher {
    fn start(uri: &str) -> Watcher {
        let mut command = program();
        command.args(["--store", uri, "--json", "map", "watch", "m", "--since", "0"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (printed, said) = (lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap()));
        Watcher { child, lines: printed, said }
    }

    #[track_caller]
    fn next(&self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("an epoch does not come");
        serde_json::from_str(&line).unwrap()
    }

    /// Waits until it has said that the store is away, or back, which it says by turns.
    #[track_caller]
    fn says(&self, part: &str) {
        let line = self.said.recv_timeout(PATIENCE).expect("it says nothing");
        assert!(line.starts_with("nacre: the store is ") && line.contains(part), "{line}");
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_that_is_away_is_said_to_be_so() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = harness::file(&folder.path().join("store"));
    let mut server = Server::listen(&address, &store, &[]);
    map(&address, &["set", "m", "a=1"], "").ok();
    let watcher = Watcher::start(&address);
    assert_eq!(watcher.next()["epoch"], 1);
    for epoch in 2..4 {
        server.kill();
        watcher.says("away");
        server = Server::listen(&address, &store, &[]);
        watcher.says("back");
        map(&address, &["set", "m", &format!("a={epoch}")], "").ok();
        assert_eq!(watcher.next()["epoch"], epoch);
    }
}

#[test]
fn a_server_that_is_killed_loses_no_epoch_and_doubles_none() {
    let folder = folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let store = harness::file(&folder.path().join("store"));
    let mut server = Server::listen(&address, &store, &[]);
    map(&address, &["set", "m", "begin=0"], "").ok();
    // A server takes its time to start on a busy machine.
    let patient = format!("{address}?repeat_timeout=60s");
    let watchers: Vec<Watcher> = (0..2).map(|_| Watcher::start(&patient)).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (report, outcomes) = mpsc::channel();
    for name in 0..3 {
        let (uri, report) = (patient.clone(), report.clone());
        runtime.spawn(async move {
            let store = nacre::open(&uri).unwrap();
            let proposer = store.map("m").unwrap().proposer(Default::default());
            for number in 0.. {
                let value = format!("{name}.{number}");
                let update = nacre::map::Update::new("w")
                    .set(format!("entry-{}", number % 3).parse().unwrap(), value.clone());
                let verdict = proposer.propose(update).await.map(|committed| committed.epoch);
                if report.send((value, verdict)).is_err() {
                    return;
                }
            }
        });
    }
    drop(report);
    // The server is killed after so many updates that took effect, three times.
    let mut verdicts = Vec::new();
    let mut collect = |count: usize| {
        let mut good = 0;
        while good < count {
            let (value, verdict) = outcomes.recv_timeout(PATIENCE).expect("updates do not go on");
            good += usize::from(verdict.is_ok());
            verdicts.push((value, verdict));
        }
    };
    for _ in 0..3 {
        collect(40);
        server.kill();
        server = Server::listen(&address, &store, &[]);
    }
    collect(40);
    drop(outcomes);
    runtime.shutdown_timeout(PATIENCE);
    map(&address, &["set", "m", "end=1"], "").ok();

    let history: Vec<Value> = (map(&address, &["history", "m", "--json"], "").text().lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut committed = std::collections::HashMap::new();
    for (index, record) in history.iter().enumerate() {
        assert_eq!(record["epoch"], index + 1, "epochs have no gaps");
        for update in record["updates"].as_array().unwrap() {
            let value = update["changes"][0]["value"].as_str().unwrap().to_owned();
            assert_eq!(
                committed.insert(value.clone(), record["epoch"].as_u64().unwrap()),
                None,
                "{value} is there twice"
            );
        }
    }
    assert!(history.len() > 160);
    for (value, verdict) in &verdicts {
        if let Ok(epoch) = verdict {
            assert_eq!(committed.get(value), Some(epoch), "{value}");
        }
    }
    // Those who watch see the same epochs in the same order, over all breaks.
    for watcher in &watchers {
        for record in &history {
            assert_eq!(watcher.next(), *record);
        }
    }
    let pid = Pid::from_raw(watchers[0].child.id() as i32).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let mut watchers = watchers;
    assert_eq!(harness::wait(&mut watchers[0].child, PATIENCE).code(), Some(0));
}
