//! Handles that act for a session, and the fences that shut sessions out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_object::watch::{Notified, Watch, WatchOptions};
use nacre_object::{
    Answer, ErrorKind, Fences, Guard, Limits, ObjectId, ObjectStore, Once, Outcome, ReadOp, Refusal, Reply,
    StoreError, Transaction, WindowPosition, WriteOp,
};

use crate::{Object, Store};

impl Store {
    /// Returns a handle on the same store that acts for one session: every change through it is guarded by the
    /// session's number, and fails as [`ErrorKind::Denied`] where the session is fenced ([`Object::fence_session`],
    /// [`Object::raise_fence`]). Reads are not. A transaction through it may have one operation less than others.
    ///
    /// Sessions are numbered in ascending order by whoever grants them: a lock service, say, when it grants a lock.
    ///
    /// ```
    /// let store = nacre::open("mem:")?.blocking();
    /// // Whoever had the lock before is session 7. It has not been heard of, and session 8 takes over.
    /// let before = store.for_session(7).object("results")?;
    /// let object = store.for_session(8).object("results")?;
    /// object.fence_session(7)?;
    /// object.write(0, "from session 8")?;
    ///
    /// // What the old one sent, or still sends, does no harm.
    /// let error = before.write(0, "from session 7").unwrap_err();
    /// assert_eq!(error.kind, nacre::ErrorKind::Denied);
    /// assert_eq!(before.read(0..100)?.data, "from session 8");
    /// # Ok::<(), nacre::Error>(())
    /// ```
    pub fn for_session(&self, session: u64) -> Store {
        let inner = self.objects.clone();
        let objects = Arc::new(ForSession { inner, session });
        // Classes of its own: what their methods change goes through this handle.
        Store {
            objects,
            #[cfg(feature = "class")]
            classes: Arc::default(),
            #[cfg(feature = "class")]
            calls_here: true,
            ..self.clone()
        }
    }
}

impl Object {
    /// Fences one session: its changes of this object fail from now on, those that are under way too. Others are not
    /// affected, unless more than 1,024 sessions are fenced: see [`WriteOp::FenceSession`]. Returns the object's new
    /// version. The object is created if it does not exist.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the fence may or may not be raised; raising it again
    /// does no harm.
    pub async fn fence_session(&self, session: u64) -> Result<u64, StoreError> {
        let write = WriteOp::FenceSession { session };
        self.change(Transaction::new().change(write), "fence a session off").await
    }

    /// Fences all sessions whose numbers are less than `least`. Returns the object's new version. The object is created
    /// if it does not exist.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the fence may or may not be raised; raising it again
    /// does no harm.
    pub async fn raise_fence(&self, least: u64) -> Result<u64, StoreError> {
        let write = WriteOp::RaiseFence { token: least };
        self.change(Transaction::new().change(write), "raise the fence of").await
    }

    /// Returns the sessions that are fenced.
    ///
    /// # Errors
    ///
    /// `Invalid` or `Unsupported` if the store's server is of an earlier version, which knows no fences of single
    /// sessions.
    pub async fn fences(&self) -> Result<Fences, StoreError> {
        match self.ask(ReadOp::Fences, "read the fences of").await? {
            Answer::Fences(fences) => Ok(fences),
            _ => Err(self.nonsense("read the fences of")),
        }
    }
}

/// A store whose changes are guarded by the number of a session.
struct ForSession {
    inner: Arc<dyn ObjectStore>,
    session: u64,
}

impl ForSession {
    /// Applies a transaction; one that changes something, only if the session is not fenced.
    fn guarded(
        &self,
        mut transaction: Transaction,
        apply: impl FnOnce(Transaction) -> Reply<Outcome>,
    ) -> Reply<Outcome> {
        if transaction.writes.is_empty() {
            return apply(transaction);
        }
        // The first of all guards, so that a session that is fenced learns just that.
        transaction.guards.insert(0, Guard::Fence { token: self.session });
        let session = self.session;
        match apply(transaction) {
            Reply::Ready(result) => Reply::Ready(result.map(|result| unguarded(result, session))),
            reply => Reply::pending(async move { unguarded(reply.await, session) }),
        }
    }
}

impl ObjectStore for ForSession {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.guarded(transaction, |transaction| self.inner.apply(object, transaction))
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        self.guarded(transaction, |transaction| self.inner.apply_once(object, transaction, once))
    }

    fn window(&self) -> Option<WindowPosition> {
        self.inner.window()
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }

    fn limits(&self) -> Reply<Limits> {
        self.inner.limits()
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        self.inner.watch(object, options)
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.inner.notify(object, payload, timeout)
    }
}

/// Returns the result of a transaction as if it had not been guarded by its session.
fn unguarded(result: Result<Outcome, StoreError>, session: u64) -> Result<Outcome, StoreError> {
    match result {
        Ok(Outcome::Refused(Refusal { guard: 0, .. })) => {
            let text =
                format!("session {session} is fenced: another one has taken over; nothing was changed");
            Err(StoreError::new(ErrorKind::Denied, text))
        }
        Ok(Outcome::Refused(refusal)) => {
            Ok(Outcome::Refused(Refusal { guard: refusal.guard - 1, ..refusal }))
        }
        result => result,
    }
}
