//! Groups: their names, their options, and their lanes.

use std::fmt;

use super::lane::{LANES_KEPT, LANES_MAX, Lane, Path};
use crate::rate::Rate;

/// A group: a port of the reflector, and an id where several groups share the port (0 where one has it alone).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId {
    /// The UDP port.
    pub port: u16,
    /// The id on that port.
    pub id: u32,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            0 => write!(f, "{}", self.port),
            id => write!(f, "{}/{id}", self.port),
        }
    }
}

impl std::str::FromStr for GroupId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| format!("'{text}' is not a group: PORT, or PORT/ID");
        let (port, id) = text.split_once('/').unwrap_or((text, "0"));
        Ok(GroupId { port: port.parse().map_err(wrong)?, id: id.parse().map_err(wrong)? })
    }
}

/// The place of a group in its table; planes may index by it. Places of removed groups are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupIndex(pub u32);

/// The options of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// True if copies carry a header with a sequence number, so that members see gaps.
    pub sequence: bool,
    /// True if members must show a token.
    pub token: bool,
    /// The limit of the whole group, in copies.
    pub group_rate: Rate,
    /// The limit of each owner of a rate ([`Owner`](crate::rate::Owner)), in copies.
    pub member_rate: Rate,
    /// The limit of all members together at an address that showed no identity; `None` for that of one.
    pub address_rate: Option<Rate>,
    /// The greatest number of members.
    pub members_max: u32,
    /// The age in milliseconds, since its admission, at which a datagram is not copied to further members: its device
    /// had no room in time. 0 for groups that want every datagram, however late.
    pub max_age_ms: u32,
}

impl Default for GroupOptions {
    /// Returns limits that no game reaches: each member may send a group of a hundred 1000 datagrams a second.
    fn default() -> Self {
        GroupOptions {
            sequence: false,
            token: false,
            group_rate: Rate::per_second(2_000_000, 200_000),
            member_rate: Rate::per_second(100_000, 20_000),
            address_rate: None,
            members_max: 4096,
            max_age_ms: 1000,
        }
    }
}

impl GroupOptions {
    /// Returns the limit of an owner that is an address, or of any other.
    pub fn owner_rate(&self, is_address: bool) -> Rate {
        self.address_rate.filter(|_| is_address).unwrap_or(self.member_rate)
    }
}

/// A group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name.
    pub id: GroupId,
    /// The group's options.
    pub options: GroupOptions,
    /// The lanes, numbered by their place here. A lane stays until the group is removed, one of the later ones
    /// ([`LANES_KEPT`]) perhaps with another path.
    pub lanes: Vec<Lane>,
    /// The number of its members.
    pub live: u32,
    /// The group's bucket ([`Rate`]), where user space keeps it, in nanoseconds.
    pub bucket_ns: u64,
    /// The number of the next datagram, where datagrams are numbered.
    pub sequence: u64,
    /// True while its datagrams go to another reflector, too, and user space has to see each of them.
    pub relayed: bool,
}

impl Group {
    /// Returns the number of its members that get copies.
    pub fn receivers(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.live).sum()
    }

    /// Returns whether members may be reached by a path: there is a lane for it, or may be one more.
    pub fn takes(&self, path: Path) -> bool {
        self.lanes.len() < LANES_MAX || self.lane_for(path).is_some()
    }

    /// Returns the number of the lane for a path: its own, or, where there may be no more lanes, one that takes it.
    pub(super) fn lane_for(&self, path: Path) -> Option<usize> {
        let own = self.lanes.iter().position(|lane| lane.path == path);
        own.or_else(|| {
            let unused = self.lanes.iter().skip(LANES_KEPT).position(|lane| lane.members == 0);
            unused.filter(|_| self.lanes.len() >= LANES_MAX).map(|at| LANES_KEPT + at)
        })
    }
}
