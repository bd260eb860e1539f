//! `nacre apply`: transactions as JSON.

use serde_json::{Value, json};

use super::harness::{self, Server, program, run_with};

/// Applies transactions, and returns the lines that were printed.
#[track_caller]
fn apply(server: &Server, transactions: &[Value]) -> Vec<Value> {
    let text: String = transactions.iter().map(|transaction| format!("{transaction}\n")).collect();
    lines(&server.run_with(["apply"], text.as_bytes()).text())
}

#[track_caller]
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_write_and_every_read_can_be_written_as_json() {
    let server = Server::in_memory();
    let done = apply(
        &server,
        &[
            json!({ "object": "a\\x01", "guards": ["absent"], "writes": [
                "create",
                { "write": { "data": "hello" } },
                { "write": { "fork": "side", "offset": 2, "data": { "base64": "AP8=" } } },
                { "truncate": { "fork": "long", "size": 9 } },
                { "set_key": { "key": "k", "value": "v" } },
                { "set_key": { "key": "gone", "value": "" } },
                { "remove_key": "gone" },
                { "set_attribute": { "name": "n", "value": { "base64": "/w==" } } },
                { "set_attribute": { "name": "gone", "value": "" } },
                { "remove_attribute": "gone" },
                { "raise_fence": 3 },
                { "fence_session": 7 },
            ] }),
            json!({ "object": "a\\x01", "writes": [
                { "zero": { "offset": 1, "length": 2 } },
                { "replace_fork": { "fork": "other", "from": "side" } },
                { "remove_fork": "long" },
            ] }),
            json!({ "object": "a\\x01", "guards": ["exists", { "version": 2 }, { "fence": 8 }], "reads": [
                { "range": { "offset": 0, "length": 4 } },
                { "extents": { "fork": "other" } },
                "stat",
                { "forks": {} },
                { "key": "k" },
                { "key": "none" },
                { "versioned_key": "k" },
                { "keys": { "prefix": "k", "after": "a", "before": "z", "limit": 5 } },
                { "versioned_keys": { "values": false } },
                { "attribute": "n" },
                "attributes",
                "fences",
            ] }),
            json!({ "object": "a\\x01", "writes": ["remove"] }),
        ],
    );
    assert_eq!(done[0], json!({ "object": "a\\x01", "done": true, "version": 1, "existed": false }));
    assert_eq!((&done[1]["version"], &done[1]["existed"]), (&json!(2), &json!(true)));
    assert_eq!((&done[2]["version"], &done[3]["version"]), (&json!(2), &json!(3)));
    let answers = done[2]["answers"].as_array().unwrap();
    assert_eq!((&answers[0]["data"], &answers[0]["version"]), (&json!("h\0\0l"), &json!(2)));
    assert_eq!((&answers[1]["size"], &answers[1]["data"]), (&json!(4), &json!("")));
    assert_eq!(
        (&answers[2]["exists"], &answers[2]["forks"], &answers[2]["fence"]),
        (&json!(true), &json!(2), &json!(3))
    );
    assert_eq!(
        answers[3],
        json!({ "forks": [{ "fork": "", "size": 5 }, { "fork": "other", "size": 4 }], "more": false })
    );
    assert_eq!((&answers[4], &answers[5]), (&json!({ "value": "v" }), &json!({ "value": null })));
    assert_eq!(answers[6], json!({ "value": "v", "version": 1 }));
    assert_eq!(answers[7], json!({ "keys": [{ "key": "k", "value": "v" }], "more": false }));
    assert_eq!(answers[8], json!({ "keys": [{ "key": "k", "version": 1 }], "more": false }));
    assert_eq!(answers[9], json!({ "value_base64": "/w==" }));
    assert_eq!(answers[10], json!({ "keys": [{ "key": "n", "value_base64": "/w==" }], "more": false }));
    assert_eq!(answers[11], json!({ "fence": 3, "sessions": [7] }));
}

#[test]
fn a_guard_that_does_not_hold_stops_and_says_what_stands_there() {
    let server = Server::in_memory();
    apply(
        &server,
        &[
            json!({ "object": "a", "writes": [{ "write": { "data": "old" } }, { "set_key": { "key": "k", "value": "5" } }] }),
        ],
    );
    let refused = |guard: Value| -> Value {
        let text = json!({ "object": "a", "guards": ["exists", guard], "writes": ["remove"] }).to_string();
        let after = json!({ "object": "b", "writes": ["create"] }).to_string();
        let ended = server.run_with(["apply", "-"], format!("{text} {after}").as_bytes());
        let said = ended.failed(
            3,
            &["transaction 1 of standard input", "guard 1 (from 0) of object \"a\" does not hold"],
        );
        let line: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(
            (&line["done"], &line["guard"], &line["object_version"]),
            (&json!(false), &json!(1), &json!(1))
        );
        line["found"].clone()
    };
    assert_eq!(refused(json!("absent")), json!({ "exists": true }));
    assert_eq!(refused(json!({ "version": 7 })), json!({ "exists": true }));
    assert_eq!(refused(json!({ "region": { "length": 3, "version": 0 } }))["data"], "old");
    assert_eq!(refused(json!({ "proposal": { "length": 3, "version": 1 } }))["version"], 1);
    assert_eq!(refused(json!({ "key_version": { "key": "k", "version": 9 } })), json!({ "version": 1 }));
    assert_eq!(refused(json!({ "size": { "size": 2 } })), json!({ "size": 3 }));
    assert_eq!(refused(json!({ "size": { "fork": "none", "size": 1 } })), json!({ "size": 0 }));
    for check in [
        json!("absent"),
        json!({ "equal": "6" }),
        json!({ "not_equal": "5" }),
        json!({ "less": "5" }),
        json!({ "less_or_equal": "4" }),
        json!({ "greater": "5" }),
        json!({ "greater_or_equal": { "base64": "Ng==" } }),
    ] {
        assert_eq!(refused(json!({ "key": { "key": "k", "check": check } })), json!({ "value": "5" }));
    }
    assert_eq!(
        refused(json!({ "attribute": { "name": "n", "check": "present" } })),
        json!({ "value": null })
    );
    // Nothing behind it was applied, nor was it.
    assert_eq!(server.run(["ls"]).text(), "a");
}

#[test]
fn appends_follow_what_is_there_and_each_other() {
    let server = Server::in_memory();
    let append = |size: u64, data: &str| {
        json!({ "object": "a", "guards": [{ "size": { "size": size } }], "reads": [{ "extents": { "length": 0 } }], "writes": [
            { "append": { "data": data } },
            { "append": { "data": "." } },
            { "append": { "fork": "side", "data": data } },
        ] })
    };
    let done = apply(&server, &[append(0, "one"), append(4, "two")]);
    let sizes: Vec<&Value> = done.iter().map(|outcome| &outcome["answers"][0]["size"]).collect();
    assert_eq!(sizes, [&json!(0), &json!(4)]);
    assert_eq!(server.run(["read", "a"]).text(), "one.two.");
    assert_eq!(server.run(["read", "a", "--fork", "side"]).text(), "onetwo");
    // One that the transaction appends to is there to be taken.
    let take = json!({ "replace_fork": { "fork": "f", "from": "new" } });
    let writes = json!([{ "append": { "fork": "new", "data": "x" } }, take]);
    apply(&server, &[json!({ "object": "a", "writes": writes })]);
    assert_eq!(server.run(["read", "a", "--fork", "f"]).text(), "x");
}

#[test]
fn a_fork_that_is_not_there_cannot_take_the_place_of_another() {
    let server = Server::in_memory();
    let replace = |from: &str| json!({ "replace_fork": { "fork": "f", "from": from } });
    let missing = |object: &str, writes: Value| {
        let text = json!({ "object": object, "writes": writes }).to_string();
        server
            .run_with(["apply"], text.as_bytes())
            .failed(1, &["transaction 1", "has no fork \"from\" to take"]);
    };
    missing("a", json!([replace("from")]));
    assert_eq!(server.run(["ls"]).text(), "");
    let write = |fork: &str| json!({ "write": { "fork": fork, "data": fork } });
    apply(&server, &[json!({ "object": "a", "writes": [write("f"), write("g")] })]);
    missing("a", json!([write("h"), replace("from")]));
    missing("a", json!([write("from"), { "remove_fork": "from" }, replace("from")]));
    missing("a", json!([write("from"), replace("from"), replace("from")]));
    assert_eq!(server.run(["read", "a", "--fork", "f"]).text(), "f");
    // One that the same transaction makes is there.
    let done = apply(
        &server,
        &[
            json!({ "object": "a", "writes": [write("from"), replace("from")] }),
            json!({ "object": "a", "writes": [replace("g")] }),
        ],
    );
    assert!(done.iter().all(|outcome| outcome["done"] == true), "{done:?}");
    assert_eq!(server.run(["read", "a", "--fork", "f"]).text(), "g");
}

#[test]
fn what_is_no_transaction_is_refused_with_its_place() {
    let server = Server::in_memory();
    let refused = |text: &str, said: &[&str]| {
        server
            .run_with(["apply"], text.as_bytes())
            .failed(2, &[&["transaction 1 of standard input"], said].concat());
    };
    refused("{", &["it ends too early, at line 1, column 1"]);
    refused("{\"object\": \"a\",\n\"guards\": [", &["it ends too early, at line 2"]);
    refused("\n{\"object\" \"a\"}", &["it is not JSON from line 2, column 11 on"]);
    refused("5", &["it must be an object with \"object\"", "but is 5 (line 1)", "\"nacre apply --help\""]);
    refused("{\"object\": \"\"}", &["object cannot be a name", "1 to 255 bytes", "line 1"]);
    refused("{\"object\": \"a\\\\q\"}", &["\\xNN"]);
    refused(
        "{\"object\": \"a\", \"write\": []}",
        &["it has \"write\", which is none of its fields", "\"writes\""],
    );
    refused(
        "{\"object\": \"a\", \"writes\": [{\"write\": {\"data\": 5}}]}",
        &["writes[0].write.data", "base64"],
    );
    refused(
        "{\"object\": \"a\", \"writes\": [{\"write\": {\"data\": \"x\", \"offset\": -1}}]}",
        &["writes[0].write.offset must be a whole number from 0", "but is -1 (line 1)"],
    );
    refused(
        "{\"object\": \"a\", \"writes\": [{\"write\": {\"data\": \"x\", \"offset\": 18446744073709551615}}]}",
        &["writes[0] cannot be applied", "greatest offset"],
    );
    refused(
        "{\"object\": \"a\", \"writes\": [{\"truncate\": {\"fork\": \".nacre.x\", \"size\": 0}}]}",
        &["writes[0].truncate.fork", "reserved"],
    );
    refused(
        &json!({ "object": "a", "writes": vec!["create"; 4097] }).to_string(),
        &["4097 operations in one transaction; the limit is 4096"],
    );
    server.run(["apply", "/"]).failed(1, &["cannot read /: "]);
    server.run(["apply", "/no/such/file"]).failed(1, &["cannot open /no/such/file"]);
    for nothing in ["", " \n\n"] {
        server.run_with(["apply"], nothing.as_bytes()).failed(2, &["standard input holds no transaction"]);
    }
    assert_eq!(server.run(["ls"]).text(), "");
}

#[test]
fn a_folder_becomes_a_store_only_by_a_write() {
    let folder = harness::folder();
    let path = folder.path().join("store");
    let run = |text: &str| {
        let mut command = program();
        command.args(["apply", "--store"]).arg(format!("file:{}", path.display()));
        run_with(command, text.as_bytes())
    };
    run("{\"object\": \"a\", \"reads\": [\"stat\"]}").failed(1, &["there is no such folder"]);
    assert!(!path.exists());
    let text = "{\"object\": \"a\", \"writes\": [\"create\"]} {\"object\": \"a\", \"reads\": [\"stat\"]}";
    assert_eq!(lines(&run(text).text()).len(), 2);
}

#[test]
fn transactions_are_applied_though_nobody_reads_their_outcomes() {
    let server = Server::in_memory();
    let text: String =
        (0..200).map(|number| format!("{{\"object\": \"o{number}\", \"writes\": [\"create\"]}}\n")).collect();
    let mut command = server.command(["apply"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer).stdin(std::process::Stdio::piped());
    let mut applying = command.spawn().unwrap();
    std::io::Write::write_all(&mut applying.stdin.take().unwrap(), text.as_bytes()).unwrap();
    assert!(applying.wait().unwrap().success());
    assert_eq!(server.run(["ls"]).text().lines().count(), 200);
}
