//! Threads that may wait for the device, so that the callers' threads need not.
//!
//! They are started when the first read misses the page cache; most stores never need them.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use futures::channel::oneshot;
use nacre_object::{ErrorKind, StoreError};

/// The maximum number of reads in flight: enough to keep a device busy.
const THREADS: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads.
#[derive(Default)]
pub struct Readers {
    queue: OnceLock<Option<Sender<Job>>>,
}

impl Readers {
    /// Runs a job on one of the threads, and returns its result; [`ErrorKind::Io`] if no thread can be
    /// started.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move || {
            // The caller may have lost interest.
            let _ = sender.send(job());
        });
        let gone = || StoreError::new(ErrorKind::Io, "cannot start a thread to read from the disk");
        let queue = self.queue.get_or_init(start).as_ref().ok_or_else(gone)?;
        queue.send(job).map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())?
    }
}

fn start() -> Option<Sender<Job>> {
    let (sender, receiver) = channel::<Job>();
    let receiver = Arc::new(Mutex::new(receiver));
    let mut started = 0;
    for _ in 0..THREADS {
        let receiver = Arc::clone(&receiver);
        let work = move || {
            loop {
                // Holding the lock while waiting makes the others wait behind it; a job is run without it.
                let job = receiver.lock().map(|receiver| receiver.recv());
                match job {
                    Ok(Ok(job)) => job(),
                    _ => return,
                }
            }
        };
        started += usize::from(std::thread::Builder::new().name("nacre-read".into()).spawn(work).is_ok());
    }
    (started > 0).then_some(sender)
}
