//! The copies of one admitted datagram: made as far as devices have room, and kept for the others.

use std::net::SocketAddr;

use nacre_reflect::host::Now;
use nacre_reflect::table::{GroupIndex, Lane, Table};

use super::backlog::{About, Backlog, QueuedCopies};
use super::{Counters, ForwardError, ForwardOptions};
use crate::plane::{LaneBatch, Plane, kernel};

/// An admitted datagram.
pub(super) struct AdmittedDatagram<'a> {
    /// The lane, its generation and the position from which on there are no copies yet; `None` if it is fresh.
    pub from: Option<(u16, u8, usize)>,
    pub except: Option<SocketAddr>,
    pub tos: u8,
    /// The time since it came, in nanoseconds.
    pub age_ns: u64,
    pub payload: &'a [u8],
}

/// The means by which an admitted datagram is copied.
pub(super) struct FanOut<'a> {
    pub plane: &'a mut dyn Plane,
    pub backlog: &'a mut Backlog,
    pub counters: &'a mut Counters,
    pub of_group: &'a mut Counters,
    pub options: &'a ForwardOptions,
    pub now: Now,
}

impl FanOut<'_> {
    /// Copies an admitted datagram as far as possible, and keeps it for the devices that are full.
    pub fn fan_out(
        &mut self,
        table: &Table,
        index: GroupIndex,
        whole: AdmittedDatagram<'_>,
    ) -> Result<(), ForwardError> {
        let AdmittedDatagram { from, except, tos, payload, .. } = whole;
        let (first, position) = match from {
            None => (0, 0),
            Some((lane, generation, position)) => {
                let known = table.group(index).lanes.get(usize::from(lane));
                (lane, known.and_then(|lane| lane.position_now(generation, position)).unwrap_or(position))
            }
        };
        // A failure of the plane does not end the loop: the datagram is admitted, so the remaining lanes get it from the queues.
        let mut failed = None;
        // One copy in memory, however many devices are full.
        let mut kept = None;
        for (lane, number) in table.group(index).lanes.iter().zip(0_u16..).skip(usize::from(first)) {
            let end = lane.entries.len();
            let mut next = if number == first { position.min(end) } else { 0 };
            if next == end || !has_receivers(lane, except) {
                continue;
            }
            let queue = self.backlog.queue_of(lane.path.device);
            // A datagram may not overtake those that wait for the same device; other devices are not held up by it.
            if self.backlog.queue(queue).len() == 0 && failed.is_none() {
                let lane_batch =
                    LaneBatch { group: index, number, lane, positions: next..end, except, tos, payload };
                match self.plane.copy(&lane_batch) {
                    Err(error) => failed = Some(error),
                    Ok(progress) => {
                        self.counters.took(progress);
                        self.of_group.took(progress);
                        if !progress.full {
                            continue;
                        }
                        // The rest of this lane waits from here on; no receiver gets the datagram twice.
                        next = progress.next;
                        self.backlog.queue(queue).full(self.now.ns, progress.copies);
                    }
                }
            }
            let datagram = match kept {
                Some(datagram) => datagram,
                None => *kept.insert(self.keep(table, index, &whole)),
            };
            // The datagram is kept before older ones are given up, since that may finish the group's last one in the kernel.
            self.make_space(table, queue, index);
            self.backlog.push(queue, QueuedCopies { datagram, lane: number, next, end });
        }
        // A program in the kernel refuses the group's next datagrams until the torn one is finished. One that is kept again
        // is finished when it leaves the queues.
        if from.is_some() && kept.is_none() {
            self.plane.finished(index);
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Keeps a datagram. A program in the kernel lets none overtake it.
    fn keep(&mut self, table: &Table, index: GroupIndex, whole: &AdmittedDatagram<'_>) -> u32 {
        let in_kernel = self.plane.kind().in_kernel();
        if whole.from.is_none() && in_kernel {
            self.plane.waits(index);
        }
        let until_ns = match table.group(index).options.max_age_ms {
            0 => u64::MAX,
            ms => self.now.ns + (u64::from(ms) * 1_000_000).saturating_sub(whole.age_ns),
        };
        let handed = whole.from.is_some() || in_kernel;
        let about = About { group: index, except: whole.except, tos: whole.tos, until_ns, handed };
        self.backlog.keep(about, whole.payload)
    }

    /// Makes room for one more datagram of a group with an age limit in a queue, by giving up its oldest ones.
    fn make_space(&mut self, table: &Table, queue: usize, index: GroupIndex) {
        if table.group(index).options.max_age_ms == 0 {
            return;
        }
        // A program in the kernel refuses what comes beyond the bound, and does not know what is the oldest.
        let most = match self.plane.kind().in_kernel() {
            true => self.options.backlog_datagrams.min(kernel::BOUND_GROUP as usize) / 2,
            false => self.options.backlog_datagrams,
        };
        while self.backlog.queue(queue).len() >= most.max(1)
            || self.backlog.bytes() >= self.options.backlog_bytes
        {
            if !self.backlog.holds(queue, index) {
                break;
            }
            let (left, finished) = self.backlog.shed(table, queue, index);
            self.counters.too_old += left;
            self.of_group.too_old += left;
            if finished {
                self.plane.finished(index);
            }
        }
    }
}

/// Returns whether a lane has members who get copies of what `except` sends.
pub(super) fn has_receivers(lane: &Lane, except: Option<SocketAddr>) -> bool {
    let gets = |address: SocketAddr| Some(address) != except;
    let mut members = lane.entries.iter().filter(|entry| entry.member().is_some());
    lane.live > 1 || lane.live == 1 && members.any(|entry| gets(entry.address))
}
