//! Stores that wait for servers that are away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nacre_object::watch::{Notified, Watch, WatchOptions};
use nacre_object::{
    Limits, ObjectId, ObjectStore, Once, Outcome, ReadOp, Reply, Transaction, WindowPosition,
};

use crate::Store;
use crate::transfer::{RetryBudget, is_away};

impl Store {
    /// Returns a handle on the same store that waits for servers that are away, such as one that is being restarted. Reads,
    /// changes and listings that would fail as [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) are repeated for
    /// [`Options::repeat_timeout`](crate::Options::repeat_timeout), 10 seconds by default, before they do. After one has failed
    /// so, the others fail at once until a server has answered again. A store without servers is not waited for.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), nacre::Error> {
    /// let store = nacre::open("nacre://localhost:6470?repeat_timeout=60s")?.patient();
    /// // Succeeds as well if the server is started within a minute.
    /// store.object("greeting")?.write(0, "hello").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn patient(&self) -> Store {
        if self.patience.is_zero() {
            return self.clone();
        }
        let (inner, patience, given_up) = (self.objects.clone(), self.patience, Arc::default());
        Store { objects: Arc::new(Patient { inner, patience, given_up }), ..self.clone() }
    }
}

/// A store whose requests are repeated while their server is away.
struct Patient {
    inner: Arc<dyn ObjectStore>,
    /// The longest time for which one request is repeated.
    patience: Duration,
    /// True from a request that was repeated in vain until the next one that succeeds: whoever cleans up after a failure is not to
    /// wait as long again.
    given_up: Arc<AtomicBool>,
}

impl Patient {
    fn patiently<T: Send + Unpin + 'static>(
        &self,
        attempt: impl Fn() -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let (patience, given_up) = (self.patience, self.given_up.clone());
        // The request is sent whether its reply is awaited or not.
        let first = attempt();
        Reply::pending(async move {
            let mut reply = first;
            let mut budget = RetryBudget::of(patience);
            loop {
                let mut error = match reply.await {
                    Ok(value) => {
                        given_up.store(false, Ordering::Relaxed);
                        return Ok(value);
                    }
                    Err(error) => error,
                };
                if !is_away(&error) || given_up.load(Ordering::Relaxed) {
                    return Err(error);
                }
                if !budget.allows(&error).await {
                    given_up.store(true, Ordering::Relaxed);
                    error.message.push_str(&format!(" (tried for {patience:?})"));
                    return Err(error);
                }
                reply = attempt();
            }
        })
    }
}

impl ObjectStore for Patient {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let (inner, object) = (self.inner.clone(), object.clone());
        self.patiently(move || inner.apply(&object, transaction.clone()))
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        self.inner.apply_once(object, transaction, once)
    }

    fn window(&self) -> Option<WindowPosition> {
        self.inner.window()
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        let (inner, after) = (self.inner.clone(), after.cloned());
        self.patiently(move || inner.list(after.as_ref(), limit))
    }

    fn limits(&self) -> Reply<Limits> {
        let inner = self.inner.clone();
        self.patiently(move || inner.limits())
    }

    fn read_ahead(&self, objects: &[ObjectId], reads: &[ReadOp]) -> Option<Reply<usize>> {
        self.inner.read_ahead(objects, reads)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        self.inner.watch(object, options)
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.inner.notify(object, payload, timeout)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use futures::executor::block_on;
    use nacre_object::testkit::MemoryStore;
    use nacre_object::{ErrorKind, StoreError};

    use super::*;

    /// A store whose server is away for the given number of requests.
    struct Away {
        inner: MemoryStore,
        left: AtomicU64,
        kind: ErrorKind,
    }

    impl ObjectStore for Away {
        fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
            match self.left.load(Ordering::SeqCst) {
                0 => self.inner.apply(object, transaction),
                left => {
                    self.left.store(left - 1, Ordering::SeqCst);
                    Reply::ready(Err(StoreError::new(self.kind, "nobody answers")))
                }
            }
        }

        fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
            self.inner.list(after, limit)
        }
    }

    fn away(kind: ErrorKind, requests: u64, patience: Duration) -> (Arc<Away>, Store) {
        let away = Arc::new(Away { inner: MemoryStore::new(), left: requests.into(), kind });
        let store = Store { patience, ..Store::from_engine(away.clone(), "away") };
        (away, store)
    }

    #[test]
    fn a_patient_store_waits_for_a_server_and_the_others_do_not() {
        let (away, store) = away(ErrorKind::Unavailable, 3, Duration::from_secs(60));
        let write = |store: &Store| block_on(store.object("o").unwrap().write(0, "x"));
        assert_eq!(write(&store).unwrap_err().kind, ErrorKind::Unavailable);
        write(&store.patient()).unwrap();
        assert_eq!(away.left.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_server_that_does_not_come_back_is_waited_for_once() {
        // Longer than the test may stand still.
        let (away, store) = away(ErrorKind::Unavailable, u64::MAX, Duration::from_secs(4));
        let object = store.patient().object("o").unwrap();
        let error = block_on(object.write(0, "x")).unwrap_err();
        assert!(error.message.contains("nobody answers (tried for 4s)"), "{error}");
        let attempts = u64::MAX - away.left.load(Ordering::SeqCst);
        assert!(attempts > 1, "{attempts}");
        block_on(object.write(0, "x")).unwrap_err();
        assert_eq!(u64::MAX - away.left.load(Ordering::SeqCst), attempts + 1);
        // From the next answer on it is waited for again.
        away.left.store(0, Ordering::SeqCst);
        block_on(object.write(0, "x")).unwrap();
        away.left.store(1, Ordering::SeqCst);
        block_on(object.write(0, "y")).unwrap();
    }

    #[test]
    fn a_put_waits_for_a_server_that_is_away_when_its_staging_begins() {
        let (away, store) = away(ErrorKind::Unavailable, 3, Duration::from_secs(60));
        let content = vec![7; (16 << 20) + 1];
        let bytes = block_on(store.object("o").unwrap().put(&content[..])).unwrap();
        assert_eq!((bytes, away.left.load(Ordering::SeqCst)), (content.len() as u64, 0));
    }

    #[test]
    fn what_may_have_taken_effect_is_not_repeated() {
        let (away, store) = away(ErrorKind::Unknown, 2, Duration::from_secs(60));
        let error = block_on(store.patient().object("o").unwrap().write(0, "x")).unwrap_err();
        assert_eq!((error.kind, away.left.load(Ordering::SeqCst)), (ErrorKind::Unknown, 1), "{error}");
    }
}
