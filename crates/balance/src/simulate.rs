//! Simulation: the decisions of all ranks over the load of a trace, with the policies and the state machines that ranks run.
//!
//! All ranks see the same metrics at a tick, and none sees what others decide at it. So the policy is run for many ranks in one
//! call, to which the metrics are handed once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::decide::{Balancer, Move, Note, Offered, Run, Tick};
use crate::ledger::Ledger;
use crate::limit::RANKS_MAX;
use crate::metric::{HALF_LIFE, Metrics};
use crate::policy::{Policy, Seat, View};
use crate::resource::{Kind, Resource, ResourceId};
use crate::setting::{Mode, Settings};
use crate::trace::{Change, Trace};

/// The work of forwarding a request, as part of the work of answering it.
const FORWARD: f64 = 0.25;
/// The maximum number of ranks times ticks.
const STEPS_MAX: usize = 10_000_000;
/// The number of remarks that are kept at one tick.
const NOTES_MAX: usize = 100;

/// The events of one tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The time, in seconds.
    pub at_s: f64,
    /// The load of each rank before the moves of this tick, in requests per second.
    pub loads: Vec<f64>,
    /// The part of all requests that can be served.
    pub served: f64,
    /// The moves of all ranks.
    pub moves: Vec<Move>,
    /// The remarks of all ranks, each with its rank; not all of them where there are very many.
    pub notes: Vec<(usize, Note)>,
    /// The lines that the policy logged, each with its rank; not all of them where there are very many.
    pub log: Vec<(usize, String)>,
}

impl Step {
    /// Returns the load of the busiest rank, as a multiple of the mean; 1 without any load.
    pub fn imbalance(&self) -> f64 {
        let sum: f64 = self.loads.iter().sum();
        let most = self.loads.iter().copied().fold(0.0, f64::max);
        if sum > 0.0 { most * self.loads.len() as f64 / sum } else { 1.0 }
    }
}

/// The result of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Simulated {
    /// The ticks.
    pub steps: Vec<Step>,
    /// The number of moves.
    pub moves: usize,
    /// The number of moves that led a resource back to where it was shortly before.
    pub back_and_forth: usize,
    /// The number of moves that gained nothing.
    pub without_gain: usize,
    /// The number of failures of the policy.
    pub failures: usize,
    /// The time after the last move, in seconds; `None` if there was one at the last tick.
    pub settled_s: Option<f64>,
}

impl Simulated {
    /// Adds the remarks of a rank at a step.
    fn note(&mut self, step: &mut Step, rank: usize, notes: Vec<Note>) {
        for note in notes {
            match &note {
                Note::BackAndForth { .. } => self.back_and_forth += 1,
                Note::NoGain { .. } => self.without_gain += 1,
                Note::Failed { .. } => self.failures += 1,
                _ => {}
            }
            if step.notes.len() < NOTES_MAX {
                step.notes.push((rank, note));
            }
        }
    }
}

/// The place and the load of resources.
struct World {
    ranks: Vec<Vec<Resource>>,
    /// The resources that there are.
    known: HashSet<ResourceId>,
    /// The ranks that forward requests of resources which others have, and the part of the requests.
    proxies: HashMap<ResourceId, (usize, f64)>,
    request_rates: Vec<f64>,
}

impl World {
    fn new(ranks: usize) -> Self {
        Self {
            ranks: vec![Vec::new(); ranks],
            known: HashSet::new(),
            proxies: HashMap::new(),
            request_rates: vec![0.0; ranks],
        }
    }

    /// Sets the loads of resources, and adds those that are new.
    fn change(&mut self, changes: &[Change]) {
        let mut changed: HashMap<&ResourceId, f64> = HashMap::new();
        for change in changes {
            if !self.known.insert(change.id.clone()) {
                changed.insert(&change.id, change.load);
                continue;
            }
            let rank = change.rank.min(self.ranks.len() - 1);
            self.ranks[rank].push(Resource { id: change.id.clone(), load: change.load });
        }
        if !changed.is_empty() {
            for resource in self.ranks.iter_mut().flatten() {
                if let Some(load) = changed.get(&resource.id) {
                    resource.load = *load;
                }
            }
        }
    }

    /// Returns the metrics of all ranks.
    fn metrics(&mut self, capacity: f64, tick: Duration) -> Vec<Metrics> {
        let mut forwarded = vec![0.0; self.ranks.len()];
        if !self.proxies.is_empty() {
            for resource in self.ranks.iter().flatten() {
                if let Some((contact, part)) = self.proxies.get(&resource.id) {
                    forwarded[*contact] += FORWARD * part * resource.load;
                }
            }
        }
        let decay = (-tick.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
        let ranks = self.ranks.iter().zip(&mut self.request_rates).zip(forwarded);
        ranks
            .map(|((resources, rate), forwarded)| {
                let mut metrics = Metrics::default();
                metrics.count(resources);
                metrics.all_load = metrics.own_load + forwarded;
                *rate = *rate * decay + metrics.all_load.min(capacity) * (1.0 - decay);
                metrics.request_rate = *rate;
                if capacity.is_finite() {
                    metrics.queue_length = (metrics.all_load - capacity).max(0.0);
                    metrics.processor =
                        if capacity > 0.0 { (metrics.all_load / capacity).min(1.0) } else { 1.0 };
                    metrics.processor_now = metrics.processor;
                }
                metrics
            })
            .collect()
    }

    /// Makes the moves that a rank has decided on.
    fn apply(&mut self, moves: &[Move]) {
        let Some(from) = moves.first().map(|made| made.from) else { return };
        let targets: HashMap<&ResourceId, &Move> = moves.iter().map(|made| (&made.id, made)).collect();
        let resources = std::mem::take(&mut self.ranks[from]);
        let (gone, stay): (Vec<Resource>, Vec<Resource>) =
            resources.into_iter().partition(|resource| targets.contains_key(&resource.id));
        self.ranks[from] = stay;
        for resource in gone {
            let Some(made) = targets.get(&resource.id) else { continue };
            let part = match made.mode {
                Mode::Client => 0.0,
                Mode::Proxy => 1.0,
                Mode::ProxyHalf => 0.5,
            };
            if resource.id.kind != Kind::Group && part > 0.0 {
                // Whoever was the first contact stays it.
                let contact = self.proxies.entry(resource.id.clone()).or_insert((from, part)).0;
                if contact == made.to {
                    self.proxies.remove(&resource.id);
                }
            }
            self.ranks[made.to].push(resource);
        }
    }
}

/// Simulates a policy on a trace.
///
/// Every rank decides on the same metrics at a tick, and all moves are made before the next one.
///
/// # Errors
/// A sentence, if there are too many ranks or too many ticks.
pub fn simulate(
    trace: &Trace,
    policy: &Arc<Policy>,
    settings: &Settings,
    ranks: usize,
) -> Result<Simulated, String> {
    simulate_until(trace, policy, settings, ranks, &|| false)
}

/// Simulates a policy on a trace as [`simulate`], until it is stopped: it is asked often whether it is.
///
/// # Errors
/// A sentence, if there are too many ranks or too many ticks, or if it was stopped.
pub fn simulate_until(
    trace: &Trace,
    policy: &Arc<Policy>,
    settings: &Settings,
    ranks: usize,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Simulated, String> {
    if !(1..=RANKS_MAX).contains(&ranks) {
        return Err(format!("{ranks} ranks; there can be 1 to {RANKS_MAX}"));
    }
    settings.check()?;
    let tick = settings.tick();
    let ticks = (trace.seconds / tick.as_secs_f64()).floor() as usize + 1;
    if ticks.saturating_mul(ranks) > STEPS_MAX {
        return Err(format!(
            "{ticks} ticks of {ranks} ranks are more than the limit of {STEPS_MAX}; simulate less time"
        ));
    }
    let mut world = World::new(ranks);
    let mut ledger = Ledger::default();
    let mut balancers: Vec<Balancer> = (0..ranks).map(Balancer::new).collect();
    for balancer in &mut balancers {
        balancer.install(policy.clone());
    }
    let mut simulated = Simulated::default();
    let mut changes = &trace.changes[..];
    let mut last_move = None;
    for number in 0..ticks {
        let now = tick * number as u32;
        let due = changes.partition_point(|change| change.at_s <= now.as_secs_f64());
        world.change(&changes[..due]);
        changes = &changes[due..];
        let metrics = world.metrics(trace.capacity, tick);
        let loads: Vec<f64> = metrics.iter().map(|metrics| metrics.all_load).collect();
        let offered: f64 = loads.iter().sum();
        let served: f64 = loads.iter().map(|load| load.min(trace.capacity)).sum();
        let served = if offered > 0.0 { served / offered } else { 1.0 };
        // Once for all ranks, and before anything is offered: what gained nothing rests from now on.
        let judged = ledger.judge(&loads, now, tick);
        let at_s = now.as_secs_f64();
        let mut step = Step { at_s, loads, served, moves: Vec::new(), notes: Vec::new(), log: Vec::new() };
        simulated.note(&mut step, 0, judged);
        let seen = |rank: usize| Tick { now, ranks: &metrics, numbers: &[], resources: &world.ranks[rank] };
        let runs = run_all(&balancers, settings, &ledger, seen, is_stopped);
        if runs.len() < ranks {
            return Err("the simulation was stopped".to_owned());
        }
        for ((rank, balancer), run) in balancers.iter_mut().enumerate().zip(runs) {
            if is_stopped() {
                return Err("the simulation was stopped".to_owned());
            }
            let decision = balancer.decide(&seen(rank), settings, &mut ledger, run);
            simulated.note(&mut step, rank, decision.notes);
            let lines = decision.log.into_iter().take(NOTES_MAX.saturating_sub(step.log.len()));
            step.log.extend(lines.map(|line| (rank, line)));
            step.moves.extend(decision.moves);
        }
        for moves in step.moves.chunk_by(|a, b| a.from == b.from) {
            world.apply(moves);
        }
        if !step.moves.is_empty() {
            simulated.moves += step.moves.len();
            last_move = Some(number);
        }
        simulated.steps.push(step);
    }
    simulated.settled_s = match last_move {
        None => Some(0.0),
        Some(number) if number + 1 < ticks => Some((tick * (number as u32 + 1)).as_secs_f64()),
        Some(_) => None,
    };
    Ok(simulated)
}

/// Runs the policy for all ranks that have it in force. Returns their runs, and `None` for each other rank; nothing if it is stopped.
fn run_all<'a>(
    balancers: &[Balancer],
    settings: &Settings,
    ledger: &Ledger,
    seen: impl Fn(usize) -> Tick<'a>,
    is_stopped: &dyn Fn() -> bool,
) -> Vec<Option<Run<'a>>> {
    let Some(policy) = balancers.iter().find_map(Balancer::policy) else {
        return balancers.iter().map(|_| None).collect();
    };
    let mut offered: Vec<Option<Offered<'a>>> = Vec::with_capacity(balancers.len());
    for (rank, balancer) in balancers.iter().enumerate() {
        let is_offered = policy.has_home() && balancer.policy().is_some();
        offered.push(is_offered.then(|| balancer.offered(&seen(rank), settings, ledger)));
    }
    let mut seats: Vec<Seat<'_>> = Vec::with_capacity(balancers.len());
    for (whoami, (balancer, offered)) in balancers.iter().zip(&offered).enumerate() {
        if balancer.policy().is_some() {
            let offered = offered.as_ref().map(|offered| &offered.resources[..]);
            seats.push(Seat { whoami, state: balancer.state(), offered });
        }
    }
    let Tick { now, ranks, .. } = seen(0);
    let view = View { whoami: 0, ranks, now, tick: settings.tick(), state: None };
    let evaluated = policy.run_all(&view, &seats, is_stopped);
    let is_whole = evaluated.len() == seats.len();
    drop(seats);
    if !is_whole {
        return Vec::new();
    }
    let (mut evaluated, mut runs) = (evaluated.into_iter(), Vec::with_capacity(balancers.len()));
    for (balancer, offered) in balancers.iter().zip(offered) {
        let run = balancer.policy().and_then(|_| evaluated.next());
        runs.push(run.map(|evaluated| Run { offered, evaluated }));
    }
    runs
}
