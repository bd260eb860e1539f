//! Latencies, recorded in a histogram of bounded relative error and added up over processes.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// The number of significant digits: a latency is exact to one part in a thousand.
const DIGITS: u8 = 3;

/// The number of steps per octave in raw results.
const STEPS_PER_OCTAVE: f64 = 16.0;

/// A histogram of latencies in nanoseconds.
pub(crate) struct Latencies(Histogram<u64>);

/// The serialised form for other processes and raw results: pairs of a latency in nanoseconds and its count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LatencyCounts(Vec<(u64, u64)>);

/// A summary of latencies for people, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// The median.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The maximum.
    pub max_us: f64,
}

impl Latencies {
    /// Creates an empty histogram.
    pub(crate) fn new() -> Result<Self, BenchError> {
        let histogram = Histogram::new(DIGITS);
        histogram.map(Self).map_err(|error| BenchError::Process(format!("no histogram: {error}")))
    }

    /// Records a latency.
    pub(crate) fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.0 += ns;
    }

    /// Records a latency that many operations had.
    pub(crate) fn record_many(&mut self, latency: Duration, count: u64) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        // The histogram grows to what it is given; only a count without memory for it could fail.
        let _ = self.0.record_n(ns, count);
    }

    /// Adds the counts of another process.
    pub(crate) fn add(&mut self, counts: &LatencyCounts) {
        for (ns, count) in &counts.0 {
            // The histogram grows to what it is given; only a count without memory for it could fail.
            let _ = self.0.record_n(*ns, *count);
        }
    }

    /// Returns the counts for another process.
    pub(crate) fn counts(&self) -> LatencyCounts {
        LatencyCounts(
            self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect(),
        )
    }

    /// Returns the counts for raw results, in steps of a sixteenth of an octave, about four percent.
    pub(crate) fn coarse_counts(&self) -> LatencyCounts {
        let mut coarse: Vec<(u64, u64)> = Vec::new();
        for (ns, count) in self.counts().0 {
            let step = (ns.max(1) as f64).log2() * STEPS_PER_OCTAVE;
            let bound = (step.ceil() / STEPS_PER_OCTAVE).exp2().round() as u64;
            match coarse.last_mut() {
                Some((last, sum)) if *last == bound => *sum += count,
                _ => coarse.push((bound, count)),
            }
        }
        LatencyCounts(coarse)
    }

    /// Returns the summary.
    pub(crate) fn summary(&self) -> LatencySummary {
        let us = |ns: u64| ns as f64 / 1e3;
        LatencySummary {
            p50_us: us(self.0.value_at_quantile(0.5)),
            p99_us: us(self.0.value_at_quantile(0.99)),
            max_us: us(self.0.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_two_processes_add_up() {
        let mut one = Latencies::new().unwrap();
        let mut other = Latencies::new().unwrap();
        (1..=50).for_each(|us| one.record(Duration::from_micros(us)));
        (51..=100).for_each(|us| other.record(Duration::from_micros(us)));
        one.add(&other.counts());
        let summary = one.summary();
        assert!((summary.p50_us - 50.0).abs() < 0.1, "{summary:?}");
        assert!((summary.p99_us - 99.0).abs() < 0.1, "{summary:?}");
        assert!((summary.max_us - 100.0).abs() < 0.2, "{summary:?}");
    }

    #[test]
    fn raw_results_keep_every_operation_in_few_steps() {
        let mut latencies = Latencies::new().unwrap();
        (1..=10_000).for_each(|us| latencies.record(Duration::from_micros(us)));
        let coarse = latencies.coarse_counts().0;
        assert_eq!(coarse.iter().map(|(_, count)| count).sum::<u64>(), 10_000);
        assert!(coarse.len() < 14 * 16 + 1, "{}", coarse.len());
        assert!(coarse.is_sorted_by(|a, b| a.0 < b.0));
    }
}
