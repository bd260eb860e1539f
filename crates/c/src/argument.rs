//! Arguments and results of C. One of the modules with `unsafe` code; the others only hand on what their callers promise.
//!
//! The caller's part, for all functions here: a pointer that is not NULL points to as many bytes or elements as the length says, which nobody
//! writes during the call; a place for a result is writable, or NULL.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::slice;

use bytes::Bytes;
use nacre::limit::TRANSACTION_BYTES_MAX;

use crate::code::{Failure, NACRE_TOO_SHORT};
use crate::handle::{self, Handle};

/// The length of a name that ends with a zero: `NACRE_STRING` in the header.
pub const STRING: usize = usize::MAX;

/// A place for a result.
pub struct ResultSlot<T>(*mut T);

impl<T> ResultSlot<T> {
    /// Stores the result, if it is wanted.
    pub fn set(self, value: T) {
        self.set_first(value);
    }

    /// Stores a result that another one will replace if all goes well.
    pub fn set_first(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the place is writable, by the promise that it was made with. C may not have aligned it.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

/// Takes a place for a result that may not be wanted.
///
/// # Safety
///
/// As the module says, until the result is stored.
pub unsafe fn optional<T>(slot: *mut T) -> ResultSlot<T> {
    ResultSlot(slot)
}

/// Takes a place for a result.
///
/// # Safety
///
/// As the module says, until the result is stored.
pub unsafe fn required<T>(slot: *mut T, subject: &str) -> Result<ResultSlot<T>, Failure> {
    if slot.is_null() { Err(null(subject)) } else { Ok(ResultSlot(slot)) }
}

/// A place for a handle, which holds NULL until there is one.
pub struct HandleSlot<T>(ResultSlot<*mut T>);

impl<T: Handle> HandleSlot<T> {
    /// Stores a new handle.
    pub fn put(self, value: T) {
        self.0.set(handle::put(value));
    }
}

/// Takes a place for a handle.
///
/// # Safety
///
/// As the module says, until the handle is stored.
pub unsafe fn handle_slot<T: Handle>(slot: *mut *mut T) -> Result<HandleSlot<T>, Failure> {
    // SAFETY: as the caller promises.
    unsafe {
        required(slot, T::WHAT)?.set(std::ptr::null_mut());
        Ok(HandleSlot(ResultSlot(slot)))
    }
}

/// Takes a place for a handle that may not be wanted.
///
/// # Safety
///
/// As the module says, until the handle is stored.
pub unsafe fn optional_handle_slot<T: Handle>(slot: *mut *mut T) -> Option<HandleSlot<T>> {
    if slot.is_null() {
        return None;
    }
    ResultSlot(slot).set(std::ptr::null_mut());
    Some(HandleSlot(ResultSlot(slot)))
}

fn null(subject: &str) -> Failure {
    Failure::invalid(format!("the pointer to {subject} is NULL"))
}

/// Takes an array.
///
/// # Safety
///
/// As the module says, while the array is used.
pub unsafe fn array<'a, T>(
    pointer: *const T,
    count: usize,
    count_max: usize,
    subject: &str,
) -> Result<&'a [T], Failure> {
    if count > count_max {
        return Err(Failure::invalid(format!("{count} {subject}; the limit is {count_max}")));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(subject));
    }
    if !pointer.is_aligned() {
        return Err(Failure::invalid(format!("the pointer to {subject} is not aligned")));
    }
    // SAFETY: it is neither NULL nor unaligned, as long as the caller says, and that is not too long.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// Takes bytes to be stored.
///
/// # Safety
///
/// As the module says.
pub unsafe fn payload(pointer: *const c_void, length: usize) -> Result<Bytes, Failure> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { array(pointer.cast::<u8>(), length, TRANSACTION_BYTES_MAX, "bytes of data")? };
    Ok(Bytes::copy_from_slice(bytes))
}

/// Takes a name, whose length is [`STRING`] if it ends with a zero. The limit of its kind is checked later.
///
/// # Safety
///
/// As the module says, while the name is used.
pub unsafe fn name<'a>(pointer: *const c_void, length: usize, subject: &str) -> Result<&'a [u8], Failure> {
    /// More than any name may have.
    const NAME_BYTES_MAX: usize = 4096;
    let mut length = length;
    if length == STRING {
        if pointer.is_null() {
            return Err(null(subject));
        }
        // SAFETY: a zero ends it, says the caller; no more is looked at than may be.
        length = unsafe { libc::strnlen(pointer.cast(), NAME_BYTES_MAX + 1) };
    }
    if length > NAME_BYTES_MAX {
        return Err(Failure::invalid(format!("{subject} is longer than {NAME_BYTES_MAX} bytes")));
    }
    // SAFETY: as the caller promises.
    unsafe { array(pointer.cast::<u8>(), length, NAME_BYTES_MAX, subject) }
}

/// Takes a text that ends with a zero.
///
/// # Safety
///
/// As the module says, while the text is used.
pub unsafe fn text<'a>(pointer: *const c_char, bytes_max: usize, subject: &str) -> Result<&'a str, Failure> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { bytes(pointer, bytes_max, subject) }?;
    bytes.to_str().map_err(|error| Failure::invalid(format!("{subject} is not UTF-8: {error}")))
}

/// Takes a text that ends with a zero, and in which paths may stand, which have any bytes.
///
/// # Safety
///
/// As the module says, while the text is used.
pub unsafe fn text_with_paths<'a>(
    pointer: *const c_char,
    bytes_max: usize,
    subject: &str,
) -> Result<&'a OsStr, Failure> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { bytes(pointer, bytes_max, subject) }?;
    Ok(OsStr::from_bytes(bytes.to_bytes()))
}

/// Takes bytes that end with a zero.
///
/// # Safety
///
/// As the module says, while the bytes are used.
unsafe fn bytes<'a>(pointer: *const c_char, bytes_max: usize, subject: &str) -> Result<&'a CStr, Failure> {
    if pointer.is_null() {
        return Err(null(subject));
    }
    // SAFETY: a zero ends it, says the caller; no more is looked at than may be.
    unsafe {
        if libc::strnlen(pointer, bytes_max + 1) > bytes_max {
            return Err(Failure::invalid(format!("{subject} is longer than {bytes_max} bytes")));
        }
        Ok(CStr::from_ptr(pointer))
    }
}

/// A buffer of the program's.
pub struct Buffer {
    pointer: *mut u8,
    length: usize,
}

/// Takes a buffer to be filled.
///
/// # Safety
///
/// The buffer is NULL, or that many bytes of it are writable until it is filled.
pub unsafe fn buffer(pointer: *mut c_void, length: usize) -> Result<Buffer, Failure> {
    if pointer.is_null() && length > 0 {
        return Err(null("the buffer"));
    }
    Ok(Buffer { pointer: pointer.cast(), length })
}

impl Buffer {
    /// Returns whether any bytes have room.
    pub fn has_room(&self) -> bool {
        self.length > 0
    }

    /// Copies as many bytes as have room. Returns their number.
    pub fn fill(&self, bytes: &[u8]) -> usize {
        self.fill_from(0, bytes)
    }

    /// Copies as many bytes as have room from a place on. Returns their number.
    pub fn fill_from(&self, start: usize, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.length.saturating_sub(start));
        if count > 0 {
            // SAFETY: so many bytes are writable from there on, by the promise that it was made with, and no bytes of this library's are there.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer.add(start), count) };
        }
        count
    }

    /// Copies all bytes, and stores their number in any case.
    pub fn fill_whole(&self, bytes: &[u8], length: ResultSlot<usize>) -> Result<(), Failure> {
        length.set(bytes.len());
        if bytes.len() > self.length {
            let text = format!("{} bytes for a buffer of {}", bytes.len(), self.length);
            return Err(Failure::new(NACRE_TOO_SHORT, text));
        }
        self.fill(bytes);
        Ok(())
    }
}
