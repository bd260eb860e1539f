//! Hints about the locks of a file, which programs give and read by MPI's info objects.
//!
//! A hint never changes what is read or written. Hints are there for studies, which compare the ways of "Noncontiguous Locking Techniques
//! for Parallel File Systems" (sections 3, 4 and 5.3) and the block locks of other systems. A study that gives a wrong hint is to hear of
//! it, not to measure something else. So it is an error.

use std::ffi::CStr;

use nacre::lock::{Description, Method, Mode, Protocol, Region, Request};
use nacre_lock::{OFFSET_MAX, Pattern};
use nacre_quantity::Escaped;

use crate::failure::Failure;
use crate::mpi::{self, Code, MPI_Info};
use crate::session;
use crate::table::{Open, hold};

/// The description of a rank's own bytes to the lock servers.
const METHOD: &CStr = c"nacre_lock_method";
/// The protocol by which they are locked.
const PROTOCOL: &CStr = c"nacre_protocol";
/// The size of the blocks that are locked as a whole.
const BLOCK: &CStr = c"nacre_lock_block";
/// The flush of what was written, before its lock is released.
const FLUSH: &CStr = c"nacre_lock_flush";
/// The writing of small pieces together with the bytes between them.
const SIEVE: &CStr = c"nacre_sieve";
/// The bytes of a file that follow each other at one lock server. The servers decide; programs can only ask.
const STRIPE: &CStr = c"nacre_stripe";

/// The maximum size of a block in bytes.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

const SWITCH: [(&str, bool); 2] = [("false", false), ("true", true)];

/// The hints that hold for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    method: Method,
    protocol: Protocol,
    /// The size of the blocks that are locked as a whole; 1 for exactly the bytes of an access.
    block_bytes: u64,
    /// True if what was written is flushed to the device before its lock is released.
    pub flushes: bool,
    /// True if the program does not mind that small pieces are written together with the bytes between them, which are locked too.
    sieves: bool,
    /// The stripe of the lock servers that the program expects, in bytes.
    stripe_bytes: Option<u64>,
}

impl Default for Hints {
    fn default() -> Hints {
        let (method, protocol) = (Method::default(), Protocol::default());
        Hints { method, protocol, block_bytes: 1, flushes: false, sieves: true, stripe_bytes: None }
    }
}

impl Hints {
    /// Returns these hints with those of an info object in their places.
    ///
    /// # Errors
    ///
    /// A sentence, if one of them has a value that it does not take.
    pub fn with(self, info: MPI_Info) -> Result<Hints, String> {
        self.with_values(|name| mpi::hint(info, name))
    }

    fn with_values(mut self, value: impl Fn(&CStr) -> Option<String>) -> Result<Hints, String> {
        for name in [METHOD, PROTOCOL, BLOCK, FLUSH, SIEVE, STRIPE] {
            if let Some(value) = value(name) {
                self.set(name, &value).map_err(|why| {
                    let (name, value) = (name.to_string_lossy(), Escaped::of(&value));
                    format!("the hint {name}={value} is wrong: {why}")
                })?;
            }
        }
        Ok(self)
    }

    /// Sets a hint.
    ///
    /// # Errors
    ///
    /// The reason why its value is wrong.
    fn set(&mut self, name: &CStr, value: &str) -> Result<(), String> {
        if name == METHOD {
            self.method = named(&Method::NAMES, value)?;
        } else if name == PROTOCOL {
            self.protocol = named(&Protocol::NAMES, value)?;
        } else if name == BLOCK {
            let bytes = nacre_quantity::parse_size(value)?;
            let is_possible = (1..=BLOCK_BYTES_MAX).contains(&bytes);
            self.block_bytes = is_possible.then_some(bytes).ok_or("it is a size from 1 to 1GiB")?;
        } else if name == FLUSH {
            self.flushes = named(&SWITCH, value)?;
        } else if name == SIEVE {
            self.sieves = named(&SWITCH, value)?;
        } else {
            self.stripe_bytes = Some(nacre_quantity::parse_size(value)?);
        }
        Ok(())
    }

    /// Returns whether small pieces may be locked and written together with the bytes between them. A program that asks for a way to lock
    /// its bytes asks for exactly them.
    pub fn may_sieve(&self) -> bool {
        self.sieves && self.method == Method::default() && self.block_bytes == 1
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

/// Returns what a value names.
fn named<T: Copy>(names: &[(&str, T)], value: &str) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == value);
    let known = || names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    found.map(|(_, named)| *named).ok_or_else(|| format!("the values are {}", known()))
}

/// Returns the name of a value.
fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    names.iter().find(|(_, named)| named == value).map_or("", |(name, _)| *name)
}

/// Returns the hint that asks for a method, for messages.
pub fn asking_for(method: Method) -> String {
    format!("{}={}", METHOD.to_string_lossy(), name_of(&Method::NAMES, &method))
}

/// Applies the hints of a call on an open file. If one is wrong, those that held before still do.
pub fn take_in(call: &str, open: &Open, info: MPI_Info) -> Result<(), Failure> {
    let before = *hold(&open.hints);
    let hints = before.with(info).map_err(Failure::Own)?;
    *hold(&open.hints) = hints;
    if hints.stripe_bytes != before.stripe_bytes && open.atomic().is_some() {
        check_stripe(call, open);
    }
    Ok(())
}

/// Prints a warning if the lock servers have another stripe than the program expects. The first process does so for all: they give the same
/// hints.
pub fn check_stripe(call: &str, open: &Open) {
    let expected = hold(&open.hints).stripe_bytes;
    let is_first = open.party.is_none_or(|party| party.rank == 0);
    let Some(expected) = expected.filter(|_| is_first) else { return };
    if let Some(stripe) = session::stripe_bytes().filter(|stripe| *stripe != expected) {
        let name = STRIPE.to_string_lossy();
        let sentence = format!(
            "the hint {name}={expected} is ignored: the stripe of the lock servers is {stripe} bytes"
        );
        Failure::Own(sentence).said(call);
    }
}

/// Adds the hints that hold for a file to an info object.
pub fn report(open: &Open, info: &mut MPI_Info) -> Result<(), Code> {
    let hints = *hold(&open.hints);
    mpi::set_hint(info, METHOD, name_of(&Method::NAMES, &hints.method))?;
    mpi::set_hint(info, PROTOCOL, name_of(&Protocol::NAMES, &hints.protocol))?;
    mpi::set_hint(info, BLOCK, &hints.block_bytes.to_string())?;
    mpi::set_hint(info, FLUSH, name_of(&SWITCH, &hints.flushes))?;
    mpi::set_hint(info, SIEVE, name_of(&SWITCH, &hints.sieves))?;
    // Only files in atomic mode have servers.
    match open.atomic().and_then(|_| session::stripe_bytes()) {
        Some(stripe) => mpi::set_hint(info, STRIPE, &stripe.to_string()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(hints: &[(&CStr, &str)]) -> Result<Hints, String> {
        let find = |name: &CStr| hints.iter().find(|(known, _)| *known == name);
        Hints::default().with_values(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn hints_choose_how_bytes_are_locked() {
        let exact = Description::from(vec![Region::new(10, 5), Region::new(4096, 1)]);
        let request = parse(&[]).unwrap().request(&exact, Mode::Exclusive);
        assert_eq!(request, Request::new(exact.clone(), Mode::Exclusive));
        let hints =
            parse(&[(METHOD, "posix"), (PROTOCOL, "two-phase"), (FLUSH, "true"), (STRIPE, "64KiB")]).unwrap();
        let request = hints.request(&exact, Mode::Shared);
        assert_eq!((request.method, request.protocol), (Method::Posix, Protocol::TwoPhase));
        assert_eq!((request.description, hints.flushes, hints.stripe_bytes), (exact, true, Some(1 << 16)));
    }

    #[test]
    fn what_is_between_small_pieces_is_locked_only_where_nothing_else_is_asked_for() {
        let may_sieve = |hints: &[(&CStr, &str)]| parse(hints).unwrap().may_sieve();
        assert!(
            may_sieve(&[]) && may_sieve(&[(PROTOCOL, "two-phase"), (FLUSH, "true"), (METHOD, "datatype")])
        );
        for (name, value) in [(SIEVE, "false"), (METHOD, "list"), (METHOD, "posix"), (BLOCK, "4KiB")] {
            assert!(!may_sieve(&[(name, value)]), "{value}");
        }
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
        let refused = |name, value| parse(&[(name, value)]).unwrap_err();
        let sentence = "the hint nacre_lock_method=List is wrong: the values are posix, list, datatype";
        assert_eq!(refused(METHOD, "List"), sentence);
        for (name, value) in [
            (PROTOCOL, ""),
            (BLOCK, "0"),
            (BLOCK, "2GiB"),
            (BLOCK, "x"),
            (FLUSH, "yes"),
            (SIEVE, "off"),
            (STRIPE, "much"),
        ] {
            let start = format!("the hint {}={value} is wrong: ", name.to_str().unwrap());
            assert!(refused(name, value).starts_with(&start), "{start}");
        }
    }

    #[test]
    fn methods_and_protocols_have_the_names_of_the_commands() {
        assert_eq!(asking_for(Method::List), "nacre_lock_method=list");
        assert_eq!(name_of(&Protocol::NAMES, &Protocol::default()), "alt-try");
    }
}
