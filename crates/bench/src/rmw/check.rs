//! The checker: proves after a run that no update was lost.
//!
//! It replays every writer's targets from the seed, up to the number of updates that the writer reports, which gives
//! the number of updates that each block must have seen, in total and from each writer; then it reads every such block.

use serde::{Deserialize, Serialize};

use super::block;
use super::system::Connection;
use super::workload::{Target, Workload};
use crate::BenchError;
use crate::kit::process::together;

/// The result of the checker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The number of blocks that were updated, and read back.
    pub blocks: u64,
    /// The number of updates that were reported as successful.
    pub updates: u64,
    /// The number of reported updates that the blocks do not show.
    pub lost: u64,
    /// The number of updates that the blocks show, but no writer reported.
    pub surplus: u64,
    /// The number of blocks whose two ends disagree.
    pub torn: u64,
    /// The first wrong block, with its difference.
    pub example: Option<String>,
}

impl Verdict {
    /// Returns whether every block is exactly as it must be.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.surplus == 0 && self.torn == 0
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_clean() {
            return write!(f, "{} updates of {} blocks, none lost", self.updates, self.blocks);
        }
        write!(
            f,
            "{} of {} updates lost, {} surplus, {} of {} blocks torn",
            self.lost, self.updates, self.surplus, self.torn, self.blocks
        )?;
        self.example.as_ref().map_or(Ok(()), |example| write!(f, "; {example}"))
    }
}

/// Checks all blocks that the writers updated, reading through `connections` concurrently.
pub(crate) async fn check(
    connections: Vec<Connection>,
    workload: &Workload,
    updates_by_writer: &[u64],
) -> Result<Verdict, BenchError> {
    let expected = replay(workload, updates_by_writer);
    let blocks: Vec<&[(Target, u32)]> = expected.chunk_by(|a, b| a.0 == b.0).collect();
    let readers = connections.len();
    let parts = connections.into_iter().enumerate().map(async |(reader, mut connection)| {
        let mut part = Verdict::default();
        for updates in blocks.iter().skip(reader).step_by(readers) {
            let block = connection.read(&updates[0].0).await?;
            evaluate(&mut part, workload, updates, &block);
        }
        Ok(part)
    });
    let mut verdict =
        Verdict { blocks: blocks.len() as u64, updates: expected.len() as u64, ..Verdict::default() };
    for part in together(parts).await? {
        verdict.lost += part.lost;
        verdict.surplus += part.surplus;
        verdict.torn += part.torn;
        verdict.example = verdict.example.take().or(part.example);
    }
    Ok(verdict)
}

/// Returns every reported update, ordered by block and then by writer.
fn replay(workload: &Workload, updates_by_writer: &[u64]) -> Vec<(Target, u32)> {
    let updates: u64 = updates_by_writer.iter().sum();
    let mut replayed = Vec::with_capacity(updates as usize);
    for (writer, updates) in updates_by_writer.iter().enumerate() {
        let writer = writer as u32;
        let mut targets = workload.targets(writer);
        replayed.extend((0..*updates).map(|_| (targets.draw(), writer)));
    }
    replayed.sort_unstable();
    replayed
}

/// Compares one block with the updates that it must have seen.
fn evaluate(verdict: &mut Verdict, workload: &Workload, updates: &[(Target, u32)], block: &[u8]) {
    let target = updates[0].0;
    let mut note = |text: String| {
        let place = format!("object {}, fork {}, block {}", target.object, target.fork, target.block);
        verdict.example.get_or_insert_with(|| format!("{place}: {text}"));
    };
    let Some(count) = block::count(block, workload.block_bytes) else {
        note("its two ends disagree".into());
        verdict.torn += 1;
        return;
    };
    let expected = updates.len() as u64;
    if count != expected {
        note(format!("it counts {count} updates, and {expected} were reported"));
        verdict.lost += expected.saturating_sub(count);
        verdict.surplus += count.saturating_sub(expected);
        return;
    }
    // The whole may be right by chance where one writer's update replaced another's that was counted twice.
    let slots = block::slots(workload.block_bytes);
    let mut owned: Vec<u32> = updates.iter().filter_map(|(_, writer)| writer.checked_rem(slots)).collect();
    owned.sort_unstable();
    for own in owned.chunk_by(|a, b| a == b) {
        let (slot, expected) = (own[0], own.len() as u64);
        let counted = u64::from(block::slot_count(block, slot));
        if counted != expected {
            note(format!("it counts {counted} updates of writer {slot}, who reported {expected}"));
            verdict.lost += expected.saturating_sub(counted);
            verdict.surplus += counted.saturating_sub(expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn workload() -> Workload {
        Workload { prefix: "c".into(), seed: 1, objects: 1, forks: 1, blocks: Some(1), block_bytes: 64 }
    }

    fn block(writers: &[u32]) -> Bytes {
        writers.iter().fold(Bytes::new(), |block, writer| block::update(block, 64, *writer).unwrap())
    }

    fn verdict_of(writers: &[u32], block: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        let target = Target { object: 0, fork: 0, block: 0 };
        let updates: Vec<_> = writers.iter().map(|writer| (target, *writer)).collect();
        evaluate(&mut verdict, &workload(), &updates, block);
        verdict
    }

    #[test]
    fn a_block_that_saw_every_update_is_clean() {
        assert!(verdict_of(&[0, 0, 1], &block(&[0, 1, 0])).is_clean());
    }

    #[test]
    fn a_lost_update_shows_and_so_does_one_that_nobody_reported() {
        assert_eq!(verdict_of(&[0, 0, 1], &block(&[0, 1])).lost, 1);
        assert_eq!(verdict_of(&[0], &block(&[0, 0])).surplus, 1);
        assert_eq!(verdict_of(&[0], &[]).lost, 1);
    }

    #[test]
    fn a_right_sum_of_wrong_parts_shows() {
        let verdict = verdict_of(&[0, 1], &block(&[0, 0]));
        assert_eq!((verdict.lost, verdict.surplus), (1, 1));
        assert!(verdict.to_string().contains("writer"), "{verdict}");
    }

    #[test]
    fn the_replay_is_what_the_writers_draw() {
        let workload = Workload { blocks: Some(100), ..workload() };
        let replayed = replay(&workload, &[10, 0, 5]);
        let mut drawn = Vec::new();
        for (writer, updates) in [(0, 10), (2, 5)] {
            let mut targets = workload.targets(writer);
            drawn.extend((0..updates).map(|_| (targets.draw(), writer)));
        }
        drawn.sort();
        assert_eq!(replayed, drawn);
    }
}
