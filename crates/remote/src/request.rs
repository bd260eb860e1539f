//! The bodies of the object service's requests: transactions and listings.
//!
//! Every operation begins with the same four bytes: its code, an argument, and the length of the name that follows (of
//! a fork, a key or an attribute). The bytes after the name depend on the operation; `docs/wire.md` has the diagrams.

use std::borrow::Cow;

use bytes::Bytes;
use nacre_object::limit::{
    EXTENTS_PER_TRANSACTION_MAX, FORK_NAME_BYTES_MAX, KEY_BYTES_MAX, OBJECT_ID_BYTES_MAX, OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
};
use nacre_object::{
    ByteRange, Check, Fork, Guard, Intent, Key, KeyRange, ObjectId, ReadOp, StoreError, Transaction, WriteOp,
};
use nacre_rpc::{Cursor, MessageKind, Outbox, WireError};

use crate::kind;

/// The feature bit of appends, guards of sizes, and reads of keys that announce an update.
pub const APPEND: u64 = 2;

/// The smallest size of an operation, in bytes.
const OPERATION_BYTES: usize = 4;

/// The codes of operations in the protocol.
mod code {
    pub(super) const GUARD_EXISTS: u8 = 1;
    pub(super) const GUARD_ABSENT: u8 = 2;
    pub(super) const GUARD_REGION: u8 = 3;
    pub(super) const GUARD_PROPOSAL: u8 = 4;
    pub(super) const GUARD_KEY: u8 = 5;
    pub(super) const GUARD_ATTRIBUTE: u8 = 6;
    pub(super) const GUARD_FENCE: u8 = 7;
    pub(super) const GUARD_VERSION: u8 = 8;
    pub(super) const GUARD_KEY_VERSION: u8 = 9;
    pub(super) const GUARD_SIZE: u8 = 10;

    pub(super) const CHECK_PRESENT: u8 = 0;
    pub(super) const CHECK_ABSENT: u8 = 1;
    pub(super) const CHECK_EQUAL: u8 = 2;
    pub(super) const CHECK_NOT_EQUAL: u8 = 3;
    pub(super) const CHECK_LESS: u8 = 4;
    pub(super) const CHECK_LESS_OR_EQUAL: u8 = 5;
    pub(super) const CHECK_GREATER: u8 = 6;
    pub(super) const CHECK_GREATER_OR_EQUAL: u8 = 7;

    pub(super) const READ_RANGE: u8 = 1;
    pub(super) const READ_EXTENTS: u8 = 2;
    pub(super) const READ_STAT: u8 = 3;
    pub(super) const READ_FORKS: u8 = 4;
    pub(super) const READ_KEY: u8 = 5;
    pub(super) const READ_KEYS: u8 = 6;
    pub(super) const READ_ATTRIBUTE: u8 = 7;
    pub(super) const READ_ATTRIBUTES: u8 = 8;
    pub(super) const READ_VERSIONED_KEY: u8 = 9;
    pub(super) const READ_VERSIONED_KEYS: u8 = 10;
    pub(super) const READ_FENCES: u8 = 11;

    pub(super) const INTENT_LOOK: u8 = 0;
    pub(super) const INTENT_UPDATE: u8 = 1;

    /// The bits of the argument of `READ_KEYS` and `READ_VERSIONED_KEYS`.
    pub(super) const KEYS_VALUES: u8 = 1;
    pub(super) const KEYS_AFTER: u8 = 2;
    pub(super) const KEYS_BEFORE: u8 = 4;

    pub(super) const WRITE_CREATE: u8 = 1;
    pub(super) const WRITE_EXTENTS: u8 = 2;
    pub(super) const WRITE_ZERO: u8 = 3;
    pub(super) const WRITE_TRUNCATE: u8 = 4;
    pub(super) const WRITE_REMOVE_FORK: u8 = 5;
    pub(super) const WRITE_SET_KEY: u8 = 6;
    pub(super) const WRITE_REMOVE_KEY: u8 = 7;
    pub(super) const WRITE_SET_ATTRIBUTE: u8 = 8;
    pub(super) const WRITE_REMOVE_ATTRIBUTE: u8 = 9;
    pub(super) const WRITE_RAISE_FENCE: u8 = 10;
    pub(super) const WRITE_REMOVE: u8 = 11;
    pub(super) const WRITE_REPLACE_FORK: u8 = 12;
    pub(super) const WRITE_FENCE_SESSION: u8 = 13;
    pub(super) const WRITE_APPEND: u8 = 14;
}

/// Returns whether only servers with the feature [`APPEND`] can read a transaction.
pub(crate) fn needs_append(transaction: &Transaction) -> bool {
    transaction.guards.iter().any(|guard| matches!(guard, Guard::Size { .. }))
        || transaction.writes.iter().any(|write| matches!(write, WriteOp::Append { .. }))
}

/// Returns a transaction for a server without the feature [`APPEND`]: its reads of keys announce no updates.
pub(crate) fn without_hints(transaction: &Transaction) -> Cow<'_, Transaction> {
    let announces = |read: &ReadOp| matches!(read, ReadOp::VersionedKey { intent: Intent::Update, .. });
    if !transaction.reads.iter().any(announces) {
        return Cow::Borrowed(transaction);
    }
    let mut plain = transaction.clone();
    for read in &mut plain.reads {
        if let ReadOp::VersionedKey { intent, .. } = read {
            *intent = Intent::Look;
        }
    }
    Cow::Owned(plain)
}

/// Writes a request to apply a transaction, which must have passed [`Transaction::validate`]. Returns the length of its
/// body.
pub fn put_apply(
    outbox: &mut Outbox,
    id: u64,
    object: &ObjectId,
    transaction: &Transaction,
) -> Result<usize, StoreError> {
    put_apply_as(outbox, kind::APPLY, id, object, transaction, |_| ())
}

/// Writes a request of another kind whose body is that of a request to apply a transaction behind something else.
pub(crate) fn put_apply_as(
    outbox: &mut Outbox,
    kind: MessageKind,
    id: u64,
    object: &ObjectId,
    transaction: &Transaction,
    put_before: impl FnOnce(&mut Outbox),
) -> Result<usize, StoreError> {
    for read in &transaction.reads {
        if let ReadOp::Keys { range, .. } | ReadOp::VersionedKeys { range, .. } = read {
            let bounds = [range.after.as_ref(), range.before.as_ref(), Some(&range.prefix)];
            if bounds.into_iter().flatten().any(|bound| bound.len() > KEY_BYTES_MAX) {
                return Err(WireError::Malformed("a bound of a range of keys is longer than any key").into());
            }
        }
    }
    let open = outbox.begin(kind, id);
    put_before(outbox);
    put_object(outbox, object);
    // The limit on the operations of a transaction ensures that these three fit.
    outbox.u16(transaction.guards.len() as u16);
    outbox.u16(transaction.reads.len() as u16);
    outbox.u16(transaction.writes.len() as u16);
    for guard in &transaction.guards {
        put_guard(outbox, guard);
    }
    for read in &transaction.reads {
        put_read(outbox, read);
    }
    for write in &transaction.writes {
        put_write(outbox, write);
    }
    outbox.end(open).map_err(|body_bytes| WireError::TooLong { body_bytes }.into())
}

/// Reads a request to apply a transaction. The caller has to validate the transaction.
pub fn get_apply(body: &Bytes) -> Result<(ObjectId, Transaction), WireError> {
    let mut cursor = Cursor::new(body);
    let object = get_object(&mut cursor)?;
    let guards = cursor.u16()? as usize;
    let reads = cursor.u16()? as usize;
    let writes = cursor.u16()? as usize;
    cursor.count(guards + reads + writes, OPERATIONS_MAX, OPERATION_BYTES)?;
    let mut transaction = Transaction {
        guards: Vec::with_capacity(guards),
        reads: Vec::with_capacity(reads),
        writes: Vec::with_capacity(writes),
    };
    for _ in 0..guards {
        transaction.guards.push(get_guard(&mut cursor)?);
    }
    for _ in 0..reads {
        transaction.reads.push(get_read(&mut cursor)?);
    }
    let mut extents = 0;
    for _ in 0..writes {
        transaction.writes.push(get_write(&mut cursor, &mut extents)?);
    }
    cursor.end()?;
    Ok((object, transaction))
}

/// Writes a request for a page of objects.
pub fn put_list(outbox: &mut Outbox, id: u64, after: Option<&ObjectId>, limit: usize) {
    let open = outbox.begin(kind::LIST, id);
    outbox.u32(limit.min(u32::MAX as usize) as u32);
    match after {
        None => outbox.u8(0),
        Some(object) => put_object(outbox, object),
    }
    // The body is at most 260 bytes long.
    let _ = outbox.end(open);
}

/// Reads a request for a page of objects.
pub fn get_list(body: &Bytes) -> Result<(Option<ObjectId>, usize), WireError> {
    let mut cursor = Cursor::new(body);
    let limit = cursor.u32()? as usize;
    let len = cursor.u8()? as usize;
    let after = if len == 0 { None } else { Some(ObjectId::new(cursor.bytes(len)?)?) };
    cursor.end()?;
    Ok((after, limit))
}

pub(crate) fn put_object(outbox: &mut Outbox, object: &ObjectId) {
    const { assert!(OBJECT_ID_BYTES_MAX == u8::MAX as usize) };
    outbox.u8(object.as_bytes().len() as u8);
    outbox.slice(object.as_bytes());
}

pub(crate) fn get_object(cursor: &mut Cursor<'_>) -> Result<ObjectId, WireError> {
    let len = cursor.u8()? as usize;
    Ok(ObjectId::new(cursor.bytes(len)?)?)
}

fn put_operation(outbox: &mut Outbox, code: u8, argument: u8, name: &[u8]) {
    outbox.u8(code);
    outbox.u8(argument);
    outbox.u16(name.len() as u16);
    outbox.slice(name);
}

fn put_range(outbox: &mut Outbox, range: &ByteRange) {
    outbox.u64(range.offset);
    outbox.u64(range.len);
}

fn get_range(cursor: &mut Cursor<'_>) -> Result<ByteRange, WireError> {
    Ok(ByteRange::new(cursor.u64()?, cursor.u64()?))
}

fn put_value(outbox: &mut Outbox, value: &Bytes) {
    // The limit on a transaction's payload ensures that the length fits.
    outbox.u32(value.len() as u32);
    outbox.payload(value);
}

fn get_value(cursor: &mut Cursor<'_>) -> Result<Bytes, WireError> {
    let len = cursor.u32()? as usize;
    if len > TRANSACTION_BYTES_MAX {
        return Err(WireError::Malformed("a value is longer than any payload may be"));
    }
    cursor.bytes(len)
}

fn put_guard(outbox: &mut Outbox, guard: &Guard) {
    match guard {
        Guard::Exists => put_operation(outbox, code::GUARD_EXISTS, 0, &[]),
        Guard::Absent => put_operation(outbox, code::GUARD_ABSENT, 0, &[]),
        Guard::Region { fork, range, version } => {
            put_operation(outbox, code::GUARD_REGION, 0, fork.as_bytes());
            put_range(outbox, range);
            outbox.u64(*version);
        }
        Guard::Proposal { fork, range, version } => {
            put_operation(outbox, code::GUARD_PROPOSAL, 0, fork.as_bytes());
            put_range(outbox, range);
            outbox.u64(*version);
        }
        Guard::Key { key, check } => put_check(outbox, code::GUARD_KEY, key, check),
        Guard::Attribute { name, check } => put_check(outbox, code::GUARD_ATTRIBUTE, name, check),
        Guard::Version { version } => {
            put_operation(outbox, code::GUARD_VERSION, 0, &[]);
            outbox.u64(*version);
        }
        Guard::KeyVersion { key, version } => {
            put_operation(outbox, code::GUARD_KEY_VERSION, 0, key.as_bytes());
            outbox.u64(*version);
        }
        Guard::Size { fork, size } => {
            put_operation(outbox, code::GUARD_SIZE, 0, fork.as_bytes());
            outbox.u64(*size);
        }
        Guard::Fence { token } => {
            put_operation(outbox, code::GUARD_FENCE, 0, &[]);
            outbox.u64(*token);
        }
    }
}

fn put_check(outbox: &mut Outbox, operation: u8, name: &Key, check: &Check) {
    let (argument, operand) = match check {
        Check::Present => (code::CHECK_PRESENT, None),
        Check::Absent => (code::CHECK_ABSENT, None),
        Check::Equal(operand) => (code::CHECK_EQUAL, Some(operand)),
        Check::NotEqual(operand) => (code::CHECK_NOT_EQUAL, Some(operand)),
        Check::Less(operand) => (code::CHECK_LESS, Some(operand)),
        Check::LessOrEqual(operand) => (code::CHECK_LESS_OR_EQUAL, Some(operand)),
        Check::Greater(operand) => (code::CHECK_GREATER, Some(operand)),
        Check::GreaterOrEqual(operand) => (code::CHECK_GREATER_OR_EQUAL, Some(operand)),
    };
    put_operation(outbox, operation, argument, name.as_bytes());
    if let Some(operand) = operand {
        put_value(outbox, operand);
    }
}

fn get_check(cursor: &mut Cursor<'_>, argument: u8) -> Result<Check, WireError> {
    Ok(match argument {
        code::CHECK_PRESENT => Check::Present,
        code::CHECK_ABSENT => Check::Absent,
        code::CHECK_EQUAL => Check::Equal(get_value(cursor)?),
        code::CHECK_NOT_EQUAL => Check::NotEqual(get_value(cursor)?),
        code::CHECK_LESS => Check::Less(get_value(cursor)?),
        code::CHECK_LESS_OR_EQUAL => Check::LessOrEqual(get_value(cursor)?),
        code::CHECK_GREATER => Check::Greater(get_value(cursor)?),
        code::CHECK_GREATER_OR_EQUAL => Check::GreaterOrEqual(get_value(cursor)?),
        _ => return Err(WireError::Malformed("unknown check")),
    })
}

/// Reads the start of an operation: its code, its argument and its name.
fn get_operation(cursor: &mut Cursor<'_>) -> Result<(u8, u8, Bytes), WireError> {
    let code = cursor.u8()?;
    let argument = cursor.u8()?;
    let len = cursor.u16()? as usize;
    Ok((code, argument, cursor.bytes(len)?))
}

/// Checks that an operation that takes neither a name nor an argument has none.
fn bare(argument: u8, name: &Bytes) -> Result<(), WireError> {
    plain(argument)?;
    if name.is_empty() { Ok(()) } else { Err(WireError::Malformed("an operation without a name has one")) }
}

/// Checks that an operation that takes no argument has none.
fn plain(argument: u8) -> Result<(), WireError> {
    if argument == 0 { Ok(()) } else { Err(WireError::Malformed("unknown argument of an operation")) }
}

fn get_guard(cursor: &mut Cursor<'_>) -> Result<Guard, WireError> {
    let (operation, argument, name) = get_operation(cursor)?;
    match operation {
        code::GUARD_KEY => {
            return Ok(Guard::Key { key: Key::new(name)?, check: get_check(cursor, argument)? });
        }
        code::GUARD_ATTRIBUTE => {
            return Ok(Guard::Attribute { name: Key::new(name)?, check: get_check(cursor, argument)? });
        }
        code::GUARD_REGION | code::GUARD_PROPOSAL | code::GUARD_KEY_VERSION | code::GUARD_SIZE => {
            plain(argument)?;
        }
        _ => bare(argument, &name)?,
    }
    Ok(match operation {
        code::GUARD_EXISTS => Guard::Exists,
        code::GUARD_ABSENT => Guard::Absent,
        code::GUARD_REGION => {
            Guard::Region { fork: Fork::new(name)?, range: get_range(cursor)?, version: cursor.u64()? }
        }
        code::GUARD_PROPOSAL => {
            Guard::Proposal { fork: Fork::new(name)?, range: get_range(cursor)?, version: cursor.u64()? }
        }
        code::GUARD_FENCE => Guard::Fence { token: cursor.u64()? },
        code::GUARD_VERSION => Guard::Version { version: cursor.u64()? },
        code::GUARD_KEY_VERSION => Guard::KeyVersion { key: Key::new(name)?, version: cursor.u64()? },
        code::GUARD_SIZE => Guard::Size { fork: Fork::new(name)?, size: cursor.u64()? },
        _ => return Err(WireError::Malformed("unknown guard")),
    })
}

pub(crate) fn put_read(outbox: &mut Outbox, read: &ReadOp) {
    match read {
        ReadOp::Range { fork, range, intent } => {
            put_operation(outbox, code::READ_RANGE, code_of(*intent), fork.as_bytes());
            put_range(outbox, range);
        }
        ReadOp::Extents { fork, range } => {
            put_operation(outbox, code::READ_EXTENTS, 0, fork.as_bytes());
            put_range(outbox, range);
        }
        ReadOp::Stat => put_operation(outbox, code::READ_STAT, 0, &[]),
        ReadOp::Forks { after, limit } => {
            let name = after.as_ref().map_or(&[][..], Fork::as_bytes);
            put_operation(outbox, code::READ_FORKS, after.is_some() as u8, name);
            outbox.u32(*limit);
        }
        ReadOp::Key { key } => put_operation(outbox, code::READ_KEY, 0, key.as_bytes()),
        ReadOp::Keys { range, limit, values } => put_keys(outbox, code::READ_KEYS, range, *limit, *values),
        ReadOp::Attribute { name } => put_operation(outbox, code::READ_ATTRIBUTE, 0, name.as_bytes()),
        ReadOp::Attributes => put_operation(outbox, code::READ_ATTRIBUTES, 0, &[]),
        ReadOp::VersionedKey { key, intent } => {
            put_operation(outbox, code::READ_VERSIONED_KEY, code_of(*intent), key.as_bytes());
        }
        ReadOp::VersionedKeys { range, limit, values } => {
            put_keys(outbox, code::READ_VERSIONED_KEYS, range, *limit, *values);
        }
        ReadOp::Fences => put_operation(outbox, code::READ_FENCES, 0, &[]),
    }
}

fn code_of(intent: Intent) -> u8 {
    match intent {
        Intent::Look => code::INTENT_LOOK,
        Intent::Update => code::INTENT_UPDATE,
    }
}

fn intent_of(argument: u8) -> Result<Intent, WireError> {
    match argument {
        code::INTENT_LOOK => Ok(Intent::Look),
        code::INTENT_UPDATE => Ok(Intent::Update),
        _ => Err(WireError::Malformed("unknown intent of a read")),
    }
}

fn put_keys(outbox: &mut Outbox, operation: u8, range: &KeyRange, limit: u32, values: bool) {
    let mut bits = 0;
    if values {
        bits |= code::KEYS_VALUES;
    }
    if range.after.is_some() {
        bits |= code::KEYS_AFTER;
    }
    if range.before.is_some() {
        bits |= code::KEYS_BEFORE;
    }
    put_operation(outbox, operation, bits, &range.prefix);
    outbox.u32(limit);
    for bound in [&range.after, &range.before].into_iter().flatten() {
        outbox.u16(bound.len() as u16);
        outbox.slice(bound);
    }
}

pub(crate) fn get_read(cursor: &mut Cursor<'_>) -> Result<ReadOp, WireError> {
    let (operation, argument, name) = get_operation(cursor)?;
    Ok(match operation {
        code::READ_RANGE => {
            let intent = intent_of(argument)?;
            ReadOp::Range { fork: Fork::new(name)?, range: get_range(cursor)?, intent }
        }
        code::READ_EXTENTS => {
            plain(argument)?;
            ReadOp::Extents { fork: Fork::new(name)?, range: get_range(cursor)? }
        }
        code::READ_STAT => {
            bare(argument, &name)?;
            ReadOp::Stat
        }
        code::READ_FORKS => {
            let after = match argument {
                0 => {
                    bare(argument, &name)?;
                    None
                }
                1 => Some(Fork::new(name)?),
                _ => return Err(WireError::Malformed("unknown argument of an operation")),
            };
            ReadOp::Forks { after, limit: cursor.u32()? }
        }
        code::READ_KEY => {
            plain(argument)?;
            ReadOp::Key { key: Key::new(name)? }
        }
        code::READ_KEYS | code::READ_VERSIONED_KEYS => {
            if argument & !(code::KEYS_VALUES | code::KEYS_AFTER | code::KEYS_BEFORE) != 0 {
                return Err(WireError::Malformed("unknown argument of an operation"));
            }
            let limit = cursor.u32()?;
            let mut bound = |bit: u8| -> Result<Option<Bytes>, WireError> {
                if argument & bit == 0 {
                    return Ok(None);
                }
                let len = cursor.u16()? as usize;
                Ok(Some(cursor.bytes(len)?))
            };
            let after = bound(code::KEYS_AFTER)?;
            let before = bound(code::KEYS_BEFORE)?;
            let values = argument & code::KEYS_VALUES != 0;
            let range = KeyRange { after, before, prefix: name };
            match operation {
                code::READ_KEYS => ReadOp::Keys { range, limit, values },
                _ => ReadOp::VersionedKeys { range, limit, values },
            }
        }
        code::READ_ATTRIBUTE => {
            plain(argument)?;
            ReadOp::Attribute { name: Key::new(name)? }
        }
        code::READ_ATTRIBUTES => {
            bare(argument, &name)?;
            ReadOp::Attributes
        }
        code::READ_VERSIONED_KEY => {
            ReadOp::VersionedKey { key: Key::new(name)?, intent: intent_of(argument)? }
        }
        code::READ_FENCES => {
            bare(argument, &name)?;
            ReadOp::Fences
        }
        _ => return Err(WireError::Malformed("unknown read")),
    })
}

fn put_write(outbox: &mut Outbox, write: &WriteOp) {
    match write {
        WriteOp::Create => put_operation(outbox, code::WRITE_CREATE, 0, &[]),
        WriteOp::Extents { fork, extents } => {
            put_operation(outbox, code::WRITE_EXTENTS, 0, fork.as_bytes());
            outbox.u32(extents.len() as u32);
            for (offset, data) in extents {
                outbox.u64(*offset);
                outbox.u32(data.len() as u32);
            }
            for (_, data) in extents {
                outbox.payload(data);
            }
        }
        WriteOp::Append { fork, data } => {
            put_operation(outbox, code::WRITE_APPEND, 0, fork.as_bytes());
            put_value(outbox, data);
        }
        WriteOp::Zero { fork, range } => {
            put_operation(outbox, code::WRITE_ZERO, 0, fork.as_bytes());
            put_range(outbox, range);
        }
        WriteOp::Truncate { fork, size } => {
            put_operation(outbox, code::WRITE_TRUNCATE, 0, fork.as_bytes());
            outbox.u64(*size);
        }
        WriteOp::RemoveFork { fork } => put_operation(outbox, code::WRITE_REMOVE_FORK, 0, fork.as_bytes()),
        WriteOp::ReplaceFork { fork, from } => {
            put_operation(outbox, code::WRITE_REPLACE_FORK, 0, fork.as_bytes());
            const { assert!(FORK_NAME_BYTES_MAX == u8::MAX as usize) };
            outbox.u8(from.as_bytes().len() as u8);
            outbox.slice(from.as_bytes());
        }
        WriteOp::SetKey { key, value } => {
            put_operation(outbox, code::WRITE_SET_KEY, 0, key.as_bytes());
            put_value(outbox, value);
        }
        WriteOp::RemoveKey { key } => put_operation(outbox, code::WRITE_REMOVE_KEY, 0, key.as_bytes()),
        WriteOp::SetAttribute { name, value } => {
            put_operation(outbox, code::WRITE_SET_ATTRIBUTE, 0, name.as_bytes());
            put_value(outbox, value);
        }
        WriteOp::RemoveAttribute { name } => {
            put_operation(outbox, code::WRITE_REMOVE_ATTRIBUTE, 0, name.as_bytes());
        }
        WriteOp::RaiseFence { token } => {
            put_operation(outbox, code::WRITE_RAISE_FENCE, 0, &[]);
            outbox.u64(*token);
        }
        WriteOp::FenceSession { session } => {
            put_operation(outbox, code::WRITE_FENCE_SESSION, 0, &[]);
            outbox.u64(*session);
        }
        WriteOp::Remove => put_operation(outbox, code::WRITE_REMOVE, 0, &[]),
    }
}

fn get_write(cursor: &mut Cursor<'_>, extents_so_far: &mut usize) -> Result<WriteOp, WireError> {
    let (operation, argument, name) = get_operation(cursor)?;
    plain(argument)?;
    Ok(match operation {
        code::WRITE_CREATE => {
            bare(argument, &name)?;
            WriteOp::Create
        }
        code::WRITE_EXTENTS => {
            let fork = Fork::new(name)?;
            let count = cursor.u32()? as usize;
            let limit = EXTENTS_PER_TRANSACTION_MAX - *extents_so_far;
            cursor.count(count, limit, 12)?;
            *extents_so_far += count;
            WriteOp::Extents { fork, extents: get_extents(cursor, count)? }
        }
        code::WRITE_APPEND => WriteOp::Append { fork: Fork::new(name)?, data: get_value(cursor)? },
        code::WRITE_ZERO => WriteOp::Zero { fork: Fork::new(name)?, range: get_range(cursor)? },
        code::WRITE_TRUNCATE => WriteOp::Truncate { fork: Fork::new(name)?, size: cursor.u64()? },
        code::WRITE_REMOVE_FORK => WriteOp::RemoveFork { fork: Fork::new(name)? },
        code::WRITE_REPLACE_FORK => {
            let len = cursor.u8()? as usize;
            WriteOp::ReplaceFork { fork: Fork::new(name)?, from: Fork::new(cursor.bytes(len)?)? }
        }
        code::WRITE_SET_KEY => WriteOp::SetKey { key: Key::new(name)?, value: get_value(cursor)? },
        code::WRITE_REMOVE_KEY => WriteOp::RemoveKey { key: Key::new(name)? },
        code::WRITE_SET_ATTRIBUTE => {
            WriteOp::SetAttribute { name: Key::new(name)?, value: get_value(cursor)? }
        }
        code::WRITE_REMOVE_ATTRIBUTE => WriteOp::RemoveAttribute { name: Key::new(name)? },
        code::WRITE_RAISE_FENCE => {
            bare(argument, &name)?;
            WriteOp::RaiseFence { token: cursor.u64()? }
        }
        code::WRITE_FENCE_SESSION => {
            bare(argument, &name)?;
            WriteOp::FenceSession { session: cursor.u64()? }
        }
        code::WRITE_REMOVE => {
            bare(argument, &name)?;
            WriteOp::Remove
        }
        _ => return Err(WireError::Malformed("unknown write")),
    })
}

/// Reads the extents of a vectored write: first the offset and length of each, then the bytes of all of them.
fn get_extents(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<(u64, Bytes)>, WireError> {
    if count == 1 {
        // This is by far the most common write.
        let (offset, len) = (cursor.u64()?, cursor.u32()? as usize);
        return Ok(vec![(offset, cursor.bytes(len)?)]);
    }
    let mut places = cursor.bytes(count * 12)?;
    let mut extents = Vec::with_capacity(count);
    while !places.is_empty() {
        let (offset, len) = (bytes::Buf::get_u64_le(&mut places), bytes::Buf::get_u32_le(&mut places));
        extents.push((offset, cursor.bytes(len as usize)?));
    }
    Ok(extents)
}
