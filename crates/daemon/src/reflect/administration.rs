//! Access to the data thread from other threads, by tasks that it runs between two turns.

use std::sync::mpsc;

use nacre_planes::forward::Waker;
use tokio::sync::oneshot;

use super::core::Core;
use super::report::{Detail, Report};

/// A task for the data thread. It must not take long.
pub(super) type Task = Box<dyn FnOnce(&mut Core) + Send>;

/// The error that the data thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reflector is stopping")]
pub(super) struct Unavailable;

/// Gives tasks to the data thread, from any thread.
#[derive(Clone)]
pub(super) struct Tasks {
    sender: mpsc::Sender<Task>,
    waker: Waker,
}

impl Tasks {
    pub(super) fn new(sender: mpsc::Sender<Task>, waker: Waker) -> Tasks {
        Tasks { sender, waker }
    }

    /// Gives a task to the data thread. It is dropped if the thread has ended.
    pub(super) fn give(&self, task: impl FnOnce(&mut Core) + Send + 'static) {
        if self.sender.send(Box::new(task)).is_ok() {
            self.waker.wake();
        }
    }

    /// Runs a task on the data thread, and returns its result.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (sender, receiver) = oneshot::channel();
        // Whoever asked may have gone meanwhile.
        self.give(move |core| drop(sender.send(task(core))));
        receiver.await.map_err(|_| Unavailable)
    }

    /// Returns a report of the reflector.
    pub(super) async fn report(&self, detail: Detail) -> Result<Report, Unavailable> {
        self.ask(move |core| core.report(detail)).await
    }
}
