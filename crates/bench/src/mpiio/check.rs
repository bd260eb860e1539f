//! The bytes that a file has to hold, and those that it holds instead.

use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::Path;

use nacre_quantity::Escaped;

use crate::BenchError;

/// The number of bytes that are compared at a time, a multiple of a word's.
const CHUNK_BYTES: usize = 1 << 20;

/// Returns the word of 64 bits with this number: splitmix64, as in `programs/job.h`.
fn word(seed: u64, number: u64) -> u64 {
    let bits = seed.wrapping_add((number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// Compares a file with ranges of the bytes that a seed stands for, one after the other. Each range begins with a word. Returns how many
/// bytes are wrong, missing or behind the last of them.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn wrong_bytes(
    path: &Path,
    seed: u64,
    ranges: impl IntoIterator<Item = Range<u64>>,
) -> Result<u64, BenchError> {
    let failed = || BenchError::io(format!("read {}", Escaped::of(&path)));
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, File::open(path).map_err(failed())?);
    let (mut found, mut wrong) = (Vec::with_capacity(CHUNK_BYTES), 0);
    for range in ranges {
        for begin in range.clone().step_by(CHUNK_BYTES) {
            let length = (range.end - begin).min(CHUNK_BYTES as u64);
            found.clear();
            reader.by_ref().take(length).read_to_end(&mut found).map_err(failed())?;
            wrong += length - found.len() as u64;
            for (number, bytes) in (begin / 8..).zip(found.chunks(8)) {
                let expected = word(seed, number).to_ne_bytes();
                if *bytes != expected[..bytes.len()] {
                    wrong += bytes.iter().zip(expected).filter(|(found, expected)| *found != expected).count()
                        as u64;
                }
            }
        }
    }
    let behind = std::io::copy(&mut reader, &mut std::io::sink()).map_err(failed())?;
    Ok(wrong + behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let words = (CHUNK_BYTES / 8 + 100) as u64;
        let right: Vec<u8> = (0..words).flat_map(|number| word(7, number).to_ne_bytes()).collect();
        let all = 0..8 * words;
        let count = |bytes: &[u8], ranges: &[Range<u64>]| {
            std::fs::write(&path, bytes).unwrap();
            wrong_bytes(&path, 7, ranges.iter().cloned()).unwrap()
        };
        assert_eq!(count(&right, std::slice::from_ref(&all)), 0);
        let mut torn = right.clone();
        torn[5] ^= 1;
        torn[CHUNK_BYTES + 3] ^= 255;
        assert_eq!(count(&torn, std::slice::from_ref(&all)), 2);
        // Too short, too long, and not from the beginning.
        assert_eq!(count(&right[..right.len() - 10], std::slice::from_ref(&all)), 10);
        let shorter = 0..8 * words - 13;
        assert_eq!(count(&right, std::slice::from_ref(&shorter)), 13);
        assert_eq!(count(&[&right[16..32], &right[80..85]].concat(), &[16..32, 80..85]), 0);
        assert_eq!(count(&[], &[]), 0);
    }
}
