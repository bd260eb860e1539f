//! The messages of the connection itself.

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};
use nacre_quantity::escaped_text;

use crate::cursor::Cursor;
use crate::error::WireError;
use crate::frame::{Frame, MessageKind};
#[cfg(doc)]
use crate::limit::FEATURE_ERROR_PLACES;
use crate::limit::{ERROR_FILE_BYTES_MAX, ERROR_TEXT_BYTES_MAX, EVENT_OVERHEAD_BYTES, READ_BYTES};
use crate::outbox::Outbox;

/// Writes a message without a body.
pub fn put_bare(outbox: &mut Outbox, kind: MessageKind, id: u64) {
    let open = outbox.begin(kind, id);
    // It has no body, so it cannot be too long.
    let _ = outbox.end(open);
}

/// Writes a message with the given body. Returns the length of the body, as an error if it is too long.
pub fn put_body(outbox: &mut Outbox, kind: MessageKind, id: u64, body: &Bytes) -> Result<usize, usize> {
    let open = outbox.begin(kind, id);
    outbox.payload(body);
    outbox.end(open)
}

/// Writes an error.
pub fn put_error(outbox: &mut Outbox, id: u64, error: &StoreError) {
    let open = outbox.begin(MessageKind::ERROR, id);
    put_failure(outbox, error);
    // The text is cut, so the body cannot be too long.
    let _ = outbox.end(open);
}

/// Writes the code and the text of an error, in the form in which they appear in a body.
pub(crate) fn put_failure(outbox: &mut Outbox, error: &StoreError) {
    let mut end = error.message.len().min(ERROR_TEXT_BYTES_MAX);
    while !error.message.is_char_boundary(end) {
        end -= 1;
    }
    let text = &error.message[..end];
    outbox.u8(error.kind.code());
    outbox.u16(text.len() as u16);
    outbox.slice(text.as_bytes());
    if let (true, Some(file), Some(offset)) = (outbox.places, error.file(), error.offset())
        && file.len() <= ERROR_FILE_BYTES_MAX
    {
        outbox.u64(offset);
        outbox.u16(file.len() as u16);
        outbox.slice(file.as_bytes());
    }
}

/// Reads a message that must be an error.
pub fn get_failure(frame: &Frame) -> Result<StoreError, WireError> {
    if frame.kind != MessageKind::ERROR {
        return Err(WireError::Malformed("the reply is another message"));
    }
    get_error(&frame.body)
}

/// Reads an error. Bytes that a later version adds at the end are ignored.
fn get_error(body: &Bytes) -> Result<StoreError, WireError> {
    let mut cursor = Cursor::new(body);
    let kind = ErrorKind::from_code(cursor.u8()?);
    let len = cursor.u16()? as usize;
    if len > ERROR_TEXT_BYTES_MAX {
        return Err(WireError::Malformed("the text of an error is too long"));
    }
    // The text is printed as it is, because names in it are escaped by the server already. It must command no terminal all the same.
    let error = StoreError::new(kind, escaped_text(&String::from_utf8_lossy(&cursor.bytes(len)?)));
    if cursor.left() == 0 {
        return Ok(error);
    }
    let offset = cursor.u64()?;
    let len = cursor.u16()? as usize;
    if len > ERROR_FILE_BYTES_MAX {
        return Err(WireError::Malformed("the name of a file in an error is too long"));
    }
    Ok(error.with_place(escaped_text(&String::from_utf8_lossy(&cursor.bytes(len)?)), offset))
}

/// Writes a `CANCEL`: the caller no longer waits for the service's reply to this request, or no longer wants its
/// events.
pub fn put_cancel(outbox: &mut Outbox, service: u8, id: u64) {
    let open = outbox.begin(MessageKind::CANCEL, id);
    outbox.u8(service);
    // The body is one byte long.
    let _ = outbox.end(open);
}

/// Reads the number of the service that a `CANCEL` is for.
pub fn get_cancel(body: &Bytes) -> Result<u8, WireError> {
    let mut cursor = Cursor::new(body);
    let service = cursor.u8()?;
    cursor.end()?;
    Ok(service)
}

/// Writes a `WINDOW`: the number of bytes that were consumed, of the parts of the reply to request `id`, or of events if it is 0.
pub fn put_window(outbox: &mut Outbox, id: u64, bytes: u32) {
    let open = outbox.begin(MessageKind::WINDOW, id);
    outbox.u32(bytes);
    // The body is four bytes long.
    let _ = outbox.end(open);
}

/// Reads from a `WINDOW` how many bytes were consumed.
pub fn get_window(body: &Bytes) -> Result<usize, WireError> {
    let mut cursor = Cursor::new(body);
    let bytes = cursor.u32()? as usize;
    cursor.end()?;
    Ok(bytes)
}

/// Writes an event of subscription `id`: its number and its payload. With the flag [`GAP`](crate::frame::flag::GAP),
/// the number is that of the latest event that was dropped.
pub fn put_event(outbox: &mut Outbox, flags: u16, id: u64, sequence: u64, payload: &Bytes) {
    let open = outbox.begin_with(MessageKind::EVENT, flags, id);
    outbox.u64(sequence);
    outbox.payload(payload);
    // Payloads of events are limited to far less than a frame can hold.
    let _ = outbox.end(open);
}

/// Writes the end of a subscription, with the error that ended it, if any.
pub fn put_end(outbox: &mut Outbox, id: u64, error: Option<&StoreError>) {
    let open = outbox.begin(MessageKind::END, id);
    if let Some(error) = error {
        put_failure(outbox, error);
    }
    // The text of an error is cut.
    let _ = outbox.end(open);
}

/// Reads an event: its number and its payload.
pub fn get_event(frame: &Frame) -> Result<(u64, Bytes), WireError> {
    let mut cursor = Cursor::new(&frame.body);
    let sequence = cursor.u64()?;
    Ok((sequence, cursor.bytes(cursor.left())?))
}

/// Reads the end of a subscription: the error that ended it, if any.
pub fn get_end(body: &Bytes) -> Result<Option<StoreError>, WireError> {
    if body.is_empty() { Ok(None) } else { get_error(body).map(Some) }
}

/// Returns the share of a mailbox and of the window that an event or a part of a reply occupies, in bytes.
pub(crate) fn cost(payload: &Bytes) -> usize {
    payload.len() + EVENT_OVERHEAD_BYTES
}

/// Returns bytes that are kept for an unknown time: few of them as a copy, so that they do not keep the whole receive
/// buffer alive.
pub(crate) fn detached(bytes: Bytes) -> Bytes {
    if bytes.len() < READ_BYTES / 4 { Bytes::copy_from_slice(&bytes) } else { bytes }
}

/// The id of a session, and the secret that resumes it after its connection broke.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionKey {
    /// The id; all zero if there is no session to be resumed.
    pub id: [u8; SESSION_ID_BYTES],
    /// The secret.
    pub token: [u8; SESSION_ID_BYTES],
}

/// The bytes of a session's id, and of its token.
pub const SESSION_ID_BYTES: usize = 16;

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SessionKey({:02x?}, …)", self.id)
    }
}

impl SessionKey {
    /// The absence of a session.
    pub const NONE: SessionKey = SessionKey { id: [0; SESSION_ID_BYTES], token: [0; SESSION_ID_BYTES] };

    /// Returns whether it names no session.
    pub fn is_none(&self) -> bool {
        self.id == [0; SESSION_ID_BYTES]
    }
}

/// The contents of the messages that begin a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// From the client, the features that it has; from the server, those that both sides have. One bit each; the
    /// highest is [`FEATURE_ERROR_PLACES`], the meaning of the others is the services'.
    pub features: u64,
    /// From the client, whether it wants a session that outlives its connection; from the server, whether it found the
    /// session to be resumed.
    pub kept: bool,
    /// From the client, the session to be resumed; from the server, the session that has begun.
    pub session: SessionKey,
}

/// Writes the beginning of a session, a `BEGIN` or `BEGUN`.
pub fn put_beginning(outbox: &mut Outbox, kind: MessageKind, id: u64, beginning: &Beginning) {
    let open = outbox.begin(kind, id);
    outbox.u64(beginning.features);
    outbox.u8(beginning.kept as u8);
    outbox.slice(&beginning.session.id);
    outbox.slice(&beginning.session.token);
    // Its length is fixed.
    let _ = outbox.end(open);
}

/// Reads the beginning of a session. Bytes that a later version adds at the end are ignored.
pub fn get_beginning(body: &Bytes) -> Result<Beginning, WireError> {
    let mut cursor = Cursor::new(body);
    let features = cursor.u64()?;
    let kept = match cursor.u8()? {
        0 => false,
        1 => true,
        _ => return Err(WireError::Malformed("a flag is neither 0 nor 1")),
    };
    let mut secret = || -> Result<[u8; SESSION_ID_BYTES], WireError> {
        let bytes = cursor.bytes(SESSION_ID_BYTES)?;
        bytes.first_chunk().copied().ok_or(WireError::Truncated)
    };
    let session = SessionKey { id: secret()?, token: secret()? };
    Ok(Beginning { features, kept, session })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    fn sent(outbox: &mut Outbox, error: &StoreError) -> Frame {
        put_error(outbox, 1, error);
        let mut bytes = bytes::BytesMut::new();
        outbox.copy_to(&mut bytes);
        frame::take(&mut bytes).unwrap().unwrap()
    }

    #[test]
    fn the_place_of_an_error_is_sent_to_peers_that_understand_it() {
        let error = StoreError::new(ErrorKind::Corrupt, "damaged").with_place("segment-7", 4096);
        let plain = get_failure(&sent(&mut Outbox::default(), &error)).unwrap();
        assert_eq!((plain.file(), plain.offset()), (None, None));
        let mut outbox = Outbox::default();
        outbox.places = true;
        let placed = get_failure(&sent(&mut outbox, &error)).unwrap();
        assert_eq!((placed.file(), placed.offset()), (Some("segment-7"), Some(4096)));
        assert_eq!(placed, error);
    }

    #[test]
    fn what_a_server_says_commands_no_terminal_and_is_not_escaped_twice() {
        let said = StoreError::new(ErrorKind::Invalid, "no \\x0a\\\\ \u{1b}[2J");
        assert_eq!(
            get_failure(&sent(&mut Outbox::default(), &said)).unwrap().message,
            "no \\x0a\\\\ \\x1b[2J"
        );
    }

    #[test]
    fn an_error_of_a_newer_server_is_of_its_own_kind_and_keeps_its_text() {
        let mut frame = sent(&mut Outbox::default(), &StoreError::new(ErrorKind::Busy, "what is new"));
        let mut body = frame.body.to_vec();
        body[0] = 42;
        body.extend_from_slice(&[0; 12]);
        frame.body = body.into();
        let error = get_failure(&frame).unwrap();
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Unrecognized, "what is new"));
    }
}
