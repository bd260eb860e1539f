//! The messages of the service, and the events of its subscriptions.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use nacre_object::limit::{
    ACKNOWLEDGEMENT_BYTES_MAX, ACKNOWLEDGEMENTS_BYTES_MAX, NOTIFICATION_BYTES_MAX, WATCHERS_MAX,
};
use nacre_object::watch::{Acknowledged, Cause, Gap, Notified};
use nacre_object::{ObjectId, StoreError};
use nacre_rpc::{Cursor, MessageKind, Outbox, WireError};

/// The number of the service.
pub const WATCH_SERVICE: u8 = 6;
/// A request to watch an object, which becomes a subscription.
pub const WATCH: MessageKind = MessageKind::new(WATCH_SERVICE, 1);
/// The watch has begun.
pub const WATCHED: MessageKind = MessageKind::new(WATCH_SERVICE, 2);
/// A notification for the watchers of an object.
pub const NOTIFY: MessageKind = MessageKind::new(WATCH_SERVICE, 3);
/// The outcome of a notification.
pub const NOTIFIED: MessageKind = MessageKind::new(WATCH_SERVICE, 4);
/// The acknowledgement of a notification by a watcher.
pub const ACKNOWLEDGE: MessageKind = MessageKind::new(WATCH_SERVICE, 5);
/// The reply to an acknowledgement, and to [`TAKEN`].
pub const NOTED: MessageKind = MessageKind::new(WATCH_SERVICE, 6);
/// The position in the events of a connection up to which the client has taken them.
pub const TAKEN: MessageKind = MessageKind::new(WATCH_SERVICE, 7);

const CHANGED: u8 = 1;
const NOTIFICATION: u8 = 2;
const GAP: u8 = 3;

const CAUSES: [Cause; 3] = [Cause::Slow, Cause::Broken, Cause::Unannounced];
/// The number that means "unknown".
const UNKNOWN: u64 = u64::MAX;

/// A request to watch an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watching {
    pub(super) watcher: u64,
    pub(super) object: ObjectId,
}

/// The beginning of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Began {
    /// The object's version.
    pub(super) version: u64,
    /// The number of the connection, which distinguishes it from later ones.
    pub(super) line: u64,
}

/// A notification to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notifying {
    pub(super) object: ObjectId,
    pub(super) timeout: Duration,
    pub(super) payload: Bytes,
}

/// The acknowledgement of a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acknowledging {
    pub(super) watcher: u64,
    pub(super) notification: u64,
    pub(super) reply: Bytes,
}

/// A position up to which events were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) line: u64,
    pub(super) position: u64,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    Changed { version: u64 },
    Notified { id: u64, payload: Bytes },
    Gap(Gap),
}

fn end(outbox: &mut Outbox, open: nacre_rpc::Open) -> Result<(), StoreError> {
    outbox.end(open).map(drop).map_err(|body_bytes| WireError::TooLong { body_bytes }.into())
}

fn get_object(bytes: &Bytes) -> Result<ObjectId, StoreError> {
    // A copy: a watch lasts, and must not keep the buffer in which it was received.
    ObjectId::new(Bytes::copy_from_slice(bytes))
}

pub(super) fn put_watch(outbox: &mut Outbox, id: u64, watching: &Watching) -> Result<(), StoreError> {
    let open = outbox.begin(WATCH, id);
    outbox.u64(watching.watcher);
    outbox.slice(watching.object.as_bytes());
    end(outbox, open)
}

pub(super) fn get_watch(body: &Bytes) -> Result<Watching, StoreError> {
    let mut cursor = Cursor::new(body);
    let watcher = cursor.u64()?;
    let object = get_object(&cursor.bytes(cursor.left())?)?;
    Ok(Watching { watcher, object })
}

pub(super) fn put_began(outbox: &mut Outbox, id: u64, began: &Began) -> Result<(), StoreError> {
    let open = outbox.begin(WATCHED, id);
    outbox.u64(began.version);
    outbox.u64(began.line);
    end(outbox, open)
}

pub(super) fn get_began(body: &Bytes) -> Result<Began, WireError> {
    let mut cursor = Cursor::new(body);
    let began = Began { version: cursor.u64()?, line: cursor.u64()? };
    cursor.end()?;
    Ok(began)
}

pub(super) fn put_notify(outbox: &mut Outbox, id: u64, notifying: &Notifying) -> Result<(), StoreError> {
    let object = notifying.object.as_bytes();
    let open = outbox.begin(NOTIFY, id);
    outbox.u32(u32::try_from(notifying.timeout.as_millis()).unwrap_or(u32::MAX));
    outbox.u8(object.len() as u8);
    outbox.slice(object);
    outbox.payload(&notifying.payload);
    end(outbox, open)
}

pub(super) fn get_notify(body: &Bytes) -> Result<Notifying, StoreError> {
    let mut cursor = Cursor::new(body);
    let timeout = Duration::from_millis(cursor.u32()?.into());
    let object_bytes = cursor.u8()?;
    let object = get_object(&cursor.bytes(object_bytes.into())?)?;
    let payload = detached(cursor.bytes(cursor.left())?);
    Ok(Notifying { object, timeout, payload })
}

/// Returns bytes that keep no larger buffer.
fn detached(bytes: Bytes) -> Bytes {
    Bytes::copy_from_slice(&bytes)
}

pub(super) fn put_notified(outbox: &mut Outbox, id: u64, notified: &Notified) -> Result<(), StoreError> {
    let Notified { id: notification, acknowledged, missed, replies_omitted } = notified;
    let open = outbox.begin(NOTIFIED, id);
    outbox.u64(*notification);
    outbox.u64(*replies_omitted);
    outbox.u32(acknowledged.len() as u32);
    outbox.u32(missed.len() as u32);
    for Acknowledged { watcher, reply } in acknowledged {
        outbox.u64(*watcher);
        outbox.u16(reply.len() as u16);
        outbox.slice(reply);
    }
    missed.iter().for_each(|watcher| outbox.u64(*watcher));
    end(outbox, open)
}

pub(super) fn get_notified(body: &Bytes) -> Result<Notified, WireError> {
    let mut cursor = Cursor::new(body);
    let (id, replies_omitted) = (cursor.u64()?, cursor.u64()?);
    let (count, missed) = (cursor.u32()? as usize, cursor.u32()? as usize);
    let count = cursor.count(count, WATCHERS_MAX, 10)?;
    let mut acknowledged = Vec::with_capacity(count);
    let mut reply_bytes = 0;
    for _ in 0..count {
        let (watcher, bytes) = (cursor.u64()?, usize::from(cursor.u16()?));
        reply_bytes += bytes;
        if bytes > ACKNOWLEDGEMENT_BYTES_MAX || reply_bytes > ACKNOWLEDGEMENTS_BYTES_MAX {
            return Err(WireError::Malformed("replies to a notification are too long"));
        }
        acknowledged.push(Acknowledged { watcher, reply: detached(cursor.bytes(bytes)?) });
    }
    let missed = cursor.count(missed, WATCHERS_MAX, 8)?;
    let missed = (0..missed).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
    cursor.end()?;
    Ok(Notified { id, acknowledged, missed, replies_omitted })
}

pub(super) fn put_acknowledge(
    outbox: &mut Outbox,
    id: u64,
    acknowledging: &Acknowledging,
) -> Result<(), StoreError> {
    let open = outbox.begin(ACKNOWLEDGE, id);
    outbox.u64(acknowledging.watcher);
    outbox.u64(acknowledging.notification);
    outbox.slice(&acknowledging.reply);
    end(outbox, open)
}

pub(super) fn get_acknowledge(body: &Bytes) -> Result<Acknowledging, StoreError> {
    let mut cursor = Cursor::new(body);
    let (watcher, notification) = (cursor.u64()?, cursor.u64()?);
    let reply = detached(cursor.bytes(cursor.left())?);
    nacre_object::watch::check_reply(&reply)?;
    Ok(Acknowledging { watcher, notification, reply })
}

pub(super) fn put_taken(outbox: &mut Outbox, id: u64, taken: &Taken) -> Result<(), StoreError> {
    let open = outbox.begin(TAKEN, id);
    outbox.u64(taken.line);
    outbox.u64(taken.position);
    end(outbox, open)
}

pub(super) fn get_taken(body: &Bytes) -> Result<Taken, WireError> {
    let mut cursor = Cursor::new(body);
    let taken = Taken { line: cursor.u64()?, position: cursor.u64()? };
    cursor.end()?;
    Ok(taken)
}

/// Returns the payload of an event, which ends at a position of the connection's events.
pub(super) fn event(report: &Report, position: u64) -> Bytes {
    let payload_bytes = if let Report::Notified { payload, .. } = report { payload.len() } else { 0 };
    let mut body = BytesMut::with_capacity(34 + payload_bytes);
    let kind = match report {
        Report::Changed { .. } => CHANGED,
        Report::Notified { .. } => NOTIFICATION,
        Report::Gap(_) => GAP,
    };
    body.put_u8(kind);
    body.put_u64_le(position);
    match report {
        Report::Changed { version } => body.put_u64_le(*version),
        Report::Notified { id, payload } => {
            body.put_u64_le(*id);
            body.extend_from_slice(payload);
        }
        Report::Gap(Gap { version, changes, notifications, cause }) => {
            body.put_u8(CAUSES.iter().position(|known| known == cause).unwrap_or_default() as u8);
            body.put_u64_le(*version);
            body.put_u64_le(changes.unwrap_or(UNKNOWN));
            body.put_u64_le(notifications.unwrap_or(UNKNOWN));
        }
    }
    body.freeze()
}

/// Reads the payload of an event, and its position.
pub(super) fn get_event(body: &Bytes) -> Result<(Report, u64), WireError> {
    let mut cursor = Cursor::new(body);
    let (kind, position) = (cursor.u8()?, cursor.u64()?);
    let report = match kind {
        CHANGED => Report::Changed { version: cursor.u64()? },
        NOTIFICATION => {
            let id = cursor.u64()?;
            if cursor.left() > NOTIFICATION_BYTES_MAX {
                return Err(WireError::Malformed("a notification is too long"));
            }
            Report::Notified { id, payload: detached(cursor.bytes(cursor.left())?) }
        }
        GAP => {
            let cause = CAUSES.get(usize::from(cursor.u8()?)).copied();
            let cause = cause.ok_or(WireError::Malformed("a gap of an unknown cause"))?;
            let version = cursor.u64()?;
            let known = |number: u64| (number != UNKNOWN).then_some(number);
            let (changes, notifications) = (known(cursor.u64()?), known(cursor.u64()?));
            Report::Gap(Gap { version, changes, notifications, cause })
        }
        _ => return Err(WireError::Malformed("an unknown event of a watch")),
    };
    cursor.end()?;
    Ok((report, position))
}

/// Decodes bytes as each kind of message, and compares with the message that it makes when it is encoded again.
pub fn fuzz(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    let again = |write: &dyn Fn(&mut Outbox) -> Result<(), StoreError>| {
        let (mut outbox, mut written) = (Outbox::default(), BytesMut::new());
        // What was decoded is no longer than what it was decoded from.
        write(&mut outbox).expect("a message that fits");
        outbox.copy_to(&mut written);
        nacre_rpc::frame::take(&mut written).expect("a frame").expect("a whole frame").body
    };
    if let Ok(watching) = get_watch(&body) {
        assert_eq!(again(&|outbox| put_watch(outbox, 1, &watching)), body);
    }
    if let Ok(began) = get_began(&body) {
        assert_eq!(again(&|outbox| put_began(outbox, 1, &began)), body);
    }
    if let Ok(notifying) = get_notify(&body) {
        assert_eq!(again(&|outbox| put_notify(outbox, 1, &notifying)), body);
    }
    if let Ok(notified) = get_notified(&body) {
        assert_eq!(again(&|outbox| put_notified(outbox, 1, &notified)), body);
    }
    if let Ok(acknowledging) = get_acknowledge(&body) {
        assert_eq!(again(&|outbox| put_acknowledge(outbox, 1, &acknowledging)), body);
    }
    if let Ok(taken) = get_taken(&body) {
        assert_eq!(again(&|outbox| put_taken(outbox, 1, &taken)), body);
    }
    if let Ok((report, position)) = get_event(&body) {
        assert_eq!(event(&report, position), body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Bytes {
        let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// `docs/wire.md` describes the bytes.
    #[test]
    fn messages_have_the_bytes_of_the_documentation() {
        let body = |write: &dyn Fn(&mut Outbox) -> Result<(), StoreError>| {
            let (mut outbox, mut written) = (Outbox::default(), BytesMut::new());
            write(&mut outbox).unwrap();
            outbox.copy_to(&mut written);
            nacre_rpc::frame::take(&mut written).unwrap().unwrap().body
        };
        let object = ObjectId::try_from("a").unwrap();
        let watching = Watching { watcher: 2, object: object.clone() };
        assert_eq!(body(&|outbox| put_watch(outbox, 1, &watching)), bytes("0200000000000000 61"));
        let timeout = Duration::from_secs(5);
        let notifying = Notifying { object, timeout, payload: Bytes::from_static(b"hi") };
        assert_eq!(body(&|outbox| put_notify(outbox, 1, &notifying)), bytes("88130000 01 61 6869"));
        let reply = Bytes::from_static(b"ok");
        let acknowledged = vec![Acknowledged { watcher: 2, reply }];
        let notified = Notified { id: 7, acknowledged, missed: vec![3], replies_omitted: 0 };
        let expected = "0700000000000000 0000000000000000 01000000 01000000 0200000000000000 0200 6f6b \
                        0300000000000000";
        assert_eq!(body(&|outbox| put_notified(outbox, 1, &notified)), bytes(expected));
        assert_eq!(event(&Report::Changed { version: 9 }, 73), bytes("01 4900000000000000 0900000000000000"));
        let gap = Gap { version: 9, changes: Some(4), notifications: None, cause: Cause::Broken };
        let expected = "03 4900000000000000 01 0900000000000000 0400000000000000 ffffffffffffffff";
        assert_eq!(event(&Report::Gap(gap), 73), bytes(expected));
    }

    #[test]
    fn decoders_agree_with_encoders_whatever_they_are_given() {
        let mut state = 1u64;
        for length in (0..80).cycle().take(40_000) {
            let bytes: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    if state >> 62 == 0 { 0 } else { (state >> 33) as u8 }
                })
                .collect();
            fuzz(&bytes);
        }
    }
}
