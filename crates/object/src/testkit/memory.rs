//! A store made of the model: slow and forgetful, but never wrong.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::testkit::Model;
use crate::watch::{Hub, Notified, Watch, WatchOptions};
use crate::window::{Recall, WINDOW_WRITES_MAX, Window};
use crate::{
    ObjectId, ObjectStore, Once, Outcome, ReadOp, Reply, StoreError, Transaction, WindowPosition, once,
};

/// A [`Model`] behind a mutex: a stand-in wherever a test needs any store.
#[derive(Debug)]
pub struct MemoryStore {
    model: Mutex<Model>,
    /// Locked while the model is locked.
    window: Mutex<Window>,
    id: [u8; 16],
    /// Changed while the model is locked.
    watchers: Hub,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty store that recognises at most the latest `writes` writes.
    pub fn with_window(writes: usize) -> Self {
        Self::create(Model::new(), Window::new(writes, 0))
    }

    fn create(model: Model, window: Window) -> Self {
        let random = RandomState::new();
        let id = (u128::from(random.hash_one(0)) << 64 | u128::from(random.hash_one(1))).to_le_bytes();
        Self { model: Mutex::new(model), window: Mutex::new(window), id, watchers: Hub::default() }
    }

    /// Returns the model, to look into or to change behind the back of the store's users.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        // The model's methods leave it whole wherever they may panic, so a poisoned mutex does no harm.
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a transaction, and tells the watchers of a change.
    fn change(
        &self,
        model: &mut Model,
        object: &ObjectId,
        transaction: &Transaction,
    ) -> Result<Outcome, StoreError> {
        let outcome = model.apply(object, transaction)?;
        if let Outcome::Done(done) = &outcome
            && !transaction.writes.is_empty()
            && self.watchers.is_watched(hash(object))
        {
            self.watchers.changed(object, done.version, Reply::ready(Ok(())));
        }
        Ok(outcome)
    }

    fn apply_now(
        &self,
        object: &ObjectId,
        transaction: &Transaction,
        once: &Once,
    ) -> Result<Outcome, StoreError> {
        let mut model = self.model();
        let mut window = self.recent();
        once.check()?;
        if let Some(since) = once.since {
            if since.window != self.id {
                return Err(once::not_recalled());
            }
            match window.recall(&once.token, since.position) {
                Recall::Applied { version, .. } if !transaction.reads.is_empty() => {
                    return Err(once::answers_lost(version));
                }
                Recall::Applied { version, existed } => return Ok(once::repeated(version, existed)),
                Recall::Unknown => return Err(once::not_recalled()),
                Recall::New => {}
            }
        }
        let outcome = self.change(&mut model, object, transaction)?;
        if let Outcome::Done(done) = &outcome
            && !transaction.writes.is_empty()
        {
            let position = window.end();
            window.insert(position, &once.token, done.version, done.existed);
        }
        Ok(outcome)
    }
}

fn hash(object: &ObjectId) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.hash(&mut hasher);
    hasher.finish()
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::from(Model::new())
    }
}

impl From<Model> for MemoryStore {
    fn from(model: Model) -> Self {
        Self::create(model, Window::new(WINDOW_WRITES_MAX, 0))
    }
}

impl ObjectStore for MemoryStore {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        Reply::ready(self.change(&mut self.model(), object, &transaction))
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        Reply::ready(self.apply_now(object, &transaction, &once))
    }

    fn window(&self) -> Option<WindowPosition> {
        Some(WindowPosition { window: self.id, position: self.recent().end() })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        let result: Result<_, StoreError> = Ok(self.model().list(after, limit));
        Reply::ready(result)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        let mut model = self.model();
        let version = match model.apply(object, &Transaction::new().read(ReadOp::Stat)) {
            Ok(Outcome::Done(done)) => done.version,
            _ => 0,
        };
        Reply::ready(self.watchers.watch(object, hash(object), version, &options))
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.watchers.notify(object, payload, timeout)
    }
}
