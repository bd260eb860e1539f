//! A location that moves while its members talk, over a network between the reflectors that loses, repeats and reorders.

use std::net::SocketAddr;

use nacre_reflect::control::{Counter, Counters};
use nacre_reflect::host::{Host, Incoming};
use nacre_reflect::location::LocationEntry;
use nacre_reflect::member::{MemberEvent, MemberOptions};
use nacre_reflect::table::{GroupId, GroupOptions, Path};
use nacre_reflect::wire::Reflectors;

use crate::world::{FAIR, FOUL, World, address, home};
use crate::{LOCATION, SEEDS, harbour, options};

const MEMBERS: u32 = 12;

/// Reflectors that share a secret, and members of a location that count what they say.
struct Stage {
    world: World,
    said: Vec<u64>,
    /// The length of what they say, in bytes.
    bytes: usize,
}

fn at(host: u8) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, host], 7400))
}

fn entry(reflectors: &[SocketAddr], group: u32) -> Option<LocationEntry> {
    Some(LocationEntry { reflectors: Reflectors::new(reflectors).unwrap(), group })
}

impl Stage {
    fn new(seed: u64, bytes: usize) -> Stage {
        let mut world = World::new(seed, FAIR);
        world.between = Some(if seed.is_multiple_of(4) { FAIR } else { FOUL });
        for host in 1..=3 {
            Stage::start(&mut world, host);
        }
        Stage { world, said: vec![0; MEMBERS as usize], bytes }
    }

    fn start(world: &mut World, host: u8) {
        world.start(at(host), options(), |control, _| {
            for id in 0..3 {
                control.set_group(GroupId { port: 7400, id }, GroupOptions::default());
            }
            control.set_relay_secret(&[7; 32], true);
        });
    }

    /// Tells one reflector after another where the location is, each at its own time.
    fn relocate(&mut self, order: &[u8], to: Option<LocationEntry>) {
        for host in order {
            let now = self.world.now();
            if let Some(control) = self.world.reflectors.get_mut(&at(*host)) {
                control.set_location(now, LOCATION, to);
            }
            let wait = self.world.random.below(300);
            self.talk(wait);
        }
    }

    /// Has all members talk for a time.
    fn talk(&mut self, ms: u64) {
        for _ in 0..ms / 5 {
            for number in 0..MEMBERS {
                if self.world.players.contains_key(&home(number)) && self.world.random.percent(30) {
                    let said = &mut self.said[number as usize];
                    let mut payload = vec![number as u8; self.bytes];
                    payload[..8].copy_from_slice(&(*said + 1).to_le_bytes());
                    if self.world.say(number, &payload) {
                        self.said[number as usize] += 1;
                    }
                }
            }
            self.world.run(5);
        }
    }

    fn begin(seed: u64, bytes: usize, first: Option<LocationEntry>) -> Stage {
        let mut stage = Stage::new(seed, bytes);
        stage.relocate(&[1, 2, 3], first);
        let ask = stage.world.reflectors.keys().copied().collect::<Vec<_>>();
        for number in 0..MEMBERS {
            stage.world.play(number, harbour(&ask), MemberOptions::default());
        }
        stage.world.run(3000);
        stage.talk(500);
        stage
    }

    fn all_at(&self, host: u8, group: u32) -> bool {
        let id = GroupId { port: 7400, id: group };
        let others = self.world.reflectors.iter().filter(|(address, _)| **address != at(host));
        let control = &self.world.reflectors[&at(host)];
        (0..MEMBERS).all(|number| control.table().member_of(id, home(number)).is_some())
            && control.table().members_len() == MEMBERS as usize
            && others.into_iter().all(|(_, control)| control.table().members_len() == 0)
    }

    #[track_caller]
    fn until_all_at(&mut self, host: u8, group: u32) {
        for _ in 0..400 {
            if self.all_at(host, group) {
                return;
            }
            self.talk(100);
        }
        panic!("they did not come to {host}");
    }

    /// Checks that everybody heard all others, once and in order.
    #[track_caller]
    fn check(&mut self, seed: u64) {
        self.talk(300);
        self.check_since(seed, &[0; MEMBERS as usize]);
    }

    /// Checks that everybody has heard what all others have said since then, once and in order.
    #[track_caller]
    fn check_since(&mut self, seed: u64, since: &[u64]) {
        self.world.run(2000);
        for (number, player) in (0..MEMBERS).map(|number| (number, &self.world.players[&home(number)])) {
            let lost = player.events.iter().filter(|event| matches!(event, MemberEvent::Lost { .. }));
            assert_eq!(lost.count(), 0, "seed {seed}");
            for from in (0..MEMBERS).filter(|from| *from != number) {
                let heard: Vec<u64> = player
                    .heard
                    .iter()
                    .filter(|payload| payload[8] == from as u8 && payload.len() == self.bytes)
                    .map(|payload| u64::from_le_bytes(payload[..8].try_into().unwrap()))
                    .collect();
                let said = self.said[from as usize];
                let first = since[from as usize] + 1;
                let lost: Vec<u64> = (first..=said).filter(|said| !heard.contains(said)).collect();
                let twice = heard.iter().filter(|one| heard.iter().filter(|two| two == one).count() > 1);
                let twice: Vec<&u64> = twice.collect();
                let early: Vec<_> = heard.windows(2).filter(|pair| pair[1] < pair[0]).collect();
                assert!(
                    lost.is_empty() && twice.is_empty() && early.is_empty(),
                    "seed {seed}: {number} heard of {from}'s {said}: lost {lost:?}, twice {twice:?}, \
                     out of order {early:?}"
                );
            }
        }
        for control in self.world.reflectors.values() {
            assert!(
                control.table().groups().all(|(_, group)| !group.relayed),
                "seed {seed}: no relay is left"
            );
        }
    }

    fn count(&self, host: u8, counter: Counter) -> u64 {
        let counters: &Counters = self.world.reflectors[&at(host)].counters();
        counters.get(counter)
    }
}

#[test]
fn everybody_hears_everybody_once_and_in_order_while_a_location_moves() {
    for seed in SEEDS {
        let mut stage = Stage::begin(seed, [9, 100, 5000][seed as usize % 3], entry(&[at(1)], 0));
        let order: &[u8] = if seed.is_multiple_of(2) { &[1, 2, 3] } else { &[2, 3, 1] };
        stage.relocate(order, entry(&[at(2)], 1));
        stage.until_all_at(2, 1);
        stage.check(seed);
        assert_eq!(stage.count(1, Counter::RelayHanded), u64::from(MEMBERS), "seed {seed}");
        assert_eq!(stage.count(1, Counter::RelayLost) + stage.count(2, Counter::RelayLost), 0, "seed {seed}");
    }
}

#[test]
fn a_location_moves_within_one_reflector() {
    for seed in SEEDS {
        let mut stage = Stage::begin(seed, 20, entry(&[at(1)], 0));
        stage.relocate(&[1], entry(&[at(1)], 2));
        stage.until_all_at(1, 2);
        stage.check(seed);
        assert_eq!(stage.count(1, Counter::RelayBegun), 2, "seed {seed}");
    }
}

#[test]
fn a_location_that_moves_on_before_all_have_moved_doubles_nothing_and_all_meet_in_the_end() {
    for seed in SEEDS {
        let mut stage = Stage::begin(seed, 20, entry(&[at(1)], 0));
        for host in [2, 1, 3] {
            stage.relocate(&[1, 2, 3], entry(&[at(host)], 0));
            let wait = stage.world.random.below(1000);
            stage.talk(wait);
        }
        stage.until_all_at(3, 0);
        stage.talk(500);
        // From one relay to the next there may be a gap.
        let before = stage.said.clone();
        stage.world.run(1000);
        for player in stage.world.players.values() {
            for from in 0..MEMBERS as u8 {
                let heard = player.heard.iter().filter(|payload| payload[8] == from);
                let said: Vec<u64> =
                    heard.map(|payload| u64::from_le_bytes(payload[..8].try_into().unwrap())).collect();
                assert!(said.is_sorted_by(|one, next| one < next), "seed {seed}: {said:?}");
            }
        }
        for player in stage.world.players.values_mut() {
            player.heard.clear();
        }
        stage.talk(500);
        stage.check_since(seed, &before);
    }
}

#[test]
fn a_standby_hands_its_members_back() {
    for seed in SEEDS {
        let mut stage = Stage::begin(seed, 20, entry(&[at(1), at(2)], 0));
        stage.world.kill(at(1));
        stage.talk(8000);
        assert!(stage.world.players.values().all(|player| player.member.target().is_some()), "seed {seed}");
        // Until here something was lost, since the reflector was.
        stage.said.fill(0);
        stage.world.run(1000);
        for player in stage.world.players.values_mut() {
            player.heard.clear();
            player.events.clear();
        }
        Stage::start(&mut stage.world, 1);
        stage.relocate(&[1], entry(&[at(1), at(2)], 0));
        stage.until_all_at(1, 0);
        stage.check(seed);
    }
}

#[test]
fn when_the_old_reflector_dies_in_the_middle_all_go_on_at_the_new_one() {
    for seed in SEEDS {
        let mut stage = Stage::begin(seed, 20, entry(&[at(1)], 0));
        stage.relocate(&[1, 2, 3], entry(&[at(2)], 0));
        let moved = |stage: &Stage| stage.world.reflectors[&at(2)].table().members_len();
        while moved(&stage) < 3 {
            stage.talk(5);
        }
        stage.world.kill(at(1));
        let before = stage.said.clone();
        stage.talk(15_000);
        assert_eq!(moved(&stage), MEMBERS as usize, "seed {seed}");
        for player in stage.world.players.values_mut() {
            player.heard.clear();
        }
        stage.said.fill(before[0] + 1_000_000);
        let (first, lost) = (stage.said[0] + 1, stage.count(2, Counter::RelayLost));
        stage.talk(1000);
        stage.world.run(1000);
        for number in 0..MEMBERS {
            let heard: Vec<u64> = stage.world.players[&home(number)]
                .heard
                .iter()
                .filter(|payload| payload[8] == (number + 1) as u8 % MEMBERS as u8)
                .map(|payload| u64::from_le_bytes(payload[..8].try_into().unwrap()))
                .filter(|said| *said >= first)
                .collect();
            let all: Vec<u64> = (first..=stage.said[(number as usize + 1) % MEMBERS as usize]).collect();
            assert_eq!(heard, all, "seed {seed}");
        }
        assert_eq!(lost, 1, "seed {seed}");
    }
}

#[test]
fn what_a_dead_reflector_has_said_does_not_hold_its_members_for_ever_when_it_is_said_again() {
    for seed in SEEDS.take(3) {
        let mut stage = Stage::begin(seed, 20, entry(&[at(1)], 0));
        stage.relocate(&[1, 2, 3], entry(&[at(2)], 0));
        while stage.world.reflectors[&at(2)].table().members_len() < 3 {
            stage.talk(5);
        }
        stage.world.kill(at(1));
        // Its last words come again and again, from its address.
        let recorded = stage.world.recorded.iter().rev();
        let spoken: Vec<_> =
            recorded.filter(|(from, to, _)| (*from, *to) == (at(1), at(2))).take(20).cloned().collect();
        for _ in 0..350 {
            stage.world.run(200);
            let now = stage.world.now();
            let control = stage.world.reflectors.get_mut(&at(2)).unwrap();
            for (from, to, bytes) in &spoken {
                let path = Path { device: 1, local: *to };
                control.handle(now, Incoming { path, from: *from, bytes });
            }
        }
        assert_eq!(stage.count(2, Counter::RelayLost), 1, "seed {seed}");
        let since = stage.said.clone();
        stage.talk(1000);
        stage.world.run(1000);
        for number in 0..MEMBERS {
            let other = (number + 1) % MEMBERS;
            let heard = stage.world.players[&home(number)].heard.iter().rev();
            let last = heard.filter(|payload| payload[8] == other as u8).map(|payload| &payload[..8]).next();
            let last = last.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
            assert!(last > Some(since[other as usize]), "seed {seed}: {number} hears {other} no more");
        }
    }
}

#[test]
fn a_reflector_without_the_secret_gets_no_relay_and_members_move_without() {
    for seed in SEEDS {
        let mut stage = Stage::begin(seed, 20, entry(&[at(1)], 0));
        stage.world.reflectors.get_mut(&at(2)).unwrap().set_relay_secret(&[8; 32], true);
        stage.relocate(&[1, 2, 3], entry(&[at(2)], 0));
        stage.until_all_at(2, 0);
        assert_eq!(stage.count(1, Counter::RelayUnanswered), 1, "seed {seed}");
        assert!(stage.count(2, Counter::RelayForged) > 0, "seed {seed}");
        assert_eq!(
            stage.count(2, Counter::RelayBegun) + stage.count(1, Counter::RelayBegun),
            0,
            "seed {seed}"
        );
    }
}

/// Has a reflector hear a datagram, and returns the bytes that it sends on account of it.
fn hears(world: &mut World, to: SocketAddr, from: SocketAddr, bytes: &[u8]) -> usize {
    let now = world.now();
    let control = world.reflectors.get_mut(&to).unwrap();
    control.handle(now, Incoming { path: Path { device: 1, local: to }, from, bytes });
    assert_eq!(control.relayed(now), None, "nobody's datagram is copied");
    std::iter::from_fn(|| control.next_outgoing()).map(|out| out.bytes.len()).sum()
}

#[test]
fn what_reflectors_said_is_worth_nothing_when_it_is_said_again_or_spoilt() {
    for seed in SEEDS {
        let mut stage = Stage::begin(seed, 20, entry(&[at(1)], 0));
        stage.relocate(&[1, 2, 3], entry(&[at(2)], 1));
        // In the middle of it, by others, and with a bit turned: nothing happens, and nobody is told anything.
        stage.talk(200);
        let outsider = address("192.0.2.66:7400");
        for (from, to, bytes) in stage.world.recorded.clone() {
            let reply_bytes = hears(&mut stage.world, to, outsider, &bytes);
            assert!(reply_bytes <= bytes.len(), "seed {seed}: {reply_bytes} bytes for {}", bytes.len());
            let mut spoilt = bytes.clone();
            let at = stage.world.random.below(8 * spoilt.len() as u64) as usize;
            spoilt[at / 8] ^= 1 << (at % 8);
            let reply_bytes = hears(&mut stage.world, to, from, &spoilt);
            assert!(reply_bytes <= spoilt.len(), "seed {seed}");
        }
        stage.until_all_at(2, 1);
        stage.check(seed);

        // When it is over: by those who said it, and by others.
        let begun = [1, 2].map(|host| stage.count(host, Counter::RelayBegun));
        let recorded = stage.world.recorded.clone();
        for (from, to, bytes) in &recorded {
            for from in [*from, outsider] {
                let reply_bytes = hears(&mut stage.world, *to, from, bytes);
                assert!(reply_bytes <= bytes.len(), "seed {seed}");
            }
        }
        assert_eq!([1, 2].map(|host| stage.count(host, Counter::RelayBegun)), begun, "seed {seed}");
        assert_eq!(begun, [1, 1], "seed {seed}");
        stage.check(seed);
    }
}

#[test]
fn a_departure_is_shown_until_the_last_member_has_left_and_can_be_taken_back_before() {
    let seed = 4;
    let mut stage = Stage::begin(seed, 64, entry(&[at(1)], 1));
    let departing = |stage: &Stage| {
        let control = &stage.world.reflectors[&at(1)];
        let index = control.table().find(GroupId { port: 7400, id: 1 }).unwrap();
        let departure = control.departure(index)?;
        assert_eq!(departure.location, LOCATION);
        Some((departure.is_asking, departure.is_relayed, departure.members, departure.to.reflectors.first()))
    };
    assert_eq!(departing(&stage), None);
    // Nobody is told to go to one that does not answer.
    stage.world.kill(at(2));
    stage.relocate(&[1], entry(&[at(2)], 2));
    stage.talk(2000);
    assert_eq!(departing(&stage), Some((true, false, MEMBERS, at(2))));
    stage.relocate(&[1], entry(&[at(1)], 1));
    assert_eq!(departing(&stage), None);
    assert!(stage.all_at(1, 1));
    stage.check(seed);
    for host in [3, 1] {
        let now = stage.world.now();
        let control = stage.world.reflectors.get_mut(&at(host)).unwrap();
        control.set_location(now, LOCATION, entry(&[at(3)], 2));
    }
    assert_eq!(departing(&stage), Some((true, false, MEMBERS, at(3))));
    let mut was_relayed = false;
    for _ in 0..2000 {
        let Some((_, is_relayed, ..)) = departing(&stage) else { break };
        was_relayed |= is_relayed;
        stage.talk(5);
    }
    assert!(was_relayed);
    assert_eq!(departing(&stage), None);
    stage.until_all_at(3, 2);
    stage.check(seed);
}
