//! The places of locations: a group, and its reflectors.
//!
//! The control plane is given places one by one ([`Control::set_location`](crate::control::Control::set_location))
//! and does not know where they are kept.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::wire::{REFLECTORS_MAX, Reflectors};

/// The greatest number of locations.
pub const LOCATIONS_MAX: usize = 100_000;
/// The greatest number of groups that can share a port; their ids are below it.
pub const IDS_MAX: u32 = 1_000_000;

/// The place of a location: a group, and its reflectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocationEntry {
    /// The reflector in charge, and its standbys, with the group's port at each.
    pub reflectors: Reflectors,
    /// The group's id on that port.
    pub group: u32,
}

impl LocationEntry {
    /// Checks that a group can be there, as far as that can be told without asking its reflectors.
    ///
    /// # Errors
    /// A sentence about the part that cannot be.
    pub fn check(&self) -> Result<(), String> {
        if self.group >= IDS_MAX {
            return Err(format!("no group has the id {}; ids go up to {}", self.group, IDS_MAX - 1));
        }
        let addresses = self.reflectors.as_slice();
        for (index, address) in addresses.iter().enumerate() {
            check_address(address)?;
            if addresses[..index].contains(address) {
                return Err(format!("{address} is named twice"));
            }
        }
        Ok(())
    }
}

/// Checks that a reflector can be at an address.
///
/// # Errors
/// A sentence with the reason.
pub fn check_address(address: &SocketAddr) -> Result<(), String> {
    let is_broadcast = matches!(address.ip(), IpAddr::V4(ip) if ip.is_broadcast());
    let why = match address.ip() {
        _ if address.port() == 0 => "port 0 is none",
        ip if ip.is_unspecified() => "it is not a machine's address; give the one that members reach",
        ip if ip.is_multicast() || is_broadcast => "it is not the address of one machine",
        _ => return Ok(()),
    };
    Err(format!("no reflector can be reached at {address}: {why}"))
}

impl fmt::Display for LocationEntry {
    /// Writes the place as it is stored and read by people: `GROUP REFLECTOR[,STANDBY…]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.group)?;
        for (number, address) in self.reflectors.as_slice().iter().enumerate() {
            write!(f, "{}{address}", if number > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl std::str::FromStr for LocationEntry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a place: GROUP REFLECTOR[,STANDBY…], each as ADDRESS:PORT");
        let (group, addresses) = text.trim().split_once(' ').ok_or_else(wrong)?;
        let group = group.parse().map_err(|_| wrong())?;
        let addresses: Vec<SocketAddr> = addresses
            .split(',')
            .map(|address| address.trim().parse())
            .collect::<Result<_, _>>()
            .map_err(|_| wrong())?;
        let reflectors = Reflectors::new(&addresses)
            .ok_or_else(|| format!("'{text}' names more than {REFLECTORS_MAX} reflectors"))?;
        Ok(LocationEntry { reflectors, group })
    }
}
