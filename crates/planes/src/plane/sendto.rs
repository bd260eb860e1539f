//! One system call for each copy: the paper's user-space implementation, without its busy loop, and the baseline.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{CopyCounts, CopyProgress, LaneBatch, Plane, PlaneError, PlaneKind};
use crate::forward::Listeners;
use crate::system;
use crate::system::message::{self, Head};

/// The `sendto` plane: copies one by one, through the socket of the group's port.
#[derive(Debug)]
pub struct Sendto {
    listeners: Arc<Listeners>,
    /// The number of copies made.
    copies: u64,
}

impl Sendto {
    /// Creates the plane for these listeners.
    pub fn new(listeners: Arc<Listeners>) -> Self {
        Sendto { listeners, copies: 0 }
    }
}

impl Plane for Sendto {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Sendto
    }

    fn copy(&mut self, lane_batch: &LaneBatch<'_>) -> Result<CopyProgress, PlaneError> {
        let mut progress = CopyProgress { next: lane_batch.positions.end, ..CopyProgress::default() };
        let sender = self.listeners.sender(lane_batch.lane.path.local);
        for at in lane_batch.positions.clone() {
            let Some(to) = lane_batch.to(at) else { continue };
            let fate = match sender {
                None => Fate::Never,
                Some((socket, source)) => {
                    one(socket, Head { source, tos: lane_batch.tos }, to, lane_batch.payload)
                }
            };
            match fate {
                Fate::Sent => {
                    progress.copies += 1;
                    self.copies += 1;
                }
                Fate::Never => progress.undeliverable += 1,
                Fate::Full => return Ok(CopyProgress { next: at, full: true, ..progress }),
            }
        }
        Ok(progress)
    }

    fn copy_counts(&self) -> CopyCounts {
        CopyCounts { sockets: self.copies, ..CopyCounts::default() }
    }
}

/// The outcome of a copy.
pub(super) enum Fate {
    Sent,
    Full,
    Never,
}

/// The number of tries of a copy whose socket reports an error: that may be one that the network reported for an
/// earlier copy, which the socket reports once instead of sending this one.
const TRIES: usize = 4;

/// Sends one copy.
pub(super) fn one(socket: BorrowedFd<'_>, head: Head, to: SocketAddr, payload: &[u8]) -> Fate {
    for _ in 0..TRIES {
        match message::send(socket, head, to, payload) {
            Ok(()) => return Fate::Sent,
            Err(error) if full(&error) => return Fate::Full,
            Err(_) => {
                system::take_error(socket);
            }
        }
    }
    Fate::Never
}

/// Returns whether a device or a socket has no room now.
pub(super) fn full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM))
}
