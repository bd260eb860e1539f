//! A rank's queue of work, as the algorithms see it.

use std::collections::VecDeque;

/// The work of a rank that was not begun. The engine that visits entries takes from it and adds to it concurrently with
/// the algorithm; it may keep units in memory, spill them to disk, or share them among threads.
pub trait Queue<W> {
    /// Returns the number of units that could be given away now.
    fn len(&self) -> usize;

    /// Returns whether no unit could be given away.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of units that are being worked on. While this is 0, a rank keeps at least one unit when it
    /// gives work away:
    /// otherwise a last unit could go round forever without being begun.
    fn working(&self) -> usize;

    /// Returns whether nothing is queued and nothing is being worked on, *as one observation*: a unit that is being
    /// moved from the queue to a worker, or whose children are being added, must never be missed. (Count units up
    /// before they become visible, and down only after their children were counted.)
    fn is_idle(&self) -> bool;

    /// Removes up to `units` units to give away: fewer if there are fewer, or if more would make the message too large.
    fn take(&mut self, units: usize) -> Vec<W>;

    /// CP with a single reader only: removes one unit that is a directory, or one that is not. A queue that cannot tell
    /// returns any unit, and then all workers read directories.
    fn take_one(&mut self, _directory: bool) -> Option<W> {
        self.take(1).pop()
    }

    /// Adds units.
    fn put(&mut self, units: Vec<W>);

    /// CP only: assigns the only unit to work on. The units that it uncovers go into the queue and are *not* begun
    /// here.
    fn assign(&mut self, unit: W);

    /// CP only: returns whether the assigned unit is not done yet.
    fn is_assigned(&self) -> bool;
}

/// A queue in memory for one worker. Work is begun at the newest end and given away from the oldest, where the
/// directories with most below them tend to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlainQueue<W> {
    queued: VecDeque<W>,
    assigned: Option<W>,
    working: usize,
    /// True while the unit in work is the assigned one.
    in_hand: bool,
}

impl<W> Default for PlainQueue<W> {
    fn default() -> Self {
        Self { queued: VecDeque::new(), assigned: None, working: 0, in_hand: false }
    }
}

impl<W> PlainQueue<W> {
    /// Creates a queue that holds `units`.
    pub fn new(units: impl IntoIterator<Item = W>) -> Self {
        Self { queued: units.into_iter().collect(), ..Self::default() }
    }

    /// Begins the next unit: the assigned one if there is one (or, where `assigned_only`, no other).
    pub fn begin(&mut self, assigned_only: bool) -> Option<W> {
        if let Some(unit) = self.assigned.take() {
            self.in_hand = true;
            self.working += 1;
            return Some(unit);
        }
        if assigned_only {
            return None;
        }
        let unit = self.queued.pop_back()?;
        self.working += 1;
        Some(unit)
    }

    /// Returns whether [`begin`](Self::begin) would return a unit.
    pub fn can_begin(&self, assigned_only: bool) -> bool {
        self.assigned.is_some() || (!assigned_only && !self.queued.is_empty())
    }

    /// Marks a begun unit as done, and queues the `children` that it uncovered.
    pub fn finish(&mut self, children: impl IntoIterator<Item = W>) {
        self.queued.extend(children);
        self.working -= 1;
        self.in_hand = false;
    }

    /// Iterates over the units that were not begun.
    pub fn pending(&self) -> impl Iterator<Item = &W> {
        self.queued.iter().chain(&self.assigned)
    }
}

impl<W> Queue<W> for PlainQueue<W> {
    fn len(&self) -> usize {
        self.queued.len()
    }

    fn working(&self) -> usize {
        self.working
    }

    fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.working == 0 && self.assigned.is_none()
    }

    fn take(&mut self, units: usize) -> Vec<W> {
        let units = units.min(self.queued.len());
        self.queued.drain(..units).collect()
    }

    fn put(&mut self, units: Vec<W>) {
        self.queued.extend(units);
    }

    fn assign(&mut self, unit: W) {
        debug_assert!(self.assigned.is_none(), "one unit at a time");
        self.assigned = Some(unit);
    }

    fn is_assigned(&self) -> bool {
        self.assigned.is_some() || self.in_hand
    }
}
