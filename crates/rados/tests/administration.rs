//! The faults that an administrator meets: settings and capabilities that are missing, pools that cannot be used,
//! damaged and foreign objects, clients that are shut out. Each is reported in a sentence that says what is wrong, and
//! none is a wrong read.

mod cluster;

use cluster::{Cluster, open, wait_until};
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ByteRange, Check, ErrorKind, Fences, Fork, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome,
    ReadOp, StoreError, Transaction, WriteOp,
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
    // What RADOS does by itself works all the same, however it is asked.
    assert!(apply(&store, "a", read()).is_ok());
    assert!(apply(&store, "a", read().read(ReadOp::Stat).guard(Guard::Absent)).is_ok());
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
    assert_says(&nowhere, ErrorKind::Invalid, &["/nowhere/ceph.conf"]);
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
    // Something of everything, for those who may read.
    let key = |name: &str| Key::try_from(name).unwrap();
    let admin = open(&uri);
    let fill = Transaction::new()
        .write(Fork::DEFAULT, 0, vec![7; 100_000])
        .write(Fork::try_from("other").unwrap(), 5, "more")
        .change(WriteOp::SetKey { key: key("colour"), value: "red".into() })
        .change(WriteOp::SetAttribute { name: key("shape"), value: "round".into() })
        .change(WriteOp::RaiseFence { token: 3 })
        .change(WriteOp::FenceSession { session: 8 })
        .change(WriteOp::FenceSession { session: 5 });
    apply(&admin, "full", fill).unwrap();
    for offset in 0..40 {
        apply(&admin, "full", Transaction::new().write(Fork::DEFAULT, 50 + 1000 * offset, "piece")).unwrap();
    }
    let range = ReadOp::Range { fork: Fork::DEFAULT, range: ByteRange::ALL, intent: Default::default() };
    let everything = Transaction::new()
        .guard(Guard::Exists)
        .guard(Guard::Key { key: key("colour"), check: Check::Equal("red".into()) })
        .guard(Guard::Region { fork: Fork::DEFAULT, range: ByteRange::ALL, version: 41 })
        .read(range)
        .read(ReadOp::Extents { fork: Fork::DEFAULT, range: ByteRange::ALL })
        .read(ReadOp::Stat)
        .read(ReadOp::Forks { after: None, limit: 10 })
        .read(ReadOp::Key { key: key("colour") })
        .read(ReadOp::Keys { range: KeyRange::all(), limit: 10, values: true })
        .read(ReadOp::Attribute { name: key("shape") })
        .read(ReadOp::Attributes)
        .guard(Guard::KeyVersion { key: key("colour"), version: 1 })
        .guard(Guard::KeyVersion { key: key("none"), version: 0 })
        .guard(Guard::Fence { token: 4 })
        .read(ReadOp::versioned_key(key("colour")))
        .read(ReadOp::VersionedKeys { range: KeyRange::all(), limit: 10, values: true })
        .read(ReadOp::VersionedKeys { range: KeyRange::prefix("c"), limit: 10, values: false })
        .read(ReadOp::Fences);
    let refused = [
        Guard::Region { fork: Fork::DEFAULT, range: ByteRange::new(0, 2000), version: 1 },
        Guard::KeyVersion { key: key("colour"), version: 2 },
        Guard::Fence { token: 8 },
        Guard::Fence { token: 2 },
    ]
    .map(|guard| everything.clone().guard(guard));
    let seen: Vec<_> = std::iter::once(everything)
        .chain(refused)
        .map(|transaction| (apply(&admin, "full", transaction.clone()), transaction))
        .collect();
    for (index, (outcome, _)) in seen.iter().enumerate() {
        assert_eq!(matches!(outcome, Ok(Outcome::Done(_))), index == 0, "{outcome:?}");
    }
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
        if may_read {
            // However many reads and guards, what may be read is read, from one moment.
            for (expected, transaction) in &seen {
                assert_eq!(&apply(&store, "full", transaction.clone()), expected, "{user}");
            }
            assert!(!block_on(store.list(None, 10)).unwrap().is_empty(), "{user} lists");
        }
        if may_read && !may_write {
            // To watch takes the right to write, and to notify does not.
            let error = block_on(store.watch(&id("full"), Default::default())).unwrap_err();
            assert_says(&error, ErrorKind::Unsupported, &[&name]);
            let second = std::time::Duration::from_secs(1);
            let notified = block_on(store.notify(&id("full"), "news".into(), second)).unwrap();
            assert_eq!(notified.acknowledged.len() + notified.missed.len(), 0);
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
    let mut watch = block_on(store.watch(&id("a"), Default::default())).unwrap();
    let address = block_on(store.client_address()).unwrap();
    cluster.ceph(&["osd", "blocklist", "add", &address, "3600"]);
    // The OSDs learn of it with the next map.
    let error = loop {
        if let Err(error) = write(&store, "a") {
            break error;
        }
    };
    assert_says(&error, ErrorKind::Unknown, &["blocklisted", "open the store again"]);
    let ended = loop {
        match block_on(watch.next()) {
            Some(Ok(_)) => {}
            ended => break ended,
        }
    };
    let error = ended.expect("the watch ended without a reason").unwrap_err();
    assert_says(&error, ErrorKind::Unavailable, &["blocklisted", "open the store again"]);
    cluster.ceph(&["osd", "blocklist", "rm", &address]);
}

#[test]
fn damaged_values_are_noticed_and_named() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("damage");
    let (natively, by_calls) = (open(&uri), open(&format!("{uri}&native=off")));
    let key = Key::try_from("colour").unwrap();
    let rados = |arguments: &[&str], input: &[u8]| cluster.rados_in(&uri, arguments, input);
    // What is damaged, the key that holds it, and a read that needs it.
    let cases: [(&str, &str, ReadOp); 6] = [
        (
            "extent",
            "x\u{1}\u{1}0000000000000004",
            ReadOp::Range { fork: Fork::DEFAULT, range: ByteRange::new(0, 4), intent: Default::default() },
        ),
        (
            "fork",
            "f",
            ReadOp::Range { fork: Fork::DEFAULT, range: ByteRange::new(0, 4), intent: Default::default() },
        ),
        ("key", "kcolour", ReadOp::Key { key: key.clone() }),
        ("attribute", "acolour", ReadOp::Attribute { name: key.clone() }),
        ("versioned", "kcolour", ReadOp::versioned_key(key.clone())),
        ("fences", "s", ReadOp::Fences),
    ];
    for (what, omap_key, read) in cases {
        let foreign: &[&[u8]] = &[b"", b"foreign", &[0xff; 28], &[1; 13]];
        for (number, value) in foreign.iter().enumerate() {
            let name = format!("{what}-{number}");
            let transaction = Transaction::new()
                .write(Fork::DEFAULT, 0, "text")
                .change(WriteOp::SetKey { key: key.clone(), value: "red".into() })
                .change(WriteOp::SetAttribute { name: key.clone(), value: "red".into() })
                .change(WriteOp::FenceSession { session: 7 });
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
                    .change(WriteOp::RemoveKey { key: key.clone() })
                    .change(WriteOp::RemoveAttribute { name: key.clone() }),
                "versioned" => Transaction::new()
                    .guard(Guard::KeyVersion { key: key.clone(), version: 1 })
                    .change(WriteOp::Create),
                "fences" => Transaction::new().guard(Guard::Fence { token: 9 }).change(WriteOp::Create),
                _ => Transaction::new().write(Fork::DEFAULT, 2, "more"),
            };
            assert_says(&apply(&by_calls, &name, guarded).unwrap_err(), ErrorKind::Corrupt, &[&name]);
            let stat = apply(&natively, &name, Transaction::new().read(ReadOp::Stat)).unwrap();
            let Outcome::Done(done) = stat else { unreachable!("there is no guard") };
            assert_eq!(done.version, 1);
        }
    }
    // Fenced sessions that were lost would all pass again.
    let name = "lost-fences";
    apply(&natively, name, Transaction::new().change(WriteOp::FenceSession { session: 7 })).unwrap();
    rados(&["rmomapkey", &format!("nacre.{name}"), "s"], b"");
    let guarded = || Transaction::new().guard(Guard::Fence { token: 9 });
    for store in [&natively, &by_calls] {
        for transaction in
            [guarded(), guarded().change(WriteOp::Create), Transaction::new().read(ReadOp::Fences)]
        {
            assert_says(&apply(store, name, transaction).unwrap_err(), ErrorKind::Corrupt, &[name, "\"s\""]);
        }
    }
    let report = block_on(natively.scrub(|_, _| {})).unwrap();
    assert!(report.findings.iter().any(|(object, _)| *object == id(name)));
    // The header: its length, its checksum.
    write(&natively, "header").unwrap();
    let fences = [3, 9].map(|session| WriteOp::FenceSession { session });
    let fences = fences.into_iter().fold(Transaction::new(), |fences, fence| fences.change(fence));
    apply(&natively, "header", fences.change(WriteOp::RaiseFence { token: 5 })).unwrap();
    let mut header = rados(&["getxattr", "nacre.header", "nacre"], b"");
    header[9] ^= 4;
    rados(&["setxattr", "nacre.header", "nacre"], &header);
    for store in [&natively, &by_calls] {
        let over = || Transaction::new().write(Fork::DEFAULT, 0, "over");
        for transaction in [read(), over(), over().guard(Guard::Absent)] {
            assert_says(
                &apply(store, "header", transaction).unwrap_err(),
                ErrorKind::Corrupt,
                &["header", "nacre"],
            );
        }
    }
    // Such an object is in nobody's way: it is listed by its name, reported, and done away with on demand.
    let listed = || block_on(natively.list(None, 100)).unwrap();
    assert!(listed().contains(&id("header")));
    let report = block_on(natively.scrub(|_, _| {})).unwrap();
    assert!(
        report
            .findings
            .iter()
            .any(|(object, error)| *object == id("header") && error.kind == ErrorKind::Corrupt)
    );
    assert!(!report.findings.iter().any(|(object, _)| *object == id("sound")));
    write(&natively, "sound").unwrap();
    let error = block_on(natively.discard_damaged(&id("sound"))).unwrap_err();
    assert_says(&error, ErrorKind::Invalid, &["sound", "not damaged"]);
    assert!(!block_on(natively.discard_damaged(&id("nothing"))).unwrap());
    assert!(block_on(natively.discard_damaged(&id("header"))).unwrap());
    assert!(!listed().contains(&id("header")));
    for store in [&natively, &by_calls] {
        let Outcome::Done(done) = write(store, "header").unwrap() else { unreachable!("there is no guard") };
        assert!(done.version > 1 << 32, "versions went back to {}", done.version);
        let fences = apply(store, "header", Transaction::new().read(ReadOp::Fences)).unwrap();
        let Outcome::Done(done) = fences else { unreachable!("there is no guard") };
        assert_eq!(done.answers, [Answer::Fences(Fences { fence: 5, sessions: vec![9] })]);
    }
    // The byte stream, cut short by somebody.
    write(&natively, "bytes").unwrap();
    rados(&["truncate", "nacre.bytes", "2"], b"");
    for store in [&natively, &by_calls] {
        assert_says(&apply(store, "bytes", read()).unwrap_err(), ErrorKind::Corrupt, &["bytes"]);
    }
    let report = block_on(by_calls.scrub(|_, _| {})).unwrap();
    assert!(report.findings.iter().any(|(object, _)| *object == id("bytes")));
    // Objects that are not ours are in nobody's way, and are not listed.
    rados(&["put", "somebody", "-"], b"else's");
    let listed: Vec<String> = block_on(natively.list(None, 100))
        .map_or_else(|_| Vec::new(), |ids| ids.iter().map(ToString::to_string).collect());
    assert!(!listed.contains(&"somebody".to_string()));
}

#[test]
fn objects_that_pass_the_limit_are_refused_whole() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("limit");
    let store = open(&uri);
    let limit = |store: &RadosStore| block_on(store.limits()).unwrap().fork_bytes_max;
    assert_eq!(limit(&store), 128 << 20);
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
    apply(&store, "large", Transaction::new().change(WriteOp::Remove)).unwrap();
    // What the OSDs have set counts, not what this client has; and whoever must not write is bounded by nothing.
    cluster.ceph(&["config", "set", "osd", "osd_max_object_size", "100000001"]);
    wait_until("the OSDs have the new setting", || limit(&open(&uri)) == 100_000_001);
    // More than Lua in an OSD can address is no use.
    cluster.ceph(&["config", "set", "osd", "osd_max_object_size", "3000000000"]);
    wait_until("the OSDs have the setting that is too large", || limit(&open(&uri)) == (1 << 31) - 1);
    cluster.ceph(&["config", "rm", "osd", "osd_max_object_size"]);
    wait_until("the OSDs have the default again", || limit(&open(&uri)) == 128 << 20);
}

#[test]
fn a_limit_that_no_osd_told_is_asked_for_again() {
    let cluster = Cluster::start("paused", &["--size", "1"]);
    let limit = |store: &RadosStore| block_on(store.limits()).unwrap().fork_bytes_max;
    cluster.ceph(&["osd", "pause"]);
    // The monitor, which it connects to, tells it that the OSDs take nothing for now. It may not be quick enough with that
    // at once.
    let uri = format!("{}&timeout_ms=5000", cluster.uri("paused"));
    let mut opened = None;
    wait_until("the monitor lets the client in", || {
        opened = block_on(RadosStore::open(&uri)).ok();
        opened.is_some()
    });
    let store = opened.unwrap();
    assert_eq!(limit(&store), (1 << 31) - 1, "the class's own limit remains");
    cluster.ceph(&["osd", "unpause"]);
    wait_until("the OSDs tell their limit", || limit(&store) == 128 << 20);
}

#[test]
fn a_pool_that_was_removed_is_not_an_empty_store() {
    let cluster = Cluster::shared();
    cluster.ceph(&["osd", "pool", "create", "brief", "8", "8", "replicated"]);
    let key = cluster.ceph(&["auth", "get-or-create", "client.brief", "mon", "allow r", "osd", "allow rwx"]);
    std::fs::write(cluster.dir().join("client.brief.keyring"), key).unwrap();
    let uri = cluster.uri("gone").replace("rados://nacre", "rados://brief").replace("id=nacre", "id=brief");
    let stores = [open(&uri), open(&format!("{uri}&native=off"))];
    for store in &stores {
        write(store, "a").unwrap();
        write(store, "a").unwrap();
        apply(store, "a", read()).unwrap();
    }
    cluster.ceph(&["config", "set", "mon", "mon_allow_pool_delete", "true"]);
    cluster.ceph(&["osd", "pool", "delete", "brief", "brief", "--yes-i-really-really-mean-it"]);
    for store in &stores {
        // The monitor has removed it; OSDs and clients are told by their next map, and work on it until then.
        wait_until("the client knows that the pool is gone", || apply(store, "a", read()).is_err());
    }
    for again in [false, true] {
        if again {
            // Another one of the same name is another pool.
            cluster.ceph(&["osd", "pool", "create", "brief", "8", "8", "replicated"]);
        }
        for store in &stores {
            for transaction in [
                read(),
                read().read(ReadOp::Stat),
                Transaction::new().read(ReadOp::Stat),
                Transaction::new().read(ReadOp::Key { key: Key::try_from("k").unwrap() }),
                Transaction::new().write(Fork::DEFAULT, 0, "text"),
                Transaction::new().change(WriteOp::Create),
            ] {
                let error = apply(store, "a", transaction).unwrap_err();
                assert_says(&error, ErrorKind::Unavailable, &["brief", "the pool was removed"]);
            }
            let error = block_on(store.list(None, 10)).unwrap_err();
            assert_says(&error, ErrorKind::Unavailable, &["brief", "the pool was removed"]);
        }
    }
    cluster.ceph(&["osd", "pool", "delete", "brief", "brief", "--yes-i-really-really-mean-it"]);
}

#[test]
fn any_number_of_replies_may_wait_for_each_other() {
    let cluster = Cluster::shared();
    for way in ["on", "off"] {
        let store = open(&format!("{}&native={way}", cluster.uri("replies")));
        let mut replies: Vec<_> = (0..3000_u64)
            .map(|number| {
                let object = id(&(number % 7).to_string());
                let transaction = match number % 3 {
                    0 => read().read(ReadOp::Stat),
                    1 => read(),
                    _ => Transaction::new().write(Fork::DEFAULT, 8 * (number % 50), vec![1; 8]),
                };
                store.apply(&object, transaction)
            })
            .collect();
        // The last one first: nothing that it needs may wait for somebody to look at the first one.
        while let Some(reply) = replies.pop() {
            block_on(reply).unwrap();
        }
    }
}

#[test]
fn objects_have_the_time_of_their_last_write() {
    let cluster = Cluster::shared();
    for way in ["on", "off"] {
        let uri = format!("{}&native={way}", cluster.uri("time"));
        let store = open(&uri);
        for _ in 0..3 {
            write(&store, "a").unwrap();
            apply(&store, "a", read()).unwrap();
            let line = cluster.rados(&["-p", "nacre", "-N", cluster::namespace(&uri), "stat", "nacre.a"]);
            let year = line.split("mtime ").nth(1).unwrap()[..4].parse::<u32>().unwrap();
            assert!(year > 2000, "{line}");
        }
    }
}

/// Writes 50,000 extents of one byte, in five transactions.
fn write_many(store: &RadosStore, object: &str) {
    let pieces = 10_000_u64;
    for part in 0..5 {
        let extents = (0..pieces).map(|piece| ((part * pieces + piece) * 4, vec![part as u8 + 1].into()));
        let extents = WriteOp::Extents { fork: Fork::DEFAULT, extents: extents.collect() };
        apply(store, object, Transaction::new().change(extents)).unwrap();
    }
}

/// Tests that emptying a fork costs little, however long its index is: one call may look at some 250,000 extents, and here
/// guards look at almost so many.
#[test]
fn a_fork_of_any_length_is_emptied_in_one_call() {
    let cluster = Cluster::shared();
    let store = cluster.open("emptied");
    write_many(&store, "long");
    apply(&store, "long", Transaction::new().change(WriteOp::Create)).unwrap();
    let mut empty = Transaction::new().change(WriteOp::Truncate { fork: Fork::DEFAULT, size: 0 });
    for _ in 0..5 {
        empty = empty.if_version(Fork::DEFAULT, ByteRange::ALL, 5);
    }
    apply(&store, "long", empty.write(Fork::DEFAULT, 2, "new")).unwrap();
    let all = || {
        let outcome = apply(&store, "long", read().read_range(Fork::DEFAULT, ByteRange::new(100, 4)));
        let Outcome::Done(done) = outcome.unwrap() else { unreachable!("there is no guard") };
        let [Answer::Range(begin), Answer::Range(rest)] = &done.answers[..] else {
            unreachable!("ranges were asked for")
        };
        (begin.data.to_vec(), begin.size, begin.version, rest.size, rest.version)
    };
    assert_eq!(all(), (b"\0\0ne".to_vec(), 5, 7, 5, 7));
    let again = Transaction::new().change(WriteOp::Truncate { fork: Fork::DEFAULT, size: 0 });
    apply(&store, "long", again).unwrap();
    apply(&store, "long", Transaction::new().write(Fork::DEFAULT, 0, "anew")).unwrap();
    assert_eq!(all(), (b"anew".to_vec(), 4, 9, 4, 8));
    assert!(block_on(store.scrub(|_, _| {})).unwrap().findings.is_empty());
}

/// Tests that a call ends by itself, whatever it is asked: an OSD that is kept busy for long kills itself.
#[test]
fn what_is_too_much_for_one_call_is_refused_or_read_piece_by_piece() {
    let cluster = Cluster::shared();
    let store = cluster.open("purse");
    let pieces = 10_000_u64;
    write_many(&store, "long");
    let mut looks = Transaction::new();
    for _ in 0..8 {
        looks = looks.read(ReadOp::Extents { fork: Fork::DEFAULT, range: ByteRange::new(1, u64::MAX >> 2) });
    }
    let Outcome::Done(done) = apply(&store, "long", looks.clone()).unwrap() else {
        unreachable!("there is no guard")
    };
    assert_eq!(done.answers.len(), 8);
    for answer in &done.answers {
        let Answer::Range(found) = answer else { unreachable!("ranges were asked for") };
        assert_eq!((found.version, found.size, found.extents.len()), (5, (5 * pieces - 1) * 4 + 1, 4096));
    }
    // A guard that nothing of the whole object is newer than takes no look at the index. These do.
    apply(
        &store,
        "long",
        Transaction::new().if_version(Fork::DEFAULT, ByteRange::ALL, 5).change(WriteOp::Create),
    )
    .unwrap();
    let mut write = Transaction::new().write(Fork::DEFAULT, 0, "over");
    for _ in 0..8 {
        write = write.if_version(Fork::DEFAULT, ByteRange::ALL, 5);
    }
    let from = std::time::Instant::now();
    assert_says(&apply(&store, "long", write).unwrap_err(), ErrorKind::Unsupported, &["long", "one call"]);
    println!("an exhausted call took {} ms", from.elapsed().as_millis());
    let stat = apply(&store, "long", Transaction::new().read(ReadOp::Stat)).unwrap();
    let Outcome::Done(done) = stat else { unreachable!("there is no guard") };
    assert_eq!(done.version, 6);
    // A fork of any length goes in one call, and its remains in calls of bounded length.
    let remove = Transaction::new().change(WriteOp::RemoveFork { fork: Fork::DEFAULT });
    apply(&store, "long", remove).unwrap();
    let Outcome::Done(done) = apply(&store, "long", read()).unwrap() else {
        unreachable!("there is no guard")
    };
    let Answer::Range(found) = &done.answers[0] else { unreachable!("a range was asked for") };
    assert_eq!((found.version, found.size), (7, 0));
    let entries = || {
        let uri = store.location().to_string();
        let keys =
            cluster.rados(&["-p", "nacre", "-N", cluster::namespace(&uri), "listomapkeys", "nacre.long"]);
        keys.lines().count()
    };
    cluster::wait_until("the remains are swept away", || {
        apply(&store, "long", Transaction::new().change(WriteOp::Create)).unwrap();
        entries() <= 1
    });
    let all = Transaction::new().write(Fork::DEFAULT, 0, "anew").read(ReadOp::Stat);
    apply(&store, "long", all).unwrap();
    let Outcome::Done(done) = apply(&store, "long", read()).unwrap() else {
        unreachable!("there is no guard")
    };
    let Answer::Range(found) = &done.answers[0] else { unreachable!("a range was asked for") };
    assert_eq!(&found.data[..], b"anew");
}
