//! The normal form of access patterns (sections 3.3 and 5.2 of the paper).
//!
//! A [`Pattern`] is a tree of blocks, of runs (copies of a part at equal distances) and of sequences (parts one after
//! the other), whose regions never touch each other (`node`). It is made from a description by unions and repetitions
//! that keep it so (`build`, `union`), and is shared by all that is made from it: what lies before or behind an
//! offset is a window on the same tree, and what is one server's is the same tree with the stripe beside it. So each
//! of these costs the same for one region as for 2^40, and takes some words of memory.
//!
//! The paper's servers take a datatype apart and look at each region to find those that are theirs, which limits how
//! they scale (section 6.1). Here a stripe is a run like others, and "the next byte that is mine" is the first common
//! byte of two runs (`common`), which arithmetic decides.

mod arithmetic;
mod build;
mod common;
mod count;
mod node;
mod part;
mod stripe;
mod union;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::{Placed, Searcher};
use count::Counter;
use node::{Level, Node, View};
use part::Part;
pub use stripe::Stripe;
use stripe::Striped;

use crate::{Description, OFFSET_MAX, PatternError};

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

impl Region {
    /// Creates a region.
    pub fn new(offset: u64, length: u64) -> Region {
        Region { offset, length }
    }

    /// Returns the offset behind the last byte.
    ///
    /// A region of a description may end past [`OFFSET_MAX`], and is then refused; no region of a pattern does.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// The size of a pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The number of regions.
    pub regions: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// The result of a bounded search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The first byte is the one at this offset.
    Found(u64),
    /// No common byte.
    Absent,
    /// No common byte before this offset, where the bound was reached: the search goes on from here.
    Paused(u64),
}

/// A set of bytes of a file.
///
/// Its *regions* are its maximal ranges of consecutive bytes: two of them never touch. (Of a pattern that is restricted
/// to a server among several, and of one that is cut at an offset, they are what is left of the regions.)
///
/// Copies share what they can, so that they are cheap.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The offset of the tree's first byte.
    at: i64,
    tree: Option<Node>,
    /// Bytes before this offset are not in the pattern.
    low: i64,
    /// Neither are bytes at or behind this one.
    high: i64,
    stripe: Option<Arc<Striped>>,
}

impl Pattern {
    /// Returns the pattern without a byte.
    pub fn empty() -> Pattern {
        Pattern { at: 0, tree: None, low: 0, high: 0, stripe: None }
    }

    fn of(part: Option<Part>) -> Pattern {
        part.map_or_else(Pattern::empty, |part| {
            let (low, high) = (part.at, part.end());
            Pattern { at: part.at, tree: Some(part.node), low, high, stripe: None }
        })
    }

    /// Returns the pattern of one range of bytes.
    ///
    /// # Errors
    ///
    /// [`PatternError::Overflow`] where it ends past [`OFFSET_MAX`].
    pub fn contiguous(offset: u64, length: u64) -> Result<Pattern, PatternError> {
        build::list(&[Region { offset, length }])
    }

    /// Returns the pattern of ranges of bytes, in any order; they may overlap.
    ///
    /// # Errors
    ///
    /// [`PatternError::Overflow`] where one ends past [`OFFSET_MAX`]; [`PatternError::TooManyItems`].
    pub fn list(regions: &[Region]) -> Result<Pattern, PatternError> {
        build::list(regions)
    }

    /// Returns the pattern of some regions of a pattern, in their order. It is for what is told to a server, which brings it into
    /// normal form.
    pub(crate) fn pieces(regions: &[Region]) -> Result<Pattern, PatternError> {
        build::pieces(regions)
    }

    /// Returns the normal form of a description.
    ///
    /// # Errors
    ///
    /// An error of the description, or the reason why it cannot be brought into normal form in bounded time.
    pub fn new(description: &Description) -> Result<Pattern, PatternError> {
        build::pattern(description)
    }

    /// Returns whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.first_from(self.low).is_none()
    }

    /// Returns the least region that holds all bytes; none where there is no byte.
    pub fn bounds(&self) -> Option<Region> {
        let start = self.first_from(self.low)?;
        let end = self.last_end(self.high)?;
        Some(region(start, end))
    }

    /// Returns the number of regions, however long that takes; see [`Pattern::count`].
    pub fn region_count(&self) -> u64 {
        self.count(u64::MAX).map_or(0, |count| count.regions)
    }

    /// Returns the number of bytes, however long that takes; see [`Pattern::count`].
    pub fn byte_count(&self) -> u64 {
        self.count(u64::MAX).map_or(0, |count| count.bytes)
    }

    /// Returns the numbers of regions and bytes, if that takes no more than the given number of steps.
    ///
    /// One step suffices, unless the pattern is restricted to a server. Then the number of steps grows with the number
    /// of stripes, or with the number of copies after which copies and stripes fall together again, whichever is less.
    pub fn count(&self, steps: u64) -> Option<Count> {
        let Some(tree) = &self.tree else { return Some(Count::default()) };
        match &self.stripe {
            None => Some(count::within(tree, self.at, self.low, self.high)),
            Some(stripe) => {
                let mut counter = Counter { stripe: stripe.stripe, steps };
                counter.count(tree, self.at, self.low, self.high)
            }
        }
    }

    /// Returns the first region that has a byte at or after an offset, without what lies before the offset.
    pub fn next_region(&self, offset: u64) -> Option<Region> {
        let start = self.first_from(self.low.max(signed(offset)))?;
        let (_, mut end) = self.placed(false)?.next(start)?;
        end = end.min(self.high);
        if let Some(stripe) = &self.stripe {
            end = end.min(stripe.end_of(start));
        }
        Some(region(start, end))
    }

    /// Searches for the first byte at or after an offset in a bounded number of steps.
    ///
    /// It takes few steps, unless the pattern is restricted to a server and evades its stripes.
    pub fn search_next(&self, offset: u64, steps: u32) -> Search {
        let from = self.low.max(signed(offset));
        match self.nearest(from, false, &mut Searcher { steps: u64::from(steps) }) {
            ControlFlow::Continue(Some(start)) if start < self.high => Search::Found(start as u64),
            ControlFlow::Continue(_) => Search::Absent,
            ControlFlow::Break(reached) => Search::Paused(reached as u64),
        }
    }

    /// Returns the offset behind the last byte that lies before an offset; none where no byte does.
    pub fn end_before(&self, offset: u64) -> Option<u64> {
        self.last_end(self.high.min(signed(offset))).map(|end| end as u64)
    }

    /// Returns the regions in order.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        let (mut at, mut item) = (0, 0);
        std::iter::from_fn(move || {
            let region = match self.stripe {
                None => self.next_after(at, &mut item),
                Some(_) => self.next_region(at),
            }?;
            at = region.end();
            Some(region)
        })
    }

    /// Returns the first region that has a byte at or after an offset, of a pattern that is not restricted. `item` is the
    /// item of the uppermost sequence in which the region before it was found: the next one is not far.
    fn next_after(&self, offset: u64, item: &mut usize) -> Option<Region> {
        let (view, from) = (View::new(self.tree.as_ref()?, false), self.low.max(signed(offset)));
        let point = (from - self.at).max(0);
        let (start, end) = match view.level() {
            Level::Sequence { items } => {
                *item = view.item_soon_after(*item, items, point);
                let (at, part) = if *item < items { view.item(*item) } else { return None };
                let (start, end) = part.next(point - at)?;
                (at + start, at + end)
            }
            _ => view.next(point)?,
        };
        let (start, end) = ((self.at + start).max(from), (self.at + end).min(self.high));
        (start < self.high).then(|| region(start, end))
    }

    /// Returns the bytes before an offset.
    pub fn before(&self, offset: u64) -> Pattern {
        Pattern { high: self.high.min(signed(offset)), ..self.clone() }
    }

    /// Returns the bytes at and after an offset.
    pub fn from(&self, offset: u64) -> Pattern {
        Pattern { low: self.low.max(signed(offset)), ..self.clone() }
    }

    /// Returns the bytes that are one server's.
    ///
    /// # Errors
    ///
    /// [`PatternError::Stripe`] where the stripe is not one; [`PatternError::Restricted`] where the pattern is already
    /// restricted to another; [`PatternError::EvadesStripes`] where the next byte of the server cannot always be found
    /// in bounded time.
    pub fn restrict(&self, stripe: Stripe) -> Result<Pattern, PatternError> {
        stripe.check()?;
        if let Some(restricted) = &self.stripe {
            return if restricted.stripe == stripe {
                Ok(self.clone())
            } else {
                Err(PatternError::Restricted)
            };
        }
        if stripe.servers == 1 {
            return Ok(self.clone());
        }
        // A pattern within one stripe is one server's, wholly.
        if self.low < self.high && stripe.number(self.low) == stripe.number(self.high - 1) {
            let mine = stripe.holds(self.low);
            return Ok(if mine { self.clone() } else { Pattern::empty() });
        }
        if let Some(tree) = &self.tree {
            stripe::check_steps(tree, stripe)?;
        }
        match Striped::new(stripe, self.high) {
            Some(striped) => Ok(Pattern { stripe: Some(Arc::new(striped)), ..self.clone() }),
            None => Ok(Pattern::empty()),
        }
    }

    /// Returns the first byte at or after an offset that both patterns have, however long that takes.
    pub fn first_common(&self, other: &Pattern, from: u64) -> Option<u64> {
        let mut search = Searcher { steps: u64::MAX };
        match self.meet(other, from, &mut search) {
            ControlFlow::Continue(found) => found.map(|offset| offset as u64),
            // This many steps are never used up.
            ControlFlow::Break(_) => None,
        }
    }

    /// Searches for the first byte at or after an offset that both patterns have, in a bounded number of steps.
    ///
    /// A step takes about as long as it takes to find a region at an offset. The answer is never wrong: where the
    /// bound is reached, it says up to which offset there is certainly no common byte. A search that goes on from
    /// there may be paused at the same offset again, so it should be given more steps.
    pub fn search_common(&self, other: &Pattern, from: u64, steps: u32) -> Search {
        self.search_common_counted(other, from, steps).0
    }

    /// [`Pattern::search_common`], and the number of steps that it took.
    pub fn search_common_counted(&self, other: &Pattern, from: u64, steps: u32) -> (Search, u32) {
        let mut search = Searcher { steps: u64::from(steps) };
        let found = match self.meet(other, from, &mut search) {
            ControlFlow::Continue(Some(offset)) => Search::Found(offset as u64),
            ControlFlow::Continue(None) => Search::Absent,
            ControlFlow::Break(offset) => Search::Paused(offset as u64),
        };
        (found, steps - search.steps as u32)
    }

    fn meet(&self, other: &Pattern, from: u64, search: &mut Searcher) -> common::Step {
        let (Some(mine), Some(others)) = (self.placed(false), other.placed(false)) else {
            return ControlFlow::Continue(None);
        };
        let low = signed(from).max(self.low).max(other.low);
        let high = self.high.min(other.high);
        let stripes = [self.stripe.as_deref(), other.stripe.as_deref()];
        let found = stripe::meet(mine, others, stripes, low, high, search)?;
        ControlFlow::Continue(found.filter(|&offset| offset < high))
    }

    /// Returns the memory that the pattern takes, in bytes. What several patterns share is counted for each.
    pub fn memory_bytes(&self) -> usize {
        let stripe = self.stripe.as_ref().map_or(0, |stripe| stripe.memory_bytes());
        size_of::<Pattern>() + self.tree.as_ref().map_or(0, Node::memory_bytes) + stripe
    }

    /// Returns the tree at its place, or at its place in the mirror image of the file.
    fn placed(&self, mirrored: bool) -> Option<Placed<'_>> {
        let tree = self.tree.as_ref()?;
        Some(place(tree, self.at, mirrored))
    }

    /// Returns the first byte at or after an offset.
    fn first_from(&self, from: i64) -> Option<i64> {
        self.nearest_at_last(from.max(self.low), false).filter(|&start| start < self.high)
    }

    /// Returns the offset behind the last byte before an offset.
    fn last_end(&self, to: i64) -> Option<i64> {
        let mirrored = self.nearest_at_last(MIRROR - to.min(self.high), true)?;
        Some(MIRROR - mirrored).filter(|&end| end > self.low)
    }

    fn nearest_at_last(&self, from: i64, mirrored: bool) -> Option<i64> {
        match self.nearest(from, mirrored, &mut Searcher { steps: u64::MAX }) {
            ControlFlow::Continue(found) => found,
            // This many steps are never used up.
            ControlFlow::Break(_) => None,
        }
    }

    /// Returns the first byte at or after a position, in the file or in its mirror image, whatever the window is.
    fn nearest(&self, from: i64, mirrored: bool, search: &mut Searcher) -> common::Step {
        let Some(tree) = self.placed(mirrored) else { return ControlFlow::Continue(None) };
        match &self.stripe {
            None => ControlFlow::Continue(tree.next(from).map(|(start, _)| start.max(from))),
            Some(stripe) => search.first(tree, place(&stripe.tree, stripe.at, mirrored), from),
        }
    }
}

/// The position in the mirror image of a file that its offset 0 has: a region from `start` to `end` is there from
/// `MIRROR - end` to `MIRROR - start`.
const MIRROR: i64 = i64::MAX;

/// Returns a tree at its place, or at its place in the mirror image of the file.
fn place(tree: &Node, at: i64, mirrored: bool) -> Placed<'_> {
    let view = View::new(tree, mirrored);
    Placed { view, at: if mirrored { MIRROR - at - view.span() } else { at } }
}

/// Returns an offset as a signed number; none is past the greatest.
fn signed(offset: u64) -> i64 {
    offset.min(OFFSET_MAX) as i64
}

fn region(start: i64, end: i64) -> Region {
    Region { offset: start as u64, length: (end - start) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Datatype;

    #[test]
    fn interleaved_vectors_share_no_byte_and_overlapping_ones_do() {
        let at = |offset| Pattern::new(&Datatype::byte().vector(1024, 1, 64).at(offset)).unwrap();
        assert_eq!(at(0).region_count(), 1024);
        assert_eq!(at(0).first_common(&at(1), 0), None);
        assert_eq!(at(0).first_common(&at(64), 0), Some(64));
        let stripe = Stripe { bytes: 4096, servers: 4, server: 3 };
        assert_eq!(at(0).restrict(stripe).unwrap().bounds(), Some(Region::new(3 * 4096, 12 * 4096 + 4033)));
    }
}
