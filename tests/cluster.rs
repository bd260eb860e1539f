//! Servers that watch over each other: beacons, the map of servers, `nacre status` and `nacre log`.

mod harness;

use std::time::Instant;

use harness::{PATIENCE, Server, folder, program, run_with};
use nacre_remote::{Members, Membership};
use rustix::process::Signal;
use serde_json::Value;

/// The servers take one for dead that stands still for longer than any does on a busy machine.
const FLAGS: [&str; 4] = ["--beacons", "200ms", "--down-after", "12s"];

fn run(uri: &str, words: &[&str]) -> harness::Ended {
    let mut command = program();
    command.args(["--store", uri]).args(words);
    run_with(command, b"")
}

/// Asks until the status of a server is the given one.
#[track_caller]
fn wait_for(uri: &str, server: &str, state: &str) -> Value {
    let began = Instant::now();
    loop {
        let ended = run(uri, &["--json", "status"]);
        // Nothing is printed while no server can say who the members are.
        let status: Value = serde_json::from_slice(&ended.stdout).unwrap_or_default();
        let servers = status["servers"].as_array().cloned().unwrap_or_default();
        if servers.iter().any(|known| known["server"] == server && known["state"] == state) {
            return status;
        }
        assert!(began.elapsed() < PATIENCE, "{server} is not {state}: {status}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Returns the texts of the log that are about a server, in order.
fn log_texts(uri: &str, about: &str) -> Vec<String> {
    let lines = run(uri, &["log", "--json", "-n", "1000"]).text();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let about = format!("server {about} ");
    let texts = lines.map(|line| line["text"].as_str().unwrap().to_owned());
    texts.filter_map(|text| text.strip_prefix(&about).map(str::to_owned)).collect()
}

#[test]
fn servers_go_down_come_up_and_stop_in_the_map_and_in_the_log() {
    let folder = folder();
    let stores: Vec<String> =
        (0..5).map(|number| harness::file(&folder.path().join(format!("{number}")))).collect();
    let stores: Vec<&str> = stores.iter().map(String::as_str).collect();
    let (mut servers, uri) = Server::together(folder.path(), &stores, &FLAGS);
    let names: Vec<String> = servers.iter().map(|server| server.uri.clone()).collect();
    for name in &names {
        let began = Instant::now();
        while !log_texts(&uri, name).contains(&"has started".to_owned()) {
            assert!(began.elapsed() < PATIENCE);
        }
        wait_for(&uri, name, "up");
    }
    // One that keeps nothing that the others need to agree on it.
    let members = Members::new(1, names.iter().cloned()).unwrap();
    let needed = ["nacre/map/servers", "nacre/beacons", "nacre/log"].map(|name| name.parse().unwrap());
    let keeps_none = |name: &String| {
        let place = Membership::new(members.clone(), name).unwrap();
        !needed.iter().any(|object| place.keeps(object))
    };
    let victim =
        names.iter().position(keeps_none).expect("three objects are at three of five servers at most");
    let name = names[victim].clone();
    let before = run(&uri, &["--json", "status"]).json();
    assert_eq!(before["summary"], "all healthy: 5 servers");

    servers.remove(victim).kill();
    let status = wait_for(&uri, &name, "down");
    assert!(status["epoch"].as_u64() > before["epoch"].as_u64(), "{status}");
    let shown = run(&uri, &["status"]);
    assert_eq!(shown.code, 1, "{shown:?}");
    assert!(shown.stderr.contains("1 of 5 servers unhealthy"), "{shown:?}");
    while log_texts(&uri, &name).len() < 2 {}
    assert!(
        log_texts(&uri, &name)[1].starts_with("is down: it has sent no beacon for "),
        "{:?}",
        log_texts(&uri, &name)
    );

    let all = names.join(",");
    let server = Server::listen(&name, stores[victim], &[&["--members", &*all][..], &FLAGS].concat());
    wait_for(&uri, &name, "up");
    while !log_texts(&uri, &name).last().unwrap().starts_with("is up again") {}
    assert!(server.stop(Signal::TERM).success());
    wait_for(&uri, &name, "stopped");
    let texts = log_texts(&uri, &name);
    let said: Vec<&str> = texts.iter().map(|text| text.split([',', ':']).next().unwrap()).collect();
    assert_eq!(said, ["has started", "is down", "has started", "is up again", "has stopped"]);
}

#[test]
fn the_log_tells_of_classes_and_a_lone_server_is_well() {
    let folder = folder();
    let server = Server::start(&harness::file(&folder.path().join("store")), &[]);
    let status = server.run(["--json", "status"]).json();
    assert_eq!(
        (&status["summary"], &status["servers"][0]["state"]),
        (&"all healthy: 1 server".into(), &"up".into())
    );
    assert_eq!(server.run(["ls"]).text(), "", "a server alone writes nothing by itself");
    assert_eq!(server.run(["log"]).text(), "");
    let text = |number: usize| format!("function f() return {number} end objclass.register(f)");
    for number in 1..4 {
        server.run_with(["class", "put", "-", "--name", "c"], text(number).as_bytes()).ok();
        // Several changes in a row may be told as the last of them.
        let began = Instant::now();
        let wanted = format!("class c is at version {number}");
        while !server.run(["log", "-n", "1"]).text().ends_with(&wanted) {
            assert!(began.elapsed() < PATIENCE);
        }
    }
    server.run(["class", "rm", "c"]).ok();
    while !server.run(["log"]).text().ends_with("class c was removed") {}
    let lines = server.run(["log", "--json"]).text();
    let numbers =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].as_u64().unwrap());
    assert!(numbers.eq(1..=4), "{lines}");
    // A store in a folder has a status of its own.
    server.stop(Signal::TERM);
    let store = harness::file(&folder.path().join("store"));
    assert_eq!(run(&store, &["--json", "status"]).json()["summary"], "all healthy: 1 server");
    assert_eq!(run(&store, &["log"]).text().lines().count(), 4);
}
