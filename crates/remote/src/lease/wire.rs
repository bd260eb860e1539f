//! The messages of the service, and the events of its subscriptions.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use nacre_object::limit::OBJECT_ID_BYTES_MAX;
use nacre_object::{Answer, Done, Intent, ObjectId, ReadOp, StoreError};
use nacre_rpc::{Cursor, MessageKind, Outbox, WireError};

use super::table::Renewal;
use crate::reply::{get_done, put_done};
use crate::request::{get_read, put_object, put_read};

/// The number of the service.
pub const LEASE_SERVICE: u8 = 8;
/// A request for a session, which becomes a subscription to revocations.
pub const OPEN: MessageKind = MessageKind::new(LEASE_SERVICE, 1);
/// The session is open.
pub const OPENED: MessageKind = MessageKind::new(LEASE_SERVICE, 2);
/// A request for a lease on an object.
pub const LEASE: MessageKind = MessageKind::new(LEASE_SERVICE, 3);
/// The lease, or none.
pub const LEASED: MessageKind = MessageKind::new(LEASE_SERVICE, 4);
/// Leases that are given back.
pub const GIVE_BACK: MessageKind = MessageKind::new(LEASE_SERVICE, 5);
/// The reply to [`GIVE_BACK`] and [`END`].
pub const NOTED: MessageKind = MessageKind::new(LEASE_SERVICE, 6);
/// The renewal of a session.
pub const RENEW: MessageKind = MessageKind::new(LEASE_SERVICE, 7);
/// The outcome of a renewal.
pub const RENEWED: MessageKind = MessageKind::new(LEASE_SERVICE, 8);
/// The end of a session, and of its leases.
pub const END: MessageKind = MessageKind::new(LEASE_SERVICE, 9);
/// A request for leases on several objects, which are read under them.
pub const READ: MessageKind = MessageKind::new(LEASE_SERVICE, 10);
/// The answers of those of them that are leased.
pub const ANSWERED: MessageKind = MessageKind::new(LEASE_SERVICE, 11);

/// The maximum number of objects that are leased and read by one message.
pub(super) const READ_OBJECTS_MAX: usize = 64;
/// The maximum number of reads of each of them.
pub(super) const READS_MAX: usize = 16;
/// The smallest size of a read, in bytes.
const READ_BYTES: usize = 4;
/// The maximum number of leases that are given back by one message.
pub(super) const GIVEN_BACK_MAX: usize = 256;

const RENEWALS: [Renewal; 3] = [Renewal::Renewed, Renewal::Unchanged, Renewal::Lapsed];

/// A session that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) session: u64,
    /// The time that it lasts, from the request on at the earliest.
    pub(super) length: Duration,
}

/// A request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leasing {
    pub(super) session: u64,
    /// The number by which the lease is asked for and given back, which the client chooses: greater than that of each earlier one.
    pub(super) number: u64,
    pub(super) object: ObjectId,
}

/// A lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Its number; 0 if none was granted.
    pub(super) number: u64,
    /// The version that the object has as long as the lease is in force.
    pub(super) version: u64,
}

/// A request for leases on several objects, of each of which the same is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) session: u64,
    /// The number of the first lease; those of the others follow.
    pub(super) number: u64,
    pub(super) reads: Vec<ReadOp>,
    pub(super) objects: Vec<ObjectId>,
}

/// Leases that are given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GivingBack {
    pub(super) session: u64,
    pub(super) leases: Vec<(ObjectId, u64)>,
}

fn end(outbox: &mut Outbox, open: nacre_rpc::Open) -> Result<(), StoreError> {
    outbox.end(open).map(drop).map_err(|body_bytes| WireError::TooLong { body_bytes }.into())
}

/// Returns an object's name that keeps no larger buffer: a lease lasts.
fn get_object(bytes: &Bytes) -> Result<ObjectId, StoreError> {
    ObjectId::new(Bytes::copy_from_slice(bytes))
}

pub(super) fn put_open(outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
    let open = outbox.begin(OPEN, id);
    end(outbox, open)
}

pub(super) fn put_opened(outbox: &mut Outbox, id: u64, opened: &Opened) -> Result<(), StoreError> {
    let open = outbox.begin(OPENED, id);
    outbox.u64(opened.session);
    outbox.u32(u32::try_from(opened.length.as_millis()).unwrap_or(u32::MAX));
    end(outbox, open)
}

pub(super) fn get_opened(body: &Bytes) -> Result<Opened, WireError> {
    let mut cursor = Cursor::new(body);
    let opened = Opened { session: cursor.u64()?, length: Duration::from_millis(cursor.u32()?.into()) };
    cursor.end()?;
    Ok(opened)
}

pub(super) fn put_lease(outbox: &mut Outbox, id: u64, leasing: &Leasing) -> Result<(), StoreError> {
    let open = outbox.begin(LEASE, id);
    outbox.u64(leasing.session);
    outbox.u64(leasing.number);
    outbox.slice(leasing.object.as_bytes());
    end(outbox, open)
}

pub(super) fn get_lease(body: &Bytes) -> Result<Leasing, StoreError> {
    let mut cursor = Cursor::new(body);
    let (session, number) = (cursor.u64()?, cursor.u64()?);
    if number == 0 {
        return Err(WireError::Malformed("a lease has the number 0").into());
    }
    let object = get_object(&cursor.bytes(cursor.left())?)?;
    Ok(Leasing { session, number, object })
}

pub(super) fn put_leased(outbox: &mut Outbox, id: u64, granted: &Granted) -> Result<(), StoreError> {
    let open = outbox.begin(LEASED, id);
    outbox.u64(granted.number);
    outbox.u64(granted.version);
    end(outbox, open)
}

pub(super) fn get_leased(body: &Bytes) -> Result<Granted, WireError> {
    let mut cursor = Cursor::new(body);
    let granted = Granted { number: cursor.u64()?, version: cursor.u64()? };
    cursor.end()?;
    Ok(granted)
}

pub(super) fn put_reading(outbox: &mut Outbox, id: u64, reading: &Reading) -> Result<(), StoreError> {
    let open = outbox.begin(READ, id);
    outbox.u64(reading.session);
    outbox.u64(reading.number);
    outbox.u16(reading.reads.len() as u16);
    outbox.u16(reading.objects.len() as u16);
    for read in &reading.reads {
        put_read(outbox, read);
    }
    for object in &reading.objects {
        put_object(outbox, object);
    }
    end(outbox, open)
}

pub(super) fn get_reading(body: &Bytes) -> Result<Reading, StoreError> {
    let mut cursor = Cursor::new(body);
    let (session, number) = (cursor.u64()?, cursor.u64()?);
    let (reads, objects) = (cursor.u16()? as usize, cursor.u16()? as usize);
    if number == 0 || number.checked_add(objects as u64).is_none() {
        return Err(WireError::Malformed("a lease has a number that none may have").into());
    }
    let count = cursor.count(reads, READS_MAX, READ_BYTES)?;
    let mut reads = Vec::with_capacity(count);
    for _ in 0..count {
        let read = get_read(&mut cursor)?;
        if !is_short(&read) {
            return Err(WireError::Malformed("a read ahead is of something else than single keys").into());
        }
        reads.push(read);
    }
    // Each has a length, and a name of a byte at least.
    let count = cursor.count(objects, READ_OBJECTS_MAX, 2)?;
    let mut objects = Vec::with_capacity(count);
    for _ in 0..count {
        let object_bytes = cursor.u8()?;
        objects.push(get_object(&cursor.bytes(object_bytes.into())?)?);
    }
    cursor.end()?;
    Ok(Reading { session, number, reads, objects })
}

/// Returns whether a read may be made of many objects at a time.
pub(super) fn is_short(read: &ReadOp) -> bool {
    match read {
        ReadOp::Stat | ReadOp::Key { .. } => true,
        ReadOp::VersionedKey { intent, .. } => *intent == Intent::Look,
        _ => false,
    }
}

/// Writes the answers of objects that are leased, in the order of the request; `None` for one that is not.
pub(super) fn put_answered(
    outbox: &mut Outbox,
    id: u64,
    answered: &[Option<Done>],
) -> Result<(), StoreError> {
    let open = outbox.begin(ANSWERED, id);
    outbox.u16(answered.len() as u16);
    for done in answered {
        outbox.u8(done.is_some() as u8);
        if let Some(done) = done {
            put_done(outbox, done);
        }
    }
    end(outbox, open)
}

pub(super) fn get_answered(body: &Bytes) -> Result<Vec<Option<Done>>, WireError> {
    let mut cursor = Cursor::new(body);
    let count = cursor.u16()? as usize;
    let count = cursor.count(count, READ_OBJECTS_MAX, 1)?;
    let mut answered = Vec::with_capacity(count);
    for _ in 0..count {
        answered.push(match cursor.u8()? {
            0 => None,
            1 => Some(get_done(&mut cursor, READS_MAX)?),
            _ => return Err(WireError::Malformed("an answer is neither there nor not")),
        });
    }
    cursor.end()?;
    let is_short_answer =
        |answer: &Answer| matches!(answer, Answer::Stat(_) | Answer::Value(_) | Answer::VersionedValue(_));
    match answered.iter().flatten().flat_map(|done| &done.answers).all(is_short_answer) {
        true => Ok(answered),
        false => Err(WireError::Malformed("an answer is about something else than single keys")),
    }
}

pub(super) fn put_give_back(outbox: &mut Outbox, id: u64, giving: &GivingBack) -> Result<(), StoreError> {
    let open = outbox.begin(GIVE_BACK, id);
    outbox.u64(giving.session);
    outbox.u32(giving.leases.len() as u32);
    for (object, number) in &giving.leases {
        outbox.u64(*number);
        outbox.u8(object.as_bytes().len() as u8);
        outbox.slice(object.as_bytes());
    }
    end(outbox, open)
}

pub(super) fn get_give_back(body: &Bytes) -> Result<GivingBack, StoreError> {
    let mut cursor = Cursor::new(body);
    let (session, count) = (cursor.u64()?, cursor.u32()? as usize);
    // Each has a number, a length, and a name of a byte at least.
    let count = cursor.count(count, GIVEN_BACK_MAX, 10)?;
    let mut leases = Vec::with_capacity(count);
    for _ in 0..count {
        let (number, object_bytes) = (cursor.u64()?, cursor.u8()?);
        leases.push((get_object(&cursor.bytes(object_bytes.into())?)?, number));
    }
    cursor.end()?;
    Ok(GivingBack { session, leases })
}

pub(super) fn put_renew(outbox: &mut Outbox, id: u64, session: u64) -> Result<(), StoreError> {
    let open = outbox.begin(RENEW, id);
    outbox.u64(session);
    end(outbox, open)
}

pub(super) fn put_end(outbox: &mut Outbox, id: u64, session: u64) -> Result<(), StoreError> {
    let open = outbox.begin(END, id);
    outbox.u64(session);
    end(outbox, open)
}

/// Reads the session that is to be renewed, or ended.
pub(super) fn get_session(body: &Bytes) -> Result<u64, WireError> {
    let mut cursor = Cursor::new(body);
    let session = cursor.u64()?;
    cursor.end()?;
    Ok(session)
}

pub(super) fn put_renewed(outbox: &mut Outbox, id: u64, renewal: Renewal) -> Result<(), StoreError> {
    let open = outbox.begin(RENEWED, id);
    outbox.u8(RENEWALS.iter().position(|known| *known == renewal).unwrap_or_default() as u8);
    end(outbox, open)
}

pub(super) fn get_renewed(body: &Bytes) -> Result<Renewal, WireError> {
    let mut cursor = Cursor::new(body);
    let renewal = RENEWALS.get(usize::from(cursor.u8()?)).copied();
    cursor.end()?;
    renewal.ok_or(WireError::Malformed("an unknown outcome of a renewal"))
}

/// Returns the payload of the event by which a lease is asked back.
pub(super) fn revocation(object: &ObjectId, number: u64) -> Bytes {
    let mut body = BytesMut::with_capacity(8 + object.as_bytes().len());
    body.put_u64_le(number);
    body.extend_from_slice(object.as_bytes());
    body.freeze()
}

/// Reads the payload of the event by which a lease is asked back.
pub(super) fn get_revocation(body: &Bytes) -> Result<(ObjectId, u64), StoreError> {
    let mut cursor = Cursor::new(body);
    let number = cursor.u64()?;
    if cursor.left() > OBJECT_ID_BYTES_MAX {
        return Err(WireError::Malformed("the name of an object is too long").into());
    }
    let object = get_object(&cursor.bytes(cursor.left())?)?;
    Ok((object, number))
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
    if let Ok(opened) = get_opened(&body) {
        assert_eq!(again(&|outbox| put_opened(outbox, 1, &opened)), body);
    }
    if let Ok(leasing) = get_lease(&body) {
        assert_eq!(again(&|outbox| put_lease(outbox, 1, &leasing)), body);
    }
    if let Ok(granted) = get_leased(&body) {
        assert_eq!(again(&|outbox| put_leased(outbox, 1, &granted)), body);
    }
    if let Ok(reading) = get_reading(&body) {
        assert_eq!(again(&|outbox| put_reading(outbox, 1, &reading)), body);
    }
    if let Ok(answered) = get_answered(&body) {
        assert_eq!(again(&|outbox| put_answered(outbox, 1, &answered)), body);
    }
    if let Ok(giving) = get_give_back(&body) {
        assert_eq!(again(&|outbox| put_give_back(outbox, 1, &giving)), body);
    }
    if let Ok(session) = get_session(&body) {
        assert_eq!(again(&|outbox| put_renew(outbox, 1, session)), body);
        assert_eq!(again(&|outbox| put_end(outbox, 1, session)), body);
    }
    if let Ok(renewal) = get_renewed(&body) {
        assert_eq!(again(&|outbox| put_renewed(outbox, 1, renewal)), body);
    }
    if let Ok((object, number)) = get_revocation(&body) {
        assert_eq!(revocation(&object, number), body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(body(&|outbox| put_open(outbox, 1)).is_empty());
        let opened = Opened { session: 2, length: Duration::from_secs(2) };
        assert_eq!(
            body(&|outbox| put_opened(outbox, 1, &opened))[..],
            [2, 0, 0, 0, 0, 0, 0, 0, 0xd0, 7, 0, 0]
        );
        let leasing = Leasing { session: 2, number: 3, object: object.clone() };
        let expected = *b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0a";
        assert_eq!(body(&|outbox| put_lease(outbox, 1, &leasing))[..], expected);
        let granted = Granted { number: 3, version: 9 };
        assert_eq!(
            body(&|outbox| put_leased(outbox, 1, &granted))[..],
            *b"\x03\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0"
        );
        let reads = vec![ReadOp::Key { key: "k".parse().unwrap() }];
        let reading = Reading { session: 2, number: 3, reads, objects: vec![object.clone()] };
        let expected = *b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x01\0\x01\0\x05\0\x01\0k\x01a";
        assert_eq!(body(&|outbox| put_reading(outbox, 1, &reading))[..], expected);
        let done = Done { version: 9, existed: true, answers: vec![Answer::Value(Some("v".into()))] };
        let expected = *b"\x02\0\x01\x09\0\0\0\0\0\0\0\x01\x01\0\x04\x01\x01\0\0\0v\0";
        assert_eq!(body(&|outbox| put_answered(outbox, 1, &[Some(done.clone()), None]))[..], expected);
        let giving = GivingBack { session: 2, leases: vec![(object.clone(), 3)] };
        let expected = *b"\x02\0\0\0\0\0\0\0\x01\0\0\0\x03\0\0\0\0\0\0\0\x01a";
        assert_eq!(body(&|outbox| put_give_back(outbox, 1, &giving))[..], expected);
        assert_eq!(body(&|outbox| put_renew(outbox, 1, 2))[..], *b"\x02\0\0\0\0\0\0\0");
        assert_eq!(body(&|outbox| put_end(outbox, 1, 2))[..], *b"\x02\0\0\0\0\0\0\0");
        assert_eq!(body(&|outbox| put_renewed(outbox, 1, Renewal::Lapsed))[..], [2]);
        assert_eq!(revocation(&object, 3)[..], *b"\x03\0\0\0\0\0\0\0a");
    }

    #[test]
    fn decoders_agree_with_encoders_whatever_they_are_given() {
        let mut state = 1u64;
        for length in (0..60).cycle().take(40_000) {
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
