//! Patterns against sets of bytes that are kept byte by byte.
//!
//! `NACRE_SEED` replays a case; `NACRE_HISTORIES` is the number of random pairs (millions of them in a soak).

mod model;

use model::Bitmap;
use nacre_lock::{Datatype, Pattern, Region, Search, Stripe};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BYTES_MAX: usize = 4000;

/// The number of random pairs where the environment says nothing else.
const PAIRS: u64 = 5_000;

/// Seeds with which one of the tests once failed, which are tried each time.
const FAILED_ONCE: [u64; 1] = [1646796888];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs a check with seeds, and names the seed of a failure.
fn with_seeds(check: impl Fn(&mut StdRng)) {
    let (first, count) = match number("NACRE_SEED") {
        Some(seed) => (seed, 1),
        None => (rand::rng().random::<u32>().into(), number("NACRE_HISTORIES").unwrap_or(PAIRS)),
    };
    for seed in FAILED_ONCE.into_iter().chain(first..first + count) {
        let hint = ReplayHint(seed);
        check(&mut StdRng::seed_from_u64(seed));
        std::mem::forget(hint);
    }
}

struct ReplayHint(u64);

impl Drop for ReplayHint {
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
            for steps in [0, 1, 2, 3, 4, 5, 7, random.random_range(8..40)] {
                match a.search_common(&b, from, steps) {
                    Search::Found(offset) => assert_eq!(Some(offset), expected),
                    Search::Absent => assert_eq!(None, expected),
                    Search::Paused(at) => assert!(
                        at >= from && expected.is_none_or(|expected| expected >= at),
                        "{steps} steps to {at}, expected {expected:?}: {a:?} and {b:?}"
                    ),
                }
            }
        }
    });
}

/// Nests of runs over long distances, where arithmetic decides, against lists of all their regions.
#[test]
fn long_strides_meet_where_their_regions_do() {
    with_seeds(|random| {
        let stripe = random.random_bool(0.7).then(|| Stripe {
            bytes: [random.random_range(1..300), 4096, 65_536][random.random_range(0..3)],
            servers: [random.random_range(1..8), 100, 1000][random.random_range(0..3)],
            server: 0,
        });
        let stripe = stripe.map(|stripe| Stripe { server: random.random_range(0..stripe.servers), ..stripe });
        let (a, a_regions) = nest(random, stripe);
        let (b, b_regions) = nest(random, stripe);
        assert!(a.regions().eq(a_regions.iter().copied()), "{a:?}");
        assert_eq!(a.region_count(), a_regions.len() as u64, "{a:?}");
        assert_eq!(a.byte_count(), a_regions.iter().map(|region| region.length).sum::<u64>(), "{a:?}");
        assert_eq!(a.end_before(u64::MAX), a_regions.last().map(Region::end), "{a:?}");
        let mut from = 0;
        for _ in 0..3 {
            let expected = first_of_lists(&a_regions, &b_regions, from);
            assert_eq!(a.first_common(&b, from), expected, "from {from}: {a:?} and {b:?}");
            from = expected.map_or_else(|| random.random_range(0..1 << 30), |found| found + 1);
        }
    });
}

/// Returns a random nest of runs, and the list of its regions.
fn nest(random: &mut StdRng, stripe: Option<Stripe>) -> (Pattern, Vec<Region>) {
    let scale = [64, 1000, 65_536][random.random_range(0..3)];
    let block = random.random_range(1..40_u64);
    let (mut span, mut regions_left) = (block, 1500);
    let mut datatype = Datatype::Bytes(block);
    let mut offsets = vec![0_u64];
    let mut shift = 0;
    for _ in 0..random.random_range(1..4) {
        let count = random.random_range(1..=regions_left);
        regions_left /= count;
        // Round strides have common divisors, others have none.
        let stride = match random.random_range(0..3) {
            0 => (span / scale + random.random_range(1..4)) * scale,
            1 => span + random.random_range(1..2 * scale),
            _ => random.random_range(1..=span),
        };
        datatype = datatype.hvector(count, 1, stride as i64);
        offsets = (0..count).flat_map(|i| offsets.iter().map(move |at| at + i * stride)).collect();
        span += (count - 1) * stride;
        if random.random_bool(0.2) {
            shift = random.random_range(0..scale);
        }
    }
    let pattern = Pattern::new(&datatype.at(shift)).unwrap();
    offsets.sort_unstable();
    let mut regions: Vec<Region> = Vec::new();
    for at in offsets {
        push(&mut regions, at + shift, at + shift + block);
    }
    let Some(stripe) = stripe else { return (pattern, regions) };
    let mut mine = Vec::new();
    for region in regions {
        let round = stripe.bytes * u64::from(stripe.servers);
        let first = stripe.bytes * u64::from(stripe.server);
        let mut start = region.offset.saturating_sub(first) / round * round + first;
        while start < region.end() {
            let (from, to) = (region.offset.max(start), region.end().min(start + stripe.bytes));
            if from < to {
                push(&mut mine, from, to);
            }
            start += round;
        }
    }
    (pattern.restrict(stripe).unwrap(), mine)
}

/// Adds a region behind others that begin no later.
fn push(regions: &mut Vec<Region>, start: u64, end: u64) {
    match regions.last_mut() {
        Some(last) if start <= last.end() => last.length = last.end().max(end) - last.offset,
        _ => regions.push(Region::new(start, end - start)),
    }
}

fn first_of_lists(a: &[Region], b: &[Region], from: u64) -> Option<u64> {
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        let (start, end) = (a[i].offset.max(b[j].offset).max(from), a[i].end().min(b[j].end()));
        if start < end {
            return Some(start);
        }
        if a[i].end() < b[j].end() { i += 1 } else { j += 1 }
    }
    None
}

/// Every set of two nested runs with small numbers, and every pair of such sets at some distance.
#[test]
fn all_small_nests_of_runs_are_exact() {
    let mut nests = Vec::new();
    for (count, block, stride) in triples(&[1, 2, 3, 5], &[1, 2, 3], &[1, 2, 3, 4, 5, 7]) {
        for (outer, copies, distance) in triples(&[1, 2, 4], &[1, 2], &[1, 3, 6, 10, 15, 24]) {
            let inner = Datatype::byte().hvector(count, block, stride as i64);
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
