//! Failures of logs.

use nacre_object::{ErrorKind, Escaped, StoreError};

/// The reason why something could not be done with a log.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A log that does not exist, or was deleted since it was opened.
    #[error("there is no log \"{}\"", Escaped::of(.0))]
    Missing(String),
    /// A log of that name that exists already.
    #[error("there is a log \"{}\" already", Escaped::of(.0))]
    Exists(String),
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The handle is for reading only.
    #[error("the log was opened for reading only")]
    ReadOnly,
    /// The objects of the log hold something that is not a log's.
    #[error("the log is damaged: {0}")]
    Corrupt(String),
    /// An entry that is not in the log and never will be, because one that the same handle had to append before it failed.
    #[error("it was not appended, because an entry before it{} failed: {error}", meant_for(*.position))]
    Behind {
        /// The position that the earlier entry was to have, if it had been given one.
        position: Option<u64>,
        /// The failure of the earlier entry.
        error: Box<LogError>,
    },
    /// The store failed. If the kind is [`ErrorKind::Unknown`], what was asked for may have taken effect.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl LogError {
    /// Returns the kind of failure, as a store's.
    pub fn kind(&self) -> ErrorKind {
        match self {
            LogError::Missing(_) | LogError::Exists(_) | LogError::Invalid(_) => ErrorKind::Invalid,
            LogError::ReadOnly => ErrorKind::ReadOnly,
            LogError::Corrupt(_) => ErrorKind::Corrupt,
            // Whatever became of the earlier entry, this one is not there.
            LogError::Behind { error, .. } if error.kind().is_uncertain() => ErrorKind::Unavailable,
            LogError::Behind { error, .. } => error.kind(),
            LogError::Store(error) => error.kind,
        }
    }
}

fn meant_for(position: Option<u64>) -> String {
    position.map(|position| format!(" (for position {position})")).unwrap_or_default()
}
