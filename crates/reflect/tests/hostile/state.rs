//! The states of groups: who is asked for them, and what is stored under which name.

use std::net::SocketAddr;

use bytes::Bytes;
use nacre_reflect::control::{ControlOptions, Counter, Event, StateOptions, Suppliers};
use nacre_reflect::location::LocationEntry;
use nacre_reflect::token::Rights;
use nacre_reflect::wire::{
    Answer, Heartbeat, Joined, PART_BYTES, Reflectors, Request, STATE_BYTES_MAX, StateGet, StatePart,
};

use super::testbed::{GROUP, Testbed, beat, decoded, guarded, home, local, proof_in, signed};

#[test]
fn a_state_is_fetched_no_faster_than_a_member_may() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let now = testbed.now();
    testbed.control.set_state(now, GROUP, Some(StateOptions::default()));
    let joined = testbed.join(home(1), 0, 1, &[]).unwrap();
    testbed.pass(10);
    assert!(matches!(testbed.control.events().last(), Some(Event::LoadState { .. })));
    let now = testbed.now();
    testbed.control.state_loaded(now, GROUP, 3, Some(Bytes::from(vec![1; 1 << 20])));
    let get =
        StateGet { group: 0, parts: 16, session: joined.session, version: 0, offset: 0, proof: joined.proof };
    let request = Request::StateGet(get).encode();
    let answers: usize = (0..1000).map(|_| testbed.say(home(1), &request).len()).sum();
    assert_eq!(answers, 256);
    assert_eq!(testbed.count(Counter::StateRate), 1000 - 256 / 16);
}

/// Returns the member that is asked for the group's state first, of some who say that they can give it. The number of
/// each is the time in milliseconds that it takes to answer; each says in its heartbeats that it takes no time at all,
/// but the first, who is honest.
fn asked_first(testbed: &mut Testbed, ways_ms: &[(u32, u64, Vec<u8>)]) -> Option<SocketAddr> {
    let now = testbed.now();
    testbed.control.set_state(now, GROUP, Some(StateOptions { every_ms: 1000, ..StateOptions::default() }));
    for (number, way_ms, token) in ways_ms {
        let joined = testbed.join(home(*number), 0, 1, token).unwrap();
        testbed.pass(*way_ms);
        let reflector_us = testbed.now().ns / 1000;
        let lie = if *number == 1 { reflector_us - way_ms * 1000 } else { reflector_us };
        let heartbeat = Heartbeat {
            group: 0,
            number: 1,
            session: joined.session,
            client_us: 1,
            reflector_us: lie,
            hold_us: 0,
            state_version: 0,
            proof: joined.proof,
        };
        testbed.say(home(*number), &Request::Heartbeat(heartbeat).encode());
    }
    for _ in 0..200 {
        testbed.pass(10);
        // The store knows of no state.
        let now = testbed.now();
        let loads = testbed.control.events().filter(|event| matches!(event, Event::LoadState { .. })).count();
        (0..loads).for_each(|_| testbed.control.state_loaded(now, GROUP, 0, None));
        let question = testbed
            .sent()
            .into_iter()
            .find(|(_, bytes)| matches!(Answer::decode(bytes), Ok(Answer::StateAsk { .. })));
        if let Some((question, _)) = question {
            return Some(question);
        }
    }
    None
}

#[test]
fn nobody_is_asked_for_the_state_by_lying_about_the_delay() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let clients: Vec<_> = [(1, 20), (2, 50), (3, 90)].map(|(number, ms)| (number, ms, Vec::new())).to_vec();
    assert_eq!(asked_first(&mut testbed, &clients), Some(home(1)));
}

#[test]
fn the_operator_says_who_supplies_states() {
    let by_rights = |rights: Rights| {
        let (mut testbed, key) = guarded();
        let expires = testbed.now().unix_s + 1000;
        let clients = [(1, 50, rights), (2, 20, Rights { state: false, ..Rights::ALL })];
        let clients: Vec<_> = clients
            .map(|(number, ms, rights)| (number, ms, signed(&key, &number.to_string(), rights, expires)))
            .to_vec();
        asked_first(&mut testbed, &clients)
    };
    assert_eq!(by_rights(Rights::ALL), Some(home(1)));
    assert_eq!(by_rights(Rights { state: false, ..Rights::ALL }), None);
    for (suppliers, expected) in [
        (Suppliers::Nobody, None),
        (Suppliers::Tokens, None),
        (Suppliers::Members, Some(home(2))),
        (Suppliers::Addresses(vec![home(1).ip()]), Some(home(1))),
    ] {
        let mut testbed = Testbed::new(ControlOptions { suppliers, ..ControlOptions::default() });
        let clients = [(1, 50), (2, 20)].map(|(number, ms)| (number, ms, Vec::new()));
        assert_eq!(asked_first(&mut testbed, &clients), expected);
    }
}

/// Whoever is asked for a state keeps others from being asked meanwhile.
#[test]
fn a_member_whose_state_comes_in_drop_by_drop_is_given_up() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let now = testbed.now();
    testbed.control.set_state(now, GROUP, Some(StateOptions::default()));
    let Joined { session, mut proof, .. } = testbed.join(home(1), 0, 1, &[]).unwrap();
    testbed.pass(10);
    let now = testbed.now();
    testbed.control.state_loaded(now, GROUP, 0, None);
    let mut offset = 0;
    for number in 1..150 {
        // A little less than the longest wait for a part.
        testbed.pass(900);
        let answers = testbed.say(home(1), &beat(session, proof, number));
        proof = proof_in(&answers);
        let asked = decoded(&answers).into_iter().find_map(|answer| match answer {
            Answer::StateAsk { ask, .. } => Some(ask),
            _ => None,
        });
        if let Some(ask) = asked {
            let size = Some(STATE_BYTES_MAX as u32);
            let part = StatePart { group: 0, ask, session, size, offset, bytes: &[0; PART_BYTES] };
            testbed.say(home(1), &Request::StatePart(part).encode());
            offset += PART_BYTES as u32;
        }
    }
    assert!(offset > 50 * PART_BYTES as u32, "it was in time with each part");
    assert_eq!(testbed.count(Counter::StateUnanswered), 1);
}

/// Returns the questions to the store since the last call: the name, and the version that a state to be stored is based on.
fn questions(testbed: &mut Testbed) -> Vec<(String, Option<u64>)> {
    let events = testbed.control.events();
    let questions = events.filter_map(|event| match event {
        Event::LoadState { name, .. } => Some((name, None)),
        Event::StoreState { name, base, .. } => Some((name, Some(base))),
        Event::Joined { .. } | Event::Left { .. } => None,
    });
    questions.collect()
}

/// Lets the time pass until a member is asked for the state, and has it give one.
fn give_state(testbed: &mut Testbed, session: u64) {
    testbed.pass(1100);
    let sent = testbed.sent();
    let ask = sent.iter().find_map(|(_, bytes)| match Answer::decode(bytes) {
        Ok(Answer::StateAsk { ask, .. }) => Some(ask),
        _ => None,
    });
    let (ask, size) = (ask.expect("it is asked each second"), Some(3));
    let part = StatePart { group: 0, ask, session, size, offset: 0, bytes: b"new" };
    testbed.say(home(1), &Request::StatePart(part).encode());
}

/// A state that is stored under a location's name is based on what was loaded under that name: the group's own state may
/// have become newer much more often.
#[test]
fn what_the_store_says_under_one_name_says_nothing_about_another() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let now = testbed.now();
    testbed.control.set_state(now, GROUP, Some(StateOptions { every_ms: 1000, ..StateOptions::default() }));
    let joined = testbed.join(home(1), 0, 1, &[]).unwrap();
    let index = testbed.control.table().find(GROUP).unwrap();
    let name = |name: &str, base: Option<u64>| vec![(name.to_owned(), base)];
    testbed.pass(10);
    assert_eq!(questions(&mut testbed), name("group/7400", None));

    // A location comes to the group before the store has answered.
    let entry = |reflector: SocketAddr| LocationEntry {
        reflectors: Reflectors::new(&[reflector]).unwrap(),
        group: 0,
    };
    let now = testbed.now();
    testbed.control.set_location(now, "harbour", Some(entry(local())));
    testbed.pass(10);
    assert!(questions(&mut testbed).is_empty(), "one question at a time");
    let now = testbed.now();
    testbed.control.state_loaded(now, GROUP, 50, Some(Bytes::from_static(b"of the group")));
    assert_eq!(testbed.control.state_version(index), 0);
    testbed.pass(10);
    assert_eq!(questions(&mut testbed), name("location/harbour", None));
    let now = testbed.now();
    testbed.control.state_loaded(now, GROUP, 3, Some(Bytes::from_static(b"of the location")));
    assert_eq!(testbed.control.state_version(index), 3);
    give_state(&mut testbed, joined.session);
    assert_eq!(questions(&mut testbed), name("location/harbour", Some(3)));
    let now = testbed.now();
    testbed.control.state_stored(now, GROUP, 4);
    assert_eq!(testbed.control.state_version(index), 4);

    // Members of a location that moves away are of it until they have followed.
    let now = testbed.now();
    let elsewhere = SocketAddr::from(([198, 51, 100, 2], 7400));
    testbed.control.set_location(now, "harbour", Some(entry(elsewhere)));
    assert_eq!(testbed.control.state_version(index), 4);
    testbed.control.set_location(now, "harbour", Some(entry(local())));
    testbed.pass(10);
    assert_eq!(
        questions(&mut testbed),
        name("location/harbour", None),
        "the other one may have stored a newer state"
    );
    let now = testbed.now();
    testbed.control.state_loaded(now, GROUP, 5, Some(Bytes::from_static(b"of the other")));
    assert_eq!(testbed.control.state_version(index), 5);

    // The location is removed while a state is stored under its name.
    give_state(&mut testbed, joined.session);
    assert_eq!(questions(&mut testbed), name("location/harbour", Some(5)));
    let now = testbed.now();
    testbed.control.set_location(now, "harbour", None);
    testbed.control.state_stored(now, GROUP, 6);
    assert_eq!(testbed.control.state_version(index), 0);
    testbed.pass(10);
    assert_eq!(questions(&mut testbed), name("group/7400", None));
}

#[test]
fn a_location_that_has_moved_away_leaves_no_state_as_the_groups_own() {
    let mut testbed = Testbed::new(ControlOptions::default());
    let now = testbed.now();
    testbed.control.set_state(now, GROUP, Some(StateOptions { every_ms: 1000, ..StateOptions::default() }));
    let entry = |reflector: SocketAddr| LocationEntry {
        reflectors: Reflectors::new(&[reflector]).unwrap(),
        group: 0,
    };
    testbed.control.set_location(now, "harbour", Some(entry(local())));
    let joined = testbed.join(home(1), 0, 1, &[]).unwrap();
    testbed.pass(10);
    assert_eq!(questions(&mut testbed), [("location/harbour".to_owned(), None::<u64>)]);
    let now = testbed.now();
    testbed.control.state_loaded(now, GROUP, 3, None);
    testbed.control.set_location(now, "harbour", Some(entry(SocketAddr::from(([198, 51, 100, 2], 7400)))));
    give_state(&mut testbed, joined.session);
    assert_eq!(questions(&mut testbed), [("location/harbour".to_owned(), Some(3_u64))]);
}
