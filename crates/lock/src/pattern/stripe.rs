//! Files that are striped over servers, and the bytes of a pattern that are one server's.
//!
//! A stripe is kept beside the tree of a pattern and never cut out of it: strides of a pattern and of stripes seldom
//! divide each other, and the cut tree would then be as long as the number of stripes.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::arithmetic::{gcd, lcm};
use super::common::{Placed, Searcher, Step, meetings};
use super::node::{Level, Node, Sequence, View};
use super::part::{Part, join};
use crate::PatternError;

/// The bytes of a file that are one server's: stripes of one length go round the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripe {
    /// The number of consecutive bytes that are one server's. Times the number of servers it is at most 2^62.
    pub bytes: u64,
    /// The number of servers.
    pub servers: u32,
    /// The number of the server, counted from 0.
    pub server: u32,
}

impl Stripe {
    /// Checks that there is such a server, and that positions can be counted.
    pub(super) fn check(self) -> Result<(), PatternError> {
        let Stripe { bytes, servers, server } = self;
        let round = bytes.checked_mul(u64::from(servers)).filter(|&round| round <= 1 << 62);
        if bytes == 0 || server >= servers || round.is_none() {
            return Err(PatternError::Stripe { stripe_bytes: bytes, servers, server });
        }
        Ok(())
    }

    /// Returns the distance of two stripes of a server in bytes.
    pub(super) fn round(self) -> i64 {
        (self.bytes * u64::from(self.servers)) as i64
    }

    /// Returns the offset of the server's first byte.
    pub(super) fn first(self) -> i64 {
        (self.bytes * u64::from(self.server)) as i64
    }

    /// Returns the number of the stripe, whoever's it is, in which an offset lies.
    pub(super) fn number(self, offset: i64) -> i64 {
        offset / self.bytes as i64
    }

    /// Returns whether an offset is the server's.
    pub(super) fn holds(self, offset: i64) -> bool {
        self.number(offset) % i64::from(self.servers) == i64::from(self.server)
    }
}

/// The maximum number of steps that the search for the next byte of a server may take.
///
/// It is far above what arrays of a few dimensions need; patterns that were made to evade the stripes of a server at
/// every level are above it.
const STEPS_MAX: u64 = 1 << 22;

/// Checks that the next byte in a server's stripes is always found within [`STEPS_MAX`] steps.
pub(super) fn check_steps(tree: &Node, stripe: Stripe) -> Result<(), PatternError> {
    if steps(tree, stripe, &mut HashMap::new()) > STEPS_MAX {
        Err(PatternError::EvadesStripes)
    } else {
        Ok(())
    }
}

/// Returns a bound on the number of steps in which a byte within the stripes is found, or that there is none. Sequences that occur
/// several times are looked into once; their bounds are kept in `known`, by address.
fn steps(tree: &Node, stripe: Stripe, known: &mut HashMap<*const Sequence, u64>) -> u64 {
    /// The number of copies that are tried at the ends of a range, where copies may be cut.
    const ENDS: u64 = 4;
    let round = stripe.round() as u64;
    // A tree that is longer than two rounds and has no gap as long as a stripe has a byte in every stripe.
    let dense = |tree: &Node| tree.span() / 2 >= round && tree.facts().gap < stripe.bytes;
    match tree {
        Node::Block(_) => 1,
        Node::Sequence(sequence) => {
            let address = Arc::as_ptr(sequence);
            if let Some(steps) = known.get(&address) {
                return *steps;
            }
            let all = sequence.items.iter();
            let all = all.fold(0_u64, |sum, item| sum.saturating_add(steps(&item.node, stripe, known)));
            known.insert(address, all);
            all
        }
        Node::Run(run) => {
            let common = gcd(run.stride, round);
            if dense(tree) && matches!(run.of, Node::Block(_)) || run.stride == round {
                // One phase, or a byte in the first whole stripe.
                return steps(&run.of, stripe, known).saturating_mul(ENDS);
            }
            if run.stride < round {
                // Stripes are tried in order, each by one look into the run.
                return (run.stride / common).min(tree.span() / round) + ENDS;
            }
            match &run.of {
                Node::Block(_) => ENDS,
                of if dense(of) => steps(of, stripe, known).saturating_mul(ENDS),
                of => (round / common + ENDS).min(run.count).saturating_mul(steps(of, stripe, known)),
            }
        }
    }
}

/// A server's stripes as a tree, up to some offset.
#[derive(Debug)]
pub(super) struct Striped {
    pub stripe: Stripe,
    pub at: i64,
    pub tree: Node,
}

impl Striped {
    /// Creates the tree of the stripes that begin before an offset, among at least two servers; none if none does.
    pub fn new(stripe: Stripe, high: i64) -> Option<Striped> {
        let first = stripe.first();
        if first >= high {
            return None;
        }
        let count = (high - 1 - first) / stripe.round() + 1;
        let last = first + (count - 1) * stripe.round();
        let bytes = stripe.bytes as i64;
        let mut parts = Vec::with_capacity(2);
        // The last stripe may reach past the greatest offset.
        let whole = count - i64::from(last.checked_add(bytes).is_none());
        match whole {
            0 => {}
            1 => parts.push(Part::new(first, Node::Block(stripe.bytes))),
            _ => {
                let run = Node::run(whole as u64, stripe.round() as u64, Node::Block(stripe.bytes));
                parts.push(Part::new(first, run));
            }
        }
        if whole < count {
            parts.push(Part::new(last, Node::Block((i64::MAX - last) as u64)));
        }
        let part = join(parts).ok()??;
        Some(Striped { stripe, at: part.at, tree: part.node })
    }

    /// Returns where the stripe ends in which an offset lies.
    pub fn end_of(&self, offset: i64) -> i64 {
        let bytes = self.stripe.bytes as i64;
        (offset - offset % bytes).saturating_add(bytes)
    }

    fn placed(&self) -> Placed<'_> {
        Placed { view: View::new(&self.tree, false), at: self.at }
    }

    pub fn memory_bytes(&self) -> usize {
        2 * size_of::<usize>() + size_of::<Striped>() + self.tree.memory_bytes()
    }
}

/// Returns the first byte from `low` to `high` that two trees and the stripes beside them have.
///
/// A byte that both trees have but the stripes have not is followed by the next stripe, in which the next bytes of both are sought. Where
/// two runs meet in a few places of a common period, these places are runs themselves, and the stripe is the second of two runs again. In
/// any case, what all of them have repeats with the least common multiple of their strides, so that the search ends after that many bytes.
pub(super) fn meet(
    a: Placed<'_>,
    b: Placed<'_>,
    stripes: [Option<&Striped>; 2],
    low: i64,
    high: i64,
    search: &mut Searcher,
) -> Step {
    let low = low.max(a.at).max(b.at);
    let high = high.min(a.end()).min(b.end());
    if low >= high {
        return ControlFlow::Continue(None);
    }
    let stripes = match stripes {
        [Some(mine), Some(others)] if mine.stripe == others.stripe => [Some(mine), None],
        others => others,
    };
    if stripes.iter().all(Option::is_none) {
        return search.first(a, b, low);
    }
    if let Level::Sequence { items } = a.view.level() {
        return search.leapfrog(a, items, b, low, high, |search, item, from| {
            meet(item, b, stripes, from, high, search)
        });
    }
    if let Level::Sequence { items } = b.view.level() {
        return search.leapfrog(b, items, a, low, high, |search, item, from| {
            meet(item, a, stripes, from, high, search)
        });
    }
    // Where two runs meet in a few runs, these are sought in the stripes.
    if let ([Some(striped), None] | [None, Some(striped)], Some(parts)) = (stripes, meetings(a, b)) {
        let mut best = None;
        for part in &parts {
            let part = Placed { view: View::new(&part.node, false), at: part.at };
            let found = match search.first(part, striped.placed(), low) {
                ControlFlow::Continue(found) => found,
                // Another of the runs may have a byte before the one at which this one stopped.
                ControlFlow::Break(_) => return ControlFlow::Break(low),
            };
            best = best.into_iter().chain(found).min();
        }
        return ControlFlow::Continue(best.filter(|&found| found < high));
    }
    // None of the ends matters before `high`: up to there a byte and the one a period later are both in or both out.
    let strides = stripes.iter().flatten().map(|striped| striped.stripe.round() as u64);
    let period = strides.chain([stride(a), stride(b)]).try_fold(1, lcm);
    let high = period.map_or(high, |period| high.min(low.saturating_add(period as i64)));
    let mut at = low;
    loop {
        let Some(found) = search.first(a, b, at)?.filter(|&found| found < high) else {
            return ControlFlow::Continue(None);
        };
        at = found;
        let foreign = stripes.iter().flatten().find(|striped| !striped.stripe.holds(found));
        let Some(striped) = foreign else {
            return ControlFlow::Continue(Some(found));
        };
        for tree in [a, b] {
            match search.first(tree, striped.placed(), at)? {
                Some(next) if next < high => at = next,
                _ => return ControlFlow::Continue(None),
            }
        }
    }
}

/// Returns the distance after which a tree's uppermost level repeats.
fn stride(tree: Placed<'_>) -> u64 {
    match tree.view.level() {
        Level::Run { stride, .. } => stride as u64,
        Level::Block | Level::Sequence { .. } => 1,
    }
}
