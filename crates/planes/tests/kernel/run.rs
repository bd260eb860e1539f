//! Runs a program on a packet, by the kernel's own interface for tests.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The packet comes with a sum over all of it, as from a card, and has to keep a right one (Linux 6.17 and later).
pub const SUMMED: u32 = 1 << 2;

/// The outcome of a run.
#[derive(Debug)]
pub struct Ran {
    /// The program's return value.
    pub action: i32,
    /// The packet afterwards.
    pub packet: Vec<u8>,
}

/// The attributes of `BPF_PROG_TEST_RUN`, of linux/bpf.h.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    program: u32,
    returned: u32,
    in_bytes: u32,
    out_bytes: u32,
    input: u64,
    output: u64,
    repeat: u32,
    duration: u32,
    context_in_bytes: u32,
    context_out_bytes: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    pad: u32,
}

/// Runs a program of the traffic-control type on a frame, as if it had come in by the loopback device.
pub fn run(program: impl AsFd, frame: &[u8], flags: u32) -> io::Result<Ran> {
    const BPF_PROG_TEST_RUN: libc::c_int = 10;
    let mut packet = vec![0; frame.len() + 64];
    let mut attributes = Attributes {
        program: program.as_fd().as_raw_fd() as u32,
        in_bytes: frame.len() as u32,
        out_bytes: packet.len() as u32,
        input: frame.as_ptr() as u64,
        output: packet.as_mut_ptr() as u64,
        repeat: 1,
        flags,
        ..Attributes::default()
    };
    // SAFETY: the attributes are laid out as the kernel's, and what they point to is as long as they say and lives.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attributes, size_of::<Attributes>())
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    packet.truncate(attributes.out_bytes as usize);
    Ok(Ran { action: attributes.returned as i32, packet })
}
