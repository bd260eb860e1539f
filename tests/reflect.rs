//! `nacre reflect`, through the built program, on loopback: members receive each other's datagrams, groups are
//! separate, locations move, states are handed over, tokens are required, and the pages report it all.

mod harness;

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use harness::reflect::{Joined, Reflector, free_port, http, request, until};
use harness::{Server, program, run_with};
use nacre_daemon::reflect::{Relocation, relocate_at};
use nacre_reflect::token::{Grant, Rights, Scope, Token, TokenKey};
use nacre_rpc::ClusterKey;
use rustix::process::Signal;
use serde_json::{Value, json};

#[track_caller]
fn reflect(words: &[&str]) -> harness::Ended {
    let mut command = program();
    command.arg("reflect").args(words);
    run_with(command, b"")
}

#[test]
fn what_one_member_sends_every_other_member_gets() {
    let reflector = Reflector::start(&[]);
    let group = reflector.group(5);
    let mut first = Joined::join(&group, &[]);
    let mut second = Joined::join(&group, &[]);
    let mut echoing = Joined::join(&group, &["--echo"]);
    let stranger = Joined::join(&reflector.group(6), &[]);
    first.say("from the first");
    assert_eq!(second.hear(), "from the first");
    assert_eq!(echoing.hear(), "from the first");
    second.say("from the second");
    // A member does not receive its own datagrams, unless it asks for them.
    assert_eq!(first.hear(), "from the second");
    assert_eq!(echoing.hear(), "from the second");
    echoing.say("from the third");
    assert_eq!(echoing.hear(), "from the third");
    assert_eq!(first.hear(), "from the third");
    assert_eq!(second.hear(), "from the third");

    let report = reflector.group_report(5);
    assert_eq!(
        (&report["members"], &report["admitted"], &report["copies"]),
        (&json!(3), &json!(3), &json!(7))
    );
    let (code, rest) = first.close();
    assert_eq!(code, 0);
    assert!(rest.iter().all(|event| event["event"] != "datagram"), "{rest:?}");
    reflector.until(5, "the first has left", |report| report["members"] == 2);
    let (_, rest) = stranger.close();
    assert!(rest.iter().all(|event| event["event"] != "datagram"), "{rest:?}");

    // A plain socket that has not joined is not served.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(b"let me in", reflector.address).unwrap();
    until("the stranger is counted", || {
        (reflector.report()["refused"]["non_members"].as_u64() == Some(1)).then_some(())
    });
    assert_eq!(reflector.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn standard_output_is_what_arrives_and_standard_input_is_sent() {
    let reflector = Reflector::start(&["--group", "5:sequence"]);
    let group = reflector.group(5);
    let listener = |flags: &[&str]| {
        let mut command = program();
        command.args(["reflect", "join", &group, "--count", "2", "--timeout", "110s"]).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let (text, raw) = (listener(&[]), listener(&["--raw"]));
    reflector.until(5, "both are in", |report| report["members"] == 2);
    let mut send = program();
    send.args(["reflect", "send", &group]);
    run_with(send, b"one line\nwith \x1b[2Jtricks\n").ok();
    let (text, raw) = (text.wait_with_output().unwrap(), raw.wait_with_output().unwrap());
    assert_eq!(text.status.code(), Some(0), "{text:?}");
    assert_eq!(String::from_utf8(text.stdout).unwrap(), "one line\nwith \\x1b[2Jtricks\n");
    assert_eq!(raw.stdout, b"\x08\0\0\0one line\x0f\0\0\0with \x1b[2Jtricks".to_vec());
    let said = String::from_utf8(text.stderr).unwrap();
    assert!(said.contains("joined") && said.contains(&reflector.address.to_string()), "{said}");

    // No further datagram arrives, which is a failure and shows in the exit code.
    let ended = reflect(&["join", &group, "--count", "1", "--timeout", "200ms"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("200ms"), "{ended:?}");
}

#[test]
fn numbered_groups_show_their_numbers_and_others_do_not() {
    let reflector = Reflector::start(&["--group", "5:sequence"]);
    for (id, numbered) in [(5, true), (6, false)] {
        let listener = Joined::join(&reflector.group(id), &[]);
        let mut sender = Joined::join(&reflector.group(id), &[]);
        for number in 0..3 {
            sender.say(&format!("number {number}"));
        }
        let events: Vec<Value> = (0..3).map(|_| listener.next("datagram")).collect();
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event["text"], format!("number {number}"));
            match numbered {
                true => assert_eq!(
                    event["sequence"].as_u64().unwrap(),
                    events[0]["sequence"].as_u64().unwrap() + number as u64
                ),
                false => assert!(event["sequence"].is_null()),
            }
        }
    }
}

#[test]
fn groups_that_are_ports_are_apart() {
    // Next to the shared one.
    let ports = [free_port(), free_port()];
    let list = format!("{},{}", ports[0], ports[1]);
    let reflector = Reflector::start(&["--groups", &list]);
    let first = Joined::join(&format!("{}@127.0.0.1", ports[0]), &[]);
    let second = Joined::join(&format!("127.0.0.1:{}", ports[1]), &[]);
    reflect(&["send", &format!("{}@127.0.0.1", ports[0]), "to the first"]).ok();
    reflect(&["send", &format!("{}@127.0.0.1", ports[1]), "to the second"]).ok();
    assert_eq!(first.hear(), "to the first");
    assert_eq!(second.hear(), "to the second");
    let groups = reflector.get("/groups");
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|group| group["group"].as_str().unwrap()).collect();
    for port in &ports {
        assert!(names.contains(&port.to_string().as_str()), "{names:?}");
    }
}

#[test]
fn ipv6_is_the_same() {
    let reflector = Reflector::listen("[::1]:0", &[]);
    let listener = Joined::join(&reflector.group(1), &[]);
    reflect(&["send", &reflector.group(1), "over six"]).ok();
    assert_eq!(listener.hear(), "over six");
}

#[test]
fn a_token_is_asked_for_where_there_is_a_key() {
    let folder = harness::folder();
    let key = folder.path().join("key");
    let key = key.to_str().unwrap();
    run_with(
        {
            let mut command = program();
            command.args(["keygen", key]);
            command
        },
        b"",
    )
    .ok();
    let public = reflect(&["token-key", "--key", key]).text();
    let reflector = Reflector::start(&["--token-key", public.trim(), "--group", "9:open"]);
    let port = reflector.address.port();
    let token = |words: &[&str]| reflect(&[&["token", "--key", key], words].concat()).text();
    let refused = |flags: &[&str], why: &str| {
        reflect(&[&["send", &reflector.group(5), "x"], flags].concat()).failed(1, &[why]);
    };
    refused(&[], "token");
    let signing = TokenKey::new(&ClusterKey::load(Path::new(key)).unwrap());
    let (scopes, rights) = (vec![Scope::Any], Rights::ALL);
    let past = Grant { scopes, rights, identity: None, expires_unix_s: 1, address: None };
    let expired = Token::sign(&signing, &past).unwrap().to_string();
    refused(&["--token", &expired], "expired");
    refused(&["--token", &token(&[&format!("{port}/6")])], "another group");
    refused(&["--token", &token(&[&format!("{port}/5"), "--address", "192.0.2.1"])], "another address");
    let mut forged = token(&["*"]);
    let other = if forged.remove(20) == 'A' { "B" } else { "A" };
    forged.insert_str(20, other);
    refused(&["--token", &forged], "token");

    let good = token(&[&format!("{port}/5"), "--address", "127.0.0.1"]);
    let listener = Joined::join(&reflector.group(5), &["--token", &good]);
    reflect(&["send", &reflector.group(5), "with permission", "--token", &good]).ok();
    assert_eq!(listener.hear(), "with permission");
    drop(Joined::join(&reflector.group(9), &[]));

    reflect(&["token", "*"]).failed(2, &["--key"]);
    let exposed = folder.path().join("exposed");
    std::fs::copy(key, &exposed).unwrap();
    std::fs::set_permissions(&exposed, std::fs::Permissions::from_mode(0o644)).unwrap();
    reflect(&["token", "*", "--key", exposed.to_str().unwrap()]).failed(1, &["chmod 600"]);
}

#[test]
fn who_is_banned_is_out_with_a_word_and_does_not_come_back() {
    let folder = harness::folder();
    let key = folder.path().join("key");
    let key = key.to_str().unwrap();
    let mut keygen = program();
    keygen.args(["keygen", key]);
    run_with(keygen, b"").ok();
    let public = reflect(&["token-key", "--key", key]).text();
    let reflector = Reflector::start(&["--token-key", &public]);
    let admin = ["--admin", &reflector.admin];
    let token = |words: &[&str]| reflect(&[&["token", "--key", key], words].concat()).text();
    let (ann, bob) = (token(&["*", "--identity", "ann"]), token(&["*", "--identity", "bob"]));
    let listener = Joined::join(&reflector.group(5), &["--token", &ann]);
    let mut guest = Joined::join(&reflector.group(5), &["--token", &bob]);
    reflector.until(5, "both are in", |report| report["members"] == 2);
    reflect(&[&["kick", "nobody"][..], &admin].concat()).ok();
    let said = reflect(&[&["ban", "bob", "--for", "1h"][..], &admin].concat()).text();
    assert!(said.contains("1 members"), "{said}");
    reflector.until(5, "one is out", |report| report["members"] == 1);
    assert_eq!(guest.ended(), 1);
    // The log is collected by a separate thread.
    until("it says why", || guest.log().contains("does not let it in").then_some(()));
    reflect(&["send", &reflector.group(5), "x", "--token", &bob]).failed(1, &["does not let it in"]);
    reflect(&[&["ban", "bob", "--lift"][..], &admin].concat()).ok();
    reflect(&[&["ban", "bob", "--lift"][..], &admin].concat()).failed(1, &["no ban of"]);
    reflect(&["send", &reflector.group(5), "back again", "--token", &bob]).ok();
    assert_eq!(listener.hear(), "back again");

    // Rights: one that may only listen is not heard, one that may only speak hears nothing.
    let mute = token(&["*", "--identity", "mute", "--rights", "receive"]);
    let deaf = token(&["*", "--identity", "deaf", "--rights", "send"]);
    let listening = Joined::join(&reflector.group(5), &["--token", &mute]);
    let talking = Joined::join(&reflector.group(5), &["--token", &deaf]);
    reflector.until(5, "three are in", |report| report["members"] == 3);
    reflect(&["send", &reflector.group(5), "unheard", "--token", &mute]).ok();
    let mut talking = talking;
    talking.say("heard");
    assert_eq!(listener.hear(), "heard");
    assert_eq!(listening.hear(), "heard");
}

#[test]
fn a_store_that_cannot_be_reached_is_one_line_of_the_log() {
    let (begun, gone) = (Instant::now(), free_port());
    let reflector = Reflector::start(&["--store", &format!("nacre://127.0.0.1:{gone}")]);
    let failed = || reflector.report()["control"]["state_failed"].as_u64().unwrap();
    until("many have failed", || (failed() > 500).then_some(()));
    // The log is collected by a separate thread.
    until("that is logged", || reflector.log().contains("neither stored nor loaded").then_some(()));
    let log = reflector.log();
    let reported = log.lines().filter(|line| line.contains("neither stored nor loaded")).count();
    // It is told of again once a minute.
    let most = 2 + begun.elapsed().as_secs() as usize / 60;
    assert!((1..=most).contains(&reported), "{reported} lines: {}", log.lines().take(20).collect::<String>());
    assert!(log.lines().count() < 50, "{} lines", log.lines().count());
}

#[test]
fn a_state_is_fetched_from_a_member_and_handed_to_who_joins() {
    let folder = harness::folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // More than fits into one datagram.
    let state: String = (0..5000).map(|number| format!("tile {number}\n")).collect();
    std::fs::write(path("first"), &state).unwrap();
    // Joiners are killed here, and have to be forgotten soon.
    let reflector = Reflector::start(&["--state-every", "200ms", "--heartbeat", "500ms", "--expiry", "3s"]);
    let group = reflector.group(3);
    let first = Joined::join(&group, &["--state", &path("first")]);
    reflector.until(3, "the state is fetched", |report| report["state_version"].as_u64() > Some(0));
    let second = Joined::begin(&group, &["--state", &path("second")]);
    let event = second.next("state");
    assert_eq!(event["bytes"], state.len());
    assert_eq!(std::fs::read_to_string(path("second")).unwrap(), state);

    // The first member is gone: the second is asked for the state, and its newer one is handed to a third.
    first.close();
    std::fs::write(path("second"), "a new world").unwrap();
    let version = event["version"].as_u64().unwrap();
    reflector
        .until(3, "the newer state is fetched", |report| report["state_version"].as_u64() > Some(version));
    until("the third gets the newer state", || {
        let third = Joined::begin(&group, &["--state", &path("third")]);
        third.next("state");
        (std::fs::read_to_string(path("third")).unwrap() == "a new world").then_some(())
    });

    // What a file held before stays beside it, unless that is not wanted. A joiner may be asked for its own state first; the
    // second member's comes back then.
    let joined = |name: &str, flags: &[&str]| {
        std::fs::write(path(name), "my own").unwrap();
        let joiner = Joined::begin(&group, &[&["--state", &path(name)], flags].concat());
        let event = joiner.next("state");
        (std::fs::read_to_string(path(name)).unwrap() == "a new world").then_some(event)
    };
    until("a file is kept", || {
        let event = joined("mine", &[])?;
        assert_eq!(std::fs::read_to_string(event["backup"].as_str()?).unwrap(), "my own");
        Some(())
    });
    until("a file is not kept", || {
        assert_eq!(joined("forced", &["--force"])?.get("backup"), None);
        Some(())
    });
    assert!(!folder.path().join("forced.~1~").exists());
}

#[test]
fn a_location_moves_between_two_reflectors_while_members_send() {
    let store = Server::in_memory();
    let flags = ["--store", &store.uri];
    let (here, there) = (Reflector::start(&flags), Reflector::start(&flags));
    let orders = here.admin.clone();
    reflect(&["move", "harbour", "--to", &here.group(1), "--admin", &orders]).ok();
    let at = here.address.to_string();
    let what = format!("harbour@{at}");
    let mut members: Vec<Joined> = (0..4).map(|_| Joined::join(&what, &[])).collect();
    here.until(1, "all are here", |report| report["members"] == 4);

    let mut sent = 0;
    let mut round = |members: &mut Vec<Joined>| {
        for speaker in 0..members.len() {
            sent += 1;
            let line = format!("line {sent}");
            members[speaker].say(&line);
            for (number, member) in members.iter().enumerate().filter(|(number, _)| *number != speaker) {
                assert_eq!(member.hear(), line, "member {number}");
            }
        }
    };
    round(&mut members);
    // The store is changed, and both reflectors follow it.
    reflect(&["move", "harbour", "--to", &there.group(2), "--store", &store.uri]).ok();
    there.until(2, "all have moved", |report| report["members"] == 4);
    here.until(1, "all have left", |report| report.is_null() || report["members"] == 0);
    round(&mut members);
    // A member that asks the old reflector is redirected to the new one.
    let mut late = Joined::join(&what, &[]);
    late.say("found you");
    for member in &members {
        assert_eq!(member.hear(), "found you");
    }
    for member in members {
        let (code, rest) = member.close();
        assert_eq!(code, 0);
        assert!(rest.iter().all(|event| event["event"] != "lost"), "{rest:?}");
    }
    assert_eq!(there.get("/locations")["locations"]["harbour"]["reflectors"][0], there.address.to_string());
    reflect(&["move", "harbour", "--remove", "--admin", &orders]).ok();
    reflect(&["send", &what, "x"]).failed(1, &["no such location"]);
}

#[test]
fn members_are_told_when_a_reflector_stops() {
    let reflector = Reflector::start(&["--heartbeat", "1h"]);
    let member = Joined::join(&reflector.group(1), &[]);
    assert_eq!(reflector.stop(Signal::INT).code(), Some(0));
    // Long before it could have missed a heartbeat, which would take hours.
    member.next("lost");
}

#[test]
fn a_member_of_a_stopped_reflector_joins_the_next_one_at_that_address() {
    let address = format!("127.0.0.1:{}", free_port());
    let reflector = Reflector::listen(&address, &[]);
    let mut first = Joined::join(&reflector.group(1), &[]);
    let second = Joined::join(&reflector.group(1), &[]);
    reflector.stop(Signal::TERM);
    let again = Reflector::listen(&address, &[]);
    again.until(1, "both are back", |report| report["members"] == 2);
    first.next("joined");
    second.next("joined");
    first.say("still here");
    assert_eq!(second.hear(), "still here");
}

#[test]
fn its_pages_say_what_is_so() {
    let reflector = Reflector::start(&["--group", "5:members=1"]);
    let member = Joined::join(&reflector.group(5), &[]);
    reflect(&["send", &reflector.group(5), "x"]).failed(1, &["full"]);
    let table = reflect(&["groups", "--http", &reflector.http]).text();
    let name = format!("{}/5", reflector.address.port());
    assert!(table.lines().any(|line| line.starts_with(&name)), "{table}");
    assert!(table.contains("by the batch plane"), "{table}");
    let one = reflect(&["groups", &name, "--members", "--http", &reflector.http, "--json"]).json();
    assert_eq!(one["groups"].as_array().unwrap().len(), 1);
    assert_eq!(one["groups"][0]["list"].as_array().unwrap().len(), 1);
    reflect(&["groups", "1/1", "--http", &reflector.http]).failed(1, &["there is no group 1/1"]);

    let (status, metrics) = http(&reflector.http, "GET", "/metrics", "");
    assert_eq!(status, 200);
    for line in [
        "nacre_reflect_members 1.0".to_owned(),
        format!("nacre_reflect_group_members{{group=\"{name}\"}} 1.0"),
        "nacre_reflect_plane{plane=\"batch\"} 1.0".to_owned(),
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
    }
    let open = ["Host: localhost", "Accept: application/openmetrics-text; version=1.0.0"];
    assert!(request(&reflector.http, "GET", "/metrics", &open, "").1.ends_with("\n# EOF\n"));
    assert_eq!(http(&reflector.http, "GET", "/healthz", ""), (200, "ok\n".to_owned()));
    let (status, page) = http(&reflector.http, "GET", "/", "");
    assert!(status == 200 && page.contains(&name), "{page}");
    assert_eq!(http(&reflector.http, "GET", "/groups?group=x", "").0, 400);
    assert_eq!(http(&reflector.http, "POST", "/locations", "{}").0, 405);
    assert_eq!(http(&reflector.http, "GET", "/nothing", "").0, 404);
    drop(member);
}

#[test]
fn settings_come_from_the_file_too() {
    let folder = harness::folder();
    let path = folder.path().join("nacre.toml");
    let text = "[reflect]\nlisten = [\"127.0.0.1:0\"]\ngroup = [\"*:sequence\"]\nplane = \"sendto\"\nhttp = \"127.0.0.1:0\"\n";
    std::fs::write(&path, text).unwrap();
    let mut command = program();
    command.args(["--json", "reflect", "serve", "--config", path.to_str().unwrap()]);
    let reflector = Reflector::spawn(command);
    assert_eq!(reflector.ready["plane"], "sendto");
    let listener = Joined::join(&reflector.group(1), &[]);
    reflect(&["send", &reflector.group(1), "x"]).ok();
    assert!(listener.next("datagram")["sequence"].is_u64());
    std::fs::write(&path, "[reflect]\ncolour = \"red\"\n").unwrap();
    reflect(&["serve", "--config", path.to_str().unwrap()]).failed(2, &["line 2", "colour"]);
}

#[test]
fn what_is_wrong_is_said() {
    reflect(&["serve", "--listen", "0.0.0.0:0"]).failed(2, &["--token-key", "--open"]);
    reflect(&["serve", "--listen", "127.0.0.1:0", "--heartbeat", "1s", "--expiry", "1s"])
        .failed(2, &["--expiry"]);
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    reflect(&["serve", "--listen", &address, "--plane", "batch"]).failed(1, &[&address]);
    // No member answers there: it listens, and sends nothing.
    reflect(&["send", &format!("1@{address}"), "x", "--timeout", "300ms"]).failed(1, &[&address]);
    let free = format!("127.0.0.1:{}", free_port());
    reflect(&["groups", "--http", &free]).failed(1, &["--http"]);
    for words in [
        &["join"][..],
        &["join", "@"],
        &["join", "x@127.0.0.1:0:1"],
        &["serve", "--plane", "steam"],
        &["serve", "--group", "5"],
        &["serve", "--groups", "9-8"],
        &["move", "x"],
        &["send", "1@127.0.0.1:7400", "x", "--token", "short"],
    ] {
        let ended = reflect(words);
        assert_eq!(ended.code, 2, "{words:?}: {ended:?}");
    }
}

#[test]
fn a_setting_for_a_group_that_is_none_is_refused() {
    let serve = |words: &[&str]| reflect(&[&["serve", "--listen", "127.0.0.1:0"], words].concat());
    for (words, parts) in [
        (&["--group", "1024:members=2"][..], &["--group 1024", "no such group", "up to 1023", "--ids"][..]),
        (&["--ids", "5", "--group", "5:sequence"], &["--group 5", "up to 4"]),
        (&["--groups", "7500-7510", "--group", "7511:sequence"], &["--group 7511", "--groups"]),
        (&["--group", "9/3:sequence"], &["--group 9/3"]),
        (&["--ids", "0"], &["--ids 0", "--groups"]),
        (&["--group", "5:token"], &["--group", "5", "nobody could join", "--token-key"]),
        (&["--group", "*:token"], &["--group *", "--token-key"]),
        (&["--joins-per-second", "0"], &["--joins-per-second"]),
        (&["--expiry", "3s", "--heartbeat", "2s"], &["--expiry", "2000 ms"]),
        (&["--expiry", "3s"], &["--expiry", "--heartbeat"]),
        (&["--heartbeat", "50d"], &["--heartbeat", "a day"]),
        (&["--backlog-bytes", "0"], &["--backlog-bytes", "65536"]),
        (&["--standby", "0.0.0.0:7400"], &["--standby", "0.0.0.0:7400"]),
        (&["--advertise", "192.0.2.1:0"], &["--advertise", "port 0"]),
    ] {
        let ended = serve(words);
        assert_eq!((ended.code, &ended.stdout[..]), (2, &b""[..]), "{words:?}: {ended:?}");
        assert!(parts.iter().all(|part| ended.stderr.contains(part)), "{words:?}: {ended:?}");
    }
    // In a daemon of several roles too, where a switch may be given as in the file.
    for (pair, part) in [("group=5000:sequence", "no such group"), ("open=perhaps", "true or false")] {
        let mut command = program();
        command.args(["serve", "--roles", "reflect", "--reflect", "listen=127.0.0.1:0", "--reflect", pair]);
        run_with(command, b"").failed(2, &[part]);
    }
    let mut command = program();
    let public = ["--reflect", "listen=0.0.0.0:0", "--reflect", "open=false"];
    command.args(["serve", "--roles", "reflect"]).args(public);
    run_with(command, b"").failed(2, &["can be reached by others"]);
    // What exists is taken, under each of its names.
    let free = free_port().to_string();
    let groups =
        ["--group", &format!("{free}:sequence"), "--group", "1023:members=2", "--group", "0/7:sequence"];
    let reflector = Reflector::start(&[&["--groups", &free][..], &groups].concat());
    Joined::join(&reflector.group(1023), &[]);
}

#[test]
fn a_place_that_cannot_be_is_no_place_for_a_location() {
    let folder = harness::folder();
    let map = harness::file(&folder.path().join("map"));
    for (to, part) in [
        ("5@0.0.0.0:7400", "not a machine's address"),
        ("5@127.0.0.1:0", "port 0"),
        ("5@224.0.0.1:7400", "one machine"),
        ("5@255.255.255.255:7400", "one machine"),
        ("1000000@127.0.0.1:7400", "999999"),
    ] {
        reflect(&["move", "harbour", "--to", to, "--store", &map]).failed(2, &[part]);
        reflect(&["move", "harbour", "--to", to, "--admin", "unix:/nowhere"]).failed(2, &[part]);
    }
    let there = ["move", "harbour", "--to", "5@127.0.0.1:7400"];
    let and = |words: &[&str]| reflect(&[&there, words].concat());
    and(&["--store", "mem:"]).failed(2, &["mem:", "gone", "--admin"]);
    and(&["--store", &map, "--admin", "unix:/nowhere"]).failed(2, &["--store", "--admin"]);
    and(&["--store", &map, "--standby", "127.0.0.1:7400"]).failed(2, &["twice"]);
    assert!(!folder.path().join("map").exists(), "nothing was made");
    and(&["--store", &map]).ok();
    // A reflector refuses it too, whoever asks.
    let reflector = Reflector::start(&[]);
    let admin = ["--admin", &reflector.admin];
    and(&admin).ok();
    let change = Relocation {
        location: "harbour".to_owned(),
        group: 5,
        reflectors: vec!["0.0.0.0:7400".parse().unwrap()],
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = reflector.admin.parse().unwrap();
    let refused = runtime.block_on(relocate_at(address, None, None, change)).unwrap_err();
    assert!(refused.message.contains("not a machine's address"), "{refused}");
    reflect(&[&["move", "nowhere", "--remove"][..], &admin].concat()).failed(1, &["nowhere"]);
    let key = folder.path().join("key");
    let key = key.to_str().unwrap();
    let mut keygen = program();
    keygen.args(["keygen", key]);
    run_with(keygen, b"").ok();
    reflect(&["token", "5", "--for", "0s", "--key", key]).failed(2, &["--for 0s"]);
}

#[test]
fn whoever_waits_in_vain_is_told() {
    // A socket that never answers: no other process can have its port.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let group = format!("5@{}", silent.local_addr().unwrap());
    let ended = reflect(&["join", &group, "--timeout", "10s"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("no answer from"), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("nobody answered within 10s; see whether a reflector runs"),
        "{}",
        ended.stderr
    );
    // A count of datagrams makes no difference.
    let ended = reflect(&["join", &group, "--count", "1", "--timeout", "100ms"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("nobody answered within 100ms"), "{}", ended.stderr);
}
