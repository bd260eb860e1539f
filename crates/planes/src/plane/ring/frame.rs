//! Frames of copies: Ethernet, IP and UDP before the payload. The payload is summed once for all copies, and the sums
//! that all copies of a lane batch share are kept; a copy adds the address and the port that it goes to.

use std::net::{IpAddr, SocketAddr};

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

const ETHERNET: usize = 14;
const UDP: usize = 8;

/// Returns the length of the headers for this version of IP, in bytes.
pub(super) fn head_bytes(local: SocketAddr) -> usize {
    ETHERNET + ip_bytes(local) + UDP
}

fn ip_bytes(local: SocketAddr) -> usize {
    if local.is_ipv4() { 20 } else { 40 }
}

/// Returns the length of the IP packet of a copy, in bytes.
pub(super) fn packet_bytes(local: SocketAddr, payload: usize) -> usize {
    ip_bytes(local) + UDP + payload
}

/// Returns the sum of the internet checksum, before it is folded. As it is a sum in ones' complement, bytes need not be
/// swapped if they are read and written alike. A last odd byte is followed by a zero.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let mut sum = 0;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        sum += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    let mut rest = [0; 4];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    sum + u64::from(u32::from_ne_bytes(rest))
}

/// Folds a sum into the checksum, as it is read and written: not swapped.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn port_sum(port: u16) -> u64 {
    u64::from(u16::from_ne_bytes(port.to_be_bytes()))
}

fn ip_sum(ip: IpAddr) -> u64 {
    match ip {
        IpAddr::V4(ip) => sum(&ip.octets()),
        IpAddr::V6(ip) => sum(&ip.octets()),
    }
}

/// The headers that the copies of a lane batch share.
pub(super) struct Template {
    head: [u8; ETHERNET + 40 + UDP],
    head_len: usize,
    ip_sum: u64,
    udp_sum: u64,
}

impl Template {
    /// Creates the headers for copies from `local`, by a device with this Ethernet address.
    pub(super) fn new(mac: Mac, local: SocketAddr, tos: u8, payload: &[u8]) -> Template {
        let mut head = [0; ETHERNET + 40 + UDP];
        let udp_len = (UDP + payload.len()) as u16;
        head[6..12].copy_from_slice(&mac);
        let ip = &mut head[ETHERNET..];
        match local.ip() {
            IpAddr::V4(from) => {
                // No options; not to be fragmented; the identification of what is not fragmented means nothing.
                ip[0] = 0x45;
                ip[1] = tos;
                ip[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
                ip[6] = 0x40;
                ip[8] = 64;
                ip[9] = 17;
                ip[12..16].copy_from_slice(&from.octets());
            }
            IpAddr::V6(from) => {
                ip[0] = 0x60 | tos >> 4;
                ip[1] = tos << 4;
                ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
                ip[6] = 17;
                ip[7] = 64;
                ip[8..24].copy_from_slice(&from.octets());
            }
        }
        head[12..14].copy_from_slice(if local.is_ipv4() { &[0x08, 0x00] } else { &[0x86, 0xdd] });
        let udp = ETHERNET + ip_bytes(local);
        head[udp..udp + 2].copy_from_slice(&local.port().to_be_bytes());
        head[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        // The pseudo header holds the length once more, and the protocol.
        let udp_sum =
            ip_sum(local.ip()) + port_sum(local.port()) + 2 * port_sum(udp_len) + port_sum(17) + sum(payload);
        let ip_sum = sum(&head[ETHERNET..ETHERNET + 20]);
        Template { head, head_len: udp + UDP, ip_sum, udp_sum }
    }

    /// Writes the headers of the copy to `to`, whose next hop has this Ethernet address.
    pub(super) fn write(&self, frame: &mut [u8], mac: Mac, to: SocketAddr) {
        let frame = &mut frame[..self.head_len];
        frame.copy_from_slice(&self.head[..self.head_len]);
        frame[..6].copy_from_slice(&mac);
        let to_sum = ip_sum(to.ip());
        let udp = self.head_len - UDP;
        match to.ip() {
            IpAddr::V4(ip) => {
                frame[udp - 4..udp].copy_from_slice(&ip.octets());
                frame[ETHERNET + 10..ETHERNET + 12]
                    .copy_from_slice(&fold(self.ip_sum + to_sum).to_ne_bytes());
            }
            IpAddr::V6(ip) => frame[udp - 16..udp].copy_from_slice(&ip.octets()),
        }
        frame[udp + 2..udp + 4].copy_from_slice(&to.port().to_be_bytes());
        // A checksum of zero would say that there is none.
        let checksum = match fold(self.udp_sum + to_sum + port_sum(to.port())) {
            0 => 0xffff,
            checksum => checksum,
        };
        frame[udp + 6..udp + 8].copy_from_slice(&checksum.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes a plain checksum over bytes in network order (RFC 1071), in another way than above: that of a valid
    /// packet is 0.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    proptest! {
        #[test]
        fn checksums_are_those_of_a_plain_sum(
            v6 in any::<bool>(),
            from in any::<[u8; 16]>(),
            to in any::<[u8; 16]>(),
            ports in any::<(u16, u16)>(),
            tos in any::<u8>(),
            payload in prop::collection::vec(any::<u8>(), 0..1472),
        ) {
            let ip = |octets: [u8; 16]| match v6 {
                true => IpAddr::from(octets),
                false => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
            };
            let (local, to) = (SocketAddr::new(ip(from), ports.0), SocketAddr::new(ip(to), ports.1));
            let mut frame = vec![0xee; head_bytes(local)];
            Template::new([2, 0, 0, 0, 0, 1], local, tos, &payload).write(&mut frame, [2, 0, 0, 0, 0, 2], to);
            frame.extend_from_slice(&payload);
            prop_assert_eq!(frame.len(), ETHERNET + packet_bytes(local, payload.len()));
            let packet = &frame[ETHERNET..];
            let (addresses, udp) = match v6 {
                true => (&packet[8..40], &packet[40..]),
                false => {
                    prop_assert_eq!(plain(&packet[..20]), 0);
                    prop_assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
                    (&packet[12..20], &packet[20..])
                }
            };
            let mut summed = addresses.to_vec();
            summed.extend_from_slice(&[0, 17]);
            summed.extend_from_slice(&(udp.len() as u16).to_be_bytes());
            summed.extend_from_slice(udp);
            prop_assert_eq!(plain(&summed), 0);
            prop_assert_ne!(&udp[6..8], &[0, 0]);
            prop_assert_eq!(&udp[..2], &ports.0.to_be_bytes());
            prop_assert_eq!(&udp[2..4], &ports.1.to_be_bytes());
        }
    }
}
