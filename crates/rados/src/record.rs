//! What stands in a RADOS object: its header (an attribute named `nacre`), and the values of its omap.
//!
//! All numbers are little-endian; every record carries the format's version and a checksum. `classes/extent.lua`
//! reads and writes the same records in the OSD; `docs/ceph.md` draws them. Decoders take anything: what is not a
//! record that this format makes is refused.

use nacre_object::limit::OFFSET_MAX;
use nacre_object::{ByteRange, ExtentKind};

/// The version of the format.
const FORMAT: u8 = 1;
/// The header's length in bytes: what an OSD returns at most of a call that changed the object.
pub(crate) const HEADER_BYTES: usize = 64;
const EXTENT_BYTES: usize = 28;
const FORK_BYTES: usize = 13;
/// What stands before the bytes of a key's or attribute's value.
pub(crate) const VALUE_PREFIX_BYTES: usize = 5;

/// A checksum of 32 bits, cheap in Lua: each word of 8 bytes goes in by a step that can be undone, so that no change
/// of a single word is lost before the last step folds 64 bits into 32.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sum = 0x6e_6163_7265 ^ bytes.len() as u64;
    let mut mix = |word: [u8; 8]| {
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(FACTOR);
        sum ^= sum >> 32;
    };
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| mix(*word));
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        mix(word);
    }
    (sum.wrapping_mul(FACTOR) >> 32) as u32
}

fn sealed<const N: usize>(body: &[u8]) -> [u8; N] {
    let mut record = [0; N];
    record[..N - 4].copy_from_slice(body);
    record[N - 4..].copy_from_slice(&checksum(body).to_le_bytes());
    record
}

/// The body of a record whose length, checksum and format are right.
fn opened<const N: usize>(record: &[u8], format_at: usize) -> Option<&[u8]> {
    let (body, sum) = record.split_at_checked(N - 4)?;
    (sum == checksum(body).to_le_bytes() && body[format_at] == FORMAT).then_some(body)
}

fn u64_at(body: &[u8], at: usize) -> u64 {
    // Callers pass constant positions within records of fixed length.
    u64::from_le_bytes(body[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(body: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(body[at..at + 4].try_into().expect("four bytes"))
}

/// An object at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// Whether the object exists.
    pub(crate) exists: bool,
    /// Whether it existed before the transaction that wrote this header.
    pub(crate) existed: bool,
    /// How often the payload was compacted, modulo 64: compaction changes no version, but moves bytes.
    pub(crate) compactions: u8,
    pub(crate) attributes: u16,
    pub(crate) forks: u32,
    pub(crate) version: u64,
    pub(crate) fence: u64,
    /// The version of the last removal.
    pub(crate) floor: u64,
    /// Where the next piece of payload goes in the byte stream.
    pub(crate) tail: u32,
    /// Bytes of the byte stream that extents refer to.
    pub(crate) live: u32,
    /// The sum of the upper and of the lower 32 bits of all forks' sizes: the sum itself may pass 64 bits.
    pub(crate) size_high: u64,
    pub(crate) size_low: u64,
    pub(crate) keys: u32,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut body = [0; HEADER_BYTES - 4];
        body[0] = FORMAT;
        body[1] = u8::from(self.exists) | u8::from(self.existed) << 1 | self.compactions << 2;
        body[2..4].copy_from_slice(&self.attributes.to_le_bytes());
        body[4..8].copy_from_slice(&self.forks.to_le_bytes());
        body[8..16].copy_from_slice(&self.version.to_le_bytes());
        body[16..24].copy_from_slice(&self.fence.to_le_bytes());
        body[24..32].copy_from_slice(&self.floor.to_le_bytes());
        body[32..36].copy_from_slice(&self.tail.to_le_bytes());
        body[36..40].copy_from_slice(&self.live.to_le_bytes());
        body[40..48].copy_from_slice(&self.size_high.to_le_bytes());
        body[48..56].copy_from_slice(&self.size_low.to_le_bytes());
        body[56..60].copy_from_slice(&self.keys.to_le_bytes());
        sealed(&body)
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let body = opened::<HEADER_BYTES>(record, 0)?;
        let header = Self {
            exists: body[1] & 1 != 0,
            existed: body[1] & 2 != 0,
            compactions: body[1] >> 2,
            attributes: u16::from_le_bytes([body[2], body[3]]),
            forks: u32_at(body, 4),
            version: u64_at(body, 8),
            fence: u64_at(body, 16),
            floor: u64_at(body, 24),
            tail: u32_at(body, 32),
            live: u32_at(body, 36),
            size_high: u64_at(body, 40),
            size_low: u64_at(body, 48),
            keys: u32_at(body, 56),
        };
        let plausible = header.version < 1 << 63 && header.floor <= header.version;
        plausible.then_some(header)
    }

    /// The sizes of all forks together.
    pub(crate) fn bytes(&self) -> u64 {
        let sum = (u128::from(self.size_high) << 32) + u128::from(self.size_low);
        u64::try_from(sum).unwrap_or(u64::MAX)
    }

    /// Whether half of the byte stream is garbage, and enough of it to bother.
    pub(crate) fn wants_compaction(&self) -> bool {
        u64::from(self.tail) >= 2 * u64::from(self.live) + (64 << 10)
    }
}

/// An extent, or part of one, and where its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) version: u64,
    pub(crate) kind: ExtentKind,
    /// Where its first byte is in the byte stream; 0 for a hole.
    pub(crate) place: u32,
}

impl Placed {
    /// The value of the extent's key, which holds the end.
    pub(crate) fn encode(&self) -> [u8; EXTENT_BYTES] {
        let mut body = [0; EXTENT_BYTES - 4];
        body[..8].copy_from_slice(&self.version.to_le_bytes());
        body[8..16].copy_from_slice(&self.start.to_le_bytes());
        body[16..20].copy_from_slice(&self.place.to_le_bytes());
        body[20] = if self.kind == ExtentKind::Data { 1 } else { 2 };
        body[21] = FORMAT;
        sealed(&body)
    }

    /// Decodes the entry of an extent: the last 16 bytes of the key, and the value.
    pub(crate) fn decode(key: &[u8], value: &[u8], header: &Header) -> Option<Self> {
        let digits = key.split_at_checked(key.len().checked_sub(16)?)?.1;
        if !digits.iter().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(digit)) {
            return None;
        }
        let end = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        let body = opened::<EXTENT_BYTES>(value, 21)?;
        let kind = match body[20] {
            1 => ExtentKind::Data,
            2 => ExtentKind::Hole,
            _ => return None,
        };
        let (version, start, place) = (u64_at(body, 0), u64_at(body, 8), u32_at(body, 16));
        let fits = start < end && end <= OFFSET_MAX && (1..=header.version).contains(&version);
        // An extent of data that does not lie wholly within the byte stream is not ours.
        let inside = kind == ExtentKind::Hole
            || u64::from(place)
                .checked_add(end - start.min(end))
                .is_some_and(|stop| stop <= u64::from(header.tail));
        (fits && inside).then_some(Self { start, end, version, kind, place })
    }

    /// The range of bytes.
    pub(crate) fn range(&self) -> ByteRange {
        ByteRange::from(self.start..self.end)
    }
}

/// Decodes a fork's entry: its size.
pub(crate) fn decode_fork(value: &[u8]) -> Option<u64> {
    let size = u64_at(opened::<FORK_BYTES>(value, 0)?, 1);
    (size <= OFFSET_MAX).then_some(size)
}

/// What stands before the bytes of a value.
pub(crate) fn value_prefix(value: &[u8]) -> [u8; VALUE_PREFIX_BYTES] {
    let sum = checksum(value).to_le_bytes();
    [FORMAT, sum[0], sum[1], sum[2], sum[3]]
}

/// The bytes of a key's or attribute's value.
pub(crate) fn decode_value(stored: &bytes::Bytes) -> Option<bytes::Bytes> {
    if stored.len() < VALUE_PREFIX_BYTES {
        return None;
    }
    let value = stored.slice(VALUE_PREFIX_BYTES..);
    (stored[..VALUE_PREFIX_BYTES] == value_prefix(&value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn header(random: &mut StdRng) -> Header {
        let version = random.random_range(1..1 << 62);
        Header {
            exists: random.random(),
            existed: random.random(),
            compactions: random.random_range(0..64),
            attributes: random.random(),
            forks: random.random(),
            version,
            fence: random.random(),
            floor: random.random_range(0..=version),
            tail: random.random(),
            live: random.random(),
            size_high: random.random(),
            size_low: random.random(),
            keys: random.random(),
        }
    }

    /// Changes a record: bits, bytes, its length.
    fn mutated(record: &[u8], random: &mut StdRng) -> Vec<u8> {
        let mut bytes = record.to_vec();
        for _ in 0..random.random_range(1..4) {
            match random.random_range(0..4) {
                0 if !bytes.is_empty() => {
                    let at = random.random_range(0..bytes.len());
                    bytes[at] ^= 1 << random.random_range(0..8);
                }
                1 => bytes.truncate(random.random_range(0..=bytes.len())),
                2 => bytes.extend((0..random.random_range(0..9)).map(|_| random.random::<u8>())),
                _ if !bytes.is_empty() => {
                    let at = random.random_range(0..bytes.len());
                    bytes[at] = random.random();
                }
                _ => {}
            }
        }
        bytes
    }

    #[test]
    fn records_are_their_own_inverse_and_changes_are_noticed() {
        let seed = rand::random();
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..20_000 {
            let header = header(&mut random);
            let record = header.encode();
            assert_eq!(Header::decode(&record), Some(header), "seed {seed}");
            let changed = mutated(&record, &mut random);
            assert!(changed == record || Header::decode(&changed).is_none(), "seed {seed}: {changed:?}");

            let end = random.random_range(1..=OFFSET_MAX);
            let hole = random.random_bool(0.3);
            let start = if hole {
                random.random_range(0..end)
            } else {
                end - random.random_range(1..=end.min(1 << 30))
            };
            let extent = Placed {
                start,
                end,
                version: random.random_range(1..=header.version),
                kind: if hole { ExtentKind::Hole } else { ExtentKind::Data },
                place: if hole { 0 } else { random.random_range(0..1 << 20) },
            };
            let header = Header { tail: u32::MAX, ..header };
            let (key, record) = (crate::name::extent_key(b"fork", end), extent.encode());
            assert_eq!(Placed::decode(&key, &record, &header), Some(extent), "seed {seed}");
            let changed = mutated(&record, &mut random);
            assert!(changed == record || Placed::decode(&key, &changed, &header).is_none(), "seed {seed}");
            // A key from elsewhere: never a panic, never an extent that is empty or turned around.
            if let Some(found) = Placed::decode(&mutated(&key, &mut random), &record, &header) {
                assert!(found.start < found.end, "seed {seed}");
            }

            let value: Vec<u8> = (0..random.random_range(0..40)).map(|_| random.random()).collect();
            let stored = Bytes::from([&value_prefix(&value)[..], &value].concat());
            assert_eq!(decode_value(&stored).as_deref(), Some(&value[..]), "seed {seed}");
            let changed = Bytes::from(mutated(&stored, &mut random));
            assert!(changed == stored || decode_value(&changed).is_none(), "seed {seed}");

            let noise: Vec<u8> = (0..random.random_range(0..80)).map(|_| random.random()).collect();
            assert_eq!(Header::decode(&noise), None);
            assert_eq!(Placed::decode(&noise, &noise, &header), None);
            assert_eq!(decode_fork(&noise), None);
        }
    }

    #[test]
    fn formats_are_pinned() {
        // What a cluster holds today must be read for ever.
        let header = Header {
            exists: true,
            version: 7,
            tail: 4096,
            live: 10,
            forks: 1,
            size_low: 10,
            ..Header::default()
        };
        let hex: String = header.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = "0101000001000000070000000000000000000000000000000000000000000000001000000a000000\
                      00000000000000000a000000000000000000000067cbcbdd";
        assert_eq!(hex, golden);
        let extent = Placed { start: 5, end: 15, version: 7, kind: ExtentKind::Data, place: 16 };
        let hex: String = extent.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "070000000000000005000000000000001000000001010000c82e784a");
        assert_eq!(value_prefix(b"value"), [1, 109, 13, 41, 138]);
        assert_eq!(header.bytes(), 10);
        assert_eq!(Header { size_high: 1 << 31, size_low: 7, ..header }.bytes(), (1 << 63) + 7);
        assert_eq!(Header { size_high: 1 << 33, size_low: 7, ..header }.bytes(), u64::MAX);
    }
}
