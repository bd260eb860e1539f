//! A store whose replies get lost, whose transactions come late, and which does as it is told otherwise. It has no threads, so that
//! what happens on it in a runtime of one thread happens the same way again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nacre_object::testkit::MemoryStore;
use nacre_object::watch::{Feed, Watch, WatchOptions};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Read, Reply, StoreError, Transaction};
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
    /// `None`: it cannot watch.
    feeds: Option<Feeds>,
}

/// The watches of objects, with their numbers.
type Feeds = Arc<Mutex<BTreeMap<ObjectId, Vec<(u64, Feed)>>>>;

impl Faulty {
    pub fn new(judge: impl FnMut(&ObjectId, &Transaction) -> Fate + Send + 'static) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner: Arc::new(MemoryStore::new()),
            judge: Mutex::new(Box::new(judge)),
            feeds: Some(Feeds::default()),
        })
    }

    /// A store that cannot watch.
    pub fn without_watches() -> Arc<Faulty> {
        let judge: Judge = Box::new(|_, _| Fate::Done);
        Arc::new(Faulty { inner: Arc::new(MemoryStore::new()), judge: Mutex::new(judge), feeds: None })
    }
}

async fn apply(
    inner: Arc<MemoryStore>,
    feeds: Option<Feeds>,
    object: ObjectId,
    transaction: Transaction,
) -> Result<Outcome, StoreError> {
    let is_change = !transaction.writes.is_empty();
    let outcome = inner.apply(&object, transaction).await?;
    if let (Outcome::Done(done), Some(feeds)) = (&outcome, feeds)
        && is_change
    {
        for (_, feed) in feeds.lock().get(&object).into_iter().flatten() {
            feed.changed(done.version);
        }
    }
    Ok(outcome)
}

/// Ends a watch when it is dropped.
struct Hold {
    feeds: Feeds,
    object: ObjectId,
    number: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(feeds) = self.feeds.lock().get_mut(&self.object) {
            feeds.retain(|(number, _)| *number != self.number);
        }
    }
}

impl ObjectStore for Faulty {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let fate = (self.judge.lock())(object, &transaction);
        let applied = apply(self.inner.clone(), self.feeds.clone(), object.clone(), transaction);
        match fate {
            Fate::Done => Reply::pending(applied),
            Fate::Slow(before, after) => Reply::pending(async move {
                tokio::time::sleep(before).await;
                let outcome = applied.await;
                tokio::time::sleep(after).await;
                outcome
            }),
            Fate::Lost(after) => {
                // It arrives even if nobody waits for it any more.
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    let _ = applied.await;
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
        let Some(feeds) = self.feeds.clone() else {
            return Reply::ready(Err(nacre_object::watch::unsupported()));
        };
        let version = match self.inner.model().apply(object, &Transaction::new().read(Read::Stat)) {
            Ok(Outcome::Done(done)) => done.version,
            _ => 0,
        };
        let mut all = feeds.lock();
        let watches = all.entry(object.clone()).or_default();
        let number = watches.last().map_or(0, |(number, _)| number + 1);
        let hold = Hold { feeds: feeds.clone(), object: object.clone(), number };
        let (feed, watch) = Watch::new(number, version, &options, hold);
        watches.push((number, feed));
        drop(all);
        Reply::ready(Ok(watch))
    }
}
