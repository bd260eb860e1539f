//! Frames: a header of 16 bytes, and a body whose length is in the header.
//!
//! ```text
//!  0        4         5      6          8              16
//!  +--------+---------+------+----------+---------------+----------
//!  | length | service | kind | flags    | request id    | body …
//!  | u32    | u8      | u8   | u16      | u64           | length bytes
//!  +--------+---------+------+----------+---------------+----------
//! ```
//!
//! All numbers are little-endian. A reply carries the request's id; replies come in any order.

use bytes::{Buf, Bytes, BytesMut};

use crate::WireError;
use crate::limit::{BODY_BYTES_MAX, HEADER_BYTES};

/// The kind of a message: the number of a service, and the number of the message within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageKind {
    /// The service; [`CONTROL`] stands for the connection itself.
    pub service: u8,
    /// The message.
    pub code: u8,
}

/// The service number of the connection itself.
pub const CONTROL: u8 = 0;

impl MessageKind {
    /// A check that the peer is alive, answered by [`MessageKind::PONG`]. No body.
    pub const PING: MessageKind = MessageKind::new(CONTROL, 1);
    /// The answer to [`MessageKind::PING`]. No body.
    pub const PONG: MessageKind = MessageKind::new(CONTROL, 2);
    /// The request failed. Body: code and text. Every service uses it.
    pub const ERROR: MessageKind = MessageKind::new(CONTROL, 3);
    /// The sender takes no more requests on this connection, and will close it. No body, and no id.
    pub const GOODBYE: MessageKind = MessageKind::new(CONTROL, 4);
    /// The caller no longer waits for the reply, or no longer wants the events. Body: the number of the service.
    /// Version 3.
    pub const CANCEL: MessageKind = MessageKind::new(CONTROL, 8);
    /// An event of the subscription whose id it carries. Body: the number of the event and the service's payload.
    /// Version 3.
    pub const EVENT: MessageKind = MessageKind::new(CONTROL, 9);
    /// The subscription has ended. Body: empty, or code and text of an error. Version 3.
    pub const END: MessageKind = MessageKind::new(CONTROL, 10);
    /// The number of bytes that the client has consumed, of the parts of a reply, or of events if there is no id.
    /// Version 3.
    pub const WINDOW: MessageKind = MessageKind::new(CONTROL, 11);
    /// The beginning of a session: features, and the session to be resumed, if any. Version 3.
    pub const BEGIN: MessageKind = MessageKind::new(CONTROL, 12);
    /// The session has begun: features, and the key that resumes it. Version 3.
    pub const BEGUN: MessageKind = MessageKind::new(CONTROL, 13);

    /// Creates the kind of a service's message.
    pub const fn new(service: u8, code: u8) -> MessageKind {
        MessageKind { service, code }
    }
}

/// The flags, new in version 3; earlier versions require 0.
pub mod flag {
    /// The body of a request begins with a time in milliseconds (u32), after which the reply is not needed any more.
    pub const DEADLINE: u16 = 1;
    /// A part of a reply, followed by more parts or by the end.
    pub const MORE: u16 = 2;
    /// The event was dropped; its number is that of the latest dropped event.
    pub const GAP: u16 = 4;
}

/// A frame as it was received: its body is a slice of the receive buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The message.
    pub kind: MessageKind,
    /// The flags.
    pub flags: u16,
    /// The id that the requester chose.
    pub id: u64,
    /// The bytes after the header.
    pub body: Bytes,
}

/// Returns a header without flags.
pub fn header(kind: MessageKind, id: u64, body_bytes: u32) -> [u8; HEADER_BYTES] {
    header_with(kind, 0, id, body_bytes)
}

/// Returns a header.
pub fn header_with(kind: MessageKind, flags: u16, id: u64, body_bytes: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0..4].copy_from_slice(&body_bytes.to_le_bytes());
    header[4] = kind.service;
    header[5] = kind.code;
    header[6..8].copy_from_slice(&flags.to_le_bytes());
    header[8..16].copy_from_slice(&id.to_le_bytes());
    header
}

/// Returns the length of the frame at the start of a buffer, header included, or `None` if its length field is
/// incomplete.
///
/// # Errors
///
/// [`WireError::TooLong`] if the announced body is longer than any may be.
pub fn frame_bytes(buffer: &[u8]) -> Result<Option<usize>, WireError> {
    let Some(length) = buffer.first_chunk::<4>() else { return Ok(None) };
    let body_bytes = u32::from_le_bytes(*length) as usize;
    if body_bytes > BODY_BYTES_MAX {
        return Err(WireError::TooLong { body_bytes });
    }
    Ok(Some(HEADER_BYTES + body_bytes))
}

/// Takes the first frame out of a buffer; `None` if it is not complete yet.
///
/// # Errors
///
/// [`WireError::TooLong`] if the announced body is longer than any may be.
pub fn take(buffer: &mut BytesMut) -> Result<Option<Frame>, WireError> {
    let Some(frame_bytes) = frame_bytes(buffer)? else { return Ok(None) };
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let kind = MessageKind::new(header[4], header[5]);
    let flags = u16::from_le_bytes([header[6], header[7]]);
    let mut id = [0; 8];
    id.copy_from_slice(&header[8..16]);
    if buffer.len() < frame_bytes {
        return Ok(None);
    }
    let mut body = buffer.split_to(frame_bytes);
    body.advance(HEADER_BYTES);
    Ok(Some(Frame { kind, flags, id: u64::from_le_bytes(id), body: body.freeze() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_whole() {
        let mut bytes = BytesMut::new();
        bytes.extend_from_slice(&header(MessageKind::PING, 7, 3));
        bytes.extend_from_slice(b"abcrest");
        for end in 0..HEADER_BYTES + 3 {
            let mut part = BytesMut::from(&bytes[..end]);
            assert_eq!(take(&mut part), Ok(None), "{end}");
            assert_eq!(part.len(), end);
        }
        let frame = take(&mut bytes).unwrap().unwrap();
        assert_eq!(
            frame,
            Frame { kind: MessageKind::PING, flags: 0, id: 7, body: Bytes::from_static(b"abc") }
        );
        assert_eq!(&bytes[..], b"rest");
    }

    #[test]
    fn foreign_headers_are_refused_at_once() {
        let too_long = BODY_BYTES_MAX as u32 + 1;
        let mut bytes = BytesMut::from(&too_long.to_le_bytes()[..]);
        assert_eq!(take(&mut bytes), Err(WireError::TooLong { body_bytes: BODY_BYTES_MAX + 1 }));
    }
}
