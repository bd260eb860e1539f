//! The bodies of the object service's replies: outcomes and listings.

use bytes::Bytes;
use nacre_object::limit::{
    ATTRIBUTES_MAX, EXTENTS_PER_READ_MAX, FENCED_SESSIONS_MAX, OPERATIONS_MAX, PAGE_ENTRIES_MAX,
    REPLY_BYTES_MAX, VALUE_BYTES_MAX,
};
use nacre_object::{
    Answer, ByteRange, Done, ErrorKind, Extent, ExtentKind, Fences, Fork, ForkPage, Found, Key, KeyPage,
    ObjectId, Outcome, RangeRead, ReadOp, Refusal, Stat, StoreError, Transaction, Versioned,
    VersionedKeyPage,
};
use nacre_rpc::limit::BODY_BYTES_MAX;
use nacre_rpc::{Cursor, Frame, MessageKind, Outbox, WireError, control};

use crate::kind;
use crate::request::{get_object, put_object};

/// The least number of bytes of an answer in a reply.
const ANSWER_BYTES: usize = 2;
/// The bytes of an extent in a reply.
const EXTENT_BYTES: usize = 25;
/// The bytes around a key and its value in a reply, without and with its version.
const KEY_BYTES: usize = 6;
const VERSIONED_KEY_BYTES: usize = 14;
/// The bytes of a fenced session in a reply.
const SESSION_BYTES: usize = 8;

/// The number of reads whose answers always fit into a frame together: 16 MiB of data, and this many times 4096 extents
/// or 1024 names of forks, are less than 32 MiB.
const SAFE_READS: usize = 32;

/// The codes of answers and finds in the protocol.
mod code {
    pub(super) const ANSWER_RANGE: u8 = 1;
    pub(super) const ANSWER_STAT: u8 = 2;
    pub(super) const ANSWER_FORKS: u8 = 3;
    pub(super) const ANSWER_VALUE: u8 = 4;
    pub(super) const ANSWER_KEYS: u8 = 5;
    pub(super) const ANSWER_VERSIONED_VALUE: u8 = 6;
    pub(super) const ANSWER_VERSIONED_KEYS: u8 = 7;
    pub(super) const ANSWER_FENCES: u8 = 8;

    pub(super) const FOUND_OBJECT: u8 = 1;
    pub(super) const FOUND_REGION: u8 = 2;
    pub(super) const FOUND_VALUE: u8 = 3;
    pub(super) const FOUND_FENCE: u8 = 4;
    pub(super) const FOUND_KEY_VERSION: u8 = 5;
    pub(super) const FOUND_SIZE: u8 = 6;

    pub(super) const EXTENT_DATA: u8 = 0;
    pub(super) const EXTENT_HOLE: u8 = 1;
}

/// Checks that the reply to a transaction that writes is certain to fit into a frame, because it must not fail once the
/// writes have taken effect. A transaction that only reads may fail afterwards, and passes.
pub fn check_space(transaction: &Transaction) -> Result<(), StoreError> {
    if transaction.writes.is_empty() || transaction.reads.len() <= SAFE_READS {
        return Ok(());
    }
    let extents = |range: &ByteRange| range.len.min(EXTENTS_PER_READ_MAX as u64) as usize * EXTENT_BYTES;
    let keys = |limit: &u32, bytes: usize| (*limit as usize).min(PAGE_ENTRIES_MAX) * bytes + 64;
    let bytes: usize = transaction
        .reads
        .iter()
        .map(|read| match read {
            ReadOp::Range { range, .. } | ReadOp::Extents { range, .. } => extents(range) + 64,
            ReadOp::Forks { .. } => PAGE_ENTRIES_MAX * 264,
            ReadOp::Keys { limit, .. } => keys(limit, KEY_BYTES),
            ReadOp::VersionedKeys { limit, .. } => keys(limit, VERSIONED_KEY_BYTES),
            ReadOp::Attributes => ATTRIBUTES_MAX * KEY_BYTES + 64,
            ReadOp::Fences => FENCED_SESSIONS_MAX * SESSION_BYTES + 64,
            ReadOp::Stat | ReadOp::Key { .. } | ReadOp::Attribute { .. } | ReadOp::VersionedKey { .. } => 64,
        })
        .sum();
    // The position of the window of writes comes on top.
    let bytes = bytes + REPLY_BYTES_MAX + VALUE_BYTES_MAX + size_of::<u64>();
    if bytes <= BODY_BYTES_MAX {
        return Ok(());
    }
    let text = format!(
        "{} reads in a transaction that writes: their answers may take {bytes} bytes, and a reply may take \
         {BODY_BYTES_MAX}; read less, or in a transaction of its own",
        transaction.reads.len(),
    );
    Err(StoreError::new(ErrorKind::Invalid, text))
}

/// Writes the reply to a transaction. Returns the length of its body, as an error if it is too long; nothing is written
/// in that case.
pub fn put_outcome(outbox: &mut Outbox, id: u64, outcome: &Outcome) -> Result<usize, usize> {
    let kind = match outcome {
        Outcome::Done(_) => kind::DONE,
        Outcome::Refused(_) => kind::REFUSED,
    };
    let open = outbox.begin(kind, id);
    put_outcome_body(outbox, outcome);
    outbox.end(open)
}

pub(crate) fn put_outcome_body(outbox: &mut Outbox, outcome: &Outcome) {
    match outcome {
        Outcome::Done(done) => put_done(outbox, done),
        Outcome::Refused(refusal) => {
            outbox.u64(refusal.version);
            outbox.u16(refusal.guard as u16);
            put_found(outbox, &refusal.found);
        }
    }
}

pub(crate) fn put_done(outbox: &mut Outbox, done: &Done) {
    outbox.u64(done.version);
    outbox.u8(done.existed as u8);
    outbox.u16(done.answers.len() as u16);
    for answer in &done.answers {
        put_answer(outbox, answer);
    }
}

pub(crate) fn get_done(cursor: &mut Cursor<'_>, answers_max: usize) -> Result<Done, WireError> {
    let version = cursor.u64()?;
    let existed = get_flag(cursor)?;
    let count = cursor.u16()? as usize;
    let count = cursor.count(count, answers_max, ANSWER_BYTES)?;
    let mut answers = Vec::with_capacity(count);
    for _ in 0..count {
        answers.push(get_answer(cursor)?);
    }
    Ok(Done { version, existed, answers })
}

/// Reads the reply to a transaction.
pub fn get_outcome(frame: &Frame) -> Result<Result<Outcome, StoreError>, WireError> {
    let mut cursor = Cursor::new(&frame.body);
    let outcome = match frame.kind {
        kind::DONE => Ok(Outcome::Done(get_done(&mut cursor, OPERATIONS_MAX)?)),
        kind::REFUSED => {
            let version = cursor.u64()?;
            let guard = cursor.u16()? as usize;
            let found = get_found(&mut cursor)?;
            Ok(Outcome::Refused(Refusal { guard, found, version }))
        }
        MessageKind::ERROR => return Ok(Err(control::get_failure(frame)?)),
        _ => return Err(WireError::Malformed("the reply to a transaction is another message")),
    };
    cursor.end()?;
    Ok(outcome)
}

/// Writes a page of objects.
pub fn put_listed(outbox: &mut Outbox, id: u64, objects: &[ObjectId]) {
    let open = outbox.begin(kind::LISTED, id);
    // The part of an oversized page that is cut can be requested again by the caller.
    let objects = &objects[..objects.len().min(PAGE_ENTRIES_MAX)];
    outbox.u16(objects.len() as u16);
    for object in objects {
        put_object(outbox, object);
    }
    // A page is at most 256 KiB long.
    let _ = outbox.end(open);
}

/// Reads a page of objects.
pub fn get_listed(frame: &Frame) -> Result<Result<Vec<ObjectId>, StoreError>, WireError> {
    let mut cursor = Cursor::new(&frame.body);
    let result = match frame.kind {
        kind::LISTED => {
            let count = cursor.u16()? as usize;
            let count = cursor.count(count, PAGE_ENTRIES_MAX, 2)?;
            let mut objects = Vec::with_capacity(count);
            for _ in 0..count {
                objects.push(get_object(&mut cursor)?);
            }
            Ok(objects)
        }
        MessageKind::ERROR => return Ok(Err(control::get_failure(frame)?)),
        _ => return Err(WireError::Malformed("the reply to a listing is another message")),
    };
    cursor.end()?;
    Ok(result)
}

fn get_flag(cursor: &mut Cursor<'_>) -> Result<bool, WireError> {
    match cursor.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Malformed("a flag is neither 0 nor 1")),
    }
}

fn put_answer(outbox: &mut Outbox, answer: &Answer) {
    match answer {
        Answer::Range(range) => {
            outbox.u8(code::ANSWER_RANGE);
            put_range(outbox, range);
        }
        Answer::Stat(stat) => {
            outbox.u8(code::ANSWER_STAT);
            outbox.u8(stat.exists as u8);
            for number in [stat.version, stat.fence, stat.forks, stat.bytes, stat.keys, stat.attributes] {
                outbox.u64(number);
            }
        }
        Answer::Forks(page) => {
            outbox.u8(code::ANSWER_FORKS);
            outbox.u8(page.more as u8);
            outbox.u16(page.entries.len() as u16);
            for (fork, size) in &page.entries {
                outbox.u8(fork.as_bytes().len() as u8);
                outbox.slice(fork.as_bytes());
                outbox.u64(*size);
            }
        }
        Answer::Value(value) => {
            outbox.u8(code::ANSWER_VALUE);
            put_value(outbox, value.as_ref());
        }
        Answer::Keys(page) => {
            outbox.u8(code::ANSWER_KEYS);
            outbox.u8(page.more as u8);
            outbox.u16(page.entries.len() as u16);
            for (key, value) in &page.entries {
                outbox.u16(key.as_bytes().len() as u16);
                outbox.u32(value.len() as u32);
                outbox.slice(key.as_bytes());
                outbox.payload(value);
            }
        }
        Answer::VersionedValue(found) => {
            outbox.u8(code::ANSWER_VERSIONED_VALUE);
            put_value(outbox, found.as_ref().map(|found| &found.value));
            if let Some(found) = found {
                outbox.u64(found.version);
            }
        }
        Answer::VersionedKeys(page) => {
            outbox.u8(code::ANSWER_VERSIONED_KEYS);
            outbox.u8(page.more as u8);
            outbox.u16(page.entries.len() as u16);
            for (key, found) in &page.entries {
                outbox.u64(found.version);
                outbox.u16(key.as_bytes().len() as u16);
                outbox.u32(found.value.len() as u32);
                outbox.slice(key.as_bytes());
                outbox.payload(&found.value);
            }
        }
        Answer::Fences(fences) => {
            outbox.u8(code::ANSWER_FENCES);
            outbox.u64(fences.fence);
            outbox.u16(fences.sessions.len() as u16);
            for session in &fences.sessions {
                outbox.u64(*session);
            }
        }
    }
}

fn get_answer(cursor: &mut Cursor<'_>) -> Result<Answer, WireError> {
    Ok(match cursor.u8()? {
        code::ANSWER_RANGE => Answer::Range(get_range(cursor)?),
        code::ANSWER_STAT => Answer::Stat(Stat {
            exists: get_flag(cursor)?,
            version: cursor.u64()?,
            fence: cursor.u64()?,
            forks: cursor.u64()?,
            bytes: cursor.u64()?,
            keys: cursor.u64()?,
            attributes: cursor.u64()?,
        }),
        code::ANSWER_FORKS => {
            let more = get_flag(cursor)?;
            let count = cursor.u16()? as usize;
            let count = cursor.count(count, PAGE_ENTRIES_MAX, 9)?;
            let mut entries = Vec::with_capacity(count);
            for _ in 0..count {
                let len = cursor.u8()? as usize;
                entries.push((Fork::new(cursor.bytes(len)?)?, cursor.u64()?));
            }
            Answer::Forks(ForkPage { entries, more })
        }
        code::ANSWER_VALUE => Answer::Value(get_value(cursor)?),
        code::ANSWER_KEYS => {
            let more = get_flag(cursor)?;
            let count = cursor.u16()? as usize;
            let count = cursor.count(count, PAGE_ENTRIES_MAX.max(ATTRIBUTES_MAX), 7)?;
            let mut entries = Vec::with_capacity(count);
            for _ in 0..count {
                let (key, value) = (cursor.u16()? as usize, cursor.u32()? as usize);
                entries.push((Key::new(cursor.bytes(key)?)?, cursor.bytes(value)?));
            }
            Answer::Keys(KeyPage { entries, more })
        }
        code::ANSWER_VERSIONED_VALUE => Answer::VersionedValue(match get_value(cursor)? {
            None => None,
            Some(value) => Some(Versioned { value, version: cursor.u64()? }),
        }),
        code::ANSWER_VERSIONED_KEYS => {
            let more = get_flag(cursor)?;
            let count = cursor.u16()? as usize;
            let count = cursor.count(count, PAGE_ENTRIES_MAX, VERSIONED_KEY_BYTES + 1)?;
            let mut entries = Vec::with_capacity(count);
            for _ in 0..count {
                let version = cursor.u64()?;
                let (key, value) = (cursor.u16()? as usize, cursor.u32()? as usize);
                let key = Key::new(cursor.bytes(key)?)?;
                entries.push((key, Versioned { value: cursor.bytes(value)?, version }));
            }
            Answer::VersionedKeys(VersionedKeyPage { entries, more })
        }
        code::ANSWER_FENCES => {
            let fence = cursor.u64()?;
            let count = cursor.u16()? as usize;
            let count = cursor.count(count, FENCED_SESSIONS_MAX, SESSION_BYTES)?;
            let mut sessions = Vec::with_capacity(count);
            for _ in 0..count {
                let session = cursor.u64()?;
                if session < fence || sessions.last().is_some_and(|last| *last >= session) {
                    return Err(WireError::Malformed("fenced sessions are not in order"));
                }
                sessions.push(session);
            }
            Answer::Fences(Fences { fence, sessions })
        }
        _ => return Err(WireError::Malformed("unknown answer")),
    })
}

fn put_found(outbox: &mut Outbox, found: &Found) {
    match found {
        Found::Object { exists } => {
            outbox.u8(code::FOUND_OBJECT);
            outbox.u8(*exists as u8);
        }
        Found::Region(range) => {
            outbox.u8(code::FOUND_REGION);
            put_range(outbox, range);
        }
        Found::Value(value) => {
            outbox.u8(code::FOUND_VALUE);
            put_value(outbox, value.as_ref());
        }
        Found::Fence(token) => {
            outbox.u8(code::FOUND_FENCE);
            outbox.u64(*token);
        }
        Found::KeyVersion(version) => {
            outbox.u8(code::FOUND_KEY_VERSION);
            outbox.u64(*version);
        }
        Found::Size(size) => {
            outbox.u8(code::FOUND_SIZE);
            outbox.u64(*size);
        }
    }
}

fn get_found(cursor: &mut Cursor<'_>) -> Result<Found, WireError> {
    Ok(match cursor.u8()? {
        code::FOUND_OBJECT => Found::Object { exists: get_flag(cursor)? },
        code::FOUND_REGION => Found::Region(get_range(cursor)?),
        code::FOUND_VALUE => Found::Value(get_value(cursor)?),
        code::FOUND_FENCE => Found::Fence(cursor.u64()?),
        code::FOUND_KEY_VERSION => Found::KeyVersion(cursor.u64()?),
        code::FOUND_SIZE => Found::Size(cursor.u64()?),
        _ => return Err(WireError::Malformed("unknown find")),
    })
}

fn put_value(outbox: &mut Outbox, value: Option<&Bytes>) {
    outbox.u8(value.is_some() as u8);
    if let Some(value) = value {
        outbox.u32(value.len() as u32);
        outbox.payload(value);
    }
}

fn get_value(cursor: &mut Cursor<'_>) -> Result<Option<Bytes>, WireError> {
    if !get_flag(cursor)? {
        return Ok(None);
    }
    let len = cursor.u32()? as usize;
    Ok(Some(cursor.bytes(len)?))
}

fn put_range(outbox: &mut Outbox, read: &RangeRead) {
    outbox.u8(read.next.is_some() as u8);
    outbox.u64(read.version);
    outbox.u64(read.size);
    if let Some(next) = read.next {
        outbox.u64(next);
    }
    outbox.u32(read.extents.len() as u32);
    outbox.u32(read.data.len() as u32);
    for extent in &read.extents {
        outbox.u64(extent.range.offset);
        outbox.u64(extent.range.len);
        outbox.u64(extent.version);
        outbox.u8(match extent.kind {
            ExtentKind::Data => code::EXTENT_DATA,
            ExtentKind::Hole => code::EXTENT_HOLE,
        });
    }
    outbox.payload(&read.data);
}

fn get_range(cursor: &mut Cursor<'_>) -> Result<RangeRead, WireError> {
    let cut = get_flag(cursor)?;
    let version = cursor.u64()?;
    let size = cursor.u64()?;
    let next = if cut { Some(cursor.u64()?) } else { None };
    let count = cursor.u32()? as usize;
    let data = cursor.u32()? as usize;
    if data > REPLY_BYTES_MAX {
        return Err(WireError::Malformed("more data than a reply may hold"));
    }
    let count = cursor.count(count, EXTENTS_PER_READ_MAX, EXTENT_BYTES)?;
    let mut extents = Vec::with_capacity(count);
    for _ in 0..count {
        let range = ByteRange::new(cursor.u64()?, cursor.u64()?);
        range.validate()?;
        let version = cursor.u64()?;
        let kind = match cursor.u8()? {
            code::EXTENT_DATA => ExtentKind::Data,
            code::EXTENT_HOLE => ExtentKind::Hole,
            _ => return Err(WireError::Malformed("unknown kind of extent")),
        };
        extents.push(Extent { range, version, kind });
    }
    Ok(RangeRead { data: cursor.bytes(data)?, extents, version, size, next })
}
