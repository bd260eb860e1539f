//! Work that runs on the thread that has something for it.
//!
//! Handing an event to a connection takes less time than waking a thread for it. So it needs no thread of its own: it is a future that
//! whoever wakes it polls at once. It must wait for nothing but wakers, and take no lock that is held where it is woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Wake, Waker};

use futures::future::BoxFuture;
use parking_lot::Mutex;

/// The state of a future that no thread polls.
const IDLE: u8 = 0;
/// The state of one that a thread polls.
const POLLED: u8 = 1;
/// The state of one that a thread polls, and that was woken since.
const WOKEN: u8 = 2;
/// The state of one that is over.
const OVER: u8 = 3;

/// A future that is polled where it is woken. It is dropped when it is over.
pub(super) struct Relay {
    state: AtomicU8,
    /// The future, until it is over. Only the thread that polls it locks this, so nobody waits for it.
    work: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl Relay {
    /// Polls a future now, and whenever it is woken.
    pub(super) fn start(work: BoxFuture<'static, ()>) {
        Arc::new(Relay { state: AtomicU8::new(IDLE), work: Mutex::new(Some(work)) }).run();
    }

    /// Returns whether the caller is to poll it. If another thread does so, that one polls it again.
    fn begin(&self) -> bool {
        let begun = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
            IDLE => Some(POLLED),
            // Written again if it was woken before, so that the thread that polls it sees what this one did.
            POLLED | WOKEN => Some(WOKEN),
            _ => None,
        });
        begun == Ok(IDLE)
    }

    fn run(self: Arc<Self>) {
        if !self.begin() {
            return;
        }
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            let mut work = self.work.lock();
            let is_over = work.as_mut().is_none_or(|work| work.as_mut().poll(&mut context).is_ready());
            let over = if is_over { work.take() } else { None };
            drop(work);
            if is_over {
                self.state.store(OVER, Ordering::Release);
                // What it held may wake others.
                drop(over);
                return;
            }
            let ended = self.state.compare_exchange(POLLED, IDLE, Ordering::AcqRel, Ordering::Acquire);
            if ended.is_ok() {
                return;
            }
            // It was woken meanwhile. The swap also makes visible what whoever woke it did before.
            self.state.swap(POLLED, Ordering::AcqRel);
        }
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.run();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicU64;
    use std::task::Poll;

    use futures::channel::mpsc;
    use futures::{FutureExt, StreamExt};

    use super::*;

    #[test]
    fn what_comes_is_handled_before_its_sender_goes_on() {
        let (sender, mut receiver) = mpsc::unbounded::<u64>();
        let sum = Arc::new(AtomicU64::new(0));
        let held = Arc::new(());
        let (summed, hold) = (sum.clone(), held.clone());
        Relay::start(
            async move {
                let _hold = hold;
                while let Some(number) = receiver.next().await {
                    summed.fetch_add(number, Ordering::SeqCst);
                }
            }
            .boxed(),
        );
        let mut expected = 0;
        for number in 0..100 {
            expected += number;
            sender.unbounded_send(number).unwrap();
            assert_eq!(sum.load(Ordering::SeqCst), expected);
        }
        assert_eq!(Arc::strong_count(&held), 2);
        drop(sender);
        assert_eq!(Arc::strong_count(&held), 1, "it is dropped when it is over");
    }

    #[test]
    fn nothing_is_lost_that_several_threads_send() {
        const THREADS: u64 = 4;
        const EACH: u64 = 20_000;
        let (sender, mut receiver) = mpsc::unbounded::<u64>();
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        Relay::start(
            async move {
                while receiver.next().await.is_some() {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }
            .boxed(),
        );
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    (0..EACH).for_each(|_| sender.unbounded_send(thread).unwrap());
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // Whoever was polling it when the last one was sent has handled that before it ended.
        assert_eq!(count.load(Ordering::SeqCst), THREADS * EACH);
    }

    #[test]
    fn work_that_wakes_itself_goes_on() {
        let polls = Arc::new(AtomicU64::new(0));
        let counted = polls.clone();
        let mut left = 10;
        let work = poll_fn(move |context| {
            counted.fetch_add(1, Ordering::SeqCst);
            left -= 1;
            if left == 0 {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        });
        Relay::start(work.boxed());
        assert_eq!(polls.load(Ordering::SeqCst), 10);
    }
}
