//! Grace periods, after which no program, and nothing that the kernel does for one, still uses what it saw before.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use super::maps;

/// A thread that waits for programs when it is asked to, and counts the waits. Programs count when they begin and end, but
/// the kernel still uses what they ordered then; it lets go before it takes the next packets.
pub(super) struct Grace {
    /// The number of completed waits.
    pub(super) count: Arc<AtomicU64>,
    /// True while a wait is under way.
    waits: Arc<AtomicBool>,
    sender: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Grace {
    /// Starts the thread, with a map of maps whose last entry no program looks at.
    pub(super) fn begin(fans: &OwnedFd) -> io::Result<Grace> {
        let fans = fans.try_clone()?;
        let spare = maps::spare()?;
        maps::wait_for_programs(fans.as_fd(), &spare)?;
        let count = Arc::new(AtomicU64::new(0));
        let (sender, receiver) = channel();
        let waits = Arc::new(AtomicBool::new(false));
        let (counting, under_way) = (count.clone(), waits.clone());
        let thread = std::thread::Builder::new().name("reflect-grace".to_owned()).spawn(move || {
            while receiver.recv().is_ok() {
                if maps::wait_for_programs(fans.as_fd(), &spare).is_ok() {
                    counting.fetch_add(1, Release);
                }
                under_way.store(false, Release);
            }
        })?;
        Ok(Grace { count, waits, sender: Some(sender), thread: Some(thread) })
    }

    /// Asks for one more wait, unless one is under way.
    pub(super) fn ask(&self) {
        if let Some(sender) = &self.sender
            && !self.waits.swap(true, Acquire)
        {
            // The thread listens as long as this lives.
            let _ = sender.send(());
        }
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}
