//! Counts of the conditional writes of each region: attempts, failures, and runs of failures (the paper's figure 5).

use std::collections::HashMap;

use bytes::Bytes;

use crate::pace::RegionHash;
use crate::{ByteRange, Fork, ObjectId};

/// Counts for one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionStatistics {
    /// The object.
    pub object: ObjectId,
    /// The fork.
    pub fork: Fork,
    /// The range.
    pub range: ByteRange,
    /// Conditional writes.
    pub attempts: u64,
    /// Conditional writes that were refused because of the region's version.
    pub failures: u64,
    /// The longest run of refusals without a success between them.
    pub longest_run: u64,
    run: u64,
}

/// Counts for many regions.
#[derive(Debug)]
pub struct Statistics {
    regions: HashMap<RegionHash, RegionStatistics>,
    regions_max: usize,
    uncounted: u64,
}

impl Statistics {
    /// Creates counts for at most `regions_max` regions; attempts on further ones are counted together.
    pub fn new(regions_max: usize) -> Self {
        Self { regions: HashMap::new(), regions_max, uncounted: 0 }
    }

    /// Counts an attempt.
    pub fn attempt(
        &mut self,
        hash: RegionHash,
        object: &ObjectId,
        fork: &Fork,
        range: ByteRange,
        succeeded: bool,
    ) {
        if !self.regions.contains_key(&hash) && self.regions.len() >= self.regions_max {
            self.uncounted += 1;
            return;
        }
        let region = self.regions.entry(hash).or_insert_with(|| RegionStatistics {
            // Names may be slices of large buffers, which must not live on for their sake. They were checked before.
            object: ObjectId::new(Bytes::copy_from_slice(object.as_bytes()))
                .unwrap_or_else(|_| object.clone()),
            fork: Fork::new(Bytes::copy_from_slice(fork.as_bytes())).unwrap_or_else(|_| fork.clone()),
            range,
            attempts: 0,
            failures: 0,
            longest_run: 0,
            run: 0,
        });
        region.attempts += 1;
        if succeeded {
            region.run = 0;
        } else {
            region.failures += 1;
            region.run += 1;
            region.longest_run = region.longest_run.max(region.run);
        }
    }

    /// Returns the regions with the longest runs of failures, at most `limit`, the longest first.
    pub fn top(&self, limit: usize) -> Vec<RegionStatistics> {
        let mut regions: Vec<&RegionStatistics> = self.regions.values().collect();
        regions.sort_unstable_by(|a, b| {
            let key = |region: &RegionStatistics| (region.longest_run, region.failures, region.attempts);
            key(b).cmp(&key(a)).then_with(|| {
                (&a.object, a.fork.as_bytes(), a.range).cmp(&(&b.object, b.fork.as_bytes(), b.range))
            })
        });
        regions.into_iter().take(limit).cloned().collect()
    }

    /// Returns the number of attempts on regions for which there was no room.
    pub fn uncounted(&self) -> u64 {
        self.uncounted
    }

    /// Forgets all counts.
    pub fn clear(&mut self) {
        self.regions.clear();
        self.uncounted = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_failures_are_counted() {
        let mut statistics = Statistics::new(2);
        let objects: Vec<ObjectId> = ["a", "b", "c"].iter().map(|id| id.parse().unwrap()).collect();
        let range = ByteRange::new(0, 4096);
        for succeeded in [false, false, true, false, false, false, true, true] {
            statistics.attempt(1, &objects[0], &Fork::DEFAULT, range, succeeded);
        }
        statistics.attempt(2, &objects[1], &Fork::DEFAULT, range, true);
        statistics.attempt(3, &objects[2], &Fork::DEFAULT, range, true);
        let top = statistics.top(10);
        assert_eq!(top.len(), 2);
        assert_eq!((top[0].attempts, top[0].failures, top[0].longest_run), (8, 5, 3));
        assert_eq!((top[1].attempts, top[1].failures, top[1].longest_run), (1, 0, 0));
        assert_eq!(statistics.uncounted(), 1);
        assert_eq!(statistics.top(1).len(), 1);
    }
}
