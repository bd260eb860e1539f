//! The idle time of the processors, to a fraction of a microsecond.
//!
//! The system's own figures are too coarse for this: it accounts whole ticks of its timer to whatever runs when the
//! timer fires, and work that follows an interrupt to the process that was interrupted. So a thread of the lowest
//! scheduling class runs on every processor, in the time that no other thread uses, and adds up the time between two
//! reads of the processor's clock. Where two reads are further apart than a read takes, something else ran: another
//! thread, the network's work after an interrupt, the interrupt itself, or another guest of the machine. Time that is
//! not idle was busy.
//!
//! A sender that has to wait for its time does the same while it waits, and adds to the same sum.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::system;
use crate::BenchError;

/// The interval between two reads of the clock, in nanoseconds, above which something else ran in between. A read takes
/// some 10 ns; the shortest interrupt more than half a microsecond.
pub(super) const GAP_NS: f64 = 250.0;

/// The sum of one watcher, alone on its cache line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Idle(AtomicU64);

impl Idle {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A thread's counter of idle time, which reads the clock while the thread has nothing else to do.
pub(super) struct Watcher {
    idle: Arc<Idle>,
    sum: u64,
    last: u64,
    gap: u64,
}

impl Watcher {
    /// Reads the clock, and counts the time since the last read as idle if it was short. Returns the clock's value.
    #[inline]
    pub(super) fn look(&mut self) -> u64 {
        let now = system::ticks();
        let since = now.wrapping_sub(self.last);
        if since < self.gap {
            self.sum += since;
            self.idle.0.store(self.sum, Ordering::Relaxed);
        }
        self.last = now;
        now
    }

    /// Returns the idle time counted, in nanoseconds.
    pub(super) fn waited_ns(&self) -> f64 {
        self.sum as f64 / system::ticks_per_ns()
    }

    /// Marks the time up to now as busy. Returns the clock's value.
    #[inline]
    pub(super) fn worked(&mut self) -> u64 {
        self.last = system::ticks();
        self.last
    }
}

/// The threads that measure idle time, one on every processor.
pub(super) struct Probe {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    cpus: usize,
    sums: parking_lot::Mutex<Vec<Arc<Idle>>>,
}

/// The clock and the idle time at one moment, in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    ticks: u64,
    idle: u64,
}

impl Probe {
    /// Starts the threads.
    pub(super) fn start(cpus: &[usize]) -> Result<Self, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut probe = Self {
            stop: stop.clone(),
            threads: Vec::with_capacity(cpus.len()),
            cpus: cpus.len(),
            sums: parking_lot::Mutex::new(Vec::new()),
        };
        for &cpu in cpus {
            let mut watcher = probe.watcher();
            let (ready, started) = std::sync::mpsc::channel();
            let stop = stop.clone();
            probe.threads.push(std::thread::spawn(move || {
                let prepared = system::pin(cpu).and_then(|()| system::run_when_idle());
                let watch = prepared.is_ok();
                // Nobody listens only if the one who started this has failed already.
                let _ = ready.send(prepared);
                watcher.worked();
                while watch && !stop.load(Ordering::Relaxed) {
                    watcher.look();
                }
            }));
            started
                .recv()
                .map_err(|_| BenchError::Process("a thread that watches a processor ended".into()))??;
        }
        Ok(probe)
    }

    /// Returns the load of the processors by other work, in percent of one processor.
    pub(super) fn background_percent() -> Result<f64, BenchError> {
        let probe = Self::start(&system::cpus())?;
        std::thread::sleep(Duration::from_millis(50));
        let from = probe.now();
        std::thread::sleep(Duration::from_millis(300));
        let to = probe.now();
        Ok(100.0 * probe.busy_ns(from, to) / from.until_ns(to))
    }

    /// Returns an additional watcher, for a thread that measures idle time while it waits.
    pub(super) fn watcher(&self) -> Watcher {
        let idle = Arc::new(Idle::default());
        self.sums.lock().push(idle.clone());
        let gap = (GAP_NS * system::ticks_per_ns()) as u64;
        Watcher { idle, sum: 0, last: system::ticks(), gap }
    }

    /// Returns the present moment.
    pub(super) fn now(&self) -> Moment {
        let idle = self.sums.lock().iter().map(|idle| idle.get()).sum();
        Moment { ticks: system::ticks(), idle }
    }

    /// Returns the time that the processors were busy between two moments, added up, in nanoseconds.
    pub(super) fn busy_ns(&self, from: Moment, to: Moment) -> f64 {
        let all = (to.ticks - from.ticks) * self.cpus as u64;
        let idle = to.idle - from.idle;
        (all as f64 - idle as f64) / system::ticks_per_ns()
    }
}

impl Moment {
    /// Returns the time from this moment to another, in nanoseconds.
    pub(super) fn until_ns(self, to: Moment) -> f64 {
        (to.ticks - self.ticks) as f64 / system::ticks_per_ns()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It does nothing that could fail.
            let _ = thread.join();
        }
    }
}
