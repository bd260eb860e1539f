//! The queues of devices for outgoing packets. Frames out of shared memory bypass them, so a queue that an operator has
//! chosen to hold traffic back is respected by not sending such frames.

use std::io;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

// Numbers of linux/netlink.h, linux/rtnetlink.h and linux/pkt_sched.h.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_DONE: u16 = 3;
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const TC_H_ROOT: u32 = 0xffff_ffff;
const TCA_KIND: u16 = 1;

/// Queues that only keep what the device has no room for, which devices have by default.
const PLAIN: [&[u8]; 5] = [b"noqueue", b"pfifo_fast", b"mq", b"fq_codel", b"fq"];

/// Returns the devices of this namespace whose queue an operator has chosen.
pub(super) fn chosen() -> io::Result<Vec<u32>> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut request = Vec::new();
    request.extend_from_slice(&36_u32.to_ne_bytes());
    request.extend_from_slice(&RTM_GETQDISC.to_ne_bytes());
    request.extend_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.resize(36, 0);
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut devices = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let (_, len) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..len.min(buffer.len())];
        while let (Some(len), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
            let len = len as usize;
            if kind == NLMSG_DONE {
                return Ok(devices);
            }
            let Some(message) = rest.get(16..len).filter(|_| kind == RTM_NEWQDISC) else {
                return Err(io::Error::other("the kernel does not tell which queues devices have"));
            };
            if u32_at(message, 12) == Some(TC_H_ROOT)
                && let (Some(device), Some(name)) = (u32_at(message, 4), name(message))
                && !PLAIN.contains(&name)
            {
                devices.push(device);
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// Returns the name of a queue's kind, without the zero at its end.
fn name(message: &[u8]) -> Option<&[u8]> {
    let mut rest = message.get(20..)?;
    loop {
        let len = u16_at(rest, 0)? as usize;
        let value = rest.get(4..len)?;
        if u16_at(rest, 2)? == TCA_KIND {
            return value.split(|&byte| byte == 0).next();
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
