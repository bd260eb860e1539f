//! Reading and writing a file itself. Nothing is written but what is locked. The functions of MPI libraries may also write what is between
//! that, or take a file type for other bytes than the standard says.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;

use nacre::lock::Region;
use nacre_lock::Pattern;

use crate::failure::Failure;
use crate::mpi;

/// The number of bytes after which a write checks again that its lock is held.
const CHECK_BYTES: usize = 1 << 20;

/// The least that a system call counts for, in bytes: as much as a page.
const CALL_BYTES: usize = 4096;

fn failed(action: &str, offset: u64, error: &Error) -> Failure {
    Failure::File(mpi::error_class_of(error), format!("cannot {action} the file at {offset}: {error}"))
}

/// Reads regions, in ascending order, one after the other. Returns the number of bytes before the end of the file.
pub fn read(file: &File, regions: impl Iterator<Item = Region>, bytes: &mut [u8]) -> Result<usize, Failure> {
    let mut done = 0;
    for region in regions {
        let end = done + usize::try_from(region.length).unwrap_or(usize::MAX).min(bytes.len() - done);
        let mut offset = region.offset;
        while done < end {
            match file.read_at(&mut bytes[done..end], offset) {
                // Whatever comes is behind the end too.
                Ok(0) => return Ok(done),
                Ok(read) => {
                    done += read;
                    offset += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("read", offset, &error)),
            }
        }
    }
    Ok(done)
}

/// Returns bytes as pieces at the offsets of regions, one after the other.
pub fn pieces(regions: impl Iterator<Item = Region>, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut rest = bytes;
    regions.map(move |region| {
        let length = usize::try_from(region.length).unwrap_or(usize::MAX).min(rest.len());
        let (piece, behind) = rest.split_at(length);
        rest = behind;
        (region.offset, piece)
    })
}

/// Writes pieces at their offsets. Checks before it begins, and then from time to time, that it may go on.
pub fn write<'a>(
    file: &File,
    pieces: impl Iterator<Item = (u64, &'a [u8])>,
    check: impl Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    // A collective access copies its bytes together after the lock was acquired, and others may have delayed it since.
    let mut unchecked = CHECK_BYTES;
    for (mut offset, piece) in pieces {
        for part in piece.chunks(CHECK_BYTES) {
            if unchecked >= CHECK_BYTES {
                check()?;
                unchecked = 0;
            }
            file.write_all_at(part, offset).map_err(|error| failed("write", offset, &error))?;
            offset += part.len() as u64;
            unchecked += part.len().max(CALL_BYTES);
        }
    }
    Ok(())
}

/// Reads the pieces of a pattern, one after the other, together with the bytes between them, which are dropped. Returns the number of bytes
/// before the end of the file.
pub fn read_sieved(file: &File, pieces: &Pattern, bytes: &mut [u8]) -> Result<usize, Failure> {
    let (mut done, mut window) = (0, Vec::new());
    for (span, cut) in spans(pieces) {
        window.resize(span.length as usize, 0);
        let read = read(file, std::iter::once(span), &mut window)?;
        for region in cut.regions() {
            let at = (region.offset - span.offset) as usize;
            let there = read.saturating_sub(at).min(region.length as usize);
            bytes[done..done + there].copy_from_slice(&window[at..at + there]);
            done += there;
        }
        if read < window.len() {
            break;
        }
    }
    Ok(done)
}

/// Writes bytes to the pieces of a pattern, one after the other, together with the bytes between them, which are read before. All from the
/// first piece to the last has to be locked.
pub fn write_sieved(
    file: &File,
    pieces: &Pattern,
    mut bytes: &[u8],
    check: impl Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut window = Vec::new();
    for (span, cut) in spans(pieces) {
        window.resize(span.length as usize, 0);
        let read = read(file, std::iter::once(span), &mut window)?;
        // What is behind the end of the file is zeros.
        window[read..].fill(0);
        for region in cut.regions() {
            let (piece, behind) = bytes.split_at((region.length as usize).min(bytes.len()));
            let at = (region.offset - span.offset) as usize;
            window[at..at + piece.len()].copy_from_slice(piece);
            bytes = behind;
        }
        write(file, std::iter::once((span.offset, window.as_slice())), &check)?;
    }
    Ok(())
}

/// Divides a pattern into spans from one piece to another, none of which is longer than what is written between two checks.
fn spans(pieces: &Pattern) -> impl Iterator<Item = (Region, Pattern)> {
    let mut rest = pieces.clone();
    std::iter::from_fn(move || {
        let start = rest.bounds()?.offset;
        let end = start.saturating_add(CHECK_BYTES as u64);
        let cut = rest.before(end);
        rest = rest.from(end);
        Some((cut.bounds()?, cut))
    })
}

/// Flushes what was written to the device.
pub fn flush(file: &File) -> Result<(), Failure> {
    let failed = |error: Error| {
        Failure::File(mpi::error_class_of(&error), format!("cannot flush the file to its device: {error}"))
    };
    file.sync_data().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_under_a_lock_that_is_lost() {
        let file = tempfile::tempfile().unwrap();
        let regions = || [Region::new(0, 2), Region::new(4, 2)].into_iter();
        assert!(write(&file, pieces(regions(), b"abcd"), || Err(Failure::Elsewhere)).is_err());
        assert_eq!(file.metadata().unwrap().len(), 0);
        write(&file, pieces(regions(), b"abcd"), || Ok(())).unwrap();
        let mut bytes = [1; 6];
        assert_eq!(read(&file, std::iter::once(Region::new(0, 6)), &mut bytes).unwrap(), 6);
        assert_eq!(&bytes, b"ab\0\0cd");
    }

    #[test]
    fn pieces_are_sieved_out_of_the_bytes_between_them() {
        let file = tempfile::tempfile().unwrap();
        let stride = 1000;
        let regions: Vec<Region> =
            (0..3000).map(|piece| Region::new(7 + piece * stride, 1 + piece % 90)).collect();
        let pattern = Pattern::list(&regions).unwrap();
        let length = 3001 * stride as usize;
        let mut expected = vec![b'-'; length];
        file.write_all_at(&expected, 0).unwrap();
        let bytes: Vec<u8> = (0..pattern.byte_count()).map(|byte| (byte % 251) as u8).collect();
        write_sieved(&file, &pattern, &bytes, || Ok(())).unwrap();
        let mut rest = &bytes[..];
        for region in &regions {
            let (piece, behind) = rest.split_at(region.length as usize);
            expected[region.offset as usize..region.end() as usize].copy_from_slice(piece);
            rest = behind;
        }
        let mut found = vec![0; length];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == expected);
        let mut found = vec![0; bytes.len()];
        assert_eq!(read_sieved(&file, &pattern, &mut found).unwrap(), bytes.len());
        assert!(found == bytes);

        // The file ends in front of a piece, and within one.
        for end in [regions[2000].offset - 1, regions[1500].offset + 3] {
            file.set_len(end).unwrap();
            let before = pattern.before(end).byte_count() as usize;
            let mut found = vec![0xAB; bytes.len()];
            assert_eq!(read_sieved(&file, &pattern, &mut found).unwrap(), before);
            assert!(found[..before] == bytes[..before] && found[before..].iter().all(|byte| *byte == 0xAB));
        }
        // What was not in the file becomes zeros, up to the last piece.
        write_sieved(&file, &pattern, &bytes, || Ok(())).unwrap();
        assert_eq!(file.metadata().unwrap().len(), regions[2999].end());
        let mut gap = [1; 8];
        file.read_exact_at(&mut gap, regions[2999].offset - 8).unwrap();
        assert_eq!(gap, [0; 8]);
        assert!(write_sieved(&file, &pattern, &bytes, || Err(Failure::Elsewhere)).is_err());
    }
}
