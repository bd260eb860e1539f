//! The `xdp` plane where members are behind one device, so that the program in the driver copies. It needs root and
//! iproute2, for its network namespaces. The contract that the plane keeps is tested in `contract`.

#[path = "contract/world.rs"]
#[allow(dead_code, reason = "the world is the contract's, and has more than is needed here")]
mod world;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aya::programs::{TestRun, TestRunOptions};
use nacre_planes::forward::{ForwardOptions, Listeners};
use nacre_planes::plane::{CopyCounts, Plane, PlaneKind, PlaneOptions, Xdp, auto, open};
use nacre_planes::testbed::Testbed;
use nacre_reflect::rate::Rate;
use nacre_reflect::table::{GroupId, GroupOptions, Path, Table};
use nacre_reflect::wire;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use world::{Member, PORT, World};

fn unlimited() -> GroupOptions {
    GroupOptions {
        group_rate: Rate::UNLIMITED,
        member_rate: Rate::UNLIMITED,
        // Everything is wanted, however late.
        max_age_ms: 0,
        ..GroupOptions::default()
    }
}

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

/// A pair of virtual devices holds 256 frames until the other end takes some, which it is told to do at the end of a
/// broadcast: so the first copies of a datagram to more members fit, and the others do not.
#[test]
fn what_a_ring_does_not_hold_is_finished_by_user_space_in_order() {
    for version in [4, 6] {
        let world = World::new(PlaneKind::Xdp, 1);
        let group = world.group(0, unlimited());
        let members = world.members(group, 300, version);
        for number in 0..200 {
            members[0].send(&numbered(0, number, 100));
            members[1].send(&numbered(1, number, 33));
        }
        for (at, member) in members.iter().enumerate() {
            let mut next = HashMap::from([(0, 0), (1, 0)]);
            next.remove(&(at as u32));
            while next.values().any(|&next| next < 200) {
                let bytes = member.receive();
                let (sender, number) = read(&bytes);
                assert_eq!(bytes, numbered(sender, number, if sender == 0 { 100 } else { 33 }));
                let next = next.get_mut(&sender).expect("nobody gets a copy of its own");
                assert_eq!(number, *next, "{}", member.address);
                *next += 1;
            }
        }
        let counters = world.counters();
        assert!(counters.handed > 0, "{counters:?}");
        assert_eq!((counters.admitted, counters.copies), (400, 400 * 299), "{counters:?}");
        assert!(members.iter().all(|member| member.rest().is_empty()));
    }
}

/// Sends as fast as possible for a time. Returns the number of datagrams sent.
fn flood(member: &Member, sender: u32, time: Duration) -> u32 {
    let from = std::time::Instant::now();
    let mut sent = 0;
    while from.elapsed() < time {
        sent += u32::from(member.socket.send(&numbered(sender, sent, 100)).is_ok());
    }
    sent
}

#[test]
fn several_senders_at_once_lose_nothing_and_keep_their_order() {
    let options = ForwardOptions { backlog_datagrams: 200, ..ForwardOptions::default() };
    let world = World::with_options(PlaneKind::Xdp, 1, options);
    let group = world.group(0, unlimited());
    let members = world.members(group, 90, 4);
    let sent: u32 = std::thread::scope(|scope| {
        let senders = [0, 1, 2]
            .map(|at| (at, &members[at]))
            .map(|(at, member)| scope.spawn(move || flood(member, at as u32, Duration::from_millis(300))));
        senders.into_iter().map(|sender| sender.join().unwrap()).sum()
    });
    let counters = world.until("all is admitted or refused, and nothing waits", |counters| {
        let known = counters.admitted + counters.backlog + counters.socket_full;
        known == u64::from(sent) && counters.copies == counters.admitted * 89
    });
    assert_eq!((counters.undeliverable, counters.handed_lost), (0, 0), "{counters:?}");
    let (mut got, mut last) = (0, HashMap::new());
    let from = std::time::Instant::now();
    while got < counters.copies && from.elapsed() < world::PATIENCE {
        for (at, member) in members.iter().enumerate() {
            for bytes in member.rest() {
                let (sender, number) = read(&bytes);
                let before = last.insert((at, sender), number);
                assert!(before.is_none_or(|before| before < number), "{number} after {before:?}");
                got += 1;
            }
        }
    }
    assert_eq!(got, counters.copies, "{counters:?}");
}

/// Some members stay and some come and go, so that the lane is rewritten at other places again and again.
#[test]
fn who_comes_and_goes_costs_nobody_a_datagram() {
    let world = World::new(PlaneKind::Xdp, 1);
    let group = world.group(0, unlimited());
    let stay = world.members(group, 5, 4);
    let come: Vec<_> = (0..120).map(|_| world.sides[0].member(4)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::Relaxed) {
                stay[0].send(&numbered(0, number, 60));
                assert_eq!(read(&stay[1].receive()), (0, number));
                number += 1;
            }
            number
        });
        for round in 0..6 {
            for member in &come {
                world.join(group, member, false);
            }
            for (at, member) in come.iter().enumerate() {
                if at % 4 != round % 4 {
                    world.leave(0, member);
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
}

/// A lane that grows outgrows its row again and again: all rows together are more than there are places.
#[test]
fn rows_that_a_lane_has_outgrown_are_used_again() {
    let mut testbed = Testbed::new().unwrap();
    let (reflector, router) = (testbed.namespace("reflector").unwrap(), testbed.namespace("router").unwrap());
    testbed.link((&reflector, "r0"), (&router, "m0")).unwrap();
    for (namespace, device) in [(&reflector, "r0"), (&router, "m0")] {
        namespace.ring(device).unwrap();
    }
    reflector.address("r0", "10.77.0.1/16").unwrap();
    let way = ["10.77.0.2", "lladdr", "02:00:00:00:00:02", "dev", "r0", "nud", "permanent"];
    reflector.ip(&[&["neighbour", "replace"][..], &way].concat()).unwrap();
    reflector.ip(&["route", "add", "default", "via", "10.77.0.2"]).unwrap();
    let path = Path {
        device: reflector.device("r0").unwrap(),
        local: SocketAddr::from((Ipv4Addr::new(10, 77, 0, 1), PORT)),
    };
    reflector.run(|| {
        let listeners = Listeners::open(&[path.local]).unwrap();
        let options = PlaneOptions { members_max: 4096, ..PlaneOptions::default() };
        let mut plane = Xdp::open(&listeners, &options).unwrap();
        let mut table = Table::new();
        let group = table.set_group(GroupId { port: PORT, id: 0 }, unlimited());
        let from = std::time::Instant::now();
        let mut number = 0_u16;
        while number < 2000 {
            let [high, low] = number.to_be_bytes();
            let address = SocketAddr::from((Ipv4Addr::new(203, 0, high, low), 9000));
            let member = table.join(group, path, address, false, 0);
            table.take_changes(|table, change| plane.follow(table, change).unwrap());
            if plane.kernel().mirror().may_have_only_lane(group) {
                number += 1;
                continue;
            }
            // There is no row that is long enough yet: whoever comes after those are free is shown again.
            assert!(from.elapsed() < world::PATIENCE, "{number} members have their places, and no more");
            table.leave(member);
            table.take_changes(|table, change| plane.follow(table, change).unwrap());
            plane.maintain(&table).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

/// A plane that was chosen because it costs the least leaves small groups to the program that copies them for less.
#[test]
fn the_chosen_plane_copies_small_groups_at_the_hook() {
    let world = World::new(PlaneKind::Batch, 1);
    world.with(|desk, forwarder| {
        let (plane, why) = auto(forwarder.listeners(), &PlaneOptions::default()).unwrap();
        assert_eq!(plane.kind(), PlaneKind::Xdp, "{why}");
        forwarder.set_plane(desk, plane).unwrap();
    });
    for (id, count) in [(1, 4_usize), (2, 30)] {
        let group = world.group(id, unlimited());
        let members = world.members(group, count, 4);
        let before = world.counters().copy_counts;
        // The sockets have some until they were found empty.
        for number in 0.. {
            members[0].send(&numbered(0, number, 60));
            for member in &members[1..] {
                assert_eq!(read(&member.receive()), (0, number));
            }
            let copies = u64::from(number + 1) * (count as u64 - 1);
            let sum = |copy_counts: CopyCounts| {
                copy_counts.driver + copy_counts.hook + copy_counts.frames + copy_counts.sockets
            };
            let counters =
                world.until("all was counted", |counters| sum(counters.copy_counts) == sum(before) + copies);
            let (hook, driver) =
                (counters.copy_counts.hook - before.hook, counters.copy_counts.driver - before.driver);
            let (own, other) = if count < 9 { (hook, driver) } else { (driver, hook) };
            assert_eq!(other, 0, "{count}: {counters:?}");
            if own > 0 {
                break;
            }
            assert!(number < 3000, "no program copies: {counters:?}");
        }
    }
}

/// A device whose other end has no ring of its own takes no frames of programs: the error says so, and how to change
/// it.
#[test]
fn a_device_that_sends_no_frames_of_programs_is_refused_with_a_sentence() {
    let mut testbed = nacre_planes::testbed::Testbed::new().unwrap();
    let (here, there) = (testbed.namespace("r").unwrap(), testbed.namespace("m").unwrap());
    testbed.link((&here, "d0"), (&there, "e0")).unwrap();
    let error = here.run(|| {
        let listeners = Listeners::open(&[SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT)]).unwrap();
        open(PlaneKind::Xdp, &listeners, &PlaneOptions::default()).err().expect("it has no way to members")
    });
    assert_eq!(
        error.to_string(),
        "the xdp plane cannot be put on a device: the driver of d0 does not send frames of programs (a pair of virtual \
         devices does when its other end has `gro on`, or a program of its own)"
    );
}

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// The properties of a generated frame, some of which may be wrong.
#[derive(Clone, Debug)]
struct Recipe {
    ipv6: bool,
    known: bool,
    mac_wrong: bool,
    port: u16,
    control: bool,
    payload: usize,
    checksum: u8,
    trailer: usize,
    /// The position and the value of a changed byte.
    change: Option<(usize, u8)>,
    cut: Option<usize>,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let payload = prop_oneof![0..80_usize, 1200..1500_usize];
    let trailer = prop_oneof![8 => Just(0_usize), 1 => 1..40_usize];
    let mostly = |rare: f64| prop::bool::weighted(rare);
    (
        (any::<bool>(), prop::bool::weighted(0.9), mostly(0.05)),
        prop_oneof![9 => Just(PORT), 1 => any::<u16>()],
        (mostly(0.1), payload, 0..5_u8, trailer),
        prop::option::weighted(0.5, (0..100_usize, 1..=255_u8)),
        prop::option::weighted(0.1, 0..100_usize),
    )
        .prop_map(
            |((ipv6, known, mac_wrong), port, (control, payload, checksum, trailer), change, cut)| Recipe {
                ipv6,
                known,
                mac_wrong,
                port,
                control,
                payload,
                checksum,
                trailer,
                change,
                cut,
            },
        )
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the sum of the pseudo-header: addresses, protocol and length.
fn pseudo(addresses: &[u8], length: usize) -> u32 {
    sum(addresses) + 17 + length as u32
}

fn frame(recipe: &Recipe, mac: [u8; 6], from: SocketAddr, to: IpAddr) -> Vec<u8> {
    let mut payload: Vec<u8> = (0..recipe.payload).map(|at| at as u8).collect();
    if recipe.control && payload.len() >= wire::MAGIC.len() {
        payload[..wire::MAGIC.len()].copy_from_slice(&wire::MAGIC);
    }
    let length = 8 + payload.len();
    let mut bytes = mac.to_vec();
    bytes[0] ^= u8::from(recipe.mac_wrong) << 1;
    bytes.extend([2, 9, 9, 9, 9, 9]);
    let addresses = match (from.ip(), to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut head = vec![0x45, 0];
            head.extend((20 + length as u16).to_be_bytes());
            head.extend([0, 0, 0x40, 0, 7, 17, 0, 0]);
            head.extend(from.octets());
            head.extend(to.octets());
            let check = !fold(sum(&head));
            head[10..12].copy_from_slice(&check.to_be_bytes());
            bytes.extend([8, 0]);
            bytes.extend(&head);
            head[12..].to_vec()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend((length as u16).to_be_bytes());
            bytes.extend([17, 9]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
            [from.octets(), to.octets()].concat()
        }
        _ => panic!("both are of a family"),
    };
    let at = bytes.len();
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(recipe.port.to_be_bytes());
    bytes.extend((length as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(&payload);
    let pseudo = pseudo(&addresses, length);
    let check = match recipe.checksum {
        0 | 1 => match !fold(pseudo + sum(&bytes[at..])) {
            0 => 0xffff,
            check => check,
        },
        2 => fold(pseudo),
        3 => 0,
        _ => 0x1234,
    };
    bytes[at + 6..at + 8].copy_from_slice(&check.to_be_bytes());
    bytes.extend(std::iter::repeat_n(0, recipe.trailer));
    if let Some((place, by)) = recipe.change {
        let end = bytes.len();
        bytes[place % end] ^= by;
    }
    bytes.truncate(recipe.cut.unwrap_or(usize::MAX).max(14));
    bytes
}

/// A plain model of the program: returns the end of the packet, if it is copied.
fn copied(bytes: &[u8], mac: [u8; 6], senders: &[(SocketAddr, IpAddr)]) -> Option<usize> {
    let word = |at: usize| usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1]);
    if bytes.len() < 42 || bytes[..6] != mac {
        return None;
    }
    let (udp, end, from, to): (usize, usize, IpAddr, IpAddr) = match word(12) {
        0x0800 => {
            let plain = bytes[14] == 0x45 && bytes[23] == 17 && word(20) & 0x3fff == 0;
            if !plain || fold(sum(&bytes[14..34])) != 0xffff {
                return None;
            }
            let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap());
            (34, 14 + word(16), address(26).into(), address(30).into())
        }
        0x86dd => {
            if bytes.len() < 62 || bytes[14] >> 4 != 6 || bytes[20] != 17 {
                return None;
            }
            let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap());
            (54, 54 + word(18), address(22).into(), address(38).into())
        }
        _ => return None,
    };
    if end < udp + 8 || end > bytes.len() || word(udp + 4) != end - udp {
        return None;
    }
    if end != bytes.len() && bytes.len() > 60 {
        return None;
    }
    let sender = SocketAddr::new(from, word(udp) as u16);
    if word(udp + 2) != usize::from(PORT) || !senders.contains(&(sender, to)) {
        return None;
    }
    if bytes[udp + 8..end].starts_with(&wire::MAGIC) {
        return None;
    }
    let addresses = if udp == 34 { &bytes[26..34] } else { &bytes[22..54] };
    let pseudo = pseudo(addresses, end - udp);
    let check = word(udp + 6);
    let right = fold(pseudo + sum(&bytes[udp..end])) == 0xffff
        || usize::from(fold(pseudo)) == check
        || (check == 0 && udp == 34);
    (right && end - 14 <= 1500).then_some(end)
}

/// The program in the driver does what a plain model says with any frame: copies it, or leaves it as it was.
#[test]
fn the_program_does_what_a_model_says_with_any_frame() {
    let mut testbed = nacre_planes::testbed::Testbed::new().unwrap();
    let (here, there) = (testbed.namespace("r").unwrap(), testbed.namespace("m").unwrap());
    testbed.link((&here, "d0"), (&there, "e0")).unwrap();
    there.ring("e0").unwrap();
    for address in ["10.77.0.1/24", "fd77::1/64"] {
        here.address("d0", address).unwrap();
    }
    let there_mac = "02:00:00:00:07:07";
    there.ip(&["link", "set", "e0", "address", there_mac]).unwrap();
    for address in ["10.77.0.2", "fd77::2"] {
        here.ip(&["neighbour", "replace", address, "lladdr", there_mac, "dev", "d0"]).unwrap();
    }
    let device = here.device("d0").unwrap();
    let text = here.ip(&["-o", "link", "show", "d0"]).unwrap();
    let mac = text.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let mac: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let mac: [u8; 6] = mac.try_into().unwrap();
    here.run(|| {
        let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let listeners = Listeners::open(&any.map(|ip| SocketAddr::new(ip, PORT))).unwrap();
        let mut plane = Xdp::open(&listeners, &PlaneOptions::default()).unwrap();
        let mut table = Table::new();
        let locals: [IpAddr; 2] = ["10.77.0.1".parse().unwrap(), "fd77::1".parse().unwrap()];
        let members: [IpAddr; 2] = ["10.77.0.2".parse().unwrap(), "fd77::2".parse().unwrap()];
        // One group for each family, as a group of both is not for this program.
        for (id, (local, member)) in locals.into_iter().zip(members).enumerate() {
            let group = table.set_group(GroupId { port: PORT, id: id as u32 }, unlimited());
            for port in 1000..1004 {
                let path = nacre_reflect::table::Path { device, local: SocketAddr::new(local, PORT) };
                table.join(group, path, SocketAddr::new(member, port), false, 0);
            }
        }
        table.take_changes(|table, change| plane.follow(table, change).unwrap());
        let senders: Vec<_> = (0..2)
            .flat_map(|at| (1000..1004).map(move |port| (SocketAddr::new(members[at], port), locals[at])))
            .collect();
        let program = plane.program("reflect_xdp").unwrap();
        let mut context = [0_u8; 24];
        context[12..16].copy_from_slice(&device.to_ne_bytes());
        let mut runner = TestRunner::new(ProptestConfig { cases: 6000, ..ProptestConfig::default() });
        let copies = std::cell::Cell::new(0);
        runner
            .run(&recipe(), |recipe| {
                let at = usize::from(recipe.ipv6);
                let from = SocketAddr::new(members[at], if recipe.known { 1001 } else { 999 });
                let before = frame(&recipe, mac, from, locals[at]);
                let mut after = vec![0; before.len() + 64];
                let mut context = context;
                context[4..8].copy_from_slice(&(before.len() as u32).to_ne_bytes());
                let mut options = TestRunOptions::new();
                options.data_in = Some(&before);
                options.data_out = Some(&mut after);
                options.ctx_in = Some(&context);
                let result = program.test_run(options).unwrap();
                after.truncate(result.data_size_out as usize);
                prop_assert_ne!(result.return_value, XDP_DROP);
                match copied(&before, mac, &senders) {
                    None => {
                        prop_assert_eq!(result.return_value, XDP_PASS);
                        prop_assert_eq!(&after, &before);
                    }
                    Some(end) => {
                        prop_assert_eq!(result.return_value, XDP_REDIRECT);
                        let udp = if recipe.ipv6 { 54 } else { 34 };
                        prop_assert_eq!(&after[6..12], &mac[..]);
                        let ttl = if recipe.ipv6 { after[21] } else { after[22] };
                        prop_assert_eq!(ttl, 64);
                        prop_assert_eq!(after[udp..udp + 2].to_vec(), PORT.to_be_bytes().to_vec());
                        prop_assert_eq!(&after[udp + 8..end], &before[udp + 8..end]);
                        copies.set(copies.get() + 1);
                    }
                }
                Ok(())
            })
            .unwrap();
        assert!(copies.get() > 1000, "{} of 6000 were copied", copies.get());
        assert_eq!(plane.done().datagrams, copies.get());
    });
}
