//! Grace periods, after which no program, and nothing that the kernel does for one, still uses what it saw before.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Release;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::maps;

/// The pause between two waits for programs.
const PAUSE: Duration = Duration::from_millis(100);

/// A thread that waits for programs again and again, and counts the waits. Programs count when they begin and end, but
/// the kernel still uses what they ordered then; it lets go before it takes the next packets.
pub(super) struct Grace {
    /// The number of completed waits.
    pub(super) count: Arc<AtomicU64>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Grace {
    /// Starts the thread, with a map of maps whose last entry no program looks at.
    pub(super) fn begin(fans: &OwnedFd) -> io::Result<Grace> {
        let fans = fans.try_clone()?;
        let spare = maps::spare()?;
        maps::wait_for_programs(fans.as_fd(), &spare)?;
        let count = Arc::new(AtomicU64::new(0));
        let (end, ended) = channel();
        let counting = count.clone();
        let thread = std::thread::Builder::new().name("reflect-grace".to_owned()).spawn(move || {
            while ended.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                if maps::wait_for_programs(fans.as_fd(), &spare).is_ok() {
                    counting.fetch_add(1, Release);
                }
            }
        })?;
        Ok(Grace { count, end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}
