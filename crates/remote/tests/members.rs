//! The members of a store: however a client names them, every object has one place.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nacre_object::testkit::{MemoryStore, block_on};
use nacre_object::*;
use nacre_remote::join::{self, Answer, Proof};
use nacre_remote::{Members, Membership, RemoteOptions, RemoteStore, StoreService, check, kind, request};
use nacre_rpc::frame::{self, Frame};
use nacre_rpc::handshake::{Status, hello};
use nacre_rpc::{Address, MessageKind, ServeOptions, Server, Services, SocketAccess, control};
use support::{bytes_of, eventually, memory, patient, serve_together, write};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn two(version: u64, own: &str) -> Membership {
    let members = Members::new(version, ["a:6470".to_owned(), "unix:/b".to_owned()]).unwrap();
    Membership::new(members, own).unwrap()
}

/// Returns the messages that version 2 of the protocol has beyond version 1.
fn samples() -> Vec<(&'static str, BytesMut)> {
    let membership = two(3, "unix:/b");
    let proof = Proof::of(membership.members());
    vec![
        ("hello", BytesMut::from(&hello(2, 0)[..])),
        ("hello_stranger", BytesMut::from(&hello(2, Status::NonMember as u8)[..])),
        ("join_unknown", bytes_of(|out| join::put_join(out, 1, None))),
        ("join", bytes_of(|out| join::put_join(out, 1, Some(&proof)))),
        ("joined", bytes_of(|out| join::put_answer(out, 1, &Answer::Joined(1)))),
        ("members", bytes_of(|out| join::put_answer(out, 1, &Answer::Members(membership)))),
    ]
}

#[test]
fn the_bytes_are_those_of_the_golden_vectors() {
    let golden = include_str!("golden/version_2.txt");
    let found: String = samples().iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    assert!(found == golden, "the bytes have changed; they are now\n{found}");
    for (name, bytes) in samples().iter().skip(2) {
        assert_eq!(check::decode_all(bytes), 1, "{name}");
    }
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    let answer = |body: &[u8]| {
        join::get_answer(&Frame { kind: kind::MEMBERS, flags: 0, id: 1, body: Bytes::copy_from_slice(body) })
    };
    let list = |own: u16, count: u16, names: &[u8]| {
        [&7u64.to_le_bytes()[..], &own.to_le_bytes(), &count.to_le_bytes(), names].concat()
    };
    assert!(matches!(answer(&list(1, 2, b"\x01a\x01b")), Ok(Answer::Members(place)) if place.own() == 1));
    for (own, count, names) in [
        (0, 0, &b""[..]),
        (2, 2, b"\x01a\x01b"),
        (0, 2, b"\x01b\x01a"),
        (0, 2, b"\x01a\x01a"),
        (0, 2, b"\x01a"),
        (0, 2, b"\x01a\x01b\x01c"),
        (0, 1, b"\x00"),
        (0, 1, b"\x01\x1b"),
        (0, 1, b"\x01\xff"),
        (0, 5000, b"\x01a"),
    ] {
        assert!(answer(&list(own, count, names)).is_err(), "{own} {count} {names:?}");
    }
    assert!(join::get_join(&Bytes::from_static(&[0; 23])).is_err());
    assert!(join::get_join(&Bytes::from_static(&[0; 25])).is_err());
}

/// Opens a raw connection to a server's socket in a version of the protocol. Returns the version and the status of its
/// hello, too.
fn introduced(path: &Path, version: u16) -> (UnixStream, u16, u8) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream.write_all(&hello(version, 0)).unwrap();
    let mut theirs = [0; 16];
    stream.read_exact(&mut theirs).unwrap();
    (stream, u16::from_le_bytes([theirs[8], theirs[9]]), theirs[10])
}

/// Sends a frame and returns the next one received.
fn ask(stream: &mut UnixStream, bytes: &[u8]) -> Frame {
    stream.write_all(bytes).unwrap();
    let mut bytes = BytesMut::zeroed(16);
    stream.read_exact(&mut bytes).unwrap();
    let len = frame::frame_bytes(&bytes).unwrap().unwrap();
    bytes.resize(len, 0);
    stream.read_exact(&mut bytes[16..]).unwrap();
    frame::take(&mut bytes).unwrap().unwrap()
}

fn create(object: &ObjectId) -> BytesMut {
    let transaction = Transaction::new().change(nacre_object::WriteOp::Create);
    bytes_of(|out| assert!(request::put_apply(out, 9, object, &transaction).is_ok()))
}

#[test]
fn a_client_without_a_list_of_members_is_served_by_a_lone_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("alone");
    let listen = vec![Address::Unix(path.clone())];
    let services = memory();
    let server = Server::start(ServeOptions { listen, services, ..Default::default() }).unwrap();
    let (mut old, version, status) = introduced(&path, 1);
    assert_eq!((version, status), (1, Status::Welcome as u8));
    assert_eq!(ask(&mut old, &create(&"o".parse().unwrap())).kind, kind::DONE);
    server.stop();

    // Of several members it is refused: it would place objects by the addresses that it was given.
    let servers = serve_together(folder.path(), &["a", "b"], 1);
    let (mut old, version, status) = introduced(&folder.path().join("a"), 1);
    assert_eq!((version, status), (3, Status::Version as u8));
    assert_eq!(old.read(&mut [0; 1]).unwrap(), 0);
    drop(servers);
}

#[test]
fn nobody_is_served_before_it_shows_that_it_has_the_list() {
    let folder = tempfile::tempdir().unwrap();
    let _servers = serve_together(folder.path(), &["a", "b"], 4);
    let names = ["a", "b"].map(|name| Address::Unix(folder.path().join(name)).to_string());
    let right = Members::new(4, names.clone()).unwrap();
    let (mut stream, _, status) = introduced(&folder.path().join("a"), 2);
    assert_eq!(status, Status::Welcome as u8);
    let mine: ObjectId = (0..)
        .map(|n| format!("o{n}").parse().unwrap())
        .find(|object| Membership::new(right.clone(), &names[0]).unwrap().keeps(object))
        .unwrap();
    let failure = |frame: Frame| control::get_failure(&frame).unwrap();
    let error = failure(ask(&mut stream, &create(&mine)));
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("members"), "{error}");
    let list = bytes_of(|out| request::put_list(out, 9, None, 10));
    assert_eq!(ask(&mut stream, &list).kind, MessageKind::ERROR);

    // Without a list, with one of another version, and with another one: each receives the right list.
    let wrong =
        [Members::new(3, names.clone()).unwrap(), Members::new(4, ["a".to_owned(), "b".to_owned()]).unwrap()];
    let proofs = [None].into_iter().chain(wrong.iter().map(|wrong| Some(Proof::of(wrong))));
    for proof in proofs {
        let frame = ask(&mut stream, &bytes_of(|out| join::put_join(out, 1, proof.as_ref())));
        match join::get_answer(&frame).unwrap() {
            Answer::Members(place) => assert_eq!((place.members(), place.own()), (&right, 0)),
            Answer::Joined(_) => panic!("{proof:?} was taken for the right list"),
        }
        assert_eq!(ask(&mut stream, &create(&mine)).kind, MessageKind::ERROR);
    }
    let join = bytes_of(|out| join::put_join(out, 1, Some(&Proof::of(&right))));
    assert!(matches!(join::get_answer(&ask(&mut stream, &join)), Ok(Answer::Joined(0))));
    assert_eq!(ask(&mut stream, &create(&mine)).kind, kind::DONE);

    // A request to the wrong server creates no second object.
    let theirs: ObjectId = (0..)
        .map(|n| format!("o{n}").parse().unwrap())
        .find(|object| !Membership::new(right.clone(), &names[0]).unwrap().keeps(object))
        .unwrap();
    let error = failure(ask(&mut stream, &create(&theirs)));
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("wrong server"), "{error}");
    assert!(error.message.contains(&names[1]), "{error}");
}

fn open(addresses: &[Address]) -> RemoteStore {
    RemoteStore::new(addresses, patient()).unwrap()
}

/// Returns all objects of a store, page by page.
fn listed(store: &RemoteStore) -> Vec<ObjectId> {
    let mut objects: Vec<ObjectId> = Vec::new();
    loop {
        let page = block_on(store.list(objects.last(), 1000)).unwrap();
        if page.is_empty() {
            return objects;
        }
        objects.extend(page);
    }
}

/// Sets a key on the condition that it is absent. Returns whether it was set.
fn claim(store: &RemoteStore, object: &ObjectId, owner: &str) -> bool {
    let key = Key::new("owner").unwrap();
    let set =
        nacre_object::WriteOp::SetKey { key: key.clone(), value: Bytes::copy_from_slice(owner.as_bytes()) };
    let guard = Guard::Key { key, check: Check::Absent };
    matches!(
        block_on(store.apply(object, Transaction::new().guard(guard).change(set))).unwrap(),
        Outcome::Done(_)
    )
}

#[test]
fn clients_that_spell_the_servers_differently_find_the_same_objects() {
    let folder = tempfile::tempdir().unwrap();
    let servers = serve_together(folder.path(), &["a", "b", "c"], 1);
    let link = folder.path().join("spelling");
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    let spelt = |base: &Path, names: &[&str]| -> Vec<Address> {
        names.iter().map(|name| Address::Unix(base.join(name))).collect()
    };
    let stores = [
        open(&spelt(folder.path(), &["a", "b", "c"])),
        open(&spelt(&link, &["c", "a", "b"])),
        // One of them reports the others.
        open(&spelt(&link, &["b"])),
        open(&[&spelt(&link, &["a"])[..], &spelt(folder.path(), &["a", "b"])].concat()),
    ];
    for number in 0..100 {
        let object: ObjectId = format!("object-{number}").parse().unwrap();
        let won: Vec<bool> =
            (0..4).map(|turn| claim(&stores[(number + turn) % 4], &object, &turn.to_string())).collect();
        assert_eq!(won, [true, false, false, false], "{object}");
    }
    for store in &stores {
        assert_eq!(listed(store).len(), 100);
        assert_eq!(block_on(store.addresses()).unwrap().len(), 3);
    }
    drop(servers);
}

#[test]
fn requests_begun_before_the_members_are_known_are_carried_out_even_if_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let _servers = serve_together(folder.path(), &["a", "b", "c"], 1);
    let store = open(&[Address::Unix(folder.path().join("b"))]);
    let objects: Vec<ObjectId> = (0..60).map(|n| format!("o{n}").parse().unwrap()).collect();
    for object in &objects {
        drop(store.apply(object, Transaction::new().change(nacre_object::WriteOp::Create)));
    }
    let again = open(&[Address::Unix(folder.path().join("a"))]);
    drop(store);
    eventually("all were made", || listed(&again).len() == 60);
}

#[test]
fn servers_of_different_stores_are_not_taken_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let alone = |name: &str| {
        let listen = vec![Address::Unix(folder.path().join(name))];
        Server::start(ServeOptions { listen, services: memory(), ..Default::default() }).unwrap()
    };
    let (one, two) = (alone("one"), alone("two"));
    let address = |server: &Server| server.addresses()[0].clone();
    let together = open(&[address(&one), address(&two)]);
    let object: ObjectId = "o".parse().unwrap();
    for _ in 0..2 {
        let error =
            block_on(together.apply(&object, Transaction::new().change(nacre_object::WriteOp::Create)));
        let error = error.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        for part in ["one", "two", "by itself", "--members"] {
            assert!(error.message.contains(part), "{error}");
        }
    }
    assert_eq!(block_on(together.connect()).unwrap_err().kind, ErrorKind::Invalid);
    for server in [&one, &two] {
        assert!(block_on(open(&[address(server)]).list(None, 10)).unwrap().is_empty());
    }
    // A member, and a server of another store.
    let members = serve_together(folder.path(), &["a", "b"], 1);
    let error = block_on(open(&[address(&members[0]), address(&one)]).connect()).unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("has the members"), "{error}");
}

#[test]
fn a_server_with_another_list_refuses_the_clients_of_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| Address::Unix(folder.path().join(name));
    let old = serve_together(folder.path(), &["a", "b"], 1);
    let store = open(&[at("a"), at("b")]);
    let objects: Vec<String> = (0..20).map(|n| format!("o{n}")).collect();
    objects.iter().for_each(|object| write(&store, object, "x"));
    old.into_iter().for_each(Server::stop);

    let new = serve_together(folder.path(), &["a", "b", "c"], 2);
    let read = |object: &String| {
        let look = Transaction::new().read(nacre_object::ReadOp::Stat);
        block_on(store.apply(&object.parse().unwrap(), look)).unwrap_err()
    };
    eventually("the client meets the new servers", || read(&objects[0]).kind == ErrorKind::Invalid);
    for object in &objects {
        let error = read(object);
        let (now, before) = (format!("{} (version 2)", at("c")), format!("{} (version 1)", at("b")));
        // The other server may not have been asked yet.
        if error.kind == ErrorKind::Invalid {
            assert!(error.message.contains(&now) && error.message.contains(&before), "{error}");
        } else {
            assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        }
    }
    let fresh = open(&[at("a"), at("b")]);
    objects.iter().for_each(|object| write(&fresh, object, "y"));
    assert_eq!(block_on(fresh.addresses()).unwrap().len(), 3);
    drop(new);
}

#[test]
fn another_store_at_the_same_address_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let listen = vec![Address::Unix(folder.path().join("s"))];
    let start = |identity| {
        let store = Arc::new(MemoryStore::new());
        let services =
            Services::new().with(StoreService::new(store, Membership::alone(identity), Arc::default()));
        Server::start(ServeOptions { listen: listen.clone(), services, ..Default::default() }).unwrap()
    };
    let first = start([1; 16]);
    let store = open(&listen);
    write(&store, "o", "x");
    first.stop();
    let second = start([2; 16]);
    let look = || {
        let look = Transaction::new().read(nacre_object::ReadOp::Stat);
        block_on(store.apply(&"o".parse().unwrap(), look)).unwrap_err()
    };
    eventually("the client comes back", || look().kind == ErrorKind::Invalid);
    assert!(look().message.contains("keeps another store"), "{}", look());
    second.stop();
    let _first = start([1; 16]);
    eventually("and finds the first again", || block_on(store.list(None, 1)).is_ok());
}

#[test]
fn a_server_on_a_socket_must_be_the_user_that_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    let listen = vec![Address::Unix(folder.path().join("s"))];
    let (socket, services) = (SocketAccess::default(), memory());
    let options = ServeOptions { listen: listen.clone(), socket, services, ..Default::default() };
    let server = Server::start(options);
    let me = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(folder.path()).unwrap());
    let expecting = |owner| {
        let options = RemoteOptions { owner, ..patient() };
        block_on(RemoteStore::new(&listen, options).unwrap().connect())
    };
    expecting(None).unwrap();
    expecting(Some(me)).unwrap();
    let error = expecting(Some(me + 1)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains(&format!("runs as user {me}, not user {}", me + 1)), "{error}");
    drop(server);
}
