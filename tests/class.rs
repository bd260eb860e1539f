//! `nacre class`: classes that are installed, called, brought back and removed, in a folder and at a server.

mod harness;

use harness::{Ended, Server, folder, program, run_with};
use serde_json::json;

/// Runs something, again where a method took longer than the second that servers give it, as any may on a busy machine: then it has
/// changed nothing.
#[track_caller]
fn in_time(run: impl Fn() -> Ended) -> Ended {
    let is_late = |ended: &Ended| ended.stderr.contains("it ran for more than 1s");
    (0..20).map(|_| run()).find(|ended| !is_late(ended)).unwrap_or_else(&run)
}

/// Runs `nacre class` on a store.
#[track_caller]
fn class(store: &str, words: &[&str], input: &str) -> Ended {
    in_time(|| {
        let mut command = program();
        command.args(["--store", store, "class"]).args(words);
        run_with(command, input.as_bytes())
    })
}

/// Puts a class whose calls may stand still for long, as on a busy machine.
#[track_caller]
fn put(store: &str, name: &str, text: &str) -> Ended {
    class(store, &["put", "-", "--name", name, "--wall", "60s"], text)
}

const GREETER: &str = "function greet(input, output)
  objclass.log('greeting', input)
  local count = (tonumber((nacre.get('count'))) or 0) + 1
  nacre.set('count', '' .. count)
  output:append('hello ' .. input:str() .. ', ' .. count)
end
objclass.register(greet, { about = 'says hello' })
function swap(input, output)
  local a, b = nacre.unpack(input)
  output:append(nacre.pack(b, a))
end
objclass.register(swap, { writes = false })
function refuse() nacre.fail(objclass.EBUSY, 'come back later') end
objclass.register(refuse)
function hang() while true do end end
objclass.register(hang)
--> greet you
--= hello you, 1
--> refuse
--! EBUSY
";

/// What every store has to do, embedded or served.
fn serve_classes(store: &str) {
    assert_eq!(put(store, "greeter", GREETER).text(), "1");
    let listed = class(store, &["ls"], "").text();
    assert!(listed.contains("greeter        1  greet   yes      says hello"), "{listed}");
    assert!(listed.contains("greeter        1  swap    no"), "{listed}");

    let call = |words: &[&str]| class(store, &[&["call", "object"][..], words].concat(), "");
    let greeted = call(&["greeter.greet", "you"]);
    assert_eq!(
        (greeted.code, &greeted.stdout[..], &greeted.stderr[..]),
        (0, &b"hello you, 1"[..], "greeting userdata\n")
    );
    assert_eq!(call(&["greeter.swap", "--pack", "--unpack", r#"["a", [1, 2]]"#]).text(), "[1,2]\n\"a\"");
    call(&["greeter.refuse"])
        .failed(1, &["greeter.refuse on object \"object\" failed: come back later (EBUSY)"]);
    call(&["greeter.hang", "--instructions", "100000", "--wall", "60s"])
        .failed(1, &["was stopped: it ran for more than 100000 instructions"]);
    assert_eq!(call(&["greeter.none", "--wall", "0s"]).code, 2);
    call(&["greeter.none"]).failed(1, &["no method \"none\""]);
    call(&["nobody.none"]).failed(1, &["no class \"nobody\""]);
    // Names are printed on one line.
    call(&["a\nb.c\nd"]).failed(1, &["a\\x0ab.c\\x0ad on object"]);
    put(store, "a\nb", GREETER).failed(1, &["\"a\\x0ab\" is not a valid name"]);
    call(&["greeter"]).failed(2, &["CLASS.METHOD"]);
    put(store, "greeter", "while true do end").failed(1, &["refused", "does not end"]);

    let better = GREETER.replace("hello", "good day");
    assert_eq!(put(store, "greeter", &better).text(), "2");
    let called = in_time(|| {
        let mut command = program();
        command.args(["--store", store, "--json", "class", "call", "object", "greeter.greet", "x"]);
        run_with(command, b"")
    });
    let called = called.json();
    assert_eq!(called["output"], "good day x, 2");
    assert_eq!((&called["class_version"], &called["wrote"]), (&json!(2), &json!(true)));
    assert_eq!(class(store, &["rollback", "greeter"], "").text(), "3");
    assert_eq!(class(store, &["show", "greeter"], "").text(), GREETER.trim_end());
    assert_eq!(class(store, &["show", "greeter", "--version", "2"], "").text(), better.trim_end());
    assert_eq!(class(store, &["rm", "greeter"], "").text(), "4");
    class(store, &["show", "greeter"], "").failed(1, &["there is no class \"greeter\""]);
    let history = class(store, &["history", "greeter"], "").text();
    let remarks: Vec<&str> = history.lines().skip(1).map(|line| line.trim()).collect();
    assert!(remarks[0].ends_with("removed") && remarks[1].ends_with("version 1 again"), "{history}");
    assert_eq!(remarks.len(), 4);
    class(store, &["rollback", "greeter", "9"], "").failed(1, &["no such version"]);
    class(store, &["history", "nobody"], "").failed(1, &["there is no class \"nobody\""]);
}

#[test]
fn classes_live_in_a_folder() {
    let folder = folder();
    serve_classes(&format!("file:{}", folder.path().join("store").display()));
}

#[test]
fn classes_live_at_a_server() {
    let server = Server::in_memory();
    serve_classes(&server.uri);
}

#[test]
fn the_members_of_a_store_run_the_same_classes() {
    let folder = folder();
    let (_servers, uri) = Server::together(folder.path(), &["mem:", "mem:", "mem:"], &[]);
    let text = "
function add(input, output)
  local count = (tonumber((nacre.get('count'))) or 0) + 1
  nacre.set('count', tostring(count))
  output:append(VERSION .. ':' .. count)
end
objclass.register(add)
function hang() while true do end end
objclass.register(hang)";
    let text = |version: u32| text.replace("VERSION", &format!("'{version}'"));
    for version in 1..=3 {
        assert_eq!(put(&uri, "count", &text(version)).text(), version.to_string());
        // Objects of every member: whichever keeps one runs the version that was put last.
        for object in 0..12 {
            let called = class(&uri, &["call", &format!("object-{object}"), "count.add"], "").text();
            assert_eq!(called, format!("{version}:{version}"), "object-{object}");
        }
    }
    // The members did it, not the caller.
    let wide = ["call", "object-0", "count.hang", "--instructions", "1000000000", "--wall", "60s"];
    class(&uri, &wide, "").failed(1, &["it ran for more than 10000000 instructions"]);
    // Whoever acts for a session that is fenced changes nothing by a method either.
    let fenced = |session: &str, words: &[&str]| {
        in_time(|| {
            let mut command = program();
            command.args(["--store", &uri, "--fence", session]).args(words);
            run_with(command, b"")
        })
    };
    let add = ["class", "call", "object-1", "count.add"];
    assert_eq!(fenced("7", &add).text(), "3:4");
    let mut fence = program();
    fence.args(["--store", &uri, "fence", "object-1", "--below", "8"]);
    run_with(fence, b"").ok();
    fenced("7", &add).failed(1, &["session 7 is fenced"]);
    assert_eq!(fenced("8", &add).text(), "3:5");
}

#[test]
fn transcripts_are_tried_without_a_store() {
    let folder = folder();
    let file = folder.path().join("greeter.lua");
    std::fs::write(&file, GREETER).unwrap();
    let path = file.to_str().unwrap();
    let test = |path: &str| class("file:/nowhere", &["test", path], "");
    assert_eq!(test(path).text(), "greeter: 2 of 2 calls as expected");
    std::fs::write(&file, GREETER.replace("--! EBUSY", "--! ENOENT")).unwrap();
    let shown = test(path).failed(1, &["1 of 2 calls did not end as expected"]);
    assert!(shown.contains("greeter:19: greeter.refuse: expected ENOENT, found:"), "{shown}");
}

#[test]
fn the_classes_that_ship_pass_their_transcripts() {
    let classes = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../classes");
    for name in ["counter", "queue", "refcount", "version", "log", "index"] {
        let path = classes.join(format!("{name}.lua"));
        let shown = class("file:/nowhere", &["test", path.to_str().unwrap()], "").text();
        assert!(shown.starts_with(&format!("{name}: ")) && shown.ends_with("calls as expected"), "{shown}");
    }
}
