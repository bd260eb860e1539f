//! Time limits that need no runtime.

use std::pin::pin;
use std::task::Poll;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use tokio::sync::oneshot;

/// Ends the thread that keeps a time, when it is dropped.
struct Alarm {
    rings: oneshot::Receiver<()>,
    thread: Thread,
}

impl Alarm {
    fn set(until: Instant) -> Option<Alarm> {
        let (over, rings) = oneshot::channel();
        let keep = move || {
            while !over.is_closed() {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    // The waiter may be gone.
                    let _ = over.send(());
                    return;
                }
                thread::park_timeout(left);
            }
        };
        let thread = thread::Builder::new().name("nacre-alarm".to_owned()).spawn(keep).ok()?;
        Some(Alarm { rings, thread: thread.thread().clone() })
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.rings.close();
        self.thread.unpark();
    }
}

/// Returns the result of a future, or nothing if that takes longer than some time. It needs no runtime, but a thread for a
/// future that is not ready at once; if none can be started there is no limit.
pub async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    if let Poll::Ready(result) = futures::poll!(future.as_mut()) {
        return Some(result);
    }
    // A time that no clock can show has no end.
    let Some(mut alarm) = Instant::now().checked_add(time).and_then(Alarm::set) else {
        return Some(future.await);
    };
    match select(future, &mut alarm.rings).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    #[test]
    fn a_time_limit_holds_without_a_runtime() {
        let limit = Duration::from_millis(20);
        let begun = Instant::now();
        assert_eq!(block_on(within(limit, std::future::pending::<()>())), None);
        assert!(begun.elapsed() >= limit);
        assert_eq!(block_on(within(limit, async { 7 })), Some(7));
        let (sender, receiver) = oneshot::channel();
        let later = thread::spawn(move || sender.send(7));
        assert_eq!(block_on(within(Duration::MAX, receiver)), Some(Ok(7)));
        assert_eq!(later.join().unwrap(), Ok(()));
    }
}
