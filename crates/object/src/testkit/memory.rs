//! A store made of the model: slow and forgetful, but never wrong.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::testkit::Model;
use crate::{ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};

/// A [`Model`] behind a mutex: a stand-in wherever a test needs any store.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Model>);

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the model, to look into or to change behind the back of the store's users.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        // The model's methods leave it whole wherever they may panic, so a poisoned mutex does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Model> for MemoryStore {
    fn from(model: Model) -> Self {
        Self(Mutex::new(model))
    }
}

impl ObjectStore for MemoryStore {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        Reply::ready(self.model().apply(object, &transaction))
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        let result: Result<_, StoreError> = Ok(self.model().list(after, limit));
        Reply::ready(result)
    }
}
