//! Error numbers: the ones that `objclass` names for scripts, and their texts.

/// A positive error number, as Linux has them.
///
/// ```
/// use nacre_class::errno::{self, Errno};
///
/// let number: Errno = errno::ENOENT;
/// assert_eq!(errno::name(number), Some("ENOENT"));
/// assert_eq!(errno::name(-1), None);
/// ```
pub type Errno = i32;

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        $(#[doc = concat!($text, ".")] pub const $name: Errno = $number;)*

        /// Every error number that scripts know by name, with the name and a text.
        pub const ALL: &[(&str, Errno, &str)] = &[$((stringify!($name), $number, $text)),*];
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such object or key";
    ESRCH = 3, "no such process";
    EINTR = 4, "interrupted call";
    EIO = 5, "input or output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    ENOEXEC = 8, "not executable";
    EBADF = 9, "bad file descriptor";
    ECHILD = 10, "no child processes";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "busy";
    EEXIST = 17, "it exists";
    EXDEV = 18, "cross-device link";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in the system";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "wrong device for the operation";
    EFBIG = 27, "too large";
    ENOSPC = 28, "no space left";
    ESPIPE = 29, "illegal seek";
    EROFS = 30, "read-only";
    EMLINK = 31, "too many links";
    EPIPE = 32, "broken pipe";
    EDOM = 33, "argument out of the function's domain";
    ERANGE = 34, "result out of range";
    ENODATA = 61, "no such attribute";
    EOPNOTSUPP = 95, "no such method";
    ESTALE = 116, "of an earlier epoch";
    ECANCELED = 125, "canceled";
}

/// Returns the name of an error number, if it has one here.
pub fn name(errno: Errno) -> Option<&'static str> {
    ALL.iter().find(|(_, number, _)| *number == errno).map(|(name, ..)| *name)
}

/// Returns a text for an error number.
pub fn text(errno: Errno) -> String {
    match ALL.iter().find(|(_, number, _)| *number == errno) {
        Some((_, _, text)) => (*text).to_owned(),
        None => "an error of the method's own".to_owned(),
    }
}

/// Returns the name of an error number, or `error N` where it has none.
pub fn shown(errno: Errno) -> String {
    name(errno).map_or_else(|| format!("error {errno}"), str::to_owned)
}
