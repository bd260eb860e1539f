//! The walk's engine as a queue for the algorithms, with threads behind it.
//!
//! There are two queues of walks: for all algorithms but one it is the engine's own, shared by its threads. In CP, entries are
//! handed out one at a time: a worker visits the one that it was assigned, and the master keeps a list of the whole
//! frontier of the tree, as published, which is why it is kept on disk beyond some length. A third one is of ranges of files.

use std::io;
use std::sync::Arc;

use nacre_ranks::Queue;
use nacre_ranks::hybrid::SharedQueue;
use nacre_walk::Unit;

use crate::spill::Spill;

/// The approximate maximum size of the units in one message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Returns the approximate size of a unit in a message, in bytes.
pub fn message_bytes(unit: &Unit) -> usize {
    unit.path.len() + 8 * unit.inodes.len() + 16
}

/// The queue of an engine whose threads share it.
pub struct Shared<S>(pub Arc<nacre_walk::Queue<S>>);

impl<S: Send + Sync> Queue<Unit> for Shared<S> {
    fn len(&self) -> usize {
        self.0.units()
    }

    fn working(&self) -> usize {
        self.0.working()
    }

    fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    fn take(&mut self, units: usize) -> Vec<Unit> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        // Paths may be long: whatever the number of units, a message stays of reasonable size.
        while taken.len() < units && bytes < MESSAGE_BYTES_MAX {
            let more = self.0.take((units - taken.len()).min(256));
            if more.is_empty() {
                break;
            }
            bytes += more.iter().map(message_bytes).sum::<usize>();
            taken.extend(more);
        }
        taken
    }

    fn put(&mut self, units: Vec<Unit>) {
        self.0.put(units);
    }

    fn assign(&mut self, unit: Unit) {
        self.0.assign(unit);
    }

    fn is_assigned(&self) -> bool {
        !self.0.is_idle()
    }
}

/// A queue of units that are no directories, such as the ranges of large files, which threads share.
pub struct Ranges(pub SharedQueue<Unit>);

impl Queue<Unit> for Ranges {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn working(&self) -> usize {
        self.0.working()
    }

    fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    fn take(&mut self, units: usize) -> Vec<Unit> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        // Each range of a file has its path.
        while taken.len() < units
            && bytes < MESSAGE_BYTES_MAX
            && let Some(unit) = self.0.take(1).pop()
        {
            bytes += message_bytes(&unit);
            taken.push(unit);
        }
        taken
    }

    fn put(&mut self, units: Vec<Unit>) {
        self.0.put(units);
    }

    fn assign(&mut self, unit: Unit) {
        self.0.assign(unit);
    }

    fn is_assigned(&self) -> bool {
        self.0.is_assigned()
    }
}

/// The queue of CP.
pub struct OneByOne<S> {
    engine: Arc<nacre_walk::Queue<S>>,
    entries: Spill,
    failed: Option<io::Error>,
}

impl<S: Send + Sync> OneByOne<S> {
    /// Creates an empty queue.
    pub fn new(engine: Arc<nacre_walk::Queue<S>>) -> OneByOne<S> {
        OneByOne { engine, entries: Spill::new(), failed: None }
    }

    /// Takes the error with which entries could not be written to disk, or read from there. The walk is then
    /// incomplete.
    pub fn failed(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// Moves the units that the engine found since the last call into the queue.
    fn gather(&mut self) {
        for unit in self.engine.found() {
            if let Err(error) = self.entries.push(unit) {
                self.failed = Some(error);
            }
        }
    }

    /// Removes and returns all units, for a checkpoint.
    pub fn drain(&mut self) -> Vec<Unit> {
        self.gather();
        let mut all = Vec::new();
        loop {
            match self.entries.pop() {
                Ok(Some(unit)) => all.push(unit),
                Ok(None) => return all,
                Err(error) => {
                    self.failed = Some(error);
                    return all;
                }
            }
        }
    }
}

impl<S: Send + Sync> Queue<Unit> for OneByOne<S> {
    fn len(&self) -> usize {
        self.entries.len() + self.engine.found_count()
    }

    fn working(&self) -> usize {
        usize::from(!self.engine.is_idle())
    }

    fn is_idle(&self) -> bool {
        // In this order: the engine counts what it found before it becomes idle.
        self.engine.is_idle() && self.len() == 0
    }

    fn take(&mut self, units: usize) -> Vec<Unit> {
        self.gather();
        let mut taken = Vec::new();
        let mut bytes = 0;
        while taken.len() < units && bytes < MESSAGE_BYTES_MAX {
            match self.entries.pop() {
                Ok(Some(unit)) => {
                    bytes += message_bytes(&unit);
                    taken.push(unit);
                }
                Ok(None) => break,
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        taken
    }

    fn put(&mut self, units: Vec<Unit>) {
        for unit in units {
            if let Err(error) = self.entries.push(unit) {
                self.failed = Some(error);
            }
        }
    }

    fn assign(&mut self, unit: Unit) {
        self.engine.assign(unit);
    }

    fn is_assigned(&self) -> bool {
        !self.engine.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_files_with_long_paths_go_in_several_messages() {
        let range = |number| Unit { path: vec![b'x'; 100 << 10], position: Some(number), ..Unit::default() };
        let mut queue = Ranges(SharedQueue::new((0..100).map(range)));
        let mut positions = Vec::new();
        loop {
            let taken = queue.take(60);
            if taken.is_empty() {
                break;
            }
            assert!(taken.iter().map(message_bytes).sum::<usize>() < MESSAGE_BYTES_MAX + (101 << 10));
            positions.extend(taken.iter().filter_map(|unit| unit.position));
        }
        assert_eq!(positions, (0..100).collect::<Vec<u64>>());
    }
}
