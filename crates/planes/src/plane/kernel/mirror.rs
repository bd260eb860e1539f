//! The mirror of the table for programs in the kernel. It follows the table's changes by writing memory that it shares
//! with them.
//!
//! Invariants:
//! - What a program finds is complete before it can find it: a place before the lane's region counts it, a lane before
//!   its group does, a group before its senders point to it.
//! - A program that began before a change may still see what was before; so rows, lanes and groups that are given up
//!   are used again only when no such program runs ([`super::room`]).
//! - A member that cannot be shown in full (no room, no Ethernet address yet, a device of another kind) is never passed
//!   over: its group is left to user space meanwhile, or, if the group itself is not shown, non-members are passed up.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use nacre_reflect::rate::{BucketIndex, IDLE_MAX};
use nacre_reflect::table::{Change, Group, GroupIndex, LANES_KEPT, Lane, MemberIndex, Path, Table};
use nacre_reflect_bpf::constant;

use super::allocation::{Region, Regions, Slots};
use super::layout::{self, PLACE_HOP};
use super::load::Maps;
use super::network::{Changed, Network};
use super::places::{
    GAP, ShownLane, make_gap, places, read_place, release_hops, route_again, show_device, show_hops,
    show_place,
};
use crate::plane::{CopyCounts, Done};

/// The state of a group as shown to programs.
struct Shown {
    slot: u32,
    lanes: Vec<ShownLane>,
    /// True if it has a lane that could not be shown.
    short: bool,
    /// True if its members' datagrams are passed up, since user space has to see each.
    relayed: bool,
}

// The path of a lane that is shown stays the same.
const _: () = assert!(constant::LANES_MAX as usize <= LANES_KEPT);

/// The place of the number of copies among the counters.
const COPIES: usize = 2;

/// The memory that the programs' tables take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The bytes taken as soon as the tables are made.
    pub fixed_bytes: usize,
    /// The bytes taken besides for each member, in the hash of senders.
    pub member_bytes: usize,
}

/// The mirror of the table.
#[derive(derive_more::Debug)]
#[debug("Mirror")]
pub struct Mirror {
    maps: Maps,
    places: Regions,
    lanes: Slots,
    groups: Slots,
    shown: Vec<Option<Shown>>,
    /// The reflector's addresses, with the number of lanes that have each.
    locals: HashMap<SocketAddr, u32>,
    /// The members whose datagrams a program would take for a non-member's.
    unknown_senders: HashMap<layout::SenderKey, ()>,
    /// The greatest number of datagrams of one group on their way through user space.
    bound_group: u32,
    /// The counts at the last call of `done`.
    counted: [u64; layout::COUNTERS],
    /// The number of datagrams that had been handed over in all, if none was on its way at the last settling.
    idle: Option<u64>,
}

impl Mirror {
    /// Shows an empty table, with the greatest numbers of datagrams on their way through user space, of a group and in
    /// all, and the number of bytes in the ring above which nothing is admitted.
    pub fn new(maps: Maps, bound_group: u32, bound_total: u64, rescue_bytes_max: u64) -> Self {
        maps.totals.entry(0)[layout::TOTALS_BOUND].store(bound_total, Relaxed);
        maps.totals.entry(0)[layout::TOTALS_RESCUE_BYTES].store(rescue_bytes_max, Relaxed);
        Mirror {
            places: Regions::new(maps.places.entries()),
            lanes: Slots::new(maps.lanes.entries()),
            groups: Slots::new(maps.groups.entries()),
            maps,
            shown: Vec::new(),
            locals: HashMap::new(),
            unknown_senders: HashMap::new(),
            bound_group,
            counted: [0; layout::COUNTERS],
            idle: None,
        }
    }

    /// Follows a change of the table.
    pub fn follow(&mut self, table: &Table, network: &mut Network, change: Change) -> io::Result<()> {
        match change {
            Change::GroupAdded(index) => self.set_group(table, index),
            Change::GroupChanged(index) => {
                self.set_group(table, index);
                self.show_relayed(table, index)?;
            }
            Change::GroupRemoved(index) => self.remove_group(network, index),
            Change::Joined(member) => {
                // Who left since will be told of next.
                if let Some(member) = table.get_member(member) {
                    let (group, lane, address) = (member.group, member.lane, member.address);
                    self.show_lane(table, network, group, lane)?;
                    self.show_group(table, group);
                    self.show_sender(table, table.group(group).id.port, address, None)?;
                }
            }
            Change::Left { group, lane, position, address, .. } => {
                let Some(of) = table.get_group(group) else { return Ok(()) };
                let path = of.lanes[lane as usize].path;
                // Nothing that it still sends is copied, then nothing is copied to it.
                self.show_sender(table, of.id.port, address, Some(path.device))?;
                self.show_gap(&of.lanes[lane as usize], network, group, lane, position);
                self.show_group(table, group);
            }
            Change::Rewritten { group, lane } => {
                if table.get_group(group).is_some() {
                    self.show_lane(table, network, group, lane)?;
                    self.show_group(table, group);
                }
            }
        }
        Ok(())
    }

    /// Follows a change of the network.
    pub fn refresh(&mut self, table: &Table, network: &mut Network, changed: &Changed) -> io::Result<()> {
        if changed.is_empty() {
            return Ok(());
        }
        for index in 0..self.shown.len() {
            let index = GroupIndex(index as u32);
            let (Some(Some(shown)), Some(group)) =
                (self.shown.get_mut(index.0 as usize), table.get_group(index))
            else {
                continue;
            };
            for (lane, of) in shown.lanes.iter_mut().zip(&group.lanes) {
                if changed.devices.contains(&lane.path.device) {
                    show_device(&self.maps, lane, network)?;
                }
                if changed.routes {
                    route_again(&self.maps, lane, of, network)?;
                }
                if changed.routes || !changed.hops.is_empty() {
                    show_hops(&self.maps, lane, network, |hop| changed.routes || changed.hops.contains(&hop));
                }
            }
            self.show_group(table, index);
        }
        Ok(())
    }

    /// Returns the buckets of an owner of a rate and of a group, if programs know both.
    pub fn buckets(&self, bucket: BucketIndex, group: GroupIndex) -> Option<[&AtomicU64; 2]> {
        let shown = self.shown.get(group.0 as usize)?.as_ref()?;
        if bucket.0 >= self.maps.buckets.entries() {
            return None;
        }
        let of_group = &self.maps.groups.entry(shown.slot)[layout::GROUP_BUCKET];
        Some([&self.maps.buckets.entry(bucket.0)[0], of_group])
    }

    /// Sets the greatest number of datagrams of one group on their way through user space, from the group's next change
    /// on.
    pub fn bound(&mut self, datagrams: u32) {
        self.bound_group = datagrams;
    }

    /// Notes that a datagram of this group waits in user space, as if it had been handed over.
    pub fn waits(&mut self, group: GroupIndex) {
        if let Some(Some(shown)) = self.shown.get(group.0 as usize) {
            self.maps.groups.entry(shown.slot)[layout::GROUP_HANDED].fetch_add(1, SeqCst);
            self.maps.totals.entry(0)[layout::TOTALS_HANDED].fetch_add(1, SeqCst);
        }
    }

    /// Notes that a datagram of this group that was handed to user space is finished.
    pub fn finished(&mut self, group: GroupIndex) {
        // What another program handed over, which is gone, is none of this one's.
        if self.waiting(group) == 0 {
            return;
        }
        if let Some(Some(shown)) = self.shown.get(group.0 as usize) {
            self.maps.groups.entry(shown.slot)[layout::GROUP_FINISHED].fetch_add(1, Release);
        }
        self.maps.totals.entry(0)[layout::TOTALS_FINISHED].fetch_add(1, Release);
    }

    /// Lets everything go to the sockets until these were found empty.
    pub fn hold(&mut self) {
        // What is settled first may be what was in the sockets before.
        self.maps.totals.entry(0)[layout::TOTALS_HOLD].store(2, SeqCst);
    }

    /// Notes that sockets were found empty.
    pub fn settle(&mut self) {
        let totals = self.maps.totals.entry(0);
        let hold = totals[layout::TOTALS_HOLD].load(Relaxed);
        if hold > 0 {
            totals[layout::TOTALS_HOLD].store(hold - 1, SeqCst);
        }
        // What was on its way when its group was removed is in no group's count.
        let handed = totals[layout::TOTALS_HANDED].load(Acquire);
        if totals[layout::TOTALS_FINISHED].load(Acquire) == handed {
            return self.idle = None;
        }
        let waits = |shown: &Shown| {
            let words = self.maps.groups.entry(shown.slot);
            words[layout::GROUP_HANDED].load(Acquire) != words[layout::GROUP_FINISHED].load(Acquire)
        };
        let waiting = self.shown.iter().flatten().any(waits);
        if !waiting && self.idle == Some(handed) {
            totals[layout::TOTALS_FINISHED].store(handed, Release);
        }
        self.idle = (!waiting).then_some(handed);
    }

    /// Returns the number of datagrams of a group that were handed over and are not finished.
    pub fn waiting(&self, group: GroupIndex) -> u64 {
        match self.shown.get(group.0 as usize) {
            Some(Some(shown)) => {
                let words = self.maps.groups.entry(shown.slot);
                let finished = words[layout::GROUP_FINISHED].load(Acquire);
                words[layout::GROUP_HANDED].load(Acquire).wrapping_sub(finished)
            }
            _ => 0,
        }
    }

    /// Returns the number of datagrams of all groups that were handed over and are not finished, or somewhat more: what was on
    /// its way when its group was removed may be counted.
    pub fn waiting_of_all(&self) -> u64 {
        let totals = self.maps.totals.entry(0);
        let finished = totals[layout::TOTALS_FINISHED].load(Acquire);
        // A program takes back what the ring has no room for after all.
        let waiting = totals[layout::TOTALS_HANDED].load(Acquire).wrapping_sub(finished) as i64;
        waiting.max(0) as u64
    }

    /// Returns the counts of what programs did with a group's datagrams since the group was made.
    pub fn group_done(&self, group: GroupIndex) -> Done {
        let Some(Some(shown)) = self.shown.get(group.0 as usize) else { return Done::default() };
        let words = self.maps.groups.entry(shown.slot);
        let count = |word: usize| words[word].load(Relaxed);
        Done {
            datagrams: count(layout::GROUP_DATAGRAMS),
            copies: count(layout::GROUP_COPIES),
            over_rate: count(layout::GROUP_OVER_RATE),
            backlog: count(layout::GROUP_BACKLOG),
            ..Done::default()
        }
    }

    /// Returns the counts of what programs did since the last call.
    pub fn done(&mut self) -> Done {
        let mut now = [0_u64; layout::COUNTERS];
        if let Ok(each) = self.maps.counts.get(&0, 0) {
            for counters in each.iter() {
                now.iter_mut().zip(counters).for_each(|(sum, count)| *sum += count);
            }
        }
        let since: [u64; layout::COUNTERS] = std::array::from_fn(|at| now[at].wrapping_sub(self.counted[at]));
        self.counted = now;
        let [datagrams, bytes, copies, non_members, over_rate, backlog, undeliverable, handed, _, lost, _] =
            since;
        Done {
            datagrams,
            bytes,
            copies,
            non_members,
            over_rate,
            backlog,
            undeliverable,
            handed,
            handed_lost: lost,
        }
    }

    /// Returns the counts of the copies that programs have made, as of the last call of `done`.
    pub fn copy_counts(&self) -> CopyCounts {
        let [.., driver] = self.counted;
        CopyCounts { driver, hook: self.counted[COPIES] - driver, ..CopyCounts::default() }
    }

    /// Returns a number that grows with each datagram that programs admitted, as of the last call of `done`.
    pub fn admitted(&self) -> u64 {
        let [datagrams, ..] = self.counted;
        datagrams
    }

    /// Returns the places of the lane of this number in this generation, if it is the only one of its group with
    /// receivers of the datagrams of `except`, and programs copy for the group.
    pub fn only_lane(
        &self,
        group: GroupIndex,
        number: u16,
        generation: u8,
        except: Option<SocketAddr>,
    ) -> Option<Range<u32>> {
        let shown = self.shown.get(group.0 as usize)?.as_ref()?;
        let flags = self.maps.groups.entry(shown.slot)[layout::GROUP_FLAGS].load(Relaxed);
        let lane = shown.lanes.get(usize::from(number)).filter(|lane| lane.generation == generation)?;
        let other_receivers = |(other, at): (&ShownLane, u16)| {
            let sender_alone =
                other.live == 1 && other.alone.is_some() && other.alone.as_deref() == except.as_ref();
            at != number && other.live > 0 && !sender_alone
        };
        let theirs = flags & constant::GROUP_USER == 0;
        (theirs && !shown.lanes.iter().zip(0..).any(other_receivers)).then(|| places(lane))
    }

    /// Returns whether programs copy for a group of which some sender's datagrams go to the members of one lane only.
    pub fn may_have_only_lane(&self, group: GroupIndex) -> bool {
        let Some(Some(shown)) = self.shown.get(group.0 as usize) else { return false };
        let flags = self.maps.groups.entry(shown.slot)[layout::GROUP_FLAGS].load(Relaxed);
        let lanes = || shown.lanes.iter().filter(|lane| lane.live > 0);
        let one = match lanes().count() {
            0 => false,
            1 => true,
            2 => lanes().any(|lane| lane.live == 1),
            _ => false,
        };
        one && flags & constant::GROUP_USER == 0
    }

    /// Returns the group that programs know by this number.
    pub fn group_at(&self, slot: u32) -> Option<GroupIndex> {
        if slot >= self.maps.groups.entries() {
            return None;
        }
        let group = self.maps.groups.entry(slot)[layout::GROUP_NUMBER].load(Relaxed) as u32;
        let shown = self.shown.get(group as usize)?.as_ref()?;
        (shown.slot == slot).then_some(GroupIndex(group))
    }

    /// Returns whether parts that were given up wait for programs, and for user space's own steps.
    pub fn waits_for_programs(&mut self) -> bool {
        let flights = &self.maps.flights;
        let waits = [self.places.waits(flights), self.lanes.waits(flights), self.groups.waits(flights)];
        waits.contains(&true)
    }

    /// Ends one of user space's own steps and begins the next. Parts of arrays that are given up wait for these steps
    /// as for programs; see [`super::room`].
    pub fn step(&self, own: u32) {
        let first = self.maps.flights.entries() - 2;
        self.maps.flights.entry(first + own % 2)[0].fetch_add(2, SeqCst);
    }

    /// Begins the steps of user space, so that parts that are given up wait for them, too.
    pub fn wait_for_steps(&self) {
        let end = self.maps.flights.entries();
        for own in end - 2..end {
            self.maps.flights.entry(own)[0].store(1, SeqCst);
        }
    }

    /// Returns the memory that the programs' tables take.
    pub fn memory(&self) -> Memory {
        let maps = &self.maps;
        let arrays = [&maps.places, &maps.lanes, &maps.groups, &maps.flights, &maps.totals, &maps.buckets];
        // A hash has a bucket of 16 bytes for each member that there is room for, and an element of its own (a head of 48
        // bytes, key and value, in the kernel's next size) for each that is there.
        let buckets = (maps.buckets.entries() as usize - IDLE_MAX).next_power_of_two() * 16;
        let element =
            (48 + size_of::<layout::SenderKey>() + size_of::<layout::SenderValue>()).next_multiple_of(32);
        Memory {
            fixed_bytes: arrays.iter().map(|array| array.bytes()).sum::<usize>() + buckets,
            member_bytes: element,
        }
    }

    fn set_group(&mut self, table: &Table, index: GroupIndex) {
        let Some(group) = table.get_group(index) else { return };
        if self.shown.len() <= index.0 as usize {
            self.shown.resize_with(index.0 as usize + 1, || None);
        }
        if self.shown[index.0 as usize].is_none() {
            let Some(slot) = self.groups.take(&self.maps.flights) else { return };
            for word in self.maps.groups.entry(slot) {
                word.store(0, Relaxed);
            }
            self.maps.groups.entry(slot)[layout::GROUP_NUMBER].store(u64::from(index.0), Relaxed);
            self.maps.groups.entry(slot)[layout::GROUP_BUCKET].store(group.bucket_ns, Relaxed);
            self.shown[index.0 as usize] =
                Some(Shown { slot, lanes: Vec::new(), short: false, relayed: group.relayed });
        }
        if let Some(shown) = &self.shown[index.0 as usize] {
            let options = &group.options;
            let words = self.maps.groups.entry(shown.slot);
            let rates = [
                options.group_rate.copy_ns,
                options.group_rate.burst_ns,
                options.member_rate.copy_ns,
                options.member_rate.burst_ns,
            ];
            for (word, rate) in words[layout::GROUP_RATES..].iter().zip(rates) {
                word.store(rate, Relaxed);
            }
            let rate = options.owner_rate(true);
            words[layout::GROUP_ADDRESS_RATE].store(rate.copy_ns, Relaxed);
            words[layout::GROUP_ADDRESS_RATE + 1].store(rate.burst_ns, Relaxed);
        }
        self.show_group(table, index);
    }

    /// Has the datagrams of a group's members passed up, or not any more.
    fn show_relayed(&mut self, table: &Table, index: GroupIndex) -> io::Result<()> {
        let Some(group) = table.get_group(index) else { return Ok(()) };
        let Some(Some(shown)) = self.shown.get_mut(index.0 as usize) else { return Ok(()) };
        if std::mem::replace(&mut shown.relayed, group.relayed) == group.relayed {
            return Ok(());
        }
        // Those who only send are in no lane.
        let members = (0..table.members_end()).filter_map(|at| table.get_member(MemberIndex(at)));
        for member in members.filter(|member| member.group == index) {
            self.show_sender(table, group.id.port, member.address, None)?;
        }
        Ok(())
    }

    fn remove_group(&mut self, network: &mut Network, index: GroupIndex) {
        let Some(shown) = self.shown.get_mut(index.0 as usize).and_then(Option::take) else { return };
        let words = self.maps.groups.entry(shown.slot);
        // What was handed over of it will not be finished one by one any more.
        let left = words[layout::GROUP_HANDED]
            .load(Acquire)
            .wrapping_sub(words[layout::GROUP_FINISHED].load(Acquire));
        self.maps.totals.entry(0)[layout::TOTALS_FINISHED].fetch_add(left, Release);
        words[layout::GROUP_FLAGS].store(0, SeqCst);
        for lane in shown.lanes {
            self.maps.lanes.entry(lane.slot)[layout::LANE_REGION].store(0, SeqCst);
            release_hops(&self.maps, &lane, network);
            if let Some(region) = lane.region {
                self.places.give(region, &self.maps.flights);
            }
            self.lanes.give(lane.slot, &self.maps.flights);
            self.remove_local(lane.path.local);
        }
        self.groups.give(shown.slot, &self.maps.flights);
    }

    /// Brings a lane up to date with the table: appends new members, or writes all of them to another row.
    fn show_lane(
        &mut self,
        table: &Table,
        network: &mut Network,
        group: GroupIndex,
        number: u16,
    ) -> io::Result<()> {
        let of = &table.group(group).lanes[number as usize];
        let len = of.entries.len() as u32;
        let Some(Some(shown)) = self.shown.get(group.0 as usize) else { return Ok(()) };
        if shown.lanes.len() <= number as usize && !self.add_lanes(table, network, group, number)? {
            return Ok(());
        }
        let Some(Some(shown)) = self.shown.get_mut(group.0 as usize) else { return Ok(()) };
        let lane = &mut shown.lanes[number as usize];
        let mut old = None;
        let room = lane.region.map_or(0, Region::capacity);
        if lane.region.is_none() || lane.generation != of.generation || len > room {
            release_hops(&self.maps, lane, network);
            old = lane.region.take();
            lane.unresolved = 0;
            lane.len = 0;
            lane.generation = of.generation;
            if len <= constant::PLACES_MAX as u32 {
                lane.region = self.places.take(len + len / 4, &self.maps.flights);
            }
        }
        if let Some(region) = lane.region {
            for entry in &of.entries[lane.len as usize..] {
                lane.unresolved += show_place(&self.maps, network, lane.path, region.base + lane.len, entry)?;
                lane.len += 1;
            }
        }
        let word = layout::region(lane.region.map_or(0, |region| region.base), lane.len, of.generation);
        let slot = lane.slot;
        // A group that is left to user space from now on is so before the places tell.
        self.show_group(table, group);
        self.maps.lanes.entry(slot)[layout::LANE_REGION].store(word, SeqCst);
        if let Some(old) = old {
            self.places.give(old, &self.maps.flights);
        }
        Ok(())
    }

    /// Shows lanes up to this one. Returns false if there is no room.
    fn add_lanes(
        &mut self,
        table: &Table,
        network: &mut Network,
        group: GroupIndex,
        number: u16,
    ) -> io::Result<bool> {
        let Some(Some(shown)) = self.shown.get_mut(group.0 as usize) else { return Ok(false) };
        for next in shown.lanes.len()..=number as usize {
            let path = table.group(group).lanes[next].path;
            let slot =
                if next < constant::LANES_MAX as usize { self.lanes.take(&self.maps.flights) } else { None };
            let Some(slot) = slot else {
                shown.short = true;
                return Ok(false);
            };
            let mut lane = ShownLane {
                slot,
                path,
                region: None,
                len: 0,
                generation: 0,
                unresolved: 0,
                live: 0,
                alone: None,
            };
            let words = self.maps.lanes.entry(slot);
            words[layout::LANE_REGION].store(0, Relaxed);
            words[layout::LANE_LIVE].store(0, Relaxed);
            for (word, value) in words[layout::LANE_MAC..]
                .iter()
                .zip(layout::lane_local([0; 6], layout::canonical(path.local)))
            {
                word.store(value, Relaxed);
            }
            show_device(&self.maps, &mut lane, network)?;
            let pair = &self.maps.groups.entry(shown.slot)[layout::GROUP_LANES + next / 2];
            let shift = 32 * (next % 2);
            let other = pair.load(Relaxed) & !(u64::from(u32::MAX) << shift);
            pair.store(other | u64::from(slot) << shift, Relaxed);
            // As in the table: most groups have one.
            shown.lanes.reserve_exact(1);
            shown.lanes.push(lane);
            let users = self.locals.entry(layout::canonical(path.local)).or_default();
            *users += 1;
            if *users == 1 {
                let key = layout::local_key(layout::canonical(path.local));
                // Without it, datagrams to this address go up, where user space takes them.
                if let Err(error) = self.maps.locals.insert(key, 1, 0) {
                    tracing::warn!(local = %path.local, %error, "the kernel's programs do not know this address");
                }
            }
        }
        Ok(true)
    }

    fn remove_local(&mut self, local: SocketAddr) {
        let local = layout::canonical(local);
        if let Some(users) = self.locals.get_mut(&local) {
            *users -= 1;
            if *users == 0 {
                self.locals.remove(&local);
                let _ = self.maps.locals.remove(&layout::local_key(local));
            }
        }
    }

    fn show_gap(&mut self, of: &Lane, network: &mut Network, group: GroupIndex, number: u16, position: u32) {
        let Some(Some(shown)) = self.shown.get_mut(group.0 as usize) else { return };
        let Some(lane) = shown.lanes.get_mut(number as usize) else { return };
        let Some(region) = lane.region else { return };
        // Of another generation than is shown: what is shown came from the table without this member.
        if lane.generation != of.generation || position >= lane.len {
            return;
        }
        if of.entries.get(position as usize).is_none_or(|entry| entry.member().is_some()) {
            return;
        }
        let at = region.base + position;
        let place = read_place(&self.maps, at);
        if layout::entry(&place) != GAP {
            lane.unresolved -= u32::from(place[PLACE_HOP] == 0);
            make_gap(&self.maps, at, network);
        }
    }

    /// Shows the member for which an address sends now, or that there is none.
    fn show_sender(
        &mut self,
        table: &Table,
        port: u16,
        address: SocketAddr,
        left: Option<u32>,
    ) -> io::Result<()> {
        let member = table.sender(port, address).map(|index| table.member(index));
        let address = layout::canonical(address);
        let device = |path: Path| path.device;
        let silent = member.is_none_or(|member| !member.sends);
        let shown = member.filter(|member| member.sends).and_then(|member| {
            let group = table.group(member.group);
            let path = group.lanes[member.lane as usize].path;
            let slot = self.shown.get(member.group.0 as usize)?.as_ref()?.slot;
            // One that arrays have no room for is judged by user space.
            let bucket = self.maps.buckets.get(member.bucket.0)?;
            bucket[0].fetch_max(table.bucket_ns(member.bucket), Relaxed);
            let mut flags = if member.echo { constant::SENDER_ECHO } else { 0 };
            flags |= if member.by_address { constant::SENDER_ADDRESS } else { 0 };
            let lane = u32::from(member.lane);
            // What comes by another device is passed up, and none has this number.
            let from = if group.relayed { 0 } else { device(path) };
            Some(layout::sender_value(slot, from, flags, lane, member.bucket))
        });
        let at = member.map(|member| device(table.group(member.group).lanes[member.lane as usize].path));
        let key = layout::sender_key(address, port, at.or(left).unwrap_or_default());
        let known = match shown {
            None => {
                let _ = self.maps.senders.remove(&key);
                silent
            }
            Some(value) => self.maps.senders.insert(key, value, 0).is_ok(),
        };
        if known {
            self.unknown_senders.remove(&key);
        } else {
            self.unknown_senders.insert(key, ());
        }
        self.maps.totals.entry(0)[layout::TOTALS_INCOMPLETE].store(self.unknown_senders.len() as u64, SeqCst);
        Ok(())
    }

    /// Shows the number of members and lanes of a group, and the side that copies for it.
    fn show_group(&mut self, table: &Table, index: GroupIndex) {
        let (Some(Some(shown)), Some(group)) = (self.shown.get_mut(index.0 as usize), table.get_group(index))
        else {
            return;
        };
        for (lane, of) in shown.lanes.iter_mut().zip(&group.lanes) {
            if lane.live != of.live || of.live == 1 {
                lane.live = of.live;
                lane.alone = (of.live == 1)
                    .then(|| {
                        let only = of.entries.iter().find(|entry| entry.member().is_some());
                        only.map(|entry| Box::new(entry.address))
                    })
                    .flatten();
                self.maps.lanes.entry(lane.slot)[layout::LANE_LIVE].store(u64::from(of.live), Release);
            }
        }
        let words = self.maps.groups.entry(shown.slot);
        let ipv6 = group.lanes.first().is_some_and(|lane| layout::canonical(lane.path.local).is_ipv6());
        let mut flags = constant::GROUP_LIVE;
        flags |= if ipv6 { constant::GROUP_IPV6 } else { 0 };
        flags |= if user_copies(group, shown, ipv6) { constant::GROUP_USER } else { 0 };
        // A full device must not hold up the others, and nothing may be refused that could wait where all is wanted.
        flags |= match group.lanes.iter().filter(|lane| lane.live > 0).count() {
            _ if group.options.max_age_ms == 0 => constant::GROUP_KEEP,
            0 | 1 => 0,
            2 => constant::GROUP_PAIR,
            _ => constant::GROUP_KEEP,
        };
        words[layout::GROUP_MEMBERS]
            .store(u64::from(group.receivers()) | u64::from(self.bound_group) << 32, Relaxed);
        words[layout::GROUP_FLAGS].store(flags | (shown.lanes.len() as u64) << 32, SeqCst);
    }
}

/// Returns whether user space has to copy for this group, at least for now.
fn user_copies(group: &Group, shown: &Shown, ipv6: bool) -> bool {
    group.options.sequence
        || shown.short
        || group.lanes.len() > shown.lanes.len()
        || group.lanes.iter().any(|lane| layout::canonical(lane.path.local).is_ipv6() != ipv6)
        || shown
            .lanes
            .iter()
            .zip(&group.lanes)
            .any(|(lane, of)| lane.unresolved > 0 || (lane.region.is_none() && of.live > 0))
}
