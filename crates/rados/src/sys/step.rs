//! The steps of operations, and the places where librados puts their results.

use std::ffi::{CStr, c_char, c_int, c_long, c_uchar};
use std::ptr;

use bytes::Bytes;

use super::{Library, Raw};

const COMPARE_EQUAL: u8 = 1;
const CREATE_EXCLUSIVE: c_int = 1;
const CREATE_IDEMPOTENT: c_int = 0;

/// One step of a read operation. Steps run in order; the first that fails ends the operation.
pub(crate) enum ReadStep<'a> {
    /// Fails with ERANGE or EOVERFLOW unless RADOS' own version of the object is this one, which is not 0.
    IfVersion(u64),
    /// Fails with ECANCELED unless the attribute has this value.
    IfXattr(&'a CStr, &'a [u8]),
    /// All attributes.
    Xattrs,
    /// The number of bytes, and the time of the last change by the clock of the client that made it.
    Stat,
    /// Bytes.
    Bytes { offset: u64, len: usize },
    /// Entries of the omap after a key, beginning with a prefix.
    OmapAfter { after: &'a CStr, prefix: &'a CStr, limit: u64 },
    /// The entry of one key of the omap, if it is there.
    OmapKey(&'a [u8]),
    /// A call of a class's method.
    Call { class: &'a CStr, method: &'a CStr, input: &'a [u8] },
}

impl ReadStep<'_> {
    /// # Safety
    /// `op` is a read operation under construction, and `slot` outlives it.
    pub(super) unsafe fn add(&self, library: &Library, op: Raw, slot: &mut Slot) {
        // SAFETY: lengths are those of the slices, strings end in a zero byte, and the caller promises the rest.
        unsafe {
            match (self, slot) {
                (ReadStep::IfVersion(version), _) => (library.rados_read_op_assert_version)(op, *version),
                (ReadStep::IfXattr(name, value), _) => {
                    let (bytes, len) = (value.as_ptr().cast(), value.len());
                    (library.rados_read_op_cmpxattr)(op, name.as_ptr(), COMPARE_EQUAL, bytes, len);
                }
                (ReadStep::Xattrs, Slot::Xattrs { iterator, code }) => {
                    (library.rados_read_op_getxattrs)(op, iterator, code);
                }
                (ReadStep::Stat, Slot::Stat { size, time, code }) => {
                    (library.rados_read_op_stat)(op, size, time, code);
                }
                (ReadStep::Bytes { offset, len: asked }, Slot::Bytes { buffer, len, code }) => {
                    let bytes = buffer.as_mut_ptr().cast();
                    (library.rados_read_op_read)(op, *offset, *asked, bytes, len, code);
                }
                (ReadStep::OmapAfter { after, prefix, limit }, Slot::Omap { iterator, more, code }) => {
                    let (after, prefix) = (after.as_ptr(), prefix.as_ptr());
                    (library.rados_read_op_omap_get_vals2)(op, after, prefix, *limit, iterator, more, code);
                }
                (ReadStep::OmapKey(key), Slot::Omap { iterator, code, .. }) => {
                    let (bytes, len) = (key.as_ptr().cast(), key.len());
                    (library.rados_read_op_omap_get_vals_by_keys2)(op, &bytes, 1, &len, iterator, code);
                }
                (ReadStep::Call { class, method, input }, Slot::Call { output, len, code }) => {
                    let (class, method, bytes) = (class.as_ptr(), method.as_ptr(), input.as_ptr().cast());
                    (library.rados_read_op_exec)(op, class, method, bytes, input.len(), output, len, code);
                }
                _ => unreachable!("Slot::of makes the slot that the step needs"),
            }
        }
    }
}

/// One step of a write operation. They all take effect together, or none does.
pub(crate) enum WriteStep<'a> {
    /// Makes the object, unless it exists.
    Create,
    /// Fails with EEXIST if the object exists.
    CreateNew,
    /// Fails unless RADOS' own version of the object is this one.
    IfVersion(u64),
    /// Fails with ECANCELED unless the attribute has this value.
    IfXattr(&'a CStr, &'a [u8]),
    /// Sets an attribute.
    SetXattr(&'a CStr, &'a [u8]),
    /// Writes bytes.
    Bytes { offset: u64, data: &'a [u8] },
    /// Replaces all bytes.
    AllBytes(&'a [u8]),
    /// Writes bytes behind all others.
    Append(&'a [u8]),
    /// Makes a byte zero, if the object is there and that long.
    Zero { offset: u64 },
    /// Sets a key of the omap.
    SetOmap(&'a [u8], &'a [u8]),
    /// Sets keys of the omap, each once.
    SetOmaps(&'a [(Vec<u8>, Bytes)]),
    /// Fails with ECANCELED unless the value of a key of the omap is this one. A key that is not there has an empty value.
    IfOmapEqual(&'a [u8], &'a [u8]),
    /// Removes a key of the omap, if it is there.
    RemoveOmap(&'a [u8]),
    /// Removes keys of the omap, as far as they are there.
    RemoveOmaps(&'a [Vec<u8>]),
    /// Removes all keys of the omap.
    ClearOmap,
    /// Removes the object.
    Remove,
}

impl WriteStep<'_> {
    /// # Safety
    /// `op` is a write operation under construction.
    pub(super) unsafe fn add(&self, library: &Library, op: Raw) {
        // SAFETY: lengths are those of the slices, strings end in a zero byte, and librados copies all of it.
        unsafe {
            match self {
                WriteStep::Create => (library.rados_write_op_create)(op, CREATE_IDEMPOTENT, ptr::null()),
                WriteStep::CreateNew => (library.rados_write_op_create)(op, CREATE_EXCLUSIVE, ptr::null()),
                WriteStep::IfVersion(version) => (library.rados_write_op_assert_version)(op, *version),
                WriteStep::IfXattr(name, value) => {
                    let (bytes, len) = (value.as_ptr().cast(), value.len());
                    (library.rados_write_op_cmpxattr)(op, name.as_ptr(), COMPARE_EQUAL, bytes, len);
                }
                WriteStep::SetXattr(name, value) => {
                    (library.rados_write_op_setxattr)(op, name.as_ptr(), value.as_ptr().cast(), value.len());
                }
                WriteStep::Bytes { offset, data } => {
                    (library.rados_write_op_write)(op, data.as_ptr().cast(), data.len(), *offset);
                }
                WriteStep::AllBytes(data) => {
                    (library.rados_write_op_write_full)(op, data.as_ptr().cast(), data.len());
                }
                WriteStep::Append(data) => {
                    (library.rados_write_op_append)(op, data.as_ptr().cast(), data.len());
                }
                WriteStep::Zero { offset } => (library.rados_write_op_zero)(op, *offset, 1),
                WriteStep::SetOmap(key, value) => {
                    let (keys, key_len) = (key.as_ptr().cast(), key.len());
                    let (values, value_len) = (value.as_ptr().cast(), value.len());
                    (library.rados_write_op_omap_set2)(op, &keys, &values, &key_len, &value_len, 1);
                }
                WriteStep::SetOmaps(entries) => {
                    let keys: Vec<*const c_char> =
                        entries.iter().map(|entry| entry.0.as_ptr().cast()).collect();
                    let values: Vec<*const c_char> =
                        entries.iter().map(|entry| entry.1.as_ptr().cast()).collect();
                    let key_lens: Vec<usize> = entries.iter().map(|entry| entry.0.len()).collect();
                    let value_lens: Vec<usize> = entries.iter().map(|entry| entry.1.len()).collect();
                    (library.rados_write_op_omap_set2)(
                        op,
                        keys.as_ptr(),
                        values.as_ptr(),
                        key_lens.as_ptr(),
                        value_lens.as_ptr(),
                        entries.len(),
                    );
                }
                WriteStep::IfOmapEqual(key, value) => {
                    let (name, bytes) = (key.as_ptr().cast(), value.as_ptr().cast());
                    let (name_len, len, code) = (key.len(), value.len(), ptr::null_mut());
                    (library.rados_write_op_omap_cmp2)(op, name, COMPARE_EQUAL, bytes, name_len, len, code);
                }
                WriteStep::RemoveOmap(key) => {
                    let (keys, key_len) = (key.as_ptr().cast(), key.len());
                    (library.rados_write_op_omap_rm_keys2)(op, &keys, &key_len, 1);
                }
                WriteStep::RemoveOmaps(keys) => {
                    let lens: Vec<usize> = keys.iter().map(Vec::len).collect();
                    let keys: Vec<*const c_char> = keys.iter().map(|key| key.as_ptr().cast()).collect();
                    (library.rados_write_op_omap_rm_keys2)(op, keys.as_ptr(), lens.as_ptr(), keys.len());
                }
                WriteStep::ClearOmap => (library.rados_write_op_omap_clear)(op),
                WriteStep::Remove => (library.rados_write_op_remove)(op),
            }
        }
    }
}

/// The code of a step that no OSD has answered, because the operation failed before. No OSD answers with this.
const NO_REPLY: c_int = c_int::MIN;

/// The place where librados puts the result of a step of a read operation. A buffer for bytes has room for what was asked for and
/// is empty as long as the operation runs: to fill it with zeros first would be one more pass over all that is read.
pub(super) enum Slot {
    Nothing,
    Xattrs { iterator: Raw, code: c_int },
    Stat { size: u64, time: c_long, code: c_int },
    Bytes { buffer: Vec<u8>, len: usize, code: c_int },
    Omap { iterator: Raw, more: c_uchar, code: c_int },
    Call { output: *mut c_char, len: usize, code: c_int },
    Watch(u64),
}

impl Slot {
    pub(super) fn of(step: &ReadStep<'_>) -> Self {
        match step {
            ReadStep::IfVersion(_) | ReadStep::IfXattr(..) => Slot::Nothing,
            ReadStep::Xattrs => Slot::Xattrs { iterator: ptr::null_mut(), code: 0 },
            ReadStep::Stat => Slot::Stat { size: 0, time: 0, code: 0 },
            ReadStep::Bytes { len, .. } => Slot::Bytes { buffer: Vec::with_capacity(*len), len: 0, code: 0 },
            ReadStep::OmapAfter { .. } | ReadStep::OmapKey(_) => {
                Slot::Omap { iterator: ptr::null_mut(), more: 0, code: NO_REPLY }
            }
            ReadStep::Call { .. } => Slot::Call { output: ptr::null_mut(), len: 0, code: 0 },
        }
    }

    /// Takes the result out, and frees what librados made for it.
    ///
    /// # Safety
    /// The operation is over, or was never started.
    pub(super) unsafe fn take(&mut self, library: &Library) -> Answer {
        match std::mem::replace(self, Slot::Nothing) {
            Slot::Nothing => Answer::Nothing,
            Slot::Watch(id) => Answer::Watch(id),
            Slot::Stat { size, time, .. } => Answer::Stat { size, time: u64::try_from(time).unwrap_or(0) },
            Slot::Bytes { mut buffer, len, .. } => {
                assert!(len <= buffer.capacity(), "librados read more bytes than it was asked for");
                // SAFETY: `len` is 0 until librados has written so many bytes there, and there is room for them.
                unsafe { buffer.set_len(len) };
                Answer::Bytes(buffer.into())
            }
            Slot::Call { output, len, .. } => {
                if output.is_null() {
                    return Answer::Bytes(Bytes::new());
                }
                // SAFETY: librados made `len` bytes there, which are ours to free.
                unsafe {
                    let bytes = Bytes::copy_from_slice(std::slice::from_raw_parts(output.cast::<u8>(), len));
                    (library.rados_buffer_free)(output);
                    Answer::Bytes(bytes)
                }
            }
            Slot::Xattrs { iterator, .. } => {
                let mut pairs = Vec::new();
                if !iterator.is_null() {
                    // SAFETY: names and values live until the iterator is ended, which is the last thing done.
                    unsafe {
                        loop {
                            let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
                            let code =
                                (library.rados_getxattrs_next)(iterator, &mut name, &mut value, &mut len);
                            if code < 0 || name.is_null() {
                                break;
                            }
                            let name = Bytes::copy_from_slice(CStr::from_ptr(name).to_bytes());
                            pairs.push((name, copied(value, len)));
                        }
                        (library.rados_getxattrs_end)(iterator);
                    }
                }
                Answer::Pairs { pairs, more: false }
            }
            Slot::Omap { iterator, more, code } => {
                let mut pairs = Vec::new();
                if !iterator.is_null() {
                    // SAFETY: as above. librados gives the iterator its place when the answer comes; without one there is
                    // nothing to go through, and looking would be a jump to nowhere.
                    unsafe {
                        let replied = code != NO_REPLY;
                        loop {
                            if !replied {
                                break;
                            }
                            let (mut key, mut value) = (ptr::null_mut(), ptr::null_mut());
                            let (mut key_len, mut value_len) = (0, 0);
                            let next = library.rados_omap_get_next2;
                            let code = next(iterator, &mut key, &mut value, &mut key_len, &mut value_len);
                            if code < 0 || key.is_null() {
                                break;
                            }
                            pairs.push((copied(key, key_len), copied(value, value_len)));
                        }
                        (library.rados_omap_get_end)(iterator);
                    }
                }
                Answer::Pairs { pairs, more: more != 0 }
            }
        }
    }
}

/// # Safety
/// There are `len` bytes at `bytes`, unless it is null.
pub(super) unsafe fn copied(bytes: *const c_char, len: usize) -> Bytes {
    if bytes.is_null() || len == 0 {
        return Bytes::new();
    }
    // SAFETY: the caller promises it.
    Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) })
}

/// The result of a step of a read operation.
pub(crate) enum Answer {
    /// The step has none.
    Nothing,
    /// Bytes that were read, or a call's output.
    Bytes(Bytes),
    /// Attributes, or entries of the omap, and whether the limit left some out.
    Pairs { pairs: Vec<(Bytes, Bytes)>, more: bool },
    /// The id of a watch.
    Watch(u64),
    /// A number of bytes, and a time in seconds since 1970.
    Stat { size: u64, time: u64 },
}

impl Answer {
    /// Returns the bytes of a step that reads or calls; empty for others.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Answer::Bytes(bytes) => bytes,
            _ => Bytes::new(),
        }
    }

    /// Returns the pairs of a step that gets attributes or entries, and whether the limit left some out; empty for
    /// others.
    pub(crate) fn into_pairs(self) -> (Vec<(Bytes, Bytes)>, bool) {
        match self {
            Answer::Pairs { pairs, more } => (pairs, more),
            _ => (Vec::new(), false),
        }
    }
}
