//! A sequencer's tail, and what of it is durable (Sevilla et al., *Malacology*, section 5.2.1): a state machine without
//! clock or I/O.
//!
//! Invariants:
//! - Positions that were handed out or lent are below `reserved`, which is in the store. A successor begins there, so what
//!   a crash costs is a gap, and never a position twice. A rank that ends in order makes its tail the bound where nothing is lent.
//! - While positions are lent to a holder, nobody else gets any: the tail is the holder's until it comes back or is lost.

use std::time::Duration;

/// The number of positions of a sequencer: all are below this.
pub const POSITIONS: u64 = 1 << 63;

/// The fewest positions that are reserved at once.
const BATCH_MIN: u64 = 1 << 12;
/// The most positions that are reserved at once: what the fastest holder takes in some seconds.
const BATCH_MAX: u64 = 1 << 32;
/// The time that a batch is to last.
const BATCH_TIME: Duration = Duration::from_millis(500);

/// A sequencer in memory.
#[derive(Clone, Debug)]
pub struct Sequencer {
    tail: u64,
    /// The durable bound: a successor begins here.
    reserved: u64,
    /// The bound that is being made durable.
    writing: Option<u64>,
    /// The bound that somebody waits for.
    wanted: u64,
    batch: u64,
    /// The time at which the latest reservation began.
    began: Option<Duration>,
    lent: Option<GrantedRange>,
}

/// The positions that are lent to a holder.
#[derive(Clone, Copy, Debug)]
struct GrantedRange {
    first: u64,
    bound: u64,
    /// The first of those that were lent last.
    last: u64,
    /// True if an earlier rank lent them.
    before: bool,
}

impl Sequencer {
    /// Creates a sequencer whose positions below `reserved` may have been handed out.
    pub fn new(reserved: u64) -> Sequencer {
        Sequencer {
            tail: reserved,
            reserved,
            writing: None,
            wanted: 0,
            batch: BATCH_MIN,
            began: None,
            lent: None,
        }
    }

    /// Returns the bound that is reserved when a sequencer with this tail is loaded for somebody who waits for positions.
    pub fn first_bound(tail: u64) -> u64 {
        tail.saturating_add(BATCH_MIN).min(POSITIONS)
    }

    /// Takes in that more was reserved, durably, when it was loaded.
    pub fn reserved_ahead(&mut self, now: Duration, bound: u64) {
        // What may be with a holder ends at the bound of before.
        assert!(self.lent.is_none() && self.writing.is_none() && bound >= self.reserved);
        (self.reserved, self.began) = (bound, Some(now));
    }

    /// Returns the next position. While positions are lent, it is the first of those.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns the durable bound of what may be handed out.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns whether there are so many positions left at all.
    pub fn has(&self, count: u64) -> bool {
        self.tail.checked_add(count).is_some_and(|end| end <= POSITIONS)
    }

    /// Hands out positions, and returns the first; `None` if they are not reserved yet, or are lent.
    pub fn next(&mut self, count: u64) -> Option<u64> {
        let end = self.tail.checked_add(count).filter(|end| *end <= self.reserved && self.lent.is_none())?;
        Some(std::mem::replace(&mut self.tail, end))
    }

    /// Notes that somebody waits for so many positions behind the tail, or behind what is lent.
    pub fn want(&mut self, count: u64) {
        let from = self.lent.map_or(self.tail, |lent| lent.bound);
        // At least 1: a sequencer that was used is to have some ahead.
        self.wanted = self.wanted.max(from.saturating_add(count).clamp(1, POSITIONS));
    }

    /// Returns whether less is reserved than there should be. A sequencer that nobody uses reserves nothing.
    pub fn is_short(&self) -> bool {
        // A holder has what is reserved: more is needed when it asks for it, and not for each one.
        let from = self.lent.map_or(self.tail, |lent| lent.last);
        let used = self.wanted > 0;
        self.writing.is_none()
            && used
            && self.reserved < POSITIONS
            && (self.wanted > self.reserved || self.reserved - from < self.batch / 2)
    }

    /// Begins a reservation if less is reserved than there should be. Returns the bound to be made durable.
    pub fn reserve(&mut self, now: Duration) -> Option<u64> {
        if !self.is_short() {
            return None;
        }
        // A batch that lasted less than it should is too small, however the time was spent.
        if let Some(began) = self.began {
            let lasted = now.saturating_sub(began);
            self.batch = match () {
                () if lasted < BATCH_TIME / 8 => self.batch * 8,
                () if lasted < BATCH_TIME => self.batch * 2,
                () if lasted > BATCH_TIME * 8 => self.batch / 2,
                () => self.batch,
            }
            .clamp(BATCH_MIN, BATCH_MAX);
        }
        self.began = Some(now);
        let bound = self.reserved.max(self.wanted).saturating_add(self.batch).min(POSITIONS);
        self.writing = Some(bound);
        self.writing
    }

    /// Takes in that the reservation under way is durable.
    pub fn reserved_durably(&mut self) {
        if let Some(bound) = self.writing.take() {
            self.reserved = self.reserved.max(bound);
        }
    }

    /// Takes in that the reservation under way has failed.
    pub fn not_reserved(&mut self) {
        self.writing = None;
    }

    /// Lends all positions that are reserved; at least one is. Returns the first and their bound.
    pub fn lend(&mut self) -> Option<(u64, u64)> {
        if self.lent.is_some() || self.tail >= self.reserved {
            return None;
        }
        let (first, bound) = (self.tail, self.reserved);
        self.lent = Some(GrantedRange { first, bound, last: first, before: false });
        Some((first, bound))
    }

    /// Takes in that a holder whom an earlier rank lent positions may still have them: any up to what is reserved. It gets no
    /// more of them, since nobody knows which they are.
    pub fn lent_before(&mut self) {
        let bound = self.reserved;
        self.lent = Some(GrantedRange { first: 0, bound, last: bound, before: true });
    }

    /// Returns whether an earlier rank lent what is lent.
    pub fn is_lent_before(&self) -> bool {
        self.lent.is_some_and(|lent| lent.before)
    }

    /// Lends what was reserved since to the holder. Returns the new bound if there is more.
    pub fn lend_more(&mut self) -> Option<u64> {
        let reserved = self.reserved;
        let lent = self.lent.as_mut().filter(|lent| !lent.before && lent.bound < reserved)?;
        (lent.last, lent.bound) = (lent.bound, reserved);
        Some(reserved)
    }

    /// Takes the tail back from its holder. Returns how many positions it handed out; `None` if the tail makes no sense,
    /// and then all that was lent counts as handed out.
    pub fn give_back(&mut self, tail: u64) -> Option<u64> {
        let GrantedRange { first, bound, .. } = self.lent.take()?;
        let sound = (first..=bound).contains(&tail);
        if !sound {
            self.batch = BATCH_MIN;
        }
        // Behind what an earlier rank lent, the tail stands at the end of what that rank reserved.
        let tail = if sound { tail } else { bound };
        let used = tail.saturating_sub(self.tail);
        self.tail = self.tail.max(tail);
        sound.then_some(used)
    }

    /// Takes in that the holder is gone: all that was lent counts as handed out.
    pub fn lose(&mut self) {
        if let Some(lent) = self.lent.take() {
            self.tail = self.tail.max(lent.bound);
            // What is lost is not used: the next holder gets less.
            self.batch = BATCH_MIN;
        }
    }

    /// Returns the bound of what is lent.
    pub fn bound(&self) -> Option<u64> {
        self.lent.map(|lent| lent.bound)
    }

    /// Returns whether positions are lent.
    pub fn is_lent(&self) -> bool {
        self.lent.is_some()
    }
}
