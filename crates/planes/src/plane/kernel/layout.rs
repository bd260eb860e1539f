//! The layout of the shared arrays' words: `bpf/reflect.h`, as Rust.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nacre_reflect::rate::BucketIndex;
use nacre_reflect_bpf::constant;

use super::netlink::Mac;

/// The numbers of words of a place, a lane, a group, a processor's flight, and the totals.
pub(super) const PLACE_WORDS: usize = constant::PLACE_BYTES as usize / 8;
pub(super) const LANE_WORDS: usize = constant::LANE_BYTES as usize / 8;
pub(super) const GROUP_WORDS: usize = constant::GROUP_BYTES as usize / 8;
pub(super) const FLIGHT_WORDS: usize = constant::FLIGHT_BYTES as usize / 8;
pub(super) const TOTALS_WORDS: usize = constant::TOTALS_BYTES as usize / 8;

/// Indices of words of a place: port, sum and next hop; the Ethernet address and flags.
pub(super) const PLACE_ENTRY: usize = 2;
pub(super) const PLACE_HOP: usize = 3;

/// Indices of words of a lane.
pub(super) const LANE_REGION: usize = 0;
pub(super) const LANE_DEVICE: usize = 1;
pub(super) const LANE_MAC: usize = 2;
pub(super) const LANE_LIVE: usize = 6;

/// Indices of words of a group.
pub(super) const GROUP_FLAGS: usize = 0;
pub(super) const GROUP_MEMBERS: usize = 1;
pub(super) const GROUP_RATES: usize = 2;
pub(super) const GROUP_LANES: usize = 6;
pub(super) const GROUP_FINISHED: usize = 10;
pub(super) const GROUP_NUMBER: usize = 11;
pub(super) const GROUP_ADDRESS_RATE: usize = 12;
pub(super) const GROUP_BUCKET: usize = 16;
pub(super) const GROUP_HANDED: usize = 17;
pub(super) const GROUP_DATAGRAMS: usize = 18;
pub(super) const GROUP_COPIES: usize = 19;
pub(super) const GROUP_OVER_RATE: usize = 20;
pub(super) const GROUP_BACKLOG: usize = 21;

/// Indices of words of the totals.
pub(super) const TOTALS_FINISHED: usize = 0;
pub(super) const TOTALS_BOUND: usize = 1;
pub(super) const TOTALS_INCOMPLETE: usize = 2;
pub(super) const TOTALS_HOLD: usize = 3;
pub(super) const TOTALS_RESCUE_BYTES: usize = 4;
pub(super) const TOTALS_HANDED: usize = 8;

/// The bytes of the hashes' keys and values.
pub(super) type SenderKey = [u8; constant::SENDER_KEY_BYTES as usize];
pub(super) type SenderValue = [u8; constant::SENDER_BYTES as usize];
pub(super) type LocalKey = [u8; constant::LOCAL_KEY_BYTES as usize];

/// The number of counters of one processor: `struct counters`.
pub(super) const COUNTERS: usize = constant::COUNTERS_BYTES as usize / 8;

/// Returns an address in the form of the arrays.
pub(super) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the ones' complement sum of an address.
pub(super) fn sum(address: IpAddr) -> u16 {
    let octets = octets(address);
    let part = if address.is_ipv4() { &octets[12..] } else { &octets[..] };
    let sum: u32 = part.chunks(2).map(|pair| u32::from(u16::from_ne_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Returns an address without the IPv6 mapping that a socket of both families gives to IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(six) => match six.ip().to_canonical() {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), six.port()),
            IpAddr::V6(_) => address,
        },
    }
}

fn link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if Ipv6Addr::is_unicast_link_local(&address))
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|at| {
        let word = bytes[at * 8..at * 8 + 8].try_into();
        u64::from_ne_bytes(word.expect("eight bytes were taken"))
    })
}

/// Returns the words of a place for an address. `hop` is a word of [`hop`].
pub(super) fn place(address: SocketAddr, entry: u32, hop: u64) -> [u64; PLACE_WORDS] {
    let mut bytes = [0; PLACE_WORDS * 8];
    bytes[..16].copy_from_slice(&octets(address.ip()));
    bytes[16..18].copy_from_slice(&address.port().to_be_bytes());
    bytes[18..20].copy_from_slice(&sum(address.ip()).to_ne_bytes());
    bytes[20..24].copy_from_slice(&entry.to_ne_bytes());
    bytes[24..].copy_from_slice(&hop.to_ne_bytes());
    words(&bytes)
}

/// Returns the `entry` of a place.
pub(super) fn entry(place: &[u64; PLACE_WORDS]) -> u32 {
    (place[2] >> 32) as u32
}

/// Returns the last word of a place whose member is reached by this Ethernet address; without one, that of a gap.
pub(super) fn hop(mac: Option<Mac>) -> u64 {
    mac.map_or(0, |mac| mac_word(mac) | constant::PLACE_LIVE << 48)
}

fn mac_word(mac: Mac) -> u64 {
    u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
}

/// Returns the word with the places of a lane.
pub(super) fn region(base: u32, count: u32, generation: u8) -> u64 {
    u64::from(base)
        | u64::from(count) << constant::REGION_COUNT_SHIFT
        | u64::from(generation) << constant::REGION_GENERATION_SHIFT
}

/// Returns the word with a lane's device, and the longest packet that it takes.
pub(super) fn device(index: u32, mtu: u32) -> u64 {
    u64::from(index) | u64::from(mtu) << 32
}

/// Returns the word with a lane's Ethernet address and its port.
pub(super) fn lane_mac(mac: Mac, local: SocketAddr) -> u64 {
    mac_word(mac) | u64::from(local.port().to_be()) << 48
}

/// Returns a lane's words from [`LANE_MAC`] on.
pub(super) fn lane_local(mac: Mac, local: SocketAddr) -> [u64; 4] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&lane_mac(mac, local).to_ne_bytes());
    bytes[8..10].copy_from_slice(&sum(local.ip()).to_ne_bytes());
    bytes[12..28].copy_from_slice(&octets(local.ip()));
    words(&bytes)
}

/// Returns the key of a sender. A link-local address identifies one only together with its device.
pub(super) fn sender_key(address: SocketAddr, local_port: u16, device: u32) -> SenderKey {
    let mut key = [0; constant::SENDER_KEY_BYTES as usize];
    key[..16].copy_from_slice(&octets(address.ip()));
    key[16..18].copy_from_slice(&address.port().to_be_bytes());
    key[18..20].copy_from_slice(&local_port.to_be_bytes());
    if link_local(address.ip()) {
        key[20..].copy_from_slice(&device.to_ne_bytes());
    }
    key
}

/// Returns the value of a sender.
pub(super) fn sender_value(
    group: u32,
    device: u32,
    flags: u64,
    lane: u32,
    bucket: BucketIndex,
) -> SenderValue {
    let mut value = [0; constant::SENDER_BYTES as usize];
    value[..4].copy_from_slice(&group.to_ne_bytes());
    value[4..8].copy_from_slice(&device.to_ne_bytes());
    value[8..12].copy_from_slice(&(flags as u32).to_ne_bytes());
    value[12..16].copy_from_slice(&lane.to_ne_bytes());
    value[16..].copy_from_slice(&bucket.0.to_ne_bytes());
    value
}

/// Returns the key of one of the reflector's addresses.
pub(super) fn local_key(address: SocketAddr) -> LocalKey {
    let mut key = [0; constant::LOCAL_KEY_BYTES as usize];
    key[..16].copy_from_slice(&octets(address.ip()));
    key[16..18].copy_from_slice(&address.port().to_be_bytes());
    key
}
