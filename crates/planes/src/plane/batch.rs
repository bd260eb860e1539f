//! One system call for many copies: `sendmmsg`, with one payload and one list of addresses. The portable default.

use std::net::SocketAddr;
use std::sync::Arc;

use super::sendto::{Fate, full, one};
use super::{CopyCounts, CopyProgress, LaneBatch, Plane, PlaneError, PlaneKind};
use crate::forward::Listeners;
use crate::system::message::{BATCH, Head, send_many};

/// The `batch` plane: copies by `sendmmsg`, through the socket of the group's port.
#[derive(Debug)]
pub struct Batch {
    listeners: Arc<Listeners>,
    /// The addresses of one call, and the position of each.
    to: Vec<SocketAddr>,
    at: Vec<usize>,
    /// The number of copies made.
    copies: u64,
}

impl Batch {
    /// Creates the plane for these listeners.
    pub fn new(listeners: Arc<Listeners>) -> Self {
        Batch { listeners, to: Vec::with_capacity(BATCH), at: Vec::with_capacity(BATCH), copies: 0 }
    }
}

impl Plane for Batch {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Batch
    }

    fn copy(&mut self, lane_batch: &LaneBatch<'_>) -> Result<CopyProgress, PlaneError> {
        let progress = self.send(lane_batch);
        self.copies += u64::from(progress.copies);
        Ok(progress)
    }

    fn copy_counts(&self) -> CopyCounts {
        CopyCounts { sockets: self.copies, ..CopyCounts::default() }
    }
}

impl Batch {
    fn send(&mut self, lane_batch: &LaneBatch<'_>) -> CopyProgress {
        let mut progress = CopyProgress { next: lane_batch.positions.end, ..CopyProgress::default() };
        let mut positions = lane_batch.positions.clone();
        let Some((socket, source)) = self.listeners.sender(lane_batch.lane.path.local) else {
            progress.undeliverable += positions.filter(|&at| lane_batch.to(at).is_some()).count() as u32;
            return progress;
        };
        let head = Head { source, tos: lane_batch.tos };
        loop {
            self.to.clear();
            self.at.clear();
            for at in positions.by_ref() {
                if let Some(to) = lane_batch.to(at) {
                    self.to.push(to);
                    self.at.push(at);
                    if self.to.len() == BATCH {
                        break;
                    }
                }
            }
            if self.to.is_empty() {
                return progress;
            }
            let mut done = 0;
            while done < self.to.len() {
                // An error is that of the first that was not sent; errors after others were sent are told by the next call.
                match send_many(socket, head, &self.to[done..], lane_batch.payload) {
                    Ok(sent) => {
                        done += sent;
                        progress.copies += sent as u32;
                        continue;
                    }
                    Err(error) if full(&error) => {
                        return CopyProgress { next: self.at[done], full: true, ..progress };
                    }
                    Err(_) => {}
                }
                match one(socket, head, self.to[done], lane_batch.payload) {
                    Fate::Sent => progress.copies += 1,
                    Fate::Never => progress.undeliverable += 1,
                    Fate::Full => return CopyProgress { next: self.at[done], full: true, ..progress },
                }
                done += 1;
            }
        }
    }
}
