//! The basic encodings of all formats here: variable-length integers, byte strings, checksums.

use bytes::{BufMut, Bytes};

/// Returns the CRC-32C (Castagnoli) of some bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRCs of any ranges of some bytes, each computed in a time that does not grow with the range.
///
/// The CRC of everything before each mark is computed once. The CRC of the range between two marks follows from the
/// CRC's linearity: crc(a || b) = crc(a) * x^(8 |b|) + crc(b), modulo its polynomial.
pub struct RangeChecksums {
    bytes: Bytes,
    marks: Vec<u32>,
    powers: Vec<[u32; 256]>,
}

/// The reflected polynomial of CRC-32C.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial 1, reflected.
const ONE: u32 = 1 << 31;
const MARK_BYTES: usize = 256;

impl RangeChecksums {
    /// Computes the CRCs, reading all of the bytes once.
    pub fn new(bytes: Bytes) -> Self {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        let mut marks = vec![crc32c(&[])];
        for chunk in bytes.chunks(MARK_BYTES) {
            digest.update(chunk);
            marks.push(digest.finalize() as u32);
        }
        // powers[i][digit] is x^(8 digit 256^i).
        let mut base = (0..8).fold(ONE, |power, _| times_x(power));
        let mut powers = Vec::new();
        for _ in 0..size_of::<u32>() {
            let mut table = [ONE; 256];
            for digit in 1..256 {
                table[digit] = multiply(table[digit - 1], base);
            }
            base = multiply(table[255], base);
            powers.push(table);
        }
        Self { bytes, marks, powers }
    }

    /// Returns the CRC of a range of fewer than 2^32 bytes, which must lie within the bytes.
    pub fn of(&self, range: std::ops::Range<usize>) -> u32 {
        let shift = range.len().to_le_bytes().into_iter().zip(&self.powers).fold(
            self.before(range.start),
            |crc, (digit, table)| {
                if digit == 0 { crc } else { multiply(crc, table[usize::from(digit)]) }
            },
        );
        self.before(range.end) ^ shift
    }

    /// Returns the CRC of the bytes before an offset.
    fn before(&self, offset: usize) -> u32 {
        let mark = offset / MARK_BYTES;
        let rest = &self.bytes[mark * MARK_BYTES..offset];
        let length = self.powers[0][rest.len()];
        multiply(self.marks[mark], length) ^ crc32c(rest)
    }
}

/// Returns the bit that was flipped in `len` bytes, the lowest of the first byte being 0, if a single flipped bit
/// explains the difference (exclusive-or) of their CRC from the right one. Within 2^31 bits no two bits explain the
/// same difference.
pub fn flipped_bit(len: usize, difference: u32) -> Option<usize> {
    // The last bit changes the CRC by the polynomial, each one before it by x times as much.
    let mut change = POLYNOMIAL;
    (0..len * 8).rev().find(|_| {
        let found = change == difference;
        change = times_x(change);
        found
    })
}

fn times_x(value: u32) -> u32 {
    value >> 1 ^ if value & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// Returns the product of two polynomials, modulo that of the CRC.
fn multiply(left: u32, mut right: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        // Without a branch: the bits are as good as random.
        product ^= right & (left >> bit & 1).wrapping_neg();
        right = right >> 1 ^ POLYNOMIAL & (right & 1).wrapping_neg();
    }
    product
}

/// Appends an unsigned integer, seven bits to a byte, the lowest first.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a byte string behind its length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// A reader of the encodings above. Every method returns `None` if the input is too short or malformed.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
}

impl Reader {
    /// Creates a reader at the beginning of `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    /// Returns the number of bytes left.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Reads four bytes, little-endian.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads eight bytes, little-endian.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a fixed number of bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let array = *self.bytes.first_chunk::<N>()?;
        self.bytes = self.bytes.slice(N..);
        Some(array)
    }

    /// Reads an integer written by [`put_varint`].
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for (i, byte) in self.bytes.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if i == 9 && bits > 1 {
                return None;
            }
            value |= bits << (7 * i);
            if byte & 0x80 == 0 {
                self.bytes = self.bytes.slice(i + 1..);
                return Some(value);
            }
        }
        None
    }

    /// Reads the next `len` bytes, shared with the input.
    pub fn take(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.bytes.len()).then(|| self.bytes.split_to(len))
    }

    /// Reads a byte string written by [`put_bytes`].
    pub fn bytes(&mut self) -> Option<Bytes> {
        let len = usize::try_from(self.varint()?).ok()?;
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_survive() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), i64::MAX as u64, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader::new(out.into());
            assert_eq!(reader.varint(), Some(value));
            assert_eq!(reader.remaining(), 0);
        }
    }

    #[test]
    fn malformed_integers_are_refused() {
        assert_eq!(Reader::new(Bytes::from_static(&[0x80])).varint(), None);
        assert_eq!(Reader::new(Bytes::from_static(&[0xff; 11])).varint(), None);
        assert_eq!(Reader::new(Bytes::from_static(&[])).varint(), None);
        assert_eq!(Reader::new(Bytes::from_static(&[5, 1, 2])).bytes(), None);
    }

    #[test]
    fn checksums_of_ranges_are_those_of_their_bytes() {
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let checksums = RangeChecksums::new(bytes.clone().into());
        for (start, end) in
            [(0, 0), (0, 1), (7, 7), (0, 256), (255, 257), (300, 70_000), (1, 200_000), (512, 66_048)]
        {
            assert_eq!(checksums.of(start..end), crc32c(&bytes[start..end]), "{start}..{end}");
        }
    }

    #[test]
    fn a_flipped_bit_is_found_by_the_checksum() {
        let bytes: Vec<u8> = (0..999u32).map(|i| (i * i / 7) as u8).collect();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(flipped_bit(bytes.len(), crc32c(&damaged) ^ crc32c(&bytes)), Some(bit));
        }
        assert_eq!(flipped_bit(bytes.len(), 1), None, "that is a flip in the checksum itself");
    }

    #[test]
    fn the_polynomial_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
