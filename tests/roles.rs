//! Daemons of several roles: one process, one configuration, one page, one shutdown.

mod harness;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use harness::reflect::{Joined, Reflector, http, request, until};
use harness::{Server, file, program, run_with, shell_code};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The flags of a daemon of both roles, on ports of its own.
const BOTH: &[&str] = &[
    "--roles",
    "store,reflect",
    "--reflect",
    "listen=127.0.0.1:0",
    "--reflect",
    "plane=batch",
    // A reflector that stood still on a busy machine passes on what has come meanwhile.
    "--reflect",
    "max-age=600s",
    "--http",
    "127.0.0.1:0",
];

/// Starts such a daemon on a store, at a socket in a folder.
#[track_caller]
fn start(folder: &Path, store: &str, more: &[&str]) -> Server {
    let address = format!("unix:{}", folder.join("socket").display());
    Server::listen(&address, store, &[BOTH, more].concat())
}

/// Returns the address of its pages.
fn pages(server: &Server) -> String {
    server.ready["http"].as_str().unwrap().to_owned()
}

/// Returns the name of a group of its reflector, in the form that members use.
fn group(server: &Server, id: u32) -> String {
    format!("{id}@{}", server.ready["reflect"]["addresses"][0].as_str().unwrap())
}

#[track_caller]
fn page(server: &Server, path: &str) -> String {
    let (status, body) = http(&pages(server), "GET", path, "");
    assert_eq!(status, 200, "{path}: {body}");
    body
}

#[track_caller]
fn reflect(words: &[&str]) -> harness::Ended {
    let mut command = program();
    command.arg("reflect").args(words);
    run_with(command, b"")
}

#[test]
fn one_page_shows_all_roles() {
    let folder = harness::folder();
    let server = start(folder.path(), "mem:", &[]);
    server.run(["write", "a", "x"]).ok();
    let listener = Joined::join(&group(&server, 5), &[]);
    reflect(&["send", &group(&server, 5), "hello"]).ok();
    assert_eq!(listener.hear(), "hello");

    let text = page(&server, "/metrics");
    for line in [
        "nacre_store_objects 1.0",
        "nacre_reflect_copies_total 1",
        "nacre_reflect_plane{plane=\"batch\"} 1.0",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
    assert_eq!(text.matches("# TYPE nacre_build_info ").count(), 1, "it is one text");
    assert_eq!(page(&server, "/healthz"), "ok\n");
    let text = page(&server, "/");
    for part in [
        "<h2>store</h2>",
        "<h2>reflect</h2>",
        "Requests a second",
        "Datagrams a second",
        "<svg",
        "/groups",
        "1 done, 0 refused",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let groups: Value = serde_json::from_str(&page(&server, "/groups")).unwrap();
    assert_eq!(groups["groups"][0]["members"], 1);
    let table = reflect(&["groups", "--http", &pages(&server)]).text();
    assert!(table.contains("by the batch plane"), "{table}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    listener.next("lost");
}

#[test]
fn a_page_in_an_operators_browser_changes_and_reads_nothing() {
    let folder = harness::folder();
    let server = start(folder.path(), "mem:", &[]);
    let change = json!({ "location": "harbour", "reflector": "192.0.2.1:7400" }).to_string();
    // The requests that a foreign site's script could make: one without a preflight, then one under a name that points
    // here.
    let foreign = ["Host: evil.example", "Origin: http://evil.example", "Content-Type: text/plain"];
    let local = ["Host: localhost", "Origin: http://evil.example", "Content-Type: text/plain"];
    assert_eq!(request(&pages(&server), "POST", "/locations", &foreign, &change).0, 421);
    assert_eq!(request(&pages(&server), "POST", "/locations", &local, &change).0, 405);
    assert_eq!(request(&pages(&server), "PUT", "/locations", &local, &change).0, 405);
    assert_eq!(request(&pages(&server), "GET", "/locations", &foreign, "").0, 421);
    let locations: Value = serde_json::from_str(&page(&server, "/locations")).unwrap();
    assert_eq!(locations["locations"], json!({}));
    assert_eq!(server.run(["ls"]).text(), "");

    // Another name is accepted if the operator gave it, and another address is listened on if they allowed it.
    let named = Server::start("mem:", &["--http", "127.0.0.1:0", "--http-host", "status.example"]);
    let host = ["Host: Status.Example:80"];
    assert_eq!(request(&pages(&named), "GET", "/healthz", &host, "").0, 200);
    for words in [&["serve", "--store", "mem:"][..], &["reflect", "serve"]] {
        let mut command = program();
        command.args(words).args(["--listen", "127.0.0.1:0", "--http", "0.0.0.0:0", "--log", "error"]);
        if words[0] == "serve" {
            command.arg("--open");
        }
        run_with(command, b"").failed(2, &["0.0.0.0:0", "--http-open"]);
    }
    let open = Reflector::start(&["--http", "0.0.0.0:0", "--http-open"]);
    let port = open.http.rsplit(':').next().unwrap();
    assert_eq!(http(&format!("http://127.0.0.1:{port}"), "GET", "/healthz", "").0, 200);
}

#[test]
fn locations_are_moved_over_the_daemons_own_connection() {
    let folder = harness::folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (key, other) = (path("key"), path("other"));
    for file in [&key, &other] {
        let mut keygen = program();
        keygen.args(["keygen", file]);
        run_with(keygen, b"").ok();
    }
    // Over TCP with the key; a reflector alone takes the same calls at its own address.
    let both = Server::listen(
        "127.0.0.1:0",
        "mem:",
        &[BOTH, &["--key", &key, "--reflect", "group=*:open"]].concat(),
    );
    let alone = format!("unix:{}", path("alone"));
    let reflector = Reflector::start(&["--admin", &alone]);
    assert_eq!(reflector.ready["admin"], alone.as_str());
    let there = group(&both, 5);
    let mut moved = program();
    moved.args(["reflect", "move", "harbour", "--to", &there, "--admin", &both.uri, "--key", &key, "--json"]);
    assert_eq!(run_with(moved, b"").json()["location"], "harbour");
    reflect(&["move", "harbour", "--to", &there, "--admin", &both.uri]).failed(1, &["key"]);
    reflect(&["move", "harbour", "--to", &there, "--admin", &both.uri, "--key", &other]).failed(1, &["key"]);
    reflect(&["move", "harbour", "--to", &there, "--admin", &alone]).ok();

    let locations: Value = serde_json::from_str(&page(&both, "/locations")).unwrap();
    assert_eq!(locations["locations"]["harbour"]["group"], 5);
    assert_eq!(reflector.get("/locations")["locations"]["harbour"]["group"], 5);
    // The map is one of the daemon's store, where every client finds it. Beside it are the object that tells older programs so, and
    // the secret of relays.
    let place = both.run(["map", "get", "locations", "harbour", "--key", &key]).text();
    assert!(place.starts_with("5 127.0.0.1:"), "{place}");
    let objects = both.run(["ls", "--key", &key]).text();
    assert_eq!(objects, "nacre/map/locations\nreflect/locations\nreflect/locations-relay");
    let listener = Joined::join(&format!("harbour@{}", reflector.address), &[]);
    reflect(&["send", &there, "found"]).ok();
    assert_eq!(listener.hear(), "found");
    reflect(&["move", "harbour", "--remove", "--admin", &alone]).ok();
    reflect(&["move", "harbour", "--remove", "--admin", &alone]).failed(1, &["no location \"harbour\""]);

    // A reflector keeps no objects, and reports that; a daemon without one cannot move locations.
    let mut ls = program();
    ls.args(["ls", "--store", &alone]);
    run_with(ls, b"").failed(1, &["keeps no objects"]);
    let plain = Server::in_memory();
    reflect(&["move", "harbour", "--to", &there, "--admin", &plain.uri]).failed(1, &["role reflect"]);
    reflect(&["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).failed(2, &["--admin", "--key"]);
}

#[test]
fn locations_of_an_older_store_are_followed_and_move_into_the_map_with_the_first_change() {
    const OLD: &str = "reflect/locations";
    let store = Server::in_memory();
    let reflector = Reflector::start(&["--store", &store.uri]);
    let at = |name: &str, id: u32| {
        until(&format!("{name} is in group {id}"), || {
            let place = reflector.get("/locations")["locations"][name]["group"].clone();
            (place == id).then_some(())
        });
    };
    for (name, id) in [("harbour", 5), ("lighthouse", 7)] {
        store.run(["keys", "set", OLD, name, &format!("{id} {}", reflector.address)]).ok();
        at(name, id);
    }
    store.run(["map", "get", "locations"]).failed(1, &["no map"]);
    let listener = Joined::join(&format!("harbour@{}", reflector.address), &[]);

    reflect(&["move", "harbour", "--to", &reflector.group(6), "--store", &store.uri]).ok();
    at("harbour", 6);
    at("lighthouse", 7);
    reflector.until(6, "the member has moved", |group| group["members"] == 1);
    reflect(&["send", &reflector.group(6), "here"]).ok();
    assert_eq!(listener.hear(), "here");
    let entries = store.run(["map", "get", "locations", "--json"]).json();
    let names: Vec<_> = entries["entries"].as_array().unwrap().iter().map(|entry| &entry["entry"]).collect();
    assert_eq!(names, ["harbour", "lighthouse"]);
    // An older program finds what it cannot take for a location.
    let left = store.run(["keys", "ls", OLD]).text();
    assert!(left.contains("The places of all locations are in the map"), "{left}");
    for name in ["harbour", "lighthouse"] {
        assert_eq!(store.run(["keys", "get", OLD, name]).text(), "moved");
    }
}

#[test]
fn a_stop_of_both_roles_under_load_loses_nothing_acknowledged() {
    let folder = harness::folder();
    let store = file(&folder.path().join("data"));
    let state = folder.path().join("state");
    fs::write(&state, "the world as it is").unwrap();
    let server = start(folder.path(), &store, &["--reflect", "state-every=100ms"]);
    let member = Joined::join(&group(&server, 5), &["--state", state.to_str().unwrap()]);
    until("the state is stored", || {
        let text = page(&server, "/metrics");
        text.lines()
            .any(|line| {
                line.starts_with("nacre_reflect_control_plane_events_total{event=\"state_stored\"} ")
                    && !line.ends_with(" 0")
            })
            .then_some(())
    });
    let reflecting = server.ready["reflect"].clone();
    let acknowledged = Mutex::new(Vec::new());
    let status = std::thread::scope(|scope| {
        for writer in 0..4 {
            let (uri, acknowledged) = (server.uri.clone(), &acknowledged);
            scope.spawn(move || {
                let store = nacre::open(&uri).unwrap().blocking();
                for number in 0.. {
                    let name = format!("object {writer} {number}");
                    match store.object(&name).and_then(|object| object.write(0, name.clone())) {
                        Ok(_) => acknowledged.lock().unwrap().push(name),
                        Err(_) => break,
                    }
                }
            });
        }
        until("enough is written", || (acknowledged.lock().unwrap().len() > 500).then_some(()));
        server.stop(Signal::TERM)
    });
    assert_eq!(status.code(), Some(0));
    member.next("lost");
    // The address stays the same: a group without a location is known by its reflector's address.
    let listen = format!("listen={}", reflecting["addresses"][0].as_str().unwrap());
    let address = format!("unix:{}", folder.path().join("socket").display());
    let flags = ["--roles", "store,reflect", "--reflect", &listen, "--reflect", "plane=batch"];
    let again = Server::listen(&address, &store, &flags);
    let reader = nacre::open(&again.uri).unwrap().blocking();
    for name in acknowledged.into_inner().unwrap() {
        assert_eq!(reader.object(&name).unwrap().read(0..100).unwrap().data, name.as_bytes(), "{name}");
    }
    // The group's state is there for the first member that joins.
    let copy = folder.path().join("copy");
    let joined = Joined::begin(&group(&again, 5), &["--state", copy.to_str().unwrap()]);
    joined.next("state");
    assert_eq!(fs::read_to_string(&copy).unwrap(), "the world as it is");
}

#[test]
fn a_second_signal_ends_a_daemon_at_once() {
    // Where heartbeats are rare, a reflector takes up to a second to tell its members that it stops. A daemon that was done
    // before the second signal says nothing about that one.
    let ended = || {
        let folder = harness::folder();
        let address = format!("unix:{}", folder.path().join("socket").display());
        let mut command = program();
        command.args(["--json", "serve", "--store", "mem:", "--listen", &address]).args(BOTH);
        command.args(["--reflect", "heartbeat=15s"]);
        let server = Server::spawn(command);
        let _member = Joined::join(&group(&server, 5), &[]);
        server.signal(Signal::TERM);
        let started = Instant::now();
        until("it is stopping", || server.log().contains("stopping").then_some(()));
        // Signals that come together are one: the second is sent when the time for that is over.
        until("half a second is over", || (started.elapsed() > Duration::from_millis(600)).then_some(()));
        shell_code(server.stop(Signal::TERM))
    };
    assert!((0..10).any(|_| ended() == 143), "a second signal ends nothing");
}

#[test]
fn signals_that_come_together_are_one_and_stop_a_daemon_in_good_order() {
    for signals in [[Signal::TERM, Signal::INT], [Signal::HUP, Signal::TERM], [Signal::HUP, Signal::HUP]] {
        let folder = harness::folder();
        let server = Server::start(&file(&folder.path().join("store")), &[]);
        server.run(["write", "a", "kept"]).ok();
        server.signal(signals[0]);
        assert_eq!(server.stop(signals[1]).code(), Some(0), "{signals:?}");
        // A stop in good order leaves nothing to replay.
        let again = Server::start(&file(&folder.path().join("store")), &[]);
        assert_eq!(again.run(["info", "--json"]).json()[0]["report"]["replay_bytes"], 0);
        assert_eq!(again.run(["read", "a"]).ok(), b"kept");
    }
    // Whoever starts it with nohup means it to outlive the terminal.
    let folder = harness::folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let mut plain = program();
    plain.args(["serve", "--json", "--store", "mem:", "--listen", &address]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    let server = Server::spawn(shell);
    server.signal(Signal::HUP);
    server.run(["write", "a", "still there"]).ok();
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn one_file_configures_all_roles_and_the_line_wins() {
    let folder = harness::folder();
    let socket = folder.path().join("socket");
    let config = folder.path().join("nacre.toml");
    let text = format!(
        "roles = [\"store\", \"reflect\"]\nstore = \"mem:\"\nlisten = [\"unix:{}\"]\nhttp = \"127.0.0.1:0\"\nlog = \"warn\"\n\
         [reflect]\nlisten = [\"127.0.0.1:0\"]\ngroup = [\"5:sequence\", \"6:members=1\"]\nplane = \"sendto\"\n",
        socket.display()
    );
    fs::write(&config, &text).unwrap();
    let run = |flags: &[&str]| {
        let mut command = program();
        command.args(["serve", "--json"]).args(flags).current_dir(folder.path());
        command
    };
    let server = Server::spawn(run(&[]));
    assert_eq!(server.ready["reflect"]["plane"], "sendto");
    let listener = Joined::join(&group(&server, 5), &[]);
    reflect(&["send", &group(&server, 5), "x"]).ok();
    assert!(listener.next("datagram")["sequence"].is_u64());
    drop(server);
    // The line sets one group, the file another.
    let server = Server::spawn(run(&["--reflect", "plane=batch", "--reflect", "group=6:members=2"]));
    assert_eq!(server.ready["reflect"]["plane"], "batch");
    let _members = [Joined::join(&group(&server, 6), &[]), Joined::join(&group(&server, 6), &[])];
    let listener = Joined::join(&group(&server, 5), &[]);
    reflect(&["send", &group(&server, 5), "x"]).ok();
    assert!(listener.next("datagram")["sequence"].is_u64());
    drop(server);
    // A daemon without the role ignores the role's table, but not the errors in it.
    let server = Server::spawn(run(&["--roles", "store"]));
    assert!(server.ready["reflect"].is_null());
    drop(server);
    for (wrong, line, near) in [
        ("plain = \"sendto\"\n", "line 10", "\"plane\""),
        ("heart-beat = \"1s\"\n", "line 10", "\"heartbeat\""),
    ] {
        fs::write(&config, format!("{text}{wrong}")).unwrap();
        run_with(run(&["--roles", "store"]), b"").failed(2, &[line, near]);
    }
    fs::write(&config, format!("members-versoin = 2\n{text}")).unwrap();
    run_with(run(&[]), b"").failed(2, &["line 1 of nacre.toml", "members-versoin", "\"members-version\""]);
    fs::write(&config, "threads = 1.5\n").unwrap();
    run_with(run(&[]), b"").failed(2, &["line 1 of nacre.toml", "threads"]);
}

#[test]
fn a_daemon_of_one_role_has_nothing_of_the_other() {
    let folder = harness::folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let mut command = program();
    command.args(["--json", "serve", "--roles", "reflect", "--listen", &address, "--log", "warn"]);
    command.args(&BOTH[2..]);
    let server = Server::spawn(command);
    assert_eq!(server.uri, address);
    server.run(["write", "a", "x"]).failed(1, &["keeps no objects"]);
    server.run(["info"]).failed(1, &["\"info\""]);
    let text = page(&server, "/metrics");
    assert!(text.contains("nacre_reflect_members 0.0") && !text.contains("nacre_store"), "{text}");
    assert_eq!(page(&server, "/healthz"), "ok\n");
    reflect(&["move", "harbour", "--to", &group(&server, 5), "--admin", &address]).ok();
    let locations: Value = serde_json::from_str(&page(&server, "/locations")).unwrap();
    assert_eq!(locations["locations"]["harbour"]["group"], 5);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));

    let plain = Server::start("mem:", &["--http", "127.0.0.1:0"]);
    assert!(plain.ready["reflect"].is_null());
    assert_eq!(http(&pages(&plain), "GET", "/locations", "").0, 404);
    for (words, part) in [
        (&["--roles", "reflect", "--store", "mem:"][..], "--reflect store"),
        (&["--reflect", "open"], "--roles"),
        (&["--roles", "store,reflect", "--reflect", "colour=red"], "colour"),
        (&["--roles", "store,reflect", "--reflect", "listen=0.0.0.0:0"], "--open"),
    ] {
        let mut command = program();
        command.args(["serve", "--listen", &address]).args(words).current_dir(folder.path());
        run_with(command, b"").failed(2, &[part]);
    }
}

#[test]
fn a_daemon_stands_in_front_of_another_store() {
    let folder = harness::folder();
    let behind = Server::start(&file(&folder.path().join("data")), &[]);
    let front = start(folder.path(), &behind.uri, &[]);
    front.run(["write", "a", "from the front"]).ok();
    assert_eq!(behind.run(["read", "a"]).ok(), b"from the front");
    front.run(["write", "a", "x", "--if-version", "0"]).failed(3, &["at version 1"]);
    assert_eq!(front.run(["info", "--json"]).json()[0]["report"]["objects"], 1);
    assert!(front.run(["scrub"]).text().contains("no damage"));
    assert_eq!(page(&front, "/healthz"), "ok\n");
    let mut command = program();
    command.args([
        "serve",
        "--store",
        &behind.uri,
        "--listen",
        "127.0.0.1:0",
        "--open",
        "--durability",
        "none",
    ]);
    run_with(command, b"").failed(2, &["durability"]);

    behind.kill();
    let (status, text) = http(&pages(&front), "GET", "/healthz", "");
    assert_eq!(status, 503, "{text}");
    front.run(["read", "a"]).failed(1, &["\"a\""]);
    assert_eq!(front.stop(Signal::TERM).code(), Some(0));
}
