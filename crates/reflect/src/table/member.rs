//! Members: the terms on which they are in a group, and what the table knows of each.

use std::net::SocketAddr;

use super::group::GroupIndex;
use crate::rate::{BucketIndex, Owner};

/// The place of a member in its table. Places of members that left are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberIndex(pub u32);

/// The terms on which a member is in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// True if it wants copies of its own datagrams.
    pub echo: bool,
    /// The owner of its rate.
    pub owner: Owner,
    /// True if its datagrams are copied.
    pub sends: bool,
    /// True if it gets copies.
    pub receives: bool,
}

impl Terms {
    /// Returns the terms of a member that sends and receives, and whose rate is its address's.
    pub fn of_address(address: SocketAddr, echo: bool) -> Terms {
        Terms { echo, owner: Owner::of_address(address.ip()), sends: true, receives: true }
    }
}

/// The position of a member that gets no copies.
pub(super) const NOWHERE: u32 = u32::MAX;

/// The place of no member.
pub(super) const NOBODY: u32 = u32::MAX;

/// The terms of a member, as far as they are kept.
#[derive(Clone, Copy)]
pub(super) struct Put {
    pub echo: bool,
    pub sends: bool,
    pub receives: bool,
    pub bucket: BucketIndex,
    pub by_address: bool,
}

/// A member.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its group.
    pub group: GroupIndex,
    /// The address that it has proven to listen on.
    pub address: SocketAddr,
    /// The number of its lane in the group.
    pub lane: u16,
    /// True if its own datagrams are copied to everybody: it wants copies of them, or gets none at all.
    pub echo: bool,
    /// True if its datagrams are copied.
    pub sends: bool,
    /// Its place in the lane; [`u32::MAX`] if it gets no copies.
    pub position: u32,
    /// The port of its group.
    pub(super) port: u16,
    /// The member with the same address and port that joined another group before; [`NOBODY`] if there is none.
    pub(super) older: u32,
    /// The bucket of the owner of its rate.
    pub bucket: BucketIndex,
    /// True if that owner is an address, which others may share.
    pub by_address: bool,
    /// The time at which it was last heard of, in milliseconds of the clock of the table's owner.
    pub heard_ms: u64,
    /// The number of the last heartbeat: an older one is a replay.
    pub heartbeat: u32,
    /// The measured round-trip delay, in microseconds; 0 if not yet known.
    pub delay_us: u32,
}

impl Member {
    pub(super) fn older(&self) -> Option<MemberIndex> {
        (self.older != NOBODY).then_some(MemberIndex(self.older))
    }

    /// Returns whether it gets copies, and so has a place in its lane.
    pub fn receives(&self) -> bool {
        self.position != NOWHERE
    }
}
