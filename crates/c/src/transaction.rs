//! Transactions, built guard by guard, read by read and write by write.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use nacre::limit::{EXTENTS_PER_TRANSACTION_MAX, OPERATIONS_MAX};
use nacre::{ByteRange, Check, Fork, Guard, Intent, Key, KeyRange, ReadOp, Transaction, WriteOp};

use crate::argument::{array, handle_slot, name, optional_handle_slot, payload};
use crate::code::{Failure, NACRE_REFUSED, call};
use crate::handle::{self, Handle, get};
use crate::object::nacre_object;
use crate::result::nacre_result;

/// The presence of any value.
pub const NACRE_CHECK_PRESENT: c_int = 0;
/// The absence of a value.
pub const NACRE_CHECK_ABSENT: c_int = 1;
/// The value equals the given one.
pub const NACRE_CHECK_EQUAL: c_int = 2;
/// The value, if any, differs from the given one.
pub const NACRE_CHECK_NOT_EQUAL: c_int = 3;
/// The value is less than the given one. Values are compared bytewise, and a value that is not there is neither less nor greater.
pub const NACRE_CHECK_LESS: c_int = 4;
/// The value is less than the given one, or equals it.
pub const NACRE_CHECK_LESS_OR_EQUAL: c_int = 5;
/// The value is greater than the given one.
pub const NACRE_CHECK_GREATER: c_int = 6;
/// The value is greater than the given one, or equals it.
pub const NACRE_CHECK_GREATER_OR_EQUAL: c_int = 7;

/// The bytes are read to be looked at.
pub const NACRE_INTENT_LOOK: c_int = 0;
/// The same range will be written soon, on condition that it did not change: a hint, by which the server may let writers take turns.
pub const NACRE_INTENT_UPDATE: c_int = 1;

/// A range of keys: those that meet all three conditions. A NULL pointer stands for no condition.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_key_range {
    /// Keys must be greater than this one.
    pub after: *const c_void,
    /// Its length in bytes.
    pub after_length: usize,
    /// Keys must be less than this one.
    pub before: *const c_void,
    /// Its length in bytes.
    pub before_length: usize,
    /// Keys must begin with these bytes.
    pub prefix: *const c_void,
    /// Their number.
    pub prefix_length: usize,
}

impl nacre_key_range {
    /// Takes a range; all keys if there is none.
    ///
    /// # Safety
    ///
    /// The pointer is NULL, or leads to a range whose pointers are as [`argument`](crate::argument) says.
    pub unsafe fn take(range: *const nacre_key_range) -> Result<KeyRange, Failure> {
        // SAFETY: as the caller promises.
        unsafe {
            if range.is_null() {
                return Ok(KeyRange::all());
            }
            let range = range.read_unaligned();
            let bound = |bytes: *const c_void, length, subject: &str| match bytes.is_null() {
                true => Ok(None),
                false => Ok::<_, Failure>(Some(Bytes::copy_from_slice(name(bytes, length, subject)?))),
            };
            Ok(KeyRange {
                after: bound(range.after, range.after_length, "the lower bound of the keys")?,
                before: bound(range.before, range.before_length, "the upper bound of the keys")?,
                prefix: bound(range.prefix, range.prefix_length, "the prefix of the keys")?
                    .unwrap_or_default(),
            })
        }
    }
}

/// Bytes to be written at an offset.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_piece {
    /// The offset in bytes.
    pub offset: u64,
    /// The bytes.
    pub data: *const c_void,
    /// Their number.
    pub length: usize,
}

/// Guards, reads and writes on one object, applied wholly or not at all.
pub struct nacre_transaction {
    transaction: Mutex<Transaction>,
}

impl Handle for nacre_transaction {
    const WHAT: &'static str = "a transaction";
}

fn add(
    transaction: *mut nacre_transaction,
    add: impl FnOnce(&mut Transaction) -> Result<(), Failure>,
) -> c_int {
    call(|| {
        let transaction = get(transaction)?;
        // Whatever panicked while it was locked has added nothing.
        let mut transaction = transaction.transaction.lock().unwrap_or_else(PoisonError::into_inner);
        let count = transaction.guards.len() + transaction.reads.len() + transaction.writes.len();
        if count >= OPERATIONS_MAX {
            return Err(Failure::invalid(format!("a transaction has at most {OPERATIONS_MAX} operations")));
        }
        add(&mut transaction)
    })
}

fn guard(transaction: *mut nacre_transaction, guard: impl FnOnce() -> Result<Guard, Failure>) -> c_int {
    add(transaction, |transaction| {
        transaction.guards.push(guard()?);
        Ok(())
    })
}

fn read(transaction: *mut nacre_transaction, read: impl FnOnce() -> Result<ReadOp, Failure>) -> c_int {
    add(transaction, |transaction| {
        transaction.reads.push(read()?);
        Ok(())
    })
}

fn write(transaction: *mut nacre_transaction, write: impl FnOnce() -> Result<WriteOp, Failure>) -> c_int {
    add(transaction, |transaction| {
        transaction.writes.push(write()?);
        Ok(())
    })
}

/// Takes the name of a fork; NULL stands for the default one.
unsafe fn fork_of(pointer: *const c_void, length: usize) -> Result<Fork, Failure> {
    if pointer.is_null() {
        return Ok(Fork::DEFAULT);
    }
    // SAFETY: as the caller promises.
    Ok(Fork::new(Bytes::copy_from_slice(unsafe { name(pointer, length, "the name of the fork")? }))?)
}

unsafe fn key_of(pointer: *const c_void, length: usize) -> Result<Key, Failure> {
    // SAFETY: as the caller promises.
    Ok(Key::new(Bytes::copy_from_slice(unsafe { name(pointer, length, "the key")? }))?)
}

unsafe fn check_of(check: c_int, value: *const c_void, length: usize) -> Result<Check, Failure> {
    // SAFETY: as the caller promises.
    let value = || unsafe { payload(value, length) };
    Ok(match check {
        NACRE_CHECK_PRESENT => Check::Present,
        NACRE_CHECK_ABSENT => Check::Absent,
        NACRE_CHECK_EQUAL => Check::Equal(value()?),
        NACRE_CHECK_NOT_EQUAL => Check::NotEqual(value()?),
        NACRE_CHECK_LESS => Check::Less(value()?),
        NACRE_CHECK_LESS_OR_EQUAL => Check::LessOrEqual(value()?),
        NACRE_CHECK_GREATER => Check::Greater(value()?),
        NACRE_CHECK_GREATER_OR_EQUAL => Check::GreaterOrEqual(value()?),
        _ => return Err(Failure::invalid(format!("{check} is not a check of a value"))),
    })
}

/// Makes an empty transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_new(transaction: *mut *mut nacre_transaction) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        handle_slot(transaction)?.put(nacre_transaction { transaction: Mutex::default() });
        Ok(())
    })
}

/// Ends a transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_close(transaction: *mut nacre_transaction) -> c_int {
    call(|| handle::take(transaction).map(|_| ()))
}

/// Applies a transaction to an object: wholly, or not at all. It can be applied again. NACRE_REFUSED if a guard does not hold; the result
/// tells which, and what stood there. `result` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_apply(
    transaction: *mut nacre_transaction,
    object: *mut nacre_object,
    result: *mut *mut nacre_result,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = optional_handle_slot(result);
        let transaction = get(transaction)?;
        let transaction = transaction.transaction.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let outcome = get(object)?.apply(transaction)?;
        let refused = outcome.refusal().copied();
        if let Some(slot) = slot {
            slot.put(outcome);
        }
        match refused {
            Some(refused) => {
                let text = format!("guard {} does not hold; nothing was changed", refused.guard);
                Err(Failure::new(NACRE_REFUSED, text))
            }
            None => Ok(()),
        }
    })
}

/// Guards: the object exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_if_exists(transaction: *mut nacre_transaction) -> c_int {
    guard(transaction, || Ok(Guard::Exists))
}

/// Guards: the object does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_if_absent(transaction: *mut nacre_transaction) -> c_int {
    guard(transaction, || Ok(Guard::Absent))
}

/// Guards: nothing in a range of a fork is newer than `version`. This is the conditional write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_if_region(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    offset: u64,
    length: u64,
    version: u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    guard(transaction, || unsafe {
        Ok(Guard::Region {
            fork: fork_of(fork, fork_length)?,
            range: ByteRange::new(offset, length),
            version,
        })
    })
}

/// Guards: `version`, at most 2^62, is greater than that of the range. The transaction is stamped with the greater of it and the object's next version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_if_proposal(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    offset: u64,
    length: u64,
    version: u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    guard(transaction, || unsafe {
        Ok(Guard::Proposal {
            fork: fork_of(fork, fork_length)?,
            range: ByteRange::new(offset, length),
            version,
        })
    })
}

/// Guards: the value of a key passes a check (NACRE_CHECK_EQUAL and so on).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_if_key(
    transaction: *mut nacre_transaction,
    key: *const c_void,
    key_length: usize,
    check: c_int,
    value: *const c_void,
    value_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    guard(transaction, || unsafe {
        Ok(Guard::Key { key: key_of(key, key_length)?, check: check_of(check, value, value_length)? })
    })
}

/// Guards: an attribute passes a check (NACRE_CHECK_EQUAL and so on).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_if_attribute(
    transaction: *mut nacre_transaction,
    name: *const c_void,
    name_length: usize,
    check: c_int,
    value: *const c_void,
    value_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    guard(transaction, || unsafe {
        Ok(Guard::Attribute {
            name: key_of(name, name_length)?,
            check: check_of(check, value, value_length)?,
        })
    })
}

/// Guards: the object's version is `version`; 0 for one that never existed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_if_version(
    transaction: *mut nacre_transaction,
    version: u64,
) -> c_int {
    guard(transaction, || Ok(Guard::Version { version }))
}

/// Guards: a key is of the version that was read; 0 stands for no such key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_if_key_version(
    transaction: *mut nacre_transaction,
    key: *const c_void,
    key_length: usize,
    version: u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    guard(transaction, || unsafe { Ok(Guard::KeyVersion { key: key_of(key, key_length)?, version }) })
}

/// Guards: a fork is `size` bytes long; one that does not exist is 0 bytes long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_if_size(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    size: u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    guard(transaction, || unsafe { Ok(Guard::Size { fork: fork_of(fork, fork_length)?, size }) })
}

/// Guards: the session of this number is not fenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_if_fence(
    transaction: *mut nacre_transaction,
    session: u64,
) -> c_int {
    guard(transaction, || Ok(Guard::Fence { token: session }))
}

/// Reads bytes of a range, with its extents and its version. `intent` is NACRE_INTENT_LOOK or NACRE_INTENT_UPDATE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_range(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    offset: u64,
    length: u64,
    intent: c_int,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    read(transaction, || unsafe {
        Ok(ReadOp::Range {
            fork: fork_of(fork, fork_length)?,
            range: ByteRange::new(offset, length),
            intent: intent_of(intent)?,
        })
    })
}

/// Reads the extents and the version of a range, without the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_extents(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    offset: u64,
    length: u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    read(transaction, || unsafe {
        Ok(ReadOp::Extents { fork: fork_of(fork, fork_length)?, range: ByteRange::new(offset, length) })
    })
}

/// Reads the object at a glance.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_stat(transaction: *mut nacre_transaction) -> c_int {
    read(transaction, || Ok(ReadOp::Stat))
}

/// Reads at most `limit` names of forks with their sizes and at most 1,024, after the fork `after`; from the first one if that is NULL. Forks of names that
/// begin with "nacre." are Nacre's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_forks(
    transaction: *mut nacre_transaction,
    after: *const c_void,
    after_length: usize,
    limit: u32,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    read(transaction, || unsafe {
        Ok(ReadOp::Forks {
            after: if after.is_null() { None } else { Some(fork_of(after, after_length)?) },
            limit,
        })
    })
}

/// Reads the value of a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_key(
    transaction: *mut nacre_transaction,
    key: *const c_void,
    key_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    read(transaction, || unsafe { Ok(ReadOp::Key { key: key_of(key, key_length)? }) })
}

/// Reads at most `limit` keys of a range and at most 1,024, with their values if `values` is not 0. A NULL range stands for all keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_keys(
    transaction: *mut nacre_transaction,
    range: *const nacre_key_range,
    limit: u32,
    values: c_int,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    read(transaction, || unsafe {
        Ok(ReadOp::Keys { range: nacre_key_range::take(range)?, limit, values: values != 0 })
    })
}

/// Reads an attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_attribute(
    transaction: *mut nacre_transaction,
    name: *const c_void,
    name_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    read(transaction, || unsafe { Ok(ReadOp::Attribute { name: key_of(name, name_length)? }) })
}

/// Reads all attributes with their values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_attributes(transaction: *mut nacre_transaction) -> c_int {
    read(transaction, || Ok(ReadOp::Attributes))
}

/// Reads the value of a key with its version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_versioned_key(
    transaction: *mut nacre_transaction,
    key: *const c_void,
    key_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    read(transaction, || unsafe { Ok(ReadOp::versioned_key(key_of(key, key_length)?)) })
}

/// Reads keys as nacre_transaction_read_keys does, with their versions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_versioned_keys(
    transaction: *mut nacre_transaction,
    range: *const nacre_key_range,
    limit: u32,
    values: c_int,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    read(transaction, || unsafe {
        Ok(ReadOp::VersionedKeys { range: nacre_key_range::take(range)?, limit, values: values != 0 })
    })
}

/// Reads the object's fence and its fenced sessions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_read_fences(transaction: *mut nacre_transaction) -> c_int {
    read(transaction, || Ok(ReadOp::Fences))
}

/// Makes the object exist. So does every other change but nacre_transaction_remove.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_create(transaction: *mut nacre_transaction) -> c_int {
    write(transaction, || Ok(WriteOp::Create))
}

/// Writes bytes at an offset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_write(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    offset: u64,
    data: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe {
        Ok(WriteOp::Extents {
            fork: fork_of(fork, fork_length)?,
            extents: vec![(offset, payload(data, length)?)],
        })
    })
}

/// Writes up to 65,536 pieces of a fork, in order: one operation of the 4,096 that a transaction may have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_write_pieces(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    pieces: *const nacre_piece,
    count: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe {
        Ok(WriteOp::Extents { fork: fork_of(fork, fork_length)?, extents: extents_of(pieces, count)? })
    })
}

/// Writes bytes at the end of a fork. A read of its extents in the same transaction shows its size before, which is where they begin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_append(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    data: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe {
        Ok(WriteOp::Append { fork: fork_of(fork, fork_length)?, data: payload(data, length)? })
    })
}

/// Makes a range read as zeros; neither makes a fork nor changes its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_zero(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    offset: u64,
    length: u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe {
        Ok(WriteOp::Zero { fork: fork_of(fork, fork_length)?, range: ByteRange::new(offset, length) })
    })
}

/// Sets the size of a fork in bytes, and creates it if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_truncate(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    size: u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe { Ok(WriteOp::Truncate { fork: fork_of(fork, fork_length)?, size }) })
}

/// Removes a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_remove_fork(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe { Ok(WriteOp::RemoveFork { fork: fork_of(fork, fork_length)? }) })
}

/// Replaces the content of a fork with that of `from`, another one, which is removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_replace_fork(
    transaction: *mut nacre_transaction,
    fork: *const c_void,
    fork_length: usize,
    from: *const c_void,
    from_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe {
        Ok(WriteOp::ReplaceFork { fork: fork_of(fork, fork_length)?, from: fork_of(from, from_length)? })
    })
}

/// Sets a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_set_key(
    transaction: *mut nacre_transaction,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe {
        Ok(WriteOp::SetKey { key: key_of(key, key_length)?, value: payload(value, value_length)? })
    })
}

/// Removes a key, if it is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_remove_key(
    transaction: *mut nacre_transaction,
    key: *const c_void,
    key_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe { Ok(WriteOp::RemoveKey { key: key_of(key, key_length)? }) })
}

/// Sets an attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_set_attribute(
    transaction: *mut nacre_transaction,
    name: *const c_void,
    name_length: usize,
    value: *const c_void,
    value_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe {
        Ok(WriteOp::SetAttribute { name: key_of(name, name_length)?, value: payload(value, value_length)? })
    })
}

/// Removes an attribute, if it is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_remove_attribute(
    transaction: *mut nacre_transaction,
    name: *const c_void,
    name_length: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    write(transaction, || unsafe { Ok(WriteOp::RemoveAttribute { name: key_of(name, name_length)? }) })
}

/// Fences all sessions whose numbers are less than `least`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_raise_fence(
    transaction: *mut nacre_transaction,
    least: u64,
) -> c_int {
    write(transaction, || Ok(WriteOp::RaiseFence { token: least }))
}

/// Fences one session: its changes of this object are refused from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_fence_session(
    transaction: *mut nacre_transaction,
    session: u64,
) -> c_int {
    write(transaction, || Ok(WriteOp::FenceSession { session }))
}

/// Removes the object with its forks, keys and attributes. Its version and its fences stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_transaction_remove(transaction: *mut nacre_transaction) -> c_int {
    write(transaction, || Ok(WriteOp::Remove))
}

fn intent_of(intent: c_int) -> Result<Intent, Failure> {
    match intent {
        NACRE_INTENT_LOOK => Ok(Intent::Look),
        NACRE_INTENT_UPDATE => Ok(Intent::Update),
        _ => Err(Failure::invalid(format!("{intent} is not an intent"))),
    }
}

unsafe fn extents_of(pieces: *const nacre_piece, count: usize) -> Result<Vec<(u64, Bytes)>, Failure> {
    // SAFETY: as the caller promises, for the array and for each piece.
    unsafe {
        let pieces = array(pieces, count, EXTENTS_PER_TRANSACTION_MAX, "pieces")?;
        pieces.iter().map(|piece| Ok((piece.offset, payload(piece.data, piece.length)?))).collect()
    }
}
