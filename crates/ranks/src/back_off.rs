//! The waiting time of an idle rank between a refusal and its next request.
//!
//! The paper's ranks ask again at once, which keeps a core busy and the network full as long as there is little
//! work. Here the wait doubles with every refusal up to a bound, with jitter, and is reset when work arrives.
//!
//! The bound decides how soon work spreads: requests go to random ranks, so a rank with work is asked about once in that
//! time, however many ranks are idle, and passes on the rest of a large directory no sooner. It grows slowly with
//! the number of ranks, for the sake of the network that they share.

use super::random::Choose;

/// The limits of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BackOff {
    /// The number of refusals without a wait, so that a rank that just ran out of work asks a few peers in a row.
    pub patience: u32,
    /// The wait after the first refusal beyond those, in nanoseconds.
    pub first_ns: u64,
    /// The longest wait, in nanoseconds.
    pub bound_ns: u64,
}

impl BackOff {
    /// Returns limits for a job of `ranks`: 50 µs at first; at most 10 ms, and 1 µs more for every rank (153 ms for
    /// 143,104).
    pub fn for_ranks(ranks: u32) -> Self {
        Self {
            patience: ranks.saturating_sub(1).min(2),
            first_ns: 50_000,
            bound_ns: 10_000_000 + u64::from(ranks) * 1_000,
        }
    }

    /// Returns the wait after `refusals` (at least 1) in a row, in nanoseconds: drawn from the upper half of the
    /// doubled wait.
    pub fn wait_ns(&self, refusals: u32, choose: &mut impl Choose) -> u64 {
        let Some(doublings) = refusals.checked_sub(self.patience + 1) else { return 0 };
        let full = if doublings >= self.first_ns.leading_zeros() {
            self.bound_ns
        } else {
            (self.first_ns << doublings).min(self.bound_ns)
        };
        full - if full >= 2 { choose.below(full / 2 + 1) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn waits_double_up_to_the_bound_and_are_spread() {
        let limits = BackOff { patience: 2, first_ns: 1_000, bound_ns: 50_000 };
        let mut random = Random::new(3);
        assert_eq!(limits.wait_ns(1, &mut random), 0);
        assert_eq!(limits.wait_ns(2, &mut random), 0);
        for refusals in 3..200 {
            let full = 1_000u64
                .checked_shl(refusals - 3)
                .filter(|ns| *ns < 50_000 && refusals < 60)
                .unwrap_or(50_000);
            for _ in 0..20 {
                let wait = limits.wait_ns(refusals, &mut random);
                assert!((full / 2..=full).contains(&wait), "refusal {refusals}: {wait} of {full}");
            }
        }
        let many: std::collections::BTreeSet<u64> =
            (0..100).map(|_| limits.wait_ns(30, &mut random)).collect();
        assert!(many.len() > 90, "idle ranks must not ask in step");
    }
}
