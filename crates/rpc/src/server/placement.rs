//! The choice of the thread that gets a new connection, which stays there as long as it lasts.
//!
//! Taking the threads in turn is not enough: programs open connections in patterns, say a busy one after three that stay idle, and all
//! busy ones would be on one thread. So threads that clearly have more to do than others get none. Of the other ones, those with the
//! fewest connections are equal: then it is the next one's turn while there are few connections, and chance decides when there are more.

use std::time::{Duration, Instant};

/// The least time over which the work of the threads is measured.
const INTERVAL: Duration = Duration::from_millis(2);
/// The turns per second up to which a thread has as little to do as any.
const TURNS_PER_SECOND_FEW: f64 = 20_000.0;
/// The number of connections for each thread from which on chance decides.
const CONNECTIONS_FEW: usize = 2;
/// The ratio to the turns of the least busy thread above which a thread clearly has more to do.
const CLEARLY: f64 = 1.5;

/// The load of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The number of its connections.
    pub(crate) connections: usize,
    /// The number of turns so far in which one of them had something to do.
    pub(crate) turns: u64,
}

/// Chooses threads for connections.
pub(crate) struct Placement {
    measured_at: Instant,
    /// The turns of each thread at that time, and per second before it.
    threads: Vec<(u64, f64)>,
    /// The thread that got the last connection.
    last: usize,
}

impl Placement {
    pub(crate) fn new(threads: usize, now: Instant) -> Placement {
        Placement { measured_at: now, threads: vec![(0, 0.0); threads], last: threads.saturating_sub(1) }
    }

    /// Returns the thread for another connection. `dice` returns a number below the one that it is given.
    pub(crate) fn choose(
        &mut self,
        now: Instant,
        loads: &[Load],
        dice: impl FnOnce(usize) -> usize,
    ) -> usize {
        let since = now.saturating_duration_since(self.measured_at);
        if since >= INTERVAL {
            for ((turns, per_second), load) in self.threads.iter_mut().zip(loads) {
                *per_second = load.turns.saturating_sub(*turns) as f64 / since.as_secs_f64();
                *turns = load.turns;
            }
            self.measured_at = now;
        }
        let least = self.threads.iter().map(|(_, per_second)| *per_second).fold(f64::INFINITY, f64::min);
        let most = (least * CLEARLY).max(TURNS_PER_SECOND_FEW);
        let candidates = self.threads.iter().zip(loads).enumerate();
        let candidates = candidates.filter(|(_, ((_, per_second), _))| *per_second <= most);
        let mut best = Vec::with_capacity(loads.len());
        let mut fewest = usize::MAX;
        for (thread, (_, load)) in candidates {
            if load.connections < fewest {
                fewest = load.connections;
                best.clear();
            }
            if load.connections == fewest {
                best.push(thread);
            }
        }
        let connections: usize = loads.iter().map(|load| load.connections).sum();
        // The one that has least to do is among them.
        self.last = match connections < CONNECTIONS_FEW * loads.len() {
            true => *best.iter().find(|thread| **thread > self.last).unwrap_or(&best[0]),
            false => best[dice(best.len())],
        };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn threads_have_as_many_connections_and_no_pattern_gives_one_all_that_are_busy() {
        let (now, mut dice) = (Instant::now(), StdRng::seed_from_u64(1));
        let mut few = Placement::new(2, now);
        let mut loads = [Load { connections: 0, turns: 0 }; 2];
        let chosen = [(); 4].map(|()| {
            let thread = few.choose(now, &loads, |_| panic!("no chance is needed for few"));
            loads[thread].connections += 1;
            thread
        });
        assert_eq!(chosen, [0, 1, 0, 1]);
        for (threads, period) in [(2, 2), (2, 4), (4, 4), (4, 2)] {
            let mut placement = Placement::new(threads, now);
            let mut loads = vec![Load { connections: 0, turns: 0 }; threads];
            let mut busy = vec![0; threads];
            for number in 0..400 {
                let thread = placement.choose(now, &loads, |count| dice.random_range(0..count));
                loads[thread].connections += 1;
                busy[thread] += usize::from(number % period == period - 1);
            }
            assert!(loads.iter().all(|load| load.connections == 400 / threads), "{loads:?}");
            let even = 400 / period / threads;
            assert!(busy.iter().all(|busy| (even / 3..=3 * even).contains(busy)), "{busy:?}");
        }
    }

    #[test]
    fn a_thread_that_has_clearly_more_to_do_gets_no_more() {
        let mut now = Instant::now();
        let mut placement = Placement::new(2, now);
        let mut loads = [Load { connections: 1, turns: 0 }, Load { connections: 9, turns: 0 }];
        let first = |_: usize| 0;
        assert_eq!(placement.choose(now, &loads, first), 0);
        now += Duration::from_millis(10);
        loads[0].turns += 1000;
        assert_eq!(placement.choose(now, &loads, first), 1);
        // What it did is not forgotten as soon as another one comes.
        assert_eq!(placement.choose(now, &loads, first), 1);
        // Now the other one has nearly as much to do.
        now += Duration::from_millis(10);
        (loads[0].turns, loads[1].turns) = (loads[0].turns + 1000, loads[1].turns + 800);
        assert_eq!(placement.choose(now, &loads, first), 0);
        // Of threads that have little to do, the number of connections counts.
        now += Duration::from_millis(10);
        loads[0].turns += 100;
        assert_eq!(placement.choose(now, &loads, first), 0);
    }
}
