//! The hints of this library, given to `MPI_File_open`: how independent accesses lock their bytes. They are there for studies, which compare
//! the ways of "Noncontiguous Locking Techniques for Parallel File Systems" (sections 3, 4 and 5.3) and the block locks of other systems.

use std::ffi::CStr;

use nacre::lock::{Description, Method, Mode, Protocol, Region, Request};
use nacre_lock::{OFFSET_MAX, Pattern};

use crate::mpi::{self, MPI_Info};

const METHOD: &CStr = c"nacre_lock_method";
const PROTOCOL: &CStr = c"nacre_lock_protocol";
const BLOCK: &CStr = c"nacre_lock_block";
const FLUSH: &CStr = c"nacre_lock_flush";

/// The maximum size of a block in bytes.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// The way in which independent accesses to a file are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    method: Method,
    protocol: Protocol,
    /// The size of the blocks that are locked as a whole; 1 for exactly the bytes of an access.
    block_bytes: u64,
    /// True if what was written is flushed to the device before its lock is released.
    pub flushes: bool,
}

impl Hints {
    /// Returns the hints that a program gave when it opened a file.
    ///
    /// # Errors
    ///
    /// A sentence, if one of them has a value that it does not take.
    pub fn of(info: MPI_Info) -> Result<Hints, String> {
        Hints::parse(|key| mpi::hint(info, key).ok().flatten())
    }

    fn parse(value: impl Fn(&CStr) -> Option<String>) -> Result<Hints, String> {
        let block_bytes = match value(BLOCK) {
            None => 1,
            Some(text) => match nacre_quantity::parse_size(&text) {
                Ok(bytes) if (1..=BLOCK_BYTES_MAX).contains(&bytes) => bytes,
                _ => return Err(wrong(BLOCK, &text, "a size from 1 to 1GiB")),
            },
        };
        Ok(Hints {
            method: named(METHOD, value(METHOD), Method::default(), &Method::NAMES)?,
            protocol: named(PROTOCOL, value(PROTOCOL), Protocol::default(), &Protocol::NAMES)?,
            block_bytes,
            flushes: named(FLUSH, value(FLUSH), false, &[("false", false), ("true", true)])?,
        })
    }

    /// Returns the request for the lock of an access.
    pub fn request(&self, description: &Description, mode: Mode) -> Request {
        let pattern = (self.block_bytes > 1).then(|| Pattern::new(description).ok()).flatten();
        let description =
            pattern.map_or_else(|| description.clone(), |pattern| blocks(&pattern, self.block_bytes));
        Request::new(description, mode).method(self.method).protocol(self.protocol)
    }
}

/// Returns the blocks of which a pattern has a byte.
fn blocks(pattern: &Pattern, block_bytes: u64) -> Description {
    let mut blocks: Vec<Region> = Vec::new();
    for region in pattern.regions() {
        let start = region.offset / block_bytes * block_bytes;
        let end = (region.end().div_ceil(block_bytes) * block_bytes).min(OFFSET_MAX);
        match blocks.last_mut() {
            Some(last) if start <= last.end() => last.length = last.length.max(end - last.offset),
            _ => blocks.push(Region::new(start, end - start)),
        }
    }
    Description::List(blocks)
}

/// Returns what the value of a hint stands for.
fn named<T: Copy>(key: &CStr, value: Option<String>, default: T, names: &[(&str, T)]) -> Result<T, String> {
    let Some(value) = value else { return Ok(default) };
    let known = names.iter().find(|(name, _)| *name == value);
    known.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        wrong(key, &value, &format!("one of {}", names.join(", ")))
    })
}

fn wrong(key: &CStr, value: &str, allowed: &str) -> String {
    format!("the hint {} is \"{}\", and not {allowed}", key.to_string_lossy(), value.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(hints: &[(&CStr, &str)]) -> Result<Hints, String> {
        let find = |key: &CStr| hints.iter().find(|(known, _)| *known == key);
        Hints::parse(|key| find(key).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn hints_choose_how_bytes_are_locked() {
        let exact = Description::from(vec![Region::new(10, 5), Region::new(4096, 1)]);
        let request = parse(&[]).unwrap().request(&exact, Mode::Exclusive);
        assert_eq!(request, Request::new(exact.clone(), Mode::Exclusive));
        let hints = parse(&[(METHOD, "posix"), (PROTOCOL, "two-phase"), (FLUSH, "true")]).unwrap();
        let request = hints.request(&exact, Mode::Shared);
        assert_eq!((request.method, request.protocol), (Method::Posix, Protocol::TwoPhase));
        assert_eq!((request.description, hints.flushes), (exact, true));
    }

    #[test]
    fn blocks_are_locked_as_a_whole_and_once() {
        let hints = parse(&[(BLOCK, "4KiB")]).unwrap();
        let rounded = |regions: &[(u64, u64)]| -> Vec<(u64, u64)> {
            let regions = regions.iter().map(|(offset, length)| Region::new(*offset, *length)).collect();
            match hints.request(&Description::List(regions), Mode::Exclusive).description {
                Description::List(blocks) => blocks.iter().map(|block| (block.offset, block.end())).collect(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(rounded(&[(10, 5), (20, 5), (4095, 1)]), [(0, 4096)]);
        assert_eq!(rounded(&[(4095, 2)]), [(0, 8192)]);
        assert_eq!(rounded(&[(1, 1), (4097, 1), (20_000, 1)]), [(0, 8192), (16_384, 20_480)]);
        assert_eq!(rounded(&[(OFFSET_MAX - 1, 1)]), [(OFFSET_MAX / 4096 * 4096, OFFSET_MAX)]);
    }

    #[test]
    fn wrong_hints_are_named() {
        let refused = |key, value| parse(&[(key, value)]).unwrap_err();
        let sentence = "the hint nacre_lock_method is \"vector\", and not one of posix, list, datatype";
        assert_eq!(refused(METHOD, "vector"), sentence);
        for (key, value) in [(PROTOCOL, "three"), (BLOCK, "0"), (BLOCK, "2GiB"), (BLOCK, "x"), (FLUSH, "yes")]
        {
            assert!(refused(key, value).contains(value), "{value}");
        }
    }
}
