//! A thread that runs replies to their ends, so that none of them stands still because its caller looks at another one first.
//!
//! Replies that take turns need that: whoever has the turn must get on, whatever its caller waits for.

use std::future::Future;
use std::pin::Pin;

use nacre_object::{ErrorKind, Reply, StoreError};
use tokio::sync::{mpsc, oneshot};

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A handle on the thread, which ends when the handle is gone and the replies given to it are done.
pub(crate) struct Driver(mpsc::UnboundedSender<Work<()>>);

impl Driver {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Self, StoreError> {
        let failed = |error: std::io::Error| {
            StoreError::new(ErrorKind::Io, format!("cannot start a thread for librados: {error}"))
        };
        let (sender, mut queue) = mpsc::unbounded_channel::<Work<()>>();
        let (told, made) = std::sync::mpsc::channel();
        let run = move || {
            // It is made and dropped here, because neither may happen in the midst of a caller's own runtime.
            let runtime = match tokio::runtime::Builder::new_current_thread().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(told.send(Err(error))),
            };
            told.send(Ok(())).ok();
            runtime.block_on(async move {
                while let Some(work) = queue.recv().await {
                    tokio::spawn(work);
                }
            });
        };
        let thread = std::thread::Builder::new().name("nacre-rados".to_owned());
        thread.spawn(run).map_err(failed)?;
        made.recv().unwrap_or_else(|_| Err(std::io::Error::other("it died"))).map_err(failed)?;
        Ok(Self(sender))
    }

    /// Returns a reply that gets on by itself. It goes on also if nobody waits for it any more.
    pub(crate) fn drive<T: Send + 'static>(&self, reply: Work<Result<T, StoreError>>) -> Reply<T> {
        let (sender, receiver) = oneshot::channel();
        let work = async move {
            // The reply lets go of the store before its result is sent: whoever gets it may end the process.
            let result = reply.await;
            sender.send(result).ok();
        };
        // If the thread has died, the work is dropped here, and the receiver says so.
        self.0.send(Box::pin(work)).ok();
        Reply::pending(async move { receiver.await.unwrap_or_else(|_| Err(died())) })
    }
}

fn died() -> StoreError {
    let text = "the thread that makes transactions of reads and writes died: the transaction may or may not have taken effect";
    StoreError::new(ErrorKind::Unknown, text)
}

#[cfg(test)]
mod tests {
    use nacre_object::testkit::block_on;

    use super::*;

    #[test]
    fn replies_get_on_in_whatever_order_they_are_waited_for_and_a_panic_ends_only_its_own() {
        let driver = Driver::start().unwrap();
        let turn = std::sync::Arc::new(tokio::sync::Mutex::new(0));
        let replies: Vec<Reply<u32>> = (0..20)
            .map(|number| {
                let turn = turn.clone();
                driver.drive(Box::pin(async move {
                    let mut count = turn.lock().await;
                    // Others come by while this one has the turn.
                    tokio::task::yield_now().await;
                    assert!(number != 7, "as the test wants it");
                    *count += 1;
                    Ok(*count)
                }))
            })
            .collect();
        let results: Vec<_> = replies.into_iter().rev().map(block_on).collect();
        let done = results.iter().filter(|result| result.is_ok()).count();
        let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert_eq!((done, failed.len(), failed[0].kind), (19, 1, ErrorKind::Unknown));
        assert_eq!(*block_on(turn.lock()), 19);
    }
}
