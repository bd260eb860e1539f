//! Every limit of the protocol, in one place. The limits of the model are in [`nacre_object::limit`].

/// The protocol version that this crate speaks.
pub const PROTOCOL_VERSION: u16 = 3;
/// The first version with flags, events and sessions.
pub const PROTOCOL_VERSION_EVENTS: u16 = 3;
/// The oldest version that may still be served; each service decides for itself.
pub const PROTOCOL_VERSION_MIN: u16 = 1;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Largest body of a frame, in bytes. The largest transaction that the model allows takes less: 16 MiB of payload,
/// and 4096 operations with names of at most three times 1 KiB.
pub const BODY_BYTES_MAX: usize = 32 << 20;
/// Bytes of events that a server sends before the client says that it has consumed them.
pub const WINDOW_BYTES: usize = 256 << 10;
/// What an event takes of the window beyond its payload, in bytes.
pub const EVENT_OVERHEAD_BYTES: usize = 64;
/// Longest payload of an event, in bytes.
pub const EVENT_BYTES_MAX: usize = 64 << 10;
/// Longest text of an error, in bytes; a longer one is cut.
pub const ERROR_TEXT_BYTES_MAX: usize = 4096;
/// Payloads of at least so many bytes are written from where they lie; smaller ones are copied into the buffer of
/// the other bytes, because copying them costs less than one more entry of a vectored write.
pub const BY_REFERENCE_BYTES_MIN: usize = 16 << 10;
/// Bytes that one read from a socket asks for.
pub const READ_BYTES: usize = 256 << 10;
/// Longest plaintext of one sealed record, in bytes.
pub const RECORD_BYTES_MAX: usize = 65_535 - SEAL_BYTES;
/// Bytes that sealing adds to a record.
pub const SEAL_BYTES: usize = 16;
