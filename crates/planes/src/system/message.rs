//! Sending and receiving of datagrams in batches, with the kernel's control data.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use nacre_reflect::table::Path;

use super::Address;

/// The greatest number of datagrams received or sent by one system call.
pub(crate) const BATCH: usize = 64;
/// The room of a batch where few come.
const CAPACITY_MIN: usize = 4;
/// The room before each datagram in bytes, for a header to be put there without copying the payload.
pub(crate) const HEADROOM: usize = 64;
/// The length of the longest datagram in bytes, rounded up.
const DATAGRAM: usize = 65_536;
const STRIDE: usize = HEADROOM + DATAGRAM;
/// The bits of the type of service that copies have of the sender's; the others are marks of congestion on the way.
const TOS_MASK: u8 = 0xfc;
/// The flag by which a datagram without payload is not sent, but does all else (linux/socket.h).
const MSG_PROBE: libc::c_int = 0x10;

/// A buffer for the kernel's control data of a datagram, aligned as its headers require.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlBuffer([u8; 160]);

/// The properties of a received datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) path: Path,
    pub(crate) from: SocketAddr,
    /// The type of service or traffic class, without the marks of congestion.
    pub(crate) tos: u8,
    /// The time for which it has waited in the socket, in nanoseconds.
    pub(crate) age_ns: u64,
    pub(crate) len: usize,
}

/// Buffers for a batch of datagrams, used again and again.
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    names: Vec<Address>,
    ancillary: Vec<ControlBuffer>,
    received: Vec<Option<Received>>,
    /// The number of datagrams that the next batch has room for: few while few come, so that these do not pay for the
    /// others' room.
    capacity: usize,
    /// True if the last batch was full: there may be more.
    pub(crate) full: bool,
    /// The number of datagrams that the socket has dropped since it was made, as last reported.
    pub(crate) dropped: Option<u32>,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox {
            bytes: vec![0; BATCH * STRIDE],
            names: vec![Address::zeroed(); BATCH],
            ancillary: vec![ControlBuffer([0; 160]); BATCH],
            received: Vec::with_capacity(BATCH),
            capacity: CAPACITY_MIN,
            full: false,
            dropped: None,
        }
    }

    /// Receives the datagrams that have come to a socket, up to a batch, without waiting; returns their number. `local`
    /// is the address that the socket is bound to.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, local: SocketAddr) -> io::Result<usize> {
        self.received.clear();
        (self.dropped, self.full) = (None, false);
        let bytes = self.bytes.as_mut_ptr();
        let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
        for (at, (part, header)) in parts.iter_mut().zip(&mut headers).take(self.capacity).enumerate() {
            let part = part.write(libc::iovec {
                // SAFETY: there is room for `BATCH` strides, each of which begins with the headroom.
                iov_base: unsafe { bytes.add(at * STRIDE + HEADROOM) }.cast(),
                iov_len: DATAGRAM,
            });
            // SAFETY: all bits zero are a valid header without anything; its padding has no public names.
            let header = header.write(unsafe { std::mem::zeroed() });
            header.msg_hdr.msg_name = (&raw mut self.names[at]).cast();
            header.msg_hdr.msg_namelen = Address::LENGTH_MAX;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = self.ancillary[at].0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of::<ControlBuffer>() as _;
        }
        // SAFETY: all that the first `room` headers point to lives, has the room that is told, and is used by nobody else
        // meanwhile.
        let count = super::check(unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                self.capacity as _,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        })?;
        self.full = count as usize == self.capacity;
        self.capacity = match count as usize {
            count if count == self.capacity => (2 * count).min(BATCH),
            count => self.capacity.min((4 * count).max(CAPACITY_MIN)),
        };
        let unix_ns = super::clock_ns(libc::CLOCK_REALTIME);
        for (header, name) in headers[..count as usize].iter().zip(&self.names) {
            // SAFETY: the kernel has filled no more headers than were written before.
            let header = unsafe { header.assume_init_ref() };
            let whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let (mut tos, mut age_ns, mut device, mut ip) = (0, 0, 0, local.ip());
            // SAFETY: the kernel has just written the header and what it tells, and both live.
            for (level, kind, value) in unsafe { control_messages(&header.msg_hdr) } {
                match (level, kind) {
                    (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                        device = u32::from_ne_bytes(value[0..4].try_into().unwrap_or_default());
                        ip = Ipv4Addr::new(value[4], value[5], value[6], value[7]).into();
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                        let octets: [u8; 16] = value[..16].try_into().unwrap_or_default();
                        ip = Ipv6Addr::from(octets).into();
                        device = u32::from_ne_bytes(value[16..20].try_into().unwrap_or_default());
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) => tos = value[0],
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => tos = word(value) as u8,
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                        let word = |at: usize| value[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
                        // A clock that was set back makes nothing older.
                        age_ns = unix_ns.saturating_sub(word(0) * 1_000_000_000 + word(8));
                    }
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => self.dropped = Some(word(value)),
                    _ => {}
                }
            }
            let local = match ip {
                IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                    SocketAddr::V6(SocketAddrV6::new(ip, local.port(), 0, device))
                }
                ip => SocketAddr::new(ip, local.port()),
            };
            let path = Path { device, local };
            self.received.push(name.read().filter(|_| whole).map(|from| Received {
                path,
                from,
                tos: tos & TOS_MASK,
                age_ns,
                len: header.msg_len as usize,
            }));
        }
        Ok(count as usize)
    }

    /// Returns a datagram of the batch, with the room before it; `None` if it was cut off, or its source address cannot
    /// be read.
    pub(crate) fn get(&mut self, at: usize) -> Option<(Received, &mut [u8])> {
        let received = self.received[at]?;
        let from = at * STRIDE;
        Some((received, &mut self.bytes[from..from + HEADROOM + received.len]))
    }
}

fn word(value: &[u8]) -> u32 {
    u32::from_ne_bytes(value[..4].try_into().unwrap_or_default())
}

/// Iterates over the control data of a message: level, type, and value, which has the length of the type.
///
/// # Safety
/// The header is as the kernel wrote it, and what it points to lives as long as the result.
unsafe fn control_messages(header: &libc::msghdr) -> impl Iterator<Item = (libc::c_int, libc::c_int, &[u8])> {
    // SAFETY: the caller's promise; the macros stay inside of what the header says.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    std::iter::from_fn(move || {
        // SAFETY: `next` is null or a header inside of the kernel's words, which holds its whole value.
        unsafe {
            let this = next.as_ref()?;
            let len = this.cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            let value = std::slice::from_raw_parts(libc::CMSG_DATA(next), len);
            next = libc::CMSG_NXTHDR(header, next);
            Some((this.cmsg_level, this.cmsg_type, value))
        }
    })
}

/// The header fields of datagrams that are sent, beside the destination.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    /// The source address, if the socket has several.
    pub(crate) source: Option<IpAddr>,
    /// The type of service or traffic class.
    pub(crate) tos: u8,
}

/// The control data that tells the kernel of a [`Head`].
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control {
    bytes: [u8; 80],
    len: usize,
}

impl Control {
    /// Returns the control data for datagrams to an address; nothing if the head says nothing.
    fn new(head: Head, to: SocketAddr) -> Control {
        let mut control = Control { bytes: [0; 80], len: 0 };
        match head.source {
            None => {}
            Some(IpAddr::V4(ip)) => {
                // The kernel chooses the device by its routes; the address stands in the field for the source.
                let mut value = [0; 12];
                value[4..8].copy_from_slice(&ip.octets());
                control.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &value);
            }
            Some(IpAddr::V6(ip)) => {
                let mut value = [0; 20];
                value[..16].copy_from_slice(&ip.octets());
                control.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &value);
            }
        }
        if head.tos != 0 {
            let (level, kind) = match to {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            control.put(level, kind, &i32::from(head.tos).to_ne_bytes());
        }
        control
    }

    fn put(&mut self, level: libc::c_int, kind: libc::c_int, value: &[u8]) {
        // SAFETY: all bits zero are a valid value of a plain structure; the macros only add up lengths.
        let (mut header, head_len, len, space): (libc::cmsghdr, _, _, _) = unsafe {
            let len = value.len() as u32;
            (std::mem::zeroed(), libc::CMSG_LEN(0), libc::CMSG_LEN(len), libc::CMSG_SPACE(len))
        };
        (header.cmsg_len, header.cmsg_level, header.cmsg_type) = (len as _, level, kind);
        let place = &mut self.bytes[self.len..self.len + space as usize];
        // SAFETY: the place is as long as a header and the value, and aligned, as the spaces before it are multiples of
        // the alignment.
        unsafe { place.as_mut_ptr().cast::<libc::cmsghdr>().write_unaligned(header) };
        place[head_len as usize..head_len as usize + value.len()].copy_from_slice(value);
        self.len += space as usize;
    }

    /// Puts the data into a header, which must not outlive it.
    fn attach_to(&mut self, header: &mut libc::msghdr) {
        if self.len > 0 {
            header.msg_control = self.bytes.as_mut_ptr().cast();
            header.msg_controllen = self.len as _;
        }
    }
}

/// Sends one datagram; does not wait.
pub(crate) fn send(socket: BorrowedFd<'_>, head: Head, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
    send_flagged(socket, head, to, bytes, 0)
}

/// Sends one datagram to a neighbour that was just heard of, and tells the kernel so; does not wait.
pub(crate) fn answer(socket: BorrowedFd<'_>, head: Head, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
    send_flagged(socket, head, to, bytes, libc::MSG_CONFIRM)
}

/// Tells the kernel that a neighbour was just heard of, so that it need not ask whether it is still there. Nothing is
/// sent.
pub(crate) fn confirm(socket: BorrowedFd<'_>, head: Head, to: SocketAddr) -> io::Result<()> {
    send_flagged(socket, head, to, &[], libc::MSG_CONFIRM | MSG_PROBE)
}

fn send_flagged(
    socket: BorrowedFd<'_>,
    head: Head,
    to: SocketAddr,
    bytes: &[u8],
    flags: libc::c_int,
) -> io::Result<()> {
    let (name, name_len) = Address::new(to);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | flags;
    let mut control = Control::new(head, to);
    let sent = if control.len == 0 {
        // SAFETY: the bytes and the address live and have the lengths that are told.
        unsafe {
            libc::sendto(
                socket.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                flags,
                name.as_ptr(),
                name_len,
            )
        }
    } else {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: all bits zero are a valid header without anything.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name_len;
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        control.attach_to(&mut header);
        // SAFETY: all that the header points to lives, has the length that is told, and is only read.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) }
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends the same bytes to up to [`BATCH`] addresses by one system call; returns the number of them, from the first on,
/// that were taken.
///
/// # Errors
/// The error of the first address.
pub(crate) fn send_many(
    socket: BorrowedFd<'_>,
    head: Head,
    to: &[SocketAddr],
    bytes: &[u8],
) -> io::Result<usize> {
    let Some(&first) = to.first() else { return Ok(0) };
    let mut control = Control::new(head, first);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut names = [Address::zeroed(); BATCH];
    // SAFETY: all bits zero are valid headers without anything.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for ((header, name), &to) in headers.iter_mut().zip(&mut names).zip(to) {
        let len;
        (*name, len) = Address::new(to);
        header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
        header.msg_hdr.msg_namelen = len;
        header.msg_hdr.msg_iov = &raw mut part;
        header.msg_hdr.msg_iovlen = 1;
        control.attach_to(&mut header.msg_hdr);
    }
    let count = to.len().min(BATCH);
    // SAFETY: all that the headers point to lives, has the length that is told, and is only read, but for the lengths
    // that the kernel writes to the headers.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count as _,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    super::check(sent).map(|sent| sent as usize)
}

/// Takes the errors that the network reported to a socket, and returns their number.
pub(crate) fn take_reports(socket: BorrowedFd<'_>) -> u64 {
    let mut reports = 0;
    let mut ancillary = ControlBuffer([0; 160]);
    let mut bytes = [0_u8; 64];
    // A flood of them must not keep the thread: what is left is taken in the next turn.
    while reports < 1024 {
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all bits zero are a valid header without anything.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = ancillary.0.as_mut_ptr().cast();
        header.msg_controllen = size_of::<ControlBuffer>() as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: all that the header points to lives and has the room that is told.
        if unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) } < 0 {
            break;
        }
        reports += 1;
    }
    reports
}
