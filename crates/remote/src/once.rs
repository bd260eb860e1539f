//! The messages of writes that are applied at most once: a client that lost the reply repeats them.
//!
//! A client that finds the feature [`REPETITION`] opens a *writer* on each connection, and numbers its writes. The
//! server answers with the position of its window of writes, and repeats it with each reply, so that the client
//! always knows a position from before its next write.

use bytes::Bytes;
use nacre_object::once::{SEQUENCE_MAX, WRITER_BYTES};
use nacre_object::{ObjectId, Outcome, StoreError, Transaction, WindowPosition};
use nacre_rpc::{Cursor, Frame, Outbox, WireError};

use crate::{kind, reply, request};

/// The feature bit of repeated writes.
pub const REPETITION: u64 = 1;

/// The number of a write, and whether it is a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The number that the writer gave to the write.
    pub sequence: u64,
    /// `None` for the first attempt; else a position of the window from before it was sent.
    pub since: Option<WindowPosition>,
}

/// Writes the message that opens a writer on a connection. `epoch` is greater than on any earlier connection.
pub fn put_open(outbox: &mut Outbox, id: u64, writer: &[u8; WRITER_BYTES], epoch: u64) {
    let open = outbox.begin(kind::OPEN_WRITER, id);
    outbox.slice(writer);
    outbox.u64(epoch);
    // Its length is fixed.
    let _ = outbox.end(open);
}

/// Reads the message that opens a writer: its id, and the number of its connection.
pub fn get_open(body: &Bytes) -> Result<([u8; WRITER_BYTES], u64), WireError> {
    let mut cursor = Cursor::new(body);
    let writer = get_id(&mut cursor)?;
    let epoch = cursor.u64()?;
    cursor.end()?;
    Ok((writer, epoch))
}

/// Writes the answer to a writer that was opened.
pub fn put_opened(outbox: &mut Outbox, id: u64, window: &WindowPosition) {
    let open = outbox.begin(kind::WRITER_OPENED, id);
    put_position(outbox, window);
    // Its length is fixed.
    let _ = outbox.end(open);
}

/// Reads the answer to a writer that was opened.
pub fn get_opened(body: &Bytes) -> Result<WindowPosition, WireError> {
    let mut cursor = Cursor::new(body);
    let window = get_position(&mut cursor)?;
    cursor.end()?;
    Ok(window)
}

fn put_position(outbox: &mut Outbox, position: &WindowPosition) {
    outbox.slice(&position.window);
    outbox.u64(position.position);
}

fn get_position(cursor: &mut Cursor<'_>) -> Result<WindowPosition, WireError> {
    Ok(WindowPosition { window: get_id(cursor)?, position: cursor.u64()? })
}

fn get_id(cursor: &mut Cursor<'_>) -> Result<[u8; 16], WireError> {
    cursor.bytes(16)?.first_chunk().copied().ok_or(WireError::Truncated)
}

/// Writes a request to apply a transaction at most once. Returns the length of its body.
///
/// # Errors
///
/// Those of [`request::put_apply`].
pub fn put_apply_once(
    outbox: &mut Outbox,
    id: u64,
    attempt: &Attempt,
    object: &ObjectId,
    transaction: &Transaction,
) -> Result<usize, StoreError> {
    request::put_apply_as(outbox, kind::APPLY_ONCE, id, object, transaction, |outbox| {
        outbox.u8(attempt.since.is_some() as u8);
        outbox.u64(attempt.sequence);
        if let Some(since) = &attempt.since {
            put_position(outbox, since);
        }
    })
}

/// Reads what precedes the transaction in a request to apply it at most once. Returns the rest of the body too, which is
/// that of a request to apply it.
pub fn get_attempt(body: &Bytes) -> Result<(Attempt, Bytes), WireError> {
    let mut cursor = Cursor::new(body);
    let repeated = match cursor.u8()? {
        0 => false,
        1 => true,
        _ => return Err(WireError::Malformed("a flag is neither 0 nor 1")),
    };
    let sequence = cursor.u64()?;
    if sequence > SEQUENCE_MAX {
        return Err(WireError::Malformed("the number of a write is too great"));
    }
    let since = if repeated { Some(get_position(&mut cursor)?) } else { None };
    let rest = body.slice(body.len() - cursor.left()..);
    Ok((Attempt { sequence, since }, rest))
}

/// Writes the reply to a transaction that was to be applied at most once, with the position of the window. Returns the
/// length of its body, as an error if it is too long; nothing is written in that case.
pub fn put_outcome_once(
    outbox: &mut Outbox,
    id: u64,
    outcome: &Outcome,
    position: u64,
) -> Result<usize, usize> {
    let kind = match outcome {
        Outcome::Done(_) => kind::DONE_ONCE,
        Outcome::Refused(_) => kind::REFUSED_ONCE,
    };
    let open = outbox.begin(kind, id);
    outbox.u64(position);
    reply::put_outcome_body(outbox, outcome);
    outbox.end(open)
}

/// Reads the reply to a transaction, whether or not it was to be applied at most once. Returns the position of the
/// window too, if the reply has one.
pub fn get_outcome(frame: &Frame) -> Result<(Result<Outcome, StoreError>, Option<u64>), WireError> {
    let plain = match frame.kind {
        kind::DONE_ONCE => kind::DONE,
        kind::REFUSED_ONCE => kind::REFUSED,
        _ => return Ok((reply::get_outcome(frame)?, None)),
    };
    let mut cursor = Cursor::new(&frame.body);
    let position = cursor.u64()?;
    let body = frame.body.slice(frame.body.len() - cursor.left()..);
    let outcome = reply::get_outcome(&Frame { kind: plain, flags: frame.flags, id: frame.id, body })?;
    Ok((outcome, Some(position)))
}
