//! Planes, which make the copies: one trait, several implementations, and one contract, checked by `tests/contract`:
//!
//! - Every member of a group, except the sender (unless it asked for that), gets one copy of each datagram, unchanged.
//! - Only members' datagrams are copied, and only members get copies.
//! - An admitted datagram is not lost at the sender in silence, at any load: a copy is delivered, or, if the group has an
//!   age limit and its device had no room in time, counted as too old. A datagram that cannot be taken is refused whole,
//!   and counted.
//! - The datagrams of one member reach each other member in the order in which they were sent.
//! - Members join and leave without a moment of loss for the others.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;

use nacre_reflect::rate::BucketIndex;
use nacre_reflect::table::{Change, GroupIndex, Lane, Table};

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

/// The origin of this program's object files for the kernel.
pub const OBJECTS: &str = nacre_reflect_bpf::ORIGIN;

/// The kinds of planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    /// One system call for each copy: the paper's user-space implementation, and the baseline.
    Sendto,
    /// One system call for many copies.
    Batch,
    /// Frames built in memory shared with the kernel; the payload is summed once.
    Ring,
    /// Copies by a program at the traffic-control hook; user space is not woken.
    Kernel,
    /// Copies by a program in the driver, through a map of devices.
    Xdp,
}

impl PlaneKind {
    /// All kinds, from the plainest on.
    pub const ALL: [PlaneKind; 5] =
        [PlaneKind::Sendto, PlaneKind::Batch, PlaneKind::Ring, PlaneKind::Kernel, PlaneKind::Xdp];

    /// Returns the name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            PlaneKind::Sendto => "sendto",
            PlaneKind::Batch => "batch",
            PlaneKind::Ring => "ring",
            PlaneKind::Kernel => "kernel",
            PlaneKind::Xdp => "xdp",
        }
    }

    /// Returns the object file with the programs of a plane in the kernel, or why it is not there; `None` for the others.
    pub fn object(self) -> Option<Result<&'static [u8], &'static str>> {
        match self {
            PlaneKind::Kernel => Some(nacre_reflect_bpf::TC),
            PlaneKind::Xdp => Some(nacre_reflect_bpf::XDP),
            _ => None,
        }
    }

    /// Returns whether a program in the kernel does the work.
    pub fn in_kernel(self) -> bool {
        matches!(self, PlaneKind::Kernel | PlaneKind::Xdp)
    }
}

impl fmt::Display for PlaneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for PlaneKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("'{text}' is not a plane: {}", Self::ALL.map(PlaneKind::name).join(", ")))
    }
}

/// The error of a plane that does not work here, or has failed.
#[derive(Debug, thiserror::Error)]
#[error("the {plane} plane cannot {action}: {why}")]
pub struct PlaneError {
    /// The kind of plane.
    pub plane: PlaneKind,
    /// The attempted operation.
    pub action: String,
    /// The cause, and what would help.
    pub why: String,
}

/// Copies to make: of one datagram, to a range of a lane.
#[derive(Debug)]
pub struct LaneBatch<'a> {
    /// The group.
    pub group: GroupIndex,
    /// The number of the lane in the group.
    pub number: u16,
    /// The lane.
    pub lane: &'a Lane,
    /// The positions in the lane. Gaps are passed over.
    pub positions: Range<usize>,
    /// The sender, which gets no copy; `None` if it asked for one.
    pub except: Option<SocketAddr>,
    /// The type of service (traffic class) of every copy: the sender's, without marks of congestion.
    pub tos: u8,
    /// The payload of every copy.
    pub payload: &'a [u8],
}

impl LaneBatch<'_> {
    /// Returns the receiver at a position; `None` if it is a gap, the sender's, or no position at all.
    pub fn to(&self, position: usize) -> Option<SocketAddr> {
        let entry = self.lane.entries.get(position)?;
        entry.member()?;
        (Some(entry.address) != self.except).then_some(entry.address)
    }
}

/// The progress of a lane batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyProgress {
    /// The first position that is still to be done; the end of the range if none is.
    pub next: usize,
    /// Copies that the device took.
    pub copies: u32,
    /// Copies that can never be sent (no route, too long for the path): counted, and passed over.
    pub undeliverable: u32,
    /// True if the device is full: try again from `next` when it has drained.
    pub full: bool,
}

/// A datagram that a kernel program admitted and left to user space to copy, or to finish. Still to be done are all
/// lanes after `lane`, and the positions of `lane` from `position` on, in that lane's `generation`. A datagram of which
/// nothing was copied is at the first position of the first lane, in any generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescue {
    /// The group.
    pub group: GroupIndex,
    /// The lane, by number.
    pub lane: u16,
    /// The low bits ([`nacre_reflect::table::GENERATION_BITS`], at least) of the generation of the lane that `position` is of.
    pub generation: u8,
    /// The first position without its copy.
    pub position: u32,
    /// The member that gets no copy, if any.
    pub except: Option<SocketAddr>,
    /// The type of service of the copies.
    pub tos: u8,
    /// The payload of the copies.
    pub payload: Vec<u8>,
}

/// Counts of the copies that devices took, by who made them: what a plane is named after, or what it fell back to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Programs in drivers.
    pub driver: u64,
    /// The program at the traffic-control hook.
    pub hook: u64,
    /// User space, as frames in memory shared with the kernel.
    pub frames: u64,
    /// User space, by sockets.
    pub sockets: u64,
}

impl std::ops::Add for CopyCounts {
    type Output = CopyCounts;

    fn add(self, other: CopyCounts) -> CopyCounts {
        CopyCounts {
            driver: self.driver + other.driver,
            hook: self.hook + other.hook,
            frames: self.frames + other.frames,
            sockets: self.sockets + other.sockets,
        }
    }
}

/// Counts of what a kernel program did by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Datagrams that it admitted.
    pub datagrams: u64,
    /// Bytes of payload in the admitted datagrams.
    pub bytes: u64,
    /// Copies that a device took.
    pub copies: u64,
    /// Datagrams from addresses that are not members.
    pub non_members: u64,
    /// Datagrams beyond a member's or a group's rate.
    pub over_rate: u64,
    /// Datagrams refused because too many are waiting already.
    pub backlog: u64,
    /// Datagrams longer than a member's device can carry, and other copies that can never be sent.
    pub undeliverable: u64,
    /// Datagrams that were handed to user space.
    pub handed: u64,
    /// Datagrams that were admitted and could not be handed over. There is none, or the plane is wrong.
    pub handed_lost: u64,
}

/// A way of making copies.
///
/// User space always receives, queues, orders and accounts in the same way (`forward`); a plane makes the copies. A
/// plane in the kernel does most of that by itself, and is told of the table's changes, and when user space has
/// finished the datagrams that it handed over.
pub trait Plane: Send {
    /// Returns the kind of plane.
    fn kind(&self) -> PlaneKind;

    /// Makes copies until the lane batch is done or its device is full. Does not wait.
    ///
    /// # Errors
    /// [`PlaneError`] if the plane has failed.
    fn copy(&mut self, lane_batch: &LaneBatch<'_>) -> Result<CopyProgress, PlaneError>;

    /// Follows a change of the table, which shows the new state already. Called in order, and before any client is
    /// answered. Changes of one moment are reported together, so the table may show a later one already.
    ///
    /// # Errors
    /// [`PlaneError`] if the plane has failed.
    fn follow(&mut self, table: &Table, change: Change) -> Result<(), PlaneError> {
        let _ = (table, change);
        Ok(())
    }

    /// Returns the buckets that a program in the kernel takes from, so that it and user space keep one rule: that of a
    /// sender's owner, and that of its group.
    fn buckets(&self, bucket: BucketIndex, group: GroupIndex) -> Option<[&AtomicU64; 2]> {
        let _ = (bucket, group);
        None
    }

    /// Sets the number of datagrams that may wait for a device in user space. A plane that hands datagrams over hands
    /// over no more of a group.
    fn bound(&mut self, datagrams: usize) {
        let _ = datagrams;
    }

    /// Takes the next datagram that a program in the kernel admitted and could not copy to the end. It has to be copied
    /// before datagrams that sockets have received meanwhile, which are later ones.
    fn rescue(&mut self) -> Option<Rescue> {
        None
    }

    /// Returns the number of datagrams that [`Plane::rescue`] has to return now, or somewhat more. A program may hand over
    /// the next ones as fast as they are taken.
    fn rescues_max(&self) -> u64 {
        0
    }

    /// Returns a file that becomes readable when [`Plane::rescue`] has something to return.
    fn rescue_ready(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Sends copies that the plane has taken and still keeps itself, adds those that a device took to `copies`, and
    /// returns true if none is left. Does not wait.
    fn flush(&mut self, copies: &mut u64) -> bool {
        let _ = copies;
        true
    }

    /// Notes that this plane takes over from another, and sockets may still hold datagrams: until they were found
    /// empty, a program in the kernel lets later ones go to the sockets, too.
    fn hold(&mut self) {}

    /// Notes that all datagrams that came before the last call have been received since: the sockets were found empty.
    fn settle(&mut self) {}

    /// Notes that a datagram of this group that a program in the kernel handed over, or that waited ([`Plane::waits`]),
    /// has been copied to all members, or given up.
    fn finished(&mut self, group: GroupIndex) {
        let _ = group;
    }

    /// Notes that a datagram of this group waits in user space that no program in the kernel handed over. It is finished
    /// like one that was, and until then nothing may overtake it.
    fn waits(&mut self, group: GroupIndex) {
        let _ = group;
    }

    /// Refreshes what becomes outdated: neighbours, routes, devices, credits. Called several times a second.
    ///
    /// # Errors
    /// [`PlaneError`] if the plane has failed.
    fn maintain(&mut self, table: &Table) -> Result<(), PlaneError> {
        let _ = table;
        Ok(())
    }

    /// Returns the counts of what was done without user space since the last call.
    fn done(&mut self) -> Done {
        Done::default()
    }

    /// Returns the counts of the copies made since the plane was; those of programs as of the last [`Plane::done`].
    fn copy_counts(&self) -> CopyCounts {
        CopyCounts::default()
    }

    /// Returns the counts of what was done with a group's datagrams without user space since the group was made:
    /// admitted datagrams, copies, and refusals.
    fn group_done(&self, group: GroupIndex) -> Done {
        let _ = group;
        Done::default()
    }
}
