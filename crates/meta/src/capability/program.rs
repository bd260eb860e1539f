//! Policies by programs: what a program is told of a resource that somebody waits for, and what it decides (Sevilla et al.,
//! *Malacology*, sections 4.3.1 and 6.1).
//!
//! The table of capabilities asks, and a program answers at once. Whatever it answers, a resource has one holder at most; and
//! whoever has waited for [`SWAY`] leases is overdue: from then on holders are asked at once, and the line is served in its
//! order.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Session;

/// The number of leases for which a program decides over somebody who waits.
pub const SWAY: u32 = 2;
/// The most waiters that a program is told of: the first in the line.
pub const WAITERS_MAX: usize = 64;
/// The maximum length of a program's name, in bytes: records and messages have that much room for a policy.
const NAME_BYTES_MAX: usize = 16;

/// The name of a program that decides who caches a resource: 1 to 16 letters, digits, `.`, `_` and `-`, of which the first is a
/// letter or a digit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramName([u8; NAME_BYTES_MAX]);

impl ProgramName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES_MAX);
        // It is ASCII, as was checked when it was made.
        std::str::from_utf8(&self.0[..len]).unwrap_or_default()
    }

    /// Returns the name as the two numbers of a policy.
    pub(crate) fn numbers(self) -> (u64, u64) {
        let number = u128::from_le_bytes(self.0);
        (number as u64, (number >> 64) as u64)
    }

    /// Returns the name of two numbers; `None` if they are none.
    pub(crate) fn from_numbers(first: u64, second: u64) -> Option<ProgramName> {
        let name = ProgramName((u128::from(second) << 64 | u128::from(first)).to_le_bytes());
        // There is one spelling of each name: nothing is behind its end.
        name.as_str().parse::<ProgramName>().ok().filter(|same| *same == name)
    }
}

impl FromStr for ProgramName {
    type Err = String;

    fn from_str(text: &str) -> Result<ProgramName, String> {
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        let bytes = text.as_bytes();
        let begins = bytes.first().is_some_and(u8::is_ascii_alphanumeric);
        if !begins || bytes.len() > NAME_BYTES_MAX || !bytes.iter().all(allowed) {
            let rules = format!("1 to {NAME_BYTES_MAX} letters, digits, \".\", \"_\" and \"-\"");
            return Err(format!(
                "{text:?} cannot be the name of a script: {rules}, a letter or a digit first"
            ));
        }
        let mut name = [0; NAME_BYTES_MAX];
        name[..bytes.len()].copy_from_slice(bytes);
        Ok(ProgramName(name))
    }
}

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// A session that holds a resource or waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Party {
    /// The session as others see it, at least 1; 0 for a request of none.
    pub session: Session,
    /// The place of the session among those of the rank, in the order in which they began: 1 for the first; 0 for none.
    pub order: u64,
    /// The time for which it holds the resource, held it, or waits for it.
    pub time: Duration,
    /// Its requests for the resource so far.
    pub requests: u64,
    /// Its grants of the resource so far.
    pub grants: u64,
    /// Its operations under the grants that it has given back.
    pub operations: u64,
    /// True for a request that the rank itself is to serve, and false for one that waits for a grant.
    pub is_round_trip: bool,
}

/// A resource as a program sees it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The lease of sessions.
    pub lease: Duration,
    /// The holder; or whoever has just given the resource back.
    pub holder: Party,
    /// Those who wait, in the order in which they came, at most [`WAITERS_MAX`] of them.
    pub waiters: &'a [Party],
}

/// A decision about a resource that is held while others wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The time from now at which the holder is asked for it.
    pub after: Duration,
    /// The position of the waiter that gets it next; none for the first in the line.
    pub next: Option<usize>,
}

/// The lack of a decision: the holder is asked at once, and the line is served in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undecided;

/// The programs that decide who caches resources. They are called under the rank's lock: an answer has to be there at once.
pub trait Programs: fmt::Debug + Send + Sync {
    /// Takes in that a resource has the policy of a program.
    fn prepare(&self, name: ProgramName);

    /// Decides about a resource that is held while others wait for it. Asked when the first of them comes, with each that
    /// follows, and when there is another holder, until the holder is asked to give the resource back.
    ///
    /// # Errors
    /// [`Undecided`] if the program is not known, or fails.
    fn on_request(&self, now: Duration, name: ProgramName, view: &View<'_>) -> Result<Decision, Undecided>;

    /// Returns the position of the waiter that gets a resource that was given back, where several wait; `None` for the one
    /// that was decided on before.
    ///
    /// # Errors
    /// As [`Programs::on_request`].
    fn on_release(
        &self,
        now: Duration,
        name: ProgramName,
        view: &View<'_>,
    ) -> Result<Option<usize>, Undecided>;
}
