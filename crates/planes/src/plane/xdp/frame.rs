//! A frame that the kernel copies: all headers, except for what differs from member to member.

use std::net::{IpAddr, SocketAddr};

use nacre_reflect_bpf::constant;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
/// The flag of IPv4 not to fragment the packet.
const DONT_FRAGMENT: u16 = 0x4000;

/// The job that precedes the frame, for the program that has it copied: `struct xdp_job`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) number: u64,
    /// The first place.
    pub(super) base: u32,
    /// The number of places.
    pub(super) count: u32,
    /// The number of copies to make.
    pub(super) copies: u32,
    /// The network device.
    pub(super) device: u32,
    /// The member that gets no copy, if any.
    pub(super) except: Option<SocketAddr>,
    /// True if the job is only to check that the device takes frames.
    pub(super) quiet: bool,
}

impl Job {
    /// Writes the job to a buffer, which is emptied first.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        to.clear();
        to.extend(self.number.to_ne_bytes());
        for word in [self.base, self.count, self.copies, self.device] {
            to.extend(word.to_ne_bytes());
        }
        to.extend(self.except.map_or(0, |except| except.port()).to_be_bytes());
        to.extend([u8::from(self.except.is_none()), u8::from(self.quiet)]);
        to.extend(self.except.map_or([0; 16], |except| octets(except.ip())));
        to.resize(constant::XDP_JOB_BYTES as usize, 0);
    }
}

/// Returns an address in the form that programs use.
pub(super) fn octets(ip: IpAddr) -> [u8; 16] {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum::<u64>()
        + rest.first().map_or(0, |&last| u64::from(last) << 8)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the length of the packet in a frame, without the Ethernet header, in bytes.
pub(super) fn packet_bytes(local: SocketAddr, payload: usize) -> usize {
    payload + 8 + if local.ip().to_canonical().is_ipv4() { 20 } else { 40 }
}

/// Appends the frame. The field of the UDP checksum holds the sum of all that does not differ from member to member.
pub(super) fn write(mac: [u8; 6], local: SocketAddr, tos: u8, payload: &[u8], to: &mut Vec<u8>) {
    let length = 8 + payload.len() as u16;
    let port = local.port();
    to.extend([0; 6]);
    to.extend(mac);
    let address = match local.ip().to_canonical() {
        IpAddr::V4(ip) => {
            to.extend(ETHERTYPE_IPV4.to_be_bytes());
            to.extend([0x45, tos]);
            to.extend((20 + length).to_be_bytes());
            to.extend([0, 0]);
            to.extend(DONT_FRAGMENT.to_be_bytes());
            to.extend([constant::TTL as u8, UDP, 0, 0]);
            to.extend(ip.octets());
            to.extend([0; 4]);
            sum(&ip.octets())
        }
        IpAddr::V6(ip) => {
            to.extend(ETHERTYPE_IPV6.to_be_bytes());
            to.extend([0x60 | tos >> 4, tos << 4, 0, 0]);
            to.extend(length.to_be_bytes());
            to.extend([UDP, constant::TTL as u8]);
            to.extend(ip.octets());
            to.extend([0; 16]);
            sum(&ip.octets())
        }
    };
    to.extend(port.to_be_bytes());
    to.extend([0; 2]);
    to.extend(length.to_be_bytes());
    let same = sum(payload) + address + u64::from(UDP) + u64::from(port) + 2 * u64::from(length);
    to.extend(fold(same).to_be_bytes());
    to.extend(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that the sum is complete with the receiver's address and port, for payloads of even and odd length.
    #[test]
    fn the_checksum_is_complete_but_for_the_receiver() {
        for payload in [&b""[..], b"a", b"ab", &[0xff; 1001]] {
            for (local, to, ip_bytes) in
                [("10.0.0.1:7400", "10.9.8.7:65535", 20), ("[fd00::1]:7400", "[fd00::9:8:7]:1", 40)]
            {
                let (local, to): (SocketAddr, SocketAddr) = (local.parse().unwrap(), to.parse().unwrap());
                let mut frame = Vec::new();
                write([2; 6], local, 0, payload, &mut frame);
                let octets = |ip: IpAddr| match ip {
                    IpAddr::V4(ip) => ip.octets().to_vec(),
                    IpAddr::V6(ip) => ip.octets().to_vec(),
                };
                let udp = 14 + ip_bytes;
                let so_far = u16::from_be_bytes([frame[udp + 6], frame[udp + 7]]);
                let check = !fold(u64::from(so_far) + sum(&octets(to.ip())) + u64::from(to.port()));
                frame[udp + 2..udp + 4].copy_from_slice(&to.port().to_be_bytes());
                frame[udp + 6..udp + 8].copy_from_slice(&check.to_be_bytes());
                let pseudo = sum(&octets(local.ip()))
                    + sum(&octets(to.ip()))
                    + u64::from(UDP)
                    + (frame.len() - udp) as u64;
                assert_eq!(fold(pseudo + sum(&frame[udp..])), 0xffff);
                assert_eq!(frame.len() - 14, packet_bytes(local, payload.len()));
            }
        }
    }

    #[test]
    fn a_job_is_as_long_as_the_program_expects() {
        let mut bytes = vec![1, 2, 3];
        Job { except: Some("10.0.0.1:258".parse().unwrap()), ..Job::default() }.write(&mut bytes);
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[24..28], [1, 2, 0, 0]);
        assert_eq!(bytes[38..44], [0xff, 0xff, 10, 0, 0, 1]);
    }
}
