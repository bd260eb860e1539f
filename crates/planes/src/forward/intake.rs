//! Sockets to which more comes than can be copied: from when on the kernel is to refuse payload, and until when.
//!
//! A datagram that has waited for longer than its group's age limit is refused, but receiving it first costs several times as
//! much as to have the kernel refuse it, and what is admitted is then nearly as old. So a socket is closed to payload when what comes
//! would wait for too long, and opened again when it is found empty. Datagrams for the reflector itself always come in.

/// The least wait of a datagram from which on its socket may be closed, as a part of its group's age limit: a shorter one is a
/// burst.
const NOTICED: u64 = 32;
/// The expected wait of the next datagram above which its socket is closed, as a part of the same.
const TOO_LONG: u64 = 4;

/// The state of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Intake {
    /// The time at which a full batch was received for the first time since the socket was found empty, and the time for which
    /// the first of that batch had waited, in nanoseconds.
    behind: Option<(u64, u64)>,
    closed: bool,
}

impl Intake {
    /// Notes a full batch, received now, and returns whether the socket is to be closed. `waited_ns` is the longest wait in the
    /// batch, and `limit_ns` the longest age limit of the groups whose datagrams are in it; 0 if there are none.
    pub fn is_late(&mut self, now_ns: u64, waited_ns: u64, limit_ns: u64) -> bool {
        let (since_ns, first_ns) = *self.behind.get_or_insert((now_ns, waited_ns));
        let busy_ns = now_ns.saturating_sub(since_ns);
        if self.closed || limit_ns == 0 || waited_ns < limit_ns / NOTICED || busy_ns == 0 {
            return false;
        }
        // What was received in `busy_ns` had come within `came_ns`. What has come since, in `waited_ns`, takes as many times longer
        // to receive: that is the wait of what comes now.
        let came_ns = (busy_ns + first_ns).saturating_sub(waited_ns);
        let [waited, busy, came, limit] = [waited_ns, busy_ns, came_ns, limit_ns / TOO_LONG].map(u128::from);
        waited * busy > limit * came
    }

    /// Notes that the socket is closed to payload.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Returns whether the socket is closed to payload.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Notes that the socket was found empty. Returns true if it is to be opened.
    pub fn caught_up(&mut self) -> bool {
        std::mem::take(self).closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const BATCH: u64 = 64;

    /// Runs a socket for a minute, after a pause. A datagram comes every `come_ns`, and takes `take_ns`. Returns the time for which
    /// the next datagram would wait when the socket is closed to it; `None` if it is not closed.
    fn closed_at_ns(pause_ns: u64, come_ns: u64, take_ns: u64, limit_ns: u64) -> Option<u64> {
        let (mut intake, mut now_ns, mut taken) = (Intake::default(), pause_ns, 0);
        while now_ns < 60 * SECOND_NS {
            let waiting = now_ns / come_ns - taken;
            let batch = waiting.min(BATCH);
            if batch < BATCH {
                assert!(!intake.caught_up());
            } else if intake.is_late(now_ns, now_ns - taken * come_ns, limit_ns) {
                return Some(waiting * take_ns);
            }
            taken += batch;
            now_ns += (batch * take_ns).max(come_ns);
        }
        None
    }

    #[test]
    fn a_socket_is_closed_while_what_it_holds_can_still_be_copied_in_time() {
        for times in [2, 5, 10, 20] {
            let closed_ns = closed_at_ns(0, 100_000 / times, 100_000, SECOND_NS);
            assert!(
                closed_ns.is_some_and(|wait_ns| (SECOND_NS / 5..SECOND_NS).contains(&wait_ns)),
                "{times}: {closed_ns:?}"
            );
        }
    }

    #[test]
    fn a_socket_that_keeps_up_stays_open_also_after_a_pause() {
        assert_eq!(closed_at_ns(0, 100_000, 90_000, SECOND_NS), None);
        assert_eq!(closed_at_ns(SECOND_NS / 2, 100_000, 20_000, SECOND_NS), None);
    }

    #[test]
    fn a_socket_of_groups_that_want_every_datagram_stays_open() {
        assert_eq!(closed_at_ns(0, 10_000, 100_000, u64::MAX), None);
        assert_eq!(closed_at_ns(0, 10_000, 100_000, 0), None);
    }

    #[test]
    fn a_closed_socket_is_opened_once_when_it_is_empty() {
        let mut intake = Intake::default();
        assert!(!intake.is_late(SECOND_NS, 0, SECOND_NS));
        assert!(intake.is_late(2 * SECOND_NS, SECOND_NS, SECOND_NS));
        intake.close();
        assert!(intake.is_closed() && !intake.is_late(3 * SECOND_NS, 2 * SECOND_NS, SECOND_NS));
        assert!(intake.caught_up());
        assert!(!intake.caught_up());
    }
}
