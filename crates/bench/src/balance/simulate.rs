//! Balancing of more ranks than a machine can hold: the shipped policies, with the state machines that ranks run, on loads that do not
//! change; and the processor time of one decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nacre_balance::limit::MOVES_PER_TICK_MAX;
use nacre_balance::{
    Balancer, Change, Kind, Ledger, Metrics, Policy, Resource, ResourceId, SHIPPED, Settings, Shipped, Tick,
    Trace, simulate_until,
};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;

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

/// Load, and where it is at first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Workload {
    pub(super) start: Start,
    pub(super) ranks: usize,
    pub(super) subtrees: usize,
    pub(super) ticks: usize,
}

impl Workload {
    /// Returns the load as a trace.
    fn trace(&self) -> Result<Trace, BenchError> {
        let Workload { start, ranks, subtrees, ticks } = *self;
        let is_busy = |rank: usize| start == Start::Skewed && rank < ranks.div_ceil(4);
        let mut changes = Vec::with_capacity(subtrees);
        for number in 0..subtrees {
            let rank = if start == Start::One { 0 } else { number % ranks };
            let load = if is_busy(rank) { SKEW * load(number) } else { load(number) };
            changes.push(Change { at_s: 0.0, id: id(number)?, load, rank });
        }
        let total: f64 = changes.iter().map(|change| change.load).sum();
        Ok(Trace {
            ranks: Some(ranks),
            capacity: total / ranks as f64 / BUSY,
            seconds: TICK.as_secs_f64() * ticks.saturating_sub(1) as f64,
            changes,
        })
    }
}

/// A simulation that is to be made: a policy, and its load.
type Job = (&'static Shipped, Workload);

/// Events of simulations, with their numbers.
pub(super) enum Event {
    Begun(usize),
    Ended(usize, Result<Simulated, BenchError>),
}

/// Simulations on threads of their own, one for each processor. Dropping this stops them, which is not waited for.
pub(super) struct Simulations {
    events: mpsc::UnboundedReceiver<Event>,
    is_stopped: Arc<AtomicBool>,
}

impl Simulations {
    /// Begins simulations. They are made in their order.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start(jobs: Vec<Job>) -> Result<Self, BenchError> {
        let (sender, events) = mpsc::unbounded_channel();
        let simulations = Self { events, is_stopped: Arc::default() };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
        let (jobs, next, trace) = (Arc::new(jobs), Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
        for _ in 0..threads {
            let (jobs, next, trace, sender) = (jobs.clone(), next.clone(), trace.clone(), sender.clone());
            let is_stopped = simulations.is_stopped.clone();
            let work = move || {
                let stopped = || is_stopped.load(Ordering::Relaxed);
                while !stopped() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((policy, workload)) = jobs.get(number) else { return };
                    // Whoever wanted them may be gone.
                    let _ = sender.send(Event::Begun(number));
                    let simulated = shared_trace(&trace, workload)
                        .and_then(|trace| run(policy, workload, &trace, &stopped));
                    let _ = sender.send(Event::Ended(number, simulated));
                }
            };
            let thread = std::thread::Builder::new().name("nacre-simulation".to_owned()).spawn(work);
            thread.map_err(BenchError::io("start a thread"))?;
        }
        Ok(simulations)
    }

    /// Returns the next event; `None` once no thread is left.
    pub(super) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Simulations {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// A load that was made a trace.
type Traced = (Workload, Arc<Trace>);

/// Returns the trace of a load, which is made once for all policies.
fn shared_trace(latest: &Mutex<Option<Traced>>, workload: &Workload) -> Result<Arc<Trace>, BenchError> {
    let mut latest = latest.lock();
    if let Some((known, trace)) = &*latest
        && known == workload
    {
        return Ok(trace.clone());
    }
    let trace = Arc::new(workload.trace()?);
    *latest = Some((*workload, trace.clone()));
    Ok(trace)
}

/// Simulates a policy that ships.
///
/// # Errors
/// If the simulator takes no such load, or it was stopped.
fn run(
    shipped: &Shipped,
    workload: &Workload,
    trace: &Trace,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Simulated, BenchError> {
    let Workload { start, ranks, subtrees, .. } = *workload;
    let mean = trace.capacity * BUSY;
    let biggest = trace.changes.iter().map(|change| change.load).fold(0.0, f64::max);
    let settings = Settings {
        tick_ms: TICK.as_millis() as u64,
        moves_per_tick: MOVES_PER_TICK_MAX,
        ..Settings::default()
    };
    let begun = Instant::now();
    let simulated = simulate_until(trace, &compiled(shipped)?, &settings, ranks, is_stopped);
    let simulated = simulated.map_err(BenchError::Process)?;
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
pub(super) async fn time_decision(
    shipped: &Shipped,
    ranks: usize,
    ticks: u32,
) -> Result<Decided, BenchError> {
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
        // So that a signal is noticed.
        tokio::task::yield_now().await;
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
            let workload = Workload { start, ranks: 4, subtrees: 400, ticks: 12 };
            let trace = workload.trace().unwrap();
            // A busy machine may stop a policy for its time.
            let once = |_| run(policy, &workload, &trace, &|| false).ok().filter(|one| one.failures == 0);
            let simulated = (0..20).find_map(once).unwrap();
            assert_eq!(simulated.ticks, 12, "{simulated:?}");
            assert!(simulated.imbalances[0] > 1.5, "{simulated:?}");
            assert!(simulated.even_tick.is_some_and(|tick| tick > 0), "{simulated:?}");
            assert!(simulated.moves > 0 && simulated.settled_tick.is_some(), "{simulated:?}");
            assert!(simulated.served > 0.99, "{simulated:?}");
        }
    }

    #[tokio::test]
    async fn simulations_are_made_beside_each_other_and_stop_when_nobody_wants_them() {
        let jobs = |ticks, subtrees| {
            let workload = Workload { start: Start::Skewed, ranks: 4, subtrees, ticks };
            policies().iter().map(|policy| (policy, workload)).collect::<Vec<Job>>()
        };
        let mut simulations = Simulations::start(jobs(3, 100)).unwrap();
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        while let Some(event) = simulations.next().await {
            match event {
                Event::Begun(number) => begun.push(number),
                Event::Ended(number, simulated) => {
                    // A busy machine may stop a policy for its time.
                    if let Ok(simulated) = simulated {
                        assert_eq!(simulated.policy, SHIPPED[number].name);
                    }
                    ended.push(number);
                }
            }
        }
        begun.sort_unstable();
        ended.sort_unstable();
        assert_eq!(begun, (0..SHIPPED.len()).collect::<Vec<_>>());
        assert_eq!(ended, begun);

        // These would take for ever, and let go of their jobs all the same.
        let simulations = Simulations::start(jobs(1_000_000, 10)).unwrap();
        let is_stopped = Arc::downgrade(&simulations.is_stopped);
        drop(simulations);
        tokio::time::timeout(Duration::from_secs(60), async {
            while is_stopped.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("their threads go on");
    }

    #[tokio::test]
    async fn a_decision_takes_time_and_every_policy_makes_one() {
        for policy in policies() {
            let mut decided = None;
            for _ in 0..20 {
                if decided.is_none() {
                    decided = time_decision(policy, 20, 4).await.ok();
                }
            }
            let decided = decided.unwrap();
            assert!(decided.ms.max > 0.0 && decided.ms.median <= decided.ms.max, "{decided:?}");
        }
    }

    #[test]
    fn what_cannot_leave_a_rank_in_time_is_not_simulated() {
        assert!(fits(Start::One, 10_000, 30) && !fits(Start::One, 100_000, 30));
        assert!(fits(Start::Skewed, 1_000_000, 30));
    }
}
