//! Rates, in copies sent rather than datagrams received: one datagram to a group of a hundred costs a hundred.
//!
//! The bucket is kept as the time at which it will be full again (a generic cell rate algorithm): one number, no
//! division, so that the kernel's programs can keep the same bucket by one compare-and-swap.

/// A limit in copies a second, with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The cost of one copy, in nanoseconds of the bucket. 0 is no limit.
    pub copy_ns: u64,
    /// The time by which the bucket may run ahead of the clock, in nanoseconds.
    pub burst_ns: u64,
}

impl Rate {
    /// No limit.
    pub const UNLIMITED: Rate = Rate { copy_ns: 0, burst_ns: 0 };

    /// Returns a limit of `copies` a second, of which `burst` may come at once. 0 copies a second is no limit.
    pub fn per_second(copies: u64, burst: u64) -> Rate {
        match copies {
            0 => Self::UNLIMITED,
            copies => {
                let copy_ns = (1_000_000_000 / copies).max(1);
                Rate { copy_ns, burst_ns: copy_ns.saturating_mul(burst.max(1)) }
            }
        }
    }

    /// Takes `copies` from a bucket, or leaves it as it is and returns false. A datagram with more copies than the
    /// burst holds is let through by a full bucket, and pays afterwards: otherwise a small burst would silence a large
    /// group for ever.
    pub fn take(self, full_at_ns: &mut u64, now_ns: u64, copies: u64) -> bool {
        match self.after(*full_at_ns, now_ns, copies) {
            None => false,
            Some(after) => {
                *full_at_ns = after;
                true
            }
        }
    }

    /// Returns the bucket after `copies` are taken from it now, or `None` if they are too many.
    pub fn after(self, full_at_ns: u64, now_ns: u64, copies: u64) -> Option<u64> {
        if self.copy_ns == 0 {
            return Some(full_at_ns);
        }
        let from = full_at_ns.max(now_ns);
        let after = from.saturating_add(self.copy_ns.saturating_mul(copies));
        (from == now_ns || after - now_ns <= self.burst_ns).then_some(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_over_time_whatever_the_portions() {
        let rate = Rate::per_second(1000, 50);
        let (mut bucket, mut admitted) = (0, 0);
        for now_us in 0..2_000_000_u64 {
            admitted += if rate.take(&mut bucket, now_us * 1000, 7) { 7 } else { 0 };
        }
        assert!((1990..=2060).contains(&admitted), "{admitted}");
    }

    #[test]
    fn a_full_bucket_lets_any_datagram_through_and_makes_it_pay() {
        let rate = Rate::per_second(10, 5);
        let mut bucket = 0;
        assert!(rate.take(&mut bucket, 1_000_000_000, 100));
        assert!(!rate.take(&mut bucket, 10_000_000_000, 1));
        assert!(rate.take(&mut bucket, 11_000_000_000, 1));
    }

    #[test]
    fn no_limit_is_no_limit() {
        let mut bucket = 0;
        assert!((0..1000).all(|_| Rate::UNLIMITED.take(&mut bucket, 0, u64::MAX)));
    }
}
