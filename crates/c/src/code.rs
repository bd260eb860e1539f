//! Codes, and the sentence of a thread's last failure.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nacre::{Error, ErrorKind};

use crate::signal::Blocked;

/// Success.
pub const NACRE_OK: c_int = 0;
/// An argument or the request is wrong: a null pointer, a handle that was closed, a limit exceeded.
pub const NACRE_INVALID: c_int = 1;
/// The medium or the quota is full, or a limit of a lock server is reached. Nothing was changed.
pub const NACRE_OUT_OF_SPACE: c_int = 2;
/// The store takes no more writes. Nothing was changed.
pub const NACRE_READ_ONLY: c_int = 3;
/// Stored bytes failed their checksum.
pub const NACRE_CORRUPT: c_int = 4;
/// The operating system reported an error.
pub const NACRE_IO: c_int = 5;
/// The server cannot be reached. Nothing was changed.
pub const NACRE_UNAVAILABLE: c_int = 6;
/// The connection or the store failed while the request was under way: it may or may not have taken effect.
pub const NACRE_UNKNOWN: c_int = 7;
/// The caller is not allowed to do this, or its session is fenced.
pub const NACRE_DENIED: c_int = 8;
/// The store cannot do what was asked, or the library is built without it.
pub const NACRE_UNSUPPORTED: c_int = 9;
/// The store was closed, or the lock is lost.
pub const NACRE_CLOSED: c_int = 10;
/// The store is used by another process, or others hold some of the bytes that were to be locked.
pub const NACRE_BUSY: c_int = 11;
/// A server that is newer than this library reported a failure that the library does not know. Whether the call took
/// effect is not known.
pub const NACRE_UNRECOGNIZED: c_int = 99;
/// A guard did not hold: the transaction was refused, and nothing was changed.
pub const NACRE_REFUSED: c_int = 100;
/// The absence of the object, key, attribute or value that was asked for.
pub const NACRE_ABSENT: c_int = 101;
/// The buffer is too short; the length that is needed was stored.
pub const NACRE_TOO_SHORT: c_int = 102;
/// A defect of the library, which stopped the call. Whether it took effect is not known.
pub const NACRE_DEFECT: c_int = 103;

/// The codes with their texts.
const TEXTS: [(c_int, &CStr); 17] = [
    (NACRE_OK, c"done"),
    (NACRE_INVALID, c"wrong argument"),
    (NACRE_OUT_OF_SPACE, c"out of space"),
    (NACRE_READ_ONLY, c"read only"),
    (NACRE_CORRUPT, c"corrupt"),
    (NACRE_IO, c"input or output error"),
    (NACRE_UNAVAILABLE, c"server not reachable"),
    (NACRE_UNKNOWN, c"unknown whether it took effect"),
    (NACRE_DENIED, c"denied"),
    (NACRE_UNSUPPORTED, c"not supported"),
    (NACRE_CLOSED, c"closed"),
    (NACRE_BUSY, c"busy"),
    (NACRE_UNRECOGNIZED, c"a failure that this library does not know"),
    (NACRE_REFUSED, c"refused by a guard"),
    (NACRE_ABSENT, c"not there"),
    (NACRE_TOO_SHORT, c"buffer too short"),
    (NACRE_DEFECT, c"defect of the library"),
];

/// The reason why a call does not return `NACRE_OK`.
#[derive(Debug)]
pub struct Failure {
    code: c_int,
    text: String,
}

impl Failure {
    /// Creates a failure with its sentence.
    pub fn new(code: c_int, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    /// Creates the failure of a wrong argument.
    pub fn invalid(text: impl Into<String>) -> Failure {
        Failure::new(NACRE_INVALID, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(code_of(error.kind), error.message)
    }
}

fn code_of(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::Invalid => NACRE_INVALID,
        ErrorKind::OutOfSpace => NACRE_OUT_OF_SPACE,
        ErrorKind::ReadOnly => NACRE_READ_ONLY,
        ErrorKind::Corrupt => NACRE_CORRUPT,
        ErrorKind::Io => NACRE_IO,
        ErrorKind::Unavailable => NACRE_UNAVAILABLE,
        ErrorKind::Unknown => NACRE_UNKNOWN,
        ErrorKind::Denied => NACRE_DENIED,
        ErrorKind::Unsupported => NACRE_UNSUPPORTED,
        ErrorKind::Closed => NACRE_CLOSED,
        ErrorKind::Busy => NACRE_BUSY,
        _ => NACRE_UNRECOGNIZED,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function. Returns its code, and keeps the sentence of a failure.
pub fn call(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let _blocked = Blocked::new();
    let Failure { code, text } = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return NACRE_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            Failure::new(NACRE_DEFECT, format!("the library has a defect: {}", message(panic.as_ref())))
        }
    };
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    // A thread that is ending keeps no sentence.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    code
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "a panic without a text",
    }
}

/// Returns the sentence of the calling thread's last failure: what was attempted, on what, and why it failed. UTF-8, empty if
/// nothing has failed. It is valid until the thread's next call that fails, and never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_error_text() -> *const c_char {
    // The characters stay where they are until the value is replaced.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns a few words for a code, without the particulars of a failure. Valid for ever, and never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_code_text(code: c_int) -> *const c_char {
    let known = TEXTS.iter().find(|(known, _)| *known == code);
    known.map_or(c"no code of this library", |(_, text)| text).as_ptr()
}

/// Returns the version of the library as text, such as "0.1.0". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the text is valid until this thread's next failure.
        unsafe { CStr::from_ptr(nacre_error_text()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn codes_are_those_of_the_wire() {
        for kind in ErrorKind::ALL {
            assert_eq!(code_of(kind), c_int::from(kind.code()));
        }
    }

    #[test]
    fn a_panic_is_a_code_and_a_sentence() {
        assert_eq!(call(|| panic!("number {}", 7)), NACRE_DEFECT);
        assert_eq!(last(), "the library has a defect: number 7");
        assert_eq!(call(|| Ok(())), NACRE_OK);
        assert_eq!(last(), "the library has a defect: number 7");
        assert_eq!(call(|| Err(Failure::invalid("a\0b"))), NACRE_INVALID);
        assert_eq!(last(), "a\u{fffd}b");
        assert_eq!(std::thread::spawn(last).join().unwrap(), "");
    }
}
