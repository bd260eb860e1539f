//! Waiting for a future on the calling thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A waker of a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on the calling thread, which sleeps while there is nothing to do.
///
/// A store whose replies are made by an async runtime needs that runtime to run on other threads.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        // A wake-up between the poll and here is not lost: it makes `park` return at once.
        std::thread::park();
    }
}

/// Polls on the calling thread, which sleeps while there is nothing to do, until there is a result; `None` if there is
/// none within the time.
pub fn block_on_for<T>(time: Duration, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let until = Instant::now() + time;
    loop {
        if let Poll::Ready(output) = poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        std::thread::park_timeout(until.checked_duration_since(Instant::now())?);
    }
}
