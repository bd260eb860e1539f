//! Balancing of more ranks than a machine can hold: the shipped policies, with the state machines that ranks run, on loads that do not
//! change; and the processor time of one decision.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nacre_balance::limit::MOVES_PER_TICK_MAX;
use nacre_balance::{
    Balancer, Change, Kind, Ledger, Metrics, Policy, Resource, ResourceId, SHIPPED, Settings, Shipped, Tick,
    Trace, simulate,
};
use serde::Serialize;

use crate::BenchError;
use crate::kit::machine::cpu_time;
use crate::kit::statistic::Spread;

/// The time between two decisions.
const TICK: Duration = Duration::from_secs(10);
/// The load of the busiest rank, in excess of the mean and the biggest resource, as a part of the mean, up to which load is even.
const UNEVEN: f64 = 0.1;
/// The load of all ranks as a part of what they can serve.
const BUSY: f64 = 0.8;
/// The load of a resource of the busy ranks as a multiple of that of others, where load is skewed at first.
const SKEW: f64 = 4.0;
/// The resources of the rank whose decision is timed: as many as a daemon looks at.
const OWN: usize = 10_000;

/// The first places of the resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Start {
    /// All at rank 0.
    One,
    /// The same number at each rank, those of a quarter of the ranks being four times as busy.
    Skewed,
}

impl Start {
    pub(super) fn name(self) -> &'static str {
        match self {
            Start::One => "one",
            Start::Skewed => "skewed",
        }
    }
}

/// A simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Simulated {
    pub(crate) policy: &'static str,
    pub(crate) start: Start,
    pub(crate) ranks: usize,
    pub(crate) subtrees: usize,
    pub(crate) ticks: usize,
    /// The tick from which on load was even: no rank had more than the mean, a tenth of it and the biggest subtree. `None` if it was
    /// not even at the end.
    pub(crate) even_tick: Option<usize>,
    /// The tick after the last move; `None` if there was one at the last tick.
    pub(crate) settled_tick: Option<usize>,
    /// The load of the busiest rank as a multiple of the mean, at each tick.
    pub(crate) imbalances: Vec<f64>,
    /// The part of the load at the end that ranks can serve.
    pub(crate) served: f64,
    pub(crate) moves: usize,
    /// The moves to where the resource was shortly before, and those that gained nothing: thrashing.
    pub(crate) back_and_forth: usize,
    pub(crate) without_gain: usize,
    pub(crate) failures: usize,
    /// The time that the simulation took.
    pub(crate) took_ms: f64,
}

/// The processor time of one decision of a rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Decided {
    pub(crate) policy: &'static str,
    pub(crate) ranks: usize,
    pub(crate) resources: usize,
    pub(crate) ms: Spread,
}

fn id(number: usize) -> Result<ResourceId, BenchError> {
    ResourceId::new(Kind::Subtree, &format!("/{}/{number}", number % 100)).map_err(BenchError::Process)
}

/// Returns the load of a resource: between a half and one and a half.
fn load(number: usize) -> f64 {
    0.5 + (number.wrapping_mul(7919) % 1000) as f64 / 1000.0
}

fn compiled(shipped: &Shipped) -> Result<Arc<Policy>, BenchError> {
    let policy = Policy::new(shipped.name, 1, shipped.text);
    Ok(Arc::new(policy.map_err(|error| BenchError::Process(error.to_string()))?))
}

/// Returns whether a number of resources can leave rank 0 within a time: a rank makes a limited number of moves at a tick.
pub(super) fn fits(start: Start, subtrees: usize, ticks: usize) -> bool {
    start == Start::Skewed || subtrees <= ticks * MOVES_PER_TICK_MAX as usize / 2
}

/// Simulates a policy that ships.
///
/// # Errors
/// If the simulator takes no such load.
pub(super) fn run(
    shipped: &Shipped,
    start: Start,
    ranks: usize,
    subtrees: usize,
    ticks: usize,
) -> Result<Simulated, BenchError> {
    let is_busy = |rank: usize| start == Start::Skewed && rank < ranks.div_ceil(4);
    let mut changes = Vec::with_capacity(subtrees);
    for number in 0..subtrees {
        let rank = if start == Start::One { 0 } else { number % ranks };
        let load = if is_busy(rank) { SKEW * load(number) } else { load(number) };
        changes.push(Change { at_s: 0.0, id: id(number)?, load, rank });
    }
    let total: f64 = changes.iter().map(|change| change.load).sum();
    let biggest = changes.iter().map(|change| change.load).fold(0.0, f64::max);
    let mean = total / ranks as f64;
    let trace = Trace {
        ranks: Some(ranks),
        capacity: mean / BUSY,
        seconds: TICK.as_secs_f64() * ticks.saturating_sub(1) as f64,
        changes,
    };
    let settings = Settings {
        tick_ms: TICK.as_millis() as u64,
        moves_per_tick: MOVES_PER_TICK_MAX,
        ..Settings::default()
    };
    let begun = Instant::now();
    let simulated = simulate(&trace, &compiled(shipped)?, &settings, ranks).map_err(BenchError::Process)?;
    let took_ms = begun.elapsed().as_secs_f64() * 1e3;
    let imbalances: Vec<f64> = simulated.steps.iter().map(nacre_balance::Step::imbalance).collect();
    let most = 1.0 + UNEVEN + biggest / mean;
    let uneven = imbalances.iter().rposition(|imbalance| *imbalance > most);
    let even_tick = match uneven {
        None => Some(0),
        Some(last) if last + 1 < imbalances.len() => Some(last + 1),
        Some(_) => None,
    };
    Ok(Simulated {
        policy: shipped.name,
        start,
        ranks,
        subtrees,
        ticks: imbalances.len(),
        even_tick,
        settled_tick: simulated.settled_s.map(|settled_s| (settled_s / TICK.as_secs_f64()).round() as usize),
        served: simulated.steps.last().map_or(0.0, |step| step.served),
        moves: simulated.moves,
        back_and_forth: simulated.back_and_forth,
        without_gain: simulated.without_gain,
        failures: simulated.failures,
        imbalances,
        took_ms,
    })
}

/// Measures the processor time of a decision of rank 0, which has much to give away. Every second rank has nothing to do.
///
/// # Errors
/// If the policy fails.
pub(super) fn time_decision(shipped: &Shipped, ranks: usize, ticks: u32) -> Result<Decided, BenchError> {
    let mut resources = Vec::with_capacity(OWN);
    for number in 0..OWN {
        resources.push(Resource { id: id(number)?, load: load(number) });
    }
    let of_rank = |rank: usize| {
        let mut metrics =
            Metrics { processor: 0.9, processor_now: 0.9, memory_bytes: 1e8, ..Metrics::default() };
        match rank {
            0 => metrics.count(&resources),
            rank if rank.is_multiple_of(2) => metrics.count(&resources[..OWN / 2]),
            _ => {}
        }
        metrics.all_load = metrics.own_load;
        metrics.request_rate = metrics.own_load;
        metrics
    };
    let metrics: Vec<Metrics> = (0..ranks).map(of_rank).collect();
    let mut balancer = Balancer::new(0);
    balancer.install(compiled(shipped)?);
    let (settings, mut times_ms) = (Settings::default(), Vec::new());
    for number in 1..=ticks {
        let tick = Tick { now: TICK * number, ranks: &metrics, numbers: &[], resources: &resources };
        // A new one each time, as nothing is moved here, which it would take for moves without gain.
        let mut ledger = Ledger::default();
        let before = cpu_time();
        let decision = balancer.tick(&tick, &settings, &mut ledger);
        times_ms.push((cpu_time() - before).as_secs_f64() * 1e3);
        if let Some(nacre_balance::Note::Failed { error, .. }) =
            decision.notes.iter().find(|note| matches!(note, nacre_balance::Note::Failed { .. }))
        {
            return Err(BenchError::Process(error.to_string()));
        }
    }
    Ok(Decided { policy: shipped.name, ranks, resources: OWN, ms: Spread::of(times_ms) })
}

/// Returns the policies that ship.
pub(super) fn policies() -> &'static [Shipped] {
    &SHIPPED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_gets_even_and_stays_so() {
        let policy = nacre_balance::shipped("adaptable").unwrap();
        for start in [Start::One, Start::Skewed] {
            // A busy machine may stop a policy for its time.
            let once = |_| run(policy, start, 4, 400, 12).ok().filter(|one| one.failures == 0);
            let simulated = (0..20).find_map(once).unwrap();
            assert_eq!(simulated.ticks, 12, "{simulated:?}");
            assert!(simulated.imbalances[0] > 1.5, "{simulated:?}");
            assert!(simulated.even_tick.is_some_and(|tick| tick > 0), "{simulated:?}");
            assert!(simulated.moves > 0 && simulated.settled_tick.is_some(), "{simulated:?}");
            assert!(simulated.served > 0.99, "{simulated:?}");
        }
    }

    #[test]
    fn a_decision_takes_time_and_every_policy_makes_one() {
        for policy in policies() {
            let decided = (0..20).find_map(|_| time_decision(policy, 20, 4).ok()).unwrap();
            assert!(decided.ms.max > 0.0 && decided.ms.median <= decided.ms.max, "{decided:?}");
        }
    }

    #[test]
    fn what_cannot_leave_a_rank_in_time_is_not_simulated() {
        assert!(fits(Start::One, 10_000, 30) && !fits(Start::One, 100_000, 30));
        assert!(fits(Start::Skewed, 1_000_000, 30));
    }
}
