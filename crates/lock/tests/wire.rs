//! The lock service's messages: every byte is pinned, and nothing else is read.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nacre_lock::message::{Call, FULL, LockSpec, Refusal, Reply, Token};
use nacre_lock::table::{Acquired, Mode, TableError};
use nacre_lock::wire::{self, Attach, ServerSlot};
use nacre_lock::{Datatype, Description, Pattern, PatternError, Region};
use nacre_rpc::{Frame, MessageKind, Outbox};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn vector() -> Description {
    Datatype::byte().vector(1024, 1, 64).at(0)
}

fn spec(mode: Mode) -> LockSpec {
    let pattern = Pattern::new(&vector()).unwrap();
    LockSpec { file: "results".into(), operation: 5, mode, pattern }
}

fn frame(put: impl FnOnce(&mut Outbox)) -> Frame {
    let (mut outbox, mut bytes) = (Outbox::default(), BytesMut::new());
    put(&mut outbox);
    outbox.copy_to(&mut bytes);
    nacre_rpc::frame::take(&mut bytes).unwrap().unwrap()
}

/// Returns the kind and the body of a call, numbered 9.
fn call(call: &Call) -> (MessageKind, Bytes) {
    let frame = frame(|outbox| wire::put_call(outbox, 1, 9, call, &vector().encode().into()).unwrap());
    (frame.kind, frame.body)
}

/// All calls, with their codes and bodies.
fn calls() -> Vec<(Call, u8, &'static str)> {
    vec![
        (Call::Open, 5, "0900000000000000"),
        (Call::Renew, 6, "0900000000000000"),
        (Call::Close, 7, "0900000000000000"),
        (
            Call::Acquire { request: 3, spec: Some(spec(Mode::Exclusive)), until: Some(4096) },
            8,
            "0900000000000000030000000000000003001000000000000005000000000000000207726573756c7473030001038008018001\
             0101",
        ),
        (Call::Acquire { request: 3, spec: None, until: None }, 8, "0900000000000000030000000000000000"),
        (Call::ReleaseFrom { request: 3, offset: 64 }, 9, "090000000000000003000000000000004000000000000000"),
        (Call::Release { request: 3 }, 10, "09000000000000000300000000000000"),
        (
            Call::Assert { request: 3, spec: spec(Mode::Shared), below: 128 },
            11,
            "090000000000000003000000000000008000000000000000\
             05000000000000000107726573756c74730300010380080180010101",
        ),
        (Call::Asserted, 12, "0900000000000000"),
    ]
}

/// All replies, with their codes and bodies.
fn replies() -> Vec<(Reply, u8, &'static str)> {
    let progress = Acquired { last: Some(63), next: Some(64) };
    let nothing = Acquired { last: None, next: None };
    let token = Token { epoch: 2, number: 7 };
    let refused = |refusal: Refusal| Reply::Refused(refusal);
    vec![
        (Reply::Open { epoch: 2, lease: Duration::from_secs(10) }, 20, "02000000000000001027000000000000"),
        (
            Reply::Acquired { progress, token },
            21,
            "033f00000000000000400000000000000002000000000000000700000000000000",
        ),
        (
            Reply::Acquired { progress: nothing, token },
            21,
            "000000000000000000000000000000000002000000000000000700000000000000",
        ),
        (Reply::Done, 22, ""),
        (refused(Refusal::UnknownSession { epoch: 2 }), 23, "010200000000000000"),
        (refused(Refusal::Lapsed), 23, "02"),
        (refused(Refusal::UnknownRequest), 23, "03"),
        (refused(TableError::Unknown.into()), 23, "04010000000000000000"),
        (refused(TableError::Exists.into()), 23, "04020000000000000000"),
        (refused(TableError::Waits.into()), 23, "04030000000000000000"),
        (refused(TableError::MixedModes.into()), 23, "04040000000000000000"),
        (refused(TableError::TooManyRegions(9).into()), 23, "04050900000000000000"),
        (refused(TableError::TooIrregular.into()), 23, "04060000000000000000"),
        (refused(TableError::Held(8).into()), 23, "04070800000000000000"),
        (refused(PatternError::Refused("no".to_owned()).into()), 23, "056e6f"),
        (refused(Refusal::Full(FULL[2])), 23, "0602"),
        (refused(Refusal::GraceOver), 23, "07"),
        (refused(Refusal::Released), 23, "08"),
    ]
}

#[test]
fn calls_are_the_bytes_of_the_page() {
    for (value, code, wanted) in calls() {
        let (kind, body) = call(&value);
        assert_eq!((kind.service, kind.code, hex(&body)), (4, code, wanted.to_owned()), "{value:?}");
        let (number, again) = wire::get_call(kind, &body).unwrap();
        // Patterns are compared by what they are made into again.
        assert_eq!((number, call(&again.unwrap())), (9, (kind, body)), "{value:?}");
    }
}

#[test]
fn replies_and_events_have_the_documented_bytes() {
    for (value, code, wanted) in replies() {
        let (kind, body) = wire::reply(&value);
        assert_eq!((kind.service, kind.code, hex(&body)), (4, code, wanted.to_owned()), "{value:?}");
        assert_eq!(wire::get_reply(kind, &body.clone().into()), Ok(value.clone()));
        let event = wire::event(9, &value);
        assert_eq!(hex(&event), format!("0900000000000000{code:02x}{wanted}"));
        assert_eq!(wire::get_event(&event), Ok((9, value)));
    }
}

#[test]
fn sessions_and_places_have_the_documented_bytes() {
    let attach = Attach { session: 77, connection: 3 };
    let sent = frame(|outbox| wire::put_attach(outbox, 1, &attach));
    assert_eq!((sent.kind, hex(&sent.body)), (wire::ATTACH, "4d000000000000000300000000000000".to_owned()));
    assert_eq!(wire::get_attach(&sent.body), Ok(attach));
    assert!(wire::get_attach(&Bytes::from(vec![0; 16])).is_err(), "session 0");
    let slot = ServerSlot { server: 1, servers: 4, stripe_bytes: 65_536 };
    let mut body = Vec::new();
    wire::put_slot(&mut body, &slot);
    assert_eq!(hex(&body), "01000000040000000000010000000000");
    assert_eq!(wire::get_slot(&body.clone().into()), Ok(slot));
    let numbered: Bytes = [&77u64.to_le_bytes()[..], &body].concat().into();
    assert_eq!(wire::get_numbered(&numbered), Ok((77, slot)));
}

#[test]
fn bodies_that_are_cut_or_longer_are_refused() {
    for (value, ..) in calls() {
        let (kind, body) = call(&value);
        // A description reaches to the end of its body, and is a refusal where it makes no sense.
        let sound = |body: Bytes| wire::get_call(kind, &body).is_ok_and(|(_, call)| call.is_ok());
        for end in 0..body.len() {
            assert!(!sound(body.slice(..end)), "{value:?} cut at {end}");
        }
        assert!(!sound([&body[..], &[0]].concat().into()), "{value:?} and a byte");
    }
    for (value, code, _) in replies() {
        let (kind, body) = wire::reply(&value);
        let text = matches!(value, Reply::Refused(Refusal::Pattern(_)));
        let body = Bytes::from(body);
        for end in 0..body.len() {
            assert!(wire::get_reply(kind, &body.slice(..end)).is_err() || text && end > 0, "{code} at {end}");
        }
        let longer = Bytes::from([&body[..], &[0]].concat());
        assert!(wire::get_reply(kind, &longer).is_err() || text, "{value:?} and a byte");
    }
    assert!(wire::get_reply(MessageKind::new(4, 23), &vec![b'\x05'; 4096].into()).is_err(), "a long text");
}

#[test]
fn enormous_and_malformed_patterns_are_refused_without_ending_the_connection() {
    let with = |description: Vec<u8>| {
        let call = Call::Acquire { request: 1, spec: Some(spec(Mode::Exclusive)), until: None };
        let frame = frame(|outbox| wire::put_call(outbox, 1, 9, &call, &description.into()).unwrap());
        wire::get_call(frame.kind, &frame.body).unwrap()
    };
    let far = Datatype::byte().vector(1 << 62, 1, 1 << 40).at(0);
    assert!(matches!(with(far.encode()), (9, Err(Refusal::Pattern(PatternError::Overflow { .. })))));
    let mut deep = Datatype::byte();
    for _ in 0..100 {
        deep = deep.contiguous(1);
    }
    assert!(matches!(with(deep.at(0).encode()), (9, Err(Refusal::Pattern(PatternError::TooDeep)))));
    assert!(matches!(with(vec![99, 1, 2]), (9, Err(Refusal::Pattern(PatternError::Malformed(_))))));
    // Regular ones are taken, however many bytes they have.
    assert!(matches!(with(Datatype::byte().vector(1 << 40, 1, 1 << 20).at(0).encode()), (9, Ok(_))));
}

#[test]
fn parts_of_a_pattern_are_described_by_their_regions() {
    let list = [Region::new(0, 10), Region::new(64, 10)];
    let described =
        |pattern: &Pattern| Description::decode(&wire::described(pattern, None).unwrap()).unwrap();
    assert_eq!(described(&Pattern::list(&list).unwrap()), Description::List(list.to_vec()));
    assert_eq!(described(&Pattern::contiguous(5, 7).unwrap()), Description::contiguous(5, 7));
    let many = Pattern::new(&Datatype::byte().vector(1 << 20, 1, 2).at(0)).unwrap();
    assert_eq!(wire::described(&many, None), Err(PatternError::TooManyItems));
    let long = Bytes::from(vec![0; nacre_lock::DESCRIPTION_BYTES_MAX + 1]);
    assert!(matches!(wire::described(&many, Some(&long)), Err(PatternError::TooLong { .. })));
}

#[test]
fn nothing_panics_whatever_the_bytes_are() {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for (value, ..) in calls() {
        let (kind, body) = call(&value);
        seeds.push([&[kind.code][..], &body].concat());
    }
    for (value, ..) in replies() {
        let (kind, body) = wire::reply(&value);
        seeds.push([&[kind.code][..], &body].concat());
    }
    for seed in 0..20_000 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut bytes = seeds[random.random_range(0..seeds.len())].clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..3) {
                0 => bytes[at] ^= 1 << random.random_range(0..8),
                1 => bytes[at] = random.random(),
                _ => bytes.truncate(at.max(1)),
            }
        }
        nacre_lock::fuzz::wire(&bytes);
    }
}
