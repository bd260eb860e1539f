//! Many datagrams at once, and queues that are too small for them.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nacre_planes::forward::ForwardOptions;
use nacre_planes::plane::PlaneKind;
use nacre_reflect::rate::Rate;
use nacre_reflect::table::{GroupOptions, Path};

use crate::world::{Member, PATIENCE, PORT, World};

/// Returns a datagram with its sender and number.
pub fn numbered(sender: u32, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0x5a; len];
    bytes[..4].copy_from_slice(&sender.to_le_bytes());
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

pub fn read(bytes: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    (word(0), word(4))
}

fn unlimited() -> GroupOptions {
    GroupOptions {
        group_rate: Rate::UNLIMITED,
        member_rate: Rate::UNLIMITED,
        // Everything is wanted, however late.
        max_age_ms: 0,
        ..GroupOptions::default()
    }
}

/// The time for which more is sent than a device takes; longer where that was not enough.
pub const OVERLOAD: Duration = Duration::from_millis(150);

/// Sends as fast as possible for a time, and then until it is enough. Returns the number of datagrams sent.
pub fn flood(
    members: &[Member],
    senders: &[u32],
    len: usize,
    time: Duration,
    enough: impl Fn() -> bool,
) -> u64 {
    let from = Instant::now();
    let (mut number, mut sent) = (0, 0);
    while from.elapsed() < time || from.elapsed() < PATIENCE && !enough() {
        for _ in 0..100 {
            for &sender in senders {
                // What does not fit into the sender's own device was not sent.
                sent +=
                    u64::from(members[sender as usize].socket.send(&numbered(sender, number, len)).is_ok());
            }
            number += 1;
        }
    }
    sent
}

/// Returns whether something was refused because too much waits.
pub fn refuses(world: &World) -> bool {
    let counters = world.counters();
    counters.backlog + counters.socket_full > 0
}

/// Checks that a member got the datagrams of each sender in order, and each at most once. Returns their number.
pub fn ordered(got: &[Vec<u8>], member: &Member) -> u64 {
    let mut last: HashMap<u32, u32> = HashMap::new();
    for bytes in got {
        let (sender, number) = read(bytes);
        let before = last.insert(sender, number);
        assert!(before.is_none_or(|before| before < number), "{}: {number} after {before:?}", member.address);
    }
    got.len() as u64
}

/// Checks that all datagrams sent were admitted or refused, and that the admitted ones have arrived, and nothing else,
/// by the counters at both ends. Returns the number of admitted ones.
fn settled(world: &World, members: &[Member], sent: u64) -> u64 {
    let counters = world.until("all is admitted or refused, and nothing waits", |counters| {
        let known = counters.admitted + counters.backlog + counters.socket_full + counters.over_rate;
        known == sent && counters.copies == counters.admitted * (members.len() as u64 - 1)
    });
    assert_eq!((counters.undeliverable, counters.handed_lost), (0, 0), "{counters:?}");
    let expected = counters.admitted * (members.len() as u64 - 1);
    let from = Instant::now();
    let mut got: Vec<Vec<Vec<u8>>> = members.iter().map(|_| Vec::new()).collect();
    loop {
        for (member, got) in members.iter().zip(&mut got) {
            got.extend(member.rest());
        }
        let all = got.iter().map(|got| got.len() as u64).sum::<u64>();
        // More would be wrong, and is found below.
        if all >= expected || from.elapsed() > PATIENCE {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let got = members.iter().zip(&got).map(|(member, got)| ordered(got, member)).sum::<u64>();
    assert_eq!(got, expected, "copies of what was admitted: {counters:?}");
    counters.admitted
}

/// Ten times the rate that the device takes, from several senders.
pub fn nothing_admitted_is_lost_and_order_is_kept_under_overload(kind: PlaneKind) {
    for queue in ["tbf rate 3mbit burst 2000 limit 2000", "tbf rate 6mbit burst 5000 limit 60000"] {
        let world = World::with_options(
            kind,
            2,
            ForwardOptions { backlog_datagrams: 500, ..ForwardOptions::default() },
        );
        for side in &world.sides {
            side.queue(&world, queue);
        }
        let group = world.group(0, unlimited());
        let members = world.members(group, 10, 4);
        let sent = flood(&members, &[0, 1, 5], 100, OVERLOAD, || refuses(&world));
        let admitted = settled(&world, &members, sent);
        let counters = world.counters();
        assert!(counters.full > 0 || counters.handed > 0, "the devices were never full: {counters:?}");
        assert!(admitted < sent, "{admitted} of {sent} were admitted: that is no overload");
    }
}

/// Tries a test that a pause of the machine may spoil up to five times.
#[track_caller]
pub fn tried(attempt: impl Fn() -> Result<(), String>) {
    for _ in 0..4 {
        match attempt() {
            Ok(()) => return,
            Err(why) => eprintln!("tried again: {why}"),
        }
    }
    attempt().unwrap();
}

pub fn a_full_device_holds_up_no_other(kind: PlaneKind) {
    tried(|| {
        let world = World::new(kind, 2);
        world.sides[1].queue(&world, "tbf rate 200kbit burst 2000 limit 3000");
        let group = world.group(0, unlimited());
        let members = world.members(group, 6, 4);
        // Of these the slow device takes a second and a half.
        for number in 0..100 {
            members[0].send(&numbered(0, number, 100));
        }
        for member in [&members[2], &members[4]] {
            for number in 0..100 {
                assert_eq!(read(&member.receive()), (0, number));
            }
        }
        let early = members[5].rest().len();
        for number in early as u32..100 {
            assert_eq!(read(&members[5].receive()), (0, number));
        }
        assert_eq!(world.counters().copies, 500);
        match early < 100 {
            true => Ok(()),
            false => Err("the slow device was not slow".to_owned()),
        }
    });
}

/// A driver without room refuses, behind no queue that could keep anything.
pub fn what_a_driver_refuses_is_not_lost(kind: PlaneKind) {
    const RECEIVERS: u16 = 8;
    let options = ForwardOptions { backlog_datagrams: 300, ..ForwardOptions::default() };
    let world = World::with_options(kind, 1, options);
    let mut tap = world.reflector.tap("t0", 8).unwrap();
    world.reflector.address("t0", "10.78.0.1/24").unwrap();
    let neighbour = ["neigh", "replace", "10.78.0.2", "lladdr", "02:00:00:00:00:02", "dev", "t0"];
    world.reflector.ip(&neighbour).unwrap();
    let device = world.reflector.device("t0").unwrap();
    let group = world.group(0, unlimited());
    let members = world.members(group, 2, 4);
    for port in 0..RECEIVERS {
        let address = SocketAddr::from(([10, 78, 0, 2], 9000 + port));
        let path = Path { device, local: SocketAddr::from(([10, 78, 0, 1], PORT)) };
        world.change(move |table| table.join(group, path, address, false, 0));
    }
    // What comes out, by receiver and sender: how many, in order.
    let (expect, expected) = std::sync::mpsc::channel::<u64>();
    let reader = std::thread::spawn(move || {
        let mut frame = [0; 2048];
        let mut last: HashMap<(u16, u32), u32> = HashMap::new();
        let (mut count, mut all, from) = (0_u64, None, Instant::now());
        while all.is_none_or(|all| count < all) && from.elapsed() < PATIENCE {
            for _ in 0..32 {
                let len = match tap.read(&mut frame) {
                    Ok(len) => len,
                    Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                    Err(why) => panic!("{why}"),
                };
                let frame = &frame[..len];
                // IPv4 and UDP; the kernel may say other things by itself.
                if len < 50 || frame[12..14] != [8, 0] || frame[23] != 17 {
                    continue;
                }
                let port = u16::from_be_bytes([frame[36], frame[37]]) - 9000;
                assert!(port < RECEIVERS);
                let (sender, number) = read(&frame[42..]);
                let before = last.insert((port, sender), number);
                assert!(before.is_none_or(|before| before < number), "{port}: {number} after {before:?}");
                count += 1;
            }
            all = all.or_else(|| expected.try_recv().ok());
            // The device is slow.
            std::thread::sleep(Duration::from_millis(1));
        }
        count
    });
    let was_full = || {
        let counters = world.counters();
        counters.full > 0 || counters.handed > 0
    };
    let sent = flood(&members, &[0, 1], 100, OVERLOAD, was_full);
    let counters = world.until("all is admitted or refused, and nothing waits", |counters| {
        let known = counters.admitted + counters.backlog + counters.socket_full;
        known == sent && counters.copies == counters.admitted * u64::from(RECEIVERS + 1)
    });
    assert!(counters.full > 0 || counters.handed > 0, "the device was never full: {counters:?}");
    assert_eq!((counters.undeliverable, counters.handed_lost), (0, 0), "{counters:?}");
    let neighbours = world.reflector.ip(&["neigh", "show", "dev", "t0"]).unwrap();
    assert!(neighbours.contains("PERMANENT"), "what was given by hand is left alone: {neighbours}");
    expect.send(counters.admitted * u64::from(RECEIVERS)).unwrap();
    assert_eq!(reader.join().unwrap(), counters.admitted * u64::from(RECEIVERS), "{counters:?}");
    let got = members.iter().map(|member| ordered(&member.rest(), member)).sum::<u64>();
    assert_eq!(got, counters.admitted);
}

/// The plane is replaced while datagrams wait, and again: they go out by the new one.
pub fn another_plane_takes_over_what_waits(kind: PlaneKind) {
    let world = World::new(kind, 1);
    world.sides[0].queue(&world, "tbf rate 2mbit burst 2000 limit 3000");
    let group = world.group(0, unlimited());
    let members = world.members(group, 4, 4);
    let mut number = 0;
    for other in [PlaneKind::Batch, kind, PlaneKind::Sendto] {
        for _ in 0..100 {
            members[0].send(&numbered(0, number, 100));
            number += 1;
        }
        world.until("all is admitted or refused", |counters| {
            let known = counters.admitted + counters.backlog + counters.socket_full;
            let gone = counters.copies == counters.admitted * 3 || !other.in_kernel();
            known == u64::from(number) && gone
        });
        // A plane in the kernel may go past the device's queue, and past what is still in it.
        let queue = || world.reflector.tc(&["-s", "qdisc", "show", "dev", "d0"]).unwrap();
        while other.in_kernel() && !queue().contains("backlog 0b 0p") {
            std::thread::sleep(Duration::from_millis(1));
        }
        world.set_plane(other);
    }
    assert!(settled(&world, &members, u64::from(number)) > 0);
}

/// Beyond its bounds the backlog takes nothing, and a datagram that it refuses is refused for all members.
pub fn too_much_is_refused_whole(kind: PlaneKind) {
    let options = ForwardOptions { backlog_datagrams: 20, ..ForwardOptions::default() };
    let world = World::with_options(kind, 2, options);
    world.sides[1].queue(&world, "tbf rate 1mbit burst 2000 limit 3000");
    let group = world.group(0, unlimited());
    let members = world.members(group, 6, 4);
    for number in 0..1000 {
        members[0].send(&numbered(0, number, 200));
    }
    let admitted = settled(&world, &members, 1000);
    let counters = world.counters();
    assert!(counters.backlog > 0 && admitted < 1000, "{counters:?}");
}

/// Some members stay and some come and go: those that stay get everything.
pub fn joins_and_leaves_cost_nobody_a_datagram(kind: PlaneKind) {
    let world = World::new(kind, 2);
    let group = world.group(0, unlimited());
    let stay = world.members(group, 6, 4);
    let come: Vec<_> = (0..60).map(|at| world.sides[at % 2].member(4)).collect();
    let done = AtomicBool::new(false);
    let mut turns = 0;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::Relaxed) || number < 2000 {
                stay[0].send(&numbered(0, number, 60));
                // Not faster than it is taken: what is refused is no loss, but here it would look like one.
                if stay[1].receive().len() != 60 {
                    panic!("a datagram of another length");
                }
                number += 1;
            }
            number
        });
        for round in 0..4 {
            for member in &come {
                world.join(group, member, false);
            }
            // Others leave in each round, so that lanes are written anew at other places.
            for (at, member) in come.iter().enumerate() {
                if at % 3 != round % 3 {
                    world.leave(0, member);
                    turns += 1;
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        for member in &stay[2..] {
            for number in 0..sent {
                assert_eq!(read(&member.receive()), (0, number), "{}", member.address);
            }
            assert!(member.rest().is_empty());
        }
    });
    assert!(turns > 100);
    for member in &come {
        ordered(&member.rest(), member);
    }
}
