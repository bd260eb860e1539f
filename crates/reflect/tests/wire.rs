//! The control protocol's bytes: golden vectors, round trips, and datagrams that were tampered with.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use nacre_reflect::wire::relay::{self, Accept, Item, ItemKind, Key, Open, Receipt, Step};
use nacre_reflect::wire::{
    Answer, Heartbeat, Join, Joined, MESSAGE_BYTES_MAX, PART_BYTES, PARTS_MAX, Pulse, Reason, Reflectors,
    Request, STATE_BYTES_MAX, StateGet, StatePart, WireError, data_head, is_control, kind, length,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn v4() -> SocketAddr {
    "203.0.113.9:40000".parse().unwrap()
}

fn v6() -> SocketAddr {
    "[2001:db8::9]:7400".parse().unwrap()
}

const COOKIE: [u8; 16] = [0xc0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Returns one request of every kind, with a name.
fn requests() -> Vec<(&'static str, Request<'static>)> {
    let (nonce, session) = (0x1122_3344_5566_7788, 0x0102_0304_0506_0708);
    let join =
        Join { group: 3, echo: false, keeps_state: false, nonce, cookie: [0; 16], leaves: None, token: b"" };
    vec![
        ("join_first", Request::Join(join)),
        (
            "join_proven",
            Request::Join(Join { echo: true, keeps_state: true, cookie: COOKIE, token: b"token", ..join }),
        ),
        ("join_moving", Request::Join(Join { leaves: Some(session), token: b"token", ..join })),
        ("leave", Request::Leave { group: 3, session }),
        (
            "heartbeat",
            Request::Heartbeat(Heartbeat {
                group: 3,
                number: 7,
                session,
                client_us: 1_000_000,
                reflector_us: 2_000_000,
                hold_us: 500,
                state_version: 4,
                proof: 0x1112_1314_1516_1718,
            }),
        ),
        ("locate", Request::Locate { nonce, location: "harbour" }),
        (
            "state_get",
            Request::StateGet(StateGet {
                group: 3,
                parts: 16,
                session,
                version: 4,
                offset: 2048,
                proof: 0x1112_1314_1516_1718,
            }),
        ),
        (
            "state_part",
            Request::StatePart(StatePart {
                group: 3,
                ask: 5,
                session,
                size: Some(1027),
                offset: 1024,
                bytes: b"end",
            }),
        ),
        (
            "state_part_none",
            Request::StatePart(StatePart { group: 3, ask: 5, session, size: None, offset: 0, bytes: b"" }),
        ),
    ]
}

fn answers() -> Vec<(&'static str, Answer<'static>)> {
    let (nonce, session) = (0x1122_3344_5566_7788, 0x0102_0304_0506_0708);
    let joined = Joined {
        nonce,
        session,
        seen: v4(),
        heartbeat_ms: 3000,
        expiry_ms: 10_000,
        members: 90,
        sequence: true,
        state_pending: false,
        state_version: 4,
        state_bytes: 1027,
        proof: 0x1112_1314_1516_1718,
    };
    vec![
        ("challenge", Answer::Challenge { nonce, cookie: COOKIE, seen: v4() }),
        ("joined", Answer::Joined(joined)),
        ("joined_v6", Answer::Joined(Joined { seen: v6(), sequence: false, state_pending: true, ..joined })),
        ("refused", Answer::Refused { nonce, reason: Reason::TooManyJoins, retry_ms: 1000 }),
        ("redirect", Answer::Redirect { nonce, address: v6(), group: 4 }),
        (
            "pulse",
            Answer::Pulse(Pulse {
                session,
                number: 7,
                members: 90,
                client_us: 1_000_000,
                reflector_us: 2_000_000,
                state_version: 4,
                proof: 0x1112_1314_1516_1718,
                heartbeat_ms: 2000,
                expiry_ms: 8000,
            }),
        ),
        (
            "location",
            Answer::Location { nonce, group: 3, reflectors: Reflectors::new(&[v4(), v6()]).unwrap() },
        ),
        ("state_ask", Answer::StateAsk { session, ask: 5 }),
        ("state_taken", Answer::StateTaken { session, ask: 5, next: 2048, later: 0b101 }),
        (
            "state",
            Answer::State { session, version: 4, size: 1027, offset: 1024, pending: false, bytes: b"end" },
        ),
        ("state_none", Answer::State { session, version: 0, size: 0, offset: 0, pending: true, bytes: b"" }),
        ("move", Answer::Move { session, address: v4(), group: 4, location: "harbour" }),
        ("goodbye", Answer::Goodbye { session, reason: Reason::Closing }),
        ("data", Answer::Data { sequence: 9, payload: b"payload" }),
    ]
}

/// Returns one message of every kind that reflectors send each other, with a name.
fn relayed() -> Vec<(&'static str, Vec<u8>)> {
    let (nonce, key) = (0x1122_3344_5566_7788, Key::of_secret(&[7; 32]));
    let open = Open { nonce, cookie: COOKIE, group: 4, location: "harbour" };
    let [on, back] = key.of_relay(&open);
    let receipt = Receipt { next: 9, later: [0b101, 0, 0, 1 << 63], receivers: 5 };
    let part = Item { kind: ItemKind::Last, tos: 0xb8, bytes: b"payload".to_vec() };
    let claim = Item::of_session(ItemKind::Claim, 0x0102_0304_0506_0708);
    vec![
        ("relay_open", open.encode(&key)),
        ("relay_accept", Accept { nonce, cookie: COOKIE }.encode(&key)),
        ("relay_on", relay::encode_step(kind::RELAY_ON, nonce, &receipt, Some((3, &part)), &on)),
        ("relay_back", relay::encode_step(kind::RELAY_BACK, nonce, &receipt, Some((4, &claim)), &back)),
        ("relay_receipt", relay::encode_step(kind::RELAY_BACK, nonce, &receipt, None, &back)),
    ]
}

#[test]
fn what_reflectors_say_to_each_other_is_read_if_it_is_signed_and_whole() {
    let key = Key::of_secret(&[7; 32]);
    let open = Open { nonce: 0x1122_3344_5566_7788, cookie: COOKIE, group: 4, location: "harbour" };
    let [on, back] = key.of_relay(&open);
    let read = |name: &str, bytes: &[u8]| match name {
        "relay_open" => Open::decode(bytes, &key).map(drop),
        "relay_accept" => Accept::decode(bytes, &key).map(drop),
        "relay_on" => Step::decode(bytes, &on).map(drop),
        _ => Step::decode(bytes, &back).map(drop),
    };
    for (name, bytes) in relayed() {
        assert_eq!(read(name, &bytes), Ok(()), "{name}");
        assert!(relay::kind_of(&bytes).is_some() && bytes.len() <= MESSAGE_BYTES_MAX);
        assert!(matches!(Request::decode(&bytes), Err(WireError::Kind(_))), "{name} is no request");
        assert!(matches!(Answer::decode(&bytes), Err(WireError::Kind(_))), "{name} is no answer");
        for len in 0..bytes.len() {
            assert!(read(name, &bytes[..len]).is_err(), "{name} cut to {len} bytes");
        }
        for at in 0..bytes.len() * 8 {
            // The kind of a message is part of what is signed.
            let mut spoilt = bytes.clone();
            spoilt[at / 8] ^= 1 << (at % 8);
            assert!(read(name, &spoilt).is_err(), "{name} with bit {at} turned");
        }
    }
    // Neither direction's key opens the other's steps, and another relay has other keys.
    let (_, step) = relayed().swap_remove(2);
    assert!(Step::decode(&step, &back).is_err());
    let [other, _] = key.of_relay(&Open { nonce: 1, ..open });
    assert!(Step::decode(&step, &other).is_err());
    let Ok(Step { item: Some((3, item)), .. }) = Step::decode(&step, &on) else { panic!() };
    assert_eq!((item.kind, item.tos, &item.bytes[..]), (ItemKind::Last, 0xb8, &b"payload"[..]));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn the_bytes_are_those_of_the_golden_vectors() {
    let mut found = String::new();
    for (name, request) in requests() {
        writeln!(found, "{name} {}", hex(&request.encode())).unwrap();
    }
    for (name, answer) in answers() {
        writeln!(found, "{name} {}", hex(&answer.encode())).unwrap();
    }
    for (name, bytes) in relayed() {
        writeln!(found, "{name} {}", hex(&bytes)).unwrap();
    }
    let golden = include_str!("golden/reflect_2.txt");
    assert!(found == golden, "the bytes have changed; they are now\n{found}");
    // The documentation shows the same ones.
    let page = include_str!("../../../docs/reflect-wire.md");
    for line in golden.lines() {
        let (name, bytes) = line.split_once(' ').unwrap();
        assert!(page.contains(bytes), "docs/reflect-wire.md does not have the vector of {name}: {bytes}");
    }
}

#[test]
fn what_was_written_is_read_and_nothing_else_is() {
    for (name, request) in requests() {
        let bytes = request.encode();
        assert!(is_control(&bytes));
        assert_eq!(Request::decode(&bytes), Ok(request), "{name}");
        assert!(matches!(Answer::decode(&bytes), Err(WireError::Kind(_))), "{name} is no answer");
        for len in 0..bytes.len() {
            assert!(Request::decode(&bytes[..len]).is_err(), "{name} cut to {len} bytes");
        }
    }
    for (name, answer) in answers() {
        let bytes = answer.encode();
        assert!(is_control(&bytes));
        assert_eq!(Answer::decode(&bytes), Ok(answer), "{name}");
        assert!(matches!(Request::decode(&bytes), Err(WireError::Kind(_))), "{name} is no request");
        // A payload may have any length.
        if !matches!(answer, Answer::Data { .. }) {
            for len in 0..bytes.len() {
                assert!(Answer::decode(&bytes[..len]).is_err(), "{name} cut to {len} bytes");
            }
        }
    }
}

#[test]
fn unproven_requests_are_at_least_as_long_as_their_answers() {
    for (name, request) in requests() {
        let len = request.encode().len();
        let answer_max = match request {
            Request::Join(_) | Request::Locate { .. } => length::ANSWER_MAX,
            _ => length::REFUSED,
        };
        assert!(len >= answer_max && len <= MESSAGE_BYTES_MAX, "{name}: {len}");
    }
    for (name, answer) in answers() {
        let len = answer.encode().len();
        if matches!(
            answer,
            Answer::Challenge { .. }
                | Answer::Joined(_)
                | Answer::Refused { .. }
                | Answer::Redirect { .. }
                | Answer::Location { .. }
        ) {
            assert!(len <= length::ANSWER_MAX, "{name}: {len}");
        }
    }
}

#[test]
fn a_head_of_payload_is_that_of_a_data_message() {
    let mut bytes = data_head(9).to_vec();
    bytes.extend_from_slice(b"payload");
    assert_eq!(bytes, Answer::Data { sequence: 9, payload: b"payload" }.encode());
    let long = vec![7; 60_000];
    let datagram = Answer::Data { sequence: u64::MAX, payload: &long }.encode();
    assert_eq!(Answer::decode(&datagram), Ok(Answer::Data { sequence: u64::MAX, payload: &long }));
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from)
}

fn reason() -> impl Strategy<Value = Reason> {
    proptest::sample::select(Reason::ALL)
}

fn location() -> impl Strategy<Value = String> {
    "[a-zäß€ -~]{1,16}"
}

/// Generates a part of a state: its size, its offset, and its bytes.
fn part() -> impl Strategy<Value = (u32, u32, Vec<u8>)> {
    (0..=STATE_BYTES_MAX).prop_flat_map(|size| {
        (0..size.div_ceil(PART_BYTES).max(1)).prop_map(move |number| {
            let offset = number * PART_BYTES;
            let len = PART_BYTES.min(size - offset);
            (size as u32, offset as u32, vec![number as u8; len])
        })
    })
}

proptest! {
    #[test]
    fn any_request_is_read_as_it_was_written(
        (group, number, session, nonce) in any::<(u32, u32, u64, u64)>(),
        (echo, keeps_state, cookie) in any::<(bool, bool, [u8; 16])>(),
        (client_us, reflector_us, hold_us, state_version) in any::<(u64, u64, u32, u64)>(),
        token in vec(any::<u8>(), 0..=256),
        location in location(),
        parts in 1..=PARTS_MAX,
        offset in 0..1024_u32,
        (size, at, bytes) in part(),
    ) {
        let get = StateGet { group, parts, session, version: state_version, offset: offset * 1024, proof: nonce };
        let part = StatePart { group, ask: number, session, size: Some(size), offset: at, bytes: &bytes };
        for request in [
            Request::Join(Join { group, echo, keeps_state, nonce, cookie, leaves: (nonce % 2 == 0).then_some(client_us), token: &token }),
            Request::Leave { group, session },
            Request::Heartbeat(Heartbeat { group, number, session, client_us, reflector_us, hold_us, state_version, proof: nonce }),
            Request::Locate { nonce, location: &location },
            Request::StateGet(get),
            Request::StatePart(part),
        ] {
            let bytes = request.encode();
            prop_assert_eq!(Request::decode(&bytes), Ok(request));
        }
    }

    #[test]
    fn any_answer_is_read_as_it_was_written(
        (nonce, session, version, later) in any::<(u64, u64, u64, u64)>(),
        (cookie, seen, group) in (any::<[u8; 16]>(), address(), any::<u32>()),
        (heartbeat_ms, expiry_ms) in (1..=u32::MAX).prop_flat_map(|beat| (Just(beat), beat..=u32::MAX)),
        (members, sequence, state_pending, retry_ms) in any::<(u32, bool, bool, u32)>(),
        (ask, next) in any::<(u32, u32)>(),
        list in vec(address(), 1..=4),
        reason in reason(),
        location in location(),
        (size, offset, bytes) in part(),
    ) {
        for answer in [
            Answer::Challenge { nonce, cookie, seen },
            Answer::Joined(Joined {
                nonce, session, seen, heartbeat_ms, expiry_ms, members, sequence, state_pending,
                state_version: version, state_bytes: size, proof: later,
            }),
            Answer::Refused { nonce, reason, retry_ms },
            Answer::Redirect { nonce, address: seen, group },
            Answer::Pulse(Pulse {
                session, number: ask, members, client_us: nonce, reflector_us: later, state_version: version,
                proof: version, heartbeat_ms, expiry_ms,
            }),
            Answer::Location { nonce, group, reflectors: Reflectors::new(&list).unwrap() },
            Answer::StateAsk { session, ask },
            Answer::StateTaken { session, ask, next, later },
            Answer::State { session, version, size, offset, pending: state_pending, bytes: &bytes },
            Answer::Move { session, address: seen, group, location: &location },
            Answer::Goodbye { session, reason },
            Answer::Data { sequence: version, payload: &bytes },
        ] {
            let bytes = answer.encode();
            prop_assert_eq!(Answer::decode(&bytes), Ok(answer));
        }
    }

    /// A valid message of which some bytes were changed is refused, or is another valid message: never a panic.
    #[test]
    fn tampered_messages_are_refused_or_sound(
        which in any::<prop::sample::Index>(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut all: Vec<Vec<u8>> = requests().iter().map(|(_, request)| request.encode()).collect();
        all.extend(answers().iter().map(|(_, answer)| answer.encode()));
        let mut bytes = which.get(&all).clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        if let Ok(request) = Request::decode(&bytes) {
            let again = request.encode();
            prop_assert_eq!(Request::decode(&again), Ok(request));
        }
        if let Ok(answer) = Answer::decode(&bytes) {
            let again = answer.encode();
            prop_assert_eq!(Answer::decode(&again), Ok(answer));
        }
    }

    #[test]
    fn any_bytes_are_refused_or_sound(mut bytes in vec(any::<u8>(), 0..1500), kind in any::<u8>()) {
        let _ = (Request::decode(&bytes), Answer::decode(&bytes));
        let head = data_head(0);
        for (place, byte) in bytes.iter_mut().zip(&head[..7]) {
            *place = *byte;
        }
        if let Some(place) = bytes.get_mut(7) {
            *place = kind;
        }
        if let Ok(request) = Request::decode(&bytes) {
            let again = request.encode();
            prop_assert_eq!(Request::decode(&again), Ok(request));
        }
        if let Ok(answer) = Answer::decode(&bytes) {
            let again = answer.encode();
            prop_assert_eq!(Answer::decode(&again), Ok(answer));
        }
    }
}
