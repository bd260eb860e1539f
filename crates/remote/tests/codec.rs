//! The bytes: golden vectors, round trips, and frames that were tampered with.

use bytes::{Bytes, BytesMut};
use nacre_object::*;
use nacre_quantity::escaped_text;
use nacre_remote::{call, check, kind, reply, request};
use nacre_rpc::frame::{self, Frame};
use nacre_rpc::{Outbox, control, handshake};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn bytes_of(put: impl FnOnce(&mut Outbox)) -> BytesMut {
    let mut outbox = Outbox::default();
    put(&mut outbox);
    let mut bytes = BytesMut::new();
    outbox.copy_to(&mut bytes);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns one message of every kind, with its name.
fn samples() -> Vec<(&'static str, BytesMut)> {
    let fork = Fork::new("f").unwrap();
    let key = Key::new("k").unwrap();
    let object: ObjectId = "object".parse().unwrap();
    let range = ByteRange::new(0x1122, 0x33);
    let value = Bytes::from_static(b"value");
    let transaction = Transaction {
        guards: vec![
            Guard::Exists,
            Guard::Absent,
            Guard::Region { fork: fork.clone(), range, version: 7 },
            Guard::Proposal { fork: fork.clone(), range, version: 8 },
            Guard::Key { key: key.clone(), check: Check::Present },
            Guard::Attribute { name: key.clone(), check: Check::Absent },
            Guard::Key { key: key.clone(), check: Check::Equal(value.clone()) },
            Guard::Key { key: key.clone(), check: Check::NotEqual(value.clone()) },
            Guard::Key { key: key.clone(), check: Check::Less(value.clone()) },
            Guard::Key { key: key.clone(), check: Check::LessOrEqual(value.clone()) },
            Guard::Key { key: key.clone(), check: Check::Greater(value.clone()) },
            Guard::Key { key: key.clone(), check: Check::GreaterOrEqual(value.clone()) },
            Guard::Fence { token: 9 },
        ],
        reads: vec![
            ReadOp::Range { fork: Fork::DEFAULT, range, intent: Intent::Look },
            ReadOp::Range { fork: fork.clone(), range, intent: Intent::Update },
            ReadOp::Extents { fork: fork.clone(), range },
            ReadOp::Stat,
            ReadOp::Forks { after: None, limit: 5 },
            ReadOp::Forks { after: Some(fork.clone()), limit: 6 },
            ReadOp::Key { key: key.clone() },
            ReadOp::Keys { range: KeyRange::prefix("p"), limit: 7, values: false },
            ReadOp::Keys {
                range: KeyRange { after: Some("a".into()), before: Some("z".into()), prefix: Bytes::new() },
                limit: 8,
                values: true,
            },
            ReadOp::Attribute { name: key.clone() },
            ReadOp::Attributes,
        ],
        writes: vec![
            WriteOp::Create,
            WriteOp::Extents { fork: fork.clone(), extents: vec![(3, "abc".into()), (9, "de".into())] },
            WriteOp::Zero { fork: fork.clone(), range },
            WriteOp::Truncate { fork: fork.clone(), size: 10 },
            WriteOp::RemoveFork { fork: fork.clone() },
            WriteOp::SetKey { key: key.clone(), value: value.clone() },
            WriteOp::RemoveKey { key: key.clone() },
            WriteOp::SetAttribute { name: key.clone(), value: value.clone() },
            WriteOp::RemoveAttribute { name: key.clone() },
            WriteOp::RaiseFence { token: 11 },
            WriteOp::Remove,
        ],
    };
    let at_version = Transaction::new().guard(Guard::Version { version: 10 });
    let replacement =
        Transaction::new().change(WriteOp::ReplaceFork { fork: Fork::DEFAULT, from: fork.clone() });
    let read = RangeRead {
        data: "data".into(),
        extents: vec![
            Extent { range: ByteRange::new(0, 2), version: 4, kind: ExtentKind::Data },
            Extent { range: ByteRange::new(2, 2), version: 5, kind: ExtentKind::Hole },
        ],
        version: 6,
        size: 100,
        next: Some(4),
    };
    let stat = Stat { exists: true, version: 1, fence: 2, forks: 3, bytes: 4, keys: 5, attributes: 6 };
    let answers = vec![
        Answer::Range(read.clone()),
        Answer::Stat(stat),
        Answer::Forks(ForkPage { entries: vec![(fork, 12)], more: true }),
        Answer::Value(None),
        Answer::Value(Some(value.clone())),
        Answer::Keys(KeyPage { entries: vec![(key, value.clone())], more: false }),
    ];
    let refused = |found| Outcome::Refused(Refusal { guard: 2, found, version: 3 });
    let outcome =
        |outcome: Outcome| bytes_of(|out| assert!(reply::put_outcome(out, 0x0102, &outcome).is_ok()));
    let error = StoreError::new(ErrorKind::Busy, "why");
    vec![
        ("hello", BytesMut::from(&handshake::hello(1, 0)[..])),
        (
            "apply",
            bytes_of(|out| {
                assert!(request::put_apply(out, 0x0102_0304_0506_0708, &object, &transaction).is_ok())
            }),
        ),
        ("done", outcome(Outcome::Done(Done { version: 77, existed: true, answers }))),
        ("refused_object", outcome(refused(Found::Object { exists: true }))),
        ("refused_region", outcome(refused(Found::Region(RangeRead { next: None, ..read })))),
        ("refused_value", outcome(refused(Found::Value(Some(value.clone()))))),
        ("refused_fence", outcome(refused(Found::Fence(9)))),
        ("list", bytes_of(|out| request::put_list(out, 3, Some(&object), 100))),
        ("list_first", bytes_of(|out| request::put_list(out, 3, None, 100))),
        ("listed", bytes_of(|out| reply::put_listed(out, 4, &[object.clone(), "b".parse().unwrap()]))),
        ("error", bytes_of(|out| control::put_error(out, 5, &error))),
        ("call", bytes_of(|out| assert!(call::put_call(out, 6, "info", &Bytes::from_static(b"{}")).is_ok()))),
        ("result", bytes_of(|out| assert!(control::put_body(out, kind::RESULT, 6, &value).is_ok()))),
        (
            "apply_replacement",
            bytes_of(|out| assert!(request::put_apply(out, 7, &object, &replacement).is_ok())),
        ),
        (
            "apply_at_version",
            bytes_of(|out| assert!(request::put_apply(out, 8, &object, &at_version).is_ok())),
        ),
    ]
}

/// Returns messages with what was added to the object service in version 3 of the protocol, with their names.
fn later_samples() -> Vec<(&'static str, BytesMut)> {
    let key = Key::new("k").unwrap();
    let object: ObjectId = "object".parse().unwrap();
    let value = Bytes::from_static(b"value");
    let range = KeyRange { after: Some("a".into()), before: Some("z".into()), prefix: "p".into() };
    let transaction = Transaction {
        guards: vec![Guard::KeyVersion { key: key.clone(), version: 7 }],
        reads: vec![
            ReadOp::versioned_key(key.clone()),
            ReadOp::VersionedKeys { range: KeyRange::prefix("p"), limit: 7, values: false },
            ReadOp::VersionedKeys { range, limit: 8, values: true },
            ReadOp::Fences,
        ],
        writes: vec![WriteOp::FenceSession { session: 9 }],
    };
    let versioned = Versioned { value, version: 0x1122 };
    let answers = vec![
        Answer::VersionedValue(None),
        Answer::VersionedValue(Some(versioned.clone())),
        Answer::VersionedKeys(VersionedKeyPage { entries: vec![(key, versioned)], more: true }),
        Answer::Fences(Fences { fence: 3, sessions: vec![3, 0x0400] }),
    ];
    let done = Outcome::Done(Done { version: 77, existed: true, answers });
    let append = Transaction {
        guards: vec![Guard::Size { fork: Fork::try_from("f").unwrap(), size: 0x0102 }],
        reads: vec![ReadOp::VersionedKey { key: Key::new("k").unwrap(), intent: Intent::Update }],
        writes: vec![WriteOp::Append { fork: Fork::try_from("f").unwrap(), data: "end".into() }],
    };
    let found_size = Outcome::Refused(Refusal { guard: 0, found: Found::Size(0x5566), version: 3 });
    let found = Found::KeyVersion(0x3344);
    let refused = Outcome::Refused(Refusal { guard: 2, found, version: 3 });
    vec![
        ("apply", bytes_of(|out| assert!(request::put_apply(out, 1, &object, &transaction).is_ok()))),
        ("done", bytes_of(|out| assert!(reply::put_outcome(out, 2, &done).is_ok()))),
        ("refused_key_version", bytes_of(|out| assert!(reply::put_outcome(out, 3, &refused).is_ok()))),
        ("apply_append", bytes_of(|out| assert!(request::put_apply(out, 4, &object, &append).is_ok()))),
        ("refused_size", bytes_of(|out| assert!(reply::put_outcome(out, 5, &found_size).is_ok()))),
    ]
}

/// The bytes of every message are pinned: a change to them breaks older peers, and requires a new version.
#[test]
fn the_bytes_are_those_of_the_golden_vectors() {
    let golden = [
        (samples(), include_str!("golden/version_1.txt")),
        (later_samples(), include_str!("golden/version_3.txt")),
    ];
    for (samples, golden) in golden {
        let found: String = samples.iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
        assert!(found == golden, "the bytes have changed; they are now\n{found}");
    }
}

#[test]
fn every_sample_survives_a_round_trip() {
    for (name, bytes) in samples().iter().skip(1).chain(&later_samples()) {
        assert_eq!(check::decode_all(bytes), 1, "{name}");
    }
}

/// A generator of transactions and outcomes of all kinds that stay within the limits.
struct Maker(SmallRng);

impl Maker {
    fn blob(&mut self, min: usize, max: usize) -> Bytes {
        let len = if self.0.random_bool(0.02) { max } else { self.0.random_range(min..=max.min(min + 40)) };
        (0..len).map(|_| self.0.random::<u8>()).collect::<Vec<u8>>().into()
    }

    fn fork(&mut self) -> Fork {
        Fork::new(self.blob(0, 255)).unwrap()
    }

    fn key(&mut self) -> Key {
        Key::new(self.blob(1, 1024)).unwrap()
    }

    fn range(&mut self) -> ByteRange {
        let offset = self.0.random_range(0..=limit::OFFSET_MAX);
        ByteRange::new(offset, self.0.random_range(0..=limit::OFFSET_MAX - offset))
    }

    fn check(&mut self) -> Check {
        let operand = self.blob(0, 20_000);
        match self.0.random_range(0..8) {
            0 => Check::Present,
            1 => Check::Absent,
            2 => Check::Equal(operand),
            3 => Check::NotEqual(operand),
            4 => Check::Less(operand),
            5 => Check::LessOrEqual(operand),
            6 => Check::Greater(operand),
            _ => Check::GreaterOrEqual(operand),
        }
    }

    fn guard(&mut self) -> Guard {
        let (fork, range, version) =
            (self.fork(), self.range(), self.0.random_range(0..=limit::PROPOSAL_MAX));
        match self.0.random_range(0..10) {
            0 => Guard::Exists,
            1 => Guard::Absent,
            2 => Guard::Region { fork, range, version },
            3 => Guard::Proposal { fork, range, version },
            4 => Guard::Key { key: self.key(), check: self.check() },
            5 => Guard::Attribute { name: self.key(), check: self.check() },
            6 => Guard::Version { version: self.0.random() },
            8 => Guard::Size { fork, size: self.0.random() },
            7 => Guard::KeyVersion { key: self.key(), version: self.0.random() },
            _ => Guard::Fence { token: self.0.random() },
        }
    }

    fn read(&mut self) -> ReadOp {
        let (fork, range, limit) = (self.fork(), self.range(), self.0.random());
        match self.0.random_range(0..11) {
            0 => ReadOp::Range {
                fork,
                range,
                intent: if self.0.random() { Intent::Look } else { Intent::Update },
            },
            1 => ReadOp::Extents { fork, range },
            2 => ReadOp::Stat,
            3 => ReadOp::Forks { after: self.0.random_bool(0.5).then_some(fork), limit },
            4 => ReadOp::Key { key: self.key() },
            5 => ReadOp::Keys { range: self.key_range(), limit, values: self.0.random() },
            6 => ReadOp::Attribute { name: self.key() },
            7 => ReadOp::VersionedKey {
                key: self.key(),
                intent: if self.0.random() { Intent::Look } else { Intent::Update },
            },
            8 => ReadOp::VersionedKeys { range: self.key_range(), limit, values: self.0.random() },
            9 => ReadOp::Fences,
            _ => ReadOp::Attributes,
        }
    }

    fn key_range(&mut self) -> KeyRange {
        let (after, before) = (self.blob(0, 1024), self.blob(0, 1024));
        KeyRange {
            after: self.0.random_bool(0.5).then_some(after),
            before: self.0.random_bool(0.5).then_some(before),
            prefix: self.blob(0, 1024),
        }
    }

    fn write(&mut self) -> WriteOp {
        let fork = self.fork();
        match self.0.random_range(0..14) {
            0 => WriteOp::Create,
            1 => {
                let count = self.0.random_range(0..5);
                let extents = (0..count).map(|_| (self.0.random_range(0..1 << 60), self.blob(0, 40_000)));
                WriteOp::Extents { fork, extents: extents.collect() }
            }
            2 => WriteOp::Zero { fork, range: self.range() },
            3 => WriteOp::Truncate { fork, size: self.0.random_range(0..=limit::OFFSET_MAX) },
            4 => WriteOp::RemoveFork { fork },
            5 => WriteOp::SetKey { key: self.key(), value: self.blob(0, 20_000) },
            6 => WriteOp::RemoveKey { key: self.key() },
            7 => WriteOp::SetAttribute { name: self.key(), value: self.blob(0, 20_000) },
            8 => WriteOp::RemoveAttribute { name: self.key() },
            9 => WriteOp::RaiseFence { token: self.0.random() },
            12 => WriteOp::Append { fork, data: self.blob(0, 40_000) },
            11 => WriteOp::FenceSession { session: self.0.random() },
            10 => {
                let from = Fork::new([fork.as_bytes(), b"x"].concat()).unwrap_or_default();
                WriteOp::ReplaceFork { fork, from }
            }
            _ => WriteOp::Remove,
        }
    }

    fn transaction(&mut self) -> Transaction {
        let mut count = || self.0.random_range(0..5);
        let (guards, reads, writes) = (count(), count(), count());
        Transaction {
            guards: (0..guards).map(|_| self.guard()).collect(),
            reads: (0..reads).map(|_| self.read()).collect(),
            writes: (0..writes).map(|_| self.write()).collect(),
        }
    }

    fn range_read(&mut self) -> RangeRead {
        let extents = (0..self.0.random_range(0..6)).map(|_| Extent {
            range: self.range(),
            version: self.0.random(),
            kind: if self.0.random() { ExtentKind::Data } else { ExtentKind::Hole },
        });
        let extents = extents.collect();
        let (data, next) = (self.blob(0, 40_000), self.0.random());
        let next = self.0.random_bool(0.3).then_some(next);
        RangeRead { data, extents, version: self.0.random(), size: self.0.random(), next }
    }

    fn value(&mut self) -> Option<Bytes> {
        let value = self.blob(0, 20_000);
        self.0.random_bool(0.5).then_some(value)
    }

    fn versioned(&mut self) -> Versioned {
        Versioned { value: self.blob(0, 20_000), version: self.0.random() }
    }

    fn answer(&mut self) -> Answer {
        let (count, more) = (self.0.random_range(0..4), self.0.random());
        match self.0.random_range(0..8) {
            0 => Answer::Range(self.range_read()),
            1 => Answer::Stat(Stat { exists: more, version: self.0.random(), ..Default::default() }),
            2 => {
                let entries = (0..count).map(|_| (self.fork(), self.0.random())).collect();
                Answer::Forks(ForkPage { entries, more })
            }
            3 => Answer::Value(self.value()),
            4 => {
                let version = self.0.random();
                Answer::VersionedValue(self.value().map(|value| Versioned { value, version }))
            }
            5 => {
                let entries = (0..count).map(|_| (self.key(), self.versioned())).collect();
                Answer::VersionedKeys(VersionedKeyPage { entries, more })
            }
            6 => {
                let fence = self.0.random_range(0..1 << 60);
                let count = if self.0.random_bool(0.05) { limit::FENCED_SESSIONS_MAX } else { count };
                let sessions: std::collections::BTreeSet<u64> =
                    (0..count).map(|_| self.0.random_range(fence..=u64::MAX)).collect();
                Answer::Fences(Fences { fence, sessions: sessions.into_iter().collect() })
            }
            _ => {
                let entries = (0..count).map(|_| (self.key(), self.blob(0, 20_000))).collect();
                Answer::Keys(KeyPage { entries, more })
            }
        }
    }

    fn outcome(&mut self) -> Outcome {
        let version = self.0.random();
        let found = match self.0.random_range(0..10) {
            0 => Found::Object { exists: self.0.random() },
            1 => Found::Region(self.range_read()),
            2 => Found::Value(self.value()),
            3 => Found::Fence(self.0.random()),
            4 => Found::KeyVersion(self.0.random()),
            5 => Found::Size(self.0.random()),
            _ => {
                let answers = (0..self.0.random_range(0..5)).map(|_| self.answer()).collect();
                return Outcome::Done(Done { version, existed: self.0.random(), answers });
            }
        };
        Outcome::Refused(Refusal { guard: self.0.random_range(0..4096), found, version })
    }

    fn frame(&mut self) -> BytesMut {
        let id = self.0.random();
        if self.0.random() {
            let object = ObjectId::new(self.blob(1, 255)).unwrap();
            let transaction = self.transaction();
            bytes_of(|out| assert!(request::put_apply(out, id, &object, &transaction).is_ok()))
        } else {
            let outcome = self.outcome();
            bytes_of(|out| assert!(reply::put_outcome(out, id, &outcome).is_ok()))
        }
    }
}

fn take(mut bytes: BytesMut) -> Frame {
    let frame = frame::take(&mut bytes).unwrap().unwrap();
    assert!(bytes.is_empty());
    frame
}

proptest! {
    #[test]
    fn transactions_survive_the_wire(seed: u64, id: u64) {
        let mut maker = Maker(SmallRng::seed_from_u64(seed));
        let object = ObjectId::new(maker.blob(1, 255)).unwrap();
        let transaction = maker.transaction();
        prop_assert_eq!(transaction.validate(), Ok(()));
        let mut body = None;
        let frame = take(bytes_of(|out| body = request::put_apply(out, id, &object, &transaction).ok()));
        prop_assert_eq!((frame.id, Some(frame.body.len())), (id, body));
        prop_assert_eq!(request::get_apply(&frame.body), Ok((object, transaction)));
    }

    #[test]
    fn outcomes_survive_the_wire(seed: u64, id: u64) {
        let outcome = Maker(SmallRng::seed_from_u64(seed)).outcome();
        let frame = take(bytes_of(|out| assert!(reply::put_outcome(out, id, &outcome).is_ok())));
        prop_assert_eq!(frame.id, id);
        prop_assert_eq!(reply::get_outcome(&frame), Ok(Ok(outcome)));
    }

    #[test]
    fn errors_survive_the_wire(kind in 0..ErrorKind::ALL.len(), text in r"(\PC|[\x{1b}\x{2028}\n\\])*") {
        let error = StoreError::new(ErrorKind::ALL[kind], text);
        let frame = take(bytes_of(|out| control::put_error(out, 1, &error)));
        // What would command a terminal is escaped by the reader.
        let shown = StoreError::new(error.kind, escaped_text(&error.message));
        prop_assert_eq!(control::get_failure(&frame), Ok(shown));
    }

    #[test]
    fn any_bytes_are_decoded_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200), code in 0..11usize) {
        check::decode_all(&bytes);
        let kind = kind::ALL[code];
        let mut framed = frame::header(kind, 1, bytes.len() as u32).to_vec();
        framed.extend_from_slice(&bytes);
        prop_assert_eq!(check::decode_all(&framed), 1);
    }
}

/// Frames of every kind have bytes changed, removed and inserted: whatever is still a message survives decoding and
/// encoding, and nothing panics or takes much memory. This is a short run of what the fuzzer does.
#[test]
fn frames_that_were_tampered_with_do_no_harm() {
    let samples = [samples(), later_samples()].concat();
    for seed in 0..300_000u64 {
        let mut maker = Maker(SmallRng::seed_from_u64(seed));
        let mut bytes = match seed % 4 {
            0 => maker.frame(),
            _ => samples[1 + maker.0.random_range(0..samples.len() - 1)].1.clone(),
        };
        for _ in 0..maker.0.random_range(1..6) {
            let at = maker.0.random_range(0..bytes.len());
            match maker.0.random_range(0..4) {
                0 => bytes[at] = maker.0.random(),
                1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][maker.0.random_range(0..5)],
                2 => bytes[at] ^= 1 << maker.0.random_range(0..8),
                _ => bytes.truncate(at.max(frame::frame_bytes(&bytes).ok().flatten().unwrap_or(1) / 2)),
            }
            if bytes.len() < 16 {
                break;
            }
            // In most cases the length is made to fit, so that the body is decoded.
            if maker.0.random_bool(0.9) {
                let body = (bytes.len() as u32 - 16).to_le_bytes();
                bytes[..4].copy_from_slice(&body);
            }
        }
        if let Err(panic) = std::panic::catch_unwind(|| check::decode_all(&bytes)) {
            eprintln!("seed {seed}: {}", hex(&bytes));
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn texts_of_errors_are_cut_where_a_character_ends() {
    let long = "é".repeat(5000);
    let frame =
        take(bytes_of(|out| control::put_error(out, 1, &StoreError::new(ErrorKind::Io, long.clone()))));
    let error = control::get_failure(&frame).unwrap();
    assert!(error.message.len() <= 4096 && long.starts_with(&error.message) && error.message.len() > 4000);
}

#[test]
fn a_transaction_that_writes_is_refused_if_its_answers_might_not_fit() {
    let reads = |count| {
        (0..count).fold(Transaction::new(), |transaction, _| {
            transaction.read(ReadOp::Extents { fork: Fork::DEFAULT, range: ByteRange::ALL })
        })
    };
    assert!(reply::check_space(&reads(4000)).is_ok());
    assert!(reply::check_space(&reads(32).change(WriteOp::Create)).is_ok());
    let error = reply::check_space(&reads(4000).change(WriteOp::Create)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    // Short keys and values take more in a frame than they count in a reply, most of all with their versions.
    let (range, limit) = (KeyRange::all(), u32::MAX);
    let of = |read: ReadOp, count| Transaction { reads: vec![read; count], ..Transaction::new() };
    for (read, most) in [
        (ReadOp::Keys { range: range.clone(), limit, values: true }, 2600),
        (ReadOp::VersionedKeys { range: range.clone(), limit, values: true }, 1100),
        (ReadOp::Fences, 2000),
    ] {
        assert!(reply::check_space(&of(read.clone(), 4000)).is_ok());
        let error = reply::check_space(&of(read.clone(), most).change(WriteOp::Create)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(reply::check_space(&of(read, most / 2).change(WriteOp::Create)).is_ok());
    }
    let few = ReadOp::VersionedKeys { range, limit: 10, values: true };
    assert!(reply::check_space(&of(few, 4000).change(WriteOp::Create)).is_ok());
}
