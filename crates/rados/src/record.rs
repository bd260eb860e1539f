//! The contents of a RADOS object: its header (an attribute named `nacre`), and the values of its omap.
//!
//! All numbers are little-endian; every record carries the format's version and a checksum. `extent.lua` reads
//! and writes the same records in the OSD; `docs/ceph.md` draws them. Decoders take any bytes: they refuse everything
//! that this format does not make.

use bytes::Bytes;
use nacre_object::limit::{FENCED_SESSIONS_MAX, OFFSET_MAX};
use nacre_object::{ExtentKind, Versioned};

/// The format of the entries of extents, attributes and fenced sessions, and of the oldest headers, forks and keys.
pub(crate) const FORMAT: u8 = 1;
/// The format of forks and keys as they are written today, and of older headers.
const FORMAT_2: u8 = 2;
/// The format of headers as they are written today.
const FORMAT_3: u8 = 3;
const HEADER_BYTES_1: usize = 64;
const HEADER_BYTES_2: usize = 80;
const HEADER_BYTES: usize = 92;
/// The bit of the last byte of a header's token that says that the object is watched; no token has it. Clients that do not know
/// it take it for a part of the token, and leave it out when they write.
const WATCHED: u8 = 0x80;
/// The maximum length of the header in every later format, in bytes: its format number comes first, its checksum last.
const HEADER_BYTES_MAX: usize = 4096;
const EXTENT_BYTES: usize = 28;
const OLD_FORK_BYTES: usize = 13;
/// A fork's record without its stem.
const FORK_BYTES: usize = 24;
/// The length of what stands before an attribute's value, in bytes, and before that of a key that has no version of its
/// own.
const VALUE_HEAD_BYTES: usize = 5;
/// The length of what stands before a key's value, in bytes: a record by itself.
const KEY_HEAD_BYTES: usize = 17;

/// The identity of a change of an object among all changes by all clients: random, and never used twice. The first bit of the
/// last byte is 0.
pub(crate) type Token = [u8; 16];

/// Returns a checksum of 32 bits that is cheap in Lua: each word of 8 bytes goes in by a step that can be undone, so
/// that no change of a single word is lost before the last step folds 64 bits into 32.
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

/// Returns the body of a record whose length, checksum and format are right.
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

/// The distinction of two states of an object that its version does not make: the change that wrote it, or the
/// compaction that moved its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    /// The token of the change that wrote the header.
    Token(Token),
    /// The same in format 2, whose keys have no versions of their own.
    Unversioned(Token),
    /// The number of compactions, modulo 64, in format 1, which has no token. Two clients that wrote in format 1 could
    /// take each other's state for their own; read from an OSD, it still stands for one state, because no version was
    /// given to two changes.
    Old { compactions: u8 },
}

impl Default for Author {
    fn default() -> Self {
        Self::Token([0; 16])
    }
}

/// An object at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// True if the object exists.
    pub(crate) exists: bool,
    /// True if it existed before the transaction that wrote this header.
    pub(crate) existed: bool,
    /// True if the index has extents that belong to no fork any more.
    pub(crate) unswept: bool,
    pub(crate) attributes: u16,
    pub(crate) forks: u32,
    pub(crate) version: u64,
    pub(crate) fence: u64,
    /// The version of the last removal.
    pub(crate) tombstone_version: u64,
    /// The offset of the next piece of payload in the byte stream, in bytes.
    pub(crate) tail: u32,
    /// The bytes of the byte stream that extents refer to.
    pub(crate) live: u32,
    /// The sum of the upper 32 bits of all forks' sizes; that of the lower 32 bits follows: the sum of the sizes may
    /// pass 64 bits.
    pub(crate) size_high: u64,
    pub(crate) size_low: u64,
    pub(crate) keys: u32,
    /// The version of keys that carry none of their own: the version that the object had before it was first written in
    /// format 3. In older formats, where no key carries one, it is the object's version.
    pub(crate) unversioned: u64,
    /// The number of sessions that are fenced one by one.
    pub(crate) sessions: u32,
    /// True if changes are to be announced, because somebody watches the object. Only headers of the latest format say so.
    pub(crate) watched: bool,
    pub(crate) author: Author,
}

/// The reason why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// No format makes these bytes.
    Damaged,
    /// A later version of Nacre wrote them, in this format.
    Newer(u8),
}

impl Header {
    /// Returns the header that stands for an object of which there is no trace: it looks as if it had been removed at a version,
    /// the floor of its shard of the index. No change leaves such a header, for each has a token.
    pub(crate) fn absent(floor: u64) -> Self {
        Self { version: floor, tombstone_version: floor, ..Self::default() }
    }

    /// Returns whether the header stands for an object of which there is no trace.
    pub(crate) fn is_absent(&self) -> bool {
        *self == Self::absent(self.version)
    }

    /// Encodes the header in the format that it was read in: an OSD compares these bytes with what it holds.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = [0; HEADER_BYTES - 4];
        body[0] = FORMAT_3;
        body[1] = u8::from(self.exists) | u8::from(self.existed) << 1 | u8::from(self.unswept) << 2;
        body[2..4].copy_from_slice(&self.attributes.to_le_bytes());
        body[4..8].copy_from_slice(&self.forks.to_le_bytes());
        body[8..16].copy_from_slice(&self.version.to_le_bytes());
        body[16..24].copy_from_slice(&self.fence.to_le_bytes());
        body[24..32].copy_from_slice(&self.tombstone_version.to_le_bytes());
        body[32..36].copy_from_slice(&self.tail.to_le_bytes());
        body[36..40].copy_from_slice(&self.live.to_le_bytes());
        body[40..48].copy_from_slice(&self.size_high.to_le_bytes());
        body[48..56].copy_from_slice(&self.size_low.to_le_bytes());
        body[56..60].copy_from_slice(&self.keys.to_le_bytes());
        match self.author {
            Author::Token(token) => {
                body[60..76].copy_from_slice(&token);
                body[75] |= if self.watched { WATCHED } else { 0 };
                body[76..84].copy_from_slice(&self.unversioned.to_le_bytes());
                body[84..].copy_from_slice(&self.sessions.to_le_bytes());
                sealed::<HEADER_BYTES>(&body).to_vec()
            }
            Author::Unversioned(token) => {
                body[0] = FORMAT_2;
                body[60..76].copy_from_slice(&token);
                sealed::<HEADER_BYTES_2>(&body[..HEADER_BYTES_2 - 4]).to_vec()
            }
            Author::Old { compactions } => {
                body[0] = FORMAT;
                body[1] = body[1] & 3 | compactions << 2;
                sealed::<HEADER_BYTES_1>(&body[..HEADER_BYTES_1 - 4]).to_vec()
            }
        }
    }

    pub(crate) fn decode(record: &[u8]) -> Result<Self, NoHeader> {
        let plausible = (HEADER_BYTES_1..=HEADER_BYTES_MAX).contains(&record.len());
        let (body, sum) = record.split_at_checked(record.len().saturating_sub(4)).unwrap_or_default();
        if !plausible || sum != checksum(body).to_le_bytes() {
            return Err(NoHeader::Damaged);
        }
        let author = match (body[0], record.len()) {
            (FORMAT, HEADER_BYTES_1) => Author::Old { compactions: body[1] >> 2 },
            // The slices are as long as a token: the length was just compared.
            (FORMAT_2, HEADER_BYTES_2) => Author::Unversioned(body[60..].try_into().expect("sixteen bytes")),
            (FORMAT_3, HEADER_BYTES) => {
                let mut token: Token = body[60..76].try_into().expect("sixteen bytes");
                token[15] &= !WATCHED;
                Author::Token(token)
            }
            (format, _) if format > FORMAT_3 => return Err(NoHeader::Newer(format)),
            _ => return Err(NoHeader::Damaged),
        };
        let version = u64_at(body, 8);
        let (unversioned, sessions) = match author {
            Author::Token(_) => (u64_at(body, 76), u32_at(body, 84)),
            _ => (version, 0),
        };
        let header = Header {
            exists: body[1] & 1 != 0,
            existed: body[1] & 2 != 0,
            unswept: body[1] & 4 != 0 && !matches!(author, Author::Old { .. }),
            attributes: u16::from_le_bytes([body[2], body[3]]),
            forks: u32_at(body, 4),
            version,
            fence: u64_at(body, 16),
            tombstone_version: u64_at(body, 24),
            tail: u32_at(body, 32),
            live: u32_at(body, 36),
            size_high: u64_at(body, 40),
            size_low: u64_at(body, 48),
            keys: u32_at(body, 56),
            unversioned,
            sessions,
            watched: matches!(author, Author::Token(_)) && body[75] & WATCHED != 0,
            author,
        };
        let plausible = version < 1 << 63
            && header.tombstone_version.max(unversioned) <= version
            && sessions as usize <= FENCED_SESSIONS_MAX;
        let in_use = body[1] & 0xf8 == 0 || matches!(author, Author::Old { .. });
        (plausible && in_use).then_some(header).ok_or(NoHeader::Damaged)
    }

    /// Adds the bytes by which a fork becomes longer to the sum of the sizes.
    pub(crate) fn lengthen(&mut self, from: u64, to: u64) {
        self.size_high = self.size_high.wrapping_add(to >> 32).wrapping_sub(from >> 32);
        let low = |size: u64| size & 0xffff_ffff;
        self.size_low = self.size_low.wrapping_add(low(to)).wrapping_sub(low(from));
    }

    /// Returns the sum of the sizes of all forks, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let sum = (u128::from(self.size_high) << 32) + u128::from(self.size_low);
        u64::try_from(sum).unwrap_or(u64::MAX)
    }
}

/// The answer of a call that changed an object: within 32 bytes, which every OSD is set to let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) exists: bool,
    pub(crate) existed: bool,
    pub(crate) unswept: bool,
    /// True if the change is to be announced.
    pub(crate) watched: bool,
    pub(crate) version: u64,
    pub(crate) tail: u32,
    live: u32,
}

impl Changed {
    const BYTES: usize = 17;

    pub(crate) fn decode(output: &[u8]) -> Option<Self> {
        (output.len() == Self::BYTES).then(|| Self {
            exists: output[0] & 1 != 0,
            existed: output[0] & 2 != 0,
            unswept: output[0] & 4 != 0,
            watched: output[0] & 8 != 0,
            version: u64_at(output, 1),
            tail: u32_at(output, 9),
            live: u32_at(output, 13),
        })
    }

    /// Decodes the answer at the beginning of an output; what follows it comes with it.
    pub(crate) fn decode_before(output: &Bytes) -> Option<(Self, Bytes)> {
        let changed = Self::decode(output.get(..Self::BYTES)?)?;
        Some((changed, output.slice(Self::BYTES..)))
    }

    /// Returns whether half of the byte stream is garbage, and the amount is worth a compaction.
    pub(crate) fn wants_compaction(&self) -> bool {
        u64::from(self.tail) >= 2 * u64::from(self.live) + (64 << 10)
    }
}

impl From<&Header> for Changed {
    fn from(header: &Header) -> Self {
        let Header { exists, existed, unswept, watched, version, tail, live, .. } = *header;
        Self { exists, existed, unswept, watched, version, tail, live }
    }
}

/// An extent, or part of one, with the place of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) version: u64,
    pub(crate) kind: ExtentKind,
    /// The offset of its first byte in the byte stream; 0 for a hole.
    pub(crate) place: u32,
}

impl Placed {
    /// Encodes the value of the extent's key, which holds the end.
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
}

/// A fork's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForkRecord {
    /// The size in bytes; `None` if there is no such fork.
    pub(crate) size: Option<u64>,
    /// The least version of every byte of the fork, data and holes.
    pub(crate) base: u64,
    /// The prefix of the keys of its extents, escaped: at first its name, later the stem that it took over from another
    /// fork.
    pub(crate) stem: Bytes,
}

impl ForkRecord {
    /// Returns the record of a fork that has none. `key` is the key that the record would have.
    pub(crate) fn none(key: &[u8]) -> Self {
        Self { size: None, base: 0, stem: Bytes::copy_from_slice(key.get(1..).unwrap_or_default()) }
    }

    /// Encodes the value of the fork's key.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = vec![FORMAT_2, u8::from(self.size.is_some())];
        record.extend(self.size.unwrap_or(0).to_le_bytes());
        record.extend(self.base.to_le_bytes());
        record.extend((self.stem.len() as u16).to_le_bytes());
        record.extend(&self.stem[..]);
        record.extend(checksum(&record).to_le_bytes());
        record
    }

    /// Decodes the value of a fork's key.
    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        if value.len() == OLD_FORK_BYTES {
            let size = u64_at(opened::<OLD_FORK_BYTES>(value, 0)?, 1);
            return (size <= OFFSET_MAX).then(|| Self { size: Some(size), ..Self::none(key) });
        }
        let (body, sum) = value.split_at_checked(value.len().checked_sub(4)?)?;
        if value.len() < FORK_BYTES || sum != checksum(body).to_le_bytes() || body[0] != FORMAT_2 {
            return None;
        }
        let (size, base, stem) = (u64_at(body, 2), u64_at(body, 10), &body[20..]);
        let length = usize::from(u16::from_le_bytes([body[18], body[19]]));
        let sound = body[1] <= 1 && size <= OFFSET_MAX && base <= OFFSET_MAX && length == stem.len();
        let size = (body[1] == 1).then_some(size);
        sound.then(|| Self { size, base, stem: Bytes::copy_from_slice(stem) })
    }
}

/// Returns the bytes of a key's or attribute's value, after the letter of its entry's key; `None` if they are unsound.
pub(crate) fn decode_value(letter: u8, stored: &Bytes, header: &Header) -> Option<Bytes> {
    match letter {
        b'k' => decode_key(stored, header).map(|found| found.value),
        _ => decode_attribute(stored),
    }
}

/// Returns the bytes of an attribute's value; `None` if they are unsound.
fn decode_attribute(stored: &Bytes) -> Option<Bytes> {
    let (head, value) = stored.split_at_checked(VALUE_HEAD_BYTES)?;
    let sound = head[0] == FORMAT && head[1..] == checksum(value).to_le_bytes();
    sound.then(|| stored.slice(VALUE_HEAD_BYTES..))
}

/// Returns a key's value and version; `None` if they are unsound.
pub(crate) fn decode_key(stored: &Bytes, header: &Header) -> Option<Versioned> {
    let version = decode_key_version(stored, header)?;
    if stored[0] == FORMAT {
        return decode_attribute(stored).map(|value| Versioned { value, version });
    }
    let value = stored.slice(KEY_HEAD_BYTES..);
    (stored[1..5] == checksum(&value).to_le_bytes()).then_some(Versioned { value, version })
}

/// Returns a key's version from what stands before its value; `None` if that is unsound.
pub(crate) fn decode_key_version(stored: &[u8], header: &Header) -> Option<u64> {
    let version = match *stored.first()? {
        FORMAT => header.unversioned,
        FORMAT_2 => {
            let (body, sum) = stored.get(..KEY_HEAD_BYTES)?.split_at(KEY_HEAD_BYTES - 4);
            (sum == checksum(body).to_le_bytes()).then(|| u64_at(body, 5))?
        }
        _ => return None,
    };
    (1..=header.version).contains(&version).then_some(version)
}

/// Encodes the entry of a key, as the class does.
pub(crate) fn encode_key(value: &[u8], version: u64) -> Bytes {
    let body = [&[FORMAT_2][..], &checksum(value).to_le_bytes(), &version.to_le_bytes()].concat();
    [&sealed::<KEY_HEAD_BYTES>(&body)[..], value].concat().into()
}

/// Encodes the entry of an attribute, as the class does, or that of a key without a version.
pub(crate) fn encode_attribute(value: &[u8]) -> Bytes {
    [&[FORMAT][..], &checksum(value).to_le_bytes(), value].concat().into()
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn header(random: &mut StdRng) -> Header {
        let version = random.random_range(1..1 << 62);
        let (author, unversioned, sessions, watched) = match random.random_range(0..3) {
            0 => (Author::Old { compactions: random.random_range(0..64) }, version, 0, false),
            1 => (Author::Unversioned(random.random()), version, 0, false),
            _ => {
                let sessions = random.random_range(0..=FENCED_SESSIONS_MAX as u32);
                let mut token: Token = random.random();
                token[15] &= !WATCHED;
                (Author::Token(token), random.random_range(0..=version), sessions, random.random())
            }
        };
        Header {
            exists: random.random(),
            existed: random.random(),
            unswept: false,
            attributes: random.random(),
            forks: random.random(),
            version,
            fence: random.random(),
            tombstone_version: random.random_range(0..=version),
            tail: random.random(),
            live: random.random(),
            size_high: random.random(),
            size_low: random.random(),
            keys: random.random(),
            unversioned,
            sessions,
            watched,
            author,
        }
    }

    /// Mutates a record: bits, bytes, its length.
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
            assert_eq!(Header::decode(&record), Ok(header), "seed {seed}");
            let changed = mutated(&record, &mut random);
            let found = Header::decode(&changed);
            assert!(changed == record || found == Err(NoHeader::Damaged), "seed {seed}: {changed:?}");

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
            let stored = encode_attribute(&value);
            assert_eq!(decode_value(b'a', &stored, &header).as_deref(), Some(&value[..]), "seed {seed}");
            let changed = Bytes::from(mutated(&stored, &mut random));
            assert!(changed == stored || decode_value(b'a', &changed, &header).is_none(), "seed {seed}");
            let version = random.random_range(1..=header.version);
            let stored = encode_key(&value, version);
            let found = Versioned { value: value.into(), version };
            assert_eq!(decode_key(&stored, &header), Some(found), "seed {seed}");
            assert_eq!(decode_key_version(&stored[..KEY_HEAD_BYTES], &header), Some(version), "seed {seed}");
            assert_eq!(decode_key(&stored, &Header { version: version - 1, ..header }), None);
            let changed = Bytes::from(mutated(&stored, &mut random));
            assert!(changed == stored || decode_key(&changed, &header).is_none(), "seed {seed}");

            let noise: Vec<u8> = (0..random.random_range(0..80)).map(|_| random.random()).collect();
            assert_eq!(Header::decode(&noise), Err(NoHeader::Damaged));
            assert_eq!(Placed::decode(&noise, &noise, &header), None);
            assert_eq!(ForkRecord::decode(b"f", &noise), None);
            assert_eq!(decode_key(&noise.into(), &header), None);
        }
    }

    #[test]
    fn formats_are_pinned() {
        // What a cluster holds today must be read for ever.
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let old = Header {
            exists: true,
            version: 7,
            tail: 4096,
            live: 10,
            forks: 1,
            size_low: 10,
            unversioned: 7,
            author: Author::Old { compactions: 0 },
            ..Header::default()
        };
        let golden = "0101000001000000070000000000000000000000000000000000000000000000001000000a000000\
                      00000000000000000a000000000000000000000067cbcbdd";
        assert_eq!(hex(&old.encode()), golden);
        let header = Header { author: Author::Unversioned(*b"sixteen letters!"), ..old };
        let golden = "0201000001000000070000000000000000000000000000000000000000000000001000000a000000\
                      00000000000000000a00000000000000000000007369787465656e206c65747465727321ecb0af1b";
        assert_eq!(hex(&header.encode()), golden);
        let header =
            Header { unversioned: 5, sessions: 2, author: Author::Token(*b"sixteen letters!"), ..old };
        let golden = "0301000001000000070000000000000000000000000000000000000000000000001000000a000000\
                      00000000000000000a00000000000000000000007369787465656e206c65747465727321050000000000000002000000b949dc9d";
        assert_eq!(hex(&header.encode()), golden);
        let watched = Header { watched: true, ..header }.encode();
        let difference = |at: usize| watched[at] != header.encode()[at];
        assert!((0..88).filter(|at| difference(*at)).eq([75]) && watched[75] == b'!' | 0x80);
        assert_eq!(Header::decode(&watched), Ok(Header { watched: true, ..header }));
        let later = sealed::<72>(&[&[4][..], &[9; 67]].concat());
        assert_eq!(Header::decode(&later), Err(NoHeader::Newer(4)));
        let fork = [&[1_u8][..], &10_u64.to_le_bytes()].concat();
        let fork = ForkRecord::decode(b"fname", &sealed::<OLD_FORK_BYTES>(&fork)).unwrap();
        assert_eq!(fork, ForkRecord { size: Some(10), base: 0, stem: "name".into() });
        let fork = [&[2_u8, 1][..], &10_u64.to_le_bytes(), &3_u64.to_le_bytes(), &[4, 0], b"stem"].concat();
        let fork = ForkRecord::decode(b"fname", &sealed::<28>(&fork)).unwrap();
        assert_eq!(fork, ForkRecord { size: Some(10), base: 3, stem: "stem".into() });
        for size in [None, Some(7)] {
            let fork = ForkRecord { size, ..fork.clone() };
            assert_eq!(ForkRecord::decode(b"fname", &fork.encode()), Some(fork));
        }
        let extent = Placed { start: 5, end: 15, version: 7, kind: ExtentKind::Data, place: 16 };
        let hex: String = extent.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "070000000000000005000000000000001000000001010000c82e784a");
        assert_eq!(encode_attribute(b"value")[..5], [1, 109, 13, 41, 138]);
        let found = |version| Some(Versioned { value: "value".into(), version });
        assert_eq!(decode_key(&encode_attribute(b"value"), &header), found(5));
        assert_eq!(decode_key(&encode_key(b"value", 6), &header), found(6));
        let hex: String = encode_key(b"value", 6).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "026d0d298a060000000000000000ca43db76616c7565");
        assert_eq!(header.bytes(), 10);
        assert_eq!(Header { size_high: 1 << 31, size_low: 7, ..header }.bytes(), (1 << 63) + 7);
        assert_eq!(Header { size_high: 1 << 33, size_low: 7, ..header }.bytes(), u64::MAX);
    }
}
