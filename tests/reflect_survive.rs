//! A reflector under adverse conditions, on loopback: garbage, replays, changed addresses; killed and started again, or
//! replaced by its standby; members that vanish.

mod harness;

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use harness::reflect::{Joined, Reflector, free_port, until};
use harness::{PATIENCE, Random, Server, program, run_with};
use nacre_reflect::wire::{
    Answer, COOKIE_BYTES, Heartbeat, Join, MAGIC, Reason, Request, StateGet, StatePart,
};
use rustix::process::Signal;

/// Flags with which members stay in that send no heartbeats.
const SILENT: [&str; 4] = ["--heartbeat", "500ms", "--expiry", "10min"];

/// A plain socket that speaks the protocol by hand.
struct Hand {
    socket: UdpSocket,
    reflector: SocketAddr,
}

impl Hand {
    fn new(reflector: SocketAddr) -> Hand {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Hand { socket, reflector }
    }

    fn send(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.reflector).unwrap();
    }

    fn join(&self, group: u32, cookie: [u8; COOKIE_BYTES]) -> Vec<u8> {
        let join =
            Join { group, echo: false, keeps_state: false, nonce: 7, cookie, leaves: None, token: &[] };
        Request::Join(join).encode()
    }

    /// Returns the next datagram.
    #[track_caller]
    fn receive(&self) -> Vec<u8> {
        let mut buffer = [0; 65_536];
        let (length, from) = self.socket.recv_from(&mut buffer).unwrap();
        assert_eq!(from, self.reflector);
        buffer[..length].to_vec()
    }

    #[track_caller]
    fn cookie(&self, group: u32) -> [u8; COOKIE_BYTES] {
        self.send(&self.join(group, [0; COOKIE_BYTES]));
        loop {
            // Answers to earlier requests may come first.
            let answer = self.receive();
            if let Ok(Answer::Challenge { cookie, nonce: 7, seen }) = Answer::decode(&answer) {
                assert_eq!(seen, self.socket.local_addr().unwrap());
                return cookie;
            }
        }
    }

    /// Joins, and returns session and proof, and the datagram of the join.
    #[track_caller]
    fn enter(&self, group: u32) -> ((u64, u64), Vec<u8>) {
        let join = self.join(group, self.cookie(group));
        self.send(&join);
        let answer = self.receive();
        let Ok(Answer::Joined(joined)) = Answer::decode(&answer) else { panic!("{answer:?}") };
        ((joined.session, joined.proof), join)
    }

    fn heartbeat(&self, group: u32, (session, proof): (u64, u64), number: u32) -> Vec<u8> {
        Request::Heartbeat(Heartbeat {
            group,
            number,
            session,
            client_us: 1,
            reflector_us: 0,
            hold_us: 0,
            state_version: 0,
            proof,
        })
        .encode()
    }
}

fn counted(reflector: &Reflector, name: &str) -> u64 {
    reflector.report()["control"][name].as_u64().unwrap_or_else(|| panic!("{name} is counted"))
}

#[track_caller]
fn until_counted(reflector: &Reflector, name: &str, at_least: u64) {
    until(name, || (counted(reflector, name) >= at_least).then_some(()));
}

#[test]
fn garbage_disturbs_nobody() {
    let mut random = Random::from_environment();
    let mut reflector = Reflector::start(&SILENT);
    let mut speaker = Joined::join(&reflector.group(1), &[]);
    let listener = Joined::join(&reflector.group(1), &[]);
    let (member, stranger) = (Hand::new(reflector.address), Hand::new(reflector.address));
    let (session, join) = member.enter(2);
    let genuine = [
        join,
        member.heartbeat(2, session, 1),
        Request::Leave { group: 1, session: 1 }.encode(),
        Request::Locate { nonce: 1, location: "harbour" }.encode(),
        Request::StateGet(StateGet {
            group: 2,
            parts: 1,
            session: session.0,
            version: 0,
            offset: 0,
            proof: session.1,
        })
        .encode(),
        Request::StatePart(StatePart {
            group: 2,
            ask: 1,
            session: session.0,
            size: Some(9),
            offset: 0,
            bytes: b"nonsense!",
        })
        .encode(),
    ];
    for round in 0..3000 {
        let mut bytes = match round % 3 {
            // Genuine, except for some bytes or the end.
            0 => {
                let mut bytes = genuine[random.below(genuine.len() as u64) as usize].clone();
                for _ in 0..random.below(4) {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = random.next() as u8;
                }
                bytes
            }
            // The right beginning, followed by random bytes.
            1 => MAGIC.iter().copied().chain((0..random.below(1400)).map(|_| random.next() as u8)).collect(),
            _ => (0..random.below(1400)).map(|_| random.next() as u8).collect::<Vec<u8>>(),
        };
        if random.below(3) == 0 {
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        }
        // A member's payload may be anything; so only datagrams for the reflector are sent from that socket.
        match bytes.starts_with(&MAGIC) && random.below(2) == 0 {
            true => member.send(&bytes),
            false => stranger.send(&bytes),
        }
        if round % 100 == 0 {
            let line = format!("round {round}");
            speaker.say(&line);
            assert_eq!(listener.hear(), line);
        }
    }
    reflector.check_alive();
    assert!(counted(&reflector, "refused_malformed") > 0);
    assert!(reflector.report()["refused"]["non_members"].as_u64() > Some(0));
}

#[test]
fn replayed_datagrams_are_worth_nothing() {
    let reflector = Reflector::start(&SILENT);
    let hand = Hand::new(reflector.address);
    let (session, join) = hand.enter(1);
    reflector.until(1, "it is in", |report| report["members"] == 1);

    // Each heartbeat counts once.
    for number in [5, 5, 4] {
        hand.send(&hand.heartbeat(1, session, number));
    }
    until_counted(&reflector, "refused_replayed", 2);
    assert_eq!(counted(&reflector, "heartbeats"), 1);

    // A member that has left is not brought back by a replay of its join.
    hand.send(&Request::Leave { group: 1, session: session.0 }.encode());
    reflector.until(1, "it has left", |report| report["members"] == 0 || report.is_null());
    hand.send(&join);
    until_counted(&reflector, "refused_cookie", 1);
    assert_eq!(reflector.report()["members"], 0);

    // Nor does the replay work from another address, or for another group.
    let other = Hand::new(reflector.address);
    let cookie = hand.cookie(1);
    other.send(&other.join(1, cookie));
    until_counted(&reflector, "refused_cookie", 2);
    hand.send(&hand.join(2, cookie));
    until_counted(&reflector, "refused_cookie", 3);
    assert_eq!(reflector.report()["members"], 0);
}

#[test]
fn an_address_that_changes_needs_a_new_proof() {
    let reflector = Reflector::start(&SILENT);
    let listener = Joined::join(&reflector.group(1), &[]);
    let (before, after) = (Hand::new(reflector.address), Hand::new(reflector.address));
    let (session, _) = before.enter(1);
    before.send(b"from the old address");
    assert_eq!(listener.hear(), "from the old address");

    // The session alone is no proof: neither payload nor heartbeats are accepted from the new address.
    after.send(b"from nowhere");
    after.send(&after.heartbeat(1, session, 1));
    let answer = after.receive();
    assert!(
        matches!(Answer::decode(&answer), Ok(Answer::Refused { reason: Reason::NotMember, .. })),
        "{answer:?}"
    );
    after.send(&Request::Leave { group: 1, session: session.0 }.encode());
    after.receive();
    assert_eq!(reflector.report()["members"], 2);

    after.enter(1);
    after.send(b"from the new address");
    assert_eq!(listener.hear(), "from the new address");
    assert_eq!(reflector.report()["refused"]["non_members"], 1);
}

#[test]
fn the_longest_datagrams_pass_and_longer_ones_are_counted() {
    let reflector = Reflector::start(&[&SILENT[..], &["--group", "2:sequence"]].concat());
    let (speaker, listener) = (Hand::new(reflector.address), Hand::new(reflector.address));
    speaker.enter(1);
    listener.enter(1);
    for length in [0, 1, 1472, 9000, 65_507] {
        let payload = vec![0x55; length];
        speaker.send(&payload);
        assert!(listener.receive() == payload, "{length} bytes");
    }
    // With a number in front, the longest payload does not fit any more.
    let (speaker, listener) = (Hand::new(reflector.address), Hand::new(reflector.address));
    speaker.enter(2);
    listener.enter(2);
    speaker.send(&vec![0x55; 65_507]);
    until("it is counted", || (reflector.group_report(2)["refused"]["too_long"] == 1).then_some(()));
    speaker.send(b"short");
    let answer = listener.receive();
    assert!(matches!(Answer::decode(&answer), Ok(Answer::Data { payload: b"short", .. })), "{answer:?}");
}

#[test]
fn a_member_that_vanishes_is_forgotten() {
    let reflector = Reflector::start(&["--heartbeat", "100ms", "--expiry", "400ms"]);
    let stays = Joined::join(&reflector.group(1), &[]);
    let vanishes = Joined::join(&reflector.group(1), &[]);
    vanishes.signal(Signal::KILL);
    until_counted(&reflector, "expired", 1);
    reflector.until(1, "one is left", |report| report["members"].as_u64() <= Some(1));
    // The remaining member may have been late itself on a busy machine; it rejoins by itself.
    reflector.until(1, "one is there", |report| report["members"] == 1);
    drop(stays);
}

#[test]
fn a_killed_reflector_is_found_again_with_its_states() {
    let folder = harness::folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("first"), "what the world is like").unwrap();
    let store = Server::in_memory();
    let flags = ["--store", &store.uri, "--state-every", "200ms", "--heartbeat", "400ms", "--expiry", "12s"];
    let address = format!("127.0.0.1:{}", free_port());
    let reflector = Reflector::listen(&address, &flags);
    let group = reflector.group(1);
    let mut first = Joined::join(&group, &["--state", &path("first")]);
    let mut second = Joined::join(&group, &[]);
    reflector.until(1, "the state is kept", |report| report["state_version"].as_u64() > Some(0));
    until("the state is stored", || (counted(&reflector, "state_stored") > 0).then_some(()));

    reflector.kill();
    let killed = Instant::now();
    for member in [&first, &second] {
        assert_eq!(member.next("lost")["reflector"], address);
    }
    println!("members noticed after {:?}", killed.elapsed());
    let again = Reflector::listen(&address, &flags);
    let up = Instant::now();
    again.until(1, "both are back", |report| report["members"] == 2);
    println!(
        "and were back {:?} after it was up again, {:?} after it was killed",
        up.elapsed(),
        killed.elapsed()
    );
    first.say("still here");
    assert_eq!(second.hear(), "still here");
    second.say("so am I");
    assert_eq!(first.hear(), "so am I");
    assert_eq!(first.close().0, 0);
    // No member has the state any more, so it is handed over from the store.
    let _third = Joined::begin(&group, &["--state", &path("third")]).next("state");
    assert_eq!(std::fs::read_to_string(path("third")).unwrap(), "what the world is like");
    drop(again);
}

#[test]
fn members_of_a_killed_reflector_turn_to_its_standby() {
    let folder = harness::folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("first"), "what the world is like").unwrap();
    let store = Server::in_memory();
    let flags = ["--store", &store.uri, "--state-every", "200ms", "--heartbeat", "400ms", "--expiry", "12s"];
    let (main, standby) = (Reflector::start(&flags), Reflector::start(&flags));
    let other = standby.address.to_string();
    let mut set = program();
    set.args([
        "reflect",
        "move",
        "harbour",
        "--to",
        &main.group(1),
        "--standby",
        &other,
        "--admin",
        &main.admin,
    ]);
    run_with(set, b"").ok();
    let what = format!("harbour@{}", main.address);
    let mut first = Joined::join(&what, &["--state", &path("first")]);
    let second = Joined::join(&what, &[]);
    main.until(1, "the state is kept", |report| report["state_version"].as_u64() > Some(0));
    until("the state is stored", || (counted(&main, "state_stored") > 0).then_some(()));

    main.kill();
    let killed = Instant::now();
    standby.until(1, "both are at the standby", |report| report["members"] == 2);
    println!("members were at the standby after {:?}", killed.elapsed());
    first.say("here now");
    assert_eq!(second.hear(), "here now");
    first.close();
    Joined::begin(&standby.group(1), &["--state", &path("third")]).next("state");
    assert_eq!(std::fs::read_to_string(path("third")).unwrap(), "what the world is like");
}
