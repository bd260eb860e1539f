//! Entries that could not be removed or copied: the path, the attempted operation, and the reason.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_quantity::Escaped;
use nacre_walk::{MISSING, Operation, WalkError};
use parking_lot::Mutex;
use rustix::io::Errno;

/// The maximum number of failures kept with their paths; further ones are only counted, so that memory is bounded.
const KEPT_MAX: usize = 1000;

/// The reason of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The system's error number, as in `errno`.
    System(i32),
    /// A reason found by this crate.
    Other(&'static str),
    /// A reason that something else than a file system gives.
    Said(String),
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cause::System(errno) => write!(f, "{}", std::io::Error::from_raw_os_error(*errno)),
            Cause::Other(text) => f.write_str(text),
            Cause::Said(text) => f.write_str(text),
        }
    }
}

impl From<Errno> for Cause {
    fn from(errno: Errno) -> Cause {
        Cause::System(errno.raw_os_error())
    }
}

impl From<&'static str> for Cause {
    fn from(text: &'static str) -> Cause {
        Cause::Other(text)
    }
}

/// An operation that failed on one path. The rest continues without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryError {
    /// The path; bytes, because not all names are UTF-8.
    pub path: Vec<u8>,
    /// The attempted operation, such as "cannot remove".
    pub attempted: &'static str,
    /// The reason.
    pub cause: Cause,
}

impl EntryError {
    /// Creates the error of an operation, such as "cannot remove", on a path.
    pub fn new(path: Vec<u8>, attempted: &'static str, cause: impl Into<Cause>) -> EntryError {
        EntryError { path, attempted, cause: cause.into() }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Returns the reason as the end of a sentence.
    pub fn reason(&self) -> String {
        self.cause.to_string()
    }
}

impl std::fmt::Display for EntryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} \"{}\": {}", self.attempted, Escaped(&self.path), self.reason())
    }
}

impl From<WalkError> for EntryError {
    fn from(error: WalkError) -> EntryError {
        let (attempted, cause) = match error.operation {
            Operation::Open if error.is_missing() => ("cannot open the directory", Cause::Other(MISSING)),
            Operation::Open => ("cannot open the directory", Cause::System(error.errno)),
            Operation::List => ("cannot read the directory", Cause::System(error.errno)),
            Operation::Stat => ("cannot stat", Cause::System(error.errno)),
            Operation::Layout => ("cannot read the layout of", Cause::System(error.errno)),
            Operation::Loop => ("not entering", Cause::Other("it is mounted below itself")),
        };
        EntryError { path: error.path, attempted, cause }
    }
}

/// All failures of a run: their number, and the first of them.
#[derive(Debug, Default)]
pub struct EntryErrors {
    count: AtomicU64,
    first: Mutex<Vec<EntryError>>,
}

impl EntryErrors {
    /// Returns the number of failures.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the first thousand failures, in no particular order.
    pub fn first(&self) -> Vec<EntryError> {
        self.first.lock().clone()
    }

    /// Adds a failure.
    pub fn add(&self, failure: EntryError) {
        let mut first = self.first.lock();
        self.count.fetch_add(1, Ordering::Relaxed);
        if first.len() < KEPT_MAX {
            first.push(failure);
        }
    }

    pub(crate) fn clear(&self) {
        let mut first = self.first.lock();
        self.count.store(0, Ordering::Relaxed);
        first.clear();
    }
}
