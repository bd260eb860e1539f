//! The ways to members: the neighbour that is the next hop to an address, its Ethernet address, and the properties of
//! the devices. The kernel is asked when a member joins, and its notifications keep the answers fresh.
//!
//! Programs in the kernel bypass the stack, so nothing but this keeps neighbours' entries in use. An Ethernet address
//! that was known once is used until a new one is known: a neighbour that has gone loses nothing by frames that reach
//! no one, and one that is merely not confirmed at the moment gets its datagrams.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use super::netlink::{Device, Framing, Mac, Netlink, Update};

/// The number of calls of [`Network::confirm`] in which each hop has its turn: half a minute of maintenance.
const CONFIRM_ROUND: usize = 300;
/// The greatest number of hops that are confirmed by one call.
const CONFIRM_AT_ONCE: usize = 32;

/// A next hop, by number. Programs' tables keep it with each place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopIndex(pub u32);

/// A neighbour that datagrams are sent to.
#[derive(Debug)]
struct Hop {
    device: u32,
    address: IpAddr,
    mac: Option<Mac>,
    users: u32,
    /// True if the kernel has told that it was confirmed, and has not told yet that this was long ago.
    reachable: bool,
}

/// The changes since the last [`Network::poll`].
#[derive(Debug, Default)]
pub struct Changed {
    /// The hops whose Ethernet address changed.
    pub hops: HashSet<HopIndex>,
    /// The devices that changed, appeared or went.
    pub devices: HashSet<u32>,
    /// True if routes changed: every way has to be looked up again.
    pub routes: bool,
}

impl Changed {
    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.hops.is_empty() && self.devices.is_empty() && !self.routes
    }
}

/// The network around the reflector, as far as it is known.
#[derive(derive_more::Debug)]
#[debug("Network")]
pub struct Network {
    netlink: Netlink,
    /// The devices that were looked up; `None` for one that does not exist.
    devices: HashMap<u32, Option<Device>>,
    hops: Vec<Hop>,
    hops_free: Vec<u32>,
    hop_of: HashMap<(u32, IpAddr), HopIndex>,
    /// The hop that was confirmed last, in the slow round of confirmations.
    confirmed: usize,
}

impl Network {
    /// Begins to watch the network namespace of this thread.
    pub fn new() -> io::Result<Self> {
        Ok(Network {
            netlink: Netlink::new()?,
            devices: HashMap::new(),
            hops: Vec::new(),
            hops_free: Vec::new(),
            hop_of: HashMap::new(),
            confirmed: 0,
        })
    }

    /// Returns a device, if there is one.
    pub fn device(&mut self, index: u32) -> io::Result<Option<&Device>> {
        if !self.devices.contains_key(&index) {
            let device = self.netlink.device(index)?;
            self.devices.insert(index, device);
        }
        Ok(self.devices[&index].as_ref())
    }

    /// Returns the next hop from `from` through `device` to `to`, which has to be given back by [`Network::release`].
    /// `None` if there is no way.
    pub fn hop(&mut self, device: u32, from: IpAddr, to: IpAddr) -> io::Result<Option<HopIndex>> {
        let framing = match self.device(device)? {
            None => return Ok(None),
            Some(device) => device.framing,
        };
        let by = match framing {
            Framing::Other => return Ok(None),
            // Everything goes to the same place.
            Framing::Loopback => from,
            Framing::Ethernet => match self.netlink.route(device, from, to)? {
                None => return Ok(None),
                Some(by) => by,
            },
        };
        if let Some(&hop) = self.hop_of.get(&(device, by)) {
            self.hops[hop.0 as usize].users += 1;
            return Ok(Some(hop));
        }
        let mac = match framing {
            Framing::Ethernet => self.netlink.neighbour(device, by)?,
            Framing::Loopback | Framing::Other => Some([0; 6]),
        };
        if mac.is_none() {
            self.netlink.look_up(device, by)?;
        }
        let hop = Hop { device, address: by, mac, users: 1, reachable: false };
        let index = match self.hops_free.pop() {
            Some(free) => {
                self.hops[free as usize] = hop;
                HopIndex(free)
            }
            None => {
                self.hops.push(hop);
                HopIndex(self.hops.len() as u32 - 1)
            }
        };
        self.hop_of.insert((device, by), index);
        Ok(Some(index))
    }

    /// Returns the Ethernet address of a hop, if it is known yet.
    pub fn mac(&self, hop: HopIndex) -> Option<Mac> {
        self.hops[hop.0 as usize].mac
    }

    /// Gives back a hop that one place used.
    pub fn release(&mut self, index: HopIndex) {
        let hop = &mut self.hops[index.0 as usize];
        hop.users -= 1;
        if hop.users == 0 {
            self.hop_of.remove(&(hop.device, hop.address));
            self.hops_free.push(index.0);
        }
    }

    /// Takes the kernel's notifications, and returns the changes.
    pub fn poll(&mut self) -> io::Result<Changed> {
        let mut changed = Changed::default();
        let (devices, hops, hop_of) = (&mut self.devices, &mut self.hops, &self.hop_of);
        let whole = self.netlink.news(|update| match update {
            Update::Device(device) => {
                if let Some(known) = devices.get_mut(&device.index)
                    && known.as_ref() != Some(&device)
                {
                    changed.devices.insert(device.index);
                    // A device that was down has lost its routes.
                    changed.routes |= known.as_ref().is_none_or(|known| known.up != device.up);
                    *known = Some(device);
                }
            }
            Update::DeviceGone(index) => {
                if let Some(known) = devices.get_mut(&index) {
                    *known = None;
                    changed.devices.insert(index);
                }
            }
            Update::Neighbour { device, address, mac, reachable, .. } => {
                if let Some(&index) = hop_of.get(&(device, address)) {
                    let hop = &mut hops[index.0 as usize];
                    hop.reachable = reachable;
                    if mac.is_some() && hop.mac != mac {
                        hop.mac = mac;
                        changed.hops.insert(index);
                    }
                }
            }
            Update::Route { .. } => changed.routes = true,
        })?;
        if !whole {
            self.ask_again(&mut changed)?;
        }
        Ok(changed)
    }

    /// Looks up everything that is known again, as some notifications were lost.
    fn ask_again(&mut self, changed: &mut Changed) -> io::Result<()> {
        changed.routes = true;
        for (&index, known) in &mut self.devices {
            let device = self.netlink.device(index)?;
            if *known != device {
                *known = device;
                changed.devices.insert(index);
            }
        }
        for &index in self.hop_of.values() {
            let hop = &mut self.hops[index.0 as usize];
            hop.reachable = false;
            let mac = self.netlink.neighbour(hop.device, hop.address)?;
            if mac.is_some() && mac != hop.mac {
                hop.mac = mac;
                changed.hops.insert(index);
            }
        }
        Ok(())
    }

    /// Asks the kernel to confirm some hops, in turn: all of them in `CONFIRM_ROUND` calls, unless there are very many.
    /// Those that it has confirmed lately need no asking, as it tells when that was long ago.
    pub fn confirm(&mut self) -> io::Result<()> {
        for _ in 0..self.hops.len().div_ceil(CONFIRM_ROUND).min(CONFIRM_AT_ONCE) {
            self.confirmed = (self.confirmed + 1) % self.hops.len();
            let hop = &mut self.hops[self.confirmed];
            if hop.users > 0 && !hop.reachable && hop.mac != Some([0; 6]) {
                hop.reachable = self.netlink.look_up(hop.device, hop.address)?;
            }
        }
        Ok(())
    }
}
