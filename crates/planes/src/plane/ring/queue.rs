//! The queues of devices for outgoing packets. Frames out of shared memory bypass them, so a queue that an operator has
//! chosen to hold traffic back is respected by not sending such frames.

use std::io;

use neli::consts::nl::{NlmF, Nlmsg};
use neli::consts::rtnl::{Rtm, Tca};
use neli::consts::socket::Msg;
use neli::rtnl::{Tcmsg, TcmsgBuilder};

use crate::plane::kernel::netlink::{self, DATAGRAM_BYTES_MAX, body, messages, value};

/// The parent of a device's own queue, of linux/pkt_sched.h.
const TC_H_ROOT: u32 = 0xffff_ffff;

/// Queues that only keep what the device has no room for, which devices have by default.
const PLAIN: [&[u8]; 5] = [b"noqueue", b"pfifo_fast", b"mq", b"fq_codel", b"fq"];

/// Returns the devices of this namespace whose queue an operator has chosen.
pub(super) fn chosen() -> io::Result<Vec<u32>> {
    let socket = netlink::open()?;
    let every = TcmsgBuilder::default()
        .tcm_family(0)
        .tcm_ifindex(0)
        .tcm_handle(0)
        .tcm_parent(0)
        .tcm_info(0)
        .build()
        .map_err(io::Error::other)?;
    netlink::send(&socket, Rtm::Getqdisc, NlmF::DUMP, 0, every)?;
    let mut devices = Vec::new();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let (len, _) = socket.recv(&mut buffer, Msg::empty())?;
        for message in messages(&buffer[..len]) {
            if *message.nl_type() == u16::from(Nlmsg::Done) {
                return Ok(devices);
            }
            let qdisc = (Rtm::from(*message.nl_type()) == Rtm::Newqdisc).then(|| body::<Tcmsg>(&message));
            let Some(queue) = qdisc.flatten() else {
                return Err(io::Error::other("the kernel does not tell which queues devices have"));
            };
            // The name of its kind ends with a zero.
            let name =
                value(queue.rtattrs(), Tca::Kind).and_then(|kind| kind.split(|&byte| byte == 0).next());
            if *queue.tcm_parent() == TC_H_ROOT && name.is_some_and(|name| !PLAIN.contains(&name)) {
                devices.push(*queue.tcm_ifindex() as u32);
            }
        }
    }
}
