//! Datagrams that wait for devices: the payload once, and a place in the queue of each device that it waits for.
//!
//! Invariants:
//! - Each device's queue is first in, first out across groups: so order is kept, and a full device costs one try.
//! - A datagram is dropped once it waits in no queue any more; then its buffer is used again.
//! - Positions in queues are always of the present generation of their lanes.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use nacre_reflect::table::{GroupIndex, Table};

/// The shortest and the longest wait before a full device is tried again, in nanoseconds. The shortest is for a device that was
/// found full: often it sends at that moment, and a program in the kernel refuses the group's datagrams meanwhile.
const WAIT_NS: std::ops::RangeInclusive<u64> = 10_000..=1_000_000;
/// The wait after a device has taken some copies: it drains, and is to have room for several more.
const DRAINS_NS: u64 = 50_000;

/// A datagram that waits.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) about: About,
    pub(super) payload: Vec<u8>,
    /// The number of queues that the datagram is in.
    queued_copies: u32,
}

/// The properties of a datagram that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub(super) group: GroupIndex,
    pub(super) except: Option<SocketAddr>,
    pub(super) tos: u8,
    /// The time at which it is too old to be copied any more, in nanoseconds; the last there is, if never.
    pub(super) until_ns: u64,
    /// True if the plane has to be told when the datagram is finished.
    pub(super) handed: bool,
}

/// The place of a datagram in a queue: the copies left to make for one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedCopies {
    pub(super) datagram: u32,
    pub(super) lane: u16,
    pub(super) next: usize,
    pub(super) end: usize,
}

/// The queue of one device.
#[derive(Debug)]
pub(super) struct Queue {
    device: u32,
    queued_copies: VecDeque<QueuedCopies>,
    /// The wait before the device is tried again when it is full, and the end of the present one, in nanoseconds.
    wait_ns: u64,
    again_ns: u64,
}

impl Queue {
    /// Notes that the device was full after it had taken `copies`.
    pub(super) fn full(&mut self, now_ns: u64, copies: u32) {
        self.wait_ns = match copies {
            0 => (self.wait_ns * 2).clamp(*WAIT_NS.start(), *WAIT_NS.end()),
            _ => DRAINS_NS,
        };
        self.again_ns = now_ns + self.wait_ns;
    }

    pub(super) fn len(&self) -> usize {
        self.queued_copies.len()
    }

    /// Returns the first place in the queue.
    pub(super) fn front(&mut self) -> Option<&mut QueuedCopies> {
        self.queued_copies.front_mut()
    }
}

/// All datagrams that wait.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    queues: Vec<Queue>,
    datagrams: Vec<Datagram>,
    free: Vec<u32>,
    bytes: usize,
}

impl Backlog {
    /// Returns the bytes of payload that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the index of a device's queue. While that is empty, it is valid until the queue of another device is asked
    /// for, which may take its place: devices come and go, and each that comes has an index of its own.
    pub(super) fn queue_of(&mut self, device: u32) -> usize {
        if let Some(at) = self.queues.iter().position(|queue| queue.device == device) {
            return at;
        }
        if let Some(at) = self.queues.iter().position(|queue| queue.queued_copies.is_empty()) {
            let queue = &mut self.queues[at];
            (queue.device, queue.wait_ns, queue.again_ns) = (device, 0, 0);
            return at;
        }
        self.queues.push(Queue { device, queued_copies: VecDeque::new(), wait_ns: 0, again_ns: 0 });
        self.queues.len() - 1
    }

    pub(super) fn queue(&mut self, at: usize) -> &mut Queue {
        &mut self.queues[at]
    }

    pub(super) fn queues_len(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn datagram(&self, at: u32) -> &Datagram {
        &self.datagrams[at as usize]
    }

    /// Returns whether something waits for this device and it may be tried again.
    pub(super) fn due(&self, queue: usize, now_ns: u64) -> bool {
        let queue = &self.queues[queue];
        !queue.queued_copies.is_empty() && queue.again_ns <= now_ns
    }

    /// Returns the time at which the next device may be tried again, in nanoseconds; `None` if nothing waits.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.queues.iter().filter(|queue| !queue.queued_copies.is_empty()).map(|queue| queue.again_ns).min()
    }

    /// Keeps a datagram, which has no place in a queue yet, and returns its index.
    pub(super) fn keep(&mut self, about: About, payload: &[u8]) -> u32 {
        self.bytes += payload.len();
        match self.free.pop() {
            Some(at) => {
                let datagram = &mut self.datagrams[at as usize];
                datagram.payload.clear();
                datagram.payload.extend_from_slice(payload);
                (datagram.about, datagram.queued_copies) = (about, 0);
                at
            }
            None => {
                self.datagrams.push(Datagram { about, payload: payload.to_vec(), queued_copies: 0 });
                self.datagrams.len() as u32 - 1
            }
        }
    }

    /// Adds a place at the end of a device's queue.
    pub(super) fn push(&mut self, queue: usize, queued: QueuedCopies) {
        self.datagrams[queued.datagram as usize].queued_copies += 1;
        self.queues[queue].queued_copies.push_back(queued);
    }

    /// Removes the first place of a queue. If that was the datagram's last, returns its group, and true if the plane
    /// has to be told.
    pub(super) fn pop(&mut self, queue: usize) -> Option<(GroupIndex, bool)> {
        let queued = self.queues[queue].queued_copies.pop_front()?;
        self.queues[queue].wait_ns = 0;
        self.release(queued.datagram)
    }

    /// Returns whether a datagram of this group waits in a queue.
    pub(super) fn holds(&self, queue: usize, group: GroupIndex) -> bool {
        self.oldest(queue, group).is_some()
    }

    fn oldest(&self, queue: usize, group: GroupIndex) -> Option<usize> {
        let of = |queued: &QueuedCopies| self.datagrams[queued.datagram as usize].about.group == group;
        self.queues[queue].queued_copies.iter().position(of)
    }

    /// Gives up the oldest place of a group in a queue. Returns the number of copies that were left to make for it, and
    /// true if that was the last place of a datagram of which the plane has to be told.
    pub(super) fn shed(&mut self, table: &Table, queue: usize, group: GroupIndex) -> (u64, bool) {
        let Some(at) = self.oldest(queue, group) else { return (0, false) };
        let Some(queued) = self.queues[queue].queued_copies.remove(at) else { return (0, false) };
        let left = self.left(table, &queued);
        (left, matches!(self.release(queued.datagram), Some((_, true))))
    }

    /// Returns the number of copies that are left to make for a place.
    pub(super) fn left(&self, table: &Table, queued: &QueuedCopies) -> u64 {
        let About { group, except, .. } = self.datagrams[queued.datagram as usize].about;
        let entries = &table.group(group).lanes[usize::from(queued.lane)].entries;
        let end = queued.end.min(entries.len());
        let left = entries[queued.next.min(end)..end].iter();
        left.filter(|entry| entry.member().is_some() && Some(entry.address) != except).count() as u64
    }

    fn release(&mut self, at: u32) -> Option<(GroupIndex, bool)> {
        let datagram = &mut self.datagrams[at as usize];
        datagram.queued_copies -= 1;
        if datagram.queued_copies > 0 {
            return None;
        }
        self.bytes -= datagram.payload.len();
        // Buffers of usual datagrams are used again, those of long ones would add up.
        if datagram.payload.capacity() > 4096 {
            datagram.payload = Vec::new();
        }
        self.free.push(at);
        Some((datagram.about.group, datagram.about.handed))
    }

    /// Translates the positions in a lane that was rewritten, so that the copies that wait go on where they were.
    pub(super) fn rewritten(&mut self, table: &Table, group: GroupIndex, number: u16) {
        let lane = &table.group(group).lanes[usize::from(number)];
        let before = lane.generation.wrapping_sub(1);
        // Of each device: a lane that had no members may have another path since its copies began to wait.
        for queue in &mut self.queues {
            for queued in &mut queue.queued_copies {
                if queued.lane == number && self.datagrams[queued.datagram as usize].about.group == group {
                    // A lane remembers its last rewriting always; the bounds stay bounds without it.
                    queued.next = lane.position_now(before, queued.next).unwrap_or(queued.next);
                    queued.end = lane.position_now(before, queued.end).unwrap_or(queued.end);
                }
            }
        }
    }

    /// Marks every waiting datagram as one whose end the plane has to be told, and returns the number of them by group.
    pub(super) fn all_handed(&mut self) -> HashMap<GroupIndex, u64> {
        let mut waiting = HashMap::new();
        for datagram in self.datagrams.iter_mut().filter(|datagram| datagram.queued_copies > 0) {
            datagram.about.handed = true;
            *waiting.entry(datagram.about.group).or_default() += 1;
        }
        waiting
    }

    /// Drops the datagrams of a removed group. Returns the number of those whose end the plane has to be told.
    pub(super) fn removed(&mut self, group: GroupIndex) -> usize {
        let mut gone = Vec::new();
        for queue in &mut self.queues {
            queue.queued_copies.retain(|queued| {
                let keep = self.datagrams[queued.datagram as usize].about.group != group;
                if !keep {
                    gone.push(queued.datagram);
                }
                keep
            });
        }
        gone.into_iter().filter(|&at| matches!(self.release(at), Some((_, true)))).count()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use nacre_reflect::table::{Change, GroupId, GroupOptions, LANES_KEPT, LANES_MAX, Path};

    use super::*;

    fn about(group: GroupIndex, handed: bool) -> About {
        About { group, except: None, tos: 0, until_ns: u64::MAX, handed }
    }

    fn address(host: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, (host >> 8) as u8, host as u8], 1000))
    }

    /// Members since before a datagram was admitted are found behind the position at which copying stopped.
    #[test]
    fn what_waits_goes_on_where_it_was_when_its_lane_is_written_anew() {
        let mut table = Table::new();
        let group = table.set_group(GroupId { port: 7400, id: 0 }, GroupOptions::default());
        let path = Path { device: 3, local: SocketAddr::from(([127, 0, 1, 1], 7400)) };
        for host in 0..200 {
            table.join(group, path, address(host), false, 0);
        }
        table.take_changes(|_, _| {});
        let mut backlog = Backlog::default();
        let queue = backlog.queue_of(3);
        for next in [0, 1, 77, 199, 200] {
            let datagram = backlog.keep(about(group, false), b"payload");
            backlog.push(queue, QueuedCopies { datagram, lane: 0, next, end: 200 });
        }
        let id = GroupId { port: 7400, id: 0 };
        for host in 0..200_u16 {
            // All that are even leave, and some come; several rewritings on the way.
            if host % 2 == 0 {
                let member = table.member_of(id, address(host)).unwrap();
                table.leave(member);
                table.join(group, path, address(1000 + host), false, 0);
            }
            table.take_changes(|table, change| {
                if let nacre_reflect::table::Change::Rewritten { group, lane } = change {
                    backlog.rewritten(table, group, lane);
                }
            });
        }
        let lane = &table.group(group).lanes[0];
        assert!(lane.generation > 1, "{}", lane.generation);
        for first in [0_u16, 1, 77, 199, 200] {
            let queued = *backlog.queue(queue).front().unwrap();
            let left = lane.entries[queued.next..queued.end].iter().filter(|entry| entry.member().is_some());
            let left: Vec<_> = left.map(|entry| entry.address).collect();
            let expected: Vec<_> = (first..200).filter(|host| host % 2 == 1).map(address).collect();
            assert_eq!(left, expected, "from {first}");
            backlog.pop(queue);
        }
        assert_eq!(backlog.bytes(), 0);
    }

    #[test]
    fn who_comes_by_another_path_of_a_lane_gets_nothing_that_waits_for_the_former_one() {
        let mut table = Table::new();
        let group = table.set_group(GroupId { port: 7400, id: 0 }, GroupOptions::default());
        let path = |device| Path { device, local: SocketAddr::from(([127, 0, 1, 1], 7400)) };
        for lane in 0..LANES_MAX as u16 {
            table.join(group, path(lane.into()), address(lane), false, 0);
        }
        let device = LANES_KEPT as u32;
        let members: Vec<_> =
            (0..20).map(|host| table.join(group, path(device), address(5000 + host), false, 0)).collect();
        table.take_changes(|_, _| {});
        let mut backlog = Backlog::default();
        let queue = backlog.queue_of(device);
        let datagram = backlog.keep(about(group, false), b"payload");
        backlog.push(queue, QueuedCopies { datagram, lane: LANES_KEPT as u16, next: 0, end: 21 });
        let first = table.member_of(GroupId { port: 7400, id: 0 }, address(LANES_KEPT as u16)).unwrap();
        members.into_iter().chain([first]).for_each(|member| table.leave(member));
        let late = table.join(group, path(9999), address(9999), false, 0);
        assert_eq!(usize::from(table.member(late).lane), LANES_KEPT);
        table.take_changes(|table, change| {
            if let Change::Rewritten { group, lane } = change {
                backlog.rewritten(table, group, lane);
            }
        });
        let lane = &table.group(group).lanes[LANES_KEPT];
        assert_eq!((lane.path, lane.live, lane.entries.len()), (path(9999), 1, 1));
        let queued = *backlog.queue(queue).front().unwrap();
        assert_eq!(backlog.left(&table, &queued), 0);
    }

    #[test]
    fn a_datagram_goes_when_its_last_place_goes() {
        let mut backlog = Backlog::default();
        let datagram = backlog.keep(about(GroupIndex(7), true), &[0; 100]);
        let [a, b] = [1, 2].map(|device| {
            let queue = backlog.queue_of(device);
            backlog.push(queue, QueuedCopies { datagram, lane: 0, next: 0, end: 1 });
            queue
        });
        assert_eq!(backlog.bytes(), 100);
        assert_eq!(backlog.pop(a), None);
        assert_eq!(backlog.removed(GroupIndex(8)), 0);
        assert_eq!(backlog.pop(b), Some((GroupIndex(7), true)));
        assert_eq!((backlog.bytes(), backlog.next_ns()), (0, None));
        let again = backlog.keep(about(GroupIndex(7), true), &[0; 9]);
        assert_eq!(again, datagram, "the buffer is used again");
        backlog.push(b, QueuedCopies { datagram: again, lane: 0, next: 0, end: 1 });
        assert_eq!(backlog.removed(GroupIndex(7)), 1);
        assert_eq!(backlog.bytes(), 0);
    }

    #[test]
    fn devices_that_come_and_go_leave_no_queues() {
        let mut backlog = Backlog::default();
        let queue = backlog.queue_of(1);
        let datagram = backlog.keep(about(GroupIndex(7), false), b"payload");
        backlog.push(queue, QueuedCopies { datagram, lane: 0, next: 0, end: 1 });
        for device in 2..1000 {
            backlog.queue_of(device);
        }
        assert_eq!(backlog.queues_len(), 2);
        assert_eq!(backlog.queue_of(1), queue);
    }

    #[test]
    fn a_full_device_is_left_alone_for_longer_and_longer() {
        let mut backlog = Backlog::default();
        let at = backlog.queue_of(1);
        let waits: Vec<_> = [0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0]
            .into_iter()
            .map(|copies| {
                backlog.queue(at).full(0, copies);
                backlog.queue(at).again_ns / 1000
            })
            .collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 50, 100]);
    }
}
