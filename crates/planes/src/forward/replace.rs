//! The replacement of the plane, while datagrams come and wait.

use std::time::Duration;

use nacre_reflect::host::{Host, Now};
use nacre_reflect::table::{Change, GroupIndex, MemberIndex};

use super::{ForwardError, Forwarder, RESCUE, read_clocks};
use crate::plane::Plane;

/// The longest time given to a plane that is replaced to send what it holds, in milliseconds.
const HAND_ON_MS: u64 = 1000;
/// The greatest number of datagrams that are taken over at once from a plane that is replaced.
const HAND_ON_RESCUES: u64 = 1 << 16;

impl Forwarder {
    /// Replaces the plane. The new one is told of the whole table: each group as added, and each member as joined, in
    /// the order of their places, between which there may be gaps, and those without a place at the end. Datagrams that wait stay, and go out by the new
    /// plane. A plane in the kernel would overtake them: so before it begins, the sockets are emptied, and the devices
    /// are waited for, up to a second. Only what comes in at the very moment of the change may then be overtaken, and
    /// what a device's queue still holds by a plane that bypasses it.
    ///
    /// # Errors
    /// [`ForwardError::Plane`] or [`ForwardError::Wait`] if the new plane cannot take over.
    pub fn set_plane(&mut self, host: &mut dyn Host, plane: Box<dyn Plane>) -> Result<(), ForwardError> {
        // Changes that were not followed yet are part of the state that the new plane is told of.
        let _ = self.follow_changes(host);
        let from = read_clocks();
        let mut now = from;
        while self.hand_on(host, now, plane.kind().in_kernel()).is_ok_and(|done| !done)
            && now.ms < from.ms + HAND_ON_MS
        {
            std::thread::sleep(Duration::from_millis(1));
            now = read_clocks();
        }
        self.refresh();
        // Those that it cannot copy any more wait for the new one.
        let _ = self.take_rescues_up_to(HAND_ON_RESCUES, host, read_clocks());
        // A plane that goes takes what it told of with it.
        for (counters, group) in self.by_group.iter_mut().zip(0..) {
            counters.did(self.plane.group_done(GroupIndex(group)));
        }
        self.copy_counts_before = self.copy_counts_before + self.plane.copy_counts();
        self.plane = plane;
        self.emptied = false;
        let waiting = self.backlog.all_handed();
        self.plane.bound(self.options.backlog_datagrams);
        if let Some(ready) = self.plane.rescue_ready() {
            self.poll.add(ready, RESCUE).map_err(ForwardError::Wait)?;
        }
        self.plane.hold();
        let table = host.table();
        for (index, group) in table.groups() {
            self.plane.follow(table, Change::GroupAdded(index))?;
            // Before its members, so that the plane has no time to let anything overtake it.
            for _ in 0..waiting.get(&index).copied().unwrap_or_default() {
                self.plane.waits(index);
            }
            for entry in group.lanes.iter().flat_map(|lane| &lane.entries) {
                if let Some(member) = entry.member() {
                    self.plane.follow(table, Change::Joined(member))?;
                }
            }
        }
        // Those who only send are in no lane.
        for member in (0..table.members_end()).map(MemberIndex) {
            if table.get_member(member).is_some_and(|there| !there.receives()) {
                self.plane.follow(table, Change::Joined(member))?;
            }
        }
        Ok(())
    }

    /// Empties the plane that is to be replaced, as far as devices have room. Returns true once that is done. Nothing
    /// can be taken from a plane that fails.
    fn hand_on(&mut self, host: &mut dyn Host, now: Now, backlog: bool) -> Result<bool, ForwardError> {
        self.take_rescues_up_to(HAND_ON_RESCUES, host, now)?;
        if backlog {
            let received = self.counters.received;
            for socket in 0..self.dropped.len() {
                self.receive(host, socket, now)?;
            }
            for queue in 0..self.backlog.queues_len() {
                if self.backlog.due(queue, now.ns) {
                    self.drain(host, queue, now)?;
                }
            }
            if self.counters.received != received {
                return Ok(false);
            }
        }
        Ok(self.plane.flush(&mut self.counters.copies) && !(backlog && self.backlog.next_ns().is_some()))
    }
}
