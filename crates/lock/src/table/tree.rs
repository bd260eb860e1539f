//! An interval tree: ranges that may overlap, ordered by their first byte, each subtree with the greatest end in it.
//!
//! It is a treap: a search tree by key that is a heap by random priorities, so it stays balanced whatever the order of
//! insertions. The priorities come from a seed of this process, so that no client can choose keys that unbalance it.
//! Insertion, removal and the change of an end take O(log n) steps; a search visits O(log n) nodes besides those that it
//! reports.
//!
//! Invariants: an in-order walk is sorted by (low, owner); a node's priority is at least that of its children; `max` is
//! the greatest `end` in the subtree.

use std::hash::{BuildHasher, RandomState};

/// The index of no node.
const NONE: u32 = u32::MAX;

/// Ranges with an owner each.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    root: u32,
    /// The first of the unused nodes, which are chained by `left`.
    unused: u32,
    length: usize,
    seed: u64,
}

#[derive(Clone, Debug)]
struct Node {
    low: u64,
    end: u64,
    max: u64,
    owner: u64,
    priority: u32,
    left: u32,
    right: u32,
}

impl Tree {
    pub(super) fn new() -> Self {
        let seed = RandomState::new().hash_one(0x6c6f_636b_u64) | 1;
        Self { nodes: Vec::new(), root: NONE, unused: NONE, length: 0, seed }
    }

    /// The number of ranges.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Inserts the range `low..end` of an owner, who has no other range that begins at `low`.
    pub(super) fn insert(&mut self, low: u64, end: u64, owner: u64) {
        let priority = self.priority();
        let node = Node { low, end, max: end, owner, priority, left: NONE, right: NONE };
        let at = if self.unused == NONE {
            if self.nodes.len() == self.nodes.capacity() {
                // A quarter more, not twice as much: a held lock is to be small.
                self.nodes.reserve_exact(4 + self.nodes.len() / 4);
            }
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        } else {
            let at = self.unused;
            self.unused = self.nodes[at as usize].left;
            self.nodes[at as usize] = node;
            at
        };
        self.root = self.insert_below(self.root, at);
        self.length += 1;
    }

    /// Removes the range of an owner that begins at `low`. Returns whether there was one.
    pub(super) fn remove(&mut self, low: u64, owner: u64) -> bool {
        let mut removed = NONE;
        self.root = self.remove_below(self.root, (low, owner), &mut removed);
        if removed == NONE {
            return false;
        }
        self.nodes[removed as usize].left = self.unused;
        self.unused = removed;
        self.length -= 1;
        if self.length == 0 {
            // The room of a burst is given back when it is over.
            self.nodes = Vec::new();
            self.unused = NONE;
        }
        true
    }

    /// Sets the end of the range of an owner that begins at `low`.
    pub(super) fn set_end(&mut self, low: u64, owner: u64, end: u64) {
        self.set_end_below(self.root, (low, owner), end);
    }

    /// Visits, by rising `low`, the ranges that share a byte with `from..to`. `visit` takes low, end and owner and returns
    /// the `to` from there on, at most the one before, so a search for a minimum narrows itself.
    pub(super) fn search(&self, from: u64, mut to: u64, mut visit: impl FnMut(u64, u64, u64) -> Option<u64>) {
        self.search_below(self.root, from, &mut to, &mut visit);
    }

    fn search_below(
        &self,
        at: u32,
        from: u64,
        to: &mut u64,
        visit: &mut impl FnMut(u64, u64, u64) -> Option<u64>,
    ) {
        if at == NONE {
            return;
        }
        let node = &self.nodes[at as usize];
        if node.max <= from {
            return;
        }
        self.search_below(node.left, from, to, visit);
        if node.low >= *to {
            return;
        }
        if node.end > from
            && let Some(narrowed) = visit(node.low, node.end, node.owner)
        {
            *to = narrowed.min(*to);
        }
        self.search_below(node.right, from, to, visit);
    }

    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        if self.nodes[new as usize].priority > self.nodes[at as usize].priority {
            let (left, right) = self.split(at, self.key(new));
            let node = &mut self.nodes[new as usize];
            (node.left, node.right) = (left, right);
            self.refresh(new);
            return new;
        }
        if self.key(new) < self.key(at) {
            let left = self.insert_below(self.nodes[at as usize].left, new);
            self.nodes[at as usize].left = left;
        } else {
            let right = self.insert_below(self.nodes[at as usize].right, new);
            self.nodes[at as usize].right = right;
        }
        self.refresh(at);
        at
    }

    /// Splits a subtree into the keys below `key` and the others.
    fn split(&mut self, at: u32, key: (u64, u64)) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        if self.key(at) < key {
            let (left, right) = self.split(self.nodes[at as usize].right, key);
            self.nodes[at as usize].right = left;
            self.refresh(at);
            (at, right)
        } else {
            let (left, right) = self.split(self.nodes[at as usize].left, key);
            self.nodes[at as usize].left = right;
            self.refresh(at);
            (left, at)
        }
    }

    /// Joins two subtrees, all keys of the first below those of the second.
    fn join(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE {
            return right;
        }
        if right == NONE {
            return left;
        }
        if self.nodes[left as usize].priority > self.nodes[right as usize].priority {
            let joined = self.join(self.nodes[left as usize].right, right);
            self.nodes[left as usize].right = joined;
            self.refresh(left);
            left
        } else {
            let joined = self.join(left, self.nodes[right as usize].left);
            self.nodes[right as usize].left = joined;
            self.refresh(right);
            right
        }
    }

    fn remove_below(&mut self, at: u32, key: (u64, u64), removed: &mut u32) -> u32 {
        if at == NONE {
            return NONE;
        }
        let (left, right) = (self.nodes[at as usize].left, self.nodes[at as usize].right);
        match key.cmp(&self.key(at)) {
            std::cmp::Ordering::Equal => {
                *removed = at;
                return self.join(left, right);
            }
            std::cmp::Ordering::Less => {
                let left = self.remove_below(left, key, removed);
                self.nodes[at as usize].left = left;
            }
            std::cmp::Ordering::Greater => {
                let right = self.remove_below(right, key, removed);
                self.nodes[at as usize].right = right;
            }
        }
        self.refresh(at);
        at
    }

    fn set_end_below(&mut self, at: u32, key: (u64, u64), end: u64) {
        if at == NONE {
            return;
        }
        match key.cmp(&self.key(at)) {
            std::cmp::Ordering::Equal => self.nodes[at as usize].end = end,
            std::cmp::Ordering::Less => self.set_end_below(self.nodes[at as usize].left, key, end),
            std::cmp::Ordering::Greater => self.set_end_below(self.nodes[at as usize].right, key, end),
        }
        self.refresh(at);
    }

    fn key(&self, at: u32) -> (u64, u64) {
        let node = &self.nodes[at as usize];
        (node.low, node.owner)
    }

    fn refresh(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let mut max = node.end;
        for child in [node.left, node.right] {
            if child != NONE {
                max = max.max(self.nodes[child as usize].max);
            }
        }
        self.nodes[at as usize].max = max;
    }

    /// The next of a sequence of random numbers (xorshift).
    fn priority(&mut self) -> u32 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *seed >> 33
    }

    /// Checks the three invariants and returns (greatest end, height).
    fn check(tree: &Tree, at: u32, keys: &mut Vec<(u64, u64)>) -> (u64, usize) {
        if at == NONE {
            return (0, 0);
        }
        let node = &tree.nodes[at as usize];
        let (left, left_height) = check(tree, node.left, keys);
        keys.push((node.low, node.owner));
        let (right, right_height) = check(tree, node.right, keys);
        for child in [node.left, node.right] {
            assert!(child == NONE || tree.nodes[child as usize].priority <= node.priority);
        }
        assert_eq!(node.max, node.end.max(left).max(right));
        (node.max, 1 + left_height.max(right_height))
    }

    #[test]
    fn answers_as_a_vector_does() {
        let mut seed = 7;
        let mut tree = Tree::new();
        let mut model: Vec<(u64, u64, u64)> = Vec::new();
        for step in 0..4_000_u64 {
            match next(&mut seed) % 4 {
                0 | 1 => {
                    let low = next(&mut seed) % 200;
                    let end = low + 1 + next(&mut seed) % 30;
                    tree.insert(low, end, step);
                    model.push((low, step, end));
                }
                2 if !model.is_empty() => {
                    let (low, owner, _) = model.swap_remove(next(&mut seed) as usize % model.len());
                    assert!(tree.remove(low, owner));
                    assert!(!tree.remove(low, owner));
                }
                3 if !model.is_empty() => {
                    let at = next(&mut seed) as usize % model.len();
                    model[at].2 = model[at].0 + 1 + next(&mut seed) % 30;
                    tree.set_end(model[at].0, model[at].1, model[at].2);
                }
                _ => {}
            }
            let mut keys = Vec::new();
            check(&tree, tree.root, &mut keys);
            model.sort_unstable();
            assert_eq!(keys, model.iter().map(|range| (range.0, range.1)).collect::<Vec<_>>());
            assert_eq!(tree.len(), model.len());
            let from = next(&mut seed) % 220;
            let to = from + 1 + next(&mut seed) % 20;
            let mut found = Vec::new();
            tree.search(from, to, |low, end, owner| {
                found.push((low, owner, end));
                None
            });
            let expected: Vec<_> =
                model.iter().copied().filter(|range| range.0 < to && range.2 > from).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn stays_shallow_when_keys_come_in_order() {
        let mut tree = Tree::new();
        for low in 0..100_000 {
            tree.insert(low, low + 1, 0);
        }
        let mut keys = Vec::new();
        let (_, height) = check(&tree, tree.root, &mut keys);
        assert!(height < 100, "height {height}");
    }
}
