//! Random histories of small worlds: a fake clock, a link with random delays on which messages of different pairs overtake each
//! other without limit, engines of different speeds, and stops at any moment. Everything follows from a seed.

use std::sync::Arc;

use super::world::{Step, Tree, Violation, World};
use crate::proximity::Nodes;
use crate::{Algorithm, BackOff, Choose, Options, Random, Shutdown};
use crate::{shutdown, token};

/// The bounds within which histories vary; the rest follows from the seed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of ranks.
    pub ranks_max: u32,
    /// The maximum number of nodes of the tree.
    pub nodes_max: u32,
    /// The number of histories of which one is stopped before its end; with 0, none is.
    pub stop_one_in: u64,
    /// The rules of termination detection.
    pub token_rule: token::Rule,
    /// The rules of leaving together.
    pub shutdown_rule: shutdown::Rule,
    /// The number of steps after which a history counts as endless.
    pub steps_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ranks_max: 6,
            nodes_max: 40,
            stop_one_in: 3,
            token_rule: token::Rule::SOUND,
            shutdown_rule: shutdown::Rule::SOUND,
            steps_max: 200_000,
        }
    }
}

/// The result of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The shutdown.
    pub ending: Shutdown,
    /// The number of steps.
    pub steps: u64,
    /// The number of nodes that were visited.
    pub visited: u32,
}

/// A history that violated an invariant.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{algorithm} on {ranks} ranks, seed {seed}, step {step}: {fault}")]
pub struct Failure {
    /// The seed that replays it.
    pub seed: u64,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The number of ranks.
    pub ranks: u32,
    /// The step at which the fault was noticed.
    pub step: u64,
    /// The fault.
    pub fault: Violation,
}

/// Runs the history that follows from `seed`.
///
/// # Errors
/// The first fault, with the seed that replays it.
pub fn run(algorithm: Algorithm, seed: u64, limits: &Limits) -> Result<Report, Failure> {
    let mut random = Random::part(seed, algorithm as u64);
    let ranks = 1 + random.below(u64::from(limits.ranks_max)) as u32;
    let nodes = 1 + random.below(u64::from(limits.nodes_max)) as u32;
    let tree = Arc::new(Tree::random(nodes, &mut random));
    let threads = if algorithm.has_threads() { 1 + random.below(4) as usize } else { 1 };
    let numbers: Vec<u64> = (0..ranks).map(|_| random.below(3)).collect();
    let options = Options {
        back_off: BackOff {
            patience: random.below(3) as u32,
            first_ns: random.below(4) * 500,
            bound_ns: random.below(3) * 50_000,
        },
        units_per_message_max: 1 + random.below(20) as usize,
        keeps_one: random.below(2) == 0,
        single_reader: random.below(2) == 0,
        nodes: Arc::new(Nodes::new(&numbers)),
        refined: random.below(4) != 0,
        token_rule: limits.token_rule,
        shutdown_rule: limits.shutdown_rule,
        ..Options::new(algorithm, ranks, random.bits())
    };
    let mut world = World::new(tree, ranks, threads, &options);
    if random.below(4) == 0 {
        world.place_root(random.below(u64::from(ranks)) as u32);
    }
    // Some pairs and some engines are much slower than others, differently in every history.
    let slowness = |random: &mut Random| [64, 16, 4, 1][random.below(4) as usize];
    let link: Vec<u64> = (0..ranks * ranks).map(|_| slowness(&mut random)).collect();
    let engine: Vec<u64> = (0..ranks).map(|_| slowness(&mut random)).collect();
    let clock: Vec<u64> = (0..ranks).map(|_| slowness(&mut random)).collect();
    let mut stop_at = match limits.stop_one_in {
        0 => None,
        one_in => (random.below(one_in) == 0).then(|| random.below(8 * u64::from(nodes))),
    };
    let mut step = 0;
    let fail = |step, fault| Failure { seed, algorithm, ranks, step, fault };
    world.start().map_err(|fault| fail(0, fault))?;
    let mut steps = Vec::new();
    while world.ended().is_none() {
        step += 1;
        if step > limits.steps_max {
            return Err(fail(step, Violation::Endless));
        }
        world.advance(random.below(2_000));
        if stop_at.is_some_and(|at| step > at) {
            // Now and then another rank has the same idea.
            stop_at = (random.below(3) == 0).then(|| step + random.below(10));
            let rank = random.below(u64::from(ranks)) as u32;
            world.take(Step::Stop(rank)).map_err(|fault| fail(step, fault))?;
            continue;
        }
        steps.clear();
        world.possible(world.now_ns(), &mut steps);
        if steps.is_empty() {
            let Some(timeout_ns) = world.next_timeout_ns() else {
                return Err(fail(step, Violation::Stuck));
            };
            world.advance(timeout_ns.saturating_sub(world.now_ns()));
            continue;
        }
        let weight = |step: &Step| match *step {
            Step::Deliver(from, to) => link[(from * ranks + to) as usize],
            Step::Begin(rank) | Step::Finish(rank) => engine[rank as usize],
            Step::Timeout(rank) | Step::Stop(rank) => clock[rank as usize],
        };
        let mut at = random.below(steps.iter().map(weight).sum());
        let chosen = steps.iter().find(|step| {
            let weight = weight(step);
            let hit = at < weight;
            at = at.wrapping_sub(weight);
            hit
        });
        if let Some(chosen) = chosen {
            world.take(*chosen).map_err(|fault| fail(step, fault))?;
        }
    }
    // The loop ends only when all have left.
    let ending = world.ended().unwrap_or(Shutdown::Stopped);
    Ok(Report { ending, steps: step, visited: world.begun() })
}

#[cfg(test)]
mod tests;
