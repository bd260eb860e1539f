//! The errors of a study.

use std::io;

use nacre_object::{ErrorKind, StoreError};
use nacre_shell::Failure;

/// The error with which a study, or a part of it, ended without a result.
#[derive(thiserror::Error)]
pub enum BenchError {
    /// The store under test failed.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// An operation of the operating system failed.
    #[error("cannot {attempted}: {source}")]
    Io {
        /// The attempted operation, as "open the file x".
        attempted: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A required program is not installed on this machine.
    #[error("{program} is not installed; on Debian, install it with: apt-get install {package}")]
    MissingProgram {
        /// The program, or a file of it.
        program: String,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// A peer's answer with which the study cannot continue.
    #[error("{peer}: {message}")]
    Peer {
        /// The peer.
        peer: &'static str,
        /// The description of the failure.
        message: String,
    },
    /// A client process or a server process ended or failed.
    #[error("{0}")]
    Process(String),
    /// The checker found that the store does not hold the updates that were acknowledged to the clients.
    #[error("{0}")]
    Lost(String),
    /// The parameters are inconsistent.
    #[error("{0}")]
    Usage(String),
    /// A figure could not be drawn.
    #[error("cannot draw {figure}: {message}")]
    Figure {
        /// The title of the figure.
        figure: String,
        /// The description of the failure.
        message: String,
    },
}

/// Prints the same sentence as `Display`, for tests that show an unexpected error.
impl std::fmt::Debug for BenchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl BenchError {
    /// Returns the message with what can be done about it, as one sentence.
    pub(crate) fn sentence(&self) -> String {
        let Self::Store(error) = self else { return self.to_string() };
        let advice = match error.kind {
            ErrorKind::Unavailable => {
                "start the server with \"nacre serve\", or name another store with --store"
            }
            ErrorKind::Denied if error.message.contains("asks for the cluster's key") => {
                "give the key file with --key"
            }
            ErrorKind::OutOfSpace => "make room, then try again",
            ErrorKind::Closed => "try again when it is up again",
            _ => return error.message.clone(),
        };
        format!("{}; {advice}", error.message)
    }

    /// Wraps an error of the operating system with the attempted operation.
    pub(crate) fn io(attempted: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let attempted = attempted.into();
        move |source| Self::Io { attempted, source }
    }

    /// Creates the error of an answer with which the study cannot continue.
    pub(crate) fn peer(peer: &'static str, message: impl std::fmt::Display) -> Self {
        Self::Peer { peer, message: message.to_string() }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Usage(sentence) => Failure::Usage(sentence),
            error => Failure::Failed(error.sentence()),
        }
    }
}
