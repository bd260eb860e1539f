//! The rounds that an operation may take.

use super::{Protocol, Wanted};
use crate::PatternError;

/// The maximum number of rounds that an operation may need. At a server around the corner they take some minutes.
pub const ROUNDS_MAX: u64 = 1 << 24;

/// Refuses an operation whose two-phase rounds could be so many that it would never end in practice.
///
/// Such a round goes from the least missing byte to the next one of another server, so it gets no further than to the end of a
/// stripe: all bytes of a file, 64 KiB a server, are 2^47 rounds. Operations that alternate with optimistic rounds
/// ([`Protocol::AltTry`]) or do not wait need no such rounds for what nobody else holds.
pub(super) fn check(wanted: &Wanted) -> Result<(), PatternError> {
    let ordered = wanted.waits && wanted.protocol != Protocol::AltTry;
    let Some(bounds) = wanted.pattern.bounds().filter(|_| ordered && wanted.servers > 1) else {
        return Ok(());
    };
    let stripe = wanted.stripe_bytes;
    let stripes = (bounds.end() - 1) / stripe - bounds.offset / stripe + 1;
    // A region of n bytes touches at most n / stripe + 2 stripes.
    let touched = wanted
        .pattern
        .count(1)
        .map_or(u64::MAX, |count| (count.bytes / stripe).saturating_add(count.regions.saturating_mul(2)));
    let rounds = stripes.min(touched);
    if rounds <= ROUNDS_MAX {
        return Ok(());
    }
    let protocol = Protocol::NAMES.iter().find(|(_, protocol)| *protocol == wanted.protocol);
    let protocol = protocol.map_or("this protocol", |(name, _)| name);
    Err(PatternError::TooManyRounds { protocol, servers: wanted.servers, rounds, rounds_max: ROUNDS_MAX })
}
