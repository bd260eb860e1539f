//! The `kernel` plane: a program at the traffic-control ingress hook copies; user space is not woken. The paper's
//! implementation in the kernel (section 4.3), without a kernel of its own.
//!
//! The program is attached to each device that members are behind, by a link that is removed when this process ends:
//! then all datagrams go up to the reflector's sockets again, wherever these are. It admits and copies by a mirror of
//! the table in memory that it shares with user space ([`mirror`]), and leaves everything unusual to user space:
//! datagrams with IP options, fragments, control datagrams; and all datagrams of groups that are numbered, of more than
//! eight lanes, of both families, of more than 4096 places in a lane, or with a member whose Ethernet address is not
//! known yet.
//!
//! When a device's queue is full the rest of the datagram goes to user space through a ring, with the position where it
//! stopped. Until user space has finished it, the group's next datagrams are refused by the program: so a plane under
//! more load than it can copy goes on copying in the kernel. They go through the ring as well, up to a bound, in groups
//! that want every datagram, and in those with members behind several devices, of which one must not hold up the others.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use aya::Ebpf;
use aya::programs::tc::SchedClassifierLinkId;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType, tc::TcAttachOptions};
use nacre_reflect_bpf::constant;

pub mod allocation;
pub mod load;
#[expect(unsafe_code, reason = "memory shared with the kernel is mapped")]
pub mod mapped;
pub mod mirror;
pub mod netlink;
pub mod network;

mod layout;
mod places;
mod rescue;

use nacre_reflect::rate::BucketIndex;
use nacre_reflect::table::{Change, GroupIndex, Table};

use self::load::Sizes;
use self::mirror::{Memory, Mirror};
use self::network::{Changed, Network};
use self::rescue::Rescues;
use super::{
    Batch, CopyCounts, CopyProgress, Done, LaneBatch, Plane, PlaneError, PlaneKind, PlaneOptions, Rescue,
};
use crate::forward::Listeners;

/// The greatest number of datagrams of one group on their way through user space. More are refused.
pub(crate) const BOUND_GROUP: u32 = 1024;

/// The room in the ring that the datagrams that one processor has under way may take, in bytes: one of the greatest
/// length, and, of programs in drivers, four devices' queues of 16 and one more.
const UNDER_WAY_BYTES: usize = constant::RESCUE_BYTES as usize
    + constant::PAYLOAD_MAX as usize
    + 68 * (constant::RESCUE_BYTES as usize + constant::XDP_BYTES_MAX as usize + 16);

/// Options of the plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelOptions {
    /// The sizes of the program's tables.
    pub sizes: Sizes,
    /// The greatest number of datagrams of all groups together on their way through user space.
    pub bound_total: u64,
}

impl Default for KernelOptions {
    fn default() -> Self {
        KernelOptions { sizes: Sizes::default(), bound_total: 8192 }
    }
}

impl From<&PlaneOptions> for KernelOptions {
    fn from(options: &PlaneOptions) -> Self {
        let mut own = KernelOptions::default();
        if options.groups_max > 0 {
            own.sizes.groups = options.groups_max;
        }
        if options.members_max > 0 {
            own.sizes.members = options.members_max;
        }
        own
    }
}

/// The `kernel` plane.
#[derive(derive_more::Debug)]
#[debug("Kernel")]
pub struct Kernel {
    // The program goes first, then what it works with.
    pub(super) programs: Ebpf,
    attached: HashMap<u32, Option<SchedClassifierLinkId>>,
    /// The devices that the program may be attached to; any if empty.
    devices: Vec<String>,
    pub(super) mirror: Mirror,
    pub(super) network: Network,
    /// The changes of the network that are not shown to the program yet.
    changed: Changed,
    /// The plane that makes the copies left to user space.
    inner: Box<dyn Plane>,
    rescues: Rescues,
    /// Rescues that were taken out of the ring before they were asked for.
    queued: VecDeque<Rescue>,
}

impl Kernel {
    /// Loads the program. `inner` makes the copies that are left to user space.
    ///
    /// # Errors
    /// [`PlaneError`] if the kernel or the rights of the process do not allow it.
    pub fn new(inner: Box<dyn Plane>, options: KernelOptions) -> Result<Self, PlaneError> {
        Self::from_object(nacre_reflect_bpf::TC, inner, options, 0, &[]).map_err(|why| PlaneError {
            plane: PlaneKind::Kernel,
            action: "be loaded".to_owned(),
            why,
        })
    }

    /// Loads the program from an object file that has other programs too; see [`load::load`].
    pub(super) fn from_object(
        object: Result<&[u8], &str>,
        inner: Box<dyn Plane>,
        options: KernelOptions,
        flights: u32,
        others: &[(&str, u32)],
    ) -> Result<Self, String> {
        let cpus = aya::util::nr_cpus().map_err(|(name, error)| format!("cannot read {name}: {error}"))?;
        let under_way = cpus * UNDER_WAY_BYTES;
        let ring = (2 * under_way).next_power_of_two().max(1 << 20);
        let sizes = [&[("rescues", ring as u32), ("rescue_rooms", cpus as u32)], others].concat();
        let (mut programs, maps) = load::load(object, options.sizes, flights, &sizes)?;
        let program = tc(&mut programs)?;
        load::again(|| program.load()).map_err(|error| {
            let text = load::chain(&error);
            format!("{text}{}", load::advice(&text))
        })?;
        let rescues = Rescues::new(&mut programs)?;
        let network = Network::new().map_err(|error| format!("cannot watch the network: {error}"))?;
        let mirror = Mirror::new(maps, BOUND_GROUP, options.bound_total, (ring - under_way) as u64);
        Ok(Kernel {
            programs,
            attached: HashMap::new(),
            devices: Vec::new(),
            mirror,
            network,
            changed: Changed::default(),
            inner,
            rescues,
            queued: VecDeque::new(),
        })
    }

    /// Makes the plane for these listeners. Copies that are left to user space are made by `sendmmsg`.
    pub fn open(listeners: &Arc<Listeners>, options: &PlaneOptions) -> Result<Self, PlaneError> {
        let own = KernelOptions::from(options);
        let mut plane = Self::new(Box::new(Batch::new(listeners.clone())), own)?;
        plane.devices.clone_from(&options.devices);
        Ok(plane)
    }

    /// Returns the mirror of the table that the program reads.
    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Returns the memory that the program's tables take.
    pub fn memory(&self) -> Memory {
        self.mirror.memory()
    }

    /// Returns the program, for tests that run it without a network.
    pub fn program(&mut self) -> Result<&mut SchedClassifier, String> {
        tc(&mut self.programs)
    }

    /// Attaches the program to all that comes in by a device. A device that it cannot be attached to is reported once;
    /// its datagrams go to user space as usual.
    fn attach(&mut self, device: u32) -> io::Result<()> {
        if self.attached.contains_key(&device) {
            return Ok(());
        }
        let Some(name) = self.network.device(device)?.map(|device| device.name.clone()) else {
            return Ok(());
        };
        if !self.devices.is_empty() && !self.devices.contains(&name) {
            self.attached.insert(device, None);
            return Ok(());
        }
        let attached = tc(&mut self.programs).and_then(|program| {
            let options = TcAttachOptions::TcxOrder(LinkOrder::default());
            program
                .attach_with_options(&name, TcAttachType::Ingress, options)
                .map_err(|error| load::chain(&error))
        });
        if let Err(why) = &attached {
            tracing::warn!(
                device = name,
                why,
                "no program at this device: user space copies what comes in there"
            );
        }
        self.attached.insert(device, attached.ok());
        Ok(())
    }
}

impl Kernel {
    /// Takes the next rescue out of the ring.
    fn next_rescue(&mut self) -> Option<Rescue> {
        loop {
            let handed = self.rescues.next()?;
            // A group that was removed meanwhile has nobody to copy to.
            if let Some(group) = self.mirror.group_at(handed.slot) {
                let rescue::HandedDatagram { lane, generation, position, tos, except, payload, .. } = handed;
                return Some(Rescue { group, lane, generation, position, tos, except, payload });
            }
        }
    }

    /// Takes the changes of the network. They are shown to the program in the plane's maintenance.
    fn notice(&mut self) -> Result<(), PlaneError> {
        let changed = self.network.poll().map_err(network_failed)?;
        for index in &changed.devices {
            // The link of a device that is gone went with it, but for the open file; one that is back has another index.
            if self.network.device(*index).map_err(network_failed)?.is_none()
                && let (Some(Some(link)), Ok(program)) = (self.attached.remove(index), tc(&mut self.programs))
            {
                let _ = program.detach(link);
            }
        }
        self.changed.hops.extend(changed.hops);
        self.changed.devices.extend(changed.devices);
        self.changed.routes |= changed.routes;
        Ok(())
    }
}

fn tc(programs: &mut Ebpf) -> Result<&mut SchedClassifier, String> {
    programs
        .program_mut("reflect_tc")
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| "there is no program reflect_tc in its object file".to_owned())
}

fn network_failed(error: io::Error) -> PlaneError {
    PlaneError {
        plane: PlaneKind::Kernel,
        action: "ask the kernel for ways to members".to_owned(),
        why: error.to_string(),
    }
}

impl Plane for Kernel {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Kernel
    }

    fn copy(&mut self, lane_batch: &LaneBatch<'_>) -> Result<CopyProgress, PlaneError> {
        self.inner.copy(lane_batch)
    }

    fn follow(&mut self, table: &Table, change: Change) -> Result<(), PlaneError> {
        self.inner.follow(table, change)?;
        if let Change::GroupRemoved(group) = change {
            // Its number will be another's. Nobody is left who would get anything.
            self.queued.retain(|rescue| rescue.group != group);
            while let Some(rescue) = self.next_rescue() {
                if rescue.group != group {
                    self.queued.push_back(rescue);
                }
            }
        }
        if let Change::Joined(member) = change
            && let Some(member) = table.get_member(member)
        {
            let device = table.group(member.group).lanes[member.lane as usize].path.device;
            self.attach(device).map_err(network_failed)?;
            // What is known of devices and routes is to be true of who comes.
            self.notice()?;
        }
        self.mirror.follow(table, &mut self.network, change).map_err(network_failed)
    }

    fn buckets(&self, bucket: BucketIndex, group: GroupIndex) -> Option<[&AtomicU64; 2]> {
        self.mirror.buckets(bucket, group)
    }

    fn bound(&mut self, datagrams: usize) {
        self.inner.bound(datagrams);
        self.mirror.bound(u32::try_from(datagrams).unwrap_or(u32::MAX).min(BOUND_GROUP));
    }

    fn rescue(&mut self) -> Option<Rescue> {
        self.queued.pop_front().or_else(|| self.next_rescue())
    }

    fn rescues_max(&self) -> u64 {
        // At least one: what is counted may be a little behind.
        (self.queued.len() as u64 + self.mirror.waiting_of_all()).max(1)
    }

    fn rescue_ready(&self) -> Option<BorrowedFd<'_>> {
        Some(self.rescues.ready())
    }

    fn hold(&mut self) {
        self.mirror.hold();
    }

    fn settle(&mut self) {
        self.mirror.settle();
    }

    fn finished(&mut self, group: GroupIndex) {
        self.mirror.finished(group);
    }

    fn waits(&mut self, group: GroupIndex) {
        self.mirror.waits(group);
    }

    fn maintain(&mut self, table: &Table) -> Result<(), PlaneError> {
        self.inner.maintain(table)?;
        self.notice()?;
        let changed = std::mem::take(&mut self.changed);
        self.mirror.refresh(table, &mut self.network, &changed).map_err(network_failed)?;
        self.network.confirm().map_err(network_failed)
    }

    fn copy_counts(&self) -> CopyCounts {
        self.mirror.copy_counts() + self.inner.copy_counts()
    }

    fn group_done(&self, group: GroupIndex) -> Done {
        self.mirror.group_done(group)
    }

    fn done(&mut self) -> Done {
        let mut done = self.inner.done();
        let kernel = self.mirror.done();
        done.datagrams += kernel.datagrams;
        done.bytes += kernel.bytes;
        done.copies += kernel.copies;
        done.non_members += kernel.non_members;
        done.over_rate += kernel.over_rate;
        done.backlog += kernel.backlog;
        done.undeliverable += kernel.undeliverable;
        done.handed += kernel.handed;
        done.handed_lost += kernel.handed_lost;
        done
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn programs_and_user_space_agree_on_what_is_for_the_reflector() {
        assert_eq!(nacre_reflect_bpf::MAGIC, nacre_reflect::wire::MAGIC);
    }
}
