//! The algorithms' source of randomness: a seed, so that a run can be replayed.
//!
//! The generator is implemented here and not taken from a library, because a seed printed by a failing run has to
//! replay the same run after every upgrade, and because a simulation of 143,104 ranks needs eight bytes for each.

/// A source of choices. The algorithms use nothing else, so that an exhaustive search can take a generator's place and
/// try every possibility.
pub trait Choose {
    /// Returns a number below `bound`, which must not be 0.
    fn below(&mut self, bound: u64) -> u64;
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// Creates a generator whose numbers depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates a generator for part `index` of something with the given `seed`: neighbouring parts draw unrelated
    /// numbers.
    pub fn part(seed: u64, index: u64) -> Self {
        Self(mix(seed ^ mix(index.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number in `0.0..1.0`.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Choose for Random {
    fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0, "nothing to choose from");
        // The high half of the product: unbiased to within bound / 2^64.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
