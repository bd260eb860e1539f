//! Latencies, counted in buckets that double.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of buckets: the first is up to 1 µs, each further one up to twice as long, the last has no bound.
pub const LATENCY_BUCKETS: usize = 26;

/// Latencies that many threads count.
#[derive(Debug, Default)]
pub struct Latencies {
    buckets: [AtomicU64; LATENCY_BUCKETS],
    sum_ns: AtomicU64,
}

impl Latencies {
    /// Returns the upper bound of a bucket, in seconds.
    pub fn bound(bucket: usize) -> f64 {
        if bucket + 1 >= LATENCY_BUCKETS { f64::INFINITY } else { (1u64 << bucket) as f64 / 1e6 }
    }

    /// Counts one latency.
    pub fn count(&self, time: Duration) {
        self.buckets[bucket_of(time)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Returns the number of latencies in each bucket.
    pub fn buckets(&self) -> [u64; LATENCY_BUCKETS] {
        std::array::from_fn(|bucket| self.buckets[bucket].load(Ordering::Relaxed))
    }

    /// Returns the sum of all latencies, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// Returns the time, in seconds, that a share of the latencies in these buckets does not exceed: between the bounds of the
/// bucket that it falls into by rule of proportion, as Prometheus does. `None` if there are no latencies.
pub fn quantile(buckets: &[u64; LATENCY_BUCKETS], share: f64) -> Option<f64> {
    let total: u64 = buckets.iter().sum();
    let rank = share.clamp(0.0, 1.0) * total as f64;
    let mut below = 0;
    let filled = buckets.iter().enumerate().filter(|(_, count)| **count > 0);
    for (bucket, &count) in filled {
        if (below + count) as f64 >= rank {
            let lower = if bucket == 0 { 0.0 } else { Latencies::bound(bucket - 1) };
            let upper = Latencies::bound(bucket);
            let within = (rank - below as f64) / count as f64;
            // Of what has no upper bound nothing more is known.
            return Some(if upper.is_finite() { lower + (upper - lower) * within } else { lower });
        }
        below += count;
    }
    None
}

/// Latencies that one thread has counted since it last added them up. It holds those of one bucket, which is where what
/// is answered together mostly falls, so that counting costs next to nothing and it takes little memory.
#[derive(Debug, Default)]
pub struct LatencyTally {
    bucket: usize,
    count: u64,
    sum_ns: u64,
}

impl LatencyTally {
    /// Counts `count` equal latencies, some of which may be added to `total` at once.
    pub fn count(&mut self, time: Duration, count: u64, total: &Latencies) {
        if count == 0 {
            return;
        }
        let bucket = bucket_of(time);
        if bucket != self.bucket {
            self.settle(total);
            self.bucket = bucket;
        }
        self.count += count;
        self.sum_ns += time.as_nanos() as u64 * count;
    }

    /// Adds what was counted to `total`, and starts again.
    pub fn settle(&mut self, total: &Latencies) {
        if self.count > 0 {
            total.buckets[self.bucket].fetch_add(std::mem::take(&mut self.count), Ordering::Relaxed);
            total.sum_ns.fetch_add(std::mem::take(&mut self.sum_ns), Ordering::Relaxed);
        }
    }
}

fn bucket_of(time: Duration) -> usize {
    let us = time.as_nanos().div_ceil(1000).max(1) as u64;
    ((u64::BITS - (us - 1).leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_the_bucket_that_bounds_them() {
        for (us, bucket) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1000, 10), (u64::MAX >> 12, 25)]
        {
            let time = Duration::from_micros(us);
            assert_eq!(bucket_of(time), bucket, "{us}");
            assert!(time.as_secs_f64() <= Latencies::bound(bucket));
        }
        assert_eq!(bucket_of(Duration::from_nanos(1001)), 1);
    }

    #[test]
    fn quantiles_lie_within_the_bucket_that_they_fall_into() {
        let mut buckets = [0; LATENCY_BUCKETS];
        assert_eq!(quantile(&buckets, 0.5), None);
        buckets[3] = 100;
        assert!((quantile(&buckets, 0.5).unwrap() - 6e-6).abs() < 1e-12);
        assert!((quantile(&buckets, 1.0).unwrap() - 8e-6).abs() < 1e-12);
        buckets[10] = 1;
        assert!(quantile(&buckets, 0.99).unwrap() <= 8e-6);
        assert!((512e-6..=1024e-6).contains(&quantile(&buckets, 0.999).unwrap()));
        buckets[LATENCY_BUCKETS - 1] = 1000;
        assert_eq!(quantile(&buckets, 0.99), Some(Latencies::bound(LATENCY_BUCKETS - 2)));
    }

    #[test]
    fn a_tally_is_added_up_once() {
        let (total, mut tally) = (Latencies::default(), LatencyTally::default());
        for (us, count) in [(3, 5), (4, 2), (1000, 1), (1, 0), (3, 1)] {
            tally.count(Duration::from_micros(us), count, &total);
        }
        tally.settle(&total);
        tally.settle(&total);
        total.count(Duration::from_micros(3));
        let buckets = total.buckets();
        assert_eq!((buckets[2], buckets[10], buckets.iter().sum::<u64>()), (9, 1, 10));
        assert!((total.sum() - 1029e-6).abs() < 1e-12);
    }
}
