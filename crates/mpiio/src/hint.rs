//! Hints about the locks of a file, which programs give and read by MPI's info objects.
//!
//! A hint never changes what is read or written. So one that is not understood is ignored, as MPI allows, and a line on standard error
//! says so.

use std::ffi::CStr;

use nacre::lock::{Method, Protocol};
use nacre_quantity::Escaped;

use crate::failure::Failure;
use crate::mpi::{self, Code, MPI_Info};
use crate::session;
use crate::table::{Open, hold};

/// The description of a rank's own bytes to the lock servers.
const METHOD: &CStr = c"nacre_lock_method";
/// The protocol by which they are locked.
const PROTOCOL: &CStr = c"nacre_protocol";
/// The bytes of a file that follow each other at one lock server. The servers decide; programs can only ask.
const STRIPE: &CStr = c"nacre_stripe";

/// The hints that hold for a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The description of a rank's own bytes to the lock servers.
    pub method: Method,
    /// The protocol by which they are locked.
    pub protocol: Protocol,
    /// The stripe of the lock servers that the program expects, in bytes.
    pub stripe_bytes: Option<u64>,
}

impl Hints {
    /// Sets a hint.
    ///
    /// # Errors
    ///
    /// The reason why it is ignored.
    fn set(&mut self, name: &CStr, value: &str) -> Result<(), String> {
        if name == METHOD {
            self.method = named(&Method::NAMES, value)?;
        } else if name == PROTOCOL {
            self.protocol = named(&Protocol::NAMES, value)?;
        } else {
            self.stripe_bytes = Some(nacre_quantity::parse_size(value)?);
        }
        Ok(())
    }
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

/// Says that a hint is ignored. The first process says it for all: they give the same ones.
fn warn(open: &Open, call: &str, name: &CStr, value: &str, why: &str) {
    if open.party.is_none_or(|party| party.rank == 0) {
        let (name, value) = (name.to_string_lossy(), Escaped::of(value));
        Failure::Own(format!("the hint {name}={value} is ignored: {why}")).said(call);
    }
}

/// Takes in the hints of a call of the program.
pub fn take_in(call: &str, open: &Open, info: MPI_Info) {
    let mut is_stripe_new = false;
    for name in [METHOD, PROTOCOL, STRIPE] {
        let Some(value) = mpi::hint(info, name) else { continue };
        is_stripe_new |= name == STRIPE;
        let set = hold(&open.hints).set(name, &value);
        if let Err(why) = set {
            warn(open, call, name, &value, &why);
        }
    }
    if is_stripe_new && open.atomic().is_some() {
        check_stripe(call, open);
    }
}

/// Says it if the lock servers have another stripe than the program expects.
pub fn check_stripe(call: &str, open: &Open) {
    let expected = hold(&open.hints).stripe_bytes;
    if let (Some(expected), Some(stripe)) = (expected, session::stripe_bytes())
        && expected != stripe
    {
        let why = format!("the stripe of the lock servers is {stripe} bytes");
        warn(open, call, STRIPE, &expected.to_string(), &why);
    }
}

/// Adds the hints that hold for a file to an info object.
pub fn report(open: &Open, info: &mut MPI_Info) -> Result<(), Code> {
    let hints = *hold(&open.hints);
    mpi::set_hint(info, METHOD, name_of(&Method::NAMES, &hints.method))?;
    mpi::set_hint(info, PROTOCOL, name_of(&Protocol::NAMES, &hints.protocol))?;
    // Only files in atomic mode have servers.
    match open.atomic().and_then(|_| session::stripe_bytes()) {
        Some(stripe) => mpi::set_hint(info, STRIPE, &stripe.to_string()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_have_the_names_of_the_commands_and_others_are_ignored() {
        let mut hints = Hints::default();
        hints.set(METHOD, "list").unwrap();
        hints.set(PROTOCOL, "two-phase").unwrap();
        hints.set(STRIPE, "64KiB").unwrap();
        let expected =
            Hints { method: Method::List, protocol: Protocol::TwoPhase, stripe_bytes: Some(1 << 16) };
        assert_eq!(hints, expected);
        assert_eq!(hints.set(METHOD, "List").unwrap_err(), "the values are posix, list, datatype");
        assert!(hints.set(PROTOCOL, "").is_err() && hints.set(STRIPE, "much").is_err());
        assert_eq!(hints, expected);
        assert_eq!(name_of(&Method::NAMES, &hints.method), "list");
        assert_eq!(name_of(&Protocol::NAMES, &Protocol::default()), "alt-try");
    }
}
