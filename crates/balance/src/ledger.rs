//! The outcomes of moves: each is judged by what it gained, and a resource whose moves gain nothing is left alone for a
//! while. No clock.
//!
//! A move gains if of the load of its two ranks the busier one has a smaller part than before, which does not depend on
//! how much there is to do meanwhile: by half of what its load promised, or by a hundredth. A resource that comes back to
//! where it was is reported, and rests as well.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::decide::{Move, Note};
use crate::limit::REMEMBERED_MAX;
use crate::resource::ResourceId;

/// The number of ticks after which a move is judged: the metrics have to settle.
const JUDGED_AFTER: u32 = 2;
/// The number of ticks within which a move to where the resource was before counts as back and forth.
const BACK_WITHIN: u32 = 30;
/// The part of the load of its ranks that is enough of a gain for any move.
const GAIN_ENOUGH: f64 = 0.01;
/// The number of ticks that a resource rests at first, and twice as long each further time.
const REST: u32 = 4;
/// The number of times that the rest is doubled at most.
const DOUBLINGS_MAX: u32 = 6;

/// The moves of one resource.
#[derive(Clone, Debug, Default)]
struct Past {
    from: usize,
    to: usize,
    at: Duration,
    /// The number of moves that gained nothing or led back, since the last one that gained something.
    failures: u32,
    rests_until: Duration,
    /// The time until which a move that failed is not tried again, even if the resource is pinned.
    failed_until: Duration,
}

/// A move that is to be judged.
#[derive(Clone, Debug)]
struct Open {
    id: ResourceId,
    from: usize,
    to: usize,
    at: Duration,
    /// The part that the busier of its ranks had of their load.
    part: f64,
    /// The part by which it has to become smaller.
    needed: f64,
}

/// The past moves of ranks: of one and what it learnt from others, or of all. Times are since any fixed moment.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    past: HashMap<ResourceId, Past>,
    order: VecDeque<ResourceId>,
    open: VecDeque<Open>,
    /// The time from which on nothing rests.
    latest_rest: Duration,
}

/// Returns the part of two ranks' load that the busier one has.
fn part(loads: &[f64], from: usize, to: usize) -> Option<f64> {
    let (a, b) = (*loads.get(from)?, *loads.get(to)?);
    (a + b > 0.0).then(|| a.max(b) / (a + b))
}

impl Ledger {
    /// Returns when a resource may be moved again, if it rests.
    pub fn rests_until(&self, id: &ResourceId, now: Duration) -> Option<Duration> {
        self.past.get(id).map(|past| past.rests_until).filter(|until| *until > now)
    }

    /// Returns whether any resource rests.
    pub(crate) fn has_rests(&self, now: Duration) -> bool {
        self.latest_rest > now
    }

    /// Notes a move that is made now. `loads` are those of all ranks before it. Reports if the resource goes back to where
    /// it was shortly before.
    pub fn moved(&mut self, made: &Move, loads: &[f64], now: Duration, tick: Duration) -> Option<Note> {
        let both: f64 = [made.from, made.to].iter().filter_map(|rank| loads.get(*rank)).sum();
        // Without any load there is nothing to gain.
        let part = part(loads, made.from, made.to).unwrap_or(0.0);
        let needed = if both > 0.0 { GAIN_ENOUGH.min(made.load / both / 2.0) } else { GAIN_ENOUGH };
        let (id, from, to) = (made.id.clone(), made.from, made.to);
        self.open.push_back(Open { id, from, to, at: now, part, needed });
        if self.open.len() > REMEMBERED_MAX {
            self.open.pop_front();
        }
        self.observe(made, now, tick)
    }

    /// Returns when the move of a resource may be tried again, if it failed.
    pub fn failed_until(&self, id: &ResourceId, now: Duration) -> Option<Duration> {
        self.past.get(id).map(|past| past.failed_until).filter(|until| *until > now)
    }

    fn past_of(&mut self, id: &ResourceId) -> &mut Past {
        if !self.past.contains_key(id) {
            while self.order.len() >= REMEMBERED_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.past.remove(&oldest);
            }
            self.order.push_back(id.clone());
        }
        self.past.entry(id.clone()).or_default()
    }

    /// Notes a move that another rank made.
    pub fn observe(&mut self, made: &Move, at: Duration, tick: Duration) -> Option<Note> {
        let is_known = self.past.contains_key(&made.id);
        let past = self.past_of(&made.id);
        if is_known && at <= past.at {
            return None;
        }
        let is_back = is_known
            && (past.from, past.to) == (made.to, made.from)
            && at.saturating_sub(past.at) <= tick * BACK_WITHIN;
        (past.from, past.to, past.at) = (made.from, made.to, at);
        if !is_back {
            return None;
        }
        rest(past, at, tick);
        let until = past.rests_until;
        self.latest_rest = self.latest_rest.max(until);
        Some(Note::BackAndForth { id: made.id.clone(), between: (made.from, made.to), until })
    }

    /// Notes that a move could not be made after all: the resource rests.
    pub fn failed(&mut self, id: &ResourceId, now: Duration, tick: Duration) {
        self.open.retain(|open| open.id != *id);
        let past = self.past_of(id);
        rest(past, now, tick);
        past.failed_until = past.rests_until;
        let until = past.rests_until;
        self.latest_rest = self.latest_rest.max(until);
    }

    /// Notes that a resource has come to where it is pinned: a later move there that fails is the first one again.
    pub fn arrived(&mut self, id: &ResourceId) {
        if let Some(past) = self.past.get_mut(id) {
            past.failures = 0;
        }
    }

    /// Notes that a move is still under way: it is judged once it has ended.
    pub fn goes_on(&mut self, id: &ResourceId, now: Duration) {
        let Some(past) = self.past.get_mut(id) else { return };
        let begun = past.at;
        let position = self.open.iter().position(|open| open.id == *id && open.at == begun);
        if let Some(mut open) = position.and_then(|position| self.open.remove(position)) {
            (open.at, past.at) = (now, now);
            // Those that are judged first come first.
            self.open.push_back(open);
        }
    }

    /// Notes that a move was not begun: there is nothing to judge.
    pub fn not_begun(&mut self, id: &ResourceId) {
        self.open.retain(|open| open.id != *id);
    }

    /// Judges the moves that are old enough, by the loads of all ranks now.
    pub fn judge(&mut self, loads: &[f64], now: Duration, tick: Duration) -> Vec<Note> {
        let mut notes = Vec::new();
        while self.open.front().is_some_and(|open| open.at + tick * JUDGED_AFTER <= now)
            && let Some(open) = self.open.pop_front()
        {
            let Some(past) = self.past.get_mut(&open.id) else { continue };
            // One that has been moved on since is judged by its latest move.
            if (past.from, past.to, past.at) != (open.from, open.to, open.at) {
                continue;
            }
            let Some(after) = part(loads, open.from, open.to) else { continue };
            if open.part - after >= open.needed {
                past.failures = 0;
                continue;
            }
            rest(past, now, tick);
            self.latest_rest = self.latest_rest.max(past.rests_until);
            notes.push(Note::NoGain { id: open.id, from: open.from, to: open.to, until: past.rests_until });
        }
        notes
    }
}

fn rest(past: &mut Past, now: Duration, tick: Duration) {
    let ticks = REST << past.failures.min(DOUBLINGS_MAX);
    past.failures = past.failures.saturating_add(1);
    past.rests_until = past.rests_until.max(now + tick * ticks);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Mode;

    const TICK: Duration = Duration::from_secs(10);

    fn at(ticks: u32) -> Duration {
        TICK * ticks
    }

    fn moved(from: usize, to: usize) -> Move {
        Move { id: "sequencer:a".parse().unwrap(), load: 5.0, from, to, mode: Mode::Client, is_pin: false }
    }

    #[test]
    fn a_move_that_gains_leaves_the_resource_free() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.moved(&moved(0, 1), &[10.0, 0.0], at(1), TICK), None);
        assert!(ledger.judge(&[5.0, 5.0], at(2), TICK).is_empty(), "it is too early");
        assert!(ledger.judge(&[50.0, 50.0], at(3), TICK).is_empty());
        assert_eq!(ledger.rests_until(&moved(0, 1).id, at(3)), None);
    }

    #[test]
    fn a_small_move_need_not_gain_much() {
        let mut ledger = Ledger::default();
        let small = Move { load: 0.001, ..moved(0, 1) };
        ledger.moved(&small, &[10.0, 0.0], at(1), TICK);
        assert!(ledger.judge(&[9.999, 0.001], at(3), TICK).is_empty());
        ledger.moved(&small, &[10.0, 0.0], at(4), TICK);
        assert_eq!(ledger.judge(&[10.0, 0.0], at(6), TICK).len(), 1);
    }

    #[test]
    fn moves_that_gain_nothing_make_it_rest_longer_each_time() {
        let mut ledger = Ledger::default();
        let mut now = 1;
        let mut rests = Vec::new();
        for _ in 0..3 {
            ledger.moved(&moved(0, 1), &[10.0, 0.0], at(now), TICK);
            let notes = ledger.judge(&[0.0, 10.0], at(now + 2), TICK);
            assert!(matches!(&notes[..], [Note::NoGain { from: 0, to: 1, .. }]), "{notes:?}");
            let until = ledger.rests_until(&moved(0, 1).id, at(now + 2)).unwrap();
            rests.push((until - at(now + 2)).as_secs());
            now += 1000;
        }
        assert_eq!(rests, [40, 80, 160]);
    }

    #[test]
    fn a_move_that_could_not_be_made_is_not_tried_again_at_once() {
        let mut ledger = Ledger::default();
        ledger.moved(&moved(0, 1), &[10.0, 0.0], at(1), TICK);
        ledger.failed(&moved(0, 1).id, at(1), TICK);
        assert_eq!(ledger.rests_until(&moved(0, 1).id, at(2)), Some(at(5)));
        assert!(ledger.has_rests(at(2)) && !ledger.has_rests(at(5)));
        assert_eq!(ledger.failed_until(&moved(0, 1).id, at(2)), Some(at(5)));
        let pinned = "group:pinned".parse().unwrap();
        ledger.failed(&pinned, at(1), TICK);
        assert_eq!(ledger.failed_until(&pinned, at(2)), Some(at(5)), "pins are not in the ledger before");
        assert!(ledger.judge(&[10.0, 0.0], at(4), TICK).is_empty());
    }

    #[test]
    fn the_rest_of_what_is_pinned_does_not_grow_from_one_success_to_the_next() {
        let (mut ledger, pinned) = (Ledger::default(), "subtree:/jobs".parse().unwrap());
        ledger.failed(&pinned, at(1), TICK);
        ledger.failed(&pinned, at(5), TICK);
        assert_eq!(ledger.failed_until(&pinned, at(6)), Some(at(13)));
        ledger.arrived(&pinned);
        ledger.failed(&pinned, at(100), TICK);
        assert_eq!(ledger.failed_until(&pinned, at(101)), Some(at(104)));
    }

    #[test]
    fn a_move_that_takes_long_is_judged_after_its_end() {
        let mut ledger = Ledger::default();
        ledger.moved(&moved(0, 1), &[10.0, 0.0], at(1), TICK);
        let other = Move { id: "sequencer:b".parse().unwrap(), ..moved(0, 1) };
        ledger.moved(&other, &[10.0, 0.0], at(2), TICK);
        for now in [2, 3] {
            ledger.goes_on(&moved(0, 1).id, at(now));
            assert!(ledger.judge(&[10.0, 0.0], at(now), TICK).is_empty(), "it is under way");
        }
        assert_eq!(ledger.judge(&[10.0, 0.0], at(4), TICK).len(), 1, "the other one holds nothing up");
        assert!(ledger.judge(&[5.0, 5.0], at(5), TICK).is_empty());
        assert_eq!(ledger.rests_until(&moved(0, 1).id, at(5)), None);
        assert!(ledger.open.is_empty());
    }

    #[test]
    fn a_move_that_was_not_begun_is_not_judged() {
        let mut ledger = Ledger::default();
        ledger.moved(&moved(0, 1), &[10.0, 0.0], at(1), TICK);
        ledger.not_begun(&moved(0, 1).id);
        assert!(ledger.judge(&[10.0, 0.0], at(4), TICK).is_empty());
        assert_eq!(ledger.rests_until(&moved(0, 1).id, at(4)), None);
    }

    #[test]
    fn back_and_forth_is_reported() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.observe(&moved(0, 1), at(1), TICK), None);
        assert_eq!(ledger.observe(&moved(0, 1), at(1), TICK), None, "the same move, published again");
        let note = ledger.moved(&moved(1, 0), &[0.0, 10.0], at(5), TICK);
        assert!(matches!(note, Some(Note::BackAndForth { between: (1, 0), .. })), "{note:?}");
        assert!(ledger.rests_until(&moved(0, 1).id, at(6)).is_some());
        assert_eq!(
            ledger.observe(&moved(0, 1), at(500), TICK),
            None,
            "long after, it is a move like any other"
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut ledger = Ledger::default();
        for number in 0..3 * REMEMBERED_MAX {
            let id = format!("subtree:/{number}").parse().unwrap();
            ledger.moved(&Move { id, ..moved(0, 1) }, &[1.0, 0.0], at(1), TICK);
        }
        assert!(ledger.past.len() <= REMEMBERED_MAX && ledger.order.len() <= REMEMBERED_MAX);
        assert!(ledger.open.len() <= REMEMBERED_MAX);
    }
}
