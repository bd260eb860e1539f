//! Questions and orders for a server as a whole.

use std::sync::Arc;

use bytes::Bytes;
use nacre_object::Reply;
use parking_lot::Mutex;

use futures::task::AtomicWaker;

/// Longest name of a method, in bytes.
pub const METHOD_BYTES_MAX: usize = 64;

/// Answers calls.
pub trait Admin: Send + Sync + 'static {
    /// Answers a call. The argument, what is sent as progress, and the result are JSON texts.
    fn call(&self, method: &str, argument: Bytes, progress: Progress) -> Reply<Bytes>;
}

/// Where a call reports how far it is. Reports that the caller has not seen when the next one comes are dropped.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Report>);

#[derive(Debug, Default)]
struct Report {
    latest: Mutex<Option<Bytes>>,
    waker: AtomicWaker,
}

impl Progress {
    /// Reports.
    pub fn send(&self, report: impl Into<Bytes>) {
        *self.0.latest.lock() = Some(report.into());
        self.0.waker.wake();
    }

    /// Takes the latest report, and has `waker` woken by the next one.
    pub(crate) fn take(&self, waker: &std::task::Waker) -> Option<Bytes> {
        self.0.waker.register(waker);
        self.0.latest.lock().take()
    }
}
