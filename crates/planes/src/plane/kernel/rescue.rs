//! The ring by which programs hand datagrams to user space: those that were admitted and that it has to copy, or to
//! finish.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use aya::Ebpf;
use aya::maps::{MapData, RingBuf};
use nacre_reflect_bpf::constant;

use super::load::chain;

/// The length of what stands before the payload, in bytes: `struct rescue`.
const HEAD: usize = constant::RESCUE_BYTES as usize;

/// A datagram as a program handed it over, with the group's index in the programs' table.
#[derive(Debug)]
pub(super) struct HandedDatagram {
    pub(super) slot: u32,
    pub(super) lane: u16,
    pub(super) generation: u8,
    pub(super) position: u32,
    pub(super) tos: u8,
    pub(super) except: Option<SocketAddr>,
    pub(super) payload: Vec<u8>,
}

/// The ring.
pub(super) struct Rescues(RingBuf<MapData>);

impl Rescues {
    /// Takes the ring of some programs that were loaded.
    pub(super) fn new(programs: &mut Ebpf) -> Result<Rescues, String> {
        let map = programs.take_map("rescues").ok_or("the program has no map 'rescues'")?;
        RingBuf::try_from(map).map(Rescues).map_err(|error| chain(&error))
    }

    /// Takes the next datagram, if there is one.
    pub(super) fn next(&mut self) -> Option<HandedDatagram> {
        loop {
            let item = self.0.next()?;
            if let Some(handed) = read(&item) {
                return Some(handed);
            }
        }
    }

    /// Returns the file that is readable when there is a datagram.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reads a `struct rescue` with its payload.
fn read(item: &[u8]) -> Option<HandedDatagram> {
    let (head, payload) = item.split_at_checked(HEAD)?;
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (slot, device, bytes, position) = (word(0), word(4), word(8) as usize, word(12));
    let port = u16::from_be_bytes([head[20], head[21]]);
    let ip: [u8; 16] = head[24..40].try_into().ok()?;
    let except = match Ipv6Addr::from(ip).to_canonical() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, device))
        }
        ip => SocketAddr::new(ip, port),
    };
    Some(HandedDatagram {
        slot,
        lane: u16::from(head[16]),
        generation: head[17],
        position,
        tos: head[18],
        except: (head[19] == 0).then_some(except),
        payload: payload.get(..bytes)?.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rescue_is_read_as_programs_write_it() {
        let mut item = Vec::new();
        for word in [7_u32, 3, 5, 4095] {
            item.extend(word.to_ne_bytes());
        }
        item.extend([2, 200, 0xb8, 0]);
        item.extend(9000_u16.to_be_bytes());
        item.extend([0, 0]);
        item.extend("fe80::1".parse::<Ipv6Addr>().unwrap().octets());
        item.extend(b"bytes");
        item.extend([0; 3]);
        let handed = read(&item).unwrap();
        assert_eq!((handed.slot, handed.lane, handed.generation, handed.position), (7, 2, 200, 4095));
        assert_eq!((handed.tos, handed.payload.as_slice()), (0xb8, &b"bytes"[..]));
        assert_eq!(handed.except, Some("[fe80::1%3]:9000".parse().unwrap()));
        assert!(read(&item[..HEAD + 4]).is_none() && read(&item[..HEAD - 1]).is_none());
    }
}
