//! What can end a study early.

use std::io;

use nacre_object::StoreError;

/// Why a study, or a part of it, did not give a result.
#[derive(thiserror::Error)]
pub enum BenchError {
    /// The store under test failed.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The operating system refused something.
    #[error("cannot {attempted}: {source}")]
    Io {
        /// What was attempted, as "open the file x".
        attempted: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// A program that was asked for is not on this machine.
    #[error("{program} is not installed; on Debian, install it with: apt-get install {package}")]
    MissingProgram {
        /// The program, or a file of it.
        program: String,
        /// The Debian package that brings it.
        package: &'static str,
    },
    /// A peer answered with something that the study cannot go on with.
    #[error("{peer}: {message}")]
    Peer {
        /// Which peer.
        peer: &'static str,
        /// What went wrong.
        message: String,
    },
    /// A client process or a server process ended or failed.
    #[error("{0}")]
    Process(String),
    /// The checker found that the store does not hold what the clients were told that it holds.
    #[error("{0}")]
    Lost(String),
    /// The parameters do not go together.
    #[error("{0}")]
    Usage(String),
    /// A figure could not be drawn.
    #[error("cannot draw {figure}: {message}")]
    Figure {
        /// Which figure.
        figure: String,
        /// What went wrong.
        message: String,
    },
}

/// The sentence, also where a test shows an error that it did not expect.
impl std::fmt::Debug for BenchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl BenchError {
    /// Wraps an error of the operating system with what was attempted.
    pub(crate) fn io(attempted: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let attempted = attempted.into();
        move |source| Self::Io { attempted, source }
    }

    /// An answer of a peer that the study cannot go on with.
    pub(crate) fn peer(peer: &'static str, message: impl std::fmt::Display) -> Self {
        Self::Peer { peer, message: message.to_string() }
    }
}
