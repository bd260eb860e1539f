//! Transactions that are applied at most once, however often they are sent.
//!
//! A client that lost the reply to a transaction sends it again with the same [`WriteToken`]. The store recognises it by
//! its [`Window`](crate::window::Window) of the latest writes, and applies it only if it is certain that no earlier
//! attempt took effect. Three things make that certain:
//!
//! - the window goes back to a position that the store had before the first attempt was sent (`Once::since`);
//! - the look-up and the application are one step under the object's lock;
//! - an earlier attempt that is still on its way through the server is refused once a later connection of the same
//!   writer was opened ([`Lease`]), so it cannot take effect behind the look-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Done, ErrorKind, Outcome, StoreError};

/// The length of a writer's id in bytes.
pub const WRITER_BYTES: usize = 16;

/// The name of one write: no two writes have the same one, and every attempt at a write has that of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriteToken {
    /// The random id of the writer.
    pub writer: [u8; WRITER_BYTES],
    /// The number that the writer gave to the write, at most [`SEQUENCE_MAX`].
    pub sequence: u64,
}

/// The greatest number of a write.
pub const SEQUENCE_MAX: u64 = u64::MAX >> 1;

/// An attempt at a write that is to be applied at most once.
#[derive(Clone, Debug)]
pub struct Once {
    /// The write.
    pub token: WriteToken,
    /// `None` for the first attempt. For a repetition, a position of the store's window from before the first attempt
    /// was sent. A store with another window does not know what became of that attempt.
    pub since: Option<WindowPosition>,
    /// The right to apply anything, which ends when the writer opens a later connection.
    pub lease: Lease,
}

impl Once {
    /// Checks that the attempt may still be applied. Called under the object's lock.
    ///
    /// # Errors
    ///
    /// `Closed` if the writer has opened a later connection.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.lease.is_valid() {
            return Ok(());
        }
        let text = "the client has gone on over another connection";
        Err(StoreError::new(ErrorKind::Closed, text))
    }
}

/// The right of one connection to apply a writer's transactions.
#[derive(Clone, Debug)]
pub struct Lease {
    newest: Arc<AtomicU64>,
    epoch: u64,
}

impl Lease {
    /// Creates a right that never ends.
    pub fn unlimited() -> Lease {
        Lease { newest: Arc::default(), epoch: 0 }
    }

    /// Creates the right of a writer's connection with the number `epoch`, given the greatest number so far. All rights
    /// of connections with lesser numbers end. Returns `None` if a connection with that number or a greater one was
    /// opened before.
    pub fn open(newest: &Arc<AtomicU64>, epoch: u64) -> Option<Lease> {
        // Whoever finds the old number has judged its transaction before anything of the new connection is judged.
        let before = newest.fetch_max(epoch, Ordering::SeqCst);
        (before < epoch).then(|| Lease { newest: newest.clone(), epoch })
    }

    /// Returns whether the right still holds.
    pub fn is_valid(&self) -> bool {
        self.newest.load(Ordering::SeqCst) == self.epoch
    }
}

/// A position of a store's window. Every write that is applied later has this position or a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPosition {
    /// The id of the window. Positions of different windows have nothing to do with each other.
    pub window: [u8; 16],
    /// The number of writes with tokens so far.
    pub position: u64,
}

/// Returns the outcome of a repetition of a transaction that took effect before, and that reads nothing.
pub fn repeated(version: u64, existed: bool) -> Outcome {
    Outcome::Done(Done { version, existed, answers: Vec::new() })
}

/// Returns the error for a repetition of which nobody knows whether an earlier attempt took effect.
pub fn not_recalled() -> StoreError {
    let text = "an earlier attempt at the transaction may or may not have taken effect: the store keeps too few of the \
                latest writes to tell";
    StoreError::new(ErrorKind::Unknown, text)
}

/// Returns the error for a repetition of a transaction that took effect before, and whose reads cannot be answered any
/// more.
pub fn answers_lost(version: u64) -> StoreError {
    let text = format!(
        "an earlier attempt at the transaction took effect, as version {version}, but what it read is lost"
    );
    StoreError::new(ErrorKind::Unknown, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_connection_ends_the_rights_of_earlier_ones() {
        let newest = Arc::new(AtomicU64::new(0));
        let first = Lease::open(&newest, 3).unwrap();
        assert!(first.is_valid());
        let second = Lease::open(&newest, 5).unwrap();
        assert!(!first.is_valid() && second.is_valid());
        assert!(Lease::open(&newest, 5).is_none() && Lease::open(&newest, 4).is_none());
        assert!(second.is_valid(), "a connection that comes too late ends nothing");
        assert!(Lease::unlimited().is_valid());
    }
}
