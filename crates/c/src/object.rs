//! Objects: bytes, keys and attributes, a call at a time.

use std::ffi::{c_int, c_void};

use bytes::Bytes;
use nacre::limit::{REFUSAL_BYTES_MAX, TRANSACTION_BYTES_MAX};
use nacre::{BlockingObject, ByteRange, KeyWritten, ReadOp, Transaction, Written};

use crate::argument::{Buffer, ResultSlot, buffer, handle_slot, name, optional, payload, required};
use crate::code::{Failure, NACRE_ABSENT, NACRE_REFUSED, call};
use crate::handle::{self, Handle, get};
use crate::result::nacre_result;
use crate::store::{Closed, nacre_store};
use crate::transaction::nacre_key_range;

/// An object of a store, and one of its forks: the default one, unless another was chosen.
pub struct nacre_object {
    object: BlockingObject,
    closed: Closed,
}

impl Handle for nacre_object {
    const WHAT: &'static str = "an object";
}

impl nacre_object {
    /// Returns the object, if its store is open.
    pub fn open(&self) -> Result<&BlockingObject, Failure> {
        self.closed.check()?;
        Ok(&self.object)
    }

    /// Applies a transaction, whose refusal is a result too.
    pub fn apply(&self, transaction: Transaction) -> Result<nacre_result, Failure> {
        let object = self.open()?;
        let store = object.nonblocking().store().blocking();
        Ok(nacre_result::of(store.apply(object.id(), transaction)?))
    }
}

/// An object at a glance.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_stat {
    /// Not 0 if the object exists.
    pub exists: c_int,
    /// The version of the last change, also if it removed the object; 0 if it never existed.
    pub version: u64,
    /// The least number of a session that passes, unless it is fenced by itself.
    pub fence: u64,
    /// The number of forks.
    pub forks: u64,
    /// The sum of their sizes in bytes.
    pub bytes: u64,
    /// The number of keys.
    pub keys: u64,
    /// The number of attributes.
    pub attributes: u64,
}

impl From<&nacre::Stat> for nacre_stat {
    fn from(stat: &nacre::Stat) -> nacre_stat {
        let nacre::Stat { exists, version, fence, forks, bytes, keys, attributes } = *stat;
        nacre_stat { exists: exists.into(), version, fence, forks, bytes, keys, attributes }
    }
}

/// Returns a handle on an object, whether the object exists or not. A name is 1 to 255 bytes of any values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_open(
    store: *mut nacre_store,
    name: *const c_void,
    name_length: usize,
    object: *mut *mut nacre_object,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(object)?;
        let store = get(store)?;
        let id = self::name(name, name_length, "the name of the object")?;
        slot.put(nacre_object { object: store.open()?.object(id)?, closed: store.closed() });
        Ok(())
    })
}

/// Returns a handle on another fork of an object. A name is 0 to 255 bytes; the empty one is the default fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_fork(
    object: *mut nacre_object,
    name: *const c_void,
    name_length: usize,
    fork: *mut *mut nacre_object,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(fork)?;
        let object = get(object)?;
        let name = self::name(name, name_length, "the name of the fork")?;
        slot.put(nacre_object { object: object.open()?.fork(name)?, closed: object.closed.clone() });
        Ok(())
    })
}

/// Ends a handle on an object. The object stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_close(object: *mut nacre_object) -> c_int {
    call(|| handle::take(object).map(|_| ()))
}

/// Reads all of a range into a buffer, as it stood at one moment. Returns the number of bytes, and the version of the range.
fn read_into(object: &BlockingObject, whole: ByteRange, buffer: &Buffer) -> Result<(usize, u64), Failure> {
    'again: loop {
        let mut read = object.read(whole)?;
        let mut filled = buffer.fill(&read.data);
        // A range of many extents comes in parts, which are to fit each other.
        while let Some(next) = read.next.filter(|next| *next > whole.offset && *next < whole.end()) {
            let fork = object.nonblocking().fork_name().clone();
            let rest = ReadOp::Range {
                fork: fork.clone(),
                range: ByteRange::new(next, whole.end() - next),
                intent: nacre::Intent::Look,
            };
            let transaction = Transaction::new().if_version(fork, whole, read.version).read(rest);
            let store = object.nonblocking().store().blocking();
            let nacre::Outcome::Done(done) = store.apply(object.id(), transaction)? else {
                continue 'again;
            };
            let Some(nacre::Answer::Range(part)) = done.answers.into_iter().next() else { break };
            filled = (next - whole.offset) as usize;
            filled += buffer.fill_from(filled, &part.data);
            read = nacre::RangeRead { version: read.version, ..part };
        }
        return Ok((filled, read.version));
    }
}

/// Reads at most 16 MiB into a buffer, as they stood at one moment. Stores their number, which is less than `length` where the fork ends,
/// and the version of the range, for nacre_object_write_if.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_read(
    object: *mut nacre_object,
    offset: u64,
    buffer: *mut c_void,
    length: usize,
    count: *mut usize,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let (count, version) = (required(count, "the number of bytes")?, optional(version));
        count.set_first(0);
        if length > TRANSACTION_BYTES_MAX {
            let text = format!("{length} bytes to be read; the limit is {TRANSACTION_BYTES_MAX}");
            return Err(Failure::invalid(text));
        }
        let buffer = self::buffer(buffer, length)?;
        let object = get(object)?;
        let object = object.open()?;
        let (filled, found) = read_into(object, ByteRange::new(offset, length as u64), &buffer)?;
        count.set(filled);
        version.set(found);
        Ok(())
    })
}

/// Writes at most 16 MiB, replacing what is there. Stores the version that the bytes carry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_write(
    object: *mut nacre_object,
    offset: u64,
    data: *const c_void,
    length: usize,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let version = optional(version);
        let data = payload(data, length)?;
        version.set(get(object)?.open()?.write(offset, data)?);
        Ok(())
    })
}

/// Writes at most 16 MiB at the end of the fork, wherever that is. Stores the offset of the first byte, and the version of all of them;
/// either may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_append(
    object: *mut nacre_object,
    data: *const c_void,
    length: usize,
    offset: *mut u64,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let (offset, version) = (optional(offset), optional(version));
        let data = payload(data, length)?;
        let appended = get(object)?.open()?.append(data)?;
        offset.set(appended.offset);
        version.set(appended.version);
        Ok(())
    })
}

/// Writes at most 16 MiB if nothing in their range is newer than `expected`, and stores the version that they carry. NACRE_REFUSED if
/// something is newer: nothing was written. The version of the range as it stands is then stored in `version`, its bytes in `current`, which
/// has room for `length` bytes and may be where `data` is, and their number in `count`: less than `length` where the fork ends, and at most
/// 1 MiB. All three may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_write_if(
    object: *mut nacre_object,
    offset: u64,
    data: *const c_void,
    length: usize,
    expected: u64,
    version: *mut u64,
    current: *mut c_void,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let (version, count) = (optional(version), optional(count));
        let data = payload(data, length)?;
        let current = buffer(current, if current.is_null() { 0 } else { length })?;
        let object = get(object)?;
        let object = object.open()?;
        match object.write_if(offset, data, expected)? {
            Written::Done { version: written } => {
                version.set(written);
                Ok(())
            }
            Written::Refused(now) => {
                let wanted = ByteRange::new(offset, length.min(REFUSAL_BYTES_MAX) as u64);
                // A refusal tells of so many extents and no more; what is left out is not past the end of the fork.
                let is_cut = now.next.is_some_and(|next| next < wanted.end());
                let (filled, found) = match is_cut {
                    true if current.has_room() => read_into(object, wanted, &current)?,
                    _ => (current.fill(&now.data), now.version),
                };
                version.set(found);
                count.set(filled);
                let text = format!("the range is at version {found}, which is newer than {expected}");
                Err(Failure::new(NACRE_REFUSED, text))
            }
        }
    })
}

/// Makes a range read as zeros. Stores the version of that change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_zero(
    object: *mut nacre_object,
    offset: u64,
    length: u64,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    change(object, unsafe { optional(version) }, |object| object.zero(ByteRange::new(offset, length)))
}

/// Sets the size of the fork in bytes. Stores the version of that change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_truncate(
    object: *mut nacre_object,
    size: u64,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    change(object, unsafe { optional(version) }, |object| object.truncate(size))
}

/// Removes the fork. Stores the version of that change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_remove_fork(object: *mut nacre_object, version: *mut u64) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    change(object, unsafe { optional(version) }, |object| object.remove_fork())
}

fn change(
    object: *mut nacre_object,
    version: ResultSlot<u64>,
    change: impl FnOnce(&BlockingObject) -> Result<u64, nacre::Error>,
) -> c_int {
    call(|| {
        version.set(change(get(object)?.open()?)?);
        Ok(())
    })
}

/// Creates the object. NACRE_REFUSED if it exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_create(object: *mut nacre_object) -> c_int {
    call(|| match get(object)?.open()?.create()? {
        true => Ok(()),
        false => Err(Failure::new(NACRE_REFUSED, "the object exists already")),
    })
}

/// Removes the object with its forks, keys and attributes. NACRE_ABSENT if it does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_remove(object: *mut nacre_object) -> c_int {
    call(|| match get(object)?.open()?.remove()? {
        true => Ok(()),
        false => Err(Failure::new(NACRE_ABSENT, "the object does not exist")),
    })
}

/// Looks at the object as a whole. An object that does not exist is no failure: `exists` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_stat(object: *mut nacre_object, stat: *mut nacre_stat) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let stat = required(stat, "the stat")?;
        stat.set(nacre_stat::from(&get(object)?.open()?.stat()?));
        Ok(())
    })
}

/// Returns the extents of a range with their versions, as answer 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_extents(
    object: *mut nacre_object,
    offset: u64,
    length: u64,
    result: *mut *mut nacre_result,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(result)?;
        let extents = get(object)?.open()?.extents(ByteRange::new(offset, length))?;
        slot.put(nacre_result::of_extents(extents));
        Ok(())
    })
}

/// Returns all forks with their names and sizes, as the entries of answer 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_forks(
    object: *mut nacre_object,
    result: *mut *mut nacre_result,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(result)?;
        slot.put(nacre_result::of_forks(get(object)?.open()?.forks()?));
        Ok(())
    })
}

/// Copies the value of a key into a buffer, and stores its length and its version. NACRE_TOO_SHORT if the value is longer than
/// `capacity`; NACRE_ABSENT if there is no such key: its version is 0 then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_key_get(
    object: *mut nacre_object,
    key: *const c_void,
    key_length: usize,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let (length, version) = (required(length, "the length")?, optional(version));
        let buffer = self::buffer(buffer, capacity)?;
        let key = name(key, key_length, "the key")?;
        let found = get(object)?.open()?.versioned_key(key)?;
        version.set(found.as_ref().map_or(0, |found| found.version));
        value(found.map(|found| found.value), &buffer, length, "key")
    })
}

fn value(
    found: Option<Bytes>,
    buffer: &crate::argument::Buffer,
    length: ResultSlot<usize>,
    kind: &str,
) -> Result<(), Failure> {
    match found {
        Some(value) => buffer.fill_whole(&value, length),
        None => {
            length.set(0);
            Err(Failure::new(NACRE_ABSENT, format!("there is no such {kind}")))
        }
    }
}

/// Sets a key. Stores its version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_key_set(
    object: *mut nacre_object,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let version = optional(version);
        let (key, value) = (name(key, key_length, "the key")?, payload(value, value_length)?);
        version.set(get(object)?.open()?.set_key(key, value)?);
        Ok(())
    })
}

/// Sets a key if it is still of the version that was read; 0 stands for no such key. Stores its new version. NACRE_REFUSED if it is of
/// another one, which is stored instead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_key_set_if(
    object: *mut nacre_object,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    expected: u64,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let version = optional(version);
        let (key, value) = (name(key, key_length, "the key")?, payload(value, value_length)?);
        key_written(get(object)?.open()?.set_key_if(key, value, expected)?, expected, version)
    })
}

fn key_written(written: KeyWritten, expected: u64, slot: ResultSlot<u64>) -> Result<(), Failure> {
    match written {
        KeyWritten::Done { version } => {
            slot.set(version);
            Ok(())
        }
        KeyWritten::Refused { version } => {
            slot.set(version);
            let text = format!("the key is of version {version}, not of {expected}");
            Err(Failure::new(NACRE_REFUSED, text))
        }
    }
}

/// Removes a key, if it is there. Stores the object's new version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_key_remove(
    object: *mut nacre_object,
    key: *const c_void,
    key_length: usize,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let version = optional(version);
        let key = name(key, key_length, "the key")?;
        version.set(get(object)?.open()?.remove_key(key)?);
        Ok(())
    })
}

/// Removes a key if it is still of the version that was read. Stores the object's new version. NACRE_REFUSED if it is of another one,
/// which is stored instead; 0 stands for no such key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_key_remove_if(
    object: *mut nacre_object,
    key: *const c_void,
    key_length: usize,
    expected: u64,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let version = optional(version);
        let key = name(key, key_length, "the key")?;
        key_written(get(object)?.open()?.remove_key_if(key, expected)?, expected, version)
    })
}

/// Lists at most `limit` keys of a range and at most 1,024, in ascending order, with their versions, and their values if `values` is not 0. A NULL
/// range stands for all keys. They are the entries of answer 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_keys(
    object: *mut nacre_object,
    range: *const nacre_key_range,
    limit: u32,
    values: c_int,
    result: *mut *mut nacre_result,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(result)?;
        let read = ReadOp::VersionedKeys { range: nacre_key_range::take(range)?, limit, values: values != 0 };
        slot.put(get(object)?.apply(Transaction::new().read(read))?);
        Ok(())
    })
}

/// Copies an attribute into a buffer, and stores its length. NACRE_TOO_SHORT if it is longer than `capacity`; NACRE_ABSENT if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_attribute_get(
    object: *mut nacre_object,
    name: *const c_void,
    name_length: usize,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let length = required(length, "the length")?;
        let buffer = self::buffer(buffer, capacity)?;
        let name = self::name(name, name_length, "the name of the attribute")?;
        value(get(object)?.open()?.attribute(name)?, &buffer, length, "attribute")
    })
}

/// Sets an attribute. Stores the object's new version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_attribute_set(
    object: *mut nacre_object,
    name: *const c_void,
    name_length: usize,
    value: *const c_void,
    value_length: usize,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let version = optional(version);
        let name = self::name(name, name_length, "the name of the attribute")?;
        let value = payload(value, value_length)?;
        version.set(get(object)?.open()?.set_attribute(name, value)?);
        Ok(())
    })
}

/// Removes an attribute, if it is there. Stores the object's new version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_attribute_remove(
    object: *mut nacre_object,
    name: *const c_void,
    name_length: usize,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let version = optional(version);
        let name = self::name(name, name_length, "the name of the attribute")?;
        version.set(get(object)?.open()?.remove_attribute(name)?);
        Ok(())
    })
}

/// Returns all attributes with their values, as the entries of answer 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_object_attributes(
    object: *mut nacre_object,
    result: *mut *mut nacre_result,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(result)?;
        slot.put(get(object)?.apply(Transaction::new().read(ReadOp::Attributes))?);
        Ok(())
    })
}
