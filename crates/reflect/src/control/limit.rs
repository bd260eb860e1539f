//! The limits on the requests of a source, and the record of used cookies, both in memory that no flood
//! can enlarge.

use std::collections::{HashMap, VecDeque};

use crate::cookie::COOKIE_LIFE_MS;
use crate::rate::Rate;

const SLOTS: usize = 1 << 15;
const DEPARTED_MAX: usize = 1 << 16;

/// A rate for each source, in a table of fixed size. A source has a bucket in each of two rows, and is admitted if
/// either of them lets it through: another source that happens to share one bucket does not shut it out.
#[derive(Debug)]
pub(super) struct Sources {
    rate: Rate,
    rows: [Box<[u64]>; 2],
}

impl Sources {
    pub(super) fn new(rate: Rate) -> Self {
        let row = || vec![0; SLOTS].into_boxed_slice();
        Sources { rate, rows: [row(), row()] }
    }

    /// Takes one from the buckets of a source, which is named by a keyed hash. Returns false if the source is over its
    /// rate.
    pub(super) fn take(&mut self, source: u64, now_ns: u64) -> bool {
        let places = [source as usize % SLOTS, (source >> 32) as usize % SLOTS];
        let mut admitted = false;
        for (row, place) in self.rows.iter_mut().zip(places) {
            admitted |= self.rate.take(&mut row[place], now_ns, 1);
        }
        admitted
    }
}

/// The times at which addresses left their groups, kept as long as a cookie from before could still bring one back: a
/// recorded `JOIN` must not make an address a member again after it has left. Bounded: when there are too many, all
/// cookies made before the oldest are void, and a client that brings one gets another.
#[derive(Debug, Default)]
pub(super) struct DepartedMembers {
    at_ms: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
    floor_ms: Option<u64>,
}

impl DepartedMembers {
    /// Notes that the address and group behind this hash left at `at_ms`.
    pub(super) fn note(&mut self, member: u64, at_ms: u64, now_ms: u64) {
        while let Some(&(oldest, oldest_ms)) = self.order.front() {
            let full = self.order.len() >= DEPARTED_MAX;
            if !full && now_ms <= oldest_ms + COOKIE_LIFE_MS {
                break;
            }
            if full {
                self.floor_ms = self.floor_ms.max(Some(oldest_ms));
            }
            self.order.pop_front();
            if self.at_ms.get(&oldest) == Some(&oldest_ms) {
                self.at_ms.remove(&oldest);
            }
        }
        self.at_ms.insert(member, at_ms);
        self.order.push_back((member, at_ms));
    }

    /// Returns the time that a cookie of this address and group must be younger than, if there is one.
    pub(super) fn younger_than_ms(&self, member: u64) -> Option<u64> {
        self.at_ms.get(&member).copied().max(self.floor_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_limited_and_does_not_limit_others() {
        let mut sources = Sources::new(Rate::per_second(10, 20));
        let taken = |sources: &mut Sources, source: u64, now_ns: u64| {
            (0..100).filter(|_| sources.take(source, now_ns)).count()
        };
        assert_eq!(taken(&mut sources, 7 << 32 | 9, 1), 20);
        assert_eq!(taken(&mut sources, 7 << 32 | 9, 1_000_000_001), 10);
        assert_eq!(taken(&mut sources, 8 << 32 | 9, 1_000_000_001), 20, "shares one bucket of two");
    }

    #[test]
    fn who_left_is_remembered_in_bounded_memory() {
        let mut departed = DepartedMembers::default();
        let many = DEPARTED_MAX as u64 + 10;
        for member in 0..many {
            departed.note(member, member / 100, member / 100);
        }
        assert_eq!(departed.order.len(), DEPARTED_MAX);
        assert_eq!(departed.at_ms.len(), DEPARTED_MAX);
        assert!(
            (0..many).all(|member| departed
                .younger_than_ms(member)
                .is_some_and(|at_ms| at_ms <= member / 100 + 1))
        );
        departed.note(1, 2 * COOKIE_LIFE_MS, 2 * COOKIE_LIFE_MS);
        assert_eq!(departed.order.len(), 1);
    }
}
