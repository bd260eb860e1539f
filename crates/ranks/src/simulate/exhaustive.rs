//! An exhaustive search of the histories of a small world. States are identified by a 128-bit hash, and each is visited
//! once, breadth first, so that a fault is found by its shortest path; every random choice is a branch. Besides the
//! invariants of [`World`], the search checks that from *every* reachable state an end can be reached: the end is never
//! missed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use super::world::{Step, Tree, Violation, World};
use crate::{Choose, Options};

/// A scripted source of choices, which records the bounds of those it was asked for.
#[derive(Clone, Debug, Default)]
pub struct Script {
    planned: Vec<u64>,
    taken: Vec<(u64, u64)>,
}

impl Choose for Script {
    fn below(&mut self, bound: u64) -> u64 {
        let choice = self.planned.get(self.taken.len()).copied().unwrap_or(0);
        self.taken.push((choice, bound));
        choice
    }
}

impl Script {
    /// Returns the choices that follow those taken, if any are left.
    fn following(&self) -> Option<Vec<u64>> {
        let last = self.taken.iter().rposition(|(choice, bound)| choice + 1 < *bound)?;
        let mut planned: Vec<u64> = self.taken[..=last].iter().map(|(choice, _)| *choice).collect();
        planned[last] += 1;
        Some(planned)
    }
}

/// The parameters of a search.
#[derive(Clone, Debug)]
pub struct Search {
    /// The tree.
    pub tree: Tree,
    /// The number of ranks.
    pub ranks: u32,
    /// The number of threads of each rank.
    pub threads: usize,
    /// The options of the ranks. Waiting times should be 1 ns, and `patience` small, or there are many more states that
    /// do not differ in anything relevant.
    pub options: Options,
    /// The ranks that may be asked to stop, at any moment.
    pub stops: Vec<u32>,
    /// Leaves a branch when the end is announced. By then the token has done its work, and the steps that follow have
    /// many orders.
    pub until_announced: bool,
    /// The maximum number of states.
    pub states_max: usize,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// The number of states that were visited.
    pub states: usize,
    /// The number of states that are ends.
    pub ends: usize,
    /// True if all states were visited.
    pub complete: bool,
    /// The first fault, with the shortest path to it.
    pub fault: Option<(Violation, Vec<Step>)>,
    /// The number of states from which no end can be reached. Known only if the search is complete and without a fault.
    pub hopeless: usize,
}

/// Visits every state.
pub fn search(search: &Search) -> Found {
    let mut known: HashMap<u128, u32> = HashMap::new();
    // For each state: from which one it was first reached, and how.
    let mut origins: Vec<(u32, Step)> = Vec::new();
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut ends: Vec<u32> = Vec::new();
    let mut frontier: Vec<(u32, World<Script>, bool)> = Vec::new();
    let mut found = Found { states: 0, ends: 0, complete: false, fault: None, hopeless: 0 };

    // The ranks look around for the first time with all possible choices.
    let mut planned = vec![Vec::new(); search.ranks as usize];
    'starts: loop {
        let mut world = World::with_random(
            Arc::new(search.tree.clone()),
            search.ranks,
            search.threads,
            &search.options,
            |rank| Script { planned: planned[rank as usize].clone(), taken: Vec::new() },
        );
        if let Err(fault) = world.start() {
            found.fault = Some((fault, Vec::new()));
            return found;
        }
        let scripts: Vec<Script> =
            (0..search.ranks).map(|rank| std::mem::take(world.rank_mut(rank).random_mut())).collect();
        let id = origins.len() as u32;
        if known.insert(hash(&world, false), id).is_none() {
            origins.push((u32::MAX, Step::Timeout(0)));
            frontier.push((id, world, false));
        }
        for rank in 0..planned.len() {
            match scripts[rank].following() {
                Some(next) => {
                    planned[rank] = next;
                    continue 'starts;
                }
                None => planned[rank] = Vec::new(),
            }
        }
        break;
    }

    let mut steps = Vec::new();
    while !frontier.is_empty() {
        let mut next_frontier = Vec::new();
        for (id, world, stopped) in frontier {
            let announced = search.until_announced && world.rank(0).shutdown().is_some();
            if announced || world.ended().is_some() {
                ends.push(id);
                continue;
            }
            steps.clear();
            world.possible(u64::MAX, &mut steps);
            if steps.is_empty() {
                found.fault = Some((Violation::Stuck, way(&origins, id)));
                break;
            }
            if !stopped {
                steps.extend(search.stops.iter().map(|rank| Step::Stop(*rank)));
            }
            for step in &steps {
                let (rank, timed) = match *step {
                    Step::Deliver(_, to) => (to, false),
                    Step::Timeout(rank) => (rank, true),
                    Step::Begin(rank) | Step::Finish(rank) | Step::Stop(rank) => (rank, false),
                };
                let mut planned = Some(Vec::new());
                while let Some(choices) = planned {
                    let mut next = world.clone();
                    *next.rank_mut(rank).random_mut() = Script { planned: choices, taken: Vec::new() };
                    // Time stands still, except that a time that a rank waits for may come at any moment.
                    let result = if timed { next.take_at(u64::MAX, *step) } else { next.take(*step) };
                    if let Err(fault) = result {
                        let mut steps = way(&origins, id);
                        steps.push(*step);
                        found.states = origins.len();
                        found.fault = Some((fault, steps));
                        return found;
                    }
                    planned = std::mem::take(next.rank_mut(rank).random_mut()).following();
                    let stopped = stopped || matches!(step, Step::Stop(_));
                    let new = origins.len() as u32;
                    let target = *known.entry(hash(&next, stopped)).or_insert(new);
                    if target == new {
                        origins.push((id, *step));
                        next_frontier.push((new, next, stopped));
                    }
                    edges.push((id, target));
                }
            }
        }
        if found.fault.is_some() || origins.len() > search.states_max {
            found.states = origins.len();
            return found;
        }
        frontier = next_frontier;
    }
    found.states = origins.len();
    found.ends = ends.len();
    found.complete = true;
    found.hopeless = hopeless(origins.len(), edges, ends);
    found
}

fn hash(world: &World<Script>, stopped: bool) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher.write_u8(u8::from(stopped));
        world.fingerprint(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

fn way(origins: &[(u32, Step)], mut id: u32) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some((origin, step)) = origins.get(id as usize).filter(|(origin, _)| *origin != u32::MAX) {
        steps.push(*step);
        id = *origin;
    }
    steps.reverse();
    steps
}

/// Returns the number of states from which no end can be reached.
fn hopeless(states: usize, mut edges: Vec<(u32, u32)>, ends: Vec<u32>) -> usize {
    edges.sort_unstable_by_key(|(_, to)| *to);
    let mut hopeful = vec![false; states];
    let mut open = ends;
    while let Some(state) = open.pop() {
        if std::mem::replace(&mut hopeful[state as usize], true) {
            continue;
        }
        let first = edges.partition_point(|(_, to)| *to < state);
        open.extend(edges[first..].iter().take_while(|(_, to)| *to == state).map(|(from, _)| *from));
    }
    hopeful.iter().filter(|hopeful| !**hopeful).count()
}

#[cfg(test)]
mod tests;
