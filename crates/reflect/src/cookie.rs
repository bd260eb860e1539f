//! Cookies: given to an unproven address, which has to return its cookie. They cost the reflector no
//! memory.
//!
//! A cookie is the time of its creation and a keyed hash over that time, the address and port it was sent to, the
//! reflector's own port, and the group. A client that returns it has read what was sent to that address a short
//! while ago. A session is the same hash over the count of joins: a number that nobody else can guess.

use std::net::{IpAddr, SocketAddr};

use crate::table::GroupId;
use crate::wire::COOKIE_BYTES;

/// The lifetime of a cookie, in milliseconds.
pub const COOKIE_LIFE_MS: u64 = 15_000;
/// The greatest time by which a cookie may be stamped ahead of the clock, in milliseconds: it is stamped at most one
/// after the last event of its address.
const AHEAD_MS: u64 = 1000;

/// A secret of this reflector's process. A restarted one has another: older cookies and sessions are invalid then.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Creates a secret from these bytes, which must be random.
    pub fn new(bytes: [u8; 32]) -> Self {
        Secret(bytes)
    }

    /// Returns the cookie for an address, stamped `created_ms`.
    pub fn cookie(&self, group: GroupId, address: SocketAddr, created_ms: u64) -> [u8; COOKIE_BYTES] {
        let mut cookie = [0; COOKIE_BYTES];
        cookie[..4].copy_from_slice(&(created_ms as u32).to_le_bytes());
        cookie[4..].copy_from_slice(&self.hash(b'c', group, address, created_ms)[..12]);
        cookie
    }

    /// Returns the time at which a cookie was made, in milliseconds, if this reflector made it for this address and
    /// group and it is still valid.
    pub fn check(
        &self,
        cookie: &[u8; COOKIE_BYTES],
        group: GroupId,
        address: SocketAddr,
        now_ms: u64,
    ) -> Option<u64> {
        let [a, b, c, d, ..] = *cookie;
        // The cookie has the low half of its time. The whole of it is the one that is nearest to now.
        let age_ms = (now_ms as u32).wrapping_sub(u32::from_le_bytes([a, b, c, d])) as i32;
        let created_ms = now_ms.checked_sub_signed(age_ms.into())?;
        if created_ms > now_ms + AHEAD_MS || now_ms > created_ms + COOKIE_LIFE_MS {
            return None;
        }
        let expected: [u8; 12] = self.hash(b'c', group, address, created_ms)[..12].try_into().ok()?;
        let found: [u8; 12] = cookie[4..].try_into().ok()?;
        same(&expected, &found).then_some(created_ms)
    }

    /// Returns the session of a join, which is never 0.
    pub fn session(&self, group: GroupId, address: SocketAddr, join: u64) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.hash(b's', group, address, join);
        u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
    }

    /// Returns the proof of this number in a session: a secret that only who listens at the member's address gets to
    /// know.
    pub fn proof(&self, session: u64, number: u32) -> u64 {
        let mut input = [b'p'; 13];
        input[1..9].copy_from_slice(&session.to_le_bytes());
        input[9..].copy_from_slice(&number.to_le_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *blake3::keyed_hash(&self.0, &input).as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Returns a number for a source of joins: an IPv4 address, or the network of an IPv6 address (its first 64 bits),
    /// since a host that has one address of it has all of them.
    pub fn source(&self, address: IpAddr) -> u64 {
        let (family, octets) = match address.to_canonical() {
            IpAddr::V4(ip) => (4, u64::from(ip.to_bits())),
            IpAddr::V6(ip) => (6, (ip.to_bits() >> 64) as u64),
        };
        let mut input = [0; 10];
        input[0] = b'r';
        input[1] = family;
        input[2..].copy_from_slice(&octets.to_le_bytes());
        let hash = blake3::keyed_hash(&self.0, &input);
        let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    fn hash(&self, what: u8, group: GroupId, address: SocketAddr, number: u64) -> [u8; 32] {
        let mut input = [0; 34];
        input[0] = what;
        let (family, ip) = match address.ip() {
            IpAddr::V4(ip) => (4, ip.to_ipv6_mapped()),
            IpAddr::V6(ip) => (6, ip),
        };
        input[1] = family;
        input[2..18].copy_from_slice(&ip.octets());
        input[18..20].copy_from_slice(&address.port().to_le_bytes());
        input[20..22].copy_from_slice(&group.port.to_le_bytes());
        input[22..26].copy_from_slice(&group.id.to_le_bytes());
        input[26..34].copy_from_slice(&number.to_le_bytes());
        *blake3::keyed_hash(&self.0, &input).as_bytes()
    }
}

/// Compares two secrets in a time that does not tell where they differ.
pub(crate) fn same<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId { port: 7400, id: 3 };

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn a_cookie_is_good_for_its_address_group_and_time_only() {
        let secret = Secret::new([7; 32]);
        for created_ms in [0, 1000, u64::from(u32::MAX) - 3, u64::from(u32::MAX) + 1, 7 << 40] {
            let cookie = secret.cookie(GROUP, address(5), created_ms);
            for now_ms in [created_ms, created_ms + 1, created_ms + COOKIE_LIFE_MS] {
                assert_eq!(secret.check(&cookie, GROUP, address(5), now_ms), Some(created_ms));
            }
            let check = |cookie, group, address, now_ms| secret.check(cookie, group, address, now_ms);
            assert_eq!(check(&cookie, GROUP, address(6), created_ms), None);
            assert_eq!(check(&cookie, GROUP, SocketAddr::from(([192, 0, 2, 2], 5)), created_ms), None);
            assert_eq!(check(&cookie, GROUP, "[::ffff:192.0.2.1]:5".parse().unwrap(), created_ms), None);
            assert_eq!(check(&cookie, GroupId { id: 4, ..GROUP }, address(5), created_ms), None);
            assert_eq!(check(&cookie, GroupId { port: 7401, ..GROUP }, address(5), created_ms), None);
            assert_eq!(check(&cookie, GROUP, address(5), created_ms + COOKIE_LIFE_MS + 1), None);
            assert_eq!(
                check(&cookie, GROUP, address(5), created_ms + (1 << 32)),
                None,
                "the low half comes again"
            );
            assert_eq!(check(&[0; 16], GROUP, address(5), created_ms), None);
            assert_eq!(Secret::new([8; 32]).check(&cookie, GROUP, address(5), created_ms), None);
            for bit in 0..128 {
                let mut changed = cookie;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(secret.check(&changed, GROUP, address(5), created_ms), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn an_ipv6_network_is_one_source_and_an_ipv4_address_another() {
        let secret = Secret::new([7; 32]);
        let source = |ip: &str| secret.source(ip.parse().unwrap());
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::9"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("192.0.2.1"), source("::ffff:192.0.2.1"));
    }
}
