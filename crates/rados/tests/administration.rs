//! What an administrator meets: settings and capabilities that are missing, pools that cannot be used, damaged and
//! foreign objects, clients that are shut out. Each is a sentence that says what is wrong, and none is a wrong read.

mod cluster;

use std::process::{Command, Stdio};

use cluster::{Cluster, open};
use nacre_object::testkit::block_on;
use nacre_object::{
    ByteRange, ErrorKind, Fork, Key, ObjectId, ObjectStore, Outcome, Read, StoreError, Transaction, Write,
};
use nacre_rados::RadosStore;

fn id(text: &str) -> ObjectId {
    ObjectId::try_from(text).unwrap()
}

fn apply(store: &RadosStore, object: &str, transaction: Transaction) -> Result<Outcome, StoreError> {
    block_on(store.apply(&id(object), transaction))
}

fn write(object: &RadosStore, name: &str) -> Result<Outcome, StoreError> {
    apply(object, name, Transaction::new().write(Fork::DEFAULT, 0, "text"))
}

fn read() -> Transaction {
    Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, 4))
}

fn assert_says(error: &StoreError, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind, kind, "{error}");
    for part in parts {
        assert!(error.message.contains(part), "{error:?} does not say {part:?}");
    }
}

#[test]
fn without_lua_the_error_names_the_settings() {
    let cluster = Cluster::start("plain", &["--without-lua", "--size", "1"]);
    let store = cluster.open("plain");
    let error = write(&store, "a").unwrap_err();
    assert_says(
        &error,
        ErrorKind::Unsupported,
        &["object \"a\"", "osd_class_load_list", "osd_class_default_list"],
    );
    // What RADOS does by itself works all the same.
    assert!(apply(&store, "a", read()).is_ok());
}

#[test]
fn what_cannot_be_opened_says_why() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("open");
    let opened = |uri: &str| block_on(RadosStore::open(uri)).map(drop).unwrap_err();
    assert_says(
        &opened(&uri.replace("rados://nacre", "rados://nowhere")),
        ErrorKind::Invalid,
        &["no such pool", "nowhere"],
    );
    assert_says(&opened(&uri.replace("id=nacre", "id=nobody")), ErrorKind::Denied, &["client.nobody", "key"]);
    let nowhere = opened("rados://nacre?conf=/nowhere/ceph.conf");
    assert_says(&nowhere, ErrorKind::Unavailable, &["/nowhere/ceph.conf"]);
    // Nobody listens at the monitor's address.
    let conf = cluster.dir().join("unreachable.conf");
    std::fs::write(&conf, "[global]\nmon_host = [v2:127.0.0.1:9]\nauth_client_required = none\n").unwrap();
    let unreachable = opened(&format!("rados://nacre?conf={}&timeout_ms=1000", conf.display()));
    assert_says(&unreachable, ErrorKind::Unavailable, &["1000 ms"]);
}

#[test]
fn capabilities_that_are_missing_are_named() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("caps");
    for (user, caps, may_write, may_read) in [
        ("least", "allow rwx pool=nacre", true, true),
        ("spaced", "allow rwx pool=nacre namespace=caps*", true, true),
        ("reader", "allow r pool=nacre", false, true),
        ("stranger", "allow rwx pool=other", false, false),
    ] {
        let name = format!("client.{user}");
        let key = cluster.ceph(&["auth", "get-or-create", &name, "mon", "allow r", "osd", caps]);
        std::fs::write(cluster.dir().join(format!("{name}.keyring")), key).unwrap();
        let store = open(&uri.replace("id=nacre", &format!("id={user}")));
        match write(&store, user) {
            Ok(_) => assert!(may_write, "{user} may write"),
            Err(error) => {
                assert!(!may_write && error.message.contains(&name), "{error}");
                assert!(matches!(error.kind, ErrorKind::Denied | ErrorKind::Unsupported), "{error}");
            }
        }
        match apply(&store, user, read()) {
            Ok(_) => assert!(may_read, "{user} may read"),
            Err(error) => {
                assert!(!may_read, "{error}");
                assert_says(&error, ErrorKind::Denied, &["allow rwx pool=nacre"]);
            }
        }
    }
}

#[test]
fn a_client_that_is_shut_out_is_told_so() {
    let cluster = Cluster::shared();
    let store = cluster.open("blocklist");
    write(&store, "a").unwrap();
    let address = block_on(store.client_address()).unwrap();
    cluster.ceph(&["osd", "blocklist", "add", &address, "60"]);
    // The OSDs learn of it with the next map.
    let error = loop {
        if let Err(error) = write(&store, "a") {
            break error;
        }
    };
    assert_says(&error, ErrorKind::Unknown, &["blocklisted", "open the store again"]);
    cluster.ceph(&["osd", "blocklist", "rm", &address]);
}

#[test]
fn damaged_values_are_noticed_and_named() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("damage");
    let namespace = uri.split("ns=").nth(1).unwrap();
    let (natively, by_calls) = (open(&uri), open(&format!("{uri}&native=off")));
    let key = Key::try_from("colour").unwrap();
    let rados = |arguments: &[&str], input: &[u8]| {
        use std::io::Write as _;
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/ceph");
        let mut process = Command::new(script)
            .args(["rados", "--dir"])
            .arg(cluster.dir())
            .args(["--", "-p", "nacre", "-N", namespace])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        process.stdin.take().unwrap().write_all(input).unwrap();
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "rados {arguments:?}");
        output.stdout
    };
    // What is damaged, the key that holds it, and a read that needs it.
    let cases: [(&str, &str, Read); 4] = [
        (
            "extent",
            "x\u{1}\u{1}0000000000000004",
            Read::Range { fork: Fork::DEFAULT, range: ByteRange::new(0, 4), intent: Default::default() },
        ),
        (
            "fork",
            "f",
            Read::Range { fork: Fork::DEFAULT, range: ByteRange::new(0, 4), intent: Default::default() },
        ),
        ("key", "kcolour", Read::Key { key: key.clone() }),
        ("attribute", "acolour", Read::Attribute { name: key.clone() }),
    ];
    for (what, omap_key, read) in cases {
        let foreign: &[&[u8]] = &[b"", b"foreign", &[0xff; 28], &[1; 13]];
        for (number, value) in foreign.iter().enumerate() {
            let name = format!("{what}-{number}");
            let transaction = Transaction::new()
                .write(Fork::DEFAULT, 0, "text")
                .change(Write::SetKey { key: key.clone(), value: "red".into() })
                .change(Write::SetAttribute { name: key.clone(), value: "red".into() });
            apply(&natively, &name, transaction).unwrap();
            rados(&["setomapval", &format!("nacre.{name}"), omap_key], value);
            for store in [&natively, &by_calls] {
                let error = apply(store, &name, Transaction::new().read(read.clone())).unwrap_err();
                let shown = omap_key.escape_default().to_string().replace("\\u{1}", "\\x01");
                assert_says(&error, ErrorKind::Corrupt, &[&name, &shown]);
            }
            // A write that depends on it is refused, and changes nothing.
            let guarded = match what {
                "key" | "attribute" => Transaction::new()
                    .change(Write::RemoveKey { key: key.clone() })
                    .change(Write::RemoveAttribute { name: key.clone() }),
                _ => Transaction::new().write(Fork::DEFAULT, 2, "more"),
            };
            assert_says(&apply(&by_calls, &name, guarded).unwrap_err(), ErrorKind::Corrupt, &[&name]);
            let stat = apply(&natively, &name, Transaction::new().read(Read::Stat)).unwrap();
            let Outcome::Done(done) = stat else { unreachable!("there is no guard") };
            assert_eq!(done.version, 1);
        }
    }
    // The header: its length, its checksum.
    write(&natively, "header").unwrap();
    let mut header = rados(&["getxattr", "nacre.header", "nacre"], b"");
    header[9] ^= 4;
    rados(&["setxattr", "nacre.header", "nacre"], &header);
    for store in [&natively, &by_calls] {
        for transaction in [read(), Transaction::new().write(Fork::DEFAULT, 0, "over")] {
            assert_says(
                &apply(store, "header", transaction).unwrap_err(),
                ErrorKind::Corrupt,
                &["header", "nacre"],
            );
        }
    }
    // The byte stream, cut short by somebody.
    write(&natively, "bytes").unwrap();
    rados(&["truncate", "nacre.bytes", "2"], b"");
    for store in [&natively, &by_calls] {
        assert_says(&apply(store, "bytes", read()).unwrap_err(), ErrorKind::Corrupt, &["bytes"]);
    }
    // Objects that are not ours are in nobody's way, and are not listed.
    rados(&["put", "somebody", "-"], b"else's");
    let listed: Vec<String> = block_on(natively.list(None, 100))
        .map_or_else(|_| Vec::new(), |ids| ids.iter().map(ToString::to_string).collect());
    assert!(!listed.contains(&"somebody".to_string()));
}

#[test]
fn objects_that_pass_the_limit_are_refused_whole() {
    let cluster = Cluster::shared();
    let store = cluster.open("limit");
    // Stock OSDs keep up to 128 MiB in one object.
    let piece = vec![7_u8; 16 << 20];
    let mut written = 0_u64;
    let error = loop {
        assert!(written < 160 << 20, "no limit was met");
        let write = Transaction::new().write(Fork::DEFAULT, written, piece.clone());
        match apply(&store, "large", write) {
            Ok(_) => written += piece.len() as u64,
            Err(error) => break error,
        }
    };
    assert_says(&error, ErrorKind::OutOfSpace, &["osd_max_object_size", "large"]);
    assert_eq!(written, 128 << 20);
    let tail = Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(written - 4, 100));
    let Outcome::Done(done) = apply(&store, "large", tail).unwrap() else {
        unreachable!("there is no guard")
    };
    let nacre_object::Answer::Range(found) = &done.answers[0] else { unreachable!("a range was asked for") };
    assert_eq!((&found.data[..], found.size), (&[7; 4][..], written));
    apply(&store, "large", Transaction::new().change(Write::Remove)).unwrap();
}
