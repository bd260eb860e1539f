//! A client of rtnetlink: the kernel's routes, neighbours and devices, on request and by notification. Only what the
//! planes need of it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// An Ethernet address.
pub type Mac = [u8; 6];

// Numbers of linux/netlink.h, linux/rtnetlink.h, linux/neighbour.h, linux/if_link.h and linux/if_arp.h.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const RTMGRP_LINK: u32 = 0x1;
const RTMGRP_NEIGH: u32 = 0x4;
const RTMGRP_IPV4_ROUTE: u32 = 0x40;
const RTMGRP_IPV6_ROUTE: u32 = 0x400;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NTF_USE: u8 = 1;
/// The states of a neighbour in which its address is known: reachable, stale, delayed, probed, without need of
/// resolution, permanent.
const NUD_KNOWN: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// The states of a neighbour that is not looked up: without need of resolution, permanent.
const NUD_FIXED: u16 = 0x40 | 0x80;
const NUD_REACHABLE: u16 = 0x02;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFF_UP: u32 = 1;
const IFF_LOWER_UP: u32 = 0x10000;
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// The kind of frames of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Ethernet, with addresses of neighbours.
    Ethernet,
    /// Ethernet with addresses of zeros.
    Loopback,
    /// Anything else.
    Other,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The index.
    pub index: u32,
    /// The name.
    pub name: String,
    /// The Ethernet address.
    pub mac: Mac,
    /// The longest IP packet that it carries, in bytes.
    pub mtu: u32,
    /// True if it carries packets at present.
    pub up: bool,
    /// The kind of its frames.
    pub framing: Framing,
}

/// A message of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A device was added, or changed.
    Device(Device),
    /// The device of this index was removed.
    DeviceGone(u32),
    /// The state of a neighbour.
    Neighbour {
        /// The device that it is behind.
        device: u32,
        /// Its address.
        address: IpAddr,
        /// Its Ethernet address; `None` if it is not known.
        mac: Option<Mac>,
        /// True if the address is not looked up: it was set by hand, or none is needed.
        fixed: bool,
        /// True if it was confirmed lately, or is being asked; the kernel tells when it is not any more.
        reachable: bool,
    },
    /// A route to an address.
    Route {
        /// The next hop; `None` if the address itself is the neighbour.
        by: Option<IpAddr>,
        /// True if it leads to a host, and is not a refusal.
        usable: bool,
    },
}

/// A connection with rtnetlink.
pub struct Netlink {
    requests: OwnedFd,
    news: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Netlink {
    /// Opens a connection in the network namespace of this thread.
    pub fn new() -> io::Result<Self> {
        let open = |flags, groups| -> io::Result<OwnedFd> {
            let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
            bind(&socket, &SocketAddrNetlink::new(0, groups))?;
            Ok(socket)
        };
        Ok(Netlink {
            requests: open(SocketFlags::CLOEXEC, 0)?,
            news: open(
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE,
            )?,
            buffer: vec![0; 64 << 10],
            sequence: 0,
        })
    }

    /// Returns a device by its index, if there is one.
    pub fn device(&mut self, index: u32) -> io::Result<Option<Device>> {
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        Ok(self.ask(RTM_GETLINK, 0, body)?.and_then(|told| match told {
            Told::Device(device) => Some(device),
            _ => None,
        }))
    }

    /// Returns the next hop from one of our addresses to another through a device, which is the address itself if it is
    /// a neighbour. `None` if there is no route.
    pub fn route(&mut self, device: u32, from: IpAddr, to: IpAddr) -> io::Result<Option<IpAddr>> {
        for with_source in [true, false] {
            let mut body = vec![0; 12];
            body[0] = family(to);
            body[1] = bits(to);
            attribute(&mut body, RTA_DST, &octets(to));
            attribute(&mut body, RTA_OIF, &device.to_ne_bytes());
            if with_source {
                body[2] = bits(from);
                attribute(&mut body, RTA_SRC, &octets(from));
            }
            if let Some(Told::Route { by, usable: true }) = self.ask(RTM_GETROUTE, 0, body)? {
                return Ok(Some(by.unwrap_or(to)));
            }
        }
        Ok(None)
    }

    /// Returns the Ethernet address of a neighbour, if it is known.
    pub fn neighbour(&mut self, device: u32, address: IpAddr) -> io::Result<Option<Mac>> {
        Ok(self.ask(RTM_GETNEIGH, 0, neighbour(device, address, 0))?.and_then(|told| match told {
            Told::Neighbour { mac, .. } => mac,
            _ => None,
        }))
    }

    /// Asks the kernel to look a neighbour up, or to confirm one that it knows, as if a packet were to be sent there.
    /// The answer comes with the news. An address that was set by hand stays as it is: the kernel would forget it.
    /// Returns true if the neighbour is known to be there already, and nothing was to be asked.
    pub fn look_up(&mut self, device: u32, address: IpAddr) -> io::Result<bool> {
        match self.ask(RTM_GETNEIGH, 0, neighbour(device, address, 0))? {
            Some(Told::Neighbour { fixed: true, .. }) => return Ok(false),
            Some(Told::Neighbour { reachable: true, .. }) => return Ok(true),
            _ => {}
        }
        let body = neighbour(device, address, NTF_USE);
        self.ask(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_ACK, body)?;
        Ok(false)
    }

    /// Passes each change since the last call to `tell`. Returns false if some were lost.
    pub fn news(&mut self, mut tell: impl FnMut(Told)) -> io::Result<bool> {
        let mut whole = true;
        loop {
            let len = match recv(&self.news, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((_, len)) => len.min(self.buffer.len()),
                Err(Errno::AGAIN) => return Ok(whole),
                Err(Errno::NOBUFS) => {
                    whole = false;
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in messages(&self.buffer[..len]) {
                if let Some(told) = message.told() {
                    tell(told);
                }
            }
        }
    }

    /// Sends a request and returns its answer, which the kernel gives before it returns. `None` is a refusal, as of a
    /// route that does not exist, or a mere acknowledgement.
    fn ask(&mut self, kind: u16, flags: u16, body: Vec<u8>) -> io::Result<Option<Told>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::with_capacity(16 + body.len());
        request.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
        request.extend_from_slice(&kind.to_ne_bytes());
        request.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        request.extend_from_slice(&self.sequence.to_ne_bytes());
        request.extend_from_slice(&0_u32.to_ne_bytes());
        request.extend_from_slice(&body);
        send(&self.requests, &request, SendFlags::empty())?;
        loop {
            let len = match recv(&self.requests, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((_, len)) => len.min(self.buffer.len()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            // An answer to an earlier request was left by one that was cut short.
            let answer = messages(&self.buffer[..len]).find(|message| message.sequence == self.sequence);
            match answer {
                None => continue,
                Some(message) if message.kind == NLMSG_ERROR => return message.refusal(),
                Some(message) => return Ok(message.told()),
            }
        }
    }
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => AddressFamily::INET.as_raw() as u8,
        IpAddr::V6(_) => AddressFamily::INET6.as_raw() as u8,
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn neighbour(device: u32, address: IpAddr, flags: u8) -> Vec<u8> {
    let mut body = vec![0; 12];
    body[0] = family(address);
    body[4..8].copy_from_slice(&device.to_ne_bytes());
    body[10] = flags;
    attribute(&mut body, NDA_DST, &octets(address));
    body
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

struct Message<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
}

/// Iterates over the messages of a datagram. A truncated one is left out.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = u32_at(bytes, 0)? as usize;
        let message =
            Message { kind: u16_at(bytes, 4)?, sequence: u32_at(bytes, 8)?, body: bytes.get(16..len)? };
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

impl Message<'_> {
    fn refusal(&self) -> io::Result<Option<Told>> {
        let code = u32_at(self.body, 0).unwrap_or_default() as i32;
        let error = io::Error::from_raw_os_error(-code);
        // Everything but a lack of rights is an answer: no such route, neighbour or device.
        match error.kind() {
            io::ErrorKind::PermissionDenied => Err(error),
            _ => Ok(None),
        }
    }

    fn attributes(&self, from: usize) -> impl Iterator<Item = (u16, &[u8])> {
        let mut bytes = self.body.get(from..).unwrap_or_default();
        std::iter::from_fn(move || {
            let len = u16_at(bytes, 0)? as usize;
            // The top two bits are flags.
            let attribute = (u16_at(bytes, 2)? & 0x3fff, bytes.get(4..len)?);
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
            Some(attribute)
        })
    }

    fn told(&self) -> Option<Told> {
        match self.kind {
            RTM_NEWLINK => self.device().map(Told::Device),
            RTM_DELLINK => u32_at(self.body, 4).map(Told::DeviceGone),
            RTM_NEWNEIGH | RTM_DELNEIGH => {
                let state = if self.kind == RTM_NEWNEIGH { u16_at(self.body, 8)? } else { 0 };
                let (mut address, mut mac) = (None, None);
                for (kind, value) in self.attributes(12) {
                    match kind {
                        NDA_DST => address = ip(value),
                        NDA_LLADDR => mac = value.try_into().ok(),
                        _ => {}
                    }
                }
                Some(Told::Neighbour {
                    device: u32_at(self.body, 4)?,
                    address: address?,
                    mac: mac.filter(|_| state & NUD_KNOWN != 0),
                    fixed: state & NUD_FIXED != 0,
                    reachable: state & NUD_REACHABLE != 0,
                })
            }
            RTM_NEWROUTE | RTM_DELROUTE => {
                let mut by = None;
                for (kind, value) in self.attributes(12) {
                    match kind {
                        RTA_GATEWAY => by = ip(value),
                        // Behind the address family.
                        RTA_VIA => by = value.get(2..).and_then(ip),
                        _ => {}
                    }
                }
                let kind = *self.body.get(7)?;
                Some(Told::Route { by, usable: kind == RTN_UNICAST || kind == RTN_LOCAL })
            }
            _ => None,
        }
    }

    fn device(&self) -> Option<Device> {
        let flags = u32_at(self.body, 8)?;
        let mut device = Device {
            index: u32_at(self.body, 4)?,
            name: String::new(),
            mac: [0; 6],
            mtu: 0,
            up: flags & IFF_UP != 0 && flags & IFF_LOWER_UP != 0,
            framing: match u16_at(self.body, 2)? {
                ARPHRD_ETHER => Framing::Ethernet,
                ARPHRD_LOOPBACK => Framing::Loopback,
                _ => Framing::Other,
            },
        };
        for (kind, value) in self.attributes(16) {
            match kind {
                IFLA_ADDRESS => device.mac = value.try_into().unwrap_or_default(),
                IFLA_IFNAME => {
                    device.name =
                        String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned();
                }
                IFLA_MTU => device.mtu = u32_at(value, 0)?,
                _ => {}
            }
        }
        Some(device)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|octets| Ipv4Addr::from(octets).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}
