//! Many datagrams at once, and queues that are too small for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nacre_reflect::forward::ForwardOptions;
use nacre_reflect::plane::Kind;
use nacre_reflect::rate::Rate;
use nacre_reflect::table::GroupOptions;

use crate::world::{Member, PATIENCE, World};

/// A datagram that says who sent it, and as which.
fn numbered(sender: u32, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0x5a; len];
    bytes[..4].copy_from_slice(&sender.to_le_bytes());
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn read(bytes: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    (word(0), word(4))
}

fn unlimited() -> GroupOptions {
    GroupOptions { group_rate: Rate::UNLIMITED, member_rate: Rate::UNLIMITED, ..GroupOptions::default() }
}

/// Sends as fast as it goes, for a time. Says how many were sent.
fn flood(members: &[Member], senders: &[u32], len: usize, time: Duration) -> u64 {
    let from = Instant::now();
    let (mut number, mut sent) = (0, 0);
    while from.elapsed() < time {
        for &sender in senders {
            // What does not fit into the sender's own device was not sent.
            sent += u64::from(members[sender as usize].socket.send(&numbered(sender, number, len)).is_ok());
        }
        number += 1;
    }
    sent
}

/// What each member got: of each sender, in order, each at most once. Gives how many.
fn ordered(got: &[Vec<u8>], who: &Member) -> u64 {
    let mut last: HashMap<u32, u32> = HashMap::new();
    for bytes in got {
        let (sender, number) = read(bytes);
        let before = last.insert(sender, number);
        assert!(before.is_none_or(|before| before < number), "{}: {number} after {before:?}", who.address);
    }
    got.len() as u64
}

/// Of what was sent all is admitted or refused, and what was admitted has arrived, and nothing else: by the counters at
/// both ends. Gives how many were admitted.
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

/// Ten times what the device takes, from several senders.
pub fn nothing_admitted_is_lost_and_order_is_kept_under_overload(kind: Kind) {
    for queue in ["tbf rate 10mbit burst 2000 limit 2000", "tbf rate 20mbit burst 5000 limit 60000"] {
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
        let sent = flood(&members, &[0, 1, 5], 100, Duration::from_millis(1000));
        let admitted = settled(&world, &members, sent);
        let counters = world.counters();
        assert!(counters.full > 0 || counters.handed > 0, "the devices were never full: {counters:?}");
        assert!(admitted < sent, "{admitted} of {sent} were admitted: that is no overload");
    }
}

pub fn a_full_device_holds_up_no_other(kind: Kind) {
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
    assert!(early < 100, "the slow device was not slow");
    for number in early as u32..100 {
        assert_eq!(read(&members[5].receive()), (0, number));
    }
    assert_eq!(world.counters().copies, 500);
}

/// Beyond its bounds the backlog takes nothing, and what it refuses it refuses for all.
pub fn too_much_is_refused_whole(kind: Kind) {
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

/// Some stay and some come and go: those who stay get everything.
pub fn joins_and_leaves_cost_nobody_a_datagram(kind: Kind) {
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
        for round in 0..8 {
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
    assert!(turns > 200);
    for member in &come {
        ordered(&member.rest(), member);
    }
}
