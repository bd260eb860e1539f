//! Errors of calls and of changes of the classes.

use bytes::Bytes;
use nacre_object::{Escaped, ObjectId, StoreError};

use crate::bounds::{Bound, Bounds};
use crate::errno::{self, Errno};

/// A call that took no effect, or of which it is not known.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The method failed, by its result or by an error.
    #[error("{} on object \"{object}\" failed: {} ({})", called(class, method), Escaped::of(&failure.message), errno::shown(*errno))]
    Failed {
        /// The object.
        object: ObjectId,
        /// The class.
        class: String,
        /// The method.
        method: String,
        /// The positive error number.
        errno: Errno,
        /// Further details.
        failure: Box<Failure>,
    },
    /// The method exceeded one of its bounds. Nothing was changed.
    #[error("{} on object \"{object}\" was stopped: {}", called(class, method), bound.sentence(bounds))]
    Exceeded {
        /// The object.
        object: ObjectId,
        /// The class.
        class: String,
        /// The method.
        method: String,
        /// The bound.
        bound: Bound,
        /// All bounds of the call.
        bounds: Box<Bounds>,
    },
    /// The caller's session is fenced at the object. Nothing was changed.
    #[error(
        "{} on object \"{object}\" was refused: the session is fenced there, below {fence}",
        called(class, method)
    )]
    Fenced {
        /// The object.
        object: ObjectId,
        /// The class.
        class: String,
        /// The method.
        method: String,
        /// The object's fence.
        fence: u64,
    },
    /// Others changed the object during each of many attempts. Nothing was changed.
    #[error(
        "{} on object \"{object}\" failed: other clients changed the object during all {attempts} attempts",
        called(class, method)
    )]
    Contended {
        /// The object.
        object: ObjectId,
        /// The class.
        class: String,
        /// The method.
        method: String,
        /// The number of attempts.
        attempts: u32,
    },
    /// The store failed. The call may or may not have taken effect if the kind is
    /// [`Unknown`](nacre_object::ErrorKind::Unknown).
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A failed method's last words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// The message.
    pub message: String,
    /// The output that it had written.
    pub output: Bytes,
    /// The lines that it had logged.
    pub log: Vec<String>,
}

impl CallError {
    /// Returns the positive error number that cls_lua's callers would be given.
    pub fn errno(&self) -> Errno {
        match self {
            CallError::Failed { errno, .. } => *errno,
            CallError::Exceeded { bound: Bound::Memory, .. } => errno::ENOMEM,
            CallError::Exceeded { .. } => errno::E2BIG,
            CallError::Fenced { .. } => errno::EPERM,
            CallError::Contended { .. } => errno::EAGAIN,
            CallError::Store(_) => errno::EIO,
        }
    }
}

/// Returns a class and its method as they are printed.
fn called(class: &str, method: &str) -> String {
    format!("{}.{}", Escaped::of(class), Escaped::of(method))
}

/// A change of the classes that was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClassError {
    /// The class is not sound; the text says why.
    #[error("class \"{}\" is refused: {reason}", Escaped::of(name))]
    Refused {
        /// The class.
        name: String,
        /// The defect.
        reason: String,
    },
    /// An unknown class, or an unknown version of one.
    #[error("there is no class \"{}\"{}", Escaped::of(name), version.map(|version| format!(" of version {version}")).unwrap_or_default())]
    Missing {
        /// The class.
        name: String,
        /// The version, if one was asked for.
        version: Option<u64>,
    },
    /// The class was changed by another client at the same time. Nothing was changed.
    #[error(
        "class \"{}\" was changed by another client meanwhile; read it again and retry",
        Escaped::of(name)
    )]
    Conflict {
        /// The class.
        name: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
