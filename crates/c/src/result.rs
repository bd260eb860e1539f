//! Results: what was read, and what stood there where a guard did not hold.

use std::ffi::{c_int, c_void};

use bytes::Bytes;
use nacre::{Answer, ExtentKind, Extents, Fork, Found, Key, ObjectId, Outcome, RangeRead, Versioned};

use crate::argument::{optional, required};
use crate::code::{Failure, NACRE_ABSENT, call};
use crate::handle::{self, Handle, get};
use crate::object::nacre_stat;

/// The number of what a refusal found, beside those of answers: `NACRE_FOUND` in the header.
const FOUND: usize = usize::MAX;

/// The object: there, or not there.
pub const NACRE_FOUND_OBJECT: c_int = 1;
/// A range of a fork: its bytes, extents and version.
pub const NACRE_FOUND_REGION: c_int = 2;
/// The value of a key or an attribute, or none.
pub const NACRE_FOUND_VALUE: c_int = 3;
/// The object's fence.
pub const NACRE_FOUND_FENCE: c_int = 4;
/// The version of a key.
pub const NACRE_FOUND_KEY_VERSION: c_int = 5;
/// The size of a fork.
pub const NACRE_FOUND_SIZE: c_int = 6;

/// The extent was written.
pub const NACRE_EXTENT_DATA: c_int = 0;
/// The extent is a hole that a change left, and reads as zeros.
pub const NACRE_EXTENT_HOLE: c_int = 1;

/// A maximal range of a fork that was written at one version.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_extent {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Its version.
    pub version: u64,
    /// NACRE_EXTENT_DATA or NACRE_EXTENT_HOLE.
    pub kind: c_int,
}

/// A range of a fork, as it stood.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_range {
    /// The greatest version in the range.
    pub version: u64,
    /// The size of the fork in bytes; 0 if there is none.
    pub size: u64,
    /// Not 0 if the answer was cut, because it is of more than 16 MiB or 4,096 extents.
    pub is_cut: c_int,
    /// The offset of the first byte that the answer does not cover, if it was cut.
    pub next: u64,
}

/// An entry of a list: an object, a fork, a key or an attribute. The pointers are valid until the result is closed. Behind the
/// name and the value stands no zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_entry {
    /// The name.
    pub name: *const c_void,
    /// Its length in bytes.
    pub name_length: usize,
    /// The value of a key or an attribute, empty if none was asked for; NULL for an object or a fork.
    pub value: *const c_void,
    /// Its length in bytes.
    pub value_length: usize,
    /// The version of a key, where versions were asked for; else 0.
    pub version: u64,
    /// The size of a fork in bytes; else 0.
    pub size: u64,
}

/// A guard that did not hold, and what stood there.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_refusal {
    /// The number of the guard in the transaction, from 0.
    pub guard: usize,
    /// The kind of what was found: NACRE_FOUND_OBJECT and so on. A region and a value are told by the functions for answers, with NACRE_FOUND as their number.
    pub found: c_int,
    /// For NACRE_FOUND_OBJECT: not 0 if the object exists.
    pub exists: c_int,
    /// For NACRE_FOUND_FENCE the fence, for NACRE_FOUND_KEY_VERSION the key's version, for NACRE_FOUND_SIZE the fork's size in bytes.
    pub number: u64,
    /// The object's version.
    pub version: u64,
}

/// The result of a transaction, or a list.
pub struct nacre_result {
    version: u64,
    existed: bool,
    answers: Vec<Payload>,
    refusal: Option<(nacre_refusal, Payload)>,
}

impl Handle for nacre_result {
    const WHAT: &'static str = "a result";
}

// SAFETY: the pointers in entries lead to bytes that the result owns and nobody changes.
unsafe impl Send for nacre_result {}
// SAFETY: the same.
unsafe impl Sync for nacre_result {}

/// An answer in C's shape.
enum Payload {
    Nothing,
    Range { range: nacre_range, data: Bytes, extents: Vec<nacre_extent> },
    Value { value: Option<Bytes>, version: u64 },
    Stat(nacre_stat),
    Entries { entries: Vec<nacre_entry>, more: bool, _owned: Vec<(Bytes, Bytes)> },
    Fences { fence: u64, sessions: Vec<u64> },
}

fn range_payload(read: RangeRead) -> Payload {
    let RangeRead { data, extents, version, size, next } = read;
    let extent = |extent: &nacre::Extent| nacre_extent {
        offset: extent.range.offset,
        length: extent.range.len,
        version: extent.version,
        kind: match extent.kind {
            ExtentKind::Data => NACRE_EXTENT_DATA,
            ExtentKind::Hole => NACRE_EXTENT_HOLE,
        },
    };
    let range = nacre_range { version, size, is_cut: next.is_some().into(), next: next.unwrap_or(0) };
    Payload::Range { range, data, extents: extents.iter().map(extent).collect() }
}

/// Tells entries: names, values if there are any, versions, sizes.
fn entries_payload(entries: impl Iterator<Item = (Bytes, Option<Bytes>, u64, u64)>, more: bool) -> Payload {
    let (mut listed, mut owned) = (Vec::new(), Vec::new());
    for (name, value, version, size) in entries {
        listed.push(nacre_entry {
            name: name.as_ptr().cast(),
            name_length: name.len(),
            value: value.as_ref().map_or(std::ptr::null(), |value| value.as_ptr().cast()),
            value_length: value.as_ref().map_or(0, Bytes::len),
            version,
            size,
        });
        // Bytes stay where they are when their handle is moved.
        owned.push((name, value.unwrap_or_default()));
    }
    Payload::Entries { entries: listed, more, _owned: owned }
}

fn payload(answer: Answer) -> Payload {
    match answer {
        Answer::Range(read) => range_payload(read),
        Answer::Stat(stat) => Payload::Stat((&stat).into()),
        Answer::Forks(page) => forks_payload(page.entries, page.more),
        Answer::Value(value) => Payload::Value { value, version: 0 },
        Answer::Keys(page) => {
            let entry = |(name, value): (Key, Bytes)| (name.to_bytes(), Some(value), 0, 0);
            entries_payload(page.entries.into_iter().map(entry), page.more)
        }
        Answer::VersionedValue(found) => match found {
            Some(Versioned { value, version }) => Payload::Value { value: Some(value), version },
            None => Payload::Value { value: None, version: 0 },
        },
        Answer::VersionedKeys(page) => {
            let entry =
                |(name, found): (Key, Versioned)| (name.to_bytes(), Some(found.value), found.version, 0);
            entries_payload(page.entries.into_iter().map(entry), page.more)
        }
        Answer::Fences(fences) => Payload::Fences { fence: fences.fence, sessions: fences.sessions },
    }
}

fn forks_payload(forks: Vec<(Fork, u64)>, more: bool) -> Payload {
    entries_payload(forks.into_iter().map(|(name, size)| (name.to_bytes(), None, 0, size)), more)
}

impl nacre_result {
    /// Returns the outcome of a transaction.
    pub fn of(outcome: Outcome) -> nacre_result {
        match outcome {
            Outcome::Done(done) => {
                let answers = done.answers.into_iter().map(payload).collect();
                nacre_result { version: done.version, existed: done.existed, answers, refusal: None }
            }
            Outcome::Refused(refusal) => {
                let (guard, version) = (refusal.guard, refusal.version);
                let mut refusal_info =
                    nacre_refusal { guard, found: NACRE_FOUND_OBJECT, exists: 0, number: 0, version };
                let found = match refusal.found {
                    Found::Object { exists } => {
                        refusal_info.exists = exists.into();
                        Payload::Nothing
                    }
                    Found::Region(read) => {
                        refusal_info.found = NACRE_FOUND_REGION;
                        range_payload(read)
                    }
                    Found::Value(value) => {
                        refusal_info.found = NACRE_FOUND_VALUE;
                        Payload::Value { value, version: 0 }
                    }
                    Found::Fence(fence) => {
                        (refusal_info.found, refusal_info.number) = (NACRE_FOUND_FENCE, fence);
                        Payload::Nothing
                    }
                    Found::Size(size) => {
                        (refusal_info.found, refusal_info.number) = (NACRE_FOUND_SIZE, size);
                        Payload::Nothing
                    }
                    Found::KeyVersion(key_version) => {
                        (refusal_info.found, refusal_info.number) = (NACRE_FOUND_KEY_VERSION, key_version);
                        Payload::Nothing
                    }
                };
                let refusal = Some((refusal_info, found));
                nacre_result { version, existed: version > 0, answers: Vec::new(), refusal }
            }
        }
    }

    fn of_answer(version: u64, answer: Payload) -> nacre_result {
        nacre_result { version, existed: true, answers: vec![answer], refusal: None }
    }

    /// Returns a list of objects.
    pub fn of_objects(names: Vec<ObjectId>, limit: usize) -> nacre_result {
        let more = names.len() >= limit;
        let entry = |name: ObjectId| (name.to_bytes(), None, 0, 0);
        nacre_result::of_answer(0, entries_payload(names.into_iter().map(entry), more))
    }

    /// Returns a list of forks.
    pub fn of_forks(forks: Vec<(Fork, u64)>) -> nacre_result {
        nacre_result::of_answer(0, forks_payload(forks, false))
    }

    /// Returns extents.
    pub fn of_extents(extents: Extents) -> nacre_result {
        let Extents { extents, version, size } = extents;
        let read = RangeRead { extents, version, size, ..RangeRead::default() };
        nacre_result::of_answer(version, range_payload(read))
    }

    /// Returns the refused guard, if one was.
    pub fn refusal(&self) -> Option<&nacre_refusal> {
        self.refusal.as_ref().map(|(refusal, _)| refusal)
    }

    fn answer(&self, number: usize) -> Result<&Payload, Failure> {
        if number == FOUND {
            let none = || Failure::invalid("the result is not a refusal, so it has nothing found");
            return self.refusal.as_ref().map(|(_, found)| found).ok_or_else(none);
        }
        self.answers.get(number).ok_or_else(|| {
            Failure::invalid(format!("there is no answer {number}: the result has {}", self.answers.len()))
        })
    }
}

fn other(number: usize, expected: &str) -> Failure {
    match number {
        FOUND => Failure::invalid(format!("what was found is not {expected}")),
        _ => Failure::invalid(format!("answer {number} is not {expected}")),
    }
}

/// Ends a result, and all pointers that came from it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_close(result: *mut nacre_result) -> c_int {
    call(|| handle::take(result).map(|_| ()))
}

/// Stores the object's version: its new one after a transaction that changed something, else the one that it had. 0 for lists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_version(result: *mut nacre_result, version: *mut u64) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        required(version, "the version")?.set(get(result)?.version);
        Ok(())
    })
}

/// Stores whether the object existed before the transaction: not 0 if it did. Of a refusal nothing is known but what was found.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_existed(result: *mut nacre_result, existed: *mut c_int) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let existed = required(existed, "the answer")?;
        let result = get(result)?;
        if result.refusal.is_some() {
            return Err(Failure::invalid(
                "the result is a refusal, which does not say whether the object existed",
            ));
        }
        existed.set(result.existed.into());
        Ok(())
    })
}

/// Stores the number of answers, which have the numbers of their reads, from 0; none if the transaction was refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_count(result: *mut nacre_result, count: *mut usize) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        required(count, "the count")?.set(get(result)?.answers.len());
        Ok(())
    })
}

/// Stores which guard did not hold, and what was found. NACRE_ABSENT if all held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_refusal(
    result: *mut nacre_result,
    refusal: *mut nacre_refusal,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = required(refusal, "the refusal")?;
        let absent = || Failure::new(NACRE_ABSENT, "no guard was refused");
        slot.set(*get(result)?.refusal().ok_or_else(absent)?);
        Ok(())
    })
}

/// Stores where the bytes of an answer are, and their number: those of a range, or the value of a key or an attribute. NACRE_ABSENT if
/// there is no such key or attribute. They are valid until the result is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_data(
    result: *mut nacre_result,
    number: usize,
    data: *mut *const c_void,
    length: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let (data, length) = (required(data, "the data")?, required(length, "the length")?);
        let result = get(result)?;
        let bytes = match result.answer(number)? {
            Payload::Range { data, .. } => data,
            Payload::Value { value: Some(value), .. } => value,
            Payload::Value { value: None, .. } => {
                return Err(Failure::new(NACRE_ABSENT, "there is no value"));
            }
            _ => return Err(other(number, "bytes")),
        };
        data.set(bytes.as_ptr().cast());
        length.set(bytes.len());
        Ok(())
    })
}

/// Stores the version of a key that was read with its version; 0 if there is no such key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_key_version(
    result: *mut nacre_result,
    number: usize,
    version: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = required(version, "the version")?;
        match get(result)?.answer(number)? {
            Payload::Value { version, .. } => slot.set(*version),
            _ => return Err(other(number, "the value of a key")),
        }
        Ok(())
    })
}

/// Stores the version of a range, the size of its fork, and whether the answer was cut.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_range(
    result: *mut nacre_result,
    number: usize,
    range: *mut nacre_range,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = required(range, "the range")?;
        match get(result)?.answer(number)? {
            Payload::Range { range, .. } => slot.set(*range),
            _ => return Err(other(number, "a range")),
        }
        Ok(())
    })
}

/// Stores where the extents of a range are, and their number. They are valid until the result is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_extents(
    result: *mut nacre_result,
    number: usize,
    extents: *mut *const nacre_extent,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let (slot, count) = (required(extents, "the extents")?, required(count, "the count")?);
        match get(result)?.answer(number)? {
            Payload::Range { extents, .. } => {
                slot.set(extents.as_ptr());
                count.set(extents.len());
            }
            _ => return Err(other(number, "a range")),
        }
        Ok(())
    })
}

/// Stores an answer to nacre_transaction_read_stat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_stat(
    result: *mut nacre_result,
    number: usize,
    stat: *mut nacre_stat,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = required(stat, "the stat")?;
        match get(result)?.answer(number)? {
            Payload::Stat(stat) => slot.set(*stat),
            _ => return Err(other(number, "a stat")),
        }
        Ok(())
    })
}

/// Stores where the entries of a list are, their number, and in `more`, which may be NULL, whether further ones follow the last: not 0 if there may
/// be some. They are valid until the result is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_entries(
    result: *mut nacre_result,
    number: usize,
    entries: *mut *const nacre_entry,
    count: *mut usize,
    more: *mut c_int,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let (slot, count) = (required(entries, "the entries")?, required(count, "the count")?);
        let more_place = optional(more);
        match get(result)?.answer(number)? {
            Payload::Entries { entries, more, .. } => {
                slot.set(entries.as_ptr());
                count.set(entries.len());
                more_place.set((*more).into());
            }
            _ => return Err(other(number, "a list")),
        }
        Ok(())
    })
}

/// Stores the object's fence, where its fenced sessions are, in ascending order, and their number. They are valid until the result is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_result_fences(
    result: *mut nacre_result,
    number: usize,
    fence: *mut u64,
    sessions: *mut *const u64,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let (fence_slot, slot) = (required(fence, "the fence")?, required(sessions, "the sessions")?);
        let count = required(count, "the count")?;
        match get(result)?.answer(number)? {
            Payload::Fences { fence, sessions } => {
                fence_slot.set(*fence);
                slot.set(sessions.as_ptr());
                count.set(sessions.len());
            }
            _ => return Err(other(number, "fences")),
        }
        Ok(())
    })
}
