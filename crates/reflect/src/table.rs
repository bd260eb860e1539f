//! The table of groups, their lanes and members: the single source of truth, which planes follow by its [`Change`]s.
//!
//! Invariants:
//! - A *lane* is the members of one group that are reached through one device from one local address. Datagrams are
//!   copied lane by lane, so that a full device holds up only the members behind it.
//! - Positions in a lane are stable within a *generation*: members are appended, and one that leaves becomes a gap.
//!   When there are many gaps the lane is rewritten, under the next generation. So a copy under way in another place (the
//!   kernel) can name where it stopped by generation and position, and a member that joins or leaves never costs
//!   another a datagram.
//! - An address is a member of a group at most once. On a port that several groups share it may be in several (it joins
//!   the next before it leaves the last); its datagrams go to the one that it joined last.

mod group;
mod lane;
mod member;
mod sender;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

pub use group::{Group, GroupId, GroupIndex, GroupOptions};
use lane::REWRITINGS;
pub use lane::{Entry, GENERATION_BITS, LANES_KEPT, LANES_MAX, Lane, Path};
pub use member::{Member, MemberIndex, Terms};
use member::{NOBODY, NOWHERE, Put};
use sender::Senders;

use crate::pages::Pages;
use crate::rate::{BucketIndex, Buckets, Owner};

/// A change of a table, for planes to follow. The table already shows the new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A group was made.
    GroupAdded(GroupIndex),
    /// A group's options changed, or whether it is relayed.
    GroupChanged(GroupIndex),
    /// A group without members was removed. It is still in the table when this is reported.
    GroupRemoved(GroupIndex),
    /// A member joined, at the end of its lane (which may be new). Its datagrams go to this group from now on.
    Joined(MemberIndex),
    /// A member left: its place is a gap now.
    Left {
        /// The group that it was in.
        group: GroupIndex,
        /// The lane, by number.
        lane: u16,
        /// The place that is a gap now.
        position: u32,
        /// The member's address.
        address: SocketAddr,
        /// The member of the same address and port for which the address sends from now on, if there is one.
        sender: Option<MemberIndex>,
    },
    /// A lane was rewritten, without gaps, under another generation. Its members have new positions.
    Rewritten {
        /// The group.
        group: GroupIndex,
        /// The lane, by number.
        lane: u16,
    },
}

/// Groups and their members.
#[derive(Debug, Default)]
pub struct Table {
    groups: Vec<Option<Group>>,
    groups_free: Vec<u32>,
    group_of: HashMap<GroupId, GroupIndex>,
    members: Pages<Option<Member>>,
    members_free: Vec<u32>,
    live: u32,
    senders: Senders,
    buckets: Buckets,
    changes: Vec<Change>,
    /// Lanes with too many gaps.
    rewrite: HashSet<(GroupIndex, u16)>,
}

impl Table {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of groups.
    pub fn groups_len(&self) -> usize {
        self.group_of.len()
    }

    /// Returns the number of members.
    pub fn members_len(&self) -> usize {
        self.live as usize
    }

    /// Returns the place of a group.
    pub fn find(&self, id: GroupId) -> Option<GroupIndex> {
        self.group_of.get(&id).copied()
    }

    /// Returns a group that exists.
    ///
    /// # Panics
    /// If there is none at this place.
    pub fn group(&self, index: GroupIndex) -> &Group {
        self.groups[index.0 as usize].as_ref().expect("a group stands at its index")
    }

    /// Returns a group that exists, to keep its counters.
    ///
    /// # Panics
    /// If there is none at this place.
    pub fn group_mut(&mut self, index: GroupIndex) -> &mut Group {
        self.groups[index.0 as usize].as_mut().expect("a group stands at its index")
    }

    /// Returns a group, unless it was removed meanwhile.
    pub fn get_group(&self, index: GroupIndex) -> Option<&Group> {
        self.groups.get(index.0 as usize)?.as_ref()
    }

    /// Returns all groups.
    pub fn groups(&self) -> impl Iterator<Item = (GroupIndex, &Group)> {
        self.groups
            .iter()
            .enumerate()
            .filter_map(|(at, group)| Some((GroupIndex(at as u32), group.as_ref()?)))
    }

    /// Returns a member that exists.
    ///
    /// # Panics
    /// If there is none at this place.
    pub fn member(&self, index: MemberIndex) -> &Member {
        self.members[index.0 as usize].as_ref().expect("a member stands at its index")
    }

    /// Returns a member that exists, to update its data.
    ///
    /// # Panics
    /// If there is none at this place.
    pub fn member_mut(&mut self, index: MemberIndex) -> &mut Member {
        self.members[index.0 as usize].as_mut().expect("a member stands at its index")
    }

    /// Returns a member, unless it left meanwhile.
    pub fn get_member(&self, index: MemberIndex) -> Option<&Member> {
        self.members.get(index.0 as usize)?.as_ref()
    }

    /// Returns one past the greatest place of a member, for callers that visit all of them in batches.
    pub fn members_end(&self) -> u32 {
        self.members.len() as u32
    }

    /// Returns the newest member for which an address sends to a port.
    pub fn sender(&self, port: u16, address: SocketAddr) -> Option<MemberIndex> {
        self.senders.get(&self.members, port, address)
    }

    /// Returns all members for which an address sends to a port, the newest first.
    pub fn senders(&self, port: u16, address: SocketAddr) -> impl Iterator<Item = MemberIndex> {
        std::iter::successors(self.sender(port, address), |&index| self.member(index).older())
    }

    /// Returns the member of a group with this address.
    pub fn member_of(&self, id: GroupId, address: SocketAddr) -> Option<MemberIndex> {
        let group = self.find(id)?;
        self.senders(id.port, address).find(|&index| self.member(index).group == group)
    }

    /// Creates a group, or changes the options of one.
    pub fn set_group(&mut self, id: GroupId, options: GroupOptions) -> GroupIndex {
        if let Some(index) = self.find(id) {
            if self.group(index).options != options {
                self.group_mut(index).options = options;
                self.changes.push(Change::GroupChanged(index));
            }
            return index;
        }
        let group =
            Group { id, options, lanes: Vec::new(), live: 0, bucket_ns: 0, sequence: 0, relayed: false };
        let index = GroupIndex(place(&mut self.groups, &mut self.groups_free, group));
        self.group_of.insert(id, index);
        self.changes.push(Change::GroupAdded(index));
        index
    }

    /// Sets whether a group's datagrams go to another reflector, too.
    pub fn set_relayed(&mut self, index: GroupIndex, relayed: bool) {
        if self.group(index).relayed != relayed {
            self.group_mut(index).relayed = relayed;
            self.changes.push(Change::GroupChanged(index));
        }
    }

    /// Removes a group that has no members. It is gone once the changes have been taken.
    ///
    /// # Panics
    /// If it has members.
    pub fn remove_group(&mut self, index: GroupIndex) {
        assert_eq!(self.group(index).live, 0, "a group is removed after its members");
        let id = self.group(index).id;
        self.group_of.remove(&id);
        self.changes.push(Change::GroupRemoved(index));
    }

    /// Adds a member whose rate is its address's; see [`Table::join_on`].
    pub fn join(
        &mut self,
        group: GroupIndex,
        path: Path,
        address: SocketAddr,
        echo: bool,
        now_ms: u64,
    ) -> MemberIndex {
        self.join_on(group, path, address, Terms::of_address(address, echo), now_ms)
    }

    /// Adds a member that has proven its address, and makes it the sender for that address. A member of the group with
    /// the same address stays where it is if path and terms are the same and it is the sender already; otherwise it is
    /// replaced.
    pub fn join_on(
        &mut self,
        group: GroupIndex,
        path: Path,
        address: SocketAddr,
        terms: Terms,
        now_ms: u64,
    ) -> MemberIndex {
        let id = self.group(group).id;
        let Terms { owner, sends, receives, .. } = terms;
        let echo = terms.echo || !receives;
        let bucket = self.buckets.enter(id, owner);
        if let Some(index) = self.member_of(id, address) {
            let member = self.member(index);
            let stays = self.group(group).lanes[member.lane as usize].path == path
                && (member.echo, member.sends, member.receives()) == (echo, sends, receives)
                && member.bucket == bucket;
            let by_address = member.by_address;
            if stays && self.sender(id.port, address) == Some(index) {
                self.member_mut(index).heard_ms = now_ms;
                self.leave_bucket(group, bucket, by_address);
                return index;
            }
            self.leave(index);
        }
        let by_address = matches!(owner, Owner::Address(_));
        let seat = Put { echo, sends, receives, bucket, by_address };
        self.put(group, path, address, seat, now_ms)
    }

    /// Has a member reached by another path from now on, as the newest at its address.
    ///
    /// # Panics
    /// If there is none at this place.
    pub fn take_path(&mut self, index: MemberIndex, path: Path, now_ms: u64) -> MemberIndex {
        let Member { group, address, echo, sends, position, bucket, by_address, heartbeat, delay_us, .. } =
            *self.member(index);
        self.buckets.enter_again(bucket);
        self.leave(index);
        let seat = Put { echo, sends, receives: position != NOWHERE, bucket, by_address };
        let moved = self.put(group, path, address, seat, now_ms);
        let member = self.member_mut(moved);
        (member.heartbeat, member.delay_us) = (heartbeat, delay_us);
        moved
    }

    /// Adds a member behind the others of its path. Its bucket counts it already.
    fn put(
        &mut self,
        group: GroupIndex,
        path: Path,
        address: SocketAddr,
        Put { echo, sends, receives, bucket, by_address }: Put,
        now_ms: u64,
    ) -> MemberIndex {
        let id = self.group(group).id;
        let of = self.groups[group.0 as usize].as_mut().expect("the group was found");
        let older = self.senders.get(&self.members, id.port, address);
        let lane = of.lane_for(path).unwrap_or_else(|| {
            // Most groups have one lane: room for more would cost each of their members some bytes.
            of.lanes.reserve_exact(1);
            of.lanes.push(Lane::new(path));
            of.lanes.len() - 1
        });
        // The gaps of one that takes another path stay: copies that wait name places by their positions.
        of.lanes[lane].path = path;
        of.lanes[lane].members += 1;
        let position = if receives { of.lanes[lane].entries.len() as u32 } else { NOWHERE };
        let member = Member {
            group,
            address,
            lane: lane as u16,
            echo,
            sends,
            position,
            port: id.port,
            older: older.map_or(NOBODY, |older| older.0),
            bucket,
            by_address,
            heard_ms: now_ms,
            heartbeat: 0,
            delay_us: 0,
        };
        let index = match self.members_free.pop() {
            Some(at) => {
                self.members[at as usize] = Some(member);
                MemberIndex(at)
            }
            None => {
                self.members.push(Some(member));
                MemberIndex(self.members.len() as u32 - 1)
            }
        };
        let group = self.group_mut(group);
        group.live += 1;
        if receives {
            group.lanes[lane].live += 1;
            let entries = &mut group.lanes[lane].entries;
            if entries.len() == entries.capacity() {
                // Space for twice as many would be half of what small groups take.
                entries.reserve_exact((entries.len() / 4).max(2));
            }
            entries.push(Entry { address, member: index.0 });
        }
        self.live += 1;
        self.senders.put(&self.members, older, index);
        self.changes.push(Change::Joined(index));
        index
    }

    fn leave_bucket(&mut self, group: GroupIndex, bucket: BucketIndex, by_address: bool) {
        let options = &self.group(group).options;
        let (rate, copies_max) = (options.owner_rate(by_address), u64::from(options.members_max));
        self.buckets.leave(bucket, rate, copies_max);
    }

    /// Returns the time at which a bucket is full, where user space keeps it, in nanoseconds.
    pub fn bucket_ns(&self, bucket: BucketIndex) -> u64 {
        self.buckets.full_at_ns(bucket)
    }

    /// Takes the copies of a datagram from the buckets of its sender and of the group, or from neither and returns
    /// false. `shared` are those buckets where programs in the kernel take from them too.
    pub fn admit(
        &mut self,
        sender: MemberIndex,
        now_ns: u64,
        copies: u64,
        shared: Option<[&AtomicU64; 2]>,
    ) -> bool {
        let Member { group: index, bucket, by_address, .. } = *self.member(sender);
        let options = &self.group(index).options;
        let (owner_rate, group_rate) = (options.owner_rate(by_address), options.group_rate);
        let (of_owner, of_group) = match shared {
            None => {
                let of_owner = owner_rate.after(self.bucket_ns(bucket), now_ns, copies);
                let of_group = group_rate.after(self.group(index).bucket_ns, now_ns, copies);
                let (Some(of_owner), Some(of_group)) = (of_owner, of_group) else { return false };
                (of_owner, of_group)
            }
            Some([of_owner, of_group]) => {
                if !owner_rate.take_shared(of_owner, now_ns, copies) {
                    return false;
                }
                if !group_rate.take_shared(of_group, now_ns, copies) {
                    owner_rate.give_back(of_owner, copies);
                    return false;
                }
                (of_owner.load(Relaxed), of_group.load(Relaxed))
            }
        };
        self.buckets.set(bucket, of_owner);
        self.group_mut(index).bucket_ns = of_group;
        true
    }

    /// Forgets what owners of rates that have no members any more may send, once it is all again. To be called several
    /// times a second.
    pub fn age(&mut self, now_ns: u64) {
        self.buckets.age(now_ns);
    }

    /// Removes a member.
    ///
    /// # Panics
    /// If there is none at this place.
    pub fn leave(&mut self, index: MemberIndex) {
        let gone = self.member(index).clone();
        let newest = self.sender(gone.port, gone.address).expect("a member's address has a sender");
        match (newest == index, gone.older()) {
            (true, Some(older)) => self.senders.put(&self.members, Some(index), older),
            (true, None) => self.senders.remove(index, gone.port, gone.address),
            (false, _) => {
                let mut next = newest;
                while self.member(next).older != index.0 {
                    next = self.member(next).older().expect("a member is in the chain of its address");
                }
                self.member_mut(next).older = gone.older;
            }
        }
        self.members[index.0 as usize] = None;
        self.members_free.push(index.0);
        self.live -= 1;
        self.leave_bucket(gone.group, gone.bucket, gone.by_address);
        let group = self.group_mut(gone.group);
        group.live -= 1;
        let lane = &mut group.lanes[gone.lane as usize];
        lane.members -= 1;
        if gone.position != NOWHERE {
            lane.live -= 1;
            lane.entries[gone.position as usize].member = NOBODY;
        }
        let gaps = lane.entries.len() - lane.live as usize;
        self.changes.push(Change::Left {
            group: gone.group,
            lane: gone.lane,
            position: gone.position,
            address: gone.address,
            sender: self.sender(gone.port, gone.address),
        });
        // Gaps cost a test for each copy; rewriting costs a write for each member. Both stay small this way.
        if gaps > 16 && gaps > self.group(gone.group).lanes[gone.lane as usize].live as usize / 4 {
            self.rewrite.insert((gone.group, gone.lane));
        }
    }

    fn rewrite(&mut self, group: GroupIndex, number: u16) {
        let lane =
            &mut self.groups[group.0 as usize].as_mut().expect("the group was found").lanes[number as usize];
        let gaps = lane.entries.iter().zip(0..).filter(|(entry, _)| entry.member().is_none());
        let gaps = gaps.map(|(_, position)| position).collect();
        let left_out = lane.left_out.get_or_insert_default();
        if left_out.len() == REWRITINGS {
            left_out.pop_front();
        }
        left_out.push_back(gaps);
        lane.entries.retain(|entry| entry.member().is_some());
        lane.entries.shrink_to(lane.entries.len() + lane.entries.len() / 4);
        lane.generation = lane.generation.wrapping_add(1);
        for (position, entry) in lane.entries.iter().enumerate() {
            let member = entry.member().expect("the gaps were removed");
            self.members[member.0 as usize].as_mut().expect("an entry is a member's").position =
                position as u32;
        }
        self.changes.push(Change::Rewritten { group, lane: number });
    }

    /// Reports each change since the last call, in order. Lanes with many gaps are rewritten, and removed groups are
    /// dropped now.
    pub fn take_changes(&mut self, mut handle: impl FnMut(&Table, Change)) {
        for (group, lane) in std::mem::take(&mut self.rewrite) {
            // One that was removed is told of no more.
            if self.get_group(group).is_some_and(|there| self.find(there.id) == Some(group)) {
                self.rewrite(group, lane);
            }
        }
        let changes = std::mem::take(&mut self.changes);
        for &change in &changes {
            handle(self, change);
            if let Change::GroupRemoved(index) = change {
                self.groups[index.0 as usize] = None;
                self.groups_free.push(index.0);
            }
        }
    }
}

fn place<T>(places: &mut Vec<Option<T>>, free: &mut Vec<u32>, value: T) -> u32 {
    match free.pop() {
        Some(at) => {
            places[at as usize] = Some(value);
            at
        }
        None => {
            places.push(Some(value));
            places.len() as u32 - 1
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn address(host: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, host], 1000))
    }

    fn path(device: u8) -> Path {
        Path { device: u32::from(device), local: SocketAddr::from(([127, 0, 1, device], 7400)) }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Join { group: u32, host: u8, device: u8 },
        Leave { group: u32, host: u8 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..3_u32, 0..80_u8, 0..2_u8).prop_map(|(group, host, device)| Step::Join {
                group,
                host,
                device
            }),
            (0..3_u32, 0..80_u8).prop_map(|(group, host)| Step::Leave { group, host }),
        ]
    }

    proptest! {
        /// A plane that follows the changes knows the same members and the same senders as a naive model.
        #[test]
        fn whoever_follows_the_changes_knows_the_members(steps in prop::collection::vec(step(), 1..600)) {
            let mut table = Table::new();
            let id = |id| GroupId { port: 7400, id };
            let groups: Vec<_> = (0..3).map(|n| table.set_group(id(n), GroupOptions::default())).collect();
            // The model: of each address, the groups in the order of joining, with the device.
            let mut model: BTreeMap<u8, Vec<(u32, u8)>> = BTreeMap::new();
            let mut lanes: BTreeMap<(u32, u16), Vec<Option<SocketAddr>>> = BTreeMap::new();
            let mut senders: BTreeMap<SocketAddr, u32> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Join { group, host, device } => {
                        table.join(groups[group as usize], path(device), address(host), false, 0);
                        let of = model.entry(host).or_default();
                        of.retain(|(other, _)| *other != group);
                        of.push((group, device));
                    }
                    Step::Leave { group, host } => {
                        if let Some(member) = table.member_of(id(group), address(host)) {
                            table.leave(member);
                        }
                        model.entry(host).or_default().retain(|(other, _)| *other != group);
                    }
                }
                table.take_changes(|table, change| match change {
                    Change::Joined(member) => {
                        let member = table.member(member);
                        let lane = lanes.entry((member.group.0, member.lane)).or_default();
                        lane.resize(lane.len().max(member.position as usize + 1), None);
                        lane[member.position as usize] = Some(member.address);
                        senders.insert(member.address, member.group.0);
                    }
                    Change::Left { group, lane, position, address, sender } => {
                        lanes.get_mut(&(group.0, lane)).unwrap()[position as usize] = None;
                        match sender {
                            None => senders.remove(&address),
                            Some(sender) => senders.insert(address, table.member(sender).group.0),
                        };
                    }
                    Change::Rewritten { group, lane } => {
                        let entries = &table.group(group).lanes[lane as usize].entries;
                        lanes.insert((group.0, lane), entries.iter().map(|entry| Some(entry.address)).collect());
                    }
                    Change::GroupAdded(_) | Change::GroupChanged(_) | Change::GroupRemoved(_) => {}
                });
            }
            for (number, group) in groups.iter().enumerate() {
                let mut expected: Vec<_> = model
                    .iter()
                    .flat_map(|(host, of)| of.iter().map(move |(group, device)| (*group, *device, address(*host))))
                    .filter(|(group, _, _)| *group == number as u32)
                    .map(|(_, device, address)| (u32::from(device), address))
                    .collect();
                let mut found: Vec<_> = lanes
                    .iter()
                    .filter(|((of, _), _)| of == &group.0)
                    .flat_map(|((_, lane), entries)| {
                        let device = table.group(*group).lanes[*lane as usize].path.device;
                        entries.iter().flatten().map(move |address| (device, *address))
                    })
                    .collect();
                expected.sort();
                found.sort();
                prop_assert_eq!(&expected, &found);
                prop_assert_eq!(expected.len(), table.group(*group).live as usize);
            }
            let expected: BTreeMap<_, _> = model
                .iter()
                .filter_map(|(host, of)| Some((address(*host), groups[of.last()?.0 as usize].0)))
                .collect();
            prop_assert_eq!(&expected, &senders);
            prop_assert_eq!(table.members_len(), model.values().map(Vec::len).sum::<usize>());
        }
    }
}
