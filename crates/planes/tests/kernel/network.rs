//! The plane in a network: checksums, neighbours, devices, groups that are too large for the program.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use nacre_planes::plane::PlaneKind;
use nacre_reflect::rate::Rate;
use nacre_reflect::table::{GroupIndex, GroupOptions};

use crate::world::{Member, PATIENCE, World};

fn unlimited() -> GroupOptions {
    GroupOptions {
        group_rate: Rate::UNLIMITED,
        member_rate: Rate::UNLIMITED,
        // Everything is wanted, however late.
        max_age_ms: 0,
        ..GroupOptions::default()
    }
}

fn payload(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7 + 1) as u8).collect()
}

/// Adds members that have been heard of, so that the kernel knows their Ethernet addresses when they join.
fn known_members(world: &World, group: GroupIndex, count: usize, version: u8) -> Vec<Member> {
    let before = world.counters().non_members;
    let members: Vec<_> = (0..count).map(|at| world.sides[at % world.sides.len()].member(version)).collect();
    for (at, member) in members.iter().enumerate() {
        member.send(b"?");
        world.until("a outsider was heard", |counters| counters.non_members == before + at as u64 + 1);
    }
    for member in &members {
        world.join(group, member, false);
    }
    members
}

/// Receivers check sums, unless the packet says that they need not, which it does only if no device is to complete
/// them.
#[test]
fn checksums_are_right_whoever_completes_them() {
    let world = World::new(PlaneKind::Kernel, 2);
    for (id, version) in [(1, 4), (2, 6)] {
        let group = world.group(id, unlimited());
        let members = known_members(&world, group, 4, version);
        let before = world.counters();
        let mut sent = 0;
        for sender_device in [true, false] {
            for reflector_device in [true, false] {
                for (number, side) in world.sides.iter().enumerate() {
                    side.namespace.checksums("e0", sender_device).unwrap();
                    world.reflector.checksums(&format!("d{number}"), reflector_device).unwrap();
                }
                for (seed, len) in [0, 1, 2, 7, 100, 999, 1400].into_iter().enumerate() {
                    // One of these makes a sum of zero, which is written in another way.
                    for last in 0..40_u8 {
                        let mut bytes = payload(len, seed);
                        bytes.extend([0, last].iter().take(len));
                        members[seed % 2].send(&bytes);
                        sent += 1;
                        for (at, member) in members.iter().enumerate().filter(|(at, _)| *at != seed % 2) {
                            assert_eq!(
                                member.receive(),
                                bytes,
                                "{at}, v{version}, by devices: {sender_device} {reflector_device}"
                            );
                        }
                    }
                }
            }
        }
        let counters = world.counters();
        assert_eq!(counters.copies - before.copies, sent * 3, "{counters:?}");
        // All of it was done by the program: user space has received nothing.
        assert_eq!(counters.received, before.received, "{counters:?}");
        assert_eq!((counters.handed, counters.undeliverable), (0, 0), "{counters:?}");
    }
}

/// A member whose Ethernet address is not known yet gets everything too, from user space; then the program takes over.
#[test]
fn user_space_serves_until_neighbours_are_known() {
    /// Returns true if user space served first: a quick kernel has asked a quick neighbour before the first datagram is
    /// sent.
    fn try_it(version: u8) -> bool {
        let world = World::new(PlaneKind::Kernel, 2);
        let group = world.group(0, unlimited());
        let members: Vec<_> = (0..4).map(|at| world.sides[at % 2].member(version)).collect();
        world.until("all have been heard", |counters| counters.control == 4);
        // Both ends forget each other, so that neither asks before there is a datagram to send.
        for family in ["-4", "-6"] {
            for (number, side) in world.sides.iter().enumerate() {
                side.namespace.ip(&[family, "neigh", "flush", "dev", "e0", "nud", "all"]).unwrap();
                let device = format!("d{number}");
                world.reflector.ip(&[family, "neigh", "flush", "dev", &device, "nud", "all"]).unwrap();
            }
        }
        for member in &members {
            world.join(group, member, false);
        }
        let (mut number, from) = (0, Instant::now());
        loop {
            let before = world.counters();
            let bytes = payload(50, number);
            members[0].send(&bytes);
            for member in &members[1..] {
                assert_eq!(member.receive(), bytes, "{number}");
            }
            number += 1;
            let counters = world.until("it was copied", |counters| counters.copies == 3 * number as u64);
            if counters.handed == before.handed {
                break;
            }
            assert!(from.elapsed() < PATIENCE, "the program never takes over: {counters:?}");
        }
        for member in &members {
            assert!(member.rest().is_empty());
        }
        number > 1
    }
    for version in [4, 6] {
        assert!((0..10).any(|_| try_it(version)), "neighbours were known from the start, again and again");
    }
}

/// A neighbour that answers for an address by another card soon gets its frames there.
#[test]
fn another_ethernet_address_is_followed() {
    let world = World::new(PlaneKind::Kernel, 2);
    let group = world.group(0, unlimited());
    let members = known_members(&world, group, 2, 4);
    members[0].send(b"before");
    assert_eq!(members[1].receive(), b"before");
    let mac = "02:00:00:00:77:99";
    world.sides[1].namespace.ip(&["link", "set", "e0", "address", mac]).unwrap();
    let address = members[1].address.ip().to_string();
    world
        .reflector
        .ip(&["neigh", "replace", &address, "lladdr", mac, "dev", "d1", "nud", "reachable"])
        .unwrap();
    let from = Instant::now();
    while members[1].rest().is_empty() {
        assert!(from.elapsed() < PATIENCE, "the old address is still used: {:?}", world.counters());
        members[0].send(b"after");
    }
    assert_eq!(world.counters().handed, 0);
}

/// The loss of a device does not affect members behind others.
#[test]
fn a_device_that_goes_takes_its_members_only() {
    let world = World::new(PlaneKind::Kernel, 2);
    let group = world.group(0, unlimited());
    let members = known_members(&world, group, 4, 4);
    world.reflector.ip(&["link", "delete", "d1"]).unwrap();
    for number in 0..50 {
        members[0].send(&payload(60, number));
        assert_eq!(members[2].receive(), payload(60, number));
    }
    let counters = world.until("the others were tried", |counters| counters.undeliverable == 100);
    assert_eq!(counters.copies, 50, "{counters:?}");
    // A member who joins by the device that is left is served by the program as well.
    let late = world.sides[0].member(4);
    world.join(group, &late, false);
    members[0].send(b"late");
    assert_eq!(late.receive(), b"late");
    assert_eq!(world.counters().handed, 0);
}

/// More lanes than the program goes through.
#[test]
fn more_lanes_than_the_program_has_are_left_to_user_space() {
    let world = World::new(PlaneKind::Kernel, 9);
    let group = world.group(0, unlimited());
    let members = known_members(&world, group, 8, 4);
    members[0].send(b"eight");
    for member in &members[1..] {
        assert_eq!(member.receive(), b"eight");
    }
    assert_eq!(world.counters().handed, 0);
    let ninth = world.sides[8].member(4);
    world.join(group, &ninth, false);
    members[0].send(b"nine");
    for member in members[1..].iter().chain([&ninth]) {
        assert_eq!(member.receive(), b"nine");
    }
    let counters = world.until("it was finished", |counters| counters.copies == 15);
    assert_eq!((counters.handed, counters.handed_lost), (1, 0), "{counters:?}");
}

/// A group with as many places as the program copies to, and then a larger one.
#[test]
fn a_large_group_is_copied_and_a_larger_one_left_to_user_space() {
    let world = World::new(PlaneKind::Kernel, 1);
    let group = world.group(0, GroupOptions { members_max: 10_000, ..unlimited() });
    let members = known_members(&world, group, 2, 4);
    let path = members[0].path;
    world
        .reflector
        .ip(&["route", "add", "10.99.0.0/16", "via", &members[0].address.ip().to_string()])
        .unwrap();
    // They are told nothing of the ports that nobody listens on: that would be many words.
    world.sides[0].namespace.ip(&["route", "add", "blackhole", "10.99.0.0/16"]).unwrap();
    let join = |hosts: std::ops::Range<u32>| {
        world.change(move |table| {
            for host in hosts {
                let address = Ipv4Addr::from(0x0a63_0000 + host);
                table.join(group, path, SocketAddr::new(address.into(), 9), false, 0);
            }
        });
    };
    join(0..4000);
    members[0].send(b"to 4001");
    let counters = world.until("everybody was sent it", |counters| counters.copies == 4001);
    assert_eq!((counters.admitted, counters.undeliverable), (1, 0), "{counters:?}");
    assert_eq!(members[1].receive(), b"to 4001");
    join(4000..5000);
    let before = world.counters().handed;
    members[0].send(b"to 5001");
    let counters = world.until("everybody was sent it", |counters| counters.copies == 4001 + 5001);
    assert_eq!(members[1].receive(), b"to 5001");
    assert_eq!(counters.handed, before + 1, "{counters:?}");
    assert!(members[1].rest().is_empty());
}

/// A datagram that is handed over goes past all that stands before sockets: firewalls, routes, and whoever marks packets.
#[test]
fn nothing_between_program_and_socket_disturbs_what_is_handed_over() {
    let world = World::new(PlaneKind::Kernel, 2);
    let group = world.group(0, GroupOptions { sequence: true, ..unlimited() });
    let members = known_members(&world, group, 2, 4);
    // A route for the sender that leads nowhere makes the stack drop what comes from there; the program comes before it.
    let host = members[0].address.ip().to_string();
    world.reflector.sysctl("net/ipv4/conf/d0/rp_filter", "1").unwrap();
    world.reflector.ip(&["route", "add", "blackhole", &host]).unwrap();
    for number in 0..20 {
        members[0].send(&payload(30, number));
        assert!(members[1].receive().ends_with(&payload(30, number)));
    }
    let counters = world.counters();
    assert_eq!((counters.handed, counters.handed_lost, counters.copies), (20, 0, 20), "{counters:?}");
}
