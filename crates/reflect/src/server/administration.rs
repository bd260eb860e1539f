//! How other threads talk to the data thread: by tasks that it runs between two turns.

use std::sync::mpsc;

use tokio::sync::oneshot;

use super::core::Core;
use super::report::{Detail, Report};
use crate::forward::Waker;

/// Something for the data thread to do. It must not take long.
pub(super) type Task = Box<dyn FnOnce(&mut Core) + Send>;

/// The data thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reflector is stopping")]
pub(super) struct Unavailable;

/// Gives the data thread tasks, from any thread.
#[derive(Clone)]
pub(super) struct Tasks {
    sender: mpsc::Sender<Task>,
    waker: Waker,
}

impl Tasks {
    pub(super) fn new(sender: mpsc::Sender<Task>, waker: Waker) -> Tasks {
        Tasks { sender, waker }
    }

    /// Has something done. What comes after the end of the data thread is dropped.
    pub(super) fn give(&self, task: impl FnOnce(&mut Core) + Send + 'static) {
        if self.sender.send(Box::new(task)).is_ok() {
            self.waker.wake();
        }
    }

    /// Has something done, and gives what came of it.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (answer, answered) = oneshot::channel();
        // Whoever asked may have gone meanwhile.
        self.give(move |core| drop(answer.send(task(core))));
        answered.await.map_err(|_| Unavailable)
    }

    /// What the reflector tells of itself.
    pub(super) async fn report(&self, detail: Detail) -> Result<Report, Unavailable> {
        self.ask(move |core| core.report(detail)).await
    }
}
