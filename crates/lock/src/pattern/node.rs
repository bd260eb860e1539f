//! The tree of a normal form, and what can be asked of it at a point.
//!
//! Invariants, on which everything else rests:
//!
//! - A tree has at least one byte; it begins with a byte at 0 and ends with its last byte (its *span*).
//! - In a run the span of the part is less than the stride, and there are at least two copies. In a sequence every
//!   item begins behind the end of the one before, with a gap.
//!
//! So regions never touch, whoever's they are: each region of a leaf is a maximal one, copies and items lie in the
//! order of the file, and a point is found by one division or one binary search at each level.

use std::collections::HashSet;
use std::sync::Arc;

use super::arithmetic::gcd;

/// A tree.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// A run of this many bytes.
    Block(u64),
    /// Copies of a part at equal distances.
    Run(Arc<Run>),
    /// Parts one after the other.
    Sequence(Arc<Sequence>),
}

#[derive(Debug)]
pub(super) struct Run {
    pub count: u64,
    /// The distance of the starts of two copies in bytes.
    pub stride: u64,
    pub of: Node,
    facts: Facts,
    memory_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub items: Box<[Item]>,
    facts: Facts,
    memory_bytes: usize,
}

/// A part of a sequence.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The distance from the start of the sequence in bytes.
    pub at: u64,
    pub node: Node,
}

/// Facts about a tree that are known without descending into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The distance from the first byte to behind the last.
    pub span: u64,
    pub bytes: u64,
    pub regions: u64,
    /// A number that divides the distance of any two regions' starts, and that of any two regions' ends; 0 where
    /// there is one region.
    pub step: u64,
    /// The length of the first region.
    pub first: u64,
    /// The length of the longest region.
    pub longest: u64,
    /// The greatest distance from the end of a region to the start of the next.
    pub gap: u64,
}

/// Pairs of trees that were found equal, by their addresses.
type Equal = HashSet<(usize, usize)>;

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.equals(other, &mut Equal::new())
    }
}

impl Eq for Node {}

impl Node {
    /// Returns the address of what is shared with other trees; 0 if nothing is.
    fn address(&self) -> usize {
        match self {
            Node::Block(_) => 0,
            Node::Run(run) => Arc::as_ptr(run).addr(),
            Node::Sequence(sequence) => Arc::as_ptr(sequence).addr(),
        }
    }

    /// Compares two trees. Parts that occur several times are compared once: with a few small parts at each level there are
    /// exponentially many leaves.
    fn equals(&self, other: &Node, equal: &mut Equal) -> bool {
        let pair = (self.address(), other.address());
        match (self, other) {
            (Node::Block(bytes), Node::Block(others)) => return bytes == others,
            _ if pair.0 == pair.1 || equal.contains(&pair) => return true,
            (Node::Run(run), Node::Run(others)) => {
                let Run { count, stride, of, facts, memory_bytes: _ } = &**run;
                let is_equal = *facts == others.facts && *count == others.count && *stride == others.stride;
                if !is_equal || !of.equals(&others.of, equal) {
                    return false;
                }
            }
            (Node::Sequence(sequence), Node::Sequence(others)) => {
                let Sequence { items, facts, memory_bytes: _ } = &**sequence;
                if *facts != others.facts || items.len() != others.items.len() {
                    return false;
                }
                let mut pairs = items.iter().zip(&others.items);
                if !pairs.all(|(item, other)| item.at == other.at && item.node.equals(&other.node, equal)) {
                    return false;
                }
            }
            _ => return false,
        }
        equal.insert(pair);
        true
    }

    /// Creates a run of at least two copies; the stride is greater than the part's span.
    pub fn run(count: u64, stride: u64, of: Node) -> Node {
        let part = of.facts();
        debug_assert!(count >= 2 && stride > part.span);
        let facts = Facts {
            span: (count - 1) * stride + part.span,
            bytes: count * part.bytes,
            regions: count * part.regions,
            step: gcd(stride, part.step),
            gap: part.gap.max(stride - part.span),
            ..part
        };
        // Copies of a run that follow each other in its own rhythm are one longer run.
        if let Node::Run(inner) = &of
            && inner.count.checked_mul(inner.stride) == Some(stride)
        {
            let (count, stride, of) = (count * inner.count, inner.stride, inner.of.clone());
            return Node::new_run(count, stride, of, Facts { step: part.step, ..facts });
        }
        Node::new_run(count, stride, of, facts)
    }

    fn new_run(count: u64, stride: u64, of: Node, facts: Facts) -> Node {
        let memory_bytes = (COUNTERS_BYTES + size_of::<Run>()).saturating_add(of.memory_bytes());
        Node::Run(Arc::new(Run { count, stride, of, facts, memory_bytes }))
    }

    /// Creates a sequence of at least two items, which are in order, with gaps; the first is at 0.
    pub fn sequence(items: Vec<Item>) -> Node {
        let first = items[0].node.facts().first;
        let mut facts = Facts { span: 0, bytes: 0, regions: 0, step: 0, first, longest: 0, gap: 0 };
        let mut memory_bytes = COUNTERS_BYTES + size_of::<Sequence>() + items.len() * size_of::<Item>();
        let mut before = 0;
        for item in &items {
            let address = item.node.address();
            if address != before {
                memory_bytes = memory_bytes.saturating_add(item.node.memory_bytes());
            }
            before = address;
            let part = item.node.facts();
            debug_assert!(item.at > facts.span || item.at == 0 && facts.span == 0);
            facts.gap = facts.gap.max(part.gap).max(item.at - facts.span);
            facts.span = item.at + part.span;
            facts.bytes += part.bytes;
            facts.regions += part.regions;
            facts.longest = facts.longest.max(part.longest);
            if facts.step != 1 {
                facts.step = gcd(facts.step, gcd(item.at, gcd(part.step, part.first.abs_diff(first))));
            }
        }
        Node::Sequence(Arc::new(Sequence { items: items.into_boxed_slice(), facts, memory_bytes }))
    }

    pub fn facts(&self) -> Facts {
        match self {
            &Node::Block(bytes) => {
                Facts { span: bytes, bytes, regions: 1, step: 0, first: bytes, longest: bytes, gap: 0 }
            }
            Node::Run(run) => run.facts,
            Node::Sequence(sequence) => sequence.facts,
        }
    }

    pub fn span(&self) -> u64 {
        match self {
            &Node::Block(bytes) => bytes,
            Node::Run(run) => run.facts.span,
            Node::Sequence(sequence) => sequence.facts.span,
        }
    }

    /// Returns the number of regions that begin before a point, and the number of bytes before it.
    pub fn before(&self, point: u64) -> (u64, u64) {
        let facts = self.facts();
        if point == 0 {
            return (0, 0);
        }
        if point >= facts.span {
            return (facts.regions, facts.bytes);
        }
        match self {
            Node::Block(_) => (1, point),
            Node::Run(run) => {
                let copy = point / run.stride;
                let part = run.of.facts();
                let (regions, bytes) = run.of.before(point - copy * run.stride);
                (copy * part.regions + regions, copy * part.bytes + bytes)
            }
            Node::Sequence(sequence) => {
                let mut sum = (0, 0);
                for item in sequence.items.iter().take_while(|item| item.at < point) {
                    let (regions, bytes) = item.node.before(point - item.at);
                    sum = (sum.0 + regions, sum.1 + bytes);
                }
                sum
            }
        }
    }

    /// Returns the memory that the tree takes outside of this value, in bytes, without descending into it.
    ///
    /// A part that occurs several times in a row in a sequence is counted once, any other as often as it occurs.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Node::Block(_) => 0,
            Node::Run(run) => run.memory_bytes,
            Node::Sequence(sequence) => sequence.memory_bytes,
        }
    }
}

/// The size of the two counters that stand in front of what an `Arc` shares.
const COUNTERS_BYTES: usize = 2 * size_of::<usize>();

/// A tree as it is, or as its mirror image, in which the last byte is the first.
///
/// With it, whatever searches forwards searches backwards too.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub node: &'a Node,
    pub mirrored: bool,
}

/// The uppermost level of a view.
pub(super) enum Level<'a> {
    Block,
    Run { count: i64, stride: i64, of: View<'a> },
    Sequence { items: usize },
}

impl<'a> View<'a> {
    pub fn new(node: &'a Node, mirrored: bool) -> View<'a> {
        View { node, mirrored }
    }

    /// Returns the span. As all spans are below 2^63, positions are signed.
    pub fn span(self) -> i64 {
        self.node.span() as i64
    }

    pub fn level(self) -> Level<'a> {
        match self.node {
            Node::Block(_) => Level::Block,
            Node::Run(run) => Level::Run {
                count: run.count as i64,
                stride: run.stride as i64,
                of: View::new(&run.of, self.mirrored),
            },
            Node::Sequence(sequence) => Level::Sequence { items: sequence.items.len() },
        }
    }

    /// Returns an item of a sequence, and its distance from the start.
    pub fn item(self, at: usize) -> (i64, View<'a>) {
        let Node::Sequence(sequence) = self.node else {
            return (0, self);
        };
        if self.mirrored {
            let item = &sequence.items[sequence.items.len() - 1 - at];
            ((sequence.facts.span - item.at - item.node.span()) as i64, View::new(&item.node, true))
        } else {
            let item = &sequence.items[at];
            (item.at as i64, View::new(&item.node, false))
        }
    }

    /// Returns the number of the first of a sequence's items that ends behind a point.
    pub fn item_after(self, items: usize, point: i64) -> usize {
        self.item_between(0, items, point)
    }

    /// Returns the same, for a point behind which no item before number `from` ends. It is quick where that item, or
    /// one soon after it, is the one.
    pub fn item_soon_after(self, from: usize, items: usize, point: i64) -> usize {
        let (mut low, mut reach) = (from, 1);
        loop {
            let high = low + reach;
            if high > items {
                return self.item_between(low, items, point);
            }
            let (at, item) = self.item(high - 1);
            if at + item.span() > point {
                return self.item_between(low, high, point);
            }
            (low, reach) = (high, 2 * reach);
        }
    }

    fn item_between(self, mut low: usize, mut high: usize, point: i64) -> usize {
        while low < high {
            let middle = low + (high - low) / 2;
            let (at, item) = self.item(middle);
            if at + item.span() > point {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// Returns start and end of the first region that ends behind a point.
    pub fn next(self, point: i64) -> Option<(i64, i64)> {
        let point = point.max(0);
        if point >= self.span() {
            return None;
        }
        match self.level() {
            Level::Block => Some((0, self.span())),
            Level::Run { stride, of, .. } => {
                let mut copy = point / stride;
                if point - copy * stride >= of.span() {
                    copy += 1;
                }
                let start = copy * stride;
                let (from, to) = of.next(point - start)?;
                Some((start + from, start + to))
            }
            Level::Sequence { items } => {
                let (start, item) = self.item(self.item_after(items, point));
                let (from, to) = item.next(point - start)?;
                Some((start + from, start + to))
            }
        }
    }
}
