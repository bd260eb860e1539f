//! Randomness: for identities, and for pauses after which those who are in each other's way come apart.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::distr::{Distribution, StandardUniform};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// A source of random numbers. Clones share it.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("Random")]
pub struct Random {
    /// `None`: the thread's own, which nobody can foresee.
    seeded: Option<Arc<Mutex<StdRng>>>,
}

impl Random {
    /// Creates a source whose numbers follow from a seed, so that what depends on them can be repeated.
    pub fn seeded(seed: u64) -> Self {
        Self { seeded: Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))) }
    }

    /// Returns a number, or an array of numbers, of which all are equally likely.
    pub fn number<T>(&self) -> T
    where
        StandardUniform: Distribution<T>,
    {
        match &self.seeded {
            Some(seeded) => seeded.lock().random(),
            None => rand::random(),
        }
    }

    /// Returns a part of a time, of which all are equally likely.
    pub fn part(&self, whole: Duration) -> Duration {
        whole.mul_f64(self.number())
    }
}
