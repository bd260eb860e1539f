//! Checkpoints of groups' states in objects of a Nacre store, one object for each group.
//!
//! The version of a state is the store's own version of the object. A state is stored on condition that nothing
//! newer than its base version is there: of two reflectors that race, one wins, and the other learns the
//! newer version.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use nacre_object::{
    Answer, ByteRange, ErrorKind, Fork, Found, ObjectId, ObjectStore, Outcome, StoreError, Transaction,
    WriteOp,
};

use crate::wire::STATE_BYTES_MAX;

/// The first bytes of a checkpoint. The last one is the version of the format.
const MAGIC: [u8; 8] = *b"nrstate\x01";

/// A stored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The version; 0 if nothing was ever stored.
    pub version: u64,
    /// The state; `None` if there is none.
    pub bytes: Option<Bytes>,
}

/// The outcome of [`Checkpoints::save`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// The state is stored, under this version.
    Stored(u64),
    /// Nothing was stored, as this newer version is there.
    Newer(u64),
}

/// Checkpoints in a store.
#[derive(derive_more::Debug)]
#[debug("Checkpoints")]
pub struct Checkpoints<S: ?Sized> {
    store: Arc<S>,
    prefix: String,
}

impl<S: ?Sized> Clone for Checkpoints<S> {
    fn clone(&self) -> Self {
        Checkpoints { store: self.store.clone(), prefix: self.prefix.clone() }
    }
}

impl<S: ObjectStore + ?Sized> Checkpoints<S> {
    /// Creates checkpoints in the objects whose ids begin with this prefix.
    pub fn new(store: Arc<S>, prefix: impl Into<String>) -> Self {
        Checkpoints { store, prefix: prefix.into() }
    }

    fn object(&self, name: &str) -> Result<ObjectId, StoreError> {
        ObjectId::try_from(format!("{}{name}", self.prefix).as_str())
    }

    /// Loads the checkpoint of this name.
    ///
    /// # Errors
    /// `Corrupt` if the object is no checkpoint; `Invalid` if the name cannot be part of an id; or the store's own
    /// error.
    pub async fn load(&self, name: &str) -> Result<Checkpoint, StoreError> {
        let object = self.object(name)?;
        let whole = ByteRange::new(0, (MAGIC.len() + STATE_BYTES_MAX + 1) as u64);
        let transaction = Transaction::new().read_range(Fork::DEFAULT, whole);
        let read = match self.store.apply(&object, transaction).await? {
            Outcome::Done(done) => match <[Answer; 1]>::try_from(done.answers) {
                Ok([Answer::Range(read)]) => read,
                _ => return Err(corrupt(&object, "the store sent the wrong kind of reply")),
            },
            Outcome::Refused(_) => return Err(corrupt(&object, "the store refused a reading")),
        };
        if read.size == 0 {
            return Ok(Checkpoint { version: read.version, bytes: None });
        }
        match read.data.strip_prefix(&MAGIC) {
            Some(state) if read.size as usize == read.data.len() && state.len() <= STATE_BYTES_MAX => {
                let bytes = read.data.slice(MAGIC.len()..);
                Ok(Checkpoint { version: read.version, bytes: Some(bytes) })
            }
            _ => Err(corrupt(&object, "it is not a checkpoint of a known version")),
        }
    }

    /// Stores a state that is based on the version `base`, unless a newer one is there.
    ///
    /// # Errors
    /// `Invalid` if the state is longer than [`STATE_BYTES_MAX`] or the name cannot be part of an id; or the store's
    /// own error.
    pub async fn save(&self, name: &str, base: u64, state: &Bytes) -> Result<Saved, StoreError> {
        if state.len() > STATE_BYTES_MAX {
            let text = format!("a state has at most {STATE_BYTES_MAX} bytes, not {}", state.len());
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        let object = self.object(name)?;
        let mut bytes = BytesMut::with_capacity(MAGIC.len() + state.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(state);
        let bytes = bytes.freeze();
        let transaction = Transaction::new()
            .if_version(Fork::DEFAULT, ByteRange::ALL, base)
            .change(WriteOp::Truncate { fork: Fork::DEFAULT, size: bytes.len() as u64 })
            .write(Fork::DEFAULT, 0, bytes.clone());
        match self.store.apply(&object, transaction).await {
            Ok(Outcome::Done(done)) => Ok(Saved::Stored(done.version)),
            Ok(Outcome::Refused(refusal)) => match refusal.found {
                Found::Region(region) => Ok(Saved::Newer(region.version)),
                _ => Err(corrupt(&object, "the store refused for a reason that it was not given")),
            },
            Err(error) if error.kind == ErrorKind::Unknown => {
                // It may have been stored. If it was, it is there, above what it was based on.
                let found = self.load(name).await?;
                match found.bytes {
                    Some(there) if found.version > base && there == bytes[MAGIC.len()..] => {
                        Ok(Saved::Stored(found.version))
                    }
                    _ if found.version > base => Ok(Saved::Newer(found.version)),
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }
}

fn corrupt(object: &ObjectId, why: &str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("the checkpoint in the object {object}: {why}"))
}
