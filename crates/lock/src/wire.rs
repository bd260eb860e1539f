//! The lock service's messages as bytes. `docs/wire.md` has them.
//!
//! A decoder takes memory in proportion to what it is given. The description in a request is brought into normal form
//! within the bounds of [`Pattern::new`]; one that cannot be is an answer ([`Refusal::Pattern`]) and no violation of the
//! protocol.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_object::limit::OBJECT_ID_BYTES_MAX;
use nacre_rpc::{Cursor, MessageKind, Outbox, WireError};

use crate::message::{Call, FULL, FileName, LockSpec, Refusal, Reply, Token};
use crate::table::{Acquired, Mode, TableError};
use crate::{DESCRIPTION_BYTES_MAX, Description, ITEMS_MAX, Pattern, PatternError, Region};

/// The number of the service.
pub const LOCK: u8 = 4;
/// A request for the number of a new session. No body.
pub const NUMBER: MessageKind = MessageKind::new(LOCK, 1);
/// The reply to [`NUMBER`]. Body: the session, and a [`ServerSlot`].
pub const NUMBERED: MessageKind = MessageKind::new(LOCK, 2);
/// Binds a session to the connection, and subscribes to its late replies. Body: an [`Attach`].
pub const ATTACH: MessageKind = MessageKind::new(LOCK, 3);
/// The reply to [`ATTACH`]. Body: a [`ServerSlot`].
pub const ATTACHED: MessageKind = MessageKind::new(LOCK, 4);
/// [`Call::Open`]. The bodies of calls begin with the number of the call.
pub const OPEN: MessageKind = MessageKind::new(LOCK, 5);
/// [`Call::Renew`].
pub const RENEW: MessageKind = MessageKind::new(LOCK, 6);
/// [`Call::Close`].
pub const CLOSE: MessageKind = MessageKind::new(LOCK, 7);
/// [`Call::Acquire`].
pub const ACQUIRE: MessageKind = MessageKind::new(LOCK, 8);
/// [`Call::ReleaseFrom`].
pub const RELEASE_FROM: MessageKind = MessageKind::new(LOCK, 9);
/// [`Call::Release`].
pub const RELEASE: MessageKind = MessageKind::new(LOCK, 10);
/// [`Call::Assert`].
pub const ASSERT: MessageKind = MessageKind::new(LOCK, 11);
/// [`Call::Asserted`].
pub const ASSERTED: MessageKind = MessageKind::new(LOCK, 12);
/// [`Reply::Open`].
pub const OPENED: MessageKind = MessageKind::new(LOCK, 20);
/// [`Reply::Acquired`].
pub const PROGRESS: MessageKind = MessageKind::new(LOCK, 21);
/// [`Reply::Done`].
pub const DONE: MessageKind = MessageKind::new(LOCK, 22);
/// [`Reply::Refused`].
pub const REFUSED: MessageKind = MessageKind::new(LOCK, 23);
/// The reply to the call follows as an event. No body.
pub const WAITING: MessageKind = MessageKind::new(LOCK, 24);

/// The longest text of a refused pattern, in bytes.
const REASON_BYTES_MAX: usize = 1024;

mod flag {
    pub const UNTIL: u8 = 1;
    pub const SPEC: u8 = 2;

    pub const LAST: u8 = 1;
    pub const NEXT: u8 = 2;
}

/// A server's place among the lock servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSlot {
    /// The number of the server, counted from 0.
    pub server: u32,
    /// The number of servers.
    pub servers: u32,
    /// The number of consecutive bytes of a file that are one server's.
    pub stripe_bytes: u64,
}

/// The binding of a session to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The session.
    pub session: u64,
    /// The number of the connection, which grows with each of the session. What comes over an earlier connection is
    /// refused from then on, so that no late call follows its own repetition.
    pub connection: u64,
}

/// Writes a place.
pub fn put_slot(out: &mut Vec<u8>, slot: &ServerSlot) {
    out.extend_from_slice(&slot.server.to_le_bytes());
    out.extend_from_slice(&slot.servers.to_le_bytes());
    out.extend_from_slice(&slot.stripe_bytes.to_le_bytes());
}

fn get_slot_at(cursor: &mut Cursor<'_>) -> Result<ServerSlot, WireError> {
    Ok(ServerSlot { server: cursor.u32()?, servers: cursor.u32()?, stripe_bytes: cursor.u64()? })
}

/// Reads the body of an [`ATTACHED`].
///
/// # Errors
/// If the body is malformed.
pub fn get_slot(body: &Bytes) -> Result<ServerSlot, WireError> {
    let mut cursor = Cursor::new(body);
    let slot = get_slot_at(&mut cursor)?;
    cursor.end()?;
    Ok(slot)
}

/// Reads the body of a [`NUMBERED`]: the session and the server's place.
///
/// # Errors
/// If the body is malformed.
pub fn get_numbered(body: &Bytes) -> Result<(u64, ServerSlot), WireError> {
    let mut cursor = Cursor::new(body);
    let session = cursor.u64()?;
    let slot = get_slot_at(&mut cursor)?;
    cursor.end()?;
    Ok((session, slot))
}

/// Writes an [`ATTACH`].
pub fn put_attach(outbox: &mut Outbox, id: u64, attach: &Attach) {
    let open = outbox.begin(ATTACH, id);
    outbox.u64(attach.session);
    outbox.u64(attach.connection);
    // The body is 16 bytes long.
    let _ = outbox.end(open);
}

/// Reads the body of an [`ATTACH`].
///
/// # Errors
/// If the body is malformed, or the session's number is 0.
pub fn get_attach(body: &Bytes) -> Result<Attach, WireError> {
    let mut cursor = Cursor::new(body);
    let attach = Attach { session: cursor.u64()?, connection: cursor.u64()? };
    cursor.end()?;
    match attach.session {
        0 => Err(WireError::Malformed("session 0 does not exist")),
        _ => Ok(attach),
    }
}

/// Returns the bytes in which a pattern is described to a server: those of the description that it was made from, if
/// they are given, else its regions.
///
/// # Errors
/// The description is too long, or there are more regions than a description may list.
pub fn described(pattern: &Pattern, description: Option<&Bytes>) -> Result<Bytes, PatternError> {
    let bytes = match description {
        Some(bytes) => bytes.clone(),
        None => {
            let regions: Vec<Region> = pattern.regions().take(ITEMS_MAX + 1).collect();
            let description = match &regions[..] {
                [region] => Description::Contiguous(*region),
                regions if regions.len() > ITEMS_MAX => return Err(PatternError::TooManyItems),
                _ => Description::List(regions),
            };
            description.encode().into()
        }
    };
    match bytes.len() {
        length if length > DESCRIPTION_BYTES_MAX => Err(PatternError::TooLong { bytes: length }),
        _ => Ok(bytes),
    }
}

/// Writes a call. `description` is that of the pattern in it, if it has one.
///
/// # Errors
/// The length of the body in bytes if it is too long; nothing is written then.
pub fn put_call(
    outbox: &mut Outbox,
    id: u64,
    number: u64,
    call: &Call,
    description: &Bytes,
) -> Result<(), usize> {
    let kind = match call {
        Call::Open => OPEN,
        Call::Renew => RENEW,
        Call::Close => CLOSE,
        Call::Acquire { .. } => ACQUIRE,
        Call::ReleaseFrom { .. } => RELEASE_FROM,
        Call::Release { .. } => RELEASE,
        Call::Assert { .. } => ASSERT,
        Call::Asserted => ASSERTED,
    };
    let open = outbox.begin(kind, id);
    outbox.u64(number);
    match call {
        Call::Open | Call::Renew | Call::Close | Call::Asserted => {}
        Call::Acquire { request, spec, until } => {
            outbox.u64(*request);
            let has = |is: bool, flag: u8| if is { flag } else { 0 };
            outbox.u8(has(until.is_some(), flag::UNTIL) | has(spec.is_some(), flag::SPEC));
            if let Some(until) = until {
                outbox.u64(*until);
            }
            if let Some(spec) = spec {
                put_spec(outbox, spec, description);
            }
        }
        Call::ReleaseFrom { request, offset } => {
            outbox.u64(*request);
            outbox.u64(*offset);
        }
        Call::Release { request } => outbox.u64(*request),
        Call::Assert { request, spec, below } => {
            outbox.u64(*request);
            outbox.u64(*below);
            put_spec(outbox, spec, description);
        }
    }
    outbox.end(open).map(|_| ())
}

fn put_spec(outbox: &mut Outbox, spec: &LockSpec, description: &Bytes) {
    outbox.u64(spec.operation);
    outbox.u8(mode_code(spec.mode));
    // Names that are longer are refused before anything is asked for.
    outbox.u8(spec.file.len() as u8);
    outbox.slice(spec.file.as_bytes());
    outbox.payload(description);
}

/// Returns the code of a mode.
pub fn mode_code(mode: Mode) -> u8 {
    match mode {
        Mode::Shared => 1,
        Mode::Exclusive => 2,
    }
}

/// Reads a call: its number, and the call, or the refusal that answers it because its pattern has no normal form.
///
/// # Errors
/// If the body is malformed.
pub fn get_call(kind: MessageKind, body: &Bytes) -> Result<(u64, Result<Call, Refusal>), WireError> {
    let mut cursor = Cursor::new(body);
    let number = cursor.u64()?;
    let call = match kind {
        OPEN => Call::Open,
        RENEW => Call::Renew,
        CLOSE => Call::Close,
        ASSERTED => Call::Asserted,
        ACQUIRE => {
            let request = cursor.u64()?;
            let flags = cursor.u8()?;
            if flags & !(flag::UNTIL | flag::SPEC) != 0 {
                return Err(WireError::Malformed("an unknown flag of a lock request"));
            }
            let until = if flags & flag::UNTIL != 0 { Some(cursor.u64()?) } else { None };
            let spec = match flags & flag::SPEC != 0 {
                true => match get_spec(&mut cursor)? {
                    Ok(spec) => Some(spec),
                    Err(error) => return Ok((number, Err(error.into()))),
                },
                false => None,
            };
            Call::Acquire { request, spec, until }
        }
        RELEASE_FROM => Call::ReleaseFrom { request: cursor.u64()?, offset: cursor.u64()? },
        RELEASE => Call::Release { request: cursor.u64()? },
        ASSERT => {
            let (request, below) = (cursor.u64()?, cursor.u64()?);
            match get_spec(&mut cursor)? {
                Ok(spec) => Call::Assert { request, spec, below },
                Err(error) => return Ok((number, Err(error.into()))),
            }
        }
        _ => return Err(WireError::Malformed("no call to a lock server")),
    };
    cursor.end()?;
    Ok((number, Ok(call)))
}

/// Reads the contents of a request, to the end of the body.
fn get_spec(cursor: &mut Cursor<'_>) -> Result<Result<LockSpec, PatternError>, WireError> {
    let operation = cursor.u64()?;
    let mode = match cursor.u8()? {
        1 => Mode::Shared,
        2 => Mode::Exclusive,
        _ => return Err(WireError::Malformed("an unknown mode of a lock")),
    };
    let length = cursor.u8()? as usize;
    let file = file_name(&cursor.bytes(length)?).map_err(WireError::Malformed)?;
    let description = cursor.bytes(cursor.left())?;
    let pattern = Description::decode(&description).and_then(|description| Pattern::new(&description));
    Ok(pattern.map(|pattern| LockSpec { file, operation, mode, pattern }))
}

/// Returns bytes as the name of a file.
///
/// # Errors
/// The reason why they are none.
pub fn file_name(bytes: &[u8]) -> Result<FileName, &'static str> {
    if bytes.is_empty() || bytes.len() > OBJECT_ID_BYTES_MAX {
        return Err("the name of a file that is locked has 1 to 255 bytes");
    }
    std::str::from_utf8(bytes).map(Arc::from).map_err(|_| "the name of a file that is locked is UTF-8")
}

/// Returns a reply's kind and body.
pub fn reply(reply: &Reply) -> (MessageKind, Vec<u8>) {
    let mut out = Vec::with_capacity(40);
    let kind = match reply {
        Reply::Open { epoch, lease } => {
            out.extend_from_slice(&epoch.to_le_bytes());
            out.extend_from_slice(&(lease.as_millis() as u64).to_le_bytes());
            OPENED
        }
        Reply::Acquired { progress: Acquired { last, next }, token } => {
            let has = |offset: &Option<u64>, flag: u8| if offset.is_some() { flag } else { 0 };
            out.push(has(last, flag::LAST) | has(next, flag::NEXT));
            for number in [last.unwrap_or(0), next.unwrap_or(0), token.epoch, token.number] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            PROGRESS
        }
        Reply::Done => DONE,
        Reply::Refused(refusal) => {
            put_refusal(&mut out, refusal);
            REFUSED
        }
    };
    (kind, out)
}

fn put_refusal(out: &mut Vec<u8>, refusal: &Refusal) {
    let number = |out: &mut Vec<u8>, code: u8, number: u64| {
        out.push(code);
        out.extend_from_slice(&number.to_le_bytes());
    };
    match refusal {
        Refusal::UnknownSession { epoch } => number(out, 1, *epoch),
        Refusal::Lapsed => out.push(2),
        Refusal::UnknownRequest => out.push(3),
        Refusal::Table(error) => {
            out.push(4);
            match error {
                TableError::Unknown => number(out, 1, 0),
                TableError::Exists => number(out, 2, 0),
                TableError::Waits => number(out, 3, 0),
                TableError::MixedModes => number(out, 4, 0),
                TableError::TooManyRegions(regions) => number(out, 5, *regions),
                TableError::TooIrregular => number(out, 6, 0),
                TableError::Held(byte) => number(out, 7, *byte),
            }
        }
        Refusal::Pattern(error) => {
            out.push(5);
            let text = error.to_string();
            let mut end = text.len().min(REASON_BYTES_MAX);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            out.extend_from_slice(&text.as_bytes()[..end]);
        }
        Refusal::Full(resource) => {
            out.push(6);
            out.push(FULL.iter().position(|known| known == resource).unwrap_or(FULL.len()) as u8);
        }
        Refusal::GraceOver => out.push(7),
        Refusal::Released => out.push(8),
    }
}

/// Reads a reply.
///
/// # Errors
/// If the body is malformed.
pub fn get_reply(kind: MessageKind, body: &Bytes) -> Result<Reply, WireError> {
    let mut cursor = Cursor::new(body);
    let reply = match kind {
        OPENED => Reply::Open { epoch: cursor.u64()?, lease: Duration::from_millis(cursor.u64()?) },
        PROGRESS => {
            let flags = cursor.u8()?;
            let (last, next) = (cursor.u64()?, cursor.u64()?);
            if flags & !(flag::LAST | flag::NEXT) != 0 {
                return Err(WireError::Malformed("an unknown flag of progress"));
            }
            let given = |flag: u8, offset: u64| (flags & flag != 0).then_some(offset);
            let progress = Acquired { last: given(flag::LAST, last), next: given(flag::NEXT, next) };
            Reply::Acquired { progress, token: Token { epoch: cursor.u64()?, number: cursor.u64()? } }
        }
        DONE => Reply::Done,
        REFUSED => Reply::Refused(get_refusal(&mut cursor)?),
        _ => return Err(WireError::Malformed("no reply of a lock server")),
    };
    cursor.end()?;
    Ok(reply)
}

fn get_refusal(cursor: &mut Cursor<'_>) -> Result<Refusal, WireError> {
    Ok(match cursor.u8()? {
        1 => Refusal::UnknownSession { epoch: cursor.u64()? },
        2 => Refusal::Lapsed,
        3 => Refusal::UnknownRequest,
        4 => {
            let (code, number) = (cursor.u8()?, cursor.u64()?);
            Refusal::Table(match code {
                1 => TableError::Unknown,
                2 => TableError::Exists,
                3 => TableError::Waits,
                4 => TableError::MixedModes,
                5 => TableError::TooManyRegions(number),
                6 => TableError::TooIrregular,
                7 => TableError::Held(number),
                _ => return Err(WireError::Malformed("an unknown refusal of a lock table")),
            })
        }
        5 => {
            let left = cursor.left();
            if left > REASON_BYTES_MAX {
                return Err(WireError::Malformed("the text of a refusal is too long"));
            }
            let text = cursor.bytes(left)?;
            Refusal::Pattern(PatternError::Refused(String::from_utf8_lossy(&text).into_owned()))
        }
        6 => Refusal::Full(FULL.get(cursor.u8()? as usize).unwrap_or(&"room")),
        7 => Refusal::GraceOver,
        8 => Refusal::Released,
        _ => return Err(WireError::Malformed("an unknown refusal")),
    })
}

/// Returns the payload of the event by which a late reply is sent: the number of the call, the code of the reply's kind
/// and the reply's body.
pub fn event(call: u64, answer: &Reply) -> Bytes {
    let (kind, body) = reply(answer);
    let mut out = Vec::with_capacity(9 + body.len());
    out.extend_from_slice(&call.to_le_bytes());
    out.push(kind.code);
    out.extend_from_slice(&body);
    out.into()
}

/// Reads such an event.
///
/// # Errors
/// If the payload is malformed.
pub fn get_event(payload: &Bytes) -> Result<(u64, Reply), WireError> {
    let mut cursor = Cursor::new(payload);
    let call = cursor.u64()?;
    let kind = MessageKind::new(LOCK, cursor.u8()?);
    let body = cursor.bytes(cursor.left())?;
    Ok((call, get_reply(kind, &body)?))
}
