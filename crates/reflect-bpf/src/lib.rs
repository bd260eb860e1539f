//! The datagram reflector's programs in the kernel, compiled from C, and the layout of the memory that it shares with
//! them (`bpf/reflect.h`).
//!
//! - [`TC`] and [`XDP`] are object files for a loader. They are in the tree, and made again by `make bpf` where their
//!   sources change.
//! - [`constant`] has the header's numbers, each defined there and nowhere else.

#![forbid(unsafe_code)]

/// The numbers of the header, under their names without the prefix `REFLECT_`.
pub mod constant {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

/// The bytes of an object file, aligned so that its words can be read.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

include!(concat!(env!("OUT_DIR"), "/programs.rs"));

/// The protocol's magic, in the order of its bytes in a datagram.
pub const MAGIC: [u8; constant::MAGIC_BYTES as usize] = {
    let bytes = constant::MAGIC.to_le_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]]
};
