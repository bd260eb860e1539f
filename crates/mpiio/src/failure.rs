//! The ways in which a call fails, and how the program is told: by MPI's error handlers and codes, and by a sentence on standard error.

use std::ffi::c_int;
use std::io::Write;
use std::sync::OnceLock;

use crate::mpi::{self, Code, MPI_File};

/// The reason why a call failed.
#[derive(Debug)]
pub enum Failure {
    /// The MPI library said so, and has told the program.
    Mpi(Code),
    /// The MPI library said so in a call that is not about the file, and the program has not been told.
    NotReported(Code),
    /// The bytes could not be locked, or a lock was lost.
    Own(String),
    /// The file could not be read or written: the class of the error, and a sentence.
    File(c_int, String),
    /// The reason is another process's, which says it, or has been said.
    Elsewhere,
}

impl From<Code> for Failure {
    fn from(code: Code) -> Failure {
        Failure::Mpi(code)
    }
}

impl From<nacre::Error> for Failure {
    fn from(error: nacre::Error) -> Failure {
        Failure::Own(error.message)
    }
}

impl Failure {
    /// Prints the failure of a call, unless it was printed before. Returns it as one that was printed.
    pub fn said(self, call: &str) -> Failure {
        let (Failure::Own(sentence) | Failure::File(_, sentence)) = self else { return self };
        // In one piece, because other ranks write to the same place. If nobody reads it, the code still says that the call failed.
        let line = format!("nacre: {call} on rank {}: {sentence}\n", mpi::rank());
        let _ = std::io::stderr().write_all(line.as_bytes());
        Failure::Elsewhere
    }

    /// Returns the code that the call is to return.
    pub fn code(&self) -> c_int {
        match self {
            Failure::Mpi(Code(code)) | Failure::NotReported(Code(code)) => *code,
            Failure::File(class, _) if *class != mpi::error_class_io() => *class,
            _ => own_code(),
        }
    }

    /// Reports the failure of a call on a file. Returns the code that the call is to return.
    pub fn report(self, file: MPI_File, call: &str) -> c_int {
        let code = self.code();
        if !matches!(self, Failure::Mpi(_)) {
            self.said(call);
            mpi::call_error_handler(file, code);
        }
        code
    }
}

/// Returns the error code of this library's own failures, which is of the class `MPI_ERR_IO`.
fn own_code() -> c_int {
    static CODE: OnceLock<c_int> = OnceLock::new();
    let text = c"Nacre: the atomic mode of the file cannot be kept; a line on standard error says why";
    *CODE.get_or_init(|| mpi::add_error(text).unwrap_or(mpi::error_class_io()))
}
