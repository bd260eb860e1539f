//! Positions that a handle has taken and not used yet: no I/O.

use std::collections::VecDeque;
use std::ops::Range;

use crate::layout::View;

/// Positions that were taken and are not used yet, in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Reserved(VecDeque<Range<u64>>);

impl Reserved {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns their number.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Returns the first ones, which follow each other.
    pub fn first(&self) -> Option<Range<u64>> {
        self.0.front().cloned()
    }

    /// Adds positions, at least one, which are greater than all others.
    pub fn add(&mut self, first: u64, count: u64) {
        match self.0.back_mut() {
            Some(last) if last.end == first => last.end += count,
            _ => self.0.push_back(first..first + count),
        }
    }

    /// Takes out the next positions that are in one object of a view and follow each other, up to a maximum number.
    pub fn take(&mut self, view: &View, most: u64) -> Option<Range<u64>> {
        let next = self.0.front_mut()?;
        let first = next.start;
        next.start += most.min(next.end - first).min(view.together(first));
        let taken = first..next.start;
        if next.is_empty() {
            self.0.pop_front();
        }
        Some(taken)
    }

    /// Gives up those that are not after a position.
    pub fn pass(&mut self, position: u64) {
        self.0.retain(|range| range.start > position);
    }

    /// Gives all up.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_taken_in_order_and_never_of_two_objects() {
        let view = View { start: 10, epoch: 1, generation: 1, width: 3, unit: 4, closed: false };
        let mut reserved = Reserved::default();
        reserved.add(12, 6);
        reserved.add(18, 1);
        reserved.add(30, 2);
        assert_eq!((reserved.count(), reserved.first()), (9, Some(12..19)));
        let mut taken = Vec::new();
        while let Some(range) = reserved.take(&view, 3) {
            let of = |position| view.locate(position).0;
            assert!(range.clone().all(|position| of(position) == of(range.start)), "{range:?}");
            taken.push(range);
        }
        assert_eq!(taken, [12..14, 14..17, 17..18, 18..19, 30..32]);
        assert!(reserved.is_empty());
        reserved.add(40, 2);
        reserved.add(50, 2);
        reserved.pass(40);
        assert_eq!(reserved.first(), Some(50..52));
        reserved.clear();
        assert_eq!(reserved.count(), 0);
    }
}
