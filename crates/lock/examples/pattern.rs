//! The cost of operations on patterns, from 2^10 to 2^27 regions and from 1 to 1,000 servers.
//!
//! ```text
//! cargo run --release -p nacre-lock --example pattern
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use nacre_lock::{Datatype, Description, Pattern, Region, Search, Stripe};

/// The least time for which an operation is repeated in a round.
const ROUND: Duration = Duration::from_micros(500);

/// The number of rounds, of which the quickest counts: in some of them nothing else runs on the processor.
const ROUNDS: usize = 50;

/// Returns the time of an operation in nanoseconds: the least mean of the rounds.
fn nanoseconds<T>(mut operation: impl FnMut() -> T) -> f64 {
    let mut least = f64::MAX;
    for _ in 0..ROUNDS {
        let (begun, mut count) = (Instant::now(), 0_u32);
        while begun.elapsed() < ROUND {
            black_box(operation());
            count += 1;
        }
        least = least.min(begun.elapsed().as_nanos() as f64 / f64::from(count));
    }
    least
}

fn vector(at: u64, count: u64, block: u64, stride: i64) -> Description {
    Datatype::byte().hvector(count, block, stride).at(at)
}

fn pattern(description: &Description) -> Pattern {
    Pattern::new(description).expect("the descriptions here are sound")
}

fn restricted(pattern: &Pattern, servers: u32) -> Pattern {
    let stripe = Stripe { bytes: 64 << 10, servers, server: servers / 2 };
    pattern.restrict(stripe).expect("the stripes here are sound")
}

fn main() {
    println!("regions: time of each operation in ns, stride 64 and stride 4,099");
    for stride in [64, 4099] {
        for exponent in [10, 17, 20, 24, 27] {
            let description = vector(0, 1 << exponent, 1, stride);
            let a = pattern(&description);
            let b = pattern(&vector(1, 1 << exponent, 1, stride));
            let middle = (1 << exponent) / 2 * stride as u64;
            println!(
                "2^{exponent} stride {stride}: normal form {:.0}, next region {:.0}, cut {:.0}, restrict {:.0}, \
                 disjoint {:.0}, memory {} bytes",
                nanoseconds(|| pattern(&description)),
                nanoseconds(|| a.next_region(black_box(middle))),
                nanoseconds(|| a.before(black_box(middle))),
                nanoseconds(|| restricted(&a, 4)),
                nanoseconds(|| a.first_common(black_box(&b), 0)),
                a.memory_bytes(),
            );
        }
    }
    println!("servers: 2^20 regions, stride 4,099, in ns");
    let a = pattern(&vector(0, 1 << 20, 1, 4099));
    let b = pattern(&vector(1, 1 << 20, 1, 4099));
    for servers in [1, 2, 10, 100, 1000] {
        let (mine, others) = (restricted(&a, servers), restricted(&b, servers));
        println!(
            "{servers} servers: restrict {:.0}, bounds {:.0}, disjoint {:.0}, count {:.0}",
            nanoseconds(|| restricted(&a, servers)),
            nanoseconds(|| mine.bounds()),
            nanoseconds(|| mine.first_common(black_box(&others), 0)),
            nanoseconds(|| mine.region_count()),
        );
    }
    println!("conflicts of two patterns of 2^20 regions with unequal strides, in ns");
    let many = 1 << 20;
    for (what, first, second) in [
        ("64 and 48, disjoint by residue", vector(0, many, 1, 64), vector(1, many, 1, 48)),
        ("64 and 63", vector(0, many, 1, 64), vector(40, many, 1, 63)),
        ("4096 and 4099", vector(0, many, 1, 4096), vector(5, many, 1, 4099)),
        ("1000003 and 999983", vector(0, many, 1, 1_000_003), vector(77, many, 1, 999_983)),
        ("rows of 4096 and of 4099", rows(0, 4096), rows(64, 4099)),
        ("rows of 40000 and of 48000", rows(0, 40_000), rows(4, 48_000)),
        ("columns of one array, disjoint", column(0), column(1)),
        ("columns of one array, overlapping", column(0), column(0)),
        ("rows of 65537 and a vector of 4099", rows(0, 65_537), vector(3, many, 1, 4099)),
    ] {
        let (a, b) = (pattern(&first), pattern(&second));
        let search = a.search_common(&b, 0, 100_000);
        println!("{what}: {search:?} {:.0}", nanoseconds(|| a.search_common(black_box(&b), 0, 100_000)));
        for servers in [4, 1000] {
            let (a, b) = (restricted(&a, servers), restricted(&b, servers));
            let search = a.search_common(&b, 0, 100_000);
            let time = nanoseconds(|| a.search_common(black_box(&b), 0, 100_000));
            println!("    at one of {servers} servers: {search:?} {time:.0}");
        }
    }
    println!("irregular lists of 131,072 regions");
    // The regions of the one lie in the first halves of blocks of 64 bytes, those of the other in the second.
    let list = |phase: u64| {
        let mut state = phase;
        let mut block = 0;
        let regions: Vec<Region> = (0..131_072)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                block += 1 + (state >> 62);
                Region::new(block * 64 + phase * 32 + (state >> 40) % 31, 1)
            })
            .collect();
        regions
    };
    let (first, second) = (list(0), list(1));
    let (a, b) = (pattern(&Description::List(first.clone())), pattern(&Description::List(second)));
    println!(
        "normal form {:.0} ns a region, disjoint {:.0} ns a region, memory {} bytes a region",
        nanoseconds(|| Pattern::list(&first)) / 131_072.0,
        nanoseconds(|| a.first_common(black_box(&b), 0)) / 131_072.0,
        a.memory_bytes() / 131_072,
    );
    assert_eq!(a.search_common(&b, 0, u32::MAX), Search::Absent);
}

/// 1,024 rows of 1,024 elements of one byte, 2 apart.
fn rows(at: u64, distance: i64) -> Description {
    Datatype::byte().vector(1024, 1, 2).hvector(1024, 1, distance).at(at)
}

/// A quarter of the columns of an array of 4 dimensions.
fn column(number: u64) -> Description {
    Datatype::Bytes(8).subarray(&[32, 32, 32, 128], &[32, 32, 32, 32], &[0, 0, 0, number * 32]).at(0)
}
