//! The first byte that two trees have in common.
//!
//! Both trees are in order, so each level is decided by what its two nodes are:
//!
//! - **A block** covers whatever the other has there: the first byte of the other within the block.
//! - **A sequence**: its items are walked in order, but leapfrogging: items that end before the next byte of the
//!   other are leapt over.
//! - **Two runs of equal strides**: any copy of the one meets at most two copies of the other, at distances that are
//!   the same for all copies (the *phase*). So two pairs of copies decide, or four where the search begins in the
//!   middle of one.
//! - **Two runs of unequal strides**: copies of the coarser run are tried in order against the whole of the other.
//!   Where the copies are short, those that meet nothing are skipped: the numbers of those that meet something solve
//!   a congruence with a window, whose least solution Euclid's algorithm finds. Residues repeat after
//!   `t / gcd(s, t)` copies, so after that many without a byte in common there is none.
//! - **Residues** come first: where all regions of both trees begin and end at fixed residues of a common divisor of
//!   all strides and these residues do not meet, nothing does.
//!
//! Each of these steps is exact. The number of steps is bounded by what the caller allows.

use std::ops::ControlFlow;

use super::arithmetic::{first_in_window, gcd};
use super::node::{Level, Node, View};
use super::part::Part;

/// A view at a position.
#[derive(Clone, Copy)]
pub(super) struct Placed<'a> {
    pub view: View<'a>,
    pub at: i64,
}

/// A run at a position.
#[derive(Clone, Copy)]
struct Copies<'a> {
    at: i64,
    count: i64,
    stride: i64,
    of: View<'a>,
}

/// The result of a step: a byte or none. It breaks off, where the steps are used up, with a position before which
/// there is certainly none.
pub(super) type Step = ControlFlow<i64, Option<i64>>;

/// A search with a bound.
pub(super) struct Searcher {
    pub steps: u64,
}

impl<'a> Placed<'a> {
    pub fn end(self) -> i64 {
        self.at + self.view.span()
    }

    /// Returns start and end of the first region that ends behind a position.
    pub fn next(self, from: i64) -> Option<(i64, i64)> {
        let (start, end) = self.view.next(from.max(self.at) - self.at)?;
        Some((self.at + start, self.at + end))
    }

    fn item(self, number: usize) -> Placed<'a> {
        let (at, view) = self.view.item(number);
        Placed { view, at: self.at + at }
    }
}

impl<'a> Copies<'a> {
    fn copy(&self, number: i64) -> Placed<'a> {
        Placed { view: self.of, at: self.at + number * self.stride }
    }
}

impl Searcher {
    fn spend(&mut self, reached: i64) -> ControlFlow<i64> {
        if self.steps == 0 {
            return ControlFlow::Break(reached);
        }
        self.steps -= 1;
        ControlFlow::Continue(())
    }

    /// Returns the first byte at or after a position that both have.
    pub fn first(&mut self, a: Placed<'_>, b: Placed<'_>, from: i64) -> Step {
        let low = from.max(a.at).max(b.at);
        let high = a.end().min(b.end());
        if low >= high {
            return ControlFlow::Continue(None);
        }
        self.spend(low)?;
        let step = match (a.view.level(), b.view.level()) {
            (Level::Block, _) => ControlFlow::Continue(first_within(b, low, high)),
            (_, Level::Block) => ControlFlow::Continue(first_within(a, low, high)),
            _ if residues_differ(a, b) => ControlFlow::Continue(None),
            (Level::Sequence { items }, Level::Sequence { items: other_items }) => {
                self.merge((a, items), (b, other_items), low)
            }
            (Level::Sequence { items }, _) => {
                self.leapfrog(a, items, b, low, high, |search, item, from| search.first(item, b, from))
            }
            (_, Level::Sequence { items }) => {
                self.leapfrog(b, items, a, low, high, |search, item, from| search.first(item, a, from))
            }
            (
                Level::Run { count, stride, of },
                Level::Run { count: other_count, stride: other_stride, of: other_of },
            ) => {
                let mine = Copies { at: a.at, count, stride, of };
                let others = Copies { at: b.at, count: other_count, stride: other_stride, of: other_of };
                if stride == other_stride {
                    self.in_phase(mine, others, low)
                } else if stride > other_stride {
                    self.by_congruence(mine, others, b, low, high)
                } else {
                    self.by_congruence(others, mine, a, low, high)
                }
            }
        };
        match step {
            // Behind `high` nothing is known of what follows these two trees.
            ControlFlow::Break(reached) => ControlFlow::Break(reached.min(high)),
            found => found,
        }
    }

    /// Returns the first byte that an item of a sequence has in common with another tree: as `within` finds it for
    /// an item, from a position on.
    pub fn leapfrog<'a>(
        &mut self,
        sequence: Placed<'a>,
        items: usize,
        other: Placed<'_>,
        low: i64,
        high: i64,
        mut within: impl FnMut(&mut Searcher, Placed<'a>, i64) -> Step,
    ) -> Step {
        let mut at = low;
        while at < high {
            self.spend(at)?;
            let Some((start, _)) = other.next(at) else { break };
            at = start.max(at);
            if at >= high {
                break;
            }
            let number = sequence.view.item_after(items, at - sequence.at);
            if number == items {
                break;
            }
            let item = sequence.item(number);
            if item.at > at {
                // The other may end before the item begins, so it is asked again from there.
                at = item.at;
                continue;
            }
            match within(self, item, at) {
                ControlFlow::Continue(None) => at = item.end(),
                // What was searched behind the item says nothing of the items that follow.
                ControlFlow::Break(reached) => return ControlFlow::Break(reached.min(item.end()).min(high)),
                found => return found,
            }
        }
        ControlFlow::Continue(None)
    }

    /// Two sequences, each with the number of its items: the items are walked side by side, and those that end before
    /// the other sequence's next item are leapt over.
    fn merge(
        &mut self,
        (a, items): (Placed<'_>, usize),
        (b, other_items): (Placed<'_>, usize),
        low: i64,
    ) -> Step {
        let mut number = a.view.item_after(items, low - a.at);
        let mut other_number = b.view.item_after(other_items, low - b.at);
        while number < items && other_number < other_items {
            let (item, other) = (a.item(number), b.item(other_number));
            let start = item.at.max(other.at).max(low);
            self.spend(start)?;
            if item.end() <= start {
                number = a.view.item_soon_after(number, items, start - a.at);
            } else if other.end() <= start {
                other_number = b.view.item_soon_after(other_number, other_items, start - b.at);
            } else if let Some(found) = self.first(item, other, low)? {
                return ControlFlow::Continue(Some(found));
            } else if item.end() <= other.end() {
                number += 1;
            } else {
                other_number += 1;
            }
        }
        ControlFlow::Continue(None)
    }

    /// Two runs of equal strides.
    fn in_phase(&mut self, a: Copies<'_>, b: Copies<'_>, low: i64) -> Step {
        let distance = a.at - b.at;
        let (ahead, phase) = (distance.div_euclid(a.stride), distance.rem_euclid(a.stride));
        let mut best: Option<i64> = None;
        // Copy `i` of `a` begins `phase` bytes behind the start of copy `i + ahead` of `b`.
        for (shift, offset) in [(ahead, -phase), (ahead + 1, a.stride - phase)] {
            let begin = offset.max(0);
            let end = a.of.span().min(offset + b.of.span());
            if begin >= end {
                continue;
            }
            let last = (a.count - 1).min(b.count - 1 - shift);
            let reached = (low - a.at - end).div_euclid(a.stride) + 1;
            let first = reached.max(0).max(-shift);
            for number in first..=last.min(first + 1) {
                let copy = a.copy(number);
                if best.is_some_and(|best| copy.at + begin >= best) {
                    break;
                }
                let other = Placed { view: b.of, at: copy.at + offset };
                let found = match self.first(copy, other, low) {
                    ControlFlow::Continue(found) => found,
                    // The other phase may have a byte before the one at which this one stopped.
                    ControlFlow::Break(_) => return ControlFlow::Break(low),
                };
                if let Some(found) = found {
                    best = Some(best.map_or(found, |best| best.min(found)));
                    break;
                }
                // A pair that was seen as a whole speaks for all that follow.
                if low <= copy.at + begin {
                    break;
                }
            }
        }
        ControlFlow::Continue(best)
    }

    /// Two runs of unequal strides, the coarser first; `whole` is the finer again.
    fn by_congruence(
        &mut self,
        coarse: Copies<'_>,
        fine: Copies<'_>,
        whole: Placed<'_>,
        low: i64,
        high: i64,
    ) -> Step {
        let span = coarse.of.span();
        let period = fine.stride / gcd(coarse.stride as u64, fine.stride as u64) as i64;
        let window = (span - 1).saturating_add(fine.of.span());
        // Copies from `inner` to `inner_last` lie within the finer run and behind the start of the search, so that
        // they meet what they would meet if the finer run had no ends.
        // Rounded up by the byte before, because a distance and a stride together may be past 63 bits.
        let inner = (low - coarse.at - 1).div_euclid(coarse.stride) + 1;
        let fine_end = i128::from(fine.at) + i128::from(fine.count) * i128::from(fine.stride);
        let inner_last =
            (fine_end - i128::from(coarse.at) - i128::from(span)).div_euclid(coarse.stride.into());
        let inner_last = inner_last.min(i128::from(coarse.count - 1)) as i64;
        let mut number = ((low - coarse.at - span).div_euclid(coarse.stride) + 1).max(0);
        loop {
            if number >= coarse.count || coarse.copy(number).at >= high {
                return ControlFlow::Continue(None);
            }
            if window < fine.stride {
                let behind = i128::from(coarse.copy(number).at) + i128::from(span - 1) - i128::from(fine.at);
                let residue = behind.rem_euclid(fine.stride.into()) as u64;
                let (step, modulus) = (coarse.stride as u64, fine.stride as u64);
                let Some(skip) = first_in_window(residue, step, modulus, window as u64) else {
                    return ControlFlow::Continue(None);
                };
                if skip > 0 {
                    number = number.saturating_add(skip as i64);
                    continue;
                }
            }
            if number - inner >= period && number <= inner_last {
                number = inner_last + 1;
                continue;
            }
            let copy = coarse.copy(number);
            self.spend(low.max(copy.at))?;
            if let Some(found) = self.first(copy, whole, low)? {
                return ControlFlow::Continue(Some(found));
            }
            number += 1;
        }
    }
}

/// The maximum number of distances at which two blocks may meet for [`meetings`] to list them.
const MEETINGS_MAX: u64 = 16;

/// Returns where two runs of blocks with unequal strides have bytes in common, as runs of blocks whose stride is the
/// least common multiple; none where they are not such runs, or the blocks meet at too many distances.
///
/// The distance of two blocks' starts is fixed modulo the greatest common divisor of the strides. Each distance at
/// which blocks overlap is one congruence for the number of the copy, whose solutions are a period apart.
pub(super) fn meetings(a: Placed<'_>, b: Placed<'_>) -> Option<Vec<Part>> {
    let (Level::Run { count, stride, of }, Level::Run { stride: other_stride, of: other_of, .. }) =
        (a.view.level(), b.view.level())
    else {
        return None;
    };
    let (Level::Block, Level::Block) = (of.level(), other_of.level()) else { return None };
    let divisor = gcd(stride as u64, other_stride as u64) as i64;
    let (bytes, other_bytes) = (of.span(), other_of.span());
    if (bytes as u64 + other_bytes as u64) / divisor as u64 > MEETINGS_MAX {
        return None;
    }
    let mut parts = Vec::new();
    // How far the block of `a` begins behind that of `b`: from `1 - bytes` to `other_bytes - 1`.
    let least = 1 - bytes;
    let mut behind = least + (a.at - b.at - least).rem_euclid(divisor);
    while behind < other_bytes {
        // Copy `i` of `a` begins so far behind a copy of `b`.
        let residue =
            (i128::from(a.at) - i128::from(b.at) - i128::from(behind)).rem_euclid(other_stride.into());
        let first = first_in_window(residue as u64, stride as u64, other_stride as u64, 1);
        let begin = (-behind).max(0);
        let length = bytes.min(other_bytes - behind) - begin;
        let period = (other_stride / divisor) as i128;
        if let Some(first) = first {
            // Both runs limit the copies that count.
            let (first, stride) = (i128::from(first), i128::from(stride));
            let other_at = i128::from(a.at) + first * stride - i128::from(behind);
            let skip = (i128::from(b.at) - other_at + period * stride - 1).div_euclid(period * stride).max(0);
            let first = first + skip * period;
            let last_start = i128::from(b.end()) - i128::from(other_bytes) + i128::from(behind);
            let last = i128::from(count - 1).min((last_start - i128::from(a.at)).div_euclid(stride));
            if first <= last {
                let number = ((last - first) / period + 1) as u64;
                let at = (i128::from(a.at) + first * stride) as i64 + begin;
                let block = Node::Block(length as u64);
                let run =
                    if number == 1 { block } else { Node::run(number, (period * stride) as u64, block) };
                parts.push(Part::new(at, run));
            }
        }
        behind += divisor;
    }
    Some(parts)
}

/// Returns the first byte of a tree within a range.
fn first_within(tree: Placed<'_>, low: i64, high: i64) -> Option<i64> {
    let (start, _) = tree.next(low)?;
    Some(start.max(low)).filter(|&start| start < high)
}

/// Returns whether the residues of the regions, modulo a divisor of all distances, show that none overlap.
fn residues_differ(a: Placed<'_>, b: Placed<'_>) -> bool {
    let (mine, others) = (a.view.node.facts(), b.view.node.facts());
    let divisor = gcd(mine.step, others.step);
    if divisor == 0 {
        return false;
    }
    // A region of `a` begins so far behind a region of `b`, or a divisor less that far before one.
    let behind = (a.at - b.at).rem_euclid(divisor as i64) as u64;
    behind >= others.longest && divisor - behind >= mine.longest
}
