//! Violations of the protocol by a peer.

use nacre_object::{ErrorKind, StoreError};

use crate::limit::BODY_BYTES_MAX;

/// A violation of the protocol in bytes that a peer sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A header announces a longer body than any message may have.
    #[error("a frame of {body_bytes} bytes was announced; the limit is {BODY_BYTES_MAX}")]
    TooLong {
        /// The length in the header.
        body_bytes: usize,
    },
    /// A body ends before all that it announces.
    #[error("a message ends before what it announces")]
    Truncated,
    /// A body holds something that has no meaning.
    #[error("malformed message: {0}")]
    Malformed(&'static str),
    /// A body exceeds a limit of the model.
    #[error("{0}")]
    Model(String),
}

impl From<WireError> for StoreError {
    fn from(error: WireError) -> Self {
        StoreError::new(ErrorKind::Invalid, error.to_string())
    }
}

impl From<StoreError> for WireError {
    fn from(error: StoreError) -> Self {
        WireError::Model(error.message)
    }
}
