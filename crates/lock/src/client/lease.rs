//! A session's lease as the client sees it.

use std::time::Duration;

/// The greatest drift of a clock against true time that leases allow for, in thousandths.
pub const DRIFT_PER_MILLE: u32 = 10;

/// The lease of a session at one server.
///
/// The clocks of client and server need not agree, only run at about the same rate. The client counts from the moment when it
/// sent the renewal, which is before the server's moment, and takes off what both clocks may drift apart. So the client
/// knows that the lease is gone before the server does. The clock that is given is to go on while the machine sleeps
/// (`CLOCK_BOOTTIME`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    ends: Duration,
    renew_at: Duration,
}

impl Lease {
    /// The lease that a server granted for so long, in answer to a call sent at a time.
    pub fn new(sent: Duration, lease: Duration) -> Self {
        let usable = lease * (1000 - DRIFT_PER_MILLE) / (1000 + DRIFT_PER_MILLE);
        Self { ends: sent + usable, renew_at: sent + usable / 3 }
    }

    /// Extends the lease by an answer to a later call. An answer that was overtaken changes nothing.
    pub fn renew(&mut self, sent: Duration, lease: Duration) {
        let renewed = Self::new(sent, lease);
        if renewed.ends > self.ends {
            *self = renewed;
        }
    }

    /// The time at which the session is to be taken for lost.
    pub fn ends(&self) -> Duration {
        self.ends
    }

    /// The time at which a renewal is to be sent.
    pub fn renew_at(&self) -> Duration {
        self.renew_at
    }

    /// Puts off the next renewal, which has just been sent.
    pub fn sent_renewal(&mut self, now: Duration) {
        let rest = self.ends.saturating_sub(now);
        self.renew_at = now + (rest / 3).max(Duration::from_millis(1));
    }

    /// Returns whether the answer to a call sent at a time took longer than its lease lasts from now on, so that a renewal which
    /// takes as long would come too late.
    pub fn is_stale(&self, sent: Duration, now: Duration) -> bool {
        self.ends.saturating_sub(now) < now.saturating_sub(sent)
    }

    /// Returns whether the lease is gone.
    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gives_up_before_its_server_does_at_the_greatest_drift() {
        let lease = Duration::from_secs(10);
        let slow = |clock: Duration| clock * 1000 / (1000 - DRIFT_PER_MILLE);
        let fast = |clock: Duration| clock * 1000 / (1000 + DRIFT_PER_MILLE);
        // In true time, from the same moment on.
        let ends = slow(Lease::new(Duration::ZERO, lease).ends());
        assert!(ends <= fast(lease));
        assert!(ends > fast(lease) - Duration::from_millis(1));
    }

    #[test]
    fn an_answer_that_takes_more_than_half_of_the_lease_is_stale() {
        let (sent, usable) =
            (Duration::from_secs(5), Lease::new(Duration::ZERO, Duration::from_secs(10)).ends());
        let lease = Lease::new(sent, Duration::from_secs(10));
        assert!(!lease.is_stale(sent, sent) && !lease.is_stale(sent, sent + usable * 49 / 100));
        assert!(lease.is_stale(sent, sent + usable * 51 / 100) && lease.is_stale(sent, sent + 2 * usable));
    }

    #[test]
    fn answers_that_were_overtaken_do_not_shorten_a_lease() {
        let seconds = Duration::from_secs;
        let mut lease = Lease::new(seconds(5), seconds(10));
        let ends = lease.ends();
        lease.renew(seconds(3), seconds(10));
        assert_eq!(lease.ends(), ends);
        lease.renew(seconds(8), seconds(10));
        assert_eq!(lease.ends(), ends + seconds(3));
        assert!(lease.renew_at() > seconds(8) && lease.renew_at() < lease.ends());
        assert!(!lease.is_over(seconds(17)) && lease.is_over(seconds(18)));
    }
}
