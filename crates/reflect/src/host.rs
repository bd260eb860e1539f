//! The reflector as the forwarder sees it: the owner of the table. It is given the time and the datagrams for
//! the reflector itself, and returns datagrams to send. It has neither sockets nor clocks.

use std::net::SocketAddr;

use crate::table::{GroupIndex, MemberIndex, Path, Table};

/// A datagram for the reflector itself.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// The device by which it came in (`device`), and the reflector's address that it was sent to (`local`).
    pub path: Path,
    /// The source address, which may be forged.
    pub from: SocketAddr,
    /// The payload.
    pub bytes: &'a [u8],
}

/// A datagram sent by the reflector itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The reflector's address that it is sent from.
    pub local: SocketAddr,
    /// The destination.
    pub to: SocketAddr,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// The present time, by the clocks that the reflector uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of the monotonic clock.
    pub ms: u64,
    /// Nanoseconds of the same clock: `CLOCK_MONOTONIC`, which the kernel's programs read too.
    pub ns: u64,
    /// Seconds of the wall clock since 1970.
    pub unix_s: u64,
}

/// The owner of the table, which also handles the datagrams for the reflector itself.
pub trait Host {
    /// Returns the table.
    fn table(&mut self) -> &mut Table;

    /// Handles a datagram that begins with the magic of the control protocol.
    fn control(&mut self, now: Now, incoming: Incoming<'_>);

    /// Takes the next datagram that the host wants sent.
    fn outgoing(&mut self) -> Option<Outgoing>;

    /// Returns the number of members of a relayed group that get copies elsewhere; `None` if nothing of it may be admitted
    /// now.
    fn receivers_elsewhere(&self, group: GroupIndex) -> Option<u32> {
        let _ = group;
        Some(0)
    }

    /// Takes a datagram of a relayed group that was admitted. Returns true if it is to be copied to the group's members
    /// now; false if its turn is yet to come ([`Host::relayed`]). `sender` is known but for what came past the sockets.
    fn relay(
        &mut self,
        now: Now,
        group: GroupIndex,
        sender: Option<MemberIndex>,
        except: Option<SocketAddr>,
        tos: u8,
        payload: &[u8],
    ) -> bool {
        let _ = (now, group, sender, except, tos, payload);
        true
    }

    /// Takes the next datagram of a relayed group whose turn has come. It is to be copied to those who are members then,
    /// before the next one is taken.
    fn relayed(&mut self, now: Now) -> Option<Relayed> {
        let _ = now;
        None
    }
}

/// A datagram of a group whose members are at several reflectors, to be copied to those that are here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// The group.
    pub group: GroupIndex,
    /// The member here that gets no copy, if any.
    pub except: Option<SocketAddr>,
    /// The type of service of the copies.
    pub tos: u8,
    /// The payload.
    pub payload: Vec<u8>,
}
