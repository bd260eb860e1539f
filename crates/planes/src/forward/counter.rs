//! Counters of the forwarder, by reason.

use crate::plane::{CopyCounts, CopyProgress, Done};

/// Counts since the forwarder was made. Every datagram that came for a group is admitted, or refused for one of the
/// reasons; every copy of an admitted one is taken by a device, undeliverable, too old, waiting, or no longer wanted
/// because its member has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams received in user space.
    pub received: u64,
    /// Datagrams received for the reflector itself.
    pub control: u64,
    /// Datagrams admitted, in user space and in the kernel.
    pub admitted: u64,
    /// Bytes of payload in the admitted datagrams.
    pub admitted_bytes: u64,
    /// Copies that devices took.
    pub copies: u64,
    /// Copies that can never be sent: no route, or too long for the path.
    pub undeliverable: u64,
    /// Copies that were given up, because their devices had no room within the age limit of the group.
    pub too_old: u64,
    /// The copies, by who made them; of the whole forwarder alone.
    pub copy_counts: CopyCounts,
    /// Refused: from addresses that are not members.
    pub non_members: u64,
    /// Refused: beyond a member's or a group's rate.
    pub over_rate: u64,
    /// Refused: too much is waiting already.
    pub backlog: u64,
    /// Refused: longer than a datagram may be with its header.
    pub too_long: u64,
    /// Refused: the sockets were full, or closed to payload as they were behind.
    pub socket_full: u64,
    /// Datagrams that a kernel program handed to user space.
    pub handed: u64,
    /// Datagrams that a kernel program admitted and could not hand over. There is none, or the plane is wrong.
    pub handed_lost: u64,
    /// Times that a device was full.
    pub full: u64,
    /// Datagrams sent by the reflector itself.
    pub outgoing: u64,
    /// Datagrams by the reflector itself that could not be sent.
    pub outgoing_failed: u64,
    /// Errors that the network reported (unreachable ports and hosts).
    pub reported: u64,
}

impl Counters {
    pub(super) fn took(&mut self, progress: CopyProgress) {
        self.copies += u64::from(progress.copies);
        self.undeliverable += u64::from(progress.undeliverable);
        self.full += u64::from(progress.full);
    }

    /// Takes the number of datagrams that a socket has dropped so far. A number received with a datagram may be older
    /// than one asked of the socket.
    pub(super) fn dropped(&mut self, last: &mut u32, dropped: u32) {
        let more = dropped.wrapping_sub(*last);
        if more < 1 << 31 {
            self.socket_full += u64::from(more);
            *last = dropped;
        }
    }

    /// Adds what a plane did by itself.
    pub(super) fn did(&mut self, done: Done) {
        let Done {
            datagrams,
            bytes,
            copies,
            non_members,
            over_rate,
            backlog,
            undeliverable,
            handed,
            handed_lost,
        } = done;
        self.admitted += datagrams;
        self.admitted_bytes += bytes;
        self.copies += copies;
        self.non_members += non_members;
        self.over_rate += over_rate;
        self.backlog += backlog;
        self.undeliverable += undeliverable;
        self.handed += handed;
        self.handed_lost += handed_lost;
    }
}
