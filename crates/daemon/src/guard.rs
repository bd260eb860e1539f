//! The store as clients reach it, without a way to remove the daemon's own records.

use std::time::Duration;

use bytes::Bytes;
use nacre_object::watch::{Notified, Watch, WatchOptions};
use nacre_object::{
    ErrorKind, Limits, ObjectId, ObjectStore, Once, Outcome, Reply, StoreError, Transaction, WindowPosition,
    WriteOp,
};

/// The reason why the records of a lock server that runs are not removed.
pub(crate) const LEDGER: &str = "has the records of this server's locks, without which two clients can come to hold the same \
                                 bytes; to remove it, serve the store without the role lock";
/// The reason why the object is not removed that tells of leases after a restart.
pub(crate) const MARK: &str = "tells the server, when it is started again, that clients may have leases, without which one of \
                               them can come to see an old state; it has no contents, and is not to be removed";

/// A store in which some objects are not removed by whoever reaches the store through this.
pub(crate) struct Guarded<S> {
    pub(crate) store: S,
    /// The objects, each with the reason.
    pub(crate) kept: Vec<(ObjectId, &'static str)>,
}

impl<S> Guarded<S> {
    fn refusal(&self, object: &ObjectId, transaction: &Transaction) -> Option<Reply<Outcome>> {
        let removes = transaction.writes.iter().any(|write| matches!(write, WriteOp::Remove));
        if !removes {
            return None;
        }
        let (_, reason) = self.kept.iter().find(|(kept, _)| kept == object)?;
        let text = format!("object \"{object}\" {reason}");
        Some(Reply::ready(Err(StoreError::new(ErrorKind::Denied, text))))
    }
}

impl<S: ObjectStore> ObjectStore for Guarded<S> {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        match self.refusal(object, &transaction) {
            Some(refusal) => refusal,
            None => self.store.apply(object, transaction),
        }
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        match self.refusal(object, &transaction) {
            Some(refusal) => refusal,
            None => self.store.apply_once(object, transaction, once),
        }
    }

    fn window(&self) -> Option<WindowPosition> {
        self.store.window()
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }

    fn limits(&self) -> Reply<Limits> {
        self.store.limits()
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        self.store.watch(object, options)
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.store.notify(object, payload, timeout)
    }
}
