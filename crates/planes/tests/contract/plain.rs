//! One datagram at a time.

use std::cell::Cell;
use std::time::{Duration, Instant};

use nacre_planes::forward::Counters;
use nacre_planes::plane::{CopyCounts, PlaneKind};
use nacre_reflect::rate::Rate;
use nacre_reflect::table::{GroupOptions, Terms};
use nacre_reflect::wire;

use crate::world::{Member, PATIENCE, World, patient};

/// Returns bytes that are neither all alike nor the control protocol's.
fn payload(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7 + 1) as u8).collect()
}

/// A plane may be late to learn of neighbours, so the test waits for the copies to arrive.
pub fn everybody_but_the_sender_gets_one_copy(kind: PlaneKind) {
    let world = World::new(kind, 2);
    for (id, version) in [(1, 4), (2, 6)] {
        let group = world.group(id, patient());
        let members = world.members(group, 7, version);
        let longest = if version == 4 { 1472 } else { 1452 };
        for (round, len) in [0, 1, 50, 51, 1000, longest].into_iter().enumerate() {
            for sender in [0, 3, 6] {
                let sent = payload(len, round * 10 + sender);
                members[sender].send(&sent);
                for (at, member) in members.iter().enumerate().filter(|(at, _)| *at != sender) {
                    assert_eq!(member.receive(), sent, "{at} of {len} bytes from {sender}, v{version}");
                }
            }
        }
        for member in &members {
            assert_eq!(member.rest(), Vec::<Vec<u8>>::new());
        }
        let counters = world.with(move |_, forwarder| forwarder.group_counters(group));
        assert_eq!((counters.admitted, counters.copies), (18, 18 * 6), "{counters:?}");
    }
    let counters = world.counters();
    assert_eq!((counters.admitted, counters.copies), (36, 36 * 6), "{counters:?}");
    assert_eq!(counters.admitted_bytes, 3 * (4 * 1102 + 1472 + 1452 - 2 * 1102), "{counters:?}");
}

pub fn members_of_both_families_are_one_group(kind: PlaneKind) {
    let world = World::new(kind, 1);
    let group = world.group(0, patient());
    let (four, six) = (world.members(group, 2, 4), world.members(group, 2, 6));
    for (sender, others) in
        [(&four[0], [&four[1], &six[0], &six[1]]), (&six[1], [&four[0], &four[1], &six[0]])]
    {
        let sent = payload(100, 1);
        sender.send(&sent);
        for other in others {
            assert_eq!(other.receive(), sent, "{} to {}", sender.address, other.address);
        }
    }
}

pub fn who_wants_an_echo_gets_one(kind: PlaneKind) {
    let world = World::new(kind, 1);
    let group = world.group(0, patient());
    let members = world.members(group, 3, 4);
    world.join(group, &members[1], true);
    for sender in [1, 0] {
        members[sender].send(&payload(20, sender));
    }
    for (at, member) in members.iter().enumerate() {
        if at != 0 {
            assert_eq!(member.receive(), payload(20, 1), "{at}");
            assert_eq!(member.receive(), payload(20, 0), "{at}");
        } else {
            assert_eq!(member.receive(), payload(20, 1), "{at}");
        }
        assert!(member.rest().is_empty());
    }
}

pub fn non_members_are_refused(kind: PlaneKind) {
    let world = World::new(kind, 1);
    let group = world.group(0, patient());
    let members = world.members(group, 2, 4);
    let outsider = world.sides[0].member(4);
    outsider.send(&payload(10, 1));
    world.until("a outsider was refused", |counters| counters.non_members == 1);
    world.leave(0, &members[0]);
    members[0].send(&payload(10, 2));
    world.until("who has left is a outsider", |counters| counters.non_members == 2);
    world.join(group, &outsider, false);
    outsider.send(&payload(10, 3));
    // The first to come is the one that was sent by a member.
    assert_eq!(members[1].receive(), payload(10, 3));
    assert!(members[0].rest().is_empty());
    assert_eq!(world.counters().copies, 1);
}

pub fn what_is_for_the_reflector_is_copied_to_nobody(kind: PlaneKind) {
    let world = World::new(kind, 1);
    let group = world.group(0, patient());
    let members = world.members(group, 2, 4);
    let mut word = wire::MAGIC.to_vec();
    word.extend(payload(130, 1));
    // As a member, and as a outsider.
    let outsider = world.sides[0].member(4);
    members[0].send(&word);
    outsider.send(&word);
    // Almost the magic is payload.
    members[0].send(&word[..5]);
    assert_eq!(members[1].receive(), word[..5]);
    let mut control = world.with(|desk, _| std::mem::take(&mut desk.control));
    // Each said hello with nothing but the magic.
    let hello =
        members.iter().chain([&outsider]).map(|member| (member.address, member.path, wire::MAGIC.to_vec()));
    let words = [&members[0], &outsider].map(|member| (member.address, member.path, word.clone()));
    let mut expected: Vec<_> = hello.chain(words).collect();
    for words in [&mut control, &mut expected] {
        words.sort_by_key(|(from, _, word)| (*from, word.len()));
    }
    assert_eq!(control, expected);
    assert!(members[1].rest().is_empty());
    assert_eq!(world.counters().admitted, 1);
}

pub fn what_is_longer_than_a_path_takes_is_undeliverable_there_alone(kind: PlaneKind) {
    let world = World::new(kind, 2);
    world.sides[1].mtu(&world, "1300");
    let group = world.group(0, patient());
    let members = world.members(group, 4, 4);
    // Members 0 and 2 are behind a device that takes it, and members 1 and 3 behind one that does not.
    members[0].send(&payload(1400, 1));
    assert_eq!(members[2].receive(), payload(1400, 1));
    let counters = world.until("two copies are undeliverable", |counters| counters.undeliverable == 2);
    assert_eq!((counters.admitted, counters.copies), (1, 1), "{counters:?}");
    // One that came in fragments fits nobody's path.
    members[0].send(&payload(3000, 2));
    let counters = world.until("three more are", |counters| counters.undeliverable == 5);
    assert_eq!((counters.admitted, counters.copies), (2, 1), "{counters:?}");
    members[0].send(&payload(1272, 3));
    for member in &members[1..] {
        assert_eq!(member.receive(), payload(1272, 3));
        assert!(member.rest().is_empty());
    }
    assert_eq!(world.counters().copies, 4);
}

pub fn groups_share_a_port(kind: PlaneKind) {
    let world = World::new(kind, 1);
    let groups = [1, 2].map(|id| world.group(id, patient()));
    let (one, two) = (world.members(groups[0], 2, 4), world.members(groups[1], 2, 4));
    one[0].send(&payload(10, 1));
    two[0].send(&payload(10, 2));
    assert_eq!(one[1].receive(), payload(10, 1));
    assert_eq!(two[1].receive(), payload(10, 2));
    // It joins the next before it leaves the last: it gets both, and sends to the next.
    world.join(groups[1], &one[0], false);
    one[0].send(&payload(10, 3));
    one[1].send(&payload(10, 4));
    for member in &two {
        assert_eq!(member.receive(), payload(10, 3));
    }
    assert_eq!(one[0].receive(), payload(10, 4));
    world.leave(2, &one[0]);
    one[0].send(&payload(10, 5));
    assert_eq!(one[1].receive(), payload(10, 5));
    for member in one.iter().chain(&two) {
        assert!(member.rest().is_empty());
    }
}

pub fn rates_are_counted_in_copies(kind: PlaneKind) {
    let world = World::new(kind, 2);
    // One copy in a thousand seconds, and twelve at once.
    let rate = Rate { copy_ns: 1_000_000_000_000, burst_ns: 12_000_000_000_000 };
    let group = world.group(0, GroupOptions { member_rate: rate, ..patient() });
    let members = world.members(group, 5, 4);
    for at in 0..10 {
        members[0].send(&payload(10, at));
    }
    // Four copies each: three datagrams are twelve.
    let counters = world.until("seven are refused", |counters| counters.over_rate == 7);
    assert_eq!((counters.admitted, counters.copies), (3, 12), "{counters:?}");
    // Another address has a rate of its own.
    members[1].send(&payload(10, 99));
    for member in &members[2..] {
        for at in [0, 1, 2, 99] {
            assert_eq!(member.receive(), payload(10, at));
        }
        assert!(member.rest().is_empty());
    }
}

pub fn leaving_and_joining_again_fills_no_bucket(kind: PlaneKind) {
    let world = World::new(kind, 1);
    let rate = Rate { copy_ns: 1_000_000_000_000, burst_ns: 12_000_000_000_000 };
    let group = world.group(0, GroupOptions { member_rate: rate, ..patient() });
    let members = world.members(group, 5, 4);
    for at in 0..20 {
        members[0].send(&payload(10, at));
        world.until("it was judged", |counters| counters.admitted + counters.over_rate == at as u64 + 1);
        if at % 2 == 0 {
            world.leave(0, &members[0]);
        }
        // With an echo, or without: neither is somebody else.
        world.join(group, &members[0], at % 3 == 0);
    }
    let counters = world.until("all were judged", |counters| counters.admitted + counters.over_rate == 20);
    // Five copies with an echo and four without: twelve are not four datagrams.
    assert!((2..=3).contains(&counters.admitted) && counters.copies <= 12, "{counters:?}");
}

/// Whoever is thrown out, or loses the right to send, is refused from the next datagram on, and nothing is charged for
/// what was refused; whoever may only send gets nothing. A plane that takes over knows all that.
pub fn nothing_is_copied_for_those_without_the_right_to_send(kind: PlaneKind) {
    let world = World::new(kind, 1);
    // All members here are at one address, and share the bucket of twelve copies.
    let rate = Rate { copy_ns: 1_000_000_000_000, burst_ns: 12_000_000_000_000 };
    let limited = world.group(0, GroupOptions { member_rate: rate, ..patient() });
    let free = world.group(1, GroupOptions { member_rate: Rate::UNLIMITED, ..patient() });
    let terms = |member: &Member| Terms::of_address(member.address, false);
    let rights = |group| {
        let members = world.members(group, 3, 4);
        let only_sends = world.sides[0].member(4);
        world.join_on(group, &only_sends, Terms { receives: false, ..terms(&only_sends) });
        (members, only_sends)
    };
    let (members, only_sends) = rights(limited);
    let sent = Cell::new(0);
    let send = |member: &Member| {
        sent.set(sent.get() + 1);
        member.send(&payload(10, sent.get()));
        let known = |counters: &Counters| counters.admitted + counters.non_members + counters.over_rate;
        world.until("it was judged", |counters| known(counters) == sent.get() as u64)
    };
    // Two copies, two, and three.
    for member in [&members[1], &members[2], &only_sends] {
        send(member);
    }
    world.leave(0, &members[1]);
    world.join_on(limited, &members[2], Terms { sends: false, ..terms(&members[2]) });
    for _ in 0..5 {
        send(&members[1]);
        send(&members[2]);
    }
    // One, two, one and one are twelve in all.
    for member in [&members[0], &only_sends, &members[0], &members[0]] {
        send(member);
    }
    let counters = send(&members[0]);
    assert_eq!((counters.non_members, counters.admitted, counters.over_rate), (10, 7, 1), "{counters:?}");
    let of_group = world.with(move |_, forwarder| forwarder.group_counters(limited));
    assert_eq!((of_group.admitted, of_group.over_rate), (7, 1), "{of_group:?}");
    for (member, expected) in
        [(&members[0], &[1, 2, 3, 15][..]), (&members[1], &[2, 3]), (&members[2], &[1, 3, 14, 15, 16, 17])]
    {
        let expected: Vec<_> = expected.iter().map(|&seed| payload(10, seed)).collect();
        for bytes in &expected {
            assert_eq!(&member.receive(), bytes, "{}", member.address);
        }
        assert!(member.rest().is_empty());
    }
    assert!(only_sends.rest().is_empty());

    let (members, only_sends) = rights(free);
    world.join_on(free, &members[2], Terms { sends: false, ..terms(&members[2]) });
    for other in [PlaneKind::Batch, kind] {
        world.set_plane(other);
        send(&members[2]);
        send(&only_sends);
        for member in &members {
            assert_eq!(member.receive(), payload(10, sent.get()), "{other} does not know who sends");
            assert!(member.rest().is_empty());
        }
    }
    assert_eq!(world.counters().non_members, 12);
    assert!(only_sends.rest().is_empty());
}

pub fn a_group_has_a_rate_of_its_own(kind: PlaneKind) {
    let world = World::new(kind, 1);
    let rate = Rate { copy_ns: 1_000_000_000_000, burst_ns: 6_000_000_000_000 };
    let group = world.group(1, GroupOptions { group_rate: rate, ..patient() });
    let other = world.group(2, patient());
    let (members, others) = (world.members(group, 3, 4), world.members(other, 2, 4));
    for member in &members {
        member.send(&payload(10, 1));
        member.send(&payload(10, 2));
    }
    let counters = world.until("three are refused", |counters| counters.over_rate == 3);
    assert_eq!((counters.admitted, counters.copies), (3, 6), "{counters:?}");
    others[0].send(&payload(10, 3));
    assert_eq!(others[1].receive(), payload(10, 3));
}

pub fn numbered_groups_number(kind: PlaneKind) {
    let world = World::new(kind, 2);
    let numbered = world.group(1, GroupOptions { sequence: true, ..patient() });
    let plain = world.group(2, patient());
    let (members, others) = (world.members(numbered, 3, 4), world.members(plain, 2, 4));
    for number in 0..5_u64 {
        members[number as usize % 2].send(&payload(33, number as usize));
        others[0].send(&payload(33, 100));
        assert_eq!(others[1].receive(), payload(33, 100));
        for (at, member) in members.iter().enumerate() {
            if at != number as usize % 2 {
                let mut expected = wire::data_head(number).to_vec();
                expected.extend(payload(33, number as usize));
                assert_eq!(member.receive(), expected);
            }
        }
    }
}

pub fn a_device_that_is_down_holds_up_nobody_else(kind: PlaneKind) {
    let world = World::new(kind, 2);
    let group = world.group(0, patient());
    let members = world.members(group, 4, 4);
    members[0].send(&payload(10, 0));
    for member in &members[1..] {
        assert_eq!(member.receive(), payload(10, 0));
    }
    world.sides[1].set(&world, "down");
    for at in 1..200 {
        members[0].send(&payload(10, at));
    }
    for at in 1..200 {
        assert_eq!(members[2].receive(), payload(10, at), "{at}");
    }
    world.until("all is over", |counters| counters.copies + counters.undeliverable == 600);
    world.sides[1].set(&world, "up");
    // What comes out again first is up to the plane, which has to learn that the device is up.
    let from = Instant::now();
    let behind = &members[1];
    behind.socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut bytes = [0; 100];
    while behind.socket.recv(&mut bytes).is_err() {
        members[0].send(&payload(10, 1000));
        let counters = world.counters();
        assert!(from.elapsed() < PATIENCE, "a device that is up again is never used again; {counters:?}");
    }
    assert_eq!(bytes[..10], payload(10, 1000));
}

pub fn a_port_that_nobody_listens_on_disturbs_nobody(kind: PlaneKind) {
    let world = World::new(kind, 1);
    let group = world.group(0, patient());
    let mut members = world.members(group, 6, 4);
    // Two have closed their sockets: the network tells the reflector for each copy.
    members.remove(4);
    members.remove(1);
    for at in 0..300 {
        members[0].send(&payload(10, at));
        for member in &members[1..] {
            assert_eq!(member.receive(), payload(10, at));
        }
    }
    let counters = world.counters();
    assert_eq!((counters.admitted, counters.undeliverable, counters.copies), (300, 0, 1500), "{counters:?}");
}

/// Returns whether the sender is behind the device of the receivers, or alone behind another.
pub fn copies_are_made_by_whom_the_plane_is_named_after(kind: PlaneKind) {
    let by = |copy_counts: CopyCounts| match kind {
        PlaneKind::Sendto | PlaneKind::Batch => copy_counts.sockets,
        PlaneKind::Ring => copy_counts.frames,
        PlaneKind::Kernel => copy_counts.hook,
        PlaneKind::Xdp => copy_counts.driver,
    };
    for sides in [1, 2] {
        let world = World::new(kind, sides);
        let mut copies = 0;
        for (id, version) in [(1, 4), (2, 6)] {
            let group = world.group(id, patient());
            let sender = world.sides[0].member(version);
            world.join(group, &sender, false);
            let behind = &world.sides[usize::from(sides) - 1];
            let members: Vec<_> = (0..4).map(|_| behind.member(version)).collect();
            for member in &members {
                world.join(group, member, false);
            }
            // Neighbours are found first.
            for round in 0.. {
                let before = world.counters().copy_counts;
                sender.send(&payload(30, round));
                for member in &members {
                    assert_eq!(member.receive(), payload(30, round));
                }
                copies += 4;
                let counters = world.until("it was counted", |counters| counters.copies == copies);
                let CopyCounts { driver, hook, frames, sockets } = counters.copy_counts;
                assert_eq!(driver + hook + frames + sockets, copies, "{counters:?}");
                if by(counters.copy_counts) - by(before) == 4 {
                    break;
                }
                assert!(round < 2000, "{kind} never copies by itself with {sides} devices: {counters:?}");
            }
        }
    }
}

/// Copies carry the sender's type of service, without the marks of congestion, and are never to be fragmented.
pub fn copies_keep_the_type_of_service_and_are_not_to_be_fragmented(kind: PlaneKind) {
    let world = World::new(kind, 1);
    let capture = world.sides[0].capture();
    for (id, version) in [(1, 4), (2, 6)] {
        let group = world.group(id, patient());
        let members = world.members(group, 3, version);
        for tos in [0xba_u8, 0x28, 0] {
            members[0].set_tos(tos);
            let sent = payload(40, usize::from(tos));
            members[0].send(&sent);
            for member in &members[1..] {
                assert_eq!(member.receive(), sent);
                let (got, fragile) = capture.copy_to(member.address, &sent);
                assert_eq!(got, tos & 0xfc, "v{version}");
                assert!(fragile, "v{version}: a copy may be fragmented");
            }
        }
    }
}
