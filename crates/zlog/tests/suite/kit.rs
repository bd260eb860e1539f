//! A store whose replies get lost, whose transactions come late, and which does as it is told otherwise; and logs on stores. The store
//! has no threads, so that what happens on it in a runtime of one thread happens the same way again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nacre_object::testkit::MemoryStore;
use nacre_object::watch::{Feed, Watch, WatchOptions};
use nacre_object::{
    ErrorKind, Limits, ObjectId, ObjectStore, Outcome, ReadOp, Reply, StoreError, Transaction,
};
use nacre_zlog::{Directory, Entry, Followed, Follower, Log, Options, Shape, Slot};
use parking_lot::Mutex;
use tokio::time::timeout;

/// The time after which a call is taken for one that never ends.
pub const FOREVER: Duration = Duration::from_secs(3600);

/// The fate of a transaction, whatever becomes of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is applied at once, and so is its reply there.
    Done,
    /// It is applied after a time, and its reply comes after another one.
    Slow(Duration, Duration),
    /// It is applied after a time, and the reply is lost.
    Lost(Duration),
    /// It is applied, and the reply is a failure of a kind that only a later program knows.
    Unrecognized,
    /// It is not applied.
    Away,
    /// It is not applied, for want of room.
    Full,
    /// It is not applied, since it touches more than the store changes at once.
    TooMuch,
}

/// The delivery of an event to a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// With the change.
    AtOnce,
    /// After a time: others may overtake it.
    Late(Duration),
    /// With the change, and after a time again.
    Twice(Duration),
}

/// Decides the delivery of an event.
pub type Post = Box<dyn FnMut() -> Delivery + Send>;

/// Decides the fate of a transaction.
pub type Decide = Box<dyn FnMut(&ObjectId, &Transaction) -> Fate + Send>;

/// A store with a judge.
pub struct Faulty {
    pub inner: Arc<MemoryStore>,
    /// What it says that its limits are.
    pub limits: Mutex<Limits>,
    decide: Mutex<Decide>,
    /// `None`: it cannot watch.
    feeds: Option<Arc<Watches>>,
    /// The number of transactions that were refused.
    refusals: Arc<AtomicU64>,
}

/// The watches of a store.
struct Watches {
    feeds: Feeds,
    post: Mutex<Post>,
}

/// The watches of objects, with their numbers.
type Feeds = Arc<Mutex<BTreeMap<ObjectId, Vec<(u64, Feed)>>>>;

impl Faulty {
    pub fn new(decide: impl FnMut(&ObjectId, &Transaction) -> Fate + Send + 'static) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner: Arc::new(MemoryStore::new()),
            limits: Mutex::default(),
            decide: Mutex::new(Box::new(decide)),
            feeds: Some(Arc::new(Watches {
                feeds: Feeds::default(),
                post: Mutex::new(Box::new(|| Delivery::AtOnce)),
            })),
            refusals: Arc::default(),
        })
    }

    /// Delivers events as they are told from now on.
    pub fn deliver(&self, post: impl FnMut() -> Delivery + Send + 'static) {
        if let Some(watches) = &self.feeds {
            *watches.post.lock() = Box::new(post);
        }
    }

    /// A store that cannot watch.
    pub fn without_watches() -> Arc<Faulty> {
        let decide: Decide = Box::new(|_, _| Fate::Done);
        let (inner, limits, decide) = (Arc::new(MemoryStore::new()), Mutex::default(), Mutex::new(decide));
        Arc::new(Faulty { inner, limits, decide, feeds: None, refusals: Arc::default() })
    }

    /// Returns the number of transactions that were refused.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }
}

async fn apply(
    inner: Arc<MemoryStore>,
    watches: Option<Arc<Watches>>,
    refusals: Arc<AtomicU64>,
    object: ObjectId,
    transaction: Transaction,
) -> Result<Outcome, StoreError> {
    let is_change = !transaction.writes.is_empty();
    let outcome = inner.apply(&object, transaction).await?;
    if let Outcome::Refused(_) = outcome {
        refusals.fetch_add(1, Ordering::Relaxed);
    }
    if let (Outcome::Done(done), Some(watches)) = (&outcome, watches)
        && is_change
    {
        watches.notify(object, done.version);
    }
    Ok(outcome)
}

impl Watches {
    /// Tells each watch of an object about a change.
    fn notify(self: Arc<Self>, object: ObjectId, version: u64) {
        let numbers: Vec<u64> = {
            let feeds = self.feeds.lock();
            feeds.get(&object).into_iter().flatten().map(|(number, _)| *number).collect()
        };
        for number in numbers {
            let delivery = (self.post.lock())();
            if !matches!(delivery, Delivery::Late(_)) {
                self.deliver(&object, number, version);
            }
            if let Delivery::Late(after) | Delivery::Twice(after) = delivery {
                let (watches, object) = (self.clone(), object.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    watches.deliver(&object, number, version);
                });
            }
        }
    }

    /// Delivers an event, unless the watch has ended meanwhile.
    fn deliver(&self, object: &ObjectId, number: u64, version: u64) {
        let feeds = self.feeds.lock();
        for (_, feed) in feeds.get(object).into_iter().flatten().filter(|(other, _)| *other == number) {
            feed.changed(version);
        }
    }
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
        let fate = (self.decide.lock())(object, &transaction);
        let (inner, feeds, refusals) = (self.inner.clone(), self.feeds.clone(), self.refusals.clone());
        let applied = apply(inner, feeds, refusals, object.clone(), transaction);
        match fate {
            Fate::Done => Reply::pending(applied),
            Fate::Slow(before, after) => {
                // It arrives even if its sender has died.
                let applied = tokio::spawn(async move {
                    tokio::time::sleep(before).await;
                    applied.await
                });
                Reply::pending(async move {
                    let outcome = applied.await.expect("the store does not panic");
                    tokio::time::sleep(after).await;
                    outcome
                })
            }
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
            Fate::Unrecognized => Reply::pending(async {
                applied.await?;
                Err(StoreError::new(ErrorKind::Unrecognized, "something new, on purpose"))
            }),
            Fate::Away => Reply::pending(async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Err(StoreError::new(ErrorKind::Unavailable, "the store is away on purpose"))
            }),
            Fate::Full => {
                Reply::ready(Err(StoreError::new(ErrorKind::OutOfSpace, "the store is full on purpose")))
            }
            Fate::TooMuch => Reply::ready(Err(StoreError::new(
                ErrorKind::Unsupported,
                "it is too much at once, on purpose",
            ))),
        }
    }

    fn limits(&self) -> Reply<Limits> {
        Reply::ready(Ok(*self.limits.lock()))
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        let Some(feeds) = self.feeds.as_ref().map(|watches| watches.feeds.clone()) else {
            return Reply::ready(Err(nacre_object::watch::unsupported()));
        };
        let version = match self.inner.model().apply(object, &Transaction::new().read(ReadOp::Stat)) {
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

/// Creates a log on a store, and opens it.
pub async fn log_on(store: Arc<dyn ObjectStore>, width: u32, unit: u32) -> Log {
    let directory = Directory::new(store.clone()).unwrap();
    directory.create("log", Shape { width, unit }).await.unwrap();
    Log::open(store, "log", Options::default()).await.unwrap()
}

/// Returns a store in memory with a log on it.
pub async fn log(width: u32, unit: u32) -> (Arc<MemoryStore>, Log) {
    let store = Arc::new(MemoryStore::new());
    (store.clone(), log_on(store, width, unit).await)
}

/// Opens the log again.
pub async fn open(store: &Arc<impl ObjectStore>) -> Log {
    Log::open(store.clone(), "log", Options::default()).await.unwrap()
}

/// Returns an entry with a text.
pub fn entry(text: impl std::fmt::Display) -> Entry {
    Entry::new(text.to_string())
}

/// Waits for a follower's next step, but not forever.
pub async fn next(follower: &mut Follower) -> Followed {
    timeout(FOREVER, follower.next()).await.expect("the follower waits for ever").unwrap()
}

/// Returns all positions of a log with what is there.
pub async fn read_all(log: &Log) -> Vec<(u64, Slot)> {
    let (mut found, tail) = (Vec::new(), log.tail().await.unwrap());
    while (found.len() as u64) < tail {
        let read = log.read_range(found.len() as u64, tail).await.unwrap();
        assert!(!read.is_empty());
        found.extend(read);
    }
    found
}
