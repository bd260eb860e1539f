//! A store whose replies get lost, whose transactions come late, and which does as it is told otherwise.

use std::sync::Arc;
use std::time::Duration;

use nacre_object::testkit::MemoryStore;
use nacre_object::watch::{Watch, WatchOptions};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};
use parking_lot::Mutex;

/// The fate of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is applied at once, and so is its reply there.
    Done,
    /// It is applied after a time, and its reply comes after another one.
    Slow(Duration, Duration),
    /// It is applied after a time, and the reply is lost.
    Lost(Duration),
    /// It is not applied.
    Away,
}

/// Decides the fate of a transaction.
pub type Judge = Box<dyn FnMut(&ObjectId, &Transaction) -> Fate + Send>;

/// A store with a judge.
pub struct Faulty {
    pub inner: Arc<MemoryStore>,
    judge: Mutex<Judge>,
    watches: bool,
}

impl Faulty {
    pub fn new(judge: impl FnMut(&ObjectId, &Transaction) -> Fate + Send + 'static) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner: Arc::new(MemoryStore::new()),
            judge: Mutex::new(Box::new(judge)),
            watches: true,
        })
    }

    /// A store that cannot watch.
    pub fn without_watches() -> Arc<Faulty> {
        let judge: Judge = Box::new(|_, _| Fate::Done);
        Arc::new(Faulty { inner: Arc::new(MemoryStore::new()), judge: Mutex::new(judge), watches: false })
    }
}

impl ObjectStore for Faulty {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let fate = (self.judge.lock())(object, &transaction);
        let (inner, object) = (self.inner.clone(), object.clone());
        match fate {
            Fate::Done => inner.apply(&object, transaction),
            Fate::Slow(before, after) => Reply::pending(async move {
                tokio::time::sleep(before).await;
                let outcome = inner.apply(&object, transaction).await;
                tokio::time::sleep(after).await;
                outcome
            }),
            Fate::Lost(after) => {
                // It arrives even if nobody waits for it any more.
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    let _ = inner.apply(&object, transaction).await;
                });
                Reply::pending(async {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    Err(StoreError::new(ErrorKind::Unknown, "the reply is lost on purpose"))
                })
            }
            Fate::Away => Reply::pending(async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Err(StoreError::new(ErrorKind::Unavailable, "the store is away on purpose"))
            }),
        }
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        match self.watches {
            true => self.inner.watch(object, options),
            false => Reply::ready(Err(nacre_object::watch::unsupported())),
        }
    }
}
