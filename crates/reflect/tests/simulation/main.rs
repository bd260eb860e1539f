//! Reflectors and members in one process, on a clock and a network driven by a seed.

mod moving;
mod world;

use std::net::SocketAddr;

use bytes::Bytes;
use nacre_object::testkit::block_on;
use nacre_reflect::control::{ControlOptions, Counter, StateOptions};
use nacre_reflect::location::LocationEntry;
use nacre_reflect::member::{MemberEvent, MemberOptions, Target, Wanted};
use nacre_reflect::table::{GroupId, GroupOptions};
use nacre_reflect::wire::Reflectors;
use world::{FAIR, FOUL, Weather, World, address, home};

const SEEDS: std::ops::Range<u64> = 0..8;

fn options() -> ControlOptions {
    ControlOptions { heartbeat_ms: 1000, expiry_ms: 5000, ..ControlOptions::default() }
}

#[test]
fn everybody_gets_in_stays_in_and_gets_out_whatever_the_network_does() {
    for seed in SEEDS {
        let mut world = World::new(seed, if seed == 0 { FAIR } else { FOUL });
        let at = address("198.51.100.1:7400");
        let group = GroupId { port: 7400, id: 0 };
        world.start(at, options(), |control, _| control.set_group(group, GroupOptions::default()));
        for number in 0..50 {
            let wanted = Wanted::Group(vec![Target { reflector: at, group: 0 }]);
            world.play(number, wanted, MemberOptions::default());
        }
        world.run(10_000);
        let table = |world: &World| {
            let table = world.reflectors[&at].table();
            (0..60).filter(|number| table.member_of(group, home(*number)).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(table(&world), (0..50).collect::<Vec<_>>(), "seed {seed}");
        world.run(30_000);
        // With a fifth of the datagrams lost all of several heartbeats in a row may go unanswered: whoever meets that
        // comes in again. It is never met on a fair network.
        let all_in = |world: &World| world.players.values().all(|player| player.member.target().is_some());
        assert!(world.run_until(5_000, all_in), "seed {seed}");
        for (from, player) in &world.players {
            assert_eq!(player.member.seen(), Some(*from), "seed {seed}");
            if seed == 0 {
                assert_eq!(player.events.len(), 1, "seed {seed} {:?}", player.events);
            }
        }
        assert_eq!(table(&world), (0..50).collect::<Vec<_>>(), "seed {seed}");

        // Some leave, some vanish.
        for number in 0..10 {
            world.players.get_mut(&home(number)).unwrap().member.leave(world.now_us);
            world.players.get_mut(&home(10 + number)).unwrap().gone = true;
        }
        world.run(12_000);
        assert_eq!(table(&world), (20..50).collect::<Vec<_>>(), "seed {seed}");
        for number in 0..10 {
            let player = &world.players[&home(number)];
            assert!(player.member.is_out(), "seed {seed}");
            assert_eq!(player.events.last(), Some(&MemberEvent::Left), "seed {seed}");
        }
        let counters = world.reflectors[&at].counters();
        assert!(counters.get(Counter::Expired) >= 10, "seed {seed}");
        let gone = [Counter::Left, Counter::Expired, Counter::Removed].map(|counter| counters.get(counter));
        assert_eq!(counters.get(Counter::Joined) - gone.iter().sum::<u64>(), 30, "seed {seed}");
    }
}

const GROUP: GroupId = GroupId { port: 7400, id: 0 };
const LOCATION: &str = "harbour";

fn weather(seed: u64) -> Weather {
    if seed.is_multiple_of(4) { FAIR } else { FOUL }
}

fn there(at: SocketAddr) -> Wanted {
    Wanted::Group(vec![Target { reflector: at, group: 0 }])
}

fn harbour(ask: &[SocketAddr]) -> Wanted {
    Wanted::Location { name: LOCATION.to_owned(), reflectors: ask.to_vec() }
}

fn entry(reflectors: &[SocketAddr]) -> Option<LocationEntry> {
    Some(LocationEntry { reflectors: Reflectors::new(reflectors).unwrap(), group: 0 })
}

fn in_state() -> MemberOptions {
    MemberOptions { keeps_state: true, wants_state: true, ..MemberOptions::default() }
}

fn often() -> StateOptions {
    StateOptions { every_ms: 2000, ..StateOptions::default() }
}

fn last_state(events: &[MemberEvent]) -> Option<(u64, Bytes)> {
    events.iter().rev().find_map(|event| match event {
        MemberEvent::State { version, bytes } => Some((*version, bytes.clone())),
        _ => None,
    })
}

impl World {
    fn bytes(&mut self, len: usize) -> Bytes {
        (0..len).map(|_| self.random.next() as u8).collect()
    }

    fn members(&self, at: SocketAddr) -> Vec<u32> {
        let Some(control) = self.reflectors.get(&at) else { return Vec::new() };
        (0..200).filter(|number| control.table().member_of(GROUP, home(*number)).is_some()).collect()
    }
}

#[test]
fn who_comes_in_gets_the_newest_state_of_any_size() {
    for seed in SEEDS {
        let mut world = World::new(seed, weather(seed));
        let at = address("198.51.100.1:7400");
        world.start(at, options(), |control, now| {
            control.set_group(GROUP, GroupOptions::default());
            control.set_state(now, GROUP, Some(often()));
        });
        // The first ones cannot give a state, or do not answer when asked: that must not hold up the rest.
        world.play(0, there(at), MemberOptions::default());
        world.play(1, there(at), in_state());
        world.play(2, there(at), in_state());
        world.run(3_000);
        let mut version_before = 0;
        for (turn, len) in [0, 1, 1024, 1025, 100_000].into_iter().enumerate() {
            let state = world.bytes(len);
            world.player(2).state = Some(state.clone());
            let stored = |world: &World| {
                let found = block_on(world.checkpoints().load(&format!("group/{GROUP}"))).unwrap();
                found.bytes.is_some_and(|bytes| bytes == state)
            };
            assert!(world.run_until(60_000, stored), "seed {seed}, {len} bytes");
            world.run(100);
            let number = 10 + turn as u32;
            world.play(number, there(at), in_state());
            let has_state = |world: &World| last_state(&world.players[&home(number)].events).is_some();
            assert!(world.run_until(60_000, has_state), "seed {seed}, {len} bytes");
            let (version, bytes) = last_state(&world.player(number).events).unwrap();
            assert!(bytes == state, "seed {seed}, {len} bytes");
            assert!(version > version_before, "seed {seed}");
            version_before = version;
            // It is not asked itself: it does not know what it would say.
            let now_us = world.now_us;
            world.player(number).member.leave(now_us);
        }
        // One who has lost datagrams asks again.
        let now_us = world.now_us;
        world.player(2).events.clear();
        world.player(2).member.fetch_state(now_us);
        let has_state = |world: &World| last_state(&world.players[&home(2)].events).is_some();
        assert!(world.run_until(10_000, has_state), "seed {seed}");
        let (version, bytes) = last_state(&world.player(2).events).unwrap();
        let right = Some(bytes) == world.player(2).state;
        assert!(version >= version_before && right, "seed {seed}");
        world.run(5_000);
        let counters = world.reflectors[&at].counters();
        assert!(counters.get(Counter::StateUnanswered) > 0, "seed {seed}");
        assert!(counters.get(Counter::StateUnchanged) > 0, "seed {seed}");
    }
}

#[test]
fn a_location_moves_and_nobody_is_a_member_nowhere() {
    for seed in SEEDS {
        let mut world = World::new(seed, weather(seed));
        let (a, b) = (address("198.51.100.1:7400"), address("198.51.100.2:7400"));
        let options = ControlOptions {
            group_default: Some(GroupOptions::default()),
            state_default: Some(often()),
            // Long enough that nobody is taken for dead because many heartbeats in a row were lost.
            expiry_ms: 20_000,
            ..options()
        };
        for at in [a, b] {
            world.start(at, options.clone(), |control, now| control.set_location(now, LOCATION, entry(&[a])));
        }
        for number in 0..40 {
            // Who does not answer when asked costs a second: only some say that they can.
            world.play(number, harbour(&[b, a]), MemberOptions { keeps_state: number < 4, ..in_state() });
        }
        world.player(0).state = Some(Bytes::from_static(b"ships"));
        assert!(world.run_until(20_000, |world| world.members(a).len() == 40), "seed {seed}");
        world.run(15_000);

        for (from, to) in [(a, b), (b, a)] {
            let now = world.now();
            for control in world.reflectors.values_mut() {
                control.set_location(now, LOCATION, entry(&[to]));
            }
            // Somebody who still believes the old map is sent on.
            let late = if to == b { 50 } else { 51 };
            world.play(late, there(from), MemberOptions::default());
            let done = |world: &World| {
                let mut all = [world.members(a), world.members(b)].concat();
                all.sort();
                all.dedup();
                assert!((0..40).all(|number| all.contains(&number)), "seed {seed}: {all:?}");
                let there = world.members(to);
                world.members(from).is_empty() && (0..40).chain([late]).all(|number| there.contains(&number))
            };
            assert!(world.run_until(90_000, done), "seed {seed}");
        }
        // The state went with them, from one reflector to the other.
        world.play(60, harbour(&[a, b]), in_state());
        let has_state = |world: &World| last_state(&world.players[&home(60)].events).is_some();
        assert!(world.run_until(20_000, has_state), "seed {seed}");
        assert_eq!(last_state(&world.player(60).events).unwrap().1, "ships", "seed {seed}");
    }
}

#[test]
fn a_reflector_is_killed_its_standby_takes_over_and_it_comes_back() {
    for seed in SEEDS {
        let mut world = World::new(seed, weather(seed));
        let (a, b) = (address("198.51.100.1:7400"), address("198.51.100.2:7400"));
        let options = ControlOptions {
            group_default: Some(GroupOptions::default()),
            state_default: Some(often()),
            ..options()
        };
        for at in [a, b] {
            world.start(at, options.clone(), |control, now| {
                control.set_location(now, LOCATION, entry(&[a, b]))
            });
        }
        for number in 0..20 {
            world.play(
                number,
                harbour(&[a, b]),
                MemberOptions { keeps_state: true, ..MemberOptions::default() },
            );
            world.player(number).state = Some(Bytes::from_static(b"tide"));
        }
        let stored = |world: &World| {
            block_on(world.checkpoints().load(&format!("location/{LOCATION}"))).unwrap().version > 0
        };
        assert!(
            world.run_until(20_000, |world| stored(world) && world.members(a).len() == 20),
            "seed {seed}"
        );
        let version = block_on(world.checkpoints().load("location/harbour")).unwrap().version;

        world.kill(a);
        for player in world.players.values_mut() {
            // Nobody can tell the new reflector: it has to have the state from the store.
            player.state = None;
        }
        assert!(world.run_until(30_000, |world| world.members(b).len() == 20), "seed {seed}");
        world.play(50, harbour(&[a, b]), in_state());
        let state_of = |world: &World, number| last_state(&world.players[&home(number)].events);
        assert!(world.run_until(30_000, |world| state_of(world, 50).is_some()), "seed {seed}");
        let (found, bytes) = state_of(&world, 50).unwrap();
        assert!(found >= version && bytes == "tide", "seed {seed}");

        world.start(a, options, |control, now| control.set_location(now, LOCATION, entry(&[a, b])));
        // On a bad network somebody is always on the way between the two. What counts is that everybody comes back.
        let mut back = std::collections::BTreeSet::new();
        let all_back = |world: &World| {
            let in_a = |(at, player): (&SocketAddr, &world::Player)| {
                player.member.target().is_some_and(|target| target.reflector == a).then_some(*at)
            };
            back.extend(world.players.iter().filter_map(in_a));
            back.len() == 21
        };
        assert!(world.run_until(90_000, all_back), "seed {seed}");
        world.play(51, harbour(&[a, b]), in_state());
        assert!(world.run_until(30_000, |world| state_of(world, 51).is_some()), "seed {seed}");
        assert_eq!(state_of(&world, 51).unwrap().1, "tide", "seed {seed}");
    }
}

#[test]
fn a_reflector_without_a_standby_is_started_again_and_has_its_members_back() {
    for seed in SEEDS {
        let mut world = World::new(seed, weather(seed));
        let at = address("198.51.100.1:7400");
        let start = |world: &mut World| {
            world.start(at, options(), |control, now| {
                control.set_group(GROUP, GroupOptions::default());
                control.set_state(now, GROUP, Some(often()));
            });
        };
        start(&mut world);
        for number in 0..30 {
            world.play(number, there(at), in_state());
        }
        assert!(world.run_until(20_000, |world| world.members(at).len() == 30), "seed {seed}");
        // Down for an instant, and for longer than the back-off's beginning.
        for down_ms in [10, 20_000] {
            world.kill(at);
            world.run(down_ms);
            start(&mut world);
            let all_back = |world: &World| {
                world.members(at).len() == 30
                    && world.players.values().all(|player| player.member.target().is_some())
            };
            assert!(world.run_until(30_000, all_back), "seed {seed}");
        }
        // One that shuts down says so: nobody has to wait for heartbeats.
        world.reflectors.get_mut(&at).unwrap().close();
        assert!(world.run_until(2_000, |world| world.members(at).is_empty()), "seed {seed}");
        let counters = world.reflectors[&at].counters();
        assert_eq!(counters.get(Counter::Removed) + counters.get(Counter::Left), 30, "seed {seed}");
    }
}
