//! The processors that a rank may use, and its number of threads where several ranks share processors.

use std::num::NonZeroUsize;

/// A bit for each processor of a node.
pub type Mask = [u64; PROCESSORS_MAX / 64];

/// The maximum number of processors of a node; those beyond are not counted.
const PROCESSORS_MAX: usize = 1024;

/// Returns the processors that this process may use; none if the system does not give them.
pub fn mask() -> Mask {
    let mut mask = [0; PROCESSORS_MAX / 64];
    if let Ok(set) = nix::sched::sched_getaffinity(nix::unistd::Pid::this()) {
        for processor in 0..PROCESSORS_MAX.min(nix::sched::CpuSet::count()) {
            if set.is_set(processor) == Ok(true) {
                mask[processor / 64] |= 1 << (processor % 64);
            }
        }
    }
    mask
}

/// The nodes of all ranks, and the processors that each may use there.
pub struct Shares<'a> {
    /// The number of each rank's node.
    pub nodes: &'a [u64],
    /// The processors that each rank may use.
    pub masks: &'a [Mask],
}

impl Shares<'_> {
    /// Returns the number of threads of a rank: each processor is divided equally among the ranks that may use it. A
    /// rank that is bound to its own processors takes all of them.
    pub fn threads(&self, rank: usize) -> usize {
        // A limit that is not a mask, such as a container's, is one for all ranks together.
        let allowed = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads_of(rank, allowed)
    }

    fn threads_of(&self, rank: usize, allowed: usize) -> usize {
        let mine = &self.masks[rank];
        let own = mine.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        let neighbours = (0..self.nodes.len()).filter(|other| self.nodes[*other] == self.nodes[rank]);
        let neighbours: Vec<&Mask> = neighbours.map(|other| &self.masks[other]).collect();
        if own == 0 {
            return (allowed / neighbours.len()).max(1);
        }
        let mut share = 0.0;
        for processor in 0..PROCESSORS_MAX {
            let has = |mask: &Mask| mask[processor / 64] >> (processor % 64) & 1 == 1;
            if has(mine) {
                share += 1.0 / neighbours.iter().filter(|mask| has(mask)).count() as f64;
            }
        }
        // Sums of such parts may fall a little short of the whole number that they are.
        let share = (share + 1e-6) as usize;
        if allowed < own { share.min(allowed / neighbours.len()).max(1) } else { share.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(processors: std::ops::Range<usize>) -> Mask {
        let mut mask = [0; PROCESSORS_MAX / 64];
        processors.for_each(|processor| mask[processor / 64] |= 1 << (processor % 64));
        mask
    }

    fn threads(nodes: &[u64], masks: &[Mask], allowed: usize) -> Vec<usize> {
        let shares = Shares { nodes, masks };
        (0..nodes.len()).map(|rank| shares.threads_of(rank, allowed)).collect()
    }

    #[test]
    fn ranks_divide_only_what_they_have_in_common() {
        // Bound to four processors each, on one node.
        let bound: Vec<Mask> = (0..4).map(|rank| mask(4 * rank..4 * rank + 4)).collect();
        assert_eq!(threads(&[7; 4], &bound, 4), [4; 4]);
        // Not bound: sixteen for all of them.
        assert_eq!(threads(&[7; 4], &[mask(0..16); 4], 16), [4; 4]);
        // The same processors of different nodes are different ones.
        assert_eq!(threads(&[1, 2, 2, 3], &[mask(0..8); 4], 8), [8, 4, 4, 8]);
        // In part: each has two of its own and two for both.
        assert_eq!(threads(&[1, 1], &[mask(0..4), mask(2..6)], 4), [3, 3]);
        // More ranks than processors.
        assert_eq!(threads(&[1; 8], &[mask(62..66); 8], 4), [1; 8]);
        // Three thirds are one.
        assert_eq!(threads(&[1; 3], &[mask(0..3); 3], 3), [1; 3]);
        // A container allows less than there are.
        assert_eq!(threads(&[1; 2], &[mask(0..64); 2], 4), [2; 2]);
        // The system does not say.
        assert_eq!(threads(&[1; 2], &[mask(0..0); 2], 4), [2; 2]);
    }

    #[test]
    fn this_process_may_use_what_the_system_says() {
        let count: u32 = super::mask().iter().map(|word| word.count_ones()).sum();
        assert!(count as usize >= std::thread::available_parallelism().unwrap().get());
    }
}
