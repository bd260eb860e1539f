//! The seam: the trait that every way of keeping objects implements.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use crate::limit::OFFSET_MAX;
use crate::watch::{self, Notified, Watch, WatchOptions};
use crate::{ObjectId, Once, Outcome, ReadOp, StoreError, Transaction, WindowPosition, once};

/// A store of objects. The embedded engine, a remote server and a Ceph pool all implement it, and all pass the same
/// conformance suite (`testkit::conformance`).
///
/// Methods return at once; the [`Reply`] is the answer, now or later. Transactions on one object that overlap in
/// time are applied in some order, one after another; a transaction that was issued after the reply to another
/// one arrived sees its effects. A dropped reply does not undo the request: it may or may not take effect.
pub trait ObjectStore: Send + Sync + 'static {
    /// Applies a transaction to one object, at its master: wholly, or not at all.
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome>;

    /// Applies a transaction at most once, however often it is repeated with the same token: see module
    /// [`once`](crate::once). A repetition of a transaction that took effect is answered with its version; if it reads
    /// something, it fails as `Unknown` unless the store still knows the answers. So does one of which the store cannot
    /// tell whether it took effect. One that did not is judged anew.
    ///
    /// A store without a [`window`](ObjectStore::window) applies first attempts only.
    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        match once.since {
            None => self.apply(object, transaction),
            Some(_) => Reply::ready(Err(once::not_recalled())),
        }
    }

    /// Returns the present position of the store's window of writes; `None` if it recognises no repetitions.
    fn window(&self) -> Option<WindowPosition> {
        None
    }

    /// Returns the version that a read of the object would find now, where the store knows it without one; `None` where only a read
    /// tells, as in most stores.
    fn version_now(&self, _object: &ObjectId) -> Option<u64> {
        None
    }

    /// Lists objects that exist, in ascending order of their ids, from the first one after `after`: at most
    /// `limit`, and at most [`PAGE_ENTRIES_MAX`](crate::limit::PAGE_ENTRIES_MAX). A short page is not the end of
    /// the list; an empty one is.
    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>>;

    /// Returns the limits of this store that are below the model's. A store in front of another one returns that one's.
    fn limits(&self) -> Reply<Limits> {
        Reply::ready(Ok(Limits::default()))
    }

    /// Announces that each of some objects will soon be read, by these reads, so that a store which remembers answers can make them ready
    /// together. That changes no answer. The reply comes when they are ready, or cannot be, and is the number of these objects of which the
    /// store remembers answers. `None` from a store that remembers nothing, for which finding out what will be read is in vain.
    fn read_ahead(&self, _objects: &[ObjectId], _reads: &[ReadOp]) -> Option<Reply<usize>> {
        None
    }

    /// Begins a watch of an object, which need not exist: see module [`watch`](crate::watch).
    ///
    /// # Errors
    ///
    /// `Unsupported` if the store cannot watch objects, `Busy` if it has as many watches as it may have.
    fn watch(&self, _object: &ObjectId, _options: WatchOptions) -> Reply<Watch> {
        Reply::ready(Err(watch::unsupported()))
    }

    /// Notifies all watchers of an object, and returns who acknowledged the notification within the time.
    ///
    /// # Errors
    ///
    /// `Unsupported` as for [`ObjectStore::watch`]; `Invalid` if the payload is longer than
    /// [`NOTIFICATION_BYTES_MAX`](crate::limit::NOTIFICATION_BYTES_MAX) or the time longer than
    /// [`NOTIFY_TIMEOUT_MAX`](crate::limit::NOTIFY_TIMEOUT_MAX); `Busy` if too many notifications are under way;
    /// `Unknown` if the connection broke, and watchers may have received it.
    fn notify(&self, _object: &ObjectId, _payload: Bytes, _timeout: Duration) -> Reply<Notified> {
        Reply::ready(Err(watch::unsupported()))
    }
}

/// Limits of one store, which may be below the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of bytes that one fork of an object may hold, holes not counted.
    pub fork_bytes_max: u64,
}

impl Default for Limits {
    /// Returns the model's own limits.
    fn default() -> Self {
        Self { fork_bytes_max: OFFSET_MAX }
    }
}

/// An answer that may be there already: a future that costs no allocation if it is.
#[derive(derive_more::Debug)]
pub enum Reply<T> {
    /// The answer. `None` once it was taken.
    #[debug("Ready")]
    Ready(Option<Result<T, StoreError>>),
    /// The answer is still being made.
    #[debug("Pending")]
    Pending(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>),
}

impl<T> Reply<T> {
    /// Creates an answer that is there.
    pub fn ready(result: Result<T, StoreError>) -> Self {
        Self::Ready(Some(result))
    }

    /// Creates an answer that a future will give.
    pub fn pending(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }
}

impl<T: Unpin> Future for Reply<T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            // Polling a future again after it gave its answer is a bug of the caller, as for any future.
            Self::Ready(result) => Poll::Ready(result.take().expect("reply polled after it was ready")),
            Self::Pending(future) => future.as_mut().poll(context),
        }
    }
}

impl<S: ObjectStore + ?Sized> ObjectStore for std::sync::Arc<S> {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        (**self).apply(object, transaction)
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        (**self).apply_once(object, transaction, once)
    }

    fn window(&self) -> Option<WindowPosition> {
        (**self).window()
    }

    fn version_now(&self, object: &ObjectId) -> Option<u64> {
        (**self).version_now(object)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        (**self).list(after, limit)
    }

    fn limits(&self) -> Reply<Limits> {
        (**self).limits()
    }

    fn read_ahead(&self, objects: &[ObjectId], reads: &[ReadOp]) -> Option<Reply<usize>> {
        (**self).read_ahead(objects, reads)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        (**self).watch(object, options)
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        (**self).notify(object, payload, timeout)
    }
}
