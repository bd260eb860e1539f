//! The places of a lane, as programs in the kernel see them: members with their Ethernet addresses, and gaps.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use nacre_reflect::table::{Entry, Lane, Path};

use super::allocation::Region;
use super::layout::{self, PLACE_HOP, PLACE_WORDS};
use super::load::Maps;
use super::netlink::Framing;
use super::network::{HopIndex, Network};

/// Values in place of a next hop: a gap, and a member without a way to it.
pub(super) const GAP: u32 = u32::MAX;
pub(super) const NOWHERE: u32 = u32::MAX - 1;

/// The state of a lane as shown to programs.
pub(super) struct ShownLane {
    pub(super) slot: u32,
    pub(super) path: Path,
    pub(super) region: Option<Region>,
    pub(super) len: u32,
    pub(super) generation: u8,
    /// The number of its members that have no Ethernet address yet, or no way to them.
    pub(super) unresolved: u32,
    /// The number of its members, and the address of the only one, which few lanes of the many have.
    pub(super) live: u32,
    pub(super) alone: Option<Box<SocketAddr>>,
}

/// Writes the present state of a lane's device.
pub(super) fn show_device(maps: &Maps, lane: &mut ShownLane, network: &mut Network) -> io::Result<()> {
    let index = lane.path.device;
    let words = maps.lanes.entry(lane.slot);
    let (mtu, mac) = match network.device(index)? {
        Some(device) if device.up && device.framing != Framing::Other => (device.mtu, device.mac),
        _ => (0, [0; 6]),
    };
    words[layout::LANE_MAC].store(layout::lane_mac(mac, layout::canonical(lane.path.local)), Relaxed);
    words[layout::LANE_DEVICE].store(layout::device(index, mtu), SeqCst);
    Ok(())
}

/// Writes a place. Returns 1 if its member cannot be reached from the kernel now.
pub(super) fn show_place(
    maps: &Maps,
    network: &mut Network,
    path: Path,
    at: u32,
    entry: &Entry,
) -> io::Result<u32> {
    let address = layout::canonical(entry.address);
    if entry.member().is_none() {
        write_place(maps, at, layout::place(address, GAP, 0));
        return Ok(0);
    }
    let local = layout::canonical(path.local);
    let hop = network.hop(path.device, local.ip(), address.ip())?;
    let mac = hop.and_then(|hop| network.mac(hop));
    write_place(maps, at, layout::place(address, hop.map_or(NOWHERE, |hop| hop.0), layout::hop(mac)));
    Ok(u32::from(mac.is_none()))
}

/// Writes the words of a place, the last of which is the one that programs look at first.
pub(super) fn write_place(maps: &Maps, at: u32, words: [u64; PLACE_WORDS]) {
    let place = maps.places.entry(at);
    for (word, value) in place.iter().zip(words).take(PLACE_HOP) {
        word.store(value, Relaxed);
    }
    place[PLACE_HOP].store(words[PLACE_HOP], Release);
}

pub(super) fn read_place(maps: &Maps, at: u32) -> [u64; PLACE_WORDS] {
    let words = maps.places.entry(at);
    std::array::from_fn(|at| words[at].load(Relaxed))
}

/// Turns a place into a gap. The address stays: a program may be just about to use it.
pub(super) fn make_gap(maps: &Maps, at: u32, network: &mut Network) {
    let place = read_place(maps, at);
    let words = maps.places.entry(at);
    words[PLACE_HOP].store(0, SeqCst);
    set_entry(maps, at, GAP);
    if layout::entry(&place) < NOWHERE {
        network.release(HopIndex(layout::entry(&place)));
    }
}

/// Changes the next hop of a place, which programs do not look at. Port and sum, which are in the same word, stay.
pub(super) fn set_entry(maps: &Maps, at: u32, entry: u32) {
    let word = &maps.places.entry(at)[layout::PLACE_ENTRY];
    word.store(word.load(Relaxed) & u64::from(u32::MAX) | u64::from(entry) << 32, Relaxed);
}

pub(super) fn places(lane: &ShownLane) -> Range<u32> {
    lane.region.map_or(0..0, |region| region.base..region.base + lane.len)
}

/// Releases the next hops of a row of places that is given up.
pub(super) fn release_hops(maps: &Maps, lane: &ShownLane, network: &mut Network) {
    for at in places(lane) {
        let entry = layout::entry(&read_place(maps, at));
        if entry < NOWHERE {
            network.release(HopIndex(entry));
        }
    }
}

/// Looks up the way to each member of a lane again.
pub(super) fn route_again(maps: &Maps, lane: &ShownLane, of: &Lane, network: &mut Network) -> io::Result<()> {
    let local = layout::canonical(lane.path.local);
    for (at, entry) in places(lane).zip(&of.entries) {
        let old = layout::entry(&read_place(maps, at));
        if old == GAP || entry.member().is_none() {
            continue;
        }
        let new = network.hop(lane.path.device, local.ip(), layout::canonical(entry.address).ip())?;
        if old < NOWHERE {
            // While a device is down there are no routes; the old way is as good as any then.
            let Some(new) = new else { continue };
            network.release(HopIndex(old));
            set_entry(maps, at, new.0);
        } else if let Some(new) = new {
            set_entry(maps, at, new.0);
        }
    }
    Ok(())
}

/// Writes the Ethernet addresses of the hops that changed.
pub(super) fn show_hops(
    maps: &Maps,
    lane: &mut ShownLane,
    network: &Network,
    changed: impl Fn(HopIndex) -> bool,
) {
    for at in places(lane) {
        let place = read_place(maps, at);
        let hop = HopIndex(layout::entry(&place));
        if hop.0 < NOWHERE && changed(hop) {
            let word = layout::hop(network.mac(hop));
            // An address that was known once is used until another is.
            if word != 0 && word != place[PLACE_HOP] {
                lane.unresolved -= u32::from(place[PLACE_HOP] == 0);
                maps.places.entry(at)[PLACE_HOP].store(word, Release);
            }
        }
    }
}
