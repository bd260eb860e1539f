//! The tree in which a fork with many extents keeps them.
//!
//! Entries are in ascending order in leaves of at most `LEAF` entries, and leaves in inner nodes of at most `CHILDREN`
//! children. A parent keeps the greatest version below each child, so the greatest version of a range is found by looking
//! at the children that lie in it and at the leaves at its edges.
//!
//! Invariants:
//! - entries never overlap and are never empty;
//! - no node is empty, and all leaves are equally deep;
//! - the key of a child is at most the start of its first entry, keys ascend, and all entries of a child end at or before
//!   the key of the next one;
//! - the greatest version stored for a child is exact.

use crate::extent_map::Entry;

/// A node of the tree.
#[derive(Debug)]
enum Node {
    Leaf(Vec<Entry>),
    Inner(Vec<Child>),
}

/// A node with what its parent keeps of it.
#[derive(Debug)]
struct Child {
    key: u64,
    newest: u64,
    node: Node,
}

/// The counts of a tree, kept so that reports need not walk through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    entries: usize,
    /// The room that leaves have for entries.
    slots: usize,
    leaves: usize,
}

impl Counts {
    fn add(&mut self, leaf: &Vec<Entry>) {
        self.entries += leaf.len();
        self.slots += leaf.capacity();
        self.leaves += 1;
    }

    fn sub(&mut self, leaf: &Vec<Entry>) {
        self.entries -= leaf.len();
        self.slots -= leaf.capacity();
        self.leaves -= 1;
    }
}

/// A tree of entries.
#[derive(Debug)]
pub struct Tree<const LEAF: usize, const CHILDREN: usize> {
    root: Node,
    newest: u64,
    counts: Counts,
}

/// A range whose entries are replaced, and what replaces them.
#[derive(Clone, Copy)]
struct Change<'a> {
    start: u64,
    end: u64,
    new: &'a [Entry],
}

impl<const LEAF: usize, const CHILDREN: usize> Tree<LEAF, CHILDREN> {
    /// Creates the tree of a leaf that has become too long. `is_appended` as for [`split`].
    pub fn of(mut leaf: Vec<Entry>, is_appended: bool) -> Self {
        let mut counts = Counts::default();
        let rest = split(&mut leaf, LEAF, is_appended);
        rest.iter().for_each(|leaf| counts.add(leaf));
        counts.add(&leaf);
        let children: Vec<Child> = std::iter::once(leaf).chain(rest).map(Child::of_leaf).collect();
        Self { newest: newest_of(&children), root: Node::Inner(children), counts }
    }

    /// Returns the only leaf, if there is but one; an empty one if there is none.
    pub fn only_leaf(&mut self) -> Option<Vec<Entry>> {
        match &mut self.root {
            Node::Leaf(leaf) => Some(std::mem::take(leaf)),
            Node::Inner(children) if children.is_empty() => Some(Vec::new()),
            Node::Inner(_) => None,
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.counts.entries
    }

    /// Returns the memory that the tree takes, in bytes: leaves with their slack, and an estimate for the nodes above them.
    pub fn memory_bytes(&self) -> usize {
        self.counts.slots * size_of::<Entry>()
            + self.counts.leaves * 3 / 2 * size_of::<Child>()
            + size_of::<Self>()
    }

    /// Returns the leaf with the entries around an offset, and the offset from which on the next leaf has them.
    pub fn leaf_at(&self, offset: u64) -> (&[Entry], Option<u64>) {
        let (mut node, mut next) = (&self.root, None);
        loop {
            match node {
                Node::Leaf(leaf) => return (leaf, next),
                Node::Inner(children) => {
                    let at = child_at(children, offset);
                    next = children.get(at + 1).map(|child| child.key).or(next);
                    node = &children[at].node;
                }
            }
        }
    }

    /// Returns the greatest version of entries that overlap `start..end`; 0 if there are none.
    pub fn newest(&self, start: u64, end: u64) -> u64 {
        self.root.newest(start, end, 0)
    }

    /// Replaces everything in `start..end` with `new`, and shows `release` each piece of an entry that goes.
    pub fn replace(&mut self, start: u64, end: u64, new: &[Entry], release: &mut impl FnMut(&Entry)) {
        let change = Change { start, end, new };
        let siblings =
            self.root.replace::<LEAF, CHILDREN>(&mut self.newest, change, release, &mut self.counts);
        if !siblings.is_empty() {
            let key = self.root.first_key().unwrap_or(start);
            let first = Child {
                key,
                newest: self.newest,
                node: std::mem::replace(&mut self.root, Node::Leaf(Vec::new())),
            };
            let children: Vec<Child> = std::iter::once(first).chain(siblings).collect();
            self.newest = newest_of(&children);
            self.root = Node::Inner(children);
        }
        while let Node::Inner(children) = &mut self.root
            && children.len() == 1
            && let Some(only) = children.pop()
        {
            self.root = only.node;
        }
    }
}

impl Child {
    fn of_leaf(leaf: Vec<Entry>) -> Self {
        // A leaf of a split is never empty.
        let key = leaf.first().map_or(0, Entry::start);
        Self { key, newest: newest_in(&leaf), node: Node::Leaf(leaf) }
    }
}

impl Node {
    fn is_empty(&self) -> bool {
        match self {
            Self::Leaf(leaf) => leaf.is_empty(),
            Self::Inner(children) => children.is_empty(),
        }
    }

    fn first_key(&self) -> Option<u64> {
        match self {
            Self::Leaf(leaf) => leaf.first().map(Entry::start),
            Self::Inner(children) => children.first().map(|child| child.key),
        }
    }

    /// Returns the greatest of `least` and the versions of entries that overlap `start..end`. An end of `u64::MAX` means
    /// that no entry is behind it.
    fn newest(&self, start: u64, end: u64, least: u64) -> u64 {
        let mut newest = least;
        let children = match self {
            Self::Leaf(leaf) => {
                let found = leaf[first_behind(leaf, start)..].iter().take_while(|entry| entry.start() < end);
                return found.map(Entry::version).fold(newest, u64::max);
            }
            Self::Inner(children) => children,
        };
        let first = child_at(children, start);
        if children[first].key >= end {
            return newest;
        }
        let last = first + children_before(&children[first + 1..], end);
        let is_within = |at: usize| {
            let is_before_end = children.get(at + 1).map_or(end == u64::MAX, |next| next.key <= end);
            children[at].key >= start && is_before_end
        };
        // Whatever lies in the range as a whole needs no look inside; then an edge needs one only if it may have more.
        for (at, child) in children.iter().enumerate().take(last + 1).skip(first) {
            if at > first && at < last || is_within(at) {
                newest = newest.max(child.newest);
            }
        }
        for at in [first, last].into_iter().take(1 + usize::from(last > first)) {
            if children[at].newest > newest && !is_within(at) {
                let start = if at == first { start } else { 0 };
                let end = if at == last { end } else { u64::MAX };
                newest = children[at].node.newest(start, end, newest);
            }
        }
        newest
    }

    /// Makes a change below the node, whose greatest version is `newest` before and afterwards. Returns the nodes that
    /// become its next siblings, because it has become too long. It may be empty afterwards.
    fn replace<const LEAF: usize, const CHILDREN: usize>(
        &mut self,
        newest: &mut u64,
        change: Change<'_>,
        release: &mut impl FnMut(&Entry),
        counts: &mut Counts,
    ) -> Vec<Child> {
        let come = newest_in(change.new);
        let children = match self {
            Self::Leaf(leaf) => {
                if let Some(gone) = replace_same(leaf, change.start, change.end, change.new, release) {
                    follow(newest, gone, come, || newest_in(leaf));
                    return Vec::new();
                }
                counts.sub(leaf);
                let replaced = replace_in(leaf, change.start, change.end, change.new, LEAF, release);
                follow(newest, replaced.newest, come, || newest_in(leaf));
                let siblings =
                    if leaf.len() > LEAF { split(leaf, LEAF, replaced.is_appended) } else { Vec::new() };
                if !siblings.is_empty() {
                    *newest = newest_in(leaf);
                }
                siblings.iter().for_each(|leaf| counts.add(leaf));
                counts.add(leaf);
                if leaf.is_empty() {
                    counts.sub(leaf);
                }
                return siblings.into_iter().map(Child::of_leaf).collect();
            }
            Self::Inner(children) => children,
        };
        let at = child_at(children, change.start);
        children[at].key = children[at].key.min(change.start);
        let mut gone = children[at].newest;
        // Children behind the first that begin within the range: all but the last of them lie in it as a whole.
        let behind = at + 1 + children_before(&children[at + 1..], change.end);
        if let Some(last) = (at + 1..behind).next_back() {
            gone = children[at + 1..behind].iter().map(|child| child.newest).fold(gone, u64::max);
            let Child { key, newest, node } = &mut children[last];
            let cut = Change { start: *key, new: &[], ..change };
            node.replace::<LEAF, CHILDREN>(newest, cut, release, counts);
            // What is left of it begins behind the range, which belongs to another child now.
            *key = change.end.max(*key);
            let kept = if node.is_empty() { behind } else { last };
            for mut child in children.drain(at + 1..kept) {
                child.node.release_all(release, counts);
            }
        }
        let Child { key, newest: newest_of_child, node } = &mut children[at];
        let siblings = node.replace::<LEAF, CHILDREN>(newest_of_child, change, release, counts);
        if change.new.is_empty() && *key >= change.start {
            *key = change.end.max(*key);
        }
        if node.is_empty() {
            children.remove(at);
        } else if !siblings.is_empty() {
            if children.len() + siblings.len() > children.capacity() {
                children.reserve_exact((children.len() / 4).max(siblings.len()));
            }
            children.splice(at + 1..at + 1, siblings);
        }
        follow(newest, gone, come, || newest_of(children));
        if children.len() <= CHILDREN {
            return Vec::new();
        }
        // As with leaves: what grows at its end leaves full nodes behind.
        let half = children.len().div_ceil(2).min(CHILDREN);
        let kept = if at + 2 >= children.len() { CHILDREN } else { half };
        let mut rest = children.split_off(kept);
        children.shrink_to_fit();
        *newest = newest_of(children);
        let mut siblings = Vec::new();
        while !rest.is_empty() {
            let behind = rest.split_off(rest.len().min(kept));
            siblings.push(Child { key: rest[0].key, newest: newest_of(&rest), node: Node::Inner(rest) });
            rest = behind;
        }
        siblings
    }

    /// Shows `release` all entries below the node, which goes.
    fn release_all(&mut self, release: &mut impl FnMut(&Entry), counts: &mut Counts) {
        match self {
            // One that was cut and is empty is not counted any more.
            Self::Leaf(leaf) if leaf.is_empty() => {}
            Self::Leaf(leaf) => {
                counts.sub(leaf);
                leaf.iter().for_each(release);
            }
            Self::Inner(children) => {
                children.iter_mut().for_each(|child| child.node.release_all(release, counts));
            }
        }
    }
}

/// Brings a greatest version up to date, after entries up to version `gone` went and such up to version `come` came.
fn follow(newest: &mut u64, gone: u64, come: u64, count: impl FnOnce() -> u64) {
    if come >= *newest {
        *newest = come;
    } else if gone >= *newest {
        *newest = count();
    }
}

fn newest_of(children: &[Child]) -> u64 {
    children.iter().map(|child| child.newest).max().unwrap_or(0)
}

/// Returns the greatest version of some entries; 0 if there are none.
fn newest_in(entries: &[Entry]) -> u64 {
    entries.iter().map(Entry::version).max().unwrap_or(0)
}

/// Returns the number of children whose keys are below `end`: none, nearly always.
fn children_before(children: &[Child], end: u64) -> usize {
    match children.first() {
        Some(first) if first.key < end => children.partition_point(|child| child.key < end),
        _ => 0,
    }
}

/// Returns the index of the last child whose key is at most `offset`; 0 if there is none.
fn child_at(children: &[Child], offset: u64) -> usize {
    let last = children.len() - 1;
    if children[last].key <= offset {
        return last;
    }
    if children[0].key >= offset {
        return 0;
    }
    // The place where it stands if all are as far from each other: most often this is it, or next to it.
    let (first_key, last_key) = (children[0].key, children[last].key);
    let place = (offset - first_key) as f64 / (last_key - first_key) as f64;
    let guess = ((place * last as f64) as usize).min(last - 1);
    let (mut low, mut high) = (0, last);
    if children[guess].key <= offset {
        low = guess;
        let near = (guess + 2).min(last);
        if children[near].key > offset {
            high = near;
        } else {
            low = near;
        }
    } else {
        high = guess;
        let near = guess.saturating_sub(2);
        if children[near].key <= offset {
            low = near;
        } else {
            high = near;
        }
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if children[middle].key <= offset {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Replaces the only entry of a leaf that overlaps `start..end` by the only new one, if both have the same range, and
/// returns the version that went: the most common change by far is a block written again, whole.
pub fn replace_same(
    leaf: &mut [Entry],
    start: u64,
    end: u64,
    new: &[Entry],
    release: &mut impl FnMut(&Entry),
) -> Option<u64> {
    let [entry] = new else { return None };
    let at = first_behind(leaf, start);
    let old = leaf.get_mut(at)?;
    if old.start() != start || old.end() != end || entry.start() != start || entry.end() != end {
        return None;
    }
    release(old);
    let gone = old.version();
    *old = *entry;
    Some(gone)
}

/// The result of a change of a leaf.
pub struct Replaced {
    /// The greatest version of the entries that went, wholly or in part; 0 if there were none.
    pub newest: u64,
    /// True if the new entries are the last ones.
    pub is_appended: bool,
}

/// Replaces everything of a leaf in `start..end` with `new`. The leaf may be empty afterwards, or too long.
pub fn replace_in(
    leaf: &mut Vec<Entry>,
    start: u64,
    end: u64,
    new: &[Entry],
    entries_max: usize,
    release: &mut impl FnMut(&Entry),
) -> Replaced {
    let from = first_behind(leaf, start);
    let to = from + leaf[from..].partition_point(|entry| entry.start() < end);
    let (mut head, mut tail) = (None, None);
    for entry in &leaf[from..to] {
        if entry.start() < start {
            head = Some(entry.clip(0, start));
        }
        if entry.end() > end {
            tail = Some(entry.clip(end, u64::MAX));
        }
        release(&entry.clip(start, end));
    }
    let replaced = Replaced { newest: newest_in(&leaf[from..to]), is_appended: to == leaf.len() };
    let pieces = usize::from(head.is_some()) + new.len() + usize::from(tail.is_some());
    let len = leaf.len() - (to - from) + pieces;
    if len > leaf.capacity() {
        // A compromise between copying and slack: most leaves of most forks have few entries.
        let slack = (len / 8).min(entries_max.saturating_sub(len));
        leaf.reserve_exact(len + slack - leaf.len());
    }
    leaf.splice(from..to, head.into_iter().chain(new.iter().copied()).chain(tail));
    if leaf.capacity() > 2 * leaf.len() + 4 {
        leaf.shrink_to_fit();
    }
    replaced
}

/// Cuts a leaf that is too long, and returns the rest. A stream of appends leaves full leaves behind; other
/// insertions leave halves, with room to grow.
fn split(leaf: &mut Vec<Entry>, entries_max: usize, is_appended: bool) -> Vec<Vec<Entry>> {
    let half = leaf.len().div_ceil(2).min(entries_max);
    let piece = if is_appended { entries_max } else { half };
    let rest = leaf.split_off(piece);
    leaf.shrink_to_fit();
    rest.chunks(piece).map(<[Entry]>::to_vec).collect()
}

/// The number of entries that are looked at one by one from where one is guessed to be.
const GUESS_STEPS: usize = 8;

/// Returns the index of the first entry of a leaf that ends behind `start`.
///
/// Pieces of a fork are spread evenly more often than not. A search from the place where an entry stands then reads three cache lines, one
/// by halves reads six, and nearly all of the time is spent waiting for them. Where the guess is far off, halves are searched after all.
pub fn first_behind(leaf: &[Entry], start: u64) -> usize {
    let (Some(first), Some(last)) = (leaf.first(), leaf.last()) else { return 0 };
    if last.end() <= start {
        return leaf.len();
    }
    if first.end() > start {
        return 0;
    }
    // Both loops end: the first entry ends before `start`, the last one behind it.
    let place = (start - first.start()) as f64 / (last.start() - first.start()) as f64;
    let mut at = ((place * (leaf.len() - 1) as f64) as usize).min(leaf.len() - 1);
    let ends_before = |entry: &Entry| entry.end() <= start;
    let mut steps = 0..GUESS_STEPS;
    while leaf[at].end() > start {
        if steps.next().is_none() {
            return leaf[..at].partition_point(ends_before);
        }
        at -= 1;
    }
    while leaf[at].end() <= start {
        if steps.next().is_none() {
            return at + leaf[at..].partition_point(ends_before);
        }
        at += 1;
    }
    at
}

#[cfg(test)]
impl<const LEAF: usize, const CHILDREN: usize> Tree<LEAF, CHILDREN> {
    /// Checks the invariants.
    pub fn check(&self) {
        let mut counts = Counts::default();
        let (newest, _) = self.root.check(LEAF, CHILDREN, &mut counts);
        assert_eq!((self.newest, self.counts), (newest, counts), "kept and found");
        assert!(matches!(&self.root, Node::Inner(children) if children.len() > 1));
    }
}

#[cfg(test)]
impl Node {
    /// Checks the invariants below the node; returns the greatest version, and the depth.
    fn check(&self, entries_max: usize, children_max: usize, counts: &mut Counts) -> (u64, usize) {
        assert!(!self.is_empty());
        let children = match self {
            Self::Leaf(leaf) => {
                assert!(leaf.len() <= entries_max);
                counts.add(leaf);
                return (newest_in(leaf), 0);
            }
            Self::Inner(children) => children,
        };
        assert!(children.len() <= children_max);
        let mut depths = Vec::new();
        for (at, child) in children.iter().enumerate() {
            assert!(child.node.first_key().is_some_and(|first| child.key <= first));
            let next = children.get(at + 1).map_or(u64::MAX, |next| next.key);
            assert!(child.key < next && child.node.last_end() <= next);
            let (newest, depth) = child.node.check(entries_max, children_max, counts);
            assert_eq!(child.newest, newest);
            depths.push(depth);
        }
        assert!(depths.iter().all(|depth| *depth == depths[0]));
        (newest_of(children), depths[0] + 1)
    }

    fn last_end(&self) -> u64 {
        match self {
            Self::Leaf(leaf) => leaf.last().unwrap().end(),
            Self::Inner(children) => children.last().unwrap().node.last_end(),
        }
    }
}
