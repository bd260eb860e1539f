//! Patterns against sets of bytes that are kept byte by byte.
//!
//! `NACRE_SEED` replays a case; `NACRE_HISTORIES` is the number of random pairs (millions of them in a soak).

mod model;

use model::Bitmap;
use nacre_lock::{Pattern, Region, Search, Stripe};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BYTES_MAX: usize = 4000;

/// The number of random pairs where the environment says nothing else.
const PAIRS: u64 = 20_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs a check with seeds, and names the seed of a failure.
fn with_seeds(check: impl Fn(&mut StdRng)) {
    let (first, count) = match number("NACRE_SEED") {
        Some(seed) => (seed, 1),
        None => (rand::rng().random::<u32>().into(), number("NACRE_HISTORIES").unwrap_or(PAIRS)),
    };
    for seed in first..first + count {
        let told = Told(seed);
        check(&mut StdRng::seed_from_u64(seed));
        std::mem::forget(told);
    }
}

struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        eprintln!("replay with NACRE_SEED={}", self.0);
    }
}

/// Checks all that a pattern tells of itself.
fn check(pattern: &Pattern, bitmap: &Bitmap, random: &mut StdRng, what: &dyn std::fmt::Debug) {
    let regions = bitmap.regions();
    assert_eq!(pattern.regions().collect::<Vec<_>>(), regions, "regions of {what:?}");
    assert_eq!(pattern.region_count(), regions.len() as u64, "count of {what:?}");
    assert_eq!(pattern.byte_count(), regions.iter().map(|region| region.length).sum::<u64>(), "{what:?}");
    assert_eq!(pattern.is_empty(), regions.is_empty());
    let bounds = regions.first().map(|first| {
        let end = regions[regions.len() - 1].end();
        Region::new(first.offset, end - first.offset)
    });
    assert_eq!(pattern.bounds(), bounds, "bounds of {what:?}");
    for _ in 0..4 {
        let at = random.random_range(0..BYTES_MAX as u64);
        let next = regions.iter().find(|region| region.end() > at).map(|region| {
            let start = region.offset.max(at);
            Region::new(start, region.end() - start)
        });
        assert_eq!(pattern.next_region(at), next, "next from {at} of {what:?}");
        let end = regions.iter().rev().find(|region| region.offset < at).map(|region| region.end().min(at));
        assert_eq!(pattern.end_before(at), end, "end before {at} of {what:?}");
    }
}

/// Restricts and cuts a pattern, or does not, and its bitmap alike.
fn derive(
    pattern: Pattern,
    bitmap: Bitmap,
    random: &mut StdRng,
    stripe: Option<Stripe>,
) -> (Pattern, Bitmap) {
    let (mut pattern, mut bitmap) = (pattern, bitmap);
    if random.random_bool(0.3) {
        let at = random.random_range(0..1000);
        (pattern, bitmap) = (pattern.before(at), bitmap.kept(|offset| offset < at));
    }
    if let Some(stripe) = stripe {
        (pattern, bitmap) = (pattern.restrict(stripe).unwrap(), bitmap.restricted(stripe));
    }
    if random.random_bool(0.3) {
        let at = random.random_range(0..300);
        (pattern, bitmap) = (pattern.from(at), bitmap.kept(|offset| offset >= at));
    }
    (pattern, bitmap)
}

#[test]
fn a_pattern_is_the_set_of_bytes_that_its_description_names() {
    with_seeds(|random| {
        let (description, bitmap) = model::description(random, BYTES_MAX);
        let pattern = Pattern::new(&description).unwrap();
        check(&pattern, &bitmap, random, &description);
        let stripe = Some(model::stripe(random));
        let (pattern, bitmap) = derive(pattern, bitmap, random, stripe);
        check(&pattern, &bitmap, random, &(description, pattern.clone()));
    });
}

#[test]
fn the_first_common_byte_is_the_one_that_two_bitmaps_have() {
    with_seeds(|random| {
        let (first, first_bitmap) = model::description(random, BYTES_MAX);
        let (second, second_bitmap) = model::description(random, BYTES_MAX);
        let stripe = model::stripe(random);
        let mine = random.random_bool(0.5).then_some(stripe);
        let others = if random.random_bool(0.9) { mine } else { Some(model::stripe(random)) };
        let (a, a_bitmap) = derive(Pattern::new(&first).unwrap(), first_bitmap, random, mine);
        let (b, b_bitmap) = derive(Pattern::new(&second).unwrap(), second_bitmap, random, others);
        for _ in 0..4 {
            let from = random.random_range(0..200_u64).saturating_sub(100) * 4;
            let expected = a_bitmap.first_common(&b_bitmap, from);
            assert_eq!(a.first_common(&b, from), expected, "from {from}: {a:?} and {b:?}");
            assert_eq!(b.first_common(&a, from), expected, "from {from}: {b:?} and {a:?}");
            let steps = random.random_range(0..10);
            match a.search_common(&b, from, steps) {
                Search::Found(offset) => assert_eq!(Some(offset), expected),
                Search::Absent => assert_eq!(None, expected),
                Search::Paused(at) => {
                    assert!(expected.is_none_or(|expected| expected >= at), "{steps} steps: {a:?} and {b:?}");
                }
            }
        }
    });
}

/// Every set of two nested runs with small numbers, and every pair of such sets at some distance.
#[test]
fn all_small_nests_of_runs_are_exact() {
    let mut nests = Vec::new();
    for (count, block, stride) in triples(&[1, 2, 3, 5], &[1, 2, 3], &[1, 2, 3, 4, 5, 7]) {
        for (outer, copies, distance) in triples(&[1, 2, 4], &[1, 2], &[1, 3, 6, 10, 15, 24]) {
            let inner = nacre_lock::Datatype::byte().hvector(count, block, stride as i64);
            let description = inner.hvector(outer, copies, distance as i64).at(0);
            let bitmap = Bitmap::new(&description, 200).unwrap();
            let pattern = Pattern::new(&description).unwrap();
            assert_eq!(pattern.regions().collect::<Vec<_>>(), bitmap.regions(), "{description:?}");
            nests.push((pattern, bitmap));
        }
    }
    nests.sort_by(|a, b| a.1.0.cmp(&b.1.0));
    nests.dedup_by(|a, b| a.1 == b.1);
    for (a, a_bitmap) in &nests {
        for (b, b_bitmap) in &nests {
            let from = a_bitmap.first_common(b_bitmap, 1);
            assert_eq!(a.first_common(b, 1), from, "{a:?} and {b:?}");
        }
    }
}

fn triples(first: &[u64], second: &[u64], third: &[u64]) -> Vec<(u64, u64, u64)> {
    let mut all = Vec::new();
    for &a in first {
        for &b in second {
            all.extend(third.iter().map(|&c| (a, b, c)));
        }
    }
    all
}
