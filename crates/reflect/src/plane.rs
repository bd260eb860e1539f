//! How datagrams are copied. One trait, several ways; all keep one contract, which `tests/contract.rs` holds them to:
//!
//! - Every member of a group, but its sender (unless that asked for it), gets one copy of what a member sends, unchanged.
//! - Nobody else's datagrams are copied, and nobody else gets copies.
//! - What was admitted is not lost at the sender, at any load. What cannot be taken is refused whole, and counted.
//! - What one member sends reaches each other member in the order in which it was sent.
//! - Members join and leave without a moment of loss for the others.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::table::{Change, GroupIndex, Lane, Table};

mod batch;
pub mod kernel;
mod open;
mod ring;
mod sendto;
pub mod xdp;

pub use batch::Batch;
pub use open::{PlaneOptions, auto, open};
pub use ring::Ring;
pub use sendto::Sendto;
pub use xdp::Xdp;

/// The ways to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One system call for each copy: the paper's user-space implementation, and the baseline.
    Sendto,
    /// One system call for many copies.
    Batch,
    /// Frames built in memory shared with the kernel; the payload is summed once.
    Ring,
    /// A program at the traffic-control hook copies; user space is not woken.
    Kernel,
    /// A program in the driver copies, through a map of devices.
    Xdp,
}

impl Kind {
    /// All of them, from the plainest on.
    pub const ALL: [Kind; 5] = [Kind::Sendto, Kind::Batch, Kind::Ring, Kind::Kernel, Kind::Xdp];

    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sendto => "sendto",
            Kind::Batch => "batch",
            Kind::Ring => "ring",
            Kind::Kernel => "kernel",
            Kind::Xdp => "xdp",
        }
    }

    /// True if a program in the kernel does the work.
    pub fn in_kernel(self) -> bool {
        matches!(self, Kind::Kernel | Kind::Xdp)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("'{text}' is not a plane: {}", Self::ALL.map(Kind::name).join(", ")))
    }
}

/// A plane that does not work here, or no more.
#[derive(Debug, thiserror::Error)]
#[error("the {plane} plane cannot {what}: {why}")]
pub struct PlaneError {
    /// Which plane.
    pub plane: Kind,
    /// What it was to do.
    pub what: String,
    /// Why it cannot, and what would help.
    pub why: String,
}

/// One portion of copies to make: a datagram, to a range of a lane.
#[derive(Debug)]
pub struct Portion<'a> {
    /// The group.
    pub group: GroupIndex,
    /// The number of the lane in it.
    pub number: u16,
    /// The lane.
    pub lane: &'a Lane,
    /// Positions in it. Gaps are passed over.
    pub positions: Range<usize>,
    /// The sender, who gets none.
    pub except: Option<SocketAddr>,
    /// What every copy carries.
    pub payload: &'a [u8],
}

impl Portion<'_> {
    /// Who gets a copy at a position: nobody if it is a gap, the sender's, or no position at all.
    pub fn to(&self, position: usize) -> Option<SocketAddr> {
        let entry = self.lane.entries.get(position)?;
        entry.member?;
        (Some(entry.address) != self.except).then_some(entry.address)
    }
}

/// How far a portion came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The first position that still has to be done; the end of the range if none has.
    pub next: usize,
    /// Copies that the device took.
    pub copies: u32,
    /// Copies that can never be sent (no route, too long for the path): counted, and passed over.
    pub undeliverable: u32,
    /// The device is full: try again from `next` when it has drained.
    pub full: bool,
}

/// Where a datagram that has reached the reflector's own socket comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the network: nothing has been done with it.
    Fresh,
    /// A kernel program has admitted it, and copied it up to here: what is left is all lanes after `lane`, and the
    /// positions of `lane` from `position` on, in that lane's `generation`. One that the program has admitted and left
    /// alone, as it may not overtake another, is at the first position of the first lane, in any generation.
    Handed {
        /// The low bits of the group's index ([`Origin::GROUP_BITS`]): its sender may have joined another group meanwhile.
        group: u16,
        /// The lane, by number.
        lane: u16,
        /// The low bits ([`crate::table::GENERATION_BITS`]) of the generation of the lane that `position` is of.
        generation: u8,
        /// The first position without its copy.
        position: u32,
    },
}

/// A datagram that a kernel program admitted and could not copy to the end, and that no socket holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescue {
    /// The group.
    pub group: GroupIndex,
    /// Where to go on.
    pub origin: Origin,
    /// Who gets no copy.
    pub except: Option<SocketAddr>,
    /// What the copies carry.
    pub payload: Vec<u8>,
}

impl Origin {
    /// How many bits of a group's index there are in [`Origin::Handed`].
    pub const GROUP_BITS: u32 = 10;

    /// True if a datagram may be of this group, as far as its origin tells.
    pub fn may_be(self, group: GroupIndex) -> bool {
        match self {
            Origin::Fresh => true,
            Origin::Handed { group: low, .. } => group.0 & ((1 << Self::GROUP_BITS) - 1) == u32::from(low),
        }
    }
}

/// What a kernel program did by itself since the last time it was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Datagrams that it admitted.
    pub datagrams: u64,
    /// Bytes of payload in them.
    pub bytes: u64,
    /// Copies that a device took.
    pub copies: u64,
    /// Datagrams from addresses that are no members.
    pub strangers: u64,
    /// Datagrams beyond a member's or a group's rate.
    pub over_rate: u64,
    /// Datagrams refused because too many wait already.
    pub backlog: u64,
    /// Datagrams longer than a member's device can carry, and other copies that can never be sent.
    pub undeliverable: u64,
    /// Datagrams that were handed to user space.
    pub handed: u64,
    /// Datagrams that were handed over and never arrived there.
    pub handed_lost: u64,
}

/// One way to copy.
///
/// User space always receives, queues, orders and accounts in the same way (`forward`); a plane makes the copies. A plane
/// in the kernel does most of that by itself, and is told of the table's changes and of the end of what it handed over.
pub trait Plane: Send {
    /// Which one it is.
    fn kind(&self) -> Kind;

    /// Makes copies until the portion is done or its device is full. Does not wait.
    fn copy(&mut self, portion: &Portion<'_>) -> Result<Progress, PlaneError>;

    /// Follows a change of the table, which shows the new state already. Told before anybody is answered, in order.
    /// Changes of one moment are told together, so a plane may find a later one shown already by the table.
    fn follow(&mut self, table: &Table, change: Change) -> Result<(), PlaneError> {
        let _ = (table, change);
        Ok(())
    }

    /// How many datagrams may wait for a device in user space. A plane that hands datagrams over hands no more of a group.
    fn bound(&mut self, datagrams: usize) {
        let _ = datagrams;
    }

    /// What the mark of a received datagram means.
    fn origin(&self, mark: u32) -> Origin {
        let _ = mark;
        Origin::Fresh
    }

    /// The next datagram that a program in the kernel admitted and could not copy to the end, and that no socket holds.
    /// Those that sockets have received meanwhile are later ones, so these have to be copied first.
    fn rescue(&mut self) -> Option<Rescue> {
        None
    }

    /// What becomes readable when there is something for [`Plane::rescue`].
    fn rescue_ready(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Sends copies that the plane has taken and still keeps itself, adds to `copies` how many a device took, and says whether
    /// all are gone. Does not wait.
    fn flush(&mut self, copies: &mut u64) -> bool {
        let _ = copies;
        true
    }

    /// This plane takes over from another, and sockets may still hold datagrams: until they were found empty, a program in
    /// the kernel lets user space copy what comes after them.
    fn hold(&mut self) {}

    /// A datagram of this group that a program in the kernel handed over has arrived in user space.
    fn arrived(&mut self, group: GroupIndex) {
        let _ = group;
    }

    /// All datagrams that came before the last call of this have been received since: what a program in the kernel handed
    /// over until then and has not arrived is lost.
    fn settle(&mut self) {}

    /// A datagram of this group that reached user space although a program in the kernel might have copied it (handed
    /// over, or following one that was) has been copied to everybody, or refused.
    fn finished(&mut self, group: GroupIndex) {
        let _ = group;
    }

    /// A datagram of this group waits in user space since before there was this plane. It is finished like one that a
    /// program in the kernel handed over, and until then nothing may overtake it.
    fn waits(&mut self, group: GroupIndex) {
        let _ = group;
    }

    /// Looks after what ages: neighbours, routes, devices, credits. Called several times a second.
    fn maintain(&mut self, table: &Table) -> Result<(), PlaneError> {
        let _ = table;
        Ok(())
    }

    /// What happened since the last call without user space.
    fn done(&mut self) -> Done {
        Done::default()
    }

    /// What came of a group's datagrams without user space since the group was made: those admitted, copies, and refusals.
    fn group_done(&self, group: GroupIndex) -> Done {
        let _ = group;
        Done::default()
    }
}
