//! Removing members, and keeping them out for a time.

use std::net::IpAddr;

use super::{Control, Counter};
use crate::host::Now;
use crate::table::{GroupId, MemberIndex};
use crate::token::Identity;
use crate::wire::Reason;

/// The greatest number of bans that hold at a time.
pub const BANS_MAX: usize = 4096;

/// The members that an order is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The members whose tokens have this identity.
    Identity(Identity),
    /// The members in this network: an address, and how many of its first bits count.
    Network(IpAddr, u8),
}

impl Subject {
    /// Returns whether the order is about a member with this identity and address.
    pub fn is(&self, identity: Option<Identity>, address: IpAddr) -> bool {
        match *self {
            Subject::Identity(wanted) => identity == Some(wanted),
            Subject::Network(network, bits) => match (network.to_canonical(), address.to_canonical()) {
                (IpAddr::V4(a), IpAddr::V4(b)) => same_bits(a.to_bits().into(), b.to_bits().into(), 32, bits),
                (IpAddr::V6(a), IpAddr::V6(b)) => same_bits(a.to_bits(), b.to_bits(), 128, bits),
                _ => false,
            },
        }
    }
}

fn same_bits(a: u128, b: u128, width: u8, bits: u8) -> bool {
    (a ^ b).checked_shr(u32::from(width.saturating_sub(bits))).unwrap_or(0) == 0
}

/// A ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The members.
    pub subject: Subject,
    /// The group; `None` for all.
    pub group: Option<GroupId>,
    /// The time at which it ends, in seconds since 1970.
    pub until_unix_s: u64,
}

impl Control {
    /// Removes members, and keeps them out for that many seconds; with 0 they may join again at once.
    /// Returns the number of members that were removed; `None` if there are too many bans already, and then nothing
    /// is done.
    pub fn expel(&mut self, now: Now, subject: Subject, group: Option<GroupId>, seconds: u64) -> Option<u64> {
        self.bans.retain(|ban| ban.until_unix_s > now.unix_s);
        if seconds > 0 {
            let until_unix_s = now.unix_s.saturating_add(seconds);
            match self.bans.iter().position(|ban| (ban.subject, ban.group) == (subject, group)) {
                Some(at) => self.bans[at].until_unix_s = until_unix_s,
                None if self.bans.len() >= BANS_MAX => return None,
                None => self.bans.push(Ban { subject, group, until_unix_s }),
            }
        }
        let reason = if seconds > 0 { Reason::Banned } else { Reason::Kicked };
        let mut removed = 0;
        for index in (0..self.table.members_end()).map(MemberIndex) {
            let Some(member) = self.table.get_member(index) else { continue };
            let right_group = group.is_none_or(|group| self.table.group(member.group).id == group);
            if right_group && subject.is(self.seat(index).identity(), member.address.ip()) {
                self.dismiss(now, index, reason);
                removed += 1;
            }
        }
        Some(removed)
    }

    /// Ends a ban. Returns false if there is none like that.
    pub fn pardon(&mut self, subject: Subject, group: Option<GroupId>) -> bool {
        let before = self.bans.len();
        self.bans.retain(|ban| (ban.subject, ban.group) != (subject, group));
        self.bans.len() < before
    }

    /// Returns the bans.
    pub fn bans(&self) -> &[Ban] {
        &self.bans
    }

    /// Returns how long a member is banned from a group, in milliseconds.
    pub(super) fn banned_ms(
        &self,
        now: Now,
        group: GroupId,
        identity: Option<Identity>,
        address: IpAddr,
    ) -> Option<u32> {
        let bans = self.bans.iter().filter(|ban| ban.group.is_none_or(|of| of == group));
        let until = bans.filter(|ban| ban.subject.is(identity, address)).map(|ban| ban.until_unix_s).max()?;
        let left_s = until.checked_sub(now.unix_s).filter(|left_s| *left_s > 0)?;
        Some(u32::try_from(left_s.saturating_mul(1000)).unwrap_or(u32::MAX))
    }

    /// Returns whether a member may supply the state of a group.
    pub(super) fn may_supply(&self, asks_for_tokens: bool, has_right: bool, address: IpAddr) -> bool {
        match &self.options.suppliers {
            Suppliers::Default => !asks_for_tokens || has_right,
            Suppliers::Members => true,
            Suppliers::Tokens => asks_for_tokens && has_right,
            Suppliers::Nobody => false,
            Suppliers::Addresses(list) => list.iter().any(|of| of.to_canonical() == address.to_canonical()),
        }
    }

    pub(super) fn refuse_count(reason: Reason) -> Counter {
        match reason {
            Reason::TokenMissing => Counter::TokenMissing,
            Reason::TokenExpired => Counter::TokenExpired,
            Reason::TokenGroup => Counter::TokenGroup,
            Reason::TokenAddress => Counter::TokenAddress,
            Reason::TokenForged => Counter::TokenForged,
            _ => Counter::TokenMalformed,
        }
    }
}

/// The members that a group's state is asked of, among those that say that they can give it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Suppliers {
    /// The members whose token has the right, where tokens are asked for; elsewhere any.
    #[default]
    Default,
    /// Any.
    Members,
    /// The members whose token has the right; in groups without tokens nobody.
    Tokens,
    /// Nobody.
    Nobody,
    /// The members at these addresses.
    Addresses(Vec<IpAddr>),
}
