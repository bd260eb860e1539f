//! `copy-objects` as an online backup, of a server under constant writes, and of a damaged store.

mod harness;

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::{Random, Server, file, program, run_with};
use nacre::{Fork, Key, Transaction, WriteOp};
use rustix::process::Signal;

fn name(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

/// Returns a transaction that stores one number in four places of an object.
fn numbered(number: u64) -> Transaction {
    let text = format!("{number:012}");
    Transaction::new()
        .write(Fork::DEFAULT, 100_000, text.clone())
        .write(Fork::try_from("side").unwrap(), 7, text.clone())
        .change(WriteOp::SetKey { key: name("number"), value: text.clone().into() })
        .change(WriteOp::SetAttribute { name: name("number"), value: text.into() })
}

/// Returns the number of an object, which all four places must agree on.
fn number(object: &nacre::BlockingObject) -> u64 {
    let key = object.key("number").unwrap().unwrap();
    assert_eq!(object.attribute("number").unwrap().unwrap(), key);
    assert_eq!(object.read(100_000..100_012).unwrap().data, key);
    assert_eq!(object.fork("side").unwrap().read(7..100).unwrap().data, key);
    std::str::from_utf8(&key).unwrap().parse().unwrap()
}

#[test]
fn every_object_is_copied_as_of_one_version_while_all_are_written() {
    const HOT: usize = 6;
    let server = Server::in_memory();
    let folder = harness::folder();
    let store = nacre::open(&server.uri).unwrap().blocking();
    // One object that took many transactions, and is then changed in one place; one with many keys; some small ones.
    let large: Vec<u8> = (0..40u32 << 20).map(|at| (at >> 9) as u8).collect();
    store.object("large").unwrap().put(&large[..]).unwrap();
    for batch in 0..25 {
        let set = (0..1000)
            .map(|at| WriteOp::SetKey { key: name(&format!("{batch}/{at}")), value: "value".into() });
        let transaction = Transaction { writes: set.collect(), ..Transaction::new() };
        store.apply(store.object("keys").unwrap().id(), transaction).unwrap();
    }
    let names: Vec<String> = ["large", "keys"]
        .map(str::to_owned)
        .into_iter()
        .chain((0..HOT).map(|hot| format!("hot {hot}")))
        .collect();
    for name in &names {
        store.apply(store.object(name).unwrap().id(), numbered(0)).unwrap();
    }
    let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let target = file(&folder.path().join("copy"));
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (names, over, written) = (&names, &over, &written);
            let store = nacre::open(&server.uri).unwrap().blocking();
            scope.spawn(move || {
                let mut count = 0;
                while !over.load(Ordering::SeqCst) {
                    count += 1;
                    for name in names.iter().skip(writer).step_by(3) {
                        store.apply(store.object(name).unwrap().id(), numbered(count)).unwrap();
                        written.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let run = std::panic::catch_unwind(|| {
            let mut last = vec![0; names.len()];
            for _ in 0..3 {
                // On a busy machine the writers may stand still for as long as a copy takes.
                let is_under_way = (0..20).any(|_| {
                    let before = written.load(Ordering::SeqCst);
                    let mut copy = program();
                    copy.args(["copy-objects", &server.uri, &target, "--json"]);
                    let report = run_with(copy, b"").json();
                    assert_eq!(report["failed"], serde_json::json!([]));
                    assert_eq!(report["objects"], names.len());
                    written.load(Ordering::SeqCst) > before
                });
                assert!(is_under_way, "nothing is written meanwhile");
                let copy = nacre::open(&target).unwrap().blocking();
                for (name, last) in names.iter().zip(&mut last) {
                    let found = number(&copy.object(name).unwrap());
                    assert!(found >= *last, "{name} went back from {last} to {found}");
                    *last = found;
                }
                assert_eq!(copy.object("keys").unwrap().stat().unwrap().keys, 25_001);
                let mut back = Vec::new();
                copy.object("large").unwrap().get(nacre::ByteRange::ALL, &mut back).unwrap();
                back[100_000..100_012].copy_from_slice(&large[100_000..100_012]);
                assert!(back == large);
                copy.close().unwrap();
            }
        });
        over.store(true, Ordering::SeqCst);
        run.unwrap();
    });
}

#[test]
fn damaged_objects_are_listed_and_the_rest_is_copied() {
    let folder = harness::folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let server = Server::start(&file(&source), &["--segment-bytes", "1MiB"]);
    for name in ["a", "b", "c"] {
        server.run_with(["put", name], format!("content of {name}, ").repeat(500).as_bytes()).ok();
    }
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let needle = b"content of b, content of b, ";
    let damaged = std::fs::read_dir(&source).unwrap().filter(|entry| {
        let path = entry.as_ref().unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let found = bytes.windows(needle.len()).position(|window| window == needle);
        if let Some(at) = found {
            bytes[at + 11] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
        found.is_some()
    });
    assert_eq!(damaged.count(), 1);
    let copy = || {
        let mut copy = program();
        copy.args(["copy-objects", &file(&source), &file(&target)]);
        run_with(copy, b"")
    };
    for _ in 0..2 {
        let ended = copy();
        assert_eq!(ended.code, 1, "{ended:?}");
        let lines: Vec<&str> = ended.stderr.lines().collect();
        assert!(lines[0].contains("copying object \"b\"") && lines[0].contains("checksum"), "{ended:?}");
        assert!(lines[1].contains("1 object of") && lines[1].contains("not copied"), "{ended:?}");
        assert_eq!(lines.len(), 2, "{ended:?}");
        let store = nacre::open(&file(&target)).unwrap().blocking();
        for name in ["a", "c"] {
            let read = store.object(name).unwrap().read(0..1 << 20).unwrap();
            assert_eq!(read.data, format!("content of {name}, ").repeat(500));
        }
        assert!(!store.object("b").unwrap().stat().unwrap().exists);
        store.close().unwrap();
    }
}

#[test]
fn a_server_that_is_being_restarted_is_waited_for() {
    let folder = harness::folder();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let (store, other) = (file(&folder.path().join("store")), file(&folder.path().join("other")));
    let server = Server::listen(&address, &store, &[]);
    server.run_with(["put", "a"], b"content").ok();
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let waiting = format!("{address}?repeat_timeout=60s");
    let (waiting, other) = (waiting.as_str(), other.as_str());
    // As the source, and as the destination.
    let (server, ended) = harness::run_while_away(&address, &store, &[&["copy-objects", waiting, other]]);
    assert_eq!(ended[0].code, 0, "{ended:?}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let empty = file(&folder.path().join("empty"));
    let (server, ended) = harness::run_while_away(&address, &empty, &[&["copy-objects", other, waiting]]);
    assert_eq!(ended[0].code, 0, "{ended:?}");
    assert_eq!(server.run(["get", "a"]).text(), "content");
}

#[test]
fn a_copy_that_is_killed_is_not_taken_for_whole_and_goes_on() {
    let mut random = Random::from_environment();
    let (source, folder) = (Server::in_memory(), harness::folder());
    let content = |byte: u8| -> Vec<u8> { (0..48u32 << 20).map(|at| (at >> 10) as u8 ^ byte).collect() };
    let object = nacre::open(&source.uri).unwrap().blocking().object("large").unwrap();
    object.put(&content(0)[..]).unwrap();
    let target = Server::start(&file(&folder.path().join("target")), &["--durability", "none"]);
    let command = || {
        let mut copy = program();
        copy.args(["copy-objects", &source.uri, &target.uri]);
        copy
    };
    let begun = Instant::now();
    run_with(command(), b"").ok();
    let takes = begun.elapsed();
    let (mut stored, mut refused) = (0, 0);
    for byte in 1..8 {
        object.put(&content(byte)[..]).unwrap();
        let mut copy = command().stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(takes.as_micros() as u64 * 2)));
        copy.kill().unwrap();
        copy.wait().unwrap();
        let got = target.run(["get", "large"]);
        match got.code {
            0 => {
                let found = got.stdout[0];
                assert!(got.stdout == content(found), "what is given out is whole");
                assert!([stored, byte].contains(&found));
                stored = found;
            }
            _ => {
                got.failed(1, &["is an incomplete copy"]);
                refused += 1;
            }
        }
    }
    println!("{refused} of 7 copies were found incomplete");
    // Requests of a killed copy may still arrive: the next one reports another writer, and a later one continues.
    for _ in 0..10 {
        let ended = run_with(command(), b"");
        if ended.code == 0 {
            break;
        }
        assert!(ended.stderr.contains("another client is writing the copy"), "{ended:?}");
    }
    assert!(target.run(["get", "large"]).ok() == content(7));
    assert_eq!(
        target.run(["stat", "large", "--json"]).json(),
        source.run(["stat", "large", "--json"]).json()
    );
}
