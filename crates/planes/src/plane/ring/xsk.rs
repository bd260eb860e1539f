//! A socket that sends frames out of memory that it shares with the kernel (AF_XDP, copied by the kernel, so that any
//! device can do it). All unsafe code of the ring plane is here.
//!
//! Invariants, which rest on `__xsk_generic_xmit` of the kernel:
//! - A frame is the kernel's from [`Xsk::put`] until a [`Xsk::kick`] has counted it as sent; only then it is written
//!   again.
//! - Frames are taken in order. A call that fails with `EBUSY` has taken one frame more than it has sent, the last one:
//!   the device refused it, and it is put to the end of the ring again. Any other failure has taken nothing more.
//! - The kernel reports its progress only in calls that have sent something, so a frame that was refused in a call that
//!   sent nothing is counted here before the kernel reports it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::system;

/// The number of frames.
pub(super) const FRAMES: usize = 64;
/// The room of a frame, in bytes.
pub(super) const FRAME_BYTES: usize = 2048;
/// The slots of the ring: twice as many as frames, and a power of two. A refused frame has left its old slot before it
/// gets another.
const SLOTS: u32 = 2 * FRAMES as u32;
/// The slots of the ring by which the kernel gives frames back. Their contents are not read, but the kernel sends only
/// as many frames as fit.
const COMPLETIONS: u32 = 4096;
/// The socket option of linux/if_xdp.h for the number of frames that a call may send. Older kernels have a fixed
/// number.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Memory of this process alone, or shared with the kernel.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    fn anonymous(bytes: usize) -> io::Result<Mapping> {
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }?;
        Self::at(start, bytes)
    }

    fn of(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Mapping> {
        // SAFETY: the kernel chooses an address where nothing is mapped, and refuses more than the ring has.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                file,
                offset,
            )
        }?;
        Self::at(start, bytes)
    }

    fn at(start: *mut libc::c_void, bytes: usize) -> io::Result<Mapping> {
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, bytes })
    }

    /// Returns a number that the kernel reads and writes too.
    fn number(&self, offset: u64) -> &AtomicU32 {
        assert!(
            offset as usize + 4 <= self.bytes && offset.is_multiple_of(4),
            "the kernel's offsets lie in its rings"
        );
        // SAFETY: it lies in the mapping, which lives as long as `self`, and is only ever reached as an atomic.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset as usize).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by the constructors, and no reference outlives `self`. It cannot fail for these.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: the memory belongs to this value; what the kernel changes in it is only read by atomics.
unsafe impl Send for Mapping {}

/// The outcome of asking the kernel to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// All frames were sent.
    Done,
    /// The device has no room now.
    Full,
    /// The device does not send any more, and will not by itself.
    Dead,
}

/// The socket.
pub(super) struct Xsk {
    // Closed before its memory goes.
    socket: OwnedFd,
    ring: Mapping,
    ring_at: libc::xdp_ring_offset,
    back: Mapping,
    back_at: libc::xdp_ring_offset,
    memory: Mapping,
    /// The number of slots that were filled.
    put: u32,
    /// The number of slots that the kernel has taken.
    taken: u32,
    /// The number of slots that the kernel has reported.
    reported: u32,
}

impl Xsk {
    /// Checks that this process may have such sockets here.
    pub(super) fn allowed() -> io::Result<()> {
        system::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map(drop)
    }

    /// Opens a socket to send through a device.
    pub(super) fn open(device: u32) -> io::Result<Xsk> {
        let socket = system::socket(libc::AF_XDP, libc::SOCK_RAW, 0)?;
        let fd = socket.as_fd();
        let memory = Mapping::anonymous(FRAMES * FRAME_BYTES)?;
        let registered = libc::xdp_umem_reg {
            addr: memory.start.as_ptr() as u64,
            len: memory.bytes as u64,
            chunk_size: FRAME_BYTES as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        system::set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registered)?;
        // The ring for frames to receive into is never filled, but has to be there.
        for (name, slots) in [
            (libc::XDP_UMEM_FILL_RING, SLOTS),
            (libc::XDP_UMEM_COMPLETION_RING, COMPLETIONS),
            (libc::XDP_TX_RING, SLOTS),
        ] {
            system::set_option(fd, libc::SOL_XDP, name, &slots)?;
        }
        let _ = system::set_option(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &(FRAMES as u32));
        let bytes = 16 << 20_i32;
        let _ = system::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes);
        let at: libc::xdp_mmap_offsets = system::option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        let (slots, back_slots) = (SLOTS as usize, COMPLETIONS as usize);
        let ring_bytes = at.tx.desc as usize + slots * size_of::<libc::xdp_desc>();
        let ring = Mapping::of(fd, libc::XDP_PGOFF_TX_RING as u64, ring_bytes)?;
        let back_bytes = at.cr.desc as usize + back_slots * size_of::<u64>();
        let back = Mapping::of(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, back_bytes)?;
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: device,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: the pointer and the length are those of a live address.
        system::check(unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
            )
        })?;
        Ok(Xsk { socket, ring, ring_at: at.tx, back, back_at: at.cr, memory, put: 0, taken: 0, reported: 0 })
    }

    /// Returns the number of frames that were put and not sent yet.
    pub(super) fn pending(&self) -> u32 {
        self.put.wrapping_sub(self.taken)
    }

    /// Returns a frame, to be written.
    ///
    /// # Panics
    /// If there is no such frame, or frames are pending.
    pub(super) fn frame(&mut self, at: usize) -> &mut [u8] {
        assert!(at < FRAMES && self.put == self.taken, "a frame is written while none is the kernel's");
        // SAFETY: the frame lies in the memory, which lives as long as `self`; while nothing is pending the kernel reads none
        // of it, and the reference keeps `self` borrowed.
        unsafe {
            std::slice::from_raw_parts_mut(self.memory.start.as_ptr().add(at * FRAME_BYTES), FRAME_BYTES)
        }
    }

    /// Puts the first `count` frames, each of `len` bytes, to be sent by the kicks that follow.
    ///
    /// # Panics
    /// If there are fewer frames, or frames are pending.
    pub(super) fn put(&mut self, count: usize, len: usize) {
        assert!(
            count <= FRAMES && len <= FRAME_BYTES && self.put == self.taken,
            "frames are put when none is"
        );
        for frame in 0..count {
            let addr = (frame * FRAME_BYTES) as u64;
            self.append(libc::xdp_desc { addr, len: len as u32, options: 0 });
        }
        self.ring.number(self.ring_at.producer).store(self.put, Ordering::Release);
    }

    fn append(&mut self, slot: libc::xdp_desc) {
        // SAFETY: slots lie in the ring; this one is not the kernel's, as there are more slots than frames, and each frame is
        // in one slot at most.
        unsafe { self.slot(self.put).write(slot) };
        self.put = self.put.wrapping_add(1);
    }

    fn slot(&self, number: u32) -> *mut libc::xdp_desc {
        let slots = self.ring.start.as_ptr().wrapping_add(self.ring_at.desc as usize);
        slots.cast::<libc::xdp_desc>().wrapping_add((number % SLOTS) as usize)
    }

    /// Asks the kernel to send the pending frames. Returns the number of frames sent.
    pub(super) fn kick(&mut self) -> (u32, SendOutcome) {
        let mut sent = 0;
        while self.pending() > 0 {
            // SAFETY: no bytes and no address are passed.
            let polled = system::check(unsafe {
                libc::sendto(
                    self.socket.as_raw_fd(),
                    std::ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null(),
                    0,
                ) as libc::c_int
            });
            let reported = self.ring.number(self.ring_at.consumer).load(Ordering::Acquire);
            let news = reported != self.reported;
            // Frames that are given back are all alike: their places are free at once.
            let back = self.back.number(self.back_at.producer).load(Ordering::Acquire);
            self.back.number(self.back_at.consumer).store(back, Ordering::Release);
            let error = polled.err().and_then(|error| error.raw_os_error());
            if news {
                let taken = reported.wrapping_sub(self.taken);
                (self.reported, self.taken) = (reported, reported);
                sent += taken - u32::from(error == Some(libc::EBUSY));
            } else if error == Some(libc::EBUSY) {
                self.taken = self.taken.wrapping_add(1);
            }
            match error {
                Some(libc::EBUSY) => {
                    // SAFETY: the slot lies in the ring, and the kernel has read it and does not write slots.
                    let refused = unsafe { self.slot(self.taken.wrapping_sub(1)).read() };
                    self.append(refused);
                    self.ring.number(self.ring_at.producer).store(self.put, Ordering::Release);
                    return (sent, SendOutcome::Full);
                }
                Some(libc::EINTR) => {}
                // A call sends only so many: with news there may be room for more.
                None | Some(libc::EAGAIN) if news => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return (sent, SendOutcome::Full),
                _ => return (sent, SendOutcome::Dead),
            }
        }
        (sent, SendOutcome::Done)
    }
}
