//! Frames: a header of 16 bytes, and a body whose length it gives.
//!
//! ```text
//!  0        4         5      6          8              16
//!  +--------+---------+------+----------+---------------+----------
//!  | length | service | kind | reserved | request id    | body …
//!  | u32    | u8      | u8   | u16 = 0  | u64           | length bytes
//!  +--------+---------+------+----------+---------------+----------
//! ```
//!
//! All numbers are little-endian. A reply carries the request's id; replies come in any order.

use bytes::{Buf, Bytes, BytesMut};

use crate::WireError;
use crate::limit::{BODY_BYTES_MAX, HEADER_BYTES};

macro_rules! kinds {
    ($(#[$doc:meta] $name:ident = ($service:ident, $code:literal);)*) => {
        /// Every message of the protocol: the one table of services and kinds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $(#[$doc] $name,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The service that the message belongs to.
            pub fn service(self) -> Service {
                match self {
                    $(Kind::$name => Service::$service,)*
                }
            }

            /// The number of the kind within its service.
            pub fn code(self) -> u8 {
                match self {
                    $(Kind::$name => $code,)*
                }
            }

            /// The kind that a service and a number stand for.
            pub fn from_codes(service: u8, code: u8) -> Option<Kind> {
                match (service, code) {
                    $((service, $code) if service == Service::$service.code() => Some(Kind::$name),)*
                    _ => None,
                }
            }
        }
    };
}

/// Who a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// The connection itself.
    Control = 0,
    /// The object store.
    Object = 1,
    /// The administration of the server.
    Admin = 2,
}

impl Service {
    /// The service's number on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }
}

kinds! {
    /// Are you there? No body.
    Ping = (Control, 1);
    /// I am here. No body.
    Pong = (Control, 2);
    /// The request failed. Body: code and text. Any service answers with it.
    Error = (Control, 3);
    /// The sender takes no more requests on this connection, and will close it. No body, and no id.
    Goodbye = (Control, 4);
    /// This is the list of members that I have; or, without a body, which one do you have?
    Join = (Control, 5);
    /// It is the same. Body: the sender's place in it.
    Joined = (Control, 6);
    /// It is not. Body: the list that the sender has, and its place in it.
    Members = (Control, 7);
    /// A transaction on one object.
    Apply = (Object, 1);
    /// The transaction was applied.
    Done = (Object, 2);
    /// A guard of the transaction did not hold.
    Refused = (Object, 3);
    /// Which objects are there?
    List = (Object, 4);
    /// A page of objects.
    Listed = (Object, 5);
    /// A question or an order for the server as a whole.
    Call = (Admin, 1);
    /// How far the call is. Any number of them may precede the result.
    Progress = (Admin, 2);
    /// What the call gave.
    Result = (Admin, 3);
}

/// A frame as it was received: its body is a slice of the receive buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The message.
    pub kind: Kind,
    /// The id that the requester gave it.
    pub id: u64,
    /// The bytes after the header.
    pub body: Bytes,
}

/// Writes a header.
pub fn header(kind: Kind, id: u64, body_bytes: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0..4].copy_from_slice(&body_bytes.to_le_bytes());
    header[4] = kind.service().code();
    header[5] = kind.code();
    header[8..16].copy_from_slice(&id.to_le_bytes());
    header
}

/// The length of the frame that begins a buffer, header included, or `None` if its header is not there yet.
pub fn frame_bytes(buffer: &[u8]) -> Result<Option<usize>, WireError> {
    let Some(length) = buffer.first_chunk::<4>() else { return Ok(None) };
    let body_bytes = u32::from_le_bytes(*length) as usize;
    if body_bytes > BODY_BYTES_MAX {
        return Err(WireError::TooLong { body_bytes });
    }
    Ok(Some(HEADER_BYTES + body_bytes))
}

/// Takes the first frame out of a buffer, or `None` if it is not there as a whole.
pub fn take(buffer: &mut BytesMut) -> Result<Option<Frame>, WireError> {
    let Some(frame_bytes) = frame_bytes(buffer)? else { return Ok(None) };
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let (service, code) = (header[4], header[5]);
    let Some(kind) = Kind::from_codes(service, code) else {
        return Err(WireError::UnknownMessage { service, kind: code });
    };
    if header[6] != 0 || header[7] != 0 {
        return Err(WireError::Malformed("the reserved bytes of a header are not zero"));
    }
    let mut id = [0; 8];
    id.copy_from_slice(&header[8..16]);
    if buffer.len() < frame_bytes {
        return Ok(None);
    }
    let mut body = buffer.split_to(frame_bytes);
    body.advance(HEADER_BYTES);
    Ok(Some(Frame { kind, id: u64::from_le_bytes(id), body: body.freeze() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_their_own_inverse() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_codes(kind.service().code(), kind.code()), Some(kind));
        }
        assert_eq!(Kind::from_codes(0, 0), None);
        assert_eq!(Kind::from_codes(3, 1), None);
    }

    #[test]
    fn frames_are_taken_whole() {
        let mut bytes = BytesMut::new();
        bytes.extend_from_slice(&header(Kind::Ping, 7, 3));
        bytes.extend_from_slice(b"abcrest");
        for end in 0..HEADER_BYTES + 3 {
            let mut part = BytesMut::from(&bytes[..end]);
            assert_eq!(take(&mut part), Ok(None), "{end}");
            assert_eq!(part.len(), end);
        }
        let frame = take(&mut bytes).unwrap().unwrap();
        assert_eq!(frame, Frame { kind: Kind::Ping, id: 7, body: Bytes::from_static(b"abc") });
        assert_eq!(&bytes[..], b"rest");
    }

    #[test]
    fn foreign_headers_are_refused_at_once() {
        let too_long = BODY_BYTES_MAX as u32 + 1;
        let mut bytes = BytesMut::from(&too_long.to_le_bytes()[..]);
        assert_eq!(take(&mut bytes), Err(WireError::TooLong { body_bytes: BODY_BYTES_MAX + 1 }));
        let mut foreign = header(Kind::Ping, 1, 0);
        foreign[4] = 9;
        assert_eq!(
            take(&mut BytesMut::from(&foreign[..])),
            Err(WireError::UnknownMessage { service: 9, kind: 1 })
        );
        let mut reserved = header(Kind::Ping, 1, 0);
        reserved[7] = 1;
        assert!(take(&mut BytesMut::from(&reserved[..])).is_err());
    }
}
