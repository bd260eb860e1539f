//! Reading and writing a file itself: the bytes that are locked, and no others. The functions of MPI libraries may also touch those between
//! them, or take a file type for other bytes than the standard says.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;

use nacre::lock::Region;

use crate::failure::Failure;
use crate::mpi;

/// The number of bytes after which a write checks again that its lock is held.
const CHECK_BYTES: usize = 1 << 20;

/// The least that a call of the system counts for, in bytes: as much as a page.
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
    // A collective access copies its bytes together after the lock is had, and others may have delayed it since.
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
}
