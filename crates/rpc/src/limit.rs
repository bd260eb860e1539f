//! The limits of the protocol. Those of the model are in [`nacre_object::limit`].

/// The protocol version that this crate speaks.
pub const PROTOCOL_VERSION: u16 = 3;
/// The first version with flags, events and sessions.
pub const PROTOCOL_VERSION_EVENTS: u16 = 3;
/// The oldest version that may still be served; each service chooses its own minimum.
pub const PROTOCOL_VERSION_MIN: u16 = 1;
/// The bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Largest body of a frame, in bytes. The largest transaction that the model allows takes less: 16 MiB of payload,
/// and 4096 operations with names of at most three times 1 KiB.
pub const BODY_BYTES_MAX: usize = 32 << 20;
/// The bytes of events, and of the parts of one reply, that a server may send before the client acknowledges consuming
/// them.
pub const WINDOW_BYTES: usize = 256 << 10;
/// The share of the window that an event or a part occupies beyond its payload, in bytes.
pub const EVENT_OVERHEAD_BYTES: usize = 64;
/// Longest payload of an event, and of a part of a reply, in bytes.
pub const EVENT_BYTES_MAX: usize = 64 << 10;
/// Longest text of an error, in bytes; a longer one is cut.
pub const ERROR_TEXT_BYTES_MAX: usize = 4096;
/// Longest name of a file in an error, in bytes; an error does not name the place if it is longer.
pub const ERROR_FILE_BYTES_MAX: usize = 4096;
/// The feature of a peer that understands errors with the file and the offset of damaged bytes. The other bits are the
/// services'.
pub const FEATURE_ERROR_PLACES: u64 = 1 << 63;
/// The smallest payload that is written from its own memory, in bytes. Smaller ones are copied into the buffer of the
/// other bytes, because copying them costs less than one more entry of a vectored write.
pub const BY_REFERENCE_BYTES_MIN: usize = 16 << 10;
/// The bytes that one read from a socket asks for.
pub const READ_BYTES: usize = 256 << 10;
/// Longest plaintext of one sealed record, in bytes.
pub const RECORD_BYTES_MAX: usize = 65_535 - SEAL_BYTES;
/// The bytes that sealing adds to a record.
pub const SEAL_BYTES: usize = 16;
