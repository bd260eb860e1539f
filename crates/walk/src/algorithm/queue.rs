//! A rank's queue of work, as the algorithms see it.

use std::collections::VecDeque;

/// Where a rank keeps work that was not begun. The engine that visits entries takes from it and adds to it beside the algorithm;
/// it may keep units in memory, spill them to disk, or share them among threads.
pub trait Queue<W> {
    /// Units that could be given away now.
    fn len(&self) -> usize;

    /// Whether none could be given away.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Units that are being worked on at this moment. While this is 0, a rank keeps at least one unit when it gives work away:
    /// otherwise a last unit could go round for ever without being begun.
    fn working(&self) -> usize;

    /// Whether nothing is queued and nobody works on anything, *as one observation*: a unit that is being moved from the queue to
    /// a worker, or whose children are being added, must never be missed. (Count units up before they become visible, and
    /// down only after their children were counted.)
    fn is_idle(&self) -> bool;

    /// Takes up to `units` out, to be given away: fewer if there are fewer, or if more would make too large a message.
    fn take(&mut self, units: usize) -> Vec<W>;

    /// CP with a single reader only: takes a unit out that is a directory, or one that is none. A queue that cannot tell gives any
    /// unit, and then everybody reads directories.
    fn take_one(&mut self, _directory: bool) -> Option<W> {
        self.take(1).pop()
    }

    /// Adds units.
    fn put(&mut self, units: Vec<W>);

    /// CP only: work on this unit and on nothing else. What it uncovers goes into the queue and is *not* begun here.
    fn assign(&mut self, unit: W);

    /// CP only: whether the assigned unit is not done yet.
    fn is_assigned(&self) -> bool;
}

/// The plainest queue: one worker, in memory. Work is begun at the newest end and given away from the oldest, where the
/// directories with most below them tend to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlainQueue<W> {
    queued: VecDeque<W>,
    assigned: Option<W>,
    working: usize,
    /// Whether the unit in work is the assigned one.
    in_hand: bool,
}

impl<W> Default for PlainQueue<W> {
    fn default() -> Self {
        Self { queued: VecDeque::new(), assigned: None, working: 0, in_hand: false }
    }
}

impl<W> PlainQueue<W> {
    /// A queue that holds `units`.
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

    /// Whether [`begin`](Self::begin) would give a unit.
    pub fn can_begin(&self, assigned_only: bool) -> bool {
        self.assigned.is_some() || (!assigned_only && !self.queued.is_empty())
    }

    /// A unit that was begun is done, and uncovered `children`.
    pub fn finish(&mut self, children: impl IntoIterator<Item = W>) {
        self.queued.extend(children);
        self.working -= 1;
        self.in_hand = false;
    }

    /// Everything that was not begun.
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
