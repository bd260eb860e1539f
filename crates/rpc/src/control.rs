//! The messages of the connection itself.

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};

use crate::cursor::Cursor;
use crate::error::WireError;
use crate::frame::{Frame, Kind};
use crate::limit::ERROR_TEXT_BYTES_MAX;
use crate::outbox::Outbox;

/// Writes a message without a body.
pub fn put_bare(outbox: &mut Outbox, kind: Kind, id: u64) {
    let open = outbox.begin(kind, id);
    // It has no body that could be too long.
    let _ = outbox.end(open);
}

/// Writes a message whose body is `body`. Gives the length of the body, or its length as an error if it is too long.
pub fn put_body(outbox: &mut Outbox, kind: Kind, id: u64, body: &Bytes) -> Result<usize, usize> {
    let open = outbox.begin(kind, id);
    outbox.payload(body);
    outbox.end(open)
}

/// Writes an error.
pub fn put_error(outbox: &mut Outbox, id: u64, error: &StoreError) {
    let open = outbox.begin(Kind::ERROR, id);
    let mut end = error.message.len().min(ERROR_TEXT_BYTES_MAX);
    while !error.message.is_char_boundary(end) {
        end -= 1;
    }
    let text = &error.message[..end];
    outbox.u8(error.kind.code());
    outbox.u16(text.len() as u16);
    outbox.slice(text.as_bytes());
    // The text was cut above.
    let _ = outbox.end(open);
}

/// Reads a message that must be an error.
pub fn get_failure(frame: &Frame) -> Result<StoreError, WireError> {
    if frame.kind != Kind::ERROR {
        return Err(WireError::Malformed("the reply is another message"));
    }
    let mut cursor = Cursor::new(&frame.body);
    let Some(kind) = ErrorKind::from_code(cursor.u8()?) else {
        return Err(WireError::Malformed("unknown kind of error"));
    };
    let len = cursor.u16()? as usize;
    if len > ERROR_TEXT_BYTES_MAX {
        return Err(WireError::Malformed("the text of an error is too long"));
    }
    let error = StoreError::new(kind, String::from_utf8_lossy(&cursor.bytes(len)?));
    cursor.end()?;
    Ok(error)
}
