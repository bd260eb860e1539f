//! The units that are given to a rank that asks, and the ranks that an idle rank asks, in DRQS and DEQS (section IV-B).
//!
//! The paper calls splitting a plug-and-play module, which is [`Split`] here. DRQS has a random split, because without
//! knowledge of what is below a directory equal halves are no better guess than others, and a rank that always keeps
//! half may keep all the deep ones (section IV-A); DEQS, for comparison, gives half.

use std::fmt::Debug;

use super::random::Choose;

/// A rule for the number of units given to a rank that asks.
pub trait Split: Debug + Send + Sync {
    /// Returns the number of `available` units to give: between 1 and `available`, which is at least 1.
    fn split(&self, available: u64, choose: &mut dyn Choose) -> u64;
}

/// A random part of the queue, each size equally likely: DRQS.
#[derive(Clone, Copy, Debug)]
pub struct RandomSplit;

impl Split for RandomSplit {
    fn split(&self, available: u64, choose: &mut dyn Choose) -> u64 {
        if available == 1 { 1 } else { 1 + choose.below(available) }
    }
}

/// Half of the queue: DEQS.
#[derive(Clone, Copy, Debug)]
pub struct EqualSplit;

impl Split for EqualSplit {
    fn split(&self, available: u64, _: &mut dyn Choose) -> u64 {
        available.div_ceil(2)
    }
}

/// Returns a random peer of `rank` among the other `ranks`.
pub fn random_peer(rank: u32, ranks: u32, choose: &mut impl Choose) -> u32 {
    debug_assert!(ranks > 1, "a rank alone has no peer");
    let peer = if ranks == 2 { 0 } else { choose.below(u64::from(ranks) - 1) as u32 };
    peer + u32::from(peer >= rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn splits_are_within_the_queue_and_the_random_one_has_every_size() {
        let mut random = Random::new(1);
        let mut seen = [0u32; 10];
        for _ in 0..2_000 {
            seen[RandomSplit.split(9, &mut random) as usize] += 1;
        }
        assert_eq!(seen[0], 0);
        assert!(seen[1..].iter().all(|count| (120..340).contains(count)), "{seen:?}");
        let halves: Vec<u64> = (1..6).map(|n| EqualSplit.split(n, &mut random)).collect();
        assert_eq!(halves, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn every_other_rank_is_a_peer_and_never_oneself() {
        let mut random = Random::new(2);
        for ranks in 2..6 {
            for rank in 0..ranks {
                let peers: std::collections::BTreeSet<u32> =
                    (0..200).map(|_| random_peer(rank, ranks, &mut random)).collect();
                let others: std::collections::BTreeSet<u32> =
                    (0..ranks).filter(|other| *other != rank).collect();
                assert_eq!(peers, others);
            }
        }
    }
}
