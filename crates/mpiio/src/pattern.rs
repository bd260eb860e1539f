//! Datatypes of MPI as text, for programs that lock by the C library: `nacre-mpi.h` hands it on to that.
//!
//! One of the modules with `unsafe` code.

use std::ffi::{c_char, c_int};
use std::panic::catch_unwind;

use nacre::lock::{Description, FileView};

use crate::datatype::decode;
use crate::mpi::MPI_Datatype;

// The codes of nacre.h.
const NACRE_OK: c_int = 0;
const NACRE_INVALID: c_int = 1;
const NACRE_UNSUPPORTED: c_int = 9;
const NACRE_TOO_SHORT: c_int = 102;
const NACRE_DEFECT: c_int = 103;

/// Copies a datatype that is laid over a file into a buffer, as the text of a pattern with a zero behind it: copies one after the other,
/// the displacement 0 of the first one at the offset `displacement`. Stores the length without the zero, also if the buffer is too short.
///
/// Returns 0, or a code of nacre.h: `NACRE_INVALID` for a wrong argument, `NACRE_TOO_SHORT` for a short buffer, `NACRE_UNSUPPORTED` for a
/// datatype whose bytes are not in the order of the file, or that is more than 64 deep.
///
/// # Safety
///
/// As many bytes of the buffer as its capacity says are writable, and so is the place for the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_mpi_pattern_text(
    datatype: MPI_Datatype,
    displacement: i64,
    count: i64,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    let text = catch_unwind(|| {
        let displacement = u64::try_from(displacement).map_err(|_| NACRE_INVALID)?;
        let count = u64::try_from(count).map_err(|_| NACRE_INVALID)?;
        let decoded = decode(datatype).map_err(|_| NACRE_INVALID)?.ok_or(NACRE_INVALID)?;
        let datatype = decoded.exact.ok_or(NACRE_UNSUPPORTED)?;
        Ok(Description::Datatype(FileView { displacement, count, datatype }).to_string())
    });
    let text = match text {
        Ok(Ok(text)) => text,
        Ok(Err(code)) => return code,
        Err(_) => return NACRE_DEFECT,
    };
    if length.is_null() || buffer.is_null() && capacity > 0 {
        return NACRE_INVALID;
    }
    // SAFETY: the place is writable, says the caller.
    unsafe { length.write_unaligned(text.len()) };
    if text.len() >= capacity {
        return NACRE_TOO_SHORT;
    }
    // SAFETY: the text and a zero have room in the buffer, which is writable, says the caller.
    unsafe {
        buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        buffer.add(text.len()).write(0);
    }
    NACRE_OK
}
