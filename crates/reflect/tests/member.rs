//! A member against a reflector played by the test: it follows the reflector's answers, and ignores those of others and
//! those that come too often.

use std::net::SocketAddr;

use nacre_reflect::cookie::Secret;
use nacre_reflect::member::{Member, MemberEvent, MemberOptions, SendError, Target, Wanted};
use nacre_reflect::token::{Grant, Rights, Scope, Token, TokenKey};
use nacre_reflect::wire::relay::{Accept, Key, Open};
use nacre_reflect::wire::{Answer, Join, Joined, Pulse, Reason, Reflectors, Request};
use nacre_rpc::ClusterKey;

fn at(host: u8) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, host], 7400))
}

fn target(host: u8) -> Target {
    Target { reflector: at(host), group: 0 }
}

const HOME: ([u8; 4], u16) = ([203, 0, 113, 1], 40_000);

struct Stage {
    member: Member,
    now_us: u64,
    sequence: bool,
}

impl Stage {
    fn new(wanted: Wanted, options: MemberOptions) -> Self {
        Stage { member: Member::new(wanted, options, [4; 32]), now_us: 1_000_000, sequence: false }
    }

    fn tick(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        self.member.tick(self.now_us);
        self.sent()
    }

    fn sent(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::iter::from_fn(|| self.member.poll()).map(|transmit| (transmit.to, transmit.bytes)).collect()
    }

    /// Delivers an answer to the member, and returns the datagrams that it sends in reply.
    fn deliver(&mut self, from: SocketAddr, answer: Answer<'_>) -> Vec<(SocketAddr, Vec<u8>)> {
        assert_eq!(self.member.handle(self.now_us, from, &answer.encode()), None);
        self.sent()
    }

    fn events(&mut self) -> Vec<MemberEvent> {
        std::iter::from_fn(|| self.member.event()).collect()
    }

    /// Advances the time until the member sends something, and returns that.
    fn wait(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        loop {
            self.now_us = self.now_us.max(self.member.timeout_us().expect("it waits for something"));
            let sent = self.tick();
            if !sent.is_empty() {
                return sent;
            }
        }
    }

    fn let_in(&mut self, from: SocketAddr, nonce: u64, session: u64) -> Vec<(SocketAddr, Vec<u8>)> {
        let joined = Joined {
            nonce,
            session,
            seen: SocketAddr::from(HOME),
            heartbeat_ms: 1000,
            expiry_ms: 5000,
            members: 2,
            sequence: self.sequence,
            state_pending: false,
            state_version: 0,
            state_bytes: 0,
            proof: 3,
        };
        self.deliver(from, Answer::Joined(joined))
    }

    /// Completes a join.
    fn come_in(&mut self, session: u64) -> SocketAddr {
        let (to, nonce) = join_of(&self.wait());
        assert_eq!(self.let_in(to, nonce, session), []);
        to
    }
}

fn join_of(sent: &[(SocketAddr, Vec<u8>)]) -> (SocketAddr, u64) {
    let [(to, bytes)] = sent else { panic!("one datagram, and not {sent:?}") };
    let Ok(Request::Join(join)) = Request::decode(bytes) else { panic!("a JOIN, and not {bytes:?}") };
    (*to, join.nonce)
}

fn challenge(nonce: u64) -> Answer<'static> {
    Answer::Challenge { nonce, cookie: [5; 16], seen: SocketAddr::from(HOME) }
}

#[test]
fn a_cookie_is_brought_back_at_once_and_only_answers_of_the_asked_count() {
    let mut stage = Stage::new(Wanted::Group(vec![target(1)]), MemberOptions::default());
    let (to, nonce) = join_of(&stage.tick());
    assert_eq!(to, at(1));
    // From somebody else, or to another question.
    assert_eq!(stage.deliver(at(2), challenge(nonce)), []);
    assert_eq!(stage.deliver(at(1), challenge(nonce ^ 1)), []);
    assert_eq!(stage.let_in(at(2), nonce, 7), []);
    assert_eq!(stage.member.target(), None);

    let sent = stage.deliver(at(1), challenge(nonce));
    let Ok(Request::Join(join)) = Request::decode(&sent[0].1) else { panic!() };
    assert_eq!((join.cookie, join.nonce), ([5; 16], nonce));
    assert_eq!(stage.member.send(stage.now_us, b"too early"), Err(SendError::NotJoined));
    assert_eq!(stage.let_in(at(1), nonce, 7), []);
    let seen = SocketAddr::from(HOME);
    assert_eq!(stage.events(), [MemberEvent::Joined { target: target(1), seen, members: 2, again: false }]);
    assert_eq!(stage.member.send(stage.now_us, b"hello"), Ok(at(1)));
    let control = challenge(1).encode();
    assert_eq!(stage.member.send(stage.now_us, &control), Err(SendError::LooksLikeControl));

    // Payload counts from there only.
    let now_us = stage.now_us;
    assert_eq!(stage.member.handle(now_us, at(1), b"payload").unwrap().payload, b"payload");
    assert_eq!(stage.member.handle(now_us, at(2), b"payload"), None);
    // Nobody who does not know the session ends it or moves it.
    assert_eq!(stage.deliver(at(1), Answer::Goodbye { session: 8, reason: Reason::Removed }), []);
    assert_eq!(stage.deliver(at(2), Answer::Goodbye { session: 7, reason: Reason::Removed }), []);
    let away = Answer::Move { session: 8, address: at(3), group: 0, location: "x" };
    assert_eq!(stage.deliver(at(1), away), []);
    assert_eq!(stage.member.target(), Some(target(1)));
    assert_eq!(stage.events(), []);
}

#[test]
fn it_moves_by_joining_there_before_it_leaves_here() {
    let mut stage = Stage::new(Wanted::Group(vec![target(1)]), MemberOptions::default());
    stage.come_in(7);
    stage.events();
    let go = Answer::Move { session: 7, address: at(2), group: 0, location: "harbour" };
    let _ = stage.deliver(at(1), go);
    let _ = stage.deliver(at(1), go);
    let sent: Vec<_> = stage.tick();
    let joins: Vec<_> = sent
        .iter()
        .filter(|(_, bytes)| matches!(Request::decode(bytes), Ok(Request::Join(_))))
        .cloned()
        .collect();
    let (to, nonce) = join_of(&joins);
    assert_eq!((to, stage.member.target()), (at(2), Some(target(1))));
    let sent = stage.let_in(at(2), nonce, 9);
    assert_eq!(stage.member.target(), Some(target(2)));
    assert_eq!(sent, [(at(1), Request::Leave { group: 0, session: 7 }.encode())]);
    // Until it is heard there, what still comes from there is taken too.
    let now_us = stage.now_us;
    assert!(stage.member.handle(now_us, at(1), b"late").is_some());
    let _ = stage.deliver(at(1), Answer::Goodbye { session: 7, reason: Reason::Left });
    assert!(stage.member.handle(now_us, at(1), b"later").is_none());

    // Where it cannot get in, it does not go: it stays where it is.
    let _ = stage.deliver(at(2), Answer::Move { session: 9, address: at(3), group: 0, location: "harbour" });
    for _ in 0..200 {
        stage.now_us += 50_000;
        for (to, bytes) in stage.tick() {
            if let (Ok(Request::Heartbeat(beat)), true) = (Request::decode(&bytes), to == at(2)) {
                let (session, number, client_us) = (9, beat.number, beat.client_us);
                let pulse = Pulse {
                    session,
                    number,
                    members: 2,
                    client_us,
                    reflector_us: 1,
                    state_version: 0,
                    proof: number.into(),
                    heartbeat_ms: 1000,
                    expiry_ms: 5000,
                };
                let _ = stage.deliver(at(2), Answer::Pulse(pulse));
            }
        }
    }
    assert_eq!(stage.member.target(), Some(target(2)));
    assert!(stage.events().contains(&MemberEvent::MoveFailed { target: target(3) }));
}

#[test]
fn a_silent_reflector_is_given_up_within_three_heartbeats_and_the_next_one_joined() {
    let mut stage = Stage::new(Wanted::Group(vec![target(1), target(2)]), MemberOptions::default());
    assert_eq!(stage.come_in(7), at(1));
    stage.events();
    let since_us = stage.now_us;
    let mut tried = Vec::new();
    while stage.member.target().is_some() || !tried.contains(&at(2)) {
        for (to, bytes) in stage.wait() {
            if let Ok(Request::Join(_)) = Request::decode(&bytes) {
                tried.push(to);
            }
        }
        if stage.member.target().is_some() {
            assert!(stage.now_us - since_us < 2_500_000);
        }
    }
    assert_eq!(tried, [at(2)], "the one that is silent had its chance");
    assert_eq!(stage.events(), [MemberEvent::Lost { target: target(1) }]);
}

#[test]
fn a_group_that_falls_silent_has_its_reflector_asked_at_once() {
    let mut stage = Stage::new(Wanted::Group(vec![target(1), target(2)]), MemberOptions::default());
    stage.come_in(7);
    let pulse = |stage: &mut Stage, number: u32| {
        let (client_us, reflector_us, proof) = (stage.now_us, 1, u64::from(number));
        let pulse = Pulse {
            session: 7,
            number,
            members: 2,
            client_us,
            reflector_us,
            state_version: 0,
            proof,
            heartbeat_ms: 15_000,
            expiry_ms: 32_000,
        };
        stage.deliver(at(1), Answer::Pulse(pulse));
    };
    stage.tick();
    pulse(&mut stage, 1);
    stage.wait();
    pulse(&mut stage, 2);
    for _ in 0..100 {
        stage.now_us += 10_000;
        stage.member.handle(stage.now_us, at(1), b"payload").unwrap();
        assert!(stage.tick().is_empty(), "heartbeats are rare while datagrams come");
    }
    let since_us = stage.now_us;
    while stage.member.target().is_some() {
        stage.wait();
    }
    assert!(stage.now_us - since_us < 1_600_000, "{} us", stage.now_us - since_us);
}

#[test]
fn a_token_that_was_refused_ends_the_trying_until_there_is_another() {
    let mut stage = Stage::new(Wanted::Group(vec![target(1), target(2)]), MemberOptions::default());
    let (to, nonce) = join_of(&stage.tick());
    let reason = Reason::TokenExpired;
    assert_eq!(stage.deliver(to, Answer::Refused { nonce, reason, retry_ms: 0 }), []);
    assert_eq!(stage.events(), [MemberEvent::Refused { reason, last: true }]);
    assert_eq!(stage.member.timeout_us(), None);
    stage.member.set_token(stage.now_us, b"another".to_vec());
    let sent = stage.tick();
    let Ok(Request::Join(join)) = Request::decode(&sent[0].1) else { panic!() };
    assert_eq!(join.token, b"another");
}

#[test]
fn gaps_are_told_and_own_datagrams_are_none() {
    let mut stage = Stage::new(Wanted::Group(vec![target(1)]), MemberOptions::default());
    stage.sequence = true;
    stage.come_in(7);
    stage.events();
    let now_us = stage.now_us;
    let hear = |stage: &mut Stage, sequence| {
        let bytes = Answer::Data { sequence, payload: b"x" }.encode();
        let received = stage.member.handle(now_us, at(1), &bytes).map(|received| received.sequence);
        assert_eq!(received, Some(Some(sequence)));
        stage.events()
    };
    assert_eq!(hear(&mut stage, 100), []);
    assert_eq!(hear(&mut stage, 101), []);
    assert_eq!(hear(&mut stage, 105), [MemberEvent::Gap { first: 102, count: 3 }]);
    stage.member.send(now_us, b"mine").unwrap();
    assert_eq!(hear(&mut stage, 107), []);
    // Without a number it is not what this group sends.
    assert_eq!(stage.member.handle(now_us, at(1), b"plain"), None);
}

/// The member does not flood the reflector, whatever the answers, and however fast they come.
#[test]
fn a_hostile_reflector_does_not_make_it_send_without_end() {
    type Reply = fn(u64, &Request<'_>) -> Answer<'static>;
    let replies: [Reply; 5] = [
        |nonce, _| challenge(nonce),
        |nonce, _| Answer::Refused { nonce, reason: Reason::Full, retry_ms: 0 },
        |nonce, _| Answer::Refused { nonce, reason: Reason::UnknownGroup, retry_ms: u32::MAX },
        |nonce, _| Answer::Redirect { nonce, address: at(1), group: 1 },
        |nonce, request| match request {
            Request::Locate { .. } => {
                Answer::Location { nonce, group: 0, reflectors: Reflectors::new(&[at(1), at(2)]).unwrap() }
            }
            _ => Answer::Refused { nonce, reason: Reason::UnknownGroup, retry_ms: 0 },
        },
    ];
    for (number, reply) in replies.into_iter().enumerate() {
        for wanted in [
            Wanted::Group(vec![target(1), target(2)]),
            Wanted::Location { name: "harbour".into(), reflectors: vec![at(1), at(2)] },
        ] {
            let mut stage = Stage::new(wanted, MemberOptions::default());
            let mut sent = 0;
            while stage.now_us < 601_000_000 {
                let mut pending = stage.tick();
                while let Some((to, bytes)) = pending.pop() {
                    sent += 1;
                    let request = Request::decode(&bytes).unwrap();
                    let (Request::Join(nacre_reflect::wire::Join { nonce, .. })
                    | Request::Locate { nonce, .. }) = request
                    else {
                        panic!("it is in nowhere: {request:?}");
                    };
                    pending.extend(stage.deliver(to, reply(nonce, &request)));
                }
                stage.now_us += 10_000;
            }
            // Ten minutes: at the longest wait of 5 s there are 120 rounds, with two places, three tries, and up to eight
            // answers to each.
            assert!((10..120 * 2 * 3 * 9).contains(&sent), "reply {number}: {sent} datagrams");
            assert!(stage.events().len() < 5000);
        }
    }
}

#[test]
fn a_steady_stream_that_stops_is_noticed_soon_however_rare_heartbeats_are_and_just_after_one_too() {
    for (gap_us, soon_us) in [(5_000, 1_100_000), (20_000, 1_100_000), (80_000, 1_500_000)] {
        let mut stage = Stage::new(Wanted::Group(vec![target(1), target(2)]), MemberOptions::default());
        stage.come_in(7);
        stage.events();
        // It stops just after a heartbeat, when the next one is far.
        let (mut beats, mut last_us) = (0, 0);
        while beats < 8 {
            stage.now_us += gap_us;
            stage.member.handle(stage.now_us, at(1), b"payload");
            last_us = stage.now_us;
            for (_, bytes) in stage.tick() {
                let Ok(Request::Heartbeat(beat)) = Request::decode(&bytes) else { panic!("{bytes:?}") };
                beats += 1;
                let pulse = Pulse {
                    session: 7,
                    number: beat.number,
                    members: 900,
                    client_us: beat.client_us,
                    reflector_us: 1,
                    state_version: 0,
                    proof: 3,
                    heartbeat_ms: if beats < 7 { 100 } else { 15_000 },
                    expiry_ms: 30_000,
                };
                stage.deliver(at(1), Answer::Pulse(pulse));
            }
        }
        while stage.events().is_empty() {
            stage.wait();
        }
        let noticed_us = stage.now_us - last_us;
        assert!(noticed_us < soon_us, "datagrams each {gap_us} µs: after {noticed_us} µs");
    }
}

#[test]
fn debug_output_shows_neither_keys_nor_tokens_nor_cookies() {
    const SECRET: u8 = 0xab;
    let options = MemberOptions { token: vec![SECRET; 32], ..MemberOptions::default() };
    let wanted = Wanted::Group(vec![target(1)]);
    let mut stage = Stage::new(wanted, options.clone());
    let (_, nonce) = join_of(&stage.tick());
    let join = Join {
        group: 5,
        echo: false,
        keeps_state: false,
        nonce: 1,
        cookie: [SECRET; 16],
        leaves: None,
        token: &options.token,
    };
    let challenge = Answer::Challenge { nonce, cookie: [SECRET; 16], seen: HOME.into() };
    assert!(!stage.deliver(at(1), challenge).is_empty());
    let cluster_key = ClusterKey::from_bytes([SECRET; 32]);
    let token_key = TokenKey::new(&cluster_key);
    let grant = Grant {
        scopes: vec![Scope::Any],
        rights: Rights::ALL,
        identity: None,
        expires_unix_s: 1,
        address: None,
    };
    let token = Token::sign(&token_key, &grant).unwrap();
    let shown = [
        format!("{options:?}"),
        format!("{join:?}"),
        format!("{challenge:?}"),
        format!("{:?}", Request::Join(join)),
        format!("{:?}", stage.member),
        format!("{:?}", Open { nonce: 1, cookie: [SECRET; 16], group: 5, location: "a" }),
        format!("{:?}", Accept { nonce: 1, cookie: [SECRET; 16] }),
        format!("{:?}", Key::of_secret(&[SECRET; 32])),
        format!("{:?}", Secret::new([SECRET; 32])),
        format!("{cluster_key:?}"),
        format!("{token_key:?}"),
        format!("{token:?}"),
    ];
    let token = token.as_bytes()[..8].iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    for text in shown {
        for secret in ["171, 171", "abab", "ABAB", "q6ur", &token] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
}
