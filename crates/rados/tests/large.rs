//! Large content, and much at once: pieces that are written behind each other natively, pieces spread over many extents,
//! and transactions that read and write one object side by side. Nothing is lost, and nothing waits for ever.

mod cluster;

use bytes::Bytes;
use cluster::{Cluster, open};
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ByteRange, Fork, Guard, Intent, Key, ObjectId, ObjectStore, Outcome, ReadOp, Reply, Transaction,
    WriteOp,
};
use nacre_rados::RadosStore;
use nacre_rados::raw::RawPool;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn id(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn read(store: &RadosStore, name: &str, range: ByteRange) -> (Vec<u8>, u64) {
    let read = ReadOp::Range { fork: Fork::DEFAULT, range, intent: Intent::Look };
    match block_on(store.apply(&id(name), Transaction::new().read(read))).unwrap() {
        Outcome::Done(done) => match &done.answers[..] {
            [Answer::Range(read)] => (read.data.to_vec(), read.version),
            other => panic!("{other:?}"),
        },
        refused => panic!("{refused:?}"),
    }
}

#[test]
fn clients_that_write_behind_the_end_of_one_fork_lose_nothing() {
    const PIECE: usize = 64 << 10;
    const PIECES: u64 = 24;
    let cluster = Cluster::shared();
    let uri = cluster.uri("behind");
    let first = Transaction::new().write(Fork::DEFAULT, 0, "head");
    block_on(open(&uri).apply(&id("a"), first)).unwrap();
    std::thread::scope(|scope| {
        for client in 0..4_u64 {
            let uri = &uri;
            scope.spawn(move || {
                // One makes calls of everything: both ways must keep out of each other's way.
                let store = open(&format!("{uri}&native={}", if client == 0 { "off" } else { "on" }));
                let writes: Vec<_> = (0..PIECES)
                    .map(|piece| {
                        let offset = 4096 + (piece * 4 + client) * PIECE as u64;
                        let data = vec![(piece * 4 + client + 1) as u8; PIECE];
                        let write =
                            Transaction::new().guard(Guard::Exists).write(Fork::DEFAULT, offset, data);
                        store.apply(&id("a"), write)
                    })
                    .collect();
                let versions: Vec<u64> = writes
                    .into_iter()
                    .map(|write| match block_on(write).unwrap() {
                        Outcome::Done(done) => done.version,
                        refused => panic!("{refused:?}"),
                    })
                    .collect();
                assert!(versions.windows(2).all(|pair| pair[0] != pair[1]));
            });
        }
    });
    let mut expected = b"head".to_vec();
    expected.resize(4096, 0);
    (0..4 * PIECES).for_each(|piece| expected.extend(vec![piece as u8 + 1; PIECE]));
    for way in ["on", "off"] {
        let store = open(&format!("{uri}&native={way}"));
        let (data, version) = read(&store, "a", ByteRange::ALL);
        assert!(data == expected, "native={way}");
        assert_eq!(version, 1 + 4 * PIECES, "every write has a version of its own");
    }
    assert!(block_on(open(&uri).scrub(|_, _| {})).unwrap().findings.is_empty());
}

#[test]
fn pieces_that_are_spread_over_many_extents_land_where_they_belong() {
    let cluster = Cluster::shared();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let uri = cluster.uri("spread");
    let (store, mut random) = (open(&uri), StdRng::seed_from_u64(seed));
    const EXTENTS: u64 = 1500;
    let mut model = vec![0_u8; (EXTENTS * 20) as usize];
    let mut extents = Vec::new();
    for extent in 0..EXTENTS {
        let data = vec![1; 10];
        model[(extent * 20) as usize..][..10].copy_from_slice(&data);
        extents.push((extent * 20, Bytes::from(data)));
    }
    let write = |extents| Transaction::new().change(WriteOp::Extents { fork: Fork::DEFAULT, extents });
    block_on(store.apply(&id("a"), write(extents))).unwrap();
    for round in 0..30_u8 {
        // Far apart, close together, in any order, and two writes of one transaction that meet, which takes a call.
        let mut transaction = Transaction::new();
        for _ in 0..1 + round % 2 {
            let begin = random.random_range(0..EXTENTS * 20 - 1000);
            let dense = random.random::<bool>();
            let extents: Vec<(u64, Bytes)> = (0..random.random_range(1..60))
                .map(|_| {
                    let span = if dense { begin..begin + 900 } else { 0..EXTENTS * 20 - 50 };
                    (random.random_range(span), Bytes::from(vec![round + 2; random.random_range(1..50)]))
                })
                .collect();
            for (offset, data) in &extents {
                model[*offset as usize..][..data.len()].copy_from_slice(data);
            }
            transaction = transaction.change(WriteOp::Extents { fork: Fork::DEFAULT, extents });
        }
        block_on(store.apply(&id("a"), transaction)).unwrap();
        let (data, _) = read(&store, "a", ByteRange::ALL);
        let differs = data.iter().zip(&model).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "round {round}");
    }
    // So many that the client reads the index for them, by one that knows nothing of it and by one that does.
    for (client, store) in [(40_u8, &open(&uri)), (41, &store), (42, &store)] {
        let extents: Vec<(u64, Bytes)> = (0..1000)
            .map(|piece| (piece * 25 + u64::from(client), Bytes::from(vec![client; 1 + piece as usize % 9])))
            .collect();
        for (offset, data) in &extents {
            model[*offset as usize..][..data.len()].copy_from_slice(data);
        }
        block_on(store.apply(&id("a"), write(extents))).unwrap();
        let (data, _) = read(store, "a", ByteRange::ALL);
        assert!(data == model[..data.len()], "after client {client}");
    }
    assert!(block_on(store.scrub(|_, _| {})).unwrap().findings.is_empty());
}

#[test]
fn a_compaction_gives_back_what_garbage_takes_and_changes_nothing() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("compact");
    let store = open(&uri);
    // A third of it is garbage, which is too little for the OSDs to compact it by themselves.
    block_on(store.apply(&id("a"), Transaction::new().write(Fork::DEFAULT, 0, vec![1; 300_000]))).unwrap();
    block_on(store.apply(&id("a"), Transaction::new().write(Fork::DEFAULT, 250_000, vec![2; 100_000])))
        .unwrap();
    block_on(store.apply(&id("b"), Transaction::new().write(Fork::DEFAULT, 0, "no garbage"))).unwrap();
    let before = read(&store, "a", ByteRange::ALL);
    let bytes = || {
        let stat = String::from_utf8(cluster.rados_in(&uri, &["stat", "nacre.a"], b"")).unwrap();
        stat.trim().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let long = bytes();
    let report = block_on(store.compact(|_, _| {})).unwrap();
    assert_eq!((report.objects, report.compacted), (2, 1));
    assert!(bytes() + 45_000 < long, "{} of {long} bytes", bytes());
    assert!(read(&store, "a", ByteRange::ALL) == before);
    assert_eq!(block_on(store.compact(|_, _| {})).unwrap().compacted, 0);
}

#[test]
fn transactions_that_read_and_write_one_object_at_once_make_one_chain() {
    const EACH: u64 = 48;
    let cluster = Cluster::shared();
    let uri = cluster.uri("chain");
    let key = Key::try_from("last").unwrap();
    let seen: Vec<Option<Bytes>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2_u64)
            .map(|client| {
                let (uri, key) = (&uri, &key);
                scope.spawn(move || {
                    let store = open(uri);
                    let replies: Vec<_> = (0..EACH)
                        .map(|number| {
                            let value = Bytes::from(format!("{client}-{number}"));
                            let exchange = Transaction::new()
                                .read(ReadOp::Key { key: key.clone() })
                                .change(WriteOp::SetKey { key: key.clone(), value });
                            store.apply(&id("a"), exchange)
                        })
                        .collect();
                    // Whoever waits for the last one first waits for no one who would have to be polled.
                    replies
                        .into_iter()
                        .rev()
                        .map(|reply| match block_on(reply).unwrap() {
                            Outcome::Done(done) => match done.answers.into_iter().next() {
                                Some(Answer::Value(value)) => value,
                                other => panic!("{other:?}"),
                            },
                            refused => panic!("{refused:?}"),
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let mut distinct = seen.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len() as u64, 2 * EACH, "each found another one's value");
    assert_eq!(seen.iter().filter(|value| value.is_none()).count(), 1, "one found none");
}

#[test]
fn writes_of_one_object_at_once_are_few_operations_and_each_has_its_version() {
    const COUNT: u64 = 300;
    let cluster = Cluster::shared();
    let uri = cluster.uri("together");
    let (store, raw) = (open(&uri), block_on(RawPool::open(&uri)).unwrap());
    let done = |reply: Reply<Outcome>| match block_on(reply) {
        Ok(Outcome::Done(done)) => done,
        other => panic!("{other:?}"),
    };
    // All of the object is known to the client that has made it.
    done(store.apply(&id("a"), Transaction::new().write(Fork::DEFAULT, 0, vec![0; 8 * COUNT as usize])));
    // RADOS counts the operations that change an object.
    let operations = || block_on(raw.read("nacre.a", 1)).unwrap().1;
    let mut fewest = u64::MAX;
    for round in 1..=5 {
        let before = operations();
        let text = |number: u64| format!("{round}{number:07}");
        let replies: Vec<_> = (0..COUNT)
            .map(|number| {
                let write = Transaction::new().write(Fork::DEFAULT, 8 * number, text(number));
                store.apply(&id("a"), write)
            })
            .collect();
        let mut versions: Vec<u64> = replies.into_iter().rev().map(|reply| done(reply).version).collect();
        versions.sort_unstable();
        let first = 2 + (round - 1) * COUNT;
        assert!(versions.into_iter().eq(first..first + COUNT), "a version was left out, or given twice");
        let expected: String = (0..COUNT).map(text).collect();
        assert_eq!(read(&store, "a", ByteRange::ALL).0, expected.as_bytes());
        fewest = fewest.min(operations() - before);
        // Where this thread stood still between the writes, they did not meet.
        if fewest < COUNT / 2 {
            return;
        }
    }
    panic!("{COUNT} writes took {fewest} operations");
}

#[test]
fn clients_that_make_the_same_objects_at_once_make_each_of_them_once() {
    const OBJECTS: u64 = 20;
    let cluster = Cluster::shared();
    let uri = cluster.uri("first");
    let name = |number: u64| format!("made-{number:02}");
    let (key, attribute) = (Key::try_from("maker").unwrap(), Key::try_from("kind").unwrap());
    let winners: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4_u64)
            .map(|client| {
                let (uri, key, attribute) = (&uri, &key, &attribute);
                scope.spawn(move || {
                    // One makes calls of everything: both ways keep the index of names by the same rules.
                    let store = open(&format!("{uri}&native={}", if client == 0 { "off" } else { "on" }));
                    let attempts: Vec<_> = (0..OBJECTS)
                        .map(|number| {
                            let value = Bytes::from(client.to_string());
                            let make = Transaction::new()
                                .guard(Guard::Absent)
                                .write(Fork::DEFAULT, 0, vec![client as u8 + 1; 5000])
                                .write(Fork::try_from("other").unwrap(), 10, "text")
                                .change(WriteOp::SetKey { key: key.clone(), value })
                                .change(WriteOp::SetAttribute {
                                    name: attribute.clone(),
                                    value: "made".into(),
                                });
                            store.apply(&id(&name(number)), make)
                        })
                        .collect();
                    let made =
                        attempts.into_iter().enumerate().filter_map(|(number, attempt)| {
                            match block_on(attempt).unwrap() {
                                Outcome::Done(done) => {
                                    assert_eq!((done.version, done.existed), (1, false));
                                    Some((number as u64, client))
                                }
                                Outcome::Refused(refusal) => {
                                    assert_eq!(refusal.guard, 0);
                                    None
                                }
                            }
                        });
                    made.collect::<Vec<_>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let mut made: Vec<u64> = winners.iter().map(|(number, _)| *number).collect();
    made.sort();
    assert_eq!(made, (0..OBJECTS).collect::<Vec<_>>());
    let store = open(&uri);
    for (number, client) in &winners {
        let (data, version) = read(&store, &name(*number), ByteRange::ALL);
        assert!(data == vec![*client as u8 + 1; 5000] && version == 1);
        let whole = Transaction::new()
            .read(ReadOp::Key { key: key.clone() })
            .read(ReadOp::Attribute { name: attribute.clone() })
            .read_range(Fork::try_from("other").unwrap(), ByteRange::ALL)
            .read(ReadOp::Stat);
        let Outcome::Done(done) = block_on(store.apply(&id(&name(*number)), whole)).unwrap() else {
            panic!("it has no guard")
        };
        assert_eq!(done.answers[0], Answer::Value(Some(client.to_string().into())));
        assert_eq!(done.answers[1], Answer::Value(Some("made".into())));
        assert!(
            matches!(&done.answers[2], Answer::Range(read) if read.data == b"\0\0\0\0\0\0\0\0\0\0text"[..])
        );
        assert!(matches!(&done.answers[3], Answer::Stat(stat) if (stat.forks, stat.bytes) == (2, 5014)));
    }
    let listed = block_on(store.list(None, 1000)).unwrap();
    assert_eq!(listed, (0..OBJECTS).map(|number| id(&name(number))).collect::<Vec<_>>());
    // What was removed is made again by the class, above its last version.
    let remove = Transaction::new().change(WriteOp::Remove);
    block_on(store.apply(&id(&name(0)), remove)).unwrap();
    let again = Transaction::new().guard(Guard::Absent).write(Fork::DEFAULT, 0, "again");
    match block_on(store.apply(&id(&name(0)), again)).unwrap() {
        Outcome::Done(done) => assert_eq!((done.version, done.existed), (3, false)),
        refused => panic!("{refused:?}"),
    }
    assert_eq!(block_on(store.list(None, 1000)).unwrap().len() as u64, OBJECTS);
    assert!(block_on(store.scrub(|_, _| {})).unwrap().findings.is_empty());
}

#[test]
fn a_guard_over_a_fork_of_many_extents_sees_every_change() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("whole");
    let (store, other) = (open(&uri), open(&uri));
    let key = Key::try_from("key").unwrap();
    let extents = (0..5000).map(|piece| (piece * 4, Bytes::from_static(b"x"))).collect();
    let write = Transaction::new().change(WriteOp::Extents { fork: Fork::DEFAULT, extents });
    block_on(store.apply(&id("a"), write)).unwrap();
    let set = |store: &RadosStore, version| {
        let set = WriteOp::SetKey { key: key.clone(), value: "value".into() };
        let guarded = Transaction::new().if_version(Fork::DEFAULT, ByteRange::ALL, version).change(set);
        matches!(block_on(store.apply(&id("a"), guarded)).unwrap(), Outcome::Done(_))
    };
    // By both, in turns: what each has kept is old whenever the other has written.
    for _ in 0..3 {
        assert!(set(&store, 1) && set(&store, 1) && set(&other, 1) && set(&other, 1));
    }
    let last = Transaction::new().write(Fork::DEFAULT, 4 * 4999, "y");
    let Outcome::Done(done) = block_on(other.apply(&id("a"), last)).unwrap() else { panic!("no guard") };
    assert_eq!(done.version, 14);
    for store in [&store, &other] {
        assert!(!set(store, 1) && !set(store, 13) && set(store, 14) && !set(store, 13));
    }
}
