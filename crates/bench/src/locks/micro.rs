//! The cost of patterns alone, in this process and without a server.

use std::hint::black_box;
use std::time::{Duration, Instant};

use nacre::lock::Datatype;
use nacre_lock::{Pattern, PatternError, Stripe};

use super::point::{STRIPE_BYTES, Shape};
use crate::BenchError;
use crate::kit::Spread;

/// The time for which something is repeated.
const WINDOW: Duration = Duration::from_millis(20);

/// The number of such windows.
const WINDOWS: usize = 5;

/// Returns how long something takes, in nanoseconds.
fn time_ns<T>(mut act: impl FnMut() -> T) -> Spread {
    black_box(act());
    let window = || {
        let (begun, mut times) = (Instant::now(), 0_u32);
        while begun.elapsed() < WINDOW {
            for _ in 0..16 {
                black_box(act());
            }
            times += 16;
        }
        begun.elapsed().as_nanos() as f64 / f64::from(times)
    };
    Spread::of(std::iter::repeat_with(window).take(WINDOWS))
}

fn impossible(error: PatternError) -> BenchError {
    BenchError::Process(format!("a pattern of the study has no normal form: {error}"))
}

/// Returns the cost of restricting a pattern to one of a number of servers, and of finding its first and its last byte there.
pub(super) fn restriction_ns(servers: u32, regions: u64) -> Result<Spread, BenchError> {
    let shape = Shape::Strided { regions, separation_bytes: 4096 };
    let pattern = Pattern::new(&shape.at(0)).map_err(impossible)?;
    let stripe = Stripe { bytes: STRIPE_BYTES, servers, server: servers / 2 };
    pattern.restrict(stripe).map_err(impossible)?;
    Ok(time_ns(|| pattern.restrict(stripe).map(|own| own.bounds())))
}

/// Returns the cost of finding out whether two patterns of a number of regions, at these distances and with the second one
/// from an offset on, have a byte in common.
pub(super) fn conflict_ns(regions: u64, strides: [i64; 2], offset: u64) -> Result<Spread, BenchError> {
    let pattern = |stride, offset| {
        Pattern::new(&Datatype::byte().hvector(regions, 1, stride).at(offset)).map_err(impossible)
    };
    let (one, other) = (pattern(strides[0], 0)?, pattern(strides[1], offset)?);
    Ok(time_ns(|| one.search_common(&other, 0, SEARCH_STEPS)))
}

/// Returns the cost of one bounded search between an irregular pattern of a number of regions and a regular one.
pub(super) fn irregular_conflict_ns(regions: u64) -> Result<Spread, BenchError> {
    let irregular = Pattern::new(&Shape::Irregular { regions }.at(0)).map_err(impossible)?;
    let regular = Pattern::new(&Datatype::byte().hvector(regions, 1, 64).at(63)).map_err(impossible)?;
    Ok(time_ns(|| irregular.search_common(&regular, 0, SEARCH_STEPS)))
}

/// The steps of one search of a lock server before it asks whether to go on.
const SEARCH_STEPS: u32 = 1 << 12;

/// Returns the memory of a strided pattern of a number of regions, in bytes.
pub(super) fn pattern_bytes(shape: &Shape) -> Result<u64, BenchError> {
    Ok(Pattern::new(&shape.at(0)).map_err(impossible)?.memory_bytes() as u64)
}
