//! System calls for the testbed: namespaces of threads, the lowest scheduling class, many datagrams by one call, the
//! processor's clock, and memory in which a kernel program counts.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, setns, unshare};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt, sockopt,
};
use nix::unistd::Pid;

use crate::BenchError;

fn failed(attempted: &str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::io(attempted)(errno.into())
}

fn check(result: libc::c_int, attempted: &str) -> Result<(), BenchError> {
    Errno::result(result).map(drop).map_err(failed(attempted))
}

/// Moves the calling thread into a new network namespace, which lasts as long as the thread, or as the returned file.
pub(super) fn new_network() -> Result<File, BenchError> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(failed("make a network namespace (this needs root)"))?;
    File::open("/proc/thread-self/ns/net").map_err(BenchError::io("open a network namespace"))
}

/// Moves the calling thread into a network namespace.
pub(super) fn enter_network(network: &File) -> Result<(), BenchError> {
    setns(network, CloneFlags::CLONE_NEWNET).map_err(failed("enter a network namespace"))
}

/// Mounts a /sys that shows the devices of its network namespace, for the calling thread only.
pub(super) fn show_devices() -> Result<(), BenchError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed("make a mount namespace"))?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    let none = None::<&str>;
    mount(none, "/", none, private, none)
        .and_then(|()| mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none))
        .map_err(failed("mount /sys for a network namespace"))
}

/// Pins the calling thread to a processor.
pub(super) fn pin(cpu: usize) -> Result<(), BenchError> {
    // 0 is the calling thread.
    pin_process(0, cpu)
}

/// Pins another process, or a kernel thread, to a processor.
pub(super) fn pin_process(process: i32, cpu: usize) -> Result<(), BenchError> {
    let mut set = CpuSet::new();
    set.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(process), &set))
        .map_err(failed(&format!("stay on processor {cpu}")))
}

/// Returns the processors that this process may use.
pub(super) fn cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return vec![0] };
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
}

/// Lets the calling thread run only when its processor is otherwise idle.
pub(super) fn run_when_idle() -> Result<(), BenchError> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters outlive the call; 0 is the calling thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) };
    check(done, "lower the priority of a thread")?;
    // The class alone decides who runs. Being nice too, its time is told apart in the system's own figures.
    // SAFETY: the call takes no memory; 0 is the calling thread.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) }, "lower the priority of a thread")?;
    Ok(())
}

/// Returns the time that the calling thread has run, in nanoseconds.
pub(super) fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the value of the processor's own clock, or of the system's where there is none.
#[inline]
pub(super) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this instruction, and Linux lets everybody use it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Returns the number of ticks of that clock per nanosecond.
pub(super) fn ticks_per_ns() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        // The clock is steady on all machines that have namespaces; a twentieth of a second gives five digits.
        let (time, before) = (Instant::now(), ticks());
        while time.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        let after = ticks();
        (after - before) as f64 / time.elapsed().as_nanos() as f64
    })
}

/// A batch of datagrams to send by one call on a connected socket; all have the same length.
pub(super) struct Batch {
    // Rows of the datagrams' bytes, which `parts` points into.
    bytes: Vec<u8>,
    length: usize,
    parts: Vec<libc::iovec>,
    heads: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers lead into vectors that the value owns and that never grow.
unsafe impl Send for Batch {}

impl Batch {
    /// Creates a batch of `many` datagrams of `length` bytes.
    pub(super) fn new(many: usize, length: usize) -> Self {
        let mut bytes = vec![0; many * length];
        let mut parts: Vec<libc::iovec> = bytes
            .chunks_exact_mut(length)
            .map(|row| libc::iovec { iov_base: row.as_mut_ptr().cast(), iov_len: length })
            .collect();
        let heads = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: zeros are a header without an address, parts and control data.
                let mut head: libc::mmsghdr = unsafe { std::mem::zeroed() };
                head.msg_hdr.msg_iov = part;
                head.msg_hdr.msg_iovlen = 1;
                head
            })
            .collect();
        Self { bytes, length, parts, heads }
    }

    /// Returns the number of datagrams in the batch.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the bytes of one datagram.
    pub(super) fn row(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[index * self.length..(index + 1) * self.length]
    }

    /// Sends the first `many` datagrams, and returns how many the system took.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, many: usize) -> io::Result<usize> {
        let many = many.min(self.heads.len());
        // SAFETY: the headers lead to rows of `bytes`; both are owned by this value and outlive the call.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), self.heads.as_mut_ptr(), many as libc::c_uint, 0) };
        match sent {
            -1 => Err(io::Error::last_os_error()),
            sent => Ok(sent as usize),
        }
    }
}

/// A socket that sends from any local address.
pub(super) struct ManySocket(UdpSocket);

impl ManySocket {
    /// Binds a socket to a port of all addresses.
    pub(super) fn bind(port: u16) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Sends a datagram from an address.
    pub(super) fn send(&self, from: Ipv4Addr, to: SocketAddrV4, bytes: &[u8]) -> io::Result<()> {
        let info = libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr { s_addr: u32::from(from).to_be() },
            ipi_addr: libc::in_addr { s_addr: 0 },
        };
        let (parts, controls) = ([IoSlice::new(bytes)], [ControlMessage::Ipv4PacketInfo(&info)]);
        let to = SockaddrIn::from(to);
        sendmsg(self.0.as_raw_fd(), &parts, &controls, MsgFlags::empty(), Some(&to))?;
        Ok(())
    }

    /// Receives the next datagram, and returns its length and the address that it came to; `None` if there is none.
    pub(super) fn receive(&self, bytes: &mut [u8]) -> io::Result<Option<(usize, Ipv4Addr)>> {
        let mut parts = [IoSliceMut::new(bytes)];
        let mut space = nix::cmsg_space!(libc::in_pktinfo);
        let received =
            recvmsg::<SockaddrIn>(self.0.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty());
        let received = match received {
            Err(Errno::EAGAIN) => return Ok(None),
            received => received?,
        };
        let at = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)))
            }
            _ => None,
        });
        let at = at.ok_or_else(|| io::Error::other("a datagram came without its address"))?;
        Ok(Some((received.bytes, at)))
    }
}

/// An array of 64-bit words that the kernel writes and this process reads.
pub(super) struct Words {
    start: NonNull<AtomicU64>,
    many: usize,
}

// SAFETY: the memory stays mapped for the life of the value and is only read and written as atomic words.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps a kernel array that was made to be mapped.
    pub(super) fn map(array: impl AsFd, many: usize) -> Result<Self, BenchError> {
        // SAFETY: a new mapping at an address of the system's choice, of a length that the kernel checks.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                many * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                array.as_fd().as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast::<AtomicU64>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { start, many }),
            _ => Err(BenchError::io("map an array of the kernel's")(io::Error::last_os_error())),
        }
    }

    /// Returns a word.
    #[inline]
    pub(super) fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    /// Sets all words to zero.
    pub(super) fn clear(&self) {
        (0..self.many).for_each(|index| self.word(index).store(0, Ordering::Relaxed));
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.many, "word {index} of {}", self.many);
        // SAFETY: the index is within the mapping, which is aligned to a page, and atomic words may be shared.
        unsafe { self.start.add(index).as_ref() }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.many * 8) };
    }
}
