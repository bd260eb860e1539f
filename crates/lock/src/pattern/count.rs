//! Numbers of regions and bytes within a window, and of those that are one server's.

use super::node::{Node, View};
use super::stripe::Stripe;

/// Returns the numbers of regions and of bytes of a tree at a position that lie from `low` to `high`.
pub(super) fn within(tree: &Node, at: i64, low: i64, high: i64) -> (u64, u64) {
    let (low, high) = (low.max(at), high.min(at + tree.span() as i64));
    if low >= high {
        return (0, 0);
    }
    let (low, high) = (low - at, high - at);
    let (skipped, before) = tree.before(low as u64);
    let (regions, bytes) = tree.before(high as u64);
    // A region that begins before the window and ends in it counts.
    let entering = View::new(tree, false).next(low).is_some_and(|(start, _)| start < low);
    (regions - skipped + u64::from(entering), bytes - before)
}

/// Returns the numbers of regions and of bytes that lie from `low` to `high` and are one server's among several.
///
/// Copies of a run whose distances fall together with the stripes again after `p` copies are counted for one period.
/// Where there are fewer stripes than copies to count, the stripes are counted one by one.
pub(super) fn striped(tree: &Node, at: i64, low: i64, high: i64, stripe: Stripe) -> (u64, u64) {
    let (low, high) = (low.max(at), high.min(at + tree.span() as i64));
    if low >= high {
        return (0, 0);
    }
    let round = stripe.round();
    let stripes =
        (high - 1 - stripe.first()).div_euclid(round) - (low - stripe.first()).div_euclid(round) + 1;
    let mut sum = Sum::default();
    match tree {
        Node::Block(_) => return block(low, high, stripe),
        Node::Run(run) => {
            let (stride, span) = (run.stride as i64, run.of.span() as i64);
            let copy = |number: i64| at + number * stride;
            let first = ((low - at - span).div_euclid(stride) + 1).max(0);
            let last = (high - 1 - at) / stride;
            let period = round / super::arithmetic::gcd(run.stride, round as u64) as i64;
            // All copies but the first and the last are whole, and those a period apart count the same.
            let inner = (last - first - 1).max(0);
            let (times, rest) = (inner / period, inner % period);
            let each = if times > 1 { period } else { inner };
            if each > stripes {
                return by_stripes(tree, at, low, high, stripe);
            }
            let mut add = |number: i64, times: u64| {
                sum.add(striped(&run.of, copy(number), low, high, stripe), times);
            };
            add(first, 1);
            if last > first {
                add(last, 1);
            }
            for number in 0..each {
                let often = if times > 1 { times as u64 + u64::from(number < rest) } else { 1 };
                add(first + 1 + number, often);
            }
        }
        Node::Sequence(sequence) => {
            if sequence.items.len() as i64 > stripes {
                return by_stripes(tree, at, low, high, stripe);
            }
            for item in &sequence.items {
                sum.add(striped(&item.node, at + item.at as i64, low, high, stripe), 1);
            }
        }
    }
    (sum.regions, sum.bytes)
}

#[derive(Default)]
struct Sum {
    regions: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, (regions, bytes): (u64, u64), times: u64) {
        self.regions += regions * times;
        self.bytes += bytes * times;
    }
}

/// Counts stripe by stripe.
fn by_stripes(tree: &Node, at: i64, low: i64, high: i64, stripe: Stripe) -> (u64, u64) {
    let (round, bytes) = (stripe.round(), stripe.bytes as i64);
    let number = (low - stripe.first()).div_euclid(round).max(0);
    let mut sum = Sum::default();
    let mut start = stripe.first() + number * round;
    while start < high {
        sum.add(within(tree, at, start.max(low), start.saturating_add(bytes).min(high)), 1);
        let Some(next) = start.checked_add(round) else { break };
        start = next;
    }
    (sum.regions, sum.bytes)
}

/// Counts within a range all of whose bytes are in the pattern.
fn block(low: i64, high: i64, stripe: Stripe) -> (u64, u64) {
    let (round, bytes) = (stripe.round(), stripe.bytes as i64);
    // The bytes before an offset that are the server's.
    let before = |offset: i64| {
        let offset = (offset - stripe.first()).max(0);
        offset / round * bytes + (offset % round).min(bytes)
    };
    let first = (low - stripe.first() - bytes).div_euclid(round) + 1;
    let last = (high - 1 - stripe.first()).div_euclid(round);
    ((last - first.max(0) + 1).max(0) as u64, (before(high) - before(low)) as u64)
}
