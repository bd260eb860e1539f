//! Limits of patterns and their descriptions. Whatever exceeds one is refused before anything is done with it.

/// The greatest end of a region in bytes: offsets are signed numbers of 64 bits in MPI and in POSIX, so the last
/// byte of a file has the offset 2^63 - 2.
pub const OFFSET_MAX: u64 = i64::MAX as u64;

/// The maximum number of datatypes that stand inside each other, the outermost included.
pub const DEPTH_MAX: usize = 32;

/// The maximum number of items of one description: datatypes, blocks, displacements, members, dimensions and regions
/// together.
pub const ITEMS_MAX: usize = 1 << 18;

/// The maximum length of an encoded description in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 8 << 20;
