//! Numbers of regions and bytes within a window, and of those that are one server's.

use super::Count;
use super::arithmetic::gcd;
use super::node::{Node, View};
use super::stripe::Stripe;

impl Count {
    fn add(&mut self, other: Count, times: u64) {
        self.regions += other.regions * times;
        self.bytes += other.bytes * times;
    }
}

/// Counts what of a tree at a position lies from `low` to `high`.
pub(super) fn within(tree: &Node, at: i64, low: i64, high: i64) -> Count {
    let (low, high) = (low.max(at), high.min(at + tree.span() as i64));
    if low >= high {
        return Count::default();
    }
    let (low, high) = (low - at, high - at);
    let (skipped, before) = tree.before(low as u64);
    let (regions, bytes) = tree.before(high as u64);
    // A region that begins before the window and ends in it counts.
    let entering = View::new(tree, false).next(low).is_some_and(|(start, _)| start < low);
    Count { regions: regions - skipped + u64::from(entering), bytes: bytes - before }
}

/// A count of what is one server's among several, within a number of steps.
///
/// Copies of a run whose distances fall together with the stripes again after `p` copies are counted for one period.
/// Counts the stripes one by one, where they are fewer than the copies.
pub(super) struct Counter {
    pub stripe: Stripe,
    pub steps: u64,
}

impl Counter {
    fn spend(&mut self) -> Option<()> {
        self.steps = self.steps.checked_sub(1)?;
        Some(())
    }

    /// Counts from `low` to `high`; none where the steps are used up.
    pub fn count(&mut self, tree: &Node, at: i64, low: i64, high: i64) -> Option<Count> {
        let (low, high) = (low.max(at), high.min(at + tree.span() as i64));
        if low >= high {
            return Some(Count::default());
        }
        self.spend()?;
        let (round, first_byte) = (self.stripe.round(), self.stripe.first());
        let stripes = (high - 1 - first_byte).div_euclid(round) - (low - first_byte).div_euclid(round) + 1;
        let mut sum = Count::default();
        match tree {
            Node::Block(_) => return Some(self.block(low, high)),
            Node::Run(run) => {
                let (stride, span) = (run.stride as i64, run.of.span() as i64);
                let first = ((low - at - span).div_euclid(stride) + 1).max(0);
                let last = (high - 1 - at) / stride;
                let period = round / gcd(run.stride, round as u64) as i64;
                // All copies but the first and the last are whole, and those a period apart count the same.
                let inner = (last - first - 1).max(0);
                let (times, rest) = (inner / period, inner % period);
                let each = if times > 1 { period } else { inner };
                if each > stripes {
                    return self.by_stripes(tree, at, low, high);
                }
                let mut add = |number: i64, times: u64| {
                    sum.add(self.count(&run.of, at + number * stride, low, high)?, times);
                    Some(())
                };
                add(first, 1)?;
                if last > first {
                    add(last, 1)?;
                }
                for number in 0..each {
                    let often = if times > 1 { times as u64 + u64::from(number < rest) } else { 1 };
                    add(first + 1 + number, often)?;
                }
            }
            Node::Sequence(sequence) => {
                if sequence.items.len() as i64 > stripes {
                    return self.by_stripes(tree, at, low, high);
                }
                for item in &sequence.items {
                    sum.add(self.count(&item.node, at + item.at as i64, low, high)?, 1);
                }
            }
        }
        Some(sum)
    }

    /// Counts stripe by stripe.
    fn by_stripes(&mut self, tree: &Node, at: i64, low: i64, high: i64) -> Option<Count> {
        let (round, bytes) = (self.stripe.round(), self.stripe.bytes as i64);
        let number = (low - self.stripe.first()).div_euclid(round).max(0);
        let mut sum = Count::default();
        let mut start = self.stripe.first() + number * round;
        while start < high {
            self.spend()?;
            sum.add(within(tree, at, start.max(low), start.saturating_add(bytes).min(high)), 1);
            let Some(next) = start.checked_add(round) else { break };
            start = next;
        }
        Some(sum)
    }

    /// Counts within a range all of whose bytes are in the pattern.
    fn block(&self, low: i64, high: i64) -> Count {
        let (round, bytes, first_byte) = (self.stripe.round(), self.stripe.bytes as i64, self.stripe.first());
        // The bytes before an offset that are the server's.
        let before = |offset: i64| {
            let offset = (offset - first_byte).max(0);
            offset / round * bytes + (offset % round).min(bytes)
        };
        let first = ((low - first_byte - bytes).div_euclid(round) + 1).max(0);
        let last = (high - 1 - first_byte).div_euclid(round);
        Count { regions: (last - first + 1).max(0) as u64, bytes: (before(high) - before(low)) as u64 }
    }
}
