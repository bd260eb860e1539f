//! The sequence of blocks to update, which follows from a seed.
//!
//! A writer's targets are a function of the seed and of the writer's number alone. A writer moves on to its next target
//! only when the update of the present one succeeded, so the number of its successful updates determines exactly which
//! blocks it updated: the clients record nothing, and the checker replays the sequence.

use nacre_object::limit::OFFSET_MAX;
use nacre_object::{ByteRange, Fork, ObjectId, StoreError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// The blocks of a run: objects × forks × blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Workload {
    /// The prefix of its objects' names, unique to the run.
    pub(crate) prefix: String,
    /// The seed of all random choices.
    pub(crate) seed: u64,
    /// The number of objects.
    pub(crate) objects: u32,
    /// The number of forks of each object.
    pub(crate) forks: u32,
    /// The number of blocks of each fork; `None` for as many as fit the offset space, so that no two updates meet.
    pub(crate) blocks: Option<u64>,
    /// The size of a block in bytes.
    pub(crate) block_bytes: u32,
}

/// A block to update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    /// The number of the object.
    pub(crate) object: u32,
    /// The number of the fork.
    pub(crate) fork: u32,
    /// The index of the block in the fork.
    pub(crate) block: u64,
}

impl Workload {
    /// Checks that the blocks fit the limits of a store.
    ///
    /// # Errors
    /// [`BenchError::Usage`] if they do not.
    pub(crate) fn validate(&self) -> Result<(), BenchError> {
        let usage = |text: String| Err(BenchError::Usage(text));
        if self.objects == 0 || self.forks == 0 || self.blocks == Some(0) {
            return usage("a run needs at least one object, one fork and one block".into());
        }
        if self.block_bytes < super::block::BLOCK_BYTES_MIN {
            return usage(format!("a block must have at least {} bytes", super::block::BLOCK_BYTES_MIN));
        }
        if self.block_bytes > BLOCK_BYTES_MAX {
            return usage(format!("a block can have at most {BLOCK_BYTES_MAX} bytes"));
        }
        let room = self.blocks_max();
        if let Some(blocks) = self.blocks
            && blocks > room
        {
            return usage(format!("{blocks} blocks of {} bytes do not fit into a fork", self.block_bytes));
        }
        Ok(())
    }

    /// Returns the number of blocks that fit into a fork.
    fn blocks_max(&self) -> u64 {
        OFFSET_MAX / u64::from(self.block_bytes)
    }

    /// Returns the endless sequence of one writer's targets.
    pub(crate) fn targets(&self, writer: u32) -> Targets {
        // The multiplier only keeps the seeds of neighbouring writers and runs apart; the generator mixes them.
        let seed = self.seed.wrapping_add(u64::from(writer + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Targets {
            random: SmallRng::seed_from_u64(seed),
            objects: self.objects,
            forks: self.forks,
            blocks: self.blocks.unwrap_or_else(|| self.blocks_max()),
        }
    }

    /// Returns the object ids, by number.
    pub(crate) fn object_ids(&self) -> Result<Vec<ObjectId>, StoreError> {
        (0..self.objects).map(|object| ObjectId::try_from(self.object_name(object).as_str())).collect()
    }

    /// Returns the name of an object.
    pub(crate) fn object_name(&self, object: u32) -> String {
        format!("{}/{object}", self.prefix)
    }

    /// Returns the forks, by number. A single fork is the unnamed one.
    pub(crate) fn fork_names(&self) -> Result<Vec<Fork>, StoreError> {
        if self.forks == 1 {
            return Ok(vec![Fork::DEFAULT]);
        }
        (0..self.forks).map(|fork| Fork::try_from(fork.to_string().as_str())).collect()
    }

    /// Returns the range of a block in its fork.
    pub(crate) fn range(&self, target: &Target) -> ByteRange {
        ByteRange::new(target.block * u64::from(self.block_bytes), u64::from(self.block_bytes))
    }
}

/// The size of the largest block in bytes: a refusal returns it whole.
pub(crate) const BLOCK_BYTES_MAX: u32 = nacre_object::limit::REFUSAL_BYTES_MAX as u32;

/// The endless sequence of one writer's targets.
pub(crate) struct Targets {
    random: SmallRng,
    objects: u32,
    forks: u32,
    blocks: u64,
}

impl Targets {
    /// Returns the next target.
    pub(crate) fn draw(&mut self) -> Target {
        Target {
            object: self.random.random_range(0..self.objects),
            fork: self.random.random_range(0..self.forks),
            block: self.random.random_range(0..self.blocks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        Workload { prefix: "w".into(), seed: 7, objects: 3, forks: 2, blocks: Some(5), block_bytes: 4096 }
    }

    #[test]
    fn a_writers_targets_follow_from_the_seed() {
        let draw = |seed: u64, writer: u32| {
            let mut targets = Workload { seed, ..workload() }.targets(writer);
            (0..100).map(|_| targets.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 0), draw(7, 0));
        assert_ne!(draw(7, 0), draw(7, 1));
        assert_ne!(draw(7, 0), draw(8, 0));
        assert!(draw(7, 0).iter().all(|t| t.object < 3 && t.fork < 2 && t.block < 5));
    }

    #[test]
    fn unlimited_blocks_stay_within_the_offset_space() {
        let workload = Workload { blocks: None, ..workload() };
        let mut targets = workload.targets(0);
        for _ in 0..10_000 {
            workload.range(&targets.draw()).validate().unwrap();
        }
    }

    #[test]
    fn what_cannot_be_laid_out_is_refused() {
        assert!(workload().validate().is_ok());
        for wrong in [
            Workload { objects: 0, ..workload() },
            Workload { forks: 0, ..workload() },
            Workload { blocks: Some(0), ..workload() },
            Workload { block_bytes: 8, ..workload() },
            Workload { block_bytes: BLOCK_BYTES_MAX + 1, ..workload() },
            Workload { blocks: Some(u64::MAX), ..workload() },
        ] {
            assert!(matches!(wrong.validate(), Err(BenchError::Usage(_))), "{wrong:?}");
        }
    }
}
