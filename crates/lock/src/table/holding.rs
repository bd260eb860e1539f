//! The index of held bytes, in two ways.

use std::collections::HashMap;

use super::tree::Tree;
use super::{Indexing, Mode, Request, RequestKey, Requests, TableError};
use crate::{Pattern, Search};

/// The bytes that requests hold: an interval tree for each mode.
#[derive(Clone, Debug)]
pub(super) struct Holdings {
    shared: Tree,
    exclusive: Tree,
    /// The regions that each request has in its tree, rising: the linked list of section 5.2. None if trees hold
    /// bounding ranges.
    chains: Option<HashMap<RequestKey, Vec<Region>, foldhash::fast::RandomState>>,
    regions_max: u64,
}

/// The end of a search for a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// No conflict.
    Nowhere,
    /// The first is at this byte.
    Held(u64),
    /// No conflict before this offset; the rest is not searched yet.
    Paused(u64),
}

/// The first conflict found so far, or the offset where a search paused.
#[derive(Clone, Copy, Debug)]
struct Found {
    first: u64,
    paused: bool,
}

/// The steps of the first search for a conflict, and those of all searches of one call.
const STEPS_FIRST: u32 = 1 << 12;
const STEPS_MAX: u32 = 1 << 21;

/// The steps that a look at a range costs which may cover a byte, and those of taking a request out of a line.
const LOOK_STEPS: u32 = 16;
const TURN_STEPS: u32 = 64;

/// The steps that the searches for a conflict may take in all, whether they end with an answer or not: they bound the time
/// for which one call holds up all others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// The steps of one search.
    steps: u32,
    /// The steps left for all.
    left: u32,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self { steps: STEPS_FIRST, left: STEPS_MAX }
    }

    /// Returns whether no steps are left.
    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Begins the searches for another request. Returns whether they have all steps that one request may take.
    pub(super) fn begin(&mut self) -> bool {
        self.steps = STEPS_FIRST;
        self.left == STEPS_MAX
    }

    /// Notes that the first of a line had its turn, for which some ranges were looked at.
    pub(super) fn spend_on_turn(&mut self, looks: u32) {
        self.spend(looks.saturating_mul(LOOK_STEPS).saturating_add(TURN_STEPS));
    }

    /// Gives each search twice the steps. Returns whether there are any left.
    pub(super) fn double(&mut self) -> bool {
        self.steps = self.steps.saturating_mul(2).min(self.left);
        self.left > 0
    }

    /// Notes that a search took some steps. One that takes none costs something too.
    pub(super) fn spend(&mut self, steps: u32) {
        self.left = self.left.saturating_sub(steps.max(1));
    }
}

/// Returns whether a pattern has at most a number of regions, and they can be counted in a number of steps.
fn few(pattern: &Pattern, regions_max: u64) -> bool {
    pattern.count(regions_max).is_some_and(|count| count.regions <= regions_max)
}

/// A range in a tree.
#[derive(Clone, Copy, Debug)]
struct Region {
    low: u64,
    end: u64,
}

impl Holdings {
    pub(super) fn new(indexing: Indexing, regions_max: u64) -> Self {
        let chains = (indexing == Indexing::Unrolled).then(HashMap::default);
        Self { shared: Tree::new(), exclusive: Tree::new(), chains, regions_max }
    }

    pub(super) fn len(&self) -> usize {
        self.shared.len() + self.exclusive.len()
    }

    /// Refuses a pattern that is too long to be unrolled, where that is to be done.
    pub(super) fn admit(&self, pattern: &Pattern) -> Result<(), TableError> {
        if self.chains.is_some() && !few(pattern, self.regions_max) {
            return Err(TableError::TooManyRegions(self.regions_max));
        }
        Ok(())
    }

    /// The first byte, in `from..to`, of a request's pattern that another operation holds in a conflicting mode.
    pub(super) fn conflict(
        &self,
        requests: &Requests,
        asking: &Request,
        from: u64,
        to: u64,
        budget: &mut Budget,
    ) -> Stop {
        let from = from.max(asking.low);
        let end = to.min(asking.end);
        if from >= end {
            return Stop::Nowhere;
        }
        let mut found = Found { first: end, paused: false };
        if asking.mode == Mode::Exclusive {
            self.conflict_in(&self.shared, requests, asking, from, &mut found, budget);
        }
        self.conflict_in(&self.exclusive, requests, asking, from, &mut found, budget);
        match found.first {
            first if first >= end => Stop::Nowhere,
            first if found.paused => Stop::Paused(first),
            first => Stop::Held(first),
        }
    }

    fn conflict_in(
        &self,
        tree: &Tree,
        requests: &Requests,
        asking: &Request,
        from: u64,
        found: &mut Found,
        budget: &mut Budget,
    ) {
        let to = found.first;
        if self.chains.is_none() {
            tree.search(from, to, |_, _, holder| {
                let held = &requests[&holder];
                if held.owner == asking.owner {
                    return None;
                }
                if budget.left == 0 {
                    // Nothing is known from `from` on, and the search ends.
                    *found = Found { first: from, paused: true };
                    return Some(from);
                }
                let steps = budget.steps.min(budget.left);
                let (answer, spent) = asking.pattern.search_common_counted(&held.pattern, from, steps);
                budget.spend(spent);
                let (first, paused) = match answer {
                    Search::Found(byte) => (byte, false),
                    Search::Paused(byte) => (byte, true),
                    Search::Absent => return None,
                };
                if first < held.bound() && first < found.first {
                    *found = Found { first, paused };
                }
                Some(found.first)
            });
            return;
        }
        let mut at = from;
        while at < found.first && tree.len() > 0 {
            let Some(region) = asking.pattern.next_region(at) else { break };
            budget.spend(1);
            tree.search(region.offset, region.end().min(found.first), |low, _, holder| {
                if requests[&holder].owner == asking.owner {
                    return None;
                }
                found.first = found.first.min(low.max(region.offset));
                Some(found.first)
            });
            at = region.end();
        }
    }

    /// Returns whether the operation of a request holds a byte.
    pub(super) fn held_by_operation(&self, requests: &Requests, asking: &Request, byte: u64) -> bool {
        let mut found = false;
        self.stab(self.tree(asking.mode), requests, byte, |holder| {
            found = requests[&holder].owner == asking.owner;
            !found
        });
        found
    }

    /// Calls `visit` with the requests of other operations that hold a byte in a mode that conflicts with a request's,
    /// until it returns false. Returns the number of ranges that were looked at.
    pub(super) fn holders(
        &self,
        requests: &Requests,
        asking: &Request,
        byte: u64,
        mut visit: impl FnMut(RequestKey) -> bool,
    ) -> u32 {
        let (mut on, mut looks) = (true, 0_u32);
        for mode in [Mode::Exclusive, Mode::Shared] {
            if on && asking.mode.conflicts(mode) {
                let more = self.stab(self.tree(mode), requests, byte, |holder| {
                    on = requests[&holder].owner == asking.owner || visit(holder);
                    on
                });
                looks = looks.saturating_add(more);
            }
        }
        looks
    }

    /// Calls `visit` with the requests in a tree that hold a byte, until it returns false. Returns the number of ranges that
    /// were looked at.
    fn stab(
        &self,
        tree: &Tree,
        requests: &Requests,
        byte: u64,
        mut visit: impl FnMut(RequestKey) -> bool,
    ) -> u32 {
        let unrolled = self.chains.is_some();
        let mut looks = 0_u32;
        tree.search(byte, byte + 1, |_, _, holder| {
            looks = looks.saturating_add(1);
            let held = &requests[&holder];
            let holds = unrolled || (byte < held.bound() && held.byte_at(byte) == byte);
            // An empty rest of the range ends the search.
            if holds && !visit(holder) { Some(0) } else { None }
        });
        looks
    }

    /// Notes that a request's `next` was `before` and is now another.
    pub(super) fn change(&mut self, key: RequestKey, request: &Request, before: u64) {
        if self.chains.is_some() {
            if request.next > before {
                self.unroll(key, request, before);
            } else {
                self.roll_up(key, request);
            }
            return;
        }
        let low = request.low;
        let tree = self.tree_mut(request.mode);
        match (before > low, request.next > low) {
            (false, true) => tree.insert(low, request.bound(), key),
            (true, true) => tree.set_end(low, key, request.bound()),
            (true, false) => _ = tree.remove(low, key),
            (false, false) => {}
        }
    }

    /// Adds the regions that a request has won since its `next` was `before`.
    fn unroll(&mut self, key: RequestKey, request: &Request, before: u64) {
        let mut chains = self.chains.take();
        if let Some(chain) = chains.as_mut().map(|chains| chains.entry(key).or_default()) {
            let tree = self.tree_mut(request.mode);
            let bound = request.bound();
            let mut at = before;
            while at < bound
                && let Some(won) = request.pattern.next_region(at)
                && won.offset < bound
            {
                let (low, end) = (won.offset, won.end().min(bound));
                match chain.last_mut().filter(|region| region.end == low) {
                    Some(region) => {
                        region.end = end;
                        tree.set_end(region.low, key, end);
                    }
                    None => {
                        chain.push(Region { low, end });
                        tree.insert(low, end, key);
                    }
                }
                at = end;
            }
        }
        self.chains = chains;
    }

    /// Removes the regions that a request has lost: all from its `next` on.
    fn roll_up(&mut self, key: RequestKey, request: &Request) {
        let mut chains = self.chains.take();
        if let Some(chain) = chains.as_mut().and_then(|chains| chains.get_mut(&key)) {
            let tree = self.tree_mut(request.mode);
            let next = request.next;
            while let Some(region) = chain.pop() {
                if region.low >= next {
                    tree.remove(region.low, key);
                } else {
                    let end = region.end.min(next);
                    tree.set_end(region.low, key, end);
                    chain.push(Region { low: region.low, end });
                    break;
                }
            }
        }
        self.chains = chains;
    }

    /// Drops what is kept for a request that holds nothing.
    pub(super) fn forget(&mut self, key: RequestKey) {
        if let Some(chains) = &mut self.chains {
            chains.remove(&key);
        }
    }

    fn tree(&self, mode: Mode) -> &Tree {
        match mode {
            Mode::Shared => &self.shared,
            Mode::Exclusive => &self.exclusive,
        }
    }

    fn tree_mut(&mut self, mode: Mode) -> &mut Tree {
        match mode {
            Mode::Shared => &mut self.shared,
            Mode::Exclusive => &mut self.exclusive,
        }
    }
}
