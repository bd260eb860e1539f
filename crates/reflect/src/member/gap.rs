//! Sees what is missing between numbered datagrams.

/// How long an own datagram may explain a number that is missing.
const OWN_US: u64 = 2_000_000;

/// The numbers seen.
///
/// A group numbers what all its members send, and a member gets no copy of what it sent itself, unless it asked for
/// that: its own datagrams are missing from what it sees. As many missing numbers as it sent datagrams of late are
/// therefore not told. With copies of its own (echo) the count is exact.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    next: Option<u64>,
    own: u64,
    own_last_us: u64,
}

impl Gaps {
    /// The member sent a datagram of which it gets no copy.
    pub(super) fn sent(&mut self, now_us: u64) {
        self.age(now_us);
        self.own += 1;
        self.own_last_us = now_us;
    }

    /// A datagram came. Gives what is missing before it, as the first number and their count. One that comes late gives
    /// nothing.
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
