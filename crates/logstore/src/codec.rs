//! The small pieces that every format here is made of: variable-length integers, byte strings, checksums.

use bytes::{BufMut, Bytes};

/// CRC-32C (Castagnoli) of some bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
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

/// Reads what the functions above wrote. Every method gives `None` where the input is too short or malformed.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
}

impl Reader {
    /// Reads from the beginning of `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A fixed number of bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let array = *self.bytes.first_chunk::<N>()?;
        self.bytes = self.bytes.slice(N..);
        Some(array)
    }

    /// An integer written by [`put_varint`].
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

    /// The next `len` bytes, shared with the input.
    pub fn take(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.bytes.len()).then(|| self.bytes.split_to(len))
    }

    /// A byte string written by [`put_bytes`].
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
    fn the_polynomial_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
