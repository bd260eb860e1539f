//! The searches and their results: the paper's numbers, and what it leaves open, from a seed.

use std::f64::consts::TAU;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The least and the greatest length of a sequence of the NT database in bytes, and the mean.
const SEQUENCE_BYTES: (f64, f64, f64) = (6.0, 43e6, 4401.0);

/// The spread of the logarithm of the lengths: with it, the greatest of some four million lengths, which the database has, is about 43 MB.
const SIGMA: f64 = 2.3;

/// The numbers that a plan follows from.
pub(super) struct Shape {
    pub(super) queries: u64,
    pub(super) fragments: u64,
    /// The number of results of a query.
    pub(super) results: RangeInclusive<u64>,
    /// The number of bytes of all results, which the lengths are scaled to.
    pub(super) bytes: u64,
    /// The time of all searches together.
    pub(super) search: Duration,
    pub(super) seed: u64,
}

/// A result: where it was found, and its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    query: u64,
    fragment: u64,
    offset: u64,
    length: u64,
}

/// All results, in the order of the file, and the times of all searches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) queries: u64,
    pub(super) fragments: u64,
    pub(super) found: Vec<Found>,
    /// The nanoseconds that each fragment takes, query by query.
    pub(super) search_ns: Vec<u64>,
}

/// Returns a random length of a sequence. Lengths are distributed log-normally.
fn sequence_bytes(random: &mut StdRng) -> f64 {
    let (least, most, mean) = SEQUENCE_BYTES;
    let (radius, angle) = (random.random::<f64>(), random.random::<f64>());
    let normal = (-2.0 * (1.0 - radius).ln()).sqrt() * (TAU * angle).cos();
    (mean.ln() - SIGMA * SIGMA / 2.0 + SIGMA * normal).exp().clamp(least, most)
}

impl Plan {
    /// Draws a plan. The results of a query stand in the file in the order of their scores, which has nothing to do with where they were
    /// found.
    pub(super) fn new(shape: &Shape) -> Plan {
        let mut random = StdRng::seed_from_u64(shape.seed);
        let mut drawn = Vec::new();
        for query in 0..shape.queries {
            for _ in 0..random.random_range(shape.results.clone()) {
                let fragment = random.random_range(0..shape.fragments);
                drawn.push((query, fragment, sequence_bytes(&mut random)));
            }
        }
        let all: f64 = drawn.iter().map(|(_, _, bytes)| bytes).sum();
        let (least, most, _) = SEQUENCE_BYTES;
        let (scale, mut offset) = (shape.bytes as f64 / all, 0);
        let found = drawn.into_iter().map(|(query, fragment, bytes)| {
            let length = (bytes * scale).round().clamp(least, most) as u64;
            offset += length;
            Found { query, fragment, offset: offset - length, length }
        });
        let found = found.collect();
        let searches = shape.queries * shape.fragments;
        let mean = shape.search.as_nanos() as f64 / searches as f64;
        let search_ns = (0..searches).map(|_| (mean * random.random_range(0.5..1.5_f64)) as u64).collect();
        Plan { queries: shape.queries, fragments: shape.fragments, found, search_ns }
    }

    /// Returns the number of bytes of all results.
    pub(super) fn bytes(&self) -> u64 {
        self.found.last().map_or(0, |last| last.offset + last.length)
    }

    /// Returns it as `programs/s3asim.c` reads it.
    pub(super) fn encode(&self) -> Vec<u8> {
        let head = [self.queries, self.fragments, self.found.len() as u64];
        let found = self.found.iter().flat_map(|found| {
            let Found { query, fragment, offset, length } = *found;
            [query, fragment, offset, length]
        });
        let words = head.into_iter().chain(found).chain(self.search_ns.iter().copied());
        words.flat_map(u64::to_ne_bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(seed: u64) -> Shape {
        let (bytes, search) = (208_000_000, Duration::from_secs(30));
        Shape { queries: 20, fragments: 128, results: 1000..=2000, bytes, search, seed }
    }

    #[test]
    fn a_plan_has_the_papers_numbers_and_follows_from_its_seed() {
        let plan = Plan::new(&shape(1));
        assert_eq!(plan, Plan::new(&shape(1)));
        assert_ne!(plan, Plan::new(&shape(2)));
        // The least length of a result, and rounding, add some.
        assert!((205_000_000..215_000_000).contains(&plan.bytes()), "{}", plan.bytes());
        for query in 0..20 {
            let results = plan.found.iter().filter(|found| found.query == query).count();
            assert!((1000..=2000).contains(&results), "{results} of query {query}");
        }
        let mut end = 0;
        for found in &plan.found {
            assert!(found.offset == end && found.fragment < 128, "{found:?}");
            assert!((6..=43_000_000).contains(&found.length), "{found:?}");
            end += found.length;
        }
        assert!(plan.found.is_sorted_by_key(|found| found.query));
        let search = plan.search_ns.iter().sum::<u64>() as f64 / 1e9;
        assert!((28.0..32.0).contains(&search), "{search}");
        let words = 3 + 4 * plan.found.len() + 20 * 128;
        assert_eq!(plan.encode().len(), 8 * words);
    }
}
