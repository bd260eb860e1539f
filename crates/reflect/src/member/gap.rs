//! Detection of gaps in numbered datagrams.

/// The time for which an own datagram may explain a missing number, in microseconds.
const OWN_US: u64 = 2_000_000;

/// The numbers seen, and the own datagrams that they may lack.
///
/// A group numbers the datagrams of all its members, and a member gets no copy of its own unless it asked for that:
/// they are missing from what it sees. As many missing numbers as it has recently sent datagrams are therefore not
/// reported. With copies of its own (echo) the count is exact.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    next: Option<u64>,
    own: u64,
    own_last_us: u64,
}

impl Gaps {
    /// Notes that the member sent a datagram of which it gets no copy.
    pub(super) fn sent(&mut self, now_us: u64) {
        self.age(now_us);
        self.own += 1;
        self.own_last_us = now_us;
    }

    /// Notes a datagram that came. Returns the gap before it, as the first missing number and the count. A late
    /// datagram is no gap.
    pub(super) fn saw(&mut self, now_us: u64, sequence: u64) -> Option<(u64, u64)> {
        self.age(now_us);
        let after = sequence.checked_add(1)?;
        let expected = self.next.unwrap_or(sequence);
        self.next = Some(after.max(expected));
        let missing = sequence.checked_sub(expected)?;
        let explained = missing.min(self.own);
        self.own -= explained;
        (missing > explained).then_some((expected, missing - explained))
    }

    fn age(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.own_last_us) > OWN_US {
            self.own = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_once_and_own_datagrams_are_not_missed() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.saw(0, 10), None);
        assert_eq!(gaps.saw(0, 11), None);
        assert_eq!(gaps.saw(0, 14), Some((12, 2)));
        assert_eq!(gaps.saw(0, 12), None, "late");
        assert_eq!(gaps.saw(0, 15), None);
        gaps.sent(1);
        gaps.sent(1);
        assert_eq!(gaps.saw(2, 17), None, "16 was its own");
        assert_eq!(gaps.saw(3, 20), Some((18, 1)), "18 or 19 was its own");
        gaps.sent(4);
        assert_eq!(gaps.saw(5 + OWN_US, 22), Some((21, 1)), "too long ago to explain anything");
        assert_eq!(gaps.saw(6, u64::MAX), None, "no number comes after it");
        assert_eq!(gaps.saw(7, 23), None);
    }
}
