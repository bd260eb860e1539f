//! The `ring` plane: frames in memory shared with the kernel. The payload is summed once, and a copy costs its headers,
//! and its share of a system call for many. Of the ways to do so AF_XDP was measured to be the cheapest, also where the
//! kernel copies the frames, which any device allows (`docs/reflect-planes.md`).
//!
//! Such frames bypass the kernel's routes, its filters and the device's queue. So this plane asks the kernel for the
//! way to each member, and leaves copies to `batch` wherever such frames would be wrong: to members whose Ethernet
//! address is not known (yet), through devices that are not Ethernet, are down, or have a queue that an operator has
//! chosen, and of datagrams that are longer than a frame of common Ethernet.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use nacre_reflect::table::{Change, MemberIndex, Table};

use super::kernel::netlink::Framing;
use super::kernel::network::{HopIndex, Network};
use super::{Batch, CopyCounts, CopyProgress, LaneBatch, Plane, PlaneError, PlaneKind};
use crate::forward::Listeners;

mod frame;
mod queue;
#[expect(unsafe_code, reason = "memory is shared with the kernel")]
mod xsk;

use frame::{Mac, Template};
use xsk::{FRAME_BYTES, FRAMES, SendOutcome, Xsk};

/// The number of ways to members looked up again in each maintenance of the plane.
const WAYS_AT_ONCE: u32 = 1024;
/// The number of maintenances from one look at the devices' queues to the next.
const QUEUES_EVERY: u32 = 10;

/// The way to a member.
#[derive(Clone, Copy, Debug, Default)]
struct MemberRoute {
    hop: Option<HopIndex>,
    /// The Ethernet address of the next hop, if frames may be sent there.
    mac: Option<Mac>,
    /// True if the member is among those that wait for one.
    waits: bool,
}

/// The means to send frames by a device.
struct Sender {
    xsk: Xsk,
    mac: Mac,
    mtu: usize,
}

/// The `ring` plane.
#[derive(derive_more::Debug)]
#[debug("Ring")]
pub struct Ring {
    inner: Batch,
    network: Network,
    /// The devices by which members are reached; `None` for those by which no frames are sent.
    senders: HashMap<u32, Option<Sender>>,
    /// The ways to members, by their places in the table.
    ways: Vec<MemberRoute>,
    /// The members without an Ethernet address yet.
    waiting: Vec<MemberIndex>,
    /// The first member whose way is to be looked up again, as routes have changed.
    anew: Option<u32>,
    /// True if they have changed again since that round began.
    again: bool,
    /// The devices whose queue an operator has chosen.
    chosen: Vec<u32>,
    rounds: u32,
    /// The number of frames that a device did not send before it was lost.
    undeliverable: u64,
    /// The number of frames that devices took.
    frames: u64,
}

impl Ring {
    /// Creates the plane. Must be called in the network namespace of the listeners.
    ///
    /// # Errors
    /// [`PlaneError`] if the kernel or the rights of the process do not allow it.
    pub fn new(listeners: Arc<Listeners>) -> Result<Self, PlaneError> {
        let failed = |action: &str, why: std::io::Error| PlaneError {
            plane: PlaneKind::Ring,
            action: action.to_owned(),
            why: match why.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => {
                    format!("{why}: it needs root, or the capability CAP_NET_RAW")
                }
                Some(libc::EAFNOSUPPORT) => format!("{why}: it needs a kernel with CONFIG_XDP_SOCKETS"),
                _ => why.to_string(),
            },
        };
        Xsk::allowed().map_err(|why| failed("open a socket for frames", why))?;
        Ok(Ring {
            inner: Batch::new(listeners),
            network: Network::new().map_err(|why| failed("watch the network", why))?,
            senders: HashMap::new(),
            ways: Vec::new(),
            waiting: Vec::new(),
            anew: None,
            again: false,
            chosen: queue::chosen().map_err(|why| failed("see the devices' queues", why))?,
            rounds: 0,
            undeliverable: 0,
            frames: 0,
        })
    }

    /// Finds the way to a member. A member without one is left to `batch`.
    fn find(&mut self, table: &Table, index: MemberIndex) {
        let at = index.0 as usize;
        if at >= self.ways.len() {
            self.ways.resize(at + 1, MemberRoute::default());
        }
        let before = std::mem::take(&mut self.ways[at]);
        let Some(member) = table.get_member(index) else {
            before.hop.inspect(|&hop| self.network.release(hop));
            self.ways[at].waits = before.waits;
            return;
        };
        let path = table.group(member.group).lanes[usize::from(member.lane)].path;
        let hop = match self.sender(path.device) {
            true => self.network.hop(path.device, path.local.ip(), member.address.ip()).ok().flatten(),
            false => None,
        };
        // The new one is taken before the old one is given back, which may be the same.
        before.hop.inspect(|&hop| self.network.release(hop));
        let mac = hop.and_then(|hop| self.network.mac(hop));
        let waits = hop.is_some() && mac.is_none();
        if waits && !before.waits {
            self.waiting.push(index);
        }
        self.ways[at] = MemberRoute { hop, mac, waits: waits || before.waits };
    }

    /// Returns whether frames can be sent by a device. Sets it up for that if it was not yet.
    fn sender(&mut self, device: u32) -> bool {
        let place = match self.senders.entry(device) {
            Entry::Occupied(known) => return known.get().is_some(),
            Entry::Vacant(place) => place,
        };
        // The last look at the queues may be older than a queue.
        if let Ok(chosen) = queue::chosen() {
            self.chosen.retain(|&other| other != device);
            self.chosen.extend(chosen.contains(&device).then_some(device));
        }
        let sender = match self.network.device(device) {
            Ok(Some(known)) if known.framing == Framing::Ethernet && known.up => {
                let (mac, mtu, name) = (known.mac, known.mtu as usize, known.name.clone());
                match Xsk::open(device) {
                    _ if self.chosen.contains(&device) => None,
                    Ok(xsk) => Some(Sender { xsk, mac, mtu }),
                    Err(why) => {
                        tracing::warn!(device = name, %why, "no frames through this device: copies are sent one by one");
                        None
                    }
                }
            }
            _ => None,
        };
        place.insert(sender).is_some()
    }

    /// Gives up a device in its present state. Frames that it has not sent are lost.
    fn forget(&mut self, device: u32) {
        if let Some(Some(sender)) = self.senders.remove(&device) {
            self.undeliverable += u64::from(sender.xsk.pending());
        }
        self.look_again();
    }

    /// Has the way to each member looked up again. A round is not cut short by the next one: where routes change all the
    /// time, the last members would never have their turn.
    fn look_again(&mut self) {
        match self.anew {
            None => self.anew = Some(0),
            Some(_) => self.again = true,
        }
    }
}

/// Sends frames, as far as the device has room.
fn kick(xsk: &mut Xsk, frames: &mut u64, progress: &mut CopyProgress) -> SendOutcome {
    let (sent, kicked) = xsk.kick();
    progress.copies += sent;
    *frames += u64::from(sent);
    kicked
}

impl Plane for Ring {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Ring
    }

    fn copy(&mut self, lane_batch: &LaneBatch<'_>) -> Result<CopyProgress, PlaneError> {
        let device = lane_batch.lane.path.device;
        let local = lane_batch.lane.path.local;
        let len = frame::head_bytes(local) + lane_batch.payload.len();
        let Some(Some(sender)) = self.senders.get_mut(&device) else {
            return self.inner.copy(lane_batch);
        };
        let (Range { start, end }, mut progress) = (lane_batch.positions.clone(), CopyProgress::default());
        // What the device has not taken yet comes first.
        match kick(&mut sender.xsk, &mut self.frames, &mut progress) {
            SendOutcome::Done => {}
            SendOutcome::Full => return Ok(CopyProgress { next: start, full: true, ..progress }),
            SendOutcome::Dead => {
                self.forget(device);
                return Ok(CopyProgress { next: start, full: true, ..progress });
            }
        }
        let too_long = frame::packet_bytes(local, lane_batch.payload.len()) > sender.mtu;
        let framed = len <= FRAME_BYTES && !too_long;
        let template =
            Template::new(sender.mac, local, lane_batch.tos, if framed { lane_batch.payload } else { &[] });
        // Frames that hold the payload already.
        let mut held = 0;
        let mut next = start;
        while next < end {
            let mut count = 0;
            while next < end && count < FRAMES {
                let Some(to) = lane_batch.to(next) else {
                    next += 1;
                    continue;
                };
                let way = lane_batch.lane.entries[next]
                    .member()
                    .and_then(|member| self.ways.get(member.0 as usize));
                let Some(mac) = way.and_then(|way| way.mac).filter(|_| framed) else { break };
                let frame = sender.xsk.frame(count);
                template.write(frame, mac, to);
                if count >= held {
                    frame[len - lane_batch.payload.len()..len].copy_from_slice(lane_batch.payload);
                    held = count + 1;
                }
                count += 1;
                next += 1;
            }
            if count > 0 {
                sender.xsk.put(count, len);
                match kick(&mut sender.xsk, &mut self.frames, &mut progress) {
                    SendOutcome::Done => {}
                    SendOutcome::Full => return Ok(CopyProgress { next, full: true, ..progress }),
                    SendOutcome::Dead => {
                        self.forget(device);
                        return Ok(CopyProgress { next, full: true, ..progress });
                    }
                }
            }
            if next < end && count < FRAMES {
                // Those of whom no frames can be made, up to the next of whom one can.
                let from = next;
                next += 1;
                while next < end {
                    let way = lane_batch.lane.entries[next]
                        .member()
                        .and_then(|member| self.ways.get(member.0 as usize));
                    if framed && way.is_some_and(|way| way.mac.is_some()) {
                        break;
                    }
                    next += 1;
                }
                let part = LaneBatch { positions: from..next, ..*lane_batch };
                let by_batch = self.inner.copy(&part)?;
                progress.copies += by_batch.copies;
                progress.undeliverable += by_batch.undeliverable;
                if by_batch.full {
                    return Ok(CopyProgress { next: by_batch.next, full: true, ..progress });
                }
            }
        }
        Ok(CopyProgress { next: end, ..progress })
    }

    fn follow(&mut self, table: &Table, change: Change) -> Result<(), PlaneError> {
        if let Change::Joined(member) = change {
            self.find(table, member);
        }
        Ok(())
    }

    fn flush(&mut self, copies: &mut u64) -> bool {
        let mut all = true;
        for sender in self.senders.values_mut().flatten() {
            let (sent, kicked) = sender.xsk.kick();
            *copies += u64::from(sent);
            self.frames += u64::from(sent);
            all &= kicked != SendOutcome::Full;
        }
        all
    }

    fn maintain(&mut self, table: &Table) -> Result<(), PlaneError> {
        let failed = |why: std::io::Error| PlaneError {
            plane: PlaneKind::Ring,
            action: "watch the network".to_owned(),
            why: why.to_string(),
        };
        let changed = self.network.poll().map_err(failed)?;
        for &device in &changed.devices {
            let known = self.network.device(device).map_err(failed)?;
            match (known, self.senders.get_mut(&device)) {
                (Some(known), Some(Some(sender))) if known.up && known.framing == Framing::Ethernet => {
                    (sender.mac, sender.mtu) = (known.mac, known.mtu as usize);
                }
                _ => self.forget(device),
            }
        }
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(QUEUES_EVERY) {
            let chosen = queue::chosen().map_err(failed)?;
            let busy =
                |sender: &Option<Sender>| sender.as_ref().is_some_and(|sender| sender.xsk.pending() > 0);
            let devices: Vec<u32> = self
                .senders
                .iter()
                .filter(|(device, _)| chosen.contains(device) != self.chosen.contains(device))
                // What is on its way goes first; the next look sees the same.
                .filter(|(_, sender)| !busy(sender))
                .map(|(&device, _)| device)
                .collect();
            for device in devices {
                self.chosen.retain(|&other| other != device);
                self.chosen.extend(chosen.contains(&device).then_some(device));
                self.forget(device);
            }
            let used = |device: &u32| self.senders.contains_key(device);
            self.chosen.retain(used);
            self.chosen.extend(chosen.iter().copied().filter(|device| !used(device)));
        }
        if changed.routes {
            self.look_again();
        }
        if !changed.hops.is_empty() {
            // Those that wait for their first address have their turn below.
            for way in self.ways.iter_mut().filter(|way| way.mac.is_some()) {
                way.mac = way.hop.and_then(|hop| self.network.mac(hop));
            }
        }
        for member in std::mem::take(&mut self.waiting) {
            let way = &mut self.ways[member.0 as usize];
            way.mac = way.hop.and_then(|hop| self.network.mac(hop));
            way.waits = way.hop.is_some() && way.mac.is_none();
            if way.waits {
                self.waiting.push(member);
            }
        }
        if let Some(from) = self.anew {
            let to = table.members_end().min(from + WAYS_AT_ONCE);
            for member in from..to {
                self.find(table, MemberIndex(member));
            }
            self.anew = match to < table.members_end() {
                true => Some(to),
                false => std::mem::take(&mut self.again).then_some(0),
            };
        }
        self.network.confirm().map_err(failed)
    }

    fn copy_counts(&self) -> CopyCounts {
        self.inner.copy_counts() + CopyCounts { frames: self.frames, ..CopyCounts::default() }
    }

    fn done(&mut self) -> super::Done {
        super::Done { undeliverable: std::mem::take(&mut self.undeliverable), ..Default::default() }
    }
}

#[cfg(all(test, feature = "testkit"))]
mod tests {
    use std::net::SocketAddr;

    use nacre_reflect::table::{GroupId, GroupOptions, Path};

    use super::*;
    use crate::testbed::Testbed;

    /// Routes may change all the time. It needs root and iproute2, for its network namespaces.
    #[test]
    fn a_member_whose_neighbour_is_not_known_waits_once_however_often_it_is_looked_up() {
        let mut testbed = Testbed::new().unwrap();
        let (r, m) = (testbed.namespace("r").unwrap(), testbed.namespace("m").unwrap());
        testbed.link((&r, "d0"), (&m, "e0")).unwrap();
        r.address("d0", "10.79.0.1/24").unwrap();
        let device = r.device("d0").unwrap();
        r.run(|| {
            let local = SocketAddr::from(([10, 79, 0, 1], 7400));
            let mut ring = Ring::new(Listeners::open(&[local]).unwrap()).unwrap();
            let mut table = Table::new();
            let group = table.set_group(GroupId { port: 7400, id: 0 }, GroupOptions::default());
            let nobody = SocketAddr::from(([10, 79, 0, 9], 9));
            let member = table.join(group, Path { device, local }, nobody, false, 0);
            table.take_changes(|table, change| ring.follow(table, change).unwrap());
            for _ in 0..3 {
                ring.anew = Some(0);
                ring.maintain(&table).unwrap();
            }
            assert_eq!(ring.waiting, [member]);
            let mac = "02:00:00:00:79:09";
            r.ip(&["neigh", "replace", "10.79.0.9", "lladdr", mac, "dev", "d0", "nud", "permanent"]).unwrap();
            ring.maintain(&table).unwrap();
            assert!(ring.waiting.is_empty());
        });
    }

    #[test]
    fn the_ways_to_all_members_are_looked_up_again_also_where_routes_change_all_the_time() {
        let mut testbed = Testbed::new().unwrap();
        let (r, m) = (testbed.namespace("r").unwrap(), testbed.namespace("m").unwrap());
        testbed.link((&r, "d0"), (&m, "e0")).unwrap();
        r.address("d0", "10.79.0.1/24").unwrap();
        let device = r.device("d0").unwrap();
        r.run(|| {
            let local = SocketAddr::from(([10, 79, 0, 1], 7400));
            let mut ring = Ring::new(Listeners::open(&[local]).unwrap()).unwrap();
            let mut table = Table::new();
            let group = table.set_group(GroupId { port: 7400, id: 0 }, GroupOptions::default());
            for port in 1000..=1000 + WAYS_AT_ONCE as u16 {
                let member = SocketAddr::from(([10, 79, 0, 9], port));
                table.join(group, Path { device, local }, member, false, 0);
            }
            table.take_changes(|table, change| ring.follow(table, change).unwrap());
            let last = WAYS_AT_ONCE as usize;
            ring.ways[last].hop = None;
            for number in 0..3 {
                let network = format!("10.80.{number}.0/24");
                r.ip(&["route", "add", &network, "dev", "d0"]).unwrap();
                ring.maintain(&table).unwrap();
            }
            assert!(ring.ways[last].hop.is_some());
        });
    }
}
