//! Attacks on the control plane.

#[path = "hostile/state.rs"]
mod state;
#[path = "hostile/testbed.rs"]
mod testbed;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use nacre_reflect::control::{ControlOptions, Counter, StateOptions, Subject, check};
use nacre_reflect::cookie::COOKIE_LIFE_MS;
use nacre_reflect::rate::Rate;
use nacre_reflect::table::{GroupId, GroupOptions, LANES_MAX};
use nacre_reflect::token::{Grant, Identity, Rights, Scope, Token, TokenKey};
use nacre_reflect::wire::{Answer, Join, Joined, Reason, Request, StateGet};
use nacre_rpc::ClusterKey;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use testbed::{GROUP, Testbed, beat, decoded, guarded, home, proof_in, signed};

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Honest clients, an attacker, an operator and a store, all at random: the invariants hold after every step.
    #[test]
    fn no_sequence_of_datagrams_breaks_a_promise(script in vec(any::<u8>(), 0..4000)) {
        check::run(&script);
    }
}

/// The scripts above would prove nothing if they reached only a few of the counters.
#[test]
fn random_scripts_reach_nearly_everything_that_is_counted() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let scripts = vec(any::<u8>(), 3000..4000);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for _ in 0..400 {
        let script = scripts.new_tree(&mut runner).unwrap().current();
        for (counter, count) in check::run(&script).iter() {
            *counts.entry(counter.name()).or_default() += count;
        }
    }
    let never: Vec<_> = counts.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
    // Tests of their own have tokens, fast sources, states, relays and the end of the reflector. Nothing is let pile up
    // here.
    let apart = [
        Counter::TokenExpired,
        Counter::TokenGroup,
        Counter::TokenAddress,
        Counter::TokenForged,
        Counter::TokenMalformed,
        Counter::OutgoingFull,
        Counter::EventsFull,
        Counter::Closing,
        Counter::SourceBusy,
        Counter::Version,
        Counter::Banned,
        Counter::StateRate,
        Counter::StateUnchanged,
        Counter::RelayBegun,
        Counter::RelayUnanswered,
        Counter::RelayLost,
        Counter::RelaySent,
        Counter::RelayTaken,
        Counter::RelayHanded,
    ];
    let unexpected: Vec<_> =
        never.iter().filter(|name| apart.iter().all(|counter| counter.name() != **name)).collect();
    assert!(unexpected.is_empty(), "never counted: {unexpected:?}");
}

#[test]
fn replayed_heartbeats_keep_nobody_alive() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let joined = testbed.join(home(1), 0, 1, &[]).unwrap();
    assert!(matches!(
        decoded(&testbed.say(home(1), &beat(joined.session, joined.proof, 5)))[..],
        [Answer::Pulse(_)]
    ));
    for _ in 0..20 {
        testbed.pass(1000);
        assert!(
            testbed.say(home(1), &beat(joined.session, joined.proof, 5)).is_empty()
                || !testbed.is_member(home(1))
        );
        let _ = testbed.say(home(1), &beat(joined.session, joined.proof, 4));
    }
    assert!(!testbed.is_member(home(1)));
    assert!(testbed.count(Counter::Replayed) > 0);
    assert_eq!(testbed.count(Counter::Expired), 1);
}

/// Returns one of a whole network of addresses of the reflector.
fn elsewhere(number: u32) -> SocketAddr {
    let [_, _, c, d] = number.to_be_bytes();
    SocketAddr::from(([127, 1, c, d], 7400))
}

/// Has a client join by an address of the reflector.
fn join_at(testbed: &mut Testbed, local: SocketAddr, from: SocketAddr, nonce: u64) -> Result<Joined, Reason> {
    let request = testbed.join_bytes(from, 0, nonce, &[]);
    let answers = testbed.say_to(local, from, &request);
    match decoded(&answers)[..] {
        [Answer::Joined(joined)] => Ok(joined),
        [Answer::Refused { reason, .. }] => Err(reason),
        _ => panic!("{answers:?}"),
    }
}

/// Where a reflector has a whole network of addresses, a member may choose another with each heartbeat.
#[test]
fn a_member_that_goes_through_all_addresses_of_the_reflector_makes_a_bounded_number_of_lanes() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let Joined { session, mut proof, .. } = testbed.join(home(1), 0, 1, &[]).unwrap();
    let beats = 2 * LANES_MAX as u32;
    for number in 1..=beats {
        proof = proof_in(&testbed.say_to(elsewhere(number), home(1), &beat(session, proof, number)));
    }
    let table = testbed.control.table();
    assert_eq!(table.group(table.find(GROUP).unwrap()).lanes.len(), LANES_MAX);
    assert!(testbed.is_member(home(1)));
    // It keeps nobody out who comes to a further address.
    assert!(join_at(&mut testbed, elsewhere(beats + 1), home(2), 1).is_ok());
}

#[test]
fn a_group_whose_lanes_all_have_members_is_full_for_further_addresses_until_one_has_none() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let last = LANES_MAX as u32;
    let mut session = 0;
    for number in 1..=last {
        session = join_at(&mut testbed, elsewhere(number), home(number), 1).unwrap().session;
    }
    let further = elsewhere(last + 1);
    assert_eq!(join_at(&mut testbed, further, home(last + 1), 1), Err(Reason::Full));
    // Others are let in where there is a lane already.
    assert!(join_at(&mut testbed, elsewhere(1), home(last + 1), 2).is_ok());
    testbed.say(home(last), &Request::Leave { group: 0, session }.encode());
    assert!(join_at(&mut testbed, further, home(last + 2), 1).is_ok());
    let table = testbed.control.table();
    assert_eq!(table.group(table.find(GROUP).unwrap()).lanes.len(), LANES_MAX);
    assert_eq!(table.members_len(), LANES_MAX + 1);
}

/// Whoever gave an address up knows what was sent to it until then, and nothing later.
#[test]
fn an_address_that_was_given_up_gets_no_stream_for_long_and_no_state_for_free() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let now = testbed.now();
    testbed.control.set_state(now, GROUP, Some(StateOptions::default()));
    let joined = testbed.join(home(1), 0, 1, &[]).unwrap();
    testbed.pass(10);
    let now = testbed.now();
    testbed.control.state_loaded(now, GROUP, 3, Some(Bytes::from(vec![1; 1 << 20])));
    let mut proof = joined.proof;
    for number in 1..20 {
        proof = proof_in(&testbed.say(home(1), &beat(joined.session, proof, number)));
        testbed.pass(3000);
    }
    assert!(testbed.is_member(home(1)));
    // From here on nobody reads what is sent to the address. Its heartbeats and requests are forged.
    let options = ControlOptions::default();
    let (from_ms, mut number, mut to_victim, mut forged) = (testbed.now_ms, 20, 0, 0);
    while testbed.is_member(home(1)) {
        for known in [proof, proof ^ 1, joined.proof] {
            number += 1;
            let get = StateGet {
                group: 0,
                parts: 16,
                session: joined.session,
                version: 0,
                offset: 0,
                proof: known,
            };
            for request in [beat(joined.session, known, number), Request::StateGet(get).encode()] {
                forged += request.len();
                to_victim += testbed.say(home(1), &request).iter().map(Vec::len).sum::<usize>();
            }
        }
        testbed.pass(10);
        assert!(testbed.now_ms < from_ms + 60_000, "the stream goes on for ever");
    }
    let stayed_ms = testbed.now_ms - from_ms;
    assert!(stayed_ms <= u64::from(options.expiry_ms + options.heartbeat_ms) + 2000, "{stayed_ms} ms");
    // One or two proofs are left, each of which is worth a state or two.
    assert!(to_victim < forged + (3 << 20), "{to_victim} bytes for {forged}");
    assert!(testbed.count(Counter::Stale) > 0);
}

/// The last proofs that somebody had are good for no longer if they are spent slowly.
#[test]
fn a_member_lives_by_when_a_proof_was_made_and_not_by_when_it_is_told() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let joined = testbed.join(home(1), 0, 1, &[]).unwrap();
    let (from_ms, mut number) = (testbed.now_ms, 0);
    while testbed.is_member(home(1)) {
        if testbed.now_ms >= from_ms + u64::from(number + 1) * 9000 {
            number += 1;
            testbed.say(home(1), &beat(joined.session, joined.proof, number));
        }
        testbed.pass(100);
    }
    let ControlOptions { expiry_ms, heartbeat_ms, .. } = ControlOptions::default();
    let stayed_ms = testbed.now_ms - from_ms;
    assert_eq!(number, 1, "its first heartbeat is in time, and none later");
    assert!(stayed_ms <= u64::from(expiry_ms + heartbeat_ms) + 2000, "{stayed_ms} ms");
}

#[test]
fn three_lost_pulses_in_a_row_do_no_harm_and_a_fourth_asks_for_a_new_join() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let joined = testbed.join(home(1), 0, 1, &[]).unwrap();
    for number in 1..=3 {
        let answers = testbed.say(home(1), &beat(joined.session, joined.proof, number));
        assert!(matches!(decoded(&answers)[..], [Answer::Pulse(_)]));
    }
    let request = beat(joined.session, joined.proof, 4);
    let answers = testbed.say(home(1), &request);
    assert!(matches!(decoded(&answers)[..], [Answer::Refused { reason: Reason::Stale, .. }]));
    assert!(answers[0].len() <= request.len() && testbed.is_member(home(1)));
    assert!(testbed.join(home(1), 0, 2, &[]).is_ok());
}

#[test]
fn clients_of_the_first_version_are_told_that_they_are_not_understood() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let mut request = vec![0_u8; 128];
    request[..8].copy_from_slice(b"\x89nrfl\n\x01\x01");
    request[16..24].copy_from_slice(&77_u64.to_le_bytes());
    let answers = testbed.say(home(1), &request);
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    assert!(answer.len() <= request.len());
    assert_eq!(answer[..8], *b"\x89nrfl\n\x01\x83");
    assert_eq!((answer[8..16].to_vec(), answer[16]), (77_u64.to_le_bytes().to_vec(), 9));
    // Nothing else of that version is answered.
    request[7] = 3;
    assert!(testbed.say(home(1), &request).is_empty());
    assert!(testbed.say(home(1), &request[..60]).is_empty());
}

#[test]
fn what_is_said_from_elsewhere_does_nothing_and_gets_no_more_than_a_refusal() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let joined = testbed.join(home(1), 0, 1, &[]).unwrap();
    let port_changed = SocketAddr::new(home(1).ip(), 40_001);
    for from in [home(2), port_changed] {
        let get = StateGet {
            group: 0,
            parts: 16,
            session: joined.session,
            version: 0,
            offset: 0,
            proof: joined.proof,
        };
        for request in [
            beat(joined.session, joined.proof, 9),
            Request::Leave { group: 0, session: joined.session }.encode(),
            Request::StateGet(get).encode(),
        ] {
            let answers = testbed.say(from, &request);
            let [Answer::Refused { reason: Reason::NotMember, .. }] = decoded(&answers)[..] else { panic!() };
            assert!(answers[0].len() <= request.len());
        }
        assert!(!testbed.is_member(from));
    }
    // Nor does a session that was guessed, from the right address.
    assert!(matches!(
        decoded(&testbed.say(home(1), &Request::Leave { group: 0, session: joined.session ^ 1 }.encode()))[..],
        [Answer::Refused { reason: Reason::NotMember, .. }]
    ));
    assert!(testbed.is_member(home(1)));
    // Whoever roams has to prove the new address: the cookie of the old one is worth nothing there.
    let request = testbed.join_bytes(home(3), 0, 7, &[]);
    assert!(matches!(decoded(&testbed.say(home(4), &request))[..], [Answer::Challenge { .. }]));
    assert!(!testbed.is_member(home(4)) && !testbed.is_member(home(3)));
    assert!(testbed.join(home(4), 0, 8, &[]).is_ok());
}

#[test]
fn a_recorded_join_brings_nobody_back() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let request = testbed.join_bytes(home(1), 0, 1, &[]);
    let answers = testbed.say(home(1), &request);
    let [Answer::Joined(joined)] = decoded(&answers)[..] else { panic!() };
    // The same again is answered in the same way: the answer may have been lost.
    assert_eq!(testbed.say(home(1), &request), answers);
    let _ = testbed.say(home(1), &Request::Leave { group: 0, session: joined.session }.encode());
    for _ in 0..40 {
        assert!(matches!(decoded(&testbed.say(home(1), &request))[..], [Answer::Challenge { .. }]));
        assert!(!testbed.is_member(home(1)));
        testbed.pass(500);
    }
    // Nor does it end the session of one who came in again by itself.
    let again = testbed.join(home(1), 0, 2, &[]).unwrap();
    assert!(matches!(decoded(&testbed.say(home(1), &request))[..], [Answer::Challenge { .. }]));
    assert!(matches!(
        decoded(&testbed.say(home(1), &beat(again.session, again.proof, 1)))[..],
        [Answer::Pulse(_)]
    ));
    // A cookie does not last.
    let late = testbed.join_bytes(home(9), 0, 1, &[]);
    testbed.pass(COOKIE_LIFE_MS + 10);
    assert!(matches!(decoded(&testbed.say(home(9), &late))[..], [Answer::Challenge { .. }]));
}

#[test]
fn some_addresses_are_never_answered() {
    let bad = [
        "224.0.0.1:4000",
        "255.255.255.255:4000",
        "0.0.0.0:4000",
        "0.1.2.3:4000",
        "127.0.0.1:4000",
        "203.0.113.1:0",
        "203.0.113.1:53",
        "198.51.100.1:7400",
        "192.0.2.255:4000",
        "[::]:4000",
        "[::1]:4000",
        "[ff02::1]:4000",
        "[::ffff:224.0.0.1]:4000",
        "[::ffff:127.0.0.1]:4000",
        "[2001:db8::1]:443",
        "[::ffff:198.51.100.1]:7400",
    ];
    let options = ControlOptions { broadcast: vec![[192, 0, 2, 255].into()], ..ControlOptions::default() };
    let mut testbed = Testbed::new(options);
    let join = Join {
        group: 0,
        echo: false,
        keeps_state: false,
        nonce: 1,
        cookie: [0; 16],
        leaves: None,
        token: &[],
    };
    for (number, from) in bad.iter().enumerate() {
        let _ = testbed.say(from.parse().unwrap(), &Request::Join(join).encode());
        assert!(testbed.sent().is_empty(), "{from}");
        assert_eq!(testbed.count(Counter::Destination), number as u64 + 1, "{from}");
    }
    // What the operator allows is allowed, and no more.
    let mut testbed =
        Testbed::new(ControlOptions { loopback: true, privileged: true, ..ControlOptions::default() });
    for good in ["127.0.0.1:4000", "203.0.113.1:53", "[::1]:443"] {
        assert!(testbed.join(good.parse().unwrap(), 0, 1, &[]).is_ok(), "{good}");
    }
    let _ = testbed.say("127.0.0.1:0".parse().unwrap(), &Request::Join(join).encode());
    assert_eq!(testbed.count(Counter::Destination), 1);
}

#[test]
fn tokens_that_are_not_right_are_refused_with_the_reason() {
    let key = TokenKey::new(&ClusterKey::from_bytes([9; 32]));
    let mut testbed =
        Testbed::new(ControlOptions { token_keys: vec![key.public()], ..ControlOptions::default() });
    let closed = GroupId { port: 7400, id: 2 };
    testbed.control.set_group(closed, GroupOptions { token: true, ..GroupOptions::default() });
    let now_unix_s = testbed.now().unix_s;
    let ip: IpAddr = home(1).ip();
    let sign = |key: &TokenKey, scope: Scope, expires_unix_s, address| {
        let (rights, identity) = (Rights::ALL, None);
        let grant = Grant { scopes: vec![scope], rights, identity, expires_unix_s, address };
        Token::sign(key, &grant).unwrap().as_bytes().to_vec()
    };
    let right = sign(&key, Scope::Group(closed), now_unix_s + 60, Some(ip));
    let mut changed = right.clone();
    changed[5] ^= 1;
    let cases = [
        (vec![], Counter::TokenMissing, Reason::TokenMissing),
        (right[..59].to_vec(), Counter::TokenMalformed, Reason::TokenMalformed),
        (changed, Counter::TokenForged, Reason::TokenForged),
        (
            sign(&TokenKey::new(&ClusterKey::from_bytes([8; 32])), Scope::Any, now_unix_s + 60, None),
            Counter::TokenForged,
            Reason::TokenForged,
        ),
        (sign(&key, Scope::Any, now_unix_s, None), Counter::TokenExpired, Reason::TokenExpired),
        (sign(&key, Scope::Group(GROUP), now_unix_s + 60, None), Counter::TokenGroup, Reason::TokenGroup),
        (
            sign(&key, Scope::Any, now_unix_s + 60, Some(home(2).ip())),
            Counter::TokenAddress,
            Reason::TokenAddress,
        ),
    ];
    for (nonce, (token, counter, reason)) in cases.into_iter().enumerate() {
        let before = testbed.count(counter);
        assert_eq!(testbed.join(home(1), 2, nonce as u64, &token), Err(reason));
        assert_eq!(testbed.count(counter), before + 1, "{reason}");
        assert!(testbed.control.table().member_of(closed, home(1)).is_none());
    }
    assert!(testbed.join(home(1), 2, 100, &right).is_ok());
}

#[test]
fn forged_joins_cost_no_memory_and_do_not_use_up_what_the_owner_of_the_address_may_do() {
    let mut testbed = Testbed::new(ControlOptions {
        joins_per_source: Rate::per_second(1, 3),
        answers_per_source: Rate::per_second(100, 1000),
        ..ControlOptions::default()
    });
    let mut join = Join {
        group: 0,
        echo: false,
        keeps_state: false,
        nonce: 1,
        cookie: [7; 16],
        leaves: None,
        token: &[],
    };
    for number in 0..50_000 {
        join.nonce = u64::from(number);
        let request = Request::Join(join).encode();
        let answers = testbed.say(home(number), &request);
        assert!(answers.len() <= 1 && answers.iter().all(|answer| answer.len() <= request.len()));
    }
    assert_eq!((testbed.control.table().members_len(), testbed.control.table().members_end()), (0, 0));
    assert_eq!(testbed.count(Counter::CookieInvalid), 50_000);

    // One address in whose name somebody else asks, within what a source is answered.
    for _ in 0..500 {
        let _ = testbed.say(home(7), &Request::Join(join).encode());
    }
    assert!(testbed.join(home(7), 0, 1, &[]).is_ok());
    // Joins that are proven are limited by source, whatever the port; and beyond the answers a source is not heard.
    let port = |number: u16| SocketAddr::new(home(7).ip(), 20_000 + number);
    let refused =
        (0..10).filter(|number| testbed.join(port(*number), 0, 1, &[]) == Err(Reason::TooManyJoins)).count();
    assert_eq!(refused, 8);
    for number in 0..1000 {
        let _ = testbed.say(port(number), &Request::Join(join).encode());
    }
    assert!(testbed.count(Counter::SourceBusy) > 0);
    // An IPv6 network is one source.
    let in_network = |number: u16| SocketAddr::from(([0x2001, 0xdb8, 0, 7, number, 0, 0, 1], 4000));
    let refused = (0..10)
        .filter(|number| testbed.join(in_network(*number), 0, 1, &[]) == Err(Reason::TooManyJoins))
        .count();
    assert_eq!(refused, 7);
}

#[test]
fn a_group_takes_as_many_as_it_may_and_a_closing_reflector_takes_nobody() {
    let mut testbed = Testbed::new(ControlOptions { members_max: 5, ..ControlOptions::default() });
    testbed.control.set_group(GROUP, GroupOptions { members_max: 3, ..GroupOptions::default() });
    testbed.control.set_group(GroupId { id: 1, ..GROUP }, GroupOptions::default());
    let joins: Vec<_> = (0..4).map(|number| testbed.join(home(number), 0, 1, &[]).is_ok()).collect();
    assert_eq!(joins, [true, true, true, false]);
    let joins: Vec<_> = (0..4).map(|number| testbed.join(home(number), 1, 1, &[]).is_ok()).collect();
    assert_eq!(joins, [true, true, false, false], "as many as the reflector may take");
    // Who is in already comes in again.
    testbed.pass(10);
    assert!(testbed.join(home(0), 0, 2, &[]).is_ok());
    assert!(matches!(testbed.join(home(9), 0, 1, &[]), Err(Reason::Full)));

    testbed.control.close();
    let request = Request::Join(Join {
        group: 0,
        echo: false,
        keeps_state: false,
        nonce: 5,
        cookie: [0; 16],
        leaves: None,
        token: &[],
    });
    let answers = testbed.say(home(9), &request.encode());
    assert!(matches!(decoded(&answers)[..], [Answer::Refused { reason: Reason::Closing, .. }]));
    testbed.pass(2000);
    assert_eq!(testbed.control.table().members_len(), 0);
    let messages = testbed.sent();
    let goodbyes = messages.iter().filter(|(_, bytes)| {
        matches!(Answer::decode(bytes), Ok(Answer::Goodbye { reason: Reason::Closing, .. }))
    });
    assert_eq!(goodbyes.count(), 5);
}

#[test]
fn members_expire_bit_by_bit_and_all_of_them() {
    let mut testbed = Testbed::new(ControlOptions::default());
    testbed.control.set_group(GROUP, GroupOptions { members_max: 10_000, ..GroupOptions::default() });
    for number in 0..2000 {
        assert!(testbed.join(home(number), 0, 1, &[]).is_ok());
    }
    testbed.pass(9_900);
    assert_eq!(testbed.control.table().members_len(), 2000);
    let mut most = 0;
    for _ in 0..200 {
        let before = testbed.control.table().members_len();
        testbed.pass(10);
        most = most.max(before - testbed.control.table().members_len());
    }
    assert_eq!(testbed.control.table().members_len(), 0);
    assert!(most <= 2000 / 50, "{most} in one tick");
}

#[test]
fn a_member_stays_no_longer_than_its_token_lasts() {
    let (mut testbed, key) = guarded();
    let expires = testbed.now().unix_s + 20;
    let joined = testbed.join(home(1), 0, 1, &signed(&key, "ann", Rights::ALL, expires)).unwrap();
    let mut proof = joined.proof;
    for number in 1..19 {
        proof = proof_in(&testbed.say(home(1), &beat(joined.session, proof, number)));
        testbed.pass(1000);
    }
    assert!(testbed.is_member(home(1)));
    let _ = testbed.say(home(1), &beat(joined.session, proof, 19));
    testbed.pass(4000);
    assert!(!testbed.is_member(home(1)));
    let messages = testbed.sent();
    // Another token, shown in time, lets it stay.
    let later = signed(&key, "ann", Rights::ALL, testbed.now().unix_s + 3);
    let first = testbed.join(home(1), 0, 2, &later).unwrap();
    testbed.pass(1000);
    let longer = signed(&key, "ann", Rights::ALL, testbed.now().unix_s + 100);
    let second = testbed.join(home(1), 0, 3, &longer).unwrap();
    assert_ne!(first.session, second.session);
    testbed.pass(5000);
    assert!(testbed.is_member(home(1)));
    drop(messages);
}

#[test]
fn whoever_is_thrown_out_is_out_and_a_ban_keeps_them_out_for_its_time() {
    let (mut testbed, key) = guarded();
    let token = |name: &str, testbed: &Testbed| signed(&key, name, Rights::ALL, testbed.now().unix_s + 1000);
    for (number, name) in [(1, "ann"), (2, "bob"), (3, "bob")] {
        let token = token(name, &testbed);
        testbed.join(home(number), 0, 1, &token).unwrap();
    }
    let bob = Subject::Identity(Identity::of_name("bob"));
    let now = testbed.now();
    assert_eq!(testbed.control.expel(now, bob, None, 0), Some(2));
    let messages = testbed.sent();
    let kicked =
        |bytes: &[u8]| matches!(Answer::decode(bytes), Ok(Answer::Goodbye { reason: Reason::Kicked, .. }));
    assert_eq!(messages.iter().filter(|(_, bytes)| kicked(bytes)).count(), 2);
    assert!(testbed.is_member(home(1)) && !testbed.is_member(home(2)) && !testbed.is_member(home(3)));
    // A kick lets them in again if they wish, a ban does not: neither from elsewhere nor with another token.
    testbed.pass(10);
    let again = token("bob", &testbed);
    assert!(testbed.join(home(2), 0, 2, &again).is_ok());
    let now = testbed.now();
    assert_eq!(testbed.control.expel(now, bob, Some(GROUP), 30), Some(1));
    testbed.sent();
    for number in [2, 5] {
        let again = token("bob", &testbed);
        assert_eq!(testbed.join(home(number), 0, 3, &again).map(drop), Err(Reason::Banned));
    }
    // Addresses and networks as well.
    let net = Subject::Network(home(1).ip(), 24);
    let now = testbed.now();
    assert_eq!(testbed.control.expel(now, net, None, 30), Some(1));
    testbed.sent();
    let other = token("eve", &testbed);
    assert_eq!(testbed.join(home(9), 0, 4, &other).map(drop), Err(Reason::Banned));
    assert!(testbed.join(home(1 << 8), 0, 4, &other).is_ok());
    assert!(testbed.control.pardon(net, None) && !testbed.control.pardon(net, None));
    assert!(testbed.join(home(9), 0, 5, &other).is_ok());
    testbed.pass(31_000);
    let again = token("bob", &testbed);
    assert!(testbed.join(home(2), 0, 6, &again).is_ok());
}
