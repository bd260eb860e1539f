//! The clock of leases.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since the machine was started, the time that it slept included.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is negative: the clock counts up from 0.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
