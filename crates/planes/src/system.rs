//! Calls to the operating system for the data thread: sockets, waiting, clocks. The calls that need `unsafe` are here
//! and in the modules below, each with the reason why it is sound; their interfaces are safe.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nacre_reflect::host::Now;
use nacre_reflect::wire;

pub(crate) mod message;

/// An address in the form that system calls take.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Address {
    any: libc::sockaddr,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Address {
    /// Returns a zeroed address, for the kernel to write to.
    pub(crate) fn zeroed() -> Address {
        // SAFETY: all bits zero are a valid value of each of the union's plain structures.
        unsafe { std::mem::zeroed() }
    }

    /// The length of the longest address, in bytes.
    pub(crate) const LENGTH_MAX: libc::socklen_t = size_of::<Address>() as libc::socklen_t;

    /// Writes an address, and returns its length in bytes.
    pub(crate) fn new(address: SocketAddr) -> (Address, libc::socklen_t) {
        let mut written = Address::zeroed();
        match address {
            SocketAddr::V4(address) => {
                written.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (written, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(address) => {
                written.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                (written, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    /// Reads an address that the kernel wrote; `None` if its family is not known.
    pub(crate) fn read(&self) -> Option<SocketAddr> {
        // SAFETY: the union was zeroed or written by the kernel, and all of its structures begin with the family and
        // take any bits, so that each may be looked at.
        unsafe {
            match i32::from(self.any.sa_family) {
                libc::AF_INET => Some(SocketAddr::V4(SocketAddrV4::new(
                    Ipv4Addr::from(self.v4.sin_addr.s_addr.to_ne_bytes()),
                    u16::from_be(self.v4.sin_port),
                ))),
                // The flow label of one datagram is no part of who sent it.
                libc::AF_INET6 => Some(SocketAddr::V6(SocketAddrV6::new(
                    Ipv6Addr::from(self.v6.sin6_addr.s6_addr),
                    u16::from_be(self.v6.sin6_port),
                    0,
                    self.v6.sin6_scope_id,
                ))),
                _ => None,
            }
        }
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        std::ptr::from_ref(self).cast()
    }
}

pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes ownership of a file descriptor that a system call has just returned.
pub(crate) fn own(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the descriptor is new, valid, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens a socket that does not block and is closed on exec.
pub(crate) fn socket(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    own(unsafe { libc::socket(family, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, protocol) })
}

/// Sets a socket option to a plain value.
pub(crate) fn set_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of a live value, which the kernel only reads.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// A structure or number for which any bits are valid.
///
/// # Safety
/// Any bits must be a valid value of the type.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: they are numbers, and structures of numbers.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for [u32; 9] {}
// SAFETY: as above.
unsafe impl Plain for libc::xdp_mmap_offsets {}

/// Reads a socket option.
pub(crate) fn option<T: Plain>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    // SAFETY: any bits are valid.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: both pointers are to live values of the length that is told.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    })?;
    if len as usize == size_of::<T>() { Ok(value) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Clears the pending error of a socket.
pub(crate) fn take_error(socket: BorrowedFd<'_>) {
    // Reading it is what takes it; a socket that cannot tell has none.
    let _: io::Result<i32> = option(socket, libc::SOL_SOCKET, libc::SO_ERROR);
}

/// Returns the number of datagrams that a socket has dropped since it was made because it was full.
pub(crate) fn dropped(socket: BorrowedFd<'_>) -> Option<u32> {
    // The kernel's numbers of a socket's memory, in its order; the last one is of drops.
    let numbers: [u32; 9] = option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO).ok()?;
    Some(numbers[8])
}

/// Has the kernel drop what comes to a UDP socket before it waits there, but for datagrams of the control protocol. They count
/// among those that the socket has dropped.
pub(crate) fn close_to_payload(socket: BorrowedFd<'_>) -> io::Result<()> {
    /// The length of the header that such a program sees before the payload, in bytes.
    const UDP: u32 = 8;
    let [a, b, c, d, e, f] = wire::MAGIC;
    let instruction = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let unless = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let end = libc::BPF_RET | libc::BPF_K;
    // A datagram that is too short to be looked at is dropped, too.
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, UDP),
        instruction(unless, 3, u32::from_be_bytes([a, b, c, d])),
        instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, UDP + 4),
        instruction(unless, 1, u32::from(u16::from_be_bytes([e, f]))),
        instruction(end, 0, u32::MAX),
        instruction(end, 0, 0),
    ];
    // The kernel copies the program, which lives until then.
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Lets everything come to a socket again.
pub(crate) fn open_to_payload(socket: BorrowedFd<'_>) {
    // It fails only where the socket is open.
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32);
}

/// Binds a socket.
pub(crate) fn bind(socket: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let (address, len) = Address::new(address);
    // SAFETY: the pointer and the length are those of a live address.
    check(unsafe { libc::bind(socket.as_raw_fd(), address.as_ptr(), len) }).map(drop)
}

/// Returns the address that a socket is bound to.
pub(crate) fn bound(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let (mut address, mut len) = (Address::zeroed(), Address::LENGTH_MAX);
    // SAFETY: the kernel writes at most `len` bytes to an address that has room for them.
    check(unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut len) })?;
    address.read().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

/// Opens an event counter, which wakes its waiters.
pub(crate) fn event() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    own(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

/// Raises an event.
pub(crate) fn raise(event: BorrowedFd<'_>) {
    let one = 1_u64;
    // SAFETY: eight bytes of a live value are read. It fails only if the counter is at its end: then it is raised.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Lowers an event.
pub(crate) fn lower(event: BorrowedFd<'_>) {
    let mut count = 0_u64;
    // SAFETY: eight bytes are written to a live value. It fails only if the event is not raised.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
}

/// Reads a clock, in nanoseconds.
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live value. The clocks that are asked for exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Reads the clocks.
pub(crate) fn now() -> Now {
    let ns = clock_ns(libc::CLOCK_MONOTONIC);
    // For seconds the time of the last tick will do, which is cheaper to read.
    Now { ms: ns / 1_000_000, ns, unix_s: clock_ns(libc::CLOCK_REALTIME_COARSE) / 1_000_000_000 }
}

/// The slice of processor time that a thread asks for that has to be prompt, in nanoseconds: the shortest.
const PROMPT_NS: u64 = 100_000;

/// Asks for short slices of processor time for this thread: it is not given more of it, but is let in sooner when it
/// wakes (Linux 6.12 and later; needs no rights). A thread with a class of its own is left alone.
pub(crate) fn be_prompt() {
    /// The attributes of a thread: linux/sched/types.h.
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        bytes: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        slice_ns: u64,
        deadline: u64,
        period: u64,
    }
    let bytes = size_of::<Attributes>() as u32;
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes as many bytes as are told to attributes that live.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, bytes, 0) };
    if got == 0 && attributes.policy == libc::SCHED_OTHER as u32 {
        (attributes.bytes, attributes.flags, attributes.slice_ns) = (bytes, 0, PROMPT_NS);
        // SAFETY: the attributes live, and tell their length. A system that does not take them leaves all as it was.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Returns the index of a network device.
pub(crate) fn device_index(name: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the name ends with a zero.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Makes a device whose other end is a file: frames sent by the device are read from the file, one by one.
#[cfg(feature = "testkit")]
pub(crate) fn tap(device: &str) -> io::Result<std::fs::File> {
    const TUNSETIFF: u32 = 0x4004_54ca;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut request = request(device)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request lives, and is what this call takes.
    check(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF as _, &raw mut request) })?;
    Ok(file)
}

/// Returns a request that names a device.
#[cfg(feature = "testkit")]
fn request(device: &str) -> io::Result<libc::ifreq> {
    if device.len() >= libc::IF_NAMESIZE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: all bits zero are a valid value of a plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Switches receive offload of a device on, and its segmentation offload off: with both, at both ends, a pair of `veth`
/// devices has a ring in each direction.
#[cfg(feature = "testkit")]
pub(crate) fn ring(device: &str) -> io::Result<()> {
    const ETHTOOL_STSO: u32 = 0x1f;
    offload(device, ETHTOOL_STSO, false)?;
    offload(device, ETHTOOL_SGRO, true)
}

/// The number of the command that switches receive offload.
#[cfg(feature = "testkit")]
const ETHTOOL_SGRO: u32 = 0x2c;

/// Lets a device complete the checksums of outgoing packets, or the kernel before it. Incoming packets are taken as
/// they are, without receive offload, which would check their checksums and mark them as checked.
#[cfg(feature = "testkit")]
pub(crate) fn checksums(device: &str, by_device: bool) -> io::Result<()> {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    offload(device, ETHTOOL_SGRO, false)?;
    offload(device, ETHTOOL_STXCSUM, by_device)
}

/// Switches an offload of a device on or off.
#[cfg(feature = "testkit")]
fn offload(device: &str, command: u32, on: bool) -> io::Result<()> {
    /// The argument of such commands.
    #[repr(C)]
    struct Value {
        command: u32,
        value: u32,
    }
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut value = Value { command, value: u32::from(on) };
    let mut request = request(device)?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request and what it points to live, and are what this call takes.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) }).map(drop)
}

/// Moves the calling thread into a network namespace.
#[cfg(feature = "testkit")]
pub(crate) fn enter_network(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers are passed; a thread may change its namespace at any time.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// The greatest number of files reported by one wait.
pub(crate) const READY_MAX: usize = 64;

/// The token of the timer.
const TIMER: u64 = u64::MAX - 2;

/// The time by which a wait may last longer than it was asked to, if it is to be much longer than that.
const SLACK_NS: u64 = 1_000_000;

/// The time by which a timer may go off before it is needed: to be woken for nothing costs more than to set it anew.
const EARLY_NS: u64 = 10_000_000;

/// Waits for several files at once.
///
/// A wait that ends early, by a file, leaves its timer as it is for the next one: to set one anew for each datagram costs
/// more than to receive it.
pub(crate) struct Poll {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// The time at which the timer goes off, in nanoseconds; 0 if it does not.
    set_ns: u64,
    events: Vec<libc::epoll_event>,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Poll> {
        // SAFETY: no pointers are passed.
        let epoll = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: no pointers are passed.
        let timer = own(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        let poll = Poll {
            epoll,
            timer,
            set_ns: 0,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; READY_MAX + 1],
        };
        poll.add(poll.timer.as_fd(), TIMER)?;
        Ok(poll)
    }

    /// Adds a file, which is reported under `token` when it is readable.
    pub(crate) fn add(&self, file: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: the event lives while the kernel reads it.
        check(unsafe {
            libc::epoll_ctl(
                self.epoll.as_fd().as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                file.as_raw_fd(),
                &raw mut event,
            )
        })
        .map(drop)
    }

    /// Sets the timer, unless it goes off in time as it is.
    fn set(&mut self, timeout: Duration) -> io::Result<()> {
        let now_ns = clock_ns(libc::CLOCK_MONOTONIC);
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).min(1 << 60);
        let slack_ns = if timeout_ns > 5 * SLACK_NS { SLACK_NS } else { 0 };
        let until_ns = now_ns + timeout_ns;
        if self.set_ns > now_ns
            && (until_ns.saturating_sub(EARLY_NS)..=until_ns + slack_ns).contains(&self.set_ns)
        {
            return Ok(());
        }
        let set = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: (until_ns / 1_000_000_000) as libc::time_t,
                tv_nsec: (until_ns % 1_000_000_000) as libc::c_long,
            },
        };
        // SAFETY: the time lives, and the old one is not asked for.
        check(unsafe {
            libc::timerfd_settime(
                self.timer.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const set,
                std::ptr::null_mut(),
            )
        })?;
        self.set_ns = until_ns;
        Ok(())
    }

    /// Waits for a time, or less, and returns the token of each file that is ready, with true if it is readable, and
    /// true if it has an error.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<impl Iterator<Item = (u64, bool, bool)>> {
        let wait_ms = match timeout.is_zero() {
            true => 0,
            false => {
                self.set(timeout)?;
                -1
            }
        };
        // SAFETY: the events have the room that is told.
        let ready = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as libc::c_int,
                wait_ms,
            )
        };
        let ready = match check(ready) {
            Ok(ready) => ready as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        if self.events[..ready].iter().any(|event| event.u64 == TIMER) {
            // It goes on telling that it went off until it is set again, which the next wait does.
            self.set_ns = 0;
        }
        Ok(self.events[..ready].iter().filter(|event| event.u64 != TIMER).map(|event| {
            let events = event.events as libc::c_int;
            (event.u64, events & libc::EPOLLIN != 0, events & libc::EPOLLERR != 0)
        }))
    }
}

/// Returns the bytes sent by a socket that queues and devices have not released yet.
pub(crate) fn unsent(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one `int`, which lives.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { bytes.max(0) as usize } else { 0 }
}

/// Opens a UDP socket as the reflector needs it, and returns its address as bound. Outgoing datagrams are never
/// fragmented, and failures to send are reported; incoming ones carry their device, the address that they were sent to,
/// their type of service, the time at which they came, and the number of datagrams dropped before.
pub(crate) fn listen(address: SocketAddr) -> io::Result<(SocketAddr, OwnedFd)> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = socket(family, libc::SOCK_DGRAM, 0)?;
    let fd = socket.as_fd();
    let on = 1_i32;
    // Without these a full queue is no error, and what was to be sent is lost silently.
    if address.is_ipv4() {
        set_option(fd, libc::IPPROTO_IP, libc::IP_RECVERR, &on)?;
        set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, &on)?;
        set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, &on)?;
        set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DO)?;
    } else {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &on)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &on)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &on)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, &on)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &libc::IPV6_PMTUDISC_DO)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, &on)?;
    }
    set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &on)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on)?;
    // Beyond the system's limits if we may, else up to them. What is sent is bounded by the queues of the devices, so the
    // socket's own bound is to be out of their way.
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        let bytes = 64 << 20_i32;
        if set_option(fd, libc::SOL_SOCKET, forced, &bytes).is_err() {
            set_option(fd, libc::SOL_SOCKET, plain, &bytes)?;
        }
    }
    bind(fd, address)?;
    Ok((bound(fd)?, socket))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_socket_that_is_closed_to_payload_takes_what_is_for_the_reflector() {
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            let socket = UdpSocket::bind(loopback).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let to = socket.local_addr().unwrap();
            let from = UdpSocket::bind(loopback).unwrap();
            let receive = || {
                let mut bytes = [0; 64];
                let length = socket.recv(&mut bytes).unwrap();
                bytes[..length].to_vec()
            };
            let control = [&wire::MAGIC[..], b"control"].concat();
            let mut close = wire::MAGIC;
            close[5] ^= 1;
            close_to_payload(socket.as_fd()).unwrap();
            for payload in [&b""[..], b"short", &wire::MAGIC[..5], &close, b"a longer one"] {
                from.send_to(payload, to).unwrap();
            }
            for control in [&control[..], &wire::MAGIC] {
                from.send_to(control, to).unwrap();
                assert_eq!(receive(), control);
            }
            let begun = Instant::now();
            while dropped(socket.as_fd()) != Some(5) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", dropped(socket.as_fd()));
                std::thread::yield_now();
            }
            open_to_payload(socket.as_fd());
            open_to_payload(socket.as_fd());
            from.send_to(b"short", to).unwrap();
            assert_eq!(receive(), b"short");
        }
    }

    /// The timer of a wait that ended early is not left to end a much longer one.
    #[test]
    fn a_wait_lasts_as_long_as_it_was_asked_to_whatever_was_asked_before() {
        let mut poll = Poll::new().unwrap();
        let ready = event().unwrap();
        poll.add(ready.as_fd(), 7).unwrap();
        raise(ready.as_fd());
        assert_eq!(poll.wait(Duration::from_millis(60)).unwrap().count(), 1);
        lower(ready.as_fd());
        let from = Instant::now();
        assert_eq!(poll.wait(Duration::from_millis(300)).unwrap().count(), 0);
        assert!(from.elapsed() >= Duration::from_millis(280), "{:?}", from.elapsed());
    }
}
