//! Log records: the effects of transactions, with their payload.
//!
//! A record is `head | payload | tail`, each padded to 8 bytes. The head describes the record and carries the checksums
//! of the payload's chunks; the tail is the head again under another magic number, so that damage to either loses
//! nothing. `docs/format.md` has the byte diagrams.
//!
//! Invariants:
//! - every checksum of a head is bound to the store, the segment and the offset of the record (see [`Binding`]), so
//!   neither the former contents of a recycled segment file nor bytes of a payload are ever taken for a record;
//! - decoding never panics and never allocates more than a small multiple of its input.

use std::ops::Range;

use bytes::Bytes;
use nacre_object::limit::OFFSET_MAX;
use nacre_object::once::{SEQUENCE_MAX, WRITER_BYTES};
use nacre_object::window::Written;
use nacre_object::{ByteRange, Fork, Key, ObjectId, WriteOp, WriteToken};

pub use crate::binding::Binding;
use crate::codec::{Reader, crc32c, put_bytes, put_varint};

/// The maximum length of a chunk of payload in bytes: the unit of checksums.
pub const CHUNK_BYTES_MAX: usize = 64 << 10;
/// The alignment, in bytes, of records and of the parts of a record.
pub const ALIGNMENT: usize = 8;
/// The length of the fixed part of a head, in bytes.
pub const HEAD_BYTES_MIN: usize = 32;

/// One change of an object, as it is kept in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The object is made to exist.
    Create,
    /// A chunk of payload is written. Payload stands in the record in the order of its chunks. A chunk of no bytes
    /// only makes the fork.
    Chunk {
        /// The fork.
        fork: Fork,
        /// The offset of its first byte in the fork.
        offset: u64,
        /// Its length in bytes.
        len: u32,
        /// CRC-32C of its bytes.
        crc: u32,
    },
    /// A range is made to read as zeros. See [`WriteOp::Zero`].
    Zero {
        /// The fork.
        fork: Fork,
        /// The range.
        range: ByteRange,
    },
    /// The size of a fork is set. See [`WriteOp::Truncate`].
    Truncate {
        /// The fork.
        fork: Fork,
        /// The new size in bytes.
        size: u64,
    },
    /// A fork is removed. See [`WriteOp::RemoveFork`].
    RemoveFork {
        /// The fork.
        fork: Fork,
    },
    /// A fork is replaced with another. See [`WriteOp::ReplaceFork`].
    ReplaceFork {
        /// The fork whose content is replaced.
        fork: Fork,
        /// The fork whose content is taken.
        from: Fork,
    },
    /// A key is set. See [`WriteOp::SetKey`].
    SetKey {
        /// The key.
        key: Key,
        /// Its value.
        value: Bytes,
    },
    /// A key is removed. See [`WriteOp::RemoveKey`].
    RemoveKey {
        /// The key.
        key: Key,
    },
    /// An attribute is set. See [`WriteOp::SetAttribute`].
    SetAttribute {
        /// Its name.
        name: Key,
        /// Its value.
        value: Bytes,
    },
    /// An attribute is removed. See [`WriteOp::RemoveAttribute`].
    RemoveAttribute {
        /// Its name.
        name: Key,
    },
    /// The fence is raised. See [`WriteOp::RaiseFence`].
    RaiseFence {
        /// The fencing token.
        token: u64,
    },
    /// A session is fenced. See [`WriteOp::FenceSession`].
    FenceSession {
        /// The number of the session.
        session: u64,
    },
    /// The object is removed. See [`WriteOp::Remove`].
    Remove,
}

/// A piece of an extent that the cleaner moved to a new place: a chunk of its own there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The object.
    pub object: ObjectId,
    /// The fork.
    pub fork: Fork,
    /// Its first byte in the fork.
    pub start: u64,
    /// Its length in bytes, at least 1.
    pub len: u32,
    /// The version that wrote it.
    pub version: u64,
    /// CRC-32C of its bytes.
    pub crc: u32,
    /// The chunk that it was moved from: its segment, and its offset there. It tells pieces apart where a version does
    /// not, because forks replace each other. `None` in records of format 1.
    pub source: Option<(u32, u32)>,
}

/// The part of a transaction's record by which its repetition is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeatable {
    /// The token.
    pub token: WriteToken,
    /// True if the object existed before the transaction.
    pub existed: bool,
}

/// The contents of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A transaction's effects on one object.
    Transaction {
        /// The object.
        object: ObjectId,
        /// The version stamped on them.
        version: u64,
        /// The effects, in order.
        effects: Vec<Effect>,
        /// The token by which a repetition is recognised, if it has one. Never in records before format 3.
        repeatable: Option<Repeatable>,
    },
    /// Pieces that the cleaner moved.
    Moves(Vec<Moved>),
    /// The latest transactions with tokens before the record, for a store that is opened after the log before it was
    /// given up. Not in records before format 3.
    Tokens {
        /// The number of transactions with tokens before the first of these.
        first: u64,
        /// The transactions, in order.
        writes: Vec<Written>,
    },
    /// The version up to which removed objects may be forgotten from now on. Not in records before format 4.
    Floor(u64),
    /// Nothing but the head's own fields: proof that all records before it were synced.
    Mark,
}

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the log: records are numbered from 1, without gaps.
    pub sequence: u64,
    /// The last record known to be synced when this one was written, with all before it.
    pub synced: u64,
    /// Length of the whole record in bytes.
    pub record_bytes: u32,
    /// Length of the head, and of the tail, in bytes: the offset of the payload.
    pub head_bytes: u32,
    /// The contents.
    pub body: Body,
}

impl Body {
    /// Returns the bytes of payload that the record carries, without padding.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Transaction { effects, .. } => effects.iter().map(Effect::payload_bytes).sum(),
            Self::Moves(moves) => moves.iter().map(|moved| moved.len as usize).sum(),
            Self::Tokens { .. } | Self::Floor(_) | Self::Mark => 0,
        }
    }
}

impl Effect {
    /// Splits writes, none of which appends, into effects, and their payload into chunks of at most `chunk_bytes` bytes, with
    /// their checksums.
    pub fn from_writes(writes: Vec<WriteOp>, chunk_bytes: usize) -> (Vec<Effect>, Vec<Bytes>) {
        let Split { effects, payload, .. } = Split::new(writes, chunk_bytes, crc32c);
        (effects, payload)
    }

    /// Returns the bytes of payload that belong to the effect.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Chunk { len, .. } => *len as usize,
            _ => 0,
        }
    }
}

/// The writes of a transaction, split into effects.
#[derive(Debug)]
pub struct Split {
    /// The effects.
    pub effects: Vec<Effect>,
    /// The payload, in the order of the chunks.
    pub payload: Vec<Bytes>,
    /// The effects of each append, whose chunks have no places yet: these depend on the object.
    pub appends: Vec<Range<usize>>,
}

impl Split {
    /// Splits writes, and their payload into chunks of at most `chunk_bytes` bytes, with their checksums.
    pub fn new(writes: Vec<WriteOp>, chunk_bytes: usize, checksum: fn(&[u8]) -> u32) -> Split {
        let mut effects = Vec::with_capacity(writes.len());
        let (mut payload, mut appends) = (Vec::new(), Vec::new());
        for write in writes {
            effects.push(match write {
                WriteOp::Create => Effect::Create,
                WriteOp::Extents { fork, extents } => {
                    if extents.is_empty() {
                        effects.push(Effect::Chunk { fork: fork.clone(), offset: 0, len: 0, crc: 0 });
                    }
                    for (start, data) in extents {
                        chunks(&fork, start, &data, chunk_bytes, checksum, &mut effects);
                        if !data.is_empty() {
                            payload.push(data);
                        }
                    }
                    continue;
                }
                WriteOp::Append { fork, data } => {
                    let first = effects.len();
                    chunks(&fork, 0, &data, chunk_bytes, checksum, &mut effects);
                    appends.push(first..effects.len());
                    if !data.is_empty() {
                        payload.push(data);
                    }
                    continue;
                }
                WriteOp::Zero { fork, range } => Effect::Zero { fork, range },
                WriteOp::Truncate { fork, size } => Effect::Truncate { fork, size },
                WriteOp::RemoveFork { fork } => Effect::RemoveFork { fork },
                WriteOp::ReplaceFork { fork, from } => Effect::ReplaceFork { fork, from },
                WriteOp::SetKey { key, value } => Effect::SetKey { key, value },
                WriteOp::RemoveKey { key } => Effect::RemoveKey { key },
                WriteOp::SetAttribute { name, value } => Effect::SetAttribute { name, value },
                WriteOp::RemoveAttribute { name } => Effect::RemoveAttribute { name },
                WriteOp::RaiseFence { token } => Effect::RaiseFence { token },
                WriteOp::FenceSession { session } => Effect::FenceSession { session },
                WriteOp::Remove => Effect::Remove,
            });
        }
        Split { effects, payload, appends }
    }
}

impl Effect {
    /// Returns whether the effect gives space back, or fences off a client that takes it, and so may take room in the
    /// log that is reserved for that.
    pub fn shrinks(&self) -> bool {
        match self {
            Self::Zero { .. }
            | Self::Truncate { .. }
            | Self::RemoveFork { .. }
            | Self::ReplaceFork { .. }
            | Self::RemoveKey { .. }
            | Self::RemoveAttribute { .. }
            | Self::RaiseFence { .. }
            | Self::FenceSession { .. }
            | Self::Remove => true,
            Self::Create | Self::Chunk { .. } | Self::SetKey { .. } | Self::SetAttribute { .. } => false,
        }
    }
}

fn chunks(
    fork: &Fork,
    start: u64,
    data: &[u8],
    chunk_bytes: usize,
    checksum: fn(&[u8]) -> u32,
    effects: &mut Vec<Effect>,
) {
    if data.is_empty() {
        effects.push(Effect::Chunk { fork: fork.clone(), offset: start, len: 0, crc: 0 });
    }
    let mut offset = start;
    for chunk in data.chunks(chunk_bytes) {
        let len = chunk.len() as u32;
        effects.push(Effect::Chunk { fork: fork.clone(), offset, len, crc: checksum(chunk) });
        offset += u64::from(len);
    }
}

/// Rounds up to the alignment of records.
pub const fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

const BODY_TRANSACTION: u8 = 1;
const BODY_MOVES: u8 = 2;
const BODY_MARK: u8 = 3;
/// Moves with their sources; since format 2.
const BODY_MOVES_FROM: u8 = 4;
/// A transaction with a token; since format 3.
const BODY_TRANSACTION_ONCE: u8 = 5;
/// The latest transactions with tokens, as the first programs of format 3 wrote them when a store was closed.
const BODY_TOKENS: u8 = 6;
/// The version up to which removed objects may be forgotten; since format 4.
const BODY_FLOOR: u8 = 7;

const EFFECT_CREATE: u8 = 1;
const EFFECT_CHUNK: u8 = 2;
/// A chunk of the same fork as the effect just before it, which is a chunk too.
const EFFECT_CHUNK_AGAIN: u8 = 3;
const EFFECT_ZERO: u8 = 4;
const EFFECT_TRUNCATE: u8 = 5;
const EFFECT_REMOVE_FORK: u8 = 6;
const EFFECT_SET_KEY: u8 = 7;
const EFFECT_REMOVE_KEY: u8 = 8;
const EFFECT_SET_ATTRIBUTE: u8 = 9;
const EFFECT_REMOVE_ATTRIBUTE: u8 = 10;
const EFFECT_RAISE_FENCE: u8 = 11;
const EFFECT_REMOVE: u8 = 12;
/// A replacement of a fork; since format 2.
const EFFECT_REPLACE_FORK: u8 = 13;
/// A fence of one session; since format 3.
const EFFECT_FENCE_SESSION: u8 = 14;

/// Encodes a transaction's body, with room in front of it for the fixed part of the head.
///
/// `version` stands at the end, so that it can be appended when the rest is encoded already.
pub fn encode_transaction(object: &ObjectId, effects: &[Effect]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES_MIN + 64);
    out.resize(HEAD_BYTES_MIN, 0);
    out.push(BODY_TRANSACTION);
    put_bytes(&mut out, object.as_bytes());
    put_varint(&mut out, effects.len() as u64);
    let mut previous: Option<&Fork> = None;
    for effect in effects {
        let before = previous.take();
        match effect {
            Effect::Create => out.push(EFFECT_CREATE),
            Effect::Chunk { fork, offset, len, crc } => {
                if before == Some(fork) {
                    out.push(EFFECT_CHUNK_AGAIN);
                } else {
                    out.push(EFFECT_CHUNK);
                    put_bytes(&mut out, fork.as_bytes());
                }
                previous = Some(fork);
                put_varint(&mut out, *offset);
                put_varint(&mut out, u64::from(*len));
                out.extend_from_slice(&crc.to_le_bytes());
            }
            Effect::Zero { fork, range } => {
                out.push(EFFECT_ZERO);
                put_bytes(&mut out, fork.as_bytes());
                put_varint(&mut out, range.offset);
                put_varint(&mut out, range.len);
            }
            Effect::Truncate { fork, size } => {
                out.push(EFFECT_TRUNCATE);
                put_bytes(&mut out, fork.as_bytes());
                put_varint(&mut out, *size);
            }
            Effect::RemoveFork { fork } => {
                out.push(EFFECT_REMOVE_FORK);
                put_bytes(&mut out, fork.as_bytes());
            }
            Effect::ReplaceFork { fork, from } => {
                out.push(EFFECT_REPLACE_FORK);
                put_bytes(&mut out, fork.as_bytes());
                put_bytes(&mut out, from.as_bytes());
            }
            Effect::SetKey { key, value } => {
                out.push(EFFECT_SET_KEY);
                put_bytes(&mut out, key.as_bytes());
                put_bytes(&mut out, value);
            }
            Effect::RemoveKey { key } => {
                out.push(EFFECT_REMOVE_KEY);
                put_bytes(&mut out, key.as_bytes());
            }
            Effect::SetAttribute { name, value } => {
                out.push(EFFECT_SET_ATTRIBUTE);
                put_bytes(&mut out, name.as_bytes());
                put_bytes(&mut out, value);
            }
            Effect::RemoveAttribute { name } => {
                out.push(EFFECT_REMOVE_ATTRIBUTE);
                put_bytes(&mut out, name.as_bytes());
            }
            Effect::RaiseFence { token } => {
                out.push(EFFECT_RAISE_FENCE);
                put_varint(&mut out, *token);
            }
            Effect::FenceSession { session } => {
                out.push(EFFECT_FENCE_SESSION);
                put_varint(&mut out, *session);
            }
            Effect::Remove => out.push(EFFECT_REMOVE),
        }
    }
    out
}

/// Appends the version to a body made by [`encode_transaction`].
pub fn put_version(out: &mut Vec<u8>, version: u64) {
    out.extend_from_slice(&version.to_le_bytes());
}

/// Appends the token to a body that is complete but for it.
pub fn put_repeatable(out: &mut Vec<u8>, repeatable: &Repeatable) {
    let Repeatable { token, existed } = repeatable;
    out[HEAD_BYTES_MIN] = BODY_TRANSACTION_ONCE;
    out.extend_from_slice(&token.writer);
    put_varint(out, token.sequence << 1 | u64::from(*existed));
}

/// Returns whether a head that an `encode` function began has a token.
pub fn is_repeatable(head: &[u8]) -> bool {
    head.get(HEAD_BYTES_MIN) == Some(&BODY_TRANSACTION_ONCE)
}

/// Encodes the body of a record of moves, with room in front of it for the fixed part of the head. Either all of them
/// say their source, or it is a record of format 1.
pub fn encode_moves(moves: &[Moved]) -> Vec<u8> {
    let mut out = vec![0; HEAD_BYTES_MIN];
    let sources = moves.iter().all(|moved| moved.source.is_some());
    out.push(if sources { BODY_MOVES_FROM } else { BODY_MOVES });
    put_varint(&mut out, moves.len() as u64);
    for moved in moves {
        put_bytes(&mut out, moved.object.as_bytes());
        put_bytes(&mut out, moved.fork.as_bytes());
        put_varint(&mut out, moved.start);
        put_varint(&mut out, u64::from(moved.len));
        put_varint(&mut out, moved.version);
        out.extend_from_slice(&moved.crc.to_le_bytes());
        if let Some((segment, offset)) = moved.source.filter(|_| sources) {
            put_varint(&mut out, u64::from(segment));
            put_varint(&mut out, u64::from(offset));
        }
    }
    out
}

/// Encodes the body of a mark, with room in front of it for the fixed part of the head.
pub fn encode_mark() -> Vec<u8> {
    let mut out = vec![0; HEAD_BYTES_MIN];
    out.push(BODY_MARK);
    out
}

/// Encodes the body of a record that raises the floor, with room in front of it for the fixed part of the head.
pub fn encode_floor(floor: u64) -> Vec<u8> {
    let mut out = vec![0; HEAD_BYTES_MIN];
    out.push(BODY_FLOOR);
    put_varint(&mut out, floor);
    out
}

/// Returns the floor to which a head that an `encode` function began raises it, if it does.
pub fn raised_floor(head: &[u8]) -> Option<u64> {
    let (kind, floor) = head.get(HEAD_BYTES_MIN..)?.split_first()?;
    (*kind == BODY_FLOOR).then(|| Reader::new(Bytes::copy_from_slice(floor)).varint())?
}

/// Returns the length of a record in bytes, from the length of its head before padding and that of its payload.
pub fn record_bytes(head_bytes: usize, payload_bytes: usize) -> usize {
    2 * aligned(head_bytes) + aligned(payload_bytes)
}

/// The place of a record in the log, which its head needs last.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The binding of the segment.
    pub binding: Binding,
    /// The offset in the segment.
    pub offset: u64,
    /// Its number in the log.
    pub sequence: u64,
    /// The last record known to be synced.
    pub synced: u64,
}

/// Completes a head that one of the `encode` functions began: pads it, fills in the fixed part, and seals it.
pub fn seal_head(head: &mut Vec<u8>, payload_bytes: usize, stamp: Stamp) {
    let body_bytes = (head.len() - HEAD_BYTES_MIN) as u32;
    head.resize(aligned(head.len()), 0);
    let record_bytes = record_bytes(head.len(), payload_bytes) as u32;
    head[0..4].copy_from_slice(&stamp.binding.head_magic().to_le_bytes());
    head[8..12].copy_from_slice(&record_bytes.to_le_bytes());
    head[12..16].copy_from_slice(&body_bytes.to_le_bytes());
    head[16..24].copy_from_slice(&stamp.sequence.to_le_bytes());
    head[24..32].copy_from_slice(&stamp.synced.to_le_bytes());
    let crc = crc32c(&head[8..]) ^ stamp.binding.mask(stamp.offset);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Appends the tail of a record: its sealed head again, under the tail's magic number.
pub fn put_tail(out: &mut Vec<u8>, sealed_head: &[u8], binding: Binding) {
    out.extend_from_slice(&binding.tail_magic().to_le_bytes());
    out.extend_from_slice(&sealed_head[4..]);
}

/// A head or tail found at some offset, by which the log is read on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A sound head.
    Head(Record),
    /// A sound tail, and the number of bytes before it at which its record began.
    Tail(Record, usize),
}

/// Returns the length in bytes that a head gives for itself; `None` if the bytes do not begin with a head.
pub fn head_bytes(bytes: &[u8], binding: Binding) -> Option<usize> {
    let fixed: &[u8; HEAD_BYTES_MIN] = bytes.first_chunk()?;
    (word(fixed, 0) == binding.head_magic())
        .then(|| aligned(HEAD_BYTES_MIN.saturating_add(word(fixed, 12) as usize)))
}

/// The fixed part of a head or tail, before its checksum was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline {
    is_head: bool,
    record_bytes: u32,
    body_bytes: usize,
    /// Length of the head, and of the tail, in bytes.
    pub head_bytes: usize,
    /// The number of bytes before it at which the record begins: 0 for a head.
    pub back: usize,
    /// The expected CRC of the bytes from the ninth to the last of the head.
    crc: u32,
}

impl Outline {
    /// Reads the fixed part at the beginning of `bytes`, which stand at `offset` of their segment and may be longer.
    pub fn read(bytes: &[u8], binding: Binding, offset: u64) -> Option<Self> {
        let fixed: &[u8; HEAD_BYTES_MIN] = bytes.first_chunk()?;
        let is_head = word(fixed, 0) == binding.head_magic();
        if !is_head && word(fixed, 0) != binding.tail_magic() {
            return None;
        }
        let record_bytes = word(fixed, 8);
        let body_bytes = word(fixed, 12) as usize;
        let head_bytes = aligned(HEAD_BYTES_MIN.checked_add(body_bytes)?);
        if head_bytes > bytes.len() || head_bytes.checked_mul(2)? > record_bytes as usize {
            return None;
        }
        // A tail carries the checksum of its head, which is that of the place where the record begins.
        let back = if is_head { 0 } else { record_bytes as usize - head_bytes };
        let crc = word(fixed, 4) ^ binding.mask(offset.checked_sub(back as u64)?);
        Some(Self { is_head, record_bytes, body_bytes, head_bytes, back, crc })
    }

    /// Decodes the rest, if `crc` is the expected one. `bytes` are at least the whole head or tail.
    pub fn decode(self, bytes: &Bytes, crc: u32) -> Option<Found> {
        if crc != self.crc {
            return None;
        }
        let fixed: &[u8; HEAD_BYTES_MIN] = bytes.first_chunk()?;
        let long = |at: usize| u64::from(word(fixed, at)) | u64::from(word(fixed, at + 4)) << 32;
        let payload_bytes = self.record_bytes as usize - 2 * self.head_bytes;
        let body = bytes.slice(HEAD_BYTES_MIN..HEAD_BYTES_MIN + self.body_bytes);
        let record = Record {
            sequence: long(16),
            synced: long(24),
            record_bytes: self.record_bytes,
            head_bytes: self.head_bytes as u32,
            body: decode_body(body, payload_bytes)?,
        };
        Some(if self.is_head { Found::Head(record) } else { Found::Tail(record, self.back) })
    }
}

/// Decodes the head or the tail at the beginning of `bytes`, which stand at `offset` of their segment and may be
/// longer. `None` if there is neither.
pub fn decode(bytes: &Bytes, binding: Binding, offset: u64) -> Option<Found> {
    let outline = Outline::read(bytes, binding, offset)?;
    outline.decode(bytes, crc32c(&bytes[8..outline.head_bytes]))
}

/// Returns the lengths that a damaged head gives for its record and its body, and those that differ from them by one
/// flipped bit.
pub fn damaged_lengths(bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let lengths = bytes.first_chunk::<HEAD_BYTES_MIN>().map(|fixed| (word(fixed, 8), word(fixed, 12)));
    lengths.into_iter().flat_map(|(record_bytes, body_bytes)| {
        let flips = (0..32).map(move |bit| (record_bytes ^ 1 << bit, body_bytes));
        let more = (0..32).map(move |bit| (record_bytes, body_bytes ^ 1 << bit));
        let all = std::iter::once((record_bytes, body_bytes)).chain(flips).chain(more);
        all.map(|(record_bytes, body_bytes)| (record_bytes as usize, body_bytes as usize))
    })
}

/// Returns the object that a record with a damaged head and tail is about, as far as the remains tell: for messages
/// only.
pub fn damaged_object(bytes: &[u8]) -> Option<ObjectId> {
    let body = bytes.get(HEAD_BYTES_MIN..(HEAD_BYTES_MIN + (4 << 10)).min(bytes.len()))?;
    let mut reader = Reader::new(Bytes::copy_from_slice(body));
    match reader.u8()? {
        BODY_TRANSACTION | BODY_TRANSACTION_ONCE => ObjectId::new(reader.bytes()?).ok(),
        _ => None,
    }
}

fn word(fixed: &[u8; HEAD_BYTES_MIN], at: usize) -> u32 {
    u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
}

fn decode_body(bytes: Bytes, payload_bytes: usize) -> Option<Body> {
    let mut reader = Reader::new(bytes);
    let mut room = payload_bytes;
    let body = match reader.u8()? {
        kind @ (BODY_TRANSACTION | BODY_TRANSACTION_ONCE) => {
            let object = ObjectId::new(reader.bytes()?).ok()?;
            let count = usize::try_from(reader.varint()?).ok()?;
            // Each effect takes at least one byte.
            let mut effects = Vec::with_capacity(count.min(reader.remaining()));
            for _ in 0..count {
                let effect = decode_effect(&mut reader, effects.last())?;
                if let Effect::Chunk { len, .. } = &effect {
                    room = room.checked_sub(*len as usize)?;
                }
                effects.push(effect);
            }
            let version = reader.u64()?;
            let repeatable = match kind {
                BODY_TRANSACTION_ONCE => Some(decode_repeatable(&mut reader)?),
                _ => None,
            };
            Body::Transaction { object, version, effects, repeatable }
        }
        kind @ (BODY_MOVES | BODY_MOVES_FROM) => {
            let count = usize::try_from(reader.varint()?).ok()?;
            let mut moves = Vec::with_capacity(count.min(reader.remaining() / 8));
            for _ in 0..count {
                let object = ObjectId::new(reader.bytes()?).ok()?;
                let fork = Fork::new(reader.bytes()?).ok()?;
                let (start, len) = chunk_range(&mut reader)?;
                let version = reader.varint()?;
                let crc = reader.u32()?;
                room = room.checked_sub(len as usize)?;
                if len == 0 {
                    return None;
                }
                let mut number = || u32::try_from(reader.varint()?).ok();
                let source = if kind == BODY_MOVES_FROM { Some((number()?, number()?)) } else { None };
                moves.push(Moved { object, fork, start, len, version, crc, source });
            }
            Body::Moves(moves)
        }
        BODY_TOKENS => {
            let first = reader.varint()?;
            let count = usize::try_from(reader.varint()?).ok()?;
            first.checked_add(count as u64)?;
            let mut writes = Vec::with_capacity(count.min(reader.remaining() / (WRITER_BYTES + 2)));
            for _ in 0..count {
                let Repeatable { token, existed } = decode_repeatable(&mut reader)?;
                writes.push(Written { token, version: reader.varint()?, existed });
            }
            Body::Tokens { first, writes }
        }
        BODY_FLOOR => Body::Floor(reader.varint()?),
        BODY_MARK => Body::Mark,
        _ => return None,
    };
    (reader.remaining() == 0).then_some(body)
}

fn decode_repeatable(reader: &mut Reader) -> Option<Repeatable> {
    let writer: [u8; WRITER_BYTES] = reader.array()?;
    let number = reader.varint()?;
    const { assert!(SEQUENCE_MAX == u64::MAX >> 1) };
    Some(Repeatable { token: WriteToken { writer, sequence: number >> 1 }, existed: number & 1 == 1 })
}

fn chunk_range(reader: &mut Reader) -> Option<(u64, u32)> {
    let offset = reader.varint()?;
    let len = reader.varint()?;
    if len > CHUNK_BYTES_MAX as u64 || offset.checked_add(len)? > OFFSET_MAX {
        return None;
    }
    Some((offset, len as u32))
}

fn decode_effect(reader: &mut Reader, previous: Option<&Effect>) -> Option<Effect> {
    let fork = |reader: &mut Reader| Fork::new(reader.bytes()?).ok();
    let key = |reader: &mut Reader| Key::new(reader.bytes()?).ok();
    Some(match reader.u8()? {
        EFFECT_CREATE => Effect::Create,
        EFFECT_CHUNK => {
            let fork = fork(reader)?;
            let (offset, len) = chunk_range(reader)?;
            Effect::Chunk { fork, offset, len, crc: reader.u32()? }
        }
        EFFECT_CHUNK_AGAIN => {
            let Some(Effect::Chunk { fork, .. }) = previous else { return None };
            let fork = fork.clone();
            let (offset, len) = chunk_range(reader)?;
            Effect::Chunk { fork, offset, len, crc: reader.u32()? }
        }
        EFFECT_ZERO => {
            let fork = fork(reader)?;
            let range = ByteRange::new(reader.varint()?, reader.varint()?);
            range.validate().ok()?;
            Effect::Zero { fork, range }
        }
        EFFECT_TRUNCATE => {
            let fork = fork(reader)?;
            let size = reader.varint()?;
            if size > OFFSET_MAX {
                return None;
            }
            Effect::Truncate { fork, size }
        }
        EFFECT_REMOVE_FORK => Effect::RemoveFork { fork: fork(reader)? },
        EFFECT_REPLACE_FORK => Effect::ReplaceFork { fork: fork(reader)?, from: fork(reader)? },
        EFFECT_SET_KEY => Effect::SetKey { key: key(reader)?, value: reader.bytes()? },
        EFFECT_REMOVE_KEY => Effect::RemoveKey { key: key(reader)? },
        EFFECT_SET_ATTRIBUTE => Effect::SetAttribute { name: key(reader)?, value: reader.bytes()? },
        EFFECT_REMOVE_ATTRIBUTE => Effect::RemoveAttribute { name: key(reader)? },
        EFFECT_RAISE_FENCE => Effect::RaiseFence { token: reader.varint()? },
        EFFECT_FENCE_SESSION => Effect::FenceSession { session: reader.varint()? },
        EFFECT_REMOVE => Effect::Remove,
        _ => return None,
    })
}
