//! The place of a sequencer: the rank that has authority over it, and the way to that rank (Sevilla et al., *Malacology*,
//! sections 4.3 and 6.2).
//!
//! The place is part of the sequencer's record, so one transaction moves it, and there is no other table that could
//! contradict it. Each migration makes a new *generation*. The number by which a rank passes the fence of the sequencer's
//! object ([`Place::token`]) begins with the generation and ends with the rank's epoch. So whatever ranks had authority
//! in earlier generations are fenced, at whichever epoch they are, and so are earlier epochs of the rank that has it now.
//! The rank that all sequencers had before there were several has generation 0, where the number is its epoch alone.

use std::fmt;
use std::str::FromStr;

/// The number of a metadata rank.
pub type RankNumber = u32;

/// The greatest number of a rank.
pub const RANK_MAX: RankNumber = 1023;

/// The words of modes, for messages.
pub const MODES: &str = "client, proxy or proxy-half";

/// The way in which clients reach a sequencer after a migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Clients are redirected to the new rank.
    #[default]
    Client,
    /// The old rank stays the clients' contact and forwards their requests to the new rank.
    Proxy,
    /// The same for every second client; the others are redirected.
    ProxyHalf,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Client => "client",
            Mode::Proxy => "proxy",
            Mode::ProxyHalf => "proxy-half",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        match text {
            "client" => Ok(Mode::Client),
            "proxy" => Ok(Mode::Proxy),
            "proxy-half" => Ok(Mode::ProxyHalf),
            _ => Err(format!("\"{text}\" is not a mode: {MODES}")),
        }
    }
}

/// The rank that clients turn to although another one has the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contact {
    /// The rank.
    pub rank: RankNumber,
    /// True if it forwards the requests of every second client only.
    pub half: bool,
}

/// The place of a sequencer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The rank that has authority over it.
    pub rank: RankNumber,
    /// The number of its migrations, and of the times that it was created anew.
    pub generation: u32,
    /// The rank that forwards requests to it, if one does.
    pub contact: Option<Contact>,
}

/// The other end of a connection, as far as the way of its requests depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caller {
    /// A client that does not know redirections.
    #[default]
    Old,
    /// A client that follows redirections.
    Client,
    /// Another rank, which forwards a request, or a client whose request is for the rank with the authority alone.
    Rank,
}

/// The way of a request to a rank that has no authority over its sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The caller is to ask that rank.
    Redirect(RankNumber),
    /// The rank asks that one for the caller.
    Forward(RankNumber),
    /// The rank has got the authority meanwhile: the caller is to ask again.
    Again,
}

impl Place {
    /// Returns the number by which the rank passes the fence of the sequencer's object at an epoch.
    pub fn token(self, epoch: u64) -> u64 {
        // Grants have the epoch in 32 bits, too: no rank comes near so many.
        (u64::from(self.generation) << 32) | epoch.min(u64::from(u32::MAX))
    }

    /// Returns the place after a migration to a rank.
    pub fn moved(self, to: RankNumber, mode: Mode) -> Place {
        let contact = match mode {
            Mode::Proxy | Mode::ProxyHalf if to != self.rank => {
                Some(Contact { rank: self.rank, half: mode == Mode::ProxyHalf })
            }
            _ => None,
        };
        Place { rank: to, generation: self.generation.saturating_add(1), contact }
    }

    /// Returns whether a migration to a rank would change nothing at a rank that has the authority. A request for one may
    /// come twice, and so to the rank to which the sequencer has moved.
    pub fn stays(self, to: RankNumber, mode: Mode) -> bool {
        to == self.rank && (self.contact.is_none() || mode != Mode::Client)
    }

    /// Returns the way of a request at a rank that has no authority, of a client with this number.
    pub fn way(self, at: RankNumber, caller: Caller, client: u64) -> Way {
        if self.rank == at {
            return Way::Again;
        }
        match (caller, self.contact) {
            (Caller::Old, _) => Way::Forward(self.rank),
            (Caller::Client, Some(contact)) if contact.rank != at => Way::Redirect(contact.rank),
            (Caller::Client, Some(contact)) if !contact.half || client.is_multiple_of(2) => {
                Way::Forward(self.rank)
            }
            _ => Way::Redirect(self.rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_moved_is_fenced_at_its_old_rank_for_good() {
        let first = Place::default();
        assert_eq!(first.token(7), 7);
        let moved = first.moved(2, Mode::Client);
        assert!(moved.token(0) > first.token(u64::MAX) && moved.token(2) > moved.token(1));
        let back = moved.moved(0, Mode::Proxy);
        assert!(back.token(0) > moved.token(1 << 30));
        assert_eq!(back, Place { rank: 0, generation: 2, contact: Some(Contact { rank: 2, half: false }) });
    }

    #[test]
    fn requests_are_redirected_or_forwarded_by_the_mode_and_by_what_a_client_knows() {
        let moved = Place::default().moved(1, Mode::Client);
        assert_eq!(moved.way(0, Caller::Client, 1), Way::Redirect(1));
        assert_eq!(moved.way(0, Caller::Old, 1), Way::Forward(1));
        assert_eq!(moved.way(1, Caller::Client, 1), Way::Again);
        let proxied = Place::default().moved(1, Mode::Proxy);
        assert_eq!(proxied.way(0, Caller::Client, 1), Way::Forward(1));
        assert_eq!(proxied.way(0, Caller::Rank, 1), Way::Redirect(1));
        assert_eq!(proxied.way(2, Caller::Client, 1), Way::Redirect(0));
        let half = Place::default().moved(1, Mode::ProxyHalf);
        assert_eq!(
            [1, 2].map(|client| half.way(0, Caller::Client, client)),
            [Way::Redirect(1), Way::Forward(1)]
        );
    }

    #[test]
    fn a_migration_that_is_asked_for_twice_changes_nothing() {
        let proxied = Place::default().moved(1, Mode::Proxy);
        assert!(
            proxied.stays(1, Mode::Proxy)
                && !proxied.stays(1, Mode::Client)
                && !proxied.stays(0, Mode::Proxy)
        );
        assert!(Place::default().stays(0, Mode::Client));
        for mode in [Mode::Client, Mode::Proxy, Mode::ProxyHalf] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("half".parse::<Mode>().is_err());
    }
}
