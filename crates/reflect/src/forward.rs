//! The way of a datagram through user space: received in batches, told apart (the reflector's own words, members'
//! payload, strangers'), admitted or refused whole, and copied by a [`Plane`]; what a device cannot take yet waits for it
//! in order.
//!
//! Invariants:
//! - A datagram is admitted once, for everybody, and counted; or refused once, for everybody, and counted by reason.
//! - What was admitted is kept until each device has taken its copies. A later datagram of a group never overtakes an
//!   earlier one on the same device. A device that is full holds up nothing but the copies that go through it.
//! - Nothing waits by turning: a full device is tried again after a timer, while the rest goes on.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::plane::{Done, Plane, PlaneError};
use crate::table::{GroupIndex, Path, Table};

mod listen;

pub use listen::Listeners;

/// A datagram for the reflector itself.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Where it came in (`device`), and which of the reflector's addresses it was sent to (`local`).
    pub path: Path,
    /// Who sent it, or says so.
    pub from: SocketAddr,
    /// What it says.
    pub bytes: &'a [u8],
}

/// A datagram of the reflector itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The reflector's address that it is sent from.
    pub local: SocketAddr,
    /// Who gets it.
    pub to: SocketAddr,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// The time, as those see it who are told of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of a clock that only goes forward.
    pub ms: u64,
    /// Nanoseconds of the same clock: `CLOCK_MONOTONIC`, which the kernel's programs read too.
    pub ns: u64,
    /// Seconds of the world's clock since 1970.
    pub unix_s: u64,
}

/// Who owns the table, and takes the datagrams that are for the reflector itself.
pub trait Host {
    /// The table.
    fn table(&mut self) -> &mut Table;

    /// Takes a datagram that began with the magic of the control protocol.
    fn control(&mut self, now: Now, incoming: Incoming<'_>);

    /// The next datagram that it wants sent, if there is one.
    fn outgoing(&mut self) -> Option<Outgoing>;
}

/// What may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardOptions {
    /// How many bytes of payload may wait for devices, all in all.
    pub backlog_bytes: usize,
    /// How many datagrams may wait for one device.
    pub backlog_datagrams: usize,
    /// How often the plane looks after what ages.
    pub maintain_ms: u64,
}

impl Default for ForwardOptions {
    fn default() -> Self {
        ForwardOptions { backlog_bytes: 64 << 20, backlog_datagrams: 16_384, maintain_ms: 100 }
    }
}

/// What stops a forwarder.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// A socket could not be had.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        why: std::io::Error,
    },
    /// Waiting for sockets failed.
    #[error("cannot wait for datagrams: {0}")]
    Wait(std::io::Error),
    /// The plane works no more.
    #[error(transparent)]
    Plane(#[from] PlaneError),
}

/// What happened, since the forwarder was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that came to user space.
    pub received: u64,
    /// Of these, for the reflector itself.
    pub control: u64,
    /// Datagrams admitted, in user space and in the kernel.
    pub admitted: u64,
    /// Bytes of payload in them.
    pub admitted_bytes: u64,
    /// Copies that devices took.
    pub copies: u64,
    /// Copies that can never be sent: no route, or too long for the path.
    pub undeliverable: u64,
    /// Refused: from addresses that are no members.
    pub strangers: u64,
    /// Refused: beyond a member's or a group's rate.
    pub over_rate: u64,
    /// Refused: too much waits already.
    pub backlog: u64,
    /// Refused: the sockets were full.
    pub socket_full: u64,
    /// Datagrams that a kernel program handed to user space.
    pub handed: u64,
    /// Datagrams that a kernel program handed over and that never arrived.
    pub handed_lost: u64,
    /// How often a device was full.
    pub full: u64,
    /// Datagrams of the reflector itself that were sent.
    pub outgoing: u64,
    /// Datagrams of the reflector itself that could not be sent.
    pub outgoing_failed: u64,
    /// Errors that the network reported (unreachable ports and hosts).
    pub reported: u64,
}

/// Copies what members send, with a plane, for a host.
pub struct Forwarder {
    listeners: Arc<Listeners>,
    plane: Box<dyn Plane>,
    options: ForwardOptions,
    counters: Counters,
    wake: Arc<OwnedFd>,
}

impl Forwarder {
    /// Makes one, which receives from `listeners`.
    pub fn new(
        listeners: Arc<Listeners>,
        plane: Box<dyn Plane>,
        options: ForwardOptions,
    ) -> Result<Self, ForwardError> {
        let _ = (listeners, plane, options);
        todo!()
    }

    /// One turn: waits for datagrams (`timeout` at most, or until it is woken), takes those that came, copies what can be
    /// copied, and sends what the host wants sent. After each datagram for the host the plane follows the table's changes,
    /// before any answer is sent. Changes that the host made between turns are followed first.
    pub fn poll(&mut self, host: &mut dyn Host, timeout: Duration) -> Result<(), ForwardError> {
        let _ = (host, timeout, self.options);
        todo!()
    }

    /// Ends the waiting of a turn, from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.wake.clone())
    }

    /// What happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What one group's datagrams came to, as far as user space knows.
    pub fn group_counters(&self, group: GroupIndex) -> Counters {
        let _ = (group, Done::default());
        todo!()
    }

    /// The sockets.
    pub fn listeners(&self) -> &Arc<Listeners> {
        &self.listeners
    }

    /// The plane.
    pub fn plane(&self) -> &dyn Plane {
        &*self.plane
    }

    /// The plane, to be told something.
    pub fn plane_mut(&mut self) -> &mut dyn Plane {
        &mut *self.plane
    }

    /// Takes another plane, which the host's table is told to as a whole. What waits stays, and goes out by the new one.
    pub fn set_plane(&mut self, host: &mut dyn Host, plane: Box<dyn Plane>) -> Result<(), ForwardError> {
        let _ = (host, plane);
        todo!()
    }
}

/// Ends the waiting of a [`Forwarder`].
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Ends it, or the next one.
    pub fn wake(&self) {
        let _ = self.0;
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
