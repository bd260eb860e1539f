//! The kernel's routes, neighbours and devices, on request and by notification: what the planes need of rtnetlink, whose
//! messages the crate `neli` builds and reads.

use std::io::{self, Cursor};
use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{
    Arphrd, Iff, Ifla, Nda, Ntf, Nud, RtAddrFamily, RtScope, RtTable, Rta, RtaType, Rtm, Rtn, Rtprot,
};
use neli::consts::socket::{Msg, NlFamily};
use neli::nl::{NlPayload, Nlmsghdr, NlmsghdrBuilder};
use neli::rtnl::{
    Ifinfomsg, IfinfomsgBuilder, Ndmsg, NdmsgBuilder, Rtattr, RtattrBuilder, Rtmsg, RtmsgBuilder,
};
use neli::socket::NlSocket;
use neli::types::{Buffer, RtBuffer};
use neli::utils::Groups;
use neli::{FromBytes, FromBytesWithInput, Size, ToBytes};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A message of the kernel whose type is not known yet.
pub type Message = Nlmsghdr<u16, Buffer>;

/// The states of a neighbour in which its address is known.
const NUD_KNOWN: Nud = Nud::REACHABLE
    .union(Nud::STALE)
    .union(Nud::DELAY)
    .union(Nud::PROBE)
    .union(Nud::NOARP)
    .union(Nud::PERMANENT);
/// The states of a neighbour that is not looked up.
const NUD_FIXED: Nud = Nud::NOARP.union(Nud::PERMANENT);
/// The length of a datagram of the kernel, at most, in bytes.
pub const DATAGRAM_BYTES_MAX: usize = 64 << 10;

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
pub enum Update {
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
#[derive(derive_more::Debug)]
#[debug("Netlink")]
pub struct Netlink {
    requests: NlSocket,
    news: NlSocket,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Netlink {
    /// Opens a connection in the network namespace of this thread.
    pub fn new() -> io::Result<Self> {
        let groups =
            [libc::RTNLGRP_LINK, libc::RTNLGRP_NEIGH, libc::RTNLGRP_IPV4_ROUTE, libc::RTNLGRP_IPV6_ROUTE];
        let news = NlSocket::connect(NlFamily::Route, None, Groups::new_groups(&groups))?;
        news.nonblock()?;
        Ok(Netlink { requests: open()?, news, buffer: vec![0; DATAGRAM_BYTES_MAX], sequence: 0 })
    }

    /// Returns a device by its index, if there is one.
    pub fn device(&mut self, index: u32) -> io::Result<Option<Device>> {
        let link = IfinfomsgBuilder::default()
            .ifi_family(RtAddrFamily::Unspecified)
            .ifi_index(index as i32)
            .build()
            .map_err(io::Error::other)?;
        Ok(self.ask(Rtm::Getlink, NlmF::empty(), link)?.and_then(|update| match update {
            Update::Device(device) => Some(device),
            _ => None,
        }))
    }

    /// Returns the next hop from one of our addresses to another through a device, which is the address itself if it is
    /// a neighbour. `None` if there is no route.
    pub fn route(&mut self, device: u32, from: IpAddr, to: IpAddr) -> io::Result<Option<IpAddr>> {
        for with_source in [true, false] {
            let mut attributes =
                vec![attribute(Rta::Dst, octets(to))?, attribute(Rta::Oif, device.to_ne_bytes().to_vec())?];
            if with_source {
                attributes.push(attribute(Rta::Src, octets(from))?);
            }
            let route = RtmsgBuilder::default()
                .rtm_family(family(to))
                .rtm_dst_len(bits(to))
                .rtm_src_len(if with_source { bits(from) } else { 0 })
                .rtm_tos(0)
                .rtm_table(RtTable::Unspec)
                .rtm_protocol(Rtprot::Unspec)
                .rtm_scope(RtScope::Universe)
                .rtm_type(Rtn::Unspec)
                .rtattrs(attributes.into_iter().collect())
                .build()
                .map_err(io::Error::other)?;
            if let Some(Update::Route { by, usable: true }) = self.ask(Rtm::Getroute, NlmF::empty(), route)? {
                return Ok(Some(by.unwrap_or(to)));
            }
        }
        Ok(None)
    }

    /// Returns the Ethernet address of a neighbour, if it is known.
    pub fn neighbour(&mut self, device: u32, address: IpAddr) -> io::Result<Option<Mac>> {
        let neighbour = neighbour(device, address, Ntf::empty())?;
        Ok(self.ask(Rtm::Getneigh, NlmF::empty(), neighbour)?.and_then(|update| match update {
            Update::Neighbour { mac, .. } => mac,
            _ => None,
        }))
    }

    /// Asks the kernel to look a neighbour up, or to confirm one that it knows, as if a packet were to be sent there.
    /// The answer comes with the news. An address that was set by hand stays as it is: the kernel would forget it.
    /// Returns true if the neighbour is known to be there already, and nothing was to be asked. Without the right to ask
    /// nothing is: the kernel asks when a socket sends there.
    pub fn look_up(&mut self, device: u32, address: IpAddr) -> io::Result<bool> {
        match self.ask(Rtm::Getneigh, NlmF::empty(), neighbour(device, address, Ntf::empty())?)? {
            Some(Update::Neighbour { fixed: true, .. }) => return Ok(false),
            Some(Update::Neighbour { reachable: true, .. }) => return Ok(true),
            _ => {}
        }
        let neighbour = neighbour(device, address, Ntf::USE)?;
        match self.ask(Rtm::Newneigh, NlmF::CREATE | NlmF::ACK, neighbour) {
            // Unlike looking at neighbours it takes CAP_NET_ADMIN, which a plane may well do without.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
            _ => Ok(false),
        }
    }

    /// Passes each change since the last call to `handle`. Returns false if some were lost.
    pub fn news(&mut self, mut handle: impl FnMut(Update)) -> io::Result<bool> {
        let mut whole = true;
        loop {
            let len = match self.news.recv(&mut self.buffer, Msg::empty()) {
                Ok((len, _)) => len,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(whole),
                    Some(libc::EINTR) => continue,
                    Some(libc::ENOBUFS) => {
                        whole = false;
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            messages(&self.buffer[..len]).filter_map(|message| parse(&message)).for_each(&mut handle);
        }
    }

    /// Sends a request and returns its answer, which the kernel gives before it returns. `None` is a refusal, as of a
    /// route that does not exist, or a mere acknowledgement.
    fn ask<T: Size + ToBytes>(&mut self, kind: Rtm, flags: NlmF, body: T) -> io::Result<Option<Update>> {
        self.sequence = self.sequence.wrapping_add(1);
        send(&self.requests, kind, flags, self.sequence, body)?;
        loop {
            let len = match self.requests.recv(&mut self.buffer, Msg::empty()) {
                Ok((len, _)) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            // An answer to an earlier request was left by one that was cut short.
            let answer = messages(&self.buffer[..len]).find(|message| *message.nl_seq() == self.sequence);
            let Some(answer) = answer else { continue };
            return match answer.nl_payload() {
                NlPayload::Err(refusal) => match io::Error::from_raw_os_error(-refusal.error()) {
                    // Everything but a lack of rights is an answer: no such route, neighbour or device.
                    error if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
                    _ => Ok(None),
                },
                _ => Ok(parse(&answer)),
            };
        }
    }
}

/// Opens a socket for requests, in the network namespace of this thread.
pub fn open() -> io::Result<NlSocket> {
    NlSocket::connect(NlFamily::Route, None, Groups::empty())
}

/// Sends a request.
pub fn send<T: Size + ToBytes>(
    socket: &NlSocket,
    kind: Rtm,
    flags: NlmF,
    sequence: u32,
    body: T,
) -> io::Result<()> {
    let request = NlmsghdrBuilder::default()
        .nl_type(kind)
        .nl_flags(NlmF::REQUEST | flags)
        .nl_seq(sequence)
        .nl_payload(NlPayload::Payload(body))
        .build()
        .map_err(io::Error::other)?;
    let mut bytes = Cursor::new(Vec::new());
    request.to_bytes(&mut bytes).map_err(io::Error::other)?;
    socket.send(bytes.get_ref(), Msg::empty())?;
    Ok(())
}

/// Iterates over the messages of a datagram of the kernel, up to one that makes no sense.
pub fn messages(datagram: &[u8]) -> impl Iterator<Item = Message> {
    let mut rest = Cursor::new(datagram);
    std::iter::from_fn(move || Message::from_bytes(&mut rest).ok())
}

/// Reads the body of a message.
pub fn body<T: FromBytesWithInput<Input = usize>>(message: &Message) -> Option<T> {
    let bytes = message.get_payload()?.as_ref();
    T::from_bytes_with_input(&mut Cursor::new(bytes), bytes.len()).ok()
}

/// Returns the value of an attribute.
pub fn value<T: RtaType>(attributes: &RtBuffer<T, Buffer>, kind: T) -> Option<&[u8]> {
    attributes
        .iter()
        .find(|attribute| *attribute.rta_type() == kind)
        .map(|found| found.rta_payload().as_ref())
}

fn attribute<T: RtaType>(kind: T, value: Vec<u8>) -> io::Result<Rtattr<T, Buffer>> {
    RtattrBuilder::default().rta_type(kind).rta_payload(Buffer::from(value)).build().map_err(io::Error::other)
}

fn family(address: IpAddr) -> RtAddrFamily {
    if address.is_ipv4() { RtAddrFamily::Inet } else { RtAddrFamily::Inet6 }
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

fn neighbour(device: u32, address: IpAddr, flags: Ntf) -> io::Result<Ndmsg> {
    NdmsgBuilder::default()
        .ndm_family(family(address))
        .ndm_index(device as i32)
        .ndm_state(Nud::empty())
        .ndm_flags(flags)
        .ndm_type(Rtn::Unspec)
        .rtattrs([attribute(Nda::Dst, octets(address))?].into_iter().collect())
        .build()
        .map_err(io::Error::other)
}

fn parse(message: &Message) -> Option<Update> {
    match Rtm::from(*message.nl_type()) {
        Rtm::Newlink => Some(Update::Device(device(&body(message)?))),
        Rtm::Dellink => Some(Update::DeviceGone(*body::<Ifinfomsg>(message)?.ifi_index() as u32)),
        kind @ (Rtm::Newneigh | Rtm::Delneigh) => {
            let neighbour: Ndmsg = body(message)?;
            let state = if kind == Rtm::Newneigh { *neighbour.ndm_state() } else { Nud::empty() };
            let mac = value(neighbour.rtattrs(), Nda::Lladdr).and_then(|mac| mac.try_into().ok());
            Some(Update::Neighbour {
                device: *neighbour.ndm_index() as u32,
                address: ip(value(neighbour.rtattrs(), Nda::Dst)?)?,
                mac: mac.filter(|_| state.intersects(NUD_KNOWN)),
                fixed: state.intersects(NUD_FIXED),
                reachable: state.contains(Nud::REACHABLE),
            })
        }
        Rtm::Newroute | Rtm::Delroute => {
            let route: Rtmsg = body(message)?;
            // Behind the address family.
            let via = || value(route.rtattrs(), Rta::Via)?.get(2..).and_then(ip);
            Some(Update::Route {
                by: value(route.rtattrs(), Rta::Gateway).and_then(ip).or_else(via),
                usable: matches!(route.rtm_type(), Rtn::Unicast | Rtn::Local),
            })
        }
        _ => None,
    }
}

fn device(link: &Ifinfomsg) -> Device {
    let value = |kind| value(link.rtattrs(), kind);
    let name = value(Ifla::Ifname).unwrap_or_default();
    Device {
        index: *link.ifi_index() as u32,
        name: String::from_utf8_lossy(name.strip_suffix(&[0]).unwrap_or(name)).into_owned(),
        mac: value(Ifla::Address).and_then(|mac| mac.try_into().ok()).unwrap_or_default(),
        mtu: value(Ifla::Mtu).and_then(|mtu| mtu.try_into().ok()).map_or(0, u32::from_ne_bytes),
        up: link.ifi_flags().contains(Iff::UP | Iff::LOWERUP),
        framing: match link.ifi_type() {
            Arphrd::Ether => Framing::Ethernet,
            Arphrd::Loopback => Framing::Loopback,
            _ => Framing::Other,
        },
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

    use super::*;

    #[test]
    fn whoever_may_not_ask_for_a_neighbour_asks_for_none() {
        let asked = std::thread::spawn(|| {
            let none = CapabilitySet::empty();
            let rights = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, rights).unwrap();
            Netlink::new().unwrap().look_up(1, IpAddr::from([127, 0, 0, 1]))
        });
        assert!(!asked.join().unwrap().expect("that is no failure"));
    }
}
