//! Lanes: the members of a group that are reached by one path, in places that are stable within a generation.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::member::{MemberIndex, NOBODY};

/// The greatest number of lanes of a group. A member chooses the address that it joins at: where the reflector has whole
/// networks of them, as with loopback, it could make a lane with each datagram.
pub const LANES_MAX: usize = 1024;

/// The number of a group's first lanes that keep their paths, as planes know them by number. Where there may be no more
/// lanes, a later one without members takes another path: devices of tunnels and containers come and go, and each that
/// comes has an index of its own.
pub const LANES_KEPT: usize = LANES_MAX / 2;

/// The path to a member: the device, and the reflector's own address that the member joined at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// The index of the network device.
    pub device: u32,
    /// The reflector's address and port, as the member sees them.
    pub local: SocketAddr,
}

/// A place in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The destination of a copy.
    pub address: SocketAddr,
    /// The member at this place; [`NOBODY`] for a gap.
    pub(super) member: u32,
}

impl Entry {
    /// Returns the member at this place; `None` for a gap.
    pub fn member(&self) -> Option<MemberIndex> {
        (self.member != NOBODY).then_some(MemberIndex(self.member))
    }
}

/// The members of a group that are reached by one path.
#[derive(Clone, Debug)]
pub struct Lane {
    /// The path to its members.
    pub path: Path,
    /// The generation, which grows, and wraps, when the lane is rewritten.
    pub generation: u8,
    /// The places, some of which may be gaps.
    pub entries: Vec<Entry>,
    /// The number of members among them.
    pub live: u32,
    /// The number of members that are reached by it, whether they get copies or not.
    pub(super) members: u32,
    /// The gaps that each of the last rewritings left out, newest last.
    #[expect(clippy::box_collection, reason = "very many lanes were never rewritten")]
    pub(super) left_out: Option<Box<VecDeque<Vec<u32>>>>,
}

/// The number of rewritings of a lane that are remembered. There is at most one each time that the changes are taken,
/// and a position named by an older generation is on its way for milliseconds only.
pub(super) const REWRITINGS: usize = 8;

/// The number of low bits of a generation that are enough to name it, on the way from the kernel.
pub const GENERATION_BITS: u32 = 6;

impl Lane {
    /// Creates a lane without members.
    pub fn new(path: Path) -> Lane {
        Lane { path, generation: 0, entries: Vec::new(), live: 0, members: 0, left_out: None }
    }

    /// Returns whether a member with this address is in the lane.
    pub fn holds(&self, address: SocketAddr) -> bool {
        self.entries.iter().any(|entry| entry.member().is_some() && entry.address == address)
    }

    /// Returns the present position of the entry at a position of an earlier generation, of which the low
    /// [`GENERATION_BITS`] are given; that of the next member if the entry was a gap. `None` if the generation is too
    /// old. All positions but 0 may have moved.
    pub fn position_now(&self, generation: u8, position: usize) -> Option<usize> {
        let behind = usize::from(self.generation.wrapping_sub(generation) & ((1 << GENERATION_BITS) - 1));
        let left_out = self.left_out.as_deref();
        let first = left_out.map_or(0, VecDeque::len).checked_sub(behind);
        match (position, first) {
            (0, _) => Some(0),
            (_, None) => None,
            (position, Some(first)) => {
                let rewritings = left_out.into_iter().flat_map(|left_out| left_out.range(first..));
                Some(rewritings.fold(position, |position, gaps| {
                    position - gaps.partition_point(|&gap| (gap as usize) < position)
                }))
            }
        }
    }
}
