//! The pauses of a rank's communicating thread between two looks for messages.
//!
//! MPI wakes no sleeping thread when a message comes, so a rank has to look for messages, and every look takes processor
//! time from the threads that walk. But a rank that asks has nothing to do until it is answered: the ends of a walk, when
//! little work goes from rank to rank, take as long as these pauses. So a rank that was just asked, or just gave, looks
//! again soon, since others are idle; a rank that nobody asks hardly looks.

/// The limits of pauses, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pauses {
    /// The shortest pause of a rank whose threads work.
    pub first_ns: u64,
    /// The longest pause of a rank that has work to give away and had a message within `recent_ns`.
    pub giving_ns: u64,
    /// The time after a message during which more of them are expected.
    pub recent_ns: u64,
    /// The longest pause of all: short enough for ranks that ask, and with a negligible use of the processor.
    pub bound_ns: u64,
}

/// The activity of a rank while it pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pausing {
    /// It waits for an answer.
    Asking,
    /// It has no work, and waits for the time of its next request.
    Idle,
    /// Its threads work.
    Working {
        /// There is work that it could give away.
        gives: bool,
    },
}

impl Default for Pauses {
    /// Returns 0.1 ms at first, 1 ms for a tenth of a second while there is work to give, and at most 3 ms.
    fn default() -> Self {
        Self { first_ns: 100_000, giving_ns: 1_000_000, recent_ns: 100_000_000, bound_ns: 3_000_000 }
    }
}

impl Pauses {
    /// Returns the next pause, `quiet_ns` after the last message was sent or handled: about as long as it was quiet, so
    /// that nobody waits for more than twice the time that they would have waited anyway.
    pub fn next_ns(&self, quiet_ns: u64, pausing: Pausing) -> u64 {
        match pausing {
            Pausing::Asking => quiet_ns.min(self.bound_ns),
            // Others that ask it are refused anyway, and idle ranks are not to use processors.
            Pausing::Idle => self.bound_ns,
            Pausing::Working { gives } => {
                let is_wanted = gives && quiet_ns < self.recent_ns;
                let bound_ns = if is_wanted { self.giving_ns } else { self.bound_ns };
                quiet_ns.max(self.first_ns).min(bound_ns)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_was_just_asked_looks_again_soon_and_a_quiet_one_seldom() {
        let pauses = Pauses::default();
        let (giving, taking) = (Pausing::Working { gives: true }, Pausing::Working { gives: false });
        let after = |quiet_ns, pausing| pauses.next_ns(quiet_ns, pausing);
        assert_eq!([0, 300_000, 50_000_000].map(|ns| after(ns, giving)), [100_000, 300_000, 1_000_000]);
        assert_eq!([0, 300_000, 50_000_000].map(|ns| after(ns, taking)), [100_000, 300_000, 3_000_000]);
        for pausing in [giving, taking, Pausing::Idle, Pausing::Asking] {
            assert_eq!(after(1_000_000_000, pausing), 3_000_000, "{pausing:?}");
        }
        assert_eq!(after(20_000, Pausing::Asking), 20_000);
        assert_eq!(after(20_000, Pausing::Idle), 3_000_000);
    }

    #[test]
    fn a_message_costs_some_hundred_looks_at_most() {
        let pauses = Pauses::default();
        let (mut quiet_ns, mut looks) = (0, 0);
        while quiet_ns < 1_000_000_000 {
            quiet_ns += pauses.next_ns(quiet_ns, Pausing::Working { gives: true });
            looks += 1;
        }
        // Without the message it would have looked some 333 times.
        assert!((333..450).contains(&looks), "{looks} looks in a second");
    }
}
