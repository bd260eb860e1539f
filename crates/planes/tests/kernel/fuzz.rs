//! The program's decisions, on packets of all kinds, against a plain model of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nacre_planes::forward::Listeners;
use nacre_planes::plane::kernel::Kernel;
use nacre_planes::plane::{Done, Plane, PlaneOptions};
use nacre_planes::testbed::Testbed;
use nacre_reflect::rate::Rate;
use nacre_reflect::table::{GroupId, GroupIndex, GroupOptions, Path, Table};
use nacre_reflect::wire;

use crate::run::{self, run};

const NEXT: i32 = -1;
const DROP: i32 = 2;
const LOOPBACK: u32 = 1;

/// The expected fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// It goes up as it is, without a mark.
    Up,
    /// It is dropped, admitted and handed over through the ring.
    Handed(GroupIndex),
    /// It is dropped, as a non-member's.
    NonMember,
    /// It is dropped, and this many copies were made.
    Copied(u64),
}

/// The members of a group: their addresses, and the devices that they come by.
struct Group {
    index: GroupIndex,
    local: SocketAddr,
    members: Vec<(SocketAddr, u32)>,
    by_user: bool,
}

/// Pseudo-random numbers that are repeatable from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(word(&[pair[0], *pair.get(1).unwrap_or(&0)], 0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The rules, one after the other, by an ordinary reading of the packet.
fn model(groups: &[Group], frame: &[u8]) -> Expected {
    let up = Expected::Up;
    if frame[..6] != [0; 6] {
        return up;
    }
    let ip = &frame[14..];
    let (from, to, udp, header) = match word(frame, 12) {
        0x0800 => {
            if ip.len() < 28
                || ip[0] != 0x45
                || ip[9] != 17
                || word(ip, 6) & 0x3fff != 0
                || sum(&ip[..20]) != 0xffff
            {
                return up;
            }
            let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
            (address(12), address(16), usize::from(word(ip, 2)).checked_sub(20), 20)
        }
        0x86dd => {
            if ip.len() < 48 || ip[0] >> 4 != 6 || ip[6] != 17 || word(ip, 46) == 0 {
                return up;
            }
            let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
            let (from, to) = (address(8), address(24));
            if from.to_canonical().is_ipv4() || to.to_canonical().is_ipv4() {
                return up;
            }
            (from, to, Some(usize::from(word(ip, 4))), 40)
        }
        _ => return up,
    };
    let datagram = &ip[header..];
    let len = usize::from(word(datagram, 4));
    // All lengths agree, but for what fills up a short frame.
    if udp != Some(len) || len < 8 || len > datagram.len() || (len < datagram.len() && frame.len() > 60) {
        return up;
    }
    let to = SocketAddr::new(to, word(datagram, 2));
    let from = SocketAddr::new(from, word(datagram, 0));
    if !groups.iter().any(|group| group.local == to) || datagram[8..len].starts_with(&wire::MAGIC) {
        return up;
    }
    let same = |address: &SocketAddr| (address.ip(), address.port()) == (from.ip(), from.port());
    let sender = groups.iter().filter(|group| group.local.port() == to.port()).find_map(|group| {
        group.members.iter().find(|(address, _)| same(address)).map(|(_, device)| (group, device))
    });
    match sender {
        None => Expected::NonMember,
        Some((_, device)) if *device != LOOPBACK => up,
        // Of one family only, for the program.
        Some((group, _)) if group.by_user || group.local.is_ipv4() != to.is_ipv4() => {
            Expected::Handed(group.index)
        }
        Some((group, _)) => Expected::Copied(group.members.len() as u64 - 1),
    }
}

/// Returns a frame that may be anything from right to wrong in several ways.
fn frame(random: &mut Random, groups: &[Group]) -> Vec<u8> {
    let group = random.of(groups);
    let to = if random.one_in(6) { random.of(groups).local } else { group.local };
    let mut from = random.of(&group.members).0;
    if random.one_in(5) {
        let other = random.of(groups);
        from = random.of(&other.members).0;
    }
    if random.one_in(5) {
        from.set_port(from.port() ^ 1 << random.below(16));
    }
    let mut payload: Vec<u8> =
        (0..*random.of(&[0, 1, 6, 7, 8, 18, 50, 200, 1400])).map(|_| random.next() as u8).collect();
    if random.one_in(4) {
        let len = random.below(8).min(payload.len());
        payload[..len].copy_from_slice(
            &wire::MAGIC[..len.min(6)].iter().copied().chain([2, 3]).collect::<Vec<_>>()[..len],
        );
    }
    let udp = 8 + payload.len() as u16;
    let mut bytes = vec![0; 12];
    let mut pseudo = Vec::new();
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend((20 + udp).to_be_bytes());
            bytes.extend([1, 2, 0x40, 0, 64, 17, 0, 0]);
            for address in [from, to] {
                bytes.extend(address.octets());
                pseudo.extend(address.octets());
            }
        }
        (from, to) => {
            bytes.extend([0x86, 0xdd, 0x60, 1, 2, 3]);
            bytes.extend(udp.to_be_bytes());
            bytes.extend([17, 64]);
            for address in [from, to] {
                let octets = match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                bytes.extend(octets);
                pseudo.extend(octets);
            }
        }
    }
    let header = bytes.len();
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(udp.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    pseudo.extend([0, 17]);
    pseudo.extend(udp.to_be_bytes());
    pseudo.extend(&bytes[header..]);
    let check = !sum(&pseudo);
    if !random.one_in(8) {
        bytes[header + 6..header + 8]
            .copy_from_slice(&(if check == 0 { 0xffff } else { check }).to_be_bytes());
    }
    fix(&mut bytes);
    for _ in 0..[0, 0, 1, 1, 2, 3][random.below(6)] {
        spoil(random, &mut bytes, header);
    }
    // Else next to none of the spoilt ones would come past the header's sum.
    if random.one_in(2) {
        fix(&mut bytes);
    }
    bytes
}

/// Builds an ordinary frame with a datagram over IPv4, without a UDP checksum.
pub fn plain_frame(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else { panic!("IPv4") };
    let udp = 8 + payload.len() as u16;
    let mut bytes = vec![0; 12];
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend((20 + udp).to_be_bytes());
    bytes.extend([1, 2, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(udp.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    fix(&mut bytes);
    bytes
}

/// Corrects the checksum of an IPv4 header.
fn fix(bytes: &mut [u8]) {
    if bytes.len() >= 34 && bytes[12..14] == [8, 0] {
        bytes[24..26].fill(0);
        let check = !sum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&check.to_be_bytes());
    }
}

fn spoil(random: &mut Random, bytes: &mut Vec<u8>, header: usize) {
    let end = bytes.len();
    match random.below(11) {
        // One bit of the headers.
        0 | 1 => bytes[random.below(end.min(header + 16))] ^= 1 << random.below(8),
        // Cut off.
        2 => bytes.truncate(14 + random.below(end - 13)),
        // Something behind it.
        3 => bytes.extend((0..1 + random.below(40)).map(|at| at as u8)),
        // A field that says a length.
        4 => {
            let at = *random.of(&[16, 18, header + 4]);
            if at + 2 <= end {
                let near = word(bytes, at).wrapping_add(random.below(5) as u16).wrapping_sub(2);
                bytes[at..at + 2].copy_from_slice(&near.to_be_bytes());
            }
        }
        // Options of IPv4, in good order.
        5 if bytes[12..14] == [8, 0] && end >= 34 && bytes[14] == 0x45 => {
            let words = 1 + random.below(10);
            bytes[14] = 0x45 + words as u8;
            let len = word(bytes, 16).wrapping_add(4 * words as u16);
            bytes[16..18].copy_from_slice(&len.to_be_bytes());
            bytes.splice(34..34, vec![1; 4 * words]);
        }
        // A fragment.
        6 if end >= 22 => {
            let offset = *random.of(&[0x2000_u16, 1, 0x2001, 0x1fff, 0x8000]);
            bytes[20..22].copy_from_slice(&offset.to_be_bytes());
        }
        // An extension header of IPv6: hop by hop, routing, fragment, destination.
        7 if bytes[12..14] == [0x86, 0xdd] && end >= 54 => {
            bytes[20] = *random.of(&[0, 43, 44, 60]);
            let len = word(bytes, 18).wrapping_add(8);
            bytes[18..20].copy_from_slice(&len.to_be_bytes());
            bytes.splice(54..54, [17, 0, 0, 0, 0, 0, 0, 0]);
        }
        // Another protocol, above or below.
        8 if end >= 24 => {
            let at = *random.of(&[12, 13, 20, 23]);
            bytes[at] = random.next() as u8;
        }
        // For another machine.
        9 => bytes[random.below(6)] = random.next() as u8,
        // No checksum.
        _ if end >= header + 8 => bytes[header + 6..header + 8].fill(0),
        _ => {}
    }
}

/// Creates a plane with three groups whose members are behind the loopback device, except one.
fn world(other: u32, listeners: &Arc<Listeners>) -> (Kernel, Vec<Group>) {
    let mut plane = Kernel::open(listeners, &PlaneOptions::default()).unwrap();
    let mut table = Table::new();
    let mut groups = Vec::new();
    let specs: [(u16, &str, &[&str], bool); 4] = [
        (7400, "10.0.0.1", &["10.0.1.1:1000", "10.0.1.2:1001", "10.0.1.3:1002", "10.0.1.4:1003"], false),
        (7400, "fd00::1", &["[fd00::11]:1000", "[fd00::12]:1001", "[fe80::13]:1002"], false),
        (7402, "10.0.0.1", &["10.0.1.1:1000", "10.0.1.2:1000"], true),
        (7403, "fd00::1", &["[fd00::11]:1000", "[fd00::12]:7403", "[fd01::1]:1"], false),
    ];
    for (at, (port, local, members, sequence)) in specs.into_iter().enumerate() {
        let options = GroupOptions {
            sequence,
            group_rate: Rate::UNLIMITED,
            member_rate: Rate::UNLIMITED,
            ..GroupOptions::default()
        };
        let index = table.set_group(GroupId { port, id: at as u32 }, options);
        let local = SocketAddr::new(local.parse().unwrap(), port);
        let members: Vec<_> = members.iter().map(|text| (text.parse().unwrap(), LOOPBACK)).collect();
        for (address, device) in &members {
            table.join(index, Path { device: *device, local }, *address, false, 0);
        }
        groups.push(Group { index, local, members, by_user: sequence });
    }
    // One of the third group's, which is user space's anyway, comes in elsewhere.
    let local = groups[2].local;
    let elsewhere = "10.0.1.9:1000".parse().unwrap();
    table.join(groups[2].index, Path { device: other, local }, elsewhere, false, 0);
    groups[2].members.push((elsewhere, other));
    table.take_changes(|table, change| plane.follow(table, change).unwrap());
    (plane, groups)
}

/// Returns the payload of a packet that is right.
fn datagram(bytes: &[u8]) -> &[u8] {
    let udp = if bytes[12] == 8 { 34 } else { 54 };
    &bytes[udp + 8..udp + usize::from(word(bytes, udp + 4))]
}

/// Verdicts, copies and counters agree with the model for any packet, and packets that go up are unchanged.
#[test]
fn the_program_decides_as_the_model_does() {
    let seed = std::env::var("NACRE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    println!("NACRE_SEED={seed}");
    let mut testbed = Testbed::new().unwrap();
    let (here, there) = (testbed.namespace("f").unwrap(), testbed.namespace("g").unwrap());
    testbed.link((&here, "d0"), (&there, "e0")).unwrap();
    let other = here.device("d0").unwrap();
    here.run(move || {
        let listeners = Listeners::open(&["0.0.0.0:7400".parse().unwrap()]).unwrap();
        let (mut plane, groups) = world(other, &listeners);
        let program = plane.program().unwrap().fd().unwrap().try_clone().unwrap();
        let mut random = Random(seed);
        let mut seen = [0_u32; 4];
        plane.done();
        // Without this an older kernel cannot be asked for packets with a sum.
        let whole = frame(&mut Random(1), &groups);
        let summed = run(&program, &whole, run::SUMMED).is_ok();
        plane.done();
        let from = Instant::now();
        for number in 0..40_000 {
            if from.elapsed() > Duration::from_secs(20) {
                break;
            }
            let bytes = frame(&mut random, &groups);
            let flags = if summed && random.one_in(2) { run::SUMMED } else { 0 };
            let say = format!("packet {number} of NACRE_SEED={seed}, flags {flags}: {bytes:02x?}");
            let expected = model(&groups, &bytes);
            let ran = match run(&program, &bytes, flags) {
                Ok(ran) => ran,
                // The interface takes no IP packet without a whole header.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && bytes.len() < 14 + 40 => continue,
                Err(error) => panic!("{error} on {say}"),
            };
            let done = plane.done();
            let mut right = Done::default();
            let payload = |bytes: &[u8]| datagram(bytes).len() as u64;
            match expected {
                Expected::Up => assert_eq!(ran.action, NEXT, "{say}"),
                Expected::NonMember => {
                    assert_eq!(ran.action, DROP, "{say}");
                    right.non_members = 1;
                }
                Expected::Handed(group) => {
                    assert_eq!(ran.action, DROP, "{say}");
                    let rescue = plane.rescue().expect("it is in the ring");
                    assert_eq!(
                        (rescue.group, rescue.lane, rescue.position),
                        (group, 0, 0),
                        "{rescue:?} {say}"
                    );
                    assert_eq!(rescue.payload, datagram(&bytes), "{rescue:?} {say}");
                    plane.finished(group);
                    right = Done { datagrams: 1, bytes: payload(&bytes), handed: 1, ..right };
                }
                Expected::Copied(copies) => {
                    assert_eq!(ran.action, DROP, "{say}");
                    right = Done { datagrams: 1, bytes: payload(&bytes), copies, ..right };
                }
            }
            assert_eq!(done, right, "{expected:?} {say}");
            if ran.action == NEXT {
                assert_eq!(ran.packet, bytes, "{say}");
            }
            seen[match expected {
                Expected::Up => 0,
                Expected::NonMember => 1,
                Expected::Handed(_) => 2,
                Expected::Copied(_) => 3,
            }] += 1;
        }
        assert!(seen.iter().all(|seen| *seen > 100), "the packets were of one kind: {seen:?}");
        println!("{seen:?} passed up, non_members', handed, copied; with sums: {summed}");
    });
}
